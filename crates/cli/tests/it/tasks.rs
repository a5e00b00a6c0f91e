//! `reprise task` against a real server.

use std::path::Path;

use testing::process::run_with_stdin;

use crate::world::World;

#[test]
fn a_task_is_submitted_shown_and_listed() {
    let world = World::new();
    let _server = world.serve();
    let said = world.run(&[
        "task",
        "submit",
        "Summarise the incident",
        "--metadata",
        "ticket=OPS-7",
    ]);
    assert_eq!(said.code, 0, "{said:?}");
    let (id, status) = said.stdout.trim().split_once("  ").unwrap();
    assert_eq!(status, "COMPLETED");

    let task = world.json(&["task", "get", id, "--json"]);
    assert_eq!(task["metadata"]["ticket"], "OPS-7");
    let shown = world.ok(&["task", "get", id]);
    for word in [id, "COMPLETED", "agent", "Summarise the incident", "admin"] {
        assert!(shown.contains(word), "{shown}");
    }

    let session = task["session_id"].as_str().unwrap();
    for _ in 0..3 {
        world.ok(&["task", "submit", "More", "--session", session]);
    }
    world.submit("agent");
    let listed = world.json(&["task", "list", "--session", session, "--json"]);
    assert_eq!(listed.as_array().unwrap().len(), 4);
    let all = world.run(&["task", "list", "--limit", "2", "--json"]);
    let two: serde_json::Value = serde_json::from_str(&all.stdout).unwrap();
    assert_eq!(two.as_array().unwrap().len(), 2);
    assert!(all.stderr.contains("there are more"), "{all:?}");
    let table = world.ok(&["task", "list", "--workspace", "workspace_local"]);
    assert_eq!(table.lines().count(), 6, "{table}");
    assert!(table.starts_with("TASK "), "{table}");
    assert!(!table.contains('\u{1b}'));
}

#[test]
fn ap_task_07_input_comes_as_text_from_stdin_or_as_an_object() {
    let world = World::new();
    let _server = world.serve();
    let command = world.command(&["task", "submit", "-", "--json"]);
    let said = run_with_stdin(command, "from stdin\n");
    let task: serde_json::Value = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!(task["input"]["parts"][0]["text"], "from stdin\n");

    std::fs::write(world.home.path().join("input.json"), "{\"ticket\": 7}").unwrap();
    let task = world.json(&["task", "submit", "--json-input", "input.json", "--json"]);
    assert_eq!(task["input"]["ticket"], 7);

    std::fs::write(world.home.path().join("input.json"), "{\"a\": 1, \"a\": 2}").unwrap();
    let said = world.run(&["task", "submit", "--json-input", "input.json"]);
    assert_eq!(said.code, 2, "{said:?}");
    assert!(said.stderr.contains("`input.json`"), "{said:?}");
}

#[test]
fn ap_idem_04_one_key_makes_one_task_however_often_it_is_submitted() {
    let world = World::new();
    let _server = world.serve();
    let submit = |text: &str| {
        world.run(&[
            "task",
            "submit",
            text,
            "--idempotency-key",
            "once",
            "--json",
        ])
    };
    let first = submit("Hello");
    let again = submit("Hello");
    let id = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap()["id"].clone();
    assert_eq!(id(&first.stdout), id(&again.stdout));
    assert_eq!(
        world
            .json(&["task", "list", "--json"])
            .as_array()
            .unwrap()
            .len(),
        1
    );
    let other = submit("Goodbye");
    assert_eq!(other.code, 1, "{other:?}");
    assert!(
        other.stderr.contains("(idempotency_key_reused"),
        "{other:?}"
    );
}

#[test]
fn ap_task_11_a_question_is_answered() {
    let world = World::new();
    let _server = world.serve();
    let said = world.run(&["task", "submit", "Prepare", "--workflow", "ask"]);
    assert!(said.stdout.contains("INPUT_REQUIRED"), "{said:?}");
    let id = said.stdout.split(' ').next().unwrap();
    assert!(
        said.stderr
            .contains(&format!("reprise task answer {id} TEXT")),
        "{said:?}"
    );
    let wrong = world.run(&["task", "answer", id]);
    assert_eq!(wrong.code, 2, "{wrong:?}");
    world.ok(&["task", "answer", id, "Use staging"]);
    let watched = world.run(&["task", "watch", id]);
    assert_eq!(watched.code, 0, "{watched:?}");
    assert!(
        watched.stdout.contains("“You told me: Use staging”"),
        "{watched:?}"
    );
    assert_eq!(world.run(&["task", "answer", id, "Something else"]).code, 1);
}

#[test]
fn ap_prm_02_an_approval_is_given_or_refused() {
    let world = World::new();
    let _server = world.serve();
    let approved = world.submit("approve");
    assert_eq!(
        world.json(&["task", "get", &approved, "--json"])["status"],
        "AUTH_REQUIRED"
    );
    world.ok(&[
        "task",
        "answer",
        &approved,
        "--approve",
        "--reason",
        "looks right",
    ]);
    assert_eq!(world.run(&["task", "watch", &approved]).code, 0);

    let denied = world.submit("approve");
    world.ok(&["task", "answer", &denied, "--deny"]);
    let watched = world.run(&["task", "watch", &denied]);
    assert_eq!(watched.code, 1, "{watched:?}");
    assert!(
        watched.stderr.contains("FAILED: the action was denied"),
        "{watched:?}"
    );
    let again = world.run(&["task", "answer", &denied, "--approve"]);
    assert_eq!(again.code, 1, "{again:?}");
    assert!(
        again.stderr.contains("does not wait for a decision"),
        "{again:?}"
    );
}

#[test]
fn ap_life_06_a_task_is_canceled_once_and_a_finished_one_is_not() {
    let world = World::new();
    let _server = world.serve();
    let held = world.submit("hold");
    let said = world.run(&["task", "cancel", &held, "--reason", "no longer needed"]);
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.stdout.contains("CANCELED"), "{said:?}");
    assert_eq!(world.run(&["task", "cancel", &held]).code, 0);
    assert_eq!(world.run(&["task", "watch", &held]).code, 1);
    let finished = world.submit("agent");
    let said = world.run(&["task", "cancel", &finished]);
    assert_eq!(said.code, 1, "{said:?}");
}

#[test]
fn errors_are_one_line_and_a_hint() {
    let world = World::new();
    let nobody = world.run(&[
        "task",
        "list",
        "--url",
        "http://127.0.0.1:9",
        "--key",
        "rpk_x",
    ]);
    let nokey = world.run(&["task", "list"]);
    let _server = world.serve();
    let texts = [
        nobody,
        nokey,
        world.run(&["task", "get", "task_unknown"]),
        world.run(&["task", "get", ".."]),
        world.run(&["task", "list", "--key", "rpk_wrong"]),
        world.run(&["task", "submit", "x", "--session", "session_unknown"]),
        world.run(&["task", "submit", "x", "--metadata", "novalue"]),
        world.run(&["task", "submit"]),
        world.run(&["task", "wach", "task_1"]),
        world.run(&[
            "task",
            "list",
            "--url",
            "http://192.0.2.1",
            "--key",
            "rpk_x",
        ]),
        world.run(&["task", "list", "--url", "https://192.0.2.1"]),
    ];
    for said in &texts {
        let code = if said.stderr.contains("(resource_not_found") {
            1
        } else {
            2
        };
        assert_eq!((said.code, said.stdout.as_str()), (code, ""), "{said:?}");
        assert_eq!(said.stderr.lines().count(), 2, "{said:?}");
        assert!(
            said.stderr.starts_with("error: ") && said.stderr.contains("\nhint: "),
            "{said:?}"
        );
    }
    let texts: Vec<String> = texts.into_iter().map(|said| said.stderr).collect();
    insta::assert_snapshot!(texts.join("\n"));
}

#[test]
fn a_reader_that_went_away_is_no_error() {
    let world = World::new();
    let _server = world.serve();
    world.submit("agent");
    for args in [
        &["task", "list"][..],
        &["serve", "--print-config"],
        &["--help"],
        &["log", "verify"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = world.command(args);
        let output = command.stdout(writer).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{args:?}: {output:?}");
        assert!(output.stderr.is_empty(), "{args:?}: {output:?}");
    }
    assert!(Path::new(&world.data()).exists());
}

#[test]
fn a_task_without_words_is_not_submitted() {
    let world = World::new();
    let _server = world.serve();
    let empty = run_with_stdin(world.command(&["task", "submit", "-"]), " \n");
    for said in [world.run(&["task", "submit", ""]), empty] {
        assert_eq!(said.code, 2, "{said:?}");
        assert!(said.stderr.contains("the text is empty"), "{said:?}");
    }
    assert_eq!(
        world.json(&["task", "list", "--json"]),
        serde_json::json!([])
    );
}
