//! Directories of older formats, as the programs of that time left them, brought forward; and processes that are killed
//! while they do it.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use domain::{Event, Position, ResourceKind, State};
use engine::port::suite::wait;
use engine::port::{ListQuery, Scope, Store};
use store::{FORMAT_VERSION, Migration, OpenError, Options, SqliteStore, migrate, rebuild};

use crate::home::{open, verify};

/// Name, and how many events it holds.
type Golden = (&'static str, u64);

const GOLDEN: [Golden; 4] = [
    ("format-2", 257),
    ("format-3-before-replaying", 256),
    ("format-3", 256),
    ("format-3-repaired", 249),
];

/// Puts a directory of an older format into an empty one.
fn unpack(name: &str, directory: &Path) {
    let vectors = concat!(env!("CARGO_MANIFEST_DIR"), "/../../conformance/vectors/log");
    let packed = fs::read(Path::new(vectors).join(format!("{name}.zst"))).unwrap();
    let mut bytes = Vec::new();
    let mut unpacked = zstd::Decoder::new(&packed[..]).unwrap();
    unpacked.window_log_max(27).unwrap();
    unpacked.read_to_end(&mut bytes).unwrap();
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let end = rest.iter().position(|byte| *byte == b'\n').unwrap();
        let (path, len) = str::from_utf8(&rest[..end])
            .unwrap()
            .rsplit_once(' ')
            .unwrap();
        let (content, left) = rest[end + 1..].split_at(len.parse().unwrap());
        let file = directory.join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, content).unwrap();
        rest = left;
    }
}

pub(crate) fn golden(name: &str) -> tempfile::TempDir {
    let home = tempfile::tempdir().unwrap();
    unpack(name, home.path());
    home
}

/// Every file of a directory, by its path, with its content.
fn files(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    let mut folders = vec![directory.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap().map(Result::unwrap) {
            match entry.file_type().unwrap().is_dir() {
                true => folders.push(entry.path()),
                false => found.push((
                    entry.path().strip_prefix(directory).unwrap().to_owned(),
                    fs::read(entry.path()).unwrap(),
                )),
            }
        }
    }
    found.sort();
    found
}

/// What a migrated directory must be, whatever it went through.
fn check(directory: &Path, (name, events): Golden) {
    let format = fs::read_to_string(directory.join("format")).unwrap();
    assert_eq!(format, format!("{FORMAT_VERSION}\n"), "{name}");
    let report = verify(directory);
    assert_eq!(report.problems, vec![], "{name}");
    assert_eq!(report.events, events, "{name}");
    let rebuilt = rebuild(directory, &mut |_, _| {}).unwrap();
    assert_eq!(rebuilt.problems, vec![], "{name}");
    assert!(!directory.join("migrating").exists(), "{name}");
    let store = open(directory);
    assert_eq!(store.head(), Position(events), "{name}");
    // Links that the old formats had no place for: the replays of each Task.
    let list = |scope| {
        let query = ListQuery {
            kind: ResourceKind::Task,
            scope,
            open_only: false,
            after: Position::START,
            limit: 1_000,
        };
        wait(store.list(query)).unwrap()
    };
    let tasks = list(Scope::All);
    let mut replays = 0;
    for replay in &tasks {
        let State::Task(task) = &replay.state else {
            continue;
        };
        let Some(of) = &task.replay else { continue };
        let source = tasks
            .iter()
            .find(|task| *task.id == *of.source_task_id.as_str());
        let listed = list(Scope::Linked(source.unwrap().key));
        let created = wait(store.events_at(vec![replay.key])).unwrap();
        let created = Event::parse(&created[0].as_ref().unwrap().bytes).unwrap();
        // Of a header nothing says any more what it was linked to.
        let listed = listed.iter().any(|linked| linked.key == replay.key);
        assert_eq!(listed, !created.is_header(), "{name}: {}", replay.id);
        replays += usize::from(listed);
    }
    assert!(replays > 1, "{name}: {replays}");
    store.close();
}

#[test]
fn directories_of_formats_2_and_3_are_brought_forward_and_kept_as_they_were() {
    for golden_directory in GOLDEN {
        let (name, events) = golden_directory;
        let home = golden(name);
        let before = fs::read(home.path().join("reprise.db")).unwrap();
        let format = fs::read(home.path().join("format")).unwrap();
        let mut steps = Vec::new();
        let migrated = migrate(home.path(), &mut |step| steps.push(step)).unwrap();
        let migrated = migrated.expect("it has an older format");
        assert_eq!(migrated.events, events, "{name}");
        assert!(steps.ends_with(&[
            Migration::Complete,
            Migration::BackedUp,
            Migration::Numbered,
            Migration::Replaced
        ]));
        check(home.path(), golden_directory);
        assert_eq!(migrate(home.path(), &mut |_| {}).unwrap(), None, "{name}");

        // The backup is the directory as it was: what a write-ahead log held is in its database.
        let backup = home.path().join("backup-before-format-4");
        assert_eq!(migrated.backup, backup, "{name}");
        assert_eq!(fs::read(backup.join("format")).unwrap(), format, "{name}");
        if name == "format-2" {
            assert!(fs::read(backup.join("reprise.db")).unwrap() == before);
        }
        check_again(&backup, golden_directory);
    }
}

/// The last programs of format 3 had tables and columns that the first ones had not.
#[test]
fn ends_of_keys_repairs_leases_and_heads_come_along() {
    let home = golden("format-3-repaired");
    migrate(home.path(), &mut |_| {}).unwrap().unwrap();
    let report = verify(home.path());
    assert_eq!(report.repaired, 6);
    assert_eq!(report.keys_without_events, 0);
    let database = |directory: &Path| {
        let file = directory.join("reprise.db");
        rusqlite::Connection::open(file).unwrap()
    };
    let backup = home.path().join("backup-before-format-4");
    for table in [
        "api_keys", "heads", "repaired", "leases", "claims", "leaves", "tree",
    ] {
        let rows = |connection: rusqlite::Connection| -> Vec<String> {
            // Claims have a checksum since.
            let columns = match table {
                "claims" => "scope, body, answer, expires_at",
                _ => "*",
            };
            let text = format!("SELECT {columns} FROM {table} ORDER BY 1");
            let mut select = connection.prepare(&text).unwrap();
            let columns = select.column_count();
            let row = |row: &rusqlite::Row<'_>| {
                let values = (0..columns).map(|column| format!("{:?}", row.get_ref(column)));
                Ok(values.collect::<Vec<_>>().join(", "))
            };
            let rows = select.query_map([], row).unwrap();
            rows.map(Result::unwrap).collect()
        };
        let (old, new) = (rows(database(&backup)), rows(database(home.path())));
        assert!(!old.is_empty(), "{table}");
        assert_eq!(new, old, "{table}");
    }
    let expire = "SELECT count(*) FROM api_keys WHERE expires_at IS NOT NULL";
    let expire = database(home.path()).query_row(expire, [], |row| row.get(0));
    assert_eq!(expire, Ok(1));
}

/// A copy of a backup goes the same way.
fn check_again(backup: &Path, golden_directory: Golden) {
    let home = tempfile::tempdir().unwrap();
    for (path, bytes) in files(backup) {
        let file = home.path().join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, bytes).unwrap();
    }
    let migrated = migrate(home.path(), &mut |_| {}).unwrap();
    assert_eq!(migrated.unwrap().events, golden_directory.1);
    check(home.path(), golden_directory);
}

/// Whoever opens a directory to work in it brings it forward; whoever only looks says how, and changes nothing.
#[test]
fn a_server_brings_an_older_directory_forward_and_a_reader_refuses_it() {
    for golden_directory in GOLDEN {
        let home = golden(golden_directory.0);
        let error = SqliteStore::open_reader(home.path()).unwrap_err();
        assert!(matches!(error, OpenError::NotMigrated { .. }), "{error:?}");
        assert!(error.hint().contains("reprise log migrate"));
        let error = store::verify(home.path(), &mut |_, _| {}).unwrap_err();
        assert!(error.to_string().contains("older format"), "{error}");
        open(home.path()).close();
        check(home.path(), golden_directory);
    }
}

#[test]
fn a_damaged_block_of_an_older_directory_stays_damaged_and_harms_no_other() {
    let home = golden("format-2");
    let sql = "UPDATE events SET bytes = zeroblob(40) \
         WHERE id = (SELECT id FROM events WHERE (id & 65535) = 0 ORDER BY id LIMIT 1 OFFSET 5)";
    crate::home::tamper(home.path(), sql);
    migrate(home.path(), &mut |_| {}).unwrap().unwrap();
    let report = verify(home.path());
    let events: Vec<String> = report.problems.iter().map(ToString::to_string).collect();
    assert!(events[0].contains("cannot be read"), "{events:#?}");
    assert!(report.events > 200, "{events:#?}");
}

const CHILD: &str = "REPRISE_STORE_TEST_MIGRATING";

/// The child: brings a directory forward and is killed at a step.
#[test]
#[ignore = "a process that another test starts"]
fn child_that_is_killed_at_a_step_of_a_migration() {
    let told = std::env::var(CHILD).unwrap();
    let (step, directory) = told.split_once(' ').unwrap();
    let mut left: u32 = step.parse().unwrap();
    let done = migrate(Path::new(directory), &mut |_| {
        if left == 0 {
            // A real one: nothing is closed, synced or cleaned up.
            let pid = std::process::id().to_string();
            let killed = Command::new("kill").args(["-9", &pid]).status();
            unreachable!("{killed:?}");
        }
        left -= 1;
    });
    done.unwrap();
}

/// Brings a directory forward in a child that is killed at a step; true when it got there.
fn killed_at(step: u32, directory: &Path) -> bool {
    let name = "migrating::child_that_is_killed_at_a_step_of_a_migration";
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", name])
        .env(CHILD, format!("{step} {}", directory.display()))
        .stdout(Stdio::null())
        .status()
        .unwrap();
    !status.success()
}

#[test]
fn a_process_that_is_killed_at_any_step_of_a_migration_has_lost_nothing() {
    for golden_directory in GOLDEN {
        let name = golden_directory.0;
        let mut step = 0;
        loop {
            let home = golden(name);
            if !killed_at(step, home.path()) {
                break;
            }
            // Whoever looks meanwhile sees a whole directory of one format or the other.
            match store::verify(home.path(), &mut |_, _| {}) {
                Ok(report) => assert_eq!(report.problems, vec![], "{name}, step {step}"),
                Err(error) => assert!(error.to_string().contains("older format"), "{error}"),
            }
            // Killed once more on the way, one step further, before it may end.
            killed_at(step + 1, home.path());
            open(home.path()).close();
            check(home.path(), golden_directory);
            let backups = fs::read_dir(home.path()).unwrap();
            let backups = backups.filter(|entry| {
                let name = entry.as_ref().unwrap().file_name();
                name.to_string_lossy().starts_with("backup")
            });
            assert_eq!(backups.count(), 1, "{name}, step {step}");
            step += 1;
        }
        assert!(step >= 6, "{name} was killed at {step} steps");
    }
}

#[test]
fn what_an_older_directory_has_lost_is_refused_before_anything_is_changed() {
    let home = golden("format-3");
    // As if the program of that time had kept how far its log had come, and the log did not reach there.
    let longer = golden("format-3");
    let store = open(longer.path());
    store.close();
    let head = fs::read_to_string(longer.path().join("head")).unwrap();
    assert!(head.contains("256"), "{head}");
    fs::write(home.path().join("head"), &head).unwrap();
    let sql = "DELETE FROM events WHERE (id >> 16) = (SELECT max(id >> 16) FROM events)";
    let connection = rusqlite::Connection::open(home.path().join("reprise.db")).unwrap();
    assert!(connection.execute(sql, []).unwrap() > 0);
    drop(connection);
    let before = files(home.path());
    let error = SqliteStore::open(home.path(), Options::default()).unwrap_err();
    assert!(matches!(error, OpenError::Lost { .. }), "{error:?}");
    let names = |files: &[(PathBuf, Vec<u8>)]| -> Vec<PathBuf> {
        let kept = files.iter().map(|(path, _)| path.clone());
        // The lock, what SQLite keeps beside a database in use, and a new database that nobody looks at.
        let unchanged = |path: &PathBuf| {
            let name = path.to_string_lossy().into_owned();
            !name.starts_with("migrating")
                && !["lock", "reprise.db-wal", "reprise.db-shm"].contains(&&*name)
        };
        kept.filter(unchanged).collect()
    };
    assert_eq!(names(&files(home.path())), names(&before));
    assert_eq!(fs::read(home.path().join("format")).unwrap(), b"3\n");
}
