//! Who sends a message: the credential, what it may act for, and what each operation asks for.
//!
//! Authority runs from 0 (auditor) to 10 (human operator). A key has a ceiling by its scopes. At level 3 each agent
//! states an authority of its own, never above its key's ceiling. Below level 3 agents have none: the key alone counts,
//! and one that may write may do everything except what only the operator may.

use canon::Digest;
use domain::Timestamp;

use crate::config::Level;
use crate::kind::{CompactStrategy, Mode, Operation, SessionAction, Strategy, TaskAction};

/// The authority of a human operator.
pub const OPERATOR: u8 = 10;
/// The authority of whoever created a session.
pub const SESSION_CREATOR: u8 = 8;
/// The authority of a senior agent.
pub const SENIOR: u8 = 6;
/// The authority of an agent that states none.
pub const STANDARD: u8 = 4;
/// The authority of an agent that may only read and draft.
pub const OBSERVER: u8 = 2;
/// The authority of an agent that may only replay.
pub const AUDITOR: u8 = 0;

/// A checked credential.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// What names the key in the log; not the key itself.
    pub key: String,
    /// The highest authority that the key's scopes allow.
    pub ceiling: u8,
    /// The agent ids that the key may act for, `*` at the end for a prefix; empty for those it registered first.
    pub agents: Vec<String>,
}

impl Caller {
    /// Returns whether the key may act for an agent id that was first registered with `first_key`, if it ever was.
    pub(crate) fn may_act_for(&self, agent: &str, first_key: Option<&str>) -> bool {
        if self.agents.is_empty() {
            return first_key.is_none_or(|first| first == self.key);
        }
        self.agents
            .iter()
            .any(|pattern| match pattern.strip_suffix('*') {
                Some(prefix) => agent.starts_with(prefix),
                None => agent == pattern,
            })
    }
}

/// What only the world outside can give: the time and one secret random number per call.
///
/// Ids and salts are derived from the number, so that the same call gives the same entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallSeed {
    /// The time of the call.
    pub now: Timestamp,
    /// Random and secret; never used for two calls.
    pub nonce: [u8; 32],
}

impl CallSeed {
    fn derive(&self, label: &str, number: usize) -> Digest {
        let number = u64::try_from(number).unwrap_or(u64::MAX).to_be_bytes();
        canon::sha256_parts([self.nonce.as_slice(), label.as_bytes(), &[0], &number])
    }

    pub(crate) fn id(&self, prefix: &str, number: usize) -> String {
        let mut id = format!("{prefix}_");
        id.extend(self.derive(prefix, number).hex().chars().take(32));
        id
    }

    pub(crate) fn salt(&self, number: usize) -> String {
        self.derive("salt", number).hex().chars().take(32).collect()
    }
}

/// Returns the authority with which a call acts.
pub(crate) fn effective(level: Level, caller: Option<&Caller>, agent: u8) -> u8 {
    let ceiling = caller.map_or(OPERATOR, |caller| caller.ceiling);
    if level >= Level::Full {
        ceiling.min(agent)
    } else if ceiling >= SENIOR {
        ceiling.max(SESSION_CREATOR)
    } else {
        ceiling
    }
}

/// Returns the scope of a key under which an authority can be had.
pub(crate) fn scope_for(level: Level, authority: u8) -> &'static str {
    // Below level 3 whoever may write may do all but what only the operator may.
    let writers = if level >= Level::Full {
        SENIOR
    } else {
        SESSION_CREATOR
    };
    if authority <= OBSERVER {
        "field:read"
    } else if authority <= writers {
        "field:write"
    } else {
        "field:admin"
    }
}

/// Returns the least authority that any form of an operation asks for.
pub(crate) fn least(operation: Operation) -> u8 {
    match operation {
        // Anyone may register, replay, and leave.
        Operation::Register | Operation::Replay | Operation::Deregister => AUDITOR,
        Operation::Record | Operation::Attune | Operation::Subscribe => OBSERVER,
        Operation::Detect
        | Operation::Merge
        | Operation::Handoff
        | Operation::Coordinate
        | Operation::Session => STANDARD,
        Operation::Compact => SENIOR,
    }
}

/// Returns what RECORD asks for.
pub(crate) fn to_record(mode: Mode) -> u8 {
    match mode {
        Mode::Draft => OBSERVER,
        Mode::Committed => STANDARD,
    }
}

/// Returns what MERGE asks for; an escalated conflict asks for the operator besides.
pub(crate) fn to_merge(strategy: Strategy) -> u8 {
    if strategy == Strategy::Vote {
        STANDARD
    } else {
        SENIOR
    }
}

/// Returns what COMPACT asks for.
pub(crate) fn to_compact(strategy: CompactStrategy) -> u8 {
    match strategy {
        CompactStrategy::Archive | CompactStrategy::Summarize => SENIOR,
        CompactStrategy::Purge => OPERATOR,
    }
}

/// Returns what COORDINATE asks for; `own` when the task is the sender's or nobody's.
pub(crate) fn to_coordinate(action: TaskAction, own: bool) -> u8 {
    match (action, own) {
        (TaskAction::Cancel, _) => SESSION_CREATOR,
        (_, true) => STANDARD,
        (_, false) => SENIOR,
    }
}

/// Returns what an offer of HANDOFF asks for; `own` when the task is the sender's or nobody's.
pub(crate) fn to_offer(own: bool) -> u8 {
    if own { STANDARD } else { SENIOR }
}

/// Returns what SESSION asks for.
pub(crate) fn to_change_session(action: SessionAction) -> u8 {
    match action {
        SessionAction::Create | SessionAction::Join | SessionAction::Leave => STANDARD,
        SessionAction::Pause | SessionAction::Resume | SessionAction::End => SESSION_CREATOR,
    }
}
