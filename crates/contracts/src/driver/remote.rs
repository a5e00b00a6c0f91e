//! A session whose authority is a server: what the server is asked, and what its answers do here.
//!
//! The server judges, and its verdict is what happens. What is kept here follows its answers, so that snapshots can be
//! read at once, executions are checked before they run, and a session whose server is lost can go on by its own
//! judgement where that was chosen. An answer that does not fit its question releases nothing.

use std::collections::BTreeMap;

use domain::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{DriveError, Driver, Ended, Judged, Open, Planned, add_hosted, join};
use crate::canonical;
use crate::checkpoint::Answers;
use crate::event::{Call, CallKey, Event, Release, Responded};
use crate::gate::{Action, Decision, refused};
use crate::json::{self, Limits, Numbers};
use crate::judge::{Occasion, Status, judge};
use crate::narrow::{self, Narrowing, Removed};
use crate::precheck::{self, Refusal, provider_warnings};
use crate::reason::BlockReason;
use crate::request::ToolChoice;
use crate::rules::{Executors, Feedback, Mode};
use crate::wire::{Reply, ReplyError, Wire, WireRequest};

/// What is kept of a session on a server.
#[derive(Debug, Default)]
pub(super) struct Remote {
    /// True while the session judges by itself, because the server is lost.
    is_local: bool,
    /// True once the server's state is not what is kept here.
    has_drifted: bool,
    /// The proposals that released calls whose end is not reported.
    proposals: BTreeMap<CallKey, String>,
}

/// A response that the server judges.
#[derive(Debug)]
pub(super) struct Proposed {
    reply: Reply,
    /// The proposal, once people are asked.
    asked: Option<String>,
}

impl Proposed {
    pub(super) fn into_parts(self) -> (Reply, Option<String>) {
        (self.reply, self.asked)
    }
}

/// What a server is asked before the model.
#[derive(Debug, Clone, PartialEq)]
pub struct Before {
    /// Names the request.
    pub attempt: u64,
    /// The body of the preflight, without the version it expects.
    pub preflight: Value,
    /// Reports of executions to send first: what the request tells about calls that nobody reported.
    pub reports: Vec<Value>,
}

/// What becomes of a response that was read.
#[derive(Debug, Clone, PartialEq)]
pub enum Proposal {
    /// The server judges it: the body of the proposal, without the prepared request.
    Propose(Value),
    /// It cannot be proposed.
    Judged(Box<Judged>),
}

/// What a server's verdict comes to.
#[derive(Debug, Clone, PartialEq)]
pub enum Settled {
    /// As with a verdict of the session's own.
    Judged(Box<Judged>),
    /// People are asked; the same proposal is answered again later.
    Waits {
        /// The questions, as the server shows them.
        questions: Value,
    },
    /// The model is asked again, after another preflight.
    Again {
        /// The record.
        decision: Box<Decision>,
        /// The body of the preflight.
        preflight: Value,
    },
}

#[derive(Deserialize)]
struct PreflightAnswer {
    allowed_tools: Vec<String>,
    removed: Vec<Removed>,
}

#[derive(Deserialize)]
struct ProposalAnswer {
    proposal_id: String,
    status: String,
    verdicts: Vec<ServerVerdict>,
    decision: Option<Decision>,
    #[serde(default)]
    approval_requests: Value,
}

#[derive(Deserialize)]
struct ServerVerdict {
    call_id: String,
    verdict: Status,
}

impl Driver {
    /// Makes a server the authority.
    pub fn follow_server(&mut self) {
        self.remote = Some(Remote::default());
    }

    /// Says whether the server is asked.
    pub fn asks_server(&self) -> bool {
        self.remote.as_ref().is_some_and(|remote| !remote.is_local)
    }

    /// Judges here as long as the server is lost, or asks it again.
    pub fn judge_locally(&mut self, is_local: bool) {
        if let Some(remote) = &mut self.remote {
            remote.is_local = is_local;
        }
    }

    /// Takes note that the server's state is another one than what is kept here.
    pub fn drifted(&mut self) {
        if let Some(remote) = &mut self.remote {
            remote.has_drifted = true;
        }
    }

    /// Reads a request and says what the server is to be asked.
    ///
    /// # Errors
    /// The session is over, or the request cannot be judged.
    pub fn before(
        &mut self,
        wire: Wire,
        body: &[u8],
        now: Timestamp,
    ) -> Result<Before, DriveError> {
        self.check_open()?;
        self.check_records()?;
        self.expire(now);
        let mut request = WireRequest::read(wire, body, &self.created);
        if let Some(member) = request.request().unsupported.clone() {
            return Err(DriveError::Unsupported { member });
        }
        if self.looks_at_requests {
            request.look_at(body);
        }
        request.read_schemas(|_| true);
        let reports = self.seen_reports(&request, now);
        let attempt = self.next_attempt;
        self.next_attempt += 1;
        let preflight = preflight(&request, self.looks_at_requests);
        let open = Open {
            request,
            narrowing: Narrowing::default(),
            retries_left: self.rules.options().retries_max,
            told: None,
            waiting: None,
            proposed: None,
        };
        self.open.insert(attempt, open);
        Ok(Before {
            attempt,
            preflight,
            reports,
        })
    }

    /// Plans a request as the server's answer to the preflight says.
    ///
    /// # Errors
    /// There is no such request, the answer cannot be read, or what is left of the tools is not what the request demands.
    pub fn planned_by(
        &mut self,
        attempt: u64,
        answer: &Value,
        now: Timestamp,
    ) -> Result<Planned, DriveError> {
        let answer = PreflightAnswer::deserialize(answer).map_err(|_| DriveError::Unknown)?;
        let mut open = self.open.remove(&attempt).ok_or(DriveError::Unknown)?;
        self.check_open()?;
        let narrowing = Narrowing {
            allowed: answer.allowed_tools,
            removed: answer.removed,
        };
        if self.rules.options().mode != Mode::LogOnly {
            let event = Event::Narrowed {
                narrowing: narrowing.clone(),
            };
            self.commit(event, None);
        }
        let request = open.request.request();
        let listed = matches!(request.choice, ToolChoice::AllowedOnly(_));
        if listed
            && self.rules.enforces()
            && let Err(refusal) = precheck::check_choice(request, &narrowing)
        {
            return Err(self.refuse(&refusal, now));
        }
        let model = format!("{}/{}", request.provider, request.model);
        let warnings = provider_warnings(&self.rules, &request.provider, &request.model);
        for pattern in warnings {
            if self.warned.insert(model.clone()) {
                self.tell("replay_provider_warning", now, &[("pattern", &pattern)]);
            }
        }
        let told = join(narrowing.feedback(), open.told.take());
        open.narrowing = narrowing.clone();
        let body = self.written(&mut open.request, &narrowing, told.as_deref());
        self.open.insert(attempt, open);
        Ok(Planned {
            attempt,
            body,
            narrowing,
        })
    }

    /// Takes the server's refusal of a request.
    pub fn refused_by(&mut self, attempt: u64, problem: &Value, now: Timestamp) -> DriveError {
        self.open.remove(&attempt);
        let text = |name: &str| problem.get(name).and_then(Value::as_str);
        if let Some(decision) = problem.get("decision")
            && let Ok(decision) = Decision::deserialize(decision)
        {
            self.commit(Event::Refused { at: now }, Some(decision.clone()));
            return DriveError::Contract(Box::new(decision));
        }
        match (text("code"), text("pattern"), text("member")) {
            (Some("provider_incompatible"), Some(pattern), _) => DriveError::ProviderIncompatible {
                pattern: pattern.to_owned(),
            },
            (_, _, Some(member)) => DriveError::Unsupported {
                member: member.to_owned(),
            },
            _ => DriveError::Unknown,
        }
    }

    fn refuse(&mut self, refusal: &Refusal, now: Timestamp) -> DriveError {
        match refused(&self.rules, &self.state, refusal) {
            Some(decision) => {
                self.commit(Event::Refused { at: now }, Some(decision.clone()));
                DriveError::Contract(Box::new(decision))
            }
            None => DriveError::from(refusal.clone()),
        }
    }

    /// Reads a response and says what is to be proposed to the server.
    ///
    /// # Errors
    /// As [`Driver::judge`].
    pub fn propose(
        &mut self,
        attempt: u64,
        response: &[u8],
        is_sse: bool,
        now: Timestamp,
    ) -> Result<Proposal, DriveError> {
        let mut open = self.open.remove(&attempt).ok_or(DriveError::Unknown)?;
        let reply = Reply::read(&open.request, response, is_sse, self.counts_usage());
        if let Err(over) = self.check_open() {
            let usage = reply.ok().and_then(|reply| reply.usage());
            self.discard(&open, usage, None, now);
            return Err(over);
        }
        let reply = match reply {
            Ok(reply) => reply,
            Err(ReplyError::Provider { detail }) => {
                self.commit(super::failed(now, true), None);
                return Err(DriveError::Provider { detail });
            }
            Err(ReplyError::Unreadable { detail }) if self.rules.enforces() => {
                // The model is not asked again here: that would need another preflight.
                open.retries_left = 0;
                let judged = self.block_unreadable(attempt, open, &detail, now);
                return Ok(Proposal::Judged(Box::new(judged)));
            }
            Err(ReplyError::Unreadable { detail }) => {
                let judged = self.pass_unreadable(&open, response, &detail, now);
                return Ok(Proposal::Judged(Box::new(judged)));
            }
        };
        let body = self.proposal_body(&reply);
        open.proposed = Some(Proposed { reply, asked: None });
        self.open.insert(attempt, open);
        Ok(Proposal::Propose(body))
    }

    fn proposal_body(&self, reply: &Reply) -> Value {
        let response = reply.response();
        let compiled = self.rules.compiled();
        let content = response.content.as_deref();
        let is_read = |call: &crate::request::ProposedCall| compiled.reads_content(&call.name);
        let shown = content.filter(|_| response.calls.iter().any(is_read));
        let calls = response
            .calls
            .iter()
            .map(|call| json!({"id": call.id, "name": call.name, "arguments": call.arguments}));
        let usage = reply.usage().map(|usage| {
            json!({
                "input": usage.input,
                "output": usage.output,
                "cache_read": usage.cache_read,
                "cache_write": usage.cache_write,
            })
        });
        json!({
            "finish_reason": response.finish_reason.as_str(),
            "content_digest": content.map(|content| canon::sha256(content.as_bytes())),
            "content": shown,
            "tool_calls": calls.collect::<Vec<_>>(),
            "usage": usage,
        })
    }

    /// Does with a proposed response what the server's answer says.
    ///
    /// # Errors
    /// The session is over, there is no such response, or the answer does not fit it: then nothing is released.
    pub fn settled_by(
        &mut self,
        attempt: u64,
        answer: &Value,
        now: Timestamp,
    ) -> Result<Settled, DriveError> {
        let answer = ProposalAnswer::deserialize(answer).map_err(|_| DriveError::Unknown)?;
        let mut open = self.open.remove(&attempt).ok_or(DriveError::Unknown)?;
        let mut proposed = open.proposed.take().ok_or(DriveError::Unknown)?;
        if let Err(over) = self.check_open() {
            let usage = proposed.reply.usage();
            self.discard(&open, usage, proposed.asked, now);
            return Err(over);
        }
        let calls = self.calls(&proposed.reply);
        let fits = calls.len() == answer.verdicts.len()
            && calls
                .iter()
                .zip(&answer.verdicts)
                .all(|(call, verdict)| call.id == verdict.call_id);
        if !fits {
            return Err(DriveError::Unknown);
        }
        if answer.status == "pending_approval" {
            if proposed.asked.is_none() {
                let standing = calls.into_iter().zip(&answer.verdicts);
                let standing = standing.filter(|(_, verdict)| verdict.verdict != Status::Block);
                let asks = answer.verdicts.iter();
                let asked = asks
                    .filter(|verdict| verdict.verdict == Status::Ask)
                    .count() as u64;
                let event = Event::Asked {
                    at: now,
                    proposal: answer.proposal_id.clone(),
                    asked,
                    calls: standing.map(|(call, _)| call).collect(),
                };
                self.commit(event, None);
                proposed.asked = Some(answer.proposal_id);
            }
            open.proposed = Some(proposed);
            self.open.insert(attempt, open);
            return Ok(Settled::Waits {
                questions: answer.approval_requests,
            });
        }
        self.compare(&open, &proposed, &answer, now);
        self.end_by(attempt, open, proposed, calls, answer, now)
    }

    fn end_by(
        &mut self,
        attempt: u64,
        mut open: Open,
        proposed: Proposed,
        calls: Vec<Call>,
        answer: ProposalAnswer,
        now: Timestamp,
    ) -> Result<Settled, DriveError> {
        let Proposed { reply, asked } = proposed;
        let blocked: Vec<usize> = answer
            .verdicts
            .iter()
            .enumerate()
            .filter(|(_, verdict)| verdict.verdict != Status::Allow)
            .map(|(index, _)| index)
            .collect();
        let is_released = ["allowed", "approved", "denied", "expired"].contains(&&*answer.status);
        let action = answer.decision.as_ref().map(|decision| decision.action);
        let mode = self.rules.options().mode;
        let release = match (mode, action) {
            (Mode::LogOnly, None) if is_released => Release::Logged {
                tools: calls.iter().map(|call| call.tool.clone()).collect(),
            },
            (Mode::Shadow, Some(Action::Released)) if is_released => Release::Shadow {
                calls: calls.clone(),
                would_block: blocked.len() as u64,
            },
            (Mode::Enforce, Some(Action::Released)) if is_released && blocked.is_empty() => {
                Release::Step {
                    calls: calls.clone(),
                    stripped: 0,
                }
            }
            (Mode::Enforce, Some(Action::Stripped)) if is_released && !blocked.is_empty() => {
                let kept = calls.iter().enumerate();
                let kept = kept.filter(|(index, _)| !blocked.contains(index));
                Release::Step {
                    calls: kept.map(|(_, call)| call.clone()).collect(),
                    stripped: blocked.len() as u64,
                }
            }
            (Mode::Enforce, Some(Action::Rejected)) => Release::Blocked,
            // The server says two things, or something that nobody here knows.
            _ => return Err(DriveError::Unknown),
        };
        let cost = self.cost(&open, reply.usage());
        let mut event = Event::Responded(Responded {
            at: now,
            proposal: asked,
            usage_unknown: self.counts_usage() && cost.is_none(),
            cost,
            release,
        });
        add_hosted(&mut event, &reply);
        let pending: Vec<String> = match &event {
            Event::Responded(Responded {
                release: Release::Step { calls, .. } | Release::Shadow { calls, .. },
                ..
            }) => {
                let waiting = calls.iter().filter(|call| !call.commits);
                waiting.map(|call| call.id.clone()).collect()
            }
            _ => Vec::new(),
        };
        self.commit(event, answer.decision.clone());
        self.capture(&open, Some(&reply), answer.decision.as_ref());
        let step = self.state.steps();
        if let Some(remote) = &mut self.remote {
            let keys = pending.into_iter().map(|id| CallKey { step, id });
            let keys = keys.map(|key| (key, answer.proposal_id.clone()));
            remote.proposals.extend(keys);
        }
        let released = |driver: &mut Self, body: Vec<u8>, decision: Option<Decision>| {
            if blocked.is_empty() {
                let id = reply.id().map(ToOwned::to_owned);
                driver.created.extend(id);
            }
            Ok(Settled::Judged(Box::new(Judged::Released {
                body,
                decision,
            })))
        };
        match (action, answer.decision) {
            (Some(Action::Stripped), decision) => {
                let empty = blocked.len() == answer.verdicts.len();
                let body = reply.stripped(&blocked, empty);
                released(self, body, decision)
            }
            (Some(Action::Rejected), Some(decision)) => {
                let again = answer.status == "blocked" && can_retry(&decision);
                if !again || open.retries_left == 0 {
                    let judged = Judged::Rejected(Box::new(decision));
                    return Ok(Settled::Judged(Box::new(judged)));
                }
                open.retries_left -= 1;
                open.told = self.retry_feedback(&decision);
                let reason = decision.reason.map(BlockReason::as_str);
                self.tell("retried", now, &[("reason", reason.unwrap_or_default())]);
                let preflight = preflight(&open.request, self.looks_at_requests);
                self.open.insert(attempt, open);
                let mut decision = Box::new(decision);
                decision.action = Action::Retried;
                Ok(Settled::Again {
                    decision,
                    preflight,
                })
            }
            (_, decision) => released(self, reply.whole(), decision),
        }
    }

    /// Tells when the session's own verdict would have been another one.
    fn compare(
        &mut self,
        open: &Open,
        proposed: &Proposed,
        answer: &ProposalAnswer,
        now: Timestamp,
    ) {
        let in_step = self
            .remote
            .as_ref()
            .is_some_and(|remote| !remote.has_drifted);
        // What people answered is known to the server only.
        if !in_step || proposed.asked.is_some() || self.rules.options().mode == Mode::LogOnly {
            return;
        }
        let occasion = Occasion {
            request: open.request.request(),
            now,
            proposal: None,
            answers: &Answers::new(),
        };
        let own = judge(
            &self.rules,
            &self.state,
            proposed.reply.response(),
            occasion,
        );
        if self.rules.options().mode == Mode::Shadow {
            let delta = crate::gate::shadow_delta(&self.rules, &self.state, &open.narrowing, &own);
            self.last_delta = Some(delta);
        }
        let differs = own
            .verdicts()
            .iter()
            .zip(&answer.verdicts)
            .find(|(own, theirs)| own.status() != theirs.verdict);
        if let Some((own, _)) = differs {
            let call = own.call_id().to_owned();
            self.tell("verdict_differs", now, &[("call_id", &call)]);
        }
    }

    fn retry_feedback(&self, decision: &Decision) -> Option<String> {
        if self.rules.options().feedback != Feedback::Inject {
            return None;
        }
        let blocked = decision.calls.iter().filter_map(|call| {
            let reason = call.reason?;
            Some(format!("{} ({reason})", call.tool_name))
        });
        narrow::feedback(blocked.collect())
    }

    fn calls(&self, reply: &Reply) -> Vec<Call> {
        let calls = reply.response().calls.iter().map(|call| {
            let parsed = json::read(&call.arguments, Limits::ARGUMENTS, Numbers::Doubles);
            let text = match parsed {
                Ok(value) if value.as_object().is_some() => canonical::text(&value),
                Ok(_) | Err(_) => call.arguments.clone(),
            };
            Call {
                id: call.id.clone(),
                tool: call.name.clone(),
                arguments_digest: super::digest(&text),
                arguments: text,
                commits: self.rules.commits_at_release(&call.name),
            }
        });
        calls.collect()
    }

    /// What a request tells about calls that nobody reported. A tool without an executor here has run where nobody saw
    /// it, and its result is the report; one with an executor was run around it.
    fn seen_reports(&mut self, request: &WireRequest, now: Timestamp) -> Vec<Value> {
        let mut reports = Vec::new();
        for output in self.state.news(request.outputs()) {
            let pending = self.state.unsettled();
            let found = pending.filter(|(key, _)| key.id == output.call_id).last();
            let Some((key, tool)) = found.map(|(key, call)| (key.clone(), call.tool.clone()))
            else {
                continue;
            };
            let is_wrapped = match &self.rules.options().executors {
                Executors::Named(tools) => tools.contains(&tool),
                Executors::All => true,
            };
            let ended = match is_wrapped {
                true => Ended::Unknown,
                false => Ended::Success(Some(output.text.clone())),
            };
            if is_wrapped {
                let call = output.call_id.clone();
                self.tell("result_without_execution", now, &[("call_id", &call)]);
            }
            reports.extend(self.report_of(&key, &ended));
            self.settle_call(&tool, key, ended);
        }
        reports
    }

    /// Returns the report of an execution's end, for the server; none when it has none for such a call.
    pub fn report(&self, ticket: u64, ended: &Ended) -> Option<Value> {
        let (_, call) = self.tickets.get(&ticket)?;
        self.report_of(call.as_ref()?, ended)
    }

    /// Returns the proposal that released the call of a ticket.
    pub fn proposal_of(&self, ticket: u64) -> Option<&str> {
        let (_, call) = self.tickets.get(&ticket)?;
        let remote = self.remote.as_ref()?;
        remote.proposals.get(call.as_ref()?).map(String::as_str)
    }

    fn report_of(&self, key: &CallKey, ended: &Ended) -> Option<Value> {
        let proposal = self.remote.as_ref()?.proposals.get(key)?;
        let mut pending = self.state.unsettled();
        let (_, call) = pending.find(|(known, _)| *known == key)?;
        let (outcome, output, code) = match ended {
            Ended::Success(output) => ("success", output.as_deref(), None),
            Ended::Failed { code } => ("error", None, Some(code.as_str())),
            Ended::Unknown => ("unknown", None, None),
        };
        let parsed = output.and_then(|text| json::read(text, Limits::OUTPUT, Numbers::Any).ok());
        let mut fields = serde_json::Map::new();
        if let Some(parsed) = &parsed {
            for path in self.rules.compiled().output_paths(&call.tool) {
                if let Some(found) = path.find(parsed) {
                    fields.insert(path.to_string(), found.to_serde());
                }
            }
        }
        Some(json!({
            "proposal_id": proposal,
            "call_id": call.id,
            "arguments_digest": call.arguments_digest,
            "outcome": outcome,
            "output_fields": fields,
            "output_digest": output.map(|text| canon::sha256(text.as_bytes())),
            "error_code": code.filter(|code| !code.is_empty()),
        }))
    }

    pub(super) fn forget_proposal(&mut self, key: &CallKey) {
        if let Some(remote) = &mut self.remote {
            remote.proposals.remove(key);
        }
    }
}

fn can_retry(decision: &Decision) -> bool {
    let mut reasons = decision.calls.iter().flat_map(|call| &call.all_reasons);
    !decision.calls.is_empty() && reasons.all(|reason| reason.is_retried())
}

fn preflight(request: &WireRequest, shows_request: bool) -> Value {
    let text = request.text();
    let digest = canon::sha256(text.as_bytes());
    let request = request.request();
    let tools = request.tools.iter().map(|tool| {
        json!({
            "name": tool.name,
            "schema": tool.schema.as_ref().map(crate::value::Value::to_serde),
            "hosted": tool.hosted,
        })
    });
    let forced = match &request.choice {
        ToolChoice::Named(tool) => Some(tool),
        ToolChoice::Auto | ToolChoice::None | ToolChoice::Required | ToolChoice::AllowedOnly(_) => {
            None
        }
    };
    json!({
        "offered_tools": tools.collect::<Vec<_>>(),
        "request_digest": digest,
        "provider": request.provider,
        "model": request.model,
        "forced_tool": forced,
        "request": shows_request.then(|| request.view.to_serde()),
    })
}
