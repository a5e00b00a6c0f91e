//! A directory to work in, and the program in it.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;
use testing::process::{CommandOutput, Server, run_to_end, without_settings};

/// A directory of its own, in which `./reprise-data` is the data directory.
pub(crate) struct World {
    pub(crate) home: TempDir,
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
        without_settings(&mut command)
            .args(args)
            .current_dir(self.home.path())
            .env("REPRISE_LIMITS_DRAIN_WINDOW_MS", "100")
            // What most tests submit; `without_examples` in serving.rs shows a server as it starts by default.
            .env("REPRISE_EXAMPLES", "true")
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> CommandOutput {
        run_to_end(self.command(args))
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
