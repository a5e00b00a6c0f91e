//! How much other programs disturbed a measurement, as the scheduler counted it.
//!
//! A thread that slept in a sync waits for a core before it runs again; on a busy machine that wait is longer than
//! what is measured. Waiting for our own threads is part of the cost, waiting for others is not: only both together,
//! much waiting and busy others, make a measurement worthless.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::time::Instant;

use anyhow::{Context, Result};

/// Waiting for a core per time on a core, above which a figure says more about the machine than about us.
pub(crate) const WAIT_PER_RUN_MAX: f64 = 0.25;

/// Cores that others may use meanwhile. The kernel's own work for our syncs counts as others', hence not zero.
pub(crate) const FOREIGN_CORES_MAX: f64 = 0.35;

/// The kernel counts the time of all cores in hundredths of a second.
const TICK_NS: u64 = 10_000_000;

/// What the machine did during a measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Noise {
    /// Time that the measured processes waited for a core, per time on one.
    pub(crate) wait_per_run: f64,
    /// Cores that other programs used.
    pub(crate) foreign_cores: f64,
}

impl Noise {
    pub(crate) fn is_too_much(self) -> bool {
        self.wait_per_run > WAIT_PER_RUN_MAX && self.foreign_cores > FOREIGN_CORES_MAX
    }
}

impl fmt::Display for Noise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            wait_per_run,
            foreign_cores,
        } = self;
        write!(f, "{wait_per_run:.2} ({foreign_cores:.1} cores)")
    }
}

/// A measurement under way.
#[derive(Debug)]
pub(crate) struct Watch {
    began: Instant,
    busy_ns: u64,
    threads: BTreeMap<Thread, Times>,
}

/// Process and thread.
type Thread = (u32, String);

#[derive(Debug, Clone, Copy, Default)]
struct Times {
    run_ns: u64,
    wait_ns: u64,
}

impl Watch {
    /// Begins to watch this process and others of ours that already run.
    pub(crate) fn start(others: &[u32]) -> Result<Self> {
        Ok(Self {
            began: Instant::now(),
            busy_ns: busy_ns()?,
            threads: threads(others),
        })
    }

    /// Ends it. Processes that were started meanwhile count from their start.
    pub(crate) fn stop(self, others: &[u32]) -> Result<Noise> {
        let (mut run_ns, mut wait_ns) = (0, 0);
        for (thread, now) in threads(others) {
            let before = self.threads.get(&thread).copied().unwrap_or_default();
            run_ns += now.run_ns.saturating_sub(before.run_ns);
            wait_ns += now.wait_ns.saturating_sub(before.wait_ns);
        }
        let foreign_ns = busy_ns()?
            .saturating_sub(self.busy_ns)
            .saturating_sub(run_ns);
        Ok(Noise {
            wait_per_run: wait_ns as f64 / run_ns.max(1) as f64,
            foreign_cores: foreign_ns as f64 / 1e9 / self.began.elapsed().as_secs_f64(),
        })
    }
}

/// Reads the scheduler's times of every thread. One that ended meanwhile is not there, and not counted.
fn threads(others: &[u32]) -> BTreeMap<Thread, Times> {
    let mut found = BTreeMap::new();
    for pid in others.iter().copied().chain([std::process::id()]) {
        let Ok(entries) = fs::read_dir(format!("/proc/{pid}/task")) else {
            continue;
        };
        for entry in entries.flatten() {
            let text = fs::read_to_string(entry.path().join("schedstat")).unwrap_or_default();
            let mut numbers = text.split_whitespace().map(str::parse::<u64>);
            if let (Some(Ok(run_ns)), Some(Ok(wait_ns))) = (numbers.next(), numbers.next()) {
                let name = entry.file_name().to_string_lossy().into_owned();
                found.insert((pid, name), Times { run_ns, wait_ns });
            }
        }
    }
    found
}

/// Returns how long the threads of a process have been on a core.
pub(crate) fn cpu_seconds(pid: u32) -> f64 {
    let ours = threads(&[pid]);
    let of_process = ours.iter().filter(|((process, _), _)| *process == pid);
    of_process
        .map(|(_, times)| times.run_ns as f64)
        .sum::<f64>()
        / 1e9
}

/// Returns how long all cores together have been busy, whoever kept them.
fn busy_ns() -> Result<u64> {
    let text = fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
    let line = text.lines().next().unwrap_or_default();
    // user nice system idle iowait irq softirq steal; guests are part of user.
    let ticks: u64 = line
        .split_whitespace()
        .skip(1)
        .take(8)
        .enumerate()
        .filter(|(column, _)| !matches!(column, 3 | 4))
        .filter_map(|(_, text)| text.parse::<u64>().ok())
        .sum();
    Ok(ticks * TICK_NS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_waiting_for_others_is_too_much() {
        let check = |wait_per_run, foreign_cores, expect| {
            let noise = Noise {
                wait_per_run,
                foreign_cores,
            };
            assert_eq!(noise.is_too_much(), expect, "{noise}");
        };
        check(5.0, 1.5, true);
        check(5.0, 0.1, false);
        check(0.1, 1.5, false);
    }

    #[test]
    fn time_on_a_core_is_seen() {
        let watch = Watch::start(&[]).unwrap();
        let began = Instant::now();
        let mut sum = 0_u64;
        while began.elapsed().as_millis() < 30 {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        let before = watch
            .threads
            .values()
            .map(|times| times.run_ns)
            .sum::<u64>();
        let after = threads(&[]).values().map(|times| times.run_ns).sum::<u64>();
        assert!(after > before, "{before} {after}");
        assert!(watch.stop(&[]).unwrap().wait_per_run.is_finite());
    }
}
