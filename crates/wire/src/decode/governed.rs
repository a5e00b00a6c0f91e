//! Bodies about governed sessions. Unknown members are ignored, as everywhere, but where one would be a rule that is silently
//! missing: in new sessions and workflows, preflights, proposals, decisions, reports, heartbeats and handoffs. Sizes are those of
//! the contracts.

use std::collections::BTreeSet;

use canon::{Digest, Map, Value};
use domain::{
    ContractText, Decide, Govern, GovernedFiles, GovernedOperation, NewGoverned, Preflight,
    Proposal, ProposalUsage, ProposedTool, Report, ReportedOutcome, Request, StartedCall,
    ToolOffer, WorkspaceId, is_governed_id,
};

use serde_json::json;

use super::{DecodeInput, Members, NAME_BYTES_MAX, TEXT_BYTES_MAX};
use crate::InputError;

/// Ids, digests and times of a program.
pub(crate) const WORD_BYTES_MAX: usize = 256;
pub(crate) const TOOL_BYTES_MAX: usize = 128;
pub(crate) const TOOLS_MAX: usize = 1_024;
pub(crate) const CALLS_MAX: usize = 128;
/// The longest response that is judged.
const RESPONSE_BYTES_MAX: usize = 16 << 20;
const ARGUMENTS_BYTES_MAX: usize = 1 << 20;
pub(crate) const FILE_BYTES_MAX: usize = 256 * 1024;
pub(crate) const FILES_MAX: usize = 1_000;
pub(crate) const FILE_NAME_BYTES_MAX: usize = 1_024;
pub(crate) const CAPTURES_MAX: usize = 1_000;

/// What providers call the schema of a tool's parameters.
const SCHEMAS: [&str; 4] = ["schema", "parameters", "input_schema", "inputSchema"];

pub(crate) const OUTCOMES: [&str; 4] = ["success", "expected_error", "error", "unknown"];
pub(crate) const DECISIONS: [&str; 2] = ["approve", "deny"];
pub(crate) const MODES: [&str; 3] = ["enforce", "shadow", "log-only"];
pub(crate) const GATES: [&str; 3] = ["reject_all", "strip_partial", "strip_blocked"];
pub(crate) const PERMISSIONS: [&str; 2] = ["block", "allow"];
pub(crate) const LEVELS: [&str; 3] = ["metadata", "redacted", "full"];

const SESSION_MEMBERS: [&str; 14] = [
    "session_id",
    "workspace_id",
    "agent",
    "compiled_digest",
    "contracts",
    "principal",
    "mode",
    "gate",
    "unmatched_policy",
    "capture_level",
    "labels",
    "provider_constraints",
    "pricing",
    "workflow",
];
const PREFLIGHT_MEMBERS: [&str; 7] = [
    "expected_state_version",
    "offered_tools",
    "request_digest",
    "provider",
    "model",
    "forced_tool",
    "request",
];
const REPORT_MEMBERS: [&str; 9] = [
    "proposal_id",
    "call_id",
    "arguments_digest",
    "outcome",
    "output_fields",
    "output_digest",
    "started_at",
    "ended_at",
    "error_code",
];
const CALL_MEMBERS: [&str; 3] = ["id", "name", "arguments"];
const USAGE_MEMBERS: [&str; 8] = [
    "input",
    "output",
    "cache_read",
    "cache_write",
    "input_tokens",
    "output_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
];
const PROPOSAL_MEMBERS: [&str; 6] = [
    "prepared_request_id",
    "finish_reason",
    "content_digest",
    "content",
    "tool_calls",
    "usage",
];

/// Refuses members that are not known, where one that is misspelt would weaken what is asked for.
pub(super) fn refuse_unknown(members: &Members<'_>, known: &[&str]) -> Result<(), InputError> {
    let mut names = members.map().keys();
    match names.find(|name| !known.contains(&name.as_str())) {
        None => Ok(()),
        Some(name) => Err(members.wrong(name, "is not a member of this request")),
    }
}

/// Reads a new session.
///
/// # Errors
/// Names the member that is wrong.
pub fn create_governed(incoming: &DecodeInput<'_>) -> Result<Request, InputError> {
    let members = incoming.members();
    refuse_unknown(&members, &SESSION_MEMBERS)?;
    let session_id = members.string_or_null("session_id", WORD_BYTES_MAX)?;
    if session_id.as_deref().is_some_and(|id| !is_governed_id(id)) {
        let message = "has 1 to 128 letters, digits, `.`, `_`, `:`, `-`";
        return Err(members.wrong("session_id", message));
    }
    let mut options = Map::new();
    let mut set = |name: &str, value: Option<String>| {
        options.extend(value.map(|value| (name.to_owned(), value.into())));
    };
    set("agent", members.string_or_null("agent", NAME_BYTES_MAX)?);
    set("mode", members.word_or_null("mode", &MODES)?);
    set("gate", members.word_or_null("gate", &GATES)?);
    set(
        "unmatchedPolicy",
        members.word_or_null("unmatched_policy", &PERMISSIONS)?,
    );
    set(
        "captureLevel",
        members.word_or_null("capture_level", &LEVELS)?,
    );
    if let Some(labels) = members.strings("labels", TOOLS_MAX, WORD_BYTES_MAX)? {
        options.insert("labels".to_owned(), labels.into());
    }
    for (member, option) in [
        ("provider_constraints", "providerConstraints"),
        ("pricing", "pricing"),
    ] {
        if let Some(value) = members.object(member)? {
            options.insert(option.to_owned(), Value::Object(value.clone()));
        }
    }
    let mut unknown_members = Vec::new();
    let contracts = files(&members, &mut unknown_members)?;
    Ok(Request::Govern(Govern::Open(Box::new(NewGoverned {
        session_id,
        workspace_id: members.id("workspace_id", WorkspaceId::OBJECT, WorkspaceId::parse)?,
        compiled_digest: digest(&members, "compiled_digest")?,
        contracts,
        unknown_members,
        principal: members.map().get("principal").cloned(),
        options,
        workflow: super::workflow::place(&members)?,
    }))))
}

/// Contracts travel as `{ "contracts": [file …], "session": file? }`, a file being `{ "file", "text" }`. A member beside these
/// would be a rule that is silently missing: the session is refused, with all of them named.
fn files(
    members: &Members<'_>,
    unknown: &mut Vec<String>,
) -> Result<Option<GovernedFiles>, InputError> {
    let Some(Value::Object(given)) = members.map().get("contracts") else {
        return match members.map().get("contracts") {
            None | Some(Value::Null) => Ok(None),
            Some(_) => Err(members.wrong("contracts", "must be an object")),
        };
    };
    let inner = Members::at(given, members.param("contracts"));
    note_unknown(&inner, &["contracts", "session"], unknown);
    let mut file = |value: &Value, place: String| file(value, place, unknown);
    let listed = many(&inner, "contracts", FILES_MAX)?;
    let listed = listed.iter().enumerate();
    let listed = listed.map(|(index, item)| file(item, inner.param(&format!("contracts.{index}"))));
    let session = given.get("session").filter(|value| !value.is_null());
    Ok(Some(GovernedFiles {
        files: listed.collect::<Result<_, _>>()?,
        session: session
            .map(|value| file(value, inner.param("session")))
            .transpose()?,
    }))
}

/// Reads a file, and notes members that files do not have.
pub(super) fn file(
    value: &Value,
    place: String,
    unknown: &mut Vec<String>,
) -> Result<ContractText, InputError> {
    let file = Members::within(value, place)?;
    note_unknown(&file, &["file", "text"], unknown);
    let text = file.required_string("text", usize::MAX)?;
    if text.len() > FILE_BYTES_MAX {
        return Err(InputError::TooLarge {
            param: file.param("text"),
            message: format!("is longer than {FILE_BYTES_MAX} bytes"),
        });
    }
    let name = file.required_string("file", FILE_NAME_BYTES_MAX)?;
    // Findings and decisions show it to people.
    if name.is_empty()
        || name
            .chars()
            .any(|char| char.is_control() || is_hidden(char))
    {
        let message = "must consist of visible characters";
        return Err(file.wrong("file", message));
    }
    Ok(ContractText { file: name, text })
}

/// Characters that change how those around them are shown.
fn is_hidden(char: char) -> bool {
    matches!(char, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

fn note_unknown(members: &Members<'_>, known: &[&str], unknown: &mut Vec<String>) {
    let others = members.map().keys();
    let others = others.filter(|name| !known.contains(&name.as_str()));
    unknown.extend(others.map(|name| members.param(name)));
}

pub(super) fn digest(members: &Members<'_>, name: &str) -> Result<Option<Digest>, InputError> {
    let Some(text) = members.string_or_null(name, WORD_BYTES_MAX)? else {
        return Ok(None);
    };
    // Programs also write digests without the name of their function.
    let whole = match text.contains(':') {
        true => text,
        false => format!("sha256:{text}"),
    };
    match Digest::parse(&whole) {
        Ok(digest) => Ok(Some(digest)),
        Err(_) => Err(members.wrong(name, "must be a SHA-256 digest")),
    }
}

pub(super) fn session_operation(
    incoming: &DecodeInput<'_>,
    operation: GovernedOperation,
) -> Request {
    Request::Govern(Govern::Do {
        session: incoming.param("session_id").unwrap_or_default().to_owned(),
        workspace_id: None,
        operation: Box::new(operation),
    })
}

/// Reads a request that is to be bound to the state.
///
/// # Errors
/// Names the member that is wrong.
pub fn preflight(incoming: &DecodeInput<'_>) -> Result<Request, InputError> {
    let members = incoming.members();
    refuse_unknown(&members, &PREFLIGHT_MEMBERS)?;
    let tools = many(&members, "offered_tools", TOOLS_MAX)?;
    let request = members
        .map()
        .get("request")
        .filter(|given| !given.is_null());
    if request.is_some_and(|request| !request.is_object()) {
        return Err(members.wrong("request", "must be an object"));
    }
    named_once(request)?;
    let mut names = BTreeSet::new();
    let tools = tools.iter().enumerate().map(|(index, item)| {
        let place = members.param(&format!("offered_tools.{index}"));
        let mut tool = offered(item, place.clone())?;
        if !names.insert(tool.name.clone()) {
            let message = format!("`{}` is offered twice", tool.name);
            return Err(InputError::invalid(place, message));
        }
        let mut schemas: Vec<Value> = forms_of(item).flat_map(schemas_of).collect();
        schemas.extend(schemas_in(request, &tool.name));
        // A tool is offered with one schema: of two, the weaker one might be checked.
        let mut pairs = schemas.windows(2);
        if pairs.any(|pair| pair.first().map(canon::jcs) != pair.last().map(canon::jcs)) {
            let message = format!("`{}` is offered with two schemas", tool.name);
            return Err(InputError::invalid(place, message));
        }
        tool.schema = schemas.into_iter().next();
        Ok(tool)
    });
    let preflight = Preflight {
        expected_state_version: members.required_count("expected_state_version")?,
        offered_tools: tools.collect::<Result<_, _>>()?,
        request_digest: members.string_or_null("request_digest", WORD_BYTES_MAX)?,
        provider: members.required_string("provider", NAME_BYTES_MAX)?,
        model: members.required_string("model", NAME_BYTES_MAX)?,
        forced_tool: members.string_or_null("forced_tool", TOOL_BYTES_MAX)?,
        request: request.cloned(),
    };
    Ok(session_operation(
        incoming,
        GovernedOperation::Preflight(preflight),
    ))
}

/// Finds the schemas of a tool in the request of a model provider: a function of OpenAI, a tool of Anthropic or MCP. A tool that
/// stands there without one is known to have none.
fn schemas_in(request: Option<&Value>, name: &str) -> Vec<Value> {
    let tools = request.and_then(|request| request.get("tools")?.as_array());
    let tools = tools.into_iter().flatten();
    let schemas = tools.flat_map(|tool| {
        if !forms_of(tool).any(|form| name_of(form) == Some(name)) {
            return Vec::new();
        }
        let schemas: Vec<Value> = forms_of(tool).flat_map(schemas_of).collect();
        match schemas.is_empty() {
            true => vec![json!({})],
            false => schemas,
        }
    });
    schemas.collect()
}

/// The forms in which a tool may be read: an entry that has both is read in both.
fn forms_of(tool: &Value) -> impl Iterator<Item = &Value> {
    [Some(tool), tool.get("function")].into_iter().flatten()
}

fn name_of(tool: &Value) -> Option<&str> {
    tool.get("name").and_then(Value::as_str)
}

/// Refuses a tool of a request that has two names: each reader would take another one.
fn named_once(request: Option<&Value>) -> Result<(), InputError> {
    let tools = request.and_then(|request| request.get("tools")?.as_array());
    for (index, tool) in tools.into_iter().flatten().enumerate() {
        let function = tool.get("function").and_then(name_of);
        if let (Some(outer), Some(inner)) = (name_of(tool), function)
            && outer != inner
        {
            let message = format!("one tool has two names, `{outer}` and `{inner}`");
            return Err(InputError::invalid(
                format!("request.tools.{index}"),
                message,
            ));
        }
    }
    Ok(())
}

/// A schema that is null is known to be missing: it demands nothing.
fn schemas_of(tool: &Value) -> Vec<Value> {
    let found = SCHEMAS.iter().filter_map(|member| tool.get(*member));
    let found = found.map(|schema| match schema {
        Value::Null => json!({}),
        schema => schema.clone(),
    });
    found.collect()
}

fn offered(item: &Value, place: String) -> Result<ToolOffer, InputError> {
    match item {
        Value::String(name) => Ok(ToolOffer {
            name: name.clone(),
            schema: None,
            hosted: false,
        }),
        Value::Object(map) => {
            let tool = Members::at(map, place);
            Ok(ToolOffer {
                name: tool.required_string("name", WORD_BYTES_MAX)?,
                schema: None,
                hosted: tool.boolean("hosted")?.unwrap_or_default(),
            })
        }
        _ => Err(InputError::invalid(place, "must be a name or an object")),
    }
}

/// Reads a list whose length the contracts bound.
fn many<'a>(members: &Members<'a>, name: &str, len_max: usize) -> Result<&'a [Value], InputError> {
    let items = members.array(name, usize::MAX)?.unwrap_or_default();
    match items.len() <= len_max {
        true => Ok(items),
        false => Err(InputError::TooLarge {
            param: members.param(name),
            message: format!("has more than {len_max} items"),
        }),
    }
}

/// Reads a response that is to be judged.
///
/// # Errors
/// Names the member that is wrong.
pub fn propose(incoming: &DecodeInput<'_>) -> Result<Request, InputError> {
    let members = incoming.members();
    refuse_unknown(&members, &PROPOSAL_MEMBERS)?;
    let calls = many(&members, "tool_calls", CALLS_MAX)?;
    let calls = calls.iter().enumerate().map(|(index, item)| {
        let place = members.param(&format!("tool_calls.{index}"));
        proposed(item, place)
    });
    let content = members.nullable_string("content", usize::MAX)?;
    let content_digest = members.string_or_null("content_digest", WORD_BYTES_MAX)?;
    let proposal = Proposal {
        prepared_request_id: members.required_string("prepared_request_id", WORD_BYTES_MAX)?,
        finish_reason: finish_reason(&members)?.to_owned(),
        without_text: content == Some(None) && content_digest.is_none(),
        content_digest,
        content: content.flatten(),
        tool_calls: calls.collect::<Result<_, _>>()?,
        usage: usage(&members)?,
    };
    let text = proposal.content.as_ref().map_or(0, String::len);
    let calls = proposal.tool_calls.iter();
    let bytes = text + calls.map(|call| call.arguments.len()).sum::<usize>();
    if bytes > RESPONSE_BYTES_MAX {
        return Err(InputError::TooLarge {
            param: members.param("content"),
            message: format!(
                "the response is longer than {RESPONSE_BYTES_MAX} bytes: its text and the arguments of its calls together"
            ),
        });
    }
    Ok(session_operation(
        incoming,
        GovernedOperation::Propose(proposal),
    ))
}

/// Reads why the model stopped, in the words of any provider. A word that nobody knows may mean that the answer is not whole.
fn finish_reason(members: &Members<'_>) -> Result<&'static str, InputError> {
    let Some(word) = members.string_or_null("finish_reason", WORD_BYTES_MAX)? else {
        return Ok("other");
    };
    Ok(match word.to_ascii_lowercase().as_str() {
        "tool_calls" | "function_call" | "tool_use" => "tool_calls",
        "stop" | "end_turn" | "stop_sequence" | "completed" => "stop",
        "length" | "max_tokens" | "max_output_tokens" | "model_context_window_exceeded" => "length",
        "content_filter" | "refusal" => "content_filter",
        "other" | "pause_turn" => "other",
        _ => {
            let message = "is not known: send `tool_calls`, `stop`, `length`, `content_filter`, `other`, or the word of \
                           OpenAI or Anthropic";
            return Err(members.wrong("finish_reason", message));
        }
    })
}

fn proposed(item: &Value, place: String) -> Result<ProposedTool, InputError> {
    let call = Members::within(item, place)?;
    refuse_unknown(&call, &CALL_MEMBERS)?;
    let arguments = match call.map().get("arguments") {
        Some(Value::String(text)) => text.clone(),
        // Whoever parsed them already has lost what a text would show; what is left is written canonically.
        Some(value @ Value::Object(_)) => String::from_utf8_lossy(&canon::jcs(value)).into_owned(),
        None | Some(_) => return Err(call.wrong("arguments", "must be a JSON text or an object")),
    };
    if arguments.len() > ARGUMENTS_BYTES_MAX {
        return Err(InputError::TooLarge {
            param: call.param("arguments"),
            message: format!("is longer than {ARGUMENTS_BYTES_MAX} bytes"),
        });
    }
    Ok(ProposedTool {
        id: call.required_string("id", WORD_BYTES_MAX)?,
        name: call.required_string("name", WORD_BYTES_MAX)?,
        arguments,
    })
}

fn usage(members: &Members<'_>) -> Result<Option<ProposalUsage>, InputError> {
    let Some(Value::Object(given)) = members.map().get("usage") else {
        return match members.map().get("usage") {
            None | Some(Value::Null) => Ok(None),
            Some(_) => Err(members.wrong("usage", "must be an object")),
        };
    };
    let used = Members::at(given, members.param("usage"));
    // What is not understood is not counted, and a limit on costs would not see it.
    refuse_unknown(&used, &USAGE_MEMBERS)?;
    let count = |short: &str, long: &str| match used.count(short)? {
        Some(count) => Ok(Some(count)),
        None => used.count(long),
    };
    let (input, output) = (
        count("input", "input_tokens")?,
        count("output", "output_tokens")?,
    );
    // Half of what was used is not what was used.
    let (Some(input), Some(output)) = (input, output) else {
        return Ok(None);
    };
    Ok(Some(ProposalUsage {
        input,
        output,
        cache_read: count("cache_read", "cache_read_tokens")?.unwrap_or_default(),
        cache_write: count("cache_write", "cache_write_tokens")?.unwrap_or_default(),
    }))
}

/// Reads the report of an execution.
///
/// # Errors
/// Names the member that is wrong.
pub fn report(incoming: &DecodeInput<'_>) -> Result<Request, InputError> {
    let members = incoming.members();
    refuse_unknown(&members, &REPORT_MEMBERS)?;
    let outcome = members.word("outcome", &OUTCOMES, |word| {
        Some(match word {
            "success" => ReportedOutcome::Success,
            "expected_error" => ReportedOutcome::ExpectedError,
            "error" => ReportedOutcome::Error,
            _ => ReportedOutcome::Unknown,
        })
    })?;
    let report = Report {
        proposal_id: members.required_string("proposal_id", WORD_BYTES_MAX)?,
        call_id: members.required_string("call_id", WORD_BYTES_MAX)?,
        arguments_digest: digest(&members, "arguments_digest")?
            .ok_or_else(|| members.missing("arguments_digest"))?,
        outcome: outcome.ok_or_else(|| members.missing("outcome"))?,
        output_fields: match members.map().get("output_fields") {
            None | Some(Value::Null) => Map::new(),
            Some(_) => members
                .object("output_fields")?
                .cloned()
                .unwrap_or_default(),
        },
        output_digest: members.string_or_null("output_digest", WORD_BYTES_MAX)?,
        started_at: members.string_or_null("started_at", WORD_BYTES_MAX)?,
        ended_at: members.string_or_null("ended_at", WORD_BYTES_MAX)?,
        error_code: members.string_or_null("error_code", WORD_BYTES_MAX)?,
    };
    Ok(session_operation(
        incoming,
        GovernedOperation::Report(report),
    ))
}

/// Reads a label.
///
/// # Errors
/// Names the member that is wrong.
pub fn add_label(incoming: &DecodeInput<'_>) -> Result<Request, InputError> {
    let label = incoming
        .members()
        .required_string("label", TEXT_BYTES_MAX)?;
    Ok(session_operation(
        incoming,
        GovernedOperation::AddLabel { label },
    ))
}

/// Reads a manual tool filter; null clears it.
///
/// # Errors
/// Names the member that is wrong.
pub fn set_filter(incoming: &DecodeInput<'_>) -> Result<Request, InputError> {
    let members = incoming.members();
    let tools = match members.map().get("tools") {
        None => return Err(members.missing("tools")),
        Some(Value::Null) => None,
        Some(_) => members.strings("tools", TOOLS_MAX, TOOL_BYTES_MAX)?,
    };
    Ok(session_operation(
        incoming,
        GovernedOperation::SetFilter { tools },
    ))
}

/// Reads the report of a call around the session.
///
/// # Errors
/// Names the member that is wrong.
pub fn report_bypass(incoming: &DecodeInput<'_>) -> Result<Request, InputError> {
    let members = incoming.members();
    let operation = GovernedOperation::ReportBypass {
        detected_at: members.string_or_null("detected_at", WORD_BYTES_MAX)?,
        detail: members.string_or_null("detail", TEXT_BYTES_MAX)?,
    };
    Ok(session_operation(incoming, operation))
}

/// Reads a decision about a proposal.
///
/// # Errors
/// Names the member that is wrong.
pub fn approve(incoming: &DecodeInput<'_>) -> Result<Request, InputError> {
    let members = incoming.members();
    refuse_unknown(&members, &["decision", "decided_by", "reason"])?;
    let approve = members.word("decision", &DECISIONS, |word| Some(word == "approve"))?;
    let decide = Decide {
        proposal_id: incoming.param("proposal_id").unwrap_or_default().to_owned(),
        approve: approve.ok_or_else(|| members.missing("decision"))?,
        decided_by: members.required_string("decided_by", TEXT_BYTES_MAX)?,
        reason: members.string_or_null("reason", TEXT_BYTES_MAX)?,
    };
    Ok(session_operation(
        incoming,
        GovernedOperation::Decide(decide),
    ))
}

/// Reads why a session is stopped for good.
///
/// # Errors
/// Names the member that is wrong.
pub fn kill(incoming: &DecodeInput<'_>) -> Result<Request, InputError> {
    let reason = incoming
        .members()
        .string_or_null("reason", TEXT_BYTES_MAX)?;
    Ok(session_operation(
        incoming,
        GovernedOperation::Kill { reason },
    ))
}

/// Reads which session is ended in order.
///
/// # Errors
/// None: the path says it.
pub fn restore(incoming: &DecodeInput<'_>) -> Result<Request, InputError> {
    Ok(session_operation(incoming, GovernedOperation::Restore))
}

/// Reads a sign of life.
///
/// # Errors
/// Names the member that is wrong.
pub fn heartbeat(incoming: &DecodeInput<'_>) -> Result<Request, InputError> {
    let members = incoming.members();
    refuse_unknown(
        &members,
        &["controlRevision", "control_revision", "started"],
    )?;
    for name in ["controlRevision", "control_revision"] {
        members.count(name)?;
    }
    let started = many(&members, "started", CALLS_MAX)?;
    let started = started.iter().enumerate().map(|(index, item)| {
        let call = Members::within(item, members.param(&format!("started.{index}")))?;
        refuse_unknown(&call, &["proposal_id", "call_id"])?;
        Ok(StartedCall {
            proposal_id: call.required_string("proposal_id", WORD_BYTES_MAX)?,
            call_id: call.required_string("call_id", WORD_BYTES_MAX)?,
        })
    });
    let started = started.collect::<Result<_, _>>()?;
    Ok(session_operation(
        incoming,
        GovernedOperation::Heartbeat { started },
    ))
}

/// Reads records of calls.
///
/// # Errors
/// Names the member that is wrong.
pub fn capture(incoming: &DecodeInput<'_>) -> Result<Request, InputError> {
    let captures = captures(incoming.body)?;
    Ok(session_operation(
        incoming,
        GovernedOperation::Capture { captures },
    ))
}

/// Reads the records of calls that a body holds.
///
/// # Errors
/// Names the member that is wrong.
pub fn captures(body: &Map<String, Value>) -> Result<Vec<Value>, InputError> {
    let members = Members::of(body);
    if !members.has("captures") {
        return Err(members.missing("captures"));
    }
    let captures = many(&members, "captures", CAPTURES_MAX)?;
    match captures.iter().position(|item| !item.is_object()) {
        None => Ok(captures.to_vec()),
        Some(index) => Err(members.wrong(&format!("captures.{index}"), "must be an object")),
    }
}
