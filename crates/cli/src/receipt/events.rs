//! The events of a bundle: their order, their links, the chains of trust records in them, and the logs that receipts
//! commit to.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use canon::{Digest, Integers, Map, Value};
use domain::{Event, EventName, Kind, Visibility, payload};
use receipts::Head;
use receipts::trust::follows;
use sha2::{Digest as _, Sha256};

use super::bundle::files::{Lines, Place, Seal};
use super::replays::UnboundEvents;
use super::report::Findings;
use crate::output::{Progress, plural};

/// What a receipt says of its task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReceiptFacts {
    pub(crate) receipt_id: String,
    pub(crate) task_id: String,
    pub(crate) is_replay: bool,
    /// Where it stands in its file.
    pub(crate) place: Place,
    pub(crate) receipt_hash: Digest,
    /// Digest of its bytes.
    pub(crate) content: Digest,
    /// The task whose events it commits to: that of a replay, to its source's.
    pub(crate) log_of: String,
    /// Digest of these events.
    pub(crate) event_log: Option<Digest>,
}

/// What was read.
pub(crate) struct CheckedEvents {
    pub(crate) count: u64,
    pub(crate) sha256: Digest,
    /// Where the events of replays and of their sources stand.
    pub(crate) places: BTreeMap<String, Vec<Place>>,
    /// Tasks of which only headers are left.
    pub(crate) pruned: BTreeSet<String>,
    /// Tasks of other logs, with the digest of their bundles.
    pub(crate) imports: BTreeMap<String, Digest>,
    /// Blobs that events name, each with one of these events.
    pub(crate) named: BTreeMap<Digest, Box<str>>,
    /// What no receipt covers.
    pub(crate) unbound: Vec<UnboundEvents>,
}

/// What must be known of the events before the receipts are read.
#[derive(Debug, Default)]
pub(crate) struct Outline {
    /// Hashes of receipts of other servers that came with tasks of theirs: replays here hang off them.
    pub(crate) foreign: Vec<Digest>,
    /// Sealed heads: size and root.
    pub(crate) heads: BTreeMap<u64, Digest>,
}

/// The log of a task while it is read.
enum Log {
    Open(Sha256),
    Sealed(Digest),
    /// Only headers are left: what they were cannot be compared any more.
    Pruned,
    /// Some of it could not be read, and headers stand for that.
    Repaired,
}

/// What a bundle says of its events.
pub(crate) struct BundleFacts<'a> {
    /// The name of the log.
    pub(crate) log: &'a str,
    /// Events that could not be read, and of which a repair left headers.
    pub(crate) repaired: BTreeSet<Box<str>>,
    /// Whether anybody vouches for that.
    pub(crate) seal: Seal,
}

#[derive(Default)]
struct State {
    /// Events that could not be read.
    repaired: BTreeSet<Box<str>>,
    resources: BTreeMap<Box<str>, (u64, Box<str>)>,
    logs: BTreeMap<String, Log>,
    issued: BTreeMap<String, String>,
    /// The heads of trust chains.
    trust: BTreeMap<Box<str>, Head>,
    /// Tasks that were submitted under a policy of leaving no receipt.
    waived: BTreeSet<String>,
    /// Tasks of other servers, whose events are in bundles of their own.
    imports: BTreeMap<String, Digest>,
    named: BTreeMap<Digest, Box<str>>,
    places: BTreeMap<String, Vec<Place>>,
    /// Events that belong to no task, by kind.
    loose: BTreeMap<Box<str>, u64>,
    last: u64,
    problems: Vec<(String, &'static str, Option<String>, Option<String>)>,
}

/// Reads what the receipts are held against.
pub(crate) fn outline(directory: &Path) -> anyhow::Result<Outline> {
    let mut lines = Lines::open(directory.join("events.jsonl"))?;
    let words =
        [Kind::ReceiptImported, Kind::TreeHeadSealed].map(|kind| format!("\"event\":\"{kind}\""));
    let mut outline = Outline::default();
    while let Some((line, _, _)) = lines.next()? {
        // Most events are others: looking for the word is cheaper than reading each.
        let is_it = |text: &str| words.iter().any(|word| text.contains(word));
        if !str::from_utf8(line).is_ok_and(is_it) {
            continue;
        }
        let Ok(event) = Event::parse(line) else {
            continue;
        };
        match event.kind() {
            Ok(Kind::ReceiptImported) => {
                let said = payload::Receipt::of(&event.payload);
                outline.foreign.extend(said.receipt_hash());
            }
            Ok(Kind::TreeHeadSealed) => {
                let said = payload::TreeHeadSealed::of(&event.payload);
                outline.heads.extend(said.size().zip(said.root()));
            }
            _ => {}
        }
    }
    Ok(outline)
}

/// Checks the events of a bundle against each other and against its receipts.
pub(crate) fn check(
    directory: &Path,
    said: BundleFacts<'_>,
    receipts: &BTreeMap<String, ReceiptFacts>,
    findings: &mut Findings,
) -> anyhow::Result<CheckedEvents> {
    let progress = Progress::begin("reading the export");
    let name = EventName::new(said.log);
    let seal = said.seal;
    let mut lines = Lines::open(directory.join("events.jsonl"))?;
    let mut state = State {
        repaired: said.repaired,
        ..State::default()
    };
    for replay in receipts.values().filter(|receipt| receipt.is_replay) {
        for task in [&replay.task_id, &replay.log_of] {
            state.places.insert(task.clone(), Vec::new());
        }
    }
    let mut count = 0_u64;
    while let Some((line, ended, place)) = lines.next()? {
        let label = format!("event {count}");
        count += 1;
        if count.is_multiple_of(1_000) {
            progress.count("events checked", count);
        }
        let read = canon::read(line, Integers::Safe)
            .map_err(|error| error.to_string())
            .and_then(|value| match ended && canon::jcs(&value) == line {
                true => Event::parse(line).map_err(|error| error.to_string()),
                false => Err("not in canonical form".to_owned()),
            });
        match read {
            Ok(event) => {
                let keep = state.event(&name, &label, &event, line, receipts);
                let task = event.task_id.as_ref().filter(|_| keep);
                let places = task.and_then(|task| state.places.get_mut(task.as_str()));
                if let Some(places) = places {
                    places.push(place);
                }
            }
            Err(problem) => state.problem(&label, "event_invalid", None, Some(problem)),
        }
    }
    drop(progress);
    state.compare(receipts);
    let pruned: BTreeSet<String> = state
        .logs
        .iter()
        .filter(|(_, log)| matches!(log, Log::Pruned | Log::Repaired))
        .map(|(task, _)| task.clone())
        .collect();
    if seal == Seal::Missing && !state.repaired.is_empty() {
        let found = Some(format!(
            "{} headers that no signature vouches for",
            state.repaired.len()
        ));
        state.problem("repaired events", "pruned_unproven", None, found);
    }
    if seal == Seal::Missing {
        // Headers state digests that nothing can be compared with: anybody can write them in the place of events.
        for task in &pruned {
            let found = Some("headers that no signature vouches for".to_owned());
            let name = format!("event log of {task}");
            state.problem(&name, "pruned_unproven", None, found);
        }
    }
    if state.problems.is_empty() {
        findings.pass("events");
        findings.pass("event logs of tasks");
    }
    let without = state.waived.len();
    if without > 0 {
        findings.note(format!(
            "{} ran under a persona that leaves no receipts: nothing proves what happened there",
            plural(without, "task")
        ));
    }
    if !state.repaired.is_empty() {
        findings.note(format!(
            "{} events could not be read when the log was repaired: headers stand for them",
            state.repaired.len()
        ));
        findings.set("repaired", serde_json::json!(state.repaired));
    }
    if !pruned.is_empty() {
        findings.note(format!(
            "{} tasks were pruned or repaired: their receipts stand, their events cannot be compared any more (material_unavailable)",
            pruned.len()
        ));
    }
    let unbound = state.unbound(receipts, &pruned);
    for (name, code, expected, found) in state.problems {
        findings.fail(name, code, expected, found);
    }
    Ok(CheckedEvents {
        count,
        sha256: lines.sha256(),
        places: state.places,
        pruned,
        imports: state.imports,
        named: state.named,
        unbound,
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

    /// Takes the next event. Returns whether it belongs to the log of its task, which its issue of a receipt does not.
    fn event(
        &mut self,
        log: &EventName,
        label: &str,
        event: &Event,
        line: &[u8],
        receipts: &BTreeMap<String, ReceiptFacts>,
    ) -> bool {
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
        // Behind an event that could not be read, nobody can tell how many there were.
        let after_gap = event
            .previous_event_id
            .as_ref()
            .is_some_and(|previous| self.repaired.contains(previous));
        if event.is_lost() && !self.repaired.contains(&event.id) {
            let found =
                Some("it stands for an event that was lost, and no repair says so".to_owned());
            self.problem(label, "event_invalid", None, found);
        }
        if !after_gap && (event.sequence != sequence || event.previous_event_id != previous) {
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
        // A replay repeats the records of its source, out of their chain; running it again is what binds them.
        if event.kind() == Ok(Kind::TrustRecorded) && event.replay.is_none() {
            self.trusted(label, event);
        }
        self.name_blobs(event);
        match &event.task_id {
            Some(task) => self.of_task(label, task.as_str(), event, line, receipts),
            None => {
                *self.loose.entry(event.kind.clone()).or_default() += 1;
                false
            }
        }
    }

    /// Notes the blobs that an event needs.
    fn name_blobs(&mut self, event: &Event) {
        let digest = |value: &Value| Digest::parse(value.get("sha256")?.as_str()?).ok();
        let moved = domain::external_members(&event.payload).map(|moved| moved.digest);
        let parts = payload::Message::of(&event.payload).parts();
        let parts = parts.and_then(Value::as_array);
        let hidden = parts.into_iter().flatten().filter(|part| {
            // A public part may have members of these names too: they are the caller's.
            let visibility = part.get("visibility").and_then(Value::as_str);
            visibility.is_some_and(|word| word != Visibility::Public.as_str())
                && part.get("redacted") == Some(&Value::Bool(true))
        });
        let named = event.kind().ok();
        let named = named.and_then(|kind| kind.named_blob().digest(event));
        for digest in moved.chain(hidden.filter_map(digest)).chain(named) {
            self.named.entry(digest).or_insert_with(|| event.id.clone());
        }
    }

    /// Returns what no receipt covers. Replays are judged by themselves.
    fn unbound(
        &self,
        receipts: &BTreeMap<String, ReceiptFacts>,
        pruned: &BTreeSet<String>,
    ) -> Vec<UnboundEvents> {
        let mut unbound = Vec::new();
        for (task, event) in &self.issued {
            let what = format!("receipt.issued {event} of {task}");
            let why = "the receipt is bound, when and by whom it was stored is not";
            unbound.push(UnboundEvents::new(what, why));
        }
        for (task, log) in &self.logs {
            let why = match log {
                Log::Pruned if pruned.contains(task) => "only headers are left",
                Log::Repaired => "some of it could not be read",
                Log::Open(_) => "the task has not ended",
                Log::Sealed(_) if !receipts.contains_key(task) => "the task left no receipt",
                Log::Sealed(_) | Log::Pruned => continue,
            };
            unbound.push(UnboundEvents::new(format!("events of {task}"), why));
        }
        for task in self.imports.keys() {
            let what = format!("the arrival of {task}");
            let why = "it came from another log, whose receipt covers its events";
            unbound.push(UnboundEvents::new(what, why));
        }
        for (kind, count) in &self.loose {
            let what = format!("{count} {kind}");
            unbound.push(UnboundEvents::new(what, "no task's log holds it"));
        }
        unbound
    }

    fn trusted(&mut self, label: &str, event: &Event) {
        let id = &event.resource.id;
        let head = self.trust.get(id).copied().unwrap_or(Head::EMPTY);
        let none = Map::new();
        let record = payload::TrustRecorded::of(&event.payload).record();
        match follows(&head, record.map_or(&none, |record| record.members())) {
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
        receipts: &BTreeMap<String, ReceiptFacts>,
    ) -> bool {
        let kind = event.kind();
        if kind == Ok(Kind::ReceiptIssued) {
            self.issued(label, task, event, receipts);
            return false;
        }
        if kind == Ok(Kind::ReceiptImported) {
            return false;
        }
        if kind == Ok(Kind::TaskImported) {
            let bundle = kind.ok().and_then(|kind| kind.named_blob().digest(event));
            // A header says that there was one.
            let bundle = bundle.unwrap_or_else(|| canon::sha256(b""));
            self.imports.insert(task.to_owned(), bundle);
            return false;
        }
        let log = self
            .logs
            .entry(task.to_owned())
            .or_insert_with(|| Log::Open(Sha256::new()));
        if event.is_header() && self.repaired.contains(&event.id) {
            // After its end it takes nothing from the log that a receipt commits to.
            if matches!(log, Log::Open(_) | Log::Pruned) {
                *log = Log::Repaired;
            }
            return true;
        }
        if matches!(log, Log::Repaired) {
            return true;
        }
        if event.is_header() {
            if matches!(log, Log::Open(_)) {
                *log = Log::Pruned;
            }
            if matches!(log, Log::Pruned) {
                return true;
            }
        }
        // Trust records stay whole.
        if matches!(log, Log::Pruned) && kind == Ok(Kind::TrustRecorded) {
            return true;
        }
        let Log::Open(hasher) = log else {
            let found = Some(event.id.to_string());
            self.problem(label, "event_after_end", None, found);
            return false;
        };
        hasher.update(line);
        hasher.update(b"\n");
        let policy = payload::TaskSubmitted::of(&event.payload).receipt_policy();
        if kind == Ok(Kind::TaskSubmitted) && policy == Some(domain::ReceiptPolicy::Disabled) {
            self.waived.insert(task.to_owned());
        }
        let to = payload::StatusChanged::of(&event.payload).to();
        let ends = to.is_some_and(domain::Status::is_terminal);
        if kind == Ok(Kind::TaskStatusChanged) && ends {
            let digest = Digest::from_bytes(hasher.clone().finalize().into());
            *log = Log::Sealed(digest);
        }
        true
    }

    /// A receipt that was issued must be there, with these bytes.
    fn issued(
        &mut self,
        label: &str,
        task: &str,
        event: &Event,
        receipts: &BTreeMap<String, ReceiptFacts>,
    ) {
        let text = |name: &str| event.payload.get(name).and_then(Value::as_str);
        let again = self.issued.insert(task.to_owned(), event.id.to_string());
        if again.is_some() {
            let found = Some(event.resource.id.to_string());
            self.problem(label, "receipt_duplicate", None, found);
        }
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

    fn compare(&mut self, receipts: &BTreeMap<String, ReceiptFacts>) {
        for (task, receipt) in receipts {
            let name = format!("event log of {task}");
            // A task that came from another log left no receipt here, and only a replay has it as its source.
            let is_source = receipt.is_replay && !receipts.contains_key(&receipt.log_of);
            let found = match self.logs.get(&receipt.log_of) {
                None if is_source && self.imports.contains_key(&receipt.log_of) => receipt
                    .event_log
                    .map_or_else(String::new, |log| log.to_string()),
                Some(_) if self.imports.contains_key(&receipt.log_of) => {
                    "events of a task that is said to come from another log".to_owned()
                }
                Some(Log::Pruned | Log::Repaired) => receipt
                    .event_log
                    .map_or_else(String::new, |log| log.to_string()),
                Some(Log::Sealed(digest)) => digest.to_string(),
                Some(Log::Open(_)) => "a log that is cut short".to_owned(),
                None => "no events".to_owned(),
            };
            let expected = receipt.event_log.map(|digest| digest.to_string());
            if expected.as_ref() != Some(&found) {
                self.problem(&name, "event_log_mismatch", expected, Some(found));
            }
            // The event that issued it may be among those that could not be read.
            if !self.issued.contains_key(task) && self.repaired.is_empty() {
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
