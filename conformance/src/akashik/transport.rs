//! Keys, and the protocol over HTTP: AK-SEC, AK-HTTP.

use reqwest::Method;
use serde_json::{Value, json};

use super::ground::{Ground, refused, same, unit};
use super::socket::Socket;
use super::subscribe::Listener;
use super::{Row, row};
use crate::json::{at, lacking, show, text};
use crate::miss::{Checked, all_but, need, unseen};
use crate::wire::frame_data;

pub(crate) const SECURITY: &[Row] = &[
    row!("AK-SEC-01", 0, "levels 0 and 1 may do without keys", Now keyless),
    row!("AK-SEC-02", 2, "every operation carries a key that may act for its agent", Now keys),
    row!("AK-SEC-03", 3, "authority is enforced", Now super::full::enforced),
    row!("AK-SEC-04", 3, "an agent states no more authority than its key allows", Now super::full::claimed),
    row!("AK-SEC-05", 3, "each operation has its least authority", Now super::full::least),
    row!("AK-SEC-06", 3, "authority is cumulative", Now super::full::cumulative),
    row!("AK-SEC-07", 3, "units of a session are for its members", Now super::full::members),
    row!("AK-SEC-08", 3, "hidden events stay in place without their words", Now super::full::redacted),
];

pub(crate) const HTTP: &[Row] = &[
    row!("AK-HTTP-01", 3, "bodies are JSON, the request is the envelope", Always bodies),
    row!("AK-HTTP-02", 3, "the operation is that of the path", Always paths),
    row!("AK-HTTP-03", 3, "201 for REGISTER and RECORD, 200 else, errors bare", Always statuses),
    row!("AK-HTTP-04", 3, "405, 415 and 413", Always limits),
    row!("AK-HTTP-05", 3, "views have no epoch and leave no entry", Always views),
    row!("AK-HTTP-06", 3, "paths of the extension", Always extension),
    row!("AK-HTTP-07", 3, "a frame is one notification with its name and place", Always frames),
];

async fn keyless(ground: &Ground) -> Checked {
    if ground.level >= 2 {
        return unseen("keys are needed from level 2");
    }
    let field = ground.field_of(&["ann"]).await?;
    let envelope = field.envelope("RECORD", "ann", unit("a note", json!({})));
    let answer = field.post_with("RECORD", &envelope, None).await?;
    answer.want(&[201, 401])
}

async fn keys(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann"]).await?;
    let operations = [
        "REGISTER",
        "RECORD",
        "ATTUNE",
        "DETECT",
        "MERGE",
        "SUBSCRIBE",
        "REPLAY",
        "COMPACT",
        "DEREGISTER",
    ];
    for operation in operations {
        let envelope = field.envelope(operation, "ann", json!({}));
        for key in [None, Some("not-a-key")] {
            let answer = field.post_with(operation, &envelope, key).await?;
            refused(&answer, "UNAUTHENTICATED")?;
        }
    }
    let Some(other) = &ground.wire.other_key else {
        return all_but("a key that acts for the agent of another: needs --other-key");
    };
    let envelope = field.envelope("RECORD", "ann", unit("a note", json!({})));
    let answer = field.post_with("RECORD", &envelope, Some(other)).await?;
    refused(&answer, "FORBIDDEN").map(|_| ())
}

async fn bodies(ground: &Ground) -> Checked {
    let field = ground.field();
    let payload = json!({"id": "ann", "role": "analyst"});
    let answer = field.say("REGISTER", "ann", payload).await?;
    answer.want(&[201])?;
    let kind = answer.header("content-type").to_owned();
    need(
        kind.starts_with("application/json"),
        "application/json",
        kind,
    )?;
    // A payload without its envelope is none.
    let bare = field.post("RECORD", &unit("a note", json!({}))).await?;
    refused(&bare, "INVALID_ENVELOPE").map(|_| ())
}

async fn paths(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann"]).await?;
    let envelope = field.envelope("RECORD", "ann", unit("a note", json!({})));
    refused(&field.post("ATTUNE", &envelope).await?, "INVALID_ENVELOPE").map(|_| ())
}

async fn statuses(ground: &Ground) -> Checked {
    let field = ground.field();
    let register = field
        .say("REGISTER", "ann", json!({"id": "ann", "role": "analyst"}))
        .await?;
    register.want(&[201])?;
    field
        .say("RECORD", "ann", unit("a note", json!({})))
        .await?
        .want(&[201])?;
    let scope = json!({"scope": {"role": "analyst", "max_units": 1}});
    field.say("ATTUNE", "ann", scope).await?.want(&[200])?;
    let error = field.no("RECORD", "ann", json!({}), "MISSING_INTENT").await;
    // What is missing first is for the field to say; that the error is bare is the question here.
    let error = match error {
        Ok(error) => error,
        Err(_) => field.say("RECORD", "ann", json!({})).await?.value()?,
    };
    need(
        at(&error, "code").is_string(),
        "the bare error object",
        show(&error),
    )
}

async fn limits(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann"]).await?;
    let wire = &ground.wire;
    let answer = wire
        .call(Method::PUT, field.path("record"))
        .version(None)
        .send()
        .await?;
    answer.want(&[405])?;
    need(
        answer.header("allow").contains("POST"),
        "Allow: POST",
        answer.header("allow"),
    )?;
    let envelope = field.envelope("RECORD", "ann", unit("a note", json!({})));
    let as_text = wire
        .call(Method::POST, field.path("record"))
        .version(None)
        .bytes("text/plain", envelope.to_string());
    as_text.send().await?.want(&[415])?;
    let long = field.envelope("RECORD", "ann", unit(&"x".repeat(1_100_000), json!({})));
    let answer = field.post("RECORD", &long).await?;
    let error = answer.value_of(&[413])?;
    need(
        text(&error, "code") == "INVALID_REQUEST",
        "INVALID_REQUEST",
        show(&error),
    )
}

async fn views(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann"]).await?;
    field.note("ann", "a note", json!({})).await?;
    let before = field.view("field/status").await?;
    let members = [
        "conformance_level",
        "protocol_version",
        "epoch",
        "agents",
        "units",
        "conflicts",
    ];
    let missing = lacking(&before, &members);
    need(
        missing.is_empty(),
        "an overview",
        format!("no {}", missing.join(", ")),
    )?;
    same(
        "units by status",
        at(&before, "units"),
        &json!({"active": 1}),
    )?;
    let agents = field.view("agents").await?;
    same("agents", at(&agents, "agents.0.id"), &json!("ann"))?;
    same(
        "conflicts",
        &field.view("conflicts").await?,
        &json!({"conflicts": []}),
    )?;
    same(
        "the field as before",
        &field.view("field/status").await?,
        &before,
    )
}

async fn extension(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann"]).await?;
    for operation in ["HANDOFF", "COORDINATE", "SESSION"] {
        let answer = field.say(operation, "ann", json!({})).await?;
        let value = answer.value()?;
        // Offered or not, there is such a path.
        let known = ["INVALID_REQUEST", "UNSUPPORTED_OPERATION"].contains(&text(&value, "code"));
        need(known, format!("{operation} at its path"), answer.found())?;
    }
    Ok(())
}

async fn frames(ground: &Ground) -> Checked {
    if ground.level < 2 {
        return unseen("nothing is pushed below level 2");
    }
    let field = ground.field_of(&["ann", "bob"]).await?;
    let mut listener =
        Listener::open(&field, "bob", json!({"events": ["memory.recorded"]})).await?;
    field.note("ann", "a note", json!({})).await?;
    let frame = listener.frame().await?;
    let data = frame_data(&frame);
    need(
        frame.event.as_deref() == Some("memory.recorded"),
        "the event as its name",
        format!("{frame:?}"),
    )?;
    let epoch = at(&data, "epoch").as_u64().map(|epoch| format!("{epoch}."));
    let id = frame.id.unwrap_or_default();
    let holds = epoch.is_some_and(|epoch| id.starts_with(&epoch)) && data != Value::Null;
    need(holds, "`epoch.sequence` as its id", id)?;
    let Some(mut socket) = Socket::open(&field, "bob").await? else {
        return all_but("a WebSocket: the server names none, or only one over TLS");
    };
    let unit = field.note("ann", "another note", json!({})).await?;
    let said = socket.next().await?;
    let holds = text(&said, "event") == "memory.recorded" && text(&said, "memory_unit_id") == unit;
    need(holds, "one notification as a text frame", show(&said))
}
