//! Sessions.

use canon::Value;
use domain::ResourceKind;
use wire::decode::Members;

use super::{Routes, write};
use crate::call::{Call, ok};
use crate::failure::{Failure, Reply};
use crate::render;

pub(super) fn routes(routes: Routes) -> Routes {
    routes
        .get("/v1/sessions", list)
        .post("/v1/sessions", write)
        .get("/v1/sessions/{session_id}", read)
        .patch("/v1/sessions/{session_id}", write)
        .post("/v1/sessions/{session_id}/close", write)
        .post("/v1/sessions/{session_id}/fork", write)
        .post("/v1/sessions/{session_id}/truncate", truncate)
        .post("/v1/sessions/{session_id}/replay", write)
        .get("/v1/sessions/{session_id}/live-clients", live_clients)
        .post("/v1/sessions/{session_id}/attach", live_client)
        .post("/v1/sessions/{session_id}/takeover", live_client)
        .post("/v1/sessions/{session_id}/detach", live_client)
        .post("/v1/sessions/{session_id}/heartbeat", live_client)
}

async fn list(call: Call) -> Reply {
    let filters = call.filters(&["workspace_id"])?;
    call.page(ResourceKind::Session, filters).await
}

async fn read(call: Call) -> Reply {
    call.read(ResourceKind::Session, "session_id").await
}

/// The answer says what was dropped besides what is left.
async fn truncate(mut call: Call) -> Reply {
    let answer = call.carry_out().await?;
    let session = render::view(&call.app, &answer.view);
    let payload = answer.event.map(|event| event.payload).unwrap_or_default();
    Ok(ok(&wire::render::truncate_result(&payload, session)))
}

async fn live_clients(call: Call) -> Reply {
    call.must_see(ResourceKind::Session, "session_id").await?;
    Ok(ok(&wire::list(Vec::new(), None)))
}

async fn live_client(mut call: Call) -> Reply {
    let body = call.json().await?;
    call.idempotency(Value::Null)?;
    Members::of(&body).required_string("client_id", domain::ID_BYTES_MAX)?;
    Err(Failure::not_available(
        "sharing a session between live clients",
    ))
}
