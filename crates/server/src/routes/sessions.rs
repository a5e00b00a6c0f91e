//! Sessions.

use canon::{Map, Value};
use domain::{Refusal, ResourceKind};
use engine::Refused;
use wire::decode::{self, Members};

use super::{Routes, write};
use crate::call::{Call, ok};
use crate::failure::{Failure, Reply};

pub(super) fn routes(routes: Routes) -> Routes {
    routes
        .get("/v1/sessions", list)
        .post("/v1/sessions", create)
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
    let statuses = ["ACTIVE", "PAUSED", "IDLE", "CLOSED"];
    call.narrowed_page(ResourceKind::Session, filters, &statuses, &[])
        .await
}

async fn create(mut call: Call) -> Reply {
    let body = call.json().await?;
    let request = call.decode(&body)?;
    refuse_lists(&call, &body).await?;
    let answer = call.dispatch(request, Value::Object(body)).await?;
    Ok(call.shown(&answer))
}

/// Refuses lists of resources that a Session would be given: what they name is looked up first, as everywhere.
async fn refuse_lists(call: &Call, body: &Map<String, Value>) -> Result<(), Failure> {
    for (row, value) in decode::requested_unserved("CreateSessionRequest", body) {
        let decode::Reason::Lists(object) = row.why else {
            continue;
        };
        for id in value
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
        {
            let known = match object {
                "vault" => {
                    let seen = call.app.engine.sees(&call.caller, ResourceKind::Vault, id);
                    match seen.await {
                        Ok(()) => true,
                        Err(Refused::Domain(Refusal::NotFound { .. })) => false,
                        Err(refused) => return Err(refused.into()),
                    }
                }
                "skill" => call.app.skills().iter().any(|skill| skill.id() == id),
                _ => false,
            };
            if !known {
                let mut failure = Failure::not_found(object);
                failure.param = Some(row.member.to_owned());
                return Err(failure);
            }
        }
        return Err(row.refusal().into());
    }
    Ok(())
}

async fn read(call: Call) -> Reply {
    call.read(ResourceKind::Session, "session_id").await
}

/// The answer says what was dropped besides what is left.
async fn truncate(mut call: Call) -> Reply {
    let answer = call.carry_out().await?;
    let session = wire::render::resource(&answer.view).value();
    let payload = answer.event.map(|event| event.payload.clone());
    let payload = payload.unwrap_or_default();
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
