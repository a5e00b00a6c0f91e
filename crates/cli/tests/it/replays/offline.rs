//! From a bundle alone: the server is stopped and its data directory gone.

use std::process::Command;

use serde_json::{Value, json};
use testing::process::run_to_end;

use super::{Ran, completion};

#[test]
fn ap_rpl_the_bytes_of_the_receipt_are_those_of_the_server() {
    let ran = Ran::new("Hello");
    let changed = [
        "--set",
        "llm:main:1=Roll back",
        "--set",
        "time:started_at=2026-01-01T00:00:00Z",
    ];
    let online = [
        ran.world.ok(&["replay", &ran.task, "--receipt"]),
        ran.world
            .ok(&[&["replay", &ran.task, "--receipt"], &changed[..]].concat()),
    ];
    ran.server.unwrap().stop();
    std::fs::remove_dir_all(ran.world.data()).unwrap();
    let offline = ["replay", "--bundle", "run.bundle", "--receipt", "--ordinal"];
    assert_eq!(ran.world.ok(&[&offline[..], &["1"]].concat()), online[0]);
    assert_eq!(
        ran.world.ok(&[&offline[..], &["2"], &changed[..]].concat()),
        online[1]
    );
    assert_ne!(ran.world.ok(&[&offline[..], &["2"]].concat()), online[1]);
    assert!(
        !online[0].ends_with('\n'),
        "canonical bytes have no line feed"
    );
    assert!(!ran.world.data().exists(), "nothing was made on the way");
}

#[test]
fn a_bundle_is_listed_and_replayed_without_a_server() {
    let ran = Ran::offline("Hello");
    let keys = ran
        .world
        .json(&["replay", "--bundle", "run.bundle", "--list", "--json"]);
    let names: Vec<&str> = keys
        .as_array()
        .unwrap()
        .iter()
        .map(|key| key["key"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "time:created_at",
            "time:started_at",
            "llm:main:1",
            "time:completed_at"
        ]
    );
    let listed = ran
        .world
        .ok(&["replay", "--bundle", "run.bundle", "--list"]);
    assert!(
        listed.contains("I read: Hello (This answer comes"),
        "{listed}"
    );

    let exact = ran.replayed(0, &["--bundle", "run.bundle"]);
    assert_eq!(exact["result_equal"], true);
    let long = "word ".repeat(2_000);
    ran.write("long.json", &completion(&long).to_string());
    let changed = ran.replayed(
        0,
        &[
            "--bundle",
            "run.bundle",
            "--override",
            "llm:main:1=long.json",
        ],
    );
    assert_eq!(changed["answer"], long);
    // A request that names an artifact needs its content.
    let request = json!({"mode": "with_overrides", "override": {
        "llm:main:1": {"kind": "llm_provider_response", "artifact_id": "artifact_7"}}});
    ran.write("request.json", &request.to_string());
    let args = ["--bundle", "run.bundle", "--request", "request.json"];
    ran.fault(&args, "give its content with --artifact ID=FILE");
    let given = ran.replayed(
        0,
        &[&args[..], &["--artifact", "artifact_7=long.json"]].concat(),
    );
    assert_eq!(given["answer"], long);
    ran.fault(&["--bundle", "long.json"], "not a bundle: line 1");
    ran.fault(&["--bundle", "absent"], "`absent`");
}

#[test]
fn ap_rpl_a_conformance_run_says_what_the_vectors_say() {
    let ran = Ran::offline("Hello");
    let placeholder = format!("sha256:{}", "a".repeat(64));
    let request = json!({"mode": "with_overrides", "override": {"llm:main:1": {
        "kind": "llm_provider_response", "event_id": "event_foreign", "value": completion("x"), "sha256": placeholder}}});
    ran.write("request.json", &request.to_string());
    let args = [
        "replay",
        "--bundle",
        "run.bundle",
        "--request",
        "request.json",
        "--receipt",
    ];
    let receipt = |more: &[&str]| -> Value {
        serde_json::from_str(&ran.world.ok(&[&args[..], more].concat())).unwrap()
    };
    let conforming = receipt(&["--conformance"]);
    assert_eq!(conforming["issuer"]["id"], "harness_conformance");
    assert_eq!(
        conforming["deltas"][0]["after_sha256"],
        placeholder.as_str()
    );
    assert_eq!(conforming["deltas"][0]["event_id"], "event_foreign");
    let plain = receipt(&[]);
    assert_ne!(plain["deltas"][0]["after_sha256"], placeholder.as_str());
    let named = receipt(&["--issuer", "harness_x", "--issuer-name", "X"]);
    assert_eq!(named["issuer"]["id"], "harness_x");
    assert_eq!(named["issuer"]["name"], "X");
}

#[test]
fn damage_is_named_by_its_place() {
    let ran = Ran::offline(&"long ".repeat(1_000));
    let bundle = ran.bundle();
    let altered = bundle.replacen("\"base64\":\"", "\"base64\":\"AAAA", 1);
    assert_ne!(altered, bundle);
    ran.write("altered.bundle", &altered);
    let said = ran.replay(&["--bundle", "altered.bundle"]);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(
        said.stdout
            .contains("result   FAILED, the replay could not continue"),
        "{said:?}"
    );
    assert!(
        said.stdout.contains("missing  artifact sha256:"),
        "{said:?}"
    );
    assert!(said.stdout.contains(": hash_mismatch, event "), "{said:?}");
    // Its receipt tells the same, and is as deterministic as any other.
    let receipt = |_: u8| ran.replay(&["--bundle", "altered.bundle", "--receipt"]);
    let (one, two) = (receipt(1), receipt(2));
    assert_eq!((one.code, &one.stdout), (1, &two.stdout));
    let receipt: Value = serde_json::from_str(&one.stdout).unwrap();
    assert_eq!(
        receipt["lifecycle"]["failure"]["code"],
        "replay_dependency_unavailable"
    );

    ran.write(
        "forged.bundle",
        &bundle.replace("\"SUBMITTED\"", "\"SUBMITTEd\""),
    );
    let forged = ran.replayed(1, &["--bundle", "forged.bundle"]);
    assert_eq!(
        forged["failure"]["details"]["first_unavailable"]["reason"],
        "log_corrupt"
    );
    ran.write("short.bundle", &bundle[..bundle.len() / 2]);
    ran.fault(
        &["--bundle", "short.bundle"],
        "the file ends here, too early",
    );
}

/// Neither a replay nor a comparison of files opens a socket or starts a process.
#[test]
fn ap_rpl_nothing_outside_is_touched() {
    let ran = Ran::offline("Hello");
    let trace = ran.world.home.path().join("trace");
    let traced = |args: &[&str]| {
        let plain = ran.world.command(args);
        let mut command = Command::new("strace");
        command
            .args(["-f", "-e", "trace=%network,execve,fork,vfork", "-o"])
            .arg(&trace)
            .arg(plain.get_program())
            .args(plain.get_args())
            .current_dir(ran.world.home.path());
        for (name, value) in plain.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    };
    let Some(_running) = testing::strace() else {
        return;
    };
    for (args, code) in [
        (
            &["replay", "--bundle", "run.bundle", "--set", "llm:main:1=x"][..],
            0,
        ),
        (&["replay", "--bundle", "run.bundle", "--list"], 0),
        (&["diff", "run.bundle", "run.bundle"], 0),
    ] {
        let done = run_to_end(traced(args));
        assert_eq!(done.code, code, "{done:?}");
        let text = std::fs::read_to_string(&trace).unwrap();
        let calls: Vec<&str> = text.lines().filter(|line| line.contains('(')).collect();
        assert_eq!(
            calls.len(),
            1,
            "only the start of the program itself: {text}"
        );
        assert!(calls[0].contains("execve("), "{text}");
    }
    // The same trace sees the socket of a command that talks to a server.
    run_to_end(traced(&[
        "task",
        "list",
        "--url",
        "http://127.0.0.1:9",
        "--key",
        "rpk_x",
    ]));
    let text = std::fs::read_to_string(&trace).unwrap();
    assert!(text.contains("socket("), "{text}");
}
