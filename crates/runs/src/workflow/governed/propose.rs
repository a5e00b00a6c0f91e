//! After the model has answered: the response is judged.
//!
//! A prepared request is used once. If anything moved since, its response is not judged: what it was allowed to see is
//! not what holds any more.

use canon::Value;
use contracts::{
    Answer, Answers, AttemptCost, Call, Decimal, Event, FinishReason, JudgeContext, Mode,
    Narrowing, ProposedCall, Release, Responded, Response, Settlement, Usage, Verdict, judge_again,
    question, settle, settled,
};
use domain::{GovernedInput, Problem, Proposal, RulesVersion, Timestamp};
use serde_json::json;

use super::kept_request::KeptRequest;
use super::prepare::{Prepared, prepared_number, stale};
use super::proposals::{ApprovalWait, ReleasedCall, Status};
use super::session::{GovernedSession, PREPARED_MICROS, age, proposal_id};

impl GovernedSession {
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
        let response = response_of(proposed);
        if self.rules.options().mode == Mode::LogOnly {
            return self.log(&response, cost, input.at);
        }
        let Prepared {
            request, narrowing, ..
        } = prepared;
        let waiting = ApprovalWait {
            request,
            response,
            cost,
            verdicts: Vec::new(),
            questions: Vec::new(),
            asked: 0,
            deadline: input.at,
            permission: input.request_id.clone(),
        };
        let id = self.proposal_count;
        self.go_on(id, waiting, Answers::new(), narrowing.as_ref(), input.at)
    }

    /// Refuses a response whose text contracts look at and that came without it, and a text that is not the one of its digest.
    ///
    /// # Errors
    /// What is missing, or does not agree.
    pub fn content_handed_in(&self, proposed: &Proposal) -> Result<(), Problem> {
        if let (Some(content), Some(digest)) = (&proposed.content, &proposed.content_digest)
            && canon::sha256(content.as_bytes()).to_string() != *digest
        {
            let message = "`content_digest` is not the digest of `content`";
            return Err(Problem::new(409, "digest_mismatch", message));
        }
        let is_there = proposed.content.is_some() || proposed.without_text;
        if is_there || self.rules.options().mode == Mode::LogOnly {
            return Ok(());
        }
        let compiled = self.rules.compiled();
        let names = proposed.tool_calls.iter().map(|call| call.name.as_str());
        let tools: Vec<&str> = names.filter(|name| compiled.reads_content(name)).collect();
        if tools.is_empty() {
            return Ok(());
        }
        let message = "the contracts of these tools look at the text beside a call: send it as `content`, null where there is none";
        Err(Problem::new(422, "content_required", message).with("tools", tools))
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

    pub(super) fn discarded(
        &self,
        proposal: Option<String>,
        cost: Option<Decimal>,
        at: Timestamp,
    ) -> Event {
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
        let number = self.proposal_count;
        if self.rules_version < RulesVersion::Deciders {
            let verdicts = response.calls.iter();
            let verdicts: Value = verdicts
                .map(|call| json!({"call_id": call.id, "tool_name": call.name, "verdict": "allow"}))
                .collect();
            self.keep(number, Status::Allowed, verdicts, None, at);
            return Ok(self.proposal_answer(number));
        }
        let calls: Vec<ReleasedCall> = response.calls.iter().map(logged_call).collect();
        let verdicts = calls.iter().map(|call| {
            json!({
                "call_id": call.id,
                "tool_name": call.tool,
                "arguments_digest": call.digest,
                "verdict": "allow",
                "judged": false,
            })
        });
        let verdicts = verdicts.collect();
        self.keep(number, Status::Allowed, verdicts, None, at);
        if let Some(kept) = self.proposals.get_mut(&number) {
            kept.calls = calls;
        }
        self.tell_released(number);
        Ok(self.proposal_answer(number))
    }

    /// Judges a response with what people answered so far: it is settled, or people are asked.
    pub(super) fn go_on(
        &mut self,
        number: u64,
        mut waiting: ApprovalWait,
        mut answers: Answers,
        narrowing: Option<&Narrowing>,
        now: Timestamp,
    ) -> Result<Value, Problem> {
        let id = proposal_id(number);
        let name = (waiting.asked > 0).then_some(id.as_str());
        let judgement = {
            let compiled = self.rules.compiled();
            let request = waiting.request.judged_with(compiled, &waiting.response);
            let occasion = JudgeContext {
                request: &request,
                now,
                proposal: name,
                answers: &answers,
            };
            let seat = self.seat.as_ref();
            let (rules, state) = (&self.rules, &self.state);
            let before = &waiting.verdicts;
            judge_again(rules, state, &waiting.response, occasion, seat, before)
        };
        let verdicts: Value = judgement.verdicts().iter().map(shown_verdict).collect();
        let asked: Vec<Call> = judgement
            .needing_approval()
            .map(|verdict| verdict.call().clone())
            .collect();
        if !asked.is_empty() {
            waiting.asked = asked.len() as u64;
            if self.rules_version >= RulesVersion::Refusals {
                waiting.verdicts = judgement.verdicts().to_vec();
            }
            let event = Event::Asked {
                at: now,
                proposal: id.clone(),
                asked: waiting.asked,
                calls: judgement.standing_calls(),
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
            self.told.say(|said| said.shadow_delta(json!(delta)));
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
        self.tell_released(number);
        Ok(self.proposal_answer(number))
    }

    fn tell_decision(&mut self, number: u64) {
        let kept = self.proposals.get(&number);
        if let Some(decision) = kept.and_then(|kept| kept.decision.as_ref()) {
            self.told.say(|said| said.decision(json!(decision)));
        }
    }

    /// Tells which calls were released: those nobody reports may have happened all the same.
    fn tell_released(&mut self, number: u64) {
        let Some(kept) = self.proposals.get(&number) else {
            return;
        };
        if self.rules_version < RulesVersion::Executions || kept.calls.is_empty() {
            return;
        }
        let released = kept.calls.iter().map(|call| {
            json!({
                "tool": call.tool,
                "call_id": call.id,
                "proposal_id": proposal_id(number),
                "arguments_sha256": call.digest,
            })
        });
        let released: Vec<Value> = released.collect();
        self.told.say(|said| said.released(released));
    }

    fn cost(&self, request: &KeptRequest, proposed: &Proposal) -> Option<Decimal> {
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

fn kept_call(call: &Call) -> ReleasedCall {
    ReleasedCall {
        id: call.id.clone(),
        tool: call.tool.clone(),
        digest: call.arguments_digest,
        commits: call.commits,
    }
}

/// A call that nobody judged: it counted when it came, and what becomes of it can be reported.
fn logged_call(call: &ProposedCall) -> ReleasedCall {
    ReleasedCall {
        id: call.id.clone(),
        tool: call.name.clone(),
        digest: call.arguments_digest(),
        commits: true,
    }
}

/// Reads a proposed response as contracts see it.
pub(crate) fn response_of(proposed: &Proposal) -> Response {
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
