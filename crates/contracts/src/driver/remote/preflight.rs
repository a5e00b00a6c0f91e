//! Before the model: what the server is asked about a request, and the request as its answer says.

use std::sync::Arc;

use domain::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use super::PreflightRequest;
use crate::driver::response::join;
use crate::driver::{DriveError, Driver, PlannedRequest};
use crate::event::Event;
use crate::gate::Decision;
use crate::narrow::{Narrowing, RemovedTool};
use crate::precheck;
use crate::request::ToolChoice;
use crate::rules::Mode;
use crate::wire::{Wire, WireRequest};

#[derive(Deserialize)]
struct PreflightAnswer {
    allowed_tools: Vec<String>,
    removed: Vec<RemovedTool>,
}

impl Driver {
    /// Reads a request and says what the server is to be asked.
    ///
    /// # Errors
    /// The session is over, or the request cannot be judged.
    pub fn prepare_preflight(
        &mut self,
        wire: Wire,
        body: &[u8],
        now: Timestamp,
    ) -> Result<PreflightRequest, DriveError> {
        let mut request = self.read_open_request(wire, body, now)?;
        if let Some(member) = request.request().unsupported.clone() {
            return Err(DriveError::Unsupported { member });
        }
        if self.looks_at_requests {
            request.look_at(body);
        }
        request.read_schemas(|_| true);
        let reports = self.seen_reports(&request, now);
        let preflight = preflight(&request, self.looks_at_requests);
        let attempt = self.begin(request, Arc::default(), None);
        Ok(PreflightRequest {
            attempt,
            preflight,
            reports,
        })
    }

    /// Plans a request as the server's answer to the preflight says.
    ///
    /// # Errors
    /// There is no such request, the answer cannot be read, or what is left of the tools is not what the request demands.
    pub fn planned_by(
        &mut self,
        attempt: u64,
        answer: &Value,
        now: Timestamp,
    ) -> Result<PlannedRequest, DriveError> {
        let mut open = self.open.remove(&attempt).ok_or(DriveError::Unknown)?;
        let answer = PreflightAnswer::deserialize(answer).map_err(|_| DriveError::Unfit)?;
        self.check_open()?;
        let narrowing = Arc::new(Narrowing {
            allowed: answer.allowed_tools,
            removed: answer.removed,
        });
        if self.rules.options().mode != Mode::LogOnly {
            self.narrow_to(&narrowing);
        }
        let request = open.request.request();
        let listed = matches!(request.choice, ToolChoice::AllowedOnly(_));
        if listed
            && self.rules.enforces()
            && let Err(refusal) = precheck::check_choice(request, &narrowing)
        {
            return Err(self.refuse(&refusal, now));
        }
        self.warn_of_provider(request, now);
        let told = join(narrowing.feedback(), open.told.take());
        open.narrowing = Arc::clone(&narrowing);
        let body = self.written(&mut open.request, &narrowing, told.as_deref());
        self.open.insert(attempt, open);
        Ok(PlannedRequest {
            attempt,
            body,
            narrowing,
        })
    }

    /// Takes the server's refusal of a request.
    pub fn refused_by(&mut self, attempt: u64, problem: &Value, now: Timestamp) -> DriveError {
        self.open.remove(&attempt);
        let text = |name: &str| problem.get(name).and_then(Value::as_str);
        if let Some(decision) = problem.get("decision")
            && let Ok(decision) = Decision::deserialize(decision)
        {
            self.commit(Event::Refused { at: now }, Some(decision.clone()));
            return DriveError::Contract(Box::new(decision));
        }
        match (text("code"), text("pattern"), text("member")) {
            (Some("provider_incompatible"), Some(pattern), _) => DriveError::ProviderIncompatible {
                pattern: pattern.to_owned(),
            },
            (_, _, Some(member)) => DriveError::Unsupported {
                member: member.to_owned(),
            },
            _ => DriveError::Unknown,
        }
    }
}

pub(super) fn preflight(request: &WireRequest, shows_request: bool) -> Value {
    let text = request.text();
    let digest = canon::sha256(text.as_bytes());
    let request = request.request();
    let tools = request.tools.iter().map(|tool| {
        json!({
            "name": tool.name,
            "schema": tool.schema.as_ref().map(crate::value::Value::to_serde),
            "hosted": tool.hosted,
        })
    });
    let forced = match &request.choice {
        ToolChoice::Named(tool) => Some(tool),
        ToolChoice::Auto | ToolChoice::None | ToolChoice::Required | ToolChoice::AllowedOnly(_) => {
            None
        }
    };
    json!({
        "offered_tools": tools.collect::<Vec<_>>(),
        "request_digest": digest,
        "provider": request.provider,
        "model": request.model,
        "forced_tool": forced,
        "request": shows_request.then(|| request.view.to_serde()),
    })
}
