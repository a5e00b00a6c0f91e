//! Messages of Sessions.

use domain::{Position, ResourceKind};

use super::{Routes, write};
use crate::call::{self, Call};
use crate::failure::Reply;

pub(super) fn routes(routes: Routes) -> Routes {
    routes
        .get("/v1/sessions/{session_id}/messages", list)
        .post("/v1/sessions/{session_id}/messages", write)
        .get("/v1/messages/{message_id}", read)
}

async fn list(call: Call) -> Reply {
    let after = Position(call.cursor()?.0);
    let limit = call.limit()?;
    let session = call.param("session_id");
    let page = call
        .app
        .engine
        .transcript(&call.caller, session, after, limit)
        .await?;
    call::page(&page)
}

async fn read(call: Call) -> Reply {
    call.read(ResourceKind::Message, "message_id").await
}
