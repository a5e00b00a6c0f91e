//! Workspaces, Branches, Artifacts and Vaults.

use canon::Map;

use super::{Decider, Place};
use crate::kind::Payload;
use crate::payload::{self, detail};
use crate::{
    AttachContent, BranchId, BranchKind, CreateBranch, CreateVault, CreateWorkspace, Kind, Refusal,
    RegisterArtifact, ResourceRef, Session, UpdateWorkspace,
};

pub(super) fn create_workspace(
    decider: &mut Decider<'_>,
    order: &CreateWorkspace,
) -> Result<ResourceRef, Refusal> {
    let subject = order.id.resource();
    if decider.workspace(&order.id).is_ok() {
        return Ok(subject);
    }
    let place = Place {
        workspace_id: Some(order.id.clone()),
        ..Place::default()
    };
    let created = Payload::WorkspaceCreated(payload::WorkspaceCreated {
        name: order.new.name.clone(),
        root: order.new.root.clone(),
        default_branch_id: order.branch_id.clone(),
        metadata: detail(&order.new.metadata),
    });
    decider.draft(created, subject.clone(), &place);
    let branch = Payload::BranchCreated(payload::BranchCreated {
        kind: BranchKind::Workspace,
        base_ref: order.new.root.clone(),
        parent_branch_id: None,
        task_id: None,
        metadata: detail(Map::new()),
    });
    decider.draft(branch, order.branch_id.resource(), &place);
    Ok(subject)
}

pub(super) fn update_workspace(
    decider: &mut Decider<'_>,
    order: &UpdateWorkspace,
) -> Result<ResourceRef, Refusal> {
    decider.workspace(&order.id)?;
    let subject = order.id.resource();
    let members = payload::WorkspaceUpdated {
        name: order.name.clone(),
        capabilities: order.capabilities.clone(),
        quota_id: order.quota_id.clone(),
        metadata: order.metadata.as_ref().map(detail),
    }
    .into_members();
    if !members.is_empty() {
        let place = Place {
            workspace_id: Some(order.id.clone()),
            ..Place::default()
        };
        decider.draft_open(Kind::WorkspaceUpdated, members, subject.clone(), &place);
    }
    Ok(subject)
}

pub(super) fn create_branch(
    decider: &mut Decider<'_>,
    order: &CreateBranch,
) -> Result<ResourceRef, Refusal> {
    let new = &order.new;
    let (_, session) = decider.open_session(&new.session_id)?;
    let place = Place::of_session(&new.session_id, session);
    let parent = match &new.parent_branch_id {
        Some(parent) => {
            decider
                .branch(parent.as_str())
                .map_err(|_| Refusal::NotFound {
                    object: "branch",
                    param: Some("parent_branch_id"),
                })?;
            parent.clone()
        }
        None => line_of(decider, session)?,
    };
    if let Some(task) = &new.task_id {
        decider.task(task).map_err(|_| Refusal::NotFound {
            object: "task",
            param: Some("task_id"),
        })?;
    }
    let subject = order.id.resource();
    let created = Payload::BranchCreated(payload::BranchCreated {
        kind: new.kind,
        base_ref: new.base_ref.clone(),
        parent_branch_id: Some(Some(parent)),
        task_id: Some(new.task_id.clone()),
        metadata: detail(&new.metadata),
    });
    decider.draft(created, subject.clone(), &place);
    Ok(subject)
}

/// Returns the Branch that a new one of a Session leaves: lineage always ends at the Workspace's default branch
/// (AP-BR-03).
pub(super) fn line_of(decider: &Decider<'_>, session: &Session) -> Result<BranchId, Refusal> {
    match &session.branch_id {
        Some(branch) => Ok(branch.clone()),
        None => Ok(decider
            .workspace(&session.workspace_id)?
            .default_branch_id
            .clone()),
    }
}

pub(super) fn register_artifact(
    decider: &mut Decider<'_>,
    order: &RegisterArtifact,
) -> Result<ResourceRef, Refusal> {
    let new = &order.new;
    let mut place = Place {
        workspace_id: Some(order.workspace_id.clone()),
        ..Place::default()
    };
    if let Some(id) = &new.session_id {
        let (_, session) = decider.open_session(id).map_err(|refusal| match refusal {
            Refusal::NotFound { object, .. } => Refusal::NotFound {
                object,
                param: Some("session_id"),
            },
            other => other,
        })?;
        place.workspace_id = Some(session.workspace_id.clone());
        place.session_id = Some(id.clone());
    }
    let mut owner = None;
    if let Some(id) = &new.task_id {
        let task = decider.task(id).map_err(|_| Refusal::NotFound {
            object: "task",
            param: Some("task_id"),
        })?;
        place.workspace_id = Some(task.workspace_id.clone());
        place.session_id = Some(task.session_id.clone());
        owner = Some(id);
        // The log of a finished Task is sealed: a late Artifact points at it from outside (AP-EVT-08).
        if !task.status.is_terminal() {
            place.task_id = Some(id.clone());
        }
    }
    if let Some(workspace) = &place.workspace_id {
        decider
            .workspace(workspace)
            .map_err(|_| Refusal::NotFound {
                object: "workspace",
                param: Some("workspace_id"),
            })?;
    }
    let subject = order.id.resource();
    let created = Payload::ArtifactCreated(payload::ArtifactCreated {
        kind: new.kind,
        mime_type: new.mime_type.clone(),
        uri: new.uri.clone(),
        visibility: new.visibility,
        sha256: new.sha256,
        bytes: None,
        task_id: owner.cloned(),
        metadata: detail(&new.metadata),
    });
    decider.draft(created, subject.clone(), &place);
    Ok(subject)
}

pub(super) fn attach(
    decider: &mut Decider<'_>,
    order: &AttachContent,
) -> Result<ResourceRef, Refusal> {
    let artifact = decider.artifact(order.id.as_str())?;
    let subject = order.id.resource();
    if let Some(known) = artifact.sha256
        && known != order.sha256
    {
        return Err(Refusal::Conflict {
            reason: "digest_mismatch",
            message: format!(
                "artifact `{}` has other bytes: its digest is {}",
                order.id,
                known.hex()
            ),
            status: None,
        });
    }
    if artifact.bytes.is_none() {
        // Content that arrives while the Task runs is part of its log, so that its receipt states the digest.
        let owner = artifact.task_id.as_ref();
        let running = owner.filter(|id| {
            decider
                .task(id)
                .is_ok_and(|task| !task.status.is_terminal())
        });
        let place = Place {
            workspace_id: Some(artifact.workspace_id.clone()),
            session_id: artifact.session_id.clone(),
            task_id: running.cloned(),
        };
        let updated = Payload::ArtifactUpdated(payload::ArtifactUpdated {
            sha256: order.sha256,
            bytes: order.bytes,
        });
        decider.draft(updated, subject.clone(), &place);
    }
    Ok(subject)
}

pub(super) fn create_vault(
    decider: &mut Decider<'_>,
    order: &CreateVault,
) -> Result<ResourceRef, Refusal> {
    let new = &order.new;
    if let Some(id) = &new.workspace_id {
        decider.workspace(id).map_err(|_| Refusal::NotFound {
            object: "workspace",
            param: Some("workspace_id"),
        })?;
    }
    let subject = order.id.resource();
    // The local one has a fixed id: making it again changes nothing.
    if decider.documents.document(order.id.as_str()).is_some() {
        return Ok(subject);
    }
    let place = Place {
        workspace_id: new.workspace_id.clone(),
        ..Place::default()
    };
    let created = Payload::VaultCreated(payload::VaultCreated {
        provider: new.provider.clone(),
        capabilities: new.capabilities.clone(),
        metadata: detail(&new.metadata),
    });
    decider.draft(created, subject.clone(), &place);
    Ok(subject)
}
