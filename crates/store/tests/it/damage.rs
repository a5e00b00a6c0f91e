//! A log that is not as it should be: each damage is named, once, where it is.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use domain::Position;
use engine::port::Store;
use engine::port::suite::wait;
use store::{Audit, EventRow, What, rebuild};

use crate::home::{filled, open, tamper, verify};

/// Verifies and returns the only problem.
fn only_problem(directory: &Path) -> (What, String) {
    let mut problems = verify(directory).problems;
    assert_eq!(problems.len(), 1, "{problems:#?}");
    let problem = problems.remove(0);
    (problem.what, problem.problem)
}

fn event(directory: &Path, position: u64) -> EventRow {
    let audit = Audit::open(directory).unwrap();
    audit.events(Position(position - 1)).unwrap().remove(0)
}

/// Gives an event other bytes, with a checksum that fits, as a bug of ours would.
fn rewrite(directory: &Path, position: u64, from: &str, to: &str) {
    let text = String::from_utf8(event(directory, position).bytes.to_vec()).unwrap();
    assert!(text.contains(from), "{text}");
    let bytes = text.replacen(from, to, 1).into_bytes();
    let connection = rusqlite::Connection::open(directory.join("reprise.db")).unwrap();
    let sql = "UPDATE events SET bytes = ?2, checksum = ?3 WHERE position = ?1";
    let checksum = EventRow::checksum_of(&bytes);
    assert_eq!(connection.execute(sql, (position, bytes, checksum)), Ok(1));
}

/// The position of the first event of a kind.
fn first(directory: &Path, kind: &str) -> u64 {
    let audit = Audit::open(directory).unwrap();
    let kind = format!("\"event\":\"{kind}\"");
    let rows = audit.events(Position::START).unwrap();
    let found = rows
        .iter()
        .find(|row| String::from_utf8_lossy(&row.bytes).contains(&kind));
    found.unwrap().position.0
}

#[test]
fn any_flipped_byte_of_any_event_is_named() {
    let home = tempfile::tempdir().unwrap();
    let model = filled(home.path());
    for event in model.events().iter().step_by(5) {
        let position = event.position.0;
        let at = 1 + (position as usize * 37) % event.bytes.len();
        let flip = |back: &str| {
            let sql = format!(
                "UPDATE events SET bytes = CAST(substr(bytes, 1, {at} - 1) || {back} || substr(bytes, {at} + 1) AS BLOB) \
                 WHERE position = {position}"
            );
            tamper(home.path(), &sql);
        };
        let byte = event.bytes[at - 1];
        flip(&format!("x'{:02x}'", byte ^ 1));
        let (what, problem) = only_problem(home.path());
        assert_eq!(what, What::Event(event.position), "{problem}");
        assert!(problem.contains("damaged"), "{problem}");
        let rebuilt = rebuild(home.path(), &mut |_, _| {}).unwrap();
        assert_eq!(rebuilt.problems[0].what, What::Event(event.position));
        flip(&format!("x'{byte:02x}'"));
    }
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
        let what = What::Document(key, id.clone());
        let set = |sql: &str| {
            tamper(
                home.path(),
                &format!("UPDATE documents SET {sql} WHERE key = {}", key.0),
            );
        };
        set("body = CAST(replace(CAST(body AS TEXT), 'object', 'objecu') AS BLOB)");
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
        set("body = CAST(replace(CAST(body AS TEXT), 'objecu', 'object') AS BLOB)");

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
    assert_eq!(what, What::Document(lost.key, lost.id));
    assert!(problem.contains("missing"), "{problem}");
    assert_eq!(
        rebuild(home.path(), &mut |_, _| {}).unwrap().problems.len(),
        1
    );
    tamper(
        home.path(),
        "INSERT INTO documents SELECT 100000, 'task_invented', kind, version, tip, workspace, session, task, open, \
         created_at, updated_at, body FROM documents LIMIT 1",
    );
    let problems = verify(home.path()).problems;
    assert_eq!(problems.len(), 2);
    assert_eq!(
        problems[0].what,
        What::Document(Position(100_000), "task_invented".into())
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
    filled(home.path());
    let position = first(home.path(), "session.message_appended");
    tamper(
        home.path(),
        &format!("DELETE FROM events WHERE position = {position}"),
    );
    let (what, problem) = only_problem(home.path());
    assert!(
        matches!(what, What::Event(found) if found.0 > position),
        "{what:?}"
    );
    assert_eq!(problem, "has sequence 3 where 2 follows");
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
            "sequence 7 where 2 follows",
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
            problems
                .iter()
                .any(|problem| problem.what == What::Event(Position(position))
                    && problem.problem.contains(expected)),
            "{expected}: {named:#?}"
        );
        rewrite(home.path(), position, to, from);
    }
    let previous = format!("{:016}\",\"receipt", created);
    let other = format!("{:016}\",\"receipt", created - 1);
    rewrite(home.path(), appended, &previous, &other);
    let (what, problem) = only_problem(home.path());
    assert_eq!(what, What::Event(Position(appended)));
    assert!(problem.contains("was last changed by"), "{problem}");
    rewrite(home.path(), appended, &other, &previous);

    let id = format!("{appended:016}\",\"idem");
    let moved = format!("{:016}\",\"idem", appended + 500);
    rewrite(home.path(), appended, &id, &moved);
    let (what, problem) = only_problem(home.path());
    assert_eq!(what, What::Event(Position(appended)));
    assert!(problem.contains("its id is"), "{problem}");
    rewrite(home.path(), appended, &moved, &id);
    assert_eq!(verify(home.path()).problems, vec![]);
}

#[test]
fn columns_that_belong_to_other_ids_are_named() {
    let home = tempfile::tempdir().unwrap();
    filled(home.path());
    let position = first(home.path(), "task.submitted");
    for column in ["resource", "workspace", "session", "task"] {
        let set = |change: &str| {
            let sql = format!(
                "UPDATE events SET {column} = {column} {change} WHERE position = {position}"
            );
            tamper(home.path(), &sql);
        };
        set("+ 1");
        let (what, problem) = only_problem(home.path());
        assert_eq!(what, What::Event(Position(position)), "{column}");
        assert!(problem.contains("indexed under other"), "{problem}");
        set("- 1");
    }
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
    let place = format!("digest = x'{}'", first.hex());
    let flip = |byte: &str| {
        let sql = format!(
            "UPDATE blobs SET bytes = CAST({byte} || substr(bytes, 2) AS BLOB) WHERE {place}"
        );
        tamper(home.path(), &sql);
    };
    flip("x'00'");
    let (what, _) = only_problem(home.path());
    assert_eq!(what, What::Blob(*first));
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
                .any(|problem| matches!(problem.what, What::Event(_))
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
    assert_eq!(only_problem(home.path()).0, What::Blob(blob.digest));
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
            "SELECT rootpage FROM sqlite_schema WHERE name = 'events_session'",
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
            .all(|problem| problem.what == What::Database),
        "{problems:#?}"
    );
}
