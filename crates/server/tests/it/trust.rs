//! Trust records over HTTP: each decision is a record, each record hangs in its session's chain, each receipt names it.

use receipts::KeySet;
use receipts::trust::{verify_export, verify_signatures};
use serde_json::{Value, json};

use crate::fixture::{Api, Server, id, key, refused};

async fn asked(api: &Api, session: &str, workflow: &str, status: &str) -> (String, String) {
    let task = id(&api.task(session, workflow).await);
    api.wait_for(&task, status).await;
    let path = format!("/v1/permission-requests?task_id={task}");
    let (_, list) = api.get(&path).await;
    (task, id(&list["data"][0]))
}

async fn respond(api: &Api, request: &str, approved: bool) {
    let path = format!("/v1/permission-requests/{request}/respond");
    let (status, answer) = api.post(&path, json!({"approved": approved})).await;
    assert_eq!(status, 200, "{answer}");
}

async fn export(api: &Api, session: &str) -> Value {
    let path = format!("/v1/sessions/{session}/trust-chain");
    let (status, export) = api.get(&path).await;
    assert_eq!(status, 200, "{export}");
    export
}

async fn approvals(api: &Api, task: &str, status: &str) -> Value {
    let task = api.wait_for(task, status).await;
    let path = format!("/v1/receipts/{}", task["receipt_id"].as_str().unwrap());
    let (_, receipt) = api.get(&path).await;
    let (_, verdict) = api.post(&format!("{path}/verify"), json!({})).await;
    assert_eq!(verdict["valid"], true, "{verdict}");
    receipt["approvals"].clone()
}

#[tokio::test]
async fn every_decision_is_a_record_that_its_receipt_names_as_evidence() {
    let server = Server::start().await;
    server
        .add_key(key("ada", "user_ada", &["*", "approvals:write"], None))
        .await;
    let (api, ada) = (server.client(), server.client_with("ada"));
    let session = api.session().await;
    let empty = export(&api, &session).await;
    assert_eq!(empty["chain"]["total"], 0);
    assert_eq!(empty["chain"]["root_hash"], Value::Null);

    let (granted, request) = asked(&api, &session, "approve", "AUTH_REQUIRED").await;
    respond(&ada, &request, true).await;
    let (denied, second) = asked(&api, &session, "approve", "AUTH_REQUIRED").await;
    respond(&ada, &second, false).await;
    let (withdrawn, third) = asked(&api, &session, "approve", "AUTH_REQUIRED").await;
    let cancel = format!("/v1/tasks/{withdrawn}/cancel");
    api.post(&cancel, json!({})).await;
    let (answered, fourth) = asked(&api, &session, "ask", "INPUT_REQUIRED").await;
    respond(&ada, &fourth, true).await;
    // Another session has a chain of its own.
    let other = api.session().await;
    let (_, elsewhere) = asked(&api, &other, "approve", "AUTH_REQUIRED").await;
    respond(&ada, &elsewhere, true).await;

    let shown = export(&api, &session).await;
    let bytes = canon::jcs(&shown);
    let head = verify_export(&bytes).unwrap();
    assert_eq!(head.count, 4);
    assert_eq!(shown["chain"]["verified"], true);
    assert_eq!(shown["chain"]["topic"], *session);
    let jwks = format!("{}/.well-known/jwks.json", server.url);
    let jwks = api.http.get(jwks).send().await.unwrap().bytes().await;
    let keys = KeySet::from_jwks(&jwks.unwrap()).unwrap();
    // Nobody is signed for who did not decide.
    assert_eq!(verify_signatures(&bytes, &keys), Ok(3));
    let cases = [
        (&granted, &request, "COMPLETED", "approved", "success", true),
        (&denied, &second, "FAILED", "denied", "denied", true),
        (&withdrawn, &third, "CANCELED", "canceled", "failure", false),
        (&answered, &fourth, "COMPLETED", "approved", "success", true),
    ];
    for (index, (task, request, status, decision, outcome, decided)) in
        cases.into_iter().enumerate()
    {
        let record = &shown["records"][index];
        let approval = &approvals(&api, task, status).await[0];
        assert_eq!(approval["evidence_hash"], record["entry_hash"], "{index}");
        assert_eq!(approval["decision"], decision);
        assert_eq!(approval["approval_id"], **request);
        assert_eq!(approval["action"], record["action"]);
        assert_eq!(approval["quorum_proof"]["required"], 1);
        let satisfied = u64::from(decision == "approved");
        assert_eq!(approval["quorum_proof"]["satisfied"], satisfied);
        assert_eq!(record["outcome"], outcome);
        assert_eq!(record["chain_index"], index as u64 + 1);
        assert_eq!(record["autonomy_tier"], "act_with_approval");
        assert_eq!(record["metadata"]["request_id"], **request);
        assert_eq!(record["metadata"]["task_id"], **task);
        let approver = if decided {
            json!("user_ada")
        } else {
            Value::Null
        };
        assert_eq!(record["approver"], approver);
    }
    assert_eq!(shown["records"][0]["action"], "act");
    assert_eq!(shown["records"][3]["action"], "input");
    let elsewhere = export(&api, &other).await;
    assert_eq!(elsewhere["chain"]["total"], 1);
    assert_eq!(elsewhere["records"][0]["previous_hash"], Value::Null);
}

#[tokio::test]
async fn a_record_is_in_the_log_that_the_receipt_commits_to() {
    let server = Server::start().await;
    let api = server.client();
    let session = api.session().await;
    let (task, request) = asked(&api, &session, "approve", "AUTH_REQUIRED").await;
    respond(&api, &request, true).await;
    api.wait_for(&task, "COMPLETED").await;
    let path = format!("/v1/artifacts/event_log_{task}/content");
    let log = api.text(&path).await;
    let shown = export(&api, &session).await;
    let hash = shown["records"][0]["entry_hash"].as_str().unwrap();
    assert!(log.contains(hash));
    // The same answer again is no second decision.
    respond(&api, &request, true).await;
    let again = export(&api, &session).await;
    assert_eq!(again["records"], shown["records"]);
}

#[tokio::test]
async fn a_chain_is_read_by_those_who_see_the_session_and_its_receipts() {
    let server = Server::start().await;
    let session = server.client().session().await;
    let path = format!("/v1/sessions/{session}/trust-chain");
    let bound = key("other", "bob", &["*"], Some(&["workspace_else"]));
    server.add_key(bound).await;
    let got = server.client_with("other").get(&path).await;
    refused(&got, 404, "resource_not_found", None);
    server
        .add_key(key("scoped", "cy", &["sessions:read"], None))
        .await;
    let got = server.client_with("scoped").get(&path).await;
    refused(&got, 403, "permission_denied", None);
    let got = server
        .client()
        .get("/v1/sessions/session_none/trust-chain")
        .await;
    refused(&got, 404, "resource_not_found", None);
}
