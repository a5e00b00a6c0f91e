//! Receipts on the real program: on a server, in files, in bundles; every kind of damage from outside.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use store::tamper::Tamper;

use crate::world::{Said, Server, World, said};

/// A server that ran some tasks of one session, with their receipts as files.
struct Ran {
    world: World,
    server: Option<Server>,
    tasks: Vec<String>,
    receipts: Vec<String>,
}

impl Ran {
    fn new(count: usize) -> Self {
        let world = World::new();
        let server = world.serve();
        let mut ran = Self {
            world,
            server: Some(server),
            tasks: Vec::new(),
            receipts: Vec::new(),
        };
        let mut session: Option<String> = None;
        for _ in 0..count {
            let mut args = vec!["task", "submit", "Do it", "--json"];
            if let Some(session) = &session {
                args.extend(["--session", session]);
            }
            let task = ran.world.json(&args);
            session = Some(task["session_id"].as_str().unwrap().to_owned());
            let id = task["id"].as_str().unwrap().to_owned();
            let shown = ran.world.json(&["receipt", "show", &id, "--json"]);
            ran.tasks.push(id);
            ran.receipts.push(shown["id"].as_str().unwrap().to_owned());
        }
        ran
    }

    fn path(&self, name: &str) -> PathBuf {
        self.world.home.path().join(name)
    }

    fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop();
        }
    }

    /// Saves the bare receipt of each task, the keys and the last receipt's proof.
    fn save(&self) {
        for (number, receipt) in self.receipts.iter().enumerate() {
            let bare = self.world.ok(&["receipt", "show", receipt, "--wire"]);
            fs::write(self.path(&format!("r{number}.json")), bare).unwrap();
        }
        let last = self.receipts.last().unwrap();
        let proof = self.world.ok(&["receipt", "proof", last]);
        fs::write(self.path("proof.json"), proof).unwrap();
        let keys = get(&self.server.as_ref().unwrap().url, "/.well-known/jwks.json");
        fs::write(self.path("jwks.json"), keys).unwrap();
    }

    fn verify(&self, args: &[&str]) -> (Said, Value) {
        let args = [&["receipt", "verify", "--json"], args].concat();
        let said = self.world.run(&args);
        let value = serde_json::from_str(&said.stdout).unwrap_or_default();
        (said, value)
    }

    fn damage(&self) -> Tamper {
        Tamper::open(&self.world.data())
    }
}

fn get(url: &str, path: &str) -> String {
    let output = std::process::Command::new("curl")
        .args(["-sS", "--fail", &format!("{url}{path}")])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_receipt_is_unverified_until_somebody_verified_it() {
    let ran = Ran::new(1);
    let shown = ran.world.ok(&["receipt", "show", &ran.tasks[0]]);
    assert!(shown.contains("unverified"), "{shown}");
    assert!(!shown.contains(" valid"), "{shown}");
    let said = ran.world.run(&["receipt", "verify", &ran.receipts[0]]);
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.stdout.ends_with("valid\n"), "{said:?}");
    let shown = ran.world.ok(&["receipt", "show", &ran.receipts[0]]);
    assert!(shown.contains("valid when checked at"), "{shown}");
    let said = ran.world.run(&[
        "receipt",
        "verify",
        &ran.receipts[0],
        "--trust-anchor",
        "other",
    ]);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(
        said.stdout.contains("FAIL  anchor  untrusted_anchor"),
        "{said:?}"
    );
    let shown = ran.world.ok(&["receipt", "show", &ran.receipts[0]]);
    assert!(shown.contains("INVALID (untrusted_anchor)"), "{shown}");
    assert_ne!(ran.world.run(&["receipt", "show", "receipt_none"]).code, 0);
    let waiting = ran.world.submit("ask");
    let said = ran.world.run(&["receipt", "show", &waiting]);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.stderr.contains("no receipt yet"), "{said:?}");
}

#[test]
fn files_are_verified_without_any_server() {
    let mut ran = Ran::new(3);
    ran.save();
    ran.stop();
    fs::remove_dir_all(ran.world.data()).unwrap();
    let whole = [
        "r2.json",
        "--keys",
        "jwks.json",
        "--previous",
        "r1.json",
        "--proof",
        "proof.json",
    ];
    let (said, value) = ran.verify(&whole);
    assert_eq!(said.code, 0, "{said:?}");
    assert_eq!(value["valid"], true);
    assert_eq!(value["not_checked"], json!(["references"]));
    let names: Vec<&str> = value["checks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|check| check["name"].as_str().unwrap())
        .collect();
    for name in [
        "schema",
        "hash",
        "chain",
        "checkpoint",
        "inclusion",
        "signature/0",
    ] {
        assert!(names.contains(&name), "{names:?}");
    }
    let (said, value) = ran.verify(&["r2.json"]);
    assert_eq!(said.code, 0);
    assert_eq!(
        value["not_checked"],
        json!(["signatures", "chain", "inclusion", "references"])
    );
    assert_eq!(
        ran.verify(&["r0.json", "--first", "--keys", "jwks.json"])
            .0
            .code,
        0
    );

    let failing: [(&[&str], &str); 6] = [
        (&["r2.json", "--previous", "r0.json"], "chain_mismatch"),
        (&["r2.json", "--first"], "previous_receipt_missing"),
        (
            &["r1.json", "--keys", "jwks.json", "--proof", "proof.json"],
            "merkle_mismatch",
        ),
        (
            &[
                "r2.json",
                "--keys",
                "jwks.json",
                "--trust-anchor",
                "key_else",
            ],
            "untrusted_anchor",
        ),
        (&["r2.json", "--keys", "other.json"], "key_unknown"),
        (&["r2.json", "--keys", "past.json"], "key_not_valid_at_time"),
    ];
    fs::write(ran.path("other.json"), r#"{"keys":[]}"#).unwrap();
    let keys = fs::read_to_string(ran.path("jwks.json")).unwrap();
    fs::write(
        ran.path("past.json"),
        keys.replace("\"kid\"", "\"exp\":1,\"kid\""),
    )
    .unwrap();
    for (args, code) in failing {
        let (said, value) = ran.verify(args);
        assert_eq!(said.code, 1, "{args:?} {said:?}");
        assert_eq!(value["reason"], code, "{args:?}");
    }
    let text = fs::read_to_string(ran.path("r2.json")).unwrap();
    for (from, to, code) in [
        ("SUCCEEDED", "FAILED", "receipt_hash_mismatch"),
        ("\"schema\"", "\"schemb\"", "schema_invalid"),
        ("ed25519", "ed25518", "algorithm_unsupported"),
        ("{", "{\"schema\":1,", "schema_invalid"),
    ] {
        fs::write(ran.path("bad.json"), text.replacen(from, to, 1)).unwrap();
        let (said, value) = ran.verify(&["bad.json", "--keys", "jwks.json"]);
        assert_eq!(
            (said.code, value["reason"].as_str()),
            (1, Some(code)),
            "{said:?}"
        );
    }
    let said = ran
        .world
        .run(&["receipt", "verify", "bad.json", "--keys", "jwks.json"]);
    assert!(
        said.stdout.contains("FAIL  schema  schema_invalid"),
        "{said:?}"
    );
    assert!(
        said.stdout.contains("expected") && said.stdout.contains("found"),
        "{said:?}"
    );
    let fault = ran
        .world
        .run(&["receipt", "verify", "r2.json", "--keys", "nothing.json"]);
    assert_eq!(fault.code, 2, "{fault:?}");
    let fault = ran
        .world
        .run(&["receipt", "verify", "gone.json", "--keys", "jwks.json"]);
    assert_eq!(fault.code, 2, "{fault:?}");
}

/// Changes the stored bytes of a receipt behind the server's back.
fn rewrite(ran: &Ran, number: usize, from: &str, to: &str) -> Vec<u8> {
    let bare = ran
        .world
        .ok(&["receipt", "show", &ran.receipts[number], "--wire"]);
    let changed = bare.replacen(from, to, 1);
    assert_ne!(changed, bare, "{from}");
    let digest = canon::sha256(bare.as_bytes());
    assert!(
        ran.damage()
            .blob(&digest, |bytes| *bytes = changed.into_bytes())
    );
    bare.into_bytes()
}

fn restore(ran: &Ran, bytes: &[u8]) {
    let digest = canon::sha256(bytes);
    assert!(
        ran.damage()
            .blob(&digest, |stored| *stored = bytes.to_vec())
    );
}

/// AP-RCPT-07 and AP-RCPT-08: one damage per step of the verification, each in the database of a running server.
#[test]
fn each_step_of_the_verification_sees_its_own_damage() {
    let ran = Ran::new(3);
    let reason = |number: usize, args: &[&str]| {
        let args = [&[ran.receipts[number].as_str()][..], args].concat();
        let (said, value) = ran.verify(&args);
        assert_eq!(said.code, 1, "{said:?}");
        value["reason"].as_str().unwrap().to_owned()
    };
    for (from, to, code) in [
        ("\"SUCCEEDED\"", "\"SUCCEEDEE\"", "schema_invalid"),
        ("{", "{ ", "not_canonical"),
        ("\"SUCCEEDED\"", "\"FAILED\"", "receipt_hash_mismatch"),
        ("base64:", "base64:A", "signature_invalid"),
        ("\"key_id\":\"key_", "\"key_id\":\"kex_", "key_unknown"),
        ("\"ed25519\"", "\"ed448\"", "algorithm_unsupported"),
    ] {
        let bytes = rewrite(&ran, 1, from, to);
        assert_eq!(reason(1, &[]), code);
        restore(&ran, &bytes);
        assert_eq!(ran.verify(&[&ran.receipts[1]]).0.code, 0, "{code}");
    }
    assert_eq!(reason(1, &["--trust-anchor", "nobody"]), "untrusted_anchor");
    // The chain: the receipt before says something else, or is gone.
    let first = &ran.receipts[0];
    let swap = |from: &str, to: &str| {
        ran.damage()
            .document(first, |text| *text = text.replace(from, to));
    };
    swap(
        "\"receipt_hash\":\"sha256:",
        "\"receipt_hash\":\"sha256:0000000000000000000000000000000000000000000000000000000000000000\",\"was\":\"sha256:",
    );
    assert_eq!(reason(1, &[]), "chain_mismatch");
    swap(
        "\"receipt_hash\":\"sha256:0000000000000000000000000000000000000000000000000000000000000000\",\"was\":\"sha256:",
        "\"receipt_hash\":\"sha256:",
    );
    assert_eq!(ran.verify(&[&ran.receipts[1]]).0.code, 0);
    ran.damage().set(first, "kind = 99");
    assert_eq!(reason(1, &[]), "previous_receipt_missing");
    ran.damage().set(first, "kind = 9");
    assert_eq!(ran.verify(&[&ran.receipts[1]]).0.code, 0);
    // The tree.
    ran.damage()
        .execute("UPDATE tree_hashes SET hash = zeroblob(32) WHERE level = 0 AND idx = 0");
    assert_eq!(reason(1, &[]), "merkle_mismatch");
    assert_eq!(reason(2, &[]), "merkle_mismatch");
    // The events that the receipt commits to.
    let task = ran.damage().key(&ran.tasks[0]);
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let mut events = ran.damage().all_events();
    events.retain(|event| event.links.task == Some(task) && text(&event.bytes).contains("offline"));
    ran.damage().event(events.pop().unwrap().position, |event| {
        let changed = text(&event.bytes).replace("offline", "offlane");
        event.bytes = changed.into_bytes().into();
    });
    let (_, value) = ran.verify(&[&ran.receipts[0]]);
    let failed: Vec<&Value> = value["checks"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|check| check["ok"] == false)
        .collect();
    assert!(
        failed
            .iter()
            .any(|check| check["code"] == "material_mismatch"),
        "{value}"
    );
}

#[test]
fn a_kill_right_after_the_submit_loses_no_leaf() {
    let world = World::new();
    for expected in 0..3 {
        let mut command = world.command(&["serve", "--listen", "127.0.0.1:0"]);
        // The tree lags behind as far as it can.
        command.env("REPRISE_LIMITS_LEAF_INTERVAL_MS", "3600000");
        let server = Server::start(&mut command).unwrap_or_else(|said| panic!("{said:?}"));
        if expected > 0 {
            let tasks = world.json(&["task", "list", "--json"]);
            for (index, task) in tasks.as_array().unwrap().iter().enumerate() {
                let proof = world.json(&["receipt", "proof", task["id"].as_str().unwrap()]);
                assert_eq!(proof["leaf_index"], index);
                // The first asked for may be covered by an older head.
                assert!(
                    proof["tree_size"].as_u64().unwrap() > index as u64,
                    "{proof}"
                );
            }
            assert_eq!(tasks.as_array().unwrap().len(), expected);
            world.ok(&["log", "export", &format!("bundle{expected}")]);
            world.ok(&[
                "receipt",
                "verify",
                "--bundle",
                &format!("bundle{expected}"),
            ]);
        }
        world.submit("agent");
        server.kill();
        world.ok(&["log", "verify"]);
    }
}

#[test]
fn a_rotated_key_leaves_old_receipts_valid() {
    let mut ran = Ran::new(1);
    let said = ran.world.run(&["receipt", "rotate-key"]);
    assert_eq!(said.code, 2, "a server holds the directory: {said:?}");
    ran.stop();
    let rotated = ran.world.json(&["receipt", "rotate-key", "--json"]);
    assert_ne!(rotated["active"], rotated["previous"]);
    ran.server = Some(ran.world.serve());
    assert_eq!(ran.verify(&[&ran.receipts[0]]).0.code, 0);
    // A key that begins now must not be asked to vouch for this very second's past.
    let task = ran.world.submit("agent");
    let shown = ran.world.json(&["receipt", "show", &task, "--json"]);
    assert_eq!(shown["signatures"][0]["key_id"], rotated["active"]);
    assert_eq!(ran.verify(&[&task]).0.code, 0);
    let (_, value) = ran.verify(&[&task, "--at-time", "2020-01-01T00:00:00Z"]);
    assert_eq!(value["reason"], "key_not_valid_at_time");
    let keys: Value = serde_json::from_str(&get(
        &ran.server.as_ref().unwrap().url,
        "/.well-known/jwks.json",
    ))
    .unwrap();
    assert_eq!(keys["keys"].as_array().unwrap().len(), 2);
    assert!(keys["keys"][0]["exp"].is_i64(), "{keys}");
    assert!(!keys.to_string().contains("\"d\""));
    let text = fs::read_to_string(ran.world.data().join("signing-keys.json")).unwrap();
    for word in text.split('"').filter(|word| word.len() == 43) {
        assert!(!keys.to_string().contains(word), "a seed is published");
    }
}

#[test]
fn a_key_file_that_cannot_be_read_stops_the_start_with_advice() {
    let world = World::new();
    world.serve().stop();
    let file = world.data().join("signing-keys.json");
    let good = fs::read_to_string(&file).unwrap();
    for bad in ["", "{", &good.replace("seed", "sead")] {
        fs::write(&file, bad).unwrap();
        let said = world.run(&["serve", "--listen", "127.0.0.1:0"]);
        assert_eq!(said.code, 2, "{said:?}");
        assert!(said.stderr.contains("signing-keys.json"), "{said:?}");
        assert!(
            said.stderr.contains("hint: restore it from a backup"),
            "{said:?}"
        );
        assert_eq!(fs::read_to_string(&file).unwrap(), bad, "left alone");
    }
    fs::write(&file, good).unwrap();
    world.serve().stop();
}

#[test]
fn json_is_written_canonically() {
    let world = World::new();
    let run = |args: &[&str], input: &str| {
        let file = world.home.path().join("input.json");
        fs::write(&file, input).unwrap();
        let mut command = world.command(&[&["canonicalize"], args].concat());
        command.stdin(fs::File::open(file).unwrap());
        said(command)
    };
    let text = "{ \"b\": 1.0, \"a\": [\"\\u00e9\", 1.0e-7], \"10\": 0, \"9\": -0 }\n";
    assert_eq!(
        run(&[], text).stdout,
        r#"{"10":0,"9":0,"a":["é",1e-7],"b":1}"#
    );
    let js = run(&["--profile", "ahd-js-1"], text);
    assert_eq!(js.stdout, r#"{"9":0,"10":0,"a":["é",1e-7],"b":1}"#);
    for bad in [
        "",
        "{\"a\":1,\"a\":2}",
        "9007199254740993",
        "\"\\ud800\"",
        "[1] x",
    ] {
        let said = run(&[], bad);
        assert_eq!((said.code, said.stdout.as_str()), (2, ""), "{bad} {said:?}");
        assert!(said.stderr.contains("hint: "), "{said:?}");
    }
}

/// An exported log with receipts that the checkpoint covers.
fn bundle() -> Ran {
    let mut ran = Ran::new(4);
    ran.save();
    ran.stop();
    let exported = ran.world.json(&["log", "export", "bundle", "--json"]);
    assert_eq!(exported["receipts"], 4, "{exported}");
    ran
}

fn copy(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Makes the manifest agree with files that were changed, as a careful forger would.
fn agree(bundle: &Path) {
    let file = bundle.join("manifest.json");
    let mut manifest: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    for name in ["events.jsonl", "receipts.jsonl", "keys.json", "checkpoint"] {
        if let Ok(bytes) = fs::read(bundle.join(name)) {
            manifest["files"][name]["sha256"] = json!(canon::sha256(&bytes).to_string());
        }
    }
    let lines = |name: &str| {
        fs::read_to_string(bundle.join(name))
            .unwrap()
            .lines()
            .count()
    };
    manifest["events"] = json!(lines("events.jsonl"));
    manifest["receipts"] = json!(lines("receipts.jsonl"));
    fs::write(file, manifest.to_string()).unwrap();
}

#[test]
fn a_bundle_is_verified_as_a_whole() {
    let ran = bundle();
    let (said, value) = ran.verify(&["--bundle", "bundle", "--keys", "jwks.json"]);
    assert_eq!(said.code, 0, "{said:?}");
    assert_eq!(
        value["signatures"],
        json!({"covered": 4, "checked": 0, "failed": 0, "unsigned": 0})
    );
    assert_eq!(value["receipts"], 4);
    let (_, value) = ran.verify(&["--bundle", "bundle", "--all-signatures"]);
    assert_eq!(value["signatures"]["checked"], 4);
    let text = ran.world.ok(&["receipt", "verify", "--bundle", "bundle"]);
    assert!(
        text.contains("signatures: 4 covered by the signed checkpoint"),
        "{text}"
    );
    assert!(
        text.contains("the keys come from the bundle itself"),
        "{text}"
    );
    // A proof from the bundle alone leads to the checkpoint.
    let proof = ran
        .world
        .ok(&["receipt", "proof", &ran.receipts[1], "--bundle", "bundle"]);
    fs::write(ran.path("p1.json"), proof).unwrap();
    let args = [
        "r1.json",
        "--keys",
        "jwks.json",
        "--proof",
        "p1.json",
        "--previous",
        "r0.json",
    ];
    assert_eq!(ran.verify(&args).0.code, 0);
    let by_file = ran
        .world
        .json(&["receipt", "proof", "r1.json", "--bundle", "bundle"]);
    assert_eq!(by_file["leaf_index"], 1);
    assert_eq!(
        ran.world
            .run(&["receipt", "proof", "receipt_x", "--bundle", "bundle"])
            .code,
        1
    );
    assert_eq!(
        ran.world
            .run(&["receipt", "verify", "--bundle", "nowhere"])
            .code,
        2
    );
}

#[test]
fn whatever_is_changed_in_a_bundle_is_seen() {
    let ran = bundle();
    let whole = ran.path("bundle");
    let changed = ran.path("changed");
    let lines = |name: &str| -> Vec<String> {
        let text = fs::read_to_string(whole.join(name)).unwrap();
        text.lines().map(str::to_owned).collect()
    };
    let write = |name: &str, lines: &[String]| {
        fs::write(changed.join(name), lines.join("\n") + "\n").unwrap();
    };
    let receipts = lines("receipts.jsonl");
    let events = lines("events.jsonl");
    let of_task = |kind: &str| {
        events.iter().position(|line| {
            let event: Value = serde_json::from_str(line).unwrap();
            event["event"] == kind && event["task_id"].is_string()
        })
    };
    let recorded = of_task("vendor.effect_recorded").unwrap();
    let without = |lines: &[String], at: usize| {
        let mut lines = lines.to_vec();
        lines.remove(at);
        lines
    };
    let swapped = |lines: &[String], at: usize| {
        let mut lines = lines.to_vec();
        lines.swap(at, at + 1);
        lines
    };
    let replaced = |lines: &[String], at: usize, line: String| {
        assert_ne!(lines[at], line);
        let mut lines = lines.to_vec();
        lines[at] = line;
        lines
    };
    let appended = |lines: &[String], line: &str| {
        let mut lines = lines.to_vec();
        lines.push(line.to_owned());
        lines
    };
    let another = receipts[3].replace("SUCCEEDED", "FAILED");
    let cases: Vec<(&str, &str, Vec<String>, &[&str])> = vec![
        (
            "a receipt removed",
            "receipts.jsonl",
            without(&receipts, 1),
            &["chain_mismatch", "merkle_mismatch", "receipt_missing"],
        ),
        (
            "the last receipt removed",
            "receipts.jsonl",
            without(&receipts, 3),
            &["merkle_mismatch", "receipt_missing"],
        ),
        (
            "receipts reordered",
            "receipts.jsonl",
            swapped(&receipts, 1),
            &["chain_mismatch", "merkle_mismatch"],
        ),
        (
            "a receipt replaced",
            "receipts.jsonl",
            replaced(&receipts, 3, another),
            &["receipt_hash_mismatch", "merkle_mismatch"],
        ),
        (
            "a receipt repeated",
            "receipts.jsonl",
            appended(&receipts, &receipts[3]),
            &["chain_mismatch", "receipt_duplicate"],
        ),
        (
            "an event removed",
            "events.jsonl",
            without(&events, recorded),
            &["event_log_mismatch", "event_link"],
        ),
        (
            "events reordered",
            "events.jsonl",
            swapped(&events, recorded),
            &["event_log_mismatch", "event_order"],
        ),
        (
            "an event replaced",
            "events.jsonl",
            replaced(
                &events,
                recorded,
                events[recorded].replace("offline", "offlane"),
            ),
            &["event_log_mismatch"],
        ),
        (
            "an event repeated",
            "events.jsonl",
            appended(&events, &events[recorded]),
            &["event_order", "event_after_end"],
        ),
    ];
    for (what, name, lines, codes) in cases {
        copy(&whole, &changed);
        write(name, &lines);
        // As it is, the manifest tells.
        let (said, value) = ran.verify(&["--bundle", "changed", "--keys", "jwks.json"]);
        assert_eq!(said.code, 1, "{what}");
        let found = |value: &Value| -> Vec<String> {
            let checks = value["checks"].as_array().unwrap().iter();
            checks
                .filter_map(|check| check["code"].as_str().map(str::to_owned))
                .collect()
        };
        assert!(
            found(&value).contains(&"manifest_mismatch".to_owned()),
            "{what}: {value}"
        );
        // With a manifest that agrees, chain, tree and event logs tell.
        agree(&changed);
        let (said, value) = ran.verify(&["--bundle", "changed", "--keys", "jwks.json"]);
        assert_eq!(said.code, 1, "{what}");
        let found = found(&value);
        assert!(
            !found.contains(&"manifest_mismatch".to_owned()),
            "{what}: {found:?}"
        );
        for code in codes {
            assert!(
                found.contains(&(*code).to_owned()),
                "{what}: {code} in {found:?}"
            );
        }
    }
    // A checkpoint by another key, and an older one that covers less.
    copy(&whole, &changed);
    let checkpoint = fs::read_to_string(whole.join("checkpoint")).unwrap();
    fs::write(
        changed.join("checkpoint"),
        checkpoint.replacen("\n4\n", "\n3\n", 1),
    )
    .unwrap();
    agree(&changed);
    let (_, value) = ran.verify(&["--bundle", "changed", "--keys", "jwks.json"]);
    assert_eq!(value["reason"], "signature_invalid", "{value}");
    // Without the checkpoint nothing is covered: each signature is checked.
    copy(&whole, &changed);
    let (_, value) = ran.verify(&[
        "--bundle",
        "bundle",
        "--all-signatures",
        "--trust-anchor",
        "nobody",
    ]);
    assert_eq!(value["valid"], false);
    // A blob.
    let blob = fs::read_dir(changed.join("blobs"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let mut bytes = fs::read(&blob).unwrap();
    bytes.push(b' ');
    fs::write(&blob, bytes).unwrap();
    let (_, value) = ran.verify(&["--bundle", "changed"]);
    assert_eq!(value["reason"], "blob_mismatch", "{value}");
}

#[test]
fn signatures_beyond_the_checkpoint_are_checked_one_by_one() {
    let ran = bundle();
    let changed = ran.path("changed");
    copy(&ran.path("bundle"), &changed);
    // An older checkpoint: what it does not cover has its own signature.
    let proof: Value = serde_json::from_slice(&fs::read(ran.path("proof.json")).unwrap()).unwrap();
    assert_eq!(proof["tree_size"], 4);
    fs::remove_file(changed.join("checkpoint")).unwrap();
    let file = changed.join("manifest.json");
    let mut manifest: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    manifest["files"]
        .as_object_mut()
        .unwrap()
        .remove("checkpoint");
    fs::write(&file, manifest.to_string()).unwrap();
    let (said, value) = ran.verify(&["--bundle", "changed", "--keys", "jwks.json"]);
    assert_eq!(said.code, 0, "{said:?}");
    assert_eq!(value["signatures"]["checked"], 4);
    assert_eq!(value["not_checked"], json!(["checkpoint"]));
    // A receipt that nobody signed does not slip in.
    let text = fs::read_to_string(changed.join("receipts.jsonl")).unwrap();
    let start = text.find("\"signatures\":[").unwrap();
    let end = start + text[start..].find(']').unwrap();
    let unsigned = format!("{}\"signatures\":[{}", &text[..start], &text[end..]);
    fs::write(changed.join("receipts.jsonl"), unsigned).unwrap();
    agree(&changed);
    let (said, value) = ran.verify(&["--bundle", "changed", "--keys", "jwks.json"]);
    assert_eq!(said.code, 1);
    assert_eq!(value["reason"], "signature_missing", "{value}");
}
