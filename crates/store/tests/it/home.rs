//! A directory with a log in it that has some of everything.

use std::path::Path;

use domain::ResourceKind;
use engine::port::suite::Model;
use store::{Options, Report, SqliteStore};

pub(crate) fn open(directory: &Path) -> SqliteStore {
    SqliteStore::open(directory, Options::default()).unwrap()
}

/// The same, with links that are moved when so many have gathered.
pub(crate) fn open_gathering(directory: &Path, recent_max: u64) -> SqliteStore {
    let options = Options {
        recent_max,
        ..Options::default()
    };
    SqliteStore::open(directory, options).unwrap()
}

/// Fills a new directory. Every kind of resource is there, open ones and finished ones, blobs of each size.
pub(crate) fn filled(directory: &Path) -> Model {
    filled_by(open(directory))
}

/// The same through a store that is open.
pub(crate) fn filled_by(store: SqliteStore) -> Model {
    let mut model = Model::new(&store);
    let every_kind = (0..20).map(|what| (what, 0, 1));
    let again = (0..20).map(|what| (what, 1, 150));
    let more = (1..8).map(|what| (what, 2, 7));
    for step in every_kind.chain(again).chain(more) {
        model.step(&store, step);
    }
    let documents = model.documents();
    // Keys change by no command.
    let kinds = ResourceKind::ALL.into_iter();
    for kind in kinds.filter(|kind| *kind != ResourceKind::Key) {
        assert!(
            documents.iter().any(|known| known.state.kind() == kind),
            "{kind:?}"
        );
    }
    assert!(documents.iter().any(|known| known.state.is_open()));
    store.close();
    model
}

/// Puts a directory back to what the last program of an earlier version of the tables left: links stand where they are found
/// by, and an index of documents lists the Messages of a Session.
pub(crate) fn downgrade(directory: &Path, version: i64) {
    let connection = rusqlite::Connection::open(directory.join("reprise.db")).unwrap();
    connection
        .execute_batch(
            "INSERT INTO event_links SELECT link, number FROM recent_links WHERE kind = 0; \
             DROP TABLE recent_links; DROP TABLE session_messages; DROP INDEX documents_session; \
             CREATE INDEX documents_session ON documents(session, kind) WHERE session IS NOT NULL; \
             DELETE FROM projections WHERE name = 'session messages'",
        )
        .unwrap();
    let set = connection.pragma_update(None, "user_version", version);
    set.unwrap();
}

pub(crate) fn verify(directory: &Path) -> Report {
    store::verify(directory, &mut |_, _| {}).unwrap()
}

/// Changes the database behind the store's back.
pub(crate) fn tamper(directory: &Path, sql: &str) {
    let connection = rusqlite::Connection::open(directory.join("reprise.db")).unwrap();
    let changed = connection.execute(sql, []).unwrap();
    assert_eq!(changed, 1, "{sql}");
}
