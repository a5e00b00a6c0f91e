//! What one caller can do to others: read what is theirs, break what is stored, keep what is shared.

use std::time::{Duration, Instant};

use canon::sha256;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::fixture::{Api, Frames, Server, config, id, key, refused};

const EVERYTHING_OF_B: [&str; 10] = [
    "workspaces:read",
    "tasks:write",
    "tasks:read",
    "sessions:write",
    "artifacts:read",
    "artifacts:write",
    "events:read",
    "receipts:read",
    "internal:read",
    "sessions:read",
];

/// Two Workspaces with a key each.
async fn two_workspaces() -> (Server, Api, Api) {
    let server = Server::start().await;
    let admin = server.client();
    let mut clients = Vec::new();
    for name in ["a", "b"] {
        let (status, workspace) = admin
            .post("/v1/workspaces", json!({"name": name, "root": "/"}))
            .await;
        assert_eq!(status, 201, "{workspace}");
        let text = format!("rk_{name}_0123456789");
        let bound = [id(&workspace)];
        let bound: Vec<&str> = bound.iter().map(String::as_str).collect();
        let made = key(&text, name, &EVERYTHING_OF_B, Some(&bound));
        server.add_key(made).await;
        clients.push((server.client_with(&text), id(&workspace)));
    }
    let (b, _) = clients.pop().unwrap();
    let (a, _) = clients.pop().unwrap();
    (server, a, b)
}

async fn session(api: &Api) -> String {
    let (_, workspaces) = api.get("/v1/workspaces").await;
    let body = match workspaces["data"][0]["id"].as_str() {
        Some(workspace) => json!({"workspace_id": workspace}),
        None => json!({}),
    };
    let (status, session) = api.post("/v1/sessions", body).await;
    assert_eq!(status, 201, "{session}");
    id(&session)
}

/// Registers an Artifact with content.
async fn artifact(api: &Api, body: Value, content: &str) -> String {
    let (status, artifact) = api.post("/v1/artifacts", body).await;
    assert_eq!(status, 201, "{artifact}");
    let path = format!("/v1/artifacts/{}/content", id(&artifact));
    let request = api.request("PUT", &path).body(content.to_owned());
    let (status, answer) = api.send(request).await;
    assert_eq!(status, 200, "{answer}");
    id(&artifact)
}

/// A finished Task with an Artifact that somebody uploaded while it ran.
async fn task_with_artifact(api: &Api, session: &str) -> Value {
    let task = api.task(session, "ask").await;
    api.wait_for(&id(&task), "INPUT_REQUIRED").await;
    let body = json!({"task_id": id(&task), "kind": "other", "mime_type": "text/plain", "visibility": "public"});
    artifact(api, body, "mine").await;
    let answer = json!({"kind": "input", "message": {"role": "user", "content": "go on"}});
    let (status, sent) = api
        .post(&format!("/v1/tasks/{}/messages", id(&task)), answer)
        .await;
    assert!(status < 300, "{sent}");
    api.wait_for(&id(&task), "COMPLETED").await
}

async fn event_of(api: &Api, task: &Value, kind: &str) -> String {
    let path = format!("/v1/tasks/{}/events?limit=200", id(task));
    let (_, events) = api.get(&path).await;
    let found = events["data"].as_array().unwrap().iter();
    let mut found = found.filter(|event| event["event"] == kind);
    id(found
        .next()
        .unwrap_or_else(|| panic!("no {kind} in {events}")))
}

async fn replay(api: &Api, task: &Value, body: Value) -> Value {
    let (status, replay) = api
        .post(&format!("/v1/tasks/{}/replay", id(task)), body.clone())
        .await;
    assert_eq!(status, 202, "{body}: {replay}");
    for _ in 0..200 {
        let (_, now) = api.get(&format!("/v1/tasks/{}", id(&replay))).await;
        if ["COMPLETED", "FAILED", "CANCELED"].contains(&now["status"].as_str().unwrap()) {
            return now;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{replay} never ended");
}

fn payload(event: &str, value: Value) -> Value {
    json!({"mode": "with_overrides", "override": {
        format!("event:{event}"): {"kind": "event_payload", "visibility": "public", "value": value},
    }})
}

#[tokio::test]
async fn a_digest_in_an_override_reads_nothing_of_another_workspace() {
    let (_server, a, b) = two_workspaces().await;
    let secret = "what only workspace a may see";
    let theirs = session(&a).await;
    let body = json!({"session_id": theirs, "kind": "other", "mime_type": "text/plain", "visibility": "public"});
    artifact(&a, body, secret).await;
    let digest = sha256(secret.as_bytes()).to_string();

    let session = session(&b).await;
    let task = task_with_artifact(&b, &session).await;
    let created = event_of(&b, &task, "artifact.created").await;
    let updated = event_of(&b, &task, "artifact.updated").await;
    let named = json!({"sha256": digest, "bytes": 1});
    let mut checked = 0;
    for event in [&created, &updated] {
        let first = replay(&b, &task, payload(event, named.clone())).await;
        // What a request said once may come again in a replay of the replay, as an event of its own.
        let again = replay(&b, &first, json!({})).await;
        let other = event_of(&b, &first, "artifact.updated").await;
        let once_more = replay(&b, &first, payload(&other, json!({"x": 1}))).await;
        for replayed in [&first, &again, &once_more] {
            let path = format!("/v1/tasks/{}/bundle", id(replayed));
            let response = b.request("GET", &path).send().await.unwrap();
            let is_first = id(replayed) == id(&first);
            assert!(!is_first || response.status() == 200, "{response:?}");
            let bundle = response.text().await.unwrap();
            let content = data_encoding(secret);
            assert!(!bundle.contains(&content), "{bundle}");
            checked += 1;
        }
    }
    assert_eq!(checked, 6);
}

/// Base64, as blobs stand in a bundle.
fn data_encoding(text: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut encoded = String::new();
    for chunk in text.as_bytes().chunks(3) {
        let mut bits = 0u32;
        for index in 0..3 {
            bits = bits << 8 | u32::from(chunk.get(index).copied().unwrap_or_default());
        }
        for index in 0..=chunk.len() {
            let digit = bits >> (18 - 6 * index) & 63;
            encoded.push(char::from(DIGITS[digit as usize]));
        }
    }
    encoded
}

#[tokio::test]
async fn an_override_cannot_pass_for_a_pruned_event() {
    let server = Server::start().await;
    let api = server.client();
    let session = api.session().await;
    let task = api.task(&session, "agent").await;
    let task = api.wait_for(&id(&task), "COMPLETED").await;
    let header = json!({"pruned": true, "sha256": format!("sha256:{}", "ab".repeat(32))});
    let mut with_key = header.clone();
    with_key["effect_key"] = json!("llm:main:1");
    for kind in ["task.submitted", "agent.message", "vendor.effect_recorded"] {
        let event = event_of(&api, &task, kind).await;
        for value in [&header, &with_key] {
            let got = api
                .post(
                    &format!("/v1/tasks/{}/replay", id(&task)),
                    payload(&event, value.clone()),
                )
                .await;
            let param = format!("override.event:{event}.value");
            refused(&got, 400, "invalid_request", Some(&param));
        }
    }
}

#[tokio::test]
async fn an_override_takes_only_what_its_caller_may_read() {
    let server = Server::start().await;
    let api = server.client();
    let session = api.session().await;
    let task = api.task(&session, "agent").await;
    let task = api.wait_for(&id(&task), "COMPLETED").await;
    let answer = json!({"choices": [{"message": {"role": "assistant", "content": "canary"}}]});
    let mut artifacts = Vec::new();
    for visibility in ["public", "internal", "receipt_only"] {
        let body = json!({"session_id": session, "kind": "other", "mime_type": "application/json",
            "visibility": visibility});
        artifacts.push(artifact(&api, body, &answer.to_string()).await);
    }
    let scopes = ["tasks:write", "tasks:read", "events:read"];
    let keys: [(&str, &[&str], [u16; 3]); 4] = [
        ("no", &[], [403, 403, 403]),
        ("art", &["artifacts:read"], [202, 403, 404]),
        ("int", &["artifacts:read", "internal:read"], [202, 202, 404]),
        ("int_only", &["internal:read"], [403, 403, 403]),
    ];
    for (name, more, expected) in keys {
        let all: Vec<&str> = scopes.iter().chain(more).copied().collect();
        let text = format!("rk_{name}_0123456789");
        server.add_key(key(&text, name, &all, None)).await;
        let caller = server.client_with(&text);
        for (artifact, expected) in artifacts.iter().zip(expected) {
            let given = json!({"kind": "llm_provider_response", "artifact_id": artifact});
            let body = json!({"mode": "with_overrides", "override": {"llm:main:1": given}});
            let path = format!("/v1/tasks/{}/replay", id(&task));
            let (status, got) = caller.post(&path, body).await;
            assert_eq!(status, expected, "{name}: {got}");
        }
    }
    // Who may read it does not therefore show it to everybody.
    let given = json!({"kind": "llm_provider_response", "artifact_id": artifacts[1], "visibility": "public"});
    let body = json!({"mode": "with_overrides", "override": {"llm:main:1": given}});
    let got = api
        .post(&format!("/v1/tasks/{}/replay", id(&task)), body)
        .await;
    let param = "override.llm:main:1.visibility";
    refused(&got, 400, "invalid_request", Some(param));
}

/// F8: what the overrides of one small request name is bounded together, and looked at before it is read.
#[tokio::test]
async fn f8_what_overrides_name_is_bounded_together() {
    let mut config = config();
    config.artifact_bytes_max = 16 * 1024 * 1024;
    let server = Server::start_with(config).await;
    let api = server.client();
    let session = api.session().await;
    let task = api.task(&session, "agent").await;
    let task = api.wait_for(&id(&task), "COMPLETED").await;
    let body = json!({"session_id": session, "kind": "other", "mime_type": "application/json",
        "visibility": "public"});
    let answer = |number: usize| {
        let text = format!("{number}{}", "x".repeat(9 * 1024 * 1024));
        json!({"choices": [{"message": {"role": "assistant", "content": text}}]}).to_string()
    };
    let one = artifact(&api, body.clone(), &answer(1)).await;
    let other = artifact(&api, body, &answer(2)).await;
    let path = format!("/v1/tasks/{}/replay", id(&task));
    let named = |first: &str, second: &str| {
        let of = |artifact: &str| json!({"kind": "llm_provider_response", "artifact_id": artifact});
        json!({"mode": "with_overrides", "override": {"llm:main:1": of(first), "llm:main:2": of(second)}})
    };
    // The same one twice is read once.
    let (status, got) = api.post(&path, named(&one, &one)).await;
    assert_ne!(
        got["error"]["details"]["reason"], "overrides_too_large",
        "{status} {got}"
    );
    let (status, got) = api.post(&path, named(&one, &other)).await;
    assert_eq!(status, 422, "{got}");
    assert_eq!(
        got["error"]["details"]["reason"], "overrides_too_large",
        "{got}"
    );
}

/// A value that nests so deep.
fn nested(levels: usize) -> Value {
    (0..levels).fold(json!(1), |inner, _| json!({"a": inner}))
}

#[tokio::test]
async fn what_could_not_be_read_back_is_refused_and_not_written() {
    let server = Server::start().await;
    let api = server.client();
    let session = api.session().await;
    let done = api.task(&session, "agent").await;
    let done = api.wait_for(&id(&done), "COMPLETED").await;
    let asking = api.task(&session, "ask").await;
    api.wait_for(&id(&asking), "INPUT_REQUIRED").await;
    let (_, requests) = api.get("/v1/permission-requests").await;
    let request = id(&requests["data"][0]);
    let replay_path = format!("/v1/tasks/{}/replay", id(&done));
    let deep = |levels: usize| {
        let session_path = format!("/v1/sessions/{session}");
        let mut table = vec![
            (
                "POST",
                "/v1/tasks".to_owned(),
                json!({"session_id": session, "input": nested(levels)}),
            ),
            (
                "POST",
                "/v1/tasks".to_owned(),
                json!({"session_id": session, "input": {"goal": "x"}, "metadata": nested(levels)}),
            ),
            (
                "POST",
                "/v1/sessions".to_owned(),
                json!({"metadata": nested(levels)}),
            ),
            (
                "PATCH",
                session_path.clone(),
                json!({"metadata": nested(levels)}),
            ),
            (
                "POST",
                format!("{session_path}/fork"),
                json!({"metadata": nested(levels)}),
            ),
            (
                "POST",
                "/v1/artifacts".to_owned(),
                json!({"session_id": session, "kind": "other", "mime_type": "text/plain", "visibility": "public", "metadata": nested(levels)}),
            ),
            (
                "POST",
                "/v1/workspaces".to_owned(),
                json!({"name": "w", "root": "/", "metadata": nested(levels)}),
            ),
            (
                "POST",
                format!("{session_path}/messages"),
                json!({"role": "user", "parts": [{"type": "json", "value": nested(levels)}]}),
            ),
            (
                "POST",
                replay_path.clone(),
                json!({"metadata": nested(levels)}),
            ),
            (
                "POST",
                replay_path.clone(),
                json!({"mode": "with_overrides", "override":
                    {"llm:main:1": {"kind": "llm_provider_response", "value": nested(levels)}}}),
            ),
        ];
        table.push((
            "POST",
            format!("/v1/permission-requests/{request}/respond"),
            json!({"decision": "approve", "answer": nested(levels)}),
        ));
        table
    };
    let head = server.store_head();
    for levels in [100, 110, 122, 124, 125, 126] {
        for (method, path, body) in deep(levels) {
            let got = api.send(api.request(method, &path).json(&body)).await;
            assert_eq!(got.0, 400, "{method} {path} {levels}: {}", got.1);
            assert_eq!(got.1["error"]["code"], "invalid_request", "{path}");
            let details = &got.1["error"]["details"];
            let is_plain = got.1["error"]["message"]
                .as_str()
                .unwrap()
                .contains("recursion");
            assert!(
                details["reason"] == "nested_too_deeply" || is_plain,
                "{path} {}",
                got.1
            );
        }
    }
    assert_eq!(server.store_head(), head);
    // What is just not too deep goes all the way, through lists, workers and replays.
    for (method, path, body) in deep(90) {
        let (status, got) = api.send(api.request(method, &path).json(&body)).await;
        assert!(
            status < 300 || status == 400 || status == 422,
            "{path}: {got}"
        );
        if status == 202 {
            for _ in 0..200 {
                let (_, now) = api.get(&format!("/v1/tasks/{}", id(&got))).await;
                if now["status"] != "SUBMITTED" && now["status"] != "WORKING" {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
    for list in ["tasks", "sessions", "artifacts", "workspaces", "events"] {
        assert_eq!(
            api.get(&format!("/v1/{list}?limit=200")).await.0,
            200,
            "{list}"
        );
    }
    let (_, tasks) = api.get("/v1/tasks?limit=200").await;
    for task in tasks["data"].as_array().unwrap() {
        assert_ne!(task["status"], "WORKING", "{task}");
    }
}

#[tokio::test]
async fn a_revoked_key_ends_its_streams_within_a_second() {
    let server = Server::start().await;
    let api = server.client();
    let session = api.session().await;
    let mut reader = key("rk_reader_0123456789", "reader", &["events:read"], None);
    server.add_key(reader.clone()).await;
    let streams = server.client_with("rk_reader_0123456789");
    let mut stream = Frames::open(streams.request("GET", "/v1/events/stream")).await;
    let mut other = Frames::open(api.request("GET", "/v1/events/stream")).await;
    stream.next().await.unwrap();
    reader.revoked_at = Some(domain::Timestamp::from_micros(1));
    server.add_key(reader).await;
    let revoked = Instant::now();
    let mut last = None;
    while let Some(frame) = stream.next().await {
        last = Some(frame);
    }
    assert!(
        revoked.elapsed() < Duration::from_secs(1),
        "{:?}",
        revoked.elapsed()
    );
    let last = last.unwrap();
    assert_eq!(last.event, "error");
    assert_eq!(last.data["error"]["code"], "unauthenticated", "{last:?}");
    // Others go on.
    let (status, _) = api
        .post(&format!("/v1/sessions/{session}/close"), json!({}))
        .await;
    assert!(status < 300);
    loop {
        let frame = other.next().await.unwrap();
        if frame.event == "session.closed" {
            break;
        }
    }
}

/// Asks for health on a connection of its own and returns how long that took.
async fn served_after(server: &Server) -> Duration {
    let begun = Instant::now();
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let head = format!(
        "GET /healthz HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
        server.address
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut answer)).await;
    assert!(read.is_ok(), "no answer within 20 s");
    assert!(
        answer.starts_with(b"HTTP/1.1 200"),
        "{:?}",
        String::from_utf8_lossy(&answer)
    );
    begun.elapsed()
}

/// What somebody says who wants nothing but a place.
async fn hold(server: &Server, count: usize, says: &[u8]) -> Vec<TcpStream> {
    let mut held = Vec::new();
    for _ in 0..count {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        // A server that has had enough may close before this is said.
        let _ = stream.write_all(says).await;
        held.push(stream);
    }
    held
}

#[tokio::test]
async fn connections_that_say_nothing_of_use_do_not_keep_others_out() {
    let unread = b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".repeat(60);
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let kinds: [(&str, &[u8]); 6] = [
        ("silent", b""),
        ("a piece of the preface", b"P"),
        ("half a request line", b"GET /heal"),
        (
            "half a head",
            b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n",
        ),
        ("answers that are not read", &unread),
        ("an idle HTTP/2 connection", preface),
    ];
    for (places, count) in [(4, 8), (64, 64)] {
        for (kind, says) in kinds {
            let mut config = config();
            config.connections_max = places;
            let server = Server::start_with(config).await;
            let held = hold(&server, count, says).await;
            let took = served_after(&server).await;
            assert!(
                took < Duration::from_secs(2),
                "{kind}, {places} places: {took:?}"
            );
            drop(held);
        }
    }
}

#[tokio::test]
async fn a_thousand_silent_connections_do_not_keep_others_out() {
    let server = Server::start().await;
    let held = hold(&server, 1_024, b"").await;
    let took = served_after(&server).await;
    assert!(took < Duration::from_secs(2), "{took:?}");
    drop(held);
}

#[tokio::test]
async fn a_connection_that_stands_still_is_ended() {
    let mut config = config();
    config.header_read_timeout = Duration::from_millis(300);
    let server = Server::start_with(config).await;
    for says in [
        &b""[..],
        b"P",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
    ] {
        let mut held = hold(&server, 1, says).await;
        let mut rest = Vec::new();
        let ended = held[0].read_to_end(&mut rest);
        let ended = tokio::time::timeout(Duration::from_secs(3), ended).await;
        assert!(
            ended.is_ok(),
            "{:?} was held",
            String::from_utf8_lossy(says)
        );
    }
}

#[tokio::test]
async fn a_key_that_may_only_read_writes_nothing() {
    let server = Server::start().await;
    let api = server.client();
    let session = api.session().await;
    let task = api.task(&session, "agent").await;
    let task = api.wait_for(&id(&task), "COMPLETED").await;
    server
        .add_key(key("rk_auditor", "auditor", &["*:read"], None))
        .await;
    let auditor = server.client_with("rk_auditor");
    let path = format!(
        "/v1/receipts/{}/verify",
        task["receipt_id"].as_str().unwrap()
    );
    // The tree may still be busy with the receipt.
    while api.post(&path, json!({})).await.1["valid"] != true {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let head = server.store_head();
    for _ in 0..3 {
        let (status, verdict) = auditor.post(&path, json!({})).await;
        assert_eq!(
            (status, &verdict["valid"]),
            (200, &json!(true)),
            "{verdict}"
        );
    }
    // Messages to the shared memory are written down, whatever they ask for.
    let join = json!({
        "protocol": "akashik", "version": "0.1.0", "id": "m", "operation": "REGISTER", "agent_id": "a", "session_id": null,
        "epoch": 0, "payload": {"id": "a", "role": "x"},
    });
    let register = auditor.request("POST", "/akashik/v1/register").json(&join);
    assert_eq!(register.send().await.unwrap().status(), 403);
    assert_eq!(server.store_head(), head);
    // The log of a task is its events, under whatever name.
    server
        .add_key(key("rk_artifacts", "art", &["artifacts:read"], None))
        .await;
    let reader = server.client_with("rk_artifacts");
    let log = format!("/v1/artifacts/event_log_{}/content", id(&task));
    assert_eq!(reader.get(&log).await.0, 403);
    assert_eq!(
        auditor.request("GET", &log).send().await.unwrap().status(),
        200
    );
}

#[tokio::test]
async fn a_replay_that_could_never_end_is_refused_when_it_is_asked_for() {
    let server = Server::start().await;
    let api = server.client();
    let session = api.session().await;
    let task = api.task(&session, "agent").await;
    let mut task = api.wait_for(&id(&task), "COMPLETED").await;
    for _ in 0..40 {
        let path = format!("/v1/tasks/{}/replay", id(&task));
        let (status, replayed) = api.post(&path, json!({})).await;
        if status != 202 {
            assert_eq!(status, 422, "{replayed}");
            assert_eq!(replayed["error"]["details"]["reason"], "id_too_long");
            return;
        }
        task = api.wait_for(&id(&replayed), "COMPLETED").await;
    }
    panic!("{} is still replayed", id(&task));
}

/// F15: a key for two Workspaces puts nothing of one on what belongs to the other, where readers would learn of it.
#[tokio::test]
async fn f15_what_belongs_to_one_workspace_is_not_named_in_another() {
    let (server, a, b) = two_workspaces().await;
    let (here, there) = (session(&a).await, session(&b).await);
    let admin = server.client();
    let branch = |session: &str| {
        let (admin, path) = (&admin, format!("/v1/sessions/{session}/branches"));
        async move {
            let body = json!({"kind": "session", "base_ref": "x"});
            let (status, branch) = admin.post(&path, body).await;
            assert_eq!(status, 201, "{branch}");
            id(&branch)
        }
    };
    let (own, foreign) = (branch(&there).await, branch(&here).await);
    let parent = id(&admin.task(&here, "agent").await);
    let sibling = id(&admin.task(&there, "agent").await);
    let tasks = format!("/v1/sessions/{there}/tasks");
    let (fork, branches) = (
        format!("/v1/sessions/{there}/fork"),
        format!("/v1/sessions/{there}/branches"),
    );
    let branched = |extra: Value| {
        let mut body = json!({"kind": "session", "base_ref": "x"});
        body.as_object_mut()
            .unwrap()
            .extend(extra.as_object().unwrap().clone());
        body
    };
    for (path, bad, good, param) in [
        (
            &tasks,
            json!({"input": {}, "branch_id": foreign}),
            json!({"input": {}, "branch_id": own}),
            "branch_id",
        ),
        (
            &tasks,
            json!({"input": {}, "parent_task_id": parent}),
            json!({"input": {}, "parent_task_id": sibling}),
            "parent_task_id",
        ),
        (
            &fork,
            json!({"branch_id": foreign}),
            json!({"branch_id": own}),
            "branch_id",
        ),
        (
            &branches,
            branched(json!({"parent_branch_id": foreign})),
            branched(json!({"parent_branch_id": own})),
            "parent_branch_id",
        ),
        (
            &branches,
            branched(json!({"task_id": parent})),
            branched(json!({"task_id": sibling})),
            "task_id",
        ),
    ] {
        let (status, answer) = admin.post(path, bad).await;
        assert_eq!(status, 404, "{path} {param}: {answer}");
        assert_eq!(answer["error"]["param"], param, "{answer}");
        let (status, answer) = admin.post(path, good).await;
        assert!(status < 300, "{path} {param}: {status} {answer}");
    }
    let file = json!({"kind": "file", "mime_type": "a/b", "visibility": "public",
        "task_id": sibling, "session_id": here});
    let (status, answer) = admin.post("/v1/artifacts", file).await;
    assert_eq!(status, 404, "{answer}");
}

/// S20: a replay that goes on live runs tools with arguments of its caller's choice: that is a right of its own.
#[tokio::test]
async fn s20_a_live_replay_needs_its_own_scope() {
    let server = Server::start().await;
    let api = server.client();
    let session = api.session().await;
    let task = api.task(&session, "agent").await;
    let task = api.wait_for(&id(&task), "COMPLETED").await;
    let scopes = ["tasks:write", "tasks:read", "events:read", "receipts:read"];
    server.add_key(key("rk_dry", "dry", &scopes, None)).await;
    let live = [&scopes[..], &["replays:live"]].concat();
    server.add_key(key("rk_live", "live", &live, None)).await;
    let path = format!("/v1/tasks/{}/replay", id(&task));
    let body = json!({"mode": "with_overrides", "refresh": ["model", "tools"]});
    let (status, answer) = server.client_with("rk_dry").post(&path, body.clone()).await;
    assert_eq!(status, 403, "{answer}");
    assert!(answer.to_string().contains("replays:live"), "{answer}");
    let (status, answer) = server.client_with("rk_live").post(&path, body).await;
    assert_eq!(status, 202, "{answer}");
}
