//! Wrapped executors: a tool runs only if its call was allowed, and what became of it is reported.

use std::collections::BTreeMap;
use std::fmt;

use super::outcome::ExecuteError;
use super::{Governed, Hooks, ModelClient};
use crate::event::{CallKey, Event, Outcome};
use crate::execute::{ExecutionRefusal, check_execution};

/// Runs a tool: the call and its arguments as JSON in, the output as text out.
pub type Executor = Box<dyn FnMut(&CallKey, &str) -> Executed + Send>;

/// How an executor ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Executed {
    /// It did what it should, and returned this.
    Success(Option<String>),
    /// It failed.
    Failed(ToolError),
    /// It did not end in time: what it did is not known.
    TimedOut,
}

/// An error of a tool.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct ToolError {
    /// The word that contracts compare with `allowed_errors` and `retry_on`.
    pub code: String,
    /// What happened.
    pub message: String,
}

/// The executors of a session.
#[derive(Default)]
pub(super) struct Executors(BTreeMap<String, Executor>);

impl fmt::Debug for Executors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl<C: ModelClient, H: Hooks> Governed<C, H> {
    /// Gives the session the executor of a tool. The options must name the tool among the executors.
    pub fn wrap(&mut self, tool: &str, executor: Executor) {
        self.executors.0.insert(tool.to_owned(), executor);
    }

    /// Runs a tool, if an allowed call with these arguments waits for it.
    ///
    /// # Errors
    /// A check refused it, the tool failed or did not end in time, or the record failed.
    pub fn execute(
        &mut self,
        tool: &str,
        call_id: Option<&str>,
        arguments: &str,
    ) -> Result<Option<String>, ExecuteError> {
        if !self.executors.0.contains_key(tool) {
            return Err(ExecuteError::UnknownTool(tool.to_owned()));
        }
        self.look_at_switch();
        let now = self.hooks.now();
        for call in self.state.expired(now) {
            self.report(&Event::Expired { call })?;
        }
        let (rules, state) = (&self.rules, &self.state);
        let call = match check_execution(rules, state, tool, call_id, arguments, now) {
            Ok(call) => Some(call),
            Err(refusal) => self.refuse(refusal)?,
        };
        let Some(call) = call else {
            // Outside enforcement nothing was allowed, and nothing is refused.
            let key = CallKey {
                step: 0,
                id: call_id.unwrap_or_default().to_owned(),
            };
            return ended(self.run(tool, &key, arguments));
        };
        self.report(&Event::Started { call: call.clone() })?;
        let executed = self.run(tool, &call, arguments);
        let (outcome, output) = match &executed {
            Executed::Success(output) => (Outcome::Success, output.clone()),
            Executed::Failed(error) => {
                let contract = self.rules.compiled().contract(tool);
                let expected =
                    contract.is_some_and(|contract| contract.allowed_errors.contains(&error.code));
                (
                    if expected {
                        Outcome::ExpectedError
                    } else {
                        Outcome::Error
                    },
                    None,
                )
            }
            Executed::TimedOut => (Outcome::Unknown, None),
        };
        self.report(&Event::Settled {
            call,
            outcome,
            output,
        })?;
        ended(executed)
    }

    /// Runs the executor, again as often as the contract allows for this error.
    fn run(&mut self, tool: &str, call: &CallKey, arguments: &str) -> Executed {
        let contract = self.rules.compiled().contract(tool);
        let attempts = contract.map_or(1, |contract| contract.attempts_max);
        let retry_on = contract
            .map(|contract| contract.retry_on.clone())
            .unwrap_or_default();
        let Some(executor) = self.executors.0.get_mut(tool) else {
            return Executed::TimedOut;
        };
        let mut executed = executor(call, arguments);
        for _ in 1..attempts {
            match &executed {
                Executed::Failed(error) if retry_on.contains(&error.code) => {
                    executed = executor(call, arguments);
                }
                Executed::Failed(_) | Executed::Success(_) | Executed::TimedOut => break,
            }
        }
        executed
    }

    /// Refuses where verdicts block; tells elsewhere. A kill refuses everywhere.
    fn refuse(&mut self, refusal: ExecutionRefusal) -> Result<Option<CallKey>, ExecuteError> {
        let found = match &refusal {
            ExecutionRefusal::Killed { .. } | ExecutionRefusal::Inactive => {
                return Err(ExecuteError::Refused(refusal));
            }
            ExecutionRefusal::NoPendingCall => None,
            ExecutionRefusal::Constraints { call, .. } => Some(call.clone()),
        };
        if !self.rules.enforces() {
            self.hooks
                .diagnostic("violation", "execution_constraint_violated");
            return Ok(found);
        }
        let at = self.hooks.now();
        self.report(&Event::ExecutionRefused { at })?;
        Err(ExecuteError::Refused(refusal))
    }

    fn report(&mut self, event: &Event) -> Result<(), ExecuteError> {
        self.commit(event, None).map_err(ExecuteError::Fault)
    }
}

fn ended(executed: Executed) -> Result<Option<String>, ExecuteError> {
    match executed {
        Executed::Success(output) => Ok(output),
        Executed::Failed(error) => Err(ExecuteError::Tool(error)),
        Executed::TimedOut => Err(ExecuteError::TimedOut),
    }
}
