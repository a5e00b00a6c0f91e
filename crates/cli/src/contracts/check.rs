//! `reprise contracts check`: every finding, one to a line.

use std::path::{Component, Path};

use contracts::workflow::{Workflow, compile_workflow};
use contracts::{Compiled, Finding, Severity};
use serde_json::{Value, json};

use super::CheckArgs;
use super::files::Folder;
use crate::exit::{Exit, Problem};
use crate::output::{Output, Paint, many, printable, talk};

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

/// What there is to say about the schema of a tool.
struct Schema {
    tool: String,
    /// The keywords that nothing checks; none where no contract has the tool.
    ignored: Option<Vec<String>>,
    wrong: Vec<String>,
}

impl Schema {
    fn is_wrong(&self) -> bool {
        !self.wrong.is_empty()
    }
}

impl std::fmt::Display for Schema {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let tool = &self.tool;
        match &self.ignored {
            None => write!(
                f,
                "tool `{tool}`: warning: it has no contract, so that it is blocked"
            ),
            Some(_) if self.is_wrong() => {
                write!(
                    f,
                    "tool `{tool}`: error[schema_invalid]: {}",
                    self.wrong.join("; ")
                )
            }
            Some(ignored) => write!(
                f,
                "tool `{tool}`: warning[schema_keyword_ignored]: nothing checks `{}` of its schema: demand what it says in the \
                 contract",
                ignored.join("`, `")
            ),
        }
    }
}

pub(super) fn run(args: &CheckArgs) -> anyhow::Result<Exit> {
    let mut checked = check(&args.folder)?;
    if let Some(file) = &args.tools {
        checked.look_at(&super::draft::schemas(file)?);
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
            let tools = many(compiled.tools().count(), "contract");
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
        talk(format_args!(
            "note: `execution_constraints` of {} hold where the tool runs through a session (the agent, a wrapped executor). \
             A program that reports executions over HTTP must check them itself.",
            printable(&tools.join(", "))
        ));
    }
    if errors == 0 {
        return Ok(Exit::Ok);
    }
    talk(format_args!(
        "{}: a session over these files does not start",
        many(errors, "error")
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
            let message = format!("role `{role}`: `{file}` is not there");
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

    /// Looks at the schemas that tools are offered with, as far as contracts check them.
    fn look_at(&mut self, tools: &[(String, Value)]) {
        use contracts::json::{Limits, Numbers, read};
        for (tool, schema) in tools {
            let sets = self.sets.iter().map(|(_, compiled)| compiled);
            let mut sets = sets.filter(|compiled| compiled.contract(tool).is_some());
            let said = |ignored, wrong| Schema {
                tool: tool.clone(),
                ignored,
                wrong,
            };
            let Some(compiled) = sets.next() else {
                self.schemas.push(said(None, Vec::new()));
                continue;
            };
            let text = match schema {
                Value::Null => "{}".to_owned(),
                schema => schema.to_string(),
            };
            let form = match read(&text, Limits::MESSAGE, Numbers::Any) {
                Ok(schema) => compiled.schema_form(tool, &schema),
                Err(error) => {
                    let wrong = vec![error.to_string()];
                    self.schemas.push(said(Some(Vec::new()), wrong));
                    continue;
                }
            };
            // A contract that does not look at the schema asks nothing of it.
            let Some(form) = form else { continue };
            if !form.ignored.is_empty() || !form.wrong.is_empty() {
                let ignored = form.ignored.into_iter().collect();
                self.schemas.push(said(Some(ignored), form.wrong));
            }
        }
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
        let schemas = checked.schemas.iter().map(|schema| {
            json!({"tool": schema.tool, "has_contract": schema.ignored.is_some(),
                "ignored": schema.ignored, "wrong": schema.wrong})
        });
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
