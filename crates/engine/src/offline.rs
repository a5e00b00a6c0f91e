//! The performer that needs nothing outside: a deterministic model, and a wait that only a cancel ends.

use canon::Value;
use domain::ModelUse;
use serde_json::json;

use crate::port::{BoxFuture, Deltas, Performer};
use runs::workflow::{Effect, EffectKind, EffectOutcome};

/// Answers model calls from the request alone, so that a fresh server does something useful without any key.
#[derive(Debug, Clone, Copy)]
pub struct Offline;

impl Performer for Offline {
    fn perform(&self, effect: Effect, _deltas: Deltas) -> BoxFuture<'static, EffectOutcome> {
        match effect.kind {
            EffectKind::Model => Box::pin(std::future::ready(answer(&effect))),
            EffectKind::Hold => Box::pin(std::future::pending()),
            EffectKind::McpTool
            | EffectKind::LocalTool
            | EffectKind::Secret
            | EffectKind::Host
            | EffectKind::Time
            | EffectKind::Random
            | EffectKind::Memory
            | EffectKind::Ask(_) => Box::pin(std::future::ready(EffectOutcome::error(
                "not_available",
                format!(
                    "`{}` needs an external service, and this program was started without one",
                    effect.key
                ),
            ))),
        }
    }
}

/// Returns a response in the common chat-completion shape.
fn answer(effect: &Effect) -> EffectOutcome {
    let said = match effect.request.pointer("/messages/0/content") {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => String::new(),
    };
    let quoted = first_chars(&said, 2_000);
    let digest = effect.request_digest().hex();
    let id = format!("offline-{}", first_chars(&digest, 16));
    let content = format!("I read: {quoted}\n(This answer comes from the built-in offline model.)");
    let value = json!({
        "id": id,
        "object": "chat.completion",
        "model": "offline-1",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": content}}],
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    });
    EffectOutcome {
        // Its price is known: it costs nothing.
        model: Some(ModelUse {
            provider: "offline".to_owned(),
            model: "offline-1".to_owned(),
            input_tokens: 0,
            output_tokens: 0,
            cost_micros: Some(0),
            price_table: None,
            usage_unknown: false,
        }),
        ..EffectOutcome::ok(value)
    }
}

/// Returns the beginning of a text.
fn first_chars(text: &str, chars_max: usize) -> &str {
    // A text of fewer bytes has fewer characters.
    if text.len() <= chars_max {
        return text;
    }
    let end = text.char_indices().nth(chars_max);
    end.and_then(|(end, _)| text.get(..end)).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beginning_is_counted_in_characters() {
        for (text, chars_max, expected) in [
            ("", 3, ""),
            ("abc", 3, "abc"),
            ("abcd", 3, "abc"),
            ("äöü", 3, "äöü"),
            ("äöüß", 3, "äöü"),
            ("a🦀b🦀", 3, "a🦀b"),
            ("abc", 0, ""),
        ] {
            assert_eq!(first_chars(text, chars_max), expected, "{text}");
        }
    }
}
