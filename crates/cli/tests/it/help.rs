//! What `--help` says, command by command.

use crate::world::World;

const COMMANDS: &[&[&str]] = &[
    &[],
    &["demo"],
    &["serve"],
    &["key"],
    &["key", "create"],
    &["key", "grant"],
    &["key", "list"],
    &["key", "revoke"],
    &["task"],
    &["task", "submit"],
    &["task", "get"],
    &["task", "show"],
    &["task", "list"],
    &["task", "watch"],
    &["task", "answer"],
    &["task", "export"],
    &["task", "retry"],
    &["task", "cancel"],
    &["approvals"],
    &["approvals", "list"],
    &["approvals", "show"],
    &["approvals", "approve"],
    &["approvals", "deny"],
    &["session"],
    &["session", "list"],
    &["session", "show"],
    &["artifact"],
    &["artifact", "list"],
    &["artifact", "get"],
    &["artifact", "put"],
    &["event"],
    &["event", "list"],
    &["event", "show"],
    &["workspace"],
    &["workspace", "list"],
    &["workspace", "show"],
    &["completions"],
    &["man"],
    &["persona"],
    &["persona", "apply"],
    &["persona", "list"],
    &["persona", "show"],
    &["replay"],
    &["diff"],
    &["log"],
    &["log", "verify"],
    &["log", "import"],
    &["log", "prune"],
    &["receipt"],
    &["receipt", "show"],
    &["receipt", "verify"],
    &["receipt", "proof"],
    &["receipt", "trust"],
    &["receipt", "rotate-key"],
    &["receipt", "revoke-key"],
    &["tlog"],
    &["tlog", "check"],
    &["witness"],
    &["witness", "add"],
    &["witness", "list"],
    &["witness", "remove"],
    &["canonicalize"],
    &["field"],
    &["field", "status"],
    &["field", "register"],
    &["field", "record"],
    &["field", "attune"],
    &["field", "detect"],
    &["field", "merge"],
    &["field", "replay"],
    &["field", "compact"],
    &["vault"],
    &["vault", "set"],
    &["vault", "list"],
    &["vault", "delete"],
    &["contracts"],
    &["contracts", "check"],
    &["contracts", "test"],
    &["contracts", "backtest"],
    &["contracts", "init"],
    &["contracts", "explain"],
    &["contracts", "schema"],
    &["conformance"],
];

#[test]
fn every_command_explains_itself_with_examples() {
    let world = World::new();
    let mut all = String::new();
    for command in COMMANDS.iter().copied() {
        let text = world.ok(&[command, &["--help"]].concat());
        assert!(!text.contains('\u{1b}'));
        let family = text.contains("\nCommands:\n");
        assert!(
            family || text.contains("Example"),
            "{command:?} has no example:\n{text}"
        );
        all.push_str(&format!("$ reprise {} --help\n{text}\n", command.join(" ")));
    }
    insta::assert_snapshot!(all);
}

#[test]
fn without_a_command_the_help_goes_to_stderr_with_2() {
    let world = World::new();
    let said = world.run(&[]);
    assert_eq!((said.code, said.stdout.as_str()), (2, ""));
    assert!(
        said.stderr.contains("Usage: reprise [OPTIONS] <COMMAND>"),
        "{said:?}"
    );
    assert!(world.ok(&["--version"]).starts_with("reprise "));
}
