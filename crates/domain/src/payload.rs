//! The payloads of events: `decide` writes them and `apply` reads them back, by the same types.
//!
//! Members that no document needs are a [`Detail`]: written, and left where they are by whoever folds, because large
//! ones move into blobs. A member that some writers state as null and others leave out is [`Stated`]. Fields are only
//! added, and what is added later is optional.

use canon::{Digest, Map, Value};
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};

use crate::{
    ArtifactKind, AutonomyTier, BranchId, BranchKind, OutcomeId, PermissionId, PersonaId, Position,
    ReceiptId, ReceiptPolicy, Role, SessionId, Status, TaskId, TaskPersona, Timestamp, Visibility,
    WorkspaceId,
};

/// A member that no document needs. Reading a payload passes over it, wherever it is by then.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Detail(Value);

impl Detail {
    /// Takes a value as it is.
    pub(crate) const fn of(value: Value) -> Self {
        Self(value)
    }
}

/// Writes a value as a detail.
pub(crate) fn detail(value: impl Serialize) -> Detail {
    Detail(serde_json::to_value(value).unwrap_or_default())
}

impl<'de> Deserialize<'de> for Detail {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // As an option, so that a member that has moved into a blob is no error.
        Option::<IgnoredAny>::deserialize(deserializer).map(|_| Self::default())
    }
}

/// A member that is absent, null or a value.
pub(crate) type Stated<T> = Option<Option<T>>;

fn stated<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Stated<T>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

/// A payload that only its writer and its readers understand: no document depends on it.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Open(pub(crate) Map<String, Value>);

impl Open {
    pub(crate) fn into_members(self) -> Map<String, Value> {
        self.0
    }
}

impl<'de> Deserialize<'de> for Open {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(deserializer).map(|_| Self::default())
    }
}

/// What stands in a member of a payload: content is moved there and not copied.
trait Member {
    fn into_value(self) -> Value;
}

impl Member for Detail {
    fn into_value(self) -> Value {
        self.0
    }
}

impl<T: Serialize> Member for T {
    fn into_value(self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }
}

/// Defines payloads. `?` before a member: absent unless there is a value. `??`: see [`Stated`].
macro_rules! payloads {
    ($($name:ident { $($fields:tt)* })*) => {
        $(payloads! { @struct $name [] [] [] $($fields)* })*
    };
    (@struct $name:ident [$($done:tt)*] [$($always:ident)*] [$($maybe:ident)*]) => {
        #[derive(Debug, Clone, PartialEq, Deserialize)]
        pub(crate) struct $name { $($done)* }

        impl $name {
            /// Returns the members to write.
            pub(crate) fn into_members(self) -> Map<String, Value> {
                let mut members = Map::new();
                $(members.insert(stringify!($always).to_owned(), self.$always.into_value());)*
                $(if let Some(value) = self.$maybe {
                    members.insert(stringify!($maybe).to_owned(), value.into_value());
                })*
                members
            }
        }

        impl Member for $name {
            fn into_value(self) -> Value {
                Value::Object(self.into_members())
            }
        }
    };
    (@struct $name:ident [$($done:tt)*] [$($always:ident)*] [$($maybe:ident)*] ? ? $field:ident: $type:ty, $($rest:tt)*) => {
        payloads! { @struct $name [$($done)*
            #[serde(default, deserialize_with = "stated")]
            pub(crate) $field: Stated<$type>,
        ] [$($always)*] [$($maybe)* $field] $($rest)* }
    };
    (@struct $name:ident [$($done:tt)*] [$($always:ident)*] [$($maybe:ident)*] ? $field:ident: $type:ty, $($rest:tt)*) => {
        payloads! { @struct $name [$($done)*
            #[serde(default)]
            pub(crate) $field: Option<$type>,
        ] [$($always)*] [$($maybe)* $field] $($rest)* }
    };
    (@struct $name:ident [$($done:tt)*] [$($always:ident)*] [$($maybe:ident)*] $field:ident: $type:ty, $($rest:tt)*) => {
        payloads! { @struct $name [$($done)* pub(crate) $field: $type,] [$($always)* $field] [$($maybe)*] $($rest)* }
    };
}

payloads! {
    WorkspaceCreated { name: String, root: String, default_branch_id: BranchId, metadata: Detail, }
    WorkspaceUpdated { ?name: String, ?capabilities: Vec<String>, ??quota_id: String, ?metadata: Detail, }
    SessionCreated {
        workspace_id: Detail,
        ??mode_id: String,
        ??persona_id: PersonaId,
        ??model_policy: Value,
        ?parent_session_id: SessionId,
        ?root_session_id: SessionId,
        ??branch_id: BranchId,
        ?copied: u64,
        ?imported: bool,
        ?replay_plan_sha256: Digest,
        metadata: Detail,
    }
    SessionUpdated { ??summary: String, ??model_policy: Value, ?metadata: Detail, }
    SessionTruncated {
        keep_first: Detail,
        kept_turn_count: Detail,
        removed_turn_count: u64,
        new_tip_turn_id: Detail,
        after_position: Position,
        through_position: Position,
        reason: Detail,
    }
    SessionForked { session_id: Detail, at_event_id: Detail, copied: Detail, }
    BranchCreated {
        kind: BranchKind,
        base_ref: String,
        ??parent_branch_id: BranchId,
        ??task_id: TaskId,
        metadata: Detail,
    }
    Message { message_id: Detail, role: Role, parts: Detail, metadata: Detail, }
    MessageAppended { message_id: Detail, role: Detail, }
    MessageCopied { message_id: Detail, source_message_id: Detail, source_position: Position, role: Role, }
    ArtifactCreated {
        kind: ArtifactKind,
        mime_type: String,
        uri: Option<String>,
        visibility: Visibility,
        sha256: Option<Digest>,
        ?bytes: u64,
        task_id: Option<TaskId>,
        metadata: Detail,
    }
    ArtifactUpdated { sha256: Digest, bytes: u64, }
    CheckpointCreated {
        checkpoint_id: Detail,
        artifact_id: Detail,
        state_sha256: Option<Digest>,
        bytes: Option<u64>,
        task_id: Option<TaskId>,
    }
    TaskSubmitted {
        workflow: String,
        branch_id: Option<BranchId>,
        parent_task_id: Option<TaskId>,
        ?persona_id: PersonaId,
        ?persona_version: String,
        ?autonomy_tier: AutonomyTier,
        ?receipt_policy: ReceiptPolicy,
        ?persona: Detail,
        ?input: Detail,
        ?input_event_id: String,
        ?input_position: Position,
        ?replay: SubmittedReplay,
        metadata: Detail,
    }
    SubmittedReplay { mode: Detail, source_task_id: TaskId, request_sha256: Digest, ordinal: u64, }
    TaskImported {
        created_by: String,
        status: Status,
        submitted_at: Timestamp,
        started_at: Option<Timestamp>,
        ended_at: Timestamp,
        bundle_sha256: Digest,
        bundle_bytes: Detail,
        receipt_id: Option<ReceiptId>,
        ?failure: Detail,
        metadata: Detail,
    }
    TaskStarted { workflow: Detail, ?workflow_sha256: Value, }
    TaskWaits { request_id: PermissionId, effect_key: Detail, }
    TaskEnded { outcome_id: Option<OutcomeId>, receipt_id: Option<ReceiptId>, failure: Detail, }
    StatusChanged { from: Status, to: Status, ?reason: String, }
    OutcomeRecorded {
        outcome_id: Detail,
        receipt_id: Option<ReceiptId>,
        status: Status,
        summary: Detail,
        ?message_ids: Detail,
        ?messages: Detail,
        failure: Detail,
    }
    Asked { request_id: Detail, effect_key: String, action_name: Option<String>, request: Detail, action: Detail, }
    Answered {
        request_id: Detail,
        effect_key: Detail,
        approved: bool,
        answer_sha256: Digest,
        remarks: Detail,
        ?message_id: Detail,
        ?answer: Detail,
    }
    Decided { request_id: Detail, }
    Withdrawn { reason: Detail, }
    CancelRequested { scope: Detail, ?reason: Detail, ?message_id: Detail, ?pending: bool, }
    EffectRequested {
        ?effect_key: Value,
        kind: Detail,
        request_sha256: Detail,
        repeatable: Detail,
        ?request_parts: Detail,
    }
    EffectRecorded {
        ?effect_key: Value,
        kind: Detail,
        outcome: Detail,
        value_sha256: Detail,
        value: Detail,
        visibility: Detail,
        ?provider_request_id: Detail,
        ?model: Detail,
        ?side_effects: Detail,
        ?interrupted_through: Position,
    }
    MessageDelta { effect_key: Detail, index: Detail, text: Detail, }
    VaultCreated { provider: String, capabilities: Vec<String>, metadata: Detail, }
    Receipt {
        receipt_id: Detail,
        receipt_hash: Digest,
        previous_receipt_hash: Option<Digest>,
        ??previous_receipt_id: ReceiptId,
        content_sha256: Digest,
        bytes: Detail,
    }
    Verified { receipt_id: Detail, valid: Detail, reason: Detail, value: Detail, }
    ReceiptChained { receipt_id: ReceiptId, receipt_hash: Digest, count: u64, }
    KeyCreated {
        actor: String,
        workspaces: Option<Vec<String>>,
        scopes: Vec<String>,
        fingerprint: Digest,
        ?expires_at: Timestamp,
        ?revoked_at: Timestamp,
        ?recorded_late: bool,
    }
    KeyGranted { scopes: Vec<String>, }
    KeyRevoked { revoked_at: Timestamp, }
    FieldEntry { ?field: String, epoch: u64, ?content_bytes: u64, ?counted_apart: bool, }
    TrustRecorded {
        request_id: Detail,
        agent: Detail,
        action: Detail,
        decision: Detail,
        ?key_id: Detail,
        ?record: TrustRecord,
    }
    TrustRecord { entry_hash: Digest, }
    TreeHeadSealed { batch_id: Detail, size: u64, root: Digest, previous_root: Detail, checkpoint: Detail, ?recovered: Detail, ?rotation: Detail, ?keys: Detail, }
    TreeHeadCosigned { line: Detail, }
    Persona { name: String, version: String, content_sha256: Digest, persona: Detail, metadata: Detail, }
}

impl SessionCreated {
    /// Says what every Session has; the rest is left out.
    pub(crate) fn new(workspace_id: &WorkspaceId, metadata: &Map<String, Value>) -> Self {
        Self {
            workspace_id: detail(workspace_id),
            mode_id: None,
            persona_id: None,
            model_policy: None,
            parent_session_id: None,
            root_session_id: None,
            branch_id: None,
            copied: None,
            imported: None,
            replay_plan_sha256: None,
            metadata: detail(metadata),
        }
    }
}

impl TaskSubmitted {
    /// Says what every Task has; the rest is left out.
    pub(crate) fn new(workflow: &str, metadata: &Map<String, Value>) -> Self {
        Self {
            workflow: workflow.to_owned(),
            branch_id: None,
            parent_task_id: None,
            persona_id: None,
            persona_version: None,
            autonomy_tier: None,
            receipt_policy: None,
            persona: None,
            input: None,
            input_event_id: None,
            input_position: None,
            replay: None,
            metadata: detail(metadata),
        }
    }

    /// Names the Persona.
    pub(crate) fn runs_under(&mut self, persona: &TaskPersona) {
        self.persona_id = Some(persona.id.clone());
        self.persona_version = Some(persona.version.clone());
        self.autonomy_tier = Some(persona.autonomy_tier);
        self.receipt_policy = Some(persona.receipt_policy);
    }
}
