//! `reprise contracts backtest`: recorded runs judged again under other contracts.
//!
//! Reads bundles, exports and data directories; the judging is the library's. A run is judged as it went: the first
//! call that would have been blocked is what these contracts change, the later ones may not have happened then.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use canon::Digest;
use contracts::backtest::{Backtested, CallVerdict, Told, Verdicts, backtest};
use contracts::wire::{Reply, Wire, WireRequest};
use contracts::{Compiled, Executors, OfferedTool, Options, Rules, json as exact};
use domain::{Event, Timestamp};
use runs::replay::{Bundle, Exchange, Log, Source, exchanges};
use serde_json::{Value, json};

use super::BacktestArgs;
use super::files::{Folder, read_text};
use crate::exit::{Exit, OrHint, Problem};
use crate::output::{Output, Paint, Table, many, printable, talk};

/// A judged run.
struct Judged {
    task: String,
    started: Timestamp,
    verdicts: Verdicts,
}

/// Runs that were found, and how many could not be read or lie before the date.
#[derive(Default)]
struct Found {
    judged: Vec<Judged>,
    without_calls: usize,
    earlier: usize,
    /// Replays: they repeat runs that are judged themselves.
    replays: usize,
    unreadable: Vec<String>,
}

pub(super) fn run(args: &BacktestArgs) -> anyhow::Result<Exit> {
    let folder = Folder::read(&args.contracts)?;
    let compiled = match folder.compile() {
        Ok(compiled) => Arc::new(compiled),
        Err(error) => {
            for finding in error.findings() {
                talk(printable(&finding.to_string()));
            }
            let hint = "`reprise contracts check` shows the same findings";
            return Err(Problem::new("the contracts do not compile", hint).into());
        }
    };
    let since = args.since;
    let rules = rules(args, &compiled)?;
    let mut found = Found::default();
    for path in &args.runs {
        read(path, &rules, since, &mut found)?;
    }
    if found.judged.is_empty() && found.without_calls == 0 {
        let hint = "name bundles (`reprise task export`), an export (`reprise log export`) or a data directory";
        let message = format!(
            "no run to judge: {} could not be read, {} began earlier",
            found.unreadable.len(),
            found.earlier
        );
        return Err(Problem::new(message, hint).into());
    }
    found
        .judged
        .sort_by(|a, b| (a.started, &a.task).cmp(&(b.started, &b.task)));
    print(args, &compiled, &found)
}

fn rules(args: &BacktestArgs, compiled: &Arc<Compiled>) -> anyhow::Result<Rules> {
    let mut options = Options::new("backtest");
    // What became of a call is taken from the record.
    options.executors = Executors::All;
    options.answers_checkpoints = true;
    options.labels.clone_from(&args.labels);
    if let Some(file) = &args.principal {
        let text = read_text(file)?;
        let principal = exact::read(&text, exact::Limits::PRINCIPAL, exact::Numbers::Any)
            .or_hint(format_args!("`{}`", file.display()), "one JSON value")?;
        options.principal = Some(principal);
    }
    Rules::new(Arc::clone(compiled), options).or_hint(
        "the contracts cannot judge these runs",
        "a record does not hold who called: give --principal FILE where policies ask for it",
    )
}

/// Reads whatever lies at a path.
fn read(
    path: &Path,
    rules: &Rules,
    since: Option<Timestamp>,
    found: &mut Found,
) -> anyhow::Result<()> {
    if path.join("events.jsonl").is_file() {
        return read_export(path, rules, since, found);
    }
    if path.join("format").is_file() {
        let aside = crate::command::log::consistent_copy(path)?;
        let out = aside.path().join("export");
        return read_export(&out, rules, since, found);
    }
    if path.is_dir() {
        let hint = "name a folder that can be read";
        let shown = format!("`{}`", path.display());
        let mut files: Vec<PathBuf> = Vec::new();
        for entry in fs::read_dir(path).or_hint(&shown, hint)? {
            files.push(entry.or_hint(&shown, hint)?.path());
        }
        files.sort();
        for file in files.iter().filter(|file| file.is_file()) {
            match crate::command::replay::read_source(file) {
                Ok(source) => judge(&source, rules, since, found),
                Err(_) => found.unreadable.push(file.display().to_string()),
            }
        }
        return Ok(());
    }
    let source = crate::command::replay::read_source(path)?;
    judge(&source, rules, since, found);
    Ok(())
}

fn read_export(
    folder: &Path,
    rules: &Rules,
    since: Option<Timestamp>,
    found: &mut Found,
) -> anyhow::Result<()> {
    let events = read_text(&folder.join("events.jsonl"))?;
    let mut tasks: BTreeMap<String, Vec<Arc<[u8]>>> = BTreeMap::new();
    let mut replays = BTreeSet::new();
    for line in events.lines() {
        let event = Event::parse(line.as_bytes()).ok();
        if let Some(mark) = event.as_ref().and_then(|event| event.replay.as_ref()) {
            replays.insert(mark.replay_task_id.to_string());
        }
        if let Some(task) = event.and_then(|event| event.task_id) {
            tasks
                .entry(task.to_string())
                .or_default()
                .push(line.as_bytes().into());
        }
    }
    found.replays += replays.len();
    for (task, lines) in tasks {
        if replays.contains(&task) {
            continue;
        }
        let mut log = Log::default();
        if log.extend(lines).is_err() || !log.is_ended() {
            found
                .unreadable
                .push(format!("{task} (not ended, or damaged)"));
            continue;
        }
        let blobs = log.blobs_named().into_iter();
        let blobs = blobs.filter_map(|digest| Some((digest, read_blob(folder, digest)?)));
        let source = Bundle::of(log, blobs.collect(), None).and_then(Bundle::into_source);
        match source {
            Ok(source) => judge(&source, rules, since, found),
            Err(error) => found.unreadable.push(format!("{task} ({error})")),
        }
    }
    Ok(())
}

fn read_blob(folder: &Path, digest: Digest) -> Option<Vec<u8>> {
    let name = digest.to_string();
    let hex = name.rsplit(':').next().unwrap_or(&name);
    let bytes = fs::read(folder.join("blobs").join(hex)).ok()?;
    // What is not what its name says is not there.
    (canon::sha256(&bytes) == digest).then_some(bytes)
}

fn judge(source: &Source, rules: &Rules, since: Option<Timestamp>, found: &mut Found) {
    let Some(started) = source.event(0).map(|event| event.created_at) else {
        return;
    };
    if since.is_some_and(|since| started < since) {
        found.earlier += 1;
        return;
    }
    if source.replays().is_some() {
        found.replays += 1;
        return;
    }
    let told = tell(rules, &exchanges(source));
    if !told
        .iter()
        .any(|told| matches!(told, Told::Answered { .. } | Told::Gap { .. }))
    {
        found.without_calls += 1;
        return;
    }
    let verdicts = backtest(rules, started, &told);
    if verdicts.calls.is_empty() && verdicts.gaps.is_empty() {
        found.without_calls += 1;
        return;
    }
    found.judged.push(Judged {
        task: source.task_id.to_string(),
        started,
        verdicts,
    });
}

fn dollars(micros: u64) -> Option<contracts::Decimal> {
    let micros = contracts::Decimal::parse(&micros.to_string()).ok()?;
    Some(micros.shifted_right(6))
}

/// Puts what a run tells into the words of the library.
fn tell(rules: &Rules, exchanges: &[Exchange]) -> Vec<Told> {
    let gap = |what: &str| Told::Gap {
        what: what.to_owned(),
    };
    let request = WireRequest::read(
        Wire::OpenAiChat,
        br#"{"model":"recorded","messages":[]}"#,
        &std::collections::BTreeSet::new(),
    );
    let mut told = Vec::new();
    // An agent without a list of tools offered none.
    if !exchanges
        .iter()
        .any(|exchange| matches!(exchange, Exchange::Tools(_)))
    {
        told.push(Told::Offered(Vec::new()));
    }
    for exchange in exchanges {
        told.push(match exchange {
            Exchange::Tools(None) => gap("the offered tools"),
            Exchange::Tools(Some(list)) => Told::Offered(offered(list)),
            Exchange::Answered { response: None, .. } => gap("an answer of the model"),
            Exchange::Answered {
                at,
                response: Some(response),
                withheld,
                cost_micros,
            } => {
                let mut response = response.clone();
                write_empty_arguments(&mut response);
                let bytes = response.to_string().into_bytes();
                match Reply::read(&request, &bytes, false, false) {
                    Ok(reply) if *withheld && reads_text(rules, &reply) => {
                        gap("the text beside a call")
                    }
                    Ok(reply) => Told::Answered {
                        at: *at,
                        response: reply.response().clone(),
                        cost: cost_micros.and_then(dollars),
                    },
                    Err(error) => gap(&format!("an answer of the model: {error}")),
                }
            }
            Exchange::Ended {
                call_id,
                ok,
                output,
            } => Told::Ended {
                call_id: call_id.clone(),
                ok: *ok,
                output: output.clone(),
            },
        });
    }
    told
}

/// Says whether the contracts look at the text beside the calls of an answer.
fn reads_text(rules: &Rules, reply: &Reply) -> bool {
    let mut calls = reply.response().calls.iter();
    calls.any(|call| rules.compiled().reads_content(&call.name))
}

/// A call without arguments is made with none, as the agent makes it.
fn write_empty_arguments(response: &mut Value) {
    let calls = response.pointer_mut("/choices/0/message/tool_calls");
    for call in calls.and_then(Value::as_array_mut).into_iter().flatten() {
        let arguments = call.pointer_mut("/function/arguments");
        if let Some(Value::String(written)) = arguments
            && written.trim().is_empty()
        {
            *written = "{}".to_owned();
        }
    }
}

fn offered(list: &Value) -> Vec<OfferedTool> {
    let tools = list
        .get("tools")
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    let tools = tools.filter_map(|tool| {
        let mut offered = OfferedTool::named(tool.get("name")?.as_str()?);
        offered.schema = tool.get("parameters").and_then(|schema| {
            exact::read(
                &schema.to_string(),
                exact::Limits::MESSAGE,
                exact::Numbers::Any,
            )
            .ok()
        });
        Some(offered)
    });
    tools.collect()
}

fn print(args: &BacktestArgs, compiled: &Compiled, found: &Found) -> anyhow::Result<Exit> {
    let runs_blocked = found
        .judged
        .iter()
        .filter(|run| run.verdicts.first_blocked().is_some())
        .count();
    let count = |verdict: Backtested| -> usize {
        found
            .judged
            .iter()
            .map(|run| run.verdicts.count(verdict))
            .sum()
    };
    let not_judgeable = count(Backtested::NotJudgeable);
    let gaps: usize = found.judged.iter().map(|run| run.verdicts.gaps.len()).sum();
    let passed = args.max_blocked.is_some_and(|max| runs_blocked > max)
        || args
            .max_not_judgeable
            .is_some_and(|max| not_judgeable + gaps + found.unreadable.len() > max);
    let exit = if passed { Exit::No } else { Exit::Ok };
    let mut out = Output::stdout();
    if args.json {
        let runs = found.judged.iter().map(|run| {
            json!({
                "task_id": run.task,
                "started_at": run.started,
                "first_blocked": run.verdicts.first_blocked(),
                "later_blocked": run.verdicts.later_blocked().collect::<Vec<_>>(),
                "allowed": run.verdicts.count(Backtested::Allowed),
                "asked": run.verdicts.count(Backtested::Asked),
                "not_judgeable": run.verdicts.count(Backtested::NotJudgeable),
                "gaps": run.verdicts.gaps,
            })
        });
        let runs: Vec<Value> = runs.collect();
        out.json(&json!({
            "compiled": compiled.digest(),
            "ok": !passed,
            "runs": runs,
            "runs_blocked": runs_blocked,
            "runs_without_calls": found.without_calls,
            "runs_earlier": found.earlier,
            "replays_left_out": found.replays,
            "unreadable": found.unreadable,
            "calls": {
                "allowed": count(Backtested::Allowed),
                "asked": count(Backtested::Asked),
                "blocked": count(Backtested::Blocked),
                "not_judgeable": not_judgeable,
            },
        }))?;
        return Ok(exit);
    }
    for run in &found.judged {
        let mut table = Table::new(&["TURN", "TOOL", "WOULD HAVE BEEN", "WHY", "FILE"]);
        let mut is_told = false;
        for (index, call) in run.verdicts.calls.iter().enumerate() {
            let first = run.verdicts.first_blocked() == Some(call) && index == first_index(run);
            if let Some(row) = row(call, first) {
                table.row(row);
                is_told = true;
            }
        }
        if is_told {
            out.line(&run.task)?;
            table.print(&mut out, "  ")?;
            out.line("")?;
        }
    }
    let reasons = by_reason(found);
    for ((reason, tool), runs) in &reasons {
        out.line(format_args!(
            "{} would have been stopped first by {reason} ({})",
            many(*runs, "run"),
            printable(tool)
        ))?;
    }
    out.line(format_args!(
        "{} judged, {runs_blocked} would have been stopped; {} allowed, {} asked about, {} blocked, {not_judgeable} not judgeable",
        many(found.judged.len(), "run"),
        many(count(Backtested::Allowed), "call"),
        count(Backtested::Asked),
        count(Backtested::Blocked),
    ))?;
    if found.without_calls + found.earlier > 0 {
        out.line(format_args!(
            "{} without calls, {} before the date",
            many(found.without_calls, "run"),
            found.earlier
        ))?;
    }
    if found.replays > 0 {
        out.line(format_args!(
            "{} left out: what repeats a recorded run is not judged twice",
            many(found.replays, "replay")
        ))?;
    }
    for run in &found.judged {
        for gap in &run.verdicts.gaps {
            talk(format_args!(
                "{}: the record does not hold {}",
                run.task,
                printable(gap)
            ));
        }
    }
    for name in &found.unreadable {
        talk(format_args!("not read: {}", printable(name)));
    }
    if passed {
        talk("more than the chosen threshold");
    }
    Ok(exit)
}

fn first_index(run: &Judged) -> usize {
    let blocked = |call: &CallVerdict| call.verdict == Backtested::Blocked;
    run.verdicts
        .calls
        .iter()
        .position(blocked)
        .unwrap_or(usize::MAX)
}

/// Allowed calls are the expected case: they are counted, not listed.
fn row(call: &CallVerdict, first: bool) -> Option<Vec<(String, Option<Paint>)>> {
    let (word, paint) = match call.verdict {
        Backtested::Allowed => return None,
        Backtested::Asked => ("asked about", Paint::Waiting),
        Backtested::Blocked if first => ("blocked", Paint::Bad),
        Backtested::Blocked => ("blocked (later)", Paint::Waiting),
        Backtested::NotJudgeable => ("not judgeable", Paint::Waiting),
    };
    // All of them are in the JSON form; here a line must fit on a screen.
    let mut why = match call.reasons.as_slice() {
        [] => String::new(),
        [only] => only.to_string(),
        [first, rest @ ..] => format!("{first} and {} more", rest.len()),
    };
    if let Some(detail) = &call.detail {
        let detail = printable(detail);
        why = if why.is_empty() {
            detail
        } else {
            format!("{why}: {detail}")
        };
    }
    Some(vec![
        (call.turn.to_string(), None),
        (printable(call.tool.as_deref().unwrap_or("(request)")), None),
        (word.to_owned(), Some(paint)),
        (why, None),
        (
            printable(call.contract_file.as_deref().unwrap_or_default()),
            None,
        ),
    ])
}

/// How many runs each rule would have stopped first.
fn by_reason(found: &Found) -> BTreeMap<(String, String), usize> {
    let mut counts = BTreeMap::new();
    for call in found
        .judged
        .iter()
        .filter_map(|run| run.verdicts.first_blocked())
    {
        let reason = call
            .reasons
            .first()
            .map(ToString::to_string)
            .unwrap_or_default();
        let tool = call.tool.clone().unwrap_or_else(|| "request".to_owned());
        *counts.entry((reason, tool)).or_default() += 1;
    }
    counts
}
