//! Against a server.

use serde_json::json;

use super::{Ran, completion};

#[test]
fn ap_rpl_an_exact_replay_is_equal_and_says_so() {
    let ran = Ran::new("Hello");
    let said = ran.replay(&[&ran.task]);
    assert_eq!(said.code, 0, "{said:?}");
    let shown = said
        .stdout
        .replace(ran.task.trim_start_matches("task_"), "ID");
    assert!(
        shown.starts_with(
            "replay   task_replay_ID\nof       task_ID\nmode     exact\n\
             result   COMPLETED, equal to the source (12 events)\nreceipt  receipt_replay_"
        ),
        "{shown}"
    );
    assert!(
        shown.ends_with(
            "\nanswer\n  I read: Hello\n  (This answer comes from the built-in offline model.)\n"
        ),
        "{shown}"
    );
    let next = format!("next: reprise diff {} task_replay_", ran.task);
    assert!(said.stderr.starts_with(&next), "{said:?}");
    assert!(!shown.contains('\u{1b}'));
}

#[test]
fn ap_rpl_one_answer_is_changed_by_text_by_file_and_by_artifact() {
    let ran = Ran::new("Hello");
    let by_text = ran.replayed(
        0,
        &[
            &ran.task,
            "--set",
            "llm:main:1=Roll back",
            "--reason",
            "why not",
        ],
    );
    assert_eq!(by_text["mode"], "with_overrides");
    assert_eq!(by_text["answer"], "Roll back");
    assert_eq!(by_text["overrides_applied"], json!(["llm:main:1"]));
    assert_eq!(by_text["result_equal"], false);
    let receipt = by_text["receipt_id"].as_str().unwrap();
    let receipt = ran.world.json(&["receipt", "show", receipt, "--json"]);
    assert_eq!(receipt["deltas"].as_array().unwrap().len(), 1);
    assert_eq!(receipt["deltas"][0]["reason"], "why not");
    assert_eq!(receipt["deltas"][0].get("artifact_id"), None);

    // Above the inline limit a value becomes an artifact by itself.
    let long = "word ".repeat(2_000);
    ran.write("long.json", &completion(&long).to_string());
    let by_file = ran.replayed(0, &[&ran.task, "--override", "llm:main:1=long.json"]);
    assert_eq!(by_file["answer"], long);
    let receipt = by_file["receipt_id"].as_str().unwrap();
    let receipt = ran.world.json(&["receipt", "show", receipt, "--json"]);
    let artifact = receipt["deltas"][0]["artifact_id"].as_str().unwrap();
    let key = format!("llm:main:1={artifact}");
    let by_artifact = ran.replayed(0, &[&ran.task, "--override-artifact", &key]);
    assert_eq!(by_artifact["answer"], long);

    let unknown = ran.replay(&[&ran.task, "--set", "llm:main:9=x"]);
    assert_eq!(unknown.code, 1, "{unknown:?}");
    assert!(
        unknown
            .stderr
            .contains("the run never asks for `llm:main:9`"),
        "{unknown:?}"
    );
}

/// U8: a change leads a run onto another path. What it asks for there can be answered too; what it never asks for is a
/// mistake, and leaves nothing behind.
#[test]
fn u8_what_only_the_changed_run_asks_for_can_be_set_and_what_it_never_asks_for_leaves_nothing() {
    let ran = Ran::new("Hello");
    let calls = json!({"choices": [{"message": {"role": "assistant", "content": "Let me look.", "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]}}]});
    ran.write("calls.json", &calls.to_string());
    let change = ["--override", "llm:main:1=calls.json"];
    let new = ["--set", "llm:main:2=After the tool."];
    let task = ran.task.as_str();
    let online = ran.replayed(0, &[&[task], &change[..], &new].concat());
    assert_eq!(online["answer"], "After the tool.", "{online:#}");
    assert_eq!(
        online["overrides_applied"],
        json!(["llm:main:1", "llm:main:2"])
    );
    let offline = ran.replayed(
        0,
        &[&["--bundle", "run.bundle"], &change[..], &new].concat(),
    );
    assert_eq!(offline["answer"], "After the tool.", "{offline:#}");

    let count = || {
        let tasks = ran.world.json(&["task", "list", "--json"]);
        let sessions = ran.world.json(&["session", "list", "--json"]);
        (
            tasks.as_array().unwrap().len(),
            sessions.as_array().unwrap().len(),
        )
    };
    let before = count();
    let never = ["--set", "llm:main:3=never"];
    for of in [&[task][..], &["--bundle", "run.bundle"]] {
        let said = "the run never asks for `llm:main:3`";
        ran.refused(&[of, &change, &new, &never].concat(), said);
        let said =
            "stops at `llm:main:2`, which has no recorded answer, and never asks for `llm:main:3`";
        ran.refused(&[of, &change, &never].concat(), said);
    }
    let session = ran.world.json(&["task", "get", task, "--json"])["session_id"].clone();
    let never = format!("{task}/llm:main:9=never");
    let said = "the run never asks for `llm:main:9`";
    ran.refused(&[session.as_str().unwrap(), "--set", &never], said);
    assert_eq!(count(), before);
}

/// A denial that is put in place of an approval fails the task: the replay went on, its result is another one.
#[test]
fn ap_rpl_a_changed_run_that_fails_is_a_no() {
    let ran = Ran::new("Hello");
    let task = ran.world.submit("approve");
    ran.world.ok(&["task", "answer", &task, "--approve"]);
    ran.world.ok(&["task", "watch", &task]);
    let listed = ran.world.ok(&["replay", &task, "--list"]);
    assert!(listed.contains("host:approval:1"), "{listed}");
    let denied = ran.replayed(
        1,
        &[&task, "--set", "host:approval:1={\"approved\": false}"],
    );
    assert_eq!(denied["completed"], true);
    assert_eq!(
        (&denied["status"], &denied["failure"]["code"]),
        (&json!("FAILED"), &json!("approval_denied"))
    );
    // The failed run, replayed exactly, fails the same way: that is a yes.
    let failed = denied["task_id"].as_str().unwrap();
    let again = ran.replayed(0, &[failed]);
    assert_eq!(
        (&again["status"], &again["result_equal"]),
        (&json!("FAILED"), &json!(true))
    );
}

#[test]
fn what_a_server_refuses_is_told_in_two_lines() {
    let ran = Ran::new("Hello");
    let task = ran.task.as_str();
    ran.refused(&["task_unknown"], "resource_not_found");
    ran.fault(
        &[task, "--mode", "exact", "--set", "llm:main:1=x"],
        "an exact replay takes no overrides",
    );
    ran.refused(&[task, "--from", "checkpoint_x"], "no such checkpoint");
    ran.fault(
        &[task, "--set", "time:started_at=noon"],
        "must be an RFC 3339 time",
    );
    ran.fault(
        &[task, "--set", "nokey=x"],
        "`nokey` is not an override key",
    );
    ran.fault(
        &[task, "--set", "llm:main:1=x", "--set", "llm:main:1=y"],
        "`llm:main:1` is given twice",
    );
    ran.fault(
        &[task, "--override", "llm:main:1=absent.json"],
        "`absent.json`",
    );
    ran.write("text.json", "not JSON");
    ran.fault(
        &[task, "--override", "llm:main:1=text.json"],
        "for plain text: --set llm:main:1=TEXT",
    );
    ran.fault(&[task, "--refresh", "weather"], "`weather`");
    ran.fault(
        &[task, "--request", "text.json", "--reason", "x"],
        "cannot be used with",
    );
    ran.fault(&[task, "--ordinal", "2"], "cannot be used with");
    ran.fault(&[], "usage: ");
    let held = ran.world.submit("hold");
    let said = ran.replay(&[&held]);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(
        said.stderr.contains("only a finished task can be replayed"),
        "{said:?}"
    );
    assert_eq!(ran.replay(&[&held, "--list"]).code, 1);
    let said = ran.world.run(&["task", "export", &held, "held.bundle"]);
    assert_eq!(said.code, 1, "{said:?}");
    let said = ran.world.run(&["task", "export", task, "run.bundle"]);
    assert_eq!(said.code, 2, "a file is not overwritten: {said:?}");
}

#[test]
fn a_request_as_the_protocol_has_it_is_sent_as_it_is() {
    let ran = Ran::new("Hello");
    let request = json!({
        "mode": "with_overrides",
        "override": {"llm:main:1": {"kind": "llm_provider_response", "event_id": "event_of_another_run",
            "value": completion("approved"), "visibility": "public", "reason": "an example"}},
    });
    ran.write("request.json", &request.to_string());
    let said = ran.replayed(0, &[&ran.task, "--request", "request.json"]);
    assert_eq!(said["answer"], "approved");
    let accepted = ran.replay(&[&ran.task, "--no-wait"]);
    assert_eq!(accepted.code, 0);
    assert!(accepted.stdout.starts_with("task_replay_"), "{accepted:?}");
}

#[test]
fn a_diff_shows_where_runs_part() {
    let ran = Ran::new("Hello");
    let exact = ran.replayed(0, &[&ran.task])["task_id"]
        .as_str()
        .unwrap()
        .to_owned();
    let changed = ran.replayed(0, &[&ran.task, "--set", "llm:main:1=Roll\nback"]);
    let changed = changed["task_id"].as_str().unwrap().to_owned();
    let equal = ran.world.run(&["diff", &ran.task, &exact]);
    assert_eq!(equal.code, 0, "{equal:?}");
    assert!(
        equal
            .stdout
            .ends_with("\nequal: nothing differs but ids and times\n"),
        "{equal:?}"
    );

    let differs = ran.world.run(&["diff", &ran.task, &changed]);
    assert_eq!(
        (differs.code, differs.stderr.as_str()),
        (1, ""),
        "{differs:?}"
    );
    let body = ran.task.trim_start_matches("task_");
    let log = differs
        .stdout
        .split("event_")
        .nth(1)
        .unwrap()
        .split('_')
        .next()
        .unwrap()
        .to_owned();
    let shown = differs.stdout.replace(body, "ID").replace(&log, "LOG");
    let shown: Vec<&str> = shown
        .lines()
        .map(|line| {
            line.trim_end_matches(|c: char| c.is_ascii_digit() && line.contains("event_LOG_"))
        })
        .collect();
    insta::assert_snapshot!(shown.join("\n"));

    // From files, and from one of each, the same.
    ran.world
        .ok(&["task", "export", &changed, "changed.bundle"]);
    for (a, b) in [
        ("run.bundle", "changed.bundle"),
        (ran.task.as_str(), "changed.bundle"),
        ("run.bundle", changed.as_str()),
    ] {
        let again = ran.world.run(&["diff", a, b]);
        assert_eq!((again.code, &again.stdout), (1, &differs.stdout), "{a} {b}");
    }
    let mut json = ran.world.run(&["diff", &ran.task, &changed, "--json"]);
    let diff: serde_json::Value = serde_json::from_str(&std::mem::take(&mut json.stdout)).unwrap();
    assert_eq!((json.code, &diff["equal"]), (1, &json!(false)));
    let fault = ran.world.run(&["diff", &ran.task, "task_unknown"]);
    assert_eq!(fault.code, 1, "{fault:?}");
    assert_eq!(
        ran.world
            .run(&["diff", "run.bundle", "reprise-data/api-key"])
            .code,
        2
    );
}
