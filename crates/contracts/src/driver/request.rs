//! Before the model: a request is read, narrowed, checked, and written as it is to be sent.

use std::sync::Arc;

use domain::Timestamp;

use super::{DriveError, Driver, Open, PlannedRequest};
use crate::event::Event;
use crate::gate::refused;
use crate::narrow::{Narrowing, is_narrowed, narrow};
use crate::pattern::PatternBudget;
use crate::precheck::{Refusal, check_workflow, precheck, provider_warnings};
use crate::request::Request;
use crate::rules::{Feedback, Mode};
use crate::schema::SchemaForm;
use crate::wire::{Plan, Wire, WireRequest};

/// Tools whose schemas are remembered.
const UNCHECKED_MAX: usize = 1_024;

impl Driver {
    /// Plans a request: narrowed, checked, and written as it is to be sent.
    ///
    /// # Errors
    /// The session is over, or the request is refused.
    pub fn plan(
        &mut self,
        wire: Wire,
        body: &[u8],
        now: Timestamp,
    ) -> Result<PlannedRequest, DriveError> {
        let mut request = self.read_open_request(wire, body, now)?;
        self.take_outputs(&request, now);
        let log_only = self.rules.options().mode == Mode::LogOnly;
        let mut narrowing = Arc::new(Narrowing::default());
        let mut told = None;
        if !log_only {
            self.look_at_schemas(&mut request, now)?;
            narrowing = self.narrowed(&request);
            self.precheck(&request, &narrowing, now)?;
            told = narrowing.feedback();
        }
        let body = self.written(&mut request, &narrowing, told.as_deref());
        let attempt = self.begin(request, Arc::clone(&narrowing), told);
        Ok(PlannedRequest {
            attempt,
            body,
            narrowing,
        })
    }

    /// Reads a request of a session that is open.
    pub(super) fn read_open_request(
        &mut self,
        wire: Wire,
        body: &[u8],
        now: Timestamp,
    ) -> Result<WireRequest, DriveError> {
        self.check_open()?;
        self.check_records()?;
        self.expire(now);
        let offered = self.offered.take();
        let created = self.released.ids();
        let request = WireRequest::read_after(wire, body, created, offered);
        if !request.is_read() && !self.rules.enforces() {
            self.push_event("request_unread", now, &[]);
        }
        Ok(request)
    }

    /// Takes a request as under way. Returns its number.
    pub(super) fn begin(
        &mut self,
        request: WireRequest,
        narrowing: Arc<Narrowing>,
        told: Option<String>,
    ) -> u64 {
        let attempt = self.next_attempt;
        self.next_attempt += 1;
        let open = Open {
            request,
            narrowing,
            retries_left: self.rules.options().retries_max,
            told,
            waiting: None,
            proposed: None,
        };
        self.open.insert(attempt, open);
        attempt
    }

    /// Narrows the tools of a request.
    fn narrowed(&mut self, request: &WireRequest) -> Arc<Narrowing> {
        let tools = &request.request().tools;
        let last = self.narrowed.take();
        let last = last.filter(|last| is_narrowed(&self.rules, &self.state, tools, last));
        let narrowing = last.unwrap_or_else(|| Arc::new(narrow(&self.rules, &self.state, tools)));
        self.narrow_to(&narrowing);
        narrowing
    }

    /// Takes a narrowing as the session's last one.
    pub(super) fn narrow_to(&mut self, narrowing: &Arc<Narrowing>) {
        let is_known = self.state.last_narrowing.as_ref() == Some(&**narrowing);
        // Where nobody keeps what happens, what changes nothing need not happen.
        if !(is_known && self.keeps_nothing) {
            let event = Event::Narrowed {
                narrowing: Narrowing::clone(narrowing),
            };
            self.commit(event, None);
        }
        self.narrowed = Some(Arc::clone(narrowing));
    }

    fn take_outputs(&mut self, request: &WireRequest, now: Timestamp) {
        if request.outputs().is_empty() {
            return;
        }
        for (name, call) in self.state.output_diagnostics(request.outputs()) {
            self.push_event(name, now, &[("call_id", &call)]);
        }
        let outputs = self.state.news(request.outputs());
        if !outputs.is_empty() {
            self.commit(Event::OutputsSeen { outputs }, None);
        }
    }

    fn precheck(
        &mut self,
        request: &WireRequest,
        narrowing: &Narrowing,
        now: Timestamp,
    ) -> Result<(), DriveError> {
        let request = request.request();
        let checked = precheck(&self.rules, &self.state, request, narrowing);
        let checked = checked.and_then(|()| self.check_attempts());
        let checked = checked.and_then(|()| check_workflow(self.seat.as_ref()));
        let Err(refusal) = checked else {
            self.warn_of_provider(request, now);
            return Ok(());
        };
        if !self.rules.enforces() {
            self.push_event("violation", now, &[("check", refusal.check().as_str())]);
            return Ok(());
        }
        Err(self.refuse(&refusal, now))
    }

    /// Refuses a request: with a decision where contracts do.
    pub(super) fn refuse(&mut self, refusal: &Refusal, now: Timestamp) -> DriveError {
        match refused(&self.rules, &self.state, refusal) {
            Some(decision) => {
                self.commit(Event::Refused { at: now }, Some(decision.clone()));
                DriveError::Contract(Box::new(decision))
            }
            None => DriveError::from(refusal.clone()),
        }
    }

    /// Tells once about a model that contracts warn of.
    pub(super) fn warn_of_provider(&mut self, request: &Request, now: Timestamp) {
        for pattern in provider_warnings(&self.rules, &request.provider, &request.model) {
            let model = format!("{}/{}", request.provider, request.model);
            if self.warned.insert(model) {
                self.push_event("replay_provider_warning", now, &[("pattern", &pattern)]);
            }
        }
    }

    /// Looks at the schemas that calls will be held to. One that is not a schema would ask nothing: the request is refused. Keywords
    /// that nothing checks are told once per tool, and again where they are others. Tools that are the same as in the request
    /// before are not looked at again.
    fn look_at_schemas(
        &mut self,
        request: &mut WireRequest,
        now: Timestamp,
    ) -> Result<(), DriveError> {
        if request.has_known_tools() {
            return Ok(());
        }
        let compiled = self.rules.compiled();
        request.read_schemas(|name| compiled.reads_schema(name));
        let mut patterns = PatternBudget::of_schemas();
        let forms = request.request().tools.iter().filter_map(|tool| {
            let form = compiled.schema_form(&tool.name, tool.schema.as_ref()?, &mut patterns)?;
            Some((tool.name.clone(), form))
        });
        let forms: Vec<(String, SchemaForm)> = forms.collect();
        for (tool, SchemaForm { ignored, wrong, .. }) in forms {
            if let Some(wrong) = wrong.first() {
                if self.rules.enforces() {
                    let member = format!("tools: the schema of `{tool}`, {wrong}");
                    return Err(DriveError::Unsupported { member });
                }
                self.push_event("schema_invalid", now, &[("tool", &tool), ("detail", wrong)]);
            }
            let is_told = ignored.is_empty() || self.unchecked.get(&tool) == Some(&ignored);
            if is_told || self.unchecked.len() >= UNCHECKED_MAX {
                continue;
            }
            let keywords: Vec<&str> = ignored.iter().map(String::as_str).collect();
            let data = [("tool", &*tool), ("keywords", &*keywords.join(", "))];
            self.push_event("schema_keyword_ignored", now, &data);
            self.unchecked.insert(tool, ignored);
        }
        Ok(())
    }

    /// Writes a request as it is sent, and shows it to the rules that look at requests.
    pub(super) fn written(
        &self,
        request: &mut WireRequest,
        narrowing: &Narrowing,
        told: Option<&str>,
    ) -> Vec<u8> {
        let enforces = self.rules.enforces();
        let inject = enforces && self.rules.options().feedback == Feedback::Inject;
        let body = request.planned(Plan {
            narrowing: enforces.then_some(narrowing),
            feedback: told.filter(|_| inject),
            count_usage: self.counts_usage(),
        });
        if self.looks_at_requests {
            request.look_at(&body);
        }
        body
    }
}
