//! A workflow of governed sessions: a record of its own, that every session's part in it is written to.
//!
//! What a session did and what the workflow heard of it are one commit. So the workflow is never behind its sessions, and
//! whoever reads it reads what they will be judged by.

use std::sync::Arc;

use canon::{Digest, Value};
use contracts::workflow::{
    MemberStatus, OfferEnd, OfferStatus, Workflow, WorkflowEvent, WorkflowState,
};
use domain::{
    GovernedInput, GovernedOperation, GovernedPlace, Kind, Problem, Timestamp, WorkflowStart,
    payload,
};
use serde::Deserialize as _;
use serde_json::json;

use super::parties::Parties;
use super::seat::{as_value, compiled, refused};
use super::session::{InputOutcome, SessionEnd, as_recorded};
use crate::workflow::Note;

/// Offers that are over and can still be asked for.
const CLOSED_MAX: usize = 256;

/// A workflow of governed sessions.
#[derive(Debug)]
pub struct GovernedWorkflow {
    start: WorkflowStart,
    workflow: Arc<Workflow>,
    state: WorkflowState,
    /// How many offers were made.
    offers: u64,
    root: Option<String>,
    /// Which session took which offer.
    takers: std::collections::BTreeMap<String, String>,
    /// Why it was stopped.
    killed: Option<String>,
    parties: Parties,
}

/// How a session begins in a workflow.
#[derive(Debug)]
pub struct JoinedSession {
    /// What the workflow is told; nothing when it knows the session already.
    pub news: Vec<Value>,
    /// The session's place.
    pub place: GovernedPlace,
    /// The slots that it begins with.
    pub slots: std::collections::BTreeMap<String, String>,
    /// The session file of its role.
    pub session_contract: String,
}

impl GovernedWorkflow {
    /// Checks a workflow file, and returns its digest.
    ///
    /// # Errors
    /// Everything that is wrong with it, or it has no such role.
    pub fn admit(source: &domain::ContractText, role: Option<&str>) -> Result<Digest, Problem> {
        let workflow = compiled(source)?;
        match role.filter(|role| workflow.session_file(role).is_none()) {
            None => Ok(workflow.digest()),
            Some(role) => {
                let message = format!("no role `{role}` in the workflow");
                Err(Problem::new(422, "unknown_role", message))
            }
        }
    }

    /// Begins with what a Task recorded.
    ///
    /// # Errors
    /// It cannot be read, or its file is not the one it names.
    pub fn begin(start: &Value) -> Result<Self, String> {
        let start = WorkflowStart::deserialize(start).map_err(|error| error.to_string())?;
        let workflow = compiled(&start.source).map_err(|problem| problem.to_string())?;
        if workflow.digest() != start.sha256 {
            return Err("the recorded workflow file has another digest".to_owned());
        }
        Ok(Self {
            start,
            workflow,
            state: WorkflowState::default(),
            offers: 0,
            root: None,
            takers: std::collections::BTreeMap::new(),
            killed: None,
            parties: Parties::default(),
        })
    }

    /// Returns its id.
    pub fn id(&self) -> &str {
        &self.start.workflow_id
    }

    /// Returns who works in it.
    pub fn parties(&self) -> &Parties {
        &self.parties
    }

    /// Returns its sessions, also those that have not begun yet.
    pub fn sessions(&self) -> impl Iterator<Item = &str> {
        let members = self.state.members();
        members.map(|member| member.session_id.as_str())
    }

    /// Returns how many sessions it has.
    pub fn session_count(&self) -> usize {
        self.state.members().count()
    }

    /// Returns when it began.
    pub fn began_at(&self) -> Timestamp {
        self.start.at
    }

    /// Returns the digest of its file.
    pub fn digest(&self) -> Digest {
        self.start.sha256
    }

    /// Returns the id of the next offer.
    pub fn next_handoff(&self) -> String {
        domain::handoff_id(self.id(), self.offers + 1)
    }

    /// Returns how it stands.
    pub fn view(&self) -> Value {
        as_value(&self.state.view())
    }

    /// Returns the sessions that are open in it.
    pub fn open_sessions(&self) -> Vec<String> {
        let open = self.state.members();
        let open = open.filter(|member| member.status == MemberStatus::Open);
        open.map(|member| member.session_id.clone()).collect()
    }

    /// True when it has begun and none of its sessions is open.
    pub fn is_over(&self) -> bool {
        (self.root.is_some() || self.killed.is_some()) && self.open_sessions().is_empty()
    }

    /// Returns the session that made an offer.
    pub fn offered_by(&self, handoff_id: &str, now: Timestamp) -> Option<String> {
        let (offer, _) = self.state.find_offer(handoff_id, now)?;
        Some(offer.from_session.clone())
    }

    /// Lets a session begin in it: the first one, or one that takes an offer or took it before.
    ///
    /// # Errors
    /// The workflow has its first session, or the offer is not open and not this session's.
    pub fn join(
        &self,
        session_id: &str,
        role: Option<&str>,
        handoff_id: Option<&str>,
        now: Timestamp,
    ) -> Result<JoinedSession, Problem> {
        if let Some(reason) = &self.killed {
            let message = format!("the workflow was killed: {reason}");
            return Err(Problem::new(410, "killed", message));
        }
        let Some(handoff_id) = handoff_id else {
            return self.join_first(session_id, role);
        };
        let known = self.state.find_offer(handoff_id, now);
        let (offer, status) =
            known.ok_or_else(|| refused(&contracts::workflow::WorkflowRefusal::NotOpen(None)))?;
        if role.is_some_and(|role| role != offer.to_role) {
            let message = format!("the offer is for the role `{}`", offer.to_role);
            return Err(Problem::new(403, "role_differs", message));
        }
        let (labels, slots) = (offer.labels.clone(), offer.slots.clone());
        let mut state = self.state.clone();
        let mut news = Vec::new();
        // Whoever took the offer before begins now.
        let took = status == OfferStatus::Accepted
            && self.takers.get(handoff_id).map(String::as_str) == Some(session_id);
        if took {
            self.must_be_open(session_id)?;
        } else {
            let accepted = self
                .state
                .accept(&self.workflow, handoff_id, session_id, now);
            let (accepted, _) = accepted.map_err(|refusal| refused(&refusal))?;
            state = state
                .apply(&accepted)
                .map_err(|refusal| refused(&refusal))?;
            news.push(as_value(&accepted));
        }
        let place = self.place(&state, labels);
        Ok(JoinedSession {
            news,
            place,
            slots,
            session_contract: self.session_contract(&offer.to_role),
        })
    }

    fn join_first(&self, session_id: &str, role: Option<&str>) -> Result<JoinedSession, Problem> {
        let role = role.or(self.start.role.as_deref());
        let Some(role) = role else {
            return Err(Problem::new(400, "malformed", "`workflow.role` is missing"));
        };
        if self
            .start
            .role
            .as_deref()
            .is_some_and(|first| first != role)
        {
            let message = "the workflow was made for a first session of another role";
            return Err(Problem::new(409, "role_differs", message));
        }
        let began = WorkflowState::begin(&self.workflow, session_id, role);
        let began = began.map_err(|refusal| refused(&refusal))?;
        let state = self.state.clone().apply(&began);
        let state = state.map_err(|refusal| refused(&refusal))?;
        Ok(JoinedSession {
            news: vec![as_value(&began)],
            place: self.place(&state, Vec::new()),
            slots: std::collections::BTreeMap::new(),
            session_contract: self.session_contract(role),
        })
    }

    fn session_contract(&self, role: &str) -> String {
        let file = self.workflow.session_file(role);
        file.unwrap_or_default().to_owned()
    }

    /// A place can be lost before its session begins: with whoever handed over, or after a long silence.
    fn must_be_open(&self, session_id: &str) -> Result<(), Problem> {
        let mut members = self.state.members();
        let member = members.find(|member| member.session_id == session_id);
        match member.map(|member| member.status) {
            Some(MemberStatus::Open) => Ok(()),
            Some(MemberStatus::Killed) => {
                let message = "the session that handed over was stopped";
                Err(Problem::new(410, "killed", message))
            }
            Some(MemberStatus::Ended) | None => {
                let message = "the session did not begin in time";
                Err(Problem::new(410, "ended", message))
            }
        }
    }

    fn place(&self, state: &WorkflowState, labels: Vec<String>) -> GovernedPlace {
        GovernedPlace {
            workflow_id: self.start.workflow_id.clone(),
            sha256: self.start.sha256,
            source: self.start.source.clone(),
            labels,
            view: as_value(&state.view()),
        }
    }

    /// Returns its sessions that were stopped for good.
    pub fn stopped_sessions(&self) -> Vec<String> {
        let members = self.state.members();
        let stopped = members.filter(|member| member.status == MemberStatus::Killed);
        stopped.map(|member| member.session_id.clone()).collect()
    }

    /// Takes an input and answers it.
    pub fn take(&mut self, input: &GovernedInput) -> InputOutcome {
        self.state.expire(input.at);
        let number = |id: &str| domain::handoff_parts(id).map_or(0, |(_, number)| number);
        self.state.forget_closed(CLOSED_MAX, number);
        let state = &self.state;
        self.takers
            .retain(|id, _| state.find_offer(id, input.at).is_some());
        let answer = self.answer(input);
        let changed = !matches!(answer, Ok((_, false)));
        let answer = answer.map(|(answer, _)| answer);
        let end = match (&input.operation, self.is_over()) {
            (GovernedOperation::Tick | GovernedOperation::Kill { .. }, true) => Some(self.end()),
            (GovernedOperation::Lose, _) if self.root.is_none() => Some(SessionEnd::Failed {
                code: "session_lost",
                message: "no session began in the workflow for ten minutes".to_owned(),
            }),
            _ => None,
        };
        // A refusal changes nothing, and an end always does.
        let changed = (changed && answer.is_ok()) || end.is_some();
        let mut notes = Vec::new();
        if changed {
            self.parties.note(input);
        }
        if changed && let Ok(answer) = &answer {
            let said = payload::ContractDecided::default().operation(input.operation.name());
            notes.push(Note {
                kind: Kind::ContractDecided,
                payload: as_recorded(said.answer(answer.clone()).into_members()),
            });
        }
        InputOutcome {
            changed,
            answer,
            notes,
            withdrawn: Vec::new(),
            decided: None,
            end,
            news: Vec::new(),
        }
    }

    fn answer(&mut self, input: &GovernedInput) -> Result<(Value, bool), Problem> {
        match &input.operation {
            GovernedOperation::Hear { events, .. } => {
                for event in events {
                    let event = WorkflowEvent::deserialize(event)
                        .map_err(|error| Problem::new(500, "evaluator_fault", error.to_string()))?;
                    self.apply(&event)?;
                }
                Ok((Value::Null, true))
            }
            GovernedOperation::Accept {
                handoff_id,
                session_id,
            } => {
                let accepted = self
                    .state
                    .accept(&self.workflow, handoff_id, session_id, input.at);
                let (accepted, offer) = accepted.map_err(|refusal| refused(&refusal))?;
                let role = offer.to_role.clone();
                self.apply(&accepted)?;
                let answer = json!({
                    "status": "accepted",
                    "session_id": session_id,
                    "workflow_id": self.id(),
                    "role": role,
                });
                Ok((answer, true))
            }
            GovernedOperation::CloseOffer {
                handoff_id,
                declined,
            } => {
                let (how, word) = match declined {
                    true => (OfferEnd::Decline, "declined"),
                    false => (OfferEnd::Cancel, "cancelled"),
                };
                let closed = self.state.close(handoff_id, how, input.at);
                let closed = closed.map_err(|refusal| refused(&refusal))?;
                self.apply(&closed)?;
                Ok((json!({"status": word}), true))
            }
            GovernedOperation::Kill { reason } => {
                if let Some(session_id) = self.root.clone() {
                    self.apply(&WorkflowEvent::Killed { session_id })?;
                }
                self.killed = Some(reason.clone().unwrap_or_else(|| "killed".to_owned()));
                Ok((json!({"killed": true}), true))
            }
            GovernedOperation::Resume => Ok((Value::Null, true)),
            GovernedOperation::Preflight(_)
            | GovernedOperation::Propose(_)
            | GovernedOperation::Report(_)
            | GovernedOperation::AddLabel { .. }
            | GovernedOperation::SetFilter { .. }
            | GovernedOperation::ReportBypass { .. }
            | GovernedOperation::Decide(_)
            | GovernedOperation::Restore
            | GovernedOperation::Heartbeat { .. }
            | GovernedOperation::Capture { .. }
            | GovernedOperation::Offer(_)
            | GovernedOperation::Tick
            | GovernedOperation::Lose => Ok((Value::Null, false)),
        }
    }

    fn apply(&mut self, event: &WorkflowEvent) -> Result<(), Problem> {
        let state = std::mem::take(&mut self.state);
        self.state = state.clone().apply(event).map_err(|refusal| {
            self.state = state;
            refused(&refusal)
        })?;
        match event {
            WorkflowEvent::Began { session_id, .. } => self.root = Some(session_id.clone()),
            WorkflowEvent::Offered(_) => self.offers += 1,
            WorkflowEvent::Killed { session_id } if self.root.as_ref() == Some(session_id) => {
                self.killed = Some("its first session was killed".to_owned());
            }
            WorkflowEvent::Accepted {
                handoff_id,
                session_id,
                ..
            } => {
                self.takers.insert(handoff_id.clone(), session_id.clone());
            }
            WorkflowEvent::Killed { .. }
            | WorkflowEvent::Declined { .. }
            | WorkflowEvent::Cancelled { .. }
            | WorkflowEvent::Used { .. }
            | WorkflowEvent::Took { .. }
            | WorkflowEvent::Freed { .. }
            | WorkflowEvent::Labeled { .. }
            | WorkflowEvent::Ended { .. } => {}
        }
        Ok(())
    }

    fn end(&self) -> SessionEnd {
        match &self.killed {
            Some(reason) => SessionEnd::Canceled {
                reason: reason.clone(),
            },
            None => SessionEnd::Completed {
                text: format!(
                    "The workflow {} ended with {} sessions.",
                    self.workflow.name,
                    self.state.members().count()
                ),
            },
        }
    }

    /// Returns what a program sees of it.
    pub fn shown(&self, now: Timestamp) -> Value {
        let mut state = self.state.clone();
        state.expire(now);
        let view = state.view();
        let status = match (&self.root, &self.killed) {
            (_, Some(_)) => "killed",
            (None, None) => "created",
            (Some(_), None) if self.is_over() => "ended",
            (Some(_), None) => "open",
        };
        let offers = view.open_offers.iter().map(|offer| {
            json!({
                "handoff_id": offer.handoff_id,
                "from_session": offer.from_session,
                "to_role": offer.to_role,
                "summary": offer.summary,
                "carry": offer.slots.keys().collect::<Vec<_>>(),
                "expires_at": offer.expires_at,
            })
        });
        json!({
            "workflow_id": self.id(),
            "name": self.workflow.name,
            "compiled_digest": self.digest(),
            "status": status,
            "sessions": view.sessions,
            "budget_used": {
                "cost": view.cost,
                "cost_incomplete": view.cost_incomplete,
                "tool_calls": view.tool_calls,
                "sessions": view.sessions.len(),
            },
            "open_offers": offers.collect::<Vec<_>>(),
            "shared_resources": view.held,
        })
    }
}
