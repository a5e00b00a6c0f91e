//! A stream of an Anthropic message: blocks put together by index, and written again without some of them.

use std::collections::BTreeSet;
use std::ops::Range;

use super::doc::{At, Doc, Edits};
use super::reply::{
    Item, ParsedReply, ReplyEnd, ReplyError, block_of, messages_usage, stop_reason, substitute,
    text_of,
};
use super::sse::{self, Change, Stream};
use super::stray;
use crate::request::{ProposedCall, Response};

/// Pieces that have nothing of a call in them, or belong to one that the provider runs.
const PIECES: [&str; 5] = [
    "input_json_delta",
    "citations_delta",
    "thinking_delta",
    "signature_delta",
    "compaction_delta",
];

#[derive(Debug, Clone)]
pub(super) struct MessagesStream {
    stream: Stream,
    /// The block of each call, in order.
    blocks: Vec<usize>,
    block_count: usize,
    /// The event that says why the model stopped, or the end when none does.
    finish_at: usize,
}

/// A block as far as it has arrived.
#[derive(Debug)]
struct Block {
    item: BlockItem,
    /// Pieces of a text or of arguments.
    text: String,
    open: bool,
}

#[derive(Debug)]
enum BlockItem {
    Text,
    Call(ProposedCall),
    Hosted(ProposedCall),
    Other,
}

impl MessagesStream {
    pub(super) fn read(text: &str) -> Result<(Self, ParsedReply), ReplyError> {
        let stream = Stream::read(text)?;
        let mut blocks: Vec<Block> = Vec::new();
        let mut reports = Vec::new();
        let (mut id, mut stop, mut finish_at, mut end) = (None, None, None, None);
        let mut begun = false;
        let mut named = None;
        for (index, event) in stream.events().iter().enumerate() {
            let Some(doc) = event.doc() else {
                continue;
            };
            let root = doc.root();
            let kind = event.kind()?;
            if end.is_some() {
                return Err(ReplyError::unreadable("something after the end"));
            }
            // Some readers go by the names of events and leave out those without one.
            if *named.get_or_insert(event.name().is_some()) != event.name().is_some() {
                return Err(ReplyError::unreadable("only some events have a name"));
            }
            check_duplicates(doc, root)?;
            stray::check(root, &call_in(root, &kind)?)?;
            if !begun && kind.starts_with("content_block") {
                return Err(ReplyError::unreadable("a block before the message"));
            }
            match kind.as_str() {
                "error" => return Err(ReplyError::provider("the stream carries an error")),
                "message_start" => {
                    let message = root.get("message").filter(|_| !begun);
                    let message =
                        message.ok_or_else(|| ReplyError::unreadable("not one message"))?;
                    let content = message.get("content");
                    let is_empty =
                        |content: At<'_>| content.items().is_some_and(|blocks| blocks.is_empty());
                    if !content.is_none_or(is_empty) {
                        return Err(ReplyError::unreadable("blocks in the start of a message"));
                    }
                    begun = true;
                    id = text_of(message, "id");
                    reports.extend(message.get("usage"));
                }
                "content_block_start" => begin_block(root, &mut blocks)?,
                "content_block_delta" => add_to_block(root, &mut blocks)?,
                "content_block_stop" => block_at(root, &mut blocks)?.open = false,
                "message_delta" => {
                    let delta = root.get("delta");
                    if let Some(word) = delta.and_then(|delta| text_of(delta, "stop_reason")) {
                        if stop.as_ref().is_some_and(|known| *known != word) {
                            return Err(ReplyError::unreadable("two stop reasons"));
                        }
                        stop = Some(word);
                        finish_at.get_or_insert(index);
                    }
                    reports.extend(root.get("usage"));
                }
                "message_stop" => end = Some(index),
                _ if stray::says_nothing(root) => {}
                _ => return Err(stray::unknown(&kind)),
            }
        }
        let Some(end) = end else {
            return Err(ReplyError::provider("the stream has no end"));
        };
        if blocks.iter().any(|block| block.open) {
            return Err(ReplyError::unreadable("a block without its end"));
        }
        let usage = messages_usage(&reports);
        let (mut calls, mut hosted, mut places) = (Vec::new(), Vec::new(), Vec::new());
        let mut content: Option<String> = None;
        let block_count = blocks.len();
        for (index, block) in blocks.into_iter().enumerate() {
            match block.item {
                BlockItem::Text => content.get_or_insert_default().push_str(&block.text),
                BlockItem::Call(mut call) => {
                    if !block.text.is_empty() {
                        call.arguments = block.text;
                    }
                    calls.push(call);
                    places.push(index);
                }
                BlockItem::Hosted(call) => hosted.push(call),
                BlockItem::Other => {}
            }
        }
        let read = ParsedReply {
            response: Response {
                finish_reason: stop_reason(stop.as_deref()),
                content,
                calls,
            },
            hosted,
            usage,
            id,
        };
        let stream = Self {
            blocks: places,
            block_count,
            finish_at: finish_at.unwrap_or(end),
            stream,
        };
        Ok((stream, read))
    }

    pub(super) fn write(&self, removed: &[usize], end: Option<ReplyEnd>) -> String {
        let gone: BTreeSet<usize> = removed
            .iter()
            .filter_map(|call| self.blocks.get(*call).copied())
            .collect();
        self.stream.write(|index, event| {
            let Some(doc) = event.doc().filter(|_| !removed.is_empty()) else {
                return Change::Keep;
            };
            self.rewrite(index, doc, &gone, end)
        })
    }

    fn rewrite(
        &self,
        index: usize,
        doc: &Doc,
        gone: &BTreeSet<usize>,
        end: Option<ReplyEnd>,
    ) -> Change {
        let root = doc.root();
        let kind = text_of(root, "type").unwrap_or_default();
        let mut edits = Edits::default();
        if kind.starts_with("content_block")
            && let Some(number) = root.get("index")
            && let Some(block) = block_number(root)
        {
            if gone.contains(&block) {
                return Change::Drop;
            }
            let before = gone.iter().filter(|other| **other < block).count();
            if before > 0 {
                edits.replace(number.place(), (block - before).to_string());
            }
        }
        let mut before = String::new();
        if index == self.finish_at
            && let Some(end) = end
        {
            let reason = root.get("delta").and_then(|delta| delta.get("stop_reason"));
            if let Some(reason) = reason {
                edits.replace(reason.place(), "\"end_turn\"");
            }
            if end == ReplyEnd::Substitute {
                before = substitute_block(self.block_count - gone.len());
            }
        }
        let data = (!edits.is_empty()).then(|| edits.apply(doc.text()));
        Change::Data { before, data }
    }
}

/// A member that stands twice is refused, except in the input of a call, where it is that call's fault.
fn check_duplicates(doc: &Doc, root: At<'_>) -> Result<(), ReplyError> {
    let block = root.get("content_block");
    let input = block.and_then(|block| block.get("input"));
    let places: Vec<_> = input.map(At::place).into_iter().collect();
    if doc.duplicate_outside(&places) {
        return Err(ReplyError::unreadable("a member stands twice"));
    }
    Ok(())
}

fn block_number(root: At<'_>) -> Option<usize> {
    usize::try_from(root.get("index")?.u64()?).ok()
}

fn begin_block(root: At<'_>, blocks: &mut Vec<Block>) -> Result<(), ReplyError> {
    let block = root.get("content_block");
    let block = block.filter(|_| block_number(root) == Some(blocks.len()));
    let block = block.ok_or_else(|| ReplyError::unreadable("blocks out of order"))?;
    let mut text = String::new();
    let item = match block_of(block) {
        Item::Text(begun) => {
            text = begun;
            BlockItem::Text
        }
        Item::Call(call, _) => BlockItem::Call(call),
        Item::Hosted(call) => BlockItem::Hosted(call),
        Item::Other => BlockItem::Other,
    };
    blocks.push(Block {
        item,
        text,
        open: true,
    });
    Ok(())
}

/// The place of the call that an event brings.
fn call_in(root: At<'_>, kind: &str) -> Result<Vec<Range<usize>>, ReplyError> {
    let block = root
        .get("content_block")
        .filter(|_| kind == "content_block_start");
    let Some(block) = block else {
        return Ok(Vec::new());
    };
    match block_of(block) {
        Item::Call(..) | Item::Hosted(_) => stray::check_readings(block)?,
        Item::Text(_) | Item::Other => return Ok(Vec::new()),
    }
    Ok(vec![block.place()])
}

/// Returns the open block that an event is about.
fn block_at<'b>(root: At<'_>, blocks: &'b mut [Block]) -> Result<&'b mut Block, ReplyError> {
    let block = block_number(root).and_then(|index| blocks.get_mut(index));
    let block = block.filter(|block| block.open);
    block.ok_or_else(|| ReplyError::unreadable("a piece of a block that is not open"))
}

fn add_to_block(root: At<'_>, blocks: &mut [Block]) -> Result<(), ReplyError> {
    let block = block_at(root, blocks)?;
    let wrong = || ReplyError::unreadable("a piece that does not belong to its block");
    let delta = root.get("delta").ok_or_else(wrong)?;
    let kind = text_of(delta, "type").ok_or_else(wrong)?;
    match (&block.item, kind.as_str()) {
        (BlockItem::Text, "text_delta") => {
            let text = delta.get("text").and_then(At::shown).ok_or_else(wrong)?;
            block.text.push_str(&text);
        }
        (BlockItem::Call(call), "input_json_delta") => {
            let piece = delta.get("partial_json").and_then(At::str);
            let piece = piece.ok_or_else(wrong)?;
            // Arguments that were there at the start and come again in pieces: readers differ about which count.
            let begun = call.arguments.trim().trim_start_matches('{');
            if !piece.is_empty() && !begun.trim_start().starts_with('}') && !begun.is_empty() {
                return Err(ReplyError::unreadable("arguments that come twice"));
            }
            block.text.push_str(&piece);
        }
        (_, "text_delta") | (BlockItem::Text, "input_json_delta") => return Err(wrong()),
        (_, kind) if PIECES.contains(&kind) || stray::says_nothing(delta) => {}
        (_, kind) => return Err(stray::unknown(kind)),
    }
    Ok(())
}

fn substitute_block(index: usize) -> String {
    let start = format!(
        r#"{{"type":"content_block_start","index":{index},"content_block":{{"type":"text","text":""}}}}"#
    );
    let delta = format!(
        r#"{{"type":"content_block_delta","index":{index},"delta":{{"type":"text_delta","text":{}}}}}"#,
        substitute()
    );
    let stop = format!(r#"{{"type":"content_block_stop","index":{index}}}"#);
    [
        ("content_block_start", start),
        ("content_block_delta", delta),
        ("content_block_stop", stop),
    ]
    .map(|(name, data)| sse::event(Some(name), &data))
    .concat()
}
