//! What the contract offers and this server does not act on. A request that asks for it is refused by name, so that
//! nobody takes a policy for enforced because it was accepted (U22). Members outside the contract stay ignored.

use canon::Value;

use super::Members;
use crate::InputError;

/// A member that is refused when it asks for something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unserved {
    /// The schema of the body.
    pub body: &'static str,
    /// The member.
    pub member: &'static str,
    /// Why it is refused.
    pub why: Reason,
}

/// Why a member is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Nothing here enforces it.
    NotEnforced,
    /// It is fixed when the resource is made.
    Fixed,
    /// It lists ids of this kind of resource: one that names nothing is not found, and nothing is done with the others.
    /// Whoever can look them up refuses it.
    Lists(&'static str),
}

const fn row(body: &'static str, member: &'static str, why: Reason) -> Unserved {
    Unserved { body, member, why }
}

/// Every such member of every body.
pub const UNSERVED: &[Unserved] = &[
    row("CreatePersonaRequest", "triggers", Reason::NotEnforced),
    row("CreatePersonaRequest", "schedules", Reason::NotEnforced),
    row("CreatePersonaRequest", "handoffs", Reason::NotEnforced),
    row("CreatePersonaRequest", "context_packs", Reason::NotEnforced),
    row("CreatePersonaRequest", "evals", Reason::NotEnforced),
    row("CreatePersonaRequest", "model_policy", Reason::NotEnforced),
    row(
        "CreatePersonaRequest",
        "rollout_policy",
        Reason::NotEnforced,
    ),
    row("CreatePersonaRequest", "quota_id", Reason::NotEnforced),
    row("UpdatePersonaRequest", "quota_id", Reason::NotEnforced),
    row("UpdatePersonaRequest", "name", Reason::Fixed),
    row("UpdatePersonaRequest", "version", Reason::Fixed),
    row("UpdatePersonaRequest", "module_ref", Reason::Fixed),
    row("UpdatePersonaRequest", "entry_workflow", Reason::Fixed),
    row("UpdatePersonaRequest", "autonomy_tier", Reason::Fixed),
    row("UpdatePersonaRequest", "tools", Reason::Fixed),
    row("UpdatePersonaRequest", "capabilities", Reason::Fixed),
    row("UpdatePersonaRequest", "triggers", Reason::Fixed),
    row("UpdatePersonaRequest", "schedules", Reason::Fixed),
    row("UpdatePersonaRequest", "handoffs", Reason::Fixed),
    row("UpdatePersonaRequest", "context_packs", Reason::Fixed),
    row("UpdatePersonaRequest", "evals", Reason::Fixed),
    row("UpdatePersonaRequest", "owner", Reason::Fixed),
    row("UpdatePersonaRequest", "model_policy", Reason::Fixed),
    row("UpdatePersonaRequest", "rollout_policy", Reason::Fixed),
    row("UpdatePersonaRequest", "system_prompt", Reason::Fixed),
    row("UpdatePersonaRequest", "model", Reason::Fixed),
    row("UpdatePersonaRequest", "limits", Reason::Fixed),
    row("UpdatePersonaRequest", "contracts", Reason::Fixed),
    row("UpdatePersonaRequest", "memory", Reason::Fixed),
    row("UpdatePersonaRequest", "isolated_replay", Reason::Fixed),
    row("UpdatePersonaRequest", "forbids_replay", Reason::Fixed),
    row("CreateWorkspaceRequest", "image", Reason::NotEnforced),
    row("CreateWorkspaceRequest", "packages", Reason::NotEnforced),
    row(
        "CreateWorkspaceRequest",
        "network_policy",
        Reason::NotEnforced,
    ),
    row(
        "CreateWorkspaceRequest",
        "sandbox_backend",
        Reason::NotEnforced,
    ),
    row("UpdateWorkspaceRequest", "quota_id", Reason::NotEnforced),
    row("UpdateWorkspaceRequest", "root", Reason::Fixed),
    row("UpdateWorkspaceRequest", "default_branch_id", Reason::Fixed),
    row("UpdateWorkspaceRequest", "image", Reason::Fixed),
    row("UpdateWorkspaceRequest", "packages", Reason::Fixed),
    row("UpdateWorkspaceRequest", "network_policy", Reason::Fixed),
    row("UpdateWorkspaceRequest", "sandbox_backend", Reason::Fixed),
    row("CreateSessionRequest", "mode_id", Reason::NotEnforced),
    row("CreateSessionRequest", "model_policy", Reason::NotEnforced),
    row("CreateSessionRequest", "vault_ids", Reason::Lists("vault")),
    row(
        "CreateSessionRequest",
        "memory_ids",
        Reason::Lists("memory"),
    ),
    row("CreateSessionRequest", "skill_ids", Reason::Lists("skill")),
    row("UpdateSessionRequest", "model_policy", Reason::NotEnforced),
    row("UpdateSessionRequest", "mode_id", Reason::Fixed),
    row("UpdateSessionRequest", "persona_id", Reason::Fixed),
    row("UpdateSessionRequest", "workspace_id", Reason::Fixed),
    row("UpdateSessionRequest", "vault_ids", Reason::Fixed),
    row("UpdateSessionRequest", "memory_ids", Reason::Fixed),
    row("UpdateSessionRequest", "skill_ids", Reason::Fixed),
    row("PermissionResponseRequest", "remember", Reason::NotEnforced),
    row(
        "PermissionResponseRequest",
        "expires_at",
        Reason::NotEnforced,
    ),
    row(
        "PermissionResponseRequest",
        "action_pattern",
        Reason::NotEnforced,
    ),
    row(
        "PermissionResponseRequest",
        "target_pattern",
        Reason::NotEnforced,
    ),
];

impl Unserved {
    /// True when a value of this member asks for something.
    pub fn is_requested(&self, value: &Value) -> bool {
        match value {
            Value::Null => false,
            Value::Bool(said) => *said || self.why == Reason::Fixed,
            Value::String(text) => !text.is_empty(),
            Value::Array(items) => !items.is_empty(),
            Value::Object(members) => !members.is_empty(),
            Value::Number(_) => true,
        }
    }

    /// Says no, by name.
    pub fn refusal(&self) -> InputError {
        let (reason, message) = match self.why {
            Reason::Fixed => (
                "fixed",
                format!(
                    "`{}` is fixed when the resource is created and cannot be changed",
                    self.member
                ),
            ),
            Reason::NotEnforced | Reason::Lists(_) => (
                "not_enforced",
                format!(
                    "this server does not enforce `{}`: leave it out",
                    self.member
                ),
            ),
        };
        InputError::Policy {
            param: self.member.to_owned(),
            reason,
            message,
        }
    }
}

/// Returns the rows of a body's members that ask for something.
pub fn requested_unserved<'a>(
    body: &'a str,
    members: &'a canon::Map<String, Value>,
) -> impl Iterator<Item = (&'static Unserved, &'a Value)> {
    UNSERVED
        .iter()
        .filter(move |row| row.body == body)
        .filter_map(|row| members.get(row.member).map(|value| (row, value)))
        .filter(|(row, value)| row.is_requested(value))
}

/// Refuses a body that asks for what is not served; ids that have to be looked up are left to whoever can.
pub(super) fn refuse(body: &str, members: &Members<'_>) -> Result<(), InputError> {
    let refused = requested_unserved(body, members.map())
        .find(|(row, _)| matches!(row.why, Reason::NotEnforced | Reason::Fixed));
    match refused {
        None => Ok(()),
        Some((row, _)) => Err(row.refusal()),
    }
}
