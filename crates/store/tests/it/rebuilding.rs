//! What is derived is stored again as the events say: documents, links, the tree of receipts.

use std::fs;
use std::path::Path;

use domain::{Event, Kind, Position};
use engine::port::StoredEvent;
use rusqlite::Connection;
use store::tamper::Tamper;
use store::{
    Options, Problem, ProblemSubject, Repair, SqliteStore, migrate, rebuild_and_write, repair,
};

use crate::home::{filled, open, verify};
use crate::migrating::golden;
use crate::repair::copied;

fn written(directory: &Path) -> (Vec<Problem>, std::path::PathBuf) {
    let (rebuilt, backup) = rebuild_and_write(directory, &mut |_, _| {}).unwrap();
    (rebuilt.problems, backup.expect("it was written"))
}

fn execute(directory: &Path, sql: &str) {
    let connection = Connection::open(directory.join("reprise.db")).unwrap();
    assert!(connection.execute(sql, []).unwrap() > 0, "{sql}");
}

#[test]
fn documents_get_a_way_forward_and_the_directory_is_kept_as_it_was() {
    let home = tempfile::tempdir().unwrap();
    let model = filled(home.path());
    let documents = model.documents();
    let changed = documents.first().unwrap();
    let damage = Tamper::open(home.path());
    // As an older program left it: a member that it did not know is missing.
    damage.document(&changed.id, |text| *text = text.replacen(":", ": ", 1));
    let lost = documents.last().unwrap();
    damage.lose_document(&lost.id);
    drop(damage);
    execute(home.path(), "DELETE FROM recent_links WHERE kind = 0");
    let before = verify(home.path()).problems;
    assert_eq!(before.len(), 2, "{before:#?}");

    let (differed, backup) = written(home.path());
    assert_eq!(differed.len(), 2, "{differed:#?}");
    assert_eq!(verify(home.path()).problems, vec![]);
    assert_eq!(backup, home.path().join("backup-before-rebuild"));
    assert_eq!(verify(&backup).problems, before);
    engine::port::suite::agrees(&open(home.path()), &model);

    // Once more: nothing differs, and the first backup stays.
    let (differed, second) = written(home.path());
    assert_eq!(differed, vec![]);
    assert_eq!(second, home.path().join("backup-before-rebuild-2"));
    assert!(fs::exists(backup).unwrap());
}

#[test]
fn nothing_is_written_when_an_event_cannot_be_folded() {
    let home = tempfile::tempdir().unwrap();
    let model = filled(home.path());
    let damage = Tamper::open(home.path());
    let position = model.events()[5].position;
    damage.raw(position, |bytes| bytes.truncate(20));
    drop(damage);
    let before = fs::read(home.path().join("reprise.db")).unwrap();
    let (rebuilt, backup) = rebuild_and_write(home.path(), &mut |_, _| {}).unwrap();
    assert_eq!(backup, None);
    assert!(matches!(
        rebuilt.problems[..],
        [Problem {
            what: ProblemSubject::Event(_),
            ..
        }]
    ));
    assert!(fs::read(home.path().join("reprise.db")).unwrap() == before);
}

/// A log of the tour, with receipts and signed heads.
pub(crate) fn tour() -> tempfile::TempDir {
    let home = golden("format-3");
    migrate(home.path(), &mut |_| {}).unwrap().unwrap();
    assert_eq!(verify(home.path()).problems, vec![]);
    home
}

#[test]
fn a_projection_that_is_missing_or_has_another_shape_is_folded_when_a_log_is_opened() {
    let home = tour();
    for (sql, table) in [
        (
            "DELETE FROM projections WHERE name = 'event links'",
            "event_links",
        ),
        (
            "UPDATE projections SET shape = 0 WHERE name = 'document links'",
            "document_links",
        ),
        (
            "DELETE FROM projections WHERE name = 'receipt tree'",
            "tree_hashes",
        ),
        (
            "DELETE FROM projections WHERE name = 'sealed heads'",
            "heads",
        ),
    ] {
        execute(home.path(), &format!("DELETE FROM {table}"));
        assert_ne!(verify(home.path()).problems, vec![], "{table}");
        // While it counts as folded nobody looks at it.
        open(home.path()).close();
        assert_ne!(verify(home.path()).problems, vec![], "{table}");
        execute(home.path(), sql);
        open(home.path()).close();
        assert_eq!(verify(home.path()).problems, vec![], "{table}");
    }
}

/// What is folded of receipts and links, row by row.
pub(crate) fn folded(directory: &Path) -> Vec<String> {
    let connection = Connection::open(directory.join("reprise.db")).unwrap();
    let mut found = Vec::new();
    for text in [
        "SELECT 'leaf ' || idx || ' ' || receipt || ' ' || hex(hash) FROM leaves ORDER BY 1",
        "SELECT 'hash ' || level || ' ' || idx || ' ' || hex(hash) FROM tree_hashes ORDER BY 1",
        "SELECT 'tree ' || size || ' ' || hex(peaks) || ' ' || last FROM tree",
        "SELECT 'document ' || link || ' ' || kind || ' ' || key FROM document_links ORDER BY 1",
        "SELECT 'block ' || link || ' ' || first FROM event_links UNION ALL \
         SELECT 'block ' || link || ' ' || number FROM recent_links WHERE kind = 0 ORDER BY 1",
    ] {
        let mut select = connection.prepare(text).unwrap();
        let rows = select.query_map([], |row| row.get(0)).unwrap();
        found.extend(rows.map(Result::unwrap));
    }
    found
}

/// Where receipts were issued that a signed head covers.
pub(crate) fn issued(directory: &Path) -> Vec<Position> {
    let events = Tamper::open(directory).all_events().into_iter();
    let kind = |event: &StoredEvent| Event::parse(&event.bytes).unwrap().kind();
    events
        .filter(|event| kind(event) == Ok(Kind::ReceiptIssued))
        .map(|event| event.position)
        .collect()
}

pub(crate) fn flip(bytes: &mut [u8]) {
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
}

/// U11: what is folded over a block that cannot be read loses nothing of it. A smaller tree would grow into another one than
/// was signed.
#[test]
fn u11_a_start_folds_nothing_away_of_a_block_that_cannot_be_read() {
    let home = tour();
    written(home.path());
    let before = folded(home.path());
    let receipts = issued(home.path());
    assert!(receipts.len() > 2);
    for receipt in [receipts[0], receipts[1], receipts[receipts.len() - 1]] {
        let stored = Tamper::open(home.path());
        let mut whole = Vec::new();
        stored.raw(receipt, |bytes| {
            whole.clone_from(bytes);
            flip(bytes);
        });
        let problems = verify(home.path()).problems;
        stored.run("DELETE FROM projections");
        open(home.path()).close();
        assert_eq!(folded(home.path()), before);
        assert_eq!(verify(home.path()).problems, problems);
        stored.raw(receipt, |bytes| *bytes = whole);
        // What workspaces have stored was counted without it.
        stored.run("DELETE FROM projections WHERE name = 'stored bytes'");
        open(home.path()).close();
        assert_eq!(verify(home.path()).problems, vec![]);
    }
}

/// U11: where nothing tells any more what a leaf was, no tree is folded in the place of the one that is there.
#[test]
fn u11_a_tree_is_never_replaced_by_a_smaller_one() {
    let home = tour();
    written(home.path());
    let receipt = issued(home.path())[1];
    let damage = Tamper::open(home.path());
    damage.raw(receipt, |bytes| flip(bytes));
    damage.execute(&format!("DELETE FROM documents WHERE key = {}", receipt.0));
    damage.run("DELETE FROM projections WHERE name = 'receipt tree'");
    let before = folded(home.path());
    let error = SqliteStore::open(home.path(), Options::default()).unwrap_err();
    assert!(error.to_string().contains("signed"), "{error}");
    assert_eq!(folded(home.path()), before);

    // The last of them: no head of a smaller size is contradicted.
    let home = tour();
    written(home.path());
    let receipts = issued(home.path());
    let receipt = receipts[receipts.len() - 1];
    let damage = Tamper::open(home.path());
    damage.raw(receipt, |bytes| flip(bytes));
    damage.execute(&format!("DELETE FROM documents WHERE key = {}", receipt.0));
    damage.run("DELETE FROM projections WHERE name = 'receipt tree'");
    let before = folded(home.path());
    let error = SqliteStore::open(home.path(), Options::default()).unwrap_err();
    assert!(
        error.to_string().contains("leaves where there was"),
        "{error}"
    );
    assert_eq!(folded(home.path()), before);
}

/// What an event did that a repair could not read is only in its document.
#[test]
fn documents_behind_a_gap_stay_as_they_are_stored() {
    let home = tempfile::tempdir().unwrap();
    let model = filled(home.path());
    let documents = model.documents();
    let changed = documents.iter().find(|document| document.version > 1);
    Tamper::open(home.path()).event(changed.unwrap().tip, |event| {
        event.bytes = (*b"{\"actor\":\xff").into();
    });
    assert_eq!(repair(home.path()).unwrap().events.len(), 1);
    let stored = || -> Vec<(i64, i64, Vec<u8>)> {
        let connection = Connection::open(home.path().join("reprise.db")).unwrap();
        let text = "SELECT key, version, body FROM documents ORDER BY key";
        let mut select = connection.prepare(text).unwrap();
        let rows = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
        rows.unwrap().map(Result::unwrap).collect()
    };
    let before = stored();
    let (differed, _) = written(home.path());
    assert_eq!(differed, vec![]);
    assert!(stored() == before);
    assert_eq!(verify(home.path()).problems, vec![]);
}

/// U11: a rebuilt tree reproduces every signed head, and a difference is damage.
#[test]
fn u11_a_tree_that_does_not_give_a_signed_head_is_damage() {
    let home = tour();
    execute(home.path(), "DELETE FROM tree_hashes");
    execute(home.path(), "DELETE FROM leaves");
    execute(home.path(), "DELETE FROM tree");
    let (differed, _) = written(home.path());
    assert_eq!(differed, vec![]);
    assert_eq!(verify(home.path()).problems, vec![]);

    // A receipt of another hash than the one that was signed: the tree is what its leaves give, and still it is wrong.
    let damage = Tamper::open(home.path());
    let events = damage.all_events();
    let issued = events.iter().find(|event| {
        str::from_utf8(&event.bytes)
            .unwrap()
            .contains(r#""event":"receipt.issued""#)
    });
    damage.event(issued.unwrap().position, |event| {
        let text = str::from_utf8(&event.bytes).unwrap();
        let at = text.find(r#""receipt_hash":"sha256:"#).unwrap() + 23;
        let mut bytes = event.bytes.to_vec();
        bytes[at] = if bytes[at] == b'0' { b'1' } else { b'0' };
        event.bytes = bytes.into();
    });
    drop(damage);
    let error = rebuild_and_write(home.path(), &mut |_, _| {}).unwrap_err();
    assert!(error.to_string().contains("that was signed"), "{error}");
    let problems = verify(home.path()).problems;
    assert!(
        problems
            .iter()
            .any(|problem| problem.what == ProblemSubject::Tree),
        "{problems:#?}"
    );
}

/// A table that is folded from the rest is made anew where its first page is broken: nothing is lost with it.
#[test]
fn folded_tables_whose_pages_are_broken_are_made_anew() {
    let whole = tour();
    written(whole.path());
    let before = folded(whole.path());
    let tables = ["recent_links", "event_links", "session_messages", "leaves"];
    for (table, at) in tables.into_iter().zip(0..) {
        let home = tempfile::tempdir().unwrap();
        copied(whole.path(), home.path());
        let root = Tamper::open(home.path()).root_page(table) as usize;
        let file = home.path().join("reprise.db");
        let mut bytes = fs::read(&file).unwrap();
        let page = &mut bytes[(root - 1) * 4096..root * 4096];
        match at % 2 {
            0 => page.fill(0),
            _ => page[0] = 1,
        }
        fs::write(&file, &bytes).unwrap();
        let damaged = store::verify(home.path(), &mut |_, _| {});
        assert!(damaged.map_or(true, |report| !report.problems.is_empty()));
        if at < 2 {
            written(home.path());
        } else {
            let did = repair(home.path()).unwrap();
            assert!(
                !did.database.is_empty() && did.unmended.is_empty(),
                "{did:?}"
            );
        }
        assert_eq!(verify(home.path()).problems, vec![], "{table}");
        assert_eq!(folded(home.path()), before, "{table}");
        assert_eq!(repair(home.path()).unwrap(), Repair::default());
        open(home.path()).close();
        assert_eq!(verify(home.path()).problems, vec![], "{table}");
    }
}

/// What a rebuild that was killed left is gone with the next one, and with the next start.
#[test]
fn what_a_killed_rebuild_left_is_removed() {
    let home = tempfile::tempdir().unwrap();
    filled(home.path());
    let left = home.path().join("rebuild-4194305.tmp");
    let other = home.path().join("rebuild-notes.tmp");
    fs::write(&other, b"somebody's").unwrap();
    fs::write(&left, b"half").unwrap();
    written(home.path());
    assert!(!left.exists());
    fs::write(&left, b"half").unwrap();
    open(home.path()).close();
    assert!(!left.exists() && other.exists());
}
