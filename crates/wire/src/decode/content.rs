//! Bodies about Workspaces, Branches, Artifacts and Vaults.

use canon::{Digest, Value};
use domain::{
    ArtifactKind, BranchId, BranchKind, NewArtifact, NewBranch, NewVault, NewWorkspace, Request,
    SessionId, TaskId, UpdateWorkspace, Visibility, WorkspaceId,
};

use super::{
    CAPABILITIES_MAX, CAPABILITY_BYTES_MAX, DecodeInput, MIME_TYPE_BYTES_MAX, TEXT_BYTES_MAX,
    URI_BYTES_MAX, unserved,
};
use crate::InputError;

pub(crate) const BRANCH_KINDS: [&str; 4] = ["workspace", "session", "task", "sandbox"];
pub(crate) const ARTIFACT_KINDS: [&str; 9] = [
    "file", "patch", "image", "log", "diff", "receipt", "snapshot", "dataset", "other",
];
pub(crate) const VISIBILITIES: [&str; 3] = ["public", "internal", "receipt_only"];

/// Words that name secret material. A Vault's description must not hold them, let alone what they name.
const SECRET_WORDS: [&str; 4] = [
    "access_token",
    "refresh_token",
    "client_secret",
    "private_key",
];

/// Reads a new Workspace.
///
/// # Errors
/// Names the member that is missing or wrong.
pub fn create_workspace(incoming: &DecodeInput<'_>) -> Result<Request, InputError> {
    let members = incoming.members();
    members.string_or_null("image", TEXT_BYTES_MAX)?;
    members.names("packages")?;
    members.object("network_policy")?;
    members.string_or_null("sandbox_backend", TEXT_BYTES_MAX)?;
    let new = NewWorkspace {
        name: members.required_string("name", TEXT_BYTES_MAX)?,
        root: members.required_string("root", TEXT_BYTES_MAX)?,
        metadata: members.metadata()?,
    };
    unserved::refuse("CreateWorkspaceRequest", &members)?;
    Ok(Request::CreateWorkspace(new))
}

/// Reads a change of a Workspace.
///
/// # Errors
/// Names the member that is wrong.
pub fn update_workspace(incoming: &DecodeInput<'_>) -> Result<Request, InputError> {
    let members = incoming.members();
    let update = UpdateWorkspace {
        id: incoming.id("workspace_id", WorkspaceId::OBJECT, WorkspaceId::parse)?,
        name: members.string("name", TEXT_BYTES_MAX)?,
        capabilities: members.strings("capabilities", CAPABILITIES_MAX, CAPABILITY_BYTES_MAX)?,
        quota_id: members.nullable_string("quota_id", domain::ID_BYTES_MAX)?,
        metadata: members.metadata_if_any()?,
    };
    unserved::refuse("UpdateWorkspaceRequest", &members)?;
    Ok(Request::UpdateWorkspace(update))
}

/// Reads a new Branch.
///
/// # Errors
/// Names the member that is missing or wrong.
pub fn create_branch(incoming: &DecodeInput<'_>) -> Result<Request, InputError> {
    let members = incoming.members();
    Ok(Request::CreateBranch(NewBranch {
        session_id: incoming.session_id()?,
        kind: members
            .word("kind", &BRANCH_KINDS, BranchKind::parse)?
            .ok_or_else(|| members.missing("kind"))?,
        base_ref: members.required_string("base_ref", TEXT_BYTES_MAX)?,
        parent_branch_id: members.id("parent_branch_id", BranchId::OBJECT, BranchId::parse)?,
        task_id: members.id("task_id", TaskId::OBJECT, TaskId::parse)?,
        metadata: members.metadata()?,
    }))
}

/// Reads a new Artifact. The digest is taken with or without its prefix (C-07).
///
/// # Errors
/// Names the member that is missing or wrong.
pub fn register_artifact(incoming: &DecodeInput<'_>) -> Result<Request, InputError> {
    let members = incoming.members();
    let mime_type = members.required_string("mime_type", MIME_TYPE_BYTES_MAX)?;
    // It becomes a header of the download.
    let printable = mime_type.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    if mime_type.trim().len() != mime_type.len() || mime_type.is_empty() || !printable {
        return Err(members.wrong("mime_type", "must be printable ASCII without outer spaces"));
    }
    let sha256 = match members.string_or_null("sha256", 80)? {
        None => None,
        Some(text) => Some(Digest::parse(&text).map_err(|_| {
            members.wrong("sha256", "must be 64 hex digits, with or without `sha256:`")
        })?),
    };
    Ok(Request::RegisterArtifact(NewArtifact {
        kind: members
            .word("kind", &ARTIFACT_KINDS, ArtifactKind::parse)?
            .ok_or_else(|| members.missing("kind"))?,
        mime_type,
        uri: members.string_or_null("uri", URI_BYTES_MAX)?,
        visibility: members
            .word("visibility", &VISIBILITIES, Visibility::parse)?
            .ok_or_else(|| members.missing("visibility"))?,
        sha256,
        workspace_id: members.id("workspace_id", WorkspaceId::OBJECT, WorkspaceId::parse)?,
        session_id: members.id("session_id", SessionId::OBJECT, SessionId::parse)?,
        task_id: members.id("task_id", TaskId::OBJECT, TaskId::parse)?,
        metadata: members.metadata()?,
    }))
}

/// Reads a new Vault. A description that names secret material is refused: it would enter the log (AP-VAULT-02).
///
/// # Errors
/// Names the member that is missing or wrong.
pub fn create_vault(incoming: &DecodeInput<'_>) -> Result<Request, InputError> {
    let members = incoming.members();
    for name in ["provider", "capabilities", "metadata"] {
        let text = members.map().get(name).map(Value::to_string);
        let text = text.unwrap_or_default();
        if SECRET_WORDS.iter().any(|word| text.contains(word)) {
            return Err(members.wrong(name, "must not hold secret material or name it"));
        }
    }
    Ok(Request::CreateVault(NewVault {
        workspace_id: members.id("workspace_id", WorkspaceId::OBJECT, WorkspaceId::parse)?,
        provider: members.required_string("provider", TEXT_BYTES_MAX)?,
        capabilities: members
            .strings("capabilities", CAPABILITIES_MAX, CAPABILITY_BYTES_MAX)?
            .ok_or_else(|| members.missing("capabilities"))?,
        metadata: members.metadata()?,
    }))
}
