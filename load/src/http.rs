//! A client over one kept connection, as cheap as it can be: what it costs is taken from the server's cores.
//!
//! Knows only what our server sends: HTTP/1.1 with a length, and chunked bodies for streams.

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const VERSION: &str = "agents-protocol-2026-04-25";

/// One connection.
#[derive(Debug)]
pub(crate) struct Client {
    socket: TcpStream,
    headers: String,
    out: Vec<u8>,
    seen: Vec<u8>,
}

/// The head of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Head {
    status: u16,
    /// None when it is chunked.
    length: Option<usize>,
    /// Where the body begins.
    end: usize,
}

impl Client {
    /// Connects to `host:port`.
    pub(crate) async fn connect(address: &str, key: &str) -> Result<Self> {
        let socket = TcpStream::connect(address)
            .await
            .with_context(|| address.to_owned())?;
        socket.set_nodelay(true)?;
        Ok(Self {
            socket,
            headers: format!(
                "host: {address}\r\nauthorization: Bearer {key}\r\nharn-agents-protocol-version: {VERSION}\r\n"
            ),
            out: Vec::new(),
            seen: Vec::new(),
        })
    }

    /// Sends a request and returns status and body.
    pub(crate) async fn send(
        &mut self,
        method: &str,
        path: &str,
        body: &[u8],
    ) -> Result<(u16, Vec<u8>)> {
        let head = self.ask(method, path, body).await?;
        let length = head.length.context("the answer has no length")?;
        while self.seen.len() < head.end + length {
            self.read().await?;
        }
        let rest = self.seen.split_off(head.end + length);
        let body = self.seen.split_off(head.end);
        self.seen = rest;
        Ok((head.status, body))
    }

    /// Sends a request that must be answered with this status, and reads the answer as JSON.
    pub(crate) async fn json(
        &mut self,
        method: &str,
        path: &str,
        body: &Value,
        status: u16,
    ) -> Result<Value> {
        let body = match body {
            Value::Null => Vec::new(),
            body => serde_json::to_vec(body)?,
        };
        let (got, answer) = self.send(method, path, &body).await?;
        if got != status {
            bail!(
                "{method} {path} answered {got}: {}",
                String::from_utf8_lossy(&answer)
            );
        }
        Ok(serde_json::from_slice(&answer)?)
    }

    /// Opens a stream.
    pub(crate) async fn stream(mut self, path: &str) -> Result<Lines> {
        let head = self.ask("GET", path, b"").await?;
        if head.status != 200 || head.length.is_some() {
            bail!("GET {path} answered {} and no stream", head.status);
        }
        let rest = self.seen.split_off(head.end);
        Ok(Lines {
            socket: self.socket,
            chunks: Chunks::default(),
            raw: rest,
            text: Vec::new(),
        })
    }

    async fn ask(&mut self, method: &str, path: &str, body: &[u8]) -> Result<Head> {
        let Self { headers, out, .. } = self;
        out.clear();
        out.extend_from_slice(format!("{method} {path} HTTP/1.1\r\n{headers}").as_bytes());
        if !body.is_empty() {
            out.extend_from_slice(b"content-type: application/json\r\n");
        }
        out.extend_from_slice(format!("content-length: {}\r\n\r\n", body.len()).as_bytes());
        out.extend_from_slice(body);
        self.socket.write_all(out).await?;
        loop {
            if let Some(head) = head(&self.seen)? {
                return Ok(head);
            }
            self.read().await?;
        }
    }

    async fn read(&mut self) -> Result<()> {
        if self.socket.read_buf(&mut self.seen).await? == 0 {
            bail!("the server closed the connection");
        }
        Ok(())
    }
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes
        .windows(wanted.len())
        .position(|window| window == wanted)
}

/// Reads a head; none when it is not complete.
fn head(bytes: &[u8]) -> Result<Option<Head>> {
    let Some(end) = find(bytes, b"\r\n\r\n") else {
        return Ok(None);
    };
    let text = String::from_utf8_lossy(bytes.get(..end).unwrap_or_default()).into_owned();
    let mut lines = text.split("\r\n");
    let status = lines
        .next()
        .and_then(|line| line.split(' ').nth(1))
        .and_then(|code| code.parse().ok())
        .context("the answer has no status")?;
    let length = lines
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .and_then(|(_, value)| value.trim().parse().ok());
    Ok(Some(Head {
        status,
        length,
        end: end + 4,
    }))
}

/// The lines of a stream.
#[derive(Debug)]
pub(crate) struct Lines {
    socket: TcpStream,
    chunks: Chunks,
    raw: Vec<u8>,
    text: Vec<u8>,
}

impl Lines {
    /// Waits for more and hands on each line that is complete.
    pub(crate) async fn more(&mut self, mut line: impl FnMut(&[u8])) -> Result<()> {
        if self.raw.is_empty() && self.socket.read_buf(&mut self.raw).await? == 0 {
            bail!("the server closed a stream");
        }
        self.chunks.decode(&self.raw, &mut self.text)?;
        self.raw.clear();
        let complete = self
            .text
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |last| last + 1);
        for text in self
            .text
            .drain(..complete)
            .as_slice()
            .split(|byte| *byte == b'\n')
        {
            line(text);
        }
        Ok(())
    }
}

/// Takes chunked transfer coding off, across reads.
#[derive(Debug, Default)]
struct Chunks {
    size: String,
    left: usize,
    /// True after a chunk: its closing line break is to be skipped.
    closing: bool,
}

impl Chunks {
    fn decode(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) -> Result<()> {
        while let Some((byte, rest)) = bytes.split_first() {
            if self.left > 0 {
                let (part, rest) = bytes.split_at(self.left.min(bytes.len()));
                out.extend_from_slice(part);
                self.left -= part.len();
                self.closing = self.left == 0;
                bytes = rest;
                continue;
            }
            bytes = rest;
            match byte {
                b'\n' if self.closing => self.closing = false,
                b'\n' => {
                    self.left = usize::from_str_radix(&self.size, 16)
                        .with_context(|| format!("`{}` is not the length of a chunk", self.size))?;
                    if self.left == 0 {
                        bail!("the server ended a stream");
                    }
                    self.size.clear();
                }
                b'\r' => {}
                digit => self.size.push(char::from(*digit)),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_when_it_is_complete() {
        assert_eq!(head(b"HTTP/1.1 201 Created\r\nContent-Le").unwrap(), None);
        let text = b"HTTP/1.1 201 Created\r\nContent-Length: 12\r\n\r\nabc";
        let expect = Head {
            status: 201,
            length: Some(12),
            end: text.len() - 3,
        };
        assert_eq!(head(text).unwrap(), Some(expect));
    }

    #[test]
    fn chunks_are_joined_wherever_reads_cut_them() {
        let raw = b"3\r\nabc\r\nb\r\nid: 1\r\n\r\nxy\r\n";
        for cut in 0..raw.len() {
            let mut chunks = Chunks::default();
            let mut out = Vec::new();
            chunks.decode(&raw[..cut], &mut out).unwrap();
            chunks.decode(&raw[cut..], &mut out).unwrap();
            assert_eq!(out, b"abcid: 1\r\n\r\nxy", "cut at {cut}");
        }
        assert!(
            Chunks::default()
                .decode(b"0\r\n\r\n", &mut Vec::new())
                .is_err()
        );
    }
}
