//! Acknowledged means durable, seen from outside the process: no answer before the sync that covers it has returned.

use std::process::Command;

use testing::process::Server;

use crate::client::{Api, Ask, text};
use crate::trace::Trace;
use crate::world::World;

/// Does single writes, one after another, and returns how many.
async fn write(api: &Api) -> usize {
    let session = api.session().await;
    let mut count = 1;
    for number in 0..20 {
        let said = format!("{number} {}", "x".repeat(number * 200));
        api.ok(&Ask::message(&session, &said)).await;
        count += 1;
    }
    for number in 0..5 {
        // Answered when it has ended: nothing is written after the answer.
        let task = Ask::task(&session, "agent", &number.to_string());
        let task = api.ok(&task.with_key(format!("task {number}"))).await;
        assert_eq!(task["status"], "COMPLETED", "{task}");
        count += 1;
    }
    for length in [10, 100_000, 200_000] {
        let artifact = api.ok(&Ask::artifact("bytes")).await;
        let path = format!("/v1/artifacts/{}/content", text(&artifact["id"]));
        api.ok(&Ask::put(&path, vec![7; length])).await;
        count += 2;
    }
    count
}

/// Runs a server under strace while a client writes; the trace and how many writes there were.
async fn traced(flags: &[&str]) -> (Trace, usize) {
    const CALLS: &str = "trace=fdatasync,fsync,write,writev,pwrite64,pwritev,sendto,sendmsg";
    let world = World::new();
    let file = world.home.path().join("trace");
    let server = world.command(&["serve", "--listen", "127.0.0.1:0"]);
    let mut command = Command::new("strace");
    // The tracer steps aside, so that the signal that stops the server reaches the server.
    command
        .args(["-D", "-f", "-y", "-s", "32", "-e", CALLS, "-o"])
        .arg(&file)
        .arg(server.get_program())
        .args(server.get_args())
        .args(flags)
        .current_dir(world.home.path())
        .stdin(std::process::Stdio::null());
    for (name, value) in server.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
        .env("REPRISE_LOG_LEVEL", "warn")
        // A loaded machine must not turn a task's answer into one that is given before it has ended.
        .env("REPRISE_LIMITS_SETTLE_WINDOW_MS", "10000");
    let server = Server::start(&mut command).unwrap_or_else(|said| panic!("{said:?}"));
    let key = std::fs::read_to_string(world.data().join("api-key")).unwrap();
    let writes = write(&Api::new(&server.url, key.trim())).await;
    let (status, _) = server.stop();
    assert_eq!(status.code(), Some(0));
    let text = std::fs::read_to_string(&file).unwrap();
    (Trace::of(&text), writes)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_answer_leaves_before_its_commit_is_synced() {
    let Some(_running) = testing::strace() else {
        return;
    };
    let (trace, writes) = traced(&[]).await;
    assert_eq!(trace.violations, Vec::<String>::new());
    assert_eq!(trace.answers, writes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_full_sync_every_answer_leaves_too_early() {
    let Some(_running) = testing::strace() else {
        return;
    };
    let (trace, writes) = traced(&["--unsafe-no-sync"]).await;
    assert_eq!(trace.answers, writes);
    assert!(trace.violations.len() >= writes, "{:?}", trace.violations);
}
