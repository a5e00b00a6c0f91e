//! A resource as a reader gets it: plain data, which the engine fills and the wire renders.

use std::collections::BTreeMap;

use canon::{Map, Value};

use crate::{Content, Document, Position, ReceiptId, WorkspaceId};

/// A resource with its content.
#[derive(Debug, Clone, PartialEq)]
pub struct View {
    /// What its events left.
    pub document: Document,
    /// Payloads of the events it points to, with blobs and permitted private parts filled in.
    pub payloads: BTreeMap<Position, Content>,
    /// What is computed at read.
    pub extra: Extra,
}

/// What is computed at read.
#[derive(Debug, Clone, PartialEq)]
pub enum Extra {
    /// Nothing.
    None,
    /// For a Session.
    Session {
        /// What it is doing.
        activity: Activity,
        /// Its newest event.
        last_event_id: Option<String>,
    },
    /// For a Message.
    Message {
        /// The Workspace of its Session.
        workspace_id: Option<WorkspaceId>,
    },
    /// For an Artifact.
    Artifact {
        /// The receipt of the finished Task that made it.
        receipt_id: Option<ReceiptId>,
    },
    /// For an Outcome: the Messages of the result.
    Outcome {
        /// In order.
        messages: Vec<View>,
    },
}

/// What a Session is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// A Task is active.
    Active,
    /// Every active Task waits for somebody.
    Paused,
    /// No Task is active.
    Idle,
    /// It is closed.
    Closed,
}

impl Activity {
    /// Returns the protocol's word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Activity::Active => "ACTIVE",
            Activity::Paused => "PAUSED",
            Activity::Idle => "IDLE",
            Activity::Closed => "CLOSED",
        }
    }

    /// Says what a Session is doing whose open Tasks wait for somebody or not.
    pub fn of(are_waiting: impl IntoIterator<Item = bool>) -> Self {
        let mut are_waiting = are_waiting.into_iter().peekable();
        if are_waiting.peek().is_none() {
            Activity::Idle
        } else if are_waiting.all(|is_waiting| is_waiting) {
            Activity::Paused
        } else {
            Activity::Active
        }
    }
}

impl View {
    /// Returns the payload of the event at a position.
    pub fn payload(&self, position: Position) -> Option<&Map<String, Value>> {
        self.payloads.get(&position).map(|content| &**content)
    }
}
