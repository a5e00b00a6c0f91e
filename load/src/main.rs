//! `load [NAME …]`: measures what things cost, beside a peer in the same run, and holds it against its budget.
//!
//! Exit codes: 0 every budget is kept, 1 one is exceeded, 2 wrong usage, a fault, or a machine too busy to tell.

#![expect(clippy::print_stdout, reason = "a program for a terminal")]

mod bare;
mod bench;
mod crowd;
mod disk;
mod figures;
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

use crate::figures::Figures;
use crate::report::Report;

/// The allocator of the program, so that what is measured in this process costs what it costs there.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const USAGE: &str = "\
usage: load [--json] [--force] [--dir DIR] [NAME …]

  NAME         append commits cpu tasks reads fanout start stored history receipts sidecar replay (or replay.exact, replay.stored alone);
               when none is named
  --json       prints JSON instead of a table
  --force      gives a verdict however busy the machine is
  --dir DIR    the disk to measure; by default the one this program is on
  --program P  the `reprise` to measure; by default the one beside this program
  --events N   how long the log of `history` is; a million by default
  --figures F  a file of figures that were kept: what became worse since then is said at the end
  --keep       keeps the figures of this run there, those excepted for which the machine was too busy
";

/// What a benchmark works with.
#[derive(Debug)]
pub(crate) struct Bench {
    /// The program `reprise`.
    pub(crate) program: PathBuf,
    /// How long the log of `history` is.
    pub(crate) events: u64,
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
    events: Option<u64>,
    figures: Option<PathBuf>,
    keep: bool,
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
            "--figures" => arguments.figures = Some(path()?),
            "--keep" => arguments.keep = true,
            "--events" => {
                let number = given.next().context("a number is missing")?;
                arguments.events = Some(number.parse().with_context(|| number.clone())?);
            }
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
    if std::env::args().nth(1).as_deref() == Some(bare::COMMAND) {
        return bare::serve().await;
    }
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
            if let Err(error) = compare(&arguments, &report) {
                eprintln!("load: {error:#}");
                return ExitCode::from(2);
            }
            report.exit()
        }
        Err(error) => {
            eprintln!("load: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Says what became worse since figures were last kept, and keeps those of this run.
fn compare(arguments: &Arguments, report: &Report) -> Result<()> {
    let Some(path) = &arguments.figures else {
        return Ok(());
    };
    let kept = Figures::read(path)?;
    for line in report.worse_than(&kept) {
        eprintln!("load: {line}");
    }
    match arguments.keep {
        true => kept.keep(report.figures(), path),
        false => Ok(()),
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
    let bench = Bench {
        program,
        events: arguments.events.unwrap_or(1_000_000),
        home,
    };
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
