//! Who may open a directory, and what they may do.

use std::fs;

use engine::port::suite::{Model, agrees, wait};
use engine::port::{ApiKey, CommitError, Store};
use store::{OpenError, Options, SqliteStore};

use crate::home::{filled, open};

#[test]
fn a_second_server_is_refused_and_told_who_is_there() {
    let home = tempfile::tempdir().unwrap();
    let first = open(home.path());
    let error = SqliteStore::open(home.path(), Options::default()).unwrap_err();
    assert!(
        matches!(error, OpenError::Locked { pid: Some(pid), .. } if pid == std::process::id()),
        "{error:?}"
    );
    assert!(
        error
            .to_string()
            .ends_with(&format!("is in use by process {}", std::process::id()))
    );
    assert!(error.hint().contains("stop that process"));
    first.close();
    open(home.path()).close();
}

#[test]
fn a_newer_format_is_refused_with_advice() {
    let home = tempfile::tempdir().unwrap();
    open(home.path()).close();
    fs::write(home.path().join("format"), "2\n").unwrap();
    let refusals = [
        SqliteStore::open(home.path(), Options::default()).unwrap_err(),
        SqliteStore::open_reader(home.path()).unwrap_err(),
    ];
    for error in refusals {
        assert!(
            matches!(error, OpenError::NewerFormat { found: 2, .. }),
            "{error:?}"
        );
        assert!(error.hint().contains("newer program"));
    }
    fs::write(home.path().join("format"), "1\n").unwrap();
    open(home.path()).close();
}

#[test]
fn a_reader_makes_no_log() {
    let home = tempfile::tempdir().unwrap();
    let error = SqliteStore::open_reader(home.path()).unwrap_err();
    assert!(matches!(error, OpenError::NoLog { .. }), "{error:?}");
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
}

#[test]
fn a_reader_beside_the_server_reads_and_stores_keys_but_commits_nothing() {
    let home = tempfile::tempdir().unwrap();
    let mut model = filled(home.path());
    let server = open(home.path());
    let reader = SqliteStore::open_reader(home.path()).unwrap();
    assert_eq!(reader.name(), server.name());
    agrees(&reader, &model);

    let order = model.append(1);
    let decision = model.decide(order).unwrap();
    let error = wait(reader.commit(model.commit_of(&decision))).unwrap_err();
    assert!(matches!(error, CommitError::Fault(_)), "{error:?}");
    for size in [1, 200_000] {
        let blob = domain::Blob::new(vec![9; size]);
        assert!(wait(reader.put_blob(blob.clone())).is_err());
        assert_eq!(wait(reader.blob(blob.digest)).unwrap(), None);
    }
    assert!(wait(reader.take_over("me".into())).is_err());

    let key = ApiKey {
        id: "key".to_owned(),
        digest: canon::sha256(b"text"),
        actor: "me".to_owned(),
        workspaces: None,
        scopes: vec!["*".to_owned()],
        created_at: model.now(),
        revoked_at: None,
    };
    wait(reader.put_api_key(key.clone())).unwrap();
    assert_eq!(wait(server.api_key(key.digest)).unwrap(), Some(key));
    reader.close();
    let order = model.append(1);
    model.run(&server, order).unwrap();
    agrees(&server, &model);
}

#[test]
fn a_clean_stop_leaves_everything_in_the_database_file() {
    let home = tempfile::tempdir().unwrap();
    let store = open(home.path());
    let mut model = Model::new(&store);
    let order = model.workspace();
    model.run(&store, order).unwrap();
    let log = home.path().join("reprise.db-wal");
    assert!(fs::metadata(&log).unwrap().len() > 0);
    store.close();
    assert!(!log.exists());
}

/// One client without a pause, more than the log may hold: passes run beside it, and in the end the writer helps.
#[test]
fn the_write_ahead_log_stays_bounded_under_load() {
    let home = tempfile::tempdir().unwrap();
    let options = Options {
        full_sync: false,
        ..Options::default()
    };
    let store = SqliteStore::open(home.path(), options).unwrap();
    let mut number = 0u32;
    let mut longest = 0;
    for _ in 0..2_400 {
        number += 1;
        // The store takes the caller's word for a digest, which saves hashing all this.
        let blob = domain::Blob {
            digest: canon::sha256(&number.to_be_bytes()),
            bytes: vec![0; 100_000],
        };
        wait(store.put_blob(blob)).unwrap();
        longest = longest.max(
            fs::metadata(home.path().join("reprise.db-wal"))
                .unwrap()
                .len(),
        );
    }
    // 240 MB went through it.
    assert!(longest < 75_000_000, "{longest} bytes");
}

#[cfg(unix)]
#[test]
fn only_the_owner_can_look_into_a_new_directory() {
    use std::os::unix::fs::PermissionsExt;
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("deep/data");
    open(&directory).close();
    let mode = fs::metadata(&directory).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0, "{mode:o}");
}
