//! Envelopes and errors: AK-ENV, AK-ERR.

use serde_json::{Value, json};

use super::ground::{Field, Ground, list, refused, same, unit};
use super::{Row, row};
use crate::json::{at, lacking, put, show, text};
use crate::miss::{Checked, Miss, all_but, need};

pub(crate) const ENVELOPE: &[Row] = &[
    row!("AK-ENV-01", 0, "a request carries all eight members and no other", Now members),
    row!("AK-ENV-02", 0, "another `protocol` is refused and leaves no trace", Now protocol),
    row!("AK-ENV-03", 0, "an unsupported `version` is refused", Now version),
    row!("AK-ENV-04", 0, "`session_id` is present, null without a session", Now session),
    row!("AK-ENV-05", 0, "`epoch` is an integer from 0", Now epoch),
    row!("AK-ENV-06", 0, "who is not registered only registers", Now unregistered),
    row!("AK-ENV-07", 0, "an unknown operation is malformed, one that is not offered unsupported", Now operations),
    row!("AK-ENV-08", 0, "a malformed envelope is `INVALID_ENVELOPE`, recoverable", Now malformed),
    row!("AK-ENV-09", 0, "a message that comes again is done once", Now again),
    row!("AK-ENV-10", 0, "an agent registers itself", Now itself),
    row!("AK-ENV-11", 0, "the first check that fails wins", Now order),
];

pub(crate) const ERRORS: &[Row] = &[
    row!("AK-ERR-01", 0, "a failure has five members, `recoverable` by the table", Now shape),
    row!("AK-ERR-02", 0, "`operation` repeats that of the request", Now repeats),
    row!("AK-ERR-03", 0, "a refused REGISTER or RECORD is also `rejected`", Now rejected),
    row!("AK-ERR-04", 0, "messages name the member, never its content", Now discreet),
];

const MALFORMED: &str = "INVALID_ENVELOPE";

/// Sends a RECORD whose envelope was changed.
async fn changed(
    field: &Field<'_>,
    change: impl FnOnce(&mut Value),
) -> Result<crate::wire::Answer, Miss> {
    let mut envelope = field.envelope("RECORD", "ann", unit("a note", json!({})));
    change(&mut envelope);
    field.post("RECORD", &envelope).await
}

fn drop_member(envelope: &mut Value, name: &str) {
    if let Some(members) = envelope.as_object_mut() {
        members.remove(name);
    }
}

async fn members(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann"]).await?;
    let names = [
        "protocol",
        "version",
        "id",
        "operation",
        "agent_id",
        "session_id",
        "epoch",
        "payload",
    ];
    for name in names {
        refused(
            &changed(&field, |envelope| drop_member(envelope, name)).await?,
            MALFORMED,
        )?;
    }
    refused(
        &changed(&field, |envelope| put(envelope, "sender", "ann".into())).await?,
        MALFORMED,
    )?;
    changed(&field, |_| ()).await?.want(&[201])
}

async fn protocol(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann"]).await?;
    let before = field.view("field/status").await?;
    let answer = changed(&field, |envelope| {
        put(envelope, "protocol", "akasha".into())
    })
    .await?;
    answer.want(&[400])?;
    same(
        "the field as before",
        &field.view("field/status").await?,
        &before,
    )
}

async fn version(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann"]).await?;
    let answer = changed(&field, |envelope| put(envelope, "version", "0.2.0".into())).await?;
    refused(&answer, MALFORMED).map(|_| ())
}

async fn session(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann"]).await?;
    refused(
        &changed(&field, |envelope| drop_member(envelope, "session_id")).await?,
        MALFORMED,
    )?;
    changed(&field, |_| ()).await?.want(&[201])
}

async fn epoch(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann"]).await?;
    for bad in [json!(-1), json!(1.5), json!("1")] {
        refused(
            &changed(&field, |envelope| put(envelope, "epoch", bad)).await?,
            MALFORMED,
        )?;
    }
    changed(&field, |envelope| put(envelope, "epoch", 0.into()))
        .await?
        .want(&[201])
}

async fn unregistered(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann"]).await?;
    let (payload, scope) = (
        unit("a note", json!({})),
        json!({"role": "analyst", "max_units": 1}),
    );
    field
        .no("RECORD", "bob", payload, "AGENT_NOT_REGISTERED")
        .await?;
    let scope = json!({"scope": scope});
    field
        .no("ATTUNE", "bob", scope, "AGENT_NOT_REGISTERED")
        .await
        .map(|_| ())
}

/// Returns an operation of the protocol that the field does not offer.
pub(crate) async fn not_offered(field: &Field<'_>) -> Result<Option<&'static str>, Miss> {
    let payload = json!({"id": "looker", "role": "analyst"});
    let joined = field.made("REGISTER", "looker", payload).await?;
    let offered = list(&joined, "field_capabilities.supported_operations");
    let all = [
        "DEREGISTER",
        "DETECT",
        "MERGE",
        "SUBSCRIBE",
        "REPLAY",
        "COMPACT",
        "COORDINATE",
        "HANDOFF",
        "SESSION",
    ];
    Ok(all
        .into_iter()
        .find(|name| !offered.iter().any(|offered| offered == name)))
}

async fn operations(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann"]).await?;
    refused(
        &changed(&field, |envelope| put(envelope, "operation", "FOO".into())).await?,
        MALFORMED,
    )?;
    match not_offered(&field).await? {
        Some(name) => field
            .no(name, "ann", json!({}), "UNSUPPORTED_OPERATION")
            .await
            .map(|_| ()),
        None => all_but("an operation that is not offered: all are"),
    }
}

async fn malformed(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann"]).await?;
    let answer = changed(&field, |envelope| put(envelope, "id", "".into())).await?;
    let error = refused(&answer, MALFORMED)?;
    same("`recoverable`", at(&error, "recoverable"), &json!(true))
}

async fn again(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann", "bob"]).await?;
    let mut envelope = field.envelope("RECORD", "ann", unit("a note", json!({})));
    let first = field.post("RECORD", &envelope).await?.value_of(&[201])?;
    let second = field.post("RECORD", &envelope).await?.value_of(&[201])?;
    same("the answer that was given before", &second, &first)?;
    let found = field.attune("bob", json!({})).await?;
    need(found.len() == 1, "one unit", format!("{}", found.len()))?;
    put(&mut envelope, "payload.content", "another note".into());
    refused(&field.post("RECORD", &envelope).await?, MALFORMED).map(|_| ())
}

async fn itself(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann"]).await?;
    let payload = json!({"id": "carl", "role": "analyst"});
    field
        .no("REGISTER", "bob", payload, MALFORMED)
        .await
        .map(|_| ())
}

async fn order(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann"]).await?;
    // Malformed, and from nobody.
    let answer = changed(&field, |envelope| {
        put(envelope, "epoch", (-1).into());
        put(envelope, "agent_id", "nobody".into());
    });
    refused(&answer.await?, MALFORMED)?;
    // From nobody, without a purpose.
    let aimless = unit("a note", json!({"intent": {}}));
    field
        .no("RECORD", "nobody", aimless.clone(), "AGENT_NOT_REGISTERED")
        .await?;
    // Without a purpose, and it contradicts nothing that exists.
    let mut aimless = aimless;
    put(
        &mut aimless,
        "relations",
        json!([{"type": "contradicts", "target_id": "nothing"}]),
    );
    field.no("RECORD", "ann", aimless, "MISSING_INTENT").await?;
    if let Some(name) = not_offered(&field).await? {
        field
            .no(name, "nobody", json!({}), "UNSUPPORTED_OPERATION")
            .await?;
    }
    if ground.level >= 2 {
        let envelope = field.envelope("RECORD", "ann", json!("not an object"));
        let answer = field.post_with("RECORD", &envelope, None).await?;
        refused(&answer, "UNAUTHENTICATED")?;
    }
    Ok(())
}

async fn shape(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann"]).await?;
    let taken = json!({"id": "ann", "role": "analyst"});
    let no_type = unit("a note", json!({"type": "gossip"}));
    let too_sure = unit(
        "a note",
        json!({"confidence": {"score": 2, "reasoning": "sure"}}),
    );
    let scope = json!({"scope": {"role": "", "max_units": 1}});
    for error in [
        refused(
            &changed(&field, |envelope| put(envelope, "epoch", (-1).into())).await?,
            MALFORMED,
        )?,
        field.no("REGISTER", "ann", taken, "AGENT_ID_TAKEN").await?,
        field.no("RECORD", "ann", no_type, "INVALID_TYPE").await?,
        field
            .no("RECORD", "ann", too_sure, "INVALID_CONFIDENCE")
            .await?,
        field.no("ATTUNE", "ann", scope, "INVALID_REQUEST").await?,
    ] {
        let missing = lacking(
            &error,
            &[
                "code",
                "message",
                "operation",
                "recoverable",
                "suggested_action",
            ],
        );
        need(
            missing.is_empty(),
            "five members",
            format!("no {}", missing.join(", ")),
        )?;
        let action = at(&error, "suggested_action");
        let said = !text(&error, "message").is_empty() && (action.is_null() || action.is_string());
        need(said, "a message, and an action or null", show(&error))?;
    }
    Ok(())
}

async fn repeats(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann"]).await?;
    for operation in ["REGISTER", "RECORD", "ATTUNE"] {
        let error = field.say(operation, "ann", json!({})).await?.value()?;
        same("`operation`", at(&error, "operation"), &json!(operation))?;
    }
    Ok(())
}

async fn rejected(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann"]).await?;
    for operation in ["REGISTER", "RECORD"] {
        let error = field
            .say(operation, "ann", json!({"id": "ann"}))
            .await?
            .value()?;
        let holds = text(&error, "status") == "rejected"
            && !text(&error, "message").is_empty()
            && at(&error, "rejection_reason") == at(&error, "message");
        need(
            holds,
            "`status` rejected, `rejection_reason` as `message`",
            show(&error),
        )?;
    }
    Ok(())
}

async fn discreet(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann"]).await?;
    let secret = ground.wire.fresh("secret");
    for (member, more) in [
        ("type", json!({"type": secret})),
        ("mode", json!({"mode": secret})),
        (
            "score",
            json!({"confidence": {"score": secret, "reasoning": "seen"}}),
        ),
    ] {
        let error = field.say("RECORD", "ann", unit("a note", more)).await?;
        let error = error.value()?;
        let message = text(&error, "message");
        let holds = message.contains(member) && !error.to_string().contains(&secret);
        need(
            holds,
            format!("a message that names `{member}` and not its content"),
            show(&error),
        )?;
    }
    Ok(())
}
