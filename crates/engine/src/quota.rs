//! What Workspaces may store, together and each. What counts is what the store counts: events, and the content they name.
//!
//! Asked before work is taken on. Work that was taken on is recorded to its end: a result in hand is never lost.

use domain::{ArtifactId, Govern, GovernedOperation, Position, Request, ResourceKind, WorkspaceId};

use crate::caller::Caller;
use crate::engine::Engine;
use crate::read::workspace_of;
use crate::refused::Refused;
use crate::share::{self, NoShare};

/// The setting that bounds it, and its unit.
const LIMIT: &str = "stored_mib_max";
const MIB: u64 = 1024 * 1024;

impl Engine {
    /// Refuses to take more content for a Workspace that has its share.
    pub(crate) async fn may_store(
        &self,
        workspace: Option<&WorkspaceId>,
        bytes: u64,
    ) -> Result<(), Refused> {
        let max = self.shared.limits.stored_bytes_max;
        let store = &self.shared.store;
        let (Some(workspace), Some(all)) = (workspace, store.stored(Position::START)) else {
            return Ok(());
        };
        if all.total.saturating_add(bytes) <= max {
            return Ok(());
        }
        let known = self.shared.cache.last_seen(workspace.as_str());
        let key = match known {
            Some(document) => Some(document.key),
            None => self
                .document(workspace.as_str())
                .await?
                .map(|found| found.key),
        };
        let Some(stored) = key.and_then(|key| store.stored(key)) else {
            return Ok(());
        };
        let held = stored.of_workspace;
        let callers = stored.workspaces + usize::from(held == 0);
        share::may_take(max, stored.total, (held, callers), bytes).map_err(|no| {
            let mib = |bytes: u64| usize::try_from(bytes / MIB).unwrap_or(usize::MAX);
            let no = match no {
                NoShare::Own { .. } => NoShare::Own { held: mib(held) },
                NoShare::All => NoShare::All,
            };
            no.of(LIMIT, mib(max))
        })
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

/// Returns how much a request adds to what is stored, at least; none when it adds little and ends something: who has too
/// much must still be able to stop.
pub(crate) fn added(request: &Request) -> Option<u64> {
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
        | Request::UpdateWorkspace(_) => Some(1),
        Request::ImportTask { bundle, .. } => Some(bundle.len() as u64),
        Request::Govern(Govern::Open(_) | Govern::OpenWorkflow(_)) => Some(1),
        // An offer that was made can be answered.
        Request::Govern(Govern::Handoff { .. }) => None,
        Request::Govern(Govern::Do { operation, .. }) => match &**operation {
            GovernedOperation::Preflight(_)
            | GovernedOperation::Propose(_)
            | GovernedOperation::AddLabel { .. }
            | GovernedOperation::SetFilter { .. }
            | GovernedOperation::ReportBypass { .. }
            | GovernedOperation::Offer(_)
            | GovernedOperation::Capture { .. } => Some(1),
            // What was allowed is recorded to its end, and whoever has too much can stop.
            GovernedOperation::Report(_)
            | GovernedOperation::Decide(_)
            | GovernedOperation::Kill { .. }
            | GovernedOperation::Restore
            | GovernedOperation::Heartbeat { .. }
            | GovernedOperation::Hear { .. }
            | GovernedOperation::Accept { .. }
            | GovernedOperation::CloseOffer { .. }
            | GovernedOperation::Tick
            | GovernedOperation::Lose => None,
        },
        Request::CreateWorkspace(_)
        | Request::CreatePersona(_)
        | Request::UpdatePersona { .. }
        | Request::CloseSession(_)
        | Request::TruncateSession { .. }
        | Request::CancelTask { .. }
        | Request::RespondPermission { .. } => None,
    }
}
