//! AP-PRIV.

use serde_json::json;

use crate::fixture::{Server, id, key, refused};

#[tokio::test]
async fn ap_priv_01_02_parts_are_shown_by_scope() {
    let server = Server::start().await;
    let api = server.client();
    let session = api.session().await;
    let part = |text: &str, visibility: &str| json!({"type": "text", "text": text, "visibility": visibility});
    let parts = [
        part("open-4711", "public"),
        part("inner-4711", "internal"),
        part("proof-4711", "receipt_only"),
    ];
    let body = json!({"message": {"role": "user", "parts": parts}});
    let (_, seen) = api
        .post(&format!("/v1/sessions/{session}/messages"), body)
        .await;
    assert_eq!(
        seen["parts"][1]["text"], "inner-4711",
        "ann may read internal content"
    );
    server
        .add_key(key(
            "rk_bob",
            "bob",
            &["sessions:read", "events:read", "tasks:read"],
            None,
        ))
        .await;
    let bob = server.client_with("rk_bob");
    let path = format!("/v1/messages/{}", id(&seen));
    let (_, narrow) = bob.get(&path).await;
    assert_eq!(narrow["parts"][0]["text"], "open-4711");
    for reader in [&narrow["parts"][1], &narrow["parts"][2], &seen["parts"][2]] {
        assert_eq!(reader["redacted"], true);
        assert_eq!(reader["type"], "text");
        assert!(
            reader["visibility"].is_string() && reader["reason"].is_string(),
            "AP-PRIV-03"
        );
        assert_eq!(reader.get("text"), None);
    }
    let task = json!({"session_id": session, "input": {"role": "user", "parts": parts}});
    let (_, task) = api.post("/v1/tasks", task).await;
    for path in [
        path,
        format!("/v1/sessions/{session}/messages"),
        format!("/v1/sessions/{session}/events?limit=200"),
        format!("/v1/tasks/{}", id(&task)),
        format!("/v1/tasks/{}/stream", id(&task)),
    ] {
        let text = bob.text(&path).await;
        assert!(text.contains("open-4711"), "{path}");
        assert!(
            !text.contains("inner-4711") && !text.contains("proof-4711"),
            "{path}"
        );
        assert!(
            !api.text(&path).await.contains("proof-4711"),
            "{path}: nobody sees what only receipts prove"
        );
    }
}

#[tokio::test]
async fn artifacts_that_are_not_public_keep_their_bytes() {
    let server = Server::start().await;
    let api = server.client();
    server
        .add_key(key("rk_bob", "bob", &["artifacts:read"], None))
        .await;
    let bob = server.client_with("rk_bob");
    for (visibility, for_bob, for_ann) in [
        ("public", 200, 200),
        ("internal", 403, 200),
        ("receipt_only", 404, 404),
    ] {
        let body =
            json!({"kind": "log", "mime_type": "application/json", "visibility": visibility});
        let (_, artifact) = api.post("/v1/artifacts", body).await;
        let path = format!("/v1/artifacts/{}/content", id(&artifact));
        assert_eq!(api.send(api.request("PUT", &path).body("{}")).await.0, 200);
        assert_eq!(bob.get(&path).await.0, for_bob, "{visibility}");
        assert_eq!(api.get(&path).await.0, for_ann, "{visibility}");
    }
    refused(
        &bob.get("/v1/artifacts/artifact_x/content").await,
        404,
        "resource_not_found",
        None,
    );
}
