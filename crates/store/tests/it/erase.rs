//! Erasing content from a log that is in use: nothing of it is left in any file, and everything else is as it was.

use std::path::{Path, PathBuf};

use domain::{Blob, Position};
use engine::port::suite::wait;
use engine::port::{BlobStore, FieldSegment, SegmentStore};

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
        wait(store.erase_blobs(Position(1), digests())).unwrap();
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
