//! The calls of a response, read once: ids, parsed arguments, what is wrong with their form.

use std::collections::BTreeMap;

use canon::Digest;

use crate::canonical;
use crate::json;
use crate::request::{ProposedCall, Response};
use crate::value::Value;

const CALLS_MAX: usize = 128;
const ID_BYTES_MAX: usize = 256;

/// A proposed call with what could be read of it.
#[derive(Debug)]
pub(super) struct ReadCall<'a> {
    call: &'a ProposedCall,
    arguments: Option<Value>,
    text: String,
    digest: Digest,
    problems: Vec<String>,
}

/// Reads all calls of a response.
pub(super) fn read(response: &Response) -> Vec<ReadCall<'_>> {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for call in &response.calls {
        *seen.entry(call.id.as_str()).or_default() += 1;
    }
    let too_many = response.calls.len() > CALLS_MAX;
    let calls = response.calls.iter().map(|call| {
        let mut problems = Vec::new();
        if too_many {
            problems.push("too_many_calls".to_owned());
        }
        let twice = seen.get(call.id.as_str()).is_some_and(|count| *count > 1);
        if call.id.is_empty() || call.id.len() > ID_BYTES_MAX || twice {
            problems.push("call_id".to_owned());
        }
        let parsed = json::read_arguments(&call.arguments);
        let arguments = match parsed {
            Ok(value) if value.as_object().is_some() => Some(value),
            Ok(_) => {
                problems.push("arguments: not an object".to_owned());
                None
            }
            Err(error) => {
                problems.push(format!("arguments: {error}"));
                None
            }
        };
        let text = text_of(call, arguments.as_ref());
        ReadCall {
            call,
            arguments,
            digest: canon::sha256(text.as_bytes()),
            text,
            problems,
        }
    });
    calls.collect()
}

/// The arguments as canonical JSON; as they came where they are not an object that can be read.
fn text_of(call: &ProposedCall, arguments: Option<&Value>) -> String {
    arguments.map_or_else(|| call.arguments.clone(), canonical::text)
}

impl ProposedCall {
    /// Returns the digest that verdicts and reports name its arguments by.
    pub fn arguments_digest(&self) -> Digest {
        let read = json::read_arguments(&self.arguments).ok();
        let read = read.filter(|value| value.as_object().is_some());
        canon::sha256(text_of(self, read.as_ref()).as_bytes())
    }
}

impl<'a> ReadCall<'a> {
    pub(super) fn id(&self) -> &'a str {
        &self.call.id
    }

    pub(super) fn name(&self) -> &'a str {
        &self.call.name
    }

    /// The parsed arguments; nothing when they do not parse.
    pub(super) fn arguments(&self) -> Option<&Value> {
        self.arguments.as_ref()
    }

    /// The arguments as canonical JSON, or as they came.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn digest(&self) -> Digest {
        self.digest
    }

    pub(super) fn problems(&self) -> &[String] {
        &self.problems
    }
}
