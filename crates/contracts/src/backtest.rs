//! Judging again what was recorded: what would these contracts have done to a run that went its way?
//!
//! State follows what happened, as in shadow: what was refused then did not happen. What counts is the difference: a call that
//! was refused then and is refused now is as before. What the record does not hold is not judgeable, and neither is anything
//! after a gap in it: an absent fact must not look like a permission.

use std::collections::BTreeMap;

use canon::Digest;
use domain::Timestamp;
use serde::Serialize;

use crate::checkpoint::Answers;
use crate::decimal::Decimal;
use crate::event::{Begin, Call, CallKey, Event, Outcome, Release, Responded, SeenOutput};
use crate::judge::{Occasion, Status, judge};
use crate::narrow::narrow;
use crate::precheck::{Refusal, precheck};
use crate::reason::BlockReason;
use crate::request::{OfferedTool, Request, Response, ToolChoice};
use crate::rules::Rules;
use crate::state::State;
use crate::value::Value;

/// Something that a recorded run tells.
#[derive(Debug, Clone)]
pub enum Told {
    /// The tools that the model was offered from here on.
    Offered(Vec<OfferedTool>),
    /// The model answered.
    Answered {
        /// When.
        at: Timestamp,
        /// What it said.
        response: Response,
        /// What it cost in dollars, if the record says so.
        cost: Option<Decimal>,
    },
    /// People were asked about calls of the last answer.
    Asked {
        /// The provider's ids of the calls, as far as the record names them.
        calls: Vec<String>,
        /// How many questions there were.
        count: u64,
    },
    /// The last answer was settled then; an answer that nobody judged is never followed by this.
    Judged {
        /// The provider's ids of the calls that were not released.
        refused: Vec<String>,
        /// True when nothing of the answer was released.
        whole: bool,
    },
    /// A call was not made, for another reason than contracts.
    Denied {
        /// The provider's id of the call.
        call_id: String,
    },
    /// A call ended.
    Ended {
        /// The provider's id of the call.
        call_id: String,
        /// Whether it did what it should; none when nobody knows.
        ok: Option<bool>,
        /// What it returned, if the record says so.
        output: Option<String>,
    },
    /// Something was here that the record does not hold.
    Gap {
        /// What.
        what: String,
    },
}

/// What these contracts say about a recorded run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Verdicts {
    /// Every call of the run, in order.
    pub calls: Vec<CallVerdict>,
    /// What the record does not hold.
    pub gaps: Vec<String>,
}

/// What these contracts say about a recorded call, or about a request that would not have been sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CallVerdict {
    /// The answer of the model it belongs to, from 1.
    pub turn: u64,
    /// The provider's id; none for a request.
    pub call_id: Option<String>,
    /// The tool; none for a request.
    pub tool: Option<String>,
    /// The digest of the arguments.
    pub arguments_digest: Option<Digest>,
    /// What became of it when it was recorded.
    pub then: Then,
    /// The answer.
    pub verdict: Backtested,
    /// How the answer differs from what was recorded.
    pub change: Change,
    /// The reasons of a block.
    pub reasons: Vec<BlockReason>,
    /// More about the first, or why nothing can be said.
    pub detail: Option<String>,
    /// The file of the rule.
    pub contract_file: Option<String>,
}

/// What would have become of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Backtested {
    /// It would have been allowed.
    Allowed,
    /// A person would have been asked.
    Asked,
    /// It would have been blocked.
    Blocked,
    /// Nobody can say: the record does not hold what the rules look at.
    NotJudgeable,
}

/// What became of a call when it was recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Then {
    /// It was made, or the request was sent.
    Made,
    /// A person was asked, and it was made.
    Asked,
    /// It was not made: contracts, people or the rights of the agent stood against it.
    Refused,
}

/// How an answer differs from what was recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// It does not.
    AsBefore,
    /// It was made, and would have been blocked.
    Stopped,
    /// It was made without a question, and a person would have been asked.
    NowAsked,
    /// It was refused, or asked about, and would not have been.
    Loosened,
    /// Nobody can say.
    NotJudgeable,
}

impl Verdicts {
    /// Returns the first call that was made and would have been blocked.
    pub fn first_stopped(&self) -> Option<&CallVerdict> {
        self.changed(Change::Stopped).next()
    }

    /// Returns those after the first: had it been blocked, the run would have gone another way.
    pub fn later_stopped(&self) -> impl Iterator<Item = &CallVerdict> {
        self.changed(Change::Stopped).skip(1)
    }

    /// Returns the calls that differ from the record in this way.
    pub fn changed(&self, change: Change) -> impl Iterator<Item = &CallVerdict> {
        self.calls.iter().filter(move |call| call.change == change)
    }

    /// Returns how many calls have this answer.
    pub fn count(&self, verdict: Backtested) -> usize {
        let same = |call: &&CallVerdict| call.verdict == verdict;
        self.calls.iter().filter(same).count()
    }
}

/// Judges a recorded run. The rules must enforce and wrap every tool, so that what became of calls is taken from the
/// record.
pub fn backtest(rules: &Rules, at: Timestamp, told: &[Told]) -> Verdicts {
    let mut verdicts = Verdicts {
        calls: Vec::new(),
        gaps: Vec::new(),
    };
    let begin = Begin {
        session_id: rules.options().session_id.clone(),
        agent: rules.options().agent.clone(),
        at,
        compiled: rules.compiled().digest(),
        labels: rules.options().labels.clone(),
        slots: BTreeMap::new(),
    };
    let Ok(state) = State::begin(rules.compiled(), &begin) else {
        verdicts.gaps.push("the session cannot begin".to_owned());
        return verdicts;
    };
    let mut run = Run {
        rules,
        state,
        offered: None,
        turn: 0,
        told_cost: false,
        held: None,
        verdicts,
    };
    for told in told {
        run.take(told);
    }
    run.settle(None);
    run.verdicts
}

struct Run<'a> {
    rules: &'a Rules,
    state: State,
    offered: Option<Vec<OfferedTool>>,
    turn: u64,
    /// Whether it was said that a cost limit cannot be judged.
    told_cost: bool,
    /// The last answer, until it is known what became of it.
    held: Option<Held>,
    verdicts: Verdicts,
}

/// An answer of the model that was judged again and did not happen yet.
struct Held {
    at: Timestamp,
    calls: Vec<Call>,
    /// Those that stood when people were asked.
    standing: Vec<Call>,
    cost: Option<Decimal>,
    would_block: u64,
    /// Where its calls begin among the verdicts.
    first: usize,
    /// The name under which people were asked, and how often.
    asked: Option<(String, u64)>,
    asked_calls: Vec<String>,
    /// Calls that were not made.
    denied: Vec<String>,
}

impl Held {
    fn has(&self, call_id: &str) -> bool {
        self.calls.iter().any(|call| call.id == call_id)
    }

    /// True while nobody has said what became of the calls that people were asked about.
    fn is_open(&self) -> bool {
        self.asked.is_some() && !self.calls.iter().all(|call| self.denied.contains(&call.id))
    }
}

/// What was released of an answer.
struct Settled<'a> {
    refused: &'a [String],
    whole: bool,
}

impl Run<'_> {
    fn take(&mut self, told: &Told) {
        match told {
            Told::Offered(tools) => self.offered = Some(tools.clone()),
            Told::Answered { at, response, cost } => {
                if self.held.as_ref().is_some_and(Held::is_open) {
                    let what = "what became of an answer while people were asked".to_owned();
                    self.verdicts.gaps.push(what);
                }
                self.settle(None);
                self.answered(*at, response, *cost);
            }
            Told::Asked { calls, count } => self.asked(calls, *count),
            Told::Judged { refused, whole } => self.settle(Some(Settled {
                refused,
                whole: *whole,
            })),
            Told::Denied { call_id } => self.denied(call_id),
            Told::Ended {
                call_id,
                ok,
                output,
            } => {
                // Calls of earlier answers may end while people are asked about this one.
                if self.held.as_ref().is_some_and(|held| held.has(call_id)) {
                    self.settle(None);
                }
                self.ended(call_id, *ok, output.as_deref());
            }
            Told::Gap { what } => {
                self.settle(None);
                self.verdicts.gaps.push(what.clone());
            }
        }
    }

    /// People were asked: their questions count, whatever they answered.
    fn asked(&mut self, calls: &[String], count: u64) {
        let Some(mut held) = self.held.take() else {
            return;
        };
        let before = held.asked.take();
        let name = before
            .as_ref()
            .map_or_else(|| format!("turn-{}", self.turn), |(name, _)| name.clone());
        let count = before.map_or(0, |(_, count)| count).saturating_add(count);
        self.apply(&Event::Asked {
            at: held.at,
            proposal: name.clone(),
            asked: count,
            calls: held.standing.clone(),
        });
        held.asked = Some((name, count));
        held.asked_calls.extend(calls.iter().cloned());
        self.held = Some(held);
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
            is_it && call.then != Then::Refused
        };
        if let Some(call) = self.verdicts.calls.iter_mut().rev().find(same) {
            call.then = Then::Refused;
            call.change = change(call, false, false);
        }
    }

    /// Lets the last answer happen, as far as it did.
    fn settle(&mut self, settled: Option<Settled<'_>>) {
        let Some(held) = self.held.take() else {
            return;
        };
        let whole = settled.as_ref().is_some_and(|settled| settled.whole);
        let refused = settled.map(|settled| settled.refused).unwrap_or_default();
        if !refused.iter().all(|id| held.has(id)) {
            let what = "which answer a decision was about".to_owned();
            self.verdicts.gaps.push(what);
        }
        let own = self
            .verdicts
            .calls
            .get_mut(held.first..)
            .unwrap_or_default();
        let blocks = own.iter().any(|call| call.verdict == Backtested::Blocked);
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
                (true, _) => Then::Refused,
                (false, true) => Then::Asked,
                (false, false) => Then::Made,
            };
            call.change = change(call, asked, whole && blocks);
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
        self.apply(&Event::Responded(Responded {
            at: held.at,
            proposal: held.asked.map(|(name, _)| name),
            cost: held.cost,
            usage_unknown: held.cost.is_none() && self.rules.compiled().limits_cost(),
            release,
        }));
    }

    fn apply(&mut self, event: &Event) {
        if self.state.advance(self.rules.compiled(), event).is_err() {
            let what = "the record tells what cannot have happened".to_owned();
            self.verdicts.gaps.push(what);
        }
    }

    fn answered(&mut self, at: Timestamp, response: &Response, cost: Option<Decimal>) {
        self.turn += 1;
        for call in self.state.expired(at) {
            self.apply(&Event::Expired { call });
        }
        let request = Request {
            provider: "openai".to_owned(),
            model: "recorded".to_owned(),
            tools: self.offered.clone().unwrap_or_default(),
            choice: ToolChoice::Auto,
            unsupported: None,
            view: Value::Null,
        };
        self.check_request(&request, cost.is_some());
        let answers = Answers::new();
        let occasion = Occasion {
            request: &request,
            now: at,
            proposal: None,
            answers: &answers,
        };
        let judgement = judge(self.rules, &self.state, response, occasion);
        let mut would_block = 0;
        let first = self.verdicts.calls.len();
        for verdict in judgement.verdicts() {
            let contract = self.rules.compiled().contract(&verdict.call().tool);
            let unknown = self
                .unknown(contract.is_some_and(|contract| !contract.input_invariants.is_empty()));
            let (answer, detail) = match (unknown, verdict.status()) {
                (Some(why), _) => (Backtested::NotJudgeable, Some(why)),
                (None, Status::Allow) => (Backtested::Allowed, None),
                (None, Status::Ask) => (Backtested::Asked, None),
                (None, Status::Block) => {
                    let failure = verdict.first_failure();
                    let detail = failure.and_then(|failure| failure.detail.clone());
                    let path = failure.and_then(|failure| failure.path.clone());
                    (Backtested::Blocked, detail.or(path))
                }
            };
            would_block += u64::from(answer == Backtested::Blocked);
            let blocked = answer == Backtested::Blocked;
            self.verdicts.calls.push(CallVerdict {
                turn: self.turn,
                call_id: Some(verdict.call_id().to_owned()),
                tool: Some(verdict.call().tool.clone()),
                arguments_digest: Some(verdict.arguments_digest()),
                then: Then::Made,
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
        let calls = judgement.verdicts().iter();
        self.held = Some(Held {
            at,
            calls: calls.map(|verdict| verdict.call().clone()).collect(),
            standing: judgement.standing(),
            cost,
            would_block,
            first,
            asked: None,
            asked_calls: Vec::new(),
            denied: Vec::new(),
        });
    }

    /// Says why nothing can be said about a call, if that is so.
    fn unknown(&self, looks_at_request: bool) -> Option<String> {
        if let Some(gap) = self.verdicts.gaps.first() {
            return Some(format!("after a gap in the record: {gap}"));
        }
        if self.offered.is_none() {
            return Some("the record does not hold the offered tools".to_owned());
        }
        looks_at_request.then(|| "the record does not hold the request that it looks at".to_owned())
    }

    /// A request that limits would have stopped is a block too.
    fn check_request(&mut self, request: &Request, cost_is_known: bool) {
        let narrowing = narrow(self.rules, &self.state, &request.tools);
        let Err(refusal) = precheck(self.rules, &self.state, request, &narrowing) else {
            return;
        };
        let (reason, detail, contract_file) = match refusal {
            Refusal::Blocked {
                reason,
                detail,
                contract_file,
                ..
            } => (reason, detail, contract_file),
            // The breaker of these contracts would have ended the run before.
            Refusal::Killed { cause } => (BlockReason::Killed, cause, None),
            Refusal::Inactive
            | Refusal::ProviderIncompatible { .. }
            | Refusal::Unsupported { .. } => return,
        };
        let no_cost = ["price_unknown", "usage_unknown"].contains(&detail.as_str());
        // What the record says an answer cost needs no price.
        if cost_is_known && detail == "price_unknown" {
            return;
        }
        // Where it does not say so nothing can be said about a limit: once is enough.
        if no_cost && std::mem::replace(&mut self.told_cost, true) {
            return;
        }
        let unknown = self.unknown(false);
        let verdict = if no_cost || unknown.is_some() {
            Backtested::NotJudgeable
        } else {
            Backtested::Blocked
        };
        let blocked = verdict == Backtested::Blocked;
        self.verdicts.calls.push(CallVerdict {
            turn: self.turn,
            call_id: None,
            tool: None,
            arguments_digest: None,
            then: Then::Made,
            verdict,
            change: match blocked {
                true => Change::Stopped,
                false => Change::NotJudgeable,
            },
            reasons: if blocked { vec![reason] } else { Vec::new() },
            detail: unknown.or(Some(detail)),
            contract_file,
        });
    }

    fn ended(&mut self, call_id: &str, ok: Option<bool>, output: Option<&str>) {
        // Providers may use an id again: an earlier call stays what it came to.
        let record = self.state.calls.get(call_id);
        let step = record.map(|record| record.order.step);
        let latest = |key: &&CallKey| key.id == call_id && Some(key.step) == step;
        let succeeded = ok == Some(true);
        let found = self
            .state
            .unsettled()
            .map(|(key, _)| key)
            .filter(latest)
            .last();
        let Some(call) = found.cloned() else {
            // A call that counted as done when it was released: only its output is news.
            if let Some(text) = output.filter(|_| succeeded) {
                let output = SeenOutput {
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

/// Compares an answer with what was recorded. A call that stands is refused all the same with an answer that is `rejected`.
fn change(call: &CallVerdict, was_asked: bool, rejected: bool) -> Change {
    match (call.verdict, call.then) {
        (Backtested::NotJudgeable, _) => Change::NotJudgeable,
        (Backtested::Allowed, Then::Made)
        | (Backtested::Asked, Then::Asked)
        | (Backtested::Blocked, Then::Refused) => Change::AsBefore,
        (Backtested::Blocked, Then::Made | Then::Asked) => Change::Stopped,
        (Backtested::Asked, Then::Made) => Change::NowAsked,
        (Backtested::Allowed | Backtested::Asked, Then::Refused) if rejected => Change::AsBefore,
        // Somebody said no then, and is asked again now.
        (Backtested::Asked, Then::Refused) if was_asked => Change::AsBefore,
        (Backtested::Allowed | Backtested::Asked, Then::Refused)
        | (Backtested::Allowed, Then::Asked) => Change::Loosened,
    }
}
