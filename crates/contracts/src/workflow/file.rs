//! The workflow file: roles, permitted handoffs, common limits, shared things.

use std::collections::BTreeSet;

use canon::Digest;

use super::WorkflowRefusal;
use crate::compile::{CompileError, Source};
use crate::decimal::Decimal;
use crate::decode::{self, Fields, Named};
use crate::finding::{Code, Findings, shown};
use crate::path::Path;
use crate::value::Value;
use crate::yaml;

/// A compiled workflow file.
#[derive(Debug, Clone)]
pub struct Workflow {
    /// The workflow's name.
    pub name: String,
    roles: Vec<(Named, String)>,
    handoffs: BTreeSet<(String, String)>,
    pub(super) sessions_max: Option<u64>,
    pub(super) cost_max: Option<Decimal>,
    pub(super) tool_calls_max: Option<u64>,
    shared: Vec<Shared>,
    digest: Digest,
}

/// A thing that one session at a time may touch.
#[derive(Debug, Clone)]
struct Shared {
    name: Named,
    path: Path,
    tools: Vec<Named>,
}

const LIST_MAX: usize = 256;

/// Compiles a workflow file.
///
/// # Errors
/// Everything that is wrong with it.
pub fn compile_workflow(source: &Source) -> Result<Workflow, CompileError> {
    let mut findings = Findings::new(&source.file);
    let node = yaml::read(&source.text, &mut findings);
    let decoded = node
        .as_ref()
        .and_then(|node| decode_file(node, &mut findings));
    let findings = findings.into_list();
    let tree = node.map(|node| node.to_value());
    match (decoded, tree) {
        (Some(mut workflow), Some(tree)) if findings.is_empty() => {
            let key = tree.key().unwrap_or_default();
            workflow.digest = canon::sha256_parts([&b"reprise-workflow-1\n"[..], &key]);
            Ok(workflow)
        }
        (_, _) => Err(CompileError::of(findings)),
    }
}

fn decode_file(node: &yaml::Node, findings: &mut Findings) -> Option<Workflow> {
    let mut fields = Fields::of(node, findings)?;
    if let Some(node) = fields.required("schema_version", findings) {
        crate::session::schema_version(node, findings);
    }
    let name = fields.required("workflow", findings);
    let name = name.and_then(|node| decode::named(node, findings));
    let roles = fields.required("roles", findings);
    let roles = decode::list_of(roles, LIST_MAX, findings, |node, findings| {
        let mut fields = Fields::of(node, findings)?;
        let name = fields.required("name", findings);
        let name = name.and_then(|node| decode::named(node, findings));
        let file = fields.required("session_contract", findings);
        let file = file.and_then(|node| decode::bounded_text(node, 1_024, findings));
        fields.finish(findings);
        Some((name?, file?.to_owned()))
    });
    let pairs = decode::list_of(
        fields.optional("handoffs"),
        LIST_MAX,
        findings,
        |node, findings| {
            let mut fields = Fields::of(node, findings)?;
            let from = fields.required("from", findings);
            let from = from.and_then(|node| decode::named(node, findings));
            let to = fields.required("to", findings);
            let to = to.and_then(|node| decode::named(node, findings));
            fields.finish(findings);
            Some((from?, to?))
        },
    );
    let mut limits = (None, None, None);
    if let Some(mut fields) = fields
        .optional("limits")
        .and_then(|node| Fields::of(node, findings))
    {
        let whole = |node: Option<&yaml::Node>, findings: &mut Findings| {
            node.and_then(|node| decode::integer(node, 1, 1 << 53, findings))
        };
        limits.0 = whole(fields.optional("max_sessions"), findings);
        limits.2 = whole(fields.optional("max_tool_calls"), findings);
        if let Some(node) = fields.optional("max_cost") {
            limits.1 = decode::number(node, findings);
            if limits.1.is_some_and(|cost| cost <= Decimal::ZERO) {
                findings.error(node.at, Code::BadValue, "expected more than 0");
            }
        }
        fields.finish(findings);
    }
    let shared = decode::list_of(
        fields.optional("shared_resources"),
        LIST_MAX,
        findings,
        |node, findings| {
            let mut fields = Fields::of(node, findings)?;
            let name = fields.required("name", findings);
            let name = name.and_then(|node| decode::named(node, findings));
            let path = fields.required("path", findings);
            let path = path.and_then(|node| decode::path(node, findings));
            let tools = fields.required("tools", findings);
            let tools = decode::list_of(tools, LIST_MAX, findings, decode::named);
            let mode = fields.required("mode", findings);
            mode.and_then(|node| decode::word(node, &[("exclusive", ())], findings));
            fields.finish(findings);
            Some(Shared {
                name: name?,
                path: path?,
                tools,
            })
        },
    );
    fields.finish(findings);
    check(&roles, &pairs, &shared, findings);
    Some(Workflow {
        name: name?.name,
        handoffs: pairs
            .into_iter()
            .map(|(from, to)| (from.name, to.name))
            .collect(),
        roles,
        sessions_max: limits.0,
        cost_max: limits.1,
        tool_calls_max: limits.2,
        shared,
        digest: canon::sha256(b""),
    })
}

fn check(
    roles: &[(Named, String)],
    pairs: &[(Named, Named)],
    shared: &[Shared],
    findings: &mut Findings,
) {
    let mut known = BTreeSet::new();
    for (role, _) in roles {
        if !known.insert(role.name.as_str()) {
            let message = format!("role {} occurs twice", shown(&role.name));
            findings.error(role.at, Code::DuplicateName, message);
        }
    }
    for named in pairs.iter().flat_map(|(from, to)| [from, to]) {
        if !known.contains(named.name.as_str()) {
            let message = format!("role {} is declared nowhere", shown(&named.name));
            findings.error(named.at, Code::UnknownName, message);
        }
    }
    let mut names = BTreeSet::new();
    for thing in shared {
        if !names.insert(thing.name.name.as_str()) {
            let message = format!("resource {} occurs twice", shown(&thing.name.name));
            findings.error(thing.name.at, Code::DuplicateName, message);
        }
    }
}

/// Says whether two paths can name the same file: the shorter one is the end of the longer one, part by part.
pub fn names_same_file(one: &str, other: &str) -> bool {
    fn parts(path: &str) -> impl Iterator<Item = &str> {
        let parts = path.rsplit(['/', '\\']);
        parts.filter(|part| !part.is_empty() && *part != ".")
    }
    parts(one).next().is_some()
        && parts(other).next().is_some()
        && parts(one)
            .zip(parts(other))
            .all(|(one, other)| one == other)
}

impl Workflow {
    /// Checks that a session of a role is under the role's session file.
    pub(super) fn check_contract(&self, role: &str, file: &str) -> Result<(), WorkflowRefusal> {
        let Some(named) = self.session_file(role) else {
            return Err(WorkflowRefusal::UnknownRole(role.to_owned()));
        };
        match names_same_file(named, file) {
            true => Ok(()),
            false => Err(WorkflowRefusal::OtherContract {
                role: role.to_owned(),
                named: named.to_owned(),
            }),
        }
    }

    /// Returns the digest of what the file says.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Returns the roles with their session files.
    pub fn roles(&self) -> impl Iterator<Item = (&str, &str)> {
        let roles = self.roles.iter();
        roles.map(|(named, file)| (named.name.as_str(), file.as_str()))
    }

    /// Returns the session file of a role.
    pub fn session_file(&self, role: &str) -> Option<&str> {
        let found = self.roles.iter().find(|(named, _)| named.name == role);
        found.map(|(_, file)| file.as_str())
    }

    pub(super) fn has_role(&self, role: &str) -> bool {
        self.session_file(role).is_some()
    }

    /// Says whether one role may hand over to another.
    pub fn permits(&self, from: &str, to: &str) -> bool {
        self.handoffs.contains(&(from.to_owned(), to.to_owned()))
    }

    /// Returns the shared things that a call names; a value that is not there is none.
    pub(super) fn resources(&self, tool: &str, arguments: &Value) -> Vec<(String, Option<String>)> {
        let shared = self.shared.iter();
        let shared = shared.filter(|shared| shared.tools.iter().any(|named| named.name == tool));
        let things = shared.map(|shared| {
            let value = shared.path.find(arguments).map(Value::to_json);
            (shared.name.name.clone(), value)
        });
        things.collect()
    }
}
