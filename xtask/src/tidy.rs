//! Rules that the compiler does not know.
//!
//! The edges between crates, what pure crates may pull in, a header in every file, files that belong to a module, no path
//! of somebody's machine, and coverage tables that name tests which exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::shell::{cargo, root};

/// Which of our crates each of them may depend on. A new edge is a design change: it comes alone, with its reason.
const EDGES: &[(&str, &[&str])] = &[
    ("canon", &[]),
    ("credentials", &[]),
    ("domain", &["canon"]),
    ("field", &["canon", "domain"]),
    ("receipts", &["canon", "credentials"]),
    ("sidecar", &["canon", "credentials"]),
    ("contracts", &["canon", "credentials", "domain", "yaml"]),
    ("node", &["contracts"]),
    ("wire", &["canon", "domain"]),
    ("runs", &["canon", "contracts", "domain", "receipts"]),
    ("engine", &["canon", "domain", "field", "receipts", "runs"]),
    (
        "effects",
        &["canon", "domain", "engine", "files", "runs", "yaml"],
    ),
    ("store", &["canon", "domain", "engine", "files", "receipts"]),
    (
        "server",
        &[
            "canon", "domain", "engine", "field", "receipts", "runs", "wire",
        ],
    ),
    ("conformance", &[]),
    (
        "reprise",
        &[
            "canon",
            "conformance",
            "contracts",
            "domain",
            "effects",
            "engine",
            "field",
            "files",
            "receipts",
            "runs",
            "server",
            "sidecar",
            "store",
            "wire",
            "yaml",
        ],
    ),
    (
        "simulator",
        &["canon", "domain", "engine", "field", "receipts", "runs"],
    ),
    (
        "load",
        &[
            "canon", "domain", "engine", "field", "files", "receipts", "runs", "server", "sidecar",
            "store",
        ],
    ),
    (
        "fuzzing",
        &[
            "canon",
            "contracts",
            "domain",
            "field",
            "receipts",
            "runs",
            "sidecar",
            "wire",
        ],
    ),
    ("files", &[]),
    ("yaml", &[]),
    ("testing", &[]),
    ("xtask", &[]),
];

/// Crates without clock, randomness, files, sockets and threads.
const PURE: &[&str] = &[
    "canon",
    "contracts",
    "credentials",
    "domain",
    "field",
    "receipts",
    "runs",
    "sidecar",
    "wire",
    "yaml",
];

/// Parts of the program that work without a server: they use pure crates alone.
const OFFLINE: &[&str] = &[
    "crates/cli/src/command/canonicalize.rs",
    "crates/cli/src/command/diff.rs",
    "crates/cli/src/command/replay/keys.rs",
    "crates/cli/src/command/replay/offline.rs",
    "crates/cli/src/contracts/",
    "crates/cli/src/receipt/",
    "crates/cli/src/sidecar/",
];

/// Our crates that hold a server or reach outside.
const SERVING: &[&str] = &["effects::", "engine::", "server::", "store::"];

/// What source of a pure crate does not mention, outside its tests.
const IMPURE: &[&str] = &[
    "std::fs",
    "std::net",
    "std::env",
    "std::thread",
    "std::process",
    "SystemTime::now",
    "Instant::now",
    "HashMap",
    "HashSet",
    "tokio::",
    "tracing::",
];

/// Runs every rule and lists all that is wrong.
pub(crate) fn run() -> Result<()> {
    eprintln!("==> tidy");
    let mut problems = Vec::new();
    check_edges(&mut problems)?;
    check_lints_of_pure_crates(&mut problems)?;
    let files = tracked_files()?;
    for file in &files {
        check_file(file, &mut problems)?;
    }
    check_modules(&files, &mut problems)?;
    check_coverage(&files, &mut problems)?;
    check_decisions(&files, &mut problems)?;
    if problems.is_empty() {
        return Ok(());
    }
    let plural = if problems.len() == 1 { "" } else { "s" };
    bail!(
        "tidy found {} problem{plural}:\n  {}",
        problems.len(),
        problems.join("\n  ")
    )
}

fn check_edges(problems: &mut Vec<String>) -> Result<()> {
    let output = cargo()
        .args([
            "metadata",
            "--format-version",
            "1",
            "--no-deps",
            "--offline",
        ])
        .output()
        .context("cannot run cargo metadata")?;
    let metadata: Value =
        serde_json::from_slice(&output.stdout).context("cargo metadata gave no JSON")?;
    let packages = metadata
        .get("packages")
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    let name_of = |value: &Value| {
        value
            .get("name")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let ours: BTreeSet<String> = packages.iter().map(&name_of).collect();
    for package in &packages {
        let name = name_of(package);
        let Some((_, allowed)) = EDGES.iter().find(|(crate_name, _)| *crate_name == name) else {
            problems.push(format!(
                "crate {name} is not in the list of edges (xtask/src/tidy.rs)"
            ));
            continue;
        };
        let dependencies = package
            .get("dependencies")
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default();
        for dependency in &dependencies {
            // What only tests use is no edge of the product.
            let is_product = dependency.get("kind").is_none_or(Value::is_null);
            let target = name_of(dependency);
            if is_product && ours.contains(&target) && !allowed.contains(&target.as_str()) {
                problems.push(format!(
                    "crate {name} depends on {target}, which is not a listed edge"
                ));
            }
        }
    }
    Ok(())
}

/// Clippy reads the nearest `clippy.toml` and merges nothing: each pure crate repeats the root's and adds its bans.
fn check_lints_of_pure_crates(problems: &mut Vec<String>) -> Result<()> {
    let shared = fs::read_to_string(root().join("clippy.toml"))?;
    let mut first: Option<(&str, String)> = None;
    for name in PURE {
        let path = format!("crates/{name}/clippy.toml");
        let Ok(text) = fs::read_to_string(root().join(&path)) else {
            problems.push(format!("{path}: a pure crate has lints of its own"));
            continue;
        };
        if !text.contains(&shared) || !text.contains("disallowed-methods") {
            problems.push(format!(
                "{path}: repeats the root's and adds the bans of pure crates"
            ));
        }
        match &first {
            None => first = Some((name, text)),
            Some((other, known)) if *known != text => {
                problems.push(format!("{path}: differs from the one of {other}"));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

fn tracked_files() -> Result<Vec<PathBuf>> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .context("cannot run git ls-files")?;
    let list = String::from_utf8(output.stdout).context("a file name is not UTF-8")?;
    Ok(list
        .lines()
        .map(PathBuf::from)
        .filter(|path| root().join(path).is_file())
        .collect())
}

fn check_file(file: &Path, problems: &mut Vec<String>) -> Result<()> {
    let Ok(text) = fs::read_to_string(root().join(file)) else {
        return Ok(());
    };
    let shown = file.display();
    // Written in two halves, so that this file does not find itself.
    for home in [
        concat!("/ho", "me/"),
        concat!("/ro", "ot/"),
        concat!("/wo", "rk/"),
        concat!("/Use", "rs/"),
    ] {
        let is_data = file
            .extension()
            .is_some_and(|extension| extension == "json" || extension == "lock");
        if !is_data && text.contains(home) {
            problems.push(format!(
                "{shown}: names a path of somebody's machine ({home}…)"
            ));
        }
    }
    check_words(file, &text, problems);
    if file.extension().is_none_or(|extension| extension != "rs") {
        return Ok(());
    }
    if !text.starts_with("//!") && !text.starts_with("#![") {
        problems.push(format!(
            "{shown}: does not start by saying what it owns (`//!`)"
        ));
    }
    let pure = PURE
        .iter()
        .any(|name| file.starts_with(format!("crates/{name}/src")));
    let is_test = file.file_name().is_some_and(|name| name == "tests.rs");
    if pure && !is_test {
        let product = text.split("#[cfg(test)]").next().unwrap_or_default();
        let code = product
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"));
        for line in code {
            if let Some(word) = IMPURE.iter().find(|word| line.contains(**word)) {
                problems.push(format!("{shown}: a pure crate mentions {word}"));
            }
        }
    }
    if OFFLINE
        .iter()
        .any(|path| file.to_str().is_some_and(|file| file.starts_with(path)))
    {
        for line in text.lines().filter(|line| !line.contains("base64")) {
            if let Some(word) = SERVING.iter().find(|word| line.contains(**word)) {
                problems.push(format!(
                    "{shown}: works without a server and mentions {word}"
                ));
            }
        }
    }
    if file.file_name().is_some_and(|name| name == "mod.rs") {
        problems.push(format!("{shown}: modules are named `foo.rs` beside `foo/`"));
    }
    Ok(())
}

/// Phrases that a reader stumbles over, and plain words instead.
const STUMBLES: &[(&str, &str)] = &[
    (concat!("so ", "many"), "say which number is meant"),
    (concat!("an", "ew"), "`again` or `live`"),
    (concat!("to be ", "had"), "`available`"),
    (concat!("that is ", "none"), "`is not a …`"),
    (concat!("is ", "no "), "`is not a …`"),
    (concat!("are ", "no "), "`are not …`"),
];

/// Names phrases of [`STUMBLES`] in texts that people read: documents, and string literals outside tests.
fn check_words(file: &Path, text: &str, problems: &mut Vec<String>) {
    let is = |wanted: &str| {
        file.extension()
            .is_some_and(|extension| extension == wanted)
    };
    let path = file.to_string_lossy();
    // What a workflow says is recorded: it changes with a version of the workflow, not before.
    let exempt = path.contains("tests")
        || path.contains("/suite")
        || path.starts_with("crates/runs/src/workflow/");
    if exempt || !(is("md") || is("rs")) {
        return;
    }
    for (number, line) in text.lines().enumerate() {
        let code = line.trim_start();
        if is("rs") && code.starts_with("#[cfg(test)]") {
            return;
        }
        let read: Vec<&str> = if is("md") {
            vec![line]
        } else if code.starts_with("//") {
            continue;
        } else {
            line.split('"').skip(1).step_by(2).collect()
        };
        for (phrase, instead) in STUMBLES {
            let stumbles = |text: &&str| {
                text.match_indices(phrase).any(|(at, _)| {
                    let (before, after) = (&text[..at], &text[at + phrase.len()..]);
                    let in_word = before.ends_with(char::is_alphanumeric)
                        || (!phrase.ends_with(' ') && after.starts_with(char::is_alphanumeric));
                    let idiomatic =
                        before.to_lowercase().ends_with("there ") || after.starts_with("longer");
                    !in_word && !idiomatic
                })
            };
            if read.iter().any(stumbles) {
                problems.push(format!(
                    "{}:{}: says `{phrase}`: {instead}",
                    file.display(),
                    number + 1
                ));
            }
        }
    }
}

/// Every source file is a module of the file above it: one that nothing declares is never compiled, nor its tests run.
fn check_modules(files: &[PathBuf], problems: &mut Vec<String>) -> Result<()> {
    for file in files {
        let (Some(folder), Some(name)) = (file.parent(), file.file_name()) else {
            continue;
        };
        let name = name.to_string_lossy();
        let Some(module) = name.strip_suffix(".rs") else {
            continue;
        };
        let path = file.to_string_lossy();
        let is_root = matches!(module, "main" | "lib" | "build") || path.contains("/bin/");
        // A file directly in `tests` is a program of its own.
        if is_root
            || !(path.contains("/src/") || path.contains("/tests/"))
            || folder.ends_with("tests")
        {
            continue;
        }
        let above = [
            folder.join("main.rs"),
            folder.join("lib.rs"),
            folder.with_extension("rs"),
            // A program of its own can be anywhere.
            folder.join("../../Cargo.toml"),
        ];
        let (by_name, by_path) = (format!("mod {module};"), format!("/{name}\""));
        let declared = above.iter().any(|above| {
            let text = fs::read_to_string(root().join(above)).unwrap_or_default();
            let mut lines = text.lines();
            lines.any(|line| line.ends_with(&by_name) || line.contains(&by_path))
        });
        if !declared {
            problems.push(format!("{}: no file declares this module", file.display()));
        }
    }
    Ok(())
}

/// Every decision that a comment or the name of a test cites has its row in `docs/decisions.md`.
fn check_decisions(files: &[PathBuf], problems: &mut Vec<String>) -> Result<()> {
    let table = fs::read_to_string(root().join("docs/decisions.md"))?;
    let rows = table.lines().filter_map(|line| line.strip_prefix("| "));
    let rows: BTreeSet<&str> = rows.filter_map(|row| row.split(' ').next()).collect();
    let is_number = |text: &str| {
        text.len() <= 2 && !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
    };
    let is_source = |file: &&PathBuf| file.extension().is_some_and(|ending| ending == "rs");
    for file in files.iter().filter(is_source) {
        let source = fs::read_to_string(root().join(file))?;
        for (number, line) in source.lines().enumerate() {
            let comment = line.split_once("//").map_or("", |(_, comment)| comment);
            let cited = comment
                .split(|char: char| !char.is_ascii_alphanumeric() && char != '-')
                .filter(|word| {
                    let ruling = word.strip_prefix(['A', 'B', 'U']);
                    ruling.or(word.strip_prefix("C-")).is_some_and(is_number)
                })
                .map(str::to_owned);
            let test = line
                .split_once("fn u")
                .and_then(|(_, name)| name.split_once('_'));
            let test = test.filter(|(ruling, _)| is_number(ruling));
            for ruling in cited.chain(test.map(|(ruling, _)| format!("U{ruling}"))) {
                if !rows.contains(&*ruling) {
                    let place = format!("{}:{}", file.display(), number + 1);
                    problems.push(format!(
                        "{place}: `{ruling}` has no row in docs/decisions.md"
                    ));
                }
            }
        }
    }
    Ok(())
}

/// Every test that `conformance/coverage.md` names must exist: `crate::module::test_name`.
fn check_coverage(files: &[PathBuf], problems: &mut Vec<String>) -> Result<()> {
    let table = Path::new("conformance/coverage.md");
    let Ok(text) = fs::read_to_string(root().join(table)) else {
        return Ok(());
    };
    let mut tests = BTreeSet::new();
    for file in files
        .iter()
        .filter(|file| file.extension().is_some_and(|extension| extension == "rs"))
    {
        let source = fs::read_to_string(root().join(file))?;
        for line in source.lines() {
            let line = line.trim_start();
            let line = line.strip_prefix("async ").unwrap_or(line);
            if let Some(rest) = line.strip_prefix("fn ")
                && let Some((name, _)) = rest.split_once('(')
            {
                tests.insert(name.to_owned());
            }
        }
    }
    for (number, line) in text.lines().enumerate() {
        if line.contains("(to name)") {
            problems.push(format!(
                "{}:{}: a requirement without its test",
                table.display(),
                number + 1
            ));
        }
        for name in line
            .split('`')
            .skip(1)
            .step_by(2)
            .filter(|name| name.contains("::"))
        {
            let last = name.rsplit("::").next().unwrap_or_default();
            if !tests.contains(last) {
                problems.push(format!(
                    "{}:{}: test `{name}` does not exist",
                    table.display(),
                    number + 1
                ));
            }
        }
    }
    Ok(())
}
