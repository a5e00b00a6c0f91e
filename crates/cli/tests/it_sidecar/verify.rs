//! `sidecar verify` and `verify-replay`: the published vectors and the options.

use serde_json::{Value, json};

use crate::world::World;

fn vectors() -> Vec<Value> {
    let text = include_bytes!("../../../../conformance/vectors/ahd/vectors.json");
    let document: Value = serde_json::from_slice(text).unwrap();
    let all = document["vectors"].as_array().unwrap().iter();
    all.filter(|vector| vector["group"] == "verify")
        .cloned()
        .collect()
}

/// RB-VER-01 to RB-VER-06, RB-SRF-01: each vector as a real directory, by both names of the command.
#[test]
fn all_25_verify_vectors_agree_on_the_binary() {
    let vectors = vectors();
    assert_eq!(vectors.len(), 25);
    for vector in &vectors {
        let world = World::empty();
        for (path, text) in vector["files"].as_object().unwrap() {
            world.write(path, text.as_str().unwrap());
        }
        let mut arguments = vec![vector["argument"].as_str().unwrap(), "--json"];
        let flags = vector["flags"].as_array().into_iter().flatten();
        arguments.extend(flags.map(|flag| flag.as_str().unwrap()));
        let cwd = world.at(vector["cwd"].as_str().unwrap());
        let (id, expect) = (&vector["id"], &vector["expect"]);
        let code = i32::try_from(expect["exit"].as_i64().unwrap()).unwrap();
        for command in [vec!["sidecar", "verify"], vec!["verify-replay"]] {
            let ran = world
                .run_in(&cwd, &[command, arguments.clone()].concat(), &[])
                .expect(code);
            let mut found = ran.json();
            assert_eq!(found.get("error"), expect.get("error"), "{id}");
            let verdict = ["clean", "drift", "error"][usize::try_from(code).unwrap()];
            assert_eq!(found["verdict"], verdict, "{id}");
            if code == 2 {
                continue;
            }
            let warnings = expect.get("warnings").cloned().unwrap_or(json!([]));
            assert_eq!(found["warnings"], warnings, "{id}");
            assert_eq!(found["root"], world.path().to_str().unwrap(), "{id}");
            for check in found["checks"].as_array_mut().unwrap() {
                let check = check.as_object_mut().unwrap();
                assert!(check.remove("path").is_some() && check.remove("expected").is_some());
                check.remove("detail");
            }
            assert_eq!(found["checks"], expect["checks"], "{id}");
        }
    }
}

/// Section 5.4: header, one line per check, expected and actual under a FAIL, a verdict.
#[test]
fn the_text_form_names_each_check() {
    let world = World::framework();
    world.capture_eval(&[], &["true"]).expect(0);
    let commit = world.git(&["rev-parse", "HEAD"]);
    let ran = world
        .run(&["sidecar", "verify", "docs/report.md"])
        .expect(0);
    for line in [
        "report   docs/report.md\n",
        "sidecar  docs/report.replay.json\n",
        "kind     eval-live\n",
        "tool     ahd 0.11.0\n",
        &format!("commit   {commit}\n"),
        "  ok    token  `tokens/demo.yml`\n",
        "  ok    brief  `briefs/demo.yml` agrees by canonical-json\n",
        "\nclean: 2 of 2 ok\n",
    ] {
        assert!(ran.out.contains(line), "{line} in {}", ran.out);
    }
    world.write("tokens/demo.yml", "id: other\n");
    let ran = world
        .run(&["sidecar", "verify", "docs/report.md"])
        .expect(1);
    assert!(
        ran.out.contains(
            "  FAIL  token  `tokens/demo.yml`: hash_mismatch\n          expected sha256:"
        )
    );
    assert!(
        ran.out.contains("\n          actual   sha256:"),
        "{}",
        ran.out
    );
    assert!(ran.out.ends_with("\ndrift: 1 of 2 FAIL\n"), "{}", ran.out);
    std::fs::remove_file(world.at("tokens/demo.yml")).unwrap();
    let ran = world
        .run(&["sidecar", "verify", "docs/report.md"])
        .expect(1);
    assert!(
        ran.out.contains("file_missing") && ran.out.contains("actual   <none>"),
        "{}",
        ran.out
    );
}

/// In a partial clone git would fetch what is missing, with the command that the repository names for it.
#[test]
fn at_commit_starts_nothing_and_fetches_nothing() {
    let world = World::framework();
    world.capture_eval(&[], &["true"]).expect(0);
    world.commit_all();
    let object = world.git(&["rev-parse", "HEAD:tokens/demo.yml"]);
    let (folder, rest) = object.split_at(2);
    let file = world.at(&format!(".git/objects/{folder}/{rest}"));
    std::fs::remove_file(file).unwrap();
    let evil = world.at("EVIL");
    let command = format!("touch {}; false", evil.display());
    for (name, value) in [
        ("core.repositoryformatversion", "1"),
        ("extensions.partialClone", "origin"),
        ("remote.origin.url", "ssh://evil.invalid/x"),
        ("remote.origin.promisor", "true"),
        ("core.sshCommand", &command),
    ] {
        world.git(&["config", name, value]);
    }
    world
        .run(&["sidecar", "verify", "--at-commit", "docs/report.md"])
        .expect(1)
        .says("unreadable");
    assert!(!evil.exists(), "a command of the repository was run");
}

/// RB-VER-07.
#[test]
fn at_commit_reads_the_files_from_git() {
    let world = World::framework();
    world.capture_eval(&[], &["true"]).expect(0);
    world.write("tokens/demo.yml", "id: other\n");
    let later = world.commit_all();
    let verify = |flag: &str| world.run(&["sidecar", "verify", flag, "docs/report.md"]);
    world
        .run(&["sidecar", "verify", "docs/report.md"])
        .expect(1);
    verify("--at-commit").expect(0);
    verify("--at-commit=HEAD~1").expect(0);
    verify(&format!("--at-commit={later}"))
        .expect(1)
        .says("FAIL  token");
    verify("--at-commit=nowhere")
        .expect(2)
        .says("commit `nowhere` is not in this repository");
    verify("--at-commit=--help")
        .expect(2)
        .says("is not in this repository");
    // A root below the top of the repository.
    let root = world.at("tokens");
    let argument = world.at("docs/report.md");
    let ran = world.run(&[
        "sidecar",
        "verify",
        "--at-commit=HEAD",
        "--json",
        "--root",
        root.to_str().unwrap(),
        argument.to_str().unwrap(),
    ]);
    assert_eq!(ran.expect(1).json()["checks"][0]["reason"], "file_missing");
}

#[test]
fn at_commit_checks_trees_and_refuses_links_in_git() {
    let world = World::agent();
    world.capture_agent(&[], &["true"]).expect(0);
    world.write("data/a.txt", "changed\n");
    world
        .run(&["sidecar", "verify", "out/report.md"])
        .expect(1)
        .says("FAIL  inputs/2");
    world
        .run(&["sidecar", "verify", "--at-commit", "out/report.md"])
        .expect(0);
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("a.txt", world.at("data/link")).unwrap();
        world.commit_all();
        let ran = world.run(&["sidecar", "verify", "--at-commit=HEAD", "out/report.md"]);
        ran.expect(1).says("`link` is not a regular file in git");
    }
}

/// RB-VER-05 at a commit: links are followed as in the working tree, and not out of the root.
#[cfg(unix)]
#[test]
fn at_commit_follows_links_inside_the_root() {
    use std::os::unix::fs::symlink;
    let world = World::framework();
    world.write("real/deep/demo.yml", "id: demo\npalette: [black, white]\n");
    std::fs::remove_dir_all(world.at("tokens")).unwrap();
    symlink("real", world.at("tokens")).unwrap();
    symlink("./deep/../deep/demo.yml", world.at("real/demo.yml")).unwrap();
    world.write("loop/x", "");
    symlink("b", world.at("loop/a")).unwrap();
    symlink("a", world.at("loop/b")).unwrap();
    symlink("/etc", world.at("etc")).unwrap();
    symlink("../outside", world.at("up")).unwrap();
    world.commit_all();
    world.capture_eval(&[], &["true"]).expect(0);
    std::fs::remove_file(world.at("tokens")).unwrap();
    let verify = |path: &str| {
        let text = world.read("docs/report.replay.json");
        world.write("docs/x.replay.json", text.replace("tokens/demo.yml", path));
        let ran = world.run(&["sidecar", "verify", "--at-commit", "--json", "docs/x.md"]);
        ran.json()["checks"][0]["reason"].clone()
    };
    assert_eq!(verify("tokens/demo.yml"), json!(null));
    assert_eq!(verify("tokens/gone.yml"), "file_missing");
    assert_eq!(verify("loop/a"), "unreadable");
    assert_eq!(verify("etc/passwd"), "path_outside_root");
    assert_eq!(verify("up/x.yml"), "path_outside_root");
    assert_eq!(verify("tokens/deep"), "unreadable");
}

/// Hooks of git run with variables that name their own repository.
#[test]
fn the_repository_is_that_of_the_root_and_not_of_the_caller() {
    let other = World::agent();
    let world = World::framework();
    let git = other.at(".git");
    let hook = [
        ("GIT_DIR", git.to_str().unwrap()),
        ("GIT_WORK_TREE", "/"),
        ("GIT_INDEX_FILE", "/x"),
    ];
    world.capture_eval(&[], &["true"]).expect(0);
    let verify = ["sidecar", "verify", "--at-commit", "docs/report.md"];
    world.run_in(&world.path(), &verify, &hook).expect(0);
    let capture = [
        "sidecar",
        "capture",
        "--kind",
        "x",
        "--sidecar",
        "x.replay.json",
        "--input",
        "p=package.json",
        "--",
        "true",
    ];
    world.run_in(&world.path(), &capture, &hook).expect(0);
    let commit = world.git(&["rev-parse", "HEAD"]);
    assert_eq!(world.json("x.replay.json")["tool"]["commit"], commit);
}

#[test]
fn junit_has_a_case_per_check_and_an_error_without_verdict() {
    let world = World::framework();
    world.capture_eval(&[], &["true"]).expect(0);
    world.write("briefs/demo.yml", "title: <Other> & \"so\"\n");
    world
        .run(&["sidecar", "verify", "--junit", "r.xml", "docs/report.md"])
        .expect(1);
    let xml = world.read("r.xml");
    assert!(
        xml.contains(r#"tests="2" skipped="0" failures="1" errors="0""#),
        "{xml}"
    );
    assert!(
        xml.contains(r#"<testcase name="token" classname="eval-live""#),
        "{xml}"
    );
    assert!(xml.contains(r#"type="hash_mismatch""#), "{xml}");
    world
        .run(&["sidecar", "verify", "--junit", "e.xml", "docs/none.md"])
        .expect(2);
    let xml = world.read("e.xml");
    assert!(
        xml.contains(r#"errors="1""#) && xml.contains("sidecar_not_found"),
        "{xml}"
    );
}

/// RB-VER-03: `.replay-root` first, else `.git`; the current directory does not matter.
#[test]
fn general_roots_are_found_by_their_markers() {
    let world = World::agent();
    world.capture_agent(&[], &["true"]).expect(0);
    let elsewhere = World::empty();
    let report = world.at("out/report.md");
    let ran = world.run_in(
        &elsewhere.path(),
        &["sidecar", "verify", report.to_str().unwrap()],
        &[],
    );
    ran.expect(0);
    world.write("out/.replay-root", "");
    let ran = world
        .run(&["sidecar", "verify", "--json", "out/report.md"])
        .expect(1)
        .json();
    assert_eq!(ran["root"], world.at("out").to_str().unwrap());
    let root = world.path();
    let ran = world.run(&[
        "sidecar",
        "verify",
        "--root",
        root.to_str().unwrap(),
        "out/report.md",
    ]);
    ran.expect(0);
    world
        .run(&["sidecar", "verify", "--root", "gone", "out/report.md"])
        .expect(2)
        .says("unreadable_root");
}

/// RB-VER-02: the search goes up by the path's own text, not by where a link leads.
#[cfg(unix)]
#[test]
fn a_linked_report_directory_belongs_to_the_tree_it_is_linked_into() {
    let world = World::framework();
    world.capture_eval(&[], &["true"]).expect(0);
    let store = World::empty();
    std::fs::rename(world.at("docs"), store.at("docs")).unwrap();
    std::os::unix::fs::symlink(store.at("docs"), world.at("docs")).unwrap();
    world
        .run_in(
            &store.path(),
            &[
                "verify-replay",
                world.at("docs/report.md").to_str().unwrap(),
            ],
            &[],
        )
        .expect(0);
}

#[test]
fn the_agent_configuration_is_compared_on_request() {
    let world = World::agent();
    world
        .capture_agent(
            &["--agent-name", "a", "--agent-config", "agent.yml"],
            &["true"],
        )
        .expect(0);
    let verify = || world.run(&["sidecar", "verify", "--agent", "agent.yml", "out/report.md"]);
    verify().expect(0).says("ok    agent");
    world.write("agent.yml", "model: y\n");
    verify().expect(1).says("FAIL  agent");
}

#[test]
fn help_shows_examples() {
    let world = World::empty();
    for command in ["capture", "verify", "rerun", "backfill"] {
        world
            .run(&["sidecar", command, "--help"])
            .expect(0)
            .says("Examples:");
    }
    world
        .run(&["verify-replay", "--help"])
        .expect(0)
        .says("Examples:");
    world.run(&["sidecar", "verify"]).expect(2);
}
