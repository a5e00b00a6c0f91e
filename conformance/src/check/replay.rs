//! Replay: AP-RPL, as far as a client can see it.

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::json::{at, data, show, text};
use crate::miss::{Checked, Miss, all_but, fail, need, unseen};
use crate::registry::{ELSEWHERE, Row, row};
use crate::scenario::{TERMINAL, kinds};
use crate::wire::{Wire, frame_data};

pub(crate) const ROWS: &[Row] = &[
    row!("AP-RPL-01", M, "replay makes a new task from the log", Now new_task),
    row!("AP-RPL-02", M, "a replay stays in session and workspace", Now place),
    row!("AP-RPL-03", M, "a replay has the events of a task", Now events),
    row!("AP-RPL-04", M, "the default mode is exact", Now default_mode),
    row!("AP-RPL-05", M, "exact uses only recorded material", Now exact),
    row!("AP-RPL-06", M, "overrides replace what they name", Now overrides),
    row!("AP-RPL-07", M, "a checkpoint is restored before later entries", Now checkpoint),
    row!("AP-RPL-08", S, "override keys are deterministic", Now keys),
    row!("AP-RPL-09", M, "override kinds are the listed ones", Now override_kinds),
    row!("AP-RPL-10", M, "an override gives a value or an artifact", Now values),
    row!("AP-RPL-11", S, "secret overrides are receipt-only", Now secret_visibility),
    row!("AP-RPL-12", M, "the source log is read in order", Now order),
    row!("AP-RPL-13", S, "replayed events name their origin", Now origin),
    row!("AP-RPL-14", M, "replayed stream events are marked", Now stream),
    row!("AP-RPL-15", M, "each applied override is a receipt delta", Now deltas),
    row!("AP-RPL-16", N, "replay receipts show no secrets", Now secrets),
    row!("AP-RPL-17", N, "nothing is refreshed silently", Now refreshed),
    row!("AP-RPL-18", M, "a failure names what was unavailable", = ELSEWHERE),
    row!("AP-RPL-19", M, "history lasts as long as advertised", Now retention),
    row!("AP-RPL-20", M, "equal replays give equal receipt bytes", Now equal),
    row!("AP-RPL-21", M, "the replay fixture works", Now fixture),
    row!("AP-RPL-22", M, "override digests are checked", Now digests),
    row!("AP-RPL-23", M, "event ranges survive a restart", = super::event::AFTER_RESTART),
    row!("AP-RPL-24", M, "sessions are replayed too", Now session),
    row!("AP-RPL-25", M, "an unfinished task is not replayed", Now unfinished),
];

/// How long a stream of a finished task may be silent.
const SILENCE: Duration = Duration::from_secs(2);

fn claimed(wire: &Wire) -> Checked {
    match wire.claims.replay {
        true => Ok(()),
        false => unseen("the server does not advertise replay"),
    }
}

fn path(task: &Value) -> String {
    format!("/v1/tasks/{}/replay", text(task, "id"))
}

/// A finished task to replay.
async fn source(wire: &Wire) -> Result<Value, Miss> {
    claimed(wire)?;
    wire.completed().await
}

/// Replays a task as preparation and waits for its end.
pub(super) async fn replayed(wire: &Wire, task: &Value, body: &Value) -> Result<Value, Miss> {
    let made = wire.post(path(task), body).made("replay a task").await?;
    wire.wait_for(text(&made, "id"), &TERMINAL).await
}

/// Returns the key of the model call of a task.
async fn model_key(wire: &Wire, task: &Value) -> Result<String, Miss> {
    let events = wire.task_events(task).await?;
    let mut keys = events.iter().map(|event| text(event, "payload.effect_key"));
    match keys.find(|key| key.starts_with("llm:")) {
        Some(key) => Ok(key.to_owned()),
        None => unseen("no event of the task names a model call in `payload.effect_key`"),
    }
}

fn saying(words: &str) -> Value {
    json!({"id": "conformance", "choices": [{"message": {"role": "assistant", "content": words}}]})
}

fn with(key: &str, given: Value) -> Value {
    let given: Map<String, Value> = [(key.to_owned(), given)].into_iter().collect();
    json!({"mode": "with_overrides", "override": given})
}

/// Returns what the agent said at the end of a task.
async fn answer(wire: &Wire, task: &Value) -> Result<String, Miss> {
    let path = format!("/v1/outcomes/{}", text(task, "outcome_id"));
    let outcome = wire.get(path).made("read an outcome").await?;
    let parts = at(&outcome, "messages.0.parts").as_array();
    let texts = parts.into_iter().flatten().map(|part| text(part, "text"));
    Ok(texts.collect::<Vec<_>>().join("\n"))
}

async fn receipt(wire: &Wire, task: &Value) -> Result<Value, Miss> {
    let path = format!("/v1/receipts/{}", text(task, "receipt_id"));
    wire.get(path).made("read the receipt of a replay").await
}

async fn new_task(wire: &Wire) -> Checked {
    let task = source(wire).await?;
    let replay = wire.post(path(&task), &json!({})).send().await?;
    let replay = replay.value_of(&[202])?;
    let is_new = !text(&replay, "id").is_empty() && at(&replay, "id") != at(&task, "id");
    need(is_new, "a task with an id of its own", show(&replay))?;
    need(
        at(&replay, "parent_task_id") == at(&task, "id"),
        format!("`parent_task_id` {}", at(&task, "id")),
        show(at(&replay, "parent_task_id")),
    )
}

async fn place(wire: &Wire) -> Checked {
    let task = source(wire).await?;
    let replay = replayed(wire, &task, &json!({})).await?;
    if !at(&replay, "branch_id").is_null() {
        return all_but("a replay on the branch of its source: the server isolates this one");
    }
    for member in ["session_id", "workspace_id"] {
        need(
            at(&replay, member) == at(&task, member),
            format!("`{member}` {}", at(&task, member)),
            show(at(&replay, member)),
        )?;
    }
    Ok(())
}

async fn events(wire: &Wire) -> Checked {
    let task = source(wire).await?;
    let replay = replayed(wire, &task, &json!({})).await?;
    let events = wire.task_events(&replay).await?;
    let own: Vec<Value> = events
        .into_iter()
        .filter(|event| at(event, "replay").is_null())
        .collect();
    let found = kinds(&own);
    for kind in [
        "task.submitted",
        "replay.started",
        "replay.completed",
        "task.completed",
    ] {
        need(
            found.contains(&kind),
            format!("`{kind}` among the replay's own events"),
            found.join(", "),
        )?;
    }
    Ok(())
}

async fn default_mode(wire: &Wire) -> Checked {
    let task = source(wire).await?;
    let bare = wire.post_empty(path(&task)).send().await?;
    let bare = bare.value_of(&[202])?;
    let empty = wire.post(path(&task), &json!({})).send().await?;
    for replay in [bare, empty.value_of(&[202])?] {
        let replay = wire.wait_for(text(&replay, "id"), &TERMINAL).await?;
        let events = wire.task_events(&replay).await?;
        let started = events
            .iter()
            .find(|event| text(event, "event") == "replay.started");
        let mode = started.map_or("", |event| text(event, "payload.mode"));
        need(
            mode == "exact",
            "`replay.started` with `mode` `exact`",
            mode,
        )?;
    }
    wire.post(path(&task), &json!({"mode": "conformance"}))
        .send()
        .await?
        .refused_for(400, "invalid_request", "mode")
}

async fn exact(wire: &Wire) -> Checked {
    let task = source(wire).await?;
    let replay = replayed(wire, &task, &json!({})).await?;
    need(
        at(&replay, "status") == at(&task, "status"),
        format!("`status` {}", at(&task, "status")),
        show(at(&replay, "status")),
    )?;
    let (said, says) = (answer(wire, &task).await?, answer(wire, &replay).await?);
    need(said == says, format!("the answer `{said}`"), says)?;
    let given = with(
        &model_key(wire, &task).await?,
        json!({"kind": "llm_provider_response", "value": 1}),
    );
    let mut body = given.clone();
    if let Some(members) = body.as_object_mut() {
        members.insert("mode".to_owned(), json!("exact"));
    }
    wire.post(path(&task), &body)
        .send()
        .await?
        .refused_for(400, "invalid_request", "override")?;
    all_but("material that is gone")
}

async fn overrides(wire: &Wire) -> Checked {
    let task = source(wire).await?;
    let key = model_key(wire, &task).await?;
    let words = "said by an override";
    let given = json!({"kind": "llm_provider_response", "value": saying(words)});
    let replay = replayed(wire, &task, &with(&key, given)).await?;
    let says = answer(wire, &replay).await?;
    need(
        says.contains(words),
        format!("an answer with `{words}`"),
        says,
    )
}

async fn checkpoint(wire: &Wire) -> Checked {
    let task = source(wire).await?;
    wire.post(path(&task), &json!({"mode": "from_checkpoint"}))
        .send()
        .await?
        .refused_for(400, "invalid_request", "checkpoint_id")?;
    let nowhere = json!({"mode": "from_checkpoint", "checkpoint_id": "checkpoint_of_nobody_1"});
    wire.post(path(&task), &nowhere).send().await?.refused_for(
        404,
        "resource_not_found",
        "checkpoint_id",
    )?;
    all_but("a boundary: a plain task has none")
}

async fn effect_keys(wire: &Wire, task: &Value) -> Result<Vec<String>, Miss> {
    let events = wire.task_events(task).await?;
    let mut keys: Vec<String> = events
        .iter()
        .filter(|event| at(event, "replay").is_null())
        .map(|event| text(event, "payload.effect_key").to_owned())
        .filter(|key| !key.is_empty())
        .collect();
    keys.sort_unstable();
    keys.dedup();
    Ok(keys)
}

async fn keys(wire: &Wire) -> Checked {
    let one = source(wire).await?;
    let two = source(wire).await?;
    let (first, second) = (
        effect_keys(wire, &one).await?,
        effect_keys(wire, &two).await?,
    );
    need(
        !first.is_empty(),
        "events with `payload.effect_key`",
        "none",
    )?;
    need(
        first == second,
        format!("the keys {} again", first.join(", ")),
        second.join(", "),
    )?;
    let nobody = with(
        "llm:nobody:7",
        json!({"kind": "llm_provider_response", "value": saying("x")}),
    );
    let replay = replayed(wire, &one, &nobody).await?;
    let events = wire.task_events(&replay).await?;
    let started = events
        .iter()
        .find(|event| text(event, "event") == "replay.started");
    let told = started.is_some_and(|event| show(at(event, "payload")).contains("llm:nobody:7"));
    need(
        told,
        "`replay.started` naming a key that matches nothing",
        show(&json!(started)),
    )
}

async fn override_kinds(wire: &Wire) -> Checked {
    let task = source(wire).await?;
    let key = model_key(wire, &task).await?;
    let param = format!("override.{key}.kind");
    for given in [
        json!({"kind": "conformance", "value": 1}),
        json!({"kind": "mcp_tool_return", "value": 1}),
        json!({"value": 1}),
    ] {
        wire.post(path(&task), &with(&key, given))
            .send()
            .await?
            .refused_for(400, "invalid_request", &param)?;
    }
    for (key, kind) in [
        ("llm:x:1", "llm_provider_response"),
        ("mcp:x:y:1", "mcp_tool_return"),
        ("time:x", "time"),
        ("host:x:y:1", "host_fact"),
        ("host:tool.x:y:1", "tool_result"),
        ("event:event_x", "event_payload"),
    ] {
        let given = with(key, json!({"kind": kind, "value": {}}));
        wire.post(path(&task), &given).send().await?.want(&[202])?;
    }
    Ok(())
}

async fn values(wire: &Wire) -> Checked {
    let task = source(wire).await?;
    let key = model_key(wire, &task).await?;
    let kind = "llm_provider_response";
    for given in [
        json!({"kind": kind}),
        json!({"kind": kind, "value": 1, "artifact_id": "artifact_x"}),
    ] {
        wire.post(path(&task), &with(&key, given))
            .send()
            .await?
            .refused(400, "invalid_request")?;
    }
    let nowhere = json!({"kind": kind, "artifact_id": "artifact_of_nobody"});
    wire.post(path(&task), &with(&key, nowhere))
        .send()
        .await?
        .refused(404, "resource_not_found")
        .map(drop)
}

async fn secret_visibility(wire: &Wire) -> Checked {
    let task = source(wire).await?;
    let given = json!({"kind": "secret_value", "value": "x", "visibility": "public"});
    wire.post(path(&task), &with("secret:conformance", given))
        .send()
        .await?
        .refused(400, "invalid_request")
        .map(drop)
}

async fn order(wire: &Wire) -> Checked {
    let task = source(wire).await?;
    let replay = replayed(wire, &task, &json!({})).await?;
    let original = wire.task_events(&task).await?;
    let place = |id: &str| original.iter().position(|event| text(event, "id") == id);
    let mut last = None;
    for event in wire.task_events(&replay).await? {
        if at(&event, "replay").is_null() {
            continue;
        }
        let cursor = text(&event, "replay.replay_cursor");
        let here = place(cursor);
        need(
            here.is_some() && here >= last,
            "a `replay_cursor` in the source's log that never goes back",
            format!("`{cursor}`"),
        )?;
        last = here;
    }
    need(last.is_some(), "replayed events", "none")
}

async fn origin(wire: &Wire) -> Checked {
    let task = source(wire).await?;
    let key = model_key(wire, &task).await?;
    let given = json!({"kind": "llm_provider_response", "value": saying("x")});
    let replay = replayed(wire, &task, &with(&key, given)).await?;
    let (mut marked, mut produced) = (0, 0);
    for event in wire.task_events(&replay).await? {
        let mark = at(&event, "replay");
        if mark.is_null() {
            continue;
        }
        marked += 1;
        let holds = at(&event, "replayed") == &json!(true)
            && at(mark, "source_task_id") == at(&task, "id")
            && at(mark, "replay_task_id") == at(&replay, "id")
            && text(mark, "mode") == "with_overrides"
            && mark.get("original_event_id").is_some()
            && mark.get("replay_cursor").is_some();
        need(
            holds,
            "a whole `replay` object on a replayed event",
            show(&event),
        )?;
        produced += usize::from(text(mark, "override_key") == key);
        let original = text(mark, "original_event_id");
        if !original.is_empty() {
            let read = wire.get(format!("/v1/events/{original}")).send().await?;
            read.want(&[200])?;
        }
    }
    need(marked > 0, "replayed events", "none")?;
    need(
        produced == 1,
        "one event with the `override_key`",
        produced.to_string(),
    )
}

async fn stream(wire: &Wire) -> Checked {
    let task = source(wire).await?;
    let replay = replayed(wire, &task, &json!({})).await?;
    let listed = wire.task_events(&replay).await?;
    let path = format!("/v1/tasks/{}/stream", text(&replay, "id"));
    let opened = wire.get(path).stream().await?.opened();
    let mut stream = opened.map_err(|miss| miss.while_preparing("open a stream"))?;
    let (frames, _) = stream.rest(SILENCE).await;
    let sent: Vec<Value> = frames.iter().map(frame_data).collect();
    for event in listed.iter().filter(|event| !at(event, "replay").is_null()) {
        let frame = sent.iter().find(|frame| at(frame, "id") == at(event, "id"));
        let Some(frame) = frame else {
            return unseen("the stream does not hold what the list does");
        };
        need(
            at(frame, "replay") == at(event, "replay") && at(frame, "replayed") == &json!(true),
            "a frame that is marked as replayed",
            show(frame),
        )?;
    }
    Ok(())
}

async fn deltas(wire: &Wire) -> Checked {
    let task = source(wire).await?;
    let key = model_key(wire, &task).await?;
    let mut body = with(
        &key,
        json!({"kind": "llm_provider_response", "value": saying("x"), "reason": "for conformance"}),
    );
    if let Some(given) = body.pointer_mut("/override").and_then(Value::as_object_mut) {
        let unused = json!({"kind": "llm_provider_response", "value": saying("y")});
        given.insert("llm:nobody:7".to_owned(), unused);
    }
    let replay = replayed(wire, &task, &body).await?;
    let receipt = receipt(wire, &replay).await?;
    let found = at(&receipt, "deltas");
    need(
        found.as_array().is_some_and(|deltas| deltas.len() == 1),
        "one delta: the other override was not used",
        show(found),
    )?;
    let delta = at(found, "0");
    let holds = text(delta, "override_key") == key
        && text(delta, "reason") == "for conformance"
        && !text(delta, "path").is_empty()
        && text(delta, "after_sha256").starts_with("sha256:")
        && delta.get("before_sha256").is_some();
    need(holds, "a whole delta", show(delta))
}

async fn secrets(wire: &Wire) -> Checked {
    let task = source(wire).await?;
    let value = wire.fresh("conformance-secret-value");
    let given = json!({"kind": "secret_value", "value": value});
    let asked = wire.post(path(&task), &with("secret:conformance", given));
    let made = asked.made("replay with a secret").await?;
    let replay = wire.wait_for(text(&made, "id"), &TERMINAL).await?;
    let mut seen = vec![show(&replay), receipt(wire, &replay).await?.to_string()];
    seen.extend(
        wire.task_events(&replay)
            .await?
            .iter()
            .map(Value::to_string),
    );
    let shown = seen.into_iter().find(|text| text.contains(&value));
    need(shown.is_none(), "the secret nowhere", "it is shown")
}

async fn refreshed(wire: &Wire) -> Checked {
    let task = source(wire).await?;
    let before = effect_keys(wire, &task).await?;
    wire.append(text(&task, "session_id"), "what came after")
        .await?;
    let replay = replayed(wire, &task, &json!({})).await?;
    let (said, says) = (answer(wire, &task).await?, answer(wire, &replay).await?);
    need(said == says, format!("the answer `{said}`"), says)?;
    let events = wire.task_events(&replay).await?;
    let new = events.iter().find(|event| {
        let key = text(event, "payload.effect_key");
        !key.is_empty() && !before.iter().any(|known| known == key)
    });
    need(
        new.is_none(),
        "no effect that the source did not have",
        show(&json!(new)),
    )?;
    let body = json!({"refresh": ["memory"]});
    wire.post(path(&task), &body)
        .send()
        .await?
        .refused_for(400, "invalid_request", "refresh")?;
    all_but("secrets and host facts: a plain task uses none")
}

async fn retention(wire: &Wire) -> Checked {
    claimed(wire)?;
    let discovery = wire.get("/v1").made("read discovery").await?;
    let days = at(&discovery, "retention").get("days");
    need(
        days.is_some_and(|days| days.is_null() || days.is_u64()),
        "`retention` with `days`, a number or null",
        show(at(&discovery, "retention")),
    )?;
    all_but("what comes after the window")
}

/// Receipt, task and hash of a replay are its own; everything else of its receipt is not.
async fn equal(wire: &Wire) -> Checked {
    let task = source(wire).await?;
    let mut seen = Vec::new();
    for _ in 0..2 {
        let replay = replayed(wire, &task, &json!({})).await?;
        let path = format!("/v1/receipts/{}?view=wire", text(&replay, "receipt_id"));
        let bare = wire.get(path).made("read the bare receipt").await?;
        let mut plain = bare.clone();
        if let Some(members) = plain.as_object_mut() {
            members.remove("signatures");
        }
        let plain = plain.to_string();
        let hash = text(&bare, "chain.receipt_hash");
        seen.push(
            plain
                .replace(text(&replay, "receipt_id"), "RECEIPT")
                .replace(text(&replay, "id"), "TASK")
                .replace(hash, "HASH"),
        );
    }
    let [first, second] = seen.as_slice() else {
        return fail("two receipts", seen.len().to_string());
    };
    need(first == second, first.clone(), second.clone())?;
    super::elsewhere::equal(wire).await
}

async fn fixture(wire: &Wire) -> Checked {
    let task = source(wire).await?;
    // As the contract's example has it: an event id of another run and a digest that nobody computed.
    let given = json!({
        "kind": "llm_provider_response", "event_id": "event_of_another_run", "value": saying("Done."),
        "sha256": format!("sha256:{}", "a".repeat(64)),
    });
    let replay = replayed(wire, &task, &with("llm:main:1", given)).await?;
    let receipt = receipt(wire, &replay).await?;
    let found = at(&receipt, "deltas");
    need(
        found.as_array().is_some_and(|deltas| deltas.len() == 1),
        "one delta for `llm:main:1`",
        show(found),
    )?;
    let says = answer(wire, &replay).await?;
    need(says == "Done.", "the answer `Done.`", says)?;
    all_but("the fixture's own module")
}

async fn digests(wire: &Wire) -> Checked {
    let task = source(wire).await?;
    let key = model_key(wire, &task).await?;
    let with_digest = |digest: &str| {
        with(
            &key,
            json!({"kind": "llm_provider_response", "value": saying("x"), "sha256": digest}),
        )
    };
    let digits = "0123456789abcdef".repeat(4);
    for malformed in [
        "sha256:abc".to_owned(),
        digits.clone(),
        format!("sha256:{}", digits.to_uppercase()),
    ] {
        wire.post(path(&task), &with_digest(&malformed))
            .send()
            .await?
            .refused(400, "invalid_request")?;
    }
    wire.post(path(&task), &with_digest(&format!("sha256:{digits}")))
        .send()
        .await?
        .refused(422, "policy_violation")?;
    let placeholder = format!("sha256:{}", "b".repeat(64));
    let answer = wire
        .post(path(&task), &with_digest(&placeholder))
        .send()
        .await?;
    answer.want(&[202])
}

async fn session(wire: &Wire) -> Checked {
    claimed(wire)?;
    let session = wire.session().await?;
    let task = wire.completed_in(&session).await?;
    let asked = wire.post(format!("/v1/sessions/{session}/replay"), &json!({}));
    let fork = asked.send().await?.value_of(&[202])?;
    let fork = text(&fork, "id").to_owned();
    need(fork != session, "another session", session.clone())?;
    for _ in 0..100 {
        let events = wire.session_events(&fork).await?;
        let done = events
            .iter()
            .find(|event| text(event, "event") == "session.replayed");
        if let Some(done) = done {
            let told = at(done, "payload.tasks").to_string();
            return need(
                text(done, "payload.source_session_id") == session
                    && told.contains(text(&task, "id")),
                "`session.replayed` naming session and task",
                show(done),
            );
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    fail(
        "`session.replayed` on the new session",
        "none in five seconds",
    )
}

async fn unfinished(wire: &Wire) -> Checked {
    claimed(wire)?;
    let task = wire.reach("hold", "WORKING").await?;
    let answer = wire.post(path(&task), &json!({})).send().await;
    wire.let_go(&task).await;
    let refused = answer?.refused(409, "conflict").map(drop);
    // The replays above are tasks of their own; nothing waits for them.
    let listed = wire.get("/v1/tasks?limit=1").made("list tasks").await?;
    need(!data(&listed).is_empty(), "some task", "none").and(refused)
}
