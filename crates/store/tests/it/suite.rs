//! The suite of the port, run by SQLite.

use std::sync::Arc;

use engine::port::Store;
use engine::port::suite::{SharedSubject, Subject};
use store::{Options, SqliteStore};
use tempfile::TempDir;

struct SqliteSubject {
    store: Arc<SqliteStore>,
    options: Options,
    home: TempDir,
}

impl SqliteSubject {
    fn new() -> Self {
        Self::at(tempfile::tempdir().unwrap(), Options::default())
    }

    /// Links are moved after nearly every commit.
    fn gathering_few() -> Self {
        let options = Options {
            recent_max: 5,
            ..Options::default()
        };
        Self::at(tempfile::tempdir().unwrap(), options)
    }

    fn shared() -> Self {
        let options = Options {
            shared: true,
            // Each moves what the other has written.
            recent_max: 3,
            ..Options::default()
        };
        Self::at(tempfile::tempdir().unwrap(), options)
    }

    fn at(home: TempDir, options: Options) -> Self {
        let store = SqliteStore::open(home.path(), options).unwrap();
        Self {
            store: Arc::new(store),
            options,
            home,
        }
    }
}

impl SharedSubject for SqliteSubject {
    fn second_handle(&self) -> Arc<dyn Store> {
        Arc::new(SqliteStore::open(self.home.path(), self.options).unwrap())
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
        Self::at(self.home, self.options)
    }
}

engine::store_suite!(SqliteSubject::new);

/// Each behaviour again, with links that have gathered and links that were moved.
mod gathering {
    use super::SqliteSubject;

    engine::store_suite!(SqliteSubject::gathering_few);
}

/// Each behaviour again, on a directory that others may have open too, and what holds when they do.
mod shared {
    use super::SqliteSubject;

    engine::store_suite!(shared SqliteSubject::shared);
}
