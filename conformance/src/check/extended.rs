//! Memory, vaults, connectors, skills, quotas: AP-MEM, AP-VAULT, AP-CONN, AP-SKILL, AP-QUOTA.

use reqwest::Method;
use serde_json::{Value, json};

use crate::json::{at, data, lacking, show, text};
use crate::miss::{Checked, Miss, all_but, need, unseen};
use crate::registry::{Check, ELSEWHERE, Row, row};
use crate::wire::Wire;

const UNUSED: Check = Check::Elsewhere("no built-in workflow uses a secret");
const UNFED: Check = Check::Elsewhere("no delivery path is part of the protocol");

pub(crate) const ROWS: &[Row] = &[
    row!("AP-MEM-01", M, "a memory has its required members", = Check::Elsewhere("this runner does not check memory yet")),
    row!("AP-MEM-02", M, "memory is apart from the transcript", = Check::Elsewhere("this runner does not check memory yet")),
    row!("AP-MEM-03", N, "a replay does not take in new memory", = crate::registry::ELSEWHERE),
    row!("AP-VAULT-01", M, "a vault has `workspace_id`, `provider` and `capabilities`", Now vault),
    row!("AP-VAULT-02", N, "reads never return secret values", Now secrets),
    row!("AP-VAULT-03", M, "events and receipts redact secrets", = UNUSED),
    row!("AP-VAULT-04", O, "tools get credentials only by policy", = UNUSED),
    row!("AP-CONN-01", M, "a connector has its required members", Now connector),
    row!("AP-CONN-02", M, "a delivery is taken once", = UNFED),
    row!("AP-CONN-03", S, "delivery ids become idempotency keys", = UNFED),
    row!("AP-SKILL-01", M, "a skill has its required members", Now skill),
    row!("AP-SKILL-02", M, "a skill's schema is the declared one", = ELSEWHERE),
    row!("AP-QUOTA-01", M, "a quota has `scope`, `limits` and `usage`", = Check::Elsewhere("this runner does not check quotas yet")),
    row!("AP-QUOTA-02", M, "hard quotas are checked before work starts", = Check::Elsewhere("this runner does not check quotas yet")),
];

fn vault_body(wire: &Wire) -> Value {
    json!({"workspace_id": wire.home, "provider": "conformance", "capabilities": ["read", "inject"]})
}

async fn vault(wire: &Wire) -> Checked {
    let body = vault_body(wire);
    let made = wire
        .post("/v1/vaults", &body)
        .send()
        .await?
        .value_of(&[201])?;
    let read = wire
        .get(format!("/v1/vaults/{}", text(&made, "id")))
        .send()
        .await?
        .value_of(&[200])?;
    for vault in [&made, &read] {
        for (member, value) in body.as_object().into_iter().flatten() {
            need(
                at(vault, member) == value,
                format!("`{member}` {value}"),
                show(vault),
            )?;
        }
    }
    Ok(())
}

/// Words that no answer about vaults may contain.
pub(crate) const SECRET_WORDS: [&str; 4] = [
    "access_token",
    "refresh_token",
    "client_secret",
    "private_key",
];

async fn secrets(wire: &Wire) -> Checked {
    let made = wire
        .post("/v1/vaults", &vault_body(wire))
        .made("make a vault")
        .await?;
    let path = format!("/v1/vaults/{}", text(&made, "id"));
    let secret = wire.fresh("canary");
    let put = wire
        .call(Method::PUT, format!("{path}/secrets/conformance"))
        .json(&json!({"value": secret}));
    let stored = put.send().await?;
    for place in [path.as_str(), "/v1/vaults"] {
        let answer = wire.get(place).send().await?;
        answer.want(&[200])?;
        let body = answer.body_text();
        let leak = SECRET_WORDS
            .iter()
            .copied()
            .chain([secret.as_str()])
            .find(|word| body.contains(word));
        need(
            leak.is_none(),
            format!("GET {place} without secret material"),
            format!("`{}`", leak.unwrap_or_default()),
        )?;
    }
    if (200..300).contains(&stored.status) {
        Ok(())
    } else {
        all_but("a stored value: a vault that is made over the API takes none")
    }
}

async fn first(wire: &Wire, list: &str, what: &str) -> Result<Value, Miss> {
    let listed = wire.get(list).made(&format!("list {what}s")).await?;
    let Some(first) = data(&listed).first() else {
        return unseen(format!("no {what} is listed"));
    };
    let read = wire
        .get(format!("{list}/{}", text(first, "id")))
        .send()
        .await?
        .value_of(&[200])?;
    need(
        &read == first,
        format!("the {what} of the list"),
        show(&read),
    )?;
    Ok(read)
}

async fn connector(wire: &Wire) -> Checked {
    let connector = first(wire, "/v1/connectors", "connector").await?;
    let holds = !text(&connector, "provider").is_empty()
        && !text(&connector, "workspace_id").is_empty()
        && ["ACTIVE", "PAUSED", "FAILED", "DISABLED"].contains(&text(&connector, "status"))
        && at(&connector, "event_kinds").is_array();
    need(
        holds,
        "`provider`, `workspace_id`, `status`, `event_kinds`",
        show(&connector),
    )
}

async fn skill(wire: &Wire) -> Checked {
    let skill = first(wire, "/v1/skills", "skill").await?;
    need(
        lacking(&skill, &["input_schema", "output_schema"]).is_empty(),
        "both schemas",
        show(&skill),
    )?;
    let schema = |name: &str| at(&skill, name).is_object() || at(&skill, name).is_null();
    let holds = !text(&skill, "name").is_empty()
        && at(&skill, "description").is_string()
        && schema("input_schema")
        && schema("output_schema");
    need(
        holds,
        "`name`, `description`, schemas as object or null",
        show(&skill),
    )
}
