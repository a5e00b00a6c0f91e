//! The tools an agent may use, and one use of each.

use std::collections::{BTreeMap, BTreeSet};

use canon::Value;
use contracts::OfferedTool;
use domain::{Kind, payload};
use serde_json::json;

use super::super::{EffectAnswer, EffectKind, EffectRequest, Handles, Note};
use super::governance::{Fault, exact};
use super::note;
use super::persona::{Persona, Verdict};

/// The tools on offer, by the name the model knows.
#[derive(Debug, Default)]
pub(super) struct Catalog {
    tools: BTreeMap<String, Tool>,
    /// What the run was told of the secrets that tools need.
    handles: BTreeMap<String, Value>,
}

#[derive(Debug)]
struct Tool {
    definition: Value,
    /// The MCP server, for one of its tools.
    server: Option<String>,
    /// The name at its executor.
    name: String,
    repeatable: bool,
    read_only: bool,
    secrets: Vec<String>,
}

impl Catalog {
    /// Reads the recorded list of tools.
    pub(super) fn read(listed: &Value) -> Self {
        let listed = listed
            .get("tools")
            .and_then(Value::as_array)
            .map(Vec::as_slice)
            .unwrap_or_default();
        let tools = listed.iter().filter_map(|tool| {
            let text = |name: &str| tool.get(name).and_then(Value::as_str);
            let flag = |name: &str| tool.get(name).and_then(Value::as_bool).unwrap_or(false);
            let name = text("name")?;
            let secrets = tool
                .get("secrets")
                .and_then(Value::as_array)
                .map(|names| names.iter().filter_map(Value::as_str).map(str::to_owned).collect())
                .unwrap_or_default();
            let definition = json!({
                "type": "function",
                "function": {
                    "name": name,
                    "description": text("description").unwrap_or_default(),
                    "parameters": tool.get("parameters").cloned().unwrap_or_else(|| json!({"type": "object"})),
                },
            });
            let tool = Tool {
                definition,
                server: text("server").map(str::to_owned),
                name: text("tool").unwrap_or(name).to_owned(),
                repeatable: flag("repeatable"),
                read_only: flag("read_only"),
                secrets,
            };
            Some((name.to_owned(), tool))
        });
        Self {
            tools: tools.collect(),
            handles: BTreeMap::new(),
        }
    }

    /// Returns the tools as a model request states them; with a list of names, only those.
    pub(super) fn for_model(&self, allowed: Option<&BTreeSet<String>>) -> Vec<Value> {
        let shown = self.tools.iter();
        let shown = shown.filter(|(name, _)| allowed.is_none_or(|names| names.contains(*name)));
        shown.map(|(_, tool)| tool.definition.clone()).collect()
    }

    /// Returns the tools as contracts see them.
    pub(super) fn offered(&self) -> Result<Vec<OfferedTool>, Fault> {
        let offered = self.tools.iter().map(|(name, tool)| {
            let schema = tool.definition.pointer("/function/parameters");
            Ok(OfferedTool {
                schema: schema.map(exact).transpose()?,
                ..OfferedTool::named(name)
            })
        });
        offered.collect()
    }

    /// Returns the names of the secrets that tools need, each once.
    pub(super) fn secrets(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self
            .tools
            .values()
            .flat_map(|tool| tool.secrets.iter().map(String::as_str))
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Keeps the answers to what [`Catalog::secrets`] asked for.
    pub(super) fn keep_handles(&mut self, answers: &[EffectAnswer]) {
        let names = self.secrets().into_iter().map(str::to_owned);
        let handles = answers.iter().map(|answer| answer.value.clone());
        self.handles = names.zip(handles).collect();
    }

    fn handles_for(&self, tool: &Tool) -> Handles {
        let known = |name: &String| Some((name.clone(), self.handles.get(name)?.clone()));
        tool.secrets.iter().filter_map(known).collect()
    }
}

/// How often each kind of effect was asked for: the numbers in keys.
#[derive(Debug, Default)]
pub(super) struct Counters {
    tools: BTreeMap<String, u64>,
    pub(super) approvals: u64,
}

impl Counters {
    pub(super) fn next(&mut self, prefix: &str) -> String {
        let count = self.tools.entry(prefix.to_owned()).or_default();
        *count += 1;
        format!("{prefix}:main:{count}")
    }

    pub(super) fn to_value(&self) -> Value {
        json!({"tools": self.tools, "approvals": self.approvals})
    }
}

/// One tool call of a model's answer.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) id: String,
    /// The name the model used.
    pub(super) name: String,
    pub(super) arguments: Value,
    /// Which attempt it is, in versions that tell.
    pub(super) attempt: Option<u64>,
    /// What it gave.
    pub(super) result: Option<EffectAnswer>,
    fate: CallDecision,
}

/// What becomes of a call.
#[derive(Debug)]
enum CallDecision {
    /// It is performed, perhaps after somebody consented.
    Performed {
        effect: Box<EffectRequest>,
        asks: bool,
    },
    /// It is not performed, and the model is told why.
    Refused { denied: bool, why: String },
}

impl Call {
    /// Reads a call, finds its tool and judges it by the persona's tier.
    pub(super) fn read(
        call: &Value,
        catalog: &Catalog,
        persona: &Persona,
        counters: &mut Counters,
    ) -> Self {
        let text = |pointer: &str| {
            call.pointer(pointer)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        let (id, name) = (text("/id").to_owned(), text("/function/name").to_owned());
        let given = written_arguments(call);
        let not_made = |denied: bool, why: String, arguments: Value| Self {
            id: id.clone(),
            name: name.clone(),
            arguments,
            attempt: None,
            result: None,
            fate: CallDecision::Refused { denied, why },
        };
        let refused = |why: String, arguments: Value| not_made(false, why, arguments);
        // Read strictly: what they hold goes into events, and must mean the same to everybody.
        let arguments = match canon::read(given.as_bytes(), canon::Integers::Safe) {
            Ok(Value::Object(arguments)) => Value::Object(arguments),
            Ok(_) => {
                return refused("the arguments are no JSON object".to_owned(), given.into());
            }
            Err(error) => {
                return refused(format!("the arguments are no JSON: {error}"), given.into());
            }
        };
        let Some(tool) = catalog.tools.get(&name) else {
            let (denied, why) = persona.unlisted(&name);
            return not_made(denied, why, arguments);
        };
        let asks = match persona.judge(tool.repeatable, tool.read_only) {
            Verdict::Acts => false,
            Verdict::Asks => true,
            Verdict::Denied(why) => return not_made(true, why, arguments),
        };
        let (prefix, kind, request) = match &tool.server {
            Some(server) => (
                format!("mcp:{}", encode(server)),
                EffectKind::McpTool,
                json!({"server": server, "tool": tool.name, "arguments": arguments}),
            ),
            None => (
                format!("host:tool.{}", encode(&tool.name)),
                EffectKind::LocalTool,
                json!({"tool": tool.name, "arguments": arguments}),
            ),
        };
        let effect = EffectRequest {
            repeatable: tool.repeatable,
            secrets: catalog.handles_for(tool),
            ..EffectRequest::repeatable(counters.next(&prefix), kind, request)
        };
        Self {
            id,
            name,
            arguments,
            attempt: None,
            result: None,
            fate: CallDecision::Performed {
                effect: Box::new(effect),
                asks,
            },
        }
    }

    pub(super) fn needs_approval(&self) -> bool {
        matches!(self.fate, CallDecision::Performed { asks: true, .. })
    }

    /// Says that somebody consented already.
    pub(super) fn consent(&mut self) {
        if let CallDecision::Performed { asks, .. } = &mut self.fate {
            *asks = false;
        }
    }

    pub(super) fn deny(&mut self, why: &str) {
        self.fate = CallDecision::Refused {
            denied: true,
            why: why.to_owned(),
        };
    }

    pub(super) fn is_performed(&self) -> bool {
        matches!(self.fate, CallDecision::Performed { .. })
    }

    /// True for a call that is made and has given nothing yet.
    pub(super) fn is_running(&self) -> bool {
        self.is_performed() && self.result.is_none()
    }

    pub(super) fn effect_request(&self) -> Option<EffectRequest> {
        match &self.fate {
            CallDecision::Performed { effect, .. } if self.result.is_none() => {
                Some((**effect).clone())
            }
            CallDecision::Performed { .. } | CallDecision::Refused { .. } => None,
        }
    }

    /// Tells from now on which attempt it is.
    pub(super) fn count_attempts(&mut self) {
        self.attempt = Some(1);
    }

    /// Makes the call once more, as an effect of its own.
    pub(super) fn try_again(&mut self, counters: &mut Counters) {
        self.result = None;
        self.attempt = self.attempt.map(|attempt| attempt + 1);
        if let CallDecision::Performed { effect, .. } = &mut self.fate
            && let Some((prefix, _)) = effect.key.rsplit_once(":main:")
        {
            effect.key = counters.next(prefix);
        }
    }

    /// Lets the tool take no longer than this.
    pub(super) fn limit(&mut self, timeout_ms: u64) {
        if let CallDecision::Performed { effect, .. } = &mut self.fate
            && let Value::Object(request) = &mut effect.request
        {
            request.insert("timeout_ms".to_owned(), timeout_ms.into());
        }
    }

    fn effect_key(&self) -> Option<&str> {
        match &self.fate {
            CallDecision::Performed { effect, .. } => Some(&effect.key),
            CallDecision::Refused { .. } => None,
        }
    }

    /// Says that the agent uses the tool, or was not let.
    pub(super) fn use_notes(&self) -> Vec<Note> {
        let (id, name) = (self.id.as_str(), self.name.as_str());
        let used = payload::ToolUse::default().tool_call_id(id).name(name);
        let mut used = used.input(self.arguments.clone());
        used = used.effect_key(self.effect_key());
        if let (Some(attempt), true) = (self.attempt, self.is_performed()) {
            used = used.attempt(attempt);
        }
        let used = note(Kind::AgentToolUse, used.into_members());
        match &self.fate {
            CallDecision::Refused { denied: true, why } => {
                let denied = payload::Decided::default().tool_call_id(id).name(name);
                let denied = denied.reason(why.as_str()).into_members();
                vec![used, note(Kind::ToolDenied, denied)]
            }
            CallDecision::Refused { denied: false, .. } | CallDecision::Performed { .. } => {
                vec![used]
            }
        }
    }

    /// Says what the tool gave.
    pub(super) fn result_notes(&self, output: &Value, ok: bool) -> Vec<Note> {
        let told = payload::ToolResult::default().tool_call_id(self.id.as_str());
        let mut told = told.name(self.name.as_str());
        told = told.status(if ok { "ok" } else { "error" });
        if let Some(key) = self.effect_key() {
            told = told.effect_key(key);
        }
        let mut notes = Vec::new();
        if !ok {
            notes.push(note(Kind::ToolFailed, told.clone().into_members()));
        }
        let told = told.output(output.clone()).into_members();
        notes.push(note(Kind::AgentToolResult, told));
        notes
    }

    /// Returns the output, what the model reads of it, and whether it went well.
    pub(super) fn outcome(&self, result: Option<&EffectAnswer>) -> (Value, String, bool) {
        match (&self.fate, result) {
            (CallDecision::Refused { why, .. }, _) => (json!({"message": why}), why.clone(), false),
            (CallDecision::Performed { .. }, None) => {
                let why = "the tool gave no result".to_owned();
                (json!({"message": why}), why, false)
            }
            (CallDecision::Performed { .. }, Some(answer)) => {
                let failed_itself = answer.value.get("isError") == Some(&Value::Bool(true));
                (
                    answer.value.clone(),
                    readable(&answer.value),
                    answer.ok && !failed_itself,
                )
            }
        }
    }
}

/// Returns what a model reads of a tool's output: the text of MCP content, or the value as JSON.
pub(crate) fn readable(value: &Value) -> String {
    let content = value.get("content").and_then(Value::as_array);
    let texts: Option<Vec<&str>> = content.map(|parts| {
        parts
            .iter()
            .filter_map(|part| part.get("text").and_then(Value::as_str))
            .collect()
    });
    match texts {
        Some(texts) if !texts.is_empty() => texts.join("\n"),
        _ => serde_json::to_string(value).unwrap_or_default(),
    }
}

/// Returns the arguments of a proposed call as the model wrote them; none written means no arguments.
pub(super) fn written_arguments(call: &Value) -> &str {
    let written = call
        .pointer("/function/arguments")
        .and_then(Value::as_str)
        .unwrap_or_default();
    if written.trim().is_empty() {
        "{}"
    } else {
        written
    }
}

/// Writes a name as a part of a key: `:` only separates, everything unusual is percent-encoded.
pub(super) fn encode(name: &str) -> String {
    let mut encoded = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'/' | b'-') {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}
