//! How a workflow stands, as one value: what a session must know of it to be judged, and nothing of its past.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Member, Offer, OfferStatus, WorkflowState};
use crate::decimal::Decimal;

/// How a workflow stands. Offers that are over are not in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkflowView {
    /// Its sessions.
    pub sessions: Vec<Member>,
    /// Offers that nobody has taken, refused or taken back.
    pub open_offers: Vec<Offer>,
    /// What all sessions cost together.
    pub cost: Decimal,
    /// True when some of it is not known.
    pub cost_incomplete: bool,
    /// The calls of all sessions.
    pub tool_calls: u64,
    /// The shared things that calls hold.
    pub held: Vec<ResourceHold>,
}

/// A shared thing that calls of a session hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResourceHold {
    /// The resource.
    pub resource: String,
    /// The value that names the thing, as JSON.
    pub value: String,
    /// The session.
    pub session_id: String,
    /// How many of its calls do.
    pub calls: u64,
}

impl WorkflowState {
    /// Returns how it stands.
    pub fn view(&self) -> WorkflowView {
        let open = self.offers.values();
        let open = open.filter(|(_, status)| *status == OfferStatus::Open);
        let held = self.held.iter().flat_map(|((resource, value), holders)| {
            holders.iter().map(|(session_id, calls)| ResourceHold {
                resource: resource.clone(),
                value: value.clone(),
                session_id: session_id.clone(),
                calls: *calls,
            })
        });
        WorkflowView {
            sessions: self.members.values().cloned().collect(),
            open_offers: open.map(|(offer, _)| offer.clone()).collect(),
            cost: self.cost,
            cost_incomplete: self.cost_unknown,
            tool_calls: self.tool_calls,
            held: held.collect(),
        }
    }
}

impl From<WorkflowView> for WorkflowState {
    fn from(view: WorkflowView) -> Self {
        let mut held: BTreeMap<(String, String), BTreeMap<String, u64>> = BTreeMap::new();
        for thing in view.held {
            let holders = held.entry((thing.resource, thing.value)).or_default();
            holders.insert(thing.session_id, thing.calls);
        }
        let members = view.sessions.into_iter();
        let offers = view.open_offers.into_iter();
        Self {
            members: members
                .map(|member| (member.session_id.clone(), member))
                .collect(),
            offers: offers
                .map(|offer| (offer.handoff_id.clone(), (offer, OfferStatus::Open)))
                .collect(),
            cost: view.cost,
            cost_unknown: view.cost_incomplete,
            tool_calls: view.tool_calls,
            held,
            labels: BTreeMap::new(),
        }
    }
}
