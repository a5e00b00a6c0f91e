//! The engine: one turn after another, decide, append, apply, perform.
//!
//! Does no I/O of its own: the store, the clock, ids, spawning and the outside come through [`port`]. Transports
//! call [`Engine::dispatch`] and the reads beside it with an authenticated caller; authorization, idempotency,
//! limits and the settle window are decided here, whichever transport asked.

mod cache;
mod caller;
mod content;
mod dispatch;
mod engine;
mod field;
mod govern;
mod imported;
mod key;
mod limits;
mod log_tree;
mod metrics;
mod offline;
pub mod port;
mod proof;
mod quota;
mod read;
mod receipt;
mod record;
mod refused;
mod share;
mod stream;
mod transfer;
mod trust;
mod turn;
mod vault;
mod view;
mod worker;

/// What the engine takes.
pub use domain::{
    InputSpec, MessageSpec, NewArtifact, NewSession, NewTask, ReplaySession, ReplayTask, Request,
    TaskMessageKind,
};

pub use caller::{AGENT, APPROVE, Caller, OBSERVE, SCOPES};
pub use content::EXPANDED_BYTES_MAX;
pub use dispatch::{Answer, Idempotency, Settle};
pub use domain::{Activity, Extra, View};
pub use engine::{Engine, Parts};
pub use field::{FieldFrame, FieldName, FieldRefused, FieldStream, FieldView, Retraction};
pub use govern::{Demands, MinimumMode, WaitingApproval};
pub use key::{change_api_key, settle_api_keys};
pub use limits::Limits;
pub use log_tree::{
    HeadReason, Proof, names_signing_key, newest_checkpoint, newest_keys, seal_first,
};
pub use metrics::{Histogram, Metrics};
pub use offline::Offline;
pub use proof::ReceiptForm;
pub use read::{EventPage, EventRange, Filters, ListOrder, ListRequest, Page, Selection};
pub use receipt::Authority;
pub use refused::Refused;
pub use share::{NoShare, Shares};
pub use stream::{EventStream, Frame};
pub use transfer::{Download, Upload};
