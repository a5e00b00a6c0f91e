//! The memory protocol over HTTP: several agents, one field, and the log it is folded from.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::port::Store;
use reqwest::{Client, Response};
use serde_json::{Value, json};

use crate::fixture::{KEY, Server, config, key, limits};

static MESSAGES: AtomicU64 = AtomicU64::new(0);

/// Speaks to one field with one key.
#[derive(Clone)]
pub(crate) struct Memory {
    http: Client,
    url: String,
    base: String,
    key: String,
}

pub(crate) type Got = (u16, Value);

impl Memory {
    pub(crate) fn at(server: &Server) -> Self {
        Self {
            http: Client::builder().no_proxy().build().unwrap(),
            url: server.url.clone(),
            base: "/akashik/v1".to_owned(),
            key: KEY.to_owned(),
        }
    }

    pub(crate) fn field(&self, name: &str) -> Self {
        Self {
            base: format!("/akashik/fields/{name}/v1"),
            ..self.clone()
        }
    }

    pub(crate) fn with_key(&self, key: &str) -> Self {
        Self {
            key: key.to_owned(),
            ..self.clone()
        }
    }

    pub(crate) fn envelope(operation: &str, agent: &str, payload: Value) -> Value {
        json!({
            "protocol": "akashik", "version": "0.1.0",
            "id": format!("m-{}", MESSAGES.fetch_add(1, Ordering::Relaxed)),
            "operation": operation.to_uppercase(), "agent_id": agent, "session_id": null, "epoch": 0,
            "payload": payload,
        })
    }

    pub(crate) async fn post(&self, operation: &str, envelope: &Value) -> Got {
        let bytes = serde_json::to_vec(envelope).unwrap();
        got(self.bytes(operation, "application/json", bytes).await).await
    }

    async fn bytes(&self, path: &str, media_type: &str, bytes: Vec<u8>) -> Response {
        self.http
            .post(format!("{}{}/{path}", self.url, self.base))
            .bearer_auth(&self.key)
            .header("content-type", media_type)
            .body(bytes)
            .send()
            .await
            .unwrap()
    }

    pub(crate) async fn send(&self, operation: &str, agent: &str, payload: Value) -> Got {
        self.post(operation, &Self::envelope(operation, agent, payload))
            .await
    }

    #[track_caller]
    pub(crate) fn ok(
        &self,
        operation: &str,
        agent: &str,
        payload: Value,
    ) -> impl Future<Output = Value> {
        let caller = std::panic::Location::caller();
        let (this, operation, agent) = (self.clone(), operation.to_owned(), agent.to_owned());
        async move {
            let (status, body) = this.send(&operation, &agent, payload).await;
            let created = matches!(operation.as_str(), "register" | "record");
            let expected = if created { 201 } else { 200 };
            assert_eq!(status, expected, "{caller}: {operation}: {body}");
            body
        }
    }

    pub(crate) async fn join(&self, agent: &str) {
        let payload = json!({"id": agent, "role": "analyst", "authority": 6});
        self.ok("register", agent, payload).await;
    }

    pub(crate) async fn note(&self, agent: &str, content: &str, more: Value) -> Value {
        self.ok("record", agent, unit(content, more)).await
    }

    pub(crate) async fn get(&self, path: &str) -> Got {
        let request = self
            .http
            .get(format!("{}{}/{path}", self.url, self.base))
            .bearer_auth(&self.key);
        got(request.send().await.unwrap()).await
    }
}

async fn got(response: Response) -> Got {
    let status = response.status().as_u16();
    let text = response.text().await.unwrap();
    (
        status,
        serde_json::from_str(&text).unwrap_or(Value::String(text)),
    )
}

pub(crate) fn unit(content: &str, more: Value) -> Value {
    let mut payload = json!({
        "mode": "committed", "type": "finding", "content": content,
        "intent": {"purpose": "to know"},
        "confidence": {"score": 0.8, "reasoning": "seen"},
    });
    let members = more.as_object().unwrap().clone();
    payload.as_object_mut().unwrap().extend(members);
    payload
}

pub(crate) fn id_of(answer: &Value) -> String {
    answer["memory_unit_id"].as_str().unwrap().to_owned()
}

/// Asserts a refusal: status, code, and the members that every refusal has.
#[track_caller]
pub(crate) fn refused(got: &Got, status: u16, code: &str, operation: Value) {
    let (found, body) = got;
    assert_eq!((*found, &body["code"]), (status, &json!(code)), "{body}");
    assert_eq!(body["operation"], operation, "{body}");
    let known = field::Code::ALL.iter().find(|known| known.as_str() == code);
    assert_eq!(body["recoverable"], known.unwrap().recoverable(), "{body}");
    assert!(
        body["message"]
            .as_str()
            .is_some_and(|text| !text.is_empty())
    );
    assert!(body.get("suggested_action").is_some(), "{body}");
    let rejects = operation == "REGISTER" || operation == "RECORD";
    assert_eq!(body.get("status").is_some(), rejects, "{body}");
    if rejects {
        assert_eq!(body["rejection_reason"], body["message"]);
    }
}

/// Three agents, a contradiction, a merge and a decision that rests on the winner.
async fn scene(memory: &Memory) -> (String, String, String) {
    for agent in ["ann", "bob", "sam"] {
        memory.join(agent).await;
    }
    let more = json!({"intent": {"purpose": "size the market", "task_id": "market"}});
    let first = id_of(&memory.note("ann", "The market grows by 23%", more).await);
    let more = json!({
        "confidence": {"score": 0.4, "reasoning": "an old report"},
        "relations": [{"type": "contradicts", "target_id": first}],
    });
    let answer = memory.note("bob", "The market grows by 14%", more).await;
    let conflict = answer["conflicts_detected"][0].as_str().unwrap().to_owned();
    let payload = json!({
        "conflict_id": conflict, "strategy": "confidence_weighted",
        "resolution": {"rationale": "the better source"},
    });
    let merged = memory.ok("merge", "sam", payload).await;
    assert_eq!(merged["status"], "resolved");
    let more =
        json!({"type": "decision", "relations": [{"type": "depends_on", "target_id": first}]});
    let decision = id_of(&memory.note("sam", "We enter the market", more).await);
    (first, conflict, decision)
}

pub(crate) fn replay_of(kind: &str, id: &str) -> Value {
    json!({"target_type": kind, "target_id": id, "depth": "full_trace"})
}

/// Everything that can be asked about a field, in one value.
async fn everything(memory: &Memory, targets: &[(&str, &str)]) -> Value {
    let mut all = json!({
        "status": memory.get("field/status").await.1,
        "agents": memory.get("agents").await.1,
        "conflicts": memory.get("conflicts").await.1,
    });
    for (kind, id) in targets {
        let path = format!("field/graph?target_type={kind}&target_id={id}&format=svg");
        all[*id] = memory.get(&path).await.1;
    }
    all
}

#[tokio::test]
async fn ak_http_01_03_05_06_agents_share_a_memory_and_replay_how_it_came_about() {
    let server = Server::start().await;
    let memory = Memory::at(&server);
    let (_, empty) = memory.get("field/status").await;
    assert_eq!(
        (
            &empty["epoch"],
            &empty["agents"],
            &empty["conformance_level"]
        ),
        (&json!(0), &json!(0), &json!(3))
    );
    let (first, conflict, decision) = scene(&memory).await;
    let told = memory
        .ok("replay", "sam", replay_of("decision", &decision))
        .await;
    let kinds: Vec<&Value> = told["timeline"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| &event["event_type"])
        .collect();
    assert_eq!(
        json!(kinds),
        json!(["RECORD", "RECORD", "CONFLICT_CREATED", "MERGE", "RECORD"])
    );
    assert_eq!(told["agents_involved"], json!(["ann", "bob", "sam"]));
    assert_eq!(told["timeline"][0]["memory_unit_id"], json!(first));
    assert_eq!(
        told["timeline"][0]["description"],
        "Recorded finding: The market grows by 23%"
    );
    let scope = json!({"scope": {"role": "analyst", "max_units": 5}});
    let seen = memory.ok("attune", "bob", scope).await;
    let contents: Vec<&Value> = seen["record"]
        .as_array()
        .unwrap()
        .iter()
        .map(|record| &record["memory_unit"]["content"])
        .collect();
    assert_eq!(contents.len(), 2, "{seen}");
    let (_, status) = memory.get("field/status").await;
    assert_eq!(status["units"], json!({"active": 2, "superseded": 1}));
    assert_eq!(status["conflicts"], json!({"resolved": 1}));
    let (_, agents) = memory.get("agents").await;
    assert_eq!(agents["agents"].as_array().unwrap().len(), 3);
    assert_eq!(memory.get("conflicts").await.1, json!({"conflicts": []}));
    let before = memory.get("field/status").await.1["epoch"].clone();
    let path = format!("field/graph?target_type=conflict&target_id={conflict}");
    let (status, dot) = memory.get(&path).await;
    assert_eq!(status, 200);
    assert!(dot.as_str().unwrap().starts_with("digraph"), "{dot}");
    assert_eq!(
        memory.get("field/status").await.1["epoch"],
        before,
        "views leave no trace"
    );
    // HANDOFF, COORDINATE and SESSION have no published path; ours are ones like the others.
    let offer =
        json!({"action": "offer", "task_id": "market", "to_agent": "bob", "reason": "yours"});
    assert_eq!(
        memory.ok("handoff", "ann", offer).await["status"],
        "offered"
    );
    for operation in ["coordinate", "session"] {
        let got = memory.send(operation, "ann", json!({})).await;
        refused(
            &got,
            400,
            "INVALID_REQUEST",
            json!(operation.to_uppercase()),
        );
    }
}

#[tokio::test]
async fn ak_clk_06_log_03_04_a_new_process_folds_the_same_field_from_the_log() {
    let mut server = Server::start().await;
    let memory = Memory::at(&server);
    let (first, conflict, decision) = scene(&memory).await;
    let targets = [
        ("memory_unit", first.as_str()),
        ("conflict", conflict.as_str()),
        ("decision", decision.as_str()),
    ];
    let before = everything(&memory, &targets).await;
    let attune = Memory::envelope(
        "attune",
        "ann",
        json!({"scope": {"role": "analyst", "max_units": 9, "include_own": true}}),
    );
    let (_, answer) = memory.post("attune", &attune).await;
    let epoch = answer["epoch"].as_u64().unwrap();
    let store = Arc::new(server.store.reopened());
    server.begin_stop();
    server.stopped().await;
    let server = Server::start_on(store, config(), limits()).await;
    let memory = Memory::at(&server);
    let mut after = everything(&memory, &targets).await;
    after["status"]["epoch"] = before["status"]["epoch"].clone();
    assert_eq!(after, before);
    // The same message is answered again, and not done again.
    assert_eq!(memory.post("attune", &attune).await, (200, answer));
    let next = memory.note("bob", "Something new", json!({})).await;
    assert_eq!(next["epoch"].as_u64().unwrap(), epoch + 1);
}

#[tokio::test]
async fn ak_env_09_a_message_that_comes_again_is_done_once() {
    let server = Server::start().await;
    let memory = Memory::at(&server);
    memory.join("ann").await;
    let message = Memory::envelope("record", "ann", unit("Once", json!({})));
    let first = memory.post("record", &message).await;
    assert_eq!(first.0, 201);
    // Together in one batch and one after the other.
    let again =
        futures_util::future::join_all((0..8).map(|_| memory.post("record", &message))).await;
    assert!(again.iter().all(|got| *got == first), "{again:?}");
    let mut other = message.clone();
    other["payload"]["content"] = json!("Twice");
    let got = memory.post("record", &other).await;
    refused(&got, 400, "INVALID_ENVELOPE", json!("RECORD"));
    assert_eq!(
        memory.get("field/status").await.1["units"],
        json!({"active": 1})
    );
    // A refused one may be sent again and is judged anew.
    let early = Memory::envelope("record", "zoe", unit("Early", json!({})));
    refused(
        &memory.post("record", &early).await,
        403,
        "AGENT_NOT_REGISTERED",
        json!("RECORD"),
    );
    memory.join("zoe").await;
    assert_eq!(memory.post("record", &early).await.0, 201);
}

#[tokio::test]
async fn ak_log_01_reads_are_events_of_the_workspace_like_writes() {
    let server = Server::start().await;
    let memory = Memory::at(&server);
    memory.join("ann").await;
    memory.join("bob").await;
    let known = id_of(&memory.note("ann", "A secret of the deep", json!({})).await);
    let scope = json!({"scope": {"role": "analyst", "max_units": 5}});
    memory.ok("attune", "bob", scope).await;
    memory
        .ok("replay", "bob", replay_of("memory_unit", &known))
        .await;
    let (_, list) = server
        .client()
        .get("/v1/events?workspace_id=workspace_local")
        .await;
    let entries: Vec<&Value> = list["data"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|event| event["event"] == "vendor.field_entry")
        .collect();
    let kinds: Vec<&Value> = entries
        .iter()
        .map(|event| &event["payload"]["event_type"])
        .collect();
    assert_eq!(
        json!(kinds),
        json!(["REGISTER", "REGISTER", "RECORD", "ATTUNE", "REPLAY"])
    );
    assert_eq!(entries[3]["payload"]["data"]["unit_ids"], json!([known]));
    assert_eq!(entries[3]["payload"]["agent_id"], "bob");
    assert_eq!(entries[0]["payload"]["field"], "default");
    let sequences: Vec<u64> = entries
        .iter()
        .map(|event| event["sequence"].as_u64().unwrap())
        .collect();
    assert_eq!(sequences, [1, 2, 3, 4, 5]);
    assert!(
        !list.to_string().contains("of the deep"),
        "words lie beside the log"
    );
}

#[tokio::test]
async fn concurrent_writers_lose_nothing_and_epochs_increase() {
    let server = Server::start().await;
    let memory = Memory::at(&server);
    let agents: Vec<String> = (0..8).map(|number| format!("agent-{number}")).collect();
    for agent in &agents {
        memory.join(agent).await;
    }
    let writers = agents.iter().map(|agent| {
        let memory = memory.clone();
        async move {
            let mut epochs = Vec::new();
            for number in 0..25 {
                let content = format!("{agent} saw {number}");
                let answer = memory.note(agent, &content, json!({})).await;
                epochs.push(answer["epoch"].as_u64().unwrap());
            }
            epochs
        }
    });
    let epochs = futures_util::future::join_all(writers).await;
    for one in &epochs {
        assert!(one.is_sorted_by(|a, b| a < b), "{one:?}");
    }
    let all: BTreeSet<u64> = epochs.into_iter().flatten().collect();
    assert_eq!(all, (9..209).collect());
    let (_, status) = memory.get("field/status").await;
    assert_eq!(
        (&status["epoch"], &status["units"]["active"]),
        (&json!(208), &json!(200))
    );
    let fields = server
        .store
        .documents(vec![field_id("default").into()])
        .await
        .unwrap();
    assert_eq!(fields[0].as_ref().unwrap().version, 208);
}

fn field_id(name: &str) -> String {
    let workspace = domain::WorkspaceId::local();
    domain::FieldId::of(&workspace, name).as_str().to_owned()
}

#[tokio::test]
async fn ak_http_02_04_what_is_no_message_is_refused_in_the_protocols_words() {
    let server = Server::start().await;
    let memory = Memory::at(&server);
    memory.join("ann").await;
    let good = Memory::envelope(
        "attune",
        "ann",
        json!({"scope": {"role": "r", "max_units": 1}}),
    );
    // The operation is not that of the path: it is told in the words of the message.
    refused(
        &memory.post("detect", &good).await,
        400,
        "INVALID_ENVELOPE",
        json!("ATTUNE"),
    );
    for (bytes, operation) in [
        (&b"{"[..], "RECORD"),
        (b"", "RECORD"),
        (b"[]", "RECORD"),
        (b"{\"a\":1,\"a\":2}", "RECORD"),
        (b"\xff\xfe", "RECORD"),
        (b"{\"operation\":\"\xff\"}", "RECORD"),
    ] {
        let got = got(memory
            .bytes("record", "application/json", bytes.to_vec())
            .await)
        .await;
        refused(&got, 400, "INVALID_ENVELOPE", json!(operation));
    }
    for media_type in [
        "text/plain",
        "application/xml",
        "application/json; charset=latin1",
    ] {
        let got = got(memory
            .bytes("record", media_type, good.to_string().into())
            .await)
        .await;
        refused(&got, 415, "INVALID_REQUEST", json!("RECORD"));
    }
    let mut long = good.clone();
    long["payload"]["context_hint"] = json!("x".repeat(1 << 20));
    refused(
        &memory.post("attune", &long).await,
        413,
        "INVALID_REQUEST",
        json!("ATTUNE"),
    );
    let response = memory.http.get(format!("{}/akashik/v1/record", server.url));
    let response = response.bearer_auth(KEY).send().await.unwrap();
    assert_eq!(response.headers()["allow"], "POST");
    refused(
        &got(response).await,
        405,
        "INVALID_REQUEST",
        json!("RECORD"),
    );
    refused(
        &memory.get("nothing").await,
        404,
        "INVALID_REQUEST",
        Value::Null,
    );
    refused(
        &memory.field("a%20b").get("agents").await,
        400,
        "INVALID_REQUEST",
        Value::Null,
    );
    refused(
        &memory.get("field/graph").await,
        400,
        "INVALID_REQUEST",
        Value::Null,
    );
    let path = "field/graph?target_type=task&target_id=none";
    refused(
        &memory.get(path).await,
        404,
        "UNIT_NOT_FOUND",
        json!("REPLAY"),
    );
    // The protocol's own refusals, each under its status.
    let cases: [(&str, Value, u16, &str); 14] = [
        (
            "record",
            unit("x", json!({"intent": {}})),
            422,
            "MISSING_INTENT",
        ),
        (
            "record",
            unit("x", json!({"confidence": null})),
            422,
            "MISSING_CONFIDENCE",
        ),
        (
            "record",
            unit("x", json!({"confidence": {"score": 2, "reasoning": "r"}})),
            422,
            "INVALID_CONFIDENCE",
        ),
        (
            "record",
            unit("x", json!({"type": "rumour"})),
            422,
            "INVALID_TYPE",
        ),
        (
            "record",
            unit("x", json!({"relation": []})),
            400,
            "INVALID_REQUEST",
        ),
        (
            "record",
            unit(&"x".repeat(300_000), json!({})),
            400,
            "INVALID_REQUEST",
        ),
        (
            "record",
            unit(
                "x",
                json!({"relations": [{"type": "contradicts", "target_id": "no"}]}),
            ),
            404,
            "UNIT_NOT_FOUND",
        ),
        (
            "register",
            json!({"id": "ann", "role": "r"}),
            409,
            "AGENT_ID_TAKEN",
        ),
        (
            "register",
            json!({"id": "ann", "role": "r", "required_operations": ["TELEPORT"]}),
            501,
            "UNSUPPORTED_OPERATION",
        ),
        (
            "merge",
            json!({"conflict_id": "no", "strategy": "last_write_wins", "resolution": {"rationale": "r"}}),
            404,
            "CONFLICT_NOT_FOUND",
        ),
        (
            "merge",
            json!({"conflict_id": "no", "strategy": "vote", "resolution": {"rationale": "r"}}),
            400,
            "INVALID_REQUEST",
        ),
        (
            "replay",
            replay_of("memory_unit", "no"),
            404,
            "UNIT_NOT_FOUND",
        ),
        (
            "compact",
            json!({"strategy": "purge", "filter": {"types": ["finding"]}}),
            403,
            "FORBIDDEN",
        ),
        ("detect", json!({"mode": "check"}), 400, "INVALID_REQUEST"),
    ];
    let before = memory.get("field/status").await;
    for (operation, payload, status, code) in cases {
        let got = memory.send(operation, "ann", payload).await;
        refused(&got, status, code, json!(operation.to_uppercase()));
    }
    for (epoch, status, code) in [
        ((1u64 << 53) - 1, 500, "EPOCH_OVERFLOW"),
        (1 << 53, 400, "INVALID_ENVELOPE"),
        (2_000_000, 400, "INVALID_ENVELOPE"),
    ] {
        let mut jumps = Memory::envelope("detect", "ann", json!({"mode": "list"}));
        jumps["epoch"] = json!(epoch);
        refused(
            &memory.post("detect", &jumps).await,
            status,
            code,
            json!("DETECT"),
        );
    }
    assert_eq!(
        memory.get("field/status").await,
        before,
        "a refusal changes nothing"
    );
}

#[tokio::test]
async fn ak_sec_02_u33_keys_and_their_scopes_say_what_agents_may() {
    let server = Server::start().await;
    // Below level 3 agents have no authority of their own.
    let standard = field::Config::at(field::Level::Standard);
    server.engine.set_fields(standard);
    for (text, scope) in [
        ("rk_read", "field:read"),
        ("rk_write", "field:write"),
        ("rk_admin", "field:admin"),
        ("rk_other", "field:write"),
        ("rk_none", "tasks:read"),
    ] {
        server.add_key(key(text, text, &[scope], None)).await;
    }
    let memory = Memory::at(&server);
    let [read, write, admin, other, none] =
        ["rk_read", "rk_write", "rk_admin", "rk_other", "rk_none"].map(|key| memory.with_key(key));
    let register = |id: &str| json!({"id": id, "role": "r"});
    refused(
        &memory
            .with_key("rk_wrong")
            .send("register", "ann", register("ann"))
            .await,
        401,
        "UNAUTHENTICATED",
        json!("REGISTER"),
    );
    refused(
        &none.send("register", "ann", register("ann")).await,
        403,
        "FORBIDDEN",
        json!("REGISTER"),
    );
    refused(&none.get("agents").await, 403, "FORBIDDEN", Value::Null);
    // A field comes to exist by whoever may administer it; until then it is an empty one.
    assert_eq!(read.get("agents").await, (200, json!({"agents": []})));
    refused(
        &write.send("register", "ann", register("ann")).await,
        403,
        "FORBIDDEN",
        json!("REGISTER"),
    );
    admin.join("root").await;
    write.join("ann").await;
    read.join("eye").await;
    let committed = unit("Known", json!({}));
    let known = id_of(&write.ok("record", "ann", committed.clone()).await);
    refused(
        &read.send("record", "eye", committed.clone()).await,
        403,
        "FORBIDDEN",
        json!("RECORD"),
    );
    let mut draft = unit("Perhaps", json!({}));
    draft["mode"] = json!("draft");
    read.ok("record", "eye", draft).await;
    read.ok(
        "attune",
        "eye",
        json!({"scope": {"role": "r", "max_units": 3}}),
    )
    .await;
    read.ok("replay", "eye", replay_of("memory_unit", &known))
        .await;
    refused(
        &read.send("detect", "eye", json!({"mode": "list"})).await,
        403,
        "FORBIDDEN",
        json!("DETECT"),
    );
    write
        .ok(
            "compact",
            "ann",
            json!({"strategy": "archive", "filter": {}}),
        )
        .await;
    // An agent belongs to the key that registered it first.
    refused(
        &other.send("record", "ann", committed).await,
        403,
        "FORBIDDEN",
        json!("RECORD"),
    );
    // Nor is it removed by one: removing an agent of another key is the administrator's.
    other.join("bob").await;
    let mut target = json!({"agent_id": "ann"});
    refused(
        &other.send("deregister", "bob", target.clone()).await,
        403,
        "FORBIDDEN",
        json!("DEREGISTER"),
    );
    target["agent_id"] = json!("bob");
    assert_eq!(admin.ok("deregister", "root", target).await["status"], "ok");
    // An escalated conflict is the operator's.
    let a = id_of(&write.note("ann", "It is one", json!({})).await);
    let more = json!({"relations": [{"type": "contradicts", "target_id": a}]});
    let answer = write.note("ann", "It is two", more).await;
    let merge = |strategy: &str| {
        json!({
            "conflict_id": answer["conflicts_detected"][0], "strategy": strategy,
            "resolution": {"rationale": "r", "winner_id": null},
        })
    };
    assert_eq!(
        write.ok("merge", "ann", merge("human_escalation")).await["status"],
        "escalated"
    );
    refused(
        &write.send("merge", "ann", merge("last_write_wins")).await,
        409,
        "INVALID_TRANSITION",
        json!("MERGE"),
    );
    assert_eq!(
        admin.ok("merge", "root", merge("last_write_wins")).await["status"],
        "resolved"
    );
}

#[tokio::test]
async fn fields_and_workspaces_see_nothing_of_each_other() {
    let server = Server::start().await;
    let (_, workspace) = server
        .client()
        .post("/v1/workspaces", json!({"name": "b", "root": "/"}))
        .await;
    let workspace = workspace["id"].as_str().unwrap().to_owned();
    server
        .add_key(key("rk_bound", "bob", &["*"], Some(&[&workspace])))
        .await;
    let (_, second) = server
        .client()
        .post("/v1/workspaces", json!({"name": "c", "root": "/"}))
        .await;
    let second = second["id"].as_str().unwrap().to_owned();
    server
        .add_key(key("rk_two", "eve", &["*"], Some(&[&workspace, &second])))
        .await;
    let memory = Memory::at(&server);
    let (other, bound) = (memory.field("other"), memory.with_key("rk_bound"));
    for place in [&memory, &other, &bound] {
        place.join("ann").await;
    }
    let known = id_of(&memory.note("ann", "Here", json!({})).await);
    for elsewhere in [&other, &bound] {
        let got = elsewhere
            .send("replay", "ann", replay_of("memory_unit", &known))
            .await;
        refused(&got, 404, "UNIT_NOT_FOUND", json!("REPLAY"));
        assert_eq!(elsewhere.get("field/status").await.1["epoch"], 1);
    }
    // The default field has a name like any other.
    assert_eq!(
        memory.field("default").get("field/status").await,
        memory.get("field/status").await
    );
    // Several workspaces, none of them the local one: the path does not say which.
    refused(
        &memory.with_key("rk_two").get("agents").await,
        403,
        "FORBIDDEN",
        Value::Null,
    );
    let (_, list) = server.client_with("rk_bound").get("/v1/events").await;
    assert!(!list.to_string().contains(&known));
}

/// A persona's Tasks speak under its id: whoever took it before would have them fail.
#[tokio::test]
async fn ids_of_personas_are_for_the_server_alone() {
    let server = Server::start().await;
    let memory = Memory::at(&server);
    let agent = "persona_0123456789abcdef0123456789abcdef";
    let payload = json!({"id": agent, "role": "x"});
    let got = memory.send("register", agent, payload).await;
    refused(&got, 403, "FORBIDDEN", json!("REGISTER"));
    let (_, status) = memory.get("field/status").await;
    assert_eq!(status["epoch"], 0, "{status}");
    memory.join("a_persona_").await;
}

#[tokio::test]
async fn a_callers_own_key_does_not_get_into_the_memory() {
    let server = Server::start().await;
    let memory = Memory::at(&server);
    memory.join("ann").await;
    memory
        .note("ann", &format!("My key is {KEY}"), json!({}))
        .await;
    let scope = json!({"scope": {"role": "analyst", "max_units": 5, "include_own": true}});
    let seen = memory.ok("attune", "ann", scope).await.to_string();
    assert!(
        seen.contains("[redacted:api_key]") && !seen.contains(KEY),
        "{seen}"
    );
}

#[tokio::test]
async fn a_field_whose_words_are_gone_still_tells_what_happened() {
    let mut server = Server::start().await;
    let memory = Memory::at(&server);
    let (first, conflict, _) = scene(&memory).await;
    let told = memory
        .ok("replay", "sam", replay_of("conflict", &conflict))
        .await;
    let store = Arc::new(server.store.reopened());
    store.forget_blobs();
    server.begin_stop();
    server.stopped().await;
    let server = Server::start_on(store, config(), limits()).await;
    let memory = Memory::at(&server);
    let again = memory
        .ok("replay", "sam", replay_of("conflict", &conflict))
        .await;
    let bare = |mut told: Value| {
        for event in told["timeline"].as_array_mut().unwrap() {
            event["description"] = Value::Null;
        }
        told["summary"] = Value::Null;
        told
    };
    assert_eq!(again["timeline"][0]["memory_unit_id"], json!(first));
    assert_eq!(
        again["timeline"][0]["description"],
        "Recorded finding (content purged)"
    );
    assert_eq!(bare(again), bare(told), "AK-REPLAY-01: from the log alone");
}

/// Reads frames of a stream until there are as many as wanted.
async fn frames(response: &mut Response, count: usize) -> Vec<(String, String, Value)> {
    let mut text = String::new();
    loop {
        let whole: Vec<_> = text
            .split_inclusive("\n\n")
            .filter(|frame| frame.ends_with("\n\n") && !frame.starts_with(':'))
            .map(|frame| {
                let line = |name: &str| {
                    let mut lines = frame.lines();
                    lines
                        .find_map(|line| line.strip_prefix(name))
                        .unwrap()
                        .to_owned()
                };
                let data = serde_json::from_str(&line("data: ")).unwrap();
                (line("id: "), line("event: "), data)
            })
            .collect();
        if whole.len() >= count {
            return whole;
        }
        let next = tokio::time::timeout(std::time::Duration::from_secs(20), response.chunk());
        let next = next.await.expect("nothing is pushed").unwrap();
        text.push_str(std::str::from_utf8(&next.expect("the stream has ended")).unwrap());
    }
}

#[tokio::test]
async fn ak_sub_02_05_06_http_07_subscribers_are_notified_as_it_happens() {
    let server = Server::start().await;
    server
        .add_key(key("rk_other", "other", &["field:write"], None))
        .await;
    let memory = Memory::at(&server);
    memory.join("ann").await;
    memory.join("bob & co").await;
    let subscription = json!({
        "action": "subscribe",
        "subscription": {"id": null, "events": ["memory.recorded", "conflict.detected"]},
    });
    let answer = memory.ok("subscribe", "bob & co", subscription).await;
    let url = answer["push"]["sse_url"].as_str().unwrap();
    assert_eq!(
        url,
        format!(
            "{}/akashik/v1/notifications?agent_id=bob%20%26%20co",
            server.url
        )
    );
    let open = |url: String, key: &'static str| {
        let request = memory.http.get(url).bearer_auth(key);
        async move { request.send().await.unwrap() }
    };
    let unknown = format!("{}/akashik/v1/notifications?agent_id=zoe", server.url);
    let got_unknown = got(open(unknown, KEY).await).await;
    refused(
        &got_unknown,
        403,
        "AGENT_NOT_REGISTERED",
        json!("SUBSCRIBE"),
    );
    let foreign = got(open(url.to_owned(), "rk_other").await).await;
    refused(&foreign, 403, "FORBIDDEN", json!("SUBSCRIBE"));
    let mut stream = open(url.to_owned(), KEY).await;
    assert_eq!(stream.headers()["content-type"], "text/event-stream");
    let first = memory.note("ann", "It is one", json!({})).await;
    let more = json!({"relations": [{"type": "contradicts", "target_id": id_of(&first)}]});
    let second = memory.note("ann", "It is two", more).await;
    // What the subscriber does itself, and what it did not ask for, is not pushed.
    memory.note("bob & co", "It is three", json!({})).await;
    memory.join("cid").await;
    let last = memory.note("ann", "It is four", json!({})).await;
    let pushed = frames(&mut stream, 4).await;
    let topics: Vec<&str> = pushed.iter().map(|(_, event, _)| event.as_str()).collect();
    assert_eq!(
        topics,
        [
            "memory.recorded",
            "memory.recorded",
            "conflict.detected",
            "memory.recorded"
        ]
    );
    let (id, _, data) = &pushed[0];
    assert_eq!(data["memory_unit_id"], first["memory_unit_id"]);
    assert_eq!(data["epoch"], first["epoch"]);
    assert_eq!(*id, format!("{}.4", first["epoch"]));
    assert_eq!(pushed[2].2["conflict_id"], second["conflicts_detected"][0]);
    assert_eq!(pushed[3].2["memory_unit_id"], last["memory_unit_id"]);
}

#[tokio::test]
async fn ak_sub_04_of_what_comes_too_fast_about_one_thing_the_last_is_kept() {
    const GAP: std::time::Duration = std::time::Duration::from_millis(700);
    let server = Server::start().await;
    let memory = Memory::at(&server);
    memory.join("ann").await;
    memory.join("eve").await;
    let subscription = json!({
        "action": "subscribe",
        "subscription": {"id": null, "events": ["memory.contested"], "debounce_ms": GAP.as_millis() as u64},
    });
    let answer = memory.ok("subscribe", "eve", subscription).await;
    let url = answer["push"]["sse_url"].as_str().unwrap();
    let mut stream = memory.http.get(url).bearer_auth(KEY).send().await.unwrap();
    let known = id_of(&memory.note("ann", "It is one", json!({})).await);
    let contest = async |content: &str| {
        let more = json!({
            "confidence": {"score": 0.1, "reasoning": "a guess"},
            "relations": [{"type": "contradicts", "target_id": known}],
        });
        let answer = memory.note("ann", content, more).await;
        let payload = json!({
            "conflict_id": answer["conflicts_detected"][0], "strategy": "confidence_weighted",
            "resolution": {"rationale": "r"},
        });
        memory.ok("merge", "ann", payload).await;
        answer["epoch"].clone()
    };
    let first = contest("It is two").await;
    // The new unit is contested too, and is another thing.
    let pushed = frames(&mut stream, 2).await;
    let began = std::time::Instant::now();
    let about = |pushed: &[(String, String, Value)]| -> Vec<Value> {
        let own = pushed
            .iter()
            .filter(|(.., data)| data["memory_unit_id"] == json!(known));
        own.map(|(.., data)| data["epoch"].clone()).collect()
    };
    assert_eq!(about(&pushed), [first]);
    contest("It is three").await;
    let last = contest("It is four").await;
    // Two new units at once, and the known one when its time has come.
    let pushed = frames(&mut stream, 3).await;
    assert_eq!(about(&pushed), [last]);
    assert!(began.elapsed() > GAP / 2, "{:?}", began.elapsed());
}

#[tokio::test]
async fn numbers_that_no_event_can_hold_are_refused_and_leave_the_field_usable() {
    let server = Server::start().await;
    let memory = Memory::at(&server);
    memory.join("ann").await;
    for number in [
        json!(9_007_199_254_740_992_u64),
        json!(u64::MAX),
        json!(1e21),
    ] {
        let payload = json!({"scope": {"role": "a", "max_units": number}});
        let got = memory.send("attune", "ann", payload).await;
        assert_eq!(
            (got.0, got.1["code"].as_str()),
            (400, Some("INVALID_ENVELOPE")),
            "{}",
            got.1
        );
    }
    memory
        .ok(
            "attune",
            "ann",
            json!({"scope": {"role": "a", "max_units": 5}}),
        )
        .await;
}

#[tokio::test]
async fn events_of_a_field_confirm_no_guess_of_what_was_said() {
    let server = Server::start().await;
    let memory = Memory::at(&server);
    memory.join("ann").await;
    let envelope = Memory::envelope("record", "ann", unit("42%", json!({})));
    let got = memory.post("record", &envelope).await;
    assert!(got.0 < 300, "{}", got.1);
    let guess = canon::sha256(&canon::jcs(&envelope)).to_string();
    let (_, events) = server.client().get("/v1/events?limit=100").await;
    let events = events.to_string();
    assert!(events.contains("vendor.field_entry"), "{events}");
    assert!(!events.contains(&guess), "{events}");
    // The same message is still known.
    assert_eq!(memory.post("record", &envelope).await, got);
}

#[tokio::test]
async fn conflicts_are_viewed_in_pages_and_a_field_has_a_name() {
    let server = Server::start().await;
    let memory = Memory::at(&server);
    memory.join("ann").await;
    let known = id_of(&memory.note("ann", "It is so", json!({})).await);
    let mut made = Vec::new();
    for _ in 0..3 {
        let more = json!({"relations": [{"type": "contradicts", "target_id": known}]});
        let answer = memory.note("ann", "It is not", more).await;
        made.push(answer["conflicts_detected"][0].clone());
    }
    let (status, first) = memory.get("conflicts?limit=2").await;
    assert_eq!((status, &first["conflicts_total"]), (200, &json!(3)));
    let next = first["next_cursor"].as_str().unwrap().to_owned();
    assert_eq!(json!(next), made[1]);
    let (_, last) = memory
        .get(&format!("conflicts?limit=2&cursor={next}"))
        .await;
    assert_eq!(last["conflicts"][0]["id"], made[2]);
    assert_eq!(last["conflicts"].as_array().unwrap().len(), 1);
    assert_eq!(last["next_cursor"], json!(null));
    let (_, all) = memory.get("conflicts").await;
    assert_eq!(
        all.as_object().unwrap().len(),
        1,
        "everything, and no more to say"
    );
    assert_eq!(memory.get("conflicts?limit=0").await.0, 400);
    let unknown = memory.get("conflicts?cursor=conflict_none").await;
    assert_eq!(
        (unknown.0, &unknown.1["code"]),
        (400, &json!("INVALID_REQUEST"))
    );

    let nameless = memory.field("");
    assert_eq!(nameless.get("field/status").await.0, 404);
    let payload = json!({"id": "bob", "role": "analyst"});
    assert_eq!(nameless.send("register", "bob", payload).await.0, 404);
}
