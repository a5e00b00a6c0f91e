//! A log that became shorter: noticed, refused, left as it is, and gone on with only when somebody says so.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;

use domain::Position;
use engine::port::Store;
use engine::port::suite::{Model, wait};
use store::{Loss, OpenError, Options, SqliteStore};

use crate::home::{filled, open, verify};

const WAL: &str = "reprise.db-wal";
const FLIPS: usize = 200;

/// Leaves what a killed process leaves: a database with next to nothing in it, and a long write-ahead log. Returns the
/// position that was acknowledged last.
fn killed(directory: &Path) -> u64 {
    let store = open(directory);
    let mut model = Model::new(&store);
    let order = model.workspace();
    model.run(&store, order).unwrap();
    let order = model.session();
    model.run(&store, order).unwrap();
    store.close();
    let mut child = crate::crash::child(directory);
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let acknowledged: Vec<u64> = lines
        .map_while(Result::ok)
        .filter_map(|line| {
            line.strip_prefix("acknowledged ")
                .map(|text| text.parse().unwrap())
        })
        .take(60)
        .collect();
    child.kill().unwrap();
    child.wait().unwrap();
    *acknowledged.last().unwrap()
}

fn copy(from: &Path) -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    for file in fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        if file.file_type().unwrap().is_file() {
            fs::copy(file.path(), to.path().join(file.file_name())).unwrap();
        }
    }
    to
}

/// Every file with its bytes, but the index of the write-ahead log, which holds nothing of its own.
fn contents(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = fs::read_dir(directory).unwrap().map(Result::unwrap);
    let files = files.filter(|file| file.file_type().unwrap().is_file());
    let read = files.map(|file| {
        let name = file.file_name().into_string().unwrap();
        (name, fs::read(file.path()).unwrap())
    });
    read.filter(|(name, _)| name != "reprise.db-shm" && name != "lock")
        .collect()
}

#[test]
fn no_flipped_bit_in_the_log_of_a_killed_process_is_silent() {
    let home = tempfile::tempdir().unwrap();
    let acknowledged = killed(home.path());
    let bits = fs::metadata(home.path().join(WAL)).unwrap().len() * 8;
    assert!(bits > 1_000_000, "the log is short: {bits} bits");
    let before = contents(home.path());
    let whole = verify(home.path());
    assert_eq!(whole.problems, vec![]);
    assert!(whole.events > acknowledged);
    assert!(contents(home.path()) == before, "verifying wrote something");
    for flip in 0..FLIPS {
        // Spread over the whole file, at another bit of the byte each time; the last one is in the last commit.
        let bit = bits / FLIPS as u64 * flip as u64 + flip as u64 % 8 + 1;
        let copy = copy(home.path());
        let mut bytes = fs::read(copy.path().join(WAL)).unwrap();
        bytes[usize::try_from(bit / 8).unwrap()] ^= 1 << (bit % 8);
        fs::write(copy.path().join(WAL), bytes).unwrap();
        let before = contents(copy.path());
        let report = verify(copy.path());
        if report.problems.is_empty() && report.events < whole.events {
            // It was in the commit that was being written when the process was killed: nobody was told of that.
            assert!(report.events >= acknowledged, "bit {bit}: {report:?}");
            continue;
        }
        assert_eq!(report.problems.len(), 1, "bit {bit}: {report:?}");
        let said = report.problems[0].to_string();
        assert!(said.contains("log recover --accept-loss"), "{said}");
        let error = SqliteStore::open(copy.path(), Options::default()).unwrap_err();
        assert!(
            matches!(error, OpenError::Lost { .. }),
            "bit {bit}: {error}"
        );
        let error = SqliteStore::open_reader(copy.path()).unwrap_err();
        assert!(
            matches!(error, OpenError::Lost { .. }),
            "bit {bit}: {error}"
        );
        assert!(
            contents(copy.path()) == before,
            "bit {bit}: something was written"
        );
    }
    // What was not touched opens as ever.
    open(home.path()).close();
}

/// A process that dies between a commit and the next leaves a tail that nobody was told of: that is not a loss.
#[test]
fn a_torn_tail_that_was_never_acknowledged_is_dropped_as_ever() {
    let home = tempfile::tempdir().unwrap();
    killed(home.path());
    let before = verify(home.path()).events;
    let wal = home.path().join(WAL);
    let mut bytes = fs::read(&wal).unwrap();
    // Half a frame, as of a commit that was being written.
    let frame = bytes[32..32 + 2_000].to_vec();
    bytes.extend(frame);
    fs::write(&wal, bytes).unwrap();
    assert_eq!(verify(home.path()).problems, vec![]);
    assert_eq!(verify(home.path()).events, before);
    open(home.path()).close();
}

/// Tables and events were all in the write-ahead log, or the database is gone: what is left still says how far the log was.
#[test]
fn a_directory_that_lost_its_tables_says_what_is_lost() {
    let home = tempfile::tempdir().unwrap();
    let store = open(home.path());
    let mut model = Model::new(&store);
    let order = model.workspace();
    model.run(&store, order).unwrap();
    let copied = copy(home.path());
    let kept = store.head();
    store.close();
    for file in [WAL, "reprise.db"] {
        fs::remove_file(copied.path().join(file)).unwrap();
        let problems = verify(copied.path()).problems;
        let [problem] = problems.as_slice() else {
            panic!("without {file}: {problems:?}");
        };
        let said = problem.to_string();
        let kept = format!("position {} was acknowledged", kept.0);
        assert!(said.contains(&kept), "without {file}: {said}");
        assert!(said.contains("log recover"), "without {file}: {said}");
    }
}

#[test]
fn a_log_that_ends_before_the_acknowledged_position_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let mut model = filled(home.path());
    let older = copy(home.path());
    let store = open(home.path());
    for _ in 0..3 {
        let order = model.append(10);
        model.run(&store, order).unwrap();
    }
    let kept = store.head();
    store.close();
    // An older database under a newer directory, as after a restore that went half way; and none at all.
    let database = home.path().join("reprise.db");
    fs::copy(older.path().join("reprise.db"), &database).unwrap();
    let report = verify(home.path());
    assert_eq!(report.problems.len(), 1, "{report:?}");
    assert!(report.problems[0].to_string().contains("was acknowledged"));
    let error = SqliteStore::open(home.path(), Options::default()).unwrap_err();
    assert!(
        matches!(error, OpenError::Lost { loss: Loss::Shorter { kept: found, .. }, .. } if found == kept),
        "{error:?}"
    );
    assert!(error.hint().contains("nothing was changed"));
    fs::remove_file(&database).unwrap();
    let error = SqliteStore::open(home.path(), Options::default()).unwrap_err();
    assert!(matches!(error, OpenError::Lost { .. }), "{error:?}");
    assert!(!database.exists());
}

#[test]
fn a_log_that_went_on_differently_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let mut model = filled(home.path());
    let other = copy(home.path());
    let store = open(home.path());
    let order = model.append(10);
    model.run(&store, order).unwrap();
    store.close();
    // The copy reaches as far and says something else.
    let store = open(other.path());
    let mut there = Model::with_documents(&store, 1_000, vec![]);
    let order = there.workspace();
    there.run(&store, order).unwrap();
    store.close();
    fs::copy(
        other.path().join("reprise.db"),
        home.path().join("reprise.db"),
    )
    .unwrap();
    let error = SqliteStore::open(home.path(), Options::default()).unwrap_err();
    assert!(
        matches!(
            error,
            OpenError::Lost {
                loss: Loss::Other { .. },
                ..
            }
        ),
        "{error:?}"
    );
    assert_eq!(verify(home.path()).problems.len(), 1);
}

#[test]
fn a_damaged_head_file_is_told() {
    let home = tempfile::tempdir().unwrap();
    filled(home.path());
    let head = home.path().join("head");
    let mut bytes = fs::read(&head).unwrap();
    bytes[20] ^= 1;
    fs::write(&head, bytes).unwrap();
    let report = verify(home.path());
    assert_eq!(report.problems.len(), 1, "{report:?}");
    assert!(report.events > 20, "the rest is checked too");
    let error = SqliteStore::open(home.path(), Options::default()).unwrap_err();
    assert!(
        matches!(error, OpenError::UnreadableHead { .. }),
        "{error:?}"
    );
    assert!(error.hint().contains("log repair --apply"));
}

#[test]
fn accepting_the_loss_goes_on_with_ids_that_were_never_given_out() {
    let home = tempfile::tempdir().unwrap();
    let told = Position(killed(home.path()));
    assert!(
        SqliteStore::open_accepting_loss(home.path(), Options::default())
            .unwrap()
            .is_none(),
        "nothing is lost"
    );
    let wal = home.path().join(WAL);
    let written = {
        let store = copy(home.path());
        let opened = open(store.path());
        opened.head()
    };
    let mut bytes = fs::read(&wal).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    fs::write(&wal, &bytes).unwrap();
    let (store, lost) = SqliteStore::open_accepting_loss(home.path(), Options::default())
        .unwrap()
        .unwrap();
    assert!(matches!(lost.loss, Loss::Damaged { .. }), "{lost:?}");
    // The process may have been killed after its last commit was written and before anybody was told of it.
    let acknowledged = lost.acknowledged.unwrap();
    assert!(
        told <= acknowledged && acknowledged <= written,
        "{told:?} {acknowledged:?} {written:?}"
    );
    assert!(lost.found < acknowledged);
    assert!(
        fs::read(lost.aside.join(WAL)).unwrap() == bytes,
        "kept as it was"
    );
    let mut model = Model::with_documents(&store, 1_000, vec![]);
    let order = model.workspace();
    let committed = model.run(&store, order).unwrap();
    assert_eq!(committed.first, acknowledged.plus(1));
    let read =
        wait(store.events_at(vec![lost.found, lost.found.plus(1), committed.first])).unwrap();
    assert!(read[0].is_some() && read[1].is_none() && read[2].is_some());
    let query = engine::port::ReadEvents {
        scope: engine::port::Scope::All,
        after: Position::START,
        limit: 100_000,
    };
    let events = wait(store.events(query)).unwrap();
    assert_eq!(events.len() as u64, lost.found.0 + 2);
    store.close();
    let report = verify(home.path());
    assert_eq!(report.problems, vec![]);
    assert_eq!(report.events, lost.found.0 + 2);
    let store = open(home.path());
    assert_eq!(store.head(), committed.first.plus(1));
}
