//! Programs that tests start: with an environment of their own, heard line by line, and gone with their test.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::io::{BufRead, BufReader, Read, Write as _};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// How long anything may take on a busy machine before a test gives up.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// What a finished command said.
#[derive(Debug)]
pub struct CommandOutput {
    /// The exit status; -1 when a signal ended it.
    pub code: i32,
    /// What it printed.
    pub stdout: String,
    /// What it said beside that.
    pub stderr: String,
}

impl From<Output> for CommandOutput {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// Takes this machine's settings of the program out of the environment of a command.
pub fn without_settings(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("REPRISE_") {
            command.env_remove(name);
        }
    }
    command
}

/// Runs a command to its end.
pub fn run_to_end(mut command: Command) -> CommandOutput {
    command.output().unwrap().into()
}

/// Runs a command with text on its stdin.
pub fn run_with_stdin(mut command: Command, text: &str) -> CommandOutput {
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = piped.stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(text.as_bytes()).unwrap();
    drop(stdin);
    child.wait_with_output().unwrap().into()
}

/// Sends a signal by name.
pub fn signal(pid: u32, name: &str) {
    let mut command = Command::new("kill");
    let status = command.args(["-s", name, &pid.to_string()]).status();
    assert!(status.unwrap().success(), "no signal {name} to {pid}");
}

/// Which of its streams is listened to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// What it prints.
    Stdout,
    /// What it says beside that.
    Stderr,
}

/// A process whose lines arrive as it writes them; it is gone with this value.
#[derive(Debug)]
pub struct Process {
    child: Child,
    lines: Receiver<String>,
}

impl Process {
    /// Starts it.
    pub fn start(command: &mut Command, stream: Stream) -> Self {
        let piped = |wanted: bool| {
            if wanted {
                Stdio::piped()
            } else {
                Stdio::null()
            }
        };
        let mut child = command
            .stdout(piped(stream == Stream::Stdout))
            .stderr(piped(stream == Stream::Stderr))
            .spawn()
            .unwrap();
        let source: Box<dyn Read + Send> = match stream {
            Stream::Stdout => Box::new(child.stdout.take().unwrap()),
            Stream::Stderr => Box::new(child.stderr.take().unwrap()),
        };
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(source).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Self { child, lines }
    }

    /// Returns the next line; none at the end.
    pub fn line(&mut self) -> Option<String> {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(error @ RecvTimeoutError::Timeout) => panic!("nothing was said: {error}"),
        }
    }

    /// Returns the number of its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal by name.
    pub fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    /// Kills it as a crash would.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.wait();
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server of the program.
#[derive(Debug)]
pub struct Server {
    /// Where it listens.
    pub url: String,
    /// What it said until it was ready.
    pub greeting: String,
    running: Process,
}

impl Server {
    /// Starts one and waits until it says where it listens.
    ///
    /// # Errors
    /// It ended before that: how, and what it said.
    pub fn start(command: &mut Command) -> Result<Self, CommandOutput> {
        let mut running = Process::start(command, Stream::Stderr);
        let mut greeting = String::new();
        while let Some(line) = running.line() {
            greeting.push_str(&line);
            greeting.push('\n');
            let Some(rest) =
                line.strip_prefix(concat!("reprise ", env!("CARGO_PKG_VERSION"), " on "))
            else {
                continue;
            };
            let url = rest.split(',').next().unwrap_or_default().to_owned();
            return Ok(Self {
                url,
                greeting,
                running,
            });
        }
        Err(CommandOutput {
            code: running.wait().code().unwrap_or(-1),
            stdout: String::new(),
            stderr: greeting,
        })
    }

    /// Returns where it listens, without the scheme.
    pub fn address(&self) -> String {
        self.url.split("://").nth(1).unwrap().to_owned()
    }

    /// Returns the number of its process.
    pub fn pid(&self) -> u32 {
        self.running.pid()
    }

    /// Kills it as a crash would.
    pub fn kill(mut self) {
        self.running.kill();
    }

    /// Sends it a signal by name.
    pub fn signal(&self, name: &str) {
        self.running.signal(name);
    }

    /// Asks it to stop and returns how it ended, and everything it said.
    pub fn stop(mut self) -> (ExitStatus, String) {
        self.signal("TERM");
        let mut all = std::mem::take(&mut self.greeting);
        while let Some(line) = self.running.line() {
            all.push_str(&line);
            all.push('\n');
        }
        (self.running.wait(), all)
    }

    /// Returns the next line of its log.
    pub fn line(&mut self) -> Option<String> {
        self.running.line()
    }

    /// Waits for its end.
    pub fn wait(mut self) -> ExitStatus {
        self.running.wait()
    }
}
