//! Branches.

use domain::ResourceKind;
use engine::Filters;

use super::{Routes, write};
use crate::call::Call;
use crate::failure::Reply;

pub(super) fn routes(routes: Routes) -> Routes {
    routes
        .get("/v1/sessions/{session_id}/branches", list)
        .post("/v1/sessions/{session_id}/branches", write)
        .get("/v1/branches/{branch_id}", read)
}

async fn list(call: Call) -> Reply {
    let filters = Filters {
        session_id: Some(call.param("session_id").to_owned()),
        ..Filters::default()
    };
    call.page(ResourceKind::Branch, filters).await
}

async fn read(call: Call) -> Reply {
    call.read(ResourceKind::Branch, "branch_id").await
}
