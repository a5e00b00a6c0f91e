//! What the description says of receipts beyond the contract: operations, schemas, and the schema of the format itself.

use canon::Value;

use super::operation::{Body::*, ResponseKind::*, operations};
use super::schema::{Schema, Shape::*, Type::*, opt, req};
use crate::access::WorkspaceRule::*;
use crate::access::{PUBLIC, needs};
use crate::decode;
use domain::ResourceKind::*;

// Operations beside those of the contract.
operations! {
    post   "/v1/receipts/verify" verifyForeignReceipt Receipts Json("ReceiptVerification") needs(&["receipts:read"], Unplaced)
        .query(&["trust_anchor", "at_time", "integrity_only"]).accepts(Required("JsonObject"));
    get    "/v1/receipts/{receipt_id}/proof" getReceiptProof Receipts
        Json("ReceiptProof") needs(&["receipts:read"], InPath(Receipt));
    get    "/v1/receipt-batches" listReceiptBatches Receipts Json("ReceiptBatchList") needs(&["receipts:read"], Unplaced)
        .query(&["limit", "cursor"]);
    get    "/v1/receipt-batches/consistency" getReceiptConsistency Receipts
        Json("ReceiptConsistencyProof") needs(&["receipts:read"], Unplaced).query(&["from", "to"]);
    get    "/v1/receipt-batches/{batch_id}" getReceiptBatch Receipts Json("ReceiptBatch") needs(&["receipts:read"], Unplaced);
    post   "/v1/receipt-batches/{batch_id}/cosignatures" cosignReceiptBatch Receipts
        Json("ReceiptBatch") needs(&["receipts:write"], Unplaced).accepts(Required("CosignRequest"))
        .decodes(decode::cosign_head);
    get    "/v1/sessions/{session_id}/trust-chain" getTrustChain Receipts
        Json("TrustChainExport") needs(&["receipts:read"], InPath(Session));
    get    "/.well-known/jwks.json" getReceiptKeys Receipts Json("KeySet") PUBLIC.of_type("application/jwk-set+json");
    get    "/schemas/receipt-2026-04-25.schema.json" getReceiptSchema Receipts AnyObject PUBLIC.of_type("application/schema+json");
    get    "/tlog/checkpoint" getCheckpoint Receipts PlainText PUBLIC;
    get    "/tlog/tile/{path}" getTile Receipts Bytes PUBLIC;
}

pub(super) const SCHEMAS: &[Schema] = &[
    Schema {
        name: "Receipt",
        shape: Resource(&[
            req("object", Words(&["receipt"])),
            req("subject", Ref("ResourcePointer")),
            req("format", Text),
            req("summary", Text),
            req("issued_at", Time),
            // C-05: the format's object; the contract's string stands beside it.
            req("issuer", Object),
            req("issuer_id", OrNull(&Text)),
            req("wire", Ref("ReceiptWireEnvelope")),
            req("verification", OrNull(&Ref("ReceiptVerification"))),
            req("schema", Text),
            req("receipt_id", Text),
            opt("identifiers", Object),
            opt("lifecycle", Object),
            opt("approvals", List(&Object)),
            opt("trust", Object),
            opt("autonomy_budget", Object),
            opt("replay_input", Object),
            opt("model_route", Object),
            opt("cost", Object),
            opt("side_effects", Object),
            opt("final_artifacts", List(&Object)),
            opt("deltas", List(&Object)),
            req("chain", Object),
            opt("redactions", List(&Object)),
            opt("signatures", List(&Object)),
        ]),
    },
    Schema {
        name: "ReceiptWireEnvelope",
        shape: Plain(&[
            req("schema_version", Text),
            req("subject", Ref("ResourcePointer")),
            req("issued_at", Time),
            opt("payload", Ref(DOCUMENT)),
            opt("signature", OrNull(&Ref("CardSignature"))),
        ]),
    },
    Schema {
        name: "ReceiptList",
        shape: Page("Receipt"),
    },
    Schema {
        name: "ReceiptVerification",
        shape: Plain(&[
            opt("object", Words(&["receipt_verification"])),
            opt("receipt_id", OrNull(&Text)),
            req("valid", Boolean),
            req("checked_at", Time),
            opt("reason", OrNull(&Text)),
            opt("details", Object),
        ]),
    },
    Schema {
        name: "ReceiptBatch",
        shape: Resource(&[
            req("object", Words(&["receipt_batch"])),
            req("batch_id", Text),
            req("size", Count),
            req("root", Matching(DIGEST)),
            req("previous_root", OrNull(&Matching(DIGEST))),
            req("sealed_at", Time),
            req("signature", OrNull(&Text)),
            req("cosignatures", List(&Text)),
            req("checkpoint", Text),
        ]),
    },
    Schema {
        name: "ReceiptBatchList",
        shape: Page("ReceiptBatch"),
    },
    Schema {
        name: "ReceiptProof",
        shape: Plain(&[
            req("object", Words(&["receipt_proof"])),
            req("receipt_id", Text),
            req("receipt_hash", Matching(DIGEST)),
            req("leaf_index", Count),
            req("batch_id", Text),
            req("tree_size", Count),
            req("root", Matching(DIGEST)),
            req("path", List(&Matching(DIGEST))),
            req("checkpoint", Text),
        ]),
    },
    Schema {
        name: "ReceiptConsistencyProof",
        shape: Plain(&[
            req("object", Words(&["receipt_consistency_proof"])),
            req("from", Count),
            req("to", Count),
            req("path", List(&Matching(DIGEST))),
        ]),
    },
    Schema {
        name: "TrustChainExport",
        shape: Plain(&[
            req("schema", Words(&["opentrustgraph-chain/v0"])),
            req("chain", Object),
            req("records", List(&Object)),
        ]),
    },
    Schema {
        name: "CosignRequest",
        shape: Plain(&[req("line", NonEmpty)]),
    },
    Schema {
        name: "KeySet",
        shape: Plain(&[req("keys", List(&Object))]),
    },
];

const DIGEST: &str = "^sha256:[0-9a-f]{64}$";

/// The name under which the schema of the bare receipt stands among the others (C-35).
pub(super) const DOCUMENT: &str = "ReceiptDocument";

/// Returns the schema of the bare receipt with its references led to where it stands here.
pub(super) fn document_schema() -> Value {
    let mut schema = serde_json::from_str(crate::receipt::SCHEMA).unwrap_or_default();
    lead(&mut schema);
    if let Value::Object(members) = &mut schema {
        members.remove("$schema");
        members.remove("$id");
    }
    schema
}

fn lead(value: &mut Value) {
    match value {
        Value::Object(map) => {
            if let Some(Value::String(target)) = map.get_mut("$ref")
                && let Some(inner) = target.strip_prefix("#/")
            {
                *target = format!("#/components/schemas/{DOCUMENT}/{inner}");
            }
            map.values_mut().for_each(lead);
        }
        Value::Array(items) => items.iter_mut().for_each(lead),
        _ => {}
    }
}
