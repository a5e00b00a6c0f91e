//! What a program does to a session, and what it can read of it.

use domain::Timestamp;
use serde_json::Value;

use super::{Diagnostic, Driver, Record};
use crate::capture::CaptureCounts;
use crate::decode::is_label;
use crate::event::{CallKey, Event, Outcome, Release, Responded};
use crate::gate::ShadowDelta;
use crate::health::{Health, HostFacts, health};
use crate::narrow::Narrowing;
use crate::rules::Rules;
use crate::state::{Lifecycle, PendingStatus, Snapshot, State};

/// An action on a session. It takes effect at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Control {
    /// Stops it for good.
    Kill {
        /// Why.
        cause: String,
    },
    /// Ends it in order.
    Restore,
    /// Adds a label for good.
    AddLabel(Label),
    /// Keeps only these tools.
    Narrow(Vec<String>),
    /// Clears the manual filter.
    Widen,
    /// The original client was used around the session.
    Bypassed,
    /// Another role accepted work from the session.
    HandedOff,
}

/// A label of the right form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Label(String);

impl Label {
    /// Checks the form: 1 to 128 letters, digits, `-` and `_`.
    ///
    /// # Errors
    /// It has another form.
    pub fn new(text: &str) -> Result<Self, ControlError> {
        if is_label(text) {
            Ok(Self(text.to_owned()))
        } else {
            Err(ControlError::MalformedLabel)
        }
    }
}

/// Why an action changed nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// Not a label.
    #[error("a label has 1 to 128 letters, digits, `-` and `_`")]
    MalformedLabel,
    /// The session has 64 labels.
    #[error("a session has at most 64 labels")]
    TooManyLabels,
}

const LABELS_MAX: usize = 64;

impl Driver {
    /// Goes on with a session whose events were stored. The rules must be those it began under.
    ///
    /// # Errors
    /// The events are not those of such a session.
    pub fn resume(
        rules: Rules,
        at: Timestamp,
        events: &[Event],
    ) -> Result<Self, crate::state::ImpossibleEvent> {
        let mut driver = Self::open(rules, at)?;
        for event in events {
            driver.state.advance(driver.rules.compiled(), event)?;
        }
        driver.first_record = events.len() as u64;
        Ok(driver)
    }

    /// Puts a session that has done nothing yet where a stored one stopped. What was under way there is over: nobody waits
    /// for the answers of people any more, and of tools that were running nobody knows what they did.
    ///
    /// # Errors
    /// This one has begun already, or the events are not those of such a session.
    pub fn resume_from(
        &mut self,
        began: Timestamp,
        events: &[Event],
        now: Timestamp,
    ) -> Result<(), String> {
        if self.next_attempt > 1 || self.first_record > 0 || self.seat.is_some() {
            return Err("the session has begun already".to_owned());
        }
        let resumed = Self::resume(self.rules.clone(), began, events);
        let mut resumed = resumed.map_err(|error| format!("the stored session: {error}"))?;
        resumed.remote = self.remote.take();
        // Ids are not given twice.
        resumed.next_id = events.len() as u64;
        if *resumed.state.lifecycle() == Lifecycle::Open {
            let waiting: Vec<String> = resumed.state.waiting.keys().cloned().collect();
            for proposal in waiting {
                resumed.commit(
                    Event::Responded(Responded {
                        at: now,
                        proposal: Some(proposal),
                        cost: None,
                        usage_unknown: resumed.counts_usage(),
                        release: Release::Discarded,
                    }),
                    None,
                );
            }
            let pending = resumed.state.pending.iter();
            let running = pending.filter(|(_, call)| call.status == PendingStatus::Started);
            let running: Vec<CallKey> = running.map(|(key, _)| key.clone()).collect();
            for call in running {
                let outcome = Outcome::Unknown;
                resumed.commit(
                    Event::Settled {
                        call,
                        outcome,
                        output: None,
                    },
                    None,
                );
            }
        }
        // Labels and filters that came before the store was read.
        for early in std::mem::take(&mut self.records) {
            resumed.commit(early.event, None);
        }
        resumed.diagnostics = std::mem::take(&mut self.diagnostics);
        *self = resumed;
        Ok(())
    }

    /// Applies an action. On a session that is over it changes nothing and is told, except a report of a bypass.
    ///
    /// # Errors
    /// The session has all the labels it can have.
    pub fn control(&mut self, control: Control, now: Timestamp) -> Result<(), ControlError> {
        let is_report = control == Control::Bypassed;
        if *self.state.lifecycle() != Lifecycle::Open && !is_report {
            self.push_event("ignored", now, &[("why", "the session is over")]);
            return Ok(());
        }
        match control {
            Control::Kill { cause } => {
                self.push_event("killed", now, &[("cause", &cause)]);
                self.commit(Event::Killed { cause }, None);
            }
            Control::Restore => self.commit(Event::Restored, None),
            Control::AddLabel(Label(label)) => {
                if self.state.labels().any(|other| other == label) {
                    return Ok(());
                }
                if self.state.labels().count() >= LABELS_MAX {
                    return Err(ControlError::TooManyLabels);
                }
                self.push_event("label_added", now, &[("label", &label)]);
                self.commit(Event::LabelAdded { label }, None);
            }
            Control::Narrow(tools) => self.commit(Event::Filtered { tools: Some(tools) }, None),
            Control::Widen => self.commit(Event::Filtered { tools: None }, None),
            Control::Bypassed => {
                self.push_event("replay_bypass_detected", now, &[]);
                if !self.state.bypassed {
                    self.commit(Event::Bypassed, None);
                }
            }
            Control::HandedOff => self.commit(Event::HandedOff, None),
        }
        Ok(())
    }

    /// Says that nobody takes records and captures: none are made.
    pub fn keep_nothing(&mut self) {
        self.keeps_nothing = true;
    }

    /// Returns what the session is judged by.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Returns the state that verdicts depend on.
    pub fn inner_state(&self) -> &State {
        &self.state
    }

    /// Returns what a program may see of the state.
    pub fn state(&self) -> Snapshot {
        self.state.snapshot(self.rules.compiled())
    }

    /// Returns the health of the session.
    pub fn health(&self, around: HostFacts) -> Health {
        health(&self.rules, &self.state, around)
    }

    /// Returns the last narrowing.
    pub fn last_narrowing(&self) -> Option<&Narrowing> {
        self.state.last_narrowing.as_ref()
    }

    /// Returns what enforcement would have done to the last call; shadow only.
    pub fn last_shadow_delta(&self) -> Option<&ShadowDelta> {
        self.last_delta.as_ref()
    }

    /// Returns the records from a number on. Asking for one says that those before it are safe: they are dropped.
    pub fn records(&mut self, from: u64) -> impl Iterator<Item = &Record> {
        while self.first_record < from && self.records.pop_front().is_some() {
            self.first_record += 1;
        }
        self.records.iter()
    }

    /// Takes what the program should hear about.
    pub fn diagnostics(&mut self) -> Vec<Diagnostic> {
        std::mem::take(&mut self.diagnostics)
    }

    /// Hands over what was captured since the last time, with the counts of all times.
    pub fn flush(&mut self) -> (Vec<Value>, CaptureCounts) {
        (self.captures.take(), self.captures.counts())
    }
}
