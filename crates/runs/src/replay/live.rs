//! What a replay performed live, as its own event reports it.
//!
//! Written and read here and nowhere else: a process that takes over must know all of it again, and the receipt is
//! computed from it.

use canon::{Digest, Map, Value};
use domain::{Event, Kind, payload};
use serde_json::json;

use crate::workflow::EffectOutcome;
use crate::workflow::{EffectAnswer, EffectRequest};

/// The member that marks such an event, and its word.
const NOTE: &str = "refreshed";

/// Why such a delivery stands in a receipt.
pub(super) fn reason(is_decision: bool) -> &'static str {
    match is_decision {
        true => "decided in this run",
        false => "refreshed by request",
    }
}

/// Returns the payload of the event that tells a result. Members beyond those that every refreshed read has are
/// there only when there is something to tell.
pub(super) fn payload(
    effect: &EffectRequest,
    performed: &EffectOutcome,
    digest: Digest,
) -> Map<String, Value> {
    let mut payload = payload::ReplayedEffect::default()
        .effect_key(effect.key.as_str())
        .kind(effect.kind.record_kind())
        .outcome(if performed.ok { "ok" } else { "error" })
        .value(performed.value.clone())
        .value_sha256(json!(digest))
        .visibility("public")
        .model(json!(performed.model))
        .replay_note(NOTE);
    if let Some(id) = &performed.provider_request_id {
        payload = payload.provider_request_id(id.as_str());
    }
    if let Some(observed) = &performed.observed {
        payload = payload.side_effects(json!(observed));
    }
    payload.into_members()
}

/// True for the payload of such an event.
pub fn is_told_by(payload: &Map<String, Value>) -> bool {
    payload::ReplayedEffect::of(payload).replay_note() == Some(NOTE)
}

/// True for the event of a replay's own log that says what somebody answered in it, and not in its source.
pub fn is_answer(event: &Event) -> bool {
    event.kind() == Ok(Kind::EffectRecorded) && event.replay.is_none()
}

/// Reads the result back from its event, whose blobs are filled in.
pub fn read(event: &Event) -> EffectOutcome {
    let EffectAnswer { ok, value, model } = EffectAnswer::recorded(event);
    let said = payload::ReplayedEffect::of(&event.payload);
    EffectOutcome {
        ok,
        value,
        model,
        provider_request_id: said.provider_request_id().map(str::to_owned),
        observed: said
            .side_effects()
            .and_then(|observed| serde::Deserialize::deserialize(observed).ok()),
    }
}
