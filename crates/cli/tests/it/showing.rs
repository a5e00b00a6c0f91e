//! `task show`: a run as people read it, from a server and from a file.

use std::fs;

use serde_json::{Value, json};

use crate::world::World;

const CONFIG: &str = r#"
[[providers]]
id = "script"
kind = "scripted"
file = "answers.yaml"

[[tools]]
name = "count_words"
description = "Counts the words of a file."
argv = ["sh", "-c", "wc -w < \"$0\"", "{file}"]
folder = "files"
[tools.parameters]
type = "object"
required = ["file"]
additionalProperties = false
[tools.parameters.properties]
file = { type = "string" }
"#;

const PERSONA: &str = "name: counter\nversion: '1'\nentry_workflow: agent\ndescription: Counts words\n\
    autonomy_tier: act_with_approval\nreceipt_policy: required\nsystem_prompt: You count words.\n\
    model: { provider: script }\ntools: [count_words]\n";

/// A server with a persona whose model calls a tool and then gives a long answer.
fn counting(world: &World) -> (testing::process::Server, String) {
    let home = world.home.path();
    let long = format!("START {}END", "three words ".repeat(600));
    let answers = format!(
        "answers:\n  - when: {{ key: \"llm:main:1\" }}\n    answer: Let me count.\n    tool_calls:\n      \
         - name: count_words\n        arguments: {{ file: note.txt }}\n  - answer: {}\n",
        json!(long)
    );
    fs::write(home.join("reprise.toml"), CONFIG).unwrap();
    fs::write(home.join("answers.yaml"), answers).unwrap();
    fs::write(home.join("counter.yaml"), PERSONA).unwrap();
    fs::create_dir(home.join("files")).unwrap();
    fs::write(home.join("files/note.txt"), "one two three\n").unwrap();
    let server = world.serve_with(&["--listen", "127.0.0.1:0", "--config", "reprise.toml"]);
    world.ok(&["persona", "apply", "counter.yaml"]);
    (server, long)
}

fn asked(world: &World) -> String {
    let submit = [
        "task",
        "submit",
        "How many words?",
        "--persona",
        "counter",
        "--json",
    ];
    let task = world.json(&submit);
    assert_eq!(task["status"], "AUTH_REQUIRED", "{task}");
    task["id"].as_str().unwrap().to_owned()
}

/// The steps of one kind.
fn steps<'a>(told: &'a Value, what: &str) -> Vec<&'a Value> {
    let steps = told["steps"].as_array().unwrap();
    steps.iter().filter(|step| step["what"] == what).collect()
}

#[test]
fn a_run_is_shown_whole_with_what_was_asked_and_who_decided_and_the_same_offline() {
    let world = World::new();
    let (_server, long) = counting(&world);
    let task = asked(&world);

    // While it waits: what is asked for, with its arguments.
    let waiting = world.json(&["task", "show", &task, "--json"]);
    assert_eq!(waiting["status"], "AUTH_REQUIRED");
    assert_eq!(waiting["made_from"]["sealed"], false);
    let approval = steps(&waiting, "approval")[0];
    assert_eq!(
        approval["decision"]["action"]["input"],
        json!({"file": "note.txt"})
    );
    assert_eq!(approval["decision"]["approved"], Value::Null);

    world.ok(&[
        "task",
        "answer",
        &task,
        "--approve",
        "--reason",
        "it only reads",
    ]);
    world.ok(&["task", "watch", &task]);
    let told = world.json(&["task", "show", &task, "--json"]);
    assert_eq!(told["object"], "run_transcript");
    assert_eq!(told["input"], "How many words?");
    assert_eq!(told["answer"], long.as_str());
    let models = steps(&told, "model");
    assert_eq!(models.len(), 2);
    let first = models[0];
    assert_eq!(first["request_check"], "matches", "{first:#}");
    assert_eq!(
        first["request"]["messages"],
        json!([{"role": "system", "content": "You count words."}, {"role": "user", "content": "How many words?"}])
    );
    assert_eq!(
        first["request"]["tools"][0]["function"]["name"],
        "count_words"
    );
    // The second says only what was added, and where the rest stands; alone it is told whole.
    let second = models[1];
    assert_eq!(
        second["request_continues"],
        json!({"step": first["step"], "messages": 2, "same_tools": true})
    );
    assert_eq!(second["request"]["messages"].as_array().unwrap().len(), 2);
    let alone = world.json(&[
        "task",
        "show",
        &task,
        "--json",
        "--step",
        &second["step"].to_string(),
    ]);
    let alone = &alone["steps"][0];
    assert_eq!(alone["request"]["messages"].as_array().unwrap().len(), 4);
    assert_eq!(alone["request_check"], "matches");
    assert_eq!(alone["value_check"], "matches");
    // What it hashes to is computed here by the published rule, not believed.
    assert_eq!(
        whole_digest(&alone["request"]),
        alone["request_sha256"].as_str().unwrap()
    );
    let tool = steps(&told, "tool")[0];
    assert_eq!(tool["tool"]["arguments"], json!({"file": "note.txt"}));
    assert_eq!(tool["value"]["stdout"].as_str().unwrap().trim(), "3");
    assert!(tool["duration_ms"].is_u64());
    let approval = steps(&told, "approval")[0];
    let decision = &approval["decision"];
    assert_eq!(decision["actor"], "approver");
    assert_eq!(decision["reason"], "it only reads");

    // For people: nothing is cut off, and every word is there.
    let text = world.ok(&["task", "show", &task]);
    for words in [
        "You count words.",
        "How many words?",
        "Let me count.",
        "approved by approver",
        "it only reads",
        "as recorded",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(text.contains(&long), "{text}");

    // A file says the same.
    world.ok(&["task", "export", &task, "run.bundle"]);
    let offline = world.json(&["task", "show", "run.bundle", "--json"]);
    assert_eq!(offline, told);
    assert_eq!(world.ok(&["task", "show", "run.bundle"]), text);

    // The stored bytes have the digests that they are shown with, also what lies beside an event.
    let raw = world.ok(&["task", "show", &task, "--raw"]);
    assert!(raw.contains(" `parts`  "), "{raw}");
    for line in raw.lines() {
        let (digest, rest) = line.split_once("  ").unwrap();
        let bytes = match rest.starts_with('{') {
            true => rest,
            false => rest.split_once("`  ").unwrap().1,
        };
        assert_eq!(
            canon::sha256(bytes.as_bytes()).to_string(),
            digest,
            "{line}"
        );
    }
    assert_eq!(
        raw.lines()
            .filter(|line| line.contains("  {\"actor\""))
            .count() as u64,
        told["made_from"]["events"].as_u64().unwrap() + 1,
        "the log, and the issue of the receipt"
    );
}

/// The digest of a model request: its canonical form, where the messages are told by number and head of their chain.
fn whole_digest(request: &Value) -> String {
    let mut head = canon::sha256(b"");
    let messages = request["messages"].as_array().unwrap();
    for message in messages {
        let digest = canon::sha256(&canon::jcs(message));
        head = canon::sha256(&[head.as_bytes().as_slice(), digest.as_bytes()].concat());
    }
    let mut request = request.clone();
    request["messages"] = json!({"count": messages.len(), "sha256": head.to_string()});
    canon::sha256(&canon::jcs(&request)).to_string()
}

#[test]
fn a_request_that_is_not_the_recorded_one_is_called_so() {
    let world = World::new();
    let (_server, _) = counting(&world);
    let task = asked(&world);
    world.ok(&["task", "answer", &task, "--approve"]);
    world.ok(&["task", "watch", &task]);
    world.ok(&["task", "export", &task, "run.bundle"]);
    let bundle = world.home.path().join("run.bundle");
    let text = fs::read_to_string(&bundle).unwrap();
    // Somebody rewrites what the persona was told.
    let changed = text.replacen("You count words.", "You count worms.", 1);
    assert_ne!(changed, text);
    fs::write(world.home.path().join("other.bundle"), changed).unwrap();
    let said = world.run(&["task", "show", "other.bundle"]);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.stdout.contains("NOT as recorded"), "{}", said.stdout);
    assert!(
        !said.stdout.contains(", as recorded\n  settings"),
        "{}",
        said.stdout
    );
}

#[test]
fn a_watch_tells_each_answer_once_and_whole() {
    let world = World::new();
    let (_server, long) = counting(&world);
    let task = asked(&world);
    world.ok(&["task", "answer", &task, "--approve"]);
    let text = world.ok(&["task", "watch", &task]);
    assert_eq!(text.matches("START").count(), 1, "{text}");
    assert!(text.contains(&long), "{text}");
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains("tool.approval_required count_words {\"file\":\"note.txt\"}"),
        "{text}"
    );
    let all = world.ok(&["task", "watch", &task, "--json"]);
    assert!(all.contains("vendor.message_delta"));
}

#[test]
fn what_is_not_there_is_said() {
    let world = World::new();
    let _server = world.serve();
    let task = world.submit("agent");
    let said = world.run(&["task", "show", &task, "--step", "9"]);
    assert_ne!(said.code, 0);
    assert!(said.stderr.contains("steps, not 9"), "{said:?}");
    assert_ne!(world.run(&["task", "show", "task_nope"]).code, 0);
    let text = world.ok(&["task", "show", &task]);
    assert!(text.contains("Do it"), "{text}");
}
