//! A stream of OpenAI chat chunks: calls put together by index, and the chunks written again without some of them.

use std::collections::BTreeMap;

use super::doc::{At, Doc, Edits};
use super::reply::{
    ParsedReply, ReplyEnd, ReplyError, chat_finish, chat_usage, custom_arguments, substitute,
    text_of,
};
use super::request::WireRequest;
use super::sse::{self, Change, Data, Event, Stream};
use super::stray;
use crate::request::{ProposedCall, Response};

#[derive(Debug, Clone)]
pub(super) struct ChatStream {
    stream: Stream,
    /// The provider's index of each call, in order.
    indexes: Vec<u64>,
    /// The event that says why the model stopped, or the end when none does.
    finish_at: usize,
}

#[derive(Debug, Default)]
struct Parts {
    calls: BTreeMap<u64, PartialCall>,
    content: Option<String>,
    finish: Option<(String, usize)>,
    usage: Option<crate::cost::Usage>,
    id: Option<String>,
}

#[derive(Debug, Default)]
struct PartialCall {
    id: String,
    name: String,
    text: String,
    function: bool,
    custom: bool,
}

impl ChatStream {
    pub(super) fn read(
        text: &str,
        request: &WireRequest,
    ) -> Result<(Self, ParsedReply), ReplyError> {
        let stream = Stream::read(text)?;
        // A piece of a call that not every reader would see.
        let open = stream.open_event().and_then(Event::doc);
        let delta = open.and_then(|doc| only_choice(doc.root())?.get("delta"));
        if delta.is_some_and(|delta| delta.get("tool_calls").is_some()) {
            return Err(ReplyError::provider("the stream ends inside an event"));
        }
        let mut parts = Parts::default();
        let mut done = None;
        for (index, event) in stream.events().iter().enumerate() {
            if done.is_some() && !matches!(event.data, Data::None) {
                return Err(ReplyError::unreadable("something after the end"));
            }
            match &event.data {
                Data::None => {}
                Data::Done => done = Some(index),
                Data::Json(doc) => parts.take(event, doc, index)?,
            }
        }
        // Several servers leave out the word for the end. A stream that said why the model stopped is whole without it.
        let Some(finish_at) = parts.finish.as_ref().map(|(_, index)| *index).or(done) else {
            return Err(ReplyError::provider("the stream has no end"));
        };
        let finish = parts.finish.as_ref().map(|(word, _)| word.as_str());
        let response = Response {
            finish_reason: chat_finish(request, finish, !parts.calls.is_empty()),
            content: parts.content,
            calls: parts.calls.values().map(PartialCall::proposed).collect(),
        };
        let read = ParsedReply {
            response,
            hosted: Vec::new(),
            usage: parts.usage,
            id: parts.id,
        };
        let stream = Self {
            stream,
            indexes: parts.calls.into_keys().collect(),
            finish_at,
        };
        Ok((stream, read))
    }

    pub(super) fn write(
        &self,
        removed: &[usize],
        end: Option<ReplyEnd>,
        hides_usage: bool,
    ) -> String {
        // Where each call goes: nowhere, or closed up from 0.
        let mut places: BTreeMap<u64, Option<usize>> = BTreeMap::new();
        let mut next = 0;
        for (call, index) in self.indexes.iter().enumerate() {
            let gone = removed.contains(&call);
            places.insert(*index, (!gone).then_some(next));
            next += usize::from(!gone);
        }
        self.stream.write(|index, event| {
            let Some(doc) = event.doc() else {
                return self.in_front_of(index, event, end);
            };
            if hides_usage && is_usage_only(doc.root()) {
                return Change::Drop;
            }
            if removed.is_empty() {
                return Change::Keep;
            }
            self.rewrite(index, doc, &places, end)
        })
    }

    fn rewrite(
        &self,
        index: usize,
        doc: &Doc,
        places: &BTreeMap<u64, Option<usize>>,
        end: Option<ReplyEnd>,
    ) -> Change {
        let mut edits = Edits::default();
        let Some(choice) = only_choice(doc.root()) else {
            return Change::Keep;
        };
        let mut says_something = true;
        if let Some(delta) = choice.get("delta")
            && let Some(list) = delta.get("tool_calls")
        {
            let calls = list.items().unwrap_or_default();
            let place_of = |call: &At<'_>| {
                let index = call.get("index").and_then(At::u64);
                index.and_then(|index| places.get(&index).copied().flatten())
            };
            let kept = calls.iter().filter(|call| place_of(call).is_some()).count();
            if kept == 0 && !calls.is_empty() {
                let members = delta.member_places();
                let spans: Vec<_> = members.iter().map(|(_, place)| place.clone()).collect();
                edits.remove(&spans, |index| {
                    members
                        .get(index)
                        .is_some_and(|(name, _)| name == "tool_calls")
                });
                says_something = members.len() > 1
                    || choice.get("finish_reason").is_some()
                    || doc.root().get("usage").is_some();
            } else {
                let spans: Vec<_> = calls.iter().map(|call| call.place()).collect();
                edits.remove(&spans, |index| {
                    calls
                        .get(index)
                        .is_some_and(|call| place_of(call).is_none())
                });
                for call in &calls {
                    if let (Some(place), Some(number)) = (place_of(call), call.get("index"))
                        && number.raw() != place.to_string()
                    {
                        edits.replace(number.place(), place.to_string());
                    }
                }
            }
        }
        let mut before = String::new();
        if index == self.finish_at && end.is_some() {
            if let Some(reason) = choice.get("finish_reason") {
                edits.replace(reason.place(), "\"stop\"");
            }
            if end == Some(ReplyEnd::Substitute) {
                before = substitute_chunk(Some(doc));
            }
        }
        if !says_something {
            return Change::Drop;
        }
        let data = (!edits.is_empty()).then(|| edits.apply(doc.text()));
        Change::Data { before, data }
    }

    /// A stream without a finish reason gets its text before the end.
    fn in_front_of(&self, index: usize, event: &Event, end: Option<ReplyEnd>) -> Change {
        let is_end = matches!(event.data, Data::Done) && index == self.finish_at;
        if is_end && end == Some(ReplyEnd::Substitute) {
            let like = self.stream.events().iter().find_map(Event::doc);
            let before = substitute_chunk(like);
            return Change::Data { before, data: None };
        }
        Change::Keep
    }
}

impl Parts {
    fn take(&mut self, event: &Event, doc: &Doc, index: usize) -> Result<(), ReplyError> {
        let root = doc.root();
        if root.get("error").is_some() || event.name() == Some("error") {
            return Err(ReplyError::provider("the stream carries an error"));
        }
        if doc.duplicate_outside(&[]) {
            return Err(ReplyError::unreadable("a member stands twice"));
        }
        check_known(event, root)?;
        let choice = only_choice(root);
        let list = choice.and_then(|choice| choice.get("delta")?.get("tool_calls"));
        stray::check(root, list.map(At::place).as_slice())?;
        if self.id.is_none() {
            self.id = text_of(root, "id");
        }
        if let Some(usage) = root.get("usage") {
            self.usage = chat_usage(usage);
        }
        let not_a_list = || ReplyError::unreadable("`choices` is not a list");
        let choices = match root.get("choices") {
            Some(list) => list.items().ok_or_else(not_a_list)?,
            None => Vec::new(),
        };
        let choice = match choices.as_slice() {
            [] => return Ok(()),
            [choice] if choice.get("index").is_none_or(|at| at.raw() == "0") => *choice,
            _ => return Err(ReplyError::unreadable("more than one choice")),
        };
        if let Some(word) = choice.get("finish_reason") {
            let word = word.str().unwrap_or_default().into_owned();
            match &self.finish {
                Some((first, _)) if *first != word => {
                    return Err(ReplyError::unreadable("two finish reasons"));
                }
                Some(_) => {}
                None => self.finish = Some((word, index)),
            }
        }
        // A message instead of a piece of one: other readers may take it for the whole.
        if choice.get("message").is_some() {
            return Err(ReplyError::unreadable("a message inside a stream"));
        }
        let Some(delta) = choice.get("delta") else {
            return Ok(());
        };
        if delta.get("function_call").is_some() {
            return Err(ReplyError::unreadable("`function_call` was not asked for"));
        }
        if let Some(text) = delta.get("content").and_then(super::request::joined_text) {
            self.content.get_or_insert_default().push_str(&text);
        }
        let Some(list) = delta.get("tool_calls") else {
            return Ok(());
        };
        let wrong = || ReplyError::unreadable("`tool_calls` has another form");
        for piece in list.items().ok_or_else(wrong)? {
            let index = piece.get("index").and_then(At::u64).ok_or_else(wrong)?;
            self.calls.entry(index).or_default().take(piece)?;
        }
        Ok(())
    }
}

impl PartialCall {
    fn take(&mut self, piece: At<'_>) -> Result<(), ReplyError> {
        stray::check_chat_readings(piece)?;
        set_once(&mut self.id, piece.get("id"))?;
        let (function, custom) = (piece.get("function"), piece.get("custom"));
        self.function |= function.is_some();
        self.custom |= custom.is_some();
        // Whichever piece says so: one reader would take the arguments for a text, another would parse them.
        if self.function && self.custom {
            return Err(ReplyError::unreadable("a call of two kinds"));
        }
        if let Some(holder) = function.or(custom) {
            set_once(&mut self.name, holder.get("name"))?;
            let member = if self.custom { "input" } else { "arguments" };
            if let Some(text) = holder.get(member) {
                let text = text.str();
                let text =
                    text.ok_or_else(|| ReplyError::unreadable("arguments are not a text"))?;
                // Some readers begin a call with its name, and leave out what came before.
                if self.name.is_empty() && !text.is_empty() {
                    return Err(ReplyError::unreadable("arguments before their call"));
                }
                self.text.push_str(&text);
            }
        }
        Ok(())
    }

    fn proposed(&self) -> ProposedCall {
        ProposedCall {
            id: self.id.clone(),
            name: self.name.clone(),
            arguments: if self.custom {
                custom_arguments(&self.text)
            } else {
                self.text.clone()
            },
        }
    }
}

/// Some servers repeat ids and names in every piece. Readers replace or join them: two different ones are refused.
fn set_once(known: &mut String, found: Option<At<'_>>) -> Result<(), ReplyError> {
    let Some(found) = found else {
        return Ok(());
    };
    let found = found.str();
    let found = found.ok_or_else(|| ReplyError::unreadable("an id or name that is not a text"))?;
    if known.is_empty() {
        known.push_str(&found);
    } else if !found.is_empty() && *known != found {
        return Err(ReplyError::unreadable("a call with two ids or names"));
    }
    Ok(())
}

/// Members of a chunk that say nothing of a call, and of which one without choices may consist.
const BESIDE: [&str; 7] = [
    "id",
    "object",
    "type",
    "model",
    "system_fingerprint",
    "service_tier",
    "usage",
];

/// Refuses what is not a chunk and says something. The format has no names of events, and clients hand everything to the
/// program whatever its name: what such an event means, only the one who sent it knows.
fn check_known(event: &Event, root: At<'_>) -> Result<(), ReplyError> {
    let name = event.name().filter(|name| *name != "message");
    let kind = root.get("object").and_then(At::str);
    let is_chunk =
        root.get("choices").is_some() || kind.as_deref() == Some("chat.completion.chunk");
    let says_little =
        || (root.members()).all(|(name, value)| BESIDE.contains(&&*name) || value.is_bare());
    match name {
        Some(name) if !stray::says_nothing(root) => Err(stray::unknown(name)),
        None if !is_chunk && !says_little() => Err(stray::unknown(&kind.unwrap_or_default())),
        Some(_) | None => Ok(()),
    }
}

fn only_choice(root: At<'_>) -> Option<At<'_>> {
    root.get("choices")?.items()?.first().copied()
}

/// The extra chunk with nothing but usage.
fn is_usage_only(root: At<'_>) -> bool {
    let choices = root.get("choices").and_then(At::items);
    root.get("usage").is_some() && choices.is_some_and(|choices| choices.is_empty())
}

/// A chunk with the substituted text, otherwise like another one.
fn substitute_chunk(like: Option<&Doc>) -> String {
    let choices = format!(
        r#"[{{"index":0,"delta":{{"content":{}}},"finish_reason":null}}]"#,
        substitute()
    );
    let Some(like) = like else {
        return sse::event(None, &format!(r#"{{"choices":{choices}}}"#));
    };
    let mut edits = Edits::default();
    let root = like.root();
    match root.member("choices") {
        Some(list) => edits.replace(list.place(), choices),
        None => edits.add_member(root, "choices", &choices),
    }
    if let Some(usage) = root.get("usage") {
        edits.replace(usage.place(), "null");
    }
    // Data of several lines is written as one.
    sse::event(None, &edits.apply(like.text()).replace('\n', " "))
}
