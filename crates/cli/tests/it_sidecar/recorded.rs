//! `capture --task` and what verify makes of it, against a real server (RB-REC-01).

use std::process::{Command, Stdio};

use serde_json::{Value, json};
use testing::process::Server;

use crate::world::{Ran, World, isolate};

/// Starts a server on a data directory inside the world.
pub(crate) fn serve(world: &World, data: &str) -> Server {
    let mut command = Command::new(env!("CARGO_BIN_EXE_reprise"));
    let args = ["serve", "--examples", "--listen", "127.0.0.1:0", "--data"];
    isolate(&mut command).current_dir(world.path()).args(args);
    let server = Server::start(command.arg(data).stdin(Stdio::null()));
    server.unwrap_or_else(|said| panic!("{said:?}"))
}

/// Where git does not look, or every capture would call the checkout dirty.
const DATA: &str = ".git/reprise-data";

/// Runs a task to its end and returns its id.
fn task(world: &World, workflow: &str) -> String {
    let ran = world.run(&[
        "task",
        "submit",
        "Do it",
        "--workflow",
        workflow,
        "--json",
        "--data",
        DATA,
    ]);
    let id = ran.expect(0).json()["id"].as_str().unwrap().to_owned();
    if workflow == "agent" {
        world.run(&["task", "watch", &id, "--data", DATA]).expect(0);
    }
    id
}

fn recorded(world: &World, task: &str) -> Ran {
    world.capture_agent(&["--task", task, "--data", DATA], &["true"])
}

/// Writes the keys that the server publishes.
fn jwks(world: &World, server: &Server, file: &str) {
    let host = server.url.strip_prefix("http://").unwrap();
    let mut stream = std::net::TcpStream::connect(host).unwrap();
    use std::io::{Read as _, Write as _};
    let request =
        format!("GET /.well-known/jwks.json HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{answer}");
    world.write(file, body);
}

const FIELDS: [&str; 5] = [
    "recording/receipt",
    "recording/task",
    "recording/proof",
    "recording/checkpoint",
    "recording/signature",
];

/// Verifies and returns the result word of each line about the recording.
fn lines(world: &World, more: &[&str], code: i32) -> Vec<String> {
    let mut arguments = vec!["sidecar", "verify", "--json", "out/report.md"];
    arguments.extend(more);
    let found = world.run(&arguments).expect(code).json();
    let checks = found["checks"].as_array().unwrap();
    let results = FIELDS.iter().map(|field| {
        let mut of_field = checks.iter().filter(|check| check["field"] == *field);
        let check = of_field
            .next()
            .unwrap_or_else(|| panic!("no {field} in {found}"));
        assert!(of_field.next().is_none(), "{found}");
        check["result"].as_str().unwrap().to_owned()
    });
    results.collect()
}

const CLEAN: [&str; 5] = ["ok", "ok", "ok", "note", "note"];
const CLEAN_WITH_KEYS: [&str; 5] = ["ok"; 5];

/// Changes the sidecar, verifies, and puts it back.
fn changed(world: &World, change: impl FnOnce(&mut Value), more: &[&str]) -> Vec<String> {
    let before = world.read("out/report.replay.json");
    let mut document: Value = serde_json::from_str(&before).unwrap();
    change(&mut document);
    world.write("out/report.replay.json", document.to_string());
    let found = lines(world, more, 1);
    world.write("out/report.replay.json", before);
    found
}

/// Changes one character of the text at a pointer.
fn flip(document: &mut Value, pointer: &str, at: usize) {
    let text = document.pointer_mut(pointer).unwrap();
    let mut bytes = text.as_str().unwrap().as_bytes().to_vec();
    bytes[at] = if bytes[at] == b'0' { b'1' } else { b'0' };
    *text = String::from_utf8(bytes).unwrap().into();
}

/// RB-REC-01: from a published report to the log, and a changed byte is told at its line.
#[test]
fn a_recorded_run_verifies_and_a_changed_byte_is_told_at_its_line() {
    let world = World::agent();
    let server = serve(&world, DATA);
    // More than one leaf, so that there is a path to break, and a proof of another receipt in a smaller tree.
    let earlier = task(&world, "agent");
    recorded(&world, &earlier).expect(0);
    let earlier = world.json("out/report.replay.json")["recording"].clone();
    std::fs::remove_file(world.at("out/report.replay.json")).unwrap();
    let id = task(&world, "agent");
    recorded(&world, &id).expect(0);
    let sidecar = world.json("out/report.replay.json");
    let recording = &sidecar["recording"];
    assert_eq!(recording["task_id"], *id);
    assert_eq!(recording["receipt"]["schema"], "receipt-2026-04-25");
    assert_eq!(recording["receipt"]["subject"]["id"], *id);
    assert!(recording["proof"].get("checkpoint").is_none());
    let model = &sidecar["models"][0];
    assert_eq!(
        model["id"],
        recording["receipt"]["model_route"]["chosen_model"]["model"]
    );
    assert!(model["calls"].as_u64().unwrap() >= 1, "{model}");

    assert_eq!(lines(&world, &[], 0), CLEAN);
    world
        .run(&["sidecar", "verify", "--strict", "out/report.md"])
        .expect(0)
        .says(&format!("  ok    recording/task  `{id}`\n"))
        .says("not_checked: signatures were not checked, --keys names the published keys\n")
        .says("clean: 6 of 6 ok");
    jwks(&world, &server, ".git/jwks.json");
    let keys = ["--keys", ".git/jwks.json"];
    assert_eq!(lines(&world, &keys, 0), CLEAN_WITH_KEYS);
    // A reader needs no server.
    drop(server);
    assert_eq!(lines(&world, &keys, 0), CLEAN_WITH_KEYS);

    let only = |field: usize, clean: [&str; 5]| {
        let mut expected = clean.map(str::to_owned);
        expected[field] = "FAIL".to_owned();
        expected.to_vec()
    };
    let at = |pointer: &'static str, place: usize| {
        move |document: &mut Value| flip(document, pointer, place)
    };
    // One byte of the receipt's content.
    let content = at("/recording/receipt/issuer/id", 0);
    assert_eq!(changed(&world, content, &[]), only(0, CLEAN));
    // The signature is over the content: with keys its line tells too.
    let mut both = only(0, CLEAN_WITH_KEYS);
    both[4] = "FAIL".to_owned();
    assert_eq!(changed(&world, content, &keys), both);
    // A receipt that is none any more leaves nothing to compare its task with.
    let shape = |document: &mut Value| document["recording"]["receipt"]["schema"] = json!("x");
    assert_eq!(
        changed(&world, shape, &[]),
        ["FAIL", "note", "ok", "note", "note"]
    );
    // The proof: each of its members.
    for pointer in [
        "/recording/proof/path/0",
        "/recording/proof/root",
        "/recording/proof/receipt_hash",
    ] {
        assert_eq!(
            changed(&world, at(pointer, 20), &[]),
            only(2, CLEAN),
            "{pointer}"
        );
        assert_eq!(
            changed(&world, at(pointer, 20), &keys),
            only(2, CLEAN_WITH_KEYS)
        );
        // Not a digest at all.
        assert_eq!(
            changed(&world, at(pointer, 0), &[]),
            only(2, CLEAN),
            "{pointer}"
        );
    }
    for (member, value) in [("leaf_index", 0), ("tree_size", 3), ("tree_size", 1)] {
        let change = |document: &mut Value| document["recording"]["proof"][member] = json!(value);
        assert_eq!(changed(&world, change, &[]), only(2, CLEAN), "{member}");
    }
    // Proofs that hold by themselves: of another receipt, under another checkpoint, to another root.
    let of_another = |document: &mut Value| {
        document["recording"]["proof"] = earlier["proof"].clone();
        document["recording"]["checkpoint"] = earlier["checkpoint"].clone();
    };
    assert_eq!(changed(&world, of_another, &keys), only(2, CLEAN_WITH_KEYS));
    let under_another = |document: &mut Value| {
        document["recording"]["checkpoint"] = earlier["checkpoint"].clone();
    };
    assert_eq!(
        changed(&world, under_another, &keys),
        only(2, CLEAN_WITH_KEYS)
    );
    assert_eq!(recording["proof"]["tree_size"], 2);
    let to_another = |document: &mut Value| {
        let proof = &mut document["recording"]["proof"];
        let digest = |value: &Value| canon::Digest::parse(value.as_str().unwrap()).unwrap();
        let leaf = receipts::merkle::leaf(&digest(&proof["receipt_hash"]));
        let root = receipts::merkle::node(&leaf, &leaf);
        proof["path"] = json!([leaf.to_string()]);
        proof["root"] = json!(root.to_string());
    };
    assert_eq!(changed(&world, to_another, &keys), only(2, CLEAN_WITH_KEYS));
    // Signatures, which need keys to be seen.
    let signature = at("/recording/receipt/signatures/0/signature", 20);
    assert_eq!(changed(&world, signature, &keys), only(4, CLEAN_WITH_KEYS));
    let unsigned =
        |document: &mut Value| document["recording"]["receipt"]["signatures"] = json!([]);
    assert_eq!(changed(&world, unsigned, &keys), only(4, CLEAN_WITH_KEYS));
    let checkpoint = recording["checkpoint"].as_str().unwrap();
    let last = checkpoint.len() - 10;
    let line = at("/recording/checkpoint", last);
    assert_eq!(changed(&world, line, &keys), only(3, CLEAN_WITH_KEYS));
    let note = |document: &mut Value| document["recording"]["checkpoint"] = json!("no note");
    assert_eq!(
        changed(&world, note, &[]),
        ["ok", "ok", "note", "FAIL", "note"]
    );
    // Another run's name on this receipt.
    let task = |document: &mut Value| document["recording"]["task_id"] = json!("task_other");
    assert_eq!(changed(&world, task, &[]), only(1, CLEAN));
    // Keys of somebody else.
    world.write(".git/other.json", r#"{"keys":[]}"#);
    let other = ["--keys", ".git/other.json"];
    assert_eq!(lines(&world, &other, 1), ["ok", "ok", "ok", "FAIL", "FAIL"]);
    world.write(".git/other.json", "{");
    world
        .run(&[
            "sidecar",
            "verify",
            "out/report.md",
            "--keys",
            ".git/other.json",
        ])
        .expect(2)
        .says("unreadable_keys");
}

/// Everything that is wrong with a recording is told before the command runs, or leaves no sidecar.
#[test]
fn a_run_without_a_receipt_leaves_no_sidecar() {
    let world = World::agent();
    let no_server = ["--task", "task_1", "--data", DATA];
    world.capture_agent(&no_server, &["touch", "ran"]).expect(2);
    assert!(!world.exists("ran"));
    let server = serve(&world, DATA);
    world
        .capture_agent(&no_server, &["touch", "ran"])
        .expect(1)
        .says("resource_not_found");
    assert!(!world.exists("ran"));
    let open = task(&world, "hold");
    recorded(&world, &open)
        .expect(2)
        .says("a run is recorded once it has ended");
    assert!(!world.exists("out/report.replay.json"));
    world
        .run(&["task", "cancel", &open, "--data", DATA])
        .expect(0);
    recorded(&world, &open).expect(0);
    assert_eq!(lines(&world, &[], 0), CLEAN);
    world
        .capture_agent(
            &["--task", &open, "--data", DATA, "--request-ids", "x"],
            &["true"],
        )
        .expect(2)
        .says("cannot be used with");
    // By address and key instead of the data directory.
    let key = world.read(&format!("{DATA}/api-key"));
    let mut more = vec!["--overwrite", "--task", &open, "--url", &server.url];
    more.extend(["--key", key.trim()]);
    world.capture_agent(&more, &["true"]).expect(0);
}

/// Schema 1 has a member for the request ids alone.
#[test]
fn ahd_blocks_take_the_models_of_a_recorded_run() {
    let world = World::framework();
    let _server = serve(&world, DATA);
    let id = task(&world, "agent");
    world
        .capture_eval(&["--task", &id, "--data", DATA], &["true"])
        .expect(0);
    let sidecar = world.json("docs/report.replay.json");
    assert!(sidecar.get("recording").is_none());
    let models = sidecar["models"].as_array().unwrap();
    let ids: Vec<_> = models.iter().map(|model| &model["id"]).collect();
    assert_eq!(ids, ["@cf/m", "offline-1"]);
    assert!(models[1].get("calls").is_none());
    world
        .run(&["sidecar", "verify", "--strict", "docs/report.md"])
        .expect(0);
}
