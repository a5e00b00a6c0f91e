//! The tools at `/mcp`: by a client of the same SDK, by hand in an older revision, and with the answers of HTTP.

use std::collections::{BTreeMap, BTreeSet};

use reqwest::Client;
use rmcp::ServiceExt;
use rmcp::model::{CallToolRequestParams, CallToolResult};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use serde_json::{Value, json};

use crate::fixture::{KEY, Server, key};
use crate::memory::Memory;
use crate::memory_vectors::{check, load, vectors};

/// Speaks the revision before the current one, by hand: no session, one request after the other.
struct Hand {
    http: Client,
    url: String,
}

impl Hand {
    fn at(server: &Server) -> Self {
        Self {
            http: Client::builder().no_proxy().build().unwrap(),
            url: format!("{}/mcp", server.url),
        }
    }

    fn request(&self, method: &str, params: &Value) -> reqwest::RequestBuilder {
        self.http
            .post(&self.url)
            .bearer_auth(KEY)
            .header("accept", "application/json, text/event-stream")
            .header("mcp-protocol-version", "2025-11-25")
            .json(&json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}))
    }

    async fn ask(&self, method: &str, params: Value) -> Value {
        let response = self.request(method, &params).send().await.unwrap();
        let status = response.status();
        let text = response.text().await.unwrap();
        assert_eq!(status, 200, "{text}");
        serde_json::from_str(&text).unwrap_or_else(|_| panic!("not JSON: {text}"))
    }

    /// Calls a tool and returns whether it failed, and what it said.
    async fn call(&self, tool: &str, arguments: Value) -> (bool, Value) {
        let answer = self
            .ask("tools/call", json!({"name": tool, "arguments": arguments}))
            .await;
        let result = &answer["result"];
        let said = result["structuredContent"].clone();
        let text = result["content"][0]["text"].as_str().unwrap();
        let spoken: Value = serde_json::from_str(text).unwrap();
        assert_eq!(spoken, said, "{answer}");
        (result["isError"] == true, said)
    }
}

#[tokio::test]
async fn ak_mcp_01_02_05_only_what_is_offered_is_a_tool() {
    let server = Server::start().await;
    let hand = Hand::at(&server);
    let hello = json!({
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "hand", "version": "1"},
    });
    let greeting = hand.ask("initialize", hello).await;
    assert_eq!(
        greeting["result"]["protocolVersion"], "2025-11-25",
        "{greeting}"
    );
    assert_eq!(greeting["result"]["serverInfo"]["name"], "reprise");
    let listed = hand.ask("tools/list", json!({})).await;
    let tools = listed["result"]["tools"].as_array().unwrap();
    let names: BTreeSet<&str> = tools
        .iter()
        .map(|tool| tool["name"].as_str().unwrap())
        .collect();
    let expected = [
        "attune",
        "compact",
        "coordinate",
        "deregister",
        "detect",
        "handoff",
        "merge",
        "record",
        "register",
        "replay",
        "session",
    ];
    let expected: Vec<String> = expected
        .iter()
        .map(|name| format!("akashik_{name}"))
        .collect();
    assert_eq!(names, expected.iter().map(String::as_str).collect());
    for tool in tools {
        assert_eq!(tool["inputSchema"]["required"][0], "agent_id", "{tool}");
    }
    let unknown = json!({"name": "akashik_subscribe", "arguments": {"agent_id": "ann"}});
    let unknown = hand.ask("tools/call", unknown).await;
    assert_eq!(unknown["error"]["code"], -32602, "{unknown}");
    for arguments in [json!([]), json!("x"), json!(5)] {
        let wrong = json!({"name": "akashik_attune", "arguments": arguments});
        let wrong = hand.ask("tools/call", wrong).await;
        assert_eq!(wrong["error"]["code"], -32602, "{wrong}");
    }
    let unknown = hand.ask("tools/unknown", json!({})).await;
    assert_eq!(unknown["error"]["code"], -32601, "{unknown}");

    let strategies = |tools: &[Value]| {
        let merge = tools.iter().find(|tool| tool["name"] == "akashik_merge");
        merge.unwrap()["inputSchema"]["properties"]["strategy"]["enum"].clone()
    };
    assert_eq!(strategies(tools).as_array().unwrap().len(), 7);

    let server = Server::start().await;
    server
        .engine
        .set_fields(field::Config::at(field::Level::Standard));
    let listed = Hand::at(&server).ask("tools/list", json!({})).await;
    let tools = listed["result"]["tools"].as_array().unwrap();
    assert_eq!(tools.len(), 9);
    let offered = strategies(tools);
    assert!(
        !offered.as_array().unwrap().contains(&json!("vote")),
        "{offered}"
    );

    let server = Server::start().await;
    server
        .engine
        .set_fields(field::Config::at(field::Level::Starter));
    let listed = Hand::at(&server).ask("tools/list", json!({})).await;
    assert_eq!(listed["result"]["tools"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn ak_mcp_03_04_arguments_make_the_envelope_and_answers_are_those_of_http() {
    let server = Server::start().await;
    let hand = Hand::at(&server);
    let joined = hand
        .call(
            "akashik_register",
            json!({"agent_id": "ann", "role": "analyst", "epoch": 10, "authority": 8}),
        )
        .await;
    assert_eq!(
        (joined.0, &joined.1["status"]),
        (false, &json!("registered")),
        "{joined:?}"
    );
    let unit = json!({
        "agent_id": "ann", "message_id": "m-1", "mode": "committed", "type": "finding", "content": "It is one",
        "intent": {"purpose": "to know"}, "confidence": {"score": 0.5, "reasoning": "seen"},
    });
    let first = hand.call("akashik_record", unit.clone()).await;
    assert_eq!(first.1["epoch"], 12, "{first:?}");
    assert_eq!(
        hand.call("akashik_record", unit.clone()).await,
        first,
        "the same message"
    );
    // Over HTTP it is the same field, and the same message again.
    let memory = Memory::at(&server);
    let mut envelope = Memory::envelope("record", "ann", json!({}));
    envelope["id"] = json!("m-1");
    let mut payload = unit;
    for name in ["agent_id", "message_id"] {
        payload.as_object_mut().unwrap().remove(name);
    }
    envelope["payload"] = payload;
    assert_eq!(
        memory.post("record", &envelope).await,
        (201, first.1.clone())
    );
    // Another field, and what is refused.
    let elsewhere = json!({"agent_id": "ann", "role": "r", "field": "other"});
    assert!(!hand.call("akashik_register", elsewhere).await.0);
    for (tool, arguments, code) in [
        (
            "akashik_register",
            json!({"agent_id": "ann", "role": "r"}),
            "AGENT_ID_TAKEN",
        ),
        ("akashik_register", json!({"role": "r"}), "INVALID_ENVELOPE"),
        (
            "akashik_record",
            json!({"agent_id": "zoe"}),
            "AGENT_NOT_REGISTERED",
        ),
        (
            "akashik_detect",
            json!({"agent_id": "ann", "field": 7}),
            "INVALID_ENVELOPE",
        ),
        (
            "akashik_detect",
            json!({"agent_id": "ann", "field": "a b", "mode": "list"}),
            "INVALID_REQUEST",
        ),
    ] {
        let (failed, said) = hand.call(tool, arguments).await;
        assert_eq!((failed, &said["code"]), (true, &json!(code)), "{said}");
        let operation = tool.trim_start_matches("akashik_").to_uppercase();
        assert_eq!(said["operation"], json!(operation));
    }
    memory.join("bob").await;
    let left = hand
        .call(
            "akashik_deregister",
            json!({"agent_id": "ann", "target_agent_id": "bob"}),
        )
        .await;
    assert_eq!(left.1["status"], "ok", "{left:?}");
    let left = hand
        .call("akashik_deregister", json!({"agent_id": "ann"}))
        .await;
    assert_eq!(left.1["status"], "ok", "{left:?}");
}

#[tokio::test]
async fn ak_mcp_06_all_vectors_pass_over_mcp() {
    let vectors = vectors::vectors();
    let mut asked = 0;
    let mut by_limit: BTreeMap<Option<u64>, Vec<&Value>> = BTreeMap::new();
    for case in vectors["cases"].as_array().unwrap() {
        let limit = case["limits"]["replay_events_max"].as_u64();
        by_limit.entry(limit).or_default().push(case);
    }
    for (limit, cases) in by_limit {
        let server = Server::start().await;
        let mut config = field::Config::at(field::Level::Standard);
        if let Some(limit) = limit {
            config.limits.replay_events_max = usize::try_from(limit).unwrap();
        }
        server.engine.set_fields(config);
        let hand = Hand::at(&server);
        let mut logs = BTreeMap::new();
        for case in cases {
            let name = case["log"].as_str().unwrap();
            if !logs.contains_key(name) {
                let entries = vectors::entries(&vectors, name);
                load(&server.store, name, &entries).await;
                Memory::at(&server).field(name).join("auditor").await;
                logs.insert(name, entries);
            }
            let mut arguments = case["request"].clone();
            arguments["agent_id"] = json!("auditor");
            arguments["field"] = json!(name);
            let (failed, said) = hand.call("akashik_replay", arguments).await;
            check(case, &logs[name], failed.then_some(&said["code"]), &said);
            asked += 1;
        }
    }
    assert_eq!(asked, 61);
}

#[tokio::test]
async fn a_client_of_the_official_sdk_speaks_the_current_revision() {
    let server = Server::start().await;
    let config = StreamableHttpClientTransportConfig::with_uri(format!("{}/mcp", server.url))
        .auth_header(KEY);
    let transport = StreamableHttpClientTransport::from_config(config);
    let client = ().serve(transport).await.unwrap();
    let tools = client.list_all_tools().await.unwrap();
    assert_eq!(tools.len(), 11);
    let arguments = json!({"agent_id": "ann", "role": "analyst"});
    let request = CallToolRequestParams::new("akashik_register")
        .with_arguments(arguments.as_object().unwrap().clone());
    let result: CallToolResult = client.call_tool(request).await.unwrap();
    assert_eq!(result.is_error, Some(false), "{result:?}");
    assert_eq!(result.structured_content.unwrap()["status"], "registered");
    client.cancel().await.unwrap();
}

#[tokio::test]
async fn pages_of_others_and_strangers_get_no_answer() {
    let server = Server::start().await;
    server
        .add_key(key("rk_tasks", "t", &["tasks:read"], None))
        .await;
    let hand = Hand::at(&server);
    let status =
        async |request: reqwest::RequestBuilder| request.send().await.unwrap().status().as_u16();
    let list = || hand.request("tools/list", &json!({}));
    assert_eq!(status(list()).await, 200);
    assert_eq!(
        status(list().header("origin", server.url.clone())).await,
        200
    );
    for origin in ["https://evil.example", "null", "http://127.0.0.1:1"] {
        assert_eq!(
            status(list().header("origin", origin)).await,
            403,
            "{origin}"
        );
    }
    assert_eq!(status(list().header("host", "evil.example")).await, 421);
    for (key, expected) in [("rk_tasks", 403), ("rk_unknown", 401)] {
        let request = hand.http.post(&hand.url).bearer_auth(key).body("{}");
        assert_eq!(status(request).await, expected, "{key}");
    }
    assert_eq!(status(hand.http.get(&hand.url).bearer_auth(KEY)).await, 405);
}

/// What cannot be read is refused in the words of JSON-RPC, whoever finds it.
#[tokio::test]
async fn a_message_that_cannot_be_read_is_a_json_rpc_error() {
    let server = Server::start().await;
    let hand = Hand::at(&server);
    let send = async |content_type: &str, body: Vec<u8>| {
        let request = hand.http.post(&hand.url).bearer_auth(KEY);
        let request = request
            .header("accept", "application/json, text/event-stream")
            .header("content-type", content_type)
            .header("mcp-protocol-version", "2025-11-25");
        let response = request.body(body).send().await.unwrap();
        let status = response.status().as_u16();
        let text = response.text().await.unwrap();
        let answer: Value =
            serde_json::from_str(&text).unwrap_or_else(|_| panic!("{status}, not JSON: {text}"));
        assert_eq!(answer["jsonrpc"], "2.0", "{answer}");
        assert!(!answer["error"]["message"].as_str().unwrap().is_empty());
        let code = answer["error"]["code"].as_i64().unwrap();
        (status, code, answer["id"].clone())
    };
    let json = "application/json";
    let cases: [(&str, i64, Value); 9] = [
        ("{", -32700, Value::Null),
        ("", -32700, Value::Null),
        (r#"{"jsonrpc":"2.0","jsonrpc":"2.0"}"#, -32700, Value::Null),
        ("{}", -32600, Value::Null),
        ("[]", -32600, Value::Null),
        ("7", -32600, Value::Null),
        (
            r#"{"jsonrpc":"1.0","id":7,"method":"tools/list"}"#,
            -32600,
            json!(7),
        ),
        (r#"{"jsonrpc":"2.0","id":"a"}"#, -32600, json!("a")),
        (r#"{"jsonrpc":"2.0","id":8,"method":5}"#, -32600, json!(8)),
    ];
    for (body, code, id) in cases {
        let got = send(json, body.into()).await;
        assert_eq!(got, (400, code, id), "{body}");
    }
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    assert_eq!(send(json, deep.into_bytes()).await.0, 400);
    let long = vec![b' '; 2 * 1024 * 1024];
    assert_eq!(send(json, long).await, (413, -32600, Value::Null));
    let (status, code, _) = send("text/plain", b"{}".to_vec()).await;
    assert_eq!((status, code), (415, -32600));
    // A message of the right shape that means nothing here.
    let params = r#"{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":4}}"#;
    let (status, _, id) = send(json, params.into()).await;
    assert!([200, 400].contains(&status), "{status}");
    assert_eq!(id, json!(9));
}
