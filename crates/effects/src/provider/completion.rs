//! A completion as it grows: text, tool calls, usage. Without the reasoning that some providers send along.

use canon::Value;
use runs::workflow::SAFE_INTEGER_MAX;
use serde_json::json;

use crate::prices::Usage;

/// How many bytes of text are taken for a token when a provider does not count.
const BYTES_PER_TOKEN: u64 = 4;

/// Marks around reasoning that some models write into their text.
const THINK: (&str, &str) = ("<think>", "</think>");

/// What a model has said so far.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Completion {
    pub(crate) id: String,
    /// The id of the HTTP exchange, for the provider's support.
    pub(crate) request_id: Option<String>,
    pub(crate) model: String,
    pub(crate) calls: Vec<ToolCall>,
    pub(crate) finish_reason: Option<String>,
    pub(crate) usage: Option<Usage>,
    /// What the provider told of its usage, when that cannot be counts of tokens.
    pub(crate) reported: Option<Value>,
    pub(super) text: String,
    pub(super) filter: Filter,
}

/// A tool that the model wants called.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ToolCall {
    pub(crate) id: String,
    pub(crate) name: String,
    /// JSON text as the model wrote it, well-formed or not.
    pub(crate) arguments: String,
}

impl Completion {
    /// Adds text and returns what of it may be shown.
    pub(crate) fn push_text(&mut self, piece: &str) -> String {
        let shown = self.filter.push(piece);
        self.text.push_str(&shown);
        shown
    }

    /// Ends the text and returns what was held back for a look at what follows.
    pub(crate) fn end_text(&mut self) -> String {
        let rest = self.filter.finish();
        self.text.push_str(&rest);
        rest
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Returns the tool call at a place, making it when it is new.
    pub(crate) fn call_at(&mut self, index: usize) -> Option<&mut ToolCall> {
        if index == self.calls.len() {
            self.calls.push(ToolCall::default());
        }
        self.calls.get_mut(index)
    }

    /// Takes the counts that a provider told, if it told any.
    pub(crate) fn count(&mut self, reported: &Value, usage: Result<Option<Usage>, NotACount>) {
        match usage {
            Ok(Some(usage)) if self.reported.is_none() => self.usage = Some(usage),
            Ok(_) => {}
            Err(NotACount) => {
                self.usage = None;
                self.reported = Some(reported.clone());
            }
        }
    }

    /// Returns the tokens: as counted by the provider, or estimated so that limits still mean something.
    pub(crate) fn usage_or_estimate(&self, request: &Value) -> Usage {
        self.usage.unwrap_or_else(|| {
            let written = self.text.len()
                + self
                    .calls
                    .iter()
                    .map(|call| call.name.len() + call.arguments.len())
                    .sum::<usize>();
            let read = [request.get("messages"), request.get("tools")]
                .into_iter()
                .flatten()
                .map(|part| part.to_string().len())
                .sum();
            Usage {
                input: tokens(read),
                output: tokens(written),
                ..Usage::default()
            }
        })
    }

    /// Returns the common chat-completion shape.
    pub(crate) fn into_value(self, request: &Value) -> Value {
        let counted = self.usage.is_some();
        let usage = self.usage_or_estimate(request);
        let mut shown_usage = json!({
            "prompt_tokens": usage.input,
            "completion_tokens": usage.output,
            "total_tokens": usage.input.saturating_add(usage.output),
        });
        if !counted && let Some(members) = shown_usage.as_object_mut() {
            members.insert("estimated".to_owned(), true.into());
            members.extend(
                self.reported
                    .map(|reported| ("reported".to_owned(), reported)),
            );
        }
        let content = match (self.text.is_empty(), self.calls.is_empty()) {
            (true, false) => Value::Null,
            _ => Value::String(self.text),
        };
        let mut message = json!({"role": "assistant", "content": content});
        if !self.calls.is_empty()
            && let Some(members) = message.as_object_mut()
        {
            let calls = self.calls.into_iter().enumerate().map(|(index, call)| {
                let id = match call.id.is_empty() {
                    true => format!("call_{index}"),
                    false => call.id,
                };
                let function = json!({"name": call.name, "arguments": call.arguments});
                json!({"id": id, "type": "function", "function": function})
            });
            members.insert("tool_calls".to_owned(), calls.collect());
        }
        json!({
            "id": self.id,
            "object": "chat.completion",
            "model": self.model,
            "choices": [{
                "index": 0,
                "finish_reason": self.finish_reason.unwrap_or_else(|| "stop".to_owned()),
                "message": message,
            }],
            "usage": shown_usage,
        })
    }
}

/// A provider told a number of tokens that cannot be one: negative, broken, beyond what every reader reads alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NotACount;

/// Reads a count of tokens; none when the provider does not tell it.
pub(crate) fn count(usage: &Value, path: &str) -> Result<Option<u64>, NotACount> {
    match usage.pointer(path) {
        None | Some(Value::Null) => Ok(None),
        Some(told) => told
            .as_u64()
            .filter(|count| *count <= SAFE_INTEGER_MAX)
            .map(Some)
            .ok_or(NotACount),
    }
}

/// Adds counts up.
pub(crate) fn total<const N: usize>(counts: [u64; N]) -> Result<u64, NotACount> {
    let sum = counts.into_iter().fold(0, u64::saturating_add);
    (sum <= SAFE_INTEGER_MAX).then_some(sum).ok_or(NotACount)
}

fn tokens(bytes: usize) -> u64 {
    u64::try_from(bytes)
        .unwrap_or(u64::MAX)
        .div_ceil(BYTES_PER_TOKEN)
}

/// Drops reasoning that a model writes at the beginning of its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Filter {
    /// Too little has come to tell.
    Beginning(String),
    /// Inside reasoning; what could be the beginning of its end.
    Inside(String),
    /// The answer.
    Through,
}

impl Default for Filter {
    fn default() -> Self {
        Filter::Beginning(String::new())
    }
}

impl Filter {
    fn push(&mut self, piece: &str) -> String {
        match self {
            Filter::Through => piece.to_owned(),
            Filter::Beginning(seen) => {
                seen.push_str(piece);
                let begun = seen.trim_start();
                if let Some(rest) = begun.strip_prefix(THINK.0) {
                    let rest = rest.to_owned();
                    *self = Filter::Inside(String::new());
                    return self.push(&rest);
                }
                if THINK.0.starts_with(begun) {
                    return String::new();
                }
                let shown = std::mem::take(seen);
                *self = Filter::Through;
                shown
            }
            Filter::Inside(seen) => {
                seen.push_str(piece);
                if let Some((_, rest)) = seen.split_once(THINK.1) {
                    let rest = rest.trim_start().to_owned();
                    *self = Filter::Through;
                    return rest;
                }
                let mut keep = seen.len().saturating_sub(THINK.1.len());
                while !seen.is_char_boundary(keep) {
                    keep -= 1;
                }
                seen.drain(..keep);
                String::new()
            }
        }
    }

    fn finish(&mut self) -> String {
        match std::mem::replace(self, Filter::Through) {
            Filter::Beginning(seen) => seen,
            Filter::Inside(_) | Filter::Through => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pieces: &[&str], expected: &str) {
        let mut completion = Completion::default();
        let mut shown: String = pieces
            .iter()
            .map(|piece| completion.push_text(piece))
            .collect();
        shown.push_str(&completion.end_text());
        assert_eq!(shown, expected, "{pieces:?}");
        assert_eq!(completion.text(), expected, "{pieces:?}");
    }

    /// AP-TAX-04.
    #[test]
    fn reasoning_written_into_the_text_is_dropped() {
        check(&["<think>plan ü</think>\n\nanswer"], "answer");
        check(&[" <th", "ink>pl", "an</thi", "nk>", "answer"], "answer");
        check(&["<think>never ends"], "");
        check(&["plain"], "plain");
        check(&["<", "b>bold"], "<b>bold");
        check(&["<thi"], "<thi");
        check(&["say <think>this</think>"], "say <think>this</think>");
    }

    #[test]
    fn an_answer_without_a_count_is_estimated_and_says_so() {
        let mut completion = Completion::default();
        completion.push_text("12345678");
        let value = completion.into_value(&json!({"messages": ["123456"]}));
        assert_eq!(
            value["usage"],
            json!({"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5, "estimated": true})
        );
    }
}
