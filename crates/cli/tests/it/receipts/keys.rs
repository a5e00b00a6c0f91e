//! The keys that sign receipts: rotation, and a file that cannot be read.

use std::fs;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use receipts::Signer;
use receipts::note::{KeyUse, Note, NoteKey};
use serde_json::{Value, json};

use super::{Ran, get};
use crate::world::World;

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
    for line in text.lines().filter(|line| line.contains("\"seed\"")) {
        let seed = line.split('"').find(|word| word.len() == 43).unwrap();
        assert!(!keys.to_string().contains(seed), "a seed is published");
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

/// The secret half of the key in use, as a thief has it who copied the file in time.
fn stolen(ran: &Ran) -> Signer {
    let text = fs::read_to_string(ran.world.data().join("signing-keys.json")).unwrap();
    let keys: Value = serde_json::from_str(&text).unwrap();
    let active = keys["active"].as_str().unwrap();
    let key = keys["keys"].as_array().unwrap().iter();
    let key = key.clone().find(|key| key["key_id"] == active).unwrap();
    let seed = URL_SAFE_NO_PAD
        .decode(key["seed"].as_str().unwrap())
        .unwrap();
    Signer::new(active, &seed.try_into().unwrap())
}

/// Rotation ends a key where the log stands: what it signed counts only with its place in the log, and its seed is gone.
#[test]
fn a_key_that_was_rotated_out_forges_nothing_that_verifies() {
    let mut ran = Ran::new(3);
    ran.save();
    let thief = stolen(&ran);
    ran.stop();
    let rotated = ran.world.json(&["receipt", "rotate-key", "--json"]);
    let file = fs::read_to_string(ran.world.data().join("signing-keys.json")).unwrap();
    let keys: Value = serde_json::from_str(&file).unwrap();
    assert_eq!(keys["keys"][0].get("seed"), None, "old seeds are dropped");
    assert_eq!(keys["keys"][0]["retired"]["size"], 3);
    ran.server = Some(ran.world.serve());
    let url = ran.server.as_ref().unwrap().url.clone();
    fs::write(ran.path("new.json"), get(&url, "/.well-known/jwks.json")).unwrap();
    let published: Value =
        serde_json::from_slice(&fs::read(ran.path("new.json")).unwrap()).unwrap();
    assert_eq!(published["keys"][0]["retired"]["size"], 3, "{published}");

    // Without its place in the log, a receipt of that key is anybody's who has the key.
    let (said, value) = ran.verify(&["r1.json", "--keys", "new.json"]);
    assert_eq!((said.code, &value["reason"]), (1, &json!("key_retired")));
    assert!(said.stdout.contains("proof"), "{said:?}");
    let proof = ran.world.ok(&["receipt", "proof", &ran.receipts[1]]);
    fs::write(ran.path("p1.json"), proof).unwrap();
    let with_proof = ["r1.json", "--keys", "new.json", "--proof", "p1.json"];
    assert_eq!(ran.verify(&with_proof).0.code, 0);
    // The proof that was kept from before.
    let kept = ["r2.json", "--keys", "new.json", "--proof", "proof.json"];
    let (said, _) = ran.verify(&kept);
    assert_eq!(said.code, 0, "{said:?}");
    // The server itself judges what is handed to it by its own log.
    let (code, verdict) = post(
        &ran,
        "/v1/receipts/verify",
        &fs::read(ran.path("r1.json")).unwrap(),
    );
    assert_eq!((code, &verdict["valid"]), (200, &json!(true)), "{verdict}");

    // The thief: another content, dated back, signed with the key that was the right one then.
    let bytes = fs::read(ran.path("r2.json")).unwrap();
    let mut map = receipts::Receipt::read(&bytes).unwrap().as_map().clone();
    map["lifecycle"]["final_state"] = json!("FAILED");
    map["signatures"] = json!([]);
    let hash = receipts::Receipt::from_map(map.clone()).unwrap().hash();
    map["chain"]["receipt_hash"] = json!(hash.to_string());
    let forged = receipts::Receipt::from_map(map).unwrap().signed(&thief);
    fs::write(ran.path("forged.json"), forged.bytes()).unwrap();
    assert_eq!(
        ran.verify(&["forged.json", "--keys", "jwks.json"]).0.code,
        0,
        "with the keys of that time it is his word"
    );
    let (_, value) = ran.verify(&["forged.json", "--keys", "new.json"]);
    assert_eq!(value["reason"], "key_retired");
    let (_, verdict) = post(&ran, "/v1/receipts/verify", &forged.bytes());
    assert_eq!(verdict["valid"], false, "{verdict}");
    // With a head of his own, after the end of his key and at its very end.
    let leaf = receipts::merkle::leaf(&forged.hash());
    for size in [3, 4] {
        let path: Vec<canon::Digest> = (1..=2).map(|_| canon::sha256(b"x")).collect();
        let index = size - 1;
        let path = &path[..if size == 3 { 1 } else { 2 }];
        let root = receipts::merkle::inclusion_root(&leaf, index, size, path).unwrap();
        let origin = published_origin(&ran);
        let head = receipts::note::Checkpoint {
            origin: origin.clone(),
            size,
            root,
            extensions: Vec::new(),
        };
        let mut note = Note::new(head.text()).unwrap();
        note.sign(&origin, &thief).unwrap();
        let proof = json!({
            "leaf_index": index, "tree_size": size, "root": root.to_string(),
            "path": path.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "checkpoint": note.write(),
        });
        fs::write(ran.path("fp.json"), proof.to_string()).unwrap();
        let args = ["forged.json", "--keys", "jwks.json", "--proof", "fp.json"];
        assert_eq!(ran.verify(&args).0.code, 0, "his word, at that time");
        let args = ["forged.json", "--keys", "new.json", "--proof", "fp.json"];
        let (said, value) = ran.verify(&args);
        assert_eq!(
            (said.code, &value["reason"]),
            (1, &json!("key_retired")),
            "{size}: {said:?}"
        );
    }
    // A whole export under his seal.
    ran.stop();
    ran.world.ok(&["log", "export", "bundle"]);
    let (said, _) = ran.verify(&["--bundle", "bundle", "--keys", "new.json"]);
    assert_eq!(said.code, 0, "{said:?}");
    let all = [
        "--bundle",
        "bundle",
        "--keys",
        "new.json",
        "--all-signatures",
    ];
    assert_eq!(ran.verify(&all).0.code, 0);
    let manifest = fs::read(ran.path("bundle/manifest.json")).unwrap();
    let seal = receipts::export::seal(&manifest, &published_origin(&ran), &thief).unwrap();
    fs::write(ran.path("bundle/manifest.note"), seal).unwrap();
    let (_, value) = ran.verify(&["--bundle", "bundle", "--keys", "new.json"]);
    assert_eq!(value["reason"], "key_retired", "{value}");

    // The log tells of it, in the words of both keys.
    let events = fs::read_to_string(ran.path("bundle/events.jsonl")).unwrap();
    let event = events.lines().find(|line| line.contains("\"rotation\":{"));
    let event: Value = serde_json::from_str(event.expect("an event of the rotation")).unwrap();
    let said = &event["payload"]["rotation"];
    assert_eq!(said["new_key_id"], rotated["active"]);
    let note = Note::read(said["statement"].as_str().unwrap().as_bytes()).unwrap();
    let both = receipts::KeySet::from_jwks(&fs::read(ran.path("new.json")).unwrap()).unwrap();
    for key in both.keys() {
        let key = NoteKey::new(published_origin(&ran), KeyUse::Note, key.bytes).unwrap();
        assert!(note.verify(&key).is_ok());
    }
}

/// A key that somebody else may have is revoked with a time: then not even its heads from before its end count.
#[test]
fn a_revoked_key_signs_no_head_that_counts() {
    let mut ran = Ran::new(2);
    ran.save();
    // A proof under an earlier head than the last one of that key.
    let early = fs::read(ran.path("proof.json")).unwrap();
    fs::write(ran.path("early.json"), early).unwrap();
    ran.world.submit("agent");
    let old = stolen(&ran).key_id().to_owned();
    ran.stop();
    ran.world.ok(&["receipt", "rotate-key"]);
    let keys = |ran: &Ran, name: &str| {
        let server = ran.world.serve();
        let keys = get(&server.url, "/.well-known/jwks.json");
        fs::write(ran.path(name), keys).unwrap();
        server.stop();
    };
    keys(&ran, "retired.json");
    let with = |keys| ["r1.json", "--keys", keys, "--proof", "early.json"];
    let (said, _) = ran.verify(&with("retired.json"));
    assert_eq!(said.code, 0, "{said:?}");
    let since = "2020-01-01T00:00:00Z";
    let revoked = ran.world.json(&[
        "receipt",
        "revoke-key",
        &old,
        "--since",
        "2099-01-01T00:00:00Z",
        "--json",
    ]);
    assert_eq!(
        revoked["rotated_to"],
        Value::Null,
        "it was not in use: {revoked}"
    );
    keys(&ran, "revoked.json");
    let (said, value) = ran.verify(&with("revoked.json"));
    assert_eq!(
        (said.code, &value["reason"]),
        (1, &json!("key_retired")),
        "{said:?}"
    );
    // With its place under a head of the key that followed it counts, unless it was signed after the time.
    ran.server = Some(ran.world.serve());
    let proof = ran.world.ok(&["receipt", "proof", &ran.receipts[1]]);
    fs::write(ran.path("fresh.json"), proof).unwrap();
    ran.stop();
    let fresh = |keys| ["r1.json", "--keys", keys, "--proof", "fresh.json"];
    let (said, _) = ran.verify(&fresh("revoked.json"));
    assert_eq!(said.code, 0, "{said:?}");
    ran.world
        .ok(&["receipt", "revoke-key", &old, "--since", since]);
    keys(&ran, "earlier.json");
    let (_, value) = ran.verify(&fresh("earlier.json"));
    assert_eq!(value["reason"], "key_not_valid_at_time", "{value}");
    // The key in use is rotated first.
    let active = stolen(&ran).key_id().to_owned();
    let revoked = ran
        .world
        .json(&["receipt", "revoke-key", &active, "--json"]);
    assert_ne!(revoked["rotated_to"], Value::Null);
    assert_ne!(stolen(&ran).key_id(), active);
    assert_eq!(
        ran.world.run(&["receipt", "revoke-key", "key_none"]).code,
        2
    );
    ran.world.ok(&["log", "verify"]);
}

fn published_origin(ran: &Ran) -> String {
    let proof: Value = serde_json::from_slice(&fs::read(ran.path("proof.json")).unwrap()).unwrap();
    let note = Note::read(proof["checkpoint"].as_str().unwrap().as_bytes()).unwrap();
    receipts::note::Checkpoint::read(note.text())
        .unwrap()
        .origin
}

fn post(ran: &Ran, path: &str, body: &[u8]) -> (u16, Value) {
    let url = &ran.server.as_ref().unwrap().url;
    let key = fs::read_to_string(ran.world.data().join("api-key")).unwrap();
    fs::write(ran.path("body"), body).unwrap();
    let output = std::process::Command::new("curl")
        .args(["-sS", "-w", "\n%{http_code}", "--data-binary", "@body"])
        .args(["-H", "content-type: application/json"])
        .args(["-H", "idempotency-key: k1"])
        .args([
            "-H",
            "harn-agents-protocol-version: agents-protocol-2026-04-25",
        ])
        .args(["-H", &format!("authorization: Bearer {}", key.trim())])
        .arg(format!("{url}{path}"))
        .current_dir(ran.world.home.path())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (body, code) = text.rsplit_once('\n').unwrap();
    (
        code.parse().unwrap(),
        serde_json::from_str(body).unwrap_or_default(),
    )
}

/// U16: the name of the log is chosen when it is made; later it changes by a rotation that the log tells of, and by nothing
/// else.
#[test]
fn u16_the_origin_is_chosen_once_and_changed_by_a_rotation() {
    let world = crate::world::World::new();
    let file = world.home.path().join("reprise.toml");
    let serve = |name: &str| {
        fs::write(&file, format!("origin = \"{name}\"\n")).unwrap();
        let mut command = world.command(&["serve"]);
        command.args(["--config", "reprise.toml", "--listen", "127.0.0.1:0"]);
        testing::process::Server::start(&mut command)
    };
    let head = |server: &testing::process::Server, task: &str| {
        world.ok(&["receipt", "proof", task]);
        super::get(&server.url, "/tlog/checkpoint")
    };
    for bad in ["two words", "a+b"] {
        let said = serve(bad).err().unwrap();
        assert_eq!(said.code, 2, "{said:?}");
        assert!(said.stderr.contains("cannot name a log"), "{said:?}");
    }
    let server = serve("log.example/one").unwrap();
    let task = world.submit("agent");
    let first = head(&server, &task);
    assert!(first.starts_with("log.example/one\n"), "{first}");
    fs::write(world.home.path().join("one.checkpoint"), &first).unwrap();
    server.stop();
    let said = serve("log.example/two").err().unwrap();
    assert_eq!(said.code, 2, "{said:?}");
    assert!(
        said.stderr.contains("this log is called `log.example/one`"),
        "{said:?}"
    );
    assert!(
        said.stderr.contains("rotate-key --origin log.example/two"),
        "{said:?}"
    );
    world.ok(&["receipt", "rotate-key", "--origin", "log.example/two"]);
    let server = serve("log.example/two").unwrap();
    let task = world.submit("agent");
    let second = head(&server, &task);
    assert!(second.starts_with("log.example/two\n"), "{second}");
    fs::write(world.home.path().join("two.checkpoint"), &second).unwrap();
    let keys = super::get(&server.url, "/.well-known/jwks.json");
    fs::write(world.home.path().join("jwks.json"), &keys).unwrap();
    let keys: Value = serde_json::from_str(&keys).unwrap();
    assert_eq!(
        keys["keys"][0]["retired"]["origin"], "log.example/one",
        "{keys}"
    );
    server.stop();
    // Nobody is a witness of itself.
    let own = NoteKey::new(
        "log.example/two",
        KeyUse::Cosignature,
        Signer::new("", &[7; 32]).public(),
    );
    let own = own.unwrap().text();
    let said = world.run(&["witness", "add", "https://witness.example", &own]);
    assert_eq!(said.code, 2, "{said:?}");
    assert!(
        said.stderr.contains("is the name of this log itself"),
        "{said:?}"
    );
    world.ok(&["log", "verify"]);
    world.ok(&["log", "export", "bundle"]);
    world.ok(&[
        "receipt",
        "verify",
        "--bundle",
        "bundle",
        "--keys",
        "jwks.json",
    ]);
    let events = fs::read_to_string(world.home.path().join("bundle/events.jsonl")).unwrap();
    let said = events
        .lines()
        .find(|line| line.contains("\"old_origin\":\"log.example/one\""));
    let said: Value = serde_json::from_str(said.unwrap()).unwrap();
    assert_eq!(
        said["payload"]["rotation"]["origin"], "log.example/two",
        "{said}"
    );
    let statement = said["payload"]["rotation"]["statement"].as_str().unwrap();
    assert_eq!(
        statement.matches("log.example/one ").count(),
        2,
        "both keys sign under the old name"
    );
}

/// After a loss the log goes on shorter, under another name: ends of keys in the old one are no limit there.
#[test]
fn u16_a_recovered_log_is_not_held_to_sizes_of_the_one_before_it() {
    let world = crate::world::World::new();
    let server = world.serve();
    for _ in 0..4 {
        world.submit("agent");
    }
    server.stop();
    world.ok(&["receipt", "rotate-key"]);
    let server = world.serve();
    world.submit("agent");
    server.kill();
    // Everything since the first start is lost.
    let wal = world.data().join("reprise.db-wal");
    fs::remove_file(&wal).unwrap();
    let _ = fs::remove_file(world.data().join("reprise.db-shm"));
    let database = world.data().join("reprise.db");
    let old = world.home.path().join("empty");
    let other = crate::world::World::new();
    other.serve().stop();
    fs::copy(other.data().join("reprise.db"), &old).unwrap();
    fs::copy(&old, &database).unwrap();
    world.ok(&["log", "recover", "--accept-loss"]);
    let server = world.serve();
    let task = world.submit("agent");
    world.ok(&["receipt", "proof", &task]);
    let keys = super::get(&server.url, "/.well-known/jwks.json");
    fs::write(world.home.path().join("jwks.json"), &keys).unwrap();
    let proof = world.ok(&["receipt", "proof", &task]);
    fs::write(world.home.path().join("proof.json"), proof).unwrap();
    let receipt = world.ok(&["receipt", "show", &task, "--wire"]);
    fs::write(world.home.path().join("r.json"), receipt).unwrap();
    server.stop();
    world.ok(&[
        "receipt",
        "verify",
        "r.json",
        "--keys",
        "jwks.json",
        "--proof",
        "proof.json",
    ]);
}

/// A key file that was put back to its state before a rotation, or before a revocation, is not what the log says.
#[test]
fn s11_a_key_file_of_an_earlier_state_is_refused() {
    let mut ran = Ran::new(1);
    ran.stop();
    let file = ran.world.data().join("signing-keys.json");
    let first = fs::read(&file).unwrap();
    let rotated = ran.world.json(&["receipt", "rotate-key", "--json"]);
    let second = fs::read(&file).unwrap();
    let old = rotated["previous"].as_str().unwrap();
    ran.world.ok(&["receipt", "revoke-key", old, "--json"]);
    let third = fs::read(&file).unwrap();
    for (state, what) in [
        (&first, "before the rotation"),
        (&second, "before the revocation"),
    ] {
        fs::write(&file, state).unwrap();
        for args in [
            &["serve", "--listen", "127.0.0.1:0"][..],
            &["receipt", "rotate-key"],
            &["log", "export", "evidence"],
        ] {
            let said = ran.world.run(args);
            assert_eq!(said.code, 2, "{what}: {args:?}: {said:?}");
            assert!(said.stderr.contains("an earlier state"), "{what}: {said:?}");
        }
        let said = ran.world.run(&["log", "verify"]);
        assert_eq!(said.code, 1, "{what}: {said:?}");
        assert!(said.stdout.contains("an earlier state"), "{what}: {said:?}");
        assert_eq!(&fs::read(&file).unwrap(), state, "left alone");
    }
    fs::write(&file, third).unwrap();
    ran.world.serve().stop();
    // Whoever has lost the file can go on with a new key; the log says so, and later starts agree.
    fs::remove_file(&file).unwrap();
    let said = ran.world.run(&["serve", "--listen", "127.0.0.1:0"]);
    assert_eq!(said.code, 2, "{said:?}");
    assert!(said.stderr.contains("rotate-key --lost"), "{said:?}");
    ran.world.ok(&["receipt", "rotate-key", "--lost"]);
    ran.world.serve().stop();
    ran.world.serve().stop();
    ran.world.ok(&["log", "verify"]);
    ran.world.ok(&["log", "export", "evidence"]);
    let events = fs::read_to_string(ran.path("evidence").join("events.jsonl")).unwrap();
    assert!(events.contains("the file with the keys before it was not there"));
}
