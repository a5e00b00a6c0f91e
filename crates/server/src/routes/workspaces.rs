//! Workspaces and their files. No Workspace has files yet: a root is a name (AP-WS-02).

use domain::ResourceKind;
use engine::Filters;
use wire::decode::{self, Members};

use super::{Routes, write};
use crate::call::Call;
use crate::failure::{Failure, Reply};

pub(super) fn routes(routes: Routes) -> Routes {
    routes
        .get("/v1/workspaces", list)
        .post("/v1/workspaces", write)
        .get("/v1/workspaces/{workspace_id}", read)
        .patch("/v1/workspaces/{workspace_id}", write)
        .get("/v1/workspaces/{workspace_id}/files", read_file)
        .put("/v1/workspaces/{workspace_id}/files", write_file)
}

async fn list(call: Call) -> Reply {
    call.page(ResourceKind::Workspace, Filters::default()).await
}

async fn read(call: Call) -> Reply {
    call.read(ResourceKind::Workspace, "workspace_id").await
}

async fn read_file(call: Call) -> Reply {
    call.must_see(ResourceKind::Workspace, "workspace_id")
        .await?;
    check_path(call.query("path")?.unwrap_or("."))?;
    Err(Failure::not_available("reading files of a workspace"))
}

async fn write_file(mut call: Call) -> Reply {
    let body = call.json().await?;
    call.idempotency(canon::Value::Null)?;
    let members = Members::of(&body);
    members.required_string("content", usize::MAX)?;
    members.metadata()?;
    let in_body = members.string("path", decode::URI_BYTES_MAX)?;
    check_path(in_body.as_deref().or(call.query("path")?).unwrap_or("."))?;
    Err(Failure::not_available("writing files of a workspace"))
}

/// A path stays inside its root (AP-WS-06).
fn check_path(path: &str) -> Result<(), Failure> {
    let outside = path.starts_with(['/', '\\'])
        || path.split(['/', '\\']).any(|segment| segment == "..")
        || path.contains('\0');
    match outside {
        false => Ok(()),
        true => Err(Failure::invalid(
            "path",
            "`path` must be relative and stay inside the workspace",
        )),
    }
}
