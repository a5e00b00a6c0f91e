//! Families of which there is nothing yet: memories, quotas.
//!
//! Their lists are empty, no id names one of them, and a write says that it is not available. No path is missing:
//! a client of the protocol gets an answer it can read (C-19).

use super::Routes;
use crate::call::Call;
use crate::failure::{Failure, Reply};

pub(super) fn routes(routes: Routes) -> Routes {
    routes
        .get("/v1/memories", none)
        .post("/v1/memories", no_memory_written)
        .get("/v1/memories/{memory_id}", no_memory)
        .delete("/v1/memories/{memory_id}", no_memory)
        .get("/v1/quotas", none)
        .get("/v1/quotas/{quota_id}", no_quota)
}

async fn none(call: Call) -> Reply {
    call.page_of(Vec::new())
}

async fn not_written(mut call: Call, what: &str) -> Reply {
    call.json().await?;
    call.idempotency(canon::Value::Null)?;
    Err(Failure::not_available(what))
}

async fn no_memory_written(call: Call) -> Reply {
    not_written(call, "creating a memory").await
}

async fn no_memory(_: Call) -> Failure {
    Failure::not_found("memory")
}

async fn no_quota(_: Call) -> Failure {
    Failure::not_found("quota")
}
