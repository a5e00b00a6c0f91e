//! A prepared request while it waits for its response.
//!
//! Kept is what a verdict can depend on, and that as text: values that are read take a hundred times the room of their text, and a
//! session may prepare many requests before it proposes.

use std::collections::BTreeMap;

use canon::Value;
use contracts::wire::{Wire, view_request};
use contracts::{Compiled, OfferedTool, Request, Response, ToolChoice};
use domain::{Preflight, RulesVersion};

use super::request_form::RequestForm;

/// What rules see of a request, as text.
#[derive(Debug)]
pub(super) enum RequestText {
    /// It is seen as it was given.
    Given(Box<str>),
    /// The body of a request, and the names of its tools as a list.
    Body {
        wire: Wire,
        body: Box<[u8]>,
        tools: Box<str>,
    },
    /// What a wrapped client has read; system texts among its messages count.
    View(Box<str>),
    /// Nothing: rules that look at it were refused.
    Nothing,
}

impl RequestText {
    pub(super) fn of(rules_version: RulesVersion, asked: &Preflight) -> Self {
        match rules_version < RulesVersion::Requests {
            true => Self::given(asked),
            false => RequestForm::of(asked).text(rules_version, asked),
        }
    }

    pub(super) fn given(asked: &Preflight) -> Self {
        Self::Given(given(asked))
    }

    pub(super) fn view_of(asked: &Preflight) -> Self {
        Self::View(given(asked))
    }

    /// Returns what rules see.
    pub(super) fn view(&self) -> contracts::Value {
        match self {
            Self::Given(text) => read(text).unwrap_or(contracts::Value::Null),
            Self::Nothing => contracts::Value::Null,
            Self::View(given) => {
                let mut view = read(given).unwrap_or(contracts::Value::Null);
                if let contracts::Value::Object(members) = &mut view {
                    add_system(
                        members,
                        view_request(Wire::OpenAiChat, given.as_bytes()).view,
                    );
                }
                view
            }
            Self::Body { wire, body, tools } => {
                let mut view = view_request(*wire, body).view;
                if let contracts::Value::Object(members) = &mut view {
                    let tools = read(tools).unwrap_or(contracts::Value::Null);
                    members.insert("tools".to_owned(), tools);
                }
                view
            }
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Given(text) | Self::View(text) => text.len(),
            Self::Body { body, tools, .. } => body.len() + tools.len(),
            Self::Nothing => 0,
        }
    }
}

/// What is kept of a request.
#[derive(Debug)]
pub(super) struct KeptRequest {
    pub(super) provider: String,
    pub(super) model: String,
    choice: ToolChoice,
    tools: Vec<KeptTool>,
    seen: RequestText,
}

#[derive(Debug)]
struct KeptTool {
    name: Box<str>,
    schema: Option<Box<str>>,
    hosted: bool,
}

impl KeptRequest {
    /// Keeps what the contracts of a session look at.
    pub(super) fn of(
        compiled: &Compiled,
        rules_version: RulesVersion,
        asked: &Preflight,
        choice: ToolChoice,
    ) -> Self {
        let tools = asked.offered_tools.iter().map(|tool| {
            let schema = tool.schema.as_ref();
            let schema = schema.filter(|_| compiled.reads_schema(&tool.name));
            KeptTool {
                name: tool.name.as_str().into(),
                schema: schema.map(|schema| schema.to_string().into()),
                hosted: tool.hosted,
            }
        });
        Self {
            provider: asked.provider.clone(),
            model: asked.model.clone(),
            choice,
            tools: tools.collect(),
            // Not only the contracts of offered tools: a call of another one is told all that is wrong with it.
            seen: match compiled.reads_input() {
                true => RequestText::of(rules_version, asked),
                false => RequestText::Nothing,
            },
        }
    }

    /// Returns the request as a response to it is judged: what no call of the response makes rules look at is left out.
    pub(super) fn judged_with(&self, compiled: &Compiled, response: &Response) -> Request {
        let is_called = |name: &str| response.calls.iter().any(|call| call.name == name);
        let tools = self.tools.iter().map(|tool| OfferedTool {
            name: tool.name.to_string(),
            schema: tool
                .schema
                .as_ref()
                .filter(|_| is_called(&tool.name))
                // Nothing satisfies a schema that cannot be read.
                .map(|text| read(text).unwrap_or(contracts::Value::Bool(false))),
            hosted: tool.hosted,
        });
        let mut calls = response.calls.iter();
        let is_seen = calls.any(|call| compiled.reads_request(&call.name));
        Request {
            provider: self.provider.clone(),
            model: self.model.clone(),
            tools: tools.collect(),
            choice: self.choice.clone(),
            unsupported: None,
            view: match is_seen {
                true => self.seen.view(),
                false => contracts::Value::Null,
            },
        }
    }

    /// Returns about how many bytes it takes in memory.
    pub(super) fn bytes(&self) -> usize {
        let tools = self.tools.iter().map(|tool| {
            let schema = tool.schema.as_ref().map_or(0, |text| text.len());
            size_of::<KeptTool>() + tool.name.len() + schema
        });
        let tools: usize = tools.sum();
        size_of::<Self>() + self.provider.len() + self.model.len() + tools + self.seen.bytes()
    }
}

fn given(asked: &Preflight) -> Box<str> {
    let request = asked.request.as_ref().unwrap_or(&Value::Null);
    request.to_string().into()
}

/// Has `system` tell also the system texts among messages, where it is not these.
///
/// What a client has read does not say in which format it was sent: with `instructions` there may be both.
fn add_system(members: &mut BTreeMap<String, contracts::Value>, as_chat: contracts::Value) {
    let among = match as_chat {
        contracts::Value::Object(mut members) => members.remove("system"),
        _ => None,
    };
    let Some(contracts::Value::String(among)) = among else {
        return;
    };
    let system = match members.get("system") {
        Some(contracts::Value::String(given)) if *given == among => return,
        Some(contracts::Value::String(given)) => format!("{given}\n{among}"),
        _ => among,
    };
    members.insert("system".to_owned(), contracts::Value::String(system));
}

fn read(text: &str) -> Option<contracts::Value> {
    let limits = contracts::json::Limits::MESSAGE;
    contracts::json::read(text, limits, contracts::json::Numbers::Any).ok()
}

#[cfg(test)]
mod tests {
    use canon::Value;
    use serde_json::json;

    use super::super::{Contracts, GovernedSession};

    const UNREAD: &str = "tool: pay\nside_effect: read\nschema_derived: false\n";

    const READ: &str = "tool: pay\nside_effect: read\nschema_derived: false\nassertions: {input_invariants: [{path: \"$.model\", equals: m}]}\n";

    fn begun(contract: &str) -> GovernedSession {
        let files = json!({"files": [{"file": "pay.yaml", "text": contract}]});
        let compiled = Contracts::compile(&serde_json::from_value(files.clone()).unwrap());
        let start = json!({"session_id": "s", "at": "2026-01-01T00:00:00Z", "telling": "requests",
            "sha256": compiled.unwrap().digest(), "contracts": files, "options": {"sessionId": "s"}});
        GovernedSession::begin(&start).unwrap()
    }

    fn take(session: &mut GovernedSession, actor: &str, operation: Value) -> Value {
        let input = json!({"at": "2026-01-01T00:00:01Z", "actor": actor, "key_id": null,
            "request_id": domain::PermissionId::from_body("1"), "operation": operation});
        let taken = session.take(&serde_json::from_value(input).unwrap());
        taken.answer.unwrap()
    }

    fn prepare(session: &mut GovernedSession, request: Value, schema: Value) -> Value {
        let tools = json!([{"name": "pay", "schema": schema}]);
        let preflight = json!({"name": "preflight", "expected_state_version": 0, "offered_tools": tools,
            "request_digest": null, "provider": "openai", "model": "m", "request": request});
        take(session, "ann", preflight)["prepared_request_id"].take()
    }

    fn propose(session: &mut GovernedSession, prepared: &Value, arguments: &str) -> Value {
        let propose = json!({"name": "propose", "prepared_request_id": prepared, "finish_reason": "tool_calls",
            "content_digest": null, "usage": null,
            "tool_calls": [{"id": "c", "name": "pay", "arguments": arguments}]});
        take(session, "ann", propose)
    }

    fn held(session: &GovernedSession) -> usize {
        let prepared = session.prepared.values();
        prepared.map(|prepared| prepared.request.bytes()).sum()
    }

    #[test]
    fn of_a_request_is_kept_what_rules_look_at_and_that_as_text() {
        let many = Value::Array(vec![json!({"": 1}); 50_000]);
        let request = json!({"messages": many.clone()});
        let sent = request.to_string().len();

        let mut session = begun(UNREAD);
        prepare(&mut session, request.clone(), json!({"enum": many}));
        assert!(held(&session) < 1_000, "{}", held(&session));

        let mut session = begun(READ);
        let prepared = prepare(&mut session, request, json!({"enum": many}));
        assert!(
            held(&session) < sent + 1_000,
            "{} of {sent}",
            held(&session)
        );
        let answer = propose(&mut session, &prepared, "{}");
        assert_eq!(answer["status"], "allowed", "{answer}");
    }

    #[test]
    fn a_request_that_is_read_again_is_judged_as_it_was_sent() {
        let contract = "tool: pay\nside_effect: read\ncheckpoint: {reason: asked}\nassertions:\n  input_invariants:\n    \
                        - {path: \"$.system\", equals: desk}\n    \
                        - {path: \"$.messages[1].n\", equals: 0.1}\n    \
                        - {path: \"$.messages[1].m\", equals: 9007199254740991}\n    \
                        - {path: \"$.tools\", equals: [pay, \"o\\\"\\u00e9\"]}\n";
        let schema =
            json!({"type": "object", "properties": {"n": {"type": "integer", "maximum": 3}}});
        let request = |system: &str| {
            let tools = json!([{"type": "function", "function": {"name": "pay", "parameters": schema}},
                {"type": "function", "function": {"name": "o\"é"}}]);
            json!({"model": "m", "tools": tools, "messages": [{"role": "system", "content": system},
                {"role": "user", "content": "x", "n": 0.1, "m": 9_007_199_254_740_991_u64}]})
        };
        let proposed = |system: &str, arguments: &str| {
            let mut session = begun(contract);
            let prepared = prepare(&mut session, request(system), schema.clone());
            let answer = propose(&mut session, &prepared, arguments);
            (session, answer)
        };
        for (system, arguments, reason) in [
            ("evil", r#"{"n":3}"#, "input_invariant_failed"),
            ("desk", r#"{"n":4}"#, "argument_value_mismatch"),
        ] {
            let (_, answer) = proposed(system, arguments);
            let verdict = &answer["verdicts"][0];
            assert_eq!(verdict["all_reasons"], json!([reason]), "{answer}");
        }
        let (mut session, asked) = proposed("desk", r#"{"n":3}"#);
        assert_eq!(asked["status"], "pending_approval", "{asked}");
        let decide = json!({"name": "decide", "proposal_id": asked["proposal_id"], "approve": true,
            "decided_by": "bea", "reason": null});
        let decided = take(&mut session, "bea", decide);
        assert_eq!(decided["status"], "approved", "{decided}");
    }

    #[test]
    fn prepared_requests_are_bounded_together() {
        let at = domain::Timestamp::parse("2026-01-01T00:00:01Z").unwrap();
        let request = json!({"messages": [{"role": "user", "content": "x".repeat(6 << 20)}]});
        let mut session = begun(READ);
        let first = prepare(&mut session, request.clone(), json!({}));
        prepare(&mut session, request.clone(), json!({}));
        session.room_left(at).unwrap();
        prepare(&mut session, request, json!({}));
        let refused = session.room_left(at).unwrap_err();
        assert_eq!(
            (refused.status, refused.code.as_ref()),
            (429, "too_many_prepared")
        );

        propose(&mut session, &first, "{}");
        session.room_left(at).unwrap();
    }

    /// Proposes a call of a tool that was offered as one that the provider runs.
    fn hosted(rules_version: &str, contract: &str, unmatched: &str) -> (Value, Value) {
        let tool = contract.lines().next().unwrap().replace("tool: ", "");
        let files = json!({"files": [{"file": format!("{tool}.yaml"), "text": contract}]});
        let compiled = Contracts::compile(&serde_json::from_value(files.clone()).unwrap());
        let start = json!({"session_id": "s", "at": "2026-01-01T00:00:00Z", "telling": rules_version,
            "sha256": compiled.unwrap().digest(), "contracts": files,
            "options": {"sessionId": "s", "unmatchedPolicy": unmatched}});
        let mut session = GovernedSession::begin(&start).unwrap();
        let preflight = json!({"name": "preflight", "expected_state_version": 0,
            "offered_tools": [{"name": "pay", "hosted": true}],
            "request_digest": null, "provider": "openai", "model": "m"});
        let prepared = take(&mut session, "ann", preflight);
        let proposed = propose(
            &mut session,
            &prepared["prepared_request_id"],
            r#"{"any":1}"#,
        );
        (prepared["removed"][0]["reason"].clone(), proposed)
    }

    #[test]
    fn a_call_of_a_tool_that_was_removed_because_the_provider_runs_it_is_blocked() {
        let closed = "tool: pay\nside_effect: financial\n";
        let read = "tool: pay\nside_effect: read\ngate: allow\ncheckpoint: {reason: asked}\n";
        let other = "tool: other\nside_effect: read\n";
        for (contract, removed, reason) in [
            (closed, "risk_gate", "risk_gate_blocked"),
            (read, "risk_gate", "risk_gate_blocked"),
            (other, "no_contract", "unmatched_tool_blocked"),
        ] {
            let (was, answer) = hosted("removals", contract, "allow");
            assert_eq!(was, removed, "{contract}");
            assert_eq!(answer["status"], "blocked", "{answer}");
            assert_eq!(
                answer["verdicts"][0]["all_reasons"],
                json!([reason]),
                "{answer}"
            );
        }
        let open = "tool: pay\nside_effect: read\ngate: allow\n";
        let (was, answer) = hosted("removals", open, "allow");
        assert_eq!((was, &answer["status"]), (Value::Null, &json!("allowed")));
    }

    #[test]
    fn u2_a_session_on_record_judges_calls_of_hosted_tools_as_it_did() {
        let (was, answer) = hosted("requests", "tool: pay\nside_effect: financial\n", "block");
        assert_eq!(
            (was, &answer["status"]),
            (json!("risk_gate"), &json!("allowed"))
        );
    }

    /// The verdict on a request that a wrapped client has read.
    fn viewed(rules_version: &str, demanded: &str, system: Value, messages: Value) -> Value {
        let contract = format!(
            "tool: pay\nside_effect: read\nschema_derived: false\nassertions: {{input_invariants: [{{path: \"$.system\", {demanded}}}]}}\n"
        );
        let files = json!({"files": [{"file": "pay.yaml", "text": contract}]});
        let compiled = Contracts::compile(&serde_json::from_value(files.clone()).unwrap());
        let start = json!({"session_id": "s", "at": "2026-01-01T00:00:00Z", "telling": rules_version,
            "sha256": compiled.unwrap().digest(), "contracts": files, "options": {"sessionId": "s"}});
        let mut session = GovernedSession::begin(&start).unwrap();
        let request = json!({"provider": "openai", "model": "m", "system": system, "messages": messages, "tools": ["pay"]});
        let prepared = prepare(&mut session, request, json!({}));
        propose(&mut session, &prepared, "{}")["status"].take()
    }

    #[test]
    fn a_system_text_among_messages_counts_whatever_the_client_says_it_has_read() {
        let user = json!({"role": "user", "content": "hello"});
        let system = |role: &str, text: &str| json!([{"role": role, "content": [{"type": "text", "text": text}]}, user]);
        let desk = "equals: desk";
        for version in ["requests", "removals"] {
            // As a client sends it for chat, for `instructions` and for Anthropic.
            assert_eq!(
                viewed(version, desk, "desk".into(), system("system", "desk")),
                "allowed"
            );
            assert_eq!(
                viewed(version, desk, "desk".into(), json!([user])),
                "allowed"
            );
            assert_eq!(
                viewed(version, desk, "evil".into(), json!([user])),
                "blocked"
            );
        }
        for role in ["system", "developer"] {
            assert_eq!(
                viewed("requests", desk, "desk".into(), system(role, "evil")),
                "allowed"
            );
            assert_eq!(
                viewed("removals", desk, "desk".into(), system(role, "evil")),
                "blocked"
            );
            let none = "type: \"null\"";
            assert_eq!(
                viewed("requests", none, Value::Null, system(role, "evil")),
                "allowed"
            );
            assert_eq!(
                viewed("removals", none, Value::Null, system(role, "evil")),
                "blocked"
            );
        }
        assert_eq!(
            viewed(
                "removals",
                "contains: evil",
                "desk".into(),
                system("system", "evil")
            ),
            "allowed"
        );
    }
}
