//! Bodies about Personas.

use canon::{Map, Value};
use domain::{
    AutonomyTier, CreatePersona, PersonaChange, PersonaId, PersonaLimits, PersonaMemory,
    PersonaModel, PersonaSpec, ReceiptPolicy, Request,
};

use super::{
    DecodeInput, LIST_LEN_MAX, Members, NAME_BYTES_MAX, PROMPT_BYTES_MAX, SUMMARY_BYTES_MAX,
    TEXT_BYTES_MAX, unserved,
};
use crate::InputError;

const MODEL_MEMBERS: [&str; 4] = ["provider", "model", "max_tokens", "temperature"];
const LIMIT_MEMBERS: [&str; 4] = [
    "steps_max",
    "tokens_max",
    "cost_micros_max",
    "tool_calls_max",
];

/// Reads a new Persona (AP-PERS-01, AP-PERS-02).
///
/// # Errors
/// Names the member that is missing or wrong.
pub fn create_persona(incoming: &DecodeInput<'_>) -> Result<Request, InputError> {
    let members = incoming.members();
    if members.has("module_ref") {
        let message = "names a module to run, and this server runs none: leave it out and name a \
            registered workflow in `entry_workflow`";
        return Err(members.wrong("module_ref", message));
    }
    let persona = PersonaSpec {
        name: name(&members, "name")?,
        version: name(&members, "version")?,
        entry_workflow: name(&members, "entry_workflow")?,
        description: members.required_string("description", SUMMARY_BYTES_MAX)?,
        autonomy_tier: members
            .word("autonomy_tier", AutonomyTier::WORDS, AutonomyTier::parse)?
            .ok_or_else(|| members.missing("autonomy_tier"))?,
        receipt_policy: receipt_policy(&members)?
            .ok_or_else(|| members.missing("receipt_policy"))?,
        tools: names(&members, "tools")?,
        capabilities: names(&members, "capabilities")?,
        triggers: objects(&members, "triggers")?,
        schedules: objects(&members, "schedules")?,
        handoffs: names(&members, "handoffs")?,
        context_packs: names(&members, "context_packs")?,
        evals: names(&members, "evals")?,
        owner: members.string_or_null("owner", TEXT_BYTES_MAX)?,
        model_policy: members.bounded_object("model_policy")?.unwrap_or_default(),
        rollout_policy: members
            .bounded_object("rollout_policy")?
            .unwrap_or_default(),
        quota_id: members.string_or_null("quota_id", domain::ID_BYTES_MAX)?,
        system_prompt: members.string_or_null("system_prompt", PROMPT_BYTES_MAX)?,
        model: model(&members)?,
        limits: limits(&members)?,
        memory: members
            .word("memory", PersonaMemory::WORDS, PersonaMemory::parse)?
            .unwrap_or(PersonaMemory::None),
        isolated_replay: members.boolean("isolated_replay")?.unwrap_or(false),
        forbids_replay: members.boolean("forbids_replay")?.unwrap_or(false),
        contracts: members.string_or_null("contracts", NAME_BYTES_MAX)?,
    };
    unserved::refuse("CreatePersonaRequest", &members)?;
    Ok(Request::CreatePersona(Box::new(CreatePersona {
        persona,
        metadata: members.metadata()?,
    })))
}

/// Reads a change of a Persona. What a definition fixes is refused: another version says it again.
///
/// # Errors
/// Names the member that is wrong.
pub fn update_persona(incoming: &DecodeInput<'_>) -> Result<Request, InputError> {
    let members = incoming.members();
    let change = PersonaChange {
        description: members.string("description", SUMMARY_BYTES_MAX)?,
        receipt_policy: receipt_policy(&members)?,
        quota_id: members.nullable_string("quota_id", domain::ID_BYTES_MAX)?,
        metadata: members.metadata_if_any()?,
    };
    unserved::refuse("UpdatePersonaRequest", &members)?;
    let id = incoming.id("persona_id", PersonaId::OBJECT, PersonaId::parse)?;
    Ok(Request::UpdatePersona { id, change })
}

fn receipt_policy(members: &Members<'_>) -> Result<Option<ReceiptPolicy>, InputError> {
    members.word("receipt_policy", ReceiptPolicy::WORDS, ReceiptPolicy::parse)
}

fn name(members: &Members<'_>, name: &str) -> Result<String, InputError> {
    let text = members.required_string(name, NAME_BYTES_MAX)?;
    match text.is_empty() {
        false => Ok(text),
        true => Err(members.wrong(name, "must not be empty")),
    }
}

fn names(members: &Members<'_>, name: &str) -> Result<Vec<String>, InputError> {
    let names = members.strings(name, LIST_LEN_MAX, domain::ID_BYTES_MAX)?;
    Ok(names.unwrap_or_default())
}

fn objects(members: &Members<'_>, name: &str) -> Result<Vec<Map<String, Value>>, InputError> {
    let items = members.array(name, LIST_LEN_MAX)?.unwrap_or_default();
    let objects = items.iter().enumerate().map(|(index, item)| {
        let object = Members::within(item, members.param(&format!("{name}.{index}")))?;
        Ok(object.map().clone())
    });
    objects.collect()
}

fn model(members: &Members<'_>) -> Result<PersonaModel, InputError> {
    let Some(model) = inner(members, "model", &MODEL_MEMBERS)? else {
        return Ok(PersonaModel::default());
    };
    let temperature = match model.map().get("temperature") {
        None => None,
        Some(value) => match value.as_f64() {
            Some(number) if (0.0..=2.0).contains(&number) => Some(number),
            _ => return Err(model.wrong("temperature", "must be a number from 0 to 2")),
        },
    };
    Ok(PersonaModel {
        provider: model.string("provider", NAME_BYTES_MAX)?,
        model: model.string("model", NAME_BYTES_MAX)?,
        max_tokens: model.count("max_tokens")?,
        temperature,
    })
}

fn limits(members: &Members<'_>) -> Result<PersonaLimits, InputError> {
    let Some(limits) = inner(members, "limits", &LIMIT_MEMBERS)? else {
        return Ok(PersonaLimits::default());
    };
    Ok(PersonaLimits {
        steps_max: limits.count("steps_max")?,
        tokens_max: limits.count("tokens_max")?,
        cost_micros_max: limits.count("cost_micros_max")?,
        tool_calls_max: limits.count("tool_calls_max")?,
    })
}

/// Reads an object of our own with these members and no others: a limit with a typing error would bound nothing.
fn inner<'a>(
    members: &Members<'a>,
    name: &str,
    known: &[&str],
) -> Result<Option<Members<'a>>, InputError> {
    let Some(map) = members.object(name)? else {
        return Ok(None);
    };
    let inner = Members::at(map, members.param(name));
    match map.keys().find(|key| !known.contains(&key.as_str())) {
        None => Ok(Some(inner)),
        Some(key) => {
            let message = format!("is not a member of `{name}`: {}", known.join(", "));
            Err(inner.wrong(key, &message))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn full() -> Value {
        json!({
            "name": "reviewer", "version": "1.0.0", "entry_workflow": "agent", "description": "Reviews changes",
            "autonomy_tier": "suggest", "receipt_policy": "required",
            "tools": ["git.diff"], "capabilities": ["read"], "owner": "platform",
            "system_prompt": "You review.", "model": {"provider": "scripted", "model": "m", "max_tokens": 100, "temperature": 0.5},
            "limits": {"steps_max": 4, "tokens_max": 1000, "cost_micros_max": 5000, "tool_calls_max": 9},
            "memory": "session", "isolated_replay": true, "metadata": {"team": "a"},
        })
    }

    fn incoming<'a>(params: &'a [(String, String)], body: &'a Value) -> DecodeInput<'a> {
        DecodeInput {
            params,
            body: body.as_object().unwrap(),
            settings: crate::decode::Settings {
                initial_messages_max: 0,
                replay_conformance: false,
            },
        }
    }

    fn read(body: &Value) -> Result<CreatePersona, InputError> {
        match create_persona(&incoming(&[], body))? {
            Request::CreatePersona(persona) => Ok(*persona),
            other => panic!("{other:?}"),
        }
    }

    fn change(body: &Value) -> PersonaChange {
        let params = [("persona_id".to_owned(), "persona_1".to_owned())];
        match update_persona(&incoming(&params, body)).unwrap() {
            Request::UpdatePersona { change, .. } => change,
            other => panic!("{other:?}"),
        }
    }

    fn param(body: &Value) -> String {
        match read(body).unwrap_err() {
            InputError::Invalid { param, .. }
            | InputError::Unknown { param, .. }
            | InputError::TooLarge { param, .. }
            | InputError::Policy { param, .. } => param,
        }
    }

    #[test]
    fn ap_pers_02_every_member_is_kept() {
        let read = read(&full()).unwrap();
        let mut kept = json!(read.persona);
        kept["metadata"] = json!(read.metadata);
        assert_eq!(kept, full());
    }

    #[test]
    fn ap_pers_01_each_required_member_is_asked_for_by_name() {
        for name in [
            "name",
            "version",
            "entry_workflow",
            "description",
            "autonomy_tier",
            "receipt_policy",
        ] {
            let mut without = full();
            without.as_object_mut().unwrap().remove(name);
            assert_eq!(param(&without), name);
            let mut wrong = full();
            wrong[name] = json!(7);
            assert_eq!(param(&wrong), name);
        }
    }

    #[test]
    fn what_is_wrong_is_named_at_every_depth() {
        for (name, value, expected) in [
            ("name", json!(""), "name"),
            ("version", json!("v".repeat(201)), "version"),
            ("autonomy_tier", json!("act"), "autonomy_tier"),
            ("receipt_policy", json!("never"), "receipt_policy"),
            ("module_ref", json!("harn://a/b@1"), "module_ref"),
            ("tools", json!(["a", 1]), "tools.1"),
            ("triggers", json!([{}, "x"]), "triggers.1"),
            ("model", json!({"temprature": 1}), "model.temprature"),
            ("model", json!({"temperature": 2.5}), "model.temperature"),
            ("model", json!({"max_tokens": -1}), "model.max_tokens"),
            ("limits", json!({"steps_max": 1.5}), "limits.steps_max"),
            ("limits", json!({"steps": 1}), "limits.steps"),
            ("memory", json!("all"), "memory"),
            ("isolated_replay", json!("yes"), "isolated_replay"),
            ("forbids_replay", json!(1), "forbids_replay"),
            ("system_prompt", json!(1), "system_prompt"),
            (
                "rollout_policy",
                json!({"x": "y".repeat(17_000)}),
                "rollout_policy",
            ),
        ] {
            let mut body = full();
            body[name] = value;
            assert_eq!(param(&body), expected);
        }
    }

    #[test]
    fn a_change_reaches_policy_and_metadata_only() {
        let body = json!({"description": "d", "receipt_policy": "optional", "quota_id": null, "metadata": {}, "colour": "x"});
        let mut spec = read(&full()).unwrap().persona;
        spec.change(&change(&body));
        assert_eq!(
            (
                &*spec.name,
                &*spec.description,
                spec.receipt_policy,
                spec.quota_id
            ),
            ("reviewer", "d", ReceiptPolicy::Optional, None)
        );
        assert_eq!(change(&json!({})), PersonaChange::default());
    }
}
