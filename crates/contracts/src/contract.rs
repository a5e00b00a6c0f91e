//! The contract of one tool: how risky it is, when it may be called, with which values, after what, by whom.
//!
//! Owns the fields of a contract file and their defaults. What needs other files (names of phases, tools, slots) is
//! checked by `compile`.

mod decode_parts;

use crate::decode::{self, Fields, Named};
use crate::finding::{Code, Findings, Place, shown};
use crate::invariant::{AllowedOperators, Invariant};
use crate::path::Path;
use crate::policy::Policy;
use crate::yaml::Node;

/// A contract file, read and checked by itself.
#[derive(Debug, Clone)]
pub struct Contract {
    /// The function name that the model is offered.
    pub tool: String,
    /// The file it came from.
    pub file: String,
    /// The risk class.
    pub side_effect: SideEffect,
    /// The contract's own answer to the risk class, if it has one.
    pub gate: Option<RiskGate>,
    /// What kind of proof an execution can give.
    pub evidence_class: EvidenceClass,
    /// When authoritative state advances.
    pub commit_requirement: CommitRequirement,
    /// The limit for the executor, where the file states one.
    pub timeout_ms: Option<u64>,
    /// Most attempts of the executor, the first included.
    pub attempts_max: u64,
    /// Error codes after which the executor may try again.
    pub retry_on: Vec<String>,
    /// Error codes that are expected: not committed, not counted as errors.
    pub allowed_errors: Vec<String>,
    /// What a person must look at.
    pub checkpoint: Option<Checkpoint>,
    /// Checked immediately before the executor runs.
    pub execution_constraints: Vec<Invariant>,
    pub(crate) tool_at: Place,
    pub(crate) valid_in_phases: Option<Vec<Named>>,
    pub(crate) advances_to: Option<Named>,
    pub(crate) preconditions: Vec<Precondition>,
    pub(crate) forbids_after: Vec<Named>,
    pub(crate) arguments: Vec<Invariant>,
    pub(crate) schema_derived: bool,
    pub(crate) schema_derived_exclude: Vec<Path>,
    pub(crate) input_invariants: Vec<Invariant>,
    pub(crate) output_invariants: Vec<Invariant>,
    pub(crate) finish_reasons: Option<Vec<FinishReason>>,
    pub(crate) content: Content,
    pub(crate) policy: Option<Policy>,
    pub(crate) binds: Vec<SlotBinding>,
    pub(crate) adds_labels: Vec<String>,
}

/// The risk classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SideEffect {
    /// Changes nothing.
    Read,
    /// Changes something that can be changed back.
    Write,
    /// Destroys.
    Destructive,
    /// Changes rights or settings.
    Admin,
    /// Moves money.
    Financial,
}

impl SideEffect {
    pub(crate) const WORDS: [(&'static str, SideEffect); 5] = [
        ("read", SideEffect::Read),
        ("write", SideEffect::Write),
        ("destructive", SideEffect::Destructive),
        ("admin", SideEffect::Admin),
        ("financial", SideEffect::Financial),
    ];

    fn is_high_risk(self) -> bool {
        match self {
            SideEffect::Read | SideEffect::Write => false,
            SideEffect::Destructive | SideEffect::Admin | SideEffect::Financial => true,
        }
    }
}

/// Whether tools of a risk class may be called at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RiskGate {
    /// They may.
    Allow,
    /// They may not.
    Block,
}

impl RiskGate {
    pub(crate) const WORDS: [(&'static str, RiskGate); 2] =
        [("allow", RiskGate::Allow), ("block", RiskGate::Block)];
}

/// What kind of proof an execution can give.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EvidenceClass {
    /// A transaction that can be read back.
    LocalTransaction,
    /// An acknowledgement only.
    AckOnly,
    /// None.
    Unverifiable,
}

/// When authoritative state advances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitRequirement {
    /// When a successful execution was reported.
    Acknowledged,
    /// When the call was released.
    None,
}

/// Why a model stopped, in one word for all providers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// To have tools called.
    ToolCalls,
    /// It had nothing more to say.
    Stop,
    /// It was cut off.
    Length,
    /// The provider cut it off.
    ContentFilter,
    /// Anything else.
    Other,
}

impl FinishReason {
    pub(crate) const WORDS: [(&'static str, FinishReason); 5] = [
        ("tool_calls", FinishReason::ToolCalls),
        ("stop", FinishReason::Stop),
        ("length", FinishReason::Length),
        ("content_filter", FinishReason::ContentFilter),
        ("other", FinishReason::Other),
    ];

    /// Returns the word used in files and records.
    pub fn as_str(self) -> &'static str {
        match self {
            FinishReason::ToolCalls => "tool_calls",
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::ContentFilter => "content_filter",
            FinishReason::Other => "other",
        }
    }

    /// Returns the reason that a word names.
    pub fn named(word: &str) -> Option<Self> {
        let found = Self::WORDS.iter().find(|(name, _)| *name == word);
        found.map(|(_, value)| *value)
    }
}

/// What a contract demands of the text beside a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    Any,
    Empty,
    Required,
}

/// Another tool that must have been called before.
#[derive(Debug, Clone)]
pub(crate) struct Precondition {
    pub(crate) prior_tool: Named,
    pub(crate) with_output: Vec<Invariant>,
    pub(crate) same_as_prior: Vec<SameAsPrior>,
}

/// A value that this call must share with the prior one.
#[derive(Debug, Clone)]
pub(crate) struct SameAsPrior {
    pub(crate) argument: Path,
    pub(crate) prior: Path,
    pub(crate) prior_from: Source,
}

/// Where a value is taken from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    Arguments,
    Output,
}

impl Source {
    pub(crate) const WORDS: [(&'static str, Source); 2] =
        [("arguments", Source::Arguments), ("output", Source::Output)];
}

/// A value that is copied into a named slot of the session.
#[derive(Debug, Clone)]
pub(crate) struct SlotBinding {
    pub(crate) slot: Named,
    pub(crate) from: Source,
    pub(crate) path: Path,
}

/// When a person is asked, and what he sees.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    /// Shown to the approver.
    pub reason: String,
    /// How long to wait for an answer.
    pub timeout_seconds: u64,
    pub(crate) when: Vec<Invariant>,
    pub(crate) context: Vec<ContextEntry>,
}

/// Something the approver sees beside the arguments.
#[derive(Debug, Clone)]
pub(crate) struct ContextEntry {
    pub(crate) label: String,
    pub(crate) source: ContextSource,
}

/// Where a context entry comes from.
#[derive(Debug, Clone)]
pub(crate) enum ContextSource {
    Argument(Path),
    Slot(Named),
}

const NAMES_MAX: usize = 1_000;
const TIMEOUT_MS_MAX: u64 = 3_600_000;
/// How long an executor may take whose contract does not say.
pub(crate) const TIMEOUT_MS: u64 = 30_000;

impl Contract {
    /// Reads a contract file. Returns nothing when the tool is unknown; findings say everything.
    pub(crate) fn decode(node: &Node, file: &str, findings: &mut Findings) -> Option<Self> {
        let mut fields = Fields::of(node, findings)?;
        let tool = fields.required("tool", findings);
        let tool = tool.and_then(|node| decode::named(node, findings));
        let side_effect = fields.required("side_effect", findings);
        let side_effect =
            side_effect.and_then(|node| decode::word(node, &SideEffect::WORDS, findings));
        let gate = fields.optional("gate");
        let gate = gate.and_then(|node| decode::word(node, &RiskGate::WORDS, findings));
        let evidence = decode_parts::evidence(&mut fields, side_effect, findings);
        let transitions = decode_parts::transitions(fields.optional("transitions"), findings);
        let preconditions = decode_parts::preconditions(fields.optional("preconditions"), findings);
        let names = fields.optional("forbids_after");
        let forbids_after = decode::list_of(names, NAMES_MAX, findings, decode::named);
        let arguments = fields.optional("argument_value_invariants");
        let arguments = Invariant::list(arguments, AllowedOperators::All, findings);
        let schema_derived = fields.optional("schema_derived");
        let schema_derived = schema_derived.and_then(|node| decode::boolean(node, findings));
        let exclude = fields.optional("schema_derived_exclude");
        let schema_derived_exclude = decode::list_of(exclude, 256, findings, decode::path);
        let assertions = decode_parts::assertions(fields.optional("assertions"), findings);
        let format = fields.optional("response_format_invariants");
        let (finish_reasons, content) = decode_parts::response_format(format, findings);
        let execution = fields.optional("execution_constraints");
        let execution_constraints = decode_parts::execution(execution, findings);
        let policy = fields.optional("policy");
        let policy = policy.and_then(|node| Policy::decode(node, findings));
        let binds = decode_parts::binds(fields.optional("binds"), findings);
        let checkpoint = fields.optional("checkpoint");
        let checkpoint = checkpoint.and_then(|node| decode_parts::checkpoint(node, findings));
        let labels = fields.optional("adds_labels");
        let adds_labels = decode::list_of(labels, 64, findings, decode::label);
        let timeout_ms = decode_parts::timeout_ms(fields.optional("timeouts"), findings);
        let retries = decode_parts::retries(fields.optional("retries"), side_effect, findings);
        decode_parts::rate_limits(fields.optional("rate_limits"), findings);
        let errors = fields.optional("allowed_errors");
        let allowed_errors = decode_parts::allowed_errors(errors, findings);
        decode_parts::golden_cases(fields.optional("golden_cases"), findings);
        fields.finish(findings);
        let tool = tool?;
        check_file_name(file, &tool, findings);
        Some(Self {
            tool_at: tool.at,
            tool: tool.name,
            file: file.to_owned(),
            // Without a class there is a finding, and nothing starts.
            side_effect: side_effect.unwrap_or(SideEffect::Admin),
            gate,
            evidence_class: evidence.0,
            commit_requirement: evidence.1,
            timeout_ms,
            attempts_max: retries.0,
            retry_on: retries.1,
            allowed_errors,
            checkpoint,
            execution_constraints,
            valid_in_phases: transitions.0,
            advances_to: transitions.1,
            preconditions,
            forbids_after,
            arguments,
            schema_derived: schema_derived.unwrap_or(true),
            schema_derived_exclude,
            input_invariants: assertions.0,
            output_invariants: assertions.1,
            finish_reasons,
            content,
            policy,
            binds,
            adds_labels,
        })
    }

    /// Returns the slots that the contract refers to, and where.
    pub(crate) fn slots_used(&self) -> impl Iterator<Item = (&str, Place)> {
        let invariants = self.arguments.iter().chain(&self.execution_constraints);
        let refs = invariants.filter_map(Invariant::slot_used);
        let context = self
            .checkpoint
            .iter()
            .flat_map(|checkpoint| &checkpoint.context);
        let slots = context.filter_map(|entry| match &entry.source {
            ContextSource::Slot(slot) => Some((slot.name.as_str(), slot.at)),
            ContextSource::Argument(_) => None,
        });
        refs.chain(slots)
    }

    /// Says whether anything in the contract looks at arguments: such a contract cannot govern what a provider runs.
    pub(crate) fn reads_arguments(&self) -> bool {
        !self.arguments.is_empty()
            || !self.execution_constraints.is_empty()
            || self.checkpoint.is_some()
            || self.binds.iter().any(|bind| bind.from == Source::Arguments)
            || self
                .preconditions
                .iter()
                .any(|entry| !entry.same_as_prior.is_empty())
    }
}

/// Returns the tool that a file is named after; none for a document that was handed over without a file.
pub(crate) fn file_stem(file: &str) -> Option<&str> {
    let name = file_name(file);
    name.strip_suffix(".yaml")
        .or_else(|| name.strip_suffix(".yml"))
}

fn file_name(file: &str) -> &str {
    file.rsplit(['/', '\\']).next().unwrap_or(file)
}

fn check_file_name(file: &str, tool: &Named, findings: &mut Findings) {
    if file_stem(file).is_some_and(|stem| stem != tool.name) {
        let message = format!(
            "the file is named {} and its tool {}: they must be the same",
            shown(file_name(file)),
            shown(&tool.name)
        );
        findings.error(tool.at, Code::Contradiction, message);
    }
}
