//! A throw-away directory with files, git and the program under test.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

pub(crate) struct World {
    directory: TempDir,
}

pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    /// Asserts the exit status, showing what the program said.
    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(
            self.code,
            Some(code),
            "out: {}\nerr: {}",
            self.out,
            self.err
        );
        self
    }

    #[track_caller]
    pub(crate) fn says(self, text: &str) -> Self {
        let said = self.err.contains(text) || self.out.contains(text);
        assert!(said, "no `{text}` in\nout: {}\nerr: {}", self.out, self.err);
        self
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {}", self.out))
    }
}

/// Makes git and the program independent of the machine.
pub(crate) fn isolate(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("GIT_")) {
        command.env_remove(name);
    }
    command
        .env_remove("AHD_VERSION")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_AUTHOR_NAME", "a")
        .env("GIT_AUTHOR_EMAIL", "a@example.org")
        .env("GIT_COMMITTER_NAME", "a")
        .env("GIT_COMMITTER_EMAIL", "a@example.org")
}

impl World {
    pub(crate) fn empty() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
        }
    }

    /// A repository of the AHD framework with a token, a brief and a report, committed.
    pub(crate) fn framework() -> Self {
        let world = Self::empty()
            .with(
                "package.json",
                r#"{"name":"@adastracomputing/ahd","version":"0.11.0"}"#,
            )
            .with("tokens/demo.yml", "id: demo\npalette: [black, white]\n")
            .with("briefs/demo.yml", "title: Hello\nbody: world\n")
            .with(
                "docs/report.md",
                "# Eval demo (2026-04-22T10:24:18Z)\n\nBody\n",
            );
        world.commit_all();
        world
    }

    /// A repository with an agent's prompt, configuration and data, committed.
    pub(crate) fn agent() -> Self {
        let world = Self::empty()
            .with("prompts/task.md", "Do it.\n")
            .with("agent.yml", "model: x\nsteps: 3\n")
            .with("data/a.txt", "1\n")
            .with("data/b/c.txt", "2\n")
            .with("out/report.md", "# Report\n\nText\n");
        world.commit_all();
        world
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().canonicalize().unwrap()
    }

    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.path().join(path)
    }

    pub(crate) fn with(self, path: &str, text: &str) -> Self {
        self.write(path, text);
        self
    }

    pub(crate) fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        let target = self.at(path);
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::write(target, text).unwrap();
    }

    pub(crate) fn read(&self, path: &str) -> String {
        fs::read_to_string(self.at(path)).unwrap()
    }

    pub(crate) fn json(&self, path: &str) -> Value {
        serde_json::from_str(&self.read(path)).unwrap()
    }

    pub(crate) fn exists(&self, path: &str) -> bool {
        self.at(path).symlink_metadata().is_ok()
    }

    #[track_caller]
    pub(crate) fn git(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("git");
        let output = isolate(&mut command)
            .arg("-C")
            .arg(self.path())
            .args(arguments)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    pub(crate) fn commit_all(&self) -> String {
        if !self.exists(".git") {
            self.git(&["init", "-q", "-b", "main"]);
        }
        self.git(&["add", "-A"]);
        self.git(&["commit", "-q", "-m", "x"]);
        self.git(&["rev-parse", "HEAD"])
    }

    /// Runs the program in the top directory.
    pub(crate) fn run(&self, arguments: &[&str]) -> Ran {
        self.run_in(&self.path(), arguments, &[])
    }

    pub(crate) fn run_in(&self, cwd: &Path, arguments: &[&str], env: &[(&str, &str)]) -> Ran {
        let mut command = Command::new(env!("CARGO_BIN_EXE_reprise"));
        let Output {
            status,
            stdout,
            stderr,
        } = isolate(&mut command)
            .current_dir(cwd)
            .args(arguments)
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        Ran {
            code: status.code(),
            out: String::from_utf8_lossy(&stdout).into_owned(),
            err: String::from_utf8_lossy(&stderr).into_owned(),
        }
    }

    /// Captures an eval of the framework around a command.
    pub(crate) fn capture_eval(&self, more: &[&str], command: &[&str]) -> Ran {
        let mut arguments = vec![
            "sidecar",
            "capture",
            "--kind",
            "eval-live",
            "--report",
            "docs/report.md",
            "--token",
            "tokens/demo.yml",
            "--brief",
            "briefs/demo.yml",
            "--n",
            "3",
            "--node-version",
            "v22.22.2",
            "--model",
            "id=@cf/m,provider=cf",
            "--condition-requested",
            "raw",
            "--condition-effective",
            "raw",
        ];
        arguments.extend(more);
        arguments.push("--");
        arguments.extend(command);
        self.run(&arguments)
    }

    /// Captures an agent run around a command.
    pub(crate) fn capture_agent(&self, more: &[&str], command: &[&str]) -> Ran {
        let mut arguments = vec![
            "sidecar",
            "capture",
            "--kind",
            "agent-run",
            "--report",
            "out/report.md",
            "--input",
            "prompt=prompts/task.md",
            "--input",
            "config=agent.yml:canonical-json",
            "--input",
            "data=data",
        ];
        arguments.extend(more);
        arguments.push("--");
        arguments.extend(command);
        self.run(&arguments)
    }
}
