//! What a persona tells the agent. Read from the snapshot that the Task recorded, so that a later change of the
//! persona changes no run.

use canon::{Map, Value};

use super::{Rules, Used};

/// Model calls of a persona that states no limit of its own.
const STEPS_MAX: u64 = 20;

/// The persona of a run.
#[derive(Debug)]
pub(super) struct Persona {
    pub(super) system_prompt: Option<String>,
    rules: Rules,
    pub(super) autonomy_tier: Option<String>,
    /// Members of every model request: provider, model and its settings.
    pub(super) model: Map<String, Value>,
    pub(super) tools: Vec<String>,
    pub(super) remembers: MemorySource,
    limits: Map<String, Value>,
}

/// What a tier says to the use of a tool.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is used.
    Acts,
    /// Somebody is asked first.
    Asks,
    /// It is not used, and why.
    Denied(String),
}

/// What the agent knows beyond its input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MemorySource {
    /// Nothing.
    Nothing,
    /// What was said in the Session before.
    Session,
    /// What agents share in a field.
    Field,
}

impl Persona {
    /// Reads a snapshot; without one there are no tools, and the server's own model answers.
    pub(super) fn read(persona: Option<&Value>, rules: Rules) -> Self {
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
            rules,
            autonomy_tier: text("autonomy_tier").or_else(|| match rules {
                Rules::Repeatable => Some("act_auto".to_owned()),
                Rules::ReadOnly
                | Rules::Contracts
                | Rules::Together
                | Rules::Listed
                | Rules::Counted => None,
            }),
            model: object("model"),
            tools,
            remembers: match text("memory").as_deref() {
                Some("session") => MemorySource::Session,
                Some("field") => MemorySource::Field,
                _ => MemorySource::Nothing,
            },
            limits: object("limits"),
        }
    }

    /// Returns what becomes of a call of a tool that is not on the persona's list (AP-PERS-03).
    pub(super) fn unlisted(&self, name: &str) -> (bool, String) {
        match self.rules {
            Rules::Repeatable | Rules::ReadOnly | Rules::Contracts | Rules::Together => {
                (false, format!("there is no tool `{name}`"))
            }
            Rules::Listed | Rules::Counted => (true, format!("the persona lists no tool `{name}`")),
        }
    }

    /// Returns what the tier says to the use of a tool.
    pub(super) fn judge(&self, repeatable: bool, read_only: bool) -> Verdict {
        let harmless = match self.rules {
            Rules::Repeatable => repeatable,
            Rules::ReadOnly
            | Rules::Contracts
            | Rules::Together
            | Rules::Listed
            | Rules::Counted => read_only,
        };
        match (self.autonomy_tier.as_deref(), self.rules) {
            (Some("shadow" | "suggest" | "act_with_approval"), _) if harmless => Verdict::Acts,
            (Some(tier @ ("shadow" | "suggest")), _) => Verdict::Denied(format!(
                "the tier `{tier}` does not let the agent use tools that change something"
            )),
            (Some("act_with_approval"), _) => Verdict::Asks,
            (Some("act_auto"), _) | (_, Rules::Repeatable) => Verdict::Acts,
            (
                Some(tier),
                Rules::ReadOnly
                | Rules::Contracts
                | Rules::Together
                | Rules::Listed
                | Rules::Counted,
            ) => Verdict::Denied(format!(
                "the tier `{tier}` is unknown, so the agent uses no tools"
            )),
            (
                None,
                Rules::ReadOnly
                | Rules::Contracts
                | Rules::Together
                | Rules::Listed
                | Rules::Counted,
            ) => Verdict::Denied("the persona has no tier, so the agent uses no tools".to_owned()),
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn judged(rules: Rules, tier: Option<&str>, repeatable: bool, read_only: bool) -> &'static str {
        let persona = json!({"autonomy_tier": tier});
        match Persona::read(Some(&persona), rules).judge(repeatable, read_only) {
            Verdict::Acts => "acts",
            Verdict::Asks => "asks",
            Verdict::Denied(_) => "denied",
        }
    }

    /// A tool that may be repeated is not one that changes nothing: an idempotent `delete_file` asks.
    #[test]
    fn u22_version_3_asks_unless_the_operator_says_that_a_tool_changes_nothing() {
        let v3 = |tier, repeatable, read_only| judged(Rules::ReadOnly, tier, repeatable, read_only);
        for repeatable in [false, true] {
            for (tier, changes, reads) in [
                (Some("shadow"), "denied", "acts"),
                (Some("suggest"), "denied", "acts"),
                (Some("act_with_approval"), "asks", "acts"),
                (Some("act_auto"), "acts", "acts"),
                (Some("act_always"), "denied", "denied"),
                (Some(""), "denied", "denied"),
                (None, "denied", "denied"),
            ] {
                assert_eq!(v3(tier, repeatable, false), changes, "{tier:?}");
                assert_eq!(v3(tier, repeatable, true), reads, "{tier:?}");
            }
        }
    }

    /// What was recorded under version 2 goes on as it began.
    #[test]
    fn u2_version_2_decides_as_it_did() {
        for read_only in [false, true] {
            for (tier, changes, repeats) in [
                (Some("shadow"), "denied", "acts"),
                (Some("suggest"), "denied", "acts"),
                (Some("act_with_approval"), "asks", "acts"),
                (Some("act_auto"), "acts", "acts"),
                (Some("act_always"), "acts", "acts"),
                (None, "acts", "acts"),
            ] {
                let v2 = |repeatable| judged(Rules::Repeatable, tier, repeatable, read_only);
                assert_eq!((v2(false), v2(true)), (changes, repeats), "{tier:?}");
            }
        }
    }
}
