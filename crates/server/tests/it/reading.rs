//! What readers get of a run: the transcript, content that lies beside events, lists that are narrowed, and what the
//! server says of itself.

use serde_json::{Value, json};

use crate::fixture::{Frames, Server, config, id, key, refused};

/// A message above the inline limit.
fn long_message() -> Value {
    json!({"role": "user", "content": "x".repeat(6_000)})
}

#[tokio::test]
async fn u3_what_an_event_keeps_beside_itself_is_read_by_its_id() {
    let server = Server::start().await;
    let api = server.client();
    let session = api.session().await;
    let (status, _) = api
        .post(&format!("/v1/sessions/{session}/messages"), long_message())
        .await;
    assert_eq!(status, 201);
    let (_, list) = api
        .get(&format!("/v1/sessions/{session}/events?limit=200"))
        .await;
    let events = list["data"].as_array().unwrap();
    let event = events
        .iter()
        .find(|event| event["event"] == "user.message")
        .unwrap();
    let kept = &event["payload"]["blobs"]["parts"];
    assert_eq!(
        event["payload"].get("parts"),
        None,
        "lists hold what is stored"
    );
    let path = format!("/v1/artifacts/{}/content", id(event));
    for path in [path.clone(), format!("{path}?member=parts")] {
        let response = api.request("GET", &path).send().await.unwrap();
        assert_eq!(response.status(), 200, "{path}");
        let bytes = response.bytes().await.unwrap();
        assert_eq!(
            canon::sha256(&bytes).to_string(),
            kept["sha256"].as_str().unwrap()
        );
        assert_eq!(bytes.len() as u64, kept["bytes"].as_u64().unwrap());
    }
    refused(
        &api.get(&format!("{path}?member=nothing")).await,
        404,
        "resource_not_found",
        Some("member"),
    );
    refused(
        &api.get(&format!("{path}?member=blobs")).await,
        404,
        "resource_not_found",
        Some("member"),
    );
    // Not for those who may not read events, nor for those of another workspace.
    server
        .add_key(key("files", "fay", &["artifacts:read"], None))
        .await;
    refused(
        &server.client_with("files").get(&path).await,
        403,
        "permission_denied",
        None,
    );
    server
        .add_key(key("elsewhere", "eve", &["*"], Some(&["workspace_other"])))
        .await;
    refused(
        &server.client_with("elsewhere").get(&path).await,
        404,
        "resource_not_found",
        None,
    );
}

#[tokio::test]
async fn u3_every_material_of_a_receipt_can_be_fetched_and_has_its_digest() {
    let server = Server::start().await;
    let api = server.client();
    let session = api.session().await;
    let task = api.task(&session, "agent").await;
    let (_, receipts) = api.get(&format!("/v1/tasks/{}/receipts", id(&task))).await;
    let receipt = &receipts["data"][0]["wire"]["payload"];
    let materials = receipt["replay_input"]["materials"].as_array().unwrap();
    assert!(materials.len() > 1, "{receipt}");
    for material in materials {
        let uri = material["uri"].as_str().unwrap();
        let name = uri.strip_prefix("artifact://").unwrap();
        let response = api
            .request("GET", &format!("/v1/artifacts/{name}/content"))
            .send()
            .await
            .unwrap();
        assert_eq!(response.status(), 200, "{material}");
        let bytes = response.bytes().await.unwrap();
        assert_eq!(
            canon::sha256(&bytes).to_string(),
            material["sha256"].as_str().unwrap(),
            "{material}"
        );
    }
}

#[tokio::test]
async fn u3_frames_carry_the_content_and_without_it_are_what_is_stored() {
    let server = Server::start().await;
    let api = server.client();
    let session = api.session().await;
    let path = format!("/v1/sessions/{session}/events/stream");
    let mut live = Frames::open(api.request("GET", &path)).await;
    api.post(&format!("/v1/sessions/{session}/messages"), long_message())
        .await;
    let mut history = Frames::open(api.request("GET", &path)).await;
    let (_, list) = api
        .get(&format!("/v1/sessions/{session}/events?limit=200"))
        .await;
    let stored = list["data"].as_array().unwrap();
    let stored = stored
        .iter()
        .find(|event| event["event"] == "user.message")
        .unwrap();
    for frames in [&mut live, &mut history] {
        let frame = loop {
            let frame = frames.next().await.unwrap();
            if frame.event == "user.message" {
                break frame;
            }
        };
        assert_eq!(
            frame.data["payload"]["parts"][0]["text"]
                .as_str()
                .unwrap()
                .len(),
            6_000
        );
        assert_eq!(frame.data["expanded"], json!(["parts"]));
        let mut bare = frame.data.clone();
        for name in ["expanded", "replay", "replayed"] {
            bare.as_object_mut().unwrap().remove(name);
        }
        bare["payload"].as_object_mut().unwrap().remove("parts");
        assert_eq!(bare, *stored);
    }
}

/// A digest in the payload that somebody's request gave an event opens nothing.
#[tokio::test]
async fn u3_a_digest_that_came_with_a_request_reads_nothing() {
    let server = Server::start().await;
    let api = server.client();
    let secret = api.session().await;
    api.post(&format!("/v1/sessions/{secret}/messages"), long_message())
        .await;
    let (_, list) = api
        .get(&format!("/v1/sessions/{secret}/events?limit=200"))
        .await;
    let events = list["data"].as_array().unwrap();
    let event = events
        .iter()
        .find(|event| event["event"] == "user.message")
        .unwrap();
    let blobs = event["payload"]["blobs"].clone();

    let session = api.session().await;
    let task = id(&api.task(&session, "agent").await);
    let (_, list) = api.get(&format!("/v1/tasks/{task}/events?limit=200")).await;
    let told = list["data"].as_array().unwrap();
    let told = told
        .iter()
        .find(|event| event["event"] == "agent.message")
        .unwrap();
    let payload =
        json!({"message_id": told["payload"]["message_id"], "role": "assistant", "blobs": blobs});
    let request = json!({"mode": "with_overrides", "override": {
        format!("event:{}", id(told)): {"kind": "event", "value": payload}}});
    let (status, replay) = api.post(&format!("/v1/tasks/{task}/replay"), request).await;
    if status != 202 {
        return;
    }
    let replay = id(&replay);
    let (_, list) = api
        .get(&format!("/v1/tasks/{replay}/events?limit=200"))
        .await;
    for event in list["data"].as_array().unwrap() {
        let path = format!("/v1/artifacts/{}/content?member=parts", id(event));
        let response = api.request("GET", &path).send().await.unwrap();
        let bytes = response.bytes().await.unwrap();
        assert!(
            !String::from_utf8_lossy(&bytes).contains("xxxxxxxx"),
            "{event}"
        );
    }
}

#[tokio::test]
async fn a_list_refuses_filters_that_it_does_not_have() {
    let server = Server::start().await;
    let api = server.client();
    for (path, param) in [
        ("/v1/tasks?ordering=desc", "ordering"),
        ("/v1/tasks?metadata=x", "metadata"),
        ("/v1/tasks?status=LOST", "status"),
        ("/v1/tasks?order=up", "order"),
        ("/v1/tasks?created_after=yesterday", "created_after"),
        ("/v1/sessions?task_id=x", "task_id"),
        ("/v1/events?kind=x", "kind"),
        ("/v1/events?view=small", "view"),
        ("/v1/permission-requests?status=open", "status"),
        ("/v1/artifacts?metadata.=x", "metadata."),
    ] {
        refused(&api.get(path).await, 400, "invalid_request", Some(param));
    }
    // Parameters of the contract and the older names of the event cursor stay.
    for path in [
        "/v1/tasks?workspace_id=workspace_local&limit=1",
        "/v1/permissions/history?actor=x&outcome=y&tenant_id=z&limit=1",
        "/v1/memories?limit=1",
    ] {
        assert_eq!(api.get(path).await.0, 200, "{path}");
    }
}

#[tokio::test]
async fn lists_page_through_what_they_keep_in_both_orders() {
    let server = Server::start().await;
    let api = server.client();
    let session = api.session().await;
    let mut asked = Vec::new();
    for round in 0..6 {
        let workflow = if round % 2 == 0 { "ask" } else { "agent" };
        let task = id(&api.task(&session, workflow).await);
        if workflow == "ask" {
            api.wait_for(&task, "INPUT_REQUIRED").await;
            asked.push(task);
        }
    }
    for (order, status) in [
        ("asc", "INPUT_REQUIRED"),
        ("desc", "INPUT_REQUIRED"),
        ("desc", "INPUT_REQUIRED,FAILED"),
    ] {
        let mut found = Vec::new();
        let mut cursor = String::new();
        for _ in 0..20 {
            let path = format!("/v1/tasks?order={order}&status={status}&limit=2{cursor}");
            let (code, page) = api.get(&path).await;
            assert_eq!(code, 200, "{page}");
            found.extend(page["data"].as_array().unwrap().iter().map(id));
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        if order == "desc" {
            found.reverse();
        }
        assert_eq!(found, asked, "{order} {status}");
    }
    let (_, compact) = api
        .get(&format!(
            "/v1/tasks/{}/events?view=compact&limit=200",
            asked[0]
        ))
        .await;
    let events = compact["data"].as_array().unwrap();
    assert!(
        events
            .iter()
            .all(|event| event["payload"].get("value").is_none() && event["bytes"].is_u64())
    );
    assert_eq!(events[0]["event"], "task.submitted");
    assert_eq!(compact["next_cursor"], events.last().unwrap()["id"]);
}

#[tokio::test]
async fn u21_a_request_is_read_by_its_id() {
    let server = Server::start().await;
    let api = server.client();
    let session = api.session().await;
    let task = id(&api.task(&session, "approve").await);
    api.wait_for(&task, "AUTH_REQUIRED").await;
    let (_, list) = api.get("/v1/permission-requests?status=pending").await;
    assert_eq!(list["data"].as_array().unwrap().len(), 1);
    let request = &list["data"][0];
    let (status, one) = api
        .get(&format!("/v1/permission-requests/{}", id(request)))
        .await;
    assert_eq!((status, &one), (200, request));
    refused(
        &api.get("/v1/permission-requests/permission_x").await,
        404,
        "resource_not_found",
        None,
    );
}

#[tokio::test]
async fn a_transcript_is_for_those_who_may_read_tasks_and_events() {
    let server = Server::start().await;
    let api = server.client();
    let session = api.session().await;
    let task = id(&api.task(&session, "agent").await);
    let path = format!("/v1/tasks/{task}/transcript");
    let (status, told) = api.get(&path).await;
    assert_eq!(status, 200, "{told}");
    let model = told["steps"]
        .as_array()
        .unwrap()
        .iter()
        .find(|step| step["what"] == "model")
        .unwrap();
    assert_eq!(model["request_check"], "matches");
    assert_eq!(model["value_check"], "matches");
    let (_, log) = api.get(&format!("/v1/tasks/{task}/receipts")).await;
    assert_eq!(told["made_from"]["sealed"], true);
    assert!(
        log["data"][0]
            .to_string()
            .contains(told["made_from"]["log_sha256"].as_str().unwrap())
    );
    refused(
        &api.get(&format!("{path}?step=0")).await,
        400,
        "invalid_request",
        Some("step"),
    );
    refused(
        &api.get(&format!("{path}?step=99")).await,
        400,
        "invalid_request",
        Some("step"),
    );
    for scope in ["tasks:read", "events:read"] {
        server.add_key(key(scope, "one", &[scope], None)).await;
        refused(
            &server.client_with(scope).get(&path).await,
            403,
            "permission_denied",
            None,
        );
    }
    server
        .add_key(key("elsewhere", "eve", &["*"], Some(&["workspace_other"])))
        .await;
    refused(
        &server.client_with("elsewhere").get(&path).await,
        404,
        "resource_not_found",
        None,
    );
}

/// What a replay was told under cover stays there for readers who may not see it.
#[tokio::test]
async fn a_transcript_hides_what_is_not_public() {
    let server = Server::start().await;
    let api = server.client();
    let session = api.session().await;
    let task = id(&api.task(&session, "agent").await);
    let value = json!({"choices": [{"message": {"role": "assistant", "content": "under cover"}}]});
    let request = json!({"mode": "with_overrides", "override": {"llm:main:1":
        {"kind": "llm_provider_response", "value": value, "visibility": "internal"}}});
    let (status, replay) = api.post(&format!("/v1/tasks/{task}/replay"), request).await;
    assert_eq!(status, 202, "{replay}");
    let path = format!("/v1/tasks/{}/transcript", id(&replay));
    let (_, whole) = api.get(&path).await;
    let step = |told: &Value| {
        let steps = told["steps"].as_array().unwrap();
        steps
            .iter()
            .find(|step| step["what"] == "model")
            .unwrap()
            .clone()
    };
    assert_eq!(step(&whole)["text"], "under cover");
    server
        .add_key(key("narrow", "nan", &["tasks:read", "events:read"], None))
        .await;
    let (_, narrow) = server.client_with("narrow").get(&path).await;
    assert_eq!(step(&narrow)["value_check"], "hidden");
    assert_eq!(step(&narrow)["text"], Value::Null);
}

#[tokio::test]
async fn the_server_says_what_is_there() {
    let mut config = config();
    config.tools = vec![server::Tool {
        name: "count".to_owned(),
        description: "Counts".to_owned(),
        input_schema: json!({"type": "object"}),
        source: "local",
    }];
    config.providers = vec![server::Provider {
        id: "main".to_owned(),
        kind: "openai".to_owned(),
        model: Some("m".to_owned()),
    }];
    let server = Server::start_with(config).await;
    let api = server.client();
    let (_, tools) = api.get("/v1/tools").await;
    assert_eq!(tools["data"][0]["name"], "count");
    let (status, tool) = api.get("/v1/tools/tool_count").await;
    assert_eq!((status, &tool), (200, &tools["data"][0]));
    let (_, catalog) = api.get("/v1/provider-catalog").await;
    assert_eq!(catalog["providers"][0]["id"], "main");
    assert!(!catalog.to_string().contains("key"));
    let (_, capabilities) = api.get("/v1/capabilities").await;
    let named: Vec<&str> = capabilities["capabilities"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["id"].as_str().unwrap())
        .collect();
    assert!(
        named.contains(&"replay") && named.contains(&"personas"),
        "{named:?}"
    );
    // For a browser, without a key.
    let page = reqwest::get(format!("{}/", server.url)).await.unwrap();
    assert_eq!(page.status(), 200);
    assert_eq!(page.headers()["content-type"], "text/html; charset=utf-8");
    let text = page.text().await.unwrap();
    assert!(
        text.contains("flight recorder") && text.contains("/openapi.json"),
        "{text}"
    );
}

#[tokio::test]
async fn u9_after_close_nothing_is_written_and_open_tasks_end() {
    let server = Server::start().await;
    let api = server.client();
    let session = api.session().await;
    let done = id(&api.task(&session, "agent").await);
    let waiting = id(&api.task(&session, "ask").await);
    api.wait_for(&waiting, "INPUT_REQUIRED").await;
    let held = id(&api.task(&session, "hold").await);
    let (_, before) = api
        .get(&format!("/v1/sessions/{session}/messages?limit=200"))
        .await;
    let path = format!("/v1/sessions/{session}");
    assert_eq!(api.post(&format!("{path}/close"), json!({})).await.0, 200);
    for task in [&waiting, &held] {
        let (_, task) = api.get(&format!("/v1/tasks/{task}")).await;
        assert_eq!(task["status"], "CANCELED", "{task}");
        let (_, events) = api
            .get(&format!("/v1/tasks/{}/events?limit=200", id(&task)))
            .await;
        assert!(events.to_string().contains("session_closed"), "{events}");
    }
    // What ended with it ended before it: nothing follows.
    let (_, events) = api.get(&format!("{path}/events?limit=200")).await;
    let last = events["data"].as_array().unwrap().last().unwrap();
    assert_eq!(last["event"], "session.closed", "{last}");
    let message = json!({"role": "user", "content": "late"});
    for (path, body) in [
        (format!("{path}/messages"), message.clone()),
        (format!("{path}/truncate"), json!({"keep_first": 0})),
        (
            format!("{path}/branches"),
            json!({"kind": "session", "base_ref": session}),
        ),
        (
            format!("/v1/tasks/{waiting}/messages"),
            json!({"kind": "input", "message": message}),
        ),
        (
            "/v1/artifacts".to_owned(),
            json!({"kind": "file", "mime_type": "text/plain", "visibility": "public", "session_id": session}),
        ),
    ] {
        let (status, body) = api.post(&path, body).await;
        assert_eq!(status, 409, "{path}: {body}");
    }
    let patched = api
        .request("PATCH", &path)
        .json(&json!({"metadata": {"a": 1}}))
        .send()
        .await
        .unwrap();
    assert_eq!(patched.status(), 409);
    let (_, after) = api
        .get(&format!("/v1/sessions/{session}/messages?limit=200"))
        .await;
    assert_eq!(before, after);
    // A replay adds nothing to the conversation.
    assert_eq!(
        api.post(
            &format!("/v1/tasks/{done}/replay"),
            json!({"mode": "exact"})
        )
        .await
        .0,
        202
    );
    let (_, still) = api
        .get(&format!("/v1/sessions/{session}/messages?limit=200"))
        .await;
    assert_eq!(before, still);
}
