//! What a field offers: its conformance level, its limits and the choices that the protocol leaves open.

use crate::kind::{CompactStrategy, ConflictType, Operation, Strategy};

/// How much of the protocol a field offers; each level includes those below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// 0: register, record, attune.
    Starter,
    /// 1: durable log, clock, confidence, explicit conflicts, polling.
    Core,
    /// 2: embeddings, merge, replay, compaction, handoff, tokens.
    Standard,
    /// 3: tasks, sessions, authority, visibility.
    Full,
}

impl Level {
    /// Every level, lowest first.
    pub const ALL: &'static [Self] = &[Self::Starter, Self::Core, Self::Standard, Self::Full];

    /// Returns the number of the level.
    pub const fn number(self) -> u8 {
        match self {
            Self::Starter => 0,
            Self::Core => 1,
            Self::Standard => 2,
            Self::Full => 3,
        }
    }
}

/// Sizes beyond which a message is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a whole request.
    pub request_bytes_max: usize,
    /// Bytes of the content of a unit.
    pub content_bytes_max: usize,
    /// Relations of one unit.
    pub relations_max: usize,
    /// Units in one ATTUNE answer; a larger `max_units` is capped.
    pub attune_units_max: usize,
    /// Events in the timeline of one REPLAY answer.
    pub replay_events_max: usize,
    /// Bytes of one REPLAY answer.
    pub replay_bytes_max: usize,
    /// Units that one REPLAY visits.
    pub replay_visit_max: usize,
    /// How far ahead of the clock a message may be.
    pub epoch_jump_max: u64,
    /// Pairs of units that one automatic detection compares.
    pub detect_pairs_max: usize,
    /// Entries of a list of texts in a payload: interests, events, units of a package.
    pub list_len_max: usize,
    /// Subscriptions of one agent.
    pub subscriptions_max: usize,
    /// Conflicts that the automatic detection of one RECORD adds, the closest first.
    pub found_per_record_max: usize,
    /// Conflicts that one DETECT adds.
    pub found_per_scan_max: usize,
    /// Conflicts of one unit in an ATTUNE answer.
    pub conflicts_per_unit_max: usize,
    /// Conflicts in one answer; DETECT and the view go on after them.
    pub conflicts_listed_max: usize,
    /// Open conflicts that drafts of the agents of one key may have begun.
    pub draft_conflicts_max: usize,
}

impl Limits {
    /// The limits that the specification names.
    pub const fn standard() -> Self {
        Self {
            request_bytes_max: 1 << 20,
            content_bytes_max: 256 << 10,
            relations_max: 256,
            attune_units_max: 1_000,
            replay_events_max: 10_000,
            replay_bytes_max: 8 << 20,
            replay_visit_max: 1_000_000,
            epoch_jump_max: 1_000_000,
            detect_pairs_max: 10_000,
            list_len_max: 256,
            subscriptions_max: 64,
            found_per_record_max: 32,
            found_per_scan_max: 1_000,
            conflicts_per_unit_max: 10,
            conflicts_listed_max: 1_000,
            draft_conflicts_max: 1_000,
        }
    }
}

/// Bytes of an id.
pub(crate) const ID_BYTES_MAX: usize = 256;
/// Bytes of a role, a purpose, a rationale and a reason.
pub(crate) const LINE_BYTES_MAX: usize = 4 << 10;

/// How a field is set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// What is offered.
    pub level: Level,
    /// What is refused.
    pub limits: Limits,
    /// The type of a conflict that a `contradicts` relation creates.
    pub conflict_type: ConflictType,
    /// Whether RECORD looks for contradictions by itself (level 2 and above).
    pub automatic_detection: bool,
    /// Whether HANDOFF, COORDINATE and SESSION, whose payloads are not published yet, are offered at their levels.
    pub extension: bool,
    /// Whether units of a session are visible to those who are not members of it.
    pub cross_session: bool,
    /// What REGISTER says about durability.
    pub persistence: String,
    /// Microseconds after its first vote at which an undecided conflict is escalated; never without a value.
    pub vote_timeout_us: Option<i64>,
}

impl Config {
    /// The usual set-up of a level.
    pub fn at(level: Level) -> Self {
        Self {
            level,
            limits: Limits::standard(),
            conflict_type: ConflictType::Factual,
            automatic_detection: true,
            extension: true,
            cross_session: false,
            persistence: "durable".into(),
            vote_timeout_us: None,
        }
    }

    /// Returns whether an operation is offered.
    pub fn offers(&self, operation: Operation) -> bool {
        let (from, is_extension) = match operation {
            Operation::Register | Operation::Record | Operation::Attune => (Level::Starter, false),
            Operation::Deregister | Operation::Detect | Operation::Subscribe => {
                (Level::Core, false)
            }
            Operation::Merge | Operation::Replay | Operation::Compact => (Level::Standard, false),
            Operation::Handoff => (Level::Standard, true),
            Operation::Coordinate | Operation::Session => (Level::Full, true),
        };
        self.level >= from && (self.extension || !is_extension)
    }

    /// Returns the operations that are offered.
    pub fn operations(&self) -> impl Iterator<Item = Operation> {
        Operation::ALL
            .iter()
            .copied()
            .filter(|operation| self.offers(*operation))
    }

    /// Returns the strategies of MERGE that are offered: none below level 2, voting from level 3.
    pub fn strategies(&self) -> impl Iterator<Item = Strategy> {
        Strategy::ALL
            .iter()
            .copied()
            .filter(|strategy| match strategy {
                Strategy::Vote => self.level >= Level::Full,
                _ => self.level >= Level::Standard,
            })
    }

    /// Returns whether a strategy of COMPACT is offered: purging from level 3.
    pub fn compacts(&self, strategy: CompactStrategy) -> bool {
        match strategy {
            CompactStrategy::Archive | CompactStrategy::Summarize => self.level >= Level::Standard,
            CompactStrategy::Purge => self.level >= Level::Full,
        }
    }
}
