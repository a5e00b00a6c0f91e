//! The memory protocol (Akashik 0.1.0): messages to a field, and views of it.

use std::sync::Arc;

use axum::Extension;
use axum::extract::ws::{WebSocketUpgrade, rejection::WebSocketUpgradeRejection};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing;
use engine::{Caller, FieldRefused, FieldStream, FieldView, Retraction};
use field::{Code, Envelope, Operation, Refusal, TargetType};

use super::Routes;
use crate::app::App;
use crate::call::{self, Call};
use crate::connection::{ConnectionSlot, ConnectionState};
use crate::failure::{Failure, Reply};
use crate::{gate, memory, socket, sse};

macro_rules! twice {
    ($routes:ident $($method:ident $path:literal $handler:ident)*) => {
        $routes
            $(
                .$method(concat!("/akashik/v1/", $path), $handler)
                .$method(concat!("/akashik/fields/{field_id}/v1/", $path), $handler)
            )*
    };
}

pub(super) fn routes(routes: Routes) -> Routes {
    let routes = routes.on("post", "/mcp", routing::post(tools));
    twice! { routes
        post "register" message
        post "deregister" message
        post "record" message
        post "attune" message
        post "detect" message
        post "merge" message
        post "replay" message
        post "compact" message
        post "subscribe" message
        post "handoff" message
        post "coordinate" message
        post "session" message
        post "field/retract" retract
        get "field/status" status
        get "field/graph" graph
        get "notifications" notifications
        get_parts "notifications/socket" socket
        get "agents" agents
        get "conflicts" conflicts
    }
}

/// Lets the SDK answer, once the caller may use any of the tools.
async fn tools(State(app): State<Arc<App>>, request: Request) -> Reply {
    let lost = || Failure::new(wire::Code::InternalError, "internal error");
    let caller = request.extensions().get::<Arc<Caller>>().ok_or_else(lost)?;
    let operation = app.operation(request.method(), "/mcp").ok_or_else(lost)?;
    call::authorize(&app, caller, operation, &[], None).await?;
    Ok(app.mcp.answer(request).await.into_response())
}

/// Returns the field that the path names; an empty name is not another name of the default field.
fn name(call: &Call) -> Result<Option<&str>, Failure> {
    match call.param("field_id") {
        "" if call.path().contains("{field_id}") => Err(Failure::not_found("field")),
        "" => Ok(None),
        name => Ok(Some(name)),
    }
}

async fn message(mut call: Call) -> Reply {
    let operation = memory::operation(call.path());
    let envelope = match read(&mut call, operation).await? {
        Ok(envelope) => envelope,
        Err(refusal) => return Ok(memory::refused(&refusal)),
    };
    let agent = envelope.agent_id().to_owned();
    let engine = &call.app.engine;
    let field = name(&call)?;
    let mut answer = engine.field_message(&call.caller, field, envelope).await;
    if let (Some(Operation::Subscribe), Ok(answer)) = (operation, &mut answer)
        && let Some(push) = answer.get_mut("push").and_then(canon::Value::as_object_mut)
    {
        let url = push_url(&call, field, "notifications", &agent);
        push.insert("sse_url".to_owned(), url.into());
        let url = push_url(&call, field, "notifications/socket", &agent);
        // `http` becomes `ws`, and `https` `wss`.
        let url = url.replacen("http", "ws", 1);
        push.insert("websocket_url".to_owned(), url.into());
    }
    let status = match operation {
        Some(Operation::Register | Operation::Record) => StatusCode::CREATED,
        _ => StatusCode::OK,
    };
    shown(answer.map(|answer| call::reply(status, &answer)))
}

/// Returns where an agent listens.
fn push_url(call: &Call, field: Option<&str>, path: &str, agent: &str) -> String {
    let mut escaped = String::new();
    for byte in agent.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                escaped.push(char::from(byte));
            }
            other => escaped.push_str(&format!("%{other:02X}")),
        }
    }
    let base = match field {
        Some(name) => format!("/akashik/fields/{name}/v1"),
        None => "/akashik/v1".to_owned(),
    };
    let url = &call.app.base_url;
    format!("{url}{base}/{path}?agent_id={escaped}")
}

async fn notifications(call: Call) -> Reply {
    let opened = listening(&call).await?;
    shown(opened.map(|stream| sse::notify(&call, stream)))
}

/// The same over a WebSocket.
async fn socket(
    life: Option<Extension<Arc<ConnectionState>>>,
    seat: Option<Extension<Arc<ConnectionSlot>>>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
    call: Call,
) -> Reply {
    socket::check_origin(&call.app, call.headers())?;
    let (Ok(upgrade), Some(Extension(life)), Some(Extension(seat))) = (upgrade, life, seat) else {
        let message = "this is a WebSocket endpoint: request the upgrade over HTTP/1.1";
        return Err(call::unsupported(400, "websocket", message));
    };
    let opened = listening(&call).await?;
    shown(opened.map(|stream| socket::notify(&call, upgrade, (life, seat), stream)))
}

async fn listening(call: &Call) -> Result<Result<FieldStream, FieldRefused>, Failure> {
    let Some(agent) = call.query("agent_id")?.filter(|id| !id.is_empty()) else {
        let message = "`agent_id` is required: the agent whose notifications are wanted";
        return Err(Failure::invalid("agent_id", message));
    };
    let engine = &call.app.engine;
    Ok(engine.field_stream(&call.caller, name(call)?, agent).await)
}

/// Takes a unit back.
async fn retract(mut call: Call) -> Reply {
    let value = match read_json(&mut call, None).await? {
        Ok(value) => value,
        Err(refusal) => return Ok(memory::refused(&refusal)),
    };
    let known = ["agent_id", "unit_id", "reason"];
    let texts = known.map(|name| value.get(name).and_then(canon::Value::as_str));
    let ([Some(agent_id), Some(unit_id), Some(reason)], Some(3)) =
        (texts, value.as_object().map(canon::Map::len))
    else {
        let message = "the body must have exactly `agent_id`, `unit_id` and `reason`, all strings";
        let refusal = Refusal::new(Code::InvalidRequest, message, None);
        return Ok(memory::refused(&refusal));
    };
    let retraction = Retraction {
        agent_id: agent_id.to_owned(),
        unit_id: unit_id.to_owned(),
        reason: reason.to_owned(),
    };
    let engine = &call.app.engine;
    let field = name(&call)?;
    let answer = engine.retract_unit(&call.caller, field, retraction).await;
    shown(answer.map(|answer| call::ok(&answer)))
}

/// Reads the envelope.
async fn read(
    call: &mut Call,
    operation: Option<Operation>,
) -> Result<Result<Envelope, Refusal>, Failure> {
    let value = read_json(call, operation).await?;
    Ok(value.and_then(|value| Envelope::from_json(&value, operation)))
}

/// Reads the body, without the caller's own credential where it should be in it.
async fn read_json(
    call: &mut Call,
    operation: Option<Operation>,
) -> Result<Result<canon::Value, Refusal>, Failure> {
    let limits = call.app.engine.fields().limits.clone();
    if call
        .header("content-type")
        .is_some_and(|given| !is_json(given))
    {
        let message = "a message must be `application/json` in UTF-8";
        return Err(call::unsupported(415, "content_type", message));
    }
    let bytes = call.bytes(limits.request_bytes_max).await?;
    let value = canon::read(&bytes, canon::Integers::Doubles);
    let mut value = match value {
        Ok(value) => value,
        Err(error) => {
            let message = format!("the body is not JSON: {error}");
            return Ok(Err(Refusal::new(Code::InvalidEnvelope, message, operation)));
        }
    };
    if let (Some(key), Some(members)) = (gate::presented(call.headers()), value.as_object_mut()) {
        gate::redact(members, key);
    }
    Ok(Ok(value))
}

fn is_json(given: &str) -> bool {
    let essence = given.split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case("application/json") && call::is_json(given)
}

async fn view(call: &Call, view: FieldView) -> Result<Result<canon::Value, FieldRefused>, Failure> {
    let engine = &call.app.engine;
    Ok(engine.field_view(&call.caller, name(call)?, view).await)
}

fn shown(answer: Result<Response, FieldRefused>) -> Reply {
    match answer {
        Ok(response) => Ok(response),
        Err(FieldRefused::Protocol(refusal)) => Ok(memory::refused(&refusal)),
        Err(FieldRefused::Engine(refused)) => Err(refused.into()),
    }
}

async fn status(call: Call) -> Reply {
    let found = view(&call, FieldView::Status).await?;
    shown(found.map(|found| call::ok(&found)))
}

async fn agents(call: Call) -> Reply {
    let found = view(&call, FieldView::Agents).await?;
    shown(found.map(|found| call::ok(&found)))
}

async fn conflicts(call: Call) -> Reply {
    let limit = match call.query("limit")?.map(str::parse::<u64>) {
        None => None,
        Some(Ok(limit)) if limit > 0 => Some(limit),
        Some(_) => {
            return Err(Failure::invalid(
                "limit",
                "`limit` must be an integer of 1 or more",
            ));
        }
    };
    let cursor = call.query("cursor")?.map(str::to_owned);
    let found = view(&call, FieldView::Conflicts { limit, cursor }).await?;
    shown(found.map(|found| call::ok(&found)))
}

/// Draws the causal chain of a target.
async fn graph(call: Call) -> Reply {
    let kind = call.query("target_type")?.and_then(TargetType::parse);
    let id = call.query("target_id")?.filter(|id| !id.is_empty());
    let (Some(kind), Some(id)) = (kind, id) else {
        let message = "`target_type` and `target_id` are required: they say what to draw";
        return Err(Failure::invalid("target_type", message));
    };
    let (wanted, media_type) = match call.query("format")? {
        None | Some("dot") => (
            FieldView::Dot(kind, id.to_owned()),
            "text/vnd.graphviz; charset=utf-8",
        ),
        Some("svg") => (FieldView::Svg(kind, id.to_owned()), "image/svg+xml"),
        Some(_) => return Err(Failure::invalid("format", "`format` is `dot` or `svg`")),
    };
    let drawn = view(&call, wanted).await?;
    shown(drawn.map(|drawn| {
        let text = drawn.as_str().unwrap_or_default().to_owned();
        ([(header::CONTENT_TYPE, media_type)], text).into_response()
    }))
}
