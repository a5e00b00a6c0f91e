//! Records of finished Tasks: the bundle of one, the difference of two.

use axum::http::header;
use axum::response::IntoResponse;
use canon::Value;
use domain::TaskId;
use engine::Refused;

use super::Routes;
use crate::call::{Call, ok};
use crate::failure::{Failure, Reply};

pub(super) fn routes(routes: Routes) -> Routes {
    routes
        .get("/v1/tasks/{task_id}/bundle", bundle)
        .get("/v1/tasks/{task_id}/diff", diff)
}

async fn bundle(call: Call) -> Reply {
    let id = call.id("task_id", TaskId::OBJECT, TaskId::parse)?;
    let bytes = call.app.engine.bundle(&call.caller, &id).await?;
    let headers = [
        (header::CONTENT_TYPE, "application/jsonl"),
        (header::CONTENT_DISPOSITION, "attachment"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    Ok((headers, bytes).into_response())
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
