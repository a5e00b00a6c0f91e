//! The events of a bundle: their order, their links, the chains of trust records in them, and the logs that receipts
//! commit to.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use canon::{Digest, Integers, Map, Value};
use domain::{Event, EventName, Kind};
use receipts::Head;
use receipts::trust::follows;
use sha2::{Digest as _, Sha256};

use super::bundle::Lines;
use super::report::Findings;
use crate::output::counter;

/// What a receipt says of its task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Covered {
    pub(crate) receipt_id: String,
    pub(crate) receipt_hash: Digest,
    /// Digest of its bytes.
    pub(crate) content: Digest,
    /// The task whose events it commits to: that of a replay, to its source's.
    pub(crate) log_of: String,
    /// Digest of these events.
    pub(crate) event_log: Option<Digest>,
}

/// What was read.
pub(crate) struct Checked {
    pub(crate) count: u64,
    pub(crate) sha256: Digest,
}

/// The log of a task while it is read.
enum Log {
    Open(Sha256),
    Sealed(Digest),
    /// Only headers are left: what they were cannot be compared any more.
    Pruned,
}

#[derive(Default)]
struct State {
    resources: BTreeMap<Box<str>, (u64, Box<str>)>,
    logs: BTreeMap<String, Log>,
    issued: BTreeMap<String, String>,
    /// The heads of trust chains.
    trust: BTreeMap<Box<str>, Head>,
    /// Tasks that were submitted under a policy of leaving no receipt.
    waived: BTreeSet<String>,
    /// Tasks of other servers, whose events are in bundles of their own.
    imported: BTreeSet<String>,
    last: u64,
    problems: Vec<(String, &'static str, Option<String>, Option<String>)>,
}

/// Returns the hashes of the receipts of other servers that came with tasks of theirs: replays here hang off them.
pub(crate) fn foreign(directory: &Path) -> anyhow::Result<Vec<Digest>> {
    let mut lines = Lines::open(directory.join("events.jsonl"))?;
    let word = format!("\"event\":\"{}\"", Kind::ReceiptImported);
    let mut found = Vec::new();
    while let Some((line, _)) = lines.next()? {
        // Most events are others: looking for the word is cheaper than reading each.
        if !str::from_utf8(line).is_ok_and(|text| text.contains(&word)) {
            continue;
        }
        let event = Event::parse(line).ok();
        let event = event.filter(|event| event.kind() == Ok(Kind::ReceiptImported));
        let hash = event.and_then(|event| {
            let hash = event.payload.get("receipt_hash")?.as_str()?;
            Digest::parse(hash).ok()
        });
        found.extend(hash);
    }
    Ok(found)
}

/// Checks the events of a bundle against each other and against its receipts.
pub(crate) fn check(
    directory: &Path,
    log: &str,
    receipts: &BTreeMap<String, Covered>,
    findings: &mut Findings,
) -> anyhow::Result<Checked> {
    let bar = counter();
    let name = EventName::new(log);
    let mut lines = Lines::open(directory.join("events.jsonl"))?;
    let mut state = State::default();
    let mut count = 0_u64;
    while let Some((line, ended)) = lines.next()? {
        let label = format!("event {count}");
        count += 1;
        if count.is_multiple_of(1_000) {
            bar.set_position(count);
            bar.set_message("events checked");
        }
        let read = canon::read(line, Integers::Safe)
            .map_err(|error| error.to_string())
            .and_then(|value| match ended && canon::jcs(&value) == line {
                true => Event::parse(line).map_err(|error| error.to_string()),
                false => Err("not in canonical form".to_owned()),
            });
        match read {
            Ok(event) => state.event(&name, &label, &event, line, receipts),
            Err(problem) => state.problem(&label, "event_invalid", None, Some(problem)),
        }
    }
    bar.finish_and_clear();
    state.compare(receipts);
    if state.problems.is_empty() {
        findings.pass("events");
        findings.pass("event logs of tasks");
    }
    let without = state.waived.len();
    if without > 0 {
        findings.note(format!(
            "{without} tasks ran under a persona that leaves no receipts: nothing proves their events"
        ));
    }
    let pruned = state.logs.values();
    let pruned = pruned.filter(|log| matches!(log, Log::Pruned)).count();
    if pruned > 0 {
        findings.note(format!(
            "{pruned} tasks were pruned: their receipts stand, their events cannot be compared any more (material_unavailable)"
        ));
    }
    for (name, code, expected, found) in state.problems {
        findings.fail(name, code, expected, found);
    }
    Ok(Checked {
        count,
        sha256: lines.sha256(),
    })
}

impl State {
    fn problem(
        &mut self,
        name: &str,
        code: &'static str,
        expected: Option<String>,
        found: Option<String>,
    ) {
        self.problems.push((name.to_owned(), code, expected, found));
    }

    fn event(
        &mut self,
        log: &EventName,
        label: &str,
        event: &Event,
        line: &[u8],
        receipts: &BTreeMap<String, Covered>,
    ) {
        match log.position(&event.id) {
            Some(position) if position.0 > self.last => self.last = position.0,
            _ => {
                let expected = Some(format!("an id after position {}", self.last));
                self.problem(label, "event_order", expected, Some(event.id.to_string()));
            }
        }
        let before = self.resources.insert(
            event.resource.id.clone(),
            (event.sequence, event.id.clone()),
        );
        let (sequence, previous) = match before {
            Some((sequence, id)) => (sequence + 1, Some(id)),
            None => (1, None),
        };
        if event.sequence != sequence || event.previous_event_id != previous {
            let text = |sequence: u64, id: Option<&str>| {
                Some(format!(
                    "sequence {sequence} after {}",
                    id.unwrap_or("none")
                ))
            };
            let expected = text(sequence, previous.as_deref());
            let found = text(event.sequence, event.previous_event_id.as_deref());
            self.problem(label, "event_link", expected, found);
        }
        if event.kind() == Ok(Kind::TrustRecorded) {
            self.trusted(label, event);
        }
        if let Some(task) = &event.task_id {
            self.of_task(label, task.as_str(), event, line, receipts);
        }
    }

    fn trusted(&mut self, label: &str, event: &Event) {
        let id = &event.resource.id;
        let head = self.trust.get(id).copied().unwrap_or(Head::EMPTY);
        let none = Map::new();
        let record = event.payload.get("record").and_then(Value::as_object);
        match follows(&head, record.unwrap_or(&none)) {
            Ok(next) => {
                self.trust.insert(id.clone(), next);
            }
            Err(refusal) => {
                let found = Some(refusal.to_string());
                self.problem(label, refusal.fault().as_str(), None, found);
            }
        }
    }

    fn of_task(
        &mut self,
        label: &str,
        task: &str,
        event: &Event,
        line: &[u8],
        receipts: &BTreeMap<String, Covered>,
    ) {
        let kind = event.kind();
        if kind == Ok(Kind::ReceiptIssued) {
            return self.issued(label, task, event, receipts);
        }
        if matches!(kind, Ok(Kind::TaskImported | Kind::ReceiptImported)) {
            self.imported.insert(task.to_owned());
            return;
        }
        let log = self
            .logs
            .entry(task.to_owned())
            .or_insert_with(|| Log::Open(Sha256::new()));
        if event.is_header() {
            if matches!(log, Log::Open(_)) {
                *log = Log::Pruned;
            }
            if matches!(log, Log::Pruned) {
                return;
            }
        }
        // Trust records stay whole.
        if matches!(log, Log::Pruned) && kind == Ok(Kind::TrustRecorded) {
            return;
        }
        let Log::Open(hasher) = log else {
            let found = Some(event.id.to_string());
            return self.problem(label, "event_after_end", None, found);
        };
        hasher.update(line);
        hasher.update(b"\n");
        let policy = event.payload.get("receipt_policy").and_then(Value::as_str);
        if kind == Ok(Kind::TaskSubmitted) && policy == Some("disabled") {
            self.waived.insert(task.to_owned());
        }
        let to = event.payload.get("to").and_then(Value::as_str);
        let ends = matches!(to, Some("COMPLETED" | "FAILED" | "CANCELED"));
        if kind == Ok(Kind::TaskStatusChanged) && ends {
            let digest = Digest::from_bytes(hasher.clone().finalize().into());
            *log = Log::Sealed(digest);
        }
    }

    /// A receipt that was issued must be there, with these bytes.
    fn issued(
        &mut self,
        label: &str,
        task: &str,
        event: &Event,
        receipts: &BTreeMap<String, Covered>,
    ) {
        let text = |name: &str| event.payload.get(name).and_then(Value::as_str);
        self.issued
            .insert(task.to_owned(), event.resource.id.to_string());
        let Some(receipt) = receipts.get(task) else {
            let found = Some(event.resource.id.to_string());
            return self.problem(label, "receipt_missing", None, found);
        };
        let stated = [
            (Some(&*event.resource.id), receipt.receipt_id.clone()),
            (text("receipt_hash"), receipt.receipt_hash.to_string()),
            (text("content_sha256"), receipt.content.to_string()),
        ];
        for (stated, found) in stated {
            if stated != Some(&found) {
                let expected = stated.map(str::to_owned);
                self.problem(label, "receipt_mismatch", expected, Some(found));
            }
        }
    }

    fn compare(&mut self, receipts: &BTreeMap<String, Covered>) {
        for (task, receipt) in receipts {
            let name = format!("event log of {task}");
            let found = match self.logs.get(&receipt.log_of) {
                // Gone, or never in this log.
                None if self.imported.contains(&receipt.log_of) => receipt
                    .event_log
                    .map_or_else(String::new, |log| log.to_string()),
                Some(Log::Pruned) => receipt
                    .event_log
                    .map_or_else(String::new, |log| log.to_string()),
                Some(Log::Sealed(digest)) => digest.to_string(),
                Some(Log::Open(_)) => "a log without its end".to_owned(),
                None => "no events".to_owned(),
            };
            let expected = receipt.event_log.map(|digest| digest.to_string());
            if expected.as_ref() != Some(&found) {
                self.problem(&name, "event_log_mismatch", expected, Some(found));
            }
            if !self.issued.contains_key(task) {
                let found = Some(receipt.receipt_id.clone());
                self.problem(&name, "receipt_not_issued", None, found);
            }
        }
        let unproven: Vec<String> = self
            .logs
            .iter()
            .filter(|(task, log)| {
                let proven = receipts.contains_key(*task) || self.waived.contains(*task);
                matches!(log, Log::Sealed(_)) && !proven
            })
            .map(|(task, _)| task.clone())
            .collect();
        for task in unproven {
            let name = format!("event log of {task}");
            self.problem(&name, "receipt_missing", None, None);
        }
    }
}
