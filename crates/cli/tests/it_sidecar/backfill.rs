//! `sidecar backfill`: section 8.

use serde_json::json;

use crate::world::World;

const FLAGS: [&str; 10] = [
    "--kind",
    "eval-live",
    "--token",
    "tokens/demo.yml",
    "--brief",
    "briefs/demo.yml",
    "--n",
    "3",
    "--model",
    "id=cf:@cf/m,provider=cf",
];

fn backfill(world: &World, more: &[&str]) -> crate::world::Ran {
    world.run(&[&["sidecar", "backfill"][..], &FLAGS, more].concat())
}

#[test]
fn the_block_is_rebuilt_from_the_commit_of_the_report() {
    let world = World::framework();
    let commit = world.git(&["rev-parse", "HEAD"]);
    // Later commits change everything but the report.
    world.write("tokens/demo.yml", "id: later\n");
    world.write(
        "package.json",
        r#"{"name":"@adastracomputing/ahd","version":"0.12.0"}"#,
    );
    world.commit_all();
    backfill(&world, &["docs/report.md"]).expect(0);
    assert_eq!(
        world.json("docs/report.replay.json"),
        json!({
            "schema_version": 1, "kind": "eval-live", "ahd_version": "0.11.0", "ahd_commit": commit,
            "git_dirty": false, "node_version": "unknown", "platform": "unknown",
            "invoked_at": "2026-04-22T10:24:18Z", "argv": [],
            "token": {"path": "tokens/demo.yml",
                "hash": "sha256:cebbb2c702b68b643aba21e3965e100ee530da331e26fdfc983068ca78f31010"},
            "brief": {"path": "briefs/demo.yml",
                "hash": "sha256:4c5025c7ca62adc4a5d7e58b6d5eb52e9739cef01b471e2362d7bd59ee3fe6af"},
            "sampling": {"n": 3, "temperature": null, "seed": null},
            "models": [{"id": "cf:@cf/m", "provider": "cf", "provider_request_ids": []}],
            "conditions": {"requested": ["raw", "compiled"], "effective": ["raw", "compiled"]},
            "backfilled": true,
        })
    );
    world
        .run(&["sidecar", "verify", "docs/report.md"])
        .expect(1)
        .says("warning: backfilled");
    world
        .run(&["sidecar", "verify", "--at-commit", "docs/report.md"])
        .expect(0);
}

#[test]
fn reports_with_a_sidecar_are_skipped_and_untracked_ones_refused() {
    let world = World::framework();
    world.write("docs/new.md", "# New 2026-04-22T10:24:18Z\n");
    let ran = backfill(&world, &["docs/new.md", "docs/report.md"]).expect(2);
    assert!(
        ran.err
            .contains("`docs/new.md`: git does not track the report"),
        "{}",
        ran.err
    );
    assert!(world.exists("docs/report.replay.json") && !world.exists("docs/new.replay.json"));
    let before = world.read("docs/report.replay.json");
    backfill(&world, &["docs/report.md"])
        .expect(0)
        .says("skipped `docs/report.md`");
    assert_eq!(world.read("docs/report.replay.json"), before);
}

#[test]
fn what_cannot_be_known_is_refused() {
    let world = World::framework();
    world.write("docs/undated.md", "# Eval\n");
    world.commit_all();
    backfill(&world, &["docs/undated.md"])
        .expect(2)
        .says("give --invoked-at");
    backfill(&world, &["--invoked-at", "2026-04-22", "docs/undated.md"])
        .expect(2)
        .says("/invoked_at");
    backfill(
        &world,
        &["--invoked-at", "2026-04-22T00:00:00Z", "docs/undated.md"],
    )
    .expect(0);
    // Nobody recorded these then, so there is no flag for them.
    for flag in [
        "--seed",
        "--temperature",
        "--request-ids",
        "--condition-requested",
    ] {
        backfill(&world, &[flag, "1", "docs/report.md"])
            .expect(2)
            .says(&format!("unexpected argument `{flag}`"));
    }
    world.git(&["rm", "-q", "tokens/demo.yml"]);
    world.write("docs/report.md", "# R 2026-04-22T10:24:18Z\n");
    world.commit_all();
    backfill(&world, &["docs/report.md"])
        .expect(2)
        .says("`tokens/demo.yml` at commit");
}

#[test]
fn a_brief_that_is_no_yaml_is_hashed_by_its_bytes() {
    let world = World::framework();
    world.write("briefs/demo.yml", "# Brief\n\nMake it: simple\n- one\n");
    world.write("docs/report.md", "# R 2026-04-22T10:24:18Z\n");
    world.commit_all();
    backfill(&world, &["docs/report.md"]).expect(0);
    let brief = &world.json("docs/report.replay.json")["brief"]["hash"];
    assert_eq!(
        brief,
        "sha256:564dd247b5d9ab004dfa9440e01c94b00bb9d27fa043be412cda08ec052e454a"
    );
}
