//! A governed session of a workflow.

use super::{Fault, Governed, Hooks, ModelClient};
use crate::event::Event;
use crate::rules::Rules;
use crate::state::Lifecycle;
use crate::workflow::{Offer, Seat, Wanted, WorkflowRefusal, WorkflowSnapshot};

/// What a session hands over.
#[derive(Debug, Clone, Copy)]
pub struct Handoff<'a> {
    /// The role that may take it.
    pub to_role: &'a str,
    /// What it is about.
    pub summary: &'a str,
    /// The slots to copy.
    pub carry: &'a [&'a str],
    /// How long it stays open; ten minutes when absent.
    pub expires_in_seconds: Option<u64>,
}

impl<C: ModelClient, H: Hooks> Governed<C, H> {
    /// Starts the first session of a workflow.
    ///
    /// # Errors
    /// As [`Governed::start`].
    pub fn start_root(client: C, rules: Rules, hooks: H, seat: Seat) -> Result<Self, Fault> {
        let mut session = Self::begin(client, rules, hooks, None)?;
        session.sit(seat);
        Ok(session)
    }

    /// Starts the session that took an offer, with the labels of its parent and the slots that were carried.
    ///
    /// # Errors
    /// As [`Governed::start`].
    pub fn start_child(
        client: C,
        rules: Rules,
        hooks: H,
        seat: Seat,
        offer: &Offer,
    ) -> Result<Self, Fault> {
        let mut session = Self::begin(client, rules, hooks, Some(offer))?;
        session.sit(seat);
        Ok(session)
    }

    /// Returns what the session sees of its workflow; none outside of one.
    pub fn workflow_state(&mut self) -> Option<WorkflowSnapshot> {
        self.hear_workflow();
        let now = self.hooks.now();
        self.seat.as_ref().map(|seat| seat.snapshot(now))
    }

    /// Offers the session's work to another role. The session stays open.
    ///
    /// # Errors
    /// The session is over or in no workflow, the role or a slot is unknown, or the file does not permit it.
    pub fn handoff(&mut self, handoff: Handoff<'_>) -> Result<Offer, WorkflowRefusal> {
        self.hear_workflow();
        if *self.state.lifecycle() != Lifecycle::Open {
            let id = self.state.session_id.clone();
            return Err(WorkflowRefusal::UnknownSession(id));
        }
        let (id, now) = (self.hooks.next_id(), self.hooks.now());
        let seat = self.seat.as_mut().ok_or(WorkflowRefusal::NoWorkflow)?;
        let wanted = Wanted {
            handoff_id: &id,
            to_role: handoff.to_role,
            summary: handoff.summary,
            carry: handoff.carry,
            expires_in_seconds: handoff.expires_in_seconds,
        };
        let offer = seat.offer(&self.state, wanted, now)?;
        self.pass_on();
        Ok(offer)
    }

    fn sit(&mut self, seat: Seat) {
        self.seat = Some(seat);
        self.pass_on();
    }

    /// Takes in what other sessions did. A session whose parent was stopped stops with it.
    pub(super) fn hear_workflow(&mut self) {
        for event in self.hooks.workflow_news() {
            let Some(seat) = &mut self.seat else { return };
            let was_taken = seat.is_taken_from_here(&event);
            if let Err(refusal) = seat.hear(&event) {
                self.hooks.diagnostic("fault", &refusal.to_string());
                continue;
            }
            let is_stopped = seat.is_stopped();
            if *self.state.lifecycle() != Lifecycle::Open {
                continue;
            }
            if was_taken {
                self.note(Event::HandedOff);
            }
            if is_stopped {
                self.kill("the session that it came from was stopped");
            }
        }
    }

    /// Tells the workflow what the last event changed.
    pub(super) fn tell_workflow(&mut self) {
        if let Some(seat) = &mut self.seat {
            seat.follow(&self.state);
        }
        self.pass_on();
    }

    fn pass_on(&mut self) {
        let news = self.seat.as_mut().map(Seat::news).unwrap_or_default();
        for event in news {
            self.hooks.told_workflow(&event);
        }
    }
}
