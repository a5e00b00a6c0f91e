//! Compaction and handoffs, and what only level 3 has: AK-CMP, AK-HND, AK-COR, AK-SES.

use serde_json::{Value, json};

use super::ground::{Field, Ground, list, same, same_texts, texts, units};
use super::subscribe::Listener;
use super::{Row, row};
use crate::json::{at, show, text};
use crate::miss::{Checked, Miss, need};

pub(crate) const ROWS: &[Row] = &[
    row!("AK-CMP-01", 2, "no entry of the log is removed", Now entries),
    row!("AK-CMP-02", 2, "archived units are shown on request only", Now archive),
    row!("AK-CMP-03", 2, "summaries elaborate the originals, which are archived", Now summarize),
    row!("AK-CMP-04", 3, "a purge leaves a tombstone", Now super::full::purging),
    row!("AK-CMP-05", 2, "filters combine, and age is counted from the compaction", Now filters),
    row!("AK-CMP-06", 2, "disputed units are skipped", Now disputed),
    row!("AK-CMP-07", 2, "nothing selected is fine", Now nothing),
    row!("AK-CMP-08", 2, "one summary for each task and session", Now groups),
    row!("AK-CMP-09", 3, "authority 6", Now super::full::compacting),
    row!("AK-HND-01", 2, "a task changes hands with its context", Now handed),
    row!("AK-HND-02", 2, "unknown receivers and answered handoffs are refused", Now unanswerable),
    row!("AK-COR-01", 3, "an illegal transition of a task is refused", Now super::full::tasks),
    row!("AK-SES-01", 3, "an ended session takes nothing in", Now super::full::ended),
];

async fn compacted(field: &Field<'_>, strategy: &str, filter: Value) -> Result<Value, Miss> {
    field
        .ok(
            "COMPACT",
            "ann",
            json!({"strategy": strategy, "filter": filter}),
        )
        .await
}

async fn entries(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann"]).await?;
    let id = field.note("ann", "a note", json!({})).await?;
    compacted(&field, "archive", json!({"types": ["finding"]})).await?;
    let told = field
        .replay("ann", "memory_unit", &id, "full_trace")
        .await?;
    same_texts(
        "events",
        &texts(&list(&told, "timeline"), "event_type"),
        &["RECORD", "COMPACT"],
    )
}

async fn archive(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann", "bob"]).await?;
    let id = field.note("ann", "a note", json!({})).await?;
    let answer = compacted(&field, "archive", json!({"types": ["finding"]})).await?;
    same("`units_affected`", at(&answer, "units_affected"), &json!(1))?;
    need(
        field.attune("bob", json!({})).await?.is_empty(),
        "nothing",
        "an archived unit",
    )?;
    let found = field
        .attune("bob", json!({"include_archived": true}))
        .await?;
    same_texts("on request", &units(&found), &[id])
}

async fn summarize(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann", "bob"]).await?;
    let first = field.note("ann", "one thing", json!({})).await?;
    let second = field.note("ann", "another thing", json!({})).await?;
    let answer = compacted(&field, "summarize", json!({"types": ["finding"]})).await?;
    same(
        "`synthesis_units_created`",
        at(&answer, "synthesis_units_created"),
        &json!(1),
    )?;
    let found = field.attune("bob", json!({})).await?;
    same_texts("types", &texts(&found, "memory_unit.type"), &["synthesis"])?;
    let relations = list(
        found.first().unwrap_or(&Value::Null),
        "memory_unit.relations",
    );
    same_texts(
        "relations",
        &texts(&relations, "type"),
        &["elaborates", "elaborates"],
    )?;
    same_texts(
        "originals",
        &texts(&relations, "target_id"),
        &[first, second],
    )
}

async fn filters(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann"]).await?;
    field.note("ann", "an old finding", json!({})).await?;
    field
        .note("ann", "an old decision", json!({"type": "decision"}))
        .await?;
    let clock = field.view("field/status").await?;
    let clock = at(&clock, "epoch").as_u64().unwrap_or_default();
    field.note("ann", "a new finding", json!({})).await?;
    // The compaction comes two epochs after `clock`: units before that minus one are old.
    let age = json!({"max_age_epochs": 1, "types": ["finding"]});
    let answer = compacted(&field, "archive", age).await?;
    need(
        at(&answer, "units_affected") == 1,
        format!("one old finding at {clock}"),
        show(&answer),
    )?;
    let answer = compacted(
        &field,
        "archive",
        json!({"types": [], "status": ["active"]}),
    )
    .await?;
    same("the rest", at(&answer, "units_affected"), &json!(2))
}

async fn disputed(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann", "bob"]).await?;
    let first = field.note("ann", "it is so", json!({})).await?;
    field.contradict("bob", &first, json!({})).await?;
    let answer = compacted(&field, "archive", json!({"types": ["finding"]})).await?;
    same("`units_affected`", at(&answer, "units_affected"), &json!(0))
}

async fn nothing(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann"]).await?;
    let answer = compacted(&field, "archive", json!({"types": ["finding"]})).await?;
    same("`status`", at(&answer, "status"), &json!("ok"))?;
    same("`units_affected`", at(&answer, "units_affected"), &json!(0))?;
    let payload = json!({"strategy": "purge", "filter": {}});
    let answer = field.say("COMPACT", "ann", payload).await?.value()?;
    // Where purging is offered, a filter is needed.
    let code = text(&answer, "code");
    need(
        ["INVALID_REQUEST", "UNSUPPORTED_OPERATION"].contains(&code),
        "a refusal",
        show(&answer),
    )
}

async fn groups(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann", "bob"]).await?;
    for (task, score) in [("a", 0.9), ("b", 0.8), ("a", 0.4)] {
        let more = json!({
            "intent": {"purpose": "to know", "task_id": task},
            "confidence": {"score": score, "reasoning": "seen"},
        });
        field
            .note("ann", &format!("a note of {task}"), more)
            .await?;
    }
    let answer = compacted(&field, "summarize", json!({"types": ["finding"]})).await?;
    same(
        "one for each task",
        at(&answer, "synthesis_units_created"),
        &json!(2),
    )?;
    let found = field.attune("bob", json!({})).await?;
    let of_a = found
        .iter()
        .find(|found| text(found, "memory_unit.intent.task_id") == "a");
    let unit = at(of_a.unwrap_or(&Value::Null), "memory_unit").clone();
    let holds = text(&unit, "source.agent_id") == "ann"
        && text(&unit, "mode") == "committed"
        && at(&unit, "confidence.score").as_f64() == Some(0.4);
    need(
        holds,
        "a committed unit of the caller with the lowest score",
        show(&unit),
    )
}

async fn handed(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann", "bob"]).await?;
    let id = field
        .note("ann", "what you need to know", json!({}))
        .await?;
    let mut listener =
        Listener::open(&field, "bob", json!({"events": ["handoff.incoming"]})).await?;
    let payload = json!({
        "action": "offer", "task_id": "work", "to_agent": "bob", "reason": "I leave",
        "context": {"unit_ids": [id], "open_questions": ["when?"], "summary": "half done"},
    });
    let offered = field.ok("HANDOFF", "ann", payload).await?;
    same("`status`", at(&offered, "status"), &json!("offered"))?;
    listener.hears("handoff.incoming").await?;
    let payload = json!({"action": "accept", "handoff_id": text(&offered, "handoff_id")});
    let accepted = field.ok("HANDOFF", "bob", payload).await?;
    same("`status`", at(&accepted, "status"), &json!("accepted"))
}

async fn unanswerable(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann", "bob"]).await?;
    let offer = |to: &str| json!({"action": "offer", "task_id": "work", "to_agent": to});
    field
        .no("HANDOFF", "ann", offer("nobody"), "AGENT_NOT_REGISTERED")
        .await?;
    let offered = field.ok("HANDOFF", "ann", offer("bob")).await?;
    let decline = json!({"action": "decline", "handoff_id": text(&offered, "handoff_id")});
    field.ok("HANDOFF", "bob", decline.clone()).await?;
    field
        .no("HANDOFF", "bob", decline, "INVALID_TRANSITION")
        .await
        .map(|_| ())
}
