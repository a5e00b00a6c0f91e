//! Sessions.

use axum::http::StatusCode;
use canon::{Map, Value};
use domain::{Refusal, ResourceKind, SessionId};
use engine::{NewSession, Refused, ReplaySession, Request};
use wire::decode::{self, Members};

use super::Routes;
use super::messages::spec;
use crate::call::{Call, ok};
use crate::failure::{Failure, Reply};
use crate::render;

pub(super) fn routes(routes: Routes) -> Routes {
    routes
        .get("/v1/sessions", list)
        .post("/v1/sessions", create)
        .get("/v1/sessions/{session_id}", read)
        .patch("/v1/sessions/{session_id}", update)
        .post("/v1/sessions/{session_id}/close", close)
        .post("/v1/sessions/{session_id}/fork", fork)
        .post("/v1/sessions/{session_id}/truncate", truncate)
        .post("/v1/sessions/{session_id}/replay", replay)
        .get("/v1/sessions/{session_id}/live-clients", live_clients)
        .post("/v1/sessions/{session_id}/attach", live_client)
        .post("/v1/sessions/{session_id}/takeover", live_client)
        .post("/v1/sessions/{session_id}/detach", live_client)
        .post("/v1/sessions/{session_id}/heartbeat", live_client)
}

pub(super) fn session_id(call: &Call) -> Result<SessionId, Failure> {
    call.id("session_id", SessionId::OBJECT, SessionId::parse)
}

async fn list(call: Call) -> Reply {
    let filters = call.filters(&["workspace_id"])?;
    call.page(ResourceKind::Session, filters).await
}

async fn create(mut call: Call) -> Reply {
    let body = call.json().await?;
    let messages_max = call.app.engine.limits().fork_messages_max;
    let new = decode::create_session(&body, messages_max)?;
    refuse_lists(&call, &body).await?;
    let request = Request::CreateSession(NewSession {
        workspace_id: new.workspace_id,
        mode_id: new.mode_id,
        persona_id: new.persona_id,
        model_policy: new.model_policy,
        initial_messages: new.initial_messages.into_iter().map(spec).collect(),
        metadata: new.metadata,
    });
    call.write(request, body, StatusCode::CREATED).await
}

/// Refuses lists of resources that a Session would be given: what they name is looked up first, as everywhere.
async fn refuse_lists(call: &Call, body: &Map<String, Value>) -> Result<(), Failure> {
    for (row, value) in decode::asked("CreateSessionRequest", body) {
        let decode::Why::Lists(object) = row.why else {
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

async fn update(mut call: Call) -> Reply {
    let id = session_id(&call)?;
    let body = call.json().await?;
    let request = Request::UpdateSession(decode::update_session(id, &body)?);
    call.write(request, body, StatusCode::OK).await
}

async fn close(mut call: Call) -> Reply {
    let request = Request::CloseSession(session_id(&call)?);
    let body = call.json().await?;
    call.write(request, body, StatusCode::OK).await
}

/// Replays a Session's Tasks in a fork of it (AP-RPL-24). The answer is the fork, which tells by `session.replayed` when
/// it is done.
async fn replay(mut call: Call) -> Reply {
    let id = session_id(&call)?;
    let body = call.json().await?;
    let replay = ReplaySession {
        id,
        body: Value::Object(body.clone()),
        conformance: call.app.config.replay_conformance,
    };
    call.write(Request::ReplaySession(replay), body, StatusCode::ACCEPTED)
        .await
}

async fn fork(mut call: Call) -> Reply {
    let id = session_id(&call)?;
    let body = call.json().await?;
    let (at_event_id, branch_id, metadata) = decode::fork_session(&body)?;
    let request = Request::ForkSession {
        id,
        at_event_id,
        branch_id,
        metadata,
    };
    call.write(request, body, StatusCode::CREATED).await
}

async fn truncate(mut call: Call) -> Reply {
    let id = session_id(&call)?;
    let body = call.json().await?;
    let truncation = decode::truncate_session(&body)?;
    let request = Request::TruncateSession {
        id,
        keep_first: truncation.keep_first,
        reason: truncation.reason,
    };
    let answer = call.dispatch(request, Value::Object(body)).await?;
    let session = render::view(&call.app, &answer.view);
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
