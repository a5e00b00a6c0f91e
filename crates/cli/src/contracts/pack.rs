//! `reprise contracts test`: cases of a pack, judged offline.
//!
//! A case is a session told step by step: what the model answered, what tools returned, what the program did. Time
//! moves only where a case says so, so a case gives the same verdicts on every machine.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use contracts::{
    Answer, Answers, AttemptCost, Begin, CallKey, Compiled, Decimal, Event, Executors,
    FinishReason, Gate, Judgement, Mode, Occasion, OfferedTool, Options, Outcome, Permission,
    ProposedCall, Request, Response, Rules, State, Status, ToolChoice, json as exact, judge,
    narrow, precheck, settle, settled,
};
use domain::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use super::TestArgs;
use super::files::{Folder, read_text, yaml_files};
use super::report;
use crate::exit::{Exit, OrHint, Problem};
use crate::output::{Output, Paint, printable, talk};

/// How a case ended.
#[derive(Debug)]
pub(super) struct CaseResult {
    pub(super) name: String,
    pub(super) file: String,
    pub(super) problems: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    #[serde(default)]
    principal: Option<Value>,
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
    #[serde(default)]
    arguments: Option<Value>,
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
    outcome: Outcome,
    #[serde(default)]
    output: Option<Value>,
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

pub(super) fn run(args: &TestArgs) -> anyhow::Result<Exit> {
    let folder = Folder::read(&args.pack.join("contracts"))?;
    let compiled = match folder.compile() {
        Ok(compiled) => Arc::new(compiled),
        Err(error) => {
            for finding in error.findings() {
                talk(printable(&finding.to_string()));
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
    for (folder, negative) in [("golden", false), ("golden/negative", true)] {
        let folder = args.pack.join(folder);
        if folder.is_dir() {
            for path in yaml_files(&folder)? {
                results.push(run_case(&compiled, &path, negative)?);
            }
        }
    }
    if results.is_empty() {
        let message = format!("`{}` has no cases", args.pack.display());
        return Err(Problem::new(message, "a case is a file `golden/NAME.yaml`").into());
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

fn run_case(compiled: &Arc<Compiled>, path: &Path, negative: bool) -> anyhow::Result<CaseResult> {
    let text = read_text(path)?;
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_nodes: 20_000, max_documents: 1, },
        strict_booleans: true,
        with_snippet: false,
    };
    let case: Case = serde_saphyr::from_str_with_options(&text, options).or_hint(
        format_args!("`{}`", path.display()),
        "docs/contracts.md shows the form of a case",
    )?;
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let name = if negative {
        format!("negative/{name}")
    } else {
        name.into_owned()
    };
    let mut player = Player::new(compiled, &case)?;
    for (number, step) in case.steps.iter().enumerate() {
        player.play(number + 1, step, negative)?;
    }
    Ok(CaseResult {
        name,
        file: path.display().to_string(),
        problems: player.problems,
    })
}

struct Player {
    rules: Rules,
    state: State,
    clock: i64,
    calls: u64,
    problems: Vec<String>,
}

const MODEL: &str = "case";

impl Player {
    fn new(compiled: &Arc<Compiled>, case: &Case) -> anyhow::Result<Self> {
        let mut options = Options::new("case");
        options.mode = Mode::Enforce;
        options.gate = case.gate.unwrap_or(Gate::RejectAll);
        options.unmatched = case.unmatched.unwrap_or(Permission::Block);
        options.principal = case.principal.as_ref().map(exact_value).transpose()?;
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
        let free = contracts::Price {
            input: Decimal::ZERO,
            output: Decimal::ZERO,
            cache_read: None,
            cache_write: None,
        };
        options.prices.set(&format!("openai/{MODEL}"), free);
        let begin = Begin {
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

    fn play(&mut self, number: usize, step: &Step, negative: bool) -> anyhow::Result<()> {
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
            self.respond(number, respond, step.expect.as_deref(), negative)?;
        }
        if let Some(execute) = &step.execute {
            self.execute(number, execute)?;
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
        expected: Option<&[Expected]>,
        negative: bool,
    ) -> anyhow::Result<()> {
        let response = self.response(respond)?;
        let request = self.request();
        let narrowing = narrow(&self.rules, &self.state, &request.tools);
        if let Err(refusal) = precheck(&self.rules, &self.state, &request, &narrowing) {
            self.problems.push(format!(
                "step {number}: no request is sent any more, so that no response comes: {refusal:?}"
            ));
            return Ok(());
        }
        let mut answers = Answers::new();
        let judgement = loop {
            let occasion = Occasion {
                request: &request,
                now: self.now(),
                proposal: None,
                answers: &answers,
            };
            let judgement = judge(&self.rules, &self.state, &response, occasion);
            let asked: Vec<_> = judgement.asked().collect();
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
            cost: Some(Decimal::ZERO),
        };
        if let Some(event) = settled(&self.rules, &judgement, &settlement, cost, None) {
            self.apply(&event)?;
        }
        Ok(())
    }

    fn response(&mut self, respond: &Respond) -> anyhow::Result<Response> {
        let word = respond.finish_reason.as_deref().unwrap_or("tool_calls");
        let finish_reason = FinishReason::named(word).ok_or_else(|| {
            let hint = "tool_calls, stop, length, content_filter or other";
            Problem::new(format!("`{word}` is not a finish reason"), hint)
        })?;
        let calls = respond.calls.iter().map(|call| {
            self.calls += 1;
            let arguments = call.arguments.as_ref().map(ToString::to_string);
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
            let wanted: &[String] = if expected.allow { &[] } else { &expected.block };
            let vague = !expected.allow && expected.block.is_empty();
            if (vague && found.is_empty()) || (!vague && found != wanted) {
                self.problems.push(format!(
                    "step {number}, call {}: reasons are {found:?}, expected {wanted:?}",
                    index + 1
                ));
            }
        }
    }

    fn execute(&mut self, number: usize, execute: &Execute) -> anyhow::Result<()> {
        let mut open = self.state.unsettled();
        let found: Option<CallKey> = open
            .find(|(_, call)| call.tool == execute.tool)
            .map(|(key, _)| key.clone());
        drop(open);
        let Some(call) = found else {
            self.problems
                .push(format!("step {number}: no open call of `{}`", execute.tool));
            return Ok(());
        };
        self.apply(&Event::Settled {
            call,
            outcome: execute.outcome,
            output: execute.output.as_ref().map(ToString::to_string),
        })
    }
}

fn exact_value(value: &Value) -> anyhow::Result<contracts::Value> {
    exact::read(
        &value.to_string(),
        exact::Limits::PRINCIPAL,
        exact::Numbers::Any,
    )
    .or_hint("the principal", "at most 64 KiB of JSON")
}
