//! Issuing receipts: from a Task's whole log to the proof that commits to it.
//!
//! Runs where a turn is sealed, because the receipt covers the very events of its commit. Pure: signing Ed25519 is
//! deterministic, so sealing twice gives the same bytes.

use std::sync::Arc;

use canon::{Digest, Map, Value};
use domain::{
    AutonomyTier, Blob, ChainId, Document, Documents, Draft, Ends, Event, EventName,
    ImpossibleEvent, InReceipt, Issued, Kind, Position, ReceiptId, Scratch, Sealed, State, Status,
    Task, TaskId, TaskPersona, Timestamp, issue_receipt, seal,
};
use receipts::{
    Approval, Decision, Determinism, End, EventLog, Failure, FinalArtifact, Identifiers, Issuer,
    Lifecycle, Material, MaterialContent, MaterialKind, Quorum, Receipt, ReplayInput, Signer,
    TaskFacts, Tier, Trust, build_task, event_log_digest,
};
use runs::{Deeds, looks_secret};

use crate::trust;

/// How many events a receipt adds to the commit that ends a Task: its issue, and its place in the Session's chain.
const RECEIPT_EVENTS: u64 = 2;

/// A replay's receipt hangs off its source and leaves the chain alone.
const REPLAY_RECEIPT_EVENTS: u64 = 1;

/// Who signs receipts.
#[derive(Debug, Clone)]
pub struct Authority {
    /// The configured id of the issuer.
    pub id: String,
    /// Its configured name.
    pub name: Option<String>,
    /// The key in use.
    pub signer: Arc<Signer>,
    /// Every key that was ever in use, with its validity.
    pub keys: receipts::KeySet,
    /// The origin line of checkpoints, which names this log to witnesses.
    pub origin: String,
}

impl Authority {
    /// An authority with one key that is valid for all time.
    ///
    /// # Errors
    /// Never for a key id of ordinary characters; the key set says what it refuses.
    pub fn with_one_key(
        id: &str,
        key_id: &str,
        secret: &[u8; 32],
    ) -> Result<Self, receipts::KeySetError> {
        let signer = Signer::new(key_id, secret);
        let keys = receipts::KeySet::new(vec![receipts::PublicKey {
            key_id: key_id.to_owned(),
            bytes: signer.public(),
            not_before: None,
            expires: None,
            retired: None,
        }])?;
        Ok(Self {
            id: id.to_owned(),
            name: None,
            signer: Arc::new(signer),
            keys,
            origin: format!("{id}/receipts"),
        })
    }
}

/// The decided events of one command, and the Task they end.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    pub(crate) drafts: Vec<Draft>,
    pub(crate) ends: Option<Ends>,
    /// Stored bytes of the ended Task's earlier events.
    pub(crate) history: Arc<[Arc<[u8]>]>,
}

impl Step {
    pub(crate) fn event_count(&self) -> u64 {
        let receipt = match &self.ends {
            Some(ends) if ends.receipt.is_some() => REPLAY_RECEIPT_EVENTS,
            Some(_) => RECEIPT_EVENTS,
            None => 0,
        };
        self.drafts.len() as u64 + receipt
    }

    /// Seals the step; `earlier` are the events of the same turn before it.
    pub(crate) fn seal(
        &self,
        log: &EventName,
        authority: &Authority,
        scratch: &mut Scratch,
        earlier: &[Sealed],
        first: Position,
        stamp: Timestamp,
    ) -> Result<(Vec<Sealed>, Option<Blob>), ImpossibleEvent> {
        let mut sealed = Vec::with_capacity(self.drafts.len());
        for (index, draft) in (0..).zip(&self.drafts) {
            let draft = trust::complete(draft, scratch, authority, stamp)?;
            let drafts = std::slice::from_ref(draft.as_ref());
            sealed.extend(seal(log, scratch, drafts, first.plus(index), stamp)?);
        }
        let Some(Ends {
            task_id,
            receipt_id,
            receipt: prepared,
        }) = &self.ends
        else {
            return Ok((sealed, None));
        };
        let broken = |problem: String| {
            ImpossibleEvent::new(receipt_id.as_str(), Kind::ReceiptIssued, problem)
        };
        if let Some(prepared) = prepared {
            let receipt = Receipt::read(prepared)
                .map_err(|error| broken(error.to_string()))?
                .signed(&authority.signer);
            let source = Some(receipt.previous_hash());
            let (issued, blob) = issue(scratch, task_id, receipt_id, &receipt, source);
            let first = first.plus(self.drafts.len() as u64);
            sealed.extend(seal(log, scratch, &issued, first, stamp)?);
            return Ok((sealed, Some(blob)));
        }
        let Some(document) = scratch.document(task_id.as_str()).cloned() else {
            return Err(broken(format!("no task `{task_id}`")));
        };
        let in_turn = earlier
            .iter()
            .chain(&sealed)
            .filter(|event| event.links.task == Some(document.key));
        let events: Vec<&[u8]> = self
            .history
            .iter()
            .map(|bytes| &**bytes)
            .chain(in_turn.map(|event| &*event.bytes))
            .collect();
        let facts = facts(scratch, authority, &document, receipt_id, &events, stamp)
            .map_err(|error| broken(error.to_string()))?;
        let receipt = build_task(&facts)
            .and_then(|receipt| receipt.redacted(&looks_secret))
            .map_err(|error| broken(error.to_string()))?
            .signed(&authority.signer);
        let (drafts, blob) = issue(scratch, task_id, receipt_id, &receipt, None);
        let first = first.plus(self.drafts.len() as u64);
        sealed.extend(seal(log, scratch, &drafts, first, stamp)?);
        Ok((sealed, Some(blob)))
    }
}

/// Drafts the events of a signed receipt, and its bytes.
fn issue(
    scratch: &Scratch,
    task_id: &TaskId,
    receipt_id: &ReceiptId,
    receipt: &Receipt,
    source: Option<Option<Digest>>,
) -> (Vec<Draft>, Blob) {
    let blob = Blob::new(receipt.bytes());
    let issued = Issued {
        receipt_id: receipt_id.clone(),
        task_id: task_id.clone(),
        receipt_hash: receipt.hash(),
        content: blob.digest,
        bytes: blob.bytes.len() as u64,
        source,
    };
    (issue_receipt(scratch, "system", &issued), blob)
}

/// What the log of a Task says, collected.
fn facts(
    scratch: &Scratch,
    authority: &Authority,
    document: &Document,
    receipt_id: &ReceiptId,
    events: &[&[u8]],
    stamp: Timestamp,
) -> Result<TaskFacts, domain::ParseEventError> {
    let State::Task(task) = &document.state else {
        return Err(domain::ParseEventError::new(
            "the ended document is no task",
        ));
    };
    let mut story = Story::default();
    for bytes in events {
        story.read(Event::parse(bytes)?);
    }
    let previous = match scratch
        .document(ChainId::of(&task.session_id).as_str())
        .map(|document| &document.state)
    {
        Some(State::Chain(chain)) => Some(chain.receipt_hash),
        _ => None,
    };
    let lifecycle = lifecycle(document, task, story.failure, stamp);
    let redactions = story.deeds.redactions();
    let consumed = story.deeds.consumed(wall_time_ms(task, stamp));
    let log_id = format!("event_log_{}", document.id);
    Ok(TaskFacts {
        receipt_id: receipt_id.to_string(),
        issuer: Issuer {
            id: authority.id.clone(),
            name: authority.name.clone(),
            version: "agents-protocol-2026-04-25".to_owned(),
            public_key_id: Some(authority.signer.key_id().to_owned()),
        },
        issued_at: stamp.to_string(),
        identifiers: Identifiers {
            tenant_id: None,
            persona_ref: task.persona.as_ref().map(TaskPersona::reference),
            workspace_ref: task.workspace_id.to_string(),
            session_id: task.session_id.to_string(),
            task_id: document.id.to_string(),
            branch_id: task.branch_id.as_ref().map(ToString::to_string),
            trace_id: None,
        },
        lifecycle,
        approvals: story.approvals,
        trust: trust(task.persona.as_ref()),
        limit: None,
        consumed,
        replay_input: ReplayInput {
            determinism: Determinism::ByteDeterministic,
            event_log: EventLog {
                uri: format!("artifact://{log_id}"),
                id: log_id,
                sha256: event_log_digest(events.iter().copied()),
            },
            materials: story.materials,
        },
        model_calls: story.deeds.model_calls,
        alternatives: Vec::new(),
        route_policy_reason: "the model that the persona or the server names".to_owned(),
        currency: "USD".to_owned(),
        side_effects: story.deeds.side_effects,
        final_artifacts: story.artifacts,
        redactions,
        previous_receipt_hash: previous,
        merkle_root: None,
        metadata: Map::new(),
    })
}

/// The tier is the Persona's, from start to end. A Task without one has no tier of its own (C-46).
fn trust(persona: Option<&TaskPersona>) -> Trust {
    let tier = match persona.map(|persona| persona.autonomy_tier) {
        Some(AutonomyTier::Shadow) => Tier::Shadow,
        Some(AutonomyTier::Suggest) => Tier::Suggest,
        Some(AutonomyTier::ActWithApproval) => Tier::ActWithApproval,
        Some(AutonomyTier::ActAuto) | None => Tier::ActAuto,
    };
    let policy_ref = persona.map_or_else(|| "none".to_owned(), TaskPersona::reference);
    Trust {
        start_tier: tier,
        end_tier: tier,
        policy_ref: Some(policy_ref),
    }
}

fn lifecycle(
    document: &Document,
    task: &Task,
    failure: Option<Failure>,
    stamp: Timestamp,
) -> Lifecycle {
    let end = match task.status {
        Status::Completed => End::Succeeded,
        Status::Canceled => End::Canceled,
        Status::Failed
        | Status::Submitted
        | Status::Working
        | Status::InputRequired
        | Status::AuthRequired => End::Failed(failure.unwrap_or(Failure {
            code: "failed".to_owned(),
            message: "the task failed".to_owned(),
            details: None,
        })),
    };
    Lifecycle {
        created_at: Some(document.created_at.to_string()),
        started_at: task.started_at.map(|time| time.to_string()),
        completed_at: stamp.to_string(),
        end,
    }
}

fn wall_time_ms(task: &Task, stamp: Timestamp) -> u64 {
    let started = task.started_at.unwrap_or(stamp);
    // A clock that stepped back gives no negative time.
    u64::try_from((stamp.as_micros() - started.as_micros()) / 1_000).unwrap_or(0)
}

/// What is collected while reading a Task's events in order.
#[derive(Default)]
struct Story {
    materials: Vec<Material>,
    deeds: Deeds,
    approvals: Vec<Approval>,
    artifacts: Vec<FinalArtifact>,
    failure: Option<Failure>,
}

impl Story {
    fn read(&mut self, event: Event) {
        let text = |member: &str| event.payload.get(member).and_then(Value::as_str);
        match event.kind().map_or(InReceipt::Digest, Kind::in_receipt) {
            InReceipt::Digest => {}
            InReceipt::Effect => self.effect(&event),
            InReceipt::ToolUse => self.deeds.uses_tool(&event.payload),
            InReceipt::Answer => {
                let approved = event.payload.get("approved") == Some(&Value::Bool(true));
                self.approvals.push(approval(
                    &event,
                    if approved {
                        Decision::Approved
                    } else {
                        Decision::Denied
                    },
                ));
            }
            InReceipt::Withdrawal => self.approvals.push(approval(&event, Decision::Canceled)),
            InReceipt::Trust => self.evidence(&event),
            InReceipt::Content => {
                let known = self
                    .artifacts
                    .iter_mut()
                    .find(|artifact| *artifact.artifact_id == *event.resource.id);
                if let Some(artifact) = known {
                    artifact.sha256 = text("sha256").and_then(|digest| Digest::parse(digest).ok());
                }
            }
            InReceipt::Artifact => self.artifacts.push(FinalArtifact {
                artifact_id: event.resource.id.to_string(),
                kind: text("kind").unwrap_or("other").to_owned(),
                sha256: text("sha256").and_then(|digest| Digest::parse(digest).ok()),
            }),
            InReceipt::Failure => {
                let failure = event.payload.get("failure").and_then(Value::as_object);
                self.failure = failure.map(|failure| Failure {
                    code: failure
                        .get("code")
                        .and_then(Value::as_str)
                        .unwrap_or("failed")
                        .to_owned(),
                    message: failure
                        .get("message")
                        .and_then(Value::as_str)
                        .unwrap_or("the task failed")
                        .to_owned(),
                    details: failure.get("details").and_then(Value::as_object).cloned(),
                });
            }
        }
    }

    /// Ties a decision to its trust record, which follows it in the log.
    fn evidence(&mut self, event: &Event) {
        let text = |member: &str| event.payload.get(member).and_then(Value::as_str);
        let request = text("request_id");
        let decided = self
            .approvals
            .iter_mut()
            .rfind(|approval| approval.approval_id.as_deref() == request);
        let Some(approval) = decided else { return };
        let hash = event
            .payload
            .get("record")
            .and_then(|record| record.get("entry_hash")?.as_str());
        approval.evidence_hash = hash.and_then(|hash| Digest::parse(hash).ok());
        if let Some(action) = text("action") {
            action.clone_into(&mut approval.action);
        }
        approval.quorum = Some(Quorum {
            required: 1,
            satisfied: u64::from(approval.decision == Decision::Approved),
        });
    }

    fn effect(&mut self, event: &Event) {
        let text = |member: &str| {
            event
                .payload
                .get(member)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        let kind = match text("kind") {
            "llm_provider_response" => MaterialKind::LlmProviderResponse,
            "mcp_tool_return" => MaterialKind::McpToolReturn,
            "host_fact" | "tool_result" => MaterialKind::HostFact,
            // Clock reads and secrets are no material (C-24).
            _ => return,
        };
        if let Ok(sha256) = Digest::parse(text("value_sha256")) {
            let uri = format!("artifact://{}", event.id);
            self.materials.push(Material {
                kind,
                id: text("effect_key").to_owned(),
                content_type: Some("application/json".to_owned()),
                content: MaterialContent::Stored { uri, sha256 },
            });
        }
        self.deeds.effect(&event.payload);
    }
}

fn approval(event: &Event, decision: Decision) -> Approval {
    let action = match event.kind() {
        Ok(Kind::UserInputSubmitted) => "input",
        _ => "approval",
    };
    Approval {
        approval_id: Some(event.resource.id.to_string()),
        actor: event.actor.clone().unwrap_or_else(|| "unknown".to_owned()),
        action: action.to_owned(),
        decision,
        decided_at: event.created_at.to_string(),
        quorum: None,
        evidence_hash: None,
    }
}
