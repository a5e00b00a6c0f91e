//! Instructions of compiling, narrowing and judging by contracts, each held against a limit.
//!
//! A limit is the measured count plus a tenth, as in `receipts.rs`.

use std::hint::black_box;

use contracts::{Compiled, Judgement, Narrowing, Source};
use gungraun::prelude::*;
use gungraun::{Callgrind, EventKind};
use instructions::{World, compiled, sources};

fn at_most(instructions: u64) -> LibraryBenchmarkConfig {
    let mut callgrind = Callgrind::default();
    callgrind.hard_limits([(EventKind::Ir, instructions)]);
    let mut config = LibraryBenchmarkConfig::default();
    config.tool(callgrind);
    config
}

fn hundred() -> (Vec<Source>, Source) {
    sources(100)
}

fn after_a_thousand_steps() -> World {
    World::new(100, 1_000)
}

#[library_benchmark(config = at_most(COMPILE_LIMIT))]
#[bench::hundred_contracts(setup = hundred)]
fn compile(files: (Vec<Source>, Source)) -> (Compiled, (Vec<Source>, Source)) {
    (black_box(compiled(black_box(&files))), files)
}

#[library_benchmark(config = at_most(NARROW_LIMIT))]
#[bench::hundred_contracts(setup = after_a_thousand_steps)]
fn narrow(world: World) -> (Narrowing, World) {
    (black_box(black_box(&world).narrow()), world)
}

#[library_benchmark(config = at_most(JUDGE_LIMIT))]
#[bench::hundred_contracts(setup = after_a_thousand_steps)]
fn judge(world: World) -> (Judgement, World) {
    (black_box(black_box(&world).judge()), world)
}

const COMPILE_LIMIT: u64 = 200_000_000;
const NARROW_LIMIT: u64 = 10_000_000;
const JUDGE_LIMIT: u64 = 1_000_000;

library_benchmark_group!(name = verdicts, benchmarks = [compile, narrow, judge]);

main!(library_benchmark_groups = verdicts);
