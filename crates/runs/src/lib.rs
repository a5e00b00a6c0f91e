//! Runs as values: workflows that ask for effects, and replays of what is recorded.
//!
//! Pure: nothing here reads a clock, a file or the network. The engine steps workflows and writes what replays say;
//! the offline commands of the program run the same code on the bytes of a bundle.

mod deeds;
pub mod replay;
mod secrets;
pub mod workflow;

pub use deeds::Deeds;
pub use secrets::looks_secret;
