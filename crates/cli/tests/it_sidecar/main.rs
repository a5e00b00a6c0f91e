//! `reprise sidecar` on the real binary, in real directories and real git repositories.

#[cfg(test)]
mod backfill;
#[cfg(test)]
mod canonicalize;
#[cfg(test)]
mod capture;
#[cfg(test)]
mod docs;
#[cfg(test)]
mod facts;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod recorded;
#[cfg(test)]
mod rerun;
#[cfg(test)]
mod signing;
#[cfg(test)]
mod verify;
#[cfg(test)]
mod world;
