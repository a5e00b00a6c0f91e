//! Notifications of a field over a WebSocket: one JSON text frame each.
//!
//! What is sent is what server-sent events deliver, to whoever may have those. Nothing piles up here: the engine is asked for
//! the next notification when the last one is gone, a client that does not take what is sent is dropped, and so is one that
//! answers no ping. Clients have nothing to say on it.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::http::{HeaderMap, header};
use axum::response::Response;
use engine::{FieldFrame, FieldStream};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use wire::Code;

use crate::app::App;
use crate::call::Call;
use crate::connection::{ConnectionSlot, ConnectionState};
use crate::failure::Failure;
use crate::listen::patience;

/// The longest message of a client that is read: it has nothing to say but control frames.
const INCOMING_BYTES_MAX: usize = 4 * 1024;
/// The most that waits to be sent.
const WAITING_BYTES_MAX: usize = 1024 * 1024;
/// How long a client may take to take a frame.
const SENDING_MAX: Duration = Duration::from_secs(10);
/// How long a farewell may take.
const FAREWELL_MAX: Duration = Duration::from_secs(1);
/// Pings that a client may leave unanswered.
const PINGS_MAX: u32 = 2;

/// Refuses what a page of somebody else opened in a browser.
pub(crate) fn check_origin(app: &App, headers: &HeaderMap) -> Result<(), Failure> {
    let mut origins = headers.get_all(header::ORIGIN).iter();
    let own = |origin: &[u8]| origin.eq_ignore_ascii_case(app.base_url.as_bytes());
    match origins.all(|origin| own(origin.as_bytes())) {
        true => Ok(()),
        false => Err(Failure::new(
            Code::PermissionDenied,
            "the page that asks does not come from this server",
        )
        .with("reason", json!("origin"))),
    }
}

/// Answers with the notifications of an agent.
pub(crate) fn notify(
    call: &Call,
    upgrade: WebSocketUpgrade,
    (life, seat): (Arc<ConnectionState>, Arc<ConnectionSlot>),
    stream: FieldStream,
) -> Response {
    let mut listener = Listener {
        app: Arc::clone(&call.app),
        stream,
        heartbeat: call.app.config.sse_heartbeat.max(Duration::from_secs(5)),
        closing: call.app.closing.clone(),
        revoked: call.app.keys.watch(call.credential),
        life,
        unanswered: 0,
    };
    // From now on the bytes are no longer those of HTTP.
    listener.life.upgraded();
    let open = Arc::clone(&call.app.sockets).try_read_owned();
    upgrade
        .max_message_size(INCOMING_BYTES_MAX)
        .max_frame_size(INCOMING_BYTES_MAX)
        .max_write_buffer_size(WAITING_BYTES_MAX)
        .on_upgrade(|mut socket| async move {
            // The connection keeps its place, and the stop of the server waits for the farewell.
            let _held = (seat, open);
            match listener.run(&mut socket).await {
                End::Gone => {}
                End::Closed => {
                    // A Close is answered with one, which leaves when the socket is asked for more.
                    let _ = timeout(FAREWELL_MAX, socket.recv()).await;
                }
                End::Because(code, reason) => {
                    let frame = CloseFrame {
                        code,
                        reason: reason.into(),
                    };
                    let farewell = socket.send(Message::Close(Some(frame)));
                    let _ = timeout(FAREWELL_MAX, farewell).await;
                }
            }
        })
}

/// Why a socket ends.
enum End {
    /// The client is gone, or takes nothing: there is nobody to say anything to.
    Gone,
    /// The client closes it.
    Closed,
    /// This server does, for a reason.
    Because(u16, &'static str),
}

struct Listener {
    app: Arc<App>,
    stream: FieldStream,
    heartbeat: Duration,
    closing: watch::Receiver<bool>,
    /// True once the key that opened the socket is no longer valid.
    revoked: watch::Receiver<bool>,
    life: Arc<ConnectionState>,
    unanswered: u32,
}

impl Listener {
    async fn run(&mut self, socket: &mut WebSocket) -> End {
        let mut ping_at = Instant::now() + self.heartbeat;
        loop {
            let message = tokio::select! {
                biased;
                _ = self.closing.wait_for(|closing| *closing) => {
                    return End::Because(close_code::AWAY, "the server is shutting down");
                }
                Ok(_) = self.revoked.wait_for(|revoked| *revoked) => {
                    return End::Because(close_code::POLICY, "the key is no longer valid");
                }
                () = self.life.over(patience(&self.app.config)) => {
                    return End::Because(close_code::AGAIN, "the connection was idle, and another one needs its place");
                }
                said = socket.recv() => match said {
                    Some(Ok(Message::Ping(_) | Message::Pong(_))) => {
                        self.unanswered = 0;
                        self.life.note_progress();
                        continue;
                    }
                    Some(Ok(Message::Text(_) | Message::Binary(_))) => {
                        return End::Because(close_code::UNSUPPORTED, "this socket takes no messages");
                    }
                    Some(Ok(Message::Close(_))) => return End::Closed,
                    Some(Err(_)) | None => return End::Gone,
                },
                frame = self.stream.next() => match frame {
                    Some(FieldFrame { data, .. }) => Message::Text(data.to_string().into()),
                    None => {
                        let reason = "notifications were missed: catch up by ATTUNE with since_epoch";
                        return End::Because(close_code::AGAIN, reason);
                    }
                },
                () = tokio::time::sleep_until(ping_at) => {
                    if self.unanswered >= PINGS_MAX {
                        return End::Because(close_code::POLICY, "pings are not answered");
                    }
                    self.unanswered += 1;
                    ping_at = Instant::now() + self.heartbeat;
                    Message::Ping(Vec::new().into())
                }
            };
            match timeout(SENDING_MAX, socket.send(message)).await {
                Ok(Ok(())) => self.life.note_progress(),
                // It is gone, or takes nothing: there is nobody to say it to.
                Ok(Err(_)) | Err(_) => return End::Gone,
            }
        }
    }
}
