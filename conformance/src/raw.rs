//! Exchanges where exact bytes matter.
//!
//! Owns one HTTP/1.1 exchange over a plain socket: the request is sent as written, the answer's body is returned as the
//! bytes the server framed. Used for repeated header lines, absent headers, and streams whose first bytes are judged.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

use crate::json::short;
use crate::miss::{Miss, fail, unseen};
use crate::wire::{Answer, VERSION, VERSION_HEADER, Wire};

/// A request written line by line. `Host` is always sent, nothing else is added.
#[derive(Debug)]
pub(crate) struct Request {
    first_line: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Request {
    pub(crate) fn new(method: &str, path: &str) -> Self {
        Self {
            first_line: format!("{method} {path}"),
            headers: Vec::new(),
            body: Vec::new(),
        }
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Adds the credential.
    pub(crate) fn key(self, wire: &Wire) -> Self {
        self.header("Authorization", &format!("Bearer {}", wire.key))
    }

    /// Adds the version header.
    pub(crate) fn version(self) -> Self {
        self.header(VERSION_HEADER, VERSION)
    }

    /// Adds a JSON body with its headers.
    pub(crate) fn json(mut self, body: &serde_json::Value) -> Self {
        self.body = body.to_string().into_bytes();
        let length = self.body.len().to_string();
        self.header("Content-Type", "application/json")
            .header("Content-Length", &length)
    }

    /// Sends the request and reads the head of the answer.
    pub(crate) async fn open(self, wire: &Wire) -> Result<Exchange, Miss> {
        let (Some(host), Some(port), "http") = (
            wire.base.host_str(),
            wire.base.port_or_known_default(),
            wire.base.scheme(),
        ) else {
            return unseen("needs a plain http:// address");
        };
        let prefix = wire.base.path().trim_end_matches('/');
        let (method, path) = self
            .first_line
            .split_once(' ')
            .unwrap_or((self.first_line.as_str(), "/"));
        let mut text = format!("{method} {prefix}{path} HTTP/1.1\r\nHost: {host}:{port}\r\n");
        for (name, value) in &self.headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        let mut bytes = format!("{text}\r\n").into_bytes();
        bytes.extend(&self.body);
        let deadline = Instant::now() + wire.timeout;
        let connected = timeout_at(deadline, async {
            let mut socket = TcpStream::connect((host.trim_matches(['[', ']']), port)).await?;
            socket.write_all(&bytes).await?;
            Ok::<_, std::io::Error>(socket)
        });
        match connected.await {
            Ok(Ok(socket)) => {
                let label = self.first_line;
                Ok(Exchange {
                    label,
                    socket,
                    unread: Vec::new(),
                    framing: Framing::UntilClose,
                    closed: false,
                    status: 0,
                    headers: Vec::new(),
                })
            }
            Ok(Err(error)) => fail(
                format!("an answer to {}", self.first_line),
                error.to_string(),
            ),
            Err(_) => fail(format!("an answer to {}", self.first_line), "none in time"),
        }
    }

    /// Sends the request and reads the whole answer.
    pub(crate) async fn send(self, wire: &Wire) -> Result<Answer, Miss> {
        let mut exchange = self.open(wire).await?;
        exchange.head(wire.timeout).await?;
        let body = exchange.body(wire.timeout, |_| false).await;
        let answer = exchange.answer(body);
        wire.ledger()
            .note_answer(&answer.label, answer.header("content-type"), &answer.body);
        Ok(answer)
    }
}

fn pairs(headers: &[(String, String)]) -> reqwest::header::HeaderMap {
    let parsed = headers.iter().filter_map(|(name, value)| {
        Some((
            name.parse::<reqwest::header::HeaderName>().ok()?,
            value.parse().ok()?,
        ))
    });
    parsed.collect()
}

/// How the length of a body is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Framing {
    Chunked,
    Length(usize),
    UntilClose,
}

/// An exchange whose answer is being read.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) label: String,
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    socket: TcpStream,
    unread: Vec<u8>,
    framing: Framing,
    closed: bool,
}

impl Exchange {
    /// Sends further bytes; tells whether the server still takes them.
    pub(crate) async fn push(&mut self, bytes: &[u8]) -> bool {
        self.socket.write_all(bytes).await.is_ok()
    }

    /// Tells whether the server has begun to answer or has closed, without waiting longer than asked.
    pub(crate) async fn answered(&mut self, within: Duration) -> bool {
        !self.unread.is_empty() || self.read_more(Instant::now() + within).await || self.closed
    }

    /// Reads the status line and the headers.
    pub(crate) async fn head(&mut self, within: Duration) -> Result<(), Miss> {
        let deadline = Instant::now() + within;
        let end = loop {
            if let Some(end) = find(&self.unread, b"\r\n\r\n") {
                break end;
            }
            if !self.read_more(deadline).await {
                return fail(
                    format!("an answer to {}", self.label),
                    short(&String::from_utf8_lossy(&self.unread)),
                );
            }
        };
        let rest = self.unread.split_off(end + 4);
        let head = String::from_utf8_lossy(&std::mem::replace(&mut self.unread, rest)).into_owned();
        let mut lines = head.split("\r\n");
        let status = lines
            .next()
            .and_then(|line| line.split(' ').nth(1))
            .and_then(|code| code.parse().ok());
        self.status = status.unwrap_or_default();
        self.headers = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        self.framing = framing(&self.headers);
        Ok(())
    }

    /// Reads the body until it ends, until `enough` says so, or until the time is over.
    pub(crate) async fn body(
        &mut self,
        within: Duration,
        enough: impl Fn(&[u8]) -> bool,
    ) -> Vec<u8> {
        let deadline = Instant::now() + within;
        loop {
            let (body, complete) = unframe(&self.unread, self.framing);
            if complete || enough(&body) || !self.read_more(deadline).await {
                return body;
            }
        }
    }

    /// Ends the exchange and returns it as a whole answer.
    pub(crate) fn answer(self, body: Vec<u8>) -> Answer {
        Answer {
            label: self.label,
            status: self.status,
            headers: pairs(&self.headers),
            body,
        }
    }

    async fn read_more(&mut self, deadline: Instant) -> bool {
        let mut piece = [0; 16 * 1024];
        match timeout_at(deadline, self.socket.read(&mut piece)).await {
            Ok(Ok(0) | Err(_)) => {
                self.closed = true;
                false
            }
            Ok(Ok(length)) => {
                self.unread.extend(piece.iter().take(length));
                true
            }
            Err(_) => false,
        }
    }
}

fn framing(headers: &[(String, String)]) -> Framing {
    let header = |name: &str| {
        headers
            .iter()
            .find(|(found, _)| found == name)
            .map(|(_, value)| value.as_str())
    };
    if header("transfer-encoding")
        .is_some_and(|value| value.to_ascii_lowercase().contains("chunked"))
    {
        return Framing::Chunked;
    }
    header("content-length")
        .and_then(|value| value.parse().ok())
        .map_or(Framing::UntilClose, Framing::Length)
}

/// Returns the body bytes received so far and whether they are all.
fn unframe(bytes: &[u8], framing: Framing) -> (Vec<u8>, bool) {
    match framing {
        Framing::UntilClose => (bytes.to_vec(), false),
        Framing::Length(length) => (
            bytes.iter().copied().take(length).collect(),
            bytes.len() >= length,
        ),
        Framing::Chunked => dechunk(bytes),
    }
}

fn dechunk(mut bytes: &[u8]) -> (Vec<u8>, bool) {
    let mut body = Vec::new();
    while let Some(line_end) = find(bytes, b"\r\n") {
        let (line, rest) = bytes.split_at(line_end);
        let digits = String::from_utf8_lossy(line);
        let size = usize::from_str_radix(digits.split(';').next().unwrap_or_default().trim(), 16);
        let (Ok(size), Some(chunk)) = (size, rest.get(2..)) else {
            break;
        };
        if size == 0 {
            return (body, true);
        }
        body.extend(chunk.iter().take(size));
        match chunk.get(size + 2..) {
            Some(next) => bytes = next,
            None => break,
        }
    }
    (body, false)
}

/// Returns where a pattern first occurs.
pub(crate) fn find(bytes: &[u8], pattern: &[u8]) -> Option<usize> {
    bytes
        .windows(pattern.len())
        .position(|window| window == pattern)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers one connection with fixed bytes and returns what it was sent.
    async fn canned(answer: &'static str) -> (Wire, tokio::task::JoinHandle<String>) {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0))
            .await
            .unwrap();
        let url = format!("http://{}/prefix/", listener.local_addr().unwrap());
        let task = tokio::spawn(async move {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut seen = vec![0; 4096];
            let length = socket.read(&mut seen).await.unwrap();
            socket.write_all(answer.as_bytes()).await.unwrap();
            String::from_utf8_lossy(&seen[..length]).into_owned()
        });
        let wire = Wire::new(
            url.parse().unwrap(),
            "the-key".to_owned(),
            (None, None),
            None,
            Duration::from_secs(2),
        );
        (wire.unwrap(), task)
    }

    #[tokio::test]
    async fn a_request_is_sent_as_written_and_the_answer_read_whole() {
        let answer = "HTTP/1.1 426 Upgrade Required\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n\
            3\r\n{\"a\r\n4\r\n\":1}\r\n0\r\n\r\n";
        let (wire, sent) = canned(answer).await;
        let request = Request::new("GET", "/v1/tasks")
            .key(&wire)
            .version()
            .header(VERSION_HEADER, "other");
        let answer = request.send(&wire).await.unwrap();
        assert_eq!(
            (answer.status, answer.body_text().as_str()),
            (426, "{\"a\":1}")
        );
        assert_eq!(answer.header("content-type"), "application/json");
        let sent = sent.await.unwrap();
        assert!(
            sent.starts_with("GET /prefix/v1/tasks HTTP/1.1\r\nHost: 127.0.0.1:"),
            "{sent}"
        );
        assert_eq!(sent.matches(VERSION_HEADER).count(), 2, "{sent}");
        assert!(sent.contains("Authorization: Bearer the-key\r\n"), "{sent}");
    }

    #[tokio::test]
    async fn a_server_that_closes_without_an_answer_fails_the_request() {
        let (wire, _) = canned("HTTP/1.1 200").await;
        let answer = Request::new("GET", "/").send(&wire).await;
        assert!(matches!(answer, Err(Miss::Fail { found, .. }) if found == "HTTP/1.1 200"));
    }

    #[test]
    fn chunks_are_joined_as_far_as_they_came() {
        let all = b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n";
        assert_eq!(dechunk(all), (b"abcde".to_vec(), true));
        assert_eq!(dechunk(b"3\r\nabc\r\n5\r\nde"), (b"abcde".to_vec(), false));
        assert_eq!(dechunk(b"3\r\na"), (b"a".to_vec(), false));
        assert_eq!(dechunk(b"3"), (Vec::new(), false));
    }

    #[test]
    fn the_framing_follows_the_headers() {
        let headers = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
        assert_eq!(
            framing(&headers("transfer-encoding", "Chunked")),
            Framing::Chunked
        );
        assert_eq!(
            framing(&headers("content-length", "12")),
            Framing::Length(12)
        );
        assert_eq!(framing(&[]), Framing::UntilClose);
    }
}
