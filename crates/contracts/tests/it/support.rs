//! A session that tests drive: files, options, responses, executions, and a clock they set.

use std::collections::BTreeSet;
use std::sync::Arc;

use contracts::{
    Answer, Answers, AttemptCost, BlockReason, CallKey, Compiled, Decimal, Event, Executors,
    FinishReason, JudgeContext, Judgement, Mode, Narrowing, OfferedTool, Options, Outcome, Price,
    ProposedCall, Refusal, Request, Response, Rules, SessionStart, Settlement, Source, State,
    ToolChoice, Value, compile, json, judge, narrow, precheck, settle, settled,
};
use domain::Timestamp;

pub(crate) const TOOLS: [&str; 4] = ["find_order", "assess_return", "pay_back", "send_note"];

pub(crate) fn file(name: &str) -> Source {
    let text = match name {
        "find_order" => include_str!("../../../../examples/refund-desk/contracts/find_order.yaml"),
        "assess_return" => {
            include_str!("../../../../examples/refund-desk/contracts/assess_return.yaml")
        }
        "pay_back" => include_str!("../../../../examples/refund-desk/contracts/pay_back.yaml"),
        "send_note" => include_str!("../../../../examples/refund-desk/contracts/send_note.yaml"),
        _ => include_str!("../../../../examples/refund-desk/contracts/session.yaml"),
    };
    Source {
        file: format!("{name}.yaml"),
        text: text.to_owned(),
    }
}

pub(crate) fn source(name: &str, text: &str) -> Source {
    Source {
        file: format!("{name}.yaml"),
        text: text.to_owned(),
    }
}

pub(crate) fn desk_files() -> Vec<Source> {
    TOOLS.iter().map(|tool| file(tool)).collect()
}

pub(crate) fn value(text: &str) -> Value {
    json::read(text, json::Limits::MESSAGE, json::Numbers::Any).unwrap()
}

pub(crate) fn decimal(text: &str) -> Decimal {
    Decimal::parse(text).unwrap()
}

pub(crate) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_micros(1_700_000_000_000_000 + seconds * 1_000_000)
}

/// Options under which the return desk starts.
pub(crate) fn desk_options() -> Options {
    let mut options = Options::new("s1");
    options.principal = Some(value(r#"{"role":"desk","trainee":false}"#));
    options.executors = Executors::Named(TOOLS.iter().map(ToString::to_string).collect());
    options.answers_checkpoints = true;
    options.prices.set("openai/gpt-test", price());
    options
}

pub(crate) fn price() -> Price {
    Price {
        input: decimal("1"),
        output: decimal("2"),
        cache_read: None,
        cache_write: None,
    }
}

/// A session and the time in it.
#[derive(Debug, Clone)]
pub(crate) struct Desk {
    pub(crate) rules: Rules,
    pub(crate) state: State,
    pub(crate) now: i64,
    pub(crate) cost: Option<Decimal>,
    next_id: u64,
}

impl Desk {
    /// The return desk with its example files.
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut Options)) -> Self {
        let compiled = compile(&desk_files(), Some(&file("session"))).unwrap();
        let mut options = desk_options();
        change(&mut options);
        Self::start(compiled, options)
    }

    /// A session over these files, without executors unless options say otherwise.
    pub(crate) fn of(contracts: &[(&str, &str)], session: &str) -> Self {
        Self::of_with(contracts, session, |_| {})
    }

    pub(crate) fn of_with(
        contracts: &[(&str, &str)],
        session: &str,
        change: impl FnOnce(&mut Options),
    ) -> Self {
        let sources: Vec<Source> = contracts
            .iter()
            .map(|(name, text)| source(name, text))
            .collect();
        let session = format!("schema_version: \"1.0\"\n{session}");
        let compiled = match compile(&sources, Some(&source("session", &session))) {
            Ok(compiled) => compiled,
            Err(error) => panic!("{:#?}", error.findings()),
        };
        let mut options = Options::new("s1");
        options.answers_checkpoints = true;
        options.prices.set("openai/gpt-test", price());
        change(&mut options);
        Self::start(compiled, options)
    }

    fn start(compiled: Compiled, options: Options) -> Self {
        let begin = SessionStart {
            session_id: options.session_id.clone(),
            agent: Some("return-desk".to_owned()),
            at: at(0),
            compiled: compiled.digest(),
            labels: options.labels.clone(),
            slots: Default::default(),
        };
        let rules = Rules::new(Arc::new(compiled), options).unwrap();
        let state = State::begin(rules.compiled(), &begin).unwrap();
        Self {
            rules,
            state,
            now: 0,
            cost: Some(decimal("0.01")),
            next_id: 0,
        }
    }

    pub(crate) fn request(&self) -> Request {
        let tools = self.rules.compiled().tools();
        let mut tools: Vec<OfferedTool> = tools
            .map(|contract| OfferedTool::named(&contract.tool))
            .collect();
        tools.push(OfferedTool::named("uncontracted"));
        Request {
            provider: "openai".to_owned(),
            model: "gpt-test".to_owned(),
            tools,
            choice: ToolChoice::Auto,
            unsupported: None,
            view: value(r#"{"model":"gpt-test","messages":[{"role":"user","content":"hi"}]}"#),
        }
    }

    pub(crate) fn apply(&mut self, event: Event) {
        let state = self.state.clone();
        self.state = state.apply(self.rules.compiled(), &event).unwrap();
    }

    pub(crate) fn narrow(&self) -> Narrowing {
        let offered: Vec<OfferedTool> = self.request().tools;
        narrow(&self.rules, &self.state, &offered)
    }

    /// Why a tool is removed, as a word; empty when it stays.
    pub(crate) fn removed(&self, tool: &str) -> String {
        let narrowing = self.narrow();
        let removed = narrowing.removed(tool);
        removed
            .map(|removed| removed.reason.to_string())
            .unwrap_or_default()
    }

    pub(crate) fn precheck(&self) -> Result<(), Refusal> {
        precheck(&self.rules, &self.state, &self.request(), &self.narrow())
    }

    pub(crate) fn response(&mut self, calls: &[(&str, &str)]) -> Response {
        let calls = calls.iter().map(|(tool, arguments)| {
            self.next_id += 1;
            ProposedCall {
                id: format!("call_{}", self.next_id),
                name: (*tool).to_owned(),
                arguments: (*arguments).to_owned(),
            }
        });
        Response {
            finish_reason: FinishReason::ToolCalls,
            content: None,
            calls: calls.collect(),
        }
    }

    pub(crate) fn judge(&self, response: &Response, answers: &Answers) -> Judgement {
        self.judge_waiting(response, answers, None)
    }

    pub(crate) fn judge_waiting(
        &self,
        response: &Response,
        answers: &Answers,
        proposal: Option<&str>,
    ) -> Judgement {
        let request = self.request();
        let occasion = JudgeContext {
            request: &request,
            now: at(self.now),
            proposal,
            answers,
        };
        judge(&self.rules, &self.state, response, occasion)
    }

    /// Judges a response without changing anything; returns the reasons of each call.
    pub(crate) fn reasons(&mut self, calls: &[(&str, &str)]) -> Vec<Vec<String>> {
        let response = self.response(calls);
        reasons(&self.judge(&response, &Answers::new()))
    }

    /// The reasons of a single call.
    pub(crate) fn reasons_of(&mut self, tool: &str, arguments: &str) -> Vec<String> {
        self.reasons(&[(tool, arguments)]).remove(0)
    }

    /// One `create()`: judged, settled, applied. Approves whatever is asked.
    pub(crate) fn create(&mut self, calls: &[(&str, &str)]) -> Settlement {
        let response = self.response(calls);
        self.create_from(&response)
    }

    pub(crate) fn create_from(&mut self, response: &Response) -> Settlement {
        let mut answers = Answers::new();
        loop {
            let judgement = self.judge(response, &answers);
            let asked: Vec<_> = judgement.needing_approval().collect();
            if asked.is_empty() {
                return self.settle(&judgement, None);
            }
            for verdict in asked {
                let answer = Answer::Approved {
                    arguments: verdict.arguments_digest(),
                    compiled: self.rules.compiled().digest(),
                };
                answers.insert(verdict.call_id().to_owned(), answer);
            }
        }
    }

    pub(crate) fn settle(&mut self, judgement: &Judgement, proposal: Option<&str>) -> Settlement {
        let attempt = self.state.attempts() + 1;
        let settlement = settle(&self.rules, judgement, attempt, 0);
        let cost = AttemptCost {
            at: at(self.now),
            cost: self.cost,
        };
        if let Some(event) = settled(&self.rules, judgement, &settlement, cost, proposal) {
            self.apply(event);
        }
        settlement
    }

    /// Settles the oldest pending call of a tool.
    pub(crate) fn execute(&mut self, tool: &str, outcome: Outcome, output: Option<&str>) {
        let call = self.pending(tool).expect("a pending call");
        self.apply(Event::Started { call: call.clone() });
        self.apply(Event::Settled {
            call,
            outcome,
            output: output.map(ToOwned::to_owned),
        });
    }

    pub(crate) fn pending(&self, tool: &str) -> Option<CallKey> {
        let mut unsettled = self.state.unsettled();
        unsettled
            .find(|(_, call)| call.tool == tool)
            .map(|(key, _)| key.clone())
    }

    /// The desk after `find_order` and `assess_return(A)` with this output.
    pub(crate) fn assessed(output: &str) -> Self {
        let mut desk = Self::new();
        desk.assess(output);
        desk
    }

    pub(crate) fn assess(&mut self, output: &str) {
        self.create(&[("find_order", r#"{"order_id":"A"}"#)]);
        self.execute("find_order", Outcome::Success, Some("{}"));
        self.create(&[("assess_return", r#"{"order_id":"A"}"#)]);
        self.execute("assess_return", Outcome::Success, Some(output));
        assert_eq!(self.state.phase(), Some("assessed"));
    }

    pub(crate) fn snapshot(&self) -> contracts::Snapshot {
        self.state.snapshot(self.rules.compiled())
    }

    pub(crate) fn is_killed(&self) -> bool {
        self.snapshot().killed
    }
}

pub(crate) const ACCEPTED: &str =
    r#"{"accepted":true,"days_since_delivery":4,"amount_cents":12000}"#;

/// A request of OpenAI's chat format that offers these tools.
pub(crate) fn chat_request(tools: &[&str]) -> Vec<u8> {
    let tools: Vec<serde_json::Value> = tools
        .iter()
        .map(|name| serde_json::json!({"type":"function","function":{"name":name,"parameters":{}}}))
        .collect();
    serde_json::json!({"model":"gpt-test","messages":[{"role":"user","content":"hi"}],"tools":tools})
        .to_string()
        .into_bytes()
}

/// A response of that format with these calls: id, tool and arguments.
pub(crate) fn chat_response(calls: &[(&str, &str, &str)]) -> Vec<u8> {
    let calls: Vec<serde_json::Value> = calls
        .iter()
        .map(|(id, name, arguments)| serde_json::json!({"id":id,"type":"function","function":{"name":name,"arguments":arguments}}))
        .collect();
    serde_json::json!({"id":"r","choices":[{"index":0,"message":{"role":"assistant","content":null,"tool_calls":calls},"finish_reason":"tool_calls"}],"usage":{"prompt_tokens":1000,"completion_tokens":10}})
        .to_string()
        .into_bytes()
}

/// Arguments of a valid payment.
pub(crate) fn payment(order: &str, cents: u64) -> String {
    format!(r#"{{"order_id":"{order}","amount_cents":{cents},"currency":"EUR"}}"#)
}

pub(crate) fn reasons(judgement: &Judgement) -> Vec<Vec<String>> {
    let verdicts = judgement.verdicts().iter();
    let words = |all: Vec<BlockReason>| all.iter().map(ToString::to_string).collect();
    verdicts
        .map(|verdict| words(verdict.all_reasons()))
        .collect()
}

pub(crate) fn shadow(options: &mut Options) {
    options.mode = Mode::Shadow;
}

pub(crate) fn unwrapped(options: &mut Options) {
    options.executors = Executors::Named(BTreeSet::new());
}
