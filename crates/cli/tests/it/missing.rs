//! What is taken out of a data directory is missed: rows of the store's own notes, idempotency keys, the file `head`, the
//! signing keys. `log verify` names it, `serve` refuses it or says so, and `log repair` says what `log verify` then says.

use std::fs;

use store::tamper::Tamper;
use testing::process::{CommandOutput, Server};

use crate::world::World;

/// A directory in which a Task ran and a request was made with an idempotency key.
fn written() -> World {
    let world = World::new();
    let server = world.serve();
    world.submit("replay-fixture");
    server.stop();
    let claims = Tamper::open(&world.data()).count("claims");
    assert!(claims > 0, "nothing was claimed");
    world.ok(&["log", "verify"]);
    world
}

/// What a server says that does not start.
fn refused(world: &World) -> CommandOutput {
    let mut command = world.command(&["serve", "--listen", "127.0.0.1:0"]);
    match Server::start(&mut command) {
        Ok(server) => panic!("it starts: {}", server.greeting),
        Err(said) => said,
    }
}

#[test]
fn a_note_that_is_missing_is_named_stops_the_start_and_is_written_by_a_repair() {
    let world = written();
    for name in [
        "secret_sha256",
        "api_keys_sha256",
        "keys_recorded",
        "keeps_head",
        "claim_time",
        "claim_clock",
        "lease_epoch",
    ] {
        let delete = format!("DELETE FROM meta WHERE name = '{name}'");
        assert_eq!(Tamper::open(&world.data()).run(&delete), 1);
        let named = format!("the note `{name}`");
        let said = world.run(&["log", "verify"]);
        assert_eq!(said.code, 1, "{said:?}");
        assert!(said.stdout.contains(&named), "{said:?}");
        let said = refused(&world);
        assert_eq!(said.code, 2, "{said:?}");
        assert!(said.stderr.contains(&named), "{said:?}");
        assert!(said.stderr.contains("log repair --apply"), "{said:?}");
        let said = world.run(&["log", "repair"]);
        assert_eq!(said.code, 1, "{said:?}");
        let said = world.run(&["log", "repair", "--apply"]);
        assert_eq!(said.code, 0, "{said:?}");
        assert!(said.stdout.contains(&named), "{said:?}");
        world.ok(&["log", "verify"]);
    }
    world.serve().stop();
    world.ok(&["log", "verify"]);
    // What was made with the log is told by nothing else.
    let delete = "DELETE FROM meta WHERE name = 'secret'";
    assert_eq!(Tamper::open(&world.data()).run(delete), 1);
    let said = world.run(&["log", "verify"]);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.stdout.contains("the note `secret`"), "{said:?}");
    let said = refused(&world);
    assert!(said.stderr.contains("nothing else records"), "{said:?}");
}

#[test]
fn idempotency_keys_that_are_gone_are_missed() {
    // One of several, and all of them.
    for (sql, warns) in [
        (
            "DELETE FROM claims WHERE answer = (SELECT min(answer) FROM claims)",
            false,
        ),
        ("DELETE FROM claims", true),
    ] {
        let world = written();
        let count = Tamper::open(&world.data()).count("claims");
        assert!(count > 1, "{count}");
        let gone = Tamper::open(&world.data()).run(sql);
        let said = world.run(&["log", "verify"]);
        assert_eq!(said.code, 1, "{sql}: {said:?}");
        let named = format!("{gone} idempotency keys are missing");
        assert!(said.stdout.contains(&named), "{sql}: {said:?}");
        let server = world.serve();
        let warned = server
            .greeting
            .contains("idempotency keys of the newest events are gone");
        assert_eq!(warned, warns, "{sql}: {}", server.greeting);
        server.stop();
        let said = world.run(&["log", "repair", "--apply"]);
        assert_eq!(said.code, 0, "{sql}: {said:?}");
        assert!(said.stdout.contains(&named), "{sql}: {said:?}");
        world.ok(&["log", "verify"]);
        // What is claimed from now on is missed again.
        let server = world.serve();
        assert!(!server.greeting.contains("are gone"), "{}", server.greeting);
        world.submit("replay-fixture");
        server.stop();
        world.ok(&["log", "verify"]);
        assert!(Tamper::open(&world.data()).run("DELETE FROM claims") > 0);
        assert_eq!(world.run(&["log", "verify"]).code, 1, "{sql}");
    }
}

/// Without their checksums claims would be believed whatever they say.
#[test]
fn idempotency_keys_without_checksums_are_not_believed() {
    let world = written();
    let count = Tamper::open(&world.data()).run("UPDATE claims SET checksum = NULL");
    let said = world.run(&["log", "verify"]);
    assert_eq!(said.code, 1, "{said:?}");
    let named = format!("{count} idempotency keys are not what was stored");
    assert!(said.stdout.contains(&named), "{said:?}");
}

#[test]
fn a_start_without_the_file_head_is_refused() {
    let world = written();
    let head = world.data().join("head");
    let good = fs::read(&head).unwrap();
    fs::remove_file(&head).unwrap();
    let said = refused(&world);
    assert_eq!(said.code, 2, "{said:?}");
    assert!(said.stderr.contains("how far the log had come"), "{said:?}");
    assert!(!head.exists(), "it was made again");
    let said = world.run(&["log", "repair", "--apply"]);
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.stderr.contains("cannot be known"), "{said:?}");
    assert_eq!(fs::read(&head).unwrap(), good);
    world.serve().stop();
    world.ok(&["log", "verify"]);
}

/// A receipt names the key that signed it before any head does: without its file the log does not go on by itself.
#[test]
fn a_log_that_names_a_key_does_not_start_without_its_signing_keys() {
    let world = World::new();
    let server = world.serve();
    world.submit("replay-fixture");
    // Before the first head is sealed.
    server.kill();
    let file = world.data().join("signing-keys.json");
    let first = fs::read(&file).unwrap();
    fs::remove_file(&file).unwrap();
    let said = world.run(&["log", "verify"]);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.stdout.contains("signing-keys.json"), "{said:?}");
    for args in [
        &["serve", "--listen", "127.0.0.1:0"][..],
        &["log", "export", "evidence"],
        &["receipt", "rotate-key"],
    ] {
        let said = world.run(args);
        assert_eq!(said.code, 2, "{args:?}: {said:?}");
        assert!(
            said.stderr.contains("signing-keys.json"),
            "{args:?}: {said:?}"
        );
        assert!(!file.exists(), "{args:?} made another");
    }
    fs::write(&file, first).unwrap();
    let said = world.run(&["receipt", "rotate-key", "--lost"]);
    assert_eq!(said.code, 2, "the keys are there: {said:?}");
    world.serve().stop();
    world.ok(&["log", "verify"]);
}

/// What a repair says at its end is what `log verify` says.
#[test]
fn a_repair_does_not_call_damaged_signing_keys_good() {
    let world = written();
    let file = world.data().join("signing-keys.json");
    let good = fs::read_to_string(&file).unwrap();
    let at = good.find("\"seed\": \"").unwrap() + 9;
    let other = if good[at..].starts_with('A') {
        "B"
    } else {
        "A"
    };
    let mut bad = good.clone();
    bad.replace_range(at..=at, other);
    for state in [Some(bad), None] {
        match state {
            Some(bad) => fs::write(&file, bad).unwrap(),
            None => fs::remove_file(&file).unwrap(),
        }
        let verified = world.run(&["log", "verify", "--json"]);
        assert_eq!(verified.code, 1, "{verified:?}");
        let said = world.run(&["log", "repair", "--apply", "--json"]);
        assert_eq!(said.code, 1, "{said:?}");
        let problems = |said: &CommandOutput| {
            let said: serde_json::Value = serde_json::from_str(&said.stdout).unwrap();
            said["problems"].clone()
        };
        assert_eq!(problems(&said), problems(&verified));
        let said = world.run(&["log", "repair", "--apply"]);
        assert_eq!(said.code, 1, "{said:?}");
        assert!(said.stderr.contains("1 problem"), "{said:?}");
        assert!(!said.stderr.contains("finds nothing wrong"), "{said:?}");
    }
}
