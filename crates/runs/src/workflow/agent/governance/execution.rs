//! Released calls: what is still allowed before one is made, and what counts as its end.

use canon::Value;
use contracts::{Call as Judged, CallKey, Event, ExecutionRefusal, Outcome, check_execution};
use domain::{Timestamp, payload};
use serde_json::json;

use super::{ContractHandling, Fault, Governance, decided, sentence};
use crate::workflow::agent::tools;
use crate::workflow::{EffectAnswer, Note};

impl Governance {
    /// Says what time it is now: calls that were released ten minutes ago and not begun are not made any more.
    pub(in crate::workflow::agent) fn expire(&mut self, at: Timestamp) -> Result<(), Fault> {
        self.now = at;
        for call in self.state.expired(at) {
            self.advance(&Event::Expired { call })?;
        }
        Ok(())
    }

    /// Returns how long a tool may take, where its contract says so.
    pub(in crate::workflow::agent) fn timeout_ms(&self, tool: &str) -> Option<u64> {
        let contract = self.rules.compiled().contract(tool)?;
        contract.timeout_ms
    }

    /// Says whether a call that failed is made again, by its contract.
    pub(in crate::workflow::agent) fn tries_again(
        &self,
        tool: &str,
        attempt: u64,
        answer: &EffectAnswer,
    ) -> bool {
        let contract = self.rules.compiled().contract(tool);
        let code = failure_code(answer);
        contract.zip(code).is_some_and(|(contract, code)| {
            attempt < contract.attempts_max && contract.retry_on.contains(&code)
        })
    }

    /// Checks a released call once more before it is made; the reason if it is not to be.
    pub(in crate::workflow::agent) fn start(
        &mut self,
        id: &str,
        tool: &str,
        arguments: &str,
    ) -> Result<Result<(), (String, Note)>, Fault> {
        let (rules, state) = (&self.rules, &self.state);
        let found = check_execution(rules, state, tool, Some(id), arguments, self.now);
        let found = found.and_then(|call| match state.has_counted(&call) {
            true if self.manner < ContractHandling::Counted => Err(ExecutionRefusal::NoPendingCall),
            true | false => Ok(call),
        });
        match found {
            Ok(call) => {
                self.advance(&Event::Started { call: call.clone() })?;
                self.running.insert(id.to_owned(), call);
                Ok(Ok(()))
            }
            Err(refusal) => {
                self.advance(&Event::ExecutionRefused { at: self.now })?;
                let word = refusal.reason().map(|reason| reason.as_str());
                let (word, detail) = (word.unwrap_or("inactive"), refusal.detail());
                let told = payload::ContractDecided::default().execution(json!({
                    "call_id": id,
                    "tool_name": tool,
                    "check": refusal.check().map(|check| check.as_str()),
                    "reason": word,
                    "detail": detail,
                }));
                Ok(Err((sentence(word, detail.as_deref()), decided(told))))
            }
        }
    }

    /// Says that a released call is not made, for a reason that is not the contracts'.
    pub(in crate::workflow::agent) fn dropped(&mut self, id: &str) -> Result<(), Fault> {
        // Providers may use an id again: what an earlier call came to, known or not, stays what it was.
        let Some(step) = self.released else {
            return Ok(());
        };
        let of_this = |(key, _): &(&CallKey, &Judged)| key.id == id && key.step == step;
        let found = self.state.unsettled().find(of_this);
        let Some(call) = found.map(|(key, _)| key.clone()) else {
            return Ok(());
        };
        self.running.remove(id);
        self.settled(call, Outcome::Error, None)
    }

    /// Says what a tool gave.
    pub(in crate::workflow::agent) fn ended(
        &mut self,
        id: &str,
        tool: &str,
        answer: Option<&EffectAnswer>,
    ) -> Result<(), Fault> {
        let Some(call) = self.running.remove(id) else {
            return Ok(());
        };
        let contract = self.rules.compiled().contract(tool);
        let is_unknown = match self.manner {
            ContractHandling::OneByOne => was_unknown,
            ContractHandling::Together | ContractHandling::Counted => is_unknown,
        };
        let failed = |code: &str| match code {
            code if is_unknown(code) => Outcome::Unknown,
            code if contract.is_some_and(|contract| {
                contract.allowed_errors.iter().any(|known| known == code)
            }) =>
            {
                Outcome::ExpectedError
            }
            _ => Outcome::Error,
        };
        let (outcome, output) = match answer {
            None => (Outcome::Unknown, None),
            Some(answer) => match failure_code(answer) {
                Some(code) => (failed(&code), None),
                None => (Outcome::Success, Some(ruled_output(&answer.value))),
            },
        };
        self.settled(call, outcome, output)
    }

    fn settled(
        &mut self,
        call: CallKey,
        outcome: Outcome,
        output: Option<String>,
    ) -> Result<(), Fault> {
        self.advance(&Event::Settled {
            call,
            outcome,
            output,
        })
    }
}

/// True for the words of a tool's error that leave open what it did.
pub fn is_unknown(code: &str) -> bool {
    // An answer that was too long came after the deed, and a connection can break after it.
    was_unknown(code)
        || matches!(
            code,
            "mcp_timeout" | "mcp_unavailable" | "mcp_output_too_large"
        )
}

/// The words that earlier versions of the agent knew.
fn was_unknown(code: &str) -> bool {
    matches!(
        code,
        "interrupted" | "tool_timeout" | "tool_killed" | "effect_result_unknown"
    )
}

/// Returns the word for how a tool failed; none when it did not.
fn failure_code(answer: &EffectAnswer) -> Option<String> {
    if !answer.ok {
        let code = answer.value.get("code").and_then(Value::as_str);
        return Some(code.unwrap_or("error").to_owned());
    }
    failure_in_result(&answer.value)
}

/// Returns the word for a failure that a tool's own result tells: an exit code, or what an MCP server says.
pub fn failure_in_result(value: &Value) -> Option<String> {
    if value.get("isError") == Some(&Value::Bool(true)) {
        return Some("error".to_owned());
    }
    let exit = value.get("exit_code").and_then(Value::as_i64);
    exit.filter(|code| *code != 0)
        .map(|code| format!("exit_{code}"))
}

/// Returns what rules read of a tool's result: what an MCP server structured or said, what a command printed, else the value.
pub fn ruled_output(value: &Value) -> String {
    if let Some(structured) = value.get("structuredContent") {
        return serde_json::to_string(structured).unwrap_or_default();
    }
    match value.get("stdout").and_then(Value::as_str) {
        Some(printed) => printed.to_owned(),
        None => tools::readable(value),
    }
}
