//! REST and server-sent events over the engine.
//!
//! A handler decodes, calls the engine and encodes; authorization, idempotency and lifecycle are decided below. What
//! is decided here: which requests get as far as a handler (version, credential, drain), the shape of every error,
//! and how a connection is kept, limited and ended.

mod app;
mod byte_budget;
mod call;
mod config;
mod connection;
mod exact;
mod failure;
mod gate;
mod head;
mod host;
mod listen;
mod mcp;
mod memory;
mod metrics;
mod routes;
mod socket;
mod sse;
pub mod world;

pub use config::{CARD_OBJECT, Config, RateLimit, Tls};
pub use listen::{Bound, ServeError, bind, serve};
pub use wire::card::{Connector, Provider, Tool};
