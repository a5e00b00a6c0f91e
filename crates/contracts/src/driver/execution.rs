//! Executions: a ticket before the tool runs, and what became of it.

use domain::Timestamp;

use super::Driver;
use crate::capture;
use crate::contract::TIMEOUT_MS;
use crate::event::{CallKey, Event, Outcome};
use crate::execute::{ExecutionRefusal, check_execution};
use crate::gate::{Decision, execution_refused};

/// Leave to run a tool once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ticket {
    /// Names the execution in [`Driver::settle`].
    pub ticket: u64,
    /// The call that it is; none outside enforcement, where nothing was allowed.
    pub call: Option<CallKey>,
    /// How long the tool may take.
    pub timeout_ms: u64,
    /// How often it may be started, and on which error codes again.
    pub attempts_max: u64,
    /// Error codes after which it may be started again.
    pub retry_on: Vec<String>,
}

/// How an execution ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecutionEnd {
    /// It did what it should, and returned this.
    Success(Option<String>),
    /// It failed with this code.
    Failed {
        /// The word that contracts compare with `allowed_errors`.
        code: String,
    },
    /// Nobody knows: it did not end in time, or its process is gone. A later end settles it.
    Unknown,
}

/// Why an end changed nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no execution of this ticket is under way")]
pub struct SettleError;

impl Driver {
    /// Allows an execution, if an allowed call with these arguments waits for it.
    ///
    /// # Errors
    /// The check that refused; with a decision about that one call where contracts did.
    pub fn execute(
        &mut self,
        tool: &str,
        arguments: &str,
        call_id: Option<&str>,
        now: Timestamp,
    ) -> Result<Ticket, (ExecutionRefusal, Option<Box<Decision>>)> {
        self.expire(now);
        let found = check_execution(&self.rules, &self.state, tool, call_id, arguments, now);
        let call = match found {
            Ok(call) => Some(call),
            Err(refusal) => {
                let found = match &refusal {
                    ExecutionRefusal::Killed { .. } | ExecutionRefusal::Inactive => {
                        return Err((refusal, None));
                    }
                    ExecutionRefusal::NoPendingCall => None,
                    ExecutionRefusal::Constraints { call, .. } => Some(call.clone()),
                };
                if self.rules.enforces() {
                    let decision = execution_refused(
                        &self.rules,
                        &self.state,
                        (tool, call_id),
                        arguments,
                        &refusal,
                    );
                    let event = Event::ExecutionRefused { at: now };
                    self.commit(event, Some(decision.clone()));
                    return Err((refusal, Some(Box::new(decision))));
                }
                self.push_event(
                    "violation",
                    now,
                    &[("reason", "execution_constraint_violated")],
                );
                found
            }
        };
        if let Some(call) = &call {
            self.commit(Event::Started { call: call.clone() }, None);
        }
        self.next_id += 1;
        let ticket = self.next_id;
        self.tickets.insert(ticket, (tool.to_owned(), call.clone()));
        let contract = self.rules.compiled().contract(tool);
        Ok(Ticket {
            ticket,
            call,
            timeout_ms: contract
                .and_then(|contract| contract.timeout_ms)
                .unwrap_or(TIMEOUT_MS),
            attempts_max: contract.map_or(1, |contract| contract.attempts_max),
            retry_on: contract.map_or_else(Vec::new, |contract| contract.retry_on.clone()),
        })
    }

    /// Reports how an execution ended.
    ///
    /// # Errors
    /// There is no such execution, or its end was reported before.
    pub fn settle(&mut self, ticket: u64, ended: ExecutionEnd) -> Result<(), SettleError> {
        let (tool, call) = self.tickets.get(&ticket).cloned().ok_or(SettleError)?;
        if ended != ExecutionEnd::Unknown {
            self.tickets.remove(&ticket);
        }
        if let Some(call) = call {
            self.settle_call(&tool, call, ended);
        }
        Ok(())
    }

    /// Settles a call of the session, and keeps what its capture level allows.
    pub(super) fn settle_call(&mut self, tool: &str, call: CallKey, ended: ExecutionEnd) {
        let contract = self.rules.compiled().contract(tool);
        let code = match &ended {
            ExecutionEnd::Failed { code } => Some(code.clone()),
            ExecutionEnd::Success(_) | ExecutionEnd::Unknown => None,
        };
        let (outcome, output) = match ended {
            ExecutionEnd::Success(output) => (Outcome::Success, output),
            ExecutionEnd::Failed { code } => {
                let expected =
                    contract.is_some_and(|contract| contract.allowed_errors.contains(&code));
                let outcome = if expected {
                    Outcome::ExpectedError
                } else {
                    Outcome::Error
                };
                (outcome, None)
            }
            ExecutionEnd::Unknown => (Outcome::Unknown, None),
        };
        self.capture_execution(tool, &call, (outcome, code), output.as_deref());
        if outcome != Outcome::Unknown {
            self.forget_proposal(&call);
        }
        let event = Event::Settled {
            call,
            outcome,
            output,
        };
        self.commit(event, None);
    }

    fn capture_execution(
        &mut self,
        tool: &str,
        call: &CallKey,
        (outcome, code): (Outcome, Option<String>),
        output: Option<&str>,
    ) {
        if self.keeps_nothing {
            return;
        }
        let (level, compiled) = (self.rules.options().capture_level, self.rules.compiled());
        let mut pending = self.state.released();
        let Some((_, known)) = pending.find(|(key, _)| *key == call) else {
            return;
        };
        let arguments = capture::arguments(level, compiled, tool, &known.arguments, &[]);
        let output = output.map(|text| capture::output(level, compiled, tool, text, &[]));
        let kept = serde_json::json!({
            "session_id": self.rules.options().session_id,
            "execution": {
                "tool": tool,
                "call_id": call.id,
                "arguments": arguments,
                "outcome": outcome,
                "code": code,
                "output": output,
            },
        });
        drop(pending);
        self.captures.push(kept);
    }
}
