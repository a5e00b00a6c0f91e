//! The table in the product, our JSON Schema and the published one: the same documents pass.

use canon::{Map, Value};
use receipts::Receipt;
use serde_json::json;

use crate::common::{
    REPLAY_FIXTURE, TASK_FIXTURE, everything, pointers, published, published_object, remove,
};

struct Judges {
    ours: jsonschema::Validator,
    published: Option<jsonschema::Validator>,
}

impl Judges {
    fn new() -> Self {
        let compile = |bytes: &[u8]| {
            let schema: Value = serde_json::from_slice(bytes).unwrap();
            // `format: date-time` is meant: a receipt whose time is none cannot be verified.
            jsonschema::options()
                .should_validate_formats(true)
                .build(&schema)
                .unwrap()
        };
        Self {
            ours: compile(include_bytes!(
                "../../../../conformance/schemas/receipt-2026-04-25.schema.json"
            )),
            published: published("receipts/schemas/receipt-2026-04-25.schema.json")
                .map(|bytes| compile(&bytes)),
        }
    }

    /// Returns the common verdict.
    fn judge(&self, document: &Value, what: &str) -> bool {
        let verdict = match document {
            Value::Object(map) => Receipt::from_map(map.clone()).is_ok(),
            _ => false,
        };
        assert_eq!(verdict, self.ours.is_valid(document), "our schema: {what}");
        if let Some(published) = &self.published {
            let other = published.is_valid(document);
            assert_eq!(verdict, other, "published schema: {what}");
        }
        verdict
    }
}

fn originals() -> Vec<Map<String, Value>> {
    let fixtures = [
        TASK_FIXTURE,
        REPLAY_FIXTURE,
        "receipts/fixtures/invalid/missing-chain-hash.json",
    ];
    let mut originals: Vec<_> = fixtures.into_iter().filter_map(published_object).collect();
    originals.push(everything());
    originals
}

/// Values that fit somewhere and misfit elsewhere.
fn probes() -> Vec<Value> {
    let digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    vec![
        Value::Null,
        json!(true),
        json!(0),
        json!(-1),
        json!(-0.5),
        json!(-0.0),
        json!(1.5),
        json!(2.0),
        json!(9_007_199_254_740_991_u64),
        json!(""),
        json!(" "),
        json!("text"),
        json!("USD"),
        json!("usd"),
        json!("USDX"),
        json!("U\u{0660}D"),
        json!("USD\n"),
        json!("2026-04-25T19:17:33Z"),
        json!("2026-04-25T19:17:33.123456+02:00"),
        json!("2026-04-25T19:17:60Z"),
        json!("2026-02-30T19:17:33Z"),
        json!("2026-04-25 19:17:33Z"),
        json!("2026-04-25"),
        json!(digest),
        json!(digest.to_uppercase()),
        json!(&digest[..70]),
        json!(format!("{digest}0")),
        json!(format!("{digest}\n")),
        json!(&digest[7..]),
        json!(digest.replace("sha256", "sha512")),
        json!(digest.replace('a', "g")),
        json!("SUCCEEDED"),
        json!("task"),
        json!([]),
        json!([null]),
        json!([{}]),
        json!({}),
        json!({"unknown": 1}),
    ]
}

/// AP-RCPT-01, AP-RCPT-14.
#[test]
fn ap_rcpt_01_ap_rcpt_14_table_and_schemas_agree_on_every_mutation() {
    let judges = Judges::new();
    let (mut accepted, mut refused) = (0, 0);
    let mut judge = |document: &Value, what: String| {
        if judges.judge(document, &what) {
            accepted += 1;
        } else {
            refused += 1;
        }
    };
    for original in originals() {
        let original = Value::Object(original);
        judge(&original, "unchanged".to_owned());
        for pointer in pointers(&original) {
            for probe in probes() {
                let mut changed = original.clone();
                *changed.pointer_mut(&pointer).unwrap() = probe.clone();
                judge(&changed, format!("{pointer} = {probe}"));
            }
            if !pointer.is_empty() {
                let mut changed = original.clone();
                remove(&mut changed, &pointer);
                judge(&changed, format!("without {pointer}"));
            }
            let mut changed = original.clone();
            if let Value::Object(map) = changed.pointer_mut(&pointer).unwrap() {
                map.insert("unknown_member".to_owned(), json!("x"));
                judge(&changed, format!("{pointer} with an unknown member"));
            }
        }
    }
    // Both verdicts must occur often, or the comparison shows nothing.
    assert!(accepted > 500 && refused > 5000, "{accepted} / {refused}");
}

#[test]
fn every_pair_of_members_of_a_material_is_judged_alike() {
    let judges = Judges::new();
    let digest = format!("sha256:{}", "0".repeat(64));
    let members = [
        ("uri", json!("artifact://a")),
        ("sha256", json!(digest)),
        ("bytes_base64", json!("AA==")),
        ("metadata", json!({})),
        ("id", json!("x")),
    ];
    for choice in 0..1_u32 << members.len() {
        let mut material = Map::from_iter([("kind".to_owned(), json!("artifact"))]);
        for (index, (name, value)) in members.iter().enumerate() {
            if choice >> index & 1 == 1 {
                material.insert((*name).to_owned(), value.clone());
            }
        }
        let mut document = Value::Object(everything());
        document["replay_input"]["materials"][0] = Value::Object(material);
        judges.judge(&document, &format!("material {choice:05b}"));
    }
}

#[test]
fn the_first_difference_is_named() {
    let refuse = |change: &dyn Fn(&mut Value)| {
        let mut document = Value::Object(everything());
        change(&mut document);
        let error = Receipt::from_map(document.as_object().unwrap().clone()).unwrap_err();
        (error.pointer().to_owned(), error.problem().to_owned())
    };
    let expect = |pointer: &str, problem: &str| (pointer.to_owned(), problem.to_owned());
    assert_eq!(
        refuse(&|document| document["side_effects"]["tool_calls"][0]["status"] = json!("done")),
        expect(
            "/side_effects/tool_calls/0/status",
            "expected one of `succeeded`, `failed`, `canceled`"
        )
    );
    assert_eq!(
        refuse(&|document| document["x"] = json!(1)),
        expect("", "unknown member `x`")
    );
    assert_eq!(
        refuse(&|document| remove(document, "/issuer/id")),
        expect("/issuer", "member `id` is missing")
    );
}
