//! What comes back of an effect that was performed.

use canon::Value;
use domain::{ModelUse, Observed};

/// The result of an effect.
#[derive(Debug, Clone, PartialEq)]
pub struct EffectOutcome {
    /// True for a result, false for an error that the workflow gets to see.
    pub ok: bool,
    /// The result or the error.
    pub value: Value,
    /// The provider's own id of the call.
    pub provider_request_id: Option<String>,
    /// For a model call: provider, model, tokens and cost.
    pub model: Option<ModelUse>,
    /// What the effect was seen to do outside.
    pub observed: Option<Observed>,
}

impl EffectOutcome {
    /// A result of something that did nothing outside.
    pub fn ok(value: Value) -> Self {
        Self {
            ok: true,
            value,
            provider_request_id: None,
            model: None,
            observed: None,
        }
    }

    /// An error that the workflow gets to see: a stable word for programs, and why, for people.
    pub fn error(code: &str, message: impl Into<String>) -> Self {
        Self {
            ok: false,
            ..Self::ok(serde_json::json!({"code": code, "message": message.into()}))
        }
    }
}
