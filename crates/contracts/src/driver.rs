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
mod record;
mod released;
mod remote;
mod request;
mod response;
mod shared;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use canon::Digest;
use domain::Timestamp;
use serde::Serialize;

use crate::capture::Buffer;
use crate::checkpoint::{Answers, ApprovalRequest};
use crate::event::{Call, CallKey, Event, SessionStart};
use crate::gate::{Decision, ShadowDelta};
use crate::judge::Verdict;
use crate::narrow::Narrowing;
use crate::precheck::{Refusal, check_attempts, check_open};
use crate::rules::{Permission, Rules};
use crate::state::State;
use crate::wire::{KnownTools, Reply, WireRequest};
use crate::workflow::Seat;

pub use control::{Control, ControlError, Label};
pub use execution::{ExecutionEnd, SettleError, Ticket};
pub use remote::{PreflightRequest, Proposal, SettledVerdict};

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
    released: released::ReleasedIds,
    /// The tools of the last request, and what narrowing made of them.
    offered: Option<KnownTools>,
    narrowed: Option<Arc<Narrowing>>,
    records: VecDeque<Record>,
    first_record: u64,
    last_delta: Option<ShadowDelta>,
    warned: BTreeSet<String>,
    /// What was told about the schema of each tool: the keywords that nothing checks.
    unchecked: BTreeMap<String, BTreeSet<String>>,
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
    narrowing: Arc<Narrowing>,
    retries_left: u32,
    /// What the model is told about tools.
    told: Option<String>,
    waiting: Option<WaitingResponse>,
    /// The response that the server judges.
    proposed: Option<remote::ProposedResponse>,
}

/// A response that waits for people.
#[derive(Debug)]
struct WaitingResponse {
    reply: Reply,
    proposal: String,
    asked: u64,
    answers: Answers,
    /// What was said about its calls last.
    verdicts: Vec<Verdict>,
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
pub struct PlannedRequest {
    /// Names the request in [`Driver::judge`] and [`Driver::failed`].
    pub attempt: u64,
    /// The bytes to send.
    pub body: Vec<u8>,
    /// What stayed and what went.
    pub narrowing: Arc<Narrowing>,
}

/// What becomes of a response.
#[derive(Debug, Clone, PartialEq)]
pub enum JudgedResponse {
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
    /// The server answered something else than it was asked.
    #[error("the answer of the server does not fit its question")]
    Unfit,
    /// Nothing of this name is under way.
    #[error("nothing of this name is under way")]
    Unknown,
    /// Nobody takes the records.
    #[error("the records of the session are not read")]
    RecordsUnread,
}

/// How an attempt failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptFailure {
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
        let begin = SessionStart::for_rules(&rules, at, labels, slots);
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
            released: released::ReleasedIds::default(),
            offered: None,
            narrowed: None,
            records: VecDeque::new(),
            first_record: 0,
            last_delta: None,
            warned: BTreeSet::new(),
            unchecked: BTreeMap::new(),
            diagnostics: Vec::new(),
            captures: Buffer::default(),
            seat: None,
            remote: None,
            keeps_nothing: false,
        })
    }

    /// Takes note that a planned request brought no response.
    ///
    /// # Errors
    /// There is no such request.
    pub fn failed(
        &mut self,
        attempt: u64,
        how: AttemptFailure,
        now: Timestamp,
    ) -> Result<(), DriveError> {
        let mut open = self.open.remove(&attempt).ok_or(DriveError::Unknown)?;
        if let Some(proposed) = open.proposed.take() {
            let (reply, asked) = proposed.into_parts();
            self.discard(&open, reply.usage(), asked, now);
            if matches!(how, AttemptFailure::Provider | AttemptFailure::Aborted) {
                return Ok(());
            }
        }
        // A response that waits for people is closed with its request: it must not hold room for ever.
        if let Some(waiting) = &open.waiting {
            let (usage, proposal) = (waiting.reply.usage(), waiting.proposal.clone());
            self.discard(&open, usage, Some(proposal), now);
        }
        match (how, open.waiting.is_some()) {
            (AttemptFailure::Provider | AttemptFailure::Aborted, true) => {}
            (AttemptFailure::Withdrawn, _) => {}
            (AttemptFailure::Provider, false) => self.commit(failed(now, true), None),
            (AttemptFailure::Aborted, false) => self.discard(&open, None, None, now),
            (AttemptFailure::Fault, _) => self.faulted(now),
        }
        Ok(())
    }

    /// Takes note that governance itself failed around a call: its record, or a server.
    pub(crate) fn faulted(&mut self, now: Timestamp) {
        match self.rules.options().on_error {
            Permission::Block => self.commit(failed(now, false), None),
            Permission::Allow => {
                let max = self.rules.options().unguarded_calls_max;
                let last = self.state.unguarded + 1 >= max;
                self.commit(Event::Unguarded { last }, None);
                self.push_event("unguarded_call", now, &[]);
            }
        }
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
}

fn digest(text: &str) -> Digest {
    canon::sha256(text.as_bytes())
}

fn failed(at: Timestamp, attempted: bool) -> Event {
    Event::Failed { at, attempted }
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
