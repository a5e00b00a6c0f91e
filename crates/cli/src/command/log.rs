//! `reprise log`: checks and exports of a data directory, also while a server is running; pruning, without one; imports,
//! through one.

pub(crate) mod import;
mod recover;
mod repair;

use std::fmt::{Display, Write};
use std::path::Path;

use domain::Timestamp;
use engine::port::Clock;
use serde_json::{Value, json};
use server::world::SystemClock;
use store::{AuditError, Content, Evidence, Migration, SqliteStore};

use crate::args::{DirectoryArgs, LogCommand, LogExportArgs, LogPruneArgs, LogRebuildArgs};
use crate::config::{self, Flags};
use crate::exit::{Exit, OrHint, Problem};
use crate::output::{Output, Paint, Progress, inform, plural, shorten};
use crate::signing;

const DAY_MICROS: i64 = 24 * 60 * 60 * 1_000_000;

/// Runs one of them.
pub(crate) fn run(command: LogCommand) -> anyhow::Result<Exit> {
    match command {
        LogCommand::Verify(args) => verify(&args),
        LogCommand::Rebuild(args) if args.write => rebuild_and_write(&args),
        LogCommand::Rebuild(args) => rebuild(&args),
        LogCommand::Migrate(args) => migrate(&args),
        LogCommand::Export(args) => export(&args),
        LogCommand::Import(args) => crate::wait(import::run(&args)),
        LogCommand::Recover(args) => recover::run(&args),
        LogCommand::Repair(args) => repair::run(&args),
        LogCommand::Sweep(args) => sweep(&args),
        LogCommand::Prune(args) => prune(args),
    }
}

fn verify(args: &DirectoryArgs) -> anyhow::Result<Exit> {
    let report = with_progress("events checked", |progress| {
        store::verify(&args.data.data, progress)
    })?;
    let problems = problems(&args.data.data, &report);
    if report.keys_without_events > 0 {
        inform(format_args!(
            "{} API keys were created before keys had events: no event says who created them or what they may do",
            report.keys_without_events
        ));
    }
    if report.without_head {
        inform(
            "there is no file `head` yet: until the next start writes it, nothing would show that the end of the log is missing",
        );
    }
    if report.copied {
        inform(format_args!(
            "checked a copy in a temporary folder, because `{}` holds a write-ahead log and cannot be written",
            args.data.data.display()
        ));
    }
    let counts = json!({
        "events": report.events,
        "documents": report.documents,
        "blobs": report.blobs,
        "receipts": report.receipts,
        "pruned": report.pruned,
        "repaired": report.repaired,
        "lost_blobs": report.lost_blobs,
        "copied": report.copied,
        "head": !report.without_head,
        "keys_without_events": report.keys_without_events,
    });
    let mut summary = format!(
        "{}, {}, {} and {} are what they were when they were written",
        plural(report.events, "event"),
        plural(report.documents, "document"),
        plural(report.blobs, "blob"),
        plural(report.receipts, "receipt")
    );
    if report.pruned > 0 {
        let pruned = report.pruned;
        write!(
            summary,
            "; {pruned} of the events are headers that pruning left"
        )?;
    }
    if report.repaired + report.lost_blobs > 0 {
        write!(
            summary,
            "; {} of the events and {} blobs could not be read, and a repair noted them",
            report.repaired, report.lost_blobs
        )?;
    }
    let exit = judge(args.json, counts, &problems, &summary)?;
    advise(&report);
    Ok(exit)
}

/// Names the command that mends what is wrong with documents: they are a fold of the events, and can be made again.
fn advise(report: &store::Report) {
    let is_document =
        |problem: &store::Problem| matches!(problem.what, store::ProblemSubject::Document(..));
    if report.problems.iter().any(is_document) {
        inform(
            "documents can be made again from their events: `reprise log rebuild --write`, while no server runs",
        );
    }
}

fn migrate(args: &DirectoryArgs) -> anyhow::Result<Exit> {
    let progress = Progress::begin("reading the data directory");
    let migrated = store::migrate(&args.data.data, &mut |step| {
        if let Migration::Copied(events) = step {
            progress.count("events written", events);
        }
    });
    drop(progress);
    let migrated = migrated.map_err(|error| problem(AuditError::Open(error)))?;
    let format = store::FORMAT_VERSION;
    if args.json {
        let result = json!({
            "format": format,
            "migrated": migrated.is_some(),
            "events": migrated.as_ref().map(|migrated| migrated.events),
            "backup": migrated.as_ref().map(|migrated| migrated.backup.display().to_string()),
        });
        Output::stdout().json(&result)?;
        return Ok(Exit::Ok);
    }
    match migrated {
        None => inform(format_args!("the directory already has format {format}")),
        Some(migrated) => inform(format_args!(
            "{} events have format {format} now; the directory is kept as it was in `{}`",
            migrated.events,
            migrated.backup.display()
        )),
    }
    Ok(Exit::Ok)
}

fn rebuild_and_write(args: &LogRebuildArgs) -> anyhow::Result<Exit> {
    let LogRebuildArgs {
        directory: args, ..
    } = args;
    let (rebuilt, backup) = with_progress("events folded", |progress| {
        store::rebuild_and_write(&args.data.data, progress)
    })?;
    let Some(backup) = backup else {
        inform("nothing was written: an event cannot be folded");
        return judge(args.json, json!({"written": false}), &rebuilt.problems, "");
    };
    let differed = rebuilt.problems.len();
    if args.json {
        let result = json!({
            "written": true,
            "events": rebuilt.events,
            "documents": rebuilt.documents,
            "differed": differed,
            "backup": backup.display().to_string(),
        });
        Output::stdout().json(&result)?;
    } else {
        inform(format_args!(
            "stored {} documents as {} events say, {differed} of them differently than before; \
             the directory is kept as it was in `{}`",
            rebuilt.documents,
            rebuilt.events,
            backup.display()
        ));
    }
    Ok(Exit::Ok)
}

fn rebuild(args: &LogRebuildArgs) -> anyhow::Result<Exit> {
    let LogRebuildArgs {
        directory: args, ..
    } = args;
    let rebuilt = with_progress("events folded", |progress| {
        store::rebuild(&args.data.data, progress)
    })?;
    let counts = json!({
        "events": rebuilt.events,
        "documents": rebuilt.documents,
        "pruned": rebuilt.pruned,
        "kept": rebuilt.kept,
        "whole_from": rebuilt.whole_from.map(|position| position.0),
    });
    let mut summary = format!(
        "{} events fold to the same {} documents",
        rebuilt.events, rebuilt.documents
    );
    if let Some(from) = rebuilt.whole_from {
        write!(
            summary,
            "; {} events are pruned and {} documents that depend on them were kept as they are; \
             the log is whole from position {} on",
            rebuilt.pruned, rebuilt.kept, from.0
        )?;
    }
    judge(args.json, counts, &rebuilt.problems, &summary)
}

fn export(args: &LogExportArgs) -> anyhow::Result<Exit> {
    let data = args.directory.data.data.as_path();
    if args.out.exists() {
        return Err(Problem::new(
            format!("`{}` already exists", args.out.display()),
            "an export writes a new folder and changes no other: name one that is not there yet",
        )
        .into());
    }
    let keys = signing::public_keys(data)?.map(|keys| keys.to_jwks());
    // Read before the events: whatever it covers is among them.
    let checkpoint = checkpoint(data)?;
    let sealer = signing::sealer(data)?;
    let seal = sealer
        .as_ref()
        .map(|seal| seal as &dyn Fn(&[u8]) -> std::io::Result<String>);
    let evidence = Evidence {
        keys: keys.as_deref(),
        checkpoint: checkpoint.as_deref(),
        seal,
        content: match args.auditor {
            true => Content::Public,
            false => Content::Whole,
        },
    };
    let exported = with_progress("events written", |progress| {
        store::export(data, &args.out, evidence, progress)
    })?;
    let result = json!({
        "events": exported.events,
        "receipts": exported.receipts,
        "blobs": exported.blobs,
        "pruned": exported.pruned,
        "withheld": exported.withheld,
        "events_sha256": exported.events_sha256,
    });
    if args.directory.json {
        Output::stdout().json(&result)?;
    } else {
        inform(format_args!(
            "wrote {}, {} and {} to `{}`; events.jsonl has {}",
            plural(exported.events, "event"),
            plural(exported.receipts, "receipt"),
            plural(exported.blobs, "blob"),
            args.out.display(),
            exported.events_sha256
        ));
        if args.auditor {
            inform(format_args!(
                "{} blobs that are not public were left out, and the manifest names them",
                exported.withheld
            ));
        }
    }
    Ok(Exit::Ok)
}

fn prune(args: LogPruneArgs) -> anyhow::Result<Exit> {
    let flags = Flags {
        data: args.data,
        ..Flags::default()
    };
    let settings = config::of_process(args.config.as_deref(), flags)?;
    let days = days(args.older_than_days, settings.retention())?;
    let now = SystemClock.now().as_micros();
    let before = Timestamp::from_micros(now.saturating_sub(i64::from(days) * DAY_MICROS));
    let progress = Progress::begin("reading the log");
    let work = if args.dry_run {
        store::prunable
    } else {
        store::prune
    };
    let result = work(&settings.data, before, &mut |what, done| {
        progress.count(what, done);
    });
    drop(progress);
    let pruned = result.map_err(problem)?;
    let exit = match pruned.problems.is_empty() {
        true => Exit::Ok,
        false => Exit::No,
    };
    let mut out = Output::stdout();
    if args.json {
        out.json(&json!({
            "dry_run": args.dry_run,
            "older_than_days": days,
            "tasks": pruned.tasks,
            "events": pruned.events,
            "blobs": pruned.blobs,
            "bytes": pruned.bytes,
            "in_use": pruned.in_use,
            "problems": pruned.problems,
        }))?;
        return Ok(exit);
    }
    let (verb, becomes, goes) = match args.dry_run {
        true => ("would prune", "would become", "would go"),
        false => ("pruned", "became", "went"),
    };
    if days == 0 {
        let did = if args.dry_run { "are" } else { "were" };
        inform(format_args!(
            "0 days: all tasks that have finished {did} meant, whatever their age"
        ));
    }
    out.line(format_args!(
        "{verb} {}: {} {becomes} headers, {} {goes}, {} in all",
        plural(pruned.tasks, "task"),
        plural(pruned.events, "event"),
        plural(pruned.blobs, "blob"),
        plural(pruned.bytes, "byte")
    ))?;
    if pruned.in_use > 0 {
        inform(format_args!(
            "{} tasks were left alone, because a replay of them has not ended",
            pruned.in_use
        ));
    }
    for problem in &pruned.problems {
        out.line(out.paint(Paint::Bad, &shorten(problem, 500)))?;
    }
    Ok(exit)
}

fn sweep(args: &DirectoryArgs) -> anyhow::Result<Exit> {
    let progress = Progress::begin("reading the log");
    let result = store::sweep(&args.data.data, &mut |what, done| {
        progress.count(what, done);
    });
    drop(progress);
    let swept = result.map_err(problem)?;
    let mut out = Output::stdout();
    if args.json {
        out.json(&json!({"blobs": swept.blobs, "bytes": swept.bytes}))?;
    } else {
        out.line(format_args!(
            "removed {} that nothing names, {} in all",
            plural(swept.blobs, "blob"),
            plural(swept.bytes, "byte")
        ))?;
    }
    Ok(Exit::Ok)
}

/// Decides how old is old enough: never younger than what the server promises to keep.
fn days(asked: Option<u32>, retention: Option<u32>) -> anyhow::Result<u32> {
    match (asked, retention) {
        (Some(asked), Some(retention)) if asked < retention => Err(Problem::new(
            format!(
                "`--older-than-days {asked}` is less than retention_days, which is {retention}"
            ),
            "events are promised to stay that long; lower the setting `retention_days` first",
        )
        .into()),
        (Some(days), _) | (None, Some(days)) => Ok(days),
        (None, None) => Err(Problem::new(
            "no retention is set: everything is kept forever",
            "give --older-than-days, or set `retention_days` and name the file with --config",
        )
        .into()),
    }
}

/// Returns the newest signed checkpoint of a data directory.
fn checkpoint(directory: &Path) -> anyhow::Result<Option<String>> {
    let store = SqliteStore::open_reader(directory).map_err(|error| {
        let hint = error.hint();
        Problem::new(error.to_string(), hint)
    })?;
    crate::wait(async {
        signing::agree_with_log(directory, &store).await?;
        engine::newest_checkpoint(&store).await.or_hint(
            "the newest checkpoint cannot be read",
            "`reprise log verify` checks the data directory",
        )
    })
}

/// Tells each problem on its own line, or that there is none.
fn judge(
    as_json: bool,
    counts: Value,
    problems: &[impl Display],
    summary: &str,
) -> anyhow::Result<Exit> {
    let mut out = Output::stdout();
    if as_json {
        let mut value = counts;
        if let Value::Object(members) = &mut value {
            let texts = problems.iter().map(ToString::to_string).collect();
            members.insert("problems".to_owned(), texts);
        }
        out.json(&value)?;
    } else {
        for problem in problems {
            let text = crate::output::shorten(&problem.to_string(), 500);
            out.line(out.paint(Paint::Bad, &text))?;
        }
    }
    if problems.is_empty() {
        if !as_json {
            out.line(summary)?;
        }
        return Ok(Exit::Ok);
    }
    inform(format_args!("{} found", plural(problems.len(), "problem")));
    Ok(Exit::No)
}

/// Runs a long job with a sign of life.
fn with_progress<T>(
    what: &'static str,
    job: impl FnOnce(&mut dyn FnMut(u64, u64)) -> Result<T, AuditError>,
) -> anyhow::Result<T> {
    let progress = Progress::begin("opening the data directory");
    let result = job(&mut |done, all| progress.count_of(what, done, all));
    drop(progress);
    result.map_err(problem)
}

/// Checks a data directory, for commands that do so on the way. Returns what was checked,
/// and what `log verify` finds wrong.
pub(crate) fn check(directory: &Path) -> anyhow::Result<(store::Report, Vec<String>)> {
    let report = with_progress("events checked", |progress| {
        store::verify(directory, progress)
    })?;
    let problems = problems(directory, &report);
    advise(&report);
    Ok((report, problems))
}

/// Returns what is wrong with a data directory: with its log, and with its signing keys.
fn problems(directory: &Path, report: &store::Report) -> Vec<String> {
    let mut problems: Vec<String> = report.problems.iter().map(ToString::to_string).collect();
    // A damaged seed is a key like any other: everything would be signed, and nothing would verify.
    if !signing::is_readable(directory) {
        inform("the signing keys were not checked, because this user may not read them");
    } else if let Err(error) = signing::agree(directory, report.names_keys, report.signing_keys) {
        problems.push(format!("signing keys: {error:#}"));
    }
    problems
}

fn problem(error: AuditError) -> anyhow::Error {
    let hint = match &error {
        AuditError::Open(error) => error.hint(),
        AuditError::File { .. } => "name a place that does not exist yet, on a disk with room",
        _ => "restore the data directory from a backup if the disk is sound",
    };
    Problem::new(error.to_string(), hint).into()
}

/// Exports a data directory into `export` of a temporary folder: a consistent copy, also while a server writes to it.
///
/// # Errors
/// It cannot be read, or there is no room.
pub(crate) fn consistent_copy(data: &Path) -> anyhow::Result<tempfile::TempDir> {
    let aside = tempfile::tempdir().or_hint("a temporary folder", "check the disk")?;
    let out = aside.path().join("export");
    let progress = Progress::begin("opening the data directory");
    let mut say = |done, all| progress.count_of("events copied", done, all);
    store::export(data, &out, store::Evidence::default(), &mut say).or_hint(
        format_args!("`{}`", data.display()),
        "`reprise log verify` says what is wrong with it",
    )?;
    Ok(aside)
}
