//! Receipts on a server: shown, verified, and none lost.

use testing::process::Server;

use super::Ran;
use crate::world::World;

#[test]
fn a_receipt_is_unverified_until_somebody_verified_it() {
    let ran = Ran::new(1);
    let shown = ran.world.ok(&["receipt", "show", &ran.tasks[0]]);
    assert!(shown.contains("not verified yet"), "{shown}");
    assert!(!shown.contains(" valid"), "{shown}");
    let said = ran.world.run(&["receipt", "verify", &ran.receipts[0]]);
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.stdout.ends_with("valid\n"), "{said:?}");
    let shown = ran.world.ok(&["receipt", "show", &ran.receipts[0]]);
    assert!(shown.contains("valid when checked at"), "{shown}");
    let said = ran.world.run(&[
        "receipt",
        "verify",
        &ran.receipts[0],
        "--trust-anchor",
        "other",
    ]);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(
        said.stdout.contains("FAIL  anchor  untrusted_anchor"),
        "{said:?}"
    );
    let shown = ran.world.ok(&["receipt", "show", &ran.receipts[0]]);
    assert!(shown.contains("INVALID (untrusted_anchor)"), "{shown}");
    assert_ne!(ran.world.run(&["receipt", "show", "receipt_none"]).code, 0);
    let waiting = ran.world.submit("ask");
    let said = ran.world.run(&["receipt", "show", &waiting]);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.stderr.contains("no receipt yet"), "{said:?}");
}

#[test]
fn a_kill_right_after_the_submit_loses_no_leaf() {
    let world = World::new();
    for expected in 0..3 {
        let mut command = world.command(&["serve", "--listen", "127.0.0.1:0"]);
        // The tree lags behind as far as it can.
        command.env("REPRISE_LIMITS_LEAF_INTERVAL_MS", "3600000");
        let server = Server::start(&mut command).unwrap_or_else(|said| panic!("{said:?}"));
        if expected > 0 {
            let tasks = world.json(&["task", "list", "--oldest", "--json"]);
            for (index, task) in tasks.as_array().unwrap().iter().enumerate() {
                let proof = world.json(&["receipt", "proof", task["id"].as_str().unwrap()]);
                assert_eq!(proof["leaf_index"], index);
                // The first asked for may be covered by an older head.
                assert!(
                    proof["tree_size"].as_u64().unwrap() > index as u64,
                    "{proof}"
                );
            }
            assert_eq!(tasks.as_array().unwrap().len(), expected);
            world.ok(&["log", "export", &format!("bundle{expected}")]);
            world.ok(&[
                "receipt",
                "verify",
                "--bundle",
                &format!("bundle{expected}"),
                "--unsigned",
            ]);
        }
        world.submit("agent");
        server.kill();
        world.ok(&["log", "verify"]);
    }
}
