//! Branches.

use axum::http::StatusCode;
use domain::ResourceKind;
use engine::Request;
use wire::decode;

use super::Routes;
use super::sessions::session_id;
use crate::call::{Call, Filters};
use crate::failure::Reply;

pub(super) fn routes(routes: Routes) -> Routes {
    routes
        .get("/v1/sessions/{session_id}/branches", list)
        .post("/v1/sessions/{session_id}/branches", create)
        .get("/v1/branches/{branch_id}", read)
}

async fn list(call: Call) -> Reply {
    let filters = Filters {
        session_id: Some(call.param("session_id").to_owned()),
        ..Filters::default()
    };
    call.page(ResourceKind::Branch, filters).await
}

async fn create(mut call: Call) -> Reply {
    let session_id = session_id(&call)?;
    let body = call.json().await?;
    let new = decode::create_branch(&body)?;
    let request = Request::CreateBranch {
        session_id,
        kind: new.kind,
        base_ref: new.base_ref,
        parent_branch_id: new.parent_branch_id,
        task_id: new.task_id,
        metadata: new.metadata,
    };
    call.write(request, body, StatusCode::CREATED).await
}

async fn read(call: Call) -> Reply {
    call.read(ResourceKind::Branch, "branch_id").await
}
