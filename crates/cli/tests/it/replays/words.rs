//! What `replay`, `diff`, `receipt` and `task` say of runs with tools, decisions, sessions and things that are gone.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;

use serde_json::{Value, json};
use testing::process::Server;

use super::Ran;
use crate::world::World;

const CONFIG: &str = "\
[[providers]]
id = \"oans\"
kind = \"openai\"
base_url = \"http://ADDRESS/v1\"
model = \"gpt-x\"
stream = false

[[tools]]
name = \"count\"
description = \"Counts.\"
argv = [\"echo\", \"three\"]
";

/// A provider that answers like any other, each time under other ids: a tool call first, then words.
fn provider() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for (number, stream) in (1..).zip(listener.incoming()) {
            let mut stream = BufReader::new(stream.unwrap());
            let mut length = 0;
            loop {
                let mut line = String::new();
                stream.read_line(&mut line).unwrap();
                let line = line.trim().to_ascii_lowercase();
                if let Some(value) = line.strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                if line.is_empty() {
                    break;
                }
            }
            let mut body = vec![0; length];
            stream.read_exact(&mut body).unwrap();
            let body = String::from_utf8(body).unwrap();
            let calls = body.contains("\"tools\"") && !body.contains("\"role\":\"tool\"");
            let message = match calls {
                true => json!({"role": "assistant", "content": "Let me count.", "tool_calls": [
                    {"id": format!("call_{number}"), "type": "function", "function": {"name": "count", "arguments": "{}"}}]}),
                false if body.contains("At length") => {
                    json!({"role": "assistant", "content": "long ".repeat(2_000)})
                }
                false => json!({"role": "assistant", "content": "All done."}),
            };
            let answer = json!({"id": format!("chatcmpl-{number}"), "object": "chat.completion", "created": number,
                "model": "gpt-x", "system_fingerprint": format!("fp_{number}"),
                "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
                "usage": {"prompt_tokens": 100 + number, "completion_tokens": 3}})
            .to_string();
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
                answer.len()
            );
            stream
                .get_mut()
                .write_all((head + &answer).as_bytes())
                .unwrap();
        }
    });
    address
}

const PERSONA: &str = "\
name: counter
version: 1
entry_workflow: agent
description: Counts
autonomy_tier: act_auto
receipt_policy: required
system_prompt: |
  You count.
  Be brief.
tools: [count]
memory: session
";

/// A server with a model and a local tool, and two personas that differ in a line.
struct Counting {
    world: World,
    server: Server,
}

impl Counting {
    fn new() -> Self {
        let world = World::new();
        let write = |name: &str, text: &str| fs::write(world.home.path().join(name), text).unwrap();
        write("reprise.toml", &CONFIG.replace("ADDRESS", &provider()));
        write("one.yaml", PERSONA);
        let other = PERSONA.replace("version: 1", "version: 2");
        write("two.yaml", &other.replace("Be brief", "Be slow"));
        let server = world.serve_with(&["--listen", "127.0.0.1:0", "--config", "reprise.toml"]);
        world.ok(&["persona", "apply", "one.yaml"]);
        world.ok(&["persona", "apply", "two.yaml"]);
        Self { world, server }
    }

    fn task(&self, persona: &str) -> String {
        let args = ["task", "submit", "Count", "--persona", persona, "--json"];
        let task = self.world.json(&args);
        let id = task["id"].as_str().unwrap().to_owned();
        self.world.ok(&["task", "watch", &id]);
        id
    }

    /// Replays and returns the id of the replay.
    fn replay(&self, args: &[&str]) -> String {
        let said = self.world.run(&[&["replay"], args, &["--json"]].concat());
        let replay: Value =
            serde_json::from_str(&said.stdout).unwrap_or_else(|_| panic!("{said:?}"));
        replay["task_id"].as_str().unwrap().to_owned()
    }
}

#[test]
fn a_tool_prints_what_it_is_told_to_and_the_diff_shows_what_was_asked_then() {
    let counting = Counting::new();
    let task = counting.task("counter@1");
    let change = ["replay", &task, "--set", "host:tool.count:main:1=four"];
    // The words are those of the source only because nobody asked the model what it says to four.
    let said = counting.world.run(&change);
    let result = "result   COMPLETED, changed, but it ends with the text of the source: recorded answers to other requests were used";
    assert!(said.stdout.contains(result), "{said:?}");
    assert!(!said.stdout.contains("equal to the source"), "{said:?}");
    let changed = counting.replay(&change[1..]);
    let events = counting.world.ok(&["replay", &changed, "--list", "--json"]);
    let keys: Value = serde_json::from_str(&events).unwrap();
    let key = |name: &str| {
        let keys = keys.as_array().unwrap();
        keys.iter().find(|key| key["key"] == name).unwrap().clone()
    };
    let given = key("host:tool.count:main:1");
    assert_eq!(given["value"]["stdout"], "four", "{given}");
    assert_eq!(given["value"]["exit_code"], 0, "{given}");
    let listed = counting.world.ok(&["replay", &changed, "--list"]);
    assert!(listed.contains("overridden: four"), "{listed}");
    let listed = counting.world.ok(&["replay", &task, "--list"]);
    let line = listed
        .lines()
        .find(|line| line.starts_with("host:tool.count"));
    assert!(line.unwrap().ends_with("three"), "{listed}");

    let diff = counting.world.run(&["diff", &task, &changed]);
    assert_eq!(diff.code, 1, "{diff:?}");
    let shown = "\
  host:tool.count:main:1  answered differently, overridden
    - three
    + four
  llm:main:2  asked differently, the recorded answer was used
    message 4 (tool)
";
    assert!(diff.stdout.contains(shown), "{}", diff.stdout);
    assert!(diff.stdout.contains("four"), "{}", diff.stdout);
    assert!(!diff.stdout.contains("- request sha256"), "{}", diff.stdout);
}

#[test]
fn a_diff_of_two_personas_shows_the_line_and_each_unknown_price_once() {
    let counting = Counting::new();
    let (one, two) = (counting.task("counter@1"), counting.task("counter@2"));
    let diff = counting.world.run(&["diff", &one, &two]);
    assert_eq!(diff.code, 1, "{diff:?}");
    let given = diff.stdout.split("\ngiven\n").nth(1).unwrap();
    let given = given.split("\n\n").next().unwrap();
    let lines = "  persona system_prompt\n    - Be brief.\n    + Be slow.\n";
    assert!(format!("{given}\n").contains(lines), "{given}");
    assert!(!given.contains("You count."), "{given}");
    let first = diff.stdout.split("first difference\n").nth(1).unwrap();
    assert!(first.starts_with("  a  event 1  task.submitted"), "{first}");
    let price = "  no price is known for oans/gpt-x\n";
    assert!(diff.stdout.contains(price), "{}", diff.stdout);
    // The receipt says so too, instead of a bare 0.
    let receipt = counting.world.ok(&["receipt", "show", &one]);
    let cost = receipt
        .lines()
        .find(|line| line.starts_with("cost "))
        .unwrap();
    assert!(
        cost.ends_with("0 USD + unknown: no price is known for oans/gpt-x"),
        "{cost}"
    );

    // Two runs that differ in nothing but the provider's ids and the times.
    let again = counting
        .world
        .run(&["diff", &one, &counting.task("counter@1")]);
    assert_eq!(again.code, 0, "{again:?}");
}

#[test]
fn an_exact_replay_of_a_live_one_performs_nothing_and_says_so() {
    let counting = Counting::new();
    let task = counting.task("counter@1");
    let live = counting
        .world
        .run(&["replay", &task, "--refresh", "memory"]);
    let now = "live     host:memory.read:main:1 (performed now, not recorded)\n";
    assert!(live.stdout.contains(now), "{live:?}");
    let id = live
        .stdout
        .lines()
        .next()
        .unwrap()
        .rsplit(' ')
        .next()
        .unwrap();
    counting.world.ok(&["task", "export", id, "live.bundle"]);
    for args in [&[id][..], &["--bundle", "live.bundle"]] {
        let again = counting.world.run(&[&["replay"], args].concat());
        assert_eq!(again.code, 0, "{again:?}");
        let then =
            "live     host:memory.read:main:1 (live in the source; nothing was performed now)\n";
        assert!(again.stdout.contains(then), "{again:?}");
        assert!(
            !again.stdout.contains("performed now, not recorded"),
            "{again:?}"
        );
    }
    // The receipt shows what was read live.
    let receipt = counting.world.ok(&["receipt", "show", id]);
    let line = receipt
        .lines()
        .find(|line| line.starts_with("host:memory.read:main:1 "));
    assert!(
        line.unwrap_or_default().contains("refreshed by request"),
        "{receipt}"
    );
    drop(counting.server);
}

#[test]
fn values_beside_the_log_are_listed_to_who_may_see_them() {
    let Counting { world, server } = Counting::new();
    let task = world.json(&["task", "submit", "At length", "--json"]);
    let task = task["id"].as_str().unwrap();
    world.ok(&["task", "watch", task]);
    let line = |text: &str| {
        let mut lines = text.lines();
        lines
            .find(|line| line.starts_with("llm:main:1"))
            .unwrap()
            .to_owned()
    };
    let listed = world.ok(&["replay", task, "--list"]);
    assert!(line(&listed).contains("  long long"), "{listed}");
    let mut args = vec!["key", "create", "--actor", "bob"];
    args.extend(["--scope", "tasks:read", "--scope", "events:read"]);
    let key = world.ok(&args);
    let narrow = world.ok(&["replay", task, "--list", "--key", key.trim()]);
    let elsewhere = "(not visible to this key: sha256:";
    assert!(line(&narrow).contains(elsewhere), "{narrow}");
    // What a replay was given instead is listed like any other answer.
    let changed = world.json(&["replay", task, "--set", "llm:main:1=Roll back", "--json"]);
    let changed = changed["task_id"].as_str().unwrap();
    let listed = world.ok(&["replay", changed, "--list"]);
    assert!(line(&listed).ends_with("overridden: Roll back"), "{listed}");
    let narrow = world.ok(&["replay", changed, "--list", "--key", key.trim()]);
    assert!(line(&narrow).contains(elsewhere), "{narrow}");
    assert!(!narrow.contains("Roll back"), "{narrow}");
    drop(server);
}

#[test]
fn ap_rpl_decisions_and_answers_are_set_in_words() {
    let ran = Ran::new("Hello");
    let approved = ran.world.submit("approve");
    ran.world.ok(&["task", "answer", &approved, "--approve"]);
    ran.world.ok(&["task", "watch", &approved]);
    for (word, status) in [
        ("approve", "COMPLETED"),
        ("yes", "COMPLETED"),
        ("true", "COMPLETED"),
        ("deny", "FAILED"),
        ("no", "FAILED"),
        ("false", "FAILED"),
    ] {
        let exit = i32::from(status == "FAILED");
        let set = format!("host:approval:1={word}");
        let replay = ran.replayed(exit, &[&approved, "--set", &set]);
        assert_eq!(replay["status"], status, "{word}: {replay}");
    }
    let set = "host:approval:1=maybe";
    ran.fault(&[&approved, "--set", set], "got `maybe`");
    ran.world
        .ok(&["task", "export", &approved, "approved.bundle"]);
    ran.fault(
        &["--bundle", "approved.bundle", "--set", set],
        "say approve or deny",
    );

    let asked = ran.world.submit("ask");
    ran.world.ok(&["task", "answer", &asked, "red"]);
    ran.world.ok(&["task", "watch", &asked]);
    for answer in ["green", "yes", "42"] {
        let replay = ran.replayed(0, &[&asked, "--set", &format!("host:approval:1={answer}")]);
        assert_eq!(
            replay["answer"],
            format!("You told me: {answer}"),
            "{replay}"
        );
    }
    // A replay runs what its source ran.
    let listed = ran.world.ok(&["task", "list"]);
    let replays: Vec<&str> = listed
        .lines()
        .filter(|line| line.contains(&format!("task_replay_{}", &asked["task_".len()..])))
        .collect();
    assert_eq!(replays.len(), 3, "{listed}");
    for line in replays {
        assert!(line.contains("  ask  "), "{line}");
    }
}

#[test]
fn hints_name_what_was_not_found() {
    let ran = Ran::new("Hello");
    let task = ran.task.as_str();
    ran.refused(
        &[task, "--from", "checkpoint_x"],
        "--list` shows the checkpoints",
    );
    ran.refused(
        &[task, "--from", "event_x"],
        "shows the ids of a task's events",
    );
    let artifact = "llm:main:1=artifact_x";
    ran.refused(
        &[task, "--override-artifact", artifact],
        "shows the artifacts",
    );
    ran.refused(&["session_x"], "shows the sessions");
    ran.refused(&["task_x"], "`reprise task list` shows the tasks");
}

#[test]
fn what_retention_took_is_told_in_these_words() {
    let mut ran = Ran::new("Hello");
    ran.server.take().unwrap().stop();
    ran.world.ok(&["log", "prune", "--older-than-days", "0"]);
    ran.server = Some(ran.world.serve());
    let task = ran.task.clone();
    let other = ran.world.json(&["task", "submit", "Again", "--json"]);
    let other = other["id"].as_str().unwrap();
    for args in [
        &["replay", &task][..],
        &["replay", &task, "--list"],
        &["replay", &task, "--set", "host:approval:1=yes"],
        &["diff", &task, other],
        &["task", "export", &task, "gone.bundle"],
    ] {
        let said = ran.world.run(args);
        assert_eq!((said.code, said.stdout.as_str()), (2, ""), "{said:?}");
        assert!(said.stderr.contains("events were pruned"), "{said:?}");
        assert!(said.stderr.contains("retention_days"), "{said:?}");
        assert!(!said.stderr.contains("cursor is"), "{said:?}");
    }
    let said = ran.world.ok(&["receipt", "verify", &task]);
    assert!(said.contains("no longer there"), "{said}");
    assert!(said.ends_with("valid\n"), "{said}");
    // What is all there is verified without a word of it.
    let said = ran.world.ok(&["receipt", "verify", other]);
    assert!(!said.contains("no longer there"), "{said}");
}

#[test]
fn a_receipt_shows_what_a_replay_changed() {
    let ran = Ran::new("Hello");
    let args = [&ran.task, "--set", "llm:main:1=No", "--reason", "what if"];
    let replay = ran.replayed(0, &args);
    let shown = ran
        .world
        .ok(&["receipt", "show", replay["task_id"].as_str().unwrap()]);
    assert!(shown.contains("\ndeltas      1\n"), "{shown}");
    let line = shown
        .lines()
        .find(|line| line.starts_with("llm:main:1 "))
        .unwrap();
    assert!(
        line.contains("replace") && line.ends_with("what if"),
        "{line}"
    );
    let plain = ran.world.ok(&["receipt", "show", &ran.task]);
    assert!(
        plain.contains("\ndeltas      0\n") && !plain.contains("DELTA"),
        "{plain}"
    );
    assert!(plain.contains("0 USD\n"), "{plain}");
}

/// AP-RPL-24: a session by its id, with a table of its tasks.
#[test]
fn ap_rpl_24_a_session_is_replayed_task_by_task() {
    let ran = Ran::new("Hello");
    let first = ran.world.json(&["task", "get", &ran.task, "--json"]);
    let session = first["session_id"].as_str().unwrap();
    let second = ran
        .world
        .json(&["task", "submit", "Bye", "--session", session, "--json"]);
    let second = second["id"].as_str().unwrap();
    ran.world.ok(&["task", "watch", second]);
    let held = ran.world.json(&[
        "task",
        "submit",
        "x",
        "--session",
        session,
        "--workflow",
        "hold",
        "--json",
    ]);
    let held = held["id"].as_str().unwrap();

    let exact = ran.replay(&[session]);
    assert_eq!(exact.code, 0, "{exact:?}");
    let equal = "COMPLETED, equal to the source (12 events)";
    for task in [&ran.task, second] {
        let line = exact
            .stdout
            .lines()
            .find(|line| line.starts_with(task))
            .unwrap();
        assert!(
            line.contains("task_replay_") && line.ends_with(equal),
            "{line}"
        );
    }
    let line = exact
        .stdout
        .lines()
        .find(|line| line.starts_with(held))
        .unwrap();
    assert!(line.ends_with("left out: it is not finished"), "{line}");
    assert!(exact.stdout.starts_with("replay  session_"), "{exact:?}");

    let set = format!("{second}/llm:main:1=Not yet.");
    let changed = ran.replayed(0, &[session, "--set", &set]);
    assert_eq!(changed["mode"], "with_overrides");
    assert_eq!(changed["completed"], true);
    assert_eq!(changed["tasks"][0]["result_equal"], true, "{changed:#}");
    assert_eq!(changed["tasks"][1]["result_equal"], false);
    assert_eq!(
        changed["tasks"][1]["overrides_applied"],
        json!(["llm:main:1"])
    );
    assert_eq!(changed["skipped"][0]["task_id"], held);
    // Large values go the way of artifacts here too.
    ran.write(
        "long.json",
        &super::completion(&"word ".repeat(2_000)).to_string(),
    );
    let set = format!("{second}/llm:main:1=long.json");
    let long = ran.replayed(0, &[session, "--override", &set]);
    assert_eq!(long["tasks"][1]["result_equal"], false);
    let accepted = ran.replay(&[session, "--no-wait"]);
    assert!(
        accepted.code == 0 && accepted.stdout.starts_with("session_"),
        "{accepted:?}"
    );

    ran.fault(&[session, "--set", "llm:main:1=x"], "write TASK/KEY=");
    ran.fault(
        &[session, "--set", "task_x/llm:main:1=x"],
        "names no task of this session",
    );
    ran.fault(&[session, "--list"], "are about one task");
    // A denial in the place of an approval makes it a no, as it does for a task.
    let asked = [
        "task",
        "submit",
        "x",
        "--session",
        session,
        "--workflow",
        "approve",
        "--json",
    ];
    let asked = ran.world.json(&asked);
    let asked = asked["id"].as_str().unwrap();
    ran.world.ok(&["task", "answer", asked, "--approve"]);
    ran.world.ok(&["task", "watch", asked]);
    let denied = ran.replay(&[session, "--set", &format!("{asked}/host:approval:1=deny")]);
    assert_eq!(denied.code, 1, "{denied:?}");
    assert!(
        denied.stdout.contains("FAILED, with a different result"),
        "{denied:?}"
    );
}
