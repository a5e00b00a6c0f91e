//! Local commands as real processes.

use std::time::{Duration, Instant};

use effects::Outside;
use runs::workflow::{EffectKind, EffectOutcome, Handles};
use serde_json::{Value, json};

use crate::fixture::{
    assert_error, config, confinement, handles, is_gone, outside, outside_with, perform,
    perform_with, perform_with_secrets, vault,
};

fn shell(more: &str) -> String {
    // The shell is the tool here; it is named in the configuration, never put in between.
    format!(
        "[[tools]]\nname = \"run\"\nargv = [\"sh\", \"-c\", \"{{script}}\", \"sh\", \"{{words}}\"]\n\
         [tools.parameters]\ntype = \"object\"\nrequired = [\"script\"]\nadditionalProperties = false\n\
         [tools.parameters.properties]\nscript = {{ type = \"string\" }}\n\
         words = {{ type = \"array\", items = {{ type = \"string\" }} }}\n{more}"
    )
}

fn with(more: &str) -> String {
    let text = shell("");
    text.replacen("name = \"run\"\n", &format!("name = \"run\"\n{more}\n"), 1)
}

async fn run(outside: &Outside, script: &str) -> EffectOutcome {
    run_with(outside, script, &[]).await
}

async fn run_with(outside: &Outside, script: &str, secrets: &[&str]) -> EffectOutcome {
    let request = json!({"tool": "run", "arguments": {"script": script}});
    perform_with_secrets(outside, EffectKind::LocalTool, request, secrets).await
}

#[tokio::test]
async fn an_exit_code_is_a_result() {
    let outside = outside(&shell(""));
    let performed = run(&outside, "echo out; echo err >&2; exit 3").await;
    assert!(performed.ok, "{performed:?}");
    assert_eq!(
        performed.value,
        json!({"exit_code": 3, "stdout": "out\n", "stderr": "err\n",
            "stdout_truncated": false, "stderr_truncated": false})
    );
    // No folder is declared, so nothing was looked at.
    let observed = performed.observed.unwrap();
    assert_eq!(observed.not_observed, ["fs_writes", "network_egress"]);
}

#[tokio::test]
async fn arguments_are_whole_elements_and_reach_no_shell() {
    let outside = outside(&shell(""));
    let words = ["$(echo no)", "a b", "; exit 9", ""];
    let request =
        json!({"tool": "run", "arguments": {"script": "printf '<%s>' \"$@\"", "words": words}});
    let performed = perform(&outside, EffectKind::LocalTool, request).await;
    assert_eq!(performed.value["stdout"], "<$(echo no)><a b><; exit 9><>");
}

#[tokio::test]
async fn arguments_can_be_read_as_json() {
    let text = "[[tools]]\nname = \"cat\"\nargv = [\"cat\"]\nstdin = \"json\"\n\
        [tools.parameters]\ntype = \"object\"\n";
    let request = json!({"tool": "cat", "arguments": {"b": [1, "zwei"], "a": null}});
    let performed = perform(&outside(text), EffectKind::LocalTool, request).await;
    assert_eq!(performed.value["stdout"], "{\"a\":null,\"b\":[1,\"zwei\"]}");
}

#[tokio::test]
async fn arguments_that_do_not_fit_are_refused_before_anything_runs() {
    let folder = tempfile::tempdir().unwrap();
    let outside = outside(&with(&format!("folder = \"{}\"", folder.path().display())));
    for arguments in [
        json!({}),
        json!({"script": 1}),
        json!({"script": "touch x", "words": "w"}),
        json!({"script": "touch x", "more": 1}),
        json!("touch x"),
        json!(["touch x"]),
        Value::Null,
    ] {
        let request = json!({"tool": "run", "arguments": arguments});
        let performed = perform(&outside, EffectKind::LocalTool, request).await;
        assert_error(&performed, "tool_arguments_invalid");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn what_cannot_run_is_an_error() {
    let outside = outside(&format!(
        "{}[[tools]]\nname = \"none\"\nargv = [\"reprise-no-such-program\"]\n\
         [[tools]]\nname = \"nowhere\"\nargv = [\"true\"]\nfolder = \"/reprise-no-such-folder\"\n",
        shell("")
    ));
    for (tool, code) in [
        ("other", "tool_unknown"),
        ("none", "tool_not_started"),
        ("nowhere", "tool_not_started"),
    ] {
        let performed = perform(&outside, EffectKind::LocalTool, json!({"tool": tool})).await;
        assert_error(&performed, code);
    }
}

#[tokio::test]
async fn a_command_that_hangs_is_killed_with_all_it_started() {
    let folder = tempfile::tempdir().unwrap();
    let text = with(&format!(
        "timeout_ms = 400\nfolder = \"{}\"",
        folder.path().display()
    ));
    let outside = outside(&text);
    let began = Instant::now();
    let performed = run(&outside, "sleep 60 & echo $! > child; echo $$ > own; wait").await;
    assert!(began.elapsed() < Duration::from_secs(10));
    assert_error(&performed, "tool_timeout");
    // What it did before counts.
    let observed = performed.observed.unwrap();
    let paths: Vec<&str> = observed
        .fs_writes
        .iter()
        .map(|change| change.path.as_str())
        .collect();
    assert_eq!(paths, ["child", "own"]);
    for file in ["child", "own"] {
        let process = std::fs::read_to_string(folder.path().join(file)).unwrap();
        assert!(is_gone(&process).await, "{file} {process}");
    }
}

/// What a command said before it was killed says why, and is kept like any other output.
#[tokio::test]
async fn the_output_of_a_killed_command_is_in_its_error() {
    let (_folder, vault) = vault(&[("token", "planted-canary-value")]);
    let text = with("timeout_ms = 1500\nsecrets = { TOKEN = \"token\" }\noutput_bytes_max = 40");
    let outside = outside_with(&text, &vault);
    let said = "echo \"begun with $TOKEN\"; echo \"no such file\" >&2; printf planted-can;";
    for (end, code) in [("kill -9 $$", "tool_killed"), ("sleep 60", "tool_timeout")] {
        let performed = run_with(&outside, &format!("{said} {end}"), &["token"]).await;
        assert_error(&performed, code);
        // The value that it had no time to finish is gone as well.
        assert_eq!(
            performed.value["stdout"], "begun with [redacted:secret:token]\n",
            "{performed:?}"
        );
        assert_eq!(performed.value["stderr"], "no such file\n");
        assert_eq!(performed.value["stdout_truncated"], true);
        assert_eq!(performed.value["stderr_truncated"], false);
    }
}

#[tokio::test]
async fn a_cancelled_command_is_killed_with_all_it_started() {
    let folder = tempfile::tempdir().unwrap();
    let outside = outside(&with(&format!("folder = \"{}\"", folder.path().display())));
    let script = "sleep 60 & echo $! > child; echo $$ > own.new; mv own.new own; wait";
    let own = folder.path().join("own");
    let started = async {
        while !own.exists() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::select! {
        performed = run(&outside, script) => panic!("{performed:?}"),
        () = started => {}
    }
    for file in ["child", "own"] {
        let process = std::fs::read_to_string(folder.path().join(file)).unwrap();
        assert!(is_gone(&process).await, "{file} {process}");
    }
}

#[tokio::test]
async fn a_command_that_ends_leaves_nothing_running() {
    let outside = outside(&shell(""));
    // The child holds the output open; its parent does not wait for it.
    let performed = run(&outside, "sleep 60 & echo $!").await;
    assert!(performed.ok, "{performed:?}");
    assert!(is_gone(performed.value["stdout"].as_str().unwrap()).await);
}

#[tokio::test]
async fn a_command_that_is_killed_says_so() {
    let performed = run(&outside(&shell("")), "kill -9 $$").await;
    assert_error(&performed, "tool_killed");
    assert_eq!(performed.value["signal"], 9);
}

#[tokio::test]
async fn a_flood_is_cut_and_the_command_goes_on_to_its_end() {
    let outside = outside(&with("output_bytes_max = 1000"));
    let performed = run(
        &outside,
        "head -c 5000000 /dev/zero | tr '\\0' x; echo end >&2; exit 4",
    )
    .await;
    assert!(performed.ok, "{performed:?}");
    assert_eq!(performed.value["exit_code"], 4);
    assert_eq!(performed.value["stdout"], "x".repeat(1000));
    assert_eq!(performed.value["stdout_truncated"], true);
    assert_eq!(performed.value["stderr"], "end\n");
    assert_eq!(performed.value["stderr_truncated"], false);
}

#[tokio::test]
async fn a_flood_without_end_stops_at_the_time_limit() {
    let outside = outside(&with("output_bytes_max = 1000\ntimeout_ms = 300"));
    assert_error(&run(&outside, "yes").await, "tool_timeout");
}

#[tokio::test]
async fn what_changes_in_the_folder_is_told_with_digests() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("same", "same");
    write("touched", "touched");
    write("changed", "old");
    write("gone", "gone");
    let outside = outside(&with(&format!("folder = \"{}\"", folder.path().display())));
    let performed = run(
        &outside,
        "touch touched; printf new > changed; rm gone; mkdir -p a/b; printf new > a/b/made; ln -s same link",
    )
    .await;
    let observed = performed.observed.unwrap();
    let digest = |text: &str| Some(canon::sha256(text.as_bytes()));
    let seen: Vec<_> = observed
        .fs_writes
        .iter()
        .map(|change| {
            (
                change.path.as_str(),
                change.operation.as_str(),
                change.before_sha256,
                change.after_sha256,
            )
        })
        .collect();
    assert_eq!(
        seen,
        [
            ("a/b/made", "create", None, digest("new")),
            ("changed", "modify", digest("old"), digest("new")),
            ("gone", "delete", digest("gone"), None),
            ("link", "create", None, digest("same")),
        ]
    );
    assert_eq!(observed.not_observed, ["network_egress"]);
}

#[tokio::test]
async fn a_folder_too_large_to_look_at_is_not_observed() {
    let folder = tempfile::tempdir().unwrap();
    let place = format!("folder = \"{}\"", folder.path().display());
    for limit in ["observed_files_max = 3", "observed_bytes_max = 3"] {
        let outside = outside(&with(&format!("{place}\n{limit}")));
        let performed = run(&outside, "for i in 1 2 3 4; do printf 1 > $i; done").await;
        assert!(performed.ok);
        let observed = performed.observed.unwrap();
        assert_eq!(
            observed.not_observed,
            ["fs_writes", "network_egress"],
            "{limit}"
        );
        assert!(observed.fs_writes.is_empty());
        for name in 1..5 {
            std::fs::remove_file(folder.path().join(name.to_string())).unwrap();
        }
    }
}

/// What one command does is not told of another one in the same folder, or in one around it.
#[tokio::test]
async fn commands_in_one_folder_take_turns_and_others_do_not_wait() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("inner")).unwrap();
    let tool = |name: &str, place: &str| {
        let text = with(&format!("folder = \"{}{place}\"", folder.path().display()));
        text.replacen("\"run\"", &format!("\"{name}\""), 1)
    };
    let anywhere = with(&format!("write = [\"{}\"]", folder.path().display()));
    let text = tool("around", "") + &tool("inside", "/inner") + &anywhere;
    let outside = outside(&text);
    let call = |tool: &str, script: &str| {
        let request = json!({"tool": tool, "arguments": {"script": script}});
        perform(&outside, EffectKind::LocalTool, request)
    };
    let around = call("around", "sleep 0.2; touch one; sleep 0.2");
    let inside = call("inside", "sleep 0.2; touch two; sleep 0.2");
    let (around, inside) = tokio::join!(around, inside);
    for (performed, name) in [(around, "one"), (inside, "two")] {
        let writes = performed.observed.unwrap().fs_writes;
        let paths: Vec<&str> = writes.iter().map(|change| change.path.as_str()).collect();
        assert_eq!(paths, [name]);
    }
    // Each waits for the other's file, so they end only when they run side by side.
    let meet = |own: &str, other: &str| {
        format!(
            "cd {}; touch {own}; until [ -e {other} ]; do sleep 0.01; done",
            folder.path().display()
        )
    };
    let (here, there) = (meet("a", "b"), meet("b", "a"));
    let (one, two) = tokio::join!(call("run", &here), call("run", &there));
    assert!(one.ok && two.ok, "{one:?} {two:?}");
}

/// AP-PRIV-02: the command gets the value, the record does not, in whatever spelling.
#[tokio::test]
async fn secrets_reach_the_command_and_are_scrubbed_from_what_it_says() {
    const VALUE: &str = "planted canary/value";
    let (_folder, vault) = vault(&[("token", VALUE), ("unused", "another-canary")]);
    let outside = outside_with(&with("secrets = { TOKEN = \"local/token\" }"), &vault);
    let performed = run_with(
        &outside,
        "printf %s \"$TOKEN\" | wc -c; printf '%s\\n' \"$TOKEN\"; printf %s \"user:$TOKEN\" | base64; \
         printf 'planted%%20canary%%2fvalue' >&2; echo another-canary",
        &["local/token"],
    )
    .await;
    let marker = "[redacted:secret:token]";
    let stdout = performed.value["stdout"].as_str().unwrap();
    let lines: Vec<&str> = stdout.lines().collect();
    assert_eq!(lines[0].trim(), VALUE.len().to_string());
    assert_eq!(lines[1], marker);
    assert!(lines[2].contains(marker), "{}", lines[2]);
    // A value that this command should never have seen is hidden as well.
    assert_eq!(lines[3], "[redacted:secret:unused]");
    assert_eq!(performed.value["stderr"], marker);
    assert!(!format!("{performed:?}").contains("canary"));
}

#[tokio::test]
async fn a_secret_cut_in_two_by_the_limit_leaves_no_half() {
    let (_folder, vault) = vault(&[("token", "planted-canary-value")]);
    let text = with("secrets = { TOKEN = \"token\" }\noutput_bytes_max = 20");
    let outside = outside_with(&text, &vault);
    let performed = run_with(&outside, "printf 'before:%s:after' \"$TOKEN\"", &["token"]).await;
    assert_eq!(performed.value["stdout"], "before:");
    assert_eq!(performed.value["stdout_truncated"], true);
}

/// AP-RPL-17: a command gets the version that the run has on record, and is not run with any other.
#[tokio::test]
async fn ap_rpl_17_a_command_gets_the_recorded_version_of_a_secret_or_does_not_run() {
    let (_folder, vault) = vault(&[("token", "planted-canary-one"), ("other", "planted-other")]);
    let folder = tempfile::tempdir().unwrap();
    let text = with(&format!(
        "secrets = {{ TOKEN = \"token\" }}\nfolder = \"{}\"",
        folder.path().display()
    ));
    let outside = outside_with(&text, &vault);
    let seen = || {
        let file = folder.path().join("seen");
        let text = std::fs::read_to_string(&file).ok();
        let _ = std::fs::remove_file(file);
        text
    };
    let request = json!({"tool": "run", "arguments": {"script": "printf %s \"$TOKEN\" > seen"}});
    let run = |handles: Handles| {
        let (outside, request) = (outside.clone(), request.clone());
        async move { perform_with(&outside, EffectKind::LocalTool, request, &handles).await }
    };
    let first = handles(&outside, &["token"]).await;
    assert!(run(first.clone()).await.ok);
    assert_eq!(seen().as_deref(), Some("planted-canary-one"));

    vault.put("token", &"planted-canary-two".into()).unwrap();
    let performed = run(first.clone()).await;
    assert_error(&performed, "secret_unknown");
    assert_eq!(
        performed.value["message"],
        "version 1 of secret `token`, which this run has on record, is gone; the vault has version 2"
    );
    assert_eq!(seen(), None);
    let second = handles(&outside, &["token"]).await;
    assert!(run(second.clone()).await.ok);
    assert_eq!(seen().as_deref(), Some("planted-canary-two"));

    vault.delete("token").unwrap();
    let performed = run(second).await;
    assert_error(&performed, "secret_unknown");
    let message = performed.value["message"].as_str().unwrap();
    assert!(message.ends_with("the vault has none"), "{message}");

    // A run that knows nothing of the secret, or has another one on record in its place.
    let other = handles(&outside, &["other"]).await.get("other").cloned();
    for handles in [
        Handles::default(),
        [("token".to_owned(), other.unwrap())].into_iter().collect(),
        [("token".to_owned(), json!({}))].into_iter().collect(),
        [("token".to_owned(), json!("planted-canary-three"))]
            .into_iter()
            .collect(),
    ] {
        assert_error(&run(handles).await, "secret_unknown");
        assert_eq!(seen(), None);
    }
}

#[tokio::test]
async fn a_missing_secret_is_told_and_nothing_runs() {
    let folder = tempfile::tempdir().unwrap();
    let text = with(&format!(
        "secrets = {{ TOKEN = \"none\" }}\nfolder = \"{}\"",
        folder.path().display()
    ));
    let performed = run(&outside(&text), "touch ran").await;
    assert_error(&performed, "secret_unknown");
    assert!(!folder.path().join("ran").exists());
}

#[tokio::test]
async fn a_command_sees_only_the_variables_that_are_allowed() {
    let outside = outside(&with("env = [\"PATH\", \"CARGO_PKG_NAME\"]"));
    let performed = run(
        &outside,
        "env | cut -d= -f1 | grep -vE '^(PWD|SHLVL|_|OLDPWD)$' | sort",
    )
    .await;
    assert_eq!(performed.value["stdout"], "CARGO_PKG_NAME\nPATH\nTMPDIR\n");
}

#[test]
fn a_declaration_that_cannot_work_is_refused() {
    for (text, expected) in [
        ("name = \"a b\"\nargv = [\"x\"]", "a name is"),
        ("name = \"t\"\nargv = []", "`argv` is empty"),
        ("name = \"t\"\nargv = [\"{x}\"]", "the program cannot"),
        ("name = \"t\"\nargv = [\"x\", \"{y}\"]", "`{y}`"),
        (
            "name = \"t\"\nargv = [\"x\"]\nparameters = { type = \"string\" }",
            "type object",
        ),
        (
            "name = \"t\"\nargv = [\"x\"]\nparameters = { type = \"object\", properties = 3 }",
            "not a valid JSON Schema",
        ),
    ] {
        let error =
            Outside::new(config(&format!("[[tools]]\n{text}\n")), None, confinement()).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
}
