//! Judging again what was recorded: what would these contracts have done to a run that went its way?
//!
//! State follows what happened, as in shadow: what was refused then did not happen. What counts is the difference: a call that
//! was refused then and is refused now is as before. What the record does not hold is not judgeable, and neither is anything
//! after a gap in it: an absent fact must not look like a permission.

mod entry;
mod verdicts;

use std::collections::{BTreeMap, BTreeSet};

use domain::Timestamp;

use crate::checkpoint::{Answer, Answers};
use crate::decimal::Decimal;
use crate::event::{Call, CallKey, Event, Outcome, Release, Responded, SessionStart, ShownOutput};
use crate::judge::{JudgeContext, Judgement, Status, Verdict, judge_again, judge_in};
use crate::narrow::narrow;
use crate::precheck::{Refusal, check_workflow, precheck};
use crate::reason::BlockReason;
use crate::request::{OfferedTool, Request, Response, ToolChoice};
use crate::rules::Rules;
use crate::state::State;
use crate::value::Value;
use crate::workflow::Seat;
pub use entry::{RecordEntry, RecordedRequest, Start};
use verdicts::change;
pub use verdicts::{Backtested, CallVerdict, Change, RecordedOutcome, Verdicts};

/// Judges a recorded run. The rules must enforce and wrap every tool, so that what became of calls is taken from the
/// record.
pub fn backtest(rules: &Rules, start: impl Into<Start>, entries: &[RecordEntry]) -> Verdicts {
    let mut verdicts = Verdicts {
        calls: Vec::new(),
        gaps: Vec::new(),
    };
    let start: Start = start.into();
    let own = rules.options().labels.iter().cloned();
    let begin = SessionStart {
        session_id: rules.options().session_id.clone(),
        agent: rules.options().agent.clone(),
        at: start.at,
        compiled: rules.compiled().digest(),
        labels: own.chain(start.labels).collect(),
        slots: start.slots,
    };
    let Ok(state) = State::begin(rules.compiled(), &begin) else {
        verdicts.gaps.push("the session cannot begin".to_owned());
        return verdicts;
    };
    let mut run = Run {
        rules,
        state,
        seat: start.seat,
        offered: None,
        sent: start.sent,
        prepared: BTreeMap::new(),
        turn: 0,
        told_unknown: BTreeSet::new(),
        held: None,
        waiting: BTreeMap::new(),
        steps: BTreeMap::new(),
        verdicts,
    };
    for entry in entries {
        run.take(entry);
    }
    run.finish();
    run.verdicts
}

struct Run<'a> {
    rules: &'a Rules,
    state: State,
    /// Its place in a workflow.
    seat: Option<Seat>,
    offered: Option<Vec<OfferedTool>>,
    /// What is known of requests without a name.
    sent: Option<RecordedRequest>,
    /// Requests that were prepared and not answered yet.
    prepared: BTreeMap<String, RecordedRequest>,
    turn: u64,
    /// What was said once not to be judgeable, and is not said again.
    told_unknown: BTreeSet<&'static str>,
    /// The last answer, until it is known what became of it.
    held: Option<PendingAnswer>,
    /// Answers that people were asked about, by their names.
    waiting: BTreeMap<String, PendingAnswer>,
    /// The step that released an answer, by its name.
    steps: BTreeMap<String, u64>,
    verdicts: Verdicts,
}

/// An answer of the model that was judged again and did not happen yet.
struct PendingAnswer {
    at: Timestamp,
    request: Request,
    response: Response,
    calls: Vec<Call>,
    /// Those that stood when people were asked.
    standing: Vec<Call>,
    /// What was said about them first: what was refused stays refused, and takes no room.
    before: Vec<Verdict>,
    cost: Option<Decimal>,
    would_block: u64,
    /// Where its calls lie among the verdicts.
    verdicts: std::ops::Range<usize>,
    /// Its name in the record.
    proposal: Option<String>,
    /// The name under which people were asked, and how often.
    asked: Option<(String, u64)>,
    asked_calls: Vec<String>,
    /// Calls that were not made.
    denied: Vec<String>,
}

impl PendingAnswer {
    fn has(&self, call_id: &str) -> bool {
        self.calls.iter().any(|call| call.id == call_id)
    }

    /// True while nobody has said what became of the calls that people were asked about.
    fn is_open(&self) -> bool {
        self.asked.is_some() && !self.calls.iter().all(|call| self.denied.contains(&call.id))
    }
}

/// What was released of an answer.
struct ReleasedCalls<'a> {
    at: Option<Timestamp>,
    refused: &'a [String],
    whole: bool,
}

impl Run<'_> {
    fn take(&mut self, entry: &RecordEntry) {
        match entry {
            RecordEntry::Offered(tools) => self.offered = Some(tools.clone()),
            RecordEntry::Prepared { id, at, sent } => {
                self.settle_held(None);
                self.expire(*at);
                let request = self.request(Some(sent));
                self.check_request(&request, Some(sent), None);
                self.prepared.insert(id.clone(), (**sent).clone());
            }
            RecordEntry::Answered {
                at,
                response,
                cost,
                prepared,
                proposal,
            } => {
                if self.held.as_ref().is_some_and(PendingAnswer::is_open) {
                    self.gap("what became of an answer while people were asked");
                }
                self.settle_held(None);
                let sent = match prepared {
                    Some(id) => self.prepared.remove(id),
                    None => self.sent.clone(),
                };
                if prepared.is_some() && sent.is_none() {
                    self.gap("the request that was answered");
                }
                self.answered(*at, response, *cost, sent.as_ref(), prepared.is_some());
                if let Some(held) = &mut self.held {
                    held.proposal.clone_from(proposal);
                }
            }
            RecordEntry::Discarded { at, cost } => {
                self.settle_held(None);
                self.respond(*at, None, *cost, Release::Discarded);
            }
            RecordEntry::Asked {
                calls,
                count,
                proposal,
            } => self.asked(calls, *count, proposal.as_deref()),
            RecordEntry::Judged {
                at,
                refused,
                whole,
                proposal,
            } => {
                let settled = ReleasedCalls {
                    at: *at,
                    refused,
                    whole: *whole,
                };
                if let Some(at) = at {
                    self.expire(*at);
                }
                let waiting = proposal.as_ref().and_then(|name| self.waiting.remove(name));
                match waiting {
                    Some(held) => self.settle(held, Some(settled)),
                    None => self.settle_held(Some(settled)),
                }
            }
            RecordEntry::Denied { call_id } => self.denied(call_id),
            RecordEntry::Started { call_id, proposal } => {
                if let Some(call) = self.unsettled(call_id, Some(proposal)) {
                    self.apply(&Event::Started { call });
                }
            }
            RecordEntry::Ended {
                call_id,
                ok,
                output,
                proposal,
            } => {
                // Calls of earlier answers may end while people are asked about this one.
                if proposal.is_none() && self.held.as_ref().is_some_and(|held| held.has(call_id)) {
                    self.settle_held(None);
                }
                self.ended(call_id, *ok, output.as_deref(), proposal.as_deref());
            }
            RecordEntry::Labeled { label } => {
                let label = label.clone();
                self.between(&Event::LabelAdded { label });
            }
            RecordEntry::Filtered { tools } => {
                let tools = tools.clone();
                self.between(&Event::Filtered { tools });
            }
            RecordEntry::Workflow(view) => {
                if let Some(seat) = &mut self.seat {
                    seat.adopt((**view).clone());
                }
            }
            RecordEntry::Gap { what } => {
                self.settle_held(None);
                self.verdicts.gaps.push(what.clone());
            }
        }
    }

    /// What came from outside between two answers.
    fn between(&mut self, event: &Event) {
        if !self.held.as_ref().is_some_and(PendingAnswer::is_open) {
            self.settle_held(None);
        }
        self.apply(event);
    }

    fn gap(&mut self, what: &str) {
        self.verdicts.gaps.push(what.to_owned());
    }

    /// Settles what is left at the end: an answer about which people were asked, and nobody decided, did not happen.
    fn finish(&mut self) {
        self.settle_held(None);
        for (_, held) in std::mem::take(&mut self.waiting) {
            let settled = ReleasedCalls {
                at: None,
                refused: &[],
                whole: true,
            };
            self.settle(held, Some(settled));
        }
    }

    /// People were asked: their questions count, whatever they answered.
    fn asked(&mut self, calls: &[String], count: u64, proposal: Option<&str>) {
        let Some(mut held) = self.held.take() else {
            return;
        };
        let before = held.asked.take();
        let name = before.as_ref().map(|(name, _)| name.clone());
        let name = name.or_else(|| proposal.map(str::to_owned));
        let name = name.unwrap_or_else(|| format!("turn-{}", self.turn));
        let count = before.map_or(0, |(_, count)| count).saturating_add(count);
        self.apply(&Event::Asked {
            at: held.at,
            proposal: name.clone(),
            asked: count,
            calls: held.standing.clone(),
        });
        held.asked = Some((name.clone(), count));
        held.asked_calls.extend(calls.iter().cloned());
        match proposal {
            // The session is not locked while people are asked.
            Some(_) => drop(self.waiting.insert(name, held)),
            None => self.held = Some(held),
        }
    }

    fn denied(&mut self, call_id: &str) {
        if let Some(held) = &mut self.held {
            held.denied.push(call_id.to_owned());
            return;
        }
        // The answer is settled; what stood against the call was not the contracts.
        let turn = self.turn;
        let same = |call: &&mut CallVerdict| {
            let is_it = call.turn == turn && call.call_id.as_deref() == Some(call_id);
            is_it && call.then != RecordedOutcome::Refused
        };
        if let Some(call) = self.verdicts.calls.iter_mut().rev().find(same) {
            call.then = RecordedOutcome::Refused;
            call.change = change(call, false, false);
        }
    }

    fn settle_held(&mut self, settled: Option<ReleasedCalls<'_>>) {
        if let Some(held) = self.held.take() {
            self.settle(held, settled);
        }
    }

    /// Judges an answer once more that people consented to: minutes passed, and a label, a filter or a limit may have come.
    fn judge_after_consent(&mut self, held: &PendingAnswer, at: Timestamp) {
        let Some((name, _)) = &held.asked else { return };
        let compiled = self.rules.compiled().digest();
        let answers: Answers = held
            .calls
            .iter()
            .map(|call| {
                let arguments = call.arguments_digest;
                (
                    call.id.clone(),
                    Answer::Approved {
                        arguments,
                        compiled,
                    },
                )
            })
            .collect();
        let occasion = JudgeContext {
            request: &held.request,
            now: at,
            proposal: Some(name),
            answers: &answers,
        };
        let seat = self.seat.as_ref();
        let (state, response) = (&self.state, &held.response);
        let judgement = judge_again(self.rules, state, response, occasion, seat, &held.before);
        let own = self.verdicts.calls.get_mut(held.verdicts.clone());
        for (call, verdict) in own.unwrap_or_default().iter_mut().zip(judgement.verdicts()) {
            if verdict.status() == Status::Block && call.verdict != Backtested::NotJudgeable {
                call.verdict = Backtested::Blocked;
                call.reasons = verdict.all_reasons();
                call.detail = detail_of(verdict);
            }
        }
    }

    /// Lets an answer happen, as far as it did.
    fn settle(&mut self, held: PendingAnswer, settled: Option<ReleasedCalls<'_>>) {
        let whole = settled.as_ref().is_some_and(|settled| settled.whole);
        let at = settled.as_ref().and_then(|settled| settled.at);
        let at = at.unwrap_or(held.at);
        let refused = settled.map(|settled| settled.refused).unwrap_or_default();
        if !refused.iter().all(|id| held.has(id)) {
            self.gap("which answer a decision was about");
        }
        if !whole {
            self.judge_after_consent(&held, at);
        }
        let own = self.verdicts.calls.get_mut(held.verdicts.clone());
        let own = own.unwrap_or_default();
        let has = |verdict| own.iter().any(|call| call.verdict == verdict);
        let blocks = has(Backtested::Blocked);
        // What people said no to takes the rest of the answer with it, and these contracts ask them too.
        let rejected = whole && (blocks || (held.asked.is_some() && has(Backtested::Asked)));
        let has_names = !held.asked_calls.is_empty();
        for call in own.iter_mut().filter(|call| call.call_id.is_some()) {
            let named = |ids: &[String]| {
                let mut ids = ids.iter();
                ids.any(|id| call.call_id.as_deref() == Some(id))
            };
            let asked = match has_names {
                true => named(&held.asked_calls),
                // An older record says how many questions there were, and not about what.
                false => held.asked.is_some(),
            };
            let is_refused = whole || named(refused) || named(&held.denied);
            call.then = match (is_refused, asked) {
                (true, _) => RecordedOutcome::Refused,
                (false, true) => RecordedOutcome::Asked,
                (false, false) => RecordedOutcome::Made,
            };
            call.change = change(call, asked, rejected);
        }
        let gone = |call: &Call| refused.contains(&call.id);
        let calls: Vec<Call> = held.calls.into_iter().filter(|call| !gone(call)).collect();
        let release = match (whole, blocks) {
            (false, _) => Release::Shadow {
                calls,
                would_block: held.would_block,
            },
            (true, true) => Release::Blocked,
            // It did not happen, and these contracts have nothing against it: no block of theirs.
            (true, false) => Release::Discarded,
        };
        let name = held.asked.map(|(name, _)| name);
        self.respond(at, name, held.cost, release);
        if let (false, Some(proposal)) = (whole, held.proposal) {
            self.steps.insert(proposal, self.state.steps());
        }
    }

    /// Lets go of calls that nobody had executed by then.
    fn expire(&mut self, at: Timestamp) {
        for call in self.state.expired(at) {
            self.apply(&Event::Expired { call });
        }
    }

    fn respond(
        &mut self,
        at: Timestamp,
        proposal: Option<String>,
        cost: Option<Decimal>,
        release: Release,
    ) {
        self.apply(&Event::Responded(Responded {
            at,
            proposal,
            cost,
            usage_unknown: cost.is_none() && self.rules.compiled().limits_cost(),
            release,
        }));
    }

    fn apply(&mut self, event: &Event) {
        if self.state.advance(self.rules.compiled(), event).is_err() {
            self.gap("the record tells what cannot have happened");
        }
        if let Some(seat) = &mut self.seat {
            seat.follow(&self.state);
            // The others heard it then.
            seat.news();
        }
    }

    fn request(&self, sent: Option<&RecordedRequest>) -> Request {
        let tools = sent.and_then(|sent| sent.tools.clone());
        Request {
            provider: sent.map_or("openai", |sent| &sent.provider).to_owned(),
            model: sent.map_or("recorded", |sent| &sent.model).to_owned(),
            tools: tools.or_else(|| self.offered.clone()).unwrap_or_default(),
            choice: sent.map_or(ToolChoice::Auto, |sent| sent.choice.clone()),
            unsupported: None,
            view: sent
                .and_then(|sent| sent.view.clone())
                .unwrap_or(Value::Null),
        }
    }

    fn answered(
        &mut self,
        at: Timestamp,
        response: &Response,
        cost: Option<Decimal>,
        sent: Option<&RecordedRequest>,
        is_checked: bool,
    ) {
        self.turn += 1;
        self.expire(at);
        let request = self.request(sent);
        if !is_checked {
            self.check_request(&request, sent, cost);
        }
        let answers = Answers::new();
        let occasion = JudgeContext {
            request: &request,
            now: at,
            proposal: None,
            answers: &answers,
        };
        let seat = self.seat.as_ref();
        let judgement = judge_in(self.rules, &self.state, response, occasion, seat);
        let first = self.verdicts.calls.len();
        let would_block = self.say(&judgement, sent);
        let calls = judgement.verdicts().iter();
        self.held = Some(PendingAnswer {
            at,
            calls: calls.map(|verdict| verdict.call().clone()).collect(),
            standing: judgement.standing_calls(),
            before: judgement.verdicts().to_vec(),
            cost,
            would_block,
            verdicts: first..self.verdicts.calls.len(),
            proposal: None,
            asked: None,
            asked_calls: Vec::new(),
            denied: Vec::new(),
            request,
            response: response.clone(),
        });
    }

    /// Writes down what is said about the calls of an answer. Returns how many would have been blocked.
    fn say(&mut self, judgement: &Judgement, sent: Option<&RecordedRequest>) -> u64 {
        let mut would_block = 0;
        let has_view = sent.is_some_and(|sent| sent.view.is_some());
        let has_tools = sent.is_some_and(|sent| sent.tools.is_some());
        for verdict in judgement.verdicts() {
            let contract = self.rules.compiled().contract(&verdict.call().tool);
            let looks = contract.is_some_and(|contract| !contract.input_invariants.is_empty());
            let unknown = self.unknown(looks && !has_view, has_tools);
            let (answer, detail) = match (unknown, verdict.status()) {
                (Some(why), _) => (Backtested::NotJudgeable, Some(why)),
                (None, Status::Allow) => (Backtested::Allowed, None),
                (None, Status::Ask) => (Backtested::Asked, None),
                (None, Status::Block) => (Backtested::Blocked, detail_of(verdict)),
            };
            let blocked = answer == Backtested::Blocked;
            would_block += u64::from(blocked);
            self.verdicts.calls.push(CallVerdict {
                turn: self.turn,
                call_id: Some(verdict.call_id().to_owned()),
                tool: Some(verdict.call().tool.clone()),
                arguments_digest: Some(verdict.arguments_digest()),
                then: RecordedOutcome::Made,
                verdict: answer,
                // Said once it is known what became of the call.
                change: Change::NotJudgeable,
                reasons: if blocked {
                    verdict.all_reasons()
                } else {
                    Vec::new()
                },
                detail,
                contract_file: verdict.contract_file().map(ToOwned::to_owned),
            });
        }
        would_block
    }

    /// Says why nothing can be said about a call, if that is so.
    fn unknown(&self, lacks_request: bool, has_tools: bool) -> Option<String> {
        if let Some(gap) = self.verdicts.gaps.first() {
            return Some(format!("after a gap in the record: {gap}"));
        }
        if self.offered.is_none() && !has_tools {
            return Some("the record does not hold the offered tools".to_owned());
        }
        lacks_request.then(|| "the record does not hold the request that it looks at".to_owned())
    }

    /// A request that limits would have stopped is a block too.
    fn check_request(
        &mut self,
        request: &Request,
        sent: Option<&RecordedRequest>,
        cost: Option<Decimal>,
    ) {
        let narrowing = narrow(self.rules, &self.state, &request.tools);
        let checked = precheck(self.rules, &self.state, request, &narrowing);
        let checked = checked.and_then(|()| check_workflow(self.seat.as_ref()));
        let is_first = |run: &mut Self, what| run.told_unknown.insert(what);
        if sent.is_none() && self.rules.excludes_models() && is_first(self, "model") {
            let detail = "the record does not name the model".to_owned();
            self.say_request(Backtested::NotJudgeable, Vec::new(), detail, None);
        }
        let Err(refusal) = checked else { return };
        let (reasons, detail, contract_file) = match refusal {
            Refusal::Blocked {
                reason,
                detail,
                contract_file,
                ..
            } => (vec![reason], detail, contract_file),
            // The breaker of these contracts would have ended the run before.
            Refusal::Killed { cause } => (vec![BlockReason::Killed], cause, None),
            Refusal::ProviderIncompatible { pattern } if sent.is_some() => (
                Vec::new(),
                format!("provider_incompatible: {pattern}"),
                None,
            ),
            Refusal::Inactive
            | Refusal::ProviderIncompatible { .. }
            | Refusal::Unsupported { .. } => return,
        };
        let no_cost = ["price_unknown", "usage_unknown"].contains(&detail.as_str());
        // What the record says an answer cost needs no price.
        if cost.is_some() && detail == "price_unknown" {
            return;
        }
        // Where it does not say so nothing can be said about a limit: once is enough.
        if no_cost && !is_first(self, "cost") {
            return;
        }
        let unknown = self.unknown(false, sent.is_some_and(|sent| sent.tools.is_some()));
        match (no_cost, unknown) {
            (false, None) => {
                self.say_request(Backtested::Blocked, reasons, detail, contract_file);
            }
            (_, unknown) => {
                let detail = unknown.unwrap_or(detail);
                self.say_request(Backtested::NotJudgeable, Vec::new(), detail, contract_file);
            }
        }
    }

    fn say_request(
        &mut self,
        verdict: Backtested,
        reasons: Vec<BlockReason>,
        detail: String,
        contract_file: Option<String>,
    ) {
        self.verdicts.calls.push(CallVerdict {
            turn: self.turn,
            call_id: None,
            tool: None,
            arguments_digest: None,
            then: RecordedOutcome::Made,
            verdict,
            change: match verdict {
                Backtested::Blocked => Change::Stopped,
                Backtested::Allowed | Backtested::Asked | Backtested::NotJudgeable => {
                    Change::NotJudgeable
                }
            },
            reasons,
            detail: Some(detail),
            contract_file,
        });
    }

    /// Finds a call that was released and whose end is not known.
    fn unsettled(&self, call_id: &str, proposal: Option<&str>) -> Option<CallKey> {
        let step = match proposal {
            Some(name) => self.steps.get(name).copied(),
            // Providers may use an id again: an earlier call stays what it came to.
            None => {
                let record = self.state.calls.get(call_id);
                record.map(|record| record.order.step)
            }
        };
        let is_it = |key: &&CallKey| key.id == call_id && Some(key.step) == step;
        let mut keys = self.state.unsettled().map(|(key, _)| key);
        keys.find(is_it).cloned()
    }

    fn ended(
        &mut self,
        call_id: &str,
        ok: Option<bool>,
        output: Option<&str>,
        proposal: Option<&str>,
    ) {
        let succeeded = ok == Some(true);
        let Some(call) = self.unsettled(call_id, proposal) else {
            // A call that counted as done when it was released: only its output is news.
            if let Some(text) = output.filter(|_| succeeded) {
                let output = ShownOutput {
                    call_id: call_id.to_owned(),
                    text: text.to_owned(),
                };
                self.apply(&Event::OutputsSeen {
                    outputs: vec![output],
                });
            }
            return;
        };
        self.apply(&Event::Started { call: call.clone() });
        let outcome = match ok {
            Some(true) => Outcome::Success,
            Some(false) => Outcome::Error,
            None => Outcome::Unknown,
        };
        self.apply(&Event::Settled {
            call,
            outcome,
            output: output.filter(|_| succeeded).map(ToOwned::to_owned),
        });
    }
}

/// Says more about a block: its detail, or the place that it looked at.
fn detail_of(verdict: &Verdict) -> Option<String> {
    let failure = verdict.first_failure()?;
    failure.detail.clone().or_else(|| failure.path.clone())
}
