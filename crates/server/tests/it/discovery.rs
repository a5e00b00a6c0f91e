//! AP-VER, AP-CARD, AP-SKILL, AP-CONN, and what an operator reads.

use serde_json::{Value, json};

use crate::fixture::{KEY, Server, VERSION, config, key, refused};

#[tokio::test]
async fn ap_ver_09_two_versions_in_one_header_are_refused() {
    let server = Server::start().await;
    let api = server.client();
    let twice = api
        .http
        .get(format!("{}/v1/tasks", server.url))
        .bearer_auth(KEY)
        .header(
            "Harn-Agents-Protocol-Version",
            format!("{VERSION}, {VERSION}"),
        );
    refused(
        &api.send(twice).await,
        426,
        "unsupported_protocol_version",
        None,
    );
}

#[tokio::test]
async fn ap_ver_05_discovery() {
    let server = Server::start().await;
    let (_, discovery) = server.client().get("/v1").await;
    assert_eq!(discovery["object"], "protocol_discovery");
    assert_eq!(discovery["protocol_family"], "harn_agents_protocol");
    assert_eq!(discovery["current_version"], VERSION);
    assert_eq!(discovery["supported_versions"], json!([VERSION]));
    assert_eq!(
        discovery["capabilities"],
        json!({"rest": true, "sse": true, "websocket": false, "receipts": true, "replay": true})
    );
}

#[tokio::test]
async fn ap_card_01_to_04_the_card_and_its_discriminator() {
    let server = Server::start().await;
    let (_, card) = server.client().get("/v1/agent-card").await;
    assert_eq!(card["object"], "harn_agent_card");
    for name in [
        "id",
        "name",
        "description",
        "protocol_version",
        "a2a_card",
        "skills",
        "interfaces",
    ] {
        assert!(!card[name].is_null(), "{name}");
    }
    assert_eq!(card["a2a_card"]["supportedInterfaces"], json!([]), "C-48");
    assert_eq!(card["interfaces"][0]["url"], format!("{}/v1", server.url));
    assert_eq!(card.get("supportedInterfaces"), None, "AP-CARD-03");

    let mut other = config();
    other.card_object = "agent_card".to_owned();
    other.public_url = Some("https://agents.example/".to_owned());
    let server = Server::start_with(other).await;
    let (_, card) = server.client().get("/v1/agent-card").await;
    assert_eq!(card["object"], "agent_card", "C-01");
    assert_eq!(card["interfaces"][0]["url"], "https://agents.example/v1");
    assert_eq!(card["public_url"], "https://agents.example/");
}

#[tokio::test]
async fn ap_skill_01_02_skills_are_the_registered_workflows() {
    let server = Server::start().await;
    let api = server.client();
    let (_, list) = api.get("/v1/skills").await;
    let names: Vec<&str> = list["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|skill| skill["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["agent", "approve", "ask", "hold", "replay-fixture"]);
    let (_, skill) = api.get("/v1/skills/skill_agent").await;
    let declared = server
        .engine
        .workflows()
        .find("agent")
        .unwrap()
        .input_schema();
    assert_eq!(skill["input_schema"], declared);
    assert_eq!(skill["object"], "skill");
    let (_, page) = api.get("/v1/skills?limit=3").await;
    let next = page["next_cursor"].as_str().unwrap();
    let (_, rest) = api.get(&format!("/v1/skills?limit=3&cursor={next}")).await;
    assert_eq!(rest["data"][0]["name"], "hold");
    assert_eq!(rest["has_more"], false);
    refused(
        &api.get("/v1/skills/skill_x").await,
        404,
        "resource_not_found",
        None,
    );
}

#[tokio::test]
async fn ap_conn_01_connectors_come_from_the_configuration_and_keep_to_their_workspace() {
    let mut with = config();
    with.connectors = vec![server::Connector {
        id: "connector_hub".to_owned(),
        provider: "hub".to_owned(),
        workspace_id: "workspace_local".to_owned(),
        event_kinds: vec!["push_webhook".to_owned()],
        dedupe_policy: Default::default(),
        webhook: Default::default(),
        polling: Default::default(),
        target_persona_id: None,
        target_session_id: None,
        metadata: Default::default(),
    }];
    let server = Server::start_with(with).await;
    let api = server.client();
    let (_, list) = api.get("/v1/connectors").await;
    assert_eq!(list["data"][0]["object"], "connector");
    assert_eq!(list["data"][0]["event_kinds"], json!(["push_webhook"]));
    let (_, none) = api.get("/v1/connectors?workspace_id=workspace_x").await;
    assert_eq!(none["data"], json!([]));
    let (status, one) = api.get("/v1/connectors/connector_hub").await;
    assert_eq!((status, &one["status"]), (200, &json!("DISABLED")));
    server
        .add_key(key("rk_bob", "bob", &["*"], Some(&["workspace_other"])))
        .await;
    let bob = server.client_with("rk_bob");
    assert_eq!(bob.get("/v1/connectors").await.1["data"], json!([]));
    refused(
        &bob.get("/v1/connectors/connector_hub").await,
        404,
        "resource_not_found",
        None,
    );
}

#[tokio::test]
async fn ap_rest_01_every_operation_answers_and_none_says_501() {
    let server = Server::start().await;
    let api = server.client();
    for operation in wire::openapi::operations() {
        if operation.gives == wire::openapi::ResponseKind::Stream {
            continue;
        }
        let path = operation
            .path
            .split('/')
            .map(|segment| match segment.starts_with('{') {
                true => "nothing_1",
                false => segment,
            });
        let path = path.collect::<Vec<_>>().join("/");
        let method = operation.method.to_uppercase();
        let response = api.request(&method, &path).send().await.unwrap();
        let status = response.status().as_u16();
        let text = response.text().await.unwrap();
        assert!(status < 500, "{method} {path}: {status} {text}");
        assert_ne!(status, 405, "{method} {path}");
        assert!(!text.contains("no such path"), "{method} {path}");
    }
}

#[tokio::test]
async fn empty_families_have_lists_unknown_ids_and_no_writes() {
    let server = Server::start().await;
    let api = server.client();
    for path in [
        "/v1/memories",
        "/v1/quotas",
        "/v1/tools",
        "/v1/connectors",
        "/v1/permissions/rules",
        "/v1/permissions/history",
    ] {
        let (status, list) = api.get(path).await;
        assert_eq!(status, 200, "{path}");
        assert_eq!(list["data"], json!([]), "{path}");
        assert_eq!(list["page"]["has_more"], false, "{path}");
    }
    for path in [
        "/v1/memories/m",
        "/v1/quotas/q",
        "/v1/tools/t",
        "/v1/receipts/r",
    ] {
        refused(&api.get(path).await, 404, "resource_not_found", None);
    }
    let session = api.session().await;
    let writes = [
        ("POST", "/v1/memories".to_owned(), json!({})),
        ("PUT", "/v1/permissions/policy".to_owned(), json!({})),
        ("POST", "/v1/permissions/rules".to_owned(), json!({})),
        ("POST", "/v1/permissions/check".to_owned(), json!({})),
        (
            "POST",
            format!("/v1/sessions/{session}/attach"),
            json!({"client_id": "c"}),
        ),
        (
            "PUT",
            "/v1/workspaces/workspace_local/files?path=a".to_owned(),
            json!({"content": "x"}),
        ),
    ];
    for (method, path, body) in writes {
        let got = api.send(api.request(method, &path).json(&body)).await;
        refused(&got, 422, "policy_violation", None);
        assert_eq!(
            got.1["error"]["details"]["reason"], "not_available",
            "{path}"
        );
    }
    let got = api.get("/v1/workspaces/workspace_local/files").await;
    assert_eq!(got.1["error"]["details"]["reason"], "not_available");
    refused(
        &api.post("/v1/tasks/task_x/replay", json!({})).await,
        404,
        "resource_not_found",
        None,
    );
    let (_, policy) = api.get("/v1/permissions/policy").await;
    assert_eq!(policy["object"], "permission_policy");
}

#[tokio::test]
async fn an_operator_reads_liveness_readiness_and_metrics() {
    let server = Server::start().await;
    let api = server.client();
    assert_eq!(api.text("/healthz").await, "ok\n");
    assert_eq!(api.text("/readyz").await, "ready\n");
    api.session().await;
    let metrics = api.text("/metrics").await;
    assert!(metrics.contains("reprise_http_request_seconds_count{method=\"POST\",route=\"/v1/sessions\",status=\"201\"} 1"), "{metrics}");
    assert!(metrics.contains("reprise_events_total"));
    let (_, health) = api.get("/health").await;
    assert_eq!(health["ok"], true);
    let (_, document) = api.get("/openapi.json").await;
    assert_eq!(document["openapi"], "3.1.0");
    assert_eq!(document["servers"][0]["url"], server.url);
    let (_, runtime) = api.get("/v1/runtime").await;
    assert_eq!(runtime["object"], "runtime");
    let (_, catalog) = api.get("/v1/provider-catalog").await;
    assert_eq!(catalog["schema_version"], Value::from(6));
}

/// The bounds that the description states beside those of JSON bodies (which `wire` walks): parameters, headers, bodies as
/// a whole. One more than stated is refused.
#[tokio::test]
async fn what_the_description_bounds_is_refused_one_beyond() {
    let server = Server::start().await;
    let api = server.client();
    let (_, document) = api.get("/openapi.json").await;
    let parameters = &document["components"]["parameters"];
    let session = api.session().await;
    let (mut count, mut taken) = (0, Vec::new());
    for (path, methods) in document["paths"].as_object().unwrap() {
        let Some(operation) = methods.get("get") else {
            continue;
        };
        let here = path
            .replace("{session_id}", &session)
            .replace("{workspace_id}", "workspace_local");
        for parameter in operation["parameters"].as_array().unwrap() {
            let parameter = match parameter["$ref"].as_str() {
                Some(target) => &parameters[target.rsplit('/').next().unwrap()],
                None => parameter,
            };
            let (name, schema) = (parameter["name"].as_str().unwrap(), &parameter["schema"]);
            let beyond = match (schema["maxLength"].as_u64(), schema["maximum"].as_u64()) {
                (Some(length), _) => {
                    let object = name.strip_suffix("_id").unwrap_or("workspace");
                    format!("{object}_{}", "x".repeat(length as usize - object.len()))
                }
                (_, Some(most)) => (most + 1).to_string(),
                _ => continue,
            };
            let asked = match parameter["in"].as_str() {
                Some("path") => path.replace(&format!("{{{name}}}"), &beyond),
                Some("query") if !here.contains('{') => format!("{here}?{name}={beyond}"),
                _ => continue,
            };
            let (status, _) = api.get(&asked).await;
            if !(400..=404).contains(&status) {
                taken.push(format!("{path} {name}: {status}"));
            }
            count += 1;
        }
    }
    assert_eq!(taken, Vec::<String>::new());
    assert!(count > 60, "only {count} parameters");

    let key = parameters["idempotency_key"]["schema"]["maxLength"].as_u64();
    let key = "k".repeat(key.unwrap() as usize + 1);
    let request = api.request("POST", "/v1/sessions").json(&json!({}));
    let (status, _) = api.send(request.header("Idempotency-Key", key)).await;
    assert_eq!(status, 400);

    let body = |path: &str, method: &str| {
        let bytes = &document["paths"][path][method]["requestBody"]["x-bytes-max"];
        bytes.as_u64().unwrap() as usize
    };
    let most = body("/v1/sessions/{session_id}/messages", "post");
    let around = json!({"role": "user", "content": ""}).to_string().len();
    for (length, expected) in [(most - around, 201), (most - around + 1, 413)] {
        let message = json!({"role": "user", "content": "x".repeat(length)});
        let path = format!("/v1/sessions/{session}/messages");
        assert_eq!(api.post(&path, message).await.0, expected, "{length}");
    }
    let artifact = json!({"kind": "file", "mime_type": "a/b", "visibility": "public"});
    let (_, artifact) = api.post("/v1/artifacts", artifact).await;
    let most = body("/v1/artifacts/{artifact_id}/content", "put");
    let path = format!("/v1/artifacts/{}/content", artifact["id"].as_str().unwrap());
    let sent = api
        .request("PUT", &path)
        .body(vec![0; most + 1])
        .send()
        .await;
    assert_eq!(sent.unwrap().status(), 413);
}

/// What a server has by itself is as old as its log, not as its process.
#[tokio::test]
async fn the_card_and_the_skills_are_as_old_as_the_log() {
    let server = Server::start().await;
    let api = server.client();
    let (_, local) = api.get("/v1/workspaces/workspace_local").await;
    let (_, card) = api.get("/v1/agent-card").await;
    let (_, skills) = api.get("/v1/skills").await;
    for shown in [&card, &skills["data"][0]] {
        assert_eq!(shown["created_at"], local["created_at"], "{shown}");
    }
}

/// RFC 9110, 15.5.22.
#[tokio::test]
async fn ap_ver_05_a_refused_version_names_the_one_that_is_spoken() {
    let server = Server::start().await;
    let api = server.client();
    let refused = api
        .request("GET", "/v1/sessions")
        .header("Harn-Agents-Protocol-Version", "agents-protocol-1999-01-01");
    let answer = refused.send().await.unwrap();
    assert_eq!(answer.status(), 426);
    assert_eq!(
        answer.headers()["upgrade"],
        "harn-agents-protocol/agents-protocol-2026-04-25"
    );
    let taken = api.request("GET", "/v1/sessions").send().await.unwrap();
    assert!(!taken.headers().contains_key("upgrade"));
}
