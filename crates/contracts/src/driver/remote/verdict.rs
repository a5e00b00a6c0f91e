//! After the model: what is proposed to the server, and what its verdict does here.

use domain::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use super::preflight::preflight;
use super::{Proposal, ProposedResponse, SettledVerdict};
use crate::canonical;
use crate::checkpoint::Answers;
use crate::driver::response::{ReceivedResponse, add_hosted};
use crate::driver::{DriveError, Driver, JudgedResponse, Open, digest};
use crate::event::{Call, CallKey, Event, Release, Responded};
use crate::gate::{Action, Decision};
use crate::json;
use crate::judge::{JudgeContext, Status, judge};
use crate::narrow;
use crate::reason::BlockReason;
use crate::rules::{Feedback, Mode};
use crate::wire::Reply;

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
        // A response that cannot be read is not asked for again here: that would need another preflight.
        let retries_left = std::mem::take(&mut open.retries_left);
        let (mut open, reply) = match self.received(attempt, open, (response, is_sse), now)? {
            ReceivedResponse::Reply(open, reply) => (*open, *reply),
            ReceivedResponse::Judged(judged) => return Ok(Proposal::Judged(Box::new(judged))),
        };
        open.retries_left = retries_left;
        let body = self.proposal_body(&reply);
        open.proposed = Some(ProposedResponse { reply, asked: None });
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
    ) -> Result<SettledVerdict, DriveError> {
        let mut open = self.open.remove(&attempt).ok_or(DriveError::Unknown)?;
        let mut proposed = open.proposed.take().ok_or(DriveError::Unknown)?;
        let Ok(answer) = ProposalAnswer::deserialize(answer) else {
            return Err(self.unfit(&open, proposed, now));
        };
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
        let is_question = |answer: &ProposalAnswer| answer.approval_requests.is_array();
        if !fits || (answer.status == "pending_approval" && !is_question(&answer)) {
            return Err(self.unfit(&open, proposed, now));
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
            return Ok(SettledVerdict::Waits {
                questions: answer.approval_requests,
            });
        }
        self.compare(&open, &proposed, &answer, now);
        self.end_by(attempt, open, proposed, calls, answer, now)
    }

    /// A server that answers something else has perhaps judged the response: what it cost counts, and nothing is released.
    fn unfit(&mut self, open: &Open, proposed: ProposedResponse, now: Timestamp) -> DriveError {
        let (reply, asked) = proposed.into_parts();
        self.discard(open, reply.usage(), asked, now);
        DriveError::Unfit
    }

    fn end_by(
        &mut self,
        attempt: u64,
        mut open: Open,
        proposed: ProposedResponse,
        calls: Vec<Call>,
        answer: ProposalAnswer,
        now: Timestamp,
    ) -> Result<SettledVerdict, DriveError> {
        let ProposedResponse { reply, asked } = proposed;
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
            _ => {
                let proposed = ProposedResponse { reply, asked };
                return Err(self.unfit(&open, proposed, now));
            }
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
        let wire = open.request.wire();
        let released = |driver: &mut Self, body: Vec<u8>, decision: Option<Decision>| {
            if blocked.is_empty() {
                driver.released.add(wire, &reply);
            }
            Ok(SettledVerdict::Judged(Box::new(JudgedResponse::Released {
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
                    let judged = JudgedResponse::Rejected(Box::new(decision));
                    return Ok(SettledVerdict::Judged(Box::new(judged)));
                }
                open.retries_left -= 1;
                open.told = self.retry_feedback(&decision);
                let reason = decision.reason.map(BlockReason::as_str);
                self.push_event("retried", now, &[("reason", reason.unwrap_or_default())]);
                let preflight = preflight(&open.request, self.looks_at_requests);
                self.open.insert(attempt, open);
                let mut decision = Box::new(decision);
                decision.action = Action::Retried;
                Ok(SettledVerdict::Again {
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
        proposed: &ProposedResponse,
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
        let occasion = JudgeContext {
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
            self.push_event("verdict_differs", now, &[("call_id", &call)]);
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
            let parsed = json::read_arguments(&call.arguments);
            let text = match parsed {
                Ok(value) if value.as_object().is_some() => canonical::text(&value),
                Ok(_) | Err(_) => call.arguments.clone(),
            };
            Call {
                id: call.id.clone(),
                tool: call.name.clone(),
                arguments_digest: digest(&text),
                arguments: text,
                commits: self.rules.commits_at_release(&call.name),
            }
        });
        calls.collect()
    }
}

fn can_retry(decision: &Decision) -> bool {
    let mut reasons = decision.calls.iter().flat_map(|call| &call.all_reasons);
    !decision.calls.is_empty() && reasons.all(|reason| reason.is_retried())
}
