//! A disk without room under a running server: writes are refused in the protocol's words, reads go on, and nothing
//! that was acknowledged is lost.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use testing::process::Server;

use crate::client::{Answer, Api, Ask, text};
use crate::host::Host;
use crate::world::World;

/// A small file system of its own, unmounted at the end.
struct Disk(PathBuf);

impl Disk {
    fn mount(at: &Path) -> Option<Self> {
        std::fs::create_dir(at).unwrap();
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=8m,mode=700", "tmpfs"])
            .arg(at)
            .output();
        let mounted = mount.is_ok_and(|output| output.status.success());
        mounted.then(|| Self(at.to_owned()))
    }

    fn grow(&self) {
        let status = Command::new("mount")
            .args(["-o", "remount,size=64m"])
            .arg(&self.0)
            .status();
        assert!(status.unwrap().success());
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// The answer to a write that found no room (the code is one of the protocol's table: AP-ERR-03).
fn refused(answer: &Answer) {
    let body = answer.json();
    assert_eq!(answer.status, 503, "{body}");
    assert_eq!(answer.code(), "service_unavailable");
    assert_eq!(body["error"]["type"], "server_error");
    assert_eq!(body["error"]["details"]["reason"], "disk_full");
    assert!(answer.retry_after.is_some(), "{body}");
}

/// Appends until there is no room; keeps what was acknowledged.
async fn fill(api: &Api, session: &str, told: &mut Vec<Value>) {
    for _ in 0..4_000 {
        // Text that takes about as much room as it has letters.
        let body: String = std::iter::repeat_with(fastrand::alphanumeric)
            .take(3_000)
            .collect();
        let said = format!("{} {body}", told.len());
        let answer = api.send(&Ask::message(session, &said)).await.unwrap();
        if answer.status == 201 {
            told.push(answer.json());
            continue;
        }
        return refused(&answer);
    }
    panic!("there was always room");
}

/// Reads go on, everything acknowledged is there, and readiness says whether anything can be written.
async fn compare(api: &Api, session: &str, told: &[Value], ready: u16) {
    let path = format!("/v1/sessions/{session}/messages");
    let found = api.list(&path).await;
    assert!(found == told, "{} of {} messages", found.len(), told.len());
    let answer = api.send(&Ask::get("/readyz")).await.unwrap();
    let text = String::from_utf8_lossy(&answer.bytes);
    assert_eq!(answer.status, ready, "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_refuses_writes_until_there_is_room_and_loses_nothing() {
    let world = World::new();
    let Some((disk, _running)) = testing::mounted(Disk::mount(&world.data())) else {
        return;
    };
    let ballast = world.data().join("ballast");
    // More than there is: the disk is full before the bound on what is stored is reached.
    let mut host = Host::with(world, &[("REPRISE_LIMITS_STORED_MIB_MAX", "1000")]);
    std::fs::write(&ballast, vec![0; 2 << 20]).unwrap();
    let api = host.api();
    let (session, tasks) = (api.session().await, api.session().await);
    let submit = async |workflow: &str| {
        let task = api.ok(&Ask::task(&tasks, workflow, "Before")).await;
        text(&task["id"])
    };
    let (asking, holding) = (submit("ask").await, submit("hold").await);
    let artifact = text(&api.ok(&Ask::artifact("large")).await["id"]);
    let content = format!("/v1/artifacts/{artifact}/content");
    let mut told = Vec::new();
    fill(&api, &session, &mut told).await;

    compare(&api, &session, &told, 503).await;
    refused(
        &api.send(&Ask::put(&content, vec![1; 4 << 20]))
            .await
            .unwrap(),
    );
    // Small things may still fit; what does not is refused like the rest.
    let mut accepted = Vec::new();
    for _ in 0..5 {
        let ask = Ask::task(&tasks, "agent", &"y".repeat(3_000));
        let submitted = api.send(&ask).await.unwrap();
        match submitted.status {
            202 => accepted.push(text(&submitted.json()["id"])),
            _ => refused(&submitted),
        }
    }
    for answer in [
        api.send(&Ask::answer(&asking, &"z".repeat(3_000)))
            .await
            .unwrap(),
        api.send(&Ask::cancel(&holding)).await.unwrap(),
    ] {
        if answer.status >= 300 {
            refused(&answer);
        }
    }
    compare(&api, &session, &told, 503).await;

    std::fs::remove_file(&ballast).unwrap();
    let after = api
        .send(&Ask::message(&session, "There is room"))
        .await
        .unwrap();
    assert_eq!(after.status, 201, "{}", after.json());
    told.push(after.json());
    let answer = api
        .send(&Ask::answer(&asking, &"z".repeat(3_000)))
        .await
        .unwrap();
    assert!(answer.status < 300, "{}", answer.json());
    api.until_status(&asking, "COMPLETED").await;
    let canceled = api.ok(&Ask::cancel(&holding)).await;
    assert_eq!(canceled["status"], "CANCELED");
    for task in accepted {
        api.until_status(&task, "COMPLETED").await;
    }
    compare(&api, &session, &told, 200).await;

    // Full again, and killed: a start that finds no room says so, or works; with room it works.
    fill(&api, &session, &mut told).await;
    host.kill();
    match Server::start(&mut host.command()) {
        Ok(server) => server.kill(),
        Err(said) => {
            assert_eq!(said.code, 2, "{said:?}");
            assert!(
                said.stderr.contains("hint: check that the disk"),
                "{said:?}"
            );
        }
    }
    disk.grow();
    host.start();
    let api = host.api();
    compare(&api, &session, &told, 200).await;
    assert_eq!(
        api.bytes(&Ask::put(&content, vec![1; 4 << 20]))
            .await
            .status,
        200
    );
    let history = crate::history::History::of(&api).await;
    assert_eq!(history.count("task.failed"), 0);
    let left = walk(&host.world.data());
    let half = |path: &&PathBuf| path.extension().is_some_and(|end| end == "tmp");
    assert_eq!(left.iter().find(half), None);
    host.kill();
    host.must_verify();
}

fn walk(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(walk(&path)),
            false => found.push(path),
        }
    }
    found
}
