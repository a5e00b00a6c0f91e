//! The store's own notes: one that is missing was taken away, and is named; nothing takes it for one never written.

use std::path::Path;

use rusqlite::Connection;
use store::{OpenError, Options, SqliteStore, repair, repairable};

use crate::home::{filled, open, tamper, verify};

const NOTES: [&str; 9] = [
    "log",
    "secret",
    "secret_sha256",
    "lease_epoch",
    "api_keys_sha256",
    "keys_recorded",
    "keeps_head",
    "claim_time",
    "claim_clock",
];

fn refused(directory: &Path) -> OpenError {
    SqliteStore::open(directory, Options::default()).unwrap_err()
}

#[test]
fn every_note_is_listed_here() {
    let home = tempfile::tempdir().unwrap();
    filled(home.path());
    let connection = Connection::open(home.path().join("reprise.db")).unwrap();
    let mut select = connection.prepare("SELECT name FROM meta").unwrap();
    let found = select.query_map([], |row| row.get::<_, String>(0)).unwrap();
    let mut found: Vec<String> = found.map(Result::unwrap).collect();
    found.sort_unstable();
    let mut listed = NOTES.map(str::to_owned);
    listed.sort_unstable();
    assert_eq!(found, listed);
}

#[test]
fn a_note_that_is_missing_is_named_refused_and_written_again_by_a_repair_where_it_can_be() {
    for name in NOTES {
        let home = tempfile::tempdir().unwrap();
        filled(home.path());
        tamper(
            home.path(),
            &format!("DELETE FROM meta WHERE name = '{name}'"),
        );
        let said = format!("the note `{name}`");
        let problems = verify(home.path()).problems;
        assert_eq!(problems.len(), 1, "{name}: {problems:#?}");
        assert!(problems[0].to_string().contains(&said), "{problems:?}");
        let error = refused(home.path());
        assert!(error.to_string().contains(&said), "{error}");
        assert!(error.hint().contains("restore a backup"), "{error:?}");
        // Nothing was changed by looking.
        assert_eq!(verify(home.path()).problems, problems);
        if ["log", "secret"].contains(&name) {
            assert!(!error.hint().contains("repair"), "{error:?}");
            assert!(repair(home.path()).is_err(), "{name}: nothing tells it");
            continue;
        }
        assert_eq!(repairable(home.path()).unwrap().notes, [said.as_str()]);
        let repaired = repair(home.path()).unwrap();
        assert_eq!(repaired.notes, [said.as_str()]);
        assert!(!repaired.is_empty());
        assert_eq!(verify(home.path()).problems, vec![], "{name}");
        open(home.path()).close();
        assert!(repair(home.path()).unwrap().is_empty(), "{name}");
    }
}

#[test]
fn a_table_that_is_missing_is_named_and_refused() {
    let made = [
        "events",
        "event_links",
        "documents",
        "document_links",
        "claims",
        "leases",
    ];
    let more = [
        "packs",
        "blobs",
        "leaves",
        "tree_hashes",
        "tree",
        "heads",
        "projections",
        "api_keys",
    ];
    for table in made.into_iter().chain(more).chain(["meta"]) {
        let home = tempfile::tempdir().unwrap();
        filled(home.path());
        let connection = Connection::open(home.path().join("reprise.db")).unwrap();
        connection
            .execute_batch(&format!("DROP TABLE {table}"))
            .unwrap();
        drop(connection);
        if table == "meta" {
            assert!(store::verify(home.path(), &mut |_, _| {}).is_err());
            refused(home.path());
            continue;
        }
        let said = format!("the table `{table}`");
        let problems = verify(home.path()).problems;
        assert_eq!(problems.len(), 1, "{table}: {problems:#?}");
        assert!(problems[0].to_string().contains(&said), "{problems:?}");
        let error = refused(home.path());
        // Without events the log is shorter than it was, which is seen before anything is asked of its tables.
        let is_shorter = table == "events" && matches!(error, OpenError::Lost { .. });
        assert!(
            is_shorter || error.to_string().contains(&said),
            "{table}: {error}"
        );
        assert!(error.hint().contains("restore a backup"), "{error:?}");
    }
}

/// Each thing that earlier programs of this format did not write is added by itself, whatever else is there.
#[test]
fn what_an_earlier_program_did_not_write_is_added_piece_by_piece() {
    let gone = [
        "DROP TABLE usage; DELETE FROM projections WHERE name = 'stored bytes'",
        "ALTER TABLE claims DROP COLUMN checksum",
        "DELETE FROM meta WHERE name = 'secret_sha256'",
        "DELETE FROM meta WHERE name = 'api_keys_sha256'",
        "DELETE FROM meta WHERE name = 'keys_recorded'",
        "DELETE FROM meta WHERE name = 'keeps_head'",
        "DELETE FROM meta WHERE name IN ('claim_time', 'claim_clock')",
    ];
    let all = gone.join(";");
    for sql in gone.into_iter().chain([&*all]) {
        let home = tempfile::tempdir().unwrap();
        filled(home.path());
        let connection = Connection::open(home.path().join("reprise.db")).unwrap();
        connection.execute_batch(sql).unwrap();
        connection.pragma_update(None, "user_version", 4).unwrap();
        drop(connection);
        assert_eq!(verify(home.path()).problems, vec![], "{sql}");
        let mut model =
            engine::port::suite::Model::with_documents(&open(home.path()), 1_000, vec![]);
        let store = open(home.path());
        let order = model.workspace();
        model.run(&store, order).unwrap();
        store.close();
        assert_eq!(verify(home.path()).problems, vec![], "{sql}");
        // From now on it must stay.
        tamper(home.path(), "DELETE FROM meta WHERE name = 'claim_time'");
        assert_eq!(verify(home.path()).problems.len(), 1, "{sql}");
    }
}

/// A table that only counts is counted again; meanwhile that is said.
#[test]
fn a_lost_count_is_said_and_counted_again() {
    let home = tempfile::tempdir().unwrap();
    filled(home.path());
    let connection = Connection::open(home.path().join("reprise.db")).unwrap();
    connection.execute_batch("DROP TABLE usage").unwrap();
    drop(connection);
    let problems = verify(home.path()).problems;
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].to_string().contains("`usage`"), "{problems:?}");
    open(home.path()).close();
    assert_eq!(verify(home.path()).problems, vec![]);
}

/// The file `head` is gone: a start would otherwise write a new one and take a shorter log for a whole one.
#[test]
fn a_missing_or_emptied_head_is_refused_until_a_repair_writes_it_again() {
    let damages: [fn(&Path); 3] = [
        |head| std::fs::remove_file(head).unwrap(),
        |head| std::fs::write(head, "").unwrap(),
        |head| std::fs::write(head, "no such thing").unwrap(),
    ];
    for damage in damages {
        let home = tempfile::tempdir().unwrap();
        filled(home.path());
        let head = home.path().join("head");
        let good = std::fs::read(&head).unwrap();
        damage(&head);
        let problems = verify(home.path()).problems;
        assert_eq!(problems.len(), 1, "{problems:?}");
        let error = refused(home.path());
        assert!(error.to_string().contains("head"), "{error}");
        assert!(error.hint().contains("log repair --apply"), "{error:?}");
        assert!(store::sweep(home.path(), &mut |_, _| {}).is_err());
        assert!(repairable(home.path()).unwrap().head);
        assert!(repair(home.path()).unwrap().head);
        assert_eq!(std::fs::read(&head).unwrap(), good);
        assert_eq!(verify(home.path()).problems, vec![]);
        open(home.path()).close();
    }
}

/// A first start that was killed before it made the file is not one that lost it.
#[test]
fn a_log_that_never_had_a_head_starts() {
    let home = tempfile::tempdir().unwrap();
    open(home.path()).close();
    std::fs::remove_file(home.path().join("head")).unwrap();
    tamper(
        home.path(),
        "UPDATE meta SET value = 0 WHERE name = 'keeps_head'",
    );
    assert!(verify(home.path()).without_head);
    open(home.path()).close();
    assert!(home.path().join("head").exists());
    std::fs::remove_file(home.path().join("head")).unwrap();
    refused(home.path());
}
