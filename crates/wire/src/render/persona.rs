//! A Persona as the protocol shows it, with the members that are ours.

use canon::Value;
use domain::{Persona, PersonaMemory, payload};
use serde_json::json;

use super::Source;

pub(super) fn persona(source: Source<'_>, state: &Persona) -> (Value, Value) {
    let spec = source.said::<payload::Persona>(state.source).persona();
    let spec = spec.unwrap_or(&Value::Null);
    let or = |name: &str, otherwise: Value| spec.get(name).cloned().unwrap_or(otherwise);
    let member = |name: &str| or(name, Value::Null);
    let list = |name: &str| or(name, json!([]));
    let object = |name: &str| or(name, json!({}));
    let members = json!({
        "name": state.name,
        "version": state.version,
        "entry_workflow": member("entry_workflow"),
        "description": member("description"),
        "autonomy_tier": member("autonomy_tier"),
        "receipt_policy": member("receipt_policy"),
        "tools": list("tools"),
        "capabilities": list("capabilities"),
        "triggers": list("triggers"),
        "schedules": list("schedules"),
        "handoffs": list("handoffs"),
        "context_packs": list("context_packs"),
        "evals": list("evals"),
        "owner": member("owner"),
        "model_policy": object("model_policy"),
        "rollout_policy": object("rollout_policy"),
        "quota_id": member("quota_id"),
        "system_prompt": member("system_prompt"),
        "model": object("model"),
        "limits": object("limits"),
        "memory": or("memory", PersonaMemory::None.as_str().into()),
        "isolated_replay": or("isolated_replay", false.into()),
        "forbids_replay": or("forbids_replay", false.into()),
        "contracts": member("contracts"),
    });
    (source.metadata(state.source).into_owned(), members)
}
