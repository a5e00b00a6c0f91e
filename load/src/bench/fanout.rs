//! One writer, a thousand streams of the same Session: the time until every stream has every event.
//!
//! A stream that misses, repeats or reorders an event is a fault, not a figure.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::Bench;
use crate::crowd::MESSAGE_BYTES;
use crate::http::Lines;
use crate::noise::Watch;
use crate::program::Program;
use crate::report::{Budget, Line, Report, Unit};
use crate::text::printable;

const STREAMS: usize = 1_000;
const MESSAGES: usize = 50;
const FRAME_S_MAX: f64 = 3e-6;
/// A stream that lacks something for so long will not get it.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) async fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    let program = Program::start(bench, &bench.path("fanout")).await?;
    let alone = program.session().await?;
    let followed = program.session().await?;
    let write_alone = write(&program, &alone).await?;

    let mut streams = Vec::with_capacity(STREAMS);
    for _ in 0..STREAMS {
        let client = program.connect().await?;
        let path = format!("/v1/sessions/{followed}/events/stream");
        let mut stream = Follower::new(client.stream(&path).await?);
        // The event that made the Session: from here on the stream is live.
        stream.reach(1).await?;
        streams.push(stream);
    }
    let watch = Watch::start(&program.pids())?;
    let (began, cpu) = (Instant::now(), program.cpu_seconds());
    let wanted = events_per_session(&program, &alone).await?;
    let following: Vec<_> = streams
        .into_iter()
        .map(|mut stream| {
            tokio::spawn(async move {
                stream.reach(wanted).await?;
                Ok::<_, anyhow::Error>(stream.ids)
            })
        })
        .collect();
    write(&program, &followed).await?;
    let mut all = Vec::with_capacity(STREAMS);
    for one in following {
        all.push(one.await??);
    }
    let (took, cpu) = (began.elapsed(), program.cpu_seconds() - cpu);
    let noise = Some(watch.stop(&program.pids())?);
    let expected = event_ids(&program, &followed).await?;
    if let Some(wrong) = all.iter().find(|ids| **ids != expected) {
        bail!(
            "a stream has {} events and the log {}, or in another order",
            wrong.len(),
            expected.len()
        );
    }
    report.add(Line {
        name: "fanout.1000",
        value: took.as_secs_f64(),
        unit: Unit::Seconds,
        peer: Some(("without streams", write_alone.as_secs_f64())),
        budget: None,
        noise,
    });
    report.add(Line {
        name: "fanout.frames",
        value: (STREAMS * (wanted - 1)) as f64 / took.as_secs_f64(),
        unit: Unit::PerSecond,
        peer: None,
        budget: None,
        noise,
    });
    report.add(Line {
        name: "fanout.cpu",
        value: cpu / (STREAMS * (wanted - 1)) as f64,
        unit: Unit::Seconds,
        peer: None,
        budget: Some(Budget::Value(FRAME_S_MAX)),
        noise,
    });
    report.add(Line {
        name: "fanout.memory",
        value: program.resident_bytes()?,
        unit: Unit::Bytes,
        peer: None,
        budget: None,
        noise: None,
    });
    program.stop()
}

/// Appends the Messages one after another.
async fn write(program: &Program, session: &str) -> Result<Duration> {
    let mut client = program.connect().await?;
    let mut rng = fastrand::Rng::with_seed(3);
    let began = Instant::now();
    for _ in 0..MESSAGES {
        let text = printable(&mut rng, MESSAGE_BYTES);
        let path = format!("/v1/sessions/{session}/messages");
        let body = json!({"role": "user", "content": text});
        client.json("POST", &path, &body, 201).await?;
    }
    Ok(began.elapsed())
}

/// Returns how many events a Session with all Messages has.
async fn events_per_session(program: &Program, session: &str) -> Result<usize> {
    Ok(event_ids(program, session).await?.len())
}

async fn event_ids(program: &Program, session: &str) -> Result<Vec<String>> {
    let mut client = program.connect().await?;
    let path = format!("/v1/sessions/{session}/events?limit=200");
    let page = client.json("GET", &path, &Value::Null, 200).await?;
    if page.get("has_more") != Some(&json!(false)) {
        bail!("a page does not hold the events of the session");
    }
    let events = page.get("data").and_then(Value::as_array);
    let ids = events
        .context("a list without data")?
        .iter()
        .filter_map(|event| Some(event.get("id")?.as_str()?.to_owned()));
    Ok(ids.collect())
}

/// A stream and the ids it has brought.
struct Follower {
    lines: Lines,
    ids: Vec<String>,
}

impl Follower {
    fn new(lines: Lines) -> Self {
        Self {
            lines,
            ids: Vec::new(),
        }
    }

    /// Reads until this many events have come.
    async fn reach(&mut self, count: usize) -> Result<()> {
        while self.ids.len() < count {
            let ids = &mut self.ids;
            let more = self.lines.more(|line| {
                if let Some(id) = line.strip_prefix(b"id: ") {
                    ids.push(String::from_utf8_lossy(id).into_owned());
                }
            });
            match tokio::time::timeout(PATIENCE, more).await {
                Ok(more) => more?,
                Err(_) => bail!("a stream stopped at {} of {count} events", self.ids.len()),
            }
        }
        Ok(())
    }
}
