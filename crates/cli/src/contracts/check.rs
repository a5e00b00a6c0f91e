//! `reprise contracts check`: every finding, one to a line.

use std::path::{Component, Path};

use contracts::workflow::{Workflow, compile_workflow};
use contracts::{Compiled, Finding, Severity};
use serde_json::{Value, json};

use super::CheckArgs;
use super::draft::Defined;
use super::files::Folder;
use crate::exit::{Exit, Problem};
use crate::output::{Output, Paint, inform, plural, printable};

/// What a folder comes to.
#[derive(Default)]
struct Checked {
    findings: Vec<Finding>,
    /// The set of contracts, or one for each role of a workflow.
    sets: Vec<(Option<String>, Compiled)>,
    workflow: Option<Workflow>,
    /// What there is to say about the schemas that tools are offered with.
    schemas: Vec<Schema>,
}

/// What there is to say about a tool.
struct Schema {
    tool: String,
    /// The role whose contracts say so, where there are several.
    role: Option<String>,
    said: Said,
}

enum Said {
    /// No contract has it.
    NoContract,
    /// A contract has it, and it is not offered.
    NotOffered,
    /// Nobody would take its definition.
    Unreadable(String),
    /// What makes its schema none.
    Wrong(Vec<String>),
    /// The keywords of its schema that nothing checks.
    Ignored(Vec<String>),
}

impl Schema {
    fn is_wrong(&self) -> bool {
        match &self.said {
            Said::Unreadable(_) | Said::Wrong(_) => true,
            Said::NoContract | Said::NotOffered | Said::Ignored(_) => false,
        }
    }

    fn as_json(&self) -> Value {
        let (ignored, wrong) = match &self.said {
            Said::NoContract => (None, Vec::new()),
            Said::NotOffered => (Some(Vec::new()), Vec::new()),
            Said::Unreadable(why) => (Some(Vec::new()), vec![why.clone()]),
            Said::Wrong(wrong) => (Some(Vec::new()), wrong.clone()),
            Said::Ignored(ignored) => (Some(ignored.clone()), Vec::new()),
        };
        let is_offered = !matches!(self.said, Said::NotOffered);
        let mut shown = json!({"tool": self.tool, "has_contract": ignored.is_some(),
            "offered": is_offered, "ignored": ignored, "wrong": wrong});
        if let (Value::Object(members), Some(role)) = (&mut shown, &self.role) {
            members.insert("role".to_owned(), role.clone().into());
        }
        shown
    }
}

impl std::fmt::Display for Schema {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(role) = &self.role {
            write!(f, "role {role}, ")?;
        }
        write!(f, "tool `{}`: ", self.tool)?;
        match &self.said {
            Said::NoContract => write!(f, "warning: it has no contract, so it is blocked"),
            Said::NotOffered => write!(
                f,
                "warning: it has a contract, but the file of tools does not define it"
            ),
            Said::Unreadable(why) => write!(f, "error[tool_unreadable]: {why}"),
            Said::Wrong(wrong) => write!(f, "error[schema_invalid]: {}", wrong.join("; ")),
            Said::Ignored(ignored) => write!(
                f,
                "warning[schema_keyword_ignored]: nothing checks `{}` of its schema: demand what it says in the contract",
                ignored.join("`, `")
            ),
        }
    }
}

pub(super) fn run(args: &CheckArgs) -> anyhow::Result<Exit> {
    let mut checked = check(&args.folder)?;
    if let Some(file) = &args.tools {
        let tools = super::draft::schemas(file)?;
        // What does not compile says nothing about tools.
        if !checked.has_errors() {
            checked.look_at(&tools);
        }
    }
    let wrong = checked.schemas.iter().filter(|schema| schema.is_wrong());
    let errors = checked.findings.iter();
    let errors = errors.filter(|finding| finding.severity == Severity::Error);
    let errors = errors.count() + wrong.count();
    let mut out = Output::stdout();
    if args.json {
        out.json(&as_json(&checked, errors == 0))?;
    } else {
        for finding in &checked.findings {
            let paint = match finding.severity {
                Severity::Error => Paint::Bad,
                Severity::Warning => Paint::Waiting,
            };
            let line = out.paint(paint, &printable(&finding.to_string()));
            out.line(line)?;
        }
        for schema in &checked.schemas {
            let paint = match schema.is_wrong() {
                true => Paint::Bad,
                false => Paint::Waiting,
            };
            let line = out.paint(paint, &printable(&schema.to_string()));
            out.line(line)?;
        }
        for (role, compiled) in checked.sets.iter().filter(|_| errors == 0) {
            let role = role.as_ref().map(|role| format!("role {role}: "));
            let tools = plural(compiled.tools().count(), "contract");
            let role = printable(&role.unwrap_or_default());
            out.line(format_args!("ok: {role}{tools}, {}", compiled.digest()))?;
        }
        if let Some(workflow) = checked.workflow.as_ref().filter(|_| errors == 0) {
            let name = printable(&workflow.name);
            out.line(format_args!("ok: workflow {name}, {}", workflow.digest()))?;
        }
    }
    let tools = wrapped_only(&checked);
    if !tools.is_empty() && !args.json {
        inform(format_args!(
            "note: `execution_constraints` of {} hold where the tool runs through a session (the agent, a wrapped executor). \
             A program that reports executions over HTTP must check them itself.",
            printable(&tools.join(", "))
        ));
    }
    if errors == 0 {
        return Ok(Exit::Ok);
    }
    inform(format_args!(
        "{}: a session over these files does not start",
        plural(errors, "error")
    ));
    Ok(Exit::No)
}

fn check(folder: &Path) -> anyhow::Result<Checked> {
    let read = Folder::read_any(folder)?;
    let mut checked = Checked::default();
    if !read.contracts.is_empty() || read.session.is_some() {
        checked.compile(None, &read);
    }
    let Some(source) = &read.workflow else {
        return Ok(checked);
    };
    let workflow = match compile_workflow(source) {
        Ok(workflow) => workflow,
        Err(error) => {
            checked.findings.extend_from_slice(error.findings());
            return Ok(checked);
        }
    };
    for (role, file) in workflow.roles() {
        let path = Path::new(file);
        let is_inside = path
            .components()
            .all(|part| matches!(part, Component::Normal(_)));
        let named = path.file_name().is_some_and(|name| name == "session.yaml");
        let own = path.parent().filter(|_| is_inside && named);
        let Some(own) = own.filter(|own| *own != Path::new("")) else {
            let message = format!("`{}`: role `{role}` names `{file}`", source.file);
            let hint = "each role has a folder of its own beside the workflow: `ROLE/session.yaml`";
            return Err(Problem::new(message, hint).answers_no().into());
        };
        let own = Folder::read(&folder.join(own))?;
        if own.session.is_none() {
            let message = format!("role `{role}`: `{file}` does not exist");
            return Err(Problem::new(message, "write the session file")
                .answers_no()
                .into());
        }
        checked.compile(Some(role), &own);
    }
    checked.workflow = Some(workflow);
    Ok(checked)
}

impl Checked {
    fn compile(&mut self, role: Option<&str>, folder: &Folder) {
        match folder.compile() {
            Ok(compiled) => {
                self.findings.extend_from_slice(compiled.warnings());
                self.sets.push((role.map(str::to_owned), compiled));
            }
            Err(error) => self.findings.extend_from_slice(error.findings()),
        }
    }

    fn has_errors(&self) -> bool {
        let mut findings = self.findings.iter();
        findings.any(|finding| finding.severity == Severity::Error)
    }

    /// Looks at tools as they are offered, as far as contracts check them: under the contracts of each role.
    fn look_at(&mut self, tools: &[Defined]) {
        let mut found = Vec::new();
        for tool in tools {
            let said = |role: Option<&String>, said| Schema {
                tool: tool.name.clone(),
                role: role.cloned(),
                said,
            };
            if let Some(why) = &tool.wrong {
                found.push(said(None, Said::Unreadable(why.clone())));
                continue;
            }
            let sets = self.sets.iter();
            let mut sets = sets
                .filter(|(_, compiled)| compiled.contract(&tool.name).is_some())
                .peekable();
            if sets.peek().is_none() {
                found.push(said(None, Said::NoContract));
            }
            for (role, compiled) in sets {
                let about = tool
                    .schema
                    .as_ref()
                    .and_then(|schema| look(compiled, tool, schema));
                found.extend(about.map(|about| said(role.as_ref(), about)));
            }
        }
        for (role, compiled) in &self.sets {
            let is_offered = |name: &str| tools.iter().any(|tool| tool.name == name);
            let missing = compiled
                .tools()
                .filter(|contract| !is_offered(&contract.tool));
            found.extend(missing.map(|contract| Schema {
                tool: contract.tool.clone(),
                role: role.clone(),
                said: Said::NotOffered,
            }));
        }
        self.schemas = found;
    }
}

/// Says what there is to say about the schema of a tool that a contract has. One that does not look at it asks nothing of it.
fn look(compiled: &Compiled, tool: &Defined, schema: &Value) -> Option<Said> {
    use contracts::json::{Limits, Numbers, read};
    let text = match schema {
        Value::Null => "{}".to_owned(),
        schema => schema.to_string(),
    };
    let patterns = &mut contracts::PatternBudget::of_schemas();
    let form = match read(&text, Limits::MESSAGE, Numbers::Any) {
        Ok(schema) => compiled.schema_form(&tool.name, &schema, patterns)?,
        Err(error) => return Some(Said::Wrong(vec![error.to_string()])),
    };
    match (form.wrong.is_empty(), form.ignored.is_empty()) {
        (false, _) => Some(Said::Wrong(form.wrong)),
        (true, false) => Some(Said::Ignored(form.ignored.into_iter().collect())),
        (true, true) => None,
    }
}

/// Returns the tools with rules about what their executor is given: they hold only where a session calls it.
fn wrapped_only(checked: &Checked) -> Vec<String> {
    let sets = checked.sets.iter();
    let tools = sets.flat_map(|(_, compiled)| compiled.tools());
    let tools = tools.filter(|contract| !contract.execution_constraints.is_empty());
    tools.map(|contract| contract.tool.clone()).collect()
}

fn as_json(checked: &Checked, ok: bool) -> Value {
    let findings: Vec<Value> = checked.findings.iter().map(finding).collect();
    let digest = |own: Option<&str>| {
        let mut sets = checked.sets.iter();
        let found = sets.find(|(role, _)| role.as_deref() == own);
        found
            .filter(|_| ok)
            .map(|(_, set)| set.digest().to_string())
    };
    let mut shown = json!({
        "ok": ok,
        "digest": digest(None),
        "findings": findings,
        "wrapped_only": wrapped_only(checked),
    });
    if let (Value::Object(members), false) = (&mut shown, checked.schemas.is_empty()) {
        let schemas = checked.schemas.iter().map(Schema::as_json);
        members.insert("schemas".to_owned(), schemas.collect());
    }
    if let (Value::Object(members), Some(workflow)) = (&mut shown, &checked.workflow) {
        let roles = workflow.roles();
        let roles = roles.map(|(role, _)| (role.to_owned(), json!(digest(Some(role)))));
        let roles: serde_json::Map<String, Value> = roles.collect();
        let workflow = json!({
            "name": workflow.name,
            "digest": ok.then(|| workflow.digest().to_string()),
            "roles": roles,
        });
        members.insert("workflow".to_owned(), workflow);
    }
    shown
}

fn finding(finding: &Finding) -> Value {
    json!({
        "file": finding.file,
        "line": finding.line,
        "column": finding.column,
        "severity": match finding.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        },
        "code": finding.code.as_str(),
        "message": finding.message,
    })
}
