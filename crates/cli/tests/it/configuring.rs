//! The configuration file from outside.

use testing::process::{Server, run_to_end};

use crate::world::World;

#[test]
fn an_unknown_key_stops_the_start_with_file_and_line() {
    let world = World::new();
    let file = world.home.path().join("reprise.toml");
    std::fs::write(
        &file,
        "listen = \"127.0.0.1:0\"\n\n[limits]\nworkers_maximum = 3\n",
    )
    .unwrap();
    let said = world.run(&["serve", "--config", "reprise.toml"]);
    assert_eq!(said.code, 2);
    assert!(
        said.stderr
            .starts_with("error: reprise.toml:4: unknown field `workers_maximum`"),
        "{said:?}"
    );
    assert!(
        said.stderr
            .contains("\nhint: `reprise serve --print-config`"),
        "{said:?}"
    );
    assert!(!world.data().exists());

    let said = world.run(&["serve", "--config", "missing.toml"]);
    assert_eq!(said.code, 2);
    assert!(said.stderr.contains("`missing.toml`"), "{said:?}");
}

#[test]
fn what_print_config_prints_can_be_served_with() {
    let world = World::new();
    let printed = world.ok(&["serve", "--print-config"]);
    insta::assert_snapshot!(printed);
    let file = world.home.path().join("reprise.toml");
    let lines = printed.lines().map(|line| match line.strip_prefix('#') {
        Some(rest) if rest.starts_with(|c: char| c.is_ascii_lowercase() || c == '[') => rest,
        _ => line,
    });
    std::fs::write(&file, lines.collect::<Vec<_>>().join("\n")).unwrap();
    let _server = world.serve_with(&["--config", "reprise.toml", "--listen", "127.0.0.1:0"]);
    world.ok(&["task", "list"]);
    // Whoever has nothing but the program takes its examples from here.
    let examples = printed.lines().filter_map(|line| line.strip_prefix("#   "));
    let examples: Vec<&str> = examples.collect();
    assert!(examples.contains(&"[[providers]]"), "{examples:?}");
    std::fs::write(&file, examples.join("\n")).unwrap();
    world.ok(&["serve", "--config", "reprise.toml", "--check-config"]);
}

#[test]
fn settings_reach_the_server() {
    let world = World::new();
    let file = world.home.path().join("reprise.toml");
    let text = "listen = \"127.0.0.1:0\"\ncard_object = \"agent_card\"\n[log]\nformat = \"json\"\n\
        [[connectors]]\nid = \"connector_hook\"\nprovider = \"github\"\nevent_kinds = [\"push\"]\n\
        webhook = { path = \"/hook\" }\n";
    std::fs::write(&file, text).unwrap();
    let mut command = world.command(&["serve", "--config", "reprise.toml"]);
    command.env("REPRISE_LIMITS_BODY_BYTES_MAX", "2048");
    let mut server = Server::start(&mut command).unwrap();
    let logged = server.line().unwrap();
    assert!(logged.starts_with("{\"timestamp\""), "{logged}");
    let get = |path: &str| {
        let key = std::fs::read_to_string(world.data().join("api-key")).unwrap();
        let mut curl = std::process::Command::new("curl");
        curl.args(["-s", "-H", &format!("Authorization: Bearer {}", key.trim())]);
        curl.args([
            "-H",
            "Harn-Agents-Protocol-Version: agents-protocol-2026-04-25",
        ]);
        curl.arg(format!("{}{path}", server.url));
        serde_json::from_str::<serde_json::Value>(&run_to_end(curl).stdout).unwrap()
    };
    assert_eq!(get("/v1/agent-card")["object"], "agent_card");
    assert_eq!(get("/v1/connectors")["data"][0]["webhook"]["path"], "/hook");
    let large = world.run(&["task", "submit", &"x".repeat(4096)]);
    assert!(large.stderr.contains("(payload_too_large)"), "{large:?}");
}
