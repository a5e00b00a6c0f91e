//! Repair: headers in the place of what cannot be read any more, so that everything else can be checked and used again.
//!
//! An event whose payload cannot be read keeps its envelope, as after pruning. Where not even that can be read, and for every
//! event of a damaged block, a `vendor.event_lost` stands in its place. Each header says what the stored bytes hashed to.
//! Of a damaged block the index still tells which Tasks had events in it: each of them gets at least one of the headers, so
//! that nobody takes its log for whole; which event stood where is not known. Documents stay as they are stored.
//!
//! What is replaced is first copied, durably, into a folder of its own; then everything happens in one transaction. A run
//! that is killed has changed everything or nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use canon::{Digest, sha256};
use domain::{Document, Event, EventName, Links, Position, ResourceKind, Timestamp};
use engine::port::{ReadEvents, Scope, StoreFault, StoredEvent};
use rusqlite::{Connection, OptionalExtension, TransactionBehavior};

use crate::audit::{self, Audit, AuditError};
use crate::block::Block;
use crate::claims::ClaimedEvents;
use crate::directory::{self, OpenError};
use crate::fault::fault;
use crate::fold::read_event;
use crate::head_file::HeadWriter;
use crate::prune::{self, Headers};
use crate::row::{DocumentRow, sql};
use crate::table::Table;
use crate::{blob, derived, head_file, notes, projection, read, recent, schema, shape, write};

/// How many events are read at a time.
const CHUNK: usize = 512;

/// What a repair replaced, or would.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Repair {
    /// The events that cannot be read, by position.
    pub events: Vec<Unreadable>,
    /// The blobs whose bytes are not theirs.
    pub blobs: Vec<Digest>,
    /// What the database found wrong with its own indexes and pages. Indexes are made again from their tables, and
    /// projections from the events.
    pub database: Vec<String>,
    /// Notes of the store's own that were missing. They are written again, as far as the rest of the log tells them.
    pub notes: Vec<String>,
    /// Indexes, triggers, views and notes that were not as this program makes them. They are set right.
    pub flaws: Vec<String>,
    /// The events, by position, whose idempotency keys are gone. That they are lost is noted.
    pub claims: Vec<Position>,
    /// True when the file that says how far the log had come was missing or damaged. It is written again from the log as it
    /// is.
    pub head: bool,
    /// What is still wrong with the database after that: pages that hold what nothing else does.
    pub unmended: Vec<String>,
    /// Where the stored bytes are kept as they were found; none when nothing was changed.
    pub aside: Option<PathBuf>,
}

impl Repair {
    /// True when there is nothing to repair.
    pub fn is_empty(&self) -> bool {
        let is_read = self.events.is_empty() && self.blobs.is_empty() && self.database.is_empty();
        let is_built = self.notes.is_empty() && self.flaws.is_empty();
        is_read && is_built && self.claims.is_empty() && !self.head
    }
}

/// An event that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    /// Where it stands.
    pub position: Position,
    /// What the bytes hash to that are stored there: the event's own, or those of its damaged block.
    pub stored: Digest,
    /// What happened, when the envelope can be read and stays.
    pub kind: Option<Box<str>>,
    /// Why it cannot be read.
    pub problem: String,
}

/// Says what [`repair`] would do; changes nothing.
///
/// # Errors
/// There is no log, it has lost what was acknowledged, or the disk fails.
pub fn repairable(directory: &Path) -> Result<Repair, AuditError> {
    let audit = Audit::open(directory)?;
    let database = damage_of(audit.connection());
    let survey = Survey::of(directory, audit.connection());
    // A damaged database may not let itself be read to the end.
    let found = match survey {
        Ok(survey) => survey.repair,
        Err(_) if !database.is_empty() => Repair::default(),
        Err(error) => return Err(error),
    };
    let had_head = schema::keeps_head(audit.connection()).map_err(fault)?;
    Ok(Repair {
        database,
        notes: notes::missing(audit.connection()).map_err(fault)?,
        flaws: shape::repairable(audit.connection()).map_err(fault)?,
        head: audit.unreadable_head().is_some() || (had_head && !audit.has_head()),
        ..found
    })
}

/// Returns what a database finds wrong with itself.
fn damage_of(connection: &Connection) -> Vec<String> {
    let run = || {
        let mut check = connection.prepare("PRAGMA integrity_check")?;
        let rows = check.query_map([], |row| row.get::<_, String>(0))?;
        rows.collect::<rusqlite::Result<Vec<_>>>()
    };
    let mut problems = run().unwrap_or_else(|error| vec![error.to_string()]);
    problems.retain(|problem| problem != "ok");
    problems
}

/// Makes indexes again from their tables, and projections from the events, in the transaction under way; returns what is
/// wrong nevertheless.
fn mend_indexes(connection: &Connection, found: &[String]) -> Vec<String> {
    match projection::rebuild_with_indexes(connection) {
        Ok(()) => {
            let left = damage_of(connection);
            match derived::explains(connection, &left) {
                Ok(true) => Vec::new(),
                _ => left,
            }
        }
        Err(error) => {
            let mut left = found.to_vec();
            left.push(error.to_string());
            left
        }
    }
}

/// Replaces what cannot be read. Nobody else may work in the directory meanwhile.
///
/// # Errors
/// The directory is in use or holds no log, or the disk fails. Then nothing was changed.
pub fn repair(directory: &Path) -> Result<Repair, AuditError> {
    directory::check(directory)?;
    let _lock = directory::claim(directory)?;
    let (kept, is_unreadable) = match head_file::read(directory) {
        Err(OpenError::UnreadableHead { .. }) => (None, true),
        read => (read?, false),
    };
    let (connection, (notes, flaws)) = prune::opened(directory, kept.as_ref(), notes::repair)?;
    let had_head = schema::keeps_head(&connection).map_err(fault)?;
    let head = is_unreadable || (had_head && kept.is_none());
    let database = damage_of(&connection);
    // Whatever is done is done once it is known that all of it can be; until then it is rolled back.
    let transaction =
        rusqlite::Transaction::new_unchecked(&connection, TransactionBehavior::Immediate)
            .map_err(fault)?;
    let unmended = match database.is_empty() {
        true => Vec::new(),
        false => mend_indexes(&connection, &database),
    };
    if !unmended.is_empty() {
        // What the rest would be judged by cannot be trusted.
        transaction.finish().map_err(fault)?;
        prune::closed(&connection)?;
        return Ok(Repair {
            database,
            unmended,
            notes,
            flaws,
            ..Repair::default()
        });
    }
    let mut survey = Survey::of(directory, &connection)?;
    survey.repair.database = database;
    survey.repair.notes = notes;
    survey.repair.flaws = flaws;
    survey.repair.head = head;
    if let Some(last) = survey.repair.claims.last() {
        notes::put(&connection, notes::CLAIMS_LOST_TO, sql(last.0)).map_err(fault)?;
    }
    if !survey.repair.events.is_empty() || !survey.repair.blobs.is_empty() {
        survey.replace(&connection)?;
    }
    transaction.commit().map_err(fault)?;
    for digest in &survey.repair.blobs {
        blob::remove_file(directory, digest)?;
    }
    derived::compact(&connection).map_err(fault)?;
    prune::closed(&connection)?;
    if head {
        let kept = write::head_record(&connection)?;
        HeadWriter::open(directory, kept).map_err(AuditError::file(&head_file::path(directory)))?;
    }
    Ok(survey.repair)
}

/// A block that cannot be read, and what takes its place.
struct LostBlock {
    number: u64,
    stored: Vec<u8>,
    events: Vec<StoredEvent>,
    tasks: BTreeSet<Position>,
}

/// What is found, and what is to be done about it.
struct Survey<'a> {
    directory: &'a Path,
    blocks: &'a Connection,
    name: EventName,
    /// Per resource, by its key: sequence and position of its last event so far.
    tips: BTreeMap<Position, (u64, Position)>,
    /// Positions whose envelope is gone.
    gone: BTreeSet<Position>,
    /// The time of the last event that could be read.
    time: Timestamp,
    lost: Vec<LostBlock>,
    /// Headers for events of blocks that can be read, with the bytes they replace.
    headers: BTreeMap<Position, (Vec<u8>, Vec<u8>)>,
    /// The blocks of these.
    touched: BTreeSet<u64>,
    packs: BTreeMap<u64, Vec<u8>>,
    claimed: ClaimedEvents,
    repair: Repair,
}

impl<'a> Survey<'a> {
    fn of(directory: &'a Path, blocks: &'a Connection) -> Result<Self, AuditError> {
        let meta = schema::meta(directory, blocks)?;
        let mut survey = Self {
            directory,
            blocks,
            name: EventName::new(&meta.name),
            tips: BTreeMap::new(),
            gone: BTreeSet::new(),
            time: Timestamp::from_micros(0),
            lost: Vec::new(),
            headers: BTreeMap::new(),
            touched: BTreeSet::new(),
            packs: BTreeMap::new(),
            claimed: ClaimedEvents::default(),
            repair: Repair::default(),
        };
        let kept = head_file::read(directory).ok().flatten();
        let found = audit::head(blocks)?;
        let end = kept.map_or(found, |kept| found.max(kept.position));
        survey.events(end)?;
        survey.blobs()?;
        let claimed = std::mem::take(&mut survey.claimed);
        survey.repair.claims = claimed.missing(blocks)?;
        Ok(survey)
    }

    /// Keeps aside what is to be replaced, and replaces it, in the transaction under way.
    fn replace(&mut self, connection: &Connection) -> Result<(), AuditError> {
        let aside = self.keep_aside()?;
        let run = || -> Result<(), StoreFault> {
            schema::prepare_repair(connection).map_err(fault)?;
            self.apply(connection)?;
            // A field is what its log says, also where that says less than before, and headers count as what they are.
            connection
                .execute_batch(projection::NO_SEGMENTS)
                .and_then(|()| projection::forget(connection, projection::USAGE))
                .map_err(fault)
        };
        if let Err(error) = run() {
            // What was copied stays where it was; that the copy does too is no second error.
            let _ = fs::remove_dir_all(&aside);
            return Err(error.into());
        }
        self.repair.aside = Some(aside);
        Ok(())
    }

    fn events(&mut self, end: Position) -> Result<(), AuditError> {
        let blocks = self.blocks;
        // How far a block reaches that cannot be read is known when the next one begins.
        let mut open: Option<(u64, Vec<u8>, String)> = None;
        Table::Events.each(blocks, 0, |first, bytes| -> Result<bool, AuditError> {
            if let Some(block) = open.take() {
                self.lose(block, first.0.saturating_sub(1))?;
            }
            match Block::decode(first, bytes) {
                Ok(block) => {
                    for row in &block.events {
                        self.event(first.0, row)?;
                    }
                }
                Err(problem) => open = Some((first.0, bytes.to_vec(), problem)),
            }
            Ok(true)
        })?;
        match open {
            Some(block) => self.lose(block, end.0),
            None => Ok(()),
        }
    }

    fn event(&mut self, block: u64, row: &StoredEvent) -> Result<(), AuditError> {
        let problem = match read_event(&self.name, row) {
            Ok(event) => {
                self.claimed.add(row.position, &event);
                if event.is_lost() {
                    self.gone.insert(row.position);
                }
                self.pass(row, &event);
                return Ok(());
            }
            Err(problem) => problem,
        };
        let stored = sha256(&row.bytes);
        let header = match self.envelope(row)? {
            Some(envelope) => {
                self.claimed.add(row.position, &envelope);
                self.pass(row, &envelope);
                envelope.header(&row.bytes)
            }
            None => {
                self.gone.insert(row.position);
                self.lost_at(row.position, stored, &row.links)?
            }
        };
        self.repair.events.push(Unreadable {
            position: row.position,
            stored,
            kind: (!header.is_lost()).then(|| header.kind.clone()),
            problem,
        });
        self.touched.insert(block);
        self.headers
            .insert(row.position, (header.to_bytes(), row.bytes.to_vec()));
        Ok(())
    }

    fn pass(&mut self, row: &StoredEvent, event: &Event) {
        self.tips
            .insert(row.resource, (event.sequence, row.position));
        self.time = event.created_at;
    }

    /// Returns the envelope of an event, when it can be read and is one that stands at this place.
    fn envelope(&self, row: &StoredEvent) -> Result<Option<Event>, AuditError> {
        let Ok(event) = Event::envelope(&row.bytes) else {
            return Ok(None);
        };
        let expected = match self.tips.get(&row.resource) {
            Some((sequence, tip)) => (sequence + 1, Some(self.name.id(*tip))),
            None => (1, None),
        };
        let previous = event.previous_event_id.as_deref();
        let after_gap = previous
            .and_then(|id| self.name.position(id))
            .is_some_and(|previous| self.gone.contains(&previous));
        let follows =
            after_gap || (event.sequence, previous) == (expected.0, expected.1.as_deref());
        let header = StoredEvent {
            bytes: event.header(&row.bytes).to_bytes().into(),
            ..row.clone()
        };
        let resource = self.document(row.resource)?;
        let fits = follows
            && event.kind().is_ok()
            && read_event(&self.name, &header).is_ok()
            && resource.is_some_and(|resource| resource.id == event.resource.id)
            && self.ids(&row.links)?
                == [
                    event.workspace_id.as_ref().map(|id| id.as_str().into()),
                    event.session_id.as_ref().map(|id| id.as_str().into()),
                    event.task_id.as_ref().map(|id| id.as_str().into()),
                ];
        Ok(fits.then_some(event))
    }

    /// Returns the ids of what links lead to.
    fn ids(&self, links: &Links) -> Result<[Option<Box<str>>; 3], AuditError> {
        let id = |key: Option<Position>| -> Result<Option<Box<str>>, AuditError> {
            let Some(key) = key else { return Ok(None) };
            Ok(self.document(key)?.map(|document| document.id))
        };
        Ok([id(links.workspace)?, id(links.session)?, id(links.task)?])
    }

    fn document(&self, key: Position) -> Result<Option<DocumentRow>, AuditError> {
        let columns = DocumentRow::COLUMNS;
        let text = format!("SELECT {columns} FROM documents WHERE key = ?1");
        let row = self
            .blocks
            .prepare_cached(&text)
            .and_then(|mut select| select.query_row([sql(key.0)], DocumentRow::read).optional());
        Ok(row.map_err(fault)?)
    }

    /// Returns what stands for an event of which not even the envelope can be read.
    fn lost_at(
        &self,
        position: Position,
        stored: Digest,
        links: &Links,
    ) -> Result<Event, AuditError> {
        let created = self.document(position)?;
        let time = created.map_or(self.time, |row| Timestamp::from_micros(row.created_at));
        let [workspace, session, task] = self.ids(links)?;
        let mut event = Event::lost(&self.name.id(position), time, stored);
        event.workspace_id = workspace.and_then(|id| domain::WorkspaceId::parse(&id).ok());
        event.session_id = session.and_then(|id| domain::SessionId::parse(&id).ok());
        event.task_id = task.and_then(|id| domain::TaskId::parse(&id).ok());
        Ok(event)
    }

    /// Puts headers in the place of a block that cannot be read, up to a position: that before the block that follows, or the
    /// end of the log. How many events it had nothing else says.
    fn lose(
        &mut self,
        (number, stored, problem): (u64, Vec<u8>, String),
        last: u64,
    ) -> Result<(), AuditError> {
        let digest = sha256(&stored);
        let targets = self.owners(number)?;
        let last = last.max(number);
        let mut events = Vec::new();
        for (position, at) in (number..=last).map(Position).zip(0..) {
            let owner = targets.get(at % targets.len().max(1));
            let links = owner.map_or_else(Links::default, |owner: &Document| owner.links.clone());
            let event = self.lost_at(position, digest, &links)?;
            self.gone.insert(position);
            self.repair.events.push(Unreadable {
                position,
                stored: digest,
                kind: None,
                problem: problem.clone(),
            });
            events.push(StoredEvent {
                position,
                links,
                resource: position,
                bytes: event.to_bytes().into(),
            });
        }
        let tasks = targets.iter().filter_map(|owner| owner.links.task);
        self.lost.push(LostBlock {
            number,
            stored,
            events,
            tasks: tasks.collect(),
        });
        Ok(())
    }

    /// Returns the narrowest resources that had events in a block: Tasks, else Sessions, else Workspaces.
    fn owners(&self, number: u64) -> Result<Vec<Document>, AuditError> {
        let mut linked = Vec::new();
        for key in recent::links_of_block(self.blocks, number).map_err(fault)? {
            let row = self.document(key)?;
            linked.extend(row.and_then(|row| row.document().ok()));
        }
        for kind in [
            ResourceKind::Task,
            ResourceKind::Session,
            ResourceKind::Workspace,
        ] {
            if linked.iter().any(|known| known.state.kind() == kind) {
                linked.retain(|known| known.state.kind() == kind);
                return Ok(linked);
            }
        }
        Ok(Vec::new())
    }

    fn blobs(&mut self) -> Result<(), AuditError> {
        let blocks = self.blocks;
        Table::Packs.each(blocks, 0, |number, bytes| -> Result<bool, AuditError> {
            if Block::decode(number, bytes).is_err() {
                self.packs.insert(number.0, bytes.to_vec());
            }
            Ok(true)
        })?;
        for digest in audit::blobs(self.directory, blocks)? {
            let bytes = blob::find_unchecked(self.directory, blocks, &digest)?;
            if bytes.is_some_and(|bytes| sha256(&bytes) != digest) {
                self.repair.blobs.push(digest);
            }
        }
        Ok(())
    }

    /// Copies what will be replaced, durably, into a folder of its own; returns its place.
    fn keep_aside(&self) -> Result<PathBuf, AuditError> {
        let mut free = (1..).map(|number: u32| self.directory.join(format!("unreadable-{number}")));
        let folder = free
            .find(|folder| !folder.exists())
            .unwrap_or_else(|| self.directory.join("unreadable"));
        let keep = || {
            directory::make_directory(&folder)?;
            let write = |name: String, bytes: &[u8]| {
                let mut file = directory::create(&folder.join(name))?;
                file.write_all(bytes)?;
                file.sync_all()
            };
            for block in &self.lost {
                write(format!("block-{}", block.number), &block.stored)?;
            }
            for (number, stored) in &self.packs {
                write(format!("pack-{number}"), stored)?;
            }
            for (position, (_, stored)) in &self.headers {
                write(format!("event-{}", position.0), stored)?;
            }
            for digest in &self.repair.blobs {
                let found = blob::find_unchecked(self.directory, self.blocks, digest);
                if let Ok(Some(stored)) = found {
                    write(format!("blob-{}", digest.hex()), &stored)?;
                }
            }
            directory::sync_directory(&folder)
        };
        if let Err(error) = keep() {
            // Half a copy is of no use; that it stays is no second error.
            let _ = fs::remove_dir_all(&folder);
            return Err(AuditError::file(&folder)(error));
        }
        Ok(folder)
    }

    /// Does what was found necessary, in the transaction under way.
    fn apply(&self, connection: &Connection) -> Result<(), StoreFault> {
        let execute = |text: &str, values: &[&dyn rusqlite::ToSql]| -> Result<(), StoreFault> {
            let mut statement = connection.prepare_cached(text).map_err(fault)?;
            statement.execute(values).map(drop).map_err(fault)
        };
        for block in &self.lost {
            let number = sql(block.number);
            let content = Block {
                events: block.events.clone(),
                blobs: Vec::new(),
            };
            Table::Events
                .put(connection, block.number, &content)
                .map_err(fault)?;
            execute("DELETE FROM event_links WHERE first = ?1", &[&number])?;
            let gathered = "DELETE FROM recent_links WHERE number = ?1 AND kind = 0";
            execute(gathered, &[&number])?;
            for link in content.links() {
                let insert = "INSERT INTO event_links(link, first) VALUES (?1, ?2)";
                execute(insert, &[&sql(link.0), &number])?;
            }
        }
        for number in self.packs.keys() {
            Table::Packs.remove(connection, *number).map_err(fault)?;
        }
        for digest in &self.repair.blobs {
            execute("DELETE FROM blobs WHERE digest = ?1", &[digest.as_bytes()])?;
            let insert = "INSERT OR IGNORE INTO lost_blobs(digest) VALUES (?1)";
            execute(insert, &[digest.as_bytes()])?;
        }
        for number in &self.touched {
            Table::Events.change(connection, *number, |block| {
                for event in &mut block.events {
                    if let Some((header, _)) = self.headers.get(&event.position) {
                        event.bytes = header.as_slice().into();
                    }
                }
                Ok(())
            })?;
        }
        let lost = self.lost.iter().flat_map(|block| &block.events);
        let lost = lost.map(|event| (event.position, &*event.bytes));
        let headers = self.headers.iter().map(|(at, (bytes, _))| (*at, &**bytes));
        for (position, bytes) in lost.chain(headers) {
            let insert = "INSERT OR REPLACE INTO repaired(position, header) VALUES (?1, ?2)";
            execute(insert, &[&sql(position.0), sha256(bytes).as_bytes()])?;
        }
        self.count_headers_again(connection)
    }

    /// Notes once more which headers pruning left, of Tasks that lost some.
    fn count_headers_again(&self, connection: &Connection) -> Result<(), StoreFault> {
        let repaired = schema::repaired(connection).map_err(fault)?;
        let pruned = schema::pruned(connection).map_err(fault)?;
        let tasks: BTreeSet<Position> = self
            .lost
            .iter()
            .flat_map(|block| block.tasks.iter().copied())
            .filter(|task| pruned.contains_key(task))
            .collect();
        for task in tasks {
            let mut headers = Headers::default();
            let mut after = Position::START;
            loop {
                let query = ReadEvents {
                    scope: Scope::Task(task),
                    after,
                    limit: CHUNK,
                };
                let page = read::events(connection, query)?;
                let Some(last) = page.last() else { break };
                after = last.position;
                for row in &page {
                    let is_header = Event::parse(&row.bytes).is_ok_and(|event| event.is_header());
                    if is_header && !repaired.contains_key(&row.position) {
                        headers.add(&row.bytes);
                    }
                }
            }
            note_headers(connection, task, &headers).map_err(fault)?;
        }
        Ok(())
    }
}

fn note_headers(
    connection: &Connection,
    task: Position,
    headers: &Headers,
) -> rusqlite::Result<()> {
    if headers.count == 0 {
        let delete = "DELETE FROM pruned WHERE task = ?1";
        return connection.execute(delete, [sql(task.0)]).map(drop);
    }
    let update = "UPDATE pruned SET events = ?2, headers = ?3 WHERE task = ?1";
    let digest = headers.digest();
    connection
        .execute(update, (sql(task.0), sql(headers.count), digest.as_bytes()))
        .map(drop)
}
