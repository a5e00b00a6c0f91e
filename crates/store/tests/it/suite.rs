//! The suite of the port, run by SQLite.

use std::sync::Arc;

use engine::port::Store;
use engine::port::suite::Subject;
use store::{Options, SqliteStore};
use tempfile::TempDir;

struct SqliteSubject {
    store: Arc<SqliteStore>,
    home: TempDir,
}

impl SqliteSubject {
    fn new() -> Self {
        Self::at(tempfile::tempdir().unwrap())
    }

    fn at(home: TempDir) -> Self {
        let store = SqliteStore::open(home.path(), Options::default()).unwrap();
        Self {
            store: Arc::new(store),
            home,
        }
    }
}

impl Subject for SqliteSubject {
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store) as Arc<dyn Store>
    }

    fn reopen(self) -> Self {
        Arc::into_inner(self.store)
            .expect("nobody else has the store")
            .close();
        Self::at(self.home)
    }
}

engine::store_suite!(SqliteSubject::new);
