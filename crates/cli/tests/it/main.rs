//! The program from outside: the real binary, real directories, a real server on loopback.

#[cfg(test)]
mod agents;
#[cfg(test)]
mod backtests;
#[cfg(test)]
mod canonicalize;
#[cfg(test)]
mod configuring;
#[cfg(test)]
mod conforming;
#[cfg(test)]
mod content;
#[cfg(test)]
mod contracts;
#[cfg(test)]
mod demo;
#[cfg(test)]
mod embedding;
#[cfg(test)]
mod fields;
#[cfg(test)]
mod finding;
#[cfg(test)]
mod foreign;
#[cfg(test)]
mod foreign_mcp;
#[cfg(test)]
mod forgetting;
#[cfg(test)]
mod governed;
#[cfg(test)]
mod help;
#[cfg(test)]
mod importing;
#[cfg(test)]
mod keys;
#[cfg(test)]
mod logs;
#[cfg(test)]
mod missing;
#[cfg(test)]
mod pasting;
#[cfg(test)]
mod personas;
#[cfg(test)]
mod programs;
#[cfg(test)]
mod pruning;
#[cfg(test)]
mod receipts;
#[cfg(test)]
mod remembering;
#[cfg(test)]
mod replays;
#[cfg(test)]
mod retrying;
#[cfg(test)]
mod sandboxed;
#[cfg(test)]
mod serving;
#[cfg(test)]
mod showing;
#[cfg(test)]
mod tasks;
#[cfg(test)]
mod telling;
#[cfg(test)]
mod terminal;
#[cfg(test)]
mod tls;
#[cfg(test)]
mod watching;
#[cfg(test)]
mod world;
