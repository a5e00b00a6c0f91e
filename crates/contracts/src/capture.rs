//! Captures: what is kept of a call for later reading, and how much of it.
//!
//! Losing a capture is a diagnostic. The decision record is another thing and is never kept here.

use std::collections::VecDeque;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::compile::Compiled;
use crate::json::{self as exact, Limits, Numbers};
use crate::reason::words;
use crate::redact;

words! {
    /// How much is kept.
    CaptureLevel {
        /// Digests, lengths and types.
        Metadata = "metadata",
        /// Texts and values after redaction.
        Redacted = "redacted",
        /// Texts and values; the session's own key is still redacted.
        Full = "full",
    }
}

/// Returns what is kept of a request's or response's text.
pub fn text(level: CaptureLevel, content: &str, own_keys: &[&str]) -> Value {
    match level {
        CaptureLevel::Metadata => digest(content),
        CaptureLevel::Redacted => Value::from(redact::text(content, own_keys)),
        CaptureLevel::Full => Value::from(redact::exact(content, own_keys)),
    }
}

/// Returns what is kept of a call's arguments.
pub fn arguments(
    level: CaptureLevel,
    compiled: &Compiled,
    tool: &str,
    content: &str,
    own_keys: &[&str],
) -> Value {
    let contract = compiled.contract(tool);
    let invariants = contract.into_iter().flat_map(|contract| {
        contract
            .arguments
            .iter()
            .chain(&contract.execution_constraints)
    });
    let paths = invariants.map(|invariant| invariant.path());
    data(level, content, paths, own_keys)
}

/// Returns what is kept of a tool's output.
pub fn output(
    level: CaptureLevel,
    compiled: &Compiled,
    tool: &str,
    content: &str,
    own_keys: &[&str],
) -> Value {
    let paths = compiled.output_paths(tool);
    data(level, content, paths.into_iter(), own_keys)
}

fn data<'a>(
    level: CaptureLevel,
    content: &str,
    paths: impl Iterator<Item = &'a crate::path::Path>,
    own_keys: &[&str],
) -> Value {
    let parsed = exact::read(content, Limits::OUTPUT, Numbers::Any).ok();
    match (level, parsed) {
        (CaptureLevel::Metadata, parsed) => {
            let mut kept = digest(content);
            let types = paths.map(|path| {
                let found = parsed.as_ref().and_then(|root| path.find(root));
                (
                    path.to_string(),
                    Value::from(found.map(|value| value.type_name())),
                )
            });
            let types: serde_json::Map<String, Value> = types.collect();
            if let Value::Object(members) = &mut kept {
                members.insert("types".to_owned(), Value::Object(types));
            }
            kept
        }
        (CaptureLevel::Redacted, Some(value)) => redact::value(&value.to_serde(), own_keys),
        (CaptureLevel::Redacted, None) => Value::from(redact::text(content, own_keys)),
        (CaptureLevel::Full, _) => Value::from(redact::exact(content, own_keys)),
    }
}

fn digest(content: &str) -> Value {
    json!({"sha256": canon::sha256(content.as_bytes()), "bytes": content.len()})
}

const CAPTURES_MAX: usize = 1_000;
const BYTES_MAX: usize = 16 << 20;

/// Captures that wait to be sent. When it is full the oldest is dropped and counted.
#[derive(Debug, Clone, Default)]
pub struct Buffer {
    captures: VecDeque<(Value, usize)>,
    bytes: usize,
    dropped: u64,
    sent: u64,
}

/// What became of captures so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureCounts {
    /// Handed over.
    pub sent: u64,
    /// Dropped because the buffer was full.
    pub dropped: u64,
    /// Still waiting.
    pub pending: u64,
}

impl Buffer {
    /// Adds a capture.
    pub fn push(&mut self, capture: Value) {
        let len = capture.to_string().len();
        if len > BYTES_MAX {
            self.dropped += 1;
            return;
        }
        self.captures.push_back((capture, len));
        self.bytes += len;
        while self.captures.len() > CAPTURES_MAX || self.bytes > BYTES_MAX {
            let Some((_, len)) = self.captures.pop_front() else {
                return;
            };
            self.bytes -= len;
            self.dropped += 1;
        }
    }

    /// Takes all captures to send them.
    pub fn take(&mut self) -> Vec<Value> {
        self.bytes = 0;
        let captures: Vec<Value> = self
            .captures
            .drain(..)
            .map(|(capture, _)| capture)
            .collect();
        self.sent += captures.len() as u64;
        captures
    }

    /// Returns the counts.
    pub fn counts(&self) -> CaptureCounts {
        CaptureCounts {
            sent: self.sent,
            dropped: self.dropped,
            pending: self.captures.len() as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_buffer_drops_the_oldest_and_counts_it() {
        let mut buffer = Buffer::default();
        for number in 0..1_003 {
            buffer.push(json!(number));
        }
        buffer.push(json!("x".repeat(17 << 20)));
        let counts = buffer.counts();
        assert_eq!((counts.dropped, counts.pending), (4, 1_000));
        assert_eq!(buffer.take().first(), Some(&json!(3)));
        assert_eq!(
            buffer.counts(),
            CaptureCounts {
                sent: 1_000,
                dropped: 4,
                pending: 0
            }
        );
    }

    #[test]
    fn levels_keep_less_and_less() {
        let content = "mail ann@mail.example, key own-secret-1";
        assert_eq!(
            text(CaptureLevel::Full, content, &["own-secret-1"]),
            json!("mail ann@mail.example, key [REDACTED:api_key]")
        );
        assert_eq!(
            text(CaptureLevel::Redacted, content, &[]),
            json!("mail [REDACTED:email], key own-secret-1")
        );
        assert_eq!(
            text(CaptureLevel::Metadata, content, &[])["bytes"],
            json!(39)
        );
    }
}
