//! `load [NAME …]`: measures what things cost, beside a peer in the same run, and holds it against its budget.
//!
//! Exit codes: 0 every budget is kept, 1 one is exceeded, 2 wrong usage, a fault, or a machine too busy to tell.

#![expect(clippy::print_stdout, reason = "a program for a terminal")]

mod bench;
mod crowd;
mod disk;
mod http;
mod log;
mod noise;
mod program;
mod report;
mod samples;
mod script;
mod text;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use crate::report::Report;

const USAGE: &str = "\
usage: load [--json] [--force] [--dir DIR] [NAME …]

  NAME         append commits tasks reads fanout start stored history receipts sidecar replay (or replay.exact, replay.stored alone); all of them
               when none is named
  --json       prints JSON instead of a table
  --force      gives a verdict however busy the machine is
  --dir DIR    the disk to measure; by default the one this program is on
  --program P  the `reprise` to measure; by default the one beside this program
";

/// What a benchmark works with.
#[derive(Debug)]
pub(crate) struct Bench {
    /// The program `reprise`.
    pub(crate) program: PathBuf,
    home: TempDir,
}

impl Bench {
    /// Returns a path on the measured disk, gone at the end of the run.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }
}

#[derive(Debug, Default)]
struct Arguments {
    json: bool,
    force: bool,
    dir: Option<PathBuf>,
    program: Option<PathBuf>,
    names: Vec<String>,
}

fn arguments() -> Result<Arguments> {
    let mut given = std::env::args().skip(1);
    let mut arguments = Arguments::default();
    while let Some(word) = given.next() {
        let mut path = || given.next().map(PathBuf::from).context("a path is missing");
        match word.as_str() {
            "--json" => arguments.json = true,
            "--force" => arguments.force = true,
            "--dir" => arguments.dir = Some(path()?),
            "--program" => arguments.program = Some(path()?),
            name if bench::NAMES.contains(&name) || bench::PARTS.contains(&name) => {
                arguments.names.push(word);
            }
            _ => bail!("`{word}` is neither a benchmark nor an option"),
        }
    }
    if arguments.names.is_empty() {
        arguments.names = bench::NAMES.iter().map(ToString::to_string).collect();
    }
    Ok(arguments)
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = match arguments() {
        Ok(arguments) => arguments,
        Err(error) => {
            eprint!("load: {error:#}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match measure(&arguments).await {
        Ok(report) => {
            if arguments.json {
                println!("{:#}", report.json());
            } else {
                print!("{}", report.table());
            }
            report.exit()
        }
        Err(error) => {
            eprintln!("load: {error:#}");
            ExitCode::from(2)
        }
    }
}

async fn measure(arguments: &Arguments) -> Result<Report> {
    let here = std::env::current_exe().context("cannot find this program")?;
    let folder = here
        .parent()
        .context("this program is in no directory")?
        .to_owned();
    let program = match &arguments.program {
        Some(program) => program.clone(),
        None => folder.join("reprise"),
    };
    if !program.is_file() {
        bail!(
            "`{}` is not there; `cargo xtask bench` builds it",
            program.display()
        );
    }
    let dir = arguments.dir.as_ref().unwrap_or(&folder);
    let home = tempfile::Builder::new()
        .prefix("reprise-load-")
        .tempdir_in(dir)
        .with_context(|| format!("cannot write into `{}`", dir.display()))?;
    let bench = Bench { program, home };
    let mut report = Report::new(arguments.force);
    for name in &arguments.names {
        eprintln!("==> {name}");
        // A run that somebody ends early still removes its files and stops its servers.
        tokio::select! {
            result = bench::run(name, &bench, &mut report) => result.with_context(|| name.clone())?,
            _ = tokio::signal::ctrl_c() => bail!("interrupted"),
        }
    }
    Ok(report)
}
