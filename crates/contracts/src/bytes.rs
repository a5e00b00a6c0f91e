//! The session as ten functions over bytes: what a language binding calls.
//!
//! JSON in, JSON and bytes out. No function panics or waits, whatever it is given; what is wrong is an object `error`
//! in the answer, with the name of the published error class. Time is microseconds since 1970.

mod options;
mod places;

use std::sync::Arc;

use canon::Digest;
use domain::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::checkpoint::ApprovalResponse;
use crate::compile::{Compiled, Source, compile as compile_sources};
use crate::driver::{
    AttemptFailure, Control, DriveError, Driver, ExecutionEnd, JudgedResponse, Label,
    PlannedRequest, Proposal, SettledVerdict,
};
use crate::execute::ExecutionRefusal;
use crate::finding::Finding;
use crate::gate::{Action, Decision};
use crate::health::{Attachment, HostFacts};
use crate::json::{self as exact, Limits, Numbers};
use crate::rules::{ConfigError, Rules};
use crate::wire::Wire;
use crate::workflow::{Workflow, compile_workflow};

/// What a function answers.
#[derive(Debug, Clone, PartialEq)]
pub struct Output {
    /// A JSON object.
    pub json: Vec<u8>,
    /// Bytes to send or to release, where there are some.
    pub body: Option<Vec<u8>>,
}

impl Output {
    fn new(value: &Value) -> Self {
        Self {
            json: value.to_string().into_bytes(),
            body: None,
        }
    }

    fn with(value: &Value, body: Vec<u8>) -> Self {
        Self {
            body: Some(body),
            ..Self::new(value)
        }
    }

    fn error(class: &str, message: impl Into<String>, rest: Value) -> Self {
        let mut error = json!({"type": class, "message": message.into()});
        if let (Value::Object(error), Value::Object(rest)) = (&mut error, rest) {
            error.extend(rest);
        }
        Self::new(&json!({"error": error}))
    }
}

/// Reads the options of a session from JSON, under their published names.
///
/// # Errors
/// Everything that is wrong with them.
pub fn read_options(text: &[u8]) -> Result<crate::rules::Options, Vec<String>> {
    options::read(text)
}

/// Compiled files.
#[derive(Debug, Clone)]
pub struct CompiledFiles(Arc<Compiled>, Option<Arc<Workflow>>);

/// An open session.
#[derive(Debug)]
pub struct Handle(Driver);

/// 1. Compiles `{ "contracts": [file …], "session": file?, "workflow": file? }`, a file being `{ "file", "text" }` or a parsed document.
pub fn compile(files: &[u8]) -> (Output, Option<CompiledFiles>) {
    let Some((contracts, session, workflow)) = read_files(files) else {
        let message = "contracts are a list of files, each with `file` and `text` or a document";
        return (
            config_error("invalid_option", vec![message.to_owned()]),
            None,
        );
    };
    let workflow = workflow.as_ref().map(compile_workflow).transpose();
    let compiled = compile_sources(&contracts, session.as_ref());
    match compiled.and_then(|compiled| Ok((compiled, workflow?))) {
        Ok((compiled, workflow)) => {
            let warnings: Vec<Value> = compiled.warnings().iter().map(finding).collect();
            let answer = json!({"digest": compiled.digest(), "findings": [], "warnings": warnings});
            let files = CompiledFiles(Arc::new(compiled), workflow.map(Arc::new));
            (Output::new(&answer), Some(files))
        }
        Err(error) => {
            let findings: Vec<Value> = error.findings().iter().map(finding).collect();
            let rest = json!({"condition": "compilation_failed", "findings": findings});
            let output = Output::error("ReplayConfigError", "the contracts do not compile", rest);
            (output, None)
        }
    }
}

/// 2. Opens a session over compiled files. Without files only `mode: log-only` can be opened.
pub fn open(
    files: Option<&CompiledFiles>,
    options: &[u8],
    now_micros: i64,
) -> (Output, Option<Handle>) {
    let text = options;
    let options = match options::read(text) {
        Ok(options) => options,
        Err(findings) => return (config_error("invalid_option", findings), None),
    };
    let compiled = match files {
        Some(files) => Ok(Arc::clone(&files.0)),
        None if options.mode == crate::rules::Mode::LogOnly => {
            compile_sources(&[], None).map(Arc::new).map_err(|_| ())
        }
        None => Err(()),
    };
    let Ok(compiled) = compiled else {
        let message = "contracts are missing; only `mode: log-only` needs none";
        return (
            config_error("invalid_option", vec![message.to_owned()]),
            None,
        );
    };
    let (digest, follows) = (compiled.digest(), options.server);
    let rules = match Rules::new(compiled, options) {
        Ok(rules) => rules,
        Err(error) => return (refused_options(&error), None),
    };
    let workflow = files.and_then(|files| files.1.as_ref());
    let now = Timestamp::from_micros(now_micros);
    match places::open(rules, workflow, text, now) {
        Ok(mut driver) => {
            if follows {
                driver.follow_server();
            }
            let id = driver.state().session_id;
            (
                Output::new(&json!({"session_id": id, "compiled_digest": digest})),
                Some(Handle(driver)),
            )
        }
        Err(refused) => (refused, None),
    }
}

/// 3. Plans a request. The answer's body is what is sent; `narrowing` says what stayed and what went, null when nothing did.
///
/// Where a server judges, the answer is what to ask it: `preflight`, after the `reports` of executions. Its answer goes
/// to [`answer`] as `preflight.ATTEMPT`, and that answer's body is what is sent; a refusal goes there as `refused.ATTEMPT`.
pub fn plan(handle: &mut Handle, wire: &str, request: &[u8], now_micros: i64) -> Output {
    let Some(wire) = Wire::named(wire) else {
        return Output::error(
            "ReplayUnsupportedError",
            "no such wire format",
            json!({"member": "wire"}),
        );
    };
    let now = Timestamp::from_micros(now_micros);
    if handle.0.asks_server() {
        return match handle.0.prepare_preflight(wire, request, now) {
            Ok(request) => Output::new(&json!({
                "attempt": request.attempt,
                "preflight": request.preflight,
                "reports": request.reports,
            })),
            Err(error) => drive_error(&error),
        };
    }
    planned(handle.0.plan(wire, request, now))
}

fn planned(planned: Result<PlannedRequest, DriveError>) -> Output {
    match planned {
        Ok(planned) => {
            // What went is told; that nothing did, is the common case, and a long list.
            let narrowing = &*planned.narrowing;
            let told = (!narrowing.removed.is_empty()).then_some(narrowing);
            let answer = json!({"attempt": planned.attempt, "narrowing": told});
            Output::with(&answer, planned.body)
        }
        Err(error) => drive_error(&error),
    }
}

/// 4. Judges a response. The answer's body is what is released, or sent again when `action` is `retried`.
///
/// Where a server judges, `action` is `proposed` and the answer is what to ask it: `proposal`. Its answer goes to
/// [`answer`] as `proposal.ATTEMPT`, again once people have decided.
pub fn judge(
    handle: &mut Handle,
    attempt: u64,
    response: &[u8],
    is_sse: bool,
    now_micros: i64,
) -> Output {
    let now = Timestamp::from_micros(now_micros);
    if handle.0.asks_server() {
        return match handle.0.propose(attempt, response, is_sse, now) {
            Ok(Proposal::Propose(body)) => Output::new(
                &json!({"action": "proposed", "decision": null, "ask": [], "proposal": body}),
            ),
            Ok(Proposal::Judged(how)) => judged(attempt, Ok(*how)),
            Err(error) => drive_error(&error),
        };
    }
    judged(attempt, handle.0.judge(attempt, response, is_sse, now))
}

/// 5. Takes the answer of a person, or `null` when the time is over; then as [`judge`]. Also takes the answers of a server.
pub fn answer(handle: &mut Handle, checkpoint_id: &str, answer: &[u8], now_micros: i64) -> Output {
    let now = Timestamp::from_micros(now_micros);
    if let Some((what, attempt)) = of_server(checkpoint_id) {
        let answer: Value = serde_json::from_slice(answer).unwrap_or(Value::Null);
        return match what {
            "preflight" => planned(handle.0.planned_by(attempt, &answer, now)),
            "refused" => drive_error(&handle.0.refused_by(attempt, &answer, now)),
            _ => settled(attempt, handle.0.settled_by(attempt, &answer, now)),
        };
    }
    let given: Option<ApprovalResponse> = match serde_json::from_slice(answer) {
        Ok(given) => given,
        // Whatever is odd about an answer makes it a denial.
        Err(_) => Some(ApprovalResponse {
            checkpoint_id: String::new(),
            decision: String::new(),
            decided_by: String::new(),
            decided_at: String::new(),
            reason: None,
        }),
    };
    let answered = handle.0.answer(checkpoint_id, given.as_ref(), now);
    judged(0, answered)
}

/// Reads what a server answered: `preflight.3` and the like. Names of checkpoints have another form.
fn of_server(id: &str) -> Option<(&str, u64)> {
    let (what, attempt) = id.split_once('.')?;
    let known = ["preflight", "refused", "proposal"].contains(&what);
    known.then(|| Some((what, attempt.parse().ok()?)))?
}

fn settled(attempt: u64, settled: Result<SettledVerdict, DriveError>) -> Output {
    match settled {
        Ok(SettledVerdict::Judged(how)) => judged(attempt, Ok(*how)),
        Ok(SettledVerdict::Waits { questions }) => {
            Output::new(&json!({"action": "waits", "decision": null, "ask": questions}))
        }
        Ok(SettledVerdict::Again {
            decision,
            preflight,
        }) => Output::new(&json!({
            "action": "retried", "attempt": attempt, "decision": decision, "ask": [],
            "preflight": preflight,
        })),
        // The response was proposed, and the server may count it: it is not known what a second one would meet.
        Err(error @ (DriveError::Unknown | DriveError::Unfit)) => Output::error(
            "ReplayFaultError",
            error.to_string(),
            json!({"retrySafe": false}),
        ),
        Err(error) => drive_error(&error),
    }
}

/// 6. Takes note that a planned request brought no response: `provider`, `aborted` or `fault`; `withdrawn` when nothing was sent.
pub fn failed(handle: &mut Handle, attempt: u64, kind: &str, now_micros: i64) -> Output {
    let how = match kind {
        "provider" => AttemptFailure::Provider,
        "aborted" => AttemptFailure::Aborted,
        "fault" => AttemptFailure::Fault,
        "withdrawn" => AttemptFailure::Withdrawn,
        _ => return invalid("a failure is `provider`, `aborted`, `fault` or `withdrawn`"),
    };
    match handle
        .0
        .failed(attempt, how, Timestamp::from_micros(now_micros))
    {
        Ok(()) => Output::new(&json!({})),
        Err(error) => drive_error(&error),
    }
}

/// 7. Allows an execution: `ticket`, or the refusal.
pub fn execute(
    handle: &mut Handle,
    tool: &str,
    arguments: &[u8],
    call_id: Option<&str>,
    now_micros: i64,
) -> Output {
    let arguments = String::from_utf8_lossy(arguments);
    let now = Timestamp::from_micros(now_micros);
    match handle.0.execute(tool, &arguments, call_id, now) {
        Ok(ticket) => Output::new(&json!({
            "ticket": ticket.ticket,
            "proposal_id": handle.0.proposal_of(ticket.ticket),
            "call_id": ticket.call.map(|call| call.id),
            "timeout_ms": ticket.timeout_ms,
            "max_attempts": ticket.attempts_max,
            "retry_on": ticket.retry_on,
        })),
        Err((_, Some(decision))) => contract_error(&decision),
        Err((ExecutionRefusal::Killed { cause }, None)) => {
            drive_error(&DriveError::Killed { cause })
        }
        Err((_, None)) => drive_error(&DriveError::Inactive),
    }
}

/// 8. Reports how an execution ended.
///
/// The report is `{ "outcome": "success", "output"?: text }`, `{ "outcome": "error", "code" }` or
/// `{ "outcome": "unknown" }`.
pub fn settle(handle: &mut Handle, ticket: u64, ended: &[u8]) -> Output {
    #[derive(Deserialize)]
    #[serde(tag = "outcome", rename_all = "snake_case", deny_unknown_fields)]
    enum Report {
        Success { output: Option<String> },
        Error { code: Option<String> },
        Unknown {},
    }
    let ended = match serde_json::from_slice(ended) {
        Ok(Report::Success { output }) => ExecutionEnd::Success(output),
        Ok(Report::Error { code }) => ExecutionEnd::Failed {
            code: code.unwrap_or_default(),
        },
        Ok(Report::Unknown {}) => ExecutionEnd::Unknown,
        Err(_) => return invalid("an end has an `outcome`: `success`, `error` or `unknown`"),
    };
    let report = handle.0.report(ticket, &ended);
    match handle.0.settle(ticket, ended) {
        Ok(()) => Output::new(&json!({
            "state_version": handle.0.inner_state().state_version(),
            "report": report,
        })),
        Err(error) => fault(&error.to_string()),
    }
}

/// 9. Acts on the session: `kill`, `restore`, `add_label`, `narrow`, `widen`, `bypassed`; the value is JSON.
///
/// Also: `resume` with what a store holds of it, before anything else; `handoff` and `hear` in a workflow; `judge_locally`
/// and `drifted` about the server.
pub fn control(handle: &mut Handle, kind: &str, value: &[u8], now_micros: i64) -> Output {
    let value: Value = serde_json::from_slice(value).unwrap_or(Value::Null);
    let control = match kind {
        "kill" => Control::Kill {
            cause: value.as_str().unwrap_or("killed by the program").to_owned(),
        },
        "restore" => Control::Restore,
        "add_label" => match Label::new(value.as_str().unwrap_or_default()) {
            Ok(label) => Control::AddLabel(label),
            Err(error) => return invalid(&error.to_string()),
        },
        "narrow" => match serde_json::from_value(value) {
            Ok(names) => Control::Narrow(names),
            Err(_) => return invalid("a filter is a list of tool names"),
        },
        "widen" => Control::Widen,
        "resume" => return places::resume(handle, &value, Timestamp::from_micros(now_micros)),
        "handoff" => return places::handoff(handle, &value, Timestamp::from_micros(now_micros)),
        "hear" => return places::apply_event(handle, &value, Timestamp::from_micros(now_micros)),
        // About the server rather than the session: whether it is asked, and whether its state is another one.
        "judge_locally" => {
            handle.0.judge_locally(value.as_bool() == Some(true));
            return Output::new(&json!({}));
        }
        "drifted" => {
            handle.0.mark_drifted();
            return Output::new(&json!({}));
        }
        "bypassed" => Control::Bypassed,
        _ => return invalid("no such action"),
    };
    match handle
        .0
        .control(control, Timestamp::from_micros(now_micros))
    {
        Ok(()) => Output::new(&json!({
            "control_revision": handle.0.state().control_revision,
            "labels": handle.0.state().labels,
        })),
        Err(error) => invalid(&error.to_string()),
    }
}

/// 10. Reads `state`, `health`, `narrowing`, `delta`, `records`, `diagnostics`, `captures`, `workflow` or `news`.
///
/// For `records`, `from` is the first that is wanted; those before it are dropped. For `health` the facts around the
/// session come from the caller as flags in `from`: 1 server lost, 2 started degraded, 4 cluster, 8 journal, and from 16 on
/// how rules of a server are attached: 0 not at all, then in the order of [`ATTACHMENTS`]. For `workflow` it is the time.
pub fn read(handle: &mut Handle, what: &str, from: u64) -> Output {
    let driver = &mut handle.0;
    let value = match what {
        "state" => json!(driver.state()),
        "health" => json!(driver.health(HostFacts {
            server_lost: from & 1 != 0,
            started_degraded: from & 2 != 0,
            cluster_detected: from & 4 != 0,
            journal: from & 8 != 0,
            attachment: attachment(from >> 4),
        })),
        "narrowing" => json!(driver.last_narrowing()),
        "delta" => json!(driver.last_shadow_delta()),
        "records" => json!(driver.records(from).collect::<Vec<_>>()),
        "diagnostics" => json!(driver.diagnostics()),
        "workflow" => {
            let now = Timestamp::from_micros(i64::try_from(from).unwrap_or(i64::MAX));
            json!(driver.workflow_state(now))
        }
        "news" => json!(driver.workflow_news()),
        "captures" => {
            let (captures, counts) = driver.flush();
            json!({"captures": captures, "counts": counts})
        }
        _ => return invalid("nothing of this name can be read"),
    };
    Output::new(&json!({"value": value}))
}

/// How rules of a server are attached, in the order of their numbers in [`read`].
pub const ATTACHMENTS: [Attachment; 6] = [
    Attachment::NotApplicable,
    Attachment::Attached,
    Attachment::NoPlan,
    Attachment::FetchFailed,
    Attachment::ArtifactInvalid,
    Attachment::AttachmentFailed,
];

/// A number that names nothing is taken for rules that could not be fetched: it grants nothing.
fn attachment(number: u64) -> Attachment {
    let index = usize::try_from(number).unwrap_or(usize::MAX);
    let known = ATTACHMENTS.get(index).copied();
    known.unwrap_or(Attachment::FetchFailed)
}

fn judged(attempt: u64, judged: Result<JudgedResponse, DriveError>) -> Output {
    match judged {
        Ok(JudgedResponse::Released { body, decision }) => {
            let action = decision
                .as_ref()
                .map_or(Action::Released, |decision| decision.action);
            let answer = json!({"action": action, "decision": decision, "ask": []});
            Output::with(&answer, body)
        }
        Ok(JudgedResponse::Rejected(decision)) => {
            let mut output = contract_error(&decision);
            output.body = None;
            output
        }
        Ok(JudgedResponse::Retried { body, decision }) => {
            let answer =
                json!({"action": "retried", "attempt": attempt, "decision": decision, "ask": []});
            Output::with(&answer, body)
        }
        Ok(JudgedResponse::Asked(question)) => {
            Output::new(&json!({"action": "asked", "decision": null, "ask": [question]}))
        }
        Err(error) => drive_error(&error),
    }
}

fn contract_error(decision: &Decision) -> Output {
    let failures: Vec<Value> = decision
        .calls
        .iter()
        .flat_map(|call| {
            let file = &call.contract_file;
            call.failures.iter().map(move |failure| {
                json!({
                    "path": failure.path, "operator": failure.operator, "expected": failure.expected,
                    "contract_file": file, "reason": failure.reason,
                })
            })
        })
        .collect();
    // No message holds words that client libraries take for a timeout: reasons are members.
    let message = "blocked by contract";
    let rest = json!({
        "decision": decision,
        "contractFile": decision.contract_file,
        "failures": failures,
    });
    Output::error("ReplayContractError", message, rest)
}

fn drive_error(error: &DriveError) -> Output {
    let message = error.to_string();
    match error {
        DriveError::Contract(decision) => contract_error(decision),
        DriveError::Killed { cause } => Output::error(
            "ReplayKillError",
            "the session was killed",
            json!({"cause_of_kill": cause}),
        ),
        DriveError::Inactive => Output::error("ReplayInactiveError", message, json!({})),
        DriveError::ProviderIncompatible { pattern } => {
            config_error("provider_incompatible", vec![pattern.clone()])
        }
        DriveError::Unsupported { member } => {
            Output::error("ReplayUnsupportedError", message, json!({"member": member}))
        }
        // The provider's own error is the caller's to pass on.
        DriveError::Provider { detail } => Output::error(
            "ProviderError",
            "the provider failed",
            json!({"detail": detail}),
        ),
        DriveError::Unknown | DriveError::Unfit | DriveError::RecordsUnread => fault(&message),
    }
}

fn fault(message: &str) -> Output {
    Output::error("ReplayFaultError", message, json!({"retrySafe": true}))
}

fn invalid(message: &str) -> Output {
    config_error("invalid_option", vec![message.to_owned()])
}

fn config_error(condition: &str, findings: Vec<String>) -> Output {
    let message = findings.join("; ");
    let rest = json!({"condition": condition, "findings": findings});
    Output::error("ReplayConfigError", message, rest)
}

fn refused_options(error: &ConfigError) -> Output {
    config_error(error.condition().as_str(), error.findings().to_vec())
}

fn finding(finding: &Finding) -> Value {
    json!({
        "file": finding.file,
        "line": finding.line,
        "column": finding.column,
        "code": finding.code.as_str(),
        "message": finding.message,
    })
}

fn read_files(files: &[u8]) -> Option<(Vec<Source>, Option<Source>, Option<Source>)> {
    let text = std::str::from_utf8(files).ok()?;
    let limits = Limits {
        bytes_max: 512 << 20,
        depth_max: 128,
        values_max: 20_000_000,
    };
    let files = exact::read(text, limits, Numbers::Any).ok()?;
    let members = files.as_object()?;
    let known = ["contracts", "session", "workflow"];
    if !members.keys().all(|name| known.contains(&name.as_str())) {
        return None;
    }
    let contracts = members.get("contracts")?.as_array()?;
    let contracts: Option<Vec<Source>> = contracts.iter().map(source).collect();
    let one = |name: &str| match members.get(name) {
        None | Some(crate::value::Value::Null) => Some(None),
        Some(file) => source(file).map(Some),
    };
    Some((contracts?, one("session")?, one("workflow")?))
}

fn source(file: &crate::value::Value) -> Option<Source> {
    let members = file.as_object()?;
    let texts =
        ["file", "text"].map(|name| members.get(name).and_then(crate::value::Value::as_str));
    if let ([Some(name), Some(text)], 2) = (texts, members.len()) {
        return Some(Source {
            file: name.to_owned(),
            text: text.to_owned(),
        });
    }
    // A parsed document: its JSON text is YAML too.
    Some(Source {
        file: String::new(),
        text: file.to_json(),
    })
}

/// Returns the digest that approvals and records of a session over these files are bound to.
pub fn digest(files: &CompiledFiles) -> Digest {
    files.0.digest()
}
