//! How a program hands in the request that it is about to send: as its provider reads it, or as rules see it.

use canon::{Map, Value};
use contracts::wire::{Wire, view_request};
use domain::{Preflight, RulesVersion};

use super::kept_request::RequestText;

/// The form of a request that was handed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestForm {
    /// None was.
    Nothing,
    /// `{ provider, model, system, messages, tools }`: a wrapped client has read it already.
    View,
    /// The body of a request.
    Body(Wire),
    /// The body of a request to a provider that nobody knows.
    Unknown,
}

const VIEW: [&str; 5] = ["provider", "model", "system", "messages", "tools"];

impl RequestForm {
    pub(super) fn of(asked: &Preflight) -> Self {
        let Some(request) = asked.request.as_ref().and_then(Value::as_object) else {
            return Self::Nothing;
        };
        let tools = request.get("tools").and_then(Value::as_array);
        let are_names = tools.is_none_or(|tools| tools.iter().all(Value::is_string));
        if request.len() == VIEW.len()
            && VIEW.iter().all(|name| request.contains_key(*name))
            && are_names
        {
            return Self::View;
        }
        let is = |name: &str| asked.provider.eq_ignore_ascii_case(name);
        match request.contains_key("input") && !request.contains_key("messages") {
            _ if is("anthropic") => Self::Body(Wire::AnthropicMessages),
            true if is("openai") => Self::Body(Wire::OpenAiResponses),
            false if is("openai") => Self::Body(Wire::OpenAiChat),
            _ => Self::Unknown,
        }
    }

    /// Returns what rules see of it.
    pub(super) fn text(self, rules_version: RulesVersion, asked: &Preflight) -> RequestText {
        let wire = match self {
            Self::Nothing => return RequestText::given(asked),
            Self::View if rules_version < RulesVersion::Removals => {
                return RequestText::given(asked);
            }
            Self::View => return RequestText::view_of(asked),
            Self::Body(wire) => wire,
            // Rules that look at it were refused; nothing else reads it.
            Self::Unknown => return RequestText::Nothing,
        };
        let request = asked.request.as_ref();
        let tools = request.and_then(|request| request.get("tools")?.as_array());
        let offered = asked.offered_tools.iter();
        let names: Value = match tools {
            Some(tools) => tools.iter().filter_map(name_of).collect(),
            None => offered.map(|tool| tool.name.as_str()).collect(),
        };
        RequestText::Body {
            wire,
            body: body(wire, asked, None).into(),
            tools: names.to_string().into(),
        }
    }

    /// Names something in it that cannot be judged.
    pub(super) fn unsupported(self, asked: &Preflight) -> Option<String> {
        let Self::Body(wire) = self else {
            return None;
        };
        // What another format calls by this name may be read by somebody, and rules do not see it.
        let foreign: &[&str] = match wire {
            Wire::OpenAiChat => &["input", "instructions"],
            Wire::OpenAiResponses => &[],
            Wire::AnthropicMessages => &["input", "instructions"],
        };
        let request = asked.request.as_ref()?;
        if let Some(name) = foreign.iter().find(|name| request.get(**name).is_some()) {
            return Some((*name).to_owned());
        }
        if let Some(member) = view_request(wire, &body(wire, asked, None)).unsupported {
            return Some(member);
        }
        let tools = request.get("tools").filter(|tools| !tools.is_null())?;
        let Some(tools) = tools.as_array() else {
            return Some("tools".to_owned());
        };
        tools.iter().find_map(|tool| match tool.is_string() {
            true => None,
            false => unsupported_tool(wire, asked, tool),
        })
    }
}

/// Names a tool that nobody can judge: one that the provider runs and that is not offered as such, or one without a name.
fn unsupported_tool(wire: Wire, asked: &Preflight, tool: &Value) -> Option<String> {
    let alone = view_request(wire, &body(wire, asked, Some(tool)));
    // Tools are taken in the form of any provider.
    if alone.unsupported.is_some() {
        let is_named = plain_name(tool).is_some();
        return (!is_named).then(|| "tools".to_owned());
    }
    let is_offered = |name: &String| {
        let mut offered = asked.offered_tools.iter();
        offered.any(|tool| tool.hosted && tool.name == *name)
    };
    let mut hosted = alone.hosted.iter();
    let unknown = hosted.find(|name| !is_offered(name))?;
    Some(format!(
        "tools: {unknown} (the provider runs it, and `offered_tools` does not have it as `hosted`)"
    ))
}

fn name_of(tool: &Value) -> Option<&str> {
    let kind = || tool.get("type").and_then(Value::as_str);
    tool.as_str().or_else(|| plain_name(tool)).or_else(kind)
}

fn plain_name(tool: &Value) -> Option<&str> {
    let inner = ["function", "custom"]
        .into_iter()
        .filter_map(|form| tool.get(form));
    let mut forms = std::iter::once(tool).chain(inner);
    forms.find_map(|form| form.get("name")?.as_str())
}

/// The body as it would be sent, with one tool or none: what the preflight states beside it need not stand in it.
fn body(wire: Wire, asked: &Preflight, tool: Option<&Value>) -> Vec<u8> {
    let request = asked.request.as_ref().and_then(Value::as_object);
    let mut body: Map<String, Value> = request.cloned().unwrap_or_default();
    body.retain(|name, value| {
        !value.is_null() && !["tools", "tool_choice"].contains(&name.as_str())
    });
    if let Some(tool) = tool {
        body.insert("tools".to_owned(), Value::Array(vec![tool.clone()]));
    }
    body.entry("model")
        .or_insert_with(|| asked.model.as_str().into());
    if wire != Wire::OpenAiResponses {
        body.entry("messages")
            .or_insert_with(|| Value::Array(Vec::new()));
    }
    Value::Object(body).to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use canon::Value;
    use serde_json::json;

    use super::super::{Contracts, GovernedSession};

    /// Begins a session, proposes a call with a text, and returns its verdict.
    fn verdict(contract: &str, rules_version: &str, text: &str) -> Value {
        let files = json!({"files": [{"file": "pay.yaml", "text": contract}]});
        let compiled = Contracts::compile_recorded(&serde_json::from_value(files.clone()).unwrap());
        let start = json!({"session_id": "s", "at": "2026-01-01T00:00:00Z", "telling": rules_version,
            "sha256": compiled.unwrap().digest(), "contracts": files, "options": {"sessionId": "s"}});
        let mut session = GovernedSession::begin(&start).unwrap();
        let request =
            json!({"system": "desk", "messages": [{"role": "system", "content": "evil"}]});
        let operations = [
            json!({"name": "preflight", "expected_state_version": 0, "offered_tools": [{"name": "pay"}],
                "request_digest": null, "provider": "openai", "model": "m", "request": request}),
            json!({"name": "propose", "prepared_request_id": "prepared_1", "finish_reason": "tool_calls",
                "content_digest": null, "usage": null,
                "tool_calls": [{"id": "c", "name": "pay", "arguments": json!({"x": text}).to_string()}]}),
        ];
        let answers = operations.map(|operation| {
            let input = json!({"at": "2026-01-01T00:00:01Z", "actor": "ann", "key_id": null,
                "request_id": domain::PermissionId::from_body("1"), "operation": operation});
            let taken = session.take(&serde_json::from_value(input).unwrap());
            taken.answer.unwrap()
        });
        answers[1]["verdicts"][0].clone()
    }

    #[test]
    fn u2_a_session_on_record_is_judged_by_what_it_saw_and_without_a_bound() {
        let seen = "tool: pay\nside_effect: read\nassertions: {input_invariants: [{path: \"$.system\", equals: desk}]}\n";
        assert_eq!(verdict(seen, "things", "")["verdict"], "allow");
        assert_eq!(
            verdict(seen, "requests", "")["reason"],
            "input_invariant_failed"
        );

        let long = "tool: pay\nside_effect: read\nargument_value_invariants: [{path: \"$.x\", regex: \"b[ab]{480}$\"}]\n";
        let text = "ab".repeat(30_000);
        assert_eq!(verdict(long, "things", &text)["verdict"], "allow");
        assert_eq!(verdict(long, "requests", &text)["detail"], "too_costly");

        let mut large = "tool: pay\nside_effect: read\nargument_value_invariants:\n".to_owned();
        for index in 0..50 {
            large.push_str(&format!(
                "  - {{path: \"$.y\", when_present: true, regex: \"\\\\w{{20}}{index}\"}}\n"
            ));
        }
        let files = json!({"files": [{"file": "pay.yaml", "text": large}]});
        assert!(Contracts::compile(&serde_json::from_value(files).unwrap()).is_err());
        assert_eq!(verdict(&large, "things", "")["verdict"], "allow");
    }
}
