//! A server that is a process of ours.

use std::collections::VecDeque;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{ChildStdin, ChildStdout};
use tokio::task::JoinHandle;

use super::flood::{BoundedLines, Flood};
use crate::config::McpServerConfig;
use crate::confine::{ConfinedCommand, Sandbox};
use crate::tool::Group;

/// How much of what a server complains about is kept.
const STDERR_BYTES_MAX: usize = 2_048;
/// How long the end of its complaints is waited for when it is of no use.
const LAST_WORDS: Duration = Duration::from_millis(300);
/// How long a server may take to end by itself after its input was closed.
const END_GRACE: Duration = Duration::from_secs(1);

/// The process of a server. It is killed with its whole group when this is dropped.
#[derive(Debug)]
pub(super) struct Process {
    group: SharedGroup,
    waiter: JoinHandle<()>,
    reader: JoinHandle<()>,
    complaints: Complaints,
    /// Stands before a complaint of whoever was to start it.
    mark: String,
    /// Its own temporary folder.
    _temporary: Option<TempDir>,
}

/// Emptied by whoever comes first: the one who kills, or the one who sees the process end. After that its number
/// may belong to somebody else.
type SharedGroup = Arc<Mutex<Option<Group>>>;

fn kill(group: &SharedGroup) {
    drop(group.lock().unwrap_or_else(PoisonError::into_inner).take());
}

/// The end of what a process wrote to its error output.
#[derive(Debug, Clone, Default)]
struct Complaints(Arc<Mutex<VecDeque<u8>>>);

impl Complaints {
    /// Returns the last line, unless its beginning is lost: half of a value would not be known as one.
    fn last_line(&self) -> String {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes: Vec<u8> = bytes.iter().copied().collect();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let whole = text
            .lines()
            .skip(usize::from(bytes.len() == STDERR_BYTES_MAX));
        whole
            .filter(|line| !line.trim().is_empty())
            .last()
            .unwrap_or_default()
            .to_owned()
    }
}

/// Starts a server and returns what to speak through.
pub(super) fn start(
    config: &McpServerConfig,
    sandbox: &Sandbox,
    secrets: Vec<(String, SecretString)>,
    flood: &Flood,
) -> Result<(Process, BoundedLines<ChildStdout>, ChildStdin), String> {
    let plain = config
        .env
        .iter()
        .filter_map(|name| Some((name.clone(), std::env::var(name).ok()?)));
    let hidden = secrets
        .iter()
        .map(|(name, value)| (name.clone(), value.expose_secret().to_owned()));
    let argv = config.command.as_deref().unwrap_or_default();
    let ConfinedCommand {
        mut command,
        temporary,
        mark,
        kept,
    } = sandbox.command(argv, plain.chain(hidden).collect())?;
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        // A keeper that is killed can end nothing any more.
        .kill_on_drop(!kept);
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let group = SharedGroup::new(Mutex::new(Some(Group::of(child.id(), kept))));
    let complaints = Complaints::default();
    let (Some(stdout), Some(stdin), Some(stderr)) =
        (child.stdout.take(), child.stdin.take(), child.stderr.take())
    else {
        return Err("the program has no input or output".to_owned());
    };
    // Ends with the process.
    let reader = tokio::spawn(keep_end(stderr, complaints.clone()));
    let waiter = tokio::spawn({
        let group = Arc::clone(&group);
        async move {
            // An error means that there is nothing to wait for.
            let _ = child.wait().await;
            let ended = group.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(group) = ended {
                group.ended();
            }
        }
    });
    let process = Process {
        group,
        waiter,
        reader,
        complaints,
        mark,
        _temporary: temporary,
    };
    Ok((process, BoundedLines::new(stdout, flood.clone()), stdin))
}

impl Process {
    /// Returns the last line of what it complained about, once all of it is here or it goes on for too long.
    pub(super) async fn stderr_tail(&mut self) -> String {
        let _ = tokio::time::timeout(LAST_WORDS, &mut self.reader).await;
        let line = self.complaints.last_line();
        match line.strip_prefix(&self.mark) {
            Some(complaint) => complaint.to_owned(),
            None => line,
        }
    }

    /// Waits a little for a process whose input was closed, then kills it.
    pub(super) async fn end(mut self) {
        let _ = tokio::time::timeout(END_GRACE, &mut self.waiter).await;
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        kill(&self.group);
    }
}

async fn keep_end(mut pipe: impl AsyncRead + Unpin, complaints: Complaints) {
    let mut buffer = vec![0; 4_096];
    while let Ok(count @ 1..) = pipe.read(&mut buffer).await {
        let mut kept = complaints.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend(buffer.iter().take(count));
        let over = kept.len().saturating_sub(STDERR_BYTES_MAX);
        kept.drain(..over);
    }
}
