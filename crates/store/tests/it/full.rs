//! A disk without room: nothing half-written, reads go on, and so do writes once there is room again.

use std::fs;
use std::path::Path;
use std::process::Command;

use engine::port::suite::{Model, agrees, wait};
use engine::port::{BlobStore, CommitError, Store};
use store::{Options, SqliteStore};

use crate::home::{open, verify};

/// Commits until there is no room.
fn fill(store: &SqliteStore, model: &mut Model) {
    for _ in 0..2_000 {
        let order = model.append(3_000);
        match model.run(store, order) {
            Ok(_) => {}
            Err(CommitError::Fault(fault)) if fault.is_full() => return,
            Err(error) => panic!("{error:?}"),
        }
    }
    panic!("there was always room");
}

fn started(store: &SqliteStore) -> Model {
    let mut model = Model::new(store);
    let order = model.workspace();
    model.run(store, order).unwrap();
    let order = model.session();
    model.run(store, order).unwrap();
    model
}

#[test]
fn a_full_database_refuses_commits_whole_and_reads_go_on() {
    let home = tempfile::tempdir().unwrap();
    let options = Options {
        pages_max: Some(60),
        ..Options::default()
    };
    let store = SqliteStore::open(home.path(), options).unwrap();
    let mut model = started(&store);
    fill(&store, &mut model);
    agrees(&store, &model);
    // A small turn may still fit, a large one does not; neither leaves half of itself.
    for _ in 0..3 {
        let order = model.append(4_000);
        let fault = match model.run(&store, order) {
            Err(CommitError::Fault(fault)) => fault,
            other => panic!("{other:?}"),
        };
        assert!(fault.is_full(), "{fault}");
    }
    let fault = wait(store.put_blob(domain::Blob::new(noise()))).unwrap_err();
    assert!(fault.is_full(), "{fault}");
    agrees(&store, &model);
    store.close();
    assert_eq!(verify(home.path()).problems, vec![]);

    let store = open(home.path());
    agrees(&store, &model);
    let order = model.append(3_000);
    model.run(&store, order).unwrap();
    agrees(&store, &model);
    store.close();
    assert_eq!(verify(home.path()).problems, vec![]);
}

/// A small file system of its own, unmounted at the end.
struct Tmpfs<'a>(&'a Path);

impl<'a> Tmpfs<'a> {
    fn mount(at: &'a Path) -> Option<Self> {
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=3m", "tmpfs"])
            .arg(at)
            .output();
        mount.ok()?.status.success().then_some(Self(at))
    }
}

impl Drop for Tmpfs<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0).status();
    }
}

#[test]
fn a_full_disk_refuses_commits_until_there_is_room_again() {
    let home = tempfile::tempdir().unwrap();
    let Some((disk, _running)) = testing::mounted(Tmpfs::mount(home.path())) else {
        return;
    };
    let data = home.path().join("data");
    let store = open(&data);
    let mut model = started(&store);
    let ballast = home.path().join("ballast");
    fs::write(&ballast, vec![0; 1 << 20]).unwrap();
    for _ in 0..2 {
        fill(&store, &mut model);
        agrees(&store, &model);
        let large = domain::Blob::new(vec![1; 2 << 20]);
        let fault = wait(store.put_blob(large.clone())).unwrap_err();
        assert!(fault.is_full(), "{fault}");
        assert_eq!(wait(store.blob(large.digest)).unwrap(), None);
        let said = wait(store.health()).unwrap_err();
        assert!(said.is_full(), "{said}");
        if !ballast.exists() {
            break;
        }
        fs::remove_file(&ballast).unwrap();
        let order = model.append(3_000);
        model.run(&store, order).unwrap();
        wait(store.health()).unwrap();
        agrees(&store, &model);
    }
    drop(store);
    let report = verify(&data);
    assert_eq!(report.problems, vec![]);
    assert_eq!(report.events, model.events().len() as u64);
    drop(disk);
}

/// Bytes that cannot be compressed.
fn noise() -> Vec<u8> {
    let digests = (0..3_125u32).map(|number| canon::sha256(&number.to_be_bytes()));
    digests.flat_map(|digest| *digest.as_bytes()).collect()
}
