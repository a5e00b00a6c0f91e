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
    let key = world.ok(&[
        "key",
        "create",
        "--actor",
        "guest",
        "--workspace",
        "workspace_elsewhere",
    ]);
    let answer = world.run(&["task", "get", &task, "--key", key.trim()]);
    assert!(answer.stderr.contains("(resource_not_found)"), "{answer:?}");
    let listed = world.json(&["task", "list", "--json", "--key", key.trim()]);
    assert_eq!(listed.as_array().unwrap().len(), 0);
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
        world.run(&["key", "create", "--actor", "a", "--workspace", "here"]),
        world.run(&["key", "create", "--actor", ""]),
        world.run(&["key", "revoke", "key_unknown"]),
    ];
    for said in &texts {
        assert_eq!((said.code, said.stdout.as_str()), (2, ""), "{said:?}");
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
        if refused.stderr.contains("another actor has to") {
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
