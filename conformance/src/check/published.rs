//! The probes of the published suite, one by one.
//!
//! Owns their order and the state that carries over from probe to probe. Each asks exactly what the published probe
//! asks, no more: shapes, mostly. The requirements themselves are judged by the other files.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::lifecycle::allowed;
use super::version::discovery_members;
use crate::json::{at, data, short, show, text};
use crate::miss::{Checked, Miss, fail, need, unseen};
use crate::raw::find;
use crate::registry::{Check, Row, row};
use crate::scenario::{TERMINAL, message};
use crate::wire::{Answer, Wire};

pub(crate) const ROWS: &[Row] = &[
    row!("SUITE-01", U, "core/discovery", = Check::Published),
    row!("SUITE-02", U, "core/agent_card", = Check::Published),
    row!("SUITE-03", U, "core/list_core_resources", = Check::Published),
    row!("SUITE-04", U, "core/workspace_crud", = Check::Published),
    row!("SUITE-05", U, "core/session_crud", = Check::Published),
    row!("SUITE-06", U, "core/message_crud", = Check::Published),
    row!("SUITE-07", U, "core/task_crud", = Check::Published),
    row!("SUITE-08", U, "core/artifact_crud", = Check::Published),
    row!("SUITE-09", U, "core/event_reads", = Check::Published),
    row!("SUITE-10", U, "core/persona_memory_branch_reads", = Check::Published),
    row!("SUITE-11", U, "streaming/session_sse", = Check::Published),
    row!("SUITE-12", U, "streaming/task_sse", = Check::Published),
    row!("SUITE-13", U, "lifecycle/task_state_machine", = Check::Published),
    row!("SUITE-14", U, "lifecycle/cancel_terminal_consistency", = Check::Published),
    row!("SUITE-15", U, "idempotency/same body", = Check::Published),
    row!("SUITE-16", U, "idempotency/different body", = Check::Published),
    row!("SUITE-17", U, "auth/authenticated", = Check::Published),
    row!("SUITE-18", U, "auth/missing", = Check::Published),
    row!("SUITE-19", U, "auth/version", = Check::Published),
    row!("SUITE-20", U, "replay/byte deterministic", = Check::Published),
    row!("SUITE-21", U, "replay/resume cursor", = Check::Published),
    row!("SUITE-22", U, "receipts/task_receipts", = Check::Published),
    row!("SUITE-23", U, "receipts/verification", = Check::Published),
    row!("SUITE-24", U, "vaults", = Check::Published),
    row!("SUITE-25", U, "outcomes", = Check::Published),
    row!("SUITE-26", U, "webhooks", = Check::Published),
];

/// What later probes use of earlier ones.
#[derive(Default)]
struct State {
    workspace: Option<String>,
    session: Option<String>,
    task: Option<String>,
    receipt: Option<String>,
}

impl State {
    fn of<'a>(id: &'a Option<String>, what: &str) -> Result<&'a str, Miss> {
        id.as_deref()
            .map_or_else(|| unseen(format!("an earlier probe made no {what}")), Ok)
    }
}

/// Runs the 26 probes in order.
pub(crate) async fn run(wire: &Wire) -> Vec<Checked> {
    let mut state = State::default();
    let state = &mut state;
    vec![
        discovery(wire).await,
        agent_card(wire).await,
        core_lists(wire).await,
        workspace(wire, state).await,
        session(wire, state).await,
        messages(wire, state).await,
        task(wire, state).await,
        artifact(wire, state).await,
        events(wire).await,
        other_reads(wire, state).await,
        session_stream(wire, state).await,
        task_stream(wire, state).await,
        state_machine(wire, state).await,
        cancel(wire, state).await,
        same_body(wire, state).await,
        different_body(wire, state).await,
        wire.get("/v1/tasks")
            .send()
            .await
            .and_then(|answer| answer.want(&[200])),
        no_credential(wire).await,
        bad_version(wire).await,
        deterministic(wire, state).await,
        resume(wire, state).await,
        receipts(wire, state).await,
        verification(wire, state).await,
        vaults(wire, state).await,
        outcomes(wire, state).await,
        webhooks(wire).await,
    ]
}

fn object(answer: &Answer, statuses: &[u16], kind: &str) -> Result<Value, Miss> {
    let value = answer.value_of(statuses)?;
    let holds = text(&value, "object") == kind && !text(&value, "id").is_empty();
    need(
        holds,
        format!("{}: a {kind} with `id`", answer.label),
        show(&value),
    )?;
    Ok(value)
}

fn list(answer: &Answer) -> Result<Value, Miss> {
    let value = answer.value_of(&[200])?;
    let holds = at(&value, "data").is_array() && at(&value, "object").is_string();
    need(
        holds,
        format!("{}: `object` and `data`", answer.label),
        show(&value),
    )?;
    Ok(value)
}

fn prompt() -> Value {
    json!({"input": message("conformance probe")})
}

async fn discovery(wire: &Wire) -> Checked {
    discovery_members(&wire.get("/v1").anonymous().send().await?.value_of(&[200])?)
}

async fn agent_card(wire: &Wire) -> Checked {
    let card = wire
        .get("/v1/agent-card")
        .anonymous()
        .send()
        .await?
        .value_of(&[200])?;
    // The contract has the longer word and the suite the shorter one: no server has both.
    let by_contract = text(&card, "object") == "harn_agent_card" && !wire.published;
    need(
        by_contract || text(&card, "object") == "agent_card",
        "`object` `agent_card`",
        show(at(&card, "object")),
    )?;
    for member in ["id", "name", "protocol_version"] {
        need(
            at(&card, member).is_string(),
            format!("a string `{member}`"),
            show(at(&card, member)),
        )?;
    }
    for member in ["interfaces", "skills"] {
        need(
            at(&card, member).is_array(),
            format!("a list `{member}`"),
            show(at(&card, member)),
        )?;
    }
    match by_contract {
        false => Ok(()),
        true => Err(Miss::Differs(
            "`object` is `harn_agent_card`, as the contract says; `card_object = \"agent_card\"` makes it the suite's word"
                .to_owned(),
        )),
    }
}

async fn core_lists(wire: &Wire) -> Checked {
    for path in [
        "/v1/tasks",
        "/v1/sessions",
        "/v1/artifacts",
        "/v1/events",
        "/v1/outcomes",
    ] {
        list(&wire.get(path).send().await?)?;
    }
    Ok(())
}

async fn workspace(wire: &Wire, state: &mut State) -> Checked {
    let name = wire.fresh("suite");
    let body = json!({"name": name, "root": format!("harn://conformance/{name}")});
    let made = object(
        &wire.post("/v1/workspaces", &body).send().await?,
        &[200, 201],
        "workspace",
    )?;
    let id = text(&made, "id").to_owned();
    state.workspace = Some(id.clone());
    let patch = wire
        .patch(
            format!("/v1/workspaces/{id}"),
            &json!({"metadata": {"suite": true}}),
        )
        .send()
        .await?;
    patch.want(&[200, 501])
}

async fn session(wire: &Wire, state: &mut State) -> Checked {
    let workspace = State::of(&state.workspace, "workspace")?;
    let body = json!({"workspace_id": workspace, "initial_messages": [message("hello")]});
    let made = object(
        &wire.post("/v1/sessions", &body).send().await?,
        &[200, 201],
        "session",
    )?;
    let id = text(&made, "id").to_owned();
    state.session = Some(id.clone());
    let body = json!({"summary": "a summary", "metadata": {"suite": true}});
    wire.patch(format!("/v1/sessions/{id}"), &body)
        .send()
        .await?
        .want(&[200, 501])
}

async fn messages(wire: &Wire, state: &State) -> Checked {
    let path = format!(
        "/v1/sessions/{}/messages",
        State::of(&state.session, "session")?
    );
    let made = wire
        .post(&path, &json!({"message": message("probe")}))
        .send()
        .await?;
    let made = object(&made, &[200, 201], "message")?;
    object(
        &wire
            .get(format!("/v1/messages/{}", text(&made, "id")))
            .send()
            .await?,
        &[200],
        "message",
    )?;
    list(&wire.get(&path).send().await?).map(drop)
}

async fn task(wire: &Wire, state: &mut State) -> Checked {
    let session = State::of(&state.session, "session")?;
    let made = wire
        .post(format!("/v1/sessions/{session}/tasks"), &prompt())
        .send()
        .await?;
    let made = object(&made, &[200, 202], "task")?;
    let id = text(&made, "id").to_owned();
    state.task = Some(id.clone());
    object(
        &wire.get(format!("/v1/tasks/{id}")).send().await?,
        &[200],
        "task",
    )?;
    list(&wire.get(format!("/v1/tasks/{id}/events")).send().await?)?;
    wire.post(format!("/v1/tasks/{id}/cancel"), &json!({}))
        .send()
        .await?
        .want(&[200, 409, 422])
}

async fn artifact(wire: &Wire, state: &State) -> Checked {
    let session = State::of(&state.session, "session")?;
    let body = json!({"kind": "log", "mime_type": "text/plain", "visibility": "public", "uri": "harn://conformance/artifact",
        "sha256": "0f".repeat(32), "session_id": session});
    let made = object(
        &wire.post("/v1/artifacts", &body).send().await?,
        &[200, 201],
        "artifact",
    )?;
    object(
        &wire
            .get(format!("/v1/artifacts/{}", text(&made, "id")))
            .send()
            .await?,
        &[200],
        "artifact",
    )
    .map(drop)
}

async fn events(wire: &Wire) -> Checked {
    let listed = list(&wire.get("/v1/events").send().await?)?;
    let Some(first) = data(&listed).first() else {
        return fail("some events", "none");
    };
    let read = object(
        &wire
            .get(format!("/v1/events/{}", text(first, "id")))
            .send()
            .await?,
        &[200],
        "event",
    )?;
    need(
        at(&read, "event").is_string(),
        "a string `event`",
        show(&read),
    )
}

async fn other_reads(wire: &Wire, state: &State) -> Checked {
    for path in [
        "/v1/personas",
        "/v1/connectors",
        "/v1/skills",
        "/v1/quotas",
        "/v1/memories",
    ] {
        wire.get(path).send().await?.want(&[200, 501])?;
    }
    let session = State::of(&state.session, "session")?;
    let body = json!({"kind": "session", "base_ref": "main"});
    let made = wire
        .post(format!("/v1/sessions/{session}/branches"), &body)
        .send()
        .await?;
    if made.status == 501 {
        return Ok(());
    }
    let made = object(&made, &[200, 201], "branch")?;
    object(
        &wire
            .get(format!("/v1/branches/{}", text(&made, "id")))
            .send()
            .await?,
        &[200],
        "branch",
    )
    .map(drop)
}

/// Judges the first frame as a reader does that splits at an empty line and knows no comments.
fn first_frame(body: &[u8]) -> Checked {
    let shown = short(&String::from_utf8_lossy(body).escape_debug().to_string());
    let Some(end) = find(body, b"\n\n") else {
        return fail("a frame within 5 s", shown);
    };
    let block = String::from_utf8_lossy(body.get(..end).unwrap_or_default()).into_owned();
    let field = |name: &str| {
        block
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .map(str::trim)
    };
    let parsed: Value = field("data:")
        .and_then(|data| serde_json::from_str(data).ok())
        .unwrap_or_default();
    let whole = field("id:").is_some()
        && field("event:").is_some()
        && text(&parsed, "object") == "event"
        && !text(&parsed, "id").is_empty()
        && !text(&parsed, "event").is_empty()
        && at(&parsed, "sequence").is_u64();
    need(
        whole,
        "a frame with `id`, `event` and an event in `data`",
        shown,
    )
}

async fn session_stream(wire: &Wire, state: &State) -> Checked {
    let session = State::of(&state.session, "session")?;
    let path = format!("/v1/sessions/{session}/events/stream");
    let append = async {
        sleep(Duration::from_millis(100)).await;
        wire.append(session, "while streaming").await
    };
    let (body, appended) = tokio::join!(
        super::sse::raw_beginning(wire, &path, Duration::from_secs(5)),
        append
    );
    first_frame(&body?)?;
    appended.map(drop)
}

async fn task_stream(wire: &Wire, state: &State) -> Checked {
    let session = State::of(&state.session, "session")?;
    let made = wire
        .post(format!("/v1/sessions/{session}/tasks"), &prompt())
        .send()
        .await?;
    let made = object(&made, &[200, 202], "task")?;
    let path = format!("/v1/tasks/{}/stream", text(&made, "id"));
    first_frame(&super::sse::raw_beginning(wire, &path, Duration::from_secs(5)).await?)
}

async fn state_machine(wire: &Wire, state: &State) -> Checked {
    let session = State::of(&state.session, "session")?;
    let made = wire
        .post(format!("/v1/sessions/{session}/tasks"), &prompt())
        .send()
        .await?;
    let made = object(&made, &[200, 202], "task")?;
    let id = text(&made, "id");
    let mut before = text(&made, "status").to_owned();
    let deadline = Instant::now() + Duration::from_secs(10);
    while !TERMINAL.contains(&before.as_str()) && Instant::now() < deadline {
        sleep(Duration::from_millis(250)).await;
        let read = object(
            &wire.get(format!("/v1/tasks/{id}")).send().await?,
            &[200],
            "task",
        )?;
        let now = text(&read, "status").to_owned();
        need(
            now == before || allowed(&before, &now),
            "a listed transition",
            format!("{before} and then {now}"),
        )?;
        before = now;
    }
    let events = list(&wire.get(format!("/v1/tasks/{id}/events")).send().await?)?;
    let holds = !data(&events).is_empty()
        && data(&events)
            .iter()
            .all(|event| at(event, "sequence").is_u64());
    need(holds, "events with `sequence`", show(&events))
}

async fn cancel(wire: &Wire, state: &State) -> Checked {
    let session = State::of(&state.session, "session")?;
    let made = wire
        .post(format!("/v1/sessions/{session}/tasks"), &prompt())
        .send()
        .await?;
    let made = object(&made, &[200, 202], "task")?;
    let path = format!("/v1/tasks/{}", text(&made, "id"));
    wire.post(format!("{path}/cancel"), &json!({}))
        .send()
        .await?
        .want(&[200, 409, 422])?;
    let read = object(&wire.get(path).send().await?, &[200], "task")?;
    let holds = text(&read, "status") != "CANCELED" || at(&read, "completed_at").is_null();
    need(holds, "no `completed_at` on a CANCELED task", show(&read))
}

async fn same_body(wire: &Wire, state: &State) -> Checked {
    let path = format!(
        "/v1/sessions/{}/tasks",
        State::of(&state.session, "session")?
    );
    let key = wire.fresh("suite");
    let first = object(
        &wire.post(&path, &prompt()).once(&key).send().await?,
        &[200, 202],
        "task",
    )?;
    let again = object(
        &wire.post(&path, &prompt()).once(&key).send().await?,
        &[200, 202],
        "task",
    )?;
    need(
        at(&first, "id") == at(&again, "id"),
        format!("task {}", at(&first, "id")),
        show(at(&again, "id")),
    )
}

async fn different_body(wire: &Wire, state: &State) -> Checked {
    let path = format!(
        "/v1/sessions/{}/tasks",
        State::of(&state.session, "session")?
    );
    let key = wire.fresh("suite");
    object(
        &wire.post(&path, &prompt()).once(&key).send().await?,
        &[200, 202],
        "task",
    )?;
    let other = json!({"input": message("another body")});
    wire.post(&path, &other)
        .once(&key)
        .send()
        .await?
        .refused(409, "idempotency_key_reused")
        .map(drop)
}

async fn no_credential(wire: &Wire) -> Checked {
    let answer = wire.get("/v1/tasks").anonymous().send().await?;
    let code = answer
        .value()
        .map(|body| text(&body, "error.code").to_owned())
        .unwrap_or_default();
    let holds = [401, 403].contains(&answer.status)
        && ["unauthenticated", "permission_denied"].contains(&code.as_str());
    need(holds, "401 or 403 with its code", answer.found())?;
    need(
        !answer.body_text().contains(&wire.key),
        "no key in the answer",
        answer.found(),
    )
}

async fn bad_version(wire: &Wire) -> Checked {
    let answer = wire
        .get("/v1/tasks")
        .version(Some("agents-protocol-1900-01-01"))
        .send()
        .await?;
    answer
        .refused(426, "unsupported_protocol_version")
        .map(drop)
}

async fn deterministic(wire: &Wire, state: &State) -> Checked {
    if !wire.claims.replay {
        return unseen("the server does not advertise replay");
    }
    let path = format!("/v1/tasks/{}/events", State::of(&state.task, "task")?);
    let (one, two) = (
        wire.get(&path).send().await?.value_of(&[200])?,
        wire.get(&path).send().await?.value_of(&[200])?,
    );
    need(one == two, "equal reads", show(&two))
}

async fn resume(wire: &Wire, state: &State) -> Checked {
    let path = format!("/v1/tasks/{}/events", State::of(&state.task, "task")?);
    let events = list(&wire.get(&path).send().await?)?;
    let Some(first) = data(&events).first() else {
        return fail("some events", "none");
    };
    list(
        &wire
            .get(format!("{path}?after_event_id={}", text(first, "id")))
            .send()
            .await?,
    )
    .map(drop)
}

async fn receipts(wire: &Wire, state: &mut State) -> Checked {
    if !wire.claims.receipts {
        return unseen("the server does not advertise receipts");
    }
    let listed = list(
        &wire
            .get(format!(
                "/v1/tasks/{}/receipts",
                State::of(&state.task, "task")?
            ))
            .send()
            .await?,
    )?;
    let Some(first) = data(&listed).first() else {
        return fail("a receipt", "none");
    };
    let id = text(first, "id").to_owned();
    let read = object(
        &wire.get(format!("/v1/receipts/{id}")).send().await?,
        &[200],
        "receipt",
    )?;
    state.receipt = Some(id);
    need(
        at(&read, "format").is_string(),
        "a string `format`",
        show(&read),
    )
}

async fn verification(wire: &Wire, state: &State) -> Checked {
    if !wire.claims.receipts {
        return unseen("the server does not advertise receipts");
    }
    let path = format!(
        "/v1/receipts/{}/verify",
        State::of(&state.receipt, "receipt")?
    );
    let verified = wire.post(path, &json!({})).send().await?.value_of(&[200])?;
    let holds = at(&verified, "valid").is_boolean() && at(&verified, "checked_at").is_string();
    need(holds, "`valid` and `checked_at`", show(&verified))
}

async fn vaults(wire: &Wire, state: &State) -> Checked {
    let body = json!({"workspace_id": State::of(&state.workspace, "workspace")?, "provider": "conformance", "capabilities": ["read"]});
    let made = wire.post("/v1/vaults", &body).send().await?;
    if made.status == 501 {
        return unseen("the server has no vaults");
    }
    let value = object(&made, &[200, 201], "vault")?;
    let read = wire
        .get(format!("/v1/vaults/{}", text(&value, "id")))
        .send()
        .await?;
    object(&read, &[200], "vault")?;
    let both = made.body_text() + &read.body_text();
    let leak = super::extended::SECRET_WORDS
        .iter()
        .find(|word| both.contains(**word));
    need(leak.is_none(), "no secret material", format!("{leak:?}"))
}

async fn outcomes(wire: &Wire, state: &State) -> Checked {
    let listed = list(&wire.get("/v1/outcomes").send().await?)?;
    let id = match data(&listed).first() {
        Some(first) => text(first, "id").to_owned(),
        None => {
            let task = wire.task(State::of(&state.task, "task")?).await?;
            text(&task, "outcome_id").to_owned()
        }
    };
    let read = object(
        &wire.get(format!("/v1/outcomes/{id}")).send().await?,
        &[200],
        "outcome",
    )?;
    need(
        at(&read, "status").is_string(),
        "a string `status`",
        show(&read),
    )
}

async fn webhooks(wire: &Wire) -> Checked {
    let listed = list(&wire.get("/v1/connectors").send().await?)?;
    let hooked = data(&listed).iter().find(|connector| {
        let kinds = at(connector, "event_kinds").as_array();
        !at(connector, "webhook").is_null()
            || kinds.is_some_and(|kinds| {
                kinds
                    .iter()
                    .any(|kind| kind.as_str().is_some_and(|kind| kind.contains("webhook")))
            })
    });
    let Some(connector) = hooked else {
        return unseen("no connector with a webhook is listed");
    };
    let holds = text(connector, "object") == "connector" && at(connector, "event_kinds").is_array();
    need(holds, "a connector with `event_kinds`", show(connector))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: &str = "id: e\nevent: a\ndata: {\"object\":\"event\",\"id\":\"e\",\"event\":\"a\",\"sequence\":1}\n\n";

    #[test]
    fn the_first_frame_must_be_an_event_with_line_feeds() {
        assert_eq!(first_frame(FRAME.as_bytes()), Ok(()));
        for bad in [
            format!(": hello\n\n{FRAME}"),
            FRAME.replace('\n', "\r\n"),
            format!("retry: 5\n\n{FRAME}"),
            String::new(),
        ] {
            assert!(first_frame(bad.as_bytes()).is_err(), "{bad:?}");
        }
    }
}
