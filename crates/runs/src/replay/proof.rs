//! The receipt of a replay: a function of source, request and result, the same on every server.

use canon::Value;
use domain::{Kind, Status, payload};
use receipts::{
    BuildError, Determinism, EventLog, Failure, FinalArtifact, Identifiers, Issuer, Lifecycle,
    LivePart, Material, MaterialContent, MaterialKind, ModelRef, Receipt, ReplayFacts, ReplayInput,
    TaskEnd, Tier, Trust, build_replay, replay_artifact_id, replay_receipt_id, replay_task_id,
};

use super::live;
use super::outcome::Replayed;
use super::request::Spec;
use super::source::Source;
use crate::side_effects::SideEffectSummary;

/// The issuer of a conformance run, its name, and the `source` text of its receipts.
pub const CONFORMANCE_ISSUER: (&str, &str, &str) = (
    "harness_conformance",
    "Harn replay conformance",
    "agents-protocol-replay-conformance-fixture",
);

/// Who issues, and which replay of its source it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceiptIssuer {
    /// The configured id of the issuer.
    pub id: String,
    /// Its configured name.
    pub name: Option<String>,
    /// From 1.
    pub ordinal: u64,
}

/// Builds the receipt of a replay, unsigned.
///
/// # Errors
/// A fact cannot be said in the format.
pub fn receipt(
    source: &Source,
    spec: &Spec,
    replayed: &Replayed,
    issuing: &ReceiptIssuer,
) -> Result<Receipt, BuildError> {
    let read = Stated(source.receipt.as_ref().map(Receipt::as_map));
    let task_id = replay_task_id(source.task_id.as_str(), issuing.ordinal);
    let receipt_id = replay_receipt_id(
        source.receipt.as_ref().map(Receipt::id),
        source.task_id.as_str(),
        issuing.ordinal,
    );
    let (issuer_id, issuer_name, text) = if spec.conformance {
        let (id, name, text) = CONFORMANCE_ISSUER;
        (id.to_owned(), Some(name.to_owned()), text)
    } else {
        (issuing.id.clone(), issuing.name.clone(), "replay")
    };
    let first = source.events().first();
    let last = source.events().last();
    let time = |label: &str, recorded: Option<String>| {
        let key = format!("time:{label}");
        let is_applied = replayed.applied.iter().any(|applied| applied.key == key);
        let given = spec.overrides.get(&key).filter(|_| is_applied);
        match given.and_then(|given| given.inline()?.as_str()) {
            Some(time) => Some(time.to_owned()),
            None => recorded,
        }
    };
    let ended_at = last.map(|event| event.created_at.to_string());
    let completed_at = time(
        "completed_at",
        read.text("/lifecycle/completed_at")
            .or_else(|| ended_at.clone()),
    );
    let lifecycle = Lifecycle {
        created_at: time(
            "created_at",
            read.text("/lifecycle/created_at")
                .or_else(|| first.map(|event| event.created_at.to_string())),
        ),
        started_at: time("started_at", read.text("/lifecycle/started_at")),
        completed_at: completed_at.unwrap_or_default(),
        end: end(replayed),
    };
    let event_log = EventLog {
        id: format!("event_log_{}", source.task_id),
        uri: format!("artifact://event_log_{}", source.task_id),
        sha256: source.log_sha256,
    };
    let summary = summary(source, replayed);
    // Prices are in dollars; what was recorded may have been in anything.
    let currency = match summary.model_calls.is_empty() {
        true => read.text("/cost/currency"),
        false => None,
    };
    let receipt = build_replay(&ReplayFacts {
        receipt_id,
        issuer: Issuer {
            id: issuer_id,
            name: issuer_name,
            version: "agents-protocol-2026-04-25".to_owned(),
            public_key_id: None,
        },
        issued_at: time("completed_at", read.text("/issued_at").or(ended_at)).unwrap_or_default(),
        identifiers: Identifiers {
            tenant_id: read.text("/identifiers/tenant_id"),
            persona_ref: read.text("/identifiers/persona_ref"),
            workspace_ref: read
                .text("/identifiers/workspace_ref")
                .or_else(|| first?.workspace_id.as_ref().map(ToString::to_string))
                .unwrap_or_default(),
            session_id: read
                .text("/identifiers/session_id")
                .or_else(|| first?.session_id.as_ref().map(ToString::to_string))
                .unwrap_or_default(),
            task_id: task_id.clone(),
            branch_id: None,
            trace_id: read.text("/identifiers/trace_id"),
        },
        lifecycle,
        trust: Trust {
            start_tier: tier(read.text("/trust/start_tier")),
            end_tier: tier(read.text("/trust/end_tier")),
            policy_ref: read.text("/trust/policy_ref"),
        },
        replay_input: ReplayInput {
            determinism: if replayed.refreshed {
                Determinism::BestEffort
            } else {
                Determinism::ByteDeterministic
            },
            event_log,
            materials: materials(source, replayed),
        },
        redactions: summary.redactions(),
        live: LivePart {
            // B5: by the recorded clock no time passes in a replay.
            consumed: summary.consumed(0),
            model_calls: summary.model_calls,
            side_effects: summary.side_effects,
        },
        chosen_model: read.model(),
        currency: currency.unwrap_or_else(|| "USD".to_owned()),
        final_artifacts: replayed
            .artifacts
            .iter()
            .zip(1..)
            .map(|(artifact, number)| FinalArtifact {
                artifact_id: replay_artifact_id(&task_id, number),
                kind: artifact.kind.clone(),
                sha256: artifact.sha256,
            })
            .collect(),
        applied: replayed.applied.clone(),
        source_receipt_hash: source.receipt_hash,
        source: text.to_owned(),
        source_task_id: source.task_id.to_string(),
        replay_mode: spec.mode.as_str().to_owned(),
    })?;
    receipt.redacted()
}

/// Collects what the replay performed itself.
///
/// B9 wants cost, consumption and side effects of zero, because a replay performs nothing. That is not so for one that
/// goes on live (B7): it paid and acted, and a proof of it must say so. What it reused of the record stays out: the
/// source's own receipt tells that.
fn summary(source: &Source, replayed: &Replayed) -> SideEffectSummary {
    let mut summary = SideEffectSummary::default();
    if !replayed.refreshed {
        return summary;
    }
    for emission in &replayed.emissions {
        match (emission.kind, &emission.payload, emission.original) {
            (Kind::AgentToolUse, Some(payload), _) => summary.uses_tool(payload),
            (Kind::AgentToolUse, None, Some(index)) => summary.uses_tool(&source.payload(index)),
            (Kind::EffectRecorded, Some(payload), _) if live::is_told_by(payload) => {
                summary.live_effect(payload);
            }
            _ => {}
        }
    }
    summary
}

/// The members of the source's receipt.
struct Stated<'a>(Option<&'a canon::Map<String, Value>>);

impl Stated<'_> {
    fn text(&self, pointer: &str) -> Option<String> {
        let mut steps = pointer.split('/').skip(1);
        let first = self.0?.get(steps.next()?)?;
        let found = steps.try_fold(first, |value, step| value.get(step))?;
        found.as_str().map(str::to_owned)
    }

    fn model(&self) -> Option<ModelRef> {
        let provider = self.text("/model_route/chosen_model/provider")?;
        (provider != "none").then(|| ModelRef {
            provider,
            model: self
                .text("/model_route/chosen_model/model")
                .unwrap_or_default(),
            version: self.text("/model_route/chosen_model/version"),
            reason: None,
        })
    }
}

fn tier(word: Option<String>) -> Tier {
    let tiers = [
        Tier::Shadow,
        Tier::Suggest,
        Tier::ActWithApproval,
        Tier::ActAuto,
    ];
    let word = word.unwrap_or_default();
    tiers
        .into_iter()
        .find(|tier| tier.as_str() == word)
        .unwrap_or(Tier::ActAuto)
}

fn end(replayed: &Replayed) -> TaskEnd {
    let failure = &replayed.end.failure;
    match replayed.end.status {
        Status::Completed => TaskEnd::Succeeded,
        Status::Canceled => TaskEnd::Canceled,
        Status::Failed
        | Status::Submitted
        | Status::Working
        | Status::InputRequired
        | Status::AuthRequired => {
            let text = |name: &str, otherwise: &str| {
                failure
                    .get(name)
                    .and_then(Value::as_str)
                    .unwrap_or(otherwise)
                    .to_owned()
            };
            TaskEnd::Failed(Failure {
                code: text("code", "failed"),
                message: text("message", "the task failed"),
                details: failure.get("details").and_then(Value::as_object).cloned(),
            })
        }
    }
}

/// Which kind of material a key names (C-24).
fn material_kind(key: &str) -> Option<MaterialKind> {
    match key.split(':').next().unwrap_or_default() {
        "llm" => Some(MaterialKind::LlmProviderResponse),
        "mcp" => Some(MaterialKind::McpToolReturn),
        "host" => Some(MaterialKind::HostFact),
        "event" => Some(MaterialKind::EventLog),
        _ => None,
    }
}

fn materials(source: &Source, replayed: &Replayed) -> Vec<Material> {
    let overridden = replayed.applied.iter().filter_map(|applied| {
        Some(Material {
            kind: material_kind(&applied.key)?,
            id: applied.key.clone(),
            content_type: None,
            content: MaterialContent::Overridden {
                sha256: applied.after_sha256?,
            },
        })
    });
    let reused = replayed.reused.iter().filter_map(|place| {
        let event = source.event(*place)?;
        let key = event.effect_key()?;
        Some(Material {
            kind: material_kind(key)?,
            id: key.to_owned(),
            content_type: Some("application/json".to_owned()),
            content: MaterialContent::Stored {
                uri: format!("artifact://{}", event.id),
                sha256: payload::EffectRecorded::of(&event.payload).value_sha256()?,
            },
        })
    });
    overridden.chain(reused).collect()
}
