//! Taking over a Task of another log.

use canon::{Digest, Map, Value};

use crate::{Blob, ReceiptId, SessionId, Status, TaskId, Timestamp, WorkspaceId};

/// See [`Order::ImportTask`](crate::Order::ImportTask).
#[derive(Debug, Clone, PartialEq)]
pub struct ImportTask {
    /// Its id, as it was there.
    pub id: TaskId,
    /// Its Session, as it was there; made here when there is none.
    pub session_id: SessionId,
    /// The Workspace here.
    pub workspace_id: WorkspaceId,
    /// What its `task.submitted` said.
    pub submitted: Map<String, Value>,
    /// What the Message said that it was given, when it was given one.
    pub message: Option<Map<String, Value>>,
    /// The actor who submitted it there.
    pub created_by: String,
    /// How it ended.
    pub status: Status,
    /// Why it failed; null otherwise.
    pub failure: Value,
    /// When it was submitted.
    pub submitted_at: Timestamp,
    /// When it began; none when it never did.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Timestamp,
    /// The bundle that holds its sealed log, already stored.
    pub bundle: Digest,
    /// Its length.
    pub bundle_bytes: u64,
    /// Its Receipt.
    pub receipt: ImportedReceipt,
    /// What its log keeps beside itself and is not stored yet.
    pub blobs: Vec<Blob>,
}

/// The Receipt of a Task that is taken over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportedReceipt {
    /// Its id, as it was there.
    pub id: ReceiptId,
    /// The hash in it.
    pub hash: Digest,
    /// The hash of the one before it, there.
    pub previous: Option<Digest>,
    /// Its bytes.
    pub content: Blob,
}
