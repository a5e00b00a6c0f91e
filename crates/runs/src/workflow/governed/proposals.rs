//! Proposals as long as somebody may ask for them.

use std::collections::{BTreeMap, BTreeSet};

use canon::{Digest, Value};
use contracts::{
    ApprovalRequest, ApprovalResponse, Call, CallKey, Decimal, Decision, Response, Verdict,
};
use domain::{PermissionId, Timestamp};
use serde_json::json;

use super::kept_request::KeptRequest;
use super::report::Receipt;
use super::session::{GovernedSession, proposal_id, propose_number};

/// Settled proposals that can still be asked for.
const SETTLED_MAX: usize = 256;

/// A proposal as long as somebody may ask for it.
#[derive(Debug)]
pub(super) struct ProposalRecord {
    pub(super) status: Status,
    pub(super) verdicts: Value,
    pub(super) decision: Option<Decision>,
    /// The counters that its last answer named.
    pub(super) versions: (u64, u64),
    /// The step that released it.
    pub(super) step: Option<u64>,
    /// When it was settled, or people were asked.
    pub(super) settled_at: Timestamp,
    /// The calls that were released.
    pub(super) calls: Vec<ReleasedCall>,
    pub(super) waiting: Option<Box<ApprovalWait>>,
    pub(super) requests: Vec<ApprovalRequest>,
    pub(super) response: Option<AttributedDecision>,
    pub(super) receipts: BTreeMap<String, Receipt>,
    pub(super) started: BTreeSet<String>,
}

/// What somebody decided, and whose key said so: the name that comes with a decision is only a text.
#[derive(Debug, Clone, serde::Serialize)]
pub(super) struct AttributedDecision {
    #[serde(flatten)]
    pub(super) response: ApprovalResponse,
    pub(super) actor: String,
    pub(super) key_id: Option<String>,
}

/// A released call.
#[derive(Debug, Clone)]
pub(super) struct ReleasedCall {
    pub(super) id: String,
    pub(super) tool: String,
    pub(super) digest: Digest,
    /// True when it counted as done at release.
    pub(super) commits: bool,
}

/// What is needed to go on once people have answered.
#[derive(Debug)]
pub(super) struct ApprovalWait {
    pub(super) request: KeptRequest,
    pub(super) response: Response,
    pub(super) cost: Option<Decimal>,
    /// What was said about its calls when people were asked.
    pub(super) verdicts: Vec<Verdict>,
    pub(super) questions: Vec<(ApprovalRequest, Call)>,
    pub(super) asked: u64,
    pub(super) deadline: Timestamp,
    pub(super) permission: PermissionId,
}

/// What became of a proposal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    Blocked,
    Allowed,
    PendingApproval,
    Approved,
    Denied,
    Expired,
    Killed,
    Stale,
}

impl Status {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Status::Blocked => "blocked",
            Status::Allowed => "allowed",
            Status::PendingApproval => "pending_approval",
            Status::Approved => "approved",
            Status::Denied => "denied",
            Status::Expired => "expired",
            Status::Killed => "killed",
            Status::Stale => "stale",
        }
    }
}

impl ProposalRecord {
    /// Returns when the question is over, while people are asked.
    pub(super) fn deadline(&self) -> Option<Timestamp> {
        self.waiting.as_ref().map(|waiting| waiting.deadline)
    }

    /// Returns how the session's state names a released call.
    pub(super) fn key(&self, call_id: &str) -> Option<CallKey> {
        let known = self.calls.iter().any(|call| call.id == call_id);
        let step = self.step.filter(|_| known)?;
        Some(CallKey {
            step,
            id: call_id.to_owned(),
        })
    }

    pub(super) fn shown(&self, id: &str, status: Status) -> Value {
        json!({
            "proposal_id": id,
            "status": status.as_str(),
            "verdicts": self.verdicts,
            "decision": self.decision,
            "state_version": self.versions.0,
            "control_revision": self.versions.1,
            "approval_requests": self.requests,
            "approval_response": self.response,
        })
    }
}

impl GovernedSession {
    /// The latest moment that a proposal was asked or settled at.
    pub(super) fn clock(&self) -> Timestamp {
        let times = self.proposals.values().map(|kept| kept.settled_at);
        times.max().unwrap_or_else(|| Timestamp::from_micros(0))
    }

    pub(super) fn keep(
        &mut self,
        number: u64,
        status: Status,
        verdicts: Value,
        decision: Option<Decision>,
        now: Timestamp,
    ) {
        let versions = self.versions();
        let before = self.proposals.remove(&number);
        let (requests, response) = before
            .map(|kept| (kept.requests, kept.response))
            .unwrap_or_default();
        let kept = ProposalRecord {
            status,
            verdicts,
            decision,
            versions,
            step: None,
            settled_at: now,
            calls: Vec::new(),
            waiting: None,
            requests,
            response,
            receipts: BTreeMap::new(),
            started: BTreeSet::new(),
        };
        self.proposals.insert(number, kept);
    }

    /// Forgets the oldest proposals about which nothing is open.
    pub(super) fn forget_settled(&mut self) {
        if self.proposals.len() <= SETTLED_MAX {
            return;
        }
        let open: BTreeSet<u64> = self.state.unsettled().map(|(key, _)| key.step).collect();
        let is_settled = |kept: &ProposalRecord| {
            kept.waiting.is_none() && kept.step.is_none_or(|step| !open.contains(&step))
        };
        let settled = self.proposals.iter().filter(|(_, kept)| is_settled(kept));
        let settled: Vec<u64> = settled.map(|(number, _)| *number).collect();
        for number in settled {
            if self.proposals.len() <= SETTLED_MAX {
                return;
            }
            self.proposals.remove(&number);
        }
    }

    pub(super) fn find_proposal(&self, id: &str) -> Option<(u64, &ProposalRecord)> {
        let number = propose_number(id)?;
        self.proposals.get(&number).map(|kept| (number, kept))
    }

    pub(super) fn proposal_answer(&mut self, number: u64) -> Value {
        let versions = self.versions();
        if let Some(kept) = self.proposals.get_mut(&number) {
            kept.versions = versions;
        }
        let kept = self.proposals.get(&number);
        kept.map_or(Value::Null, |kept| {
            kept.shown(&proposal_id(number), kept.status)
        })
    }

    /// Returns a proposal as it stands at a time, and whether it still waits for people.
    pub fn proposal(&self, id: &str, now: Timestamp) -> Option<(Value, bool)> {
        let (_, kept) = self
            .find_proposal(id)
            .filter(|(number, _)| proposal_id(*number) == id)?;
        let late = kept.deadline().is_some_and(|deadline| now >= deadline);
        let status = match (late, self.is_over()) {
            (true, _) => Status::Expired,
            (false, true) if kept.waiting.is_some() => Status::Killed,
            (false, _) => kept.status,
        };
        Some((kept.shown(id, status), status == Status::PendingApproval))
    }

    /// Returns the proposal that a permission request is about.
    pub fn proposal_of(&self, request: &PermissionId) -> Option<String> {
        let mut waiting = self.proposals.iter();
        let asks = |kept: &ProposalRecord| {
            let waiting = kept.waiting.as_ref();
            waiting.is_some_and(|waiting| waiting.permission == *request)
        };
        let found = waiting.find(|(_, kept)| asks(kept))?;
        Some(proposal_id(*found.0))
    }
}
