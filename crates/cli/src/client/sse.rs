//! Server-sent events from bytes, wherever the chunks are cut.
//!
//! Owns the framing only. Knows nothing of tasks and does no I/O.

/// The most bytes one frame may have.
const FRAME_BYTES_MAX: usize = 16 * 1024 * 1024;

/// One frame.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Frame {
    /// The last id seen, as the format asks.
    pub(crate) id: Option<String>,
    /// The event's name.
    pub(crate) event: Option<String>,
    /// The data lines, joined.
    pub(crate) data: String,
}

/// A frame is larger than anything we would want to keep.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooLarge;

/// Collects bytes and gives frames.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    buffer: Vec<u8>,
    frame: Frame,
    has_data: bool,
    after_return: bool,
    bytes: usize,
}

impl Parser {
    /// Takes the next bytes and returns the frames they complete.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<Vec<Frame>, TooLarge> {
        let mut frames = Vec::new();
        for &byte in bytes {
            // A return ends a line; a line feed right after it belongs to it.
            let feed_of_return = self.after_return && byte == b'\n';
            self.after_return = byte == b'\r';
            if feed_of_return {
                continue;
            }
            if byte != b'\n' && byte != b'\r' {
                self.bytes += 1;
                if self.bytes > FRAME_BYTES_MAX {
                    return Err(TooLarge);
                }
                self.buffer.push(byte);
                continue;
            }
            let line = std::mem::take(&mut self.buffer);
            if line.is_empty() {
                frames.extend(self.end());
            } else {
                self.field(&String::from_utf8_lossy(&line));
            }
        }
        Ok(frames)
    }

    fn end(&mut self) -> Option<Frame> {
        self.bytes = 0;
        let next = Frame {
            id: self.frame.id.clone(),
            ..Frame::default()
        };
        let frame = std::mem::replace(&mut self.frame, next);
        std::mem::take(&mut self.has_data).then_some(frame)
    }

    fn field(&mut self, line: &str) {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "id" if !value.contains('\0') => self.frame.id = Some(value.to_owned()),
            "event" => self.frame.event = Some(value.to_owned()),
            "data" => {
                if self.has_data {
                    self.frame.data.push('\n');
                }
                self.frame.data.push_str(value);
                self.has_data = true;
            }
            // Comments have an empty name; `retry` and unknown fields are passed over.
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = ": hello\n\nid: 1\nevent: a\ndata: {\"ü\":1}\n\nretry: 5\n\nid: 2\r\nevent: b\r\ndata: x\r\ndata: y\r\n\r\ndata:z\n\n";

    fn frames(chunk: usize) -> Vec<Frame> {
        let mut parser = Parser::default();
        let mut frames = Vec::new();
        for bytes in STREAM.as_bytes().chunks(chunk) {
            frames.extend(parser.push(bytes).unwrap());
        }
        frames
    }

    #[test]
    fn ap_sse_02_frames_do_not_depend_on_where_chunks_are_cut() {
        let frame = |id: &str, event: Option<&str>, data: &str| Frame {
            id: Some(id.to_owned()),
            event: event.map(str::to_owned),
            data: data.to_owned(),
        };
        let expected = vec![
            frame("1", Some("a"), "{\"ü\":1}"),
            frame("2", Some("b"), "x\ny"),
            frame("2", None, "z"),
        ];
        for chunk in 1..STREAM.len() {
            assert_eq!(frames(chunk), expected, "chunks of {chunk}");
        }
    }

    #[test]
    fn a_frame_without_end_is_refused() {
        let mut parser = Parser::default();
        let line = vec![b'x'; 1024 * 1024];
        let refused = (0..32).any(|_| parser.push(&line) == Err(TooLarge));
        assert!(refused);
    }
}
