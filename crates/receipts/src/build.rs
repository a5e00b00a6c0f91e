//! From facts to a receipt.
//!
//! Decides which members are written and derives route and cost. What a replay receipt adds is in
//! `replay`. Every receipt that leaves here is what the strict reader would read back, so it has the
//! shape of the format and no unsafe integer.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use canon::{Digest, Map, Value, jcs, sha256, sha256_parts};

use crate::{
    facts::{
        Approval, Budget, BudgetLimit, Determinism, EventLog, FinalArtifact, Handoff, Identifiers,
        Issuer, Lifecycle, Material, MaterialContent, MaterialKind, Micros, ModelCall, ModelRef,
        Redaction, ReplayInput, SideEffects, TaskEnd, TaskFacts, Trust,
    },
    fit::fit,
    format::FORMAT,
    receipt::{self, ReadReceiptError, Receipt},
    shape::push_step,
};

/// The facts do not make a receipt.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// An amount of money that a double cannot hold exactly in millionths.
    #[error("amount of {0} millionths is too large")]
    AmountTooLarge(u64),
    /// A fact that the format cannot say: an empty text, an invalid time, an unsafe integer.
    #[error("facts do not fit the receipt format: {0}")]
    Unfit(#[from] ReadReceiptError),
}

/// Builds the receipt of a finished task, unsigned. What a run brought with it always fits: the format leaves out or
/// replaces what it cannot say, and `redactions` name the place.
///
/// # Errors
/// Who issues the receipt, about what or when cannot be said in the format.
pub fn build_task(facts: &TaskFacts) -> Result<Receipt, BuildError> {
    seal_fitting(|| task_map(facts))
}

/// Seals what is built, or what of it fits. Nearly always everything does, so that it is built again only then.
pub(crate) fn seal_fitting(build: impl Fn() -> Map<String, Value>) -> Result<Receipt, BuildError> {
    if let Ok(receipt) = seal(&mut build()) {
        return Ok(receipt);
    }
    let mut map = build();
    fit(&mut map);
    seal(&mut map)
}

fn task_map(facts: &TaskFacts) -> Map<String, Value> {
    let mut redactions = facts.redactions.clone();
    let cost = cost(&facts.currency, &facts.model_calls, &mut redactions);
    object([
        ("schema", text(FORMAT)),
        ("receipt_id", text(&facts.receipt_id)),
        ("subject", subject("task", &facts.identifiers.task_id)),
        (
            "issuer",
            issuer(&facts.issuer, facts.issuer.public_key_id.as_deref()),
        ),
        ("issued_at", text(&facts.issued_at)),
        ("identifiers", identifiers(&facts.identifiers)),
        ("lifecycle", lifecycle(&facts.lifecycle)),
        ("approvals", list(&facts.approvals, approval)),
        ("trust", trust(&facts.trust)),
        (
            "autonomy_budget",
            some(object([
                ("limit", facts.limit.as_ref().map(limit)),
                ("consumed", consumed(&facts.consumed)),
            ])),
        ),
        (
            "replay_input",
            replay_input(&facts.replay_input, facts.replay_input.materials.iter()),
        ),
        (
            "model_route",
            model_route(
                &facts.model_calls,
                &facts.route_policy_reason,
                &facts.alternatives,
            ),
        ),
        ("cost", cost),
        ("side_effects", side_effects(&facts.side_effects)),
        ("final_artifacts", list(&facts.final_artifacts, artifact)),
        (
            "chain",
            some(object([
                (
                    "previous_receipt_hash",
                    Some(digest_or_null(facts.previous_receipt_hash)),
                ),
                ("merkle_root", digest(facts.merkle_root)),
            ])),
        ),
        ("redactions", list(&redactions, redaction)),
        ("signatures", some_list(Vec::new())),
        ("metadata", some(facts.metadata.clone())),
    ])
}

/// Returns the digest of an event log: over each event's canonical bytes and a line feed, in order.
pub fn event_log_digest<'a>(events: impl IntoIterator<Item = &'a [u8]>) -> Digest {
    let lines = events.into_iter();
    sha256_parts(lines.flat_map(|event| [event, b"\n"]))
}

/// Computes and sets the hash, then proves that the result can be read back.
pub(crate) fn seal(map: &mut Map<String, Value>) -> Result<Receipt, BuildError> {
    let hash = receipt::hash(map);
    if let Some(Value::Object(chain)) = map.get_mut("chain") {
        chain.insert("receipt_hash".to_owned(), hash.to_string().into());
    }
    if map.values_mut().all(|value| settle(value, 1)) {
        return Ok(Receipt::built(std::mem::take(map), hash)?);
    }
    let bytes = jcs(&Value::Object(std::mem::take(map)));
    Ok(Receipt::read_back(&bytes, hash)?)
}

/// Puts a value into the form in which the strict reader would give it back, without writing it first. False when only
/// the reader can tell: fractions, unsafe integers, deep nesting.
fn settle(value: &mut Value, depth: usize) -> bool {
    const DEPTH_MAX: usize = 100;
    const SAFE_MAX: u64 = (1 << 53) - 1;
    match value {
        Value::Null | Value::Bool(_) | Value::String(_) => true,
        Value::Number(number) => {
            if let Some(integer) = number.as_i64() {
                return integer.unsigned_abs() <= SAFE_MAX;
            }
            match number.as_f64() {
                // Its canonical form is that of an integer.
                Some(double) if double.fract() == 0.0 && double.abs() <= SAFE_MAX as f64 => {
                    *number = (double as i64).into();
                    true
                }
                _ => false,
            }
        }
        Value::Array(items) => {
            depth < DEPTH_MAX && items.iter_mut().all(|item| settle(item, depth + 1))
        }
        Value::Object(members) => {
            depth < DEPTH_MAX && members.values_mut().all(|value| settle(value, depth + 1))
        }
    }
}

type Member<'a> = (&'a str, Option<Value>);

/// Makes an object of the members that are there.
pub(crate) fn object<const N: usize>(members: [Member<'_>; N]) -> Map<String, Value> {
    let present = members.into_iter();
    present
        .filter_map(|(name, value)| value.map(|value| (name.to_owned(), value)))
        .collect()
}

pub(crate) fn some(map: Map<String, Value>) -> Option<Value> {
    Some(Value::Object(map))
}

pub(crate) fn some_list(items: Vec<Value>) -> Option<Value> {
    Some(Value::Array(items))
}

pub(crate) fn list<T>(items: &[T], write: impl Fn(&T) -> Map<String, Value>) -> Option<Value> {
    some_list(
        items
            .iter()
            .map(|item| Value::Object(write(item)))
            .collect(),
    )
}

pub(crate) fn text(text: &str) -> Option<Value> {
    Some(text.into())
}

pub(crate) fn optional_text(text: &Option<String>) -> Option<Value> {
    text.as_deref().map(Value::from)
}

pub(crate) fn digest(digest: Option<Digest>) -> Option<Value> {
    digest.map(|digest| digest.to_string().into())
}

pub(crate) fn digest_or_null(hash: Option<Digest>) -> Value {
    digest(hash).unwrap_or_default()
}

pub(crate) fn number(number: u64) -> Option<Value> {
    Some(number.into())
}

/// Converts millionths once: both sides of the division are exact, so the quotient is the double
/// nearest to the amount.
pub(crate) fn money(amount: Micros) -> Result<Option<Value>, BuildError> {
    const EXACT: u64 = 1 << 53;
    if amount.0 > EXACT {
        return Err(BuildError::AmountTooLarge(amount.0));
    }
    Ok(Some((amount.0 as f64 / 1e6).into()))
}

/// Converts millionths; null, which fits nowhere, when they are too many.
fn amount(amount: Micros) -> Option<Value> {
    money(amount).unwrap_or(Some(Value::Null))
}

pub(crate) fn subject(object_kind: &str, id: &str) -> Option<Value> {
    some(object([("object", text(object_kind)), ("id", text(id))]))
}

pub(crate) fn issuer(issuer: &Issuer, public_key_id: Option<&str>) -> Option<Value> {
    some(object([
        ("id", text(&issuer.id)),
        ("kind", text("harness")),
        ("name", optional_text(&issuer.name)),
        ("version", text(&issuer.version)),
        ("public_key_id", public_key_id.map(Value::from)),
    ]))
}

pub(crate) fn identifiers(identifiers: &Identifiers) -> Option<Value> {
    some(object([
        ("tenant_id", optional_text(&identifiers.tenant_id)),
        ("persona_ref", optional_text(&identifiers.persona_ref)),
        ("workspace_ref", text(&identifiers.workspace_ref)),
        ("session_id", text(&identifiers.session_id)),
        ("task_id", text(&identifiers.task_id)),
        ("branch_id", optional_text(&identifiers.branch_id)),
        ("trace_id", optional_text(&identifiers.trace_id)),
    ]))
}

pub(crate) fn lifecycle(lifecycle: &Lifecycle) -> Option<Value> {
    let (final_state, failure) = match &lifecycle.end {
        TaskEnd::Succeeded => ("SUCCEEDED", Value::Null),
        TaskEnd::Canceled => ("CANCELED", Value::Null),
        TaskEnd::Failed(failure) => (
            "FAILED",
            Value::Object(object([
                ("code", text(&failure.code)),
                ("message", text(&failure.message)),
                ("details", failure.details.clone().map(Value::Object)),
            ])),
        ),
    };
    // A task that never started has no such time, but the format wants one.
    let started_at = lifecycle
        .started_at
        .as_ref()
        .or(lifecycle.created_at.as_ref())
        .unwrap_or(&lifecycle.completed_at);
    some(object([
        ("created_at", optional_text(&lifecycle.created_at)),
        ("started_at", text(started_at)),
        ("completed_at", text(&lifecycle.completed_at)),
        ("final_state", text(final_state)),
        ("failure", Some(failure)),
    ]))
}

pub(crate) fn trust(trust: &Trust) -> Option<Value> {
    some(object([
        ("start_tier", text(trust.start_tier.as_str())),
        ("end_tier", text(trust.end_tier.as_str())),
        ("policy_ref", optional_text(&trust.policy_ref)),
    ]))
}

pub(crate) fn consumed(budget: &Budget) -> Option<Value> {
    Some(limit(&BudgetLimit {
        usd: Some(budget.usd),
        input_tokens: Some(budget.input_tokens),
        output_tokens: Some(budget.output_tokens),
        tool_calls: Some(budget.tool_calls),
        wall_time_ms: Some(budget.wall_time_ms),
    }))
}

fn limit(limit: &BudgetLimit) -> Value {
    Value::Object(object([
        ("usd", limit.usd.and_then(amount)),
        ("input_tokens", limit.input_tokens.and_then(number)),
        ("output_tokens", limit.output_tokens.and_then(number)),
        ("tool_calls", limit.tool_calls.and_then(number)),
        ("wall_time_ms", limit.wall_time_ms.and_then(number)),
    ]))
}

fn approval(approval: &Approval) -> Map<String, Value> {
    let quorum = approval.quorum.map(|quorum| {
        Value::Object(object([
            ("required", number(quorum.required)),
            ("satisfied", number(quorum.satisfied)),
        ]))
    });
    object([
        ("approval_id", optional_text(&approval.approval_id)),
        ("actor", text(&approval.actor)),
        ("action", text(&approval.action)),
        ("decision", text(approval.decision.as_str())),
        ("decided_at", text(&approval.decided_at)),
        ("quorum_proof", quorum),
        ("evidence_hash", digest(approval.evidence_hash)),
    ])
}

pub(crate) fn replay_input<'a>(
    input: &ReplayInput,
    materials: impl Iterator<Item = &'a Material>,
) -> Option<Value> {
    let (determinism, reason) = match &input.determinism {
        Determinism::ByteDeterministic => ("byte_deterministic", None),
        Determinism::BestEffort => ("best_effort", None),
        Determinism::Unavailable(reason) => ("unavailable", Some(reason)),
    };
    let log = std::iter::once(event_log(&input.event_log));
    let materials = log.chain(materials.map(material));
    some(object([
        ("determinism", text(determinism)),
        (
            "materials",
            some_list(materials.map(Value::Object).collect()),
        ),
        ("unavailable_reason", reason.and_then(|reason| text(reason))),
    ]))
}

fn event_log(log: &EventLog) -> Map<String, Value> {
    object([
        ("kind", text(MaterialKind::EventLog.as_str())),
        ("id", text(&log.id)),
        ("uri", text(&log.uri)),
        ("sha256", digest(Some(log.sha256))),
        ("content_type", text("application/jsonl")),
    ])
}

fn material(material: &Material) -> Map<String, Value> {
    let mut map = object([
        ("kind", text(material.kind.as_str())),
        ("id", text(&material.id)),
        ("content_type", optional_text(&material.content_type)),
    ]);
    let content = match &material.content {
        MaterialContent::Stored { uri, sha256 } => {
            object([("uri", text(uri)), ("sha256", digest(Some(*sha256)))])
        }
        MaterialContent::Inline(bytes) => object([
            ("bytes_base64", text(&STANDARD.encode(bytes))),
            ("sha256", digest(Some(sha256(bytes)))),
        ]),
        MaterialContent::Overridden { sha256 } => object([
            ("sha256", digest(Some(*sha256))),
            (
                "metadata",
                some(object([("override_key", text(&material.id))])),
            ),
        ]),
    };
    map.extend(content);
    map
}

pub(crate) fn model(model: &ModelRef) -> Map<String, Value> {
    object([
        ("provider", text(&model.provider)),
        ("model", text(&model.model)),
        ("version", optional_text(&model.version)),
        ("reason", optional_text(&model.reason)),
    ])
}

/// The route of a run that called no model.
pub(crate) fn no_model() -> (ModelRef, &'static str) {
    let model = ModelRef {
        provider: "none".to_owned(),
        model: "none".to_owned(),
        version: None,
        reason: None,
    };
    (model, "no model call was made")
}

/// The last model is the chosen one; others that were called count as alternatives.
pub(crate) fn model_route(calls: &[ModelCall], reason: &str, others: &[ModelRef]) -> Option<Value> {
    let called = calls.iter().map(|call| &call.model);
    let (chosen, reason) = match called.clone().next_back() {
        Some(model) => (model.clone(), reason),
        None => no_model(),
    };
    let same = |a: &ModelRef, b: &ModelRef| {
        (&a.provider, &a.model, &a.version) == (&b.provider, &b.model, &b.version)
    };
    let mut alternatives: Vec<ModelRef> = Vec::new();
    for model in called {
        if !same(model, &chosen) && !alternatives.iter().any(|other| same(model, other)) {
            let reason = Some("also used".to_owned());
            alternatives.push(ModelRef {
                reason,
                ..model.clone()
            });
        }
    }
    alternatives.extend(others.iter().cloned());
    some(object([
        ("chosen_model", some(model(&chosen))),
        ("alternatives_considered", list(&alternatives, model)),
        ("route_policy_reason", text(reason)),
    ]))
}

/// Adds up prices in millionths per provider, model and price table. Calls without a known price are
/// named in the redactions instead of counting as nothing.
pub(crate) fn cost(
    currency: &str,
    calls: &[ModelCall],
    redactions: &mut Vec<Redaction>,
) -> Option<Value> {
    let mut groups: Vec<ModelCall> = Vec::new();
    let mut total = Micros(0);
    for call in calls {
        let Some(price) = call.cost else {
            note_unknown_price(&call.model, redactions);
            continue;
        };
        total = plus(total, price);
        let of_group = |group: &&mut ModelCall| {
            group.model.provider == call.model.provider
                && group.model.model == call.model.model
                && group.price_table == call.price_table
        };
        if let Some(group) = groups.iter_mut().find(of_group) {
            group.cost = Some(plus(group.cost.unwrap_or_default(), price));
            group.input_tokens = group.input_tokens.saturating_add(call.input_tokens);
            group.output_tokens = group.output_tokens.saturating_add(call.output_tokens);
        } else {
            groups.push(call.clone());
        }
    }
    let mut breakdown = Vec::new();
    for group in &groups {
        let price_table = group.price_table.as_deref();
        breakdown.push(Value::Object(object([
            ("provider", text(&group.model.provider)),
            ("model", text(&group.model.model)),
            ("amount", amount(group.cost.unwrap_or_default())),
            ("input_tokens", number(group.input_tokens)),
            ("output_tokens", number(group.output_tokens)),
            (
                "metadata",
                price_table.and_then(|table| some(object([("price_table", text(table))]))),
            ),
        ])));
    }
    some(object([
        ("currency", text(currency)),
        ("total", amount(total)),
        ("provider_breakdown", some_list(breakdown)),
    ]))
}

fn plus(a: Micros, b: Micros) -> Micros {
    Micros(a.0.saturating_add(b.0))
}

fn note_unknown_price(model: &ModelRef, redactions: &mut Vec<Redaction>) {
    let mut field = "/cost/provider_breakdown".to_owned();
    push_step(&mut field, &model.provider);
    push_step(&mut field, &model.model);
    let redaction = Redaction {
        field,
        reason: "price_unknown".to_owned(),
        proof_hash: None,
    };
    if !redactions.contains(&redaction) {
        redactions.push(redaction);
    }
}

pub(crate) fn side_effects(effects: &SideEffects) -> Option<Value> {
    some(object([
        (
            "fs_writes",
            list(&effects.fs_writes, |write| {
                object([
                    ("path", text(&write.path)),
                    ("operation", text(write.operation.as_str())),
                    ("before_sha256", digest(write.before_sha256)),
                    ("after_sha256", digest(write.after_sha256)),
                ])
            }),
        ),
        (
            "network_egress",
            list(&effects.network_egress, |egress| {
                object([
                    ("destination", text(&egress.destination)),
                    ("purpose", text(&egress.purpose)),
                    ("bytes_sent", egress.bytes_sent.and_then(number)),
                ])
            }),
        ),
        (
            "tool_calls",
            list(&effects.tool_calls, |call| {
                object([
                    ("tool", text(&call.tool)),
                    ("call_id", text(&call.call_id)),
                    ("status", text(call.status.as_str())),
                    ("input_hash", digest(call.input_hash)),
                    ("output_hash", digest(call.output_hash)),
                    (
                        "metadata",
                        (call.sandbox.clone())
                            .and_then(|limits| some(object([("sandbox", Some(limits))]))),
                    ),
                ])
            }),
        ),
        ("a2a_handoffs", list(&effects.handoffs, handoff)),
    ]))
}

fn handoff(handoff: &Handoff) -> Map<String, Value> {
    object([
        ("target_agent", text(&handoff.target_agent)),
        ("task_id", text(&handoff.task_id)),
        ("status", text(handoff.status.as_str())),
        ("receipt_id", optional_text(&handoff.receipt_id)),
    ])
}

pub(crate) fn artifact(artifact: &FinalArtifact) -> Map<String, Value> {
    let uri = format!("artifact://{}", artifact.artifact_id);
    object([
        ("artifact_id", text(&artifact.artifact_id)),
        ("kind", text(&artifact.kind)),
        ("uri", text(&uri)),
        ("sha256", digest(artifact.sha256)),
    ])
}

pub(crate) fn redaction(redaction: &Redaction) -> Map<String, Value> {
    object([
        ("field", text(&redaction.field)),
        ("reason", text(&redaction.reason)),
        ("proof_hash", digest(redaction.proof_hash)),
    ])
}

#[cfg(test)]
mod tests {
    use canon::Integers;
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_settled_is_what_the_reader_reads_back() {
        for (value, is_settled) in [
            (json!({"a": [1, -1, 2.0, -0.0, null, true, "x"]}), true),
            (json!(9_007_199_254_740_991_u64), true),
            (json!(-9_007_199_254_740_991.0), true),
            (json!([{"total": 0.5}]), false),
            (json!(9_007_199_254_740_992_u64), false),
            (json!(u64::MAX), false),
            (json!(1e300), false),
        ] {
            let mut settled = value.clone();
            assert_eq!(settle(&mut settled, 1), is_settled, "{value}");
            if is_settled {
                let read = canon::read(&jcs(&value), Integers::Safe).unwrap();
                assert_eq!(settled, read, "{value}");
            }
        }
        let deep = (0..120).fold(json!(1), |inner, _| json!([inner]));
        assert!(!settle(&mut deep.clone(), 1));
    }
}
