//! The protocol from the client's side, as little as the fault tests need.
//!
//! Sends each request once: repeating it after a lost answer is what the tests are about.

use std::time::Instant;

use reqwest::{Client, Method};
use serde_json::{Value, json};
use testing::process::PATIENCE;

/// One request, which can be sent again.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    method: Method,
    path: String,
    key: Option<String>,
    at_once: bool,
    content: Content,
}

#[derive(Debug, Clone)]
enum Content {
    Nothing,
    Json(Value),
    Bytes(Vec<u8>),
}

impl Ask {
    fn new(method: Method, path: &str, content: Content) -> Self {
        Self {
            method,
            path: path.to_owned(),
            key: None,
            at_once: false,
            content,
        }
    }

    pub(crate) fn get(path: &str) -> Self {
        Self::new(Method::GET, path, Content::Nothing)
    }

    pub(crate) fn post(path: &str, body: Value) -> Self {
        Self::new(Method::POST, path, Content::Json(body))
    }

    pub(crate) fn put(path: &str, bytes: Vec<u8>) -> Self {
        Self::new(Method::PUT, path, Content::Bytes(bytes))
    }

    /// Appends a Message of one public text.
    pub(crate) fn message(session: &str, text: &str) -> Self {
        let path = format!("/v1/sessions/{session}/messages");
        Self::post(&path, json!({"message": user_message(text)}))
    }

    /// Submits a Task to one of the built-in workflows.
    pub(crate) fn task(session: &str, workflow: &str, text: &str) -> Self {
        let path = format!("/v1/sessions/{session}/tasks");
        let body = json!({"input": user_message(text), "metadata": {"workflow": workflow}});
        Self::post(&path, body)
    }

    /// Answers what a Task asks.
    pub(crate) fn answer(task: &str, text: &str) -> Self {
        let path = format!("/v1/tasks/{task}/messages");
        Self::post(
            &path,
            json!({"kind": "input", "message": user_message(text)}),
        )
    }

    pub(crate) fn cancel(task: &str) -> Self {
        Self::post(&format!("/v1/tasks/{task}/cancel"), json!({}))
    }

    pub(crate) fn artifact(name: &str) -> Self {
        let body = json!({
            "kind": "file",
            "mime_type": "text/plain",
            "visibility": "public",
            "metadata": {"name": name},
        });
        Self::post("/v1/artifacts", body)
    }

    pub(crate) fn with_key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Asks for an answer as soon as a Task is begun.
    pub(crate) fn at_once(mut self) -> Self {
        self.at_once = true;
        self
    }
}

fn user_message(text: &str) -> Value {
    json!({"role": "user", "parts": [{"type": "text", "text": text, "visibility": "public"}]})
}

/// What came back.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) retry_after: Option<String>,
    pub(crate) bytes: Vec<u8>,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap_or_else(|error| {
            let text = String::from_utf8_lossy(&self.bytes);
            panic!("{}: {error}: {text}", self.status)
        })
    }

    /// The code of an error.
    pub(crate) fn code(&self) -> String {
        text(&self.json()["error"]["code"])
    }
}

/// The text of a member that must be one.
pub(crate) fn text(value: &Value) -> String {
    value
        .as_str()
        .unwrap_or_else(|| panic!("{value}"))
        .to_owned()
}

/// No answer: whether the server carried the request out is unknown.
#[derive(Debug)]
pub(crate) struct Lost {
    pub(crate) cause: String,
}

/// A client with connections of its own.
#[derive(Debug, Clone)]
pub(crate) struct Api {
    http: Client,
    url: String,
    key: String,
    /// Decides what the other asks approval for.
    approver_key: String,
}

impl Api {
    pub(crate) fn new(url: &str, key: &str) -> Self {
        let http = Client::builder()
            .no_proxy()
            .timeout(PATIENCE)
            .build()
            .unwrap();
        Self {
            http,
            url: url.to_owned(),
            key: key.to_owned(),
            approver_key: key.to_owned(),
        }
    }

    /// Decides with another key.
    pub(crate) fn approving(mut self, key: &str) -> Self {
        self.approver_key = key.to_owned();
        self
    }

    pub(crate) async fn send(&self, ask: &Ask) -> Result<Answer, Lost> {
        let url = format!("{}{}", self.url, ask.path);
        let key = match ask.path.ends_with("/respond") {
            true => &self.approver_key,
            false => &self.key,
        };
        let mut request = self
            .http
            .request(ask.method.clone(), url)
            .bearer_auth(key)
            .header("Harn-Agents-Protocol-Version", "agents-protocol-2026-04-25");
        if let Some(key) = &ask.key {
            request = request.header("Idempotency-Key", key);
        }
        if ask.at_once {
            request = request.header("Prefer", "respond-async");
        }
        request = match &ask.content {
            Content::Nothing => request,
            Content::Json(body) => request.json(body),
            Content::Bytes(bytes) => request.body(bytes.clone()),
        };
        let lost = |error: reqwest::Error| {
            assert!(!error.is_timeout(), "no answer for {PATIENCE:?}: {ask:?}");
            Lost {
                cause: format!("{error:?}"),
            }
        };
        let response = request.send().await.map_err(lost)?;
        let retry_after = response.headers().get("retry-after");
        Ok(Answer {
            status: response.status().as_u16(),
            retry_after: retry_after.map(|value| value.to_str().unwrap().to_owned()),
            bytes: response.bytes().await.map_err(lost)?.to_vec(),
        })
    }

    /// Sends what must be answered with success.
    pub(crate) async fn ok(&self, ask: &Ask) -> Value {
        self.bytes(ask).await.json()
    }

    /// The same, for answers that are not JSON.
    pub(crate) async fn bytes(&self, ask: &Ask) -> Answer {
        let answer = self.send(ask).await.unwrap();
        assert!(
            (200..300).contains(&answer.status),
            "{ask:?}: {} {}",
            answer.status,
            String::from_utf8_lossy(&answer.bytes)
        );
        answer
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        self.ok(&Ask::get(path)).await
    }

    /// Returns a new Session's id.
    pub(crate) async fn session(&self) -> String {
        text(&self.ok(&Ask::post("/v1/sessions", json!({}))).await["id"])
    }

    /// Reads every page of a list, after a cursor when one is given.
    pub(crate) async fn list_after(&self, path: &str, after: Option<&str>) -> Vec<Value> {
        let mut all = Vec::new();
        let mut cursor = after.map(str::to_owned);
        loop {
            let mut page = format!("{path}?limit=200");
            if let Some(cursor) = &cursor {
                page.push_str(&format!("&cursor={cursor}"));
            }
            let page = self.get(&page).await;
            all.extend(page["data"].as_array().unwrap().iter().cloned());
            if page["page"]["has_more"] != json!(true) {
                return all;
            }
            cursor = Some(text(&page["page"]["next_cursor"]));
        }
    }

    pub(crate) async fn list(&self, path: &str) -> Vec<Value> {
        self.list_after(path, None).await
    }

    /// Reads a resource until it is as wanted.
    pub(crate) async fn until(&self, path: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let began = Instant::now();
        loop {
            let found = self.get(path).await;
            if wanted(&found) {
                return found;
            }
            assert!(began.elapsed() < PATIENCE, "{path} stays {found}");
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }

    /// Waits until a Task has a status.
    pub(crate) async fn until_status(&self, task: &str, status: &str) -> Value {
        let path = format!("/v1/tasks/{task}");
        self.until(&path, |task| task["status"] == status).await
    }
}
