//! The vectors of the design note, byte for byte.

use canon::{Digest, Value, jcs, sha256};
use receipts::{Receipt, merkle};

use crate::common::{REPLAY_FIXTURE, TASK_FIXTURE, published, published_object, signer};

const TASK_HASH: &str = "sha256:6dda1c76c5adc8c210892ba1b7e566dd3b6e3644f7ab6b0dcd14ae34a0b323a7";
const REPLAY_HASH: &str = "sha256:c665e22ccc7b42cd3d910b2c0767a1709bd4e135c9be159816c19a917aea9d04";

fn digest(text: &str) -> Digest {
    Digest::parse(text).unwrap()
}

/// AP-RCPT-02, AP-RCPT-03.
#[test]
fn ap_rcpt_02_both_fixtures_hash_to_the_published_values() {
    for (path, length, hash) in [
        (TASK_FIXTURE, 3545, TASK_HASH),
        (REPLAY_FIXTURE, 2991, REPLAY_HASH),
    ] {
        let Some(mut map) = published_object(path) else {
            return;
        };
        let receipt = Receipt::from_map(map.clone()).unwrap();
        assert_eq!(receipt.hash(), digest(hash));
        assert_ne!(receipt.stated_hash(), Some(digest(hash)));
        map.remove("signatures");
        map["chain"].as_object_mut().unwrap().remove("receipt_hash");
        let bytes = jcs(&Value::Object(map));
        assert_eq!((bytes.len(), sha256(&bytes)), (length, digest(hash)));
    }
}

#[test]
fn the_published_signature_is_made() {
    assert_eq!(
        signer().sign(&digest(TASK_HASH)),
        "base64:WbZ8sB4c76MvIDm9Oi8G7qbT7bL3EHYkYeFbUw+6wmCKBxh6f63z9XsBatwy5KaMb12N2gcJCTTkoVPCmlplAA=="
    );
}

#[test]
fn the_published_leaf_and_roots_are_found() {
    let (first, second) = (
        merkle::leaf(&digest(TASK_HASH)),
        merkle::leaf(&digest(REPLAY_HASH)),
    );
    let one = "474ba0f0e6fc3631decae41152c900468b290cbcda6be8b37ddd802c81ea3481";
    let both = "f6290053188b580b7228a64c0c902d4cbc50a32123a1f2abf47ae29960cfd771";
    assert_eq!(first, digest(one));
    let (frontier, _) = merkle::append(merkle::Frontier::EMPTY, first);
    assert_eq!(frontier.root(), digest(one));
    let (frontier, _) = merkle::append(frontier, second);
    assert_eq!(frontier.root(), digest(both));
}

#[test]
fn the_published_override_values_hash_as_stated() {
    let Some(request) = published_object("replay/fixtures/valid/task-replay-request.json") else {
        return;
    };
    for (key, hash) in [
        (
            "llm:main:1",
            "sha256:f6b0ea0e0508850baa308f6d4c2ad5b897612b548911185bfe3d426a136cd8b9",
        ),
        (
            "time:started_at",
            "sha256:0d8835fa600686b398e6284d7ab628aca3fb58e5a6be3f0cf7a4391c9f70246d",
        ),
    ] {
        let value = &request["override"][key]["value"];
        assert_eq!(sha256(&jcs(value)), digest(hash), "{key}");
    }
    let output = serde_json::json!({"verdict": "approved", "message": ""});
    assert_eq!(
        sha256(&jcs(&output)),
        digest("sha256:47f9b5dcd5efdcbe32fcce12e6dff9f9bae259a728cb8077b1a74d0976c1149e")
    );
}

#[test]
fn ap_rcpt_14_the_published_invalid_receipt_is_refused_at_its_chain() {
    let Some(bytes) = published("receipts/fixtures/invalid/missing-chain-hash.json") else {
        return;
    };
    match Receipt::read(&bytes) {
        Err(receipts::ReadReceiptError::Shape(error)) => assert_eq!(error.pointer(), "/chain"),
        other => panic!("{other:?}"),
    }
}
