//! A worker that is a process of its own.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use domain::{
    AdvanceTask, ChainId, Document, EffectIntent, EffectResult, EndIds, Move, Order, OutcomeId,
    Position, ReceiptId, ResourceKind, State, Status, Task, TaskId, Timestamp,
};
use engine::port::suite::{Model, wait};
use engine::port::{
    CommitError, Fence, Heartbeat, LeaseRequest, LeaseStore, ListQuery, ReadEvents, Scope, Store,
};
use serde_json::json;
use store::SqliteStore;

/// How long a sign of life lasts here: longer than a busy machine lets anybody wait.
pub(super) const LASTS: Duration = Duration::from_secs(5);
pub(super) const BEATS: Duration = Duration::from_millis(500);

/// After that a child gives up.
pub(super) const WORKS: Duration = Duration::from_secs(240);

/// How many Tasks a worker takes at a time.
const TAKEN_MAX: usize = 8;

const WORKFLOW: &[u8] = b"workflow";
const EFFECT: &str = "host:work:1";

pub(super) fn now() -> Timestamp {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Timestamp::from_micros(i64::try_from(now.as_micros()).unwrap())
}

pub(super) fn open_tasks(store: &SqliteStore) -> Vec<Document> {
    let mut tasks = Vec::new();
    loop {
        let page = wait(
            store.list(ListQuery {
                kind: ResourceKind::Task,
                scope: Scope::All,
                open_only: true,
                after: tasks
                    .last()
                    .map_or(Position::START, |task: &Document| task.key),
                limit: 256,
            }),
        )
        .unwrap();
        if page.is_empty() {
            return tasks;
        }
        tasks.extend(page);
    }
}

pub(super) fn task_of(document: &Document) -> &Task {
    match &document.state {
        State::Task(task) => task,
        other => panic!("{other:?}"),
    }
}

/// A worker that is a process of its own: it knows the store's port and `decide`, and nothing else.
pub(super) struct Worker<'a> {
    pub(super) store: &'a SqliteStore,
    pub(super) holder: Box<str>,
    /// Where it writes down what it performed.
    pub(super) performed: PathBuf,
    pub(super) beaten: Option<Instant>,
}

impl Worker<'_> {
    pub(super) fn beat(&mut self) -> Vec<(Position, u64)> {
        self.beaten = Some(Instant::now());
        let beat = Heartbeat {
            holder: self.holder.clone(),
            now: now(),
            lasts: LASTS,
        };
        wait(self.store.heartbeat(beat)).unwrap()
    }

    fn beat_if_due(&mut self) {
        if self.beaten.is_none_or(|last| last.elapsed() >= BEATS) {
            self.beat();
        }
    }

    pub(super) fn claim(&self, tasks: &[Document]) -> Vec<(Position, u64)> {
        let wanted = LeaseRequest {
            holder: self.holder.clone(),
            now: now(),
            leases: tasks.iter().map(|task| (task.key, task.version)).collect(),
        };
        wait(self.store.claim(wanted)).unwrap()
    }

    /// Works until no Task is open.
    pub(super) fn work(&mut self) {
        self.beat();
        let began = Instant::now();
        loop {
            assert!(
                began.elapsed() < WORKS,
                "tasks are left that nobody can have"
            );
            let open = open_tasks(self.store);
            if open.is_empty() {
                wait(self.store.leave(self.holder.clone())).unwrap();
                return;
            }
            // From somewhere in the list, so that workers do not all want the same.
            let from = usize::from(self.holder.bytes().last().unwrap_or(0)) * 131 % open.len();
            let wanted: Vec<Document> = open.iter().cycle().skip(from).take(64).cloned().collect();
            let mut taken = Vec::new();
            for page in wanted.chunks(TAKEN_MAX) {
                taken = self.claim(page);
                if !taken.is_empty() {
                    break;
                }
            }
            if taken.is_empty() {
                // Those that are left may be of somebody who is about to be late.
                taken = self.claim(&open);
            }
            for (key, epoch) in &taken {
                let task = open.iter().find(|task| task.key == *key).unwrap();
                self.work_on(task, *epoch);
                self.beat_if_due();
            }
            if taken.is_empty() {
                thread::sleep(Duration::from_millis(50));
            }
            self.beat_if_due();
        }
    }

    /// Does what is left to do on a Task. Stops where it is when somebody else has it.
    fn work_on(&mut self, task: &Document, epoch: u64) {
        let id = TaskId::parse(&task.id).unwrap();
        let is_new = task_of(task).status == Status::Submitted;
        if !is_new {
            // Somebody began: whether the effect was performed nobody knows, and it is not repeatable.
            let failed = |numbered: u64| Move::Fail {
                ids: end_ids(numbered),
                code: "effect_result_unknown".to_owned(),
                message: "the result is unknown".to_owned(),
                details: canon::Map::new(),
            };
            let _ = self.advance(&id, epoch, 50, |numbered| vec![failed(numbered)]);
            return;
        }
        let start = |_| {
            let intent = EffectIntent {
                key: EFFECT.to_owned(),
                kind: "host".to_owned(),
                request_sha256: canon::sha256(b"request"),
                repeatable: false,
                parts: None,
            };
            let workflow_digest = canon::sha256(WORKFLOW);
            vec![Move::Start { workflow_digest }, Move::RequestEffect(intent)]
        };
        if self.advance(&id, epoch, 0, start).is_err() {
            return;
        }
        // Only now, after the intent is durable.
        let mut performed = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.performed)
            .unwrap();
        writeln!(performed, "{id}").unwrap();
        let ended = |numbered| {
            let result = EffectResult {
                key: EFFECT.to_owned(),
                kind: "host".to_owned(),
                ok: true,
                value: json!({"done": true}),
                provider_request_id: None,
                model: None,
                observed: None,
                interrupted_through: None,
            };
            let complete = Move::Complete {
                ids: end_ids(numbered),
                summary: "done".to_owned(),
                messages: vec![],
            };
            vec![Move::RecordEffect(result), complete]
        };
        let _ = self.advance(&id, epoch, 10, ended);
        println!("worked on {id}");
    }

    /// Commits moves under a lease; an error when somebody else has it. Whatever others change in between is read again.
    pub(super) fn advance(
        &mut self,
        id: &TaskId,
        epoch: u64,
        numbered: u64,
        moves: impl Fn(u64) -> Vec<Move>,
    ) -> Result<(), Position> {
        for _ in 0..1_000 {
            let (mut model, key) = self.load(id, numbered);
            let numbered = 1_000_000 + key.0 * 100 + numbered;
            let order = Order::AdvanceTask(AdvanceTask {
                id: id.clone(),
                workflow: Some(canon::sha256(WORKFLOW)),
                moves: moves(numbered),
            });
            let decision = model.decide(order).unwrap();
            let mut commit = model.commit_of(&decision);
            commit.fences.push(Fence { lease: key, epoch });
            if decision.ends.is_some() {
                let seal = commit.seal;
                commit.seal = Box::new(move |first| {
                    let mut turn = seal(first)?;
                    turn.leases_released.push(key);
                    Ok(turn)
                });
            }
            match wait(self.store.commit(commit)) {
                Ok(committed) => {
                    model.committed(&decision, &committed);
                    return Ok(());
                }
                // Another one ended in its Session.
                Err(CommitError::Conflict) => self.beat_if_due(),
                Err(CommitError::Fenced(lease)) => return Err(lease),
                Err(error) => panic!("{error}"),
            }
        }
        panic!("others were always first");
    }

    fn load(&self, id: &TaskId, numbered: u64) -> (Model, Position) {
        let found = wait(self.store.documents(vec![id.as_str().into()])).unwrap();
        let task = found.into_iter().flatten().next().unwrap();
        let state = task_of(&task);
        let ids = vec![
            state.session_id.as_str().into(),
            state.workspace_id.as_str().into(),
            ChainId::of(&state.session_id).as_str().into(),
        ];
        let events = wait(self.store.events(ReadEvents {
            scope: Scope::Task(task.key),
            after: Position::START,
            limit: 100,
        }))
        .unwrap();
        let key = task.key;
        let documents = wait(self.store.documents(ids)).unwrap();
        let documents = documents.into_iter().flatten().chain([task]);
        let number = 1_000_000 + key.0 * 100 + numbered;
        (Model::with_log(self.store, number, documents, events), key)
    }
}

pub(super) fn end_ids(number: u64) -> EndIds {
    EndIds {
        outcome_id: OutcomeId::from_body(&format!("{number}")),
        receipt_id: ReceiptId::from_body(&format!("{number}")),
    }
}
