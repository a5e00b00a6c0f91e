//! Instructions of compiling, narrowing and judging, each held against a limit.
//!
//! A limit is the measured count plus a tenth. Whoever makes something dearer on purpose raises it in the same commit;
//! whoever makes it cheaper lowers it. Inputs are those of `cargo xtask bench verdicts`, and are made outside of what is counted.

#[path = "../../verdicts/src/fixture.rs"]
mod fixture;

use std::hint::black_box;
use std::sync::Arc;

use contracts::backtest::{RecordEntry, Verdicts, backtest};
use contracts::{
    Answers, Compiled, Judgement, Narrowing, JudgeContext, Request, Response, Rules, Source, State, Status, compile, judge,
    narrow,
};
use gungraun::prelude::*;
use gungraun::{Callgrind, EventKind};

use fixture::{at, compiled, past, proposal, recorded_rules, recorded_run, request, rules, session, sources};

fn at_most(instructions: u64) -> LibraryBenchmarkConfig {
    let mut callgrind = Callgrind::default();
    callgrind.hard_limits([(EventKind::Ir, instructions)]);
    let mut config = LibraryBenchmarkConfig::default();
    config.tool(callgrind);
    config
}

fn files(count: usize) -> (Vec<Source>, Source) {
    (sources(count), session(count))
}

#[library_benchmark]
#[bench::of_10(args = (10), setup = files, config = at_most(3_975_000))]
#[bench::of_100(args = (100), setup = files, config = at_most(37_550_000))]
fn compile_files((contracts, session): (Vec<Source>, Source)) -> (Compiled, Vec<Source>) {
    let compiled = compile(black_box(&contracts), Some(black_box(&session)));
    (black_box(compiled.expect("the contracts compile")), contracts)
}

/// A session with a past, and what is asked of it next.
struct Asked {
    rules: Rules,
    state: State,
    request: Request,
    response: Response,
    steps: usize,
}

fn asked(count: usize, steps: usize) -> Asked {
    let compiled = compiled(count);
    Asked {
        rules: rules(&compiled),
        state: past(&compiled, count, steps),
        request: request(count),
        response: proposal(1, 1_000_000),
        steps,
    }
}

#[library_benchmark]
#[bench::tools_100(args = (100, 1_000), setup = asked, config = at_most(189_000))]
fn narrow_tools(asked: Asked) -> (Narrowing, Asked) {
    let narrowing = narrow(black_box(&asked.rules), &asked.state, &asked.request.tools);
    (black_box(narrowing), asked)
}

// From the text of the arguments to the verdict; the past must not show.
#[library_benchmark]
#[bench::contracts_100_steps_100(args = (100, 100), setup = asked, config = at_most(33_200))]
#[bench::contracts_100_steps_1_000(args = (100, 1_000), setup = asked, config = at_most(33_600))]
#[bench::contracts_1_000_steps_1_000(args = (1_000, 1_000), setup = asked, config = at_most(34_700))]
fn judge_response(asked: Asked) -> Asked {
    let answers = Answers::new();
    let occasion = JudgeContext {
        request: &asked.request,
        now: at(asked.steps + 1),
        proposal: None,
        answers: &answers,
    };
    let judgement = judge(black_box(&asked.rules), &asked.state, &asked.response, occasion);
    assert!(is_allowed(&judgement), "the call is allowed");
    drop(black_box(judgement));
    asked
}

fn is_allowed(judgement: &Judgement) -> bool {
    let mut verdicts = judgement.verdicts().iter();
    verdicts.all(|verdict| verdict.status() == Status::Allow)
}

fn recorded() -> (Rules, Vec<RecordEntry>) {
    let compiled: Arc<Compiled> = compiled(100);
    (recorded_rules(&compiled), recorded_run(7))
}

#[library_benchmark(config = at_most(20_020_000))]
#[bench::turns_50(setup = recorded)]
fn judge_again((rules, entries): (Rules, Vec<RecordEntry>)) -> (Verdicts, Rules, Vec<RecordEntry>) {
    let verdicts = backtest(black_box(&rules), at(0), black_box(&entries));
    (black_box(verdicts), rules, entries)
}

library_benchmark_group!(
    name = verdicts,
    benchmarks = [compile_files, narrow_tools, judge_response, judge_again]
);

main!(library_benchmark_groups = verdicts);
