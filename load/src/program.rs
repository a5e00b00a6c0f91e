//! The program `reprise`, as a user runs it: a process with a data directory, watched from outside.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::Bench;
use crate::http::Client;
use crate::noise::cpu_seconds;

/// A running server.
#[derive(Debug)]
pub(crate) struct Program {
    child: Child,
    /// The server's own process; the child is the tracer when it is traced.
    pid: u32,
    address: String,
    key: String,
    trace: Option<PathBuf>,
}

impl Program {
    /// Starts a server on a data directory and waits until it is ready.
    pub(crate) async fn start(bench: &Bench, data: &Path) -> Result<Self> {
        Self::spawn(Command::new(&bench.program), data, None).await
    }

    /// Starts one whose syncs are written to a file by `strace`. The kernel stops it at those calls only.
    pub(crate) async fn start_traced(bench: &Bench, data: &Path, trace: PathBuf) -> Result<Self> {
        let mut command = Command::new("strace");
        command
            .args(["-f", "--seccomp-bpf", "--decode-pids=comm"])
            .args(["-e", "trace=fdatasync,fsync", "-o"])
            .arg(&trace)
            .arg(&bench.program);
        Self::spawn(command, data, Some(trace)).await
    }

    async fn spawn(mut command: Command, data: &Path, trace: Option<PathBuf>) -> Result<Self> {
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("REPRISE_") {
                command.env_remove(name);
            }
        }
        let mut child = command
            .args(["serve", "--examples", "--listen", "127.0.0.1:0", "--data"])
            .arg(data)
            .env("REPRISE_LOG_LEVEL", "warn")
            // One key keeps three quarters of all connections at most, and a thousand streams are one key's.
            .env("REPRISE_LIMITS_CONNECTIONS_MAX", "2048")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {:?}", command.get_program()))?;
        let mut said = BufReader::new(child.stderr.take().context("stderr is not piped")?);
        let mut all = String::new();
        let address = loop {
            let mut line = String::new();
            if said.read_line(&mut line)? == 0 {
                bail!("the server did not start:\n{all}");
            }
            // "reprise VERSION on http://ADDRESS, data in …"
            let found = line
                .split_once(" on http://")
                .and_then(|(_, rest)| rest.split(',').next());
            if let Some(address) = found {
                break address.to_owned();
            }
            all.push_str(&line);
        };
        // Read to its end, so that a full pipe stops nobody; what is no greeting is a warning.
        std::thread::spawn(move || {
            let lines = said.lines().map_while(Result::ok);
            for line in lines.filter(|line| !line.starts_with("stopping;")) {
                eprintln!("    server: {line}");
            }
        });
        let pid = match &trace {
            None => child.id(),
            Some(_) => only_child(child.id())?,
        };
        let key = fs::read_to_string(data.join("api-key")).context("no first key")?;
        let program = Self {
            child,
            pid,
            address,
            key: key.trim().to_owned(),
            trace,
        };
        let (status, _) = program.connect().await?.send("GET", "/readyz", b"").await?;
        if status != 200 {
            bail!("the server is not ready: {status}");
        }
        Ok(program)
    }

    /// Every process of it, the tracer included.
    pub(crate) fn pids(&self) -> [u32; 2] {
        [self.pid, self.child.id()]
    }

    /// Returns how long the server has been on a core.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        cpu_seconds(self.pid)
    }

    /// Opens a connection with the first key.
    pub(crate) async fn connect(&self) -> Result<Client> {
        Client::connect(&self.address, &self.key).await
    }

    /// Makes a Session and returns its id.
    pub(crate) async fn session(&self) -> Result<String> {
        let mut client = self.connect().await?;
        let session = client
            .json("POST", "/v1/sessions", &serde_json::json!({}), 201)
            .await?;
        let id = session.get("id").and_then(Value::as_str);
        Ok(id.context("a session without id")?.to_owned())
    }

    /// Returns a counter of `/metrics`.
    pub(crate) async fn counter(&self, name: &str) -> Result<f64> {
        let (_, text) = self.connect().await?.send("GET", "/metrics", b"").await?;
        String::from_utf8_lossy(&text)
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
            .with_context(|| format!("no counter `{name}`"))
    }

    /// Returns how many syncs the trace holds by now.
    pub(crate) fn syncs(&self) -> Result<Syncs> {
        let trace = self.trace.as_ref().context("the server is not traced")?;
        let text = fs::read_to_string(trace)?;
        // A call that another thread's call interrupts has a second line, without the parenthesis.
        let calls = text.lines().filter(|line| line.contains("sync("));
        let (writer, others): (Vec<&str>, Vec<&str>) =
            calls.partition(|line| line.contains("<store-write>"));
        Ok(Syncs {
            all: writer.len() + others.len(),
            writer: writer.len(),
        })
    }

    /// Returns the memory that is in use, in bytes.
    pub(crate) fn resident_bytes(&self) -> Result<f64> {
        let text = fs::read_to_string(format!("/proc/{}/status", self.pid))?;
        let kib = text
            .lines()
            .find_map(|line| {
                line.strip_prefix("VmRSS:")?
                    .split_whitespace()
                    .next()?
                    .parse::<f64>()
                    .ok()
            })
            .context("no VmRSS")?;
        Ok(kib * 1024.0)
    }

    /// Stops it as an operator would, and waits.
    pub(crate) fn stop(mut self) -> Result<()> {
        let sent = Command::new("kill")
            .args(["-s", "TERM", &self.pid.to_string()])
            .status()?;
        if !sent.success() {
            bail!("cannot signal the server");
        }
        let status = self.child.wait()?;
        if !status.success() {
            bail!("the server ended with {status}");
        }
        Ok(())
    }
}

/// Syncs counted from outside.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Syncs {
    pub(crate) all: usize,
    /// Those of the thread that commits; the others move the write-ahead log into the database.
    pub(crate) writer: usize,
}

impl Drop for Program {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            // A tracer that is killed leaves what it traces running.
            let _ = Command::new("kill")
                .args(["-s", "KILL", &self.pid.to_string()])
                .status();
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Returns the one process that another has started.
fn only_child(pid: u32) -> Result<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    let first = text.split_whitespace().next();
    first
        .and_then(|text| text.parse().ok())
        .context("strace has started nothing")
}

/// Returns the bytes of all files in a data directory, once nobody works in it.
pub(crate) fn stored_bytes(data: &Path) -> Result<f64> {
    let mut bytes = 0;
    let mut folders = vec![data.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let about = entry.metadata()?;
            if about.is_dir() {
                folders.push(entry.path());
            } else {
                bytes += about.len();
            }
        }
    }
    Ok(bytes as f64)
}
