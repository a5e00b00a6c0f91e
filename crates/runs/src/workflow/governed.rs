//! Governed sessions: a program elsewhere asks the model and runs the tools, and asks here before and after.
//!
//! The session is a pure function of what it begins with and of its inputs, which are recorded one by one as results of
//! effects that the outside performs. So a restart, a replay and a reader of the log come to the same state and the same
//! verdicts as the server that answered. Fails closed: what cannot be read or checked is refused.

mod kept_request;
mod parties;
mod people;
mod prepare;
mod proposals;
mod propose;
mod report;
mod request_form;
mod seat;
mod session;
mod workflow;

use canon::Value;
use domain::{GOVERNED, GOVERNED_WORKFLOW, GovernedInput};
use serde::Deserialize as _;
use serde_json::json;

use super::builtin::failed;
use super::{EffectAnswer, EffectKind, EffectRequest, Machine, Start, Step, Workflow};

pub use contracts::workflow::names_same_file;
pub use parties::{Parties, is_work};
pub(crate) use prepare::recorded_request;
pub(crate) use propose::response_of;
pub use report::fields_agree;
pub(crate) use report::reported_output;
pub(crate) use seat::seat_of;
pub use session::{
    Contracts, GovernedSession, InputOutcome, ReplacedOption, SessionEnd, apply_rules_version,
    ids_are_plain, retained_captures,
};
pub use workflow::{GovernedWorkflow, JoinedSession};

/// Returns the effect whose result the next input is.
pub fn awaited(number: u64) -> EffectRequest {
    let key = format!("host:governed:{number}");
    let request = json!({"capability": "governed_session", "number": number});
    // Nobody performs it: whoever sends an input does.
    let mut wanted = EffectRequest::repeatable(key, EffectKind::Host, request);
    wanted.repeatable = false;
    wanted
}

/// A session that somebody elsewhere drives.
#[derive(Debug)]
pub(super) struct Governed;

impl Workflow for Governed {
    fn name(&self) -> &'static str {
        GOVERNED
    }

    fn version(&self) -> &'static str {
        "1"
    }

    fn description(&self) -> &'static str {
        "Judges the model calls and tool calls of a program elsewhere by its contracts."
    }

    fn is_submitted(&self) -> bool {
        false
    }

    fn begin(&self, start: &Start) -> Box<dyn Machine> {
        let session = GovernedSession::begin(&start.input);
        Box::new(Driven {
            subject: session.map(|session| Subject::Session(Box::new(session))),
            inputs: 0,
        })
    }
}

/// A workflow of such sessions.
#[derive(Debug)]
pub(super) struct SessionsWorkflow;

impl Workflow for SessionsWorkflow {
    fn name(&self) -> &'static str {
        GOVERNED_WORKFLOW
    }

    fn version(&self) -> &'static str {
        "1"
    }

    fn description(&self) -> &'static str {
        "Coordinates governed sessions that share one job."
    }

    fn is_submitted(&self) -> bool {
        false
    }

    fn begin(&self, start: &Start) -> Box<dyn Machine> {
        let workflow = GovernedWorkflow::begin(&start.input);
        Box::new(Driven {
            subject: workflow.map(|workflow| Subject::Workflow(Box::new(workflow))),
            inputs: 0,
        })
    }
}

/// What is driven from outside.
#[derive(Debug)]
pub enum Subject {
    /// A session.
    Session(Box<GovernedSession>),
    /// A workflow of sessions.
    Workflow(Box<GovernedWorkflow>),
}

impl Subject {
    /// Takes an input and answers it.
    pub fn take(&mut self, input: &GovernedInput) -> InputOutcome {
        match self {
            Subject::Session(session) => session.take(input),
            Subject::Workflow(workflow) => workflow.take(input),
        }
    }
}

/// A session or a workflow over its recorded inputs.
struct Driven {
    subject: Result<Subject, String>,
    inputs: u64,
}

impl Machine for Driven {
    fn step(&mut self, results: &[EffectAnswer]) -> Step {
        let subject = match &mut self.subject {
            Ok(subject) => subject,
            Err(message) => return failed("contracts_unreadable", message.clone()),
        };
        let mut notes = Vec::new();
        if let Some(answer) = results.first() {
            let input = match GovernedInput::deserialize(&answer.value) {
                Ok(input) if answer.ok => input,
                Ok(_) | Err(_) => return failed("input_unreadable", "an input cannot be read"),
            };
            let taken = subject.take(&input);
            notes = taken.notes;
            match taken.end {
                Some(SessionEnd::Completed { text }) => {
                    return Step::Done {
                        notes,
                        summary: text.clone(),
                        text,
                        products: Vec::new(),
                    };
                }
                Some(SessionEnd::Failed { code, message }) => {
                    return Step::Failed {
                        notes,
                        code: code.to_owned(),
                        message,
                        details: canon::Map::new(),
                    };
                }
                // A killed session is canceled from outside: it goes on waiting for what never comes.
                Some(SessionEnd::Canceled { .. }) | None => {}
            }
        }
        self.inputs += 1;
        Step::Request {
            notes,
            checkpoint: false,
            effects: vec![awaited(self.inputs)],
        }
    }

    fn state(&self) -> Value {
        Value::Null
    }
}
