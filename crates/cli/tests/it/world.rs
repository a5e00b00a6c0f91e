//! A directory to work in, the program, and servers that are gone with their test.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

/// How long anything may take on a busy machine before a test gives up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A directory of its own, in which `./reprise-data` is the data directory.
pub(crate) struct World {
    pub(crate) home: TempDir,
}

/// What a finished command said.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl World {
    pub(crate) fn new() -> Self {
        Self {
            home: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.home.path().join("reprise-data")
    }

    /// The program, without this machine's settings.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_reprise"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("REPRISE_") {
                command.env_remove(name);
            }
        }
        command
            .args(args)
            .current_dir(self.home.path())
            .env("REPRISE_LIMITS_DRAIN_WINDOW_MS", "100")
            // What most tests submit; `without_examples` in serving.rs shows a server as it starts by default.
            .env("REPRISE_EXAMPLES", "true")
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Said {
        said(self.command(args))
    }

    /// Runs a command that must work and returns what it printed.
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        let said = self.run(args);
        assert_eq!(said.code, 0, "{args:?}: {said:?}");
        said.stdout
    }

    /// Runs a command that must work and reads what it printed as JSON.
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.ok(args)).unwrap()
    }

    /// Submits a task and returns its id.
    pub(crate) fn submit(&self, workflow: &str) -> String {
        let task = self.json(&["task", "submit", "Do it", "--workflow", workflow, "--json"]);
        task["id"].as_str().unwrap().to_owned()
    }

    /// Starts a server on any port.
    pub(crate) fn serve(&self) -> Server {
        self.serve_with(&["--listen", "127.0.0.1:0"])
    }

    /// Starts a server and waits until it answers.
    pub(crate) fn serve_with(&self, args: &[&str]) -> Server {
        let mut command = self.command(&["serve"]);
        let server = Server::start(command.args(args));
        server.unwrap_or_else(|said| panic!("{said:?}"))
    }
}

/// Runs a command to its end.
pub(crate) fn said(mut command: Command) -> Said {
    let output = command.output().unwrap();
    Said {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// A running server.
pub(crate) struct Server {
    pub(crate) url: String,
    /// What it said until it was ready.
    pub(crate) greeting: String,
    running: Running,
}

impl Server {
    /// Starts one; what it said when it did not start.
    pub(crate) fn start(command: &mut Command) -> Result<Self, Said> {
        let mut running = Running::start(command, Stream::Stderr);
        let mut greeting = String::new();
        while let Some(line) = running.line() {
            greeting.push_str(&line);
            greeting.push('\n');
            let Some(rest) =
                line.strip_prefix(concat!("reprise ", env!("CARGO_PKG_VERSION"), " on "))
            else {
                continue;
            };
            let url = rest.split(',').next().unwrap().to_owned();
            return Ok(Self {
                url,
                greeting,
                running,
            });
        }
        let status = running.wait();
        Err(Said {
            code: status.code().unwrap_or(-1),
            stdout: String::new(),
            stderr: greeting,
        })
    }

    pub(crate) fn address(&self) -> String {
        self.url.split("://").nth(1).unwrap().to_owned()
    }

    /// Returns the number of its process.
    pub(crate) fn id(&self) -> u32 {
        self.running.child.id()
    }

    /// Kills it as a crash would.
    pub(crate) fn kill(mut self) {
        self.running.child.kill().unwrap();
        self.running.child.wait().unwrap();
    }

    /// Sends a signal by name.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.running.child.id().to_string();
        let status = Command::new("kill")
            .args(["-s", name, &pid])
            .status()
            .unwrap();
        assert!(status.success());
    }

    /// Asks it to stop and returns how it ended, and everything it said.
    pub(crate) fn stop(mut self) -> (ExitStatus, String) {
        self.signal("TERM");
        let mut all = std::mem::take(&mut self.greeting);
        while let Some(line) = self.running.line() {
            all.push_str(&line);
            all.push('\n');
        }
        (self.running.wait(), all)
    }

    /// Returns the next line of its log.
    pub(crate) fn line(&mut self) -> Option<String> {
        self.running.line()
    }

    /// Waits for its end.
    pub(crate) fn wait(mut self) -> ExitStatus {
        self.running.wait()
    }
}

/// Which of its streams is listened to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    Stdout,
    Stderr,
}

/// A process whose lines arrive as it writes them; it is gone with this value.
pub(crate) struct Running {
    child: Child,
    lines: Receiver<String>,
}

impl Running {
    pub(crate) fn start(command: &mut Command, stream: Stream) -> Self {
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
    pub(crate) fn line(&mut self) -> Option<String> {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => Some(line),
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => None,
            Err(error) => panic!("nothing was said: {error}"),
        }
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let status = Command::new("kill")
            .args(["-s", name, &pid])
            .status()
            .unwrap();
        assert!(status.success());
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a command with text on its stdin.
pub(crate) fn said_with_stdin(mut command: Command, text: &str) -> Said {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    Said {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}
