//! Messages of Sessions.

use axum::http::StatusCode;
use domain::{Position, ResourceKind};
use engine::{MessageSpec, Request};
use wire::decode::{self, MessageInput};

use super::Routes;
use super::sessions::session_id;
use crate::call::{Call, ok};
use crate::failure::Reply;
use crate::render;

pub(super) fn routes(routes: Routes) -> Routes {
    routes
        .get("/v1/sessions/{session_id}/messages", list)
        .post("/v1/sessions/{session_id}/messages", append)
        .get("/v1/messages/{message_id}", read)
}

/// The engine's word for a decoded Message.
pub(super) fn spec(input: MessageInput) -> MessageSpec {
    MessageSpec {
        role: input.role,
        parts: input.parts,
        metadata: input.metadata,
    }
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
    Ok(ok(&render::page(&call.app, &page)))
}

async fn append(mut call: Call) -> Reply {
    let session_id = session_id(&call)?;
    let body = call.json().await?;
    let message = spec(decode::append_message(&body)?);
    let request = Request::AppendMessage {
        session_id,
        message,
    };
    call.write(request, body, StatusCode::CREATED).await
}

async fn read(call: Call) -> Reply {
    call.read(ResourceKind::Message, "message_id").await
}
