//! Personas: AP-PERS.

use serde_json::{Value, json};

use crate::json::{at, data, show, text};
use crate::miss::{Checked, Miss, all_but, fail, need};
use crate::registry::{Check, Row, row};
use crate::scenario::{TERMINAL, message, unknown_like};
use crate::wire::Wire;

const POLICY: Check = Check::Elsewhere("no built-in workflow calls a tool");
const QUOTA: Check = Check::Elsewhere("this runner does not check quotas yet");

pub(crate) const ROWS: &[Row] = &[
    row!("AP-PERS-01", M, "a persona has its required members", Now required),
    row!("AP-PERS-02", O, "a persona keeps its optional members, or refuses them by name", Now optional),
    row!("AP-PERS-03", M, "capability policy is enforced", = POLICY),
    row!("AP-PERS-04", M, "autonomy is enforced", = POLICY),
    row!("AP-PERS-05", M, "receipt policy is enforced", Now receipts),
    row!("AP-PERS-06", M, "quota policy is enforced", = QUOTA),
    row!("AP-PERS-07", M, "an unknown persona is refused", Now unknown),
];

/// Returns a definition with nothing but what it must have, under a name that nobody used.
async fn body(wire: &Wire) -> Result<Value, Miss> {
    let skills = wire.get("/v1/skills").made("list skills").await?;
    let named = data(&skills).iter().map(|skill| text(skill, "name"));
    let workflows: Vec<&str> = named.filter(|name| !name.is_empty()).collect();
    // The plain one, where it has its usual name: others may wait for somebody.
    let workflow = match workflows.as_slice() {
        known if known.contains(&"agent") => "agent",
        [first, ..] => first,
        [] => "agent",
    };
    Ok(json!({
        "name": wire.fresh("persona"), "version": "1.0.0", "entry_workflow": workflow,
        "description": "made by a conformance run", "autonomy_tier": "suggest", "receipt_policy": "required",
    }))
}

fn with(body: &Value, name: &str, value: Option<Value>) -> Value {
    let mut body = body.clone();
    if let Some(members) = body.as_object_mut() {
        match value {
            Some(value) => members.insert(name.to_owned(), value),
            None => members.remove(name),
        };
    }
    body
}

async fn required(wire: &Wire) -> Checked {
    let body = body(wire).await?;
    let made = wire
        .post("/v1/personas", &body)
        .made("make a persona")
        .await?;
    need(
        text(&made, "object") == "persona" && !text(&made, "id").is_empty(),
        "a persona with an `id`",
        show(&made),
    )?;
    for (name, value) in body.as_object().into_iter().flatten() {
        need(
            at(&made, name) == value,
            format!("`{name}` {value}"),
            show(&made),
        )?;
        wire.post("/v1/personas", &with(&body, name, None))
            .send()
            .await?
            .refused_for(400, "invalid_request", name)?;
    }
    for name in ["autonomy_tier", "receipt_policy"] {
        let strange = with(&body, name, Some(json!("conformance")));
        wire.post("/v1/personas", &strange)
            .send()
            .await?
            .refused_for(400, "invalid_request", name)?;
    }
    Ok(())
}

async fn optional(wire: &Wire) -> Checked {
    let given = json!({
        "tools": ["conformance.tool"], "capabilities": ["read"], "triggers": [{"on": "push"}],
        "schedules": [{"cron": "0 6 * * *"}], "handoffs": ["conformance"], "context_packs": ["style"],
        "evals": ["conformance"], "owner": "conformance", "model_policy": {"tier": 1},
        "rollout_policy": {"percent": 10},
    });
    let body = body(wire).await?;
    let (mut dropped, mut refused) = (Vec::new(), Vec::new());
    for (name, value) in given.as_object().into_iter().flatten() {
        let asked = with(&body, name, Some(value.clone()));
        let asked = with(&asked, "name", Some(json!(wire.fresh("persona"))));
        let answer = wire.post("/v1/personas", &asked).send().await?;
        // A server that does not act on a member says so by name, rather than take it.
        if answer.status == 422 {
            answer.refused_for(422, "policy_violation", name)?;
            refused.push(name.as_str());
            continue;
        }
        let made = answer.value_of(&[200, 201])?;
        let read = wire
            .get(format!("/v1/personas/{}", text(&made, "id")))
            .send()
            .await?
            .value_of(&[200])?;
        need(
            at(&read, name) == at(&made, name),
            format!("`{name}` {} when read again", at(&made, name)),
            show(at(&read, name)),
        )?;
        let shown = at(&made, name);
        // The request schema of the protocol does not list them: a server may take none.
        let empty = shown.is_null() || *shown == json!([]) || *shown == json!({});
        if empty {
            dropped.push(name.as_str());
        } else if shown != value {
            return fail(format!("`{name}` {value}"), show(shown));
        }
    }
    match (dropped.is_empty(), refused.is_empty()) {
        (true, true) => Ok(()),
        (true, false) => all_but(format!("{}: refused by name", refused.join(", "))),
        (false, _) => all_but(format!("{}: the server takes none", dropped.join(", "))),
    }
}

/// Runs a task under a persona of a policy to its end.
async fn ended(wire: &Wire, policy: &str) -> Result<Value, Miss> {
    let body = with(&body(wire).await?, "receipt_policy", Some(json!(policy)));
    let persona = wire
        .post("/v1/personas", &body)
        .made("make a persona")
        .await?;
    let session = wire.session().await?;
    let body = json!({"input": message("say hello"), "persona_id": text(&persona, "id")});
    let task = wire
        .post(format!("/v1/sessions/{session}/tasks"), &body)
        .made("submit a task under a persona")
        .await?;
    wire.wait_for(text(&task, "id"), &TERMINAL).await
}

async fn receipts(wire: &Wire) -> Checked {
    for policy in ["disabled", "required"] {
        let task = ended(wire, policy).await?;
        let path = format!("/v1/tasks/{}/receipts", text(&task, "id"));
        let listed = wire.get(path).send().await?.value_of(&[200])?;
        let (named, count) = (at(&task, "receipt_id"), data(&listed).len());
        let holds = match policy {
            "disabled" => named.is_null() && count == 0,
            _ => named.is_string() && count == 1,
        };
        need(
            holds,
            format!("what `receipt_policy` `{policy}` says"),
            format!("`receipt_id` {named}, {count} receipts listed"),
        )?;
    }
    all_but("a receipt that cannot be issued")
}

async fn unknown(wire: &Wire) -> Checked {
    let persona = wire
        .post("/v1/personas", &body(wire).await?)
        .made("make a persona")
        .await?;
    let session = wire.session().await?;
    let nobody = unknown_like(text(&persona, "id"));
    let body = json!({"input": message("say hello"), "persona_id": nobody});
    wire.post(format!("/v1/sessions/{session}/tasks"), &body)
        .send()
        .await?
        .refused_for(404, "resource_not_found", "persona_id")
}
