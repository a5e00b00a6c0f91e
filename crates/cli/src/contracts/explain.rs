//! `reprise contracts explain`: one decision as the table of checks.

use contracts::{Check, DecidedCall, Decision, FailureRecord, Status};
use serde_json::{Value, json};

use super::ExplainArgs;
use super::files::read_text;
use crate::exit::{Exit, OrHint, Problem};
use crate::output::{Output, Paint, Table, printable};

/// What each check asks, and the pass it belongs to.
const CHECKS: [(Check, u8, &str); 26] = [
    (Check::V1, 1, "format of the response, ids, arguments"),
    (Check::V2, 1, "offered, and under contract"),
    (Check::V3, 1, "risk gate"),
    (Check::V4, 1, "policy"),
    (Check::V5, 1, "manual filter"),
    (Check::V6, 1, "phase"),
    (Check::V7, 1, "preconditions"),
    (Check::V8, 1, "not forbidden by a committed call"),
    (Check::V9, 1, "invariants on the request"),
    (Check::V10, 1, "invariants on the response"),
    (Check::V11, 1, "argument values"),
    (Check::V12, 1, "slots are set"),
    (Check::V13, 1, "slots are equal"),
    (Check::V14, 2, "one target phase"),
    (Check::V15, 3, "labels"),
    (Check::V16, 3, "not forbidden by an open call"),
    (Check::V17, 3, "tool calls of the session"),
    (Check::V18, 3, "calls of the tool"),
    (Check::V18r, 3, "rate"),
    (Check::V19, 3, "loop"),
    (Check::V20, 3, "aggregates can be computed"),
    (Check::V21, 3, "aggregates stay within bounds"),
    (Check::V22, 3, "envelopes are established"),
    (Check::V23, 3, "envelopes hold"),
    (Check::V24, 4, "checkpoint budget"),
    (Check::V25, 4, "checkpoint answered"),
];

pub(super) fn run(args: &ExplainArgs) -> anyhow::Result<Exit> {
    let text = read_text(&args.file)?;
    let shown = args.file.display();
    let hint =
        "it must hold one decision as JSON, or the event `vendor.contract_decided` that holds it";
    let mut value: Value = serde_json::from_str(&text).or_hint(format_args!("`{shown}`"), hint)?;
    let mut decided = Value::Null;
    // As the record holds it: a line of a bundle, an event, its payload.
    for place in ["/event/payload", "/payload", ""] {
        let Some(holder) = value.pointer_mut(place) else {
            continue;
        };
        let people = holder.get("decided").cloned();
        if let Some(found) = holder.get_mut("decision") {
            decided = people.unwrap_or_default();
            value = found.take();
            break;
        }
    }
    let decision: Decision =
        serde_json::from_value(value).or_hint(format_args!("`{shown}`"), hint)?;
    let wanted = |call: &&DecidedCall| args.call.as_ref().is_none_or(|id| call.call_id == *id);
    let calls: Vec<&DecidedCall> = decision.calls.iter().filter(wanted).collect();
    if let Some(id) = args.call.as_ref().filter(|_| calls.is_empty()) {
        let message = format!("the decision has no call `{id}`");
        return Err(Problem::new(message, "leave out --call to see all of them").into());
    }
    let mut out = Output::stdout();
    if args.json {
        let calls: Vec<Value> = calls.into_iter().map(as_json).collect();
        out.json(&json!({
            "action": decision.action.to_string(),
            "attempt": decision.attempt,
            "gate": decision.gate.to_string(),
            "state_version": decision.state_version,
            "control_revision": decision.control_revision,
            "compiled": decision.compiled.to_string(),
            "reason": decision.reason.map(|reason| reason.to_string()),
            "detail": decision.detail,
            "decided": decided,
            "calls": calls,
        }))?;
        return Ok(Exit::Ok);
    }
    out.line(format_args!(
        "{}: attempt {}, gate {}, state {}/{}, contracts {}",
        decision.action,
        decision.attempt,
        decision.gate,
        decision.state_version,
        decision.control_revision,
        decision.compiled
    ))?;
    if let Some(reason) = decision.reason {
        let detail = decision.detail.as_deref().unwrap_or_default();
        out.line(printable(&format!("reason {reason} {detail}")).trim_end())?;
    }
    if let Some(line) = people(&decided) {
        out.line(printable(&line))?;
    }
    for call in calls {
        explain(&mut out, call)?;
    }
    Ok(Exit::Ok)
}

/// Says who decided: whose key it was, which is known, and the name that came with it, which anybody can write.
fn people(decided: &Value) -> Option<String> {
    let text = |name: &str| decided.get(name).and_then(Value::as_str);
    let word = match text("decision")? {
        "approve" => "approved",
        _ => "denied",
    };
    let key = text("key_id").map(|key| format!(", key {key}"));
    Some(format!(
        "{word} by {}{}, signed \"{}\"",
        text("actor").unwrap_or("?"),
        key.unwrap_or_default(),
        text("decided_by").unwrap_or_default()
    ))
}

fn explain(out: &mut Output, call: &DecidedCall) -> anyhow::Result<()> {
    out.line("")?;
    let status = match call.verdict {
        Status::Allow => out.paint(Paint::Good, "allowed"),
        Status::Block => out.paint(Paint::Bad, "blocked"),
        Status::Ask => out.paint(Paint::Waiting, "asked"),
    };
    let (tool, id) = (printable(&call.tool_name), printable(&call.call_id));
    out.line(format_args!("{tool} ({id}) {status}"))?;
    if let Some(file) = &call.contract_file {
        out.line(format_args!("  {}", printable(file)))?;
    }
    let mut table = Table::new(&["CHECK", "PASS", "RESULT", "WHAT", "WHY"]);
    for checked in checks(call) {
        let why: Vec<String> = checked.failures.iter().map(|one| describe(one)).collect();
        table.row([
            (checked.check.to_string(), None),
            (checked.pass.to_string(), None),
            (checked.result.to_owned(), Some(checked.paint)),
            (checked.what.to_owned(), None),
            (printable(&why.join("; ")), None),
        ]);
    }
    table.print(out, "  ")
}

/// What became of one check of a call.
struct Checked<'a> {
    check: Check,
    pass: u8,
    what: &'static str,
    result: &'static str,
    paint: Paint,
    failures: Vec<&'a FailureRecord>,
}

/// Returns every check in order, with what came of it.
fn checks(call: &DecidedCall) -> Vec<Checked<'_>> {
    // A call with a failure does not enter the next pass.
    let pass_of = |failure: &FailureRecord| {
        let entry = CHECKS
            .iter()
            .find(|(check, ..)| Some(*check) == failure.check);
        entry.map_or(0, |(_, pass, _)| *pass)
    };
    let last_pass = call.failures.iter().map(pass_of).min().unwrap_or(4);
    let entries = CHECKS.into_iter().map(|(check, pass, what)| {
        let failures: Vec<&FailureRecord> = call
            .failures
            .iter()
            .filter(|failure| failure.check == Some(check))
            .collect();
        let (result, paint) = if !failures.is_empty() {
            ("failed", Paint::Bad)
        } else if pass > last_pass {
            ("not reached", Paint::Quiet)
        } else {
            ("held", Paint::Good)
        };
        Checked {
            check,
            pass,
            what,
            result,
            paint,
            failures,
        }
    });
    entries.collect()
}

fn as_json(call: &DecidedCall) -> Value {
    let checks = checks(call).into_iter().map(|checked| {
        let why: Vec<String> = checked.failures.iter().map(|one| describe(one)).collect();
        json!({
            "check": checked.check.to_string(),
            "pass": checked.pass,
            "result": checked.result.replace(' ', "_"),
            "what": checked.what,
            "why": why,
        })
    });
    json!({
        "call_id": call.call_id,
        "tool_name": call.tool_name,
        "verdict": match call.verdict {
            Status::Allow => "allow",
            Status::Block => "block",
            Status::Ask => "ask",
        },
        "contract_file": call.contract_file,
        "checks": checks.collect::<Vec<_>>(),
    })
}

fn describe(failure: &FailureRecord) -> String {
    let parts = [
        Some(failure.reason.to_string()),
        failure.path.clone(),
        failure.operator.clone(),
        failure.expected.clone(),
        failure.detail.clone().map(|detail| format!("({detail})")),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    parts.join(" ")
}
