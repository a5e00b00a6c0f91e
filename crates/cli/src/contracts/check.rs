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
}

pub(super) fn run(args: &CheckArgs) -> anyhow::Result<Exit> {
    let checked = check(&args.folder)?;
    let errors = checked.findings.iter();
    let errors = errors.filter(|finding| finding.severity == Severity::Error);
    let errors = errors.count();
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
