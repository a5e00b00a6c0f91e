//! The session on bytes: requests and responses of a provider through the whole pipeline.

use std::sync::Arc;

use contracts::driver::{
    AttemptFailure, Control, DriveError, Driver, ExecutionEnd, JudgedResponse, Label,
};
use contracts::wire::Wire;
use contracts::{
    Action, ApprovalResponse, BlockReason, Event, Feedback, Gate, Mode, NarrowReason, Options,
    Permission, Rules, SUBSTITUTE, compile,
};
use serde_json::{Value, json};

use crate::support::{
    ACCEPTED, TOOLS, at, chat_request, chat_response, desk_files, desk_options, file, payment,
    source,
};

fn desk(change: impl FnOnce(&mut Options)) -> Driver {
    let compiled = compile(&desk_files(), Some(&file("session"))).unwrap();
    let mut options = desk_options();
    change(&mut options);
    Driver::open(Rules::new(Arc::new(compiled), options).unwrap(), at(0)).unwrap()
}

fn plain(session: &str, change: impl FnOnce(&mut Options)) -> Driver {
    let files = [
        source("a", "tool: a\nside_effect: read"),
        source("b", "tool: b\nside_effect: read\ngate: block"),
    ];
    let session = source("session", &format!("schema_version: \"1.0\"\n{session}"));
    let compiled = compile(&files, Some(&session)).unwrap();
    let mut options = Options::new("s1");
    options
        .prices
        .set("openai/gpt-test", crate::support::price());
    change(&mut options);
    Driver::open(Rules::new(Arc::new(compiled), options).unwrap(), at(0)).unwrap()
}

/// One request and its response.
fn turn(driver: &mut Driver, seconds: i64, calls: &[(&str, &str, &str)]) -> JudgedResponse {
    let planned = driver
        .plan(Wire::OpenAiChat, &chat_request(&TOOLS), at(seconds))
        .unwrap();
    driver
        .judge(planned.attempt, &chat_response(calls), false, at(seconds))
        .unwrap()
}

fn run(driver: &mut Driver, seconds: i64, (id, tool, arguments): (&str, &str, &str), output: &str) {
    let judged = turn(driver, seconds, &[(id, tool, arguments)]);
    assert!(
        matches!(judged, JudgedResponse::Released { .. }),
        "{judged:?}"
    );
    let ticket = driver
        .execute(tool, arguments, Some(id), at(seconds))
        .unwrap();
    driver
        .settle(
            ticket.ticket,
            ExecutionEnd::Success(Some(output.to_owned())),
        )
        .unwrap();
}

/// A desk where order A was assessed.
fn assessed(change: impl FnOnce(&mut Options)) -> Driver {
    let mut driver = desk(change);
    run(
        &mut driver,
        1,
        ("c1", "find_order", r#"{"order_id":"A"}"#),
        "{}",
    );
    run(
        &mut driver,
        2,
        ("c2", "assess_return", r#"{"order_id":"A"}"#),
        ACCEPTED,
    );
    assert_eq!(driver.state().current_phase.as_deref(), Some("assessed"));
    driver
}

#[test]
fn tools_that_cannot_be_called_are_not_sent() {
    let mut driver = desk(|_| {});
    let planned = driver
        .plan(Wire::OpenAiChat, &chat_request(&TOOLS), at(1))
        .unwrap();
    let sent: Value = serde_json::from_slice(&planned.body).unwrap();
    let names: Vec<&str> = sent["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| tool["function"]["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["find_order", "send_note"]);
    let removed: Vec<(&str, NarrowReason)> = planned
        .narrowing
        .removed
        .iter()
        .map(|removed| (removed.tool.as_str(), removed.reason))
        .collect();
    assert_eq!(
        removed,
        [
            ("assess_return", NarrowReason::WrongPhase),
            ("pay_back", NarrowReason::WrongPhase)
        ]
    );
}

#[test]
fn a_call_that_is_proposed_anyway_is_blocked_on_the_bytes() {
    let mut driver = desk(|_| {});
    let arguments = payment("A", 9000);
    let JudgedResponse::Rejected(decision) =
        turn(&mut driver, 1, &[("c1", "pay_back", &arguments)])
    else {
        panic!("rejected");
    };
    assert_eq!(decision.reason, Some(BlockReason::IllegalPhaseTransition));
    assert_eq!(driver.state().state_version, 0);
    assert_eq!(driver.state().exact_costs.actual.to_string(), "0.00102");
}

#[test]
fn r13_arguments_that_a_parser_would_change_are_blocked() {
    for arguments in [
        r#"{"order_id":"A","amount_cents":1,"amount_cents":40000,"currency":"EUR"}"#,
        r#"{"order_id":"A","amount_cents":9007199254740993,"currency":"EUR"}"#,
        r#"{"order_id":"A","amount_cents":1e400,"currency":"EUR"}"#,
        r#"{"order_id":"A","amount_cents":12000"#,
    ] {
        let mut driver = assessed(|_| {});
        let JudgedResponse::Rejected(decision) =
            turn(&mut driver, 3, &[("c3", "pay_back", arguments)])
        else {
            panic!("{arguments}");
        };
        assert_eq!(
            decision.reason,
            Some(BlockReason::ResponseFormatInvalid),
            "{arguments}"
        );
    }
}

#[test]
fn stripped_responses_keep_what_is_allowed() {
    let mut driver = plain("", |options| options.gate = Gate::StripPartial);
    let planned = driver
        .plan(Wire::OpenAiChat, &chat_request(&["a", "b"]), at(1))
        .unwrap();
    let both = chat_response(&[("c1", "a", "{}"), ("c2", "b", "{}")]);
    let JudgedResponse::Released {
        body: released,
        decision,
    } = driver.judge(planned.attempt, &both, false, at(1)).unwrap()
    else {
        panic!("released");
    };
    assert_eq!(decision.unwrap().action, Action::Stripped);
    let released: Value = serde_json::from_slice(&released).unwrap();
    let calls = released["choices"][0]["message"]["tool_calls"]
        .as_array()
        .unwrap();
    assert_eq!(calls.len(), 1);
    assert_eq!(calls[0]["id"], "c1");
    assert_eq!(driver.state().total_tool_calls, 1);

    let mut driver = plain("", |options| options.gate = Gate::StripBlocked);
    let planned = driver
        .plan(Wire::OpenAiChat, &chat_request(&["b"]), at(1))
        .unwrap();
    let JudgedResponse::Released { body: released, .. } = driver
        .judge(
            planned.attempt,
            &chat_response(&[("c2", "b", "{}")]),
            false,
            at(1),
        )
        .unwrap()
    else {
        panic!("released");
    };
    let released: Value = serde_json::from_slice(&released).unwrap();
    assert_eq!(released["choices"][0]["message"]["content"], SUBSTITUTE);
}

fn approve(id: &str, by: &str) -> ApprovalResponse {
    ApprovalResponse {
        checkpoint_id: id.to_owned(),
        decision: "approve".to_owned(),
        decided_by: by.to_owned(),
        decided_at: at(0).to_string(),
        reason: None,
    }
}

#[test]
fn people_are_asked_between_two_calls() {
    let big = r#"{"accepted":true,"days_since_delivery":4,"amount_cents":20000}"#;
    let start = || {
        let mut driver = desk(|_| {});
        run(
            &mut driver,
            1,
            ("c1", "find_order", r#"{"order_id":"A"}"#),
            "{}",
        );
        run(
            &mut driver,
            2,
            ("c2", "assess_return", r#"{"order_id":"A"}"#),
            big,
        );
        let judged = turn(&mut driver, 3, &[("c3", "pay_back", &payment("A", 20000))]);
        let JudgedResponse::Asked(question) = judged else {
            panic!("{judged:?}")
        };
        (driver, question)
    };
    let (mut driver, question) = start();
    assert_eq!(question.arguments["amount_cents"], 20000);
    // While a person thinks, the room is taken: the same tool cannot be called again.
    let planned = driver
        .plan(Wire::OpenAiChat, &chat_request(&TOOLS), at(4))
        .unwrap();
    assert!(planned.narrowing.removed("pay_back").is_some());
    let answer = approve(&question.checkpoint_id, "ann");
    let judged = driver
        .answer(&question.checkpoint_id, Some(&answer), at(5))
        .unwrap();
    assert!(
        matches!(judged, JudgedResponse::Released { .. }),
        "{judged:?}"
    );
    assert_eq!(
        driver.answer(&question.checkpoint_id, Some(&answer), at(6)),
        Err(DriveError::Unknown)
    );

    // A label that comes meanwhile counts.
    let (mut driver, question) = start();
    let label = Label::new("fraud_suspected").unwrap();
    driver.control(Control::AddLabel(label), at(4)).unwrap();
    let answer = approve(&question.checkpoint_id, "ann");
    let judged = driver
        .answer(&question.checkpoint_id, Some(&answer), at(5))
        .unwrap();
    let JudgedResponse::Rejected(decision) = judged else {
        panic!("{judged:?}")
    };
    assert_eq!(decision.reason, Some(BlockReason::LabelGate));

    let (mut driver, question) = start();
    let judged = driver
        .answer(&question.checkpoint_id, None, at(700))
        .unwrap();
    let JudgedResponse::Rejected(decision) = judged else {
        panic!("{judged:?}")
    };
    assert_eq!(decision.reason, Some(BlockReason::CheckpointTimeout));

    // A kill while a person thinks: nothing is released, and the room is given back.
    let (mut driver, question) = start();
    driver
        .control(
            Control::Kill {
                cause: "stop".to_owned(),
            },
            at(4),
        )
        .unwrap();
    let answer = approve(&question.checkpoint_id, "ann");
    let killed = driver.answer(&question.checkpoint_id, Some(&answer), at(5));
    assert!(matches!(killed, Err(DriveError::Killed { .. })));

    // The call fails on the way: the question is closed, nothing is committed, and the room is given back.
    for how in [
        AttemptFailure::Aborted,
        AttemptFailure::Provider,
        AttemptFailure::Fault,
    ] {
        let (mut driver, question) = start();
        let before = driver.state().state_version;
        driver.failed(3, how, at(4)).unwrap();
        let late = driver.answer(&question.checkpoint_id, None, at(5));
        assert_eq!(late, Err(DriveError::Unknown));
        assert_eq!(driver.state().state_version, before);
        assert!(
            !driver
                .state()
                .forbidden_tools
                .contains(&"pay_back".to_owned())
        );
    }
}

#[test]
fn a_retry_sends_the_narrowed_request_again() {
    let mut driver = desk(|options| {
        options.retries_max = 1;
        options.feedback = Feedback::Inject;
    });
    let planned = driver
        .plan(Wire::OpenAiChat, &chat_request(&TOOLS), at(1))
        .unwrap();
    let sent: Value = serde_json::from_slice(&planned.body).unwrap();
    assert_eq!(sent["messages"][0]["role"], "system");
    let wrong = chat_response(&[("c1", "find_order", "{")]);
    let judged = driver.judge(planned.attempt, &wrong, false, at(2)).unwrap();
    let JudgedResponse::Retried { body, decision } = judged else {
        panic!("{judged:?}")
    };
    assert_eq!(decision.action, Action::Retried);
    let again: Value = serde_json::from_slice(&body).unwrap();
    let told = again["messages"][0]["content"].as_str().unwrap();
    assert!(told.ends_with("These tools are not available now: find_order (response_format_invalid). Do not call them."), "{told}");
    assert_eq!(again["messages"].as_array().unwrap().len(), 2);
    let right = chat_response(&[("c2", "find_order", r#"{"order_id":"A"}"#)]);
    let judged = driver.judge(planned.attempt, &right, false, at(3)).unwrap();
    assert!(matches!(judged, JudgedResponse::Released { .. }));
    assert_eq!(driver.state().attempt_count, 2);
}

#[test]
fn a_response_that_cannot_be_read_as_one_thing_is_blocked_whole() {
    let odd = br#"{"choices":[{"message":{"content":"a","content":"b"},"finish_reason":"stop"}]}"#;
    for gate in [Gate::RejectAll, Gate::StripBlocked] {
        let mut driver = plain("", |options| options.gate = gate);
        let planned = driver
            .plan(Wire::OpenAiChat, &chat_request(&["a"]), at(1))
            .unwrap();
        let JudgedResponse::Rejected(decision) =
            driver.judge(planned.attempt, odd, false, at(1)).unwrap()
        else {
            panic!("rejected");
        };
        assert_eq!(decision.reason, Some(BlockReason::ResponseFormatInvalid));
        assert_eq!(driver.state().total_block_count, 1);
    }
    // Where nothing is blocked, nothing is changed.
    for mode in [Mode::Shadow, Mode::LogOnly] {
        let mut driver = plain("", |options| options.mode = mode);
        let planned = driver
            .plan(Wire::OpenAiChat, &chat_request(&["a"]), at(1))
            .unwrap();
        let JudgedResponse::Released { body, .. } =
            driver.judge(planned.attempt, odd, false, at(1)).unwrap()
        else {
            panic!("released");
        };
        assert_eq!(body, odd);
    }
}

#[test]
fn what_a_provider_sends_instead_of_an_answer_is_passed_on_where_nothing_is_blocked() {
    let chunk = r#"data: {"choices":[{"index":0,"delta":{"content":"hi"}}]}"#;
    for (sent, is_sse) in [
        (r#"{"error":{"message":"busy"}}"#.to_owned(), false),
        (r#"{"error":{"message":"busy"}}"#.to_owned(), true),
        (format!("{chunk}\n\n"), true),
        (format!("{chunk}\n\n{chunk}"), true),
        (format!("{chunk}\n\ndata: {{\"error\":{{}}}}\n\n"), true),
        (String::new(), true),
    ] {
        let mut strict = plain("", |_| {});
        let attempt = |driver: &mut Driver| {
            let planned = driver
                .plan(Wire::OpenAiChat, &chat_request(&["a"]), at(1))
                .unwrap();
            driver.judge(planned.attempt, sent.as_bytes(), is_sse, at(1))
        };
        let refused = attempt(&mut strict);
        assert!(
            matches!(refused, Err(DriveError::Provider { .. })),
            "{sent}: {refused:?}"
        );
        for mode in [Mode::Shadow, Mode::LogOnly] {
            let mut driver = plain("", |options| options.mode = mode);
            let Ok(JudgedResponse::Released { body, decision }) = attempt(&mut driver) else {
                panic!("{sent}: {mode:?}");
            };
            assert_eq!(body, sent.as_bytes());
            assert_eq!(decision, None);
            let told = driver.diagnostics();
            assert!(
                told.iter().any(|told| told.name == "response_unread"),
                "{told:?}"
            );
            let delta = driver.last_shadow_delta();
            assert_eq!(delta.is_some(), mode == Mode::Shadow);
            assert!(delta.is_none_or(|delta| delta.would_have_blocked.is_empty()));
            assert_eq!(driver.state().attempt_count, 1);
        }
    }
    // What has two readings would have been blocked, and the difference says so.
    let mut driver = plain("", |options| options.mode = Mode::Shadow);
    let planned = driver
        .plan(Wire::OpenAiChat, &chat_request(&["a"]), at(1))
        .unwrap();
    let odd = b"[1]";
    let judged = driver.judge(planned.attempt, odd, false, at(1)).unwrap();
    assert!(matches!(judged, JudgedResponse::Released { body, .. } if body == odd));
    let delta = driver.last_shadow_delta().unwrap();
    let [blocked] = delta.would_have_blocked.as_slice() else {
        panic!("{delta:?}");
    };
    assert_eq!(blocked.reason, BlockReason::ResponseFormatInvalid);
}

#[test]
fn shadow_changes_neither_request_nor_response() {
    let mut driver = desk(crate::support::shadow);
    let sent = chat_request(&TOOLS);
    let planned = driver.plan(Wire::OpenAiChat, &sent, at(1)).unwrap();
    assert_eq!(planned.body, sent);
    let response = chat_response(&[("c1", "pay_back", &payment("A", 9000))]);
    let JudgedResponse::Released { body, .. } = driver
        .judge(planned.attempt, &response, false, at(1))
        .unwrap()
    else {
        panic!("released");
    };
    assert_eq!(body, response);
    let delta = driver.last_shadow_delta().unwrap();
    assert_eq!(
        delta.would_have_blocked[0].reason,
        BlockReason::IllegalPhaseTransition
    );
    assert_eq!(driver.state().current_phase.as_deref(), Some("intake"));
}

#[test]
fn r45_only_responses_released_whole_can_be_continued() {
    let request = |previous: &str| {
        format!(
            r#"{{"model":"gpt-test","input":"x","previous_response_id":{previous},"tools":[{{"type":"function","name":"a"}},{{"type":"function","name":"b"}}]}}"#
        )
    };
    let response = |id: &str, tool: &str| {
        format!(
            r#"{{"id":"{id}","status":"completed","output":[{{"type":"function_call","call_id":"{id}","name":"a","arguments":"{{}}"}},{{"type":"function_call","call_id":"x{id}","name":"{tool}","arguments":"{{}}"}}],"usage":{{"input_tokens":1,"output_tokens":1}}}}"#
        )
    };
    let mut driver = plain("", |options| options.gate = Gate::StripPartial);
    let mut turn = |previous: &str, answer: &str| {
        let planned = driver.plan(Wire::OpenAiResponses, request(previous).as_bytes(), at(1))?;
        driver.judge(planned.attempt, answer.as_bytes(), false, at(1))
    };
    assert!(turn("null", &response("r1", "a")).is_ok());
    assert!(
        turn("\"r1\"", &response("r2", "b")).is_ok(),
        "r1 was released whole"
    );
    let refused = turn("\"r2\"", &response("r3", "a"));
    let member = "previous_response_id".to_owned();
    assert_eq!(
        refused,
        Err(DriveError::Unsupported { member }),
        "r2 was stripped"
    );
}

#[test]
fn r18_hosted_calls_are_counted_and_never_stripped() {
    let files = [source(
        "web_search",
        "tool: web_search\nside_effect: read\ngate: allow",
    )];
    let session =
        "schema_version: \"1.0\"\nsession_limits: { max_calls_per_tool: { web_search: 1 } }";
    let compiled = compile(&files, Some(&source("session", session))).unwrap();
    let rules = Rules::new(Arc::new(compiled), Options::new("s1")).unwrap();
    let mut driver = Driver::open(rules, at(0)).unwrap();
    let request =
        br#"{"model":"m","input":"x","tools":[{"type":"web_search"},{"type":"file_search"}]}"#;
    let planned = driver.plan(Wire::OpenAiResponses, request, at(1)).unwrap();
    assert_eq!(
        planned.body,
        br#"{"model":"m","input":"x","tools":[{"type":"web_search"}]}"#
    );
    let response =
        br#"{"id":"r","status":"completed","output":[{"type":"web_search_call","id":"w"}]}"#;
    let JudgedResponse::Released { body, .. } = driver
        .judge(planned.attempt, response, false, at(1))
        .unwrap()
    else {
        panic!("released");
    };
    assert_eq!(body, response);
    assert_eq!(driver.state().tool_call_counts["web_search"], 1);
    let planned = driver.plan(Wire::OpenAiResponses, request, at(2)).unwrap();
    assert_eq!(
        planned.narrowing.removed("web_search").unwrap().reason,
        NarrowReason::LimitReached
    );
}

#[test]
fn outputs_in_requests_are_taken_in_once() {
    let mut driver = assessed(|_| {});
    let _ = driver.records(u64::MAX).count();
    let with_result = json!({"model":"gpt-test","messages":[{"role":"tool","tool_call_id":"c2","content":ACCEPTED}]}).to_string();
    for seconds in 3..6 {
        driver
            .plan(Wire::OpenAiChat, with_result.as_bytes(), at(seconds))
            .unwrap();
    }
    let seen = driver
        .records(0)
        .filter(|record| matches!(record.event, Event::OutputsSeen { .. }))
        .count();
    assert_eq!(seen, 0, "the executor had reported it");
}

#[test]
fn limits_hold_on_bytes() {
    let limit = "session_limits: { max_attempts: 1 }";
    let mut driver = plain(limit, |_| {});
    let planned = driver
        .plan(Wire::OpenAiChat, &chat_request(&["a"]), at(1))
        .unwrap();
    driver
        .failed(planned.attempt, AttemptFailure::Provider, at(1))
        .unwrap();
    let Err(DriveError::Contract(decision)) =
        driver.plan(Wire::OpenAiChat, &chat_request(&["a"]), at(2))
    else {
        panic!("refused");
    };
    assert_eq!(decision.detail.as_deref(), Some("max_attempts"));
    // What an abandoned request cost is not known; a limit that cannot be computed is not a limit.
    let mut driver = plain("session_limits: { max_cost_per_session: 5 }", |_| {});
    let planned = driver
        .plan(Wire::OpenAiChat, &chat_request(&["a"]), at(1))
        .unwrap();
    driver
        .failed(planned.attempt, AttemptFailure::Aborted, at(1))
        .unwrap();
    let Err(DriveError::Contract(decision)) =
        driver.plan(Wire::OpenAiChat, &chat_request(&["a"]), at(2))
    else {
        panic!("refused");
    };
    assert_eq!(decision.detail.as_deref(), Some("usage_unknown"));
}

#[test]
fn a_fault_outside_is_counted_and_the_last_one_kills() {
    let mut driver = plain("", |options| {
        options.on_error = Permission::Allow;
        options.unguarded_calls_max = 2;
    });
    for _ in 0..2 {
        let planned = driver
            .plan(Wire::OpenAiChat, &chat_request(&["a"]), at(1))
            .unwrap();
        driver
            .failed(planned.attempt, AttemptFailure::Fault, at(1))
            .unwrap();
    }
    let killed = driver.plan(Wire::OpenAiChat, &chat_request(&["a"]), at(1));
    assert!(matches!(killed, Err(DriveError::Killed { .. })));
}

#[test]
fn a_stored_session_goes_on_where_it_was() {
    let mut driver = assessed(|_| {});
    let events: Vec<Event> = driver
        .records(0)
        .map(|record| record.event.clone())
        .collect();
    let compiled = compile(&desk_files(), Some(&file("session"))).unwrap();
    let rules = Rules::new(Arc::new(compiled), desk_options()).unwrap();
    let mut resumed = Driver::resume(rules, at(0), &events).unwrap();
    assert_eq!(resumed.state(), driver.state());
    let judged = turn(&mut resumed, 5, &[("c3", "pay_back", &payment("A", 12000))]);
    assert!(
        matches!(judged, JudgedResponse::Released { .. }),
        "{judged:?}"
    );
    assert_eq!(resumed.records(0).next().unwrap().seq, events.len() as u64);
}

#[test]
fn executions_need_an_allowed_call_with_the_same_arguments() {
    let mut driver = assessed(|_| {});
    let arguments = payment("A", 12000);
    turn(&mut driver, 3, &[("c3", "pay_back", &arguments)]);
    let (_, decision) = driver
        .execute("pay_back", &payment("A", 1), None, at(4))
        .unwrap_err();
    let decision = decision.unwrap();
    assert_eq!(decision.calls.len(), 1);
    assert_eq!(decision.detail.as_deref(), Some("no_pending_call"));
    let ticket = driver.execute("pay_back", &arguments, None, at(4)).unwrap();
    assert_eq!(ticket.timeout_ms, 20_000);
    driver.settle(ticket.ticket, ExecutionEnd::Unknown).unwrap();
    assert_eq!(driver.state().current_phase.as_deref(), Some("assessed"));
    // The result comes late, and settles it.
    driver
        .settle(ticket.ticket, ExecutionEnd::Success(None))
        .unwrap();
    assert_eq!(driver.state().current_phase.as_deref(), Some("paid"));
    assert!(
        driver
            .settle(ticket.ticket, ExecutionEnd::Success(None))
            .is_err()
    );
}

#[test]
fn p6_requests_under_way_count_as_attempts() {
    let mut driver = plain("session_limits: { max_attempts: 2 }", |_| {});
    let plan = |driver: &mut Driver| driver.plan(Wire::OpenAiChat, &chat_request(&["a"]), at(1));
    let first = plan(&mut driver).unwrap();
    let second = plan(&mut driver).unwrap();
    // Both are with the model: a third would be one too many.
    let Err(DriveError::Contract(decision)) = plan(&mut driver) else {
        panic!("a third request");
    };
    assert_eq!(decision.reason, Some(BlockReason::SessionLimitExceeded));
    assert_eq!(decision.detail.as_deref(), Some("max_attempts"));
    // One that was never sent takes no room.
    driver
        .failed(second.attempt, AttemptFailure::Withdrawn, at(2))
        .unwrap();
    let second = plan(&mut driver).unwrap();
    for attempt in [first.attempt, second.attempt] {
        let judged = driver.judge(attempt, &chat_response(&[("c", "a", "{}")]), false, at(3));
        assert!(
            matches!(judged, Ok(JudgedResponse::Released { .. })),
            "{judged:?}"
        );
    }
    assert_eq!(driver.state().attempt_count, 2);
    assert!(plan(&mut driver).is_err());
}

/// Requests with the same tools, with others, with tools in another place, and with tools that cannot be judged.
fn requests() -> Vec<String> {
    let tool = |name: &str, wants: &str| {
        format!(
            r#"{{"type":"function","function":{{"name":"{name}","parameters":{{"type":"object","required":["{wants}"]}}}}}}"#
        )
    };
    let some = format!("[{},{}]", tool("a", "x"), tool("b", "x"));
    let others = format!("[{}, {}]", tool("b", "x"), tool("a", "y"));
    let twice = format!("[{},{}]", tool("a", "x"), tool("a", "x"));
    let with = |tools: &str, words: &str| {
        format!(
            r#"{{"model":"gpt-test","messages":[{{"role":"user","content":"{words}"}}],"tools":{tools}}}"#
        )
    };
    vec![
        with(&some, "hi"),
        with(&some, "something longer than that"),
        format!(r#"{{"tools" : {some},"model":"gpt-test","messages":[]}}"#),
        with(&others, "hi"),
        with(&format!("{some} "), "hi"),
        with(&twice, "hi"),
        with("[]", "hi"),
        with("[{}]", "hi"),
        r#"{"model":"gpt-test","messages":[]}"#.to_owned(),
        "not json".to_owned(),
    ]
}

#[test]
fn a_request_is_read_the_same_whatever_came_before_it() {
    let open = |keeps_nothing: bool| {
        let mut driver = plain("", |options| options.unmatched = Permission::Block);
        if keeps_nothing {
            driver.keep_nothing();
        }
        driver
    };
    let call = chat_response(&[("c1", "a", r#"{"x":1}"#)]);
    let turn = |driver: &mut Driver, request: &str| {
        let planned = driver.plan(Wire::OpenAiChat, request.as_bytes(), at(1));
        let planned = planned.map_err(|error| error.to_string())?;
        let judged = driver.judge(planned.attempt, &call, false, at(1));
        let (released, reason) = match judged.map_err(|error| error.to_string())? {
            JudgedResponse::Released { body, .. } => (Some(body), None),
            JudgedResponse::Rejected(decision) => (None, decision.reason),
            other => panic!("{other:?}"),
        };
        let narrowing = driver.last_narrowing().cloned();
        Ok::<_, String>((planned.body, planned.narrowing, narrowing, released, reason))
    };
    let mut reasons = Vec::new();
    for keeps_nothing in [false, true] {
        for before in requests() {
            for request in requests() {
                let mut driver = open(keeps_nothing);
                let _ = turn(&mut driver, &before);
                let _ = turn(&mut driver, &before);
                let after = turn(&mut driver, &request);
                let alone = turn(&mut open(keeps_nothing), &request);
                assert_eq!(after, alone, "{before} then {request}");
                reasons.extend(after.map(|(.., reason)| reason));
            }
        }
    }
    // The schema that a call is held against is the one of its own request.
    assert!(reasons.contains(&None) && reasons.iter().flatten().count() > 0);
}

#[test]
fn a_filter_applies_to_tools_that_were_offered_before() {
    let mut driver = plain("", |_| {});
    driver.keep_nothing();
    let names = |driver: &mut Driver| {
        let planned = driver
            .plan(Wire::OpenAiChat, &chat_request(&["a"]), at(1))
            .unwrap();
        let _ = driver.judge(planned.attempt, &chat_response(&[]), false, at(1));
        (
            planned.narrowing.allowed.clone(),
            driver.last_narrowing().cloned(),
        )
    };
    let (allowed, shown) = names(&mut driver);
    assert_eq!((allowed.len(), shown.unwrap().allowed.len()), (1, 1));
    driver.control(Control::Narrow(Vec::new()), at(2)).unwrap();
    let (allowed, shown) = names(&mut driver);
    assert_eq!((allowed.len(), shown.unwrap().removed.len()), (0, 1));
    driver.control(Control::Widen, at(3)).unwrap();
    let (allowed, shown) = names(&mut driver);
    assert_eq!((allowed.len(), shown.unwrap().removed.len()), (1, 0));
}

#[test]
fn of_very_many_responses_the_last_ones_can_be_continued() {
    let mut driver = plain("", |_| {});
    driver.keep_nothing();
    let request = |previous: &str| {
        format!(
            r#"{{"model":"gpt-test","input":"x","previous_response_id":{previous},"tools":[{{"type":"function","name":"a"}}]}}"#
        )
    };
    for number in 0..10_001 {
        let planned = driver.plan(Wire::OpenAiResponses, request("null").as_bytes(), at(1));
        let reply = format!(
            r#"{{"id":"r{number}","status":"completed","output":[],"usage":{{"input_tokens":1,"output_tokens":1}}}}"#
        );
        let attempt = planned.unwrap().attempt;
        driver
            .judge(attempt, reply.as_bytes(), false, at(1))
            .unwrap();
    }
    let planned = driver.plan(
        Wire::OpenAiResponses,
        request("\"r10000\"").as_bytes(),
        at(2),
    );
    planned.unwrap();
    let refused = driver.plan(Wire::OpenAiResponses, request("\"r0\"").as_bytes(), at(2));
    let member = "previous_response_id".to_owned();
    assert_eq!(refused, Err(DriveError::Unsupported { member }));
}

#[test]
fn r42_what_of_a_schema_is_not_checked_is_told_once_per_tool() {
    let mut driver = plain("", |_| {});
    let schema = json!({"type": "object", "properties": {"n": {"anyOf": [{"type": "integer"}]}}});
    let tool = json!({"type": "function", "function": {"name": "a", "parameters": schema}});
    let body = json!({"model": "gpt-test", "messages": [], "tools": [tool]}).to_string();
    for seconds in 1..3 {
        driver
            .plan(Wire::OpenAiChat, body.as_bytes(), at(seconds))
            .unwrap();
    }
    let told = driver.diagnostics();
    let told: Vec<_> = told
        .iter()
        .filter(|one| one.name == "schema_keyword_ignored")
        .collect();
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(
        (
            told[0].data["tool"].as_str(),
            told[0].data["keywords"].as_str()
        ),
        ("a", "anyOf")
    );
}

#[test]
fn a_model_is_excluded_in_whatever_case_it_is_written() {
    let mut driver = plain(
        "provider_constraints: { block_incompatible: [\"openai/gpt-3.5-*\"] }",
        |_| {},
    );
    for model in ["gpt-3.5-turbo", "GPT-3.5-Turbo"] {
        let body = json!({"model": model, "messages": []}).to_string();
        let refused = driver.plan(Wire::OpenAiChat, body.as_bytes(), at(1));
        let excluded = matches!(refused, Err(DriveError::ProviderIncompatible { .. }));
        assert!(excluded, "{model}");
    }
}

#[test]
fn r40_a_refused_call_stays_refused_when_people_answer_about_another() {
    let files = [
        source(
            "note",
            "tool: note\nside_effect: write\ncheckpoint: { reason: small }",
        ),
        source(
            "find",
            "tool: find\nside_effect: read\ncommit_requirement: none\nbinds: [ { slot: order, from: arguments, path: \"$.order\" } ]",
        ),
        source(
            "pay",
            "tool: pay\nside_effect: financial\nargument_value_invariants: [ { path: \"$.order\", ref: order } ]",
        ),
    ];
    let compiled = compile(&files, None).unwrap();
    let mut options = Options::new("s1");
    options.gate = Gate::StripPartial;
    options.answers_checkpoints = true;
    let mut driver = Driver::open(Rules::new(Arc::new(compiled), options).unwrap(), at(0)).unwrap();
    let order = r#"{"order":"A"}"#;
    let turn = |driver: &mut Driver, calls: &[(&str, &str, &str)]| {
        let tools = chat_request(&["note", "find", "pay"]);
        let planned = driver.plan(Wire::OpenAiChat, &tools, at(1)).unwrap();
        let judged = driver.judge(planned.attempt, &chat_response(calls), false, at(1));
        judged.unwrap()
    };
    let asked = turn(&mut driver, &[("n", "note", "{}"), ("p", "pay", order)]);
    let JudgedResponse::Asked(question) = asked else {
        panic!("asked");
    };
    let found = turn(&mut driver, &[("f", "find", order)]);
    assert!(
        matches!(found, JudgedResponse::Released { .. }),
        "{found:?}"
    );
    // By now the other call would be allowed, were it proposed again.
    let yes = approve(&question.checkpoint_id, "bea");
    let judged = driver.answer(&question.checkpoint_id, Some(&yes), at(2));
    let JudgedResponse::Released { decision, .. } = judged.unwrap() else {
        panic!("released");
    };
    let decision = decision.unwrap();
    assert_eq!(decision.action, Action::Stripped);
    let last = decision.calls.last().unwrap();
    assert_eq!(last.verdict, contracts::Status::Block, "{last:?}");
    let again = turn(&mut driver, &[("p2", "pay", order)]);
    assert!(
        matches!(again, JudgedResponse::Released { .. }),
        "{again:?}"
    );
}
