//! The determinism vectors through the import and the offline command, and bundles that are not what they seem.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use canon::Digest;
use receipts::{Receipt, event_log_digest};
use runs::replay::Bundle;
use serde_json::{Value, json};
use testing::process::Server;

use super::{Client, Elsewhere, text};
use crate::world::World;

pub(super) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance/vectors/replay")
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn read_json(file: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

/// Imports the source of a case into a fresh data directory and returns what its request leaves there: the bytes of the
/// receipt from the server, and those from the exported bundle alone.
fn carried_out(name: &str) -> [String; 2] {
    let folder = folder();
    let case_folder = folder.join("cases").join(name);
    let case = read_json(&case_folder.join("case.json"));
    let source = folder.join("sources").join(text(&case, "/source"));
    let world = World::new();
    let blobs = world.home.path().join("blobs");
    std::fs::create_dir(&blobs).unwrap();
    for blob in names(&source.join("blobs")) {
        let without = case["without_blobs"].as_array().unwrap();
        if !without.contains(&json!(format!("sha256:{blob}"))) {
            std::fs::copy(source.join("blobs").join(&blob), blobs.join(&blob)).unwrap();
        }
    }
    let conformance = case["conformance"] == true;
    let mut command = world.command(&["serve", "--listen", "127.0.0.1:0"]);
    command
        .env("REPRISE_ISSUER_ID", text(&case, "/issuer/id"))
        .env("REPRISE_ISSUER_NAME", text(&case, "/issuer/name"))
        .env("REPRISE_REPLAY_CONFORMANCE", conformance.to_string());
    let server = Server::start(&mut command).unwrap_or_else(|said| panic!("{said:?}"));
    let path = |file: &str| source.join(file).to_str().unwrap().to_owned();
    let task = world.json(&[
        "log",
        "import",
        &path("log.jsonl"),
        "--receipt",
        &path("receipt.json"),
        "--blobs",
        "blobs",
        "--json",
    ]);
    let task = text(&task, "/id").to_owned();
    let request = case_folder.join("request.json");
    let request = ["--request", request.to_str().unwrap(), "--receipt"];
    // A replay that fails is an answer of no, and has a receipt like any other.
    let online = world.run(&[&["replay", &task], &request[..]].concat());
    assert!(online.code < 2, "{name}: {online:?}");
    world.ok(&["task", "export", &task, "run.bundle"]);
    server.stop();
    world.ok(&["log", "verify"]);
    world.ok(&["log", "rebuild"]);
    let mut offline = vec!["replay", "--bundle", "run.bundle"];
    offline.extend(request);
    offline.extend(["--issuer", text(&case, "/issuer/id")]);
    offline.extend(["--issuer-name", text(&case, "/issuer/name")]);
    offline.extend(conformance.then_some("--conformance"));
    let offline = world.run(&offline);
    assert!(offline.code < 2, "{name}: {offline:?}");
    [online.stdout, offline.stdout]
}

/// AP-RPL-20: each vector, imported into two fresh data directories and replayed there, and offline from what these
/// export: the expected bytes every time.
#[test]
fn ap_rpl_20_every_vector_gives_its_bytes_in_two_fresh_directories_and_offline() {
    let cases = names(&folder().join("cases"));
    assert!(cases.len() >= 8, "{cases:?}");
    for case in cases {
        let expected = folder().join("cases").join(&case).join("receipt.json");
        let expected = std::fs::read_to_string(expected).unwrap();
        for _ in 0..2 {
            for found in carried_out(&case) {
                assert_eq!(found, expected, "{case}");
            }
        }
    }
}

/// What the black-box runner imports is the source that it says it is. `UPDATE_VECTORS=1` writes it again.
#[test]
fn the_bundle_of_the_vectors_is_their_source() {
    let source = folder().join("sources/agent");
    let log = std::fs::read(source.join("log.jsonl")).unwrap();
    let lines = log
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty());
    let events: Vec<Arc<[u8]>> = lines.map(Arc::from).collect();
    let blobs = names(&source.join("blobs")).into_iter().map(|hex| {
        let bytes = std::fs::read(source.join("blobs").join(&hex)).unwrap();
        (Digest::parse(&format!("sha256:{hex}")).unwrap(), bytes)
    });
    let receipt = Receipt::read(&std::fs::read(source.join("receipt.json")).unwrap()).unwrap();
    let bundle = Bundle::new(&events, blobs.collect(), Some(receipt)).unwrap();
    let file = folder().join("agent.bundle");
    if std::env::var_os("UPDATE_VECTORS").is_some() {
        std::fs::write(&file, bundle.to_bytes()).unwrap();
    }
    assert!(std::fs::read(file).unwrap() == bundle.to_bytes());
}

/// A bundle in its parts, to be changed and put together again.
struct Parts {
    events: Vec<Value>,
    blobs: std::collections::BTreeMap<Digest, Vec<u8>>,
    receipt: Value,
}

impl Parts {
    fn of(there: &Elsewhere) -> Self {
        let bundle = Bundle::read(&std::fs::read(there.file()).unwrap()).unwrap();
        let events = bundle.events();
        let events = events.map(|(bytes, _)| serde_json::from_slice(bytes).unwrap());
        let receipt = bundle.receipt().unwrap().bytes();
        Self {
            events: events.collect(),
            blobs: bundle.blobs().clone(),
            receipt: serde_json::from_slice(&receipt).unwrap(),
        }
    }

    fn stored(&self) -> Vec<Arc<[u8]>> {
        let events = self.events.iter();
        events.map(|event| canon::jcs(event).into()).collect()
    }

    /// Makes the receipt agree with the log, and its hash with both: what somebody does who signs with any key.
    fn agree(mut self) -> Self {
        let stored = self.stored();
        let digest = event_log_digest(stored.iter().map(|bytes| &**bytes));
        let materials = self.receipt["replay_input"]["materials"].as_array_mut();
        let log = materials.unwrap().iter_mut();
        for material in log.filter(|material| material["kind"] == "event_log") {
            material["sha256"] = json!(digest);
        }
        self.hashed()
    }

    fn hashed(mut self) -> Self {
        let hash = self.read_receipt().hash();
        self.receipt["chain"]["receipt_hash"] = json!(hash);
        self
    }

    fn read_receipt(&self) -> Receipt {
        Receipt::from_map(self.receipt.as_object().unwrap().clone()).unwrap()
    }

    fn bundle(&self) -> Vec<u8> {
        let receipt = Some(self.read_receipt());
        let bundle = Bundle::new(&self.stored(), self.blobs.clone(), receipt);
        bundle.unwrap().to_bytes()
    }

    /// The same under another name, everywhere.
    fn renamed(mut self, from: &str, to: &str) -> Self {
        let rename = |value: &Value| -> Value {
            serde_json::from_str(&value.to_string().replace(from, to)).unwrap()
        };
        self.events = self.events.iter().map(rename).collect();
        self.receipt = rename(&self.receipt);
        self
    }
}

/// Another task of the same session, that no server has run.
pub(super) fn renamed_task(there: &Elsewhere) -> Vec<u8> {
    let receipt = text(&there.task, "/receipt_id");
    let parts = Parts::of(there)
        .renamed(there.id(), "task_forged")
        .renamed(receipt, "receipt_forged");
    parts.agree().bundle()
}

/// Each lie is told by name, with 400 for what is no bundle and 422 for what does not hold together, and leaves nothing.
#[test]
fn what_does_not_hold_together_is_refused_by_name_and_leaves_nothing() {
    let there = Elsewhere::new(&["Hello"]);
    let here = World::new();
    let server = here.serve();
    let client = Client::of(&here, &server);
    let events = client.events();
    let whole = std::fs::read(there.file()).unwrap();
    let line = |prefix: &str| {
        let lines = whole.split_inclusive(|byte| *byte == b'\n');
        let mut lines = lines.filter(|line| line.starts_with(prefix.as_bytes()));
        lines.next().unwrap().to_vec()
    };
    let replaced = |from: &[u8], to: &[u8]| -> Vec<u8> {
        let at = whole.windows(from.len()).position(|window| window == from);
        let at = at.unwrap();
        [&whole[..at], to, &whole[at + from.len()..]].concat()
    };
    let receipt = line("{\"receipt\":");
    let without_receipt = {
        let header = String::from_utf8(line("{\"blobs\":")).unwrap();
        let header = header.replace("\"receipt\":true", "\"receipt\":false");
        let rest = &whole[header.len() - 1..whole.len() - receipt.len()];
        [header.as_bytes(), rest].concat()
    };
    let changed = |change: &dyn Fn(&mut Parts)| {
        let mut parts = Parts::of(&there);
        change(&mut parts);
        parts
    };
    let with_blob = |parts: &mut Parts| {
        parts.blobs.insert(canon::sha256(b"one"), b"two".to_vec());
    };
    let cases: Vec<(&str, u64, Vec<u8>)> = vec![
        ("not a bundle: line 1", 400, b"hello\n".to_vec()),
        (
            "the file ends here, too early",
            400,
            whole[..whole.len() - 9].to_vec(),
        ),
        ("receipt_missing", 422, without_receipt),
        (
            "log_mismatch",
            422,
            replaced(b"I read: Hello", b"I read: Jello"),
        ),
        (
            "log_mismatch",
            422,
            changed(&|parts| {
                parts.events[0]["actor"] = json!("mallory");
            })
            .hashed()
            .bundle(),
        ),
        ("blob_mismatch", 422, changed(&with_blob).bundle()),
        (
            "receipt_mismatch",
            422,
            changed(&|parts| {
                parts.receipt["issuer"]["id"] = json!("somebody-else");
            })
            .bundle(),
        ),
        (
            "receipt_mismatch",
            422,
            changed(&|parts| {
                parts.receipt["subject"]["id"] = json!("task_other");
            })
            .hashed()
            .bundle(),
        ),
        (
            "receipt_mismatch",
            422,
            changed(&|parts| {
                parts.receipt["lifecycle"]["final_state"] = json!("CANCELED");
            })
            .hashed()
            .bundle(),
        ),
        (
            "log_invalid",
            422,
            changed(&|parts| {
                parts.events[1]["session_id"] = json!("session_other");
            })
            .agree()
            .bundle(),
        ),
    ];
    for (expect, status, bundle) in cases {
        let file = here.home.path().join("bad.bundle");
        std::fs::write(&file, bundle).unwrap();
        let (code, refused) = client.import(&file, "", &[]);
        assert_eq!(code, status, "{expect}: {refused}");
        let reason = refused["error"]["details"]["reason"].as_str();
        let said = text(&refused, "/error/message");
        assert!(
            reason == Some(expect) || said.contains(expect),
            "{expect}: {refused}"
        );
        let said = here.run(&["log", "import", "bad.bundle"]);
        assert_ne!(said.code, 0, "{said:?}");
        assert_eq!(said.stderr.lines().count(), 2, "{said:?}");
    }
    assert_eq!(client.events(), events);
    let stored = here.json(&["log", "verify", "--json"]);
    assert_eq!(stored["blobs"], 0, "{stored}");
    // A task that has not ended has no sealed log.
    let said = here.run(&["log", "import", "absent.bundle"]);
    assert_eq!(said.code, 2, "{said:?}");
    std::fs::write(here.home.path().join("log.jsonl"), "{}\n").unwrap();
    std::fs::write(here.home.path().join("receipt.json"), &there.receipt).unwrap();
    let said = here.run(&["log", "import", "log.jsonl"]);
    assert!(
        said.stderr.contains("give its receipt with --receipt"),
        "{said:?}"
    );
    let said = here.run(&["log", "import", "log.jsonl", "--receipt", "receipt.json"]);
    assert_eq!(said.code, 2, "{said:?}");
    let file = there.file();
    let said = here.run(&[
        "log",
        "import",
        file.to_str().unwrap(),
        "--receipt",
        "receipt.json",
    ]);
    assert!(said.stderr.contains("has its receipt in it"), "{said:?}");
}
