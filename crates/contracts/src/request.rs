//! What is sent to a model and what comes back, in one shape for all providers.

use crate::contract::FinishReason;
use crate::value::Value;

/// A request as rules see it.
#[derive(Debug, Clone)]
pub struct Request {
    /// `openai` or `anthropic`.
    pub provider: String,
    /// The model that the request names.
    pub model: String,
    /// The tools that the caller offered, before narrowing.
    pub tools: Vec<OfferedTool>,
    /// What the request says about calling them.
    pub choice: ToolChoice,
    /// A member that the session cannot judge, if there is one.
    pub unsupported: Option<String>,
    /// What input invariants look at: `{ provider, model, system, messages, tools }`, as it is sent.
    pub view: Value,
}

/// A tool that the caller offered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OfferedTool {
    /// Its name.
    pub name: String,
    /// The schema of its parameters.
    pub schema: Option<Value>,
    /// True when the provider runs it inside the request.
    pub hosted: bool,
}

impl OfferedTool {
    /// A function with this name and no schema.
    pub fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            schema: None,
            hosted: false,
        }
    }
}

/// What a request says about calling tools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolChoice {
    /// The model decides.
    Auto,
    /// None may be called.
    None,
    /// One must be called.
    Required,
    /// This one must be called.
    Named(String),
    /// Only these may be called.
    AllowedOnly(Vec<String>),
}

/// A response as rules see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// Why the model stopped.
    pub finish_reason: FinishReason,
    /// The text beside the calls.
    pub content: Option<String>,
    /// The proposed calls.
    pub calls: Vec<ProposedCall>,
}

/// A proposed call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProposedCall {
    /// The provider's id.
    pub id: String,
    /// The tool.
    pub name: String,
    /// The arguments as the model wrote them.
    pub arguments: String,
}
