//! Receipts on the real program, one file per subject; here is what they share.

mod auditor;
mod bundle;
mod damage;
mod files;
mod forged;
mod keys;
mod served;
mod trust;
mod witnesses;

use std::fs;
use std::path::PathBuf;

use serde_json::Value;
use store::tamper::Tamper;
use testing::process::{CommandOutput, Server};

use crate::world::World;

/// A server that ran some tasks of one session, with their receipts as files.
struct Ran {
    world: World,
    server: Option<Server>,
    tasks: Vec<String>,
    receipts: Vec<String>,
}

impl Ran {
    fn new(count: usize) -> Self {
        let world = World::new();
        let server = world.serve();
        let mut ran = Self {
            world,
            server: Some(server),
            tasks: Vec::new(),
            receipts: Vec::new(),
        };
        let mut session: Option<String> = None;
        for _ in 0..count {
            let mut args = vec!["task", "submit", "Do it", "--json"];
            if let Some(session) = &session {
                args.extend(["--session", session]);
            }
            let task = ran.world.json(&args);
            session = Some(task["session_id"].as_str().unwrap().to_owned());
            let id = task["id"].as_str().unwrap().to_owned();
            let shown = ran.world.json(&["receipt", "show", &id, "--json"]);
            ran.tasks.push(id);
            ran.receipts.push(shown["id"].as_str().unwrap().to_owned());
        }
        ran
    }

    fn path(&self, name: &str) -> PathBuf {
        self.world.home.path().join(name)
    }

    fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop();
        }
    }

    /// Saves the bare receipt of each task, the keys and the last receipt's proof.
    fn save(&self) {
        for (number, receipt) in self.receipts.iter().enumerate() {
            let bare = self.world.ok(&["receipt", "show", receipt, "--wire"]);
            fs::write(self.path(&format!("r{number}.json")), bare).unwrap();
        }
        let last = self.receipts.last().unwrap();
        let proof = self.world.ok(&["receipt", "proof", last]);
        fs::write(self.path("proof.json"), proof).unwrap();
        let keys = get(&self.server.as_ref().unwrap().url, "/.well-known/jwks.json");
        fs::write(self.path("jwks.json"), keys).unwrap();
    }

    fn verify(&self, args: &[&str]) -> (CommandOutput, Value) {
        let args = [&["receipt", "verify", "--json"], args].concat();
        let said = self.world.run(&args);
        let value = serde_json::from_str(&said.stdout).unwrap_or_default();
        (said, value)
    }

    fn damage(&self) -> Tamper {
        Tamper::open(&self.world.data())
    }
}

fn get(url: &str, path: &str) -> String {
    let output = std::process::Command::new("curl")
        .args(["-sS", "--fail", &format!("{url}{path}")])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}
