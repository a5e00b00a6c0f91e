//! Event streams over HTTP (AP-SSE).
//!
//! The body asks the engine for the next event when the connection has room for it: a slow reader is served from the
//! log later, and nothing piles up here. A stream ends with its Task's log, or when the server stops. The frame of a new event
//! is rendered once and delivered by every stream that wants it. The first event after a pause is sent at once; those that
//! follow within a moment are gathered and sent together, because a write to a socket costs more than a frame.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use canon::Map;
use domain::Position;
use engine::port::Clock;
use engine::{Engine, EventRange, EventStream, Frame, Refused};
use futures_util::stream;
use tokio::sync::watch;
use tokio::time::{Duration, Instant};
use wire::{Code, ErrorBody};

use crate::app::App;
use crate::call::Call;
use crate::failure::{Failure, Reply};
use crate::world::SystemClock;

/// How many bytes of frames are gathered for one write.
const PIECE_BYTES: usize = 64 * 1024;

/// How many events wait for others to be sent with them. Whoever has more is behind.
const GATHERED_MAX: usize = 64;

/// How long a stream lets events gather after a write: with few streams nobody notices it, and a burst of events costs each
/// reader a few writes instead of one an event. With many streams it is as long as a round of writes to all of them takes: in
/// less than that nothing would gather.
fn gathers_for(streams: u64) -> Duration {
    const EACH: Duration = Duration::from_micros(50);
    const FROM: Duration = Duration::from_millis(5);
    const TO: Duration = Duration::from_millis(50);
    let streams = u32::try_from(streams).unwrap_or(u32::MAX);
    EACH.saturating_mul(streams).clamp(FROM, TO)
}

/// What the last frame of a stream says whose key was revoked.
const REVOKED: &str = "the key that opened this stream is no longer valid";

/// Opens a stream. A cursor that cannot be used becomes one error frame, then the end (C-17).
pub(crate) async fn open(call: &Call, range: EventRange) -> Reply {
    match call.app.engine.stream(&call.caller, range).await {
        Ok(events) => Ok(answer(Body::from_stream(stream::unfold(
            Reader {
                app: Arc::clone(&call.app),
                events,
                heartbeat: call.app.config.sse_heartbeat.max(Duration::from_secs(5)),
                closing: call.app.closing.clone(),
                revoked: call.app.keys.watch(call.credential),
                request_id: call.request_id.clone(),
                waiting: None,
                written: None,
                is_over: false,
            },
            Reader::next,
        )))),
        Err(Refused::CursorExpired) => Ok(answer(Body::from(error_frame(
            Code::CursorExpired,
            &Refused::CursorExpired.to_string(),
            &call.request_id,
        )))),
        Err(refused) => Err(refused.into()),
    }
}

fn answer(body: Body) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    // Proxies that buffer would hold frames back.
    (headers, [("x-accel-buffering", "no")], body).into_response()
}

/// Writes the frame that says why a stream ends.
fn error_frame(code: Code, message: &str, request_id: &str) -> Bytes {
    let error = ErrorBody {
        code,
        message,
        param: None,
        request_id,
        details: &Map::new(),
    };
    wire::error_frame(&error, SystemClock.now()).into()
}

/// What a reader waited for.
enum Wakeup {
    Frame(Frame),
    Silence,
    Revoked,
    Failed(Refused),
}

struct Reader {
    app: Arc<App>,
    events: EventStream,
    heartbeat: Duration,
    closing: watch::Receiver<bool>,
    /// True once the key that opened the stream is no longer valid.
    revoked: watch::Receiver<bool>,
    request_id: String,
    /// A frame that was taken out of its stream and not delivered yet.
    waiting: Option<Frame>,
    /// When something was last sent.
    written: Option<Instant>,
    is_over: bool,
}

impl Reader {
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        if self.is_over {
            return None;
        }
        let had_waited = self.waiting.is_some();
        let wakeup = tokio::select! {
            // A stop ends a stream however much there is left to send: its reader resumes elsewhere.
            biased;
            _ = self.closing.wait_for(|closing| *closing) => return None,
            Ok(_) = self.revoked.wait_for(|revoked| *revoked) => Wakeup::Revoked,
            frame = next_frame(&mut self.waiting, &mut self.events) => match frame {
                Ok(Some(frame)) => Wakeup::Frame(frame),
                Ok(None) => return None,
                Err(refused) => Wakeup::Failed(refused),
            },
            () = tokio::time::sleep(self.heartbeat) => Wakeup::Silence,
        };
        let text = match wakeup {
            Wakeup::Frame(frame) => {
                // History waits for nothing, nor does a reader that is behind, nor what has waited for its content.
                if !frame.replayed
                    && !had_waited
                    && self.events.at_hand() < GATHERED_MAX
                    && let Some(written) = self.written
                {
                    let until = written + gathers_for(self.app.engine.open_streams());
                    if Instant::now() < until {
                        tokio::time::sleep_until(until).await;
                    }
                }
                let frames = &self.app.frames;
                frames.render_with(&self.app.engine, &frame).await
            }
            Wakeup::Silence => Bytes::from_static(wire::heartbeat()),
            Wakeup::Revoked => {
                self.is_over = true;
                error_frame(Code::Unauthenticated, REVOKED, &self.request_id)
            }
            Wakeup::Failed(refused) => {
                tracing::error!(%refused, request.id = self.request_id, "a stream ended early");
                // Its end must not look like the end of a log.
                self.is_over = true;
                let failure = Failure::from(refused);
                error_frame(failure.code, &failure.message, &self.request_id)
            }
        };
        let piece = match self.is_over {
            true => text,
            false => self.with_ready(text),
        };
        self.written = Some(Instant::now());
        Some((Ok(piece), self))
    }

    /// Returns a frame and those that are at hand after it as one piece: one write for a burst of events.
    fn with_ready(&mut self, first: Bytes) -> Bytes {
        if first.len() >= PIECE_BYTES {
            return first;
        }
        let Some(next) = self.rendered_ready() else {
            return first;
        };
        let mut piece = BytesMut::from(&*first);
        piece.extend_from_slice(&next);
        while piece.len() < PIECE_BYTES
            && let Some(next) = self.rendered_ready()
        {
            piece.extend_from_slice(&next);
        }
        piece.freeze()
    }

    /// Returns the text of the next event if nothing has to be read for it. Otherwise it waits for its turn.
    fn rendered_ready(&mut self) -> Option<Bytes> {
        if self.waiting.is_some() {
            return None;
        }
        let frame = self.events.next_ready()?;
        let text = self.app.frames.render(&frame);
        if text.is_none() {
            self.waiting = Some(frame);
        }
        text
    }
}

/// Answers with the notifications of an agent. The stream ends when some were missed, so that its reader catches up.
pub(crate) fn notify(call: &Call, stream: engine::FieldStream) -> Response {
    let listener = Listener {
        heartbeat: call.app.config.sse_heartbeat.max(Duration::from_secs(5)),
        closing: call.app.closing.clone(),
        revoked: call.app.keys.watch(call.credential),
        stream,
        request_id: call.request_id.clone(),
        is_new: true,
        is_over: false,
    };
    answer(Body::from_stream(stream::unfold(listener, Listener::next)))
}

struct Listener {
    stream: engine::FieldStream,
    heartbeat: Duration,
    closing: watch::Receiver<bool>,
    revoked: watch::Receiver<bool>,
    request_id: String,
    is_new: bool,
    is_over: bool,
}

impl Listener {
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        if std::mem::take(&mut self.is_new) {
            // The head goes out with the first bytes: now its reader knows that it is heard.
            return Some((Ok(Bytes::from_static(wire::heartbeat())), self));
        }
        if self.is_over {
            return None;
        }
        let text = tokio::select! {
            biased;
            _ = self.closing.wait_for(|closing| *closing) => return None,
            Ok(_) = self.revoked.wait_for(|revoked| *revoked) => {
                self.is_over = true;
                error_frame(Code::Unauthenticated, REVOKED, &self.request_id)
            }
            frame = self.stream.next() => {
                let engine::FieldFrame { id, event, data } = frame?;
                Bytes::from(format!("id: {id}\nevent: {event}\ndata: {data}\n\n"))
            }
            () = tokio::time::sleep(self.heartbeat) => Bytes::from_static(wire::heartbeat()),
        };
        Some((Ok(text), self))
    }
}

/// Returns the frame that waits, else the next one.
async fn next_frame(
    waiting: &mut Option<Frame>,
    events: &mut EventStream,
) -> Result<Option<Frame>, Refused> {
    match waiting.take() {
        Some(frame) => Ok(Some(frame)),
        None => events.next().await,
    }
}

/// How many bytes of rendered frames are kept. A reader that is further behind renders for itself.
const RENDERED_BYTES_MAX: usize = 1024 * 1024;

/// The newest live frames, in the order of their events.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    recent: Mutex<Recent>,
}

#[derive(Debug, Default)]
struct Recent {
    frames: VecDeque<(Position, Bytes)>,
    bytes: usize,
}

impl Frames {
    /// Returns the text of an event in a stream; none when content must be read for it first, which
    /// [`Frames::render_with`] does.
    pub(crate) fn render(&self, frame: &Frame) -> Option<Bytes> {
        let bytes = &frame.event.bytes;
        let render = || {
            let is_whole = !wire::may_keep_beside(bytes);
            is_whole.then(|| Bytes::from(wire::frame(bytes, frame.replayed)))
        };
        // Events from before a stream opened are marked as such: theirs are not shared.
        if frame.replayed {
            return render();
        }
        // Rendered under the lock, so that readers who come together render it once.
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.get_or_render(frame.event.position, render)
    }

    /// Returns the text of an event with the content that it keeps beside itself.
    pub(crate) async fn render_with(&self, engine: &Engine, frame: &Frame) -> Bytes {
        if let Some(bytes) = self.render(frame) {
            return bytes;
        }
        let event = &frame.event;
        // A stream goes on without the content: the event says where it is.
        let content = engine.expansion(event).await.unwrap_or_else(|refused| {
            tracing::warn!(%refused, "content of an event could not be read for a stream");
            Vec::new()
        });
        let render = || {
            let text = wire::expanded_frame(&event.bytes, frame.replayed, &content);
            Some(Bytes::from(text))
        };
        let rendered = match frame.replayed {
            true => render(),
            false => {
                let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
                recent.get_or_render(event.position, render)
            }
        };
        rendered.unwrap_or_default()
    }
}

impl Recent {
    fn get_or_render(
        &mut self,
        position: Position,
        render: impl FnOnce() -> Option<Bytes>,
    ) -> Option<Bytes> {
        match self
            .frames
            .binary_search_by_key(&position, |(known, _)| *known)
        {
            Ok(place) => self
                .frames
                .get(place)
                .map_or_else(render, |(_, bytes)| Some(bytes.clone())),
            Err(place) => {
                let bytes = render()?;
                // Only the newest are kept in order; whoever asks for an older one is alone with it.
                if place == self.frames.len() && bytes.len() <= RENDERED_BYTES_MAX {
                    self.bytes += bytes.len();
                    self.frames.push_back((position, bytes.clone()));
                    while self.bytes > RENDERED_BYTES_MAX
                        && let Some((_, oldest)) = self.frames.pop_front()
                    {
                        self.bytes -= oldest.len();
                    }
                }
                Some(bytes)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_frame_is_rendered_once_however_many_readers_ask() {
        let mut recent = Recent::default();
        let rendered = Cell::new(0);
        let render = || {
            rendered.set(rendered.get() + 1);
            Some(Bytes::from_static(b"frame"))
        };
        for _ in 0..1_000 {
            assert_eq!(recent.get_or_render(Position(7), render).unwrap(), "frame");
        }
        assert_eq!(rendered.get(), 1);
        recent.get_or_render(Position(8), render);
        recent.get_or_render(Position(7), render);
        assert_eq!(rendered.get(), 2);
    }

    #[test]
    fn events_gather_for_longer_the_more_streams_are_open() {
        let millis = |streams| gathers_for(streams).as_millis();
        assert_eq!([1, 100, 400].map(millis), [5, 5, 20]);
        assert_eq!([1_000, 100_000, u64::MAX].map(millis), [50, 50, 50]);
    }

    #[test]
    fn what_is_kept_is_bounded_and_stays_in_order() {
        let mut recent = Recent::default();
        let large = || Some(Bytes::from(vec![b'x'; RENDERED_BYTES_MAX / 4]));
        for position in [1, 2, 3, 4, 5, 3, 1, 9, 8] {
            assert_eq!(
                recent
                    .get_or_render(Position(position), large)
                    .unwrap()
                    .len(),
                RENDERED_BYTES_MAX / 4
            );
            assert!(recent.bytes <= RENDERED_BYTES_MAX);
        }
        let kept: Vec<u64> = recent
            .frames
            .iter()
            .map(|(position, _)| position.0)
            .collect();
        assert_eq!(kept, [3, 4, 5, 9]);
        let whole = recent.get_or_render(Position(10), || {
            Some(Bytes::from(vec![0; RENDERED_BYTES_MAX + 1]))
        });
        assert_eq!(whole.unwrap().len(), RENDERED_BYTES_MAX + 1);
        assert_eq!(recent.frames.len(), 4);
    }
}
