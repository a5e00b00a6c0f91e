//! Idempotency: AP-IDEM.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::workspace::workspace_of;
use crate::json::{show, text};
use crate::miss::{Checked, Miss, all_but, need};
use crate::raw::Request;
use crate::registry::{ELSEWHERE, Row, row};
use crate::scenario::{artifact_body, kinds, message, task_body};
use crate::wire::{Call, IDEMPOTENCY_KEY, Wire};

pub(crate) const ROWS: &[Row] = &[
    row!("AP-IDEM-01", S, "clients send `Idempotency-Key`", = ELSEWHERE),
    row!("AP-IDEM-02", M, "a key counts per actor, workspace, method and path", Now scope),
    row!("AP-IDEM-03", M, "the first answer is kept across restarts", Restart kept),
    row!("AP-IDEM-04", M, "an equivalent body gets the same resource", Now equivalent),
    row!("AP-IDEM-05", M, "another body under the same key is refused", Now different),
    row!("AP-IDEM-06", O, "a retry while the first runs gets the same task", Now in_flight),
    row!("AP-IDEM-07", N, "equal retries make no duplicates", Now parallel),
    row!("AP-IDEM-08", M, "a key has 1 to 255 characters and comes once", Now length),
    row!("AP-IDEM-09", M, "key and write are one commit", = ELSEWHERE),
    row!("AP-IDEM-10", M, "a refused request does not claim its key", Now unclaimed),
];

async fn scope(wire: &Wire) -> Checked {
    let key = wire.fresh("scope");
    let (one, two) = (wire.session().await?, wire.session().await?);
    let body = json!({"message": message("the same")});
    let mut made = BTreeSet::new();
    for session in [&one, &two] {
        let answer = wire
            .post(format!("/v1/sessions/{session}/messages"), &body)
            .once(&key)
            .send()
            .await?;
        need(
            (200..300).contains(&answer.status),
            "the same key on another path: success",
            answer.found(),
        )?;
        made.insert(text(&answer.value()?, "id").to_owned());
    }
    need(
        made.len() == 2,
        "two messages on two paths",
        format!("{made:?}"),
    )?;

    let (a, b) = (wire.workspace().await?, wire.workspace().await?);
    let mut made = BTreeSet::new();
    for workspace in [&a, &b] {
        let body = json!({"workspace_id": text(workspace, "id")});
        let answer = wire.post("/v1/sessions", &body).once(&key).send().await?;
        need(
            (200..300).contains(&answer.status),
            "the same key in another workspace: success",
            answer.found(),
        )?;
        made.insert(text(&answer.value()?, "id").to_owned());
    }
    need(
        made.len() == 2,
        "two sessions in two workspaces",
        format!("{made:?}"),
    )?;

    let Some(other) = wire.other_key.as_deref() else {
        return all_but("another actor: needs --other-key");
    };
    let Some(shared) = workspace_of(wire, other).await else {
        return all_but("another actor: the other key sees no workspace");
    };
    let body = json!({"workspace_id": shared});
    let theirs = wire
        .post("/v1/sessions", &body)
        .key(other)
        .once(&key)
        .send()
        .await?;
    if theirs.status == 403 {
        return all_but("another actor: the other key may only read");
    }
    need(
        (200..300).contains(&theirs.status),
        "the same key by another actor: success",
        theirs.found(),
    )?;
    let theirs = text(&theirs.value()?, "id").to_owned();
    need(
        !made.contains(&theirs),
        "a session of its own",
        theirs.clone(),
    )?;
    let mine = wire.post("/v1/sessions", &body).once(&key).send().await?;
    need(
        (200..300).contains(&mine.status) && text(&mine.value()?, "id") != theirs,
        "independent answers",
        mine.found(),
    )
}

async fn kept(wire: &Wire) -> Checked {
    wire.can_restart()?;
    let session = wire.session().await?;
    let (key, path) = (wire.fresh("kept"), format!("/v1/sessions/{session}/tasks"));
    let first = wire
        .post(&path, &task_body(None))
        .once(&key)
        .made("submit a task")
        .await?;
    let noted = wire.post(
        format!("/v1/sessions/{session}/messages"),
        &json!({"message": message("kept")}),
    );
    let noted = noted.once(&key).made("append a message").await?;
    wire.restart().await?;
    let again = wire
        .post(&path, &task_body(None))
        .once(&key)
        .send()
        .await?
        .value_of(&[200, 202])?;
    need(
        text(&again, "id") == text(&first, "id"),
        format!("task `{}` again", text(&first, "id")),
        show(&again),
    )?;
    let again = wire.post(
        format!("/v1/sessions/{session}/messages"),
        &json!({"message": message("kept")}),
    );
    let again = again.once(&key).send().await?.value_of(&[200, 201])?;
    need(
        text(&again, "id") == text(&noted, "id"),
        format!("message `{}` again", text(&noted, "id")),
        show(&again),
    )?;
    all_but("that it is kept for 24 hours")
}

async fn equivalent(wire: &Wire) -> Checked {
    let session = wire.session().await?;
    let (key, path) = (
        wire.fresh("equivalent"),
        format!("/v1/sessions/{session}/tasks"),
    );
    let first = r#"{"input":{"role":"user","parts":[{"type":"text","text":"hé","visibility":"public"}]},"metadata":{"a":1,"b":2}}"#;
    let other = "{ \"metadata\" : {\"b\": 2.0, \"a\": 1},\n \"input\": {\"parts\": [ {\"visibility\":\"public\",\"text\":\"h\\u00e9\",\"type\":\"text\"} ], \"role\":\"user\"} }";
    let made = wire
        .post_empty(&path)
        .bytes("application/json", first)
        .once(&key)
        .made("submit a task")
        .await?;
    for body in [first, other] {
        let again = wire
            .post_empty(&path)
            .bytes("application/json", body)
            .once(&key)
            .send()
            .await?;
        let again = again.value_of(&[200, 202])?;
        need(
            text(&again, "id") == text(&made, "id"),
            format!("task `{}` again", text(&made, "id")),
            show(&again),
        )?;
    }
    Ok(())
}

async fn different(wire: &Wire) -> Checked {
    let session = wire.session().await?;
    let (key, path) = (
        wire.fresh("different"),
        format!("/v1/sessions/{session}/tasks"),
    );
    wire.post(&path, &task_body(None))
        .once(&key)
        .made("submit a task")
        .await?;
    let answer = wire
        .post(&path, &json!({"input": message("something else")}))
        .once(&key)
        .send()
        .await?;
    answer.refused(409, "idempotency_key_reused")?;
    let count = wire.all(&path).await?.len();
    need(count == 1, "one task", format!("{count}"))
}

/// Sends equal requests at once and returns the distinct ids in the answers and the answers that had none.
async fn at_once(calls: Vec<Call<'_>>) -> Result<(BTreeSet<String>, Vec<String>), Miss> {
    let (mut made, mut without) = (BTreeSet::new(), Vec::new());
    for answer in join_all(calls.into_iter().map(Call::send)).await {
        let answer = answer?;
        let value = if (200..300).contains(&answer.status) {
            answer.value()?
        } else {
            Value::Null
        };
        match text(&value, "id") {
            "" => without.push(answer.found()),
            id => drop(made.insert(id.to_owned())),
        }
    }
    Ok((made, without))
}

async fn in_flight(wire: &Wire) -> Checked {
    // A server that does not offer the workflow has nothing in flight for long enough.
    let held = wire.reach("hold", "WORKING").await?;
    wire.let_go(&held).await;
    let session = wire.session().await?;
    let (key, path) = (
        wire.fresh("flight"),
        format!("/v1/sessions/{session}/tasks"),
    );
    let calls = (0..2)
        .map(|_| wire.post(&path, &task_body(Some("hold"))).once(&key))
        .collect();
    let (made, without) = at_once(calls).await?;
    for id in &made {
        wire.let_go(&json!({"id": id})).await;
    }
    need(
        made.len() == 1 && without.is_empty(),
        "two answers with one task id",
        format!("{made:?} {without:?}"),
    )?;
    let count = wire.all(&path).await?.len();
    need(count == 1, "one task", format!("{count}"))
}

async fn parallel(wire: &Wire) -> Checked {
    let waiting = wire.reach("approve", "AUTH_REQUIRED").await;
    for kind in ["tasks", "messages", "artifacts"] {
        // A session for each kind: what a task leaves behind must not count as a duplicate.
        let session = wire.session().await?;
        let (path, list, body) = match kind {
            "tasks" => (
                format!("/v1/sessions/{session}/tasks"),
                format!("/v1/tasks?session_id={session}"),
                task_body(None),
            ),
            "messages" => {
                let path = format!("/v1/sessions/{session}/messages");
                (path.clone(), path, json!({"message": message("once")}))
            }
            _ => (
                "/v1/artifacts".to_owned(),
                format!("/v1/artifacts?session_id={session}"),
                artifact_body(&session),
            ),
        };
        let key = wire.fresh("parallel");
        let calls = (0..20)
            .map(|_| wire.post(&path, &body).once(&key))
            .collect();
        let (made, without) = at_once(calls).await?;
        need(
            made.len() == 1,
            format!("20 × POST {path}: one resource"),
            format!("{made:?} {without:?}"),
        )?;
        let count = wire.all(&list).await?.len();
        need(
            count == 1,
            format!("one resource in {list}"),
            format!("{count}"),
        )?;
    }
    let Ok(waiting) = waiting else {
        return all_but("approvals: the server offers no way to reach AUTH_REQUIRED");
    };
    let request = wire.pending(&waiting).await?;
    let key = wire.fresh("approval");
    let calls = (0..20)
        .map(|_| {
            wire.respond(&request, &json!({"approved": true}))
                .once(&key)
        })
        .collect();
    let (made, without) = at_once(calls).await?;
    need(
        made.len() == 1 && without.is_empty(),
        "20 equal approvals: one answer",
        format!("{made:?} {without:?}"),
    )?;
    let events = wire.task_events(&waiting).await?;
    let count = kinds(&events)
        .iter()
        .filter(|kind| **kind == "user.tool_confirmation")
        .count();
    need(
        count == 1,
        "one `user.tool_confirmation`",
        format!("{count}"),
    )
}

async fn length(wire: &Wire) -> Checked {
    let session = wire.session().await?;
    let path = format!("/v1/sessions/{session}/messages");
    let body = json!({"message": message("keyed")});
    let request = |keys: &[&str]| {
        let start = Request::new("POST", &path)
            .key(wire)
            .version()
            .header("Connection", "close");
        keys.iter()
            .fold(start, |request, key| request.header(IDEMPOTENCY_KEY, key))
            .json(&body)
    };
    let long = wire.fresh("long") + &"k".repeat(256);
    let (fits, exceeds): (String, String) = (
        long.chars().take(255).collect(),
        long.chars().take(256).collect(),
    );
    for keys in [
        vec![""],
        vec![exceeds.as_str()],
        vec!["one", "two"],
        vec!["one", "one"],
    ] {
        let answer = request(&keys).send(wire).await?;
        answer.refused_for(400, "invalid_request", IDEMPOTENCY_KEY)?;
    }
    for key in ["k", fits.as_str()] {
        let answer = request(&[key]).send(wire).await?;
        need(
            (200..300).contains(&answer.status),
            format!("a key of {} characters: accepted", key.len()),
            answer.found(),
        )?;
    }
    Ok(())
}

async fn unclaimed(wire: &Wire) -> Checked {
    let session = wire.session().await?;
    let (key, path) = (
        wire.fresh("unclaimed"),
        format!("/v1/sessions/{session}/tasks"),
    );
    let refused = wire.post(&path, &json!({})).once(&key).send().await?;
    need(
        (400..500).contains(&refused.status),
        "a refusal without `input`",
        refused.found(),
    )?;
    let wrong = wire
        .post(&path, &task_body(None))
        .key("wrong")
        .once(&key)
        .send()
        .await?;
    need(
        (400..500).contains(&wrong.status),
        "a refusal without a credential",
        wrong.found(),
    )?;
    let fixed = wire.post(&path, &task_body(None)).once(&key).send().await?;
    need(
        (200..300).contains(&fixed.status),
        "success of the corrected request under the same key",
        fixed.found(),
    )
}
