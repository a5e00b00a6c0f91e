//! Identifiers: one type per kind of resource, each with its own prefix.
//!
//! Bodies are made outside (they need randomness) and arrive as text. Every id is URL-safe without
//! escaping, so that clients may paste it into a path.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The text is not an id of the expected kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a {kind} id")]
pub struct ParseIdError {
    kind: &'static str,
    text: String,
}

/// The longest id text accepted from outside.
pub const ID_BYTES_MAX: usize = 200;

fn is_url_safe(text: &str) -> bool {
    text.len() <= ID_BYTES_MAX
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'))
}

macro_rules! id {
    ($($(#[$doc:meta])* $name:ident = $prefix:literal, $object:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Box<str>);

        impl $name {
            /// The value of `object` for this kind of resource.
            pub const OBJECT: &str = $object;

            /// Puts the prefix before a body made elsewhere.
            pub fn from_body(body: &str) -> Self {
                Self([concat!($prefix, "_"), body].concat().into())
            }

            /// Reads an id; another kind's prefix is refused.
            ///
            /// # Errors
            /// The text does not start with this kind's prefix or is not URL-safe.
            pub fn parse(text: &str) -> Result<Self, ParseIdError> {
                let body = text.strip_prefix(concat!($prefix, "_")).unwrap_or_default();
                if body.is_empty() || !is_url_safe(text) {
                    let text = text.chars().take(80).collect();
                    return Err(ParseIdError { kind: $object, text });
                }
                Ok(Self(text.into()))
            }

            /// Points at the resource.
            pub fn resource(&self) -> crate::ResourceRef {
                crate::ResourceRef::new($object, &self.0)
            }

            /// Returns the whole text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.0.into()
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                canon::deserialize_text(deserializer, Self::parse)
            }
        }
    )*};
}

id! {
    /// Names a Workspace.
    WorkspaceId = "workspace", "workspace";
    /// Names a Session.
    SessionId = "session", "session";
    /// Names a Task.
    TaskId = "task", "task";
    /// Names a Branch.
    BranchId = "branch", "branch";
    /// Names a Message.
    MessageId = "message", "message";
    /// Names an Artifact.
    ArtifactId = "artifact", "artifact";
    /// Names an Outcome.
    OutcomeId = "outcome", "outcome";
    /// Names a permission request.
    PermissionId = "permission", "permission_request";
    /// Names a Vault.
    VaultId = "vault", "vault";
    /// Names a Receipt.
    ReceiptId = "receipt", "receipt";
    /// Names the chain of a Session's receipts.
    ChainId = "chain", "receipt_chain";
    /// Names a sealed head of the receipt log.
    BatchId = "batch", "receipt_batch";
    /// Names the chain of a Session's trust records.
    TrustChainId = "trust", "trust_chain";
    /// Names a Persona.
    PersonaId = "persona", "persona";
    /// Names a memory field.
    FieldId = "field", "field";
}

impl PersonaId {
    /// The Persona of a name and a version: who knows both finds it without a search.
    pub fn of(name: &str, version: &str) -> Self {
        let digest = canon::sha256(&canon::jcs(&serde_json::json!([name, version])));
        // 128 bits are enough that nobody finds two definitions with one id.
        let body: String = digest.hex().chars().take(32).collect();
        Self::from_body(&body)
    }
}

impl FieldId {
    /// The memory field that has a name in a Workspace: who knows both finds it without a search.
    pub fn of(workspace: &WorkspaceId, name: &str) -> Self {
        let digest = canon::sha256(&canon::jcs(&serde_json::json!([workspace, name])));
        let body: String = digest.hex().chars().take(32).collect();
        Self::from_body(&body)
    }
}

impl TaskId {
    /// Returns the id of the Artifact that holds a checkpoint of this Task.
    pub fn checkpoint(&self, number: u64) -> ArtifactId {
        let body = self.as_str().strip_prefix("task_").unwrap_or_default();
        ArtifactId::from_body(&format!("checkpoint_{body}_{number}"))
    }
}

impl ChainId {
    /// The chain of a Session.
    pub fn of(session: &SessionId) -> Self {
        Self::from_body(session.as_str())
    }
}

impl TrustChainId {
    /// The chain of a Session.
    pub fn of(session: &SessionId) -> Self {
        Self::from_body(session.as_str())
    }
}

impl WorkspaceId {
    /// The Workspace of a request that names none.
    pub fn local() -> Self {
        Self::from_body("local")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_kinds_prefix_is_refused() {
        assert!(TaskId::parse("task_01").is_ok());
        for text in [
            "session_01",
            "task_",
            "task",
            "",
            "task_a/b",
            "task_é",
            &format!("task_{}", "a".repeat(200)),
        ] {
            assert!(TaskId::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn ap_env_08_bodies_make_url_safe_ids() {
        assert_eq!(SessionId::from_body("0a").as_str(), "session_0a");
        assert_eq!(WorkspaceId::local().as_str(), "workspace_local");
    }

    #[test]
    fn a_persona_is_found_by_name_and_version() {
        let id = PersonaId::of("reviewer", "1");
        assert_eq!(id, PersonaId::of("reviewer", "1"));
        assert_eq!(PersonaId::parse(id.as_str()).as_ref(), Ok(&id));
        for (name, version) in [("reviewer", "2"), ("reviewer1", ""), ("", "reviewer1")] {
            assert_ne!(PersonaId::of(name, version), id, "{name} {version}");
        }
    }
}
