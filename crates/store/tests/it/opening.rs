//! Who may open a directory, and what they may do.

use std::fs;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use engine::port::suite::{Model, agrees, wait};
use engine::port::{ApiKey, BlobStore, CommitError, KeyStore, LeaseOwners, LeaseStore, Store};
use store::tamper::Tamper;
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
    fs::write(home.path().join("format"), "5\n").unwrap();
    let refusals = [
        SqliteStore::open(home.path(), Options::default()).unwrap_err(),
        SqliteStore::open_reader(home.path()).unwrap_err(),
    ];
    for error in refusals {
        assert!(
            matches!(error, OpenError::NewerFormat { found: 5, .. }),
            "{error:?}"
        );
        assert!(error.hint().contains("newer program"));
    }
    fs::write(home.path().join("format"), "4\n").unwrap();
    open(home.path()).close();
}

#[test]
fn the_format_that_was_never_released_is_refused_with_advice() {
    let home = tempfile::tempdir().unwrap();
    open(home.path()).close();
    fs::write(home.path().join("format"), "1\n").unwrap();
    let refusals = [
        SqliteStore::open(home.path(), Options::default()).unwrap_err(),
        SqliteStore::open_reader(home.path()).unwrap_err(),
    ];
    for error in refusals {
        assert!(
            matches!(error, OpenError::OlderFormat { found: 1, .. }),
            "{error:?}"
        );
        assert!(error.hint().contains("log export"));
    }
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
    assert!(wait(reader.take_over(LeaseOwners::Everybody, "me".into())).is_err());

    let key = ApiKey::new("key", canon::sha256(b"text"), "me", ["*"], model.now());
    assert!(wait(reader.put_api_key(key.clone())).is_err());
    assert_eq!(wait(server.api_key(key.digest)).unwrap(), None);
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

#[test]
fn the_write_ahead_log_moves_into_the_database_while_the_store_is_open() {
    let home = tempfile::tempdir().unwrap();
    let store = open(home.path());
    for number in 0..80u32 {
        wait(store.put_blob(blob(number))).unwrap();
    }
    // Eight megabytes were written and nothing more is asked for: a pass must come by itself.
    let database = home.path().join("reprise.db");
    let started = Instant::now();
    while fs::metadata(&database).unwrap().len() < 4_000_000 {
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "no pass was made"
        );
        std::thread::yield_now();
    }
}

/// Content that cannot be compressed. The store takes the caller's word for a digest, which saves making and hashing
/// all this.
fn blob(number: u32) -> domain::Blob {
    static BYTES: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let digests = (0..3_125u32).map(|number| canon::sha256(&number.to_be_bytes()));
        digests.flat_map(|digest| *digest.as_bytes()).collect()
    });
    domain::Blob {
        digest: canon::sha256(&number.to_be_bytes()),
        bytes: BYTES.clone(),
    }
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
    let mut longest = 0;
    for number in 0..2_400 {
        wait(store.put_blob(blob(number))).unwrap();
        longest = longest.max(
            fs::metadata(home.path().join("reprise.db-wal"))
                .unwrap()
                .len(),
        );
    }
    // 240 MB went through it.
    assert!(longest < 75_000_000, "{longest} bytes");
}

#[test]
fn each_log_has_a_name_and_a_secret_of_its_own() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (one, other) = (open(one.path()), open(other.path()));
    for store in [&one, &other] {
        let name = store.name().log();
        assert_eq!(name.len(), 8, "{name}");
        assert!(
            name.bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit()),
            "{name}"
        );
    }
    assert_ne!(one.name(), other.name());
    assert_ne!(one.secret(), other.secret());
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

/// What a start only warns about must not keep it from starting: the events behind a damaged block are worked with.
#[test]
fn a_damaged_block_among_the_newest_events_keeps_nobody_from_starting() {
    let home = tempfile::tempdir().unwrap();
    let model = filled(home.path());
    let tables = Tamper::open(home.path());
    tables.run("DELETE FROM claims");
    let newest = model.events().last().unwrap().position;
    let earlier = model.events().iter().rev();
    let earlier = earlier.map(|event| event.position);
    // The newest block says how far the log has come.
    let damaged = earlier
        .filter(|position| position.0 + 8 < newest.0)
        .find(|position| {
            !tables
                .events(*position)
                .iter()
                .any(|event| event.position == newest)
        });
    tables.raw(damaged.unwrap(), |bytes| {
        if let Some(byte) = bytes.last_mut() {
            *byte ^= 1;
        }
    });
    drop(tables);
    open(home.path()).close();
}
