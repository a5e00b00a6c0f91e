//! AP-ERR, AP-REST-05: every way to send something wrong.

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::fixture::{KEY, Server, VERSION, check_error, refused};

#[tokio::test]
async fn ap_err_01_02_unknown_paths_and_methods_have_the_shape() {
    let server = Server::start().await;
    let api = server.client();
    for path in [
        "/nowhere",
        "/v1/nowhere",
        "/v1/tasks/",
        "/v1/tasks/x/y/z",
        "/v2",
        "//",
    ] {
        refused(&api.get(path).await, 404, "resource_not_found", None);
    }
    for (method, path, allow) in [
        ("DELETE", "/v1/tasks", vec!["GET", "HEAD", "POST"]),
        ("POST", "/v1", vec!["GET", "HEAD"]),
        ("PATCH", "/v1/events/stream", vec!["GET", "HEAD"]),
        ("TRACE", "/v1/sessions/x", vec!["GET", "HEAD", "PATCH"]),
        ("FROB", "/health", vec!["GET", "HEAD"]),
    ] {
        let response = api.request(method, path).send().await.unwrap();
        assert_eq!(response.status(), 405, "{method} {path}");
        let header = response.headers()["allow"].to_str().unwrap().to_owned();
        let mut allowed: Vec<&str> = header.split(',').map(str::trim).collect();
        allowed.sort_unstable();
        assert_eq!(allowed, allow, "{method} {path}");
        let id = response.headers()["x-request-id"]
            .to_str()
            .unwrap()
            .to_owned();
        assert_eq!(response.headers()["content-type"], "application/json");
        let body: Value = response.json().await.unwrap();
        assert_eq!(body["error"]["code"], "invalid_request");
        assert_eq!(body["error"]["request_id"], id);
        check_error(405, &body);
    }
}

#[tokio::test]
async fn ap_rest_05_bodies_that_cannot_be_read() {
    let server = Server::start().await;
    let api = server.client();
    let cases: [(&[u8], &str); 11] = [
        (b"{", "cannot be read"),
        (b"nonsense", "cannot be read"),
        (b"[]", "cannot be read"),
        (b"\"text\"", "cannot be read"),
        (b"null", "cannot be read"),
        (b"{} {}", "cannot be read"),
        (b"{\"metadata\":{\"a\":1,\"a\":2}}", "duplicate"),
        (b"{\"metadata\":{\"a\":9007199254740993}}", "integer"),
        (b"{\"metadata\":{\"a\":1e999}}", "cannot be read"),
        (b"{\"metadata\":{\"a\":\"\xff\"}}", "cannot be read"),
        (b"{\"metadata\":{\"a\":\"\\ud800\"}}", "cannot be read"),
    ];
    for (body, said) in cases {
        for path in [
            "/v1/sessions",
            "/v1/workspaces",
            "/v1/tasks",
            "/v1/personas",
        ] {
            let got = api
                .send(api.request("POST", path).body(body.to_vec()))
                .await;
            refused(&got, 400, "invalid_request", None);
            let message = got.1["error"]["message"].as_str().unwrap();
            assert!(message.contains(said), "{message}");
        }
    }
    let deep = format!(
        "{{\"metadata\":{}1{}}}",
        "{\"a\":".repeat(200),
        "}".repeat(200)
    );
    let got = api
        .send(api.request("POST", "/v1/sessions").body(deep))
        .await;
    refused(&got, 400, "invalid_request", None);
}

#[tokio::test]
async fn ap_art_05_bodies_that_are_too_large() {
    let server = Server::start().await;
    let api = server.client();
    let large = json!({"metadata": {"x": "y".repeat(70_000)}});
    let got = api.post("/v1/sessions", large).await;
    refused(&got, 413, "payload_too_large", None);
    assert_eq!(got.1["error"]["details"]["bytes_max"], 64 * 1024);
    // Below the body's limit, above the member's.
    let got = api
        .post(
            "/v1/sessions",
            json!({"metadata": {"x": "y".repeat(20_000)}}),
        )
        .await;
    refused(&got, 400, "invalid_request", Some("metadata"));
}

#[tokio::test]
async fn ap_rest_05_wrong_members_are_named_with_dots() {
    let server = Server::start().await;
    let api = server.client();
    let session = api.session().await;
    let cases = [
        (
            "/v1/sessions".to_owned(),
            json!({"model_policy": {"provider": 1}}),
            "model_policy.provider",
        ),
        (
            "/v1/sessions".to_owned(),
            json!({"initial_messages": [{"role": "x", "parts": []}]}),
            "initial_messages.0.role",
        ),
        (
            format!("/v1/sessions/{session}/tasks"),
            json!({"input": {"role": "user", "parts": [{}]}}),
            "input.parts.0.type",
        ),
        (
            format!("/v1/sessions/{session}/messages"),
            json!({"message": {"role": "user", "parts": [{"type": "text", "text": 1}]}}),
            "message.parts.0.text",
        ),
        (
            "/v1/artifacts".to_owned(),
            json!({"kind": "file", "mime_type": "a/b", "visibility": "public", "sha256": "x"}),
            "sha256",
        ),
    ];
    for (path, body, param) in cases {
        refused(
            &api.post(&path, body).await,
            400,
            "invalid_request",
            Some(param),
        );
    }
}

/// Sends raw bytes and reads the whole answer.
async fn raw(server: &Server, request: &[u8]) -> String {
    let mut socket = TcpStream::connect(server.address).await.unwrap();
    socket.write_all(request).await.unwrap();
    let mut answer = Vec::new();
    let reading = socket.read_to_end(&mut answer);
    tokio::time::timeout(std::time::Duration::from_secs(5), reading)
        .await
        .unwrap()
        .unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn paths_that_are_not_utf_8_are_refused_in_shape() {
    let server = Server::start().await;
    let head = format!(
        "authorization: Bearer {KEY}\r\nharn-agents-protocol-version: {VERSION}\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    );
    for path in ["/v1/tasks/%FF", "/v1/tasks/%ff%fe/events"] {
        let answer = raw(&server, format!("GET {path} HTTP/1.1\r\n{head}").as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
        let body: Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap();
        check_error(400, &body);
    }
    // An id may be written with escapes: it is the same resource.
    let answer = raw(
        &server,
        format!("GET /v1/workspaces/%77orkspace_local HTTP/1.1\r\n{head}").as_bytes(),
    )
    .await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test]
async fn odd_ids_name_nothing() {
    let server = Server::start().await;
    let api = server.client();
    let long = "x".repeat(5_000);
    for id in [
        "task_x",
        "x",
        "%00",
        "..%2F..",
        "task_%E2%82%AC",
        long.as_str(),
    ] {
        refused(
            &api.get(&format!("/v1/tasks/{id}")).await,
            404,
            "resource_not_found",
            None,
        );
        refused(
            &api.get(&format!("/v1/events/{id}")).await,
            404,
            "resource_not_found",
            None,
        );
        let cancel = api.post(&format!("/v1/tasks/{id}/cancel"), json!({})).await;
        refused(&cancel, 404, "resource_not_found", None);
    }
}

#[tokio::test]
async fn requests_that_take_too_long_are_given_up() {
    let mut hasty = crate::fixture::config();
    hasty.request_timeout = std::time::Duration::from_millis(200);
    let server = Server::start_with(hasty).await;
    // A body that never comes.
    let head = format!(
        "POST /v1/sessions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {KEY}\r\nharn-agents-protocol-version: {VERSION}\r\ncontent-length: 10\r\nconnection: close\r\n\r\n{{"
    );
    let answer = raw(&server, head.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 504"), "{answer}");
    assert!(answer.contains("deadline_exceeded"));
}
