//! The protocol's client: one server, one key.
//!
//! Owns requests, retries and what a refusal means to the person who asked. Every write carries an
//! `Idempotency-Key` (AP-IDEM-01), which is what makes repeating it after a lost answer safe. It reads no card and
//! takes no credential advice from a server (AP-CARD-06).

mod follow;
mod hint;
mod target;
mod task;

use std::path::PathBuf;
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, HeaderValue};
use reqwest::{Method, Response, StatusCode, Url};
use serde_json::Value;

use crate::exit::{OrHint, Problem};
use crate::output::{Progress, shorten};

pub(crate) use follow::{Cursor, Flow, follow};
pub(crate) use target::{ADDRESS_FILE, Target};
pub(crate) use task::{Event, Page, Task, TaskStatus};

/// The protocol version this program speaks.
pub(crate) const PROTOCOL_VERSION: &str = "agents-protocol-2026-04-25";

/// How long an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// How many bytes of a body a slow connection carries in a second.
const BYTES_PER_SECOND_MIN: u64 = 512 * 1024;
/// How long a stream may be silent; a server sends a sign of life every 15 seconds.
const SILENCE_MAX: Duration = Duration::from_secs(45);
/// The most bytes of one answer.
const ANSWER_BYTES_MAX: usize = runs::replay::BUNDLE_BYTES_MAX;
/// The most items that a server gives at once.
const PAGE_MAX: usize = 200;
/// The most pages that are read for one list: a server that always promises more would be asked forever.
const PAGES_MAX: usize = 10_000;
/// Waits before a request is repeated.
const REPEATS: [Duration; 3] = [
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_millis(1_000),
];

/// A server to talk to.
#[derive(Debug)]
pub(crate) struct Client {
    http: reqwest::Client,
    base: Url,
    authorization: HeaderValue,
    /// The file that the key was found in; none for one that somebody gave.
    key_file: Option<PathBuf>,
}

/// A write: its body, and the key that makes it safe to repeat.
#[derive(Debug)]
pub(crate) struct Write<'a> {
    /// What to send.
    pub(crate) body: Value,
    /// The `Idempotency-Key`.
    pub(crate) key: &'a str,
}

/// What goes with a request.
enum Sends<'a> {
    Nothing,
    Json(Write<'a>),
    Bytes(&'a [u8], String),
}

impl Client {
    /// Prepares to talk to a server; sends nothing.
    pub(crate) fn new(target: Target) -> anyhow::Result<Self> {
        let mut authorization = HeaderValue::try_from(format!("Bearer {}", target.key.trim()))
            .or_hint(
                "the key cannot be sent",
                "a key is one line that begins with `rpk_`",
            )?;
        authorization.set_sensitive(true);
        let mut builder = reqwest::Client::builder()
            .user_agent(concat!("reprise/", env!("CARGO_PKG_VERSION")))
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(Duration::from_secs(10))
            .read_timeout(SILENCE_MAX);
        if target::is_loopback(&target.url) {
            builder = builder.no_proxy();
        }
        if let Some(file) = &target.ca {
            let hint = "name a file with certificates in PEM form";
            let pem = std::fs::read(file).or_hint(format_args!("`{}`", file.display()), hint)?;
            let certificates = reqwest::Certificate::from_pem_bundle(&pem)
                .or_hint(format_args!("`{}`", file.display()), hint)?;
            builder = builder.tls_certs_merge(certificates);
        }
        let http = builder
            .build()
            .or_hint("cannot set up the client", "check the `--ca` file")?;
        Ok(Self {
            http,
            base: target.url,
            authorization,
            key_file: target.key_file,
        })
    }

    /// Returns the address without a trailing slash.
    pub(crate) fn address(&self) -> &str {
        self.base.as_str().trim_end_matches('/')
    }

    /// Reads a resource or a list.
    pub(crate) async fn get(&self, path: &[&str], query: &[(&str, &str)]) -> anyhow::Result<Value> {
        let url = self.url(path, query)?;
        let bytes = self.call(Method::GET, url, Sends::Nothing).await?;
        self.decode(&bytes)
    }

    /// Reads bytes as they are.
    pub(crate) async fn get_bytes(
        &self,
        path: &[&str],
        query: &[(&str, &str)],
    ) -> anyhow::Result<Vec<u8>> {
        let url = self.url(path, query)?;
        self.call(Method::GET, url, Sends::Nothing).await
    }

    /// Writes.
    pub(crate) async fn post(&self, path: &[&str], write: Write<'_>) -> anyhow::Result<Value> {
        let url = self.url(path, &[])?;
        let bytes = self.call(Method::POST, url, Sends::Json(write)).await?;
        self.decode(&bytes)
    }

    /// Writes bytes as they are. What they are is the key of the write.
    pub(crate) async fn put(&self, path: &[&str], bytes: &[u8]) -> anyhow::Result<Value> {
        let url = self.url(path, &[])?;
        let key = format!("cli-{}", canon::sha256(bytes).hex());
        let sends = Sends::Bytes(bytes, key);
        let bytes = self.call(Method::PUT, url, sends).await?;
        self.decode(&bytes)
    }

    /// Writes bytes as they are, under a key.
    pub(crate) async fn post_bytes(
        &self,
        path: &[&str],
        query: &[(&str, &str)],
        bytes: &[u8],
        key: &str,
    ) -> anyhow::Result<Value> {
        let url = self.url(path, query)?;
        let sends = Sends::Bytes(bytes, key.to_owned());
        let bytes = self.call(Method::POST, url, sends).await?;
        self.decode(&bytes)
    }

    /// Reads items of a list, page by page, and whether there are more. A page may be short, or empty, and still name the
    /// next one: a server looks at so many items for each.
    pub(crate) async fn list(
        &self,
        path: &[&str],
        query: &[(&str, &str)],
        wanted: usize,
    ) -> anyhow::Result<(Vec<Value>, bool)> {
        self.list_after(path, query, wanted, None).await
    }

    /// The same from a cursor on.
    pub(crate) async fn list_after(
        &self,
        path: &[&str],
        query: &[(&str, &str)],
        wanted: usize,
        after: Option<&str>,
    ) -> anyhow::Result<(Vec<Value>, bool)> {
        self.list_where(path, query, wanted, after, |_| true).await
    }

    /// The same for items of a kind that the server does not tell apart.
    pub(crate) async fn list_where(
        &self,
        path: &[&str],
        query: &[(&str, &str)],
        wanted: usize,
        after: Option<&str>,
        is_wanted: impl Fn(&Value) -> bool,
    ) -> anyhow::Result<(Vec<Value>, bool)> {
        let mut items: Vec<Value> = Vec::new();
        let mut cursor: Option<String> = after.map(str::to_owned);
        for _ in 0..PAGES_MAX {
            let left = wanted.saturating_sub(items.len());
            let limit = left.clamp(1, PAGE_MAX).to_string();
            let mut query = query.to_vec();
            query.push(("limit", &limit));
            query.extend(cursor.iter().map(|cursor| ("cursor", cursor.as_str())));
            let page = Page::read(&self.get(path, &query).await?)?;
            items.extend(page.data.into_iter().filter(&is_wanted));
            let is_stuck = page.next == cursor;
            cursor = page.next;
            if cursor.is_none() || is_stuck || items.len() >= wanted {
                break;
            }
        }
        let more = cursor.is_some() || items.len() > wanted;
        items.truncate(wanted);
        Ok((items, more))
    }

    /// Reads a Task.
    pub(crate) async fn task(&self, id: &str) -> anyhow::Result<Task> {
        Task::read(self.get(&["v1", "tasks", id], &[]).await?)
    }

    /// Opens an event stream, after an event when one is given.
    async fn stream(&self, path: &[&str], after: Option<&str>) -> Result<Response, StreamError> {
        let url = self.url(path, &[]).map_err(StreamError::Refused)?;
        let mut request = self
            .request(Method::GET, url)
            .header("Accept", "text/event-stream");
        if let Some(after) = after {
            request = request.header("Last-Event-ID", after);
        }
        let response = request.send().await.map_err(StreamError::Lost)?;
        let status = response.status();
        if status == StatusCode::OK {
            return Ok(response);
        }
        let passing = may_pass(status);
        let refusal = self.refusal(response).await;
        Err(if passing {
            StreamError::Busy(refusal)
        } else {
            StreamError::Refused(refusal)
        })
    }

    fn url(&self, path: &[&str], query: &[(&str, &str)]) -> anyhow::Result<Url> {
        let mut url = self.base.clone();
        for segment in path {
            // Such a segment would name another resource than the one meant.
            if segment.is_empty() || segment.chars().all(|c| c == '.') {
                let message = format!("`{segment}` is not an id");
                return Err(Problem::new(message, "`reprise task list` shows ids").into());
            }
        }
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        Ok(url)
    }

    fn request(&self, method: Method, url: Url) -> reqwest::RequestBuilder {
        self.http
            .request(method, url)
            .header("Harn-Agents-Protocol-Version", PROTOCOL_VERSION)
            .header(AUTHORIZATION, self.authorization.clone())
    }

    async fn call(&self, method: Method, url: Url, sends: Sends<'_>) -> anyhow::Result<Vec<u8>> {
        let _progress = Progress::begin(format!("waiting for {}", self.address()));
        let mut waits = REPEATS.iter();
        loop {
            // A large body takes its time, and is not sent again because of that.
            let size = match &sends {
                Sends::Bytes(bytes, _) => bytes.len() as u64,
                Sends::Nothing | Sends::Json(_) => 0,
            };
            let patience = ANSWER_TIMEOUT + Duration::from_secs(size / BYTES_PER_SECOND_MIN);
            let mut request = self.request(method.clone(), url.clone()).timeout(patience);
            request = match &sends {
                Sends::Nothing => request,
                Sends::Json(write) => request
                    .header("Idempotency-Key", write.key)
                    .json(&write.body),
                Sends::Bytes(bytes, key) => {
                    request.header("Idempotency-Key", key).body(bytes.to_vec())
                }
            };
            let again = match request.send().await {
                Ok(response) if response.status().is_success() => match self.body(response).await {
                    Ok(bytes) => return Ok(bytes),
                    Err(problem) => problem,
                },
                Ok(response) => {
                    let passing = may_pass(response.status());
                    let refusal = self.refusal(response).await;
                    if !passing {
                        return Err(refusal);
                    }
                    refusal
                }
                // Nobody is there: waiting a second does not change that, and the person wants to know.
                Err(error) if error.is_connect() => return Err(self.unreachable(&error)),
                Err(error) => self.unreachable(&error),
            };
            match waits.next() {
                Some(wait) => tokio::time::sleep(*wait).await,
                None => return Err(again),
            }
        }
    }

    async fn body(&self, mut response: Response) -> anyhow::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        loop {
            match response.chunk().await {
                Ok(Some(chunk)) if bytes.len() + chunk.len() <= ANSWER_BYTES_MAX => {
                    bytes.extend_from_slice(&chunk);
                }
                Ok(Some(_)) => {
                    let message = format!("the answer of `{}` is too large", self.address());
                    return Err(Problem::new(message, "ask for less with `--limit`").into());
                }
                Ok(None) => return Ok(bytes),
                Err(error) => return Err(self.unreachable(&error)),
            }
        }
    }

    fn decode(&self, bytes: &[u8]) -> anyhow::Result<Value> {
        serde_json::from_slice(bytes).or_hint(
            format_args!("`{}` did not answer in JSON", self.address()),
            "check that the address is that of an Agents Protocol server",
        )
    }

    /// Says that nobody answered.
    fn unreachable(&self, error: &reqwest::Error) -> anyhow::Error {
        let mut cause: &dyn std::error::Error = error;
        while let Some(next) = cause.source() {
            cause = next;
        }
        let cause = cause.to_string();
        let hint = hint::unreachable(&cause, &self.base);
        Problem::new(
            format!("no answer from `{}`: {cause}", self.address()),
            hint,
        )
        .into()
    }

    /// Says what to do about a key that does not do.
    fn key_hint(&self, code: &str, answer: &Value) -> Option<String> {
        let key = hint::Key {
            file: self.key_file.as_deref(),
            is_remote: !target::is_loopback(&self.base),
        };
        match code {
            "unauthenticated" => Some(key.is_unknown()),
            "permission_denied" => Some(key.forbidden(answer)),
            _ => None,
        }
    }

    /// Turns an error answer into words.
    async fn refusal(&self, response: Response) -> anyhow::Error {
        let status = response.status();
        let about_personas = response.url().path().contains("/v1/personas");
        let bytes = self.body(response).await.unwrap_or_default();
        let value: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        let member = |name: &str| value.pointer(name).and_then(Value::as_str);
        match (member("/error/code"), member("/error/message")) {
            (Some(code), Some(message)) => {
                let param = member("/error/param");
                let reason = member("/error/details/reason");
                let is_about_key = KEY_REFUSALS.contains(&code);
                let problem = if (about_personas || param == Some("persona_id")) && !is_about_key {
                    persona_refusal(code, message, param)
                } else if reason.is_some_and(|reason| TAMPERED.contains(&reason)) {
                    let hint = "what was sent is not what its receipt proves: it was changed or damaged; export it again";
                    Problem::new(refusal_text(code, message, param), hint).answers_no()
                } else if code == "cursor_expired" && reason.is_some() {
                    record_gone(code, message, reason)
                } else if let Some(hint) = self.key_hint(code, &value) {
                    let problem = Problem::new(refusal_text(code, message, param), hint);
                    match code {
                        "permission_denied" => problem.answers_no(),
                        _ => problem,
                    }
                } else {
                    refusal(code, message, param)
                };
                problem.with_code(code).into()
            }
            // The memory protocol's errors are bare.
            _ if value.get("recoverable").is_some() => {
                let (code, message) = (member("/code"), member("/message"));
                let code = code.unwrap_or_default();
                let message = message.unwrap_or_default();
                memory_refusal(code, message).with_code(code).into()
            }
            _ => Problem::new(
                format!(
                    "`{}` answered {status}: {}",
                    self.address(),
                    shorten(&String::from_utf8_lossy(&bytes), 200)
                ),
                "check that the address is that of an Agents Protocol server",
            )
            .into(),
        }
    }
}

/// What a server says when the key does not do.
const KEY_REFUSALS: [&str; 2] = ["unauthenticated", "permission_denied"];

/// Reasons of a refusal that mean: this is not what was recorded.
const TAMPERED: [&str; 5] = [
    "log_mismatch",
    "log_invalid",
    "receipt_missing",
    "receipt_mismatch",
    "blob_mismatch",
];

/// Why a stream did not open.
#[derive(Debug)]
enum StreamError {
    /// The connection failed.
    Lost(reqwest::Error),
    /// The server cannot at the moment.
    Busy(anyhow::Error),
    /// The server will not.
    Refused(anyhow::Error),
}

/// True for answers that a moment later may be different.
fn may_pass(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
    )
}

fn refusal_text(code: &str, message: &str, param: Option<&str>) -> String {
    let place = param
        .map(|param| format!(", `{param}`"))
        .unwrap_or_default();
    format!("{message} ({code}{place})")
}

/// Returns a refusal with advice, where it is about a persona.
fn persona_refusal(code: &str, message: &str, param: Option<&str>) -> Problem {
    let text = refusal_text(code, message, param);
    match code {
        "resource_not_found" => {
            Problem::new(text, "`reprise persona list` shows the personas").answers_no()
        }
        "conflict" => Problem::new(
            text,
            "give the file another `version`; `reprise persona show NAME@VERSION` shows what is there",
        )
        .answers_no(),
        _ => refusal(code, message, param),
    }
}

/// Returns a refusal of a memory field with advice.
fn memory_refusal(code: &str, message: &str) -> Problem {
    let mut text = refusal_text(code, message, None);
    // In the words of whoever typed a command.
    for (member, flag) in [
        ("`confidence.score`", "--score"),
        ("`confidence.reasoning`", "--reasoning"),
        ("`intent.purpose`", "--purpose"),
        ("`resolution.winner_id`", "--winner"),
        ("`resolution.synthesis`", "--synthesis"),
        ("`resolution.rationale`", "--rationale"),
        ("`agent_id`", "--agent"),
        ("`target_id`", "this id"),
        ("`id` belongs", "the id belongs"),
    ] {
        text = text.replace(member, flag);
    }
    let hint = match code {
        "AGENT_NOT_REGISTERED" => "`reprise field register AGENT --role ROLE` comes first",
        "AGENT_ID_TAKEN" => "choose another id; `reprise field status` shows those in use",
        "MISSING_CONFIDENCE" => {
            "say how sure the agent is with --score and --reasoning, or use --draft"
        }
        "CONFLICT_NOT_FOUND" => "`reprise field detect --agent AGENT` lists the conflicts",
        "UNIT_NOT_FOUND" => {
            "`reprise field attune --agent AGENT --role ROLE --own` shows units with their ids"
        }
        "MERGE_FAILED" => "try another --strategy; `reprise field merge --help` lists them",
        "REPLAY_TOO_LARGE" => "ask for less with --depth detailed or --depth summary",
        "FORBIDDEN" => {
            "use a key with `field:write` or `field:admin` that registered the agent; `reprise key list` shows them"
        }
        "UNAUTHENTICATED" => {
            "check --key or REPRISE_KEY; `reprise key create --actor NAME`, on the server's machine, creates a new key"
        }
        _ => "`--help` shows examples",
    };
    let problem = Problem::new(text, hint);
    let is_answer = [
        "AGENT_NOT_REGISTERED",
        "AGENT_ID_TAKEN",
        "CONFLICT_NOT_FOUND",
        "UNIT_NOT_FOUND",
        "INVALID_TRANSITION",
        "MERGE_FAILED",
        "REPLAY_TOO_LARGE",
        "UNSUPPORTED_OPERATION",
        "FORBIDDEN",
    ];
    match is_answer.contains(&code) {
        true => problem.answers_no(),
        false => problem,
    }
}

/// Returns a refusal with advice, where the log of a task is gone.
fn record_gone(code: &str, message: &str, reason: Option<&str>) -> Problem {
    let hint = match reason {
        Some("pruned") => {
            "the setting `retention_days` says how long events stay; \
            a bundle exported earlier with `reprise task export` can be replayed with --bundle"
        }
        _ => "`reprise log verify` says what is wrong with the data directory",
    };
    Problem::new(refusal_text(code, message, None), hint)
}

/// Says where to look for something that is not there, by the server's name of it.
fn where_to_look(message: &str) -> &'static str {
    match message.strip_prefix("no such ").unwrap_or_default() {
        "checkpoint" => "`reprise replay TASK --list` shows the checkpoints of a task",
        "event" => "`reprise event list --task TASK -q` shows the ids of a task's events",
        "artifact" => {
            "`reprise artifact list` shows the artifacts that this key may see; \
            a value of your own is given with --override KEY=FILE"
        }
        "permission_request" => "`reprise approvals list` shows what is waiting",
        "workspace" => "`reprise workspace list` shows the workspaces that this key may see",
        "path" => "give --url without `/v1` at its end",
        "receipt" => "`reprise receipt show TASK` finds the receipt of a task",
        "session" => "`reprise session list` shows the sessions that this key may see",
        _ => "`reprise task list` shows the tasks that this key may see",
    }
}

/// Returns what to do about a request that cannot be carried out as it is.
fn invalid(message: &str, param: Option<&str>) -> &'static str {
    match param {
        Some("metadata.workflow") => {
            "name one of those with --workflow; `reprise serve --examples` adds ask, approve and hold"
        }
        _ if message.starts_with("not a bundle") => {
            "the file was changed or cut short: export the run again with `reprise task export`"
        }
        _ => "correct the request; `--help` shows examples",
    }
}

/// Returns a refusal with advice.
fn refusal(code: &str, message: &str, param: Option<&str>) -> Problem {
    let text = refusal_text(code, message, param);
    match code {
        "resource_not_found" => Problem::new(text, where_to_look(message)).answers_no(),
        "unsupported_protocol_version" => Problem::new(
            text,
            format!("this program speaks `{PROTOCOL_VERSION}`: use a server that does"),
        ),
        "conflict" | "invalid_state_transition" | "resource_locked" => {
            Problem::new(text, "`reprise task get ID` shows where the task stands").answers_no()
        }
        "idempotency_key_reused" => Problem::new(
            text,
            "take a new `--idempotency-key`, or send exactly what was sent before",
        )
        .answers_no(),
        "policy_violation" => Problem::new(
            text,
            "change the request; if a setting of the server forbids it, ask its operator",
        )
        .answers_no(),
        "cursor_expired" => Problem::new(text, "start again without a cursor"),
        "invalid_request" | "payload_too_large" => Problem::new(text, invalid(message, param)),
        "rate_limited" | "service_unavailable" | "upstream_unavailable" | "deadline_exceeded" => {
            Problem::new(text, "try again in a moment")
        }
        _ => Problem::new(text, "the server's log says more"),
    }
}

/// Returns a key for a write that nobody else uses.
pub(crate) fn fresh_key() -> anyhow::Result<String> {
    let mut bytes = [0_u8; 16];
    getrandom::fill(&mut bytes).or_hint("cannot get random numbers", "check /dev/urandom")?;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("cli-{hex}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(url: &str) -> Client {
        Client::new(Target {
            url: Url::parse(url).unwrap(),
            key: "rpk_secret".to_owned(),
            key_file: None,
            ca: None,
        })
        .unwrap()
    }

    #[test]
    fn ids_cannot_reach_another_path() {
        let client = client("http://127.0.0.1:1/base/");
        let url = client
            .url(&["v1", "tasks", "a/../b?c#d"], &[("limit", "5")])
            .unwrap();
        assert_eq!(
            url.as_str(),
            "http://127.0.0.1:1/base/v1/tasks/a%2F..%2Fb%3Fc%23d?limit=5"
        );
        assert!(client.url(&["v1", "tasks", ".."], &[]).is_err());
        assert!(client.url(&["v1", "tasks", ""], &[]).is_err());
    }

    #[test]
    fn ap_auth_03_the_key_is_not_in_the_debug_text() {
        assert!(!format!("{:?}", client("http://127.0.0.1:1")).contains("rpk_secret"));
    }

    #[test]
    fn refusals_of_state_are_answers_and_the_rest_are_faults() {
        use crate::exit::{Exit, report};
        let exit = |code: &str| report(&refusal(code, "m", None).into(), false).1;
        for code in [
            "conflict",
            "invalid_state_transition",
            "idempotency_key_reused",
            "policy_violation",
            "resource_not_found",
        ] {
            assert_eq!(exit(code), Exit::No, "{code}");
        }
        for code in ["invalid_request", "internal_error", "new_code"] {
            assert_eq!(exit(code), Exit::Fault, "{code}");
        }
    }
}
