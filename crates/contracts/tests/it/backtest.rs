//! Recorded runs judged again: the first block, those after it, and what the record does not hold.

use std::sync::Arc;

use contracts::backtest::{
    Backtested, CallVerdict, Change, RecordEntry, RecordedOutcome, Verdicts, backtest,
};
use contracts::{
    BlockReason, Decimal, Executors, FinishReason, OfferedTool, Options, ProposedCall, Response,
    Rules, Source, compile,
};

use crate::support::{ACCEPTED, TOOLS, at, desk_files, desk_options, file, payment, source};

fn rules() -> Rules {
    let compiled = compile(&desk_files(), Some(&file("session"))).unwrap();
    let mut options = desk_options();
    options.executors = Executors::All;
    Rules::new(Arc::new(compiled), options).unwrap()
}

fn offered() -> RecordEntry {
    RecordEntry::Offered(TOOLS.iter().map(|tool| OfferedTool::named(tool)).collect())
}

fn answered(seconds: i64, calls: &[(&str, &str, &str)]) -> RecordEntry {
    let calls = calls.iter().map(|(id, name, arguments)| ProposedCall {
        id: (*id).to_owned(),
        name: (*name).to_owned(),
        arguments: (*arguments).to_owned(),
    });
    RecordEntry::Answered {
        at: at(seconds),
        response: Response {
            finish_reason: FinishReason::ToolCalls,
            content: None,
            calls: calls.collect(),
        },
        cost: None,
        prepared: None,
        proposal: None,
    }
}

fn costing(told: RecordEntry, dollars: &str) -> RecordEntry {
    match told {
        RecordEntry::Answered { at, response, .. } => RecordEntry::Answered {
            at,
            response,
            cost: Some(Decimal::parse(dollars).unwrap()),
            prepared: None,
            proposal: None,
        },
        other => other,
    }
}

fn ended(id: &str, ok: bool, output: &str) -> RecordEntry {
    RecordEntry::Ended {
        call_id: id.to_owned(),
        ok: Some(ok),
        output: Some(output.to_owned()),
        proposal: None,
    }
}

fn verdicts(told: &[RecordEntry]) -> Verdicts {
    backtest(&rules(), at(0), told)
}

/// The answers about calls, without those about requests.
fn words(verdicts: &Verdicts) -> Vec<Backtested> {
    let calls = verdicts.calls.iter().filter(|call| call.tool.is_some());
    calls.map(|call| call.verdict).collect()
}

#[test]
fn a_run_that_kept_to_the_rules_is_allowed() {
    let (a, pay) = (r#"{"order_id":"A"}"#, payment("A", 12000));
    let found = verdicts(&[
        offered(),
        answered(1, &[("c1", "find_order", a)]),
        ended("c1", true, "{}"),
        answered(2, &[("c2", "assess_return", a)]),
        ended("c2", true, ACCEPTED),
        answered(3, &[("c3", "pay_back", &pay)]),
        ended("c3", true, "{}"),
    ]);
    assert_eq!(words(&found), [Backtested::Allowed; 3], "{found:?}");
    assert_eq!(found.first_stopped(), None);
    // The desk has a cost limit and excludes models, and no record holds prices or names: said once, and not called allowed.
    let costs: Vec<_> = found
        .calls
        .iter()
        .filter(|call| call.tool.is_none())
        .collect();
    let details: Vec<_> = costs.iter().map(|cost| cost.detail.as_deref()).collect();
    let model = "the record does not name the model";
    assert_eq!(details, [Some(model), Some("price_unknown")], "{costs:?}");
    let unknown = |cost: &&&CallVerdict| cost.verdict == Backtested::NotJudgeable;
    assert_eq!(costs.iter().filter(unknown).count(), 2, "{costs:?}");
}

#[test]
fn the_first_block_stands_apart_from_those_after_it() {
    let (a, pay) = (r#"{"order_id":"A"}"#, payment("A", 12000));
    // Paid without an assessment, twice; the money did move, and state follows what happened.
    let found = verdicts(&[
        offered(),
        answered(1, &[("c1", "find_order", a)]),
        ended("c1", true, "{}"),
        answered(2, &[("c2", "pay_back", &pay)]),
        ended("c2", true, "{}"),
        answered(3, &[("c3", "pay_back", &pay)]),
    ]);
    assert_eq!(
        words(&found),
        [
            Backtested::Allowed,
            Backtested::Blocked,
            Backtested::Blocked
        ]
    );
    let first = found.first_stopped().unwrap();
    assert_eq!((first.turn, first.call_id.as_deref()), (2, Some("c2")));
    assert_eq!(first.reasons[0], BlockReason::IllegalPhaseTransition);
    let later: Vec<_> = found.later_stopped().collect();
    assert_eq!(later.len(), 1);
    assert!(
        later[0].reasons.contains(&BlockReason::ForbiddenTool),
        "the first payment happened"
    );
}

#[test]
fn a_failed_call_satisfies_nothing() {
    let a = r#"{"order_id":"A"}"#;
    let found = verdicts(&[
        offered(),
        answered(1, &[("c1", "find_order", a)]),
        ended("c1", false, r#"{"accepted":true}"#),
        answered(2, &[("c2", "assess_return", a)]),
    ]);
    assert_eq!(words(&found), [Backtested::Allowed, Backtested::Blocked]);
}

#[test]
fn what_the_record_does_not_hold_is_never_allowed() {
    let a = r#"{"order_id":"A"}"#;
    let gap = RecordEntry::Gap {
        what: "an answer of the model".to_owned(),
    };
    let found = verdicts(&[
        offered(),
        answered(1, &[("c1", "find_order", a)]),
        gap,
        answered(
            2,
            &[
                ("c2", "find_order", a),
                ("c3", "pay_back", &payment("A", 1)),
            ],
        ),
    ]);
    let unknown = Backtested::NotJudgeable;
    assert_eq!(words(&found), [Backtested::Allowed, unknown, unknown]);
    assert_eq!(found.gaps.len(), 1);
    // Without the offered tools, nothing about offers can be said.
    let found = verdicts(&[answered(1, &[("c1", "find_order", a)])]);
    assert_eq!(words(&found), [unknown]);
    // A rule that looks at requests cannot be held to a record without them.
    let files = [source(
        "a",
        "tool: a\nside_effect: read\nassertions:\n  input_invariants:\n    - { path: $.model, exists: true }",
    )];
    let compiled = compile(&files, None).unwrap();
    let mut options = contracts::Options::new("s1");
    options.executors = Executors::All;
    let rules = Rules::new(Arc::new(compiled), options).unwrap();
    let told = [
        RecordEntry::Offered(vec![OfferedTool::named("a")]),
        answered(1, &[("c1", "a", "{}")]),
    ];
    assert_eq!(words(&backtest(&rules, at(0), &told)), [unknown]);
}

#[test]
fn people_who_would_have_been_asked_and_limits_are_told() {
    let a = r#"{"order_id":"A"}"#;
    let big = r#"{"accepted":true,"days_since_delivery":4,"amount_cents":20000}"#;
    let found = verdicts(&[
        offered(),
        answered(1, &[("c1", "find_order", a)]),
        ended("c1", true, "{}"),
        answered(2, &[("c2", "assess_return", a)]),
        ended("c2", true, big),
        answered(3, &[("c3", "pay_back", &payment("A", 20000))]),
    ]);
    assert_eq!(words(&found).last(), Some(&Backtested::Asked));
    let session = source(
        "session",
        "schema_version: \"1.0\"\nsession_limits: { max_steps: 1 }",
    );
    let compiled = compile(&[source("a", "tool: a\nside_effect: read")], Some(&session)).unwrap();
    let mut options = contracts::Options::new("s1");
    options.executors = Executors::All;
    let rules = Rules::new(Arc::new(compiled), options).unwrap();
    let offer = RecordEntry::Offered(vec![OfferedTool::named("a")]);
    let found = backtest(
        &rules,
        at(0),
        &[
            offer,
            answered(1, &[("c1", "a", "{}")]),
            answered(2, &[("c2", "a", "{}")]),
        ],
    );
    let first = found.first_stopped().unwrap();
    assert_eq!(
        (first.tool.as_deref(), first.detail.as_deref()),
        (None, Some("max_steps"))
    );
}

#[test]
fn a_recorded_cost_is_judged_and_one_that_is_not_recorded_is_not() {
    let tool = Source {
        file: "t.yaml".to_owned(),
        text: "tool: t\nside_effect: read\n".to_owned(),
    };
    let session = Source {
        file: "session.yaml".to_owned(),
        text: "schema_version: \"1.0\"\nsession_limits: { max_cost_per_session: 0.5 }\n".to_owned(),
    };
    let compiled = compile(&[tool], Some(&session)).unwrap();
    let mut options = Options::new("backtest");
    options.executors = Executors::All;
    let rules = Rules::new(Arc::new(compiled), options).unwrap();
    let offered = RecordEntry::Offered(vec![OfferedTool::named("t")]);
    let turn = |seconds: i64, id: &str| answered(seconds, &[(id, "t", "{}")]);
    let told = [
        offered.clone(),
        costing(turn(1, "a"), "0.3"),
        ended("a", true, "{}"),
        costing(turn(2, "b"), "0.3"),
        ended("b", true, "{}"),
        costing(turn(3, "c"), "0.1"),
    ];
    let found = backtest(&rules, at(0), &told);
    let shown = |call: &CallVerdict| (call.tool.clone(), call.verdict, call.detail.clone());
    let found: Vec<_> = found.calls.iter().map(shown).collect();
    let allowed = (Some("t".to_owned()), Backtested::Allowed, None);
    // The third request would have come after 0.6 of 0.5 dollars.
    let stopped = (None, Backtested::Blocked, Some("max_cost".to_owned()));
    assert_eq!(
        found,
        [allowed.clone(), allowed.clone(), stopped, allowed.clone()]
    );
    // A cost that is not on record is not taken for nothing.
    let told = [
        offered,
        turn(1, "a"),
        ended("a", true, "{}"),
        costing(turn(2, "b"), "0.1"),
    ];
    let found = backtest(&rules, at(0), &told);
    let unknown = |call: &&CallVerdict| call.verdict == Backtested::NotJudgeable;
    let unknown: Vec<_> = found.calls.iter().filter(unknown).map(shown).collect();
    let why = Some("price_unknown".to_owned());
    assert_eq!(unknown, [(None, Backtested::NotJudgeable, why)]);
}

fn judged(refused: &[&str], whole: bool) -> RecordEntry {
    RecordEntry::Judged {
        at: None,
        refused: refused.iter().map(ToString::to_string).collect(),
        whole,
        proposal: None,
    }
}

fn asked(calls: &[&str]) -> RecordEntry {
    RecordEntry::Asked {
        calls: calls.iter().map(ToString::to_string).collect(),
        count: calls.len() as u64,
        proposal: None,
    }
}

/// What became of the calls then, and how that differs, without what is said about requests.
fn changes(verdicts: &Verdicts) -> Vec<(RecordedOutcome, Change)> {
    let calls = verdicts.calls.iter().filter(|call| call.tool.is_some());
    calls.map(|call| (call.then, call.change)).collect()
}

#[test]
fn what_was_refused_then_and_is_refused_now_is_as_before() {
    let (a, pay) = (r#"{"order_id":"A"}"#, payment("A", 12000));
    let found = verdicts(&[
        offered(),
        answered(1, &[("c0", "pay_back", &pay), ("c1", "find_order", a)]),
        judged(&["c0", "c1"], true),
        // An agent is told about the refused calls as results.
        ended("c0", false, "{}"),
        ended("c1", false, "{}"),
        answered(2, &[("c1", "find_order", a)]),
        judged(&[], false),
        ended("c1", true, "{}"),
        answered(3, &[("c2", "assess_return", a)]),
        judged(&[], false),
        ended("c2", true, ACCEPTED),
        answered(4, &[("c3", "pay_back", &pay)]),
        judged(&[], false),
        ended("c3", true, "{}"),
    ]);
    let (refused, made) = (
        (RecordedOutcome::Refused, Change::AsBefore),
        (RecordedOutcome::Made, Change::AsBefore),
    );
    assert_eq!(
        changes(&found),
        [refused, refused, made, made, made],
        "{found:?}"
    );
    assert_eq!(found.first_stopped(), None);
    assert_eq!(found.count(Backtested::Blocked), 1, "it is refused again");
}

#[test]
fn what_was_refused_did_not_happen() {
    // Three equal notes are a loop; one that was refused is none of them.
    let note = r#"{"order_id":"A","text":"x"}"#;
    let turn = |seconds, id| answered(seconds, &[(id, "send_note", note)]);
    let told = |second_is_refused| {
        vec![
            offered(),
            turn(1, "n1"),
            judged(&[], false),
            ended("n1", true, "{}"),
            turn(2, "n2"),
            match second_is_refused {
                true => judged(&["n2"], true),
                false => judged(&[], false),
            },
            ended("n2", !second_is_refused, "{}"),
            turn(3, "n3"),
            judged(&[], false),
        ]
    };
    let found = verdicts(&told(true));
    assert_eq!(words(&found), [Backtested::Allowed; 3], "{found:?}");
    assert_eq!(
        changes(&found)[1],
        (RecordedOutcome::Refused, Change::Loosened),
        "nothing stands against it now"
    );
    let found = verdicts(&told(false));
    assert_eq!(words(&found)[2], Backtested::Blocked, "{found:?}");
    assert_eq!(
        found.first_stopped().map(|call| call.turn),
        Some(3),
        "the third happened and is a loop"
    );
}

#[test]
fn questions_then_and_now_are_compared() {
    let (a, large) = (r#"{"order_id":"A"}"#, payment("A", 20000));
    let accepted = ACCEPTED.replace("12000", "20000");
    let told = |end: Vec<RecordEntry>| {
        let mut told = vec![
            offered(),
            answered(1, &[("c1", "find_order", a)]),
            ended("c1", true, "{}"),
            answered(2, &[("c2", "assess_return", a)]),
            ended("c2", true, &accepted),
            answered(3, &[("c3", "pay_back", &large)]),
        ];
        told.extend(end);
        told
    };
    let last = |end: Vec<RecordEntry>| changes(&verdicts(&told(end)))[2];
    assert_eq!(
        last(vec![ended("c3", true, "{}")]),
        (RecordedOutcome::Made, Change::NowAsked)
    );
    assert_eq!(
        last(vec![asked(&["c3"]), judged(&[], false)]),
        (RecordedOutcome::Asked, Change::AsBefore)
    );
    assert_eq!(
        last(vec![asked(&["c3"]), judged(&["c3"], true)]),
        (RecordedOutcome::Refused, Change::AsBefore),
        "somebody said no, and is asked again"
    );
    assert_eq!(
        last(vec![judged(&["c3"], true)]),
        (RecordedOutcome::Refused, Change::Loosened),
        "it was refused, and now somebody is asked"
    );
    // Records of an older agent say how many questions there were.
    let counted = RecordEntry::Asked {
        calls: Vec::new(),
        count: 1,
        proposal: None,
    };
    assert_eq!(
        last(vec![counted, judged(&[], false)]),
        (RecordedOutcome::Asked, Change::AsBefore)
    );
}

#[test]
fn calls_of_earlier_answers_may_end_while_people_are_asked() {
    let (a, large) = (r#"{"order_id":"A"}"#, payment("A", 20000));
    let accepted = ACCEPTED.replace("12000", "20000");
    let note = r#"{"order_id":"A","text":"x"}"#;
    let told = |end: Vec<RecordEntry>| {
        let mut told = vec![
            offered(),
            answered(1, &[("c1", "find_order", a)]),
            ended("c1", true, "{}"),
            answered(2, &[("c2", "assess_return", a)]),
            ended("c2", true, &accepted),
            answered(3, &[("n1", "send_note", note)]),
            judged(&[], false),
            answered(4, &[("c3", "pay_back", &large)]),
            asked(&["c3"]),
            // The note is reported while somebody thinks.
            ended("n1", true, "{}"),
        ];
        told.extend(end);
        told
    };
    let found = verdicts(&told(vec![judged(&["c3"], true)]));
    assert_eq!(found.gaps, Vec::<String>::new());
    assert_eq!(
        changes(&found)[3],
        (RecordedOutcome::Refused, Change::AsBefore),
        "{found:?}"
    );
    // Another answer came before anybody said what became of this one: nothing more is said.
    let found = verdicts(&told(vec![
        answered(5, &[("n2", "send_note", note)]),
        judged(&["c3"], true),
    ]));
    assert!(!found.gaps.is_empty());
    assert_eq!(changes(&found)[4].1, Change::NotJudgeable, "{found:?}");
}

#[test]
fn questions_that_were_asked_count_toward_their_limit() {
    let pay = "tool: pay\nside_effect: write\ncheckpoint: { reason: look }\n";
    let compiled = compile(&[source("pay", pay)], None).unwrap();
    let mut options = Options::new("s");
    options.executors = Executors::All;
    options.answers_checkpoints = true;
    let rules = Rules::new(Arc::new(compiled), options).unwrap();
    let mut told = vec![RecordEntry::Offered(vec![OfferedTool::named("pay")])];
    for turn in 0..11 {
        let id = format!("c{turn}");
        told.push(answered(turn, &[(&id, "pay", "{}")]));
        // The eleventh was refused without a question.
        let is_last = turn == 10;
        if !is_last {
            told.push(asked(&[&id]));
        }
        told.push(judged(if is_last { &["c10"] } else { &[] }, is_last));
        told.push(ended(&id, !is_last, "{}"));
    }
    let found = backtest(&rules, at(0), &told);
    let last = found.calls.last().unwrap();
    assert_eq!(
        (last.verdict, last.change),
        (Backtested::Blocked, Change::AsBefore),
        "{last:?}"
    );
    assert_eq!(found.changed(Change::AsBefore).count(), 11);
}

#[test]
fn a_call_that_the_agent_was_not_let_make_is_no_difference_when_blocked() {
    let pay = payment("A", 12000);
    let denied = || RecordEntry::Denied {
        call_id: "c1".to_owned(),
    };
    for end in [vec![denied()], vec![judged(&[], false), denied()]] {
        let mut told = vec![offered(), answered(1, &[("c1", "pay_back", &pay)])];
        told.extend(end);
        let found = verdicts(&told);
        assert_eq!(
            changes(&found),
            [(RecordedOutcome::Refused, Change::AsBefore)],
            "{found:?}"
        );
    }
}

#[test]
fn what_was_stripped_did_not_happen_and_the_rest_did() {
    let (a, pay) = (r#"{"order_id":"A"}"#, payment("A", 12000));
    let found = verdicts(&[
        offered(),
        answered(1, &[("c0", "pay_back", &pay), ("c1", "find_order", a)]),
        judged(&["c0"], false),
        ended("c1", true, "{}"),
        answered(2, &[("c2", "assess_return", a)]),
    ]);
    let made = (RecordedOutcome::Made, Change::AsBefore);
    assert_eq!(
        changes(&found),
        [(RecordedOutcome::Refused, Change::AsBefore), made, made],
        "{found:?}"
    );
}

#[test]
fn a_breaker_that_would_have_ended_the_run_is_told() {
    let session =
        "schema_version: \"1.0\"\nsession_limits: { circuit_breaker: { consecutive_blocks: 2 } }\n";
    let (tool, session) = (
        source("pay", "tool: pay\nside_effect: write\ngate: block\n"),
        source("session", session),
    );
    let compiled = compile(&[tool], Some(&session)).unwrap();
    let mut options = Options::new("s");
    options.executors = Executors::All;
    let rules = Rules::new(Arc::new(compiled), options).unwrap();
    let mut told = vec![RecordEntry::Offered(vec![OfferedTool::named("pay")])];
    for (turn, id) in ["a", "b", "c"].into_iter().enumerate() {
        told.push(answered(turn as i64, &[(id, "pay", "{}")]));
        told.push(judged(&[id], true));
    }
    let found = backtest(&rules, at(0), &told);
    let stopped = found.first_stopped().unwrap();
    assert_eq!(
        (stopped.turn, stopped.tool.as_deref(), stopped.reasons[0]),
        (3, None, BlockReason::Killed),
        "{found:?}"
    );
}

#[test]
fn what_was_refused_takes_no_room_when_people_have_consented_to_the_rest() {
    let session = "schema_version: \"1.0\"\naggregates: [ { name: sum, metric: sum, tools: [p, q], path: \"$.n\", lte: 10 } ]\n";
    let files = [
        source(
            "p",
            "tool: p\nside_effect: write\ncheckpoint: { reason: look }\n",
        ),
        source("q", "tool: q\nside_effect: write\n"),
    ];
    let compiled = compile(&files, Some(&source("session", session))).unwrap();
    let mut options = Options::new("s");
    options.executors = Executors::All;
    options.answers_checkpoints = true;
    options.gate = contracts::Gate::StripPartial;
    let rules = Rules::new(Arc::new(compiled), options).unwrap();
    let six = r#"{"n":6}"#;
    let told = [
        RecordEntry::Offered(["p", "q"].map(OfferedTool::named).to_vec()),
        RecordEntry::Filtered {
            tools: Some(vec!["p".to_owned()]),
        },
        answered(1, &[("a", "q", six), ("b", "p", six)]),
        asked(&["b"]),
        // What stood against the first call is gone before somebody answers.
        RecordEntry::Filtered { tools: None },
        judged(&["a"], false),
    ];
    let found = backtest(&rules, at(0), &told);
    assert_eq!(
        changes(&found),
        [
            (RecordedOutcome::Refused, Change::AsBefore),
            (RecordedOutcome::Asked, Change::AsBefore)
        ],
        "{found:?}"
    );
}

#[test]
fn what_nobody_executed_in_time_takes_no_room_when_people_have_consented() {
    let files = [
        source(
            "ask",
            "tool: ask\nside_effect: write\ncheckpoint: { reason: look, timeout_seconds: 3600 }\n",
        ),
        source(
            "stop",
            "tool: stop\nside_effect: write\nforbids_after: [ask]\n",
        ),
    ];
    let compiled = compile(&files, None).unwrap();
    let mut options = Options::new("s");
    options.executors = Executors::All;
    options.answers_checkpoints = true;
    let rules = Rules::new(Arc::new(compiled), options).unwrap();
    let named = |told: RecordEntry, name: &str| match told {
        RecordEntry::Answered { at, response, .. } => RecordEntry::Answered {
            at,
            response,
            cost: None,
            prepared: None,
            proposal: Some(name.to_owned()),
        },
        other => other,
    };
    let settled = |seconds: i64, name: &str| RecordEntry::Judged {
        at: Some(at(seconds)),
        refused: Vec::new(),
        whole: false,
        proposal: Some(name.to_owned()),
    };
    for (seconds, change) in [(700, Change::AsBefore), (60, Change::Stopped)] {
        let told = [
            RecordEntry::Offered(["ask", "stop"].map(OfferedTool::named).to_vec()),
            named(answered(1, &[("a", "ask", "{}")]), "p1"),
            RecordEntry::Asked {
                calls: vec!["a".to_owned()],
                count: 1,
                proposal: Some("p1".to_owned()),
            },
            named(answered(2, &[("b", "stop", "{}")]), "p2"),
            settled(2, "p2"),
            // Nobody executed the second call; it forbids the first for ten minutes.
            settled(seconds, "p1"),
        ];
        let found = backtest(&rules, at(0), &told);
        assert_eq!(changes(&found)[0].1, change, "{seconds}: {found:?}");
    }
}
