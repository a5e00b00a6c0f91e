//! Reports of executions: what was allowed becomes what happened.
//!
//! A call is reported once. The same report again changes nothing, another one is refused and recorded, and "nobody knows"
//! is the only end that a later report may replace.

use canon::{Digest, Value, jcs, sha256};
use contracts::{Event, Mode, Outcome, Path, ShownOutput};
use domain::{Problem, Report, ReportedOutcome, RulesVersion, Timestamp};
use serde_json::json;

use super::proposals::ReleasedCall;
use super::seat::as_value;
use super::session::GovernedSession;

/// A report that was taken.
#[derive(Debug, Clone)]
pub(super) struct Receipt {
    digest: Digest,
    is_final: bool,
    answer: Value,
}

impl GovernedSession {
    pub(super) fn report(&mut self, report: &Report, now: Timestamp) -> Result<Value, Problem> {
        let found = self.find_proposal(&report.proposal_id);
        let (number, kept) =
            found.ok_or_else(|| Problem::new(404, "unknown_proposal", "no such proposal"))?;
        let call = kept.calls.iter().find(|call| call.id == report.call_id);
        let Some(call) = call.cloned() else {
            let message = "the proposal released no such call";
            return Err(Problem::new(409, "not_allowed", message));
        };
        let digest = sha256(&jcs(&json!(report)));
        if let Some(known) = kept.receipts.get(&report.call_id) {
            if known.digest == digest {
                return Ok(known.answer.clone());
            }
            if known.is_final {
                self.told.changed = true;
                let message = "the call was reported before, with other content";
                return Err(Problem::new(409, "settled", message));
            }
        }
        let key = kept.key(&report.call_id);
        let pending = key.filter(|key| {
            let mut unsettled = self.state.unsettled();
            unsettled.any(|(known, _)| known == key)
        });
        let Some(key) = pending else {
            return self.report_settled(number, &call, report, digest);
        };
        if call.digest != report.arguments_digest {
            // Something else was executed than was allowed: nobody knows what became of the call.
            let event = Event::Settled {
                call: key,
                outcome: Outcome::Unknown,
                output: None,
            };
            self.advance(&event)?;
            self.advance(&Event::ExecutionRefused { at: now })?;
            self.tell_execution(&call, report);
            let message = "the executor was given other arguments than were allowed";
            return Err(Problem::new(409, "arguments_differ", message)
                .with("reason", "execution_constraint_violated"));
        }
        let outcome = self.outcome(&call, report);
        let output = match outcome {
            Outcome::Success => Some(output_of(report)?),
            Outcome::ExpectedError | Outcome::Error | Outcome::Unknown => None,
        };
        let event = Event::Settled {
            call: key,
            outcome,
            output,
        };
        self.advance(&event)?;
        let committed = outcome == Outcome::Success;
        self.tell_execution(&call, report);
        Ok(self.keep_report(
            number,
            &call,
            digest,
            outcome != Outcome::Unknown,
            committed,
        ))
    }

    /// A call that waits for no report: it counted at its release, or nobody executed it in time.
    fn report_settled(
        &mut self,
        number: u64,
        call: &ReleasedCall,
        report: &Report,
        digest: Digest,
    ) -> Result<Value, Problem> {
        self.told.changed = true;
        self.tell_execution(call, report);
        if call.commits {
            self.take_output(number, call, report)?;
            return Ok(self.keep_report(number, call, digest, true, true));
        }
        let happened = match report.outcome {
            ReportedOutcome::Success | ReportedOutcome::Unknown => true,
            ReportedOutcome::ExpectedError | ReportedOutcome::Error => false,
        };
        if happened && !self.health().bypass_detected {
            // It was executed after its time was over, when nothing counted it any more.
            self.advance(&Event::Bypassed)?;
        }
        let message = "the call expired before its execution was reported";
        Err(Problem::new(409, "expired", message))
    }

    /// Takes in what a call returned that counted at its release: preconditions, slots and envelopes may look at it.
    fn take_output(
        &mut self,
        number: u64,
        call: &ReleasedCall,
        report: &Report,
    ) -> Result<(), Problem> {
        let kept = self.proposals.get(&number);
        // In log-only mode no call is known to rules.
        let is_known = kept.is_some_and(|kept| kept.step.is_some());
        let same = call.digest == report.arguments_digest;
        if self.rules_version < RulesVersion::Deciders
            || report.outcome != ReportedOutcome::Success
            || !(is_known && same)
        {
            return Ok(());
        }
        let output = ShownOutput {
            call_id: call.id.clone(),
            text: output_of(report)?,
        };
        self.advance(&Event::OutputsSeen {
            outputs: vec![output],
        })
    }

    /// Tells what became of a call, for whoever reads the record without judging again: receipts list it.
    fn tell_execution(&mut self, call: &ReleasedCall, report: &Report) {
        if self.rules_version < RulesVersion::Executions {
            return;
        }
        self.told.say(|said| said.executed(executed(call, report)));
    }

    /// Finds a released call that a report is about, with the answer if just this was reported before.
    pub fn reported(&self, report: &Report) -> Option<(Value, Option<Value>)> {
        let (_, kept) = self.find_proposal(&report.proposal_id)?;
        let call = kept.calls.iter().find(|call| call.id == report.call_id)?;
        let digest = sha256(&jcs(&json!(report)));
        let known = kept.receipts.get(&report.call_id);
        let known = known.filter(|known| known.digest == digest);
        let answer = known.map(|known| known.answer.clone());
        Some((executed(call, report), answer))
    }

    /// Returns what the workflow is told when a report comes after the end: the things that the call held are free, unless
    /// nobody knows what became of it.
    pub fn late_releases(&self, report: &Report) -> Vec<Value> {
        let Some((_, kept)) = self.find_proposal(&report.proposal_id) else {
            return Vec::new();
        };
        let mut calls = kept.calls.iter();
        let is_known = report.outcome != ReportedOutcome::Unknown
            && calls
                .any(|call| call.id == report.call_id && call.digest == report.arguments_digest);
        let key = kept.key(&report.call_id).filter(|_| is_known);
        let (Some(key), Some(seat)) = (key, &self.seat) else {
            return Vec::new();
        };
        seat.releases_of(&key).iter().map(as_value).collect()
    }

    /// Refuses an error that is called expected and that the tool's contract does not list.
    ///
    /// # Errors
    /// What the contract lists.
    pub fn error_listed(&self, report: &Report) -> Result<(), Problem> {
        let found = self.find_proposal(&report.proposal_id);
        let call = found.and_then(|(_, kept)| {
            let mut calls = kept.calls.iter();
            calls.find(|call| call.id == report.call_id)
        });
        let Some(call) = call else { return Ok(()) };
        // Nothing is held against contracts where nothing is judged.
        let judges = self.rules.options().mode != Mode::LogOnly;
        let is_expected = report.outcome == ReportedOutcome::ExpectedError;
        if !judges || !is_expected || self.is_expected(call, report) {
            return Ok(());
        }
        let contract = self.rules.compiled().contract(&call.tool);
        let listed: Vec<&String> = contract
            .into_iter()
            .flat_map(|contract| &contract.allowed_errors)
            .collect();
        let message =
            "the contract of the tool does not list this `error_code`: report it as `error`";
        Err(Problem::new(422, "error_not_listed", message).with("allowed_errors", listed))
    }

    fn is_expected(&self, call: &ReleasedCall, report: &Report) -> bool {
        let contract = self.rules.compiled().contract(&call.tool);
        report.error_code.as_ref().is_some_and(|code| {
            contract.is_some_and(|contract| contract.allowed_errors.contains(code))
        })
    }

    fn outcome(&self, call: &ReleasedCall, report: &Report) -> Outcome {
        let expected = self.is_expected(call, report);
        match report.outcome {
            ReportedOutcome::Success => Outcome::Success,
            ReportedOutcome::Error | ReportedOutcome::ExpectedError if expected => {
                Outcome::ExpectedError
            }
            ReportedOutcome::Error | ReportedOutcome::ExpectedError => Outcome::Error,
            ReportedOutcome::Unknown => Outcome::Unknown,
        }
    }

    fn keep_report(
        &mut self,
        number: u64,
        call: &ReleasedCall,
        digest: Digest,
        is_final: bool,
        committed: bool,
    ) -> Value {
        let answer = json!({
            "committed": committed,
            "state_version": self.state.state_version(),
            "control_revision": self.state.control_revision(),
        });
        let receipt = Receipt {
            digest,
            is_final,
            answer: answer.clone(),
        };
        if let Some(kept) = self.proposals.get_mut(&number) {
            kept.receipts.insert(call.id.clone(), receipt);
        }
        answer
    }
}

/// Refuses a report that says two things about one place of the output, whatever each of them calls it.
///
/// # Errors
/// The name that does not agree with another.
pub fn fields_agree(report: &Report) -> Result<(), Problem> {
    if report.outcome != ReportedOutcome::Success {
        return Ok(());
    }
    let fields: Vec<(&String, Path, &Value)> = report
        .output_fields
        .iter()
        .map(|(name, value)| {
            let path = Path::parse(name).unwrap_or_else(|_| Path::root().member(name));
            (name, path, value)
        })
        .collect();
    let mut output = Value::Null;
    let put = fields
        .iter()
        .find(|(_, path, value)| !path.put(&mut output, (*value).clone()));
    // What was put first may have been null, or have grown since.
    let changed = || {
        let mut fields = fields.iter();
        fields.find(|(_, path, value)| path.find_json(&output) != Some(*value))
    };
    let malformed = |what: String| Err(Problem::new(400, "malformed", what));
    if let Some((name, ..)) = put.or_else(changed) {
        return malformed(format!("`output_fields` says two things about `{name}`"));
    }
    // Names are paths or members, never both: a path among members would be taken for a member of that name.
    let is_path = |name: &&String| Path::parse(name).is_ok();
    let names = || report.output_fields.keys();
    match (names().find(is_path), names().find(|name| !is_path(name))) {
        (Some(path), Some(name)) => malformed(format!(
            "`output_fields` has the path `{path}`, and `{name}` is not a path"
        )),
        (_, None) | (None, _) => Ok(()),
    }
}

/// Returns what rules read of a reported output; none when it cannot be read.
pub(crate) fn reported_output(report: &Report) -> Option<String> {
    output_of(report).ok()
}

fn executed(call: &ReleasedCall, report: &Report) -> Value {
    json!({
        "tool": call.tool,
        "call_id": report.call_id,
        "proposal_id": report.proposal_id,
        "outcome": report.outcome,
        "arguments_sha256": report.arguments_digest,
        "output_sha256": report.output_digest,
    })
}

/// Puts the reported fields where they stood in the output: by path, or as they are.
fn output_of(report: &Report) -> Result<String, Problem> {
    let by_path = report
        .output_fields
        .keys()
        .all(|name| name.starts_with('$'));
    if !by_path {
        return Ok(Value::Object(report.output_fields.clone()).to_string());
    }
    let mut output = Value::Null;
    for (path, value) in &report.output_fields {
        let malformed = |what: String| Problem::new(400, "malformed", what);
        let parsed = Path::parse(path).map_err(|error| malformed(error.to_string()))?;
        if !parsed.put(&mut output, value.clone()) {
            let what = format!("`output_fields` says two things about `{path}`");
            return Err(malformed(what));
        }
    }
    Ok(match output {
        Value::Null => "{}".to_owned(),
        output => output.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use canon::{Value, jcs, sha256};
    use serde_json::json;

    use super::GovernedSession;

    fn told(start: &Value) -> String {
        let mut session = GovernedSession::begin(start).unwrap();
        let arguments = json!({"cents": 5});
        let operations = [
            json!({"name": "preflight", "expected_state_version": 0, "offered_tools": [{"name": "pay"}],
                "request_digest": null, "provider": "openai", "model": "m"}),
            json!({"name": "propose", "prepared_request_id": "prepared_1", "finish_reason": "tool_calls",
                "content_digest": null, "usage": null,
                "tool_calls": [{"id": "c", "name": "pay", "arguments": arguments.to_string()}]}),
            json!({"name": "report", "proposal_id": "proposal_1", "call_id": "c",
                "arguments_digest": sha256(&jcs(&arguments)), "outcome": "success", "output_fields": {},
                "output_digest": null, "started_at": null, "ended_at": null, "error_code": null}),
        ];
        let mut notes = Vec::new();
        for operation in operations {
            let input = json!({"at": "2026-01-01T00:00:01Z", "actor": "ann", "key_id": null,
                "request_id": domain::PermissionId::from_body("1"), "operation": operation});
            let taken = session.take(&serde_json::from_value(input).unwrap());
            taken.answer.unwrap();
            notes.extend(
                taken
                    .notes
                    .into_iter()
                    .map(|note| Value::Object(note.payload)),
            );
        }
        json!(notes).to_string()
    }

    #[test]
    fn u2_a_session_on_record_tells_what_it_told_and_a_new_one_what_became_of_its_calls() {
        let contract = "tool: pay\nside_effect: write\n";
        let files = json!({"files": [{"file": "pay.yaml", "text": contract}]});
        let digest =
            super::super::Contracts::compile(&serde_json::from_value(files.clone()).unwrap());
        let mut start = json!({"session_id": "s", "at": "2026-01-01T00:00:00Z",
            "sha256": digest.unwrap().digest(), "contracts": files, "options": {"sessionId": "s"}});
        let before = told(&start);
        assert!(!before.contains("\"executed\":") && !before.contains("\"released\":"));
        start["telling"] = json!("executions");
        let now = told(&start);
        assert!(
            now.contains("\"executed\":") && now.contains("\"released\":"),
            "{now}"
        );
    }
}
