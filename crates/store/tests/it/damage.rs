//! A log that is not as it should be: each damage is named, once, where it is.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use domain::{Document, Position, ResourceKind, State};
use engine::port::suite::{Model, wait};
use engine::port::{BlobStore, ListQuery, Scope, Store, StoredEvent};
use store::tamper::Tamper;
use store::{Audit, Problem, ProblemSubject, SqliteStore, rebuild};

use crate::home::{filled, filled_by, open, open_gathering, tamper, verify};

/// Verifies and returns the only problem.
fn only_problem(directory: &Path) -> (ProblemSubject, String) {
    let mut problems = verify(directory).problems;
    assert_eq!(problems.len(), 1, "{problems:#?}");
    let problem = problems.remove(0);
    (problem.what, problem.problem)
}

fn event(directory: &Path, position: u64) -> StoredEvent {
    let audit = Audit::open(directory).unwrap();
    let mut events = audit.events(Position(position - 1)).unwrap();
    events.remove(0).unwrap()
}

/// Gives an event other bytes, with a checksum that fits, as a bug of ours would.
fn rewrite(directory: &Path, position: u64, from: &str, to: &str) {
    let text = String::from_utf8(event(directory, position).bytes.to_vec()).unwrap();
    assert!(text.contains(from), "{text}");
    let bytes = text.replacen(from, to, 1).into_bytes();
    Tamper::open(directory).event(Position(position), |event| event.bytes = bytes.into());
}

/// The position of the first event of a kind.
fn first(directory: &Path, kind: &str) -> u64 {
    let audit = Audit::open(directory).unwrap();
    let kind = format!("\"event\":\"{kind}\"");
    let rows = audit.events(Position::START).unwrap();
    let found = rows
        .iter()
        .flatten()
        .find(|row| String::from_utf8_lossy(&row.bytes).contains(&kind));
    found.unwrap().position.0
}

/// The first and the last position that a problem says cannot be read.
fn range(problem: &Problem) -> (u64, u64) {
    let said = problem.problem.strip_prefix("events ").unwrap();
    let (range, _) = said.split_once(" cannot be read").unwrap();
    let (first, last) = range.split_once(" to ").unwrap();
    (first.parse().unwrap(), last.parse().unwrap())
}

/// The events of a block share its fate, and so do the blobs in it, and nothing else does: that they cannot be read is said
/// once, with the range, and whatever else follows from it is not reported.
#[test]
fn any_flipped_byte_of_any_block_is_named() {
    let home = tempfile::tempdir().unwrap();
    let model = filled(home.path());
    let head = model.events().last().unwrap().position.0;
    let damage = Tamper::open(home.path());
    let mut with_blobs = 0;
    for event in model.events().iter().step_by(5) {
        let block = damage.events(event.position);
        let (first, last) = (block[0].position.0, block[block.len() - 1].position.0);
        let flip = |further: usize| {
            damage.raw(event.position, |bytes| {
                // Behind the first five: what a reader may ignore is among them.
                let at = 5 + (event.position.0 as usize * 37 + further) % (bytes.len() - 5);
                bytes[at] ^= 1;
            });
        };
        // Compression leaves some bits unused. One of those changes nothing that was written, and the next byte is taken.
        let mut further = 0;
        let problems = loop {
            flip(further);
            let problems = verify(home.path()).problems;
            if !problems.is_empty() {
                break problems;
            }
            assert_eq!(damage.events(event.position), block);
            flip(further);
            further += 1;
            assert!(further < 3, "flipped bytes are not seen");
        };
        let (blobs, lost): (Vec<Problem>, Vec<Problem>) = problems
            .into_iter()
            .partition(|problem| matches!(problem.what, ProblemSubject::Blob(_)));
        with_blobs += blobs.len();
        let ranges: Vec<(u64, u64)> = lost.iter().map(range).collect();
        for (problem, range) in lost.iter().zip(&ranges) {
            assert_eq!(
                problem.what,
                ProblemSubject::Event(Position(range.0)),
                "{problem}"
            );
        }
        assert_eq!(ranges[0].0, first);
        assert!(ranges[0].1 >= last, "{ranges:?}");
        let named: Vec<u64> = ranges.iter().flat_map(|(from, to)| *from..=*to).collect();
        // How far the last block reaches only the block itself could tell.
        if !named.contains(&head) {
            let store = SqliteStore::open_reader(home.path()).unwrap();
            let unreadable = |event: &&StoredEvent| {
                let read = wait(store.events_at(vec![event.position]));
                read.is_err_and(|error| error.to_string().contains("log verify"))
            };
            let unreadable = model.events().iter().filter(unreadable);
            let unreadable: Vec<u64> = unreadable.map(|event| event.position.0).collect();
            assert_eq!(named, unreadable);
            assert_eq!(named, (first..=last).collect::<Vec<_>>());
        }
        let rebuilt = rebuild(home.path(), &mut |_, _| {}).unwrap();
        assert_eq!(
            rebuilt.problems[0].what,
            ProblemSubject::Event(Position(first))
        );
        assert_eq!(rebuilt.problems.len(), 1);
        let out = home.path().join("bundle");
        let exported = store::export(
            home.path(),
            &out,
            store::Evidence::default(),
            &mut |_, _| {},
        );
        let error = exported.unwrap_err().to_string();
        assert!(error.starts_with(&format!("events {first} to ")), "{error}");
        flip(further);
    }
    assert!(with_blobs > 0, "no block with blobs");
    assert_eq!(verify(home.path()).problems, vec![]);
}

#[test]
fn a_changed_document_of_any_kind_is_named() {
    let home = tempfile::tempdir().unwrap();
    let model = filled(home.path());
    let mut kinds = BTreeSet::new();
    for document in model.documents() {
        if !kinds.insert(document.state.kind()) {
            continue;
        }
        let (key, id) = (document.key, document.id);
        let what = ProblemSubject::Document(key, id.clone());
        let set = |sql: &str| {
            tamper(
                home.path(),
                &format!("UPDATE documents SET {sql} WHERE key = {}", key.0),
            );
        };
        let swap = |from: &str, to: &str| {
            let change = |text: &mut String| *text = text.replace(from, to);
            Tamper::open(home.path()).document(&id, change);
        };
        swap("object", "objecu");
        let (named, problem) = only_problem(home.path());
        assert_eq!(named, what);
        assert!(problem.ends_with("in body"), "{problem}");
        let rebuilt = rebuild(home.path(), &mut |_, _| {}).unwrap().problems;
        assert_eq!(rebuilt.len(), 1);
        assert_eq!(rebuilt[0].what, what);
        // The store itself refuses to show it.
        let store = open(home.path());
        let error = wait(store.documents(vec![id.clone()])).unwrap_err();
        assert!(error.to_string().contains(&*id), "{error}");
        drop(store);
        swap("objecu", "object");

        for column in ["version", "tip", "kind", "created_at", "updated_at"] {
            set(&format!("{column} = {column} + 1"));
            let (named, problem) = only_problem(home.path());
            assert_eq!(named, what);
            assert!(problem.ends_with(&format!("in {column}")), "{problem}");
            set(&format!("{column} = {column} - 1"));
        }
        set("open = 1 - open");
        assert_eq!(only_problem(home.path()).0, what);
        set("open = 1 - open");
    }
    assert_eq!(verify(home.path()).problems, vec![]);
}

/// Whoever looks a document up by such a column misses it, though reading it would make something of it.
#[test]
fn a_column_that_holds_what_is_never_written_is_named_and_folded_again() {
    let home = tempfile::tempdir().unwrap();
    let model = filled(home.path());
    let documents = model.documents();
    let open = documents.iter().find(|document| {
        document.state.is_open() && document.links.session.is_some() && document.key.0 > 1
    });
    let (key, id) = open.map(|open| (open.key, open.id.clone())).unwrap();
    let changes = [
        ("open = 2", "open"),
        ("open = -1", "open"),
        ("kind = 300", "kind"),
        ("version = -1", "version"),
        ("session = -1", "links"),
        ("session = NULL", "links"),
        ("further = x'00'", "links"),
    ];
    for (change, column) in changes {
        tamper(
            home.path(),
            &format!("UPDATE documents SET {change} WHERE key = {}", key.0),
        );
        let problems = verify(home.path()).problems;
        assert_eq!(problems.len(), 1, "{change}: {problems:#?}");
        let (what, problem) = only_problem(home.path());
        assert_eq!(what, ProblemSubject::Document(key, id.clone()), "{change}");
        assert!(
            problem.ends_with(&format!("in {column}")),
            "{change}: {problem}"
        );
        let (rebuilt, backup) = store::rebuild_and_write(home.path(), &mut |_, _| {}).unwrap();
        assert_eq!(rebuilt.problems.len(), 1, "{change}");
        fs::remove_dir_all(backup.unwrap()).unwrap();
        assert_eq!(verify(home.path()).problems, vec![], "{change}");
    }
    tamper(
        home.path(),
        "INSERT INTO documents SELECT -7, CAST('task_invented' AS BLOB), kind, version, tip, workspace, session, task, open, \
         created_at, updated_at, body, further FROM documents LIMIT 1",
    );
    let (_, problem) = only_problem(home.path());
    assert!(problem.contains("no event has"), "{problem}");
}

/// A file that is no blob is named, and everything else is checked nevertheless; a blob in another's place is missed.
#[test]
fn stray_files_among_the_blobs_are_named() {
    let home = tempfile::tempdir().unwrap();
    filled(home.path());
    let blobs = home.path().join("blobs");
    let stray = blobs.join("zzz");
    fs::write(&stray, "x").unwrap();
    let (what, problem) = only_problem(home.path());
    assert_eq!(what, ProblemSubject::Files);
    assert!(problem.contains("zzz"), "{problem}");
    assert!(
        rebuild(home.path(), &mut |_, _| {})
            .unwrap()
            .problems
            .is_empty()
    );
    fs::remove_file(stray).unwrap();
    let shelf = fs::read_dir(&blobs)
        .unwrap()
        .map(|shelf| shelf.unwrap().path())
        .find(|shelf| shelf.file_name().unwrap().len() == 2)
        .unwrap();
    // What a killed process leaves is not named.
    fs::write(shelf.join("half.tmp"), "x").unwrap();
    assert_eq!(verify(home.path()).problems, vec![]);
    let other = blobs.join("zz");
    fs::rename(&shelf, &other).unwrap();
    let problems = verify(home.path()).problems;
    let named = |text: &str| problems.iter().any(|found| found.problem.contains(text));
    assert!(named("blobs/zz/"), "{problems:#?}");
    assert!(named("which is missing"), "{problems:#?}");
}

/// What changes of a document, by its key.
type Rows = BTreeMap<i64, (i64, i64, i64, i64, Vec<u8>)>;

fn rows(directory: &Path) -> Rows {
    let connection = rusqlite::Connection::open(directory.join("reprise.db")).unwrap();
    let text = "SELECT key, version, tip, open, updated_at, body FROM documents";
    let mut select = connection.prepare(text).unwrap();
    let rows = select.query_map([], |row| {
        let rest = (
            row.get(1)?,
            row.get(2)?,
            row.get(3)?,
            row.get(4)?,
            row.get(5)?,
        );
        Ok((row.get(0)?, rest))
    });
    rows.unwrap().map(Result::unwrap).collect()
}

/// It was right once, so that nothing but the events after it tells.
#[test]
fn a_document_that_lost_its_last_changes_is_named() {
    let home = tempfile::tempdir().unwrap();
    let store = open(home.path());
    let mut model = Model::new(&store);
    (0..20).for_each(|what| model.step(&store, (what, 0, 1)));
    let earlier = rows(home.path());
    (0..20).for_each(|what| model.step(&store, (what, 0, 150)));
    store.close();
    let later = rows(home.path());
    let put = |key: i64, row: &(i64, i64, i64, i64, Vec<u8>)| {
        let connection = rusqlite::Connection::open(home.path().join("reprise.db")).unwrap();
        let update = "UPDATE documents SET version = ?2, tip = ?3, open = ?4, updated_at = ?5, body = ?6 WHERE key = ?1";
        let values = (key, row.0, row.1, row.2, row.3, &row.4);
        assert_eq!(connection.execute(update, values).unwrap(), 1);
    };
    let mut changed = 0;
    for (key, row) in earlier.iter().filter(|(key, row)| later[key] != **row) {
        put(*key, row);
        let (what, problem) = only_problem(home.path());
        let ProblemSubject::Document(named, _) = what else {
            panic!("{what:?}");
        };
        assert_eq!(named.0, key.cast_unsigned());
        let says = "differs from the fold of its events in version, tip";
        assert!(problem.starts_with(says), "{problem}");
        put(*key, &later[key]);
        changed += 1;
    }
    assert!(changed > 1, "{changed}");
    assert_eq!(verify(home.path()).problems, vec![]);
}

#[test]
fn lost_and_invented_documents_are_named() {
    let home = tempfile::tempdir().unwrap();
    let model = filled(home.path());
    let lost = model.documents()[4].clone();
    tamper(
        home.path(),
        &format!("DELETE FROM documents WHERE key = {}", lost.key.0),
    );
    let (what, problem) = only_problem(home.path());
    assert_eq!(what, ProblemSubject::Document(lost.key, lost.id));
    assert!(problem.contains("missing"), "{problem}");
    assert_eq!(
        rebuild(home.path(), &mut |_, _| {}).unwrap().problems.len(),
        1
    );
    tamper(
        home.path(),
        "INSERT INTO documents SELECT 100000, CAST('task_invented' AS BLOB), kind, version, tip, workspace, session, task, open, \
         created_at, updated_at, body, further FROM documents LIMIT 1",
    );
    let problems = verify(home.path()).problems;
    assert_eq!(problems.len(), 2);
    assert_eq!(
        problems[0].what,
        ProblemSubject::Document(Position(100_000), "task_invented".into())
    );
    assert_eq!(problems[0].problem, "has no events");
    assert_eq!(
        rebuild(home.path(), &mut |_, _| {}).unwrap().problems.len(),
        2
    );
}

#[test]
fn a_lost_event_is_a_hole_in_its_resource() {
    let home = tempfile::tempdir().unwrap();
    // Too little for blocks to be merged: one append is one block.
    let store = open(home.path());
    let mut model = Model::new(&store);
    let order = model.workspace();
    model.run(&store, order).unwrap();
    let order = model.session();
    model.run(&store, order).unwrap();
    for _ in 0..3 {
        let order = model.append(20);
        model.run(&store, order).unwrap();
    }
    store.close();
    let position = first(home.path(), "session.message_appended");
    let gone = Tamper::open(home.path()).lose(Position(position));
    let problems = verify(home.path()).problems;
    let what = problems[0].what.clone();
    assert!(
        matches!(what, ProblemSubject::Event(found) if found.0 > position),
        "{what:?}"
    );
    assert_eq!(problems[0].problem, "has sequence 3, expected 2");
    // The Message that was appended with it.
    assert_eq!(problems.len(), 2, "{problems:#?}");
    assert!(matches!(problems[1].what, ProblemSubject::Document(key, _) if gone.contains(&key)));
    assert_eq!(problems[1].problem, "has no events");
    let rebuilt = rebuild(home.path(), &mut |_, _| {}).unwrap().problems;
    assert_eq!(rebuilt.len(), 1);
    assert_eq!(rebuilt[0].what, what);
}

#[test]
fn events_that_were_rewritten_are_named() {
    let home = tempfile::tempdir().unwrap();
    filled(home.path());
    let appended = first(home.path(), "session.message_appended");
    let created = first(home.path(), "session.created");
    let cases = [
        (
            created,
            "\"sequence\":1",
            "\"sequence\": 1",
            "not canonical",
        ),
        (
            created,
            "\"sequence\":1",
            "\"sequence\":9007199254740993",
            "integer outside",
        ),
        (
            created,
            "\"span_id\":null",
            "\"span_id\":\"a\"",
            "members that this log does not write",
        ),
        (
            appended,
            "\"sequence\":2",
            "\"sequence\":7",
            "sequence 7, expected 2",
        ),
        (
            appended,
            "session.message_appended",
            "session.vanished",
            "unknown event kind",
        ),
    ];
    for (position, from, to, expected) in cases {
        rewrite(home.path(), position, from, to);
        let problems = verify(home.path()).problems;
        let named: Vec<String> = problems.iter().map(ToString::to_string).collect();
        assert!(
            problems.iter().any(|problem| problem.what
                == ProblemSubject::Event(Position(position))
                && problem.problem.contains(expected)),
            "{expected}: {named:#?}"
        );
        rewrite(home.path(), position, to, from);
    }
    let previous = format!("{:016}\",\"receipt", created);
    let other = format!("{:016}\",\"receipt", created - 1);
    rewrite(home.path(), appended, &previous, &other);
    let (what, problem) = only_problem(home.path());
    assert_eq!(what, ProblemSubject::Event(Position(appended)));
    assert!(problem.contains("was last changed by"), "{problem}");
    rewrite(home.path(), appended, &other, &previous);

    let id = format!("{appended:016}\",\"idem");
    let moved = format!("{:016}\",\"idem", appended + 500);
    rewrite(home.path(), appended, &id, &moved);
    let (what, problem) = only_problem(home.path());
    assert_eq!(what, ProblemSubject::Event(Position(appended)));
    assert!(problem.contains("its id is"), "{problem}");
    rewrite(home.path(), appended, &moved, &id);
    assert_eq!(verify(home.path()).problems, vec![]);
}

#[test]
fn columns_that_belong_to_other_ids_are_named() {
    let home = tempfile::tempdir().unwrap();
    filled(home.path());
    let position = Position(first(home.path(), "task.submitted"));
    let damage = Tamper::open(home.path());
    let was = event(home.path(), position.0);
    let changes: [fn(&mut StoredEvent); 4] = [
        |event| event.resource.0 += 1,
        |event| event.links.workspace = None,
        |event| event.links.session.as_mut().unwrap().0 += 1,
        |event| event.links.task.as_mut().unwrap().0 += 1,
    ];
    for change in changes {
        damage.event(position, change);
        let (what, problem) = only_problem(home.path());
        assert_eq!(what, ProblemSubject::Event(position));
        assert!(problem.contains("indexed under other"), "{problem}");
        damage.event(position, |event| *event = was.clone());
    }
    assert_eq!(verify(home.path()).problems, vec![]);
}

#[test]
fn damaged_and_missing_blobs_are_named() {
    let home = tempfile::tempdir().unwrap();
    filled(home.path());
    let audit = Audit::open(home.path()).unwrap();
    let digests = audit.blobs().unwrap();
    drop(audit);
    assert!(digests.len() > 3);
    // In the database.
    let first = digests.iter().next().unwrap();
    assert!(Tamper::open(home.path()).blob(first, |bytes| bytes[0] = 0));
    let (what, _) = only_problem(home.path());
    assert_eq!(what, ProblemSubject::Blob(*first));
    let store = open(home.path());
    let error = wait(store.blob(*first)).unwrap_err();
    assert!(error.to_string().contains(&first.to_string()), "{error}");
    drop(store);
    let out = home.path().join("bundle");
    assert!(
        store::export(
            home.path(),
            &out,
            store::Evidence::default(),
            &mut |_, _| {}
        )
        .is_err()
    );
    let left = fs::read_dir(home.path()).unwrap();
    let names = left.map(|file| file.unwrap().file_name().into_string().unwrap());
    assert!(names.into_iter().all(|name| !name.contains("bundle")));

    // Each that an event needs is missed when it is gone, private parts inside moved ones included.
    let home = tempfile::tempdir().unwrap();
    filled(home.path());
    for digest in digests_of(home.path()) {
        let connection = rusqlite::Connection::open(home.path().join("reprise.db")).unwrap();
        let place = format!("digest = x'{}'", digest.hex());
        let shelf = home
            .path()
            .join("blobs")
            .join(&digest.hex()[..2])
            .join(digest.hex());
        let aside = home.path().join("aside");
        if shelf.exists() {
            fs::rename(&shelf, &aside).unwrap();
        } else {
            let sql = format!("CREATE TABLE aside AS SELECT * FROM blobs WHERE {place}");
            connection.execute_batch(&sql).unwrap();
            tamper(home.path(), &format!("DELETE FROM blobs WHERE {place}"));
        }
        let problems = verify(home.path()).problems;
        assert!(
            problems
                .iter()
                .any(|problem| matches!(problem.what, ProblemSubject::Event(_))
                    && problem.problem == format!("needs blob `{digest}`, which is missing")),
            "{digest}: {problems:#?}"
        );
        if aside.exists() {
            fs::rename(&aside, &shelf).unwrap();
        } else {
            connection
                .execute_batch("INSERT INTO blobs SELECT * FROM aside; DROP TABLE aside;")
                .unwrap();
        }
    }
    assert_eq!(verify(home.path()).problems, vec![]);
}

fn digests_of(directory: &Path) -> Vec<canon::Digest> {
    let audit = Audit::open(directory).unwrap();
    audit.blobs().unwrap().into_iter().collect()
}

#[test]
fn a_file_of_a_large_blob_is_checked_when_read() {
    let home = tempfile::tempdir().unwrap();
    let store = open(home.path());
    let blob = domain::Blob::new(vec![3; 400_000]);
    wait(store.put_blob(blob.clone())).unwrap();
    let hex = blob.digest.hex();
    let file = home.path().join("blobs").join(&hex[..2]).join(&hex);
    let mut bytes = fs::read(&file).unwrap();
    bytes[7] ^= 1;
    fs::write(&file, bytes).unwrap();
    let error = wait(store.blob(blob.digest)).unwrap_err();
    assert!(error.to_string().contains(&hex), "{error}");
    store.close();
    assert_eq!(
        only_problem(home.path()).0,
        ProblemSubject::Blob(blob.digest)
    );
}

#[test]
fn a_torn_page_is_a_problem_of_the_database() {
    let home = tempfile::tempdir().unwrap();
    filled(home.path());
    let file = home.path().join("reprise.db");
    let mut bytes = fs::read(&file).unwrap();
    // An index that lost its order: reads would silently miss rows.
    let connection = rusqlite::Connection::open(&file).unwrap();
    let page: usize = connection
        .query_row(
            "SELECT rootpage FROM sqlite_schema WHERE name = 'documents_session'",
            [],
            |row| row.get(0),
        )
        .unwrap();
    drop(connection);
    bytes[page * 4096 - 3] ^= 0x7f;
    fs::write(&file, bytes).unwrap();
    let problems = verify(home.path()).problems;
    assert!(!problems.is_empty());
    assert!(
        problems
            .iter()
            .all(|problem| problem.what == ProblemSubject::Database),
        "{problems:#?}"
    );
}

/// Answers are made from these tables too, and no document holds them.
#[test]
fn a_change_in_any_small_table_is_found() {
    let home = tempfile::tempdir().unwrap();
    // Some links have gathered, and others were moved.
    filled_by(open_gathering(home.path(), 40));
    let store = open(home.path());
    let at = domain::Timestamp::from_micros;
    let key = engine::port::ApiKey {
        revoked_at: Some(at(2)),
        ..engine::port::ApiKey::new("key", canon::sha256(b"text"), "me", ["tasks:read"], at(1))
    };
    engine::port::suite::wait(engine::port::KeyStore::put_api_key(&store, key)).unwrap();
    store.close();
    assert_eq!(verify(home.path()).problems, vec![]);
    let database = home.path().join("reprise.db");
    let whole = std::fs::read(&database).unwrap();
    let changes = [
        "DELETE FROM event_links WHERE (link, first) IN (SELECT link, first FROM event_links LIMIT 1 OFFSET 5)",
        "UPDATE event_links SET first = first + 1 WHERE (link, first) IN (SELECT link, first FROM event_links LIMIT 1)",
        "INSERT INTO event_links VALUES (99999, 1)",
        "UPDATE meta SET value = randomblob(32) WHERE name = 'secret'",
        "DELETE FROM meta WHERE name = 'lease_epoch'",
        "UPDATE api_keys SET revoked_at = NULL",
        "UPDATE api_keys SET scopes = '[\"*\"]'",
        "UPDATE api_keys SET actor = 'you'",
        "DELETE FROM api_keys",
        "INSERT INTO leases VALUES (424242, 'nobody', 1)",
        "INSERT INTO heads VALUES (zeroblob(32), 7)",
        "UPDATE heads SET size = size + 1 WHERE root IN (SELECT root FROM heads LIMIT 1)",
        "INSERT INTO claims VALUES (zeroblob(32), zeroblob(32), 1, 9, zeroblob(8))",
        "UPDATE usage SET bytes = bytes + 1 WHERE workspace IN (SELECT max(workspace) FROM usage)",
        "DELETE FROM usage WHERE workspace IN (SELECT max(workspace) FROM usage)",
    ];
    for change in changes {
        crate::home::tamper(home.path(), change);
        let report = verify(home.path());
        assert!(!report.problems.is_empty(), "{change}");
        std::fs::write(&database, &whole).unwrap();
    }
    assert_eq!(verify(home.path()).problems, vec![]);
}

/// One open Task that cannot be read keeps nobody from finding the others, wherever in the pages it stands.
#[test]
fn what_is_open_is_listed_without_what_is_damaged() {
    let home = tempfile::tempdir().unwrap();
    let mut model = filled(home.path());
    let store = open(home.path());
    for number in 0..4 {
        model.step(&store, (5, number, 0));
    }
    store.close();
    let tasks: Vec<_> = model.documents().into_iter().filter(is_open_task).collect();
    assert!(tasks.len() > 2, "{}", tasks.len());
    for damaged in &tasks {
        Tamper::open(home.path()).document(&damaged.id, |body| body.truncate(3));
        for limit in [1, 2, 1_000] {
            let store = open(home.path());
            let mut after = Position::START;
            let mut found = Vec::new();
            loop {
                let query = ListQuery {
                    kind: ResourceKind::Task,
                    scope: Scope::All,
                    open_only: true,
                    after,
                    limit,
                };
                let page = wait(store.list(query)).unwrap();
                let Some(last) = page.last() else { break };
                after = last.key;
                found.extend(page.into_iter().map(|task| task.key));
            }
            let others = tasks.iter().map(|task| task.key);
            let others: Vec<_> = others.filter(|key| *key != damaged.key).collect();
            assert_eq!(found, others, "{limit}");
        }
        let body = serde_json::to_string(&damaged.state).unwrap();
        Tamper::open(home.path()).document(&damaged.id, |stored| *stored = body);
    }
}

fn is_open_task(document: &Document) -> bool {
    matches!(&document.state, State::Task(task) if !task.status.is_terminal())
}
