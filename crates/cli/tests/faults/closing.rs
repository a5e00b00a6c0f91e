//! SIGKILL the moment a session is closed: its tasks have ended with it.

use serde_json::json;
use tokio::runtime::Handle;

use crate::client::{Ask, text};
use crate::host::Host;
use crate::sse::{Got, Opening, Stream};

/// More than are ended within the closing commit.
const TASKS: usize = 140;

/// U9: whoever reads that a session is closed finds no task open in it, and the next start has nothing to take up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn u9_no_task_is_open_in_a_session_whose_closing_was_seen_before_a_kill() {
    let mut host = Host::new();
    let api = host.api();
    let session = api.session().await;
    for number in 0..TASKS {
        let workflow = if number % 10 == 0 { "hold" } else { "ask" };
        api.ok(&Ask::task(&session, workflow, "?").at_once()).await;
    }
    let (address, key) = (host.address.clone(), host.key());
    let path = format!("/v1/sessions/{session}/events/stream");
    let (runtime, opened) = (Handle::current(), std::sync::mpsc::channel());
    let watching = tokio::task::spawn_blocking(move || {
        let opening = Opening {
            address: &address,
            key: &key,
            path: &path,
            last: None,
            window: None,
        };
        let mut stream = Stream::open(&runtime, &opening).unwrap();
        opened.0.send(()).unwrap();
        loop {
            match stream.next(4096) {
                Got::Frame(frame) if frame.data["event"] == "session.closed" => return,
                Got::Frame(_) | Got::Silence => {}
                Got::End => panic!("the stream ended before the session was closed"),
            }
        }
    });
    tokio::task::block_in_place(|| opened.1.recv().unwrap());
    let close = Ask::post(&format!("/v1/sessions/{session}/close"), json!({}));
    let closing = tokio::spawn({
        let api = api.clone();
        async move { api.send(&close).await.map(|answer| answer.status) }
    });
    watching.await.unwrap();
    host.kill();
    let _ = closing.await;
    host.start();
    let tasks = host
        .api()
        .list(&format!("/v1/sessions/{session}/tasks"))
        .await;
    assert_eq!(tasks.len(), TASKS);
    let open: Vec<String> = tasks
        .iter()
        .filter(|task| task["status"] != "CANCELED")
        .map(|task| format!("{} {}", text(&task["id"]), task["status"]))
        .collect();
    assert!(open.is_empty(), "{} are open: {open:?}", open.len());
    let shown = host.api().get(&format!("/v1/sessions/{session}")).await;
    assert_eq!(shown["state"], "CLOSED");
    host.kill();
    host.must_verify();
}
