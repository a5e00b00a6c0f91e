//! What matters to whom: AK-ATT.

use serde_json::{Value, json};

use super::ground::{Ground, list, same, same_texts, scoped, texts, units};
use super::{Row, row};
use crate::json::{at, put, show, text};
use crate::miss::{Checked, Miss, need};

pub(crate) const ROWS: &[Row] = &[
    row!("AK-ATT-01", 0, "role and max_units are needed", Now needed),
    row!("AK-ATT-02", 0, "own units are left out unless asked for", Now own),
    row!("AK-ATT-03", 0, "superseded units are left out", Now replaced),
    row!("AK-ATT-04", 0, "each result has a score and a reason", Now reasons),
    row!("AK-ATT-05", 0, "sorted by score, then the newest first", Now sorted),
    row!("AK-ATT-06", 0, "cut after sorting, counted before", Now cut),
    row!("AK-ATT-07", 1, "a poller gets exactly what is new", Now polled),
    row!("AK-ATT-08", 1, "open conflicts of what is shown and of own units are included", Now conflicts),
    row!("AK-ATT-09", 2, "meaning, task and confidence count", Now meaning),
    row!("AK-ATT-10", 2, "token budgets are kept", Now budget),
    row!("AK-ATT-11", 2, "a threshold drops lower scores", Now threshold),
    row!("AK-ATT-12", 2, "archived units are shown on request only", Now archived),
    row!("AK-ATT-13", 0, "a decision counts more than an observation", Now weighed),
    row!("AK-ATT-14", 0, "formats: full, summary, ids only", Now formats),
    row!("AK-ATT-15", 0, "the same request gives the same answer", Now stable),
];

fn score(found: &Value) -> f64 {
    at(found, "relevance_score").as_f64().unwrap_or(-1.0)
}

async fn needed(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann"]).await?;
    for scope in [
        json!({"max_units": 1}),
        json!({"role": "", "max_units": 1}),
        json!({"role": "analyst"}),
        json!({"role": "analyst", "max_units": 0}),
    ] {
        field
            .no("ATTUNE", "ann", json!({"scope": scope}), "INVALID_REQUEST")
            .await?;
    }
    field.attune("ann", json!({})).await.map(|_| ())
}

async fn own(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann"]).await?;
    let id = field.note("ann", "a note", json!({})).await?;
    let found = field.attune("ann", json!({})).await?;
    need(
        found.is_empty(),
        "nothing of one's own",
        show(&json!(found)),
    )?;
    let found = field.attune("ann", json!({"include_own": true})).await?;
    same_texts("own units on request", &units(&found), &[id])
}

async fn replaced(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann", "bob"]).await?;
    let first = field.note("ann", "a first version", json!({})).await?;
    let more = json!({"relations": [{"type": "supersedes", "target_id": first}]});
    let second = field.note("ann", "a second version", more).await?;
    same_texts(
        "units",
        &units(&field.attune("bob", json!({})).await?),
        &[second],
    )
}

async fn reasons(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann", "bob"]).await?;
    field.note("ann", "a note", json!({})).await?;
    let found = field.attune("bob", json!({})).await?;
    let found = found.first().cloned().unwrap_or_default();
    let holds =
        (0.0..=1.0).contains(&score(&found)) && !text(&found, "relevance_reason").is_empty();
    need(holds, "a score from 0 to 1 and a reason", show(&found))
}

async fn sorted(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann", "bob"]).await?;
    for (content, kind) in [
        ("the tides of the harbour", "observation"),
        ("we build in the harbour", "decision"),
        ("the trains of the line", "finding"),
        ("the trains of the line", "finding"),
    ] {
        field.note("ann", content, json!({"type": kind})).await?;
    }
    let found = field
        .attune("bob", json!({"interests": ["harbour"]}))
        .await?;
    need(found.len() == 4, "four units", format!("{}", found.len()))?;
    let place = |found: &Value| {
        let epoch = at(found, "memory_unit.epoch").as_f64().unwrap_or_default();
        (score(found), epoch)
    };
    let is_sorted = found.is_sorted_by(|before, after| place(before) >= place(after));
    need(
        is_sorted,
        "falling scores, ties by falling epoch",
        show(&json!(found)),
    )
}

async fn cut(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann", "bob"]).await?;
    for content in ["one", "two", "three"] {
        field.note("ann", content, json!({})).await?;
    }
    let all = units(&field.attune("bob", json!({})).await?);
    let payload = json!({"scope": {"role": "analyst", "max_units": 2}});
    let answer = field.ok("ATTUNE", "bob", payload).await?;
    let first: Vec<String> = all.into_iter().take(2).collect();
    same_texts("the first two", &units(&list(&answer, "record")), &first)?;
    same(
        "`units_returned`",
        at(&answer, "context_budget.units_returned"),
        &json!(2),
    )?;
    same(
        "`units_available`",
        at(&answer, "context_budget.units_available"),
        &json!(3),
    )
}

pub(crate) async fn polled(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann", "bob"]).await?;
    field.note("ann", "an old note", json!({})).await?;
    let answer = field
        .ok("ATTUNE", "bob", json!({"scope": scoped(json!({}))}))
        .await?;
    let epoch = at(&answer, "epoch").clone();
    let new = field.note("ann", "a new note", json!({})).await?;
    let found = field.attune("bob", json!({"since_epoch": epoch})).await?;
    same_texts("exactly the new unit", &units(&found), &[&new])?;
    // The bound is part of what is asked for.
    let epoch = at(
        &found.first().cloned().unwrap_or_default(),
        "memory_unit.epoch",
    )
    .clone();
    let found = field.attune("bob", json!({"since_epoch": epoch})).await?;
    same_texts("a unit of exactly that epoch", &units(&found), &[&new])
}

async fn conflicts(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann", "bob", "carl"]).await?;
    let first = field.note("ann", "it is so", json!({})).await?;
    let (_, conflict) = field.contradict("bob", &first, json!({})).await?;
    for agent in ["ann", "carl"] {
        let answer = field
            .ok("ATTUNE", agent, json!({"scope": scoped(json!({}))}))
            .await?;
        same_texts(
            "conflicts",
            &texts(&list(&answer, "conflicts"), "id"),
            &[&conflict],
        )?;
    }
    Ok(())
}

async fn first_for(ground: &Ground, notes: [(&str, Value); 2], payload: Value) -> Checked {
    let field = ground.field_of(&["ann", "bob"]).await?;
    let [(wanted, more), (other, otherwise)] = notes;
    let wanted = field.note("ann", wanted, more).await?;
    field.note("ann", other, otherwise).await?;
    let found = units(&list(&field.ok("ATTUNE", "bob", payload).await?, "record"));
    need(
        found.first() == Some(&wanted),
        format!("{wanted} first"),
        format!("{found:?}"),
    )
}

async fn meaning(ground: &Ground) -> Checked {
    // No word is shared, only the stem of one.
    let notes = [
        ("Harbours silt up when rivers slow down", json!({})),
        ("The timetable of trains was changed in spring", json!({})),
    ];
    let payload = json!({"scope": scoped(json!({})), "context_hint": "harbour silting river"});
    first_for(ground, notes, payload).await?;
    let task = |task: &str| json!({"intent": {"purpose": "to know", "task_id": task}});
    let payload = json!({"scope": scoped(json!({"active_task_id": "mine"}))});
    first_for(
        ground,
        [("a note", task("mine")), ("a note", task("other"))],
        payload,
    )
    .await?;
    let sure = |score: f64| json!({"confidence": {"score": score, "reasoning": "seen"}});
    let payload = json!({"scope": scoped(json!({}))});
    first_for(
        ground,
        [("a note", sure(1.0)), ("a note", sure(0.1))],
        payload,
    )
    .await
}

async fn budget(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann", "bob"]).await?;
    for number in 0..5 {
        let content = format!(
            "Note {number} says this. {}",
            "And it says much more. ".repeat(40)
        );
        field.note("ann", &content, json!({})).await?;
    }
    let free = field
        .ok("ATTUNE", "bob", json!({"scope": scoped(json!({}))}))
        .await?;
    let payload = json!({"scope": scoped(json!({"max_tokens": 600}))});
    let answer = field.ok("ATTUNE", "bob", payload).await?;
    let used = at(&answer, "context_budget.tokens_used").as_u64();
    same(
        "`tokens_budget`",
        at(&answer, "context_budget.tokens_budget"),
        &json!(600),
    )?;
    let shorter = at(&answer, "record").to_string().len() < at(&free, "record").to_string().len();
    let holds =
        used.is_some_and(|used| used <= 600) && shorter && !list(&answer, "record").is_empty();
    need(
        holds,
        "less text, at most 600 tokens",
        show(at(&answer, "context_budget")),
    )
}

async fn threshold(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann", "bob"]).await?;
    field
        .note("ann", "the tides of the harbour", json!({}))
        .await?;
    field
        .note("ann", "the trains of the line", json!({}))
        .await?;
    let scope = |more: Value| {
        let mut scope = scoped(json!({"interests": ["tides of the harbour"]}));
        if let (Value::Object(scope), Value::Object(more)) = (&mut scope, more) {
            scope.extend(more);
        }
        scope
    };
    let all = field.attune("bob", scope(json!({}))).await?;
    let scores: Vec<f64> = all.iter().map(score).collect();
    let [high, low] = scores.as_slice() else {
        return Err(Miss::Unseen("two units were not found".to_owned()));
    };
    if high <= low {
        return Err(Miss::Unseen("both units score the same".to_owned()));
    }
    let middle = f64::midpoint(*high, *low);
    let found = field
        .attune("bob", scope(json!({"relevance_threshold": middle})))
        .await?;
    let left = found.iter().all(|found| score(found) >= middle);
    need(
        found.len() == 1 && left,
        "the one above the threshold",
        show(&json!(found)),
    )
}

async fn archived(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann", "bob"]).await?;
    let id = field.note("ann", "a note", json!({})).await?;
    field
        .made(
            "COMPACT",
            "ann",
            json!({"strategy": "archive", "filter": {"types": ["finding"]}}),
        )
        .await?;
    let found = field.attune("bob", json!({})).await?;
    need(found.is_empty(), "no archived unit", show(&json!(found)))?;
    let found = field
        .attune("bob", json!({"include_archived": true}))
        .await?;
    same_texts("archived units on request", &units(&found), &[id])
}

async fn weighed(ground: &Ground) -> Checked {
    let kind = |kind: &str| json!({"type": kind});
    let notes = [
        ("the same words", kind("decision")),
        ("the same words", kind("observation")),
    ];
    first_for(ground, notes, json!({"scope": scoped(json!({}))})).await
}

async fn formats(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann", "bob"]).await?;
    let content = format!("A first sentence. {}", "And more of it. ".repeat(40));
    field.note("ann", &content, json!({})).await?;
    let ask = async |format: &str| {
        let payload = json!({"scope": scoped(json!({})), "format": format});
        Ok::<Value, Miss>(at(&field.ok("ATTUNE", "bob", payload).await?, "record.0").clone())
    };
    let full = ask("full").await?;
    same(
        "the whole content",
        at(&full, "memory_unit.content"),
        &json!(content),
    )?;
    let summary = ask("summary").await?;
    let short = text(&summary, "memory_unit.content").chars().count();
    need(
        (1..=201).contains(&short),
        "at most 200 characters",
        show(&summary),
    )?;
    let ids = ask("ids_only").await?;
    let members = at(&ids, "memory_unit")
        .as_object()
        .map(|unit| unit.keys().cloned().collect());
    let mut members: Vec<String> = members.unwrap_or_default();
    members.sort();
    same_texts("members", &members, &["epoch", "id", "status", "type"])
}

async fn stable(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann", "bob"]).await?;
    for content in [
        "the tides of the harbour",
        "the trains of the line",
        "a note",
    ] {
        field.note("ann", content, json!({})).await?;
    }
    let ask = async || {
        let payload = json!({"scope": scoped(json!({"interests": ["harbour"]}))});
        let mut answer = field.ok("ATTUNE", "bob", payload).await?;
        put(&mut answer, "epoch", Value::Null);
        Ok::<String, Miss>(answer.to_string())
    };
    let (first, second) = (ask().await?, ask().await?);
    need(first == second, "the same answer, its epoch apart", second)
}
