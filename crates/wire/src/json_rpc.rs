//! The outermost shape of JSON-RPC 2.0, which the tools at `/mcp` are called by: what it is not is refused in its own words.

use canon::{Integers, Value};
use serde_json::json;

/// Why bytes are not a message.
#[derive(Debug, Clone, PartialEq)]
pub struct NotAMessage {
    /// The id that it has all the same; null without one.
    pub id: Value,
    /// The number of the error.
    pub code: i32,
    /// What is wrong.
    pub message: String,
}

/// The number of an error about bytes that are not JSON.
pub const PARSE_ERROR: i32 = -32700;
/// The number of an error about JSON that is not a message.
pub const INVALID_REQUEST: i32 = -32600;

/// Looks whether bytes are one message. Returns its id; null without one.
///
/// # Errors
/// They are not JSON, or not one message.
pub fn id_of(bytes: &[u8]) -> Result<Value, NotAMessage> {
    let value = canon::read(bytes, Integers::Doubles).map_err(|error| NotAMessage {
        id: Value::Null,
        code: PARSE_ERROR,
        message: format!("the body is not JSON: {error}"),
    })?;
    let id = value.get("id");
    let id = id.filter(|id| id.is_string() || id.is_number());
    let id = id.cloned().unwrap_or_default();
    let is_versioned = value.get("jsonrpc").and_then(Value::as_str) == Some("2.0");
    let is_asked = value.get("method").is_some_and(Value::is_string);
    let is_answered = value.get("result").is_some() || value.get("error").is_some();
    match is_versioned && (is_asked || is_answered) {
        true => Ok(id),
        false => Err(NotAMessage {
            id,
            code: INVALID_REQUEST,
            message: "the body is not a JSON-RPC 2.0 message".to_owned(),
        }),
    }
}

/// Writes an error.
pub fn error(id: &Value, code: i32, message: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})
}
