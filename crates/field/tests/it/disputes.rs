//! What an open conflict may cost others: nobody is kept from seeing, settling or forgetting by conflicts that anybody begins.

use field::{Code, Config, Level, Operation};
use serde_json::{Value, json};

use crate::common::{Lab, ids, related, unit};

const PURGE_FINDINGS: &str = "finding";

fn purge(lab: &mut Lab, kind: &str) -> Value {
    let payload = json!({"strategy": "purge", "filter": {"types": [kind]}, "reason": "asked for"});
    lab.ok(Operation::Compact, "human", payload)
}

/// Agents that record, one that may only look, and the operator.
fn lab() -> Lab {
    with(Config::at(Level::Full))
}

fn with(config: Config) -> Lab {
    let mut lab = Lab::with(config);
    for (agent, authority) in [("ann", 6), ("bob", 6), ("eve", 2), ("human", 10)] {
        lab.join(agent, authority);
    }
    lab
}

/// Records a draft of the one who may only look.
fn draft(lab: &mut Lab, contradicted: &[&str]) -> Value {
    let relations: Vec<(&str, &str)> = contradicted
        .iter()
        .map(|unit| ("contradicts", *unit))
        .collect();
    let more = json!({"mode": "draft", "relations": related(&relations)});
    lab.ok(Operation::Record, "eve", unit("observation", "no", more))
}

fn session(lab: &mut Lab, agent: &str, action: &str) {
    let session = json!({"id": "s", "goal": "g"});
    let payload = json!({"action": action, "session": session});
    lab.ok(Operation::Session, agent, payload);
}

#[test]
fn the_operator_settles_what_an_ended_session_left_open() {
    for (strategy, more) in [
        ("last_write_wins", json!({})),
        ("synthesis", json!({"synthesis": "both, at times"})),
    ] {
        let mut lab = lab();
        session(&mut lab, "ann", "create");
        lab.session = Some("s".into());
        let (one, two, conflict) = lab.conflict(("ann", 0.5), ("ann", 0.4));
        lab.session = None;
        session(&mut lab, "human", "end");
        let of_bob = lab.merge("bob", &conflict, strategy, more.clone());
        assert_eq!(of_bob.unwrap_err().code(), Code::ConflictNotFound);
        let vote = lab.merge("human", &conflict, "vote", json!({"winner_id": one}));
        assert_eq!(
            vote.unwrap_err().code(),
            Code::ConflictNotFound,
            "the members vote"
        );
        assert_eq!(
            purge(&mut lab, PURGE_FINDINGS)["units_kept"],
            json!([one, two])
        );
        let merged = lab.merge("human", &conflict, strategy, more).unwrap();
        assert_eq!(merged["status"], "resolved");
        assert_eq!(
            lab.seen_by("bob"),
            Vec::<String>::new(),
            "what was made of the session's units belongs to it"
        );
        let purged = purge(&mut lab, PURGE_FINDINGS);
        assert_eq!(purged["units_kept"], json!([]));
        assert!(lab.field.text_of(&one).is_none() && lab.field.text_of(&two).is_none());
        assert_eq!(
            lab.refolded().status_view(None),
            lab.field.status_view(None)
        );
    }
}

#[test]
fn a_draft_keeps_nothing_from_being_purged() {
    let mut lab = lab();
    let private = lab.note("ann", "private words", &[]);
    let other = lab.unit("bob", "decision", "another matter", json!({}));
    let answer = draft(&mut lab, &[&private, &other]);
    let drafted = answer["memory_unit_id"].as_str().unwrap().to_owned();
    let conflict = answer["conflicts_detected"][0].as_str().unwrap().to_owned();
    let purged = purge(&mut lab, PURGE_FINDINGS);
    assert_eq!(
        (&purged["units_affected"], &purged["units_kept"]),
        (&json!(1), &json!([]))
    );
    assert!(lab.field.text_of(&private).is_none());
    // The conflict ended with it; the one with the other unit goes on.
    let view = lab.field.conflicts_view(None, None, None).unwrap();
    let open = view["conflicts"].as_array().unwrap();
    assert_eq!(open.len(), 1);
    assert_eq!(open[0]["unit_a"], json!(other));
    assert_eq!(lab.status(&drafted), "contested");
    let target = json!({"target_type": "conflict", "target_id": conflict, "depth": "detailed"});
    let replayed = lab.ok(Operation::Replay, "ann", target);
    let summary = replayed["summary"].as_str().unwrap();
    assert!(summary.contains("is resolved"), "{summary}");
    purge(&mut lab, "decision");
    assert_eq!(lab.status(&drafted), "draft", "it stands as before");
    assert_eq!(
        lab.refolded().status_view(None),
        lab.field.status_view(None)
    );
    // The draft itself can go too.
    let unit = lab.note("ann", "more", &[]);
    draft(&mut lab, &[&unit]);
    let purged = purge(&mut lab, "observation");
    assert_eq!(purged["units_affected"], 2);
    assert_eq!(lab.status(&unit), "active");
}

#[test]
fn a_purge_names_what_a_conflict_between_committed_units_keeps() {
    let mut lab = lab();
    let (one, two, conflict) = lab.conflict(("ann", 0.5), ("bob", 0.4));
    let free = lab.note("ann", "free", &[]);
    draft(&mut lab, &[&one]);
    let purged = purge(&mut lab, PURGE_FINDINGS);
    assert_eq!(purged["units_affected"], 1);
    assert_eq!(purged["units_kept"], json!([one, two]));
    assert!(lab.field.text_of(&free).is_none() && lab.field.text_of(&one).is_some());
    lab.merge("ann", &conflict, "last_write_wins", json!({}))
        .unwrap();
    let purged = purge(&mut lab, PURGE_FINDINGS);
    assert_eq!(
        (&purged["units_affected"], &purged["units_kept"]),
        (&json!(2), &json!([]))
    );
}

fn attune(lab: &mut Lab, agent: &str, more: Value) -> Value {
    let mut scope = json!({"role": "analyst", "max_units": 50});
    for (name, value) in more.as_object().unwrap() {
        scope[name] = value.clone();
    }
    lab.ok(Operation::Attune, agent, json!({"scope": scope}))
}

#[test]
fn drafts_do_not_use_up_the_tokens_of_others() {
    let mut lab = lab();
    let units: Vec<String> = (0..20)
        .map(|number| lab.note("ann", &format!("knowledge {number} about harbours"), &[]))
        .collect();
    let budget = json!({"max_tokens": 2_000, "committed_only": true});
    let before = ids(&attune(&mut lab, "bob", budget.clone())).len();
    assert!(before > 5);
    let named: Vec<&str> = units.iter().map(String::as_str).collect();
    for _ in 0..30 {
        draft(&mut lab, &named);
    }
    let answer = attune(&mut lab, "bob", budget);
    assert_eq!(ids(&answer).len(), before);
    assert_eq!(
        answer["conflicts"],
        json!([]),
        "no drafts, no conflicts with them"
    );
    assert_eq!(answer["context_budget"]["conflicts_omitted"], json!(null));

    let answer = attune(&mut lab, "bob", json!({"max_tokens": 2_000}));
    let used = answer["context_budget"]["tokens_used"].as_u64().unwrap();
    assert!(used <= 2_000);

    // Without a budget a unit still brings ten of its conflicts at most, and the answer says how many it left out.
    let answer = attune(&mut lab, "ann", json!({"include_own": true}));
    let listed = answer["conflicts"].as_array().unwrap();
    let of_first = |conflict: &&Value| conflict["unit_a"] == units[0].as_str();
    assert!((10..=30).contains(&listed.iter().filter(of_first).count()));
    assert!(listed.len() < 600);
    assert_eq!(
        answer["context_budget"]["conflicts_omitted"],
        json!(600 - listed.len())
    );
}

#[test]
fn conflicts_between_committed_units_are_shown_before_those_with_drafts() {
    let mut lab = lab();
    let (one, _, conflict) = lab.conflict(("ann", 0.5), ("bob", 0.4));
    for _ in 0..30 {
        draft(&mut lab, &[&one]);
    }
    let own = attune(&mut lab, "ann", json!({"max_tokens": 300, "max_units": 1}));
    let listed = own["conflicts"].as_array().unwrap();
    let mut shown = listed.iter().map(|conflict| &conflict["id"]);
    assert!(shown.any(|id| *id == json!(conflict)), "{own}");
}

#[test]
fn lists_of_conflicts_come_in_pages() {
    let mut config = Config::at(Level::Full);
    config.limits.conflicts_listed_max = 3;
    let mut lab = with(config);
    let unit = lab.note("ann", "x", &[]);
    let made: Vec<Value> = (0..7)
        .map(|_| draft(&mut lab, &[&unit])["conflicts_detected"][0].clone())
        .collect();
    let named = |answer: &Value| -> Vec<Value> {
        let conflicts = answer["conflicts"].as_array().unwrap();
        conflicts
            .iter()
            .map(|conflict| conflict["id"].clone())
            .collect()
    };
    let (mut viewed, mut detected) = (Vec::new(), Vec::new());
    let (mut cursor, mut pages) = (None::<String>, 0);
    loop {
        let view = lab
            .field
            .conflicts_view(Some(&["bob"]), Some(99), cursor.as_deref())
            .unwrap();
        let payload = json!({"mode": "list", "cursor": cursor});
        let answer = lab.ok(Operation::Detect, "bob", payload);
        assert_eq!(
            (&view["conflicts_total"], &answer["conflicts_total"]),
            (&json!(7), &json!(7))
        );
        assert_eq!(view["next_cursor"], answer["next_cursor"]);
        viewed.extend(named(&view));
        detected.extend(named(&answer));
        pages += 1;
        match view["next_cursor"].as_str() {
            Some(next) => cursor = Some(next.to_owned()),
            None => break,
        }
    }
    assert_eq!((viewed, detected, pages), (made.clone(), made.clone(), 3));
    assert!(
        lab.field
            .conflicts_view(None, None, Some("conflict_none"))
            .is_none()
    );
    let wrong = json!({"mode": "list", "cursor": "conflict_none"});
    assert_eq!(
        lab.code(Operation::Detect, "bob", wrong),
        Code::InvalidRequest
    );
    let short = lab.ok(
        Operation::Detect,
        "bob",
        json!({"mode": "list", "limit": 2}),
    );
    assert_eq!(named(&short), made[..2]);
    // One page holds everything: then nothing is said about others.
    let few = json!({"mode": "list", "filter": {"status": ["resolved"]}});
    let few = lab.ok(Operation::Detect, "bob", few);
    assert!(few.get("conflicts_total").is_none() && few.get("next_cursor").is_none());
}

fn growth(lab: &mut Lab, agent: &str, percent: usize) -> Value {
    let content =
        format!("the market for green tea in the north grows by {percent} percent a year");
    let more = json!({"intent": {"purpose": "p", "task_id": "t"}});
    lab.ok(Operation::Record, agent, unit("finding", &content, more))
}

#[test]
fn automatic_detection_adds_a_bounded_number_of_conflicts() {
    let mut config = Config::at(Level::Full);
    config.limits.found_per_record_max = 4;
    config.limits.found_per_scan_max = 5;
    let mut lab = with(config);
    for percent in 0..9 {
        growth(&mut lab, "ann", percent);
    }
    let answer = growth(&mut lab, "bob", 10);
    assert_eq!(answer["conflicts_detected"].as_array().unwrap().len(), 4);
    let mut counts = Vec::new();
    for percent in [11, 12] {
        growth(&mut lab, "bob", percent);
    }
    for _ in 0..5 {
        let found = lab.ok(Operation::Detect, "ann", json!({"mode": "scan"}));
        counts.push(
            found["scan_coverage"]["new_conflicts_found"]
                .as_u64()
                .unwrap(),
        );
    }
    assert_eq!(
        counts,
        [5, 5, 5, 0, 0],
        "what one leaves, the next ones find"
    );
}

#[test]
fn drafts_of_one_key_begin_a_bounded_number_of_conflicts() {
    let mut config = Config::at(Level::Full);
    config.limits.draft_conflicts_max = 3;
    let mut lab = with(config);
    lab.join("eva", 2);
    let units: Vec<String> = (0..3).map(|_| lab.note("ann", "x", &[])).collect();
    let all: Vec<&str> = units.iter().map(String::as_str).collect();
    let made = draft(&mut lab, &all);
    let more = json!({"mode": "draft", "relations": related(&[("contradicts", all[0])])});
    let again = unit("observation", "no", more);
    for agent in ["eve", "eva"] {
        let code = lab.code(Operation::Record, agent, again.clone());
        assert_eq!(code, Code::InvalidTransition, "{agent} has the same key");
    }
    lab.note(
        "ann",
        "whoever commits is not concerned",
        &[("contradicts", all[0])],
    );
    draft(&mut lab, &[]);
    let conflict = made["conflicts_detected"][0].as_str().unwrap();
    let winner = json!({"winner_id": units[0]});
    lab.merge("ann", conflict, "authority", winner).unwrap();
    lab.ok(Operation::Record, "eva", again.clone());
    lab.code(Operation::Record, "eve", again);
}

#[test]
fn a_unit_is_contested_for_each_by_the_first_conflict_that_they_see() {
    let mut lab = lab();
    let open = lab.note("human", "it dissolves", &[]);
    let wanted =
        || json!({"action": "subscribe", "subscription": {"events": ["memory.contested"]}});
    for agent in ["human", "ann"] {
        lab.ok(Operation::Subscribe, agent, wanted());
    }
    session(&mut lab, "ann", "create");
    session(&mut lab, "bob", "join");
    lab.session = Some("s".into());
    lab.note("bob", "it does not", &[("contradicts", &open)]);
    lab.session = None;
    let heard = |lab: &mut Lab| -> Vec<String> {
        let pushed = std::mem::take(&mut lab.pushed);
        let about = |agent: &str| {
            let of_open = pushed.iter().filter(|push| push.agent_id == agent);
            of_open
                .filter(|push| push.to_json()["memory_unit_id"] == open.as_str())
                .count()
        };
        ["human", "ann"]
            .into_iter()
            .flat_map(|agent| vec![agent.to_owned(); about(agent)])
            .collect()
    };
    assert_eq!(heard(&mut lab), ["ann"], "the other one is not a member");
    lab.note("bob", "not at all", &[("contradicts", &open)]);
    assert_eq!(
        heard(&mut lab),
        ["human"],
        "for ann it was contested before"
    );
    lab.note("bob", "never", &[("contradicts", &open)]);
    draft(&mut lab, &[&open]);
    assert_eq!(heard(&mut lab), Vec::<String>::new());
}
