//! The built-in workflows: between them every state of a Task can be reached by a client.

use std::sync::Arc;

use canon::Value;
use domain::Ask;
use serde_json::json;

use super::{Effect, EffectAnswer, EffectKind, Step, Workflow};

/// Returns the built-in workflows.
pub fn builtin() -> Vec<Arc<dyn Workflow>> {
    vec![
        Arc::new(Agent),
        Arc::new(AskOnce),
        Arc::new(Approve),
        Arc::new(Hold),
    ]
}

fn request(effect: Effect) -> Step {
    Step::Request {
        state: Value::Null,
        effects: vec![effect],
    }
}

fn done(text: String) -> Step {
    let summary = text
        .lines()
        .next()
        .unwrap_or_default()
        .chars()
        .take(200)
        .collect();
    Step::Done { text, summary }
}

fn failed(code: &str, message: impl Into<String>) -> Step {
    Step::Failed {
        code: code.to_owned(),
        message: message.into(),
    }
}

/// One model call, `llm:main:1`, whose answer is the agent's answer.
#[derive(Debug)]
struct Agent;

impl Workflow for Agent {
    fn name(&self) -> &'static str {
        "agent"
    }

    fn version(&self) -> &'static str {
        "1"
    }

    fn description(&self) -> &'static str {
        "Makes one model call with the task's input and answers with its content."
    }

    fn begin(&self, input: &Value) -> Step {
        request(Effect::repeatable(
            "llm:main:1",
            EffectKind::Model,
            json!({"messages": [{"role": "user", "content": input}]}),
        ))
    }

    fn resume(&self, _state: &Value, results: &[EffectAnswer]) -> Step {
        let Some(EffectAnswer { ok, value }) = results.first() else {
            return failed("model_call_failed", "the model gave no answer");
        };
        if !ok {
            let message = value
                .get("message")
                .and_then(Value::as_str)
                .unwrap_or("the model call failed");
            return failed("model_call_failed", message);
        }
        // The common chat-completion shape.
        match value
            .pointer("/choices/0/message/content")
            .and_then(Value::as_str)
        {
            Some(content) => done(content.to_owned()),
            None => failed(
                "model_answer_unreadable",
                "the model's answer has no `choices[0].message.content`",
            ),
        }
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

    fn begin(&self, input: &Value) -> Step {
        request(Effect::repeatable(
            "host:approval:1",
            EffectKind::Ask(Ask::Input),
            json!({"question": "What should I know before I go on?", "about": input}),
        ))
    }

    fn resume(&self, _state: &Value, results: &[EffectAnswer]) -> Step {
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

    fn begin(&self, input: &Value) -> Step {
        request(Effect::repeatable(
            "host:approval:1",
            EffectKind::Ask(Ask::Approval),
            json!({"reason": "The task wants to act on its input.", "action": {"name": "act", "input": input}}),
        ))
    }

    fn resume(&self, _state: &Value, results: &[EffectAnswer]) -> Step {
        let approved = results
            .first()
            .and_then(|answer| answer.value.get("approved"))
            .and_then(Value::as_bool);
        match approved {
            Some(true) => done("Approved; the action was carried out.".to_owned()),
            Some(false) | None => failed("approval_denied", "the action was denied"),
        }
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

    fn begin(&self, _input: &Value) -> Step {
        request(Effect::repeatable(
            "host:hold:main:1",
            EffectKind::Hold,
            json!({}),
        ))
    }

    fn resume(&self, _state: &Value, _results: &[EffectAnswer]) -> Step {
        done("Released.".to_owned())
    }
}
