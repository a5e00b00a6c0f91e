//! Tasks, the Messages sent to them, and their Outcomes.

use axum::http::StatusCode;
use canon::Value;
use domain::{ResourceKind, SessionId, TaskId};
use engine::{InputSpec, NewTask, ReplayTask, Request, TaskMessageKind};
use wire::decode::{self, Input};

use super::Routes;
use super::messages::spec;
use super::sessions::session_id;
use crate::call::{Call, Filters, reply};
use crate::failure::{Failure, Reply};
use crate::render;

pub(super) fn routes(routes: Routes) -> Routes {
    routes
        .get("/v1/sessions/{session_id}/tasks", list_of_session)
        .post("/v1/sessions/{session_id}/tasks", submit_to_session)
        .get("/v1/tasks", list)
        .post("/v1/tasks", submit)
        .get("/v1/tasks/{task_id}", read)
        .post("/v1/tasks/{task_id}/cancel", cancel)
        .post("/v1/tasks/{task_id}/messages", send_message)
        .post("/v1/tasks/{task_id}/replay", replay)
        .post("/v1/tasks/{task_id}/retry", retry)
        .get("/v1/outcomes", outcomes)
        .get("/v1/outcomes/{outcome_id}", outcome)
}

fn task_id(call: &Call) -> Result<TaskId, Failure> {
    call.id("task_id", TaskId::OBJECT, TaskId::parse)
}

async fn list_of_session(call: Call) -> Reply {
    let filters = Filters {
        session_id: Some(call.param("session_id").to_owned()),
        ..Filters::default()
    };
    narrowed(&call, filters).await
}

async fn list(call: Call) -> Reply {
    let filters = call.filters(&["workspace_id", "session_id"])?;
    narrowed(&call, filters).await
}

async fn narrowed(call: &Call, filters: Filters) -> Reply {
    const OPEN: [&str; 4] = ["SUBMITTED", "WORKING", "INPUT_REQUIRED", "AUTH_REQUIRED"];
    let statuses = [OPEN.as_slice(), &["COMPLETED", "FAILED", "CANCELED"]].concat();
    call.narrowed_page(ResourceKind::Task, filters, &statuses, &OPEN)
        .await
}

async fn submit_to_session(call: Call) -> Reply {
    let session = session_id(&call)?;
    submit_in(call, Some(session)).await
}

async fn submit(call: Call) -> Reply {
    submit_in(call, None).await
}

async fn submit_in(mut call: Call, session: Option<SessionId>) -> Reply {
    let body = call.json().await?;
    let new = decode::submit_task(session, &body)?;
    let request = Request::SubmitTask(NewTask {
        session_id: new.session_id,
        workspace_id: new.workspace_id,
        persona_id: new.persona_id,
        branch_id: new.branch_id,
        parent_task_id: new.parent_task_id,
        input: match new.input {
            Input::Message(message) => InputSpec::Message(spec(message)),
            Input::Object(map) => InputSpec::Object(map),
        },
        metadata: new.metadata,
    });
    call.write(request, body, StatusCode::ACCEPTED).await
}

async fn read(call: Call) -> Reply {
    call.read(ResourceKind::Task, "task_id").await
}

async fn cancel(mut call: Call) -> Reply {
    let id = task_id(&call)?;
    let body = call.json().await?;
    let reason = decode::cancel_task(&body)?;
    let request = Request::CancelTask { id, reason };
    call.write(request, body, StatusCode::OK).await
}

/// The same answer again changes nothing and is 200 (AP-TASK-11).
async fn send_message(mut call: Call) -> Reply {
    let id = task_id(&call)?;
    let body = call.json().await?;
    let sent = decode::task_message(&body)?;
    let request = Request::SendTaskMessage {
        id,
        kind: match sent.kind {
            decode::TaskMessageKind::Input => TaskMessageKind::Input,
            decode::TaskMessageKind::Interrupt => TaskMessageKind::Interrupt,
            decode::TaskMessageKind::ToolConfirmation => TaskMessageKind::ToolConfirmation,
        },
        message: spec(sent.message),
    };
    let answer = call.dispatch(request, Value::Object(body)).await?;
    let status = match answer.changed {
        true => StatusCode::CREATED,
        false => StatusCode::OK,
    };
    Ok(reply(status, &render::view(&call.app, &answer.view)))
}

async fn replay(mut call: Call) -> Reply {
    let id = task_id(&call)?;
    let body = call.json().await?;
    let replay = ReplayTask {
        id,
        body: Value::Object(body.clone()),
        conformance: call.app.config.replay_conformance,
        session_id: None,
    };
    call.write(Request::ReplayTask(replay), body, StatusCode::ACCEPTED)
        .await
}

/// Takes a run that failed up again, live, from its last checkpoint.
async fn retry(mut call: Call) -> Reply {
    let id = task_id(&call)?;
    let body = call.json().await?;
    let mut asked = body.clone();
    asked.retain(|name, _| ["reason", "metadata"].contains(&name.as_str()));
    asked.insert("retry".to_owned(), Value::Bool(true));
    let replay = ReplayTask {
        id,
        body: Value::Object(asked),
        conformance: false,
        session_id: None,
    };
    call.write(Request::ReplayTask(replay), body, StatusCode::ACCEPTED)
        .await
}

async fn outcomes(call: Call) -> Reply {
    let filters = call.filters(&["task_id"])?;
    call.page(ResourceKind::Outcome, filters).await
}

async fn outcome(call: Call) -> Reply {
    call.read(ResourceKind::Outcome, "outcome_id").await
}
