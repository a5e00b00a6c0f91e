//! RECORD: what is accepted, what is refused, and what it does to others.

use field::{
    Administration, Caller, Code, Config, Detection, Embedding, Event, Level, Limits, Model,
    Operation, Vector, administer,
};
use serde_json::{Value, json};

use crate::common::{Lab, key, related, unit};

const RECORD: Operation = Operation::Record;

fn refused(level: Level, payload: Value) -> Code {
    Lab::with_agents(level, &["a"]).code(RECORD, "a", payload)
}

#[test]
fn ak_rec_01_08_both_modes_work_and_start_as_draft_and_active() {
    let mut lab = Lab::with_agents(Level::Starter, &["a"]);
    for (mode, status) in [("draft", "draft"), ("committed", "active")] {
        let id = lab.unit("a", "finding", "x", json!({"mode": mode}));
        assert_eq!(lab.status(&id), status);
    }
}

#[test]
fn ak_rec_02_type_content_and_purpose_are_needed() {
    for name in ["mode", "type", "content"] {
        let mut payload = unit("finding", "x", json!({}));
        payload.as_object_mut().unwrap().remove(name);
        assert_eq!(
            refused(Level::Starter, payload),
            Code::InvalidRequest,
            "{name}"
        );
    }
    for content in [json!(""), json!(7), json!(null)] {
        let payload = unit("finding", "x", json!({"content": content}));
        assert_eq!(refused(Level::Starter, payload), Code::InvalidRequest);
    }
    let payload = unit("finding", "x", json!({"mode": "final"}));
    assert_eq!(refused(Level::Starter, payload), Code::InvalidRequest);
}

#[test]
fn ak_rec_03_a_purpose_is_needed_in_drafts_too() {
    for mode in ["draft", "committed"] {
        for intent in [
            json!(null),
            json!({}),
            json!({"purpose": ""}),
            json!({"purpose": " \u{2003}\t"}),
        ] {
            let payload = unit("finding", "x", json!({"mode": mode, "intent": intent}));
            assert_eq!(refused(Level::Starter, payload), Code::MissingIntent);
        }
    }
    let payload = unit("finding", "x", json!({"intent": {"purpose": "p"}}));
    Lab::with_agents(Level::Starter, &["a"]).ok(RECORD, "a", payload);
}

#[test]
fn ak_rec_04_committed_units_state_confidence_from_level_1() {
    for confidence in [
        json!(null),
        json!({}),
        json!({"score": 0.5}),
        json!({"reasoning": "r"}),
        json!({"score": 0.5, "reasoning": " "}),
        json!({"score": null, "reasoning": "r"}),
    ] {
        let payload = unit("finding", "x", json!({"confidence": confidence}));
        assert_eq!(
            refused(Level::Core, payload.clone()),
            Code::MissingConfidence
        );
        Lab::with_agents(Level::Starter, &["a"]).ok(RECORD, "a", payload.clone());
        let mut draft = payload;
        draft["mode"] = json!("draft");
        Lab::with_agents(Level::Core, &["a"]).ok(RECORD, "a", draft);
    }
}

#[test]
fn ak_rec_05_scores_are_numbers_from_0_to_1() {
    for score in [
        json!(-0.01),
        json!(1.01),
        json!("0.5"),
        json!([0.5]),
        json!(1e9),
    ] {
        for mode in ["draft", "committed"] {
            let payload = unit(
                "finding",
                "x",
                json!({"mode": mode, "confidence": {"score": score, "reasoning": "r"}}),
            );
            assert_eq!(
                refused(Level::Starter, payload),
                Code::InvalidConfidence,
                "{score}"
            );
        }
    }
    for score in [json!(0), json!(1), json!(0.0), json!(1.0), json!(0.333)] {
        let payload = unit(
            "finding",
            "x",
            json!({"confidence": {"score": score, "reasoning": "r"}}),
        );
        Lab::with_agents(Level::Core, &["a"]).ok(RECORD, "a", payload);
    }
}

#[test]
fn ak_rec_06_there_are_eleven_types() {
    let mut lab = Lab::with_agents(Level::Core, &["a"]);
    assert_eq!(field::MemoryType::ALL.len(), 11);
    for kind in field::MemoryType::ALL {
        lab.unit("a", kind.as_str(), "x", json!({}));
    }
    for kind in [json!("rumour"), json!("Finding"), json!(1)] {
        let payload = unit("finding", "x", json!({"type": kind}));
        assert_eq!(refused(Level::Core, payload), Code::InvalidType);
    }
}

#[test]
fn ak_rec_07_what_the_field_sets_nobody_else_sets_and_nothing_is_misspelt() {
    for (name, value) in [
        ("id", json!("mem_1")),
        ("epoch", json!(3)),
        ("source", json!({})),
        ("status", json!("active")),
        ("realtions", json!([])),
    ] {
        let payload = unit("finding", "x", json!({name: value}));
        assert_eq!(
            refused(Level::Starter, payload),
            Code::InvalidRequest,
            "{name}"
        );
    }
    for (name, value) in [
        ("intent", json!({"purpose": "p", "tsak_id": "t"})),
        (
            "confidence",
            json!({"score": 1, "reasoning": "r", "why": 1}),
        ),
        (
            "relations",
            json!([{"type": "informs", "target_id": "t", "note": 1}]),
        ),
    ] {
        let payload = unit("finding", "x", json!({name: value}));
        assert_eq!(
            refused(Level::Starter, payload),
            Code::InvalidRequest,
            "{name}"
        );
    }
}

#[test]
fn ak_rec_10_each_contradiction_makes_a_conflict() {
    let mut lab = Lab::with_agents(Level::Core, &["a", "b"]);
    let (one, two) = (lab.note("a", "x", &[]), lab.note("a", "y", &[]));
    let relations = related(&[
        ("contradicts", &one),
        ("contradicts", &two),
        ("contradicts", &one),
    ]);
    let answer = lab.ok(
        RECORD,
        "b",
        unit("finding", "z", json!({"relations": relations})),
    );
    let new = answer["memory_unit_id"].as_str().unwrap();
    assert_eq!(
        answer["conflicts_detected"].as_array().unwrap().len(),
        2,
        "each pair once"
    );
    let listed = lab.ok(Operation::Detect, "b", json!({"mode": "list"}));
    let first = &listed["conflicts"][0];
    assert_eq!(first["id"], answer["conflicts_detected"][0]);
    assert_eq!(
        (&first["unit_a"], &first["unit_b"]),
        (&json!(one), &json!(new))
    );
    assert_eq!(first["status"], "detected");
    assert_eq!(first["detected_by"], "explicit");
    assert_eq!(first["type"], "factual");
    for unit in [one.as_str(), two.as_str(), new] {
        assert_eq!(lab.status(unit), "contested");
    }
}

#[test]
fn an_agent_may_contradict_itself_and_replace_what_it_contradicts() {
    let mut lab = Lab::with_agents(Level::Core, &["a"]);
    let one = lab.note("a", "x", &[]);
    let relations = related(&[("contradicts", &one), ("supersedes", &one)]);
    let answer = lab.ok(
        RECORD,
        "a",
        unit("finding", "not x", json!({"relations": relations})),
    );
    assert_eq!(answer["conflicts_detected"].as_array().unwrap().len(), 1);
    assert_eq!(
        lab.status(&one),
        "superseded",
        "a conflict does not bring back what was replaced"
    );
    assert_eq!(
        lab.status(answer["memory_unit_id"].as_str().unwrap()),
        "contested"
    );
}

#[test]
fn ak_rec_13_a_unit_whose_embedding_fails_is_kept_and_enriched_later() {
    for level in [Level::Standard, Level::Full] {
        let mut lab = Lab::with_agents(level, &["a", "b"]);
        lab.embedding = Embedding::Failed("the model does not answer".into());
        let answer = lab.ok(RECORD, "a", unit("finding", "volcano", json!({})));
        let id = answer["memory_unit_id"].as_str().unwrap().to_owned();
        assert_eq!(
            answer["warnings"],
            json!(["ENRICHMENT_FAILED: the model does not answer"])
        );
        assert_eq!(lab.status(&id), "pending_enrichment");
        assert_eq!(
            lab.field.pending_enrichment().collect::<Vec<_>>(),
            [id.as_str()]
        );
        assert_eq!(lab.seen_by("b"), [id.as_str()], "it is found by its words");
        let fresh = lab.fresh();
        let vector = Vector::quantized(
            Model {
                name: "m".into(),
                sha256: Model::hash_1024().sha256,
            },
            &[0.1, 0.9],
        );
        let act = Administration::Enrich {
            unit_id: id.clone(),
            embedding: Embedding::Given(vector.unwrap()),
        };
        let decision = administer(&lab.field, &act, &fresh).unwrap();
        lab.field.commit(&decision).unwrap();
        lab.log.extend(decision.steps);
        assert_eq!(lab.status(&id), "active");
        assert_eq!(
            administer(&lab.field, &act, &fresh).unwrap_err().code(),
            Code::InvalidTransition
        );
        assert_eq!(lab.refolded().unit_status(&id), lab.field.unit_status(&id));
    }
}

#[test]
fn ak_rec_14_late_detection_is_deferred() {
    for level in [Level::Standard, Level::Full] {
        let mut lab = Lab::with_agents(level, &["a"]);
        lab.detection = Detection::Late;
        let more = json!({"intent": {"purpose": "p", "task_id": "t"}});
        let answer = lab.ok(RECORD, "a", unit("finding", "x", more));
        assert_eq!(answer["conflict_detection"], "deferred");
        assert_eq!(answer["conflicts_detected"], json!([]));
        assert!(
            answer["warnings"][0]
                .as_str()
                .unwrap()
                .starts_with("DETECTION_TIMEOUT:")
        );
    }
}

#[test]
fn ak_rec_15_what_is_replaced_is_superseded_and_its_content_stays() {
    let mut lab = Lab::with_agents(Level::Starter, &["a", "b", "c"]);
    let one = lab.note("a", "x", &[]);
    let two = lab.note("b", "y", &[("supersedes", &one)]);
    assert_eq!(lab.status(&one), "superseded");
    assert_eq!(lab.field.text_of(&one).unwrap().content, "x");
    // The relation is kept as written: a second replacement of the first does not touch the second.
    lab.note("c", "z", &[("supersedes", &one)]);
    assert_eq!(lab.status(&two), "active");
}

#[test]
fn ak_rec_15_a_draft_replaces_nothing_but_drafts_of_its_author() {
    let mut lab = Lab::with_agents(Level::Core, &["a", "b"]);
    let committed = lab.note("a", "x", &[]);
    let foreign = lab.unit("b", "finding", "y", json!({"mode": "draft"}));
    let own = lab.unit("a", "finding", "z", json!({"mode": "draft"}));
    let relations = related(&[
        ("supersedes", &committed),
        ("supersedes", &foreign),
        ("supersedes", &own),
    ]);
    let answer = lab.ok(
        RECORD,
        "a",
        unit(
            "finding",
            "w",
            json!({"mode": "draft", "relations": relations}),
        ),
    );
    assert_eq!(answer["warnings"].as_array().unwrap().len(), 2);
    assert_eq!(lab.status(&committed), "active");
    assert_eq!(lab.status(&foreign), "draft");
    assert_eq!(lab.status(&own), "superseded");
}

#[test]
fn ak_rec_16_units_are_retracted_by_their_author_or_the_operator() {
    let act = |agent: &str, ceiling, unit: &str, reason: &str| Administration::Retract {
        caller: Some(key("k", ceiling)),
        agent_id: agent.into(),
        unit_id: unit.into(),
        reason: reason.into(),
    };
    for level in [Level::Core, Level::Standard, Level::Full] {
        let mut lab = Lab::with_agents(level, &["a", "b"]);
        lab.join("op", 10);
        let (one, two) = (lab.note("a", "x", &[]), lab.note("a", "y", &[]));
        lab.note("a", "z", &[("supersedes", &two)]);
        let fresh = lab.fresh();
        let foreign = Administration::Retract {
            caller: Some(Caller {
                agents: vec!["b".into()],
                ..key("k", 10)
            }),
            agent_id: "a".into(),
            unit_id: one.clone(),
            reason: "r".into(),
        };
        for (act, code) in [
            (act("b", 8, &one, "r"), Code::Forbidden),
            (act("a", 2, &one, "r"), Code::Forbidden),
            (foreign, Code::Forbidden),
            (act("a", 4, &two, "r"), Code::InvalidTransition),
            (act("a", 4, "none", "r"), Code::UnitNotFound),
            (act("a", 4, &one, " "), Code::InvalidRequest),
            (act("c", 10, &one, "r"), Code::AgentNotRegistered),
        ] {
            assert_eq!(
                administer(&lab.field, &act, &fresh).unwrap_err().code(),
                code,
                "{act:?} at {level:?}"
            );
        }
        let decision =
            administer(&lab.field, &act("a", 4, &one, "measured wrong"), &fresh).unwrap();
        lab.field.commit(&decision).unwrap();
        assert_eq!(decision.steps[0].0.event.event_type(), "UNIT_RETRACTED");
        assert_eq!(lab.status(&one), "retracted");
        assert!(!lab.seen_by("b").contains(&one));
        let again = administer(&lab.field, &act("op", 10, &one, "r"), &fresh);
        assert_eq!(
            again.unwrap_err().code(),
            Code::InvalidTransition,
            "retracted is final"
        );
    }
    let lab = Lab::with_agents(Level::Starter, &["a"]);
    let fresh = Lab::at(Level::Starter).fresh();
    let refused = administer(&lab.field, &act("a", 10, "none", "r"), &fresh);
    assert_eq!(refused.unwrap_err().code(), Code::UnsupportedOperation);
}

#[test]
fn why_a_unit_of_a_session_was_retracted_is_for_its_members() {
    let mut lab = Lab::with_agents(Level::Full, &["a", "b"]);
    let session = json!({"action": "create", "session": {"id": "s", "goal": "g"}});
    lab.ok(Operation::Session, "a", session);
    lab.session = Some("s".into());
    let one = lab.note("a", "x", &[]);
    lab.session = None;
    let act = |agent: &str| Administration::Retract {
        caller: Some(key("k", 10)),
        agent_id: agent.into(),
        unit_id: one.clone(),
        reason: "a secret reason".into(),
    };
    let fresh = lab.fresh();
    let hidden = administer(&lab.field, &act("b"), &fresh);
    assert_eq!(hidden.unwrap_err().code(), Code::UnitNotFound);
    let decision = administer(&lab.field, &act("a"), &fresh).unwrap();
    lab.field.commit(&decision).unwrap();
    let payload = json!({"target_type": "memory_unit", "target_id": one, "depth": "full_trace"});
    let told = lab.ok(Operation::Replay, "b", payload.clone()).to_string();
    assert!(!told.contains("secret"), "{told}");
    let told = lab.ok(Operation::Replay, "a", payload).to_string();
    assert!(told.contains("Retracted: a secret reason"), "{told}");
}

#[test]
fn ak_rec_17_dangling_relations_are_accepted_but_a_conflict_needs_two_units() {
    let mut lab = Lab::with_agents(Level::Starter, &["a"]);
    for kind in field::RelationType::ALL {
        let payload = unit(
            "finding",
            "x",
            json!({"relations": related(&[(kind.as_str(), "mem_none")])}),
        );
        if kind.as_str() == "contradicts" {
            assert_eq!(lab.code(RECORD, "a", payload), Code::UnitNotFound);
        } else {
            assert_eq!(
                lab.ok(RECORD, "a", payload)["warnings"]
                    .as_array()
                    .unwrap()
                    .len(),
                1
            );
        }
    }
}

#[test]
fn ak_rec_18_a_draft_becomes_knowledge_by_a_committed_unit_that_replaces_it() {
    let mut lab = Lab::with_agents(Level::Starter, &["a", "b"]);
    let draft = lab.unit("a", "finding", "x", json!({"mode": "draft"}));
    assert_eq!(
        lab.seen_by("b"),
        [draft.as_str()],
        "drafts are visible to others"
    );
    let committed = lab.note("a", "x", &[("supersedes", &draft)]);
    assert_eq!(lab.status(&draft), "superseded");
    assert_eq!(lab.seen_by("b"), [committed]);
}

#[test]
fn ak_rec_19_committed_needs_authority_4_and_drafts_2() {
    let mut lab = Lab::at(Level::Full);
    for (agent, authority) in [("auditor", 0), ("observer", 2), ("standard", 4)] {
        lab.join(agent, authority);
    }
    let draft = || unit("finding", "x", json!({"mode": "draft"}));
    let committed = || unit("finding", "x", json!({}));
    assert_eq!(lab.code(RECORD, "auditor", draft()), Code::Forbidden);
    assert_eq!(lab.code(RECORD, "observer", committed()), Code::Forbidden);
    lab.ok(RECORD, "observer", draft());
    lab.ok(RECORD, "standard", committed());
}

#[test]
fn contents_and_relations_have_a_limit() {
    let mut config = Config::at(Level::Core);
    config.limits = Limits {
        content_bytes_max: 10,
        relations_max: 2,
        ..config.limits
    };
    let mut lab = Lab::with(config);
    lab.join("a", 4);
    lab.note("a", "0123456789", &[]);
    assert_eq!(
        lab.code(RECORD, "a", unit("finding", "01234567890", json!({}))),
        Code::InvalidRequest
    );
    let relations = related(&[("informs", "x"), ("informs", "y")]);
    lab.ok(
        RECORD,
        "a",
        unit("finding", "x", json!({"relations": relations})),
    );
    let relations = related(&[("informs", "x"), ("informs", "y"), ("informs", "z")]);
    assert_eq!(
        lab.code(
            RECORD,
            "a",
            unit("finding", "x", json!({"relations": relations}))
        ),
        Code::InvalidRequest
    );
}

#[test]
fn ak_rec_09_log_05_the_entry_holds_relations_and_no_text() {
    let mut lab = Lab::with_agents(Level::Standard, &["a"]);
    let target = lab.note("a", "target", &[]);
    let more = json!({
        "intent": {"purpose": "secret-purpose", "task_id": "t", "question": "secret-question"},
        "confidence": {"score": 0.25, "reasoning": "secret-reason", "evidence": ["secret-e"], "assumptions": ["secret-a"]},
        "relations": [{"type": "supports", "target_id": target, "description": "secret-d"}],
    });
    lab.unit("a", "finding", "secret-content", more);
    let (entry, content) = lab.log.last().unwrap();
    let bytes = serde_json::to_string(entry).unwrap();
    assert!(!bytes.contains("secret"), "{bytes}");
    let Event::Recorded(recorded) = &entry.event else {
        panic!()
    };
    assert_eq!(recorded.relations[0].target_id, target);
    assert_eq!(recorded.task_id.as_deref(), Some("t"));
    assert_eq!(recorded.score, Some(0.25));
    let text = content.as_ref().unwrap().text.as_ref().unwrap();
    assert_eq!(recorded.text_sha256, text.sha256());
    // The same words again have another digest: it cannot be guessed.
    lab.note("a", "same", &[]);
    lab.note("a", "same", &[]);
    let digests: Vec<_> = lab
        .log
        .iter()
        .rev()
        .take(2)
        .map(|(_, content)| content.as_ref().unwrap().text.as_ref().unwrap().sha256())
        .collect();
    assert_ne!(digests[0], digests[1]);
}

#[test]
fn a_text_that_is_not_the_one_named_is_refused_by_the_fold() {
    let mut lab = Lab::with_agents(Level::Core, &["a"]);
    lab.note("a", "x", &[]);
    let (entry, content) = lab.log.pop().unwrap();
    let mut content = content.unwrap();
    content.text.as_mut().unwrap().content = "y".into();
    let mut field = lab.refolded();
    assert!(field.apply(&entry, Some(&content)).is_err());
    assert_eq!(field.head(), 1, "nothing was changed");
    field.apply(&entry, None).unwrap();
    assert!(
        field.apply(&entry, None).is_err(),
        "an entry is applied once"
    );
}
