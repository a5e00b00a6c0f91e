//! One run: lives of the engine, one after another, on what the last one left.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use canon::{Digest, sha256_parts};
use engine::port::{Layered, MemoryStore, ReadEvents, Scope, Store};
use engine::{Authority, Engine, Limits, Parts};

use crate::check::{ISSUER, Replays, check, check_end, check_life};
use crate::clients::{Client, Reader, SharedLedger, finish_all};
use crate::executor::Executor;
use crate::faults::Faults;
use crate::fields;
use crate::talker::workflows;
use crate::world::{Dice, SharedClock, SimClock, SimIds, SimPerformer, SimSpawn};

/// What a run left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Digest over all events.
    pub head: Digest,
    /// How many events there are.
    pub events: usize,
    /// How often the engine was killed.
    pub crashes: u32,
    /// How many replays there are.
    pub replays: Replays,
}

/// Runs one seed to its end.
///
/// # Errors
/// Says what did not hold.
pub fn run(seed: u64) -> Result<Report, String> {
    let dice = Dice::new(seed);
    let clock = Arc::new(SimClock::new());
    let ids = SimIds::default();
    let ledger = SharedLedger::default();
    let too_early = Arc::new(AtomicBool::new(false));
    let done_once = Arc::default();
    let mut store = Arc::new(MemoryStore::new("simulate", [9; 32]));
    let client_count = 1 + dice.below(3);
    let clients: Vec<Client> = (0..client_count)
        .map(|number| Client {
            number,
            actions: 2 + dice.below(7),
            dice: dice.clone(),
            ledger: ledger.clone(),
        })
        .collect();
    let crashes = dice.below(4);
    for life in 0..=crashes {
        let last = life == crashes;
        store = Arc::new(store.reopened());
        let must_crash = Arc::new(AtomicBool::new(false));
        let faults = Faults {
            dice: dice.clone(),
            must_crash: Arc::clone(&must_crash),
            // The last life must be able to finish.
            faults: !last,
        };
        let faulty = Layered {
            store: Arc::clone(&store),
            layer: faults,
        };
        let mut executor = Executor::default();
        let performer = SimPerformer {
            store: Arc::clone(&store),
            dice: dice.clone(),
            clock: SharedClock(Arc::clone(&clock)),
            too_early: Arc::clone(&too_early),
            done_once: Arc::clone(&done_once),
        };
        let began_at = store.head();
        let readers = [false, true].map(|pages| Reader {
            ledger: ledger.clone(),
            given: Arc::default(),
            pages,
        });
        let parts = Parts {
            store: Arc::new(faulty),
            clock: Arc::new(SharedClock(Arc::clone(&clock))),
            ids: Arc::new(ids.clone()),
            spawn: Arc::new(SimSpawn(Arc::clone(&executor.inbox))),
            performer: Arc::new(performer),
            secrets: None,
            workflows: workflows(),
            authority: Authority::with_one_key(ISSUER, "key-1", &[1; 32])
                .map_err(|error| error.to_string())?,
            limits: limits(&dice, last),
        };
        let reading = readers.clone();
        let finished = Arc::new(AtomicBool::new(false));
        let (inbox, done) = (Arc::clone(&executor.inbox), Arc::clone(&finished));
        let clients = clients.clone();
        let time = SharedClock(Arc::clone(&clock));
        executor.inbox.push(Box::pin(async move {
            // A life may end before its engine has started.
            let Ok(engine) = Engine::start(parts).await else {
                return;
            };
            for reader in reading {
                let (engine, time) = (engine.clone(), time.clone());
                inbox.push(Box::pin(reader.run(engine, time)));
            }
            let left = Arc::new(tokio::sync::Semaphore::new(0));
            let count = u32::try_from(clients.len()).unwrap_or(u32::MAX);
            let witness = clients.first().cloned();
            for client in clients {
                let (engine, left) = (engine.clone(), Arc::clone(&left));
                inbox.push(Box::pin(async move {
                    client.run(engine).await;
                    left.add_permits(1);
                }));
            }
            if left.acquire_many(count).await.is_ok() && last {
                finish_all(&engine, time).await;
                if let Some(witness) = witness {
                    fields::look(&engine, &witness).await;
                }
                engine.drain().await;
            }
            done.store(true, Ordering::Relaxed);
        }));
        live(
            &mut executor,
            &dice,
            &clock,
            &must_crash,
            last.then_some(&*finished),
        );
        if last && !finished.load(Ordering::Relaxed) {
            return Err(
                "the last life did not finish: somebody waits for what never comes".to_owned(),
            );
        }
        drop(executor);
        clock.forget();
        if too_early.load(Ordering::Relaxed) {
            return Err("an effect was performed before its intent was durable".to_owned());
        }
        if done_once.1.load(Ordering::Relaxed) {
            return Err("an effect that must not be repeated was performed twice".to_owned());
        }
        now_or_never(check_life(&store, began_at, &readers))
            .map_err(|error| format!("in life {life}: {error}"))?;
        now_or_never(check(&store, &ledger.lock()))
            .map_err(|error| format!("after life {life}: {error}"))?;
        now_or_never(fields::check(&store, &ledger.lock()))
            .map_err(|error| format!("the field after life {life}: {error}"))?;
    }
    let replays = now_or_never(check_end(&store, &ledger.lock()))?;
    let query = ReadEvents {
        scope: Scope::All,
        after: domain::Position::START,
        limit: usize::MAX,
    };
    let events =
        now_or_never(async { store.events(query).await.map_err(|error| error.to_string()) })?;
    let head = sha256_parts(
        events
            .iter()
            .flat_map(|event| [&*event.bytes, b"\n".as_slice()]),
    );
    Ok(Report {
        head,
        events: events.len(),
        crashes,
        replays,
    })
}

/// Lets an engine live until it crashes, or, in its last life, until everything is done.
fn live(
    executor: &mut Executor,
    dice: &Dice,
    clock: &SimClock,
    must_crash: &AtomicBool,
    last: Option<&AtomicBool>,
) {
    const STEPS_MAX: u32 = 500_000;
    let budget = if last.is_some() {
        STEPS_MAX
    } else {
        50 + dice.below(4_000)
    };
    for _ in 0..budget {
        if must_crash.load(Ordering::Relaxed)
            || last.is_some_and(|finished| finished.load(Ordering::Relaxed))
        {
            return;
        }
        if dice.one_in(500) {
            clock.jump(-i64::from(dice.below(5_000_000)));
        }
        if dice.one_in(3_000) {
            // Ahead by up to half an hour, and sometimes back again.
            let ahead = i64::from(dice.below(1_800_000_000));
            clock.jump(if dice.one_in(2) { ahead } else { -ahead });
        }
        let mut rng = dice.lock().fork();
        if !executor.step(&mut rng) && !clock.advance() {
            return;
        }
    }
}

fn limits(dice: &Dice, last: bool) -> Limits {
    // Sometimes clients find the queue full. The last life must be able to finish.
    let pending = match dice.below(3) {
        0 if !last => 1 + dice.below(3) as usize,
        _ => 1_000,
    };
    Limits {
        batch_len_max: 1 + dice.below(8) as usize,
        pending_commands_max: pending,
        workers_max: 1 + dice.below(4) as usize,
        open_tasks_max: 1_000,
        stored_bytes_max: u64::MAX,
        streams_max: 10,
        fork_messages_max: 100,
        settle_window: Duration::from_millis(250),
        start_window: Duration::from_secs(2),
        idempotency_window: Duration::from_secs(86_400),
        leaf_interval: Duration::from_millis(200),
        head_leaves_max: 100,
        head_interval: Duration::from_secs(60),
        receipt_window: Duration::from_secs(2),
        drain_window: Duration::from_secs(1),
    }
}

/// Runs a future on the bare in-memory store, which never waits.
fn now_or_never<T>(future: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let mut future = std::pin::pin!(future);
    match future
        .as_mut()
        .poll(&mut std::task::Context::from_waker(std::task::Waker::noop()))
    {
        std::task::Poll::Ready(result) => result,
        std::task::Poll::Pending => Err("the in-memory store made somebody wait".to_owned()),
    }
}
