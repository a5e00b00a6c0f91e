//! ATTUNE: what is shown, in which order, with which reason.

use field::{Code, Config, Embedding, Level, Limits, Model, Operation, Vector};
use serde_json::{Value, json};

use crate::common::{Lab, ids, related, unit};

const ATTUNE: Operation = Operation::Attune;

#[track_caller]
fn attune(lab: &mut Lab, agent: &str, scope: Value, more: Value) -> Value {
    let mut payload = json!({"scope": {"role": "analyst", "max_units": 100}});
    for (name, value) in scope.as_object().unwrap() {
        payload["scope"][name] = value.clone();
    }
    for (name, value) in more.as_object().unwrap() {
        payload[name] = value.clone();
    }
    lab.ok(ATTUNE, agent, payload)
}

#[test]
fn ak_att_01_role_and_max_units_are_needed() {
    let mut lab = Lab::with_agents(Level::Starter, &["a"]);
    for scope in [
        json!(null),
        json!({}),
        json!({"role": "r"}),
        json!({"role": "", "max_units": 1}),
        json!({"role": "r", "max_units": 0}),
        json!({"role": "r", "max_units": 1.5}),
        json!({"role": "r", "max_units": -1}),
        json!({"role": "r", "max_units": 1, "max_tokens": 0}),
        json!({"role": "r", "max_units": 1, "relevance_threshold": 1.5}),
        json!({"role": "r", "max_units": 1, "interests": "x"}),
        json!({"role": "r", "max_units": 1, "include_own": "yes"}),
    ] {
        assert_eq!(
            lab.code(ATTUNE, "a", json!({"scope": scope})),
            Code::InvalidRequest,
            "{scope}"
        );
    }
    for more in [
        json!({"format": "long"}),
        json!({"since_epoch": -1}),
        json!({"context_hint": 7}),
    ] {
        let mut payload = more;
        payload["scope"] = json!({"role": "r", "max_units": 1});
        assert_eq!(lab.code(ATTUNE, "a", payload), Code::InvalidRequest);
    }
}

#[test]
fn ak_att_02_own_units_are_left_out_unless_asked_for() {
    let mut lab = Lab::with_agents(Level::Starter, &["a", "b"]);
    let (own, other) = (lab.note("a", "x", &[]), lab.note("b", "y", &[]));
    assert_eq!(
        ids(&attune(&mut lab, "a", json!({}), json!({}))),
        [other.as_str()]
    );
    let all = ids(&attune(
        &mut lab,
        "a",
        json!({"include_own": true}),
        json!({}),
    ));
    assert_eq!(all.len(), 2);
    assert!(all.contains(&own) && all.contains(&other));
}

#[test]
fn ak_att_03_replaced_units_are_left_out() {
    let mut lab = Lab::with_agents(Level::Starter, &["a", "b"]);
    let one = lab.note("a", "x", &[]);
    let two = lab.note("a", "y", &[("supersedes", &one)]);
    assert_eq!(lab.seen_by("b"), [two]);
}

#[test]
fn ak_att_04_05_06_ranked_with_reasons_and_cut_after_sorting() {
    let mut lab = Lab::with_agents(Level::Starter, &["a", "b", "c"]);
    for number in 0..20 {
        lab.note(
            ["a", "b"][number % 2],
            &format!("unit number {number}"),
            &[],
        );
    }
    let all = attune(
        &mut lab,
        "c",
        json!({}),
        json!({"context_hint": "unit number 7"}),
    );
    let scores: Vec<f64> = all["record"]
        .as_array()
        .unwrap()
        .iter()
        .map(|record| record["relevance_score"].as_f64().unwrap())
        .collect();
    assert!(
        scores.windows(2).all(|pair| pair[0] >= pair[1]),
        "{scores:?}"
    );
    assert!(scores.iter().all(|score| (0.0..=1.0).contains(score)));
    for record in all["record"].as_array().unwrap() {
        let reason = record["relevance_reason"].as_str().unwrap();
        assert!(
            reason.starts_with("Mainly: ") && reason.contains(" Also: "),
            "{reason}"
        );
    }
    assert_eq!(all["record"][0]["memory_unit"]["content"], "unit number 7");
    assert!(
        all["record"][0]["relevance_reason"]
            .as_str()
            .unwrap()
            .starts_with("Mainly: its words are close to the request")
    );
    let few = attune(
        &mut lab,
        "c",
        json!({"max_units": 3}),
        json!({"context_hint": "unit number 7"}),
    );
    assert_eq!(few["context_budget"]["units_returned"], 3);
    assert_eq!(few["context_budget"]["units_available"], 20);
    assert_eq!(ids(&few), ids(&all)[..3]);
}

#[test]
fn ak_att_05_equal_scores_go_by_epoch_then_sequence() {
    let mut lab = Lab::with_agents(Level::Starter, &["a", "b"]);
    let mut recorded: Vec<String> = (0..6)
        .map(|_| lab.note("a", "the very same words", &[]))
        .collect();
    let answer = attune(&mut lab, "b", json!({"recency_weight": 0.0}), json!({}));
    recorded.reverse();
    assert_eq!(ids(&answer), recorded);
}

#[test]
fn ak_att_07_sub_01_a_poller_gets_exactly_what_is_new() {
    let mut lab = Lab::with_agents(Level::Core, &["a", "b"]);
    lab.note("a", "old", &[]);
    let mut since = attune(&mut lab, "b", json!({}), json!({}))["epoch"]
        .as_u64()
        .unwrap();
    for round in 0..3 {
        assert_eq!(
            ids(&attune(
                &mut lab,
                "b",
                json!({}),
                json!({"since_epoch": since})
            )),
            Vec::<String>::new()
        );
        let new = lab.note("a", &format!("new {round}"), &[]);
        let answer = attune(&mut lab, "b", json!({"since_epoch": since}), json!({}));
        assert_eq!(ids(&answer), [new]);
        since = answer["epoch"].as_u64().unwrap();
    }
    // The bound is inclusive.
    let new = lab.note("a", "newest", &[]);
    let epoch = lab.field.clock();
    assert_eq!(
        ids(&attune(
            &mut lab,
            "b",
            json!({"since_epoch": epoch}),
            json!({"since_epoch": epoch})
        )),
        [new]
    );
    let payload =
        json!({"scope": {"role": "r", "max_units": 1, "since_epoch": 1}, "since_epoch": 2});
    assert_eq!(lab.code(ATTUNE, "b", payload), Code::InvalidRequest);
}

#[test]
fn ak_att_08_open_conflicts_of_what_is_shown_and_of_own_units_are_included() {
    let mut lab = Lab::with_agents(Level::Standard, &["a", "b", "c", "d"]);
    let (_, _, seen) = lab.conflict(("a", 0.5), ("b", 0.4));
    let (_, _, ended) = lab.conflict(("a", 0.5), ("b", 0.4));
    lab.merge("a", &ended, "last_write_wins", json!({}))
        .unwrap();
    let conflicts = |answer: &Value| -> Vec<String> {
        answer["conflicts"]
            .as_array()
            .unwrap()
            .iter()
            .map(|conflict| conflict["id"].as_str().unwrap().to_owned())
            .collect()
    };
    let answer = attune(&mut lab, "c", json!({}), json!({}));
    assert_eq!(conflicts(&answer), [seen.as_str()]);
    let answer = attune(&mut lab, "a", json!({"since_epoch": 1_000}), json!({}));
    assert_eq!(
        conflicts(&answer),
        [seen.as_str()],
        "its own unit is contested"
    );
    let answer = attune(&mut lab, "d", json!({"since_epoch": 1_000}), json!({}));
    assert_eq!(conflicts(&answer), Vec::<String>::new());
}

#[test]
fn ak_att_09_words_and_vectors_find_what_is_asked_for() {
    let mut lab = Lab::with_agents(Level::Standard, &["a", "b"]);
    let wanted = lab.note("a", "Caching of rendered pages lowered latency", &[]);
    for number in 0..30 {
        lab.note(
            "a",
            &format!("Invoice {number} was paid by the customer"),
            &[],
        );
    }
    // No word in common but the beginnings of words: only the vectors can know.
    let answer = attune(
        &mut lab,
        "b",
        json!({"recency_weight": 0.0, "max_units": 1}),
        json!({"context_hint": "cacheability renderer"}),
    );
    assert_eq!(ids(&answer), [wanted.as_str()]);
    let mut starter = Lab::with_agents(Level::Core, &["a", "b"]);
    starter.note("a", "Caching of rendered pages lowered latency", &[]);
    let newer = starter.note("a", "Invoice was paid", &[]);
    let answer = attune(
        &mut starter,
        "b",
        json!({"max_units": 1}),
        json!({"context_hint": "cacheability renderer"}),
    );
    assert_eq!(ids(&answer), [newer], "below level 2 there are no vectors");
}

#[test]
fn ak_att_09_vectors_of_another_model_are_not_compared() {
    let mut lab = Lab::with_agents(Level::Standard, &["a", "b"]);
    let model = |name: &str| Model {
        name: name.into(),
        sha256: Model::hash_1024().sha256,
    };
    let vector =
        |name: &str| Embedding::Given(Vector::quantized(model(name), &[1.0, 0.0]).unwrap());
    lab.embedding = vector("one");
    lab.note("a", "alpha", &[]);
    let score = |lab: &mut Lab, embedding: Embedding| {
        lab.embedding = embedding;
        let answer = attune(lab, "b", json!({}), json!({"context_hint": "omega"}));
        answer["record"][0]["relevance_score"].as_f64().unwrap()
    };
    let same = score(&mut lab, vector("one"));
    let other = score(&mut lab, vector("two"));
    assert!(same > other, "{same} {other}");
    let failed = score(&mut lab, Embedding::Failed("no answer".into()));
    assert!(failed <= same, "words alone still give an answer");
}

#[test]
fn ak_att_09_task_relations_and_confidence_count() {
    let mut lab = Lab::with_agents(Level::Standard, &["a", "b"]);
    let mine = lab.note("b", "mine", &[]);
    let plain = lab.note("a", "same words", &[]);
    let of_task = lab.unit(
        "a",
        "finding",
        "same words",
        json!({"intent": {"purpose": "p", "task_id": "t"}}),
    );
    let near = lab.unit(
        "a",
        "finding",
        "same words",
        json!({"relations": related(&[("informs", &mine)])}),
    );
    let sure = lab.unit(
        "a",
        "finding",
        "same words",
        json!({"confidence": {"score": 1, "reasoning": "r"}}),
    );
    let decision = lab.unit("a", "decision", "same words", json!({}));
    let answer = attune(
        &mut lab,
        "b",
        json!({"active_task_id": "t", "recency_weight": 0}),
        json!({}),
    );
    let order = ids(&answer);
    let place = |id: &str| order.iter().position(|other| other == id).unwrap();
    assert_eq!(place(&of_task), 0);
    assert_eq!(place(&near), 1);
    assert!(place(&sure) < place(&plain) && place(&decision) < place(&plain));
    assert!(
        answer["record"][0]["relevance_reason"]
            .as_str()
            .unwrap()
            .contains("active task")
    );
}

#[test]
fn recency_can_be_ignored_or_dominate() {
    let mut lab = Lab::with_agents(Level::Standard, &["a", "b"]);
    let asked = lab.note("a", "volcano", &[]);
    let mut newest = String::new();
    for number in 0..200 {
        newest = lab.note("a", &format!("invoice {number}"), &[]);
    }
    let mut first = |weight: f64| {
        let answer = attune(
            &mut lab,
            "b",
            json!({"max_units": 1, "recency_weight": weight}),
            json!({"context_hint": "volcano"}),
        );
        ids(&answer).remove(0)
    };
    assert_eq!(first(0.0), asked);
    assert_eq!(first(1.0), newest);
}

#[test]
fn ak_att_10_token_budgets_are_kept_by_summaries_and_cuts() {
    let mut lab = Lab::with_agents(Level::Standard, &["a", "b"]);
    for number in 0..10 {
        lab.note(
            "a",
            &format!("Short start {number}. {}", "long tail ".repeat(200)),
            &[],
        );
    }
    for budget in [1, 150, 700, 1_000, 100_000] {
        let answer = attune(&mut lab, "b", json!({"max_tokens": budget}), json!({}));
        let used = answer["context_budget"]["tokens_used"].as_u64().unwrap();
        assert!(used <= budget, "{used} of {budget}");
        assert_eq!(answer["context_budget"]["tokens_budget"], budget);
        let formats: Vec<&str> = answer["record"]
            .as_array()
            .unwrap()
            .iter()
            .map(|record| record["format"].as_str().unwrap())
            .collect();
        match budget {
            1 => assert!(formats.is_empty()),
            1_000 => assert!(
                formats.contains(&"full") && formats.contains(&"summary"),
                "{formats:?}"
            ),
            100_000 => assert_eq!(formats, ["full"; 10]),
            _ => {}
        }
    }
    let answer = attune(&mut lab, "b", json!({}), json!({}));
    assert_eq!(answer["context_budget"]["tokens_used"], json!(null));
}

#[test]
fn ak_att_11_a_threshold_drops_lower_scores() {
    let mut lab = Lab::with_agents(Level::Standard, &["a", "b", "c"]);
    for number in 0..40 {
        lab.note(
            ["a", "b"][number % 2],
            &format!("volcano {}", "x ".repeat(number)),
            &[],
        );
    }
    let hint = json!({"context_hint": "volcano"});
    let all = attune(&mut lab, "c", json!({}), hint.clone());
    let scores: Vec<f64> = all["record"]
        .as_array()
        .unwrap()
        .iter()
        .map(|record| record["relevance_score"].as_f64().unwrap())
        .collect();
    for threshold in [0.0, scores[30], scores[20], scores[5], 1.0] {
        let answer = attune(
            &mut lab,
            "c",
            json!({"relevance_threshold": threshold}),
            hint.clone(),
        );
        let expected = scores.iter().filter(|score| **score >= threshold).count();
        assert_eq!(
            answer["context_budget"]["units_returned"], expected,
            "{threshold}"
        );
        assert_eq!(
            answer["context_budget"]["units_available"], expected,
            "{threshold}"
        );
    }
}

#[test]
fn ak_att_13_types_roles_and_sources_are_weighed() {
    let mut lab = Lab::with_agents(Level::Starter, &["a", "b", "reader"]);
    let observation = lab.unit("a", "observation", "words", json!({}));
    let contradiction = lab.unit("b", "contradiction", "words", json!({}));
    assert_eq!(lab.seen_by("reader"), [contradiction, observation]);
    // Many units of one agent do not crowd out the one of another.
    let mut lab = Lab::with_agents(Level::Starter, &["loud", "quiet", "reader"]);
    let quiet = lab.note("quiet", "words", &[]);
    for _ in 0..10 {
        lab.note("loud", "words", &[]);
    }
    assert_eq!(lab.seen_by("reader")[1], quiet);
    // A unit by an agent of the same role comes first.
    let mut lab = Lab::with_agents(Level::Starter, &["peer", "reader"]);
    lab.ok(
        Operation::Register,
        "other",
        json!({"id": "other", "role": "baker"}),
    );
    let peer = lab.note("peer", "words", &[]);
    lab.note("other", "words", &[]);
    assert_eq!(lab.seen_by("reader")[0], peer);
}

#[test]
fn ak_att_14_formats() {
    let mut lab = Lab::with_agents(Level::Starter, &["a", "b"]);
    lab.note("a", "First sentence. Second sentence.", &[]);
    let answer = attune(&mut lab, "b", json!({}), json!({"format": "ids_only"}));
    let names: Vec<&String> = answer["record"][0]["memory_unit"]
        .as_object()
        .unwrap()
        .keys()
        .collect();
    assert_eq!(names, ["epoch", "id", "status", "type"]);
    assert_eq!(answer["record"][0]["format"], "summary");
    let answer = attune(&mut lab, "b", json!({}), json!({"format": "summary"}));
    assert_eq!(
        answer["record"][0]["memory_unit"]["content"],
        "First sentence."
    );
    assert_eq!(answer["record"][0]["format"], "summary");
    let answer = attune(
        &mut lab,
        "b",
        json!({"temporal_layers": ["past"]}),
        json!({"format": "full"}),
    );
    let shown = &answer["record"][0];
    assert_eq!(shown["format"], "full");
    assert_eq!(
        shown["memory_unit"]["content"],
        "First sentence. Second sentence."
    );
    let names: Vec<&String> = shown["memory_unit"].as_object().unwrap().keys().collect();
    assert_eq!(
        names,
        [
            "confidence",
            "content",
            "epoch",
            "id",
            "intent",
            "mode",
            "relations",
            "source",
            "status",
            "type"
        ]
    );
}

#[test]
fn ak_att_15_the_same_field_gives_the_same_answer() {
    let mut lab = Lab::with_agents(Level::Standard, &["a", "b", "c"]);
    for number in 0..50 {
        lab.note(
            ["a", "b"][number % 2],
            &format!("unit {number} about {}", number % 7),
            &[],
        );
    }
    let ask = |lab: &mut Lab| {
        let mut answer = attune(
            lab,
            "c",
            json!({"interests": ["about 3"]}),
            json!({"context_hint": "unit 5"}),
        );
        answer["epoch"] = json!(null);
        canon::jcs(&answer)
    };
    let first = ask(&mut lab);
    for _ in 0..3 {
        assert_eq!(ask(&mut lab), first, "reads do not change what is read");
    }
    let mut other = lab.copied(lab.field.config().clone());
    assert_eq!(ask(&mut other), first, "neither does a restart");
}

#[test]
fn max_units_is_capped() {
    let mut config = Config::at(Level::Starter);
    config.limits = Limits {
        attune_units_max: 5,
        ..config.limits
    };
    let mut lab = Lab::with(config);
    lab.join("a", 4);
    lab.join("b", 4);
    for _ in 0..9 {
        lab.note("a", "x", &[]);
    }
    assert_eq!(
        attune(&mut lab, "b", json!({"max_units": 1_000_000}), json!({}))["context_budget"]["units_returned"],
        5
    );
}

#[test]
fn what_an_agent_was_shown_is_in_the_log() {
    let mut lab = Lab::with_agents(Level::Core, &["a", "b"]);
    let shown = lab.note("a", "x", &[]);
    lab.seen_by("b");
    let entry = &lab.log.last().unwrap().0;
    let field::Event::Attuned { unit_ids, .. } = &entry.event else {
        panic!()
    };
    assert_eq!(unit_ids, &[shown]);
    assert_eq!(entry.agent_id, "b");
    let _ = unit("finding", "x", json!({}));
}
