//! Executions of a session on a server: what is reported of them, and for which proposals.

use domain::Timestamp;
use serde_json::{Value, json};

use crate::driver::{Driver, ExecutionEnd};
use crate::event::CallKey;
use crate::json::{self, Limits, Numbers};
use crate::rules::Executors;
use crate::wire::WireRequest;

impl Driver {
    /// What a request tells about calls that nobody reported. A tool without an executor here has run where nobody saw
    /// it, and its result is the report; one with an executor was run around it.
    pub(super) fn seen_reports(&mut self, request: &WireRequest, now: Timestamp) -> Vec<Value> {
        let mut reports = Vec::new();
        for output in self.state.news(request.outputs()) {
            let pending = self.state.unsettled();
            let found = pending.filter(|(key, _)| key.id == output.call_id).last();
            let Some((key, tool)) = found.map(|(key, call)| (key.clone(), call.tool.clone()))
            else {
                continue;
            };
            let is_wrapped = match &self.rules.options().executors {
                Executors::Named(tools) => tools.contains(&tool),
                Executors::All => true,
            };
            let ended = match is_wrapped {
                true => ExecutionEnd::Unknown,
                false => ExecutionEnd::Success(Some(output.text.clone())),
            };
            if is_wrapped {
                let call = output.call_id.clone();
                self.push_event("result_without_execution", now, &[("call_id", &call)]);
            }
            reports.extend(self.report_of(&key, &ended));
            self.settle_call(&tool, key, ended);
        }
        reports
    }

    /// Returns the report of an execution's end, for the server; none when it has none for such a call.
    pub fn report(&self, ticket: u64, ended: &ExecutionEnd) -> Option<Value> {
        let (_, call) = self.tickets.get(&ticket)?;
        self.report_of(call.as_ref()?, ended)
    }

    /// Returns the proposal that released the call of a ticket.
    pub fn proposal_of(&self, ticket: u64) -> Option<&str> {
        let (_, call) = self.tickets.get(&ticket)?;
        let remote = self.remote.as_ref()?;
        remote.proposals.get(call.as_ref()?).map(String::as_str)
    }

    fn report_of(&self, key: &CallKey, ended: &ExecutionEnd) -> Option<Value> {
        let proposal = self.remote.as_ref()?.proposals.get(key)?;
        let mut released = self.state.released();
        let (_, call) = released.find(|(known, _)| *known == key)?;
        let (outcome, output, code) = match ended {
            ExecutionEnd::Success(output) => ("success", output.as_deref(), None),
            ExecutionEnd::Failed { code } => ("error", None, Some(code.as_str())),
            ExecutionEnd::Unknown => ("unknown", None, None),
        };
        let parsed = output.and_then(|text| json::read(text, Limits::OUTPUT, Numbers::Any).ok());
        let mut fields = serde_json::Map::new();
        if let Some(parsed) = &parsed {
            for path in self.rules.compiled().output_paths(&call.tool) {
                if let Some(found) = path.find(parsed) {
                    fields.insert(path.to_string(), found.to_serde());
                }
            }
        }
        Some(json!({
            "proposal_id": proposal,
            "call_id": call.id,
            "arguments_digest": call.arguments_digest,
            "outcome": outcome,
            "output_fields": fields,
            "output_digest": output.map(|text| canon::sha256(text.as_bytes())),
            "error_code": code.filter(|code| !code.is_empty()),
        }))
    }

    pub(in crate::driver) fn forget_proposal(&mut self, key: &CallKey) {
        if let Some(remote) = &mut self.remote {
            remote.proposals.remove(key);
        }
    }
}
