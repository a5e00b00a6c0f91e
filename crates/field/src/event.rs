//! Entries of the field's log: what happened, in the words of the protocol.
//!
//! An entry holds what the causal chain and the fold need: ids, types, relations, epochs, status changes. The text of a
//! unit is not in it: it is a [`Content`] beside the entry, named by a salted digest, so that a purge can erase the text
//! and leave the log as it is.

use canon::{Digest, Value};
use domain::Timestamp;
use serde::{Deserialize, Serialize};

use crate::kind::{
    CompactStrategy, ConflictType, Depth, DetectMode, HandoffAction, MemoryType, Method, Mode,
    RelationType, SessionAction, Strategy, SubscribeAction, TargetType, TaskAction, UnitStatus,
};
use crate::vector::{Model, Vector};

/// The agent id of entries that the field writes by itself.
pub const SYSTEM: &str = "system";

/// One entry of the log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Its place in the log of this field.
    pub seq: u64,
    /// When it was written. Never an ordering key.
    pub at: Timestamp,
    /// The epoch of the operation.
    pub epoch: u64,
    /// Who did it; [`SYSTEM`] for what the field derived.
    pub agent_id: String,
    /// The session it belongs to.
    pub session_id: Option<String>,
    /// The message that caused it; only on the first entry of an operation.
    pub message: Option<Message>,
    /// What happened.
    pub event: Event,
}

/// The message behind an operation, remembered so that it is not done twice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Message {
    /// Who sent it.
    pub agent_id: String,
    /// The id that the sender gave it.
    pub id: String,
    /// The digest of its canonical form.
    pub sha256: Digest,
    /// The digest under which its answer is stored, where answers are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer_sha256: Option<Digest>,
    /// Whether what is stored of the answer holds no text of units.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub answer_without_text: bool,
}

/// A status that an operation gave to a unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Effect {
    /// The unit.
    pub unit_id: String,
    /// Its status from now on.
    pub status: UnitStatus,
}

/// What a unit says about another one, without words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Relation {
    /// What it says.
    #[serde(rename = "type")]
    pub kind: RelationType,
    /// About whom.
    pub target_id: String,
    /// Whether the author could not see that unit: then the relation is one to an unknown unit, also for those who see it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unbound: bool,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event_type", content = "data")]
#[expect(
    missing_docs,
    reason = "the members are those of the protocol's payloads and answers, under their names"
)]
pub enum Event {
    /// An agent joined.
    #[serde(rename = "REGISTER")]
    Registered {
        role: String,
        interests: Vec<String>,
        authority: u8,
        key: Option<String>,
    },
    /// An agent left, or was not there.
    #[serde(rename = "DEREGISTER")]
    Deregistered { agent_id: String, found: bool },
    /// A unit was recorded.
    #[serde(rename = "RECORD")]
    Recorded(Recorded),
    /// Two units contradict each other.
    #[serde(rename = "CONFLICT_CREATED")]
    ConflictCreated {
        conflict_id: String,
        unit_a: String,
        unit_b: String,
        kind: ConflictType,
        detected_by: Method,
        effects: Vec<Effect>,
    },
    /// The field gave up on a vote.
    #[serde(rename = "CONFLICT_ESCALATED")]
    ConflictEscalated { conflict_id: String, reason: String },
    /// A MERGE was accepted.
    #[serde(rename = "MERGE")]
    Merged(Merged),
    /// Memory was made smaller.
    #[serde(rename = "COMPACT")]
    Compacted {
        strategy: CompactStrategy,
        unit_ids: Vec<String>,
        reason: Option<String>,
        /// The digests of all that a purge erases beside the log.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        erased: Vec<Digest>,
    },
    /// A unit was taken back.
    #[serde(rename = "UNIT_RETRACTED")]
    Retracted { unit_id: String, reason: String },
    /// A unit that waited for its embedding got it.
    #[serde(rename = "UNIT_ENRICHED")]
    Enriched { unit_id: String, model: Model },
    /// An agent looked at the memory and was shown these units.
    #[serde(rename = "ATTUNE")]
    Attuned {
        role: String,
        max_units: u64,
        since_epoch: Option<u64>,
        unit_ids: Vec<String>,
    },
    /// An agent looked for conflicts; those it found follow.
    #[serde(rename = "DETECT")]
    Detected {
        mode: DetectMode,
        target_id: Option<String>,
        conflict_ids: Vec<String>,
    },
    /// A subscription was made, ended or listed.
    #[serde(rename = "SUBSCRIBE")]
    Subscribed {
        action: SubscribeAction,
        subscription: Option<Subscription>,
    },
    /// A causal chain was read.
    #[serde(rename = "REPLAY")]
    Replayed {
        target_type: TargetType,
        target_id: String,
        depth: Depth,
    },
    /// A task changes hands.
    #[serde(rename = "HANDOFF")]
    HandedOff {
        action: HandoffAction,
        handoff_id: String,
        task_id: String,
        to_agent: String,
        package: Option<Package>,
    },
    /// A task changed.
    #[serde(rename = "COORDINATE")]
    Coordinated {
        action: TaskAction,
        task_id: String,
        title: Option<String>,
        goal: Option<String>,
        assignee: Option<String>,
        depends_on: Vec<String>,
        reason: Option<String>,
    },
    /// A session changed.
    #[serde(rename = "SESSION")]
    SessionChanged {
        action: SessionAction,
        session_id: String,
        goal: Option<String>,
        roles: Vec<String>,
    },
    /// The operator or a heartbeat policy says that an agent failed.
    #[serde(rename = "AGENT_FAILED")]
    AgentFailed { agent_id: String, reason: String },
}

/// A recorded unit, without its text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recorded {
    /// Its id.
    pub unit_id: String,
    /// Draft or committed.
    pub mode: Mode,
    /// What it is.
    pub kind: MemoryType,
    /// The role of its author at that time.
    pub agent_role: String,
    /// The task it was recorded for.
    pub task_id: Option<String>,
    /// How sure its author is.
    pub score: Option<f64>,
    /// What it says about others, in the order given.
    pub relations: Vec<Relation>,
    /// The status it starts with.
    pub status: UnitStatus,
    /// The digest of its text.
    pub text_sha256: Digest,
    /// What made its vector; nothing while it waits for one or when the field uses none.
    pub model: Option<Model>,
    /// What it did to others.
    pub effects: Vec<Effect>,
}

/// An accepted MERGE.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Merged {
    /// The conflict.
    pub conflict_id: String,
    /// How it was to be resolved.
    pub strategy: Strategy,
    /// What came of it.
    pub outcome: Outcome,
    /// The unit that won, or that the vote was for.
    pub winner_id: Option<String>,
    /// The unit that replaces both.
    pub new_unit_id: Option<String>,
    /// Why.
    pub rationale: String,
    /// What it did to the units.
    pub effects: Vec<Effect>,
}

/// What came of a MERGE.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The conflict ended.
    Resolved,
    /// A human decides.
    Escalated,
    /// A vote was cast; others are missing.
    PendingVote,
}

/// A subscription as it is stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subscription {
    /// Its id.
    pub id: String,
    /// What it asks to be notified of.
    pub events: Vec<crate::kind::Topic>,
    /// The least relevance of what is sent.
    pub min_relevance: Option<f64>,
    /// The least gap between two notifications about one thing.
    pub debounce_ms: Option<u64>,
}

/// What goes with a task from one agent to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Package {
    /// Why it is handed over.
    pub reason: Option<String>,
    /// The units to read, all visible to the receiver.
    pub unit_ids: Vec<String>,
    /// What is still open.
    pub open_questions: Vec<String>,
    /// Where things stand.
    pub summary: Option<String>,
}

/// The text of a unit: what a purge erases.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnitText {
    /// Makes the digest of a short text useless for guessing.
    pub salt: String,
    /// The knowledge itself.
    pub content: String,
    /// Why it was recorded.
    pub purpose: String,
    /// The question behind it.
    pub question: Option<String>,
    /// Why the author is as sure as the score says.
    pub reasoning: Option<String>,
    /// What speaks for it.
    pub evidence: Option<Vec<String>>,
    /// What it takes for granted.
    pub assumptions: Option<Vec<String>>,
    /// The description of each relation, in their order.
    pub descriptions: Vec<Option<String>>,
}

impl UnitText {
    /// Returns the bytes that are stored and hashed.
    pub fn bytes(&self) -> Vec<u8> {
        let value = serde_json::to_value(self).unwrap_or(Value::Null);
        canon::jcs(&value)
    }

    /// Returns the digest that the entry names.
    pub fn sha256(&self) -> Digest {
        canon::sha256(&self.bytes())
    }
}

/// What is stored beside an entry and can be erased.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Content {
    /// The text of the unit that the entry recorded.
    pub text: Option<UnitText>,
    /// Its vector, where it cannot be computed from the text.
    pub vector: Option<Vector>,
}

impl Event {
    /// Returns the type of the entry on the wire.
    pub fn event_type(&self) -> &'static str {
        match self {
            Self::Registered { .. } => "REGISTER",
            Self::Deregistered { .. } => "DEREGISTER",
            Self::Recorded(_) => "RECORD",
            Self::ConflictCreated { .. } => "CONFLICT_CREATED",
            Self::ConflictEscalated { .. } => "CONFLICT_ESCALATED",
            Self::Merged(_) => "MERGE",
            Self::Compacted { .. } => "COMPACT",
            Self::Retracted { .. } => "UNIT_RETRACTED",
            Self::Enriched { .. } => "UNIT_ENRICHED",
            Self::Attuned { .. } => "ATTUNE",
            Self::Detected { .. } => "DETECT",
            Self::Subscribed { .. } => "SUBSCRIBE",
            Self::Replayed { .. } => "REPLAY",
            Self::HandedOff { .. } => "HANDOFF",
            Self::Coordinated { .. } => "COORDINATE",
            Self::SessionChanged { .. } => "SESSION",
            Self::AgentFailed { .. } => "AGENT_FAILED",
        }
    }

    /// Returns the unit that a timeline shows for the entry.
    pub fn memory_unit_id(&self) -> Option<&str> {
        match self {
            Self::Recorded(recorded) => Some(&recorded.unit_id),
            Self::Merged(merged) if merged.outcome == Outcome::Resolved => merged
                .winner_id
                .as_deref()
                .or(merged.new_unit_id.as_deref()),
            Self::Compacted { unit_ids, .. } => match unit_ids.as_slice() {
                [only] => Some(only),
                _ => None,
            },
            Self::Retracted { unit_id, .. } | Self::Enriched { unit_id, .. } => Some(unit_id),
            _ => None,
        }
    }

    /// Returns the task that the entry belongs to.
    pub fn task_id(&self) -> Option<&str> {
        match self {
            Self::Recorded(recorded) => recorded.task_id.as_deref(),
            Self::HandedOff { task_id, .. } | Self::Coordinated { task_id, .. } => Some(task_id),
            _ => None,
        }
    }

    /// Returns the conflicts that the entry is an event of.
    pub(crate) fn conflict_ids(&self) -> &[String] {
        match self {
            Self::ConflictCreated { conflict_id, .. }
            | Self::ConflictEscalated { conflict_id, .. } => std::slice::from_ref(conflict_id),
            Self::Merged(merged) => std::slice::from_ref(&merged.conflict_id),
            Self::Detected { conflict_ids, .. } => conflict_ids,
            _ => &[],
        }
    }

    /// Returns the units that the entry did something to from outside.
    pub(crate) fn touched(&self) -> &[String] {
        match self {
            Self::Compacted { unit_ids, .. } => unit_ids,
            Self::Retracted { unit_id, .. } | Self::Enriched { unit_id, .. } => {
                std::slice::from_ref(unit_id)
            }
            _ => &[],
        }
    }

    /// Returns the status changes of the entry.
    pub fn effects(&self) -> &[Effect] {
        match self {
            Self::Recorded(recorded) => &recorded.effects,
            Self::ConflictCreated { effects, .. } => effects,
            Self::Merged(merged) => &merged.effects,
            _ => &[],
        }
    }
}
