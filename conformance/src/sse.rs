//! A reader for server-sent events.
//!
//! Owns the framing of the byte stream: lines, comments, fields, the blank line that ends a frame. It accepts every line
//! end the format allows; checks that forbid one look at raw bytes instead.

/// One thing seen on a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Item {
    /// A comment line, without its colon.
    Comment(String),
    /// A block of fields ended by a blank line.
    Frame(Frame),
}

/// The fields of one block.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) id: Option<String>,
    pub(crate) event: Option<String>,
    /// The `data` lines joined by line feeds.
    pub(crate) data: Option<String>,
    pub(crate) retry: Option<String>,
}

/// Collects bytes and returns what they complete.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    pending: Vec<u8>,
    frame: Frame,
    after_carriage_return: bool,
}

impl Parser {
    /// Takes some bytes and returns the items they complete, in order.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Vec<Item> {
        let mut items = Vec::new();
        for &byte in bytes {
            let closes_pair =
                std::mem::replace(&mut self.after_carriage_return, byte == b'\r') && byte == b'\n';
            if closes_pair {
                continue;
            }
            if byte == b'\n' || byte == b'\r' {
                let line = std::mem::take(&mut self.pending);
                items.extend(self.line(&String::from_utf8_lossy(&line)));
            } else {
                self.pending.push(byte);
            }
        }
        items
    }

    fn line(&mut self, line: &str) -> Option<Item> {
        if line.is_empty() {
            let frame = std::mem::take(&mut self.frame);
            return (frame != Frame::default()).then_some(Item::Frame(frame));
        }
        if let Some(comment) = line.strip_prefix(':') {
            return Some(Item::Comment(comment.to_owned()));
        }
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value).to_owned();
        match name {
            "id" => self.frame.id = Some(value),
            "event" => self.frame.event = Some(value),
            "retry" => self.frame.retry = Some(value),
            "data" => match &mut self.frame.data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(&value);
                }
                none => *none = Some(value),
            },
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(id: &str, event: &str, data: &str) -> Item {
        let some = |text: &str| Some(text.to_owned());
        Item::Frame(Frame {
            id: some(id),
            event: some(event),
            data: some(data),
            retry: None,
        })
    }

    fn check(bytes: &[u8], expected: &[Item]) {
        assert_eq!(Parser::default().push(bytes), expected, "in one piece");
        let mut parser = Parser::default();
        let parts: Vec<Item> = bytes
            .iter()
            .flat_map(|byte| parser.push(&[*byte]))
            .collect();
        assert_eq!(parts, expected, "byte by byte");
    }

    #[test]
    fn a_frame_ends_at_a_blank_line() {
        check(b"id: 1\nevent: a\ndata: {}\n\n", &[frame("1", "a", "{}")]);
        check(b"id: 1\nevent: a\ndata: {}\n", &[]);
    }

    #[test]
    fn every_line_end_is_read() {
        check(
            b"id:1\r\nevent:a\r\ndata:{}\r\n\r\n",
            &[frame("1", "a", "{}")],
        );
        check(b"id:1\revent:a\rdata:{}\r\r", &[frame("1", "a", "{}")]);
    }

    #[test]
    fn data_lines_are_joined() {
        check(
            b"id: 1\nevent: a\ndata: x\ndata:  y\n\n",
            &[frame("1", "a", "x\n y")],
        );
    }

    #[test]
    fn comments_are_seen_at_once_and_are_no_frame() {
        check(
            b": beat\n\nid: 1\nevent: a\ndata: {}\n\n",
            &[Item::Comment(" beat".to_owned()), frame("1", "a", "{}")],
        );
    }

    #[test]
    fn a_retry_field_makes_a_frame_of_its_own() {
        let retry = Item::Frame(Frame {
            retry: Some("10".to_owned()),
            ..Frame::default()
        });
        check(b"retry: 10\n\n", &[retry]);
    }
}
