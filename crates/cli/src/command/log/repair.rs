//! `reprise log repair`: headers in the place of what cannot be read.

use serde_json::{Value, json};
use store::{Repair, Unreadable};

use super::{check, problem};
use crate::args::LogRepairArgs;
use crate::exit::Exit;
use crate::output::{Output, Paint, Progress, inform, plural, shorten};

pub(super) fn run(args: &LogRepairArgs) -> anyhow::Result<Exit> {
    let data = args.directory.data.data.as_path();
    let progress = Progress::begin("reading the log");
    let work = match args.apply {
        true => store::repair(data),
        false => store::repairable(data),
    };
    drop(progress);
    let repair = work.map_err(problem)?;
    let is_whole = repair.is_empty();
    // A database that cannot be mended may not let itself be checked either.
    let is_mended = repair.unmended.is_empty();
    let left = match (args.apply || is_whole) && is_mended {
        true => check(data)?.1,
        false => Vec::new(),
    };
    let is_good = left.is_empty() && (args.apply || is_whole) && is_mended;
    let mut out = Output::stdout();
    if args.directory.json {
        out.json(&json!({
            "applied": args.apply,
            "events": repair.events.iter().map(as_json).collect::<Vec<_>>(),
            "blobs": repair.blobs,
            "database": repair.database,
            "notes": repair.notes,
            "flaws": repair.flaws,
            "idempotency_keys": repair.claims.iter().map(|position| position.0).collect::<Vec<_>>(),
            "head": repair.head,
            "unmended": repair.unmended,
            "kept_in": repair.aside.as_ref().map(|folder| folder.display().to_string()),
            "problems": left,
        }))?;
    } else {
        for problem in &repair.database {
            out.line(format_args!("database: {}", shorten(problem, 300)))?;
        }
        for found in &repair.events {
            out.line(line(found))?;
        }
        for digest in &repair.blobs {
            out.line(format_args!(
                "blob `{digest}`: its bytes hash to something else"
            ))?;
        }
        for note in &repair.notes {
            out.line(format_args!("database: {note} is missing"))?;
        }
        for flaw in &repair.flaws {
            out.line(format_args!("database: {flaw}"))?;
        }
        if let Some(first) = repair.claims.first() {
            out.line(format_args!(
                "{} idempotency keys are missing, the first that of the event at position {}",
                repair.claims.len(),
                first.0
            ))?;
        }
        if repair.head {
            out.line("the file `head` is missing or damaged")?;
        }
        for problem in &left {
            let text = shorten(problem, 500);
            out.line(out.paint(Paint::Bad, &text))?;
        }
        report(args.apply, is_whole, &repair, left.len());
    }
    Ok(if is_good { Exit::Ok } else { Exit::No })
}

fn as_json(found: &Unreadable) -> Value {
    json!({
        "position": found.position.0,
        "sha256": found.stored,
        "event": found.kind,
        "problem": found.problem,
    })
}

fn line(found: &Unreadable) -> String {
    let what = match &found.kind {
        Some(kind) => format!("`{kind}` keeps its envelope"),
        None => "not even its envelope can be read".to_owned(),
    };
    let problem = shorten(&found.problem, 200);
    format!(
        "event at position {}: {what}; {} was stored ({problem})",
        found.position.0, found.stored
    )
}

fn report(applied: bool, is_whole: bool, repair: &Repair, left: usize) {
    let (events, blobs) = (repair.events.len(), repair.blobs.len());
    if !repair.unmended.is_empty() {
        for problem in &repair.unmended {
            inform(format_args!("still damaged: {}", shorten(problem, 300)));
        }
        inform(
            "the database is damaged where nothing else tells all of what was there, and nothing was replaced: restore a backup. Without one, \
             `sqlite3 reprise.db .recover` saves rows, which this program does not accept as a log",
        );
        return;
    }
    if !repair.database.is_empty() {
        inform(match applied {
            true => {
                "the indexes were rebuilt from their tables, and everything derived from events was derived again"
            }
            false => {
                "the indexes would be rebuilt from their tables, and everything derived from events derived again"
            }
        });
    }
    if !repair.notes.is_empty() {
        inform(match applied {
            true => "the notes were restored from the rest of the log",
            false => "the notes would be restored from the rest of the log",
        });
    }
    if !repair.flaws.is_empty() {
        inform(match applied {
            true => {
                "what was changed in the database has the form again that this program gives it"
            }
            false => {
                "what was changed in the database would get the form again that this program gives it"
            }
        });
    }
    if !repair.claims.is_empty() {
        inform(match applied {
            true => {
                "that idempotency keys are lost is noted: requests of that time are carried out again when they are repeated"
            }
            false => "that idempotency keys are lost would be noted; they do not come back",
        });
    }
    if repair.head {
        inform(match applied {
            true => {
                "the file `head` was written from the log as it is: whether events are missing after its end cannot be known"
            }
            false => {
                "the file `head` would be written from the log as it is: whether events are missing after its end cannot be known"
            }
        });
    }
    if is_whole {
        inform("everything can be read: there is nothing to repair");
    } else if let Some(folder) = &repair.aside {
        inform(format_args!(
            "{events} events became headers and {blobs} blobs were taken out; what was stored is kept in `{}`",
            folder.display()
        ));
    } else if !applied {
        inform(format_args!(
            "{events} events would become headers and {blobs} blobs would be taken out; nothing was changed. \
             Restore a backup if there is one, or run it again with --apply"
        ));
    }
    match left {
        0 if applied || is_whole => inform("`log verify` finds nothing wrong"),
        0 => {}
        left => inform(format_args!(
            "`log verify` finds {} that a repair does not fix",
            plural(left, "problem")
        )),
    }
}
