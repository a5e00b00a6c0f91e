//! Who calls, and what that caller may do and see.
//!
//! A resource of a Workspace that the caller may not see is answered like one that does not exist.

use std::collections::BTreeSet;
use std::sync::Arc;

use domain::{Document, Refusal, ResourceKind, State, WorkspaceId};

use crate::engine::Engine;
use crate::port::ApiKey;
use crate::refused::Refused;

/// The right to decide what an agent asks approval for. Only its own name gives it: whoever may do everything else may not
/// therefore wave through what somebody was to look at.
pub const APPROVE: &str = "approvals:write";

/// The right to take part in the shared memory as an observer. Every message to it is an entry of the log, and an observer may
/// register agents and draft: what promises to write nothing does not give it.
pub const OBSERVE: &str = "field:read";

/// How a scope begins that names an agent of the shared memory, or a prefix of agents with `*` at its end. A key with such scopes
/// acts for these agents, whoever registered them, and for no others.
pub const AGENT: &str = "agent:";

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
        // Each once: lists and streams go through them one by one.
        let workspaces = key.workspaces.as_ref().map(|list| {
            let ids: BTreeSet<&String> = list.iter().collect();
            let ids = ids.into_iter();
            ids.filter_map(|id| WorkspaceId::parse(id).ok()).collect()
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

    /// The agents of the shared memory that the caller acts for, `*` at the end for a prefix; none in particular for those
    /// that it registers.
    pub fn agents(&self) -> impl Iterator<Item = &str> {
        let scopes = self.scopes.iter();
        scopes.filter_map(|scope| scope.strip_prefix(AGENT))
    }

    /// The Workspaces the caller is bound to; none for no bounds.
    pub fn workspaces(&self) -> Option<&[WorkspaceId]> {
        self.workspaces.as_deref()
    }
}

/// Returns the Workspace a document belongs to.
pub(crate) fn workspace_of(document: &Document) -> Option<WorkspaceId> {
    match &document.state {
        State::Workspace(_) => WorkspaceId::parse(&document.id).ok(),
        State::Session(session) => Some(session.workspace_id.clone()),
        State::Task(task) => Some(task.workspace_id.clone()),
        State::Branch(branch) => Some(branch.workspace_id.clone()),
        // A Message is seen by who sees its Session; its link says which Workspace that is.
        State::Message(_) => None,
        State::Artifact(artifact) => Some(artifact.workspace_id.clone()),
        State::Outcome(outcome) => Some(outcome.workspace_id.clone()),
        State::Permission(request) => Some(request.workspace_id.clone()),
        State::Vault(vault) => vault.workspace_id.clone(),
        State::Receipt(receipt) => Some(receipt.workspace_id.clone()),
        State::Field(field) => Some(field.workspace_id.clone()),
        State::Chain(_)
        | State::Batch(_)
        | State::TrustChain(_)
        | State::Persona(_)
        | State::Key(_) => None,
    }
}

impl Engine {
    /// Refuses to go on unless the caller may see a resource, whatever else it may do with it.
    ///
    /// # Errors
    /// It does not exist or is hidden; the store failed.
    pub async fn sees(&self, caller: &Caller, kind: ResourceKind, id: &str) -> Result<(), Refused> {
        self.visible_shared(caller, kind, id).await.map(drop)
    }

    /// Finds a document of a kind that the caller may see.
    pub(crate) async fn visible(
        &self,
        caller: &Caller,
        kind: ResourceKind,
        id: &str,
    ) -> Result<Document, Refused> {
        let found = self.visible_shared(caller, kind, id).await?;
        Ok(Arc::unwrap_or_clone(found))
    }

    async fn visible_shared(
        &self,
        caller: &Caller,
        kind: ResourceKind,
        id: &str,
    ) -> Result<Arc<Document>, Refused> {
        let unknown = || {
            Refused::Domain(Refusal::NotFound {
                object: kind.object(),
                param: None,
            })
        };
        if id.len() > domain::ID_BYTES_MAX {
            return Err(unknown());
        }
        let document = self
            .shared_document(id)
            .await?
            .filter(|document| document.state.kind() == kind);
        let document = document.ok_or_else(unknown)?;
        if let State::Message(message) = &document.state {
            let session = self.shared_document(message.session_id.as_str()).await?;
            if !session
                .as_ref()
                .is_some_and(|session| caller.sees(workspace_of(session).as_ref()))
            {
                return Err(unknown());
            }
        } else if kind != ResourceKind::Persona && !caller.sees(workspace_of(&document).as_ref()) {
            // Personas are global: whoever may run Tasks must see what they can run under.
            return Err(unknown());
        }
        Ok(document)
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
