//! Records of finished Tasks: the bundle of one, the difference of two, the bundle of another server's.

use std::sync::Arc;

use axum::http::header;
use axum::response::IntoResponse;
use canon::Value;
use domain::{TaskId, WorkspaceId};
use engine::{Refused, Request};
use runs::replay::BUNDLE_BYTES_MAX;
use serde_json::json;

use super::Routes;
use crate::call::{Call, ok};
use crate::failure::{Failure, Reply};

pub(super) fn routes(routes: Routes) -> Routes {
    routes
        .get("/v1/tasks/{task_id}/bundle", bundle)
        .get("/v1/tasks/{task_id}/diff", diff)
        .get("/v1/tasks/{task_id}/transcript", transcript)
        .post("/v1/tasks/import", import)
}

/// Room that is taken while a bundle is put together.
const BUNDLE_ROOM_BYTES: usize = 32 * 1024 * 1024;

async fn bundle(call: Call) -> Reply {
    let id = call.id("task_id", TaskId::OBJECT, TaskId::parse)?;
    // How long it will be is known when it is there.
    let room = call.app.room(call.credential, BUNDLE_ROOM_BYTES).await?;
    let bytes = call.app.engine.bundle(&call.caller, &id).await?;
    drop(room);
    let headers = [
        (header::CONTENT_TYPE, "application/jsonl"),
        (header::CONTENT_DISPOSITION, "attachment"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    let (length, body) = call.whole(bytes).await?;
    Ok((headers, [(header::CONTENT_LENGTH, length)], body).into_response())
}

async fn diff(call: Call) -> Reply {
    let id = call.id("task_id", TaskId::OBJECT, TaskId::parse)?;
    let Some(other) = call.query("other")? else {
        return Err(Failure::invalid(
            "other",
            "`other` must name the task to compare with",
        ));
    };
    let other = TaskId::parse(other).map_err(|_| {
        let mut unknown = Failure::not_found(TaskId::OBJECT);
        unknown.param = Some("other".to_owned());
        unknown
    })?;
    let diff = call.app.engine.diff(&call.caller, &id, &other).await?;
    let diff: Value = serde_json::to_value(diff).map_err(|error| Refused::Internal {
        detail: error.to_string(),
    })?;
    Ok(ok(&diff))
}

async fn transcript(call: Call) -> Reply {
    let id = call.id("task_id", TaskId::OBJECT, TaskId::parse)?;
    let only = match call.query("step")? {
        None => None,
        Some(text) => match text.parse::<usize>() {
            Ok(step) if step > 0 => Some(step),
            _ => {
                let message = "`step` must be the number of a step, from 1";
                return Err(Failure::invalid("step", message));
            }
        },
    };
    let engine = &call.app.engine;
    let told = engine.run_transcript(&call.caller, &id, only).await?;
    if let Some(step) = only
        && step > told.steps_total
    {
        let message = format!("the run has {} steps, not {step}", told.steps_total);
        return Err(Failure::invalid("step", message));
    }
    let told: Value = serde_json::to_value(told).map_err(|error| Refused::Internal {
        detail: error.to_string(),
    })?;
    Ok(ok(&told))
}

/// How much memory an import takes at most, in lengths of its bundle: the bytes, and the events and contents that are read from
/// them. Measured: 2.7 where nearly all of it is content, 8.6 for a log of nothing but small events with many members.
const IMPORT_COST: usize = 9;

/// The same bundle again changes nothing and is 200.
async fn import(mut call: Call) -> Reply {
    let workspace_id = match call.query("workspace_id")? {
        None => None,
        Some(id) => Some(WorkspaceId::parse(id).map_err(|_| {
            let mut unknown = Failure::not_found(WorkspaceId::OBJECT);
            unknown.param = Some("workspace_id".to_owned());
            unknown
        })?),
    };
    // Held until it is answered: what is made of a bundle takes more than the bundle.
    let (bytes, _room) = call.bytes_in_room(BUNDLE_BYTES_MAX, IMPORT_COST).await?;
    // The key stands for these bytes in this place.
    let body = json!({"sha256": canon::sha256(&bytes), "workspace_id": workspace_id});
    let request = Request::ImportTask {
        bundle: Arc::new(bytes.into()),
        workspace_id,
    };
    let answer = call.dispatch(request, body).await?;
    Ok(call.shown(&answer))
}
