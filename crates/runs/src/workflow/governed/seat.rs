//! A governed session of a workflow: what it hears of the others, and what they must be told of it.

use std::sync::Arc;

use canon::Value;
use contracts::workflow::{
    HandoffRequest, Seat, Workflow, WorkflowEvent, WorkflowRefusal, WorkflowView, compile_workflow,
};
use contracts::{Event, Lifecycle, Source};
use domain::{
    ContractText, GovernedInput, GovernedPlace, NewOffer, Problem, RulesVersion, Timestamp,
};
use serde::Deserialize as _;
use serde_json::json;

use super::session::{GovernedSession, SessionEnd};

/// Offers of one workflow that can be open at a time.
const OFFERS_MAX: usize = 64;
const SUMMARY_BYTES_MAX: usize = 16 * 1024;
/// A day: as long as a person may take to answer.
const OFFER_SECONDS_MAX: u64 = 86_400;

/// Compiles a workflow file.
///
/// # Errors
/// Everything that is wrong with it.
pub(super) fn compiled(source: &ContractText) -> Result<Arc<Workflow>, Problem> {
    let source = Source {
        file: source.file.clone(),
        text: source.text.clone(),
    };
    match compile_workflow(&source) {
        Ok(workflow) => Ok(Arc::new(workflow)),
        Err(error) => {
            let findings = error.findings().iter();
            let findings: Vec<String> = findings.map(ToString::to_string).collect();
            let message = "the workflow file does not compile";
            Err(Problem::new(422, "compilation_failed", message).with("findings", findings))
        }
    }
}

/// Takes the seat that a session began with.
pub(crate) fn seat_of(
    session_id: &str,
    place: &GovernedPlace,
    rules_version: RulesVersion,
) -> Result<Seat, String> {
    let workflow = compiled(&place.source).map_err(|problem| problem.to_string())?;
    if workflow.digest() != place.sha256 {
        return Err("the recorded workflow file has another digest than was recorded".to_owned());
    }
    let view = WorkflowView::deserialize(&place.view).map_err(|error| error.to_string())?;
    let seat = Seat::of_member(workflow, &place.workflow_id, session_id, view);
    let seat = match rules_version < RulesVersion::Bounds {
        true => seat.limiting_requests_only(),
        false => seat,
    };
    Ok(match rules_version < RulesVersion::Things {
        true => seat.naming_no_things(),
        false => seat,
    })
}

impl GovernedSession {
    /// Returns the workflow that it works in.
    pub fn workflow_id(&self) -> Option<&str> {
        self.seat.as_ref().map(Seat::workflow_id)
    }

    /// Says how its workflow stands as far as it knows.
    pub fn workflow_view(&self) -> Option<Value> {
        let seat = self.seat.as_ref()?;
        Some(as_value(&seat.state().view()))
    }

    /// Takes in how its workflow stands. A session whose parent was stopped stops with it.
    pub(super) fn apply_view(&mut self, input: &GovernedInput) -> Result<(), Problem> {
        let (Some(seat), Some(view)) = (&mut self.seat, &input.workflow) else {
            return Ok(());
        };
        let view = WorkflowView::deserialize(view).map_err(|error| {
            let message = format!("the state of the workflow cannot be read: {error}");
            Problem::new(500, "evaluator_fault", message)
        })?;
        self.told.changed = true;
        let taken = seat.adopt(view);
        let is_stopped = seat.is_stopped();
        if *self.state.lifecycle() != Lifecycle::Open {
            return Ok(());
        }
        for _ in 0..taken {
            self.advance(&Event::HandedOff)?;
        }
        if is_stopped {
            self.close_waiting("killed", "the session was killed");
            let cause = "the session that it came from was stopped".to_owned();
            self.advance(&Event::Killed { cause })?;
        }
        Ok(())
    }

    pub(super) fn offer(&mut self, offer: &NewOffer, now: Timestamp) -> Result<Value, Problem> {
        let Some(seat) = &mut self.seat else {
            return Err(refused(&WorkflowRefusal::NoWorkflow));
        };
        if offer.summary.len() > SUMMARY_BYTES_MAX {
            return Err(Problem::new(413, "too_large", "the summary is too long"));
        }
        let seconds = offer.expires_in_seconds;
        if seconds.is_some_and(|seconds| !(1..=OFFER_SECONDS_MAX).contains(&seconds)) {
            let message = format!("`expires_in_seconds` is from 1 to {OFFER_SECONDS_MAX}");
            return Err(Problem::new(400, "malformed", message));
        }
        if seat.state().view().open_offers.len() >= OFFERS_MAX {
            let message = "too many offers of this workflow are open";
            return Err(Problem::new(429, "too_many_offers", message));
        }
        let carry: Vec<&str> = offer.carry.iter().map(String::as_str).collect();
        let wanted = HandoffRequest {
            handoff_id: &offer.handoff_id,
            to_role: &offer.to_role,
            summary: &offer.summary,
            carry: &carry,
            expires_in_seconds: seconds,
        };
        let made = seat.offer(&self.state, wanted, now);
        let made = made.map_err(|refusal| self::refused(&refusal))?;
        self.told.changed = true;
        Ok(json!({
            "handoff_id": made.handoff_id,
            "status": "open",
            "to_role": made.to_role,
            "expires_at": made.expires_at,
        }))
    }

    /// Hands over what the session did to its workflow.
    pub(super) fn news(&mut self) -> Vec<Value> {
        let Some(seat) = &mut self.seat else {
            return Vec::new();
        };
        seat.follow(&self.state);
        if matches!(self.told.end, Some(SessionEnd::Failed { .. })) {
            seat.leave();
        }
        let news: Vec<WorkflowEvent> = seat.news();
        news.iter().map(as_value).collect()
    }
}

/// Says why something cannot be done in a workflow.
pub(super) fn refused(refusal: &WorkflowRefusal) -> Problem {
    let (status, code) = match refusal {
        WorkflowRefusal::UnknownSession(_) => (409, "not_open"),
        WorkflowRefusal::UnknownRole(_) => (422, "unknown_role"),
        WorkflowRefusal::NotPermitted { .. } => (403, "handoff_not_permitted"),
        WorkflowRefusal::SlotNotSet(_) => (409, "slot_not_set"),
        WorkflowRefusal::NotOpen(None) => (404, "unknown_handoff"),
        WorkflowRefusal::NotOpen(Some(_)) => (409, "settled"),
        WorkflowRefusal::TooManySessions => (403, "session_limit_exceeded"),
        WorkflowRefusal::Begun => (409, "workflow_begun"),
        WorkflowRefusal::NoWorkflow => (409, "no_workflow"),
        WorkflowRefusal::IdInUse(_) => (409, "id_in_use"),
        WorkflowRefusal::OtherContract { .. } => (422, "session_contract_differs"),
    };
    let problem = Problem::new(status, code, refusal.to_string());
    match refusal {
        WorkflowRefusal::NotOpen(Some(status)) => problem.with("handoff_status", status),
        WorkflowRefusal::TooManySessions => problem.with("detail", "workflow"),
        _ => problem,
    }
}

pub(super) fn as_value(value: &impl serde::Serialize) -> Value {
    serde_json::to_value(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use canon::Value;
    use serde_json::json;

    use super::{GovernedSession, compiled};

    /// What becomes of two calls in a workflow that permits one.
    fn proposed(rules_version: &str) -> Value {
        proposed_in(rules_version, "limits: { max_tool_calls: 1 }\n")
    }

    fn proposed_in(rules_version: &str, more: &str) -> Value {
        let files =
            json!({"files": [{"file": "pay.yaml", "text": "tool: pay\nside_effect: write\n"}]});
        let contracts =
            super::super::Contracts::compile(&serde_json::from_value(files.clone()).unwrap());
        let text = format!(
            "schema_version: \"1.0\"\nworkflow: w\n\
             roles: [{{ name: desk, session_contract: desk/session.yaml }}]\n{more}"
        );
        let source = json!({"file": "workflow.yaml", "text": text});
        let workflow = compiled(&serde_json::from_value(source.clone()).unwrap()).unwrap();
        let member = json!({"session_id": "s", "role": "desk", "parent": null, "status": "open"});
        let view = json!({"sessions": [member], "open_offers": [], "cost": "0", "cost_incomplete": false,
            "tool_calls": 0, "held": []});
        let start = json!({"session_id": "s", "at": "2026-01-01T00:00:00Z",
            "sha256": contracts.unwrap().digest(), "contracts": files, "options": {"sessionId": "s"},
            "telling": rules_version,
            "workflow": {"workflow_id": "w", "sha256": workflow.digest(), "source": source, "view": view}});
        let mut session = GovernedSession::begin(&start).unwrap();
        let call = |id: &str| json!({"id": id, "name": "pay", "arguments": "{}"});
        let schema = json!({"anyOf": []});
        let operations = [
            json!({"name": "preflight", "expected_state_version": 0,
                "offered_tools": [{"name": "pay", "schema": schema}],
                "request_digest": null, "provider": "openai", "model": "m"}),
            json!({"name": "propose", "prepared_request_id": "prepared_1", "finish_reason": "tool_calls",
                "content_digest": null, "usage": null, "tool_calls": [call("a"), call("b")]}),
        ];
        let answers = operations.map(|operation| {
            let input = json!({"at": "2026-01-01T00:00:01Z", "actor": "ann", "key_id": null,
                "request_id": domain::PermissionId::from_body("1"), "operation": operation});
            let taken = session.take(&serde_json::from_value(input).unwrap());
            taken.answer.unwrap()
        });
        json!(answers)
    }

    #[test]
    fn u2_a_session_on_record_goes_on_as_it_did_and_a_new_one_is_held_to_the_limit_of_its_workflow()
    {
        let before = proposed("executions");
        assert_eq!(before[1]["status"], "allowed", "{before}");
        assert_eq!(before[0].get("warnings"), None, "{before}");
        let now = proposed("bounds");
        assert_eq!(now[1]["status"], "blocked", "{now}");
        assert_eq!(now[1]["verdicts"][1]["detail"], "workflow", "{now}");
        assert_eq!(now[0]["warnings"][0]["tool"], "pay", "{now}");
    }

    #[test]
    fn u2_only_a_session_that_began_since_must_name_the_shared_thing() {
        let shared = "shared_resources: [{ name: order, path: \"$.order\", tools: [pay], mode: exclusive }]\n";
        let before = proposed_in("refusals", shared);
        assert_eq!(before[1]["status"], "allowed", "{before}");
        let now = proposed_in("things", shared);
        assert_eq!(now[1]["status"], "blocked", "{now}");
        assert_eq!(
            now[1]["verdicts"][0]["detail"], "resource_not_named",
            "{now}"
        );
    }
}
