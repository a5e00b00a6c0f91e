//! What an agent and its model said to each other, as a recorded run tells it: for judging it again.
//!
//! The record holds answers, not requests: a request is known by its digest alone. The tools that the model was offered
//! are a recorded fact of the host.

use std::collections::BTreeSet;

use canon::Value;
use domain::{GovernedInput, GovernedOperation, Kind, Proposal, ReportedOutcome, Timestamp};
use serde::Deserialize as _;
use serde_json::json;

use super::Source;
use crate::workflow::governed::reported_output;
use crate::workflow::{is_unknown, ruled_output, told_failure};

/// One thing that happened in a run.
#[derive(Debug, Clone, PartialEq)]
pub enum Exchange {
    /// The list of tools that the agent got; none when the record does not hold it.
    Tools(Option<Value>),
    /// The model answered.
    Answered {
        /// When the answer was recorded.
        at: Timestamp,
        /// A chat completion; none when the record does not hold it.
        response: Option<Value>,
        /// True when there was a text beside the calls that the record holds only the digest of.
        withheld: bool,
        /// What it cost in millionths of a dollar, as was recorded then.
        cost_micros: Option<u64>,
    },
    /// People were asked about calls of the last answer, because contracts say so.
    Asked {
        /// The ids that the model gave the calls, as far as the record names them.
        calls: Vec<String>,
        /// How many questions there were.
        count: u64,
    },
    /// The last answer was judged by contracts and settled.
    Judged {
        /// The ids that the model gave the calls that were not released.
        refused: Vec<String>,
        /// True when nothing of the answer was released.
        whole: bool,
    },
    /// A call was not made.
    Denied {
        /// The id that the model gave it.
        call_id: String,
    },
    /// A call of a tool ended, or was refused.
    Ended {
        /// The id that the model gave it.
        call_id: String,
        /// Whether it went well; none when nobody knows what it did.
        ok: Option<bool>,
        /// What rules read of its output; none when the record does not hold it.
        output: Option<String>,
    },
}

/// Reads the cost of a model call; none when its price or its usage was not known.
fn cost_micros(payload: &canon::Map<String, Value>) -> Option<u64> {
    let facts = payload.get("model")?;
    if facts.get("usage_unknown") == Some(&Value::Bool(true)) {
        return None;
    }
    facts.get("cost_micros")?.as_u64()
}

/// Returns what happened, in order. A run without a model tells nothing.
pub fn exchanges(source: &Source) -> Vec<Exchange> {
    let mut told = Vec::new();
    let mut proposed = None;
    for (index, event) in source.events().iter().enumerate() {
        let text = |name: &str| event.payload.get(name).and_then(Value::as_str);
        match source.kind(index) {
            Some(Kind::EffectRecorded) => {
                let Some(key) = text("effect_key") else {
                    continue;
                };
                let answer = source.answer(index);
                if key.starts_with("host:governed:") {
                    let input = answer.filter(|answer| answer.ok);
                    let input =
                        input.and_then(|input| GovernedInput::deserialize(input.value).ok());
                    proposed = governed(input, &mut told);
                } else if key.starts_with("host:tools:") {
                    let tools = answer.filter(|answer| answer.ok);
                    told.push(Exchange::Tools(tools.map(|answer| answer.value)));
                } else if key.starts_with("llm:") && text("outcome") == Some("ok") {
                    told.push(Exchange::Answered {
                        at: event.created_at,
                        response: answer.map(|answer| answer.value),
                        withheld: false,
                        cost_micros: cost_micros(&event.payload),
                    });
                }
            }
            Some(Kind::ContractDecided) => {
                let payload = source.payload(index);
                let is_judged = payload.get("problem").is_none();
                if let Some((at, proposal)) = proposed.take()
                    && is_judged
                {
                    told.push(answered(at, &proposal));
                }
                told.extend(asked(&payload));
                told.extend(payload.get("decision").and_then(judged));
            }
            // The use of a tool that no effect performs was not let.
            Some(Kind::AgentToolUse) if text("effect_key").is_none() => {
                told.extend(text("tool_call_id").map(|call_id| Exchange::Denied {
                    call_id: call_id.to_owned(),
                }));
            }
            Some(Kind::AgentToolResult) => {
                let Some(call_id) = text("tool_call_id") else {
                    continue;
                };
                let payload = source.payload(index);
                let output = payload.get("output");
                let failed = output.and_then(told_failure).is_some();
                let code = output.and_then(|output| output.get("code")?.as_str());
                let ok = text("status") == Some("ok") && !failed;
                told.push(Exchange::Ended {
                    call_id: call_id.to_owned(),
                    ok: (ok || !code.is_some_and(is_unknown)).then_some(ok),
                    output: output.map(ruled_output),
                });
            }
            Some(_) | None => {}
        }
    }
    told
}

/// Tells an input of a governed session; a proposal is told once it is known to have been judged.
fn governed(
    input: Option<GovernedInput>,
    told: &mut Vec<Exchange>,
) -> Option<(Timestamp, Proposal)> {
    let input = input?;
    match input.operation {
        GovernedOperation::Preflight(preflight) => {
            let tools = preflight.offered_tools.into_iter();
            let tools: Value = tools
                .map(|tool| json!({"name": tool.name, "parameters": tool.schema}))
                .collect();
            told.push(Exchange::Tools(Some(json!({"tools": tools}))));
            None
        }
        GovernedOperation::Propose(proposal) => Some((input.at, proposal)),
        GovernedOperation::Report(report) => {
            let ok = match report.outcome {
                ReportedOutcome::Success => Some(true),
                ReportedOutcome::ExpectedError | ReportedOutcome::Error => Some(false),
                ReportedOutcome::Unknown => None,
            };
            told.push(Exchange::Ended {
                ok,
                output: reported_output(&report),
                call_id: report.call_id,
            });
            None
        }
        _ => None,
    }
}

/// A proposed response in the form in which other answers are told.
fn answered(at: Timestamp, proposal: &Proposal) -> Exchange {
    let calls = proposal.tool_calls.iter().map(|call| {
        let function = json!({"name": call.name, "arguments": call.arguments});
        json!({"id": call.id, "type": "function", "function": function})
    });
    let calls: Vec<Value> = calls.collect();
    let mut message = json!({"role": "assistant", "content": proposal.content});
    if let (Value::Object(members), false) = (&mut message, calls.is_empty()) {
        members.insert("tool_calls".to_owned(), calls.into());
    }
    let choice = json!({"index": 0, "message": message, "finish_reason": proposal.finish_reason});
    Exchange::Answered {
        at,
        response: Some(json!({"object": "chat.completion", "choices": [choice]})),
        withheld: proposal.content.is_none() && proposal.content_digest.is_some(),
        // What a model costs is known to the program that asked it.
        cost_micros: None,
    }
}

/// Tells which calls people were asked about: an agent names them, a session shows them in its verdicts, and an older agent only
/// counted.
fn asked(payload: &canon::Map<String, Value>) -> Option<Exchange> {
    let count = payload.get("asked")?.as_u64().filter(|count| *count > 0)?;
    let named = payload.get("questions").and_then(Value::as_array);
    let named = named.into_iter().flatten();
    let named = named.filter_map(|question| member(question, "tool_call_id"));
    let verdicts = payload
        .get("answer")
        .and_then(|answer| answer.get("verdicts")?.as_array());
    let verdicts = verdicts.into_iter().flatten();
    let waiting = verdicts
        .filter(|verdict| member(verdict, "verdict") == Some("ask"))
        .filter_map(|verdict| member(verdict, "call_id"));
    Some(Exchange::Asked {
        calls: named.chain(waiting).map(str::to_owned).collect(),
        count,
    })
}

/// Tells what was released of an answer. A decision without calls is about a request that was never sent.
fn judged(decision: &Value) -> Option<Exchange> {
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
    Some(Exchange::Judged {
        refused: ids.into_iter().map(str::to_owned).collect(),
        whole,
    })
}

fn member<'a>(value: &'a Value, name: &str) -> Option<&'a str> {
    value.get(name).and_then(Value::as_str)
}
