//! The program under faults: the real binary, killed, traced, starved and stopped while clients talk to it.

#[cfg(test)]
mod client;
#[cfg(test)]
mod closing;
#[cfg(test)]
mod damage;
#[cfg(test)]
mod drain;
#[cfg(test)]
mod equal;
#[cfg(test)]
mod full_disk;
#[cfg(test)]
mod history;
#[cfg(test)]
mod host;
#[cfg(test)]
mod kills;
#[cfg(test)]
mod load;
#[cfg(test)]
mod quiet;
#[cfg(test)]
mod second;
#[cfg(test)]
mod session_replays;
#[cfg(test)]
mod sse;
#[cfg(test)]
mod streams;
#[cfg(test)]
mod syncing;
#[cfg(test)]
mod trace;
#[cfg(test)]
#[expect(dead_code, reason = "the other test binary uses all of it")]
#[path = "../it/world.rs"]
mod world;
