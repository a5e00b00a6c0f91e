//! Governed sessions, under the paths of a published API: programs ask here before they call a model and report what
//! their tools did.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::http::StatusCode;
use canon::{Map, Value};
use domain::{Govern, GovernedOperation, Position};
use engine::Request;
use serde_json::json;
use wire::{Code, Cursor};

use super::Routes;
use crate::call::{Call, ok, reply};
use crate::exact;
use crate::failure::{Failure, Reply};

pub(super) fn routes(routes: Routes) -> Routes {
    routes
        .post("/api/v1/replay/sessions", open)
        .get("/api/v1/replay/sessions/{session_id}", read)
        .post("/api/v1/replay/sessions/{session_id}/preflight", act)
        .post("/api/v1/replay/sessions/{session_id}/proposals", propose)
        .get(
            "/api/v1/replay/sessions/{session_id}/proposals/{proposal_id}",
            proposal,
        )
        .post(
            "/api/v1/replay/sessions/{session_id}/proposals/{proposal_id}/approve",
            act,
        )
        .post("/api/v1/replay/sessions/{session_id}/receipts", act)
        .post("/api/v1/replay/sessions/{session_id}/labels", act)
        .post("/api/v1/replay/sessions/{session_id}/tool-filter", act)
        .post("/api/v1/replay/sessions/{session_id}/report-bypass", act)
        .post("/api/v1/replay/sessions/{session_id}/kill", act)
        .post("/api/v1/replay/sessions/{session_id}/restore", act)
        .post("/api/v1/replay/sessions/{session_id}/heartbeat", act)
        .post("/api/v1/replay/sessions/{session_id}/captures", act)
        .post("/api/v1/replay/sessions/{session_id}/handoffs", act)
        .post("/api/v1/replay/handoffs/{handoff_id}/accept", act)
        .post("/api/v1/replay/handoffs/{handoff_id}/decline", act)
        .post("/api/v1/replay/handoffs/{handoff_id}/cancel", act)
        .post("/api/v1/replay/workflows", open)
        .get("/api/v1/replay/workflows/{workflow_id}", workflow)
        .post("/api/v1/captures", captures)
        .get("/api/v1/replay/plans", plan)
        .get("/api/v1/replay/approvals", approvals)
}

fn lost() -> Failure {
    Failure::new(Code::InternalError, "internal error")
}

async fn taken(call: &mut Call) -> Result<(Value, bool), Failure> {
    let body = call.json().await?;
    taken_as(call, body).await
}

async fn taken_as(call: &mut Call, body: Map<String, Value>) -> Result<(Value, bool), Failure> {
    let Request::Govern(request) = call.decode(&body)? else {
        return Err(lost());
    };
    call.govern(request, Value::Object(body)).await
}

async fn open(mut call: Call) -> Reply {
    let (opened, is_new) = taken(&mut call).await?;
    let status = match is_new {
        true => StatusCode::CREATED,
        false => StatusCode::OK,
    };
    Ok(reply(status, &opened))
}

/// Whatever a session is asked: its row in the table of operations says how it is read.
async fn act(mut call: Call) -> Reply {
    Ok(ok(&taken(&mut call).await?.0))
}

/// Arguments that come as an object are judged by what was read of them: every number must be what was sent.
async fn propose(mut call: Call) -> Reply {
    let (body, text) = call.json_and_text().await?;
    let calls = body.get("tool_calls").and_then(Value::as_array);
    let is_parsed = |call: &Value| call.get("arguments").is_some_and(Value::is_object);
    if calls.into_iter().flatten().any(is_parsed)
        && let Some(number) = exact::changed_number(&text)
    {
        let shown: String = number.chars().take(64).collect();
        let message = format!(
            "{shown} would become another number when it is parsed: send the arguments as text"
        );
        return Err(Failure::invalid("tool_calls", message));
    }
    Ok(ok(&taken_as(&mut call, body).await?.0))
}

async fn read(call: Call) -> Reply {
    let with_pending = match call.query("include")? {
        None => false,
        Some(words) => {
            let unknown = words.split(',').find(|word| word.trim() != "pending");
            if let Some(word) = unknown {
                let message = format!("`{word}` cannot be included; `pending` can");
                return Err(Failure::invalid("include", message));
            }
            true
        }
    };
    let workspace = call.in_workspace()?;
    let engine = &call.app.engine;
    let session = call.param("session_id");
    let shown = engine
        .governed(&call.caller, session, workspace.as_ref(), with_pending)
        .await?;
    Ok(ok(&shown))
}

/// The rules that the operator approved for an agent. They hold in every environment: what a session makes of them is its own.
async fn plan(call: Call) -> Reply {
    let Some(agent) = call.query("agent")?.map(str::to_owned) else {
        return Err(Failure::invalid("agent", "is missing"));
    };
    let engine = &call.app.engine;
    let shown = engine.governed_plan(&call.caller, &agent).await?;
    Ok(ok(&shown))
}

async fn workflow(call: Call) -> Reply {
    let workspace = call.in_workspace()?;
    let engine = &call.app.engine;
    let id = call.param("workflow_id");
    let shown = engine
        .governed_workflow(&call.caller, id, workspace.as_ref())
        .await?;
    Ok(ok(&shown))
}

async fn proposal(call: Call) -> Reply {
    const WAIT_MAX: u64 = 60;
    let seconds = match call.query("wait")? {
        None => 0,
        Some(text) => text
            .parse::<u64>()
            .ok()
            .filter(|seconds| *seconds <= WAIT_MAX)
            .ok_or_else(|| {
                let message = format!("`wait` must be an integer from 0 to {WAIT_MAX}");
                Failure::invalid("wait", message)
            })?,
    };
    // The answer leaves before the server gives up on the request.
    let longest = call.app.config.request_timeout.mul_f32(0.8);
    let wait = Duration::from_secs(seconds).min(longest);
    let workspace = call.in_workspace()?;
    let session = (call.param("session_id"), workspace.as_ref());
    let engine = &call.app.engine;
    let shown = engine
        .governed_proposal(&call.caller, session, call.param("proposal_id"), wait)
        .await?;
    Ok(ok(&shown))
}

/// Captures of several sessions at once: each record names its own.
async fn captures(mut call: Call) -> Reply {
    let body = call.json().await?;
    let mut by_session: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for (index, record) in wire::decode::captures(&body)?.into_iter().enumerate() {
        let Some(session) = record.get("session_id").and_then(Value::as_str) else {
            let param = format!("captures.{index}.session_id");
            return Err(Failure::invalid(param, "must be a string"));
        };
        by_session
            .entry(session.to_owned())
            .or_default()
            .push(record);
    }
    // Nothing is taken unless all of it can be.
    let workspace = call.in_workspace()?;
    for session in by_session.keys() {
        let engine = &call.app.engine;
        engine
            .sees_governed(&call.caller, session, workspace.as_ref())
            .await?;
    }
    let mut accepted = 0;
    for (session, captures) in by_session {
        accepted += captures.len();
        let request = Govern::Do {
            session,
            workspace_id: workspace.clone(),
            operation: Box::new(GovernedOperation::Capture { captures }),
        };
        // An idempotency key belongs to one session; a capture that comes twice does no harm.
        let engine = &call.app.engine;
        engine.govern(&call.caller, request, None).await?;
    }
    Ok(ok(&json!({"accepted": accepted})))
}

async fn approvals(call: Call) -> Reply {
    let decided = match call.query("status")? {
        None | Some("pending") => false,
        Some("decided") => true,
        Some(_) => return Err(Failure::invalid("status", "is `pending` or `decided`")),
    };
    let (after, limit) = (Position(call.cursor()?.0), call.limit()?);
    let engine = &call.app.engine;
    let (data, next) = engine
        .governed_approvals(&call.caller, after, limit, decided)
        .await?;
    let next = next.map(|position| Cursor(position.0));
    Ok(ok(&wire::list(data, next)))
}
