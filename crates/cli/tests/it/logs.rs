//! `reprise log` on a data directory that a server has written.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

use store::tamper::Tamper;

use crate::world::World;

fn written() -> World {
    let world = World::new();
    let server = world.serve();
    for workflow in ["agent", "ask", "hold"] {
        world.submit(workflow);
    }
    // Beside the running server, and after it.
    world.ok(&["log", "verify"]);
    server.stop();
    world
}

#[test]
fn a_log_is_verified_folded_again_and_exported() {
    let world = written();
    let report = world.json(&["log", "verify", "--json"]);
    assert_eq!(report["problems"].as_array().unwrap().len(), 0);
    let events = report["events"].as_u64().unwrap();
    assert!(events > 20, "{report}");
    let rebuilt = world.json(&["log", "rebuild", "--json"]);
    assert_eq!(rebuilt["events"], events);
    assert_eq!(rebuilt["problems"].as_array().unwrap().len(), 0);
    let exported = world.json(&["log", "export", "bundle", "--json"]);
    assert_eq!(exported["events"], events);
    let lines = std::fs::read_to_string(world.home.path().join("bundle/events.jsonl")).unwrap();
    assert_eq!(lines.lines().count() as u64, events);
    let again = world.run(&["log", "export", "bundle"]);
    assert_eq!(again.code, 2, "{again:?}");
    assert!(
        again
            .stderr
            .starts_with("error: `bundle` already exists\nhint: "),
        "{again:?}"
    );
}

#[test]
fn a_damaged_log_is_a_no_with_a_line_for_each_problem() {
    let world = written();
    // One byte of the block that holds one event.
    let damage = Tamper::open(&world.data());
    let needle = "What should I know before I go on?";
    let events = damage.all_events();
    let asked = events
        .iter()
        .find(|event| str::from_utf8(&event.bytes).unwrap().contains(needle));
    damage.raw(asked.unwrap().position, |bytes| bytes[30] ^= 1);
    drop(damage);
    let said = world.run(&["log", "verify"]);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.stdout.starts_with("event at position "), "{said:?}");
    let found = said.stdout.lines().count();
    assert!(
        said.stderr.contains(&format!("{found} problem")),
        "{said:?}"
    );
    assert_eq!(world.run(&["log", "rebuild"]).code, 1);
}

#[test]
fn a_damaged_document_is_named_with_the_command_that_makes_it_again() {
    let world = written();
    let damage = Tamper::open(&world.data());
    damage.set("workspace_local", "updated_at = updated_at + 1");
    drop(damage);
    let said = world.run(&["log", "verify"]);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.stderr.contains("1 problem found"), "{said:?}");
    assert!(
        said.stderr.contains("`reprise log rebuild --write`"),
        "{said:?}"
    );
    let repair = world.run(&["log", "repair"]);
    assert_eq!(repair.code, 1, "{repair:?}");
    assert!(repair.stderr.contains("finds 1 problem that"), "{repair:?}");
    assert!(
        repair.stderr.contains("`reprise log rebuild --write`"),
        "{repair:?}"
    );
    assert_eq!(world.run(&["log", "rebuild", "--write"]).code, 0);
    assert_eq!(world.run(&["log", "verify"]).code, 0);
}

#[test]
fn a_directory_without_a_log_is_a_fault() {
    let world = World::new();
    for command in [
        &["log", "verify"][..],
        &["log", "rebuild"],
        &["log", "export", "out"],
    ] {
        let said = world.run(command);
        assert_eq!(said.code, 2, "{said:?}");
        assert!(said.stderr.contains("is not a data directory"), "{said:?}");
    }
}

/// Everything in the data directory but the index that SQLite keeps of its write-ahead log, and the lock.
fn contents(data: &std::path::Path) -> std::collections::BTreeMap<String, Vec<u8>> {
    let files = std::fs::read_dir(data).unwrap().map(Result::unwrap);
    let files = files.filter(|file| file.file_type().unwrap().is_file());
    files
        .map(|file| {
            let name = file.file_name().into_string().unwrap();
            (name, std::fs::read(file.path()).unwrap())
        })
        .filter(|(name, _)| name != "reprise.db-shm" && name != "lock")
        .collect()
}

#[test]
fn u14_a_log_that_lost_acknowledged_events_is_refused_and_recovered_only_when_asked() {
    let world = World::new();
    let server = world.serve();
    for _ in 0..5 {
        world.submit("agent");
    }
    server.kill();
    let data = world.data();
    let before = contents(&data);
    let whole = world.json(&["log", "verify", "--json"]);
    assert_eq!(whole["problems"].as_array().unwrap().len(), 0);
    assert_eq!(whole["copied"], false);
    let said = world.run(&["log", "recover", "--accept-loss"]);
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.stderr.contains("nothing is lost"), "{said:?}");
    assert!(contents(&data) == before, "something was written");

    let wal = data.join("reprise.db-wal");
    let mut bytes = std::fs::read(&wal).unwrap();
    let place = bytes.len() / 10 * 6;
    bytes[place] ^= 1;
    std::fs::write(&wal, &bytes).unwrap();
    let before = contents(&data);
    let said = world.run(&["log", "verify"]);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(
        said.stdout.contains("`reprise.db-wal` is damaged"),
        "{said:?}"
    );
    for command in [
        &["log", "export", "out"][..],
        &["log", "rebuild"],
        &["key", "list"],
        &["serve"],
    ] {
        let said = world.run(command);
        assert_eq!(said.code, 2, "{command:?}: {said:?}");
        assert!(said.stderr.contains("lost acknowledged events"), "{said:?}");
        assert!(
            said.stderr.contains("log recover --accept-loss"),
            "{said:?}"
        );
    }
    let said = world.run(&["log", "recover"]);
    assert_eq!(said.code, 2, "{said:?}");
    assert!(contents(&data) == before, "a refusal wrote something");

    let recovered = world.json(&["log", "recover", "--accept-loss", "--json"]);
    let origin = recovered["origin"].as_str().unwrap();
    let lost = &recovered["recovered"];
    assert_eq!(origin, format!("{}-2", lost["origin"].as_str().unwrap()));
    let acknowledged = lost["acknowledged_position"].as_u64().unwrap();
    assert!(lost["last_position"].as_u64().unwrap() < acknowledged);
    assert_eq!(recovered["first_position"], acknowledged + 1);
    assert_eq!(
        std::fs::read(data.join("lost-1/reprise.db-wal")).unwrap(),
        bytes
    );
    world.ok(&["log", "verify"]);
    let server = world.serve();
    world.submit("agent");
    server.stop();
    world.ok(&["log", "verify"]);
    world.ok(&["log", "rebuild"]);
    world.ok(&["log", "export", "out"]);
    let checkpoint = std::fs::read_to_string(world.home.path().join("out/checkpoint")).unwrap();
    assert!(
        checkpoint.starts_with(&format!("{origin}\n")),
        "{checkpoint}"
    );
    let events = std::fs::read_to_string(world.home.path().join("out/events.jsonl")).unwrap();
    let first = events
        .lines()
        .find(|line| line.contains("\"recovered\":"))
        .unwrap();
    assert!(first.contains("\"vendor.tree_head_sealed\""), "{first}");
}

/// Evidence is often kept where nothing can be written.
#[cfg(unix)]
#[test]
fn u14_a_log_is_verified_where_nothing_can_be_written() {
    use std::os::unix::fs::{PermissionsExt, chown};
    use std::os::unix::process::CommandExt;
    let world = World::new();
    let server = world.serve();
    world.submit("agent");
    server.kill();
    let data = world.data();
    // Root writes anywhere: then the check runs as somebody who may only read.
    let nobody = chown(&data, None, None).is_ok()
        && std::fs::metadata("/proc/self")
            .is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    let open = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    open(world.home.path(), 0o755);
    let readable = ["format", "head", "lock", "reprise.db", "reprise.db-wal"];
    let check = |expect_copy: bool| {
        for name in readable.into_iter().filter(|name| data.join(name).exists()) {
            open(&data.join(name), 0o444);
        }
        open(&data, 0o555);
        let before = contents(&data);
        let mut command = world.command(&["log", "verify", "--json"]);
        if nobody {
            command.uid(65_534).gid(65_534);
        }
        let said = testing::process::run_to_end(command);
        assert_eq!(said.code, 0, "{said:?}");
        let report: serde_json::Value = serde_json::from_str(&said.stdout).unwrap();
        assert_eq!(report["copied"], expect_copy, "{said:?}");
        assert_eq!(
            said.stderr.contains("checked a copy"),
            expect_copy,
            "{said:?}"
        );
        assert!(contents(&data) == before);
        open(&data, 0o700);
        for name in readable.into_iter().filter(|name| data.join(name).exists()) {
            open(&data.join(name), 0o600);
        }
    };
    std::fs::remove_file(data.join("reprise.db-shm")).unwrap();
    check(true);
    world.serve().stop();
    assert!(!data.join("reprise.db-wal").exists());
    check(false);
}

/// U15: what cannot be read is listed first, replaced only when asked, kept aside, and the log verifies, serves and exports.
#[test]
fn u15_a_log_is_repaired_and_goes_on() {
    let world = written();
    let tasks = world.json(&["log", "verify", "--json"]);
    let damage = Tamper::open(&world.data());
    let needle = "What should I know before I go on?";
    let events = damage.all_events();
    let asked = events
        .iter()
        .find(|event| str::from_utf8(&event.bytes).unwrap().contains(needle));
    let asked = asked.unwrap().position;
    damage.raw(asked, |bytes| bytes[30] ^= 1);
    let message = events.iter().find(|event| {
        str::from_utf8(&event.bytes)
            .unwrap()
            .contains("\"agent.message\"")
    });
    let message = message.unwrap().position;
    let deep = format!(
        "\"payload\":{{\"x\":{}{}}}",
        "[".repeat(200),
        "]".repeat(200)
    );
    damage.event(message, |event| {
        let text = String::from_utf8(event.bytes.to_vec()).unwrap();
        let (before, rest) = text.split_once("\"payload\":").unwrap();
        let (_, after) = rest.split_once(",\"previous_event_id\"").unwrap();
        event.bytes = format!("{before}{deep},\"previous_event_id\"{after}")
            .into_bytes()
            .into();
    });
    drop(damage);
    let before = contents(&world.data());
    let said = world.run(&["log", "repair"]);
    assert_eq!(said.code, 1, "{said:?}");
    for position in [asked, message] {
        let line = format!("event at position {}: ", position.0);
        assert!(said.stdout.contains(&line), "{said:?}");
    }
    assert!(
        said.stdout.contains("`agent.message` keeps its envelope"),
        "{said:?}"
    );
    assert!(said.stderr.contains("nothing was changed"), "{said:?}");
    assert!(
        contents(&world.data()) == before,
        "a dry run wrote something"
    );
    assert_eq!(world.run(&["log", "verify"]).code, 1);

    let server = world.serve();
    let said = world.run(&["log", "repair", "--apply"]);
    assert_eq!(said.code, 2, "{said:?}");
    assert!(said.stderr.contains("is in use by process"), "{said:?}");
    server.stop();

    let repaired = world.json(&["log", "repair", "--apply", "--json"]);
    let listed = repaired["events"].as_array().unwrap();
    assert!(listed.len() >= 2, "{repaired}");
    let folder = world
        .home
        .path()
        .join(repaired["kept_in"].as_str().unwrap());
    assert!(folder.join(format!("event-{}", message.0)).is_file());
    let report = world.json(&["log", "verify", "--json"]);
    assert_eq!(report["problems"].as_array().unwrap().len(), 0);
    assert_eq!(report["repaired"], listed.len());
    assert!(report["events"].as_u64() >= tasks["events"].as_u64());
    world.ok(&["log", "rebuild"]);
    let said = world.run(&["log", "repair"]);
    assert_eq!(said.code, 0, "{said:?}");

    // It serves, lists every event, and its export verifies and names what is gone.
    let server = world.serve();
    world.submit("agent");
    world.ok(&["task", "list"]);
    let keys = std::process::Command::new("curl")
        .args(["-sS", &format!("{}/.well-known/jwks.json", server.url)])
        .output()
        .unwrap();
    std::fs::write(world.home.path().join("jwks.json"), keys.stdout).unwrap();
    server.stop();
    world.ok(&["log", "verify"]);
    world.ok(&["log", "export", "bundle"]);
    let said = world.run(&[
        "receipt",
        "verify",
        "--bundle",
        "bundle",
        "--keys",
        "jwks.json",
    ]);
    assert_eq!(said.code, 0, "{said:?}");
    assert!(
        said.stdout
            .contains("could not be read when the log was repaired"),
        "{said:?}"
    );
    // Headers that the manifest does not own up to are not believed.
    let file = world.home.path().join("bundle/manifest.json");
    let mut manifest: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    manifest.as_object_mut().unwrap().remove("repaired");
    std::fs::write(&file, manifest.to_string()).unwrap();
    let said = world.run(&[
        "receipt",
        "verify",
        "--bundle",
        "bundle",
        "--keys",
        "jwks.json",
    ]);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.stdout.contains("no repair says so"), "{said:?}");
}

/// D7, and what else lies beside the database: a seed that is not its key's, and a file that should say how far the log came.
#[test]
fn log_verify_looks_at_the_files_beside_the_database() {
    let world = written();
    let data = world.data();
    let file = data.join("signing-keys.json");
    let good = std::fs::read_to_string(&file).unwrap();
    let at = good.find("\"seed\": \"").unwrap() + 9;
    let other = if good[at..].starts_with('A') {
        "B"
    } else {
        "A"
    };
    let mut bad = good.clone();
    bad.replace_range(at..=at, other);
    std::fs::write(&file, &bad).unwrap();
    let said = world.run(&["log", "verify"]);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.stdout.contains("belongs to another key"), "{said:?}");
    std::fs::write(&file, &good).unwrap();
    world.ok(&["log", "verify"]);

    let head = std::fs::read(data.join("head")).unwrap();
    std::fs::remove_file(data.join("head")).unwrap();
    let said = world.run(&["log", "verify"]);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(
        said.stdout.contains("the file `head` is missing"),
        "{said:?}"
    );
    std::fs::write(data.join("head"), head).unwrap();
    world.ok(&["log", "verify"]);
}

/// A check writes nothing, not even the index that SQLite keeps of a write-ahead log.
#[test]
fn log_verify_leaves_even_the_index_of_the_write_ahead_log_as_it_is() {
    let world = World::new();
    let server = world.serve();
    world.submit("agent");
    server.kill();
    let shm = world.data().join("reprise.db-shm");
    let junk = b"not what SQLite would write".as_slice();
    std::fs::write(&shm, junk).unwrap();
    let before = contents(&world.data());
    let report = world.json(&["log", "verify", "--json"]);
    assert!(report["events"].as_u64().unwrap() > 10, "{report}");
    assert_eq!(report["copied"], false);
    assert!(contents(&world.data()) == before);
    assert_eq!(std::fs::read(&shm).unwrap(), junk);
    std::fs::remove_file(&shm).unwrap();
    world.ok(&["log", "verify"]);
    assert!(!shm.exists());
}

/// The commit that made the tables is the first in the write-ahead log: a log can go on without that too.
#[test]
fn u14_a_log_whose_first_frames_are_damaged_is_recovered() {
    let world = World::new();
    let server = world.serve();
    world.submit("agent");
    server.kill();
    let wal = world.data().join("reprise.db-wal");
    let mut bytes = std::fs::read(&wal).unwrap();
    bytes[40] ^= 1;
    std::fs::write(&wal, &bytes).unwrap();
    assert_eq!(world.run(&["log", "verify"]).code, 1);
    let recovered = world.json(&["log", "recover", "--accept-loss", "--json"]);
    assert_eq!(recovered["recovered"]["last_position"], 0, "{recovered}");
    world.ok(&["log", "verify"]);
    let server = world.serve();
    world.submit("agent");
    server.stop();
    world.ok(&["log", "verify"]);
    world.ok(&["log", "rebuild"]);
}

/// D6: whoever repeats a request gets its first answer by what is kept of its key: a change of that is found.
#[test]
fn d6_a_changed_idempotency_key_is_found() {
    let world = World::new();
    let server = world.serve();
    let key = fs::read_to_string(world.data().join("api-key")).unwrap();
    let made = std::process::Command::new("curl")
        .args(["-sS", "-d", "{}", "-H", "Idempotency-Key: once"])
        .args(["-H", &format!("authorization: Bearer {}", key.trim())])
        .args([
            "-H",
            "harn-agents-protocol-version: agents-protocol-2026-04-25",
        ])
        .arg(format!("{}/v1/sessions", server.url))
        .status()
        .unwrap();
    assert!(made.success());
    server.stop();
    world.ok(&["log", "verify"]);
    for change in [
        "UPDATE claims SET answer = answer - 1",
        "UPDATE claims SET body = zeroblob(32)",
        "UPDATE claims SET expires_at = expires_at + 1",
    ] {
        let database = world.data().join("reprise.db");
        let whole = fs::read(&database).unwrap();
        Tamper::open(&world.data()).execute(change);
        let said = world.run(&["log", "verify"]);
        assert_eq!(said.code, 1, "{change}: {said:?}");
        assert!(
            said.stdout
                .contains("1 idempotency keys are not what was stored"),
            "{change}: {said:?}"
        );
        fs::write(&database, whole).unwrap();
    }
    world.ok(&["log", "verify"]);
}

/// What stands before a damaged block is delivered; then the stream says that it failed: its end is not that of a log.
#[test]
fn a_stream_that_comes_to_a_damaged_block_says_so_after_what_stands_before_it() {
    let world = World::new();
    let server = world.serve();
    let task = world.submit("agent");
    world.submit("agent");
    server.stop();
    let damage = Tamper::open(&world.data());
    let key = damage.key(&task);
    let mut events = damage.all_events();
    events.retain(|event| event.links.task == Some(key));
    let last = events.last().unwrap().position;
    let block = damage.events(last);
    let readable = events.iter();
    let readable = readable.filter(|event| event.position < block[0].position);
    let readable = readable.count();
    assert!(readable > 0, "the end of a Task is a commit of its own");
    damage.raw(last, |bytes| bytes[30] ^= 1);
    drop(damage);
    let server = world.serve();
    let mut socket = TcpStream::connect(server.address()).unwrap();
    let key = fs::read_to_string(world.data().join("api-key")).unwrap();
    let request = format!(
        "GET /v1/tasks/{task}/stream HTTP/1.0\r\nhost: 127.0.0.1\r\nharn-agents-protocol-version: \
         agents-protocol-2026-04-25\r\nauthorization: Bearer {}\r\n\r\n",
        key.trim()
    );
    socket.write_all(request.as_bytes()).unwrap();
    let mut said = String::new();
    socket.read_to_string(&mut said).unwrap();
    let frames = said.matches("\nevent: ").count();
    assert_eq!(frames, readable + 1, "{said}");
    let last = said.rsplit("event: ").next().unwrap();
    assert!(last.starts_with("error\n"), "{last}");
    assert!(last.contains("internal_error"), "{last}");
    server.stop();
}
