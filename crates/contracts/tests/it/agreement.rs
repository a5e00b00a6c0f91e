//! The crate and the oracle over generated sessions: the same verdicts, the same narrowing, the same state.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use contracts::{
    Answer, Answers, AttemptCost, CallKey, Event, Executors, FinishReason, Gate, JudgeContext,
    Judgement, Mode, OfferedTool, Options, Outcome, Permission, PreCheck, Price, ProposedCall,
    Request, Response, Rules, SessionStart, Settlement, ShownOutput, Source, State, Status,
    ToolChoice, compile, json, judge, narrow, precheck, settle, settled,
};
use fastrand::Rng;
use serde_json::{Value as Json, json};

use crate::generate::{self, LABELS, TOOLS};
use crate::oracle::{Fate, OProposed, OResponse, OVerdict, Oracle};
use crate::support::{at, decimal};

/// How many responses are judged by both.
const CASES: usize = 100_000;
const OPERATIONS: usize = 30;

struct Pair {
    rules: Rules,
    state: Option<State>,
    oracle: Oracle,
    request: Request,
    view: Json,
    now: i64,
    waiting: Vec<(String, OResponse, Response)>,
    next: u64,
    judged: usize,
    allowed: usize,
    reasons: BTreeMap<String, usize>,
}

fn exact(value: &Json) -> contracts::Value {
    json::read(
        &value.to_string(),
        json::Limits::MESSAGE,
        json::Numbers::Any,
    )
    .unwrap()
}

impl Pair {
    fn new(rng: &mut Rng) -> Self {
        let files = generate::files(rng);
        let sources: Vec<Source> = files
            .tools
            .iter()
            .map(|(name, doc)| Source {
                file: format!("{name}.yaml"),
                text: doc.to_string(),
            })
            .collect();
        let session = Source {
            file: "session.yaml".to_owned(),
            text: files.session.to_string(),
        };
        let compiled = match compile(&sources, Some(&session)) {
            Ok(compiled) => compiled,
            Err(error) => panic!("{:?}\n{sources:?}\n{session:?}", error.findings()),
        };
        let wrapped: BTreeSet<String> = TOOLS
            .iter()
            .filter(|_| rng.bool())
            .map(ToString::to_string)
            .collect();
        let enforce = rng.u32(0..5) > 0;
        let gate = [Gate::RejectAll, Gate::StripPartial, Gate::StripBlocked][rng.usize(0..3)];
        let unmatched_allowed = rng.bool();
        let mut options = Options::new("s");
        options.mode = if enforce { Mode::Enforce } else { Mode::Shadow };
        options.gate = gate;
        options.unmatched = if unmatched_allowed {
            Permission::Allow
        } else {
            Permission::Block
        };
        options.principal = Some(exact(&files.principal));
        options.executors = Executors::Named(wrapped.clone());
        options.answers_checkpoints = true;
        let one = decimal("1");
        let price = Price {
            input: one,
            output: one,
            cache_read: None,
            cache_write: None,
        };
        options.prices.set("openai/m", price);
        let begin = SessionStart {
            session_id: "s".to_owned(),
            agent: None,
            at: at(0),
            compiled: compiled.digest(),
            labels: Vec::new(),
            slots: BTreeMap::new(),
        };
        let state = State::begin(&compiled, &begin).unwrap();
        let offered: Vec<&str> = TOOLS.into_iter().chain(["free"]).collect();
        let view = json!({"provider": "openai", "model": "m", "messages": [{"role": "user"}]});
        let request = Request {
            provider: "openai".to_owned(),
            model: "m".to_owned(),
            tools: offered
                .iter()
                .map(|name| OfferedTool::named(name))
                .collect(),
            choice: ToolChoice::Auto,
            unsupported: None,
            view: exact(&view),
        };
        let oracle = Oracle {
            tools: files.tools.into_iter().collect(),
            session: files.session,
            principal: files.principal,
            unmatched_allowed,
            wrapped,
            gate: gate.as_str().to_owned(),
            enforce,
            offered: offered.iter().map(ToString::to_string).collect(),
            calls: Vec::new(),
            commits: Vec::new(),
            steps: 0,
            labels: BTreeSet::new(),
            filter: None,
            waiting: BTreeMap::new(),
            checkpoints: 0,
            clock: 0,
            killed: false,
            restored: false,
            blocks: 0,
            blocks_in_a_row: 0,
            errors_in_a_row: 0,
            attempts: 0,
            cents: 0,
            state_version: 0,
            control_revision: 0,
        };
        Self {
            rules: Rules::new(Arc::new(compiled), options).unwrap(),
            state: Some(state),
            oracle,
            request,
            view,
            now: 0,
            waiting: Vec::new(),
            next: 0,
            judged: 0,
            allowed: 0,
            reasons: BTreeMap::new(),
        }
    }

    fn state(&self) -> &State {
        self.state.as_ref().unwrap()
    }

    fn apply(&mut self, event: Event) {
        // Every event survives being stored.
        let stored = serde_json::to_string(&event).unwrap();
        let event: Event = serde_json::from_str(&stored).unwrap();
        let state = self.state.take().unwrap();
        self.state = Some(state.apply(self.rules.compiled(), &event).unwrap());
    }

    fn operate(&mut self, rng: &mut Rng) {
        self.now += rng.i64(0..20);
        match rng.u32(0..100) {
            0..=61 => self.respond(rng),
            62..=76 => self.execute(rng),
            77..=81 => self.see_outputs(rng),
            82..=84 => self.add_label(rng),
            85..=87 => self.filter(rng),
            88..=93 => self.answer(rng),
            94..=95 => {
                let attempted = rng.bool();
                self.apply(Event::Failed {
                    at: at(self.now),
                    attempted,
                });
                self.oracle.fail(self.now, attempted);
            }
            96..=97 => {
                self.now += 700;
                self.expire();
            }
            98 => {
                self.apply(Event::Refused { at: at(self.now) });
                self.oracle.clock = self.oracle.clock.max(self.now);
                self.oracle.count_block();
            }
            _ => self.end(rng),
        }
    }

    fn respond(&mut self, rng: &mut Rng) {
        let (oracle, response) = self.responses(rng);
        let verdicts = self.judge(&oracle, &response, None, &BTreeMap::new(), &Answers::new());
        self.settle(oracle, response, verdicts, None);
    }

    fn responses(&mut self, rng: &mut Rng) -> (OResponse, Response) {
        let odd = if rng.u32(0..10) == 0 { 7 } else { 4 };
        let finish = [
            "tool_calls",
            "tool_calls",
            "tool_calls",
            "tool_calls",
            "stop",
            "length",
            "content_filter",
        ][rng.usize(0..odd)];
        let content = match rng.u32(0..4) {
            0 => None,
            1 => Some(String::new()),
            _ => Some("text".to_owned()),
        };
        let calls: Vec<OProposed> = (0..rng.u32(1..4)).map(|_| self.proposed(rng)).collect();
        let wire = calls.iter().map(|call| ProposedCall {
            id: call.id.clone(),
            name: call.tool.clone(),
            arguments: call.text.clone(),
        });
        let response = Response {
            finish_reason: FinishReason::named(finish).unwrap(),
            content: content.clone(),
            calls: wire.collect(),
        };
        let calls = calls.into_iter().map(|mut call| {
            // What is compared later is the canonical form.
            if let Some(args) = &call.args {
                call.text = String::from_utf8(canon::jcs(args)).unwrap();
            }
            call
        });
        let oracle = OResponse {
            finish,
            content,
            calls: calls.collect(),
        };
        (oracle, response)
    }

    fn proposed(&mut self, rng: &mut Rng) -> OProposed {
        self.next += 1;
        // Ids come again in later responses, and, where verdicts block, twice in one.
        let id = match rng.u32(0..20) {
            0 => "call_again".to_owned(),
            _ => format!("call_{}", self.next),
        };
        let id = if self.oracle.enforce {
            id
        } else {
            format!("call_{}", self.next)
        };
        let tool = match rng.u32(0..40) {
            0 => "free",
            1 => "never_offered",
            _ => TOOLS[rng.usize(0..TOOLS.len())],
        };
        let bad = [
            "{",
            "[]",
            "",
            r#"{"a":1,"a":1}"#,
            r#"{"a":9007199254740993}"#,
            r#"{"a":1e400}"#,
            r#"{"a":"\ud800"}"#,
        ];
        let (args, text) = if rng.u32(0..30) == 0 {
            (None, bad[rng.usize(0..bad.len())].to_owned())
        } else {
            let args = generate::arguments(rng);
            let text = if rng.bool() {
                args.to_string()
            } else {
                format!("{args:#}")
            };
            (Some(args), text)
        };
        OProposed {
            id,
            tool: tool.to_owned(),
            args,
            text,
        }
    }

    fn judge(
        &mut self,
        oracle: &OResponse,
        response: &Response,
        proposal: Option<&str>,
        words: &BTreeMap<String, String>,
        answers: &Answers,
    ) -> (Vec<OVerdict>, Judgement) {
        let occasion = JudgeContext {
            request: &self.request,
            now: at(self.now),
            proposal,
            answers,
        };
        let found = judge(&self.rules, self.state(), response, occasion);
        let expected = self
            .oracle
            .judge(oracle, &self.view, self.now, proposal, words);
        let shown: Vec<OVerdict> = found
            .verdicts()
            .iter()
            .map(|verdict| match verdict.status() {
                Status::Allow => OVerdict::Allow,
                Status::Ask => OVerdict::Ask,
                Status::Block => {
                    let reasons = verdict.all_reasons();
                    OVerdict::Block(reasons.iter().map(ToString::to_string).collect())
                }
            })
            .collect();
        assert_eq!(shown, expected, "{response:#?}\n{:#?}", self.oracle);
        self.judged += 1;
        for verdict in &expected {
            match verdict {
                OVerdict::Allow => self.allowed += 1,
                OVerdict::Ask => *self.reasons.entry("asked".to_owned()).or_default() += 1,
                OVerdict::Block(words) => {
                    for word in words {
                        *self.reasons.entry(word.clone()).or_default() += 1;
                    }
                }
            }
        }
        (expected, found)
    }

    fn settle(
        &mut self,
        oracle: OResponse,
        response: Response,
        (verdicts, judgement): (Vec<OVerdict>, Judgement),
        proposal: Option<&str>,
    ) {
        if self.oracle.killed || self.oracle.restored {
            return;
        }
        let settlement = settle(&self.rules, &judgement, 1, 0);
        if verdicts.contains(&OVerdict::Ask) {
            assert_eq!(settlement, Settlement::Wait);
            self.next += 1;
            let name = format!("p{}", self.next);
            self.apply(Event::Asked {
                at: at(self.now),
                proposal: name.clone(),
                asked: judgement.needing_approval().count() as u64,
                calls: judgement.standing_calls(),
            });
            self.oracle.ask(self.now, &name, &oracle, &verdicts);
            self.waiting.push((name, oracle, response));
            return;
        }
        let cost = AttemptCost {
            at: at(self.now),
            cost: Some(decimal("0.01")),
        };
        let event = settled(&self.rules, &judgement, &settlement, cost, proposal).unwrap();
        self.apply(event);
        let expected = self.oracle.settle(self.now, proposal, &oracle, &verdicts);
        let found = match settlement {
            Settlement::Release(_) => "release",
            Settlement::Strip { .. } => "strip",
            Settlement::Reject(_) => "reject",
            Settlement::Wait | Settlement::Retry { .. } => "other",
        };
        assert_eq!(found, expected);
    }

    fn answer(&mut self, rng: &mut Rng) {
        if self.waiting.is_empty() {
            return;
        }
        let (name, oracle, response) = self.waiting.remove(rng.usize(0..self.waiting.len()));
        let mut words = BTreeMap::new();
        let mut answers = Answers::new();
        for (call, wire) in oracle.calls.iter().zip(&response.calls) {
            let word = [
                "approve",
                "approve",
                "approve",
                "checkpoint_denied",
                "checkpoint_timeout",
            ][rng.usize(0..5)];
            let answer = match word {
                "approve" => Answer::Approved {
                    arguments: canon::sha256(call.text.as_bytes()),
                    compiled: self.rules.compiled().digest(),
                },
                "checkpoint_denied" => Answer::Denied { detail: None },
                _ => Answer::TimedOut,
            };
            words.insert(wire.id.clone(), word.to_owned());
            answers.insert(wire.id.clone(), answer);
        }
        let verdicts = self.judge(&oracle, &response, Some(&name), &words, &answers);
        self.settle(oracle, response, verdicts, Some(&name));
    }

    fn open_calls(&self) -> Vec<usize> {
        let open = |fate| matches!(fate, Fate::Pending | Fate::Started | Fate::Unknown);
        let calls = self.oracle.calls.iter().enumerate();
        calls
            .filter(|(_, call)| open(call.fate))
            .map(|(index, _)| index)
            .collect()
    }

    fn execute(&mut self, rng: &mut Rng) {
        let open = self.open_calls();
        if open.is_empty() {
            return;
        }
        let index = open[rng.usize(0..open.len())];
        let call = &self.oracle.calls[index];
        let key = CallKey {
            step: call.step,
            id: call.id.clone(),
        };
        if rng.u32(0..6) == 0 {
            if call.fate == Fate::Pending {
                self.apply(Event::Started { call: key });
                self.oracle.calls[index].fate = Fate::Started;
            }
            return;
        }
        let (outcome, word) = [
            (Outcome::Success, "success"),
            (Outcome::Success, "success"),
            (Outcome::Success, "success"),
            (Outcome::Error, "error"),
            (Outcome::ExpectedError, "error"),
            (Outcome::Unknown, "unknown"),
        ][rng.usize(0..6)];
        let output = (rng.u32(0..4) > 0).then(|| generate::output(rng));
        let text = output.as_ref().map(ToString::to_string);
        self.apply(Event::Settled {
            call: key,
            outcome,
            output: text,
        });
        self.oracle.execute(index, word, output);
    }

    fn see_outputs(&mut self, rng: &mut Rng) {
        let calls = &self.oracle.calls;
        if calls.is_empty() {
            return;
        }
        let mut outputs = Vec::new();
        for _ in 0..rng.u32(1..4) {
            let id = calls[rng.usize(0..calls.len())].id.clone();
            outputs.push((id, generate::output(rng)));
        }
        let before = self.state().state_version();
        let seen = outputs.iter().map(|(id, output)| ShownOutput {
            call_id: id.clone(),
            text: output.to_string(),
        });
        self.apply(Event::OutputsSeen {
            outputs: seen.collect(),
        });
        for (id, output) in &outputs {
            self.oracle.see(id, output);
        }
        // What counts as a change has tests of its own; here it is one commit or none.
        let after = self.state().state_version();
        assert!(after == before || after == before + 1);
        self.oracle.state_version = after;
    }

    fn is_over(&self) -> bool {
        self.oracle.killed || self.oracle.restored
    }

    fn add_label(&mut self, rng: &mut Rng) {
        let label = LABELS[rng.usize(0..LABELS.len())].to_owned();
        self.apply(Event::LabelAdded {
            label: label.clone(),
        });
        if !self.is_over() && self.oracle.labels.insert(label) {
            self.oracle.control_revision += 1;
        }
    }

    fn filter(&mut self, rng: &mut Rng) {
        let tools: Option<Vec<String>> = rng.bool().then(|| {
            TOOLS
                .iter()
                .filter(|_| rng.u32(0..4) > 0)
                .map(ToString::to_string)
                .collect()
        });
        self.apply(Event::Filtered {
            tools: tools.clone(),
        });
        if !self.is_over() {
            self.oracle.filter = tools.map(|tools| tools.into_iter().collect());
            self.oracle.control_revision += 1;
        }
    }

    fn expire(&mut self) {
        for key in self.state().expired(at(self.now)) {
            let index = self
                .oracle
                .calls
                .iter()
                .position(|call| call.step == key.step && call.id == key.id);
            let call = &mut self.oracle.calls[index.unwrap()];
            assert_eq!(call.fate, Fate::Pending);
            call.fate = Fate::Expired;
            self.oracle.state_version += 1;
            self.apply(Event::Expired { call: key });
        }
        let now = self.now;
        let late =
            |call: &&crate::oracle::OCall| call.fate == Fate::Pending && now - call.at >= 600;
        assert_eq!(self.oracle.calls.iter().filter(late).count(), 0);
    }

    fn end(&mut self, rng: &mut Rng) {
        let over = self.is_over();
        if rng.bool() {
            self.apply(Event::Killed {
                cause: "test".to_owned(),
            });
            self.oracle.killed |= !over;
        } else {
            self.apply(Event::Restored);
            self.oracle.restored |= !over;
        }
        self.oracle.control_revision += u64::from(!over);
    }

    fn compare(&self) {
        let oracle = &self.oracle;
        let narrowing = narrow(&self.rules, self.state(), &self.request.tools);
        for tool in &self.request.tools {
            let removed = narrowing
                .removed(&tool.name)
                .map(|removed| removed.reason.as_str());
            assert_eq!(
                removed,
                oracle.removal(&tool.name),
                "{} {oracle:#?}",
                tool.name
            );
        }
        let refusal = precheck(&self.rules, self.state(), &self.request, &narrowing).err();
        let refusal = refusal.map(|refusal| refusal.check());
        assert_eq!(refusal.map(PreCheck::as_str), oracle.refusal());
        let snapshot = self.state().snapshot(self.rules.compiled());
        assert_eq!(snapshot.current_phase, oracle.phase());
        assert_eq!(snapshot.total_step_count, oracle.steps);
        assert_eq!(snapshot.total_tool_calls, oracle.commits.len() as u64);
        let forbidden: Vec<String> = oracle.forbidden_tools(true).into_iter().collect();
        assert_eq!(snapshot.forbidden_tools, forbidden);
        let labels: Vec<String> = oracle.labels.iter().cloned().collect();
        assert_eq!(snapshot.labels, labels);
        assert_eq!(snapshot.attempt_count, oracle.attempts);
        assert_eq!(snapshot.checkpoint_count, oracle.checkpoints);
        assert_eq!(snapshot.killed, oracle.killed);
        assert_eq!(snapshot.consecutive_block_count, oracle.blocks_in_a_row);
        assert_eq!(snapshot.total_block_count, oracle.blocks);
        assert_eq!(snapshot.state_version, oracle.state_version);
        assert_eq!(snapshot.control_revision, oracle.control_revision);
    }
}

/// Also the property that no order of calls in a response, and no sequence of responses, unlocks a call that the
/// tables block: every verdict of every sequence is compared.
#[test]
fn the_oracle_agrees_over_a_hundred_thousand_generated_cases() {
    let mut judged = 0;
    let mut allowed = 0;
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    let mut seed = 0;
    while judged < CASES {
        seed += 1;
        let mut rng = Rng::with_seed(seed);
        let mut pair = Pair::new(&mut rng);
        pair.compare();
        for number in 0..OPERATIONS {
            pair.operate(&mut rng);
            // State is compared now and then: looking at all of it costs more than a verdict.
            if number % 3 == 0 {
                pair.compare();
            }
            // One more look at a session that is over is enough.
            if pair.is_over() {
                pair.compare();
                pair.respond(&mut rng);
                break;
            }
        }
        judged += pair.judged;
        allowed += pair.allowed;
        for (word, count) in pair.reasons {
            *reasons.entry(word).or_default() += count;
        }
    }
    println!("{judged} responses in {seed} sessions, {allowed} calls allowed, {reasons:?}");
    // A generator that stopped reaching a reason would agree about nothing.
    for reason in contracts::BlockReason::ALL {
        if *reason != contracts::BlockReason::ExecutionConstraintViolated {
            let count = reasons.get(reason.as_str()).copied().unwrap_or_default();
            assert!(count >= 20, "{reason}: {count}");
        }
    }
    assert!(allowed > CASES / 4, "{allowed}");
}
