//! What level 3 brings: authority, sessions, tasks, votes and purges.

use serde_json::{Value, json};

use super::ground::{Field, Ground, list, refused, same, same_texts, texts, unit, units};
use crate::json::{at, put, show, text};
use crate::miss::{Checked, Miss, all_but, need, unseen};

const OPERATOR: u8 = 10;
const CREATOR: u8 = 8;
const SENIOR: u8 = 6;
const STANDARD: u8 = 4;
const OBSERVER: u8 = 2;
const AUDITOR: u8 = 0;

/// A field with an agent of each authority, named after it.
async fn ranks(ground: &Ground) -> Result<Field<'_>, Miss> {
    let field = ground.field();
    for (agent, authority) in [
        ("operator", OPERATOR),
        ("creator", CREATOR),
        ("senior", SENIOR),
        ("standard", STANDARD),
        ("observer", OBSERVER),
        ("auditor", AUDITOR),
    ] {
        field.join_as(agent, authority).await?;
    }
    Ok(field)
}

fn draft(content: &str) -> Value {
    let mut draft = unit(content, json!({}));
    put(&mut draft, "mode", "draft".into());
    draft
}

pub(crate) async fn removing(ground: &Ground) -> Checked {
    let field = ranks(ground).await?;
    let other = || json!({"agent_id": "observer"});
    field
        .no("DEREGISTER", "senior", other(), "FORBIDDEN")
        .await?;
    let answer = field.ok("DEREGISTER", "creator", other()).await?;
    same("`status`", at(&answer, "status"), &json!("ok"))
}

pub(crate) async fn recording(ground: &Ground) -> Checked {
    let field = ranks(ground).await?;
    let committed = || unit("a note", json!({}));
    field
        .no("RECORD", "observer", committed(), "FORBIDDEN")
        .await?;
    field
        .no("RECORD", "auditor", draft("a draft"), "FORBIDDEN")
        .await?;
    field.ok("RECORD", "observer", draft("a draft")).await?;
    field
        .ok("RECORD", "standard", committed())
        .await
        .map(|_| ())
}

pub(crate) async fn detecting(ground: &Ground) -> Checked {
    let field = ranks(ground).await?;
    let wanted = || json!({"mode": "list"});
    field
        .no("DETECT", "observer", wanted(), "FORBIDDEN")
        .await?;
    field.ok("DETECT", "standard", wanted()).await.map(|_| ())
}

pub(crate) async fn subscribing(ground: &Ground) -> Checked {
    let field = ranks(ground).await?;
    let wanted = || json!({"action": "subscribe", "subscription": {"events": ["memory.recorded"]}});
    field
        .no("SUBSCRIBE", "auditor", wanted(), "FORBIDDEN")
        .await?;
    field
        .ok("SUBSCRIBE", "observer", wanted())
        .await
        .map(|_| ())
}

pub(crate) async fn replaying(ground: &Ground) -> Checked {
    let field = ranks(ground).await?;
    let id = field.note("standard", "a note", json!({})).await?;
    for agent in ["auditor", "observer", "operator"] {
        let told = field
            .replay(agent, "memory_unit", &id, "full_trace")
            .await?;
        same_texts(
            agent,
            &texts(&list(&told, "timeline"), "event_type"),
            &["RECORD"],
        )?;
    }
    Ok(())
}

pub(crate) async fn compacting(ground: &Ground) -> Checked {
    let field = ranks(ground).await?;
    for strategy in ["archive", "summarize"] {
        let payload = || json!({"strategy": strategy, "filter": {"types": ["finding"]}});
        field
            .no("COMPACT", "standard", payload(), "FORBIDDEN")
            .await?;
        field.ok("COMPACT", "senior", payload()).await?;
    }
    Ok(())
}

/// Two units in conflict, in a field with an agent of each authority.
async fn dispute(ground: &Ground) -> Result<(Field<'_>, String, String), Miss> {
    let field = ranks(ground).await?;
    let first = field.note("standard", "it is so", json!({})).await?;
    let (_, conflict) = field.contradict("senior", &first, json!({})).await?;
    Ok((field, first, conflict))
}

pub(crate) async fn merging(ground: &Ground) -> Checked {
    let (field, _, conflict) = dispute(ground).await?;
    let by = async |agent: &str, strategy: &str| {
        field.merge(agent, &conflict, strategy, json!({})).await
    };
    refused(&by("standard", "last_write_wins").await?, "FORBIDDEN")?;
    let escalated = by("senior", "human_escalation").await?.value_of(&[200])?;
    same("`status`", at(&escalated, "status"), &json!("escalated"))?;
    for agent in ["senior", "creator"] {
        refused(&by(agent, "last_write_wins").await?, "FORBIDDEN")?;
    }
    let resolved = by("operator", "last_write_wins").await?.value_of(&[200])?;
    same("`status`", at(&resolved, "status"), &json!("resolved"))
}

pub(crate) async fn voting(ground: &Ground) -> Checked {
    let (field, first, conflict) = dispute(ground).await?;
    // Four may vote: authority 4 and more.
    let vote = async |agent: &str, winner: &str| {
        let winner = json!({"winner_id": winner});
        field.merge(agent, &conflict, "vote", winner).await
    };
    refused(&vote("observer", &first).await?, "FORBIDDEN")?;
    refused(&vote("standard", "nothing of it").await?, "INVALID_REQUEST")?;
    for agent in ["standard", "standard", "senior"] {
        let pending = vote(agent, &first).await?.value_of(&[200])?;
        same("`status`", at(&pending, "status"), &json!("pending_vote"))?;
    }
    let listed = field.conflict("standard", &conflict).await?;
    same("the conflict", at(&listed, "status"), &json!("resolving"))?;
    let resolved = vote("creator", &first).await?.value_of(&[200])?;
    same("`status`", at(&resolved, "status"), &json!("resolved"))?;
    let winner = at(&resolved, "conflict.resolution.winner_id");
    same("the winner", winner, &json!(first))
}

/// Purges a unit of the field and returns it with the unit that is left.
async fn purged(ground: &Ground) -> Result<(Field<'_>, String, String), Miss> {
    if ground.level < 3 {
        return unseen(super::PURGE);
    }
    let field = ranks(ground).await?;
    let reason = field
        .note("standard", "the reason", json!({"type": "observation"}))
        .await?;
    let relations = json!([{"type": "depends_on", "target_id": reason}]);
    let secret = field
        .note(
            "standard",
            "to be forgotten",
            json!({"relations": relations}),
        )
        .await?;
    let purge =
        json!({"strategy": "purge", "filter": {"types": ["finding"]}, "reason": "asked to"});
    let answer = field.made("COMPACT", "operator", purge).await?;
    need(
        at(&answer, "units_affected") == 1,
        "one unit",
        show(&answer),
    )
    .map_err(|miss| miss.while_preparing("purge"))?;
    Ok((field, reason, secret))
}

pub(crate) async fn purging(ground: &Ground) -> Checked {
    let (field, reason, _) = purged(ground).await?;
    let purge = || json!({"strategy": "purge", "filter": {"types": ["observation"]}});
    for agent in ["senior", "creator"] {
        field.no("COMPACT", agent, purge(), "FORBIDDEN").await?;
    }
    let everything = json!({"strategy": "purge", "filter": {}});
    field
        .no("COMPACT", "operator", everything, "INVALID_REQUEST")
        .await?;
    let left = field.attune("senior", json!({})).await?;
    same_texts("what is left", &units(&left), &[reason])
}

pub(crate) async fn tombstone(ground: &Ground) -> Checked {
    let (field, _, secret) = purged(ground).await?;
    let told = field
        .replay("auditor", "memory_unit", &secret, "full_trace")
        .await?;
    let events = list(&told, "timeline");
    same_texts(
        "events",
        &texts(&events, "event_type"),
        &["RECORD", "RECORD", "COMPACT"],
    )?;
    let words = show(&told);
    need(
        !words.contains("to be forgotten"),
        "nothing of the words",
        words.clone(),
    )?;
    need(
        words.contains("(content purged)"),
        "that they were purged",
        words,
    )
}

/// The relations of a purged unit are still followed.
pub(crate) async fn related(ground: &Ground) -> Checked {
    let (field, reason, secret) = purged(ground).await?;
    let told = field
        .replay("auditor", "memory_unit", &secret, "full_trace")
        .await?;
    let named = texts(&list(&told, "timeline"), "memory_unit_id");
    need(
        named.contains(&reason),
        "the reason of the purged unit",
        show(&told),
    )
}

async fn coordinated(
    field: &Field<'_>,
    agent: &str,
    action: &str,
    task: Value,
) -> Result<Value, Miss> {
    let payload = json!({"action": action, "task": task});
    field.ok("COORDINATE", agent, payload).await
}

pub(crate) async fn tasks(ground: &Ground) -> Checked {
    let field = ranks(ground).await?;
    let made = json!({"title": "a task", "assignee": "standard"});
    let made = coordinated(&field, "standard", "create", made).await?;
    same(
        "`task.status`",
        at(&made, "task.status"),
        &json!("assigned"),
    )?;
    let id = text(&made, "task.id").to_owned();
    let step = |action: &str| json!({"action": action, "task": {"id": id}});
    for illegal in ["block", "complete", "unblock", "fail"] {
        field
            .no(
                "COORDINATE",
                "standard",
                step(illegal),
                "INVALID_TRANSITION",
            )
            .await?;
    }
    for (action, status) in [
        ("start", "working"),
        ("block", "blocked"),
        ("unblock", "working"),
        ("complete", "completed"),
    ] {
        let done = field.ok("COORDINATE", "standard", step(action)).await?;
        same(action, at(&done, "task.status"), &json!(status))?;
    }
    field
        .no(
            "COORDINATE",
            "operator",
            step("cancel"),
            "INVALID_TRANSITION",
        )
        .await?;
    let unknown = json!({"action": "start", "task": {"id": "nothing"}});
    field
        .no("COORDINATE", "standard", unknown, "UNIT_NOT_FOUND")
        .await
        .map(|_| ())
}

fn of_session(action: &str, session: &str) -> Value {
    json!({"action": action, "session": {"id": session, "goal": "to know"}})
}

pub(crate) async fn ended(ground: &Ground) -> Checked {
    let field = ranks(ground).await?;
    field
        .made("SESSION", "standard", of_session("create", "s"))
        .await?;
    let write = async || {
        let note = unit("a note", json!({}));
        field.say_in("s", "RECORD", "standard", note).await
    };
    write().await?.want(&[201])?;
    let step = |action: &str| of_session(action, "s");
    field
        .no("SESSION", "standard", step("pause"), "FORBIDDEN")
        .await?;
    field.ok("SESSION", "creator", step("pause")).await?;
    refused(&write().await?, "INVALID_TRANSITION")?;
    field.ok("SESSION", "creator", step("resume")).await?;
    write().await?.want(&[201])?;
    let over = field.ok("SESSION", "creator", step("end")).await?;
    same(
        "`session.status`",
        at(&over, "session.status"),
        &json!("ended"),
    )?;
    refused(&write().await?, "INVALID_TRANSITION")?;
    field
        .no("SESSION", "creator", step("resume"), "INVALID_TRANSITION")
        .await?;
    let told = field
        .replay("standard", "session", "s", "full_trace")
        .await?;
    let told = texts(&list(&told, "timeline"), "event_type");
    same_texts(
        "what happened in it",
        &told,
        &[
            "SESSION", "RECORD", "SESSION", "SESSION", "RECORD", "SESSION",
        ],
    )
}

pub(crate) async fn enforced(ground: &Ground) -> Checked {
    let field = ranks(ground).await?;
    for operation in ["COORDINATE", "SESSION", "HANDOFF"] {
        let envelope = field.envelope(operation, "operator", json!({}));
        for key in [None, Some("not-a-key")] {
            let answer = field.post_with(operation, &envelope, key).await?;
            refused(&answer, "UNAUTHENTICATED")?;
        }
    }
    let committed = unit("a note", json!({}));
    field
        .no("RECORD", "auditor", committed, "FORBIDDEN")
        .await
        .map(|_| ())
}

pub(crate) async fn claimed(ground: &Ground) -> Checked {
    let field = ranks(ground).await?;
    let claim = |authority: i64| json!({"id": "zoe", "role": "analyst", "authority": authority});
    for outside in [-1, 11] {
        field
            .no("REGISTER", "zoe", claim(outside), "INVALID_REQUEST")
            .await?;
    }
    let Some(other) = &ground.wire.other_key else {
        return all_but("a key that allows less than is claimed: needs --other-key");
    };
    let envelope = field.envelope("REGISTER", "zoe", claim(OPERATOR.into()));
    let answer = field.post_with("REGISTER", &envelope, Some(other)).await?;
    if answer.status == 201 {
        return all_but("a key that allows less than is claimed: that of --other-key allows all");
    }
    refused(&answer, "FORBIDDEN")?;
    let envelope = field.envelope("REGISTER", "zoe", claim(0));
    let answer = field.post_with("REGISTER", &envelope, Some(other)).await?;
    answer.want(&[201])
}

/// Of each operation a payload, who may just not do it, and who may.
fn table() -> Vec<(&'static str, Value, Option<&'static str>, &'static str)> {
    let merge = |strategy: &str| {
        let resolution = json!({"rationale": "r", "winner_id": "none"});
        json!({"conflict_id": "none", "strategy": strategy, "resolution": resolution})
    };
    let compact = |strategy: &str| json!({"strategy": strategy, "filter": {"types": ["question"]}});
    let task = |action: &str, task: Value| json!({"action": action, "task": task});
    let foreign = json!({"title": "t", "assignee": "operator"});
    let scope = json!({"scope": {"role": "analyst", "max_units": 1}});
    let subscription = json!({"action": "list"});
    let replay = json!({"target_type": "task", "target_id": "none", "depth": "summary"});
    let offer = json!({"action": "offer", "task_id": "t", "to_agent": "operator"});
    let other = json!({"agent_id": "nobody"});
    vec![
        (
            "RECORD",
            unit("a note", json!({})),
            Some("observer"),
            "standard",
        ),
        ("RECORD", draft("a draft"), Some("auditor"), "observer"),
        ("ATTUNE", scope, Some("auditor"), "observer"),
        (
            "DETECT",
            json!({"mode": "list"}),
            Some("observer"),
            "standard",
        ),
        (
            "MERGE",
            merge("last_write_wins"),
            Some("standard"),
            "senior",
        ),
        ("MERGE", merge("vote"), Some("observer"), "standard"),
        ("COMPACT", compact("archive"), Some("standard"), "senior"),
        ("COMPACT", compact("summarize"), Some("standard"), "senior"),
        ("COMPACT", compact("purge"), Some("creator"), "operator"),
        ("SUBSCRIBE", subscription, Some("auditor"), "observer"),
        ("REPLAY", replay, None, "auditor"),
        ("HANDOFF", offer, Some("observer"), "standard"),
        (
            "COORDINATE",
            task("create", json!({"title": "t"})),
            Some("observer"),
            "standard",
        ),
        (
            "COORDINATE",
            task("create", foreign),
            Some("standard"),
            "senior",
        ),
        (
            "COORDINATE",
            task("cancel", json!({"id": "none"})),
            Some("senior"),
            "creator",
        ),
        (
            "SESSION",
            json!({"action": "create", "session": {"goal": "g"}}),
            Some("observer"),
            "standard",
        ),
        (
            "SESSION",
            of_session("end", "none"),
            Some("senior"),
            "creator",
        ),
        ("DEREGISTER", other, Some("senior"), "creator"),
    ]
}

async fn may(field: &Field<'_>, operation: &str, agent: &str, payload: Value) -> Checked {
    let answer = field.say(operation, agent, payload).await?;
    let value = answer.value()?;
    need(
        text(&value, "code") != "FORBIDDEN",
        format!("{operation} open to {agent}"),
        answer.found(),
    )
}

pub(crate) async fn least(ground: &Ground) -> Checked {
    let field = ranks(ground).await?;
    for (operation, payload, below, least) in table() {
        if let Some(below) = below {
            field
                .no(operation, below, payload.clone(), "FORBIDDEN")
                .await?;
        }
        may(&field, operation, least, payload).await?;
    }
    Ok(())
}

pub(crate) async fn cumulative(ground: &Ground) -> Checked {
    let field = ranks(ground).await?;
    for (operation, payload, ..) in table() {
        may(&field, operation, "operator", payload).await?;
    }
    // And what is below an authority stays closed to it.
    let purge = json!({"strategy": "purge", "filter": {"types": ["question"]}});
    field
        .no("COMPACT", "creator", purge, "FORBIDDEN")
        .await
        .map(|_| ())
}

/// A session of one agent with a unit in it, and an agent that is not a member.
async fn hidden(ground: &Ground) -> Result<(Field<'_>, String), Miss> {
    let field = ranks(ground).await?;
    field
        .made("SESSION", "standard", of_session("create", "s"))
        .await?;
    let note = unit("for members", json!({}));
    let made = field.say_in("s", "RECORD", "standard", note).await?;
    let made = made.value_of(&[201])?;
    Ok((field, text(&made, "memory_unit_id").to_owned()))
}

pub(crate) async fn members(ground: &Ground) -> Checked {
    let (field, id) = hidden(ground).await?;
    same_texts(
        "what a stranger sees",
        &units(&field.attune("senior", json!({})).await?),
        &[] as &[&str],
    )?;
    let note = unit("a note", json!({}));
    let answer = field.say_in("s", "RECORD", "senior", note).await?;
    refused(&answer, "FORBIDDEN")?;
    let relations = json!([{"type": "contradicts", "target_id": id}]);
    let contradiction = unit("no", json!({"relations": relations}));
    field
        .no("RECORD", "senior", contradiction, "UNIT_NOT_FOUND")
        .await?;
    field
        .ok("SESSION", "senior", of_session("join", "s"))
        .await?;
    same_texts(
        "what a member sees",
        &units(&field.attune("senior", json!({})).await?),
        &[id],
    )
}

pub(crate) async fn redacted(ground: &Ground) -> Checked {
    let (field, id) = hidden(ground).await?;
    let told = field
        .replay("senior", "memory_unit", &id, "full_trace")
        .await?;
    let whole = field
        .replay("auditor", "memory_unit", &id, "full_trace")
        .await?;
    same(
        "`total_events`",
        at(&told, "total_events"),
        at(&whole, "total_events"),
    )?;
    for name in ["event_type", "epoch"] {
        let path = format!("timeline.0.{name}");
        same(name, at(&told, &path), at(&whole, &path))?;
    }
    let holds = text(&told, "timeline.0.agent_id") == "redacted"
        && at(&told, "timeline.0.memory_unit_id").is_null()
        && at(&told, "timeline.0.task_id").is_null()
        && !show(&told).contains("for members")
        && list(&told, "agents_involved").is_empty();
    need(holds, "the event without its words", show(&told))?;
    for agent in ["creator", "operator", "auditor"] {
        let whole = field
            .replay(agent, "memory_unit", &id, "full_trace")
            .await?;
        let seen = text(&whole, "timeline.0.agent_id") == "standard";
        need(seen, format!("all of it for {agent}"), show(&whole))?;
    }
    Ok(())
}
