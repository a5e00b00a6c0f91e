//! Server-sent events: AP-SSE.

use std::time::Duration;

use futures_util::{StreamExt, stream};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::json::{at, ids, short, show, text};
use crate::miss::{Checked, Miss, need, unseen};
use crate::raw::{Request, find};
use crate::registry::{Row, row};
use crate::scenario::{message, unknown_like};
use crate::sse::{Frame, Item};
use crate::wire::{Next, Stream, Wire, frame_data};

pub(crate) const ROWS: &[Row] = &[
    row!("AP-SSE-01", M, "a stream is `text/event-stream`", Now content_type),
    row!("AP-SSE-02", M, "every frame has `id`, `event` and JSON `data` that agree", Now frames),
    row!("AP-SSE-03", M, "a stream begins with a real frame and has no carriage return", Now first_bytes),
    row!("AP-SSE-04", M, "without a cursor a stream begins with the history", Now history),
    row!("AP-SSE-05", S, "`Last-Event-ID` resumes without gap or repetition", Restart resume),
    row!("AP-SSE-06", M, "an unknown cursor gets an error event and the end", Now bad_cursor),
    row!("AP-SSE-07", M, "a slow reader misses nothing", Now slow_reader),
    row!("AP-SSE-08", M, "a stream reads no request body", Now one_way),
    row!("AP-SSE-09", S, "an idle stream sends a comment every 15 s", Beside heartbeat),
    row!("AP-SSE-10", S, "a finished task's stream ends, a session's stays open", Now ends),
    row!("AP-SSE-11", M, "streams are chosen by path; `after_event_id` works as a cursor", Now by_path),
    row!("AP-SSE-12", M, "events from history are marked, live ones are not", Now marks),
];

const SOON: Duration = Duration::from_secs(5);
/// Long enough for frames that are due at once to arrive.
const LULL: Duration = Duration::from_millis(700);

fn task_stream(id: &str) -> String {
    format!("/v1/tasks/{id}/stream")
}

fn session_stream(id: &str) -> String {
    format!("/v1/sessions/{id}/events/stream")
}

async fn opened<'a>(wire: &'a Wire, path: &str) -> Result<Stream<'a>, Miss> {
    wire.get(path)
        .stream()
        .await?
        .opened()
        .map_err(|miss| miss.while_preparing("open a stream"))
}

/// Returns the ids of some frames as their `data` tells them, so that other members may be wrong.
fn data_ids(frames: &[Frame]) -> Vec<String> {
    frames
        .iter()
        .map(|frame| text(&frame_data(frame), "id").to_owned())
        .collect()
}

/// Returns the ids of what a stream brings: as many as are due, even if they come slowly, and whatever follows at once.
async fn arrived(mut stream: Stream<'_>, due: usize) -> Vec<String> {
    let mut frames = Vec::new();
    while frames.len() < due {
        match stream.frame(SOON).await {
            Some(frame) => frames.push(frame),
            None => break,
        }
    }
    frames.extend(stream.rest(LULL).await.0);
    data_ids(&frames)
}

async fn content_type(wire: &Wire) -> Checked {
    let task = wire.completed().await?;
    let paths = [
        task_stream(text(&task, "id")),
        session_stream(text(&task, "session_id")),
        "/v1/events/stream".to_owned(),
    ];
    for path in paths {
        let stream = wire.get(&path).stream().await?.opened()?;
        let holds = stream.content_type.starts_with("text/event-stream");
        need(
            holds,
            format!("{path}: `text/event-stream`"),
            stream.content_type.clone(),
        )?;
    }
    Ok(())
}

async fn frames(wire: &Wire) -> Checked {
    let task = wire.completed().await?;
    let (mut seen, _) = opened(wire, &task_stream(text(&task, "id")))
        .await?
        .rest(LULL)
        .await;
    seen.extend(
        opened(wire, &session_stream(text(&task, "session_id")))
            .await?
            .rest(LULL)
            .await
            .0,
    );
    need(!seen.is_empty(), "frames", "none")?;
    for frame in &seen {
        let data = frame_data(frame);
        let holds = frame.id.as_deref() == at(&data, "id").as_str()
            && frame.event.as_deref() == at(&data, "event").as_str()
            && frame.id.is_some()
            && frame.event.is_some();
        need(
            holds,
            "`id` and `event` lines equal to those in `data`",
            short(&format!("{frame:?}")),
        )?;
    }
    Ok(())
}

async fn first_bytes(wire: &Wire) -> Checked {
    let task = wire.completed().await?;
    for path in [
        task_stream(text(&task, "id")),
        session_stream(text(&task, "session_id")),
    ] {
        let body = raw_beginning(wire, &path, SOON).await?;
        let first = String::from_utf8_lossy(&body);
        need(
            !body.contains(&b'\r'),
            format!("{path}: no carriage return"),
            short(&first.escape_debug().to_string()),
        )?;
        let Some(end) = find(&body, b"\n\n") else {
            return crate::miss::fail(format!("{path}: a whole frame first"), short(&first));
        };
        let block = String::from_utf8_lossy(body.get(..end).unwrap_or_default()).into_owned();
        let lines: Vec<&str> = block.lines().collect();
        let real = lines.iter().all(|line| {
            ["id:", "event:", "data:"]
                .iter()
                .any(|name| line.starts_with(name))
        }) && ["id:", "event:", "data:"]
            .iter()
            .all(|name| lines.iter().any(|line| line.starts_with(name)));
        need(
            real,
            format!("{path}: first `id`, `event` and `data`"),
            short(&block),
        )?;
    }
    Ok(())
}

/// Reads a stream as bytes until its first frame is whole, its end, or the time is over.
pub(crate) async fn raw_beginning(
    wire: &Wire,
    path: &str,
    within: Duration,
) -> Result<Vec<u8>, Miss> {
    let request = Request::new("GET", path)
        .key(wire)
        .version()
        .header("Accept", "text/event-stream");
    let mut exchange = request.open(wire).await?;
    exchange.head(wire.timeout).await?;
    need(
        exchange.status == 200,
        format!("GET {path}: 200"),
        exchange.status.to_string(),
    )?;
    Ok(exchange
        .body(within, |body| find(body, b"\n\n").is_some())
        .await)
}

async fn history(wire: &Wire) -> Checked {
    let task = wire.completed().await?;
    let listed = ids(&wire.task_events(&task).await?);
    let mut stream = wire
        .get(task_stream(text(&task, "id")))
        .stream()
        .await?
        .opened()?;
    let frame = stream.frame(SOON).await;
    let found = frame.as_ref().map(frame_data).unwrap_or_default();
    let first = listed.first().cloned().unwrap_or_default();
    need(
        text(&found, "id") == first,
        format!("event `{first}` at once"),
        show(&found),
    )?;

    let session = wire.session().await?;
    wire.append(&session, "before").await?;
    let mut stream = wire
        .get(session_stream(&session))
        .stream()
        .await?
        .opened()?;
    need(
        stream.frame(SOON).await.is_some(),
        "the session's history at once",
        "nothing",
    )?;
    stream.rest(LULL).await;
    wire.append(&session, "after").await?;
    need(
        stream.frame(SOON).await.is_some(),
        "live events after the history",
        "nothing",
    )
}

async fn resume(wire: &Wire) -> Checked {
    let session = wire.session().await?;
    for words in ["one", "two", "three"] {
        wire.append(&session, words).await?;
    }
    let path = session_stream(&session);
    let whole = arrived(opened(wire, &path).await?, 3).await;
    let Some((seen, rest)) = whole.split_at_checked(2) else {
        return unseen("the stream has too few events");
    };
    let cursor = seen.last().cloned().unwrap_or_default();
    let call = wire.get(&path).header("Last-Event-ID", &cursor);
    let found = arrived(call.stream().await?.opened()?, rest.len()).await;
    need(
        found == rest,
        format!("after `{cursor}`: {rest:?}"),
        format!("{found:?}"),
    )?;
    if wire.restart.is_none() {
        return unseen("needs --restart (resuming on a running server was seen to work)");
    }
    wire.append(&session, "four").await?;
    let longer = arrived(opened(wire, &path).await?, whole.len() + 1).await;
    wire.restart().await?;
    let rest = longer.get(2..).unwrap_or_default();
    let call = wire.get(&path).header("Last-Event-ID", &cursor);
    let found = arrived(call.stream().await?.opened()?, rest.len()).await;
    need(
        found == rest,
        format!("after a restart: {rest:?}"),
        format!("{found:?}"),
    )
}

async fn bad_cursor(wire: &Wire) -> Checked {
    let task = wire.completed().await?;
    let last = ids(&wire.task_events(&task).await?)
        .last()
        .cloned()
        .unwrap_or_default();
    let unknown = unknown_like(&last);
    for path in [
        task_stream(text(&task, "id")),
        session_stream(text(&task, "session_id")),
    ] {
        for call in [
            wire.get(&path).header("Last-Event-ID", &unknown),
            wire.get(format!("{path}?after_event_id={unknown}")),
        ] {
            let mut stream = call.stream().await?.opened()?;
            let (seen, ended) = stream.rest(Duration::from_secs(2)).await;
            need(
                seen.len() == 1 && ended,
                "one frame and the end",
                format!("{} frames, ended: {ended}", seen.len()),
            )?;
            let frame = seen.first().cloned().unwrap_or_default();
            let data = frame_data(&frame);
            let holds = frame.event.as_deref() == Some("error")
                && text(&data, "object") == "event"
                && text(&data, "event") == "error"
                && text(&data, "payload.error.code") == "cursor_expired";
            need(
                holds,
                "event `error` with `payload.error.code` `cursor_expired`",
                short(&format!("{frame:?}")),
            )?;
        }
    }
    Ok(())
}

async fn slow_reader(wire: &Wire) -> Checked {
    const COUNT: usize = 400;
    let session = wire.session().await?;
    let mut stream = opened(wire, &session_stream(&session)).await?;
    let path = format!("/v1/sessions/{session}/messages");
    let body = json!({"message": message(&"slow ".repeat(600))});
    let appended = stream::iter(0..COUNT).map(|_| wire.post(&path, &body).made("append a message"));
    let appended: Vec<Result<Value, Miss>> = appended.buffer_unordered(16).collect().await;
    appended.into_iter().collect::<Result<Vec<_>, _>>()?;
    let expected = ids(&wire.session_events(&session).await?);
    let mut found = Vec::new();
    while found.len() < expected.len() {
        let Some(frame) = stream.frame(SOON).await else {
            break;
        };
        if frame.event.as_deref() == Some("error") {
            return Ok(());
        }
        found.push(text(&frame_data(&frame), "id").to_owned());
    }
    let hole = expected
        .iter()
        .zip(&found)
        .find(|(expected, found)| expected != found);
    need(
        hole.is_none() && found.len() == expected.len(),
        format!("all {} events in order", expected.len()),
        format!("{} events, first difference {hole:?}", found.len()),
    )
}

async fn one_way(wire: &Wire) -> Checked {
    let task = wire.completed().await?;
    let path = task_stream(text(&task, "id"));
    // The announced body never comes: only a server that waits for it stays silent.
    let request = Request::new("GET", &path)
        .key(wire)
        .version()
        .header("Content-Length", "1000");
    let mut exchange = request.open(wire).await?;
    exchange.head(SOON).await?;
    need(
        exchange.status == 200,
        "a stream without reading the body",
        exchange.status.to_string(),
    )?;
    let body = exchange
        .body(SOON, |body| find(body, b"data:").is_some())
        .await;
    need(
        find(&body, b"data:").is_some(),
        "frames without reading the body",
        short(&String::from_utf8_lossy(&body)),
    )
}

async fn heartbeat(wire: &Wire) -> Checked {
    let session = wire.session().await?;
    let mut stream = opened(wire, &session_stream(&session)).await?;
    let opened = Instant::now();
    // Silence is counted from the last thing that was seen, with some grace for a machine that is busy.
    let silence = Duration::from_secs(15 + 5);
    // Whatever a server sends instead, this has an end.
    let limit = Duration::from_secs(60);
    while opened.elapsed() < limit {
        match stream.next(silence).await {
            Next::Item(Item::Comment(_)) => {
                let after = opened.elapsed();
                return need(
                    after >= SOON,
                    "no comment in the first 5 s",
                    format!("one after {after:.1?}"),
                );
            }
            Next::Item(Item::Frame(_)) => {}
            Next::End => return crate::miss::fail("an open stream", "its end"),
            Next::Quiet => return crate::miss::fail("a comment within 15 s", "none"),
        }
    }
    crate::miss::fail("an idle stream", format!("events for {limit:?}"))
}

async fn ends(wire: &Wire) -> Checked {
    let task = wire.completed().await?;
    let (frames, ended) = opened(wire, &task_stream(text(&task, "id")))
        .await?
        .rest(Duration::from_secs(2))
        .await;
    need(
        ended,
        "the end of a finished task's stream",
        format!("open after {} frames", frames.len()),
    )?;
    for path in [
        session_stream(text(&task, "session_id")),
        "/v1/events/stream".to_owned(),
    ] {
        let mut stream = opened(wire, &path).await?;
        let deadline = Instant::now() + Duration::from_secs(10);
        while Instant::now() < deadline {
            match stream.next(Duration::from_millis(500)).await {
                Next::Item(_) => {}
                Next::Quiet => break,
                Next::End => {
                    return crate::miss::fail(format!("{path}: an open stream"), "its end");
                }
            }
        }
    }
    Ok(())
}

async fn by_path(wire: &Wire) -> Checked {
    let task = wire.completed().await?;
    let path = task_stream(text(&task, "id"));
    let stream = wire
        .get(&path)
        .header("Accept", "*/*")
        .stream()
        .await?
        .opened()?;
    let holds = stream.content_type.starts_with("text/event-stream");
    need(
        holds,
        "a stream for `Accept: */*`",
        stream.content_type.clone(),
    )?;
    let bare = Request::new("GET", &path).key(wire).version();
    let mut exchange = bare.open(wire).await?;
    exchange.head(SOON).await?;
    let streams = exchange
        .headers
        .iter()
        .any(|(name, value)| name == "content-type" && value.starts_with("text/event-stream"));
    need(
        streams,
        "a stream without `Accept`",
        format!("{:?}", exchange.headers),
    )?;
    let (whole, _) = opened(wire, &path).await?.rest(LULL).await;
    let whole = data_ids(&whole);
    let Some((first, rest)) = whole.split_first() else {
        return unseen("the stream has no events");
    };
    let (found, _) = wire
        .get(format!("{path}?after_event_id={first}"))
        .stream()
        .await?
        .opened()?
        .rest(LULL)
        .await;
    need(
        data_ids(&found) == rest,
        format!("after `{first}`: {rest:?}"),
        format!("{:?}", data_ids(&found)),
    )
}

async fn marks(wire: &Wire) -> Checked {
    let session = wire.session().await?;
    wire.append(&session, "history").await?;
    let mut stream = opened(wire, &session_stream(&session)).await?;
    let (old, _) = stream.rest(LULL).await;
    need(!old.is_empty(), "history frames", "none")?;
    for frame in &old {
        let data = frame_data(frame);
        let holds = at(&data, "replayed") == &Value::Bool(true)
            && data.get("replay").is_some_and(Value::is_null);
        need(
            holds,
            "history with `replayed` true and `replay` null",
            show(&data),
        )?;
    }
    wire.append(&session, "live").await?;
    let Some(frame) = stream.frame(SOON).await else {
        return unseen("no live frame came");
    };
    let data = frame_data(&frame);
    need(
        at(&data, "replayed") == &Value::Bool(false),
        "a live frame with `replayed` false",
        show(&data),
    )
}
