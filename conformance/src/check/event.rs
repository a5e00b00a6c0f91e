//! Events: AP-EVT.

use std::collections::BTreeMap;

use reqwest::Method;
use serde_json::{Value, json};

use crate::json::{at, data, ids, show, text};
use crate::miss::{Checked, all_but, fail, need, unseen};
use crate::registry::{Check, Row, row};
use crate::scenario::{artifact_body, unknown_like};
use crate::wire::Wire;

pub(crate) const ROWS: &[Row] = &[
    row!("AP-EVT-01", M, "every event has its required members", Last required),
    row!("AP-EVT-02", O, "optional members have their types", Now optional),
    row!("AP-EVT-03", M, "`sequence` counts the events of a resource without a hole", Now order),
    row!("AP-EVT-04", M, "events are never changed", Now append_only),
    row!("AP-EVT-05", M, "an event is read by its id", Now by_id),
    row!("AP-EVT-06", M, "`after_event_id` reads what follows, in order", Now ranges),
    row!("AP-EVT-07", M, "the events of a finished task read the same each time", Now stable),
    row!("AP-EVT-08", M, "a finished task gets no more events", Now sealed),
];

/// The check of AP-RPL-23 lives beside the range check it repeats after a restart.
pub(crate) const AFTER_RESTART: Check = Check::Restart(|wire| Box::pin(durable_ranges(wire)));

async fn required(wire: &Wire) -> Checked {
    let task = wire.completed().await?;
    let events = wire
        .events(&format!("/v1/events?task_id={}", text(&task, "id")))
        .await?;
    let mut listed = ids(&events);
    listed.sort();
    listed.dedup();
    need(
        listed.len() == events.len(),
        "ids that occur once in a list",
        format!("{} of {}", listed.len(), events.len()),
    )?;
    let ledger = wire.ledger();
    match ledger.bad_events.first() {
        _ if ledger.events == 0 => unseen("no event was seen"),
        None => Ok(()),
        Some(bad) => fail("every event with its required members", bad.clone()),
    }
}

async fn optional(wire: &Wire) -> Checked {
    let task = wire.completed().await?;
    let mut events = wire.session_events(text(&task, "session_id")).await?;
    events.extend(wire.task_events(&task).await?);
    let strings = [
        "trace_id",
        "span_id",
        "session_id",
        "task_id",
        "workspace_id",
        "actor",
        "idempotency_key",
        "previous_event_id",
        "receipt_id",
    ];
    for event in &events {
        for name in strings {
            let found = at(event, name);
            need(
                found.is_null() || found.is_string(),
                format!("`{name}` a string or null"),
                show(event),
            )?;
        }
        let (replayed, replay) = (at(event, "replayed"), at(event, "replay"));
        need(
            replayed.is_null() || replayed.is_boolean(),
            "`replayed` a boolean",
            show(event),
        )?;
        need(
            replay.is_null() || replay.is_object(),
            "`replay` an object or null",
            show(event),
        )?;
    }
    Ok(())
}

async fn order(wire: &Wire) -> Checked {
    let session = wire.session().await?;
    wire.append(&session, "one").await?;
    wire.completed_in(&session).await?;
    wire.append(&session, "two").await?;
    wire.completed_in(&session).await?;
    let events = wire.session_events(&session).await?;
    let mut last: BTreeMap<String, u64> = BTreeMap::new();
    let mut earlier = Vec::new();
    for event in &events {
        let resource = format!(
            "{} {}",
            text(event, "resource.object"),
            text(event, "resource.id")
        );
        let sequence = at(event, "sequence").as_u64().unwrap_or_default();
        if let Some(before) = last.insert(resource.clone(), sequence) {
            need(
                sequence == before + 1,
                format!("sequence {} of {resource}", before + 1),
                format!("{sequence}"),
            )?;
        }
        if let Some(previous) = at(event, "previous_event_id").as_str() {
            let first_of_resource = !earlier.iter().any(|(known, _)| known == &resource);
            let linked = first_of_resource || earlier.iter().any(|(_, id)| id == previous);
            need(
                linked,
                "`previous_event_id` of an earlier event",
                show(event),
            )?;
        }
        earlier.push((resource, text(event, "id").to_owned()));
    }
    need(
        last.len() > 1,
        "events of several resources",
        format!("{last:?}"),
    )
}

async fn append_only(wire: &Wire) -> Checked {
    let task = wire.completed().await?;
    let events = wire.task_events(&task).await?;
    let Some(first) = events.first() else {
        return unseen("the task has no events");
    };
    let path = format!("/v1/events/{}", text(first, "id"));
    let before = wire.get(&path).send().await?;
    for method in [Method::PUT, Method::PATCH, Method::POST, Method::DELETE] {
        let answer = wire
            .call(method, &path)
            .json(&json!({"event": "task.changed"}))
            .send()
            .await?;
        need(
            (400..500).contains(&answer.status),
            format!("{}: a refusal", answer.label),
            answer.found(),
        )?;
    }
    let after = wire.get(&path).send().await?;
    need(before.body == after.body, "the same event", after.found())?;
    all_but("that every resource can be rebuilt from the log, see conformance/coverage.md")
}

async fn by_id(wire: &Wire) -> Checked {
    let task = wire.completed().await?;
    for event in wire.task_events(&task).await? {
        let read = wire
            .get(format!("/v1/events/{}", text(&event, "id")))
            .send()
            .await?
            .value_of(&[200])?;
        need(
            text(&read, "object") == "event",
            "`object` `event`",
            show(&read),
        )?;
        need(read == event, "the event of the list", show(&read))?;
    }
    Ok(())
}

async fn ranges(wire: &Wire) -> Checked {
    let session = wire.session().await?;
    for words in ["one", "two", "three"] {
        wire.append(&session, words).await?;
    }
    let path = format!("/v1/sessions/{session}/events");
    whole_range(wire, &path).await?;
    let known = ids(&wire.session_events(&session).await?)
        .last()
        .cloned()
        .unwrap_or_default();
    let unknown = unknown_like(&known);
    let answer = wire
        .get(format!("{path}?after_event_id={unknown}"))
        .send()
        .await?;
    answer.refused(404, "resource_not_found")?;
    all_but("an id that was pruned")
}

async fn whole_range(wire: &Wire, path: &str) -> Checked {
    let all = wire
        .get(format!("{path}?limit=200"))
        .send()
        .await?
        .value_of(&[200])?;
    let all = ids(data(&all));
    let Some((first, rest)) = all.split_first() else {
        return unseen("there are no events");
    };
    let found = wire
        .get(format!("{path}?after_event_id={first}&limit=200"))
        .send()
        .await?
        .value_of(&[200])?;
    need(
        ids(data(&found)) == rest,
        format!("{rest:?}"),
        format!("{:?}", ids(data(&found))),
    )?;
    let one = wire
        .get(format!("{path}?after_event_id={first}&limit=1"))
        .send()
        .await?
        .value_of(&[200])?;
    need(
        ids(data(&one)) == rest.iter().take(1).cloned().collect::<Vec<_>>(),
        "the next event only",
        show(&one),
    )
}

async fn durable_ranges(wire: &Wire) -> Checked {
    wire.can_restart()?;
    let task = wire.completed().await?;
    let path = format!("/v1/tasks/{}/events", text(&task, "id"));
    let before = wire
        .get(format!("{path}?limit=200"))
        .made("list events")
        .await?;
    wire.restart().await?;
    whole_range(wire, &path).await?;
    let after = wire
        .get(format!("{path}?limit=200"))
        .send()
        .await?
        .value_of(&[200])?;
    need(
        ids(data(&before)) == ids(data(&after)),
        "the same events after a restart",
        show(&after),
    )
}

async fn stable(wire: &Wire) -> Checked {
    let task = wire.completed().await?;
    let path = format!("/v1/tasks/{}/events", text(&task, "id"));
    let (one, two) = (wire.get(&path).send().await?, wire.get(&path).send().await?);
    one.want(&[200])?;
    need(one.body == two.body, "the same bytes twice", two.found())
}

async fn sealed(wire: &Wire) -> Checked {
    let task = wire.completed().await?;
    let (id, session) = (text(&task, "id"), text(&task, "session_id"));
    let path = format!("/v1/tasks/{id}/events?limit=200");
    let before = wire.get(&path).made("list events").await?;
    let mut body = artifact_body(session);
    if let Some(members) = body.as_object_mut() {
        members.insert("task_id".to_owned(), json!(id));
    }
    let late = [
        wire.post("/v1/artifacts", &body),
        wire.post_empty(format!("/v1/tasks/{id}/cancel")),
        wire.answer(&task, "too late"),
        wire.post_empty(format!("/v1/receipts/{}/verify", text(&task, "receipt_id"))),
        wire.post_empty(format!("/v1/sessions/{session}/close")),
    ];
    for call in late {
        call.send()
            .await
            .map_err(|miss| miss.while_preparing("do something late"))?;
    }
    let after = wire.get(&path).send().await?.value_of(&[200])?;
    let names = |list: &Value| ids(data(list));
    need(
        names(&before) == names(&after),
        "no further events of the task",
        format!("{:?}", names(&after)),
    )?;
    if wire.claims.receipts {
        all_but("the redaction of an artifact")
    } else {
        all_but("the verification of a receipt and the redaction of an artifact")
    }
}
