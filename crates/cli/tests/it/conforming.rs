//! `reprise conformance` against `reprise serve`.

use std::process::Command;

use testing::process::{CommandOutput, Server, run_to_end};

use crate::world::World;

/// Starts a server with a card of this name and runs every check that needs no restart.
fn judge(card: &str, args: &[&str]) -> CommandOutput {
    let world = World::new();
    let mut command: Command = world.command(&["serve", "--listen", "127.0.0.1:0"]);
    command.env("REPRISE_CARD_OBJECT", card);
    judged(&world, command, args)
}

fn judged(world: &World, mut serve: Command, args: &[&str]) -> CommandOutput {
    let server = Server::start(&mut serve).unwrap();
    // Where it listens, and both keys, are found in the data directory.
    let mut command = world.command(&["conformance", "--json"]);
    command.args(args);
    let said = run_to_end(command);
    drop(server);
    said
}

fn failures(said: &CommandOutput) -> Vec<String> {
    let report: serde_json::Value = serde_json::from_str(&said.stdout).unwrap();
    let outcomes = report["outcomes"].as_array().unwrap().iter();
    let failed = outcomes.filter(|outcome| outcome["verdict"] == "fail");
    failed
        .map(|outcome| outcome["id"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn our_own_server_conforms() {
    let said = judge("agent_card", &[]);
    assert_eq!(failures(&said), Vec::<String>::new());
    assert_eq!(said.code, 0, "{}", said.stderr);
    // Receipts are claimed: each of their requirements was seen to hold, the one about clients apart.
    let report: serde_json::Value = serde_json::from_str(&said.stdout).unwrap();
    let outcomes = report["outcomes"].as_array().unwrap().iter();
    let of_receipts = outcomes.filter(|outcome| {
        let id = outcome["id"].as_str().unwrap();
        id.starts_with("AP-RCPT-") && id != "AP-RCPT-05" || ["SUITE-22", "SUITE-23"].contains(&id)
    });
    let mut seen = 0;
    for outcome in of_receipts {
        assert_eq!(outcome["verdict"], "ok", "{outcome}");
        seen += 1;
    }
    assert_eq!(seen, 15);
}

/// C-01: no card satisfies both the contract and the published suite; by default ours follows the contract.
#[test]
fn a_requirement_that_is_not_met_is_a_no() {
    let said = judge("harn_agent_card", &["--suite"]);
    assert_eq!(failures(&said), ["SUITE-02"]);
    assert_eq!(said.code, 1, "{}", said.stderr);
}

/// U28: a server as it starts by default conforms, and what it takes the example workflows to see says so.
#[test]
fn u28_a_fresh_server_conforms_and_says_what_it_takes_to_see_the_rest() {
    let world = World::new();
    let mut command = world.command(&["serve", "--listen", "127.0.0.1:0"]);
    command.env_remove("REPRISE_EXAMPLES");
    let said = judged(&world, command, &[]);
    assert_eq!(failures(&said), Vec::<String>::new());
    assert_eq!(said.code, 0, "{}", said.stderr);
    let report: serde_json::Value = serde_json::from_str(&said.stdout).unwrap();
    let verdict = |id: &str| {
        let outcomes = report["outcomes"].as_array().unwrap().iter();
        outcomes
            .clone()
            .find(|outcome| outcome["id"] == id)
            .unwrap()
    };
    assert_eq!(verdict("SUITE-02")["verdict"], "differs_by_decision");
    let decision = verdict("SUITE-02")["decision"].as_str().unwrap();
    assert!(decision.contains("card_object"), "{decision}");
    for id in ["AP-PRM-01", "AP-TASK-09", "AP-LIFE-03", "AP-LIFE-07"] {
        assert_eq!(verdict(id)["verdict"], "not_covered", "{id}");
        let reason = verdict(id)["reason"].as_str().unwrap();
        assert!(
            reason.contains("reprise serve --examples"),
            "{id}: {reason}"
        );
    }
}

#[test]
fn a_server_that_is_not_there_is_a_fault() {
    let world = World::new();
    let said = world.run(&[
        "conformance",
        "--url",
        "http://127.0.0.1:9",
        "--key",
        "rpk_x",
    ]);
    assert_eq!((said.code, said.stdout.as_str()), (2, ""), "{said:?}");
    assert!(said.stderr.contains("hint: start a server"), "{said:?}");
}
