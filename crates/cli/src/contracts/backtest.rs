//! `reprise contracts backtest`: recorded runs judged again under other contracts.
//!
//! Reads bundles, exports and data directories; the judging is the library's. A run is judged as it went, and compared with
//! what became of it then: the first call that was made and would have been blocked is what these contracts change, the later
//! ones may not have happened.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use contracts::backtest::{
    Backtested, CallVerdict, Change, RecordEntry, RecordedOutcome, RecordedRequest, Verdicts,
    backtest,
};
use contracts::{
    Compiled, ConfigError, Decimal, Executors, Mode, OfferedTool, Options, Response, Rules,
    ToolChoice, Usage, json as exact,
};
use domain::{Preflight, Timestamp};
use runs::replay::{Cost, Exchange, RunStart, Source, exchanges};
use runs::workflow::governed::apply_rules_version;
use serde_json::{Value, json};

use super::BacktestArgs;
use super::files::{Folder, read_text};
use super::recorded::{self, SkippedRuns};
use crate::exit::{Exit, OrHint, Problem};
use crate::output::{Output, Paint, Table, inform, plural, printable};

/// A judged run.
struct JudgedRun {
    task: String,
    started: Timestamp,
    verdicts: Verdicts,
}

/// Runs that were found, and how many have no calls or lie before the date.
#[derive(Default)]
struct FoundRuns {
    judged: Vec<JudgedRun>,
    without_calls: usize,
    earlier: usize,
    /// The runs that were looked at, and how often one of them was given again.
    seen: BTreeSet<String>,
    again: usize,
    left_out: SkippedRuns,
    /// Why these contracts cannot judge a run.
    cannot: Option<ConfigError>,
}

pub(super) fn run(args: &BacktestArgs) -> anyhow::Result<Exit> {
    let folder = Folder::read(&args.contracts)?;
    let compiled = match folder.compile() {
        Ok(compiled) => Arc::new(compiled),
        Err(error) => {
            for finding in error.findings() {
                inform(printable(&finding.to_string()));
            }
            let hint = "`reprise contracts check` shows the same findings";
            return Err(Problem::new("the contracts do not compile", hint).into());
        }
    };
    let since = args.since;
    let judge = Judge::new(args, &compiled)?;
    let mut found = FoundRuns::default();
    let mut left_out = SkippedRuns::default();
    for path in &args.runs {
        recorded::read(path, &mut left_out, &mut |source| {
            judge.run(source, since, &mut found);
        })?;
    }
    if let Some(error) = found.cannot {
        let hint =
            "the record does not say who called: give --principal FILE where policies ask for it";
        let message = format!("the contracts cannot judge these runs: {error}");
        return Err(Problem::new(message, hint).into());
    }
    found.left_out = left_out;
    if found.judged.is_empty() && found.without_calls == 0 {
        for name in &found.left_out.unreadable {
            inform(format_args!("not read: {}", printable(name)));
        }
        let hint = "name bundles (`reprise task export`), an export (`reprise log export`) or a data directory";
        let message = format!(
            "no run to judge: {} could not be read, {} began earlier",
            found.left_out.unreadable.len(),
            found.earlier
        );
        return Err(Problem::new(message, hint).into());
    }
    found
        .judged
        .sort_by(|a, b| (a.started, &a.task).cmp(&(b.started, &b.task)));
    print(args, &compiled, &found)
}

/// What runs are judged by.
struct Judge {
    compiled: Arc<Compiled>,
    labels: Vec<String>,
    principal: Option<contracts::Value>,
}

impl Judge {
    fn new(args: &BacktestArgs, compiled: &Arc<Compiled>) -> anyhow::Result<Self> {
        let mut principal = None;
        if let Some(file) = &args.principal {
            let text = read_text(file)?;
            let read = exact::read(&text, exact::Limits::PRINCIPAL, exact::Numbers::Any)
                .or_hint(format_args!("`{}`", file.display()), "one JSON value")?;
            principal = Some(read);
        }
        Ok(Self {
            compiled: Arc::clone(compiled),
            labels: args.labels.clone(),
            principal,
        })
    }

    /// Puts the contracts together with what a run began with, so that nothing differs but the contracts.
    fn rules(&self, began: &RunStart) -> Result<Rules, ConfigError> {
        let recorded = began.options.as_ref().and_then(|options| {
            let text = Value::Object(options.clone()).to_string();
            contracts::bytes::read_options(text.as_bytes()).ok()
        });
        let mut options = recorded.unwrap_or_else(|| Options::new("backtest"));
        // Whether anything was blocked then is in the record; here it is asked what would have been.
        options.mode = Mode::Enforce;
        options.agent = None;
        // What became of a call is taken from the record.
        options.executors = Executors::All;
        options.answers_checkpoints = true;
        apply_rules_version(began.rules_version, &mut options);
        options.labels.clone_from(&self.labels);
        options.principal = self.principal.clone().or_else(|| began.principal.clone());
        let compiled = Arc::clone(&self.compiled);
        // The policies of the same contracts say the same about whoever called.
        match options.principal.is_none() && began.contracts == Some(compiled.digest()) {
            true => Rules::with_policies(compiled, options, &began.policies),
            false => Rules::new(compiled, options),
        }
    }

    fn run(&self, source: &Source, since: Option<Timestamp>, found: &mut FoundRuns) {
        let Some(started) = source.event(0).map(|event| event.created_at) else {
            return;
        };
        if !found.seen.insert(source.task_id.to_string()) {
            found.again += 1;
            return;
        }
        if since.is_some_and(|since| started < since) {
            found.earlier += 1;
            return;
        }
        match self.verdicts(source, started) {
            Ok(Some(verdicts)) => found.judged.push(JudgedRun {
                task: source.task_id.to_string(),
                started,
                verdicts,
            }),
            Ok(None) => found.without_calls += 1,
            Err(error) => drop(found.cannot.get_or_insert(error)),
        }
    }

    /// Judges a run; none when nothing was said in it that could be judged.
    fn verdicts(&self, source: &Source, at: Timestamp) -> Result<Option<Verdicts>, ConfigError> {
        let exchanges = exchanges(source);
        let is_talk = |exchange: &Exchange| {
            matches!(
                exchange,
                Exchange::Answered { .. } | Exchange::Entry(RecordEntry::Gap { .. })
            )
        };
        if !exchanges.iter().any(is_talk) {
            return Ok(None);
        }
        let began = match RunStart::read(source, at) {
            Ok(began) => began,
            Err(what) => {
                let (calls, gaps) = (Vec::new(), vec![what]);
                return Ok(Some(Verdicts { calls, gaps }));
            }
        };
        let rules = self.rules(&began)?;
        let entries = RecordTranslator::new(&rules, &began).translate(&exchanges);
        let verdicts = backtest(&rules, began.start, &entries);
        let is_silent = verdicts.calls.is_empty() && verdicts.gaps.is_empty();
        Ok((!is_silent).then_some(verdicts))
    }
}

/// Judges a recorded run again. Returns what is not as it was recorded, none when nothing was called in it.
pub(super) fn differences(compiled: &Arc<Compiled>, source: &Source) -> Option<Vec<String>> {
    let judge = Judge {
        compiled: Arc::clone(compiled),
        labels: Vec::new(),
        principal: None,
    };
    let at = source.event(0)?.created_at;
    let verdicts = match judge.verdicts(source, at) {
        Ok(verdicts) => verdicts?,
        Err(error) => return Some(vec![format!("the contracts cannot judge it: {error}")]),
    };
    let calls = verdicts.calls.iter().filter_map(|call| {
        let cells = row(call, true)?;
        let texts: Vec<&str> = cells.iter().map(|(text, _)| text.as_str()).collect();
        let [turn, tool, was, now, why, ..] = texts.as_slice() else {
            return None;
        };
        Some(format!(
            "turn {turn}, {tool}: {was} then, {now} now ({why})"
        ))
    });
    let gaps = verdicts.gaps.iter();
    let gaps = gaps.map(|gap| format!("the record does not hold {gap}"));
    Some(calls.chain(gaps).collect())
}

fn dollars(micros: u64) -> Option<Decimal> {
    let micros = Decimal::parse(&micros.to_string()).ok()?;
    Some(micros.shifted_right(6))
}

/// Translates the exchanges of a recorded run into entries that can be judged again.
struct RecordTranslator<'a> {
    rules: &'a Rules,
    /// The models of prepared requests.
    models: BTreeMap<String, String>,
    entries: Vec<RecordEntry>,
}

impl<'a> RecordTranslator<'a> {
    fn new(rules: &'a Rules, began: &RunStart) -> Self {
        let mut entries = Vec::new();
        // An agent without a list of tools offered none.
        if began.options.is_none() {
            entries.push(RecordEntry::Offered(Vec::new()));
        }
        Self {
            rules,
            models: BTreeMap::new(),
            entries,
        }
    }

    fn translate(mut self, exchanges: &[Exchange]) -> Vec<RecordEntry> {
        for exchange in exchanges {
            let entry = self.entry(exchange);
            self.entries.push(entry);
        }
        self.entries
    }

    fn entry(&mut self, exchange: &Exchange) -> RecordEntry {
        match exchange {
            Exchange::Tools(None) => gap("the offered tools"),
            Exchange::Tools(Some(list)) => RecordEntry::Offered(offered(list)),
            Exchange::Prepared {
                id,
                at,
                request,
                seen,
            } => {
                let model = format!("{}/{}", request.provider, request.model);
                self.models.insert(id.clone(), model);
                RecordEntry::Prepared {
                    id: id.clone(),
                    at: *at,
                    sent: Box::new(sent(request, seen.as_ref())),
                }
            }
            Exchange::Answered { response: None, .. } => gap("an answer of the model"),
            Exchange::Answered {
                at,
                response: Some(response),
                withheld,
                cost,
                names,
            } => {
                if *withheld && reads_text(self.rules, response) {
                    return gap("the text beside a call");
                }
                let prepared = names.as_ref().map(|(prepared, _)| prepared.clone());
                RecordEntry::Answered {
                    at: *at,
                    response: response.clone(),
                    cost: self.cost(*cost, prepared.as_deref()),
                    prepared,
                    proposal: names.as_ref().map(|(_, proposal)| proposal.clone()),
                }
            }
            Exchange::Discarded { at, cost, prepared } => RecordEntry::Discarded {
                at: *at,
                cost: self.cost(*cost, Some(prepared)),
            },
            Exchange::Entry(entry) => entry.clone(),
        }
    }

    fn cost(&self, cost: Cost, prepared: Option<&str>) -> Option<Decimal> {
        match cost {
            Cost::Unknown => None,
            Cost::Micros(micros) => dollars(micros),
            Cost::Used(used) => {
                let model = self.models.get(prepared?)?;
                let price = self.rules.options().prices.get(model)?;
                price.cost(Usage {
                    input: used.input,
                    output: used.output,
                    cache_read: used.cache_read,
                    cache_write: used.cache_write,
                })
            }
        }
    }
}

fn gap(what: &str) -> RecordEntry {
    RecordEntry::Gap {
        what: what.to_owned(),
    }
}

/// A request as its session prepared it.
fn sent(request: &Preflight, seen: Option<&contracts::Value>) -> RecordedRequest {
    let tools = request.offered_tools.iter().map(|tool| OfferedTool {
        name: tool.name.clone(),
        schema: tool.schema.as_ref().and_then(read_exactly),
        hosted: tool.hosted,
    });
    RecordedRequest {
        provider: request.provider.clone(),
        model: request.model.clone(),
        tools: Some(tools.collect()),
        choice: match &request.forced_tool {
            Some(tool) => ToolChoice::Named(tool.clone()),
            None => ToolChoice::Auto,
        },
        view: seen.cloned(),
    }
}

fn read_exactly(value: &Value) -> Option<contracts::Value> {
    let limits = exact::Limits::MESSAGE;
    exact::read(&value.to_string(), limits, exact::Numbers::Any).ok()
}

/// Says whether the contracts look at the text beside the calls of an answer.
fn reads_text(rules: &Rules, response: &Response) -> bool {
    let mut calls = response.calls.iter();
    calls.any(|call| rules.compiled().reads_content(&call.name))
}

fn offered(list: &Value) -> Vec<OfferedTool> {
    let tools = list
        .get("tools")
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    let tools = tools.filter_map(|tool| {
        let mut offered = OfferedTool::named(tool.get("name")?.as_str()?);
        offered.schema = tool.get("parameters").and_then(read_exactly);
        Some(offered)
    });
    tools.collect()
}

fn print(args: &BacktestArgs, compiled: &Compiled, found: &FoundRuns) -> anyhow::Result<Exit> {
    let runs_with = |change: Change| {
        let runs = found.judged.iter();
        runs.filter(|run| run.verdicts.changed(change).next().is_some())
            .count()
    };
    let runs_stopped = runs_with(Change::Stopped);
    let changed = |change: Change| -> usize {
        let runs = found.judged.iter();
        runs.map(|run| run.verdicts.changed(change).count()).sum()
    };
    let not_judgeable = changed(Change::NotJudgeable);
    let gaps: usize = found.judged.iter().map(|run| run.verdicts.gaps.len()).sum();
    let passed = args.max_blocked.is_some_and(|max| runs_stopped > max)
        || args
            .max_not_judgeable
            .is_some_and(|max| not_judgeable + gaps + found.left_out.unreadable.len() > max);
    let exit = if passed { Exit::No } else { Exit::Ok };
    let mut out = Output::stdout();
    if args.json {
        out.json(&as_json(compiled, found, passed))?;
        return Ok(exit);
    }
    for run in &found.judged {
        print_run(&mut out, run)?;
    }
    for ((reason, tool), runs) in &by_reason(found) {
        out.line(format_args!(
            "{} would have been stopped first by {reason} ({})",
            plural(*runs, "run"),
            printable(tool)
        ))?;
    }
    out.line(format_args!(
        "{} judged: {runs_stopped} would have been stopped, {} asked about more, {} let further",
        plural(found.judged.len(), "run"),
        runs_with(Change::NowAsked),
        runs_with(Change::Loosened),
    ))?;
    out.line(format_args!(
        "{} as before, {} newly blocked, {} newly asked about, {} loosened, {not_judgeable} not judgeable",
        plural(changed(Change::AsBefore), "call"),
        changed(Change::Stopped),
        changed(Change::NowAsked),
        changed(Change::Loosened),
    ))?;
    if found.without_calls + found.earlier > 0 {
        out.line(format_args!(
            "{} without calls, {} before the date",
            plural(found.without_calls, "run"),
            found.earlier
        ))?;
    }
    if found.again > 0 {
        out.line(format_args!(
            "{} given more than once, and judged once",
            plural(found.again, "run")
        ))?;
    }
    if found.left_out.replays > 0 {
        out.line(format_args!(
            "{} left out: what repeats a recorded run is not judged twice",
            plural(found.left_out.replays, "replay")
        ))?;
    }
    for run in &found.judged {
        for gap in &run.verdicts.gaps {
            inform(format_args!(
                "{}: the record does not hold {}",
                run.task,
                printable(gap)
            ));
        }
    }
    for name in &found.left_out.unreadable {
        inform(format_args!("not read: {}", printable(name)));
    }
    if passed {
        inform("more than the chosen threshold");
    }
    Ok(exit)
}

fn as_json(compiled: &Compiled, found: &FoundRuns, passed: bool) -> Value {
    let all = |count: &dyn Fn(&Verdicts) -> usize| -> usize {
        let runs = found.judged.iter();
        runs.map(|run| count(&run.verdicts)).sum()
    };
    let judged = |verdict: Backtested| all(&|verdicts| verdicts.count(verdict));
    let changed = |change: Change| all(&|verdicts| verdicts.changed(change).count());
    let runs = found.judged.iter().map(|run| {
        let verdicts = &run.verdicts;
        json!({
            "task_id": run.task,
            "started_at": run.started,
            "first_blocked": verdicts.first_stopped(),
            "later_blocked": verdicts.later_stopped().collect::<Vec<_>>(),
            "now_asked": verdicts.changed(Change::NowAsked).collect::<Vec<_>>(),
            "loosened": verdicts.changed(Change::Loosened).collect::<Vec<_>>(),
            "as_before": verdicts.changed(Change::AsBefore).count(),
            "allowed": verdicts.count(Backtested::Allowed),
            "asked": verdicts.count(Backtested::Asked),
            "not_judgeable": verdicts.count(Backtested::NotJudgeable),
            "gaps": verdicts.gaps,
        })
    });
    let runs: Vec<Value> = runs.collect();
    let stopped = found.judged.iter();
    let stopped = stopped.filter(|run| run.verdicts.first_stopped().is_some());
    json!({
        "compiled": compiled.digest(),
        "ok": !passed,
        "runs": runs,
        "runs_blocked": stopped.count(),
        "runs_without_calls": found.without_calls,
        "runs_earlier": found.earlier,
        "runs_again": found.again,
        "replays_left_out": found.left_out.replays,
        "unreadable": found.left_out.unreadable,
        "calls": {
            "allowed": judged(Backtested::Allowed),
            "asked": judged(Backtested::Asked),
            "blocked": judged(Backtested::Blocked),
            "not_judgeable": judged(Backtested::NotJudgeable),
        },
        "changes": {
            "as_before": changed(Change::AsBefore),
            "stopped": changed(Change::Stopped),
            "now_asked": changed(Change::NowAsked),
            "loosened": changed(Change::Loosened),
        },
    })
}

fn print_run(out: &mut Output, run: &JudgedRun) -> anyhow::Result<()> {
    let mut table = Table::new(&["TURN", "TOOL", "WAS", "WOULD HAVE BEEN", "WHY", "FILE"]);
    let (mut is_told, mut is_first) = (false, true);
    for call in &run.verdicts.calls {
        if let Some(row) = row(call, is_first) {
            table.row(row);
            is_told = true;
        }
        is_first &= call.change != Change::Stopped;
    }
    if is_told {
        out.line(&run.task)?;
        table.print(out, "  ")?;
        out.line("")?;
    }
    Ok(())
}

/// What is as before is the expected case: it is counted, not listed.
fn row(call: &CallVerdict, is_first: bool) -> Option<Vec<(String, Option<Paint>)>> {
    let (word, paint) = match (call.change, call.verdict) {
        (Change::AsBefore, _) => return None,
        (Change::Stopped, _) if is_first => ("blocked", Paint::Bad),
        (Change::Stopped, _) => ("blocked (later)", Paint::Waiting),
        (Change::NotJudgeable, _) => ("not judgeable", Paint::Waiting),
        (Change::NowAsked, _) | (Change::Loosened, Backtested::Asked) => {
            ("asked about", Paint::Waiting)
        }
        (Change::Loosened, _) => ("allowed", Paint::Waiting),
    };
    let was = match call.then {
        RecordedOutcome::Made => "made",
        RecordedOutcome::Asked => "asked about",
        RecordedOutcome::Refused => "refused",
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
        (was.to_owned(), None),
        (word.to_owned(), Some(paint)),
        (why, None),
        (
            printable(call.contract_file.as_deref().unwrap_or_default()),
            None,
        ),
    ])
}

/// How many runs each rule would have stopped first.
fn by_reason(found: &FoundRuns) -> BTreeMap<(String, String), usize> {
    let mut counts = BTreeMap::new();
    for call in found
        .judged
        .iter()
        .filter_map(|run| run.verdicts.first_stopped())
    {
        // A model that is excluded is not among the reasons of blocks: its detail says it.
        let reason = call.reasons.first().map(ToString::to_string);
        let reason = reason.or_else(|| call.detail.as_deref().map(printable));
        let reason = reason.unwrap_or_default();
        let tool = call.tool.clone().unwrap_or_else(|| "request".to_owned());
        *counts.entry((reason, tool)).or_default() += 1;
    }
    counts
}
