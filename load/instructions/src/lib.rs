//! What the benchmarks of contracts are measured on; the benchmarks are in `benches/`.

use std::sync::Arc;

use contracts::{
    AttemptCost, Begin, Compiled, Decimal, Event, Executors, Narrowing, Occasion, OfferedTool,
    Options, ProposedCall, Request, Response, Rules, Source, State, ToolChoice, Value, compile,
    judge, narrow, settle, settled,
};
use domain::Timestamp;

/// A session over many contracts, after many steps.
#[derive(Debug)]
pub struct World {
    /// What it is judged by.
    pub rules: Rules,
    /// What happened so far.
    pub state: State,
    /// The next request.
    pub request: Request,
    /// The response that is judged.
    pub response: Response,
    now: i64,
}

/// Contracts with phases, preconditions, invariants, aggregates and a session file over them.
pub fn sources(count: usize) -> (Vec<Source>, Source) {
    let mut contracts = vec![Source {
        file: "find.yaml".to_owned(),
        text: "tool: find\nside_effect: read\n".to_owned(),
    }];
    for number in 1..count {
        contracts.push(Source {
            file: format!("tool_{number}.yaml"),
            text: format!(
                "tool: tool_{number}\nside_effect: write\n\
                 transitions: {{ valid_in_phases: [open] }}\n\
                 preconditions:\n  - requires_prior_tool: find\n    with_output: [ {{ path: $.ok, equals: true }} ]\n\
                 argument_value_invariants:\n  - {{ path: $.amount, type: integer, gte: 0, lte: 100000 }}\n  \
                 - {{ path: $.note, length_lte: 200, when_present: true }}\n"
            ),
        });
    }
    let tools: Vec<String> = (1..count).map(|number| format!("tool_{number}")).collect();
    let session = Source {
        file: "session.yaml".to_owned(),
        text: format!(
            "schema_version: \"1.0\"\nphases:\n  - {{ name: open, initial: true }}\n  - {{ name: closed, terminal: true }}\n\
             transitions: {{ open: [closed] }}\n\
             session_limits:\n  loop_detection: {{ window: 5, threshold: 3 }}\n\
             aggregates:\n  - {{ name: total, metric: sum, tools: [{}], path: $.amount, lte: 1000000000 }}\n",
            tools.join(", ")
        ),
    };
    (contracts, session)
}

/// Compiles them.
pub fn compiled((contracts, session): &(Vec<Source>, Source)) -> Compiled {
    compile(contracts, Some(session)).expect("the contracts compile")
}

impl World {
    /// A session over `contracts` contracts after `steps` steps.
    pub fn new(contracts: usize, steps: usize) -> Self {
        let compiled = Arc::new(compiled(&sources(contracts)));
        let mut options = Options::new("bench");
        options.executors = Executors::Named(std::collections::BTreeSet::new());
        let begin = Begin {
            session_id: "bench".to_owned(),
            agent: None,
            at: Timestamp::from_micros(0),
            compiled: compiled.digest(),
            labels: Vec::new(),
            slots: std::collections::BTreeMap::new(),
        };
        let state = State::begin(&compiled, &begin).expect("it begins");
        let tools = compiled.tools().map(|contract| OfferedTool::named(&contract.tool));
        let request = Request {
            provider: "openai".to_owned(),
            model: "bench".to_owned(),
            tools: tools.collect(),
            choice: ToolChoice::Auto,
            unsupported: None,
            view: Value::Null,
        };
        let rules = Rules::new(compiled, options).expect("the options fit");
        let mut world = Self {
            rules,
            state,
            request,
            response: response("find", 0, "{}"),
            now: 1,
        };
        world.step();
        world.state.advance(
            world.rules.compiled(),
            &Event::OutputsSeen {
                outputs: vec![contracts::SeenOutput {
                    call_id: "call_0".to_owned(),
                    text: "{\"ok\":true}".to_owned(),
                }],
            },
        )
        .expect("the output is of a call");
        for number in 1..steps.max(2) {
            let tool = format!("tool_{}", 1 + number % (contracts - 1));
            world.response = response(&tool, number, &format!("{{\"amount\":{number}}}"));
            world.step();
        }
        world.response = response("tool_1", steps + 1, "{\"amount\":12000,\"note\":\"as agreed\"}");
        world
    }

    /// Judges the response.
    pub fn judge(&self) -> contracts::Judgement {
        let answers = contracts::Answers::new();
        let occasion = Occasion {
            request: &self.request,
            now: Timestamp::from_micros(self.now),
            proposal: None,
            answers: &answers,
        };
        judge(&self.rules, &self.state, &self.response, occasion)
    }

    /// Narrows the offered tools.
    pub fn narrow(&self) -> Narrowing {
        narrow(&self.rules, &self.state, &self.request.tools)
    }

    fn step(&mut self) {
        self.now += 1_000_000;
        let judgement = self.judge();
        let settlement = settle(&self.rules, &judgement, 1, 0);
        assert!(judgement.blocked().next().is_none(), "the past is legal: {judgement:?}");
        let cost = AttemptCost {
            at: Timestamp::from_micros(self.now),
            cost: Some(Decimal::ZERO),
        };
        if let Some(event) = settled(&self.rules, &judgement, &settlement, cost, None) {
            self.state.advance(self.rules.compiled(), &event).expect("it happened");
        }
    }
}

fn response(tool: &str, number: usize, arguments: &str) -> Response {
    Response {
        finish_reason: contracts::FinishReason::ToolCalls,
        content: None,
        calls: vec![ProposedCall {
            id: format!("call_{number}"),
            name: tool.to_owned(),
            arguments: arguments.to_owned(),
        }],
    }
}
