//! How something came about: AK-REPLAY.

use serde_json::{Value, json};

use super::ground::{Field, Ground, list, refused, same, same_texts, texts, unit};
use super::{Row, row};
use crate::json::{at, is_utc_time, put, show, text};
use crate::miss::{Checked, Miss, all_but, need};

pub(crate) const ROWS: &[Row] = &[
    row!("AK-REPLAY-01", 2, "the timeline comes from the log alone", Restart from_log),
    row!("AK-REPLAY-02", 2, "three depths of five targets", Now targets),
    row!("AK-REPLAY-03", 2, "summary: a text and the agents", Now summary),
    row!("AK-REPLAY-04", 2, "detailed: the key events with units and times", Now detailed),
    row!("AK-REPLAY-05", 2, "full_trace: the whole causal chain in order", Now full_trace),
    row!("AK-REPLAY-06", 2, "the whole answer or none", Now too_large),
    row!("AK-REPLAY-07", 2, "an unknown target is `UNIT_NOT_FOUND`", Now unknown),
    row!("AK-REPLAY-08", 2, "who is not registered is refused", Now unregistered),
    row!("AK-REPLAY-09", 2, "an unknown type or depth is `INVALID_REQUEST`", Now misspelt),
    row!("AK-REPLAY-10", 2, "counts and agents are the same at every depth", Now counts),
    row!("AK-REPLAY-11", 2, "agents in order of appearance, without `system`", Now agents),
    row!("AK-REPLAY-12", 2, "a replay does not count itself", Now not_itself),
    row!("AK-REPLAY-13", 2, "the same request gives the same answer", Now stable),
    row!("AK-REPLAY-14", 3, "open to every authority", Now super::full::replaying),
    row!("AK-REPLAY-15", 2, "purged units stay in the timeline", Now super::full::tombstone),
    row!("AK-REPLAY-16", 2, "the published example: four key events, three agents", Now example),
];

/// The worked example of a chain with horizons: each unit by its letter.
struct Chain<'a> {
    field: Field<'a>,
    ids: Vec<(&'static str, String)>,
    conflict: String,
}

impl Chain<'_> {
    fn id(&self, letter: &str) -> &str {
        let found = self.ids.iter().find(|(known, _)| *known == letter);
        found.map_or("", |(_, id)| id)
    }

    /// Asks for a timeline and returns it in letters: units by their own, other events by their type.
    async fn told(&self, kind: &str, id: &str, depth: &str) -> Result<Vec<String>, Miss> {
        let told = self.field.replay("sam", kind, id, depth).await?;
        let events = list(&told, "timeline");
        let word = |event: &Value| {
            let letter = self
                .ids
                .iter()
                .find(|(_, id)| text(event, "memory_unit_id") == id);
            match (text(event, "event_type"), letter) {
                ("RECORD", Some((letter, _))) => (*letter).to_owned(),
                (other, _) => other.to_owned(),
            }
        };
        let epochs: Vec<u64> = events
            .iter()
            .filter_map(|event| at(event, "epoch").as_u64())
            .collect();
        need(
            epochs.is_sorted() && epochs.len() == events.len(),
            "epochs in order",
            show(&told),
        )?;
        Ok(events.iter().map(word).collect())
    }
}

async fn chain(ground: &Ground) -> Result<Chain<'_>, Miss> {
    let field = ground.field_of(&["ann", "bob", "sam"]).await?;
    let mut chain = Chain {
        field,
        ids: Vec::new(),
        conflict: String::new(),
    };
    let steps: [(&'static str, &str, &str, &str, &str); 10] = [
        ("Q", "ann", "question", "", ""),
        ("F", "ann", "finding", "answers", "Q"),
        ("E1", "sam", "observation", "supports", "F"),
        ("G", "bob", "finding", "contradicts", "F"),
        ("", "", "", "", ""),
        ("D", "sam", "decision", "depends_on", "F"),
        ("E2", "bob", "observation", "supports", "F"),
        ("F2", "ann", "finding", "supersedes", "F"),
        ("X", "bob", "observation", "elaborates", "D"),
        ("Z", "bob", "observation", "", ""),
    ];
    for (letter, agent, kind, relation, target) in steps {
        if letter.is_empty() {
            let conflict = chain.conflict.clone();
            let winner = json!({"winner_id": chain.id("F")});
            let merged = chain
                .field
                .merge("sam", &conflict, "authority", winner)
                .await?;
            merged
                .want(&[200])
                .map_err(|miss| miss.while_preparing("merge"))?;
            continue;
        }
        let mut payload = unit(&format!("this is {letter}"), json!({"type": kind}));
        put(&mut payload, "intent.task_id", "work".into());
        if !relation.is_empty() {
            put(
                &mut payload,
                "relations",
                json!([{"type": relation, "target_id": chain.id(target)}]),
            );
        }
        let mut envelope = chain.field.envelope("RECORD", agent, payload);
        put(&mut envelope, "session_id", "day".into());
        let made = chain.field.post("RECORD", &envelope).await?;
        let made = made
            .value_of(&[201])
            .map_err(|miss| miss.while_preparing("record"))?;
        if letter == "G" {
            text(&made, "conflicts_detected.0").clone_into(&mut chain.conflict);
        }
        chain
            .ids
            .push((letter, text(&made, "memory_unit_id").to_owned()));
    }
    Ok(chain)
}

async fn from_log(ground: &Ground) -> Checked {
    ground.wire.can_restart()?;
    let chain = chain(ground).await?;
    let ask = async || {
        chain
            .field
            .replay("sam", "decision", chain.id("D"), "full_trace")
            .await
    };
    let before = ask().await?;
    ground.wire.restart().await?;
    same("the same answer after a restart", &ask().await?, &before)?;
    all_but("the answer after everything but the log was removed")
}

async fn targets(ground: &Ground) -> Checked {
    let chain = chain(ground).await?;
    for (kind, id) in [
        ("memory_unit", chain.id("F")),
        ("decision", chain.id("D")),
        ("conflict", chain.conflict.as_str()),
        ("task", "work"),
        ("session", "day"),
    ] {
        for depth in ["summary", "detailed", "full_trace"] {
            let told = chain.field.replay("sam", kind, id, depth).await?;
            let shown = list(&told, "timeline").is_empty();
            need(
                shown == (depth == "summary"),
                format!("{kind} at {depth}"),
                show(&told),
            )?;
        }
    }
    Ok(())
}

async fn summary(ground: &Ground) -> Checked {
    let chain = chain(ground).await?;
    let told = chain
        .field
        .replay("sam", "conflict", &chain.conflict, "summary")
        .await?;
    same("`timeline`", at(&told, "timeline"), &json!([]))?;
    let summary = text(&told, "summary");
    let holds = ["ann", "bob", "sam", "authority"]
        .iter()
        .all(|word| summary.contains(word));
    need(
        holds,
        "a summary that names who did what, and the strategy",
        show(&told),
    )?;
    need(
        !list(&told, "agents_involved").is_empty(),
        "agents",
        show(&told),
    )
}

async fn detailed(ground: &Ground) -> Checked {
    let chain = chain(ground).await?;
    let found = chain.told("memory_unit", chain.id("F"), "detailed").await?;
    same_texts(
        "key events",
        &found,
        &["F", "G", "CONFLICT_CREATED", "MERGE", "F2"],
    )?;
    let found = chain.told("memory_unit", chain.id("X"), "detailed").await?;
    same_texts("key events", &found, &["X"])?;
    let told = chain
        .field
        .replay("sam", "memory_unit", chain.id("F"), "detailed")
        .await?;
    for event in list(&told, "timeline") {
        let holds =
            is_utc_time(text(&event, "timestamp")) && !text(&event, "description").is_empty();
        need(holds, "a time and a description", show(&event))?;
    }
    Ok(())
}

async fn full_trace(ground: &Ground) -> Checked {
    let chain = chain(ground).await?;
    let found = chain
        .told("memory_unit", chain.id("X"), "full_trace")
        .await?;
    let expected = ["Q", "F", "E1", "G", "CONFLICT_CREATED", "MERGE", "D", "X"];
    same_texts("what led to it and nothing later", &found, &expected)?;
    let found = chain
        .told("conflict", &chain.conflict, "full_trace")
        .await?;
    same_texts(
        "up to its end",
        &found,
        &["Q", "F", "E1", "G", "CONFLICT_CREATED", "MERGE"],
    )?;
    let found = chain
        .told("memory_unit", chain.id("F"), "full_trace")
        .await?;
    let expected = ["Q", "F", "E1", "G", "CONFLICT_CREATED", "MERGE", "E2", "F2"];
    same_texts("up to now, without consequences", &found, &expected)
}

async fn too_large(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann"]).await?;
    let looks = json!({"mode": "list"});
    field
        .repeat(10_000, "DETECT", "ann", "long", &looks)
        .await?;
    let told = field.replay("ann", "session", "long", "full_trace").await?;
    same(
        "as many events as are allowed",
        at(&told, "total_events"),
        &json!(10_000),
    )?;
    field.repeat(1, "DETECT", "ann", "long", &looks).await?;
    let payload = json!({"target_type": "session", "target_id": "long", "depth": "full_trace"});
    let answer = field.say("REPLAY", "ann", payload).await?;
    let error = refused(&answer, "REPLAY_TOO_LARGE")?;
    need(
        at(&error, "timeline").is_null(),
        "no part of a timeline",
        show(&error),
    )?;
    let told = field.replay("ann", "session", "long", "summary").await?;
    same("its summary", at(&told, "total_events"), &json!(10_001))
}

async fn unknown(ground: &Ground) -> Checked {
    let chain = chain(ground).await?;
    for (kind, id) in [
        ("memory_unit", "nothing"),
        ("decision", chain.id("F")),
        ("conflict", chain.id("F")),
        ("task", "nothing"),
        ("session", "nothing"),
    ] {
        let payload = json!({"target_type": kind, "target_id": id, "depth": "summary"});
        chain
            .field
            .no("REPLAY", "sam", payload, "UNIT_NOT_FOUND")
            .await?;
    }
    Ok(())
}

async fn unregistered(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann"]).await?;
    let id = field.note("ann", "a note", json!({})).await?;
    let payload = json!({"target_type": "memory_unit", "target_id": id, "depth": "summary"});
    field
        .no("REPLAY", "nobody", payload, "AGENT_NOT_REGISTERED")
        .await
        .map(|_| ())
}

async fn misspelt(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann"]).await?;
    let id = field.note("ann", "a note", json!({})).await?;
    for (kind, depth) in [("thing", "summary"), ("memory_unit", "deep")] {
        let payload = json!({"target_type": kind, "target_id": id, "depth": depth});
        field
            .no("REPLAY", "ann", payload, "INVALID_REQUEST")
            .await?;
    }
    Ok(())
}

async fn counts(ground: &Ground) -> Checked {
    let chain = chain(ground).await?;
    let ask = async |depth: &str| {
        let told = chain
            .field
            .replay("sam", "memory_unit", chain.id("X"), depth)
            .await?;
        Ok::<_, Miss>(json!([
            at(&told, "total_events"),
            at(&told, "agents_involved")
        ]))
    };
    let whole = ask("full_trace").await?;
    same("the size of the chain", at(&whole, "0"), &json!(8))?;
    same("counts of the summary", &ask("summary").await?, &whole)?;
    same("counts of the key events", &ask("detailed").await?, &whole)
}

async fn agents(ground: &Ground) -> Checked {
    let chain = chain(ground).await?;
    let told = chain
        .field
        .replay("sam", "conflict", &chain.conflict, "detailed")
        .await?;
    same(
        "`agents_involved`",
        at(&told, "agents_involved"),
        &json!(["ann", "sam", "bob"]),
    )
}

async fn not_itself(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann"]).await?;
    field
        .repeat(1, "RECORD", "ann", "day", &unit("a note", json!({})))
        .await?;
    let payload = json!({"target_type": "session", "target_id": "day", "depth": "full_trace"});
    for expected in [1, 2] {
        let mut envelope = field.envelope("REPLAY", "ann", payload.clone());
        put(&mut envelope, "session_id", "day".into());
        let told = field.post("REPLAY", &envelope).await?.value_of(&[200])?;
        same(
            "`total_events`",
            at(&told, "total_events"),
            &json!(expected),
        )?;
    }
    Ok(())
}

async fn stable(ground: &Ground) -> Checked {
    let chain = chain(ground).await?;
    let payload =
        json!({"target_type": "memory_unit", "target_id": chain.id("X"), "depth": "full_trace"});
    let first = chain.field.say("REPLAY", "sam", payload.clone()).await?;
    let second = chain.field.say("REPLAY", "bob", payload).await?;
    need(
        first.status == 200 && first.body == second.body,
        "the same bytes",
        second.found(),
    )
}

async fn example(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann", "bob", "sam"]).await?;
    let sure = |score: f64| json!({"confidence": {"score": score, "reasoning": "seen"}});
    let first = field
        .note("ann", "it grows by 23 percent", sure(0.9))
        .await?;
    let (second, conflict) = field.contradict("bob", &first, sure(0.4)).await?;
    let merged = field
        .merge("sam", &conflict, "confidence_weighted", json!({}))
        .await?;
    merged.want(&[200])?;
    let told = field
        .replay("sam", "conflict", &conflict, "detailed")
        .await?;
    let mut members: Vec<String> = told
        .as_object()
        .map(|told| told.keys().cloned().collect())
        .unwrap_or_default();
    members.sort();
    let expected = [
        "agents_involved",
        "status",
        "summary",
        "timeline",
        "total_events",
    ];
    same_texts("members", &members, &expected)?;
    let events = list(&told, "timeline");
    let kinds = texts(&events, "event_type");
    same_texts(
        "events",
        &kinds,
        &["RECORD", "RECORD", "CONFLICT_CREATED", "MERGE"],
    )?;
    same_texts(
        "who",
        &texts(&events, "agent_id"),
        &["ann", "bob", "system", "sam"],
    )?;
    same_texts(
        "units",
        &texts(&events, "memory_unit_id"),
        &[first.as_str(), &second, "", &first],
    )?;
    same(
        "agents",
        at(&told, "agents_involved"),
        &json!(["ann", "bob", "sam"]),
    )?;
    let resolved = text(events.last().unwrap_or(&Value::Null), "description");
    let expected = format!("Resolved via confidence_weighted: {first} prevails");
    need(resolved == expected, expected, resolved)
}
