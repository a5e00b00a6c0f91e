//! What a session keeps to its members: nothing of it shows in scores, statuses, replays, refusals, handoffs or votes.

use field::{AUDITOR, Code, Config, Level, OBSERVER, Operation, SENIOR};
use serde_json::{Value, json};

use crate::common::{Lab, ids, key, unit};

/// A field at level 3 with `ann` and `bob` in the session `s`, and `eve` outside.
fn lab() -> Lab {
    let mut lab = Lab::with_agents(Level::Full, &["ann", "bob", "eve"]);
    for (agent, action) in [("ann", "create"), ("bob", "join")] {
        let session = json!({"action": action, "session": {"id": "s", "goal": "g"}});
        lab.ok(Operation::Session, agent, session);
    }
    lab
}

/// Does something in the session.
fn inside<T>(lab: &mut Lab, act: impl FnOnce(&mut Lab) -> T) -> T {
    lab.session = Some("s".into());
    let done = act(lab);
    lab.session = None;
    done
}

fn replay(lab: &mut Lab, agent: &str, kind: &str, id: &str) -> Value {
    let target = json!({"target_type": kind, "target_id": id, "depth": "full_trace"});
    lab.ok(Operation::Replay, agent, target)
}

fn task(action: &str, id: &str, more: Value) -> Value {
    let mut task = json!({"id": id, "title": "T"});
    for (name, value) in more.as_object().unwrap() {
        task[name] = value.clone();
    }
    json!({"action": action, "task": task})
}

#[test]
fn scores_do_not_depend_on_units_that_the_requester_cannot_see() {
    let scores = |hidden: &[&str]| {
        let mut lab = lab();
        let own = lab.note("eve", "probe Globex", &[]);
        lab.note("eve", "probe Zemblex and a few more words", &[]);
        for number in 0..5 {
            lab.note("ann", &format!("public note {number} on weather"), &[]);
        }
        inside(&mut lab, |lab| {
            for text in hidden {
                lab.note("bob", text, &[("supports", &own)]);
            }
        });
        let scope = json!({
            "scope": {"role": "analyst", "max_units": 99, "include_own": true, "interests": ["weather"]},
            "context_hint": "Globex Zemblex",
        });
        let answer = lab.ok(Operation::Attune, "eve", scope);
        let records = answer["record"].as_array().unwrap().clone();
        let shown = |record: &Value| {
            (
                record["memory_unit"]["content"].clone(),
                record["relevance_score"].clone(),
                record["relevance_reason"].clone(),
            )
        };
        let shown: Vec<_> = records.iter().map(shown).collect();
        let segment = lab.field.segment(0);
        let mut read = field::Field::new(Config::at(Level::Full));
        read.read_segment(&segment).unwrap();
        lab.field = read;
        let scope = json!({
            "scope": {"role": "analyst", "max_units": 99, "include_own": true, "interests": ["weather"]},
            "context_hint": "Globex Zemblex",
        });
        let again = lab.ok(Operation::Attune, "eve", scope);
        assert_eq!(again["record"], answer["record"], "a segment weighs alike");
        shown
    };
    let without = scores(&[]);
    assert_eq!(without.len(), 7);
    for hidden in [
        &["We acquire Globex on Friday"][..],
        &["We acquire Initex on Friday", "Zemblex Zemblex", "weather"],
    ] {
        assert_eq!(scores(hidden), without, "{hidden:?}");
    }
}

#[test]
fn a_notification_scores_by_what_its_subscriber_may_see() {
    let relevance = |hidden: &str| {
        let mut lab = lab();
        let interests = json!({"id": "ivy", "role": "r", "interests": ["Globex", "Zemblex"]});
        lab.ok(Operation::Register, "ivy", interests);
        let wanted =
            json!({"action": "subscribe", "subscription": {"events": ["memory.recorded"]}});
        lab.ok(Operation::Subscribe, "ivy", wanted);
        inside(&mut lab, |lab| lab.note("bob", hidden, &[]));
        lab.note("ann", "Globex was mentioned", &[]);
        let pushed = lab.pushed.last().unwrap().to_json();
        assert_eq!(lab.pushed.len(), 1);
        pushed["relevance_score"].clone()
    };
    assert_eq!(relevance("We buy Globex"), relevance("We buy nothing"));
}

#[test]
fn a_unit_is_not_contested_for_those_who_cannot_see_by_what() {
    let mut lab = lab();
    let open = lab.note("ann", "It is so", &[]);
    let wanted = json!({"action": "subscribe", "subscription": {"events": ["memory.contested"]}});
    lab.ok(Operation::Subscribe, "eve", wanted);
    inside(&mut lab, |lab| {
        lab.note("bob", "It is not", &[("contradicts", &open)])
    });
    assert_eq!(lab.status(&open), "contested");
    let scope = || json!({"scope": {"role": "analyst", "max_units": 9}});
    let status = |answer: &Value| {
        let records = answer["record"].as_array().unwrap();
        let mut units = records.iter().map(|record| &record["memory_unit"]);
        let unit = units.find(|unit| unit["id"] == open.as_str()).unwrap();
        unit["status"].clone()
    };
    let seen = lab.ok(Operation::Attune, "eve", scope());
    assert_eq!(
        (status(&seen), &seen["conflicts"]),
        (json!("active"), &json!([]))
    );
    let seen = lab.ok(Operation::Attune, "bob", scope());
    assert_eq!(status(&seen), "contested");
    assert_eq!(lab.pushed.len(), 0);
    let told = replay(&mut lab, "eve", "memory_unit", &open);
    let summary = told["summary"].as_str().unwrap();
    assert!(
        summary.contains("is active as far as you see."),
        "{summary}"
    );
    assert_eq!(
        lab.field.status_view(Some(&["eve"]))["units"],
        json!({"active": 1})
    );
    assert_eq!(
        lab.field.status_view(None)["units"],
        json!({"contested": 2})
    );
}

#[test]
fn ak_sec_08_a_summary_tells_nothing_that_the_timeline_hides() {
    let mut lab = lab();
    let (one, conflict) = inside(&mut lab, |lab| {
        lab.ok(Operation::Coordinate, "ann", task("create", "t", json!({})));
        lab.ok(
            Operation::Coordinate,
            "ann",
            task("assign", "t", json!({"assignee": "ann"})),
        );
        let more = json!({"intent": {"purpose": "p", "task_id": "t"}});
        let one = lab.unit("ann", "finding", "one", more);
        let two = json!({"relations": [{"type": "contradicts", "target_id": one}]});
        let two = lab.ok(Operation::Record, "bob", unit("finding", "two", two));
        let conflict = two["conflicts_detected"][0].as_str().unwrap().to_owned();
        lab.merge("ann", &conflict, "last_write_wins", json!({}))
            .unwrap();
        (one, conflict)
    });
    for (kind, id) in [
        ("memory_unit", one.as_str()),
        ("conflict", &conflict),
        ("task", "t"),
        ("session", "s"),
    ] {
        let told = replay(&mut lab, "eve", kind, id);
        assert_ne!(told["total_events"], 0);
        let timeline = told["timeline"].as_array().unwrap();
        assert!(timeline.iter().all(|event| event["agent_id"] == "redacted"));
        assert_eq!(told["agents_involved"], json!([]));
        let summary = told["summary"].as_str().unwrap();
        for word in [
            "last_write_wins",
            "resolved",
            "superseded",
            "assign",
            "recorded",
            "Resolved",
            "finding",
        ] {
            assert!(!summary.contains(word), "{kind}: {summary}");
        }
        // Members are told all of it.
        let told = replay(&mut lab, "ann", kind, id);
        assert_ne!(told["agents_involved"], json!([]));
    }
}

#[test]
fn a_step_of_a_hidden_task_is_named_nowhere_else() {
    let mut lab = lab();
    let wanted = json!({
        "action": "subscribe",
        "subscription": {"events": ["task.state_changed", "task.assigned", "task.completed"]},
    });
    lab.ok(Operation::Subscribe, "eve", wanted);
    inside(&mut lab, |lab| {
        lab.ok(
            Operation::Coordinate,
            "ann",
            task("create", "t", json!({"assignee": "ann"})),
        )
    });
    // A member works on it without naming the session.
    lab.ok(Operation::Coordinate, "ann", task("start", "t", json!({})));
    lab.ok(
        Operation::Coordinate,
        "ann",
        task("complete", "t", json!({})),
    );
    assert_eq!(lab.pushed.len(), 0, "{:?}", lab.pushed);
    let told = replay(&mut lab, "eve", "task", "t");
    let timeline = told["timeline"].as_array().unwrap();
    assert_eq!(timeline.len(), 3);
    assert!(
        timeline.iter().all(|event| event["task_id"].is_null()),
        "{told}"
    );
    assert_eq!(timeline[1]["description"], "Task start: (redacted)");
    let told = replay(&mut lab, "bob", "task", "t");
    assert_eq!(told["timeline"][1]["description"], "Task start: t");
    assert_eq!(told["timeline"][1]["task_id"], "t");
}

#[test]
fn a_hidden_task_is_as_good_as_none_to_depend_on() {
    let mut lab = lab();
    inside(&mut lab, |lab| {
        lab.ok(
            Operation::Coordinate,
            "ann",
            task("create", "hidden", json!({})),
        )
    });
    let mut message = |on: &str| {
        let payload = task("create", "mine", json!({"depends_on": [on]}));
        let refusal = lab.send(Operation::Coordinate, "eve", payload).unwrap_err();
        (refusal.code(), refusal.to_string())
    };
    let missing = message("missing");
    assert_eq!(missing.0, Code::UnitNotFound);
    assert_eq!(message("hidden"), missing);
}

#[test]
fn an_auditor_sees_everything_only_with_the_key_of_the_operator() {
    let mut lab = lab();
    let hidden = inside(&mut lab, |lab| lab.note("ann", "The secret is out", &[]));
    let mut told = |agent: &str, ceiling: u8| {
        lab.caller = Some(key(agent, ceiling));
        lab.join(agent, AUDITOR);
        replay(&mut lab, agent, "memory_unit", &hidden).to_string()
    };
    for (agent, ceiling) in [("reader", OBSERVER), ("writer", SENIOR)] {
        let told = told(agent, ceiling);
        assert!(
            !told.contains("secret") && told.contains("(redacted)"),
            "{told}"
        );
    }
    assert!(told("auditor", field::OPERATOR).contains("The secret is out"));
}

#[test]
fn work_of_a_session_goes_to_those_who_can_do_it_there() {
    let mut lab = lab();
    lab.join("boss", 8);
    inside(&mut lab, |lab| {
        lab.ok(
            Operation::Coordinate,
            "ann",
            task("create", "t", json!({"assignee": "ann"})),
        );
        let others = task("create", "u", json!({"assignee": "eve"}));
        assert_eq!(
            lab.code(Operation::Coordinate, "ann", others),
            Code::Forbidden
        );
        let to_eve = task("assign", "t", json!({"assignee": "eve"}));
        assert_eq!(
            lab.code(Operation::Coordinate, "ann", to_eve),
            Code::Forbidden
        );
    });
    let offer = |to: &str| json!({"action": "offer", "task_id": "t", "to_agent": to, "context": {"summary": "all of it"}});
    assert_eq!(
        lab.code(Operation::Handoff, "ann", offer("eve")),
        Code::Forbidden
    );
    let of_label = json!({"action": "offer", "task_id": "loose", "to_agent": "eve"});
    inside(&mut lab, |lab| {
        assert_eq!(
            lab.code(Operation::Handoff, "ann", offer("eve")),
            Code::Forbidden
        );
        assert_eq!(
            lab.code(Operation::Handoff, "ann", of_label),
            Code::Forbidden
        );
        // Whoever is above sessions may get it.
        lab.ok(Operation::Handoff, "ann", offer("boss"));
    });
    // Whoever left in between does not get it any more.
    let offered = lab.ok(Operation::Handoff, "ann", offer("bob"))["handoff_id"].clone();
    let leave = json!({"action": "leave", "session": {"id": "s"}});
    lab.ok(Operation::Session, "bob", leave);
    let accept = json!({"action": "accept", "handoff_id": offered});
    assert_eq!(lab.code(Operation::Handoff, "bob", accept), Code::Forbidden);
}

#[test]
fn sessions_stay_closed_at_a_level_that_makes_none() {
    let mut lab = lab();
    let hidden = inside(&mut lab, |lab| lab.note("ann", "The secret is out", &[]));
    for level in [Level::Starter, Level::Core, Level::Standard] {
        let mut lower = lab.copied(Config::at(level));
        for ceiling in [OBSERVER, SENIOR] {
            lower.caller = Some(key("anybody", ceiling));
            let scope = json!({"scope": {"role": "analyst", "max_units": 9}});
            let seen = lower.ok(Operation::Attune, "eve", scope);
            assert_eq!(ids(&seen), Vec::<String>::new(), "{level:?}");
            assert_eq!(lower.field.status_view(Some(&["eve"]))["units"], json!({}));
            if level == Level::Standard {
                let told = replay(&mut lower, "eve", "memory_unit", &hidden);
                assert!(!told.to_string().contains("secret"), "{told}");
            }
        }
        lower.caller = Some(key("anybody", SENIOR));
        lower.session = Some("s".into());
        let record = unit("finding", "let me in", json!({}));
        assert_eq!(
            lower.code(Operation::Record, "eve", record),
            Code::Forbidden
        );
        lower.session = None;
        assert_eq!(lower.seen_by("bob"), [hidden.as_str()], "members go on");
    }
}

#[test]
fn a_vote_in_a_session_is_won_by_its_members() {
    let mut lab = lab();
    for outside in ["fay", "gus", "hal"] {
        lab.join(outside, 4);
    }
    inside(&mut lab, |lab| {
        let (one, _, conflict) = lab.conflict(("ann", 0.5), ("bob", 0.5));
        let vote = |lab: &mut Lab, agent: &str| {
            let voted = lab.merge(agent, &conflict, "vote", json!({"winner_id": one}));
            voted.unwrap()["status"].clone()
        };
        assert_eq!(vote(lab, "ann"), "pending_vote");
        assert_eq!(vote(lab, "bob"), "resolved");
    });
}

#[test]
fn a_purge_reaches_what_the_field_made_of_the_words() {
    let mut lab = Lab::at(Level::Full);
    for (agent, authority) in [("ann", 6), ("bob", 6), ("boss", 10)] {
        lab.join(agent, authority);
    }
    let compact =
        |strategy: &str, kind: &str| json!({"strategy": strategy, "filter": {"types": [kind]}});
    // A summary of a summary, and the synthesis of a merge.
    lab.unit(
        "ann",
        "observation",
        "The password is swordfish.",
        json!({}),
    );
    lab.ok(
        Operation::Compact,
        "boss",
        compact("summarize", "observation"),
    );
    let summary = lab.seen_by("ann");
    lab.ok(
        Operation::Compact,
        "boss",
        compact("summarize", "synthesis"),
    );
    let again = lab.seen_by("ann");
    assert_eq!((summary.len(), again.len()), (1, 1));
    let more = json!({"relations": [{"type": "contradicts", "target_id": summary[0]}]});
    let other = lab.ok(
        Operation::Record,
        "bob",
        unit("finding", "It is not.", more),
    );
    let conflict = other["conflicts_detected"][0].as_str().unwrap();
    let merged = lab.merge(
        "bob",
        conflict,
        "synthesis",
        json!({"synthesis": "swordfish or not"}),
    );
    let synthesis = merged.unwrap()["side_effects"]["new_unit_id"].clone();
    // What an agent recorded about it is its own.
    let own = lab.unit(
        "bob",
        "synthesis",
        "my words",
        json!({"relations": [{"type": "elaborates", "target_id": summary[0]}]}),
    );
    let purged = lab.ok(Operation::Compact, "boss", compact("purge", "observation"));
    assert_eq!(purged["units_affected"], 4, "{purged}");
    assert_eq!(
        purged["derived_units"],
        json!([summary[0], again[0], synthesis])
    );
    assert_eq!(purged["derived_units_kept"], json!([]));
    let texts = lab
        .log
        .iter()
        .filter_map(|(_, content)| content.as_ref()?.text.as_ref());
    let texts: Vec<&str> = texts.map(|text| text.content.as_str()).collect();
    assert_eq!(texts, ["It is not.", "my words"]);
    assert!(lab.field.text_of(&own).is_some());
    // One that is in dispute is named instead.
    lab.unit("ann", "question", "Is it swordfish?", json!({}));
    lab.ok(Operation::Compact, "boss", compact("summarize", "question"));
    let seen = lab.ok(
        Operation::Attune,
        "ann",
        json!({"scope": {"role": "r", "max_units": 9, "include_own": true}}),
    );
    let records = seen["record"].as_array().unwrap();
    let mut units = records.iter().map(|record| &record["memory_unit"]);
    let made = units
        .find(|unit| unit["content"].as_str().unwrap().contains("Is it"))
        .unwrap();
    let made = made["id"].as_str().unwrap().to_owned();
    lab.note("bob", "It is not", &[("contradicts", &made)]);
    let purged = lab.ok(Operation::Compact, "boss", compact("purge", "question"));
    assert_eq!(
        (&purged["derived_units"], &purged["derived_units_kept"]),
        (&json!([]), &json!([made]))
    );
}
