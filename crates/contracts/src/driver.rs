//! A governed session on bytes, for programs that do their own waiting: language bindings and servers.
//!
//! Every method is synchronous and finite. The model is asked by the caller between [`Driver::plan`] and
//! [`Driver::judge`], a person between [`Driver::judge`] and [`Driver::answer`], a tool between [`Driver::execute`] and
//! [`Driver::settle`]. Several requests may be open at once; each is judged against the state of its moment.
//!
//! What happened is in [`Driver::records`]. A caller that must not lose it stores the records of an answer before it
//! acts on the answer: nothing is released here, the caller releases.

mod control;
mod execution;
mod remote;
mod shared;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use canon::Digest;
use domain::Timestamp;
use serde::Serialize;

use crate::capture::{self, Buffer, CaptureLevel};
use crate::checkpoint::{
    Answer, Answers, ApprovalRequest, ApprovalResponse, question, read_answer,
};
use crate::decimal::Decimal;
use crate::event::{Begin, Call, CallKey, Event, Release, Responded};
use crate::gate::{
    AttemptCost, Decision, Settlement, ShadowDelta, refused, settle, settled, shadow_delta,
    unreadable,
};
use crate::judge::{Judgement, Occasion, judge_in};
use crate::narrow::{Narrowing, narrow};
use crate::precheck::{
    Refusal, check_attempt, check_attempts, check_open, check_workflow, precheck, provider_warnings,
};
use crate::rules::{Feedback, Mode, Permission, Rules};
use crate::state::State;
use crate::wire::{Plan, Reply, ReplyError, Wire, WireRequest};
use crate::workflow::Seat;

pub use control::{Control, ControlError, Label};
pub use execution::{Ended, SettleError, Ticket};
pub use remote::{Before, Proposal, Settled};

/// How many records may wait to be read: a session whose record nobody takes does not go on.
const RECORDS_MAX: usize = 10_000;

/// A governed session.
#[derive(Debug)]
pub struct Driver {
    rules: Rules,
    state: State,
    /// Whether some contract looks at requests.
    looks_at_requests: bool,
    open: BTreeMap<u64, Open>,
    next_attempt: u64,
    next_id: u64,
    tickets: BTreeMap<u64, (String, Option<CallKey>)>,
    /// Responses that were released whole and may be continued.
    created: BTreeSet<String>,
    records: VecDeque<Record>,
    first_record: u64,
    last_delta: Option<ShadowDelta>,
    warned: BTreeSet<String>,
    diagnostics: Vec<Diagnostic>,
    captures: Buffer,
    seat: Option<Seat>,
    /// Where the server judges.
    remote: Option<remote::Remote>,
    /// True where nobody takes records and captures.
    keeps_nothing: bool,
}

/// A request that is under way.
#[derive(Debug)]
struct Open {
    request: WireRequest,
    narrowing: Narrowing,
    retries_left: u32,
    /// What the model is told about tools.
    told: Option<String>,
    waiting: Option<Waiting>,
    /// The response that the server judges.
    proposed: Option<remote::Proposed>,
}

/// A response that waits for people.
#[derive(Debug)]
struct Waiting {
    reply: Reply,
    proposal: String,
    asked: u64,
    answers: Answers,
    question: ApprovalRequest,
    call: Call,
}

/// Something that happened, as it is kept.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Record {
    /// Its number in the session, from 0.
    pub seq: u64,
    /// What happened.
    pub event: Event,
    /// The decision that caused it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decision: Option<Decision>,
}

/// Something the program should hear about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Diagnostic {
    /// What.
    pub name: &'static str,
    /// When.
    pub time: Timestamp,
    /// The session.
    pub session_id: String,
    /// The commits so far.
    pub state_version: u64,
    /// Plain values about it.
    pub data: BTreeMap<&'static str, String>,
}

/// A request that may be sent.
#[derive(Debug, Clone, PartialEq)]
pub struct Planned {
    /// Names the request in [`Driver::judge`] and [`Driver::failed`].
    pub attempt: u64,
    /// The bytes to send.
    pub body: Vec<u8>,
    /// What stayed and what went.
    pub narrowing: Narrowing,
}

/// What becomes of a response.
#[derive(Debug, Clone, PartialEq)]
pub enum Judged {
    /// It goes to the caller: these bytes. The decision is missing in log-only.
    Released {
        /// The response, whole or without its blocked calls.
        body: Vec<u8>,
        /// The record.
        decision: Option<Decision>,
    },
    /// The caller gets a contract error.
    Rejected(Box<Decision>),
    /// The model is asked again, with these bytes.
    Retried {
        /// The request to send.
        body: Vec<u8>,
        /// The record.
        decision: Box<Decision>,
    },
    /// A person is asked; [`Driver::answer`] goes on.
    Asked(Box<ApprovalRequest>),
}

/// Why a request or response goes no further.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum DriveError {
    /// Contracts or limits refuse the request.
    #[error("blocked by contract")]
    Contract(Box<Decision>),
    /// The session was stopped for good.
    #[error("the session was killed: {cause}")]
    Killed {
        /// Why.
        cause: String,
    },
    /// The session was ended.
    #[error("the session was ended")]
    Inactive,
    /// The contracts exclude the model.
    #[error("the contracts exclude this model: {pattern}")]
    ProviderIncompatible {
        /// The pattern that matched.
        pattern: String,
    },
    /// The request has a member that cannot be judged.
    #[error("the request has `{member}`, which cannot be judged")]
    Unsupported {
        /// Its name.
        member: String,
    },
    /// The provider failed.
    #[error("the provider failed: {detail}")]
    Provider {
        /// How.
        detail: String,
    },
    /// Nothing of this name is under way.
    #[error("nothing of this name is under way")]
    Unknown,
    /// Nobody takes the records.
    #[error("the records of the session are not read")]
    RecordsUnread,
}

/// How an attempt failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failed {
    /// The provider or the connection failed.
    Provider,
    /// The caller gave up: what it cost is not known.
    Aborted,
    /// Governance itself failed around this call: a store, a server.
    Fault,
    /// Nothing was sent, and nothing happened.
    Withdrawn,
}

impl Driver {
    /// Begins a session.
    ///
    /// # Errors
    /// A slot that was handed over is not JSON.
    pub fn open(rules: Rules, at: Timestamp) -> Result<Self, crate::state::ImpossibleEvent> {
        Self::open_with(rules, at, BTreeMap::new())
    }

    /// Begins a session with slots that a parent handed over, as JSON texts.
    ///
    /// # Errors
    /// As [`Driver::open`].
    pub fn open_with(
        rules: Rules,
        at: Timestamp,
        slots: BTreeMap<String, String>,
    ) -> Result<Self, crate::state::ImpossibleEvent> {
        Self::open_labelled(rules, at, slots, &[])
    }

    fn open_labelled(
        rules: Rules,
        at: Timestamp,
        slots: BTreeMap<String, String>,
        labels: &[String],
    ) -> Result<Self, crate::state::ImpossibleEvent> {
        let options = rules.options();
        let agent = options.agent.clone();
        let begin = Begin {
            session_id: options.session_id.clone(),
            agent: agent.or_else(|| rules.compiled().session().agent.clone()),
            at,
            compiled: rules.compiled().digest(),
            labels: options.labels.iter().chain(labels).cloned().collect(),
            slots,
        };
        let state = State::begin(rules.compiled(), &begin)?;
        let looks = |contract: &crate::contract::Contract| !contract.input_invariants.is_empty();
        let looks_at_requests = rules.compiled().tools().any(looks);
        Ok(Self {
            looks_at_requests,
            rules,
            state,
            open: BTreeMap::new(),
            next_attempt: 1,
            next_id: 0,
            tickets: BTreeMap::new(),
            created: BTreeSet::new(),
            records: VecDeque::new(),
            first_record: 0,
            last_delta: None,
            warned: BTreeSet::new(),
            diagnostics: Vec::new(),
            captures: Buffer::default(),
            seat: None,
            remote: None,
            keeps_nothing: false,
        })
    }

    /// Plans a request: narrowed, checked, and written as it is to be sent.
    ///
    /// # Errors
    /// The session is over, or the request is refused.
    pub fn plan(&mut self, wire: Wire, body: &[u8], now: Timestamp) -> Result<Planned, DriveError> {
        self.check_open()?;
        self.check_records()?;
        self.expire(now);
        let mut request = WireRequest::read(wire, body, &self.created);
        self.take_outputs(&request, now);
        let log_only = self.rules.options().mode == Mode::LogOnly;
        let mut narrowing = Narrowing::default();
        let mut told = None;
        if !log_only {
            narrowing = narrow(&self.rules, &self.state, &request.request().tools);
            let event = Event::Narrowed {
                narrowing: narrowing.clone(),
            };
            self.commit(event, None);
            self.precheck(&request, &narrowing, now)?;
            told = narrowing.feedback();
        }
        let body = self.written(&mut request, &narrowing, told.as_deref());
        let attempt = self.next_attempt;
        self.next_attempt += 1;
        let open = Open {
            request,
            narrowing: narrowing.clone(),
            retries_left: self.rules.options().retries_max,
            told,
            waiting: None,
            proposed: None,
        };
        self.open.insert(attempt, open);
        Ok(Planned {
            attempt,
            body,
            narrowing,
        })
    }

    /// Judges the response to a planned request.
    ///
    /// # Errors
    /// The session is over, the provider failed, or there is no such request.
    pub fn judge(
        &mut self,
        attempt: u64,
        response: &[u8],
        is_sse: bool,
        now: Timestamp,
    ) -> Result<Judged, DriveError> {
        let mut open = self.open.remove(&attempt).ok_or(DriveError::Unknown)?;
        if open.waiting.is_some() {
            self.open.insert(attempt, open);
            return Err(DriveError::Unknown);
        }
        let reply = Reply::read(&open.request, response, is_sse, self.counts_usage());
        if let Err(over) = self.check_open() {
            // A response that arrives after a kill is thrown away; its cost counts.
            let usage = reply.ok().and_then(|reply| reply.usage());
            self.discard(&open, usage, None, now);
            return Err(over);
        }
        let reply = match reply {
            Ok(reply) => reply,
            Err(ReplyError::Provider { detail }) => {
                self.commit(failed(now, true), None);
                return Err(DriveError::Provider { detail });
            }
            Err(ReplyError::Unreadable { detail }) if self.rules.enforces() => {
                return Ok(self.block_unreadable(attempt, open, &detail, now));
            }
            // Where nothing is blocked, nothing is changed either.
            Err(ReplyError::Unreadable { detail }) => {
                return Ok(self.pass_unreadable(&open, response, &detail, now));
            }
        };
        if self.rules.options().mode == Mode::LogOnly {
            return Ok(self.log(&open, &reply, now));
        }
        // A server that was asked about this response is lost: the session judges by itself.
        open.proposed = None;
        self.go_on(attempt, open, reply, None, Answers::new(), 0, now)
    }

    /// Takes a person's answer, or none when the time is over, and goes on.
    ///
    /// # Errors
    /// As [`Driver::judge`].
    pub fn answer(
        &mut self,
        checkpoint_id: &str,
        answer: Option<&ApprovalResponse>,
        now: Timestamp,
    ) -> Result<Judged, DriveError> {
        let asked = |open: &Open| {
            let waiting = open.waiting.as_ref();
            waiting.is_some_and(|waiting| waiting.question.checkpoint_id == checkpoint_id)
        };
        let found = self.open.iter().find(|(_, open)| asked(open));
        let attempt = *found.ok_or(DriveError::Unknown)?.0;
        let mut open = self.open.remove(&attempt).ok_or(DriveError::Unknown)?;
        let waiting = open.waiting.take().ok_or(DriveError::Unknown)?;
        if let Err(over) = self.check_open() {
            let usage = waiting.reply.usage();
            self.discard(&open, usage, Some(waiting.proposal), now);
            return Err(over);
        }
        let mut answers = waiting.answers;
        let given = match answer {
            Some(answer) => read_answer(
                &self.rules,
                &self.state,
                &waiting.question,
                &waiting.call,
                answer,
                now,
            ),
            None => Answer::TimedOut,
        };
        answers.insert(waiting.call.id, given);
        let proposal = Some(waiting.proposal);
        self.go_on(
            attempt,
            open,
            waiting.reply,
            proposal,
            answers,
            waiting.asked,
            now,
        )
    }

    /// Takes note that a planned request brought no response.
    ///
    /// # Errors
    /// There is no such request.
    pub fn failed(&mut self, attempt: u64, how: Failed, now: Timestamp) -> Result<(), DriveError> {
        let mut open = self.open.remove(&attempt).ok_or(DriveError::Unknown)?;
        if let Some(proposed) = open.proposed.take() {
            let (reply, asked) = proposed.into_parts();
            self.discard(&open, reply.usage(), asked, now);
            if matches!(how, Failed::Provider | Failed::Aborted) {
                return Ok(());
            }
        }
        // A response that waits for people is closed with its request: it must not hold room for ever.
        if let Some(waiting) = &open.waiting {
            let (usage, proposal) = (waiting.reply.usage(), waiting.proposal.clone());
            self.discard(&open, usage, Some(proposal), now);
        }
        match (how, open.waiting.is_some()) {
            (Failed::Provider | Failed::Aborted, true) => {}
            (Failed::Withdrawn, _) => {}
            (Failed::Provider, false) => self.commit(failed(now, true), None),
            (Failed::Aborted, false) => self.discard(&open, None, None, now),
            (Failed::Fault, _) => match self.rules.options().on_error {
                Permission::Block => self.commit(failed(now, false), None),
                Permission::Allow => {
                    let max = self.rules.options().unguarded_calls_max;
                    let last = self.state.unguarded + 1 >= max;
                    self.commit(Event::Unguarded { last }, None);
                    self.tell("unguarded_call", now, &[]);
                }
            },
        }
        Ok(())
    }

    fn check_open(&self) -> Result<(), DriveError> {
        check_open(&self.state).map_err(DriveError::from)
    }

    fn check_records(&self) -> Result<(), DriveError> {
        if self.records.len() >= RECORDS_MAX {
            return Err(DriveError::RecordsUnread);
        }
        Ok(())
    }

    /// Requests whose response is not here yet are attempts too.
    fn check_attempts(&self) -> Result<(), Refusal> {
        check_attempts(&self.rules, &self.state, self.open.len() as u64)
    }

    fn counts_usage(&self) -> bool {
        self.rules.compiled().session().limits.cost_max.is_some()
    }

    fn commit(&mut self, event: Event, decision: Option<Decision>) {
        // Invariant: only events that this session can have are made here.
        if self.state.advance(self.rules.compiled(), &event).is_err() {
            return;
        }
        if let Some(seat) = &mut self.seat {
            seat.follow(&self.state);
        }
        if self.keeps_nothing {
            self.first_record += 1;
            return;
        }
        let seq = self.first_record + self.records.len() as u64;
        self.records.push_back(Record {
            seq,
            event,
            decision,
        });
    }

    fn tell(&mut self, name: &'static str, time: Timestamp, data: &[(&'static str, &str)]) {
        // What nobody reads must not grow without end.
        if self.diagnostics.len() >= RECORDS_MAX {
            self.diagnostics.remove(0);
        }
        let data = data
            .iter()
            .map(|(name, value)| (*name, (*value).to_owned()));
        self.diagnostics.push(Diagnostic {
            name,
            time,
            session_id: self.rules.options().session_id.clone(),
            state_version: self.state.state_version(),
            data: data.collect(),
        });
    }

    fn id(&mut self, kind: &str) -> String {
        self.next_id += 1;
        format!(
            "{}.{kind}.{}",
            self.rules.options().session_id,
            self.next_id
        )
    }

    fn expire(&mut self, now: Timestamp) {
        for call in self.state.expired(now) {
            self.commit(Event::Expired { call }, None);
        }
    }

    fn take_outputs(&mut self, request: &WireRequest, now: Timestamp) {
        if request.outputs().is_empty() {
            return;
        }
        for (name, call) in self.state.output_diagnostics(request.outputs()) {
            self.tell(name, now, &[("call_id", &call)]);
        }
        let outputs = self.state.news(request.outputs());
        if !outputs.is_empty() {
            self.commit(Event::OutputsSeen { outputs }, None);
        }
    }

    fn precheck(
        &mut self,
        request: &WireRequest,
        narrowing: &Narrowing,
        now: Timestamp,
    ) -> Result<(), DriveError> {
        let request = request.request();
        let checked = precheck(&self.rules, &self.state, request, narrowing);
        let checked = checked.and_then(|()| self.check_attempts());
        let checked = checked.and_then(|()| check_workflow(self.seat.as_ref()));
        let Err(refusal) = checked else {
            let model = format!("{}/{}", request.provider, request.model);
            for pattern in provider_warnings(&self.rules, &request.provider, &request.model) {
                if self.warned.insert(model.clone()) {
                    self.tell("replay_provider_warning", now, &[("pattern", &pattern)]);
                }
            }
            return Ok(());
        };
        if !self.rules.enforces() {
            self.tell("violation", now, &[("check", refusal.check().as_str())]);
            return Ok(());
        }
        if let Some(decision) = refused(&self.rules, &self.state, &refusal) {
            self.commit(Event::Refused { at: now }, Some(decision.clone()));
            return Err(DriveError::Contract(Box::new(decision)));
        }
        Err(DriveError::from(refusal))
    }

    /// Writes a request as it is sent, and shows it to the rules that look at requests.
    fn written(
        &self,
        request: &mut WireRequest,
        narrowing: &Narrowing,
        told: Option<&str>,
    ) -> Vec<u8> {
        let enforces = self.rules.enforces();
        let inject = enforces && self.rules.options().feedback == Feedback::Inject;
        let body = request.planned(Plan {
            narrowing: enforces.then_some(narrowing),
            feedback: told.filter(|_| inject),
            count_usage: self.counts_usage(),
        });
        if self.looks_at_requests {
            request.look_at(&body);
        }
        body
    }

    /// Judges, asks the next person, or settles.
    #[expect(
        clippy::too_many_arguments,
        reason = "the parts of a response under way, moved one by one"
    )]
    fn go_on(
        &mut self,
        attempt: u64,
        mut open: Open,
        reply: Reply,
        proposal: Option<String>,
        answers: Answers,
        asked: u64,
        now: Timestamp,
    ) -> Result<Judged, DriveError> {
        let calls = &reply.response().calls;
        open.request
            .read_schemas(|name| calls.iter().any(|call| call.name == name));
        let occasion = Occasion {
            request: open.request.request(),
            now,
            proposal: proposal.as_deref(),
            answers: &answers,
        };
        let seat = self.seat.as_ref();
        let judgement = judge_in(&self.rules, &self.state, reply.response(), occasion, seat);
        let next = judgement
            .asked()
            .next()
            .map(|verdict| verdict.call().clone());
        let Some(call) = next else {
            return self.finish(attempt, open, &reply, &judgement, proposal, now);
        };
        let proposal = proposal.unwrap_or_else(|| self.id("proposal"));
        let asked = asked + 1;
        let event = Event::Asked {
            at: now,
            proposal: proposal.clone(),
            asked,
            calls: judgement.standing(),
        };
        self.commit(event, None);
        let id = self.id("checkpoint");
        let Some(question) = question(&self.rules, &self.state, &call, &id, now) else {
            let mut answers = answers;
            answers.insert(call.id, Answer::Denied { detail: None });
            return self.go_on(attempt, open, reply, Some(proposal), answers, asked, now);
        };
        open.waiting = Some(Waiting {
            reply,
            proposal,
            asked,
            answers,
            question: question.clone(),
            call,
        });
        self.open.insert(attempt, open);
        Ok(Judged::Asked(Box::new(question)))
    }

    fn finish(
        &mut self,
        attempt: u64,
        mut open: Open,
        reply: &Reply,
        judgement: &Judgement,
        proposal: Option<String>,
        now: Timestamp,
    ) -> Result<Judged, DriveError> {
        if !self.rules.enforces() {
            self.tell_difference(&open, judgement, now);
        }
        let number = self.state.attempts() + 1;
        let settlement = settle(&self.rules, judgement, number, open.retries_left);
        let cost = AttemptCost {
            at: now,
            cost: self.cost(&open, reply.usage()),
        };
        let event = settled(
            &self.rules,
            judgement,
            &settlement,
            cost,
            proposal.as_deref(),
        );
        let decision = match &settlement {
            Settlement::Release(decision)
            | Settlement::Strip { decision, .. }
            | Settlement::Reject(decision)
            | Settlement::Retry { decision, .. } => Some(decision.clone()),
            Settlement::Wait => None,
        };
        if let Some(mut event) = event {
            add_hosted(&mut event, reply);
            self.commit(event, decision.clone());
        }
        self.capture(&open, Some(reply), decision.as_ref());
        Ok(match settlement {
            Settlement::Release(decision) => {
                self.created.extend(reply.id().map(ToOwned::to_owned));
                Judged::Released {
                    body: reply.whole(),
                    decision: Some(decision),
                }
            }
            Settlement::Strip {
                decision,
                removed,
                empty,
            } => Judged::Released {
                body: reply.stripped(&removed, empty),
                decision: Some(decision),
            },
            Settlement::Reject(decision) => Judged::Rejected(Box::new(decision)),
            Settlement::Retry { decision, feedback } => {
                open.retries_left -= 1;
                open.told = join(open.narrowing.feedback(), feedback);
                self.retry(attempt, open, decision, now)
            }
            // Nobody is asked any more: `go_on` looked.
            Settlement::Wait => return Err(DriveError::Unknown),
        })
    }

    /// Asks the model again, unless a limit stops it.
    fn retry(
        &mut self,
        attempt: u64,
        mut open: Open,
        decision: Decision,
        now: Timestamp,
    ) -> Judged {
        let checked = check_open(&self.state)
            .and_then(|()| check_attempt(&self.rules, &self.state))
            .and_then(|()| self.check_attempts());
        if let Err(refusal) = checked {
            return Judged::Rejected(Box::new(decision.stop_retry(&refusal)));
        }
        let reason = decision.reason.map(crate::reason::BlockReason::as_str);
        self.tell("retried", now, &[("reason", reason.unwrap_or_default())]);
        let told = open.told.clone();
        let narrowing = open.narrowing.clone();
        let body = self.written(&mut open.request, &narrowing, told.as_deref());
        self.open.insert(attempt, open);
        Judged::Retried {
            body,
            decision: Box::new(decision),
        }
    }

    /// A response that two readers could read differently is blocked as a whole, in every gate.
    fn block_unreadable(
        &mut self,
        attempt: u64,
        mut open: Open,
        detail: &str,
        now: Timestamp,
    ) -> Judged {
        let number = self.state.attempts() + 1;
        let mut decision = unreadable(&self.rules, &self.state, number, detail);
        let again = open.retries_left > 0;
        if again {
            decision.action = crate::gate::Action::Retried;
        }
        let event = Event::Responded(Responded {
            at: now,
            proposal: None,
            cost: self.cost(&open, None),
            usage_unknown: self.counts_usage(),
            release: Release::Blocked,
        });
        self.commit(event, Some(decision.clone()));
        self.capture(&open, None, Some(&decision));
        if again {
            open.retries_left -= 1;
            return self.retry(attempt, open, decision, now);
        }
        Judged::Rejected(Box::new(decision))
    }

    fn pass_unreadable(
        &mut self,
        open: &Open,
        response: &[u8],
        detail: &str,
        now: Timestamp,
    ) -> Judged {
        self.tell(
            "violation",
            now,
            &[("reason", "response_format_invalid"), ("detail", detail)],
        );
        let release = match self.rules.options().mode {
            Mode::LogOnly => Release::Logged { tools: Vec::new() },
            Mode::Enforce | Mode::Shadow => Release::Shadow {
                calls: Vec::new(),
                would_block: 1,
            },
        };
        let event = Event::Responded(Responded {
            at: now,
            proposal: None,
            cost: None,
            usage_unknown: self.counts_usage(),
            release,
        });
        self.commit(event, None);
        self.capture(open, None, None);
        Judged::Released {
            body: response.to_vec(),
            decision: None,
        }
    }

    fn tell_difference(&mut self, open: &Open, judgement: &Judgement, now: Timestamp) {
        if self.rules.is_advisory() {
            let reasons: Vec<&'static str> = judgement
                .blocked()
                .filter_map(|verdict| verdict.reason())
                .map(crate::reason::BlockReason::as_str)
                .collect();
            for reason in reasons {
                self.tell("violation", now, &[("reason", reason)]);
            }
            return;
        }
        let delta = shadow_delta(&self.rules, &self.state, &open.narrowing, judgement);
        self.last_delta = Some(delta);
    }

    fn cost(&self, open: &Open, usage: Option<crate::cost::Usage>) -> Option<Decimal> {
        let request = open.request.request();
        let model = format!("{}/{}", request.provider, request.model);
        let price = self.rules.options().prices.get(&model);
        price
            .zip(usage)
            .and_then(|(price, usage)| price.cost(usage))
    }

    fn discard(
        &mut self,
        open: &Open,
        usage: Option<crate::cost::Usage>,
        proposal: Option<String>,
        now: Timestamp,
    ) {
        let cost = self.cost(open, usage);
        let event = Event::Responded(Responded {
            at: now,
            proposal,
            usage_unknown: self.counts_usage() && cost.is_none(),
            cost,
            release: Release::Discarded,
        });
        self.commit(event, None);
    }

    /// Log-only: counters and cost, no verdicts.
    fn log(&mut self, open: &Open, reply: &Reply, now: Timestamp) -> Judged {
        let calls = reply.response().calls.iter().chain(reply.hosted());
        let event = Event::Responded(Responded {
            at: now,
            proposal: None,
            cost: self.cost(open, reply.usage()),
            usage_unknown: false,
            release: Release::Logged {
                tools: calls.map(|call| call.name.clone()).collect(),
            },
        });
        self.commit(event, None);
        self.capture(open, Some(reply), None);
        Judged::Released {
            body: reply.whole(),
            decision: None,
        }
    }

    /// Keeps what the capture level allows: for reading, never for deciding.
    fn capture(&mut self, open: &Open, reply: Option<&Reply>, decision: Option<&Decision>) {
        if self.keeps_nothing {
            return;
        }
        let level = self.rules.options().capture_level;
        let response = reply.map(Reply::response);
        let calls = response.into_iter().flat_map(|response| &response.calls);
        let calls = calls.map(|call| {
            let compiled = self.rules.compiled();
            serde_json::json!({
                "id": call.id,
                "tool": call.name,
                "arguments": capture::arguments(level, compiled, &call.name, &call.arguments, &[]),
            })
        });
        let calls: Vec<serde_json::Value> = calls.collect();
        let content = response.and_then(|response| response.content.as_deref());
        let request = open.request.request();
        let mut kept = serde_json::json!({
            "session_id": self.rules.options().session_id,
            "attempt": self.state.attempts(),
            "provider": request.provider,
            "model": request.model,
            "request": capture::text(level, open.request.text(), &[]),
            "content": content.map(|content| capture::text(level, content, &[])),
            "calls": calls,
            "decision": decision,
        });
        // Only the whole answer can be given again.
        if let (CaptureLevel::Full, Some(reply), Some(members)) =
            (level, reply, kept.as_object_mut())
        {
            let whole = reply.whole();
            let text = capture::text(level, &String::from_utf8_lossy(&whole), &[]);
            members.insert("response".to_owned(), text);
            members.insert("is_stream".to_owned(), open.request.is_stream().into());
        }
        self.captures.push(kept);
    }
}

/// Calls that the provider has already run count as done, whatever became of the rest.
fn add_hosted(event: &mut Event, reply: &Reply) {
    let Event::Responded(responded) = event else {
        return;
    };
    let calls = match &mut responded.release {
        Release::Step { calls, .. } | Release::Shadow { calls, .. } => calls,
        Release::Logged { .. } | Release::Blocked | Release::Discarded => return,
    };
    calls.extend(reply.hosted().iter().map(|call| Call {
        id: call.id.clone(),
        tool: call.name.clone(),
        arguments: call.arguments.clone(),
        arguments_digest: digest(&call.arguments),
        commits: true,
    }));
}

fn digest(text: &str) -> Digest {
    canon::sha256(text.as_bytes())
}

fn failed(at: Timestamp, attempted: bool) -> Event {
    Event::Failed { at, attempted }
}

fn join(first: Option<String>, second: Option<String>) -> Option<String> {
    match (first, second) {
        (Some(first), Some(second)) => Some(format!("{first} {second}")),
        (first, second) => first.or(second),
    }
}

impl From<Refusal> for DriveError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Killed { cause } => Self::Killed { cause },
            Refusal::Inactive => Self::Inactive,
            Refusal::ProviderIncompatible { pattern } => Self::ProviderIncompatible { pattern },
            Refusal::Unsupported { member } => Self::Unsupported { member },
            // A refusal with a reason has a decision of its own.
            Refusal::Blocked { .. } => Self::Unknown,
        }
    }
}
