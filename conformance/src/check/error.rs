//! Errors: AP-ERR.

use reqwest::Method;
use serde_json::json;

use crate::json::{at, show, text};
use crate::miss::{Checked, Miss, all_but, need, unseen};
use crate::registry::{Check, Row, row};
use crate::scenario::{kinds, unknown_like};
use crate::wire::{Answer, Wire};

const CODES: [&str; 18] = [
    "invalid_request",
    "invalid_state_transition",
    "unauthenticated",
    "permission_denied",
    "resource_not_found",
    "conflict",
    "idempotency_key_reused",
    "cursor_expired",
    "payload_too_large",
    "policy_violation",
    "resource_locked",
    "unsupported_protocol_version",
    "rate_limited",
    "client_closed_request",
    "internal_error",
    "upstream_unavailable",
    "service_unavailable",
    "deadline_exceeded",
];

const TYPES: [&str; 9] = [
    "request_error",
    "auth_error",
    "permission_error",
    "not_found_error",
    "conflict_error",
    "rate_limit_error",
    "runtime_error",
    "upstream_error",
    "server_error",
];

pub(crate) const ROWS: &[Row] = &[
    row!("AP-ERR-01", M, "every error has status, code, message and type", Now shape),
    row!("AP-ERR-02", M, "`request_id` is in the body and in a header", Now request_id),
    row!("AP-ERR-03", M, "codes are those of the table", Last codes),
    row!("AP-ERR-04", S, "failed work leaves failure events", Now events),
    row!("AP-ERR-05", M, "503 and 429 carry `Retry-After`", = Check::Elsewhere("a client cannot make a server drain or throttle")),
];

/// Causes one refusal of each common sort.
pub(crate) async fn refusals(wire: &Wire) -> Result<Vec<Answer>, Miss> {
    let session = wire.session().await?;
    let calls = [
        wire.get(format!("/v1/tasks/{}", unknown_like(&session))),
        wire.post(format!("/v1/sessions/{session}/tasks"), &json!({})),
        wire.get("/v1/tasks").anonymous(),
        wire.get("/v1/tasks")
            .version(Some("agents-protocol-1900-01-01")),
        wire.get("/v1/no/such/route"),
        wire.call(Method::DELETE, "/v1/tasks"),
    ];
    let mut answers = Vec::new();
    for call in calls {
        answers.push(call.send().await?);
    }
    // What is not refused at all is another requirement's matter.
    answers.retain(|answer| answer.status >= 400);
    Ok(answers)
}

fn shaped(answer: &Answer) -> Checked {
    let body = answer.value()?;
    let error = at(&body, "error");
    let holds = !text(error, "code").is_empty()
        && at(error, "message").is_string()
        && TYPES.contains(&text(error, "type"));
    need(
        holds,
        format!("{}: `error` with `code`, `message`, `type`", answer.label),
        show(&body),
    )
}

async fn shape(wire: &Wire) -> Checked {
    let unknown = wire.get("/v1/no/such/route").send().await?;
    unknown.refused(404, "resource_not_found")?;
    let method = wire.call(Method::DELETE, "/v1/tasks").send().await?;
    method.refused(405, "invalid_request")?;
    shaped(&unknown)?;
    shaped(&method)?;
    let session = wire.session().await?;
    shaped(
        &wire
            .get(format!("/v1/tasks/{}", unknown_like(&session)))
            .send()
            .await?,
    )?;
    shaped(
        &wire
            .post_empty(format!("/v1/sessions/{session}/tasks"))
            .bytes("text/plain", "x")
            .send()
            .await?,
    )?;
    match super::artifact::oversized(wire).await {
        Ok(answer) => {
            answer.want(&[413])?;
            shaped(&answer)?;
            all_but("a request that cannot be read as HTTP")
        }
        Err(Miss::Unseen(reason)) => all_but(format!(
            "a request that cannot be read as HTTP, a body that is too large: {reason}"
        )),
        Err(miss) => Err(miss),
    }
}

async fn request_id(wire: &Wire) -> Checked {
    for answer in refusals(wire).await? {
        // Whether there is an error body at all is another requirement.
        let Ok(body) = answer.value() else { continue };
        let id = text(&body, "error.request_id");
        need(
            !id.is_empty(),
            format!("{}: `error.request_id`", answer.label),
            show(&body),
        )?;
        let header = answer
            .headers
            .iter()
            .any(|(_, value)| value.as_bytes() == id.as_bytes());
        need(
            header,
            format!("{}: a header with `{id}`", answer.label),
            format!("{:?}", answer.headers),
        )?;
    }
    Ok(())
}

async fn codes(wire: &Wire) -> Checked {
    let ledger = wire.ledger();
    if ledger.error_codes.is_empty() {
        return unseen("no error was seen");
    }
    let strange = ledger
        .error_codes
        .iter()
        .find(|(code, _)| !CODES.contains(&code.as_str()));
    need(
        strange.is_none(),
        "a code of the table",
        format!("{strange:?}"),
    )
}

async fn events(wire: &Wire) -> Checked {
    let task = wire.failed().await?;
    let events = wire.task_events(&task).await?;
    need(
        kinds(&events).contains(&"task.failed"),
        "`task.failed`",
        format!("{:?}", kinds(&events)),
    )?;
    all_but("a tool that fails")
}
