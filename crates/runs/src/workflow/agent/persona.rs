//! What a persona tells the agent. Read from the snapshot that the Task recorded, so that a later change of the
//! persona changes no run.

use canon::{Map, Value};

use super::Used;

/// Model calls of a persona that states no limit of its own.
const STEPS_MAX: u64 = 20;

/// The persona of a run.
#[derive(Debug)]
pub(super) struct Persona {
    pub(super) system_prompt: Option<String>,
    pub(super) autonomy_tier: String,
    /// Members of every model request: provider, model and its settings.
    pub(super) model: Map<String, Value>,
    pub(super) tools: Vec<String>,
    pub(super) remembers: bool,
    limits: Map<String, Value>,
}

impl Persona {
    /// Reads a snapshot; without one there are no tools, and the server's own model answers.
    pub(super) fn read(persona: Option<&Value>) -> Self {
        let member = |name: &str| persona.and_then(|persona| persona.get(name));
        let text = |name: &str| member(name).and_then(Value::as_str).map(str::to_owned);
        let object = |name: &str| {
            member(name)
                .and_then(Value::as_object)
                .cloned()
                .unwrap_or_default()
        };
        let tools = member("tools")
            .and_then(Value::as_array)
            .map(|tools| {
                tools
                    .iter()
                    .filter_map(Value::as_str)
                    .map(str::to_owned)
                    .collect()
            })
            .unwrap_or_default();
        Self {
            system_prompt: text("system_prompt"),
            autonomy_tier: text("autonomy_tier").unwrap_or_else(|| "act_auto".to_owned()),
            model: object("model"),
            tools,
            remembers: text("memory").as_deref() == Some("session"),
            limits: object("limits"),
        }
    }

    fn limit(&self, name: &str) -> Option<u64> {
        self.limits.get(name).and_then(Value::as_u64)
    }

    pub(super) fn limits_cost(&self) -> bool {
        self.limit("cost_micros_max").is_some()
    }

    /// Returns the limit that forbids another model call, with a sentence for people.
    pub(super) fn exceeded(&self, turns: u64, used: &Used) -> Option<(&'static str, String)> {
        let steps_max = self.limit("steps_max").unwrap_or(STEPS_MAX);
        let limits = [
            ("steps_max", Some(steps_max), turns, "model calls"),
            (
                "tokens_max",
                self.limit("tokens_max"),
                used.tokens,
                "tokens",
            ),
            (
                "cost_micros_max",
                self.limit("cost_micros_max"),
                used.cost_micros,
                "millionths of a dollar",
            ),
        ];
        limits.into_iter().find_map(|(name, limit, used, unit)| {
            let limit = limit?;
            (used >= limit).then(|| (name, sentence(name, limit, used, unit)))
        })
    }

    /// Returns the limit that forbids the tool calls of an answer, which are counted before they are made.
    pub(super) fn too_many_tool_calls(&self, used: &Used) -> Option<(&'static str, String)> {
        let (name, limit) = ("tool_calls_max", self.limit("tool_calls_max")?);
        let message = sentence(name, limit, used.tool_calls, "tool calls");
        (used.tool_calls > limit).then_some((name, message))
    }
}

fn sentence(name: &str, limit: u64, used: u64, unit: &str) -> String {
    format!("{name} is {limit} {unit}, and {used} are used")
}
