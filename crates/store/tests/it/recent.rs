//! Links gather before they are moved to where they are found by: wherever they stand, lists and streams are the same.

use std::fs;
use std::path::Path;

use domain::{Position, ResourceKind, Timestamp};
use engine::port::suite::{Model, agrees, steps, wait};
use engine::port::{Commit, ListQuery, NewestQuery, Scope, SealedTurn, Store, StoredEvent};
use proptest::prelude::*;
use rusqlite::Connection;
use store::tamper::Tamper;
use store::{
    Evidence, OpenError, Options, SqliteStore, export, prunable, prune, rebuild_and_write, repair,
    repairable,
};

use crate::home::{downgrade, filled, filled_by, open, open_gathering, tamper, verify};

/// How many links have gathered, and how many were moved.
fn places(directory: &Path) -> (u64, u64) {
    let tables = Tamper::open(directory);
    let moved = tables.count("event_links") + tables.count("session_messages");
    (tables.count("recent_links"), moved)
}

fn version(directory: &Path) -> i64 {
    let connection = Connection::open(directory.join("reprise.db")).unwrap();
    connection
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .unwrap()
}

#[test]
fn lists_and_streams_are_the_same_wherever_links_stand() {
    for (recent_max, some_gathered, some_moved) in
        [(0, true, true), (40, true, true), (512, true, false)]
    {
        let home = tempfile::tempdir().unwrap();
        let model = filled_by(open_gathering(home.path(), recent_max));
        let (gathered, moved) = places(home.path());
        assert_eq!(gathered > 0, some_gathered, "{recent_max}: {gathered}");
        assert_eq!(moved > 0, some_moved, "{recent_max}: {moved}");
        assert_eq!(verify(home.path()).problems, vec![], "{recent_max}");
        // A start leaves them where they are.
        let store = open_gathering(home.path(), recent_max);
        agrees(&store, &model);
        // That Messages belong to a Session is no further link.
        for session in model.documents() {
            let further = wait(store.list(ListQuery {
                kind: ResourceKind::Message,
                scope: Scope::Linked(session.key),
                open_only: false,
                after: Position::START,
                limit: 1_000,
            }));
            assert_eq!(further.unwrap(), vec![], "{}", session.id);
        }
        store.close();
        assert_eq!(places(home.path()), (gathered, moved));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, failure_persistence: None, ..ProptestConfig::default() })]

    /// Every read, whatever was done, with starts in between that move after another number of links each.
    #[test]
    fn lists_and_streams_agree_while_links_are_moved(
        parts in prop::collection::vec((0u64..60, steps(20)), 1..4),
    ) {
        let home = tempfile::tempdir().unwrap();
        let mut store = open_gathering(home.path(), 10);
        let mut model = Model::new(&store);
        for step in [(0, 0, 0), (1, 0, 0), (1, 0, 1), (5, 0, 0)] {
            model.step(&store, step);
        }
        for (recent_max, steps) in parts {
            store.close();
            store = open_gathering(home.path(), recent_max);
            for step in steps {
                model.step(&store, step);
            }
            agrees(&store, &model);
        }
        store.close();
        assert_eq!(verify(home.path()).problems, vec![]);
    }
}

/// A merge takes links out of wherever they stand, some here and some there.
#[test]
fn small_blocks_are_merged_wherever_their_links_stand() {
    for recent_max in [0, 7, 60, 512] {
        let home = tempfile::tempdir().unwrap();
        let store = open_gathering(home.path(), recent_max);
        let mut model = Model::new(&store);
        for step in [(0, 0, 0), (1, 0, 0), (1, 0, 1)] {
            model.step(&store, step);
        }
        for number in 0..120_u8 {
            model.step(&store, (2, number, 255));
            model.step(&store, (4, number, 90));
        }
        agrees(&store, &model);
        store.close();
        let blocks = Tamper::open(home.path()).count("events");
        assert!(blocks < 200, "{blocks} blocks: none were merged");
        assert_eq!(verify(home.path()).problems, vec![], "{recent_max}");
    }
}

/// A row that stands in both places is damage of its own: whoever writes goes on, and the move mends it.
#[test]
fn a_doubled_link_stops_nobody() {
    let home = tempfile::tempdir().unwrap();
    let mut model = filled_by(open_gathering(home.path(), 512));
    for double in [
        "INSERT INTO event_links SELECT link, number FROM recent_links WHERE kind = 0 LIMIT 1",
        "INSERT INTO session_messages SELECT link, number FROM recent_links WHERE kind = 4 LIMIT 1",
    ] {
        tamper(home.path(), double);
    }
    assert!(!verify(home.path()).problems.is_empty());
    let store = open_gathering(home.path(), 0);
    for number in 0..4 {
        model.step(&store, (4, number, 90));
    }
    agrees(&store, &model);
    store.close();
    assert_eq!(verify(home.path()).problems, vec![]);
}

/// What a list of Messages says when something is wrong with it.
fn listing_fault(directory: &Path, session: Position) -> String {
    let query = ListQuery {
        kind: ResourceKind::Message,
        scope: Scope::Session(session),
        open_only: false,
        after: Position::START,
        limit: 1_000,
    };
    let newest = NewestQuery {
        kind: ResourceKind::Message,
        scope: Scope::Session(session),
        before: None,
        limit: 1_000,
    };
    let store = open(directory);
    let listed = wait(store.list(query)).unwrap_err().to_string();
    assert_eq!(wait(store.newest(newest)).unwrap_err().to_string(), listed);
    store.close();
    listed
}

/// A link that leads to a Message of another Session, to something else or to nothing never shows it, and never makes a list
/// that is short look whole.
#[test]
fn a_list_of_messages_believes_no_link() {
    let home = tempfile::tempdir().unwrap();
    let mut model = filled_by(open_gathering(home.path(), 512));
    let store = open(home.path());
    for number in 0..6 {
        model.step(&store, (1, number, 1));
        model.step(&store, (4, number, 90));
    }
    store.close();
    let database = home.path().join("reprise.db");
    let whole = fs::read(&database).unwrap();
    let documents = model.documents();
    let messages = || {
        let of_kind = documents.iter();
        of_kind.filter(|known| known.state.kind() == ResourceKind::Message)
    };
    let message = messages().next().unwrap();
    let session = message.links.session.unwrap();
    let other = messages()
        .find(|known| known.links.session != Some(session))
        .unwrap();
    let task = documents
        .iter()
        .find(|known| known.state.kind() == ResourceKind::Task)
        .unwrap();
    for key in [other.key, task.key, Position(99_999)] {
        let insert = format!(
            "INSERT INTO recent_links VALUES ({}, {}, 4)",
            key.0, session.0
        );
        tamper(home.path(), &insert);
        let said = listing_fault(home.path(), session);
        assert!(said.contains("run `reprise log verify`"), "{said}");
        assert!(!verify(home.path()).problems.is_empty());
        fs::write(&database, &whole).unwrap();
    }
    Tamper::open(home.path()).lose_document(&message.id);
    let said = listing_fault(home.path(), session);
    assert!(said.contains("run `reprise log verify`"), "{said}");
}

/// Damage that keeps links from being moved: everybody goes on to write.
#[test]
fn links_that_cannot_be_moved_stop_nobody() {
    let home = tempfile::tempdir().unwrap();
    let mut model = filled_by(open_gathering(home.path(), 512));
    let store = open_gathering(home.path(), 0);
    // Where Messages are moved to, something stands in the way that no insert passes.
    let way = Connection::open(home.path().join("reprise.db")).unwrap();
    way.execute_batch(
        "CREATE TRIGGER stuck BEFORE INSERT ON session_messages BEGIN SELECT RAISE(ABORT, 'stuck'); END",
    )
    .unwrap();
    for number in 0..120_u8 {
        model.step(&store, (2, number, 255));
        model.step(&store, (4, number, 90));
    }
    agrees(&store, &model);
    store.close();
    let (gathered, _) = places(home.path());
    assert!(gathered > 120, "{gathered}");
    way.execute_batch("DROP TRIGGER stuck").unwrap();
    drop(way);
    let store = open_gathering(home.path(), 0);
    model.step(&store, (4, 0, 90));
    agrees(&store, &model);
    store.close();
    assert!(places(home.path()).0 < gathered);
    assert_eq!(verify(home.path()).problems, vec![]);
}

/// Damage that leaves no room for further links: they go where they are found by.
#[test]
fn a_page_that_takes_no_more_links_stops_nobody() {
    let home = tempfile::tempdir().unwrap();
    let mut model = filled_by(open_gathering(home.path(), 512));
    let file = home.path().join("reprise.db");
    let page = (Tamper::open(home.path()).root_page("recent_links") as usize - 1) * 4096;
    let mut bytes = fs::read(&file).unwrap();
    // The place of the first row: two rows have a byte in common then.
    bytes[page + 9] ^= 1;
    fs::write(&file, &bytes).unwrap();
    assert!(!verify_or_fault(home.path()));
    let store = open_gathering(home.path(), 100);
    let mut refused = 0;
    for _ in 0..300 {
        let order = model.append(20);
        refused += usize::from(model.run(&store, order).is_err());
    }
    store.close();
    assert!(refused <= 1, "{refused}");
    let (_, written) = rebuild_and_write(home.path(), &mut |_, _| {}).unwrap();
    fs::remove_dir_all(written.unwrap()).unwrap();
    assert_eq!(verify(home.path()).problems, vec![]);
    agrees(&open(home.path()), &model);
}

/// Bits of a page that holds recent links: what is noticed is mended, by folding all of it again, whatever stands there.
#[test]
fn a_damaged_page_of_recent_links_is_made_again() {
    let home = tempfile::tempdir().unwrap();
    let model = filled_by(open_gathering(home.path(), 512));
    let file = home.path().join("reprise.db");
    let whole = fs::read(&file).unwrap();
    let page = (Tamper::open(home.path()).root_page("recent_links") as usize - 1) * 4096;
    let mut mended = 0;
    // Behind the header of the page, without which SQLite cannot even empty it.
    for place in (8..4096).step_by(61) {
        let mut bytes = whole.clone();
        bytes[page + place] ^= 1 << (place % 8);
        fs::write(&file, &bytes).unwrap();
        if verify_or_fault(home.path()) {
            continue;
        }
        let by_rebuild = rebuild_and_write(home.path(), &mut |_, _| {});
        match by_rebuild {
            Ok((_, written)) => fs::remove_dir_all(written.unwrap()).unwrap(),
            Err(error) => panic!("byte {place}: {error}"),
        }
        assert_eq!(verify(home.path()).problems, vec![], "byte {place}");
        agrees(&open(home.path()), &model);
        mended += 1;
    }
    assert!(mended > 10, "{mended}");
}

/// True when nothing is wrong with a log.
fn verify_or_fault(directory: &Path) -> bool {
    store::verify(directory, &mut |_, _| {}).is_ok_and(|report| report.problems.is_empty())
}

/// Each is named; folding the links again sets it right.
#[test]
fn a_link_that_is_missing_doubled_or_of_nothing_is_found() {
    let home = tempfile::tempdir().unwrap();
    let model = filled_by(open_gathering(home.path(), 40));
    let database = home.path().join("reprise.db");
    let whole = fs::read(&database).unwrap();
    let one = |table: &str, columns: &str, filter: &str| {
        format!(
            "DELETE FROM {table} WHERE ({columns}) IN (SELECT {columns} FROM {table} {filter} LIMIT 1)"
        )
    };
    let changes = [
        // Missing.
        one("recent_links", "number, link, kind", "WHERE kind = 0"),
        one("recent_links", "number, link, kind", "WHERE kind = 4"),
        one("event_links", "link, first", ""),
        one("session_messages", "session, key", ""),
        // Doubled: in both places.
        "INSERT INTO event_links SELECT link, number FROM recent_links WHERE kind = 0 LIMIT 1"
            .to_owned(),
        "INSERT INTO session_messages SELECT link, number FROM recent_links WHERE kind = 4 LIMIT 1"
            .to_owned(),
        "INSERT INTO recent_links SELECT first, link, 0 FROM event_links LIMIT 1".to_owned(),
        "INSERT INTO recent_links SELECT key, session, 4 FROM session_messages LIMIT 1".to_owned(),
        // Of nothing.
        "INSERT INTO recent_links VALUES (1, 99999, 0)".to_owned(),
        "INSERT INTO recent_links VALUES (1, 99999, 4)".to_owned(),
        "INSERT INTO recent_links VALUES (-1, -1, 4)".to_owned(),
        "INSERT INTO recent_links VALUES (1, 1, 7)".to_owned(),
        "UPDATE recent_links SET kind = 5 WHERE (number, link) IN \
             (SELECT number, link FROM recent_links WHERE kind = 4 LIMIT 1) AND kind = 4"
            .to_owned(),
    ];
    for change in changes {
        tamper(home.path(), &change);
        let problems = verify(home.path()).problems;
        assert!(!problems.is_empty(), "{change}");
        assert!(problems.len() < 3, "{change}: {problems:#?}");
        let (rebuilt, written) = rebuild_and_write(home.path(), &mut |_, _| {}).unwrap();
        assert_eq!(rebuilt.problems, vec![], "{change}");
        fs::remove_dir_all(written.unwrap()).unwrap();
        assert_eq!(verify(home.path()).problems, vec![], "{change}");
        assert_eq!(Tamper::open(home.path()).count("recent_links"), 0);
        agrees(&open(home.path()), &model);
        fs::write(&database, &whole).unwrap();
    }
}

/// What only looks reads a directory that was not brought forward, and leaves it so.
#[test]
fn a_directory_of_an_earlier_program_is_read_as_it_is() {
    for earlier in [4, 5] {
        let home = tempfile::tempdir().unwrap();
        let model = filled(home.path());
        downgrade(home.path(), earlier);
        assert_eq!(verify(home.path()).problems, vec![], "{earlier}");
        assert!(repairable(home.path()).unwrap().is_empty(), "{earlier}");
        let late = Timestamp::from_micros(model.now().as_micros() + 1);
        assert!(prunable(home.path(), late, &mut |_, _| {}).unwrap().events > 0);
        let out = home.path().join("out");
        export(home.path(), &out, Evidence::default(), &mut |_, _| {}).unwrap();
        let reader = SqliteStore::open_reader(home.path()).unwrap();
        agrees(&reader, &model);
        assert_eq!(version(home.path()), earlier);
        // Somebody begins to work there, and the reader goes on.
        let store = open_gathering(home.path(), 5);
        let mut longer = model.clone();
        for number in 0..9 {
            longer.step(&store, (2, number, 1));
        }
        agrees(&store, &longer);
        let session = longer.documents();
        let session = session
            .iter()
            .find(|known| known.state.kind() == ResourceKind::Session);
        let query = ListQuery {
            kind: ResourceKind::Message,
            scope: Scope::Session(session.unwrap().key),
            open_only: false,
            after: Position::START,
            limit: 1_000,
        };
        let listed = wait(store.list(query)).unwrap();
        assert_eq!(wait(reader.list(query)).unwrap(), listed);
    }
}

#[test]
fn a_directory_of_an_earlier_program_is_brought_forward_once_and_lists_the_same() {
    for earlier in [4, 5] {
        let home = tempfile::tempdir().unwrap();
        let mut model = filled(home.path());
        downgrade(home.path(), earlier);
        let store = open(home.path());
        agrees(&store, &model);
        store.close();
        // An older program knows versions up to 5 and refuses any other.
        assert_eq!(version(home.path()), 6);
        assert_eq!(verify(home.path()).problems, vec![]);
        let messages = model.documents();
        let messages = messages
            .iter()
            .filter(|known| known.state.kind() == ResourceKind::Message);
        assert_eq!(
            Tamper::open(home.path()).count("session_messages"),
            messages.count() as u64
        );
        let store = open(home.path());
        for number in 0..9 {
            model.step(&store, (2, number, 1));
        }
        agrees(&store, &model);
        store.close();
        assert_eq!(verify(home.path()).problems, vec![]);
    }
}

/// No event is read for it: a block that is damaged keeps its links, which a fold would lose.
#[test]
fn bringing_links_forward_reads_no_events() {
    let home = tempfile::tempdir().unwrap();
    let model = filled(home.path());
    downgrade(home.path(), 5);
    let links = Tamper::open(home.path()).count("event_links");
    let harmed = model.events()[5].position;
    Tamper::open(home.path()).raw(harmed, |bytes| bytes.truncate(20));
    open(home.path()).close();
    assert_eq!(version(home.path()), 6);
    assert_eq!(places(home.path()).0, 0);
    assert_eq!(Tamper::open(home.path()).count("event_links"), links);
    // And so a repair still finds whose events it held.
    assert!(!repair(home.path()).unwrap().is_empty());
    assert_eq!(verify(home.path()).problems, vec![]);
}

/// What works in a directory by itself brings it forward too.
#[test]
fn pruning_repairing_and_rebuilding_bring_a_directory_forward() {
    let late = |model: &Model| Timestamp::from_micros(model.now().as_micros() + 1);
    let works: [fn(&Path, Timestamp); 3] = [
        |directory, late| {
            assert!(prune(directory, late, &mut |_, _| {}).unwrap().events > 0);
        },
        |directory, _| assert!(repair(directory).unwrap().is_empty()),
        |directory, _| {
            let (rebuilt, written) = rebuild_and_write(directory, &mut |_, _| {}).unwrap();
            assert_eq!(rebuilt.problems, vec![]);
            // It is kept as it was.
            assert_eq!(version(&written.unwrap()), 5);
        },
    ];
    for work in works {
        let home = tempfile::tempdir().unwrap();
        let model = filled(home.path());
        downgrade(home.path(), 5);
        work(home.path(), late(&model));
        assert_eq!(version(home.path()), 6);
        assert_eq!(verify(home.path()).problems, vec![]);
    }
    // With links in both places.
    let home = tempfile::tempdir().unwrap();
    let model = filled_by(open_gathering(home.path(), 40));
    works[0](home.path(), late(&model));
    assert_eq!(verify(home.path()).problems, vec![]);
}

/// An index that an earlier program's directory lost is not taken for one that is to be made anew.
#[test]
fn an_earlier_directory_that_was_changed_is_refused_and_set_right() {
    let home = tempfile::tempdir().unwrap();
    let model = filled(home.path());
    downgrade(home.path(), 5);
    let connection = Connection::open(home.path().join("reprise.db")).unwrap();
    connection
        .execute_batch("DROP INDEX documents_session")
        .unwrap();
    drop(connection);
    assert_eq!(verify(home.path()).problems.len(), 1);
    let error = SqliteStore::open(home.path(), Options::default()).unwrap_err();
    assert!(matches!(error, OpenError::Flawed { .. }), "{error}");
    assert_eq!(version(home.path()), 5);
    assert_eq!(repair(home.path()).unwrap().flaws.len(), 1);
    agrees(&open(home.path()), &model);
    assert_eq!(verify(home.path()).problems, vec![]);
}

/// One that shares a directory with an older program would change what that does not know.
#[test]
fn a_directory_that_an_older_program_shares_is_not_brought_forward() {
    let home = tempfile::tempdir().unwrap();
    filled(home.path());
    let shared = Options {
        shared: true,
        ..Options::default()
    };
    let other = SqliteStore::open(home.path(), shared).unwrap();
    // As if the other one were older.
    downgrade(home.path(), 5);
    let error = SqliteStore::open(home.path(), shared).unwrap_err();
    assert!(matches!(error, OpenError::OlderBeside { .. }), "{error}");
    assert!(error.hint().contains("stop every process"));
    assert_eq!(version(home.path()), 5);
    other.close();
    SqliteStore::open(home.path(), shared).unwrap().close();
    assert_eq!(version(home.path()), 6);
    assert_eq!(verify(home.path()).problems, vec![]);
}

/// Says how many pages a Message of many clients writes: `cargo test -p store --test it frames -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn frames_of_messages_in_many_sessions() {
    // In a young log several Sessions share a page; the last number is that of a log in which each has its own.
    frames_of_messages(64, 24, &[500, 3_000, 500]);
    // A lone client.
    frames_of_messages(1, 1, &[3_000, 3_000]);
}

fn frames_of_messages(sessions: u64, at_once: u64, commits: &[u64]) {
    let home = tempfile::tempdir().unwrap();
    let store = open(home.path());
    let mut model = Model::new(&store);
    for step in [(0, 0, 0), (1, 0, 0), (2, 0, 60)] {
        model.step(&store, step);
    }
    let documents = model.documents();
    let event = model.events().last().unwrap().clone();
    let find = |kind| documents.iter().find(|known| known.state.kind() == kind);
    let message = find(ResourceKind::Message).unwrap();
    let session = find(ResourceKind::Session).unwrap();
    // While somebody reads, the write-ahead log does not start over.
    let reader = Connection::open(home.path().join("reprise.db")).unwrap();
    reader.execute_batch("BEGIN").unwrap();
    let pinned = "SELECT count(*) FROM events";
    reader.query_row(pinned, [], |_| Ok(())).unwrap();
    let frames = || {
        let log = fs::metadata(home.path().join("reprise.db-wal")).unwrap();
        log.len().saturating_sub(32) / (4_096 + 24)
    };
    let mut made_sessions: Vec<domain::Document> = Vec::new();
    let commit = |sealed: SealedTurn| {
        wait(store.commit(Commit {
            expected: vec![],
            fences: vec![],
            holder: "test".into(),
            blobs: vec![],
            event_count: sealed.events.len() as u64,
            now: model.now(),
            seal: Box::new(move |_| Ok(sealed)),
        }))
        .unwrap();
    };
    let stored = |position: Position, document: &domain::Document| StoredEvent {
        position,
        resource: position,
        links: document.links.clone(),
        bytes: str::from_utf8(&event.bytes)
            .unwrap()
            .replace("00000000", &format!("{:08}", position.0))
            .into_bytes()
            .into(),
    };
    for number in 0..sessions {
        let key = store.head().plus(1);
        let mut made = session.clone();
        (made.key, made.tip, made.version) = (key, key, 1);
        made.id = format!("session_{number:032x}").into();
        made.links.session = Some(key);
        commit(SealedTurn {
            events: vec![stored(key, &made)],
            documents: vec![made.clone().into()],
            ..SealedTurn::default()
        });
        made_sessions.push(made);
    }
    let mut made = 0;
    for commits in commits {
        let (before, began) = (frames(), std::time::Instant::now());
        for _ in 0..*commits {
            let first = store.head().0 + 1;
            let mut sealed = SealedTurn::default();
            for position in (first..first + at_once).map(Position) {
                // Clients take turns, though not in the same order.
                let session = &made_sessions[usize::try_from(made * 37 % sessions).unwrap()];
                let mut document = message.clone();
                (document.key, document.tip, document.version) = (position, position, 1);
                document.id = format!("message_{made:032x}").into();
                document.links.session = Some(session.key);
                sealed.events.push(stored(position, &document));
                sealed.documents.push(document.into());
                made += 1;
            }
            commit(sealed);
        }
        let (took, written) = (began.elapsed(), frames() - before);
        let messages = commits * at_once;
        println!(
            "{written} frames for {messages} messages: {:.3} a message, {took:?}",
            written as f64 / messages as f64
        );
    }
}
