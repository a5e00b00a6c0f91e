//! SIGKILL in the middle of the replay of a session: the next start goes on with it by itself.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::client::{Api, Ask, text};
use crate::host::{Host, generator};

/// How many tasks the session has.
const TASKS: usize = 12;
const ROUNDS: usize = 5;

/// What the files hold of a fork while no server runs: the sources that were replayed, and whether it said that it is done.
fn on_disk(host: &Host, round: usize, fork: &str) -> (Vec<String>, usize) {
    let name = format!("export-{round}");
    host.world.ok(&["log", "export", &name]);
    let file = host.world.home.path().join(name).join("events.jsonl");
    let lines = std::fs::read_to_string(file).unwrap();
    let events = lines.lines();
    let events = events.map(|line| serde_json::from_str::<Value>(line).unwrap());
    let events: Vec<Value> = events.filter(|event| event["session_id"] == fork).collect();
    let submitted = events
        .iter()
        .filter(|event| event["event"] == "task.submitted");
    let sources = submitted.map(|event| text(&event["payload"]["replay"]["source_task_id"]));
    let told = events
        .iter()
        .filter(|event| event["event"] == "session.replayed");
    (sources.collect(), told.count())
}

async fn tasks_of(api: &Api, session: &str) -> Vec<Value> {
    api.list(&format!("/v1/sessions/{session}/tasks")).await
}

/// B11: every source once, in order, and one `session.replayed`, whenever the server was killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b11_a_session_replay_survives_kills_in_its_middle() {
    let mut rng = generator();
    let mut host = Host::new();
    let api = host.api();
    let session = api.session().await;
    let mut sources = Vec::new();
    for number in 0..TASKS {
        let words = format!("{number} {}", "word ".repeat(1_000));
        let task = api.ok(&Ask::task(&session, "agent", &words)).await;
        api.until_status(&text(&task["id"]), "COMPLETED").await;
        sources.push(text(&task["id"]));
    }
    let mut in_the_middle = 0;
    for round in 0..ROUNDS {
        let api = host.api();
        let path = format!("/v1/sessions/{session}/replay");
        let fork = api.ok(&Ask::post(&path, json!({}))).await;
        let fork = text(&fork["id"]);
        let moment = rng.usize(1..TASKS / 2);
        while tasks_of(&api, &fork).await.len() < moment {
            tokio::task::yield_now().await;
        }
        host.kill();
        let (before, told) = on_disk(&host, round, &fork);
        assert!(before.len() >= moment && told < 2, "{before:?} {told}");
        if before.len() < TASKS && told == 0 {
            in_the_middle += 1;
            // What is still to be replayed is not pruned meanwhile.
            let prune = ["log", "prune", "--older-than-days", "0", "--dry-run"];
            let would = host.world.json(&[&prune[..], &["--json"]].concat());
            assert!(would["in_use"].as_u64() >= Some(TASKS as u64), "{would}");
        }
        // A start that is killed in its turn goes on, or not; the next one does.
        if rng.bool() {
            host.start_and_kill(std::time::Duration::from_millis(rng.u64(0..120)));
        }
        host.start();
        let api = host.api();
        let shown = format!("/v1/sessions/{fork}");
        let shown = api
            .until(&shown, |session| session["state"] == "IDLE")
            .await;
        let last = text(&shown["last_event_id"]);
        let told = api.get(&format!("/v1/events/{last}")).await;
        assert_eq!(told["event"], "session.replayed", "{told}");
        assert_eq!(told["payload"]["completed"], true, "{told}");
        let replayed = told["payload"]["tasks"].as_array().unwrap().iter();
        let replayed: Vec<String> = replayed
            .map(|task| {
                assert_eq!(task["status"], "COMPLETED", "{told}");
                text(&task["source_task_id"])
            })
            .collect();
        assert_eq!(replayed, sources, "round {round}");
        let tasks = tasks_of(&api, &fork).await;
        let parents: BTreeSet<String> = tasks
            .iter()
            .map(|task| text(&task["parent_task_id"]))
            .collect();
        assert_eq!(
            (tasks.len(), parents.len()),
            (TASKS, TASKS),
            "round {round}"
        );
    }
    assert!(in_the_middle > 0, "no kill hit the middle of a replay");
    host.kill();
    host.must_verify();
    println!("{in_the_middle} of {ROUNDS} kills were in the middle");
}
