//! Workflows: roles, handoffs, common limits and shared things.

use contracts::workflow::{
    HandoffRequest, MemberStatus, Offer, OfferEnd, OfferStatus, Workflow, WorkflowEvent,
    WorkflowRefusal, WorkflowState, compile_workflow,
};

use crate::support::{ACCEPTED, Desk, at, decimal, source, value};

const FILE: &str = r#"
schema_version: "1.0"
workflow: return-with-inspection
roles:
  - { name: desk, session_contract: desk/session.yaml }
  - { name: inspector, session_contract: inspector/session.yaml }
handoffs:
  - { from: desk, to: inspector }
limits: { max_sessions: 3, max_cost: 8.00, max_tool_calls: 12 }
shared_resources:
  - { name: order, path: "$.order_id", tools: [pay_back], mode: exclusive }
"#;

fn workflow() -> Workflow {
    compile_workflow(&source("workflow", FILE)).unwrap()
}

fn begun() -> WorkflowState {
    let event = WorkflowState::begin(&workflow(), "s1", "desk").unwrap();
    WorkflowState::default().apply(&event).unwrap()
}

fn wanted<'a>(id: &'a str, carry: &'a [&'a str]) -> HandoffRequest<'a> {
    HandoffRequest {
        handoff_id: id,
        to_role: "inspector",
        summary: "look at the frame",
        carry,
        expires_in_seconds: None,
    }
}

#[test]
fn a_file_is_checked_as_contracts_are() {
    let workflow = workflow();
    assert_eq!(
        workflow.session_file("inspector"),
        Some("inspector/session.yaml")
    );
    assert!(workflow.permits("desk", "inspector") && !workflow.permits("inspector", "desk"));
    for (from, to) in [
        ("to: inspector", "to: nobody"),
        ("\"1.0\"", "\"2.0\""),
        ("max_sessions: 3", "max_sessions: 0"),
        ("mode: exclusive", "mode: shared"),
        ("max_cost: 8.00", "max_cost: 0"),
        ("name: inspector", "name: desk"),
        ("workflow: return-with-inspection", "workflw: x"),
    ] {
        let odd = FILE.replacen(from, to, 1);
        assert_ne!(odd, FILE);
        assert!(compile_workflow(&source("workflow", &odd)).is_err(), "{to}");
    }
}

#[test]
fn a_child_gets_labels_and_carried_slots_and_nothing_else() {
    let workflow = workflow();
    let mut desk = Desk::assessed(ACCEPTED);
    desk.apply(contracts::Event::LabelAdded {
        label: "vip".to_owned(),
    });
    let state = begun();
    let offered = state
        .offer(
            &workflow,
            &desk.state,
            wanted("h1", &["assessed_amount"]),
            at(10),
        )
        .unwrap();
    let state = state.apply(&offered).unwrap();
    let (accepted, offer) = state.accept(&workflow, "h1", "s2", at(20)).unwrap();
    assert_eq!(offer.slots["assessed_amount"], "12000");
    assert_eq!(offer.labels, ["vip"]);
    let mut options = desk.rules.options().clone();
    options.session_id = "s2".to_owned();
    options.labels.clone_from(&offer.labels);
    let compiled = std::sync::Arc::new(desk.rules.compiled().clone());
    let rules = contracts::Rules::new(compiled, options).unwrap();
    let child = contracts::driver::Driver::open_with(rules, at(20), offer.slots.clone())
        .unwrap()
        .state();
    assert_eq!(child.current_phase.as_deref(), Some("intake"));
    assert_eq!(child.labels, ["vip"]);
    assert_eq!((child.total_tool_calls, child.total_step_count), (0, 0));
    assert!(child.satisfied_preconditions.is_empty());
    let state = state.apply(&accepted).unwrap();
    assert_eq!(
        state.offer_status("h1", at(21)),
        Some(OfferStatus::Accepted)
    );
    let shown = state.snapshot("w", "s2", at(21));
    assert_eq!(shown.role.as_deref(), Some("inspector"));
    assert_eq!(shown.sessions[1].parent.as_deref(), Some("s1"));
    // The parent stays open, and an offer is taken once.
    assert_eq!(shown.sessions[0].status, MemberStatus::Open);
    let again = state.accept(&workflow, "h1", "s3", at(22));
    assert!(matches!(
        again,
        Err(WorkflowRefusal::NotOpen(Some(OfferStatus::Accepted)))
    ));
    let missing = state.offer(
        &workflow,
        &desk.state,
        wanted("h2", &["no_such_slot"]),
        at(23),
    );
    assert_eq!(
        missing,
        Err(WorkflowRefusal::SlotNotSet("no_such_slot".to_owned()))
    );
}

#[test]
fn offers_end_in_five_ways_and_only_open_ones_can_be_taken() {
    let workflow = workflow();
    let desk = Desk::new();
    let offered = begun()
        .offer(&workflow, &desk.state, wanted("h1", &[]), at(0))
        .unwrap();
    let state = begun().apply(&offered).unwrap();
    assert_eq!(state.offer_status("h1", at(599)), Some(OfferStatus::Open));
    assert_eq!(
        state.offer_status("h1", at(600)),
        Some(OfferStatus::Expired)
    );
    assert!(state.accept(&workflow, "h1", "s2", at(600)).is_err());
    for (how, expected) in [
        (OfferEnd::Decline, OfferStatus::Declined),
        (OfferEnd::Cancel, OfferStatus::Cancelled),
    ] {
        let event = state.close("h1", how, at(1)).unwrap();
        let closed = state.clone().apply(&event).unwrap();
        assert_eq!(closed.offer_status("h1", at(2)), Some(expected));
        assert!(closed.accept(&workflow, "h1", "s2", at(2)).is_err());
        assert!(closed.close("h1", how, at(2)).is_err());
    }
    // A pair that the file does not list, and a role that it does not know.
    let mut back = wanted("h2", &[]);
    back.to_role = "desk";
    assert!(matches!(
        state.offer(&workflow, &desk.state, back, at(1)),
        Err(WorkflowRefusal::NotPermitted { .. })
    ));
    assert!(WorkflowState::begin(&workflow, "s1", "nobody").is_err());
}

/// A workflow in which `s1` handed over to `s2` and `s3`.
fn family() -> WorkflowState {
    let workflow = workflow();
    let desk = Desk::new();
    let mut state = begun();
    for (handoff, child) in [("h1", "s2"), ("h2", "s3")] {
        let offered = state
            .offer(&workflow, &desk.state, wanted(handoff, &[]), at(0))
            .unwrap();
        state = state.apply(&offered).unwrap();
        let (accepted, _) = state.accept(&workflow, handoff, child, at(1)).unwrap();
        state = state.apply(&accepted).unwrap();
    }
    state
}

#[test]
fn a_killed_root_takes_its_descendants_along_and_a_killed_child_nobody() {
    let statuses = |killed: &str| {
        let event = WorkflowEvent::Killed {
            session_id: killed.to_owned(),
        };
        let shown = family().apply(&event).unwrap().snapshot("w", "s1", at(2));
        shown
            .sessions
            .iter()
            .map(|member| member.status)
            .collect::<Vec<_>>()
    };
    assert_eq!(statuses("s1"), [MemberStatus::Killed; 3]);
    let open = MemberStatus::Open;
    assert_eq!(statuses("s2"), [open, MemberStatus::Killed, open]);
    let workflow = workflow();
    let offered = family()
        .offer(&workflow, &Desk::new().state, wanted("h3", &[]), at(2))
        .unwrap();
    let full = family().apply(&offered).unwrap();
    let refused = full.accept(&workflow, "h3", "s4", at(3)).unwrap_err();
    assert_eq!(refused, WorkflowRefusal::TooManySessions);
}

#[test]
fn limits_are_those_of_all_sessions_together() {
    let workflow = workflow();
    let used = |cost: Option<&str>, tool_calls| WorkflowEvent::Used {
        cost: cost.map(decimal),
        tool_calls,
    };
    let state = family().apply(&used(Some("7.99"), 11)).unwrap();
    assert_eq!(state.limit_reached(&workflow), None);
    assert!(
        state
            .clone()
            .apply(&used(Some("0.01"), 0))
            .unwrap()
            .limit_reached(&workflow)
            .is_some()
    );
    assert!(
        state
            .clone()
            .apply(&used(Some("0"), 1))
            .unwrap()
            .limit_reached(&workflow)
            .is_some()
    );
    // A sum that cannot be computed is not within its limit.
    assert!(
        state
            .apply(&used(None, 0))
            .unwrap()
            .limit_reached(&workflow)
            .is_some()
    );
}

#[test]
fn a_shared_thing_is_touched_by_one_session_at_a_time() {
    let workflow = workflow();
    let order = |id: &str| value(&format!(r#"{{"order_id":"{id}"}}"#));
    let mut state = family();
    for event in WorkflowState::holds_of(&workflow, "s1", "pay_back", &order("A")) {
        state = state.apply(&event).unwrap();
    }
    assert!(state.is_busy(&workflow, "s2", "pay_back", &order("A")));
    assert!(
        !state.is_busy(&workflow, "s1", "pay_back", &order("A")),
        "its own"
    );
    assert!(!state.is_busy(&workflow, "s2", "pay_back", &order("B")));
    assert!(!state.is_busy(&workflow, "s2", "send_note", &order("A")));
    assert!(
        state.is_busy(&workflow, "s2", "pay_back", &value("{}")),
        "a call without a name"
    );
    let freed = WorkflowEvent::Freed {
        session_id: "s1".to_owned(),
        resource: "order".to_owned(),
        value: "\"A\"".to_owned(),
    };
    let state = state.apply(&freed).unwrap();
    assert!(!state.is_busy(&workflow, "s2", "pay_back", &order("A")));
}

#[test]
fn offers_that_are_over_are_forgotten_but_for_the_latest() {
    let mut state = begun();
    for number in 1..=4 {
        let id = number.to_string();
        let offer = Offer {
            handoff_id: id.clone(),
            from_session: "root".to_owned(),
            to_role: "inspector".to_owned(),
            summary: String::new(),
            slots: std::collections::BTreeMap::new(),
            labels: Vec::new(),
            expires_at: at(600),
        };
        state = state.apply(&WorkflowEvent::Offered(offer)).unwrap();
        if number != 2 {
            let declined = WorkflowEvent::Declined { handoff_id: id };
            state = state.apply(&declined).unwrap();
        }
    }
    state.forget_closed(1, |id| id.parse().unwrap());
    let known = |id: &str| state.offer_status(id, at(1));
    assert_eq!(known("1"), None);
    assert_eq!(known("2"), Some(OfferStatus::Open), "an open one stays");
    assert_eq!(known("3"), None);
    assert_eq!(known("4"), Some(OfferStatus::Declined));
    // What a session is told of a workflow leads to the same state, without what is over.
    let again = WorkflowState::from(state.view());
    assert_eq!(again.view(), state.view());
    assert_eq!(again.offer_status("2", at(1)), Some(OfferStatus::Open));
    assert_eq!(again.offer_status("4", at(1)), None);
}
