//! Before and after the model is asked: requests are bound to the state, responses are judged, people are asked.
//!
//! A prepared request is used once. If anything moved since, its response is not judged: what it was allowed to see is
//! not what holds any more.

use std::collections::{BTreeMap, BTreeSet};

use canon::{Digest, Value};
use contracts::{
    Answer, Answers, ApprovalRequest, ApprovalResponse, AttemptCost, Call, CallKey, Decimal,
    Decision, Event, FinishReason, Mode, Narrowing, Occasion, OfferedTool, ProposedCall, Refusal,
    Release, Request, Responded, Response, Settlement, ToolChoice, Usage, Verdict, judge, narrow,
    precheck, question, read_answer, refused, settle, settled,
};
use domain::{
    Decide, GovernedInput, Kind, Offered, PermissionId, Preflight, Problem, Proposal, Timestamp,
};
use serde_json::json;

use super::report::Receipt;
use super::session::{GovernedSession, PREPARED_MICROS, age, proposal_id, propose_number};
use crate::workflow::Note;

/// A request that is bound to the state.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) at: Timestamp,
    state_version: u64,
    control_revision: u64,
    request: Request,
    narrowing: Narrowing,
}

/// A proposal as long as somebody may ask for it.
#[derive(Debug)]
pub(super) struct Kept {
    status: Status,
    verdicts: Value,
    decision: Option<Decision>,
    /// The counters that its last answer named.
    versions: (u64, u64),
    /// The step that released it.
    pub(super) step: Option<u64>,
    /// When it was settled, or people were asked.
    pub(super) settled_at: Timestamp,
    /// The calls that were released.
    pub(super) calls: Vec<KeptCall>,
    waiting: Option<Box<Waiting>>,
    requests: Vec<ApprovalRequest>,
    response: Option<ApprovalResponse>,
    pub(super) receipts: BTreeMap<String, Receipt>,
    pub(super) started: BTreeSet<String>,
}

/// A released call.
#[derive(Debug, Clone)]
pub(super) struct KeptCall {
    pub(super) id: String,
    pub(super) tool: String,
    pub(super) digest: Digest,
    /// True when it counted as done at release.
    pub(super) commits: bool,
}

/// What is needed to go on once people have answered.
#[derive(Debug)]
struct Waiting {
    request: Request,
    response: Response,
    cost: Option<Decimal>,
    questions: Vec<(ApprovalRequest, Call)>,
    asked: u64,
    deadline: Timestamp,
    permission: PermissionId,
}

/// What became of a proposal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    Blocked,
    Allowed,
    PendingApproval,
    Approved,
    Denied,
    Expired,
    Killed,
    Stale,
}

impl Status {
    const fn as_str(self) -> &'static str {
        match self {
            Status::Blocked => "blocked",
            Status::Allowed => "allowed",
            Status::PendingApproval => "pending_approval",
            Status::Approved => "approved",
            Status::Denied => "denied",
            Status::Expired => "expired",
            Status::Killed => "killed",
            Status::Stale => "stale",
        }
    }
}

impl Kept {
    /// Returns when the question is over, while people are asked.
    pub(super) fn deadline(&self) -> Option<Timestamp> {
        self.waiting.as_ref().map(|waiting| waiting.deadline)
    }

    /// Returns how the session's state names a released call.
    pub(super) fn key(&self, call_id: &str) -> Option<CallKey> {
        let known = self.calls.iter().any(|call| call.id == call_id);
        let step = self.step.filter(|_| known)?;
        Some(CallKey {
            step,
            id: call_id.to_owned(),
        })
    }

    fn shown(&self, id: &str, status: Status) -> Value {
        json!({
            "proposal_id": id,
            "status": status.as_str(),
            "verdicts": self.verdicts,
            "decision": self.decision,
            "state_version": self.versions.0,
            "control_revision": self.versions.1,
            "approval_requests": self.requests,
            "approval_response": self.response,
        })
    }
}

const PREPARED_MAX: usize = 256;
/// Settled proposals that can still be asked for.
const SETTLED_MAX: usize = 256;

impl GovernedSession {
    pub(super) fn preflight(
        &mut self,
        asked: &Preflight,
        now: Timestamp,
    ) -> Result<Value, Problem> {
        let (version, revision) = self.versions();
        if asked.expected_state_version != version {
            let message = "the session has moved on: read its state again";
            return Err(stale(message, version, revision));
        }
        if self.prepared.len() >= PREPARED_MAX {
            let message = "too many prepared requests wait for their proposal";
            return Err(Problem::new(429, "too_many_prepared", message));
        }
        let tools: Vec<OfferedTool> = asked
            .offered_tools
            .iter()
            .map(offered)
            .collect::<Result<_, _>>()?;
        let log_only = self.rules.options().mode == Mode::LogOnly;
        let narrowing = match log_only {
            true => Narrowing::default(),
            false => narrow(&self.rules, &self.state, &tools),
        };
        let view = asked.request.clone().unwrap_or_default();
        let request = Request {
            provider: asked.provider.clone(),
            model: asked.model.clone(),
            tools,
            choice: match &asked.forced_tool {
                Some(tool) => ToolChoice::Named(tool.clone()),
                None => ToolChoice::Auto,
            },
            unsupported: None,
            view: exact(&view)?,
        };
        if !log_only {
            self.advance(&Event::Narrowed {
                narrowing: narrowing.clone(),
            })?;
            self.told
                .said
                .insert("narrowing".to_owned(), json!(narrowing));
            if let Err(refusal) = precheck(&self.rules, &self.state, &request, &narrowing)
                && self.rules.enforces()
            {
                return Err(self.refuse(&refusal, now));
            }
        }
        self.told.changed = true;
        self.prepared_count += 1;
        let (state_version, control_revision) = self.versions();
        let all: Vec<String> = request.tools.iter().map(|tool| tool.name.clone()).collect();
        let (allowed, removed) = match self.rules.enforces() {
            true => (narrowing.allowed.clone(), json!(narrowing.removed)),
            // Nothing is taken away where verdicts do not block.
            false => (all, json!([])),
        };
        let prepared = Prepared {
            at: now,
            state_version,
            control_revision,
            request,
            narrowing,
        };
        self.prepared.insert(self.prepared_count, prepared);
        Ok(json!({
            "prepared_request_id": prepared_id(self.prepared_count),
            "state_version": state_version,
            "control_revision": control_revision,
            "allowed_tools": allowed,
            "removed": removed,
        }))
    }

    /// Says why the model is not asked. What a limit or a rule refuses counts as a block.
    fn refuse(&mut self, refusal: &Refusal, now: Timestamp) -> Problem {
        if let Some(decision) = refused(&self.rules, &self.state, refusal) {
            if let Err(fault) = self.advance(&Event::Refused { at: now }) {
                return fault;
            }
            let reason = decision.reason.map_or("blocked", |reason| reason.as_str());
            let message = match &decision.detail {
                Some(detail) => format!("refused by contract: {reason} ({detail})"),
                None => format!("refused by contract: {reason}"),
            };
            let problem = Problem::new(403, reason, message).with("decision", &decision);
            self.told
                .said
                .insert("decision".to_owned(), json!(decision));
            return problem;
        }
        match refusal {
            Refusal::ProviderIncompatible { pattern } => {
                let message = format!("the contracts exclude this model: {pattern}");
                Problem::new(403, "provider_incompatible", message).with("pattern", pattern)
            }
            Refusal::Unsupported { member } => {
                let message = format!("the request has `{member}`, which cannot be judged");
                Problem::new(422, "unsupported_request", message).with("member", member)
            }
            Refusal::Killed { cause } => Problem::new(410, "killed", cause.clone()),
            Refusal::Inactive => Problem::new(410, "restored", "the session has ended"),
            Refusal::Blocked { reason, .. } => {
                Problem::new(403, reason.as_str(), "refused by contract")
            }
        }
    }

    pub(super) fn propose(
        &mut self,
        proposed: &Proposal,
        input: &GovernedInput,
    ) -> Result<Value, Problem> {
        let number = prepared_number(&proposed.prepared_request_id);
        let number = number.filter(|number| (1..=self.prepared_count).contains(number));
        let Some(number) = number else {
            let message = "no preflight answered with this prepared request";
            return Err(Problem::new(409, "unknown_prepared_request", message));
        };
        let usable = self
            .prepared
            .get(&number)
            .is_some_and(|prepared| age(prepared.at, input.at) < PREPARED_MICROS);
        if !usable {
            let message = "the prepared request was used before, or is older than ten minutes";
            return Err(Problem::new(409, "consumed", message));
        }
        let withheld = proposed.content.is_none() && proposed.content_digest.is_some();
        let reads = |call: &domain::ProposedTool| self.rules.compiled().reads_content(&call.name);
        if withheld && proposed.tool_calls.iter().any(reads) {
            let message = "the contracts look at the text beside a call: send it as `content`";
            return Err(Problem::new(422, "content_required", message));
        }
        let Some(prepared) = self.prepared.remove(&number) else {
            return Err(Problem::new(
                409,
                "consumed",
                "the prepared request is gone",
            ));
        };
        self.told.changed = true;
        self.proposers.insert(input.actor.clone());
        self.proposers.extend(input.key_id.clone());
        let cost = self.cost(&prepared.request, proposed);
        self.proposal_count += 1;
        let (version, revision) = self.versions();
        if (prepared.state_version, prepared.control_revision) != (version, revision) {
            return self.stale(prepared.state_version != version, cost, input.at);
        }
        let response = response(proposed);
        if self.rules.options().mode == Mode::LogOnly {
            return self.log(&response, cost, input.at);
        }
        let Prepared {
            request, narrowing, ..
        } = prepared;
        let waiting = Waiting {
            request,
            response,
            cost,
            questions: Vec::new(),
            asked: 0,
            deadline: input.at,
            permission: input.request_id.clone(),
        };
        let id = self.proposal_count;
        self.go_on(id, waiting, Answers::new(), Some(&narrowing), input.at)
    }

    /// A response to a request that is out of date is not judged. What it cost counts, unless it comes again.
    fn stale(
        &mut self,
        needs_attempt: bool,
        cost: Option<Decimal>,
        now: Timestamp,
    ) -> Result<Value, Problem> {
        if needs_attempt {
            let event = self.discarded(None, cost, now);
            self.advance(&event)?;
        }
        let (version, revision) = self.versions();
        self.keep(self.proposal_count, Status::Stale, json!([]), None, now);
        let message = match needs_attempt {
            true => "the session has moved on since the preflight: ask the model again",
            false => "a control action came in between: repeat the preflight with this response",
        };
        let problem = stale(message, version, revision);
        Err(problem
            .with("proposal_id", proposal_id(self.proposal_count))
            .with("proposal_status", "stale")
            .with("same_response", !needs_attempt))
    }

    fn discarded(&self, proposal: Option<String>, cost: Option<Decimal>, at: Timestamp) -> Event {
        Event::Responded(Responded {
            at,
            proposal,
            usage_unknown: self.rules.compiled().limits_cost() && cost.is_none(),
            cost,
            release: Release::Discarded,
        })
    }

    fn log(
        &mut self,
        response: &Response,
        cost: Option<Decimal>,
        at: Timestamp,
    ) -> Result<Value, Problem> {
        let tools = response.calls.iter().map(|call| call.name.clone());
        let event = Event::Responded(Responded {
            at,
            proposal: None,
            cost,
            usage_unknown: false,
            release: Release::Logged {
                tools: tools.collect(),
            },
        });
        self.advance(&event)?;
        let verdicts = response.calls.iter();
        let verdicts: Value = verdicts
            .map(|call| json!({"call_id": call.id, "tool_name": call.name, "verdict": "allow"}))
            .collect();
        self.keep(self.proposal_count, Status::Allowed, verdicts, None, at);
        Ok(self.proposal_answer(self.proposal_count))
    }

    /// Judges a response with what people answered so far: it is settled, or people are asked.
    fn go_on(
        &mut self,
        number: u64,
        mut waiting: Waiting,
        mut answers: Answers,
        narrowing: Option<&Narrowing>,
        now: Timestamp,
    ) -> Result<Value, Problem> {
        let id = proposal_id(number);
        let name = (waiting.asked > 0).then_some(id.as_str());
        let judgement = {
            let occasion = Occasion {
                request: &waiting.request,
                now,
                proposal: name,
                answers: &answers,
            };
            judge(&self.rules, &self.state, &waiting.response, occasion)
        };
        let verdicts: Value = judgement.verdicts().iter().map(shown_verdict).collect();
        let asked: Vec<Call> = judgement
            .asked()
            .map(|verdict| verdict.call().clone())
            .collect();
        if !asked.is_empty() {
            waiting.asked = asked.len() as u64;
            let event = Event::Asked {
                at: now,
                proposal: id.clone(),
                asked: waiting.asked,
                calls: judgement.standing(),
            };
            self.advance(&event)?;
            for call in asked {
                self.checkpoint_count += 1;
                let session = &self.rules.options().session_id;
                let checkpoint = format!("{session}.checkpoint.{}", self.checkpoint_count);
                match question(&self.rules, &self.state, &call, &checkpoint, now) {
                    Some(asked) => waiting.questions.push((asked, call)),
                    // What cannot be shown cannot be consented to.
                    None => {
                        answers.insert(call.id, Answer::Denied { detail: None });
                        return self.go_on(number, waiting, answers, narrowing, now);
                    }
                }
            }
            self.ask(number, waiting, verdicts, now);
            return Ok(self.proposal_answer(number));
        }
        if let (Some(narrowing), Mode::Shadow) = (narrowing, self.rules.options().mode) {
            let delta = contracts::shadow_delta(&self.rules, &self.state, narrowing, &judgement);
            self.told
                .said
                .insert("shadow_delta".to_owned(), json!(delta));
        }
        let settlement = settle(&self.rules, &judgement, self.state.attempts() + 1, 0);
        let cost = AttemptCost {
            at: now,
            cost: waiting.cost,
        };
        let event = settled(&self.rules, &judgement, &settlement, cost, name);
        let (decision, released) = match settlement {
            Settlement::Release(decision) => (decision, true),
            Settlement::Strip { decision, .. } => (decision, true),
            Settlement::Reject(decision) | Settlement::Retry { decision, .. } => (decision, false),
            Settlement::Wait => {
                let message = "a response was settled while people were asked";
                return Err(Problem::new(500, "evaluator_fault", message));
            }
        };
        let Some(event) = event else {
            return Err(Problem::new(500, "evaluator_fault", "nothing was settled"));
        };
        let calls = match &event {
            Event::Responded(Responded {
                release: Release::Step { calls, .. } | Release::Shadow { calls, .. },
                ..
            }) => calls.iter().map(kept_call).collect(),
            _ => Vec::new(),
        };
        self.advance(&event)?;
        let approved = answers
            .values()
            .any(|answer| matches!(answer, Answer::Approved { .. }));
        let denied = answers
            .values()
            .any(|answer| matches!(answer, Answer::Denied { .. }));
        let late = answers
            .values()
            .any(|answer| matches!(answer, Answer::TimedOut));
        let status = match released {
            // A stripped response is released also when the call somebody denied is what was stripped.
            true if approved => Status::Approved,
            true if denied => Status::Denied,
            true if late => Status::Expired,
            true => Status::Allowed,
            false if denied => Status::Denied,
            false if late => Status::Expired,
            false => Status::Blocked,
        };
        self.keep(number, status, verdicts, Some(decision), now);
        let step = released.then(|| self.state.steps());
        if let Some(kept) = self.proposals.get_mut(&number) {
            kept.step = step;
            kept.calls = calls;
        }
        self.tell_decision(number);
        Ok(self.proposal_answer(number))
    }

    fn tell_decision(&mut self, number: u64) {
        let kept = self.proposals.get(&number);
        if let Some(decision) = kept.and_then(|kept| kept.decision.as_ref()) {
            self.told
                .said
                .insert("decision".to_owned(), json!(decision));
        }
    }

    /// Puts the questions of a proposal to people, all of them in one permission request.
    fn ask(&mut self, number: u64, mut waiting: Waiting, verdicts: Value, now: Timestamp) {
        let timeouts = waiting
            .questions
            .iter()
            .map(|(asked, _)| asked.timeout_seconds);
        let seconds = timeouts.min().unwrap_or_default();
        let micros = i64::try_from(seconds.saturating_mul(1_000_000)).unwrap_or(i64::MAX);
        waiting.deadline = Timestamp::from_micros(now.as_micros().saturating_add(micros));
        let requests: Vec<ApprovalRequest> = waiting
            .questions
            .iter()
            .map(|(asked, _)| asked.clone())
            .collect();
        let first = requests.first();
        let digests: Vec<Digest> = waiting
            .questions
            .iter()
            .map(|(_, call)| call.arguments_digest)
            .collect();
        let action = json!({
            "name": first.map(|asked| asked.tool_name.as_str()),
            "input": first.map(|asked| &asked.arguments),
        });
        let request = json!({
            "reason": first.map(|asked| asked.reason.as_str()),
            "action": action,
            "governed": {
                "session_id": self.rules.options().session_id,
                "proposal_id": proposal_id(number),
                "expires_at": waiting.deadline,
                "contract_sha256": self.compiled(),
                "arguments_sha256": digests,
                "approval_requests": requests,
            },
        });
        let payload = json!({
            "request_id": waiting.permission,
            "effect_key": format!("approval:{}", proposal_id(number)),
            "action_name": first.map(|asked| asked.tool_name.as_str()),
            "request": request,
            "action": action,
        });
        if let Value::Object(payload) = payload {
            self.told.notes.push(Note {
                kind: Kind::ToolApprovalRequired,
                payload,
            });
        }
        self.told
            .said
            .insert("asked".to_owned(), json!(waiting.asked));
        self.keep(number, Status::PendingApproval, verdicts, None, now);
        if let Some(kept) = self.proposals.get_mut(&number) {
            kept.requests = requests;
            kept.waiting = Some(Box::new(waiting));
        }
    }

    pub(super) fn decide(
        &mut self,
        decide: &Decide,
        input: &GovernedInput,
    ) -> Result<Value, Problem> {
        let (number, kept) = self.kept(&decide.proposal_id).ok_or_else(no_proposal)?;
        if kept.waiting.is_none() {
            let message = format!("the proposal is {}", kept.status.as_str());
            return Err(
                Problem::new(409, "settled", message).with("proposal_status", kept.status.as_str())
            );
        }
        let own = |who: &str| self.proposers.contains(who);
        if own(&input.actor) || input.key_id.as_deref().is_some_and(own) {
            let message = "whoever proposes in a session does not decide in it";
            return Err(Problem::new(403, "approver_must_differ", message)
                .with("rule", "approver_must_differ"));
        }
        let agent = self.rules.options().agent.as_ref();
        let agents = [agent, self.rules.compiled().session().agent.as_ref()];
        let by_agent = agents
            .into_iter()
            .flatten()
            .any(|name| *name == decide.decided_by);
        if by_agent || decide.decided_by.trim().is_empty() {
            let message = "`decided_by` names a person, never the agent";
            return Err(Problem::new(400, "malformed_decision", message));
        }
        let Some(waiting) = self.take_waiting(number) else {
            return Err(no_proposal());
        };
        let word = if decide.approve { "approve" } else { "deny" };
        let mut answers = Answers::new();
        let mut response = None;
        for (asked, call) in &waiting.questions {
            let given = ApprovalResponse {
                checkpoint_id: asked.checkpoint_id.clone(),
                decision: word.to_owned(),
                decided_by: decide.decided_by.clone(),
                decided_at: input.at.to_string(),
                reason: decide.reason.clone(),
            };
            let answer = read_answer(&self.rules, &self.state, asked, call, &given, input.at);
            answers.insert(call.id.clone(), answer);
            response.get_or_insert(given);
        }
        self.told.decided = Some((waiting.permission.clone(), decide.approve));
        self.go_on(number, *waiting, answers, None, input.at)?;
        let Some(kept) = self.proposals.get_mut(&number) else {
            return Err(no_proposal());
        };
        kept.response = response;
        let mut answer = json!({"status": kept.status.as_str()});
        if let (Value::Object(members), Some(decision)) = (&mut answer, &kept.decision)
            && let Some(reason) = decision.reason.filter(|_| kept.status == Status::Blocked)
        {
            // Somebody said yes, and meanwhile something else says no.
            members.insert("reason".to_owned(), reason.as_str().into());
        }
        Ok(answer)
    }

    fn take_waiting(&mut self, number: u64) -> Option<Box<Waiting>> {
        self.proposals.get_mut(&number)?.waiting.take()
    }

    /// Settles proposals whose time for an answer is over.
    pub(super) fn settle_unanswered(&mut self, now: Timestamp) {
        let late = |kept: &Kept| kept.deadline().is_some_and(|deadline| now >= deadline);
        let late: Vec<u64> = self
            .proposals
            .iter()
            .filter(|(_, kept)| late(kept))
            .map(|(number, _)| *number)
            .collect();
        for number in late {
            let Some(waiting) = self.take_waiting(number) else {
                continue;
            };
            let permission = waiting.permission.clone();
            let calls = waiting.questions.iter();
            let answers = calls.map(|(_, call)| (call.id.clone(), Answer::TimedOut));
            let answers = answers.collect();
            let settled = self.go_on(number, *waiting, answers, None, now);
            self.told.withdrawn.push((permission, "timed_out"));
            // Each decision is told by itself: what follows in this input has its own.
            let mut payload = std::mem::take(&mut self.told.said);
            payload.insert("operation".to_owned(), "time_out".into());
            if let Ok(answer) = settled {
                payload.insert("answer".to_owned(), answer);
            }
            self.told.notes.push(Note {
                kind: Kind::ContractDecided,
                payload,
            });
        }
    }

    /// Ends the proposals that wait for people, because the session ends.
    pub(super) fn close_waiting(&mut self, status: &str, reason: &'static str) {
        let status = match status {
            "killed" => Status::Killed,
            _ => Status::Expired,
        };
        let waiting: Vec<u64> = self
            .proposals
            .iter()
            .filter(|(_, kept)| kept.waiting.is_some())
            .map(|(number, _)| *number)
            .collect();
        for number in waiting {
            let Some(waiting) = self.take_waiting(number) else {
                continue;
            };
            let at = waiting.deadline.min(self.clock());
            let event = self.discarded(Some(proposal_id(number)), waiting.cost, at);
            // Invariant: the proposal is known to wait.
            let _ = self.advance(&event);
            if let Some(kept) = self.proposals.get_mut(&number) {
                kept.status = status;
            }
            self.told.withdrawn.push((waiting.permission, reason));
        }
    }

    /// The latest moment that a proposal was asked or settled at.
    fn clock(&self) -> Timestamp {
        let times = self.proposals.values().map(|kept| kept.settled_at);
        times.max().unwrap_or_else(|| Timestamp::from_micros(0))
    }

    fn keep(
        &mut self,
        number: u64,
        status: Status,
        verdicts: Value,
        decision: Option<Decision>,
        now: Timestamp,
    ) {
        let versions = self.versions();
        let before = self.proposals.remove(&number);
        let (requests, response) = before
            .map(|kept| (kept.requests, kept.response))
            .unwrap_or_default();
        let kept = Kept {
            status,
            verdicts,
            decision,
            versions,
            step: None,
            settled_at: now,
            calls: Vec::new(),
            waiting: None,
            requests,
            response,
            receipts: BTreeMap::new(),
            started: BTreeSet::new(),
        };
        self.proposals.insert(number, kept);
    }

    /// Forgets the oldest proposals about which nothing is open.
    pub(super) fn forget_settled(&mut self) {
        if self.proposals.len() <= SETTLED_MAX {
            return;
        }
        let open: BTreeSet<u64> = self.state.unsettled().map(|(key, _)| key.step).collect();
        let is_settled = |kept: &Kept| {
            kept.waiting.is_none() && kept.step.is_none_or(|step| !open.contains(&step))
        };
        let settled = self.proposals.iter().filter(|(_, kept)| is_settled(kept));
        let settled: Vec<u64> = settled.map(|(number, _)| *number).collect();
        for number in settled {
            if self.proposals.len() <= SETTLED_MAX {
                return;
            }
            self.proposals.remove(&number);
        }
    }

    pub(super) fn kept(&self, id: &str) -> Option<(u64, &Kept)> {
        let number = propose_number(id)?;
        self.proposals.get(&number).map(|kept| (number, kept))
    }

    fn proposal_answer(&mut self, number: u64) -> Value {
        let versions = self.versions();
        if let Some(kept) = self.proposals.get_mut(&number) {
            kept.versions = versions;
        }
        let kept = self.proposals.get(&number);
        kept.map_or(Value::Null, |kept| {
            kept.shown(&proposal_id(number), kept.status)
        })
    }

    /// Returns a proposal as it stands at a time, and whether it still waits for people.
    pub fn proposal(&self, id: &str, now: Timestamp) -> Option<(Value, bool)> {
        let (_, kept) = self.kept(id)?;
        let late = kept.deadline().is_some_and(|deadline| now >= deadline);
        let status = match (late, self.is_over()) {
            (true, _) => Status::Expired,
            (false, true) if kept.waiting.is_some() => Status::Killed,
            (false, _) => kept.status,
        };
        Some((kept.shown(id, status), status == Status::PendingApproval))
    }

    /// Returns the proposal that a permission request is about.
    pub fn proposal_of(&self, request: &PermissionId) -> Option<String> {
        let mut waiting = self.proposals.iter();
        let asks = |kept: &Kept| {
            let waiting = kept.waiting.as_ref();
            waiting.is_some_and(|waiting| waiting.permission == *request)
        };
        let found = waiting.find(|(_, kept)| asks(kept))?;
        Some(proposal_id(*found.0))
    }

    fn cost(&self, request: &Request, proposed: &Proposal) -> Option<Decimal> {
        let model = format!("{}/{}", request.provider, request.model);
        let price = self.rules.options().prices.get(&model)?;
        let used = proposed.usage?;
        price.cost(Usage {
            input: used.input,
            output: used.output,
            cache_read: used.cache_read,
            cache_write: used.cache_write,
        })
    }
}

fn no_proposal() -> Problem {
    Problem::new(404, "unknown_proposal", "no such proposal")
}

fn stale(message: &str, version: u64, revision: u64) -> Problem {
    Problem::new(409, "stale", message)
        .with("state_version", version)
        .with("control_revision", revision)
}

fn prepared_id(number: u64) -> String {
    format!("prepared_{number}")
}

fn prepared_number(id: &str) -> Option<u64> {
    id.strip_prefix("prepared_")?.parse().ok()
}

fn kept_call(call: &Call) -> KeptCall {
    KeptCall {
        id: call.id.clone(),
        tool: call.tool.clone(),
        digest: call.arguments_digest,
        commits: call.commits,
    }
}

fn offered(tool: &Offered) -> Result<OfferedTool, Problem> {
    Ok(OfferedTool {
        name: tool.name.clone(),
        schema: tool.schema.as_ref().map(exact).transpose()?,
        hosted: tool.hosted,
    })
}

/// Reads a value as rules see it, with its numbers as they are written.
pub(super) fn exact(value: &Value) -> Result<contracts::Value, Problem> {
    let text = value.to_string();
    let limits = contracts::json::Limits::MESSAGE;
    contracts::json::read(&text, limits, contracts::json::Numbers::Any)
        .map_err(|error| Problem::new(400, "malformed", format!("it cannot be judged: {error}")))
}

fn response(proposed: &Proposal) -> Response {
    // What is withheld is there all the same: contracts may demand a text, or none.
    let withheld = proposed.content_digest.as_ref().map(|_| "(withheld)");
    let content = proposed.content.as_deref().or(withheld);
    let calls = proposed.tool_calls.iter().map(|call| ProposedCall {
        id: call.id.clone(),
        name: call.name.clone(),
        arguments: call.arguments.clone(),
    });
    Response {
        finish_reason: FinishReason::named(&proposed.finish_reason).unwrap_or(FinishReason::Other),
        content: content.map(str::to_owned),
        calls: calls.collect(),
    }
}

fn shown_verdict(verdict: &Verdict) -> Value {
    let mut shown = json!({
        "call_id": verdict.call_id(),
        "tool_name": verdict.call().tool,
        "arguments_digest": verdict.arguments_digest(),
        "verdict": verdict.status(),
    });
    let Value::Object(members) = &mut shown else {
        return shown;
    };
    if let Some(reason) = verdict.reason() {
        members.insert("reason".to_owned(), reason.as_str().into());
        members.insert("all_reasons".to_owned(), json!(verdict.all_reasons()));
    }
    let detail = verdict
        .first_failure()
        .and_then(|failure| failure.detail.as_deref());
    members.extend(detail.map(|detail| ("detail".to_owned(), detail.into())));
    let file = verdict.contract_file();
    members.extend(file.map(|file| ("contract_file".to_owned(), file.into())));
    shown
}
