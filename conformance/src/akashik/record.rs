//! Recording: AK-REC.

use serde_json::{Value, json};

use super::ground::{Field, Ground, list, same, same_texts, texts, unit, units};
use super::subscribe::Listener;
use super::{Row, row};
use crate::json::{at, is_utc_time, put, show, text};
use crate::miss::{Checked, Miss, need, unseen};

pub(crate) const ROWS: &[Row] = &[
    row!("AK-REC-01", 0, "both modes work", Now modes),
    row!("AK-REC-02", 0, "type, content and purpose are needed", Now needed),
    row!("AK-REC-03", 0, "a purpose is needed in drafts too, and blank is none", Now purpose),
    row!("AK-REC-04", 1, "committed units state score and reasoning", Now confidence),
    row!("AK-REC-05", 0, "scores are numbers from 0 to 1", Now scores),
    row!("AK-REC-06", 0, "an unknown type is `INVALID_TYPE`", Now types),
    row!("AK-REC-07", 0, "the field sets id, epoch, source and status, nobody else", Now generated),
    row!("AK-REC-08", 0, "a draft is `draft`, a committed unit `active`", Now statuses),
    row!("AK-REC-09", 1, "a RECORD is in the log", Now logged),
    row!("AK-REC-10", 1, "each contradiction makes a conflict", Now contradictions),
    row!("AK-REC-11", 2, "contradictions are found by the field itself", Now detected),
    row!("AK-REC-12", 2, "subscribers hear of it", Now notified),
    row!("AK-REC-13", 2, "a unit whose enrichment fails is kept", not "nobody makes an embedding fail over the wire"),
    row!("AK-REC-14", 2, "late detection is deferred", not "nobody makes detection late over the wire"),
    row!("AK-REC-15", 0, "what is superseded is left out, its relation kept", Now superseded),
    row!("AK-REC-16", 1, "units are retracted by their author", not "the protocol has no operation for it"),
    row!("AK-REC-17", 0, "relations may dangle, contradictions may not", Now dangling),
    row!("AK-REC-18", 0, "a draft becomes knowledge by a unit that supersedes it", Now promoted),
    row!("AK-REC-19", 3, "committed needs authority 4, a draft 2", Now super::full::recording),
];

async fn modes(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann"]).await?;
    for mode in ["draft", "committed"] {
        let answer = field
            .ok("RECORD", "ann", unit("a note", json!({"mode": mode})))
            .await?;
        let holds =
            text(&answer, "status") == "accepted" && !text(&answer, "memory_unit_id").is_empty();
        need(holds, "an accepted unit with its id", show(&answer))?;
    }
    Ok(())
}

fn without(name: &str) -> Value {
    let mut payload = unit("a note", json!({}));
    if let Some(members) = payload.as_object_mut() {
        members.remove(name);
    }
    payload
}

async fn needed(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann"]).await?;
    for payload in [
        without("type"),
        without("content"),
        without("intent"),
        unit("", json!({})),
    ] {
        field
            .say("RECORD", "ann", payload)
            .await?
            .want(&[400, 422])?;
    }
    Ok(())
}

async fn purpose(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann"]).await?;
    for intent in [json!({}), json!({"purpose": ""}), json!({"purpose": "  "})] {
        for mode in ["draft", "committed"] {
            let payload = unit("a note", json!({"mode": mode, "intent": intent}));
            field.no("RECORD", "ann", payload, "MISSING_INTENT").await?;
        }
    }
    Ok(())
}

async fn confidence(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann"]).await?;
    let lacking = [
        without("confidence"),
        unit("a note", json!({"confidence": {"score": 0.5}})),
        unit("a note", json!({"confidence": {"reasoning": "seen"}})),
    ];
    for payload in lacking {
        field
            .no("RECORD", "ann", payload, "MISSING_CONFIDENCE")
            .await?;
    }
    let mut draft = without("confidence");
    put(&mut draft, "mode", "draft".into());
    field.ok("RECORD", "ann", draft).await.map(|_| ())
}

async fn scores(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann"]).await?;
    let with = |score: Value| {
        unit(
            "a note",
            json!({"confidence": {"score": score, "reasoning": "seen"}}),
        )
    };
    for bad in [json!(-0.01), json!(1.01), json!("0.5")] {
        field
            .no("RECORD", "ann", with(bad), "INVALID_CONFIDENCE")
            .await?;
    }
    for good in [json!(0), json!(1)] {
        field.ok("RECORD", "ann", with(good)).await?;
    }
    Ok(())
}

async fn types(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann"]).await?;
    field
        .no(
            "RECORD",
            "ann",
            unit("a note", json!({"type": "gossip"})),
            "INVALID_TYPE",
        )
        .await?;
    for known in ["finding", "decision", "observation", "question"] {
        field
            .ok("RECORD", "ann", unit("a note", json!({"type": known})))
            .await?;
    }
    Ok(())
}

async fn generated(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann", "bob"]).await?;
    for more in [
        json!({"id": "mine"}),
        json!({"epoch": 7}),
        json!({"status": "active"}),
        json!({"source": {"agent_id": "bob"}}),
    ] {
        field
            .no("RECORD", "ann", unit("a note", more), "INVALID_REQUEST")
            .await?;
    }
    let id = field.note("ann", "a note", json!({})).await?;
    let found = field.attune("bob", json!({})).await?;
    let found = found.first().cloned().unwrap_or_default();
    let unit = at(&found, "memory_unit");
    let holds = text(unit, "id") == id
        && text(unit, "source.agent_id") == "ann"
        && text(unit, "source.agent_role") == "analyst"
        && is_utc_time(text(unit, "source.timestamp"))
        && at(unit, "epoch").is_u64()
        && text(unit, "status") == "active";
    need(
        holds,
        "a unit with id, source, epoch and status",
        show(unit),
    )
}

async fn statuses(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann", "bob"]).await?;
    field
        .note("ann", "a note", json!({"mode": "draft"}))
        .await?;
    field.note("ann", "another", json!({})).await?;
    let found = field.attune("bob", json!({})).await?;
    let mut found = texts(&found, "memory_unit.status");
    found.sort();
    same_texts("statuses", &found, &["active", "draft"])
}

async fn logged(ground: &Ground) -> Checked {
    if ground.level < 2 {
        return unseen("the log is read by REPLAY, which level 2 brings");
    }
    let field = ground.field_of(&["ann"]).await?;
    let id = field.note("ann", "a note", json!({})).await?;
    let told = field
        .replay("ann", "memory_unit", &id, "full_trace")
        .await?;
    let events = list(&told, "timeline");
    same_texts("events", &texts(&events, "event_type"), &["RECORD"])?;
    same_texts("units", &texts(&events, "memory_unit_id"), &[id])
}

async fn contradictions(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann", "bob"]).await?;
    let first = field.note("ann", "it is so", json!({})).await?;
    // Twice the same pair is one conflict.
    let relation = json!({"type": "contradicts", "target_id": first});
    let payload = unit(
        "it is otherwise",
        json!({"relations": [relation, relation]}),
    );
    let answer = field.ok("RECORD", "bob", payload).await?;
    let named = list(&answer, "conflicts_detected");
    need(named.len() == 1, "one conflict", show(&answer))?;
    let conflict = field
        .conflict("bob", text(&answer, "conflicts_detected.0"))
        .await?;
    for (member, expected) in [
        ("unit_a", first.as_str()),
        ("unit_b", text(&answer, "memory_unit_id")),
        ("detected_by", "explicit"),
        ("status", "detected"),
        ("type", "factual"),
    ] {
        same(member, at(&conflict, member), &json!(expected))?;
    }
    Ok(())
}

/// Records two findings of one task that agree in all but a number, and returns the second answer.
pub(crate) async fn disagree(field: &Field<'_>) -> Result<Value, Miss> {
    let intent = json!({"purpose": "size the market", "task_id": "market"});
    let note = |content: &str| unit(content, json!({"intent": intent}));
    field
        .made(
            "RECORD",
            "ann",
            note("The market for folding bicycles grows by 23 percent a year"),
        )
        .await?;
    field
        .ok(
            "RECORD",
            "bob",
            note("The market for folding bicycles grows by 14 percent a year"),
        )
        .await
}

async fn detected(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann", "bob"]).await?;
    let answer = disagree(&field).await?;
    let id = text(&answer, "conflicts_detected.0");
    need(
        !id.is_empty(),
        "a conflict that nobody named",
        show(&answer),
    )?;
    let conflict = field.conflict("bob", id).await?;
    let by = text(&conflict, "detected_by");
    need(
        ["semantic", "logical", "temporal"].contains(&by),
        "an automatic method",
        show(&conflict),
    )
}

async fn notified(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann", "bob"]).await?;
    let mut listener =
        Listener::open(&field, "bob", json!({"events": ["memory.recorded"]})).await?;
    let id = field.note("ann", "a note", json!({})).await?;
    let heard = listener.hears("memory.recorded").await?;
    same("`memory_unit_id`", at(&heard, "memory_unit_id"), &json!(id))
}

async fn superseded(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann", "bob", "carl"]).await?;
    let first = field.note("ann", "a first version", json!({})).await?;
    let relations = json!({"relations": [{"type": "supersedes", "target_id": first}]});
    let second = field.note("bob", "a second version", relations).await?;
    let third = json!({"relations": [{"type": "supersedes", "target_id": first}]});
    let third = field.note("ann", "a third version", third).await?;
    let found = field.attune("carl", json!({})).await?;
    let mut shown = units(&found);
    shown.sort();
    let mut expected = vec![second, third];
    expected.sort();
    same_texts("the versions that replaced it", &shown, &expected)?;
    let targets = found
        .iter()
        .map(|found| text(found, "memory_unit.relations.0.target_id"));
    let targets: Vec<&str> = targets.collect();
    same_texts(
        "relations as they were written",
        &targets,
        &[&first, &first],
    )
}

async fn dangling(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann"]).await?;
    let towards = |kind: &str| {
        unit(
            "a note",
            json!({"relations": [{"type": kind, "target_id": "nothing"}]}),
        )
    };
    let answer = field.ok("RECORD", "ann", towards("supports")).await?;
    need(
        !list(&answer, "warnings").is_empty(),
        "a warning",
        show(&answer),
    )?;
    field
        .no("RECORD", "ann", towards("contradicts"), "UNIT_NOT_FOUND")
        .await
        .map(|_| ())
}

async fn promoted(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann", "bob"]).await?;
    let draft = field
        .note("ann", "a draft", json!({"mode": "draft"}))
        .await?;
    let relations = json!({"relations": [{"type": "supersedes", "target_id": draft}]});
    let unit = field.note("ann", "what came of it", relations).await?;
    same_texts(
        "units",
        &units(&field.attune("bob", json!({})).await?),
        &[unit],
    )
}
