//! A session of a workflow: what it sees of it, and handing work over.

use domain::Timestamp;

use super::Driver;
use crate::event::Event;
use crate::rules::Rules;
use crate::state::{ImpossibleEvent, Lifecycle};
use crate::workflow::{
    HandoffRequest, Offer, Seat, WorkflowEvent, WorkflowRefusal, WorkflowSnapshot,
};

impl Driver {
    /// Begins the first session of a workflow.
    ///
    /// # Errors
    /// As [`Driver::open`].
    pub fn open_root(rules: Rules, at: Timestamp, seat: Seat) -> Result<Self, ImpossibleEvent> {
        let mut driver = Self::open(rules, at)?;
        driver.seat = Some(seat);
        Ok(driver)
    }

    /// Begins the session that took an offer, with the labels of its parent and the slots that were carried.
    ///
    /// # Errors
    /// As [`Driver::open`].
    pub fn open_child(
        rules: Rules,
        at: Timestamp,
        seat: Seat,
        offer: &Offer,
    ) -> Result<Self, ImpossibleEvent> {
        let mut driver = Self::open_labelled(rules, at, offer.slots.clone(), &offer.labels)?;
        driver.seat = Some(seat);
        Ok(driver)
    }

    /// Returns what the session sees of its workflow; none outside of one.
    pub fn workflow_state(&self, now: Timestamp) -> Option<WorkflowSnapshot> {
        self.seat.as_ref().map(|seat| seat.snapshot(now))
    }

    /// Offers the session's work to another role.
    ///
    /// # Errors
    /// The session is over or in no workflow, the role or a slot is unknown, or the file does not permit it.
    pub fn handoff(
        &mut self,
        wanted: HandoffRequest<'_>,
        now: Timestamp,
    ) -> Result<Offer, WorkflowRefusal> {
        if *self.state.lifecycle() != Lifecycle::Open {
            return Err(WorkflowRefusal::UnknownSession(
                self.state.session_id.clone(),
            ));
        }
        let seat = self.seat.as_mut().ok_or(WorkflowRefusal::NoWorkflow)?;
        seat.offer(&self.state, wanted, now)
    }

    /// Takes note of what another session of the workflow did. A session whose parent was stopped stops with it.
    ///
    /// # Errors
    /// The session is in no workflow, or it cannot have happened to this one.
    pub fn apply_event(
        &mut self,
        event: &WorkflowEvent,
        now: Timestamp,
    ) -> Result<(), WorkflowRefusal> {
        let seat = self.seat.as_mut().ok_or(WorkflowRefusal::NoWorkflow)?;
        let was_taken = seat.is_taken_from_here(event);
        seat.apply_event(event)?;
        let is_stopped = seat.is_stopped();
        if *self.state.lifecycle() != Lifecycle::Open {
            return Ok(());
        }
        if was_taken {
            self.commit(Event::HandedOff, None);
        }
        if is_stopped {
            let cause = "the session that it came from was stopped".to_owned();
            self.push_event("killed", now, &[("cause", &cause)]);
            self.commit(Event::Killed { cause }, None);
        }
        Ok(())
    }

    /// Hands over what the session did to its workflow since the last time: for the others, and for the record.
    pub fn workflow_news(&mut self) -> Vec<WorkflowEvent> {
        self.seat.as_mut().map(Seat::news).unwrap_or_default()
    }
}
