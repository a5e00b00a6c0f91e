//! A whole exported log: verified at once, and every change in it seen.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::Ran;

/// An exported log with receipts that the checkpoint covers.
fn bundle() -> Ran {
    let mut ran = Ran::new(4);
    ran.save();
    ran.stop();
    let exported = ran.world.json(&["log", "export", "bundle", "--json"]);
    assert_eq!(exported["receipts"], 4, "{exported}");
    ran
}

pub(super) fn copy(from: &Path, to: &Path) {
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
pub(super) fn agree(bundle: &Path) {
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
    assert_eq!(value["signed_by"].as_array().unwrap().len(), 1);
    let (_, value) = ran.verify(&["--bundle", "bundle", "--all-signatures", "--unsigned"]);
    assert_eq!(value["signatures"]["checked"], 4);
    // Keys that come with the bundle are anybody's; the thumbprint of one says which key is meant.
    let said = ran.world.run(&["receipt", "verify", "--bundle", "bundle"]);
    assert_eq!(said.code, 1, "{said:?}");
    let text = said.stdout;
    assert_eq!(
        text.lines().last(),
        Some("whole, but nobody vouches for it: keys_not_given")
    );
    let keys = fs::read(ran.path("jwks.json")).unwrap();
    let key = receipts::KeySet::from_jwks(&keys).unwrap().keys()[0].clone();
    for (anchor, code) in [(key.thumbprint(), 0), (key.key_id, 1)] {
        let args = ["--bundle", "bundle", "--trust-anchor", &anchor];
        assert_eq!(ran.verify(&args).0.code, code, "{anchor}");
    }
    assert!(
        text.contains("signatures: 4 covered by the signed checkpoint"),
        "{text}"
    );
    assert!(
        text.contains("keys that come from the bundle itself"),
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
    let (said, _) = ran.verify(&["--bundle", "changed", "--keys", "jwks.json"]);
    assert!(said.stdout.contains("blob_mismatch"), "{said:?}");
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
    // Events tell of its head: without the file it was taken away, and so is the seal of the manifest broken.
    let (said, value) = ran.verify(&["--bundle", "changed", "--keys", "jwks.json"]);
    assert_eq!(said.code, 1, "{said:?}");
    assert_eq!(value["signatures"]["checked"], 4);
    let codes: Vec<&str> = value["checks"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|check| check["code"].as_str())
        .collect();
    assert_eq!(codes, ["signature_invalid", "checkpoint_missing"]);
    // A receipt that nobody signed does not slip in.
    let text = fs::read_to_string(changed.join("receipts.jsonl")).unwrap();
    let start = text.find("\"signatures\":[").unwrap();
    let end = start + text[start..].find(']').unwrap();
    let unsigned = format!("{}\"signatures\":[{}", &text[..start], &text[end..]);
    fs::write(changed.join("receipts.jsonl"), unsigned).unwrap();
    agree(&changed);
    let (said, value) = ran.verify(&["--bundle", "changed", "--keys", "jwks.json"]);
    assert_eq!(said.code, 1);
    assert!(said.stdout.contains("signature_missing"), "{value}");
}

/// A replay repeats the trust records of its source: they belong to no chain of their own, and an honest export stays valid.
#[test]
fn replays_of_decided_tasks_leave_a_bundle_valid() {
    let mut ran = Ran::new(1);
    ran.save();
    let submit = |session: Option<&str>| {
        let mut args = vec!["task", "submit", "Do it", "--workflow", "ask", "--json"];
        args.extend(
            session
                .into_iter()
                .flat_map(|session| ["--session", session]),
        );
        ran.world.json(&args)
    };
    let first = submit(None);
    let session = first["session_id"].as_str().unwrap().to_owned();
    let second = submit(Some(&session));
    for task in [&first, &second] {
        ran.world
            .ok(&["task", "answer", task["id"].as_str().unwrap(), "yes"]);
        ran.world
            .ok(&["task", "watch", task["id"].as_str().unwrap()]);
    }
    ran.world.ok(&["replay", second["id"].as_str().unwrap()]);
    ran.stop();
    ran.world.ok(&["log", "export", "bundle"]);
    let (said, value) = ran.verify(&["--bundle", "bundle", "--keys", "jwks.json"]);
    assert_eq!(said.code, 0, "{said:?} {value}");
}

/// What no export writes is not taken for checked, and a link is not what it leads to.
#[test]
fn files_that_the_manifest_does_not_list_and_links_are_seen() {
    let mut ran = bundle();
    ran.stop();
    ran.world.ok(&["log", "export", "strange"]);
    let folder = ran.path("strange");
    let codes = |what: &str| -> Vec<(String, String)> {
        let (said, value) = ran.verify(&["--bundle", "strange", "--keys", "jwks.json"]);
        let checks = value["checks"].as_array().unwrap().iter();
        let failed = checks.filter_map(|check| {
            let name = check["name"].as_str()?.to_owned();
            Some((name, check["code"].as_str()?.to_owned()))
        });
        let failed: Vec<(String, String)> = failed.collect();
        assert_eq!(said.code, i32::from(!failed.is_empty()), "{what}: {said:?}");
        failed
    };
    let one = |name: &str, code: &str| vec![(name.to_owned(), code.to_owned())];
    assert_eq!(codes("as it is"), []);
    fs::write(folder.join("summary.txt"), "all is well").unwrap();
    assert_eq!(codes("a file"), one("file summary.txt", "file_unlisted"));
    fs::remove_file(folder.join("summary.txt")).unwrap();
    let events = folder.join("events.jsonl");
    fs::rename(&events, ran.path("elsewhere.jsonl")).unwrap();
    std::os::unix::fs::symlink(ran.path("elsewhere.jsonl"), &events).unwrap();
    assert_eq!(codes("a link"), one("file events.jsonl", "not_a_file"));
    fs::remove_file(&events).unwrap();
    fs::rename(ran.path("elsewhere.jsonl"), &events).unwrap();
    let blob = fs::read_dir(folder.join("blobs")).unwrap().next().unwrap();
    let blob = blob.unwrap().path();
    fs::rename(&blob, ran.path("blob")).unwrap();
    std::os::unix::fs::symlink(ran.path("blob"), &blob).unwrap();
    let name = format!("file blobs/{}", blob.file_name().unwrap().to_string_lossy());
    assert_eq!(codes("a linked blob"), one(&name, "not_a_file"));
}

/// A log that lost the bytes of a receipt is repaired, verified and exported; the bundle names the one that is lost, and
/// everything else in it is checked.
#[test]
fn u15_a_repaired_log_that_lost_a_receipt_is_exported() {
    let ran = bundle();
    let receipts = fs::read_to_string(ran.path("bundle").join("receipts.jsonl")).unwrap();
    let second = receipts.lines().nth(1).unwrap();
    let content = canon::sha256(second.as_bytes());
    let tamper = store::tamper::Tamper::open(&ran.world.data());
    assert!(tamper.blob(&content, |bytes| bytes[40] ^= 1));
    drop(tamper);
    assert_eq!(ran.world.run(&["log", "verify"]).code, 1);
    ran.world.ok(&["log", "repair", "--apply"]);
    ran.world.ok(&["log", "verify"]);
    ran.world.ok(&["log", "export", "left"]);
    let (said, value) = ran.verify(&["--bundle", "left", "--keys", "jwks.json"]);
    assert_eq!(said.code, 1, "{said:?}");
    let checks = value["checks"].as_array().unwrap();
    let code = |name: &str| {
        let mut named = checks.iter().filter(|check| check["name"] == name);
        named.next().unwrap()["code"].clone()
    };
    assert_eq!(code("receipt 1"), "receipt_lost", "{value}");
    assert_eq!(code("tree"), Value::Null, "the others are in their places");
    let mut codes = checks.iter().filter_map(|check| check["code"].as_str());
    assert!(
        codes.all(
            |code| ["receipt_lost", "material_unavailable", "receipt_missing"].contains(&code)
        ),
        "{value}"
    );
}
