//! `reprise log prune` on a data directory that a server has written, and a server on what it left.

use std::process::Command;

use serde_json::{Value, json};
use testing::process::Server;

use crate::world::World;

/// A client that also wants to see refusals.
struct Client {
    url: String,
    key: String,
}

impl Client {
    fn of(world: &World, server: &Server) -> Self {
        let made = world.ok(&["key", "create", "--actor", "pruner"]);
        let key = made.trim().to_owned();
        Self {
            url: server.url.clone(),
            key,
        }
    }

    fn call(&self, method: &str, path: &str, body: Option<Value>) -> (u64, Value) {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "-X", method, "-w", "\n%{http_code}"]);
        curl.args(["-H", &format!("Authorization: Bearer {}", self.key)]);
        curl.args([
            "-H",
            "Harn-Agents-Protocol-Version: agents-protocol-2026-04-25",
        ]);
        if let Some(body) = body {
            curl.args(["-H", "Content-Type: application/json"]);
            curl.args(["-d", &body.to_string()]);
        }
        let output = curl.arg(format!("{}{path}", self.url)).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let (body, code) = text.rsplit_once('\n').unwrap();
        (
            code.parse().unwrap(),
            serde_json::from_str(body).unwrap_or_else(|_| Value::from(body)),
        )
    }

    fn get(&self, path: &str) -> Value {
        let (code, value) = self.call("GET", path, None);
        assert_eq!(code, 200, "{path}: {value}");
        value
    }
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    let found = value.pointer(pointer).and_then(Value::as_str);
    found.unwrap_or_else(|| panic!("{pointer} of {value}"))
}

/// AP-RPL-19, B2 and B12.17: what a pruned task still shows, and what it answers no more.
#[test]
fn ap_rpl_19_a_pruned_task_shows_headers_and_its_receipt_stays_valid() {
    let world = World::new();
    let server = world.serve();
    let finished = world.json(&["task", "submit", "A secret of old", "--json"]);
    let task = text(&finished, "/id").to_owned();
    let session = text(&finished, "/session_id").to_owned();
    let waiting = world.submit("ask");
    let client = Client::of(&world, &server);
    let (code, replay) = client.call(
        "POST",
        &format!("/v1/tasks/{task}/replay"),
        Some(json!({"mode": "exact"})),
    );
    assert_eq!(code, 202, "{replay}");
    let replayed = text(&replay, "/id").to_owned();
    world.ok(&["task", "watch", &replayed]);
    let shown = world.json(&["receipt", "show", &task, "--json"]);
    let receipt = text(&shown, "/id").to_owned();
    let before = client.get(&format!("/v1/events?task_id={task}&limit=200"));
    let before = before["data"].as_array().unwrap().clone();
    // Beside the server nothing may be changed, and what would be can be asked.
    let refused = world.run(&["log", "prune", "--older-than-days", "0"]);
    assert_eq!(refused.code, 2, "{refused:?}");
    assert!(refused.stderr.contains("in use"), "{refused:?}");
    let would = world.json(&[
        "log",
        "prune",
        "--older-than-days",
        "0",
        "--dry-run",
        "--json",
    ]);
    assert_eq!(would["tasks"], 2, "{would}");
    server.stop();

    let did = world.json(&["log", "prune", "--older-than-days", "0", "--json"]);
    assert_eq!(did["tasks"], 2, "{did}");
    assert_eq!(did["events"], would["events"]);
    let pruned = did["events"].as_u64().unwrap();
    let verified = world.json(&["log", "verify", "--json"]);
    assert_eq!(verified["problems"], json!([]));
    assert_eq!(verified["pruned"], pruned);
    let rebuilt = world.json(&["log", "rebuild", "--json"]);
    assert_eq!(rebuilt["problems"], json!([]));
    assert!(rebuilt["kept"].as_u64().unwrap() > 3, "{rebuilt}");
    let said = world.ok(&["log", "rebuild"]);
    assert!(said.contains("the log is whole from position"), "{said}");
    let exported = world.json(&["log", "export", "bundle", "--json"]);
    assert_eq!(exported["pruned"], pruned);
    let said = world.run(&["receipt", "verify", "--bundle", "bundle", "--unsigned"]);
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.stdout.contains("material_unavailable"), "{said:?}");
    let lines = std::fs::read_to_string(world.home.path().join("bundle/events.jsonl")).unwrap();
    assert!(!lines.contains("A secret of old"));

    let server = world.serve();
    let client = Client {
        url: server.url.clone(),
        ..client
    };
    let after = client.get(&format!("/v1/events?task_id={task}&limit=200"));
    let after = after["data"].as_array().unwrap().clone();
    assert_eq!(after.len(), before.len());
    for (before, after) in before.iter().zip(&after) {
        if before["event"] == "receipt.issued" {
            assert_eq!(before, after);
            continue;
        }
        assert_eq!(after["payload"]["pruned"], true, "{after}");
        let mut whole = after.clone();
        whole["payload"] = before["payload"].clone();
        assert_eq!(*before, whole);
    }
    let first = text(&after[0], "/id");
    assert_eq!(client.get(&format!("/v1/events/{first}")), after[0]);
    let rest = client.get(&format!("/v1/events?task_id={task}&after_event_id={first}"));
    assert_eq!(rest["data"].as_array().unwrap().len(), after.len() - 1);

    // Replays of it are gone, and so is everything else that needs the record.
    for body in [
        json!({"mode": "exact"}),
        json!({"mode": "from_checkpoint", "checkpoint_id": "artifact_x"}),
    ] {
        for id in [&task, &replayed] {
            let path = format!("/v1/tasks/{id}/replay");
            let (code, refused) = client.call("POST", &path, Some(body.clone()));
            assert_eq!(code, 410, "{refused}");
            assert_eq!(text(&refused, "/error/code"), "cursor_expired");
        }
    }
    let path = format!("/v1/sessions/{session}/replay");
    let (code, refused) = client.call("POST", &path, Some(json!({"mode": "exact"})));
    assert_eq!(code, 410, "{refused}");
    let path = format!("/v1/artifacts/event_log_{task}/content");
    let (code, refused) = client.call("GET", &path, None);
    assert!(matches!(code, 403 | 404 | 410), "{code} {refused}");
    assert!(refused.to_string().contains("pruned"), "{refused}");

    // Its receipt stands.
    let path = format!("/v1/receipts/{receipt}/verify");
    let (code, verdict) = client.call("POST", &path, Some(json!({})));
    assert_eq!(code, 200, "{verdict}");
    assert_eq!(verdict["valid"], true, "{verdict}");
    let materials = &verdict["details"]["materials"];
    assert_eq!(materials["code"], "material_unavailable", "{verdict}");
    assert!(!materials["unavailable"].as_array().unwrap().is_empty());
    world.ok(&["receipt", "verify", &receipt]);

    // What was said is shown as pruned, and nothing fails.
    let messages = client.get(&format!("/v1/sessions/{session}/messages"));
    let messages = messages["data"].as_array().unwrap();
    assert!(messages.len() > 1, "{messages:?}");
    for message in messages {
        let part = &message["parts"][0];
        assert_eq!(part["redacted"], true, "{message}");
        assert_eq!(part["reason"], "pruned");
        assert!(text(part, "/sha256").starts_with("sha256:"));
    }
    for id in [&task, &replayed] {
        let shown = client.get(&format!("/v1/tasks/{id}"));
        assert_eq!(shown["status"], "COMPLETED");
        let input = &shown["input"];
        let redacted = [&input["redacted"], &input["parts"][0]["redacted"]];
        assert!(redacted.contains(&&json!(true)), "{shown}");
        let outcome = text(&shown, "/outcome_id");
        let outcome = client.get(&format!("/v1/outcomes/{outcome}"));
        assert_eq!(outcome["status"], "SUCCEEDED");
        assert_eq!(outcome["metadata"]["reason"], "pruned");
    }
    world.ok(&["task", "list"]);
    world.ok(&["task", "get", &task]);
    // A conversation goes on behind what was pruned, and the waiting task is as it was.
    world.ok(&["task", "submit", "And now?", "--session", &session]);
    let waits = client.get(&format!("/v1/tasks/{waiting}"));
    assert_eq!(waits["status"], "INPUT_REQUIRED", "{waits}");
    let part = &waits["input"]["parts"][0];
    assert_eq!(part["text"], "Do it", "{waits}");
    server.stop();
    world.ok(&["log", "verify"]);
}

/// AP-RPL-19: discovery tells the retention, and nothing younger is pruned.
#[test]
fn ap_rpl_19_nothing_younger_than_the_retention_goes() {
    let world = World::new();
    let file = world.home.path().join("reprise.toml");
    std::fs::write(&file, "retention_days = 30\n").unwrap();
    let config = ["--config", "reprise.toml"];
    let server = world.serve_with(&[&["--listen", "127.0.0.1:0"], &config[..]].concat());
    world.submit("agent");
    let client = Client::of(&world, &server);
    assert_eq!(client.get("/v1")["retention"], json!({"days": 30}));
    server.stop();
    let refused = world.run(&[&["log", "prune", "--older-than-days", "7"], &config[..]].concat());
    assert_eq!(refused.code, 2, "{refused:?}");
    assert!(
        refused.stderr.contains("retention_days, which is 30"),
        "{refused:?}"
    );
    let did = world.json(&[&["log", "prune", "--json"], &config[..]].concat());
    assert_eq!(
        (&did["older_than_days"], &did["tasks"]),
        (&json!(30), &json!(0))
    );
    // Without the setting everything is kept until somebody says otherwise.
    let refused = world.run(&["log", "prune"]);
    assert_eq!(refused.code, 2, "{refused:?}");
    assert!(refused.stderr.contains("kept forever"), "{refused:?}");
    let server = world.serve();
    let client = Client {
        url: server.url.clone(),
        ..client
    };
    assert_eq!(client.get("/v1")["retention"], json!({"days": null}));
}
