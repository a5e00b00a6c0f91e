//! The document of a resource: its state with what is needed to find it, link it and go on with it.

use serde::{Deserialize, Serialize};

use crate::{State, Timestamp};

/// A place in the log. Positions grow with commits; holes between them are legal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Position(pub u64);

impl Position {
    /// Before the first event.
    pub const START: Position = Position(0);

    /// Returns the position that many places later.
    pub fn plus(self, count: u64) -> Self {
        Self(self.0.saturating_add(count))
    }
}

/// What a resource or event belongs to, by the keys of those documents: any number of them.
///
/// The first three are by name because access, sealing and retention go by them. Everything else that something is listed
/// by is among the further ones: which, says the table of kinds.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Links {
    /// The Workspace's key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<Position>,
    /// The Session's key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<Position>,
    /// The Task's key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<Position>,
    /// Further ones, ascending, each once.
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    pub further: Box<[Position]>,
}

impl Links {
    /// Returns every key.
    pub fn keys(&self) -> impl Iterator<Item = Position> {
        let named = [self.workspace, self.session, self.task];
        named
            .into_iter()
            .flatten()
            .chain(self.further.iter().copied())
    }
}

/// A resource as its events left it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// Position of the event that created it: its integer key, unique over all kinds, ordered by creation.
    pub key: Position,
    /// Its public id.
    pub id: Box<str>,
    /// How many events it folds, which is the `sequence` of the last one. Also its version.
    pub version: u64,
    /// Position of the last event folded.
    pub tip: Position,
    /// What it belongs to.
    pub links: Links,
    /// When its first event was committed.
    pub created_at: Timestamp,
    /// When its last event was committed.
    pub updated_at: Timestamp,
    /// What it is.
    pub state: State,
}
