//! After the model: a response is read and judged, people are asked, and it is released, blocked, or asked for again.

use std::sync::Arc;

use domain::Timestamp;

use super::{DriveError, Driver, JudgedResponse, Open, WaitingResponse, digest, failed};
use crate::checkpoint::{Answer, Answers, ApprovalResponse, question, read_answer};
use crate::event::{Call, Event, Release, Responded};
use crate::gate::{
    AttemptCost, Decision, Settlement, settle, settled, shadow_delta, unread_delta, unreadable,
};
use crate::judge::{JudgeContext, Judgement, Verdict, judge_again};
use crate::precheck::{check_attempt, check_open};
use crate::rules::Mode;
use crate::wire::{Reply, ReplyError};

/// A response that came.
pub(super) enum ReceivedResponse {
    /// It can be judged.
    Reply(Box<Open>, Box<Reply>),
    /// It cannot be read, and that is the verdict.
    Judged(JudgedResponse),
}

impl Driver {
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
    ) -> Result<JudgedResponse, DriveError> {
        let open = self.open.remove(&attempt).ok_or(DriveError::Unknown)?;
        if open.waiting.is_some() {
            self.open.insert(attempt, open);
            return Err(DriveError::Unknown);
        }
        let (mut open, reply) = match self.received(attempt, open, (response, is_sse), now)? {
            ReceivedResponse::Reply(open, reply) => (*open, *reply),
            ReceivedResponse::Judged(judged) => return Ok(judged),
        };
        if self.rules.options().mode == Mode::LogOnly {
            return Ok(self.log(open, &reply, now));
        }
        // A server that was asked about this response is lost: the session judges by itself.
        open.proposed = None;
        self.go_on(attempt, open, reply, None, Answers::new(), &[], 0, now)
    }

    /// Reads a response. One that cannot be read is judged here already.
    pub(super) fn received(
        &mut self,
        attempt: u64,
        open: Open,
        (response, is_sse): (&[u8], bool),
        now: Timestamp,
    ) -> Result<ReceivedResponse, DriveError> {
        let reply = Reply::read(&open.request, response, is_sse, self.counts_usage());
        if let Err(over) = self.check_open() {
            // A response that arrives after a kill is thrown away; its cost counts.
            let usage = reply.ok().and_then(|reply| reply.usage());
            self.discard(&open, usage, None, now);
            return Err(over);
        }
        let detail = match reply {
            Ok(reply) => return Ok(ReceivedResponse::Reply(Box::new(open), Box::new(reply))),
            Err(ReplyError::Provider { detail }) => {
                self.commit(failed(now, true), None);
                if self.rules.enforces() {
                    return Err(DriveError::Provider { detail });
                }
                return Ok(ReceivedResponse::Judged(
                    self.pass_failed(&open, response, &detail, now),
                ));
            }
            Err(ReplyError::Unreadable { detail }) => detail,
        };
        // Where nothing is blocked, nothing is changed either.
        let judged = match self.rules.enforces() {
            true => self.block_unreadable(attempt, open, &detail, now),
            false => self.pass_unreadable(&open, response, &detail, now),
        };
        Ok(ReceivedResponse::Judged(judged))
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
    ) -> Result<JudgedResponse, DriveError> {
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
            &waiting.verdicts,
            waiting.asked,
            now,
        )
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
        before: &[Verdict],
        asked: u64,
        now: Timestamp,
    ) -> Result<JudgedResponse, DriveError> {
        let calls = &reply.response().calls;
        open.request
            .read_schemas(|name| calls.iter().any(|call| call.name == name));
        let occasion = JudgeContext {
            request: open.request.request(),
            now,
            proposal: proposal.as_deref(),
            answers: &answers,
        };
        let seat = self.seat.as_ref();
        let response = reply.response();
        let judgement = judge_again(&self.rules, &self.state, response, occasion, seat, before);
        let next = judgement
            .needing_approval()
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
            calls: judgement.standing_calls(),
        };
        self.commit(event, None);
        let id = self.id("checkpoint");
        let Some(question) = question(&self.rules, &self.state, &call, &id, now) else {
            let mut answers = answers;
            answers.insert(call.id, Answer::Denied { detail: None });
            let before = judgement.verdicts();
            let proposal = Some(proposal);
            return self.go_on(attempt, open, reply, proposal, answers, before, asked, now);
        };
        open.waiting = Some(WaitingResponse {
            reply,
            proposal,
            asked,
            answers,
            verdicts: judgement.verdicts().to_vec(),
            question: question.clone(),
            call,
        });
        self.open.insert(attempt, open);
        Ok(JudgedResponse::Asked(Box::new(question)))
    }

    fn finish(
        &mut self,
        attempt: u64,
        mut open: Open,
        reply: &Reply,
        judgement: &Judgement,
        proposal: Option<String>,
        now: Timestamp,
    ) -> Result<JudgedResponse, DriveError> {
        if !self.rules.enforces() {
            self.note_difference(&open, judgement, now);
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
        let judged = match settlement {
            Settlement::Release(decision) => {
                self.released.add(open.request.wire(), reply);
                JudgedResponse::Released {
                    body: reply.whole(),
                    decision: Some(decision),
                }
            }
            Settlement::Strip {
                decision,
                removed,
                empty,
            } => JudgedResponse::Released {
                body: reply.stripped(&removed, empty),
                decision: Some(decision),
            },
            Settlement::Reject(decision) => JudgedResponse::Rejected(Box::new(decision)),
            Settlement::Retry { decision, feedback } => {
                open.retries_left -= 1;
                open.told = join(open.narrowing.feedback(), feedback);
                return Ok(self.retry(attempt, open, decision, now));
            }
            // Nobody is asked any more: `go_on` looked.
            Settlement::Wait => return Err(DriveError::Unknown),
        };
        self.done(open);
        Ok(judged)
    }

    /// Asks the model again, unless a limit stops it.
    fn retry(
        &mut self,
        attempt: u64,
        mut open: Open,
        decision: Decision,
        now: Timestamp,
    ) -> JudgedResponse {
        let checked = check_open(&self.state)
            .and_then(|()| check_attempt(&self.rules, &self.state))
            .and_then(|()| self.check_attempts());
        if let Err(refusal) = checked {
            return JudgedResponse::Rejected(Box::new(decision.stop_retry(&refusal)));
        }
        let reason = decision.reason.map(crate::reason::BlockReason::as_str);
        self.push_event("retried", now, &[("reason", reason.unwrap_or_default())]);
        let told = open.told.clone();
        let narrowing = Arc::clone(&open.narrowing);
        let body = self.written(&mut open.request, &narrowing, told.as_deref());
        self.open.insert(attempt, open);
        JudgedResponse::Retried {
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
    ) -> JudgedResponse {
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
        JudgedResponse::Rejected(Box::new(decision))
    }

    /// What a provider sent instead of an answer, or the part of one, is the program's to deal with, as without a session.
    fn pass_failed(
        &mut self,
        open: &Open,
        response: &[u8],
        detail: &str,
        now: Timestamp,
    ) -> JudgedResponse {
        self.push_event("response_unread", now, &[("detail", detail)]);
        self.note_unread(open, None);
        self.capture(open, None, None);
        JudgedResponse::Released {
            body: response.to_vec(),
            decision: None,
        }
    }

    /// The last difference is that of the last call, also where its response could not be read.
    fn note_unread(&mut self, open: &Open, detail: Option<&str>) {
        if self.rules.options().mode == Mode::Shadow {
            let delta = unread_delta(&self.rules, &self.state, &open.narrowing, detail);
            self.last_delta = Some(delta);
        }
    }

    fn pass_unreadable(
        &mut self,
        open: &Open,
        response: &[u8],
        detail: &str,
        now: Timestamp,
    ) -> JudgedResponse {
        self.push_event(
            "violation",
            now,
            &[("reason", "response_format_invalid"), ("detail", detail)],
        );
        self.note_unread(open, Some(detail));
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
        JudgedResponse::Released {
            body: response.to_vec(),
            decision: None,
        }
    }

    fn note_difference(&mut self, open: &Open, judgement: &Judgement, now: Timestamp) {
        if self.rules.is_advisory() {
            let reasons: Vec<&'static str> = judgement
                .blocked()
                .filter_map(|verdict| verdict.reason())
                .map(crate::reason::BlockReason::as_str)
                .collect();
            for reason in reasons {
                self.push_event("violation", now, &[("reason", reason)]);
            }
            return;
        }
        let delta = shadow_delta(&self.rules, &self.state, &open.narrowing, judgement);
        self.last_delta = Some(delta);
    }

    /// Log-only: counters and cost, no verdicts.
    fn log(&mut self, open: Open, reply: &Reply, now: Timestamp) -> JudgedResponse {
        let calls = reply.response().calls.iter().chain(reply.hosted());
        let event = Event::Responded(Responded {
            at: now,
            proposal: None,
            cost: self.cost(&open, reply.usage()),
            usage_unknown: false,
            release: Release::Logged {
                tools: calls.map(|call| call.name.clone()).collect(),
            },
        });
        self.commit(event, None);
        self.capture(&open, Some(reply), None);
        self.done(open);
        JudgedResponse::Released {
            body: reply.whole(),
            decision: None,
        }
    }
}

/// Calls that the provider has already run count as done, whatever became of the rest.
pub(super) fn add_hosted(event: &mut Event, reply: &Reply) {
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

/// Joins what the model is told about tools.
pub(super) fn join(first: Option<String>, second: Option<String>) -> Option<String> {
    match (first, second) {
        (Some(first), Some(second)) => Some(format!("{first} {second}")),
        (first, second) => first.or(second),
    }
}
