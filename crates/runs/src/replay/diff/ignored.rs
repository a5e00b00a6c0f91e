//! What is not compared: the ids and numbers that a provider and the server use for bookkeeping.
//!
//! Of a model's answer, members named in the lists below do not count; of what was asked of it, the ids of tool calls
//! do not, only their order; of what somebody answered, the id of the message. Everything else counts, above all words
//! and tool calls. Where a value is not at hand its digest decides.

use std::collections::BTreeMap;

use canon::Value;

use super::requests::{RequestOfRun, requests_of};
use super::{Relation, Reveal, applied};
use crate::replay::source::Source;
use crate::workflow::{EffectRequest, Registry};

/// Members of a completion that say which one it was, when it was made and what it used.
const OF_COMPLETION: [&str; 6] = [
    "id",
    "object",
    "created",
    "system_fingerprint",
    "service_tier",
    "usage",
];

/// Members of a choice that say nothing of its words.
const OF_CHOICE: [&str; 2] = ["index", "logprobs"];

/// Members of a tool call that only name it.
const OF_CALL: [&str; 2] = ["id", "index"];

/// Two runs that are compared.
pub(super) struct Comparison<'a> {
    pub(super) a: &'a Source,
    pub(super) b: &'a Source,
    pub(super) relation: Relation,
    pub(super) reveal: Reveal,
    pub(super) asked_a: BTreeMap<String, RequestOfRun>,
    pub(super) asked_b: BTreeMap<String, RequestOfRun>,
}

impl<'a> Comparison<'a> {
    pub(super) fn new(
        a: &'a Source,
        b: &'a Source,
        relation: Relation,
        workflows: &Registry,
        reveal: Reveal,
    ) -> Self {
        Self {
            a,
            b,
            relation,
            reveal,
            asked_a: requests_of(a, b, workflows),
            asked_b: requests_of(b, a, workflows),
        }
    }

    /// Returns the run that the other one replays.
    pub(super) fn source(&self) -> Option<&'a Source> {
        match self.relation {
            Relation::Replay => Some(self.a),
            Relation::Source => Some(self.b),
            Relation::SameSource | Relation::None => None,
        }
    }

    /// Returns the keys that requests replaced and that the other run may have otherwise. What a source was told to
    /// say when it was made is its own.
    pub(super) fn replaced_keys(&self) -> Vec<String> {
        let mut keys = match self.relation {
            Relation::Replay => applied(self.b),
            Relation::Source => applied(self.a),
            Relation::SameSource => [applied(self.a), applied(self.b)].concat(),
            Relation::None => Vec::new(),
        };
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// True when both asked the same under a key, as far as that is known.
    pub(super) fn same_request(&self, key: &str) -> bool {
        match (self.asked_a.get(key), self.asked_b.get(key)) {
            (Some(a), Some(b)) if a.matches && b.matches => {
                request(&a.wanted) == request(&b.wanted)
            }
            _ => false,
        }
    }

    /// True when both were answered the same under a key, as far as that is known.
    pub(super) fn same_value(&self, key: &str) -> bool {
        let value = |source: &Source| {
            let place = source.places(key).recorded?;
            Some(answer(key, &source.answer(place)?.value))
        };
        let (a, b) = (value(self.a), value(self.b));
        a.is_some() && a == b
    }
}

/// Returns what counts of an answer.
pub(super) fn answer(key: &str, value: &Value) -> Value {
    let mut value = value.clone();
    if key.starts_with("host:approval:") {
        drop_members(&mut value, &["message_id"]);
    }
    if !key.starts_with("llm:") {
        return value;
    }
    drop_members(&mut value, &OF_COMPLETION);
    for choice in items(value.get_mut("choices")) {
        drop_members(choice, &OF_CHOICE);
        for call in items(choice.pointer_mut("/message/tool_calls")) {
            drop_members(call, &OF_CALL);
        }
    }
    value
}

/// Returns what counts of a request, its messages included: calls of tools by their order.
pub(super) fn request(wanted: &EffectRequest) -> Value {
    let mut request = wanted.clone().into_effect().request;
    let mut count = 0_u64;
    let mut numbers: BTreeMap<String, u64> = BTreeMap::new();
    for message in items(request.get_mut("messages")) {
        for call in items(message.get_mut("tool_calls")) {
            count += 1;
            if let Some(Value::String(id)) = call.get("id") {
                numbers.insert(id.clone(), count);
            }
            drop_members(call, &OF_CALL);
        }
        if let Some(id) = message.get_mut("tool_call_id") {
            let number = id.as_str().and_then(|id| numbers.get(id));
            *id = number.copied().into();
        }
    }
    request
}

fn items(list: Option<&mut Value>) -> impl Iterator<Item = &mut Value> {
    list.and_then(Value::as_array_mut).into_iter().flatten()
}

fn drop_members(value: &mut Value, names: &[&str]) {
    if let Value::Object(members) = value {
        members.retain(|name, _| !names.contains(&name.as_str()));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::workflow::EffectKind;

    fn completion(id: &str, call: &str, arguments: &str) -> Value {
        json!({"id": id, "created": id.len(), "system_fingerprint": id, "usage": {"total_tokens": id.len()},
            "model": "m", "choices": [{"index": 0, "finish_reason": "tool_calls", "message": {"role": "assistant",
                "content": "Let me see.", "tool_calls": [{"id": call, "type": "function",
                    "function": {"name": "look", "arguments": arguments}}]}}]})
    }

    #[test]
    fn the_books_of_a_provider_are_no_difference_and_words_are() {
        let same = |a: Value, b: Value| answer("llm:main:1", &a) == answer("llm:main:1", &b);
        assert!(same(
            completion("one", "c1", "{}"),
            completion("second", "c2", "{}")
        ));
        assert!(!same(
            completion("one", "c1", "{}"),
            completion("one", "c1", "{\"a\":1}")
        ));
        for (pointer, other) in [
            ("/choices/0/message/content", json!("No.")),
            ("/choices/0/finish_reason", json!("length")),
            ("/model", json!("n")),
        ] {
            let mut changed = completion("one", "c1", "{}");
            *changed.pointer_mut(pointer).unwrap() = other;
            assert!(!same(completion("one", "c1", "{}"), changed), "{pointer}");
        }
        // A tool may well give ids as its result.
        let (one, two) = (json!({"id": 1}), json!({"id": 2}));
        assert_ne!(answer("mcp:a:main:1", &one), answer("mcp:a:main:1", &two));
    }

    #[test]
    fn calls_count_by_their_order() {
        let asks = |ids: [&str; 2], result_of: &str| {
            let call =
                |id: &str| json!({"id": id, "function": {"name": "look", "arguments": "{}"}});
            let messages = [
                json!({"role": "assistant", "tool_calls": ids.map(call)}),
                json!({"role": "tool", "tool_call_id": result_of, "content": "x"}),
            ];
            request(&EffectRequest {
                messages: Some(messages.into_iter().collect()),
                ..EffectRequest::repeatable("llm:main:2", EffectKind::Model, json!({}))
            })
        };
        assert_eq!(asks(["c1", "c2"], "c1"), asks(["d1", "d2"], "d1"));
        assert_ne!(asks(["c1", "c2"], "c1"), asks(["d1", "d2"], "d2"));
    }
}
