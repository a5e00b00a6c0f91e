//! Trust records: published chains, and our own.

use canon::{Digest, Map, Value, jcs};
use receipts::{
    Head, KeySet, Micros, PublicKey, Signer, Tier,
    trust::{
        ApprovalEvidence, ExportHeader, ReviewerSignature, TrustFacts, TrustFault, TrustOutcome,
        TrustRecord, entry_hash, export, verify_export, verify_signatures,
    },
};
use serde_json::json;

use crate::common::{published, published_object, repeated};

fn fault(bytes: &[u8]) -> Option<TrustFault> {
    verify_export(bytes).err().map(|refusal| refusal.fault())
}

#[test]
fn published_chains_verify_and_broken_ones_fail_for_their_reason() {
    for (path, expected) in [
        ("valid/decision-chain.json", None),
        ("valid/tier-transition.json", None),
        (
            "invalid/tampered-chain.json",
            Some(TrustFault::ChainLinkBroken),
        ),
        (
            "invalid/missing-approval.json",
            Some(TrustFault::ApprovalMissing),
        ),
    ] {
        let Some(bytes) = published(&format!("opentrustgraph/v0/fixtures/{path}")) else {
            return;
        };
        assert_eq!(fault(&bytes), expected, "{path}");
    }
}

#[test]
fn hashes_of_the_later_version_are_reproduced_too() {
    for path in [
        "valid/effect-inheritance-chain.json",
        "invalid/actor-chain-parentage.json",
    ] {
        let Some(export) = published_object(&format!("opentrustgraph/v0.1/fixtures/{path}")) else {
            return;
        };
        let records = export["records"].as_array().unwrap();
        assert!(!records.is_empty());
        for record in records {
            let record = record.as_object().unwrap();
            assert_eq!(
                record["entry_hash"],
                entry_hash(record).to_string(),
                "{path}"
            );
        }
    }
}

fn facts(tier: Tier, approved: bool) -> TrustFacts {
    TrustFacts {
        record_id: "record_1".to_owned(),
        agent: "agent_1".to_owned(),
        action: "file.write".to_owned(),
        approver: approved.then(|| "user_ada".to_owned()),
        outcome: TrustOutcome::Success,
        trace_id: "trace_1".to_owned(),
        tier,
        timestamp: "2026-04-25T19:17:02Z".to_owned(),
        cost: Some(Micros(12_000)),
        approval: approved.then(|| ApprovalEvidence {
            quorum: 1,
            signatures: vec![ReviewerSignature {
                reviewer: "user_ada".to_owned(),
                signed_at: "2026-04-25T19:17:01Z".to_owned(),
                signature: "sha256:aa".to_owned(),
            }],
        }),
        metadata: Map::new(),
    }
}

fn header() -> ExportHeader {
    ExportHeader {
        topic: "trust".to_owned(),
        generated_at: "2026-04-25T19:20:00Z".to_owned(),
        producer_name: "reprise".to_owned(),
        producer_version: "agents-protocol-2026-04-25".to_owned(),
    }
}

fn chain() -> Vec<TrustRecord> {
    let mut head = Head::EMPTY;
    let tiers = [
        (Tier::Suggest, false),
        (Tier::ActWithApproval, true),
        (Tier::ActAuto, false),
    ];
    let build = tiers.into_iter().map(|(tier, approved)| {
        let record = TrustRecord::build(&facts(tier, approved), &head).unwrap();
        head = head.advanced(record.entry_hash());
        record
    });
    build.collect()
}

#[test]
fn the_facts_of_a_published_record_give_its_bytes() {
    let Some(export) = published_object("opentrustgraph/v0/fixtures/valid/decision-chain.json")
    else {
        return;
    };
    let expected = &export["records"][0];
    let text = |name: &str| expected[name].as_str().unwrap().to_owned();
    assert_eq!(expected["autonomy_tier"], Tier::Suggest.as_str());
    let first = TrustFacts {
        record_id: text("record_id"),
        agent: text("agent"),
        action: text("action"),
        trace_id: text("trace_id"),
        timestamp: text("timestamp"),
        cost: None,
        metadata: expected["metadata"].as_object().unwrap().clone(),
        ..facts(Tier::Suggest, false)
    };
    let record = TrustRecord::build(&first, &Head::EMPTY).unwrap();
    assert_eq!(record.bytes(), jcs(expected));
}

#[test]
fn an_export_of_our_own_verifies() {
    let records = chain();
    let bytes = export(&header(), &records);
    let head = verify_export(&bytes).unwrap();
    assert_eq!(
        head,
        Head {
            hash: Some(records[2].entry_hash()),
            count: 3
        }
    );
    let document: Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(document["chain"]["verified"], true);
    assert_eq!(verify_export(&export(&header(), &[])), Ok(Head::EMPTY));
    // A chain that does not start at its first record is exported as what it is.
    let bytes = export(&header(), &records[1..]);
    let document: Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(document["chain"]["verified"], false);
    assert_eq!(fault(&bytes), Some(TrustFault::ChainLinkBroken));
}

#[test]
fn each_fault_is_found_in_the_stated_order() {
    let document = || -> Value { serde_json::from_slice(&export(&header(), &chain())).unwrap() };
    let reseal = |record: &mut Value| {
        let hash: Digest = entry_hash(record.as_object().unwrap());
        record["entry_hash"] = json!(hash.to_string());
    };
    type Change<'a> = &'a dyn Fn(&mut Value);
    let changes: [(TrustFault, Change); 8] = [
        (TrustFault::SchemaInvalid, &|d| {
            d["records"][1]["extra"] = json!(1)
        }),
        (TrustFault::EntryHashMismatch, &|d| {
            d["records"][1]["agent"] = json!("mallory")
        }),
        (TrustFault::ChainLinkBroken, &|d| {
            d["records"][1]["previous_hash"] = json!(repeated('0').to_string());
            reseal(&mut d["records"][1]);
        }),
        (TrustFault::ChainLinkBroken, &|d| {
            d["records"][2]["chain_index"] = json!(4);
            reseal(&mut d["records"][2]);
        }),
        (TrustFault::TotalMismatch, &|d| {
            d["chain"]["total"] = json!(2)
        }),
        (TrustFault::RootHashMismatch, &|d| {
            d["chain"]["root_hash"] = Value::Null
        }),
        (TrustFault::ApprovalMissing, &|d| {
            approve(d, |record| record["approver"] = Value::Null)
        }),
        (TrustFault::ApprovalMissing, &|d| {
            approve(d, |record| {
                record["metadata"]["approval"]["quorum"] = json!(0)
            });
        }),
    ];
    for (expected, change) in changes {
        let mut changed = document();
        change(&mut changed);
        assert_eq!(fault(&jcs(&changed)), Some(expected));
    }
    // Several faults at once: the earlier step speaks.
    let mut changed = document();
    changed["chain"]["total"] = json!(9);
    changed["records"][0]["agent"] = json!("mallory");
    assert_eq!(fault(&jcs(&changed)), Some(TrustFault::EntryHashMismatch));
    assert_eq!(
        fault(b"{\"schema\":1,\"schema\":1}"),
        Some(TrustFault::SchemaInvalid)
    );
}

/// Changes the approved record and makes all hashes and links fit again.
fn approve(document: &mut Value, change: impl Fn(&mut Value)) {
    change(&mut document["records"][1]);
    for index in 1..3 {
        let previous = document["records"][index - 1]["entry_hash"].clone();
        let record = &mut document["records"][index];
        record["previous_hash"] = previous;
        record["entry_hash"] = json!(entry_hash(record.as_object().unwrap()).to_string());
    }
    document["chain"]["root_hash"] = document["records"][2]["entry_hash"].clone();
}

#[test]
fn a_record_without_its_required_approval_is_not_made() {
    let mut missing = facts(Tier::ActWithApproval, true);
    missing.approver = None;
    assert!(TrustRecord::build(&missing, &Head::EMPTY).is_err());
    let mut unsigned = facts(Tier::ActWithApproval, true);
    unsigned.approval.as_mut().unwrap().signatures.clear();
    assert!(TrustRecord::build(&unsigned, &Head::EMPTY).is_err());
    // A denial needs none.
    unsigned.outcome = TrustOutcome::Denied;
    assert!(TrustRecord::build(&unsigned, &Head::EMPTY).is_ok());
    let mut empty = facts(Tier::Suggest, false);
    empty.agent.clear();
    assert!(TrustRecord::build(&empty, &Head::EMPTY).is_err());
}

/// A decision that somebody is asked for, without any signature yet.
fn asked(outcome: TrustOutcome) -> TrustFacts {
    let mut facts = facts(Tier::ActWithApproval, true);
    facts.outcome = outcome;
    facts.approval = Some(ApprovalEvidence {
        quorum: 1,
        signatures: Vec::new(),
    });
    facts
}

fn keys(expires: Option<i64>) -> KeySet {
    let signer = Signer::new("key_1", &[7; 32]);
    KeySet::new(vec![PublicKey {
        key_id: "key_1".to_owned(),
        bytes: signer.public(),
        not_before: None,
        expires,
        retired: None,
    }])
    .unwrap()
}

#[test]
fn a_signed_decision_verifies_with_the_key_and_with_no_other() {
    let signer = Signer::new("key_1", &[7; 32]);
    let mut head = Head::EMPTY;
    let records = [TrustOutcome::Success, TrustOutcome::Denied].map(|outcome| {
        let record = TrustRecord::signed(&asked(outcome), &head, &signer).unwrap();
        head = head.advanced(record.entry_hash());
        record
    });
    let bytes = export(&header(), &records);
    assert_eq!(verify_export(&bytes), Ok(head));
    assert_eq!(verify_signatures(&bytes, &keys(None)), Ok(2));
    // What was stored is exported as it is.
    let stored = records.map(|record| TrustRecord::stored(record.as_map().clone()));
    assert_eq!(export(&header(), &stored), bytes);

    type Change<'a> = &'a dyn Fn(&mut Value);
    let of_first = "/records/0/metadata/approval/signatures/0";
    let set = |document: &mut Value, member: &str, value: Value| {
        *document
            .pointer_mut(&format!("{of_first}/{member}"))
            .unwrap() = value;
    };
    let changes: [(TrustFault, Change); 6] = [
        (TrustFault::AlgorithmUnsupported, &|d| {
            set(d, "algorithm", json!("none"))
        }),
        (TrustFault::KeyUnknown, &|d| {
            set(d, "key_id", json!("key_2"))
        }),
        (TrustFault::SignatureInvalid, &|d| {
            set(d, "signature", json!("base64:AAAA"))
        }),
        (TrustFault::SignatureInvalid, &|d| {
            set(d, "reviewer", json!("mallory"))
        }),
        (TrustFault::SignatureInvalid, &|d| {
            d["records"][0]["approver"] = json!("mallory");
            set(d, "reviewer", json!("mallory"));
        }),
        (TrustFault::SignatureInvalid, &|d| {
            d["records"][0]["action"] = json!("file.delete")
        }),
    ];
    for (expected, change) in changes {
        let mut changed: Value = serde_json::from_slice(&bytes).unwrap();
        change(&mut changed);
        let refusal = verify_signatures(&jcs(&changed), &keys(None)).unwrap_err();
        assert_eq!((refusal.fault(), refusal.record()), (expected, Some(0)));
    }
    let late = verify_signatures(&bytes, &keys(Some(0))).unwrap_err();
    assert_eq!(late.fault(), TrustFault::KeyNotValidAtTime);
}

#[test]
fn nobody_is_signed_for_who_did_not_decide() {
    let signer = Signer::new("key_1", &[7; 32]);
    let mut withdrawn = asked(TrustOutcome::Failure);
    withdrawn.approver = None;
    assert!(TrustRecord::signed(&withdrawn, &Head::EMPTY, &signer).is_err());
    let record = TrustRecord::build(&withdrawn, &Head::EMPTY).unwrap();
    let bytes = export(&header(), &[record]);
    assert_eq!(verify_signatures(&bytes, &KeySet::default()), Ok(0));
}

#[test]
fn our_records_have_the_published_shape() {
    let path = "opentrustgraph/v0/schemas/trust-record.v0.schema.json";
    let Some(schema) = published_object(path) else {
        return;
    };
    let schema = jsonschema::options()
        .should_validate_formats(true)
        .build(&Value::Object(schema))
        .unwrap();
    let signer = Signer::new("key_1", &[7; 32]);
    let mut head = Head::EMPTY;
    for outcome in [TrustOutcome::Success, TrustOutcome::Denied] {
        let record = TrustRecord::signed(&asked(outcome), &head, &signer).unwrap();
        head = head.advanced(record.entry_hash());
        let record = Value::Object(record.as_map().clone());
        assert!(schema.is_valid(&record), "{record}");
        // It can tell: an approval that nobody signed for.
        let mut unsigned = record.clone();
        unsigned["metadata"]["approval"]["signatures"] = json!([]);
        let needed = outcome == TrustOutcome::Success;
        assert_eq!(schema.is_valid(&unsigned), !needed, "{unsigned}");
    }
    let mut withdrawn = asked(TrustOutcome::Failure);
    withdrawn.approver = None;
    let record = TrustRecord::build(&withdrawn, &head).unwrap();
    assert!(schema.is_valid(&Value::Object(record.as_map().clone())));
}
