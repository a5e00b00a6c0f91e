//! What keeps a log in order, on a log with an imported task.

use serde_json::{Value, json};

use super::{Client, Elsewhere, text};
use crate::world::World;

/// Verify, rebuild and export know an imported task, also beside tasks and replays of this server's own.
#[test]
fn a_log_with_an_imported_task_verifies_rebuilds_and_exports() {
    let there = Elsewhere::new(&["Hello"]);
    let here = World::new();
    let server = here.serve();
    here.submit("agent");
    here.ok(&["log", "import", there.file().to_str().unwrap()]);
    // The newest receipt is another server's while the tree catches up, and then it is not.
    let verified = here.json(&["log", "verify", "--json"]);
    assert_eq!(verified["problems"], json!([]));
    here.submit("agent");
    let replayed = here.json(&["replay", there.id(), "--json"]);
    let session = text(&there.task, "/session_id");
    here.ok(&["task", "submit", "And now?", "--session", session]);
    here.ok(&["receipt", "proof", text(&replayed, "/receipt_id")]);
    server.stop();
    let verified = here.json(&["log", "verify", "--json"]);
    assert_eq!(verified["problems"], json!([]));
    assert_eq!(verified["receipts"], 5);
    let rebuilt = here.json(&["log", "rebuild", "--json"]);
    assert_eq!(rebuilt["problems"], json!([]));
    let exported = here.json(&["log", "export", "bundle", "--json"]);
    assert_eq!(exported["receipts"], 4, "those that were issued here");
    let said = here.run(&["receipt", "verify", "--bundle", "bundle", "--unsigned"]);
    assert_eq!(said.code, 0, "{said:?}");
    // Without the event that brought it, the receipt of the replay hangs off nothing.
    let events = here.home.path().join("bundle/events.jsonl");
    let lines = std::fs::read_to_string(&events).unwrap();
    let lines = lines.replace("vendor.receipt_imported", "vendor.receipt_iNported");
    std::fs::write(&events, lines).unwrap();
    let said = here.run(&["receipt", "verify", "--bundle", "bundle", "--unsigned"]);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.stdout.contains("previous_receipt_missing"), "{said:?}");
}

/// Its retention begins when it comes here; then the bundle goes, and a header and the receipt stay.
#[test]
fn ap_rpl_19_an_imported_task_is_pruned_like_any_other() {
    let there = Elsewhere::new(&["A secret of old"]);
    let here = World::new();
    let server = here.serve();
    let file = there.file();
    let file = file.to_str().unwrap();
    here.ok(&["log", "import", file]);
    // Another one, with much that its log keeps beside itself.
    let bundle = super::vectors::folder().join("agent.bundle");
    here.ok(&["log", "import", bundle.to_str().unwrap()]);
    server.stop();
    let young = here.json(&["log", "prune", "--older-than-days", "1", "--json"]);
    assert_eq!(young["tasks"], 0, "{young}");
    let prune = ["log", "prune", "--older-than-days", "0", "--json"];
    let would = here.json(&[&prune[..], &["--dry-run"]].concat());
    let did = here.json(&prune);
    assert_eq!(
        (&did["tasks"], &did["events"]),
        (&json!(2), &json!(2)),
        "{did}"
    );
    assert_eq!(did["blobs"], would["blobs"], "{would} {did}");
    assert!(did["blobs"].as_u64().unwrap() > 4, "{did}");
    let left = here.json(&["log", "verify", "--json"]);
    assert_eq!(left["blobs"], 2, "the receipts: {left}");
    for command in ["verify", "rebuild"] {
        let said = here.json(&["log", command, "--json"]);
        assert_eq!(
            (&said["problems"], &said["pruned"]),
            (&json!([]), &json!(2))
        );
    }
    here.ok(&["log", "export", "bundle"]);
    here.ok(&["receipt", "verify", "--bundle", "bundle", "--unsigned"]);
    let server = here.serve();
    let client = Client::of(&here, &server);
    let shown = client.get(&format!("/v1/tasks/{}", there.id()));
    assert_eq!(shown["status"], "COMPLETED");
    assert_eq!(shown["created_at"], there.task["created_at"]);
    assert_eq!(shown["input"]["redacted"], true, "{shown}");
    let id = there.id();
    for (method, path) in [
        ("GET", format!("/v1/tasks/{id}/bundle")),
        ("POST", format!("/v1/tasks/{id}/replay")),
    ] {
        let (code, refused) = client.call(method, &path, &[]);
        assert_eq!(code, 410, "{path}: {refused}");
    }
    let receipt = text(&there.task, "/receipt_id");
    let shown = client.get(&format!("/v1/receipts/{receipt}"));
    assert_eq!(shown["id"], receipt);
    let path = format!("/v1/receipts/{receipt}/verify");
    let (_, verdict): (u64, Value) = client.call("POST", &path, &[]);
    let materials = &verdict["details"]["materials"];
    assert_eq!(materials["code"], "material_unavailable", "{verdict}");
    // What retention took does not come back by the same door.
    let (code, refused) = client.import(&there.file(), "", &[]);
    assert_eq!(code, 409, "{refused}");
    assert_eq!(refused["error"]["details"]["reason"], "task_pruned");
}
