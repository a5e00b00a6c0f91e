//! `reprise key` while a server is running.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::world::World;

#[test]
fn ap_auth_02_keys_are_made_listed_and_revoked_beside_a_running_server() {
    let world = World::new();
    let _server = world.serve();
    let made = world.run(&["key", "create", "--actor", "ci"]);
    assert_eq!(made.code, 0, "{made:?}");
    let key = made.stdout.trim();
    assert!(key.starts_with("rpk_") && key.len() == 68, "{made:?}");
    assert!(!made.stderr.contains(key));

    let task = world.json(&["task", "submit", "Hello", "--json", "--key", key]);
    assert_eq!(task["created_by"], "ci");

    let keys = world.json(&["key", "list", "--json"]);
    let ours = keys
        .as_array()
        .unwrap()
        .iter()
        .find(|key| key["actor"] == "ci")
        .unwrap();
    let id = ours["id"].as_str().unwrap();
    assert!(ours["revoked_at"].is_null());
    assert!(!keys.to_string().contains("digest"));
    let listed = world.ok(&["key", "list"]);
    assert!(listed.contains(id) && !listed.contains(key), "{listed}");

    assert_eq!(world.run(&["key", "revoke", id]).code, 0);
    let revoked = Instant::now();
    loop {
        let asked = revoked.elapsed();
        let answer = world.run(&["task", "list", "--key", key]);
        if answer.code != 0 {
            assert!(answer.stderr.contains("(unauthenticated)"), "{answer:?}");
            assert!(!answer.stderr.contains(key));
            break;
        }
        assert!(
            asked < Duration::from_secs(1),
            "still accepted after {asked:?}"
        );
    }
    assert_eq!(world.run(&["key", "revoke", id]).code, 0);
    let keys = world.json(&["key", "list", "--json"]);
    let ours = keys
        .as_array()
        .unwrap()
        .iter()
        .find(|key| key["id"] == id)
        .unwrap();
    assert!(ours["revoked_at"].is_string());
    world.ok(&["task", "list"]);
}

#[test]
fn ap_auth_02_a_read_only_key_reads_and_does_not_write() {
    let world = World::new();
    let _server = world.serve();
    let key = world.ok(&["key", "create", "--actor", "auditor", "--read-only"]);
    let key = key.trim();
    world.ok(&["task", "list", "--key", key]);
    let refused = world.run(&["task", "submit", "Hello", "--key", key]);
    assert_eq!(refused.code, 1);
    assert!(
        refused.stderr.contains("(permission_denied)"),
        "{refused:?}"
    );
}

#[test]
fn ap_ws_04_a_bound_key_sees_its_workspace_only() {
    let world = World::new();
    let _server = world.serve();
    let task = world.submit("agent");
    let create = ["key", "create", "--actor", "guest", "--workspace"];
    // F15: one that is not there would be whatever gets its id later.
    let nowhere = world.run(&[&create[..], &["workspace_elsewhere"]].concat());
    assert_eq!(nowhere.code, 2, "{nowhere:?}");
    assert!(
        nowhere.stderr.contains("there is no workspace"),
        "{nowhere:?}"
    );
    let elsewhere = workspace(&world, &_server.url);
    let key = world.ok(&[&create[..], &[elsewhere.as_str()]].concat());
    let answer = world.run(&["task", "get", &task, "--key", key.trim()]);
    assert!(answer.stderr.contains("(resource_not_found)"), "{answer:?}");
    let listed = world.json(&["task", "list", "--json", "--key", key.trim()]);
    assert_eq!(listed.as_array().unwrap().len(), 0);
}

/// Makes a Workspace and returns its id.
fn workspace(world: &World, url: &str) -> String {
    let key = std::fs::read_to_string(world.data().join("api-key")).unwrap();
    let output = std::process::Command::new("curl")
        .args(["-sS", "-d", "{\"name\":\"b\",\"root\":\"/\"}"])
        .args(["-H", &format!("authorization: Bearer {}", key.trim())])
        .args([
            "-H",
            "harn-agents-protocol-version: agents-protocol-2026-04-25",
        ])
        .arg(format!("{url}/v1/workspaces"))
        .output()
        .unwrap();
    let made: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    made["id"].as_str().unwrap().to_owned()
}

#[test]
fn wrong_words_are_errors_with_a_hint() {
    let world = World::new();
    let missing = world.run(&["key", "list"]);
    world.serve().stop();
    let texts = [
        missing,
        world.run(&["key", "create", "--actor", "a", "--scope", "task:write"]),
        world.run(&["key", "create", "--actor", "system"]),
        world.run(&["key", "create", "--actor", "operator"]),
        world.run(&["key", "create", "--actor", "a", "--expires", "3000000d"]),
        world.run(&["key", "create", "--actor", "a", "--workspace", "here"]),
        world.run(&["key", "create", "--actor", ""]),
        world.run(&["key", "revoke", "key_unknown"]),
    ];
    for said in &texts {
        // U29: that there is no such key is an answer.
        let code = if said.stderr.contains("there is no key") {
            1
        } else {
            2
        };
        assert_eq!((said.code, said.stdout.as_str()), (code, ""), "{said:?}");
    }
    let texts: Vec<String> = texts.into_iter().map(|said| said.stderr).collect();
    insta::assert_snapshot!(texts.join("\n"));
}

#[test]
fn u21_who_submits_does_not_approve_and_a_key_can_be_granted_the_right() {
    let world = World::new();
    let _server = world.serve();
    let made = world.ok(&["key", "create", "--actor", "ci"]);
    let key = made.trim();
    let task = world.submit("approve");
    // Everything does not hold this right; `task answer` takes the approver's key by itself.
    let refused = world.run(&["task", "answer", &task, "--approve", "--key", key]);
    assert_ne!(refused.code, 0, "{refused:?}");
    assert!(refused.stderr.contains("approvals:write"), "{refused:?}");
    let keys = world.json(&["key", "list", "--json"]);
    let id = keys.as_array().unwrap().iter();
    let mut id = id.filter(|key| key["actor"] == "ci").map(|key| &key["id"]);
    let id = id.next_back().unwrap().as_str().unwrap();
    world.ok(&["key", "grant", id, "approvals:write"]);
    let own = world.json(&[
        "task",
        "submit",
        "Do it",
        "--workflow",
        "approve",
        "--json",
        "--key",
        key,
    ]);
    let own = own["id"].as_str().unwrap();
    let granted = Instant::now();
    loop {
        let refused = world.run(&["task", "answer", own, "--approve", "--key", key]);
        assert_ne!(refused.code, 0, "{refused:?}");
        if refused.stderr.contains("cannot approve what it asks") {
            break;
        }
        assert!(granted.elapsed() < Duration::from_secs(2), "{refused:?}");
    }
    world.ok(&["task", "answer", &task, "--approve", "--key", key]);
    world.ok(&["task", "answer", own, "--approve"]);
}

/// What holds the text of a key below a folder.
fn holders(folder: &Path, key: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(holders(&path, key));
            continue;
        }
        let bytes = std::fs::read(&path).unwrap();
        if bytes
            .windows(key.len())
            .any(|window| window == key.as_bytes())
        {
            found.push(path);
        }
    }
    found
}

#[test]
fn ap_auth_04_only_digests_of_keys_are_stored() {
    let world = World::new();
    let server = world.serve();
    let made = world.ok(&["key", "create", "--actor", "ci"]);
    let key = made.trim();
    world.ok(&["task", "submit", &format!("my key is {key}"), "--key", key]);
    let first = std::fs::read_to_string(world.data().join("api-key")).unwrap();
    let check = |when: &str| {
        assert_eq!(holders(&world.data(), key), [] as [PathBuf; 0], "{when}");
        // The first key is handed over in a file of its own, and is nowhere else.
        let only = [world.data().join("api-key")];
        assert_eq!(holders(&world.data(), first.trim()), only, "{when}");
    };
    check("while the server runs");
    server.stop();
    check("after it stopped");
}

fn events_of(world: &World, out: &str) -> Vec<serde_json::Value> {
    world.ok(&["log", "export", out]);
    let text = std::fs::read_to_string(world.home.path().join(out).join("events.jsonl")).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .filter(|event: &serde_json::Value| event["resource"]["object"] == "api_key")
        .collect()
}

/// U23: making, granting and revoking a key are events, through the running server or under the lock; they hold neither the
/// key nor its digest, and the table is compared with them.
#[test]
fn u23_changes_of_keys_are_events_and_the_table_is_held_to_them() {
    let world = World::new();
    let server = world.serve();
    let text = world.ok(&["key", "create", "--actor", "ci", "--scope", "tasks:read"]);
    let id = |actor: &str| {
        let keys = world.json(&["key", "list", "--json"]);
        let keys = keys.as_array().unwrap().iter();
        let mut named = keys.filter(|key| key["actor"] == actor);
        named.next().unwrap()["id"].as_str().unwrap().to_owned()
    };
    let ci = id("ci");
    world.ok(&["key", "grant", &ci, "tasks:write"]);
    world.ok(&["key", "revoke", &ci]);
    // While it runs, and of a directory that nobody holds.
    let seen = events_of(&world, "running");
    assert_eq!(seen.len(), 5, "{seen:#?}");
    assert!(world.data().join("operator").is_file());
    server.stop();
    assert!(!world.data().join("operator").exists());
    world.ok(&["key", "create", "--actor", "later"]);
    let seen = events_of(&world, "stopped");
    let told: Vec<(&str, &str)> = seen
        .iter()
        .map(|event| {
            (
                event["event"].as_str().unwrap(),
                event["actor"].as_str().unwrap(),
            )
        })
        .collect();
    let expected = [
        ("vendor.key_created", "system"),
        ("vendor.key_created", "system"),
        ("vendor.key_created", "operator"),
        ("vendor.key_granted", "operator"),
        ("vendor.key_revoked", "operator"),
        ("vendor.key_created", "operator"),
    ];
    assert_eq!(told, expected);
    let all = serde_json::to_string(&seen).unwrap();
    assert!(!all.contains(text.trim()));
    assert!(!all.contains(&canon::sha256(text.trim().as_bytes()).hex()));
    assert_eq!(
        seen[3]["payload"]["scopes"],
        serde_json::json!(["tasks:read", "tasks:write"])
    );
    world.ok(&["log", "verify"]);
    world.ok(&["log", "rebuild"]);

    let change = |sql: &str| store::tamper::Tamper::open(&world.data()).execute(sql);
    let later = id("later");
    for (harm, mend) in [
        (
            format!("UPDATE api_keys SET revoked_at = NULL WHERE id = '{ci}'"),
            format!("UPDATE api_keys SET revoked_at = created_at WHERE id = '{ci}'"),
        ),
        (
            format!(
                "UPDATE api_keys SET scopes = '[\"*\",\"approvals:write\"]' WHERE id = '{later}'"
            ),
            format!("UPDATE api_keys SET scopes = '[\"*\"]' WHERE id = '{later}'"),
        ),
        (
            format!("UPDATE api_keys SET digest = zeroblob(32) WHERE id = '{later}'"),
            "UPDATE meta SET value = value WHERE name = 'log'".to_owned(),
        ),
    ] {
        change(&harm);
        let said = world.run(&["log", "verify"]);
        assert_eq!(said.code, 1, "{said:?}");
        assert!(
            said.stdout.contains("is not what its events say of it"),
            "{harm}: {said:?}"
        );
        change(&mend);
    }
}

/// U23: a key that was made before keys had events works on; that nothing tells of it is said and is no failure. Its next
/// change writes it down.
#[test]
fn u23_keys_from_before_have_no_events_and_that_is_said() {
    use engine::port::KeyStore as _;
    let world = World::new();
    world.serve().stop();
    let store = store::SqliteStore::open(&world.data(), store::Options::default()).unwrap();
    let old = engine::port::ApiKey::new(
        "key_old",
        canon::sha256(b"rpk_old"),
        "old",
        ["tasks:read"],
        domain::Timestamp::from_micros(1),
    );
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(store.put_api_key(old)).unwrap();
    store.close();
    // A program from before would not have noted that all are recorded.
    let change = |sql: &str| store::tamper::Tamper::open(&world.data()).execute(sql);
    change("UPDATE meta SET value = 0 WHERE name = 'keys_recorded'");
    let said = world.run(&["log", "verify", "--json"]);
    assert_eq!(said.code, 0, "{said:?}");
    assert!(
        said.stderr
            .contains("1 API keys were created before keys had events"),
        "{said:?}"
    );
    assert!(
        said.stdout.contains("\"keys_without_events\": 1"),
        "{said:?}"
    );
    // The next start writes it down.
    world.serve().stop();
    world.ok(&["key", "revoke", "key_old"]);
    let seen = events_of(&world, "out");
    let last: Vec<&serde_json::Value> = seen
        .iter()
        .filter(|event| event["resource"]["id"] == "key_old")
        .collect();
    assert_eq!(last.len(), 2, "{seen:#?}");
    assert_eq!(last[0]["payload"]["recorded_late"], true);
    assert_eq!(last[1]["event"], "vendor.key_revoked");
    let said = world.run(&["log", "verify", "--json"]);
    assert!(
        said.stdout.contains("\"keys_without_events\": 0"),
        "{said:?}"
    );
}

/// A key that was written into the database is made by no event: it is named, stops the start, gets no rights, and can be
/// revoked and nothing else.
#[test]
fn u23_a_key_that_no_event_made_is_not_taken_for_one_from_before() {
    let world = World::new();
    world.serve().stop();
    let change = |sql: &str| store::tamper::Tamper::open(&world.data()).execute(sql);
    let digest = canon::sha256(b"rpk_ghost").hex();
    change(&format!(
        "INSERT INTO api_keys(id, digest, actor, workspaces, scopes, created_at) \
         VALUES ('key_ghost', x'{digest}', 'ghost', NULL, '[\"*\"]', 1)"
    ));
    let said = world.run(&["log", "verify"]);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(
        said.stdout.contains("`key_ghost` was made by no event"),
        "{said:?}"
    );
    let said = world.run(&["key", "grant", "key_ghost", "approvals:write"]);
    assert_eq!(said.code, 2, "{said:?}");
    let mut command = world.command(&["serve", "--listen", "127.0.0.1:0"]);
    let Err(said) = testing::process::Server::start(&mut command) else {
        panic!("it serves with a key that nobody made");
    };
    assert!(said.stderr.contains("`key_ghost`"), "{said:?}");
    world.ok(&["key", "revoke", "key_ghost"]);
    world.serve().stop();
    world.ok(&["log", "verify"]);
}

/// U23: a key can end by itself; then it is refused with its own reason, and its streams end.
#[test]
fn u23_a_key_ends_by_itself_and_its_streams_with_it() {
    let world = World::new();
    let server = world.serve();
    let key = world.ok(&[
        "key",
        "create",
        "--actor",
        "guest",
        "--read-only",
        "--expires",
        "4s",
    ]);
    let started = std::time::Instant::now();
    let get = |path: &str| {
        let output = std::process::Command::new("curl")
            .args(["-sS", "-N", "--max-time", "20", "-w", "\n%{http_code}"])
            .args(["-H", &format!("authorization: Bearer {}", key.trim())])
            .args([
                "-H",
                "harn-agents-protocol-version: agents-protocol-2026-04-25",
            ])
            .arg(format!("{}{path}", server.url))
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let listed = get("/v1/tasks");
    assert!(listed.ends_with("\n200"), "{listed}");
    let stream = get("/v1/events/stream");
    let ended = started.elapsed();
    assert!(stream.contains("unauthenticated"), "{stream}");
    assert!((3..9).contains(&ended.as_secs()), "{ended:?}");
    let refused = get("/v1/tasks");
    assert!(refused.ends_with("\n401"), "{refused}");
    assert!(refused.contains("\"key_expired\""), "{refused}");
    let keys = world.ok(&["key", "list"]);
    assert!(keys.contains("expired"), "{keys}");
    server.stop();
    world.ok(&["log", "verify"]);
    let said = world.run(&[
        "key",
        "create",
        "--actor",
        "guest",
        "--expires",
        "yesterday",
    ]);
    assert_eq!(said.code, 2, "{said:?}");
}

/// A file that a killed server left leads to a port that may be somebody else's: what that says is not believed, and it
/// learns nothing.
#[test]
fn u23_an_answer_that_is_not_the_servers_is_not_believed() {
    let world = World::new();
    world.serve().stop();
    let liar = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = liar.local_addr().unwrap();
    std::fs::write(
        world.data().join("operator"),
        format!("{address} the-secret\n"),
    )
    .unwrap();
    let lying = std::thread::spawn(move || {
        use std::io::{BufRead as _, Write as _};
        let (mut stream, _) = liar.accept().unwrap();
        let mut line = String::new();
        std::io::BufReader::new(stream.try_clone().unwrap())
            .read_line(&mut line)
            .unwrap();
        stream
            .write_all(b"{\"nonce\":\"00\",\"proof\":\"00\"}\n")
            .unwrap();
        // Nothing more comes: the other side knows by now.
        let mut rest = String::new();
        let _ = std::io::Read::read_to_string(&mut stream, &mut rest);
        line + &rest
    });
    world.ok(&["key", "create", "--actor", "late"]);
    let heard = lying.join().unwrap();
    assert!(heard.starts_with("{\"nonce\":"), "{heard}");
    for word in ["the-secret", "late", "digest", "scopes"] {
        assert!(!heard.contains(word), "{heard}");
    }
    let keys = world.ok(&["key", "list"]);
    assert!(keys.contains("late"), "{keys}");
}

/// Any user of the machine can connect to the port for the operator: whoever does not show the secret makes room.
#[test]
fn u23_strangers_at_the_door_do_not_keep_the_operator_out() {
    use std::net::TcpStream;
    use std::sync::atomic::{AtomicBool, Ordering};
    let world = World::new();
    let _server = world.serve();
    let file = std::fs::read_to_string(world.data().join("operator")).unwrap();
    let address = file.split_whitespace().next().unwrap().to_owned();
    // Some stay and say nothing, others come and go.
    let silent: Vec<TcpStream> = (0..200)
        .filter_map(|_| TcpStream::connect(&address).ok())
        .collect();
    assert_eq!(silent.len(), 200);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                drop(TcpStream::connect(&address));
            }
        });
        for number in 0..3 {
            let started = Instant::now();
            let made = world.run(&["key", "create", "--actor", &format!("ci{number}")]);
            let took = started.elapsed();
            over.store(made.code != 0 || number == 2, Ordering::Relaxed);
            assert_eq!(made.code, 0, "{made:?}");
            assert!(took < Duration::from_secs(5), "{took:?}");
        }
    });
}

/// S16: a server that was killed leaves its address behind, and whoever has its port then gets no key.
#[test]
fn s16_the_local_key_is_not_sent_to_whoever_has_the_port_of_a_killed_server() {
    let world = World::new();
    let server = world.serve();
    let address = server.address();
    server.kill();
    assert!(world.data().join("address").is_file(), "a crash leaves it");
    let thief = std::net::TcpListener::bind(&address).unwrap();
    thief.set_nonblocking(true).unwrap();
    let said = world.run(&["task", "list"]);
    assert_eq!(said.code, 2, "{said:?}");
    assert!(said.stderr.contains("no server is running in"), "{said:?}");
    assert!(thief.accept().is_err(), "somebody called the thief");
}

/// The scopes that the program knows are those that the documentation explains.
#[test]
fn the_documentation_lists_every_scope() {
    let told = include_str!("../../../../docs/running.md");
    let world = World::new();
    let said = world.run(&["key", "create", "--actor", "a", "--scope", "nope:read"]);
    assert_eq!(said.code, 2, "{said:?}");
    let (_, listed) = said.stderr.split_once("the scopes are ").unwrap();
    let mut count = 0;
    for scope in listed.trim().split(", ") {
        assert!(
            told.contains(&format!("`{scope}`")),
            "docs/running.md does not list {scope}"
        );
        count += 1;
    }
    assert!(count > 20, "{said:?}");
}
