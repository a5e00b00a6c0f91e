//! One run of a program: its own process group, bounded time, bounded output.
//!
//! Invariant: when a run has ended, or its future was dropped, nothing that a confined program started is left running,
//! and nothing of the process group of another.

use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::confine::{ConfinedCommand, NOT_STARTED};

/// How long outputs are read after the end, for a process that left the group and holds them open.
const DRAIN: Duration = Duration::from_millis(500);

/// What to run.
pub(super) struct ProcessSpec {
    pub(super) ready: ConfinedCommand,
    pub(super) stdin: Option<Vec<u8>>,
    pub(super) timeout_ms: u64,
    pub(super) output_bytes_max: usize,
}

/// What became of it.
#[derive(Debug)]
pub(super) enum ProcessOutcome {
    Ran {
        end: ProcessEnd,
        stdout: Captured,
        stderr: Captured,
    },
    NotStarted(String),
}

/// How a program that ran ended.
#[derive(Debug, Clone, Copy)]
pub(super) enum ProcessEnd {
    Exited { code: i32 },
    Killed { signal: i32 },
    TimedOut,
}

/// The kept part of an output.
#[derive(Debug, Clone, Default)]
pub(super) struct Captured {
    pub(super) bytes: Vec<u8>,
    pub(super) truncated: bool,
}

/// What a process stands for. It is ended when this is dropped.
#[derive(Debug)]
pub(crate) struct Group {
    leader: Option<Pid>,
    /// Whether the leader is a keeper, which ends all that it keeps when it is asked to.
    kept: bool,
}

impl Group {
    /// The group that a process leads, or whatever a keeper keeps.
    pub(crate) fn of(process: Option<u32>, kept: bool) -> Self {
        let leader = process
            .and_then(|id| i32::try_from(id).ok())
            .and_then(Pid::from_raw);
        Self { leader, kept }
    }

    /// Says that the process has ended. A keeper has ended all by then, and its number may be somebody else's.
    pub(crate) fn ended(mut self) {
        if self.kept {
            self.leader = None;
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Nobody is left to kill when all have ended by themselves.
        let _ = match self.leader.take() {
            Some(keeper) if self.kept => kill_process(keeper, Signal::TERM),
            Some(group) => kill_process_group(group, Signal::KILL),
            None => Ok(()),
        };
    }
}

pub(super) async fn run(order: ProcessSpec) -> ProcessOutcome {
    let ConfinedCommand {
        mut command,
        temporary,
        mark,
        kept,
    } = order.ready;
    command
        .stdin(match order.stdin {
            Some(_) => Stdio::piped(),
            None => Stdio::null(),
        })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        // A keeper that is killed can end nothing any more.
        .kill_on_drop(!kept);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return ProcessOutcome::NotStarted(error.to_string()),
    };
    let group = Group::of(child.id(), kept);
    let (stdout, stderr) = (Shared::default(), Shared::default());
    let mut jobs = JoinSet::new();
    if let Some(pipe) = child.stdout.take() {
        jobs.spawn(capture(pipe, stdout.clone(), order.output_bytes_max));
    }
    if let Some(pipe) = child.stderr.take() {
        jobs.spawn(capture(pipe, stderr.clone(), order.output_bytes_max));
    }
    if let (Some(mut pipe), Some(text)) = (child.stdin.take(), order.stdin) {
        jobs.spawn(async move {
            // A program may well end without reading.
            let _ = pipe.write_all(&text).await;
        });
    }
    let status = timeout(Duration::from_millis(order.timeout_ms), child.wait()).await;
    let in_time = status.is_ok();
    match in_time {
        true => group.ended(),
        false => drop(group),
    }
    let status = match status {
        Ok(status) => Some(status),
        // Collects what was killed, so that no dead process stays in the table.
        Err(_) => timeout(DRAIN, child.wait()).await.ok(),
    };
    let drain = async { while jobs.join_next().await.is_some() {} };
    let _ = timeout(DRAIN, drain).await;
    let end = match status {
        _ if !in_time => ProcessEnd::TimedOut,
        Some(Ok(status)) => match (status.code(), status.signal()) {
            (Some(code), _) => ProcessEnd::Exited { code },
            (None, signal) => ProcessEnd::Killed {
                signal: signal.unwrap_or_default(),
            },
        },
        Some(Err(error)) => return ProcessOutcome::NotStarted(error.to_string()),
        None => ProcessEnd::TimedOut,
    };
    // It may hold many files.
    tokio::task::spawn_blocking(move || drop(temporary));
    let stderr = stderr.take();
    let complaint = stderr.bytes.strip_prefix(mark.as_bytes());
    if let (ProcessEnd::Exited { code: NOT_STARTED }, Some(complaint), false) =
        (end, complaint, mark.is_empty())
    {
        let complaint = String::from_utf8_lossy(complaint);
        return ProcessOutcome::NotStarted(complaint.trim_end().to_owned());
    }
    ProcessOutcome::Ran {
        end,
        stdout: stdout.take(),
        stderr,
    }
}

#[derive(Debug, Clone, Default)]
struct Shared(Arc<Mutex<Captured>>);

impl Shared {
    fn take(&self) -> Captured {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Keeps the beginning and reads the rest away, so that the program does not wait for a reader.
async fn capture(mut pipe: impl AsyncRead + Unpin, into: Shared, bytes_max: usize) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(count @ 1..) = pipe.read(&mut buffer).await {
        let piece = buffer.get(..count).unwrap_or_default();
        let mut captured = into.0.lock().unwrap_or_else(PoisonError::into_inner);
        let room = bytes_max.saturating_sub(captured.bytes.len());
        captured.truncated |= piece.len() > room;
        captured
            .bytes
            .extend_from_slice(piece.get(..room).unwrap_or(piece));
    }
}
