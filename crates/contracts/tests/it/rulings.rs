//! Rulings on what the tables left open, gates, retries, counters, modes and health.

use contracts::{
    Action, Answer, Answers, ApprovalResponse, Attachment, Authority, BlockReason, Compat,
    Durability, Event, Executors, Feedback, Gate, HealthStatus, HostFacts, Mode, NarrowReason,
    OfferedTool, Outcome, PreCheck, Protection, Refusal, Settlement, ShownOutput, Status, health,
    narrow, question, read_answer, refused, settle,
};

use crate::support::{ACCEPTED, Desk, at, decimal, payment, reasons, unwrapped};

const A: (&str, &str) = ("a", "tool: a\nside_effect: read");
const CLOSED: (&str, &str) = ("closed", "tool: closed\nside_effect: read\ngate: block");

fn wrapped(options: &mut contracts::Options) {
    options.executors = Executors::All;
}

#[test]
fn r9_a_limit_that_stops_a_retry_leaves_the_last_decision() {
    let mut desk = Desk::of(&[A], "session_limits: { max_attempts: 1 }");
    let response = desk.response(&[("uncontracted", "{}")]);
    let judgement = desk.judge(&response, &Answers::new());
    let Settlement::Retry { decision, .. } = settle(&desk.rules, &judgement, 1, 1) else {
        panic!("no retry")
    };
    assert_eq!(decision.action, Action::Retried);
    desk.create_from(&response);
    let refusal = desk.precheck().unwrap_err();
    assert_eq!(refusal.check(), PreCheck::P6);
    let decision = decision.stop_retry(&refusal);
    assert_eq!(decision.action, Action::Rejected);
    assert_eq!(
        decision.detail.as_deref(),
        Some("retry_stopped:max_attempts")
    );
    assert_eq!(decision.reason, Some(BlockReason::UnmatchedToolBlocked));
}

#[test]
fn r11_r41_a_decision_names_the_first_blocked_call_and_all_reasons_begin_with_the_reason() {
    let mut desk = Desk::new();
    let Settlement::Reject(decision) = desk.create(&[
        ("find_order", "{}"),
        ("pay_back", "{}"),
        ("uncontracted", "{}"),
    ]) else {
        panic!("released")
    };
    assert_eq!(decision.reason, Some(BlockReason::IllegalPhaseTransition));
    assert_eq!(decision.contract_file.as_deref(), Some("pay_back.yaml"));
    assert_eq!(
        decision.calls[1].all_reasons.first().copied(),
        decision.calls[1].reason
    );
    assert_eq!(
        decision.calls[2].contract_file.as_deref(),
        Some("session.yaml")
    );
    assert_eq!(decision.calls[0].verdict, Status::Allow);
    let text = serde_json::to_string(&decision).unwrap();
    assert!(text.contains("\"stateVersion\":0"), "{text}");
    assert_eq!(
        serde_json::from_str::<contracts::Decision>(&text).unwrap(),
        decision
    );
    assert!(refused(&desk.rules, &desk.state, &Refusal::Inactive).is_none());
}

#[test]
fn r23_r24_what_a_model_is_told() {
    assert_eq!(
        contracts::SUBSTITUTE,
        "This action is not available right now."
    );
    let desk = Desk::of(&[A, CLOSED], "");
    assert_eq!(
        desk.narrow().feedback().as_deref(),
        Some(
            "These tools are not available now: closed (restricted); uncontracted (no_contract). Do not call them."
        )
    );
    let shown: Vec<&str> = NarrowReason::ALL
        .iter()
        .map(|reason| reason.shown_to_model())
        .collect();
    assert_eq!(
        shown,
        [
            "no_contract",
            "restricted",
            "restricted",
            "manual_filter",
            "wrong_phase",
            "precondition_not_met",
            "forbidden_in_state",
            "restricted",
            "limit_reached"
        ]
    );
}

#[test]
fn r29_a_pending_move_makes_another_target_ambiguous() {
    let files = [
        (
            "pay",
            "tool: pay\nside_effect: read\ntransitions: { advances_to: paid }",
        ),
        (
            "close",
            "tool: close\nside_effect: read\ntransitions: { advances_to: closed }",
        ),
    ];
    let session = "phases: [{name: open, initial: true}, {name: paid}, {name: closed, terminal: true}]\n\
                   transitions: {open: [paid, closed], paid: [closed]}";
    let mut desk = Desk::of_with(&files, session, wrapped);
    desk.create(&[("pay", "{}")]);
    assert_eq!(
        desk.reasons_of("close", "{}"),
        ["ambiguous_phase_transition"]
    );
    assert!(desk.reasons_of("pay", "{}").is_empty());
    desk.execute("pay", Outcome::Success, None);
    assert!(desk.reasons_of("close", "{}").is_empty());
}

#[test]
fn r33_a_tool_whose_slot_or_envelope_is_not_set_stays_visible() {
    let desk = Desk::assessed(r#"{"accepted":true,"days_since_delivery":4}"#);
    assert_eq!(desk.removed("pay_back"), "");
    let mut desk = desk;
    assert_eq!(
        desk.reasons_of("pay_back", &payment("A", 1)),
        ["envelope_not_established"]
    );
}

#[test]
fn r18_what_a_provider_runs_stays_only_under_an_open_contract_that_reads_no_arguments() {
    let files = [
        ("web", "tool: web\nside_effect: read\ngate: allow"),
        ("code", "tool: code\nside_effect: read"),
        (
            "shell",
            "tool: shell\nside_effect: read\ngate: allow\nargument_value_invariants: [{ path: \"$.x\", exists: true }]",
        ),
    ];
    let allow = |options: &mut contracts::Options| options.unmatched = contracts::Permission::Allow;
    let desk = Desk::of_with(&files, "", allow);
    let hosted = |name: &str| OfferedTool {
        hosted: true,
        ..OfferedTool::named(name)
    };
    let offered = [
        hosted("web"),
        hosted("code"),
        hosted("shell"),
        hosted("other"),
        OfferedTool::named("free"),
    ];
    let narrowing = narrow(&desk.rules, &desk.state, &offered);
    assert_eq!(narrowing.allowed, ["web", "free"]);
    let removed: Vec<&str> = narrowing
        .removed
        .iter()
        .map(|removed| removed.reason.as_str())
        .collect();
    assert_eq!(removed, ["risk_gate", "risk_gate", "no_contract"]);
}

#[test]
fn r39_asking_stops_at_the_first_denial_under_reject_all() {
    let file = (
        "a",
        "tool: a\nside_effect: read\ncheckpoint: { reason: look }",
    );
    let mut desk = Desk::of_with(&[file], "", unwrapped);
    let response = desk.response(&[("a", "{}"), ("a", "{\"n\":1}")]);
    let denied = Answers::from([(
        response.calls[0].id.clone(),
        Answer::Denied { detail: None },
    )]);
    let judgement = desk.judge(&response, &denied);
    let status: Vec<Status> = judgement
        .verdicts()
        .iter()
        .map(|verdict| verdict.status())
        .collect();
    assert_eq!(status, [Status::Block, Status::Allow]);
    let mut strip = Desk::of_with(&[file], "", |options| options.gate = Gate::StripPartial);
    let _ = strip.response(&[]);
    let status: Vec<Status> = strip
        .judge(&response, &denied)
        .verdicts()
        .iter()
        .map(|verdict| verdict.status())
        .collect();
    assert_eq!(status, [Status::Block, Status::Ask]);
}

#[test]
fn r40_waiting_calls_take_room_and_are_not_counted_against_themselves() {
    let file = (
        "a",
        "tool: a\nside_effect: read\ncheckpoint: { reason: look, when: [{ path: \"$.n\", gte: 1 }] }",
    );
    let mut desk = Desk::of_with(
        &[file],
        "session_limits: { max_calls_per_tool: { a: 1 } }",
        unwrapped,
    );
    let response = desk.response(&[("a", "{\"n\":1}")]);
    let judgement = desk.judge(&response, &Answers::new());
    desk.apply(Event::Asked {
        at: at(0),
        proposal: "p".to_owned(),
        asked: 1,
        calls: judgement.standing_calls(),
    });
    assert_eq!(desk.snapshot().checkpoint_count, 1);
    // Another response cannot take the room meanwhile.
    assert_eq!(
        desk.reasons_of("a", "{\"n\":0}"),
        ["session_limit_exceeded"]
    );
    let call = judgement.needing_approval().next().unwrap().call().clone();
    let approved = Answer::Approved {
        arguments: call.arguments_digest,
        compiled: desk.rules.compiled().digest(),
    };
    let answers = Answers::from([(call.id.clone(), approved)]);
    let judgement = desk.judge_waiting(&response, &answers, Some("p"));
    assert!(reasons(&judgement)[0].is_empty());
    desk.settle(&judgement, Some("p"));
    assert_eq!(desk.snapshot().total_tool_calls, 1);
    assert_eq!(desk.snapshot().checkpoint_count, 1);
}

#[test]
fn an_answer_counts_only_for_the_question_in_time_by_a_person_and_for_the_same_arguments() {
    let output = r#"{"accepted":true,"days_since_delivery":4,"amount_cents":20000}"#;
    let mut desk = Desk::assessed(output);
    let response = desk.response(&[("pay_back", &payment("A", 20000))]);
    let judgement = desk.judge(&response, &Answers::new());
    let call = judgement.needing_approval().next().unwrap().call().clone();
    let asked = question(&desk.rules, &desk.state, &call, "q", at(0)).unwrap();
    let good = ApprovalResponse {
        checkpoint_id: "q".to_owned(),
        decision: "approve".to_owned(),
        decided_by: "ann".to_owned(),
        decided_at: "2026-01-01T00:00:00Z".to_owned(),
        reason: None,
    };
    let word = |change: &dyn Fn(&mut ApprovalResponse)| {
        let mut answer = good.clone();
        change(&mut answer);
        let answer = read_answer(&desk.rules, &desk.state, &asked, &call, &answer, at(1));
        let answers = Answers::from([(call.id.clone(), answer)]);
        reasons(&desk.judge(&response, &answers))[0].join(",")
    };
    assert_eq!(word(&|_| {}), "");
    assert_eq!(
        word(&|answer| answer.decision = "deny".to_owned()),
        "checkpoint_denied"
    );
    assert_eq!(
        word(&|answer| answer.decision = "yes".to_owned()),
        "checkpoint_denied"
    );
    assert_eq!(
        word(&|answer| answer.checkpoint_id = "other".to_owned()),
        "checkpoint_denied"
    );
    assert_eq!(
        word(&|answer| answer.decided_by = " ".to_owned()),
        "checkpoint_denied"
    );
    assert_eq!(
        word(&|answer| answer.decided_by = "return-desk".to_owned()),
        "checkpoint_denied"
    );
    // An approval of other arguments, or under other contracts, is none.
    let compiled = desk.rules.compiled().digest();
    for (arguments, compiled) in [
        (canon::sha256(b"other"), compiled),
        (call.arguments_digest, canon::sha256(b"other")),
    ] {
        let answers = Answers::from([(
            call.id.clone(),
            Answer::Approved {
                arguments,
                compiled,
            },
        )]);
        assert_eq!(
            reasons(&desk.judge(&response, &answers)),
            [["checkpoint_denied"]]
        );
    }
}

#[test]
fn retries_happen_only_for_reasons_that_a_model_can_mend() {
    let mut desk = Desk::of_with(&[A, CLOSED], "", |options| {
        options.feedback = Feedback::Inject
    });
    let retry = |desk: &mut Desk, calls: &[(&str, &str)]| {
        let response = desk.response(calls);
        let judgement = desk.judge(&response, &Answers::new());
        settle(&desk.rules, &judgement, 1, 1)
    };
    let Settlement::Retry { feedback, .. } = retry(&mut desk, &[("uncontracted", "{}")]) else {
        panic!("no retry")
    };
    let told = "These tools are not available now: uncontracted (unmatched_tool_blocked). Do not call them.";
    assert_eq!(feedback.as_deref(), Some(told));
    let lost = retry(&mut desk, &[("uncontracted", "{}"), ("closed", "{}")]);
    assert!(matches!(lost, Settlement::Reject(_)), "{lost:?}");
    assert_eq!(
        BlockReason::ALL
            .iter()
            .filter(|reason| reason.is_retried())
            .count(),
        15
    );
    assert_eq!(BlockReason::ALL.len(), 26);
}

#[test]
fn gates_reject_strip_or_substitute() {
    for (gate, calls, expected) in [
        (Gate::RejectAll, &["a", "uncontracted"][..], "reject"),
        (Gate::StripPartial, &["a", "uncontracted"], "strip"),
        (Gate::StripPartial, &["uncontracted"], "reject"),
        (Gate::StripBlocked, &["a", "uncontracted"], "strip"),
        (Gate::StripBlocked, &["uncontracted"], "empty"),
        (Gate::RejectAll, &["a"], "release"),
        (Gate::RejectAll, &[], "release"),
    ] {
        let mut desk = Desk::of_with(&[A], "", |options| {
            unwrapped(options);
            options.gate = gate;
        });
        let calls: Vec<(&str, &str)> = calls.iter().map(|tool| (*tool, "{}")).collect();
        let found = match desk.create(&calls) {
            Settlement::Release(_) => "release",
            Settlement::Strip { empty: true, .. } => "empty",
            Settlement::Strip { .. } => "strip",
            Settlement::Reject(_) => "reject",
            Settlement::Retry { .. } | Settlement::Wait => "other",
        };
        assert_eq!(found, expected, "{gate} {calls:?}");
        // A step whose calls were all stripped is a step with zero calls.
        assert_eq!(desk.state.steps(), u64::from(expected != "reject"));
    }
}

#[test]
fn two_counters_move_by_one_for_each_cause_and_for_nothing_else() {
    let mut desk = Desk::of_with(
        &[
            A,
            (
                "b",
                "tool: b\nside_effect: read\npreconditions: [{ requires_prior_tool: a, with_output: [{ path: \"$.ok\", exists: true }] }]",
            ),
        ],
        "",
        unwrapped,
    );
    let mut seen = Vec::new();
    let mut note =
        |desk: &Desk| seen.push((desk.state.state_version(), desk.state.control_revision()));
    desk.create(&[("a", "{}"), ("a", "{}")]);
    note(&desk);
    desk.create(&[("uncontracted", "{}")]);
    note(&desk);
    let outputs = |text: &str| Event::OutputsSeen {
        outputs: vec![ShownOutput {
            call_id: "call_1".to_owned(),
            text: text.to_owned(),
        }],
    };
    desk.apply(outputs(r#"{"ok":1}"#));
    note(&desk);
    let changed = ShownOutput {
        call_id: "call_1".to_owned(),
        text: r#"{"ok":2}"#.to_owned(),
    };
    assert_eq!(
        desk.state.output_diagnostics(&[changed])[0].0,
        "tool_output_changed"
    );
    desk.apply(outputs(r#"{"ok":2}"#));
    note(&desk);
    desk.apply(Event::LabelAdded {
        label: "x".to_owned(),
    });
    desk.apply(Event::Filtered { tools: None });
    desk.apply(Event::Bypassed);
    desk.apply(Event::Bypassed);
    desk.apply(Event::HandedOff);
    note(&desk);
    desk.apply(Event::Killed {
        cause: "x".to_owned(),
    });
    desk.apply(Event::Killed {
        cause: "y".to_owned(),
    });
    desk.apply(Event::LabelAdded {
        label: "z".to_owned(),
    });
    note(&desk);
    assert_eq!(seen, [(1, 0), (1, 0), (2, 0), (2, 0), (2, 4), (2, 5)]);
    assert_eq!(desk.snapshot().satisfied_preconditions["a"]["$.ok"], 1);
}

#[test]
fn a_result_without_execution_makes_a_call_unknown() {
    let mut desk = Desk::of_with(&[A], "", wrapped);
    desk.create(&[("a", "{}")]);
    let output = ShownOutput {
        call_id: "call_1".to_owned(),
        text: "{}".to_owned(),
    };
    assert_eq!(
        desk.state.output_diagnostics(std::slice::from_ref(&output))[0].0,
        "result_without_execution"
    );
    desk.apply(Event::OutputsSeen {
        outputs: vec![output],
    });
    assert_eq!(desk.state.unknown_outcomes(), 1);
    assert_eq!(desk.snapshot().total_tool_calls, 0);
}

#[test]
fn log_only_counts_and_judges_nothing_and_unmatched_shadow_follows_reality() {
    let mut desk = Desk::of_with(&[A], "", |options| options.mode = Mode::LogOnly);
    desk.apply(Event::Responded(contracts::Responded {
        at: at(1),
        proposal: None,
        cost: None,
        usage_unknown: false,
        release: contracts::Release::Logged {
            tools: vec!["a".to_owned(), "x".to_owned()],
        },
    }));
    let snapshot = desk.snapshot();
    assert_eq!(
        (snapshot.total_step_count, snapshot.total_tool_calls),
        (1, 2)
    );
    let health = health(&desk.rules, &desk.state, HostFacts::LOCAL);
    assert_eq!(health.protection_level, Protection::Monitor);
    assert_eq!(health.authority_state, Authority::Advisory);
}

#[test]
fn health_is_derived_and_the_first_rule_wins() {
    let mut desk = Desk::assessed(ACCEPTED);
    let of = |desk: &Desk, around| {
        let health = health(&desk.rules, &desk.state, around);
        (
            health.status,
            health.authority_state,
            health.protection_level,
            health.durability,
        )
    };
    let local = HostFacts::LOCAL;
    assert_eq!(
        of(&desk, local),
        (
            HealthStatus::Healthy,
            Authority::Active,
            Protection::Protect,
            Durability::Inactive
        )
    );
    let journal = HostFacts {
        journal: true,
        ..local
    };
    assert_eq!(of(&desk, journal).3, Durability::Local);
    let broken = HostFacts {
        attachment: Attachment::ArtifactInvalid,
        ..local
    };
    assert_eq!(of(&desk, broken).0, HealthStatus::Degraded);
    let cluster = HostFacts {
        cluster_detected: true,
        ..local
    };
    assert_eq!(of(&desk, cluster).0, HealthStatus::Degraded);
    let no_plan = HostFacts {
        attachment: Attachment::NoPlan,
        ..local
    };
    assert_eq!(of(&desk, no_plan).1, Authority::Advisory);
    desk.apply(Event::Bypassed);
    assert_eq!(of(&desk, local).1, Authority::Compromised);
    desk.apply(Event::Killed {
        cause: "x".to_owned(),
    });
    assert_eq!(
        of(&desk, local),
        (
            HealthStatus::Inactive,
            Authority::Killed,
            Protection::Protect,
            Durability::Inactive
        )
    );

    let server = |options: &mut contracts::Options| {
        options.server = true;
        options.executors = Executors::All;
        options.compat = Compat::Advisory;
    };
    let mut govern = Desk::of_with(&[A], "", server);
    assert_eq!(
        of(&govern, local),
        (
            HealthStatus::Healthy,
            Authority::Active,
            Protection::Govern,
            Durability::Server
        )
    );
    let lost = HostFacts {
        server_lost: true,
        ..local
    };
    assert_eq!(
        of(&govern, lost),
        (
            HealthStatus::Degraded,
            Authority::Recovering,
            Protection::Protect,
            Durability::DegradedLocal
        )
    );
    govern.apply(Event::Restored);
    assert_eq!(of(&govern, local).1, Authority::Inactive);
    let advisory = Desk::of_with(&[A], "", |options| options.compat = Compat::Advisory);
    assert!(!advisory.rules.enforces());
    assert_eq!(of(&advisory, local).2, Protection::Monitor);
}

#[test]
fn errors_in_a_row_kill_and_a_clean_response_resets() {
    let mut desk = Desk::of_with(
        &[A],
        "session_limits: { circuit_breaker: { consecutive_errors: 2 } }",
        unwrapped,
    );
    let fail = Event::Failed {
        at: at(1),
        attempted: true,
    };
    desk.apply(fail.clone());
    desk.create(&[("a", "{}")]);
    desk.apply(fail.clone());
    assert!(!desk.is_killed());
    desk.apply(fail);
    assert!(desk.is_killed());
    assert_eq!(desk.snapshot().attempt_count, 4);
}

#[test]
fn the_principal_is_never_shown_and_facts_are_redacted() {
    let desk = Desk::new();
    let text = serde_json::to_string(&desk.snapshot()).unwrap();
    assert!(
        text.contains("\"principal\":null") && !text.contains("trainee"),
        "{text}"
    );
}

#[test]
fn r47_a_bypass_is_seen_once_and_stays() {
    let mut desk = Desk::new();
    desk.apply(Event::Bypassed);
    desk.apply(Event::Bypassed);
    assert_eq!(desk.state.control_revision(), 1);
    let shown = health(&desk.rules, &desk.state, HostFacts::LOCAL);
    assert!(shown.bypass_detected);
    assert_eq!(shown.authority_state, Authority::Compromised);
    desk.apply(Event::Killed {
        cause: "x".to_owned(),
    });
    let shown = health(&desk.rules, &desk.state, HostFacts::LOCAL);
    assert_eq!(shown.authority_state, Authority::Killed);
    assert!(shown.bypass_detected);
}

#[test]
fn r32_a_snapshot_has_exact_costs_and_the_last_step() {
    let mut desk = Desk::new();
    desk.cost = Some(decimal("0.1"));
    desk.create(&[("find_order", r#"{"order_id":"A"}"#)]);
    desk.cost = Some(decimal("0.2"));
    desk.create(&[("send_note", r#"{"text":"hi"}"#)]);
    let shown = desk.snapshot();
    assert_eq!(shown.exact_costs.total.to_string(), "0.3");
    assert!((shown.total_cost - 0.3).abs() < f64::EPSILON);
    let step = shown.last_step.unwrap();
    assert_eq!((step.index, step.tools), (2, vec!["send_note".to_owned()]));
}

#[test]
fn r7_a_diagnostic_names_session_time_and_version() {
    let desk = Desk::new();
    let mut driver = contracts::driver::Driver::open(desk.rules, at(0)).unwrap();
    let label = contracts::driver::Label::new("vip").unwrap();
    let control = contracts::driver::Control::AddLabel(label);
    driver.control(control, at(5)).unwrap();
    let heard = serde_json::to_value(driver.diagnostics()).unwrap();
    let expected = serde_json::json!([{
        "name": "label_added", "time": at(5), "session_id": "s1",
        "state_version": 0, "data": {"label": "vip"},
    }]);
    assert_eq!(heard, expected);
    assert!(driver.diagnostics().is_empty());
}

#[test]
fn r42_keywords_of_a_schema_that_nothing_checks_are_told_once() {
    use contracts::wire::Wire;
    let desk = Desk::new();
    let mut driver = contracts::driver::Driver::open(desk.rules, at(0)).unwrap();
    let request = |schema: &str, more: &str| {
        let tool = format!(
            r#"{{"type":"function","function":{{"name":"find_order","parameters":{schema}}}}}"#
        );
        format!(r#"{{"model":"gpt-test","messages":[],"tools":[{tool}{more}]}}"#)
    };
    let heard = |driver: &mut contracts::driver::Driver, body: &str| {
        let planned = driver
            .plan(Wire::OpenAiChat, body.as_bytes(), at(1))
            .unwrap();
        driver
            .failed(
                planned.attempt,
                contracts::driver::AttemptFailure::Withdrawn,
                at(1),
            )
            .unwrap();
        let told = driver.diagnostics().into_iter();
        let told = told.filter(|told| told.name == "schema_keyword_ignored");
        told.map(|told| serde_json::to_value(told.data).unwrap())
            .collect::<Vec<_>>()
    };
    let plain = r#"{"type":"object","properties":{"order_id":{"type":"string"}}}"#;
    assert!(heard(&mut driver, &request(plain, "")).is_empty());
    let odd = r#"{"type":"object","oneOf":[],"properties":{"order_id":{"format":"uuid"}}}"#;
    let expected = serde_json::json!({"tool": "find_order", "keywords": "format, oneOf"});
    assert_eq!(heard(&mut driver, &request(odd, "")), [expected]);
    assert!(heard(&mut driver, &request(odd, "")).is_empty());
    // Another list of tools, the same schema.
    let other = r#",{"type":"function","function":{"name":"other"}}"#;
    assert!(heard(&mut driver, &request(odd, other)).is_empty());
    let changed = odd.replace("oneOf", "anyOf");
    assert_eq!(heard(&mut driver, &request(&changed, "")).len(), 1);
    // What is not a schema would ask nothing.
    let broken = request(r#"{"type":"object","required":"order_id"}"#, "");
    for _ in 0..2 {
        let refused = driver.plan(Wire::OpenAiChat, broken.as_bytes(), at(2));
        let refused = refused.unwrap_err().to_string();
        assert!(
            refused.contains("the schema of `find_order`, $: `required`"),
            "{refused}"
        );
    }
}
