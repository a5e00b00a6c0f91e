//! Does the log say what it said when it was written? Every event, document and blob is checked.
//!
//! Against decay, lost writes and bugs of this program, not against people: whoever can write the files can
//! also make them agree. Receipts and the Merkle log are for that: here they are compared with the events that issued
//! them, elsewhere with a signed checkpoint.

mod folded;
mod receipt;
mod tables;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use canon::{Digest, Value, sha256};
use domain::{
    Document, Documents, Event, Kind, Links, NamedBlob, Position, Visibility, links, payload,
};
use engine::port::StoredEvent;

use crate::audit::{Audit, AuditError, DamagedBlock};
use crate::claims::ClaimedEvents;
use crate::directory::OpenError;
use crate::fault::fault;
use crate::fold::{Problem, ProblemSubject, is_unfoldable, read_event, reseal};
use crate::prune::Headers;
use crate::row::DocumentRow;
use crate::schema;
use crate::shape::{self, Flaw};
use folded::{Folded, Positions};

/// What was checked and what is wrong.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// How many events were read.
    pub events: u64,
    /// How many documents were compared.
    pub documents: u64,
    /// How many blobs were hashed.
    pub blobs: u64,
    /// How many receipts were compared with their events, chains and leaves.
    pub receipts: u64,
    /// How many of the events are headers that pruning left.
    pub pruned: u64,
    /// How many of the events could not be read and are headers that a repair left.
    pub repaired: u64,
    /// How many blobs a repair found to be lost.
    pub lost_blobs: u64,
    /// How many API keys were made before keys had events.
    pub keys_without_events: u64,
    /// True when the log names a key that signed.
    pub names_keys: bool,
    /// What the signing keys were when the newest head was signed, when it says so.
    pub signing_keys: Option<Digest>,
    /// True when no file says how far the log had come, because no program that writes one opened it yet.
    pub without_head: bool,
    /// True when a copy in a temporary folder was checked, because the directory cannot be written.
    pub copied: bool,
    /// What is wrong; empty when nothing is.
    pub problems: Vec<Problem>,
}

/// How often a directory is read again in which somebody began to work meanwhile.
const TRIES: u32 = 3;

/// Checks the log of a directory. Tells how far it is: events read, and the position of the last one.
///
/// Takes memory for what events go on changing, for the digests of blobs and receipts and for what is wrong; for each event a bit.
///
/// # Errors
/// The log cannot be read. A log that can be read and is wrong is a report with problems.
pub fn verify(directory: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Report, AuditError> {
    let mut tries = 1;
    loop {
        let audit = match Audit::open(directory) {
            // Behind what is lost nothing can be read, and before it nothing would be what it says.
            Err(AuditError::Open(
                error @ (OpenError::Lost { .. } | OpenError::Incomplete { .. }),
            )) => {
                return Ok(lost(&error));
            }
            opened => opened?,
        };
        let report = check(&audit, progress);
        if tries == TRIES || !audit.is_stale() {
            return report;
        }
        tries += 1;
    }
}

fn lost(error: &OpenError) -> Report {
    let problem = format!("{error}; {}", error.hint());
    Report {
        problems: vec![Problem {
            what: ProblemSubject::Log,
            problem,
        }],
        ..Report::default()
    }
}

fn check(audit: &Audit, progress: &mut dyn FnMut(u64, u64)) -> Result<Report, AuditError> {
    let mut check = Check::new(audit)?;
    check.report.copied = audit.is_copy();
    match (audit.has_head(), schema::keeps_head(audit.connection())) {
        (true, _) => {}
        (false, Ok(true)) => {
            let problem = "the file `head` is missing, which says how far the log had come: its end may be missing too; \
                 restore it from a backup, or let `reprise log repair --apply` write it again";
            check.report(ProblemSubject::Log, problem.to_owned());
        }
        (false, _) => check.report.without_head = true,
    }
    if let Some(error) = audit.unreadable_head() {
        check.report(ProblemSubject::Log, format!("{error}; {}", error.hint()));
    }
    if let Some(loss) = audit.loss() {
        check.report(ProblemSubject::Log, loss.to_string());
    }
    let known = check.report.problems.len();
    for problem in audit.integrity()? {
        check.report(ProblemSubject::Database, problem);
    }
    if check.report.problems.len() > known {
        // What its pages and indexes say cannot be relied on: whatever else was found would mislead.
        return Ok(check.report);
    }
    let flaws = shape::schema_flaws(audit.connection()).map_err(fault)?;
    if flaws.iter().any(Flaw::refuses) {
        // Nor on what a missing index would find.
        check.flaws(flaws);
        return Ok(check.report);
    }
    check.events(progress)?;
    check.headers()?;
    check.repaired();
    check.documents()?;
    check.blobs()?;
    check.receipts()?;
    let is_sound = check.report.problems.is_empty();
    check.report.keys_without_events = tables::keys_without_events(audit.connection())?;
    let claimed = std::mem::take(&mut check.claimed);
    let wrong = tables::check(audit.connection(), audit.head(), claimed, is_sound)?;
    check.report.problems.extend(wrong);
    let flaws = shape::flaws(audit.connection()).map_err(fault)?;
    check.flaws(flaws);
    Ok(check.report)
}

struct Check<'a> {
    audit: &'a Audit,
    report: Report,
    folded: Folded,
    /// Resources with a damaged event: their documents cannot be judged.
    damaged: BTreeSet<Position>,
    /// Ranges of events that cannot be read, first and last.
    lost: Vec<(Position, Position)>,
    references: BTreeMap<Digest, Position>,
    /// Blobs that hold the parts of a message, which refer to blobs in turn.
    parts: BTreeMap<Digest, Position>,
    issued: Vec<receipt::Issued>,
    /// Resources that depend on pruned events: their documents stand as they are stored, and only envelopes are checked.
    kept: Positions,
    /// Headers, by the Task they belong to.
    headers: BTreeMap<Position, Headers>,
    /// Headers that a repair noted and that were not seen yet, with what they hash to.
    repaired: BTreeMap<Position, Digest>,
    /// Positions of which a repair left not even an envelope.
    gone: BTreeSet<Position>,
    lost_blobs: BTreeSet<Digest>,
    /// What a purge of a memory field erased, as the log says.
    erased: BTreeSet<Digest>,
    claimed: ClaimedEvents,
}

impl<'a> Check<'a> {
    fn new(audit: &'a Audit) -> Result<Self, AuditError> {
        Ok(Self {
            audit,
            report: Report::default(),
            folded: Folded::default(),
            damaged: BTreeSet::new(),
            lost: Vec::new(),
            references: BTreeMap::new(),
            parts: BTreeMap::new(),
            issued: Vec::new(),
            kept: Positions::default(),
            headers: BTreeMap::new(),
            repaired: audit.repaired()?,
            gone: BTreeSet::new(),
            lost_blobs: audit.lost_blobs()?,
            erased: BTreeSet::new(),
            claimed: ClaimedEvents::default(),
        })
    }

    fn report(&mut self, what: ProblemSubject, problem: String) {
        self.report.problems.push(Problem { what, problem });
    }

    fn flaws(&mut self, flaws: Vec<Flaw>) {
        for flaw in flaws {
            let hint = match flaw.refuses() {
                true => "let `reprise log repair --apply` correct it",
                false => "remove it if nobody needs it",
            };
            self.report(
                ProblemSubject::Database,
                format!("{}: {hint}", flaw.problem),
            );
        }
    }

    fn events(&mut self, progress: &mut dyn FnMut(u64, u64)) -> Result<(), AuditError> {
        let mut after = Position::START;
        loop {
            let rows = self.audit.events(after)?;
            if rows.is_empty() {
                return Ok(());
            }
            for row in rows {
                match row {
                    Ok(row) => {
                        after = row.position;
                        self.event(&row)?;
                    }
                    Err(damaged) => {
                        after = damaged.last;
                        self.lose(damaged)?;
                    }
                }
            }
            progress(self.report.events, self.audit.head().0);
        }
    }

    /// Notes that the events of a block cannot be read.
    fn lose(&mut self, block: DamagedBlock) -> Result<(), AuditError> {
        // How far the last block reaches nobody knows: everything behind it is lost.
        let last = match block.last >= self.audit.head() {
            true => Position(u64::MAX),
            false => block.last,
        };
        self.lost.push((block.first, last));
        self.report(ProblemSubject::Event(block.first), block.to_string());
        // The stored documents stand in for those that the lost events created.
        let mut after = Position(block.first.0.saturating_sub(1));
        loop {
            let rows = self.audit.documents(after)?;
            let Some(newest) = rows.last() else {
                return Ok(());
            };
            after = newest.key;
            for row in &rows {
                if row.key > last {
                    return Ok(());
                }
                self.damaged.insert(row.key);
                if let Ok(document) = row.document() {
                    self.folded.put_unjudged(document);
                }
            }
        }
    }

    fn is_lost(&self, position: Position) -> bool {
        let mut ranges = self.lost.iter();
        self.gone.contains(&position)
            || ranges.any(|(first, last)| (*first..=*last).contains(&position))
    }

    fn event(&mut self, row: &StoredEvent) -> Result<(), AuditError> {
        self.report.events += 1;
        match read_event(self.audit.name(), row) {
            Ok(event) => {
                self.claimed.add(row.position, &event);
                if let Some(noted) = self.repaired.remove(&row.position) {
                    return self.repaired_event(&event, row, noted);
                }
                if event.is_lost() {
                    let problem = "stands for an event that was lost, though no repair left it";
                    self.report(ProblemSubject::Event(row.position), problem.to_owned());
                }
                self.report.names_keys |= matches!(
                    event.kind(),
                    Ok(Kind::ReceiptIssued | Kind::TrustRecorded | Kind::TreeHeadSealed)
                );
                if event.kind() == Ok(Kind::TreeHeadSealed) {
                    self.report.signing_keys = payload::TreeHeadSealed::of(&event.payload).keys();
                }
                if event.is_header() {
                    self.report.pruned += 1;
                    let task = row.links.task.unwrap_or(Position::START);
                    self.headers.entry(task).or_default().add(&row.bytes);
                } else {
                    self.refer(&event, row.position);
                }
                self.fold(&event, row)
            }
            Err(problem) => {
                self.report(ProblemSubject::Event(row.position), problem);
                let before = self.before(row)?;
                let version = before.map_or(1, |before| before.version + 1);
                self.pass_over(row, version)
            }
        }
    }

    /// Takes a header that a repair left.
    fn repaired_event(
        &mut self,
        event: &Event,
        row: &StoredEvent,
        noted: Digest,
    ) -> Result<(), AuditError> {
        self.report.repaired += 1;
        if sha256(&row.bytes) != noted || !event.is_header() {
            let problem = "is not the header that a repair left here".to_owned();
            self.report(ProblemSubject::Event(row.position), problem);
        }
        if !event.is_lost() {
            return self.fold(event, row);
        }
        self.gone.insert(row.position);
        let before = self.before(row)?.map(|before| before.version + 1);
        // What it created stands as it is stored, and so does what it changed.
        if let Some(created) = self.audit.document(row.position)?
            && let Ok(document) = created.document()
        {
            self.issued.extend(receipt::Issued::of_document(&document));
            self.damaged.insert(document.key);
            self.folded.put_unjudged(document);
        }
        if row.resource == row.position {
            return Ok(());
        }
        self.pass_over(row, before.unwrap_or(1))
    }

    /// Every header that a repair noted must be there.
    fn repaired(&mut self) {
        if !self.lost.is_empty() {
            return;
        }
        for position in std::mem::take(&mut self.repaired).into_keys() {
            let problem = "the header that a repair left here is missing".to_owned();
            self.report(ProblemSubject::Event(position), problem);
        }
        self.report.lost_blobs = self.lost_blobs.len() as u64;
    }

    fn before(&mut self, row: &StoredEvent) -> Result<Option<Arc<Document>>, AuditError> {
        self.folded.find_key(self.audit, row.resource)
    }

    fn fold(&mut self, event: &Event, row: &StoredEvent) -> Result<(), AuditError> {
        let log = self.audit.name();
        let what = || ProblemSubject::Event(row.position);
        let previous = event.previous_event_id.as_deref();
        if previous
            .and_then(|id| log.position(id))
            .is_some_and(|previous| self.is_lost(previous))
        {
            // What came between is lost: its resource cannot be judged any more.
            return self.pass_over(row, event.sequence);
        }
        let before = self.folded.find(self.audit, &event.resource.id)?;
        let follows = before.as_ref().map_or(1, |before| before.version + 1);
        if event.sequence != follows {
            let problem = format!("has sequence {}, expected {follows}", event.sequence);
            self.report(what(), problem);
            return self.pass_over(row, event.sequence);
        }
        let tip = before.as_ref().map(|before| log.id(before.tip));
        let linked = event.previous_event_id.as_deref() == tip.as_deref();
        if !linked {
            let said = event.previous_event_id.as_deref().unwrap_or("none");
            let tip = tip.as_deref().unwrap_or("none");
            let problem =
                format!("names `{said}` before it, and its resource was last changed by `{tip}`");
            self.report(what(), problem);
        }
        if self.damaged.contains(&row.resource) {
            return self.pass_over(row, event.sequence);
        }
        if is_unfoldable(event) || self.kept.contains(row.resource) {
            return self.keep(event, row);
        }
        drop(before);
        let mut scratch = self.folded.scratch(self.audit, event)?;
        match reseal(log, &mut scratch, event, row.position) {
            Ok(sealed) => {
                if sealed.links != row.links || sealed.resource != row.resource {
                    let problem = "is indexed under other resources than its ids name";
                    self.report(what(), problem.to_owned());
                }
                if linked && sealed.bytes != *row.bytes {
                    let problem = "has members that this log does not write";
                    self.report(what(), problem.to_owned());
                }
                let mut documents = scratch.iter_shared();
                let changed = documents.find(|document| document.id == event.resource.id);
                match changed {
                    Some(document) => self.folded.put(self.audit, Arc::clone(document)),
                    None => Ok(()),
                }
            }
            Err(problem) => {
                self.report(what(), problem);
                self.pass_over(row, event.sequence)
            }
        }
    }

    /// Goes on behind an event that cannot be folded, so that one problem is reported once: what follows is
    /// checked against the place the event takes, and the document it would have changed is left unjudged.
    fn pass_over(&mut self, row: &StoredEvent, version: u64) -> Result<(), AuditError> {
        self.damaged.insert(row.resource);
        if let Some(mut document) = self.stand_in(row)? {
            document.version = version;
            document.tip = row.position;
            self.folded.put_unjudged(document);
        }
        Ok(())
    }

    /// Returns the document that an event changed as far as it is known: for one that no event could create, as stored.
    fn stand_in(&mut self, row: &StoredEvent) -> Result<Option<Document>, AuditError> {
        if let Some(before) = self.before(row)? {
            return Ok(Some(Arc::unwrap_or_clone(before)));
        }
        self.as_stored(row.resource)
    }

    fn as_stored(&self, key: Position) -> Result<Option<Document>, AuditError> {
        let stored = self.audit.document(key)?;
        Ok(stored.and_then(|stored| stored.document().ok()))
    }

    /// Takes what the envelope of a pruned event says for what it did.
    fn keep(&mut self, event: &Event, row: &StoredEvent) -> Result<(), AuditError> {
        let first = self.kept.insert(row.resource);
        let scratch = self.folded.scratch(self.audit, event)?;
        let key = |id: &str| match *id == *event.resource.id {
            true => Some(row.resource),
            false => Some(scratch.document(id)?.key),
        };
        // Further links went with the payload and stand as they are stored.
        let links = Links {
            further: row.links.further.clone(),
            ..links(event, key)
        };
        let stand_in = match first {
            // What the event did to its document is only in the document.
            true => self.as_stored(row.resource)?,
            false => self.stand_in(row)?,
        };
        let Some(mut document) = stand_in else {
            let problem = "is pruned, and the document that it changed is missing".to_owned();
            self.report(ProblemSubject::Event(row.position), problem);
            return self.pass_over(row, event.sequence);
        };
        if links != row.links || document.id != event.resource.id {
            let problem = "is indexed under other resources than its ids name".to_owned();
            self.report(ProblemSubject::Event(row.position), problem);
        }
        document.version = event.sequence;
        document.tip = row.position;
        document.updated_at = event.created_at;
        if event.sequence == 1 {
            document.created_at = event.created_at;
        }
        self.folded.put(self.audit, Arc::new(document))
    }

    /// The headers of a Task must be those that its pruning noted, all of them.
    fn headers(&mut self) -> Result<(), AuditError> {
        if !self.lost.is_empty() {
            // Some are among what cannot be read, which was said already.
            return Ok(());
        }
        let mut noted = self.audit.pruned()?;
        for (task, found) in std::mem::take(&mut self.headers) {
            let noted = noted.remove(&task);
            if noted == Some((found.count, found.digest())) {
                continue;
            }
            let id = self.id(task)?;
            let problem = if noted.is_some() {
                "the headers of its events are not those that pruning left"
            } else {
                "has headers in the place of events, though it was never pruned"
            };
            self.report(ProblemSubject::Document(task, id), problem.to_owned());
        }
        for task in noted.into_keys() {
            let id = self.id(task)?;
            let problem = "was pruned, and the headers of its events are missing".to_owned();
            self.report(ProblemSubject::Document(task, id), problem);
        }
        Ok(())
    }

    fn id(&mut self, key: Position) -> Result<Box<str>, AuditError> {
        let document = self.folded.find_key(self.audit, key)?;
        Ok(document
            .map(|document| document.id.clone())
            .unwrap_or_default())
    }

    /// Notes the blobs that an event needs.
    fn refer(&mut self, event: &Event, position: Position) {
        if event.is_substituted() {
            // A caller's words: nothing is kept for them.
            return;
        }
        for moved in domain::external_members(&event.payload) {
            self.references.entry(moved.digest).or_insert(position);
            if moved.member == "parts" {
                self.parts.insert(moved.digest, position);
            }
        }
        if let Some(parts) = payload::Message::of(&event.payload).parts() {
            self.refer_parts(parts, position);
        }
        let named = event.kind().map_or(NamedBlob::None, Kind::named_blob);
        self.erased.extend(named.erased(event));
        for digest in named.digests(event) {
            self.references.entry(digest).or_insert(position);
        }
        if named == NamedBlob::Receipt {
            self.issued.extend(receipt::Issued::read(event, position));
        }
    }

    fn refer_parts(&mut self, parts: &Value, position: Position) {
        for part in parts.as_array().into_iter().flatten() {
            let visibility = part.get("visibility").and_then(Value::as_str);
            // A public part may have members of these names too: they are the caller's.
            let hidden = visibility.is_some_and(|word| word != Visibility::Public.as_str())
                && part.get("redacted") == Some(&Value::Bool(true));
            if hidden && let Some(digest) = digest_of(part) {
                self.references.entry(digest).or_insert(position);
            }
        }
    }

    fn documents(&mut self) -> Result<(), AuditError> {
        let mut expected = self.folded.different();
        let mut after = Position::START;
        loop {
            let keys = self.audit.document_keys(after)?;
            let Some(last) = keys.last() else { break };
            after = *last;
            for key in keys {
                self.report.documents += 1;
                let folded = expected.remove(&key);
                if self.folded.is_stored(key) {
                    continue;
                }
                let Some(row) = self.audit.document(key)? else {
                    continue;
                };
                if self.damaged.contains(&row.key) || self.is_lost(row.tip) {
                    continue;
                }
                let problem = match folded {
                    None => Some("has no events".to_owned()),
                    Some(folded) => match DocumentRow::of(&folded).difference(&row).as_slice() {
                        [] => None,
                        columns => Some(format!(
                            "differs from the fold of its events in {}",
                            columns.join(", ")
                        )),
                    },
                };
                if let Some(problem) = problem {
                    self.report(ProblemSubject::Document(row.key, row.id), problem);
                }
            }
        }
        for (key, document) in expected {
            if !self.damaged.contains(&key) {
                let problem = "is missing, though events changed it".to_owned();
                self.report(ProblemSubject::Document(key, document.id.clone()), problem);
            }
        }
        Ok(())
    }

    fn blobs(&mut self) -> Result<(), AuditError> {
        let stored = self.audit.blobs()?;
        for digest in &stored {
            let Some(bytes) = self.audit.blob(digest)? else {
                continue;
            };
            self.report.blobs += 1;
            if sha256(&bytes) != *digest {
                let problem = "its bytes hash to something else".to_owned();
                self.report(ProblemSubject::Blob(*digest), problem);
            } else if let Some(position) = self.parts.get(digest).copied()
                && let Ok(parts) = serde_json::from_slice(&bytes)
            {
                self.refer_parts(&parts, position);
            }
        }
        for file in self.audit.strays()? {
            let problem = format!(
                "`{}` is not a blob file: nothing reads it; remove it",
                file.display()
            );
            self.report(ProblemSubject::Files, problem);
        }
        for (digest, position) in std::mem::take(&mut self.references) {
            let is_gone = self.lost_blobs.contains(&digest) || self.erased.contains(&digest);
            if !stored.contains(&digest) && !is_gone {
                let problem = format!("needs blob `{digest}`, which is missing");
                self.report(ProblemSubject::Event(position), problem);
            }
        }
        Ok(())
    }
}

fn digest_of(descriptor: &Value) -> Option<Digest> {
    digest_in(descriptor.get("sha256"))
}

fn digest_in(text: Option<&Value>) -> Option<Digest> {
    Digest::parse(text?.as_str()?).ok()
}

#[cfg(test)]
mod tests {
    use engine::port::suite::Model;

    use super::*;
    use crate::{Options, SqliteStore};

    #[test]
    fn documents_of_a_sound_log_are_let_go_as_they_are_read() {
        let home = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(home.path(), Options::default()).unwrap();
        let mut model = Model::new(&store);
        for round in 0..40 {
            for what in 0..20 {
                model.step(&store, (what, round, round));
            }
        }
        store.close();
        let count = model.documents().len();
        assert!(count > 300, "{count}");
        let audit = Audit::open(home.path()).unwrap();
        let mut check = Check::new(&audit).unwrap();
        let mut most = 0;
        for event in model.events() {
            check.event(event).unwrap();
            most = most.max(check.folded.different().len());
        }
        let left: Vec<_> = check.folded.different().into_values().collect();
        assert_eq!(left, []);
        assert!(most < count / 2, "{most} of {count} were held");
        assert_eq!(check.report.problems, []);
    }
}
