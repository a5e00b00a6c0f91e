//! Agents that come and go: AK-REG, AK-DER.

use serde_json::{Value, json};

use super::envelope::not_offered;
use super::ground::{Ground, list, same, same_texts, texts, units};
use super::subscribe::Listener;
use super::{Row, row};
use crate::json::{at, show, text};
use crate::miss::{Checked, need};

pub(crate) const ROWS: &[Row] = &[
    row!("AK-REG-01", 0, "id and role are needed", Now needed),
    row!("AK-REG-02", 0, "an id in use is taken", Now taken),
    row!("AK-REG-03", 0, "required operations that are missing are named", Now missing),
    row!("AK-REG-04", 0, "an agent starts idle", Now idle),
    row!("AK-REG-05", 1, "capabilities say what is really offered", Now capabilities),
    row!("AK-REG-06", 0, "interests are kept and used", Now interests),
    row!("AK-REG-07", 1, "an id that was freed is free, its units keep their source", Now freed),
    row!("AK-REG-08", 2, "subscribers hear who joined", Now joined),
    row!("AK-DER-01", 1, "who left sends nothing", Now left),
    row!("AK-DER-02", 1, "its units stay", Now stays),
    row!("AK-DER-03", 1, "an unknown agent is `not_found`", Now unknown),
    row!("AK-DER-04", 1, "tasks that are left behind are counted", Now tasks),
    row!("AK-DER-05", 1, "units that are left behind are counted", Now orphans),
    row!("AK-DER-06", 3, "only authority 8 removes another", Now super::full::removing),
];

async fn needed(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann"]).await?;
    for payload in [
        json!({"id": "bob"}),
        json!({"id": "bob", "role": ""}),
        json!({"role": "analyst"}),
    ] {
        let answer = field.say("REGISTER", "bob", payload).await?;
        answer.want(&[400, 422])?;
    }
    field
        .ok("REGISTER", "bob", json!({"id": "bob", "role": "analyst"}))
        .await
        .map(|_| ())
}

async fn taken(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann"]).await?;
    let payload = json!({"id": "ann", "role": "analyst"});
    field
        .no("REGISTER", "ann", payload, "AGENT_ID_TAKEN")
        .await
        .map(|_| ())
}

async fn missing(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann"]).await?;
    let name = not_offered(&field).await?.unwrap_or("LEVITATE");
    let payload = json!({"id": "bob", "role": "analyst", "required_operations": ["RECORD", name]});
    let error = field
        .no("REGISTER", "bob", payload, "UNSUPPORTED_OPERATION")
        .await?;
    let reason = text(&error, "rejection_reason");
    let holds = reason.contains(name) && !reason.contains("RECORD");
    need(
        holds,
        format!("a reason that names {name} alone"),
        show(&error),
    )
}

async fn idle(ground: &Ground) -> Checked {
    let field = ground.field();
    let joined = field
        .ok("REGISTER", "ann", json!({"id": "ann", "role": "analyst"}))
        .await?;
    same("`status`", at(&joined, "status"), &json!("registered"))?;
    same(
        "the agent's status",
        at(&joined, "agent.status"),
        &json!("idle"),
    )
}

async fn capabilities(ground: &Ground) -> Checked {
    let field = ground.field();
    let joined = field
        .ok("REGISTER", "ann", json!({"id": "ann", "role": "analyst"}))
        .await?;
    let told = at(&joined, "field_capabilities");
    same(
        "`protocol_version`",
        at(told, "protocol_version"),
        &json!("0.1.0"),
    )?;
    same(
        "`conformance_level`",
        at(told, "conformance_level"),
        &json!(ground.level),
    )?;
    let offered = list(told, "supported_operations");
    for name in [
        "RECORD",
        "ATTUNE",
        "DETECT",
        "MERGE",
        "SUBSCRIBE",
        "REPLAY",
        "COMPACT",
        "HANDOFF",
        "COORDINATE",
        "SESSION",
        "DEREGISTER",
    ] {
        // A payload that nobody accepts: whether it is looked at is the question.
        let payload = json!({"mode": 1, "action": 1, "strategy": 1, "scope": 1, "target_type": 1, "agent_id": 1});
        let answer = field.say(name, "ann", payload).await?;
        let answer = answer.value()?;
        let refused = text(&answer, "code") == "UNSUPPORTED_OPERATION";
        let listed = offered.iter().any(|offered| offered == name);
        let what = if listed { "offered" } else { "unsupported" };
        need(listed != refused, format!("{name}: {what}"), show(&answer))?;
    }
    Ok(())
}

async fn interests(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann"]).await?;
    let tides = field
        .note("ann", "the tides of the northern harbour", json!({}))
        .await?;
    let trains = field
        .note("ann", "the trains of the southern line", json!({}))
        .await?;
    for (agent, interest, expected) in [
        ("bob", "tides harbour", &tides),
        ("carl", "trains line", &trains),
    ] {
        let payload = json!({"id": agent, "role": "analyst", "interests": [interest]});
        let joined = field.ok("REGISTER", agent, payload).await?;
        same(
            "interests",
            at(&joined, "agent.interests"),
            &json!([interest]),
        )?;
        let found = units(&field.attune(agent, json!({})).await?);
        need(
            found.first() == Some(expected),
            format!("{expected} first"),
            format!("{found:?}"),
        )?;
    }
    Ok(())
}

async fn freed(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann", "bob"]).await?;
    field.note("ann", "a note", json!({})).await?;
    field
        .made("DEREGISTER", "ann", json!({"agent_id": "ann"}))
        .await?;
    field
        .ok("REGISTER", "ann", json!({"id": "ann", "role": "critic"}))
        .await?;
    let found = field.attune("bob", json!({})).await?;
    same_texts(
        "its source",
        &texts(&found, "memory_unit.source.agent_id"),
        &["ann"],
    )?;
    same_texts(
        "its role then",
        &texts(&found, "memory_unit.source.agent_role"),
        &["analyst"],
    )
}

async fn joined(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann"]).await?;
    let mut listener = Listener::open(&field, "ann", json!({"events": ["agent.joined"]})).await?;
    field.join("bob").await?;
    listener.hears("agent.joined").await.map(|_| ())
}

async fn left(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann", "bob"]).await?;
    let answer = field
        .ok("DEREGISTER", "ann", json!({"agent_id": "ann"}))
        .await?;
    same("`status`", at(&answer, "status"), &json!("ok"))?;
    let agents = texts(&list(&field.view("agents").await?, "agents"), "id");
    same_texts("agents", &agents, &["bob"])?;
    let scope = json!({"scope": {"role": "analyst", "max_units": 1}});
    field
        .no("ATTUNE", "ann", scope, "AGENT_NOT_REGISTERED")
        .await
        .map(|_| ())
}

async fn stays(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann", "bob"]).await?;
    let id = field.note("ann", "a note", json!({})).await?;
    field
        .made("DEREGISTER", "ann", json!({"agent_id": "ann"}))
        .await?;
    same_texts(
        "units",
        &units(&field.attune("bob", json!({})).await?),
        &[id],
    )
}

async fn unknown(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann"]).await?;
    let answer = field
        .ok("DEREGISTER", "ann", json!({"agent_id": "nobody"}))
        .await?;
    same("`status`", at(&answer, "status"), &json!("not_found"))
}

async fn cleanup(ground: &Ground) -> Result<Value, crate::miss::Miss> {
    let field = ground.field_of(&["ann"]).await?;
    field.note("ann", "one", json!({})).await?;
    field.note("ann", "two", json!({})).await?;
    let answer = field
        .ok("DEREGISTER", "ann", json!({"agent_id": "ann"}))
        .await?;
    Ok(at(&answer, "cleanup").clone())
}

async fn tasks(ground: &Ground) -> Checked {
    let cleanup = cleanup(ground).await?;
    same(
        "`tasks_reassigned`",
        at(&cleanup, "tasks_reassigned"),
        &json!(0),
    )
}

async fn orphans(ground: &Ground) -> Checked {
    let cleanup = cleanup(ground).await?;
    same(
        "`units_orphaned`",
        at(&cleanup, "units_orphaned"),
        &json!(2),
    )
}
