//! The clock and the log: AK-CLK, AK-LOG.

use serde_json::{Value, json};

use super::ground::{Field, Ground, list, refused, same, same_texts, texts, unit};
use super::{Row, row};
use crate::json::{at, put, show};
use crate::miss::{Checked, Miss, need, unseen};

pub(crate) const CLOCK: &[Row] = &[
    row!("AK-CLK-01", 0, "answers carry an epoch", Now counts),
    row!("AK-CLK-02", 1, "each accepted message moves the clock past all it knows", Now lamport),
    row!("AK-CLK-03", 1, "answer and unit carry the same epoch, and reads tick", Now carried),
    row!("AK-CLK-04", 1, "what the field derives carries the epoch of its operation", Now derived),
    row!("AK-CLK-05", 1, "a refused message does not move the clock", Now unmoved),
    row!("AK-CLK-06", 1, "after a restart the clock is past every epoch ever answered", Restart restarted),
    row!("AK-CLK-07", 1, "wall time orders nothing", not "nobody sets a server's wall clock over the wire"),
    row!("AK-CLK-08", 1, "the clock ends at 2^53 - 1", Now ends),
    row!("AK-CLK-09", 1, "a message far ahead of the clock is refused", Now jumps),
    row!("AK-CLK-10", 1, "an agent moves its own clock by the answers", not "binds clients"),
];

pub(crate) const LOG: &[Row] = &[
    row!("AK-LOG-01", 1, "every accepted operation appends an entry", Now appends),
    row!("AK-LOG-02", 1, "entries never change", Now unchanged),
    row!("AK-LOG-03", 1, "an entry is durable before the answer", Restart durable),
    row!("AK-LOG-04", 1, "what is known is a fold of the log", Restart folded),
    row!("AK-LOG-05", 1, "relations live in the entry, texts beside it", Now super::full::related),
    row!("AK-LOG-06", 2, "a purge leaves a tombstone", Now super::full::tombstone),
    row!("AK-LOG-07", 1, "a change of status has no entry of its own", Now effects),
    row!("AK-LOG-08", 1, "an operation's entry comes before what it caused", Now first),
];

/// Records with an epoch of the sender and returns that of the answer.
async fn tick(field: &Field<'_>, epoch: u64) -> Result<u64, Miss> {
    let mut envelope = field.envelope("RECORD", "ann", unit("a note", json!({})));
    put(&mut envelope, "epoch", epoch.into());
    let answer = field.post("RECORD", &envelope).await?.value_of(&[201])?;
    number(&answer, "epoch")
}

fn number(value: &Value, path: &str) -> Result<u64, Miss> {
    let found = at(value, path).as_u64();
    found.ok_or_else(|| Miss::Fail {
        expected: format!("a number as `{path}`"),
        found: show(value),
    })
}

/// Ends a check that reads the log by REPLAY where that is not offered.
fn replays(ground: &Ground) -> Checked {
    match ground.level {
        0 | 1 => unseen("the log is read by REPLAY, which level 2 brings"),
        _ => Ok(()),
    }
}

async fn counts(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann"]).await?;
    tick(&field, 0).await.map(|_| ())
}

async fn lamport(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann"]).await?;
    let start = tick(&field, 0).await?;
    for (ahead, expected) in [(0, 1), (11, 12), (3, 13)] {
        let found = tick(&field, start + ahead).await? - start;
        let what = format!("{expected} after the first for a message {ahead} after it");
        need(found == expected, what, format!("{found}"))?;
    }
    Ok(())
}

async fn carried(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann", "bob"]).await?;
    let recorded = tick(&field, 0).await?;
    let scope = json!({"scope": {"role": "analyst", "max_units": 1}});
    let answer = field.ok("ATTUNE", "bob", scope).await?;
    let (unit, read) = (
        number(&answer, "record.0.memory_unit.epoch")?,
        number(&answer, "epoch")?,
    );
    need(
        unit == recorded && read == recorded + 1,
        format!("a unit of epoch {recorded}, read at the next"),
        format!("{unit}, {read}"),
    )
}

async fn derived(ground: &Ground) -> Checked {
    replays(ground)?;
    let field = ground.field_of(&["ann", "bob"]).await?;
    let first = field.note("ann", "it is so", json!({})).await?;
    let (_, conflict) = field.contradict("bob", &first, json!({})).await?;
    let told = field
        .replay("ann", "conflict", &conflict, "full_trace")
        .await?;
    let events = list(&told, "timeline");
    let epochs: Vec<&Value> = events
        .iter()
        .skip(1)
        .map(|event| at(event, "epoch"))
        .collect();
    let kinds = texts(&events, "event_type");
    same_texts("events", &kinds, &["RECORD", "RECORD", "CONFLICT_CREATED"])?;
    need(
        epochs.first() == epochs.last(),
        "one epoch for the unit and its conflict",
        show(&told),
    )
}

async fn unmoved(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann"]).await?;
    let before = tick(&field, 0).await?;
    field
        .no(
            "RECORD",
            "ann",
            unit("a note", json!({"intent": {}})),
            "MISSING_INTENT",
        )
        .await?;
    let after = tick(&field, 0).await?;
    need(
        after == before + 1,
        format!("{}", before + 1),
        format!("{after}"),
    )
}

async fn restarted(ground: &Ground) -> Checked {
    ground.wire.can_restart()?;
    let field = ground.field_of(&["ann"]).await?;
    let scope = json!({"scope": {"role": "analyst", "max_units": 1}});
    let read = number(&field.made("ATTUNE", "ann", scope).await?, "epoch")?;
    ground.wire.restart().await?;
    let next = tick(&field, 0).await?;
    need(next > read, format!("more than {read}"), format!("{next}"))
}

async fn ends(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann"]).await?;
    let before = field.view("field/status").await?;
    let mut envelope = field.envelope("RECORD", "ann", unit("a note", json!({})));
    put(&mut envelope, "epoch", 9_007_199_254_740_991_u64.into());
    refused(&field.post("RECORD", &envelope).await?, "EPOCH_OVERFLOW")?;
    same(
        "the field as before",
        &field.view("field/status").await?,
        &before,
    )
}

async fn jumps(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann"]).await?;
    let clock = tick(&field, 0).await?;
    let mut envelope = field.envelope("RECORD", "ann", unit("a note", json!({})));
    put(&mut envelope, "epoch", (clock + 1_000_001).into());
    refused(&field.post("RECORD", &envelope).await?, "INVALID_ENVELOPE")?;
    let far = tick(&field, clock + 1_000_000).await?;
    need(
        far == clock + 1_000_001,
        "a message as far ahead as is allowed",
        format!("{far}"),
    )
}

async fn appends(ground: &Ground) -> Checked {
    replays(ground)?;
    let field = ground.field_of(&["ann"]).await?;
    let scope = json!({"scope": {"role": "analyst", "max_units": 1}});
    for (operation, payload) in [
        ("RECORD", unit("a note", json!({}))),
        ("ATTUNE", scope),
        ("DETECT", json!({"mode": "list"})),
    ] {
        field
            .repeat(1, operation, "ann", "one session", &payload)
            .await?;
    }
    let told = field
        .replay("ann", "session", "one session", "full_trace")
        .await?;
    let kinds = texts(&list(&told, "timeline"), "event_type");
    same_texts(
        "an entry for each operation",
        &kinds,
        &["RECORD", "ATTUNE", "DETECT"],
    )
}

async fn unchanged(ground: &Ground) -> Checked {
    replays(ground)?;
    let field = ground.field_of(&["ann", "bob"]).await?;
    let first = field.note("ann", "it is so", json!({})).await?;
    let (_, conflict) = field.contradict("bob", &first, json!({})).await?;
    let before = field
        .replay("ann", "memory_unit", &first, "full_trace")
        .await?;
    let merged = field
        .merge("ann", &conflict, "last_write_wins", json!({}))
        .await?;
    merged.want(&[200])?;
    field
        .made(
            "COMPACT",
            "ann",
            json!({"strategy": "archive", "filter": {"types": ["finding"]}}),
        )
        .await?;
    let after = field
        .replay("ann", "memory_unit", &first, "full_trace")
        .await?;
    let (before, after) = (list(&before, "timeline"), list(&after, "timeline"));
    need(
        after.len() > before.len() && after.starts_with(&before),
        "the same entries, and more behind them",
        show(&json!(after)),
    )
}

async fn durable(ground: &Ground) -> Checked {
    ground.wire.can_restart()?;
    let field = ground.field_of(&["ann", "bob"]).await?;
    let id = field.note("ann", "a note that stays", json!({})).await?;
    ground.wire.restart().await?;
    let found = field.attune("bob", json!({})).await?;
    same_texts(
        "what was recorded before",
        &super::ground::units(&found),
        &[id],
    )
}

async fn folded(ground: &Ground) -> Checked {
    ground.wire.can_restart()?;
    let field = ground.field_of(&["ann", "bob"]).await?;
    let first = field.note("ann", "it is so", json!({})).await?;
    field.contradict("bob", &first, json!({})).await?;
    let all = async || {
        let mut all = Vec::new();
        for view in ["field/status", "agents", "conflicts"] {
            all.push(field.view(view).await?);
        }
        Ok::<Value, Miss>(Value::Array(all))
    };
    let before = all().await?;
    ground.wire.restart().await?;
    same("the same views after a restart", &all().await?, &before)
}

/// Makes a conflict, settles it, and returns the types of all its events.
async fn settled(ground: &Ground, strategy: &str, more: Value) -> Result<Vec<String>, Miss> {
    replays(ground)?;
    let field = ground.field_of(&["ann", "bob"]).await?;
    let first = field.note("ann", "it is so", json!({})).await?;
    let (_, conflict) = field.contradict("bob", &first, json!({})).await?;
    let merged = field.merge("ann", &conflict, strategy, more).await?;
    merged.want(&[200])?;
    let told = field
        .replay("ann", "conflict", &conflict, "full_trace")
        .await?;
    Ok(texts(&list(&told, "timeline"), "event_type"))
}

async fn effects(ground: &Ground) -> Checked {
    let kinds = settled(ground, "last_write_wins", json!({})).await?;
    let expected = ["RECORD", "RECORD", "CONFLICT_CREATED", "MERGE"];
    same_texts(
        "four events, none of them a change of status",
        &kinds,
        &expected,
    )
}

async fn first(ground: &Ground) -> Checked {
    let kinds = settled(ground, "synthesis", json!({"synthesis": "both are right"})).await?;
    let expected = ["RECORD", "RECORD", "CONFLICT_CREATED", "MERGE", "RECORD"];
    same_texts("causes before effects", &kinds, &expected)
}
