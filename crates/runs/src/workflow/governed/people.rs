//! People: they are asked about all waiting calls of a proposal at once, and answer in time or not at all.

use canon::{Digest, Value};
use contracts::{Answer, Answers, ApprovalRequest, ApprovalResponse, read_answer};
use domain::{Decide, GovernedInput, Kind, Problem, Telling, Timestamp};
use serde_json::json;

use super::kept::{Decided, Kept, Status, Waiting};
use super::session::{GovernedSession, proposal_id};
use crate::workflow::Note;

impl GovernedSession {
    /// Puts the questions of a proposal to people, all of them in one permission request.
    pub(super) fn ask(
        &mut self,
        number: u64,
        mut waiting: Waiting,
        verdicts: Value,
        now: Timestamp,
    ) {
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
        let decided = response.map(|response| Decided {
            response,
            actor: input.actor.clone(),
            key_id: input.key_id.clone(),
        });
        if self.telling >= Telling::Deciders {
            self.told.said.insert("decided".to_owned(), json!(decided));
        }
        self.go_on(number, *waiting, answers, None, input.at)?;
        let Some(kept) = self.proposals.get_mut(&number) else {
            return Err(no_proposal());
        };
        kept.response = decided;
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
}

fn no_proposal() -> Problem {
    Problem::new(404, "unknown_proposal", "no such proposal")
}
