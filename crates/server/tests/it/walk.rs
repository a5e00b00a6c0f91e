//! Every operation of the table, asked by everybody: without a key, with a revoked or expired one, with each single scope, and for what
//! belongs to another Workspace. The table is the description that the server is built from, so that no operation is left out.

use domain::Timestamp;
use engine::SCOPES;
use reqwest::StatusCode;
use serde_json::{Value, json};
use wire::access::WorkspaceRule;
use wire::openapi::{Body, Operation, Protocol, operations};

use crate::fixture::{Api, Server, id, key};

/// A resource of each kind in the local Workspace, by the parameter that names it.
async fn resources(api: &Api) -> Vec<(&'static str, String)> {
    let session = api.session().await;
    let task = api.task(&session, "agent").await;
    let task = api.wait_for(&id(&task), "COMPLETED").await;
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let first = |list: Value| list["data"][0]["id"].as_str().unwrap().to_owned();
    api.task(&session, "approve").await;
    let body = json!({"kind": "session", "base_ref": "x"});
    let branch = api
        .post(&format!("/v1/sessions/{session}/branches"), body)
        .await;
    let body =
        json!({"kind": "file", "mime_type": "a/b", "visibility": "public", "session_id": session});
    let artifact = api.post("/v1/artifacts", body).await;
    let body = json!({"provider": "e", "capabilities": [], "workspace_id": "workspace_local"});
    let vault = api.post("/v1/vaults", body).await;
    let messages = api.get(&format!("/v1/sessions/{session}/messages")).await;
    vec![
        ("workspace_id", "workspace_local".to_owned()),
        ("task_id", id(&task)),
        ("receipt_id", text(&task["receipt_id"])),
        ("outcome_id", text(&task["outcome_id"])),
        (
            "request_id",
            first(api.get("/v1/permission-requests").await.1),
        ),
        ("event_id", first(api.get("/v1/events").await.1)),
        ("branch_id", id(&branch.1)),
        ("artifact_id", id(&artifact.1)),
        ("vault_id", id(&vault.1)),
        ("message_id", first(messages.1)),
        ("session_id", session),
    ]
}

/// Fills in a path; what has no resource gets an id that names none.
fn path(operation: &Operation, resources: &[(&str, String)]) -> String {
    let mut path = operation.path.to_owned();
    for segment in operation.path.split('/') {
        let Some(name) = segment
            .strip_prefix('{')
            .and_then(|name| name.strip_suffix('}'))
        else {
            continue;
        };
        let known = resources.iter().find(|(known, _)| *known == name);
        let id = known.map_or("none", |(_, id)| id.as_str());
        path = path.replace(segment, id);
    }
    if operation.id == "diffTasks" {
        path.push_str("?other=task_none");
    }
    path
}

/// Asks with a body that nobody takes, so that nothing is changed: who gets as far as that was let in.
async fn ask(api: &Api, operation: &Operation, path: &str) -> (u16, Value) {
    let request = api.request(&operation.method.to_uppercase(), path);
    let request = match operation.body {
        Body::Absent => request,
        _ => request.body("[not an object]"),
    };
    let response = request.send().await.unwrap();
    let status = response.status();
    let stream = response.headers().get("content-type").is_some_and(|kind| {
        kind.to_str()
            .unwrap_or_default()
            .starts_with("text/event-stream")
    });
    if stream {
        return (status.as_u16(), Value::Null);
    }
    let body = response.bytes().await.unwrap();
    let value = serde_json::from_slice(&body).unwrap_or_default();
    assert_ne!(status, StatusCode::INTERNAL_SERVER_ERROR, "{path}: {value}");
    (status.as_u16(), value)
}

fn guarded() -> impl Iterator<Item = &'static Operation> {
    operations().filter(|operation| !operation.public())
}

#[tokio::test]
async fn nobody_gets_in_without_a_valid_key() {
    let server = Server::start().await;
    let resources = resources(&server.client()).await;
    let mut revoked = key("rk_revoked", "gone", &["*"], None);
    revoked.revoked_at = Some(Timestamp::from_micros(1));
    server.add_key(revoked).await;
    let mut expired = key("rk_expired", "late", &["*", "approvals:write"], None);
    expired.expires_at = Some(Timestamp::from_micros(1));
    server.add_key(expired).await;
    let mut count = 0;
    for operation in guarded() {
        let path = path(operation, &resources);
        for wrong in ["rk_revoked", "rk_expired", "rk_unknown", ""] {
            let (status, body) = ask(&server.client_with(wrong), operation, &path).await;
            assert_eq!(status, 401, "{} {path}: {body}", operation.method);
            let is_told = match operation.protocol {
                Protocol::Agents if wire::openapi::is_governed_path(&path) => {
                    body["reason"] == "key_expired"
                }
                Protocol::Agents | Protocol::Mcp => {
                    body["error"]["details"]["reason"] == "key_expired"
                }
                // Its errors have no details.
                Protocol::Memory => body["message"] == "this API key has expired",
            };
            assert_eq!(is_told, wrong == "rk_expired", "{body}");
        }
        count += 1;
    }
    assert!(count > 105, "{count}");
    for operation in operations().filter(|operation| operation.public()) {
        let (status, _) = ask(&server.client_with(""), operation, operation.path).await;
        assert_ne!(status, 401, "{}", operation.path);
    }
}

#[tokio::test]
async fn each_scope_opens_what_the_table_says_and_nothing_else() {
    let server = Server::start().await;
    let resources = resources(&server.client()).await;
    let wild = ["*", "*:read", "*:write"];
    for (number, scope) in SCOPES.into_iter().chain(wild).enumerate() {
        let text = format!("rk_scope_{number}");
        server
            .add_key(key(&text, &format!("s{number}"), &[scope], None))
            .await;
        let api = server.client_with(&text);
        let grants = |needed: &str| match scope {
            _ if needed == "approvals:write" => scope == needed,
            "*" => true,
            "*:read" => needed.ends_with(":read") && needed != "field:read",
            "*:write" => needed.ends_with(":write"),
            _ => scope == needed,
        };
        for operation in guarded() {
            let access = operation.access;
            let may = access.all_of.iter().all(|needed| grants(needed))
                && (access.one_of.is_empty() || access.one_of.iter().any(|needed| grants(needed)));
            let path = path(operation, &resources);
            let (status, body) = ask(&api, operation, &path).await;
            let what = format!("{scope}: {} {path}: {status} {body}", operation.method);
            assert_eq!(status == 403, !may, "{what}");
        }
    }
}

#[tokio::test]
async fn what_belongs_to_another_workspace_is_not_there() {
    let server = Server::start().await;
    let admin = server.client();
    let resources = resources(&admin).await;
    let (_, workspace) = admin
        .post("/v1/workspaces", json!({"name": "b", "root": "/"}))
        .await;
    let workspace = id(&workspace);
    let scopes = ["*", "approvals:write"];
    server
        .add_key(key("rk_bound", "bob", &scopes, Some(&[&workspace])))
        .await;
    let bob = server.client_with("rk_bound");
    let mut hidden = 0;
    for operation in guarded() {
        let (path, nowhere) = (path(operation, &resources), path(operation, &[]));
        let (status, body) = ask(&bob, operation, &path).await;
        let what = format!("{} {path}: {status} {body}", operation.method);
        match operation.access.place {
            WorkspaceRule::InPath(_)
            | WorkspaceRule::Governed
            | WorkspaceRule::GovernedWorkflow => {
                assert_eq!(status, 404, "{what}");
                let (_, unknown) = ask(&bob, operation, &nowhere).await;
                let bare = |mut body: Value| {
                    body["error"]["request_id"] = Value::Null;
                    body["request_id"] = Value::Null;
                    body
                };
                assert_eq!(bare(body), bare(unknown), "{what}");
                hidden += 1;
            }
            WorkspaceRule::Every(_) => assert_eq!(status, 403, "{what}"),
            WorkspaceRule::Filtered => {
                let shown = body.to_string();
                for (name, id) in &resources {
                    let is_own = *name == "workspace_id";
                    assert!(is_own || !shown.contains(id.as_str()), "{what}");
                }
            }
            WorkspaceRule::Unplaced | WorkspaceRule::InBody => assert_ne!(status, 403, "{what}"),
        }
    }
    assert!(hidden > 48, "{hidden}");
}

#[tokio::test]
async fn a_large_body_is_not_read_before_the_scope_is_known() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let server = Server::start().await;
    server
        .add_key(key("rk_skills", "s", &["skills:read"], None))
        .await;
    for (method, path) in [
        ("POST", "/v1/tasks/import"),
        ("PUT", "/v1/artifacts/artifact_x/content"),
    ] {
        let mut stream = tokio::net::TcpStream::connect(server.address)
            .await
            .unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer rk_skills\r\n\
             Harn-Agents-Protocol-Version: agents-protocol-2026-04-25\r\nContent-Length: 100000\r\n\r\n"
        );
        // Nothing of the body is ever sent.
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = [0; 12];
        let read = stream.read_exact(&mut answer);
        let read = tokio::time::timeout(std::time::Duration::from_secs(2), read).await;
        assert!(read.is_ok(), "{path}: the server waits for the body");
        assert_eq!(&answer, b"HTTP/1.1 403", "{path}");
    }
}

#[tokio::test]
async fn a_repeated_request_gets_its_first_answer_also_when_nothing_new_is_taken() {
    let limits = engine::Limits {
        open_tasks_max: 1,
        ..crate::fixture::limits()
    };
    let store = std::sync::Arc::new(engine::port::MemoryStore::new("testlog1", [7; 32]));
    let server = Server::start_on(store, crate::fixture::config(), limits).await;
    let api = server.client();
    let session = api.session().await;
    let path = format!("/v1/sessions/{session}/tasks");
    let body = json!({"input": {}, "metadata": {"workflow": "hold"}});
    let (status, first) = api.post_with_key(&path, "once", body.clone()).await;
    assert_eq!(status, 202, "{first}");
    assert_eq!(api.post(&path, body.clone()).await.0, 429);
    let (status, again) = api.post_with_key(&path, "once", body).await;
    assert_eq!((status, id(&again)), (202, id(&first)), "{again}");
}
