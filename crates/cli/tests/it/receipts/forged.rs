//! Exported logs that somebody made up in part: what was taken out, put in its place or changed is named.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::bundle::{agree, copy};
use super::{Ran, get};
use crate::world::World;

/// An exported log: two tasks, each of its own session, an exact replay of the first and one with another answer.
fn exported() -> Ran {
    let world = World::new();
    let server = world.serve();
    let keys = get(&server.url, "/.well-known/jwks.json");
    fs::write(world.home.path().join("jwks.json"), keys).unwrap();
    let mut ran = Ran {
        world,
        server: Some(server),
        tasks: Vec::new(),
        receipts: Vec::new(),
    };
    for text in ["Write a haiku", "Count to three"] {
        let task = ran.world.json(&["task", "submit", text, "--json"]);
        let id = task["id"].as_str().unwrap().to_owned();
        ran.world.ok(&["receipt", "show", &id]);
        ran.tasks.push(id);
    }
    let first = ran.tasks[0].clone();
    for args in [
        &["replay", &first, "--json"][..],
        &[
            "replay",
            &first,
            "--set",
            "llm:main:1=Another answer",
            "--json",
        ],
    ] {
        let said = ran.world.run(args);
        let replay: Value = serde_json::from_str(&said.stdout).unwrap();
        ran.tasks
            .push(replay["task_id"].as_str().unwrap().to_owned());
    }
    // A proof seals a head over everything.
    let last = ran.tasks[3].clone();
    ran.world.ok(&["receipt", "proof", &last]);
    ran.stop();
    ran.world.ok(&["log", "export", "bundle"]);
    ran
}

/// A copy of the bundle that is changed.
struct Forgery<'a> {
    ran: &'a Ran,
    folder: PathBuf,
}

impl<'a> Forgery<'a> {
    fn of(ran: &'a Ran) -> Self {
        let folder = ran.path("forged");
        copy(&ran.path("bundle"), &folder);
        Self { ran, folder }
    }

    fn events(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.folder.join("events.jsonl")).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// Writes events with sequences and links that fit, and a manifest that agrees.
    fn write(&self, events: &mut [Value]) {
        let mut last: std::collections::BTreeMap<String, (u64, Value)> = Default::default();
        let mut text = Vec::new();
        for event in events {
            let resource = event["resource"]["id"].as_str().unwrap().to_owned();
            let (sequence, previous) = last.get(&resource).cloned().unwrap_or_default();
            event["sequence"] = json!(sequence + 1);
            event["previous_event_id"] = previous;
            last.insert(resource, (sequence + 1, event["id"].clone()));
            text.extend(canon::jcs(event));
            text.push(b'\n');
        }
        fs::write(self.folder.join("events.jsonl"), text).unwrap();
    }

    /// Verifies it with a manifest that agrees; returns the codes, without that of the manifest's own signature.
    fn codes(&self) -> BTreeSet<String> {
        agree(&self.folder);
        let file = self.folder.join("manifest.json");
        let mut manifest: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        let blobs = fs::read_dir(self.folder.join("blobs")).unwrap().count();
        manifest["blobs"]["count"] = json!(blobs);
        if !self.folder.join("checkpoint").exists() {
            manifest["files"]
                .as_object_mut()
                .unwrap()
                .remove("checkpoint");
        }
        fs::write(file, manifest.to_string()).unwrap();
        let (said, value) = self
            .ran
            .verify(&["--bundle", "forged", "--keys", "jwks.json"]);
        assert_eq!(said.code, 1, "{said:?}");
        let checks = value["checks"].as_array().unwrap().iter();
        let failed: Vec<&Value> = checks.filter(|check| check["ok"] == false).collect();
        assert_eq!(failed[0]["name"], "manifest", "{value}");
        let codes = failed[1..].iter();
        codes
            .map(|check| check["code"].as_str().unwrap().to_owned())
            .collect()
    }

    fn assert(&self, what: &str, expected: &[&str]) {
        let codes = self.codes();
        for code in expected {
            assert!(codes.contains(*code), "{what}: {code} in {codes:?}");
        }
    }
}

#[test]
fn a_bundle_with_replays_holds_and_says_what_no_receipt_binds() {
    let ran = exported();
    let (said, value) = ran.verify(&["--bundle", "bundle", "--keys", "jwks.json"]);
    assert_eq!(said.code, 0, "{said:?}");
    let names: Vec<&str> = value["checks"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|check| check["name"].as_str())
        .collect();
    assert!(names.contains(&"manifest"), "{names:?}");
    assert!(names.contains(&"replays: 2 run again"), "{names:?}");
    let unbound = value["unbound"].to_string();
    for task in &ran.tasks {
        assert!(unbound.contains(&format!(" of {task}")), "{unbound}");
    }
    assert!(unbound.contains("receipt.issued event_"), "{unbound}");
    // Without the seal the parts are whole, and nobody vouches that nothing was left out.
    let forgery = Forgery::of(&ran);
    fs::remove_file(forgery.folder.join("manifest.note")).unwrap();
    let said = ran.world.run(&[
        "receipt",
        "verify",
        "--bundle",
        "forged",
        "--keys",
        "jwks.json",
    ]);
    assert_eq!(said.code, 1, "{said:?}");
    let last = Some("whole, but nobody vouches for it: export_unsigned");
    assert_eq!(said.stdout.lines().last(), last);
    // So it is with the seal of somebody else.
    let manifest = fs::read(forgery.folder.join("manifest.json")).unwrap();
    let other = receipts::Signer::new("key_x", &[7; 32]);
    let seal = receipts::export::seal(&manifest, "reprise-x/receipts", &other).unwrap();
    fs::write(forgery.folder.join("manifest.note"), seal).unwrap();
    let (_, value) = ran.verify(&["--bundle", "forged", "--keys", "jwks.json"]);
    assert_eq!(value["reason"], "signature_invalid", "{value}");
}

#[test]
fn events_of_a_finished_task_do_not_vanish() {
    let ran = exported();
    let task = ran.tasks[1].as_str();
    let is_its = |event: &Value| event["task_id"] == task && event["event"] != "receipt.issued";
    // An import in their place.
    let forgery = Forgery::of(&ran);
    let mut events = forgery.events();
    let first = events.iter().position(is_its).unwrap();
    let mut import = events[first].clone();
    import["event"] = json!("vendor.task_imported");
    import["payload"] = json!({
        "status": "COMPLETED",
        "bundle_sha256": canon::sha256(b"nothing").to_string(),
    });
    events.retain(|event| !is_its(event));
    events.insert(first, import);
    forgery.write(&mut events);
    forgery.assert("an import", &["event_log_mismatch", "material_unavailable"]);
    // Made-up headers in their place.
    let forgery = Forgery::of(&ran);
    let mut events = forgery.events();
    for event in events.iter_mut().filter(|event| is_its(event)) {
        event["payload"] = json!({"pruned": true, "sha256": canon::sha256(b"x").to_string()});
        event["actor"] = json!("mallory");
    }
    forgery.write(&mut events);
    forgery.assert("headers", &["pruned_unproven"]);
    // Nothing in their place.
    let forgery = Forgery::of(&ran);
    let mut events = forgery.events();
    events.retain(|event| !is_its(event));
    forgery.write(&mut events);
    forgery.assert("nothing", &["event_log_mismatch"]);
}

#[test]
fn a_deleted_checkpoint_a_cut_tree_and_missing_blobs_are_named() {
    let ran = exported();
    let forgery = Forgery::of(&ran);
    fs::remove_file(forgery.folder.join("checkpoint")).unwrap();
    forgery.assert("no checkpoint", &["checkpoint_missing"]);
    // The last receipt goes too, and its task is said to have left none.
    let file = forgery.folder.join("receipts.jsonl");
    let text = fs::read_to_string(&file).unwrap();
    let kept: Vec<&str> = text.lines().take(3).collect();
    fs::write(&file, kept.join("\n") + "\n").unwrap();
    let mut events = forgery.events();
    let gone = ran.tasks[3].as_str();
    events.retain(|event| !(event["task_id"] == gone && event["event"] == "receipt.issued"));
    for event in &mut events {
        if event["task_id"] == gone && event["event"] == "task.submitted" {
            event["payload"]["receipt_policy"] = json!("disabled");
        }
    }
    forgery.write(&mut events);
    forgery.assert("a cut tree", &["checkpoint_missing", "merkle_mismatch"]);
    // Each blob by its name.
    let forgery = Forgery::of(&ran);
    let blobs: Vec<PathBuf> = fs::read_dir(forgery.folder.join("blobs"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert!(blobs.len() > 5, "{blobs:?}");
    for blob in blobs {
        let bytes = fs::read(&blob).unwrap();
        fs::remove_file(&blob).unwrap();
        agree(&forgery.folder);
        let (said, _) = ran.verify(&["--bundle", "forged", "--keys", "jwks.json"]);
        assert_eq!(said.code, 1);
        let name = format!("blob {}", blob.file_name().unwrap().to_str().unwrap());
        assert!(said.stdout.contains(&name), "{name}: {said:?}");
        assert!(said.stdout.contains("material_unavailable"), "{said:?}");
        fs::write(&blob, bytes).unwrap();
    }
}

/// The receipt of a replay commits to its source's log: its own events are confirmed by running it again.
#[test]
fn events_and_receipts_of_a_replay_are_bound() {
    let ran = exported();
    let mut changed = 0;
    let forgery = Forgery::of(&ran);
    let count = forgery.events().len();
    for index in 0..count {
        let mut events = forgery.events();
        let event = &mut events[index];
        let is_replay = ran.tasks[2..].iter().any(|task| event["task_id"] == **task);
        let kind = event["event"].as_str().unwrap().to_owned();
        // Who asked for it and when its receipt was stored is named as bound by nothing.
        if !is_replay || kind == "receipt.issued" || kind == "task.submitted" {
            continue;
        }
        let forgery = Forgery::of(&ran);
        event["payload"]["forged"] = json!(true);
        forgery.write(&mut events);
        let codes = forgery.codes();
        let seen = codes.contains("replay_mismatch") || codes.contains("event_after_end");
        assert!(seen, "{kind}: {codes:?}");
        changed += 1;
    }
    assert!(changed > 20, "{changed}");
    // Who did it, about what, and how it went on.
    for (kind, path, value) in [
        ("task.started", "/actor", "mallory"),
        ("task.completed", "/actor", "mallory"),
        ("task.started", "/idempotency_key", "once"),
        ("task.status_changed", "/payload/from", "PAUSED"),
        ("task.completed", "/payload/outcome_id", "outcome_other"),
        ("task.submitted", "/payload/workflow", "hold"),
    ] {
        let forgery = Forgery::of(&ran);
        let mut events = forgery.events();
        let event = events
            .iter_mut()
            .find(|event| event["event"] == kind && event["task_id"] == *ran.tasks[2]);
        *event.unwrap().pointer_mut(path).unwrap() = json!(value);
        forgery.write(&mut events);
        forgery.assert(path, &["replay_mismatch"]);
    }
    for kind in [
        "task.submitted",
        "vendor.outcome_recorded",
        "replay.completed",
        "agent.message",
    ] {
        let forgery = Forgery::of(&ran);
        let mut events = forgery.events();
        let at = events
            .iter()
            .position(|event| event["event"] == kind && event["task_id"] == *ran.tasks[2]);
        events.remove(at.unwrap_or_else(|| panic!("no {kind}")));
        forgery.write(&mut events);
        forgery.assert(kind, &["replay_mismatch"]);
    }
    // A receipt of a replay once more.
    let forgery = Forgery::of(&ran);
    let file = forgery.folder.join("receipts.jsonl");
    let text = fs::read_to_string(&file).unwrap();
    let copied = format!("{text}{}\n", text.lines().last().unwrap());
    fs::write(&file, copied).unwrap();
    forgery.assert("a copied receipt", &["receipt_duplicate"]);
}

#[test]
fn a_line_without_end_is_refused_before_it_fills_the_memory() {
    let ran = exported();
    let forgery = Forgery::of(&ran);
    let file = fs::File::create(forgery.folder.join("events.jsonl")).unwrap();
    // A hole: it has the length, and takes no place on the disk.
    file.set_len(100 << 30).unwrap();
    let said = ran.world.run(&[
        "receipt",
        "verify",
        "--bundle",
        "forged",
        "--keys",
        "jwks.json",
    ]);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.stderr.contains("a line of more than"), "{said:?}");
}
