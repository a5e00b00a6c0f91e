//! Where the files are and who may read them: a directory that goes away, one that is open to others, and a disk that
//! is slow.

#![cfg(unix)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use domain::Blob;
use engine::port::suite::{Model, agrees, wait};
use engine::port::{BlobStore, CommitError, Store};

use crate::home::{filled, open, verify};

#[test]
fn u26_a_directory_that_is_moved_or_removed_takes_no_writes() {
    let home = tempfile::tempdir().unwrap();
    let (data, away) = (home.path().join("data"), home.path().join("away"));
    let store = open(&data);
    let mut model = Model::new(&store);
    let order = model.workspace();
    model.run(&store, order).unwrap();
    wait(store.health()).unwrap();

    fs::rename(&data, &away).unwrap();
    let fault = wait(store.health()).unwrap_err();
    assert!(fault.is_unavailable(), "{fault}");
    let order = model.session();
    let error = model.run(&store, order).unwrap_err();
    assert!(
        matches!(&error, CommitError::Fault(fault) if fault.is_unavailable()),
        "{error}"
    );
    for size in [10, 300_000] {
        let fault = wait(store.put_blob(Blob::new(vec![7; size]))).unwrap_err();
        assert!(fault.is_unavailable(), "{fault}");
    }
    assert!(!data.exists(), "it was made again");
    // Another directory in its place is not it.
    fs::create_dir(&data).unwrap();
    fs::write(data.join("lock"), "").unwrap();
    fs::write(data.join("reprise.db"), "").unwrap();
    assert!(wait(store.health()).is_err());
    fs::remove_dir_all(&data).unwrap();

    fs::rename(&away, &data).unwrap();
    wait(store.health()).unwrap();
    let order = model.session();
    model.run(&store, order).unwrap();
    agrees(&store, &model);
    store.close();
    assert_eq!(verify(&data).problems, vec![]);

    let store = open(&data);
    fs::remove_dir_all(&data).unwrap();
    assert!(wait(store.health()).is_err());
    let order = model.append(1);
    assert!(model.run(&store, order).is_err());
    store.close();
    assert!(!data.exists());
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn everything(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(everything(&path));
        }
        found.push(path);
    }
    found
}

#[test]
fn u26_files_are_private_whatever_the_umask_and_an_open_directory_is_closed() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    fs::create_dir(&data).unwrap();
    fs::set_permissions(&data, fs::Permissions::from_mode(0o755)).unwrap();
    filled(&data);
    let store = open(&data);
    let mut model = Model::with_documents(&store, 5_000, vec![]);
    let order = model.workspace();
    model.run(&store, order).unwrap();
    wait(store.put_blob(Blob::new(vec![3; 300_000]))).unwrap();
    assert_eq!(mode(&data), 0o700);
    assert!(data.join("reprise.db-wal").exists());
    for path in everything(&data) {
        assert_eq!(mode(&path) & 0o077, 0, "{}", path.display());
    }
    store.close();
    // As an older program left it.
    for name in ["reprise.db", "format", "lock"] {
        fs::set_permissions(data.join(name), fs::Permissions::from_mode(0o644)).unwrap();
    }
    open(&data).close();
    let out = home.path().join("out");
    let evidence = store::Evidence {
        content: store::Content::Whole,
        keys: None,
        checkpoint: None,
        seal: None,
    };
    store::export(&data, &out, evidence, &mut |_, _| {}).unwrap();
    for path in everything(&data).into_iter().chain(everything(&out)) {
        assert_eq!(mode(&path) & 0o077, 0, "{}", path.display());
    }
    assert_eq!(mode(&out), 0o700);
}

/// Large blobs have threads of their own: a disk that does not answer holds up no read.
#[test]
fn uploads_to_a_slow_disk_hold_up_no_read() {
    let home = tempfile::tempdir().unwrap();
    let model = filled(home.path());
    let store = open(home.path());
    let blobs: Vec<Blob> = (0..4)
        .map(|number| Blob::new(vec![number; 200_000]))
        .collect();
    let mut pipes = Vec::new();
    for blob in &blobs {
        // Whoever opens a pipe to write waits until somebody reads it.
        let pipe = store::tamper::place_of_unnamed(home.path(), &blob.digest);
        fs::create_dir_all(pipe.parent().unwrap()).unwrap();
        let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        pipes.push(pipe);
    }
    std::thread::scope(|scope| {
        let uploads: Vec<_> = blobs
            .iter()
            .map(|blob| scope.spawn(|| wait(store.put_blob(blob.clone()))))
            .collect();
        // As many as there are threads wait for the disk, and every reader answers.
        agrees(&store, &model);
        assert!(uploads.iter().all(|upload| !upload.is_finished()));
        for pipe in &pipes {
            let pipe = pipe.clone();
            scope.spawn(move || fs::read(pipe));
        }
        for upload in uploads {
            // A pipe cannot be synced: the writes fail, and they end.
            assert!(upload.join().unwrap().is_err());
        }
    });
}
