//! The session file: what holds across tools.
//!
//! Owns the fields of `session.yaml` and the checks of the phase graph. Names of tools are checked by `compile`.

mod decode_parts;
mod graph;

use std::collections::{BTreeMap, BTreeSet};

use crate::contract::{RiskGate, SideEffect, Source};
use crate::decimal::Decimal;
use crate::decode::{self, Fields, Named};
use crate::finding::{Code, Findings, Place};
use crate::path::Path;
use crate::policy::Policy;
use crate::yaml::Node;

pub(crate) use decode_parts::schema_version;

/// A session file, read and checked by itself.
#[derive(Debug, Clone, Default)]
pub struct Session {
    /// The agent that the file is written for.
    pub agent: Option<String>,
    /// The file it came from; empty when there is none.
    pub file: String,
    pub(crate) phases: Option<Phases>,
    /// True where the file lists phases, also when they cannot be read.
    pub(crate) names_phases: bool,
    pub(crate) limits: Limits,
    pub(crate) risk_defaults: Option<BTreeMap<SideEffect, RiskGate>>,
    pub(crate) policy: Option<Policy>,
    pub(crate) providers: ProviderConstraints,
    pub(crate) aggregates: Vec<Aggregate>,
    pub(crate) envelopes: Vec<Envelope>,
    pub(crate) label_gates: Vec<LabelGate>,
}

/// The phase machine.
#[derive(Debug, Clone)]
pub(crate) struct Phases {
    pub(crate) initial: String,
    pub(crate) names: BTreeSet<String>,
    pub(crate) successors: BTreeMap<String, BTreeSet<String>>,
}

impl Phases {
    /// Says whether a move from one phase to another is listed.
    pub(crate) fn allows(&self, from: &str, to: &str) -> bool {
        let successors = self.successors.get(from);
        successors.is_some_and(|successors| successors.contains(to))
    }
}

/// Limits of the session. Absent means unlimited.
#[derive(Debug, Clone, Default)]
pub(crate) struct Limits {
    pub(crate) steps_max: Option<u64>,
    pub(crate) attempts_max: Option<u64>,
    pub(crate) tool_calls_max: Option<u64>,
    pub(crate) cost_max: Option<Decimal>,
    pub(crate) calls_per_tool: BTreeMap<String, (u64, Place)>,
    pub(crate) rate: Option<Rate>,
    pub(crate) loops: Option<LoopDetection>,
    pub(crate) breaker: Option<Breaker>,
}

/// How many calls may be released in a sliding window of time.
#[derive(Debug, Clone)]
pub(crate) struct Rate {
    pub(crate) calls_max: u64,
    pub(crate) per_seconds: u64,
    /// The tools that count; none: all.
    pub(crate) tools: Option<Vec<Named>>,
}

impl Rate {
    pub(crate) fn counts(&self, tool: &str) -> bool {
        let tools = self.tools.as_ref();
        tools.is_none_or(|tools| tools.iter().any(|named| named.name == tool))
    }
}

/// When equal calls are a loop.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LoopDetection {
    pub(crate) window: u64,
    pub(crate) threshold: u64,
}

/// When a session that only fails is killed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Breaker {
    pub(crate) blocks: u64,
    pub(crate) errors: u64,
}

/// Models that the contracts do not work with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProviderConstraints {
    /// Patterns of models that are refused.
    pub block: Vec<String>,
    /// Patterns of models that are warned about.
    pub warn: Vec<String>,
}

/// A running total over the session.
#[derive(Debug, Clone)]
pub(crate) struct Aggregate {
    pub(crate) name: String,
    pub(crate) metric: Metric,
    pub(crate) tools: Vec<Named>,
    pub(crate) path: Option<Path>,
    pub(crate) lte: Decimal,
    pub(crate) allow_negative: bool,
}

impl Aggregate {
    pub(crate) fn counts(&self, tool: &str) -> bool {
        self.tools.iter().any(|named| named.name == tool)
    }
}

/// How an aggregate adds up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Metric {
    Sum,
    Count,
    CountDistinct,
    Max,
}

/// A ceiling or floor that one call sets for later ones.
#[derive(Debug, Clone)]
pub(crate) struct Envelope {
    pub(crate) name: String,
    pub(crate) direction: Direction,
    pub(crate) establish_tool: Named,
    pub(crate) establish_from: Source,
    pub(crate) establish_path: Path,
    pub(crate) constrain: Vec<(Named, Path)>,
}

/// Which side of the reference is inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    AtMost,
    AtLeast,
}

/// Tools that a label closes.
#[derive(Debug, Clone)]
pub(crate) struct LabelGate {
    pub(crate) label: String,
    pub(crate) tools: GatedTools,
}

/// Which tools a label gate closes.
#[derive(Debug, Clone)]
pub(crate) enum GatedTools {
    These(Vec<Named>),
    AllBut(Vec<Named>),
}

impl LabelGate {
    pub(crate) fn closes(&self, tool: &str) -> bool {
        let lists = |tools: &[Named]| tools.iter().any(|named| named.name == tool);
        match &self.tools {
            GatedTools::These(tools) => lists(tools),
            GatedTools::AllBut(tools) => !lists(tools),
        }
    }
}

impl Session {
    /// Returns the models that the contracts do not work with.
    pub fn provider_constraints(&self) -> &ProviderConstraints {
        &self.providers
    }

    pub(crate) fn decode(node: &Node, file: &str, findings: &mut Findings) -> Option<Self> {
        let mut fields = Fields::of(node, findings)?;
        if let Some(node) = fields.required("schema_version", findings) {
            decode_parts::schema_version(node, findings);
        }
        let agent = fields.optional("agent");
        let agent = agent.and_then(|node| decode::bounded_text(node, 256, findings));
        let listed = fields.optional("phases");
        let phases = graph::decode(listed, fields.optional("transitions"), findings);
        let limits = decode_parts::limits(fields.optional("session_limits"), findings);
        let risk = fields.optional("risk_defaults");
        let risk_defaults = risk.map(|node| decode_parts::risk_defaults(node, findings));
        let policy = fields.optional("policy");
        let policy = policy.and_then(|node| Policy::decode(node, findings));
        let providers = fields.optional("provider_constraints");
        let providers = providers.map(|node| decode_parts::providers(node, findings));
        let aggregates = decode_parts::aggregates(fields.optional("aggregates"), findings);
        let envelopes = decode_parts::envelopes(fields.optional("envelopes"), findings);
        let label_gates = decode_parts::label_gates(fields.optional("label_gates"), findings);
        fields.finish(findings);
        Some(Self {
            agent: agent.map(ToOwned::to_owned),
            file: file.to_owned(),
            phases,
            names_phases: listed.is_some(),
            limits,
            risk_defaults,
            policy,
            providers: providers.unwrap_or_default(),
            aggregates,
            envelopes,
            label_gates,
        })
    }

    /// Returns every tool that the file names.
    pub(crate) fn tools_named(&self) -> Vec<Named> {
        let limits = self
            .limits
            .calls_per_tool
            .iter()
            .map(|(name, (_, at))| Named {
                name: name.clone(),
                at: *at,
            });
        let rate = self
            .limits
            .rate
            .iter()
            .filter_map(|rate| rate.tools.as_ref());
        let aggregates = self.aggregates.iter().map(|aggregate| &aggregate.tools);
        let envelopes = self.envelopes.iter().flat_map(|envelope| {
            let constrained = envelope.constrain.iter().map(|(tool, _)| tool);
            constrained.chain(std::iter::once(&envelope.establish_tool))
        });
        let gates = self.label_gates.iter().map(|gate| match &gate.tools {
            GatedTools::These(tools) | GatedTools::AllBut(tools) => tools,
        });
        let lists = rate.chain(aggregates).chain(gates).flatten();
        limits
            .chain(lists.cloned())
            .chain(envelopes.cloned())
            .collect()
    }
}

/// Reports names that occur twice in a list.
fn check_unique<'a>(
    names: impl Iterator<Item = (&'a str, Place)>,
    what: &str,
    findings: &mut Findings,
) {
    let mut seen = BTreeSet::new();
    for (name, at) in names {
        if !seen.insert(name) {
            let message = format!("{what} {} occurs twice", crate::finding::shown(name));
            findings.error(at, Code::DuplicateName, message);
        }
    }
}
