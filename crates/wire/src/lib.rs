//! What travels: the agents protocol's resources, requests, errors, cursors and frames as JSON.
//!
//! Pure: values in, values out. Knows no transport, no clock and no store; the surface passes documents and the
//! payloads they point to, and gets JSON back. Domain types are not wire types: every member of an answer is named
//! here, so that a change of the domain cannot change the protocol by accident.

pub mod access;
pub mod card;
mod cursor;
pub mod decode;
mod error;
mod event;
pub mod json_rpc;
mod list;
pub mod openapi;
pub mod receipt;
pub mod render;

pub use cursor::Cursor;
pub use error::{Code, ErrorBody, InputError};
pub use event::{
    compact_event, error_frame, event_list, expanded_frame, frame, heartbeat, may_keep_beside,
    recorded_artifact, with_delivery_marks,
};
pub use list::list;

/// The one version of the agents protocol that is spoken here.
pub const PROTOCOL_VERSION: &str = "agents-protocol-2026-04-25";

/// The header that names the version.
pub const VERSION_HEADER: &str = "harn-agents-protocol-version";
