//! Files to one immutable form with a digest: everything that is wrong is found at once, and then nothing starts.
//!
//! Two sets of files with the same meaning of every key have the same digest; comments, order of keys and file names
//! do not count.

mod reach;

use std::collections::{BTreeMap, BTreeSet};

use canon::Digest;

use crate::contract::{Content, Contract, Precondition, RiskGate, file_stem};
use crate::finding::{Code, Finding, Findings, Place, Severity, shown};
use crate::invariant::Invariant;
use crate::path::Path;
use crate::pattern::PatternBudget;
use crate::schema::SchemaForm;
use crate::session::Session;
use crate::value::Value;
use crate::yaml;

/// A file's name and text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The name that findings and decisions show.
    pub file: String,
    /// The YAML text.
    pub text: String,
}

/// The files do not compile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the contracts do not compile: {} findings", findings.len())]
pub struct CompileError {
    findings: Vec<Finding>,
}

impl CompileError {
    pub(crate) fn of(findings: Vec<Finding>) -> Self {
        Self { findings }
    }

    /// Returns everything that is wrong, warnings included, in the order of files and lines.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }
}

/// Contracts and session file, ready to judge by.
#[derive(Debug, Clone)]
pub struct Compiled {
    pub(crate) tools: BTreeMap<String, ToolRules>,
    pub(crate) session: Session,
    /// Every precondition of every contract; tools name them by index.
    pub(crate) preconditions: Vec<Precondition>,
    digest: Digest,
    warnings: Vec<Finding>,
    /// About how much its patterns are when compiled, in units of 32 bytes.
    patterns_size: u64,
}

/// A contract with what other files say about its tool.
#[derive(Debug, Clone)]
pub(crate) struct ToolRules {
    pub(crate) contract: Contract,
    /// The contract's own gate, else the default of its class, else open.
    pub(crate) gate: RiskGate,
    /// Preconditions of this tool.
    pub(crate) preconditions: Vec<usize>,
    /// Preconditions of any tool that wait for this one.
    pub(crate) awaited_by: Vec<usize>,
    /// Aggregates that calls of this tool feed.
    pub(crate) aggregates: Vec<usize>,
    /// Envelopes that calls of this tool establish.
    pub(crate) establishes: Vec<usize>,
    /// Envelopes that bound an argument of this tool.
    pub(crate) constrained: Vec<(usize, Path)>,
}

const CONTRACTS_MAX: usize = 1_000;

/// Compiles contracts and, if there is one, a session file.
///
/// # Errors
/// All findings, when one of them is an error.
pub fn compile(contracts: &[Source], session: Option<&Source>) -> Result<Compiled, CompileError> {
    compile_within(contracts, session, PatternBudget::of_files())
}

/// The same for files that a record holds, whatever their patterns cost: what began under them goes on under them.
///
/// # Errors
/// As [`compile`].
pub fn compile_recorded(
    contracts: &[Source],
    session: Option<&Source>,
) -> Result<Compiled, CompileError> {
    compile_within(contracts, session, PatternBudget::recorded())
}

fn compile_within(
    contracts: &[Source],
    session: Option<&Source>,
    mut patterns: PatternBudget,
) -> Result<Compiled, CompileError> {
    let whole = patterns;
    let mut all: Vec<Finding> = Vec::new();
    if contracts.len() > CONTRACTS_MAX {
        let mut findings = Findings::new("contracts");
        let message = "more than 1,000 contracts in a session";
        findings.error(Place::default(), Code::TooLarge, message);
        return Err(CompileError {
            findings: findings.into_list(),
        });
    }
    let mut trees = BTreeMap::new();
    let (session, session_tree) = read_session(session, &mut patterns, &mut all);
    let mut tools: BTreeMap<String, (Contract, Findings)> = BTreeMap::new();
    let mut unread = BTreeSet::new();
    for source in contracts {
        let mut findings = Findings::after(&source.file, patterns);
        let node = yaml::read(&source.text, &mut findings);
        let contract = node
            .as_ref()
            .and_then(|node| Contract::decode(node, &source.file, &mut findings));
        patterns = findings.patterns;
        let (Some(contract), Some(node)) = (contract, node) else {
            unread.extend(file_stem(&source.file).map(str::to_owned));
            all.extend(findings.into_list());
            continue;
        };
        if let Some((earlier, _)) = tools.get(&contract.tool) {
            let message = format!(
                "tool {} already has a contract in {}",
                shown(&contract.tool),
                shown(&earlier.file)
            );
            findings.error(contract.tool_at, Code::DuplicateName, message);
            all.extend(findings.into_list());
            continue;
        }
        trees.insert(contract.tool.clone(), node.to_value());
        tools.insert(contract.tool.clone(), (contract, findings));
    }
    check_names(&mut tools, &session, &unread, &mut all);
    let mut contracts = BTreeMap::new();
    for (tool, (contract, findings)) in tools {
        all.extend(findings.into_list());
        contracts.insert(tool, contract);
    }
    let mut compiled = link(contracts, session, digest(trees, session_tree));
    if all
        .iter()
        .all(|finding| finding.severity == Severity::Warning)
    {
        all.extend(reach::warnings(&compiled));
    }
    all.sort();
    all.dedup();
    if all
        .iter()
        .any(|finding| finding.severity == Severity::Error)
    {
        return Err(CompileError { findings: all });
    }
    compiled.warnings = all;
    compiled.patterns_size = whole.used(patterns);
    Ok(compiled)
}

/// Reads a YAML document as strictly as contracts are read, with every digit of its numbers.
///
/// # Errors
/// Everything that is wrong with it.
pub fn read_document(source: &Source) -> Result<Value, CompileError> {
    let mut findings = Findings::new(&source.file);
    let node = yaml::read(&source.text, &mut findings);
    let findings = findings.into_list();
    match node {
        Some(node) if findings.is_empty() => Ok(node.to_value()),
        Some(_) | None => Err(CompileError { findings }),
    }
}

impl Compiled {
    /// Returns the digest that approvals and records are bound to.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Returns what somebody should look at although it compiles.
    pub fn warnings(&self) -> &[Finding] {
        &self.warnings
    }

    /// Returns about how many bytes its patterns are when compiled.
    pub fn patterns_bytes(&self) -> u64 {
        self.patterns_size.saturating_mul(32)
    }

    /// Says whether the files would compile if they were new.
    pub fn is_within_bounds(&self) -> bool {
        self.patterns_size <= PatternBudget::of_files().size()
    }

    /// Returns the tools that have a contract.
    pub fn tools(&self) -> impl Iterator<Item = &Contract> {
        self.tools.values().map(|rules| &rules.contract)
    }

    /// Returns the contract of a tool.
    pub fn contract(&self, tool: &str) -> Option<&Contract> {
        self.tools.get(tool).map(|rules| &rules.contract)
    }

    /// Says whether some rule looks at what the model was sent.
    pub fn reads_input(&self) -> bool {
        let mut contracts = self.tools();
        contracts.any(|contract| !contract.input_invariants.is_empty())
    }

    /// Says whether a call of a tool is judged by what the model was sent.
    pub fn reads_request(&self, tool: &str) -> bool {
        let contract = self.contract(tool);
        contract.is_some_and(|contract| !contract.input_invariants.is_empty())
    }

    /// Says whether a call of a tool is judged by what the model wrote beside it.
    pub fn reads_content(&self, tool: &str) -> bool {
        let content = Path::root().member("content");
        let reads = |invariant: &Invariant| {
            let path = invariant.path();
            path.covers(&content) || content.covers(path)
        };
        let contract = self.contract(tool);
        contract.is_some_and(|contract| {
            contract.content != Content::Any || contract.output_invariants.iter().any(reads)
        })
    }

    /// Says whether calls of a tool are checked against the schema that it is offered with.
    pub fn reads_schema(&self, tool: &str) -> bool {
        let contract = self.contract(tool);
        contract.is_some_and(|contract| contract.schema_derived)
    }

    /// Says what of an offered schema is checked; none where the tool's contract does not look at it.
    pub fn schema_form(
        &self,
        tool: &str,
        schema: &Value,
        patterns: &mut PatternBudget,
    ) -> Option<SchemaForm> {
        let contract = self.contract(tool)?;
        let exclude = &contract.schema_derived_exclude;
        contract
            .schema_derived
            .then(|| SchemaForm::of(schema, exclude, patterns))
    }

    /// Says whether the session file limits cost.
    pub fn limits_cost(&self) -> bool {
        self.session.limits.cost_max.is_some()
    }

    /// Returns the session file, or its defaults when there is none.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Returns the phase that a session starts in; none without a phase machine.
    pub fn initial_phase(&self) -> Option<&str> {
        let phases = self.session.phases.as_ref()?;
        Some(&phases.initial)
    }

    /// Returns the phases that can follow a phase.
    pub fn legal_next_phases(&self, phase: Option<&str>) -> Vec<String> {
        let phases = self.session.phases.as_ref().zip(phase);
        let successors = phases.and_then(|(phases, phase)| phases.successors.get(phase));
        successors.into_iter().flatten().cloned().collect()
    }

    /// Returns the paths into a tool's output that some rule looks at.
    pub(crate) fn output_paths(&self, tool: &str) -> BTreeSet<&Path> {
        use crate::contract::Source as From;
        let mut paths = BTreeSet::new();
        let Some(rules) = self.tools.get(tool) else {
            return paths;
        };
        for index in &rules.awaited_by {
            let Some(entry) = self.preconditions.get(*index) else {
                continue;
            };
            paths.extend(entry.with_output.iter().map(|condition| condition.path()));
            let same = entry.same_as_prior.iter();
            paths.extend(
                same.filter(|pair| pair.prior_from == From::Output)
                    .map(|pair| &pair.prior),
            );
        }
        let binds = rules.contract.binds.iter();
        paths.extend(
            binds
                .filter(|bind| bind.from == From::Output)
                .map(|bind| &bind.path),
        );
        for index in &rules.establishes {
            let envelope = self.session.envelopes.get(*index);
            let envelope = envelope.filter(|envelope| envelope.establish_from == From::Output);
            paths.extend(envelope.map(|envelope| &envelope.establish_path));
        }
        paths
    }
}

fn read_session(
    source: Option<&Source>,
    patterns: &mut PatternBudget,
    all: &mut Vec<Finding>,
) -> (Session, Value) {
    let Some(source) = source else {
        return (Session::default(), Value::Null);
    };
    let mut findings = Findings::after(&source.file, *patterns);
    let node = yaml::read(&source.text, &mut findings);
    let session = node
        .as_ref()
        .and_then(|node| Session::decode(node, &source.file, &mut findings));
    *patterns = findings.patterns;
    all.extend(findings.into_list());
    let tree = node.map_or(Value::Null, |node| node.to_value());
    let unread = || Session {
        names_phases: true,
        ..Session::default()
    };
    (session.unwrap_or_else(unread), tree)
}

/// Checks the names that one file uses and another declares. What is wrong with a file that cannot be read is said by itself: the
/// tool that it is named after counts as declared.
fn check_names(
    tools: &mut BTreeMap<String, (Contract, Findings)>,
    session: &Session,
    unread: &BTreeSet<String>,
    all: &mut Vec<Finding>,
) {
    let known: BTreeSet<String> = tools.keys().chain(unread).cloned().collect();
    let slots: BTreeSet<String> = tools
        .values()
        .flat_map(|(contract, _)| &contract.binds)
        .map(|bind| bind.slot.name.clone())
        .collect();
    let mut session_findings = Findings::new(&session.file);
    for named in session.tools_named() {
        if !known.contains(&named.name) {
            let message = format!("tool {} has no contract", shown(&named.name));
            session_findings.error(named.at, Code::UnknownName, message);
        }
    }
    all.extend(session_findings.into_list());
    for (contract, findings) in tools.values_mut() {
        let prior = contract.preconditions.iter().map(|entry| &entry.prior_tool);
        for named in prior.chain(&contract.forbids_after) {
            if !known.contains(&named.name) {
                let message = format!("tool {} has no contract", shown(&named.name));
                findings.error(named.at, Code::UnknownName, message);
            }
        }
        // A file that cannot be read may bind any slot.
        for (slot, at) in contract.slots_used().filter(|_| unread.is_empty()) {
            if !slots.contains(slot) {
                let message = format!("slot {} is bound by no contract", shown(slot));
                findings.error(at, Code::UnknownName, message);
            }
        }
        let phases = contract.valid_in_phases.iter().flatten();
        for named in phases.chain(&contract.advances_to) {
            let message = match &session.phases {
                None if session.names_phases => continue,
                None => "the session file has no phases".to_owned(),
                Some(machine) if machine.names.contains(&named.name) => continue,
                Some(_) => format!("phase {} is declared nowhere", shown(&named.name)),
            };
            findings.error(named.at, Code::UnknownName, message);
        }
    }
}

/// Puts beside each contract what the session file says about its tool.
fn link(contracts: BTreeMap<String, Contract>, session: Session, digest: Digest) -> Compiled {
    let mut preconditions: Vec<Precondition> = Vec::new();
    let mut tools: BTreeMap<String, ToolRules> = BTreeMap::new();
    for (tool, contract) in contracts {
        let first = preconditions.len();
        preconditions.extend(contract.preconditions.iter().cloned());
        let by_class = session.risk_defaults.as_ref();
        let by_class = by_class.and_then(|gates| gates.get(&contract.side_effect).copied());
        let gate = contract.gate.or(by_class).unwrap_or(RiskGate::Allow);
        let aggregates = session.aggregates.iter().enumerate();
        let aggregates = aggregates.filter(|(_, aggregate)| aggregate.counts(&tool));
        let envelopes = || session.envelopes.iter().enumerate();
        let establishes = envelopes().filter(|(_, entry)| entry.establish_tool.name == tool);
        let constrained = envelopes().flat_map(|(index, entry)| {
            let bounds = entry.constrain.iter();
            let own = bounds.filter(|(named, _)| named.name == tool);
            own.map(move |(_, path)| (index, path.clone()))
        });
        let rules = ToolRules {
            gate,
            preconditions: (first..preconditions.len()).collect(),
            awaited_by: Vec::new(),
            aggregates: aggregates.map(|(index, _)| index).collect(),
            establishes: establishes.map(|(index, _)| index).collect(),
            constrained: constrained.collect(),
            contract,
        };
        tools.insert(tool, rules);
    }
    for (index, entry) in preconditions.iter().enumerate() {
        if let Some(rules) = tools.get_mut(&entry.prior_tool.name) {
            rules.awaited_by.push(index);
        }
    }
    Compiled {
        tools,
        session,
        preconditions,
        digest,
        warnings: Vec::new(),
        patterns_size: 0,
    }
}

/// Hashes what the files say, under the version of the language they are read by.
fn digest(contracts: BTreeMap<String, Value>, session: Value) -> Digest {
    let whole = Value::Object(BTreeMap::from([
        ("contracts".to_owned(), Value::Object(contracts)),
        ("session".to_owned(), session),
    ]));
    // Files hold no number out of range, so there always is a key.
    canon::sha256_parts([
        &b"reprise-contracts-1\n"[..],
        &whole.key().unwrap_or_default(),
    ])
}
