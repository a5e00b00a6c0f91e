//! Who did what, what is not there and what failed, as commands tell it.

use crate::world::World;

/// A question is answered by whoever works with the first key; a decision is the approver's (U21).
#[test]
fn u21_the_record_names_who_really_answered() {
    let world = World::new();
    let _server = world.serve();
    let asked = world.submit("ask");
    world.ok(&["task", "answer", &asked, "Blue"]);
    world.ok(&["task", "watch", &asked]);
    let shown = world.ok(&["task", "show", &asked]);
    assert!(shown.contains("answered by admin at"), "{shown}");
    let trust = world.ok(&["receipt", "trust", &asked]);
    assert!(trust.contains("  admin  "), "{trust}");
    assert!(!trust.to_lowercase().contains("approver"), "{trust}");

    let decided = world.submit("approve");
    world.ok(&["task", "answer", &decided, "--approve"]);
    world.ok(&["task", "watch", &decided]);
    let trust = world.ok(&["receipt", "trust", &decided]);
    assert!(trust.contains("  approver  "), "{trust}");
}

#[test]
fn a_chain_without_records_says_so() {
    let world = World::new();
    let _server = world.serve();
    let task = world.submit("agent");
    world.ok(&["task", "watch", &task]);
    let trust = world.ok(&["receipt", "trust", &task]);
    assert!(
        trust.starts_with("nobody was asked for an approval"),
        "{trust}"
    );
}

#[test]
fn decisions_are_listed_by_how_they_ended_and_a_failure_is_told_once() {
    let world = World::new();
    let _server = world.serve();
    let [yes, no, open] = [(); 3].map(|()| world.submit("approve"));
    world.ok(&["approvals", "approve", &yes]);
    world.ok(&["approvals", "deny", &no, "--reason", "not today"]);
    for (status, task) in [("approved", &yes), ("denied", &no), ("pending", &open)] {
        let listed = world.ok(&["approvals", "list", "--status", status]);
        let rows = listed.lines().filter(|line| line.contains("task_"));
        let rows: Vec<&str> = rows.collect();
        assert!(
            matches!(&rows[..], [row] if row.contains(task.as_str())),
            "{listed}"
        );
    }
    let watched = world.run(&["task", "watch", &no]);
    assert_eq!(watched.code, 1, "{watched:?}");
    let got = world.ok(&["task", "get", &no, "--json"]);
    let got: serde_json::Value = serde_json::from_str(&got).unwrap();
    let message = got["failure"]["message"].as_str().unwrap();
    let shown = world.run(&["task", "get", &no]);
    assert_eq!(shown.stdout.matches(message).count(), 1, "{shown:?}");
}

/// U29: that something is not there is an answer, 1. Commands that judge say 1 only about what they have seen.
#[test]
fn u29_what_is_not_there_is_a_no() {
    let world = World::new();
    let _server = world.serve();
    for (args, code) in [
        (&["receipt", "show", "nope"][..], 1),
        (&["receipt", "proof", "nope"], 1),
        (&["receipt", "show", "task_nope"], 1),
        (&["task", "show", "nope"], 1),
        (&["session", "show", "nope"], 1),
        (&["artifact", "get", "nope"], 1),
        (&["persona", "show", "nope"], 1),
        (&["event", "show", "nope"], 1),
        (&["approvals", "show", "nope"], 1),
        (&["key", "revoke", "nope"], 1),
        (&["vault", "delete", "nope"], 1),
        (&["receipt", "verify", "nope"], 2),
        (&["receipt", "trust", "nope"], 2),
        (&["diff", "nope", "nope"], 2),
        (&["sidecar", "verify", "nope.md"], 2),
    ] {
        let said = world.run(args);
        assert_eq!(said.code, code, "{args:?}: {said:?}");
        assert!(said.stderr.contains("\nhint: "), "{args:?}: {said:?}");
    }
}

/// Whoever asks the server about its own receipt reads whose word that is.
#[test]
fn a_server_that_verifies_its_own_receipt_is_named_as_such() {
    let world = World::new();
    let _server = world.serve();
    let task = world.submit("agent");
    world.ok(&["task", "watch", &task]);
    let said = world.run(&["receipt", "verify", &task]);
    assert_eq!(said.code, 0, "{said:?}");
    assert!(
        said.stderr.contains("the server itself says so"),
        "{said:?}"
    );
}

#[test]
fn pruning_by_0_days_says_what_that_means() {
    let world = World::new();
    let server = world.serve();
    let task = world.submit("agent");
    world.ok(&["task", "watch", &task]);
    server.stop();
    let args = ["log", "prune", "--older-than-days", "0", "--dry-run"];
    let said = world.run(&args);
    assert!(
        said.stderr.contains("all tasks that have finished"),
        "{said:?}"
    );
    assert!(said.stdout.starts_with("would prune 1 task:"), "{said:?}");
}
