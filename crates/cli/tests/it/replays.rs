//! `reprise replay` and `reprise diff` on the real program: against a server, and from files alone.

mod damage;
mod docs;
mod offline;
mod online;
mod words;

use std::fs;

use serde_json::{Value, json};
use testing::process::{CommandOutput, Server};

use crate::world::World;

/// A server with one finished task and its bundle in `run.bundle`.
struct Ran {
    world: World,
    server: Option<Server>,
    task: String,
}

impl Ran {
    fn new(text: &str) -> Self {
        let world = World::new();
        let server = world.serve();
        let task = world.json(&["task", "submit", text, "--json"]);
        let task = task["id"].as_str().unwrap().to_owned();
        world.ok(&["task", "export", &task, "run.bundle"]);
        Self {
            world,
            server: Some(server),
            task,
        }
    }

    /// The same, with the server gone and its data with it.
    fn offline(text: &str) -> Self {
        let mut ran = Self::new(text);
        ran.server.take().unwrap().stop();
        fs::remove_dir_all(ran.world.data()).unwrap();
        ran
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.world.home.path().join(name), text).unwrap();
    }

    fn bundle(&self) -> String {
        fs::read_to_string(self.world.home.path().join("run.bundle")).unwrap()
    }

    fn replay(&self, args: &[&str]) -> CommandOutput {
        self.world.run(&[&["replay"], args].concat())
    }

    /// Replays and reads the answer as JSON.
    fn replayed(&self, exit: i32, args: &[&str]) -> Value {
        let said = self.replay(&[args, &["--json"]].concat());
        assert_eq!(said.code, exit, "{args:?}: {said:?}");
        serde_json::from_str(&said.stdout).unwrap()
    }

    /// Two lines on stderr, nothing on stdout, and 2.
    #[track_caller]
    /// Runs a replay that cannot be asked for.
    fn fault(&self, args: &[&str], expect: &str) {
        self.two_lines(2, args, expect);
    }

    /// Runs a replay that the server refuses.
    fn refused(&self, args: &[&str], expect: &str) {
        self.two_lines(1, args, expect);
    }

    fn two_lines(&self, code: i32, args: &[&str], expect: &str) {
        let said = self.replay(args);
        assert_eq!((said.code, said.stdout.as_str()), (code, ""), "{said:?}");
        assert_eq!(said.stderr.lines().count(), 2, "{said:?}");
        assert!(said.stderr.contains(expect), "{said:?}");
    }
}

fn completion(text: &str) -> Value {
    json!({"id": "c-1", "choices": [{"message": {"role": "assistant", "content": text}}]})
}
