//! Why a replay could not go on.

use canon::{Digest, Map, Value};
use serde::Serialize;
use serde_json::json;

/// The first thing that a replay needs and does not have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unavailable {
    /// `event`, `artifact`, `memory`, `receipt` or `host`.
    #[serde(rename = "type")]
    pub what: &'static str,
    /// Its id, when it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The effect key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The event of the source that needs it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event_id: Option<String>,
    /// The number of that event in the source's log, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequence: Option<u64>,
    /// `pruned`, `redacted`, `missing`, `hash_mismatch`, `not_recorded`, `policy` or `log_corrupt`.
    pub reason: &'static str,
}

/// The first place where a replay is not what was recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Divergence {
    /// The effect key, for an effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The kind of event, for an event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event: Option<String>,
    /// The number of the event in the source's log, from 1.
    pub sequence: Option<u64>,
    /// What was recorded.
    pub expected_sha256: Option<Digest>,
    /// What came instead.
    pub found_sha256: Option<Digest>,
    /// `request`, `kind`, `event`, `missing` or `extra`.
    pub what: &'static str,
}

/// Why a replay failed.
#[derive(Debug, Clone, PartialEq)]
pub enum Failure {
    /// It needs something that is not there.
    Unavailable {
        /// The first such thing.
        first: Box<Unavailable>,
        /// How many more were found.
        also: u64,
    },
    /// It performed something before its process ended, and nobody knows the result.
    ResultUnknown(Box<Unavailable>),
    /// It is not what was recorded.
    Diverged(Box<Divergence>),
    /// An override cannot be used as it is.
    OverrideInvalid {
        /// Its key.
        key: String,
        /// What is wrong.
        message: String,
    },
}

impl Failure {
    /// Returns the stable word for programs.
    pub const fn code(&self) -> &'static str {
        match self {
            Failure::Unavailable { .. } | Failure::ResultUnknown(_) => {
                "replay_dependency_unavailable"
            }
            Failure::Diverged(_) => "replay_divergence",
            Failure::OverrideInvalid { .. } => "replay_override_invalid",
        }
    }

    /// Returns why, for people.
    pub fn message(&self) -> String {
        match self {
            Failure::Unavailable { first, .. } => {
                let name = first.key.as_deref().or(first.id.as_deref());
                let name = name.or(first.event_id.as_deref()).unwrap_or(first.what);
                format!(
                    "`{name}` is not available: {}",
                    first.reason.replace('_', " ")
                )
            }
            Failure::ResultUnknown(effect) => format!(
                "the result of `{}` is unknown and it cannot be repeated",
                effect.key.as_deref().unwrap_or(effect.what)
            ),
            Failure::Diverged(divergence) => {
                let name = divergence.key.as_deref().or(divergence.event.as_deref());
                let name = name.unwrap_or("the workflow");
                match divergence.what {
                    "request" => format!("`{name}` asks for something else than was recorded"),
                    "kind" => format!("`{name}` is another version than the one that was recorded"),
                    "missing" => format!("`{name}` was recorded and does not come again"),
                    "extra" => format!("`{name}` was not recorded"),
                    _ => format!("`{name}` is not what was recorded"),
                }
            }
            Failure::OverrideInvalid { message, .. } => message.clone(),
        }
    }

    /// Returns the details of the Task's failure.
    pub fn details(&self, replay_cursor: Option<&str>) -> Map<String, Value> {
        let mut details = Map::new();
        details.insert("replay_cursor".to_owned(), json!(replay_cursor));
        match self {
            Failure::Unavailable { first, also } => {
                details.insert("first_unavailable".to_owned(), json!(first));
                details.insert("also_unavailable_count".to_owned(), json!(also));
            }
            Failure::ResultUnknown(effect) => {
                details.insert("first_unavailable".to_owned(), json!(effect));
                details.insert("also_unavailable_count".to_owned(), json!(0));
            }
            Failure::Diverged(divergence) => {
                details.insert("divergence".to_owned(), json!(divergence));
            }
            Failure::OverrideInvalid { key, .. } => {
                details.insert("override_key".to_owned(), json!(key));
            }
        }
        details
    }
}
