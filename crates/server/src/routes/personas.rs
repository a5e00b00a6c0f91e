//! Personas: the agents that Tasks run under.

use domain::ResourceKind;
use engine::Filters;

use super::{Routes, write};
use crate::call::Call;
use crate::failure::Reply;

pub(super) fn routes(routes: Routes) -> Routes {
    routes
        .get("/v1/personas", list)
        .post("/v1/personas", write)
        .get("/v1/personas/{persona_id}", read)
        .patch("/v1/personas/{persona_id}", write)
}

async fn list(call: Call) -> Reply {
    call.page(ResourceKind::Persona, Filters::default()).await
}

async fn read(call: Call) -> Reply {
    call.read(ResourceKind::Persona, "persona_id").await
}
