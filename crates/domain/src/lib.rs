//! What can happen and what it does: ids, events, commands, and the state of every resource.
//!
//! Pure: time, ids and other people's verdicts arrive as values. `decide` turns a command into event
//! drafts or a refusal, `seal` gives drafts their positions and bytes, `apply` folds an event into the
//! document of the one resource it names. The same three serve live runs, restarts, rebuilds and tests.
//!
//! Invariant: an event changes exactly one document, that of its `resource`; a document is the fold of
//! the events that name it and of nothing else.

mod apply;
mod command;
mod decide;
mod document;
mod event;
mod governed;
mod id;
mod kind;
mod lifecycle;
mod part;
pub mod payload;
mod persona;
mod price;
mod refusal;
mod request;
mod seal;
mod state;
mod time;
mod view;

pub use apply::{ImpossibleEvent, apply};
pub use command::*;
pub use decide::{
    Decision, Documents, EndedTask, KeyChange, SignedReceipt, change_key, decide, interrupted,
    issue_receipt, public_text,
};
pub use document::{Document, Links, Position};
pub use event::{
    Content, Draft, EVENT_OVERRIDE, Event, EventName, ParseEventError, ReplayMark, ResourceRef,
    pruned_digest,
};
pub use governed::*;
pub use id::*;
pub use kind::{
    FurtherLink, InDiff, InReceipt, InRecovery, InReplay, Kind, NamedBlob, Retention, UnknownKind,
};
pub use lifecycle::Status;
pub use part::{
    BLOB_MEMBER, Blob, ExternalMember, INLINE_BYTES_MAX, PartError, Role, Visibility,
    artifact_reference, blob_reference, check_parts, external_members, externalize,
};
pub use persona::*;
pub use price::{Price, PriceTable, Seller};
pub use refusal::Refusal;
pub use request::*;
pub use seal::{Scratch, Sealed, links, seal};
pub use state::*;
pub use time::Timestamp;
pub use view::{Activity, Extra, View};
