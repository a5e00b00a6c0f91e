//! What an event says, in words: one arm for each kind that this program writes, so that a new kind does not compile until
//! somebody has found words for it.

use domain::Kind;
use serde_json::Value;

use crate::output::plural;

/// Returns the words of an event.
pub(super) fn detail(kind: &str, payload: &Value) -> String {
    let at = |pointer: &str| {
        payload
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    if payload.get("pruned") == Some(&Value::Bool(true)) && kind != Kind::EventLost.as_str() {
        return "(pruned)".to_owned();
    }
    match Kind::parse(kind) {
        Ok(kind) => words(kind, payload),
        Err(_) if kind == "error" => format!("{}: {}", at("/error/code"), at("/error/message")),
        // A kind that this program does not know is still shown.
        Err(_) => match payload.as_object() {
            Some(members) if members.is_empty() => String::new(),
            _ => payload.to_string(),
        },
    }
}

fn words(kind: Kind, payload: &Value) -> String {
    let text = |pointer: &str| {
        payload
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    let number = |pointer: &str| payload.pointer(pointer).and_then(Value::as_u64);
    match kind {
        Kind::TaskSubmitted => match text("/replay/source_task_id") {
            "" => format!("workflow {}", text("/workflow")),
            source => format!("workflow {}, a replay of {source}", text("/workflow")),
        },
        Kind::TaskStarted => format!("workflow {}", text("/workflow")),
        Kind::TaskStatusChanged => {
            let change = format!("{} → {}", text("/from"), text("/to"));
            in_brackets(change, text("/reason"))
        }
        Kind::UserMessage | Kind::AgentMessage => spoken(payload),
        Kind::SessionMessageAppended => text("/role").to_owned(),
        Kind::EffectRequested => format!("{}  {}", text("/effect_key"), text("/kind")),
        Kind::EffectRecorded => recorded(payload),
        Kind::InputRequested => text("/request/question").to_owned(),
        // Whoever is asked must see what for.
        Kind::ToolApprovalRequired => {
            let input = payload.pointer("/action/input").map(Value::to_string);
            format!("{}  {}", text("/action_name"), input.unwrap_or_default())
        }
        Kind::UserInputSubmitted | Kind::UserToolConfirmation => match payload.get("approved") {
            Some(Value::Bool(false)) => with_reason("denied", text("/remarks/reason")),
            Some(Value::Bool(true)) if kind == Kind::UserToolConfirmation => {
                with_reason("approved", text("/remarks/reason"))
            }
            _ => "answered".to_owned(),
        },
        Kind::TaskImported => {
            let bytes = number("/bundle_bytes").unwrap_or_default();
            let bundle = format!("a bundle of {}", plural(bytes, "byte"));
            format!("{bundle}, {}", text("/bundle_sha256"))
        }
        Kind::ReceiptIssued | Kind::ReceiptImported => text("/receipt_id").to_owned(),
        Kind::ReceiptVerified => format!("{} is valid", text("/receipt_id")),
        Kind::ReceiptVerificationFailed => {
            let found = format!("{} is not valid", text("/receipt_id"));
            in_brackets(found, text("/reason"))
        }
        Kind::ReceiptChained => {
            let count = number("/count").unwrap_or_default();
            format!("{} is number {count} of the chain", text("/receipt_id"))
        }
        Kind::TrustRecorded => match text("/action") {
            // The record calls every answer approved; an answer to a question approves nothing.
            "input" => "the answer, signed".to_owned(),
            action => format!("{action}  {}, signed", text("/decision")),
        },
        Kind::TreeHeadSealed => {
            let size = number("/size").unwrap_or_default();
            let sealed = format!("the receipt log with {}", plural(size, "receipt"));
            match payload.get("rotation").is_some_and(Value::is_object) {
                true => format!("{sealed}, and a new signing key"),
                false => sealed,
            }
        }
        // A line of a signed note: `— NAME SIGNATURE`.
        Kind::TreeHeadCosigned => {
            let witness = text("/line").split_whitespace().nth(1);
            format!("by {}", witness.unwrap_or("a witness"))
        }
        Kind::AgentToolUse => {
            let input = payload.get("input").map(Value::to_string);
            format!("{}  {}", text("/name"), input.unwrap_or_default())
        }
        Kind::ToolFailed => text("/name").to_owned(),
        Kind::AgentToolResult => {
            let told = format!("{}  {}", text("/name"), text("/status"));
            match payload.get("output") {
                Some(output) => format!("{told}  {}", runs::replay::readable(output)),
                None => told,
            }
        }
        Kind::AgentMemoryRead => {
            let count = number("/count").unwrap_or_default();
            match text("/effect_key").starts_with("host:field.") {
                true => format!("{} of the shared memory", plural(count, "unit")),
                false => format!("{} of the session", plural(count, "message")),
            }
        }
        Kind::MessageDelta => format!("“{}”", text("/text")),
        // The number alone: the rest of the id is the task's.
        Kind::CheckpointCreated => {
            let id = text("/checkpoint_id");
            format!("checkpoint {}", id.rsplit('_').next().unwrap_or(id))
        }
        Kind::ReplayStarted => replay_started(payload),
        Kind::ReplayEventReplayed => text("/original_event").to_owned(),
        Kind::ReplayCompleted => replay_completed(payload),
        Kind::ReplayFailed => format!("{}: {}", text("/code"), text("/message")),
        Kind::UserCancelRequested | Kind::RequestWithdrawn => text("/reason").to_owned(),
        // The message before it has the words.
        Kind::OutcomeRecorded => text("/status").to_owned(),
        Kind::TaskFailed => format!("{}: {}", text("/failure/code"), text("/failure/message")),
        // Their neighbours tell the same in words.
        Kind::TaskCompleted
        | Kind::TaskCanceled
        | Kind::TaskInputRequired
        | Kind::TaskAuthRequired
        | Kind::ToolApproved => String::new(),
        // Where a person said no, a neighbour tells it; contracts and tiers say why here.
        Kind::ToolDenied => text("/reason").to_owned(),
        Kind::ContractDecided => decided(payload),
        Kind::SessionCreated => match (text("/parent_session_id"), payload.get("imported")) {
            (_, Some(Value::Bool(true))) => "imported from another server".to_owned(),
            ("", _) => format!("in {}", text("/workspace_id")),
            (parent, _) => format!("a fork of {parent}"),
        },
        Kind::SessionClosed => String::new(),
        Kind::SessionTruncated => {
            let removed = number("/removed_turn_count").unwrap_or_default();
            in_brackets(
                format!("{} removed", plural(removed, "message")),
                text("/reason"),
            )
        }
        Kind::SessionThreadForked => format!("into {}", text("/session_id")),
        Kind::SessionReplayed => session_replayed(payload),
        Kind::SessionUpdated => changed(payload),
        Kind::MessageCopied => {
            let source = text("/source_message_id");
            format!("{}  from {source}", text("/role"))
        }
        Kind::BranchCreated => format!("{} from {}", text("/kind"), text("/base_ref")),
        Kind::ArtifactCreated => {
            let what = format!("{}  {}", text("/kind"), text("/mime_type"));
            match number("/bytes") {
                Some(bytes) => format!("{what}  {}", plural(bytes, "byte")),
                None => what,
            }
        }
        Kind::ArtifactUpdated => {
            let bytes = number("/bytes").unwrap_or_default();
            format!("{}  {}", plural(bytes, "byte"), text("/sha256"))
        }
        Kind::WorkspaceCreated => text("/name").to_owned(),
        Kind::WorkspaceUpdated => changed(payload),
        Kind::VaultCreated => text("/provider").to_owned(),
        Kind::PersonaCreated | Kind::PersonaUpdated => {
            format!("{}@{}", text("/name"), text("/version"))
        }
        Kind::KeyCreated => format!("for {}: {}", text("/actor"), listed(payload, "/scopes")),
        Kind::KeyGranted => listed(payload, "/scopes"),
        Kind::KeyRevoked => String::new(),
        Kind::EventLost => format!("what was stored here cannot be read ({})", text("/sha256")),
        Kind::FieldEntry => {
            let epoch = number("/epoch").unwrap_or_default();
            let entry = format!("{} by {}", text("/event_type"), text("/agent_id"));
            format!("{entry}, epoch {epoch}")
        }
    }
}

fn with_reason(word: &str, reason: &str) -> String {
    match reason {
        "" => word.to_owned(),
        reason => format!("{word}: {reason}"),
    }
}

fn in_brackets(words: String, note: &str) -> String {
    match note {
        "" => words,
        note => format!("{words} ({note})"),
    }
}

/// Returns the texts of a list.
fn listed(payload: &Value, pointer: &str) -> String {
    let list = payload.pointer(pointer).and_then(Value::as_array);
    let texts = list.into_iter().flatten().filter_map(Value::as_str);
    texts.collect::<Vec<_>>().join(", ")
}

/// Returns the members that an update changes.
fn changed(payload: &Value) -> String {
    let members = payload.as_object().into_iter().flatten();
    let names: Vec<&str> = members.map(|(name, _)| name.as_str()).collect();
    format!("changes {}", names.join(", "))
}

fn replay_started(payload: &Value) -> String {
    let text = |name: &str| {
        let found = payload.get(name).and_then(Value::as_str);
        found.unwrap_or_default()
    };
    let mut words = format!("{} of {}", text("mode"), text("source_task_id"));
    for (name, title) in [
        ("checkpoint_id", "from"),
        ("override_keys", "changes"),
        ("refresh", "live"),
        ("unmatched_keys", "not in the source"),
    ] {
        let value = match payload.get(name) {
            Some(Value::String(text)) => text.clone(),
            _ => listed(payload, &format!("/{name}")),
        };
        if !value.is_empty() {
            words = format!("{words}; {title} {value}");
        }
    }
    words
}

fn replay_completed(payload: &Value) -> String {
    let events = payload.get("events_replayed").and_then(Value::as_u64);
    let events = plural(events.unwrap_or_default(), "event");
    let result = match payload.get("result_equal") {
        Some(Value::Bool(true)) => "the same result as the source",
        _ => "a different result from the source",
    };
    let unused = listed(payload, "/overrides_unused");
    match unused.is_empty() {
        true => format!("{events}, {result}"),
        false => format!("{events}, {result}; not asked for: {unused}"),
    }
}

fn session_replayed(payload: &Value) -> String {
    let count = |name: &str| {
        let list = payload.get(name).and_then(Value::as_array);
        list.map_or(0, Vec::len)
    };
    let tasks = plural(count("tasks") as u64, "task");
    let source = payload.get("source_session_id").and_then(Value::as_str);
    let source = source.unwrap_or_default();
    let how = match payload.get("completed") {
        Some(Value::Bool(true)) => "to the end",
        _ => "not to the end",
    };
    match count("skipped") {
        0 => format!("{tasks} of {source}, {how}"),
        left => format!("{tasks} of {source}, {how}; {left} left out"),
    }
}

/// Says what an effect gave. The last answer of a model is told by the message that follows it; others only here.
fn recorded(payload: &Value) -> String {
    let text = |name: &str| {
        payload
            .get(name)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    let line = format!("{}  {}", text("effect_key"), text("outcome"));
    let value = payload.get("value").unwrap_or(&Value::Null);
    let calls = value.pointer("/choices/0/message/tool_calls");
    match (calls.and_then(Value::as_array), text("outcome")) {
        (Some(calls), _) if !calls.is_empty() => {
            format!("{line}  {}", runs::replay::readable(value))
        }
        (_, "error") => match value.get("message").and_then(Value::as_str) {
            Some(message) => format!("{line}  {message}"),
            None => line,
        },
        _ => line,
    }
}

/// What contracts decided: which tools the model does not see, which calls are made and which are not.
fn decided(payload: &Value) -> String {
    let list = |pointer: &str| payload.pointer(pointer).and_then(Value::as_array);
    let text = |value: &Value, name: &str| {
        let found = value.get(name).and_then(Value::as_str);
        found.unwrap_or_default().to_owned()
    };
    if let Some(removed) = list("/narrowing/removed") {
        if removed.is_empty() {
            return "every tool is offered".to_owned();
        }
        let removed = removed
            .iter()
            .map(|tool| format!("{} ({})", text(tool, "tool"), text(tool, "reason")));
        return format!("not offered: {}", removed.collect::<Vec<_>>().join(", "));
    }
    if let Some(questions) = list("/questions") {
        let tools: Vec<String> = questions
            .iter()
            .map(|asked| text(asked, "tool_name"))
            .collect();
        return format!("asks about {}", tools.join(", "));
    }
    if let Some(execution) = payload.get("execution") {
        let (tool, reason) = (text(execution, "tool_name"), text(execution, "reason"));
        return format!("blocked before it ran: {tool} ({reason})");
    }
    let action = payload.pointer("/decision/action").and_then(Value::as_str);
    let calls = list("/decision/calls").into_iter().flatten().map(|call| {
        let reason = text(call, "reason");
        match reason.is_empty() {
            true => format!("{} {}", text(call, "verdict"), text(call, "tool_name")),
            false => format!(
                "{} {} ({reason})",
                text(call, "verdict"),
                text(call, "tool_name")
            ),
        }
    });
    let calls: Vec<String> = calls.collect();
    match calls.is_empty() {
        true => "the answer calls no tool".to_owned(),
        false => format!("{}: {}", action.unwrap_or_default(), calls.join(", ")),
    }
}

/// Returns the public text of a Message's parts, or how large it is where it lies beside the event.
fn spoken(payload: &Value) -> String {
    let beside = payload
        .pointer("/blobs/parts/bytes")
        .and_then(Value::as_u64);
    if let (None, Some(bytes)) = (payload.get("parts"), beside) {
        return format!("({} stored separately)", plural(bytes, "byte"));
    }
    let parts = payload.get("parts").and_then(Value::as_array);
    let texts = parts
        .into_iter()
        .flatten()
        .filter_map(|part| part.get("text")?.as_str());
    format!("“{}”", texts.collect::<Vec<_>>().join(" "))
}
