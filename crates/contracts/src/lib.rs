//! Contracts: a tool call is released only if the contracts allow it.
//!
//! Files are compiled once into an immutable form; a request is narrowed to the tools that can legally be called; every
//! call of a response gets a verdict; a gate turns verdicts into what happens; what happened is an event, and the state
//! of a session is the fold of its events. The same inputs give the same verdicts, byte for byte.
//!
//! Fails closed: what cannot be checked with a definite yes is a no. Without clock, randomness, files, sockets and
//! async: time and ids are values.

pub mod backtest;
pub mod bytes;
mod canonical;
pub mod capture;
mod checkpoint;
mod compile;
mod contract;
mod cost;
mod decimal;
mod decode;
pub mod driver;
mod event;
mod execute;
mod finding;
mod gate;
pub mod governed;
mod health;
mod invariant;
pub mod json;
mod judge;
mod narrow;
mod path;
mod pattern;
mod policy;
mod precheck;
mod reason;
pub mod redact;
mod request;
mod rules;
mod schema;
mod session;
mod state;
mod value;
pub mod wire;
pub mod workflow;
mod yaml;

pub use checkpoint::{
    Answer, Answers, ApprovalRequest, ApprovalResponse, CHECKPOINTS_MAX, ContextValue, question,
    read_answer,
};
pub use compile::{CompileError, Compiled, Source, compile, compile_recorded, read_document};
pub use contract::{
    Checkpoint, CommitRequirement, Contract, EvidenceClass, FinishReason, RiskGate, SideEffect,
};
pub use cost::{Price, Prices, Usage};
pub use decimal::{Decimal, ParseDecimalError};
pub use event::{Call, CallKey, Event, Outcome, Release, Responded, SessionStart, ShownOutput};
pub use execute::{ExecutionCheck, ExecutionRefusal, check_execution};
pub use finding::{Code, Finding, Severity};
pub use gate::{
    Action, AttemptCost, DecidedCall, Decision, FailureRecord, SUBSTITUTE, Settlement, ShadowDelta,
    WouldBlock, WouldNarrow, refused, settle, settled, shadow_delta,
};
pub use health::{
    Attachment, Authority, Durability, Health, HealthStatus, HostFacts, Protection, Tier, health,
};
pub use invariant::{Invariant, Operator, Truth};
pub use judge::{Failure, JudgeContext, Judgement, Status, Verdict, judge, judge_again, judge_in};
pub use narrow::{Narrowing, RemovedTool, narrow};
pub use path::{ParsePathError, Path};
pub use pattern::{Pattern, PatternBudget, Steps};
pub use policy::{Policy, PolicyAnswer};
pub use precheck::{
    PreCheck, Refusal, check_attempt, check_attempts, check_open, check_workflow, model_excluded,
    precheck, provider_excluded, provider_warnings,
};
pub use reason::{BlockReason, Check, NarrowReason};
pub use request::{OfferedTool, ProposedCall, Request, Response, ToolChoice};
pub use rules::{
    Compat, Condition, ConfigError, Executors, Feedback, Gate, Mode, Options, Permission, Rules,
};
pub use schema::SchemaForm;
pub use session::{ProviderConstraints, Session};
pub use state::{CompletedStep, Costs, ImpossibleEvent, Lifecycle, Snapshot, State};
pub use value::{Number, Type, Value};

/// The JSON Schema of a contract file, for editors.
pub const CONTRACT_SCHEMA: &str = include_str!("../schemas/contract.schema.json");
/// The JSON Schema of a session file, for editors.
pub const SESSION_SCHEMA: &str = include_str!("../schemas/session.schema.json");
