//! The worked cases of the specification's appendix, over the example files.

use contracts::{
    Answer, Answers, ApprovalResponse, Event, Gate, HealthStatus, HostFacts, Lifecycle, Options,
    Outcome, Permission, Refusal, Settlement, check_open, health, question, read_answer,
    shadow_delta,
};

use crate::support::{ACCEPTED, Desk, at, payment, reasons, shadow, value};

fn no_reasons() -> Vec<String> {
    Vec::new()
}

#[test]
fn c01_tools_outside_their_phase_are_removed() {
    let desk = Desk::new();
    let narrowing = desk.narrow();
    assert_eq!(narrowing.allowed, ["find_order", "send_note"]);
    assert_eq!(desk.removed("assess_return"), "wrong_phase");
    assert_eq!(desk.removed("pay_back"), "wrong_phase");
}

#[test]
fn c02_a_removed_tool_is_judged_again() {
    let mut desk = Desk::new();
    assert_eq!(
        desk.reasons_of("pay_back", &payment("A", 9000)),
        [
            "illegal_phase_transition",
            "precondition_not_met",
            "binding_not_found"
        ]
    );
}

#[test]
fn c03_nothing_in_a_response_unlocks_another_call_of_it() {
    let mut desk = Desk::new();
    desk.create(&[("find_order", "{}")]);
    desk.execute("find_order", Outcome::Success, None);
    let before = desk.snapshot();
    let calls = [
        ("assess_return", r#"{"order_id":"A"}"#),
        ("pay_back", &payment("A", 9000)),
    ];
    let settlement = desk.create(&calls);
    let Settlement::Reject(decision) = settlement else {
        panic!("{settlement:?}")
    };
    assert_eq!(decision.calls[0].reason, None);
    let words: Vec<&str> = decision.calls[1]
        .all_reasons
        .iter()
        .map(|word| word.as_str())
        .collect();
    assert_eq!(
        words,
        [
            "illegal_phase_transition",
            "precondition_not_met",
            "binding_not_found"
        ]
    );
    let after = desk.snapshot();
    assert_eq!(after.state_version, before.state_version);
    assert_eq!(after.current_phase, before.current_phase);
    assert_eq!(after.total_step_count, before.total_step_count);
    assert!(after.actual_cost > before.actual_cost);
    assert_eq!(after.total_cost, before.total_cost);
    assert!(desk.pending("assess_return").is_none());
}

#[test]
fn c04_strip_partial_releases_what_is_legal() {
    let mut desk = Desk::with(|options| options.gate = Gate::StripPartial);
    desk.create(&[("find_order", "{}")]);
    desk.execute("find_order", Outcome::Success, None);
    let calls = [
        ("assess_return", r#"{"order_id":"A"}"#),
        ("pay_back", &payment("A", 9000)),
    ];
    let settlement = desk.create(&calls);
    let Settlement::Strip { removed, empty, .. } = settlement else {
        panic!("{settlement:?}")
    };
    assert_eq!((removed, empty), (vec![1], false));
    let after = desk.snapshot();
    assert_eq!(after.total_step_count, 2);
    assert_eq!(after.consecutive_block_count, 1);
    desk.execute("assess_return", Outcome::Success, Some(ACCEPTED));
    assert_eq!(desk.state.phase(), Some("assessed"));
}

#[test]
fn c05_a_payment_commits_when_its_executor_succeeded() {
    let mut desk = Desk::assessed(ACCEPTED);
    let settlement = desk.create(&[("pay_back", &payment("A", 12000))]);
    assert!(
        matches!(settlement, Settlement::Release(_)),
        "{settlement:?}"
    );
    assert_eq!(desk.state.phase(), Some("assessed"));
    desk.execute("pay_back", Outcome::Success, Some("{}"));
    let after = desk.snapshot();
    assert_eq!(after.current_phase.as_deref(), Some("paid"));
    assert_eq!(after.forbidden_tools, ["assess_return", "pay_back"]);
    assert_eq!(after.labels, ["money_moved"]);
    assert_eq!(after.tool_call_counts["pay_back"], 1);
}

#[test]
fn c06_the_order_that_was_assessed_is_the_one_that_is_paid() {
    let mut desk = Desk::assessed(ACCEPTED);
    assert_eq!(
        desk.reasons_of("pay_back", &payment("B", 12000)),
        ["precondition_not_met", "ref_mismatch"]
    );
}

#[test]
fn c07_more_than_was_assessed_is_outside_the_envelope() {
    let mut desk = Desk::assessed(ACCEPTED);
    assert_eq!(
        desk.reasons_of("pay_back", &payment("A", 12000)),
        no_reasons()
    );
    assert_eq!(
        desk.reasons_of("pay_back", &payment("A", 12001)),
        ["envelope_violation"]
    );
}

#[test]
fn c08_an_output_that_was_not_seen_satisfies_nothing() {
    let mut desk = Desk::new();
    desk.create(&[("find_order", "{}")]);
    desk.execute("find_order", Outcome::Success, None);
    desk.create(&[("assess_return", r#"{"order_id":"A"}"#)]);
    desk.execute("assess_return", Outcome::Success, None);
    assert_eq!(
        desk.reasons_of("pay_back", &payment("A", 12000)),
        ["precondition_not_met"]
    );
    assert_eq!(desk.removed("pay_back"), "precondition_not_met");
}

#[test]
fn c09_larger_amounts_are_asked_about() {
    let output = r#"{"accepted":true,"days_since_delivery":4,"amount_cents":20000}"#;
    let mut desk = Desk::assessed(output);
    let response = desk.response(&[("pay_back", &payment("A", 20000))]);
    let judgement = desk.judge(&response, &Answers::new());
    let call = judgement.needing_approval().next().unwrap().call().clone();
    let asked = question(&desk.rules, &desk.state, &call, "q1", at(desk.now)).unwrap();
    assert_eq!(asked.timeout_seconds, 600);
    assert_eq!(asked.context[0].value, "A");
    assert_eq!(asked.context[1].value, 20000);
    let answer = ApprovalResponse {
        checkpoint_id: "q1".to_owned(),
        decision: "approve".to_owned(),
        decided_by: "ann".to_owned(),
        decided_at: at(5).to_string(),
        reason: None,
    };
    let read = |seconds| {
        read_answer(
            &desk.rules,
            &desk.state,
            &asked,
            &call,
            &answer,
            at(seconds),
        )
    };
    let in_time = Answers::from([(call.id.clone(), read(599))]);
    assert_eq!(reasons(&desk.judge(&response, &in_time)), [no_reasons()]);
    let late = Answers::from([(call.id.clone(), read(600))]);
    let judgement = desk.judge(&response, &late);
    assert_eq!(reasons(&judgement), [["checkpoint_timeout"]]);
    let retried = contracts::settle(&desk.rules, &judgement, 1, 5);
    assert!(matches!(retried, Settlement::Reject(_)), "{retried:?}");
}

#[test]
fn c10_a_label_that_came_while_a_person_thought_counts() {
    let output = r#"{"accepted":true,"days_since_delivery":4,"amount_cents":20000}"#;
    let mut desk = Desk::assessed(output);
    let response = desk.response(&[("pay_back", &payment("A", 20000))]);
    let judgement = desk.judge(&response, &Answers::new());
    desk.apply(Event::Asked {
        at: at(1),
        proposal: "p1".to_owned(),
        asked: 1,
        calls: judgement.standing_calls(),
    });
    desk.apply(Event::LabelAdded {
        label: "fraud_suspected".to_owned(),
    });
    let call = judgement.needing_approval().next().unwrap().call();
    let answer = Answer::Approved {
        arguments: call.arguments_digest,
        compiled: desk.rules.compiled().digest(),
    };
    let answers = Answers::from([(call.id.clone(), answer)]);
    let judgement = desk.judge_waiting(&response, &answers, Some("p1"));
    assert_eq!(reasons(&judgement), [["label_gate"]]);
}

#[test]
fn c11_the_third_equal_call_is_a_loop() {
    let mut desk = Desk::new();
    for _ in 0..2 {
        desk.create(&[("send_note", r#"{"text":"hello"}"#)]);
        desk.execute("send_note", Outcome::Success, None);
    }
    assert_eq!(
        desk.reasons_of("send_note", r#"{ "text": "hello" }"#),
        ["loop_detected"]
    );
    assert_eq!(
        desk.reasons_of("send_note", r#"{"text":"other"}"#),
        no_reasons()
    );
}

#[test]
fn c12_two_targets_in_one_response_are_ambiguous() {
    let contracts = [
        (
            "pay",
            "tool: pay\nside_effect: read\ntransitions: { advances_to: paid }",
        ),
        (
            "close",
            "tool: close\nside_effect: read\ntransitions: { advances_to: closed }",
        ),
    ];
    let session = "phases: [{name: assessed, initial: true}, {name: paid}, {name: closed, terminal: true}]\n\
                   transitions: {assessed: [paid, closed], paid: [closed]}";
    let mut desk = Desk::of(&contracts, session);
    assert_eq!(
        desk.reasons(&[("pay", "{}"), ("close", "{}")]),
        [
            ["ambiguous_phase_transition"],
            ["ambiguous_phase_transition"]
        ]
    );
    assert_eq!(
        desk.reasons(&[("pay", "{}"), ("pay", "{}")]),
        [no_reasons(), no_reasons()]
    );
}

#[test]
fn c13_a_text_is_not_a_number() {
    let mut desk = Desk::assessed(ACCEPTED);
    let arguments = r#"{"order_id":"A","amount_cents":"12000","currency":"EUR"}"#;
    assert_eq!(
        desk.reasons_of("pay_back", arguments),
        ["argument_value_mismatch"]
    );
}

#[test]
fn c14_duplicate_members_are_a_bad_format() {
    let mut desk = Desk::assessed(ACCEPTED);
    let arguments = r#"{"amount_cents":1,"amount_cents":40000}"#;
    assert_eq!(
        desk.reasons_of("pay_back", arguments),
        ["response_format_invalid"]
    );
}

fn with_principal(text: &str) -> Desk {
    Desk::with(|options: &mut Options| options.principal = Some(value(text)))
}

#[test]
fn c15_a_deny_rule_that_cannot_be_decided_denies() {
    let desk = with_principal(r#"{"role":"desk"}"#);
    let mut desk = desk;
    desk.assess(ACCEPTED);
    assert_eq!(
        desk.reasons_of("pay_back", &payment("A", 12000)),
        ["policy_denied"]
    );
    assert_eq!(desk.removed("pay_back"), "policy_denied");
}

#[test]
fn c16_the_policy_of_the_session_holds_for_every_tool() {
    let mut desk = with_principal(r#"{"trainee":false}"#);
    for tool in ["find_order", "send_note"] {
        assert_eq!(desk.reasons_of(tool, r#"{"text":"x"}"#), ["policy_denied"]);
    }
}

#[test]
fn c17_five_rejected_responses_kill() {
    let mut desk = Desk::new();
    for round in 1..=5 {
        let settlement = desk.create(&[("pay_back", &payment("A", 1))]);
        let Settlement::Reject(decision) = settlement else {
            panic!("{settlement:?}")
        };
        assert_eq!(
            decision.reason.unwrap().as_str(),
            "illegal_phase_transition"
        );
        assert_eq!(desk.is_killed(), round == 5);
    }
    assert!(matches!(
        check_open(&desk.state),
        Err(Refusal::Killed { .. })
    ));
    assert_eq!(desk.reasons_of("send_note", r#"{"text":"x"}"#), ["killed"]);
}

#[test]
fn c18_three_unguarded_calls_are_the_last() {
    let mut desk = Desk::with(|options| options.on_error = Permission::Allow);
    let max = desk.rules.options().unguarded_calls_max;
    for number in 1..=max {
        assert!(!desk.is_killed());
        let last = desk.snapshot().total_unguarded_calls + 1 >= max;
        assert_eq!(last, number == max);
        desk.apply(Event::Unguarded { last });
    }
    assert!(desk.is_killed());
    assert_eq!(desk.snapshot().total_unguarded_calls, 3);
}

#[test]
fn c19_shadow_tells_what_would_have_been() {
    let mut desk = Desk::with(shadow);
    let response = desk.response(&[("pay_back", &payment("A", 9000))]);
    let judgement = desk.judge(&response, &Answers::new());
    let delta = shadow_delta(&desk.rules, &desk.state, &desk.narrow(), &judgement);
    assert_eq!(delta.would_have_blocked.len(), 1);
    assert_eq!(
        delta.would_have_blocked[0].reason.as_str(),
        "illegal_phase_transition"
    );
    assert_eq!(delta.would_have_narrowed.len(), 3);
    assert_eq!(delta.current_phase.as_deref(), Some("intake"));
    assert_eq!(delta.legal_next_phases, ["order_known"]);
    let settlement = desk.settle(&judgement, None);
    assert!(matches!(settlement, Settlement::Release(_)));
    desk.execute("pay_back", Outcome::Success, None);
    let after = desk.snapshot();
    assert_eq!(after.current_phase.as_deref(), Some("intake"));
    assert_eq!(after.tool_call_counts["pay_back"], 1);
    assert_eq!(after.total_block_count, 0);
}

#[test]
fn c20_an_unknown_outcome_counts_where_that_is_the_safe_side() {
    let mut desk = Desk::assessed(ACCEPTED);
    desk.create(&[("pay_back", &payment("A", 12000))]);
    desk.execute("pay_back", Outcome::Unknown, None);
    assert_eq!(desk.state.phase(), Some("assessed"));
    assert_eq!(desk.removed("pay_back"), "forbidden_in_state");
    let health = health(&desk.rules, &desk.state, HostFacts::LOCAL);
    assert_eq!(health.status, HealthStatus::Degraded);
    assert_eq!(health.unresolved_receipt_count, 1);
    // A receipt that comes later settles it.
    desk.execute("pay_back", Outcome::Success, None);
    assert_eq!(desk.state.phase(), Some("paid"));
    assert_eq!(*desk.state.lifecycle(), Lifecycle::Open);
}

#[test]
fn c21_what_is_allowed_but_not_executed_takes_room() {
    let mut desk = Desk::assessed(ACCEPTED);
    desk.create(&[("pay_back", &payment("A", 12000))]);
    assert_eq!(
        desk.reasons_of("pay_back", &payment("A", 100)),
        ["forbidden_tool", "session_limit_exceeded"]
    );
}
