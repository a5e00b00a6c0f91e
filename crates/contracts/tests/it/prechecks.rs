//! P1 to P9 in their order, and what they count as.

use contracts::{
    Event, OfferedTool, PreCheck, ProviderConstraints, Refusal, Release, Responded, ToolChoice,
    check_attempt, narrow, precheck, provider_excluded, provider_warnings, refused,
};

use crate::support::{Desk, at, decimal, unwrapped};

const ECHO: (&str, &str) = ("echo", "tool: echo\nside_effect: read");

fn check(desk: &Desk) -> Option<(PreCheck, String)> {
    desk.precheck().err().map(|refusal| {
        let detail = match &refusal {
            Refusal::Blocked { detail, .. } => detail.clone(),
            Refusal::Killed { cause } => cause.clone(),
            Refusal::ProviderIncompatible { pattern } => pattern.clone(),
            Refusal::Unsupported { member } => member.clone(),
            Refusal::Inactive => String::new(),
        };
        (refusal.check(), detail)
    })
}

fn found(check: PreCheck, detail: &str) -> Option<(PreCheck, String)> {
    Some((check, detail.to_owned()))
}

#[test]
fn p1_p2_a_session_that_is_over_asks_nobody() {
    let mut desk = Desk::of(&[ECHO], "");
    assert_eq!(check(&desk), None);
    let mut restored = desk.clone();
    desk.apply(Event::Killed {
        cause: "by hand".to_owned(),
    });
    assert_eq!(check(&desk), found(PreCheck::P1, "by hand"));
    restored.apply(Event::Restored);
    assert_eq!(check(&restored), found(PreCheck::P2, ""));
    restored.apply(Event::Killed {
        cause: "late".to_owned(),
    });
    assert_eq!(check(&restored), found(PreCheck::P2, ""));
}

#[test]
fn p3_excluded_models_are_refused_and_the_option_replaces_the_file() {
    let session = "provider_constraints: { block_incompatible: [\"openai/gpt-*\"], \
                   warn_incompatible: [\"openai/*\"] }";
    let desk = Desk::of(&[ECHO], session);
    assert_eq!(check(&desk), found(PreCheck::P3, "openai/gpt-*"));
    assert_eq!(provider_warnings(&desk.rules, "openai", "x"), ["openai/*"]);
    assert_eq!(provider_excluded(&desk.rules, "openai"), None);
    let replaced = Desk::of_with(&[ECHO], session, |options| {
        options.providers = Some(ProviderConstraints {
            block: vec!["openai/*".to_owned()],
            warn: Vec::new(),
        });
    });
    assert_eq!(check(&replaced), found(PreCheck::P3, "openai/*"));
    assert_eq!(
        provider_excluded(&replaced.rules, "openai").as_deref(),
        Some("openai/*")
    );
}

#[test]
fn p4_r42_a_request_that_cannot_be_judged_is_refused_by_name() {
    let desk = Desk::of(&[ECHO], "");
    let mut request = desk.request();
    request.unsupported = Some("n".to_owned());
    let refusal = precheck(&desk.rules, &desk.state, &request, &desk.narrow()).unwrap_err();
    assert_eq!(
        refusal,
        Refusal::Unsupported {
            member: "n".to_owned()
        }
    );
    assert!(!refusal.is_block());
    request.unsupported = None;
    request.tools.push(OfferedTool::named("echo"));
    let refusal = precheck(&desk.rules, &desk.state, &request, &desk.narrow()).unwrap_err();
    assert_eq!(
        refusal,
        Refusal::Unsupported {
            member: "tools".to_owned()
        }
    );
}

#[test]
fn p5_to_p7_limits_are_checked_in_order_and_count_as_blocks_r43() {
    let session = "session_limits: { max_steps: 2, max_attempts: 3, max_cost_per_session: 0.05, \
                   circuit_breaker: { consecutive_blocks: 2 } }";
    let mut desk = Desk::of_with(&[ECHO], session, unwrapped);
    desk.create(&[("echo", "{}")]);
    assert_eq!(check(&desk), None);
    desk.create(&[("uncontracted", "{}")]);
    desk.create(&[("echo", "{}")]);
    assert_eq!(check(&desk), found(PreCheck::P5, "max_steps"));
    assert!(check_attempt(&desk.rules, &desk.state).is_err());
    let refusal = desk.precheck().unwrap_err();
    let decision = refused(&desk.rules, &desk.state, &refusal).unwrap();
    assert_eq!(decision.reason.unwrap().as_str(), "session_limit_exceeded");
    assert!(decision.calls.is_empty());
    assert_eq!(decision.contract_file.as_deref(), Some("session.yaml"));
    assert!(refusal.is_block());
    desk.apply(Event::Refused { at: at(1) });
    assert_eq!(desk.snapshot().consecutive_block_count, 1);
    desk.apply(Event::Refused { at: at(2) });
    assert!(desk.is_killed());

    let mut costly = Desk::of(&[ECHO], "session_limits: { max_cost_per_session: 0.03 }");
    for _ in 0..3 {
        assert_eq!(check(&costly), None);
        // Blocked attempts cost too.
        costly.create(&[("uncontracted", "{}")]);
    }
    assert_eq!(check(&costly), found(PreCheck::P7, "max_cost"));
    let attempts = Desk::of(&[ECHO], "session_limits: { max_attempts: 1 }");
    let mut attempts = attempts;
    attempts.create(&[("uncontracted", "{}")]);
    assert_eq!(check(&attempts), found(PreCheck::P6, "max_attempts"));
}

#[test]
fn p8_r25_a_cost_that_cannot_be_known_is_a_limit_that_is_reached() {
    let session = "session_limits: { max_cost_per_session: 1 }";
    let mut desk = Desk::of(&[ECHO], session);
    let mut request = desk.request();
    request.model = "unpriced".to_owned();
    let refusal = precheck(&desk.rules, &desk.state, &request, &desk.narrow()).unwrap_err();
    assert!(matches!(&refusal, Refusal::Blocked { detail, .. } if detail == "price_unknown"));
    desk.cost = None;
    desk.create(&[("echo", "{}")]);
    assert_eq!(check(&desk), found(PreCheck::P8, "usage_unknown"));
    // Without a cost limit nobody needs to know.
    let mut free = Desk::of(&[ECHO], "");
    free.cost = None;
    free.create(&[("echo", "{}")]);
    assert_eq!(check(&free), None);
    assert!(free.snapshot().exact_costs.incomplete);
}

#[test]
fn p9_r21_a_forced_tool_that_was_removed_blocks_under_its_reason() {
    let session = "session_limits: { max_calls_per_tool: { echo: 1 } }";
    let mut desk = Desk::of_with(&[ECHO], session, unwrapped);
    desk.create(&[("echo", "{}")]);
    let mut request = desk.request();
    let narrowing = narrow(&desk.rules, &desk.state, &request.tools);
    for choice in [
        ToolChoice::Named("echo".to_owned()),
        ToolChoice::AllowedOnly(vec!["echo".to_owned(), "uncontracted".to_owned()]),
    ] {
        request.choice = choice;
        let refusal = precheck(&desk.rules, &desk.state, &request, &narrowing).unwrap_err();
        assert_eq!(refusal.check(), PreCheck::P9);
        let decision = refused(&desk.rules, &desk.state, &refusal).unwrap();
        assert_eq!(decision.reason.unwrap().as_str(), "session_limit_exceeded");
        assert_eq!(decision.contract_file.as_deref(), Some("echo.yaml"));
    }
    request.choice = ToolChoice::Required;
    assert_eq!(
        precheck(&desk.rules, &desk.state, &request, &narrowing),
        Ok(())
    );
}

#[test]
fn costs_are_exact_and_blocked_attempts_count_only_in_the_actual_one() {
    let mut desk = Desk::of(&[ECHO], "");
    desk.cost = Some(decimal("0.1"));
    desk.create(&[("echo", "{}")]);
    desk.create(&[("uncontracted", "{}")]);
    desk.create(&[("uncontracted", "{}")]);
    desk.apply(Event::Responded(Responded {
        at: at(9),
        proposal: None,
        cost: Some(decimal("0.2")),
        usage_unknown: false,
        release: Release::Discarded,
    }));
    let snapshot = desk.snapshot();
    assert_eq!(snapshot.exact_costs.total, decimal("0.1"));
    assert_eq!(snapshot.exact_costs.actual, decimal("0.5"));
    assert_eq!(snapshot.attempt_count, 4);
    assert_eq!(snapshot.total_step_count, 1);
}
