//! Notices a server that talks without end.
//!
//! A process has one voice for all calls, so that too much of it spoils the connection. Behind an address each call
//! has its own answer: one that is too long is cut off and replaced by an error of ours.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use canon::Value;
use rmcp::model::{ErrorCode, ErrorData, RequestId, ServerJsonRpcMessage};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::watch;

/// How many of the longest messages may come between the beginning of a call and the end of one.
const MESSAGES_PER_CALL: u64 = 16;

/// What a server has said lately. Shared by those who read and those who wait.
#[derive(Debug, Clone)]
pub(super) struct Flood(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    message_bytes_max: usize,
    message: AtomicUsize,
    total: AtomicU64,
    noticed: watch::Sender<bool>,
    /// Tells our own error from whatever a server says. Nobody else ever sees it.
    mark: Value,
}

impl Flood {
    /// # Errors
    /// Tells why nothing random could be had.
    pub(super) fn new(message_bytes_max: usize) -> Result<Self, String> {
        let mut mark = [0; 16];
        getrandom::fill(&mut mark).map_err(|error| error.to_string())?;
        Ok(Self(Arc::new(Shared {
            mark: u128::from_be_bytes(mark).to_string().into(),
            message_bytes_max,
            message: AtomicUsize::new(0),
            total: AtomicU64::new(0),
            noticed: watch::Sender::new(false),
        })))
    }

    /// Returns what takes the place of an answer that is too long.
    pub(super) fn cut(&self, request: RequestId) -> ServerJsonRpcMessage {
        let error = ErrorData {
            code: ErrorCode::INTERNAL_ERROR,
            message: "the answer is too long".into(),
            data: Some(self.0.mark.clone()),
        };
        ServerJsonRpcMessage::error(error, Some(request))
    }

    /// Returns whether an error says that an answer was cut off.
    pub(super) fn is_cut(&self, error: &ErrorData) -> bool {
        error.data.as_ref() == Some(&self.0.mark)
    }

    pub(super) fn message_bytes_max(&self) -> usize {
        self.0.message_bytes_max
    }

    /// A call begins or ends: what was said before is no part of it.
    pub(super) fn new_call(&self) {
        self.0.total.store(0, Ordering::Relaxed);
    }

    fn notice(&self) {
        self.0.noticed.send_replace(true);
    }

    pub(super) fn is_noticed(&self) -> bool {
        *self.0.noticed.borrow()
    }

    /// Returns when there is too much.
    pub(super) async fn exceeded(&self) {
        // The sender lives as long as we do.
        let _ = self
            .0
            .noticed
            .subscribe()
            .wait_for(|noticed| *noticed)
            .await;
    }

    /// Takes note of bytes whose messages end with a line; returns false when it is too much.
    fn heard(&self, bytes: &[u8]) -> bool {
        let shared = &self.0;
        let mut longest = 0;
        let mut lines = bytes.split(|byte| *byte == b'\n').peekable();
        while let Some(line) = lines.next() {
            longest = shared.message.load(Ordering::Relaxed) + line.len();
            let next = if lines.peek().is_some() { 0 } else { longest };
            shared.message.store(next, Ordering::Relaxed);
            if longest > shared.message_bytes_max {
                break;
            }
        }
        let count = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let total = shared
            .total
            .fetch_add(count, Ordering::Relaxed)
            .saturating_add(count);
        let max = u64::try_from(shared.message_bytes_max).unwrap_or(u64::MAX);
        let fits =
            longest <= shared.message_bytes_max && total <= max.saturating_mul(MESSAGES_PER_CALL);
        if !fits {
            self.notice();
        }
        fits
    }
}

/// A reader of lines that stops when there is too much.
#[derive(Debug)]
pub(super) struct BoundedLines<R> {
    inner: R,
    flood: Flood,
}

impl<R> BoundedLines<R> {
    pub(super) const fn new(inner: R, flood: Flood) -> Self {
        Self { inner, flood }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for BoundedLines<R> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.inner).poll_read(context, buffer))?;
        let new = buffer.filled().get(before..).unwrap_or_default();
        Poll::Ready(match this.flood.heard(new) {
            true => Ok(()),
            false => Err(io::Error::other("the server sent too much")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_messages_and_many_messages_are_noticed() {
        let flood = Flood::new(10).unwrap();
        assert!(flood.heard(b"0123456789\n01234"));
        assert!(flood.heard(b"56789\n"));
        assert!(!flood.is_noticed());
        assert!(!flood.heard(b"0123456789x"));
        assert!(flood.is_noticed());

        let flood = Flood::new(10).unwrap();
        assert!(flood.heard(&[b'\n'; 160]));
        flood.new_call();
        assert!(flood.heard(&[b'\n'; 160]));
        assert!(!flood.heard(b"\n"));
    }
}
