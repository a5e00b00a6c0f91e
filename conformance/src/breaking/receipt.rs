//! What faults do to receipts, proofs and verdicts.
//!
//! A receipt is changed alike wherever it shows: in the superset, in its `wire.payload` and as a bare document, so that
//! the forms never betray a fault by disagreeing.

use serde_json::{Map, Value, json};

use super::Fault;
use super::rewrite::{Reply, Sent, each, skip};
use crate::check::receipt::computed;
use crate::json::text;

type Members = Map<String, Value>;

/// Handles the faults that change bytes or the media type; tells whether it did.
pub(super) fn by_bytes(fault: Fault, reply: &mut Reply) -> bool {
    let is = |media_type: &str| reply.content_type.starts_with(media_type);
    match fault {
        Fault::BareReceiptSpaced if is("application/vnd.harn.receipt+json") => {
            reply.body.push(b'\n');
        }
        Fault::ArchiveDamaged if is("application/vnd.harn.receipt+cbor") => {
            // The hash in it stays readable; something that it covers does not fit any more.
            let text = b"SUCCEEDED";
            if let Some(at) = crate::raw::find(&reply.body, text)
                && let Some(byte) = reply.body.get_mut(at)
            {
                *byte = b'X';
            }
        }
        Fault::ArchiveUnnamed if is("application/vnd.harn.receipt+cbor") => {
            reply.content_type = "application/vnd.harn.receipt+cbor".to_owned();
        }
        _ => return false,
    }
    true
}

/// Changes receipts, proofs and verdicts in an answer.
pub(super) fn by_value(fault: Fault, asked: &Sent, value: &mut Value) {
    match fault {
        Fault::ReceiptHashWrong => forge(value, &|receipt| {
            set_in(receipt, "chain", "receipt_hash", zeros());
        }),
        Fault::ReceiptMemberAltered => forge(value, &|receipt| {
            set_in(receipt, "cost", "currency", json!("EUR"));
        }),
        Fault::ReceiptMemberMissing => forge(value, &|receipt| drop(receipt.remove("trust"))),
        Fault::ReceiptSignatureWrong => forge(value, &|receipt| {
            let signature = receipt
                .get_mut("signatures")
                .and_then(|list| list.get_mut(0)?.get_mut("signature"));
            if let Some(signature) = signature {
                *signature = json!(format!("base64:{}==", "A".repeat(86)));
            }
        }),
        Fault::ReceiptChainBroken => forge(value, &|receipt| {
            set_in(receipt, "chain", "previous_receipt_hash", Value::Null);
            receipt.insert("signatures".to_owned(), json!([]));
            if let Ok(hash) = computed(receipt) {
                set_in(receipt, "chain", "receipt_hash", json!(hash));
            }
        }),
        Fault::InclusionPathWrong => each(value, "receipt_proof", &mut |proof| {
            proof.insert("path".to_owned(), json!([zeros(), zeros()]));
        }),
        Fault::EveryReceiptValid => each(value, "receipt_verification", &mut |verdict| {
            verdict.insert("valid".to_owned(), json!(true));
            verdict.insert("reason".to_owned(), Value::Null);
        }),
        Fault::UnsignedReceiptValid => each(value, "receipt_verification", &mut |verdict| {
            let reason = verdict.get("reason").and_then(Value::as_str);
            if matches!(reason, Some("signature_missing" | "receipt_id_conflict")) {
                verdict.insert("valid".to_owned(), json!(true));
                verdict.insert("reason".to_owned(), Value::Null);
            }
        }),
        Fault::NoReceiptValid => each(value, "receipt_verification", &mut |verdict| {
            verdict.insert("valid".to_owned(), json!(false));
            verdict.insert("reason".to_owned(), json!("receipt_hash_mismatch"));
        }),
        Fault::CheckedAtMissing => each(value, "receipt_verification", &mut |verdict| {
            drop(verdict.remove("checked_at"));
        }),
        Fault::ReceiptFormatMissing => each(value, "receipt", &mut |receipt| {
            drop(receipt.remove("format"));
        }),
        Fault::TaskReceiptHidden => each(value, "task", &mut |task| {
            task.insert("receipt_id".to_owned(), Value::Null);
        }),
        Fault::ReceiptsListedLate if asked.path.ends_with("/receipts") => skip(value, |_| true),
        Fault::VerificationsSkipped => {
            skip(value, |event| text(event, "event").starts_with("receipt.v"));
        }
        Fault::RedactionUnexplained => each(value, "receipt", &mut |receipt| {
            receipt.insert("redactions".to_owned(), json!([{"field": "/cost"}]));
        }),
        Fault::MaterialDigestWrong => each(value, "receipt", &mut |receipt| {
            let digest = receipt
                .get_mut("replay_input")
                .and_then(|input| input.get_mut("materials")?.get_mut(0)?.get_mut("sha256"));
            if let Some(digest) = digest {
                *digest = zeros();
            }
        }),
        _ => {}
    }
}

fn zeros() -> Value {
    json!(format!("sha256:{}", "0".repeat(64)))
}

fn set_in(receipt: &mut Members, object: &str, name: &str, value: Value) {
    if let Some(Value::Object(object)) = receipt.get_mut(object) {
        object.insert(name.to_owned(), value);
    }
}

/// Changes every receipt in all its forms.
fn forge(value: &mut Value, change: &dyn Fn(&mut Members)) {
    let is_bare = value.get("receipt_id").is_some() && value.get("chain").is_some();
    match value {
        Value::Object(bare) if is_bare && !bare.contains_key("object") => change(bare),
        _ => each(value, "receipt", &mut |receipt| {
            let payload = receipt
                .get("wire")
                .and_then(|wire| wire.get("payload")?.as_object());
            let Some(before) = payload.cloned() else {
                return;
            };
            let mut after = before.clone();
            change(&mut after);
            for name in before.keys().filter(|name| !after.contains_key(*name)) {
                receipt.remove(name);
            }
            receipt.extend(after.clone());
            set_in(receipt, "wire", "payload", Value::Object(after));
        }),
    }
}

#[cfg(test)]
mod tests {
    use reqwest::Method;
    use reqwest::header::HeaderMap;

    use super::*;

    fn changed(fault: Fault, mut value: Value) -> Value {
        let asked = Sent {
            method: Method::GET,
            path: "/v1/tasks/t/receipts".to_owned(),
            query: String::new(),
            headers: HeaderMap::new(),
        };
        by_value(fault, &asked, &mut value);
        value
    }

    fn bare() -> Value {
        json!({"receipt_id": "r", "trust": {}, "chain": {"previous_receipt_hash": "p", "receipt_hash": "h"}})
    }

    #[test]
    fn a_receipt_is_changed_alike_in_all_its_forms() {
        for fault in [
            Fault::ReceiptHashWrong,
            Fault::ReceiptMemberMissing,
            Fault::ReceiptChainBroken,
        ] {
            let mut superset = bare();
            superset["object"] = json!("receipt");
            superset["wire"] = json!({"payload": bare()});
            let list = changed(fault, json!({"object": "list", "data": [superset]}));
            let superset = &list["data"][0];
            let alone = changed(fault, bare());
            assert_ne!(alone, bare(), "{fault:?}");
            assert_eq!(superset["wire"]["payload"], alone, "{fault:?}");
            for (name, value) in alone.as_object().unwrap() {
                assert_eq!(&superset[name], value, "{fault:?}");
            }
            assert_eq!(
                superset.get("trust").is_some(),
                alone.get("trust").is_some()
            );
        }
    }

    #[test]
    fn a_broken_chain_hashes_to_what_it_says() {
        let broken = changed(Fault::ReceiptChainBroken, bare());
        let hash = computed(broken.as_object().unwrap()).unwrap();
        assert_eq!(broken["chain"]["receipt_hash"], hash);
        assert_eq!(broken["chain"]["previous_receipt_hash"], Value::Null);
    }
}
