//! `cargo xtask bench verdicts`: what a verdict costs, how that grows, and how fast recorded runs are judged again.
//!
//! A verdict is one response with one call, from the text of its arguments to the judgement: parsed, checked against phases,
//! preconditions, arguments, prohibitions, limits, loops, aggregates, envelopes and labels. Beside it, in the same run, the Cedar
//! authorizer decides on the closest stateless equivalent: one policy a tool with the same bounds, the session's facts handed in as
//! context. Figures are medians over rounds, so that one disturbed round does not count.
//!
//! Exit codes: 0 every budget is kept, 1 one is exceeded.

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use cedar_policy::{
    Authorizer, Context, Decision, Entities, EntityUid, PolicySet, Request as CedarRequest,
};
use contracts::backtest::{Told, backtest};
use contracts::{
    Answers, Begin, Call, Compiled, Event, Executors, FinishReason, Occasion, OfferedTool, Options,
    ProposedCall, Release, Request, Responded, Response, Rules, SeenOutput, Source, State, Status,
    ToolChoice, compile, judge, narrow,
};
use domain::Timestamp;

const ROUNDS: usize = 9;
const SAMPLES: usize = 5_000;

fn main() -> ExitCode {
    let mut report = Report::default();
    println!("{:<34} {:>12} {:>12}  {}", "LINE", "MEDIAN", "P99", "");
    let standard = verdicts(100, 1_000);
    report.line("verdict, 100 contracts, 1,000 steps", standard, Some((5e-6, 20e-6)));
    for contracts in [10, 1_000] {
        let found = verdicts(contracts, 1_000);
        report.line(&format!("verdict, {contracts} contracts, 1,000 steps"), found, None);
    }
    let mut past = Vec::new();
    for steps in [100, 100_000] {
        let found = verdicts(100, steps);
        past.push(found.median);
        report.line(&format!("verdict, 100 contracts, {steps} steps"), found, None);
    }
    report.ratio("growth from 100 to 100,000 steps", past[1] / past[0], Some(1.2));
    for policies in [10, 100, 1_000] {
        let (whole, bare) = cedar(policies);
        report.line(&format!("cedar, {policies} policies, with context"), whole, None);
        report.line(&format!("cedar, {policies} policies, bare"), bare, None);
        if policies == 100 {
            report.ratio("verdict / cedar with context", standard.median / whole.median, None);
            report.ratio("verdict / cedar bare", standard.median / bare.median, None);
        }
    }
    report.line("narrow 100 tools, 1,000 steps", narrowing(100, 1_000), None);
    report.line("compile 100 contracts", compiling(100), None);
    println!("{:<34} {:>10.0}/s", "backtest, decisions", backtesting());
    match report.exceeded {
        false => ExitCode::SUCCESS,
        true => ExitCode::FAILURE,
    }
}

/// Seconds.
#[derive(Debug, Clone, Copy)]
struct Found {
    median: f64,
    p99: f64,
}

#[derive(Debug, Default)]
struct Report {
    exceeded: bool,
}

impl Report {
    fn line(&mut self, name: &str, found: Found, budget: Option<(f64, f64)>) {
        let kept = budget.map(|(median, p99)| found.median <= median && found.p99 <= p99);
        let shown = |seconds: f64| format!("{:.2} µs", seconds * 1e6);
        println!(
            "{name:<34} {:>12} {:>12}  {}",
            shown(found.median),
            shown(found.p99),
            self.verdict(kept)
        );
    }

    fn ratio(&mut self, name: &str, ratio: f64, most: Option<f64>) {
        let kept = most.map(|most| ratio <= most);
        println!("{name:<34} {ratio:>11.2}× {:>12}  {}", "", self.verdict(kept));
    }

    fn verdict(&mut self, kept: Option<bool>) -> &'static str {
        self.exceeded |= kept == Some(false);
        match kept {
            None => "",
            Some(true) => "ok",
            Some(false) => "OVER",
        }
    }
}

/// Takes the time of many equal things, in rounds.
fn measure(samples: usize, mut once: impl FnMut(usize)) -> Found {
    let (mut medians, mut tails) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let mut taken: Vec<f64> = (0..samples)
            .map(|index| {
                let began = Instant::now();
                once(round * samples + index);
                began.elapsed().as_secs_f64()
            })
            .collect();
        taken.sort_by(f64::total_cmp);
        medians.push(taken[samples / 2]);
        tails.push(taken[samples * 99 / 100]);
    }
    let middle = |mut of: Vec<f64>| {
        of.sort_by(f64::total_cmp);
        of[of.len() / 2]
    };
    Found {
        median: middle(medians),
        p99: middle(tails),
    }
}

fn at(seconds: usize) -> Timestamp {
    Timestamp::from_micros(1_700_000_000_000_000 + seconds as i64 * 1_000_000)
}

fn tool(number: usize) -> String {
    format!("tool_{number}")
}

/// The first tool looks something up; every other one needs that, for the same order, and has bounds of its own.
fn sources(count: usize) -> Vec<Source> {
    let file = |number: usize, text: String| Source {
        file: format!("{}.yaml", tool(number)),
        text,
    };
    let rest = (1..count).map(|number| {
        file(
            number,
            format!(
                "tool: {}\nside_effect: write\ntransitions: {{ valid_in_phases: [working] }}\n\
                 preconditions:\n  - requires_prior_tool: {}\n    with_output: [{{ path: \"$.ok\", equals: true }}]\n\
                 \x20   same_as_prior: [{{ argument: \"$.order\", prior: \"$.order\", prior_from: arguments }}]\n\
                 argument_value_invariants:\n  - {{ path: \"$.amount\", type: integer, gte: 1, lte: 100000 }}\n\
                 \x20 - {{ path: \"$.currency\", one_of: [\"EUR\", \"SEK\"] }}\n  - {{ path: \"$.note\", type: string, length_lte: 200 }}\n",
                tool(number),
                tool(0)
            ),
        )
    });
    let first = format!(
        "tool: {}\nside_effect: read\ntransitions: {{ valid_in_phases: [begun, working], advances_to: working }}\n",
        tool(0)
    );
    std::iter::once(file(0, first)).chain(rest).collect()
}

fn session(count: usize) -> Source {
    let listed: Vec<String> = (1..count.min(200)).map(tool).collect();
    let listed = listed.join(", ");
    Source {
        file: "session.yaml".to_owned(),
        text: format!(
            "schema_version: \"1.0\"\nphases:\n  - {{ name: begun, initial: true }}\n  - {{ name: working }}\n  - {{ name: over, terminal: true }}\n\
             transitions: {{ begun: [working], working: [working, over] }}\n\
             session_limits:\n  max_steps: 10000000\n  max_tool_calls: 10000000\n  max_calls_per_tool: {{ tool_1: 9000000 }}\n\
             \x20 loop_detection: {{ window: 50, threshold: 3 }}\n\
             aggregates:\n  - {{ name: paid, metric: sum, tools: [{listed}], path: \"$.amount\", lte: 100000000000 }}\n\
             \x20 - {{ name: largest, metric: max, tools: [{listed}], path: \"$.amount\", lte: 100000 }}\n\
             \x20 - {{ name: often, metric: count, tools: [{listed}], lte: 10000000 }}\n\
             envelopes:\n  - name: ceiling\n    direction: at_most\n    establish: {{ tool: tool_0, from: output, path: \"$.ceiling\" }}\n\
             \x20   constrain: [{{ tool: tool_1, path: \"$.amount\" }}]\n\
             label_gates:\n  - {{ label: fraud_suspected, block_tools: [{listed}] }}\n"
        ),
    }
}

fn compiled(count: usize) -> Arc<Compiled> {
    let compiled = compile(&sources(count), Some(&session(count)));
    Arc::new(compiled.expect("the contracts of the bench compile"))
}

fn rules(compiled: &Arc<Compiled>) -> Rules {
    let mut options = Options::new("bench");
    options.executors = Executors::Named(Default::default());
    Rules::new(Arc::clone(compiled), options).expect("the options of the bench are right")
}

fn call(number: usize, index: usize) -> Call {
    let arguments = match number {
        0 => r#"{"order":"A"}"#.to_owned(),
        _ => format!(r#"{{"amount":{},"currency":"EUR","note":"{index}","order":"A"}}"#, index % 100 + 1),
    };
    Call {
        id: format!("call_{index}"),
        tool: tool(number),
        arguments_digest: canon::sha256(arguments.as_bytes()),
        arguments,
        commits: true,
    }
}

/// A session with this many past steps of one call each.
fn past(compiled: &Compiled, count: usize, steps: usize) -> State {
    let begin = Begin {
        session_id: "bench".to_owned(),
        agent: None,
        at: at(0),
        compiled: compiled.digest(),
        labels: vec!["known_customer".to_owned()],
        slots: Default::default(),
    };
    let mut state = State::begin(compiled, &begin).expect("it begins");
    for step in 0..steps {
        let number = if step == 0 { 0 } else { 1 + step % (count - 1) };
        let call = call(number, step);
        let (id, is_first) = (call.id.clone(), step == 0);
        let responded = Event::Responded(Responded {
            at: at(step),
            proposal: None,
            cost: None,
            usage_unknown: false,
            release: Release::Step {
                calls: vec![call],
                stripped: 0,
            },
        });
        state.advance(compiled, &responded).expect("it happened");
        let text = match is_first {
            true => r#"{"ok":true,"ceiling":1000}"#,
            false => r#"{"done":true}"#,
        };
        let outputs = vec![SeenOutput {
            call_id: id,
            text: text.to_owned(),
        }];
        let seen = Event::OutputsSeen { outputs };
        state.advance(compiled, &seen).expect("it happened");
    }
    state
}

fn request(count: usize) -> Request {
    Request {
        provider: "openai".to_owned(),
        model: "gpt-4o".to_owned(),
        tools: (0..count).map(|number| OfferedTool::named(&tool(number))).collect(),
        choice: ToolChoice::Auto,
        unsupported: None,
        view: contracts::Value::Null,
    }
}

fn proposal(number: usize, index: usize) -> Response {
    let call = call(number, index);
    Response {
        finish_reason: FinishReason::ToolCalls,
        content: None,
        calls: vec![ProposedCall {
            id: call.id,
            name: call.tool,
            arguments: call.arguments,
        }],
    }
}

fn verdicts(count: usize, steps: usize) -> Found {
    let compiled = compiled(count);
    let rules = rules(&compiled);
    let state = past(&compiled, count, steps);
    let request = request(count);
    let answers = Answers::new();
    // What is proposed differs each time, and is made outside of what is measured.
    let proposals: Vec<Response> = (0..1_000)
        .map(|index| proposal(1 + index % (count - 1), 1_000_000 + index))
        .collect();
    let occasion = Occasion {
        request: &request,
        now: at(steps + 1),
        proposal: None,
        answers: &answers,
    };
    let allowed = judge(&rules, &state, &proposals[0], occasion);
    let first = allowed.verdicts().first().expect("one call");
    assert_eq!(first.status(), Status::Allow, "{:?}", first.failures());
    measure(SAMPLES, |index| {
        let response = &proposals[index % proposals.len()];
        black_box(judge(black_box(&rules), &state, response, occasion));
    })
}

fn narrowing(count: usize, steps: usize) -> Found {
    let compiled = compiled(count);
    let rules = rules(&compiled);
    let state = past(&compiled, count, steps);
    let offered = request(count).tools;
    measure(500, |_| {
        black_box(narrow(black_box(&rules), &state, &offered));
    })
}

fn compiling(count: usize) -> Found {
    let (sources, session) = (sources(count), session(count));
    measure(20, |_| {
        black_box(compile(black_box(&sources), Some(&session)).is_ok());
    })
}

/// One policy a tool, with the same bounds; what the session knows comes as context, because nothing is remembered.
fn cedar(policies: usize) -> (Found, Found) {
    let text: Vec<String> = (0..policies)
        .map(|number| {
            format!(
                "permit(principal, action == Action::\"{}\", resource) when {{\n\
                 context.phase == \"working\" && context.looked_up && context.order == context.looked_up_order &&\n\
                 context.amount >= 1 && context.amount <= 100000 && [\"EUR\", \"SEK\"].contains(context.currency) &&\n\
                 context.paid + context.amount <= 100000000000 && context.calls < 10000000 &&\n\
                 !(context.labels.contains(\"fraud_suspected\"))\n}};",
                tool(number)
            )
        })
        .collect();
    let policy_set: PolicySet = text.join("\n").parse().expect("the policies of the bench parse");
    let entities = Entities::empty();
    let authorizer = Authorizer::new();
    let uid = |text: &str| -> EntityUid { text.parse().expect("an entity") };
    let (principal, resource) = (uid("Agent::\"desk\""), uid("Desk::\"one\""));
    let actions: Vec<EntityUid> = (0..policies)
        .map(|number| uid(&format!("Action::\"{}\"", tool(number))))
        .collect();
    let built = |index: usize| {
        let call = call(1 + index % (policies - 1), 1_000_000 + index);
        let arguments: serde_json::Value = serde_json::from_str(&call.arguments).expect("JSON");
        let facts = serde_json::json!({
            "phase": "working", "looked_up": true, "looked_up_order": "A", "order": arguments["order"],
            "amount": arguments["amount"], "currency": arguments["currency"], "paid": 50_000, "calls": 1_000,
            "labels": ["known_customer"],
        });
        let context = Context::from_json_value(facts, None).expect("a context");
        let action = actions[1 + index % (policies - 1)].clone();
        CedarRequest::new(principal.clone(), action, resource.clone(), context, None).expect("a request")
    };
    let answer = authorizer.is_authorized(&built(0), &policy_set, &entities);
    assert_eq!(answer.decision(), Decision::Allow);
    let whole = measure(SAMPLES / 5, |index| {
        black_box(authorizer.is_authorized(&built(index), &policy_set, &entities));
    });
    let requests: Vec<CedarRequest> = (0..1_000).map(built).collect();
    let bare = measure(SAMPLES / 5, |index| {
        let request = &requests[index % requests.len()];
        black_box(authorizer.is_authorized(request, &policy_set, &entities));
    });
    (whole, bare)
}

/// Decisions a second over recorded runs of 50 turns, each with its call's result.
fn backtesting() -> f64 {
    let compiled = compiled(100);
    let mut options = Options::new("bench");
    options.executors = Executors::All;
    let rules = Rules::new(Arc::clone(&compiled), options).expect("the options are right");
    let run = |run: usize| -> Vec<Told> {
        let mut told = vec![Told::Offered(request(100).tools)];
        for turn in 0..50 {
            let number = if turn == 0 { 0 } else { 1 + (run + turn) % 99 };
            let response = proposal(number, run * 50 + turn);
            let call_id = response.calls[0].id.clone();
            told.push(Told::Answered {
                at: at(turn),
                response,
            });
            told.push(Told::Ended {
                call_id,
                ok: Some(true),
                output: Some(r#"{"ok":true,"ceiling":1000}"#.to_owned()),
            });
        }
        told
    };
    let runs: Vec<Vec<Told>> = (0..200).map(run).collect();
    let began = Instant::now();
    let decisions: usize = runs
        .iter()
        .map(|told| backtest(&rules, at(0), told).calls.len())
        .sum();
    decisions as f64 / began.elapsed().as_secs_f64()
}
