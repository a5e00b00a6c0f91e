//! Server-sent events with the place of every line, so that an event can be passed on, changed or dropped alone.

use std::ops::Range;

use super::doc::Doc;
use super::reply::ReplyError;
use crate::json::Limits;

/// A stream that was read to its end.
#[derive(Debug, Clone)]
pub(super) struct Stream {
    text: String,
    events: Vec<Event>,
    is_open: bool,
}

/// One event, its blank line included.
#[derive(Debug, Clone)]
pub(super) struct Event {
    place: Range<usize>,
    /// Lines with their ends; the place of the first data line among them.
    lines: Vec<(Range<usize>, Line)>,
    name: Option<String>,
    pub(super) data: Data,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line {
    Data,
    Other,
}

/// What an event carries.
#[derive(Debug, Clone)]
pub(super) enum Data {
    /// Nothing: a comment, or an event without data.
    None,
    /// The word that ends an OpenAI stream.
    Done,
    /// A JSON object without a member that stands twice.
    Json(Doc),
}

impl Stream {
    pub(super) fn read(text: &str) -> Result<Self, ReplyError> {
        if text.len() > Limits::MESSAGE.bytes_max {
            return Err(ReplyError::unreadable("larger than allowed"));
        }
        let mut events = Vec::new();
        let mut lines = Vec::new();
        // A byte order mark in front is not part of the first line.
        let mut at = if text.starts_with('\u{feff}') { 3 } else { 0 };
        let mut event_start = 0;
        let mut is_open = false;
        while let Some((line, end)) = next_line(text, at) {
            refuse_mark(line)?;
            let place = at..end;
            at = end;
            if !line.is_empty() {
                let kind = if field(line).is_some_and(|(name, _)| name == "data") {
                    Line::Data
                } else {
                    Line::Other
                };
                lines.push((place, kind));
                continue;
            }
            let whole = event_start..end;
            event_start = end;
            events.push(Event::read(text, whole, std::mem::take(&mut lines))?);
        }
        if at != text.len() {
            refuse_mark(text.get(at..).unwrap_or_default())?;
            lines.push((at..text.len(), Line::Other));
        }
        if !lines.is_empty() {
            // What cannot be read was cut off, whatever it was.
            let last = Event::read(text, event_start..text.len(), lines);
            let cut = |_| ReplyError::provider("the stream ends inside an event");
            events.push(last.map_err(cut)?);
            is_open = true;
        }
        Ok(Self {
            text: text.to_owned(),
            events,
            is_open,
        })
    }

    /// The last event if no blank line follows it: some readers end an event at the end of the stream, others leave it out.
    pub(super) fn open_event(&self) -> Option<&Event> {
        self.events.last().filter(|_| self.is_open)
    }

    pub(super) fn events(&self) -> &[Event] {
        &self.events
    }

    /// Writes the stream again; `change` says what becomes of each event.
    pub(super) fn write(&self, mut change: impl FnMut(usize, &Event) -> Change) -> String {
        let mut out = String::with_capacity(self.text.len());
        for (index, event) in self.events.iter().enumerate() {
            let raw = self.text.get(event.place.clone()).unwrap_or_default();
            match change(index, event) {
                Change::Keep => out.push_str(raw),
                Change::Drop => {}
                Change::Data { before, data } => {
                    out.push_str(&before);
                    match data {
                        None => out.push_str(raw),
                        Some(data) => self.write_event(&mut out, event, &data),
                    }
                }
            }
        }
        out
    }

    fn write_event(&self, out: &mut String, event: &Event, data: &str) {
        let mut written = false;
        let mut at = event.place.start;
        for (line, kind) in &event.lines {
            out.push_str(self.text.get(at..line.start).unwrap_or_default());
            at = line.end;
            let raw = self.text.get(line.clone()).unwrap_or_default();
            match kind {
                Line::Other => out.push_str(raw),
                Line::Data if written => {}
                Line::Data => {
                    written = true;
                    let end = raw.trim_start_matches(|char| char != '\n' && char != '\r');
                    for part in data.split('\n') {
                        out.push_str("data: ");
                        out.push_str(part);
                        out.push_str(end);
                    }
                }
            }
        }
        out.push_str(self.text.get(at..event.place.end).unwrap_or_default());
    }
}

/// What becomes of an event.
#[derive(Debug)]
pub(super) enum Change {
    /// Passed on as it is.
    Keep,
    /// Left out.
    Drop,
    /// Something new in front, and other data if there is some.
    Data {
        before: String,
        data: Option<String>,
    },
}

impl Event {
    fn read(
        text: &str,
        place: Range<usize>,
        lines: Vec<(Range<usize>, Line)>,
    ) -> Result<Self, ReplyError> {
        let mut name = None;
        let mut data: Option<String> = None;
        for (line, _) in &lines {
            let line = text.get(line.clone()).unwrap_or_default();
            let line = line.trim_end_matches(['\r', '\n']);
            match field(line) {
                Some(("event", value)) => name = Some(value.to_owned()),
                Some(("data", value)) => match &mut data {
                    Some(data) => {
                        data.push('\n');
                        data.push_str(value);
                    }
                    None => data = Some(value.to_owned()),
                },
                Some(_) | None => {}
            }
        }
        let data = match data.as_deref() {
            None => Data::None,
            Some("[DONE]") => Data::Done,
            Some(data) => {
                let doc = Doc::read_reply(data)
                    .map_err(|error| ReplyError::unreadable(&format!("an event: {error}")))?;
                if !doc.root().is_object() {
                    return Err(ReplyError::unreadable("an event that is not an object"));
                }
                Data::Json(doc)
            }
        };
        Ok(Self {
            place,
            lines,
            name,
            data,
        })
    }

    pub(super) fn doc(&self) -> Option<&Doc> {
        match &self.data {
            Data::Json(doc) => Some(doc),
            Data::None | Data::Done => None,
        }
    }

    pub(super) fn name(&self) -> Option<&str> {
        self.name.as_deref().filter(|name| !name.is_empty())
    }

    /// Returns the type that the data names; an event whose name says something else is refused.
    pub(super) fn kind(&self) -> Result<String, ReplyError> {
        let kind = self.doc().and_then(|doc| doc.root().get("type")?.str());
        let kind = kind.map(|kind| kind.into_owned());
        match (self.name(), kind) {
            (Some(name), Some(kind)) if name != kind => {
                Err(ReplyError::unreadable("an event with two types"))
            }
            (_, Some(kind)) => Ok(kind),
            (_, None) => Err(ReplyError::unreadable("an event without a type")),
        }
    }
}

/// Refuses a line that begins with a byte order mark. Clients decode line by line and drop it there; by the standard it belongs to
/// the name of a field that nobody knows, or makes a blank line one that is not.
fn refuse_mark(line: &str) -> Result<(), ReplyError> {
    if line.starts_with('\u{feff}') {
        return Err(ReplyError::unreadable(
            "a line that begins with a byte order mark",
        ));
    }
    Ok(())
}

/// Returns the field of a line; nothing for a comment.
fn field(line: &str) -> Option<(&str, &str)> {
    match line.split_once(':') {
        Some(("", _)) => None,
        Some((name, value)) => Some((name, value.strip_prefix(' ').unwrap_or(value))),
        None => Some((line, "")),
    }
}

/// Returns the next line without its end, and where the line after it begins; nothing at an unfinished line.
fn next_line(text: &str, at: usize) -> Option<(&str, usize)> {
    let rest = text.get(at..)?;
    let len = rest.find(['\n', '\r'])?;
    let line = rest.get(..len)?;
    let after = rest.get(len..)?;
    let end = if after.starts_with("\r\n") { 2 } else { 1 };
    Some((line, at + len + end))
}

/// Writes one event.
pub(super) fn event(name: Option<&str>, data: &str) -> String {
    match name {
        Some(name) => format!("event: {name}\ndata: {data}\n\n"),
        None => format!("data: {data}\n\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_cut_at_blank_lines_of_any_kind() {
        let text = "\u{feff}: hi\n\nevent: a\r\ndata: {\"type\":\"a\",\r\ndata: \"x\":1}\r\n\r\ndata:[DONE]\r\r";
        let stream = Stream::read(text).unwrap();
        assert_eq!(stream.events().len(), 3);
        assert_eq!(stream.events()[1].name(), Some("a"));
        assert_eq!(stream.events()[1].kind().unwrap(), "a");
        assert!(matches!(stream.events()[2].data, Data::Done));
        assert_eq!(stream.write(|_, _| Change::Keep), text);
        let changed = stream.write(|index, _| match index {
            0 => Change::Drop,
            1 => Change::Data {
                before: event(None, "1"),
                data: Some("{\n}".to_owned()),
            },
            _ => Change::Keep,
        });
        let expected = "data: 1\n\nevent: a\r\ndata: {\r\ndata: }\r\n\r\ndata:[DONE]\r\r";
        assert_eq!(changed, expected);
    }

    #[test]
    fn a_line_with_a_byte_order_mark_is_not_read() {
        for text in [
            "data: {}\n\n\u{feff}data: {}\n\n",
            "data: {}\n\u{feff}event: a\n\n",
            "data: {}\r\u{feff}\r",
            "data: {}\n\n\u{feff}",
            "data: {}\n\n\u{feff}data: {}",
            "\u{feff}\u{feff}data: {}\n\n",
            // Inside of data no client drops it, and it is not JSON.
            "data: \u{feff}{}\n\n",
        ] {
            let read = Stream::read(text);
            assert!(
                matches!(read, Err(ReplyError::Unreadable { .. })),
                "{text:?}"
            );
        }
        assert!(Doc::read_reply("\u{feff}{}").is_err());
        let inside = "data: {\"a\":\"\u{feff}\"}\n\n";
        assert!(Stream::read(inside).is_ok());
    }

    #[test]
    fn a_stream_that_ends_inside_an_event_is_not_read() {
        for text in ["data: {", "data: {\"a\n", "data: {}\n\ndata: [DO"] {
            assert!(matches!(
                Stream::read(text),
                Err(ReplyError::Provider { .. })
            ));
        }
        for text in [
            "data: {}\n\ndata: [DONE]",
            "data: {}\n\ndata: [DONE]\r\n",
            "data: {}\n\n: bye",
            "data: {}\n\ndata: {}",
            "data: {}\n\ndata: {}\n",
        ] {
            let stream = Stream::read(text).unwrap();
            assert_eq!(stream.events().len(), 2, "{text}");
            assert!(stream.open_event().is_some(), "{text}");
            assert_eq!(stream.write(|_, _| Change::Keep), text);
        }
        for text in ["data: {\n\n", "data: 1\n\n", "data\n\n"] {
            assert!(matches!(
                Stream::read(text),
                Err(ReplyError::Unreadable { .. })
            ));
        }
    }
}
