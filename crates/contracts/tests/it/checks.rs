//! The numbered checks, one by one: what fails them, what does not, and the word they yield.

use contracts::{
    Answers, Event, ExecutionCheck, FinishReason, OfferedTool, Outcome, Response, ShownOutput,
    Status, check_execution, compile,
};

use crate::support::{ACCEPTED, Desk, at, payment, reasons, source, unwrapped, value};

const NONE: [&str; 0] = [];

fn read(tool: &str, rest: &str) -> String {
    format!("tool: {tool}\nside_effect: read\n{rest}")
}

fn one(rest: &str) -> Desk {
    Desk::of(&[("echo", &read("echo", rest))], "")
}

fn finished(
    desk: &mut Desk,
    finish_reason: FinishReason,
    content: Option<&str>,
) -> Vec<Vec<String>> {
    let response = Response {
        finish_reason,
        content: content.map(ToOwned::to_owned),
        ..desk.response(&[("echo", "{}")])
    };
    reasons(&desk.judge(&response, &Answers::new()))
}

#[test]
fn v1_format_of_the_response() {
    let mut desk =
        one("response_format_invariants: { finish_reason: [tool_calls, other], content: empty }");
    let bad = [["response_format_invalid"]];
    assert_eq!(finished(&mut desk, FinishReason::ToolCalls, None), [NONE]);
    assert_eq!(
        finished(&mut desk, FinishReason::ToolCalls, Some("")),
        [NONE]
    );
    assert_eq!(finished(&mut desk, FinishReason::ToolCalls, Some("x")), bad);
    assert_eq!(finished(&mut desk, FinishReason::Stop, None), bad);
    let mut desk = one("response_format_invariants: { content: required }");
    assert_eq!(finished(&mut desk, FinishReason::Stop, None), bad);
    assert_eq!(finished(&mut desk, FinishReason::Stop, Some("x")), [NONE]);
    // A call that was cut off is not the call the model meant, whatever the contract says.
    assert_eq!(finished(&mut desk, FinishReason::Length, Some("x")), bad);
    assert_eq!(
        finished(&mut desk, FinishReason::ContentFilter, Some("x")),
        bad
    );
}

#[test]
fn v1_r13_r14_arguments_and_ids() {
    let mut desk = one("");
    for text in [
        "",
        "{",
        "[]",
        "null",
        r#"{"a":1,"a":1}"#,
        r#"{"a":9007199254740993}"#,
        r#"{"a":1e400}"#,
        r#"{"a":"\ud800"}"#,
        r#"{"__proto__":{"a":1}}"#,
        r#"{"a":[{"\u005f_proto__":null}]}"#,
        "{\"a\":1}x",
    ] {
        assert_eq!(
            desk.reasons_of("echo", text),
            ["response_format_invalid"],
            "{text}"
        );
    }
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(64), "]".repeat(64));
    assert_eq!(desk.reasons_of("echo", &deep), ["response_format_invalid"]);
    let large = format!("{{\"a\":\"{}\"}}", "x".repeat(1 << 20));
    assert_eq!(desk.reasons_of("echo", &large), ["response_format_invalid"]);
    let mut twins = desk.response(&[("echo", "{}"), ("echo", "{}"), ("echo", "{}")]);
    twins.calls[1].id = twins.calls[0].id.clone();
    let judgement = desk.judge(&twins, &Answers::new());
    let bad = vec!["response_format_invalid".to_owned()];
    assert_eq!(reasons(&judgement), [bad.clone(), bad.clone(), Vec::new()]);
    twins.calls[0].id = String::new();
    twins.calls[1].id = "x".repeat(257);
    assert_eq!(
        reasons(&desk.judge(&twins, &Answers::new())),
        [bad.clone(), bad.clone(), Vec::new()]
    );
    let many: Vec<(&str, &str)> = vec![("echo", "{}"); 129];
    assert!(desk.reasons(&many).iter().all(|words| *words == bad));
}

#[test]
fn v2_offered_and_under_contract() {
    let mut desk = one("");
    assert_eq!(
        desk.reasons_of("uncontracted", "{}"),
        ["unmatched_tool_blocked"]
    );
    assert_eq!(desk.reasons_of("nobody", "{}"), ["unmatched_tool_blocked"]);
    let allow = |options: &mut contracts::Options| options.unmatched = contracts::Permission::Allow;
    let mut desk = Desk::of_with(&[("echo", &read("echo", ""))], "", allow);
    assert_eq!(desk.reasons_of("uncontracted", "{}"), NONE);
    // What the caller did not offer is blocked whatever the policy says.
    assert_eq!(desk.reasons_of("nobody", "{}"), ["unmatched_tool_blocked"]);
}

#[test]
fn v3_risk_gate_and_its_defaults() {
    let files = [
        ("a", "tool: a\nside_effect: write"),
        ("b", "tool: b\nside_effect: write\ngate: allow"),
        ("c", "tool: c\nside_effect: read\ngate: block"),
        ("d", "tool: d\nside_effect: read"),
    ];
    let mut desk = Desk::of(&files, "risk_defaults: { financial: allow }");
    assert_eq!(desk.reasons_of("a", "{}"), ["risk_gate_blocked"]);
    assert_eq!(desk.reasons_of("b", "{}"), NONE);
    assert_eq!(desk.reasons_of("c", "{}"), ["risk_gate_blocked"]);
    assert_eq!(desk.reasons_of("d", "{}"), NONE);
    assert_eq!(desk.removed("a"), "risk_gate");
    let mut open = Desk::of(&files, "");
    assert_eq!(open.reasons_of("a", "{}"), NONE);
}

#[test]
fn v4_policy_both_must_allow() {
    let policy =
        "policy: { rules: [{ id: r, effect: allow, when: [{ path: \"$.role\", equals: x }] }] }";
    let files = [("a", read("a", policy)), ("b", read("b", ""))];
    let files: Vec<(&str, &str)> = files
        .iter()
        .map(|(name, text)| (*name, text.as_str()))
        .collect();
    let session = "policy: { default: allow, rules: [{ id: d, effect: deny, when: [{ path: \"$.out\", equals: true }] }] }";
    for (principal, a, b) in [
        (r#"{"role":"x","out":false}"#, true, true),
        (r#"{"role":"y","out":false}"#, false, true),
        (r#"{"role":"x","out":true}"#, false, false),
        // The deny rule cannot be decided.
        (r#"{"role":"x"}"#, false, false),
        (r#"{"role":"x","out":"no"}"#, false, false),
    ] {
        let mut desk = Desk::of_with(&files, session, |options| {
            options.principal = Some(value(principal))
        });
        assert_eq!(desk.reasons_of("a", "{}").is_empty(), a, "{principal}");
        assert_eq!(desk.reasons_of("b", "{}").is_empty(), b, "{principal}");
    }
}

#[test]
fn v5_manual_filter_narrows_and_never_widens() {
    let files = [("a", &*read("a", "")), ("b", &*read("b", "gate: block"))];
    let mut desk = Desk::of(&files, "");
    desk.apply(Event::Filtered {
        tools: Some(vec!["b".to_owned(), "unknown".to_owned()]),
    });
    assert_eq!(desk.reasons_of("a", "{}"), ["manual_filter"]);
    assert_eq!(desk.removed("a"), "manual_filter");
    assert_eq!(desk.removed("b"), "risk_gate");
    desk.apply(Event::Filtered {
        tools: Some(Vec::new()),
    });
    assert_eq!(desk.removed("a"), "manual_filter");
    desk.apply(Event::Filtered { tools: None });
    assert_eq!(desk.reasons_of("a", "{}"), NONE);
    assert_eq!(desk.reasons_of("b", "{}"), ["risk_gate_blocked"]);
    assert_eq!(desk.state.control_revision(), 3);
}

const PHASES: &str = "phases: [{name: one, initial: true}, {name: two}, {name: end, terminal: true}]\n\
                      transitions: {one: [two], two: [one, end]}";

#[test]
fn v6_phase_and_its_move() {
    let files = [
        ("a", &*read("a", "transitions: { valid_in_phases: [two] }")),
        ("b", &*read("b", "transitions: { advances_to: end }")),
        ("c", &*read("c", "transitions: { advances_to: one }")),
        ("d", &*read("d", "transitions: { advances_to: two }")),
    ];
    let mut desk = Desk::of(&files, PHASES);
    assert_eq!(desk.reasons_of("a", "{}"), ["illegal_phase_transition"]);
    assert_eq!(desk.reasons_of("b", "{}"), ["illegal_phase_transition"]);
    assert_eq!(desk.removed("b"), "wrong_phase");
    assert_eq!(desk.reasons_of("c", "{}"), NONE);
    desk.create(&[("d", "{}")]);
    assert_eq!(desk.state.phase(), Some("two"));
    assert_eq!(desk.reasons_of("a", "{}"), NONE);
    assert_eq!(desk.reasons_of("b", "{}"), NONE);
}

#[test]
fn v7_the_latest_prior_call_decides() {
    let pre = "preconditions: [{ requires_prior_tool: look, with_output: [{ path: \"$.ok\", equals: true }] }]";
    let files = [("look", &*read("look", "")), ("act", &*read("act", pre))];
    let mut desk = Desk::of_with(&files, "", unwrapped);
    assert_eq!(desk.reasons_of("act", "{}"), ["precondition_not_met"]);
    // A call in the same response does not count.
    assert_eq!(
        desk.reasons(&[("look", "{}"), ("act", "{}")])[1],
        ["precondition_not_met"]
    );
    let look = |desk: &mut Desk, output: &str| {
        desk.create(&[("look", "{}")]);
        let id = format!(
            "call_{}",
            desk.response(&[("look", "")]).calls[0].id[5..]
                .parse::<u64>()
                .unwrap()
                - 1
        );
        desk.apply(Event::OutputsSeen {
            outputs: vec![ShownOutput {
                call_id: id,
                text: output.to_owned(),
            }],
        });
    };
    look(&mut desk, r#"{"ok":true}"#);
    assert_eq!(desk.reasons_of("act", "{}"), NONE);
    // A later negative answer cancels an earlier positive one.
    look(&mut desk, r#"{"ok":false}"#);
    assert_eq!(desk.reasons_of("act", "{}"), ["precondition_not_met"]);
    assert_eq!(desk.removed("act"), "precondition_not_met");
    look(&mut desk, "not JSON");
    assert_eq!(desk.reasons_of("act", "{}"), ["precondition_not_met"]);
}

#[test]
fn v7_narrowing_looks_at_every_prior_value_in_turn() {
    let pre = "preconditions: [{ requires_prior_tool: look, with_output: [{ path: \"$.ok\", equals: true }], \
               same_as_prior: [{ argument: \"$.id\", prior: \"$.id\" }] }]";
    let files = [
        ("look", &*read("look", "commit_requirement: acknowledged")),
        ("act", &*read("act", pre)),
    ];
    let wrapped = |options: &mut contracts::Options| options.executors = contracts::Executors::All;
    let mut desk = Desk::of_with(&files, "", wrapped);
    for (id, ok) in [("A", true), ("B", false)] {
        desk.create(&[("look", &format!(r#"{{"id":"{id}"}}"#))]);
        desk.execute("look", Outcome::Success, Some(&format!(r#"{{"ok":{ok}}}"#)));
    }
    assert_eq!(desk.removed("act"), "");
    assert_eq!(desk.reasons_of("act", r#"{"id":"A"}"#), NONE);
    assert_eq!(
        desk.reasons_of("act", r#"{"id":"B"}"#),
        ["precondition_not_met"]
    );
    assert_eq!(desk.reasons_of("act", "{}"), ["precondition_not_met"]);
    desk.create(&[("look", r#"{"id":"A"}"#)]);
    desk.execute("look", Outcome::Success, Some(r#"{"ok":false}"#));
    assert_eq!(desk.removed("act"), "precondition_not_met");
}

#[test]
fn v8_v16_forbidden_by_committed_and_by_open_calls() {
    let files = [
        ("a", &*read("a", "forbids_after: [a, b]")),
        ("b", &*read("b", "")),
    ];
    let mut desk = Desk::of_with(&files, "", unwrapped);
    assert_eq!(
        desk.reasons(&[("b", "{}"), ("a", "{}"), ("b", "{}")]),
        [&NONE[..], &NONE, &["forbidden_tool"]]
    );
    desk.create(&[("a", "{}")]);
    assert_eq!(desk.reasons_of("b", "{}"), ["forbidden_tool"]);
    assert_eq!(desk.reasons_of("a", "{}"), ["forbidden_tool"]);
    assert_eq!(desk.removed("a"), "forbidden_in_state");
}

#[test]
fn v9_v10_invariants_on_request_and_response() {
    let rest = "assertions: { input_invariants: [{ path: \"$.messages[0].role\", equals: user }], \
                output_invariants: [{ path: \"$.tool_calls[0].name\", equals: echo }] }";
    let mut desk = one(rest);
    assert_eq!(desk.reasons_of("echo", "{}"), NONE);
    let mut bad = one(&rest
        .replace("user", "system")
        .replace("equals: echo", "equals: other"));
    assert_eq!(
        bad.reasons_of("echo", "{}"),
        ["input_invariant_failed", "output_invariant_failed"]
    );
}

#[test]
fn v11_arguments_written_and_derived_from_the_schema() {
    let mut desk = one(
        "argument_value_invariants: [{ path: \"$.n\", type: integer, gte: 1 }]\n\
                        schema_derived_exclude: [\"$.free\"]",
    );
    for (text, holds) in [
        (r#"{"n":3.0}"#, true),
        (r#"{"n":0}"#, false),
        (r#"{"n":1.5}"#, false),
        (r#"{"n":"3"}"#, false),
        (r#"{"n":null}"#, false),
        ("{}", false),
    ] {
        assert_eq!(desk.reasons_of("echo", text).is_empty(), holds, "{text}");
    }
    let schema = r#"{"type":"object","required":["n","x"],"additionalProperties":false,"properties":{
        "n":{"type":["integer","null"],"maximum":10,"exclusiveMinimum":0},"x":{"enum":["a","b"]},
        "free":{"type":"string"},"l":{"type":"array","maxItems":2,"items":{"minLength":1,"pattern":"^q"}},
        "o":{"anyOf":[{"type":"string"}]}}}"#;
    let offered = OfferedTool {
        schema: Some(value(schema)),
        ..OfferedTool::named("echo")
    };
    for (text, holds) in [
        (r#"{"n":3,"x":"a"}"#, true),
        (r#"{"n":3,"x":"a","l":["q","qq"],"o":5,"free":7}"#, true),
        (r#"{"n":3}"#, false),
        (r#"{"n":11,"x":"a"}"#, false),
        (r#"{"n":3,"x":"c"}"#, false),
        (r#"{"n":3,"x":"a","l":["q","z"]}"#, false),
        (r#"{"n":3,"x":"a","l":["q","q","q"]}"#, false),
        (r#"{"n":3,"x":"a","extra":1}"#, false),
    ] {
        let response = desk.response(&[("echo", text)]);
        let mut request = desk.request();
        request.tools = vec![offered.clone()];
        let answers = Answers::new();
        let occasion = contracts::JudgeContext {
            request: &request,
            now: at(0),
            proposal: None,
            answers: &answers,
        };
        let judgement = contracts::judge(&desk.rules, &desk.state, &response, occasion);
        let blocked = judgement.blocked().count() == 0;
        assert_eq!(blocked, holds, "{text} {judgement:?}");
    }
}

#[test]
fn v11_no_pattern_takes_longer_than_its_text() {
    // Each makes a backtracking engine try more ways than there are seconds: this test would not end.
    let text = format!("{}!", "a".repeat(50_000));
    for pattern in ["^(a+)+$", "^(a|aa)+$", "^(a|a?)+$", "(.*a){20}$"] {
        let mut desk = one(&format!(
            "schema_derived: false\nargument_value_invariants: [{{ path: \"$.t\", regex: \"{pattern}\" }}]"
        ));
        let arguments = serde_json::json!({"t": text}).to_string();
        let reasons = desk.reasons_of("echo", &arguments);
        assert_eq!(reasons, ["argument_value_mismatch"], "{pattern}");
    }
}

#[test]
fn v12_v13_slots_must_be_set_and_equal_and_are_cleared_when_their_source_is_missing() {
    let files = [
        (
            "set",
            &*read(
                "set",
                "binds: [{ slot: s, from: arguments, path: \"$.id\" }]",
            ),
        ),
        (
            "act",
            &*read(
                "act",
                "argument_value_invariants: [{ path: \"$.id\", ref: s }]",
            ),
        ),
    ];
    let mut desk = Desk::of_with(&files, "", unwrapped);
    assert_eq!(desk.reasons_of("act", r#"{"id":1}"#), ["binding_not_found"]);
    assert_eq!(desk.removed("act"), "");
    desk.create(&[("set", r#"{"id":1}"#)]);
    assert_eq!(desk.reasons_of("act", r#"{"id":1.0}"#), NONE);
    assert_eq!(desk.reasons_of("act", r#"{"id":"1"}"#), ["ref_mismatch"]);
    assert_eq!(desk.reasons_of("act", "{}"), ["ref_mismatch"]);
    desk.create(&[("set", "{}")]);
    assert_eq!(desk.reasons_of("act", r#"{"id":1}"#), ["binding_not_found"]);
}

#[test]
fn v12_an_output_that_is_not_known_yet_clears_the_slot_it_will_set() {
    let set = read("set", "binds: [{ slot: s, from: output, path: \"$.id\" }]");
    let act = read(
        "act",
        "argument_value_invariants: [{ path: \"$.id\", ref: s }]",
    );
    let mut desk = Desk::of_with(&[("set", &*set), ("act", &*act)], "", unwrapped);
    desk.create(&[("set", "{}")]);
    let next = &desk.response(&[("set", "")]).calls[0].id[5..];
    let call_id = format!("call_{}", next.parse::<u64>().unwrap() - 1);
    desk.apply(Event::OutputsSeen {
        outputs: vec![ShownOutput {
            call_id,
            text: r#"{"id":1}"#.to_owned(),
        }],
    });
    assert_eq!(desk.reasons_of("act", r#"{"id":1}"#), NONE);
    // A second one is done, and nobody has seen what it returned: the old value must not pass for the new one.
    desk.create(&[("set", "{}")]);
    assert_eq!(desk.reasons_of("act", r#"{"id":1}"#), ["binding_not_found"]);
}

#[test]
fn v15_label_gates_close_listed_tools_or_all_others() {
    let files = [("a", &*read("a", "")), ("b", &*read("b", ""))];
    let session =
        "label_gates: [{ label: x, block_tools: [a] }, { label: y, allow_only_tools: [a] }]";
    let mut desk = Desk::of(&files, session);
    desk.apply(Event::LabelAdded {
        label: "x".to_owned(),
    });
    assert_eq!(desk.reasons_of("a", "{}"), ["label_gate"]);
    assert_eq!(desk.reasons_of("b", "{}"), NONE);
    desk.apply(Event::LabelAdded {
        label: "y".to_owned(),
    });
    assert_eq!(desk.reasons_of("b", "{}"), ["label_gate"]);
    assert_eq!(desk.removed("b"), "label_gate");
    // Adding a present label changes nothing.
    desk.apply(Event::LabelAdded {
        label: "y".to_owned(),
    });
    assert_eq!(desk.state.control_revision(), 2);
}

#[test]
fn v17_v18_limits_count_every_call_of_a_response() {
    let files = [("a", &*read("a", "")), ("b", &*read("b", ""))];
    let session = "session_limits: { max_tool_calls: 3, max_calls_per_tool: { a: 2, b: 0 } }";
    let mut desk = Desk::of_with(&files, session, unwrapped);
    let words = desk.reasons(&[
        ("a", "{}"),
        ("a", "{\"x\":1}"),
        ("a", "{\"x\":2}"),
        ("b", "{}"),
    ]);
    assert_eq!(
        words,
        [
            &NONE[..],
            &NONE,
            &["session_limit_exceeded"],
            &["session_limit_exceeded"]
        ]
    );
    assert_eq!(desk.removed("b"), "limit_reached");
    desk.create(&[("a", "{}"), ("a", "{}")]);
    assert_eq!(desk.removed("a"), "limit_reached");
    assert_eq!(desk.precheck(), Ok(()));
}

#[test]
fn v18r_r36_rate_is_a_window_that_slides() {
    let mut desk = Desk::of_with(
        &[("a", &*read("a", ""))],
        "session_limits: { rate: { max_calls: 2, per_seconds: 10 } }",
        unwrapped,
    );
    desk.create(&[("a", "{}")]);
    desk.now = 5;
    assert_eq!(
        desk.reasons(&[("a", "{}"), ("a", "{}")])[1],
        ["session_limit_exceeded"]
    );
    desk.create(&[("a", "{}")]);
    desk.now = 9;
    assert_eq!(desk.reasons_of("a", "{}"), ["session_limit_exceeded"]);
    // A call exactly as old as the window is outside it.
    desk.now = 10;
    assert_eq!(desk.reasons_of("a", "{}"), NONE);
    // A clock that runs backwards opens nothing.
    desk.now = -100;
    assert_eq!(desk.reasons_of("a", "{}"), ["session_limit_exceeded"]);
}

#[test]
fn v19_r30_a_failed_call_is_still_part_of_a_loop() {
    let wrapped = |options: &mut contracts::Options| options.executors = contracts::Executors::All;
    let session = "session_limits: { loop_detection: { window: 3, threshold: 2 } }";
    let mut desk = Desk::of_with(&[("a", &*read("a", ""))], session, wrapped);
    desk.create(&[("a", "{}")]);
    desk.execute("a", Outcome::Error, None);
    assert_eq!(desk.reasons_of("a", "{}"), ["loop_detected"]);
    for number in 0..3 {
        desk.create(&[("a", &format!("{{\"n\":{number}}}"))]);
    }
    // The call left the window.
    assert_eq!(desk.reasons_of("a", "{}"), NONE);
    assert_eq!(desk.reasons_of("a", "{\"n\":0}"), ["loop_detected"]);
    desk.now = 600;
    for call in desk.state.expired(at(desk.now)) {
        desk.apply(Event::Expired { call });
    }
    // Only a call that expired unexecuted leaves the history.
    assert_eq!(desk.reasons_of("a", "{\"n\":0}"), NONE);
    // Inside one response too.
    assert_eq!(
        desk.reasons(&[("a", "{}"), ("a", "{}")])[1],
        ["loop_detected"]
    );
}

#[test]
fn v20_v21_aggregates_include_the_proposed_call_and_refuse_negative_amounts() {
    let session = "aggregates: [{ name: total, metric: sum, tools: [a], path: \"$.n\", lte: 0.3 }]";
    let mut desk = Desk::of_with(&[("a", &*read("a", ""))], session, unwrapped);
    assert_eq!(
        desk.reasons(&[
            ("a", r#"{"n":0.1}"#),
            ("a", r#"{"n":0.2}"#),
            ("a", r#"{"n":0.0001}"#)
        ]),
        [&NONE[..], &NONE, &["aggregate_limit_exceeded"]]
    );
    assert_eq!(desk.reasons_of("a", "{}"), ["aggregate_path_missing"]);
    assert_eq!(
        desk.reasons_of("a", r#"{"n":"0.1"}"#),
        ["aggregate_path_missing"]
    );
    assert_eq!(
        desk.reasons_of("a", r#"{"n":-1}"#),
        ["aggregate_limit_exceeded"]
    );
    // A sum that cannot be exact passes no bound.
    assert_eq!(
        desk.reasons(&[("a", r#"{"n":1e-300}"#), ("a", r#"{"n":0.1}"#)])[1],
        ["aggregate_limit_exceeded"]
    );
    let metrics = "aggregates: [{ name: d, metric: count_distinct, tools: [a], path: \"$.n\", lte: 2 }, \
                   { name: m, metric: max, tools: [a], path: \"$.m\", lte: 5 }, \
                   { name: c, metric: count, tools: [a], lte: 3 }]";
    let mut desk = Desk::of_with(&[("a", &*read("a", ""))], metrics, unwrapped);
    desk.create(&[("a", r#"{"n":1,"m":5}"#), ("a", r#"{"n":1.0,"m":1}"#)]);
    assert_eq!(
        desk.reasons_of("a", r#"{"n":2,"m":5.5}"#),
        ["aggregate_limit_exceeded"]
    );
    desk.create(&[("a", r#"{"n":2,"m":0}"#)]);
    assert_eq!(
        desk.reasons_of("a", r#"{"n":2,"m":0}"#),
        ["aggregate_limit_exceeded"]
    );
}

#[test]
fn v22_v23_envelopes_only_tighten() {
    let session = "envelopes: [{ name: e, direction: at_least, establish: { tool: quote, from: arguments, path: \"$.n\" }, \
                   constrain: [{ tool: pay, path: \"$.n\" }] }]";
    let files = [("quote", &*read("quote", "")), ("pay", &*read("pay", ""))];
    let mut desk = Desk::of_with(&files, session, unwrapped);
    assert_eq!(
        desk.reasons(&[("quote", r#"{"n":5}"#), ("pay", r#"{"n":5}"#)])[1],
        ["envelope_not_established"]
    );
    desk.create(&[("quote", r#"{"n":5}"#)]);
    desk.create(&[("quote", r#"{"n":3}"#)]);
    desk.create(&[("quote", r#"{"n":"many"}"#)]);
    assert_eq!(desk.reasons_of("pay", r#"{"n":5}"#), NONE);
    assert_eq!(
        desk.reasons_of("pay", r#"{"n":4.99}"#),
        ["envelope_violation"]
    );
    assert_eq!(desk.reasons_of("pay", "{}"), ["envelope_violation"]);
    // A ceiling comes down and never goes up.
    let ceiling = session.replace("at_least", "at_most");
    let mut desk = Desk::of_with(&files, &ceiling, unwrapped);
    for quoted in ["5", "3", "9"] {
        desk.create(&[("quote", &format!(r#"{{"n":{quoted}}}"#))]);
    }
    assert_eq!(desk.reasons_of("pay", r#"{"n":3}"#), NONE);
    assert_eq!(
        desk.reasons_of("pay", r#"{"n":3.01}"#),
        ["envelope_violation"]
    );
}

#[test]
fn v24_ten_checkpoints_and_no_more() {
    let mut desk = Desk::of_with(
        &[("a", &*read("a", "checkpoint: { reason: look }"))],
        "",
        unwrapped,
    );
    desk.apply(Event::Asked {
        at: at(0),
        proposal: "p".to_owned(),
        asked: 9,
        calls: Vec::new(),
    });
    let response = desk.response(&[("a", "{}"), ("a", "{}")]);
    let judgement = desk.judge(&response, &Answers::new());
    // Under `reject_all` nobody is asked about a response that is lost already.
    let status: Vec<Status> = judgement
        .verdicts()
        .iter()
        .map(|verdict| verdict.status())
        .collect();
    assert_eq!(status, [Status::Allow, Status::Block]);
    assert_eq!(reasons(&judgement)[1], ["checkpoint_budget_exceeded"]);
}

#[test]
fn x1_x2_x3_an_executor_gets_what_was_allowed() {
    let mut desk = Desk::assessed(ACCEPTED);
    let check = |desk: &Desk, id: Option<&str>, arguments: &str| {
        let found = check_execution(&desk.rules, &desk.state, "pay_back", id, arguments, at(1));
        found.map_err(|refusal| {
            (
                refusal.check().unwrap(),
                refusal.reason().unwrap().to_string(),
            )
        })
    };
    let violated = |check| Err((check, "execution_constraint_violated".to_owned()));
    assert_eq!(
        check(&desk, None, &payment("A", 100)),
        violated(ExecutionCheck::X2)
    );
    desk.create(&[("pay_back", &payment("A", 100))]);
    let key = desk.pending("pay_back").unwrap();
    assert_eq!(check(&desk, None, &payment("A", 100)), Ok(key.clone()));
    assert_eq!(
        check(&desk, Some(&key.id), &payment("A", 100)),
        Ok(key.clone())
    );
    assert_eq!(
        check(&desk, Some("other"), &payment("A", 100)),
        violated(ExecutionCheck::X2)
    );
    assert_eq!(
        check(&desk, None, &payment("A", 101)),
        violated(ExecutionCheck::X2)
    );
    desk.apply(Event::ExecutionRefused { at: at(1) });
    assert_eq!(desk.snapshot().total_block_count, 1);
    // Once started it cannot be started again.
    desk.apply(Event::Started { call: key });
    assert_eq!(
        check(&desk, None, &payment("A", 100)),
        violated(ExecutionCheck::X2)
    );
    desk.apply(Event::Killed {
        cause: "stop".to_owned(),
    });
    assert_eq!(
        check(&desk, None, "{}"),
        Err((ExecutionCheck::X1, "killed".to_owned()))
    );

    let rest = "execution_constraints: { arguments: [{ path: \"$.n\", lte: 5 }] }";
    let wrapped = |options: &mut contracts::Options| options.executors = contracts::Executors::All;
    let mut desk = Desk::of_with(&[("a", &*read("a", rest))], "", wrapped);
    desk.create(&[("a", r#"{"n":6}"#)]);
    let six = r#"{"n":6}"#;
    let refusal = check_execution(&desk.rules, &desk.state, "a", None, six, at(1)).unwrap_err();
    assert_eq!(refusal.check(), Some(ExecutionCheck::X3));
    assert_eq!(
        refusal.reason().unwrap().as_str(),
        "execution_constraint_violated"
    );

    // What counts without a report is executed too: once, in time, and as it was allowed.
    let rest = "commit_requirement: none\nbinds: [ { slot: s, from: output, path: \"$.id\" } ]";
    let mut desk = Desk::of_with(&[("a", &*read("a", rest))], "", wrapped);
    desk.create(&[("a", six)]);
    assert_eq!(desk.snapshot().total_tool_calls, 1);
    let found = |desk: &Desk, arguments: &str, seconds: i64| {
        let found = check_execution(&desk.rules, &desk.state, "a", None, arguments, at(seconds));
        found.ok()
    };
    assert_eq!(found(&desk, r#"{"n":7}"#, 1), None);
    assert_eq!(found(&desk, six, 700), None);
    let call = found(&desk, six, 1).unwrap();
    desk.apply(Event::Started { call: call.clone() });
    assert_eq!(found(&desk, six, 1), None);
    let version = desk.snapshot().state_version;
    desk.apply(Event::Settled {
        call,
        outcome: contracts::Outcome::Success,
        output: Some(r#"{"id":5}"#.to_owned()),
    });
    let after = desk.snapshot();
    assert_eq!(
        (after.total_tool_calls, after.state_version),
        (1, version + 1)
    );
}

#[test]
fn v11_a_schema_says_what_of_it_is_not_checked_and_what_is_wrong() {
    let contract =
        "tool: pay\nside_effect: write\nschema_derived_exclude: [\"$.free\", \"$.list[0]\"]\n";
    let unchecked = "tool: note\nside_effect: write\nschema_derived: false\n";
    let compiled = compile(&[source("pay", contract), source("note", unchecked)], None).unwrap();
    let form = |schema: &str| {
        let patterns = &mut contracts::PatternBudget::recorded();
        compiled
            .schema_form("pay", &value(schema), patterns)
            .unwrap()
    };
    let ignored = |schema: &str| {
        let form = form(schema);
        assert!(form.wrong.is_empty(), "{form:?}");
        form.ignored.into_iter().collect::<Vec<_>>()
    };
    assert!(
        compiled
            .schema_form(
                "note",
                &value("[]"),
                &mut contracts::PatternBudget::recorded()
            )
            .is_none()
    );
    for understood in [
        "true",
        "false",
        "{}",
        r#"{"type":["object","null"],"required":["a"],"title":"t","properties":{"a":{"const":1,"enum":[1],"minimum":0.5,
            "exclusiveMaximum":9,"minLength":1,"maxItems":2.0,"pattern":"^a","items":{"type":"string"}}},
            "additionalProperties":false}"#,
        r#"{"properties":{"free":[]}}"#,
    ] {
        assert!(ignored(understood).is_empty(), "{understood}");
    }
    for (schema, keywords) in [
        (
            r#"{"$ref":"x","properties":{"a":{"anyOf":[]}}}"#,
            vec!["$ref", "anyOf"],
        ),
        (r#"{"items":{"not":{}}}"#, vec!["not"]),
        (r#"{"items":[{}]}"#, vec!["items"]),
        (r#"{"pattern":"("}"#, vec!["pattern"]),
        (
            r#"{"additionalProperties":{}}"#,
            vec!["additionalProperties"],
        ),
        (r#"{"exclusiveMinimum":true}"#, vec!["exclusiveMinimum"]),
    ] {
        assert_eq!(ignored(schema), keywords, "{schema}");
    }
    for wrong in [
        "[]",
        "null",
        "3",
        r#"{"type":"objekt"}"#,
        r#"{"type":["string",1]}"#,
        r#"{"required":"m"}"#,
        r#"{"required":[1]}"#,
        r#"{"properties":[]}"#,
        r#"{"properties":{"a":7}}"#,
        r#"{"properties":{"list":{"items":{"type":"x"}}}}"#,
        r#"{"enum":1}"#,
        r#"{"minimum":"1"}"#,
        r#"{"minLength":-1}"#,
        r#"{"maxItems":1.5}"#,
        r#"{"pattern":1}"#,
        r#"{"items":1}"#,
        r#"{"additionalProperties":"no"}"#,
    ] {
        assert_eq!(form(wrong).wrong.len(), 1, "{wrong}");
    }
    let deep = (0..20).fold("{}".to_owned(), |inner, _| {
        format!(r#"{{"items":{inner}}}"#)
    });
    assert_eq!(ignored(&deep), ["nesting deeper than 16"]);
    let many: Vec<String> = (0..99).map(|number| format!(r#""k{number}":0"#)).collect();
    assert_eq!(ignored(&format!("{{{}}}", many.join(","))).len(), 16);
}
