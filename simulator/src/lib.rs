//! The whole engine in one thread under one seed.
//!
//! Clock, ids, scheduling, the store's faults and the outside all come from one generator, so that a seed always
//! gives the same bytes. A run kills the engine at moments the seed chooses, starts it again on what was durable,
//! and checks after every crash and at the end that nothing acknowledged is lost and nothing impossible is stored.
//! Never shipped.

mod check;
mod clients;
mod executor;
mod faults;
mod fields;
mod run;
mod talker;
mod world;

pub use check::Replays;
pub use run::{Report, run};
