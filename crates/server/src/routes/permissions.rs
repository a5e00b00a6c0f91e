//! What Tasks wait for, and the permission policy that this server does not have yet.

use domain::ResourceKind;
use engine::Filters;
use wire::card;

use super::{Routes, write};
use crate::call::{Call, ok};
use crate::failure::{Failure, Reply};

pub(super) fn routes(routes: Routes) -> Routes {
    routes
        .get("/v1/permission-requests", list)
        .get("/v1/tasks/{task_id}/permission-requests", list_of_task)
        .get("/v1/permission-requests/{request_id}", read)
        .post("/v1/permission-requests/{request_id}/respond", write)
        .get("/v1/permissions/policy", policy)
        .put("/v1/permissions/policy", install_policy)
        .get("/v1/permissions/rules", rules)
        .post("/v1/permissions/rules", create_rule)
        .delete("/v1/permissions/rules/{rule_id}", revoke_rule)
        .get("/v1/permissions/history", history)
        .post("/v1/permissions/check", check)
}

async fn list(call: Call) -> Reply {
    let filters = call.filters(&["session_id", "task_id"])?;
    narrowed(&call, filters).await
}

async fn narrowed(call: &Call, filters: Filters) -> Reply {
    let statuses = ["pending", "approved", "denied"];
    call.narrowed_page(ResourceKind::Permission, filters, &statuses, &["pending"])
        .await
}

async fn read(call: Call) -> Reply {
    call.read(ResourceKind::Permission, "request_id").await
}

async fn list_of_task(call: Call) -> Reply {
    let filters = Filters {
        task_id: Some(call.param("task_id").to_owned()),
        ..Filters::default()
    };
    narrowed(&call, filters).await
}

async fn policy(_: Call) -> Reply {
    Ok(ok(&card::permission_policy()))
}

async fn rules(_: Call) -> Reply {
    Ok(ok(&wire::list(Vec::new(), None)))
}

async fn history(call: Call) -> Reply {
    call.limit()?;
    Ok(ok(&wire::list(Vec::new(), None)))
}

async fn install_policy(call: Call) -> Reply {
    refuse(call, "a permission policy").await
}

async fn create_rule(call: Call) -> Reply {
    refuse(call, "a remembered permission rule").await
}

async fn check(call: Call) -> Reply {
    refuse(call, "a permission check").await
}

async fn refuse(mut call: Call, what: &str) -> Reply {
    call.json().await?;
    call.idempotency(canon::Value::Null)?;
    Err(Failure::not_available(what))
}

async fn revoke_rule(_: Call) -> Reply {
    Err(Failure::not_found("permission_rule"))
}
