//! A session's seat in a workflow: what it knows of the others, and what they must hear of it.
//!
//! Values only. The seat holds the state of the workflow as far as it was told ([`Seat::apply_event`]), and collects what its own
//! session did ([`Seat::news`]); whoever runs several sessions passes the news of each to the others and keeps them. Between two
//! passes a session judges by what it knew: whoever needs more puts one writer in front, as a server does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use domain::Timestamp;

use super::{
    HandoffRequest, MemberStatus, Offer, Workflow, WorkflowEvent, WorkflowRefusal,
    WorkflowSnapshot, WorkflowState, WorkflowView,
};
use crate::decimal::Decimal;
use crate::event::CallKey;
use crate::json::{self, Limits, Numbers};
use crate::rules::Rules;
use crate::state::{Lifecycle, Money, State};
use crate::value::Value;

/// A session's place in a workflow.
#[derive(Debug, Clone)]
pub struct Seat {
    workflow: Arc<Workflow>,
    workflow_id: String,
    session_id: String,
    state: WorkflowState,
    /// The shared things that calls of this session hold.
    holds: BTreeMap<CallKey, Vec<(String, String)>>,
    used: Used,
    /// False for a session that was recorded when the workflow's limits were checked before requests only.
    limits_calls: bool,
    /// False for a session that was recorded when a call did not have to name the shared thing that it is about.
    names_things: bool,
    /// The labels that the others were told of; none where a server holds parent and child at a time.
    labels_told: Option<BTreeSet<String>>,
    news: Vec<WorkflowEvent>,
}

/// What the workflow was told that this session used.
#[derive(Debug, Clone, Copy, Default)]
struct Used {
    cost: Decimal,
    is_unknown: bool,
    calls: u64,
}

impl Seat {
    /// Begins a workflow with its first session.
    ///
    /// # Errors
    /// The role is not one of the file.
    pub fn root(
        workflow: Arc<Workflow>,
        workflow_id: &str,
        rules: &Rules,
        role: &str,
    ) -> Result<Self, WorkflowRefusal> {
        let session_id = rules.options().session_id.clone();
        workflow.check_contract(role, &rules.compiled().session().file)?;
        let began = WorkflowState::begin(&workflow, &session_id, role)?;
        let mut seat = Self::new(workflow, workflow_id, session_id, WorkflowState::default());
        seat.report(began)?;
        Ok(seat)
    }

    /// Takes an offer: the seat of the child, and what it begins with.
    ///
    /// # Errors
    /// The offer is not open any more, its session is over, or the workflow has all its sessions.
    pub fn child(
        workflow: Arc<Workflow>,
        workflow_id: &str,
        state: WorkflowState,
        handoff_id: &str,
        rules: &Rules,
        now: Timestamp,
    ) -> Result<(Self, Offer), WorkflowRefusal> {
        let session_id = rules.options().session_id.clone();
        let (accepted, offer) = state.accept(&workflow, handoff_id, &session_id, now)?;
        workflow.check_contract(&offer.to_role, &rules.compiled().session().file)?;
        let mut offer = offer.clone();
        // The child has every label that its parent is known to have now.
        let later = state.labels_of(&offer.from_session);
        offer.labels.extend(later.map(ToOwned::to_owned));
        offer.labels.sort_unstable();
        offer.labels.dedup();
        let mut seat = Self::new(workflow, workflow_id, session_id, state);
        seat.report(accepted)?;
        Ok((seat, offer))
    }

    fn new(
        workflow: Arc<Workflow>,
        workflow_id: &str,
        session_id: String,
        state: WorkflowState,
    ) -> Self {
        Self {
            workflow,
            workflow_id: workflow_id.to_owned(),
            session_id,
            state,
            holds: BTreeMap::new(),
            used: Used::default(),
            limits_calls: true,
            names_things: true,
            labels_told: Some(BTreeSet::new()),
            news: Vec::new(),
        }
    }

    /// Takes a seat that is known to be there: its session is one of the workflow.
    pub fn of_member(
        workflow: Arc<Workflow>,
        workflow_id: &str,
        session_id: &str,
        view: WorkflowView,
    ) -> Self {
        let state = WorkflowState::from(view);
        let mut seat = Self::new(workflow, workflow_id, session_id.to_owned(), state);
        seat.labels_told = None;
        seat
    }

    /// Checks the limits of the workflow before requests only, as a session did that is on record.
    pub fn limiting_requests_only(mut self) -> Self {
        self.limits_calls = false;
        self
    }

    /// Lets calls through that do not say which shared thing they are about, as a session did that is on record.
    pub fn naming_no_things(mut self) -> Self {
        self.names_things = false;
        self
    }

    /// Learns how the workflow stands. Returns how many sessions took work from this one since the last time.
    pub fn adopt(&mut self, view: WorkflowView) -> usize {
        let of_this = |state: &WorkflowState| {
            let parent = Some(&self.session_id);
            let members = state.members.values();
            members
                .filter(|member| member.parent.as_ref() == parent)
                .count()
        };
        let before = of_this(&self.state);
        let state = WorkflowState::from(view);
        let children = of_this(&state);
        self.state = state;
        children.saturating_sub(before)
    }

    /// Tells the workflow that the session is over although nobody ended it.
    pub fn leave(&mut self) {
        let session_id = self.session_id.clone();
        self.report_own(WorkflowEvent::Ended { session_id });
    }

    /// Takes note of what another session did.
    ///
    /// # Errors
    /// It cannot have happened to this workflow.
    pub fn apply_event(&mut self, event: &WorkflowEvent) -> Result<(), WorkflowRefusal> {
        self.state = self.state.clone().apply(event)?;
        Ok(())
    }

    /// Hands over what this session did since the last time, for the others and for the record.
    pub fn news(&mut self) -> Vec<WorkflowEvent> {
        std::mem::take(&mut self.news)
    }

    /// Returns the state of the workflow as far as it is known here.
    pub fn state(&self) -> &WorkflowState {
        &self.state
    }

    /// Returns the workflow's id.
    pub fn workflow_id(&self) -> &str {
        &self.workflow_id
    }

    /// Returns the session's role.
    pub fn role(&self) -> Option<&str> {
        let member = self.state.members.get(&self.session_id)?;
        Some(&member.role)
    }

    /// Returns what a program sees of the workflow.
    pub fn snapshot(&self, now: Timestamp) -> WorkflowSnapshot {
        self.state
            .snapshot(&self.workflow_id, &self.session_id, now)
    }

    /// Offers the session's work to another role.
    ///
    /// # Errors
    /// The session is not open in the workflow, the role or a slot is unknown, or the file does not permit it.
    pub fn offer(
        &mut self,
        parent: &State,
        wanted: HandoffRequest<'_>,
        now: Timestamp,
    ) -> Result<Offer, WorkflowRefusal> {
        let offered = self.state.offer(&self.workflow, parent, wanted, now)?;
        let WorkflowEvent::Offered(offer) = &offered else {
            return Err(WorkflowRefusal::NotOpen(None));
        };
        let offer = offer.clone();
        self.report(offered)?;
        Ok(offer)
    }

    /// Says which limit of the workflow stops a request.
    pub(crate) fn limit_reached(&self) -> Option<&'static str> {
        self.state.limit_reached(&self.workflow)
    }

    /// Says whether the workflow has room for this session to have a number of calls, made or open.
    pub(crate) fn has_room(&self, calls: u64) -> bool {
        let more = calls.saturating_sub(self.used.calls);
        !self.limits_calls || self.state.has_room(&self.workflow, more)
    }

    /// Says why a call may not touch the shared things of the workflow: another session holds one, or the call does not say
    /// which one it is about.
    pub(crate) fn resource_refusal(&self, tool: &str, arguments: &Value) -> Option<&'static str> {
        let things = self.workflow.resources(tool, arguments);
        if self.names_things && things.iter().any(|(_, value)| value.is_none()) {
            return Some("resource_not_named");
        }
        let is_busy = self
            .state
            .is_busy(&self.workflow, &self.session_id, tool, arguments);
        is_busy.then_some("resource_busy")
    }

    /// True when this session was stopped with another one.
    pub fn is_stopped(&self) -> bool {
        let member = self.state.members.get(&self.session_id);
        member.is_some_and(|member| member.status == MemberStatus::Killed)
    }

    /// True for the end of an offer that this session made and another one took.
    pub(crate) fn is_taken_from_here(&self, event: &WorkflowEvent) -> bool {
        let WorkflowEvent::Accepted { handoff_id, .. } = event else {
            return false;
        };
        let offer = self.state.offers.get(handoff_id);
        offer.is_some_and(|(offer, _)| offer.from_session == self.session_id)
    }

    /// Tells the workflow what became of the session since the last time: what it used, what it holds, whether it is over.
    pub fn follow(&mut self, state: &State) {
        self.count(state);
        self.hold(state);
        self.report_labels(state);
        let session_id = self.session_id.clone();
        let is_open = !self.is_stopped();
        let over = match state.lifecycle() {
            Lifecycle::Killed { .. } if is_open => WorkflowEvent::Killed { session_id },
            Lifecycle::Restored => WorkflowEvent::Ended { session_id },
            Lifecycle::Open | Lifecycle::Killed { .. } => return,
        };
        let member = self.state.members.get(&self.session_id);
        if member.is_some_and(|member| member.status == MemberStatus::Open) {
            self.report_own(over);
        }
    }

    fn report_labels(&mut self, state: &State) {
        let Some(told) = &mut self.labels_told else {
            return;
        };
        let new = state.labels().filter(|label| !told.contains(*label));
        let labels: Vec<String> = new.map(ToOwned::to_owned).collect();
        if labels.is_empty() {
            return;
        }
        told.extend(labels.iter().cloned());
        let session_id = self.session_id.clone();
        self.report_own(WorkflowEvent::Labeled { session_id, labels });
    }

    fn count(&mut self, state: &State) {
        let calls = state
            .tool_calls
            .saturating_add(state.unsettled().count() as u64);
        let more = calls.saturating_sub(self.used.calls);
        let known = state.actual_cost.known();
        let is_unknown = matches!(state.actual_cost, Money::AtLeast(_)) || state.usage_unknown;
        let cost = match is_unknown && !self.used.is_unknown {
            true => None,
            false => Some(known.checked_sub(self.used.cost).unwrap_or_default()),
        };
        if more == 0 && cost == Some(Decimal::ZERO) {
            return;
        }
        self.used = Used {
            cost: known,
            is_unknown,
            calls: self.used.calls.max(calls),
        };
        self.report_own(WorkflowEvent::Used {
            cost,
            tool_calls: more,
        });
    }

    /// Returns what the workflow is told when a call does not hold its things any more.
    pub fn releases_of(&self, call: &CallKey) -> Vec<WorkflowEvent> {
        let things = self.holds.get(call).into_iter().flatten();
        let freed = things.map(|(resource, value)| WorkflowEvent::Freed {
            session_id: self.session_id.clone(),
            resource: resource.clone(),
            value: value.clone(),
        });
        freed.collect()
    }

    fn hold(&mut self, state: &State) {
        let open: BTreeSet<&CallKey> = state.unsettled().map(|(key, _)| key).collect();
        let settled: Vec<CallKey> = self.holds.keys().cloned().collect();
        for key in settled.iter().filter(|key| !open.contains(key)) {
            for (resource, value) in self.holds.remove(key).unwrap_or_default() {
                let session_id = self.session_id.clone();
                self.report_own(WorkflowEvent::Freed {
                    session_id,
                    resource,
                    value,
                });
            }
        }
        for (key, call) in state.unsettled() {
            if self.holds.contains_key(key) {
                continue;
            }
            let read = json::read(&call.arguments, Limits::ARGUMENTS, Numbers::Any);
            let arguments = read.unwrap_or(Value::Null);
            let taken =
                WorkflowState::holds_of(&self.workflow, &self.session_id, &call.tool, &arguments);
            let things = taken.iter().filter_map(|event| match event {
                WorkflowEvent::Took {
                    resource, value, ..
                } => Some((resource.clone(), value.clone())),
                _ => None,
            });
            self.holds.insert(key.clone(), things.collect());
            for event in taken {
                self.report_own(event);
            }
        }
    }

    fn report(&mut self, event: WorkflowEvent) -> Result<(), WorkflowRefusal> {
        self.apply_event(&event)?;
        self.news.push(event);
        Ok(())
    }

    fn report_own(&mut self, event: WorkflowEvent) {
        // Invariant: what a session did is possible in its workflow; using, taking and ending refuse nothing.
        let _ = self.report(event);
    }
}
