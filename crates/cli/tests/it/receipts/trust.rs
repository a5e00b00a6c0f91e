//! Trust records: shown from a server, checked from a file, found in a bundle.

use std::fs;

use serde_json::{Value, json};

use super::get;
use crate::world::World;

/// Runs a task of a session up to its question and decides it.
fn decide(world: &World, session: Option<&str>, approve: bool) -> (String, String) {
    let mut args = vec!["task", "submit", "Do it", "--workflow", "approve", "--json"];
    if let Some(session) = session {
        args.extend(["--session", session]);
    }
    let task = world.json(&args);
    let id = task["id"].as_str().unwrap().to_owned();
    let word = if approve { "--approve" } else { "--deny" };
    world.ok(&["task", "answer", &id, word]);
    // Its receipts are listed as soon as it has ended.
    world.ok(&["receipt", "show", &id]);
    (id, task["session_id"].as_str().unwrap().to_owned())
}

/// Makes hashes and links of changed records fit, as a forger would.
fn relink(mut chain: Value) -> Value {
    let mut previous = Value::Null;
    for record in chain["records"].as_array_mut().unwrap() {
        record["previous_hash"] = previous;
        let mut content = record.clone();
        content.as_object_mut().unwrap().remove("entry_hash");
        previous = json!(canon::sha256(&canon::jcs(&content)).to_string());
        record["entry_hash"] = previous.clone();
    }
    chain["chain"]["root_hash"] = previous;
    chain
}

#[test]
fn decisions_are_shown_exported_and_checked_without_a_server() {
    let world = World::new();
    let server = world.serve();
    let (granted, session) = decide(&world, None, true);
    decide(&world, Some(&session), false);
    let said = world.run(&["receipt", "trust", &granted]);
    assert_eq!(said.code, 0, "{said:?}");
    for word in ["success", "denied", "signatures (2)", "valid"] {
        assert!(said.stdout.contains(word), "{word}: {said:?}");
    }
    let export = world.ok(&["receipt", "trust", &session, "--json"]);
    // U23: the record names the key that decided, and its events say whose that is.
    let told: Value = serde_json::from_str(&export).unwrap();
    let keys = world.json(&["key", "list", "--json"]);
    let mut approvers = keys.as_array().unwrap().iter();
    let approver = approvers.find(|key| key["actor"] == "approver").unwrap();
    for record in told["records"].as_array().unwrap() {
        assert_eq!(record["metadata"]["key_id"], approver["id"], "{record}");
    }
    let home = world.home.path();
    fs::write(home.join("trust.json"), &export).unwrap();
    let receipt = world.ok(&["receipt", "show", &granted, "--wire"]);
    fs::write(home.join("receipt.json"), &receipt).unwrap();
    fs::write(
        home.join("jwks.json"),
        get(&server.url, "/.well-known/jwks.json"),
    )
    .unwrap();
    server.stop();
    world.ok(&["log", "export", "bundle"]);
    world.ok(&["receipt", "verify", "--bundle", "bundle", "--unsigned"]);
    fs::remove_dir_all(world.data()).unwrap();

    let whole = ["--keys", "jwks.json", "--receipt", "receipt.json"];
    let trust =
        |file: &str, args: &[&str]| world.run(&[&["receipt", "trust", file], args].concat());
    let said = trust("trust.json", &whole);
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.stdout.contains("ok    approval/0"), "{said:?}");
    assert!(!said.stdout.contains("not checked"), "{said:?}");
    let said = trust("trust.json", &[]);
    assert_eq!(said.code, 1, "{said:?}");
    let last = Some("whole, but nobody vouches for it: signature_not_checked");
    assert_eq!(said.stdout.lines().last(), last);
    assert_eq!(trust("trust.json", &["--unsigned"]).code, 0);
    let stripped = {
        let mut chain: Value = serde_json::from_str(&export).unwrap();
        chain["records"][0]["outcome"] = json!("denied");
        for record in chain["records"].as_array_mut().unwrap() {
            record["metadata"]["approval"]["signatures"] = json!([]);
        }
        relink(chain)
    };
    fs::write(home.join("stripped.json"), stripped.to_string()).unwrap();
    let said = trust("stripped.json", &["--keys", "jwks.json"]);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.stdout.contains("signature_missing"), "{said:?}");
    fs::write(home.join("none.json"), r#"{"keys":[]}"#).unwrap();
    let said = trust("trust.json", &["--keys", "none.json"]);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.stdout.contains("key_unknown"), "{said:?}");

    let mut changed: Value = serde_json::from_str(&export).unwrap();
    changed["records"][1]["outcome"] = json!("success");
    fs::write(home.join("changed.json"), changed.to_string()).unwrap();
    let said = trust("changed.json", &[]);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(
        said.stdout
            .contains("FAIL  chain at record 2  entry_hash_mismatch"),
        "{said:?}"
    );
    changed["records"] = json!([]);
    changed["chain"]["total"] = json!(0);
    changed["chain"]["root_hash"] = Value::Null;
    fs::write(home.join("empty.json"), changed.to_string()).unwrap();
    let said = trust("empty.json", &whole);
    assert!(
        said.stdout.contains("FAIL  approval/0  evidence_missing"),
        "{said:?}"
    );
    assert_eq!(trust("receipt.json", &[]).code, 1);
    assert_eq!(trust("gone.json", &[]).code, 2);

    // A record that was changed in a bundle: neither its own hash fits, nor what the receipt says of the task's log.
    let file = home.join("bundle/events.jsonl");
    let events = fs::read_to_string(&file).unwrap();
    fs::write(
        &file,
        events.replace("\"outcome\":\"denied\"", "\"outcome\":\"success\""),
    )
    .unwrap();
    let said = world.run(&[
        "receipt",
        "verify",
        "--bundle",
        "bundle",
        "--unsigned",
        "--json",
    ]);
    assert_eq!(said.code, 1);
    for code in ["entry_hash_mismatch", "event_log_mismatch"] {
        assert!(said.stdout.contains(code), "{code}: {}", said.stdout);
    }
}
