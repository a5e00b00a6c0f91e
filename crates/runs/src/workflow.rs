//! Workflows: named, versioned state machines that ask for effects and never touch the world.
//!
//! A step is a pure function of a serialisable state and the results of the effects it asked for. Whether those
//! results were performed a moment ago, read from the log after a crash, or come from a replay, the workflow
//! cannot tell.

mod agent;
mod builtin;
pub mod governed;
mod outcome;
mod sanitize;
mod transcript;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use canon::{Digest, Map, Profile, Value, append_members, jcs, sha256};
use domain::{ArtifactKind, Ask, Event, Kind, ModelUse, payload};

pub use agent::{check_contracts, excluded_model, failure_in_result, is_unknown, ruled_output};
pub(crate) use agent::{recorded_contracts, response_of};
pub use builtin::{EXAMPLES, builtin};
pub use outcome::EffectOutcome;
pub use sanitize::{NAME_CHARS_MAX, SAFE_INTEGER_MAX, VALUE_DEPTH_MAX};
pub use transcript::Transcript;

/// A registered kind of work.
pub trait Workflow: Send + Sync + fmt::Debug + 'static {
    /// The name under which Tasks ask for it.
    fn name(&self) -> &'static str;

    /// Changes whenever the same inputs could lead to other requests.
    fn version(&self) -> &'static str;

    /// One line for people.
    fn description(&self) -> &'static str;

    /// False when its Tasks begin by other means than a request for a Task.
    fn is_submitted(&self) -> bool {
        true
    }

    /// What it takes, as a JSON Schema.
    fn input_schema(&self) -> Value {
        serde_json::json!({"type": "object", "description": "a Message or any JSON object"})
    }

    /// What it gives, as a JSON Schema.
    fn output_schema(&self) -> Value {
        serde_json::json!({"type": "string", "description": "the text of the agent's message"})
    }

    /// Returns the machine that works on an input, before its first step.
    fn begin(&self, start: &Start) -> Box<dyn Machine>;

    /// Returns the machine as it stood at a checkpoint: its first step repeats the request that followed.
    ///
    /// # Errors
    /// The state is none of this workflow's.
    fn restore(
        &self,
        _start: &Start,
        _state: &Value,
        _past: &Answers,
    ) -> Result<Box<dyn Machine>, String> {
        Err(format!("workflow `{}` keeps no checkpoints", self.name()))
    }
}

/// A run of a workflow. A pure function of its start and the results it is given, in whatever way they came.
pub trait Machine: Send {
    /// Takes the results of every effect of the last step, in the order of its requests, and returns the next step.
    fn step(&mut self, results: &[EffectAnswer]) -> Step;

    /// Returns the state of a machine that stands at a checkpoint.
    fn state(&self) -> Value {
        Value::Null
    }
}

/// What a Task starts from.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Start {
    /// The public text of a Message, or the structured value.
    pub input: Value,
    /// The persona it runs under, as it was when the Task was submitted.
    pub persona: Option<Value>,
}

impl Start {
    /// Reads it from the payload of `task.submitted` and, when the input is a Message, of that Message's event.
    pub fn read(submitted: &Map<String, Value>, message: Option<&Map<String, Value>>) -> Self {
        let holder = message.unwrap_or(submitted);
        let input = match holder.get("parts").and_then(Value::as_array) {
            Some(parts) => domain::public_text(parts).into(),
            None => holder.get("input").cloned().unwrap_or_default(),
        };
        Self {
            input,
            persona: submitted
                .get("persona")
                .filter(|persona| !persona.is_null())
                .cloned(),
        }
    }
}

/// Results of effects, by key.
pub type Answers = BTreeMap<String, EffectAnswer>;

/// What a workflow wants next.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Perform these effects.
    Request {
        /// What to tell first.
        notes: Vec<Note>,
        /// True at a turn boundary: nothing runs, and the state is worth keeping.
        checkpoint: bool,
        /// What to perform; never empty.
        effects: Vec<EffectRequest>,
    },
    /// The work is done.
    Done {
        /// What to tell first.
        notes: Vec<Note>,
        /// What the agent says.
        text: String,
        /// One line for people.
        summary: String,
        /// What it leaves besides.
        products: Vec<ProducedArtifact>,
    },
    /// The work cannot be done.
    Failed {
        /// What to tell first.
        notes: Vec<Note>,
        /// A stable word for programs.
        code: String,
        /// Why, for people.
        message: String,
        /// More facts.
        details: Map<String, Value>,
    },
}

/// Something a workflow tells: an event of the Task that changes nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct Note {
    /// What happened.
    pub kind: Kind,
    /// The facts.
    pub payload: Map<String, Value>,
}

/// An Artifact that a workflow leaves.
#[derive(Debug, Clone, PartialEq)]
pub struct ProducedArtifact {
    /// What it is.
    pub kind: ArtifactKind,
    /// Its media type.
    pub mime_type: &'static str,
    /// Its content.
    pub bytes: Vec<u8>,
}

/// An effect that a workflow asks for.
#[derive(Debug, Clone, PartialEq)]
pub struct EffectRequest {
    /// Its stable key, such as `llm:main:1`: the same in every run of the same workflow on the same input.
    pub key: String,
    /// What it is.
    pub kind: EffectKind,
    /// The request, without the messages of a model call.
    pub request: Value,
    /// The messages of a model call.
    pub messages: Option<Transcript>,
    /// True when performing it twice does no harm, so that an unknown result may be asked for again.
    pub repeatable: bool,
    /// What the run knows of the secrets that a tool needs.
    pub secrets: Handles,
}

impl EffectRequest {
    /// An effect that may be performed again when its result is unknown.
    pub fn repeatable(key: impl Into<String>, kind: EffectKind, request: Value) -> Self {
        Self {
            key: key.into(),
            kind,
            request,
            messages: None,
            repeatable: true,
            secrets: Handles::default(),
        }
    }

    /// Returns the digest of the request, which tells a repeated request from another one: that of its canonical
    /// form, where the messages of a model call are told by their number and the head of their chain.
    pub fn request_digest(&self) -> Digest {
        match &self.messages {
            None => sha256(&jcs(&self.request)),
            Some(messages) => digest_with(&self.request, messages.len(), messages.head()),
        }
    }

    /// Returns the effect with its whole request, to be performed.
    pub fn into_effect(self) -> Effect {
        let mut request = self.request;
        if let (Some(messages), Value::Object(request)) = (&self.messages, &mut request) {
            request.insert("messages".to_owned(), messages.to_value());
        }
        Effect {
            key: self.key,
            kind: self.kind,
            request,
            repeatable: self.repeatable,
            secrets: self.secrets,
        }
    }
}

/// The recorded handles of the secrets that a tool needs, by the names that the tool's configuration uses. Whoever
/// performs the tool uses the versions that they mean and nothing else.
///
/// They are no part of a request, for they are on record already. In a replay that was told a value in place of a handle
/// that value stands here, which is why these are not shown; such a replay performs nothing.
#[derive(Clone, Default, PartialEq)]
pub struct Handles(BTreeMap<String, Value>);

impl Handles {
    /// Returns what is known of a secret.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }
}

impl FromIterator<(String, Value)> for Handles {
    fn from_iter<T: IntoIterator<Item = (String, Value)>>(handles: T) -> Self {
        Self(handles.into_iter().collect())
    }
}

impl fmt::Debug for Handles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

fn digest_with(request: &Value, count: u64, head: Digest) -> Digest {
    let Value::Object(request) = request else {
        return sha256(&jcs(request));
    };
    let name = "messages".to_owned();
    let messages = serde_json::json!({"count": count, "sha256": head});
    let before = request.iter().filter(|(other, _)| **other < name);
    let after = request.iter().filter(|(other, _)| **other > name);
    let members = before
        .chain(std::iter::once((&name, &messages)))
        .chain(after);
    let mut bytes = Vec::with_capacity(1_024);
    append_members(&mut bytes, members, Profile::Jcs);
    sha256(&bytes)
}

/// An effect as it is performed: something outside the workflow whose result is recorded.
#[derive(Debug, Clone, PartialEq)]
pub struct Effect {
    /// Its stable key, such as `llm:main:1`: the same in every run of the same workflow on the same input.
    pub key: String,
    /// What it is.
    pub kind: EffectKind,
    /// The whole request in canonical data.
    pub request: Value,
    /// True when performing it twice does no harm, so that an unknown result may be asked for again.
    pub repeatable: bool,
    /// What the run knows of the secrets that a tool needs.
    pub secrets: Handles,
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
    /// Returns the digest of the request, the same as [`EffectRequest::request_digest`] gave.
    pub fn request_digest(&self) -> Digest {
        match self.request.get("messages").and_then(Value::as_array) {
            Some(messages) if self.kind == EffectKind::Model => {
                let transcript: Transcript = messages.iter().cloned().collect();
                digest_with(&self.request, transcript.len(), transcript.head())
            }
            _ => sha256(&jcs(&self.request)),
        }
    }
}

/// The recorded result of an effect.
#[derive(Debug, Clone, PartialEq)]
pub struct EffectAnswer {
    /// True for a result, false for an error.
    pub ok: bool,
    /// The result or the error.
    pub value: Value,
    /// For a model call: what was used.
    pub model: Option<ModelUse>,
}

impl EffectAnswer {
    /// Reads it from `vendor.effect_recorded`, whose blobs are filled in.
    pub fn recorded(event: &Event) -> Self {
        let said = payload::EffectRecorded::of(&event.payload);
        Self {
            ok: said.outcome() == Some("ok"),
            value: said.value().cloned().unwrap_or_default(),
            model: said
                .model()
                .and_then(|model| serde::Deserialize::deserialize(model).ok()),
        }
    }

    /// Returns what somebody said who interrupted the effect, if that is why there is no result.
    pub fn interruption(&self) -> Option<&str> {
        let text = |member: &str| self.value.get(member).and_then(Value::as_str);
        let is_so = !self.ok && text("code") == Some("interrupted");
        is_so.then(|| text("input").unwrap_or_default())
    }
}

/// The workflows a server knows, by name: the newest version of each for new Tasks, older ones for what they recorded.
#[derive(Debug, Clone)]
pub struct Registry {
    workflows: BTreeMap<&'static str, Vec<Arc<dyn Workflow>>>,
    /// Those that new Tasks do not get.
    only_recorded: &'static [&'static str],
}

/// What a name means to a new Task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offer {
    /// A workflow for new Tasks.
    New,
    /// A workflow whose recorded Tasks go on, end and replay, and that new Tasks do not get.
    OnlyRecorded,
    /// No workflow.
    Unknown,
}

impl Registry {
    /// Collects workflows, older versions first. One of a name and version that is there replaces it.
    pub fn new(workflows: impl IntoIterator<Item = Arc<dyn Workflow>>) -> Self {
        let mut known: BTreeMap<&'static str, Vec<Arc<dyn Workflow>>> = BTreeMap::new();
        for workflow in workflows {
            let versions = known.entry(workflow.name()).or_default();
            versions.retain(|other| other.version() != workflow.version());
            versions.push(workflow);
        }
        Self {
            workflows: known,
            only_recorded: &[],
        }
    }

    /// Withholds workflows from new Tasks. What they recorded goes on, ends and replays.
    pub fn only_recorded(mut self, names: &'static [&'static str]) -> Self {
        self.only_recorded = names;
        self
    }

    /// Says whether a new Task may have a workflow.
    pub fn offer(&self, name: &str) -> Offer {
        match self.find(name) {
            None => Offer::Unknown,
            Some(_) if self.only_recorded.contains(&name) => Offer::OnlyRecorded,
            Some(workflow) if !workflow.is_submitted() => Offer::OnlyRecorded,
            Some(_) => Offer::New,
        }
    }

    /// Finds the newest version of a workflow.
    pub fn find(&self, name: &str) -> Option<&Arc<dyn Workflow>> {
        self.workflows.get(name)?.last()
    }

    /// Finds the version that a log names; the oldest one for a log that names none.
    pub fn recorded(&self, name: &str, version: Option<Digest>) -> Option<&Arc<dyn Workflow>> {
        let mut versions = self.workflows.get(name)?.iter();
        versions.find(|workflow| version.is_none_or(|version| digest(workflow.as_ref()) == version))
    }

    /// Returns the newest version of each that new Tasks may have, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<dyn Workflow>> {
        self.workflows
            .values()
            .filter_map(|versions| versions.last())
            .filter(|workflow| !self.only_recorded.contains(&workflow.name()))
            .filter(|workflow| workflow.is_submitted())
    }
}

/// Returns the digest that identifies a workflow's version in `task.started`.
pub fn digest(workflow: &dyn Workflow) -> Digest {
    sha256(format!("{}\n{}", workflow.name(), workflow.version()).as_bytes())
}
