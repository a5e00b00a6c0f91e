//! Personas: defined once per name and version, changed in a few members.

use canon::{Map, Value, jcs, sha256};
use serde_json::json;

use super::{Decider, Place};
use crate::kind::Payload;
use crate::payload::{self, detail};
use crate::{CreatePersona, Persona, PersonaSpec, Refusal, ResourceRef, State, UpdatePersona};

pub(super) fn create(
    decider: &mut Decider<'_>,
    order: &CreatePersona,
) -> Result<ResourceRef, Refusal> {
    let id = order.id();
    let subject = id.resource();
    let said = content(&order.persona, &order.metadata);
    match known(decider, id.as_str()) {
        None => {}
        Some((_, known)) if known.content == said.content_sha256 => return Ok(subject),
        Some(_) => {
            let spec = &order.persona;
            return Err(Refusal::Conflict {
                reason: "persona_exists",
                message: format!(
                    "persona `{}` has a version `{}` already, and it says something else",
                    spec.name, spec.version
                ),
                status: None,
            });
        }
    }
    // Global to the server: it belongs to no Workspace (AP-WS-03).
    let created = Payload::PersonaCreated(said);
    decider.draft(created, subject.clone(), &Place::default());
    Ok(subject)
}

pub(super) fn update(
    decider: &mut Decider<'_>,
    order: &UpdatePersona,
) -> Result<ResourceRef, Refusal> {
    let Some((version, known)) = known(decider, order.id.as_str()) else {
        return Err(Refusal::not_found("persona"));
    };
    if version != order.document_version {
        return Err(Refusal::Stale);
    }
    let subject = order.id.resource();
    let said = content(&order.persona, &order.metadata);
    if known.content != said.content_sha256 {
        let updated = Payload::PersonaUpdated(said);
        decider.draft(updated, subject.clone(), &Place::default());
    }
    Ok(subject)
}

fn known<'a>(decider: &Decider<'a>, id: &str) -> Option<(u64, &'a Persona)> {
    let document = decider.documents.document(id)?;
    match &document.state {
        State::Persona(persona) => Some((document.version, persona)),
        _ => None,
    }
}

/// Returns the payload that holds a whole definition, with the digest of what it says.
fn content(persona: &PersonaSpec, metadata: &Map<String, Value>) -> payload::Persona {
    payload::Persona {
        name: persona.name.clone(),
        version: persona.version.clone(),
        content_sha256: sha256(&jcs(&json!({"persona": persona, "metadata": metadata}))),
        persona: detail(persona),
        metadata: detail(metadata),
    }
}
