//! The members of a receipt, format `receipt-2026-04-25`.
//!
//! This table is the product's schema of a receipt. `conformance/schemas` holds the same as a JSON
//! Schema for others; a test keeps the two in step.

use crate::shape::{Closed, Shape, Slot, may, need};

/// The value of the member `schema`.
pub const FORMAT: &str = "receipt-2026-04-25";

pub(crate) static RECEIPT: Closed = Closed {
    members: &[
        may("approvals", Shape::List(&Shape::Closed(&APPROVAL))),
        need("autonomy_budget", Shape::Closed(&AUTONOMY_BUDGET)),
        need("chain", Shape::Closed(&CHAIN)),
        need("cost", Shape::Closed(&COST)),
        may("deltas", Shape::List(&Shape::Closed(&DELTA))),
        need("final_artifacts", Shape::List(&Shape::Closed(&ARTIFACT))),
        need("identifiers", Shape::Closed(&IDENTIFIERS)),
        need("issued_at", Shape::Time).kept(Slot::IssuedAt),
        need("issuer", Shape::Closed(&ISSUER)),
        need("lifecycle", Shape::Closed(&LIFECYCLE)),
        may("metadata", Shape::Open),
        need("model_route", Shape::Closed(&MODEL_ROUTE)),
        need("receipt_id", Shape::Text).kept(Slot::ReceiptId),
        may("redactions", Shape::List(&Shape::Closed(&REDACTION))),
        need("replay_input", Shape::Closed(&REPLAY_INPUT)),
        need("schema", Shape::OneOf(&[FORMAT])),
        need("side_effects", Shape::Closed(&SIDE_EFFECTS)),
        may("signatures", Shape::List(&Shape::Closed(&SIGNATURE))).kept(Slot::Signatures),
        need("subject", Shape::Closed(&SUBJECT)),
        need("trust", Shape::Closed(&TRUST)),
    ],
    any_of: &[],
};

/// The tiers of autonomy, shared with trust records.
pub(crate) const TIER: Shape =
    Shape::OneOf(&["shadow", "suggest", "act_with_approval", "act_auto"]);

static APPROVAL: Closed = Closed {
    members: &[
        need("action", Shape::Text),
        need("actor", Shape::Text),
        may("approval_id", Shape::Text),
        need("decided_at", Shape::Time),
        need(
            "decision",
            Shape::OneOf(&["approved", "denied", "canceled", "timeout"]),
        ),
        may("evidence_hash", Shape::Digest),
        may("quorum_proof", Shape::OpenOrNull),
    ],
    any_of: &[],
};

static AUTONOMY_BUDGET: Closed = Closed {
    members: &[
        need("consumed", Shape::Closed(&BUDGET)),
        may("limit", Shape::Closed(&BUDGET)),
    ],
    any_of: &[],
};

static BUDGET: Closed = Closed {
    members: &[
        may("input_tokens", Shape::Whole(0.0)),
        may("output_tokens", Shape::Whole(0.0)),
        may("tool_calls", Shape::Whole(0.0)),
        may("usd", Shape::Amount),
        may("wall_time_ms", Shape::Whole(0.0)),
    ],
    any_of: &[],
};

static CHAIN: Closed = Closed {
    members: &[
        may("merkle_root", Shape::Digest).kept(Slot::MerkleRoot),
        need("previous_receipt_hash", Shape::DigestOrNull).kept(Slot::PreviousHash),
        need("receipt_hash", Shape::Digest).kept(Slot::ReceiptHash),
    ],
    any_of: &[],
};

static COST: Closed = Closed {
    members: &[
        need("currency", Shape::Currency),
        need(
            "provider_breakdown",
            Shape::List(&Shape::Closed(&PROVIDER_COST)),
        ),
        need("total", Shape::Amount),
    ],
    any_of: &[],
};

static PROVIDER_COST: Closed = Closed {
    members: &[
        need("amount", Shape::Amount),
        may("input_tokens", Shape::Whole(0.0)),
        may("metadata", Shape::Open),
        may("model", Shape::Text),
        may("output_tokens", Shape::Whole(0.0)),
        need("provider", Shape::Text),
    ],
    any_of: &[],
};

static DELTA: Closed = Closed {
    members: &[
        may("after_sha256", Shape::DigestOrNull),
        may("artifact_id", Shape::Text),
        may("before_sha256", Shape::DigestOrNull),
        may("delta_id", Shape::Text),
        may("event_id", Shape::Text),
        need("operation", Shape::OneOf(&["add", "replace", "remove"])),
        may("override_key", Shape::Text),
        need("path", Shape::Text),
        may("reason", Shape::Text),
    ],
    any_of: &[],
};

static ARTIFACT: Closed = Closed {
    members: &[
        need("artifact_id", Shape::Text),
        need("kind", Shape::Text),
        may("sha256", Shape::Digest),
        may("uri", Shape::Text),
    ],
    any_of: &[],
};

static IDENTIFIERS: Closed = Closed {
    members: &[
        may("branch_id", Shape::Text),
        may("persona_ref", Shape::Text),
        need("session_id", Shape::Text).kept(Slot::SessionId),
        need("task_id", Shape::Text),
        may("tenant_id", Shape::Text),
        may("trace_id", Shape::Text),
        need("workspace_ref", Shape::Text),
    ],
    any_of: &[],
};

static ISSUER: Closed = Closed {
    members: &[
        need("id", Shape::Text),
        need(
            "kind",
            Shape::OneOf(&["harness", "host", "agent", "connector"]),
        ),
        may("name", Shape::Text),
        may("public_key_id", Shape::Text),
        may("version", Shape::Text),
    ],
    any_of: &[],
};

static LIFECYCLE: Closed = Closed {
    members: &[
        need("completed_at", Shape::Time),
        may("created_at", Shape::Time),
        may("failure", Shape::OpenOrNull),
        need(
            "final_state",
            Shape::OneOf(&["SUCCEEDED", "FAILED", "CANCELED"]),
        ),
        need("started_at", Shape::Time),
    ],
    any_of: &[],
};

static MODEL_ROUTE: Closed = Closed {
    members: &[
        need(
            "alternatives_considered",
            Shape::List(&Shape::Closed(&MODEL)),
        ),
        need("chosen_model", Shape::Closed(&MODEL)),
        need("route_policy_reason", Shape::Text),
    ],
    any_of: &[],
};

static MODEL: Closed = Closed {
    members: &[
        need("model", Shape::Text),
        need("provider", Shape::Text),
        may("reason", Shape::Text),
        may("version", Shape::Text),
    ],
    any_of: &[],
};

static REDACTION: Closed = Closed {
    members: &[
        need("field", Shape::Text),
        may("proof_hash", Shape::Digest),
        need("reason", Shape::Text),
    ],
    any_of: &[],
};

static REPLAY_INPUT: Closed = Closed {
    members: &[
        need(
            "determinism",
            Shape::OneOf(&["byte_deterministic", "best_effort", "unavailable"]),
        ),
        need("materials", Shape::List(&Shape::Closed(&MATERIAL))),
        may("unavailable_reason", Shape::Text),
    ],
    any_of: &[],
};

static MATERIAL: Closed = Closed {
    members: &[
        may("bytes_base64", Shape::Text),
        may("content_type", Shape::Text),
        may("id", Shape::Text),
        need(
            "kind",
            Shape::OneOf(&[
                "llm_provider_response",
                "mcp_tool_return",
                "event_log",
                "artifact",
                "host_fact",
            ]),
        ),
        may("metadata", Shape::Open),
        may("sha256", Shape::Digest),
        may("uri", Shape::Text),
    ],
    any_of: &[
        &["uri", "sha256"],
        &["bytes_base64", "sha256"],
        &["metadata"],
    ],
};

static SIDE_EFFECTS: Closed = Closed {
    members: &[
        need("a2a_handoffs", Shape::List(&Shape::Closed(&HANDOFF))),
        need("fs_writes", Shape::List(&Shape::Closed(&FILE_WRITE))),
        need("network_egress", Shape::List(&Shape::Closed(&EGRESS))),
        need("tool_calls", Shape::List(&Shape::Closed(&TOOL_CALL))),
    ],
    any_of: &[],
};

static HANDOFF: Closed = Closed {
    members: &[
        may("receipt_id", Shape::Text),
        need(
            "status",
            Shape::OneOf(&["accepted", "rejected", "failed", "completed"]),
        ),
        need("target_agent", Shape::Text),
        need("task_id", Shape::Text),
    ],
    any_of: &[],
};

static FILE_WRITE: Closed = Closed {
    members: &[
        may("after_sha256", Shape::DigestOrNull),
        may("before_sha256", Shape::DigestOrNull),
        need(
            "operation",
            Shape::OneOf(&["create", "modify", "delete", "rename"]),
        ),
        need("path", Shape::Text),
    ],
    any_of: &[],
};

static EGRESS: Closed = Closed {
    members: &[
        may("bytes_sent", Shape::Whole(0.0)),
        need("destination", Shape::Text),
        may("metadata", Shape::Open),
        need("purpose", Shape::Text),
    ],
    any_of: &[],
};

static TOOL_CALL: Closed = Closed {
    members: &[
        need("call_id", Shape::Text),
        may("input_hash", Shape::Digest),
        may("metadata", Shape::Open),
        may("output_hash", Shape::Digest),
        need("status", Shape::OneOf(&["succeeded", "failed", "canceled"])),
        need("tool", Shape::Text),
    ],
    any_of: &[],
};

static SIGNATURE: Closed = Closed {
    members: &[
        need("algorithm", Shape::Text),
        need("key_id", Shape::Text),
        need("signature", Shape::Text),
        may("signed_at", Shape::Time),
    ],
    any_of: &[],
};

static SUBJECT: Closed = Closed {
    members: &[
        need("id", Shape::Text),
        need(
            "object",
            Shape::OneOf(&[
                "task",
                "outcome",
                "event",
                "artifact",
                "approval",
                "tool_call",
                "replay_segment",
            ]),
        )
        .kept(Slot::SubjectObject),
    ],
    any_of: &[],
};

static TRUST: Closed = Closed {
    members: &[
        need("end_tier", TIER),
        may("policy_ref", Shape::Text),
        need("start_tier", TIER),
    ],
    any_of: &[],
};
