//! API keys: made, given more rights, revoked. The text of a key is in no event, nor is the digest that it is known by.

use crate::kind::Payload;
use crate::{Draft, Key, ResourceRef, Timestamp, payload};

/// What happens to an API key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyChange {
    /// It is made.
    Create(Key),
    /// It was made before keys had events: what it is now is written down.
    Record(Key),
    /// It may do this from now on, and nothing else.
    Grant(Vec<String>),
    /// It is refused from now on.
    Revoke(Timestamp),
}

/// Drafts the event of a change.
pub fn change_key(id: &str, actor: &str, change: KeyChange) -> Draft {
    let created = |key: Key, recorded_late| {
        Payload::KeyCreated(payload::KeyCreated {
            actor: key.actor,
            workspaces: key.workspaces,
            scopes: key.scopes,
            fingerprint: key.fingerprint,
            expires_at: key.expires_at,
            revoked_at: key.revoked_at,
            recorded_late,
        })
    };
    let said = match change {
        KeyChange::Create(key) => created(key, None),
        KeyChange::Record(key) => created(key, Some(true)),
        KeyChange::Grant(scopes) => Payload::KeyGranted(payload::KeyGranted { scopes }),
        KeyChange::Revoke(revoked_at) => Payload::KeyRevoked(payload::KeyRevoked { revoked_at }),
    };
    Draft {
        kind: said.kind(),
        resource: ResourceRef::new(Key::OBJECT, id),
        workspace_id: None,
        session_id: None,
        task_id: None,
        actor: Some(actor.to_owned()),
        idempotency_key: None,
        receipt_id: None,
        payload: said.into_members().into(),
        sibling: None,
        replay: None,
    }
}
