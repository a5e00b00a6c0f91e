//! AP-SESS, AP-MSG, AP-PART.

use serde_json::{Value, json};

use crate::fixture::{Server, id, refused};

fn texts(list: &Value) -> Vec<&str> {
    let data = list["data"].as_array().unwrap();
    data.iter()
        .map(|message| message["parts"][0]["text"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn ap_sess_01_02_09_sessions_begin_with_their_first_messages() {
    let server = Server::start().await;
    let api = server.client();
    let first = |text| json!({"role": "system", "content": text});
    let body = json!({
        "workspace_id": "workspace_local", "mode_id": null, "initial_messages": [first("a"), first("b")],
        "model_policy": null, "metadata": {"k": "v"},
    });
    let (status, session) = api.post("/v1/sessions", body).await;
    assert_eq!(status, 201);
    assert_eq!(session["state"], "IDLE");
    assert_eq!(session["mode_id"], "ask");
    assert_eq!(session["transcript"]["message_count"], 2);
    let path = format!("/v1/sessions/{}", id(&session));
    let (_, events) = api.get(&format!("{path}/events?limit=200")).await;
    let last = events["data"].as_array().unwrap().last().unwrap();
    assert_eq!(session["last_event_id"], last["id"]);
    let (_, messages) = api.get(&format!("{path}/messages")).await;
    assert_eq!(texts(&messages), ["a", "b"]);
    let (_, changed) = api
        .patch(
            &path,
            json!({"summary": "s", "metadata": {"k": 2}, "model_policy": null}),
        )
        .await;
    assert_eq!(changed["summary"], "s");
    assert_eq!(changed["metadata"], json!({"k": 2}));
    assert_eq!(changed.get("model_policy"), None);
}

#[tokio::test]
async fn c_33_a_session_without_a_workspace_is_local() {
    let server = Server::start().await;
    let (status, session) = server.client().post("/v1/sessions", json!({})).await;
    assert_eq!(
        (status, &session["workspace_id"]),
        (201, &json!("workspace_local"))
    );
}

#[tokio::test]
async fn ap_sess_10_the_state_follows_the_tasks() {
    let server = Server::start().await;
    let api = server.client();
    let session = api.session().await;
    let path = format!("/v1/sessions/{session}");
    let hold = api.task(&session, "hold").await;
    assert_eq!(api.get(&path).await.1["state"], "ACTIVE");
    let ask = api.task(&session, "ask").await;
    assert_eq!(ask["status"], "INPUT_REQUIRED");
    assert_eq!(api.get(&path).await.1["state"], "ACTIVE");
    api.post(&format!("/v1/tasks/{}/cancel", id(&hold)), json!({}))
        .await;
    assert_eq!(api.get(&path).await.1["state"], "PAUSED");
    api.post(&format!("/v1/tasks/{}/cancel", id(&ask)), json!({}))
        .await;
    assert_eq!(api.get(&path).await.1["state"], "IDLE");
}

/// A reference leads somewhere, wherever a message comes in: to an artifact, or to an event, which holds content too.
#[tokio::test]
async fn u22_a_part_that_refers_to_nothing_is_404() {
    let server = Server::start().await;
    let api = server.client();
    let session = api.session().await;
    let (_, events) = api.get(&format!("/v1/sessions/{session}/events")).await;
    let event = events["data"][0]["id"].clone();
    let task = id(&api.task(&session, "ask").await);
    api.wait_for(&task, "INPUT_REQUIRED").await;
    let to = |id: &Value| {
        let part = json!({"type": "artifact_ref", "artifact_id": id});
        json!({"role": "user", "parts": [part]})
    };
    let places = |id: &Value| {
        [
            (
                format!("/v1/sessions/{session}/messages"),
                json!({"message": to(id)}),
            ),
            (
                "/v1/sessions".to_owned(),
                json!({"initial_messages": [to(id)]}),
            ),
            (
                format!("/v1/sessions/{session}/tasks"),
                json!({"input": to(id)}),
            ),
            (
                format!("/v1/tasks/{task}/messages"),
                json!({"kind": "input", "message": to(id)}),
            ),
        ]
    };
    let gone = format!("{}9", event.as_str().unwrap());
    for nothing in [json!("artifact_nope"), json!("a"), json!(gone)] {
        for (path, body) in places(&nothing) {
            let got = api.post(&path, body).await;
            assert_eq!(
                (got.0, &got.1["error"]["param"]),
                (404, &json!("message.parts")),
                "{path} {nothing}: {}",
                got.1
            );
        }
    }
    for (path, body) in places(&event) {
        let (status, answer) = api.post(&path, body).await;
        assert!((200..300).contains(&status), "{path}: {answer}");
    }
}

#[tokio::test]
async fn ap_msg_01_ap_part_02_03_one_message_per_type_of_part() {
    let server = Server::start().await;
    let api = server.client();
    let session = api.session().await;
    let path = format!("/v1/sessions/{session}/messages");
    let artifact = json!({"kind": "image", "mime_type": "image/png", "visibility": "public"});
    let artifact = id(&api.post("/v1/artifacts", artifact).await.1);
    let parts = [
        json!({"type": "text", "text": "t"}),
        json!({"type": "json", "value": null}),
        json!({"type": "tool_call", "tool_call_id": "c", "name": "n", "input": {}}),
        json!({"type": "tool_result", "tool_call_id": "c", "output": [1], "status": "ok"}),
        json!({"type": "artifact_ref", "artifact_id": artifact}),
        json!({"type": "file_ref", "uri": "file://x", "mime_type": "text/plain"}),
        json!({"type": "image_ref", "artifact_id": artifact, "mime_type": "image/png"}),
        json!({"type": "hologram", "depth": 3}),
    ];
    for part in parts {
        let body = json!({"message": {"role": "tool", "parts": [part], "metadata": {"m": 1}}});
        let (status, message) = api.post(&path, body).await;
        assert_eq!(status, 201, "{part}");
        let mut expect = part.clone();
        expect["visibility"] = json!("public");
        assert_eq!(message["parts"], json!([expect]));
        assert_eq!(message["metadata"], json!({"m": 1}));
        let read = api.get(&format!("/v1/messages/{}", id(&message))).await;
        assert_eq!(read, (200, message));
        if part["type"] == "hologram" {
            continue;
        }
        for name in part
            .as_object()
            .unwrap()
            .keys()
            .filter(|name| *name != "type")
        {
            let mut broken = part.clone();
            broken.as_object_mut().unwrap().remove(name);
            let body = json!({"message": {"role": "tool", "parts": [broken]}});
            let blamed = format!("message.parts.0.{name}");
            refused(
                &api.post(&path, body).await,
                400,
                "invalid_request",
                Some(&blamed),
            );
        }
    }
    let (status, bare) = api
        .post(&path, json!({"role": "user", "content": "hi"}))
        .await;
    assert_eq!(
        (status, &bare["parts"][0]["text"]),
        (201, &json!("hi")),
        "C-32"
    );
    refused(
        &api.post(&path, json!({})).await,
        400,
        "invalid_request",
        Some("message"),
    );
}
