//! The closed lists of names that the memory protocol uses on the wire.
//!
//! Each list is an enum whose values know their text. A name that is not listed is never guessed at: `parse`
//! returns nothing and the caller refuses.

macro_rules! names {
    ($(#[$meta:meta])* $name:ident { $($variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
        )]
        pub enum $name {
            $(
                #[doc = concat!("`", $text, "`.")]
                #[serde(rename = $text)]
                $variant,
            )+
        }

        impl $name {
            /// Every value, in the order of the specification.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Returns the name on the wire.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                }
            }

            /// Reads a name; nothing for a name that is not in the list.
            pub fn parse(text: &str) -> Option<Self> {
                match text {
                    $($text => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

names! {
    /// What a message asks for.
    Operation {
        Register = "REGISTER",
        Deregister = "DEREGISTER",
        Record = "RECORD",
        Attune = "ATTUNE",
        Detect = "DETECT",
        Merge = "MERGE",
        Subscribe = "SUBSCRIBE",
        Replay = "REPLAY",
        Compact = "COMPACT",
        Coordinate = "COORDINATE",
        Handoff = "HANDOFF",
        Session = "SESSION",
    }
}

names! {
    /// What a unit of knowledge is.
    MemoryType {
        Finding = "finding",
        Decision = "decision",
        Observation = "observation",
        Intention = "intention",
        Assumption = "assumption",
        Constraint = "constraint",
        Question = "question",
        Contradiction = "contradiction",
        Synthesis = "synthesis",
        Correction = "correction",
        HumanDirective = "human_directive",
    }
}

names! {
    /// What a unit says about another one.
    RelationType {
        Supports = "supports",
        Contradicts = "contradicts",
        DependsOn = "depends_on",
        Supersedes = "supersedes",
        CausedBy = "caused_by",
        Elaborates = "elaborates",
        Answers = "answers",
        Blocks = "blocks",
        Informs = "informs",
    }
}

names! {
    /// Whether a unit is a draft or stands.
    Mode { Draft = "draft", Committed = "committed" }
}

names! {
    /// Where a unit stands.
    UnitStatus {
        Active = "active",
        Draft = "draft",
        Superseded = "superseded",
        Retracted = "retracted",
        Contested = "contested",
        PendingEnrichment = "pending_enrichment",
    }
}

names! {
    /// What an agent is doing.
    AgentStatus {
        Idle = "idle",
        Working = "working",
        Waiting = "waiting",
        Offline = "offline",
        Failed = "failed",
    }
}

names! {
    /// What two units disagree about.
    ConflictType {
        Factual = "factual",
        Interpretive = "interpretive",
        Strategic = "strategic",
        Priority = "priority",
    }
}

names! {
    /// Where a conflict stands.
    ConflictStatus {
        Detected = "detected",
        Resolving = "resolving",
        Resolved = "resolved",
        Escalated = "escalated",
    }
}

names! {
    /// How a conflict was found.
    Method {
        Explicit = "explicit",
        Semantic = "semantic",
        Logical = "logical",
        Temporal = "temporal",
    }
}

names! {
    /// How a conflict is resolved.
    Strategy {
        LastWriteWins = "last_write_wins",
        ConfidenceWeighted = "confidence_weighted",
        Authority = "authority",
        EvidenceCount = "evidence_count",
        Synthesis = "synthesis",
        HumanEscalation = "human_escalation",
        Vote = "vote",
    }
}

names! {
    /// How memory is made smaller.
    CompactStrategy { Summarize = "summarize", Archive = "archive", Purge = "purge" }
}

names! {
    /// What is replayed.
    TargetType {
        Task = "task",
        MemoryUnit = "memory_unit",
        Decision = "decision",
        Conflict = "conflict",
        Session = "session",
    }
}

names! {
    /// How much of a causal chain is shown.
    Depth { Summary = "summary", Detailed = "detailed", FullTrace = "full_trace" }
}

names! {
    /// How much of each unit ATTUNE returns.
    Format { Full = "full", Summary = "summary", IdsOnly = "ids_only" }
}

names! {
    /// What DETECT does.
    DetectMode { Check = "check", Scan = "scan", List = "list" }
}

names! {
    /// What SUBSCRIBE does.
    SubscribeAction { Subscribe = "subscribe", Unsubscribe = "unsubscribe", List = "list" }
}

names! {
    /// What subscribers can be notified of.
    Topic {
        MemoryRecorded = "memory.recorded",
        MemorySuperseded = "memory.superseded",
        MemoryContested = "memory.contested",
        ConflictDetected = "conflict.detected",
        ConflictResolved = "conflict.resolved",
        TaskStateChanged = "task.state_changed",
        TaskAssigned = "task.assigned",
        TaskCompleted = "task.completed",
        HandoffIncoming = "handoff.incoming",
        AgentJoined = "agent.joined",
        AgentFailed = "agent.failed",
        SessionPaused = "session.paused",
        SessionEnded = "session.ended",
    }
}

names! {
    /// What HANDOFF does.
    HandoffAction { Offer = "offer", Accept = "accept", Decline = "decline" }
}

names! {
    /// Where a handoff stands.
    HandoffStatus { Offered = "offered", Accepted = "accepted", Declined = "declined" }
}

names! {
    /// What COORDINATE does.
    TaskAction {
        Create = "create",
        Assign = "assign",
        Start = "start",
        Block = "block",
        Unblock = "unblock",
        Complete = "complete",
        Fail = "fail",
        Cancel = "cancel",
    }
}

names! {
    /// Where a task of the field stands.
    TaskStatus {
        Created = "created",
        Assigned = "assigned",
        Working = "working",
        Blocked = "blocked",
        Completed = "completed",
        Failed = "failed",
        Cancelled = "cancelled",
    }
}

names! {
    /// What SESSION does.
    SessionAction {
        Create = "create",
        Join = "join",
        Leave = "leave",
        Pause = "pause",
        Resume = "resume",
        End = "end",
    }
}

names! {
    /// Where a session stands.
    SessionStatus { Active = "active", Paused = "paused", Ended = "ended" }
}
