//! The way in and the way out.
//!
//! Outermost: give the request an id, catch panics and overruns, write failures in the protocol's shape, count and
//! log. Inside, for what is not public, in this order: the version (AP-VER-10: before the credential), who calls, how
//! often, and whether the server drains.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Version, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use engine::Caller;
use engine::port::Ids;
use futures_util::FutureExt;
use serde_json::json;
use tokio::time::Instant;
use wire::{Code, ErrorBody, PROTOCOL_VERSION, VERSION_HEADER};

use crate::app::App;
use crate::auth::Credential;
use crate::connection::Life;
use crate::failure::Failure;
use crate::host;
use crate::memory;
use crate::world::RandomIds;

/// The id of a request, in its answer's header and in its error.
#[derive(Debug, Clone)]
pub(crate) struct RequestId(pub(crate) String);

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Wraps every request, whatever becomes of it.
pub(crate) async fn outer(
    State(app): State<Arc<App>>,
    mut request: Request,
    next: Next,
) -> Response {
    let started = Instant::now();
    let id = format!("req_{}", RandomIds.body());
    request.extensions_mut().insert(RequestId(id.clone()));
    let method = request.method().clone();
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map_or_else(|| "unmatched".to_owned(), |path| path.as_str().to_owned());
    let memory_path = Some(request.uri().path())
        .filter(|path| memory::owns(path))
        .map(str::to_owned);
    let writes = match wire::openapi::is_governed_path(request.uri().path()) {
        true => problem,
        false => written,
    };
    let addressed = host::check(&app.config, &request);
    let is_long = is_long(&request);
    let is_http_1 = request.version() <= Version::HTTP_11;
    let answered = async {
        match addressed {
            Ok(()) => next.run(request).await,
            Err(failure) => failure.into_response(),
        }
    };
    let answered = AssertUnwindSafe(answered).catch_unwind();
    let mut response = match tokio::time::timeout(app.config.request_timeout, answered).await {
        Ok(Ok(response)) => response,
        Ok(Err(_)) => {
            let mut failure = Failure::new(Code::InternalError, "internal error");
            failure.cause = Some("a handler panicked".to_owned());
            failure.into_response()
        }
        Err(_) => Failure::new(
            Code::DeadlineExceeded,
            "the request took longer than the server allows",
        )
        .into_response(),
    };
    let failure = response.extensions_mut().remove::<Failure>();
    let actor = response.extensions_mut().remove::<Actor>();
    let actor = actor.as_ref().map_or("", |actor| actor.0.actor.as_str());
    if let Some(failure) = failure {
        response = match &memory_path {
            Some(path) => memory::written(&failure, path),
            None => writes(&failure, &id),
        };
        if is_long {
            // Most of it may be unread, and then the connection ends behind the answer: the client must not use it again.
            response
                .headers_mut()
                .insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        // RFC 9110, 15.5.22: such an answer names what is spoken here. HTTP/2 knows no such header.
        if failure.code == Code::UnsupportedProtocolVersion && is_http_1 {
            response
                .headers_mut()
                .insert(header::UPGRADE, HeaderValue::from_static(UPGRADE));
        }
        if let Some(cause) = &failure.cause {
            tracing::error!(request.id = %id, %method, route, cause, "request failed");
        }
    }
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    response
        .headers_mut()
        .entry(header::CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    let status = response.status().as_u16();
    let took = started.elapsed();
    app.http
        .observe(known_method(method.as_str()), &route, status, took);
    tracing::info!(
        request.id = %id, %method, route, status, duration_us = took.as_micros() as u64, actor,
        "request"
    );
    response
}

/// True for an HTTP/1 request whose body does not come with its head in one piece.
fn is_long(request: &Request) -> bool {
    const SHORT_BYTES_MAX: u64 = 8 * 1024;
    let headers = request.headers();
    let length = headers.get(header::CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    request.version() <= Version::HTTP_11
        && (length.is_some_and(|length| length > SHORT_BYTES_MAX)
            || headers.contains_key(header::TRANSFER_ENCODING))
}

/// Labels must not grow with what clients make up.
fn known_method(method: &str) -> &'static str {
    const KNOWN: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    let known = KNOWN.into_iter().find(|known| *known == method);
    known.unwrap_or("other")
}

/// Writes a failure's body.
fn written(failure: &Failure, request_id: &str) -> Response {
    let body = ErrorBody {
        code: failure.code,
        message: &failure.message,
        param: failure.param.as_deref(),
        request_id,
        details: &failure.details,
    };
    let mut response = Response::new(Body::from(body.body().to_string()));
    *response.status_mut() = axum::http::StatusCode::from_u16(failure.status)
        .unwrap_or(axum::http::StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    if failure.code == Code::Unauthenticated {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if let Some(seconds) = failure.retry_after_s {
        headers.insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

/// The protocol that a client must speak, as the header `Upgrade` writes it.
const UPGRADE: &str = "harn-agents-protocol/agents-protocol-2026-04-25";

/// Writes a failure as a problem document (RFC 9457), which is what the published API of governed sessions has.
fn problem(failure: &Failure, request_id: &str) -> Response {
    let mut response = written(failure, request_id);
    let (status, word) = match &failure.problem {
        Some(said) => (said.0, said.1.as_str()),
        None => (failure.status, failure.code.as_str()),
    };
    *response.status_mut() = axum::http::StatusCode::from_u16(status)
        .unwrap_or(axum::http::StatusCode::INTERNAL_SERVER_ERROR);
    let mut members = failure.details.clone();
    let title = response.status().canonical_reason().unwrap_or("Error");
    for (name, value) in [
        ("type", json!("about:blank")),
        ("title", json!(title)),
        ("status", json!(status)),
        ("detail", json!(failure.message)),
        ("code", json!(word)),
        ("request_id", json!(request_id)),
    ] {
        members.insert(name.to_owned(), value);
    }
    if let Some(param) = &failure.param {
        members.insert("param".to_owned(), json!(param));
    }
    *response.body_mut() = Body::from(canon::Value::Object(members).to_string());
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/problem+json"),
    );
    response
}

/// Who called, for the log.
#[derive(Debug, Clone)]
struct Actor(Arc<Caller>);

/// Lets in who speaks the version and may come.
pub(crate) async fn inner(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    if let Err(failure) = version(request.headers()) {
        return failure.into_response();
    }
    keyed(State(app), request, next).await
}

/// Lets in who may come, whatever version it speaks.
pub(crate) async fn keyed(
    State(app): State<Arc<App>>,
    mut request: Request,
    next: Next,
) -> Response {
    let (caller, credential) = match admitted(&app, request.headers()).await {
        Ok(admitted) => admitted,
        Err(failure) => return failure.into_response(),
    };
    if let Some(life) = request.extensions().get::<Arc<Life>>() {
        app.connections.authenticated(life, credential);
    }
    let actor = Actor(Arc::clone(&caller));
    request.extensions_mut().insert(caller);
    request.extensions_mut().insert(credential);
    let mut response = next.run(request).await;
    response.extensions_mut().insert(actor);
    response
}

fn version(headers: &HeaderMap) -> Result<(), Failure> {
    let versions: Vec<&HeaderValue> = headers.get_all(VERSION_HEADER).iter().collect();
    if !matches!(versions.as_slice(), [one] if one.as_bytes() == PROTOCOL_VERSION.as_bytes()) {
        let message = format!("send the header `{VERSION_HEADER}: {PROTOCOL_VERSION}` once");
        return Err(Failure::new(Code::UnsupportedProtocolVersion, message)
            .with("supported_versions", json!([PROTOCOL_VERSION])));
    }
    Ok(())
}

async fn admitted(app: &App, headers: &HeaderMap) -> Result<(Arc<Caller>, Credential), Failure> {
    let (caller, credential) = app.keys.caller(&**app.engine.store(), headers).await?;
    if let Some(buckets) = &app.buckets {
        buckets.take(&caller.actor, Instant::now())?;
    }
    if app.engine.is_draining() {
        return Err(Failure::draining());
    }
    Ok((caller, credential))
}

/// Answers paths that lead nowhere.
pub(crate) async fn no_route() -> Failure {
    Failure::new(Code::ResourceNotFound, "no such path")
}

/// Answers methods that a path does not have; the router adds which it has, outside of all layers.
pub(crate) async fn no_method() -> Failure {
    let mut failure = Failure::new(Code::InvalidRequest, "method not allowed on this path");
    failure.status = 405;
    failure
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::Router;
    use axum::body::to_bytes;
    use axum::middleware::from_fn_with_state;
    use axum::routing::get;
    use engine::port::MemoryStore;
    use engine::{Engine, Limits, Offline, Parts};
    use runs::workflow::{Registry, builtin};
    use tokio::sync::watch;
    use tower::ServiceExt;

    use super::*;
    use crate::Config;
    use crate::world::{SystemClock, TokioSpawn};

    async fn app() -> Arc<App> {
        let second = Duration::from_secs(1);
        let parts = Parts {
            store: Arc::new(MemoryStore::new("testlog1", [7; 32])),
            clock: Arc::new(SystemClock),
            ids: Arc::new(RandomIds),
            spawn: Arc::new(TokioSpawn),
            performer: Arc::new(Offline),
            secrets: None,
            workflows: Registry::new(builtin()),
            authority: engine::Authority::with_one_key("test", "key-1", &[1; 32]).unwrap(),
            limits: Limits {
                batch_len_max: 1,
                pending_commands_max: 16,
                workers_max: 1,
                open_tasks_max: 1,
                stored_bytes_max: u64::MAX,
                streams_max: 1,
                fork_messages_max: 1,
                settle_window: second,
                start_window: second,
                idempotency_window: second,
                leaf_interval: Duration::from_secs(1),
                head_leaves_max: 1_000,
                head_interval: Duration::from_secs(60),
                receipt_window: Duration::from_secs(2),
                drain_window: second,
            },
        };
        let engine = Engine::start(parts).await.unwrap();
        let config = Config::local("127.0.0.1:0".parse().unwrap());
        App::new(
            engine,
            config,
            "http://x".to_owned(),
            watch::channel(false).1,
        )
    }

    #[tokio::test]
    async fn ap_err_01_a_panic_is_a_500_that_says_nothing() {
        async fn boom() -> &'static str {
            panic!("s3cret")
        }
        let app = app().await;
        let router = Router::new()
            .route("/boom", get(boom))
            .layer(from_fn_with_state(Arc::clone(&app), outer))
            .with_state(app);
        let request = Request::get("/boom")
            .header("host", "localhost")
            .body(Body::empty())
            .unwrap();
        let response = router.oneshot(request).await.unwrap();
        assert_eq!(response.status(), 500);
        assert!(response.headers().contains_key(REQUEST_ID));
        let body = to_bytes(response.into_body(), 10_000).await.unwrap();
        let text = String::from_utf8(body.to_vec()).unwrap();
        assert!(text.contains("\"code\":\"internal_error\""), "{text}");
        assert!(!text.contains("s3cret"), "{text}");
    }
}
