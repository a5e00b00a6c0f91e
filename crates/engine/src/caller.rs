//! Who calls, and what that caller may do and see.

use domain::WorkspaceId;

use crate::Refused;
use crate::port::ApiKey;

/// The right to decide what an agent asks approval for. Only its own name gives it: whoever may do everything else may not
/// therefore wave through what somebody was to look at.
pub const APPROVE: &str = "approvals:write";

/// The right to take part in the shared memory as an observer. Every message to it is an entry of the log, and an observer may
/// register agents and draft: what promises to write nothing does not give it.
pub const OBSERVE: &str = "field:read";

/// What an API key can be allowed to do. `*` stands for all but [`APPROVE`], `*:read` for everything that ends in `:read` but
/// [`OBSERVE`].
pub const SCOPES: [&str; 24] = [
    "workspaces:read",
    "workspaces:write",
    "sessions:read",
    "sessions:write",
    "tasks:read",
    "tasks:write",
    "tasks:import",
    APPROVE,
    "replays:live",
    "events:read",
    "artifacts:read",
    "artifacts:write",
    "vaults:read",
    "vaults:write",
    "personas:read",
    "personas:write",
    "connectors:read",
    "skills:read",
    "receipts:read",
    "receipts:write",
    "internal:read",
    OBSERVE,
    "field:write",
    "field:admin",
];

/// An authenticated caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The actor in events.
    pub actor: String,
    /// The id of the key that was presented; none for the server itself.
    pub key_id: Option<String>,
    workspaces: Option<Vec<WorkspaceId>>,
    scopes: Vec<String>,
}

impl Caller {
    /// The server itself.
    pub fn system() -> Self {
        Self {
            actor: "system".to_owned(),
            key_id: None,
            workspaces: None,
            scopes: vec!["*".to_owned(), APPROVE.to_owned()],
        }
    }

    /// The caller that presented this key.
    pub fn from_key(key: &ApiKey) -> Self {
        let workspaces = key.workspaces.as_ref().map(|list| {
            list.iter()
                .filter_map(|id| WorkspaceId::parse(id).ok())
                .collect()
        });
        Self {
            actor: key.actor.clone(),
            key_id: Some(key.id.clone()),
            workspaces,
            scopes: key.scopes.clone(),
        }
    }

    /// True when a scope was granted.
    pub fn may(&self, scope: &str) -> bool {
        self.scopes.iter().any(|granted| {
            if scope == APPROVE {
                return granted == scope;
            }
            granted == "*"
                || granted == scope
                || scope != OBSERVE
                    && granted
                        .strip_prefix('*')
                        .is_some_and(|verb| verb.starts_with(':') && scope.ends_with(verb))
        })
    }

    /// Demands a scope.
    ///
    /// # Errors
    /// The caller does not have it.
    pub fn require(&self, scope: &'static str) -> Result<(), Refused> {
        if self.may(scope) {
            Ok(())
        } else {
            Err(Refused::PermissionDenied { scope })
        }
    }

    /// True when the caller may see what belongs to this Workspace. What belongs to none is seen only by
    /// callers without bounds.
    pub fn sees(&self, workspace: Option<&WorkspaceId>) -> bool {
        match (&self.workspaces, workspace) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(list), Some(id)) => list.contains(id),
        }
    }

    /// The Workspaces the caller is bound to; none for no bounds.
    pub fn workspaces(&self) -> Option<&[WorkspaceId]> {
        self.workspaces.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(scopes: &[&str]) -> Caller {
        Caller {
            actor: "a".to_owned(),
            key_id: None,
            workspaces: Some(vec![WorkspaceId::from_body("one")]),
            scopes: scopes.iter().map(ToString::to_string).collect(),
        }
    }

    #[test]
    fn ap_auth_02_scopes_are_exact_or_wild() {
        assert!(caller(&["*"]).may("tasks:write"));
        assert!(caller(&["*:read"]).may("tasks:read"));
        assert!(!caller(&["*:read"]).may("tasks:write"));
        // Messages to the shared memory are written down: only its name, or everything, gives that.
        assert!(!caller(&["*:read"]).may("field:read"));
        assert!(caller(&["*:read", "field:read"]).may("field:read"));
        assert!(caller(&["*"]).may("field:read"));
        assert!(caller(&["tasks:write"]).may("tasks:write"));
        assert!(!caller(&["tasks:write"]).may("tasks:read"));
        assert!(!caller(&["*ead"]).may("tasks:read"));
        assert!(!caller(&[]).may("tasks:read"));
        for wild in ["*", "*:write"] {
            assert!(!caller(&[wild]).may(APPROVE), "U21: {wild}");
        }
        assert!(caller(&[APPROVE]).may(APPROVE));
    }

    #[test]
    fn ap_ws_04_a_bound_caller_sees_its_workspaces_and_nothing_global() {
        let bound = caller(&["*"]);
        assert!(bound.sees(Some(&WorkspaceId::from_body("one"))));
        assert!(!bound.sees(Some(&WorkspaceId::from_body("two"))));
        assert!(!bound.sees(None));
        assert!(Caller::system().sees(None));
    }
}
