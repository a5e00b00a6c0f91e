//! Repair: what cannot be read becomes headers that name what stood there, and the rest of the log can be checked again.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use canon::{Digest, sha256};
use domain::{Event, Position, Timestamp, pruned_digest};
use engine::port::Store;
use engine::port::suite::{Model, wait};
use store::tamper::Tamper;
use store::{
    Audit, OpenError, Repair, SqliteStore, prune, rebuild, rebuild_and_write, repair, repairable,
};

use crate::home::{filled, open, verify};
use crate::rebuilding::{flip, folded, issued, tour};

const CHILD: &str = "REPRISE_REPAIR_TEST_CHILD";

pub(crate) fn copied(from: &Path, to: &Path) -> PathBuf {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let place = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copied(&entry.path(), &place);
        } else {
            fs::copy(entry.path(), place).unwrap();
        }
    }
    to.to_owned()
}

/// Every file of a folder with its digest, except the lock, which names its holder, and what SQLite keeps for itself.
fn content(folder: &Path) -> BTreeMap<PathBuf, Digest> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(content(&path));
        } else if !path.ends_with("lock") && !path.ends_with("reprise.db-shm") {
            found.insert(path.clone(), sha256(&fs::read(&path).unwrap()));
        }
    }
    found
}

/// Repairs, and shows that everything that is left can be checked and used.
#[track_caller]
fn repaired(data: &Path) -> Repair {
    let before = content(data);
    let would = repairable(data).unwrap();
    assert_eq!(content(data), before, "a dry run changes nothing");
    assert_eq!(would.aside, None);
    let did = repair(data).unwrap();
    assert_eq!((&would.events, &would.blobs), (&did.events, &did.blobs));
    let report = verify(data);
    assert_eq!(report.problems, vec![]);
    assert_eq!(report.repaired, did.events.len() as u64);
    assert_eq!(report.lost_blobs, did.blobs.len() as u64);
    let rebuilt = rebuild(data, &mut |_, _| {}).unwrap();
    assert_eq!(rebuilt.problems, vec![]);
    assert_eq!(rebuilt.documents, report.documents);
    // Every position is still there, and each header says what stood in its place.
    let events: BTreeMap<Position, Event> = Tamper::open(data)
        .all_events()
        .iter()
        .map(|stored| (stored.position, Event::parse(&stored.bytes).unwrap()))
        .collect();
    for unreadable in &did.events {
        let header = &events[&unreadable.position];
        assert_eq!(pruned_digest(&header.payload), Some(unreadable.stored));
        assert_eq!(header.is_lost(), unreadable.kind.is_none());
    }
    let again = repair(data).unwrap();
    assert_eq!(again, Repair::default(), "once is enough");
    did
}

/// Work goes on in a log that was repaired.
#[track_caller]
fn goes_on(data: &Path, model: &Model) {
    let store = open(data);
    let mut more = Model::with_documents(&store, 900_000, model.documents());
    let order = more.append(5_000);
    more.run(&store, order).unwrap();
    store.close();
    assert_eq!(verify(data).problems, vec![]);
}

/// U15: whichever block is damaged, its events become headers, those that continue it with it, and the log verifies.
#[test]
fn u15_any_damaged_block_is_replaced_and_the_log_verifies() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    let model = filled(&data);
    let head = model.events().last().unwrap().position;
    let mut firsts: Vec<Position> = model
        .events()
        .iter()
        .map(|event| Tamper::open(&data).events(event.position)[0].position)
        .collect();
    firsts.dedup();
    assert!(firsts.len() > 5, "{}", firsts.len());
    for (at, first) in firsts.into_iter().enumerate() {
        let damaged = copied(&data, &home.path().join(format!("damaged-{at}")));
        let block = Tamper::open(&damaged).events(first);
        Tamper::open(&damaged).raw(first, |bytes| {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            bytes.truncate(bytes.len() - 1);
        });
        assert_ne!(verify(&damaged).problems, vec![], "block {first:?}");
        let did = repaired(&damaged);
        let positions: Vec<Position> = did.events.iter().map(|found| found.position).collect();
        for event in block {
            assert!(positions.contains(&event.position), "{first:?}");
        }
        assert!(positions.iter().all(|position| *position <= head));
        let aside = did.aside.unwrap();
        assert!(aside.join(format!("block-{}", first.0)).is_file());
        goes_on(&damaged, &model);
        fs::remove_dir_all(&damaged).unwrap();
    }
}

/// U15: an event that is nested too deeply to be read, as a server could once be made to store, keeps its envelope; one of
/// which nothing can be read leaves its place.
#[test]
fn u15_events_that_cannot_be_decoded_become_headers() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    let model = filled(&data);
    for (at, stored) in model.events().iter().enumerate().step_by(3) {
        let event = Event::parse(&stored.bytes).unwrap();
        let text = String::from_utf8(stored.bytes.to_vec()).unwrap();
        let payload = String::from_utf8(canon::jcs(&(*event.payload).clone().into())).unwrap();
        let deep = format!("{{\"x\":{}{}}}", "[".repeat(300), "]".repeat(300));
        let deep = text.replacen(&payload, &deep, 1).into_bytes();
        for (bytes, keeps) in [(deep, true), (b"{\"actor\":\xff".to_vec(), false)] {
            let damaged = copied(&data, &home.path().join(format!("damaged-{at}-{keeps}")));
            Tamper::open(&damaged).event(stored.position, |event| {
                event.bytes = bytes.clone().into();
            });
            assert_ne!(verify(&damaged).problems, vec![]);
            let did = repaired(&damaged);
            assert_eq!(did.events.len(), 1, "{did:#?}");
            assert_eq!(did.events[0].position, stored.position);
            assert_eq!(did.events[0].stored, sha256(&bytes));
            let kind = keeps.then(|| event.kind.clone());
            assert_eq!(did.events[0].kind, kind, "{text}");
            let file = format!("event-{}", stored.position.0);
            assert_eq!(fs::read(did.aside.unwrap().join(file)).unwrap(), bytes);
            goes_on(&damaged, &model);
            fs::remove_dir_all(&damaged).unwrap();
        }
    }
}

/// Two events of one resource, one after the other, and a block: what follows a gap is taken as it is.
#[test]
fn several_damages_are_repaired_at_once() {
    let home = tempfile::tempdir().unwrap();
    let model = filled(home.path());
    let tamper = Tamper::open(home.path());
    let garbage = |position: Position| {
        tamper.event(position, |event| event.bytes = b"junk".to_vec().into());
    };
    let task = model
        .events()
        .iter()
        .filter(|event| event.links.task.is_some());
    let some: Vec<Position> = task
        .map(|event| event.position)
        .step_by(4)
        .take(6)
        .collect();
    some.iter().copied().for_each(garbage);
    let last = model.events().last().unwrap().position;
    tamper.raw(last, |bytes| bytes.truncate(3));
    drop(tamper);
    let did = repaired(home.path());
    let positions: Vec<Position> = did.events.iter().map(|found| found.position).collect();
    assert!(some.iter().all(|position| positions.contains(position)));
    goes_on(home.path(), &model);
}

/// A Task that was pruned and then lost some of its headers is still one that was pruned.
#[test]
fn headers_of_pruning_that_are_lost_are_counted_again() {
    let home = tempfile::tempdir().unwrap();
    let model = filled(home.path());
    let after = Timestamp::from_micros(model.now().as_micros() + 1);
    prune(home.path(), after, &mut |_, _| {}).unwrap();
    let pruned = verify(home.path()).pruned;
    let tamper = Tamper::open(home.path());
    let headers: Vec<Position> = tamper
        .all_events()
        .iter()
        .filter(|stored| Event::parse(&stored.bytes).unwrap().is_header())
        .map(|stored| stored.position)
        .collect();
    assert!(headers.len() > 4);
    tamper.raw(headers[headers.len() / 2], |bytes| bytes.truncate(3));
    drop(tamper);
    repaired(home.path());
    assert!(verify(home.path()).pruned < pruned);
}

/// Blobs whose bytes are not theirs are taken out, small ones and files, and what names them is told apart from what lost
/// its content otherwise.
#[test]
fn blobs_that_are_damaged_are_taken_out_and_noted() {
    let home = tempfile::tempdir().unwrap();
    filled(home.path());
    let (mut files, mut small) = (0, 0);
    for digest in Audit::open(home.path()).unwrap().blobs().unwrap() {
        let name = digest.hex();
        let file = home.path().join("blobs").join(&name[..2]).join(&name);
        if file.exists() {
            files += 1;
            fs::write(&file, b"other").unwrap();
        } else if small < 5 {
            small += 1;
            assert!(Tamper::open(home.path()).blob(&digest, |bytes| bytes.push(0)));
        }
    }
    assert!(files > 0);
    let did = repaired(home.path());
    assert_eq!(did.blobs.len(), files + small, "{did:?}");
    // Only what a repair noted is excused.
    let left = Audit::open(home.path()).unwrap().blobs().unwrap();
    assert!(did.blobs.iter().all(|digest| !left.contains(digest)));
}

#[test]
fn headers_of_a_repair_that_were_tampered_with_are_named() {
    let home = tempfile::tempdir().unwrap();
    filled(home.path());
    Tamper::open(home.path()).raw(Position(9), |bytes| bytes.truncate(3));
    let did = repaired(home.path());
    let position = did.events[0].position;
    let original = Tamper::open(home.path()).events(position)[0].bytes.to_vec();
    let set = |bytes: &[u8]| {
        Tamper::open(home.path()).event(position, |event| event.bytes = bytes.to_vec().into());
    };
    let mut header = Event::parse(&original).unwrap();
    header.payload = Event::lost(&header.id, header.created_at, sha256(b"other")).payload;
    set(&header.to_bytes());
    let problems = verify(home.path()).problems;
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].to_string().contains("not the header"));
    set(&original);
    assert_eq!(verify(home.path()).problems, vec![]);
    // One that no repair made is not believed.
    let connection = rusqlite::Connection::open(home.path().join("reprise.db")).unwrap();
    let delete = "DELETE FROM repaired WHERE position = ?1";
    let position = i64::try_from(position.0).unwrap();
    assert_eq!(connection.execute(delete, [position]).unwrap(), 1);
    drop(connection);
    let problems = verify(home.path()).problems;
    assert!(
        problems
            .iter()
            .any(|problem| problem.to_string().contains("no repair left it")),
        "{problems:?}"
    );
}

#[test]
fn a_log_that_somebody_works_in_is_not_repaired() {
    let home = tempfile::tempdir().unwrap();
    filled(home.path());
    let store: SqliteStore = open(home.path());
    Tamper::open(home.path()).raw(Position(9), |bytes| bytes.truncate(3));
    let error = repair(home.path()).unwrap_err();
    assert!(
        matches!(error, store::AuditError::Open(OpenError::Locked { .. })),
        "{error}"
    );
    assert!(wait(store.health()).is_ok());
    store.close();
    repaired(home.path());
}

#[test]
#[ignore = "a process that another test starts"]
fn child_that_repairs() {
    repair(Path::new(&std::env::var(CHILD).unwrap())).unwrap();
}

/// Killed at any moment, a repair has done all or nothing, and the next one ends at a sound log.
#[test]
fn a_repair_that_is_killed_has_done_all_or_nothing() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    filled(&data);
    let tamper = Tamper::open(&data);
    for position in [4, 9, 30] {
        tamper.raw(Position(position), |bytes| bytes.truncate(3));
    }
    drop(tamper);
    let before = verify(&data).problems;
    let (mut untouched, mut done) = (0, 0);
    for millis in (0..60).step_by(3) {
        let victim = copied(&data, &home.path().join(format!("victim-{millis}")));
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "repair::child_that_repairs"])
            .env(CHILD, &victim)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(millis));
        child.kill().unwrap();
        child.wait().unwrap();
        let problems = verify(&victim).problems;
        if problems.is_empty() {
            done += 1;
        } else {
            assert_eq!(problems, before);
            untouched += 1;
            repaired(&victim);
        }
        fs::remove_dir_all(&victim).unwrap();
    }
    assert!(untouched > 0, "{done} were done");
}

/// U15: an index that does not say what its table says is made again; the log was never in it.
#[test]
fn u15_damaged_indexes_are_made_again() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path();
    filled(data);
    Tamper::open(data).swap_indexes("documents_kind", "documents_open");
    let problems = verify(data).problems;
    assert!(!problems.is_empty());
    let would = repairable(data).unwrap();
    assert!(!would.database.is_empty(), "{would:?}");
    assert!(
        !verify(data).problems.is_empty(),
        "a dry run changes nothing"
    );
    let did = repair(data).unwrap();
    assert_eq!((&did.database, did.unmended.len()), (&would.database, 0));
    assert_eq!(verify(data).problems, vec![]);
    assert_eq!(repair(data).unwrap(), Repair::default(), "once is enough");
}

/// U15: a page that holds what nothing else does is not mended, and that is said.
#[test]
fn u15_a_damaged_page_is_named_and_left_alone() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path();
    filled(data);
    let file = data.join("reprise.db");
    let mut bytes = fs::read(&file).unwrap();
    let root = Tamper::open(data).root_page("documents");
    let start = (root as usize - 1) * 4096;
    // The kind of the page, and how many cells it has.
    bytes[start] = 0;
    fs::write(&file, &bytes).unwrap();
    let would = repairable(data);
    if let Ok(would) = &would {
        assert!(!would.database.is_empty(), "{would:?}");
    }
    match repair(data) {
        Ok(did) => assert!(!did.unmended.is_empty(), "{did:?}"),
        Err(error) => assert!(error.to_string().contains("malformed"), "{error}"),
    }
}

/// Damages a block and the page of a table that is folded from the events, so that a repair folds it again.
fn damage_block_and_page(data: &Path, position: Position) {
    let damage = Tamper::open(data);
    damage.raw(position, |bytes| flip(bytes));
    let root = damage.root_page("recent_links") as usize;
    drop(damage);
    let file = data.join("reprise.db");
    let mut bytes = fs::read(&file).unwrap();
    // How many bytes of the page are in fragments.
    bytes[(root - 1) * 4096 + 7] = 1;
    fs::write(&file, &bytes).unwrap();
}

/// U11, U15: a repair folds nothing away of a block that it is about to replace: the tree stays the one that was signed, and
/// whose events were lost is still known.
#[test]
fn u15_a_repair_of_pages_and_blocks_keeps_the_tree_and_the_owners() {
    let home = tour();
    let data = home.path();
    rebuild_and_write(data, &mut |_, _| {}).unwrap();
    let before = folded(data);
    let receipt = issued(data)[1];
    let tasks: BTreeSet<Position> = Tamper::open(data)
        .events(receipt)
        .iter()
        .filter_map(|event| event.links.task)
        .collect();
    assert!(!tasks.is_empty());
    damage_block_and_page(data, receipt);
    let did = repair(data).unwrap();
    assert!(
        !did.database.is_empty() && did.unmended.is_empty(),
        "{did:?}"
    );
    assert!(did.events.iter().any(|event| event.position == receipt));
    assert_eq!(verify(data).problems, vec![]);
    let lost = Tamper::open(data).events(receipt);
    let owners = lost.iter().filter_map(|event| event.links.task);
    assert_eq!(owners.collect::<BTreeSet<_>>(), tasks);
    let of_receipts = |rows: Vec<String>| -> Vec<String> {
        let rows = rows.into_iter();
        rows.filter(|row| !row.starts_with("block")).collect()
    };
    assert_eq!(of_receipts(folded(data)), of_receipts(before.clone()));
    // Nor does folding it again take anything away.
    let (rebuilt, _) = rebuild_and_write(data, &mut |_, _| {}).unwrap();
    assert_eq!(rebuilt.problems, vec![]);
    assert_eq!(verify(data).problems, vec![]);
    assert_eq!(of_receipts(folded(data)), of_receipts(before));
}

/// U11: a repair that cannot give the tree that was signed changes nothing.
#[test]
fn u15_a_repair_that_would_shrink_the_tree_changes_nothing() {
    let home = tour();
    let data = home.path();
    rebuild_and_write(data, &mut |_, _| {}).unwrap();
    // The last one: no head of a smaller size is contradicted.
    let receipt = issued(data).pop().unwrap();
    let delete = format!("DELETE FROM documents WHERE key = {}", receipt.0);
    Tamper::open(data).execute(&delete);
    damage_block_and_page(data, receipt);
    let before = folded(data);
    let did = repair(data).unwrap();
    assert!(!did.unmended.is_empty(), "{did:?}");
    assert_eq!(did.aside, None);
    assert_eq!(folded(data), before);
}

/// A block reaches to the next one or to the end of the log, however many events that are: each position is named.
#[test]
fn u15_a_block_with_more_events_than_usual_is_replaced_to_its_end() {
    for is_last in [false, true] {
        let home = tempfile::tempdir().unwrap();
        let data = home.path();
        let model = filled(data);
        let store = open(data);
        let mut more = Model::with_documents(&store, 900_000, model.documents());
        for at in 0..400 {
            let order = more.append(5_000 + at);
            more.run(&store, order).unwrap();
        }
        store.close();
        let first = Tamper::open(data).events(Position(9))[0].position;
        Tamper::open(data).join(first);
        if !is_last {
            let store = open(data);
            let mut more = Model::with_documents(&store, 950_000, more.documents());
            let order = more.append(6_000);
            more.run(&store, order).unwrap();
            store.close();
        }
        assert_eq!(verify(data).problems, vec![]);
        let block = Tamper::open(data).events(first);
        assert!(block.len() > 300, "{}", block.len());
        Tamper::open(data).raw(first, |bytes| flip(bytes));
        let did = repaired(data);
        let found = did.events.iter().map(|event| event.position);
        let lost = block.iter().map(|event| event.position);
        assert!(found.eq(lost), "{}", did.events.len());
    }
}
