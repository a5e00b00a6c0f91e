//! Judging again what was recorded: what would these contracts have done to a run that went its way?
//!
//! State follows what happened, as in shadow. What the record does not hold is not judgeable, and neither is anything
//! after a gap in it: an absent fact must not look like a permission.

use std::collections::BTreeMap;

use canon::Digest;
use domain::Timestamp;
use serde::Serialize;

use crate::checkpoint::Answers;
use crate::decimal::Decimal;
use crate::event::{Begin, CallKey, Event, Outcome, Release, Responded, SeenOutput};
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
    /// The answer.
    pub verdict: Backtested,
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

impl Verdicts {
    /// Returns the first call that would have been blocked.
    pub fn first_blocked(&self) -> Option<&CallVerdict> {
        self.blocked().next()
    }

    /// Returns the blocked calls after the first: had it been blocked, the run would have gone another way.
    pub fn later_blocked(&self) -> impl Iterator<Item = &CallVerdict> {
        self.blocked().skip(1)
    }

    /// Returns how many calls have this answer.
    pub fn count(&self, verdict: Backtested) -> usize {
        let same = |call: &&CallVerdict| call.verdict == verdict;
        self.calls.iter().filter(same).count()
    }

    fn blocked(&self) -> impl Iterator<Item = &CallVerdict> {
        let blocked = |call: &&CallVerdict| call.verdict == Backtested::Blocked;
        self.calls.iter().filter(blocked)
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
        verdicts,
    };
    for told in told {
        run.take(told);
    }
    run.verdicts
}

struct Run<'a> {
    rules: &'a Rules,
    state: State,
    offered: Option<Vec<OfferedTool>>,
    turn: u64,
    /// Whether it was said that a cost limit cannot be judged.
    told_cost: bool,
    verdicts: Verdicts,
}

impl Run<'_> {
    fn take(&mut self, told: &Told) {
        match told {
            Told::Offered(tools) => self.offered = Some(tools.clone()),
            Told::Answered { at, response, cost } => self.answered(*at, response, *cost),
            Told::Ended {
                call_id,
                ok,
                output,
            } => self.ended(call_id, *ok, output.as_deref()),
            Told::Gap { what } => self.verdicts.gaps.push(what.clone()),
        }
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
                verdict: answer,
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
        let calls = calls.map(|verdict| verdict.call().clone()).collect();
        self.apply(&Event::Responded(Responded {
            at,
            proposal: None,
            cost,
            usage_unknown: cost.is_none() && self.rules.compiled().limits_cost(),
            release: Release::Shadow { calls, would_block },
        }));
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
        let Refusal::Blocked {
            reason,
            detail,
            contract_file,
            ..
        } = refusal
        else {
            return;
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
            verdict,
            reasons: if blocked { vec![reason] } else { Vec::new() },
            detail: unknown.or(Some(detail)),
            contract_file,
        });
    }

    fn ended(&mut self, call_id: &str, ok: Option<bool>, output: Option<&str>) {
        // Providers may use an id again: an earlier call stays what it came to.
        let step = self.state.steps();
        let latest = |key: &&CallKey| key.id == call_id && key.step == step;
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
