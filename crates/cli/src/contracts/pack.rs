//! `reprise contracts test`: cases of a pack, judged offline.
//!
//! A case is a session told step by step: what the model answered, what tools returned, what the program did. Time
//! moves only where a case says so, so a case gives the same verdicts on every machine.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use contracts::{
    Answer, Answers, AttemptCost, CallKey, Compiled, Decimal, Event, Executors, FinishReason, Gate,
    JudgeContext, Judgement, Mode, OfferedTool, Options, Outcome, Permission, ProposedCall,
    Request, Response, Rules, SessionStart, State, Status, ToolChoice, check_execution, judge,
    narrow, precheck, settle, settled,
};
use domain::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use super::TestArgs;
use super::files::{Folder, read_text, subfolders, yaml_files};
use super::{backtest, recorded, report};
use crate::exit::{Exit, OrHint, Problem};
use crate::output::{Output, Paint, inform, printable};

/// Of a file: those that contracts have.
const LIMITS: yaml::Limits = yaml::Limits {
    nodes_max: 20_000,
    depth_max: 64,
};

/// How deep folders of cases may lie in each other.
const FOLDERS_MAX: usize = 16;

/// How a case ended.
#[derive(Debug)]
pub(super) struct CaseResult {
    pub(super) name: String,
    pub(super) file: String,
    pub(super) problems: Vec<String>,
}

/// `pack.yaml`, which a pack may have. Whatever it says is acted on or refused.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct PackFile {
    schema_version: Option<String>,
    /// Shown before the cases.
    name: Option<String>,
    #[serde(default, rename = "description")]
    _description: Option<String>,
    /// The folder of the contracts, inside the pack.
    contracts: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    /// Values are taken from the exact reading of the file; these members only say that they may be there.
    #[serde(default, rename = "principal")]
    _principal: Option<Value>,
    /// What the model costs; without it calls are free.
    #[serde(default)]
    price: Option<CasePrice>,
    /// Tools whose executions are reported; `all` for every tool.
    #[serde(default)]
    wrapped: Wrapped,
    #[serde(default)]
    gate: Option<Gate>,
    #[serde(default)]
    unmatched: Option<Permission>,
    #[serde(default)]
    labels: Vec<String>,
    steps: Vec<Step>,
}

/// US dollars per million tokens, as texts, because texts are exact.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CasePrice {
    input: String,
    output: String,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct CaseUsage {
    input: u64,
    output: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Wrapped {
    #[default]
    None,
    All,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    /// A response of the model.
    respond: Option<Respond>,
    /// What is expected of each call, in order: `allow`, or the reasons of a block.
    expect: Option<Vec<Expected>>,
    /// The removed tools that narrowing must name, with their reasons.
    removed: Option<BTreeMap<String, String>>,
    /// The end of an execution.
    execute: Option<Execute>,
    /// A label from outside.
    label: Option<String>,
    /// The manual filter; an empty list removes every tool.
    filter: Option<Vec<String>>,
    /// Moves the clock.
    advance_seconds: Option<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Respond {
    #[serde(default)]
    finish_reason: Option<String>,
    #[serde(default)]
    content: Option<String>,
    #[serde(default)]
    calls: Vec<CaseCall>,
    /// What the response used, where the case has a price.
    #[serde(default)]
    usage: Option<CaseUsage>,
    /// What people answer when they are asked: `approve`, `deny` or `timeout`.
    #[serde(default)]
    answer: Option<PersonAnswer>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CaseCall {
    tool: String,
    #[serde(default)]
    id: Option<String>,
    #[serde(default, rename = "arguments")]
    _arguments: Option<Value>,
    /// Arguments as the model wrote them, where their text matters.
    #[serde(default)]
    arguments_text: Option<String>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum PersonAnswer {
    Approve,
    Deny,
    Timeout,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Execute {
    tool: String,
    #[serde(default)]
    outcome: Option<Outcome>,
    #[serde(default, rename = "output")]
    _output: Option<Value>,
    /// What the executor is given; without it, what was allowed.
    #[serde(default, rename = "arguments")]
    _arguments: Option<Value>,
    /// The reason of the refusal that is expected before the tool runs.
    #[serde(default)]
    refused: Option<String>,
}

/// One word, or the reasons of a block.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Expected {
    #[serde(default)]
    allow: bool,
    #[serde(default)]
    block: Vec<String>,
}

fn read_pack_file(pack: &Path) -> anyhow::Result<PackFile> {
    let path = pack.join("pack.yaml");
    if !path.exists() {
        return Ok(PackFile::default());
    }
    let text = read_text(&path)?;
    let shown = format!("`{}`", path.display());
    let file: PackFile = yaml::from_str(&text, LIMITS).or_hint(
        &shown,
        "it may have `schema_version`, `name`, `description` and `contracts`",
    )?;
    if file
        .schema_version
        .as_deref()
        .is_some_and(|version| version != "1.0")
    {
        let message = format!("{shown}: the only schema version is \"1.0\", in quotes");
        return Err(Problem::new(message, "read docs/contracts.md").into());
    }
    let inside = |folder: &String| {
        let mut parts = Path::new(folder).components();
        parts.all(|part| matches!(part, std::path::Component::Normal(_)))
    };
    if !file.contracts.iter().all(inside) {
        let message = format!("{shown}: `contracts` leads out of the pack");
        return Err(Problem::new(message, "name a folder inside the pack").into());
    }
    Ok(file)
}

pub(super) fn run(args: &TestArgs) -> anyhow::Result<Exit> {
    let pack_file = read_pack_file(&args.pack)?;
    if let Some(name) = &pack_file.name {
        inform(printable(name));
    }
    let contracts = pack_file.contracts.as_deref().unwrap_or("contracts");
    let folder = Folder::read(&args.pack.join(contracts))?;
    let compiled = match folder.compile() {
        Ok(compiled) => Arc::new(compiled),
        Err(error) => {
            for finding in error.findings() {
                inform(printable(&finding.to_string()));
            }
            let hint = "`reprise contracts check` shows the same findings";
            return Err(
                Problem::new("the contracts of the pack do not compile", hint)
                    .answers_no()
                    .into(),
            );
        }
    };
    let mut results = Vec::new();
    let golden = args.pack.join("golden");
    let recordings = args.pack.join("recordings");
    for folder in [&golden, &recordings] {
        if folder.is_symlink() {
            let message = format!("`{}` is a link, which is not followed", folder.display());
            return Err(Problem::new(message, "put the folder itself there").into());
        }
    }
    if golden.is_dir() {
        for path in case_files(&golden)? {
            let inside = path.strip_prefix(&golden).unwrap_or(&path);
            let problems = run_case(&compiled, inside, &path);
            results.push(CaseResult {
                name: inside.with_extension("").to_string_lossy().into_owned(),
                file: path.display().to_string(),
                // A case that cannot be run shows nothing: it fails, and the others are run.
                problems: problems.unwrap_or_else(|error| vec![format!("{error:#}")]),
            });
        }
    }
    if recordings.is_dir() {
        for path in entries(&recordings)? {
            let inside = path.strip_prefix(&args.pack).unwrap_or(&path);
            results.push(CaseResult {
                name: inside.with_extension("").to_string_lossy().into_owned(),
                file: path.display().to_string(),
                problems: run_recording(&compiled, &path),
            });
        }
    }
    if results.is_empty() {
        let message = format!("`{}` has no cases", args.pack.display());
        let hint = "a case is a file `golden/NAME.yaml`, or a recorded run in `recordings`";
        return Err(Problem::new(message, hint).into());
    }
    if let Some(path) = &args.junit {
        report::junit(path, &results)?;
    }
    if let Some(path) = &args.sarif {
        report::sarif(path, &results)?;
    }
    print(args, &results)
}

fn print(args: &TestArgs, results: &[CaseResult]) -> anyhow::Result<Exit> {
    let failed = results
        .iter()
        .filter(|result| !result.problems.is_empty())
        .count();
    let mut out = Output::stdout();
    if args.json {
        let cases = results.iter().map(|result| {
            json!({"case": result.name, "file": result.file, "ok": result.problems.is_empty(), "problems": result.problems})
        });
        let cases: Vec<Value> = cases.collect();
        out.json(&json!({"ok": failed == 0, "cases": cases}))?;
    } else {
        for result in results {
            let (word, paint) = if result.problems.is_empty() {
                ("ok", Paint::Good)
            } else {
                ("FAIL", Paint::Bad)
            };
            let word = out.paint(paint, word);
            out.line(format_args!("{word} {}", printable(&result.name)))?;
            for problem in &result.problems {
                out.line(format_args!("    {}", printable(problem)))?;
            }
        }
        out.line(format_args!("{} cases, {failed} failed", results.len()))?;
    }
    Ok(if failed == 0 { Exit::Ok } else { Exit::No })
}

/// Returns the cases of a folder and of the folders in it, those of a folder before those of folders in it.
fn case_files(golden: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![golden.to_owned()];
    while let Some(folder) = folders.pop() {
        let depth = folder.components().count() - golden.components().count();
        if depth > FOLDERS_MAX {
            let message = format!("`{}` lies too deep", folder.display());
            let hint = format!("at most {FOLDERS_MAX} folders inside each other");
            return Err(Problem::new(message, hint).into());
        }
        found.extend(yaml_files(&folder)?);
        let mut inner = subfolders(&folder)?;
        inner.reverse();
        folders.extend(inner);
    }
    Ok(found)
}

/// Returns what lies in a folder and is not hidden, sorted.
fn entries(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let hint = "name a folder that can be read";
    let shown = format!("`{}`", folder.display());
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).or_hint(&shown, hint)? {
        let entry = entry.or_hint(&shown, hint)?;
        if !entry.file_name().as_encoded_bytes().starts_with(b".") {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

/// Judges recorded runs again: they must be judged as they went. Returns what is not.
fn run_recording(compiled: &Arc<Compiled>, path: &Path) -> Vec<String> {
    let (mut problems, mut judged) = (Vec::new(), 0);
    let mut left_out = recorded::SkippedRuns::default();
    let read = recorded::read(path, &mut left_out, &mut |source| {
        let Some(differences) = backtest::differences(compiled, source) else {
            return;
        };
        judged += 1;
        let named = differences.into_iter();
        problems.extend(named.map(|difference| format!("{}: {difference}", source.task_id)));
    });
    problems.extend(read.err().map(|error| format!("{error:#}")));
    let unread = left_out.unreadable.into_iter();
    problems.extend(unread.map(|name| format!("not read: {name}")));
    if judged == 0 && problems.is_empty() {
        problems.push("no run in it calls a tool, so it shows nothing".to_owned());
    }
    problems
}

/// Runs a case. Returns what is not as it expects.
fn run_case(compiled: &Arc<Compiled>, inside: &Path, path: &Path) -> anyhow::Result<Vec<String>> {
    let negative = inside.starts_with("negative");
    let text = read_text(path)?;
    let case: Case = yaml::from_str(&text, LIMITS).or_hint(
        format_args!("`{}`", path.display()),
        "docs/contracts.md shows the form of a case",
    )?;
    let source = contracts::Source {
        file: path.display().to_string(),
        text,
    };
    // Read twice: once for its form, and once with every digit of its numbers.
    let exact = contracts::read_document(&source).map_err(|error| {
        let findings: Vec<String> = error.findings().iter().map(ToString::to_string).collect();
        Problem::new(findings.join("; "), "write it as contracts are written")
    })?;
    let mut player = Player::new(compiled, &case, &exact)?;
    let has_calls = |step: &Step| {
        let respond = step.respond.as_ref();
        respond.is_some_and(|respond| !respond.calls.is_empty())
    };
    let shows = |step: &Step| has_calls(step) || step.removed.is_some();
    if case.steps.iter().any(|step| step.respond.is_some()) && !case.steps.iter().any(shows) {
        let problem = "no response of the case calls a tool, so it shows nothing";
        player.problems.push(problem.to_owned());
    }
    if case.steps.iter().all(|step| step.respond.is_none()) {
        let problem = "the case has no response to judge, so it shows nothing";
        player.problems.push(problem.to_owned());
    }
    let exact_steps = member(&exact, "steps").and_then(contracts::Value::as_array);
    for (number, step) in case.steps.iter().enumerate() {
        let exact = exact_steps.and_then(|steps| steps.get(number));
        player.play(number + 1, step, exact, negative)?;
    }
    Ok(player.problems)
}

struct Player {
    rules: Rules,
    state: State,
    price: contracts::Price,
    is_free: bool,
    clock: i64,
    calls: u64,
    problems: Vec<String>,
}

const MODEL: &str = "case";

impl Player {
    fn new(
        compiled: &Arc<Compiled>,
        case: &Case,
        exact: &contracts::Value,
    ) -> anyhow::Result<Self> {
        let mut options = Options::new("case");
        options.mode = Mode::Enforce;
        options.gate = case.gate.unwrap_or(Gate::RejectAll);
        options.unmatched = case.unmatched.unwrap_or(Permission::Block);
        options.principal = member(exact, "principal").cloned();
        let constrained = compiled
            .tools()
            .filter(|contract| !contract.execution_constraints.is_empty());
        options.executors = match case.wrapped {
            Wrapped::All => Executors::All,
            Wrapped::None => Executors::Named(
                constrained
                    .map(|contract| contract.tool.clone())
                    .collect::<BTreeSet<_>>(),
            ),
        };
        options.answers_checkpoints = true;
        options.labels.clone_from(&case.labels);
        let price = |text: Option<&String>| match text {
            None => Ok(Decimal::ZERO),
            Some(text) => Decimal::parse(text).or_hint("`price`", "a decimal in quotes"),
        };
        let price = contracts::Price {
            input: price(case.price.as_ref().map(|price| &price.input))?,
            output: price(case.price.as_ref().map(|price| &price.output))?,
            cache_read: None,
            cache_write: None,
        };
        options.prices.set(&format!("openai/{MODEL}"), price);
        let begin = SessionStart {
            session_id: options.session_id.clone(),
            agent: None,
            at: Timestamp::from_micros(0),
            compiled: compiled.digest(),
            labels: options.labels.clone(),
            slots: BTreeMap::new(),
        };
        let rules = Rules::new(Arc::clone(compiled), options).or_hint(
            "the case cannot start",
            "add what the contracts need, such as `principal`",
        )?;
        let state =
            State::begin(compiled, &begin).or_hint("the case cannot start", "report this")?;
        Ok(Self {
            rules,
            state,
            price,
            is_free: case.price.is_none(),
            clock: 0,
            calls: 0,
            problems: Vec::new(),
        })
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.clock)
    }

    fn apply(&mut self, event: &Event) -> anyhow::Result<()> {
        let applied = self.state.advance(self.rules.compiled(), event);
        applied.or_hint("a step cannot happen here", "look at the steps before it")
    }

    fn play(
        &mut self,
        number: usize,
        step: &Step,
        exact: Option<&contracts::Value>,
        negative: bool,
    ) -> anyhow::Result<()> {
        let Some(exact) =
            exact.filter(|step| step.as_object().is_some_and(|step| !step.is_empty()))
        else {
            self.problems.push(format!("step {number} says nothing"));
            return Ok(());
        };
        if let Some(seconds) = step.advance_seconds {
            self.clock += i64::from(seconds) * 1_000_000;
            for call in self.state.expired(self.now()) {
                self.apply(&Event::Expired { call })?;
            }
        }
        if let Some(label) = &step.label {
            self.apply(&Event::LabelAdded {
                label: label.clone(),
            })?;
        }
        if let Some(tools) = &step.filter {
            self.apply(&Event::Filtered {
                tools: Some(tools.clone()),
            })?;
        }
        if let Some(expected) = &step.removed {
            self.compare_narrowing(number, expected);
        }
        if let Some(respond) = &step.respond {
            let exact = member(exact, "respond");
            self.respond(number, respond, exact, step.expect.as_deref(), negative)?;
        } else if step.expect.is_some() {
            self.problems.push(format!(
                "step {number} expects verdicts and has no response"
            ));
        }
        if let Some(execute) = &step.execute {
            self.execute(number, execute, member(exact, "execute"))?;
        }
        Ok(())
    }

    fn request(&self) -> Request {
        let tools = self.rules.compiled().tools();
        Request {
            provider: "openai".to_owned(),
            model: MODEL.to_owned(),
            tools: tools
                .map(|contract| OfferedTool::named(&contract.tool))
                .collect(),
            choice: ToolChoice::Auto,
            unsupported: None,
            view: contracts::Value::Null,
        }
    }

    fn compare_narrowing(&mut self, number: usize, expected: &BTreeMap<String, String>) {
        let narrowing = narrow(&self.rules, &self.state, &self.request().tools);
        let found: BTreeMap<String, String> = narrowing
            .removed
            .iter()
            .map(|removed| (removed.tool.clone(), removed.reason.to_string()))
            .collect();
        if found != *expected {
            self.problems.push(format!(
                "step {number}: removed tools are {found:?}, expected {expected:?}"
            ));
        }
    }

    fn respond(
        &mut self,
        number: usize,
        respond: &Respond,
        exact: Option<&contracts::Value>,
        expected: Option<&[Expected]>,
        negative: bool,
    ) -> anyhow::Result<()> {
        let response = self.response(respond, exact)?;
        let request = self.request();
        let narrowing = narrow(&self.rules, &self.state, &request.tools);
        if let Err(refusal) = precheck(&self.rules, &self.state, &request, &narrowing) {
            self.problems.push(format!(
                "step {number}: no request is sent any more, so there is no response: {refusal:?}"
            ));
            return Ok(());
        }
        let mut answers = Answers::new();
        let judgement = loop {
            let occasion = JudgeContext {
                request: &request,
                now: self.now(),
                proposal: None,
                answers: &answers,
            };
            let judgement = judge(&self.rules, &self.state, &response, occasion);
            let asked: Vec<_> = judgement.needing_approval().collect();
            if asked.is_empty() {
                break judgement;
            }
            let Some(given) = respond.answer else {
                self.problems.push(format!(
                    "step {number}: a person is asked, and the case has no `answer`"
                ));
                return Ok(());
            };
            for verdict in asked {
                let answer = match given {
                    PersonAnswer::Approve => Answer::Approved {
                        arguments: verdict.arguments_digest(),
                        compiled: self.rules.compiled().digest(),
                    },
                    PersonAnswer::Deny => Answer::Denied { detail: None },
                    PersonAnswer::Timeout => Answer::TimedOut,
                };
                answers.insert(verdict.call_id().to_owned(), answer);
            }
        };
        self.compare_verdicts(number, &judgement, expected, negative);
        let settlement = settle(&self.rules, &judgement, self.state.attempts() + 1, 0);
        let cost = AttemptCost {
            at: self.now(),
            cost: self.cost(respond),
        };
        if let Some(event) = settled(&self.rules, &judgement, &settlement, cost, None) {
            self.apply(&event)?;
        }
        Ok(())
    }

    /// Without a price everything is free; with one, a response that does not say what it used has no known cost.
    fn cost(&self, respond: &Respond) -> Option<Decimal> {
        if self.is_free {
            return Some(Decimal::ZERO);
        }
        let usage = respond.usage?;
        self.price.cost(contracts::Usage {
            input: usage.input,
            output: usage.output,
            cache_read: 0,
            cache_write: 0,
        })
    }

    fn response(
        &mut self,
        respond: &Respond,
        exact: Option<&contracts::Value>,
    ) -> anyhow::Result<Response> {
        let word = respond.finish_reason.as_deref().unwrap_or("tool_calls");
        let finish_reason = FinishReason::named(word).ok_or_else(|| {
            let hint = "tool_calls, stop, length, content_filter or other";
            Problem::new(format!("`{word}` is not a finish reason"), hint)
        })?;
        let exact = exact.and_then(|exact| member(exact, "calls")?.as_array());
        let calls = respond.calls.iter().enumerate().map(|(index, call)| {
            self.calls += 1;
            let exact = exact.and_then(|calls| member(calls.get(index)?, "arguments"));
            let arguments = exact.map(contracts::Value::to_json);
            ProposedCall {
                id: call
                    .id
                    .clone()
                    .unwrap_or_else(|| format!("call_{}", self.calls)),
                name: call.tool.clone(),
                arguments: call
                    .arguments_text
                    .clone()
                    .or(arguments)
                    .unwrap_or_else(|| "{}".to_owned()),
            }
        });
        Ok(Response {
            finish_reason,
            content: respond.content.clone(),
            calls: calls.collect(),
        })
    }

    fn compare_verdicts(
        &mut self,
        number: usize,
        judgement: &Judgement,
        expected: Option<&[Expected]>,
        negative: bool,
    ) {
        let reasons = |index: usize| {
            let verdict = judgement.verdicts().get(index);
            let reasons = verdict
                .map(contracts::Verdict::all_reasons)
                .unwrap_or_default();
            reasons.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let Some(expected) = expected else {
            let blocked = judgement.blocked().count();
            if negative && blocked == 0 {
                self.problems
                    .push(format!("step {number}: nothing was blocked"));
            }
            for (index, verdict) in judgement.verdicts().iter().enumerate() {
                if !negative && verdict.status() == Status::Block {
                    let tool = &verdict.call().tool;
                    self.problems.push(format!(
                        "step {number}: `{tool}` was blocked: {:?}",
                        reasons(index)
                    ));
                }
            }
            return;
        };
        if expected.len() != judgement.verdicts().len() {
            let message = "as many entries as calls are expected";
            self.problems.push(format!(
                "step {number}: `expect` has {} entries; {message}",
                expected.len()
            ));
            return;
        }
        for (index, expected) in expected.iter().enumerate() {
            let found = reasons(index);
            if expected.allow != expected.block.is_empty() {
                self.problems.push(format!(
                    "step {number}, call {}: `expect` says either `allow: true` or the reasons of a `block`",
                    index + 1
                ));
                continue;
            }
            let wanted: &[String] = &expected.block;
            if found != wanted {
                self.problems.push(format!(
                    "step {number}, call {}: reasons are {found:?}, expected {wanted:?}",
                    index + 1
                ));
            }
        }
    }

    fn execute(
        &mut self,
        number: usize,
        execute: &Execute,
        exact: Option<&contracts::Value>,
    ) -> anyhow::Result<()> {
        let mut open = self.state.released();
        let found: Option<(CallKey, String)> = open
            .find(|(_, call)| call.tool == execute.tool)
            .map(|(key, call)| (key.clone(), call.arguments.clone()));
        drop(open);
        let exact_member = |name: &str| exact.and_then(|exact| member(exact, name));
        let given = exact_member("arguments").map(contracts::Value::to_json);
        let allowed = found.map(|(_, arguments)| arguments);
        let arguments = given.or(allowed).unwrap_or_else(|| "{}".to_owned());
        let tool = &execute.tool;
        let checked = check_execution(&self.rules, &self.state, tool, None, &arguments, self.now());
        let call = match (checked, &execute.refused) {
            (Err(refusal), Some(wanted)) => {
                let found = refusal.reason().map(|reason| reason.to_string());
                if found.as_ref() != Some(wanted) {
                    self.problems.push(format!(
                        "step {number}: the execution is refused with {found:?}, expected `{wanted}`"
                    ));
                }
                let at = self.now();
                return self.apply(&Event::ExecutionRefused { at });
            }
            (Err(refusal), None) => {
                self.problems.push(format!(
                    "step {number}: `{tool}` is not run: {}",
                    refusal.detail().unwrap_or_default()
                ));
                return Ok(());
            }
            (Ok(_), Some(_)) => {
                self.problems
                    .push(format!("step {number}: `{tool}` is run, and should not be"));
                return Ok(());
            }
            (Ok(call), None) => call,
        };
        let Some(outcome) = execute.outcome else {
            self.problems
                .push(format!("step {number}: `execute` has no `outcome`"));
            return Ok(());
        };
        self.apply(&Event::Started { call: call.clone() })?;
        self.apply(&Event::Settled {
            call,
            outcome,
            output: exact_member("output").map(contracts::Value::to_json),
        })
    }
}

fn member<'v>(value: &'v contracts::Value, name: &str) -> Option<&'v contracts::Value> {
    value.as_object()?.get(name)
}
