//! The payloads of events: `decide` writes them and `apply` reads them back, by the same types.
//!
//! Whoever else reads one member or two does so by [`Said`]: nothing is copied, and what has another type than it must is
//! not there.
//!
//! Members that no document needs are a [`Detail`]: written, and left where they are by whoever folds, because large
//! ones move into blobs. A member that some writers state as null and others leave out is [`Nullable`]. Fields are only
//! added, and what is added later is optional.

use std::marker::PhantomData;

use canon::{Digest, Map, Value};
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};

use crate::{
    ArtifactKind, AutonomyTier, BranchId, BranchKind, OutcomeId, PermissionId, PersonaId, Position,
    ReceiptId, ReceiptPolicy, Role, SessionId, Status, TaskId, TaskPersona, Timestamp, Visibility,
    WorkspaceId,
};

/// A payload of a known type, read member by member.
#[derive(Debug)]
pub struct Said<'a, P> {
    members: &'a Map<String, Value>,
    payload: PhantomData<P>,
}

impl<P> Clone for Said<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P> Copy for Said<'_, P> {}

impl<'a, P> Said<'a, P> {
    /// Takes members that a payload of this type states.
    pub const fn new(members: &'a Map<String, Value>) -> Self {
        let payload = PhantomData;
        Self { members, payload }
    }

    /// Returns all members.
    pub fn members(self) -> &'a Map<String, Value> {
        self.members
    }

    fn member<T: Read>(self, name: &str) -> Option<T::As<'a>> {
        self.members.get(name).and_then(T::read)
    }
}

/// How a member of this type is read without copying what is large.
pub trait Read {
    /// What is read.
    type As<'a>;

    /// Reads it; none when it is null or of another type.
    fn read(value: &Value) -> Option<Self::As<'_>>;
}

impl Read for Value {
    type As<'a> = &'a Value;

    fn read(value: &Value) -> Option<&Value> {
        Some(value)
    }
}

impl<T: Read> Read for Detail<T> {
    type As<'a> = T::As<'a>;

    fn read(value: &Value) -> Option<T::As<'_>> {
        T::read(value)
    }
}

impl Read for String {
    type As<'a> = &'a str;

    fn read(value: &Value) -> Option<&str> {
        value.as_str()
    }
}

impl<T: Read> Read for Option<T> {
    type As<'a> = T::As<'a>;

    fn read(value: &Value) -> Option<T::As<'_>> {
        T::read(value)
    }
}

macro_rules! read_whole {
    ($($type:ty),*) => {
        $(impl Read for $type {
            type As<'a> = Self;

            fn read(value: &Value) -> Option<Self> {
                Self::deserialize(value).ok()
            }
        })*
    };
}

read_whole! {
    bool, u64, Vec<String>, Digest, Position, Timestamp, Status, Role, Visibility, ArtifactKind, BranchKind,
    AutonomyTier, ReceiptPolicy, BranchId, OutcomeId, PermissionId, PersonaId, ReceiptId, SessionId, TaskId
}

/// A member that no document needs. Reading a payload passes over it, wherever it is by then; whoever asks for it reads it
/// as a `T`.
#[derive(Debug, Clone, PartialEq)]
pub struct Detail<T = Value>(Value, PhantomData<T>);

impl<T> Detail<T> {
    /// Takes a value as it is.
    pub(crate) const fn of(value: Value) -> Self {
        Self(value, PhantomData)
    }
}

/// Writes a value as a detail.
pub(crate) fn detail<T>(value: impl Serialize) -> Detail<T> {
    Detail::of(serde_json::to_value(value).unwrap_or_default())
}

impl<'de, T> Deserialize<'de> for Detail<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // As an option, so that a member that has moved into a blob is no error.
        Option::<IgnoredAny>::deserialize(deserializer).map(|_| Self::of(Value::Null))
    }
}

/// A member that is absent, null or a value.
pub(crate) type Nullable<T> = Option<Option<T>>;

fn nullable<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Nullable<T>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

/// What stands in a member of a payload: content is moved there and not copied.
trait Member {
    fn into_value(self) -> Value;
}

impl<T> Member for Detail<T> {
    fn into_value(self) -> Value {
        self.0
    }
}

impl<T: Serialize> Member for T {
    fn into_value(self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }
}

/// Defines payloads. `?` before a member: absent unless there is a value. `??`: see [`Nullable`].
macro_rules! payloads {
    ($($name:ident { $($fields:tt)* })*) => {
        $(payloads! { @struct $name [] [] [] $($fields)* })*
        $(payloads! { @read $name $($fields)* })*
    };
    (@read $name:ident $($(?)* $field:ident: $type:ty,)*) => {
        impl<'a> Said<'a, $name> {
            $(#[doc = concat!("Reads `", stringify!($field), "`.")]
            pub fn $field(self) -> Option<<$type as Read>::As<'a>> {
                self.member::<$type>(stringify!($field))
            })*
        }
    };
    (@struct $name:ident [$($done:tt)*] [$($always:ident)*] [$($maybe:ident)*]) => {
        #[doc = concat!("The payload `", stringify!($name), "`.")]
        #[derive(Debug, Clone, PartialEq, Deserialize)]
        pub struct $name { $($done)* }

        impl Read for $name {
            type As<'a> = Said<'a, Self>;

            fn read(value: &Value) -> Option<Said<'_, Self>> {
                value.as_object().map(Self::of)
            }
        }

        impl $name {
            /// Returns what a payload of this type says.
            pub fn of(members: &Map<String, Value>) -> Said<'_, Self> {
                Said::new(members)
            }

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
            #[serde(default, deserialize_with = "nullable")]
            pub(crate) $field: Nullable<$type>,
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

/// Defines payloads that no document depends on: each keeps its members as they are, because the request of a replay may
/// put anything in their place. Whoever writes one and whoever reads it name them here.
macro_rules! open_payloads {
    ($($name:ident { $($field:ident: $type:ty,)* })*) => {
        $(#[doc = concat!("The payload `", stringify!($name), "`.")]
        #[derive(Debug, Clone, PartialEq, Default)]
        pub struct $name(Map<String, Value>);

        impl $name {
            /// Returns what a payload of this type says.
            pub fn of(members: &Map<String, Value>) -> Said<'_, Self> {
                Said::new(members)
            }

            $(#[doc = concat!("States `", stringify!($field), "`.")]
            #[must_use]
            pub fn $field(mut self, value: impl Into<Value>) -> Self {
                self.0.insert(stringify!($field).to_owned(), value.into());
                self
            })*

            /// Returns the members to write.
            pub fn into_members(self) -> Map<String, Value> {
                self.0
            }
        }

        impl From<Map<String, Value>> for $name {
            fn from(members: Map<String, Value>) -> Self {
                Self(members)
            }
        }

        impl From<$name> for Value {
            fn from(payload: $name) -> Self {
                Value::Object(payload.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                IgnoredAny::deserialize(deserializer).map(|_| Self::default())
            }
        })*
        $(payloads! { @read $name $($field: $type,)* })*
    };
}

open_payloads! {
    ToolUse { tool_call_id: String, name: String, input: Value, effect_key: String, attempt: Value, }
    ToolResult { tool_call_id: String, name: String, status: String, effect_key: String, output: Value, }
    Decided { request_id: String, tool_call_id: String, name: String, reason: String, }
    MemoryRead { effect_key: String, count: u64, }
    ContractDecided {
        operation: String,
        answer: Value,
        problem: Value,
        workflow: Value,
        contract_sha256: String,
        narrowing: Value,
        decision: Value,
        decided: Value,
        shadow_delta: Value,
        asked: u64,
        questions: Value,
        execution: Value,
        released: Value,
        executed: Value,
    }
    ReplayStarted {
        source_task_id: String,
        mode: Value,
        override_keys: Value,
        checkpoint_id: Value,
        event_id_unmatched: Value,
        refresh: Value,
        unmatched_keys: Value,
    }
    ReplayedEffect {
        effect_key: String,
        kind: String,
        request_sha256: Digest,
        repeatable: bool,
        outcome: String,
        value: Value,
        value_sha256: Digest,
        visibility: String,
        model: Value,
        provider_request_id: String,
        side_effects: Value,
        replay_note: String,
        redacted: bool,
    }
    EventReplayed { original_event_id: Value, original_event: String, }
    ReplayEnded {
        source_task_id: String,
        events_replayed: u64,
        overrides_applied: Vec<String>,
        overrides_unused: Value,
        result_equal: bool,
        code: String,
        message: String,
        details: Value,
    }
    SessionReplayed { source_session_id: Value, tasks: Value, skipped: Value, completed: bool, reason: String, }
    SessionClosed { }
    EventLost { }
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
    Message { message_id: Detail<String>, role: Role, parts: Detail, metadata: Detail, }
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
        checkpoint_id: Detail<String>,
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
    SubmittedReplay { mode: Detail<String>, source_task_id: TaskId, request_sha256: Digest, ordinal: u64, }
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
        summary: Detail<String>,
        ?message_ids: Detail,
        ?messages: Detail,
        failure: Detail,
    }
    Asked { request_id: Detail<String>, effect_key: String, action_name: Option<String>, request: Detail, action: Detail, }
    Answered {
        request_id: Detail<String>,
        effect_key: Detail,
        approved: bool,
        answer_sha256: Digest,
        remarks: Detail,
        ?message_id: Detail<String>,
        ?answer: Detail,
    }
    Withdrawn { reason: Detail, }
    CancelRequested { scope: Detail, ?reason: Detail, ?message_id: Detail<String>, ?pending: bool, }
    EffectRequested {
        ?effect_key: Value,
        kind: Detail<String>,
        request_sha256: Detail<Digest>,
        repeatable: Detail<bool>,
        ?request_parts: Detail,
    }
    EffectRecorded {
        ?effect_key: Value,
        kind: Detail<String>,
        outcome: Detail<String>,
        value_sha256: Detail<Digest>,
        value: Detail,
        visibility: Detail<String>,
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
        request_id: Detail<String>,
        agent: Detail<String>,
        action: Detail<String>,
        decision: Detail<String>,
        ?key_id: Detail<String>,
        ?record: TrustRecord,
    }
    TrustRecord { entry_hash: Digest, }
    TreeHeadSealed { batch_id: Detail, size: u64, root: Digest, previous_root: Detail, checkpoint: Detail<String>, ?recovered: Detail, ?rotation: Detail, ?keys: Detail<Digest>, }
    TreeHeadCosigned { line: Detail<String>, }
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
