//! What this program reads of a server's resources.
//!
//! Unknown members are ignored (AP-VER-07), an unknown status is kept and is never success (AP-VER-08). The whole
//! answer stays beside what was read, for `--json`.

use std::fmt;

use domain::Status;
use serde::Deserialize;
use serde_json::Value;

use crate::exit::{Exit, Problem};

/// Where a Task stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TaskStatus {
    /// A word of the protocol.
    Known(Status),
    /// A word that this program does not know.
    Unknown(String),
}

impl TaskStatus {
    /// Reads the protocol's word.
    pub(crate) fn parse(word: &str) -> Self {
        Status::parse(word).map_or_else(|| Self::Unknown(word.to_owned()), Self::Known)
    }

    /// True when the Task will not change any more.
    pub(crate) fn is_terminal(&self) -> bool {
        matches!(self, Self::Known(status) if status.is_terminal())
    }

    /// How a command ends that waited for the Task's end.
    pub(crate) fn verdict(&self) -> Exit {
        match self {
            Self::Known(Status::Completed) => Exit::Ok,
            Self::Known(_) | Self::Unknown(_) => Exit::No,
        }
    }

    /// How a command ends that only looked.
    pub(crate) fn reading(&self) -> Exit {
        match self {
            Self::Unknown(_) => Exit::No,
            Self::Known(_) => Exit::Ok,
        }
    }
}

impl fmt::Display for TaskStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(status) => f.write_str(status.as_str()),
            Self::Unknown(word) => write!(f, "unknown: {}", crate::output::shorten(word, 40)),
        }
    }
}

/// A Task.
#[derive(Debug, Clone)]
pub(crate) struct Task {
    /// Its id.
    pub(crate) id: String,
    /// Where it stands.
    pub(crate) status: TaskStatus,
    /// Its Session.
    pub(crate) session_id: String,
    /// When it was made.
    pub(crate) created_at: String,
    /// Why it failed.
    pub(crate) failure: Option<Failure>,
    /// All that the server said.
    pub(crate) raw: Value,
}

/// Why a Task failed.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Failure {
    /// A word for programs.
    pub(crate) code: String,
    /// Words for people.
    pub(crate) message: String,
}

#[derive(Deserialize)]
struct TaskWire {
    id: String,
    status: String,
    session_id: String,
    created_at: String,
    failure: Option<Failure>,
}

impl Task {
    /// Reads a Task.
    ///
    /// # Errors
    /// The value is not one.
    pub(crate) fn read(raw: Value) -> anyhow::Result<Self> {
        let wire: TaskWire = decode(&raw, "a task")?;
        Ok(Self {
            id: wire.id,
            status: TaskStatus::parse(&wire.status),
            session_id: wire.session_id,
            created_at: wire.created_at,
            failure: wire.failure,
            raw,
        })
    }

    /// Returns what the Task was asked to do, for people.
    pub(crate) fn input_text(&self) -> String {
        let input = self.raw.get("input");
        let parts = input
            .and_then(|input| input.get("parts"))
            .and_then(Value::as_array);
        if let Some(session) = self.governed_session() {
            return format!("session {session} of a program");
        }
        let Some(parts) = parts else {
            return input.map(Value::to_string).unwrap_or_default();
        };
        let texts = parts.iter().filter_map(|part| part.get("text")?.as_str());
        texts.collect::<Vec<_>>().join(" ")
    }

    /// True for a replay, which runs the workflow of its source and asks for none.
    pub(crate) fn is_replay(&self) -> bool {
        self.id.starts_with("task_replay_")
    }

    /// Returns the workflow it asked for; none when it is the persona's, or the usual one.
    pub(crate) fn workflow(&self) -> Option<&str> {
        if self.governed_session().is_some() {
            return Some("governed");
        }
        self.raw.pointer("/metadata/workflow")?.as_str()
    }

    /// Returns the name that a program gave to its governed session, when the Task is one.
    fn governed_session(&self) -> Option<&str> {
        self.raw.pointer("/metadata/replay_session_id")?.as_str()
    }
}

/// An event.
#[derive(Debug, Clone)]
pub(crate) struct Event {
    /// Its id, which is also the cursor.
    pub(crate) id: String,
    /// What happened.
    pub(crate) kind: String,
    /// When.
    pub(crate) created_at: String,
    /// The facts.
    pub(crate) payload: Value,
    /// All that the server said.
    pub(crate) raw: Value,
}

#[derive(Deserialize)]
struct EventWire {
    id: String,
    event: String,
    #[serde(default)]
    created_at: String,
    #[serde(default)]
    payload: Value,
}

impl Event {
    /// Reads an event.
    ///
    /// # Errors
    /// The value is not one.
    pub(crate) fn read(raw: Value) -> anyhow::Result<Self> {
        let wire: EventWire = decode(&raw, "an event")?;
        Ok(Self {
            id: wire.id,
            kind: wire.event,
            created_at: wire.created_at,
            payload: wire.payload,
            raw,
        })
    }

    /// True when this is the last state of a Task. Facts of the same commit may still follow.
    pub(crate) fn ends_task(&self) -> bool {
        let to = self.payload.get("to").and_then(Value::as_str);
        match self.kind.as_str() {
            "task.completed" | "task.failed" | "task.canceled" => true,
            "task.status_changed" => to.is_some_and(|to| TaskStatus::parse(to).is_terminal()),
            _ => false,
        }
    }
}

/// A page of a list.
#[derive(Debug)]
pub(crate) struct Page {
    /// The items as the server gave them.
    pub(crate) data: Vec<Value>,
    /// Where the next page begins.
    pub(crate) next: Option<String>,
}

impl Page {
    /// Reads a page.
    ///
    /// # Errors
    /// The value is not one.
    pub(crate) fn read(raw: &Value) -> anyhow::Result<Self> {
        #[derive(Deserialize)]
        struct PageWire {
            data: Vec<Value>,
            page: PageInfo,
        }
        #[derive(Deserialize)]
        struct PageInfo {
            next_cursor: Option<String>,
            has_more: bool,
        }
        let wire: PageWire = decode(raw, "a list")?;
        Ok(Self {
            data: wire.data,
            next: wire.page.next_cursor.filter(|_| wire.page.has_more),
        })
    }
}

fn decode<'a, T: Deserialize<'a>>(raw: &'a Value, what: &str) -> anyhow::Result<T> {
    T::deserialize(raw).map_err(|error| {
        Problem::new(
            format!("the server's answer is not {what}: {error}"),
            "check that the address is that of an Agents Protocol server",
        )
        .into()
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fixture() -> Value {
        json!({
            "object": "task", "id": "task_1", "session_id": "session_1", "workspace_id": "workspace_local",
            "status": "FAILED", "created_by": "admin",
            "input": {"id": "message_1", "role": "user", "parts": [{"type": "text", "text": "Hello", "visibility": "public"}]},
            "created_at": "2026-11-15T09:56:39.123456Z", "updated_at": "2026-11-15T09:56:39.123456Z",
            "metadata": {"workflow": "approve"},
            "failure": {"code": "approval_denied", "message": "the action was denied", "details": {}},
        })
    }

    /// Adds a member to every object, however deep.
    fn with_strangers(value: &mut Value) {
        match value {
            Value::Object(members) => {
                members.values_mut().for_each(with_strangers);
                members.insert("added_later".to_owned(), json!({"any": ["thing", 1, null]}));
            }
            Value::Array(items) => items.iter_mut().for_each(with_strangers),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    #[test]
    fn ap_ver_07_unknown_members_are_ignored_at_every_level() {
        let mut raw = fixture();
        with_strangers(&mut raw);
        let task = Task::read(raw).unwrap();
        assert_eq!(task.id, "task_1");
        assert_eq!(task.status, TaskStatus::Known(Status::Failed));
        assert_eq!(task.input_text(), "Hello");
        assert_eq!(task.workflow(), Some("approve"));
        assert_eq!(task.failure.unwrap().code, "approval_denied");

        let mut raw = json!({"object": "event", "id": "event_1", "event": "task.status_changed",
            "created_at": "2026-11-15T09:56:39Z", "sequence": 1, "resource": {"object": "task", "id": "task_1"},
            "payload": {"from": "WORKING", "to": "COMPLETED"}});
        with_strangers(&mut raw);
        let event = Event::read(raw).unwrap();
        assert!(event.ends_task());

        let mut raw = json!({"object": "list", "data": [fixture()], "page": {"next_cursor": "c", "has_more": true}});
        with_strangers(&mut raw);
        let page = Page::read(&raw).unwrap();
        assert_eq!((page.data.len(), page.next.as_deref()), (1, Some("c")));
    }

    #[test]
    fn ap_ver_08_an_unknown_status_is_shown_and_never_success() {
        let mut raw = fixture();
        raw["status"] = json!("ARCHIVED");
        let task = Task::read(raw).unwrap();
        assert_eq!(task.status.to_string(), "unknown: ARCHIVED");
        assert!(!task.status.is_terminal());
        assert_eq!(task.status.verdict(), Exit::No);
        assert_eq!(task.status.reading(), Exit::No);
    }

    #[test]
    fn only_completed_is_success_for_who_waited() {
        for (word, exit) in [
            ("SUBMITTED", Exit::No),
            ("WORKING", Exit::No),
            ("INPUT_REQUIRED", Exit::No),
            ("AUTH_REQUIRED", Exit::No),
            ("COMPLETED", Exit::Ok),
            ("FAILED", Exit::No),
            ("CANCELED", Exit::No),
        ] {
            assert_eq!(TaskStatus::parse(word).verdict(), exit, "{word}");
            assert_eq!(TaskStatus::parse(word).to_string(), word);
            assert_eq!(TaskStatus::parse(word).reading(), Exit::Ok, "{word}");
        }
    }

    #[test]
    fn what_is_not_a_task_is_an_error_that_says_so() {
        let error = Task::read(json!({"hello": "world"})).unwrap_err();
        assert!(error.to_string().contains("not a task"), "{error}");
    }
}
