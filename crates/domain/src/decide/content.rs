//! Workspaces, Branches, Artifacts and Vaults.

use serde_json::json;

use super::{Desk, Place};
use crate::{
    AttachContent, BranchId, CreateBranch, CreateVault, CreateWorkspace, Kind, Refusal,
    RegisterArtifact, ResourceRef, Session, UpdateWorkspace,
};

pub(super) fn create_workspace(
    desk: &mut Desk<'_>,
    order: &CreateWorkspace,
) -> Result<ResourceRef, Refusal> {
    let subject = ResourceRef::new("workspace", order.id.as_str());
    if desk.workspace(&order.id).is_ok() {
        return Ok(subject);
    }
    let place = Place {
        workspace_id: Some(order.id.clone()),
        ..Place::default()
    };
    desk.draft(
        Kind::WorkspaceCreated,
        subject.clone(),
        &place,
        json!({
            "name": order.name,
            "root": order.root,
            "default_branch_id": order.branch_id,
            "metadata": order.metadata,
        }),
    );
    desk.draft(
        Kind::BranchCreated,
        ResourceRef::new("branch", order.branch_id.as_str()),
        &place,
        json!({"kind": "workspace", "base_ref": order.root, "metadata": {}}),
    );
    Ok(subject)
}

pub(super) fn update_workspace(
    desk: &mut Desk<'_>,
    order: &UpdateWorkspace,
) -> Result<ResourceRef, Refusal> {
    desk.workspace(&order.id)?;
    let subject = ResourceRef::new("workspace", order.id.as_str());
    let mut payload = canon::Map::new();
    if let Some(name) = &order.name {
        payload.insert("name".to_owned(), json!(name));
    }
    if let Some(capabilities) = &order.capabilities {
        payload.insert("capabilities".to_owned(), json!(capabilities));
    }
    if let Some(quota) = &order.quota_id {
        payload.insert("quota_id".to_owned(), json!(quota));
    }
    if let Some(metadata) = &order.metadata {
        payload.insert("metadata".to_owned(), json!(metadata));
    }
    if !payload.is_empty() {
        let place = Place {
            workspace_id: Some(order.id.clone()),
            ..Place::default()
        };
        desk.draft(
            Kind::WorkspaceUpdated,
            subject.clone(),
            &place,
            payload.into(),
        );
    }
    Ok(subject)
}

pub(super) fn create_branch(
    desk: &mut Desk<'_>,
    order: &CreateBranch,
) -> Result<ResourceRef, Refusal> {
    let (_, session) = desk.session(&order.session_id)?;
    let place = Place::of_session(&order.session_id, session);
    let parent = match &order.parent_branch_id {
        Some(parent) => {
            desk.branch(parent.as_str())
                .map_err(|_| Refusal::NotFound {
                    object: "branch",
                    param: Some("parent_branch_id"),
                })?;
            parent.clone()
        }
        None => line_of(desk, session)?,
    };
    if let Some(task) = &order.task_id {
        desk.task(task).map_err(|_| Refusal::NotFound {
            object: "task",
            param: Some("task_id"),
        })?;
    }
    let subject = ResourceRef::new("branch", order.id.as_str());
    desk.draft(
        Kind::BranchCreated,
        subject.clone(),
        &place,
        json!({
            "kind": order.kind,
            "base_ref": order.base_ref,
            "parent_branch_id": parent,
            "task_id": order.task_id,
            "metadata": order.metadata,
        }),
    );
    Ok(subject)
}

/// Returns the Branch that a new one of a Session leaves: lineage always ends at the Workspace's default branch
/// (AP-BR-03).
pub(super) fn line_of(desk: &Desk<'_>, session: &Session) -> Result<BranchId, Refusal> {
    match &session.branch_id {
        Some(branch) => Ok(branch.clone()),
        None => Ok(desk
            .workspace(&session.workspace_id)?
            .default_branch_id
            .clone()),
    }
}

pub(super) fn register_artifact(
    desk: &mut Desk<'_>,
    order: &RegisterArtifact,
) -> Result<ResourceRef, Refusal> {
    let mut place = Place {
        workspace_id: Some(order.workspace_id.clone()),
        ..Place::default()
    };
    if let Some(id) = &order.session_id {
        let (_, session) = desk.session(id).map_err(|_| Refusal::NotFound {
            object: "session",
            param: Some("session_id"),
        })?;
        place.workspace_id = Some(session.workspace_id.clone());
        place.session_id = Some(id.clone());
    }
    let mut owner = None;
    if let Some(id) = &order.task_id {
        let task = desk.task(id).map_err(|_| Refusal::NotFound {
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
        desk.workspace(workspace).map_err(|_| Refusal::NotFound {
            object: "workspace",
            param: Some("workspace_id"),
        })?;
    }
    let subject = ResourceRef::new("artifact", order.id.as_str());
    desk.draft(
        Kind::ArtifactCreated,
        subject.clone(),
        &place,
        json!({
            "kind": order.kind,
            "mime_type": order.mime_type,
            "uri": order.uri,
            "visibility": order.visibility,
            "sha256": order.sha256,
            "task_id": owner,
            "metadata": order.metadata,
        }),
    );
    Ok(subject)
}

pub(super) fn attach(desk: &mut Desk<'_>, order: &AttachContent) -> Result<ResourceRef, Refusal> {
    let artifact = desk.artifact(order.id.as_str())?;
    let subject = ResourceRef::new("artifact", order.id.as_str());
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
        let running = owner.filter(|id| desk.task(id).is_ok_and(|task| !task.status.is_terminal()));
        let place = Place {
            workspace_id: Some(artifact.workspace_id.clone()),
            session_id: artifact.session_id.clone(),
            task_id: running.cloned(),
        };
        desk.draft(
            Kind::ArtifactUpdated,
            subject.clone(),
            &place,
            json!({"sha256": order.sha256, "bytes": order.bytes}),
        );
    }
    Ok(subject)
}

pub(super) fn create_vault(
    desk: &mut Desk<'_>,
    order: &CreateVault,
) -> Result<ResourceRef, Refusal> {
    if let Some(id) = &order.workspace_id {
        desk.workspace(id).map_err(|_| Refusal::NotFound {
            object: "workspace",
            param: Some("workspace_id"),
        })?;
    }
    let subject = ResourceRef::new("vault", order.id.as_str());
    // The local one has a fixed id: making it again changes nothing.
    if desk.documents.document(order.id.as_str()).is_some() {
        return Ok(subject);
    }
    let place = Place {
        workspace_id: order.workspace_id.clone(),
        ..Place::default()
    };
    desk.draft(
        Kind::VaultCreated,
        subject.clone(),
        &place,
        json!({"provider": order.provider, "capabilities": order.capabilities, "metadata": order.metadata}),
    );
    Ok(subject)
}
