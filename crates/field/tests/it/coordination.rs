//! HANDOFF, COORDINATE and SESSION; who sees what; subscriptions.

use domain::Timestamp;
use field::{Administration, Code, Config, Debouncer, Field, Level, Operation, administer};
use serde_json::{Value, json};

use crate::common::{Lab, key, unit};

fn offer(to: &str, units: &[&str]) -> Value {
    json!({
        "action": "offer", "task_id": "t", "to_agent": to, "reason": "shift ends",
        "context": {"unit_ids": units, "open_questions": ["why?"], "summary": "half done"},
    })
}

#[test]
fn ak_hnd_01_02_a_task_changes_hands_with_its_context() {
    let mut lab = Lab::with_agents(Level::Standard, &["a", "b"]);
    let note = lab.note("a", "x", &[]);
    lab.ok(
        Operation::Subscribe,
        "b",
        json!({"action": "subscribe", "subscription": {"events": ["handoff.incoming"]}}),
    );
    assert_eq!(
        lab.code(Operation::Handoff, "a", offer("nobody", &[])),
        Code::AgentNotRegistered
    );
    assert_eq!(
        lab.code(Operation::Handoff, "a", offer("b", &["none"])),
        Code::UnitNotFound
    );
    assert_eq!(
        lab.code(
            Operation::Handoff,
            "a",
            json!({"action": "offer", "to_agent": "b"})
        ),
        Code::InvalidRequest
    );
    let answer = lab.ok(Operation::Handoff, "a", offer("b", &[&note]));
    assert_eq!(answer["status"], "offered");
    let pushed = lab.pushed.last().unwrap().to_json();
    assert_eq!(
        (&pushed["event"], &pushed["requires_action"]),
        (&json!("handoff.incoming"), &json!(true))
    );
    let id = answer["handoff_id"].clone();
    let act = |action: &str| json!({"action": action, "handoff_id": id});
    assert_eq!(
        lab.code(Operation::Handoff, "a", act("accept")),
        Code::Forbidden,
        "only the receiver"
    );
    assert_eq!(
        lab.code(
            Operation::Handoff,
            "b",
            json!({"action": "accept", "handoff_id": "none"})
        ),
        Code::UnitNotFound
    );
    let answer = lab.ok(Operation::Handoff, "b", act("accept"));
    assert_eq!(answer["status"], "accepted");
    assert_eq!(answer["handoff"]["context"]["unit_ids"], json!([note]));
    for action in ["accept", "decline"] {
        assert_eq!(
            lab.code(Operation::Handoff, "b", act(action)),
            Code::InvalidTransition
        );
    }
    let agents = lab.field.agents_view(None);
    assert_eq!(agents["agents"][1]["current_task_id"], "t");
    let replay = lab.ok(
        Operation::Replay,
        "a",
        json!({"target_type": "task", "target_id": "t", "depth": "detailed"}),
    );
    let words: Vec<&str> = replay["timeline"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| event["description"].as_str().unwrap())
        .collect();
    assert_eq!(words, ["Handoff offer: t to b", "Handoff accept: t to b"]);
    let declined = lab.ok(Operation::Handoff, "a", offer("b", &[]))["handoff_id"].clone();
    assert_eq!(
        lab.ok(
            Operation::Handoff,
            "b",
            json!({"action": "decline", "handoff_id": declined})
        )["status"],
        "declined"
    );
}

#[test]
fn ak_hnd_01_the_package_names_only_what_the_receiver_may_see() {
    let mut lab = Lab::with_agents(Level::Full, &["a", "b"]);
    lab.ok(
        Operation::Session,
        "a",
        json!({"action": "create", "session": {"id": "s", "goal": "g"}}),
    );
    lab.session = Some("s".into());
    let hidden = lab.note("a", "hidden", &[]);
    lab.session = None;
    let open = lab.note("a", "open", &[]);
    let id = lab.ok(Operation::Handoff, "a", offer("b", &[&hidden, &open]))["handoff_id"].clone();
    let answer = lab.ok(
        Operation::Handoff,
        "b",
        json!({"action": "accept", "handoff_id": id}),
    );
    assert_eq!(answer["handoff"]["context"]["unit_ids"], json!([open]));
}

#[test]
fn an_offer_asks_for_as_much_as_other_steps_of_a_task() {
    let mut lab = Lab::at(Level::Full);
    for (agent, authority) in [("boss", 8), ("senior", 6), ("a", 4), ("thief", 4)] {
        lab.join(agent, authority);
    }
    let task = |action: &str| json!({"action": action, "task": {"id": "t", "title": "t", "assignee": "a"}});
    lab.ok(Operation::Coordinate, "a", task("create"));
    lab.ok(Operation::Coordinate, "a", task("start"));
    assert_eq!(
        lab.code(Operation::Handoff, "thief", offer("thief", &[])),
        Code::Forbidden
    );
    let offered = |lab: &mut Lab, from: &str, to: &str| {
        lab.ok(Operation::Handoff, from, offer(to, &[]))["handoff_id"].clone()
    };
    let answer = |action: &str, id: &Value| json!({"action": action, "handoff_id": id});
    // Whoever may work for others may offer for them, and the agent itself its own.
    let late = offered(&mut lab, "a", "thief");
    let first = offered(&mut lab, "senior", "boss");
    lab.ok(Operation::Handoff, "boss", answer("accept", &first));
    assert_eq!(
        lab.code(Operation::Handoff, "thief", answer("accept", &late)),
        Code::InvalidTransition,
        "the task has moved on"
    );
    lab.ok(Operation::Handoff, "thief", answer("decline", &late));
    let last = offered(&mut lab, "boss", "a");
    lab.ok(Operation::Coordinate, "boss", task("cancel"));
    assert_eq!(
        lab.code(Operation::Handoff, "a", answer("accept", &last)),
        Code::InvalidTransition,
        "the task is over"
    );
    assert_eq!(
        lab.refolded().agents_view(None),
        lab.field.agents_view(None),
        "what was accepted folds as it did"
    );
}

#[test]
fn an_offer_made_before_its_task_or_its_assignment_is_void() {
    let mut lab = Lab::at(Level::Full);
    for (agent, authority) in [("senior", 6), ("a", 4), ("thief", 4)] {
        lab.join(agent, authority);
    }
    let early = lab.ok(Operation::Handoff, "thief", offer("thief", &[]))["handoff_id"].clone();
    let create = json!({"action": "create", "task": {"id": "t", "title": "t"}});
    lab.ok(Operation::Coordinate, "senior", create);
    let free = lab.ok(Operation::Handoff, "thief", offer("thief", &[]))["handoff_id"].clone();
    let assign = json!({"action": "assign", "task": {"id": "t", "assignee": "a"}});
    lab.ok(Operation::Coordinate, "senior", assign);
    for id in [early, free] {
        let accept = json!({"action": "accept", "handoff_id": id});
        assert_eq!(
            lab.code(Operation::Handoff, "thief", accept),
            Code::InvalidTransition
        );
    }
}

#[test]
fn a_task_of_a_session_is_offered_by_those_who_see_it() {
    let (mut lab, _) = with_session();
    lab.session = Some("s".into());
    let create = json!({"action": "create", "task": {"id": "t", "title": "t"}});
    lab.ok(Operation::Coordinate, "a", create);
    lab.session = None;
    assert_eq!(
        lab.code(Operation::Handoff, "c", offer("c", &[])),
        Code::UnitNotFound
    );
    lab.ok(Operation::Handoff, "b", offer("b", &[]));
}

#[test]
fn ak_cor_01_the_table_of_task_states() {
    let steps: [(&str, &[&str]); 7] = [
        ("created", &[]),
        ("assigned", &["assign"]),
        ("working", &["assign", "start"]),
        ("blocked", &["assign", "start", "block"]),
        ("completed", &["assign", "start", "complete"]),
        ("failed", &["assign", "start", "fail"]),
        ("cancelled", &["cancel"]),
    ];
    let mut rows = Vec::new();
    for (state, path) in steps {
        for action in [
            "assign", "start", "block", "unblock", "complete", "fail", "cancel",
        ] {
            let mut lab = Lab::at(Level::Full);
            lab.join("boss", 8);
            let act = |action: &str, id: &Value| json!({"action": action, "task": {"id": id, "assignee": "boss"}});
            let task = lab.ok(
                Operation::Coordinate,
                "boss",
                json!({"action": "create", "task": {"title": "t"}}),
            );
            let id = task["task"]["id"].clone();
            let mut status = task["task"]["status"].clone();
            for step in path {
                status =
                    lab.ok(Operation::Coordinate, "boss", act(step, &id))["task"]["status"].clone();
            }
            assert_eq!(status, state);
            let result = match lab.send(Operation::Coordinate, "boss", act(action, &id)) {
                Ok(answer) => answer["task"]["status"].as_str().unwrap().to_owned(),
                Err(refusal) => {
                    assert_eq!(refusal.code(), Code::InvalidTransition);
                    "-".to_owned()
                }
            };
            rows.push(format!("{state} {action}: {result}"));
        }
    }
    let legal: Vec<String> = rows
        .into_iter()
        .filter(|row| !row.ends_with(": -"))
        .collect();
    assert_eq!(
        legal,
        [
            "created assign: assigned",
            "created cancel: cancelled",
            "assigned assign: assigned",
            "assigned start: working",
            "assigned cancel: cancelled",
            "working block: blocked",
            "working complete: completed",
            "working fail: failed",
            "working cancel: cancelled",
            "blocked unblock: working",
            "blocked fail: failed",
            "blocked cancel: cancelled",
        ]
    );
}

#[test]
fn ak_cor_01_tasks_of_others_ask_for_more_and_agents_show_their_work() {
    let mut lab = Lab::at(Level::Full);
    for (agent, authority) in [("boss", 8), ("senior", 6), ("a", 4), ("b", 4)] {
        lab.join(agent, authority);
    }
    let create = |assignee: Value| json!({"action": "create", "task": {"id": "t", "title": "t", "assignee": assignee}});
    assert_eq!(
        lab.code(Operation::Coordinate, "a", create(json!("b"))),
        Code::Forbidden
    );
    assert_eq!(
        lab.code(Operation::Coordinate, "senior", create(json!("nobody"))),
        Code::AgentNotRegistered
    );
    assert_eq!(
        lab.ok(Operation::Coordinate, "senior", create(json!("b")))["task"]["status"],
        "assigned"
    );
    assert_eq!(
        lab.code(Operation::Coordinate, "senior", create(json!(null))),
        Code::InvalidTransition,
        "the id is in use"
    );
    let act = |action: &str| json!({"action": action, "task": {"id": "t"}});
    assert_eq!(
        lab.code(Operation::Coordinate, "a", act("start")),
        Code::Forbidden
    );
    let status = |lab: &Lab| {
        lab.field.agents_view(None)["agents"][1]["status"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    for (action, expected) in [
        ("start", "working"),
        ("block", "waiting"),
        ("unblock", "working"),
        ("complete", "idle"),
    ] {
        lab.ok(Operation::Coordinate, "b", act(action));
        assert_eq!(status(&lab), expected, "{action}");
    }
    assert_eq!(
        lab.code(Operation::Coordinate, "senior", act("cancel")),
        Code::Forbidden
    );
    assert_eq!(
        lab.code(
            Operation::Coordinate,
            "a",
            json!({"action": "start", "task": {"id": "none"}})
        ),
        Code::UnitNotFound
    );
    assert_eq!(
        lab.code(
            Operation::Coordinate,
            "a",
            json!({"action": "start", "task": {}})
        ),
        Code::InvalidRequest
    );
    assert_eq!(
        lab.code(
            Operation::Coordinate,
            "a",
            json!({"action": "create", "task": {}})
        ),
        Code::InvalidRequest
    );
    // A task waits for those it depends on.
    lab.ok(
        Operation::Coordinate,
        "a",
        json!({"action": "create", "task": {"id": "first", "title": "x", "assignee": "a"}}),
    );
    lab.ok(Operation::Coordinate, "a", json!({"action": "create", "task": {"id": "second", "title": "x", "assignee": "a", "depends_on": ["first"]}}));
    assert_eq!(
        lab.code(
            Operation::Coordinate,
            "a",
            json!({"action": "start", "task": {"id": "second"}})
        ),
        Code::InvalidTransition
    );
    for action in ["start", "complete"] {
        lab.ok(
            Operation::Coordinate,
            "a",
            json!({"action": action, "task": {"id": "first"}}),
        );
    }
    lab.ok(
        Operation::Coordinate,
        "a",
        json!({"action": "start", "task": {"id": "second"}}),
    );
}

/// A field with a session `s` of `a` and `b`, in which `a` recorded a unit; `c` is outside.
fn with_session() -> (Lab, String) {
    let mut lab = Lab::at(Level::Full);
    for (agent, authority) in [
        ("a", 6),
        ("b", 6),
        ("c", 6),
        ("boss", 8),
        ("auditor", 0),
        ("human", 10),
    ] {
        lab.join(agent, authority);
    }
    lab.ok(
        Operation::Session,
        "a",
        json!({"action": "create", "session": {"id": "s", "goal": "g"}}),
    );
    lab.ok(
        Operation::Session,
        "b",
        json!({"action": "join", "session": {"id": "s"}}),
    );
    lab.session = Some("s".into());
    let unit = lab.note("a", "the inside story", &[]);
    lab.session = None;
    (lab, unit)
}

#[test]
fn ak_ses_01_paused_and_ended_sessions_take_nothing_in() {
    let (mut lab, unit_id) = with_session();
    let act = |action: &str| json!({"action": action, "session": {"id": "s"}});
    assert_eq!(
        lab.code(Operation::Session, "a", act("pause")),
        Code::Forbidden
    );
    lab.ok(Operation::Session, "boss", act("pause"));
    lab.session = Some("s".into());
    assert_eq!(
        lab.code(Operation::Record, "a", unit("finding", "x", json!({}))),
        Code::InvalidTransition
    );
    assert_eq!(
        lab.code(Operation::Session, "boss", act("pause")),
        Code::InvalidTransition
    );
    lab.ok(Operation::Session, "boss", act("resume"));
    lab.note("a", "y", &[]);
    lab.ok(Operation::Session, "boss", act("end"));
    for (operation, payload) in [
        (Operation::Record, unit("finding", "x", json!({}))),
        (Operation::Compact, json!({"strategy": "archive"})),
        (Operation::Handoff, offer("b", &[])),
        (
            Operation::Coordinate,
            json!({"action": "create", "task": {"title": "t"}}),
        ),
        (Operation::Detect, json!({"mode": "scan"})),
    ] {
        assert_eq!(
            lab.code(operation, "a", payload),
            Code::InvalidTransition,
            "{operation}"
        );
    }
    for action in ["join", "leave", "pause", "resume", "end"] {
        assert_eq!(
            lab.code(Operation::Session, "boss", act(action)),
            Code::InvalidTransition
        );
    }
    let replay = lab.ok(
        Operation::Replay,
        "a",
        json!({"target_type": "session", "target_id": "s", "depth": "full_trace"}),
    );
    assert!(replay["total_events"].as_u64().unwrap() >= 7);
    assert_eq!(lab.status(&unit_id), "active");
    assert_eq!(
        lab.code(
            Operation::Session,
            "a",
            json!({"action": "join", "session": {"id": "none"}})
        ),
        Code::UnitNotFound
    );
    assert_eq!(
        lab.code(
            Operation::Session,
            "a",
            json!({"action": "create", "session": {"id": "s", "goal": "g"}})
        ),
        Code::InvalidTransition
    );
    assert_eq!(
        lab.code(
            Operation::Session,
            "a",
            json!({"action": "create", "session": {}})
        ),
        Code::InvalidRequest
    );
}

#[test]
fn ak_sec_07_what_belongs_to_a_session_is_for_its_members() {
    let (mut lab, unit_id) = with_session();
    assert_eq!(lab.seen_by("b"), [unit_id.as_str()]);
    assert_eq!(lab.seen_by("c"), Vec::<String>::new());
    assert_eq!(
        lab.seen_by("human"),
        Vec::<String>::new(),
        "authority does not open ATTUNE"
    );
    lab.session = Some("s".into());
    assert_eq!(
        lab.code(Operation::Record, "c", unit("finding", "x", json!({}))),
        Code::Forbidden
    );
    lab.note("human", "exempt", &[]);
    lab.session = None;
    // An invisible unit is as good as unknown.
    let relations = json!({"relations": [{"type": "contradicts", "target_id": unit_id}]});
    assert_eq!(
        lab.code(Operation::Record, "c", unit("finding", "x", relations)),
        Code::UnitNotFound
    );
    let relations = json!({"relations": [{"type": "supersedes", "target_id": unit_id}]});
    let answer = lab.ok(Operation::Record, "c", unit("finding", "x", relations));
    assert_eq!(answer["warnings"].as_array().unwrap().len(), 1);
    assert_eq!(lab.status(&unit_id), "active");
    assert_eq!(
        lab.code(
            Operation::Detect,
            "c",
            json!({"mode": "check", "target_id": unit_id})
        ),
        Code::UnitNotFound
    );
    // A conflict is shown to those who see both units.
    let answer = lab.ok(
        Operation::Record,
        "b",
        unit(
            "finding",
            "y",
            json!({"relations": [{"type": "contradicts", "target_id": unit_id}]}),
        ),
    );
    let conflict = answer["conflicts_detected"][0].as_str().unwrap().to_owned();
    let count = |lab: &mut Lab, agent: &str| {
        lab.ok(Operation::Detect, agent, json!({"mode": "list"}))["conflicts"]
            .as_array()
            .unwrap()
            .len()
    };
    assert_eq!((count(&mut lab, "a"), count(&mut lab, "c")), (1, 0));
    assert_eq!(
        lab.merge("c", &conflict, "last_write_wins", json!({}))
            .unwrap_err()
            .code(),
        Code::ConflictNotFound
    );
    let view = |viewers: Option<&[&str]>| {
        lab.field.conflicts_view(viewers, None, None).unwrap()["conflicts"]
            .as_array()
            .unwrap()
            .len()
    };
    assert_eq!(
        (view(None), view(Some(&["c"])), view(Some(&["c", "b"]))),
        (1, 0, 1)
    );
    assert_eq!(
        lab.field.status_view(Some(&["c"]))["units"],
        json!({"active": 2}),
        "nothing is contested by what cannot be seen"
    );
    // Compaction selects what the caller sees.
    assert_eq!(
        lab.ok(
            Operation::Compact,
            "c",
            json!({"strategy": "archive", "filter": {"session_id": "s"}})
        )["units_affected"],
        0
    );
    let mut config = Config::at(Level::Full);
    config.cross_session = true;
    let mut open = lab.copied(config);
    assert!(
        open.seen_by("c").contains(&unit_id),
        "unless sessions are open to each other"
    );
}

#[test]
fn the_operator_purges_what_the_filter_names_whoever_may_see_it() {
    let (mut lab, inside) = with_session();
    let open = lab.note("c", "open", &[]);
    let end = json!({"action": "end", "session": {"id": "s"}});
    lab.ok(Operation::Session, "boss", end);
    let compact = |strategy: &str| json!({"strategy": strategy, "filter": {"session_id": "s"}});
    assert_eq!(
        lab.code(Operation::Compact, "boss", compact("purge")),
        Code::Forbidden
    );
    let archived = lab.ok(Operation::Compact, "human", compact("archive"));
    assert_eq!(archived["units_affected"], 0, "only what the sender sees");
    lab.session = Some("s".into());
    assert_eq!(
        lab.code(Operation::Compact, "human", compact("archive")),
        Code::InvalidTransition
    );
    let purged = lab.ok(Operation::Compact, "human", compact("purge"));
    assert_eq!(purged["units_affected"], 1);
    assert!(lab.field.text_of(&inside).is_none());
    assert!(lab.field.text_of(&open).is_some());
}

#[test]
fn whoever_does_not_see_a_unit_gives_no_evidence_for_it() {
    let (mut lab, first) = with_session();
    lab.session = Some("s".into());
    let against = json!({"relations": [{"type": "contradicts", "target_id": first}]});
    let answer = lab.ok(Operation::Record, "b", unit("finding", "y", against));
    let second = answer["memory_unit_id"].as_str().unwrap().to_owned();
    let conflict = answer["conflicts_detected"][0].as_str().unwrap().to_owned();
    lab.session = None;
    let outside = lab.note("c", "the word of an outsider", &[("supports", &second)]);
    let by_evidence = |lab: &mut Lab| lab.merge("a", &conflict, "evidence_count", json!({}));
    let refusal = by_evidence(&mut lab).unwrap_err();
    assert_eq!(refusal.code(), Code::MergeFailed, "no unit has support");
    let replay =
        |unit: &str| json!({"target_type": "memory_unit", "target_id": unit, "depth": "detailed"});
    let told = lab.ok(Operation::Replay, "a", replay(&second)).to_string();
    assert!(!told.contains("outsider"), "{told}");
    // What is stored says so, in either form: it is the same after the next start, and when the author joins later.
    let segment = lab.refolded().segment(0);
    lab.field = Field::new(lab.field.config().clone());
    lab.field.read_segment(&segment).unwrap();
    let join = json!({"action": "join", "session": {"id": "s"}});
    lab.ok(Operation::Session, "c", join);
    assert!(by_evidence(&mut lab).is_err());
    // The relation is shown as it was given, like one to a unit that is not there.
    let scope = json!({"scope": {"role": "r", "max_units": 9}});
    let shown = lab.ok(Operation::Attune, "a", scope);
    let record = shown["record"].as_array().unwrap();
    let word = record
        .iter()
        .find(|one| one["memory_unit"]["id"] == *outside);
    let relation = &word.unwrap()["memory_unit"]["relations"][0];
    assert_eq!(relation["target_id"], *second);
    assert!(relation.get("unbound").is_none());
    lab.note("c", "now from the inside", &[("supports", &second)]);
    let merged = by_evidence(&mut lab).unwrap();
    assert_eq!(merged["conflict"]["resolution"]["winner_id"], *second);
}

#[test]
fn ak_sec_07_roles_of_a_session() {
    let mut lab = Lab::with_agents(Level::Full, &["a"]);
    lab.ok(
        Operation::Register,
        "cook",
        json!({"id": "cook", "role": "cook"}),
    );
    lab.ok(
        Operation::Register,
        "baker",
        json!({"id": "baker", "role": "baker"}),
    );
    lab.ok(Operation::Session, "a", json!({"action": "create", "session": {"id": "s", "goal": "g", "rules": {"roles": ["cook"]}}}));
    let join = || json!({"action": "join", "session": {"id": "s"}});
    assert_eq!(
        lab.code(Operation::Session, "baker", join()),
        Code::Forbidden
    );
    let answer = lab.ok(Operation::Session, "cook", join());
    assert_eq!(answer["session"]["members"], json!(["a", "cook"]));
    lab.session = Some("s".into());
    let unit = lab.note("a", "x", &[]);
    assert_eq!(lab.seen_by("cook"), [unit]);
    lab.ok(
        Operation::Session,
        "cook",
        json!({"action": "leave", "session": {"id": "s"}}),
    );
    lab.session = None;
    assert_eq!(lab.seen_by("cook"), Vec::<String>::new());
    assert_eq!(
        lab.code(
            Operation::Session,
            "cook",
            json!({"action": "leave", "session": {"id": "s"}})
        ),
        Code::InvalidTransition
    );
}

#[test]
fn a_session_that_nobody_created_is_a_label_and_stays_one() {
    let mut lab = Lab::with_agents(Level::Full, &["a", "b"]);
    lab.session = Some("label".into());
    let unit = lab.note("a", "x", &[]);
    lab.session = None;
    assert_eq!(lab.seen_by("b"), [unit]);
    let create = json!({"action": "create", "session": {"id": "label", "goal": "g"}});
    assert_eq!(
        lab.code(Operation::Session, "b", create),
        Code::InvalidTransition,
        "it would hide what others wrote"
    );
}

#[test]
fn ak_sec_08_replay_14_hidden_events_stay_in_place_without_their_words() {
    let (mut lab, hidden) = with_session();
    let open = lab.note("b", "the outside story", &[("depends_on", &hidden)]);
    let payload =
        || json!({"target_type": "memory_unit", "target_id": open, "depth": "full_trace"});
    let full = lab.ok(Operation::Replay, "b", payload());
    for agent in ["auditor", "boss", "human"] {
        assert_eq!(
            lab.ok(Operation::Replay, agent, payload()),
            full,
            "{agent} sees all"
        );
    }
    let seen = lab.ok(Operation::Replay, "c", payload());
    assert_eq!(seen["total_events"], full["total_events"]);
    let (redacted, original) = (&seen["timeline"][0], &full["timeline"][0]);
    for name in ["epoch", "event_type", "timestamp"] {
        assert_eq!(redacted[name], original[name]);
    }
    assert_eq!(redacted["agent_id"], "redacted");
    assert_eq!(redacted["memory_unit_id"], json!(null));
    assert_eq!(seen["timeline"][1], full["timeline"][1]);
    assert_eq!(seen["agents_involved"], json!(["b"]));
    assert_eq!(full["agents_involved"], json!(["a", "b"]));
    let text = seen.to_string();
    assert!(
        !text.contains("inside") && !text.contains(&hidden),
        "{text}"
    );
    // A target that cannot be seen is answered, not denied.
    let answer = lab.ok(
        Operation::Replay,
        "c",
        json!({"target_type": "memory_unit", "target_id": hidden, "depth": "detailed"}),
    );
    assert_eq!(answer["agents_involved"], json!([]));
    assert!(!answer.to_string().contains("inside"));
}

#[test]
fn ak_sec_08_a_visible_event_does_not_name_a_hidden_unit() {
    let (mut lab, hidden) = with_session();
    let answer = lab.ok(
        Operation::Record,
        "b",
        unit(
            "finding",
            "it is otherwise",
            json!({"relations": [{"type": "contradicts", "target_id": hidden}]}),
        ),
    );
    let conflict = answer["conflicts_detected"][0].as_str().unwrap().to_owned();
    lab.merge("b", &conflict, "authority", json!({"winner_id": hidden}))
        .unwrap();
    let answer = lab.ok(
        Operation::Replay,
        "c",
        json!({"target_type": "conflict", "target_id": conflict, "depth": "full_trace"}),
    );
    assert!(!answer.to_string().contains(&hidden), "{answer}");
    let merge = answer["timeline"].as_array().unwrap().last().unwrap();
    assert_eq!(
        merge["description"],
        "Resolved via authority: (redacted) prevails"
    );
    assert_eq!(merge["memory_unit_id"], json!(null));
}

#[test]
fn ak_sec_03_04_an_agent_states_no_more_than_its_key_allows() {
    let mut lab = Lab::at(Level::Full);
    for (ceiling, stated, fine) in [
        (6, 6, true),
        (6, 8, false),
        (2, 4, false),
        (2, 2, true),
        (2, 0, true),
        (10, 10, true),
    ] {
        let agent = format!("agent-{ceiling}-{stated}");
        lab.caller = Some(key("k", ceiling));
        let payload = json!({"id": agent, "role": "r", "authority": stated});
        let result = lab.send(Operation::Register, &agent, payload);
        assert_eq!(result.is_ok(), fine, "{agent}");
        if let Err(refusal) = result {
            assert_eq!(refusal.code(), Code::Forbidden);
        }
    }
    for stated in [json!(11), json!(-1), json!("4")] {
        let payload = json!({"id": "x", "role": "r", "authority": stated});
        assert_eq!(
            lab.code(Operation::Register, "x", payload),
            Code::InvalidRequest
        );
    }
    // A reader's key gives no more than reading, whatever the agent was registered with.
    lab.caller = Some(key("admin", 10));
    lab.join("strong", 8);
    lab.caller = Some(key("reader", 2));
    assert_eq!(
        lab.code(Operation::Record, "strong", unit("finding", "x", json!({}))),
        Code::Forbidden
    );
}

#[test]
fn ak_sec_05_06_sub_07_the_least_authority_of_each_operation() {
    let mut rows = Vec::new();
    let operations: [(Operation, Value); 17] = [
        (
            Operation::Replay,
            json!({"target_type": "task", "target_id": "none", "depth": "summary"}),
        ),
        (
            Operation::Attune,
            json!({"scope": {"role": "r", "max_units": 1}}),
        ),
        (Operation::Subscribe, json!({"action": "list"})),
        (
            Operation::Record,
            unit("finding", "x", json!({"mode": "draft"})),
        ),
        (Operation::Record, unit("finding", "x", json!({}))),
        (Operation::Detect, json!({"mode": "list"})),
        (
            Operation::Merge,
            json!({"conflict_id": "none", "strategy": "vote", "resolution": {"rationale": "r", "winner_id": "w"}}),
        ),
        (
            Operation::Merge,
            json!({"conflict_id": "none", "strategy": "last_write_wins", "resolution": {"rationale": "r"}}),
        ),
        (Operation::Compact, json!({"strategy": "archive"})),
        (Operation::Compact, json!({"strategy": "summarize"})),
        (
            Operation::Compact,
            json!({"strategy": "purge", "filter": {"types": ["finding"]}}),
        ),
        (
            Operation::Handoff,
            json!({"action": "accept", "handoff_id": "none"}),
        ),
        (
            Operation::Coordinate,
            json!({"action": "create", "task": {"title": "t"}}),
        ),
        (
            Operation::Coordinate,
            json!({"action": "cancel", "task": {"id": "none"}}),
        ),
        (
            Operation::Session,
            json!({"action": "create", "session": {"goal": "g"}}),
        ),
        (
            Operation::Session,
            json!({"action": "end", "session": {"id": "none"}}),
        ),
        (Operation::Deregister, json!({"agent_id": "nobody"})),
    ];
    for (operation, payload) in operations {
        let mut least = None;
        for authority in [10, 8, 6, 4, 2, 0] {
            let mut lab = Lab::at(Level::Full);
            lab.join("x", authority);
            let refused = lab
                .send(operation, "x", payload.clone())
                .is_err_and(|refusal| refusal.code() == Code::Forbidden);
            if !refused {
                assert!(
                    least.is_none_or(|least| least == authority + 2),
                    "levels are cumulative"
                );
                least = Some(authority);
            }
        }
        rows.push(least.unwrap());
    }
    assert_eq!(rows, [0, 2, 2, 2, 4, 4, 4, 6, 6, 6, 10, 4, 4, 8, 4, 8, 8]);
}

fn subscribe(lab: &mut Lab, agent: &str, events: &[&str], more: Value) -> Value {
    let mut subscription = json!({"events": events});
    for (name, value) in more.as_object().unwrap() {
        subscription[name] = value.clone();
    }
    lab.ok(
        Operation::Subscribe,
        agent,
        json!({"action": "subscribe", "subscription": subscription}),
    )
}

#[test]
fn ak_sub_03_06_subscriptions_are_kept_listed_and_ended() {
    let mut lab = Lab::with_agents(Level::Standard, &["a", "b"]);
    for subscription in [
        json!({}),
        json!({"events": []}),
        json!({"events": ["memory.forgotten"]}),
        json!({"events": ["agent.joined"], "id": "mine"}),
        json!({"events": ["agent.joined"], "min_relevance": 2}),
    ] {
        assert_eq!(
            lab.code(
                Operation::Subscribe,
                "a",
                json!({"action": "subscribe", "subscription": subscription})
            ),
            Code::InvalidRequest
        );
    }
    let answer = subscribe(&mut lab, "a", &["agent.joined"], json!({}));
    let id = answer["subscription"]["id"].clone();
    assert!(id.as_str().unwrap().starts_with("sub_"));
    assert!(answer["push"].is_object());
    assert!(
        Lab::with_agents(Level::Core, &["a"]).ok(
            Operation::Subscribe,
            "a",
            json!({"action": "list"})
        )["push"]
            .is_null()
    );
    let list = |lab: &mut Lab, agent: &str| {
        lab.ok(Operation::Subscribe, agent, json!({"action": "list"}))["subscriptions"].clone()
    };
    assert_eq!(list(&mut lab, "a"), json!([answer["subscription"]]));
    assert_eq!(list(&mut lab, "b"), json!([]), "one's own only");
    let end = json!({"action": "unsubscribe", "subscription": {"id": id}});
    assert_eq!(
        lab.code(Operation::Subscribe, "b", end.clone()),
        Code::UnitNotFound
    );
    assert_eq!(
        lab.code(
            Operation::Subscribe,
            "a",
            json!({"action": "unsubscribe", "subscription": {}})
        ),
        Code::InvalidRequest
    );
    lab.ok(Operation::Subscribe, "a", end);
    assert_eq!(list(&mut lab, "a"), json!([]));
}

fn topics(lab: &Lab) -> Vec<(String, &'static str)> {
    lab.pushed
        .iter()
        .map(|push| (push.agent_id.clone(), push.topic().as_str()))
        .collect()
}

#[test]
fn ak_reg_08_rec_12_mrg_07_sub_02_subscribers_are_notified_of_what_they_asked_for() {
    let mut lab = Lab::with_agents(Level::Standard, &["a", "b", "w"]);
    let all: Vec<&str> = field::Topic::ALL
        .iter()
        .map(|topic| topic.as_str())
        .collect();
    subscribe(&mut lab, "w", &all, json!({}));
    subscribe(
        &mut lab,
        "b",
        &["conflict.resolved", "memory.superseded"],
        json!({}),
    );
    lab.join("c", 4);
    let (one, _, conflict) = lab.conflict(("a", 0.5), ("b", 0.4));
    lab.merge("a", &conflict, "confidence_weighted", json!({}))
        .unwrap();
    let to_w: Vec<&str> = topics(&lab)
        .iter()
        .filter(|(agent, _)| agent == "w")
        .map(|(_, topic)| *topic)
        .collect();
    assert_eq!(
        to_w,
        [
            "agent.joined",
            "memory.recorded",
            "memory.recorded",
            "conflict.detected",
            "memory.contested",
            "memory.contested",
            "conflict.resolved",
            "memory.superseded",
        ]
    );
    let to_b: Vec<&str> = topics(&lab)
        .iter()
        .filter(|(agent, _)| agent == "b")
        .map(|(_, topic)| *topic)
        .collect();
    assert_eq!(
        to_b,
        ["conflict.resolved", "memory.superseded"],
        "whose unit lost is told"
    );
    let push = lab.pushed[1].to_json();
    let names: Vec<&String> = push.as_object().unwrap().keys().collect();
    assert_eq!(
        names,
        [
            "conflict_id",
            "epoch",
            "event",
            "memory_unit_id",
            "relevance_score",
            "requires_action",
            "subscription_id",
            "summary"
        ]
    );
    assert_eq!(push["memory_unit_id"], json!(one));
    let fresh = lab.fresh();
    let act = Administration::Fail {
        agent_id: "c".into(),
        reason: "r".into(),
    };
    let decision = administer(&lab.field, &act, &fresh).unwrap();
    lab.field.commit(&decision).unwrap();
    let pushed = lab
        .field
        .notifications(&[decision.steps[0].0.clone()], &lab.everybody());
    assert_eq!(pushed[0].topic().as_str(), "agent.failed");
    // What nobody listens to is not looked for.
    let unheard = lab.field.notifications(&[decision.steps[0].0.clone()], &[]);
    assert_eq!(unheard, []);
}

#[test]
fn notifications_respect_visibility_and_tasks() {
    let mut lab = Lab::at(Level::Full);
    for (agent, authority) in [("a", 8), ("in", 4), ("out", 4)] {
        lab.join(agent, authority);
    }
    lab.ok(
        Operation::Session,
        "a",
        json!({"action": "create", "session": {"id": "s", "goal": "g"}}),
    );
    lab.ok(
        Operation::Session,
        "in",
        json!({"action": "join", "session": {"id": "s"}}),
    );
    for agent in ["in", "out"] {
        subscribe(
            &mut lab,
            agent,
            &[
                "memory.recorded",
                "session.paused",
                "session.ended",
                "task.assigned",
                "task.completed",
                "task.state_changed",
            ],
            json!({}),
        );
    }
    lab.session = Some("s".into());
    lab.note("a", "x", &[]);
    for action in ["pause", "end"] {
        lab.ok(
            Operation::Session,
            "a",
            json!({"action": action, "session": {"id": "s"}}),
        );
    }
    assert_eq!(
        topics(&lab),
        [
            ("in".into(), "memory.recorded"),
            ("in".into(), "session.paused"),
            ("in".into(), "session.ended")
        ]
    );
    lab.session = None;
    lab.pushed.clear();
    lab.ok(
        Operation::Coordinate,
        "a",
        json!({"action": "create", "task": {"id": "t", "title": "t", "assignee": "out"}}),
    );
    let asked: Vec<(&str, bool)> = lab
        .pushed
        .iter()
        .filter(|push| push.topic().as_str() == "task.assigned")
        .map(|push| {
            (
                push.agent_id.as_str(),
                push.to_json()["requires_action"].as_bool().unwrap(),
            )
        })
        .collect();
    assert_eq!(asked.len(), 2);
    assert!(asked.contains(&("out", true)) && asked.contains(&("in", false)));
    lab.pushed.clear();
    for action in ["start", "complete"] {
        lab.ok(
            Operation::Coordinate,
            "out",
            json!({"action": action, "task": {"id": "t"}}),
        );
    }
    assert_eq!(
        topics(&lab),
        [
            ("in".into(), "task.state_changed"),
            ("in".into(), "task.state_changed"),
            ("in".into(), "task.completed")
        ]
    );
}

#[test]
fn ak_sub_04_little_relevance_is_suppressed_and_gaps_are_kept() {
    let mut lab = Lab::with_agents(Level::Standard, &["a"]);
    lab.ok(
        Operation::Register,
        "w",
        json!({"id": "w", "role": "geologist", "interests": ["volcano"]}),
    );
    subscribe(&mut lab, "w", &["memory.recorded"], json!({}));
    lab.note("a", "a volcano erupts", &[]);
    lab.note("a", "an invoice is paid", &[]);
    let scores: Vec<f64> = lab
        .pushed
        .iter()
        .map(|push| push.to_json()["relevance_score"].as_f64().unwrap())
        .collect();
    assert!(scores[0] > scores[1], "{scores:?}");
    let between = (scores[0] + scores[1]) / 2.0;
    lab.pushed.clear();
    subscribe(
        &mut lab,
        "w",
        &["memory.recorded"],
        json!({"min_relevance": between, "debounce_ms": 1000}),
    );
    lab.note("a", "a volcano sleeps", &[]);
    lab.note("a", "an invoice is late", &[]);
    assert_eq!(
        lab.pushed.len(),
        3,
        "one of the two is below the second subscription's bound"
    );

    let mut debouncer = Debouncer::default();
    let push = lab
        .pushed
        .iter()
        .find(|push| push.debounce_ms == 1_000)
        .unwrap()
        .clone();
    let at = |ms: i64| Timestamp::from_micros(ms * 1_000);
    assert!(debouncer.offer(push.clone(), at(0)).is_some());
    assert!(debouncer.offer(push.clone(), at(500)).is_none());
    let mut last = push.clone();
    last.agent_id = "the last one".into();
    assert!(debouncer.offer(last, at(900)).is_none());
    assert!(debouncer.due(at(999)).is_empty());
    let due = debouncer.due(at(1_000));
    assert_eq!(due.len(), 1);
    assert_eq!(due[0].agent_id, "the last one");
    assert!(debouncer.due(at(5_000)).is_empty());
    let mut unbounded = push;
    unbounded.debounce_ms = 0;
    assert!(
        debouncer.offer(unbounded.clone(), at(9_000)).is_some()
            && debouncer.offer(unbounded, at(9_000)).is_some()
    );
}

#[test]
fn below_level_3_the_key_alone_counts() {
    let mut lab = Lab::with_agents(Level::Standard, &["a", "b"]);
    lab.caller = Some(key("writer", 6));
    lab.note("a", "x", &[]);
    assert_eq!(
        lab.ok(Operation::Deregister, "a", json!({"agent_id": "b"}))["status"],
        "ok"
    );
    lab.caller = Some(key("reader", 2));
    lab.seen_by("a");
    assert_eq!(
        lab.code(Operation::Record, "a", unit("finding", "x", json!({}))),
        Code::Forbidden
    );
    assert_eq!(
        lab.code(Operation::Compact, "a", json!({"strategy": "archive"})),
        Code::Forbidden
    );
}
