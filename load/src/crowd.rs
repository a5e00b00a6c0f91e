//! Clients that do one thing over and over, each on its own connection and in its own Session.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use fastrand::Rng;
use serde_json::{Value, json};

use crate::http::Client;
use crate::program::Program;
use crate::samples::Samples;
use crate::text::printable;

/// How long the text of a Message is.
pub(crate) const MESSAGE_BYTES: usize = 1_024;

/// What a client does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    /// Appends a Message.
    Append,
    /// Appends a Message without a body, which is refused after version, credential and decoding.
    Refused,
    /// Runs a Task of the default agent to COMPLETED.
    Task,
    /// Reads a Task.
    ReadTask,
    /// Reads a Session.
    ReadSession,
    /// Asks whether the server lives, which touches nothing.
    Health,
}

/// One client.
#[derive(Debug)]
pub(crate) struct Worker {
    client: Client,
    session: String,
    messages: String,
    tasks: String,
    task: String,
    rng: Rng,
}

impl Worker {
    /// Connects, and makes a Session with a finished Task in it.
    pub(crate) async fn new(program: &Program, seed: u64) -> Result<Self> {
        let session = program.session().await?;
        let mut worker = Self {
            client: program.connect().await?,
            session: format!("/v1/sessions/{session}"),
            messages: format!("/v1/sessions/{session}/messages"),
            tasks: format!("/v1/sessions/{session}/tasks"),
            task: String::new(),
            rng: Rng::with_seed(seed),
        };
        worker.run_task().await?;
        Ok(worker)
    }

    /// Connects to a server that takes whatever is posted and keeps nothing.
    async fn bare(address: &str, seed: u64) -> Result<Self> {
        Ok(Self {
            client: Client::connect(address, "none").await?,
            session: String::new(),
            messages: "/v1/sessions/none/messages".to_owned(),
            tasks: String::new(),
            task: String::new(),
            rng: Rng::with_seed(seed),
        })
    }

    /// Does it once.
    pub(crate) async fn act(&mut self, act: Act) -> Result<()> {
        let (expect, (status, answer)) = match act {
            Act::Append => {
                let text = printable(&mut self.rng, MESSAGE_BYTES);
                let body = serde_json::to_vec(&json!({"role": "user", "content": text}))?;
                let answer = self.client.send("POST", &self.messages, &body).await?;
                (201, answer)
            }
            Act::Refused => (400, self.client.send("POST", &self.messages, b"{}").await?),
            Act::Task => return self.run_task().await,
            Act::ReadTask => (200, self.client.send("GET", &self.task, b"").await?),
            Act::ReadSession => (200, self.client.send("GET", &self.session, b"").await?),
            Act::Health => (200, self.client.send("GET", "/healthz", b"").await?),
        };
        if status != expect {
            bail!("{act:?}: {status} {}", String::from_utf8_lossy(&answer));
        }
        Ok(())
    }

    async fn run_task(&mut self) -> Result<()> {
        let text = printable(&mut self.rng, MESSAGE_BYTES);
        let body = json!({"input": {"role": "user", "content": text}});
        let mut task = self.client.json("POST", &self.tasks, &body, 202).await?;
        let id = task.get("id").and_then(Value::as_str);
        self.task = format!("/v1/tasks/{}", id.context("a task without id")?);
        loop {
            match task.get("status").and_then(Value::as_str) {
                Some("COMPLETED") => return Ok(()),
                Some("SUBMITTED" | "WORKING") => {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    task = self
                        .client
                        .json("GET", &self.task, &Value::Null, 200)
                        .await?;
                }
                other => bail!("a task of the default agent became {other:?}"),
            }
        }
    }
}

/// What a crowd did.
#[derive(Debug)]
pub(crate) struct Work {
    /// How long each thing took.
    pub(crate) samples: Samples,
    elapsed: Duration,
}

impl Work {
    pub(crate) fn count(&self) -> f64 {
        self.samples.len() as f64
    }

    pub(crate) fn per_second(&self) -> f64 {
        self.count() / self.elapsed.as_secs_f64()
    }
}

/// Clients side by side.
#[derive(Debug)]
pub(crate) struct Crowd {
    workers: Vec<Worker>,
}

impl Crowd {
    pub(crate) async fn new(program: &Program, len: u64) -> Result<Self> {
        let mut workers = Vec::new();
        for seed in 0..len {
            workers.push(Worker::new(program, seed).await?);
        }
        Ok(Self { workers })
    }

    /// The same, at a server that takes whatever is posted and keeps nothing.
    pub(crate) async fn bare(address: &str, len: u64) -> Result<Self> {
        let mut workers = Vec::new();
        for seed in 0..len {
            workers.push(Worker::bare(address, seed).await?);
        }
        Ok(Self { workers })
    }

    /// Lets everyone do it for a while. What was begun in time is finished and counted.
    pub(crate) async fn work(&mut self, act: Act, length: Duration) -> Result<Work> {
        let began = Instant::now();
        let running: Vec<_> = self
            .workers
            .drain(..)
            .map(|mut worker| {
                tokio::spawn(async move {
                    let mut samples = Samples::default();
                    while began.elapsed() < length {
                        let start = Instant::now();
                        worker.act(act).await?;
                        samples.add(start.elapsed());
                    }
                    Ok::<_, anyhow::Error>((worker, samples))
                })
            })
            .collect();
        let mut samples = Samples::default();
        for one in running {
            let (worker, taken) = one.await??;
            self.workers.push(worker);
            samples.append(taken);
        }
        Ok(Work {
            samples,
            elapsed: began.elapsed(),
        })
    }
}
