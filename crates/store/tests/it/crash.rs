//! A process that is killed while it commits: what it acknowledged is there, and nothing is half there.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use domain::{Position, ResourceKind};
use engine::port::suite::{Model, wait};
use engine::port::{ListQuery, Scope, Store};
use store::tamper::Tamper;

use crate::home::{open, verify};

const CHILD: &str = "REPRISE_STORE_TEST_CHILD";
const KILLS: u32 = 24;

/// The child: opens the directory, appends messages one after another, and says so after each.
#[test]
#[ignore = "a process that another test starts"]
fn child_that_commits_until_it_is_killed() {
    let directory = std::env::var(CHILD).unwrap();
    let store = open(Path::new(&directory));
    let documents: Vec<_> = [ResourceKind::Workspace, ResourceKind::Session]
        .into_iter()
        .flat_map(|kind| {
            let query = ListQuery {
                kind,
                scope: Scope::All,
                open_only: false,
                after: Position::START,
                limit: 1,
            };
            wait(store.list(query)).unwrap()
        })
        .collect();
    let mut model = Model::with_documents(&store, store.head().0, documents);
    let mut out = std::io::stdout().lock();
    loop {
        // Small ones, ones with a blob in the database, and ones with a private part.
        let order = model.append(if store.head().0.is_multiple_of(3) {
            6_000
        } else {
            40
        });
        let committed = model.run(&store, order).unwrap();
        writeln!(out, "acknowledged {}", committed.first.0).unwrap();
        out.flush().unwrap();
    }
}

/// Starts the child; each line that begins with `acknowledged` names the first position of a commit.
pub(crate) fn child(directory: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([
            "--ignored",
            "--exact",
            "crash::child_that_commits_until_it_is_killed",
            "--nocapture",
        ])
        .env(CHILD, directory)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn what_a_killed_process_acknowledged_is_there() {
    let home = tempfile::tempdir().unwrap();
    let store = open(home.path());
    let mut model = Model::new(&store);
    let order = model.workspace();
    model.run(&store, order).unwrap();
    let order = model.session();
    model.run(&store, order).unwrap();
    store.close();
    let session = model.documents().last().unwrap().key;
    let mut last = 0;
    let mut sent = 0;
    let mut gathered = BTreeSet::new();
    for round in 0..KILLS {
        let mut child = child(home.path());
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // Killed after a different number of commits each time, at whatever it is doing then.
        let mut wanted = 1 + round * 3 % 17;
        let mut acknowledged = Vec::new();
        let mut note = |line: String| {
            let position = line
                .strip_prefix("acknowledged ")
                .map(|text| text.parse::<u64>().unwrap());
            acknowledged.extend(position);
            position.is_some()
        };
        while wanted > 0 {
            let line = lines
                .next()
                .expect("the child goes on until it is killed")
                .unwrap();
            wanted -= u32::from(note(line));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        for line in lines.map_while(Result::ok) {
            note(line);
        }

        let report = verify(home.path());
        assert_eq!(report.problems, vec![], "round {round}");
        gathered.insert(Tamper::open(home.path()).count("recent_links"));
        let store = open(home.path());
        let head = store.head();
        // Every event up to the head is there, so no acknowledged one is missing.
        assert_eq!(report.events, head.0, "no hole");
        let end = acknowledged.last().copied().unwrap();
        assert!(
            head.0 > end,
            "{end} was acknowledged, {} is the head",
            head.0
        );
        // At most one commit was durable and not yet told.
        assert!(
            head.0 <= end + 3,
            "{end} was the last, {} is the head",
            head.0
        );
        let positions = acknowledged.iter().copied().map(Position).collect();
        let events = wait(store.events_at(positions)).unwrap();
        assert!(events.iter().all(Option::is_some));
        // And so is each of its Messages, in the list that a client asks for.
        let listed = wait(store.list(ListQuery {
            kind: ResourceKind::Message,
            scope: Scope::Session(session),
            open_only: false,
            after: Position::START,
            limit: 10_000,
        }));
        let keys = listed.unwrap().into_iter().map(|message| message.key);
        let keys: BTreeSet<u64> = keys.map(|key| key.0).collect();
        assert!(acknowledged.iter().all(|first| keys.contains(first)));
        sent += acknowledged.len();
        assert!((sent..=sent + 1 + round as usize).contains(&keys.len()));
        assert!(head.0 > last);
        last = head.0;
        store.close();
    }
    // Some were killed before what gathered was moved, and some after.
    assert!(gathered.len() > 2 && !gathered.contains(&0), "{gathered:?}");
}
