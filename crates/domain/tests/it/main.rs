//! The domain through its public functions: decide, seal, apply.

#![expect(clippy::unwrap_used, reason = "tests")]

mod advance;
mod persona;
mod stored_bytes;
mod table;
