//! MCP servers over HTTP that fail: a small server of ours answers `tools/call` as the tool's name says.

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Response};
use effects::Outside;
use futures_util::StreamExt;
use runs::workflow::{EffectKind, EffectOutcome};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::fixture::{assert_error, outside, outside_with, perform, perform_with_secrets, vault};

/// Lets a call of `slow` go on.
static GO_ON: tokio::sync::Notify = tokio::sync::Notify::const_new();
/// Says that a call of `slow` has come.
static HAS_COME: tokio::sync::Notify = tokio::sync::Notify::const_new();

async fn start() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let app = Router::new().fallback(answer);
    tokio::spawn(async move { axum::serve(listener, app).await });
    url
}

fn whole(status: u16, kind: &str, body: impl Into<Body>) -> Response<Body> {
    Response::builder()
        .status(status)
        .header("content-type", kind)
        .body(body.into())
        .unwrap()
}

async fn answer(headers: HeaderMap, body: Bytes) -> Response<Body> {
    let request: Value = serde_json::from_slice(&body).unwrap_or_default();
    let id = &request["id"];
    let result = |result: Value| {
        let message = json!({"jsonrpc": "2.0", "id": id, "result": result});
        whole(200, "application/json", message.to_string())
    };
    let long = std::iter::repeat_with(|| Ok::<_, std::io::Error>("x".repeat(10_000)));
    match request["method"].as_str() {
        Some("initialize") => result(json!({
            "protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
            "serverInfo": {"name": "fake", "version": "1"},
        })),
        Some("tools/call") => match request["params"]["name"].as_str().unwrap_or_default() {
            "headers" => {
                let seen = |name: &str| {
                    headers
                        .get(name)
                        .map(|value| value.to_str().unwrap().to_owned())
                };
                let seen = format!(
                    "{:?} {:?} {:?}",
                    seen("authorization"),
                    seen("x-plain"),
                    seen("x-key")
                );
                result(json!({"content": [{"type": "text", "text": seen}]}))
            }
            "hang" => std::future::pending().await,
            "slow" => {
                HAS_COME.notify_one();
                GO_ON.notified().await;
                result(json!({"content": [{"type": "text", "text": "at last"}]}))
            }
            "down" => whole(503, "text/plain", "down"),
            "html" => whole(200, "text/html", "<p>"),
            "broken" => whole(200, "application/json", "{\"jsonrpc\""),
            "long_json" => whole(
                200,
                "application/json",
                Body::from_stream(futures_util::stream::iter(long)),
            ),
            "long_events" => {
                let head = futures_util::stream::iter([Ok("data: ".to_owned())]);
                let body = head.chain(futures_util::stream::iter(long));
                whole(200, "text/event-stream", Body::from_stream(body))
            }
            "hidden_long_events" => {
                let head = futures_util::stream::iter([Ok("id: 1\ndata: {}\n\n".to_owned())]);
                let line = |text: std::io::Result<String>| text.map(|text| format!(": {text}\n\n"));
                let body = head.chain(futures_util::stream::iter(long.map(line)));
                whole(200, "text/event-stream", Body::from_stream(body))
            }
            "pretends" => {
                let error = json!({"code": -32000, "message": "the server sent more than 50000 bytes at once",
                    "data": "mcp_output_too_large"});
                let message = json!({"jsonrpc": "2.0", "id": id, "error": error});
                whole(200, "application/json", message.to_string())
            }
            "no" => {
                let error = json!({"code": -32602, "message": "no such tool"});
                let message = json!({"jsonrpc": "2.0", "id": id, "error": error});
                whole(400, "application/json", message.to_string())
            }
            _ => {
                let message = json!({"jsonrpc": "2.0", "id": id, "result": {"content": []}});
                whole(200, "text/event-stream", format!("data: {message}\n\n"))
            }
        },
        Some(method) if method.starts_with("notifications/") => whole(202, "text/plain", ""),
        Some(_) => {
            let error = json!({"code": -32601, "message": "no such method"});
            whole(
                200,
                "application/json",
                json!({"jsonrpc": "2.0", "id": id, "error": error}).to_string(),
            )
        }
        None => whole(405, "text/plain", ""),
    }
}

fn server(url: &str, more: &str) -> String {
    format!("[[mcp_servers]]\nid = \"fake\"\nurl = \"{url}\"\noutput_bytes_max = 50000\n{more}\n")
}

async fn call(outside: &Outside, tool: &str) -> EffectOutcome {
    let request = json!({"server": "fake", "tool": tool, "arguments": {}});
    perform(outside, EffectKind::McpTool, request).await
}

#[tokio::test]
async fn each_failure_has_its_word_and_the_next_call_works() {
    let outside = outside(&server(&start().await, "timeout_ms = 1500"));
    for (tool, code) in [
        ("hang", "mcp_timeout"),
        ("down", "mcp_unavailable"),
        ("html", "mcp_protocol_error"),
        ("broken", "mcp_protocol_error"),
        ("no", "mcp_protocol_error"),
        ("long_json", "mcp_output_too_large"),
        ("long_events", "mcp_output_too_large"),
    ] {
        let performed = call(&outside, tool).await;
        assert_error(&performed, code);
        // Something was sent all the same.
        assert_eq!(performed.observed.unwrap().network_egress.len(), 1);
        let performed = call(&outside, "fine").await;
        assert!(performed.ok, "after {tool}: {performed:?}");
    }
}

/// A call is judged by its own answer alone.
#[tokio::test]
async fn a_flood_spoils_no_other_call_on_the_connection() {
    let outside = outside(&server(&start().await, ""));
    for flood in ["long_json", "long_events", "hidden_long_events"] {
        let slow = call(&outside, "slow");
        let beside = async {
            HAS_COME.notified().await;
            let performed = call(&outside, flood).await;
            assert_error(&performed, "mcp_output_too_large");
            assert!(call(&outside, "fine").await.ok);
            GO_ON.notify_one();
        };
        let (slow, ()) = tokio::join!(slow, beside);
        assert!(slow.ok, "beside {flood}: {slow:?}");
        assert_eq!(slow.value["content"][0]["text"], "at last");
    }
    // Only we say that it was too much.
    let performed = call(&outside, "pretends").await;
    assert_error(&performed, "mcp_protocol_error");
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unavailable() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    drop(listener);
    let performed = call(&outside(&server(&url, "")), "fine").await;
    assert_error(&performed, "mcp_unavailable");
    // Where it was looked for and why it was not found, in nobody's type names.
    let said = performed.value["message"].as_str().unwrap();
    let origin = url.strip_suffix("/mcp").unwrap();
    assert!(
        said.contains(&format!("{origin}: Connection refused")),
        "{said}"
    );
    assert!(!said.contains("::"), "{said}");
}

/// AP-PRIV-02 for keys in headers.
#[tokio::test]
async fn headers_carry_secrets_that_do_not_come_back() {
    let (_folder, vault) = vault(&[("bearer", "planted-canary"), ("key", "another-canary")]);
    let more = "headers = { X-Plain = \"plain\" }\nsecret_headers = { X-Key = \"key\" }\n\
        bearer = { secret = \"local/bearer\" }";
    let outside = outside_with(&server(&start().await, more), &vault);
    let request = json!({"server": "fake", "tool": "headers", "arguments": {}});
    let names = ["key", "local/bearer"];
    let performed =
        perform_with_secrets(&outside, EffectKind::McpTool, request.clone(), &names).await;
    assert_eq!(
        performed.value["content"][0]["text"],
        "Some(\"Bearer [redacted:secret:bearer]\") Some(\"plain\") Some(\"[redacted:secret:key]\")"
    );
    // A key that nobody has on record is not used.
    let performed = perform_with_secrets(&outside, EffectKind::McpTool, request, &["key"]).await;
    assert_error(&performed, "secret_unknown");
    let message = performed.value["message"].as_str().unwrap();
    assert!(
        message.contains("no handle of secret `local/bearer`"),
        "{message}"
    );
}
