//! What happened to a session: the only thing that changes its state.
//!
//! Events are plain data and can be stored. Arguments and outputs are JSON texts, because texts are exact.

use std::collections::BTreeMap;

use canon::Digest;
use domain::Timestamp;
use serde::{Deserialize, Serialize};

use crate::decimal::Decimal;
use crate::narrow::Narrowing;
use crate::rules::Rules;

/// One fact.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// Tools were narrowed for a request.
    Narrowed {
        /// What stayed and what went.
        narrowing: Narrowing,
    },
    /// Outputs of earlier calls were found in a request.
    OutputsSeen {
        /// In the order of the request.
        outputs: Vec<ShownOutput>,
    },
    /// A request was refused before the model was asked, by P5 to P9.
    Refused {
        /// When.
        at: Timestamp,
    },
    /// An execution was refused by X2 or X3.
    ExecutionRefused {
        /// When.
        at: Timestamp,
    },
    /// The provider or governance itself failed.
    Failed {
        /// When.
        at: Timestamp,
        /// True when a request had been sent.
        attempted: bool,
    },
    /// People were asked about calls; the calls count as pending until the response is settled.
    Asked {
        /// When.
        at: Timestamp,
        /// Names the response while it waits.
        proposal: String,
        /// How many people's decisions were asked for.
        asked: u64,
        /// The calls of the response that hold room while it waits.
        calls: Vec<Call>,
    },
    /// A response was judged and settled.
    Responded(Responded),
    /// An executor was started.
    Started {
        /// The call.
        call: CallKey,
    },
    /// An execution ended, or what became of it was found out.
    Settled {
        /// The call.
        call: CallKey,
        /// How it ended.
        outcome: Outcome,
        /// What it returned, if it returned JSON or text.
        output: Option<String>,
    },
    /// A call was never executed in time.
    Expired {
        /// The call.
        call: CallKey,
    },
    /// A label was added from outside.
    LabelAdded {
        /// The label.
        label: String,
    },
    /// The manual tool filter was set, or cleared.
    Filtered {
        /// The tools that stay; none: all.
        tools: Option<Vec<String>>,
    },
    /// The session was stopped for good.
    Killed {
        /// Why.
        cause: String,
    },
    /// The session was ended in order.
    Restored,
    /// The original client was used around the session.
    Bypassed,
    /// Another role accepted work from this session.
    HandedOff,
    /// A call went through without backing.
    Unguarded {
        /// True when it was the last that is allowed.
        last: bool,
    },
}

/// A response that was judged and settled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Responded {
    /// When.
    pub at: Timestamp,
    /// The response that people were asked about, if they were.
    pub proposal: Option<String>,
    /// The cost of the attempt; none when it is not known.
    pub cost: Option<Decimal>,
    /// True when a cost limit exists and the provider did not say what was used.
    pub usage_unknown: bool,
    /// What became of it.
    pub release: Release,
}

/// What became of a response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Release {
    /// It was released, whole or without its blocked calls: one step.
    Step {
        /// The calls that were released, in order.
        calls: Vec<Call>,
        /// How many were taken out.
        stripped: u64,
    },
    /// It was released although calls would have been blocked: shadow or advisory.
    Shadow {
        /// The calls, in order.
        calls: Vec<Call>,
        /// How many would have been blocked.
        would_block: u64,
    },
    /// It was released unjudged: log-only.
    Logged {
        /// The names of the called tools, in order.
        tools: Vec<String>,
    },
    /// Nothing was released.
    Blocked,
    /// It came after the end of the session and was thrown away.
    Discarded,
}

/// A call as state keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    /// The provider's id.
    pub id: String,
    /// The tool.
    pub tool: String,
    /// The arguments as canonical JSON; as they came when they are not JSON.
    pub arguments: String,
    /// The digest of that text.
    pub arguments_digest: Digest,
    /// True when the call counts as done at release, false when it waits for the report of its execution.
    pub commits: bool,
}

/// A call inside its session: providers may use an id again in another response.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallKey {
    /// The step that released it.
    pub step: u64,
    /// The provider's id.
    pub id: String,
}

/// The output of a call as a request shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShownOutput {
    /// The provider's id of the call.
    pub call_id: String,
    /// The output's text.
    pub text: String,
}

/// How an execution ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It did what it should.
    Success,
    /// It failed with an error that the contract expects.
    ExpectedError,
    /// It failed.
    Error,
    /// Nobody knows: it counts against budgets and satisfies nothing.
    Unknown,
}

/// How a session begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionStart {
    /// The session.
    pub session_id: String,
    /// The agent.
    pub agent: Option<String>,
    /// When.
    pub at: Timestamp,
    /// The contracts it runs under.
    pub compiled: Digest,
    /// Initial labels, the parent's included.
    pub labels: Vec<String>,
    /// Slots that a parent handed over, as JSON texts.
    pub slots: BTreeMap<String, String>,
}

impl SessionStart {
    /// Returns how a session under these rules begins, with the labels and slots that a parent handed over.
    pub(crate) fn for_rules(
        rules: &Rules,
        at: Timestamp,
        labels: &[String],
        slots: BTreeMap<String, String>,
    ) -> Self {
        let options = rules.options();
        let agent = options.agent.clone();
        Self {
            session_id: options.session_id.clone(),
            agent: agent.or_else(|| rules.compiled().session().agent.clone()),
            at,
            compiled: rules.compiled().digest(),
            labels: options.labels.iter().chain(labels).cloned().collect(),
            slots,
        }
    }
}
