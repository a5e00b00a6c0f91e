//! Following a Task until it ends, through lost connections and restarts of the server.
//!
//! Invariant: every event is handed on once and in the order of the log, whatever happens to the connection.

use std::collections::BTreeSet;
use std::time::Duration;

use effects::sse::Reader;
use tokio::time::{Instant, sleep, timeout};

use super::{Client, Event, StreamError, Task};
use crate::exit::Problem;
use crate::output::inform;

/// The first wait before a new connection; each further one is twice as long.
const WAIT_MIN: Duration = Duration::from_millis(200);
const WAIT_MAX: Duration = Duration::from_secs(10);
/// How long a server may be away.
const AWAY_MAX: Duration = Duration::from_secs(300);
/// The most bytes one event may have.
const EVENT_BYTES_MAX: usize = 16 * 1024 * 1024;
/// How long to listen for the rest of the last commit to a server that does not close the stream.
const LINGER: Duration = Duration::from_secs(2);

/// What the listener wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    /// More.
    Continue,
    /// No more.
    Stop,
}

/// Hands each event of a Task behind the cursor to `listener` and returns the Task when it has ended or the listener has enough.
///
/// # Errors
/// The server refuses, cannot be reached at all, or stays away for longer than five minutes.
pub(crate) async fn follow(
    client: &Client,
    task: &str,
    cursor: &mut Cursor,
    mut listener: impl FnMut(&Event) -> anyhow::Result<Flow>,
) -> anyhow::Result<Task> {
    let mut contact: Option<Instant> = None;
    let mut wait = WAIT_MIN;
    loop {
        let lost = match client
            .stream(&["v1", "tasks", task, "stream"], cursor.last.as_deref())
            .await
        {
            Ok(response) => {
                contact = Some(Instant::now());
                let heard = listen(client, response, cursor, &mut listener).await?;
                let complete = match heard {
                    ConnectionEnd::Enough => return client.task(task).await,
                    ConnectionEnd::Some => {
                        wait = WAIT_MIN;
                        cursor.ended
                    }
                    // A server may end a Task without a word that we know.
                    ConnectionEnd::End => true,
                    ConnectionEnd::Nothing => cursor.ended,
                };
                // Only the Task itself can say whether a stream that ended was at its end.
                match client.task(task).await {
                    Ok(task) if task.status.is_terminal() && complete => return Ok(task),
                    Ok(_) => None,
                    Err(error) => Some(error),
                }
            }
            Err(StreamError::Refused(error)) => return Err(error),
            Err(StreamError::Busy(error)) => Some(error),
            Err(StreamError::Lost(error)) => Some(client.unreachable(&error)),
        };
        let away = contact.map(|contact| contact.elapsed());
        match (lost, away) {
            (Some(error), None) => return Err(error),
            (Some(error), Some(away)) if away > AWAY_MAX => return Err(error),
            (Some(_), Some(_)) => {
                inform(format_args!(
                    "connection lost; trying again in {:.1} s",
                    wait.as_secs_f32()
                ));
            }
            (None, _) => {}
        }
        sleep(wait).await;
        wait = (wait * 2).min(WAIT_MAX);
    }
}

/// How far a listener has come. A later call with the same one goes on behind it.
#[derive(Debug, Default)]
pub(crate) struct Cursor {
    last: Option<String>,
    seen: BTreeSet<String>,
    ended: bool,
}

/// What came of one connection.
enum ConnectionEnd {
    /// The listener has what it wanted.
    Enough,
    /// Something, then the connection ended.
    Some,
    /// Nothing: the server closed the stream properly.
    End,
    /// Nothing: the connection broke.
    Nothing,
}

async fn listen(
    client: &Client,
    mut response: reqwest::Response,
    cursor: &mut Cursor,
    listener: &mut impl FnMut(&Event) -> anyhow::Result<Flow>,
) -> anyhow::Result<ConnectionEnd> {
    let mut reader = Reader::new(EVENT_BYTES_MAX);
    let mut heard = ConnectionEnd::Nothing;
    loop {
        let chunk = if cursor.ended {
            match timeout(LINGER, response.chunk()).await {
                Ok(chunk) => chunk,
                Err(_) => return Ok(heard),
            }
        } else {
            response.chunk().await
        };
        let bytes = match (chunk, &heard) {
            (Ok(Some(bytes)), _) => bytes,
            (Ok(None), ConnectionEnd::Nothing) => return Ok(ConnectionEnd::End),
            (Ok(None) | Err(_), _) => return Ok(heard),
        };
        let events = reader.push(&bytes).map_err(|_| {
            let message = format!("`{}` sent an event without end", client.address());
            Problem::new(
                message,
                "check that the address is that of an Agents Protocol server",
            )
        })?;
        for data in events {
            let Some(event) = cursor.next(&data)? else {
                continue;
            };
            heard = ConnectionEnd::Some;
            if listener(&event)? == Flow::Stop {
                return Ok(ConnectionEnd::Enough);
            }
        }
    }
}

impl Cursor {
    /// Reads an event; none when it was seen before.
    fn next(&mut self, data: &[u8]) -> anyhow::Result<Option<Event>> {
        let value = serde_json::from_slice(data).unwrap_or_default();
        let event = Event::read(value)?;
        if event.kind == "error" {
            let word = |pointer: &str| {
                event
                    .payload
                    .pointer(pointer)
                    .and_then(|word| word.as_str())
            };
            let code = word("/error/code").unwrap_or("error");
            let message = word("/error/message").unwrap_or("the stream failed");
            return Err(super::refusal(code, message, None).into());
        }
        if !self.seen.insert(event.id.clone()) {
            return Ok(None);
        }
        self.last = Some(event.id.clone());
        self.ended |= event.ends_task();
        Ok(Some(event))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(id: &str, kind: &str) -> Vec<u8> {
        let event = json!({"object": "event", "id": id, "event": kind, "payload": {}});
        event.to_string().into_bytes()
    }

    #[test]
    fn ap_sse_05_an_event_that_comes_twice_is_handed_on_once() {
        let mut cursor = Cursor::default();
        assert!(
            cursor
                .next(&event("a", "task.submitted"))
                .unwrap()
                .is_some()
        );
        assert!(cursor.next(&event("b", "task.started")).unwrap().is_some());
        assert!(
            cursor
                .next(&event("a", "task.submitted"))
                .unwrap()
                .is_none()
        );
        assert_eq!(cursor.last.as_deref(), Some("b"));
        assert!(!cursor.ended);
        assert!(cursor.next(&event("c", "task.canceled")).unwrap().is_some());
        assert!(cursor.ended);
    }

    #[test]
    fn ap_sse_06_an_error_frame_is_an_error() {
        let mut cursor = Cursor::default();
        let data = json!({"object": "event", "id": "e", "event": "error",
            "payload": {"error": {"code": "cursor_expired", "message": "too old"}}});
        let error = cursor.next(data.to_string().as_bytes()).unwrap_err();
        assert_eq!(error.to_string(), "too old (cursor_expired)");
    }
}
