//! A governed session for a program that owns its model client: a [`Driver`] that does its own waiting.
//!
//! The session takes the client by value, so that using it around the session does not compile. Everything else from
//! outside comes through [`Hooks`]: time, people, and the record, which must be durable before anything is released. What
//! is judged and what becomes of it is the driver's alone.
//!
//! Synchronous and single: one call at a time, judged against the state of that moment.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use domain::Timestamp;

use crate::capture::CaptureCounts;
use crate::checkpoint::{ApprovalRequest, ApprovalResponse};
use crate::compile::compile;
use crate::driver::{
    AttemptFailure, Control, ControlError, Diagnostic, DriveError, Driver, ExecutionEnd,
    JudgedResponse, PlannedRequest, Record, Ticket,
};
use crate::event::CallKey;
use crate::execute::ExecutionRefusal;
use crate::gate::Decision;
use crate::narrow::Narrowing;
use crate::rules::{Mode, Options, Permission, Rules};
use crate::state::{ImpossibleEvent, Lifecycle};
use crate::wire::Wire;
use crate::workflow::{
    HandoffRequest, Offer, Seat, WorkflowEvent, WorkflowRefusal, WorkflowSnapshot,
};

/// The model client that a session wraps.
pub trait ModelClient {
    /// How the provider fails.
    type Error;

    /// Sends a request as it is, once. Retries inside are part of the attempt.
    ///
    /// # Errors
    /// Whatever the connection answered; it is passed on as it is.
    fn send(&mut self, wire: Wire, body: &[u8]) -> Result<ModelAnswer, Self::Error>;
}

/// What a model answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelAnswer {
    /// The bytes of the whole response.
    pub body: Vec<u8>,
    /// Whether they are server-sent events.
    pub is_sse: bool,
}

/// Everything else a session needs from outside.
pub trait Hooks {
    /// Returns the time.
    fn now(&mut self) -> Timestamp;

    /// Makes something that happened durable. What could not be made durable is handed in again later, before what follows.
    ///
    /// # Errors
    /// It is not durable: the call is handled by the option `on_error`.
    fn record(&mut self, record: &Record) -> Result<(), Fault>;

    /// Asks a person; nothing when nobody answered in time or asking failed.
    fn ask(&mut self, request: &ApprovalRequest) -> Option<ApprovalResponse>;

    /// Hears of a blocked response, those that will be retried included.
    fn blocked(&mut self, _decision: &Decision) {}

    /// Hears of removed tools.
    fn narrowed(&mut self, _narrowing: &Narrowing) {}

    /// Hears what else happens.
    fn diagnostic(&mut self, _diagnostic: &Diagnostic) {}

    /// Hears what the session did to its workflow: the other sessions must hear it too.
    fn workflow_changed(&mut self, _event: &WorkflowEvent) {}

    /// Returns what other sessions did to the workflow since the last time.
    fn workflow_news(&mut self) -> Vec<WorkflowEvent> {
        Vec::new()
    }
}

/// Governance itself failed: the record, or a rule of our own.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("governance failed: {0}")]
pub struct Fault(pub String);

/// Why a call gave no response.
#[derive(Debug, thiserror::Error)]
pub enum CreateError<E> {
    /// The session is over, or the request or its response is refused.
    #[error(transparent)]
    Refused(#[from] DriveError),
    /// The provider failed; passed on as it is.
    #[error("the provider failed")]
    Provider(E),
    /// Governance itself failed.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// A response that was released.
#[derive(Debug, Clone, PartialEq)]
pub struct Released {
    /// The response, without the calls that were taken out.
    pub body: Vec<u8>,
    /// The record; none in log-only.
    pub decision: Option<Decision>,
}

/// Runs a tool: the call and its arguments as JSON in, the output as text out.
pub type Executor = Box<dyn FnMut(&CallKey, &str) -> ExecutorEnd + Send>;

/// How an executor ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecutorEnd {
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

/// Why an execution gave no output.
#[derive(Debug, thiserror::Error)]
pub enum ExecuteError {
    /// No executor of this name.
    #[error("the session has no executor `{0}`")]
    UnknownTool(String),
    /// A check refused it.
    #[error("the execution was refused")]
    Refused(ExecutionRefusal),
    /// The executor failed; passed on as it is.
    #[error("the tool failed: {0}")]
    Tool(ToolError),
    /// The executor did not end in time: what it did is not known.
    #[error("the tool did not end in time")]
    TimedOut,
    /// Governance itself failed.
    #[error(transparent)]
    Fault(#[from] Fault),
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
pub struct Governed<C, H> {
    client: Option<C>,
    hooks: H,
    driver: Driver,
    switch: KillSwitch,
    executors: BTreeMap<String, Executor>,
    /// The number of the first record that is not durable.
    durable: u64,
    /// True once a record of the call under way could not be made durable and the options let it pass.
    is_unguarded: bool,
}

impl<C, H> fmt::Debug for Governed<C, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Governed").field(&self.driver).finish()
    }
}

impl<C: ModelClient, H: Hooks> Governed<C, H> {
    /// Starts a session. Touches nothing.
    ///
    /// The client belongs to the session from here on:
    ///
    /// ```
    /// use contracts::Rules;
    /// use contracts::governed::{Governed, Hooks, ModelClient};
    /// use contracts::wire::Wire;
    ///
    /// fn ask<C: ModelClient>(client: &mut C) {
    ///     let _ = client.send(Wire::OpenAiChat, b"{}");
    /// }
    ///
    /// fn govern<C: ModelClient, H: Hooks>(mut client: C, rules: Rules, hooks: H) {
    ///     ask(&mut client);
    ///     let _session = Governed::start(client, rules, hooks);
    /// }
    /// ```
    ///
    /// Whoever would go around it does not compile:
    ///
    /// ```compile_fail,E0382
    /// use contracts::Rules;
    /// use contracts::governed::{Governed, Hooks, ModelClient};
    /// use contracts::wire::Wire;
    ///
    /// fn ask<C: ModelClient>(client: &mut C) {
    ///     let _ = client.send(Wire::OpenAiChat, b"{}");
    /// }
    ///
    /// fn govern<C: ModelClient, H: Hooks>(mut client: C, rules: Rules, hooks: H) {
    ///     let _session = Governed::start(client, rules, hooks);
    ///     ask(&mut client);
    /// }
    /// ```
    ///
    /// # Errors
    /// The session cannot begin under these rules.
    pub fn start(client: C, rules: Rules, hooks: H) -> Result<Self, Fault> {
        Self::begin(client, hooks, |at| Driver::open(rules, at))
    }

    /// Starts the first session of a workflow.
    ///
    /// # Errors
    /// As [`Governed::start`].
    pub fn start_root(client: C, rules: Rules, hooks: H, seat: Seat) -> Result<Self, Fault> {
        Self::begin(client, hooks, |at| Driver::open_root(rules, at, seat))
    }

    /// Starts the session that took an offer, with the labels of its parent and the slots that were carried.
    ///
    /// # Errors
    /// As [`Governed::start`].
    pub fn start_child(
        client: C,
        rules: Rules,
        hooks: H,
        seat: Seat,
        offer: &Offer,
    ) -> Result<Self, Fault> {
        Self::begin(client, hooks, |at| {
            Driver::open_child(rules, at, seat, offer)
        })
    }

    /// Watches a client without contracts: nothing is judged, changed or delayed.
    ///
    /// # Errors
    /// The id is not one.
    pub fn observe(client: C, session_id: &str, hooks: H) -> Result<Self, Fault> {
        let compiled = compile(&[], None).map_err(|error| Fault(error.to_string()))?;
        let mut options = Options::new(session_id);
        options.mode = Mode::LogOnly;
        let rules = Rules::new(Arc::new(compiled), options);
        let rules = rules.map_err(|error| Fault(error.to_string()))?;
        Self::start(client, rules, hooks)
    }

    fn begin(
        client: C,
        mut hooks: H,
        open: impl FnOnce(Timestamp) -> Result<Driver, ImpossibleEvent>,
    ) -> Result<Self, Fault> {
        let driver = open(hooks.now()).map_err(|error| Fault(error.to_string()))?;
        let mut session = Self {
            client: Some(client),
            hooks,
            driver,
            switch: KillSwitch::default(),
            executors: BTreeMap::new(),
            durable: 0,
            is_unguarded: false,
        };
        session.tell();
        Ok(session)
    }

    /// Asks the model through the session.
    ///
    /// # Errors
    /// The session is over, the request or the response is refused, the provider failed, or governance itself did.
    pub fn create(&mut self, wire: Wire, body: &[u8]) -> Result<Released, CreateError<C::Error>> {
        self.hear();
        let now = self.hooks.now();
        let planned = self.driver.plan(wire, body, now);
        let attempt = planned.as_ref().ok().map(|planned| planned.attempt);
        let kept = self.keep();
        let created = match kept {
            Ok(()) => planned
                .map_err(CreateError::Refused)
                .and_then(|planned| self.drive(wire, planned)),
            Err(fault) => Err(fault.into()),
        };
        if let (Some(attempt), Err(CreateError::Fault(_))) = (attempt, &created) {
            // What is still open of the request is closed; if nothing is, there is nothing to close.
            let now = self.hooks.now();
            let _ = self.driver.failed(attempt, AttemptFailure::Withdrawn, now);
        }
        if std::mem::take(&mut self.is_unguarded) {
            let now = self.hooks.now();
            self.driver.faulted(now);
        }
        if let Err(CreateError::Refused(DriveError::Contract(decision))) = &created {
            self.hooks.blocked(decision);
        }
        self.tell();
        created
    }

    /// Asks the model, and people, until the session has decided.
    fn drive(
        &mut self,
        wire: Wire,
        planned: PlannedRequest,
    ) -> Result<Released, CreateError<C::Error>> {
        if !planned.narrowing.removed.is_empty() {
            self.hooks.narrowed(&planned.narrowing);
        }
        let attempt = planned.attempt;
        let mut judged = self.send(wire, attempt, &planned.body)?;
        loop {
            judged = match judged {
                JudgedResponse::Released { body, decision } => {
                    let blocked = decision.iter().filter(|decision| decision.reason.is_some());
                    for decision in blocked.filter(|_| self.driver.rules().enforces()) {
                        self.hooks.blocked(decision);
                    }
                    return Ok(Released { body, decision });
                }
                JudgedResponse::Rejected(decision) => {
                    return Err(DriveError::Contract(decision).into());
                }
                JudgedResponse::Retried { body, decision } => {
                    self.hooks.blocked(&decision);
                    self.send(wire, attempt, &body)?
                }
                JudgedResponse::Asked(question) => {
                    let answer = self.hooks.ask(&question);
                    self.step(|driver, now| {
                        driver.answer(&question.checkpoint_id, answer.as_ref(), now)
                    })?
                }
            };
        }
    }

    /// Asks the model once and judges what it answers.
    fn send(
        &mut self,
        wire: Wire,
        attempt: u64,
        body: &[u8],
    ) -> Result<JudgedResponse, CreateError<C::Error>> {
        let client = self.client.as_mut().ok_or(DriveError::Inactive)?;
        match client.send(wire, body) {
            Ok(ModelAnswer { body, is_sse }) => {
                self.step(|driver, now| driver.judge(attempt, &body, is_sse, now))
            }
            Err(error) => {
                self.step(|driver, now| driver.failed(attempt, AttemptFailure::Provider, now))?;
                Err(CreateError::Provider(error))
            }
        }
    }

    /// Goes on with what came from outside. The record is durable when this returns.
    fn step<T>(
        &mut self,
        go_on: impl FnOnce(&mut Driver, Timestamp) -> Result<T, DriveError>,
    ) -> Result<T, CreateError<C::Error>> {
        self.hear();
        let now = self.hooks.now();
        let result = go_on(&mut self.driver, now);
        self.keep()?;
        Ok(result?)
    }

    /// Makes what happened durable. A record that fails stops the call unless `on_error` is `allow`; then the call is
    /// counted as unguarded, and the last allowed one kills.
    fn keep(&mut self) -> Result<(), Fault> {
        self.tell();
        let mut failed = None;
        for record in self.driver.records(self.durable) {
            if let Err(fault) = self.hooks.record(record) {
                failed = Some(fault);
                break;
            }
            self.durable = record.seq + 1;
        }
        let Some(fault) = failed else { return Ok(()) };
        if self.driver.rules().options().on_error == Permission::Allow {
            self.is_unguarded = true;
            return Ok(());
        }
        let now = self.hooks.now();
        self.driver.faulted(now);
        Err(fault)
    }

    /// Tells the program and the workflow what happened.
    fn tell(&mut self) {
        for diagnostic in self.driver.diagnostics() {
            self.hooks.diagnostic(&diagnostic);
        }
        for event in self.driver.workflow_news() {
            self.hooks.workflow_changed(&event);
        }
    }

    /// Takes in what others did: the other sessions of the workflow, and the switch.
    fn hear(&mut self) {
        for event in self.hooks.workflow_news() {
            let now = self.hooks.now();
            if let Err(refusal) = self.driver.apply_event(&event, now) {
                let detail = refusal.to_string();
                self.driver.push_event("fault", now, &[("detail", &detail)]);
            }
        }
        let is_open = *self.driver.inner_state().lifecycle() == Lifecycle::Open;
        if is_open && self.switch.0.load(Ordering::SeqCst) {
            let cause = "kill switch".to_owned();
            let now = self.hooks.now();
            // Only a label can be refused.
            let _ = self.driver.control(Control::Kill { cause }, now);
        }
    }

    /// Applies an action. It takes effect at once: a kill that waits for a disk is not a kill.
    ///
    /// # Errors
    /// The session has all the labels it can have.
    pub fn control(&mut self, control: Control) -> Result<(), ControlError> {
        let now = self.hooks.now();
        let done = self.driver.control(control, now);
        // What is not durable now is handed in again with the next call.
        let _ = self.keep();
        self.is_unguarded = false;
        done
    }

    /// Returns a switch that stops the session from another thread.
    pub fn kill_switch(&self) -> KillSwitch {
        self.switch.clone()
    }

    /// Ends the session in order and gives the client back.
    pub fn restore(&mut self) -> Option<C> {
        // Only a label can be refused.
        let _ = self.control(Control::Restore);
        self.client.take()
    }

    /// Gives the session the executor of a tool. The options must name the tool among the executors.
    pub fn wrap(&mut self, tool: &str, executor: Executor) {
        self.executors.insert(tool.to_owned(), executor);
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
        let Some(mut executor) = self.executors.remove(tool) else {
            return Err(ExecuteError::UnknownTool(tool.to_owned()));
        };
        let ended = self.execute_with(&mut executor, tool, call_id, arguments);
        self.executors.insert(tool.to_owned(), executor);
        self.is_unguarded = false;
        ended
    }

    fn execute_with(
        &mut self,
        executor: &mut Executor,
        tool: &str,
        call_id: Option<&str>,
        arguments: &str,
    ) -> Result<Option<String>, ExecuteError> {
        self.hear();
        let now = self.hooks.now();
        let allowed = self.driver.execute(tool, arguments, call_id, now);
        let kept = self.keep();
        let ticket = match allowed {
            Ok(ticket) => ticket,
            Err((refusal, _)) => {
                kept?;
                return Err(ExecuteError::Refused(refusal));
            }
        };
        let executed = match kept {
            Ok(()) => run(executor, &ticket, call_id, arguments),
            // It did not run, and the call is over: the model can ask again.
            Err(fault) => {
                let code = "fault".to_owned();
                let _ = self
                    .driver
                    .settle(ticket.ticket, ExecutionEnd::Failed { code });
                return Err(fault.into());
            }
        };
        let ended = match &executed {
            ExecutorEnd::Success(output) => ExecutionEnd::Success(output.clone()),
            ExecutorEnd::Failed(ToolError { code, .. }) => {
                ExecutionEnd::Failed { code: code.clone() }
            }
            ExecutorEnd::TimedOut => ExecutionEnd::Unknown,
        };
        // Invariant: the ticket was given above, and nobody else has it.
        let _ = self.driver.settle(ticket.ticket, ended);
        self.keep()?;
        match executed {
            ExecutorEnd::Success(output) => Ok(output),
            ExecutorEnd::Failed(error) => Err(ExecuteError::Tool(error)),
            ExecutorEnd::TimedOut => Err(ExecuteError::TimedOut),
        }
    }

    /// Returns what the session sees of its workflow; none outside of one.
    pub fn workflow_state(&mut self) -> Option<WorkflowSnapshot> {
        self.hear();
        let now = self.hooks.now();
        self.driver.workflow_state(now)
    }

    /// Offers the session's work to another role. The session stays open.
    ///
    /// # Errors
    /// The session is over or in no workflow, the role or a slot is unknown, or the file does not permit it.
    pub fn handoff(&mut self, wanted: HandoffRequest<'_>) -> Result<Offer, WorkflowRefusal> {
        self.hear();
        let now = self.hooks.now();
        let offer = self.driver.handoff(wanted, now);
        self.tell();
        offer
    }

    /// Hands over what was captured since the last time, with the counts of all times.
    pub fn flush(&mut self) -> (Vec<serde_json::Value>, CaptureCounts) {
        self.driver.flush()
    }

    /// Returns what can be read of the session: its state, its health, its last narrowing.
    pub const fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Returns what the session calls out to.
    pub const fn hooks(&self) -> &H {
        &self.hooks
    }
}

/// Runs an executor, again as often as the contract allows for this error.
fn run(
    executor: &mut Executor,
    ticket: &Ticket,
    call_id: Option<&str>,
    arguments: &str,
) -> ExecutorEnd {
    // Outside enforcement nothing was allowed, and nothing is refused.
    let call = ticket.call.clone().unwrap_or_else(|| CallKey {
        step: 0,
        id: call_id.unwrap_or_default().to_owned(),
    });
    let mut executed = executor(&call, arguments);
    for _ in 1..ticket.attempts_max {
        match &executed {
            ExecutorEnd::Failed(error) if ticket.retry_on.contains(&error.code) => {
                executed = executor(&call, arguments);
            }
            ExecutorEnd::Failed(_) | ExecutorEnd::Success(_) | ExecutorEnd::TimedOut => break,
        }
    }
    executed
}
