//! Trust records: who let an agent do what, from a server or from an exported file.

use std::path::Path;

use receipts::KeySet;
use receipts::trust::{verify_export, verify_signatures};
use serde_json::Value;

use super::file::{read_file, read_keys, read_receipt};
use super::report::{Findings, Question};
use super::{names_file, online};
use crate::args::Connection;
use crate::exit::{Exit, OrHint};
use crate::output::{Output, Table, inform, printable, shorten};

/// What is asked.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    /// A session's id, a task's id, or a file.
    pub(crate) name: &'a str,
    pub(crate) keys: Option<&'a Path>,
    pub(crate) receipt: Option<&'a Path>,
    pub(crate) question: Question,
    pub(crate) json: bool,
    pub(crate) connection: &'a Connection,
}

/// Shows a chain and checks it.
pub(crate) fn run(request: &Request<'_>) -> anyhow::Result<Exit> {
    let mut keys = request.keys.map(read_keys).transpose()?;
    let bytes = if names_file(request.name) {
        read_file(request.name.as_ref())?
    } else {
        let (export, published) = crate::wait(online::trust(request.connection, request.name))?;
        let read = || {
            KeySet::from_jwks(&canon::jcs(&published)).or_hint("the server's keys", "give --keys")
        };
        if keys.is_none() {
            keys = Some(read()?);
        }
        canon::jcs(&export)
    };
    let mut findings = check(&bytes, keys.as_ref(), request.question);
    if let Some(path) = request.receipt {
        check_evidence(&bytes, path, &mut findings)?;
    }
    let mut out = Output::stdout();
    if request.json {
        out.write(&String::from_utf8_lossy(&bytes))?;
        if let Some(reason) = findings.reason() {
            inform(format_args!("the chain does not hold: {reason}"));
        }
    } else {
        describe(&mut out, &bytes)?;
        findings.print(&mut out, false)?;
    }
    Ok(findings.exit())
}

fn check(bytes: &[u8], keys: Option<&KeySet>, question: Question) -> Findings {
    let mut findings = Findings::of(question);
    let refused = |findings: &mut Findings, name: &str, refusal: receipts::trust::TrustRefusal| {
        let name = match refusal.record() {
            Some(index) => format!("{name} at record {}", index + 1),
            None => name.to_owned(),
        };
        let found = Some(refusal.to_string());
        findings.fail(name, refusal.fault().as_str(), None, found);
    };
    match verify_export(bytes) {
        Ok(_) => findings.pass("chain"),
        Err(refusal) => refused(&mut findings, "chain", refusal),
    }
    let keys = keys.filter(|_| question == Question::Valid);
    match keys.map(|keys| verify_signatures(bytes, keys)) {
        None if question == Question::Whole => {
            findings.skip("signatures", "give --keys instead of --unsigned");
        }
        None => {
            let expected = Some("the server's published keys, --keys".to_owned());
            findings.fail("signatures", "signature_not_checked", expected, None);
        }
        Some(Ok(0)) if !records(bytes).is_empty() => {
            let found = Some("no signature that names its key".to_owned());
            findings.fail("signatures", "signature_missing", None, found);
        }
        Some(Ok(count)) => findings.pass(format!("signatures ({count})")),
        Some(Err(refusal)) => refused(&mut findings, "signatures", refusal),
    }
    findings
}

/// Every approval of a receipt must name a record of this chain.
fn check_evidence(bytes: &[u8], path: &Path, findings: &mut Findings) -> anyhow::Result<()> {
    let hint = "--receipt names one receipt as JSON or CBOR";
    let receipt: Value = serde_json::from_slice(&read_receipt(path)?.bytes)
        .or_hint(format_args!("`{}`", path.display()), hint)?;
    let records = records(bytes);
    let approvals = receipt.get("approvals").and_then(Value::as_array);
    for (index, approval) in approvals.into_iter().flatten().enumerate() {
        let stated = approval.get("evidence_hash");
        let name = format!("approval/{index}");
        let is_there = records
            .iter()
            .any(|record| record.get("entry_hash").is_some() && record.get("entry_hash") == stated);
        if is_there {
            findings.pass(name);
        } else {
            let expected = stated.map(ToString::to_string);
            findings.fail(name, "evidence_missing", expected, None);
        }
    }
    Ok(())
}

fn records(bytes: &[u8]) -> Vec<Value> {
    let export: Value = serde_json::from_slice(bytes).unwrap_or_default();
    let records = export.get("records").and_then(Value::as_array);
    records.cloned().unwrap_or_default()
}

fn describe(out: &mut Output, bytes: &[u8]) -> anyhow::Result<()> {
    let records = records(bytes);
    if records.is_empty() {
        return out.line("nobody was asked for an approval or an answer: the chain is empty");
    }
    // Questions are answered by anybody who may; approver is the format's word for whoever answered.
    let heading = ["AT", "OUTCOME", "BY", "AGENT", "ACTION", "HASH"];
    let mut table = Table::new(&heading);
    for record in records {
        let cell = |name: &str| {
            let text = record.get(name).and_then(Value::as_str).unwrap_or("-");
            (shorten(&printable(text), 40), None)
        };
        let names = ["timestamp", "outcome", "approver", "agent", "action"];
        let hash = record.get("entry_hash").and_then(Value::as_str);
        let hash = shorten(&printable(hash.unwrap_or("-")), 20);
        table.row(names.map(cell).into_iter().chain([(hash, None)]));
    }
    table.print(out, "")
}
