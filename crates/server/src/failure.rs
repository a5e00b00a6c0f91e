//! Every way to say no, and how each becomes the protocol's error.
//!
//! A failure leaves a handler as a value. The outermost layer has its body written, because only it knows the request's
//! id; whatever is for the log alone stays here.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use canon::{Map, Value};
use domain::Refusal;
use engine::Refused;
use runs::replay::RequestError;
use serde_json::json;
use wire::{Code, ErrorBody, InputError};

/// A request that was not carried out.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) code: Code,
    /// Another status than the code's, for the one case that has no code of its own (405).
    pub(crate) status: u16,
    pub(crate) message: String,
    pub(crate) param: Option<String>,
    pub(crate) details: Map<String, Value>,
    pub(crate) retry_after_s: Option<u32>,
    /// What a governed session said: the status and the word of its problem document.
    pub(crate) problem: Option<Box<(u16, String)>>,
    /// For the log, never for the client.
    pub(crate) cause: Option<String>,
}

/// What a handler returns.
pub(crate) type Reply = Result<Response, Failure>;

impl Failure {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            status: code.status(),
            message: message.into(),
            param: None,
            details: Map::new(),
            retry_after_s: None,
            problem: None,
            cause: None,
        }
    }

    pub(crate) fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        let mut failure = Self::new(Code::InvalidRequest, message);
        failure.param = Some(param.into()).filter(|param: &String| !param.is_empty());
        failure
    }

    /// A resource that is not there, in the words that a hidden one gets too (AP-AUTHZ-02).
    pub(crate) fn not_found(object: &'static str) -> Self {
        Refusal::NotFound {
            object,
            param: None,
        }
        .into()
    }

    /// A part of the protocol that this server does not offer yet.
    pub(crate) fn not_available(what: &str) -> Self {
        Self::new(
            Code::PolicyViolation,
            format!("{what} is not available on this server"),
        )
        .with("reason", json!("not_available"))
    }

    pub(crate) fn with(mut self, name: &str, value: Value) -> Self {
        self.details.insert(name.to_owned(), value);
        self
    }

    fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after_s = Some(u32::try_from(seconds).unwrap_or(u32::MAX));
        self
    }

    pub(crate) fn draining() -> Self {
        Self::new(Code::ServiceUnavailable, "the server is draining")
            .with("reason", json!("draining"))
            .retry_after(1)
    }

    pub(crate) fn rate_limited(seconds: u64) -> Self {
        Self::new(Code::RateLimited, "too many requests").retry_after(seconds)
    }

    fn internal(cause: String) -> Self {
        let mut failure = Self::new(Code::InternalError, "internal error");
        failure.cause = Some(cause);
        failure
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

impl From<InputError> for Failure {
    fn from(error: InputError) -> Self {
        match error {
            InputError::Invalid { param, message } => Failure::invalid(param, message),
            InputError::Unknown { object, param } => {
                let mut failure = Failure::not_found(object);
                failure.param = Some(param).filter(|param| !param.is_empty());
                failure
            }
            InputError::TooLarge { param, message } => {
                let mut failure = Failure::new(Code::PayloadTooLarge, message);
                failure.param = Some(param);
                failure
            }
            InputError::Policy {
                param,
                reason,
                message,
            } => {
                let mut failure =
                    Failure::new(Code::PolicyViolation, message).with("reason", json!(reason));
                failure.param = Some(param);
                failure
            }
        }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        let message = refusal.to_string();
        match refusal {
            Refusal::NotFound { param, .. } => {
                let mut failure = Failure::new(Code::ResourceNotFound, message);
                failure.param = param.map(str::to_owned);
                failure
            }
            Refusal::Invalid { param, .. } => Failure::invalid(param, message),
            Refusal::Conflict { reason, status, .. } => {
                let failure = Failure::new(Code::Conflict, message).with("reason", json!(reason));
                match status {
                    Some(status) => failure.with("status", json!(status.as_str())),
                    None => failure,
                }
            }
            Refusal::InvalidTransition { status } => {
                Failure::new(Code::InvalidStateTransition, message)
                    .with("status", json!(status.as_str()))
            }
            Refusal::Policy { reason, .. } => {
                Failure::new(Code::PolicyViolation, message).with("reason", json!(reason))
            }
            Refusal::Stale => Failure::new(Code::Conflict, message).with("reason", json!("stale")),
        }
    }
}

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Self {
        let message = refused.to_string();
        match refused {
            Refused::Domain(refusal) => refusal.into(),
            Refused::Governed(problem) => from_problem(*problem),
            Refused::Replay(error) => from_replay(*error, message),
            Refused::PermissionDenied { scope } => Failure::new(Code::PermissionDenied, message)
                .with("rule", json!("scope"))
                .with("required_scopes", json!([scope])),
            Refused::ApproverMustDiffer => Failure::new(Code::PermissionDenied, message)
                .with("rule", json!("approver_must_differ")),
            Refused::IdempotencyKeyReused => {
                let mut failure = Failure::new(Code::IdempotencyKeyReused, message);
                failure.param = Some("Idempotency-Key".to_owned());
                failure
            }
            Refused::CursorExpired => Failure::new(Code::CursorExpired, message),
            Refused::RecordGone { reason } => {
                Failure::new(Code::CursorExpired, message).with("reason", json!(reason))
            }
            Refused::ContentUnavailable { reason } => {
                Failure::new(Code::ResourceNotFound, message).with("reason", json!(reason))
            }
            Refused::Busy { what } => Failure::new(Code::ServiceUnavailable, message)
                .with("reason", json!("busy"))
                .with("limit", json!(what))
                .retry_after(engine::Engine::RETRY_AFTER.as_secs()),
            Refused::OverShare { limit, held, max } => Failure::new(Code::RateLimited, message)
                .with("limit", json!(limit))
                .with("held", json!(held))
                .with("max", json!(max))
                .with("setting", json!(format!("limits.{limit}")))
                .retry_after(engine::Engine::RETRY_AFTER.as_secs()),
            Refused::Draining => Failure::draining(),
            Refused::Full => Failure::new(Code::ServiceUnavailable, message)
                .with("reason", json!("disk_full"))
                .retry_after(60),
            Refused::Unavailable { detail } => {
                let mut failure = Failure::new(Code::ServiceUnavailable, message)
                    .with("reason", json!("store_unavailable"))
                    .retry_after(60);
                failure.cause = Some(detail);
                failure
            }
            Refused::FieldUnreadable { detail } => {
                let mut failure = Failure::new(Code::InternalError, message);
                failure.cause = Some(detail);
                failure
            }
            Refused::Internal { detail } | Refused::Store { detail } => Failure::internal(detail),
        }
    }
}

fn from_problem(problem: domain::Problem) -> Failure {
    let code = match problem.status {
        400 => Code::InvalidRequest,
        403 => Code::PermissionDenied,
        404 => Code::ResourceNotFound,
        409 | 410 => Code::Conflict,
        413 => Code::PayloadTooLarge,
        422 => Code::PolicyViolation,
        429 => Code::RateLimited,
        _ => return Failure::internal(problem.message),
    };
    let mut failure = Failure::new(code, problem.message).with("reason", json!(problem.code));
    failure.details.extend(problem.members);
    if problem.status == 429 {
        failure = failure.retry_after(engine::Engine::RETRY_AFTER.as_secs());
    }
    failure.problem = Some(Box::new((problem.status, problem.code)));
    failure
}

fn from_replay(error: RequestError, message: String) -> Failure {
    match error {
        RequestError::Invalid { param, details, .. } => {
            let mut failure = Failure::invalid(param, message);
            failure.details = details;
            failure
        }
        RequestError::NotFound { param, .. } => {
            let mut failure = Failure::new(Code::ResourceNotFound, message);
            failure.param = Some(param);
            failure
        }
        RequestError::DigestMismatch { key, expected } => {
            let mut failure = Failure::new(Code::PolicyViolation, message)
                .with("reason", json!("digest_mismatch"));
            if let Some(expected) = expected {
                failure = failure.with("expected", json!(expected));
            }
            failure.param = Some(format!("override.{key}.sha256"));
            failure
        }
        RequestError::Forbidden { param, .. } => {
            let mut failure = Failure::new(Code::PolicyViolation, message)
                .with("reason", json!("replay_authority"));
            failure.param = Some(param);
            failure
        }
        RequestError::TooLarge { param } => {
            let mut failure = Failure::new(Code::PayloadTooLarge, message);
            failure.param = Some(param);
            failure
        }
    }
}

/// Writes a failure's body.
pub(crate) fn written(failure: &Failure, request_id: &str) -> Response {
    let body = ErrorBody {
        code: failure.code,
        message: &failure.message,
        param: failure.param.as_deref(),
        request_id,
        details: &failure.details,
    };
    let mut response = Response::new(Body::from(body.body().to_string()));
    *response.status_mut() =
        StatusCode::from_u16(failure.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
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

/// Writes a failure as a problem document (RFC 9457), which is what the published API of governed sessions has.
pub(crate) fn problem(failure: &Failure, request_id: &str) -> Response {
    let mut response = written(failure, request_id);
    let (status, word) = match &failure.problem {
        Some(said) => (said.0, said.1.as_str()),
        None => (failure.status, failure.code.as_str()),
    };
    *response.status_mut() =
        StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ap_evt_06_a_cursor_that_is_gone_is_410() {
        let failure = Failure::from(Refused::CursorExpired);
        assert_eq!(
            (failure.status, failure.code.as_str()),
            (410, "cursor_expired")
        );
    }
}
