//! What the documents tell people to paste: into bash, and into zsh as it is on a fresh machine.
//!
//! Shells are interactive here: only then does zsh take `#` for a word, and bash `!` for history.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::world::World;

const DOCUMENTS: [(&str, &str); 14] = [
    ("README", include_str!("../../../../README.md")),
    ("CONTRIBUTING", include_str!("../../../../CONTRIBUTING.md")),
    ("agents", include_str!("../../../../docs/agents.md")),
    ("contracts", include_str!("../../../../docs/contracts.md")),
    ("decisions", include_str!("../../../../docs/decisions.md")),
    ("glossary", include_str!("../../../../docs/glossary.md")),
    ("memory", include_str!("../../../../docs/memory.md")),
    (
        "performance",
        include_str!("../../../../docs/performance.md"),
    ),
    ("protocol", include_str!("../../../../docs/protocol.md")),
    ("receipts", include_str!("../../../../docs/receipts.md")),
    (
        "replay-blocks",
        include_str!("../../../../docs/replay-blocks.md"),
    ),
    ("replay", include_str!("../../../../docs/replay.md")),
    ("running", include_str!("../../../../docs/running.md")),
    ("security", include_str!("../../../../docs/security.md")),
];

const BASH: &[&str] = &["bash", "--norc", "--noprofile", "-i"];
const ZSH: &[&str] = &["zsh", "-f", "-i"];

/// Group `zsh`: tests that need that shell.
fn zsh() -> Option<testing::Running> {
    let asked = Command::new("zsh").arg("--version").output();
    let missing = asked.err().map(|error| format!("`zsh`: {error}"));
    testing::group("zsh", missing)
}

/// Returns the shell blocks of a text, in order.
fn blocks(text: &str) -> Vec<&str> {
    let parts = text.split("```sh\n").skip(1);
    parts
        .map(|part| part.split("```").next().unwrap())
        .collect()
}

/// Pastes a text into a shell and returns everything that came of it. A marker follows each block.
fn paste(world: &World, shell: &[&str], blocks: &[String]) -> String {
    let program = Path::new(env!("CARGO_BIN_EXE_reprise")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new("timeout");
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("REPRISE_") {
            command.env_remove(name);
        }
    }
    command
        .arg("240")
        .args(shell)
        .current_dir(world.home.path())
        .env("PATH", path)
        .env("HOME", world.home.path())
        .env("REPRISE_LISTEN", "127.0.0.1:0")
        .env("REPRISE_LIMITS_DRAIN_WINDOW_MS", "100")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let script: String = blocks
        .iter()
        .enumerate()
        .map(|(at, block)| format!("{block}\necho block {at} ended with $?\n"))
        .collect();
    let writer = std::thread::spawn(move || {
        stdin.write_all(script.as_bytes()).unwrap();
        stdin.write_all(b"exit\n").unwrap();
    });
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    let err = String::from_utf8_lossy(&output.stderr);
    let all = format!("{out}\n----\n{err}");
    for wrong in [
        "error:",
        "command not found",
        "parse error",
        "syntax error",
        "event not found",
        "no matches found",
    ] {
        assert!(!all.contains(wrong), "`{wrong}` in {shell:?}:\n{all}");
    }
    let ended = format!("block {} ended with 0", blocks.len() - 1);
    assert!(out.contains(&ended), "no `{ended}` in {shell:?}:\n{all}");
    all
}

/// The blocks of the README's tour, but the one that installs and the one that starts the server: it runs already, and
/// not on a port that somebody else may have.
fn tour(address: &str) -> Vec<String> {
    let tour = DOCUMENTS[0].1.split("\n## ");
    let tour = tour.into_iter().find(|part| part.starts_with("A tour"));
    let blocks = blocks(tour.unwrap()).into_iter();
    let blocks = blocks
        .filter(|block| !block.starts_with("cargo install") && !block.starts_with("reprise serve"));
    let blocks = blocks.map(|block| block.replace("localhost:8080", address));
    let blocks: Vec<String> = blocks.collect();
    assert!(blocks.len() > 6, "{blocks:?}");
    blocks
}

/// Takes the tour twice in one folder: nothing in it counts on being the first.
fn take_the_tour(shell: &[&str]) {
    let world = World::new();
    let server = world.serve_with(&["--listen", "127.0.0.1:0", "--examples"]);
    let tour = tour(&server.address());
    for _ in 0..2 {
        let all = paste(&world, shell, &tour);
        for words in ["COMPLETED", "denied", "Not yet.", "signed by", "reviewer@1"] {
            assert!(all.contains(words), "no `{words}`:\n{all}");
        }
    }
}

#[test]
fn the_tour_of_the_readme_pastes_into_bash() {
    take_the_tour(BASH);
}

#[test]
fn the_tour_of_the_readme_pastes_into_zsh() {
    if let Some(_running) = zsh() {
        take_the_tour(ZSH);
    }
}

/// Returns the one block of a document that starts a server of its own.
fn example(name: &str) -> String {
    let (_, text) = DOCUMENTS
        .iter()
        .find(|(document, _)| *document == name)
        .unwrap();
    let found = blocks(text)
        .into_iter()
        .find(|block| block.contains("reprise serve --listen 127.0.0.1:0 --config reprise.toml"));
    found.unwrap().to_owned()
}

fn follow_the_examples(shell: &[&str]) {
    let world = World::new();
    let all = paste(&world, shell, &[example("agents")]);
    assert!(all.contains("The note has three words."), "{all}");

    let world = World::new();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/refund-desk/.");
    let copied = Command::new("cp")
        .args(["-r", folder])
        .arg(world.home.path())
        .status();
    assert!(copied.unwrap().success());
    let all = paste(&world, shell, &[example("contracts")]);
    assert!(all.contains("equal to the source"), "{all}");
}

#[test]
fn the_examples_of_the_documents_paste_into_bash() {
    follow_the_examples(BASH);
}

#[test]
fn the_examples_of_the_documents_paste_into_zsh() {
    if let Some(_running) = zsh() {
        follow_the_examples(ZSH);
    }
}

/// Whoever waits for a server that cannot start is told so and has the shell back.
#[test]
fn an_example_whose_port_is_taken_ends() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let world = World::new();
    let block = example("agents").replace("sleep 0.2", "sleep 0.01");
    let block = block.replace("127.0.0.1:0", &address);
    let output = Command::new("timeout")
        .args(["100", "bash", "-c", &block])
        .current_dir(world.home.path())
        .env(
            "PATH",
            format!(
                "{}:{}",
                Path::new(env!("CARGO_BIN_EXE_reprise"))
                    .parent()
                    .unwrap()
                    .display(),
                std::env::var("PATH").unwrap()
            ),
        )
        .output()
        .unwrap();
    assert_ne!(output.status.code(), Some(124), "it waits for ever");
    let all = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(all.contains("error:"), "{all}");
}

#[test]
fn no_block_ends_a_line_in_a_comment_and_every_block_can_be_parsed() {
    let zsh = zsh();
    let mut count = 0;
    for (name, text) in DOCUMENTS {
        for block in blocks(text) {
            count += 1;
            for line in block.lines() {
                let is_comment = line.contains(" # ") || line.starts_with('#');
                // Text of a file that is written is not the shell's.
                let is_in_file = block.contains("<<'END'") && !line.contains("reprise ");
                assert!(!is_comment || is_in_file, "{name}: {line}");
            }
            for shell in ["bash", "zsh"] {
                if shell == "zsh" && zsh.is_none() {
                    continue;
                }
                let mut child = Command::new(shell)
                    .arg("-n")
                    .stdin(Stdio::piped())
                    .stderr(Stdio::piped())
                    .spawn()
                    .unwrap();
                let mut stdin = child.stdin.take().unwrap();
                stdin.write_all(block.as_bytes()).unwrap();
                drop(stdin);
                let output = child.wait_with_output().unwrap();
                let err = String::from_utf8_lossy(&output.stderr);
                assert!(
                    output.status.success() && err.is_empty(),
                    "{name}, {shell}: {err}\n{block}"
                );
            }
        }
    }
    assert!(count > 20, "{count} blocks");
}

/// The script that zsh gets completes words, in a zsh that somebody types into.
#[test]
fn zsh_completes_commands() {
    let Some(_running) = zsh() else {
        return;
    };
    let world = World::new();
    let script = world.ok(&["completions", "zsh"]);
    let folder = world.home.path().join("zfunc");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("_reprise"), script).unwrap();
    // A terminal of its own, in which the shell runs that is typed into.
    let types = format!(
        r#"zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell 'PS1=; fpath+=({folder}); autoload -U compinit; compinit -u -d {dump}; echo re"ady"'
zpty -r shell seen '*ready*'
zpty -w -n shell $'reprise appro\t'
zpty -r shell seen '*approvals*'
print -r -- "$seen"
zpty -w -n shell $'li\t'
zpty -r shell seen '*list*'
print -r -- "$seen"
zpty -d shell
"#,
        folder = folder.display(),
        dump = world.home.path().join("zcompdump").display(),
    );
    let output = Command::new("timeout")
        .args(["60", "zsh", "-f", "-c", &types])
        .env("HOME", world.home.path())
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(out.contains("approvals"), "{output:?}");
    assert!(out.contains("list"), "{output:?}");
}
