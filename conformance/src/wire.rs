//! The connection to the server under test.
//!
//! Owns requests, answers and streams, and notes every answer in the ledger. It adds the credential and the version
//! header unless told otherwise, and never an `Idempotency-Key`. It judges nothing but "there was an answer".

use std::collections::VecDeque;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use reqwest::Method;
use reqwest::header::HeaderMap;
use serde_json::Value;
use tokio::time::Instant;

use crate::json::{at, short, show, text};
use crate::ledger::Ledger;
use crate::miss::{Checked, Miss, fail, need, unseen};
use crate::sse::{Frame, Item, Parser};

/// The protocol version this runner speaks.
pub(crate) const VERSION: &str = "agents-protocol-2026-04-25";
/// The header that carries it.
pub(crate) const VERSION_HEADER: &str = "Harn-Agents-Protocol-Version";
/// The header that makes a write repeatable.
pub(crate) const IDEMPOTENCY_KEY: &str = "Idempotency-Key";

/// What the discovery document claims.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Claims {
    pub(crate) websocket: bool,
    pub(crate) receipts: bool,
    pub(crate) replay: bool,
}

/// The server under test and what was seen of it.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) base: reqwest::Url,
    pub(crate) key: String,
    pub(crate) other_key: Option<String>,
    pub(crate) approver_key: Option<String>,
    pub(crate) dead_keys: Vec<String>,
    pub(crate) expired_keys: Vec<String>,
    pub(crate) make_key: Option<String>,
    pub(crate) restart: Option<String>,
    pub(crate) timeout: Duration,
    pub(crate) claims: Claims,
    /// True to judge by the published suite alone, also where it contradicts the contract.
    pub(crate) published: bool,
    /// The workspace in which checks work that do not need one of their own.
    pub(crate) home: String,
    http: Mutex<reqwest::Client>,
    ledger: Mutex<Ledger>,
    run: String,
    count: AtomicU64,
}

impl Wire {
    pub(crate) fn new(
        base: reqwest::Url,
        key: String,
        (other_key, approver_key): (Option<String>, Option<String>),
        restart: Option<String>,
        timeout: Duration,
    ) -> reqwest::Result<Self> {
        let http = Mutex::new(client()?);
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Ok(Self {
            base,
            key,
            other_key,
            approver_key,
            dead_keys: Vec::new(),
            expired_keys: Vec::new(),
            make_key: None,
            restart,
            timeout,
            claims: Claims::default(),
            published: false,
            home: "workspace_local".to_owned(),
            http,
            ledger: Mutex::default(),
            run: format!("{:x}", since.as_micros()),
            count: AtomicU64::new(0),
        })
    }

    /// Returns a name that no other call and no other run returns.
    pub(crate) fn fresh(&self, stem: &str) -> String {
        format!(
            "{stem}-{}-{}",
            self.run,
            self.count.fetch_add(1, Ordering::Relaxed)
        )
    }

    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the credentials from a text that goes into a report.
    pub(crate) fn redact(&self, text: &str) -> String {
        // A key of a few letters is a placeholder, and removing it would make the report unreadable.
        let keys = std::iter::once(&self.key)
            .chain(self.other_key.as_ref())
            .chain(self.approver_key.as_ref())
            .chain(&self.dead_keys)
            .chain(&self.expired_keys)
            .filter(|key| key.len() >= 8);
        keys.fold(text.to_owned(), |text, key| {
            text.replace(key.as_str(), "<key>")
        })
    }

    /// Returns the second credential, or ends the check.
    pub(crate) fn other(&self) -> Result<&str, Miss> {
        self.other_key
            .as_deref()
            .map_or_else(|| unseen("needs --other-key"), Ok)
    }

    /// Ends the check when the server cannot be restarted.
    pub(crate) fn can_restart(&self) -> Checked {
        self.restart
            .as_ref()
            .map_or_else(|| unseen("needs --restart"), |_| Ok(()))
    }

    /// Kills and restarts the server, or ends the check.
    pub(crate) async fn restart(&self) -> Checked {
        let Some(command) = &self.restart else {
            return unseen("needs --restart");
        };
        // Nothing is captured: a server that inherits a pipe would keep it open and the wait would never end.
        let run = tokio::process::Command::new("sh")
            .arg("-c")
            .arg(command)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        let ended = tokio::time::timeout(Duration::from_secs(60).max(self.timeout), run).await;
        // Connections to the server that is gone must not surface as a reset of an unrelated request.
        if let Ok(fresh) = client() {
            *self.http.lock().unwrap_or_else(PoisonError::into_inner) = fresh;
        }
        match ended {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => unseen(format!("the restart command ended with {status}")),
            Ok(Err(error)) => unseen(format!("the restart command did not start: {error}")),
            Err(_) => unseen("the restart command did not end in time"),
        }
    }

    pub(crate) fn get(&self, path: impl Into<String>) -> Call<'_> {
        self.call(Method::GET, path)
    }

    /// Prepares a POST without a body.
    pub(crate) fn post_empty(&self, path: impl Into<String>) -> Call<'_> {
        self.call(Method::POST, path)
    }

    pub(crate) fn post(&self, path: impl Into<String>, body: &Value) -> Call<'_> {
        self.call(Method::POST, path).json(body)
    }

    pub(crate) fn patch(&self, path: impl Into<String>, body: &Value) -> Call<'_> {
        self.call(Method::PATCH, path).json(body)
    }

    pub(crate) fn call(&self, method: Method, path: impl Into<String>) -> Call<'_> {
        Call {
            wire: self,
            method,
            path: path.into(),
            key: Some(self.key.clone()),
            version: Some(VERSION.to_owned()),
            headers: Vec::new(),
            body: None,
        }
    }

    /// Returns the full address of a path.
    pub(crate) fn address(&self, path: &str) -> String {
        format!("{}{path}", self.base.as_str().trim_end_matches('/'))
    }
}

/// A request that is being put together.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    wire: &'a Wire,
    method: Method,
    path: String,
    key: Option<String>,
    version: Option<String>,
    headers: Vec<(&'static str, String)>,
    body: Option<(&'static str, Vec<u8>)>,
}

impl<'a> Call<'a> {
    /// Sends no credential.
    pub(crate) fn anonymous(mut self) -> Self {
        self.key = None;
        self
    }

    /// Sends another credential.
    pub(crate) fn key(mut self, key: &str) -> Self {
        self.key = Some(key.to_owned());
        self
    }

    /// Sends another version, or none.
    pub(crate) fn version(mut self, version: Option<&str>) -> Self {
        self.version = version.map(str::to_owned);
        self
    }

    pub(crate) fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// Makes the write repeatable.
    pub(crate) fn once(self, key: &str) -> Self {
        self.header(IDEMPOTENCY_KEY, key)
    }

    pub(crate) fn json(self, body: &Value) -> Self {
        self.bytes("application/json", body.to_string())
    }

    pub(crate) fn bytes(mut self, content_type: &'static str, body: impl Into<Vec<u8>>) -> Self {
        self.body = Some((content_type, body.into()));
        self
    }

    /// Sends the request and reads the whole answer.
    pub(crate) async fn send(self) -> Result<Answer, Miss> {
        let (wire, label) = (self.wire, self.label());
        // JSON of another type is fine for who asked for it.
        let accepts = self.headers.iter();
        let accepts = accepts.filter(|(name, _)| name.eq_ignore_ascii_case("accept"));
        let accepts: Vec<String> = accepts.map(|(_, value)| value.clone()).collect();
        let sent = self.builder().timeout(wire.timeout).send().await;
        let answer = async {
            let response = sent?;
            let (status, headers) = (response.status().as_u16(), response.headers().clone());
            Ok::<_, reqwest::Error>((status, headers, response.bytes().await?))
        };
        match answer.await {
            Ok((status, headers, body)) => {
                let answer = Answer {
                    label,
                    status,
                    headers,
                    body: body.to_vec(),
                };
                let mut content_type = answer.header("content-type");
                if accepts.iter().any(|asked| content_type.starts_with(asked)) {
                    content_type = "application/json";
                }
                wire.ledger()
                    .note_answer(&answer.label, content_type, &answer.body);
                Ok(answer)
            }
            Err(error) => fail(format!("an answer to {label}"), cause(&error)),
        }
    }

    /// Sends the request as preparation: any refusal ends the check as not covered.
    pub(crate) async fn made(self, step: &str) -> Result<Value, Miss> {
        let made = async {
            let answer = self.send().await?;
            need(
                (200..300).contains(&answer.status),
                format!("success of {}", answer.label),
                answer.found(),
            )?;
            answer.value()
        };
        made.await.map_err(|miss: Miss| miss.while_preparing(step))
    }

    /// Sends the request and hands over the body as a stream of events.
    pub(crate) async fn stream(self) -> Result<Stream<'a>, Miss> {
        let (wire, label) = (self.wire, self.label());
        let sent = tokio::time::timeout(wire.timeout, self.builder().send()).await;
        let response = match sent {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return fail(format!("an answer to {label}"), cause(&error)),
            Err(_) => return fail(format!("an answer to {label}"), "none in time"),
        };
        let status = response.status().as_u16();
        let content_type = response
            .headers()
            .get("content-type")
            .and_then(|value| value.to_str().ok());
        let content_type = content_type.unwrap_or_default().to_owned();
        let bytes = response
            .bytes_stream()
            .map(|piece| piece.map(|piece| piece.to_vec()))
            .boxed();
        Ok(Stream {
            wire,
            label,
            status,
            content_type,
            bytes,
            parser: Parser::default(),
            ready: VecDeque::new(),
        })
    }

    fn label(&self) -> String {
        format!("{} {}", self.method, self.path)
    }

    fn builder(self) -> reqwest::RequestBuilder {
        let http = self.wire.http.lock();
        let http = http.unwrap_or_else(PoisonError::into_inner).clone();
        let mut builder = http.request(self.method, self.wire.address(&self.path));
        if let Some(key) = &self.key {
            builder = builder.header("Authorization", format!("Bearer {key}"));
        }
        if let Some(version) = &self.version {
            builder = builder.header(VERSION_HEADER, version);
        }
        for (name, value) in &self.headers {
            builder = builder.header(*name, value);
        }
        if let Some((content_type, body)) = self.body {
            builder = builder.header("Content-Type", content_type).body(body);
        }
        builder
    }
}

fn client() -> reqwest::Result<reqwest::Client> {
    reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .build()
}

fn cause(error: &reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        text = format!("{text}: {inner}");
        source = inner.source();
    }
    short(&text)
}

/// A whole answer.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) label: String,
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// Returns a header, empty when absent or not text.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    }

    pub(crate) fn body_text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Describes the answer for a report.
    pub(crate) fn found(&self) -> String {
        short(&format!("{} {}", self.status, self.body_text()))
    }

    /// Requires one of some statuses.
    pub(crate) fn want(&self, statuses: &[u16]) -> Checked {
        let names: Vec<String> = statuses.iter().map(u16::to_string).collect();
        need(
            statuses.contains(&self.status),
            format!("{}: {}", self.label, names.join(" or ")),
            self.found(),
        )
    }

    /// Requires JSON and returns it.
    pub(crate) fn value(&self) -> Result<Value, Miss> {
        serde_json::from_slice(&self.body)
            .map_or_else(|_| fail(format!("{}: JSON", self.label), self.found()), Ok)
    }

    /// Requires a status and returns the JSON.
    pub(crate) fn value_of(&self, statuses: &[u16]) -> Result<Value, Miss> {
        self.want(statuses)?;
        self.value()
    }

    /// Requires a refusal with this status and code and returns the `error` object.
    pub(crate) fn refused(&self, status: u16, code: &str) -> Result<Value, Miss> {
        let error = serde_json::from_slice::<Value>(&self.body)
            .map_or(Value::Null, |body| at(&body, "error").clone());
        let holds = self.status == status && text(&error, "code") == code;
        need(
            holds,
            format!("{}: {status} `{code}`", self.label),
            self.found(),
        )?;
        Ok(error)
    }

    /// Requires a refusal that names the member at fault.
    pub(crate) fn refused_for(&self, status: u16, code: &str, param: &str) -> Checked {
        let error = self.refused(status, code)?;
        need(
            text(&error, "param") == param,
            format!("{}: `param` `{param}`", self.label),
            show(&error),
        )
    }
}

/// What a stream did within a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Next {
    Item(Item),
    End,
    Quiet,
}

/// An open stream of events.
pub(crate) struct Stream<'a> {
    pub(crate) label: String,
    pub(crate) status: u16,
    pub(crate) content_type: String,
    wire: &'a Wire,
    bytes: BoxStream<'static, reqwest::Result<Vec<u8>>>,
    parser: Parser,
    ready: VecDeque<Item>,
}

impl Stream<'_> {
    /// Requires a stream, not a refusal.
    pub(crate) fn opened(self) -> Result<Self, Miss> {
        let found = format!("{} `{}`", self.status, self.content_type);
        need(self.status == 200, format!("{}: 200", self.label), found)?;
        Ok(self)
    }

    /// Waits for the next item. A connection that breaks counts as its end.
    pub(crate) async fn next(&mut self, within: Duration) -> Next {
        let deadline = Instant::now() + within;
        loop {
            if let Some(item) = self.ready.pop_front() {
                self.note(&item);
                return Next::Item(item);
            }
            match tokio::time::timeout_at(deadline, self.bytes.next()).await {
                Ok(Some(Ok(bytes))) => self.ready.extend(self.parser.push(&bytes)),
                Ok(Some(Err(_)) | None) => return Next::End,
                Err(_) => return Next::Quiet,
            }
        }
    }

    /// Waits for the next frame, passing over comments.
    pub(crate) async fn frame(&mut self, within: Duration) -> Option<Frame> {
        let deadline = Instant::now() + within;
        loop {
            match self
                .next(deadline.saturating_duration_since(Instant::now()))
                .await
            {
                Next::Item(Item::Frame(frame)) => return Some(frame),
                Next::Item(Item::Comment(_)) => {}
                Next::End | Next::Quiet => return None,
            }
        }
    }

    /// Reads frames until the stream ends or stays silent for a while; tells whether it ended.
    pub(crate) async fn rest(&mut self, silence: Duration) -> (Vec<Frame>, bool) {
        let mut frames = Vec::new();
        loop {
            match self.next(silence).await {
                Next::Item(Item::Frame(frame)) => frames.push(frame),
                Next::Item(Item::Comment(_)) => {}
                Next::End => return (frames, true),
                Next::Quiet => return (frames, false),
            }
        }
    }

    fn note(&self, item: &Item) {
        if let Item::Frame(Frame {
            data: Some(data), ..
        }) = item
            && let Ok(value) = serde_json::from_str(data)
        {
            self.wire.ledger().note(&self.label, &value);
        }
    }
}

/// Returns the JSON in a frame's `data`, null when there is none.
pub(crate) fn frame_data(frame: &Frame) -> Value {
    frame
        .data
        .as_deref()
        .and_then(|data| serde_json::from_str(data).ok())
        .unwrap_or_default()
}
