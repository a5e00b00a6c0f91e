//! MCP servers over stdio that die, hang, flood and talk nonsense: a small program of ours plays them.

use std::path::Path;
use std::time::{Duration, Instant};

use effects::{Outside, Vault};
use runs::workflow::{EffectKind, EffectOutcome, Handles};
use serde_json::{Value, json};

use crate::fixture::{
    assert_error, config, confinement, handles, is_gone, outside, outside_with, perform,
    perform_with, perform_with_secrets, python, vault,
};

fn faulty(more: &str) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mcp/faulty.py");
    format!(
        "[[mcp_servers]]\nid = \"faulty\"\ncommand = [\"{1}\", \"{0}\"]\nread = [\"{0}\"]\n{more}\n",
        script.display(),
        python()
    )
}

async fn call(outside: &Outside, tool: &str, arguments: Value) -> EffectOutcome {
    let request = json!({"server": "faulty", "tool": tool, "arguments": arguments});
    perform(outside, EffectKind::McpTool, request).await
}

async fn call_with(outside: &Outside, tool: &str, secrets: &[&str]) -> EffectOutcome {
    let request = json!({"server": "faulty", "tool": tool, "arguments": {}});
    perform_with_secrets(outside, EffectKind::McpTool, request, secrets).await
}

fn text(performed: &EffectOutcome) -> &str {
    assert!(performed.ok, "{performed:?}");
    performed.value["content"][0]["text"].as_str().unwrap()
}

async fn pid(outside: &Outside) -> String {
    text(&call(outside, "pid", json!({})).await).to_owned()
}

#[tokio::test]
async fn a_call_has_a_result_and_the_process_is_kept() {
    let outside = outside(&faulty(""));
    let performed = call(&outside, "echo", json!({"b": [1, 2.5], "a": null})).await;
    assert_eq!(
        performed.value,
        json!({"content": [{"type": "text", "text": "{\"a\": null, \"b\": [1, 2.5]}"}], "isError": false})
    );
    let observed = performed.observed.unwrap();
    assert_eq!(observed.not_observed, ["fs_writes", "network_egress"]);
    assert_eq!(pid(&outside).await, pid(&outside).await);
    // What the tool itself calls an error is a result that the model sees.
    let performed = call(&outside, "fails", json!({})).await;
    assert_eq!(
        performed.value,
        json!({"content": [{"type": "text", "text": "it did not work"}], "isError": true})
    );
    assert!(performed.ok);
    // The canonical form of the number would be another number.
    let performed = call(&outside, "big_number", json!({})).await.made_safe();
    assert_eq!(
        performed.value["structuredContent"],
        json!({"n": "9007199254740993", "m": [1, null]})
    );
    outside.shutdown().await;
}

#[tokio::test]
async fn shutdown_ends_the_process() {
    let outside = outside(&faulty(""));
    let process = pid(&outside).await;
    assert!(Path::new("/proc").join(&process).exists());
    outside.shutdown().await;
    assert!(is_gone(&process).await);
    // Dropping the last handle does it too.
    let process = pid(&outside).await;
    drop(outside);
    assert!(is_gone(&process).await);
}

#[tokio::test]
async fn a_server_that_nobody_configured_and_arguments_that_are_none_are_refused() {
    let outside = outside(&faulty(""));
    let request = json!({"server": "other", "tool": "echo", "arguments": {}});
    let performed = perform(&outside, EffectKind::McpTool, request).await;
    assert_error(&performed, "mcp_server_unknown");
    let performed = call(&outside, "echo", json!("text")).await;
    assert_error(&performed, "tool_arguments_invalid");
}

#[tokio::test]
async fn a_server_that_cannot_start_is_unavailable_and_says_why() {
    let (_folder, vault) = vault(&[("token", "planted-canary")]);
    let secret = "secrets = { TOKEN = \"token\" }";
    let text = faulty(secret).replace(".py\"]", ".py\", \"--not-ready\"]");
    let performed = call_with(&outside_with(&text, &vault), "echo", &["token"]).await;
    assert_error(&performed, "mcp_unavailable");
    let message = performed.value["message"].as_str().unwrap();
    assert!(
        message.contains("(cannot find the thing [redacted:secret:token])"),
        "{message}"
    );

    let text = "[[mcp_servers]]\nid = \"faulty\"\ncommand = [\"reprise-no-such-program\"]\n";
    let performed = call(&outside(text), "echo", json!({})).await;
    assert_error(&performed, "mcp_unavailable");

    let text = faulty("start_timeout_ms = 300").replace(".py\"]", ".py\", \"--silent\"]");
    let performed = call(&outside(&text), "echo", json!({})).await;
    assert_error(&performed, "mcp_unavailable");
}

#[tokio::test]
async fn a_server_killed_in_a_call_fails_that_call_and_is_started_again() {
    let outside = outside(&faulty(""));
    let first = pid(&outside).await;
    assert_error(&call(&outside, "die", json!({})).await, "mcp_unavailable");
    let second = pid(&outside).await;
    assert_ne!(first, second);
    // Killed from outside in the middle of a call.
    let hanging = call(&outside, "hang", json!({}));
    let kill = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        std::process::Command::new("kill")
            .args(["-9", &second])
            .status()
            .unwrap();
    };
    let (performed, ()) = tokio::join!(hanging, kill);
    assert_error(&performed, "mcp_unavailable");
    // Killed while nobody calls.
    let third = pid(&outside).await;
    std::process::Command::new("kill")
        .args(["-9", &third])
        .status()
        .unwrap();
    assert!(is_gone(&third).await);
    // A call in the moment before that is noticed may still fail; the one after it does not.
    let mut performed = call(&outside, "pid", json!({})).await;
    if !performed.ok {
        assert_error(&performed, "mcp_unavailable");
        performed = call(&outside, "pid", json!({})).await;
    }
    assert_ne!(text(&performed), third);
}

#[tokio::test]
async fn a_call_that_hangs_times_out_and_costs_the_process_its_life() {
    let outside = outside(&faulty("timeout_ms = 400"));
    let process = pid(&outside).await;
    let began = Instant::now();
    assert_error(&call(&outside, "hang", json!({})).await, "mcp_timeout");
    assert!(began.elapsed() < Duration::from_secs(5));
    assert!(is_gone(&process).await);
    assert_ne!(pid(&outside).await, process);
}

#[tokio::test]
async fn a_server_that_floods_is_cut_off() {
    let outside = outside(&faulty("output_bytes_max = 10000"));
    // One message without end, and messages without end.
    for tool in ["flood", "chatter"] {
        let process = pid(&outside).await;
        let began = Instant::now();
        let performed = call(&outside, tool, json!({})).await;
        assert_error(&performed, "mcp_output_too_large");
        assert!(began.elapsed() < Duration::from_secs(10));
        assert!(is_gone(&process).await);
    }
    // A whole answer that is too long is no answer either.
    let performed = call(&outside, "echo", json!({"long": "z".repeat(20_000)})).await;
    assert_error(&performed, "mcp_output_too_large");
    assert!(call(&outside, "echo", json!({})).await.ok);
}

#[tokio::test]
async fn an_error_of_the_protocol_is_told_and_nonsense_is_passed_over() {
    let outside = outside(&faulty(""));
    let process = pid(&outside).await;
    let performed = call(&outside, "no_such_tool", json!({})).await;
    assert_error(&performed, "mcp_protocol_error");
    let message = performed.value["message"].as_str().unwrap();
    assert!(message.contains("-32602"), "{message}");
    assert_eq!(
        text(&call(&outside, "nonsense", json!({})).await),
        "fine after all"
    );
    assert_eq!(pid(&outside).await, process);
}

fn secret_outside(vault: &Vault) -> Outside {
    outside_with(&faulty("secrets = { TOKEN = \"local/token\" }"), vault)
}

/// AP-PRIV-02: a value given to a server, in its environment or as an argument, does not come back.
#[tokio::test]
async fn secrets_reach_the_server_and_are_scrubbed_from_its_answers() {
    let (_folder, vault) = vault(&[("token", "planted-canary"), ("argument", "another-canary")]);
    let outside = secret_outside(&vault);
    let token = handles(&outside, &["local/token"]).await;
    let env = json!({"server": "faulty", "tool": "env", "arguments": {}});
    let performed = perform_with(&outside, EffectKind::McpTool, env.clone(), &token).await;
    assert_eq!(text(&performed), "[redacted:secret:token]");
    assert_eq!(
        performed.value["structuredContent"]["token"],
        "[redacted:secret:token]"
    );
    // The server still holds the old value after a change, for whoever means it.
    vault.put("token", &"planted-canary-two".into()).unwrap();
    let performed = perform_with(&outside, EffectKind::McpTool, env, &token).await;
    assert_eq!(text(&performed), "[redacted:secret:token]");

    let request = json!({"name": "argument"});
    let handle = perform(&outside, EffectKind::Secret, request).await.value;
    let request = |handle: &Value| json!({"server": "faulty", "tool": "echo", "arguments": {"x": 1}, "secrets": {"key": handle}});
    let token = handles(&outside, &["local/token"]).await;
    let performed = perform_with(&outside, EffectKind::McpTool, request(&handle), &token).await;
    assert_eq!(
        text(&performed),
        "{\"key\": \"[redacted:secret:argument]\", \"x\": 1}"
    );
    // A handle means one version, and no other is used in its place.
    vault.put("argument", &"another-canary-two".into()).unwrap();
    for handle in [handle, json!({"name": "argument"}), json!("argument")] {
        let request = request(&handle);
        let performed = perform_with(&outside, EffectKind::McpTool, request, &token).await;
        assert_error(&performed, "secret_unknown");
    }
}

/// AP-RPL-17: a server is spoken to through a process that was given what the run has on record.
#[tokio::test]
async fn ap_rpl_17_a_server_has_the_recorded_version_of_a_secret_or_is_not_asked() {
    let (_folder, vault) = vault(&[("token", "planted-canary")]);
    let outside = secret_outside(&vault);
    let ask = |tool: &str, handles: &Handles| {
        let request = json!({"server": "faulty", "tool": tool, "arguments": {}});
        let (outside, handles) = (outside.clone(), handles.clone());
        async move { perform_with(&outside, EffectKind::McpTool, request, &handles).await }
    };
    // Not told by its value, which is hidden.
    let letters = async |handles: &Handles| text(&ask("letters", handles).await).to_owned();
    let first = handles(&outside, &["local/token"]).await;
    assert_eq!(letters(&first).await, "14");
    let process = text(&ask("pid", &first).await).to_owned();

    vault.put("token", &"planted-canary-two".into()).unwrap();
    // Whoever means the old version still has its process.
    assert_eq!(letters(&first).await, "14");
    let second = handles(&outside, &["local/token"]).await;
    assert_eq!(letters(&second).await, "18");
    let next = text(&ask("pid", &second).await).to_owned();
    assert_ne!(next, process);
    // Now the old one is gone, and that costs nobody else anything.
    let performed = ask("letters", &first).await;
    assert_error(&performed, "secret_unknown");
    let message = performed.value["message"].as_str().unwrap();
    assert!(message.contains("version 1 of secret `token`"), "{message}");
    assert_eq!(text(&ask("pid", &second).await), next);
    assert_error(&ask("pid", &Handles::default()).await, "secret_unknown");

    // The list of tools is asked for with what there is.
    vault.put("token", &"planted-canary-three".into()).unwrap();
    outside.tool_catalog().await.unwrap();
    assert_error(&ask("pid", &second).await, "secret_unknown");
    let third = handles(&outside, &["local/token"]).await;
    assert_eq!(letters(&third).await, "20");
}

#[tokio::test]
async fn the_catalog_lists_commands_and_tools_of_servers() {
    let local =
        "[[tools]]\nname = \"wc\"\ndescription = \"counts\"\nargv = [\"wc\"]\nrepeatable = true\n";
    let outside = outside(&format!("{}{local}", faulty("")));
    let list = |names: Value| json!({"capability": "tools", "names": names});
    let performed = perform(
        &outside,
        EffectKind::Host,
        list(json!(["wc", "faulty.echo"])),
    )
    .await;
    assert_eq!(
        performed.value,
        json!({"tools": [
            {"name": "faulty__echo", "description": "says it again", "parameters": {"type": "object"},
                "via": "mcp", "server": "faulty", "tool": "echo", "repeatable": false, "read_only": false},
            {"name": "wc", "description": "counts", "parameters": {"type": "object"},
                "via": "local", "tool": "wc", "repeatable": true, "read_only": false},
        ]})
    );
    let names = |performed: &EffectOutcome| -> Vec<(String, bool)> {
        let tools = performed.value["tools"].as_array().unwrap();
        tools
            .iter()
            .map(|tool| {
                (
                    tool["name"].as_str().unwrap().to_owned(),
                    tool["repeatable"].as_bool().unwrap(),
                )
            })
            .collect()
    };
    let performed = perform(&outside, EffectKind::Host, list(json!(["faulty"]))).await;
    let all = names(&performed);
    assert_eq!(all.len(), 3, "{all:?}");
    // What a server says of itself gives nothing.
    assert!(all.contains(&("faulty__set".to_owned(), false)));
    // A name that every provider takes.
    let dotted = all
        .iter()
        .find(|(name, _)| name.starts_with("faulty__dotted_name_"))
        .unwrap();
    assert!(!dotted.1);
    let performed = perform(&outside, EffectKind::Host, list(Value::Null)).await;
    assert_eq!(names(&performed).len(), 4);
    let performed = perform(&outside, EffectKind::Host, json!({"capability": "tools"})).await;
    assert_eq!(names(&performed).len(), 4);
    assert_eq!(outside.tool_catalog().await.unwrap().len(), 4);
    let performed = perform(&outside, EffectKind::Host, list(json!([]))).await;
    assert_eq!(performed.value, json!({"tools": []}));
    for unknown in [
        json!(["none"]),
        json!(["faulty.none"]),
        json!(["wc.x"]),
        json!([1]),
        json!("wc"),
    ] {
        let performed = perform(&outside, EffectKind::Host, list(unknown)).await;
        assert_error(&performed, "tool_unknown");
    }
    // Whoever wrote the name learns what it should have been.
    let forms = "a persona names a command, an MCP `server`, or one `server.tool`";
    for (name, there_are) in [
        ("git.diff", "there are wc and the servers faulty"),
        ("faulty.none", "`faulty` has echo, set, dotted.name"),
        (
            "faulty__echo",
            "models call it `faulty__echo`, personas `faulty.echo`",
        ),
    ] {
        let performed = perform(&outside, EffectKind::Host, list(json!([name]))).await;
        assert_eq!(
            performed.value["message"],
            format!("there is no tool `{name}`: {forms}; {there_are}")
        );
    }
}

#[test]
fn a_server_that_cannot_work_is_refused() {
    for (text, expected) in [
        ("id = \"a__b\"\ncommand = [\"x\"]", "cannot contain `__`"),
        ("id = \"a\"", "either `command` or `url`"),
        ("id = \"a\"\ncommand = []", "either `command` or `url`"),
        (
            "id = \"a\"\ncommand = [\"x\"]\nurl = \"http://x\"",
            "either `command` or `url`",
        ),
        ("id = \"a\"\nurl = \"file:///x\"", "must begin with"),
        (
            "id = \"a\"\nurl = \"http://x\"\nheaders = { \"a b\" = \"c\" }",
            "not a valid header name",
        ),
        (
            "id = \"a\"\ncommand = [\"x\"]\n[[tools]]\nname = \"a__b\"\nargv = [\"x\"]",
            "could be taken",
        ),
        (
            "id = \"a\"\ncommand = [\"x\"]\n[[tools]]\nname = \"a\"\nargv = [\"x\"]",
            "could be taken",
        ),
    ] {
        let error = Outside::new(
            config(&format!("[[mcp_servers]]\n{text}\n")),
            None,
            confinement(),
        )
        .unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
}

/// S3: the operator says what a tool does. What its server says of it can take that back, and never give it.
#[tokio::test]
async fn what_a_server_says_of_its_tools_only_narrows() {
    let list = async |more: &str| -> Vec<(String, bool, bool)> {
        let outside = outside(&faulty(more));
        let listed = perform(&outside, EffectKind::Host, json!({"capability": "tools"})).await;
        let tools = listed.value["tools"].as_array().unwrap().clone();
        outside.shutdown().await;
        let flag = |tool: &Value, name: &str| tool[name].as_bool().unwrap();
        tools
            .iter()
            .map(|tool| {
                let name = tool["tool"].as_str().unwrap().to_owned();
                (name, flag(tool, "read_only"), flag(tool, "repeatable"))
            })
            .collect()
    };
    let named = |echo: (bool, bool), set: (bool, bool), dotted: (bool, bool)| {
        [("dotted.name", dotted), ("echo", echo), ("set", set)]
            .map(|(name, (read_only, repeatable))| (name.to_owned(), read_only, repeatable))
            .to_vec()
    };
    let sorted = |mut tools: Vec<(String, bool, bool)>| {
        tools.sort();
        tools
    };
    // `echo` calls itself read-only, `set` idempotent and not read-only, `dotted.name` nothing.
    let (no, again, reads) = ((false, false), (false, true), (true, true));
    assert_eq!(sorted(list("").await), named(no, no, no));
    assert_eq!(
        sorted(list("read_only = [\"*\"]").await),
        named(reads, no, reads)
    );
    assert_eq!(
        sorted(list("repeatable = [\"set\", \"echo\"]").await),
        named(again, again, no)
    );
}
