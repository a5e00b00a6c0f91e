//! What goes into a receipt, and what is left out.

use canon::{Map, Value, jcs, sha256};
use receipts::*;
use serde_json::json;

use crate::{
    common::{
        REPLAY_FIXTURE, TASK_FIXTURE, published_object, repeated, replay_facts, reseal, task_facts,
    },
    published,
};

fn names(map: &Map<String, Value>) -> Vec<&str> {
    map.keys().map(String::as_str).collect()
}

fn built(change: impl FnOnce(&mut TaskFacts)) -> Map<String, Value> {
    let mut facts = task_facts();
    change(&mut facts);
    build_task(&facts).unwrap().as_map().clone()
}

/// AP-RCPT-01.
#[test]
fn ap_rcpt_01_the_facts_of_the_published_receipt_give_its_bytes() {
    let Some(mut expected) = published_object(TASK_FIXTURE) else {
        return;
    };
    // We always put the event log first and sign separately.
    let log = json!({
        "kind": "event_log",
        "id": "event_log_1",
        "uri": "artifact://artifact_1",
        "sha256": repeated('9').to_string(),
        "content_type": "application/jsonl",
    });
    let materials = &mut expected["replay_input"]["materials"];
    materials.as_array_mut().unwrap().insert(0, log);
    expected["signatures"] = json!([]);
    reseal(&mut expected);
    let receipt = build_task(&published::task_facts(&expected)).unwrap();
    assert_eq!(
        String::from_utf8(receipt.bytes()).unwrap(),
        String::from_utf8(jcs(&Value::Object(expected))).unwrap()
    );
    assert_eq!(receipt.stated_hash(), Some(receipt.hash()));
}

/// AP-RPL-21: member set, delta order and paths of the fixture, without `merkle_root`.
#[test]
fn ap_rpl_21_the_facts_of_the_published_replay_give_its_bytes() {
    let Some(mut expected) = published_object(REPLAY_FIXTURE) else {
        return;
    };
    expected["chain"]
        .as_object_mut()
        .unwrap()
        .remove("merkle_root");
    reseal(&mut expected);
    let facts = published::replay_facts(&expected);
    assert_eq!(
        String::from_utf8(build_replay(&facts).unwrap().bytes()).unwrap(),
        String::from_utf8(jcs(&Value::Object(expected))).unwrap()
    );
}

#[test]
fn a_task_receipt_writes_its_empty_lists_and_never_deltas() {
    let map = built(|facts| {
        facts.approvals.clear();
        facts.redactions.clear();
        facts.metadata.clear();
    });
    for name in ["approvals", "redactions", "signatures"] {
        assert_eq!(map[name], json!([]), "{name}");
    }
    assert_eq!(map["metadata"], json!({}));
    assert!(!map.contains_key("deltas"));
    assert_eq!(map.len(), 19);
}

#[test]
fn a_replay_receipt_has_exactly_the_member_set_of_the_contract() {
    let receipt = build_replay(&replay_facts()).unwrap();
    let mut wanted: Vec<&str> =
        "schema receipt_id subject issuer issued_at identifiers lifecycle trust \
        autonomy_budget replay_input model_route cost side_effects final_artifacts chain deltas \
        redactions signatures metadata"
            .split_whitespace()
            .collect();
    wanted.sort_unstable();
    assert_eq!(names(receipt.as_map()), wanted);
    assert_eq!(
        names(receipt.as_map()["autonomy_budget"].as_object().unwrap()),
        ["consumed"]
    );
    assert_eq!(
        names(receipt.as_map()["chain"].as_object().unwrap()),
        ["previous_receipt_hash", "receipt_hash"]
    );
    assert_eq!(
        names(receipt.as_map()["issuer"].as_object().unwrap()),
        ["id", "kind", "name", "version"]
    );
}

#[test]
fn replay_materials_stand_in_order_and_secrets_leave_no_digest() {
    let mut facts = replay_facts();
    let stored = |id: &str| Material {
        kind: MaterialKind::HostFact,
        id: id.to_owned(),
        content_type: None,
        content: MaterialContent::Stored {
            uri: "artifact://a".to_owned(),
            sha256: repeated('5'),
        },
    };
    let overridden = facts.replay_input.materials.remove(0);
    facts.replay_input.materials = vec![stored("z:1"), stored("a:1"), overridden];
    facts.applied.push(Applied {
        key: "secret:token".to_owned(),
        operation: DeltaOperation::Replace,
        event_id: None,
        before_sha256: Some(repeated('3')),
        after_sha256: Some(repeated('4')),
        artifact_id: None,
        reason: "override".to_owned(),
    });
    facts.applied.push(Applied {
        key: "host:env:main:1".to_owned(),
        operation: DeltaOperation::Add,
        event_id: None,
        before_sha256: None,
        after_sha256: Some(repeated('4')),
        artifact_id: Some("artifact_1".to_owned()),
        reason: "override".to_owned(),
    });
    let receipt = build_replay(&facts).unwrap();
    let column = |list: &Value, name: &str| -> Vec<String> {
        let items = list.as_array().unwrap().iter();
        items
            .map(|item| item[name].as_str().unwrap().to_owned())
            .collect()
    };
    let materials = &receipt.as_map()["replay_input"]["materials"];
    assert_eq!(
        column(materials, "id"),
        ["event_log_task_5", "llm:main:1", "a:1", "z:1"]
    );
    let deltas = &receipt.as_map()["deltas"];
    assert_eq!(
        column(deltas, "override_key"),
        [
            "host:env:main:1",
            "llm:main:1",
            "secret:token",
            "time:started_at"
        ]
    );
    assert_eq!(deltas[0]["before_sha256"], Value::Null);
    assert_eq!(
        names(deltas[2].as_object().unwrap()),
        ["delta_id", "operation", "override_key", "path", "reason"]
    );
    assert!(
        !String::from_utf8(receipt.bytes())
            .unwrap()
            .contains(&"3".repeat(64))
    );
}

#[test]
fn a_failed_replay_says_why_and_a_run_without_model_says_so() {
    let mut facts = replay_facts();
    facts.chosen_model = None;
    facts.lifecycle.end = TaskEnd::Failed(Failure {
        code: "replay_divergence".to_owned(),
        message: "differs".to_owned(),
        details: Some(Map::from_iter([(
            "replay_cursor".to_owned(),
            "event_1".into(),
        )])),
    });
    let receipt = build_replay(&facts).unwrap();
    let map = receipt.as_map();
    assert_eq!(map["lifecycle"]["final_state"], "FAILED");
    assert_eq!(
        map["lifecycle"]["failure"]["details"]["replay_cursor"],
        "event_1"
    );
    assert_eq!(
        map["model_route"]["chosen_model"],
        json!({"provider": "none", "model": "none"})
    );
}

#[test]
fn money_is_added_in_millionths_and_converted_once() {
    let map = built(|facts| {
        let call = |cost| ModelCall {
            cost: Some(Micros(cost)),
            price_table: Some("2026-04".to_owned()),
            ..facts.model_calls[0].clone()
        };
        facts.model_calls = vec![call(100_000), call(200_000)];
    });
    let text = String::from_utf8(jcs(&map["cost"])).unwrap();
    // 0.1 + 0.2 added as doubles would print 0.30000000000000004.
    assert_eq!(
        text,
        r#"{"currency":"USD","provider_breakdown":[{"amount":0.3,"input_tokens":3400,"metadata":{"price_table":"2026-04"},"model":"small","output_tokens":620,"provider":"local"}],"total":0.3}"#
    );
}

#[test]
fn every_amount_is_the_nearest_double() {
    for amount in (0..300).map(|number| number * 7_919_017) {
        let map = built(|facts| facts.consumed.usd = Micros(amount));
        let decimal = format!("{}.{:06}", amount / 1_000_000, amount % 1_000_000);
        let nearest: f64 = decimal.parse().unwrap();
        assert_eq!(
            map["autonomy_budget"]["consumed"]["usd"].as_f64(),
            Some(nearest)
        );
    }
}

#[test]
fn an_unknown_price_is_named_and_not_counted() {
    let map = built(|facts| {
        let mut unpriced = facts.model_calls[0].clone();
        unpriced.model.model = "new/model".to_owned();
        unpriced.cost = None;
        facts.model_calls.insert(0, unpriced.clone());
        facts.model_calls.insert(0, unpriced);
    });
    assert_eq!(map["cost"]["total"], json!(0.0375));
    assert_eq!(
        map["cost"]["provider_breakdown"].as_array().unwrap().len(),
        1
    );
    assert_eq!(
        map["redactions"].as_array().unwrap()[1..],
        [json!({"field": "/cost/provider_breakdown/local/new~1model", "reason": "price_unknown"})]
    );
    assert_eq!(map["model_route"]["chosen_model"]["model"], "small");
    assert_eq!(
        map["model_route"]["alternatives_considered"][0],
        json!({"provider": "local", "model": "new/model", "version": "2", "reason": "also used"})
    );
}

#[test]
fn a_task_that_never_started_and_called_no_model_still_has_a_receipt() {
    let map = built(|facts| {
        facts.lifecycle.started_at = None;
        facts.lifecycle.end = TaskEnd::Canceled;
        facts.model_calls.clear();
        facts.alternatives.clear();
        facts.consumed = Budget::default();
        facts.side_effects = SideEffects::default();
        facts.final_artifacts.clear();
        facts.replay_input.determinism = Determinism::Unavailable("recording was off".to_owned());
    });
    assert_eq!(
        map["lifecycle"]["started_at"],
        map["lifecycle"]["created_at"]
    );
    assert_eq!(map["lifecycle"]["final_state"], "CANCELED");
    assert_eq!(map["lifecycle"]["failure"], Value::Null);
    assert_eq!(
        map["model_route"]["route_policy_reason"],
        "no model call was made"
    );
    assert_eq!(
        map["cost"],
        json!({"currency": "USD", "total": 0, "provider_breakdown": []})
    );
    assert_eq!(
        map["autonomy_budget"]["consumed"]
            .as_object()
            .unwrap()
            .len(),
        5
    );
    assert_eq!(
        map["replay_input"]["unavailable_reason"],
        "recording was off"
    );
}

#[test]
fn ap_rcpt_10_inline_material_carries_its_digest() {
    let map = built(|facts| {
        facts.replay_input.materials[0].content = MaterialContent::Inline(b"hello".to_vec())
    });
    let material = &map["replay_input"]["materials"][1];
    assert_eq!(material["bytes_base64"], "aGVsbG8=");
    assert_eq!(material["sha256"], sha256(b"hello").to_string());
    assert!(material.get("uri").is_none());
}

#[test]
fn a_receipt_that_cannot_say_whose_it_is_or_when_is_refused() {
    let refused = |change: &dyn Fn(&mut TaskFacts)| {
        let mut facts = task_facts();
        change(&mut facts);
        build_task(&facts).unwrap_err().to_string()
    };
    for (message, expected) in [
        (refused(&|facts| facts.receipt_id.clear()), "`/receipt_id`"),
        (
            refused(&|facts| facts.issued_at = "today".to_owned()),
            "`/issued_at`",
        ),
    ] {
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn u5_content_that_the_format_cannot_say_is_left_out_and_named() {
    let deep = (0..300).fold(json!(1), |inner, _| json!({"in": inner}));
    let map = built(|facts| {
        facts.consumed.input_tokens = 9_007_199_254_740_993;
        facts.consumed.output_tokens = u64::MAX;
        facts.consumed.usd = Micros((1 << 53) + 1);
        facts.model_calls.push(ModelCall {
            cost: Some(Micros(u64::MAX)),
            input_tokens: u64::MAX,
            ..facts.model_calls[0].clone()
        });
        facts.currency = "usd".to_owned();
        facts.side_effects.tool_calls.push(ToolCall {
            tool: String::new(),
            call_id: String::new(),
            status: ToolStatus::Failed,
            input_hash: None,
            output_hash: None,
            sandbox: None,
        });
        facts.lifecycle.end = TaskEnd::Failed(Failure {
            code: String::new(),
            message: "too much".to_owned(),
            details: json!({"count": u64::MAX, "deep": deep.clone()})
                .as_object()
                .cloned(),
        });
        facts.metadata.insert("n".to_owned(), json!(1_u64 << 60));
    });
    let consumed = &map["autonomy_budget"]["consumed"];
    assert!(consumed.get("input_tokens").is_none());
    assert!(consumed.get("output_tokens").is_none());
    assert!(consumed.get("usd").is_none());
    assert_eq!(map["cost"]["total"], 0);
    let call = map["side_effects"]["tool_calls"].as_array().unwrap();
    assert_eq!(call.last().unwrap()["call_id"], "unknown");
    assert_eq!(map["metadata"]["n"], (1_u64 << 60).to_string());
    assert_eq!(
        map["lifecycle"]["failure"]["details"]["count"],
        u64::MAX.to_string()
    );
    let named: Vec<&str> = map["redactions"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|redaction| redaction["reason"] == "unrepresentable")
        .map(|redaction| redaction["field"].as_str().unwrap())
        .collect();
    for field in [
        "/autonomy_budget/consumed/input_tokens",
        "/autonomy_budget/consumed/output_tokens",
        "/autonomy_budget/consumed/usd",
        "/cost/currency",
        "/cost/total",
        "/lifecycle/failure/details/count",
        "/metadata/n",
    ] {
        assert!(named.contains(&field), "{field} in {named:?}");
    }
    assert!(named.iter().any(|field| field.ends_with("/call_id")));
    assert!(
        named
            .iter()
            .any(|field| field.starts_with("/lifecycle/failure/details/deep/"))
    );
}

#[test]
fn names_outside_the_basic_plane_sort_by_utf16() {
    let map = built(|facts| {
        facts.metadata = Map::from_iter([
            ("\u{fb01}".to_owned(), 1.into()),
            ("\u{1f600}".to_owned(), 2.into()),
        ]);
    });
    let receipt = Receipt::from_map(map).unwrap();
    let text = String::from_utf8(receipt.bytes()).unwrap();
    assert!(text.contains("\"metadata\":{\"\u{1f600}\":2,\"\u{fb01}\":1}"));
    assert!(stream::check(text.as_bytes()).is_ok());
}

#[test]
fn a_session_chains_its_receipts_and_a_fork_goes_on_from_its_parent() {
    let mut head = Head::EMPTY;
    let mut hashes = Vec::new();
    for _ in 0..3 {
        let mut facts = task_facts();
        facts.previous_receipt_hash = head.hash;
        let receipt = build_task(&facts).unwrap();
        assert_eq!(receipt.previous_hash(), hashes.last().copied());
        hashes.push(receipt.hash());
        head = head.advanced(receipt.hash());
    }
    assert_eq!(
        head,
        Head {
            hash: hashes.last().copied(),
            count: 3
        }
    );
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), 3);
}

#[test]
fn the_event_log_digest_ends_every_event_with_a_line_feed() {
    let events = [&b"{\"a\":1}"[..], b"{}"];
    assert_eq!(event_log_digest(events), sha256(b"{\"a\":1}\n{}\n"));
    assert_eq!(event_log_digest([]), sha256(b""));
}

/// AP-RCPT-09: a secret planted anywhere in the facts is in no byte of the receipt, and its place is named.
#[test]
fn planted_secrets_stay_out_wherever_they_stand() {
    const CANARY: &str = "rpk_canary0123456789abcdef";
    let plain = built(|_| {});
    let facts = task_facts();
    let same = build_task(&facts).unwrap().redacted().unwrap();
    assert_eq!(same.as_map(), &plain, "nothing to leave out");

    let leak = || format!("before {CANARY} after");
    let mut facts = task_facts();
    facts.approvals[0].actor = leak();
    facts.model_calls[0].model.provider = leak();
    facts.side_effects.tool_calls[0].tool = leak();
    facts.final_artifacts[0].kind = leak();
    facts.metadata = Map::from_iter([
        ("deep".to_owned(), json!([{"a/b": leak()}])),
        ("named".to_owned(), json!({"x": {leak(): 1}})),
    ]);
    facts.lifecycle.end = TaskEnd::Failed(Failure {
        code: "leaked".to_owned(),
        message: leak(),
        details: Some(Map::from_iter([("header".to_owned(), json!(leak()))])),
    });
    let receipt = build_task(&facts).unwrap().redacted().unwrap();
    let text = String::from_utf8(receipt.bytes()).unwrap();
    assert!(!text.contains(CANARY), "{text}");
    assert_eq!(receipt.stated_hash(), Some(receipt.hash()));
    let redactions = receipt.as_map()["redactions"].as_array().unwrap();
    for place in [
        "/approvals/0/actor",
        "/side_effects/tool_calls/0/tool",
        "/final_artifacts/0/kind",
        "/metadata/deep/0/a~1b",
        "/metadata/named/x",
        "/lifecycle/failure/message",
        "/lifecycle/failure/details/header",
    ] {
        let named = redactions.iter().find(|entry| entry["field"] == place);
        let named = named.unwrap_or_else(|| panic!("{place} in {redactions:?}"));
        assert_eq!(named["reason"], "looks like a secret");
        assert!(
            named.get("proof_hash").is_none(),
            "a digest would betray it"
        );
    }
    let mut facts = replay_facts();
    facts.lifecycle.end = TaskEnd::Failed(Failure {
        code: "leaked".to_owned(),
        message: leak(),
        details: None,
    });
    let replay = build_replay(&facts).unwrap().redacted().unwrap();
    assert!(!String::from_utf8(replay.bytes()).unwrap().contains(CANARY));
    assert_eq!(
        replay.as_map().len(),
        build_replay(&facts).unwrap().as_map().len()
    );
}
