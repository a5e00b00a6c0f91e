//! People: they are asked about all waiting calls of a proposal at once, and answer in time or not at all.

use canon::{Digest, Value};
use contracts::{Answer, Answers, ApprovalRequest, ApprovalResponse, read_answer};
use domain::{Decide, GovernedInput, Kind, Problem, RulesVersion, Timestamp};
use serde_json::json;

use super::proposals::{ApprovalWait, AttributedDecision, ProposalRecord, Status};
use super::session::{GovernedSession, proposal_id};
use crate::workflow::Note;

impl GovernedSession {
    /// Puts the questions of a proposal to people, all of them in one permission request.
    pub(super) fn ask(
        &mut self,
        number: u64,
        mut waiting: ApprovalWait,
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
        let (name, reason, input) = match requests.as_slice() {
            // One decision is about all of them, so that all of them are described.
            [_, _, ..] if self.rules_version >= RulesVersion::Things => described(&requests),
            _ => (
                first.map_or(Value::Null, |asked| json!(asked.tool_name)),
                first.map_or(Value::Null, |asked| json!(asked.reason)),
                first.map_or(Value::Null, |asked| asked.arguments.clone()),
            ),
        };
        let action = json!({"name": name, "input": input});
        let request = json!({
            "reason": reason,
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
            "action_name": name,
            "request": request,
            "action": action,
        });
        if let Value::Object(payload) = payload {
            self.told.notes.push(Note {
                kind: Kind::ToolApprovalRequired,
                payload,
            });
        }
        self.told.say(|said| said.asked(waiting.asked));
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
        let (number, kept) = self
            .find_proposal(&decide.proposal_id)
            .ok_or_else(no_proposal)?;
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
        let decided = response.map(|response| AttributedDecision {
            response,
            actor: input.actor.clone(),
            key_id: input.key_id.clone(),
        });
        if self.rules_version >= RulesVersion::Deciders {
            self.told.say(|said| said.decided(json!(decided)));
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

    fn take_waiting(&mut self, number: u64) -> Option<Box<ApprovalWait>> {
        self.proposals.get_mut(&number)?.waiting.take()
    }

    /// Settles proposals whose time for an answer is over.
    pub(super) fn settle_unanswered(&mut self, now: Timestamp) {
        let late = |kept: &ProposalRecord| kept.deadline().is_some_and(|deadline| now >= deadline);
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
            let mut said = std::mem::take(&mut self.told.said).operation("time_out");
            if let Ok(answer) = settled {
                said = said.answer(answer);
            }
            self.told.notes.push(Note {
                kind: Kind::ContractDecided,
                payload: said.into_members(),
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

/// Describes several calls that are decided on together: their names, why they are asked about, and what each is given.
fn described(requests: &[ApprovalRequest]) -> (Value, Value, Value) {
    let names = distinct(requests.iter().map(|asked| asked.tool_name.as_str())).join(", ");
    let reasons = distinct(requests.iter().map(|asked| asked.reason.as_str())).join("; ");
    let calls = requests
        .iter()
        .map(|asked| json!({"name": asked.tool_name, "input": asked.arguments}));
    let calls: Vec<Value> = calls.collect();
    (
        names.into(),
        format!("{} calls: {reasons}", calls.len()).into(),
        json!({ "calls": calls }),
    )
}

fn distinct<'a>(texts: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut found = Vec::new();
    for text in texts {
        if !found.contains(&text) {
            found.push(text);
        }
    }
    found
}

fn no_proposal() -> Problem {
    Problem::new(404, "unknown_proposal", "no such proposal")
}

#[cfg(test)]
mod tests {
    use canon::{Value, jcs, sha256};
    use serde_json::json;

    use super::GovernedSession;

    const FILES: [(&str, &str); 3] = [
        (
            "note.yaml",
            "tool: note\nside_effect: write\ncheckpoint: { reason: small }\n",
        ),
        (
            "find.yaml",
            "tool: find\nside_effect: read\nbinds: [ { slot: order, from: arguments, path: \"$.order\" } ]\n",
        ),
        (
            "pay.yaml",
            "tool: pay\nside_effect: financial\nargument_value_invariants: [ { path: \"$.order\", ref: order } ]\n",
        ),
    ];

    fn take(session: &mut GovernedSession, actor: &str, operation: Value) -> Value {
        let input = json!({"at": "2026-01-01T00:00:01Z", "actor": actor, "key_id": null,
            "request_id": domain::PermissionId::from_body("1"), "operation": operation});
        let taken = session.take(&serde_json::from_value(input).unwrap());
        taken.answer.unwrap()
    }

    fn propose(session: &mut GovernedSession, calls: &Value) -> Value {
        let tools = json!([{"name": "note"}, {"name": "find"}, {"name": "pay"}]);
        let (version, _) = session.versions();
        let preflight = json!({"name": "preflight", "expected_state_version": version, "offered_tools": tools,
            "request_digest": null, "provider": "openai", "model": "m"});
        let prepared = take(session, "ann", preflight);
        let propose = json!({"name": "propose", "prepared_request_id": prepared["prepared_request_id"],
            "finish_reason": "tool_calls", "content_digest": null, "usage": null, "tool_calls": calls});
        take(session, "ann", propose)
    }

    /// A call is refused while people are asked about another one; before they answer, what it lacked comes true.
    fn decided(rules_version: &str, approve: bool) -> Value {
        let files = FILES.map(|(file, text)| json!({"file": file, "text": text}));
        let files = json!({"files": files});
        let read = serde_json::from_value(files.clone()).unwrap();
        let digest = super::super::Contracts::compile(&read).unwrap().digest();
        let start = json!({"session_id": "s", "at": "2026-01-01T00:00:00Z", "sha256": digest, "contracts": files,
            "options": {"sessionId": "s", "gate": "strip_partial"}, "telling": rules_version});
        let mut session = GovernedSession::begin(&start).unwrap();
        let order = json!({"order": "A"});
        let asked = propose(
            &mut session,
            &json!([{"id": "n", "name": "note", "arguments": "{}"},
                {"id": "p", "name": "pay", "arguments": order.to_string()}]),
        );
        assert_eq!(asked["status"], "pending_approval", "{asked}");
        assert_eq!(asked["verdicts"][1]["verdict"], "block", "{asked}");
        let found = propose(
            &mut session,
            &json!([{"id": "f", "name": "find", "arguments": order.to_string()}]),
        );
        let report = json!({"name": "report", "proposal_id": found["proposal_id"], "call_id": "f",
            "arguments_digest": sha256(&jcs(&order)), "outcome": "success", "output_fields": {},
            "output_digest": null, "started_at": null, "ended_at": null, "error_code": null});
        take(&mut session, "ann", report);
        let decide = json!({"name": "decide", "proposal_id": asked["proposal_id"], "approve": approve,
            "decided_by": "bea", "reason": null});
        take(&mut session, "bea", decide);
        let at = domain::Timestamp::parse("2026-01-01T00:00:01Z").unwrap();
        let id = asked["proposal_id"].as_str().unwrap();
        let (mut shown, _) = session.proposal(id, at).unwrap();
        shown["refused"] = asked["verdicts"][1].clone();
        shown
    }

    #[test]
    fn r40_a_refused_call_stays_refused_whatever_people_say_about_another() {
        for approve in [true, false] {
            let shown = decided("refusals", approve);
            assert_eq!(shown["verdicts"][1], shown["refused"], "{shown}");
        }
        let shown = decided("refusals", true);
        assert_eq!(shown["status"], "approved", "{shown}");
        assert_eq!(shown["verdicts"][0]["verdict"], "allow", "{shown}");
    }

    #[test]
    fn u2_a_session_on_record_decides_as_it_did() {
        let shown = decided("deciders", true);
        assert_eq!(shown["verdicts"][1]["verdict"], "allow", "{shown}");
    }
}
