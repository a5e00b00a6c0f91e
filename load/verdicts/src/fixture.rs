//! What verdicts are measured on: contracts that use every kind of rule, a session with a past, proposals and recorded runs.
//!
//! The count of instructions (`load/instructions`) takes the same file, so that both speak of the same work.

use std::sync::Arc;

use contracts::backtest::RecordEntry;
use contracts::{
    SessionStart, Call, Compiled, Event, Executors, FinishReason, OfferedTool, Options, ProposedCall, Release, Request,
    Responded, Response, Rules, ShownOutput, Source, State, ToolChoice, compile,
};
use domain::Timestamp;

pub(crate) fn at(seconds: usize) -> Timestamp {
    Timestamp::from_micros(1_700_000_000_000_000 + seconds as i64 * 1_000_000)
}

pub(crate) fn tool(number: usize) -> String {
    format!("tool_{number}")
}

/// The first tool looks something up; every other one needs that, for the same order, and has bounds of its own.
pub(crate) fn sources(count: usize) -> Vec<Source> {
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

pub(crate) fn session(count: usize) -> Source {
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

pub(crate) fn compiled(count: usize) -> Arc<Compiled> {
    let compiled = compile(&sources(count), Some(&session(count)));
    Arc::new(compiled.expect("the contracts of the bench compile"))
}

pub(crate) fn rules(compiled: &Arc<Compiled>) -> Rules {
    let mut options = Options::new("bench");
    options.executors = Executors::Named(Default::default());
    Rules::new(Arc::clone(compiled), options).expect("the options of the bench are right")
}

pub(crate) fn call(number: usize, index: usize) -> Call {
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
pub(crate) fn past(compiled: &Compiled, count: usize, steps: usize) -> State {
    let begin = SessionStart {
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
        let outputs = vec![ShownOutput {
            call_id: id,
            text: text.to_owned(),
        }];
        let seen = Event::OutputsSeen { outputs };
        state.advance(compiled, &seen).expect("it happened");
    }
    state
}

pub(crate) fn request(count: usize) -> Request {
    Request {
        provider: "openai".to_owned(),
        model: "gpt-4o".to_owned(),
        tools: (0..count).map(|number| OfferedTool::named(&tool(number))).collect(),
        choice: ToolChoice::Auto,
        unsupported: None,
        view: contracts::Value::Null,
    }
}

pub(crate) fn proposal(number: usize, index: usize) -> Response {
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

/// Rules as `contracts backtest` has them: what became of a call is taken from the record.
pub(crate) fn recorded_rules(compiled: &Arc<Compiled>) -> Rules {
    let mut options = Options::new("bench");
    options.executors = Executors::All;
    Rules::new(Arc::clone(compiled), options).expect("the options are right")
}

/// A recorded run of 50 turns under 100 contracts, each turn with its call's result.
pub(crate) fn recorded_run(run: usize) -> Vec<RecordEntry> {
    let mut entries = vec![RecordEntry::Offered(request(100).tools)];
    for turn in 0..50 {
        let number = if turn == 0 { 0 } else { 1 + (run + turn) % 99 };
        let response = proposal(number, run * 50 + turn);
        let call_id = response.calls[0].id.clone();
        entries.push(RecordEntry::Answered {
            at: at(turn),
            response,
            cost: None,
            prepared: None,
            proposal: None,
        });
        entries.push(RecordEntry::Ended {
            call_id,
            ok: Some(true),
            output: Some(r#"{"ok":true,"ceiling":1000}"#.to_owned()),
            proposal: None,
        });
    }
    entries
}
