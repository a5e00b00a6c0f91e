//! Workflows of governed sessions over HTTP: several agents share one job and hand it over.

use std::time::Duration;

use serde_json::{Value, json};

use crate::fixture::{Got, Server, key};
use crate::governed::{Desk, offered, problem};

const WORKFLOW: &str = r#"
schema_version: "1.0"
workflow: return-with-inspection
roles:
  - { name: desk, session_contract: desk/session.yaml }
  - { name: inspector, session_contract: inspector/session.yaml }
handoffs:
  - { from: desk, to: inspector }
limits: { max_sessions: 3, max_tool_calls: 3 }
shared_resources:
  - { name: order, path: "$.order_id", tools: [pay], mode: exclusive }
"#;

const FIND: &str = "tool: find\nside_effect: read\nbinds: [ { slot: order, from: arguments, path: \"$.order_id\" } ]\n";
const PAY: &str = "tool: pay\nside_effect: write\nargument_value_invariants: [ { path: \"$.order_id\", ref: order } ]\n";
const NOTE: &str = "tool: note\nside_effect: write\n";
/// A label that closes a tool.
const SESSION: &str =
    "schema_version: \"1.0\"\nlabel_gates: [ { label: mnpi, block_tools: [note] } ]\n";

fn source() -> Value {
    json!({"file": "workflow.yaml", "text": WORKFLOW})
}

fn session(id: &str, workflow: Value) -> Value {
    let files = [("find.yaml", FIND), ("pay.yaml", PAY), ("note.yaml", NOTE)];
    let files = files.map(|(file, text)| json!({"file": file, "text": text}));
    json!({
        "session_id": id,
        "contracts": {"contracts": files, "session": {"file": "session.yaml", "text": SESSION}},
        "workflow": workflow,
    })
}

/// A session of a workflow.
struct Seat(Desk);

impl Seat {
    async fn root(server: &Server, id: &str, workflow: &str) -> Self {
        let place =
            json!({"type": "root", "workflow_id": workflow, "role": "desk", "source": source()});
        Self(Desk::open_with(server, session(id, place)).await)
    }

    async fn child(server: &Server, id: &str, handoff: &str) -> Self {
        let place = json!({"type": "child", "role": "inspector", "handoff_id": handoff});
        Self(Desk::open_with(server, session(id, place)).await)
    }

    async fn preflight(&self) -> Got {
        let version = self.0.state().await["stateVersion"].clone();
        let body = json!({"expected_state_version": version, "offered_tools": offered(&["find", "pay", "note"]),
            "provider": "openai", "model": "gpt-x"});
        self.0.post("/preflight", body).await
    }

    async fn propose(&self, tool: &str, order: &str) -> Value {
        let (status, prepared) = self.preflight().await;
        assert_eq!(status, 200, "{prepared}");
        let arguments = json!({"order_id": order});
        let id = format!("{tool}-{order}");
        let got = self
            .0
            .propose_as(&prepared, &[(&id, tool, arguments)])
            .await;
        assert_eq!(got.0, 200, "{}", got.1);
        got.1
    }

    async fn done(&self, tool: &str, order: &str) {
        let proposal = self.propose(tool, order).await;
        assert_eq!(proposal["status"], "allowed", "{proposal}");
        let got = self.0.report(&proposal, json!({})).await;
        assert_eq!(got.0, 200, "{}", got.1);
    }

    async fn offer(&self, more: Value) -> Got {
        let mut body = json!({"to_role": "inspector", "summary": "look at it", "carry": []});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        self.0.post("/handoffs", body).await
    }

    async fn offered(&self, more: Value) -> String {
        let (status, offer) = self.offer(more).await;
        assert_eq!((status, &offer["status"]), (200, &json!("open")), "{offer}");
        assert!(offer["expires_at"].is_string(), "{offer}");
        offer["handoff_id"].as_str().unwrap().to_owned()
    }

    async fn workflow(&self, id: &str) -> Value {
        let (status, shown) = self.0.api.get(&path(id)).await;
        assert_eq!(status, 200, "{shown}");
        shown
    }
}

fn path(id: &str) -> String {
    format!("/api/v1/replay/workflows/{id}")
}

fn on(handoff: &str, what: &str) -> String {
    format!("/api/v1/replay/handoffs/{handoff}/{what}")
}

async fn ended(desk: &Desk, task: &Value, status: &str) {
    desk.api.wait_for(task.as_str().unwrap(), status).await;
}

async fn replayed(desk: &Desk, task: &Value, status: &str) {
    let path = format!("/v1/tasks/{}/replay", task.as_str().unwrap());
    let (code, replay) = desk.api.post(&path, json!({"mode": "exact"})).await;
    assert_eq!(code, 202, "{replay}");
    ended(desk, &replay["id"], status).await;
}

#[tokio::test]
async fn a_workflow_is_made_joined_handed_over_and_replayed() {
    let server = Server::start().await;
    let api = server.client();
    let new = json!({"workflow_id": "job-1", "role": "desk", "source": source()});
    let (status, made) = api.post("/api/v1/replay/workflows", new.clone()).await;
    assert_eq!(
        (status, &made["status"]),
        (201, &json!("created")),
        "{made}"
    );
    let (status, again) = api.post("/api/v1/replay/workflows", new).await;
    assert_eq!((status, &again["workflow_id"]), (200, &json!("job-1")));
    // The file is known by now: its digest is enough.
    let by_digest = json!({"workflow_id": "job-1", "compiled_digest": made["compiled_digest"]});
    assert_eq!(api.post("/api/v1/replay/workflows", by_digest).await.0, 200);

    let place = json!({"type": "root", "workflowId": "job-1", "role": "desk"});
    let root = Seat(Desk::open_with(&server, session("root-1", place)).await);
    assert_eq!(root.workflow("job-1").await["status"], "open");
    root.0.post("/labels", json!({"label": "mnpi"})).await;
    root.done("find", "A").await;
    let before = root.0.state().await["controlRevision"].clone();
    let handoff = root.offered(json!({"carry": ["order"]})).await;
    let shown = root.workflow("job-1").await;
    assert_eq!(
        shown["open_offers"][0]["handoff_id"],
        json!(handoff),
        "{shown}"
    );
    assert_eq!(shown["open_offers"][0]["carry"], json!(["order"]));
    assert_eq!(shown["budget_used"]["tool_calls"], 1, "{shown}");

    let (status, taken) = api
        .post(&on(&handoff, "accept"), json!({"session_id": "child-1"}))
        .await;
    assert_eq!(
        (status, &taken["status"]),
        (200, &json!("accepted")),
        "{taken}"
    );
    assert_eq!(taken["session_id"], "child-1");
    let second = api.post(&on(&handoff, "accept"), json!({})).await;
    problem(&second, 409, "settled");
    assert_eq!(second.1["handoff_status"], "accepted");
    // Nobody else begins under an offer that was taken.
    let place = json!({"type": "child", "workflow_id": "job-1", "role": "inspector", "handoff_id": handoff});
    let other = api
        .post("/api/v1/replay/sessions", session("child-2", place.clone()))
        .await;
    problem(&other, 409, "settled");
    let child = Seat(Desk::open_with(&server, session("child-1", place)).await);
    let state = child.0.state().await;
    assert_eq!(
        state["workflow"],
        json!({"workflow_id": "job-1", "role": "inspector"})
    );
    // Labels and the carried slot, nothing else.
    assert_eq!(state["labels"], json!(["mnpi"]));
    assert_eq!(state["totalToolCalls"], 0);
    assert_eq!(state["satisfiedPreconditions"], json!({}));
    let other_order = child.propose("pay", "B").await;
    assert_eq!(other_order["verdicts"][0]["reason"], "ref_mismatch");
    child.done("pay", "A").await;
    let removed = child.preflight().await.1["removed"].clone();
    assert_eq!(removed[0]["reason"], "label_gate", "{removed}");
    // The parent hears of it with its next input, and stays open.
    assert_eq!(root.preflight().await.0, 200);
    let after = root.0.state().await["controlRevision"].clone();
    assert_eq!(after.as_u64(), before.as_u64().map(|count| count + 1));
    let shown = root.workflow("job-1").await;
    assert_eq!(shown["budget_used"]["tool_calls"], 2, "{shown}");
    assert_eq!(shown["sessions"][0]["parent"], "root-1", "{shown}");

    assert_eq!(child.0.post("/restore", json!({})).await.0, 200);
    assert_eq!(root.0.post("/restore", json!({})).await.0, 200);
    assert_eq!(root.workflow("job-1").await["status"], "ended");
    let task = &shown["protocol"]["task_id"];
    ended(&root.0, task, "COMPLETED").await;
    for task in [
        task.clone(),
        child.0.state().await["protocol"]["task_id"].clone(),
        root.0.state().await["protocol"]["task_id"].clone(),
    ] {
        replayed(&root.0, &task, "COMPLETED").await;
    }
}

#[tokio::test]
async fn limits_and_shared_things_hold_over_all_sessions() {
    let server = Server::start().await;
    let root = Seat::root(&server, "r", "job-2").await;
    root.done("find", "A").await;
    let handoff = root.offered(json!({"carry": ["order"]})).await;
    let child = Seat::child(&server, "c", &handoff).await;
    // What one session has pending, another one may not touch; another order it may.
    let paying = root.propose("pay", "A").await;
    assert_eq!(paying["status"], "allowed", "{paying}");
    let busy = child.propose("pay", "A").await;
    assert_eq!(busy["verdicts"][0]["reason"], "session_limit_exceeded");
    assert_eq!(busy["verdicts"][0]["detail"], "resource_busy", "{busy}");
    assert_eq!(
        root.workflow("job-2").await["shared_resources"][0]["session_id"],
        "r"
    );
    assert_eq!(root.0.report(&paying, json!({})).await.0, 200);
    child.done("pay", "A").await;
    // Three calls of all together.
    let over = root.preflight().await;
    problem(&over, 403, "session_limit_exceeded");
    assert_eq!(over.1["decision"]["detail"], "workflow", "{}", over.1);
    problem(&child.preflight().await, 403, "session_limit_exceeded");
    // Three sessions of all together.
    let one = root.offered(json!({})).await;
    Seat::child(&server, "c2", &one).await;
    let two = root.offered(json!({})).await;
    let refused = server.client().post(&on(&two, "accept"), json!({})).await;
    problem(&refused, 403, "session_limit_exceeded");
}

#[tokio::test]
async fn a_killed_root_stops_all_that_came_from_it_and_a_child_only_itself() {
    let server = Server::start().await;
    let root = Seat::root(&server, "kr", "job-3").await;
    let first = root.offered(json!({})).await;
    let second = root.offered(json!({})).await;
    let one = Seat::child(&server, "kc1", &first).await;
    let two = Seat::child(&server, "kc2", &second).await;
    assert_eq!(one.0.post("/kill", json!({})).await.0, 200);
    assert_eq!(root.preflight().await.0, 200);
    assert_eq!(two.preflight().await.0, 200);
    assert_eq!(root.0.post("/kill", json!({"reason": "stop"})).await.0, 200);
    // At once, whatever it is asked.
    let version = two.0.state().await["stateVersion"].clone();
    let body = json!({"expected_state_version": version, "offered_tools": [], "provider": "o", "model": "m"});
    problem(&two.0.post("/preflight", body).await, 410, "killed");
    let shown = root.workflow("job-3").await;
    assert_eq!(shown["status"], "killed", "{shown}");
    let task = two.0.state().await["protocol"]["task_id"].clone();
    ended(&two.0, &task, "CANCELED").await;
    ended(&root.0, &shown["protocol"]["task_id"], "CANCELED").await;
    replayed(&two.0, &task, "CANCELED").await;
}

#[tokio::test]
async fn a_kill_reaches_children_also_when_the_server_stops_in_between() {
    let server = Server::start().await;
    let root = Seat::root(&server, "cr", "job-4").await;
    let handoff = root.offered(json!({})).await;
    let child = Seat::child(&server, "cc", &handoff).await;
    assert_eq!(root.0.post("/kill", json!({})).await.0, 200);
    let after = server.reopened().await;
    let child = child.0.with(after.client());
    // Nobody asks it anything: the server ends it by itself.
    let task = child.state().await["protocol"]["task_id"].clone();
    ended(&child, &task, "CANCELED").await;
    assert_eq!(child.state().await["killed"], true);
    let (_, shown) = child.api.get(&path("job-4")).await;
    assert_eq!(shown["status"], "killed");
}

#[tokio::test]
async fn a_canceled_workflow_stops_its_sessions() {
    let server = Server::start().await;
    let root = Seat::root(&server, "wr", "job-5").await;
    let task = root.workflow("job-5").await["protocol"]["task_id"].clone();
    let cancel = format!("/v1/tasks/{}/cancel", task.as_str().unwrap());
    let (status, canceled) = root.0.api.post(&cancel, json!({})).await;
    assert_eq!(status, 200, "{canceled}");
    let own = root.0.state().await["protocol"]["task_id"].clone();
    ended(&root.0, &own, "CANCELED").await;
}

#[tokio::test]
async fn what_a_workflow_does_not_permit_is_refused_by_name() {
    let server = Server::start().await;
    let api = server.client();
    let new = |source: Value| json!({"workflow_id": "w", "source": source});
    let path_ = "/api/v1/replay/workflows";
    let broken = json!({"file": "workflow.yaml", "text": "schema_version: \"1.0\"\nrolls: []\n"});
    let refused = api.post(path_, new(broken)).await;
    problem(&refused, 422, "compilation_failed");
    assert!(
        refused.1["findings"].as_array().unwrap().len() > 1,
        "{}",
        refused.1
    );
    problem(&api.post(path_, json!({})).await, 422, "workflow_not_found");
    let mut wrong = new(source());
    wrong["compiled_digest"] = json!("ab".repeat(32));
    problem(&api.post(path_, wrong).await, 409, "digest_mismatch");
    let role = json!({"source": source(), "role": "nobody"});
    problem(&api.post(path_, role).await, 422, "unknown_role");
    problem(&api.get(&path("nowhere")).await, 404, "workflow_not_found");

    let root = Seat::root(&server, "p", "job-6").await;
    let place = json!({"type": "root", "workflow_id": "job-6", "role": "desk"});
    let second = api
        .post("/api/v1/replay/sessions", session("p2", place))
        .await;
    problem(&second, 409, "workflow_begun");
    let alone = Desk::open_with(&server, session("alone", Value::Null)).await;
    let offer = json!({"to_role": "inspector"});
    problem(&alone.post("/handoffs", offer).await, 409, "no_workflow");
    problem(
        &root.offer(json!({"to_role": "nobody"})).await,
        422,
        "unknown_role",
    );
    problem(
        &root.offer(json!({"to_role": "desk"})).await,
        403,
        "handoff_not_permitted",
    );
    problem(
        &root.offer(json!({"carry": ["order"]})).await,
        409,
        "slot_not_set",
    );
    problem(
        &root.offer(json!({"expires_in_seconds": 0})).await,
        400,
        "malformed",
    );

    let declined = root.offered(json!({})).await;
    let answer = api.post(&on(&declined, "decline"), json!({})).await;
    assert_eq!(answer, (200, json!({"status": "declined"})));
    problem(
        &api.post(&on(&declined, "accept"), json!({})).await,
        409,
        "settled",
    );
    let cancelled = root.offered(json!({})).await;
    let answer = api.post(&on(&cancelled, "cancel"), json!({})).await;
    assert_eq!(answer, (200, json!({"status": "cancelled"})));
    let late = root.offered(json!({"expires_in_seconds": 1})).await;
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let refused = api.post(&on(&late, "accept"), json!({})).await;
    problem(&refused, 409, "settled");
    assert_eq!(refused.1["handoff_status"], "expired");
    assert_eq!(root.workflow("job-6").await["open_offers"], json!([]));
    for unknown in ["job-6.handoff.99", "nowhere.handoff.1", "x"] {
        problem(
            &api.post(&on(unknown, "accept"), json!({})).await,
            404,
            "unknown_handoff",
        );
    }
    // Another tenant sees none of it.
    let (_, workspace) = api
        .post("/v1/workspaces", json!({"name": "b", "root": "/"}))
        .await;
    let workspace = workspace["id"].as_str().unwrap().to_owned();
    server
        .add_key(key("rk_eve", "eve", &["*"], Some(&[&workspace])))
        .await;
    let eve = server.client_with("rk_eve");
    let open = root.offered(json!({})).await;
    problem(&eve.get(&path("job-6")).await, 404, "workflow_not_found");
    problem(
        &eve.post(&on(&open, "accept"), json!({})).await,
        404,
        "unknown_handoff",
    );
    // A repeated request is answered as it was.
    let accept = on(&open, "accept");
    let first = api.post_with_key(&accept, "once", json!({})).await;
    assert_eq!(first.0, 200, "{}", first.1);
    assert_eq!(api.post_with_key(&accept, "once", json!({})).await, first);
}

#[tokio::test]
async fn an_id_that_a_handoff_took_is_opened_as_that_child_or_not_at_all() {
    let server = Server::start().await;
    let api = server.client();
    let sessions = "/api/v1/replay/sessions";
    let root = Seat::root(&server, "sr", "job-7").await;
    let before = root.offered(json!({})).await;
    root.0.post("/labels", json!({"label": "mnpi"})).await;
    let after = root.offered(json!({})).await;
    let take = |handoff: &str, id: &str| (on(handoff, "accept"), json!({"session_id": id}));
    // A session that is there takes no handoff.
    let alone = Desk::open_with(&server, session("plain", Value::Null)).await;
    let (path_, taking) = take(&after, &alone.id);
    problem(&api.post(&path_, taking).await, 409, "id_in_use");
    let (path_, taking) = take(&after, "labelled");
    let first = api.post_with_key(&path_, "take", taking.clone()).await;
    assert_eq!(first.0, 200, "{}", first.1);
    let (path_, other) = take(&before, "bare");
    assert_eq!(api.post(&path_, other).await.0, 200);

    // Not by itself, not in another workflow, and not under a handoff that somebody else took.
    let refused = api.post(sessions, session("labelled", Value::Null)).await;
    problem(&refused, 409, "id_in_use");
    assert_eq!(refused.1["workflow_id"], "job-7", "{}", refused.1);
    let elsewhere =
        json!({"type": "root", "workflow_id": "job-8", "role": "desk", "source": source()});
    let refused = api.post(sessions, session("labelled", elsewhere)).await;
    problem(&refused, 409, "id_in_use");
    let second = Seat::root(&server, "sr2", "job-9").await;
    let (path_, taking_too) = take(&second.offered(json!({})).await, "labelled");
    problem(&api.post(&path_, taking_too).await, 409, "id_in_use");
    let place =
        |handoff: &str| json!({"type": "child", "role": "inspector", "handoff_id": handoff});
    let refused = api
        .post(sessions, session("labelled", place(&before)))
        .await;
    problem(&refused, 409, "settled");
    // The same holds after a restart.
    let server = server.reopened().await;
    let api = server.client();
    let refused = api.post(sessions, session("labelled", Value::Null)).await;
    problem(&refused, 409, "id_in_use");

    let child = Seat::child(&server, "labelled", &after).await;
    assert_eq!(child.0.state().await["labels"], json!(["mnpi"]));
    let again = api
        .post_with_key(&on(&after, "accept"), "take", taking)
        .await;
    assert_eq!(again, first, "a repeated request is answered as it was");
}

#[tokio::test]
async fn nobody_begins_in_a_workflow_that_was_killed() {
    let server = Server::start().await;
    let root = Seat::root(&server, "dr", "job-10").await;
    let handoff = root.offered(json!({})).await;
    let taking = json!({"session_id": "late"});
    assert_eq!(
        root.0.api.post(&on(&handoff, "accept"), taking).await.0,
        200
    );
    assert_eq!(root.0.post("/kill", json!({})).await.0, 200);
    let place = json!({"type": "child", "role": "inspector", "handoff_id": handoff});
    let got = root
        .0
        .api
        .post("/api/v1/replay/sessions", session("late", place))
        .await;
    assert_eq!(got.0, 410, "{}", got.1);
    let code = got.1["code"].as_str().unwrap();
    assert!(["killed", "ended"].contains(&code), "{}", got.1);
}

#[tokio::test]
async fn a_late_report_frees_what_its_call_held() {
    let server = Server::start().await;
    let root = Seat::root(&server, "fr", "job-11").await;
    root.done("find", "A").await;
    let one = root.offered(json!({"carry": ["order"]})).await;
    let two = root.offered(json!({"carry": ["order"]})).await;
    let one = Seat::child(&server, "fc1", &one).await;
    let two = Seat::child(&server, "fc2", &two).await;
    let paying = one.propose("pay", "A").await;
    assert_eq!(paying["status"], "allowed", "{paying}");
    let session = one.0.state().await["protocol"]["session_id"].clone();
    assert_eq!(one.0.post("/restore", json!({})).await.0, 200);
    let busy = two.propose("pay", "A").await;
    assert_eq!(busy["verdicts"][0]["detail"], "resource_busy", "{busy}");
    // Nobody knows what became of it: it may still be running.
    let mut unknown = crate::governed::receipt(&paying, json!({}));
    unknown["outcome"] = json!("unknown");
    problem(&one.0.post("/receipts", unknown).await, 410, "restored");
    let busy = two.propose("pay", "A").await;
    assert_eq!(busy["verdicts"][0]["detail"], "resource_busy", "{busy}");
    // A closed Session keeps nothing more, and the thing is free all the same.
    let close = format!("/v1/sessions/{}/close", session.as_str().unwrap());
    assert_eq!(one.0.api.post(&close, json!({})).await.0, 200);
    let late = one.0.report(&paying, json!({})).await;
    problem(&late, 410, "restored");
    assert_eq!(late.1["recorded"], false, "{}", late.1);
    assert_eq!(root.workflow("job-11").await["shared_resources"], json!([]));
    let free = two.propose("pay", "A").await;
    assert_eq!(free["status"], "allowed", "{free}");
    assert_eq!(two.0.post("/kill", json!({})).await.0, 200);
    let late = two.0.report(&free, json!({})).await;
    assert_eq!(
        (late.0, &late.1["recorded"]),
        (410, &json!(true)),
        "{}",
        late.1
    );
    assert_eq!(root.workflow("job-11").await["shared_resources"], json!([]));
    let task = root.workflow("job-11").await["protocol"]["task_id"].clone();
    assert_eq!(root.0.post("/restore", json!({})).await.0, 200);
    ended(&root.0, &task, "COMPLETED").await;
    replayed(&root.0, &task, "COMPLETED").await;
}

#[tokio::test]
async fn a_child_begins_with_every_label_that_its_parent_has_by_then() {
    let server = Server::start().await;
    let api = server.client();
    let root = Seat::root(&server, "lr", "job-labels").await;
    let open = root.offered(json!({})).await;
    let taken = root.offered(json!({})).await;
    let accept = json!({"session_id": "lc2"});
    assert_eq!(api.post(&on(&taken, "accept"), accept).await.0, 200);
    let labelled = root.0.post("/labels", json!({"label": "mnpi"})).await;
    assert_eq!(labelled.0, 200, "{}", labelled.1);
    for (id, handoff) in [("lc1", open), ("lc2", taken)] {
        let child = Seat::child(&server, id, &handoff).await;
        let state = child.0.state().await;
        assert_eq!(state["labels"], json!(["mnpi"]), "{id}");
        let removed = child.preflight().await.1["removed"].clone();
        let closed = removed.as_array().unwrap().iter();
        let mut closed = closed.filter(|tool| tool["reason"] == "label_gate");
        assert_eq!(closed.next().unwrap()["tool"], "note", "{removed}");
        assert_eq!(child.0.post("/restore", json!({})).await.0, 200);
        let task = &state["protocol"]["task_id"];
        ended(&child.0, task, "COMPLETED").await;
        replayed(&child.0, task, "COMPLETED").await;
    }
}

/// Proposes notes in a request that was prepared.
async fn propose_notes(seat: &Seat, prepared: &Value, calls: &[(String, Value)]) -> Value {
    let calls = calls
        .iter()
        .map(|(id, arguments)| (id.as_str(), "note", arguments.clone()));
    let calls: Vec<_> = calls.collect();
    let (status, judged) = seat.0.propose_as(prepared, &calls).await;
    assert_eq!(status, 200, "{judged}");
    judged
}

#[tokio::test]
async fn no_call_is_released_beyond_the_limit_of_all_sessions() {
    let server = Server::start().await;
    let root = Seat::root(&server, "lr", "job-12").await;
    let notes = |of: &str, count: usize| -> Vec<(String, Value)> {
        let names = (0..count).map(|number| format!("{of}{number}"));
        names
            .map(|id| (id.clone(), json!({"order_id": id})))
            .collect()
    };
    // One response with more calls than three.
    let prepared = root.preflight().await.1;
    let many = propose_notes(&root, &prepared, &notes("many", 5)).await;
    assert_eq!(many["status"], "blocked", "{many}");
    let verdicts: Vec<_> = (0..5)
        .map(|at| many["verdicts"][at]["verdict"].clone())
        .collect();
    assert_eq!(verdicts[..3], ["allow", "allow", "allow"], "{many}");
    for at in [3, 4] {
        assert_eq!(many["verdicts"][at]["reason"], "session_limit_exceeded");
        assert_eq!(many["verdicts"][at]["detail"], "workflow", "{many}");
    }
    let shown = root.workflow("job-12").await;
    assert_eq!(shown["budget_used"]["tool_calls"], 0, "{shown}");
    // Three sessions that were all prepared before any of them proposes, at the same time: two calls of one fit, and no more.
    let (one, two) = (root.offered(json!({})).await, root.offered(json!({})).await);
    let one = Seat::child(&server, "lc1", &one).await;
    let two = Seat::child(&server, "lc2", &two).await;
    let mut prepared = Vec::new();
    for seat in [&root, &one, &two] {
        let (status, answer) = seat.preflight().await;
        assert_eq!(status, 200, "{answer}");
        prepared.push(answer);
    }
    let (a, b, c) = (notes("a", 2), notes("b", 2), notes("c", 2));
    let judged: [Value; 3] = tokio::join!(
        propose_notes(&root, &prepared[0], &a),
        propose_notes(&one, &prepared[1], &b),
        propose_notes(&two, &prepared[2], &c),
    )
    .into();
    let released = judged.iter().filter(|one| one["status"] == "allowed");
    assert_eq!(released.count(), 1, "{judged:?}");
    let shown = root.workflow("job-12").await;
    assert_eq!(shown["budget_used"]["tool_calls"], 2, "{shown}");
    // The third call is for one of the two that have a request left.
    let mut more = Vec::new();
    for (at, seat) in [&root, &one, &two].into_iter().enumerate() {
        if judged[at]["status"] == "blocked" {
            let (_, got) = seat
                .0
                .propose_as(
                    &seat.preflight().await.1,
                    &[("last", "note", json!({"order_id": "last"}))],
                )
                .await;
            more.push(got["status"].clone());
        }
    }
    assert_eq!(more[0], "allowed", "{more:?}");
    assert_ne!(more[1], "allowed", "{more:?}");
    let shown = root.workflow("job-12").await;
    assert_eq!(shown["budget_used"]["tool_calls"], 3, "{shown}");
}
