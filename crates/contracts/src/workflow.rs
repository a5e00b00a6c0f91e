//! Workflows: several agents share one job, and hand it over.
//!
//! The session stays the unit of authority. A workflow coordinates and merges nothing: it says which roles there are, who
//! may hand over to whom, what all sessions may use together, and which things only one of them may touch at a time.
//! Its state is a fold of events like that of a session; time and ids are values.

mod file;
mod seat;
mod view;

use std::collections::{BTreeMap, BTreeSet};

use domain::Timestamp;
use serde::{Deserialize, Serialize};

use crate::decimal::Decimal;
use crate::state::State;
use crate::value::Value;

pub use file::{Workflow, compile_workflow, names_same_file};
pub use seat::Seat;
pub use view::{ResourceHold, WorkflowView};

/// How long an offer stays open without another word.
pub const OFFER_SECONDS: u64 = 600;

/// What happened to a workflow: the only thing that changes its state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case", deny_unknown_fields)]
pub enum WorkflowEvent {
    /// The first session began.
    Began {
        /// The session.
        session_id: String,
        /// Its role.
        role: String,
    },
    /// A session offered its work to another role.
    Offered(Offer),
    /// The offer was taken: a child session began.
    Accepted {
        /// The offer.
        handoff_id: String,
        /// The child.
        session_id: String,
        /// When.
        at: Timestamp,
    },
    /// The offer was refused.
    Declined {
        /// The offer.
        handoff_id: String,
    },
    /// The offer was taken back.
    Cancelled {
        /// The offer.
        handoff_id: String,
    },
    /// A session used something of what all may use.
    Used {
        /// What its response cost; none when it is not known.
        cost: Option<Decimal>,
        /// The calls it released.
        tool_calls: u64,
    },
    /// A call took a shared thing.
    Took {
        /// The session.
        session_id: String,
        /// The resource.
        resource: String,
        /// The value that names the thing, as JSON.
        value: String,
    },
    /// The call that held a shared thing was settled.
    Freed {
        /// The session.
        session_id: String,
        /// The resource.
        resource: String,
        /// The value that names the thing, as JSON.
        value: String,
    },
    /// A session got labels: whoever takes work from it later has them too.
    Labeled {
        /// The session.
        session_id: String,
        /// The labels.
        labels: Vec<String>,
    },
    /// A session ended in order.
    Ended {
        /// The session.
        session_id: String,
    },
    /// A session was stopped for good, and all that came from it.
    Killed {
        /// The session.
        session_id: String,
    },
}

/// Work that is offered to another role.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Offer {
    /// Names the offer.
    pub handoff_id: String,
    /// The session that offers.
    pub from_session: String,
    /// The role that may take it.
    pub to_role: String,
    /// What it is about.
    pub summary: String,
    /// The slots that the child gets, as JSON texts.
    pub slots: BTreeMap<String, String>,
    /// The labels that the child gets: all of the parent's.
    pub labels: Vec<String>,
    /// When it stops being open.
    pub expires_at: Timestamp,
}

/// What became of an offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OfferStatus {
    /// It can be taken.
    Open,
    /// A child session began.
    Accepted,
    /// It was refused.
    Declined,
    /// Nobody took it in time.
    Expired,
    /// It was taken back.
    Cancelled,
}

/// What became of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberStatus {
    /// It works.
    Open,
    /// It ended in order.
    Ended,
    /// It was stopped for good.
    Killed,
}

/// A session of a workflow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Member {
    /// The session.
    pub session_id: String,
    /// Its role.
    pub role: String,
    /// The session whose work it took; none for the first.
    pub parent: Option<String>,
    /// What became of it.
    pub status: MemberStatus,
}

/// Why something cannot be done in a workflow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WorkflowRefusal {
    /// No session of this name works in it.
    #[error("no open session `{0}` in the workflow")]
    UnknownSession(String),
    /// No role of this name.
    #[error("no role `{0}` in the workflow")]
    UnknownRole(String),
    /// The file does not permit this pair.
    #[error("`{from}` may not hand over to `{to}`")]
    NotPermitted {
        /// The role that offers.
        from: String,
        /// The role that would take it.
        to: String,
    },
    /// The session has no such slot.
    #[error("slot `{0}` is not set")]
    SlotNotSet(String),
    /// The offer is not open.
    #[error("the offer is not open")]
    NotOpen(Option<OfferStatus>),
    /// All sessions that the file permits have begun.
    #[error("the workflow has all its sessions")]
    TooManySessions,
    /// The workflow has begun, or not yet.
    #[error("the workflow begins once")]
    Begun,
    /// The session is in no workflow.
    #[error("the session is in no workflow")]
    NoWorkflow,
    /// The id is in use.
    #[error("`{0}` is in use")]
    IdInUse(String),
    /// The session is under another session file than its role, or under none.
    #[error("the role `{role}` works under `{named}`")]
    OtherContract {
        /// The role.
        role: String,
        /// The session file that it has in the workflow.
        named: String,
    },
}

/// The state of a workflow.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WorkflowState {
    members: BTreeMap<String, Member>,
    offers: BTreeMap<String, (Offer, OfferStatus)>,
    cost: Decimal,
    cost_unknown: bool,
    tool_calls: u64,
    /// Who holds which thing; a session may hold one more than once.
    held: BTreeMap<(String, String), BTreeMap<String, u64>>,
    /// Labels of sessions, as far as these told them.
    labels: BTreeMap<String, BTreeSet<String>>,
}

/// What a program sees of a workflow.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WorkflowSnapshot {
    /// The workflow.
    pub workflow_id: String,
    /// The role of the session that looks.
    pub role: Option<String>,
    /// Its sessions.
    pub sessions: Vec<Member>,
    /// What all sessions cost together.
    pub cost: Decimal,
    /// True when some of it is not known.
    pub cost_incomplete: bool,
    /// The calls of all sessions.
    pub tool_calls: u64,
    /// Offers that can be taken.
    pub open_offers: Vec<Offer>,
}

impl WorkflowState {
    /// Begins a workflow with its first session.
    ///
    /// # Errors
    /// The role is not one of the file.
    pub fn begin(
        workflow: &Workflow,
        session_id: &str,
        role: &str,
    ) -> Result<WorkflowEvent, WorkflowRefusal> {
        if !workflow.has_role(role) {
            return Err(WorkflowRefusal::UnknownRole(role.to_owned()));
        }
        Ok(WorkflowEvent::Began {
            session_id: session_id.to_owned(),
            role: role.to_owned(),
        })
    }

    /// Offers the work of a session to another role. The child will get its labels and these slots, and nothing else.
    ///
    /// # Errors
    /// The session or role is unknown, the pair is not permitted, or a slot is not set.
    pub fn offer(
        &self,
        workflow: &Workflow,
        parent: &State,
        wanted: HandoffRequest<'_>,
        now: Timestamp,
    ) -> Result<WorkflowEvent, WorkflowRefusal> {
        let session_id = parent.session_id.clone();
        let member = self.open_member(&session_id)?;
        if !workflow.has_role(wanted.to_role) {
            return Err(WorkflowRefusal::UnknownRole(wanted.to_role.to_owned()));
        }
        if !workflow.permits(&member.role, wanted.to_role) {
            return Err(WorkflowRefusal::NotPermitted {
                from: member.role.clone(),
                to: wanted.to_role.to_owned(),
            });
        }
        if self.offers.contains_key(wanted.handoff_id) {
            return Err(WorkflowRefusal::IdInUse(wanted.handoff_id.to_owned()));
        }
        let slots = wanted.carry.iter().map(|name| {
            let value = parent.slot(name).map(Value::to_json);
            let value = value.ok_or_else(|| WorkflowRefusal::SlotNotSet((*name).to_owned()))?;
            Ok(((*name).to_owned(), value))
        });
        let seconds = wanted.expires_in_seconds.unwrap_or(OFFER_SECONDS);
        let micros = i64::try_from(seconds.saturating_mul(1_000_000)).unwrap_or(i64::MAX);
        Ok(WorkflowEvent::Offered(Offer {
            handoff_id: wanted.handoff_id.to_owned(),
            from_session: session_id,
            to_role: wanted.to_role.to_owned(),
            summary: wanted.summary.to_owned(),
            slots: slots.collect::<Result<_, _>>()?,
            labels: parent.labels().map(ToOwned::to_owned).collect(),
            expires_at: Timestamp::from_micros(now.as_micros().saturating_add(micros)),
        }))
    }

    /// Takes an offer: returns the event, and the offer with what the child begins with.
    ///
    /// # Errors
    /// The offer is not open any more, its session is over, or the workflow has all its sessions.
    pub fn accept(
        &self,
        workflow: &Workflow,
        handoff_id: &str,
        session_id: &str,
        now: Timestamp,
    ) -> Result<(WorkflowEvent, &Offer), WorkflowRefusal> {
        let offer = self.open_offer(handoff_id, now)?;
        self.open_member(&offer.from_session)?;
        if self.members.contains_key(session_id) {
            return Err(WorkflowRefusal::IdInUse(session_id.to_owned()));
        }
        if workflow
            .sessions_max
            .is_some_and(|max| self.members.len() as u64 >= max)
        {
            return Err(WorkflowRefusal::TooManySessions);
        }
        let event = WorkflowEvent::Accepted {
            handoff_id: handoff_id.to_owned(),
            session_id: session_id.to_owned(),
            at: now,
        };
        Ok((event, offer))
    }

    /// Refuses an offer, or takes it back.
    ///
    /// # Errors
    /// The offer is not open any more.
    pub fn close(
        &self,
        handoff_id: &str,
        how: OfferEnd,
        now: Timestamp,
    ) -> Result<WorkflowEvent, WorkflowRefusal> {
        self.open_offer(handoff_id, now)?;
        let handoff_id = handoff_id.to_owned();
        Ok(match how {
            OfferEnd::Decline => WorkflowEvent::Declined { handoff_id },
            OfferEnd::Cancel => WorkflowEvent::Cancelled { handoff_id },
        })
    }

    /// Says which limit of the workflow stops a request, for the detail of a refusal: checked before every request.
    pub fn limit_reached(&self, workflow: &Workflow) -> Option<&'static str> {
        let costly = workflow
            .cost_max
            .is_some_and(|max| self.cost_unknown || self.cost >= max);
        let many = workflow
            .tool_calls_max
            .is_some_and(|max| self.tool_calls >= max);
        (costly || many).then_some("workflow")
    }

    /// Says whether more calls stay within the limit of the workflow: checked before calls are released.
    pub fn has_room(&self, workflow: &Workflow, more: u64) -> bool {
        workflow
            .tool_calls_max
            .is_none_or(|max| more == 0 || self.tool_calls.saturating_add(more) <= max)
    }

    /// Says whether a call of a session names a thing that another session holds.
    pub fn is_busy(
        &self,
        workflow: &Workflow,
        session_id: &str,
        tool: &str,
        arguments: &Value,
    ) -> bool {
        workflow
            .resources(tool, arguments)
            .into_iter()
            .any(|(resource, value)| match value {
                // What cannot be named cannot be told apart from what is held.
                None => self.held.iter().any(|((held, _), holders)| {
                    *held == resource && holders.keys().any(|holder| holder != session_id)
                }),
                Some(value) => {
                    let holders = self.held.get(&(resource, value));
                    holders.is_some_and(|holders| holders.keys().any(|holder| holder != session_id))
                }
            })
    }

    /// Returns the events of a call that was released, one for each thing it holds until it is settled.
    pub fn holds_of(
        workflow: &Workflow,
        session_id: &str,
        tool: &str,
        arguments: &Value,
    ) -> Vec<WorkflowEvent> {
        let things = workflow.resources(tool, arguments).into_iter();
        let things = things.filter_map(|(resource, value)| {
            Some(WorkflowEvent::Took {
                session_id: session_id.to_owned(),
                resource,
                value: value?,
            })
        });
        things.collect()
    }

    /// Returns the sessions that stop when one is stopped: itself, and all that came from it.
    pub fn stopped_with(&self, session_id: &str) -> BTreeSet<String> {
        let mut stopped = BTreeSet::from([session_id.to_owned()]);
        loop {
            let more: Vec<String> = self
                .members
                .values()
                .filter(|member| {
                    member
                        .parent
                        .as_ref()
                        .is_some_and(|parent| stopped.contains(parent))
                })
                .map(|member| member.session_id.clone())
                .filter(|id| !stopped.contains(id))
                .collect();
            if more.is_empty() {
                return stopped;
            }
            stopped.extend(more);
        }
    }

    /// Returns what a program sees.
    pub fn snapshot(
        &self,
        workflow_id: &str,
        session_id: &str,
        now: Timestamp,
    ) -> WorkflowSnapshot {
        let open = self
            .offers
            .values()
            .filter(|(offer, status)| *status == OfferStatus::Open && now < offer.expires_at);
        WorkflowSnapshot {
            workflow_id: workflow_id.to_owned(),
            role: self
                .members
                .get(session_id)
                .map(|member| member.role.clone()),
            sessions: self.members.values().cloned().collect(),
            cost: self.cost,
            cost_incomplete: self.cost_unknown,
            tool_calls: self.tool_calls,
            open_offers: open.map(|(offer, _)| offer.clone()).collect(),
        }
    }

    /// Marks offers that nobody took in time.
    pub fn expire(&mut self, now: Timestamp) {
        for (offer, status) in self.offers.values_mut() {
            if *status == OfferStatus::Open && now >= offer.expires_at {
                *status = OfferStatus::Expired;
            }
        }
    }

    /// Forgets offers that are over, but for the latest of them: `order` says which came later.
    pub fn forget_closed(&mut self, keep: usize, order: impl Fn(&str) -> u64) {
        let closed = self.offers.iter();
        let closed = closed.filter(|(_, (_, status))| *status != OfferStatus::Open);
        let mut closed: Vec<(u64, String)> =
            closed.map(|(id, _)| (order(id), id.clone())).collect();
        let Some(gone) = closed.len().checked_sub(keep).filter(|gone| *gone > 0) else {
            return;
        };
        closed.sort_unstable();
        for (_, id) in closed.into_iter().take(gone) {
            self.offers.remove(&id);
        }
    }

    /// Returns an offer with what became of it.
    pub fn find_offer(&self, handoff_id: &str, now: Timestamp) -> Option<(&Offer, OfferStatus)> {
        let status = self.offer_status(handoff_id, now)?;
        let (offer, _) = self.offers.get(handoff_id)?;
        Some((offer, status))
    }

    /// Returns the labels of a session, as far as it told them.
    pub fn labels_of(&self, session_id: &str) -> impl Iterator<Item = &str> {
        let labels = self.labels.get(session_id).into_iter().flatten();
        labels.map(String::as_str)
    }

    /// Returns its sessions.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.members.values()
    }

    /// Returns what became of an offer.
    pub fn offer_status(&self, handoff_id: &str, now: Timestamp) -> Option<OfferStatus> {
        let (offer, status) = self.offers.get(handoff_id)?;
        match status {
            OfferStatus::Open if now >= offer.expires_at => Some(OfferStatus::Expired),
            status => Some(*status),
        }
    }

    /// Applies one event.
    ///
    /// # Errors
    /// The event cannot have happened to this workflow.
    pub fn apply(mut self, event: &WorkflowEvent) -> Result<Self, WorkflowRefusal> {
        match event {
            WorkflowEvent::Began { session_id, role } => {
                if !self.members.is_empty() {
                    return Err(WorkflowRefusal::Begun);
                }
                self.join(session_id, role, None)?;
            }
            WorkflowEvent::Offered(offer) => {
                let entry = (offer.clone(), OfferStatus::Open);
                self.offers.insert(offer.handoff_id.clone(), entry);
            }
            WorkflowEvent::Accepted {
                handoff_id,
                session_id,
                at,
            } => {
                let offer = self.open_offer(handoff_id, *at)?.clone();
                self.join(session_id, &offer.to_role, Some(offer.from_session))?;
                self.set_offer(handoff_id, OfferStatus::Accepted);
            }
            WorkflowEvent::Declined { handoff_id } => {
                self.set_offer(handoff_id, OfferStatus::Declined);
            }
            WorkflowEvent::Cancelled { handoff_id } => {
                self.set_offer(handoff_id, OfferStatus::Cancelled);
            }
            WorkflowEvent::Used { cost, tool_calls } => {
                self.tool_calls = self.tool_calls.saturating_add(*tool_calls);
                match cost.and_then(|cost| self.cost.checked_add(cost)) {
                    Some(sum) => self.cost = sum,
                    None => self.cost_unknown = true,
                }
            }
            WorkflowEvent::Took {
                session_id,
                resource,
                value,
            } => {
                let thing = self
                    .held
                    .entry((resource.clone(), value.clone()))
                    .or_default();
                *thing.entry(session_id.clone()).or_default() += 1;
            }
            WorkflowEvent::Freed {
                session_id,
                resource,
                value,
            } => self.free(session_id, resource, value),
            WorkflowEvent::Labeled { session_id, labels } => {
                let known = self.labels.entry(session_id.clone()).or_default();
                known.extend(labels.iter().cloned());
            }
            WorkflowEvent::Ended { session_id } => self.set_member(session_id, MemberStatus::Ended),
            WorkflowEvent::Killed { session_id } => {
                for id in self.stopped_with(session_id) {
                    self.set_member(&id, MemberStatus::Killed);
                }
            }
        }
        Ok(self)
    }

    fn join(
        &mut self,
        session_id: &str,
        role: &str,
        parent: Option<String>,
    ) -> Result<(), WorkflowRefusal> {
        let member = Member {
            session_id: session_id.to_owned(),
            role: role.to_owned(),
            parent,
            status: MemberStatus::Open,
        };
        match self.members.insert(session_id.to_owned(), member) {
            None => Ok(()),
            Some(_) => Err(WorkflowRefusal::IdInUse(session_id.to_owned())),
        }
    }

    fn open_member(&self, session_id: &str) -> Result<&Member, WorkflowRefusal> {
        let member = self.members.get(session_id);
        let member = member.filter(|member| member.status == MemberStatus::Open);
        member.ok_or_else(|| WorkflowRefusal::UnknownSession(session_id.to_owned()))
    }

    fn open_offer(&self, handoff_id: &str, now: Timestamp) -> Result<&Offer, WorkflowRefusal> {
        let status = self.offer_status(handoff_id, now);
        let offer = self.offers.get(handoff_id).map(|(offer, _)| offer);
        let offer = offer.filter(|_| status == Some(OfferStatus::Open));
        offer.ok_or(WorkflowRefusal::NotOpen(status))
    }

    fn set_offer(&mut self, handoff_id: &str, to: OfferStatus) {
        if let Some((_, status)) = self.offers.get_mut(handoff_id) {
            *status = to;
        }
    }

    fn set_member(&mut self, session_id: &str, to: MemberStatus) {
        // A killed session stays killed, and one that is over holds nothing.
        if let Some(member) = self.members.get_mut(session_id)
            && member.status == MemberStatus::Open
        {
            member.status = to;
        }
    }

    fn free(&mut self, session_id: &str, resource: &str, value: &str) {
        let key = (resource.to_owned(), value.to_owned());
        let Some(holders) = self.held.get_mut(&key) else {
            return;
        };
        if let Some(count) = holders.get_mut(session_id) {
            *count = count.saturating_sub(1);
        }
        holders.retain(|_, count| *count > 0);
        if holders.is_empty() {
            self.held.remove(&key);
        }
    }
}

/// What a session wants to hand over.
#[derive(Debug, Clone, Copy)]
pub struct HandoffRequest<'a> {
    /// Names the offer.
    pub handoff_id: &'a str,
    /// The role that may take it.
    pub to_role: &'a str,
    /// What it is about.
    pub summary: &'a str,
    /// The slots to copy.
    pub carry: &'a [&'a str],
    /// How long it stays open.
    pub expires_in_seconds: Option<u64>,
}

/// How an offer ends without a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OfferEnd {
    /// The other role says no.
    Decline,
    /// The session takes it back.
    Cancel,
}
