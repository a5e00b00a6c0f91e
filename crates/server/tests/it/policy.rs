//! Policy that is accepted is enforced: what the server does not act on is refused by name (U22).

use engine::{Request, Settle};
use serde_json::{Value, json};
use wire::decode::{DecodeInput, Reason, Settings, UNSERVED, Unserved};

use crate::fixture::{APPROVER_KEY, Api, KEY, Server, id, key, refused};

/// Where a body of this schema is sent, with the least that it needs.
async fn target(api: &Api, approver: &Api, row: &Unserved) -> (&'static str, String, Value) {
    let persona = json!({
        "name": format!("p-{}", row.member), "version": "1", "entry_workflow": "agent", "description": "d",
        "autonomy_tier": "suggest", "receipt_policy": "required",
    });
    match row.body {
        "CreatePersonaRequest" => ("POST", "/v1/personas".to_owned(), persona),
        "UpdatePersonaRequest" => {
            let (_, made) = api.post("/v1/personas", persona).await;
            ("PATCH", format!("/v1/personas/{}", id(&made)), json!({}))
        }
        "CreateWorkspaceRequest" => (
            "POST",
            "/v1/workspaces".to_owned(),
            json!({"name": "w", "root": "x://w"}),
        ),
        "UpdateWorkspaceRequest" => (
            "PATCH",
            "/v1/workspaces/workspace_local".to_owned(),
            json!({}),
        ),
        "CreateSessionRequest" => ("POST", "/v1/sessions".to_owned(), json!({})),
        "UpdateSessionRequest" => {
            let session = api.session().await;
            ("PATCH", format!("/v1/sessions/{session}"), json!({}))
        }
        "PermissionResponseRequest" => {
            let session = api.session().await;
            let task = api.task(&session, "approve").await;
            let path = format!("/v1/tasks/{}/permission-requests", id(&task));
            let (_, asked) = approver.get(&path).await;
            let asked = id(&asked["data"][0]);
            (
                "POST",
                format!("/v1/permission-requests/{asked}/respond"),
                json!({"approved": true}),
            )
        }
        other => panic!("no body of {other} is known here"),
    }
}

/// A value that asks for something, and one that asks for nothing.
fn values(member: &str) -> (Value, Value) {
    match member {
        "triggers" | "schedules" => (json!([{"on": "push"}]), json!([])),
        "handoffs" | "context_packs" | "evals" | "packages" | "tools" | "capabilities" => {
            (json!(["a"]), json!([]))
        }
        "vault_ids" | "memory_ids" | "skill_ids" => (json!(["nothing"]), json!([])),
        "model_policy" => (json!({"provider": "p", "model": "m"}), Value::Null),
        "rollout_policy" | "network_policy" | "model" | "limits" => (json!({"a": 1}), json!({})),
        "remember" | "isolated_replay" | "forbids_replay" => (json!(true), Value::Null),
        "mode_id" => (json!("shadow"), Value::Null),
        "autonomy_tier" => (json!("shadow"), Value::Null),
        "expires_at" => (json!("2030-01-01T00:00:00Z"), Value::Null),
        _ => (json!("text"), Value::Null),
    }
}

async fn send(api: &Api, target: &(&'static str, String, Value), more: Value) -> (u16, Value) {
    let mut body = target.2.clone();
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    match target.0 {
        "PATCH" => api.patch(&target.1, body).await,
        _ => api.post(&target.1, body).await,
    }
}

#[tokio::test]
async fn u22_each_member_that_is_not_enforced_is_refused_by_name_and_only_when_it_asks_for_something()
 {
    let server = Server::start().await;
    let (api, approver) = (server.client(), server.client_with(APPROVER_KEY));
    for row in UNSERVED {
        let target = target(&api, &approver, row).await;
        let who = match row.body {
            "PermissionResponseRequest" => &approver,
            _ => &api,
        };
        let (asks, nothing) = values(row.member);
        let head = server.store_head();
        let got = send(who, &target, json!({row.member: asks})).await;
        match row.why {
            Reason::Lists(_) => refused(&got, 404, "resource_not_found", Some(row.member)),
            Reason::NotEnforced | Reason::Fixed => {
                refused(&got, 422, "policy_violation", Some(row.member));
                let message = got.1["error"]["message"].as_str().unwrap();
                assert!(message.contains(&format!("`{}`", row.member)), "{message}");
            }
        }
        assert_eq!(server.store_head(), head, "{row:?} wrote something");
        // Where null is not a value of the member, leaving it out says the same.
        let is_list_or_object = row.body == "CreatePersonaRequest" && row.member == "model_policy";
        let nothing = match is_list_or_object {
            true => json!({}),
            false => nothing,
        };
        let (status, body) = send(who, &target, json!({row.member: nothing})).await;
        assert!(
            (200..300).contains(&status),
            "{row:?} with {nothing}: {status} {body}"
        );
    }
}

#[tokio::test]
async fn u22_what_a_session_would_be_given_is_looked_up_and_then_refused() {
    let server = Server::start().await;
    let api = server.client();
    let vault = json!({"provider": "e", "capabilities": [], "workspace_id": "workspace_local"});
    let (_, vault) = api.post("/v1/vaults", vault).await;
    for (member, known) in [
        ("vault_ids", id(&vault)),
        ("skill_ids", "skill_agent".into()),
    ] {
        let got = api.post("/v1/sessions", json!({member: [known]})).await;
        refused(&got, 422, "policy_violation", Some(member));
        let got = api
            .post("/v1/sessions", json!({member: [known, "none"]}))
            .await;
        refused(&got, 404, "resource_not_found", Some(member));
    }
}

#[tokio::test]
async fn u22_members_outside_the_contract_are_ignored_and_an_answer_may_say_that_it_is_not_remembered()
 {
    let server = Server::start().await;
    let api = server.client();
    let (status, _) = api
        .post("/v1/sessions", json!({"colour_policy": {"a": 1}}))
        .await;
    assert_eq!(status, 201);
    let session = api.session().await;
    let task = api.task(&session, "approve").await;
    let (_, asked) = api
        .get(&format!("/v1/tasks/{}/permission-requests", id(&task)))
        .await;
    let path = format!("/v1/permission-requests/{}/respond", id(&asked["data"][0]));
    let answer = json!({"approved": true, "remember": false, "scope": "session", "reason": "fine"});
    let (status, body) = server.client_with(APPROVER_KEY).post(&path, answer).await;
    assert_eq!(status, 200, "{body}");
}

#[tokio::test]
async fn u22_a_persona_that_was_stored_with_such_members_stays_readable_and_runs() {
    let server = Server::start().await;
    let api = server.client();
    let (_, plain) = api
        .post(
            "/v1/personas",
            json!({
                "name": "old", "version": "1", "entry_workflow": "agent", "description": "d",
                "autonomy_tier": "suggest", "receipt_policy": "required",
            }),
        )
        .await;
    // As a version that took everything stored it.
    let body = json!({
        "name": "old", "version": "2", "entry_workflow": "agent", "description": "d",
        "autonomy_tier": "suggest", "receipt_policy": "required",
    });
    let incoming = DecodeInput {
        params: &[],
        body: body.as_object().unwrap(),
        settings: Settings {
            initial_messages_max: 0,
            replay_conformance: false,
        },
    };
    let mut request = wire::decode::create_persona(&incoming).unwrap();
    let Request::CreatePersona(order) = &mut request else {
        panic!("{request:?}");
    };
    order.persona.quota_id = Some("quota_1".to_owned());
    order.persona.evals = vec!["e".to_owned()];
    order.persona.triggers = vec![json!({"on": "push"}).as_object().unwrap().clone()];
    let caller = engine::Caller::from_key(&key(KEY, "ann", &["*"], None));
    server
        .engine
        .dispatch(&caller, request, None, Settle::Window)
        .await
        .unwrap();
    let (_, list) = api.get("/v1/personas").await;
    let stored = list["data"]
        .as_array()
        .unwrap()
        .iter()
        .find(|persona| persona["id"] != plain["id"])
        .unwrap();
    assert_eq!(stored["quota_id"], "quota_1");
    assert_eq!(stored["triggers"], json!([{"on": "push"}]));
    let session = api.session().await;
    let task = json!({"session_id": session, "persona_id": stored["id"], "input": {"a": 1}});
    let (status, task) = api.post("/v1/tasks", task).await;
    assert_eq!(status, 202, "{task}");
    api.wait_for(&id(&task), "COMPLETED").await;
}
