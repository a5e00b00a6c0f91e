//! What the documents tell people to paste: into bash, and into zsh as it is on a fresh machine.
//!
//! Shells are interactive here: only then does zsh take `#` for a word, and bash `!` for history.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use testing::process::without_settings;

use crate::world::World;

/// The blocks that nobody pastes here, by document and beginning, and why.
const NOT_PASTED: &[(&str, &str, &str)] = &[
    (
        "README",
        "cargo run --release",
        "builds everything; whoever runs the tests does",
    ),
    (
        "README",
        "cargo install",
        "builds everything with all optimisations",
    ),
    (
        "README",
        "reprise serve",
        "does not end; the tour has its server already",
    ),
    (
        "running",
        "cargo build --profile dist",
        "builds everything, and installs as root",
    ),
    (
        "node",
        "cargo xtask node",
        "builds the package; its own tests do",
    ),
];

/// Returns the documents that people read, by name.
fn documents() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let docs = std::fs::read_dir(root.join("docs")).unwrap();
    let docs = docs.map(|file| file.unwrap().path());
    let docs = docs.filter(|file| file.extension().is_some_and(|kind| kind == "md"));
    let own = ["README.md", "CONTRIBUTING.md"].map(|name| root.join(name));
    let mut documents: Vec<(String, String)> = docs
        .chain(own)
        .map(|file| {
            let name = file.file_stem().unwrap().to_string_lossy().into_owned();
            (name, std::fs::read_to_string(&file).unwrap())
        })
        .collect();
    documents.sort();
    assert!(documents.len() > 12, "{documents:?}");
    documents
}

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
    without_settings(&mut command)
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

/// Returns what a document has to paste, in order.
fn pasted(name: &str) -> Vec<String> {
    let documents = documents();
    let (_, text) = documents.iter().find(|(found, _)| found == name).unwrap();
    let is_left_out = |block: &str| {
        let mut left = NOT_PASTED.iter();
        left.any(|(of, begins, _)| *of == name && block.starts_with(begins))
    };
    let blocks = blocks(text).into_iter();
    let blocks = blocks.filter(|block| !is_left_out(block));
    blocks.map(str::to_owned).collect()
}

/// Pastes all blocks of a document, twice in one folder: nothing in them counts on being the first.
fn paste_document(name: &str, shell: &[&str]) -> String {
    let world = World::new();
    let home = world.home.path();
    let serve = || world.serve_with(&["--listen", "127.0.0.1:0", "--examples"]);
    let (server, times) = match name {
        "README" | "memory" | "receipts" | "replay" => (Some(serve()), 2),
        // Its first block makes a repository, and the second capture would find the first.
        "replay-blocks" => {
            std::fs::create_dir(home.join("repository")).unwrap();
            (Some(serve()), 1)
        }
        // They start servers of their own.
        "agents" => (None, 2),
        "running" => (Some(serve()), 2),
        "contracts" => {
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/refund-desk/.");
            let copied = Command::new("cp").args(["-r", folder]).arg(home).status();
            assert!(copied.unwrap().success());
            (None, 2)
        }
        other => panic!("nobody pastes the blocks of {other}: say how, or why not"),
    };
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port().to_string();
    drop(free);
    let address = server.as_ref().map(|server| server.address());
    let address = address.unwrap_or_default();
    let blocks = pasted(name).into_iter().map(|block| {
        // Ports that somebody else may have.
        let block = block.replace("localhost:8080", &address);
        let block = block.replace("127.0.0.1:8080", &address);
        block.replace(":8443", &format!(":{port}"))
    });
    let mut blocks: Vec<String> = blocks.collect();
    if name == "replay-blocks" {
        blocks.insert(0, "cd repository\n".to_owned());
    }
    let mut all = String::new();
    for _ in 0..times {
        all = paste(&world, shell, &blocks);
    }
    all
}

/// What must come of the blocks of each document.
const COMES: &[(&str, &[&str])] = &[
    (
        "README",
        &["COMPLETED", "denied", "Not yet.", "signed by", "reviewer@1"],
    ),
    ("agents", &["The note has three words."]),
    (
        "contracts",
        &[
            "2 cases, 0 failed",
            "equal to the source",
            "\"verdict\":\"allow\"",
            "\"status\":\"allowed\"",
        ],
    ),
    ("memory", &["is resolved", "\"status\":\"accepted\""]),
    (
        "receipts",
        &["signed by", "nobody was asked for an approval"],
    ),
    (
        "replay",
        &["the same bytes", "Roll back to Tuesday's build"],
    ),
    (
        "replay-blocks",
        &[
            "clean: 5 of 5 ok",
            "clean: 7 of 7 ok",
            "equal to the source",
        ],
    ),
    ("running", &["no tasks", "auditor"]),
];

fn paste_all(shell: &[&str]) {
    for (name, words) in COMES {
        let all = paste_document(name, shell);
        for words in *words {
            assert!(all.contains(words), "{name}: no `{words}`:\n{all}");
        }
    }
}

#[test]
fn what_readme_and_documents_say_pastes_into_bash() {
    paste_all(BASH);
}

#[test]
fn what_readme_and_documents_say_pastes_into_zsh() {
    if let Some(_running) = zsh() {
        paste_all(ZSH);
    }
}

/// Every block is pasted, or somebody has said why not; and nothing is excused that is not there.
#[test]
fn no_block_is_forgotten() {
    let documents = documents();
    for (name, text) in &documents {
        let is_pasted = COMES.iter().any(|(of, _)| of == name);
        let count = pasted(name).len();
        assert!(
            is_pasted || count == 0,
            "{count} blocks of {name} are pasted nowhere"
        );
        let prompts = text.matches("```bash\n").count() + text.matches("```shell\n").count();
        assert_eq!(prompts, 0, "{name}: blocks to paste begin with ```sh");
    }
    for (name, begins, _) in NOT_PASTED {
        let (_, text) = documents.iter().find(|(found, _)| found == name).unwrap();
        let found = blocks(text).iter().any(|block| block.starts_with(begins));
        assert!(found, "{name} has no block that begins with `{begins}`");
    }
}

/// Whoever waits for a server that cannot start is told so and has the shell back.
#[test]
fn an_example_whose_port_is_taken_ends() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let world = World::new();
    let block = pasted("agents")
        .remove(0)
        .replace("sleep 0.2", "sleep 0.01");
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
    for (name, text) in documents() {
        for block in blocks(&text) {
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
