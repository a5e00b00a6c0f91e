//! The examples of `docs/replay.md`, pasted into a shell.

use std::path::Path;
use std::process::Command;

use crate::world::World;

const DOCUMENT: &str = include_str!("../../../../../docs/replay.md");
const README: &str = include_str!("../../../../../README.md");

/// Returns what a reader would paste of the part of a text that begins with a mark and a title.
fn script(text: &str, mark: &str, title: &str) -> String {
    let mut parts = text.split(mark);
    let part = parts.find(|part| part.starts_with(title)).unwrap();
    let blocks = part.split("```sh\n").skip(1);
    blocks
        .map(|block| block.split("```").next().unwrap())
        .collect()
}

/// Pastes line by line, as a person would: a command that answers no does not stop the rest.
fn paste(world: &World, script: &str) -> String {
    let program = Path::new(env!("CARGO_BIN_EXE_reprise")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new("sh");
    command
        .args(["-u", "-c", script])
        .current_dir(world.home.path())
        .env("PATH", path);
    let output = command.output().unwrap();
    let out = String::from_utf8(output.stdout).unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(!err.contains("error:"), "{out}\n{err}");
    out
}

/// Not every shell takes a comment at its prompt: words about a command stand outside of what is pasted.
#[test]
fn no_block_that_is_pasted_ends_a_line_in_a_comment() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let docs = std::fs::read_dir(root.join("docs")).unwrap();
    let docs = docs.map(|file| file.unwrap().path());
    let docs = docs.filter(|file| file.extension().is_some_and(|kind| kind == "md"));
    for file in docs.chain([root.join("README.md")]) {
        let text = std::fs::read_to_string(&file).unwrap();
        for block in text.split("\n```sh\n").skip(1) {
            for line in block.split("\n```").next().unwrap().lines() {
                assert!(!line.contains(" # "), "{}: {line}", file.display());
            }
        }
    }
}

#[test]
fn debugging_by_one_answer_works_as_printed() {
    let world = World::new();
    let _server = world.serve();
    let script = script(DOCUMENT, "\n## ", "Debug a run by changing one answer");
    assert_eq!(script.matches("reprise ").count(), 10, "{script}");
    let out = paste(&world, &script);
    for line in [
        "llm:main:1         llm_provider_response",
        "result   COMPLETED, equal to the source (12 events)\n",
        "result   COMPLETED, with a different result from the source (12 events)\n",
        "  llm:main:1  answered differently, overridden\n",
        "    + Roll back to Tuesday's build\n",
        "exit status 1\n",
        "the same bytes\n",
    ] {
        assert!(out.contains(line), "no {line} in\n{out}");
    }
}

#[test]
fn ap_rpl_the_example_of_the_contract_works_from_the_readme() {
    let world = World::new();
    let server = world.serve();
    let script = script(README, "\n**", "Replay it").replace("localhost:8080", &server.address());
    let out = paste(&world, &script);
    assert!(out.contains("\"mode\":\"with_overrides\""), "{out}");
    assert!(out.contains("    + Done.\n"), "{out}");
    assert!(
        out.contains("  llm:main:1  answered differently, overridden\n"),
        "{out}"
    );
}

/// The whole tour in one folder, but for building and for the server itself.
#[test]
fn the_tour_of_the_readme_works_from_top_to_bottom() {
    let world = World::new();
    let server = world.serve();
    let tour = script(README, "\n## ", "A tour").replace("localhost:8080", &server.address());
    let (before, after) = tour.split_once("reprise serve --examples\n").unwrap();
    assert_eq!(before.lines().count(), 1, "{before}");
    let out = paste(&world, after);
    for line in [
        "You told me: Roll back to Tuesday's build",
        "reviewer@1\n",
        "event: task.completed\n",
        "are what they were when they were written\n",
        "documents\n",
        "would prune ",
        "    + Done.\n",
        "\nTASK  ",
        "\nok    signature/0\n",
        "  ci  ",
        "the answer, signed",
    ] {
        assert!(out.contains(line), "no {line} in\n{out}");
    }
    assert_eq!(out.matches("\nvalid\n").count(), 4, "{out}");
    assert!(!out.contains("INVALID"), "{out}");
}
