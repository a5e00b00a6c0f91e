//! Several processes in one directory, real ones: who gets in, leases that run out, and work that is shared when one is killed.

mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use domain::{Blob, Event, Move, Position, ResourceKind, Status, TaskId};
use engine::port::suite::{Model, wait};
use engine::port::{BlobStore, Heartbeat, LeaseStore, ListQuery, ReadEvents, Scope, Store};
use store::{OpenError, Options, SqliteStore};

use crate::home::{filled, open, tamper, verify};
use worker::{BEATS, LASTS, WORKS, Worker, end_ids, now, open_tasks, task_of};

/// Where the child works, under which name, and how it goes about it.
const DIRECTORY: &str = "REPRISE_STORE_TEST_SHARED";
const HOLDER: &str = "REPRISE_STORE_TEST_HOLDER";
const WAY: &str = "REPRISE_STORE_TEST_WAY";

fn share(directory: &Path) -> SqliteStore {
    let options = Options {
        // A kill loses nothing that was written.
        full_sync: false,
        shared: true,
        ..Options::default()
    };
    SqliteStore::open(directory, options).unwrap()
}

/// The child.
#[test]
#[ignore = "a process that another test starts"]
fn child_that_shares_a_directory() {
    let directory = std::env::var(DIRECTORY).unwrap();
    let directory = Path::new(&directory);
    let holder = std::env::var(HOLDER).unwrap();
    let store = share(directory);
    let mut worker = Worker {
        store: &store,
        performed: directory.with_extension(&holder),
        holder: holder.into(),
        beaten: None,
    };
    match std::env::var(WAY).as_deref() {
        Ok("work") => {
            println!("ready");
            // All begin together.
            std::io::stdin()
                .lock()
                .read_line(&mut String::new())
                .unwrap();
            worker.work();
            println!("nothing is left");
        }
        Ok("hold") => {
            worker.beat();
            let open = open_tasks(&store);
            let (key, epoch) = worker.claim(&open)[0];
            println!("holds {} at {epoch}", key.0);
            // Says that it is there until it is told something, and then for as long as that takes nothing more.
            let (told, tells) = std::sync::mpsc::channel();
            thread::spawn(move || {
                for line in std::io::stdin().lock().lines() {
                    told.send(line.unwrap()).unwrap();
                }
            });
            while tells.recv_timeout(BEATS).is_err() {
                let held = worker.beat();
                assert_eq!(held, [(key, epoch)]);
            }
            println!("silent");
            tells.recv().unwrap();
            let task = open.iter().find(|task| task.key == key).unwrap();
            let id = TaskId::parse(&task.id).unwrap();
            let ended = worker.advance(&id, epoch, 0, |number| {
                vec![Move::Fail {
                    ids: end_ids(number),
                    code: "late".to_owned(),
                    message: "late".to_owned(),
                    details: canon::Map::new(),
                }]
            });
            println!("{}", if ended.is_err() { "refused" } else { "written" });
            println!("holds {} leases", worker.beat().len());
        }
        Ok("append") => append(&store, &worker.holder),
        Ok("blobs") => {
            println!("ready");
            std::io::stdin()
                .lock()
                .read_line(&mut String::new())
                .unwrap();
            for number in 0..BLOBS {
                let blob = blob(number);
                wait(store.put_blob(blob.clone())).unwrap();
                let found = wait(store.blob(blob.digest)).unwrap();
                assert_eq!(found, Some(blob.bytes), "blob {number}");
            }
            println!("all are there");
        }
        other => panic!("{other:?}"),
    }
}

/// Appends messages to a Session of its own until it is killed, and says so after each.
fn append(store: &SqliteStore, holder: &str) {
    let ids = [ResourceKind::Workspace, ResourceKind::Session].map(|kind| {
        let found = wait(store.list(ListQuery {
            kind,
            scope: Scope::All,
            open_only: false,
            after: Position::START,
            limit: 2,
        }));
        found.unwrap()
    });
    let [workspaces, sessions] = ids;
    let session = sessions[usize::from(holder == "survivor")].clone();
    let fresh = u64::try_from(now().as_micros()).unwrap() * 1_000;
    let documents = [workspaces[0].clone(), session];
    let mut model = Model::with_documents(store, fresh, documents);
    let began = Instant::now();
    while began.elapsed() < WORKS {
        let order = model.append(if model.events().len().is_multiple_of(3) {
            6_000
        } else {
            40
        });
        let committed = model.run(store, order).unwrap();
        println!("acknowledged {}", committed.first.0);
    }
}

#[test]
fn what_was_acknowledged_is_there_however_often_one_of_two_is_killed() {
    const KILLS: usize = 10;
    let home = tempfile::tempdir().unwrap();
    let store = share(home.path());
    let mut model = Model::new(&store);
    for order in [Model::workspace, Model::session, Model::session] {
        let order = order(&mut model);
        model.run(&store, order).unwrap();
    }
    store.close();
    let mut acknowledged = Vec::new();
    let mut note = |process: &mut Process, lines: usize| {
        for _ in 0..lines {
            let line = process.says("acknowledged ");
            let (_, position) = line.split_once("acknowledged ").unwrap();
            acknowledged.push(position.trim().parse::<u64>().unwrap());
        }
    };
    let mut survivor = Process::start(home.path(), "survivor", "append");
    for round in 0..KILLS {
        let mut victim = Process::start(home.path(), "victim", "append");
        note(&mut victim, 1 + round * 3 % 7);
        victim.child.kill().unwrap();
        victim.child.wait().unwrap();
        // The other one goes on, whatever the killed one was doing.
        note(&mut survivor, 3);
    }
    survivor.child.kill().unwrap();
    survivor.child.wait().unwrap();
    acknowledged.sort_unstable();
    let count = acknowledged.len();
    acknowledged.dedup();
    assert_eq!(acknowledged.len(), count, "no position is given out twice");
    let report = verify(home.path());
    assert_eq!(report.problems, vec![]);
    let store = open(home.path());
    assert_eq!(report.events, store.head().0, "no hole");
    let positions = acknowledged.into_iter().map(Position).collect();
    let events = wait(store.events_at(positions)).unwrap();
    assert!(events.iter().all(Option::is_some));
}

const BLOBS: u8 = 60;

/// Content that is large enough for a file of its own.
fn blob(number: u8) -> Blob {
    Blob::new(vec![number; 1_500_000])
}

#[test]
fn processes_that_store_the_same_content_at_once_do_not_tear_it() {
    let home = tempfile::tempdir().unwrap();
    let store = share(home.path());
    let mut processes = ["one", "two"].map(|name| Process::start(home.path(), name, "blobs"));
    for process in &mut processes {
        process.says("ready");
    }
    for process in &mut processes {
        process.tell();
    }
    for process in &mut processes {
        process.says("all are there");
        assert!(process.child.wait().unwrap().success());
    }
    for number in 0..BLOBS {
        let blob = blob(number);
        let found = wait(store.blob(blob.digest)).unwrap();
        assert_eq!(found, Some(blob.bytes), "blob {number}");
    }
}

struct Process {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Process {
    fn start(directory: &Path, holder: &str, way: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--ignored",
                "--exact",
                "sharing::child_that_shares_a_directory",
            ])
            .arg("--nocapture")
            .env(DIRECTORY, directory)
            .env(HOLDER, holder)
            .env(WAY, way)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Reads on until a line has this in it.
    fn says(&mut self, what: &str) -> String {
        loop {
            let line = self.lines.next();
            let line = line
                .unwrap_or_else(|| panic!("ended without `{what}`"))
                .unwrap();
            if line.contains(what) {
                return line;
            }
        }
    }

    fn tell(&mut self) {
        writeln!(self.child.stdin.as_mut().unwrap()).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Fills a directory with Tasks in some Sessions.
fn submitted(directory: &Path, sessions: u8, tasks: usize) -> BTreeSet<Box<str>> {
    let store = share(directory);
    let mut model = Model::new(&store);
    let order = model.workspace();
    model.run(&store, order).unwrap();
    for _ in 0..sessions {
        let order = model.session();
        model.run(&store, order).unwrap();
    }
    let parents = model.documents();
    let mut number = 0;
    while number < tasks {
        // A model that knows every Task would look through all of them each time.
        let known = wait(store.documents(parents.iter().map(|known| known.id.clone()).collect()));
        let known = known.unwrap().into_iter().flatten();
        let mut model = Model::with_documents(&store, 10_000 + 10 * number as u64, known);
        let session = u8::try_from(number % usize::from(sessions)).unwrap();
        let order = model.task(session);
        model.run(&store, order).unwrap();
        number += 1;
    }
    let found = open_tasks(&store);
    assert_eq!(found.len(), tasks);
    found.into_iter().map(|task| task.id).collect()
}

#[test]
fn a_thousand_tasks_and_a_worker_that_is_killed() {
    const TASKS: usize = 1_000;
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("log");
    let tasks = submitted(&directory, 20, TASKS);
    let names = ["one", "two", "three"];
    let mut workers: Vec<Process> = names
        .iter()
        .map(|name| Process::start(&directory, name, "work"))
        .collect();
    for worker in &mut workers {
        worker.says("ready");
    }
    for worker in &mut workers {
        worker.tell();
    }
    // Killed in the middle of its work, with leases in hand, at whatever it is doing then.
    for _ in 0..60 {
        workers[0].says("worked on");
    }
    workers[0].child.kill().unwrap();
    workers[0].child.wait().unwrap();
    for worker in &mut workers[1..] {
        worker.says("nothing is left");
        assert!(worker.child.wait().unwrap().success());
    }

    // What was performed, by the files that whoever performed it wrote.
    let mut performed: BTreeMap<String, usize> = BTreeMap::new();
    let mut by_worker = Vec::new();
    for name in names {
        let text = fs::read_to_string(directory.with_extension(name)).unwrap();
        by_worker.push(text.lines().count());
        for line in text.lines() {
            *performed.entry(line.to_owned()).or_default() += 1;
        }
    }
    assert!(by_worker.iter().all(|count| *count > 0), "{by_worker:?}");
    let twice: Vec<_> = performed.iter().filter(|(_, count)| **count > 1).collect();
    assert!(twice.is_empty(), "performed twice: {twice:?}");

    let report = verify(&directory);
    assert_eq!(report.problems, vec![]);
    let store = share(&directory);
    assert_eq!(open_tasks(&store), vec![], "none is left open");
    let (mut completed, mut unknown) = (0, Vec::new());
    let found = wait(store.documents(tasks.iter().cloned().collect())).unwrap();
    assert_eq!(found.len(), TASKS);
    for task in found {
        let task = task.expect("none is lost");
        match task_of(&task).status {
            Status::Completed => {
                assert!(performed.contains_key(&*task.id), "{}", task.id);
                completed += 1;
            }
            Status::Failed => unknown.push(task.id.clone()),
            other => panic!("{}: {other:?}", task.id),
        }
        // Begun once, requested once, ended once.
        let events = wait(store.events(ReadEvents {
            scope: Scope::Task(task.key),
            after: Position::START,
            limit: 100,
        }));
        let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
        for event in events.unwrap() {
            let event = Event::parse(&event.bytes).unwrap();
            *kinds.entry(event.kind.to_string()).or_default() += 1;
        }
        for kind in ["task.started", "vendor.effect_requested"] {
            assert_eq!(kinds.get(kind), Some(&1), "{}: {kinds:?}", task.id);
        }
        let ends = ["task.completed", "task.failed"].map(|kind| kinds.get(kind).unwrap_or(&0));
        assert_eq!(ends[0] + ends[1], 1, "{}: {kinds:?}", task.id);
    }
    // Only what the killed one had in hand at that moment can be unknown, and it works on one at a time.
    assert!(unknown.len() <= 1, "{unknown:?}");
    assert_eq!(completed + unknown.len(), TASKS);
    // Nobody holds anything any more.
    assert_eq!(leases(&directory), 0);
}

fn leases(directory: &Path) -> u64 {
    let connection = rusqlite::Connection::open(directory.join("reprise.db")).unwrap();
    let count = "SELECT (SELECT count(*) FROM leases) + (SELECT count(*) FROM holders WHERE holder <> 'one')";
    connection.query_row(count, [], |row| row.get(0)).unwrap()
}

#[test]
fn a_process_keeps_its_lease_while_it_says_so_and_a_late_one_cannot_write() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("log");
    submitted(&directory, 1, 1);
    let mut other = Process::start(&directory, "other", "hold");
    other.says("holds");
    let store = share(&directory);
    let mut here = Worker {
        store: &store,
        holder: "here".into(),
        performed: directory.with_extension("here"),
        beaten: None,
    };
    let open = open_tasks(&store);
    // Longer than a sign of life lasts: it goes on giving them.
    let began = Instant::now();
    while began.elapsed() < LASTS + 2 * BEATS {
        here.beat();
        assert_eq!(here.claim(&open), [], "it is held");
        thread::sleep(Duration::from_millis(100));
    }
    other.tell();
    other.says("silent");
    let began = Instant::now();
    let taken = loop {
        here.beat();
        let taken = here.claim(&open);
        if let [lease] = taken[..] {
            break lease;
        }
        assert!(began.elapsed() < 3 * LASTS, "it is never late");
        thread::sleep(Duration::from_millis(50));
    };
    assert!(began.elapsed() > LASTS - 2 * BEATS, "taken too early");
    // It comes back after an hour, so to speak, and wants to write what it did meanwhile.
    other.tell();
    other.says("refused");
    other.says("holds 0 leases");
    assert!(other.child.wait().unwrap().success());
    let id = TaskId::parse(&open[0].id).unwrap();
    let ended = here.advance(&id, taken.1, 0, |number| {
        vec![Move::Fail {
            ids: end_ids(number),
            code: "here".to_owned(),
            message: "here".to_owned(),
            details: canon::Map::new(),
        }]
    });
    assert_eq!(ended, Ok(()));
    store.close();
    assert_eq!(verify(&directory).problems, vec![]);
}

#[test]
fn those_who_share_and_those_who_do_not_keep_each_other_out() {
    let home = tempfile::tempdir().unwrap();
    let options = Options {
        shared: true,
        ..Options::default()
    };
    let open_shared = || SqliteStore::open(home.path(), options);
    let one = open_shared().unwrap();
    let other = open_shared().unwrap();
    let refused = |result: Result<SqliteStore, OpenError>| match result.unwrap_err() {
        OpenError::Locked { pid, .. } => assert_eq!(pid, Some(std::process::id())),
        error => panic!("{error}"),
    };
    refused(SqliteStore::open(home.path(), Options::default()));
    assert!(store::prune(home.path(), now(), &mut |_, _| {}).is_err());
    one.close();
    refused(SqliteStore::open(home.path(), Options::default()));
    // Who only looks is let in, and does not take a log that is being written for one that has lost something.
    assert_eq!(verify(home.path()).problems, vec![]);
    SqliteStore::open_reader(home.path()).unwrap();
    other.close();
    let alone = open(home.path());
    refused(open_shared());
    assert_eq!(verify(home.path()).problems, vec![]);
    alone.close();
    open_shared().unwrap().close();
}

#[test]
fn a_directory_from_before_sharing_gets_its_table_and_loses_nothing_with_it() {
    let home = tempfile::tempdir().unwrap();
    filled(home.path());
    let connection = rusqlite::Connection::open(home.path().join("reprise.db")).unwrap();
    connection.execute_batch("DROP TABLE holders").unwrap();
    drop(connection);
    assert_eq!(verify(home.path()).problems, vec![]);
    let store = share(home.path());
    let beat = Heartbeat {
        holder: "me".into(),
        now: now(),
        lasts: LASTS,
    };
    assert_eq!(wait(store.heartbeat(beat)).unwrap(), []);
    store.close();
    assert_eq!(verify(home.path()).problems, vec![]);
    // A time that no clock said holds nobody up.
    tamper(
        home.path(),
        "UPDATE holders SET ends_at = 9223372036854775807",
    );
    assert_eq!(verify(home.path()).problems, vec![]);
    share(home.path()).close();
}
