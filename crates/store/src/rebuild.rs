//! Are the documents a fold of the events? Folds them again, alone, into an empty database, and compares.
//!
//! Needs room on the disk for the documents, not in memory. Documents that depend on pruned events are kept as they are
//! stored, as far as the headers do not contradict them. Comparing changes nothing. Writing is for documents that an older
//! program folded otherwise, or that are damaged: it makes a backup and then puts everything that is derived in the place
//! of what was stored, in one transaction. Events are never touched.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use domain::{Documents, Event, FurtherLink, Kind, Position, Scratch};
use engine::port::{StoreFault, StoredEvent};
use rusqlite::{Connection, TransactionBehavior};

use crate::audit::{Audit, AuditError, documents};
use crate::directory::{self, OpenError};
use crate::fault::fault;
use crate::fold::{Problem, ProblemSubject, is_unfoldable, read_event, reseal};
use crate::row::DocumentRow;
use crate::schema::{self, Role};
use crate::{backup, head_file, loss, migrate, notes, projection, read};

/// What was rebuilt and where it differs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rebuilt {
    /// How many events were folded.
    pub events: u64,
    /// How many documents came out.
    pub documents: u64,
    /// How many of the events are headers that pruning left.
    pub pruned: u64,
    /// How many of the documents depend on such events and were kept as they are stored.
    pub kept: u64,
    /// The position behind the last header: from there on nothing is taken as it is. None when nothing was pruned.
    pub whole_from: Option<Position>,
    /// Differences, and an event that cannot be folded; empty when there is none.
    pub problems: Vec<Problem>,
}

/// What is not folded.
#[derive(Default)]
struct NotFolded {
    /// Resources that depend on headers.
    resources: BTreeSet<Position>,
    /// Positions of which a repair left not even an envelope.
    gone: BTreeSet<Position>,
}

/// A database file that is gone with its owner.
struct TemporaryDatabase {
    file: PathBuf,
}

impl Drop for TemporaryDatabase {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.file);
    }
}

impl TemporaryDatabase {
    fn make(directory: &Path) -> Result<(Self, Connection), AuditError> {
        let file = directory.join(format!("rebuild-{}.tmp", std::process::id()));
        // Left by a process that was killed and had our number.
        let _ = fs::remove_file(&file);
        let connection = schema::scratch(&file).map_err(fault)?;
        connection.execute_batch("BEGIN").map_err(fault)?;
        Ok((Self { file }, connection))
    }
}

/// Folds the events of a directory's log again and compares. Tells how far it is: events folded, and the
/// position of the last one.
///
/// # Errors
/// The log cannot be read, or there is no room beside it.
pub fn rebuild(
    directory: &Path,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Rebuilt, AuditError> {
    let audit = Audit::open(directory)?;
    let (_aside, connection) = TemporaryDatabase::make(directory)?;
    let mut rebuilt = Rebuilt::default();
    let mut kept = NotFolded::default();
    if fold(&audit, &connection, &mut rebuilt, &mut kept, progress)? {
        compare(&audit, &connection, &mut rebuilt, &kept)?;
    }
    Ok(rebuilt)
}

/// Folds the events of a directory's log again and writes what comes out: documents and projections. Returns what was
/// different before, and where the directory is kept as it was; none when an event cannot be folded, and nothing was
/// written. Nobody may work in the directory.
///
/// # Errors
/// The directory is in use or has lost something, the log cannot be read, or the disk fails.
pub fn rebuild_and_write(
    directory: &Path,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(Rebuilt, Option<PathBuf>), AuditError> {
    directory::check(directory)?;
    let _lock = directory::claim(directory)?;
    let kept = head_file::read(directory)?;
    if let (_, Some(loss)) = loss::of_files(directory, kept.as_ref())? {
        return Err(OpenError::lost(directory, loss).into());
    }
    migrate::bring_forward(directory, kept.as_ref(), &mut |_| {})?;
    let audit = Audit::open(directory)?;
    let (aside, connection) = TemporaryDatabase::make(directory)?;
    let mut rebuilt = Rebuilt::default();
    let mut unfolded = NotFolded::default();
    if !fold(&audit, &connection, &mut rebuilt, &mut unfolded, progress)? {
        return Ok((rebuilt, None));
    }
    compare(&audit, &connection, &mut rebuilt, &unfolded)?;
    keep_after_gaps(&audit, &connection, &unfolded)?;
    drop(audit);
    connection.execute_batch("COMMIT").map_err(fault)?;
    drop(connection);
    let mut log = schema::connect(directory, Role::Writer { full_sync: true }).map_err(fault)?;
    let checkpoint =
        |log: &Connection| log.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
    checkpoint(&log).map_err(fault)?;
    let backup = backup::make(
        directory,
        "backup-before-rebuild",
        backup::Database::Changes,
    )
    .map_err(AuditError::file(directory))?;
    if !schema::has_recent(&log).map_err(fault)? {
        // What is folded goes into the tables of this program.
        notes::complete(directory, &mut log)?;
    }
    write(&mut log, &aside.file)?;
    checkpoint(&log).map_err(fault)?;
    schema::checkpoint_on_close(&log, true).map_err(fault)?;
    Ok((rebuilt, Some(backup)))
}

/// Puts what was folded in the place of what is stored.
fn write(log: &mut Connection, aside: &Path) -> Result<(), StoreFault> {
    let file = aside.to_string_lossy();
    log.execute("ATTACH ?1 AS folded", [&*file])
        .map_err(fault)?;
    let transaction = log
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .map_err(fault)?;
    let columns = DocumentRow::COLUMNS;
    let text = format!(
        "DELETE FROM main.documents; \
         INSERT INTO main.documents({columns}) SELECT {columns} FROM folded.documents"
    );
    transaction.execute_batch(&text).map_err(fault)?;
    projection::rebuild(&transaction)?;
    transaction.commit().map_err(fault)?;
    log.execute_batch("DETACH folded").map_err(fault)
}

/// Folds events until the end, or until one cannot be folded: then false.
fn fold(
    audit: &Audit,
    aside: &Connection,
    rebuilt: &mut Rebuilt,
    kept: &mut NotFolded,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<bool, AuditError> {
    let mut after = Position::START;
    loop {
        let rows = audit.events(after)?;
        if rows.is_empty() {
            rebuilt.kept = kept.resources.len() as u64;
            return Ok(true);
        }
        for row in rows {
            let (position, folded) = match row {
                Ok(row) => (row.position, fold_one(audit, aside, &row, rebuilt, kept)?),
                Err(damaged) => (damaged.first, Err(damaged.to_string())),
            };
            if let Err(problem) = folded {
                let what = ProblemSubject::Event(position);
                rebuilt.problems.push(Problem { what, problem });
                return Ok(false);
            }
            after = position;
            rebuilt.events += 1;
        }
        progress(rebuilt.events, audit.head().0);
    }
}

fn fold_one(
    audit: &Audit,
    aside: &Connection,
    row: &StoredEvent,
    rebuilt: &mut Rebuilt,
    kept: &mut NotFolded,
) -> Result<Result<(), String>, AuditError> {
    let event = match read_event(audit.name(), row) {
        Ok(event) => event,
        Err(problem) => return Ok(Err(problem)),
    };
    if event.is_header() {
        rebuilt.pruned += 1;
        rebuilt.whole_from = Some(row.position.plus(1));
    }
    if event.is_lost() {
        kept.gone.insert(row.position);
        // What it created stands as it is stored.
        if let Some(created) = audit.document(row.position)? {
            kept.resources.insert(created.key);
            created.put(aside).map_err(fault)?;
        }
        return Ok(Ok(()));
    }
    let previous = event.previous_event_id.as_deref();
    let after_gap = previous
        .and_then(|id| audit.name().position(id))
        .is_some_and(|previous| kept.gone.contains(&previous));
    if is_unfoldable(&event) || after_gap || kept.resources.contains(&row.resource) {
        kept.resources.insert(row.resource);
        return keep(audit, aside, &event, row, after_gap);
    }
    let mut scratch = Scratch::default();
    for id in named(&event) {
        if let Some(document) = read::document(aside, id)? {
            scratch.insert(document);
        }
    }
    match reseal(audit.name(), &mut scratch, &event, row.position) {
        Ok(sealed) if sealed.bytes == *row.bytes => {}
        Ok(_) => return Ok(Err("does not follow the events before it".to_owned())),
        Err(problem) => return Ok(Err(problem)),
    }
    if let Some(document) = scratch.document(&event.resource.id) {
        DocumentRow::of(document).put(aside).map_err(fault)?;
    }
    Ok(Ok(()))
}

/// Takes the stored document of an event that cannot be folded, with what its envelope says.
fn keep(
    audit: &Audit,
    aside: &Connection,
    event: &Event,
    row: &StoredEvent,
    after_gap: bool,
) -> Result<Result<(), String>, AuditError> {
    let before = read::document(aside, &event.resource.id)?;
    let follows = before.as_ref().map_or(1, |before| before.version + 1);
    let tip = before.as_ref().map(|before| audit.name().id(before.tip));
    let linked = event.sequence == follows && event.previous_event_id.as_deref() == tip.as_deref();
    if !linked && !after_gap {
        return Ok(Err("does not follow the events before it".to_owned()));
    }
    let Some(mut stored) = audit.document(row.resource)? else {
        return Ok(Err(
            "is pruned, and the document that it changed is missing".to_owned(),
        ));
    };
    let time = event.created_at.as_micros();
    stored.version = event.sequence;
    stored.tip = row.position;
    stored.updated_at = time;
    if event.sequence == 1 {
        stored.created_at = time;
    }
    if stored.id != event.resource.id || !stored.put(aside).map_err(fault)? {
        return Ok(Err(
            "is indexed under another resource than it names".to_owned()
        ));
    }
    Ok(Ok(()))
}

/// Keeps documents as they are stored whose last event a repair could not read: the fold does not know what it did.
fn keep_after_gaps(audit: &Audit, aside: &Connection, kept: &NotFolded) -> Result<(), AuditError> {
    if kept.gone.is_empty() {
        return Ok(());
    }
    let mut stored = Rows::new(|after| audit.documents(after));
    while let Some(row) = stored.next()? {
        if kept.gone.contains(&row.tip) {
            row.put(aside).map_err(fault)?;
        }
    }
    Ok(())
}

/// The documents that sealing an event may look at.
fn named(event: &Event) -> impl Iterator<Item = &str> {
    let further = event.kind().map_or(FurtherLink::None, Kind::further_link);
    let named = [
        Some(&*event.resource.id),
        event.workspace_id.as_ref().map(|id| id.as_str()),
        event.session_id.as_ref().map(|id| id.as_str()),
        event.task_id.as_ref().map(|id| id.as_str()),
        event.owner(),
    ];
    named.into_iter().flatten().chain(further.ids(event))
}

fn compare(
    audit: &Audit,
    aside: &Connection,
    rebuilt: &mut Rebuilt,
    kept: &NotFolded,
) -> Result<(), AuditError> {
    let mut stored = Rows::new(|after| audit.documents(after));
    let mut folded = Rows::new(|after| Ok(documents(aside, after)?));
    let mut left = stored.next()?;
    let mut right = folded.next()?;
    loop {
        let (row, problem) = match (&left, &right) {
            (None, None) => return Ok(()),
            (Some(row), None) => (row.clone(), Some("has no events".to_owned())),
            (Some(row), Some(fold)) if row.key < fold.key => {
                (row.clone(), Some("has no events".to_owned()))
            }
            // The last event that changed it is lost.
            (Some(row), Some(fold)) if row.key == fold.key && kept.gone.contains(&row.tip) => {
                (fold.clone(), None)
            }
            (Some(row), Some(fold)) if row.key == fold.key => {
                let columns = fold.difference(row);
                let problem = format!("differs from its rebuilt form in {}", columns.join(", "));
                (fold.clone(), (!columns.is_empty()).then_some(problem))
            }
            (_, Some(fold)) => (fold.clone(), Some("is missing".to_owned())),
        };
        let key = row.key;
        if let Some(problem) = problem {
            let what = ProblemSubject::Document(key, row.id);
            rebuilt.problems.push(Problem { what, problem });
        }
        if left.as_ref().is_some_and(|row| row.key == key) {
            left = stored.next()?;
        }
        if right.as_ref().is_some_and(|row| row.key == key) {
            rebuilt.documents += 1;
            right = folded.next()?;
        }
    }
}

/// Documents one by one, read in chunks.
struct Rows<F> {
    read: F,
    chunk: std::vec::IntoIter<DocumentRow>,
    after: Position,
}

impl<F: FnMut(Position) -> Result<Vec<DocumentRow>, AuditError>> Rows<F> {
    fn new(read: F) -> Self {
        Self {
            read,
            chunk: Vec::new().into_iter(),
            after: Position::START,
        }
    }

    fn next(&mut self) -> Result<Option<DocumentRow>, AuditError> {
        if self.chunk.len() == 0 {
            self.chunk = (self.read)(self.after)?.into_iter();
        }
        let row = self.chunk.next();
        if let Some(row) = &row {
            self.after = row.key;
        }
        Ok(row)
    }
}
