//! `reprise serve`: its first key, its lock, its end.

use std::os::unix::fs::PermissionsExt;

use testing::process::{Server, run_to_end};

use crate::world::World;

#[test]
fn ap_auth_03_an_empty_directory_gets_a_key_file_that_only_its_owner_reads_and_nobody_prints() {
    let world = World::new();
    let server = world.serve();
    let file = world.data().join("api-key");
    let key = std::fs::read_to_string(&file).unwrap();
    assert!(key.starts_with("rpk_") && key.trim().len() == 68, "{key:?}");
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(
        server.greeting.contains("reprise-data/api-key"),
        "{}",
        server.greeting
    );
    world.ok(&["task", "list"]);
    let (status, everything) = server.stop();
    assert_eq!(status.code(), Some(0));
    assert!(!everything.contains(key.trim()), "{everything}");

    // A second start keeps the key and does not boast.
    let server = world.serve();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), key);
    assert!(
        !server.greeting.contains("first key"),
        "{}",
        server.greeting
    );
    assert_eq!(
        world
            .json(&["key", "list", "--json"])
            .as_array()
            .unwrap()
            .len(),
        2
    );
}

#[test]
fn a_key_file_whose_digest_was_lost_in_a_crash_is_completed() {
    let world = World::new();
    world.serve().stop();
    // A fresh log beside the file that a crash left.
    let key = std::fs::read_to_string(world.data().join("api-key")).unwrap();
    std::fs::remove_dir_all(world.data()).unwrap();
    std::fs::create_dir(world.data()).unwrap();
    std::fs::write(world.data().join("api-key"), &key).unwrap();
    let _server = world.serve();
    assert_eq!(
        std::fs::read_to_string(world.data().join("api-key")).unwrap(),
        key
    );
    world.ok(&["task", "list"]);
}

#[test]
fn a_second_server_on_the_same_directory_is_refused_with_advice() {
    let world = World::new();
    let _server = world.serve();
    let mut second = world.command(&["serve", "--listen", "127.0.0.1:0"]);
    let Err(refused) = Server::start(&mut second) else {
        panic!("two servers work in one directory");
    };
    assert_eq!(refused.code, 2);
    assert!(
        refused.stderr.contains("is in use by process"),
        "{}",
        refused.stderr
    );
    assert!(
        refused.stderr.contains("hint: stop that process"),
        "{}",
        refused.stderr
    );
}

#[test]
fn ap_rest_02_an_address_that_others_reach_needs_tls_or_the_flag() {
    let world = World::new();
    let mut open = world.command(&["serve", "--listen", "0.0.0.0:0"]);
    let Err(refused) = Server::start(&mut open) else {
        panic!("plain http for everybody");
    };
    assert_eq!(refused.code, 2);
    insta::assert_snapshot!(refused.stderr);
    assert!(!world.data().join("api-key").exists());

    world.serve_with(&["--listen", "localhost:0"]).stop();
    let server = world.serve_with(&["--listen", "0.0.0.0:0", "--allow-plain-http"]);
    assert!(
        server.url.starts_with("http://127.0.0.1:"),
        "{}",
        server.url
    );
    world.ok(&["task", "list"]);
}

#[test]
fn ap_task_04_a_drain_ends_with_0_and_leaves_tasks_as_they_are() {
    let world = World::new();
    let server = world.serve();
    let task = world.submit("hold");
    assert_eq!(
        world.json(&["task", "get", &task, "--json"])["status"],
        "WORKING"
    );
    let (status, _) = server.stop();
    assert_eq!(status.code(), Some(0));
    assert!(!world.data().join("address").exists());
    let _server = world.serve();
    assert_eq!(
        world.json(&["task", "get", &task, "--json"])["status"],
        "WORKING"
    );
    let events = world.ok(&["log", "verify"]);
    assert!(events.contains("are what they were"), "{events}");
}

/// F15: whoever closes the terminal that a server was started from stops it as anybody else does.
#[test]
fn f15_a_server_whose_terminal_is_gone_stops_in_order() {
    let world = World::new();
    let server = world.serve();
    server.signal("HUP");
    assert_eq!(server.wait().code(), Some(0));
    assert!(!world.data().join("address").exists());
}

#[test]
fn a_second_signal_ends_at_once() {
    let world = World::new();
    let mut command = world.command(&["serve", "--listen", "127.0.0.1:0"]);
    command.env("REPRISE_LIMITS_DRAIN_WINDOW_MS", "3600000");
    let mut server = Server::start(&mut command).unwrap();
    world.submit("hold");
    server.signal("INT");
    loop {
        let line = server.line().expect("it waits for the task");
        if line.contains("a second signal") {
            break;
        }
    }
    server.signal("INT");
    assert_eq!(server.wait().code(), Some(2));
}

/// U26, and what nothing can be written to is not ready.
#[test]
fn u26_a_data_directory_that_is_moved_away_makes_the_server_unready_and_every_write_503() {
    let world = World::new();
    let server = world.serve();
    let task = world.submit("agent");
    let away = world.home.path().join("away");
    std::fs::rename(world.data(), &away).unwrap();
    let address = server.address();
    let key = std::fs::read_to_string(away.join("api-key")).unwrap();
    let ask = |method: &str, path: &str, body: Option<&str>| {
        let mut command = std::process::Command::new("curl");
        command.args(["-s", "-o", "/dev/null", "-w", "%{http_code}", "-X", method]);
        command
            .arg("-H")
            .arg(format!("Authorization: Bearer {}", key.trim()));
        command.args([
            "-H",
            "Harn-Agents-Protocol-Version: agents-protocol-2026-04-25",
        ]);
        if let Some(body) = body {
            command.args(["-H", "Content-Type: application/json", "-d", body]);
        }
        command.arg(format!("http://{address}{path}"));
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    assert_eq!(ask("GET", "/readyz", None), "503");
    assert_eq!(ask("POST", "/v1/sessions", Some("{}")), "503");
    assert_eq!(
        ask("GET", &format!("/v1/tasks/{task}"), None),
        "200",
        "reads go on"
    );
    std::fs::rename(&away, world.data()).unwrap();
    assert_eq!(ask("GET", "/readyz", None), "200");
    assert_eq!(ask("POST", "/v1/sessions", Some("{}")), "201");
    server.stop();
    world.ok(&["log", "verify"]);
}

/// U2: without `--examples` the example workflows are for what is on record: it goes on, ends and replays.
#[test]
fn u2_without_examples_new_tasks_of_theirs_are_refused_and_recorded_ones_go_on() {
    let world = World::new();
    let server = world.serve();
    let asked = world.submit("ask");
    let held = world.submit("hold");
    let fixed = world.submit("replay-fixture");
    server.stop();

    let mut command = world.command(&["serve", "--listen", "127.0.0.1:0"]);
    command.env_remove("REPRISE_EXAMPLES");
    let server = Server::start(&mut command).unwrap();
    for name in ["ask", "approve", "hold", "replay-fixture"] {
        let said = world.run(&["task", "submit", "Do it", "--workflow", name]);
        assert_eq!(said.code, 1, "{said:?}");
        assert!(said.stderr.contains("policy_violation"), "{said:?}");
        assert!(said.stderr.contains("--examples"), "{said:?}");
    }
    let skills = skills(&world, &server.url);
    assert_eq!(skills, ["agent"]);
    world.submit("agent");

    world.ok(&["task", "answer", &asked, "blue"]);
    world.ok(&["task", "watch", &asked]);
    let task = world.json(&["task", "get", &asked, "--json"]);
    assert_eq!(task["status"], "COMPLETED");
    world.ok(&["task", "cancel", &held]);
    for task in [&asked, &fixed] {
        let said = world.run(&["replay", task]);
        assert_eq!(said.code, 0, "{said:?}");
    }
}

fn skills(world: &World, url: &str) -> Vec<String> {
    let key = std::fs::read_to_string(world.data().join("api-key")).unwrap();
    let mut curl = std::process::Command::new("curl");
    curl.args(["-s", "-H", &format!("Authorization: Bearer {}", key.trim())]);
    curl.args([
        "-H",
        "Harn-Agents-Protocol-Version: agents-protocol-2026-04-25",
    ]);
    curl.arg(format!("{url}/v1/skills"));
    let list: serde_json::Value = serde_json::from_str(&run_to_end(curl).stdout).unwrap();
    list["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|skill| skill["name"].as_str().unwrap().to_owned())
        .collect()
}
