//! AP-SSE.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::fixture::{Frames, KEY, Server, VERSION, config, id, refused};

#[tokio::test]
async fn ap_sse_01_02_04_10_12_a_finished_tasks_stream_is_its_log_and_ends() {
    let server = Server::start().await;
    let api = server.client();
    let session = api.session().await;
    let task = api.task(&session, "agent").await;
    let frames = Frames::open(api.request("GET", &format!("/v1/tasks/{}/stream", id(&task)))).await;
    let frames = frames.all().await;
    let (_, list) = api
        .get(&format!("/v1/tasks/{}/events?limit=200", id(&task)))
        .await;
    assert_eq!(frames.len(), list["data"].as_array().unwrap().len());
    for (frame, event) in frames.iter().zip(list["data"].as_array().unwrap()) {
        assert_eq!(frame.id, frame.data["id"]);
        assert_eq!(frame.event, frame.data["event"]);
        assert_eq!(frame.data["replayed"], true, "history is marked");
        assert_eq!(frame.data.get("replay"), Some(&json!(null)));
        let mut bare = frame.data.clone();
        bare.as_object_mut()
            .unwrap()
            .retain(|name, _| name != "replay" && name != "replayed");
        assert_eq!(bare, *event);
    }
}

/// What is left of an event without ids and times.
fn outline(event: &Value) -> Value {
    let mut payload = event["payload"].clone();
    // A receipt says how long its Task took, in as many digits as that has.
    if let Value::Object(members) = &mut payload {
        members.remove("bytes");
    }
    blank(&mut payload);
    json!([
        event["event"],
        event["sequence"],
        event["actor"]["id"],
        payload
    ])
}

fn blank(value: &mut Value) {
    match value {
        // Ids, times and digests are long and in one piece.
        Value::String(text) if text.len() > 24 && !text.contains(' ') => text.clear(),
        Value::Array(items) => items.iter_mut().for_each(blank),
        Value::Object(members) => members.values_mut().for_each(blank),
        _ => {}
    }
}

#[tokio::test]
async fn ap_conf_02_polling_and_streaming_leave_the_same_log() {
    let server = Server::start().await;
    let api = server.client();
    let answer = json!({"kind": "input", "message": {"role": "user", "content": "blue"}});
    let mut logs = Vec::new();
    for streamed in [false, true] {
        let session = api.session().await;
        let task = id(&api.task(&session, "ask").await);
        let messages = format!("/v1/tasks/{task}/messages");
        if streamed {
            let path = format!("/v1/tasks/{task}/stream");
            let mut frames = Frames::open(api.request("GET", &path)).await;
            while frames.next().await.unwrap().event != "task.input_required" {}
            assert_eq!(api.post(&messages, answer.clone()).await.0, 201);
            frames.all().await;
        } else {
            api.wait_for(&task, "INPUT_REQUIRED").await;
            assert_eq!(api.post(&messages, answer.clone()).await.0, 201);
            api.wait_for(&task, "COMPLETED").await;
        }
        let (_, list) = api
            .get(&format!("/v1/sessions/{session}/events?limit=200"))
            .await;
        let events = list["data"].as_array().unwrap();
        logs.push(events.iter().map(outline).collect::<Vec<_>>());
    }
    assert!(logs[0].len() > 8, "{:?}", logs[0]);
    assert_eq!(logs[0], logs[1]);
}

#[tokio::test]
async fn ap_sse_05_11_live_frames_follow_history_and_a_resume_misses_nothing() {
    let server = Server::start().await;
    let api = server.client();
    let session = api.session().await;
    let path = format!("/v1/sessions/{session}/events/stream");
    let mut frames = Frames::open(api.request("GET", &path)).await;
    let created = frames.next().await.unwrap();
    assert_eq!(created.event, "session.created");
    assert_eq!(created.data["replayed"], true);
    let say = json!({"role": "user", "content": "hi"});
    let messages = format!("/v1/sessions/{session}/messages");
    api.post(&messages, say.clone()).await;
    let live = frames.next().await.unwrap();
    assert_eq!(live.event, "user.message");
    assert_eq!(live.data["replayed"], false, "C-18");
    drop(frames);
    api.post(&messages, say).await;
    let resumed = [
        api.request("GET", &path).header("Last-Event-ID", &live.id),
        api.request("GET", &format!("{path}?after_event_id={}", live.id)),
        api.request("GET", &format!("{path}?after={}", live.id)),
        // What a browser sends when it reconnects: the header knows better than the address.
        api.request("GET", &format!("{path}?cursor={}", created.id))
            .header("Last-Event-ID", &live.id),
    ];
    for request in resumed {
        let mut frames = Frames::open(request).await;
        let kinds = [
            frames.next().await.unwrap().event,
            frames.next().await.unwrap().event,
        ];
        assert_eq!(kinds, ["session.message_appended", "user.message"]);
    }
}

#[tokio::test]
async fn ap_sse_06_c_17_a_cursor_that_cannot_be_used_is_one_error_frame() {
    let server = Server::start().await;
    let api = server.client();
    let cursors: [&[u8]; 4] = [
        b"event_testlog1_9999999999999999",
        b"nonsense",
        "é".as_bytes(),
        b"\xff",
    ];
    for cursor in cursors {
        let request = api
            .request("GET", "/v1/events/stream")
            .header("Last-Event-ID", cursor);
        let frames = Frames::open(request).await.all().await;
        assert_eq!(frames.len(), 1);
        assert_eq!(frames[0].event, "error");
        assert_eq!(frames[0].data["object"], "event");
        assert_eq!(frames[0].data["payload"]["error"]["code"], "cursor_expired");
        assert_eq!(frames[0].data["error"]["code"], "cursor_expired");
    }
    refused(
        &api.get("/v1/tasks/task_x/stream").await,
        404,
        "resource_not_found",
        Some("task_id"),
    );
    let differ = api.get("/v1/events/stream?after=a&cursor=b").await;
    refused(&differ, 400, "invalid_request", Some("after_event_id"));
}

/// Opens a stream on a bare socket and returns it after the response head.
async fn raw_stream(server: &Server, path: &str) -> (TcpStream, Vec<u8>) {
    let mut socket = TcpStream::connect(server.address).await.unwrap();
    let head = format!(
        "GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {KEY}\r\nharn-agents-protocol-version: {VERSION}\r\n\r\n"
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut seen = Vec::new();
    loop {
        let mut chunk = [0; 1024];
        let count = socket.read(&mut chunk).await.unwrap();
        assert_ne!(count, 0);
        seen.extend_from_slice(&chunk[..count]);
        if let Some(end) = seen.windows(4).position(|window| window == b"\r\n\r\n") {
            return (socket, seen.split_off(end + 4));
        }
    }
}

/// Undoes chunked transfer coding as far as it goes.
fn unchunked(mut bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some(end) = bytes.windows(2).position(|window| window == b"\r\n") {
        let length =
            usize::from_str_radix(std::str::from_utf8(&bytes[..end]).unwrap(), 16).unwrap();
        if length == 0 || bytes.len() < end + 2 + length + 2 {
            break;
        }
        out.extend_from_slice(&bytes[end + 2..end + 2 + length]);
        bytes = &bytes[end + 2 + length + 2..];
    }
    out
}

#[tokio::test]
async fn ap_sse_03_the_first_bytes_are_a_frame_and_lines_end_with_lf() {
    let server = Server::start().await;
    let api = server.client();
    let session = api.session().await;
    let task = api.task(&session, "agent").await;
    let (mut socket, mut bytes) =
        raw_stream(&server, &format!("/v1/tasks/{}/stream", id(&task))).await;
    while !bytes.ends_with(b"0\r\n\r\n") {
        let mut chunk = [0; 4096];
        let count = socket.read(&mut chunk).await.unwrap();
        assert_ne!(count, 0);
        bytes.extend_from_slice(&chunk[..count]);
    }
    let body = unchunked(&bytes);
    assert!(body.starts_with(b"id: event_"));
    assert!(!body.contains(&b'\r'));
}

#[tokio::test]
async fn ap_sse_07_a_slow_reader_gets_every_event_once() {
    let server = Server::start().await;
    let api = server.client();
    let session = api.session().await;
    let (mut socket, mut bytes) =
        raw_stream(&server, &format!("/v1/sessions/{session}/events/stream")).await;
    // Far more than sockets buffer, while nobody reads.
    let text = "x".repeat(3_000);
    let body = json!({"role": "user", "content": text});
    let messages = format!("/v1/sessions/{session}/messages");
    for _ in 0..40 {
        let sent = (0..30).map(|_| {
            let (api, messages, body) = (api.clone(), messages.clone(), body.clone());
            tokio::spawn(async move { api.post(&messages, body).await.0 })
        });
        for sent in sent.collect::<Vec<_>>() {
            assert_eq!(sent.await.unwrap(), 201);
        }
    }
    let wanted = 1 + 2 * 1_200;
    let mut ids = Vec::new();
    while ids.len() < wanted {
        let mut chunk = vec![0; 64 * 1024];
        let read = tokio::time::timeout(Duration::from_secs(10), socket.read(&mut chunk));
        let count = read.await.expect("bytes within ten seconds").unwrap();
        assert_ne!(count, 0, "the stream stays open");
        bytes.extend_from_slice(&chunk[..count]);
        if bytes.len() > 200_000 || count < chunk.len() {
            let body = String::from_utf8_lossy(&unchunked(&bytes)).into_owned();
            ids = body
                .lines()
                .filter_map(|line| line.strip_prefix("id: ").map(str::to_owned))
                .collect();
        }
    }
    assert!(
        ids.windows(2).all(|pair| pair[0] < pair[1]),
        "ascending, none twice"
    );
    assert_eq!(ids.len(), wanted);
}

#[tokio::test]
async fn ap_sse_09_an_idle_stream_says_that_it_lives() {
    let mut quick = config();
    // Never within the first five seconds, whatever is configured.
    quick.sse_heartbeat = Duration::from_millis(10);
    let server = Server::start_with(quick).await;
    let session = server.client().session().await;
    let (mut socket, _) =
        raw_stream(&server, &format!("/v1/sessions/{session}/events/stream")).await;
    let started = std::time::Instant::now();
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains("\n: ") {
        let mut chunk = [0; 4096];
        let read = tokio::time::timeout(Duration::from_secs(8), socket.read(&mut chunk));
        let count = read.await.expect("a heartbeat").unwrap();
        seen.extend_from_slice(&chunk[..count]);
    }
    assert!(started.elapsed() >= Duration::from_millis(4_900));
}

#[tokio::test]
async fn streams_end_when_the_server_stops() {
    let mut server = Server::start().await;
    let api = server.client();
    let session = api.session().await;
    let mut frames =
        Frames::open(api.request("GET", &format!("/v1/sessions/{session}/events/stream"))).await;
    frames.next().await.unwrap();
    server.begin_stop();
    assert_eq!(frames.next().await, None);
    server.stopped().await;
}
