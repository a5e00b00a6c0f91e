//! The envelope of a request: eight members, no more, no fewer.
//!
//! Reading it needs no state: size, JSON and shape are judged here, everything that looks at the field comes later.

use canon::{Digest, Integers, Map, Value};

use crate::config::{ID_BYTES_MAX, Limits};
use crate::error::{Check, Code, Fault, Refusal};
use crate::kind::Operation;

/// The largest epoch: beyond it JSON readers lose digits.
pub const EPOCH_MAX: u64 = (1 << 53) - 1;
/// The version of the protocol.
pub const PROTOCOL_VERSION: &str = "0.1.0";

const MEMBERS: [&str; 8] = [
    "protocol",
    "version",
    "id",
    "operation",
    "agent_id",
    "session_id",
    "epoch",
    "payload",
];

/// A well-formed request.
#[derive(Debug, Clone, PartialEq)]
pub struct Envelope {
    pub(crate) id: String,
    pub(crate) operation: Operation,
    pub(crate) agent_id: String,
    pub(crate) session_id: Option<String>,
    pub(crate) epoch: u64,
    pub(crate) payload: Map<String, Value>,
    pub(crate) sha256: Digest,
}

impl Envelope {
    /// Reads a request from the bytes of its body; `path` is the operation that the transport was asked for, if it
    /// names one.
    ///
    /// # Errors
    /// The bytes are too many, are not JSON, or are not an envelope of that operation.
    pub fn read(bytes: &[u8], limits: &Limits, path: Option<Operation>) -> Result<Self, Refusal> {
        if bytes.len() > limits.request_bytes_max {
            let message = format!(
                "the request is larger than {} bytes",
                limits.request_bytes_max
            );
            return Err(Fault::request(message).of(path));
        }
        let value = canon::read(bytes, Integers::Doubles).map_err(|error| {
            Fault::new(
                Code::InvalidEnvelope,
                format!("the body is not JSON: {error}"),
            )
            .of(path)
        })?;
        Self::from_json(&value, path)
    }

    /// Reads a request from a JSON value.
    ///
    /// # Errors
    /// It is not an envelope of the operation that the transport was asked for.
    pub fn from_json(value: &Value, path: Option<Operation>) -> Result<Self, Refusal> {
        let stated = value
            .get("operation")
            .and_then(Value::as_str)
            .and_then(Operation::parse);
        read(value, path).map_err(|fault| fault.of(stated.or(path)))
    }

    /// Changes the digest by which a repeated message is known. It stands in the log: where others can read that, it must not
    /// be one that they can compute from a guess.
    #[must_use]
    pub fn map_digest(mut self, digest: impl FnOnce(Digest) -> Digest) -> Self {
        self.sha256 = digest(self.sha256);
        self
    }

    /// Returns the id of the message.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the operation.
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// Returns the sender.
    pub fn agent_id(&self) -> &str {
        &self.agent_id
    }

    /// Returns the session that the message names.
    pub fn session_id(&self) -> Option<&str> {
        self.session_id.as_deref()
    }

    /// Returns the payload.
    pub fn payload(&self) -> &Map<String, Value> {
        &self.payload
    }
}

fn malformed(message: impl Into<String>) -> Fault {
    Fault::new(Code::InvalidEnvelope, message)
}

fn read(value: &Value, path: Option<Operation>) -> Check<Envelope> {
    let object = value
        .as_object()
        .ok_or_else(|| malformed("the envelope is not an object"))?;
    if canon::holds_unsafe_integer(value) {
        return Err(malformed("a whole number is beyond ±(2^53−1)"));
    }
    let member = |name: &str| {
        object
            .get(name)
            .ok_or_else(|| malformed(format!("`{name}` is missing")))
    };
    if member("protocol")?.as_str() != Some("akashik") {
        return Err(malformed("`protocol` is not `akashik`"));
    }
    if member("version")?.as_str() != Some(PROTOCOL_VERSION) {
        return Err(malformed(format!("`version` is not `{PROTOCOL_VERSION}`")));
    }
    let id = id_member(member("id")?, "id")?;
    let operation = member("operation")?
        .as_str()
        .and_then(Operation::parse)
        .ok_or_else(|| malformed("`operation` is not an operation of the protocol"))?;
    let agent_id = id_member(member("agent_id")?, "agent_id")?;
    let session_id = match member("session_id")? {
        Value::Null => None,
        value => Some(id_member(value, "session_id")?),
    };
    let epoch = member("epoch")?
        .as_u64()
        .filter(|epoch| *epoch <= EPOCH_MAX)
        .ok_or_else(|| malformed(format!("`epoch` is not an integer from 0 to {EPOCH_MAX}")))?;
    let payload = member("payload")?
        .as_object()
        .ok_or_else(|| malformed("`payload` is not an object"))?
        .clone();
    if object.keys().any(|name| !MEMBERS.contains(&name.as_str())) {
        return Err(malformed("the envelope has a member that is not its own"));
    }
    if path.is_some_and(|path| path != operation) {
        return Err(malformed("`operation` is not the operation of the path"));
    }
    Ok(Envelope {
        id,
        operation,
        agent_id,
        session_id,
        epoch,
        payload,
        sha256: canon::sha256(&canon::jcs(value)),
    })
}

fn id_member(value: &Value, name: &str) -> Check<String> {
    value
        .as_str()
        .filter(|text| (1..=ID_BYTES_MAX).contains(&text.len()))
        .map(str::to_owned)
        .ok_or_else(|| {
            malformed(format!(
                "`{name}` is not a text of 1 to {ID_BYTES_MAX} bytes"
            ))
        })
}
