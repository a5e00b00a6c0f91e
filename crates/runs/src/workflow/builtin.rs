//! The small built-in workflows: with the agent, every state of a Task can be reached by a client.

use std::sync::Arc;

use canon::{Map, Value, jcs};
use domain::{ArtifactKind, Ask};
use serde_json::json;

use super::agent::{Agent, Rules};
use super::governed::{Governed, SessionsWorkflow};
use super::{
    EffectAnswer, EffectKind, EffectRequest, Machine, ProducedArtifact, Start, Step, Transcript,
    Workflow,
};

/// Returns the built-in workflows.
pub fn builtin() -> Vec<Arc<dyn Workflow>> {
    vec![
        Arc::new(Agent(Rules::Repeatable)),
        Arc::new(Agent(Rules::ReadOnly)),
        Arc::new(Agent(Rules::Contracts)),
        Arc::new(Agent(Rules::Together)),
        Arc::new(Agent(Rules::Listed)),
        Arc::new(Agent(Rules::Counted)),
        Arc::new(AskOnce),
        Arc::new(Approve),
        Arc::new(Hold),
        Arc::new(ReplayFixture),
        Arc::new(Governed),
        Arc::new(SessionsWorkflow),
    ]
}

/// The built-in workflows that are examples: they do no work, they show a state of a Task.
pub const EXAMPLES: &[&str] = &["ask", "approve", "hold", "replay-fixture"];

/// A machine that asks once and then ends.
struct Once<End> {
    effects: Vec<EffectRequest>,
    end: End,
}

impl<End: FnMut(&[EffectAnswer]) -> Step + Send> Machine for Once<End> {
    fn step(&mut self, results: &[EffectAnswer]) -> Step {
        if self.effects.is_empty() {
            return (self.end)(results);
        }
        Step::Request {
            notes: Vec::new(),
            checkpoint: false,
            effects: std::mem::take(&mut self.effects),
        }
    }
}

/// A machine that asks, begins again with what somebody said who interrupted it, and then ends.
struct Asking<Ask, End> {
    ask: Ask,
    end: End,
    input: Value,
    /// How often it has asked.
    asked: u64,
}

impl<Ask, End> Machine for Asking<Ask, End>
where
    Ask: FnMut(u64, &Value) -> EffectRequest + Send,
    End: FnMut(&[EffectAnswer]) -> Step + Send,
{
    fn step(&mut self, results: &[EffectAnswer]) -> Step {
        match results.iter().find_map(EffectAnswer::interruption) {
            Some(input) => self.input = input.into(),
            None if self.asked > 0 => return (self.end)(results),
            None => {}
        }
        self.asked += 1;
        Step::Request {
            notes: Vec::new(),
            checkpoint: false,
            effects: vec![(self.ask)(self.asked, &self.input)],
        }
    }
}

fn asking(
    start: &Start,
    ask: impl FnMut(u64, &Value) -> EffectRequest + Send + 'static,
    end: impl FnMut(&[EffectAnswer]) -> Step + Send + 'static,
) -> Box<dyn Machine> {
    Box::new(Asking {
        ask,
        end,
        input: start.input.clone(),
        asked: 0,
    })
}

fn once(
    effects: Vec<EffectRequest>,
    end: impl FnMut(&[EffectAnswer]) -> Step + Send + 'static,
) -> Box<dyn Machine> {
    Box::new(Once { effects, end })
}

pub(super) fn one_line(text: &str) -> String {
    text.lines()
        .next()
        .unwrap_or_default()
        .chars()
        .take(200)
        .collect()
}

pub(super) fn done(text: String) -> Step {
    Step::Done {
        notes: Vec::new(),
        summary: one_line(&text),
        text,
        products: Vec::new(),
    }
}

pub(super) fn failed(code: &str, message: impl Into<String>) -> Step {
    Step::Failed {
        notes: Vec::new(),
        code: code.to_owned(),
        message: message.into(),
        details: Map::new(),
    }
}

/// Asks one question and repeats the answer.
#[derive(Debug)]
struct AskOnce;

impl Workflow for AskOnce {
    fn name(&self) -> &'static str {
        "ask"
    }

    fn version(&self) -> &'static str {
        "1"
    }

    fn description(&self) -> &'static str {
        "Asks for input (INPUT_REQUIRED) and answers with what it was told."
    }

    fn begin(&self, start: &Start) -> Box<dyn Machine> {
        let ask = |number, about: &Value| {
            let request = json!({"question": "What should I know before I go on?", "about": about});
            let key = format!("host:approval:{number}");
            EffectRequest::repeatable(key, EffectKind::Ask(Ask::Input), request)
        };
        asking(start, ask, |results| {
            let answer = results.first().map(|answer| &answer.value);
            if answer.and_then(|value| value.get("approved")) == Some(&Value::Bool(false)) {
                return failed("input_refused", "the question was declined");
            }
            let text = answer.and_then(|value| value.get("text").or_else(|| value.get("answer")));
            match text {
                Some(Value::String(text)) => done(format!("You told me: {text}")),
                Some(other) => done(format!("You told me: {other}")),
                None => done("You let me go on.".to_owned()),
            }
        })
    }
}

/// Asks for approval of an action and reports the decision.
#[derive(Debug)]
struct Approve;

impl Workflow for Approve {
    fn name(&self) -> &'static str {
        "approve"
    }

    fn version(&self) -> &'static str {
        "1"
    }

    fn description(&self) -> &'static str {
        "Asks for approval (AUTH_REQUIRED) and reports the decision; a denial fails the task."
    }

    fn begin(&self, start: &Start) -> Box<dyn Machine> {
        let ask = |number, input: &Value| {
            let request = json!({"reason": "The task wants to act on its input.", "action": {"name": "act", "input": input}});
            let key = format!("host:approval:{number}");
            EffectRequest::repeatable(key, EffectKind::Ask(Ask::Approval), request)
        };
        asking(start, ask, |results| {
            let approved = results
                .first()
                .and_then(|answer| answer.value.get("approved"))
                .and_then(Value::as_bool);
            match approved {
                Some(true) => done("Approved; the action was carried out.".to_owned()),
                Some(false) | None => failed("approval_denied", "the action was denied"),
            }
        })
    }
}

/// Works until it is canceled.
#[derive(Debug)]
struct Hold;

impl Workflow for Hold {
    fn name(&self) -> &'static str {
        "hold"
    }

    fn version(&self) -> &'static str {
        "1"
    }

    fn description(&self) -> &'static str {
        "Stays WORKING until it is canceled."
    }

    fn begin(&self, start: &Start) -> Box<dyn Machine> {
        let hold = |number, _: &Value| {
            let key = format!("host:hold:main:{number}");
            EffectRequest::repeatable(key, EffectKind::Hold, json!({}))
        };
        asking(start, hold, |_| done("Released.".to_owned()))
    }
}

/// The module of the replay contract's fixture, with the effects that its server makes around it (C-39).
#[derive(Debug)]
struct ReplayFixture;

impl Workflow for ReplayFixture {
    fn name(&self) -> &'static str {
        "replay-fixture"
    }

    fn version(&self) -> &'static str {
        "1"
    }

    fn description(&self) -> &'static str {
        "Makes one model call and leaves a data set with its input's message and a verdict: the replay fixture."
    }

    fn begin(&self, start: &Start) -> Box<dyn Machine> {
        let message = start
            .input
            .get("message")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        let content = json!({"role": "user", "content": message});
        let effect = EffectRequest {
            messages: Some(Transcript::from_iter([content])),
            ..EffectRequest::repeatable("llm:main:1", EffectKind::Model, json!({}))
        };
        once(vec![effect], move |_| {
            let output = json!({"message": message, "verdict": "approved"});
            let bytes = jcs(&output);
            Step::Done {
                notes: Vec::new(),
                text: output.to_string(),
                summary: "approved".to_owned(),
                products: vec![ProducedArtifact {
                    kind: ArtifactKind::Dataset,
                    mime_type: "application/json",
                    bytes,
                }],
            }
        })
    }
}
