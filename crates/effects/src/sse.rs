//! Reads server-sent events out of the pieces in which a body arrives. Only data: every format that is read here
//! repeats the name and the id of the event inside it.

/// An event without end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventTooLong;

/// What has come and is not a whole event yet.
#[derive(Debug)]
pub struct Reader {
    line: Vec<u8>,
    data: Option<Vec<u8>>,
    /// The last byte was a carriage return: a line feed right behind it belongs to it.
    after_return: bool,
    bytes_max: usize,
}

impl Reader {
    /// Reads events of at most so many bytes each.
    pub fn new(bytes_max: usize) -> Self {
        Self {
            line: Vec::new(),
            data: None,
            after_return: false,
            bytes_max,
        }
    }

    /// Takes a piece of the body and returns the data of the events that it completes.
    ///
    /// # Errors
    /// An event is longer than allowed.
    pub fn push(&mut self, piece: &[u8]) -> Result<Vec<Vec<u8>>, EventTooLong> {
        let mut events = Vec::new();
        let mut rest = piece;
        while let Some((&first, tail)) = rest.split_first() {
            if std::mem::take(&mut self.after_return) && first == b'\n' {
                rest = tail;
                continue;
            }
            let end = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            let (head, tail) = rest.split_at(end.unwrap_or(rest.len()));
            self.line.extend_from_slice(head);
            if self.line.len() + self.data.as_ref().map_or(0, Vec::len) > self.bytes_max {
                return Err(EventTooLong);
            }
            if let Some((end, tail)) = tail.split_first() {
                self.after_return = *end == b'\r';
                let line = std::mem::take(&mut self.line);
                events.extend(self.take_line(&line));
                rest = tail;
            } else {
                rest = tail;
            }
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
    fn ap_sse_02_events_are_the_same_however_the_body_is_cut() {
        let body = "event: ping\r\ndata: {\"a\":\r\ndata: 1}\r\n\r\n: comment\nid: 7\ndata:two ü\n\n\ndata: three\r\rretry: 5\n\ndata: cut off";
        for size in 1..body.len() {
            let mut reader = Reader::new(64);
            let events: Vec<Vec<u8>> = body
                .as_bytes()
                .chunks(size)
                .flat_map(|piece| reader.push(piece).unwrap())
                .collect();
            let expected = ["{\"a\":\n1}", "two ü", "three"].map(str::as_bytes);
            assert_eq!(events, expected, "{size}");
        }
    }

    #[test]
    fn an_event_without_end_is_refused() {
        let mut reader = Reader::new(1_000);
        reader.push(&[b'x'; 1_000]).unwrap();
        assert_eq!(reader.push(b"x"), Err(EventTooLong));
        let mut reader = Reader::new(1_000);
        let refused = (0..200).any(|_| reader.push(b"data: 123456\n") == Err(EventTooLong));
        assert!(refused);
    }
}
