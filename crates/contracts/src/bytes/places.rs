//! Where a session stands: at the beginning, after what a store holds of it, and in a workflow with others.

use std::sync::Arc;

use domain::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Handle, Output, config_error, fault, invalid};
use crate::driver::Driver;
use crate::event::Event;
use crate::rules::Rules;
use crate::workflow::{HandoffRequest, Seat, Workflow, WorkflowEvent, WorkflowState};

/// The option `workflow`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Place {
    r#type: String,
    workflow_id: String,
    role: String,
    handoff_id: Option<String>,
    /// What the sessions of the workflow have done so far.
    #[serde(default)]
    events: Vec<WorkflowEvent>,
}

/// Opens a session in its place.
pub(super) fn open(
    rules: Rules,
    workflow: Option<&Arc<Workflow>>,
    options: &[u8],
    now: Timestamp,
) -> Result<Driver, Output> {
    #[derive(Deserialize)]
    struct Given {
        workflow: Option<Value>,
        #[serde(default, rename = "keepsNothing")]
        keeps_nothing: bool,
    }
    let given: Option<Given> = serde_json::from_slice(options).ok();
    let keeps_nothing = given.as_ref().is_some_and(|given| given.keeps_nothing);
    let mut driver = opened(rules, workflow, given.and_then(|given| given.workflow), now)?;
    if keeps_nothing {
        driver.keep_nothing();
    }
    Ok(driver)
}

fn opened(
    rules: Rules,
    workflow: Option<&Arc<Workflow>>,
    place: Option<Value>,
    now: Timestamp,
) -> Result<Driver, Output> {
    let Some(place) = place else {
        return Driver::open(rules, now).map_err(|error| fault(&error.to_string()));
    };
    let not_found = |what: String| config_error("workflow_not_found", vec![what]);
    let place =
        Place::deserialize(place).map_err(|error| invalid(&format!("`workflow`: {error}")))?;
    let Some(workflow) = workflow else {
        return Err(not_found("there is no workflow file".to_owned()));
    };
    let refuse = |error: crate::workflow::WorkflowRefusal| not_found(error.to_string());
    let opened = match (place.r#type.as_str(), place.handoff_id) {
        ("root", None) => {
            let seat = Seat::root(
                Arc::clone(workflow),
                &place.workflow_id,
                &rules,
                &place.role,
            );
            Driver::open_root(rules, now, seat.map_err(refuse)?)
        }
        ("child", Some(handoff)) => {
            let mut state = WorkflowState::default();
            for event in &place.events {
                state = state.apply(event).map_err(refuse)?;
            }
            let id = place.workflow_id.as_str();
            let taken = Seat::child(Arc::clone(workflow), id, state, &handoff, &rules, now);
            let (seat, offer) = taken.map_err(refuse)?;
            if offer.to_role != place.role {
                let what = format!("the offer is for `{}`", offer.to_role);
                return Err(not_found(what));
            }
            Driver::open_child(rules, now, seat, &offer)
        }
        _ => {
            let form = "`workflow`: `{ type: root, workflowId, role }` or `{ type: child, workflowId, role, handoffId }`";
            return Err(invalid(form));
        }
    };
    opened.map_err(|error| fault(&error.to_string()))
}

/// Puts a session that has done nothing where a stored one stopped.
pub(super) fn resume(handle: &mut Handle, value: &Value, now: Timestamp) -> Output {
    #[derive(Deserialize)]
    struct Stored {
        started_at: i64,
        events: Vec<Event>,
    }
    let Ok(stored) = Stored::deserialize(value) else {
        return fault("what the store holds of the session cannot be read");
    };
    match handle.0.resume_from(
        Timestamp::from_micros(stored.started_at),
        &stored.events,
        now,
    ) {
        Ok(()) => Output::new(&json!({})),
        Err(error) => fault(&error),
    }
}

/// Offers the session's work to another role.
pub(super) fn handoff(handle: &mut Handle, value: &Value, now: Timestamp) -> Output {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Given {
        handoff_id: String,
        to_role: String,
        summary: String,
        #[serde(default)]
        carry: Vec<String>,
        expires_in_seconds: Option<u64>,
    }
    let given = match Given::deserialize(value) {
        Ok(given) => given,
        Err(error) => return invalid(&format!("an offer: {error}")),
    };
    let carry: Vec<&str> = given.carry.iter().map(String::as_str).collect();
    let wanted = HandoffRequest {
        handoff_id: &given.handoff_id,
        to_role: &given.to_role,
        summary: &given.summary,
        carry: &carry,
        expires_in_seconds: given.expires_in_seconds,
    };
    match handle.0.handoff(wanted, now) {
        Ok(offer) => Output::new(&json!({
            "handoff_id": offer.handoff_id, "status": "open", "expires_at": offer.expires_at,
        })),
        Err(error) => invalid(&error.to_string()),
    }
}

/// Takes note of what another session of the workflow did.
pub(super) fn apply_event(handle: &mut Handle, value: &Value, now: Timestamp) -> Output {
    let Ok(event) = WorkflowEvent::deserialize(value) else {
        return fault("news of the workflow cannot be read");
    };
    match handle.0.apply_event(&event, now) {
        Ok(()) => Output::new(&json!({})),
        Err(error) => fault(&error.to_string()),
    }
}
