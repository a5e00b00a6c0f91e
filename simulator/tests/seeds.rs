//! The seeds of the test command. `cargo xtask soak` runs more.

/// Style section 11: at least a thousand seeds, each run twice with equal result.
#[test]
fn a_thousand_seeds_hold_and_repeat_exactly() {
    const SEEDS: u64 = 1_000;
    let halves: Vec<_> = [1..=SEEDS / 2, SEEDS / 2 + 1..=SEEDS]
        .into_iter()
        .map(|seeds| {
            std::thread::spawn(move || {
                for seed in seeds {
                    let once = simulator::run(seed);
                    assert_eq!(once, simulator::run(seed), "seed {seed}: two runs differ");
                    if let Err(problem) = once {
                        panic!("seed {seed}: {problem}; repeat with: cargo run --package simulator -- 1 {seed}");
                    }
                }
            })
        })
        .collect();
    for half in halves {
        half.join().unwrap();
    }
}

#[test]
fn seeds_crash_engines_and_leave_different_logs() {
    let reports: Vec<_> = (1..=40).map(|seed| simulator::run(seed).unwrap()).collect();
    assert!(reports.iter().any(|report| report.crashes > 1));
    let tasks: usize = reports.iter().map(|report| report.replays.tasks).sum();
    let sessions: usize = reports.iter().map(|report| report.replays.sessions).sum();
    assert!(
        tasks > 40 && sessions > 10,
        "{tasks} and {sessions} replays"
    );
    let heads: std::collections::BTreeSet<_> = reports.iter().map(|report| report.head).collect();
    assert!(heads.len() > 35, "{} different heads", heads.len());
}
