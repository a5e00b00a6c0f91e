//! Pruning: what goes, what stays, and that a log is as sound afterwards as before.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use canon::{Digest, Map, Value, sha256};
use domain::{
    AdvanceTask, ArtifactId, ArtifactKind, AttachContent, Blob, EndIds, Event, Kind, Move,
    NewMessage, Order, OutcomeId, Position, ReceiptId, RegisterArtifact, ResourceKind, SessionId,
    State, SubmitTask, TaskId, TaskInput, Timestamp, Visibility, WorkspaceId, pruned_digest,
};
use engine::port::suite::{Model, steps, wait};
use engine::port::{BlobStore, StoredEvent};
use proptest::prelude::*;
use serde_json::json;
use store::tamper::Tamper;
use store::{
    Audit, ProblemSubject, Pruned, SqliteStore, prunable, prune, rebuild, rebuild_and_write,
};

use crate::home::{filled, open, verify};

const CHILD: &str = "REPRISE_PRUNE_TEST_CHILD";

/// A time after everything that a model did.
fn after(model: &Model) -> Timestamp {
    Timestamp::from_micros(model.now().as_micros() + 1)
}

fn prune_all(directory: &Path, before: Timestamp) -> Pruned {
    let would = prunable(directory, before, &mut |_, _| {}).unwrap();
    let did = prune(directory, before, &mut |_, _| {}).unwrap();
    assert_eq!(would, did, "a dry run says what happens");
    did
}

fn events(directory: &Path) -> Vec<StoredEvent> {
    Tamper::open(directory).all_events()
}

fn blobs(directory: &Path) -> BTreeSet<Digest> {
    Audit::open(directory).unwrap().blobs().unwrap()
}

/// The keys of finished Tasks.
fn finished(model: &Model) -> BTreeSet<Position> {
    let documents = model.documents().into_iter();
    let finished = documents.filter(|document| match &document.state {
        State::Task(task) => task.status.is_terminal(),
        _ => false,
    });
    finished.map(|task| task.key).collect()
}

#[track_caller]
fn assert_sound(directory: &Path, pruned: u64) -> store::Rebuilt {
    let report = verify(directory);
    assert_eq!(report.problems, vec![]);
    assert_eq!(report.pruned, pruned);
    let rebuilt = rebuild(directory, &mut |_, _| {}).unwrap();
    assert_eq!(rebuilt.problems, vec![]);
    assert_eq!(rebuilt.pruned, pruned);
    assert_eq!(rebuilt.documents, report.documents);
    rebuilt
}

/// AP-RPL-19: payloads go, envelopes and receipts stay, nothing else changes; the log verifies, rebuilds and exports.
#[test]
fn ap_rpl_19_finished_tasks_become_headers_and_nothing_else_changes() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    let model = filled(&data);
    let tasks = finished(&model);
    assert!(tasks.len() > 1, "{tasks:?}");
    let documents = verify(&data).documents;
    let did = prune_all(&data, after(&model));
    assert_eq!(did.tasks, tasks.len() as u64);
    assert!(did.blobs > 0, "{did:?}");

    let mut headers = 0;
    let mut last = 0;
    for (before, now) in model.events().iter().zip(events(&data)) {
        let event = Event::parse(&before.bytes).unwrap();
        let goes = before.links.task.is_some_and(|task| tasks.contains(&task))
            && !matches!(event.kind(), Ok(Kind::ReceiptIssued | Kind::TrustRecorded));
        if !goes {
            assert_eq!(*before, now);
            continue;
        }
        headers += 1;
        last = now.position.0;
        let header = Event::parse(&now.bytes).unwrap();
        assert_eq!(pruned_digest(&header.payload), Some(sha256(&before.bytes)));
        let payload = event.payload.clone();
        assert_eq!(Event { payload, ..header }, event);
        assert_eq!((&before.links, before.resource), (&now.links, now.resource));
    }
    assert_eq!(did.events, headers);
    let rebuilt = assert_sound(&data, headers);
    assert_eq!(rebuilt.documents, documents);
    assert!(rebuilt.kept > 0 && rebuilt.kept < documents, "{rebuilt:?}");
    assert_eq!(rebuilt.whole_from, Some(Position(last + 1)));

    let out = home.path().join("bundle");
    let evidence = store::Evidence::default();
    let exported = store::export(&data, &out, evidence, &mut |_, _| {}).unwrap();
    assert_eq!(exported.pruned, headers);
    assert_eq!(exported.receipts, verify(&data).receipts);
    let lines = std::fs::read_to_string(out.join("events.jsonl")).unwrap();
    let marked = lines
        .lines()
        .filter(|line| line.contains("\"pruned\":true"));
    assert_eq!(marked.count() as u64, headers);

    assert_eq!(
        prune_all(&data, after(&model)),
        Pruned::default(),
        "once is enough"
    );
    // Work goes on behind it.
    let store = open(&data);
    let mut more = Model::with_documents(&store, 900_000, model.documents());
    let order = more.append(5_000);
    more.run(&store, order).unwrap();
    store.close();
    assert_sound(&data, headers);
}

#[test]
fn what_is_younger_or_not_finished_stays() {
    let home = tempfile::tempdir().unwrap();
    let model = filled(home.path());
    let times: Vec<Timestamp> = finished(&model)
        .into_iter()
        .map(|task| {
            let events = model.events().iter();
            let mut own = events.filter(|event| event.links.task == Some(task));
            Event::parse(&own.next_back().unwrap().bytes)
                .unwrap()
                .created_at
        })
        .collect();
    let mut sorted = times.clone();
    sorted.sort();
    let first = sorted[0];
    assert_eq!(prune_all(home.path(), first), Pruned::default());
    assert_eq!(verify(home.path()).pruned, 0);
    let second = Timestamp::from_micros(first.as_micros() + 1);
    let did = prune_all(home.path(), second);
    assert_eq!(
        did.tasks,
        times.iter().filter(|time| **time == first).count() as u64
    );
    assert_sound(home.path(), did.events);
}

/// A log with what the blobs tests need: a Workspace and a Session.
struct Bench {
    home: tempfile::TempDir,
    store: Option<SqliteStore>,
    model: Model,
    session: SessionId,
    workspace: WorkspaceId,
}

impl Bench {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let store = open(home.path());
        let mut model = Model::new(&store);
        let order = model.workspace();
        model.run(&store, order).unwrap();
        let order = model.session();
        model.run(&store, order).unwrap();
        let id = |kind: ResourceKind| {
            let documents = model.documents();
            let mut of_kind = documents.iter().filter(|known| known.state.kind() == kind);
            of_kind.next().unwrap().id.to_string()
        };
        let session = SessionId::parse(&id(ResourceKind::Session)).unwrap();
        let workspace = WorkspaceId::parse(&id(ResourceKind::Workspace)).unwrap();
        Self {
            home,
            store: Some(store),
            model,
            session,
            workspace,
        }
    }

    fn run(&mut self, order: Order) {
        self.model.run(self.store.as_ref().unwrap(), order).unwrap();
    }

    fn submit(&mut self, input: TaskInput) -> TaskId {
        let id = TaskId::from_body(&self.model.body());
        self.run(Order::SubmitTask(SubmitTask {
            id: id.clone(),
            session_id: self.session.clone(),
            workspace_id: None,
            branch_id: None,
            parent_task_id: None,
            workflow: "echo".to_owned(),
            persona: None,
            input,
            metadata: Map::new(),
        }));
        self.advance(
            &id,
            Move::Start {
                workflow_digest: sha256(b"workflow"),
            },
        );
        id
    }

    fn advance(&mut self, id: &TaskId, step: Move) {
        let moves = vec![step];
        let id = id.clone();
        let workflow = Some(sha256(b"workflow"));
        self.run(Order::AdvanceTask(AdvanceTask {
            id,
            workflow,
            moves,
        }));
    }

    fn complete(&mut self, id: &TaskId) {
        let ids = EndIds {
            outcome_id: OutcomeId::from_body(&self.model.body()),
            receipt_id: ReceiptId::from_body(&self.model.body()),
        };
        let ending = Move::Complete {
            ids,
            summary: "done".to_owned(),
            messages: vec![],
        };
        self.advance(id, ending);
    }

    /// Adds an Artifact with bytes to a running Task.
    fn artifact(&mut self, task: &TaskId, bytes: Vec<u8>) -> Digest {
        let id = ArtifactId::from_body(&self.model.body());
        self.run(Order::RegisterArtifact(RegisterArtifact {
            id: id.clone(),
            workspace_id: self.workspace.clone(),
            new: domain::NewArtifact {
                workspace_id: None,
                kind: ArtifactKind::File,
                mime_type: "text/plain".to_owned(),
                uri: None,
                visibility: Visibility::Public,
                sha256: None,
                session_id: Some(self.session.clone()),
                task_id: Some(task.clone()),
                metadata: Map::new(),
            },
        }));
        let blob = Blob::new(bytes);
        let (sha256, bytes) = (blob.digest, blob.bytes.len() as u64);
        wait(self.store.as_ref().unwrap().put_blob(blob)).unwrap();
        self.run(Order::AttachContent(AttachContent { id, sha256, bytes }));
        sha256
    }

    fn prune(&mut self) -> Pruned {
        let before = after(&self.model);
        drop(self.store.take());
        let did = prune_all(self.home.path(), before);
        self.store = Some(open(self.home.path()));
        did
    }
}

fn object(value: Value) -> TaskInput {
    TaskInput::Object(value.as_object().unwrap().clone())
}

/// Blobs of each size, in blocks and as files; shared ones stay until the last who names them is gone.
#[test]
fn a_blob_that_something_else_names_stays() {
    for len in [5_000, 300_000] {
        let mut bench = Bench::new();
        let text = "shared ".repeat(len / 7);
        let input = json!({"text": text});
        let digest = sha256(&canon::jcs(&input));
        let first = bench.submit(object(input.clone()));
        let second = bench.submit(object(input));
        let own = json!({"text": "own ".repeat(len / 4)});
        let own_digest = sha256(&canon::jcs(&own));
        let third = bench.submit(object(own));
        let artifact = bench.artifact(&third, vec![b'a'; len]);
        bench.complete(&first);
        bench.complete(&third);
        let known = blobs(bench.home.path());
        assert!(
            known.contains(&digest) && known.contains(&own_digest),
            "{len}"
        );

        let did = bench.prune();
        assert_eq!((did.tasks, did.blobs), (2, 1), "{len}");
        let known = blobs(bench.home.path());
        assert!(known.contains(&digest), "another task names it");
        assert!(
            known.contains(&artifact),
            "an artifact is more than its task"
        );
        assert!(!known.contains(&own_digest));
        let store = bench.store.as_ref().unwrap();
        assert!(wait(store.blob(digest)).unwrap().is_some());
        assert_eq!(wait(store.blob(own_digest)).unwrap(), None);
        let receipts = receipt_contents(&bench.model);
        assert_eq!(receipts.len(), 2);
        for receipt in receipts {
            assert!(wait(store.blob(receipt)).unwrap().is_some());
        }
        assert_eq!(verify(bench.home.path()).problems, vec![]);

        bench.complete(&second);
        assert_eq!(bench.prune().blobs, 1);
        let known = blobs(bench.home.path());
        assert!(!known.contains(&digest), "nobody is left");
        assert!(known.contains(&artifact));
        assert_eq!(verify(bench.home.path()).problems, vec![]);

        // What went can come again.
        let again = bench.submit(object(json!({"text": text})));
        assert!(blobs(bench.home.path()).contains(&digest));
        bench.complete(&again);
        assert_eq!(verify(bench.home.path()).problems, vec![]);
    }
}

fn receipt_contents(model: &Model) -> Vec<Digest> {
    let documents = model.documents().into_iter();
    documents
        .filter_map(|document| match document.state {
            State::Receipt(receipt) => Some(receipt.content),
            _ => None,
        })
        .collect()
}

/// A private part of a long message is a blob that only another blob names.
#[test]
fn blobs_within_blobs_go_with_their_task_and_stay_with_a_message() {
    let mut bench = Bench::new();
    let message: NewMessage = bench.model.message(6_000, Visibility::Public);
    let task = bench.submit(TaskInput::Message(message));
    let of_task = blobs(bench.home.path());
    assert_eq!(of_task.len(), 2, "parts, and a private one in them");
    let order = bench.model.append(6_000);
    bench.run(order);
    let of_message: BTreeSet<Digest> = blobs(bench.home.path())
        .difference(&of_task)
        .copied()
        .collect();
    assert!(of_message.len() > 1, "{of_message:?}");
    bench.complete(&task);
    assert_eq!(bench.prune().blobs, 2);
    let left = blobs(bench.home.path());
    assert!(left.is_disjoint(&of_task));
    assert!(left.is_superset(&of_message));
    assert_eq!(verify(bench.home.path()).problems, vec![]);
}

#[test]
fn a_directory_in_use_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let store = open(home.path());
    let far = Timestamp::from_micros(i64::MAX / 2);
    let refused = prune(home.path(), far, &mut |_, _| {}).unwrap_err();
    assert!(refused.to_string().contains("in use"), "{refused}");
    assert!(prunable(home.path(), far, &mut |_, _| {}).is_ok());
    store.close();
    let nowhere = home.path().join("nowhere");
    assert!(prune(&nowhere, far, &mut |_, _| {}).is_err());
    assert!(!nowhere.exists());
}

/// The child: prunes, and dies without a word after this many steps.
#[test]
#[ignore = "a process that another test starts"]
fn child_that_dies_while_it_prunes() {
    let given = std::env::var(CHILD).unwrap();
    let (steps, rest) = given.split_once(' ').unwrap();
    let (before, directory) = rest.split_once(' ').unwrap();
    let mut left: u32 = steps.parse().unwrap();
    let before = Timestamp::from_micros(before.parse().unwrap());
    prune(Path::new(directory), before, &mut |_, _| {
        if left == 0 {
            std::process::abort();
        }
        left -= 1;
    })
    .unwrap();
}

/// Whenever it is killed, the log is sound, whatever was not yet pruned is whole, and the next run ends at the same log.
#[test]
fn a_run_that_is_killed_loses_nothing_and_the_next_goes_on() {
    let whole = tempfile::tempdir().unwrap();
    let model = filled(whole.path());
    let before = after(&model);
    let mut steps = 0;
    prune(whole.path(), before, &mut |_, _| steps += 1).unwrap();
    assert!(steps > 3, "{steps}");
    let mut died = 0;
    for kill_at in 0..steps {
        let home = tempfile::tempdir().unwrap();
        filled(home.path());
        let given = format!("{kill_at} {} {}", before.as_micros(), home.path().display());
        let status = Command::new(std::env::current_exe().unwrap())
            .args([
                "--ignored",
                "--exact",
                "prune::child_that_dies_while_it_prunes",
            ])
            .env(CHILD, given)
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .status()
            .unwrap();
        died += u32::from(!status.success());
        let headers = verify(home.path()).pruned;
        assert_sound(home.path(), headers);
        prune(home.path(), before, &mut |_, _| {}).unwrap();
        // Another log has another name, but the same blobs and as many headers.
        assert_eq!(
            blobs_of_events(home.path(), &model),
            blobs_of_events(whole.path(), &model)
        );
        assert_sound(home.path(), verify(whole.path()).pruned);
    }
    assert_eq!(died, steps);
}

/// The blobs of a log that do not depend on its name, as receipts do.
fn blobs_of_events(directory: &Path, model: &Model) -> BTreeSet<Digest> {
    let receipts: BTreeSet<Digest> = Audit::open(directory)
        .unwrap()
        .documents(Position::START)
        .unwrap()
        .iter()
        .filter_map(|row| match row.document().unwrap().state {
            State::Receipt(receipt) => Some(receipt.content),
            _ => None,
        })
        .collect();
    assert_eq!(receipts.len(), receipt_contents(model).len());
    blobs(directory).difference(&receipts).copied().collect()
}

#[test]
fn headers_that_were_tampered_with_are_named() {
    let home = tempfile::tempdir().unwrap();
    let model = filled(home.path());
    prune_all(home.path(), after(&model));
    let header = |kind: &str| {
        let found = events(home.path()).into_iter().find(|stored| {
            let event = Event::parse(&stored.bytes).unwrap();
            event.is_header() && &*event.kind == kind
        });
        found.unwrap()
    };
    let submitted = header("task.submitted");
    let changed = |stored: &StoredEvent, change: &dyn Fn(&mut Event)| {
        let mut event = Event::parse(&stored.bytes).unwrap();
        change(&mut event);
        let bytes = event.to_bytes();
        assert_ne!(bytes, *stored.bytes);
        Tamper::open(home.path()).event(stored.position, |event| event.bytes = bytes.into());
        let problems = verify(home.path()).problems;
        let original = stored.bytes.clone();
        Tamper::open(home.path()).event(stored.position, |event| event.bytes = original);
        problems
    };
    let task = Event::parse(&submitted.bytes).unwrap().resource.id;
    let is_about_task =
        |what: &ProblemSubject| matches!(what, ProblemSubject::Document(_, id) if *id == task);
    let digest = changed(&submitted, &|event| {
        let other = sha256(b"another").to_string();
        Arc::make_mut(&mut event.payload).insert("sha256".to_owned(), other.into());
    });
    assert_eq!(digest.len(), 1, "{digest:?}");
    assert!(is_about_task(&digest[0].what), "{digest:?}");
    let cases: [&dyn Fn(&mut Event); 4] = [
        &|event| event.sequence += 1,
        &|event| event.actor = Some("somebody else".to_owned()),
        &|event| event.previous_event_id = Some(event.id.clone()),
        &|event| drop(Arc::make_mut(&mut event.payload).remove("sha256")),
    ];
    for case in cases {
        assert!(!changed(&header("task.status_changed"), case).is_empty());
    }
    // A header where nothing was pruned.
    let kept = events(home.path()).into_iter().find(|stored| {
        let event = Event::parse(&stored.bytes).unwrap();
        event.task_id.is_some() && event.kind() == Ok(Kind::TaskSubmitted) && !event.is_header()
    });
    let kept = kept.expect("an open task");
    let made_up = changed(&kept, &|event| *event = event.header(b"something"));
    let said: Vec<String> = made_up.iter().map(ToString::to_string).collect();
    assert!(
        said.iter().any(|said| said.contains("never pruned")),
        "{said:?}"
    );
    // A document that says otherwise than the headers.
    let tamper = Tamper::open(home.path());
    tamper.set(&task, "version = version + 1");
    let problems = verify(home.path()).problems;
    assert!(
        problems.iter().any(|problem| is_about_task(&problem.what)),
        "{problems:?}"
    );
    let rebuilt = rebuild(home.path(), &mut |_, _| {}).unwrap();
    assert!(
        rebuilt
            .problems
            .iter()
            .any(|problem| is_about_task(&problem.what))
    );
    tamper.set(&task, "version = version - 1");
    assert_eq!(verify(home.path()).problems, vec![]);
    tamper.execute(&format!(
        "DELETE FROM pruned WHERE task = {}",
        submitted.position.0
    ));
    assert!(is_about_task(&verify(home.path()).problems[0].what));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_was_committed_is_sound_after_pruning(steps in steps(80), part in 0i64..=100) {
        let home = tempfile::tempdir().unwrap();
        let store = open(home.path());
        let mut model = Model::new(&store);
        let start = model.now().as_micros();
        // Finished Tasks are rare among random steps.
        let often = [(0, 0, 0), (1, 0, 0), (5, 0, 1), (6, 0, 0), (9, 0, 0), (5, 1, 2), (6, 1, 0), (12, 1, 0)];
        for step in often.into_iter().chain(steps) {
            model.step(&store, step);
        }
        store.close();
        let until = start + (model.now().as_micros() - start) * part / 100;
        let did = prune_all(home.path(), Timestamp::from_micros(until));
        assert_sound(home.path(), did.events);
        let did = prune_all(home.path(), after(&model));
        let report = verify(home.path());
        prop_assert_eq!(report.problems, vec![]);
        prop_assert!(report.pruned >= did.events);
        for document in model.documents() {
            let stored = Audit::open(home.path()).unwrap().document(document.key).unwrap();
            prop_assert_eq!(stored.unwrap().document().unwrap(), document);
        }
    }
}

#[test]
fn blobs_that_nothing_names_are_swept_and_no_others() {
    let home = tempfile::tempdir().unwrap();
    let model = crate::home::filled(home.path());
    let store = crate::home::open(home.path());
    let strays: Vec<domain::Blob> = [10, 300_000]
        .map(|len| domain::Blob::new(vec![250; len]))
        .into();
    for stray in &strays {
        wait(store.put_blob(stray.clone())).unwrap();
    }
    store.close();
    let before = crate::home::verify(home.path());
    assert_eq!(before.problems, vec![]);
    let swept = store::sweep(home.path(), &mut |_, _| {}).unwrap();
    assert!(swept.blobs >= 2, "{swept:?}");
    assert!(swept.bytes >= 300_010, "{swept:?}");
    let again = store::sweep(home.path(), &mut |_, _| {}).unwrap();
    assert_eq!(again.blobs, 0);
    let after = crate::home::verify(home.path());
    assert_eq!(after.problems, vec![], "something that is needed went");
    let store = crate::home::open(home.path());
    for stray in strays {
        assert_eq!(wait(store.blob(stray.digest)).unwrap(), None);
    }
    engine::port::suite::agrees(&store, &model);
}

/// The events of a Task that are not headers and would become some.
fn whole(directory: &Path, task: Position) -> Vec<Position> {
    let events = events(directory).into_iter();
    let events = events.filter(|stored| stored.links.task == Some(task));
    let events = events.filter(|stored| {
        let event = Event::parse(&stored.bytes).unwrap();
        let stays = [Kind::ReceiptIssued, Kind::TrustRecorded].map(Ok);
        !event.is_header() && !stays.contains(&event.kind())
    });
    events.map(|stored| stored.position).collect()
}

/// A finished Task with events in more blocks than one, and the blocks.
fn spread(directory: &Path, model: &Model) -> (Position, Vec<Position>) {
    let damage = Tamper::open(directory);
    let tasks = finished(model).into_iter().map(|task| {
        let events = events(directory).into_iter();
        let events = events.filter(|stored| stored.links.task == Some(task));
        let mut blocks: Vec<_> = events
            .map(|stored| damage.events(stored.position)[0].position)
            .collect();
        blocks.dedup();
        (task, blocks)
    });
    tasks.max_by_key(|(_, blocks)| blocks.len()).unwrap()
}

/// An event that the index does not find is pruned with the others: nothing of a Task that is called pruned stays.
#[test]
fn events_that_the_index_lacks_are_pruned_too() {
    let home = tempfile::tempdir().unwrap();
    let model = filled(home.path());
    let (task, blocks) = spread(home.path(), &model);
    assert!(blocks.len() > 2, "{blocks:?}");
    for at in [0, 1, blocks.len() - 1] {
        let data = tempfile::tempdir().unwrap();
        copy(home.path(), data.path());
        let (link, number) = (task.0, blocks[at].0);
        let damage = Tamper::open(data.path());
        let lost = damage.run(&format!(
            "DELETE FROM recent_links WHERE link = {link} AND number = {number} AND kind = 0"
        )) + damage.run(&format!(
            "DELETE FROM event_links WHERE link = {link} AND first = {number}"
        ));
        assert_eq!(lost, 1);
        let did = prune_all(data.path(), after(&model));
        assert_eq!(did.tasks, finished(&model).len() as u64);
        assert_eq!(did.problems, Vec::<String>::new());
        assert_eq!(whole(data.path(), task), vec![]);
        rebuild_and_write(data.path(), &mut |_, _| {}).unwrap();
        assert_sound(data.path(), did.events);
        assert_eq!(prune_all(data.path(), after(&model)), Pruned::default());
    }
}

/// A Task that is noted as pruned and has whole events, as an earlier program could leave one, is finished.
#[test]
fn a_task_that_was_pruned_in_part_is_finished() {
    let home = tempfile::tempdir().unwrap();
    let model = filled(home.path());
    let (task, blocks) = spread(home.path(), &model);
    for at in [0, 1, blocks.len() - 1] {
        let data = tempfile::tempdir().unwrap();
        copy(home.path(), data.path());
        let before = events(data.path());
        let did = prune_all(data.path(), after(&model));
        for stored in Tamper::open(data.path()).events(blocks[at]) {
            let mut before = before.iter();
            let whole = before.find(|event| event.position == stored.position);
            Tamper::open(data.path()).event(stored.position, |event| {
                event.bytes = whole.unwrap().bytes.clone();
            });
        }
        let left = whole(data.path(), task);
        assert!(!left.is_empty());
        let again = prune(data.path(), after(&model), &mut |_, _| {}).unwrap();
        assert!(again.tasks > 0 && again.events >= left.len() as u64);
        assert_eq!(whole(data.path(), task), vec![]);
        assert_sound(data.path(), did.events);
    }
}

/// A Task that cannot be read to its end is named and left alone; the others are pruned.
#[test]
fn a_task_that_cannot_be_pruned_keeps_no_other_from_it() {
    let home = tempfile::tempdir().unwrap();
    let model = filled(home.path());
    let (task, blocks) = spread(home.path(), &model);
    let documents = model.documents();
    let id = documents.iter().find(|known| known.key == task).unwrap();
    for lose in [false, true] {
        let data = tempfile::tempdir().unwrap();
        copy(home.path(), data.path());
        // A block with an event of its own.
        let own = |block: &Position| {
            let events = Tamper::open(data.path()).events(*block);
            events.iter().any(|stored| stored.resource == task)
        };
        let block = *blocks.iter().rev().find(|block| own(block)).unwrap();
        let damage = Tamper::open(data.path());
        let hit: BTreeSet<Position> = damage
            .events(block)
            .iter()
            .filter_map(|stored| stored.links.task)
            .collect();
        match lose {
            true => drop(damage.lose(block)),
            false => damage.raw(block, |bytes| bytes.truncate(9)),
        }
        let did = prune_all(data.path(), after(&model));
        assert!(
            did.problems.iter().any(|problem| problem.contains(&*id.id)),
            "{:?}",
            did.problems
        );
        let others: Vec<_> = finished(&model).difference(&hit).copied().collect();
        assert!(!others.is_empty());
        assert_eq!(did.tasks, others.len() as u64);
        let noted = Audit::open(data.path()).unwrap().pruned().unwrap();
        assert!(others.iter().all(|other| noted.contains_key(other)));
        assert!(!noted.contains_key(&task));
    }
}

fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let place = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            std::fs::create_dir_all(&place).unwrap();
            copy(&entry.path(), &place);
        } else {
            std::fs::copy(entry.path(), place).unwrap();
        }
    }
}
