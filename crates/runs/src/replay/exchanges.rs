//! What an agent and its model said to each other, as a recorded run tells it: for judging it again.
//!
//! The record holds answers, not requests: a request is known by its digest alone. The tools that the model was offered
//! are a recorded fact of the host.

use canon::Value;
use domain::{Kind, Timestamp};

use super::Source;
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
        /// What it cost in millionths of a dollar, as was recorded then.
        cost_micros: Option<u64>,
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
    for (index, event) in source.events().iter().enumerate() {
        let text = |name: &str| event.payload.get(name).and_then(Value::as_str);
        match source.kind(index) {
            Some(Kind::EffectRecorded) => {
                let Some(key) = text("effect_key") else {
                    continue;
                };
                let answer = source.answer(index);
                if key.starts_with("host:tools:") {
                    let tools = answer.filter(|answer| answer.ok);
                    told.push(Exchange::Tools(tools.map(|answer| answer.value)));
                } else if key.starts_with("llm:") && text("outcome") == Some("ok") {
                    told.push(Exchange::Answered {
                        at: event.created_at,
                        response: answer.map(|answer| answer.value),
                        cost_micros: cost_micros(&event.payload),
                    });
                }
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
