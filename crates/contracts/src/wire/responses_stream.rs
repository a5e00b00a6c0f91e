//! A stream of the Responses format: its last event holds the whole response, and everything before must agree with it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::doc::{At, Doc, Edits};
use super::reply::{End, Item, Read, ReplyError, responses, responses_item, substitute, text_of};
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
struct Told {
    added: Option<(String, String)>,
    done: Option<ProposedCall>,
    /// Arguments, or a text, in pieces.
    pieces: Option<String>,
    finished: Option<String>,
    /// The name that came with the whole arguments.
    named: Option<String>,
    text: Option<String>,
    /// Commands of a shell, by their number: how each began, its pieces, and the whole.
    commands: BTreeMap<usize, Command>,
}

#[derive(Debug, Default)]
struct Command {
    begun: String,
    pieces: String,
    finished: Option<String>,
}

impl ResponsesStream {
    pub(super) fn read(text: &str) -> Result<(Self, Read), ReplyError> {
        let stream = Stream::read(text)?;
        let mut told: BTreeMap<usize, Told> = BTreeMap::new();
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
                _ => note(root, &kind, &mut told)?,
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
        let stream = Self {
            places: parts.places,
            end,
            stream,
        };
        Ok((stream, parts.read))
    }

    pub(super) fn write(&self, removed: &[usize], end: Option<End>) -> String {
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
                if end == Some(End::Substitute) {
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

fn note(root: At<'_>, kind: &str, told: &mut BTreeMap<usize, Told>) -> Result<(), ReplyError> {
    stray::check_event(root, kind)?;
    let early = root
        .get("response")
        .and_then(|response| response.get("output"));
    if early.is_some_and(|output| output.items().is_none_or(|items| !items.is_empty())) {
        return Err(ReplyError::unreadable("output before the end"));
    }
    let piece = match kind {
        "response.output_item.added" | "response.output_item.done" => root.get("item"),
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
        "response.output_item.added" => {
            let call = as_call(piece);
            told.added = call.map(|call| (call.id, call.name));
        }
        "response.output_item.done" => told.done = as_call(piece),
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
                "response.shell_call_command.added" => command.begun = text.into_owned(),
                "response.shell_call_command.delta" => command.pieces.push_str(&text),
                _ => command.finished = Some(text.into_owned()),
            }
        }
        _ => {
            told.finished = Some(text()?.into_owned());
            told.named = text_of(root, "name");
        }
    }
    Ok(())
}

fn as_call(item: At<'_>) -> Option<ProposedCall> {
    match responses_item(item) {
        Item::Call(call, _) => Some(call),
        Item::Text(_) | Item::Hosted(_) | Item::Other => None,
    }
}

impl Told {
    /// Refuses a stream of which the pieces say something else than the whole.
    fn compare(&self, item: Option<At<'_>>) -> Result<(), ReplyError> {
        let differs = || ReplyError::unreadable("the pieces of the stream differ from its end");
        let item = item.ok_or_else(differs)?;
        let call = as_call(item);
        let same_added = self.added.as_ref().is_none_or(|(id, name)| {
            call.as_ref()
                .is_some_and(|call| call.id == *id && call.name == *name)
        });
        let same_done = self.done.is_none() || self.done == call;
        let same_name = self.named.is_none() || self.named == text_of(item, "name");
        let whole = text_of(item, "arguments")
            .or_else(|| text_of(item, "input"))
            .or_else(|| text_of(item.get("operation")?, "diff"));
        let mut pieces = self.pieces.iter().chain(&self.finished);
        let same_pieces = pieces.all(|text| whole.as_ref() == Some(text));
        let text = match responses_item(item) {
            Item::Text(text) => Some(text),
            Item::Call(..) | Item::Hosted(_) | Item::Other => None,
        };
        let same_text = self.text.is_none() || self.text == text;
        let list = item.get("action").and_then(|action| action.get("commands"));
        let list = list.and_then(At::items).unwrap_or_default();
        let mut commands = self.commands.iter();
        let same_commands = commands.all(|(number, command)| {
            let whole = list.get(*number).and_then(|whole| whole.str());
            whole.is_some_and(|whole| command.is(&whole))
        });
        if same_added && same_done && same_name && same_pieces && same_text && same_commands {
            Ok(())
        } else {
            Err(differs())
        }
    }
}

impl Command {
    /// Says whether what was told of a command is the command. It may begin with a part that its pieces repeat, or go on from.
    fn is(&self, whole: &str) -> bool {
        let is_joined = self.pieces == whole
            || whole.strip_prefix(&*self.begun) == Some(&self.pieces)
            || self.pieces.is_empty() && whole.starts_with(&self.begun);
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
