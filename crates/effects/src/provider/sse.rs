//! Reads server-sent events out of the pieces in which a body arrives. Only data: both formats repeat the name of
//! the event inside it.

/// The longest event.
pub(crate) const EVENT_BYTES_MAX: usize = 4 * 1024 * 1024;

/// An event without end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooLong;

/// What has come and is not a whole event yet.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    line: Vec<u8>,
    data: Option<Vec<u8>>,
}

impl Reader {
    /// Takes a piece of the body and returns the data of the events that it completes.
    pub(crate) fn push(&mut self, piece: &[u8]) -> Result<Vec<Vec<u8>>, TooLong> {
        let mut events = Vec::new();
        let mut rest = piece;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let (head, tail) = rest.split_at(end);
            rest = tail.get(1..).unwrap_or_default();
            self.line.extend_from_slice(head);
            let line = std::mem::take(&mut self.line);
            events.extend(self.take_line(line.strip_suffix(b"\r").unwrap_or(&line)));
        }
        self.line.extend_from_slice(rest);
        let held = self.line.len() + self.data.as_ref().map_or(0, Vec::len);
        if held > EVENT_BYTES_MAX {
            return Err(TooLong);
        }
        Ok(events)
    }

    fn take_line(&mut self, line: &[u8]) -> Option<Vec<u8>> {
        if line.is_empty() {
            return self.data.take();
        }
        if let Some(value) = line.strip_prefix(b"data:") {
            let value = value.strip_prefix(b" ").unwrap_or(value);
            match &mut self.data {
                Some(data) => {
                    data.push(b'\n');
                    data.extend_from_slice(value);
                }
                None => self.data = Some(value.to_owned()),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_the_same_however_the_body_is_cut() {
        let body = "event: ping\r\ndata: {\"a\":\r\ndata: 1}\r\n\r\n: comment\nid: 7\ndata:two ü\n\n\ndata: cut off";
        for size in 1..body.len() {
            let mut reader = Reader::default();
            let events: Vec<Vec<u8>> = body
                .as_bytes()
                .chunks(size)
                .flat_map(|piece| reader.push(piece).unwrap())
                .collect();
            assert_eq!(
                events,
                ["{\"a\":\n1}".as_bytes(), "two ü".as_bytes()],
                "{size}"
            );
        }
    }

    #[test]
    fn an_event_without_end_is_refused() {
        let mut reader = Reader::default();
        let piece = vec![b'x'; EVENT_BYTES_MAX];
        reader.push(&piece).unwrap();
        assert_eq!(reader.push(b"x"), Err(TooLong));
    }
}
