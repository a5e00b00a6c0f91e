//! What is said about a call, and about a response as a whole.

use canon::Digest;
use serde::{Deserialize, Serialize};

use super::calls::ReadCall;
use super::file_of;
use crate::event::Call;
use crate::invariant::Operator;
use crate::path::Path;
use crate::reason::{BlockReason, Check};
use crate::rules::Rules;
use crate::state::State;
use crate::value::Value;

/// The verdicts of a response and the state they were based on.
#[derive(Debug, Clone, PartialEq)]
pub struct Judgement {
    verdicts: Vec<Verdict>,
    state_version: u64,
    control_revision: u64,
}

/// What is said about one call.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    call: Call,
    status: Status,
    failures: Vec<Failure>,
    contract_file: Option<String>,
}

/// The answer to a proposed call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// It may be released.
    Allow,
    /// It may not.
    Block,
    /// A person must be asked first.
    Ask,
}

/// A check that did not hold.
#[derive(Debug, Clone, PartialEq)]
pub struct Failure {
    /// The check; none for a killed session.
    pub check: Option<Check>,
    /// The reason it yields.
    pub reason: BlockReason,
    /// More about it.
    pub detail: Option<String>,
    /// Where it looked.
    pub path: Option<String>,
    /// What did not hold there.
    pub operator: Option<&'static str>,
    /// The operand, as JSON.
    pub expected: Option<String>,
    /// What was found; unredacted.
    pub found: Option<Value>,
}

impl Failure {
    pub(crate) fn new(check: Option<Check>, reason: BlockReason) -> Self {
        Self {
            check,
            reason,
            detail: None,
            path: None,
            operator: None,
            expected: None,
            found: None,
        }
    }

    pub(crate) fn with_detail(mut self, detail: &str) -> Self {
        self.detail = Some(detail.to_owned());
        self
    }

    pub(crate) fn at(mut self, path: &Path, found: Option<&Value>) -> Self {
        self.path = Some(path.to_string());
        self.found = found.cloned();
        self
    }

    pub(crate) fn under(mut self, operator: &Operator) -> Self {
        self.operator = Some(operator.name());
        self.expected = Some(operator.operand());
        self
    }
}

impl Verdict {
    pub(super) fn new(rules: &Rules, call: &ReadCall<'_>) -> Self {
        Self {
            call: Call {
                id: call.id().to_owned(),
                tool: call.name().to_owned(),
                arguments: call.text().to_owned(),
                arguments_digest: call.digest(),
                commits: rules.commits_at_release(call.name()),
            },
            status: Status::Allow,
            failures: Vec::new(),
            contract_file: file_of(rules.compiled().contract(call.name())),
        }
    }

    pub(super) fn fail(&mut self, failure: Failure) {
        self.status = Status::Block;
        self.failures.push(failure);
    }

    pub(super) fn ask(&mut self) {
        self.status = Status::Ask;
    }

    /// Returns the provider's id of the call.
    pub fn call_id(&self) -> &str {
        &self.call.id
    }

    /// Returns the call as state keeps it.
    pub fn call(&self) -> &Call {
        &self.call
    }

    /// Returns the digest of the canonical arguments.
    pub fn arguments_digest(&self) -> Digest {
        self.call.arguments_digest
    }

    /// Returns the answer.
    pub fn status(&self) -> Status {
        self.status
    }

    /// Returns every failure, in the order of the checks.
    pub fn failures(&self) -> &[Failure] {
        &self.failures
    }

    /// Returns the failure with the lowest check.
    pub fn first_failure(&self) -> Option<&Failure> {
        self.failures.first()
    }

    /// Returns the reason of a block.
    pub fn reason(&self) -> Option<BlockReason> {
        self.first_failure().map(|failure| failure.reason)
    }

    /// Returns every distinct reason in the order of the checks; the first is the reason.
    pub fn all_reasons(&self) -> Vec<BlockReason> {
        let mut reasons = Vec::new();
        for failure in &self.failures {
            if !reasons.contains(&failure.reason) {
                reasons.push(failure.reason);
            }
        }
        reasons
    }

    /// Returns the file of the tool's contract.
    pub fn contract_file(&self) -> Option<&str> {
        self.contract_file.as_deref()
    }
}

impl Judgement {
    pub(super) fn new(state: &State, mut verdicts: Vec<Verdict>) -> Self {
        for verdict in &mut verdicts {
            // Stable: failures of one check stay in the order of the contract.
            verdict.failures.sort_by_key(|failure| failure.check);
        }
        Self {
            verdicts,
            state_version: state.state_version(),
            control_revision: state.control_revision(),
        }
    }

    /// Returns the verdicts, in the order of the response.
    pub fn verdicts(&self) -> &[Verdict] {
        &self.verdicts
    }

    /// Returns the commits that the verdicts saw.
    pub fn state_version(&self) -> u64 {
        self.state_version
    }

    /// Returns the control actions that the verdicts saw.
    pub fn control_revision(&self) -> u64 {
        self.control_revision
    }

    /// Returns the calls that people must be asked about.
    pub fn needing_approval(&self) -> impl Iterator<Item = &Verdict> {
        self.with(Status::Ask)
    }

    /// Returns the blocked calls.
    pub fn blocked(&self) -> impl Iterator<Item = &Verdict> {
        self.with(Status::Block)
    }

    /// Returns the calls that are not blocked: they hold room while people are asked.
    pub fn standing_calls(&self) -> Vec<Call> {
        let standing = self
            .verdicts
            .iter()
            .filter(|verdict| verdict.status != Status::Block);
        standing.map(|verdict| verdict.call.clone()).collect()
    }

    fn with(&self, status: Status) -> impl Iterator<Item = &Verdict> {
        self.verdicts
            .iter()
            .filter(move |verdict| verdict.status == status)
    }
}
