//! Workflows: named, versioned state machines that ask for effects and never touch the world.
//!
//! A step is a pure function of a serialisable state and the results of the effects it asked for. Whether those
//! results were performed a moment ago, read from the log after a crash, or come from a replay, the workflow
//! cannot tell.

mod builtin;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use canon::{Digest, Value, jcs, sha256};
use domain::Ask;

pub use builtin::builtin;

/// A registered state machine.
pub trait Workflow: Send + Sync + fmt::Debug + 'static {
    /// The name under which Tasks ask for it.
    fn name(&self) -> &'static str;

    /// Changes whenever the same inputs could lead to other requests.
    fn version(&self) -> &'static str;

    /// One line for people.
    fn description(&self) -> &'static str;

    /// What it takes, as a JSON Schema.
    fn input_schema(&self) -> Value {
        serde_json::json!({"type": "object", "description": "a Message or any JSON object"})
    }

    /// What it gives, as a JSON Schema.
    fn output_schema(&self) -> Value {
        serde_json::json!({"type": "string", "description": "the text of the agent's message"})
    }

    /// Returns the first step for an input.
    fn begin(&self, input: &Value) -> Step;

    /// Returns the next step, given the results of every effect of the last one in the order of its requests.
    fn resume(&self, state: &Value, results: &[EffectAnswer]) -> Step;
}

/// What a workflow wants next.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Perform these effects, then resume with this state.
    Request {
        /// The state to resume with.
        state: Value,
        /// What to perform.
        effects: Vec<Effect>,
    },
    /// The work is done.
    Done {
        /// What the agent says.
        text: String,
        /// One line for people.
        summary: String,
    },
    /// The work cannot be done.
    Failed {
        /// A stable word for programs.
        code: String,
        /// Why, for people.
        message: String,
    },
}

/// An effect: something outside the workflow whose result is recorded.
#[derive(Debug, Clone, PartialEq)]
pub struct Effect {
    /// Its stable key, such as `llm:main:1`: the same in every run of the same workflow on the same input.
    pub key: String,
    /// What it is.
    pub kind: EffectKind,
    /// The request in canonical data.
    pub request: Value,
    /// True when performing it twice does no harm, so that an unknown result may be asked for again.
    pub repeatable: bool,
}

/// The kinds of effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EffectKind {
    /// A call of a language model: `{provider?, model?, messages, tools?, …}` in, a chat completion out.
    Model,
    /// A call of a tool of an MCP server: `{server, tool, arguments}` in.
    McpTool,
    /// A run of a declared local command: `{tool, arguments}` in.
    LocalTool,
    /// A handle of a secret: `{name}` in, `{vault_id, version}` out. The value never leaves the executor.
    Secret,
    /// A reading of the clock: `{label}` in, a time out.
    Time,
    /// Random bytes: `{bytes}` in, hexadecimal text out.
    Random,
    /// A fact about the host: `{capability, …}` in.
    Host,
    /// What the Session remembers: its transcript before this Task.
    Memory,
    /// Waits until the Task ends.
    Hold,
    /// A question or approval that somebody outside answers.
    Ask(Ask),
}

impl EffectKind {
    /// Returns the record kind of `vendor.effect_requested` and `vendor.effect_recorded`.
    pub const fn record_kind(self) -> &'static str {
        match self {
            EffectKind::Model => "llm_provider_response",
            EffectKind::McpTool => "mcp_tool_return",
            EffectKind::LocalTool => "tool_result",
            EffectKind::Secret => "secret_value",
            EffectKind::Time => "time",
            EffectKind::Random
            | EffectKind::Host
            | EffectKind::Memory
            | EffectKind::Hold
            | EffectKind::Ask(_) => "host_fact",
        }
    }
}

impl Effect {
    /// An effect that may be performed again when its result is unknown.
    pub fn repeatable(key: impl Into<String>, kind: EffectKind, request: Value) -> Self {
        Self {
            key: key.into(),
            kind,
            request,
            repeatable: true,
        }
    }

    /// Returns the digest of the canonical request, which tells a repeated request from another one.
    pub fn request_digest(&self) -> Digest {
        sha256(&jcs(&self.request))
    }
}

/// The recorded result of an effect.
#[derive(Debug, Clone, PartialEq)]
pub struct EffectAnswer {
    /// True for a result, false for an error.
    pub ok: bool,
    /// The result or the error.
    pub value: Value,
}

/// The workflows a server offers, by name.
#[derive(Debug, Clone)]
pub struct Registry {
    workflows: BTreeMap<&'static str, Arc<dyn Workflow>>,
}

impl Registry {
    /// Collects workflows; a later one replaces an earlier one of the same name.
    pub fn new(workflows: impl IntoIterator<Item = Arc<dyn Workflow>>) -> Self {
        Self {
            workflows: workflows
                .into_iter()
                .map(|workflow| (workflow.name(), workflow))
                .collect(),
        }
    }

    /// Finds a workflow.
    pub fn find(&self, name: &str) -> Option<&Arc<dyn Workflow>> {
        self.workflows.get(name)
    }

    /// Returns all of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<dyn Workflow>> {
        self.workflows.values()
    }
}

/// Returns the digest that identifies a workflow's version in `task.started`.
pub fn digest(workflow: &dyn Workflow) -> Digest {
    sha256(format!("{}\n{}", workflow.name(), workflow.version()).as_bytes())
}
