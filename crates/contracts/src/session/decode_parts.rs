//! The blocks of a session file, each read by itself.

use std::collections::BTreeMap;

use super::{
    Aggregate, Breaker, Direction, Envelope, GatedTools, LabelGate, Limits, LoopDetection, Metric,
    ProviderConstraints, Rate, check_unique,
};
use crate::contract::{RiskGate, SideEffect, Source};
use crate::decimal::Decimal;
use crate::decode::{self, Fields, NAME_BYTES_MAX};
use crate::finding::{Code, Findings, shown};
use crate::yaml::{Kind, Node};

const LIST_MAX: usize = 256;
const TOOLS_MAX: usize = 1_000;
const COUNT_MAX: u64 = 1 << 53;
const METRICS: [(&str, Metric); 4] = [
    ("sum", Metric::Sum),
    ("count", Metric::Count),
    ("count_distinct", Metric::CountDistinct),
    ("max", Metric::Max),
];
const DIRECTIONS: [(&str, Direction); 2] = [
    ("at_most", Direction::AtMost),
    ("at_least", Direction::AtLeast),
];

pub(crate) fn schema_version(node: &Node, findings: &mut Findings) {
    let is_known = matches!(&node.kind, Kind::Text(text) if text == "1.0");
    if !is_known && !matches!(node.kind, Kind::Broken) {
        let message = "the only schema version is \"1.0\", in quotes";
        findings.error(node.at, Code::BadValue, message);
    }
}

pub(super) fn limits(node: Option<&Node>, findings: &mut Findings) -> Limits {
    let Some(mut fields) = node.and_then(|node| Fields::of(node, findings)) else {
        return Limits::default();
    };
    let mut count = |name, findings: &mut Findings| {
        let node = fields.optional(name);
        node.and_then(|node| decode::integer(node, 1, COUNT_MAX, findings))
    };
    let steps_max = count("max_steps", findings);
    let attempts_max = count("max_attempts", findings);
    let tool_calls_max = count("max_tool_calls", findings);
    let cost = fields.optional("max_cost_per_session");
    let cost_max = cost.and_then(|node| positive(node, findings));
    let per_tool = fields.optional("max_calls_per_tool");
    let calls_per_tool = per_tool.map(|node| calls_per_tool(node, findings));
    let rate = fields
        .optional("rate")
        .and_then(|node| rate(node, findings));
    let loops = fields.optional("loop_detection");
    let loops = loops.and_then(|node| loop_detection(node, findings));
    let breaker = fields.optional("circuit_breaker");
    let breaker = breaker.and_then(|node| circuit_breaker(node, findings));
    fields.finish(findings);
    Limits {
        steps_max,
        attempts_max,
        tool_calls_max,
        cost_max,
        calls_per_tool: calls_per_tool.unwrap_or_default(),
        rate,
        loops,
        breaker,
    }
}

pub(crate) fn positive(node: &Node, findings: &mut Findings) -> Option<Decimal> {
    let value = decode::number(node, findings)?;
    if value <= Decimal::ZERO {
        findings.error(node.at, Code::BadValue, "expected a number above zero");
        return None;
    }
    Some(value)
}

fn calls_per_tool(
    node: &Node,
    findings: &mut Findings,
) -> BTreeMap<String, (u64, crate::finding::Place)> {
    let mut limits = BTreeMap::new();
    for (tool, count) in decode::map(node, findings).unwrap_or_default() {
        if tool.name.is_empty() || tool.name.len() > NAME_BYTES_MAX {
            let message = "a tool name has 1 to 128 bytes";
            findings.error(tool.at, Code::BadValue, message);
        }
        if let Some(count) = decode::integer(count, 0, COUNT_MAX, findings) {
            limits.insert(tool.name.clone(), (count, tool.at));
        }
    }
    limits
}

fn rate(node: &Node, findings: &mut Findings) -> Option<Rate> {
    let mut fields = Fields::of(node, findings)?;
    let calls = fields.required("max_calls", findings);
    let calls = calls.and_then(|node| decode::integer(node, 1, 1_000_000, findings));
    let seconds = fields.required("per_seconds", findings);
    let seconds = seconds.and_then(|node| decode::integer(node, 1, 31_536_000, findings));
    let tools = fields.optional("tools");
    let tools = tools.map(|node| decode::list_of(Some(node), TOOLS_MAX, findings, decode::named));
    fields.finish(findings);
    Some(Rate {
        calls_max: calls?,
        per_seconds: seconds?,
        tools,
    })
}

fn loop_detection(node: &Node, findings: &mut Findings) -> Option<LoopDetection> {
    let mut fields = Fields::of(node, findings)?;
    let window = fields.optional("window");
    let window = window.map(|node| decode::integer(node, 1, 1_000_000, findings));
    let threshold = fields.optional("threshold");
    let threshold = threshold.map(|node| decode::integer(node, 2, 1_000_000, findings));
    fields.finish(findings);
    Some(LoopDetection {
        window: window.unwrap_or(Some(5))?,
        threshold: threshold.unwrap_or(Some(3))?,
    })
}

fn circuit_breaker(node: &Node, findings: &mut Findings) -> Option<Breaker> {
    let mut fields = Fields::of(node, findings)?;
    let blocks = fields.optional("consecutive_blocks");
    let blocks = blocks.map(|node| decode::integer(node, 1, 1_000_000, findings));
    let errors = fields.optional("consecutive_errors");
    let errors = errors.map(|node| decode::integer(node, 1, 1_000_000, findings));
    fields.finish(findings);
    Some(Breaker {
        blocks: blocks.unwrap_or(Some(5))?,
        errors: errors.unwrap_or(Some(3))?,
    })
}

/// Reads the map and fills it: `read` is allowed and every other class blocked where the map is silent.
pub(super) fn risk_defaults(
    node: &Node,
    findings: &mut Findings,
) -> BTreeMap<SideEffect, RiskGate> {
    let mut gates = BTreeMap::new();
    let Some(mut fields) = Fields::of(node, findings) else {
        return gates;
    };
    for (name, class) in SideEffect::WORDS {
        let gate = fields.optional(name);
        let gate = gate.and_then(|node| decode::word(node, &RiskGate::WORDS, findings));
        let silent = match class {
            SideEffect::Read => RiskGate::Allow,
            SideEffect::Write
            | SideEffect::Destructive
            | SideEffect::Admin
            | SideEffect::Financial => RiskGate::Block,
        };
        gates.insert(class, gate.unwrap_or(silent));
    }
    fields.finish(findings);
    gates
}

pub(super) fn providers(node: &Node, findings: &mut Findings) -> ProviderConstraints {
    let Some(mut fields) = Fields::of(node, findings) else {
        return ProviderConstraints::default();
    };
    let block = fields.optional("block_incompatible");
    let block = decode::list_of(block, LIST_MAX, findings, pattern);
    let warn = fields.optional("warn_incompatible");
    let warn = decode::list_of(warn, LIST_MAX, findings, pattern);
    fields.finish(findings);
    ProviderConstraints { block, warn }
}

fn pattern(node: &Node, findings: &mut Findings) -> Option<String> {
    let text = decode::bounded_text(node, 256, findings)?;
    let fits = text.split_once('/').is_some_and(|(provider, model)| {
        let known = ["openai", "anthropic", "*"];
        known.iter().any(|name| provider.eq_ignore_ascii_case(name)) && !model.is_empty()
    });
    if !fits {
        let message = format!(
            "{} is not `provider/model`, where the provider is `openai`, `anthropic` or `*`",
            shown(text)
        );
        findings.error(node.at, Code::BadValue, message);
        return None;
    }
    Some(text.to_owned())
}

pub(super) fn aggregates(node: Option<&Node>, findings: &mut Findings) -> Vec<Aggregate> {
    let list = decode::list_of(node, LIST_MAX, findings, |node, findings| {
        let aggregate = aggregate(node, findings)?;
        Some((aggregate, node.at))
    });
    let names = list
        .iter()
        .map(|(aggregate, at)| (aggregate.name.as_str(), *at));
    check_unique(names, "aggregate", findings);
    list.into_iter().map(|(aggregate, _)| aggregate).collect()
}

fn aggregate(node: &Node, findings: &mut Findings) -> Option<Aggregate> {
    let mut fields = Fields::of(node, findings)?;
    let name = fields.required("name", findings);
    let name = name.and_then(|node| decode::named(node, findings));
    let metric = fields.required("metric", findings);
    let metric = metric.and_then(|node| decode::word(node, &METRICS, findings));
    let tools = fields.required("tools", findings);
    let tools = decode::list_of(tools, TOOLS_MAX, findings, decode::named);
    let path = fields.optional("path");
    let bound = fields.required("lte", findings);
    let bound = bound.and_then(|node| decode::number(node, findings));
    let negative = fields.optional("allow_negative");
    let at = fields.at();
    fields.finish(findings);
    let path_at = path.map(|node| node.at);
    let path = path.and_then(|node| decode::path(node, findings));
    let allow_negative = negative.and_then(|node| decode::boolean(node, findings)) == Some(true);
    let metric = metric?;
    if metric == Metric::Count && path_at.is_some() {
        let message = "`count` counts calls and has no `path`";
        findings.error(path_at.unwrap_or(at), Code::Contradiction, message);
    }
    if metric != Metric::Count && path_at.is_none() {
        findings.error(at, Code::MissingKey, "key `path` is missing");
    }
    if metric != Metric::Sum && negative.is_some() {
        findings.error(
            at,
            Code::Contradiction,
            "`allow_negative` is for `sum` only",
        );
    }
    Some(Aggregate {
        name: name?.name,
        metric,
        tools,
        path,
        lte: bound?,
        allow_negative,
    })
}

pub(super) fn envelopes(node: Option<&Node>, findings: &mut Findings) -> Vec<Envelope> {
    let list = decode::list_of(node, LIST_MAX, findings, |node, findings| {
        let envelope = envelope(node, findings)?;
        Some((envelope, node.at))
    });
    let names = list
        .iter()
        .map(|(envelope, at)| (envelope.name.as_str(), *at));
    check_unique(names, "envelope", findings);
    list.into_iter().map(|(envelope, _)| envelope).collect()
}

fn envelope(node: &Node, findings: &mut Findings) -> Option<Envelope> {
    let mut fields = Fields::of(node, findings)?;
    let name = fields.required("name", findings);
    let name = name.and_then(|node| decode::named(node, findings));
    let direction = fields.required("direction", findings);
    let direction = direction.and_then(|node| decode::word(node, &DIRECTIONS, findings));
    let establish = fields.required("establish", findings);
    let establish = establish.and_then(|node| {
        let mut fields = Fields::of(node, findings)?;
        let tool = fields.required("tool", findings);
        let tool = tool.and_then(|node| decode::named(node, findings));
        let from = fields.required("from", findings);
        let from = from.and_then(|node| decode::word(node, &Source::WORDS, findings));
        let path = fields.required("path", findings);
        let path = path.and_then(|node| decode::path(node, findings));
        fields.finish(findings);
        Some((tool?, from?, path?))
    });
    let constrain = fields.required("constrain", findings);
    let constrain = decode::list_of(constrain, LIST_MAX, findings, |node, findings| {
        let mut fields = Fields::of(node, findings)?;
        let tool = fields.required("tool", findings);
        let tool = tool.and_then(|node| decode::named(node, findings));
        let path = fields.required("path", findings);
        let path = path.and_then(|node| decode::path(node, findings));
        fields.finish(findings);
        Some((tool?, path?))
    });
    fields.finish(findings);
    let (establish_tool, establish_from, establish_path) = establish?;
    Some(Envelope {
        name: name?.name,
        direction: direction?,
        establish_tool,
        establish_from,
        establish_path,
        constrain,
    })
}

pub(super) fn label_gates(node: Option<&Node>, findings: &mut Findings) -> Vec<LabelGate> {
    decode::list_of(node, LIST_MAX, findings, |node, findings| {
        let mut fields = Fields::of(node, findings)?;
        let label = fields.required("label", findings);
        let label = label.and_then(|node| decode::label(node, findings));
        let these = fields.optional("block_tools");
        let all_but = fields.optional("allow_only_tools");
        let at = fields.at();
        fields.finish(findings);
        let mut names =
            |node: &Node| decode::list_of(Some(node), TOOLS_MAX, findings, decode::named);
        let tools = match (these, all_but) {
            (Some(node), None) => GatedTools::These(names(node)),
            (None, Some(node)) => GatedTools::AllBut(names(node)),
            (Some(_), Some(_)) | (None, None) => {
                let message = "a label gate has either `block_tools` or `allow_only_tools`";
                findings.error(at, Code::Contradiction, message);
                return None;
            }
        };
        Some(LabelGate {
            label: label?,
            tools,
        })
    })
}
