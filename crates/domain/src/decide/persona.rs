//! Personas: defined once per name and version, changed in a few members.

use canon::{Digest, Map, Value, jcs, sha256};
use serde_json::json;

use super::{Desk, Place};
use crate::{
    CreatePersona, Kind, Persona, PersonaSpec, Refusal, ResourceRef, State, UpdatePersona,
};

pub(super) fn create(desk: &mut Desk<'_>, order: &CreatePersona) -> Result<ResourceRef, Refusal> {
    let id = order.id();
    let subject = ResourceRef::new("persona", id.as_str());
    let (payload, digest) = content(&order.persona, &order.metadata);
    match known(desk, id.as_str()) {
        None => {}
        Some((_, known)) if known.content == digest => return Ok(subject),
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
    desk.draft(
        Kind::PersonaCreated,
        subject.clone(),
        &Place::default(),
        payload,
    );
    Ok(subject)
}

pub(super) fn update(desk: &mut Desk<'_>, order: &UpdatePersona) -> Result<ResourceRef, Refusal> {
    let Some((version, known)) = known(desk, order.id.as_str()) else {
        return Err(Refusal::not_found("persona"));
    };
    if version != order.document_version {
        return Err(Refusal::Stale);
    }
    let subject = ResourceRef::new("persona", order.id.as_str());
    let (payload, digest) = content(&order.persona, &order.metadata);
    if known.content != digest {
        desk.draft(
            Kind::PersonaUpdated,
            subject.clone(),
            &Place::default(),
            payload,
        );
    }
    Ok(subject)
}

fn known<'a>(desk: &Desk<'a>, id: &str) -> Option<(u64, &'a Persona)> {
    let document = desk.documents.document(id)?;
    match &document.state {
        State::Persona(persona) => Some((document.version, persona)),
        _ => None,
    }
}

/// Returns the payload that holds a whole definition, and the digest of what it says.
fn content(persona: &PersonaSpec, metadata: &Map<String, Value>) -> (Value, Digest) {
    let digest = sha256(&jcs(&json!({"persona": persona, "metadata": metadata})));
    let payload = json!({
        "name": persona.name,
        "version": persona.version,
        "content_sha256": digest,
        "persona": persona,
        "metadata": metadata,
    });
    (payload, digest)
}
