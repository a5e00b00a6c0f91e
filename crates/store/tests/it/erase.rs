//! Erasing content from a log that is in use: nothing of it is left in any file, and everything else is as it was.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use domain::{Blob, FieldEntry, Order, Position, WorkspaceId, WriteField};
use engine::port::suite::{Model, wait};
use engine::port::{BlobStore, Erased, FieldSegment, SegmentStore};
use serde_json::json;

use crate::home::{filled, open, verify};

/// Bytes that no compression makes shorter, so that they can be found in a file.
pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// Finds the files below a directory that hold a piece of some bytes.
pub(crate) fn found_in(directory: &Path, bytes: &[u8]) -> Vec<PathBuf> {
    let piece = &bytes[bytes.len() / 2..bytes.len() / 2 + 48];
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(found_in(&path, bytes));
            continue;
        }
        let content = std::fs::read(&path).unwrap();
        if content.windows(piece.len()).any(|window| window == piece) {
            found.push(path);
        }
    }
    found
}

#[test]
fn what_is_erased_is_in_no_file_and_the_rest_stays() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    filled(&data);
    let store = open(&data);
    let blobs: Vec<Blob> = [4_000, 300_000, 4_000, 300_000]
        .into_iter()
        .zip(1..)
        .map(|(len, seed)| Blob::new(noise(seed, len)))
        .collect();
    for blob in &blobs {
        wait(store.put_blob(blob.clone())).unwrap();
    }
    let (erased, kept) = blobs.split_at(2);
    let segment = FieldSegment {
        field: Position(1),
        after: 0,
        last: 1,
        position: Position(1),
        bytes: erased[0].bytes.clone(),
    };
    wait(store.put_field_segment(segment.clone())).unwrap();
    for blob in &blobs {
        assert_ne!(found_in(&data, &blob.bytes), <[PathBuf; 0]>::default());
    }
    let digests = || erased.iter().map(|blob| blob.digest).collect();
    // Twice: what is gone is left alone.
    for _ in 0..2 {
        let said = wait(store.erase_blobs(Position(1), digests())).unwrap();
        assert_eq!(said, Erased::Gone);
        for blob in erased {
            assert_eq!(wait(store.blob(blob.digest)).unwrap(), None);
            assert_eq!(found_in(&data, &blob.bytes), <[PathBuf; 0]>::default());
        }
        assert_eq!(wait(store.field_segment(Position(1), 0)).unwrap(), None);
    }
    let unharmed = |store: &store::SqliteStore| {
        for blob in kept {
            let found = wait(store.blob(blob.digest)).unwrap();
            assert_eq!(found.as_ref(), Some(&blob.bytes));
        }
    };
    unharmed(&store);
    // It goes on, and so does the next process.
    wait(store.put_blob(Blob::new(noise(9, 4_000)))).unwrap();
    drop(store);
    assert_eq!(verify(&data).problems, vec![]);
    unharmed(&open(&data));
}

/// Begins to read and stays at it, as a slow backup does: what was written before is kept for it.
fn slow_reader(directory: &Path) -> rusqlite::Connection {
    let reader = rusqlite::Connection::open(directory.join("reprise.db")).unwrap();
    reader.execute_batch("BEGIN").unwrap();
    let count = |row: &rusqlite::Row<'_>| row.get::<_, i64>(0);
    reader
        .query_row("SELECT count(*) FROM blobs", [], count)
        .unwrap();
    reader
}

fn notes_of_purges(directory: &Path) -> i64 {
    let reader = rusqlite::Connection::open(directory.join("reprise.db")).unwrap();
    let notes = "SELECT count(*) FROM meta WHERE name LIKE 'erasure%'";
    reader.query_row(notes, [], |row| row.get(0)).unwrap()
}

fn soon(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_slow_reader_delays_an_erasure_and_the_store_says_so_and_comes_back_to_it() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    filled(&data);
    let store = open(&data);
    let blob = Blob::new(noise(1, 4_000));
    wait(store.put_blob(blob.clone())).unwrap();
    let reader = slow_reader(&data);
    let begun = Instant::now();
    let erased = wait(store.erase_blobs(Position(1), vec![blob.digest])).unwrap();
    assert_eq!(erased, Erased::Held);
    assert!(
        begun.elapsed() < Duration::from_secs(8),
        "it waits a bounded time"
    );
    assert_eq!(wait(store.blob(blob.digest)).unwrap(), None);
    assert_ne!(found_in(&data, &blob.bytes), <[PathBuf; 0]>::default());
    // Others write meanwhile, and an erasure of nothing does not pretend that all is gone.
    wait(store.put_blob(Blob::new(noise(2, 4_000)))).unwrap();
    let erased = wait(store.erase_blobs(Position(1), Vec::new())).unwrap();
    assert_eq!(erased, Erased::Held);
    assert_eq!(notes_of_purges(&data), 1);
    drop(reader);
    soon("the bytes go when the reader does", || {
        found_in(&data, &blob.bytes).is_empty()
    });
    soon("nothing is owed any more", || notes_of_purges(&data) == 0);
    let erased = wait(store.erase_blobs(Position(1), Vec::new())).unwrap();
    assert_eq!(erased, Erased::Gone);
}

const CHILD: &str = "REPRISE_STORE_TEST_PURGE";
const STOP: &str = "REPRISE_STORE_TEST_PURGE_STOP";

/// The child: writes words down and a purge of them, and comes as far with it as its parent wants.
#[test]
#[ignore = "a process that another test starts"]
fn child_that_purges_until_it_is_killed() {
    let directory = std::env::var(CHILD).unwrap();
    let directory = Path::new(&directory);
    let store = open(directory);
    let blob = Blob::new(noise(3, 4_000));
    wait(store.put_blob(blob.clone())).unwrap();
    let mut model = Model::new(&store);
    let order = model.workspace();
    model.run(&store, order).unwrap();
    let workspace = model.documents().into_iter().map(|known| known.id.clone());
    let workspace = workspace
        .into_iter()
        .find_map(|id| WorkspaceId::parse(&id).ok())
        .unwrap();
    let members = json!({
        "epoch": 1, "event_type": "COMPACT", "data": {"erased": [blob.digest.to_string()]},
    });
    let order = WriteField {
        room: domain::FieldRoom::Taken,
        workspace_id: workspace,
        name: "notes".to_owned(),
        version: 0,
        entries: vec![FieldEntry {
            members: members.as_object().unwrap().clone(),
            blobs: Vec::new(),
        }],
    };
    let committed = model
        .run(&store, Order::WriteField(Box::new(order)))
        .unwrap();
    let mut out = std::io::stdout().lock();
    writeln!(out, "committed").unwrap();
    if std::env::var(STOP).as_deref() == Ok("committed") {
        park();
    }
    let _reader = slow_reader(directory);
    let field = committed.first;
    let erased = wait(store.erase_blobs(field, vec![blob.digest])).unwrap();
    assert_eq!(erased, Erased::Held);
    writeln!(out, "held").unwrap();
    park();
}

fn park() -> ! {
    loop {
        std::thread::park();
    }
}

#[test]
fn what_a_killed_process_owed_of_a_purge_is_erased_by_the_next_start() {
    for reached in ["committed", "held"] {
        let home = tempfile::tempdir().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--ignored",
                "--exact",
                "erase::child_that_purges_until_it_is_killed",
                "--nocapture",
            ])
            .env(CHILD, home.path())
            .env(STOP, reached)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(
            lines
                .map_while(Result::ok)
                .any(|line| line.ends_with(reached))
        );
        child.kill().unwrap();
        child.wait().unwrap();
        let words = noise(3, 4_000);
        assert_ne!(found_in(home.path(), &words), <[PathBuf; 0]>::default());
        let store = open(home.path());
        assert_eq!(
            found_in(home.path(), &words),
            <[PathBuf; 0]>::default(),
            "{reached}"
        );
        assert_eq!(notes_of_purges(home.path()), 0);
        store.close();
        assert_eq!(verify(home.path()).problems, vec![]);
    }
}
