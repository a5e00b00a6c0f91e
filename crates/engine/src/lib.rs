//! The engine: one turn after another, decide, append, apply, perform.
//!
//! Does no I/O of its own: the store, the clock, ids, spawning and the outside come through [`port`]. Transports
//! call [`Engine::dispatch`] and the reads beside it with an authenticated caller; authorization, idempotency,
//! limits and the settle window live here and nowhere else.

pub mod port;
pub mod workflow;
