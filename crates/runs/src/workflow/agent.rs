//! The built-in agent: a model that may use tools, until it answers.
//!
//! Without a persona it makes one model call and answers with its content. A persona gives it a system prompt, a model,
//! tools, limits and a tier of autonomy. Everything it learns comes as results of effects; what it does with them is
//! decided here and nowhere else, so that a replay decides the same.

mod asking;
mod beginning;
mod governance;
mod persona;
mod tools;
mod using;

use std::collections::BTreeSet;

use canon::{Map, Value};
use domain::{ContractTexts, Kind, Timestamp};
use serde::Deserialize as _;
use serde_json::json;

use super::builtin::{done, failed, one_line};
use super::{
    Answers, EffectAnswer, EffectKind, EffectRequest, Machine, Note, Start, Step, Transcript,
    Workflow,
};
use crate::members;
use governance::{Fault, Governance, Judgment};
pub use governance::{
    check_contracts, excluded_model, failure_in_result, is_unknown, ruled_output,
};
pub(crate) use governance::{recorded_contracts, response_of};
use persona::{MemorySource, Persona};
use tools::{Call, Catalog, Counters};

/// The workflow `agent`, by its rules.
#[derive(Debug)]
pub(super) struct Agent(pub(super) Rules);

/// What decides whether a tool is used unasked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rules {
    /// Version 2: that calling it twice does no harm; a tier that is missing or unknown acts. Only for runs that began
    /// under it.
    Repeatable,
    /// Version 3: that the operator says that it changes nothing; a tier that is missing or unknown uses no tools.
    ReadOnly,
    /// Version 4: the same, and the persona's contracts judge every call.
    Contracts,
    /// Version 5: the same, and all questions about an answer are asked together; retries, timeouts and expiry as the
    /// contracts say; calls are told with their attempt.
    Together,
    /// Version 6: the same, and a tool that the persona does not list is denied, where it was told as one that failed.
    Listed,
    /// Version 7: the same, and a call that counts when it is released is made, where it was refused.
    Counted,
}

impl Workflow for Agent {
    fn name(&self) -> &'static str {
        "agent"
    }

    fn version(&self) -> &'static str {
        match self.0 {
            Rules::Repeatable => "2",
            Rules::ReadOnly => "3",
            Rules::Contracts => "4",
            Rules::Together => "5",
            Rules::Listed => "6",
            Rules::Counted => "7",
        }
    }

    fn description(&self) -> &'static str {
        "Answers with a model, which may use the tools of the task's persona on the way."
    }

    fn begin(&self, start: &Start) -> Box<dyn Machine> {
        Box::new(Loop::new(start, self.0))
    }

    fn restore(
        &self,
        start: &Start,
        state: &Value,
        past: &Answers,
    ) -> Result<Box<dyn Machine>, String> {
        let number = |name: &str| state.get(name).and_then(Value::as_u64);
        let turn = number("turn").ok_or("the state has no number `turn`")?;
        let mut machine = Loop::new(start, self.0);
        match state.get("system_prompt") {
            Some(Value::String(prompt)) => machine.persona.system_prompt = Some(prompt.clone()),
            Some(Value::Null) | None => machine.persona.system_prompt = None,
            Some(_) => return Err("`system_prompt` is neither text nor null".to_owned()),
        }
        if let Some(Value::String(tier)) = state.get("autonomy_tier") {
            machine.persona.autonomy_tier = Some(tier.clone());
        }
        // The machine goes over what it was told before the boundary; nothing is asked for again.
        let mut step = machine.step(&[]);
        loop {
            match step {
                Step::Request { effects, .. }
                    if machine.turn < turn || machine.waits_for_tools() =>
                {
                    let mut answers = Vec::with_capacity(effects.len());
                    for effect in &effects {
                        match past.get(&effect.key) {
                            Some(answer) => answers.push(answer.clone()),
                            None => {
                                return Err(format!(
                                    "`{}` lies before the boundary and has no record",
                                    effect.key
                                ));
                            }
                        }
                    }
                    step = machine.step(&answers);
                }
                Step::Request { .. } => break,
                Step::Done { .. } | Step::Failed { .. } => {
                    return Err(format!("the run ends before turn {turn}"));
                }
            }
        }
        machine.resumes = true;
        for (name, slot) in [
            ("tokens", &mut machine.used.tokens),
            ("cost_micros", &mut machine.used.cost_micros),
            ("tool_calls", &mut machine.used.tool_calls),
        ] {
            if let Some(number) = state
                .pointer(&format!("/used/{name}"))
                .and_then(Value::as_u64)
            {
                *slot = number;
            }
        }
        Ok(Box::new(machine))
    }
}

const FIELD_WRITE: &str = "host:field.write:main:1";
/// How much of the input says what is looked for in a shared memory, and why something was recorded there.
const ABOUT_CHARS_MAX: usize = 1_000;

/// What the machine waits for.
#[derive(Debug)]
enum Waits {
    /// Nothing yet.
    Start,
    /// The list of tools, and what the Session remembers.
    HostFacts,
    /// Handles of the secrets that tools need.
    Secrets,
    /// The model.
    Model,
    /// The time at which the answer is judged by contracts.
    Judging,
    /// Somebody's decision that a contract asks for.
    Consent,
    /// The time of that decision.
    ConsentTime(Vec<EffectAnswer>),
    /// A decision about the call at each place.
    Approval(Vec<usize>),
    /// The time at which calls are made that people were asked about.
    Execution,
    /// Tools.
    Tools,
    /// That its answer is in the shared memory.
    Recording(String),
}

#[derive(Debug, Default)]
struct Used {
    tokens: u64,
    cost_micros: u64,
    tool_calls: u64,
}

/// A run of the agent.
#[derive(Debug)]
struct Loop {
    rules: Rules,
    persona: Persona,
    input: String,
    waits: Waits,
    /// Model calls asked for so far.
    turn: u64,
    transcript: Transcript,
    catalog: Catalog,
    counters: Counters,
    used: Used,
    /// The tool calls of the last answer.
    calls: Vec<Call>,
    /// True for the first step after a restore, which repeats the last request.
    resumes: bool,
    /// The contracts that were recorded with the Task.
    contracts: Option<Result<ContractTexts, Fault>>,
    /// The persona as it was recorded, for policies.
    snapshot: Value,
    /// The contracts at work, once the run has begun.
    governance: Option<Governance>,
    /// The tools that the model may see, where contracts say so.
    allowed: Option<BTreeSet<String>>,
    /// What to record with the next step.
    notes: Vec<Note>,
    /// The text of an answer without calls that is being judged.
    text: Option<String>,
}

impl Loop {
    fn new(start: &Start, rules: Rules) -> Self {
        let input = match &start.input {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        Self {
            rules,
            persona: Persona::read(start.persona.as_ref(), rules),
            input,
            waits: Waits::Start,
            turn: 0,
            transcript: Transcript::default(),
            catalog: Catalog::default(),
            counters: Counters::default(),
            used: Used::default(),
            calls: Vec::new(),
            resumes: false,
            contracts: match rules {
                Rules::Repeatable | Rules::ReadOnly => None,
                Rules::Contracts | Rules::Together | Rules::Listed | Rules::Counted => {
                    governance::texts(start.persona.as_ref())
                }
            },
            snapshot: start.persona.clone().unwrap_or_default(),
            governance: None,
            allowed: None,
            notes: Vec::new(),
            text: None,
        }
    }

    fn waits_for_tools(&self) -> bool {
        !matches!(self.waits, Waits::Model)
    }

    /// Asks the model, unless a limit says no.
    fn ask_model(&mut self, mut notes: Vec<Note>) -> Step {
        if let Some((limit, message)) = self.persona.exceeded(self.turn, &self.used) {
            return exceeded(limit, message, notes);
        }
        self.turn += 1;
        if let Some(governance) = &mut self.governance {
            let (model, catalog, transcript) =
                (&self.persona.model, &self.catalog, &self.transcript);
            let sent = || {
                json!({
                    "provider": model.get("provider"),
                    "model": model.get("model"),
                    "system": self.persona.system_prompt,
                    "messages": transcript.to_value(),
                    "tools": catalog.for_model(None),
                })
            };
            let planned = catalog
                .offered()
                .and_then(|offered| governance.plan(offered, sent));
            match planned {
                Ok((narrowing, told)) => {
                    self.allowed = Some(narrowing.allowed.into_iter().collect());
                    notes.extend(told);
                }
                Err(fault) => {
                    return with_notes(refused(fault), notes);
                }
            }
        }
        self.model_request(notes)
    }

    /// Asks for the time, for contracts to judge by.
    fn time(&mut self) -> EffectRequest {
        let key = self.counters.next("time:contracts");
        let request = json!({"label": "contracts"});
        EffectRequest::repeatable(key, EffectKind::Time, request)
    }

    fn ask_time(&mut self, then: Waits) -> Step {
        self.waits = then;
        Step::Request {
            notes: Vec::new(),
            checkpoint: false,
            effects: vec![self.time()],
        }
    }

    fn model_request(&mut self, notes: Vec<Note>) -> Step {
        self.waits = Waits::Model;
        let mut request = self.persona.model.clone();
        let tools = self.catalog.for_model(self.allowed.as_ref());
        if !tools.is_empty() {
            request.insert("tools".to_owned(), tools.into());
        }
        let key = format!("llm:main:{}", self.turn);
        let effect = EffectRequest {
            messages: Some(self.transcript.clone()),
            ..EffectRequest::repeatable(key, EffectKind::Model, Value::Object(request))
        };
        Step::Request {
            notes,
            // The first call has nothing before it that would be worth keeping.
            checkpoint: self.turn > 1,
            effects: vec![effect],
        }
    }

    fn answered(&mut self, answer: &EffectAnswer) -> Step {
        if answer.interruption().is_some() {
            if let Some(governance) = &mut self.governance
                && let Err(fault) = governance.unanswered()
            {
                return refused(fault);
            }
            self.take_interruption(std::slice::from_ref(answer));
            return self.ask_model(Vec::new());
        }
        if !answer.ok {
            return broken("model_call_failed", "the model call failed", &answer.value);
        }
        if let Err(failed) = self.account(answer) {
            return failed;
        }
        // The common chat-completion shape.
        let Some(message) = answer.value.pointer("/choices/0/message") else {
            return failed(
                "model_answer_unreadable",
                "the model's answer has no `choices[0].message`",
            );
        };
        let calls = message
            .get("tool_calls")
            .and_then(Value::as_array)
            .map(Vec::as_slice)
            .unwrap_or_default();
        if let Some(governance) = &mut self.governance {
            governance.answered(&answer.value, answer.model.as_ref());
        }
        if calls.is_empty() {
            return match message.get("content").and_then(Value::as_str) {
                Some(content) if self.governance.is_some() => {
                    self.text = Some(content.to_owned());
                    self.ask_time(Waits::Judging)
                }
                Some(content) => self.finish(content.to_owned()),
                None => failed(
                    "model_answer_unreadable",
                    "the model's answer has no `choices[0].message.content`",
                ),
            };
        }
        let mut said = json!({"role": "assistant", "tool_calls": calls});
        if let (Value::Object(said), Some(content)) = (&mut said, message.get("content")) {
            said.insert("content".to_owned(), content.clone());
        }
        self.transcript.push(said);
        let read = |call| Call::read(call, &self.catalog, &self.persona, &mut self.counters);
        self.calls = calls.iter().map(read).collect();
        if self.rules >= Rules::Together {
            self.calls.iter_mut().for_each(Call::count_attempts);
        }
        if self.governance.is_some() {
            return self.ask_time(Waits::Judging);
        }
        self.count_calls()
    }

    /// Judges the model's answer by the contracts.
    fn judged(&mut self, time: Option<&EffectAnswer>) -> Step {
        let Some(governance) = &mut self.governance else {
            return failed("contract_fault", "an answer is judged without contracts");
        };
        let judgment = recorded_time(time).and_then(|at| governance.judge(at));
        match judgment {
            Err(fault) => refused(fault),
            Ok(Judgment::Ask { requests, note }) => {
                self.notes.extend(note);
                self.waits = Waits::Consent;
                self.ask(requests)
            }
            Ok(Judgment::Settled {
                refused: places,
                consented,
                note,
            }) => {
                self.notes.push(note);
                if let Some(text) = self.text.take() {
                    return self.finish(text);
                }
                for (place, call) in self.calls.iter_mut().enumerate() {
                    if consented.contains(&call.id) {
                        call.consent();
                    }
                    if let Some(why) = places.get(&place) {
                        call.deny(why);
                    }
                }
                self.limit_calls();
                self.count_calls()
            }
        }
    }

    /// Ends with an answer, which is recorded for other agents first where they share a memory.
    fn finish(&mut self, text: String) -> Step {
        if self.persona.remembers != MemorySource::Field || text.trim().is_empty() {
            return done(text);
        }
        let about: String = self.input.chars().take(ABOUT_CHARS_MAX).collect();
        let request = json!({"scope": "field", "write": {"about": about, "content": text}});
        self.waits = Waits::Recording(text);
        Step::Request {
            notes: Vec::new(),
            checkpoint: false,
            effects: vec![EffectRequest::repeatable(
                FIELD_WRITE,
                EffectKind::Memory,
                request,
            )],
        }
    }

    /// Tells executors how long contracts let their tools take.
    fn limit_calls(&mut self) {
        let governance = self.governance.as_ref();
        let Some(governance) = governance.filter(|_| self.rules >= Rules::Together) else {
            return;
        };
        for call in &mut self.calls {
            if let Some(limit) = governance.timeout_ms(&call.name) {
                call.limit(limit);
            }
        }
    }

    fn count_calls(&mut self) -> Step {
        self.used.tool_calls += self.calls.len() as u64;
        // Before they are used: afterwards would be too late.
        match self.persona.too_many_tool_calls(&self.used) {
            Some((limit, message)) => exceeded(limit, message, Vec::new()),
            None => self.ask_approval(0),
        }
    }

    /// Counts what a call used. A limit on cost cannot be kept when the price is not known.
    fn account(&mut self, answer: &EffectAnswer) -> Result<(), Step> {
        let Some(used) = &answer.model else {
            return Ok(());
        };
        // A count that wrapped around would lift the limit.
        let tokens = used.input_tokens.saturating_add(used.output_tokens);
        self.used.tokens = self.used.tokens.saturating_add(tokens);
        match used.cost_micros {
            Some(cost) => {
                self.used.cost_micros = self.used.cost_micros.saturating_add(cost);
            }
            None if self.persona.limits_cost() => {
                return Err(failed(
                    "price_unknown",
                    format!(
                        "the persona limits cost, and the price of `{}` is not known",
                        used.model
                    ),
                ));
            }
            None => {}
        }
        Ok(())
    }

    fn next_step(&mut self, results: &[EffectAnswer]) -> Step {
        let interrupted = || results.iter().any(|answer| answer.interruption().is_some());
        match std::mem::replace(&mut self.waits, Waits::Start) {
            Waits::Start => self.begin(),
            Waits::HostFacts => self.context_answered(results),
            Waits::Secrets => match results.iter().find(|answer| !answer.ok) {
                Some(refused) => broken(
                    "secret_unavailable",
                    "a secret that a tool needs is not there",
                    &refused.value,
                ),
                None => {
                    self.catalog.keep_handles(results);
                    self.ask_model(Vec::new())
                }
            },
            Waits::Model => match results.first() {
                Some(answer) => self.answered(answer),
                None => failed("model_call_failed", "the model gave no answer"),
            },
            Waits::Judging | Waits::Consent | Waits::ConsentTime(_) if interrupted() => {
                self.text = None;
                match self.governance.as_mut().map(Governance::abandoned) {
                    Some(Err(fault)) => refused(fault),
                    Some(Ok(())) | None => self.interrupted(results),
                }
            }
            Waits::Judging => self.judged(results.first()),
            Waits::Consent => match results.first() {
                Some(_) => self.ask_time(Waits::ConsentTime(results.to_vec())),
                None => failed("contract_fault", "a question has no answer"),
            },
            Waits::ConsentTime(answers) => self.consented(&answers, results.first()),
            Waits::Approval(places) => self.approval_answered(&places, results),
            Waits::Execution if interrupted() => self.interrupted(results),
            Waits::Execution => self.released_still(results.first()),
            Waits::Tools => self.tools_answered(results),
            // A memory that takes nothing in does not make the answer wrong; the record says what it said.
            Waits::Recording(text) => done(text),
        }
    }
}

impl Machine for Loop {
    fn step(&mut self, results: &[EffectAnswer]) -> Step {
        if std::mem::take(&mut self.resumes) {
            return self.model_request(Vec::new());
        }
        let step = self.next_step(results);
        with_notes(step, std::mem::take(&mut self.notes))
    }

    fn state(&self) -> Value {
        json!({
            "turn": self.turn,
            "system_prompt": self.persona.system_prompt,
            "autonomy_tier": self.persona.autonomy_tier,
            "used": {
                "tokens": self.used.tokens,
                "cost_micros": self.used.cost_micros,
                "tool_calls": self.used.tool_calls,
            },
            "transcript": {"count": self.transcript.len(), "sha256": self.transcript.head()},
            "ordinals": self.counters.to_value(),
        })
    }
}

fn exceeded(limit: &str, message: String, notes: Vec<Note>) -> Step {
    Step::Failed {
        notes,
        code: "limit_exceeded".to_owned(),
        message,
        details: members(json!({"limit": limit})),
    }
}

/// Puts notes in front of what a step records.
fn with_notes(mut step: Step, mut first: Vec<Note>) -> Step {
    let notes = match &mut step {
        Step::Request { notes, .. } | Step::Done { notes, .. } | Step::Failed { notes, .. } => {
            notes
        }
    };
    first.append(notes);
    *notes = first;
    step
}

/// The end of a run that contracts do not let go on.
fn refused(fault: Fault) -> Step {
    Step::Failed {
        notes: Vec::new(),
        code: fault.code.to_owned(),
        message: one_line(&fault.message),
        details: fault.details,
    }
}

fn recorded_time(answer: Option<&EffectAnswer>) -> Result<Timestamp, Fault> {
    let read = answer
        .filter(|answer| answer.ok)
        .and_then(|answer| Timestamp::deserialize(&answer.value).ok());
    read.ok_or_else(|| Fault::new("contract_fault", "the clock gave no time"))
}

/// A failure that an effect brought about, with what it said.
fn broken(code: &str, what: &str, error: &Value) -> Step {
    let message = match error.get("message").and_then(Value::as_str) {
        Some(message) => message.to_owned(),
        None => what.to_owned(),
    };
    let mut details = Map::new();
    if error.get("code").is_some() {
        details.insert("error".to_owned(), error.clone());
    }
    Step::Failed {
        notes: Vec::new(),
        code: code.to_owned(),
        message: one_line(&message),
        details,
    }
}

fn note(kind: Kind, payload: Map<String, Value>) -> Note {
    Note { kind, payload }
}
