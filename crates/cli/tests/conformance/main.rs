//! The conformance runner against the real program: whole, broken on purpose, and beside a runner of others.

#[cfg(test)]
mod broken;
#[cfg(test)]
mod described;
#[cfg(test)]
mod memory;
#[cfg(test)]
mod subject;
#[cfg(test)]
mod whole;
#[cfg(test)]
#[path = "../it/world.rs"]
#[expect(
    dead_code,
    reason = "the other tests of the program use the rest of it"
)]
mod world;
