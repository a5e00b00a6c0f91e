//! What recording one effect costs: the agent through the engine beside the same machine and performer alone.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use engine::port::{Deltas, MemoryStore, Performer, Store};
use runs::workflow::{EffectAnswer, Registry, Start, Step, builtin};
use serde_json::json;
use server::world::SystemClock;

use super::run::{agent, define};
use crate::Bench;
use crate::disk::Disk;
use crate::log::{Log, start};
use crate::noise::Watch;
use crate::report::{Line, Report, Unit};
use crate::samples::Samples;
use crate::script::{LARGE, SMALL, Script, persona};

const TURNS: u64 = 50;
/// One of the host, then a model call and, but for the last turn, a tool each.
const EFFECTS: u32 = 100;
const ROUNDS: usize = 15;
const WARM_UP: usize = 3;

pub(super) async fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    measure(
        ["replay.record.memory.small", "replay.record.sqlite.small"],
        "replay.record.sqlite.small.sync",
        &SMALL,
        bench,
        report,
    )
    .await?;
    measure(
        ["replay.record.memory.4k", "replay.record.sqlite.4k"],
        "replay.record.sqlite.4k.sync",
        &LARGE,
        bench,
        report,
    )
    .await
}

async fn measure(
    [in_memory, on_disk]: [&'static str; 2],
    synced: &'static str,
    lengths: &RangeInclusive<usize>,
    bench: &Bench,
    report: &mut Report,
) -> Result<()> {
    let script = || Arc::new(Script::new(TURNS, lengths.clone(), 0));
    let memory = Arc::new(MemoryStore::new("load0000", [1; 32]));
    let store = Arc::clone(&memory) as Arc<dyn Store>;
    let engine = start(store, script(), Arc::new(SystemClock)).await?;
    let log = Log::open_with(&bench.path(on_disk), script()).await?;
    let persona_id = define(&engine, TURNS).await?;
    define(log.engine(), TURNS).await?;
    let mut disk = Disk::create(&bench.path(synced))?;
    let bare = script();
    let [mut alone, mut kept, mut stored, mut syncs] =
        std::array::from_fn::<_, 4, _>(|_| Samples::default());
    let mut watch = Watch::start(&[])?;
    for round in 0..WARM_UP + ROUNDS {
        if round == WARM_UP {
            [alone, kept, stored, syncs] = std::array::from_fn(|_| Samples::default());
            watch = Watch::start(&[])?;
        }
        alone.add(without_recording(&bare).await? / EFFECTS);
        let began = Instant::now();
        agent(&engine, &*memory, &persona_id, "Look.".to_owned()).await?;
        kept.add(began.elapsed() / EFFECTS);
        let began = Instant::now();
        let input = "Look.".to_owned();
        agent(log.engine(), log.store(), &persona_id, input).await?;
        stored.add(began.elapsed() / EFFECTS);
        for _ in 0..EFFECTS {
            let began = Instant::now();
            disk.append()?;
            syncs.add(began.elapsed());
        }
    }
    let noise = Some(watch.stop(&[])?);
    engine.drain().await;
    log.close().await?;
    let line = |name, value, peer| Line {
        name,
        value,
        unit: Unit::Seconds,
        peer: Some(peer),
        budget: None,
        noise,
    };
    let loop_alone = ("the loop alone", alone.median());
    report.add(line(in_memory, kept.median(), loop_alone));
    report.add(line(on_disk, stored.median(), loop_alone));
    report.add(line(synced, stored.median(), ("sync", syncs.median())));
    Ok(())
}

/// Runs the machine with the performer, and keeps nothing.
async fn without_recording(performer: &Script) -> Result<Duration> {
    let workflows = Registry::new(builtin());
    let workflow = workflows.find("agent").context("no workflow `agent`")?;
    let start = Start {
        input: json!("Look."),
        persona: Some(persona(TURNS)?.1),
    };
    let began = Instant::now();
    let mut machine = workflow.begin(&start);
    let mut answers = Vec::new();
    loop {
        match machine.step(&answers) {
            Step::Request { effects, .. } => {
                answers.clear();
                for effect in effects {
                    let performed = performer.perform(effect.into_effect(), Deltas::none());
                    let performed = performed.await;
                    answers.push(EffectAnswer {
                        ok: performed.ok,
                        value: performed.value,
                        model: performed.model,
                    });
                }
            }
            Step::Done { .. } => return Ok(began.elapsed()),
            Step::Failed { message, .. } => bail!("the run failed: {message}"),
        }
    }
}
