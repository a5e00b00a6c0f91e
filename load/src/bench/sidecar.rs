//! Replay blocks: raw inputs beside the bare hash, structured ones beside the bare parser, a thousand verifications
//! beside a thousand starts, and the memory for an input larger than it.

use std::fs::{self, File};
use std::hint::black_box;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ::sidecar::{Profile, canonical_hash};
use anyhow::{Context, Result, ensure};
use canon::Digest;
use fastrand::Rng;
use saphyr_parser::Parser;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::task::yield_now;

use crate::Bench;
use crate::noise::Watch;
use crate::report::{Budget, Line, Report, Unit};
use crate::samples::Samples;

/// Long enough that the start of the program does not count.
const RAW_BYTES: usize = 512 << 20;
const RAW_ROUNDS: usize = 7;
const RAW_RATIO_MAX: f64 = 1.2;

const STRUCTURED_ROUNDS: usize = 40;
const STRUCTURED_RATIO_MAX: f64 = 1.5;
/// Nine nodes each, and 100,000 are the most that are read.
const STRUCTURED_ENTRIES: usize = 8_000;

const SIDECARS: usize = 1_000;

const LARGE_BYTES: u64 = 4 << 30;
const SMALL_BYTES: u64 = 64 << 20;
/// Flat: what differs is noise of the allocator.
const MEMORY_RATIO_MAX: f64 = 1.1;

pub(crate) async fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    let folder = bench.path("sidecar");
    fs::create_dir(&folder)?;
    raw(bench, &folder, report)?;
    // Between the parts somebody may end the run.
    yield_now().await;
    structured(report)?;
    yield_now().await;
    many(bench, &folder, report)?;
    yield_now().await;
    memory(bench, &folder, report)
}

/// The program over a file, the bare hash over the same bytes in memory, in turns.
fn raw(bench: &Bench, folder: &Path, report: &mut Report) -> Result<()> {
    let mut bytes = vec![0; RAW_BYTES];
    Rng::with_seed(3).fill(&mut bytes);
    fs::write(folder.join("raw.bin"), &bytes)?;
    let hash = canon::sha256(&bytes);
    write_sidecar(folder, "raw", &[input("raw.bin", hash, "raw-bytes")])?;
    let [mut program, mut bare] = [Samples::default(), Samples::default()];
    let watch = Watch::start(&[])?;
    for round in 0..=RAW_ROUNDS {
        let start = Instant::now();
        black_box(Sha256::digest(black_box(&bytes)));
        let bare_took = start.elapsed();
        let start = Instant::now();
        ended_with(verify(bench, folder, "raw")?, 0)?;
        let program_took = start.elapsed();
        // The first round fills caches.
        if round > 0 {
            bare.add(bare_took);
            program.add(program_took);
        }
    }
    report.add(Line {
        name: "sidecar.raw",
        value: program.median(),
        unit: Unit::Seconds,
        peer: Some(("bare SHA-256", bare.median())),
        budget: Some(Budget::Ratio(RAW_RATIO_MAX)),
        noise: Some(watch.stop(&[])?),
    });
    fs::remove_file(folder.join("raw.bin"))?;
    Ok(())
}

/// The canonical hash of a text beside the events of the parser over it, as block YAML and as JSON.
fn structured(report: &mut Report) -> Result<()> {
    for (name, text) in [
        ("sidecar.structured.yaml", block_yaml()),
        ("sidecar.structured.json", json_text()),
    ] {
        let [mut ours, mut parser] = [Samples::default(), Samples::default()];
        let watch = Watch::start(&[])?;
        for _ in 0..STRUCTURED_ROUNDS {
            let start = Instant::now();
            for event in Parser::new_from_str(&text) {
                black_box(event.context("the parser refuses the text")?);
            }
            parser.add(start.elapsed());
            let start = Instant::now();
            black_box(canonical_hash(text.as_bytes(), Profile::Jcs1)?);
            ours.add(start.elapsed());
        }
        report.add(Line {
            name,
            value: ours.median(),
            unit: Unit::Seconds,
            peer: Some(("parser events", parser.median())),
            budget: Some(Budget::Ratio(STRUCTURED_RATIO_MAX)),
            noise: Some(watch.stop(&[])?),
        });
    }
    Ok(())
}

/// Entries as in a configuration: words, numbers, flags, a list.
fn block_yaml() -> String {
    let entry = |index: usize| {
        format!(
            "entry-{index}:\n  title: The entry with number {index}\n  weight: {index}.5\n  active: true\n  tags:\n    - one\n    - two\n"
        )
    };
    (0..STRUCTURED_ENTRIES).map(entry).collect()
}

fn json_text() -> String {
    let entry = |index: usize| {
        let value = json!({
            "title": format!("The entry with number {index}"),
            "weight": index as f64 + 0.5, "active": true, "tags": ["one", "two"],
        });
        (format!("entry-{index}"), value)
    };
    format!("{:#}", Value::from_iter((0..STRUCTURED_ENTRIES).map(entry)))
}

/// One process for each sidecar, as a check in CI has it, beside starts that do nothing.
fn many(bench: &Bench, folder: &Path, report: &mut Report) -> Result<()> {
    let prompt = "Do what the task says.\n".repeat(200);
    let config = "model: demo-1\nsteps: 3\ntools: [read, write]\n".to_owned();
    let canonical = canonical_hash(config.as_bytes(), Profile::Jcs1)?;
    fs::write(folder.join("prompt.md"), &prompt)?;
    fs::write(folder.join("config.yml"), &config)?;
    let inputs = [
        input("prompt.md", canon::sha256(prompt.as_bytes()), "raw-bytes"),
        input("config.yml", canonical, "canonical-json"),
    ];
    let name = |index: usize| format!("report-{index}");
    for index in 0..SIDECARS {
        write_sidecar(folder, &name(index), &inputs)?;
    }
    let watch = Watch::start(&[])?;
    let (mut verified, mut started) = (Duration::ZERO, Duration::ZERO);
    for index in 0..SIDECARS {
        let start = Instant::now();
        ended_with(verify(bench, folder, &name(index))?, 0)?;
        verified += start.elapsed();
        let start = Instant::now();
        ended_with(quiet(Command::new(&bench.program).arg("--version"))?, 0)?;
        started += start.elapsed();
    }
    report.add(Line {
        name: "sidecar.verify.1000",
        value: verified.as_secs_f64(),
        unit: Unit::Seconds,
        peer: Some(("starts", started.as_secs_f64())),
        budget: None,
        noise: Some(watch.stop(&[])?),
    });
    Ok(())
}

/// The most memory the program takes for a large sparse file and for a small one.
fn memory(bench: &Bench, folder: &Path, report: &mut Report) -> Result<()> {
    let peak = |name: &str, bytes: u64| -> Result<f64> {
        let file = format!("{name}.bin");
        File::create(folder.join(&file))?.set_len(bytes)?;
        // Of other bytes, so that the answer is drift: computing the hash here would take as long again.
        let other = canon::sha256(b"");
        write_sidecar(folder, name, &[input(&file, other, "raw-bytes")])?;
        let child = verify(bench, folder, name)?;
        let peak = peak_bytes(child)?;
        fs::remove_file(folder.join(&file))?;
        Ok(peak)
    };
    let small = peak("small", SMALL_BYTES)?;
    let large = peak("large", LARGE_BYTES)?;
    report.add(Line {
        name: "sidecar.memory.4GB",
        value: large,
        unit: Unit::Bytes,
        peer: Some(("64 MB input", small)),
        budget: Some(Budget::Ratio(MEMORY_RATIO_MAX)),
        noise: None,
    });
    Ok(())
}

/// Follows a process to its end and returns the most memory it had.
fn peak_bytes(mut child: Child) -> Result<f64> {
    let file = format!("/proc/{}/status", child.id());
    let mut peak_kib: f64 = 0.0;
    let status = loop {
        // The kernel's own maximum: a look that comes late still sees it. A process that has just ended shows none.
        let text = fs::read_to_string(&file).unwrap_or_default();
        let kib = text.lines().find_map(|line| {
            let rest = line.strip_prefix("VmHWM:")?;
            rest.split_whitespace().next()?.parse::<f64>().ok()
        });
        peak_kib = peak_kib.max(kib.unwrap_or(0.0));
        if let Some(status) = child.try_wait()? {
            break status;
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    ensure!(status.code() == Some(1), "verify ended with {status}");
    ensure!(peak_kib > 0.0, "the process ended unseen");
    Ok(peak_kib * 1024.0)
}

fn input(path: &str, hash: Digest, mode: &str) -> Value {
    json!({"role": "data", "path": path, "hash": hash.to_string(), "mode": mode})
}

fn write_sidecar(folder: &Path, name: &str, inputs: &[Value]) -> Result<()> {
    let document = json!({
        "schema_version": 1, "kind": "bench", "platform": "any", "argv": ["true"],
        "tool": {"name": "bench", "version": "0", "commit": null, "dirty": null},
        "invoked_at": "2026-01-01T00:00:00Z", "inputs": inputs,
    });
    fs::write(
        folder.join(format!("{name}.replay.json")),
        document.to_string(),
    )?;
    Ok(())
}

fn verify(bench: &Bench, folder: &Path, name: &str) -> Result<Child> {
    quiet(
        Command::new(&bench.program)
            .args(["sidecar", "verify", "--root"])
            .arg(folder)
            .arg(folder.join(format!("{name}.replay.json"))),
    )
}

fn quiet(command: &mut Command) -> Result<Child> {
    let command = command.stdin(Stdio::null()).stdout(Stdio::null());
    command
        .spawn()
        .with_context(|| format!("cannot start {command:?}"))
}

fn ended_with(mut child: Child, code: i32) -> Result<()> {
    let status = child.wait()?;
    ensure!(
        status.code() == Some(code),
        "the program ended with {status}"
    );
    Ok(())
}
