//! SIGKILL at any moment, again and again, while clients write.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use testing::process::PATIENCE;
use tokio::sync::watch;

use crate::history::History;
use crate::host::{Host, generator};
use crate::load::{Scene, Stage, Worker};

const KILLS: u32 = 200;
const CLIENTS: usize = 5;
/// How many kills there are between two checks of the files.
const CHECK_EVERY: u32 = 50;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ap_task_03_ap_idem_09_what_was_acknowledged_survives_200_kills_under_load() {
    let mut rng = generator();
    let mut host = Host::new();
    let scene = Arc::new(Scene {
        stage: watch::Sender::new(Stage::Up),
        answers: AtomicU64::new(0),
    });
    let clients: Vec<_> = (0..CLIENTS)
        .map(|name| {
            let client = Worker::new(host.api(), Arc::clone(&scene), rng.fork(), name);
            tokio::spawn(client.run())
        })
        .collect();
    let mut history = History::default();
    for kill in 1..=KILLS {
        // After a number of answers, and a bit: somewhere in the middle of other requests.
        let moment = scene.answers.load(Ordering::Relaxed) + rng.u64(0..60);
        let began = Instant::now();
        while scene.answers.load(Ordering::Relaxed) < moment {
            if let Some(broken) = clients.iter().position(|client| client.is_finished()) {
                panic!("client {broken} stopped before kill {kill}");
            }
            assert!(
                began.elapsed() < PATIENCE,
                "nothing happens before kill {kill}"
            );
            tokio::task::yield_now().await;
        }
        tokio::time::sleep(Duration::from_micros(rng.u64(0..3_000))).await;
        host.kill();
        scene.stage.send_replace(Stage::Down);
        if kill % CHECK_EVERY == 0 {
            host.must_verify();
        }
        // A start that is killed in its turn, at any point of it.
        if rng.u32(0..5) == 0 {
            host.start_and_kill(Duration::from_micros(rng.u64(0..80_000)));
        }
        host.start();
        // Nothing that was read before is changed by what comes after: at the end all of it is read once more.
        history.read_on(&host.api()).await;
        scene.stage.send_replace(Stage::Up);
    }
    scene.stage.send_replace(Stage::Last);
    let api = host.api();
    let mut acknowledged = 0;
    for client in clients {
        let memory = client.await.unwrap();
        memory.check(&api).await;
        acknowledged += memory.len();
    }
    // Enough was going on for the kills to hit something.
    assert!(acknowledged > KILLS as usize, "only {acknowledged}");
    history.read_on(&api).await;
    assert_eq!(History::of(&api).await.events, history.events);
    host.kill();
    host.must_verify();
    println!(
        "{KILLS} kills, {acknowledged} writes acknowledged, {} events",
        history.events.len()
    );
}
