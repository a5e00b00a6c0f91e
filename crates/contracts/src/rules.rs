//! Compiled contracts together with the options of one session: what a session is judged by.
//!
//! Everything that can be wrong with options is found here, all at once, before a session exists.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::capture::CaptureLevel;
use crate::compile::Compiled;
use crate::contract::CommitRequirement;
use crate::cost::Prices;
use crate::decode::is_label;
use crate::finding::shown;
use crate::json;
use crate::pattern::Steps;
use crate::policy::PolicyAnswer;
use crate::reason::words;
use crate::session::ProviderConstraints;
use crate::value::Value;
use serde::{Deserialize, Serialize};
use std::fmt;

words! {
    /// What verdicts do.
    Mode {
        /// They block.
        Enforce = "enforce",
        /// They are computed and block nothing.
        Shadow = "shadow",
        /// There are none.
        LogOnly = "log-only",
    }
}

words! {
    /// What a block does to a response.
    Gate {
        /// The whole response is refused.
        RejectAll = "reject_all",
        /// Blocked calls are removed; a response of blocked calls only is refused.
        StripPartial = "strip_partial",
        /// Blocked calls are removed, all of them if need be.
        StripBlocked = "strip_blocked",
    }
}

words! {
    /// What an option says about something that could go on or stop.
    Permission {
        /// Stop.
        Block = "block",
        /// Go on.
        Allow = "allow",
    }
}

words! {
    /// Whether a session without an authoritative server blocks.
    Compat {
        /// It blocks.
        Protective = "protective",
        /// It reports.
        Advisory = "advisory",
    }
}

words! {
    /// Whether the model learns about removed tools.
    Feedback {
        /// It does not.
        Silent = "silent",
        /// It does not; the program does.
        Metadata = "metadata",
        /// It does.
        Inject = "inject",
    }
}

words! {
    /// Why a session cannot be built.
    Condition {
        /// A policy without a principal to judge.
        PolicyWithoutPrincipal = "policy_without_principal",
        /// Execution constraints of a tool whose executor is not wrapped.
        ConstraintsWithoutWrapper = "constraints_without_wrapper",
        /// Files that do not compile.
        CompilationFailed = "compilation_failed",
        /// A provider or model that the contracts exclude.
        ProviderIncompatible = "provider_incompatible",
        /// Extension: a checkpoint that nobody would answer.
        CheckpointWithoutHandler = "checkpoint_without_handler",
        /// Extension: an option with a value it cannot have.
        InvalidOption = "invalid_option",
        /// Extension: a workflow that is not there.
        WorkflowNotFound = "workflow_not_found",
    }
}

/// The options of a session that verdicts depend on.
#[derive(Debug, Clone)]
pub struct Options {
    /// The session's id: 1 to 128 letters, digits, `.`, `_`, `:`, `-`.
    pub session_id: String,
    /// The agent; must be the one that the session file names, if both are given.
    pub agent: Option<String>,
    /// What verdicts do.
    pub mode: Mode,
    /// What a block does to a response.
    pub gate: Gate,
    /// What happens when governance itself fails.
    pub on_error: Permission,
    /// What happens to tools without a contract.
    pub unmatched: Permission,
    /// Whether a session without a server blocks.
    pub compat: Compat,
    /// How often the model is asked again after a block, up to 5.
    pub retries_max: u32,
    /// With [`Options::on_error`] `allow`: how many calls may go through without backing.
    pub unguarded_calls_max: u64,
    /// Whether the model learns about removed tools.
    pub feedback: Feedback,
    /// Replaces the session file's block.
    pub providers: Option<ProviderConstraints>,
    /// The caller's identity; `Some(Value::Null)` is a supplied principal.
    pub principal: Option<Value>,
    /// Which tools have wrapped executors.
    pub executors: Executors,
    /// Whether an authoritative server keeps the state.
    pub server: bool,
    /// Whether somebody answers checkpoints.
    pub answers_checkpoints: bool,
    /// Initial labels.
    pub labels: Vec<String>,
    /// What models cost.
    pub prices: Prices,
    /// How much of each call is kept for later reading.
    pub capture_level: CaptureLevel,
    /// True for what was recorded when patterns excluded a model only in the case that they are written in.
    pub case_of_models_counts: bool,
    /// True for what was recorded when patterns could take any number of steps.
    pub patterns_unbounded: bool,
    /// True for what was recorded when a call of a tool that the provider runs was judged as any other.
    pub hosted_calls_pass: bool,
}

impl Options {
    /// The defaults for a session of this id.
    pub fn new(session_id: &str) -> Self {
        Self {
            session_id: session_id.to_owned(),
            agent: None,
            mode: Mode::Enforce,
            gate: Gate::RejectAll,
            on_error: Permission::Block,
            unmatched: Permission::Block,
            compat: Compat::Protective,
            retries_max: 0,
            unguarded_calls_max: 3,
            feedback: Feedback::Silent,
            providers: None,
            principal: None,
            executors: Executors::Named(BTreeSet::new()),
            server: false,
            answers_checkpoints: false,
            labels: Vec::new(),
            prices: Prices::default(),
            capture_level: CaptureLevel::Redacted,
            case_of_models_counts: false,
            patterns_unbounded: false,
            hosted_calls_pass: false,
        }
    }

    /// Returns the steps that the patterns of one judgement may take.
    pub(crate) fn steps(&self) -> Steps {
        match self.patterns_unbounded {
            true => Steps::unbounded(),
            false => Steps::bounded(),
        }
    }
}

/// The tools whose executions are reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Executors {
    /// These.
    Named(BTreeSet<String>),
    /// All of them: the server waits for receipts.
    All,
}

impl Executors {
    fn wraps(&self, tool: &str) -> bool {
        match self {
            Executors::Named(tools) => tools.contains(tool),
            Executors::All => true,
        }
    }
}

/// Why a session cannot be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{condition}: {}", findings.join("; "))]
pub struct ConfigError {
    condition: Condition,
    findings: Vec<String>,
}

impl ConfigError {
    /// Returns the stable word for what is wrong.
    pub fn condition(&self) -> Condition {
        self.condition
    }

    /// Returns everything that is wrong.
    pub fn findings(&self) -> &[String] {
        &self.findings
    }
}

/// What one session is judged by.
#[derive(Debug, Clone)]
pub struct Rules {
    compiled: Arc<Compiled>,
    options: Options,
    session_policy: PolicyAnswer,
    tool_policies: BTreeMap<String, PolicyAnswer>,
}

const LABELS_MAX: usize = 64;

impl Rules {
    /// Puts contracts and options together.
    ///
    /// # Errors
    /// The first condition that keeps the session from starting, with every finding of it.
    pub fn new(compiled: Arc<Compiled>, options: Options) -> Result<Self, ConfigError> {
        check_options(&compiled, &options)?;
        let allowed = PolicyAnswer {
            allowed: true,
            rule: None,
        };
        // Without a principal there is no policy: that was checked above.
        let principal = options.principal.clone().unwrap_or(Value::Null);
        let steps = options.steps();
        let judge = |policy: Option<&crate::policy::Policy>| {
            policy.map_or_else(
                || allowed.clone(),
                |policy| policy.judge(&principal, &steps),
            )
        };
        let tool_policies = compiled
            .tools
            .iter()
            .map(|(tool, rules)| (tool.clone(), judge(rules.contract.policy.as_ref())))
            .collect();
        Ok(Self {
            session_policy: judge(compiled.session.policy.as_ref()),
            tool_policies,
            compiled,
            options,
        })
    }

    /// Puts contracts and options together with what policies said about a principal that is not kept.
    ///
    /// # Errors
    /// As [`Rules::new`]; also when a policy has no answer.
    pub fn with_policies(
        compiled: Arc<Compiled>,
        mut options: Options,
        policies: &BTreeMap<String, PolicyAnswer>,
    ) -> Result<Self, ConfigError> {
        options.principal = Some(Value::Null);
        let mut rules = Self::new(compiled, options)?;
        let mut missing = Vec::new();
        let mut answer = |name: &str, has_policy: bool| match policies.get(name) {
            Some(answer) => answer.clone(),
            None => {
                if has_policy {
                    missing.push(format!("the policy of {} has no answer", shown(name)));
                }
                PolicyAnswer {
                    allowed: !has_policy,
                    rule: None,
                }
            }
        };
        rules.session_policy = answer("", rules.compiled.session.policy.is_some());
        for (tool, known) in &rules.compiled.tools {
            let has_policy = known.contract.policy.is_some();
            rules
                .tool_policies
                .insert(tool.clone(), answer(tool, has_policy));
        }
        if missing.is_empty() {
            return Ok(rules);
        }
        Err(ConfigError {
            condition: Condition::PolicyWithoutPrincipal,
            findings: missing,
        })
    }

    /// Returns what policies say about the principal: by tool, and under the empty name for the session. Tools and
    /// sessions without a policy are left out.
    pub fn policies(&self) -> BTreeMap<String, PolicyAnswer> {
        let tools = self.compiled.tools.iter();
        let with_policy = tools.filter(|(_, known)| known.contract.policy.is_some());
        let answers = with_policy.filter_map(|(tool, _)| {
            let answer = self.tool_policies.get(tool)?;
            Some((tool.clone(), answer.clone()))
        });
        let session = self.compiled.session.policy.as_ref();
        let session = session.map(|_| (String::new(), self.session_policy.clone()));
        answers.chain(session).collect()
    }

    /// The same rules, excluding models in whatever case they are written.
    #[must_use]
    pub fn in_any_case(mut self) -> Self {
        self.options.case_of_models_counts = false;
        self
    }

    /// Returns the compiled contracts.
    pub fn compiled(&self) -> &Compiled {
        &self.compiled
    }

    /// Returns the options.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Says whether verdicts block.
    pub fn enforces(&self) -> bool {
        let advisory = self.is_advisory();
        match self.options.mode {
            Mode::Enforce => !advisory,
            Mode::Shadow | Mode::LogOnly => false,
        }
    }

    /// Says whether the session only reports because it has no server.
    pub fn is_advisory(&self) -> bool {
        self.options.mode == Mode::Enforce
            && !self.options.server
            && self.options.compat == Compat::Advisory
    }

    /// Returns the first policy that denies a tool: the session's, else the tool's.
    pub(crate) fn denied_by(&self, tool: &str) -> Option<&PolicyAnswer> {
        let answers = [Some(&self.session_policy), self.tool_policies.get(tool)];
        answers.into_iter().flatten().find(|answer| !answer.allowed)
    }

    /// Says whether a released call counts as done at once, or waits for the report of its execution.
    pub(crate) fn commits_at_release(&self, tool: &str) -> bool {
        let contract = self.compiled.contract(tool);
        let requirement = contract.map(|contract| contract.commit_requirement);
        match requirement.unwrap_or(CommitRequirement::Acknowledged) {
            CommitRequirement::None => true,
            CommitRequirement::Acknowledged => {
                !self.options.server && !self.options.executors.wraps(tool)
            }
        }
    }

    /// Says whether some provider or model is refused or warned about.
    pub fn constrains_providers(&self) -> bool {
        *self.providers() != ProviderConstraints::default()
    }

    /// Says whether some model is refused.
    pub fn excludes_models(&self) -> bool {
        !self.providers().block.is_empty()
    }

    /// Returns the provider constraints in force.
    pub(crate) fn providers(&self) -> &ProviderConstraints {
        let given = self.options.providers.as_ref();
        given.unwrap_or(&self.compiled.session.providers)
    }
}

fn check_options(compiled: &Compiled, options: &Options) -> Result<(), ConfigError> {
    let stop = |condition, findings: Vec<String>| {
        if findings.is_empty() {
            Ok(())
        } else {
            Err(ConfigError {
                condition,
                findings,
            })
        }
    };
    stop(Condition::InvalidOption, invalid(compiled, options))?;
    let contracts = || compiled.tools();
    let mut without_principal = Vec::new();
    if options.principal.is_none() {
        if compiled.session.policy.is_some() {
            let file = shown(&compiled.session.file);
            without_principal.push(format!("{file} has a policy, but no principal was given"));
        }
        for contract in contracts().filter(|contract| contract.policy.is_some()) {
            let file = shown(&contract.file);
            without_principal.push(format!("{file} has a policy, but no principal was given"));
        }
    }
    stop(Condition::PolicyWithoutPrincipal, without_principal)?;
    let unwrapped = contracts().filter(|contract| {
        !contract.execution_constraints.is_empty() && !options.executors.wraps(&contract.tool)
    });
    let unwrapped = unwrapped.map(|contract| {
        let tool = shown(&contract.tool);
        format!("{tool} has execution constraints, but no wrapped executor")
    });
    stop(Condition::ConstraintsWithoutWrapper, unwrapped.collect())?;
    let asked = contracts().filter(|contract| contract.checkpoint.is_some());
    let unanswered = asked.filter(|_| !options.answers_checkpoints);
    let unanswered = unanswered.map(|contract| {
        let tool = shown(&contract.tool);
        format!("{tool} has a checkpoint, but nobody answers checkpoints")
    });
    stop(Condition::CheckpointWithoutHandler, unanswered.collect())
}

fn invalid(compiled: &Compiled, options: &Options) -> Vec<String> {
    let mut findings = Vec::new();
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
    let id = &options.session_id;
    if !(1..=128).contains(&id.len()) || !id.bytes().all(allowed) {
        findings.push("a session id has 1 to 128 letters, digits, `.`, `_`, `:`, `-`".to_owned());
    }
    if let (Some(given), Some(written)) = (&options.agent, &compiled.session.agent)
        && given != written
    {
        let (given, written) = (shown(given), shown(written));
        findings.push(format!(
            "the session file is for agent {written}, not for {given}"
        ));
    }
    if options.retries_max > 5 {
        findings.push("at most 5 retries".to_owned());
    }
    if options.unguarded_calls_max == 0 {
        findings.push("at least one unguarded call".to_owned());
    }
    if options.labels.len() > LABELS_MAX {
        findings.push("at most 64 labels".to_owned());
    }
    for label in options.labels.iter().filter(|label| !is_label(label)) {
        findings.push(format!("{} is not a label", shown(label)));
    }
    let principal = options.principal.as_ref().map(Value::to_json);
    if principal.is_some_and(|text| text.len() > json::Limits::PRINCIPAL.bytes_max) {
        findings.push("a principal has at most 64 KiB".to_owned());
    }
    findings
}
