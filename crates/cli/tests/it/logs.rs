//! `reprise log` on a data directory that a server has written.

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
            .starts_with("error: `bundle` exists already\nhint: "),
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
