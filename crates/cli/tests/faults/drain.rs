//! SIGTERM while clients write: what has begun is finished, what comes later is told to come back, and no Task
//! changes its state (AP-TASK-04, AP-ERR-05).

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde_json::Value;
use testing::process::PATIENCE;

use crate::client::{Answer, Api, Ask, text};
use crate::history::History;
use crate::host::Host;
use crate::world::World;

const HELD: usize = 8;

/// A refusal that tells the client to come back.
fn told_to_come_back(answer: &Answer) {
    assert_eq!(answer.status, 503, "{}", answer.json());
    assert_eq!(answer.code(), "service_unavailable");
    assert!(answer.retry_after.is_some());
}

/// The last status of each Task, as its events tell it.
fn statuses(events: &[Value]) -> BTreeMap<String, String> {
    let mut statuses = BTreeMap::new();
    for event in events {
        let id = text(&event["resource"]["id"]);
        match event["event"].as_str().unwrap() {
            "task.submitted" => drop(statuses.insert(id, "SUBMITTED".to_owned())),
            "task.status_changed" => drop(statuses.insert(id, text(&event["payload"]["to"]))),
            _ => {}
        }
    }
    statuses
}

/// The log of a stopped server.
fn exported(host: &Host, name: &str) -> Vec<Value> {
    host.world.ok(&["log", "export", name]);
    let file = host.world.home.path().join(name).join("events.jsonl");
    let lines = std::fs::read_to_string(file).unwrap();
    let parse = |line| serde_json::from_str(line).unwrap();
    lines.lines().map(parse).collect()
}

/// Begins an upload and sends half of it.
fn half_an_upload(host: &Host, artifact: &str, bytes: &[u8]) -> TcpStream {
    let mut socket = TcpStream::connect(&host.address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(
        socket,
        "PUT /v1/artifacts/{artifact}/content HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\n\
         Harn-Agents-Protocol-Version: agents-protocol-2026-04-25\r\nContent-Length: {}\r\n\r\n",
        host.address,
        host.key(),
        bytes.len()
    )
    .unwrap();
    socket.write_all(&bytes[..bytes.len() / 2]).unwrap();
    socket
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ap_err_05_what_is_in_flight_is_finished_and_what_comes_later_is_told_to_come_back() {
    // A submit that waits for its Task is in flight for as long as the test needs; so is the drain.
    let settings = [
        ("REPRISE_LIMITS_SETTLE_WINDOW_MS", "3000"),
        ("REPRISE_LIMITS_DRAIN_WINDOW_MS", "1000"),
    ];
    let mut host = Host::with(World::new(), &settings);
    let api = host.api();
    let session = api.session().await;
    let artifact = text(&api.ok(&Ask::artifact("half")).await["id"]);
    let bytes = vec![9; 300_000];
    let mut upload = half_an_upload(&host, &artifact, &bytes);
    let submits: Vec<_> = (0..HELD)
        .map(|number| {
            let (api, session) = (host.api(), session.clone());
            let ask = Ask::task(&session, "hold", &number.to_string());
            tokio::spawn(async move { api.send(&ask).await })
        })
        .collect();
    let working = |list: &Value| {
        let tasks = list["data"].as_array().unwrap();
        tasks.len() == HELD && tasks.iter().all(|task| task["status"] == "WORKING")
    };
    api.until(&format!("/v1/sessions/{session}/tasks"), working)
        .await;
    let server = host.take();
    server.signal("TERM");

    // Until it is gone: not one answer that is neither.
    let (mut refusals, mut accepted) = (0, 0);
    loop {
        match host.api().send(&Ask::message(&session, "late")).await {
            // The signal is on its way.
            Ok(answer) if answer.status == 201 && refusals == 0 => accepted += 1,
            Ok(answer) => {
                told_to_come_back(&answer);
                refusals += 1;
            }
            // Refused, or closed before the server accepted it; below is the proof that it was not carried out.
            Err(_) => break,
        }
        if refusals == 1 {
            upload.write_all(&bytes[bytes.len() / 2..]).unwrap();
        }
    }
    assert!(refusals > 0, "no request came while the server drained");
    for submit in submits {
        let answer = submit.await.unwrap().unwrap();
        assert_eq!(answer.status, 202, "{}", answer.json());
        assert_eq!(answer.json()["status"], "WORKING");
    }
    let mut answered = String::new();
    upload.read_to_string(&mut answered).unwrap();
    // The rest came while the server drained: carried out or told to come back, but answered.
    let uploaded = answered.starts_with("HTTP/1.1 200 ");
    assert!(
        uploaded || answered.starts_with("HTTP/1.1 503 ") && answered.contains("retry-after: "),
        "{answered}"
    );
    assert_eq!(server.wait().code(), Some(0));

    let statuses = statuses(&exported(&host, "stopped"));
    let count = statuses
        .values()
        .filter(|status| *status == "WORKING")
        .count();
    assert_eq!((count, statuses.len()), (HELD, HELD));
    host.start();
    let api = host.api();
    let content = Ask::get(&format!("/v1/artifacts/{artifact}/content"));
    let content = api.send(&content).await.unwrap();
    assert_eq!(content.status == 200 && content.bytes == bytes, uploaded);
    let messages = api.list(&format!("/v1/sessions/{session}/messages")).await;
    let late = messages
        .iter()
        .filter(|message| message["parts"][0]["text"] == "late");
    assert_eq!(late.count(), accepted);
    for id in statuses.keys() {
        let canceled = api.ok(&Ask::cancel(id)).await;
        assert_eq!(canceled["status"], "CANCELED");
    }
}

/// Writes until the server is gone; returns what was acknowledged: Messages and Tasks.
async fn write(
    api: Api,
    session: String,
    signaled: Arc<AtomicBool>,
    begun: Arc<AtomicU64>,
) -> (Vec<Value>, Vec<Value>) {
    let (mut messages, mut tasks) = (Vec::new(), Vec::new());
    for number in 0_u64.. {
        let before = !signaled.load(Ordering::SeqCst);
        begun.fetch_add(1, Ordering::SeqCst);
        let said = number.to_string();
        let ask = match number % 3 {
            0 => Ask::task(&session, "agent", &said),
            _ => Ask::message(&session, &said),
        };
        match api.send(&ask).await {
            Ok(answer) if answer.status == 201 => messages.push(answer.json()),
            Ok(answer) if answer.status == 202 => tasks.push(answer.json()),
            Ok(answer) => {
                assert!(
                    !before || signaled.load(Ordering::SeqCst),
                    "refused before the signal"
                );
                told_to_come_back(&answer);
            }
            // What had begun must be answered; what begins later may find a connection or a port that closes.
            Err(lost) => {
                assert!(!before, "in flight at the signal, and cut: {}", lost.cause);
                break;
            }
        }
    }
    (messages, tasks)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ap_task_04_a_drain_under_load_changes_no_task_and_the_next_start_goes_on() {
    // Long enough that a request which is about to be sent at the signal still comes while the server drains.
    let mut host = Host::with(World::new(), &[("REPRISE_LIMITS_DRAIN_WINDOW_MS", "1000")]);
    let api = host.api();
    let session = api.session().await;
    let mut open = BTreeMap::new();
    for (workflow, status) in [
        ("hold", "WORKING"),
        ("ask", "INPUT_REQUIRED"),
        ("approve", "AUTH_REQUIRED"),
    ] {
        for _ in 0..3 {
            let task = api
                .ok(&Ask::task(&session, workflow, "Wait").at_once())
                .await;
            let id = text(&task["id"]);
            api.until_status(&id, status).await;
            open.insert(id, status);
        }
    }
    let (signaled, begun) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let writers: Vec<_> = (0..6)
        .map(|_| {
            tokio::spawn(write(
                host.api(),
                session.clone(),
                Arc::clone(&signaled),
                Arc::clone(&begun),
            ))
        })
        .collect();
    while begun.load(Ordering::SeqCst) < 200 {
        assert!(
            !writers.iter().any(|writer| writer.is_finished()),
            "a writer stopped"
        );
        tokio::task::yield_now().await;
    }
    let server = host.take();
    // Told first, sent second: whoever began before is in flight at the signal.
    signaled.store(true, Ordering::SeqCst);
    let (status, said) = tokio::task::spawn_blocking(move || server.stop())
        .await
        .unwrap();
    assert_eq!(status.code(), Some(0), "{said}");
    let (mut messages, mut tasks) = (Vec::new(), Vec::new());
    for writer in writers {
        let (some, others) = writer.await.unwrap();
        messages.extend(some);
        tasks.extend(others);
    }

    let stopped = exported(&host, "stopped");
    let kinds = |kind: &str| {
        stopped
            .iter()
            .filter(|event| event["event"] == kind)
            .count()
    };
    assert_eq!(kinds("task.failed") + kinds("task.canceled"), 0);
    let last = statuses(&stopped);
    for (id, status) in &open {
        assert_eq!(last[id], **status, "{id}");
    }
    host.must_verify();

    host.start();
    let api = host.api();
    for told in &messages {
        let path = format!("/v1/messages/{}", text(&told["id"]));
        assert_eq!(api.get(&path).await, *told);
    }
    for task in last.keys().filter(|id| !open.contains_key(*id)) {
        api.until_status(task, "COMPLETED").await;
    }
    for told in &tasks {
        assert!(last.contains_key(&text(&told["id"])), "{told}");
    }
    for (id, status) in &open {
        api.until_status(id, status).await;
    }
    let history = History::of(&api).await;
    assert_eq!(history.events[..stopped.len()], stopped);
    assert_eq!(
        history.count("task.failed") + history.count("task.canceled"),
        0
    );
}
