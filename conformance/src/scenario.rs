//! The ground that checks stand on.
//!
//! Owns making workspaces, sessions, tasks, artifacts and reading whole event lists, accepting whatever still allows a
//! check to go on. A refusal here ends the check as not covered: the rule that was broken has its own id.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::json::{at, data, text};
use crate::miss::{Miss, unseen};
use crate::wire::Wire;

/// Statuses after which a task never changes.
pub(crate) const TERMINAL: [&str; 3] = ["COMPLETED", "FAILED", "CANCELED"];
/// Statuses in which a task may still move.
const OPEN: [&str; 4] = ["SUBMITTED", "WORKING", "INPUT_REQUIRED", "AUTH_REQUIRED"];
/// How long a task gets to reach a state.
const PATIENCE: Duration = Duration::from_secs(10);

/// Returns a message of one public text part.
pub(crate) fn message(words: &str) -> Value {
    json!({"role": "user", "parts": [{"type": "text", "text": words, "visibility": "public"}]})
}

/// Returns the body that submits a task to one of the workflows a server may offer.
pub(crate) fn task_body(workflow: Option<&str>) -> Value {
    let input = message("say hello");
    match workflow {
        Some(name) => json!({"input": input, "metadata": {"workflow": name}}),
        None => json!({"input": input}),
    }
}

/// Returns an id that no server knows, shaped like a real one.
pub(crate) fn unknown_like(id: &str) -> String {
    // Nines in the last segment: beyond the end for ids that count, merely another one for ids that do not.
    let start = id.rfind(['_', '-']).map_or(0, |place| place + 1);
    let (head, tail) = id.split_at(start);
    let nines: String = tail
        .chars()
        .map(|c| if c.is_ascii_digit() { '9' } else { c })
        .collect();
    if nines == tail {
        format!("{id}x")
    } else {
        format!("{head}{nines}")
    }
}

impl Wire {
    pub(crate) async fn workspace(&self) -> Result<Value, Miss> {
        let name = self.fresh("workspace");
        let body = json!({"name": name, "root": format!("harn://conformance/{name}")});
        with_id(
            self.post("/v1/workspaces", &body)
                .made("make a workspace")
                .await?,
            "workspace",
        )
    }

    /// Makes a session in the run's own workspace.
    pub(crate) async fn session(&self) -> Result<String, Miss> {
        self.session_in(&self.home).await
    }

    pub(crate) async fn session_in(&self, workspace: &str) -> Result<String, Miss> {
        let made = self
            .post("/v1/sessions", &json!({"workspace_id": workspace}))
            .made("make a session")
            .await?;
        Ok(text(&with_id(made, "session")?, "id").to_owned())
    }

    pub(crate) async fn append(&self, session: &str, words: &str) -> Result<Value, Miss> {
        let body = json!({"message": message(words)});
        let made = self
            .post(format!("/v1/sessions/{session}/messages"), &body)
            .made("append a message")
            .await?;
        with_id(made, "message")
    }

    pub(crate) async fn artifact(&self, body: &Value) -> Result<Value, Miss> {
        with_id(
            self.post("/v1/artifacts", body)
                .made("register an artifact")
                .await?,
            "artifact",
        )
    }

    pub(crate) async fn submit(
        &self,
        session: &str,
        workflow: Option<&str>,
    ) -> Result<Value, Miss> {
        let call = self.post(
            format!("/v1/sessions/{session}/tasks"),
            &task_body(workflow),
        );
        with_id(call.made("submit a task").await?, "task")
    }

    pub(crate) async fn task(&self, id: &str) -> Result<Value, Miss> {
        self.get(format!("/v1/tasks/{id}"))
            .made("read a task")
            .await
    }

    /// Waits until a task shows one of some statuses and returns it as it is then or when patience ends.
    pub(crate) async fn wait_for(&self, id: &str, statuses: &[&str]) -> Result<Value, Miss> {
        let deadline = Instant::now() + PATIENCE.min(self.timeout);
        loop {
            let task = self.task(id).await?;
            let status = text(&task, "status");
            // A word that the protocol does not know is nothing to wait for either.
            if statuses.contains(&status) || !OPEN.contains(&status) || Instant::now() > deadline {
                return Ok(task);
            }
            sleep(Duration::from_millis(30)).await;
        }
    }

    /// Submits a task in a session of its own and waits until it is COMPLETED.
    pub(crate) async fn completed(&self) -> Result<Value, Miss> {
        let session = self.session().await?;
        self.completed_in(&session).await
    }

    pub(crate) async fn completed_in(&self, session: &str) -> Result<Value, Miss> {
        let task = self.submit(session, None).await?;
        let task = self.wait_for(text(&task, "id"), &TERMINAL).await?;
        match text(&task, "status") {
            "COMPLETED" => Ok(task),
            other => unseen(format!("a plain task does not complete: it is `{other}`")),
        }
    }

    /// Submits a task of a workflow in a session of its own and waits until it shows a status.
    pub(crate) async fn reach(&self, workflow: &str, status: &str) -> Result<Value, Miss> {
        let session = self.session().await?;
        self.reach_in(&session, workflow, status).await
    }

    pub(crate) async fn reach_in(
        &self,
        session: &str,
        workflow: &str,
        status: &str,
    ) -> Result<Value, Miss> {
        let no_way = || {
            format!(
                "the server offers no way to reach {status}: it takes the example workflow `{workflow}` (`reprise serve \
                 --examples`)"
            )
        };
        let Ok(task) = self.submit(session, Some(workflow)).await else {
            return unseen(no_way());
        };
        let task = self.wait_for(text(&task, "id"), &[status]).await?;
        if text(&task, "status") == status {
            Ok(task)
        } else {
            unseen(no_way())
        }
    }

    /// Returns a task that was canceled while it worked.
    pub(crate) async fn canceled(&self) -> Result<Value, Miss> {
        let task = self.reach("hold", "WORKING").await?;
        let id = text(&task, "id");
        self.post_empty(format!("/v1/tasks/{id}/cancel"))
            .made("cancel a task")
            .await?;
        self.wait_for(id, &["CANCELED"]).await
    }

    /// Ends a task that would hold a worker for good; what the server answers does not matter.
    pub(crate) async fn let_go(&self, task: &Value) {
        let _ = self
            .post_empty(format!("/v1/tasks/{}/cancel", text(task, "id")))
            .send()
            .await;
    }

    /// Returns a FAILED task, if the server has any way to make one.
    pub(crate) async fn failed(&self) -> Result<Value, Miss> {
        if let Ok(task) = self.reach("fail", "FAILED").await {
            return Ok(task);
        }
        let task = self.reach("approve", "AUTH_REQUIRED").await?;
        let request = self.pending(&task).await?;
        self.respond(&request, &json!({"approved": false}))
            .made("deny a request")
            .await?;
        let task = self.wait_for(text(&task, "id"), &TERMINAL).await?;
        if text(&task, "status") == "FAILED" {
            Ok(task)
        } else {
            unseen("the server offers no way to reach FAILED")
        }
    }

    /// Returns the pending permission request of a waiting task.
    pub(crate) async fn pending(&self, task: &Value) -> Result<Value, Miss> {
        if self.approver_key.is_none() && text(task, "status") == "AUTH_REQUIRED" {
            return unseen("deciding takes the key of another actor: give --approver-key");
        }
        let path = format!("/v1/tasks/{}/permission-requests", text(task, "id"));
        let list = self.get(path).made("list permission requests").await?;
        let pending = data(&list)
            .iter()
            .find(|request| text(request, "status") == "pending");
        pending.map_or_else(
            || unseen("the waiting task lists no pending permission request"),
            |found| Ok(found.clone()),
        )
    }

    pub(crate) fn respond(&self, request: &Value, body: &Value) -> crate::wire::Call<'_> {
        let path = format!("/v1/permission-requests/{}/respond", text(request, "id"));
        let call = self.post(path, body);
        match &self.approver_key {
            Some(key) => call.key(key),
            None => call,
        }
    }

    /// Answers a task's question.
    pub(crate) fn answer(&self, task: &Value, words: &str) -> crate::wire::Call<'_> {
        let body = json!({"kind": "input", "message": message(words)});
        self.post(format!("/v1/tasks/{}/messages", text(task, "id")), &body)
    }

    /// Reads an event list to its end, by range.
    pub(crate) async fn events(&self, path: &str) -> Result<Vec<Value>, Miss> {
        let joint = if path.contains('?') { '&' } else { '?' };
        let mut events: Vec<Value> = Vec::new();
        loop {
            let after = events
                .last()
                .map(|last| format!("&after_event_id={}", text(last, "id")))
                .unwrap_or_default();
            let page = self
                .get(format!("{path}{joint}limit=200{after}"))
                .made("list events")
                .await?;
            let Some(items) = at(&page, "data").as_array() else {
                return unseen(format!("{path} is not a list"));
            };
            // A server that ignores the cursor would be read forever.
            let again = items.first().is_some_and(|item| {
                events
                    .first()
                    .is_some_and(|first| at(first, "id") == at(item, "id"))
            });
            if again {
                return Ok(events);
            }
            events.extend(items.iter().cloned());
            if items.len() < 200 {
                return Ok(events);
            }
        }
    }

    pub(crate) async fn task_events(&self, task: &Value) -> Result<Vec<Value>, Miss> {
        self.events(&format!("/v1/tasks/{}/events", text(task, "id")))
            .await
    }

    pub(crate) async fn session_events(&self, session: &str) -> Result<Vec<Value>, Miss> {
        self.events(&format!("/v1/sessions/{session}/events")).await
    }

    /// Reads a list to its end, by cursor.
    pub(crate) async fn all(&self, path: &str) -> Result<Vec<Value>, Miss> {
        let joint = if path.contains('?') { '&' } else { '?' };
        let (mut items, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = self
                .get(format!("{path}{joint}limit=200{cursor}"))
                .made("read a list")
                .await?;
            items.extend(data(&page).iter().cloned());
            let next = [at(&page, "page.next_cursor"), at(&page, "next_cursor")]
                .into_iter()
                .find_map(Value::as_str);
            match next {
                Some(next) if !next.is_empty() && !data(&page).is_empty() => {
                    cursor = format!("&cursor={next}")
                }
                _ => return Ok(items),
            }
        }
    }

    pub(crate) async fn messages(&self, session: &str) -> Result<Vec<Value>, Miss> {
        self.all(&format!("/v1/sessions/{session}/messages")).await
    }
}

/// Returns a body that registers an artifact without bytes.
pub(crate) fn artifact_body(session: &str) -> Value {
    json!({"kind": "log", "mime_type": "text/plain", "visibility": "public", "uri": "harn://conformance/log",
        "session_id": session})
}

/// Returns the kinds of some events, in order.
pub(crate) fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| text(event, "event")).collect()
}

fn with_id(made: Value, kind: &str) -> Result<Value, Miss> {
    if text(&made, "id").is_empty() {
        unseen(format!("a new {kind} has no `id`"))
    } else {
        Ok(made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_id_keeps_the_shape() {
        assert_eq!(
            unknown_like("event_ab12cd34_0000000000000129"),
            "event_ab12cd34_9999999999999999"
        );
        assert_eq!(unknown_like("abc"), "abcx");
    }
}
