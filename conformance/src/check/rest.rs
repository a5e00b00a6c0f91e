//! REST as a transport: AP-REST.

use serde_json::json;

use crate::json::text;
use crate::miss::{Checked, all_but, need};
use crate::registry::{Check, ELSEWHERE, Row, row};
use crate::scenario::{artifact_body, message, task_body};
use crate::wire::{Call, Wire};

pub(crate) const ROWS: &[Row] = &[
    row!("AP-REST-01", M, "REST covers what the protocol lists", Now coverage),
    row!("AP-REST-02", M, "HTTPS, or plain HTTP on loopback", = ELSEWHERE),
    row!("AP-REST-03", M, "writes accept `Idempotency-Key`", Now keys),
    row!("AP-REST-04", M, "optional bodies may be absent", Now empty_bodies),
    row!("AP-REST-05", M, "malformed, duplicate and mistyped members are refused", Now malformed),
    row!("AP-REST-06", M, "an advertised transport is implemented", = Check::Derived(super::card::transports)),
];

async fn coverage(wire: &Wire) -> Checked {
    let session = wire.session().await?;
    let closing = wire.session().await?;
    let note = wire.append(&session, "covered").await?;
    let task = wire.completed_in(&session).await?;
    let (task, message_id) = (text(&task, "id"), text(&note, "id"));
    let reads = [
        "/v1".to_owned(),
        "/v1/agent-card".to_owned(),
        "/v1/personas".to_owned(),
        "/v1/workspaces".to_owned(),
        "/v1/sessions".to_owned(),
        format!("/v1/sessions/{session}"),
        "/v1/tasks".to_owned(),
        format!("/v1/tasks/{task}"),
        format!("/v1/sessions/{session}/branches"),
        format!("/v1/sessions/{session}/messages"),
        format!("/v1/messages/{message_id}"),
        "/v1/artifacts".to_owned(),
        "/v1/events".to_owned(),
        format!("/v1/sessions/{session}/events"),
        format!("/v1/tasks/{task}/events"),
        format!("/v1/tasks/{task}/receipts"),
        "/v1/memories".to_owned(),
        "/v1/connectors".to_owned(),
        "/v1/skills".to_owned(),
        "/v1/outcomes".to_owned(),
        "/v1/quotas".to_owned(),
    ];
    let workspace = json!({"workspace_id": wire.home});
    let writes = [
        wire.post("/v1/sessions", &workspace),
        wire.post(
            format!("/v1/sessions/{session}/messages"),
            &json!({"message": message("covered")}),
        ),
        wire.post_empty(format!("/v1/sessions/{session}/fork")),
        wire.post(
            format!("/v1/sessions/{session}/truncate"),
            &json!({"keep_first": 1}),
        ),
        wire.post_empty(format!("/v1/sessions/{closing}/close")),
        wire.post(format!("/v1/sessions/{session}/tasks"), &task_body(None)),
        wire.post_empty(format!("/v1/tasks/{task}/cancel")),
        wire.post("/v1/artifacts", &artifact_body(&session)),
    ];
    let mut absent = Vec::new();
    for call in reads.into_iter().map(|path| wire.get(path)).chain(writes) {
        let answer = call.send().await?;
        if [404, 405, 501].contains(&answer.status) {
            absent.push(format!("{} {}", answer.label, answer.status));
        }
    }
    need(
        absent.is_empty(),
        "an answer from every listed route",
        absent.join(", "),
    )
}

async fn keys(wire: &Wire) -> Checked {
    let session = wire.session().await?;
    let workspace = wire.workspace().await;
    wire.append(&session, "first").await?;
    let mut calls: Vec<Call<'_>> = vec![
        wire.post("/v1/sessions", &json!({"workspace_id": wire.home})),
        wire.patch(format!("/v1/sessions/{session}"), &json!({"summary": "a summary"})),
        wire.post(format!("/v1/sessions/{session}/messages"), &json!({"message": message("second")})),
        wire.post(format!("/v1/sessions/{session}/tasks"), &task_body(None)),
        wire.post("/v1/artifacts", &artifact_body(&session)),
        wire.post(format!("/v1/sessions/{session}/branches"), &json!({"kind": "session", "base_ref": "main"})),
        wire.post_empty(format!("/v1/sessions/{session}/fork")),
        wire.post(format!("/v1/sessions/{session}/truncate"), &json!({"keep_first": 1})),
        wire.post("/v1/vaults", &json!({"workspace_id": wire.home, "provider": "conformance", "capabilities": ["read"]})),
    ];
    if let Ok(workspace) = &workspace {
        calls.push(wire.patch(
            format!("/v1/workspaces/{}", text(workspace, "id")),
            &json!({"metadata": {"a": 1}}),
        ));
        let body = json!({"name": wire.fresh("keyed"), "root": "harn://conformance/keyed"});
        calls.push(wire.post("/v1/workspaces", &body));
    }
    if let Ok(held) = wire.reach("hold", "WORKING").await {
        calls.push(wire.post_empty(format!("/v1/tasks/{}/cancel", text(&held, "id"))));
    }
    let closing = wire.session().await?;
    calls.push(wire.post_empty(format!("/v1/sessions/{closing}/close")));
    let mut absent = Vec::new();
    for call in calls {
        let answer = call.once(&wire.fresh("key")).send().await?;
        // A route that is not there has its own id; the header is judged where there is one.
        if [404, 405, 501].contains(&answer.status) {
            absent.push(answer.label);
            continue;
        }
        need(
            (200..300).contains(&answer.status),
            format!("{} with a key: success", answer.label),
            answer.found(),
        )?;
    }
    if absent.is_empty() {
        Ok(())
    } else {
        all_but(format!("routes that are not there: {}", absent.join(", ")))
    }
}

async fn empty_bodies(wire: &Wire) -> Checked {
    let session = wire.session().await?;
    wire.post_empty(format!("/v1/sessions/{session}/fork"))
        .send()
        .await?
        .want(&[200, 201])?;
    wire.post_empty(format!("/v1/sessions/{session}/close"))
        .send()
        .await?
        .want(&[200])?;
    let task = wire.completed().await?;
    match wire.reach("hold", "WORKING").await {
        Ok(held) => wire
            .post_empty(format!("/v1/tasks/{}/cancel", text(&held, "id")))
            .send()
            .await?
            .want(&[200])?,
        Err(_) => {
            let cancel = wire.post_empty(format!("/v1/tasks/{}/cancel", text(&task, "id")));
            cancel.send().await?.want(&[200, 409, 422])?;
        }
    }
    let mut unseen = Vec::new();
    if wire.claims.replay {
        wire.post_empty(format!("/v1/tasks/{}/replay", text(&task, "id")))
            .send()
            .await?
            .want(&[202])?;
    } else {
        unseen.push("replay");
    }
    if wire.claims.receipts {
        wire.post_empty(format!("/v1/receipts/{}/verify", text(&task, "receipt_id")))
            .send()
            .await?
            .want(&[200])?;
    } else {
        unseen.push("verify");
    }
    if unseen.is_empty() {
        Ok(())
    } else {
        all_but(unseen.join(" and "))
    }
}

async fn malformed(wire: &Wire) -> Checked {
    let session = wire.session().await?;
    let path = format!("/v1/sessions/{session}/tasks");
    let input = message("hello").to_string();
    for body in [
        "{".to_owned(),
        "{\"input\":}".to_owned(),
        "\u{0}".to_owned(),
        format!("{{\"input\":{input}}} trailing"),
        format!("{{\"input\":{input},\"input\":{input}}}"),
        format!("{{\"input\":{input},\"metadata\":{{\"a\":1,\"a\":2}}}}"),
        format!("{{\"input\":{input},\"metadata\":\"text\"}}"),
        format!("{{\"input\":{input},\"persona_id\":7}}"),
        "[]".to_owned(),
        "\"text\"".to_owned(),
    ] {
        let call = wire
            .post_empty(&path)
            .bytes("application/json", body.clone());
        let answer = call.send().await?;
        answer
            .refused(400, "invalid_request")
            .map_err(|miss| with_body(miss, &body))?;
    }
    let not_text = wire.post_empty(&path).bytes(
        "application/json",
        vec![b'{', b'"', 0xff, b'"', b':', b'1', b'}'],
    );
    not_text.send().await?.refused(400, "invalid_request")?;
    let mistyped = wire
        .post(&path, &json!({"input": message("hello"), "metadata": []}))
        .send()
        .await?;
    mistyped.refused_for(400, "invalid_request", "metadata")
}

fn with_body(miss: crate::miss::Miss, body: &str) -> crate::miss::Miss {
    match miss {
        crate::miss::Miss::Fail { expected, found } => crate::miss::Miss::Fail {
            expected: format!("{expected} for {}", crate::json::short(body)),
            found,
        },
        other => other,
    }
}
