//! The store's own notes: one that is missing was taken away, and is named; nothing takes it for one never written.

use std::path::Path;

use rusqlite::Connection;
use store::{OpenError, Options, SqliteStore, repair, repairable};

use crate::home::{downgrade, filled, open, tamper, verify};

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
        "session_messages",
        "recent_links",
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
        let problem = problems[0].to_string();
        let error = refused(home.path());
        // Without events the log is shorter than it was, which is seen before anything is asked of its tables.
        let is_shorter = table == "events" && matches!(error, OpenError::Lost { .. });
        let says_so = problem.contains(&said) || is_shorter && problem.contains("the log ends at");
        assert!(says_so, "{problem}");
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
        drop(connection);
        downgrade(home.path(), 4);
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

/// Damages a log, and sees it named, refused and set right.
fn named_refused_and_mended(directory: &Path, sql: &str, said: &str) {
    let connection = Connection::open(directory.join("reprise.db")).unwrap();
    connection.execute_batch(sql).unwrap();
    drop(connection);
    let problems = verify(directory).problems;
    assert_eq!(problems.len(), 1, "{sql}: {problems:#?}");
    assert!(problems[0].to_string().contains(said), "{problems:?}");
    let error = refused(directory);
    assert!(matches!(error, OpenError::Flawed { .. }), "{sql}: {error}");
    assert!(error.to_string().contains(said), "{sql}: {error}");
    assert!(error.hint().contains("log repair --apply"), "{error:?}");
    let found = repairable(directory).unwrap().flaws;
    assert_eq!(found.len(), 1, "{sql}: {found:?}");
    let repaired = repair(directory).unwrap();
    assert_eq!(repaired.flaws, found, "{sql}");
    assert!(!repaired.is_empty());
    assert_eq!(verify(directory).problems, vec![], "{sql}");
    open(directory).close();
    assert!(repair(directory).unwrap().is_empty(), "{sql}");
}

#[test]
fn a_dropped_index_is_named_refused_and_made_again() {
    let home = tempfile::tempdir().unwrap();
    filled(home.path());
    let connection = Connection::open(home.path().join("reprise.db")).unwrap();
    let indexes = "SELECT name, sql FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL";
    let mut select = connection.prepare(indexes).unwrap();
    let rows = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?)));
    let indexes: Vec<(String, String)> = rows.unwrap().map(Result::unwrap).collect();
    drop(select);
    drop(connection);
    assert_eq!(indexes.len(), 9, "{indexes:?}");
    for (name, made) in indexes {
        let sql = format!("DROP INDEX {name}");
        let said = format!("the index `{name}` is missing");
        named_refused_and_mended(home.path(), &sql, &said);
        if let Some(unlike) = made.strip_suffix("WHERE open = 1") {
            let sql = format!("DROP INDEX {name}; {unlike} WHERE open = 2");
            let said = format!("the index `{name}` is not the index of that name");
            named_refused_and_mended(home.path(), &sql, &said);
        }
    }
}

#[test]
fn what_this_program_did_not_make_is_named() {
    let home = tempfile::tempdir().unwrap();
    filled(home.path());
    let additions = [
        "CREATE TRIGGER t AFTER INSERT ON leases BEGIN DELETE FROM claims; END",
        "CREATE VIEW v AS SELECT * FROM meta",
        "CREATE UNIQUE INDEX i ON leaves(idx, hash)",
    ];
    for sql in additions {
        named_refused_and_mended(home.path(), sql, "was not made by this program");
    }
    // A table is not ours to throw away, and harms nothing.
    let connection = Connection::open(home.path().join("reprise.db")).unwrap();
    connection.execute_batch("CREATE TABLE other(x)").unwrap();
    drop(connection);
    open(home.path()).close();
    repair(home.path()).unwrap();
    let problems = verify(home.path()).problems;
    assert_eq!(problems.len(), 1, "{problems:#?}");
    assert!(problems[0].problem.contains("the table `other`"));
}

#[test]
fn a_note_that_cannot_be_is_named_refused_and_set_right() {
    let home = tempfile::tempdir().unwrap();
    filled(home.path());
    // An idempotency key in use, as a commit writes it.
    let (claim, answer, end) = ([0; 64], 1_u64.to_be_bytes(), 2_000_000_i64.to_be_bytes());
    let sum = canon::sha256(&[&claim[..], &answer, &end].concat()).hex();
    tamper(
        home.path(),
        &format!(
            "INSERT INTO claims VALUES (zeroblob(32), zeroblob(32), 1, 2000000, x'{}')",
            &sum[..16]
        ),
    );
    // Some 9 years: one bit.
    let future = "CAST(strftime('%s', 'now') AS INTEGER) * 1000000 + 281474976710656";
    let changes = [
        ("claim_time", future),
        ("claim_time", "'soon'"),
        ("claim_clock", future),
        ("keeps_head", "2"),
        ("keys_recorded", "-1"),
        ("lease_epoch", "-1"),
        ("lease_epoch", "9007199254740993"),
        ("lease_epoch", "'many'"),
    ];
    for (name, value) in changes {
        let sql = format!("UPDATE meta SET value = {value} WHERE name = '{name}'");
        named_refused_and_mended(home.path(), &sql, &format!("the note `{name}`"));
    }
    // No idempotency key in use is forgotten by the time that takes its place.
    let connection = Connection::open(home.path().join("reprise.db")).unwrap();
    let ended =
        "SELECT count(*) FROM claims, meta WHERE name = 'claim_time' AND expires_at <= value";
    let count = |sql: &str| {
        connection
            .query_row(sql, [], |row| row.get::<_, u64>(0))
            .unwrap()
    };
    assert!(count("SELECT count(*) FROM claims") > 0);
    assert_eq!(count(ended), 0);
}
