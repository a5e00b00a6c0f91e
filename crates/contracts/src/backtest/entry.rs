//! What a recorded run tells, in order.

use std::collections::BTreeMap;

use domain::Timestamp;

use crate::decimal::Decimal;
use crate::request::{OfferedTool, Response, ToolChoice};
use crate::value::Value;
use crate::workflow::{Seat, WorkflowView};

/// Something that a recorded run tells.
#[derive(Debug, Clone)]
pub enum RecordEntry {
    /// The tools that the model was offered from here on.
    Offered(Vec<OfferedTool>),
    /// A request was bound to the state, and its answer is told later.
    Prepared {
        /// Names it.
        id: String,
        /// When.
        at: Timestamp,
        /// What the record holds of it.
        sent: Box<RecordedRequest>,
    },
    /// The model answered.
    Answered {
        /// When.
        at: Timestamp,
        /// What it said.
        response: Response,
        /// What it cost in dollars, if the record says so.
        cost: Option<Decimal>,
        /// The request that it answers, where requests have names.
        prepared: Option<String>,
        /// Names the answer, where several can wait for people at a time.
        proposal: Option<String>,
    },
    /// The model answered when its session had moved on: what it cost counts, and nothing else.
    Discarded {
        /// When.
        at: Timestamp,
        /// What it cost in dollars, if the record says so.
        cost: Option<Decimal>,
    },
    /// People were asked about calls of an answer.
    Asked {
        /// The provider's ids of the calls, as far as the record names them.
        calls: Vec<String>,
        /// How many questions there were.
        count: u64,
        /// The answer; the last one where it has no name.
        proposal: Option<String>,
    },
    /// An answer was settled then; one that nobody judged is never followed by this.
    Judged {
        /// When, where that is later than the answer.
        at: Option<Timestamp>,
        /// The provider's ids of the calls that were not released.
        refused: Vec<String>,
        /// True when nothing of the answer was released.
        whole: bool,
        /// The answer; the last one where it has no name.
        proposal: Option<String>,
    },
    /// A call was not made, for another reason than contracts.
    Denied {
        /// The provider's id of the call.
        call_id: String,
    },
    /// The execution of a call began.
    Started {
        /// The provider's id of the call.
        call_id: String,
        /// The answer that it belongs to.
        proposal: String,
    },
    /// A call ended.
    Ended {
        /// The provider's id of the call.
        call_id: String,
        /// Whether it did what it should; none when nobody knows.
        ok: Option<bool>,
        /// What it returned, if the record says so.
        output: Option<String>,
        /// The answer that it belongs to; the last one with such a call where it has no name.
        proposal: Option<String>,
    },
    /// A label was added from outside.
    Labeled {
        /// The label.
        label: String,
    },
    /// The manual tool filter was set, or cleared.
    Filtered {
        /// The tools that stay; none: all.
        tools: Option<Vec<String>>,
    },
    /// How the workflow of the session stood from here on.
    Workflow(Box<WorkflowView>),
    /// Something was here that the record does not hold.
    Gap {
        /// What.
        what: String,
    },
}

/// What a record holds of a request.
#[derive(Debug, Clone)]
pub struct RecordedRequest {
    /// Who serves the model.
    pub provider: String,
    /// The model.
    pub model: String,
    /// The tools that it was offered; none: those of the run.
    pub tools: Option<Vec<OfferedTool>>,
    /// What the request says about calling them.
    pub choice: ToolChoice,
    /// What input invariants look at; none when the record does not hold it.
    pub view: Option<Value>,
}

/// What a run begins with.
#[derive(Debug, Clone)]
pub struct Start {
    /// When.
    pub at: Timestamp,
    /// Its labels, besides those of the rules' options.
    pub labels: Vec<String>,
    /// Slots that another session handed over, as JSON texts.
    pub slots: BTreeMap<String, String>,
    /// Its place in a workflow.
    pub seat: Option<Seat>,
    /// The requests of the run, where they have no names.
    pub sent: Option<RecordedRequest>,
}

impl From<Timestamp> for Start {
    fn from(at: Timestamp) -> Self {
        Self {
            at,
            labels: Vec::new(),
            slots: BTreeMap::new(),
            seat: None,
            sent: None,
        }
    }
}
