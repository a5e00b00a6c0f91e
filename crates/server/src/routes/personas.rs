//! Personas: the agents that Tasks run under.

use axum::http::StatusCode;
use domain::{PersonaId, ResourceKind};
use engine::Request;
use wire::decode;

use super::Routes;
use crate::call::{Call, Filters};
use crate::failure::Reply;

pub(super) fn routes(routes: Routes) -> Routes {
    routes
        .get("/v1/personas", list)
        .post("/v1/personas", create)
        .get("/v1/personas/{persona_id}", read)
        .patch("/v1/personas/{persona_id}", update)
}

async fn list(call: Call) -> Reply {
    call.page(ResourceKind::Persona, Filters::default()).await
}

/// The same definition again changes nothing and gets the same answer.
async fn create(mut call: Call) -> Reply {
    let body = call.json().await?;
    let request = Request::CreatePersona(Box::new(decode::create_persona(&body)?));
    call.write(request, body, StatusCode::CREATED).await
}

async fn read(call: Call) -> Reply {
    call.read(ResourceKind::Persona, "persona_id").await
}

async fn update(mut call: Call) -> Reply {
    let id = call.id("persona_id", PersonaId::OBJECT, PersonaId::parse)?;
    let body = call.json().await?;
    let change = decode::update_persona(&body)?;
    let request = Request::UpdatePersona { id, change };
    call.write(request, body, StatusCode::OK).await
}
