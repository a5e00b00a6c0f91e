//! Issuing receipts: from a Task's log to the proof that commits to it.
//!
//! What a receipt says is folded from the events as they come ([`TaskFold`]), so that the end of a Task costs what its
//! own commit costs, however long the Task was. Pure: signing Ed25519 is deterministic, so sealing twice gives the
//! same bytes.

use std::sync::Arc;

use canon::{Digest, Map, Value};
use domain::{
    ArtifactKind, AutonomyTier, Blob, ChainId, Document, Documents, Draft, Event, InReceipt, Kind,
    ParseEventError, Position, ReceiptId, Scratch, SignedReceipt, State, Status, Task, TaskId,
    TaskPersona, Timestamp, issue_receipt, payload,
};
use receipts::{
    Approval, BuildError, Decision, Determinism, EventLog, Failure, FinalArtifact, Identifiers,
    Issuer, Lifecycle, Material, MaterialContent, MaterialKind, Quorum, Receipt, ReplayInput,
    Signer, TaskEnd, TaskFacts, Tier, Trust, build_task,
};
use runs::SideEffectSummary;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::port::StoredEvent;

/// What a Task's receipt says of its events, up to one of them.
#[derive(Debug, Clone, Default)]
pub(crate) struct TaskFold {
    /// The last event that is in it.
    through: Option<Position>,
    log: Sha256,
    story: Collected,
}

impl TaskFold {
    /// Adds the next event of the Task's log. Events that are in already are passed over.
    pub(crate) fn add(&mut self, position: Position, bytes: &[u8], event: &Event) {
        if self.through.is_some_and(|through| position <= through) {
            return;
        }
        self.through = Some(position);
        self.log.update(bytes);
        self.log.update(b"\n");
        self.story.read(event);
    }

    /// Adds the next event as it is stored.
    ///
    /// # Errors
    /// Its bytes are no event.
    pub(crate) fn read(&mut self, stored: &StoredEvent) -> Result<(), ParseEventError> {
        self.add(
            stored.position,
            &stored.bytes,
            &Event::parse(&stored.bytes)?,
        );
        Ok(())
    }

    /// Returns the last event that is in it.
    pub(crate) fn through(&self) -> Position {
        self.through.unwrap_or(Position::START)
    }
}

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

/// Builds and signs the receipt of a Task that its last event has ended.
///
/// # Errors
/// The receipt cannot be built: an error of this program, because content always fits.
pub(crate) fn of_task(
    scratch: &Scratch,
    authority: &Authority,
    document: &Document,
    task: &Task,
    receipt_id: &ReceiptId,
    fold: TaskFold,
    stamp: Timestamp,
) -> Result<Receipt, BuildError> {
    let facts = facts(scratch, authority, document, task, receipt_id, fold, stamp);
    let receipt = build_task(&facts)?.redacted()?;
    Ok(receipt.signed(&authority.signer))
}

/// Drafts the events of a signed receipt, and its bytes.
pub(crate) fn issue(
    scratch: &Scratch,
    task_id: &TaskId,
    receipt_id: &ReceiptId,
    receipt: &Receipt,
    source: Option<Option<Digest>>,
) -> (Vec<Draft>, Blob) {
    let blob = Blob::new(receipt.bytes());
    let issued = SignedReceipt {
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
    task: &Task,
    receipt_id: &ReceiptId,
    fold: TaskFold,
    stamp: Timestamp,
) -> TaskFacts {
    let TaskFold { log, mut story, .. } = fold;
    story.side_effects.end();
    let previous = match scratch
        .document(ChainId::of(&task.session_id).as_str())
        .map(|document| &document.state)
    {
        Some(State::Chain(chain)) => Some(chain.receipt_hash),
        _ => None,
    };
    let lifecycle = lifecycle(document, task, story.failure, stamp);
    let redactions = story.side_effects.redactions();
    let consumed = story.side_effects.consumed(wall_time_ms(task, stamp));
    let log_id = format!("event_log_{}", document.id);
    TaskFacts {
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
                sha256: Digest::from_bytes(log.finalize().into()),
            },
            materials: story.materials,
        },
        model_calls: story.side_effects.model_calls,
        alternatives: Vec::new(),
        route_policy_reason: "the model that the persona or the server names".to_owned(),
        currency: "USD".to_owned(),
        side_effects: story.side_effects.side_effects,
        final_artifacts: story.artifacts,
        redactions,
        previous_receipt_hash: previous,
        merkle_root: None,
        metadata: metadata(&story.governance, &story.memory),
    }
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
        Status::Completed => TaskEnd::Succeeded,
        Status::Canceled => TaskEnd::Canceled,
        Status::Failed
        | Status::Submitted
        | Status::Working
        | Status::InputRequired
        | Status::AuthRequired => TaskEnd::Failed(failure.unwrap_or(Failure {
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
#[derive(Debug, Clone, Default)]
struct Collected {
    materials: Vec<Material>,
    side_effects: SideEffectSummary,
    approvals: Vec<Approval>,
    artifacts: Vec<FinalArtifact>,
    failure: Option<Failure>,
    governance: Governance,
    memory: Memory,
}

/// How often a Task read from the memory that agents share, and wrote to it.
#[derive(Debug, Clone, Default)]
struct Memory {
    reads: u64,
    writes: u64,
}

/// What contracts decided about the tool calls of a Task.
#[derive(Debug, Clone, Default)]
struct Governance {
    contract: Option<String>,
    allowed: u64,
    blocked: u64,
    asked: u64,
}

impl Governance {
    fn read(&mut self, payload: &Map<String, Value>) {
        let said = payload::ContractDecided::of(payload);
        self.asked = self.asked.saturating_add(said.asked().unwrap_or_default());
        // A released call that the last check before its execution refuses.
        if said.execution().is_some() {
            self.allowed = self.allowed.saturating_sub(1);
            self.blocked = self.blocked.saturating_add(1);
        }
        if let Some(contract) = said.contract_sha256() {
            self.contract = Some(contract.to_owned());
        }
        let Some(decision) = said.decision() else {
            return;
        };
        let contract = decision.get("compiled").and_then(Value::as_str);
        self.contract = contract.map(str::to_owned).or(self.contract.take());
        let refused = decision.get("action").and_then(Value::as_str) == Some("rejected");
        let calls = decision.get("calls").and_then(Value::as_array);
        for call in calls.into_iter().flatten() {
            let allowed = call.get("verdict").and_then(Value::as_str) == Some("allow") && !refused;
            let count = if allowed {
                &mut self.allowed
            } else {
                &mut self.blocked
            };
            *count = count.saturating_add(1);
        }
    }

    /// Returns the open members of a receipt: none where no contract was in force.
    fn metadata(&self) -> Map<String, Value> {
        let Some(contract) = &self.contract else {
            return Map::new();
        };
        let governance = json!({
            "contract_sha256": contract,
            "allowed": self.allowed,
            "blocked": self.blocked,
            "asked": self.asked,
        });
        Map::from_iter([("governance".to_owned(), governance)])
    }
}

impl Memory {
    fn read(&mut self, payload: &Map<String, Value>) {
        let said = payload::EffectRecorded::of(payload);
        let key = said.effect_key().and_then(Value::as_str);
        let key = key.unwrap_or_default();
        // What did not come about is in the log, and is neither.
        if said.outcome() == Some("error") {
            return;
        }
        self.reads += u64::from(key.starts_with("host:field.read:"));
        self.writes += u64::from(key.starts_with("host:field.write:"));
    }
}

/// Returns the open members of a receipt: none where there is nothing to say.
fn metadata(governance: &Governance, memory: &Memory) -> Map<String, Value> {
    let mut metadata = governance.metadata();
    let Memory { reads, writes } = memory;
    if reads + writes > 0 {
        let memory = json!({"reads": reads, "writes": writes});
        metadata.insert("memory".to_owned(), memory);
    }
    metadata
}

impl Collected {
    fn read(&mut self, event: &Event) {
        match event.kind().map_or(InReceipt::Digest, Kind::in_receipt) {
            InReceipt::Digest => {}
            InReceipt::Governance => {
                self.governance.read(&event.payload);
                self.side_effects.governed(&event.payload);
            }
            InReceipt::Effect => self.effect(event),
            InReceipt::ToolUse => self.side_effects.uses_tool(&event.payload),
            InReceipt::Answer => {
                let approved = payload::Answered::of(&event.payload).approved() == Some(true);
                self.approvals.push(approval(
                    event,
                    if approved {
                        Decision::Approved
                    } else {
                        Decision::Denied
                    },
                ));
            }
            InReceipt::Withdrawal => self.approvals.push(approval(event, Decision::Canceled)),
            InReceipt::Trust => self.evidence(event),
            InReceipt::Content => {
                let known = self
                    .artifacts
                    .iter_mut()
                    .find(|artifact| *artifact.artifact_id == *event.resource.id);
                if let Some(artifact) = known {
                    artifact.sha256 = payload::ArtifactUpdated::of(&event.payload).sha256();
                }
            }
            InReceipt::Artifact => {
                let said = payload::ArtifactCreated::of(&event.payload);
                self.artifacts.push(FinalArtifact {
                    artifact_id: event.resource.id.to_string(),
                    kind: said
                        .kind()
                        .unwrap_or(ArtifactKind::Other)
                        .as_str()
                        .to_owned(),
                    sha256: said.sha256(),
                });
            }
            InReceipt::Failure => {
                let failure = payload::TaskEnded::of(&event.payload).failure();
                let failure = failure.and_then(Value::as_object);
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
        let said = payload::TrustRecorded::of(&event.payload);
        let request = said.request_id();
        let decided = self
            .approvals
            .iter_mut()
            .rfind(|approval| approval.approval_id.as_deref() == request);
        let Some(approval) = decided else { return };
        approval.evidence_hash = said.record().and_then(|record| record.entry_hash());
        if let Some(action) = said.action() {
            action.clone_into(&mut approval.action);
        }
        approval.quorum = Some(Quorum {
            required: 1,
            satisfied: u64::from(approval.decision == Decision::Approved),
        });
    }

    fn effect(&mut self, event: &Event) {
        self.memory.read(&event.payload);
        let said = payload::EffectRecorded::of(&event.payload);
        let kind = match said.kind() {
            Some("llm_provider_response") => MaterialKind::LlmProviderResponse,
            Some("mcp_tool_return") => MaterialKind::McpToolReturn,
            Some("host_fact" | "tool_result") => MaterialKind::HostFact,
            // Clock reads and secrets are no material (C-24).
            _ => return,
        };
        if let Some(sha256) = said.value_sha256() {
            let uri = format!("artifact://{}", event.id);
            self.materials.push(Material {
                kind,
                id: event.effect_key().unwrap_or_default().to_owned(),
                content_type: Some("application/json".to_owned()),
                content: MaterialContent::Stored { uri, sha256 },
            });
        }
        self.side_effects.effect(&event.payload);
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
