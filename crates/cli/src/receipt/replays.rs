//! Replays of an exported log, run again.
//!
//! The receipt of a replay commits to the log of its source, not to its own events. A replay is a function of its source
//! and its request, though: what it must have written can be computed and compared. Where that is not possible, the events
//! are named as bound by nothing.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use canon::{Map, Value};
use domain::{BLOB_MEMBER, Event, Kind, payload};
use receipts::Receipt;
use runs::replay::{
    self, Bundle, Log, OverrideValue, Progress, ReceiptIssuer, Replayed, Source, Spec,
};
use runs::workflow::{Registry, builtin};
use serde_json::json;

use super::bundle::files::{Blobs, Place, Reread};
use super::events::{CheckedEvents, ReceiptFacts};
use super::report::Findings;

/// Events that nothing binds: which, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UnboundEvents {
    pub(crate) what: String,
    pub(crate) why: String,
}

impl UnboundEvents {
    pub(crate) fn new(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            why: why.into(),
        }
    }
}

/// Why the events of a replay are not confirmed.
enum Fault {
    /// They are not what the replay writes.
    Differs {
        what: String,
        expected: String,
        found: String,
    },
    /// It cannot be run again.
    CannotRun(&'static str),
}

use Fault::CannotRun;

/// Runs every replay of a bundle again. Returns what could not be bound.
pub(crate) fn check(
    directory: &Path,
    covered: &BTreeMap<String, ReceiptFacts>,
    checked: &CheckedEvents,
    findings: &mut Findings,
) -> anyhow::Result<Vec<UnboundEvents>> {
    let mut reader = Reader {
        events: Reread::open(directory.join("events.jsonl"))?,
        receipts: Reread::open(directory.join("receipts.jsonl"))?,
        blobs: Blobs::of(directory),
        covered,
        checked,
    };
    let workflows = Registry::new(builtin());
    let mut unbound = Vec::new();
    let (mut confirmed, mut bad) = (0_u64, 0_u64);
    for (task, receipt) in covered.iter().filter(|(_, receipt)| receipt.is_replay) {
        match rerun(&mut reader, &workflows, task, receipt)? {
            Ok(()) => {
                confirmed += 1;
                let why = "who asked for it, when, and with which metadata is in no receipt";
                unbound.push(UnboundEvents::new(format!("task.submitted of {task}"), why));
            }
            Err(CannotRun(why)) => {
                let count = checked.places.get(task).map_or(0, Vec::len);
                unbound.push(UnboundEvents::new(format!("{count} events of {task}"), why));
            }
            Err(Fault::Differs {
                what,
                expected,
                found,
            }) => {
                bad += 1;
                let name = format!("replay {task} {what}");
                findings.fail(name, "replay_mismatch", Some(expected), Some(found));
            }
        }
    }
    if bad == 0 && confirmed > 0 {
        findings.pass(format!("replays: {confirmed} run again"));
    }
    Ok(unbound)
}

struct Reader<'a> {
    events: Reread,
    receipts: Reread,
    blobs: Blobs,
    covered: &'a BTreeMap<String, ReceiptFacts>,
    checked: &'a CheckedEvents,
}

impl Reader<'_> {
    fn lines(&mut self, task: &str) -> anyhow::Result<Vec<Arc<[u8]>>> {
        let places: &[Place] = self.checked.places.get(task).map_or(&[], Vec::as_slice);
        let mut lines = Vec::with_capacity(places.len());
        for place in places {
            lines.push(self.events.line(*place)?.into());
        }
        Ok(lines)
    }

    fn receipt(&mut self, task: &str) -> anyhow::Result<Option<Receipt>> {
        let Some(covered) = self.covered.get(task) else {
            return Ok(None);
        };
        let bytes = self.receipts.line(covered.place)?;
        Ok(Receipt::read(&bytes).ok())
    }

    fn source(&mut self, task: &str) -> anyhow::Result<Result<Source, Fault>> {
        if let Some(bundle) = self.checked.imports.get(task) {
            let bundle = self.blobs.read(*bundle);
            let read = bundle.and_then(|bytes| Bundle::read(&bytes).ok()?.into_source().ok());
            return Ok(read.ok_or(CannotRun(
                "its source came from another log and is not here",
            )));
        }
        if self.checked.pruned.contains(task) {
            return Ok(Err(CannotRun("its source was pruned")));
        }
        let mut log = Log::default();
        if log.extend(self.lines(task)?).is_err() {
            return Ok(Err(CannotRun("its source cannot be read")));
        }
        let mut names = log.blobs_named();
        if let Some(request) = log.request_named() {
            let request_bytes = self.blobs.read(request).unwrap_or_default();
            names.extend(replay::request_names(&request_bytes));
            names.push(request);
        }
        let blobs = names
            .into_iter()
            .filter_map(|name| Some((name, self.blobs.read(name)?)))
            .collect();
        let receipt = self.receipt(task)?;
        let source = Bundle::of(log, blobs, receipt).and_then(Bundle::into_source);
        Ok(source.map_err(|_| CannotRun("its source cannot be read")))
    }

    /// Returns what a replay was asked for.
    fn request(&self, submitted: &Event) -> Result<Spec, Fault> {
        const GONE: Fault = CannotRun("its request is withheld or missing");
        let named = payload::TaskSubmitted::of(&submitted.payload).replay();
        let named = named.and_then(|of| of.request_sha256());
        let bytes = named.and_then(|digest| self.blobs.read(digest));
        let stored: Option<Value> =
            bytes.and_then(|bytes| canon::read(&bytes, canon::Integers::Safe).ok());
        let request = stored.as_ref().and_then(|stored| stored.get("request"));
        let spec = request.and_then(|request| serde_json::from_value(request.clone()).ok());
        let mut spec: Spec = spec.ok_or(GONE)?;
        for given in spec.overrides.values_mut() {
            match &mut given.given {
                OverrideValue::Artifact { sha256, value, .. } => {
                    let bytes = self.blobs.read(*sha256).ok_or(GONE)?;
                    *value = serde_json::from_slice(&bytes).ok();
                }
                OverrideValue::Secret => {
                    return Err(CannotRun("it was given a secret, which no log holds"));
                }
                OverrideValue::Inline(_) => {}
            }
        }
        if !spec.refresh.is_empty() {
            return Err(CannotRun("it was refreshed from outside its record"));
        }
        Ok(spec)
    }

    /// Puts members that were moved into blobs back into a payload.
    fn whole(&self, mut payload: Map<String, Value>) -> Map<String, Value> {
        let moved: Vec<_> = domain::external_members(&payload)
            .map(|moved| (moved.member.to_owned(), moved.digest))
            .collect();
        for (member, digest) in moved {
            let bytes = self.blobs.read(digest);
            let value = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
            // What is missing is found by itself; here it stays a descriptor on both sides.
            if let Some(value) = value {
                payload.insert(member.clone(), value);
                if let Some(Value::Object(listed)) = payload.get_mut(BLOB_MEMBER) {
                    listed.remove(&member);
                }
            }
        }
        if payload.get(BLOB_MEMBER) == Some(&json!({})) {
            payload.remove(BLOB_MEMBER);
        }
        payload
    }
}

fn rerun(
    reader: &mut Reader<'_>,
    workflows: &Registry,
    task: &str,
    covered: &ReceiptFacts,
) -> anyhow::Result<Result<(), Fault>> {
    let lines = reader.lines(task)?;
    if reader.checked.pruned.contains(task) {
        return Ok(Err(CannotRun("it was pruned")));
    }
    let events: Vec<Event> = lines
        .iter()
        .filter_map(|line| Event::parse(line).ok())
        .collect();
    // Without the event that says what was asked for, nobody can tell what the others should be.
    let submitted = match events.first() {
        Some(first) if first.kind() == Ok(Kind::TaskSubmitted) => first,
        other => {
            let found = other.map_or("none", |event| &event.kind);
            let first = same("first event", Kind::TaskSubmitted, found);
            return Ok(first);
        }
    };
    let source = match reader.source(&covered.log_of)? {
        Ok(source) => source,
        Err(fault) => return Ok(Err(fault)),
    };
    let spec = match reader.request(submitted) {
        Ok(spec) => spec,
        Err(fault) => return Ok(Err(fault)),
    };
    let (name, version) = source.workflow();
    // One that never started has no version, and nothing to run.
    if version.is_some() && workflows.recorded(name, version).is_none() {
        return Ok(Err(CannotRun(
            "this program does not know that version of its workflow",
        )));
    }
    let secrets = BTreeMap::new();
    let replayed = match replay::run(&source, workflows, &spec, &secrets, BTreeMap::new()) {
        Progress::Ended(replayed) => replayed,
        Progress::Needs(_) => return Ok(Err(CannotRun("it continued outside its record"))),
    };
    let receipt = reader.receipt(task)?;
    let compare = Comparison {
        reader,
        source: &source,
        spec: &spec,
        replayed: &replayed,
        events: &events,
    };
    Ok(compare.all(covered, receipt.as_ref()))
}

struct Comparison<'a, 'b> {
    reader: &'a Reader<'b>,
    source: &'a Source,
    spec: &'a Spec,
    replayed: &'a Replayed,
    events: &'a [Event],
}

impl Comparison<'_, '_> {
    fn all(&self, covered: &ReceiptFacts, receipt: Option<&Receipt>) -> Result<(), Fault> {
        let is_canceled = self.ended_as("CANCELED");
        if is_canceled && self.replayed.end.status != domain::Status::Canceled {
            return Err(CannotRun("somebody canceled it"));
        }
        self.receipt(receipt)?;
        self.repeated(covered)?;
        self.own_life(covered)
    }

    fn ended_as(&self, status: &str) -> bool {
        let last = self.events.last();
        last.is_some_and(|event| event.payload.get("to").and_then(Value::as_str) == Some(status))
    }

    /// The receipt is the one that this run leaves.
    fn receipt(&self, receipt: Option<&Receipt>) -> Result<(), Fault> {
        let Some(receipt) = receipt else {
            return Err(CannotRun("its receipt cannot be read"));
        };
        let issuer = receipt.as_map().get("issuer");
        let text = |name: &str| Some(issuer?.get(name)?.as_str()?.to_owned());
        let submitted = self.events.first();
        let of = submitted.and_then(|event| payload::TaskSubmitted::of(&event.payload).replay());
        let ordinal = of.and_then(|of| of.ordinal());
        let issuing = ReceiptIssuer {
            id: text("id").unwrap_or_default(),
            name: text("name"),
            ordinal: ordinal.unwrap_or(1),
        };
        let computed = replay::receipt(self.source, self.spec, self.replayed, &issuing);
        let computed = computed.map_or_else(
            |error| error.to_string(),
            |computed| computed.hash().to_string(),
        );
        same("receipt", &computed, receipt.hash())
    }

    /// The events that repeat those of the source.
    fn repeated(&self, covered: &ReceiptFacts) -> Result<(), Fault> {
        let marked: Vec<&Event> = self
            .events
            .iter()
            .filter(|event| event.replay.is_some())
            .collect();
        let count = self.replayed.emissions.len();
        same("number of repeated events", count, marked.len())?;
        let Ok(task) = domain::TaskId::parse(&covered.task_id) else {
            return Err(CannotRun("its id is not a task's"));
        };
        for (emission, event) in self.replayed.emissions.iter().zip(marked) {
            let mode = self.spec.mode.as_str();
            let expected = self.replayed.event(self.source, emission, &task, mode);
            same(&event.id, expected.kind.as_str(), &event.kind)?;
            let resource = expected
                .artifact
                .as_ref()
                .map_or(task.as_str(), |id| id.as_str());
            same(&event.id, resource, &event.resource.id)?;
            if expected.actor.is_some() {
                let actor = |actor: &Option<String>| actor.clone().unwrap_or_default();
                same(&event.id, actor(&expected.actor), actor(&event.actor))?;
            }
            let mark = json!(expected.mark);
            same(&event.id, mark, json!(event.replay))?;
            self.payload(event, expected.payload)?;
        }
        Ok(())
    }

    /// The events of the replay's own life.
    fn own_life(&self, covered: &ReceiptFacts) -> Result<(), Fault> {
        let end = &self.replayed.end;
        let receipt = json!(covered.receipt_id);
        let mut status = json!(domain::Status::Submitted);
        let recorded = self
            .events
            .iter()
            .find(|event| event.replay.is_none() && event.kind() == Ok(Kind::OutcomeRecorded));
        let outcome = json!(recorded.map(|event| &event.resource.id));
        for event in self.events.iter().filter(|event| event.replay.is_none()) {
            let kind = event.kind();
            if kind != Ok(Kind::TaskSubmitted) {
                self.envelope(event, covered)?;
            }
            let ended =
                json!({"outcome_id": outcome, "receipt_id": receipt, "failure": end.failure});
            let expected = match kind {
                Ok(Kind::TaskSubmitted) => {
                    self.submitted(event)?;
                    continue;
                }
                Ok(Kind::TaskStarted) => {
                    let (name, version) = self.source.workflow();
                    let version = version.unwrap_or_else(|| canon::sha256(b""));
                    json!({"workflow": name, "workflow_sha256": version})
                }
                Ok(Kind::ReplayStarted) => replay::started(self.source, self.spec).into(),
                Ok(Kind::ReplayCompleted) if end.broken.is_none() => {
                    self.replayed.ended(self.source).into()
                }
                Ok(Kind::ReplayFailed) if end.broken.is_some() => {
                    self.replayed.ended(self.source).into()
                }
                Ok(Kind::OutcomeRecorded) => {
                    let messages = match &end.text {
                        Some(text) => json!([{
                            "role": "assistant",
                            "parts": [{"type": "text", "text": text, "visibility": "public"}],
                        }]),
                        None => json!([]),
                    };
                    json!({
                        "outcome_id": outcome, "receipt_id": receipt, "status": end.status,
                        "summary": end.summary, "messages": messages, "failure": end.failure,
                    })
                }
                Ok(Kind::TaskCompleted | Kind::TaskFailed | Kind::TaskCanceled) => ended,
                Ok(Kind::TaskStatusChanged) => {
                    let to = event.payload.get("to").cloned().unwrap_or_default();
                    // It works until it ends as it must.
                    let next = match status == json!(domain::Status::Submitted) {
                        true if to == json!(end.status) => to,
                        true => json!(domain::Status::Working),
                        false => json!(end.status),
                    };
                    json!({"from": std::mem::replace(&mut status, next.clone()), "to": next})
                }
                _ => {
                    let expected = "no such event in this replay".to_owned();
                    return same(&event.id, expected, &event.kind);
                }
            };
            if let Value::Object(expected) = expected {
                self.payload(event, expected)?;
            }
        }
        same("end", json!(end.status), status)?;
        let ended = match end.status {
            domain::Status::Completed => Kind::TaskCompleted,
            domain::Status::Canceled => Kind::TaskCanceled,
            _ => Kind::TaskFailed,
        };
        let reported = match end.broken {
            None => Kind::ReplayCompleted,
            Some(_) => Kind::ReplayFailed,
        };
        for kind in [Kind::ReplayStarted, reported, Kind::OutcomeRecorded, ended] {
            let own = self.events.iter().filter(|event| event.replay.is_none());
            let count = own.filter(|event| event.kind() == Ok(kind)).count();
            same(&format!("number of {kind}"), 1, count)?;
        }
        Ok(())
    }

    /// The replay itself writes the events of its own life: in its own name, about itself.
    fn envelope(&self, event: &Event, covered: &ReceiptFacts) -> Result<(), Fault> {
        let actor = event.actor.as_deref().unwrap_or_default();
        same(&event.id, "agent", actor)?;
        same(
            &event.id,
            "",
            event.idempotency_key.as_deref().unwrap_or_default(),
        )?;
        if event.kind() == Ok(Kind::OutcomeRecorded) {
            return same(&event.id, "outcome", &event.resource.object);
        }
        same(&event.id, &covered.task_id, &event.resource.id)
    }

    fn submitted(&self, event: &Event) -> Result<(), Fault> {
        let (name, _) = self.source.workflow();
        let said = payload::TaskSubmitted::of(&event.payload);
        same(&event.id, name, said.workflow().unwrap_or_default())?;
        let of = said.replay();
        let source = json!(self.source.task_id);
        same(
            &event.id,
            &source,
            json!(of.and_then(|of| of.source_task_id())),
        )?;
        let mode = json!(self.spec.mode);
        same(&event.id, mode, json!(of.and_then(|of| of.mode())))?;
        same(&event.id, source, json!(said.parent_task_id()))
    }

    fn payload(&self, event: &Event, expected: Map<String, Value>) -> Result<(), Fault> {
        let expected = self.reader.whole(expected);
        let found = self.reader.whole((*event.payload).clone());
        same(&event.id, Value::Object(expected), Value::Object(found))
    }
}

fn same(what: &str, expected: impl ToString, found: impl ToString) -> Result<(), Fault> {
    let (expected, found) = (expected.to_string(), found.to_string());
    match expected == found {
        true => Ok(()),
        false => Err(Fault::Differs {
            what: what.to_owned(),
            expected,
            found,
        }),
    }
}
