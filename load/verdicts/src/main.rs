//! `cargo xtask bench verdicts`: what a verdict costs, how that grows, and how fast recorded runs are judged again.
//!
//! A verdict is one response with one call, from the text of its arguments to the judgement: parsed, checked against phases,
//! preconditions, arguments, prohibitions, limits, loops, aggregates, envelopes and labels. Beside it, in the same run, the Cedar
//! authorizer decides on the closest stateless equivalent: one policy a tool with the same bounds, the session's facts handed in as
//! context. Figures are medians over rounds, so that one disturbed round does not count.
//!
//! Exit codes: 0 every budget is kept, 1 one is exceeded.

mod fixture;

use std::hint::black_box;
use std::process::ExitCode;
use std::time::Instant;

use cedar_policy::{
    Authorizer, Context, Decision, Entities, EntityUid, PolicySet, Request as CedarRequest,
};
use contracts::backtest::{RecordEntry, backtest};
use contracts::{Answers, JudgeContext, Response, Status, compile, judge, narrow};

use fixture::{
    at, call, compiled, past, proposal, recorded_rules, recorded_run, request, rules, session, sources, tool,
};

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
    let occasion = JudgeContext {
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
    let rules = recorded_rules(&compiled);
    let runs: Vec<Vec<RecordEntry>> = (0..200).map(recorded_run).collect();
    let began = Instant::now();
    let decisions: usize = runs
        .iter()
        .map(|entries| backtest(&rules, at(0), entries).calls.len())
        .sum();
    decisions as f64 / began.elapsed().as_secs_f64()
}
