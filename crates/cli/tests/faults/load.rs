//! Clients that write while the server is killed under them, and remember what they were told.
//!
//! A request without a key is sent once: when its answer is lost, it was carried out once or not at all. One with a
//! key, or one that changes nothing the second time, is sent until it is answered.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fastrand::Rng;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::client::{Answer, Api, Ask, text};

/// Open Tasks of each waiting workflow that a client keeps: each of them asks again at every start, and each that
/// holds takes a worker.
const OPEN_MAX: usize = 3;

/// Whether there is a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    Down,
    Up,
    /// Up, and the last requests are to be finished.
    Last,
}

/// What the clients and the killer share.
#[derive(Debug)]
pub(crate) struct Scene {
    pub(crate) stage: watch::Sender<Stage>,
    /// Requests answered.
    pub(crate) answers: AtomicU64,
}

/// One client.
#[derive(Debug)]
pub(crate) struct Worker {
    api: Api,
    scene: Arc<Scene>,
    rng: Rng,
    name: usize,
    serial: usize,
    session: String,
    /// True when an answer was lost since the memory was last compared.
    unsure: bool,
    memory: Memory,
}

/// What a client was told.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    session: String,
    /// Messages in the order of their answers.
    messages: Vec<Value>,
    tasks: Vec<Task>,
    artifacts: Vec<(Value, Vec<u8>)>,
    /// Requests with a key and the id they made.
    keyed: Vec<(Ask, String)>,
    /// Texts of requests without a key whose answer was lost.
    lost: Vec<String>,
}

#[derive(Debug)]
struct Task {
    told: Value,
    workflow: &'static str,
    ending: Ending,
}

/// What the client has done about a Task, acknowledged.
#[derive(Debug, Clone, PartialEq)]
enum Ending {
    Open,
    Answered(String),
    Decided(bool),
    Canceled,
}

impl Worker {
    pub(crate) fn new(api: Api, scene: Arc<Scene>, mut rng: Rng, name: usize) -> Self {
        Self {
            api,
            scene,
            rng: rng.fork(),
            name,
            serial: 0,
            session: String::new(),
            unsure: false,
            memory: Memory::default(),
        }
    }

    /// Writes until the last stage, then hands over what it remembers.
    pub(crate) async fn run(mut self) -> Memory {
        let key = self.key();
        let ask = Ask::post("/v1/sessions", json!({})).with_key(key);
        self.session = text(&self.insist(&ask).await["id"]);
        self.memory.session = self.session.clone();
        while *self.scene.stage.borrow() != Stage::Last {
            if std::mem::take(&mut self.unsure) {
                self.compare_latest().await;
            }
            match self.rng.u32(0..18) {
                0..4 => self.message().await,
                4..7 => self.keyed_message().await,
                7..9 => self.agent_task().await,
                9 => self.keyed_task("agent").await,
                10 => self.keyed_task("ask").await,
                11 => self.keyed_task("approve").await,
                12 => self.keyed_task("hold").await,
                13..16 => self.finish_one().await,
                16 => self.artifact().await,
                _ => self.repeat_one().await,
            }
        }
        self.memory
    }

    fn text(&mut self) -> String {
        self.serial += 1;
        let padding = "x".repeat(self.rng.usize(0..600));
        format!("client {} says {} {padding}", self.name, self.serial)
    }

    fn key(&mut self) -> String {
        self.serial += 1;
        format!("key-{}-{}", self.name, self.serial)
    }

    /// Sends once; none when the answer was lost.
    async fn tell(&mut self, ask: &Ask) -> Option<Answer> {
        let mut stage = self.scene.stage.subscribe();
        stage
            .wait_for(|stage| *stage != Stage::Down)
            .await
            .expect("the killer outlives the clients");
        match self.api.send(ask).await {
            Ok(answer) => {
                self.scene.answers.fetch_add(1, Ordering::Relaxed);
                assert!(
                    (200..300).contains(&answer.status),
                    "{ask:?}: {} {}",
                    answer.status,
                    String::from_utf8_lossy(&answer.bytes)
                );
                Some(answer)
            }
            Err(_) => {
                self.unsure = true;
                None
            }
        }
    }

    /// Sends until it is answered.
    async fn insist(&mut self, ask: &Ask) -> Value {
        loop {
            if let Some(answer) = self.tell(ask).await {
                return answer.json();
            }
            // The stage changes a moment after the server is gone.
            tokio::task::yield_now().await;
        }
    }

    async fn message(&mut self) {
        let text = self.text();
        let ask = Ask::message(&self.session, &text);
        match self.tell(&ask).await {
            Some(answer) => self.memory.messages.push(answer.json()),
            None => self.memory.lost.push(text),
        }
    }

    async fn keyed_message(&mut self) {
        let (text, key) = (self.text(), self.key());
        let ask = Ask::message(&self.session, &text).with_key(key);
        let told = self.insist(&ask).await;
        self.memory
            .keyed
            .push((ask, crate::client::text(&told["id"])));
        self.memory.messages.push(told);
    }

    async fn agent_task(&mut self) {
        let text = self.text();
        let ask = Ask::task(&self.session, "agent", &text);
        match self.tell(&ask).await {
            Some(answer) => self.remember(answer.json(), "agent"),
            None => self.memory.lost.push(text),
        }
    }

    fn remember(&mut self, told: Value, workflow: &'static str) {
        self.memory.tasks.push(Task {
            told,
            workflow,
            ending: Ending::Open,
        });
    }

    async fn keyed_task(&mut self, workflow: &'static str) {
        let is_open = |task: &&Task| task.workflow == workflow && task.ending == Ending::Open;
        let open = self.memory.tasks.iter().filter(is_open).count();
        if workflow != "agent" && open >= OPEN_MAX {
            return;
        }
        let (text, key) = (self.text(), self.key());
        let mut ask = Ask::task(&self.session, workflow, &text).with_key(key);
        if workflow == "hold" {
            ask = ask.at_once();
        }
        let told = self.insist(&ask).await;
        self.memory
            .keyed
            .push((ask, crate::client::text(&told["id"])));
        self.remember(told, workflow);
    }

    /// Answers, decides or cancels one of the open Tasks.
    async fn finish_one(&mut self) {
        let is_open =
            |(_, task): &(usize, &Task)| task.workflow != "agent" && task.ending == Ending::Open;
        let open: Vec<usize> = (self.memory.tasks.iter().enumerate())
            .filter(is_open)
            .map(|(index, _)| index)
            .collect();
        let Some(index) = self.rng.choice(open) else {
            return;
        };
        let task = &self.memory.tasks[index];
        let (id, workflow) = (text(&task.told["id"]), task.workflow);
        let ending = match workflow {
            "ask" => {
                let text = self.text();
                self.wait_for(&id, "INPUT_REQUIRED").await;
                self.insist(&Ask::answer(&id, &text)).await;
                Ending::Answered(text)
            }
            "approve" => {
                self.wait_for(&id, "AUTH_REQUIRED").await;
                let approved = self.rng.bool();
                let list = Ask::get(&format!("/v1/tasks/{id}/permission-requests"));
                let requests = self.insist(&list).await;
                let request = text(&requests["data"][0]["id"]);
                let path = format!("/v1/permission-requests/{request}/respond");
                self.insist(&Ask::post(&path, json!({"approved": approved})))
                    .await;
                Ending::Decided(approved)
            }
            _ => {
                self.insist(&Ask::cancel(&id)).await;
                Ending::Canceled
            }
        };
        self.memory.tasks[index].ending = ending;
    }

    async fn wait_for(&mut self, task: &str, status: &str) {
        let ask = Ask::get(&format!("/v1/tasks/{task}"));
        while self.insist(&ask).await["status"] != status {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }

    async fn artifact(&mut self) {
        let (name, key) = (self.text(), self.key());
        let made = self.insist(&Ask::artifact(&name).with_key(key)).await;
        let id = text(&made["id"]);
        // Small ones are kept in the database, large ones as files.
        let length = match self.rng.u32(0..4) {
            0 => self.rng.usize(130_000..300_000),
            _ => self.rng.usize(0..5_000),
        };
        let bytes: Vec<u8> = std::iter::repeat_with(|| self.rng.u8(..))
            .take(length)
            .collect();
        let key = self.key();
        let upload = Ask::put(&format!("/v1/artifacts/{id}/content"), bytes.clone());
        let told = self.insist(&upload.with_key(key)).await;
        self.memory.artifacts.push((told, bytes));
    }

    /// Sends an old request again: it makes nothing new, before a kill and after it (AP-IDEM-03).
    async fn repeat_one(&mut self) {
        let Some((ask, id)) = self.rng.choice(&self.memory.keyed).cloned() else {
            return;
        };
        let again = self.insist(&ask).await;
        assert_eq!(again["id"], json!(id), "{ask:?}");
    }

    /// What was told last, and something older, must be there.
    async fn compare_latest(&mut self) {
        let messages = &self.memory.messages;
        let some = [messages.last(), self.rng.choice(messages)];
        for told in some.into_iter().flatten().cloned().collect::<Vec<_>>() {
            let path = format!("/v1/messages/{}", text(&told["id"]));
            assert_eq!(self.insist(&Ask::get(&path)).await, told);
        }
        if let Some(told) = self.memory.tasks.last().map(|task| task.told.clone()) {
            let path = format!("/v1/tasks/{}", text(&told["id"]));
            same_task(&self.insist(&Ask::get(&path)).await, &told);
        }
        if let Some((told, bytes)) = self.memory.artifacts.last().cloned() {
            let path = format!("/v1/artifacts/{}/content", text(&told["id"]));
            loop {
                if let Some(found) = self.tell(&Ask::get(&path)).await {
                    assert_eq!(found.bytes, bytes);
                    break;
                }
            }
        }
    }
}

/// A Task is the one that was told of, as far as that does not change with time.
fn same_task(found: &Value, told: &Value) {
    for member in [
        "id",
        "input",
        "metadata",
        "session_id",
        "workspace_id",
        "created_by",
        "created_at",
    ] {
        assert_eq!(found[member], told[member], "{member} of {told}");
    }
    if ["COMPLETED", "FAILED", "CANCELED"].contains(&text(&told["status"]).as_str()) {
        assert_eq!(found, told);
    }
}

impl Memory {
    /// How many writes were acknowledged.
    pub(crate) fn len(&self) -> usize {
        self.messages.len() + self.tasks.len() + self.artifacts.len()
    }

    /// Compares everything with a server that nobody disturbs, and brings what is open to its end.
    pub(crate) async fn check(&self, api: &Api) {
        self.check_messages(api).await;
        for task in &self.tasks {
            check_task(api, task).await;
        }
        for (told, bytes) in &self.artifacts {
            let path = format!("/v1/artifacts/{}", text(&told["id"]));
            assert_eq!(api.get(&path).await, *told);
            let content = api.bytes(&Ask::get(&format!("{path}/content"))).await;
            assert_eq!(content.bytes, *bytes, "{told}");
        }
        for (ask, id) in &self.keyed {
            assert_eq!(api.ok(ask).await["id"], json!(id), "{ask:?}");
        }
    }

    async fn check_messages(&self, api: &Api) {
        let transcript = api
            .list(&format!("/v1/sessions/{}/messages", self.session))
            .await;
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for message in transcript
            .iter()
            .filter(|message| message["role"] == "user")
        {
            for part in message["parts"].as_array().unwrap() {
                *counts.entry(text(&part["text"])).or_default() += 1;
            }
        }
        for (said, count) in &counts {
            assert_eq!(*count, 1, "said {count} times: {said}");
        }
        // One client waits for each answer: its messages stand in the order of the answers.
        let acknowledged: Vec<&Value> = self.messages.iter().collect();
        let ids: Vec<&Value> = self.messages.iter().map(|told| &told["id"]).collect();
        let found: Vec<&Value> = transcript
            .iter()
            .filter(|message| ids.contains(&&message["id"]))
            .collect();
        assert_eq!(found, acknowledged);
        // Whatever else the client said is there because its answer was lost.
        for message in transcript.iter().filter(|message| {
            message["role"] == "user" && message["task_id"].is_null() && !found.contains(message)
        }) {
            let said = text(&message["parts"][0]["text"]);
            assert!(self.lost.contains(&said), "{said}");
        }
        let tasks = api
            .list(&format!("/v1/sessions/{}/tasks", self.session))
            .await;
        for task in tasks {
            let id = text(&task["id"]);
            let told = |known: &Task| known.told["id"] == task["id"];
            if !self.tasks.iter().any(told) {
                let said = text(&task["input"]["parts"][0]["text"]);
                assert!(self.lost.contains(&said), "{task}");
                api.until_status(&id, "COMPLETED").await;
            }
        }
    }
}

/// No Task is stuck: each reaches what its workflow and its client lead to.
async fn check_task(api: &Api, task: &Task) {
    let id = text(&task.told["id"]);
    let path = format!("/v1/tasks/{id}");
    same_task(&api.get(&path).await, &task.told);
    let (status, said) = match (&task.ending, task.workflow) {
        (Ending::Open, "agent") => ("COMPLETED", None),
        (Ending::Open, "ask") => {
            api.until_status(&id, "INPUT_REQUIRED").await;
            api.ok(&Ask::answer(&id, "at last")).await;
            ("COMPLETED", Some("at last".to_owned()))
        }
        (Ending::Open, "approve") => {
            api.until_status(&id, "AUTH_REQUIRED").await;
            let requests = api.list(&format!("{path}/permission-requests")).await;
            assert_eq!(requests.len(), 1, "{requests:?}");
            let request = text(&requests[0]["id"]);
            let respond = format!("/v1/permission-requests/{request}/respond");
            api.ok(&Ask::post(&respond, json!({"approved": true})))
                .await;
            ("COMPLETED", None)
        }
        (Ending::Open, _) => {
            api.until_status(&id, "WORKING").await;
            api.ok(&Ask::cancel(&id)).await;
            ("CANCELED", None)
        }
        (Ending::Answered(said), _) => ("COMPLETED", Some(said.clone())),
        (Ending::Decided(true), _) => ("COMPLETED", None),
        (Ending::Decided(false), _) => ("FAILED", None),
        (Ending::Canceled, _) => ("CANCELED", None),
    };
    let ended = api.until_status(&id, status).await;
    if status == "FAILED" {
        assert_eq!(ended["failure"]["code"], "approval_denied", "{ended}");
    }
    let outcomes = api.get(&format!("/v1/outcomes?task_id={id}")).await;
    let outcomes = outcomes["data"].as_array().unwrap();
    assert_eq!(outcomes.len(), 1, "{outcomes:?}");
    if let Some(said) = said {
        let start: String = said.chars().take(40).collect();
        let summary = text(&outcomes[0]["summary"]);
        assert!(
            summary.starts_with(&format!("You told me: {start}")),
            "{summary}"
        );
    }
}
