//! The part of the tour where a server is killed while a task waits, and the task goes on.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Map;
use tokio::process::{Child, Command};

use super::{Guide, HINT, program_file};
use crate::args::Connection;
use crate::client::{ADDRESS_FILE, Client, Target};
use crate::command::task::{NewTask, say, user_message};
use crate::exit::{OrHint, Problem};
use crate::output::Paint;

/// How long a server may take to start or a task to get somewhere.
const PATIENCE: Duration = Duration::from_secs(30);

impl Guide<'_> {
    /// Kills a server of its own in the middle of a task, starts it again and answers.
    pub(super) async fn crash(&mut self, number: usize) -> anyhow::Result<()> {
        self.heading(
            number,
            "The server is killed",
            "`kill -9` is a normal event: what was acknowledged is on the disk. A second server, in a process of its own.",
        )?;
        let folder = tempfile::Builder::new()
            .prefix("reprise-demo-crash-")
            .tempdir()
            .or_hint("cannot create a temporary directory", HINT)?;
        let data = folder.path().join("data");
        let (mut server, client) = start(&data).await?;
        let task = NewTask {
            input: user_message("Prepare the release."),
            metadata: Map::from_iter([("workflow".to_owned(), "ask".into())]),
            persona: None,
            session: None,
            workspace: None,
        };
        let id = task.submit(&client, &crate::client::fresh_key()?).await?.id;
        wait_for(&client, &id, "INPUT_REQUIRED").await?;
        self.step("before", "the task waits for an answer")?;
        server
            .kill()
            .await
            .or_hint("the server was not killed", HINT)?;
        self.step("kill -9", "the process is gone, in the middle of the task")?;
        let (mut server, client) = start(&data).await?;
        wait_for(&client, &id, "INPUT_REQUIRED").await?;
        self.step("restart", "the same task waits for the same answer")?;
        say(&client, &id, "Version 7, on Tuesday.").await?;
        let ended = wait_for(&client, &id, "COMPLETED").await;
        server
            .kill()
            .await
            .or_hint("the server was not killed", HINT)?;
        ended?;
        self.step(
            "after",
            "answered and COMPLETED; no event was lost, none was written twice",
        )
    }

    fn step(&mut self, when: &str, what: &str) -> anyhow::Result<()> {
        let when = self.out.paint(Paint::Quiet, &format!("{when:8}"));
        self.out.line(format_args!("   {when}  {what}"))
    }
}

/// Starts a server on any port and waits until it answers.
async fn start(data: &Path) -> anyhow::Result<(Child, Client)> {
    let address = data.join(ADDRESS_FILE);
    // What a killed server left leads to a closed port.
    let _ = std::fs::remove_file(&address);
    let server = Command::new(program_file()?)
        .args(["serve", "--examples", "--listen", "127.0.0.1:0", "--data"])
        .arg(data)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .or_hint("the server did not start", HINT)?;
    let waited = tokio::time::timeout(PATIENCE, async {
        while !address.exists() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    waited.await.or_hint("the server did not start", HINT)?;
    let connection = Connection {
        url: None,
        key: None,
        data: data.to_owned(),
        ca: None,
        allow_plain_http: false,
    };
    let client = Client::new(Target::find(&connection)?)?;
    Ok((server, client))
}

async fn wait_for(client: &Client, task: &str, status: &str) -> anyhow::Result<()> {
    let until = tokio::time::Instant::now() + PATIENCE;
    while tokio::time::Instant::now() < until {
        let found = client.task(task).await?.status.to_string();
        if found == status {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Err(Problem::new(format!("the task did not become {status}"), HINT).into())
}
