//! Instructions of what a governed session does again and again, each held against a limit: compiling its contracts,
//! narrowing the tools of a request, judging a response.
//!
//! The contracts are those of `examples/refund-desk`. A limit is the measured count plus a tenth, as in `receipts.rs`.

use std::hint::black_box;
use std::sync::Arc;

use contracts::{
    Answers, Begin, Call, Executors, FinishReason, Judgement, Narrowing, Occasion, OfferedTool,
    Options, ProposedCall, Request, Response, Rules, Source, State, ToolChoice, Value, compile,
    judge, narrow,
};
use domain::Timestamp;
use gungraun::prelude::*;
use gungraun::{Callgrind, EventKind};

const TOOLS: [(&str, &str); 4] = [
    (
        "find_order",
        include_str!("../../../examples/refund-desk/contracts/find_order.yaml"),
    ),
    (
        "assess_return",
        include_str!("../../../examples/refund-desk/contracts/assess_return.yaml"),
    ),
    (
        "pay_back",
        include_str!("../../../examples/refund-desk/contracts/pay_back.yaml"),
    ),
    (
        "send_note",
        include_str!("../../../examples/refund-desk/contracts/send_note.yaml"),
    ),
];
const SESSION: &str = include_str!("../../../examples/refund-desk/contracts/session.yaml");

fn at_most(instructions: u64) -> LibraryBenchmarkConfig {
    let mut callgrind = Callgrind::default();
    callgrind.hard_limits([(EventKind::Ir, instructions)]);
    let mut config = LibraryBenchmarkConfig::default();
    config.tool(callgrind);
    config
}

fn files() -> (Vec<Source>, Source) {
    let source = |file: String, text: &str| Source {
        file,
        text: text.to_owned(),
    };
    let tools = TOOLS.iter();
    let tools = tools.map(|(tool, text)| source(format!("{tool}.yaml"), text));
    (tools.collect(), source("session.yaml".to_owned(), SESSION))
}

#[library_benchmark(config = at_most(COMPILE_MAX))]
#[bench::desk(setup = files)]
fn compiles((tools, session): (Vec<Source>, Source)) -> contracts::Compiled {
    black_box(compile(black_box(&tools), Some(&session))).expect("the example compiles")
}

/// A session in its first phase, and a request with all tools.
struct Desk {
    rules: Rules,
    state: State,
    request: Request,
    response: Response,
    answers: Answers,
}

fn desk() -> Desk {
    let (tools, session) = files();
    let compiled = compile(&tools, Some(&session)).expect("the example compiles");
    let mut options = Options::new("desk-1");
    options.executors = Executors::All;
    options.answers_checkpoints = true;
    let principal = r#"{"role":"desk","trainee":false}"#;
    let principal = contracts::json::read(
        principal,
        contracts::json::Limits::PRINCIPAL,
        contracts::json::Numbers::Any,
    );
    options.principal = principal.ok();
    let rules = Rules::new(Arc::new(compiled), options).expect("the example can be used");
    let begin = Begin {
        session_id: "desk-1".to_owned(),
        agent: None,
        at: Timestamp::from_micros(0),
        compiled: rules.compiled().digest(),
        labels: Vec::new(),
        slots: std::collections::BTreeMap::new(),
    };
    let state = State::begin(rules.compiled(), &begin).expect("it begins");
    let call = |id: &str, name: &str, arguments: &str| ProposedCall {
        id: id.to_owned(),
        name: name.to_owned(),
        arguments: arguments.to_owned(),
    };
    Desk {
        rules,
        state,
        request: Request {
            provider: "openai".to_owned(),
            model: "gpt-4o-mini".to_owned(),
            tools: TOOLS.map(|(tool, _)| OfferedTool::named(tool)).into(),
            choice: ToolChoice::Auto,
            unsupported: None,
            view: Value::Null,
        },
        response: Response {
            finish_reason: FinishReason::ToolCalls,
            content: None,
            calls: vec![
                call("c1", "find_order", r#"{"order_id":"A-17"}"#),
                call(
                    "c2",
                    "pay_back",
                    r#"{"order_id":"A-17","amount_cents":9000,"currency":"EUR"}"#,
                ),
            ],
        },
        answers: Answers::new(),
    }
}

#[library_benchmark(config = at_most(NARROW_MAX))]
#[bench::desk(setup = desk)]
fn narrows(desk: Desk) -> (Narrowing, Desk) {
    let narrowing = narrow(
        black_box(&desk.rules),
        black_box(&desk.state),
        &desk.request.tools,
    );
    (black_box(narrowing), desk)
}

// Two calls: one that is allowed, and one that fails in five places.
#[library_benchmark(config = at_most(JUDGE_MAX))]
#[bench::desk(setup = desk)]
fn judges(desk: Desk) -> (usize, Desk) {
    let occasion = Occasion {
        request: &desk.request,
        now: Timestamp::from_micros(1),
        proposal: None,
        answers: &desk.answers,
    };
    let judgement: Judgement = judge(
        black_box(&desk.rules),
        black_box(&desk.state),
        black_box(&desk.response),
        occasion,
    );
    let standing: Vec<Call> = black_box(judgement).standing();
    (standing.len(), desk)
}

const COMPILE_MAX: u64 = 100_000_000;
const NARROW_MAX: u64 = 100_000_000;
const JUDGE_MAX: u64 = 100_000_000;

library_benchmark_group!(
    name = verdicts,
    benchmarks = [compiles, narrows, judges]
);

main!(library_benchmark_groups = verdicts);
