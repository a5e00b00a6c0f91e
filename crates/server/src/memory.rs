//! How the memory protocol says no over HTTP: the bare error object, under the status of its code.
//!
//! Whatever refuses a request under `/akashik` ends here, also what never reached a field: a missing key, an unknown path, a
//! body that is too long.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use field::{Operation, Refusal};
use wire::Code;

use crate::call;
use crate::failure::Failure;

/// Returns whether a path belongs to the memory protocol.
pub(crate) fn owns(path: &str) -> bool {
    path == "/akashik" || path.starts_with("/akashik/")
}

/// Returns the operation that a path is for.
pub(crate) fn operation(path: &str) -> Option<Operation> {
    let last = path.rsplit('/').next().unwrap_or_default();
    let found = Operation::parse(&last.to_ascii_uppercase());
    // The protocol's words are written in lower case here.
    found.filter(|_| !last.bytes().any(|byte| byte.is_ascii_uppercase()))
}

/// Returns the answer to a message that the field refused.
pub(crate) fn refused(refusal: &Refusal) -> Response {
    answer(refusal, refusal.code().http_status())
}

fn answer(refusal: &Refusal, status: u16) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = call::reply(status, &refusal.to_json());
    if status == StatusCode::UNAUTHORIZED {
        let scheme = HeaderValue::from_static("Bearer");
        response
            .headers_mut()
            .insert(header::WWW_AUTHENTICATE, scheme);
    }
    response
}

/// Says in the protocol's words why a message did not reach its field, and under which status.
pub(crate) fn refusal(failure: &Failure, path: &str) -> (Refusal, u16) {
    let is_full = failure
        .details
        .get("reason")
        .is_some_and(|reason| reason == "disk_full");
    let is_over_quota = failure
        .details
        .get("limit")
        .is_some_and(|limit| limit == "stored_mib_max");
    let (code, status) = match failure.code {
        Code::Unauthenticated => (field::Code::Unauthenticated, failure.status),
        Code::PermissionDenied => (field::Code::Forbidden, failure.status),
        _ if is_full => (
            field::Code::StorageFull,
            field::Code::StorageFull.http_status(),
        ),
        Code::RateLimited if is_over_quota => (field::Code::StorageFull, failure.status),
        Code::RateLimited => (field::Code::InternalError, failure.status),
        _ if failure.status < 500 => (field::Code::InvalidRequest, failure.status),
        _ => (field::Code::InternalError, failure.status),
    };
    let refusal = Refusal::new(code, failure.message.clone(), operation(path));
    let refusal = match failure.retry_after_s {
        Some(_) if is_over_quota => refusal.temporary("make room, or ask for a larger share"),
        Some(_) if !is_full => refusal.temporary("try again later"),
        _ => refusal,
    };
    (refusal, status)
}

/// Writes a failure that happened on the way to a field.
pub(crate) fn written(failure: &Failure, path: &str) -> Response {
    let (refusal, status) = refusal(failure, path);
    let mut response = answer(&refusal, status).into_response();
    if let Some(seconds) = failure.retry_after_s {
        response
            .headers_mut()
            .insert(header::RETRY_AFTER, seconds.into());
    }
    response
}
