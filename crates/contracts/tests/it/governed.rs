//! A governed session around a scripted client: the whole pipeline from outside.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use contracts::driver::{Control, ControlError, Diagnostic, DriveError, Driver, Label, Record};
use contracts::wire::Wire;
use contracts::{
    Action, ApprovalRequest, ApprovalResponse, Decision, Event, Gate, HostFacts, Mode, Narrowing,
    Options, Permission, Rules, SUBSTITUTE, compile,
    governed::{
        CreateError, ExecuteError, ExecutorEnd, Fault, Governed, Hooks, KillSwitch, ModelAnswer,
        ModelClient, Released, ToolError,
    },
};
use domain::Timestamp;
use serde_json::{Value, json};

use crate::support::{
    TOOLS, at, chat_request, chat_response, decimal, desk_files, desk_options, file, payment,
    price, source,
};

/// Calls with their arguments, or how the provider fails.
type Scripted = Result<Vec<(&'static str, String)>, &'static str>;

/// What the model was sent, and what it answers.
#[derive(Debug, Default, Clone)]
struct Script {
    answers: Rc<RefCell<VecDeque<Scripted>>>,
    sent: Rc<RefCell<Vec<Value>>>,
    /// Pulled while the model thinks.
    switch: Rc<RefCell<Option<KillSwitch>>>,
    /// The record that breaks while the model thinks.
    breaks: Rc<RefCell<Option<Rc<RefCell<bool>>>>>,
}

impl ModelClient for Script {
    type Error = &'static str;

    fn send(&mut self, _wire: Wire, body: &[u8]) -> Result<ModelAnswer, &'static str> {
        if let Some(switch) = self.switch.borrow().as_ref() {
            switch.kill();
        }
        if let Some(broken) = self.breaks.borrow().as_ref() {
            *broken.borrow_mut() = true;
        }
        let sent = serde_json::from_slice(body).unwrap();
        self.sent.borrow_mut().push(sent);
        let calls = self.answers.borrow_mut().pop_front();
        let calls = calls.expect("a scripted answer")?;
        let step = self.sent.borrow().len();
        let ids: Vec<String> = (0..calls.len()).map(|at| format!("c{step}_{at}")).collect();
        let calls = ids.iter().zip(&calls);
        let calls: Vec<_> = calls
            .map(|(id, (tool, arguments))| (id.as_str(), *tool, arguments.as_str()))
            .collect();
        Ok(ModelAnswer {
            body: chat_response(&calls),
            is_sse: false,
        })
    }
}

/// The outside, with a clock, a record that can fail, and a person.
#[derive(Debug, Default)]
struct Outside {
    seconds: i64,
    events: Vec<Event>,
    broken: Rc<RefCell<bool>>,
    person: Option<&'static str>,
    asked: Vec<ApprovalRequest>,
    blocked: Vec<Action>,
    narrowed: usize,
    heard: Vec<String>,
}

impl Hooks for Outside {
    fn now(&mut self) -> Timestamp {
        self.seconds += 1;
        at(self.seconds)
    }

    fn record(&mut self, record: &Record) -> Result<(), Fault> {
        if *self.broken.borrow() {
            return Err(Fault("the disk is full".to_owned()));
        }
        self.events.push(record.event.clone());
        Ok(())
    }

    fn ask(&mut self, request: &ApprovalRequest) -> Option<ApprovalResponse> {
        self.asked.push(request.clone());
        let decision = self.person?;
        Some(ApprovalResponse {
            checkpoint_id: request.checkpoint_id.clone(),
            decision: decision.to_owned(),
            decided_by: "ann".to_owned(),
            decided_at: at(self.seconds).to_string(),
            reason: None,
        })
    }

    fn blocked(&mut self, decision: &Decision) {
        self.blocked.push(decision.action);
    }

    fn narrowed(&mut self, _narrowing: &Narrowing) {
        self.narrowed += 1;
    }

    fn diagnostic(&mut self, diagnostic: &Diagnostic) {
        self.heard.push(diagnostic.name.to_owned());
    }
}

struct World {
    session: Governed<Script, Outside>,
    script: Script,
    broken: Rc<RefCell<bool>>,
}

impl World {
    fn desk(person: Option<&'static str>, change: impl FnOnce(&mut Options)) -> Self {
        let compiled = compile(&desk_files(), Some(&file("session"))).unwrap();
        let mut options = desk_options();
        change(&mut options);
        Self::start(Rules::new(Arc::new(compiled), options).unwrap(), person)
    }

    fn plain(session: &str, change: impl FnOnce(&mut Options)) -> Self {
        let files = [source("a", "tool: a\nside_effect: read")];
        let session = source("session", &format!("schema_version: \"1.0\"\n{session}"));
        let compiled = compile(&files, Some(&session)).unwrap();
        let mut options = Options::new("s");
        options.prices.set("openai/gpt-test", price());
        change(&mut options);
        Self::start(Rules::new(Arc::new(compiled), options).unwrap(), None)
    }

    fn start(rules: Rules, person: Option<&'static str>) -> Self {
        let script = Script::default();
        let broken = Rc::new(RefCell::new(false));
        let outside = Outside {
            person,
            broken: Rc::clone(&broken),
            ..Outside::default()
        };
        let session = Governed::start(script.clone(), rules, outside).unwrap();
        Self {
            session,
            script,
            broken,
        }
    }

    fn create(
        &mut self,
        calls: &[(&'static str, &str)],
    ) -> Result<Released, CreateError<&'static str>> {
        let calls = calls
            .iter()
            .map(|(tool, arguments)| (*tool, (*arguments).to_owned()))
            .collect();
        self.script.answers.borrow_mut().push_back(Ok(calls));
        self.ask()
    }

    fn ask(&mut self) -> Result<Released, CreateError<&'static str>> {
        let tools: Vec<&str> = TOOLS.into_iter().chain(["a", "free"]).collect();
        self.session.create(Wire::OpenAiChat, &chat_request(&tools))
    }

    /// The tools that were offered in a request.
    fn offered(&self, request: usize) -> Vec<String> {
        let sent = self.script.sent.borrow();
        let tools = sent[request]["tools"].as_array().unwrap();
        let name = |tool: &Value| tool["function"]["name"].as_str().unwrap().to_owned();
        tools.iter().map(name).collect()
    }

    /// What was recorded folds to the state of the session.
    fn check_record(&self) {
        let driver = self.session.driver();
        let (rules, events) = (driver.rules().clone(), &self.session.hooks().events);
        let again = Driver::resume(rules, at(1), events).unwrap();
        assert_eq!(again.state(), driver.state());
    }

    fn control(&mut self, control: Control) {
        self.session.control(control).unwrap();
    }

    fn kill(&mut self, cause: &str) {
        let cause = cause.to_owned();
        self.control(Control::Kill { cause });
    }

    fn add_label(&mut self, label: &str) -> Result<(), ControlError> {
        self.session.control(Control::AddLabel(Label::new(label)?))
    }
}

/// The message of a released response.
fn message(released: &Released) -> Value {
    let body: Value = serde_json::from_slice(&released.body).unwrap();
    body["choices"][0].clone()
}

fn calls(released: &Released) -> Vec<String> {
    let calls = message(released)["message"]["tool_calls"].clone();
    let calls = calls.as_array().cloned().unwrap_or_default();
    let name = |call: &Value| call["function"]["name"].as_str().unwrap().to_owned();
    calls.iter().map(name).collect()
}

fn executor(output: &'static str) -> contracts::governed::Executor {
    Box::new(move |_, _| ExecutorEnd::Success(Some(output.to_owned())))
}

#[test]
fn a_refund_goes_through_the_whole_pipeline() {
    let mut world = World::desk(Some("approve"), |_| {});
    world.session.wrap("find_order", executor("{}"));
    let assessed = r#"{"accepted":true,"days_since_delivery":4,"amount_cents":20000}"#;
    world.session.wrap("assess_return", executor(assessed));
    world.session.wrap("pay_back", executor("{}"));
    for tool in ["find_order", "assess_return"] {
        let arguments = r#"{"order_id":"A"}"#;
        world.create(&[(tool, arguments)]).unwrap();
        world.session.execute(tool, None, arguments).unwrap();
    }
    // The model sees only what it may call now.
    assert_eq!(world.offered(0), ["find_order", "send_note"]);
    assert_eq!(world.offered(1), ["assess_return", "send_note"]);
    let released = world.create(&[("pay_back", &payment("A", 20000))]).unwrap();
    assert_eq!(calls(&released).len(), 1);
    assert_eq!(world.session.hooks().asked[0].context[1].value, 20000);
    // Changed arguments are another call.
    let refused = world
        .session
        .execute("pay_back", None, &payment("A", 20001));
    assert!(
        matches!(refused, Err(ExecuteError::Refused(_))),
        "{refused:?}"
    );
    world
        .session
        .execute("pay_back", Some("c3_0"), &payment("A", 20000))
        .unwrap();
    let state = world.session.driver().state();
    assert_eq!(state.current_phase.as_deref(), Some("paid"));
    assert_eq!(state.checkpoint_count, 1);
    assert_eq!(state.exact_costs.actual, decimal("0.00306"));
    world.check_record();
}

#[test]
fn a_person_who_says_no_or_nothing_blocks() {
    for (person, reason) in [
        (Some("deny"), "checkpoint_denied"),
        (None, "checkpoint_timeout"),
    ] {
        let mut world = World::desk(person, |_| {});
        world.session.wrap("find_order", executor("{}"));
        world.session.wrap(
            "assess_return",
            executor(r#"{"accepted":true,"days_since_delivery":4,"amount_cents":20000}"#),
        );
        for tool in ["find_order", "assess_return"] {
            world.create(&[(tool, r#"{"order_id":"A"}"#)]).unwrap();
            world
                .session
                .execute(tool, None, r#"{"order_id":"A"}"#)
                .unwrap();
        }
        let Err(CreateError::Refused(DriveError::Contract(decision))) =
            world.create(&[("pay_back", &payment("A", 20000))])
        else {
            panic!("released")
        };
        assert_eq!(decision.reason.unwrap().as_str(), reason);
    }
}

#[test]
fn r12_retries_ask_again_and_each_block_is_heard() {
    let mut world = World::plain("", |options| {
        options.retries_max = 1;
        options.feedback = contracts::Feedback::Inject;
    });
    let call = |tool| Ok(vec![(tool, "{}".to_owned())]);
    world
        .script
        .answers
        .borrow_mut()
        .extend([call("free"), call("a")]);
    let released = world.ask().unwrap();
    assert_eq!(calls(&released), ["a"]);
    assert_eq!(world.session.hooks().blocked, [Action::Retried]);
    assert_eq!(world.session.hooks().narrowed, 1);
    let told = world.script.sent.borrow()[1]["messages"][0].to_string();
    assert!(
        told.contains(
            "These tools are not available now: free (unmatched_tool_blocked). Do not call them."
        ),
        "{told}"
    );
    let state = world.session.driver().state();
    assert_eq!(
        (
            state.attempt_count,
            state.total_step_count,
            state.total_block_count
        ),
        (2, 1, 1)
    );
    world
        .script
        .answers
        .borrow_mut()
        .extend([call("free"), call("free")]);
    let Err(CreateError::Refused(DriveError::Contract(decision))) = world.ask() else {
        panic!("released")
    };
    assert_eq!(decision.action, Action::Rejected);
}

#[test]
fn strip_blocked_never_raises_and_substitutes_one_sentence() {
    let mut world = World::plain("", |options| options.gate = Gate::StripBlocked);
    let released = world.create(&[("free", "{}")]).unwrap();
    assert_eq!(message(&released)["message"]["content"], SUBSTITUTE);
    assert_eq!(message(&released)["finish_reason"], "stop");
    assert!(calls(&released).is_empty());
    let released = world.create(&[("free", "{}"), ("a", "{}")]).unwrap();
    assert_eq!(calls(&released).len(), 1);
    assert_eq!(message(&released)["message"]["content"], Value::Null);
    // Pre-check refusals raise under every gate.
    let mut limited = World::plain("session_limits: { max_attempts: 1 }", |options| {
        options.gate = Gate::StripBlocked
    });
    limited.create(&[("a", "{}")]).unwrap();
    assert!(matches!(
        limited.ask(),
        Err(CreateError::Refused(DriveError::Contract(_)))
    ));
}

#[test]
fn faults_stop_the_call_or_are_counted_until_the_session_is_killed() {
    let mut world = World::plain("", |_| {});
    world.create(&[("a", "{}")]).unwrap();
    *world.broken.borrow_mut() = true;
    assert!(matches!(
        world.create(&[("a", "{}")]),
        Err(CreateError::Fault(_))
    ));
    assert_eq!(world.session.driver().state().total_step_count, 1);

    let mut lax = World::plain("", |options| {
        options.on_error = Permission::Allow;
        options.unguarded_calls_max = 2;
    });
    *lax.broken.borrow_mut() = true;
    lax.create(&[("a", "{}")]).unwrap();
    lax.create(&[("a", "{}")]).unwrap();
    assert!(matches!(
        lax.ask(),
        Err(CreateError::Refused(DriveError::Killed { .. }))
    ));
    // Contract violations are not faults.
    let mut lax = World::plain("", |options| options.on_error = Permission::Allow);
    assert!(matches!(
        lax.create(&[("free", "{}")]),
        Err(CreateError::Refused(DriveError::Contract(_)))
    ));
}

#[test]
fn a_response_is_released_only_once_its_record_is_durable_and_no_record_is_lost() {
    let mut world = World::plain("", |_| {});
    *world.script.breaks.borrow_mut() = Some(Rc::clone(&world.broken));
    let fault = world.create(&[("a", "{}")]);
    assert!(matches!(fault, Err(CreateError::Fault(_))), "{fault:?}");
    let is_response = |event: &&Event| matches!(event, Event::Responded(_));
    let recorded = |world: &World| {
        let events = &world.session.hooks().events;
        events.iter().filter(is_response).count()
    };
    assert_eq!(recorded(&world), 0);
    *world.script.breaks.borrow_mut() = None;
    *world.broken.borrow_mut() = false;
    world.create(&[("a", "{}")]).unwrap();
    assert_eq!(recorded(&world), 2);
    world.check_record();
}

#[test]
fn provider_errors_are_passed_on_and_leave_state_alone() {
    let mut world = World::plain(
        "session_limits: { circuit_breaker: { consecutive_errors: 2 } }",
        |_| {},
    );
    for _ in 0..2 {
        world.script.answers.borrow_mut().push_back(Err("down"));
        assert!(matches!(world.ask(), Err(CreateError::Provider("down"))));
    }
    assert!(matches!(
        world.ask(),
        Err(CreateError::Refused(DriveError::Killed { .. }))
    ));
    assert_eq!(world.session.driver().state().state_version, 0);
}

#[test]
fn control_actions_apply_at_once_and_an_ended_session_gives_the_client_back() {
    let mut world = World::plain("label_gates: [{ label: x, block_tools: [a] }]", |_| {});
    world.control(Control::Narrow(vec!["free".to_owned()]));
    assert!(matches!(
        world.create(&[("a", "{}")]),
        Err(CreateError::Refused(DriveError::Contract(_)))
    ));
    world.control(Control::Widen);
    world.create(&[("a", "{}")]).unwrap();
    assert_eq!(
        world.add_label("not a label"),
        Err(ControlError::MalformedLabel)
    );
    world.add_label("x").unwrap();
    world.add_label("x").unwrap();
    assert_eq!(
        world
            .session
            .driver()
            .last_narrowing()
            .unwrap()
            .removed
            .len(),
        5
    );
    assert!(matches!(
        world.create(&[("a", "{}")]),
        Err(CreateError::Refused(DriveError::Contract(_)))
    ));
    for number in 0..63 {
        world.add_label(&format!("l{number}")).unwrap();
    }
    assert_eq!(
        world.add_label("one_more"),
        Err(ControlError::TooManyLabels)
    );
    assert!(world.session.restore().is_some());
    assert!(world.session.restore().is_none());
    assert!(matches!(
        world.ask(),
        Err(CreateError::Refused(DriveError::Inactive))
    ));
    world.kill("late");
    assert!(!world.session.driver().state().killed);
    assert!(world.session.hooks().heard.contains(&"ignored".to_owned()));
    let mut killed = World::plain("", |_| {});
    killed.session.kill_switch().kill();
    assert!(matches!(
        killed.ask(),
        Err(CreateError::Refused(DriveError::Killed { .. }))
    ));
    assert!(killed.session.driver().health(HostFacts::LOCAL).killed);
}

#[test]
fn r28_a_response_that_arrives_after_a_kill_is_thrown_away_and_its_cost_counts() {
    let mut world = World::plain("", |_| {});
    *world.script.switch.borrow_mut() = Some(world.session.kill_switch());
    assert!(matches!(
        world.create(&[("a", "{}")]),
        Err(CreateError::Refused(DriveError::Killed { .. }))
    ));
    let state = world.session.driver().state();
    assert_eq!((state.total_step_count, state.attempt_count), (0, 1));
    assert_eq!(state.exact_costs.actual, decimal("0.00102"));
}

#[test]
fn shadow_changes_nothing_and_tells_the_difference_log_only_judges_nothing() {
    let mut world = World::plain("", |options| options.mode = Mode::Shadow);
    let released = world.create(&[("free", "{}")]).unwrap();
    assert_eq!(calls(&released).len(), 1);
    assert_eq!(world.offered(0).len(), 6);
    assert_eq!(
        world
            .session
            .driver()
            .last_shadow_delta()
            .unwrap()
            .would_have_blocked
            .len(),
        1
    );
    assert!(world.session.hooks().blocked.is_empty());
    let mut advisory = World::plain("", |options| options.compat = contracts::Compat::Advisory);
    advisory.create(&[("free", "{}")]).unwrap();
    assert!(advisory.session.driver().last_shadow_delta().is_none());
    assert_eq!(advisory.session.hooks().heard, ["violation"]);
    let mut log = World::plain("", |options| options.mode = Mode::LogOnly);
    let released = log.create(&[("free", "not JSON")]).unwrap();
    assert_eq!(released.decision, None);
    assert_eq!(log.session.driver().state().tool_call_counts["free"], 1);
}

#[test]
fn r38_an_observer_needs_no_contracts_and_captures_what_its_level_allows() {
    let script = Script::default();
    let mut session = Governed::observe(script.clone(), "watch", Outside::default()).unwrap();
    let arguments = r#"{"to":"ann@mail.example"}"#.to_owned();
    script
        .answers
        .borrow_mut()
        .push_back(Ok(vec![("mail", arguments)]));
    let request = json!({"model": "gpt-test", "n": 2, "messages": ["write to bob@mail.example"]});
    let request = request.to_string();
    let released = session.create(Wire::OpenAiChat, request.as_bytes());
    assert_eq!(calls(&released.unwrap()), ["mail"]);
    let (captures, counts) = session.flush();
    assert_eq!((counts.sent, counts.pending), (1, 0));
    assert_eq!(
        captures[0]["calls"][0]["arguments"]["to"],
        "[REDACTED:email]"
    );
    let kept = captures[0]["request"].as_str().unwrap();
    assert!(kept.contains("write to [REDACTED:email]"), "{kept}");
    assert!(session.flush().0.is_empty());
    assert!(session.restore().is_some());
    assert!(Governed::observe(Script::default(), "not an id", Outside::default()).is_err());
}

#[test]
fn executors_report_what_became_of_a_call() {
    let files = [source(
        "a",
        "tool: a\nside_effect: read\nallowed_errors: [{ code: expected }]\nretries: { max_attempts: 2, retry_on: [busy] }",
    )];
    let compiled = compile(&files, None).unwrap();
    let mut options = Options::new("s");
    options.executors = contracts::Executors::All;
    let mut world = World::start(Rules::new(Arc::new(compiled), options).unwrap(), None);
    let results = std::sync::Mutex::new(VecDeque::from([
        ExecutorEnd::Failed(ToolError {
            code: "busy".to_owned(),
            message: String::new(),
        }),
        ExecutorEnd::Success(None),
        ExecutorEnd::Failed(ToolError {
            code: "expected".to_owned(),
            message: String::new(),
        }),
        ExecutorEnd::TimedOut,
    ]));
    world.session.wrap(
        "a",
        Box::new(move |_, _| results.lock().unwrap().pop_front().unwrap()),
    );
    assert!(matches!(
        world.session.execute("b", None, "{}"),
        Err(ExecuteError::UnknownTool(_))
    ));
    for number in 0..3 {
        let arguments = format!("{{\"n\":{number}}}");
        world.create(&[("a", &arguments)]).unwrap();
        let ended = world.session.execute("a", None, &arguments);
        match number {
            0 => assert!(matches!(ended, Ok(None)), "{ended:?}"),
            1 => assert!(matches!(ended, Err(ExecuteError::Tool(_))), "{ended:?}"),
            _ => assert!(matches!(ended, Err(ExecuteError::TimedOut)), "{ended:?}"),
        }
    }
    let state = world.session.driver().state();
    assert_eq!(state.total_tool_calls, 1);
    let health = world.session.driver().health(HostFacts::LOCAL);
    assert_eq!(health.unresolved_receipt_count, 1);
    world.kill("stop");
    assert!(matches!(
        world.session.execute("a", None, "{}"),
        Err(ExecuteError::Refused(_))
    ));
}
