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
    pub why: Why,
}

/// Why a member is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// Nothing here enforces it.
    NotEnforced,
    /// It is fixed when the resource is made.
    Fixed,
    /// It lists ids of this kind of resource: one that names nothing is not found, and nothing is done with the others.
    /// Whoever can look them up refuses it.
    Lists(&'static str),
}

const fn row(body: &'static str, member: &'static str, why: Why) -> Unserved {
    Unserved { body, member, why }
}

/// Every such member of every body.
pub const UNSERVED: &[Unserved] = &[
    row("CreatePersonaRequest", "triggers", Why::NotEnforced),
    row("CreatePersonaRequest", "schedules", Why::NotEnforced),
    row("CreatePersonaRequest", "handoffs", Why::NotEnforced),
    row("CreatePersonaRequest", "context_packs", Why::NotEnforced),
    row("CreatePersonaRequest", "evals", Why::NotEnforced),
    row("CreatePersonaRequest", "model_policy", Why::NotEnforced),
    row("CreatePersonaRequest", "rollout_policy", Why::NotEnforced),
    row("CreatePersonaRequest", "quota_id", Why::NotEnforced),
    row("UpdatePersonaRequest", "quota_id", Why::NotEnforced),
    row("UpdatePersonaRequest", "name", Why::Fixed),
    row("UpdatePersonaRequest", "version", Why::Fixed),
    row("UpdatePersonaRequest", "module_ref", Why::Fixed),
    row("UpdatePersonaRequest", "entry_workflow", Why::Fixed),
    row("UpdatePersonaRequest", "autonomy_tier", Why::Fixed),
    row("UpdatePersonaRequest", "tools", Why::Fixed),
    row("UpdatePersonaRequest", "capabilities", Why::Fixed),
    row("UpdatePersonaRequest", "triggers", Why::Fixed),
    row("UpdatePersonaRequest", "schedules", Why::Fixed),
    row("UpdatePersonaRequest", "handoffs", Why::Fixed),
    row("UpdatePersonaRequest", "context_packs", Why::Fixed),
    row("UpdatePersonaRequest", "evals", Why::Fixed),
    row("UpdatePersonaRequest", "owner", Why::Fixed),
    row("UpdatePersonaRequest", "model_policy", Why::Fixed),
    row("UpdatePersonaRequest", "rollout_policy", Why::Fixed),
    row("UpdatePersonaRequest", "system_prompt", Why::Fixed),
    row("UpdatePersonaRequest", "model", Why::Fixed),
    row("UpdatePersonaRequest", "limits", Why::Fixed),
    row("UpdatePersonaRequest", "memory", Why::Fixed),
    row("UpdatePersonaRequest", "isolated_replay", Why::Fixed),
    row("UpdatePersonaRequest", "forbids_replay", Why::Fixed),
    row("CreateWorkspaceRequest", "image", Why::NotEnforced),
    row("CreateWorkspaceRequest", "packages", Why::NotEnforced),
    row("CreateWorkspaceRequest", "network_policy", Why::NotEnforced),
    row(
        "CreateWorkspaceRequest",
        "sandbox_backend",
        Why::NotEnforced,
    ),
    row("UpdateWorkspaceRequest", "quota_id", Why::NotEnforced),
    row("UpdateWorkspaceRequest", "root", Why::Fixed),
    row("UpdateWorkspaceRequest", "default_branch_id", Why::Fixed),
    row("UpdateWorkspaceRequest", "image", Why::Fixed),
    row("UpdateWorkspaceRequest", "packages", Why::Fixed),
    row("UpdateWorkspaceRequest", "network_policy", Why::Fixed),
    row("UpdateWorkspaceRequest", "sandbox_backend", Why::Fixed),
    row("CreateSessionRequest", "mode_id", Why::NotEnforced),
    row("CreateSessionRequest", "model_policy", Why::NotEnforced),
    row("CreateSessionRequest", "vault_ids", Why::Lists("vault")),
    row("CreateSessionRequest", "memory_ids", Why::Lists("memory")),
    row("CreateSessionRequest", "skill_ids", Why::Lists("skill")),
    row("UpdateSessionRequest", "model_policy", Why::NotEnforced),
    row("UpdateSessionRequest", "mode_id", Why::Fixed),
    row("UpdateSessionRequest", "persona_id", Why::Fixed),
    row("UpdateSessionRequest", "workspace_id", Why::Fixed),
    row("UpdateSessionRequest", "vault_ids", Why::Fixed),
    row("UpdateSessionRequest", "memory_ids", Why::Fixed),
    row("UpdateSessionRequest", "skill_ids", Why::Fixed),
    row("PermissionResponseRequest", "remember", Why::NotEnforced),
    row("PermissionResponseRequest", "expires_at", Why::NotEnforced),
    row(
        "PermissionResponseRequest",
        "action_pattern",
        Why::NotEnforced,
    ),
    row(
        "PermissionResponseRequest",
        "target_pattern",
        Why::NotEnforced,
    ),
];

impl Unserved {
    /// True when a value of this member asks for something.
    pub fn asks(&self, value: &Value) -> bool {
        match value {
            Value::Null => false,
            Value::Bool(said) => *said || self.why == Why::Fixed,
            Value::String(text) => !text.is_empty(),
            Value::Array(items) => !items.is_empty(),
            Value::Object(members) => !members.is_empty(),
            Value::Number(_) => true,
        }
    }

    /// Says no, by name.
    pub fn refusal(&self) -> InputError {
        let (reason, message) = match self.why {
            Why::Fixed => (
                "fixed",
                format!(
                    "`{}` is fixed when the resource is made and cannot be changed",
                    self.member
                ),
            ),
            Why::NotEnforced | Why::Lists(_) => (
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
pub fn asked<'a>(
    body: &'a str,
    members: &'a canon::Map<String, Value>,
) -> impl Iterator<Item = (&'static Unserved, &'a Value)> {
    UNSERVED
        .iter()
        .filter(move |row| row.body == body)
        .filter_map(|row| members.get(row.member).map(|value| (row, value)))
        .filter(|(row, value)| row.asks(value))
}

/// Refuses a body that asks for what is not served; ids that have to be looked up are left to whoever can.
pub(super) fn refuse(body: &str, members: &Members<'_>) -> Result<(), InputError> {
    let refused = asked(body, members.map())
        .find(|(row, _)| matches!(row.why, Why::NotEnforced | Why::Fixed));
    match refused {
        None => Ok(()),
        Some((row, _)) => Err(row.refusal()),
    }
}
