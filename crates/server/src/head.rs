//! The connection below the HTTP library: what the library refuses by itself gets the protocol's error.
//!
//! A head that cannot be read never reaches the router: the library answers it with a bare status, and one that does not
//! come to its end with nothing. There is no second reader of heads before it, because two readers that differ are a
//! way to smuggle requests. Instead this stream looks at what the library writes while no request is being answered: that can only
//! be an answer of its own, and it is replaced. A head that takes too long is answered here and then ended.
//!
//! For whole requests this costs two flags and a look for the end of the first line.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime};

use axum::http::StatusCode;
use bytes::{Buf, Bytes};
use engine::port::Ids;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};
use wire::{Code, ErrorBody};

use crate::app::App;
use crate::connection::ConnectionState;
use crate::world::RandomIds;

/// How all answers of HTTP/1 begin.
const ANSWER: &[u8] = b"HTTP/1.1 ";
/// How a connection of HTTP/2 begins: it has no bare answers.
const PREFACE: &[u8] = b"PRI ";
/// How far the end of a first line is looked for.
const LINE_BYTES_MAX: usize = 4_096;

/// A stream whose bare refusals have a body.
pub(crate) struct HeadGuard<S> {
    stream: S,
    app: Arc<App>,
    life: Arc<ConnectionState>,
    /// How long a head may take.
    patience: Duration,
    is_http_2: bool,
    /// Whether a part of a head is there, and what its first line says of the version.
    head: Option<Version>,
    timer: Option<Pin<Box<Sleep>>>,
    own: Option<Own>,
    /// Nothing more is read: the last answer was given.
    is_over: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    /// One that is spoken here, or nobody knows yet.
    Spoken,
    Other,
}

/// An answer of ours on its way out.
struct Own {
    rest: Bytes,
    /// How many bytes of the library's answer it stands for.
    replaces: usize,
}

impl<S> HeadGuard<S> {
    pub(crate) fn new(
        stream: S,
        app: Arc<App>,
        life: Arc<ConnectionState>,
        patience: Duration,
    ) -> Self {
        Self {
            stream,
            app,
            life,
            patience,
            is_http_2: false,
            head: None,
            timer: None,
            own: None,
            is_over: false,
        }
    }

    /// Notes what came in while no request is being answered.
    fn note_received(&mut self, bytes: &[u8]) {
        if self.head.is_some() || self.is_http_2 {
            return;
        }
        if bytes.starts_with(PREFACE) {
            self.is_http_2 = true;
            return;
        }
        let start = bytes.get(..LINE_BYTES_MAX).unwrap_or(bytes);
        let line = start.iter().position(|byte| *byte == b'\n');
        self.head = Some(line.map_or(Version::Spoken, |end| {
            version(bytes.get(..end).unwrap_or_default())
        }));
    }

    fn begin(&mut self, status: u16, replaces: usize) {
        let status = match (status, self.head) {
            (400, Some(Version::Other)) => 505,
            _ => status,
        };
        self.own = Some(Own {
            rest: answer(status),
            replaces,
        });
        self.app
            .http
            .observe("other", "unreadable", status, Duration::ZERO);
        tracing::info!(status, "a request that cannot be read was refused");
    }
}

fn version(line: &[u8]) -> Version {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let word = line.rsplit(|byte| *byte == b' ').next().unwrap_or_default();
    match word {
        b"HTTP/1.1" | b"HTTP/1.0" => Version::Spoken,
        _ if word.starts_with(b"HTTP/") => Version::Other,
        _ => Version::Spoken,
    }
}

/// Writes the error that stands for a bare status.
fn answer(status: u16) -> Bytes {
    let (reason, message) = match status {
        408 => ("head_timeout", "the request head did not arrive in time"),
        414 => ("uri_too_long", "the request target is too long"),
        431 => (
            "headers_too_large",
            "the request headers are too many or too large",
        ),
        505 => (
            "http_version",
            "only HTTP/1.0, HTTP/1.1 and HTTP/2 are supported",
        ),
        _ => ("malformed_head", "the request head cannot be parsed"),
    };
    let request_id = format!("req_{}", RandomIds.body());
    let mut details = canon::Map::new();
    details.insert("reason".to_owned(), json!(reason));
    let body = ErrorBody {
        code: Code::InvalidRequest,
        message,
        param: None,
        request_id: &request_id,
        details: &details,
    };
    let body = body.body().to_string();
    let words = StatusCode::from_u16(status)
        .ok()
        .and_then(|status| status.canonical_reason())
        .unwrap_or_default();
    let date = httpdate::fmt_http_date(SystemTime::now());
    let head = format!(
        "HTTP/1.1 {status} {words}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         cache-control: no-store\r\nconnection: close\r\nx-request-id: {request_id}\r\ndate: {date}\r\n\r\n",
        body.len()
    );
    Bytes::from(head + &body)
}

/// Returns the status of a bare answer.
fn status_of(bytes: &[u8]) -> Option<u16> {
    let digits = bytes.strip_prefix(ANSWER)?.get(..3)?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

impl<S: AsyncWrite + Unpin> HeadGuard<S> {
    /// Sends the rest of our own answer, and returns how much it stood for.
    fn poll_own(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        while let Some(own) = &mut self.own {
            if own.rest.is_empty() {
                let replaces = own.replaces;
                self.own = None;
                return Poll::Ready(Ok(replaces));
            }
            match ready!(Pin::new(&mut self.stream).poll_write(context, &own.rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                sent => own.rest.advance(sent),
            }
        }
        Poll::Ready(Ok(0))
    }

    /// Whether what the library wants to write is an answer of its own.
    fn is_bare(&self, bytes: &[u8]) -> Option<u16> {
        match self.is_http_2 || !self.life.is_waiting() {
            true => None,
            false => status_of(bytes).filter(|status| *status >= 400),
        }
    }

    /// Ends a head that takes too long. Ready when nothing more is to be read.
    fn poll_late(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.own.is_none() {
            if self.head.is_none() || self.is_http_2 || !self.life.is_waiting() {
                return Poll::Pending;
            }
            let (life, patience) = (&self.life, self.patience);
            let timer = self.timer.get_or_insert_with(|| {
                let until = Instant::now() + patience;
                // A connection that nobody knows is cut at its own time; this comes before. One that is known may have been
                // quiet for longer than a head may take.
                let until = match life.is_known() {
                    true => until,
                    false => until.min(life.last_progress() + patience),
                };
                Box::pin(sleep_until(until))
            });
            ready!(timer.as_mut().poll(context));
            self.begin(408, 0);
        }
        ready!(self.poll_own(context))?;
        ready!(Pin::new(&mut self.stream).poll_flush(context))?;
        self.is_over = true;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for HeadGuard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_over {
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        if self.own.is_none()
            && let Poll::Ready(read) = Pin::new(&mut self.stream).poll_read(context, buffer)
        {
            let new = buffer.filled().get(before..).unwrap_or_default();
            if !new.is_empty() && self.life.is_waiting() {
                self.note_received(new);
            }
            return Poll::Ready(read);
        }
        self.poll_late(context)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for HeadGuard<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.own.is_none() {
            match self.is_bare(bytes) {
                None => return Pin::new(&mut self.stream).poll_write(context, bytes),
                Some(status) => self.begin(status, bytes.len()),
            }
        }
        self.poll_own(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.own.is_none() {
            let first = pieces.first().map_or(&[][..], |piece| piece);
            match self.is_bare(first) {
                None => return Pin::new(&mut self.stream).poll_write_vectored(context, pieces),
                Some(status) => {
                    let length = pieces.iter().map(|piece| piece.len()).sum();
                    self.begin(status, length);
                }
            }
        }
        self.poll_own(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        // Whatever was answered is out: what comes next is a head.
        if flushed.is_ready() && self.life.sent() {
            self.head = None;
            self.timer = None;
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_lines_say_which_version_is_spoken() {
        for (line, expected) in [
            ("GET / HTTP/1.1\r", Version::Spoken),
            ("GET / HTTP/1.0", Version::Spoken),
            ("GET / HTTP/1.2\r", Version::Other),
            ("GET / HTTP/3.0\r", Version::Other),
            ("GET /\r", Version::Spoken),
            ("", Version::Spoken),
        ] {
            assert_eq!(version(line.as_bytes()), expected, "{line}");
        }
        assert_eq!(status_of(b"HTTP/1.1 431 X"), Some(431));
        assert_eq!(status_of(b"HTTP/1.1 4"), None);
        assert_eq!(status_of(b"\0\0\x12HTTP/1.1 400"), None);
    }
}
