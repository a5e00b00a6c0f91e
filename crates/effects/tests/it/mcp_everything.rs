//! A server that we did not write: `@modelcontextprotocol/server-everything` from npm, over both transports.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use effects::Outside;
use runs::workflow::EffectKind;
use serde_json::{Value, json};

use crate::fixture::{assert_error, outside_with, perform, perform_with_secrets, vault};

/// Finds the program that the test command installs.
fn program() -> Option<(PathBuf, testing::Running)> {
    testing::installed("npm", "REPRISE_TEST_NPM_BIN", "mcp-server-everything")
}

/// Where the server's packages are, and the programs that the path leads to: what an operator names for a server from npm.
fn readable(program: &std::path::Path) -> Value {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let node = std::env::split_paths(&path).map(|folder| folder.join("node"));
    let node = node.filter_map(|file| std::fs::canonicalize(file).ok());
    let packages = program.ancestors().nth(2).map(PathBuf::from);
    let folders: Vec<PathBuf> = node
        .filter_map(|file| file.ancestors().nth(2).map(PathBuf::from))
        .filter(|folder| folder.parent().is_some())
        .chain(packages)
        .collect();
    json!(folders)
}

/// The server, and the secrets that a run with it has handles of.
struct Used<'a> {
    outside: &'a Outside,
    secrets: &'a [&'a str],
}

async fn call(used: &Used<'_>, tool: &str, arguments: Value) -> runs::workflow::EffectOutcome {
    let request = json!({"server": "everything", "tool": tool, "arguments": arguments});
    perform_with_secrets(used.outside, EffectKind::McpTool, request, used.secrets).await
}

async fn works(used: &Used<'_>) {
    let request = json!({"capability": "tools", "names": ["everything"]});
    let listed = perform(used.outside, EffectKind::Host, request).await;
    let tools = listed.value["tools"]
        .as_array()
        .unwrap_or_else(|| panic!("{listed:?}"));
    let repeatable = |name: &str| {
        let tool = tools.iter().find(|tool| tool["tool"] == name).unwrap();
        assert_eq!(tool["name"], format!("everything__{name}"));
        assert_eq!(tool["parameters"]["type"], "object");
        tool["repeatable"].as_bool().unwrap()
    };
    assert!(!repeatable("echo") && !repeatable("toggle-simulated-logging"));

    let performed = call(used, "get-sum", json!({"a": 20, "b": 22})).await;
    assert!(performed.ok, "{performed:?}");
    let text = performed.value["content"][0]["text"].as_str().unwrap();
    assert!(text.contains("42"), "{text}");
    assert_eq!(performed.value["isError"], false);

    let performed = call(
        used,
        "get-structured-content",
        json!({"location": "Chicago"}),
    )
    .await;
    assert!(
        performed.value["structuredContent"].is_object(),
        "{performed:?}"
    );

    // Arguments that the tool's own schema refuses.
    let performed = call(used, "get-sum", json!({"a": "twenty"})).await;
    assert!(
        !performed.ok || performed.value["isError"] == true,
        "{performed:?}"
    );

    // Several at once over one connection.
    let calls =
        (0..8).map(|number| call(used, "echo", json!({"message": format!("number {number}")})));
    for (number, performed) in futures_util::future::join_all(calls)
        .await
        .iter()
        .enumerate()
    {
        let text = performed.value["content"][0]["text"].as_str().unwrap();
        assert!(text.contains(&format!("number {number}")), "{text}");
    }

    let performed = call(
        used,
        "trigger-long-running-operation",
        json!({"duration": 60, "steps": 2}),
    )
    .await;
    assert_error(&performed, "mcp_timeout");
    let performed = call(used, "echo", json!({"message": "still here"})).await;
    assert!(performed.ok, "{performed:?}");
}

#[tokio::test]
async fn the_server_from_npm_works_over_stdio() {
    let Some((program, _running)) = program() else {
        return;
    };
    let (_folder, vault) = vault(&[("token", "planted-canary")]);
    let text = format!(
        "[[mcp_servers]]\nid = \"everything\"\ncommand = [\"{}\"]\ntimeout_ms = 4000\nsecrets = {{ TOKEN = \"token\" }}\nread = {}\n",
        program.display(),
        readable(&program)
    );
    let outside = outside_with(&text, &vault);
    let used = Used {
        outside: &outside,
        secrets: &["token"],
    };
    works(&used).await;
    // It shows its whole environment: ours is not in it, and the secret is not shown.
    let performed = call(&used, "get-env", json!({})).await;
    let shown = performed.value["content"][0]["text"].as_str().unwrap();
    assert!(
        shown.contains("\"TOKEN\": \"[redacted:secret:token]\""),
        "{shown}"
    );
    assert!(!shown.contains("CARGO_MANIFEST_DIR"), "{shown}");
    outside.shutdown().await;
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn the_server_from_npm_works_over_http() {
    let Some((program, _running)) = program() else {
        return;
    };
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let mut child = Command::new(program)
        .arg("streamableHttp")
        .env("PORT", port.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let _running = Running(child);
    let mut line = String::new();
    while !line.contains("listening") {
        line.clear();
        assert_ne!(
            stderr.read_line(&mut line).unwrap(),
            0,
            "it ended before it listened"
        );
    }
    std::thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));
    let (_folder, vault) = vault(&[]);
    let text = format!(
        "[[mcp_servers]]\nid = \"everything\"\nurl = \"http://127.0.0.1:{port}/mcp\"\ntimeout_ms = 4000\n"
    );
    let outside = outside_with(&text, &vault);
    let used = Used {
        outside: &outside,
        secrets: &[],
    };
    works(&used).await;
    let performed = call(&used, "echo", json!({"message": "x"})).await;
    let observed = performed.observed.unwrap();
    assert_eq!(observed.network_egress[0].destination, "127.0.0.1");
    assert_eq!(observed.network_egress[0].purpose, "mcp");
    assert!(observed.not_observed.is_empty());
    outside.shutdown().await;
}
