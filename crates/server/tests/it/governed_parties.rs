//! Governed sessions over HTTP: nobody both works and decides in a session, whichever comes first.

use serde_json::{Value, json};

use crate::fixture::{APPROVER_KEY, Got, Server, key};
use crate::governed::{Desk, body, offered, problem};

const SESSIONS: &str = "/api/v1/replay/sessions";

/// A second approver.
async fn another_approver(server: &Server) {
    let mut cleo = key("rk_cleo", "cleo", &["*", "approvals:write"], None);
    cleo.id = "key_cleo".to_owned();
    server.add_key(cleo).await;
}

async fn decide(desk: &Desk, server: &Server, key: &str, proposal: &Value) -> Got {
    let id = proposal["proposal_id"].as_str().unwrap();
    let yes = json!({"decision": "approve", "decided_by": "somebody"});
    let path = format!("/proposals/{id}/approve");
    desk.with(server.client_with(key)).post(&path, yes).await
}

#[tokio::test]
async fn whoever_goes_on_with_a_session_does_not_decide_in_it() {
    let server = Server::start().await;
    another_approver(&server).await;
    let desk = Desk::open(&server, "resumed").await;
    let proposal = desk.asked().await;
    // Bea opens the session that is open: from then on she works in it, also after a restart.
    let bea = server.client_with(APPROVER_KEY);
    let (status, again) = bea.post(SESSIONS, body("resumed")).await;
    assert_eq!(status, 200, "{again}");
    let refused = decide(&desk, &server, APPROVER_KEY, &proposal).await;
    problem(&refused, 403, "approver_must_differ");
    let server = server.reopened().await;
    let desk = desk.with(server.client());
    let refused = decide(&desk, &server, APPROVER_KEY, &proposal).await;
    problem(&refused, 403, "approver_must_differ");
    let decided = decide(&desk, &server, "rk_cleo", &proposal).await;
    assert_eq!(decided, (200, json!({"status": "approved"})));
    // Opening it again is not written down again.
    let before = server.store_head();
    assert_eq!(server.client().post(SESSIONS, body("resumed")).await.0, 200);
    let bea = server.client_with(APPROVER_KEY);
    assert_eq!(bea.post(SESSIONS, body("resumed")).await.0, 200);
    assert_eq!(server.store_head(), before);
}

#[tokio::test]
async fn whoever_prepared_or_reported_does_not_decide() {
    let server = Server::start().await;
    another_approver(&server).await;
    let desk = Desk::open(&server, "prepared").await;
    let bea = desk.with(server.client_with(APPROVER_KEY));
    bea.preflight().await;
    let proposal = desk.asked().await;
    let refused = decide(&desk, &server, APPROVER_KEY, &proposal).await;
    problem(&refused, 403, "approver_must_differ");
    // The same through the protocol's own door.
    let (_, list) = bea.api.get("/v1/permission-requests?status=pending").await;
    let id = list["data"][0]["id"].as_str().unwrap();
    let path = format!("/v1/permission-requests/{id}/respond");
    let (status, refused) = bea.api.post(&path, json!({"approved": true})).await;
    assert_eq!(status, 403, "{refused}");
    let decided = decide(&desk, &server, "rk_cleo", &proposal).await;
    assert_eq!(decided.0, 200, "{}", decided.1);
}

#[tokio::test]
async fn whoever_decided_does_not_work_in_the_session_any_more() {
    let server = Server::start().await;
    let desk = Desk::open(&server, "decided").await;
    let proposal = desk.asked().await;
    let decided = decide(&desk, &server, APPROVER_KEY, &proposal).await;
    assert_eq!(decided.0, 200, "{}", decided.1);
    let bea = desk.with(server.client_with(APPROVER_KEY));
    let version = desk.state().await["stateVersion"].clone();
    problem(
        &bea.preflight_at(&version).await,
        403,
        "approver_must_differ",
    );
    let prepared = desk.preflight().await;
    let note = [("c9", "send_note", json!({"text": "x"}))];
    problem(
        &bea.propose_as(&prepared, &note).await,
        403,
        "approver_must_differ",
    );
    problem(
        &bea.report(&proposal, json!({})).await,
        403,
        "approver_must_differ",
    );
    problem(
        &bea.api.post(SESSIONS, body("decided")).await,
        403,
        "approver_must_differ",
    );
    // What protects is open to everybody who may write, and the program goes on.
    assert_eq!(bea.post("/labels", json!({"label": "seen"})).await.0, 200);
    desk.preflight().await;
}

const WORKFLOW: &str = "schema_version: \"1.0\"\nworkflow: two\nroles:\n  - { name: desk, session_contract: desk/session.yaml }\n\
  \x20 - { name: payer, session_contract: payer/session.yaml }\nhandoffs: [ { from: desk, to: payer } ]\n";
const PAY: &str =
    "tool: pay\nside_effect: write\nschema_derived: false\ncheckpoint: { reason: look }\n";

pub(crate) fn member(id: &str, place: Value) -> Value {
    let files = json!([{"file": "pay.yaml", "text": PAY}]);
    let session = json!({"file": "session.yaml", "text": "schema_version: \"1.0\"\n"});
    let contracts = json!({"contracts": files, "session": session});
    json!({"session_id": id, "contracts": contracts, "workflow": place})
}

pub(crate) async fn asked(desk: &Desk) -> Value {
    let version = desk.state().await["stateVersion"].clone();
    let body = json!({"expected_state_version": version, "offered_tools": offered(&["pay"]),
        "provider": "openai", "model": "gpt-x"});
    let (status, prepared) = desk.post("/preflight", body).await;
    assert_eq!(status, 200, "{prepared}");
    let (_, proposal) = desk.propose_as(&prepared, &[("c", "pay", json!({}))]).await;
    assert_eq!(proposal["status"], "pending_approval", "{proposal}");
    proposal
}

#[tokio::test]
async fn whoever_works_in_a_workflow_does_not_decide_in_its_sessions() {
    let server = Server::start().await;
    another_approver(&server).await;
    let mut dan = key("rk_dan", "dan", &["*", "approvals:write"], None);
    dan.id = "key_dan".to_owned();
    server.add_key(dan).await;
    let workflows = "/api/v1/replay/workflows";
    let source = json!({"file": "workflow.yaml", "text": WORKFLOW});
    // Bea makes the workflow, Dan takes its handoff, Ann works in both sessions.
    let bea = server.client_with(APPROVER_KEY);
    let new = json!({"workflow_id": "job", "source": source});
    assert_eq!(bea.post(workflows, new).await.0, 201);
    let place = json!({"type": "root", "workflow_id": "job", "role": "desk"});
    let root = Desk::open_with(&server, member("root", place)).await;
    let (_, offer) = root
        .post("/handoffs", json!({"to_role": "payer", "summary": "pay"}))
        .await;
    let handoff = offer["handoff_id"].as_str().unwrap();
    let accept = format!("/api/v1/replay/handoffs/{handoff}/accept");
    let dan = server.client_with("rk_dan");
    let (status, taken) = dan.post(&accept, json!({"session_id": "child"})).await;
    assert_eq!(status, 200, "{taken}");
    let place = json!({"type": "child", "handoff_id": handoff});
    let child = Desk::open_with(&server, member("child", place)).await;
    for desk in [&root, &child] {
        let proposal = asked(desk).await;
        for own in [APPROVER_KEY, "rk_dan"] {
            let refused = decide(desk, &server, own, &proposal).await;
            problem(&refused, 403, "approver_must_differ");
        }
        let decided = decide(desk, &server, "rk_cleo", &proposal).await;
        assert_eq!(decided.0, 200, "{}", decided.1);
    }
    // Going on with the workflow is work in it.
    let proposal = asked(&root).await;
    let mut eve = key("rk_eve", "eve", &["*", "approvals:write"], None);
    eve.id = "key_eve".to_owned();
    server.add_key(eve).await;
    let eve = server.client_with("rk_eve");
    let (status, shown) = eve.post(workflows, json!({"workflow_id": "job"})).await;
    assert_eq!(status, 200, "{shown}");
    let refused = decide(&root, &server, "rk_eve", &proposal).await;
    problem(&refused, 403, "approver_must_differ");
}

/// A workflow with two open sessions, and a third worker who may approve in general.
pub(crate) async fn two_members(server: &Server, job: &str) -> (Desk, Desk) {
    let source = json!({"file": "workflow.yaml", "text": WORKFLOW});
    let place = json!({"type": "root", "workflow_id": job, "role": "desk", "source": source});
    let root = Desk::open_with(server, member(&format!("{job}-root"), place)).await;
    let (_, offer) = root
        .post("/handoffs", json!({"to_role": "payer", "summary": "pay"}))
        .await;
    let place = json!({"type": "child", "handoff_id": offer["handoff_id"]});
    let child = Desk::open_with(server, member(&format!("{job}-child"), place)).await;
    (root, child)
}

async fn prepared(desk: &Desk) -> Got {
    let version = desk.state().await["stateVersion"].clone();
    let body = json!({"expected_state_version": version, "offered_tools": offered(&["pay"]),
        "provider": "openai", "model": "gpt-x"});
    desk.post("/preflight", body).await
}

#[tokio::test]
async fn whoever_works_in_one_session_of_a_workflow_does_not_decide_in_another() {
    let server = Server::start().await;
    another_approver(&server).await;
    for (number, work) in ["heartbeat", "preflight", "captures", "handoffs", "open"]
        .into_iter()
        .enumerate()
    {
        let (root, child) = two_members(&server, &format!("job-{number}")).await;
        let proposal = asked(&child).await;
        let bea = root.with(server.client_with(APPROVER_KEY));
        let done = match work {
            "preflight" => prepared(&bea).await,
            "open" => bea.api.post(SESSIONS, json!({"session_id": root.id})).await,
            "captures" => bea.post("/captures", json!({"captures": []})).await,
            "handoffs" => {
                let offer = json!({"to_role": "payer", "summary": "more"});
                bea.post("/handoffs", offer).await
            }
            _ => bea.post("/heartbeat", json!({})).await,
        };
        assert_eq!(done.0, 200, "{work}: {}", done.1);
        let refused = decide(&child, &server, APPROVER_KEY, &proposal).await;
        problem(&refused, 403, "approver_must_differ");
        if work == "preflight" {
            // The record says so, not this process.
            let server = server.reopened().await;
            let child = child.with(server.client());
            let refused = decide(&child, &server, APPROVER_KEY, &proposal).await;
            problem(&refused, 403, "approver_must_differ");
            continue;
        }
        let decided = decide(&child, &server, "rk_cleo", &proposal).await;
        assert_eq!(decided.0, 200, "{work}: {}", decided.1);
    }
}

#[tokio::test]
async fn whoever_decided_in_one_session_of_a_workflow_does_not_work_in_another() {
    let server = Server::start().await;
    let (root, child) = two_members(&server, "job").await;
    let (_, offer) = root
        .post("/handoffs", json!({"to_role": "payer", "summary": "more"}))
        .await;
    let proposal = asked(&child).await;
    let decided = decide(&child, &server, APPROVER_KEY, &proposal).await;
    assert_eq!(decided.0, 200, "{}", decided.1);
    let server = server.reopened().await;
    let root = root.with(server.client());
    let bea = root.with(server.client_with(APPROVER_KEY));
    let differs = "approver_must_differ";
    problem(&prepared(&bea).await, 403, differs);
    for (path, body) in [
        ("/heartbeat", json!({})),
        ("/captures", json!({"captures": []})),
        ("/restore", json!({})),
        ("/handoffs", json!({"to_role": "payer", "summary": "x"})),
    ] {
        problem(&bea.post(path, body).await, 403, differs);
    }
    let again = json!({"session_id": root.id});
    problem(&bea.api.post(SESSIONS, again).await, 403, differs);
    let handoff = offer["handoff_id"].as_str().unwrap();
    for what in ["accept", "decline", "cancel"] {
        let path = format!("/api/v1/replay/handoffs/{handoff}/{what}");
        problem(&bea.api.post(&path, json!({})).await, 403, differs);
    }
    let place = json!({"type": "child", "handoff_id": handoff});
    let third = bea.api.post(SESSIONS, member("third", place)).await;
    problem(&third, 403, differs);
    // She may decide in the other session too, and whoever works goes on.
    let proposal = asked(&root).await;
    let decided = decide(&root, &server, APPROVER_KEY, &proposal).await;
    assert_eq!(decided.0, 200, "{}", decided.1);
    assert_eq!(bea.post("/labels", json!({"label": "seen"})).await.0, 200);
}
