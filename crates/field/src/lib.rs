//! A memory that several agents share, and the reasons behind it.
//!
//! Agents record units of knowledge with a stated intent, receive a ranked view of what others recorded, flag and
//! resolve contradictions, and replay how a state came about: the Akashik Protocol 0.1.0. A message and everything it
//! needs from outside go into [`decide`]; entries for the log and an answer come out, or a refusal that changes
//! nothing. [`Field::apply`] folds entries into the field, live and after a restart alike.
//!
//! Pure: no clock, no randomness, no storage, no network. Deterministic: the same log and the same call give the same
//! bytes. Transports, durability and embedding models are somebody else's.
//!
//! Invariant: the field is the fold of its log, and what `decide` returns can be applied.

mod apply;
mod caller;
mod config;
mod conflict_list;
mod decide;
mod envelope;
mod error;
mod event;
mod kind;
mod log;
mod notify;
mod payload;
mod relevance;
mod render;
mod replay;
mod search;
mod segment;
mod state;
mod stored;
mod stored_answer;
mod text;
mod vector;
mod view;

pub use apply::ImpossibleEntry;
pub use caller::{
    AUDITOR, CallSeed, Caller, OBSERVER, OPERATOR, SENIOR, SESSION_CREATOR, STANDARD,
};
pub use config::{Config, Level, Limits};
pub use decide::{
    Administration, Call, Decision, Detection, Embedding, Findings, MessageDecision, administer,
    decide, find_contradictions, text_to_embed,
};
pub use envelope::{EPOCH_MAX, Envelope, PROTOCOL_VERSION};
pub use error::{Code, Refusal};
pub use event::*;
pub use kind::*;
pub use log::Log;
pub use notify::{Debouncer, Notification};
pub use replay::{Graph, Reader, Target};
pub use segment::UnreadableSegment;
pub use state::Field;
pub use stored::{Salted, UnreadableEntry, salted_bytes};
pub use stored_answer::StoredAnswer;
pub use vector::{Model, Vector};
