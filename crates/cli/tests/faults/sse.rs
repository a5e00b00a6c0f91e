//! An event stream read from a bare socket, so that a test decides how much of it is read and where it is cut.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;
use tokio::net::TcpSocket;
use tokio::runtime::Handle;

use crate::client::text;

/// One frame.
#[derive(Debug, Clone)]
pub(crate) struct Frame {
    pub(crate) id: String,
    pub(crate) data: Value,
}

/// What reading led to.
#[derive(Debug)]
pub(crate) enum Got {
    Frame(Frame),
    /// Nothing has come for a moment.
    Silence,
    End,
}

pub(crate) struct Stream {
    socket: TcpStream,
    buffer: Vec<u8>,
    /// Bytes of the body read so far.
    pub(crate) read: usize,
}

/// How a stream is opened.
pub(crate) struct Opening<'a> {
    pub(crate) address: &'a str,
    pub(crate) key: &'a str,
    pub(crate) path: &'a str,
    pub(crate) last: Option<&'a str>,
    /// The receive buffer of the socket; none for what the system gives.
    pub(crate) window: Option<u32>,
}

impl Stream {
    /// Opens a stream and reads the answer's head. For threads outside the runtime.
    pub(crate) fn open(runtime: &Handle, opening: &Opening<'_>) -> std::io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        if let Some(window) = opening.window {
            socket.set_recv_buffer_size(window)?;
        }
        let address = opening.address.parse().unwrap();
        let socket = runtime.block_on(socket.connect(address))?.into_std()?;
        socket.set_nonblocking(false)?;
        // Long enough for a frame that is on its way, short enough to notice that a test is over.
        socket.set_read_timeout(Some(Duration::from_millis(50)))?;
        let cursor = opening
            .last
            .map_or(String::new(), |id| format!("Last-Event-ID: {id}\r\n"));
        let mut stream = Self {
            socket,
            buffer: Vec::new(),
            read: 0,
        };
        // With HTTP/1.0 the body comes as it is, until the connection ends.
        write!(
            stream.socket,
            "GET {} HTTP/1.0\r\nHost: {}\r\nAuthorization: Bearer {}\r\n\
             Harn-Agents-Protocol-Version: agents-protocol-2026-04-25\r\n{cursor}\r\n",
            opening.path, opening.address, opening.key
        )?;
        let head = loop {
            if let Some(at) = find(&stream.buffer, b"\r\n\r\n") {
                let rest = stream.buffer.split_off(at + 4);
                break std::mem::replace(&mut stream.buffer, rest);
            }
            if stream.fill(1)? == Some(0) {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
        };
        let head = String::from_utf8(head).unwrap();
        assert!(
            head.starts_with("HTTP/1.0 200 ") && head.contains("text/event-stream"),
            "{head}"
        );
        Ok(stream)
    }

    /// Reads up to this many bytes; none when nothing came.
    fn fill(&mut self, most: usize) -> std::io::Result<Option<usize>> {
        let mut bytes = vec![0; most];
        match self.socket.read(&mut bytes) {
            Ok(count) => {
                self.buffer.extend_from_slice(&bytes[..count]);
                Ok(Some(count))
            }
            Err(error)
                if matches!(
                    error.kind(),
                    std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
                ) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the next whole frame, reading at most this many bytes at a time.
    pub(crate) fn next(&mut self, most: usize) -> Got {
        loop {
            if let Some(at) = find(&self.buffer, b"\n\n") {
                let rest = self.buffer.split_off(at + 2);
                let frame = std::mem::replace(&mut self.buffer, rest);
                let frame = String::from_utf8(frame).unwrap();
                if frame.starts_with(':') {
                    continue;
                }
                return Got::Frame(parse(&frame));
            }
            match self.fill(most) {
                Ok(Some(0)) | Err(_) => return Got::End,
                Ok(Some(count)) => self.read += count,
                Ok(None) => return Got::Silence,
            }
        }
    }
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes
        .windows(wanted.len())
        .position(|window| window == wanted)
}

fn parse(frame: &str) -> Frame {
    let member = |name: &str| {
        let mut lines = frame.lines().filter_map(|line| line.strip_prefix(name));
        let value = lines.next().unwrap_or_else(|| panic!("{frame:?}"));
        assert_eq!(lines.next(), None, "{frame:?}");
        value.to_owned()
    };
    let data: Value = serde_json::from_str(&member("data: ")).unwrap();
    let id = member("id: ");
    assert_eq!(id, text(&data["id"]));
    assert_eq!(member("event: "), text(&data["event"]));
    Frame { id, data }
}
