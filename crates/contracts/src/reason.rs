//! The words of verdicts: checks, block reasons, narrowing reasons.
//!
//! Words marked as extensions are not in the published API that this vocabulary follows.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$variant_doc])* #[serde(rename = $word)] $variant,)+
        }

        impl $name {
            /// Every word, in declaration order.
            pub const ALL: &'static [$name] = &[$($name::$variant),+];

            /// Returns the word used in records.
            pub fn as_str(self) -> &'static str {
                match self {
                    $($name::$variant => $word,)+
                }
            }

            /// Returns the value that a word names.
            pub fn named(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|value| value.as_str() == word)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}
pub(crate) use words;

words! {
    /// Why a call is blocked.
    BlockReason {
        /// The session is killed.
        Killed = "killed",
        /// Wrong finish reason, unexpected content, unusable ids or arguments.
        ResponseFormatInvalid = "response_format_invalid",
        /// The tool was not offered, or has no contract.
        UnmatchedToolBlocked = "unmatched_tool_blocked",
        /// The risk class is closed.
        RiskGateBlocked = "risk_gate_blocked",
        /// The principal may not.
        PolicyDenied = "policy_denied",
        /// Extension: the program narrowed the tools and left this one out.
        ManualFilter = "manual_filter",
        /// Outside its phases, or its move is not listed.
        IllegalPhaseTransition = "illegal_phase_transition",
        /// A required earlier call is missing.
        PreconditionNotMet = "precondition_not_met",
        /// An earlier call forbids the tool.
        ForbiddenTool = "forbidden_tool",
        /// The request is not as the contract demands.
        InputInvariantFailed = "input_invariant_failed",
        /// The response is not as the contract demands.
        OutputInvariantFailed = "output_invariant_failed",
        /// An argument is not as contract or schema demand.
        ArgumentValueMismatch = "argument_value_mismatch",
        /// A slot that an argument must equal is not set.
        BindingNotFound = "binding_not_found",
        /// An argument differs from the slot it must equal.
        RefMismatch = "ref_mismatch",
        /// Calls of one response move to different phases.
        AmbiguousPhaseTransition = "ambiguous_phase_transition",
        /// Extension: a label closes the tool.
        LabelGate = "label_gate",
        /// A budget or rate limit is used up.
        SessionLimitExceeded = "session_limit_exceeded",
        /// The same call again and again.
        LoopDetected = "loop_detected",
        /// A value that a running total needs is not there.
        AggregatePathMissing = "aggregate_path_missing",
        /// A running total would pass its bound.
        AggregateLimitExceeded = "aggregate_limit_exceeded",
        /// The reference of an envelope is not set.
        EnvelopeNotEstablished = "envelope_not_established",
        /// A value outside its envelope.
        EnvelopeViolation = "envelope_violation",
        /// Ten checkpoints were triggered already.
        CheckpointBudgetExceeded = "checkpoint_budget_exceeded",
        /// A person said no.
        CheckpointDenied = "checkpoint_denied",
        /// No person answered in time.
        CheckpointTimeout = "checkpoint_timeout",
        /// The arguments handed to the executor are not as allowed.
        ExecutionConstraintViolated = "execution_constraint_violated",
    }
}

words! {
    /// Why a tool is not shown to the model.
    NarrowReason {
        /// No contract.
        NoContract = "no_contract",
        /// Extension: the risk class is closed.
        RiskGate = "risk_gate",
        /// The principal may not.
        PolicyDenied = "policy_denied",
        /// Left out by the program.
        ManualFilter = "manual_filter",
        /// Outside its phases.
        WrongPhase = "wrong_phase",
        /// A required earlier call is missing.
        PreconditionNotMet = "precondition_not_met",
        /// An earlier call forbids it.
        ForbiddenInState = "forbidden_in_state",
        /// A label closes it.
        LabelGate = "label_gate",
        /// Extension: its calls are used up.
        LimitReached = "limit_reached",
    }
}

words! {
    /// The numbered checks, in the order of precedence.
    Check {
        /// Response format, ids, arguments.
        V1 = "V1",
        /// Offered and under contract.
        V2 = "V2",
        /// Risk gate.
        V3 = "V3",
        /// Policy.
        V4 = "V4",
        /// Manual filter.
        V5 = "V5",
        /// Phase.
        V6 = "V6",
        /// Preconditions.
        V7 = "V7",
        /// Forbidden by a committed call.
        V8 = "V8",
        /// Input invariants.
        V9 = "V9",
        /// Output invariants.
        V10 = "V10",
        /// Arguments.
        V11 = "V11",
        /// Slot set.
        V12 = "V12",
        /// Slot equal.
        V13 = "V13",
        /// One target phase.
        V14 = "V14",
        /// Labels.
        V15 = "V15",
        /// Forbidden by a call that is not committed yet.
        V16 = "V16",
        /// Tool calls of the session.
        V17 = "V17",
        /// Calls of the tool.
        V18 = "V18",
        /// Rate.
        V18r = "V18r",
        /// Loop.
        V19 = "V19",
        /// Aggregate paths.
        V20 = "V20",
        /// Aggregate bounds.
        V21 = "V21",
        /// Envelope set.
        V22 = "V22",
        /// Envelope bound.
        V23 = "V23",
        /// Checkpoint budget.
        V24 = "V24",
        /// Checkpoint answer.
        V25 = "V25",
    }
}

impl BlockReason {
    /// Says whether asking the model again can help.
    pub fn is_retried(self) -> bool {
        match self {
            BlockReason::ResponseFormatInvalid
            | BlockReason::UnmatchedToolBlocked
            | BlockReason::ManualFilter
            | BlockReason::IllegalPhaseTransition
            | BlockReason::AmbiguousPhaseTransition
            | BlockReason::PreconditionNotMet
            | BlockReason::ForbiddenTool
            | BlockReason::OutputInvariantFailed
            | BlockReason::ArgumentValueMismatch
            | BlockReason::BindingNotFound
            | BlockReason::RefMismatch
            | BlockReason::AggregateLimitExceeded
            | BlockReason::AggregatePathMissing
            | BlockReason::EnvelopeNotEstablished
            | BlockReason::EnvelopeViolation => true,
            BlockReason::Killed
            | BlockReason::SessionLimitExceeded
            | BlockReason::LoopDetected
            | BlockReason::PolicyDenied
            | BlockReason::RiskGateBlocked
            | BlockReason::LabelGate
            | BlockReason::InputInvariantFailed
            | BlockReason::CheckpointBudgetExceeded
            | BlockReason::CheckpointDenied
            | BlockReason::CheckpointTimeout
            | BlockReason::ExecutionConstraintViolated => false,
        }
    }
}

impl NarrowReason {
    /// Returns the reason under which a call of a removed tool is blocked.
    pub fn block_reason(self) -> BlockReason {
        match self {
            NarrowReason::NoContract => BlockReason::UnmatchedToolBlocked,
            NarrowReason::RiskGate => BlockReason::RiskGateBlocked,
            NarrowReason::PolicyDenied => BlockReason::PolicyDenied,
            NarrowReason::ManualFilter => BlockReason::ManualFilter,
            NarrowReason::WrongPhase => BlockReason::IllegalPhaseTransition,
            NarrowReason::PreconditionNotMet => BlockReason::PreconditionNotMet,
            NarrowReason::ForbiddenInState => BlockReason::ForbiddenTool,
            NarrowReason::LabelGate => BlockReason::LabelGate,
            NarrowReason::LimitReached => BlockReason::SessionLimitExceeded,
        }
    }

    /// Returns the word that a model may see.
    pub fn shown_to_model(self) -> &'static str {
        match self {
            NarrowReason::PolicyDenied | NarrowReason::RiskGate | NarrowReason::LabelGate => {
                "restricted"
            }
            NarrowReason::NoContract
            | NarrowReason::ManualFilter
            | NarrowReason::WrongPhase
            | NarrowReason::PreconditionNotMet
            | NarrowReason::ForbiddenInState
            | NarrowReason::LimitReached => self.as_str(),
        }
    }
}
