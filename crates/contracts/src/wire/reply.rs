//! Reading a response: the calls it proposes, the text beside them, what it used.

use std::ops::Range;

use super::chat_stream::ChatStream;
use super::doc::{At, Doc, quoted};
use super::messages_stream::MessagesStream;
use super::request::WireRequest;
use super::responses_stream::ResponsesStream;
use super::{Wire, stray, strip};
use crate::contract::FinishReason;
use crate::cost::Usage;
use crate::gate::SUBSTITUTE;
use crate::json::Limits;
use crate::request::{ProposedCall, Response};

/// Why a response cannot be judged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    /// It has a form that two readers could read differently, or is too large: it is blocked as a whole.
    #[error("the response cannot be judged: {detail}")]
    Unreadable {
        /// What is wrong.
        detail: String,
    },
    /// The provider failed: the stream has no end, or says so.
    #[error("the provider failed: {detail}")]
    Provider {
        /// What is wrong.
        detail: String,
    },
}

impl ReplyError {
    pub(super) fn unreadable(detail: &str) -> Self {
        Self::Unreadable {
            detail: detail.to_owned(),
        }
    }

    pub(super) fn provider(detail: &str) -> Self {
        Self::Provider {
            detail: detail.to_owned(),
        }
    }
}

/// Bytes of a response as they arrive, up to the size that is judged.
#[derive(Debug, Clone, Default)]
pub struct Incoming {
    bytes: Vec<u8>,
    too_large: bool,
}

impl Incoming {
    /// Adds what arrived. Beyond the limit nothing more is kept, and the response will be refused.
    pub fn push(&mut self, chunk: &[u8]) {
        if self.bytes.len() + chunk.len() > Limits::MESSAGE.bytes_max {
            self.too_large = true;
            self.bytes = Vec::new();
        }
        if !self.too_large {
            self.bytes.extend_from_slice(chunk);
        }
    }

    /// Returns everything that arrived.
    ///
    /// # Errors
    /// It is larger than a response may be.
    pub fn whole(&self) -> Result<&[u8], ReplyError> {
        if self.too_large {
            return Err(ReplyError::unreadable("larger than allowed"));
        }
        Ok(&self.bytes)
    }
}

/// A response of a provider.
#[derive(Debug, Clone)]
pub struct Reply {
    form: Form,
    read: ParsedReply,
    /// The caller must not see the chunk with usage that only the session asked for.
    hides_usage: bool,
}

/// What is read from a response, whatever its form.
#[derive(Debug, Clone)]
pub(super) struct ParsedReply {
    pub(super) response: Response,
    /// Calls that the provider has already run.
    pub(super) hosted: Vec<ProposedCall>,
    pub(super) usage: Option<Usage>,
    pub(super) id: Option<String>,
}

#[derive(Debug, Clone)]
enum Form {
    /// The places of the calls among the items of the message.
    Body {
        wire: Wire,
        doc: Box<Doc>,
        places: Vec<usize>,
    },
    Chat(ChatStream),
    Messages(MessagesStream),
    Responses(ResponsesStream),
}

impl Reply {
    /// Reads a response to a request. `count_usage` is what the request was planned with.
    ///
    /// # Errors
    /// It cannot be judged, or the provider failed.
    pub fn read(
        request: &WireRequest,
        bytes: &[u8],
        is_sse: bool,
        count_usage: bool,
    ) -> Result<Self, ReplyError> {
        let text =
            std::str::from_utf8(bytes).map_err(|_| ReplyError::unreadable("not valid UTF-8"))?;
        let hides_usage = request.hides_usage(count_usage);
        let (form, read) = match (is_sse, request.wire) {
            (true, Wire::OpenAiChat) => {
                let (stream, read) = ChatStream::read(text, request)?;
                (Form::Chat(stream), read)
            }
            (true, Wire::OpenAiResponses) => {
                let (stream, read) = ResponsesStream::read(text)?;
                (Form::Responses(stream), read)
            }
            (true, Wire::AnthropicMessages) => {
                let (stream, read) = MessagesStream::read(text)?;
                (Form::Messages(stream), read)
            }
            (false, wire) => {
                let doc = Doc::read_reply(text)
                    .map_err(|error| ReplyError::unreadable(&error.to_string()))?;
                let (places, read) = body(request, &doc)?;
                let doc = Box::new(doc);
                (Form::Body { wire, doc, places }, read)
            }
        };
        let mut read = read;
        for call in &mut read.hosted {
            // Types of hosted tools carry versions that their calls do not.
            let mut offers = request.offers.iter();
            let offered = offers.find(|offer| offer.hosted && offer.name.starts_with(&call.name));
            if let Some(offer) = offered {
                call.name.clone_from(&offer.name);
            }
        }
        Ok(Self {
            form,
            read,
            hides_usage,
        })
    }

    /// Returns what rules see.
    pub fn response(&self) -> &Response {
        &self.read.response
    }

    /// Returns the calls that the provider has already run: counted, never stripped.
    pub fn hosted(&self) -> &[ProposedCall] {
        &self.read.hosted
    }

    /// Returns what the response used, if it says so.
    pub fn usage(&self) -> Option<Usage> {
        self.read.usage
    }

    /// Returns the provider's id of the response.
    pub fn id(&self) -> Option<&str> {
        self.read.id.as_deref()
    }

    /// Returns the response as it came, without what only the session asked for.
    pub fn whole(&self) -> Vec<u8> {
        self.written(&[], None)
    }

    /// Returns the response without some of its calls. When none is left, it ends as a text does.
    pub fn stripped(&self, removed: &[usize], empty: bool) -> Vec<u8> {
        let has_text = self
            .read
            .response
            .content
            .as_ref()
            .is_some_and(|text| !text.is_empty());
        let end = empty.then_some(if has_text {
            ReplyEnd::Text
        } else {
            ReplyEnd::Substitute
        });
        self.written(removed, end)
    }

    fn written(&self, removed: &[usize], end: Option<ReplyEnd>) -> Vec<u8> {
        let text = match &self.form {
            Form::Body { doc, .. } if removed.is_empty() => doc.text().to_owned(),
            Form::Body { wire, doc, places } => strip::body(*wire, doc, places, removed, end),
            Form::Chat(stream) => stream.write(removed, end, self.hides_usage),
            Form::Messages(stream) => stream.write(removed, end),
            Form::Responses(stream) => stream.write(removed, end),
        };
        text.into_bytes()
    }
}

/// How a response ends of which no call is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReplyEnd {
    /// With the text it has.
    Text,
    /// With a sentence of ours.
    Substitute,
}

/// The substituted sentence, as JSON.
pub(super) fn substitute() -> String {
    quoted(SUBSTITUTE)
}

fn body(request: &WireRequest, doc: &Doc) -> Result<(Vec<usize>, ParsedReply), ReplyError> {
    let root = doc.root();
    if root.get("error").is_some() && root.get("choices").is_none() {
        return Err(ReplyError::provider("the response is an error"));
    }
    let read = match request.wire {
        Wire::OpenAiChat => chat(request, doc),
        Wire::OpenAiResponses => responses(doc.root()),
        Wire::AnthropicMessages => messages(doc.root()),
    };
    let parts = read?;
    if doc.duplicate_outside(&parts.opaque) {
        return Err(ReplyError::unreadable("a member stands twice"));
    }
    match request.wire {
        Wire::OpenAiResponses => stray::check_responses(root, &parts.seen)?,
        Wire::OpenAiChat | Wire::AnthropicMessages => stray::check(root, &parts.seen)?,
    }
    Ok((parts.places, parts.read))
}

/// A message and where its parts stand.
#[derive(Debug)]
pub(super) struct Parts {
    /// The places of the calls among the items.
    pub(super) places: Vec<usize>,
    /// Where arguments stand whose content is judged with their call.
    pub(super) opaque: Vec<Range<usize>>,
    /// Where calls were read, also those that the provider has run.
    pub(super) seen: Vec<Range<usize>>,
    pub(super) read: ParsedReply,
}

fn missing(member: &str) -> ReplyError {
    ReplyError::unreadable(&format!("`{member}` is missing"))
}

fn chat(request: &WireRequest, doc: &Doc) -> Result<Parts, ReplyError> {
    let root = doc.root();
    let choices = root.get("choices").and_then(At::items);
    let choices = choices.ok_or_else(|| missing("choices"))?;
    let [choice] = choices.as_slice() else {
        return Err(ReplyError::unreadable("not exactly one choice"));
    };
    let message = choice.get("message").ok_or_else(|| missing("message"))?;
    let list = message.get("tool_calls");
    let items = match list {
        Some(list) => list.items().ok_or_else(|| missing("tool_calls"))?,
        None => Vec::new(),
    };
    let calls = items.into_iter().map(chat_call);
    let mut calls = calls.collect::<Result<Vec<ProposedCall>, ReplyError>>()?;
    let places = (0..calls.len()).collect();
    if message.get("function_call").is_some() {
        return Err(ReplyError::unreadable("`function_call` was not asked for"));
    }
    let finish = choice.get("finish_reason").and_then(At::str);
    let finish_reason = chat_finish(request, finish.as_deref(), !calls.is_empty());
    let content = message.get("content").and_then(super::request::joined_text);
    let read = ParsedReply {
        response: Response {
            finish_reason,
            content,
            calls: std::mem::take(&mut calls),
        },
        hosted: Vec::new(),
        usage: root.get("usage").and_then(chat_usage),
        id: text_of(root, "id"),
    };
    Ok(Parts {
        places,
        opaque: Vec::new(),
        seen: list.map(At::place).into_iter().collect(),
        read,
    })
}

pub(super) fn text_of(at: At<'_>, name: &str) -> Option<String> {
    at.get(name)?.str().map(|text| text.into_owned())
}

fn chat_call(item: At<'_>) -> Result<ProposedCall, ReplyError> {
    stray::check_chat_readings(item)?;
    let kind = text_of(item, "type");
    let (holder, arguments) = match kind.as_deref() {
        Some("custom") => {
            let holder = item.get("custom");
            let input = holder.and_then(|holder| text_of(holder, "input"));
            (holder, input.map(|input| custom_arguments(&input)))
        }
        // Some servers leave the type out.
        Some("function") | None => {
            let holder = item.get("function");
            (
                holder,
                holder.and_then(|holder| text_of(holder, "arguments")),
            )
        }
        Some(_) => (None, None),
    };
    Ok(ProposedCall {
        id: text_of(item, "id").unwrap_or_default(),
        name: holder
            .and_then(|holder| text_of(holder, "name"))
            .unwrap_or_default(),
        arguments: arguments.unwrap_or_default(),
    })
}

/// A tool that takes a text is judged as one with the argument `input`.
pub(super) fn custom_arguments(input: &str) -> String {
    format!(r#"{{"input":{}}}"#, quoted(input))
}

pub(super) fn chat_finish(
    request: &WireRequest,
    word: Option<&str>,
    has_calls: bool,
) -> FinishReason {
    match word {
        Some("tool_calls" | "function_call") => FinishReason::ToolCalls,
        // A forced call ends as a text does.
        Some("stop") if has_calls && request.forces_call() => FinishReason::ToolCalls,
        Some("stop") => FinishReason::Stop,
        Some("length") => FinishReason::Length,
        Some("content_filter") => FinishReason::ContentFilter,
        Some(_) | None => FinishReason::Other,
    }
}

/// Cached tokens are part of the count of OpenAI.
pub(super) fn chat_usage(usage: At<'_>) -> Option<Usage> {
    open_ai_usage(
        usage,
        [
            "prompt_tokens",
            "completion_tokens",
            "prompt_tokens_details",
        ],
    )
}

fn open_ai_usage(usage: At<'_>, [input, output, details]: [&str; 3]) -> Option<Usage> {
    let cached = match usage.get(details).and_then(|at| at.get("cached_tokens")) {
        Some(cached) => cached.u64()?,
        None => 0,
    };
    Some(Usage {
        input: usage.get(input)?.u64()?.checked_sub(cached)?,
        output: usage.get(output)?.u64()?,
        cache_read: cached,
        cache_write: 0,
    })
}

/// What an item of a response is.
pub(super) enum Item {
    Text(String),
    /// A call that the application would run, and the place of arguments that are not a text.
    Call(ProposedCall, Option<Range<usize>>),
    /// A call that the provider has already run.
    Hosted(ProposedCall),
    Other,
}

/// Reads the items of a message; how it ended and what was used is left to the caller.
fn items_of(
    root: At<'_>,
    member: &str,
    read: impl Fn(At<'_>) -> Item,
) -> Result<Parts, ReplyError> {
    let items = root.get(member).and_then(At::items);
    let items = items.ok_or_else(|| missing(member))?;
    let (mut places, mut opaque, mut seen) = (Vec::new(), Vec::new(), Vec::new());
    let (mut calls, mut hosted, mut texts) = (Vec::new(), Vec::new(), Vec::new());
    for (index, item) in items.into_iter().enumerate() {
        match read(item) {
            Item::Text(text) => texts.push(text),
            Item::Call(call, place) => {
                stray::check_readings(item)?;
                seen.push(item.place());
                calls.push(call);
                places.push(index);
                opaque.extend(place);
            }
            Item::Hosted(call) => {
                stray::check_readings(item)?;
                seen.push(item.place());
                hosted.push(call);
            }
            Item::Other => {}
        }
    }
    let read = ParsedReply {
        response: Response {
            finish_reason: FinishReason::Other,
            content: (!texts.is_empty()).then(|| texts.concat()),
            calls,
        },
        hosted,
        usage: None,
        id: text_of(root, "id"),
    };
    Ok(Parts {
        places,
        opaque,
        seen,
        read,
    })
}

pub(super) fn responses(root: At<'_>) -> Result<Parts, ReplyError> {
    let mut parts = items_of(root, "output", responses_item)?;
    let status = root.get("status").and_then(At::str);
    let why = root
        .get("incomplete_details")
        .and_then(|details| details.get("reason")?.str());
    parts.read.response.finish_reason = match (status.as_deref(), why.as_deref()) {
        (Some("completed"), _) if parts.read.response.calls.is_empty() => FinishReason::Stop,
        (Some("completed"), _) => FinishReason::ToolCalls,
        (Some("incomplete"), Some("max_output_tokens")) => FinishReason::Length,
        (Some("incomplete"), Some("content_filter")) => FinishReason::ContentFilter,
        (_, _) => FinishReason::Other,
    };
    parts.read.usage = root.get("usage").and_then(|usage| {
        open_ai_usage(
            usage,
            ["input_tokens", "output_tokens", "input_tokens_details"],
        )
    });
    Ok(parts)
}

pub(super) fn responses_item(item: At<'_>) -> Item {
    let kind = text_of(item, "type").unwrap_or_default();
    let call = |name: String, arguments: Option<String>| ProposedCall {
        id: text_of(item, "call_id")
            .or_else(|| text_of(item, "id"))
            .unwrap_or_default(),
        name,
        arguments: arguments.unwrap_or_default(),
    };
    let raw = |name: &str, member: &str| {
        let value = item.get(member);
        let arguments = value.map(|value| value.raw().to_owned());
        Item::Call(call(name.to_owned(), arguments), value.map(At::place))
    };
    match kind.as_str() {
        "message" => {
            let parts = item.get("content").and_then(At::items).unwrap_or_default();
            let texts = parts.into_iter().filter_map(|part| {
                let is_text = text_of(part, "type").as_deref() == Some("output_text");
                let text = part.get("text").and_then(At::shown)?;
                is_text.then(|| text.into_owned())
            });
            Item::Text(texts.collect())
        }
        "reasoning" | "compaction" | "mcp_list_tools" => Item::Other,
        "function_call" => {
            let name = text_of(item, "name").unwrap_or_default();
            let set = text_of(item, "namespace");
            let name = set.map_or(name.clone(), |set| format!("{set}.{name}"));
            Item::Call(call(name, text_of(item, "arguments")), None)
        }
        "custom_tool_call" => {
            let name = text_of(item, "name").unwrap_or_default();
            let input = text_of(item, "input").map(|input| custom_arguments(&input));
            Item::Call(call(name, input), None)
        }
        // Governed by the contract of the tool that was offered.
        "mcp_approval_request" => {
            Item::Call(call("mcp".to_owned(), text_of(item, "arguments")), None)
        }
        "local_shell_call" => raw("local_shell", "action"),
        "shell_call" => raw("shell", "action"),
        "apply_patch_call" => raw("apply_patch", "operation"),
        "web_search_call"
        | "file_search_call"
        | "code_interpreter_call"
        | "image_generation_call"
        | "mcp_call"
        | "tool_search_call"
        | "tool_search_output"
        | "program" => {
            let name = kind.strip_suffix("_call").unwrap_or(&kind);
            Item::Hosted(call(name.to_owned(), Some("{}".to_owned())))
        }
        "computer_call" => match item.get("actions") {
            Some(actions) => {
                let arguments = format!(r#"{{"actions":{}}}"#, actions.raw());
                let call = call("computer".to_owned(), Some(arguments));
                Item::Call(call, Some(actions.place()))
            }
            None => raw("computer", "action"),
        },
        // What nobody knows is a call of a tool that nobody offered.
        _ => raw(&kind, "action"),
    }
}

pub(super) fn messages(root: At<'_>) -> Result<Parts, ReplyError> {
    let mut parts = items_of(root, "content", block_of)?;
    let stop = root.get("stop_reason").and_then(At::str);
    parts.read.response.finish_reason = stop_reason(stop.as_deref());
    parts.read.usage = root.get("usage").and_then(|usage| messages_usage(&[usage]));
    Ok(parts)
}

/// Reads a block of an Anthropic message.
pub(super) fn block_of(block: At<'_>) -> Item {
    let kind = text_of(block, "type").unwrap_or_default();
    let call = |name: String, input: Option<At<'_>>| ProposedCall {
        id: text_of(block, "id").unwrap_or_default(),
        name,
        arguments: input
            .map(|input| input.raw().to_owned())
            .unwrap_or_default(),
    };
    let name = || text_of(block, "name").unwrap_or_default();
    match kind.as_str() {
        "text" => Item::Text(
            block
                .get("text")
                .and_then(At::shown)
                .unwrap_or_default()
                .into_owned(),
        ),
        "thinking" | "redacted_thinking" | "compaction" | "container_upload" => Item::Other,
        "tool_use" => {
            let input = block.get("input");
            Item::Call(call(name(), input), input.map(At::place))
        }
        "server_tool_use" | "mcp_tool_use" => {
            let mut call = call(name(), None);
            "{}".clone_into(&mut call.arguments);
            Item::Hosted(call)
        }
        kind if kind.ends_with("_tool_result") => Item::Other,
        _ => Item::Call(call(kind, block.get("input")), None),
    }
}

pub(super) fn stop_reason(word: Option<&str>) -> FinishReason {
    match word {
        Some("tool_use") => FinishReason::ToolCalls,
        Some("end_turn" | "stop_sequence") => FinishReason::Stop,
        Some("max_tokens" | "model_context_window_exceeded") => FinishReason::Length,
        Some("refusal") => FinishReason::ContentFilter,
        Some(_) | None => FinishReason::Other,
    }
}

/// Cached tokens are counted beside the input. Of several reports the last that says something counts.
pub(super) fn messages_usage(reports: &[At<'_>]) -> Option<Usage> {
    let last = |name: &str| reports.iter().rev().find_map(|report| report.get(name));
    let optional = |name: &str| last(name).map_or(Some(0), At::u64);
    Some(Usage {
        input: last("input_tokens")?.u64()?,
        output: last("output_tokens")?.u64()?,
        cache_read: optional("cache_read_input_tokens")?,
        cache_write: optional("cache_creation_input_tokens")?,
    })
}
