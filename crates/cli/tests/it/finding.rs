//! Finding runs again, deciding what waits, and what programs and shells read of the command line.

use std::fs;

use serde_json::{Value, json};
use testing::process::run_with_stdin;

use crate::world::World;

fn ids(list: &Value) -> Vec<String> {
    let list = list.as_array().unwrap();
    list.iter()
        .map(|task| task["id"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn lists_are_narrowed_by_the_server_newest_first() {
    let world = World::new();
    let _server = world.serve();
    let submit = |text: &str, more: &[&str]| {
        let task = world.json(&[&["task", "submit", text, "--json"], more].concat());
        task["id"].as_str().unwrap().to_owned()
    };
    let plain = submit("One", &[]);
    let tagged = submit("Two", &["--metadata", "ticket=OPS-7"]);
    let asking = submit("Three", &["--workflow", "ask"]);
    let last = submit("Four", &["--metadata", "ticket=OPS-8"]);

    let list = |more: &[&str]| ids(&world.json(&[&["task", "list", "--json"], more].concat()));
    assert_eq!(
        list(&[]),
        [last.clone(), asking.clone(), tagged.clone(), plain.clone()]
    );
    assert_eq!(list(&["--oldest", "-n", "1"]), [plain.as_str()]);
    assert_eq!(list(&["--status", "input_required"]), [asking.as_str()]);
    assert_eq!(
        list(&["--status", "completed,input_required", "-n", "2"]),
        [last.clone(), asking.clone()]
    );
    assert_eq!(list(&["--metadata", "ticket=OPS-7"]), [tagged.as_str()]);
    assert_eq!(list(&["--workflow", "ask"]), [asking.as_str()]);
    for since in ["1h", "1h30m", "1w", "2000-01-31", "2000-01-31T10:00"] {
        assert_eq!(list(&["--since", since]).len(), 4, "{since}");
    }
    assert!(list(&["--since", "2100-01-01T00:00:00Z"]).is_empty());
    let quiet = world.ok(&["task", "list", "-q", "-n", "2"]);
    assert_eq!(
        quiet.lines().collect::<Vec<_>>(),
        [last.as_str(), asking.as_str()]
    );

    // A page of one each: the cursor goes on, in both directions.
    let session = world.json(&["session", "list", "--json"]);
    assert_eq!(session.as_array().unwrap().len(), 4);
    let id = session[0]["id"].as_str().unwrap();
    let shown = world.ok(&["session", "show", id]);
    assert!(shown.contains("Four") && shown.contains(&last), "{shown}");

    // What the server does not know it refuses.
    let said = world.run(&["task", "list", "--status", "lost", "--json"]);
    assert_eq!(said.code, 2, "{said:?}");
    let error: Value = serde_json::from_str(&said.stderr).unwrap();
    assert_eq!(error["error"]["code"], "invalid_request", "{error}");
    assert_eq!(error["error"]["exit"], 2);
    assert!(
        error["error"]["message"]
            .as_str()
            .unwrap()
            .contains("`status`"),
        "{error}"
    );
}

/// What a list leaves out is replaced by what comes next: `-n` counts what is shown.
#[test]
fn a_list_without_replays_is_as_long_as_asked_for() {
    let world = World::new();
    let _server = world.serve();
    let task = world.submit("agent");
    for _ in 0..3 {
        world.ok(&["replay", &task]);
    }
    let found = world.ok(&["task", "list", "-q", "-n", "1", "--no-replays"]);
    assert_eq!(found.trim(), task);
    assert_ne!(world.ok(&["task", "list", "-q", "-n", "1"]).trim(), task);
}

#[test]
fn the_log_is_read_in_both_directions_and_a_task_shows_its_persona() {
    let world = World::new();
    let _server = world.serve();
    fs::write(
        world.home.path().join("p.yaml"),
        "name: quiet\nversion: '1'\nentry_workflow: agent\ndescription: d\nautonomy_tier: suggest\nreceipt_policy: required\n",
    )
    .unwrap();
    world.ok(&["persona", "apply", "p.yaml"]);
    let task = world.json(&["task", "submit", "Hello", "--persona", "quiet", "--json"]);
    let task = task["id"].as_str().unwrap();
    for text in [
        world.ok(&["task", "list"]),
        world.ok(&["task", "get", task]),
    ] {
        assert!(text.contains("quiet@1") && text.contains("agent"), "{text}");
        assert!(!text.contains("persona's"), "{text}");
    }
    let oldest = world.json(&["event", "list", "--task", task, "--oldest", "--json"]);
    let oldest = ids(&oldest);
    assert_eq!(
        oldest.len(),
        oldest
            .iter()
            .collect::<std::collections::BTreeSet<_>>()
            .len()
    );
    let mut backwards = Vec::new();
    let mut after: Option<String> = None;
    loop {
        let mut args = vec!["event", "list", "--task", task, "-q", "-n", "3"];
        if let Some(after) = &after {
            args.extend(["--after", after]);
        }
        let page = world.ok(&args);
        if page.is_empty() {
            break;
        }
        backwards.extend(page.lines().map(str::to_owned));
        after = backwards.last().cloned();
    }
    backwards.reverse();
    assert_eq!(backwards, oldest);
    let text = world.ok(&["event", "list", "--task", task, "--oldest", "-n", "1"]);
    assert!(text.contains("task.submitted"), "{text}");
    let compact = world.json(&["event", "list", "--task", task, "--compact", "--json"]);
    assert!(compact[0]["bytes"].is_u64(), "{compact}");
    let one = world.json(&["event", "show", &oldest[0], "--json"]);
    assert_eq!(one["event"], "task.submitted");
    assert_eq!(world.ok(&["workspace", "list", "-q"]), "workspace_local\n");
    let shown = world.json(&["workspace", "show", "workspace_local", "--json"]);
    assert_eq!(shown["id"], "workspace_local");
    let said = world.run(&["task", "submit", "x", "--workspace", "workspace_nope"]);
    assert!(said.stderr.contains("reprise workspace list"), "{said:?}");
}

#[test]
fn a_page_that_finds_nothing_goes_on() {
    let world = World::new();
    let _server = world.serve();
    let first = world.json(&[
        "task",
        "submit",
        "Needle",
        "--metadata",
        "find=me",
        "--json",
    ]);
    let session = first["session_id"].as_str().unwrap();
    for _ in 0..30 {
        world.ok(&["task", "submit", "Hay", "--session", session]);
    }
    let found = world.json(&["task", "list", "--metadata", "find=me", "--json"]);
    assert_eq!(ids(&found), [first["id"].as_str().unwrap()]);
}

#[test]
fn u21_what_waits_is_shown_with_its_arguments_and_decided_with_a_reason() {
    let world = World::new();
    let _server = world.serve();
    let task = world.submit("approve");
    let waiting = world.json(&["approvals", "list", "--json"]);
    assert_eq!(waiting.as_array().unwrap().len(), 1);
    let id = waiting[0]["id"].as_str().unwrap().to_owned();
    let table = world.ok(&["approvals", "list"]);
    assert!(table.contains(&id) && table.contains(&task), "{table}");
    let shown = world.ok(&["approvals", "show", &id]);
    for word in [id.as_str(), &task, "pending", "sha256:", "Arguments"] {
        assert!(shown.contains(word), "{word}: {shown}");
    }
    let whole = world.json(&["approvals", "show", &task, "--json"]);
    let input = &whole["request"]["action"]["input"];
    let digest = canon::sha256(&canon::jcs(input)).to_string();
    assert_eq!(whole["input_sha256"], digest.as_str());
    let got = world.ok(&["task", "get", &task]);
    assert!(got.contains("waits for"), "{got}");

    // A decision about other arguments decides nothing.
    let wrong = world.run(&["approvals", "approve", &id, "--digest", "sha256:00"]);
    assert_eq!(wrong.code, 1, "{wrong:?}");
    assert_eq!(
        world.json(&["task", "get", &task, "--json"])["status"],
        "AUTH_REQUIRED"
    );
    let decided = world.json(&[
        "approvals",
        "deny",
        &id,
        "--reason",
        "not today",
        "--digest",
        &digest,
        "--json",
    ]);
    assert_eq!(decided["status"], "denied");
    world.run(&["task", "watch", &task]);
    assert!(
        world
            .json(&["approvals", "list", "--json"])
            .as_array()
            .unwrap()
            .is_empty()
    );
    let told = world.json(&["task", "show", &task, "--json"]);
    let steps = told["steps"].as_array().unwrap();
    let step = steps
        .iter()
        .find(|step| step["what"] == "approval")
        .unwrap();
    assert_eq!(step["decision"]["reason"], "not today");
    assert_eq!(step["decision"]["approved"], false);
    let all = world.json(&["approvals", "list", "--all", "--json"]);
    assert_eq!(all[0]["response"]["reason"], "not today");
    // Afterwards it says who decided, and when.
    let shown = world.ok(&["approvals", "show", &id]);
    for word in ["decided by", "approver", "decided at", "not today"] {
        assert!(shown.contains(word), "{word}: {shown}");
    }
    let shown = world.json(&["approvals", "show", &id, "--json"]);
    assert_eq!(shown["decision"]["actor"], "approver", "{shown}");
}

#[test]
fn artifacts_go_in_and_out() {
    let world = World::new();
    let _server = world.serve();
    fs::write(world.home.path().join("note.txt"), "one two\n").unwrap();
    let made = world.json(&[
        "artifact",
        "put",
        "note.txt",
        "--mime-type",
        "text/plain",
        "--json",
    ]);
    let id = made["id"].as_str().unwrap();
    assert_eq!(world.ok(&["artifact", "get", id]), "one two\n");
    let listed = world.json(&["artifact", "list", "--json"]);
    assert_eq!(listed[0]["id"], id);
    world.ok(&["artifact", "get", id, "copy.txt"]);
    assert_eq!(
        fs::read(world.home.path().join("copy.txt")).unwrap(),
        b"one two\n"
    );
    let again = world.run(&["artifact", "get", id, "copy.txt"]);
    assert_eq!(again.code, 2, "a file is not overwritten: {again:?}");
}

#[test]
fn u29_what_the_server_refuses_is_1_and_no_server_is_2() {
    let world = World::new();
    let server = world.serve();
    for args in [
        &["task", "get", "task_00000000000000000000000000000000"][..],
        &[
            "approvals",
            "show",
            "permission_00000000000000000000000000000000",
        ],
        &[
            "session",
            "show",
            "session_00000000000000000000000000000000",
        ],
    ] {
        let said = world.run(args);
        assert_eq!(said.code, 1, "{args:?}: {said:?}");
    }
    let narrow = world.json(&[
        "key",
        "create",
        "--actor",
        "eye",
        "--scope",
        "tasks:read",
        "--json",
    ]);
    let key = narrow["key"].as_str().unwrap();
    assert_eq!(world.run(&["task", "submit", "x", "--key", key]).code, 1);
    drop(server);
    let said = world.run(&["task", "list", "--json"]);
    assert_eq!(said.code, 2, "{said:?}");
    let error: Value = serde_json::from_str(&said.stderr).unwrap();
    assert!(
        error["error"]["hint"]
            .as_str()
            .unwrap()
            .contains("reprise serve")
    );
    // Wrong usage too.
    let said = world.run(&["task", "list", "--nope", "--json"]);
    assert_eq!(said.code, 2);
    let error: Value = serde_json::from_str(&said.stderr).unwrap();
    assert!(
        error["error"]["message"]
            .as_str()
            .unwrap()
            .contains("--nope"),
        "{error}"
    );
}

#[test]
fn help_completions_and_manual() {
    let world = World::new();
    assert_eq!(world.ok(&["help"]), world.ok(&["--help"]));
    let help = world.ok(&["help", "task", "submit"]);
    assert!(help.contains("Submit a task"), "{help}");
    assert_eq!(world.ok(&["task", "help", "submit"]), help);
    for shell in ["bash", "zsh", "fish"] {
        let script = world.ok(&["completions", shell]);
        assert!(script.contains("approvals"), "{shell}");
        let file = world.home.path().join("completions");
        fs::write(&file, script).unwrap();
        // What is installed here must take it.
        if let Ok(checked) = std::process::Command::new(shell)
            .arg("-n")
            .arg(&file)
            .status()
        {
            assert!(checked.success(), "{shell}");
        }
    }
    assert!(world.ok(&["man"]).starts_with(".ie"), "a manual page");
    world.ok(&["man", "pages"]);
    assert!(
        world
            .home
            .path()
            .join("pages/reprise-task-show.1")
            .is_file()
    );
}

#[test]
fn quiet_prints_the_id_alone_and_every_answer_has_json() {
    let world = World::new();
    let command = world.command(&["vault", "set", "token", "--json"]);
    let said = run_with_stdin(command, "secret-value\n");
    assert_eq!(
        serde_json::from_str::<Value>(&said.stdout).unwrap(),
        json!({"name": "token", "version": 1})
    );
    assert_eq!(
        world.json(&["vault", "list", "--json"]),
        json!([{"name": "token", "version": 1}])
    );
    assert_eq!(
        world.json(&["vault", "delete", "token", "--json"]),
        json!({"name": "token", "deleted": true})
    );
    let _server = world.serve();
    let said = world.run(&["task", "submit", "Hello", "-q"]);
    let id = said.stdout.trim();
    assert!(id.starts_with("task_") && !id.contains(' '), "{said:?}");
    assert_eq!(said.stderr, "");
    let wrote = world.json(&["task", "export", id, "run.bundle", "--json"]);
    assert_eq!(wrote["task_id"], id);
    let made = world.json(&["key", "create", "--actor", "ci", "--json"]);
    let revoked = world.json(&["key", "revoke", made["id"].as_str().unwrap(), "--json"]);
    assert!(revoked["revoked_at"].is_string());
}

#[test]
fn a_key_in_the_configuration_is_not_repeated() {
    let world = World::new();
    let config = "[[providers]]\nid = \"main\"\nkind = \"openai\"\napi_key = \"sk-very-secret\"\n";
    fs::write(world.home.path().join("c.toml"), config).unwrap();
    let said = world.run(&["serve", "--config", "c.toml"]);
    assert_eq!(said.code, 2, "{said:?}");
    assert!(!said.stderr.contains("sk-very-secret"), "{said:?}");
    assert!(said.stderr.contains("reprise vault set"), "{said:?}");
}

#[test]
fn a_persona_with_what_the_server_lacks_is_warned_about() {
    let world = World::new();
    let _server = world.serve();
    let persona = "name: lost\nversion: '1'\nentry_workflow: agent\ndescription: d\nautonomy_tier: suggest\n\
        receipt_policy: required\nmodel: { provider: nowhere }\ntools: [hammer]\n";
    fs::write(world.home.path().join("lost.yaml"), persona).unwrap();
    let said = world.run(&["persona", "apply", "lost.yaml"]);
    assert_eq!(said.code, 0, "{said:?}");
    assert!(
        said.stderr
            .contains("warning: the server has no tool `hammer`"),
        "{said:?}"
    );
    assert!(
        said.stderr
            .contains("warning: the server has no provider `nowhere`"),
        "{said:?}"
    );
    assert!(said.stderr.contains("--persona lost"), "{said:?}");
}
