//! Reading a request: tools, choice, results of earlier calls, and members that cannot be judged.
//!
//! Reading never fails. A body that cannot be read is a request with an unsupported member, so that it is refused in
//! its turn, after checks that come earlier.

use std::collections::BTreeSet;

use super::Wire;
use super::choice;
use super::doc::{At, Doc, KnownList};
use super::offer::{self, Offer};
use crate::event::ShownOutput;
use crate::json::{self, Limits, Numbers};
use crate::request::{OfferedTool, Request, ToolChoice};
use crate::value::Value;

/// A request of a provider's client.
#[derive(Debug, Clone)]
pub struct WireRequest {
    pub(super) wire: Wire,
    /// None: the bytes are not JSON within limits.
    pub(super) doc: Option<Doc>,
    /// What could not be read: where nothing is blocked it goes out as it is.
    pub(super) unread: Vec<u8>,
    pub(super) offers: Vec<Offer>,
    request: Request,
    outputs: Vec<ShownOutput>,
    stream: bool,
    wants_usage: bool,
    /// Where `tools` begins: places in offers count from there.
    tools_at: usize,
    /// The list of tools, for the requests after this one.
    list: Option<KnownList>,
    /// Whether the tools are those of the request before.
    is_known: bool,
}

/// The tools of an earlier request. Most requests of a program offer the same ones, and they are the longest part.
#[derive(Debug)]
pub struct KnownTools {
    wire: Wire,
    list: KnownList,
    offers: Vec<Offer>,
    tools: Vec<OfferedTool>,
}

/// Outputs above this are not taken in.
const OUTPUT_BYTES_MAX: usize = Limits::OUTPUT.bytes_max;

impl WireRequest {
    /// Reads a request. `created` holds the ids of responses that this session released whole.
    pub fn read(wire: Wire, body: &[u8], created: &BTreeSet<String>) -> Self {
        Self::read_after(wire, body, created, None)
    }

    /// Reads a request after another one, whose tools need not be read again if they are the same.
    pub fn read_after(
        wire: Wire,
        body: &[u8],
        created: &BTreeSet<String>,
        known: Option<KnownTools>,
    ) -> Self {
        let known = known.filter(|known| known.wire == wire);
        let list = known.as_ref().map(|known| &known.list);
        let text = std::str::from_utf8(body).ok();
        let doc =
            text.and_then(|text| Doc::read_knowing(text, Limits::MESSAGE, "tools", list).ok());
        let Some(doc) = doc.filter(|doc| doc.root().is_object()) else {
            return Self::unreadable(wire, body);
        };
        let root = doc.root();
        let mut unsupported = Vec::new();
        if doc.duplicate_outside(&[]) {
            unsupported.push("body: a member stands twice".to_owned());
        }
        let model = root.get("model").and_then(At::str);
        if model.is_none() {
            unsupported.push("model".to_owned());
        }
        let stream = root.get("stream");
        if stream.is_some_and(|value| value.bool().is_none()) {
            unsupported.push("stream".to_owned());
        }
        unsupported.extend(members(wire, root, created));
        let tools_at = root.get("tools").map_or(0, |tools| tools.place().start);
        let known = known.filter(|known| doc.has(&known.list));
        let is_known = known.is_some();
        let (list, offers, tools) = match known {
            Some(known) => (Some(known.list), known.offers, known.tools),
            None => match offer::read(wire, root) {
                Ok(offers) => {
                    let tools = offers.iter().map(Offer::tool).collect();
                    (doc.known(), offers, tools)
                }
                Err(member) => {
                    unsupported.push(member);
                    (None, Vec::new(), Vec::new())
                }
            },
        };
        let choice = choice::read(wire, root).unwrap_or_else(|| {
            unsupported.push("tool_choice".to_owned());
            ToolChoice::Auto
        });
        let asks_usage = root
            .get("stream_options")
            .and_then(|options| options.get("include_usage")?.bool());
        let request = Request {
            provider: wire.provider().to_owned(),
            model: model.unwrap_or_default().into_owned(),
            tools,
            choice,
            unsupported: unsupported.into_iter().next(),
            view: Value::Null,
        };
        let outputs = outputs(wire, root);
        Self {
            wire,
            offers,
            outputs,
            stream: stream.and_then(At::bool).unwrap_or(false),
            wants_usage: asks_usage.unwrap_or(false),
            tools_at,
            list,
            is_known,
            request,
            doc: Some(doc),
            unread: Vec::new(),
        }
    }

    /// Says whether the tools are those of the request before.
    pub fn has_known_tools(&self) -> bool {
        self.is_known
    }

    /// Returns the tools for the next request.
    pub fn into_tools(self) -> Option<KnownTools> {
        Some(KnownTools {
            wire: self.wire,
            list: self.list?,
            offers: self.offers,
            tools: self.request.tools,
        })
    }

    /// Says whether the request could be read at all.
    pub fn is_read(&self) -> bool {
        self.doc.is_some()
    }

    fn unreadable(wire: Wire, body: &[u8]) -> Self {
        Self {
            wire,
            doc: None,
            unread: body.to_vec(),
            offers: Vec::new(),
            request: Request {
                provider: wire.provider().to_owned(),
                model: String::new(),
                tools: Vec::new(),
                choice: ToolChoice::Auto,
                unsupported: Some("body".to_owned()),
                view: Value::Null,
            },
            outputs: Vec::new(),
            stream: false,
            wants_usage: false,
            tools_at: 0,
            list: None,
            is_known: false,
        }
    }

    /// Returns the wire format.
    pub fn wire(&self) -> Wire {
        self.wire
    }

    /// Returns what rules see.
    pub fn request(&self) -> &Request {
        &self.request
    }

    /// Returns the results of earlier calls that the request carries.
    pub fn outputs(&self) -> &[ShownOutput] {
        &self.outputs
    }

    /// Returns the request as it came; empty when it is not JSON.
    pub fn text(&self) -> &str {
        self.doc.as_ref().map_or("", Doc::text)
    }

    /// Says whether a stream was asked for.
    pub fn is_stream(&self) -> bool {
        self.stream
    }

    /// Says whether the caller asked for usage in a chat stream.
    pub(super) fn wants_usage(&self) -> bool {
        self.wants_usage
    }

    /// Says whether the request makes the model call a tool.
    pub(super) fn forces_call(&self) -> bool {
        match &self.request.choice {
            ToolChoice::Required | ToolChoice::Named(_) => true,
            // A list may be required too; what matters is only that a call was wanted.
            ToolChoice::AllowedOnly(_) => {
                let root = self.doc.as_ref().map(Doc::root);
                root.is_some_and(|root| choice::mode_is_required(self.wire, root))
            }
            ToolChoice::Auto | ToolChoice::None => false,
        }
    }

    /// Reads the schemas of tools, so that rules see them. It is done for those that are called, or shown to somebody.
    pub fn read_schemas(&mut self, is_wanted: impl Fn(&str) -> bool) {
        let text = self.doc.as_ref().map_or("", Doc::text);
        for (offer, tool) in self.offers.iter().zip(&mut self.request.tools) {
            let Some(place) = offer.schema.clone().filter(|_| tool.schema.is_none()) else {
                continue;
            };
            if is_wanted(&offer.name) {
                let place = self.tools_at + place.start..self.tools_at + place.end;
                let raw = text.get(place).unwrap_or_default();
                let schema = json::read(raw, Limits::MESSAGE, Numbers::Any);
                // A schema that cannot be read exactly would be one that silently asks nothing.
                tool.schema = Some(schema.unwrap_or(Value::Bool(false)));
            }
        }
    }

    /// Takes the planned body as what input invariants look at.
    pub fn look_at(&mut self, planned: &[u8]) {
        self.request.view = view(self.wire, planned);
    }
}

/// A request that a program hands in as it would send it.
#[derive(Debug)]
pub struct RequestView {
    /// What input invariants look at: `{ provider, model, system, messages, tools }`.
    pub view: Value,
    /// A member that cannot be judged, if there is one.
    pub unsupported: Option<String>,
    /// The tools that the provider runs inside the request.
    pub hosted: Vec<String>,
}

/// Reads a request where none of the responses that it may refer to is known.
pub fn view_request(wire: Wire, body: &[u8]) -> RequestView {
    let read = WireRequest::read(wire, body, &BTreeSet::new());
    let hosted = read.request.tools.into_iter().filter(|tool| tool.hosted);
    RequestView {
        view: view(wire, body),
        unsupported: read.request.unsupported,
        hosted: hosted.map(|tool| tool.name).collect(),
    }
}

/// Returns `{ provider, model, system, messages, tools }` of a body as it is sent.
fn view(wire: Wire, body: &[u8]) -> Value {
    let text = std::str::from_utf8(body).ok();
    let doc = text.and_then(|text| Doc::read(text, Limits::MESSAGE).ok());
    let Some(doc) = doc else {
        return Value::Null;
    };
    let root = doc.root();
    let exact = |at: Option<At<'_>>| at.map_or(Value::Null, value);
    let messages = match wire {
        Wire::OpenAiChat | Wire::AnthropicMessages => exact(root.get("messages")),
        Wire::OpenAiResponses => match root.get("input") {
            // A text is short for one message.
            Some(input) if input.is_string() => {
                let message = [("role", Value::from("user")), ("content", value(input))];
                let message = message.map(|(name, value)| (name.to_owned(), value));
                Value::Array(vec![Value::Object(message.into())])
            }
            input => exact(input),
        },
    };
    let offers = offer::read(wire, root).unwrap_or_default();
    let names = offers.iter().map(|offer| Value::from(offer.name.as_str()));
    let members = [
        ("provider", Value::from(wire.provider())),
        ("model", exact(root.get("model"))),
        (
            "system",
            system(wire, root).map_or(Value::Null, Value::from),
        ),
        ("messages", messages),
        (
            "tools",
            root.get("tools")
                .map_or(Value::Null, |_| Value::Array(names.collect())),
        ),
    ];
    Value::Object(members.map(|(name, value)| (name.to_owned(), value)).into())
}

fn value(at: At<'_>) -> Value {
    json::read(at.raw(), Limits::MESSAGE, Numbers::Any).unwrap_or(Value::Null)
}

fn system(wire: Wire, root: At<'_>) -> Option<String> {
    match wire {
        Wire::OpenAiChat => {
            let messages = root.get("messages")?.items()?;
            let system = messages.into_iter().filter(|message| {
                let role = message.get("role").and_then(At::str);
                matches!(role.as_deref(), Some("system" | "developer"))
            });
            let texts: Vec<String> = system
                .filter_map(|message| joined_text(message.get("content")?))
                .collect();
            (!texts.is_empty()).then(|| texts.join("\n"))
        }
        Wire::OpenAiResponses => joined_text(root.get("instructions")?),
        Wire::AnthropicMessages => joined_text(root.get("system")?),
    }
}

/// Returns a text, or the joined texts of a list of parts.
pub(super) fn joined_text(content: At<'_>) -> Option<String> {
    if let Some(text) = content.shown() {
        return Some(text.into_owned());
    }
    let parts = content.items()?;
    let texts: Vec<String> = parts
        .into_iter()
        .filter_map(|part| Some(part.get("text")?.shown()?.into_owned()))
        .collect();
    (!texts.is_empty()).then(|| texts.concat())
}

/// Members that the session cannot judge, by their names.
fn members(wire: Wire, root: At<'_>, created: &BTreeSet<String>) -> Vec<String> {
    let mut found = Vec::new();
    let present = |name: &&str| root.get(name).is_some();
    let refused: &[&str] = match wire {
        // A search that the provider makes inside the request happens before any verdict.
        Wire::OpenAiChat => &["functions", "function_call", "web_search_options"],
        Wire::OpenAiResponses => &["prompt", "conversation"],
        Wire::AnthropicMessages => &["thread", "mcp_servers"],
    };
    found.extend(
        refused
            .iter()
            .filter(|name| present(name))
            .map(ToString::to_string),
    );
    match wire {
        Wire::OpenAiChat => {
            if root.get("n").is_some_and(|n| n.raw() != "1") {
                found.push("n".to_owned());
            }
            if root.get("messages").and_then(At::items).is_none() {
                found.push("messages".to_owned());
            }
        }
        Wire::OpenAiResponses => {
            if root
                .get("background")
                .is_some_and(|value| value.bool() != Some(false))
            {
                found.push("background".to_owned());
            }
            if let Some(id) = root.get("previous_response_id")
                && !id.str().is_some_and(|id| created.contains(id.as_ref()))
            {
                found.push("previous_response_id".to_owned());
            }
            let items = root.get("input").and_then(At::items).unwrap_or_default();
            if items.into_iter().any(changes_tools) {
                found.push("input".to_owned());
            }
        }
        Wire::AnthropicMessages => {
            let Some(messages) = root.get("messages").and_then(At::items) else {
                found.push("messages".to_owned());
                return found;
            };
            let mut blocks = messages.into_iter().flat_map(|message| {
                message
                    .get("content")
                    .and_then(At::items)
                    .unwrap_or_default()
            });
            if blocks.any(changes_tools) {
                found.push("messages".to_owned());
            }
        }
    }
    found
}

/// Says whether an item of the conversation brings or takes tools: it would do so behind the list that was narrowed.
fn changes_tools(item: At<'_>) -> bool {
    let kind = item.get("type").and_then(At::str);
    let kind = kind.as_deref().unwrap_or_default();
    let by_name = kind.contains("tool_addition")
        || kind.contains("tool_removal")
        || kind.contains("additional_tools");
    // What a search for tools or a list of a remote server answered is a record, not an offer.
    let record = ["mcp_list_tools", "tool_search_output"].contains(&kind);
    by_name || (!record && item.get("tools").is_some())
}

fn outputs(wire: Wire, root: At<'_>) -> Vec<ShownOutput> {
    let seen = |id: Option<At<'_>>, text: Option<String>| {
        let (call_id, text) = (id?.str()?.into_owned(), text?);
        (text.len() <= OUTPUT_BYTES_MAX).then_some(ShownOutput { call_id, text })
    };
    let list = |name: &str| root.get(name).and_then(At::items).unwrap_or_default();
    match wire {
        Wire::OpenAiChat => {
            let results = list("messages")
                .into_iter()
                .filter(|message| message.get("role").and_then(At::str).as_deref() == Some("tool"));
            let outputs = results.filter_map(|message| {
                seen(
                    message.get("tool_call_id"),
                    joined_text(message.get("content")?),
                )
            });
            outputs.collect()
        }
        Wire::OpenAiResponses => {
            let results = list("input").into_iter().filter(|item| {
                let kind = item.get("type").and_then(At::str);
                kind.is_some_and(|kind| kind.ends_with("_call_output"))
            });
            let outputs = results.filter_map(|item| {
                let output = item.get("output")?;
                let text = joined_text(output).or_else(|| Some(output.raw().to_owned()));
                seen(item.get("call_id"), text)
            });
            outputs.collect()
        }
        Wire::AnthropicMessages => {
            let blocks = list("messages").into_iter().flat_map(|message| {
                message
                    .get("content")
                    .and_then(At::items)
                    .unwrap_or_default()
            });
            let results = blocks.filter(|block| {
                // A failure is not an output: what it says must satisfy nothing.
                let failed = block.get("is_error").and_then(At::bool) == Some(true);
                block.get("type").and_then(At::str).as_deref() == Some("tool_result") && !failed
            });
            let outputs = results.filter_map(|block| {
                seen(block.get("tool_use_id"), joined_text(block.get("content")?))
            });
            outputs.collect()
        }
    }
}

impl Offer {
    fn tool(&self) -> OfferedTool {
        OfferedTool {
            name: self.name.clone(),
            schema: None,
            hosted: self.hosted,
        }
    }
}
