//! One damaged document and one damaged event: the check names each of them, and nothing else.

use engine::port::StoredEvent;
use serde_json::json;
use store::tamper::Tamper;

use crate::client::{Ask, text};
use crate::host::Host;

/// A stopped server's files, with the ids of two Sessions.
async fn written() -> (Host, [String; 2]) {
    let mut host = Host::new();
    let api = host.api();
    let sessions = [api.session().await, api.session().await];
    for session in &sessions {
        for workflow in ["agent", "ask", "hold"] {
            api.ok(&Ask::task(session, workflow, "Do it").at_once())
                .await;
        }
    }
    let (status, _) = host.take().stop();
    assert_eq!(status.code(), Some(0));
    host.must_verify();
    (host, sessions)
}

/// Runs the check, which must find exactly these.
fn finds(host: &Host, problems: &[String]) {
    let said = host.world.run(&["log", "verify"]);
    assert_eq!(said.code, 1, "{said:?}");
    let lines: Vec<&str> = said.stdout.lines().collect();
    assert_eq!(lines.len(), problems.len(), "{said:?}");
    for problem in problems {
        let named = lines.iter().any(|line| line.starts_with(problem.as_str()));
        assert!(named, "{problem} is not in {said:?}");
    }
    let noun = if problems.len() == 1 {
        "problem"
    } else {
        "problems"
    };
    let count = format!("{} {noun} found", problems.len());
    assert!(said.stderr.contains(&count), "{said:?}");
    let report = host.world.run(&["log", "verify", "--json"]);
    assert_eq!(report.code, 1);
    let report: serde_json::Value = serde_json::from_str(&report.stdout).unwrap();
    assert_eq!(report["problems"].as_array().unwrap().len(), problems.len());
    assert_eq!(host.world.run(&["log", "rebuild"]).code, 1);
}

fn damage(host: &Host) -> Tamper {
    Tamper::open(&host.world.data())
}

/// A Session's last event.
fn last_event(damage: &Tamper, session: &str) -> StoredEvent {
    let key = damage.key(session);
    let mut events = damage.all_events();
    events.retain(|event| event.resource == key);
    events.pop().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ap_evt_04_a_damaged_document_and_a_damaged_event_are_named() {
    let (host, [one, two]) = written().await;
    let damage = damage(&host);
    damage.set(&one, "updated_at = updated_at + 1");
    let document = format!("document `{one}`: differs from the fold of its events in ");
    finds(&host, std::slice::from_ref(&document));
    let position = last_event(&damage, &two).position;
    let block = damage.events(position);
    damage.raw(position, |bytes| bytes[20] ^= 1);
    let first = block[0].position.0;
    // How far it reaches depends on the blocks that continue this one, which the store's own tests look at.
    finds(
        &host,
        &[
            document,
            format!("event at position {first}: events {first} to "),
        ],
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_document_of_garbage_and_an_event_in_the_place_of_another_are_named() {
    let (host, [one, two]) = written().await;
    let damage = damage(&host);
    damage.set(&one, "body = x'ff00ff'");
    let position = last_event(&damage, &two).position;
    // Whole and with the right checksum, but of another position.
    let other = damage.all_events().swap_remove(0);
    damage.event(position, |event| event.bytes = other.bytes);
    finds(
        &host,
        &[
            format!("document `{one}`: "),
            format!("event at position {}: its id is `event_", position.0),
        ],
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_document_and_a_missing_event_are_named() {
    let (host, [one, two]) = written().await;
    let damage = damage(&host);
    damage.lose_document(&one);
    damage.lose(last_event(&damage, &two).position);
    let said = host.world.run(&["log", "verify"]);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(
        said.stdout
            .contains(&format!("document `{one}`: is missing")),
        "{said:?}"
    );
    assert!(
        said.stdout.contains(&format!("document `{two}`: ")),
        "{said:?}"
    );
}

/// What a request puts in the place of an event is a caller's data: it names no blob, so that none is missing.
#[tokio::test]
async fn what_a_replay_is_told_does_not_make_the_log_look_damaged() {
    let host = Host::new();
    let api = host.api();
    let session = api.session().await;
    let task = api.ok(&Ask::task(&session, "ask", "Wait")).await;
    let task = text(&task["id"]);
    api.until_status(&task, "INPUT_REQUIRED").await;
    let body = json!({"task_id": task, "kind": "other", "mime_type": "text/plain", "visibility": "public"});
    let artifact = text(&api.ok(&Ask::post("/v1/artifacts", body)).await["id"]);
    let content = format!("/v1/artifacts/{artifact}/content");
    api.ok(&Ask::put(&content, b"mine".to_vec())).await;
    api.ok(&Ask::answer(&task, "go on")).await;
    api.until_status(&task, "COMPLETED").await;
    let named = json!({"sha256": format!("sha256:{}", "cd".repeat(32)), "bytes": 1});
    let mut replays = 0;
    for event in api.list(&format!("/v1/tasks/{task}/events")).await {
        if !["artifact.created", "artifact.updated"].contains(&event["event"].as_str().unwrap()) {
            continue;
        }
        let key = format!("event:{}", text(&event["id"]));
        let given = json!({"kind": "event_payload", "visibility": "public", "value": named});
        let body = json!({"mode": "with_overrides", "override": {key: given}});
        let replay = api
            .ok(&Ask::post(&format!("/v1/tasks/{task}/replay"), body))
            .await;
        api.until_status(&text(&replay["id"]), "COMPLETED").await;
        replays += 1;
    }
    assert_eq!(replays, 2);
    host.must_verify();
}
