//! A server to be judged: it can be killed and restarted by a command, and is gone with its test.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use conformance::{AkashikSuite, Suite};
use serde_json::{Value, json};

use crate::world::World;

/// The protocol's version.
pub(crate) const VERSION: &str = "agents-protocol-2026-04-25";
const SETTINGS: &str = r#"
[log]
level = "warn"

[[connectors]]
id = "connector_hooks"
provider = "github"
event_kinds = ["webhook.push"]
"#;

/// A running server with a key for everything and one for a workspace of its own.
pub(crate) struct Subject {
    pub(crate) url: String,
    pub(crate) key: String,
    other_key: String,
    approver_key: String,
    dead_key: String,
    expired_key: String,
    world: Arc<World>,
    over: Arc<AtomicBool>,
    keeper: Option<JoinHandle<()>>,
}

impl Subject {
    pub(crate) async fn start(card_object: &str) -> Self {
        Self::start_with(&format!("card_object = \"{card_object}\"\n{SETTINGS}")).await
    }

    pub(crate) async fn start_with(settings: &str) -> Self {
        let world = Arc::new(World::new());
        std::fs::write(world.home.path().join("settings.toml"), settings).unwrap();
        let first = world.serve_with(&["--listen", "127.0.0.1:0", "--config", "settings.toml"]);
        let url = first.url.clone();
        let key = std::fs::read_to_string(world.data().join("api-key")).unwrap();
        let key = key.trim().to_owned();
        let workspace = workspace(&url, &key).await;
        let other = [
            "key",
            "create",
            "--actor",
            "other",
            "--workspace",
            &workspace,
        ];
        let other_key = world.ok(&other).trim().to_owned();
        let approver_key = std::fs::read_to_string(world.data().join("approver-key")).unwrap();
        let approver_key = approver_key.trim().to_owned();
        let dead_key = world.ok(&["key", "create", "--actor", "gone"]);
        let listed = world.ok(&["key", "list"]);
        let gone = listed.lines().find(|line| line.contains("gone")).unwrap();
        world.ok(&["key", "revoke", gone.split_whitespace().next().unwrap()]);
        let dead_key = dead_key.trim().to_owned();
        let short = ["key", "create", "--actor", "late", "--expires", "1s"];
        let expired_key = world.ok(&short).trim().to_owned();
        // Whoever asks with it does so later than that.
        std::thread::sleep(Duration::from_millis(1_100));

        let over = Arc::new(AtomicBool::new(false));
        let keeper = {
            let (world, over) = (Arc::clone(&world), Arc::clone(&over));
            // The server stays a child of this process, so that its end is certain when `kill` returns.
            std::thread::spawn(move || {
                let (wanted, done) = (
                    world.home.path().join("restart"),
                    world.home.path().join("restarted"),
                );
                let mut server = first;
                while !over.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(10));
                    if wanted.exists() {
                        let address = server.address();
                        server.kill();
                        server =
                            world.serve_with(&["--listen", &address, "--config", "settings.toml"]);
                        std::fs::remove_file(&wanted).unwrap();
                        std::fs::write(&done, "").unwrap();
                    }
                }
            })
        };
        Self {
            url,
            key,
            other_key,
            approver_key,
            dead_key,
            expired_key,
            world,
            over,
            keeper: Some(keeper),
        }
    }

    pub(crate) fn home(&self) -> &Path {
        self.world.home.path()
    }

    /// Returns the suite of the memory protocol.
    pub(crate) fn memory(&self, url: &str) -> AkashikSuite {
        let suite = self.suite(url);
        let stranger = [
            "key",
            "create",
            "--actor",
            "stranger",
            "--scope",
            "field:write",
        ];
        AkashikSuite {
            url: suite.url,
            key: suite.key,
            other_key: Some(self.world.ok(&stranger).trim().to_owned()),
            restart: suite.restart,
            timeout: suite.timeout,
            skip: Vec::new(),
        }
    }

    /// Returns the whole suite, to be asked of this server or of a proxy before it.
    pub(crate) fn suite(&self, url: &str) -> Suite {
        let home = self.world.home.path().display();
        Suite {
            url: url.to_owned(),
            key: self.key.clone(),
            other_key: Some(self.other_key.clone()),
            approver_key: Some(self.approver_key.clone()),
            dead_keys: vec![self.dead_key.clone()],
            expired_keys: vec![self.expired_key.clone()],
            make_key: Some(format!(
                "cd '{home}' && '{}' key create --actor walker --scope \"$SCOPE\"",
                env!("CARGO_BIN_EXE_reprise")
            )),
            restart: Some(format!(
                "cd '{home}' && rm -f restarted && touch restart && until [ -f restarted ]; do sleep 0.02; done"
            )),
            published: false,
            timeout: Duration::from_secs(30),
            skip: Vec::new(),
        }
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.join();
        }
    }
}

async fn workspace(url: &str, key: &str) -> String {
    let made = reqwest::Client::builder()
        .no_proxy()
        .build()
        .unwrap()
        .post(format!("{url}/v1/workspaces"))
        .bearer_auth(key)
        .header("Harn-Agents-Protocol-Version", VERSION)
        .json(&json!({"name": "elsewhere", "root": "harn://elsewhere"}))
        .send()
        .await
        .unwrap();
    let made: Value = made.json().await.unwrap();
    made["id"].as_str().unwrap().to_owned()
}
