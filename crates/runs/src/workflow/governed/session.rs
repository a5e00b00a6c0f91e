//! One governed session: what it begins with, what an input does to it, and what can be read of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use canon::{Digest, Map, Value};
use contracts::capture::CaptureLevel;
use contracts::driver::Label;
use contracts::workflow::Seat;
use contracts::{
    CallKey, Compiled, Condition, Event, Executors, HostFacts, Lifecycle, Options, PolicyAnswer,
    Rules, SessionStart, Source, State,
};
use domain::{
    ContractText, GovernedFiles, GovernedInput, GovernedOperation, GovernedStart, Kind,
    PermissionId, PolicyVerdict, Problem, RulesVersion, StartedCall, Timestamp, payload,
};
use serde::Deserialize as _;
use serde_json::json;

use super::parties::Parties;
use super::prepare::{PREPARED, Prepared};
use super::proposals::ProposalRecord;
use super::seat::seat_of;
use crate::workflow::Note;

/// How long a prepared request can be used, and a released call waits for its execution.
pub(super) const PREPARED_MICROS: i64 = 600_000_000;

/// Labels that a session takes from its program.
const LABELS_MAX: usize = 64;
/// Labels that it takes from each other actor: nobody can use up what closes tools for somebody else.
const LABELS_KEPT: usize = 16;

/// A governed session.
#[derive(Debug)]
pub struct GovernedSession {
    pub(super) rules: Rules,
    pub(super) state: State,
    /// Requests that a preflight bound to the state and no proposal has used.
    pub(super) prepared: BTreeMap<u64, Prepared>,
    pub(super) prepared_count: u64,
    /// Proposals that wait, have calls whose execution is not reported, or were settled not long ago.
    pub(super) proposals: BTreeMap<u64, ProposalRecord>,
    pub(super) proposal_count: u64,
    pub(super) checkpoint_count: u64,
    /// The keywords of offered schemas that are not checked, by tool, as they were last told.
    pub(super) schemas_told: BTreeMap<String, BTreeSet<String>>,
    /// Who proposed: they do not approve.
    pub(super) proposers: BTreeSet<String>,
    pub(super) parties: Parties,
    /// How many labels who added.
    labels_by: BTreeMap<String, usize>,
    /// Its place in a workflow.
    pub(super) seat: Option<Seat>,
    /// What its notes tell.
    pub(super) rules_version: RulesVersion,
    /// What an input has brought about so far.
    pub(super) told: Consequences,
}

/// What an input brings about besides its answer.
#[derive(Debug, Default)]
pub(super) struct Consequences {
    pub(super) changed: bool,
    pub(super) notes: Vec<Note>,
    pub(super) withdrawn: Vec<(PermissionId, &'static str)>,
    pub(super) decided: Option<(PermissionId, bool)>,
    pub(super) end: Option<SessionEnd>,
    /// Members of the note about the operation itself.
    pub(super) said: payload::ContractDecided,
}

impl Consequences {
    pub(super) fn say(
        &mut self,
        with: impl FnOnce(payload::ContractDecided) -> payload::ContractDecided,
    ) {
        self.said = with(std::mem::take(&mut self.said));
    }
}

/// What an input came to.
#[derive(Debug)]
pub struct InputOutcome {
    /// False when everything is as it was: there is nothing to record.
    pub changed: bool,
    /// The answer.
    pub answer: Result<Value, Problem>,
    /// What to tell, in order. A note about a required approval makes a permission request.
    pub notes: Vec<Note>,
    /// Permission requests that nobody will answer any more, and why.
    pub withdrawn: Vec<(PermissionId, &'static str)>,
    /// The permission request that was answered, and how.
    pub decided: Option<(PermissionId, bool)>,
    /// How the session ended, if it did.
    pub end: Option<SessionEnd>,
    /// What its workflow must be told.
    pub news: Vec<Value>,
}

/// How a session ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionEnd {
    /// In order.
    Completed {
        /// What it came to, for people.
        text: String,
    },
    /// It was stopped for good.
    Canceled {
        /// Why.
        reason: String,
    },
    /// Its program is gone.
    Failed {
        /// A stable word for programs.
        code: &'static str,
        /// What happened, for people.
        message: String,
    },
}

/// Compiled contracts, to be shared by the sessions that are judged by the same files.
#[derive(Debug, Clone)]
pub struct Contracts(Arc<Compiled>);

impl Contracts {
    /// Compiles the files of a session.
    ///
    /// # Errors
    /// Everything that is wrong with them.
    pub fn compile(files: &GovernedFiles) -> Result<Self, Problem> {
        Self::compile_by(files, contracts::compile)
    }

    /// The same for the files of a session that began, whatever their patterns cost.
    ///
    /// # Errors
    /// As [`Contracts::compile`].
    pub fn compile_recorded(files: &GovernedFiles) -> Result<Self, Problem> {
        Self::compile_by(files, contracts::compile_recorded)
    }

    fn compile_by(
        files: &GovernedFiles,
        compile: impl Fn(&[Source], Option<&Source>) -> Result<Compiled, contracts::CompileError>,
    ) -> Result<Self, Problem> {
        let source = |file: &ContractText| Source {
            file: file.file.clone(),
            text: file.text.clone(),
        };
        let contracts: Vec<Source> = files.files.iter().map(source).collect();
        let session = files.session.as_ref().map(source);
        match compile(&contracts, session.as_ref()) {
            Ok(compiled) => Ok(Self(Arc::new(compiled))),
            Err(error) => {
                let findings = error.findings().iter();
                let findings: Vec<String> = findings.map(ToString::to_string).collect();
                let message = "the contracts do not compile";
                Err(Problem::new(422, "compilation_failed", message).with("findings", findings))
            }
        }
    }

    /// Returns about how many bytes their patterns take in memory.
    pub fn patterns_bytes(&self) -> u64 {
        self.0.patterns_bytes()
    }

    /// Says whether a new session may begin under them.
    pub fn are_within_bounds(&self) -> bool {
        self.0.is_within_bounds()
    }

    /// Returns their digest.
    pub fn digest(&self) -> Digest {
        self.0.digest()
    }

    /// Returns the agent that they are written for.
    pub fn agent(&self) -> Option<&str> {
        self.0.session().agent.as_deref()
    }

    /// Says what options state in place of what holds without them. What cannot be read counts as other.
    pub fn replaced_by(&self, options: &canon::Map<String, Value>) -> Option<ReplacedOption> {
        match options_of(options) {
            Ok(given) => replaced(&self.0, &given),
            Err(_) if options.contains_key("providerConstraints") => {
                Some(ReplacedOption::Providers)
            }
            Err(_) if options.contains_key("pricing") => Some(ReplacedOption::Prices),
            Err(_) => None,
        }
    }

    /// Checks that a session can begin under them, and returns what its policies say about a principal.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn admit(
        &self,
        options: &canon::Map<String, Value>,
        principal: Option<&Value>,
    ) -> Result<BTreeMap<String, PolicyVerdict>, Problem> {
        let mut options = options_of(options).map_err(|findings| {
            Problem::new(400, "invalid_option", "the options cannot be used")
                .with("findings", findings)
        })?;
        if let Some(principal) = principal {
            let text = principal.to_string();
            let limits = contracts::json::Limits::PRINCIPAL;
            if text.len() > limits.bytes_max {
                let message = format!("the principal is longer than {} bytes", limits.bytes_max);
                return Err(Problem::new(413, "too_large", message));
            }
            let read = contracts::json::read(&text, limits, contracts::json::Numbers::Any);
            let principal = read.map_err(|error| {
                Problem::new(400, "invalid_option", format!("the principal: {error}"))
            })?;
            options.principal = Some(principal);
        }
        let rules = Rules::new(Arc::clone(&self.0), options).map_err(|error| {
            let status = match error.condition() {
                Condition::InvalidOption => 400,
                Condition::PolicyWithoutPrincipal
                | Condition::ConstraintsWithoutWrapper
                | Condition::CompilationFailed
                | Condition::ProviderIncompatible
                | Condition::CheckpointWithoutHandler
                | Condition::WorkflowNotFound => 422,
            };
            Problem::new(status, error.condition().as_str(), error.to_string())
                .with("findings", error.findings())
        })?;
        let policies = rules.policies().into_iter().map(|(name, answer)| {
            let PolicyAnswer { allowed, rule } = answer;
            (name, PolicyVerdict { allowed, rule })
        });
        Ok(policies.collect())
    }
}

/// What the options of a session put in the place of something else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplacedOption {
    /// The provider constraints of its contracts.
    Providers,
    /// The prices of the product's table.
    Prices,
}

fn replaced(compiled: &Compiled, given: &Options) -> Option<ReplacedOption> {
    let own = compiled.session().provider_constraints();
    let providers = given.providers.as_ref();
    if providers.is_some_and(|providers| providers != own) {
        return Some(ReplacedOption::Providers);
    }
    given
        .prices
        .is_underpriced()
        .then_some(ReplacedOption::Prices)
}

/// Reads options under their published names: on the server every execution is reported and people answer.
///
/// # Errors
/// Everything that is wrong with them.
fn options_of(options: &canon::Map<String, Value>) -> Result<Options, Vec<String>> {
    let text = Value::Object(options.clone()).to_string();
    let mut options = contracts::bytes::read_options(text.as_bytes())?;
    options.executors = Executors::All;
    options.server = true;
    options.answers_checkpoints = true;
    Ok(options)
}

/// Has options judge as a session on record was judged; as an agent is where there is none.
pub fn apply_rules_version(rules_version: Option<RulesVersion>, options: &mut Options) {
    options.case_of_models_counts =
        rules_version.is_none_or(|rules_version| rules_version < RulesVersion::Deciders);
    options.patterns_unbounded =
        rules_version.is_none_or(|rules_version| rules_version < RulesVersion::Requests);
    options.hosted_calls_pass =
        rules_version.is_none_or(|rules_version| rules_version < RulesVersion::Removals);
}

/// Returns what is kept of captures: whatever their sender left in, only `full` keeps texts that look like secrets.
pub fn retained_captures(start: &GovernedStart, captures: Vec<Value>) -> Vec<Value> {
    let level = options_of(&start.options).map(|options| options.capture_level);
    match level {
        Ok(CaptureLevel::Full) => captures,
        Ok(CaptureLevel::Redacted | CaptureLevel::Metadata) | Err(_) => captures
            .iter()
            .map(|capture| contracts::redact::value(capture, &[]))
            .collect(),
    }
}

impl GovernedSession {
    /// Begins with what a Task recorded.
    ///
    /// # Errors
    /// It cannot be read, or its contracts are not those it names.
    pub fn begin(start: &Value) -> Result<Self, String> {
        let start = GovernedStart::deserialize(start).map_err(|error| error.to_string())?;
        let contracts = Contracts::compile_recorded(&start.contracts);
        let contracts = contracts.map_err(|error| error.to_string())?;
        Self::begin_under(&start, &contracts)
    }

    /// The same, under contracts that are compiled already.
    ///
    /// # Errors
    /// As [`GovernedSession::begin`].
    pub fn begin_under(start: &GovernedStart, contracts: &Contracts) -> Result<Self, String> {
        let compiled = Arc::clone(&contracts.0);
        if compiled.digest() != start.sha256 {
            return Err("the recorded contracts have another digest than was recorded".to_owned());
        }
        let mut options = options_of(&start.options).map_err(|findings| findings.join("; "))?;
        apply_rules_version(Some(start.rules_version), &mut options);
        let policies = start.policies.iter().map(|(name, verdict)| {
            let answer = PolicyAnswer {
                allowed: verdict.allowed,
                rule: verdict.rule.clone(),
            };
            (name.clone(), answer)
        });
        let policies = policies.collect();
        let rules = Rules::with_policies(Arc::clone(&compiled), options, &policies)
            .map_err(|error| error.to_string())?;
        let mut labels = rules.options().labels.clone();
        let mut seat = None;
        if let Some(place) = &start.workflow {
            labels.extend(place.labels.iter().cloned());
            labels.sort_unstable();
            labels.dedup();
            seat = Some(seat_of(&start.session_id, place, start.rules_version)?);
        }
        let begin = SessionStart {
            session_id: start.session_id.clone(),
            agent: rules
                .options()
                .agent
                .clone()
                .or_else(|| compiled.session().agent.clone()),
            at: start.at,
            compiled: compiled.digest(),
            labels,
            slots: start.slots.clone(),
        };
        let state = State::begin(&compiled, &begin).map_err(|error| error.to_string())?;
        Ok(Self {
            rules,
            state,
            prepared: BTreeMap::new(),
            prepared_count: 0,
            proposals: BTreeMap::new(),
            proposal_count: 0,
            checkpoint_count: 0,
            schemas_told: BTreeMap::new(),
            proposers: BTreeSet::new(),
            parties: Parties::default(),
            labels_by: BTreeMap::new(),
            seat,
            rules_version: start.rules_version,
            told: Consequences::default(),
        })
    }

    /// Takes an input and answers it.
    pub fn take(&mut self, input: &GovernedInput) -> InputOutcome {
        self.told = Consequences::default();
        let heard = self.apply_view(input);
        self.settle_overdue(input.at);
        let answer = heard.and_then(|()| self.answer(input));
        if let (Lifecycle::Killed { cause }, None) =
            (self.state.lifecycle().clone(), &self.told.end)
        {
            self.close_waiting("killed", "the session was killed");
            self.told.end = Some(SessionEnd::Canceled { reason: cause });
        }
        let news = self.news();
        let Consequences {
            changed,
            mut notes,
            withdrawn,
            decided,
            end,
            mut said,
        } = std::mem::take(&mut self.told);
        if changed {
            self.parties.note(input);
            said = said.operation(input.operation.name());
            if !news.is_empty() {
                said = said.workflow(json!(news));
            }
            said = match &answer {
                Ok(answer) => said.answer(answer.clone()),
                Err(problem) => said.problem(json!({
                    "status": problem.status,
                    "code": problem.code,
                    "message": problem.message,
                    "members": problem.members,
                })),
            };
            notes.push(Note {
                kind: Kind::ContractDecided,
                payload: said.into_members(),
            });
        }
        for note in &mut notes {
            note.payload = as_recorded(std::mem::take(&mut note.payload));
        }
        InputOutcome {
            changed,
            answer,
            notes,
            withdrawn,
            decided,
            end,
            news,
        }
    }

    fn answer(&mut self, input: &GovernedInput) -> Result<Value, Problem> {
        let over = *self.state.lifecycle() != Lifecycle::Open;
        match &input.operation {
            GovernedOperation::Kill { reason } => {
                if !over {
                    self.close_waiting("killed", "the session was killed");
                    let cause = reason.clone().unwrap_or_else(|| "killed".to_owned());
                    self.advance(&Event::Killed { cause })?;
                }
                let killed = matches!(self.state.lifecycle(), Lifecycle::Killed { .. });
                Ok(json!({"killed": killed}))
            }
            GovernedOperation::Restore => {
                if !over {
                    self.close_waiting("expired", "the session ended");
                    self.advance(&Event::Restored)?;
                    let text = self.summary();
                    self.told.end = Some(SessionEnd::Completed { text });
                }
                Ok(self.shown())
            }
            GovernedOperation::Heartbeat { started } => {
                if !over {
                    self.started(started)?;
                    // Whoever says so works in it: that is noted once, although nothing else changes.
                    let is_new = self.parties.new_party(input).is_some();
                    self.told.changed |= is_new && input.key_id.is_some();
                }
                Ok(json!({
                    "state_version": self.state.state_version(),
                    "control_revision": self.state.control_revision(),
                    "killed": matches!(self.state.lifecycle(), Lifecycle::Killed { .. }),
                }))
            }
            GovernedOperation::Resume => {
                self.told.changed = true;
                Ok(Value::Null)
            }
            GovernedOperation::Tick
            | GovernedOperation::Hear { .. }
            | GovernedOperation::Accept { .. }
            | GovernedOperation::CloseOffer { .. } => Ok(Value::Null),
            GovernedOperation::Lose => {
                if !over && self.is_idle() {
                    self.told.changed = true;
                    self.told.end = Some(SessionEnd::Failed {
                        code: "session_lost",
                        message: "nothing was heard of the program for ten minutes".to_owned(),
                    });
                }
                Ok(Value::Null)
            }
            operation => {
                self.must_be_open()?;
                match operation {
                    GovernedOperation::Preflight(preflight) => self.preflight(preflight, input.at),
                    GovernedOperation::Propose(proposal) => self.propose(proposal, input),
                    GovernedOperation::Report(report) => self.report(report, input.at),
                    GovernedOperation::Decide(decide) => self.decide(decide, input),
                    GovernedOperation::AddLabel { label } => self.add_label(label, &input.actor),
                    GovernedOperation::SetFilter { tools } => {
                        let tools = tools.clone();
                        self.advance(&Event::Filtered { tools })?;
                        Ok(json!({"control_revision": self.state.control_revision()}))
                    }
                    GovernedOperation::ReportBypass { .. } => {
                        if !self.health().bypass_detected {
                            self.advance(&Event::Bypassed)?;
                        }
                        Ok(json!({"authority_state": self.health().authority_state}))
                    }
                    GovernedOperation::Capture { captures } => {
                        self.told.changed = true;
                        Ok(json!({"accepted": captures.len()}))
                    }
                    GovernedOperation::Offer(offer) => self.offer(offer, input.at),
                    GovernedOperation::Kill { .. }
                    | GovernedOperation::Restore
                    | GovernedOperation::Heartbeat { .. }
                    | GovernedOperation::Hear { .. }
                    | GovernedOperation::Accept { .. }
                    | GovernedOperation::CloseOffer { .. }
                    | GovernedOperation::Resume
                    | GovernedOperation::Tick
                    | GovernedOperation::Lose => Ok(Value::Null),
                }
            }
        }
    }

    fn must_be_open(&self) -> Result<(), Problem> {
        match self.state.lifecycle() {
            Lifecycle::Open => Ok(()),
            Lifecycle::Killed { cause } => {
                let message = format!("the session was killed: {cause}");
                Err(Problem::new(410, "killed", message).with("cause", cause))
            }
            Lifecycle::Restored => Err(Problem::new(410, "restored", "the session has ended")),
        }
    }

    fn add_label(&mut self, label: &str, actor: &str) -> Result<Value, Problem> {
        Label::new(label)
            .map_err(|error| Problem::new(400, "malformed_label", error.to_string()))?;
        if !self.has_label(label) {
            self.advance(&Event::LabelAdded {
                label: label.to_owned(),
            })?;
            *self.labels_by.entry(actor.to_owned()).or_default() += 1;
        }
        Ok(json!({"labels": self.state.labels().collect::<Vec<_>>()}))
    }

    fn has_label(&self, label: &str) -> bool {
        self.state.labels().any(|known| known == label)
    }

    /// Refuses a label of somebody who has given the session as many as they may: all who work in it together, or somebody else
    /// alone. What calls added and what came from another session counts for nobody.
    ///
    /// # Errors
    /// They have.
    pub fn label_left(
        &self,
        label: &str,
        (actor, key_id): (&str, Option<&str>),
        opener: &str,
    ) -> Result<(), Problem> {
        let works = |actor: &str| actor == opener || self.parties.is_worker(actor, None);
        let is_left = match works(actor) || self.parties.is_worker(actor, key_id) {
            true => {
                let by_workers = self.labels_by.iter().filter(|(actor, _)| works(actor));
                let given: usize = by_workers.map(|(_, count)| count).sum();
                given + self.rules.options().labels.len() < LABELS_MAX
            }
            false => self
                .labels_by
                .get(actor)
                .is_none_or(|count| *count < LABELS_KEPT),
        };
        match is_left || self.has_label(label) {
            true => Ok(()),
            false => Err(too_many_labels()),
        }
    }

    /// Notes executions that have begun: what runs does not expire.
    fn started(&mut self, started: &[StartedCall]) -> Result<(), Problem> {
        for call in started {
            let Some((_, kept)) = self.find_proposal(&call.proposal_id) else {
                continue;
            };
            let Some(key) = kept.key(&call.call_id) else {
                continue;
            };
            let reported = kept.receipts.contains_key(&call.call_id);
            let is_pending = self.state.unsettled().any(|(known, _)| *known == key);
            if is_pending && !reported && !kept.started.contains(&call.call_id) {
                self.advance(&Event::Started { call: key })?;
                let number = propose_number(&call.proposal_id);
                if let Some(kept) = number.and_then(|number| self.proposals.get_mut(&number)) {
                    kept.started.insert(call.call_id.clone());
                }
            }
        }
        Ok(())
    }

    /// Settles what time has settled: calls that nobody executed, and questions that nobody answered.
    fn settle_overdue(&mut self, now: Timestamp) {
        if *self.state.lifecycle() != Lifecycle::Open {
            return;
        }
        for call in self.state.expired(now) {
            // Invariant: only what is pending expires.
            let _ = self.advance(&Event::Expired { call });
        }
        self.settle_unanswered(now);
        let usable = |prepared: &Prepared| age(prepared.at, now) < PREPARED_MICROS;
        self.prepared.retain(|_, prepared| usable(prepared));
        self.forget_settled();
    }

    /// Returns when something is overdue that has to be settled, if anything will be.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let waiting = self.proposals.values().filter_map(ProposalRecord::deadline);
        waiting.min()
    }

    /// True when no execution is outstanding and nobody was asked.
    pub fn is_idle(&self) -> bool {
        self.state.unsettled().next().is_none()
            && self
                .proposals
                .values()
                .all(|kept| kept.deadline().is_none())
    }

    /// True once the session has been killed or restored.
    pub fn is_over(&self) -> bool {
        *self.state.lifecycle() != Lifecycle::Open
    }

    /// Returns the refusal of a session that is over.
    pub fn closed_problem(&self) -> Option<Problem> {
        self.must_be_open().err()
    }

    /// Returns the digest of its compiled contracts.
    pub fn compiled(&self) -> Digest {
        self.rules.compiled().digest()
    }

    /// Returns the tools with rules about what their executor is given: whoever runs it has to check them.
    pub fn checked_by_executors(&self) -> Vec<String> {
        let tools = self.rules.compiled().tools();
        let tools = tools.filter(|contract| !contract.execution_constraints.is_empty());
        tools.map(|contract| contract.tool.clone()).collect()
    }

    /// Says what its options state in place of what holds without them.
    pub fn replaced(&self) -> Option<ReplacedOption> {
        replaced(self.rules.compiled(), self.rules.options())
    }

    /// Returns its mode.
    pub fn mode(&self) -> &'static str {
        self.rules.options().mode.as_str()
    }

    /// Returns its labels.
    pub fn labels(&self) -> Vec<String> {
        self.state.labels().map(str::to_owned).collect()
    }

    /// Returns its own id.
    pub fn id(&self) -> &str {
        &self.rules.options().session_id
    }

    /// Returns who works in it and who decided in it.
    pub fn parties(&self) -> &Parties {
        &self.parties
    }

    /// Returns both counters.
    pub fn versions(&self) -> (u64, u64) {
        (self.state.state_version(), self.state.control_revision())
    }

    /// Applies an event of the contracts.
    pub(super) fn advance(&mut self, event: &Event) -> Result<(), Problem> {
        self.told.changed = true;
        self.state
            .advance(self.rules.compiled(), event)
            .map_err(|error| Problem::new(500, "evaluator_fault", error.to_string()))
    }

    pub(super) fn health(&self) -> contracts::Health {
        contracts::health(&self.rules, &self.state, HostFacts::LOCAL)
    }

    /// Returns what a program sees of the session.
    pub fn shown(&self) -> Value {
        let snapshot = self.state.snapshot(self.rules.compiled());
        let mut shown = serde_json::to_value(snapshot).unwrap_or_default();
        if let Value::Object(members) = &mut shown {
            members.insert("health".to_owned(), json!(self.health()));
            if let Some(seat) = &self.seat {
                let place = json!({"workflow_id": seat.workflow_id(), "role": seat.role()});
                members.insert("workflow".to_owned(), place);
            }
        }
        shown
    }

    /// Returns the calls whose execution is not reported.
    pub fn pending(&self) -> Value {
        let of_step = |key: &CallKey| {
            let mut kept = self.proposals.iter();
            kept.find(|(_, kept)| kept.step == Some(key.step))
        };
        let pending = self.state.unsettled().map(|(key, call)| {
            let kept = of_step(key);
            json!({
                "call_id": key.id,
                "proposal_id": kept.map(|(number, _)| proposal_id(*number)),
                "tool_name": call.tool,
                "arguments_digest": call.arguments_digest,
                "since": kept.map(|(_, kept)| kept.settled_at),
            })
        });
        pending.collect()
    }

    fn summary(&self) -> String {
        let snapshot = self.state.snapshot(self.rules.compiled());
        format!(
            "The governed session ended after {} steps with {} tool calls; {} responses were blocked.",
            snapshot.total_step_count, snapshot.total_tool_calls, snapshot.total_block_count
        )
    }
}

fn too_many_labels() -> Problem {
    let message = format!(
        "a session takes {LABELS_MAX} labels from those who work in it together, and {LABELS_KEPT} from each other actor"
    );
    Problem::new(409, "too_many_labels", message)
}

pub(super) fn proposal_id(number: u64) -> String {
    format!("{PROPOSAL}{number}")
}

/// Returns the number of a proposal's id.
pub(super) fn propose_number(id: &str) -> Option<u64> {
    id.strip_prefix(PROPOSAL)?.parse().ok()
}

const PROPOSAL: &str = "proposal_";

/// Refuses ids that are not written as they were given: one thing has one name.
///
/// # Errors
/// Names the first of them.
pub fn ids_are_plain(operation: &GovernedOperation) -> Result<(), Problem> {
    let unknown = |id: &str| Problem::new(404, "unknown_proposal", format!("no proposal `{id}`"));
    let is_proposal = |id: &str| is_plain(id, PROPOSAL);
    match operation {
        GovernedOperation::Propose(proposed)
            if !is_plain(&proposed.prepared_request_id, PREPARED) =>
        {
            let message = "no preflight answered with this prepared request";
            Err(Problem::new(409, "unknown_prepared_request", message))
        }
        GovernedOperation::Report(report) if !is_proposal(&report.proposal_id) => {
            Err(unknown(&report.proposal_id))
        }
        GovernedOperation::Decide(decide) if !is_proposal(&decide.proposal_id) => {
            Err(unknown(&decide.proposal_id))
        }
        GovernedOperation::Heartbeat { started } => {
            let mut started = started.iter();
            match started.find(|call| !is_proposal(&call.proposal_id)) {
                Some(call) => Err(unknown(&call.proposal_id)),
                None => Ok(()),
            }
        }
        _ => Ok(()),
    }
}

/// True for a prefix and a number as it is written here: without a sign or zeros in front.
pub(super) fn is_plain(id: &str, prefix: &str) -> bool {
    let digits = id.strip_prefix(prefix).unwrap_or_default();
    let number: Option<u64> = digits.parse().ok();
    number.is_some_and(|number| number.to_string() == digits)
}

/// Returns how many microseconds lie between two moments.
pub(super) fn age(since: Timestamp, now: Timestamp) -> i64 {
    now.as_micros().saturating_sub(since.as_micros())
}

/// Puts a payload into the form in which it is read back, so that it can be compared with the record: a cost of 1.0 is
/// written as 1.
pub(super) fn as_recorded(payload: Map<String, Value>) -> Map<String, Value> {
    let whole = Value::Object(payload);
    match (
        canon::read_object(&canon::jcs(&whole), canon::Integers::Safe),
        whole,
    ) {
        (Ok(read), _) => read,
        // What cannot be read back is refused where it is written.
        (Err(_), Value::Object(payload)) => payload,
        (Err(_), _) => Map::new(),
    }
}
