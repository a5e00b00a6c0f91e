//! `reprise contracts check`: every finding, one to a line.

use contracts::{Finding, Severity};
use serde_json::{Value, json};

use super::CheckArgs;
use super::files::Folder;
use crate::exit::Exit;
use crate::output::{Output, Paint, many, printable, talk};

pub(super) fn run(args: &CheckArgs) -> anyhow::Result<Exit> {
    let folder = Folder::read(&args.folder)?;
    let compiled = folder.compile();
    let findings: &[Finding] = match &compiled {
        Ok(compiled) => compiled.warnings(),
        Err(error) => error.findings(),
    };
    let mut out = Output::stdout();
    if args.json {
        let list: Vec<Value> = findings.iter().map(as_json).collect();
        let digest = compiled
            .as_ref()
            .ok()
            .map(|compiled| compiled.digest().to_string());
        out.json(&json!({"ok": compiled.is_ok(), "digest": digest, "findings": list}))?;
    } else {
        for finding in findings {
            let paint = match finding.severity {
                Severity::Error => Paint::Bad,
                Severity::Warning => Paint::Waiting,
            };
            let line = out.paint(paint, &printable(&finding.to_string()));
            out.line(line)?;
        }
        if let Ok(compiled) = &compiled {
            let tools = compiled.tools().count();
            let tools = many(tools, "contract");
            out.line(format_args!("ok: {tools}, {}", compiled.digest()))?;
        }
    }
    match &compiled {
        Ok(_) => Ok(Exit::Ok),
        Err(_) => {
            let errors = findings
                .iter()
                .filter(|finding| finding.severity == Severity::Error);
            talk(format_args!(
                "{}: a session over these files does not start",
                many(errors.count(), "error")
            ));
            Ok(Exit::No)
        }
    }
}

fn as_json(finding: &Finding) -> Value {
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
