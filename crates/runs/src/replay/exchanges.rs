//! What an agent and its model said to each other, as a recorded run tells it: for judging it again.
//!
//! The record holds answers, not requests: a request is known by its digest alone. The tools that the model was offered
//! are a recorded fact of the host.

mod beginning;
mod governed;

use std::collections::BTreeSet;

use canon::Value;
use contracts::Response;
use contracts::backtest::RecordEntry;
use domain::{GovernedInput, Kind, Preflight, ProposalUsage, Timestamp, payload};
use serde::Deserialize as _;

use super::Source;
use crate::workflow::{failure_in_result, is_unknown, response_of, ruled_output};
pub use beginning::RunStart;
use governed::Inputs;

/// One thing that happened in a run.
#[derive(Debug, Clone)]
pub enum Exchange {
    /// The list of tools that the agent got; none when the record does not hold it.
    Tools(Option<Value>),
    /// A request that a governed session prepared.
    Prepared {
        /// Names it.
        id: String,
        /// When.
        at: Timestamp,
        /// What was sent.
        request: Box<Preflight>,
        /// What rules see of it; none when the record does not hold it.
        seen: Option<contracts::Value>,
    },
    /// The model answered.
    Answered {
        /// When the answer was recorded.
        at: Timestamp,
        /// What it said; none when the record does not hold it.
        response: Option<Response>,
        /// True when there was a text beside the calls that the record holds only the digest of.
        withheld: bool,
        /// What it cost.
        cost: Cost,
        /// The request that it answers, and its own name, in a governed session.
        names: Option<(String, String)>,
    },
    /// An answer came when its governed session had moved on.
    Discarded {
        /// When.
        at: Timestamp,
        /// What it cost.
        cost: Cost,
        /// The request that it answered.
        prepared: String,
    },
    /// What a backtest takes as it is.
    Entry(RecordEntry),
}

/// What is recorded of the cost of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cost {
    /// Nothing.
    Unknown,
    /// Millionths of a dollar.
    Micros(u64),
    /// What was used; the session has the prices.
    Used(ProposalUsage),
}

/// Reads the cost of a model call; unknown when its price or its usage was.
fn cost(said: payload::Said<'_, payload::EffectRecorded>) -> Cost {
    let facts = said.model();
    let facts = facts.filter(|facts| facts.get("usage_unknown") != Some(&Value::Bool(true)));
    let micros = facts.and_then(|facts| facts.get("cost_micros")?.as_u64());
    micros.map_or(Cost::Unknown, Cost::Micros)
}

/// Returns what happened, in order. A run without a model tells nothing.
pub fn exchanges(source: &Source) -> Vec<Exchange> {
    let mut exchanges = Vec::new();
    let mut inputs = Inputs::of(source);
    for (index, event) in source.events().iter().enumerate() {
        match source.kind(index) {
            Some(Kind::EffectRecorded) => {
                let said = payload::EffectRecorded::of(&event.payload);
                let Some(key) = event.effect_key() else {
                    continue;
                };
                let answer = source.answer(index);
                if key.starts_with("host:governed:") {
                    let input = answer.filter(|answer| answer.ok);
                    let input =
                        input.and_then(|input| GovernedInput::deserialize(input.value).ok());
                    inputs.take(input, &mut exchanges);
                } else if key.starts_with("host:tools:") {
                    let tools = answer.filter(|answer| answer.ok);
                    exchanges.push(Exchange::Tools(tools.map(|answer| answer.value)));
                } else if key.starts_with("llm:") && said.outcome() == Some("ok") {
                    exchanges.push(Exchange::Answered {
                        at: event.created_at,
                        response: answer.map(|answer| response_of(&answer.value)),
                        withheld: false,
                        cost: cost(said),
                        names: None,
                    });
                }
            }
            Some(Kind::ContractDecided) => {
                let payload = source.payload(index);
                let said = payload::ContractDecided::of(&payload);
                if said.operation().is_some() {
                    inputs.decided(said, &mut exchanges);
                    continue;
                }
                exchanges.extend(asked(said, None));
                let decision = said.decision();
                exchanges
                    .extend(decision.and_then(|decision| judged(decision, event.created_at, None)));
            }
            // The use of a tool that no effect performs was not let.
            Some(Kind::AgentToolUse) if event.effect_key().is_none() => {
                let call_id = payload::ToolUse::of(&event.payload).tool_call_id();
                let denied = call_id.map(|call_id| RecordEntry::Denied {
                    call_id: call_id.to_owned(),
                });
                exchanges.extend(denied.map(Exchange::Entry));
            }
            Some(Kind::AgentToolResult) => {
                let payload = source.payload(index);
                let said = payload::ToolResult::of(&payload);
                let Some(call_id) = said.tool_call_id() else {
                    continue;
                };
                let output = said.output();
                let failed = output.and_then(failure_in_result).is_some();
                let code = output.and_then(|output| output.get("code")?.as_str());
                let ok = said.status() == Some("ok") && !failed;
                exchanges.push(Exchange::Entry(RecordEntry::Ended {
                    call_id: call_id.to_owned(),
                    ok: (ok || !code.is_some_and(is_unknown)).then_some(ok),
                    output: output.map(ruled_output),
                    proposal: None,
                }));
            }
            Some(_) | None => {}
        }
    }
    exchanges
}

/// Tells which calls people were asked about: an agent names them, a session shows them in its verdicts, and an older agent only
/// counted.
fn asked(
    said: payload::Said<'_, payload::ContractDecided>,
    proposal: Option<&str>,
) -> Option<Exchange> {
    let count = said.asked().filter(|count| *count > 0)?;
    let named = said.questions().and_then(Value::as_array);
    let named = named.into_iter().flatten();
    let named = named.filter_map(|question| member(question, "tool_call_id"));
    let verdicts = said
        .answer()
        .and_then(|answer| answer.get("verdicts")?.as_array());
    let verdicts = verdicts.into_iter().flatten();
    let waiting = verdicts
        .filter(|verdict| member(verdict, "verdict") == Some("ask"))
        .filter_map(|verdict| member(verdict, "call_id"));
    Some(Exchange::Entry(RecordEntry::Asked {
        calls: named.chain(waiting).map(str::to_owned).collect(),
        count,
        proposal: proposal.map(str::to_owned),
    }))
}

/// Tells what was released of an answer. A decision without calls is about a request that was never sent.
fn judged(decision: &Value, at: Timestamp, proposal: Option<&str>) -> Option<Exchange> {
    let calls = decision.get("calls").and_then(Value::as_array)?;
    if calls.is_empty() {
        return None;
    }
    let (whole, stripped) = match member(decision, "action")? {
        "rejected" | "retried" => (true, true),
        "stripped" => (false, true),
        // Released as it was, also where it would have been blocked.
        _ => (false, false),
    };
    let gone = calls
        .iter()
        .filter(|call| whole || (stripped && member(call, "verdict") != Some("allow")));
    let ids: BTreeSet<&str> = gone.filter_map(|call| member(call, "call_id")).collect();
    Some(Exchange::Entry(RecordEntry::Judged {
        at: Some(at),
        refused: ids.into_iter().map(str::to_owned).collect(),
        whole,
        proposal: proposal.map(str::to_owned),
    }))
}

fn member<'a>(value: &'a Value, name: &str) -> Option<&'a str> {
    value.get(name).and_then(Value::as_str)
}
