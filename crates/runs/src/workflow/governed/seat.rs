//! A governed session of a workflow: what it hears of the others, and what they must be told of it.

use std::sync::Arc;

use canon::Value;
use contracts::workflow::{
    Seat, Wanted, Workflow, WorkflowEvent, WorkflowRefusal, WorkflowView, compile_workflow,
};
use contracts::{Event, Lifecycle, Source};
use domain::{ContractText, GovernedInput, GovernedPlace, NewOffer, Problem, Timestamp};
use serde::Deserialize as _;
use serde_json::json;

use super::session::{Ended, GovernedSession};

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
pub(super) fn seat_of(session_id: &str, place: &GovernedPlace) -> Result<Seat, String> {
    let workflow = compiled(&place.source).map_err(|problem| problem.to_string())?;
    if workflow.digest() != place.sha256 {
        return Err("the recorded workflow file has another digest than was recorded".to_owned());
    }
    let view = WorkflowView::deserialize(&place.view).map_err(|error| error.to_string())?;
    Ok(Seat::of_member(
        workflow,
        &place.workflow_id,
        session_id,
        view,
    ))
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
    pub(super) fn hear(&mut self, input: &GovernedInput) -> Result<(), Problem> {
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
        let wanted = Wanted {
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
        if matches!(self.told.end, Some(Ended::Failed { .. })) {
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
