//! What a backtest says: about each call, and about each request that would not have been sent.

use canon::Digest;
use serde::Serialize;

use crate::reason::BlockReason;

/// What these contracts say about a recorded run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Verdicts {
    /// Every call of the run, in order.
    pub calls: Vec<CallVerdict>,
    /// What the record does not hold.
    pub gaps: Vec<String>,
}

/// What these contracts say about a recorded call, or about a request that would not have been sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CallVerdict {
    /// The answer of the model it belongs to, from 1.
    pub turn: u64,
    /// The provider's id; none for a request.
    pub call_id: Option<String>,
    /// The tool; none for a request.
    pub tool: Option<String>,
    /// The digest of the arguments.
    pub arguments_digest: Option<Digest>,
    /// What became of it when it was recorded.
    pub then: RecordedOutcome,
    /// The answer.
    pub verdict: Backtested,
    /// How the answer differs from what was recorded.
    pub change: Change,
    /// The reasons of a block.
    pub reasons: Vec<BlockReason>,
    /// More about the first, or why nothing can be said.
    pub detail: Option<String>,
    /// The file of the rule.
    pub contract_file: Option<String>,
}

/// What would have become of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Backtested {
    /// It would have been allowed.
    Allowed,
    /// A person would have been asked.
    Asked,
    /// It would have been blocked.
    Blocked,
    /// Nobody can say: the record does not hold what the rules look at.
    NotJudgeable,
}

/// What became of a call when it was recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordedOutcome {
    /// It was made, or the request was sent.
    Made,
    /// A person was asked, and it was made.
    Asked,
    /// It was not made: contracts, people or the rights of the agent stood against it.
    Refused,
}

/// How an answer differs from what was recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// It does not.
    AsBefore,
    /// It was made, and would have been blocked.
    Stopped,
    /// It was made without a question, and a person would have been asked.
    NowAsked,
    /// It was refused, or asked about, and would not have been.
    Loosened,
    /// Nobody can say.
    NotJudgeable,
}

impl Verdicts {
    /// Returns the first call that was made and would have been blocked.
    pub fn first_stopped(&self) -> Option<&CallVerdict> {
        self.changed(Change::Stopped).next()
    }

    /// Returns those after the first: had it been blocked, the run would have gone another way.
    pub fn later_stopped(&self) -> impl Iterator<Item = &CallVerdict> {
        self.changed(Change::Stopped).skip(1)
    }

    /// Returns the calls that differ from the record in this way.
    pub fn changed(&self, change: Change) -> impl Iterator<Item = &CallVerdict> {
        self.calls.iter().filter(move |call| call.change == change)
    }

    /// Returns how many calls have this answer.
    pub fn count(&self, verdict: Backtested) -> usize {
        let same = |call: &&CallVerdict| call.verdict == verdict;
        self.calls.iter().filter(same).count()
    }
}

/// Compares an answer with what was recorded. A call that stands is refused all the same with an answer that is `rejected`.
pub(super) fn change(call: &CallVerdict, was_asked: bool, rejected: bool) -> Change {
    match (call.verdict, call.then) {
        (Backtested::NotJudgeable, _) => Change::NotJudgeable,
        (Backtested::Allowed, RecordedOutcome::Made)
        | (Backtested::Asked, RecordedOutcome::Asked)
        | (Backtested::Blocked, RecordedOutcome::Refused) => Change::AsBefore,
        (Backtested::Blocked, RecordedOutcome::Made | RecordedOutcome::Asked) => Change::Stopped,
        (Backtested::Asked, RecordedOutcome::Made) => Change::NowAsked,
        (Backtested::Allowed | Backtested::Asked, RecordedOutcome::Refused) if rejected => {
            Change::AsBefore
        }
        // Somebody said no then, and is asked again now.
        (Backtested::Asked, RecordedOutcome::Refused) if was_asked => Change::AsBefore,
        (Backtested::Allowed | Backtested::Asked, RecordedOutcome::Refused)
        | (Backtested::Allowed, RecordedOutcome::Asked) => Change::Loosened,
    }
}
