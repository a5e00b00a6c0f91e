//! What Workspaces may store, together and each. What counts is what the store counts: events, and the content they name.
//!
//! Looked at before work is taken on, so that most of what is refused costs little; and again where requests stand in a row:
//! in the turn, which knows what each command writes, and, for content that is written before its turn, when its room is
//! reserved. Requests that come together do not pass the limit together. Work that was taken on is recorded to its end: a
//! result in hand is never lost.

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard, PoisonError};

use domain::{
    ArtifactId, FieldRoom, Govern, GovernedOperation, Order, Position, Request, RequestReply,
    ResourceKind, WorkspaceId,
};

use crate::caller::{Caller, workspace_of};
use crate::engine::{Engine, Shared};
use crate::refused::Refused;
use crate::share::{self, NoShare};

/// The setting that bounds it, and its unit.
const LIMIT: &str = "stored_mib_max";
const MIB: u64 = 1024 * 1024;

/// What room is kept in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum QuotaPool {
    /// What everything takes.
    Common,
    /// What readings of memories take: they must not use up what others write in.
    Apart,
}

/// Bytes that are about to be stored and not counted yet, by the key of their Workspace.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    common: Bytes,
    apart: Bytes,
}

#[derive(Debug, Default)]
struct Bytes {
    total: u64,
    workspaces: BTreeMap<Position, u64>,
}

impl Pending {
    fn of(&self, room: QuotaPool) -> &Bytes {
        match room {
            QuotaPool::Common => &self.common,
            QuotaPool::Apart => &self.apart,
        }
    }

    fn of_mut(&mut self, room: QuotaPool) -> &mut Bytes {
        match room {
            QuotaPool::Common => &mut self.common,
            QuotaPool::Apart => &mut self.apart,
        }
    }
}

impl Bytes {
    fn add(&mut self, workspace: Position, bytes: u64) {
        self.total += bytes;
        *self.workspaces.entry(workspace).or_default() += bytes;
    }

    fn of(&self, workspace: Position) -> u64 {
        self.workspaces.get(&workspace).copied().unwrap_or(0)
    }
}

/// Room that is reserved until what takes it is committed and counted, and given back when dropped.
#[derive(Debug)]
pub(crate) struct QuotaReservation {
    shared: Arc<Shared>,
    room: QuotaPool,
    workspace: Position,
    bytes: u64,
}

impl Drop for QuotaReservation {
    fn drop(&mut self) {
        let mut reserved = self.shared.reserved();
        let reserved = reserved.of_mut(self.room);
        reserved.total -= self.bytes;
        if let Some(held) = reserved.workspaces.get_mut(&self.workspace) {
            *held -= self.bytes;
            if *held == 0 {
                reserved.workspaces.remove(&self.workspace);
            }
        }
    }
}

impl Shared {
    fn reserved(&self) -> MutexGuard<'_, Pending> {
        let reserved = self.reserved.lock();
        reserved.unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps room for what a Workspace is about to store, if it may.
    pub(crate) fn reserve(
        self: &Arc<Self>,
        room: QuotaPool,
        workspace: Position,
        bytes: u64,
    ) -> Result<QuotaReservation, Refused> {
        let mut reserved = self.reserved();
        self.has_room(room, workspace, reserved.of(room), bytes)?;
        reserved.of_mut(room).add(workspace, bytes);
        drop(reserved);
        Ok(self.reservation(room, workspace, bytes))
    }

    /// Keeps room for what is stored whatever the limit says.
    pub(crate) fn reserve_anyway(
        self: &Arc<Self>,
        workspace: Position,
        bytes: u64,
    ) -> QuotaReservation {
        let room = QuotaPool::Common;
        self.reserved().of_mut(room).add(workspace, bytes);
        self.reservation(room, workspace, bytes)
    }

    fn reservation(
        self: &Arc<Self>,
        room: QuotaPool,
        workspace: Position,
        bytes: u64,
    ) -> QuotaReservation {
        QuotaReservation {
            shared: Arc::clone(self),
            room,
            workspace,
            bytes,
        }
    }

    fn has_room(
        &self,
        room: QuotaPool,
        workspace: Position,
        pending: &Bytes,
        bytes: u64,
    ) -> Result<(), Refused> {
        let max = self.limits.stored_bytes_max;
        let stored = match room {
            QuotaPool::Common => self.store.stored(workspace),
            QuotaPool::Apart => self.store.stored_apart(workspace),
        };
        let Some(stored) = stored else {
            return Ok(());
        };
        let total = stored.total.saturating_add(pending.total);
        if total.saturating_add(bytes) <= max {
            return Ok(());
        }
        let own = pending.of(workspace);
        let held = stored.of_workspace.saturating_add(own);
        let callers = stored.workspaces + usize::from(stored.of_workspace == 0);
        share::may_take(max, total, (held, callers), bytes).map_err(|no| {
            let mib = |bytes: u64| usize::try_from(bytes / MIB).unwrap_or(usize::MAX);
            let no = match no {
                NoShare::Own { .. } => NoShare::Own { held: mib(held) },
                NoShare::All => NoShare::All,
            };
            no.of(LIMIT, mib(max))
        })
    }
}

impl Engine {
    /// Refuses to take more content for a Workspace that has its share.
    pub(crate) async fn may_store(
        &self,
        workspace: Option<&WorkspaceId>,
        bytes: u64,
    ) -> Result<(), Refused> {
        let max = self.shared.limits.stored_bytes_max;
        let Some(all) = self.shared.store.stored(Position::START) else {
            return Ok(());
        };
        // Mostly there is room, whoever it is.
        let total = all
            .total
            .saturating_add(self.shared.reserved().of(QuotaPool::Common).total);
        match total.saturating_add(bytes) <= max {
            true => Ok(()),
            false => self.reserve(workspace, bytes).await.map(drop),
        }
    }

    /// The same, and keeps room for it until what is returned is dropped.
    pub(crate) async fn reserve(
        &self,
        workspace: Option<&WorkspaceId>,
        bytes: u64,
    ) -> Result<Option<QuotaReservation>, Refused> {
        let store = &self.shared.store;
        let (Some(workspace), Some(_)) = (workspace, store.stored(Position::START)) else {
            return Ok(None);
        };
        let known = self.shared.cache.last_seen(workspace.as_str());
        let key = match known {
            Some(document) => Some(document.key),
            None => self
                .document(workspace.as_str())
                .await?
                .map(|found| found.key),
        };
        let Some(workspace) = key else {
            return Ok(None);
        };
        self.shared
            .reserve(QuotaPool::Common, workspace, bytes)
            .map(Some)
    }

    /// Refuses content of this length for an Artifact before it arrives, when there is no room for it.
    ///
    /// # Errors
    /// The caller does not see the Artifact, or its Workspace has its share.
    pub async fn may_attach(
        &self,
        caller: &Caller,
        id: &ArtifactId,
        bytes: u64,
    ) -> Result<(), Refused> {
        let document = self
            .visible(caller, ResourceKind::Artifact, id.as_str())
            .await?;
        self.may_store(workspace_of(&document).as_ref(), bytes)
            .await
    }
}

/// What a request adds to what is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Added {
    /// So little that it is not held to the limit: who has too much must still be able to stop.
    Little,
    /// At least so many bytes.
    AtLeast(u64),
    /// So many bytes, which are stored before its turn.
    BeforeItsTurn(u64),
}

pub(crate) fn added(request: &Request) -> Added {
    match request {
        Request::CreateSession(_)
        | Request::UpdateSession(_)
        | Request::ForkSession { .. }
        | Request::AppendMessage { .. }
        | Request::SubmitTask(_)
        | Request::ReplayTask(_)
        | Request::ReplaySession(_)
        | Request::SendTaskMessage { .. }
        | Request::CreateBranch(_)
        | Request::RegisterArtifact(_)
        | Request::CreateVault(_)
        | Request::CreateLocalVault
        | Request::UpdateWorkspace(_) => Added::AtLeast(1),
        Request::ImportTask { bundle, .. } => Added::BeforeItsTurn(bundle.len() as u64),
        Request::AttachContent { bytes, .. } => Added::BeforeItsTurn(*bytes),
        Request::Govern(Govern::Open(_) | Govern::OpenWorkflow(_)) => Added::AtLeast(1),
        // An offer that was made can be answered.
        Request::Govern(Govern::Handoff { .. }) => Added::Little,
        Request::Govern(Govern::Do { operation, .. }) => match &**operation {
            GovernedOperation::Preflight(_)
            | GovernedOperation::Propose(_)
            | GovernedOperation::AddLabel { .. }
            | GovernedOperation::SetFilter { .. }
            | GovernedOperation::ReportBypass { .. }
            | GovernedOperation::Offer(_)
            | GovernedOperation::Capture { .. } => Added::AtLeast(1),
            // What was allowed is recorded to its end, and whoever has too much can stop.
            GovernedOperation::Report(_)
            | GovernedOperation::Decide(_)
            | GovernedOperation::Kill { .. }
            | GovernedOperation::Restore
            | GovernedOperation::Heartbeat { .. }
            | GovernedOperation::Hear { .. }
            | GovernedOperation::Accept { .. }
            | GovernedOperation::CloseOffer { .. }
            | GovernedOperation::Resume
            | GovernedOperation::Tick
            | GovernedOperation::Lose => Added::Little,
        },
        Request::CreateWorkspace(_)
        | Request::CreatePersona(_)
        | Request::UpdatePersona { .. }
        | Request::CloseSession(_)
        | Request::TruncateSession { .. }
        | Request::CancelTask { .. }
        | Request::RespondPermission { .. }
        | Request::VerifyReceipt { .. }
        | Request::CosignHead { .. } => Added::Little,
    }
}

/// Returns the room that an order must find in its turn; none for results of work that was taken on, what ends, decides or
/// erases something, and content whose room is reserved.
pub(crate) fn room_for(order: &Order) -> Option<QuotaPool> {
    if let Order::WriteField(order) = order {
        return match order.room {
            FieldRoom::Taken => Some(QuotaPool::Common),
            FieldRoom::Apart => Some(QuotaPool::Apart),
            FieldRoom::Free => None,
        };
    }
    is_held_to_limit(order).then_some(QuotaPool::Common)
}

fn is_held_to_limit(order: &Order) -> bool {
    match order {
        Order::UpdateWorkspace(_)
        | Order::CreateSession(_)
        | Order::UpdateSession(_)
        | Order::ForkSession(_)
        | Order::AppendMessage(_)
        | Order::SubmitTask(_)
        | Order::SubmitReplay(_)
        | Order::InterruptTask(_)
        | Order::CreateBranch(_)
        | Order::RegisterArtifact(_)
        | Order::CreateVault(_)
        | Order::OpenGoverned(_)
        | Order::WriteField(_) => true,
        Order::AnswerRequest(order) => match &order.reply {
            RequestReply::Message(_) | RequestReply::Value(_) => true,
            RequestReply::Approve | RequestReply::Deny | RequestReply::Confirm { .. } => false,
        },
        Order::CreateWorkspace(_)
        | Order::CloseSession(_)
        | Order::RecordSessionReplay(_)
        | Order::TruncateSession(_)
        | Order::ImportTask(_)
        | Order::CancelTask(_)
        | Order::AttachContent(_)
        | Order::AdvanceTask(_)
        | Order::RecordVerification(_)
        | Order::SealHead(_)
        | Order::CosignHead(_)
        | Order::CreatePersona(_)
        | Order::UpdatePersona(_)
        | Order::GovernTask(_) => false,
    }
}
