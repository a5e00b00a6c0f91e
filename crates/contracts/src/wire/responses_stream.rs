//! A stream of the Responses format: its last event holds the whole response, and everything before must agree with it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::doc::{At, Doc, Edits};
use super::reply::{
    Item, ParsedReply, ReplyEnd, ReplyError, custom_arguments, responses, responses_item,
    substitute, text_of,
};
use super::sse::{self, Change, Stream};
use super::{stray, strip};
use crate::request::ProposedCall;

#[derive(Debug, Clone)]
pub(super) struct ResponsesStream {
    stream: Stream,
    /// The output index of each call, in order.
    places: Vec<usize>,
    end: usize,
}

/// What the stream said about an output item before the end.
#[derive(Debug, Default)]
struct StreamedItem {
    added: Option<ItemContent>,
    done: Option<ItemContent>,
    /// Arguments, or a text, in pieces.
    pieces: Option<String>,
    finished: Option<String>,
    /// The name that came with the whole arguments.
    named: Option<String>,
    text: Option<String>,
    /// Texts that came whole, by the number of their part.
    texts: BTreeMap<usize, String>,
    /// Commands of a shell, by their number: how each began, its pieces, and the whole.
    commands: BTreeMap<usize, Command>,
}

#[derive(Debug, Default)]
struct Command {
    begun: Option<String>,
    pieces: String,
    finished: Option<String>,
}

/// What an item shows: a call, a text, or nothing that is held against the end.
#[derive(Debug, PartialEq, Eq)]
enum ItemContent {
    Call(ProposedCall),
    Text(String),
    Nothing,
}

impl ResponsesStream {
    pub(super) fn read(text: &str) -> Result<(Self, ParsedReply), ReplyError> {
        let stream = Stream::read(text)?;
        let mut told: BTreeMap<usize, StreamedItem> = BTreeMap::new();
        let mut ids: BTreeMap<String, usize> = BTreeMap::new();
        let mut last = None;
        for (index, event) in stream.events().iter().enumerate() {
            let Some(doc) = event.doc() else {
                continue;
            };
            let root = doc.root();
            let kind = event.kind()?;
            if last.is_some() {
                return Err(ReplyError::unreadable("something after the end"));
            }
            let (opaque, seen) = calls_in(root, &kind)?;
            if doc.duplicate_outside(&opaque) {
                return Err(ReplyError::unreadable("a member stands twice"));
            }
            stray::check_responses(root, &seen)?;
            match kind.as_str() {
                "error" | "response.failed" => {
                    return Err(ReplyError::provider("the stream carries an error"));
                }
                "response.completed" | "response.incomplete" => last = Some((index, doc)),
                _ => {
                    note(root, &kind, &mut told)?;
                    if let Some((id, index)) = id_of_call(root, &kind).zip(output_index(root)) {
                        place_once(&mut ids, id, index)?;
                    }
                }
            }
        }
        let Some((end, doc)) = last else {
            return Err(ReplyError::provider("the stream has no end"));
        };
        let response = doc.root().get("response");
        let response = response.ok_or_else(|| ReplyError::unreadable("no response at the end"))?;
        let parts = responses(response)?;
        let items = response
            .get("output")
            .and_then(At::items)
            .unwrap_or_default();
        for (index, told) in &told {
            told.compare(items.get(*index).copied())?;
        }
        for (index, item) in items.iter().enumerate() {
            if let Some(id) = as_call(*item).and_then(|_| text_of(*item, "id")) {
                place_once(&mut ids, id, index)?;
            }
        }
        let stream = Self {
            places: parts.places,
            end,
            stream,
        };
        Ok((stream, parts.read))
    }

    pub(super) fn write(&self, removed: &[usize], end: Option<ReplyEnd>) -> String {
        let calls: BTreeSet<usize> = removed
            .iter()
            .filter_map(|call| self.places.get(*call).copied())
            .collect();
        let last = self
            .stream
            .events()
            .get(self.end)
            .and_then(|event| event.doc());
        let items = last
            .and_then(|doc| doc.root().get("response")?.get("output")?.items())
            .unwrap_or_default();
        let gone = strip::with_reasoning(&items, &calls);
        self.stream.write(|index, event| {
            let Some(doc) = event.doc().filter(|_| !removed.is_empty()) else {
                return Change::Keep;
            };
            let mut edits = Edits::default();
            if let Some(place) = output_index(doc.root()) {
                if gone.contains(&place) {
                    return Change::Drop;
                }
                let before = gone.iter().filter(|other| **other < place).count();
                if let Some(number) = doc.root().get("output_index").filter(|_| before > 0) {
                    edits.replace(number.place(), (place - before).to_string());
                }
            }
            let mut before = String::new();
            if index == self.end
                && let Some(response) = doc.root().get("response")
            {
                strip::responses(response, &mut edits, &calls, end);
                if end == Some(ReplyEnd::Substitute) {
                    before = substitute_item(doc, items.len() - gone.len());
                }
            }
            let data = (!edits.is_empty()).then(|| edits.apply(doc.text()));
            Change::Data { before, data }
        })
    }
}

fn output_index(root: At<'_>) -> Option<usize> {
    usize::try_from(root.get("output_index")?.u64()?).ok()
}

/// Places of arguments that are not texts, where what stands twice is the call's fault, and places of the calls of an event.
type Places = (Vec<Range<usize>>, Vec<Range<usize>>);

fn calls_in(root: At<'_>, kind: &str) -> Result<Places, ReplyError> {
    let items = match kind {
        "response.output_item.added" | "response.output_item.done" => {
            root.get("item").into_iter().collect()
        }
        "response.completed" | "response.incomplete" | "response.failed" => {
            let response = root.get("response");
            let output = response.and_then(|response| response.get("output")?.items());
            output.unwrap_or_default()
        }
        _ => Vec::new(),
    };
    let (mut opaque, mut seen) = (Vec::new(), Vec::new());
    // This one tells the name and the arguments of a call, which are held against the end.
    if kind == "response.function_call_arguments.done" {
        seen.push(root.place());
    }
    for item in items {
        match responses_item(item) {
            Item::Call(_, place) => {
                stray::check_readings(item)?;
                opaque.extend(place);
                seen.push(item.place());
            }
            Item::Hosted(_) => {
                stray::check_readings(item)?;
                seen.push(item.place());
            }
            Item::Text(_) | Item::Other => {}
        }
    }
    Ok((opaque, seen))
}

fn note(
    root: At<'_>,
    kind: &str,
    told: &mut BTreeMap<usize, StreamedItem>,
) -> Result<(), ReplyError> {
    stray::check_event(root, kind)?;
    let early = root
        .get("response")
        .and_then(|response| response.get("output"));
    if early.is_some_and(|output| output.items().is_none_or(|items| !items.is_empty())) {
        return Err(ReplyError::unreadable("output before the end"));
    }
    let piece = match kind {
        "response.output_item.added" | "response.output_item.done" => root.get("item"),
        "response.output_text.done" => root.get("text"),
        "response.content_part.done" => match root.get("part").filter(|part| is_text(*part)) {
            Some(part) => part.get("text"),
            None => return Ok(()),
        },
        "response.function_call_arguments.delta"
        | "response.custom_tool_call_input.delta"
        | "response.apply_patch_call_operation_diff.delta"
        | "response.shell_call_command.delta"
        | "response.output_text.delta" => root.get("delta"),
        "response.function_call_arguments.done" => root.get("arguments"),
        "response.custom_tool_call_input.done" => root.get("input"),
        "response.apply_patch_call_operation_diff.done" => root.get("diff"),
        "response.shell_call_command.added" | "response.shell_call_command.done" => {
            root.get("command")
        }
        _ => return Ok(()),
    };
    let wrong = || ReplyError::unreadable("an event without its place or content");
    let (index, piece) = output_index(root).zip(piece).ok_or_else(wrong)?;
    let told = told.entry(index).or_default();
    let text = || piece.str().ok_or_else(wrong);
    match kind {
        "response.output_item.added" => once(&mut told.added, shown(piece))?,
        "response.output_item.done" => once(&mut told.done, shown(piece))?,
        "response.output_text.done" | "response.content_part.done" => {
            let part = root.get("content_index").map_or(Some(0), At::u64);
            let part = part.and_then(|part| usize::try_from(part).ok());
            let text = piece.shown().ok_or_else(wrong)?.into_owned();
            let known = told.texts.entry(part.ok_or_else(wrong)?);
            if *known.or_insert_with(|| text.clone()) != text {
                return Err(differs());
            }
        }
        "response.output_text.delta" => {
            let text = piece.shown().ok_or_else(wrong)?;
            told.text.get_or_insert_default().push_str(&text);
        }
        "response.function_call_arguments.delta"
        | "response.custom_tool_call_input.delta"
        | "response.apply_patch_call_operation_diff.delta" => {
            told.pieces.get_or_insert_default().push_str(&text()?);
        }
        "response.shell_call_command.added"
        | "response.shell_call_command.delta"
        | "response.shell_call_command.done" => {
            let number = root.get("command_index").and_then(At::u64);
            let number = number.and_then(|number| usize::try_from(number).ok());
            let command = told.commands.entry(number.ok_or_else(wrong)?).or_default();
            let text = text()?;
            match kind {
                "response.shell_call_command.added" => once(&mut command.begun, text.into_owned())?,
                "response.shell_call_command.delta" => command.pieces.push_str(&text),
                _ => once(&mut command.finished, text.into_owned())?,
            }
        }
        _ => {
            once(&mut told.finished, text()?.into_owned())?;
            if let Some(name) = text_of(root, "name") {
                once(&mut told.named, name)?;
            }
        }
    }
    Ok(())
}

/// Keeps what is told. The same again is not another; readers differ about which of two counts.
fn once<T: PartialEq>(known: &mut Option<T>, found: T) -> Result<(), ReplyError> {
    if known.as_ref().is_some_and(|known| *known != found) {
        return Err(differs());
    }
    *known = Some(found);
    Ok(())
}

/// The id by which an event names a call, or a part of one.
fn id_of_call(root: At<'_>, kind: &str) -> Option<String> {
    match kind {
        "response.output_item.added" | "response.output_item.done" => {
            let item = root.get("item")?;
            as_call(item).and_then(|_| text_of(item, "id"))
        }
        "response.function_call_arguments.delta"
        | "response.function_call_arguments.done"
        | "response.custom_tool_call_input.delta"
        | "response.custom_tool_call_input.done" => text_of(root, "item_id"),
        _ => None,
    }
}

/// Some readers go by ids, others by places: an id that stands at two places joins two calls for one of them.
fn place_once(
    ids: &mut BTreeMap<String, usize>,
    id: String,
    index: usize,
) -> Result<(), ReplyError> {
    if *ids.entry(id).or_insert(index) != index {
        return Err(ReplyError::unreadable("an id of two calls"));
    }
    Ok(())
}

fn differs() -> ReplyError {
    ReplyError::unreadable("the pieces of the stream differ from its end")
}

fn is_text(part: At<'_>) -> bool {
    text_of(part, "type").as_deref() == Some("output_text")
}

fn shown(item: At<'_>) -> ItemContent {
    match responses_item(item) {
        Item::Call(call, _) => ItemContent::Call(call),
        Item::Text(text) => ItemContent::Text(text),
        Item::Hosted(_) | Item::Other => ItemContent::Nothing,
    }
}

fn as_call(item: At<'_>) -> Option<ProposedCall> {
    match shown(item) {
        ItemContent::Call(call) => Some(call),
        ItemContent::Text(_) | ItemContent::Nothing => None,
    }
}

/// Says whether an item that was begun is the one at the end. A call of a function begins without its arguments, or with all of
/// them; the actions of other tools, and texts, may begin with a part.
fn begins(begun: &ItemContent, item: At<'_>, end: &ItemContent) -> bool {
    match (begun, end) {
        (ItemContent::Call(begun), ItemContent::Call(end)) => {
            let is_same = begun.id == end.id && begun.name == end.name;
            let is_text = item.get("arguments").is_some() || item.get("input").is_some();
            let is_empty = begun.arguments.is_empty() || begun.arguments == custom_arguments("");
            is_same && (!is_text || is_empty || begun.arguments == end.arguments)
        }
        (ItemContent::Text(_), ItemContent::Text(_))
        | (ItemContent::Nothing, ItemContent::Nothing) => true,
        _ => false,
    }
}

impl StreamedItem {
    /// Refuses a stream of which the pieces say something else than the whole.
    fn compare(&self, item: Option<At<'_>>) -> Result<(), ReplyError> {
        let item = item.ok_or_else(differs)?;
        let end = shown(item);
        let same_added = self
            .added
            .as_ref()
            .is_none_or(|begun| begins(begun, item, &end));
        let same_done = self.done.as_ref().is_none_or(|done| *done == end);
        let same_name = self.named.is_none() || self.named == text_of(item, "name");
        let whole = text_of(item, "arguments")
            .or_else(|| text_of(item, "input"))
            .or_else(|| text_of(item.get("operation")?, "diff"));
        let mut pieces = self.pieces.iter().chain(&self.finished);
        let same_pieces = pieces.all(|text| whole.as_ref() == Some(text));
        let same_text = match (&self.text, &end) {
            (Some(text), ItemContent::Text(whole)) => text == whole,
            (Some(_), _) => false,
            (None, _) => true,
        };
        let parts = item.get("content").and_then(At::items).unwrap_or_default();
        let mut texts = self.texts.iter();
        let same_texts = texts.all(|(number, text)| {
            let part = parts.get(*number).filter(|part| is_text(**part));
            part.and_then(|part| part.get("text")?.shown())
                .is_some_and(|whole| whole == *text)
        });
        let list = item.get("action").and_then(|action| action.get("commands"));
        let list = list.and_then(At::items).unwrap_or_default();
        let mut commands = self.commands.iter();
        let same_commands = commands.all(|(number, command)| {
            let whole = list.get(*number).and_then(|whole| whole.str());
            whole.is_some_and(|whole| command.is(&whole))
        });
        let same = same_added && same_done && same_name && same_pieces;
        if same && same_text && same_texts && same_commands {
            Ok(())
        } else {
            Err(differs())
        }
    }
}

impl Command {
    /// Says whether what was told of a command is the command. It may begin with a part that its pieces repeat, or go on from.
    fn is(&self, whole: &str) -> bool {
        let begun = self.begun.as_deref().unwrap_or_default();
        let is_joined = self.pieces == whole
            || whole.strip_prefix(begun) == Some(&self.pieces)
            || self.pieces.is_empty() && whole.starts_with(begun);
        is_joined && self.finished.as_deref().is_none_or(|text| text == whole)
    }
}

/// The events of a message with the substituted text.
fn substitute_item(last: &Doc, index: usize) -> String {
    let number = last.root().get("sequence_number");
    let number = number.map(|number| format!(r#""sequence_number":{},"#, number.raw()));
    let number = number.unwrap_or_default();
    let text = substitute();
    let part = strip::substitute_part(&text);
    let empty = strip::substitute_part("\"\"");
    let place = format!(r#""item_id":"msg_substitute","output_index":{index},"content_index":0"#);
    let item = |status| {
        format!(
            r#""output_index":{index},"item":{}"#,
            strip::substitute_item(status)
        )
    };
    let events = [
        ("response.output_item.added", item("in_progress")),
        (
            "response.content_part.added",
            format!(r#"{place},"part":{empty}"#),
        ),
        (
            "response.output_text.delta",
            format!(r#"{place},"delta":{text}"#),
        ),
        (
            "response.output_text.done",
            format!(r#"{place},"text":{text}"#),
        ),
        (
            "response.content_part.done",
            format!(r#"{place},"part":{part}"#),
        ),
        ("response.output_item.done", item("completed")),
    ];
    events
        .map(|(name, rest)| {
            let data = format!(r#"{{"type":"{name}",{number}{rest}}}"#);
            sse::event(Some(name), &data)
        })
        .concat()
}
