//! Tasks, the Messages sent to them, and their Outcomes.

use domain::ResourceKind;
use engine::Filters;

use super::{Routes, write};
use crate::call::Call;
use crate::failure::Reply;

pub(super) fn routes(routes: Routes) -> Routes {
    routes
        .get("/v1/sessions/{session_id}/tasks", list_of_session)
        .post("/v1/sessions/{session_id}/tasks", write)
        .get("/v1/tasks", list)
        .post("/v1/tasks", write)
        .get("/v1/tasks/{task_id}", read)
        .post("/v1/tasks/{task_id}/cancel", write)
        .post("/v1/tasks/{task_id}/messages", write)
        .post("/v1/tasks/{task_id}/replay", write)
        .post("/v1/tasks/{task_id}/retry", write)
        .get("/v1/outcomes", outcomes)
        .get("/v1/outcomes/{outcome_id}", outcome)
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

async fn read(call: Call) -> Reply {
    call.read(ResourceKind::Task, "task_id").await
}

async fn outcomes(call: Call) -> Reply {
    let filters = call.filters(&["task_id"])?;
    call.page(ResourceKind::Outcome, filters).await
}

async fn outcome(call: Call) -> Reply {
    call.read(ResourceKind::Outcome, "outcome_id").await
}
