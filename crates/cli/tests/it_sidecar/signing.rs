//! The sidecar's own signature: keygen, capture --sign, verify --key.

use std::os::unix::fs::PermissionsExt as _;

use crate::world::World;

fn keygen(world: &World, file: &str) -> String {
    let ran = world.run(&["sidecar", "keygen", file]).expect(0);
    ran.out.trim_end().to_owned()
}

/// Section 10.2: Ed25519 over the canonical bytes without the member, one line when a key is given.
#[test]
fn a_signed_sidecar_verifies_by_its_key_and_no_other() {
    let world = World::agent();
    let (public, other) = (keygen(&world, "a.key"), keygen(&world, "b.key"));
    assert!(public.starts_with("ed25519:") && public != other);
    world
        .capture_agent(&["--sign", "a.key"], &["true"])
        .expect(0);
    let signature = world.json("out/report.replay.json")["signature"].clone();
    assert_eq!(signature["alg"], "ed25519");
    assert_eq!(signature["value"].as_str().unwrap().len(), 86);
    let key_id = signature["key_id"].as_str().unwrap();
    let verify = |more: &[&str]| {
        let mut arguments = vec!["sidecar", "verify", "out/report.md"];
        arguments.extend(more);
        world.run(&arguments)
    };
    verify(&["--key", &public])
        .expect(0)
        .says(&format!("  ok    signature  `{key_id}`\n"))
        .says("clean: 4 of 4 ok");
    verify(&["--key", &other])
        .expect(1)
        .says(&format!(
            "  FAIL  signature  `{key_id}`: signature_invalid\n"
        ))
        .says("drift: 1 of 4 FAIL");
    verify(&[])
        .expect(0)
        .says(&format!("  note  signature  `{key_id}`: not_checked"))
        .says("clean: 3 of 3 ok");
    verify(&["--key", "ed25519:short"])
        .expect(2)
        .says("wants a public key");
    // The seed by mistake: refused without being shown in anybody's log.
    let seed = world.read("a.key");
    let ran = verify(&["--key", seed.trim_end()]).expect(2);
    let ran = ran.says("this is a seed");
    let secret = seed.trim_end().rsplit(':').next().unwrap();
    assert!(!(ran.out + &ran.err).contains(secret));
    // The layout of the file does not matter, its content does.
    let text = world.read("out/report.replay.json");
    let compact: serde_json::Value = serde_json::from_str(&text).unwrap();
    world.write("out/report.replay.json", compact.to_string());
    verify(&["--key", &public]).expect(0);
    world.write(
        "out/report.replay.json",
        text.replace("agent-run", "agent-ran"),
    );
    verify(&["--key", &public])
        .expect(1)
        .says("signature_invalid")
        .says("drift: 1 of 4 FAIL");
}

#[test]
fn a_sidecar_without_signature_fails_whoever_asks_for_one() {
    let world = World::agent();
    let public = keygen(&world, "a.key");
    world.capture_agent(&[], &["true"]).expect(0);
    world
        .run(&["sidecar", "verify", "--key", &public, "out/report.md"])
        .expect(1)
        .says("  FAIL  signature  `ed25519`: not_signed\n");
    let world = World::framework();
    world.capture_eval(&[], &["true"]).expect(0);
    world
        .run(&["sidecar", "verify", "--key", &public, "docs/report.md"])
        .expect(1)
        .says("not_signed");
}

#[test]
fn seeds_stay_with_their_owner() {
    let world = World::agent();
    let public = keygen(&world, "a.key");
    let mode = |file: &str| world.at(file).metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode("a.key"), 0o600);
    let seed = world.read("a.key");
    assert!(seed.starts_with("ed25519-seed:") && !seed.contains(&public[8..]));
    world
        .run(&["sidecar", "keygen", "a.key"])
        .expect(2)
        .says("cannot write `a.key`");
    assert_eq!(world.read("a.key"), seed);
    let refused = |file: &str, reason: &str| {
        world
            .capture_agent(&["--sign", file], &["touch", "ran"])
            .expect(2)
            .says(reason);
        // Told before the command costs anything.
        assert!(!world.exists("ran") && !world.exists("out/report.replay.json"));
    };
    refused("nowhere.key", "cannot sign with `nowhere.key`");
    world.write("bad.key", &public);
    let owner_only = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(world.at("bad.key"), owner_only).unwrap();
    refused("bad.key", "not a seed");
    std::fs::set_permissions(world.at("a.key"), std::fs::Permissions::from_mode(0o640)).unwrap();
    refused("a.key", "can be read by others (mode 640)");
}

/// Schema 1 has no member for it.
#[test]
fn ahd_blocks_are_not_signed() {
    let world = World::framework();
    keygen(&world, "a.key");
    world
        .capture_eval(&["--sign", "a.key"], &["true"])
        .expect(2)
        .says("has no member for one of the flags");
}

/// A rerun is another run: neither the signature nor the receipt of the first is its own.
#[test]
fn a_rerun_does_not_carry_the_signature_on() {
    let world = World::agent();
    keygen(&world, "a.key");
    world
        .capture_agent(&["--sign", "a.key"], &["true"])
        .expect(0);
    world
        .run(&[
            "sidecar",
            "rerun",
            "--exec",
            "--sidecar",
            "again.replay.json",
            "out/report.md",
        ])
        .expect(0);
    let again = world.json("again.replay.json");
    assert_eq!(again["parent"]["relation"], "rerun");
    assert!(again.get("signature").is_none(), "{again}");
}

/// Keys are given to see the run vouched for: a sidecar without a recording does not pass.
#[test]
fn keys_without_a_recording_are_a_no() {
    let world = World::agent();
    world.write(".git/keys.json", r#"{"keys":[]}"#);
    world.capture_agent(&[], &["true"]).expect(0);
    let verify = [
        "sidecar",
        "verify",
        "--keys",
        ".git/keys.json",
        "out/report.md",
    ];
    world.run(&verify).expect(1).says(
        "  FAIL  recording/receipt  `receipt`: not_recorded: the sidecar holds no recording\n",
    );
}
