//! A governed session for a program that owns its model client.
//!
//! The session takes the client by value, so that using it around the session does not compile. It drives the pipeline:
//! narrow, pre-check, ask the model, judge, ask people, settle, record. Everything from outside comes through [`Hooks`]:
//! time, ids, people, and the record, which must be durable before anything is released.
//!
//! Synchronous and single: one call at a time, judged against the state of that moment.

mod asking;
mod execute;
mod outcome;
mod shared;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use domain::Timestamp;

use crate::capture::{Buffer, Flushed};
use crate::checkpoint::{ApprovalRequest, ApprovalResponse};
use crate::compile::compile;
use crate::cost::Usage;
use crate::decode::is_label;
use crate::driver::join;
use crate::event::{Begin, Event, SeenOutput};
use crate::gate::{Decision, SUBSTITUTE, Settlement, ShadowDelta, refused, settle, settled};
use crate::health::{Health, HostFacts, health};
use crate::narrow::{Narrowing, narrow};
use crate::precheck::{
    Refusal, check_attempt, check_open, check_workflow, precheck, provider_warnings,
};
use crate::request::{OfferedTool, Request, Response, ToolChoice};
use crate::rules::{Feedback, Mode, Options, Permission, Rules};
use crate::schema::unchecked;
use crate::state::{Lifecycle, Snapshot, State};
use crate::workflow::{Offer, Seat, WorkflowEvent};

pub use execute::{Executed, Executor, ToolError};
pub use outcome::{CreateError, ExecuteError, Fault, LabelError, Released};
pub use shared::Handoff;

/// The model client that a session wraps.
pub trait ModelClient {
    /// What the caller sends besides what rules see, such as messages.
    type Body;
    /// How the provider fails.
    type Error;

    /// Asks the model once. Retries inside are part of the attempt.
    ///
    /// # Errors
    /// Whatever the provider or the connection answered; it is passed on as it is.
    fn create(&mut self, planned: &Planned<'_, Self::Body>) -> Result<Answered, Self::Error>;
}

/// A request as it is sent.
#[derive(Debug)]
pub struct Planned<'a, B> {
    /// What the caller sends.
    pub body: &'a B,
    /// The tools that are left.
    pub tools: Vec<&'a OfferedTool>,
    /// What is said about calling them; `Auto` when none is left.
    pub choice: ToolChoice,
    /// What the model is told about tools, in front of everything else.
    pub feedback: Option<String>,
}

/// What a model answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answered {
    /// The response.
    pub response: Response,
    /// What it used; none when the provider did not say.
    pub usage: Option<Usage>,
}

/// Everything a session needs from outside.
pub trait Hooks {
    /// Returns the time.
    fn now(&mut self) -> Timestamp;

    /// Returns an id that was never returned before.
    fn next_id(&mut self) -> String;

    /// Makes an event, and the decision that caused it, durable.
    ///
    /// # Errors
    /// It could not be made durable: the call is handled by the option `on_error`.
    fn record(&mut self, event: &Event, decision: Option<&Decision>) -> Result<(), Fault>;

    /// Asks a person; nothing when nobody answered in time or asking failed.
    fn ask(&mut self, request: &ApprovalRequest) -> Option<ApprovalResponse>;

    /// Hears of a blocked response, those that will be retried included.
    fn blocked(&mut self, _decision: &Decision) {}

    /// Hears of removed tools.
    fn narrowed(&mut self, _narrowing: &Narrowing) {}

    /// Hears what else happens: a name and a word about it.
    fn diagnostic(&mut self, _name: &'static str, _detail: &str) {}

    /// Hears what the session did to its workflow: the other sessions must hear it too.
    fn told_workflow(&mut self, _event: &WorkflowEvent) {}

    /// Returns what other sessions did to the workflow since the last time.
    fn workflow_news(&mut self) -> Vec<WorkflowEvent> {
        Vec::new()
    }
}

/// Stops a session from another thread.
#[derive(Debug, Clone, Default)]
pub struct KillSwitch(Arc<AtomicBool>);

impl KillSwitch {
    /// Stops the session for good; it notices before it asks or releases anything.
    pub fn kill(&self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A governed session around a model client.
#[derive(Debug)]
pub struct Governed<C, H> {
    client: Option<C>,
    hooks: H,
    rules: Rules,
    state: State,
    switch: KillSwitch,
    last_delta: Option<ShadowDelta>,
    warned: BTreeSet<String>,
    schemas_seen: BTreeSet<String>,
    executors: execute::Executors,
    captures: Buffer,
    seat: Option<Seat>,
}

impl<C: ModelClient, H: Hooks> Governed<C, H> {
    /// Starts a session. Touches nothing but the record.
    ///
    /// The client belongs to the session from here on:
    ///
    /// ```
    /// use contracts::Rules;
    /// use contracts::governed::{Governed, Hooks, ModelClient, Planned};
    ///
    /// fn ask<C: ModelClient>(client: &mut C, planned: &Planned<'_, C::Body>) {
    ///     let _ = client.create(planned);
    /// }
    ///
    /// fn govern<C: ModelClient, H: Hooks>(mut client: C, rules: Rules, hooks: H, planned: &Planned<'_, C::Body>) {
    ///     ask(&mut client, planned);
    ///     let _session = Governed::start(client, rules, hooks);
    /// }
    /// ```
    ///
    /// Whoever would go around it does not compile:
    ///
    /// ```compile_fail,E0382
    /// use contracts::Rules;
    /// use contracts::governed::{Governed, Hooks, ModelClient, Planned};
    ///
    /// fn ask<C: ModelClient>(client: &mut C, planned: &Planned<'_, C::Body>) {
    ///     let _ = client.create(planned);
    /// }
    ///
    /// fn govern<C: ModelClient, H: Hooks>(mut client: C, rules: Rules, hooks: H, planned: &Planned<'_, C::Body>) {
    ///     let _session = Governed::start(client, rules, hooks);
    ///     ask(&mut client, planned);
    /// }
    /// ```
    ///
    /// # Errors
    /// The beginning could not be recorded.
    pub fn start(client: C, rules: Rules, hooks: H) -> Result<Self, Fault> {
        Self::begin(client, rules, hooks, None)
    }

    fn begin(client: C, rules: Rules, mut hooks: H, taken: Option<&Offer>) -> Result<Self, Fault> {
        let labels = taken.map_or(&[][..], |offer| &offer.labels);
        let slots = taken.map(|offer| offer.slots.clone()).unwrap_or_default();
        let begin = Begin::under(&rules, hooks.now(), labels, slots);
        let state = State::begin(rules.compiled(), &begin)
            .map_err(|error| Fault::new(error.to_string()))?;
        Ok(Self {
            client: Some(client),
            hooks,
            rules,
            state,
            switch: KillSwitch::default(),
            last_delta: None,
            warned: BTreeSet::new(),
            schemas_seen: BTreeSet::new(),
            executors: execute::Executors::default(),
            captures: Buffer::default(),
            seat: None,
        })
    }

    /// Watches a client without contracts: nothing is judged, changed or delayed.
    ///
    /// # Errors
    /// The id is not one, or the beginning could not be recorded.
    pub fn observe(client: C, session_id: &str, hooks: H) -> Result<Self, Fault> {
        let compiled = compile(&[], None).map_err(|error| Fault::new(error.to_string()))?;
        let mut options = Options::new(session_id);
        options.mode = Mode::LogOnly;
        let rules = Rules::new(Arc::new(compiled), options);
        let rules = rules.map_err(|error| Fault::new(error.to_string()))?;
        Self::start(client, rules, hooks)
    }

    /// Asks the model through the session.
    ///
    /// `outputs` are the results of earlier calls that the request carries.
    ///
    /// # Errors
    /// The session is over, the request or the response is refused, the provider failed, or governance itself did.
    pub fn create(
        &mut self,
        body: &C::Body,
        request: Request,
        outputs: &[SeenOutput],
    ) -> Result<Released, CreateError<C::Error>> {
        self.check_open()?;
        self.expire()?;
        self.take_outputs(outputs)?;
        if self.rules.options().mode == Mode::LogOnly {
            return self.log(body, &request);
        }
        let narrowing = self.narrow_tools(&request)?;
        self.precheck(&request, &narrowing)?;
        let enforces = self.rules.enforces();
        let mut told = narrowing.feedback();
        let mut retries_left = self.rules.options().retries_max;
        self.last_delta = None;
        loop {
            let kept = request
                .tools
                .iter()
                .filter(|tool| !enforces || narrowing.removed(&tool.name).is_none());
            let tools: Vec<&OfferedTool> = kept.collect();
            let inject = enforces && self.rules.options().feedback == Feedback::Inject;
            let planned = Planned {
                body,
                choice: planned_choice(&request.choice, &tools, &narrowing, enforces),
                feedback: told.clone().filter(|_| inject),
                tools,
            };
            let answered = self.attempt(&planned, &request)?;
            let (judgement, proposal) = self.judge(&request, &answered.response)?;
            if !enforces {
                self.tell_difference(&narrowing, &judgement);
            }
            let settlement = settle(
                &self.rules,
                &judgement,
                self.state.attempts() + 1,
                retries_left,
            );
            let cost = self.cost(&request, answered.usage);
            let event = settled(
                &self.rules,
                &judgement,
                &settlement,
                cost,
                proposal.as_deref(),
            );
            let Some(event) = event else {
                return Err(self
                    .fault("a response was settled while people were asked")
                    .into());
            };
            let decision = match &settlement {
                Settlement::Release(decision)
                | Settlement::Strip { decision, .. }
                | Settlement::Reject(decision)
                | Settlement::Retry { decision, .. } => decision.clone(),
                Settlement::Wait => {
                    return Err(self
                        .fault("a response was settled while people were asked")
                        .into());
                }
            };
            self.commit(&event, Some(&decision))?;
            self.capture(&request, &answered.response, Some(&decision));
            if enforces && decision.reason.is_some() {
                self.hooks.blocked(&decision);
            }
            match settlement {
                Settlement::Release(_) => {
                    return Ok(Released::whole(answered.response, decision));
                }
                Settlement::Strip { removed, empty, .. } => {
                    let substitute = empty.then_some(SUBSTITUTE);
                    return Ok(Released::stripped(
                        answered.response,
                        decision,
                        &removed,
                        substitute,
                    ));
                }
                Settlement::Reject(_) | Settlement::Wait => {
                    return Err(CreateError::Contract(Box::new(decision)));
                }
                Settlement::Retry { feedback, .. } => {
                    retries_left -= 1;
                    if let Err(refusal) = check_open(&self.state)
                        .and_then(|()| check_attempt(&self.rules, &self.state))
                    {
                        return Err(match refusal {
                            Refusal::Blocked { .. } => {
                                CreateError::Contract(Box::new(decision.stop_retry(&refusal)))
                            }
                            refusal => CreateError::refused(refusal),
                        });
                    }
                    self.hooks
                        .diagnostic("retried", decision.detail.as_deref().unwrap_or_default());
                    told = join(narrowing.feedback(), feedback);
                }
            }
        }
    }

    /// Stops the session for good.
    pub fn kill(&mut self, cause: &str) {
        self.note(Event::Killed {
            cause: cause.to_owned(),
        });
    }

    /// Returns a switch that stops the session from another thread.
    pub fn kill_switch(&self) -> KillSwitch {
        self.switch.clone()
    }

    /// Ends the session in order and gives the client back.
    pub fn restore(&mut self) -> Option<C> {
        self.note(Event::Restored);
        self.client.take()
    }

    /// Adds a label for good.
    ///
    /// # Errors
    /// It is not a label, or the session has 64 of them.
    pub fn add_label(&mut self, label: &str) -> Result<(), LabelError> {
        if !is_label(label) {
            return Err(LabelError::Malformed);
        }
        let present = self.state.labels().any(|other| other == label);
        if !present && self.state.labels().count() >= 64 {
            return Err(LabelError::TooMany);
        }
        self.note(Event::LabelAdded {
            label: label.to_owned(),
        });
        Ok(())
    }

    /// Keeps only these tools, on top of all other rules.
    pub fn narrow(&mut self, tools: &[&str]) {
        let tools = tools.iter().map(ToString::to_string).collect();
        self.note(Event::Filtered { tools: Some(tools) });
    }

    /// Clears the manual filter; it brings back nothing that a rule removed.
    pub fn widen(&mut self) {
        self.note(Event::Filtered { tools: None });
    }

    /// Returns what a program may see of the state.
    pub fn state(&self) -> Snapshot {
        self.state.snapshot(self.rules.compiled())
    }

    /// Returns the health of the session.
    pub fn health(&self, around: HostFacts) -> Health {
        health(&self.rules, &self.state, around)
    }

    /// Returns the last narrowing.
    pub fn last_narrowing(&self) -> Option<&Narrowing> {
        self.state.last_narrowing.as_ref()
    }

    /// Returns what enforcement would have done to the last call; shadow only.
    pub fn last_shadow_delta(&self) -> Option<&ShadowDelta> {
        self.last_delta.as_ref()
    }

    /// Hands over what was captured since the last time, with the counts of all times.
    pub fn flush(&mut self) -> (Vec<serde_json::Value>, Flushed) {
        (self.captures.take(), self.captures.counts())
    }

    /// Returns what the session calls out to.
    pub fn hooks(&self) -> &H {
        &self.hooks
    }

    fn check_open(&mut self) -> Result<(), CreateError<C::Error>> {
        self.hear_workflow();
        self.look_at_switch();
        check_open(&self.state).map_err(CreateError::refused)
    }

    fn look_at_switch(&mut self) {
        if self.switch.0.load(Ordering::SeqCst) && *self.state.lifecycle() == Lifecycle::Open {
            self.kill("kill switch");
        }
    }

    /// Applies a control action; one on a session that is over changes nothing and is told.
    fn note(&mut self, event: Event) {
        if *self.state.lifecycle() != Lifecycle::Open {
            self.hooks.diagnostic("ignored", "the session is over");
            return;
        }
        if let Err(fault) = self.hooks.record(&event, None) {
            // It takes effect at once: a kill that waits for a disk is not a kill.
            self.hooks.diagnostic("fault", fault.message());
        }
        self.apply(&event);
    }

    fn apply(&mut self, event: &Event) {
        // Invariant: only events that this session can have are made here.
        if let Err(error) = self.state.advance(self.rules.compiled(), event) {
            self.hooks.diagnostic("fault", &error.to_string());
        }
        self.tell_workflow();
    }

    fn fault(&mut self, message: &str) -> Fault {
        let event = Event::Failed {
            at: self.hooks.now(),
            attempted: false,
        };
        self.hooks.diagnostic("fault", message);
        self.apply(&event);
        Fault::new(message.to_owned())
    }

    /// Makes an event durable, then applies it. A record that fails stops the call unless `on_error` is `allow`; then
    /// the call is counted as unguarded, and the last allowed one kills.
    fn commit(&mut self, event: &Event, decision: Option<&Decision>) -> Result<(), Fault> {
        if let Err(fault) = self.hooks.record(event, decision) {
            match self.rules.options().on_error {
                Permission::Block => return Err(self.fault(fault.message())),
                Permission::Allow => {
                    self.hooks.diagnostic("unguarded_call", fault.message());
                    self.apply(event);
                    // What counts is the call, not each of its records.
                    if matches!(event, Event::Responded(_)) {
                        let last =
                            self.state.unguarded + 1 >= self.rules.options().unguarded_calls_max;
                        self.apply(&Event::Unguarded { last });
                    }
                    return Ok(());
                }
            }
        }
        self.apply(event);
        Ok(())
    }

    fn expire(&mut self) -> Result<(), CreateError<C::Error>> {
        let now = self.hooks.now();
        for call in self.state.expired(now) {
            self.commit(&Event::Expired { call }, None)?;
        }
        Ok(())
    }

    fn take_outputs(&mut self, outputs: &[SeenOutput]) -> Result<(), CreateError<C::Error>> {
        if outputs.is_empty() {
            return Ok(());
        }
        for (name, call) in self.state.output_diagnostics(outputs) {
            self.hooks.diagnostic(name, &call);
        }
        let outputs = outputs.to_vec();
        self.commit(&Event::OutputsSeen { outputs }, None)?;
        Ok(())
    }

    fn narrow_tools(&mut self, request: &Request) -> Result<Narrowing, CreateError<C::Error>> {
        let narrowing = narrow(&self.rules, &self.state, &request.tools);
        let event = Event::Narrowed {
            narrowing: narrowing.clone(),
        };
        self.commit(&event, None)?;
        if !narrowing.removed.is_empty() {
            self.hooks.narrowed(&narrowing);
        }
        Ok(narrowing)
    }

    fn precheck(
        &mut self,
        request: &Request,
        narrowing: &Narrowing,
    ) -> Result<(), CreateError<C::Error>> {
        let checked = precheck(&self.rules, &self.state, request, narrowing);
        let checked = checked.and_then(|()| check_workflow(self.seat.as_ref()));
        let Err(refusal) = checked else {
            let seen = &mut self.schemas_seen;
            for (tool, keywords) in unchecked(&self.rules, &request.tools, seen) {
                let detail = format!("{tool}: {keywords}");
                self.hooks.diagnostic("schema_keyword_ignored", &detail);
            }
            let model = format!("{}/{}", request.provider, request.model);
            for pattern in provider_warnings(&self.rules, &request.provider, &request.model) {
                if self.warned.insert(model.clone()) {
                    self.hooks.diagnostic("replay_provider_warning", &pattern);
                }
            }
            return Ok(());
        };
        if !self.rules.enforces() {
            self.hooks.diagnostic("violation", refusal.check().as_str());
            return Ok(());
        }
        if let Some(decision) = refused(&self.rules, &self.state, &refusal) {
            let at = self.hooks.now();
            self.commit(&Event::Refused { at }, Some(&decision))?;
            self.hooks.blocked(&decision);
            return Err(CreateError::Contract(Box::new(decision)));
        }
        Err(CreateError::refused(refusal))
    }
}

/// What is said about calling tools once some are gone.
fn planned_choice(
    choice: &ToolChoice,
    tools: &[&OfferedTool],
    narrowing: &Narrowing,
    enforces: bool,
) -> ToolChoice {
    if !enforces {
        return choice.clone();
    }
    if tools.is_empty() {
        return ToolChoice::Auto;
    }
    match choice {
        ToolChoice::AllowedOnly(names) => {
            let kept = names
                .iter()
                .filter(|name| narrowing.removed(name).is_none());
            ToolChoice::AllowedOnly(kept.cloned().collect())
        }
        ToolChoice::Auto | ToolChoice::None | ToolChoice::Required | ToolChoice::Named(_) => {
            choice.clone()
        }
    }
}
