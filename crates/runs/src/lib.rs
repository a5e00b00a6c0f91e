//! Runs as values: workflows that ask for effects, and replays of what is recorded.
//!
//! Pure: nothing here reads a clock, a file or the network. The engine steps workflows and writes what replays say;
//! the offline commands of the program run the same code on the bytes of a bundle.

pub mod replay;
mod secrets;
mod side_effects;
pub mod workflow;

pub use secrets::looks_secret;
pub use side_effects::SideEffectSummary;
