//! How long a verdict takes, and how that grows with contracts and with the past. Times, so never a gate: it prints.
//!
//! `cargo xtask bench verdicts`

use std::hint::black_box;
use std::time::Instant;

use instructions::World;

const SAMPLES: usize = 20_000;

fn main() {
    println!("{:>9} {:>9} {:>12} {:>12}", "contracts", "steps", "median ns", "p99 ns");
    for (contracts, steps) in [
        (10, 1_000),
        (100, 1_000),
        (1_000, 1_000),
        (100, 100),
        (100, 10_000),
        (100, 100_000),
    ] {
        let world = World::new(contracts, steps);
        let mut times: Vec<u128> = Vec::with_capacity(SAMPLES);
        for _ in 0..SAMPLES {
            let began = Instant::now();
            black_box(black_box(&world).judge());
            times.push(began.elapsed().as_nanos());
        }
        times.sort_unstable();
        let (median, p99) = (times[SAMPLES / 2], times[SAMPLES * 99 / 100]);
        println!("{contracts:>9} {steps:>9} {median:>12} {p99:>12}");
    }
}
