//! What the commands of `reprise field` are told.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::args::Connection;

/// Which field, on which server.
#[derive(Debug, Args)]
pub(crate) struct FieldArgs {
    /// The field [default: the default field of the key's workspace]
    #[arg(long, value_name = "NAME")]
    pub(super) field: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) connection: Connection,
}

/// Who speaks.
#[derive(Debug, Args)]
pub(crate) struct SenderArgs {
    /// The agent that speaks
    #[arg(long, value_name = "AGENT")]
    pub(super) agent: String,
    /// The session that it speaks in
    #[arg(long, value_name = "SESSION")]
    pub(super) session: Option<String>,
    #[command(flatten)]
    pub(super) place: FieldArgs,
}

/// `reprise field status`
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(super) place: FieldArgs,
}

/// `reprise field register`
#[derive(Debug, Args)]
pub(crate) struct RegisterArgs {
    /// The agent
    pub(super) agent: String,
    /// What it does
    #[arg(long)]
    pub(super) role: String,
    /// What it wants to know about; may be given several times
    #[arg(long, value_name = "TOPIC")]
    pub(super) interest: Vec<String>,
    /// What it may do, from 0 (replay only) to 10 (all): 2 looks, 4 records, 6 settles conflicts [default: 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=10))]
    pub(super) authority: Option<u8>,
    #[command(flatten)]
    pub(super) place: FieldArgs,
}

/// `reprise field record`
#[derive(Debug, Args)]
pub(crate) struct RecordArgs {
    /// What the agent knows
    pub(super) content: String,
    /// What it is
    #[arg(long = "type", value_name = "TYPE", default_value = "finding", value_parser = TYPES)]
    pub(super) kind: String,
    /// Why it is recorded
    #[arg(long)]
    pub(super) purpose: String,
    /// The task that it belongs to
    #[arg(long, value_name = "TASK")]
    pub(super) task: Option<String>,
    /// The question that it answers
    #[arg(long)]
    pub(super) question: Option<String>,
    /// How sure the agent is, from 0 to 1
    #[arg(long)]
    pub(super) score: Option<f64>,
    /// Why it is as sure as that
    #[arg(long, value_name = "TEXT")]
    pub(super) reasoning: Option<String>,
    /// What speaks for it; may be given several times
    #[arg(long, value_name = "TEXT")]
    pub(super) evidence: Vec<String>,
    /// What it says about another unit, such as contradicts=mem_0123; may be given several times
    #[arg(long, value_name = "TYPE=UNIT", value_parser = relation)]
    pub(super) relation: Vec<(String, String)>,
    /// Only a draft
    #[arg(long)]
    pub(super) draft: bool,
    #[command(flatten)]
    pub(super) speaker: SenderArgs,
}

/// `reprise field attune`
#[derive(Debug, Args)]
pub(crate) struct AttuneArgs {
    /// The role for which it is ranked [default: that of the agent]
    #[arg(long)]
    pub(super) role: Option<String>,
    /// Maximum number of units
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) max: u32,
    /// What it is wanted for
    #[arg(long, value_name = "TEXT")]
    pub(super) hint: Option<String>,
    /// The task that the agent works on
    #[arg(long, value_name = "TASK")]
    pub(super) task: Option<String>,
    /// A topic to look for; may be given several times
    #[arg(long, value_name = "TOPIC")]
    pub(super) interest: Vec<String>,
    /// Only what was recorded at this epoch or later
    #[arg(long, value_name = "EPOCH")]
    pub(super) since: Option<u64>,
    /// Also what the agent recorded itself
    #[arg(long)]
    pub(super) own: bool,
    /// Also what is archived
    #[arg(long)]
    pub(super) archived: bool,
    #[command(flatten)]
    pub(super) speaker: SenderArgs,
}

/// `reprise field detect`
#[derive(Debug, Args)]
pub(crate) struct DetectArgs {
    /// Look for what contradicts this unit
    #[arg(long, value_name = "UNIT", conflicts_with = "scan")]
    pub(super) check: Option<String>,
    /// Look through everything
    #[arg(long)]
    pub(super) scan: bool,
    /// Also those that are settled
    #[arg(long)]
    pub(super) all: bool,
    #[command(flatten)]
    pub(super) speaker: SenderArgs,
}

/// `reprise field merge`
#[derive(Debug, Args)]
pub(crate) struct MergeArgs {
    /// The conflict
    pub(super) conflict: String,
    /// How it is settled
    #[arg(long, value_parser = STRATEGIES)]
    pub(super) strategy: String,
    /// Why
    #[arg(long, value_name = "TEXT")]
    pub(super) rationale: String,
    /// The unit that stays
    #[arg(long, value_name = "UNIT")]
    pub(super) winner: Option<String>,
    /// What replaces both
    #[arg(long, value_name = "TEXT")]
    pub(super) synthesis: Option<String>,
    #[command(flatten)]
    pub(super) speaker: SenderArgs,
}

/// What is replayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TargetKind {
    /// Everything that belongs to a task
    Task,
    /// A unit
    #[value(alias = "memory_unit")]
    Unit,
    /// A decision
    Decision,
    /// A conflict
    Conflict,
    /// A session
    Session,
}

impl TargetKind {
    pub(super) const fn word(self) -> &'static str {
        match self {
            TargetKind::Task => "task",
            TargetKind::Unit => "memory_unit",
            TargetKind::Decision => "decision",
            TargetKind::Conflict => "conflict",
            TargetKind::Session => "session",
        }
    }
}

/// `reprise field replay`
#[derive(Debug, Args)]
pub(crate) struct ReplayArgs {
    /// What it is: task, unit, decision, conflict or session
    pub(super) kind: TargetKind,
    /// Its id
    pub(super) id: String,
    /// How much is told
    #[arg(long, default_value = "detailed", value_parser = ["summary", "detailed", "full_trace"])]
    pub(super) depth: String,
    /// Write the whole chain of reasons as a Graphviz graph
    #[arg(long, value_name = "FILE")]
    pub(super) dot: Option<PathBuf>,
    /// Write it as a picture
    #[arg(long, value_name = "FILE")]
    pub(super) svg: Option<PathBuf>,
    #[command(flatten)]
    pub(super) speaker: SenderArgs,
}

/// `reprise field retract`
#[derive(Debug, Args)]
pub(crate) struct RetractArgs {
    /// The unit
    pub(super) unit: String,
    /// The agent that takes it back
    #[arg(long, value_name = "AGENT")]
    pub(super) agent: String,
    /// Why; it stays in the log
    #[arg(long, value_name = "TEXT")]
    pub(super) reason: String,
    #[command(flatten)]
    pub(super) place: FieldArgs,
}

/// `reprise field compact`
#[derive(Debug, Args)]
pub(crate) struct CompactArgs {
    /// How
    #[arg(value_parser = ["archive", "summarize", "purge"])]
    pub(super) strategy: String,
    /// Only units that are more than this many epochs old
    #[arg(long, value_name = "EPOCHS")]
    pub(super) older_than: Option<u64>,
    /// Only units of this type; may be given several times
    #[arg(long = "type", value_name = "TYPE", value_parser = TYPES)]
    pub(super) kind: Vec<String>,
    /// Only units with this status; may be given several times
    #[arg(long, value_parser = STATUSES)]
    pub(super) status: Vec<String>,
    /// Only units of this session
    #[arg(long = "of-session", value_name = "SESSION")]
    pub(super) of_session: Option<String>,
    /// Why; it stays in the log
    #[arg(long)]
    pub(super) reason: Option<String>,
    #[command(flatten)]
    pub(super) speaker: SenderArgs,
}

/// What a unit may be.
const TYPES: [&str; 11] = [
    "finding",
    "decision",
    "observation",
    "intention",
    "assumption",
    "constraint",
    "question",
    "contradiction",
    "synthesis",
    "correction",
    "human_directive",
];

/// How a conflict may be settled on this server.
const STRATEGIES: [&str; 7] = [
    "last_write_wins",
    "confidence_weighted",
    "authority",
    "evidence_count",
    "synthesis",
    "human_escalation",
    "vote",
];

/// Where a unit may stand.
const STATUSES: [&str; 6] = [
    "active",
    "draft",
    "superseded",
    "retracted",
    "contested",
    "pending_enrichment",
];

/// What a unit may say about another one.
const RELATIONS: [&str; 9] = [
    "supports",
    "contradicts",
    "depends_on",
    "supersedes",
    "caused_by",
    "elaborates",
    "answers",
    "blocks",
    "informs",
];

fn relation(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((kind, _)) if !kind.is_empty() && !RELATIONS.contains(&kind) => {
            Err(format!("TYPE is one of {}", RELATIONS.join(", ")))
        }
        Some((kind, unit)) if !kind.is_empty() && !unit.is_empty() => {
            Ok((kind.to_owned(), unit.to_owned()))
        }
        _ => Err("a relation is written TYPE=UNIT, such as contradicts=mem_0123".to_owned()),
    }
}
