//! What the program costs before it does anything: time until ready, idle memory, size.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::Bench;
use crate::noise::{Noise, Watch};
use crate::program::Program;
use crate::report::{Budget, Line, Report, Unit};
use crate::samples::Samples;

const STARTS: usize = 15;
/// How long a server is left alone before its memory is read.
const IDLE: Duration = Duration::from_secs(1);

const READY_S_MAX: f64 = 0.1;
const MEMORY_BYTES_MAX: f64 = 30e6;
const BINARY_BYTES_MAX: f64 = 30e6;

pub(crate) async fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    let data = bench.path("start");
    let (mut first, mut again, mut bare) =
        (Samples::default(), Samples::default(), Samples::default());
    let mut noises: Vec<Noise> = Vec::new();
    for round in 0..STARTS {
        let start = Instant::now();
        version(bench)?;
        bare.add(start.elapsed());
        let fresh = bench.path(&format!("start-{round}"));
        for (data, samples) in [(&fresh, &mut first), (&data, &mut again)] {
            let watch = Watch::start(&[])?;
            let start = Instant::now();
            let program = Program::start(bench, data).await?;
            samples.add(start.elapsed());
            noises.push(watch.stop(&program.pids())?);
            program.stop()?;
        }
    }
    let noise = Some(mean(&noises));
    let peer = Some(("--version", bare.median()));
    let ready = |name, value| Line {
        name,
        value,
        unit: Unit::Seconds,
        peer,
        budget: Some(Budget::Value(READY_S_MAX)),
        noise,
    };
    report.add(ready("start.ready", again.median()));
    report.add(ready("start.ready.first", first.median()));

    let program = Program::start(bench, &data).await?;
    tokio::time::sleep(IDLE).await;
    let bytes = |name, value, most| Line {
        name,
        value,
        unit: Unit::Bytes,
        peer: None,
        budget: Some(Budget::Value(most)),
        noise: None,
    };
    report.add(bytes(
        "start.memory",
        program.resident_bytes()?,
        MEMORY_BYTES_MAX,
    ));
    program.stop()?;
    let binary = std::fs::metadata(&bench.program)?.len() as f64;
    report.add(bytes("start.binary", binary, BINARY_BYTES_MAX));
    Ok(())
}

/// Starts the program for nothing: what the operating system takes for it.
fn version(bench: &Bench) -> Result<()> {
    Command::new(&bench.program)
        .arg("--version")
        .stdout(Stdio::null())
        .status()
        .context("cannot start the program")?;
    Ok(())
}

fn mean(noises: &[Noise]) -> Noise {
    let mean = |of: fn(&Noise) -> f64| noises.iter().map(of).sum::<f64>() / noises.len() as f64;
    Noise {
        wait_per_run: mean(|noise| noise.wait_per_run),
        foreign_cores: mean(|noise| noise.foreign_cores),
    }
}
