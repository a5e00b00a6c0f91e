//! Answers that are given again: what is kept of them, and what a purge leaves.

use field::{CompactStrategy, Event, Level, Operation};
use serde_json::{Value, json};

use crate::common::{Lab, key, related, unit};

/// Sends a message under an id and returns its answer.
fn said(lab: &mut Lab, operation: Operation, agent: &str, id: &str, payload: Value) -> Value {
    let mut envelope = lab.envelope(operation, agent, payload);
    envelope["id"] = json!(id);
    lab.send_envelope(&envelope).unwrap()
}

fn kept(lab: &Lab, agent: &str, id: &str) -> String {
    lab.answers[&(agent.to_owned(), id.to_owned())].to_string()
}

#[test]
fn what_is_kept_of_a_read_repeats_no_words_and_gives_the_answer_of_then() {
    let mut lab = Lab::with_agents(Level::Full, &["ann", "bob"]);
    let long = "a sentence that nobody should have to store twice ".repeat(200);
    let first = lab.note("ann", &long, &[]);
    lab.note("ann", "another thing", &[("supports", &first)]);
    let (_, second, conflict) = lab.conflict(("ann", 0.9), ("bob", 0.1));
    let scope = json!({"scope": {"role": "analyst", "max_units": 10}});
    let replay = json!({"target_type": "memory_unit", "target_id": first, "depth": "full_trace"});
    let asked = [
        (Operation::Attune, "a", scope),
        (Operation::Replay, "r", replay),
        (Operation::Detect, "d", json!({"mode": "list"})),
    ];
    let before: Vec<Value> = asked
        .iter()
        .map(|(operation, id, payload)| said(&mut lab, *operation, "bob", id, payload.clone()))
        .collect();
    assert!(before[0].to_string().contains("nobody should have to"));
    assert_eq!(before[0]["conflicts"][0]["status"], "detected");
    for (_, id, _) in &asked {
        let kept = kept(&lab, "bob", id);
        assert!(!kept.contains("nobody should have to"), "{kept}");
        assert!(kept.len() < 1_500, "{id}: {}", kept.len());
    }
    // What is asked about changes; the answers that were given do not.
    lab.merge("ann", &conflict, "confidence_weighted", json!({}))
        .unwrap();
    lab.note("ann", "newer", &[("supersedes", &first)]);
    assert_eq!(lab.status(&second), "superseded");
    for ((operation, id, payload), before) in asked.iter().zip(&before) {
        let mut envelope = lab.envelope(*operation, "bob", payload.clone());
        envelope["id"] = json!(id);
        assert_eq!(lab.send_envelope(&envelope).unwrap(), *before, "{id}");
    }
}

#[test]
fn hidden_events_stay_hidden_in_an_answer_that_is_given_again() {
    let mut lab = Lab::with_agents(Level::Full, &["ann", "bob"]);
    let session = json!({"action": "create", "session": {"id": "s", "goal": "g"}});
    lab.ok(Operation::Session, "ann", session);
    lab.session = Some("s".into());
    let hidden = lab.note("ann", "the secret", &[]);
    lab.session = None;
    let payload =
        || json!({"target_type": "memory_unit", "target_id": hidden, "depth": "full_trace"});
    let before = said(&mut lab, Operation::Replay, "bob", "r", payload());
    assert_eq!(before["timeline"][0]["agent_id"], "redacted");
    // Whoever joins later may ask again, and that is another message.
    let join = json!({"action": "join", "session": {"id": "s"}});
    lab.ok(Operation::Session, "bob", join);
    let again = said(&mut lab, Operation::Replay, "bob", "r", payload());
    assert_eq!(again, before);
    let now = lab.ok(Operation::Replay, "bob", payload());
    assert_eq!(now["timeline"][0]["agent_id"], "ann");
}

#[test]
fn ak_log_06_a_purge_names_all_that_is_to_be_erased_beside_the_log() {
    let mut lab = Lab::at(Level::Full);
    lab.join("boss", 10);
    let unit = lab.note("boss", "the secret", &[]);
    let other = lab.unit("boss", "decision", "stays", json!({}));
    let scope = json!({"scope": {"role": "r", "max_units": 9, "include_own": true}});
    lab.ok(Operation::Attune, "boss", scope);
    let text_of = |lab: &Lab, unit: &str| lab.field.text_of(unit).unwrap().sha256();
    let (secret, stays) = (text_of(&lab, &unit), text_of(&lab, &other));
    let purge = json!({"strategy": "purge", "filter": {"types": ["finding"]}});
    lab.ok(Operation::Compact, "boss", purge);
    let Event::Compacted {
        strategy, erased, ..
    } = &lab.log.last().unwrap().0.event
    else {
        panic!("the last entry is the purge");
    };
    assert_eq!(*strategy, CompactStrategy::Purge);
    assert!(erased.contains(&secret) && !erased.contains(&stays));
    assert_eq!(erased.len(), 1, "answers hold no words: {erased:?}");
}

#[test]
fn a_draft_contests_nothing_that_somebody_stands_for() {
    for level in [Level::Standard, Level::Full] {
        let mut lab = Lab::with_agents(level, &["ann"]);
        lab.join("reader", 2);
        let committed = lab.note("ann", "it holds", &[]);
        let more = json!({"mode": "draft", "relations": related(&[("contradicts", &committed)])});
        lab.caller = Some(key("reader", 2));
        let answer = lab.ok(Operation::Record, "reader", unit("finding", "no", more));
        let draft = answer["memory_unit_id"].as_str().unwrap().to_owned();
        // The conflict is there, as for every such relation; the status of what others stand for is not theirs to change.
        assert_eq!(answer["conflicts_detected"].as_array().unwrap().len(), 1);
        assert_eq!(lab.status(&committed), "active");
        assert_eq!(lab.status(&draft), "contested");
        let more = json!({"mode": "draft", "relations": related(&[("contradicts", &draft)])});
        let answer = lab.ok(Operation::Record, "reader", unit("finding", "or not", more));
        assert_eq!(
            lab.status(answer["memory_unit_id"].as_str().unwrap()),
            "contested"
        );
        lab.caller = Some(key("operator", 10));
        lab.note("ann", "it fails", &[("contradicts", &committed)]);
        assert_eq!(lab.status(&committed), "contested");
        let conflict = lab.ok(Operation::Detect, "ann", json!({"mode": "list"}));
        let conflict = conflict["conflicts"][0]["id"].as_str().unwrap().to_owned();
        lab.merge(
            "ann",
            &conflict,
            "authority",
            json!({"winner_id": committed}),
        )
        .unwrap();
        assert_eq!(lab.status(&draft), "superseded");
    }
}

#[test]
fn ak_att_10_conflicts_count_in_the_budget() {
    let mut lab = Lab::with_agents(Level::Standard, &["ann", "bob"]);
    for number in 0..20 {
        let first = lab.note("ann", &format!("it holds {number}"), &[]);
        lab.note(
            "bob",
            &format!("it fails {number}"),
            &[("contradicts", &first)],
        );
    }
    let tokens = |value: &Value| value.to_string().len() as u64 / 4;
    for budget in [1, 200, 500, 2_000] {
        let scope = json!({"scope": {"role": "analyst", "max_units": 100, "max_tokens": budget}});
        let answer = lab.ok(Operation::Attune, "ann", scope);
        let stated = &answer["context_budget"];
        assert!(
            stated["tokens_used"].as_u64().unwrap() <= budget,
            "{stated}"
        );
        let shown: u64 = answer["record"]
            .as_array()
            .unwrap()
            .iter()
            .map(|record| tokens(&record["memory_unit"]))
            .sum();
        let conflicts = answer["conflicts"].as_array().unwrap();
        let beside: u64 = conflicts.iter().map(tokens).sum();
        assert!(
            shown + beside <= budget + 40,
            "{shown} {beside} of {budget}"
        );
        let omitted = stated["conflicts_omitted"].as_u64().unwrap_or(0);
        assert_eq!(
            conflicts.len() as u64 + omitted,
            20,
            "what is left out is counted"
        );
        // Whatever is shown comes with its conflicts.
        for record in answer["record"].as_array().unwrap() {
            let id = &record["memory_unit"]["id"];
            let names = |conflict: &Value| conflict["unit_a"] == *id || conflict["unit_b"] == *id;
            assert!(conflicts.iter().any(names), "{id}");
        }
    }
    let all = json!({"scope": {"role": "analyst", "max_units": 100}});
    let answer = lab.ok(Operation::Attune, "ann", all);
    assert_eq!(answer["conflicts"].as_array().unwrap().len(), 20);
    assert!(answer["context_budget"].get("conflicts_omitted").is_none());
}

#[test]
fn a_task_of_a_session_is_for_its_members() {
    let mut lab = Lab::with_agents(Level::Full, &["ann", "bob"]);
    lab.ok(
        Operation::Session,
        "ann",
        json!({"action": "create", "session": {"id": "s", "goal": "g"}}),
    );
    lab.session = Some("s".into());
    let create = json!({"action": "create", "task": {"id": "t", "title": "the secret"}});
    lab.ok(Operation::Coordinate, "ann", create);
    lab.session = None;
    let take = || json!({"action": "assign", "task": {"id": "t", "assignee": "bob"}});
    let code = lab.code(Operation::Coordinate, "bob", take());
    assert_eq!(code, field::Code::UnitNotFound);
    lab.ok(
        Operation::Session,
        "bob",
        json!({"action": "join", "session": {"id": "s"}}),
    );
    lab.ok(Operation::Coordinate, "bob", take());
}

#[test]
fn the_task_of_a_session_that_an_agent_works_on_is_for_its_members() {
    let mut lab = Lab::with_agents(Level::Full, &["ann", "bob"]);
    lab.ok(
        Operation::Session,
        "ann",
        json!({"action": "create", "session": {"id": "s", "goal": "g"}}),
    );
    let act = |action: &str, id: &str| json!({"action": action, "task": {"id": id, "title": "t", "assignee": "ann"}});
    let task = |lab: &Lab, viewers: Option<&[&str]>| {
        lab.field.agents_view(viewers)["agents"][0]["current_task_id"].clone()
    };
    lab.session = Some("s".into());
    for action in ["create", "start"] {
        lab.ok(Operation::Coordinate, "ann", act(action, "merge-with-x"));
    }
    for viewers in [None, Some(&["ann"][..]), Some(&["bob", "ann"][..])] {
        assert_eq!(task(&lab, viewers), "merge-with-x");
    }
    for viewers in [Some(&["bob"][..]), Some(&[][..])] {
        assert_eq!(task(&lab, viewers), json!(null));
    }
    lab.session = None;
    for action in ["create", "start"] {
        lab.ok(Operation::Coordinate, "ann", act(action, "open"));
    }
    assert_eq!(task(&lab, Some(&["bob"][..])), "open");
}

#[test]
fn a_refusal_for_want_of_authority_says_what_it_takes() {
    let merge = || json!({"conflict_id": "c", "strategy": "last_write_wins", "resolution": {"rationale": "r"}});
    let mut lab = Lab::at(Level::Standard);
    lab.join("a", 4);
    lab.caller = Some(key("reader", 2));
    let refusal = lab.send(Operation::Merge, "a", merge()).unwrap_err();
    assert_eq!(
        refusal.message(),
        "this needs a key with the scope `field:write`"
    );
    let mut lab = Lab::at(Level::Full);
    lab.join("a", 4);
    let refusal = lab.send(Operation::Merge, "a", merge()).unwrap_err();
    assert_eq!(
        refusal.message(),
        "this needs authority 6, and the sender is registered with 4"
    );
    lab.caller = Some(key("writer", 6));
    let purge = json!({"strategy": "purge", "filter": {"max_age_epochs": 0}});
    let refusal = lab.send(Operation::Compact, "a", purge).unwrap_err();
    assert_eq!(
        refusal.message(),
        "this needs authority 6, and the sender is registered with 4"
    );
    lab.caller = Some(key("reader", 2));
    let refusal = lab.send(Operation::Merge, "a", merge()).unwrap_err();
    assert_eq!(
        refusal.message(),
        "this needs authority 4, which takes a key with the scope `field:write`"
    );
}

#[test]
fn a_summary_counts_in_plain_words() {
    let mut lab = Lab::with_agents(Level::Standard, &["ann"]);
    lab.unit(
        "ann",
        "finding",
        "x",
        json!({"intent": {"purpose": "p", "task_id": "t"}}),
    );
    let payload = json!({"target_type": "task", "target_id": "t", "depth": "summary"});
    let answer = lab.ok(Operation::Replay, "ann", payload);
    let summary = answer["summary"].as_str().unwrap();
    assert!(
        summary.starts_with("Task t has 1 recorded unit."),
        "{summary}"
    );
}

#[test]
fn ak_sec_07_views_show_a_key_what_its_agents_see() {
    let mut lab = Lab::with_agents(Level::Full, &["ann", "bob"]);
    lab.ok(
        Operation::Session,
        "ann",
        json!({"action": "create", "session": {"id": "s", "goal": "g"}}),
    );
    lab.session = Some("s".into());
    lab.note("ann", "the secret", &[]);
    lab.session = None;
    lab.note("bob", "open", &[]);
    let units = |caller: &field::Caller| {
        let viewers = lab.field.viewers(caller);
        lab.field.status_view(viewers.as_deref())["units"].clone()
    };
    let of = |agent: &str, ceiling: u8| field::Caller {
        key: "k".into(),
        ceiling,
        agents: vec![agent.into()],
    };
    assert_eq!(units(&of("ann", 6)), json!({"active": 2}));
    assert_eq!(units(&of("bob", 6)), json!({"active": 1}));
    assert_eq!(units(&of("nobody", 2)), json!({"active": 1}));
    assert_eq!(units(&of("nobody", 10)), json!({"active": 2}));
}
