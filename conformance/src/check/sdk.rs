//! What published clients rely on, seen from the server: AP-SDK.

use std::time::Duration;

use serde_json::json;

use crate::json::{at, short, show, text};
use crate::miss::{Checked, all_but, fail, need, unseen};
use crate::raw::{Request, find};
use crate::registry::{Check, ELSEWHERE, Row, row};
use crate::scenario::{TERMINAL, task_body};
use crate::wire::{Wire, frame_data};

pub(crate) const ROWS: &[Row] = &[
    row!("AP-SDK-01", U, "the pinned version is accepted", Now version),
    row!("AP-SDK-02", U, "the default address is on loopback", = ELSEWHERE),
    row!("AP-SDK-03", U, "discovery needs no headers", Now discovery),
    row!("AP-SDK-04", U, "a stream needs no `Accept` and takes a query cursor", Now plain_stream),
    row!("AP-SDK-05", U, "every frame has JSON `data`; a stream is 200 with a body", Now json_frames),
    row!("AP-SDK-06", U, "the task stream upgrades to WebSocket", = Check::Claimed("websocket")),
    row!("AP-SDK-07", U, "errors have string `code` and `message`", Now errors),
    row!("AP-SDK-08", U, "JSON comes as `application/json`", Last content_type),
    row!("AP-SDK-09", U, "a poller meets a final or a waiting state", Now waiter),
    row!("AP-SDK-10", U, "device flow endpoints", = Check::Elsewhere("only for a server that issues tokens")),
    row!("AP-SDK-11", U, "approval webhooks are signed", = Check::Elsewhere("a client cannot receive a server's webhooks")),
    row!("AP-SDK-12", U, "harmless deviations of client examples work, others get a precise 400", Now examples),
];

async fn version(wire: &Wire) -> Checked {
    wire.get("/v1/tasks").send().await?.want(&[200])?;
    all_but("the clients themselves, see conformance/coverage.md")
}

async fn discovery(wire: &Wire) -> Checked {
    for path in ["/v1", "/v1/agent-card"] {
        let answer = Request::new("GET", path)
            .header("Connection", "close")
            .send(wire)
            .await?;
        answer.want(&[200])?;
    }
    Ok(())
}

async fn plain_stream(wire: &Wire) -> Checked {
    let task = wire.completed().await?;
    let id = text(&task, "id");
    let first = wire
        .task_events(&task)
        .await?
        .first()
        .map(|event| text(event, "id").to_owned())
        .unwrap_or_default();
    let path = format!("/v1/tasks/{id}/stream?after_event_id={first}");
    let mut exchange = Request::new("GET", &path)
        .key(wire)
        .version()
        .open(wire)
        .await?;
    exchange.head(Duration::from_secs(5)).await?;
    need(
        exchange.status == 200,
        "200 without `Accept`",
        exchange.status.to_string(),
    )?;
    let body = exchange
        .body(Duration::from_secs(5), |body| {
            find(body, b"data:").is_some()
        })
        .await;
    let body = String::from_utf8_lossy(&body);
    need(body.contains("data:"), "frames", short(&body))?;
    need(
        !body.contains(&format!("id: {first}\n")),
        "frames after the cursor",
        short(&body),
    )?;
    all_but("bytes every 30 s, see AP-SSE-09")
}

async fn json_frames(wire: &Wire) -> Checked {
    let task = wire.completed().await?;
    let path = format!("/v1/tasks/{}/stream", text(&task, "id"));
    let mut stream = wire.get(&path).stream().await?;
    need(
        stream.status == 200,
        format!("{path}: 200"),
        stream.status.to_string(),
    )?;
    let (frames, _) = stream.rest(Duration::from_millis(700)).await;
    for frame in &frames {
        need(
            frame_data(frame).is_object(),
            "a JSON object in `data`",
            short(&format!("{frame:?}")),
        )?;
    }
    let last = frames
        .last()
        .map(|frame| text(&frame_data(frame), "id").to_owned())
        .unwrap_or_default();
    let at_end = wire
        .get(&path)
        .header("Last-Event-ID", last)
        .stream()
        .await?;
    need(
        at_end.status == 200,
        "200 with nothing left to send",
        at_end.status.to_string(),
    )
}

async fn errors(wire: &Wire) -> Checked {
    for answer in super::error::refusals(wire).await? {
        let body = answer.value()?;
        let holds = at(&body, "error.code").is_string() && at(&body, "error.message").is_string();
        need(
            holds,
            format!("{}: strings `error.code` and `error.message`", answer.label),
            show(&body),
        )?;
    }
    Ok(())
}

async fn content_type(wire: &Wire) -> Checked {
    let ledger = wire.ledger();
    match ledger.wrong_content_type.first() {
        _ if ledger.answers == 0 => unseen("no JSON answer was seen"),
        None => Ok(()),
        Some(bad) => fail("`application/json` on every JSON answer", bad.clone()),
    }
}

async fn waiter(wire: &Wire) -> Checked {
    let task = wire.completed().await?;
    need(
        TERMINAL.contains(&text(&task, "status")),
        "a final state",
        show(&task),
    )?;
    wire.reach("ask", "INPUT_REQUIRED").await?;
    wire.reach("approve", "AUTH_REQUIRED").await.map(drop)
}

async fn examples(wire: &Wire) -> Checked {
    let homeless = wire.post("/v1/sessions", &json!({})).send().await?;
    need(
        (200..300).contains(&homeless.status),
        "a session without `workspace_id`: accepted",
        homeless.found(),
    )?;
    let session = homeless.value()?;
    need(
        !text(&session, "workspace_id").is_empty(),
        "the default workspace",
        show(&session),
    )?;
    let path = format!("/v1/sessions/{}/messages", text(&session, "id"));
    let bare = json!({"role": "user", "parts": [{"type": "text", "text": "bare"}]});
    for body in [
        json!({"message": bare}),
        bare,
        json!({"role": "user", "content": "bare"}),
    ] {
        let made = wire.post(&path, &body).send().await?;
        need(
            (200..300).contains(&made.status),
            format!("message {body}: accepted"),
            made.found(),
        )?;
        let part = made.value()?;
        let part = at(&part, "parts.0");
        let holds = text(part, "text") == "bare" && text(part, "visibility") == "public";
        need(holds, "a public text part", show(part))?;
    }
    let artifact = json!({"mime_type": "text/plain", "visibility": "public"});
    wire.post("/v1/artifacts", &artifact)
        .send()
        .await?
        .refused_for(400, "invalid_request", "kind")?;
    wire.post("/v1/tasks", &task_body(None))
        .send()
        .await?
        .refused_for(400, "invalid_request", "session_id")
}
