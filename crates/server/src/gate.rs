//! The way in and the way out.
//!
//! Outermost: give the request an id, catch panics and overruns, write failures in the protocol's shape, count and
//! log. Inside, for what is not public, in this order: the version (AP-VER-10: before the credential), who calls (from the
//! `Authorization` header to a caller, AP-AUTH), how often, and whether the server drains.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Version, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use canon::{Digest, Map, Value};
use engine::port::{ApiKey, Clock as _, Ids, Store};
use engine::{Caller, Refused};
use futures_util::FutureExt;
use serde_json::json;
use subtle::ConstantTimeEq;
use tokio::sync::watch;
use tokio::time::Instant;
use wire::{Code, PROTOCOL_VERSION, VERSION_HEADER};

use crate::app::App;
use crate::config::RateLimit;
use crate::connection::ConnectionState;
use crate::failure::{Failure, problem, written};
use crate::host;
use crate::memory;
use crate::world::{RandomIds, SystemClock};

/// The id of a request, in its answer's header and in its error.
#[derive(Debug, Clone)]
pub(crate) struct RequestId(pub(crate) String);

const REMEMBERED_FOR: Duration = Duration::from_millis(500);
const REMEMBERED_MAX: usize = 1_024;

/// How often the keys of open streams are looked at.
const STREAMS_CHECKED_EVERY: Duration = Duration::from_millis(400);

/// Actors to keep a bucket for; a full bucket is forgotten first.
const BUCKETS_MAX: usize = 10_000;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Wraps every request, whatever becomes of it.
pub(crate) async fn wrap_request(
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

/// The protocol that a client must speak, as the header `Upgrade` writes it.
const UPGRADE: &str = "harn-agents-protocol/agents-protocol-2026-04-25";

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
    if let Some(life) = request.extensions().get::<Arc<ConnectionState>>() {
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

/// Names the key that a request came with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Credential(Digest);

#[cfg(test)]
impl Credential {
    pub(crate) fn of(text: &str) -> Self {
        Self(canon::sha256(text.as_bytes()))
    }
}

/// Keys seen a moment ago, by digest.
///
/// The store holds digests. A found key is remembered for half a second, so that a revoked one is refused within a
/// second and a busy client does not ask the store each time. Unknown keys are not remembered: nobody can fill the
/// memory with them. Streams outlive the look at their key, so keys with open streams are looked at again and again.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    seen: Mutex<BTreeMap<Digest, (Instant, Arc<Caller>)>>,
    /// Keys with open streams; true once the key is no longer valid.
    streaming: Mutex<BTreeMap<Credential, watch::Sender<bool>>>,
}

impl Keys {
    /// Finds out who calls.
    pub(crate) async fn caller(
        &self,
        store: &dyn Store,
        headers: &HeaderMap,
    ) -> Result<(Arc<Caller>, Credential), Failure> {
        let refuse = || {
            Failure::new(
                Code::Unauthenticated,
                "this needs a valid API key as a bearer token",
            )
        };
        let key = presented(headers).ok_or_else(refuse)?;
        let digest = canon::sha256(key.as_bytes());
        if let Some(caller) = self.remembered(digest) {
            return Ok((caller, Credential(digest)));
        }
        let found = store.api_key(digest).await.map_err(Refused::from)?;
        let found = found.filter(|known| is_of(known, digest));
        let found = found.ok_or_else(refuse)?;
        if found.revoked_at.is_none() && found.is_expired(SystemClock.now()) {
            let expired = "this API key has expired";
            let refused = Failure::new(Code::Unauthenticated, expired);
            return Err(refused.with("reason", "key_expired".into()));
        }
        if !is_valid(&found, digest) {
            return Err(refuse());
        }
        let caller = Arc::new(Caller::from_key(&found));
        self.remember(digest, Arc::clone(&caller));
        Ok((caller, Credential(digest)))
    }

    /// Returns what becomes true when a key is no longer valid.
    pub(crate) fn watch(&self, credential: Credential) -> watch::Receiver<bool> {
        let mut streaming = self
            .streaming
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let sender = streaming
            .entry(credential)
            .or_insert_with(|| watch::channel(false).0);
        sender.subscribe()
    }

    /// Looks at the keys of open streams from time to time and tells those whose key is no longer valid.
    pub(crate) async fn watch_streams(&self, store: &dyn Store) -> Infallible {
        loop {
            tokio::time::sleep(STREAMS_CHECKED_EVERY).await;
            let watched: Vec<Credential> = {
                let mut streaming = self
                    .streaming
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                streaming.retain(|_, sender| sender.receiver_count() > 0);
                streaming.keys().copied().collect()
            };
            for Credential(digest) in watched {
                // A store that cannot answer says nothing about the key; the stream will notice the store itself.
                let Ok(found) = store.api_key(digest).await else {
                    continue;
                };
                if found.is_some_and(|known| is_valid(&known, digest)) {
                    continue;
                }
                let mut streaming = self
                    .streaming
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                if let Some(sender) = streaming.remove(&Credential(digest)) {
                    sender.send_replace(true);
                }
            }
        }
    }

    fn remembered(&self, digest: Digest) -> Option<Arc<Caller>> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, caller) = seen.get(&digest)?;
        (since.elapsed() < REMEMBERED_FOR).then(|| Arc::clone(caller))
    }

    fn remember(&self, digest: Digest, caller: Arc<Caller>) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.len() >= REMEMBERED_MAX {
            seen.retain(|_, (since, _)| since.elapsed() < REMEMBERED_FOR);
        }
        if seen.len() < REMEMBERED_MAX {
            seen.insert(digest, (Instant::now(), caller));
        }
    }
}

/// True for the key of a digest. The store looks up by digest; comparing again costs nothing and does not lean on how it
/// compares.
fn is_of(key: &ApiKey, digest: Digest) -> bool {
    bool::from(key.digest.as_bytes().ct_eq(digest.as_bytes()))
}

/// True for the key of a digest, as long as nobody revoked it and it has not ended.
fn is_valid(key: &ApiKey, digest: Digest) -> bool {
    is_of(key, digest) && key.revoked_at.is_none() && !key.is_expired(SystemClock.now())
}

/// Returns the bearer token of a request, when it has exactly one.
pub(crate) fn presented(headers: &HeaderMap) -> Option<&str> {
    let mut lines = headers.get_all(header::AUTHORIZATION).iter();
    let line = lines.next()?.to_str().ok()?;
    if lines.next().is_some() {
        return None;
    }
    let (scheme, token) = line.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

const MARK: &str = "[redacted:api_key]";

/// Takes a caller's own key out of strings and member names of what it sends (AP-AUTH-03). A client that puts its key into a
/// message would have it in the log for good, so it goes before anything is stored. Bytes of artifacts are not touched:
/// their digest is the client's.
pub(crate) fn redact(members: &mut Map<String, Value>, key: &str) {
    // Written after decoding and not over the raw bytes, because JSON can spell a character in several ways.
    if members.keys().any(|name| name.contains(key)) {
        let cleaned = std::mem::take(members).into_iter();
        members.extend(cleaned.map(|(name, member)| (name.replace(key, MARK), member)));
    }
    for member in members.values_mut() {
        redact_value(member, key);
    }
}

fn redact_value(here: &mut Value, key: &str) {
    match here {
        Value::String(text) if text.contains(key) => *text = text.replace(key, MARK),
        Value::Array(items) => items.iter_mut().for_each(|item| redact_value(item, key)),
        Value::Object(inner) => redact(inner, key),
        _ => {}
    }
}

/// One bucket per actor.
#[derive(Debug)]
pub(crate) struct Buckets {
    limit: RateLimit,
    left: Mutex<BTreeMap<String, (Instant, f64)>>,
}

impl Buckets {
    pub(crate) fn new(limit: RateLimit) -> Self {
        Self {
            limit,
            left: Mutex::default(),
        }
    }

    /// Takes one request from an actor's bucket.
    pub(crate) fn take(&self, actor: &str, now: Instant) -> Result<(), Failure> {
        let burst = f64::from(self.limit.burst.max(1));
        let per_second = f64::from(self.limit.per_second.max(1));
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let filled = |since: Instant, level: f64| {
            (level + now.duration_since(since).as_secs_f64() * per_second).min(burst)
        };
        if left.len() >= BUCKETS_MAX {
            left.retain(|_, (since, level)| filled(*since, *level) < burst);
        }
        let (since, level) = left.get(actor).copied().unwrap_or((now, burst));
        let level = filled(since, level);
        if level < 1.0 {
            let seconds = ((1.0 - level) / per_second).ceil().max(1.0);
            return Err(Failure::rate_limited(seconds as u64));
        }
        left.insert(actor.to_owned(), (now, level - 1.0));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::Router;
    use axum::body::{Body, to_bytes};
    use axum::middleware::from_fn_with_state;
    use axum::routing::get;
    use engine::port::MemoryStore;
    use engine::{Engine, Limits, Offline, Parts};
    use runs::workflow::{Registry, builtin};
    use tokio::sync::watch;
    use tower::ServiceExt;

    use super::*;
    use crate::Config;
    use crate::world::TokioSpawn;

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
            .layer(from_fn_with_state(Arc::clone(&app), wrap_request))
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

    #[test]
    fn ap_auth_01_only_one_bearer_token_counts() {
        let check = |lines: &[&str], expect: Option<&str>| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(header::AUTHORIZATION, line.parse().unwrap());
            }
            assert_eq!(presented(&headers), expect, "{lines:?}");
        };
        check(&["Bearer k"], Some("k"));
        check(&["bearer  k "], Some("k"));
        check(&["Basic k"], None);
        check(&["Bearer"], None);
        check(&["Bearer "], None);
        check(&["Bearer a", "Bearer b"], None);
        check(&[], None);
    }

    #[test]
    fn ap_err_05_a_bucket_empties_and_fills_again() {
        let buckets = Buckets::new(RateLimit {
            per_second: 2,
            burst: 3,
        });
        let start = Instant::now();
        for _ in 0..3 {
            assert!(buckets.take("ann", start).is_ok());
        }
        let refused = buckets.take("ann", start).unwrap_err();
        assert_eq!(refused.retry_after_s, Some(1));
        assert!(buckets.take("bob", start).is_ok());
        assert!(
            buckets
                .take("ann", start + Duration::from_millis(500))
                .is_ok()
        );
        assert!(
            buckets
                .take("ann", start + Duration::from_millis(500))
                .is_err()
        );
    }

    #[test]
    fn ap_auth_03_the_key_goes_wherever_it_stands_and_the_rest_stays() {
        let mut body = json!({
            "a": "rk_1 and rk_1", "b": [1, null, {"rk_1": ["x rk_1"], "n": "rk_"}], "rk_1": true, "rk_2": "rk_2",
        });
        redact(body.as_object_mut().unwrap(), "rk_1");
        let expected = json!({
            "a": "[redacted:api_key] and [redacted:api_key]",
            "b": [1, null, {"[redacted:api_key]": ["x [redacted:api_key]"], "n": "rk_"}],
            "[redacted:api_key]": true, "rk_2": "rk_2",
        });
        assert_eq!(body, expected);
    }
}
