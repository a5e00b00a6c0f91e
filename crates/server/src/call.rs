//! A request on its way to a handler and back: who calls, with what in path, query, headers and body, and what is shown.

mod list;

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, MatchedPath, Query, RawPathParams, Request};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use canon::{Integers, Map, Value};
use domain::{Govern, ResourceKind, WorkspaceId};
use engine::{Answer, Caller, Idempotency, Refused, Request as Write, Settle, Upload};
use futures_util::stream;
use http_body_util::BodyExt;
use serde_json::json;
use wire::Code;
use wire::access::WorkspaceRule;
use wire::decode::{DecodeInput, Settings};
use wire::openapi::Operation;
use wire::render::resource;

use crate::app::{App, SMALL_BODY_BYTES};
use crate::byte_budget::Reservation;
use crate::failure::{Failure, Reply};
use crate::gate::{self, Credential, RequestId};
pub(crate) use list::page;

/// Bytes of a body over its limit that are read and dropped, so that its sender gets to read the answer.
const OVERRUN_BYTES_MAX: usize = 16 * 1024 * 1024;

/// A request by a known caller.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) app: Arc<App>,
    pub(crate) caller: Arc<Caller>,
    pub(crate) credential: Credential,
    pub(crate) request_id: String,
    operation: &'static Operation,
    method: Method,
    params: Vec<(String, String)>,
    query: Vec<(String, String)>,
    headers: HeaderMap,
    /// Read once. The lock is never waited for: it makes a call shareable, which a body alone is not.
    body: Mutex<Body>,
}

impl FromRequest<Arc<App>> for Call {
    type Rejection = Failure;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Failure> {
        let (mut parts, body) = request.into_parts();
        let bad = |what: &str| Failure::invalid("", format!("the {what} is not UTF-8"));
        let params = RawPathParams::from_request_parts(&mut parts, app)
            .await
            .map_err(|_| bad("path"))?;
        let params: Vec<(String, String)> = params
            .iter()
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let Query(query) =
            Query::<Vec<(String, String)>>::try_from_uri(&parts.uri).map_err(|_| bad("query"))?;
        let lost = || Failure::new(Code::InternalError, "internal error");
        let template = parts.extensions.get::<MatchedPath>().ok_or_else(lost)?;
        let caller = parts.extensions.get::<Arc<Caller>>().cloned();
        let caller = caller.ok_or_else(lost)?;
        // What is not described is not served.
        let operation = app
            .operation(&parts.method, template.as_str())
            .ok_or_else(lost)?;
        let workspace = in_workspace(&query)?;
        authorize(app, &caller, operation, &params, workspace.as_ref()).await?;
        unencoded(&parts.headers)?;
        list::known_filters(operation, &query)?;
        Ok(Self {
            app: Arc::clone(app),
            caller,
            credential: *parts.extensions.get::<Credential>().ok_or_else(lost)?,
            request_id: parts
                .extensions
                .get::<RequestId>()
                .map(|id| id.0.clone())
                .unwrap_or_default(),
            operation,
            method: parts.method,
            params,
            query,
            headers: parts.headers,
            body: Mutex::new(body),
        })
    }
}

/// A write that is nothing but its request: its row in the table of operations says how it is read and shown.
pub(crate) async fn write(mut call: Call) -> Reply {
    let answer = call.carry_out().await?;
    Ok(call.shown(&answer))
}

/// Refuses bodies whose bytes are not what they say: nothing here takes a coding off again.
fn unencoded(headers: &HeaderMap) -> Result<(), Failure> {
    let only = |name, plain: &str| {
        let lines = headers.get_all(name).iter();
        let mut words = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
        words.all(|word| word.trim_ascii().eq_ignore_ascii_case(plain.as_bytes()))
    };
    if !only(header::CONTENT_ENCODING, "identity") {
        let message = "encoded bodies are not supported; send the bytes as they are";
        return Err(unsupported(415, "content_encoding", message));
    }
    if !only(header::TRANSFER_ENCODING, "chunked") {
        let message = "the only transfer coding that is supported is `chunked`";
        return Err(unsupported(501, "transfer_encoding", message));
    }
    Ok(())
}

pub(crate) fn unsupported(status: u16, reason: &str, message: impl Into<String>) -> Failure {
    let mut failure = Failure::new(Code::InvalidRequest, message).with("reason", json!(reason));
    failure.status = status;
    failure
}

/// Returns whether a body of this type is read as JSON. Beside JSON that is what tools send who were not told a type.
pub(crate) fn is_json(given: &str) -> bool {
    let mut parts = given.split(';').map(str::trim);
    let essence = parts.next().unwrap_or_default().to_ascii_lowercase();
    let is_utf_8 = parts.all(|part| {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        let value = value.trim_matches('"');
        !name.trim().eq_ignore_ascii_case("charset")
            || value.eq_ignore_ascii_case("utf-8")
            || value.eq_ignore_ascii_case("us-ascii")
    });
    let untold = [
        "",
        "application/json",
        "text/json",
        "text/plain",
        "application/octet-stream",
        "application/x-www-form-urlencoded",
    ];
    is_utf_8 && (untold.contains(&essence.as_str()) || essence.ends_with("+json"))
}

/// Reads the Workspace that a request about a governed session names.
fn in_workspace(query: &[(String, String)]) -> Result<Option<WorkspaceId>, Failure> {
    let given = query.iter().find(|(name, _)| name == "in_workspace");
    let parsed = given.map(|(_, text)| WorkspaceId::parse(text)).transpose();
    parsed.map_err(|_| Failure::not_found(WorkspaceId::OBJECT))
}

/// Checks what can be told before a body is read: the scopes of the operation, and that the caller may see what the path
/// of a write names. A read looks at it anyway.
pub(crate) async fn authorize(
    app: &App,
    caller: &Caller,
    operation: &Operation,
    params: &[(String, String)],
    workspace: Option<&WorkspaceId>,
) -> Result<(), Failure> {
    let access = operation.access;
    for scope in access.all_of {
        caller.require(scope)?;
    }
    if let Some(first) = access.one_of.first()
        && !access.one_of.iter().any(|scope| caller.may(scope))
    {
        caller.require(first)?;
    }
    match access.place {
        WorkspaceRule::Every(scope) if caller.workspaces().is_some() => {
            Err(Refused::PermissionDenied { scope }.into())
        }
        WorkspaceRule::InPath(kind) if operation.body != wire::openapi::Body::Absent => {
            let subject = operation.subject();
            let named = params
                .iter()
                .find(|(name, _)| Some(name.as_str()) == subject);
            let id = named.map(|(_, value)| value.as_str()).unwrap_or_default();
            Ok(app.engine.sees(caller, kind, id).await?)
        }
        WorkspaceRule::Governed if operation.body != wire::openapi::Body::Absent => {
            let named = params.iter().find(|(name, _)| name == "session_id");
            let id = named.map(|(_, value)| value.as_str()).unwrap_or_default();
            Ok(app.engine.sees_governed(caller, id, workspace).await?)
        }
        WorkspaceRule::GovernedWorkflow if operation.body != wire::openapi::Body::Absent => {
            let named = |name: &str| {
                let found = params.iter().find(|(known, _)| known == name);
                found.map(|(_, value)| value.as_str())
            };
            let (id, is_handoff) = match named("handoff_id") {
                Some(id) => (id, true),
                None => (named("workflow_id").unwrap_or_default(), false),
            };
            let engine = &app.engine;
            Ok(engine
                .sees_workflow(caller, id, is_handoff, workspace)
                .await?)
        }
        WorkspaceRule::InPath(_)
        | WorkspaceRule::Governed
        | WorkspaceRule::GovernedWorkflow
        | WorkspaceRule::Every(_)
        | WorkspaceRule::Unplaced
        | WorkspaceRule::InBody
        | WorkspaceRule::Filtered => Ok(()),
    }
}

impl Call {
    /// Returns the path that the operation is described under.
    pub(crate) fn path(&self) -> &'static str {
        self.operation.path
    }

    pub(crate) fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// Returns a parameter of the path.
    pub(crate) fn param(&self, name: &str) -> &str {
        let found = self.params.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str()).unwrap_or_default()
    }

    /// Reads a parameter of the path as an id. What is no id of the kind names nothing.
    pub(crate) fn id<T, E>(
        &self,
        name: &str,
        object: &'static str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<T, Failure> {
        parse(self.param(name)).map_err(|_| Failure::not_found(object))
    }

    /// Returns a parameter of the query, given at most once.
    pub(crate) fn query(&self, name: &str) -> Result<Option<&str>, Failure> {
        let mut found = self.query.iter().filter(|(known, _)| known == name);
        let first = found.next().map(|(_, value)| value.as_str());
        match found.next() {
            None => Ok(first),
            Some(_) => Err(Failure::invalid(name, format!("`{name}` is given twice"))),
        }
    }

    /// Returns a header's text.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Reads the body as a JSON object; none at all is an empty one (AP-REST-04).
    pub(crate) async fn json(&mut self) -> Result<Map<String, Value>, Failure> {
        self.json_and_text().await.map(|(body, _)| body)
    }

    /// Reads the body as a JSON object, and returns it with the text that it was read from.
    pub(crate) async fn json_and_text(&mut self) -> Result<(Map<String, Value>, Bytes), Failure> {
        if self
            .header("content-type")
            .is_some_and(|given| !is_json(given))
        {
            let message = "a body of this type cannot be read; send JSON in UTF-8";
            return Err(unsupported(415, "content_type", message));
        }
        let bytes = self.bytes(self.app.config.body_bytes_max).await?;
        if bytes.iter().all(u8::is_ascii_whitespace) {
            return Ok((Map::new(), bytes));
        }
        let mut body = canon::read_object(&bytes, Integers::Safe)
            .map_err(|error| Failure::invalid("", format!("the body cannot be read: {error}")))?;
        let depth = 1 + body.values().map(canon::depth).max().unwrap_or_default();
        if depth > canon::VALUE_DEPTH_MAX {
            let message = format!(
                "the body nests {depth} levels deep; {} are allowed",
                canon::VALUE_DEPTH_MAX
            );
            return Err(Failure::invalid("", message)
                .with("reason", json!("nested_too_deeply"))
                .with("depth_max", json!(canon::VALUE_DEPTH_MAX)));
        }
        if let Some(key) = gate::presented(&self.headers) {
            gate::redact(&mut body, key);
        }
        Ok((body, bytes))
    }

    /// Reads the body as it is.
    pub(crate) async fn bytes(&mut self, bytes_max: usize) -> Result<Bytes, Failure> {
        self.bytes_in_room(bytes_max, 1)
            .await
            .map(|(bytes, _)| bytes)
    }

    /// Reads the body as it is, and takes room for it and for what is made of it: so many times its length. The room is held
    /// until the caller gives it back.
    pub(crate) async fn bytes_in_room(
        &mut self,
        bytes_max: usize,
        times: usize,
    ) -> Result<(Bytes, Option<Reservation>), Failure> {
        let body = self.body.get_mut().unwrap_or_else(PoisonError::into_inner);
        let mut body = std::mem::take(body);
        let too_large = || {
            let message = format!("the body is longer than {bytes_max} bytes");
            Failure::new(Code::PayloadTooLarge, message).with("bytes_max", json!(bytes_max))
        };
        let read_max = bytes_max.saturating_add(OVERRUN_BYTES_MAX);
        // A body that says itself that reading it to the end is hopeless is answered before it is sent.
        let claimed = self
            .header("content-length")
            .and_then(|text| text.parse::<u64>().ok());
        if claimed.is_some_and(|claimed| claimed > read_max as u64) {
            return Err(too_large());
        }
        // A large body takes its room before it is read: what waits to be read is not in memory.
        let needed = claimed.map_or(bytes_max, |claimed| {
            usize::try_from(claimed).unwrap_or(bytes_max).min(bytes_max)
        });
        let room = needed.saturating_mul(times);
        let room = self.app.room(self.credential, room).await?;
        // What grows as it is filled takes twice its length in the end.
        let mut bytes = BytesMut::with_capacity(claimed.map_or(0, |_| needed));
        let mut length = 0;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| Failure::invalid("", "the body ended early"))?;
            let Ok(data) = frame.into_data() else {
                continue;
            };
            length += data.len();
            if length <= bytes_max {
                bytes.extend_from_slice(&data);
            } else {
                bytes.clear();
                if length > read_max {
                    break;
                }
            }
        }
        if length > bytes_max {
            return Err(too_large());
        }
        Ok((bytes.freeze(), room))
    }

    /// Answers with bytes that are in memory, and takes room for them until they are sent.
    pub(crate) async fn whole(&self, bytes: Vec<u8>) -> Result<(u64, Body), Failure> {
        let room = self.app.room(self.credential, bytes.len()).await?;
        let length = bytes.len() as u64;
        let body = match room {
            None => Body::from(bytes),
            Some(room) => {
                let rest = (Bytes::from(bytes), room);
                Body::from_stream(stream::unfold(rest, |(mut rest, room)| async {
                    const PIECE_BYTES: usize = 64 * 1024;
                    let piece = rest.split_to(rest.len().min(PIECE_BYTES));
                    (!piece.is_empty()).then(|| (Ok::<_, Infallible>(piece), (rest, room)))
                }))
            }
        };
        Ok((length, body))
    }

    /// Takes the body in piece by piece, hashed as it arrives.
    pub(crate) async fn upload(&mut self, bytes_max: usize) -> Result<Upload, Failure> {
        let body = self.body.get_mut().unwrap_or_else(PoisonError::into_inner);
        let mut body = std::mem::take(body);
        let too_large = || {
            let message = format!("the body is longer than {bytes_max} bytes");
            Failure::new(Code::PayloadTooLarge, message).with("bytes_max", json!(bytes_max))
        };
        let read_max = bytes_max.saturating_add(OVERRUN_BYTES_MAX);
        let claimed = self
            .header("content-length")
            .and_then(|text| text.parse::<usize>().ok());
        if claimed.is_some_and(|claimed| claimed > read_max) {
            return Err(too_large());
        }
        let needed = claimed.unwrap_or(bytes_max).min(bytes_max);
        let _room = match needed <= SMALL_BODY_BYTES {
            true => None,
            false => Some(self.app.uploads.take(self.credential, needed).await?),
        };
        let mut upload = Some(self.app.engine.begin_upload());
        let mut length = 0;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| Failure::invalid("", "the body ended early"))?;
            let Ok(data) = frame.into_data() else {
                continue;
            };
            length += data.len();
            if length > bytes_max {
                // What is read on is dropped, so that its sender gets to read the answer.
                upload = None;
                if length > read_max {
                    break;
                }
            }
            if let Some(upload) = &mut upload {
                upload.push(&data).await?;
            }
        }
        upload.ok_or_else(too_large)
    }

    /// Returns the route's template with its parameters filled in: the same for every spelling of a path.
    fn target(&self) -> String {
        let mut target = self.operation.path.to_owned();
        for (name, value) in &self.params {
            target = target.replace(&format!("{{{name}}}"), value);
        }
        target
    }

    /// Reads the idempotency key, when there is one (AP-IDEM-08).
    pub(crate) fn idempotency(&self, body: Value) -> Result<Option<Idempotency>, Failure> {
        const NAME: &str = "Idempotency-Key";
        let mut lines = self.headers.get_all("idempotency-key").iter();
        let Some(line) = lines.next() else {
            return Ok(None);
        };
        let wrong = |message: &str| Failure::invalid(NAME, message);
        if lines.next().is_some() {
            return Err(wrong("the idempotency key is given twice"));
        }
        let key = line
            .to_str()
            .ok()
            .filter(|key| !key.contains('\t'))
            .ok_or_else(|| wrong("the idempotency key must be printable ASCII"))?;
        if !(1..=255).contains(&key.len()) {
            return Err(wrong("the idempotency key must have 1 to 255 characters"));
        }
        if gate::presented(&self.headers).is_some_and(|secret| key.contains(secret)) {
            return Err(wrong("the idempotency key contains the credential"));
        }
        Ok(Some(Idempotency {
            key: key.to_owned(),
            method: self.method.as_str().to_owned(),
            target: self.target(),
            body,
        }))
    }

    /// Has the engine carry out a write.
    pub(crate) async fn dispatch(&self, request: Write, body: Value) -> Result<Answer, Failure> {
        let idempotency = self.idempotency(body)?;
        let preferences = self.headers.get_all("prefer").iter();
        let settle = preferences
            .filter_map(|line| line.to_str().ok())
            .flat_map(|line| line.split(','))
            .any(|preference| preference.trim().eq_ignore_ascii_case("respond-async"));
        let settle = match settle {
            true => Settle::FirstWorking,
            false => Settle::Window,
        };
        let engine = &self.app.engine;
        Ok(engine
            .dispatch(&self.caller, request, idempotency, settle)
            .await?)
    }

    /// Returns the Workspace of the governed session that the path names, when the query says it.
    pub(crate) fn in_workspace(&self) -> Result<Option<WorkspaceId>, Failure> {
        in_workspace(&self.query)
    }

    /// Has a governed session take a request. True when it made something new.
    pub(crate) async fn govern(
        &self,
        mut request: Govern,
        body: Value,
    ) -> Result<(Value, bool), Failure> {
        let idempotency = self.idempotency(body)?;
        if let Govern::Do { workspace_id, .. } | Govern::Handoff { workspace_id, .. } = &mut request
        {
            *workspace_id = self.in_workspace()?;
        }
        if let Some(named) = self.in_workspace()? {
            let own = match &mut request {
                Govern::Open(new) => Some(&mut new.workspace_id),
                Govern::OpenWorkflow(new) => Some(&mut new.workspace_id),
                Govern::Do { .. } | Govern::Handoff { .. } => None,
            };
            if let Some(own) = own
                && *own.get_or_insert_with(|| named.clone()) != named
            {
                let message = "is another Workspace than `workspace_id`";
                return Err(Failure::invalid("in_workspace", message));
            }
        }
        let engine = &self.app.engine;
        Ok(engine.govern(&self.caller, request, idempotency).await?)
    }

    /// Decodes a body into the request that the operation's row says.
    pub(crate) fn decode(&self, body: &Map<String, Value>) -> Result<Write, Failure> {
        let lost = || Failure::new(Code::InternalError, "internal error");
        let decode = self.operation.decode.ok_or_else(lost)?;
        let incoming = DecodeInput {
            params: &self.params,
            body,
            settings: Settings {
                initial_messages_max: self.app.engine.limits().fork_messages_max,
                replay_conformance: self.app.config.replay_conformance,
            },
        };
        Ok(decode(&incoming)?)
    }

    /// Reads the body, decodes it and has the engine carry it out.
    pub(crate) async fn carry_out(&mut self) -> Result<Answer, Failure> {
        let body = self.json().await?;
        let request = self.decode(&body)?;
        self.dispatch(request, Value::Object(body)).await
    }

    /// Shows what a write left. Some operations have another status when nothing changed.
    pub(crate) fn shown(&self, answer: &Answer) -> Response {
        let status = match self.operation.also {
            [unchanged] if !answer.changed => *unchanged,
            _ => self.operation.status,
        };
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
        let body = resource(&answer.view).bytes();
        (status, json_bytes(body)).into_response()
    }

    /// Shows one resource.
    pub(crate) async fn read(&self, kind: ResourceKind, param: &str) -> Reply {
        let view = self
            .app
            .engine
            .get(&self.caller, kind, self.param(param))
            .await?;
        Ok(json_bytes(resource(&view).bytes()))
    }

    /// Refuses to go on unless the caller may see a resource.
    pub(crate) async fn must_see(&self, kind: ResourceKind, param: &str) -> Result<(), Failure> {
        let engine = &self.app.engine;
        Ok(engine.sees(&self.caller, kind, self.param(param)).await?)
    }
}

/// Answers with JSON.
pub(crate) fn reply(status: StatusCode, body: &Value) -> Response {
    (status, json_bytes(body.to_string())).into_response()
}

/// Answers with JSON and 200.
pub(crate) fn ok(body: &Value) -> Response {
    reply(StatusCode::OK, body)
}

/// Answers with JSON that is written already.
pub(crate) fn json_bytes(bytes: impl Into<Body>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], bytes.into()).into_response()
}
