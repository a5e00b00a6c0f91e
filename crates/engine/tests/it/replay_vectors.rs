//! The determinism vectors under `conformance/vectors/replay`: sources, requests, and the bytes of the receipts that must
//! come out, on every server and every time.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use canon::{Digest, Integers, Value};
use receipts::Receipt;
use runs::replay::{self, ReceiptIssuer, Source};
use runs::workflow::{Answers, Machine, Registry, Start, Workflow, builtin};
use serde_json::json;

use crate::contracts::texts;
use crate::hand::Hand;
use crate::rig::{Exported, Finished, Outside, World, run_pure, saying};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance/vectors/replay")
}

fn read_json(path: &Path) -> Value {
    let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    canon::read(&bytes, Integers::Safe).unwrap()
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn read_source(name: &str, without: &BTreeSet<Digest>) -> Exported {
    let folder = folder().join("sources").join(name);
    let log = std::fs::read(folder.join("log.jsonl")).unwrap();
    let events = log
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(Arc::from)
        .collect();
    let mut blobs = BTreeMap::new();
    if folder.join("blobs").exists() {
        for name in names(&folder.join("blobs")) {
            let digest = Digest::parse(&format!("sha256:{name}")).unwrap();
            let bytes = std::fs::read(folder.join("blobs").join(&name)).unwrap();
            assert_eq!(canon::sha256(&bytes), digest, "{name}");
            if !without.contains(&digest) {
                blobs.insert(digest, bytes);
            }
        }
    }
    let receipt = std::fs::read(folder.join("receipt.json")).unwrap();
    Exported {
        events,
        blobs,
        receipt: Receipt::read(&receipt).unwrap(),
    }
}

/// Computes the receipt of a case from its files alone.
fn compute(name: &str) -> Vec<u8> {
    let folder = folder().join("cases").join(name);
    let case = read_json(&folder.join("case.json"));
    let without = case["without_blobs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|digest| Digest::parse(digest.as_str().unwrap()).unwrap())
        .collect();
    let source = read_source(case["source"].as_str().unwrap(), &without).source();
    let conformance = case["conformance"] == true;
    let request = read_json(&folder.join("request.json"));
    receipt_of(&source, &request, &case["issuer"], conformance).bytes()
}

fn receipt_of(source: &Source, request: &Value, issuer: &Value, conformance: bool) -> Receipt {
    let (spec, secrets) = replay::read(request, source, &BTreeMap::new(), conformance).unwrap();
    let replayed = run_pure(source, &Registry::new(builtin()), &spec, &secrets);
    let issuing = ReceiptIssuer {
        id: issuer["id"].as_str().unwrap().to_owned(),
        name: issuer["name"].as_str().map(str::to_owned),
        ordinal: 1,
    };
    replay::receipt(source, &spec, &replayed, &issuing).unwrap()
}

/// AP-RPL-20. The eight cases of the design note are there, and each comes out byte by byte, twice.
#[test]
fn ap_rpl_20_every_vector_comes_out_byte_by_byte() {
    let cases = names(&folder().join("cases"));
    for expected in [
        "divergence-request",
        "divergence-version",
        "exact",
        "from-checkpoint",
        "llm-and-time-overrides-conformance",
        "llm-override",
        "missing-artifact",
        "secret-override",
        "time-override",
    ] {
        assert!(cases.iter().any(|case| case == expected), "{expected}");
    }
    for case in &cases {
        let expected =
            std::fs::read(folder().join("cases").join(case).join("receipt.json")).unwrap();
        let expected = String::from_utf8(expected).unwrap();
        for _ in 0..2 {
            assert_eq!(
                String::from_utf8(compute(case)).unwrap(),
                expected,
                "{case}"
            );
        }
        let receipt = Receipt::read(expected.as_bytes()).unwrap();
        assert_eq!(receipt.stated_hash(), Some(receipt.hash()), "{case}");
    }
}

/// What each vector is about can be read off its receipt.
#[test]
fn vectors_say_what_their_names_say() {
    let receipt =
        |case: &str| Value::Object(Receipt::read(&compute(case)).unwrap().as_map().clone());
    let keys = |receipt: &Value| -> Vec<String> {
        let deltas = receipt["deltas"].as_array().unwrap();
        deltas
            .iter()
            .map(|delta| delta["override_key"].as_str().unwrap().to_owned())
            .collect()
    };
    let exact = receipt("exact");
    assert_eq!(exact["lifecycle"]["final_state"], "SUCCEEDED");
    assert_eq!(keys(&exact), Vec::<String>::new());
    assert_eq!(keys(&receipt("llm-override")), ["llm:main:2"]);
    let time = receipt("time-override");
    assert_eq!(keys(&time), ["time:started_at"]);
    assert_ne!(
        time["lifecycle"]["started_at"],
        exact["lifecycle"]["started_at"]
    );
    let secret = receipt("secret-override");
    assert_eq!(keys(&secret), ["secret:token"]);
    let request = read_json(&folder().join("cases/secret-override/request.json"));
    let value = request["override"]["secret:token"]["value"]
        .as_str()
        .unwrap();
    assert!(!secret.to_string().contains(value));
    assert_eq!(
        receipt("from-checkpoint")["metadata"]["replay_mode"],
        "from_checkpoint"
    );
    let missing = receipt("missing-artifact");
    let failure = &missing["lifecycle"]["failure"];
    assert_eq!(failure["code"], "replay_dependency_unavailable");
    assert_eq!(failure["details"]["first_unavailable"]["reason"], "missing");
    for (case, what) in [
        ("divergence-request", "request"),
        ("divergence-version", "kind"),
    ] {
        let failure = receipt(case)["lifecycle"]["failure"].clone();
        assert_eq!(failure["code"], "replay_divergence");
        assert_eq!(failure["details"]["divergence"]["what"], what);
    }
}

/// AP-RPL-21: the published request on our fixture workflow gives a receipt with the members, the order of deltas and the
/// paths of the published one. Its digests are placeholders (C-23) and `chain.merkle_root` cannot be (C-22).
#[test]
fn ap_rpl_21_the_published_fixture_has_this_shape() {
    let Some(shared) = testing::published_path("data/replay/fixtures/valid") else {
        return;
    };
    let source = read_source("fixture", &BTreeSet::new()).source();
    let request = read_json(&shared.join("task-replay-request.json"));
    let published = read_json(&shared.join("task-replay-receipt.json"));
    let issuer = json!({"id": "somebody", "name": null});
    let receipt = receipt_of(&source, &request, &issuer, true);
    let receipt = Value::Object(receipt.as_map().clone());
    assert_eq!(receipt["issuer"], published["issuer"]);
    assert_eq!(receipt["deltas"].as_array().unwrap().len(), 2);
    for (delta, expected) in receipt["deltas"]
        .as_array()
        .unwrap()
        .iter()
        .zip(published["deltas"].as_array().unwrap())
    {
        for member in [
            "delta_id",
            "operation",
            "path",
            "override_key",
            "event_id",
            "after_sha256",
            "reason",
        ] {
            assert_eq!(delta[member], expected[member], "{member}");
        }
    }
    assert_eq!(
        receipt["metadata"]["source"],
        published["metadata"]["source"]
    );
    assert_eq!(
        receipt["metadata"]["replay_mode"],
        published["metadata"]["replay_mode"]
    );
    assert_eq!(
        receipt["lifecycle"]["started_at"],
        published["lifecycle"]["started_at"]
    );
    assert_eq!(
        receipt["replay_input"]["materials"][1],
        published["replay_input"]["materials"][1]
    );
    let (mut found, mut expected) = (BTreeSet::new(), BTreeSet::new());
    members(&receipt, "", &mut found);
    members(&published, "", &mut expected);
    // Members of one but not the other, each with its reason.
    expected.remove("/chain/merkle_root");
    expected.remove("/identifiers/trace_id");
    let differ: Vec<_> = found.symmetric_difference(&expected).collect();
    assert!(differ.is_empty(), "{differ:?}");
}

fn members(value: &Value, path: &str, all: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                let path = format!("{path}/{name}");
                all.insert(path.clone());
                members(value, &path, all);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                members(item, &format!("{path}/{index}"), all);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The built-in agent under another version, or fed with another input than the log tells: what an upgrade can do.
#[derive(Debug)]
struct Other {
    version: &'static str,
    adds: &'static str,
}

impl Other {
    fn start(&self, start: &Start) -> Start {
        Start {
            input: format!("{}{}", start.input.as_str().unwrap_or_default(), self.adds).into(),
            persona: start.persona.clone(),
        }
    }
}

fn agent() -> Arc<dyn Workflow> {
    let found = builtin()
        .into_iter()
        .find(|workflow| workflow.name() == "agent");
    found.unwrap()
}

impl Workflow for Other {
    fn name(&self) -> &'static str {
        "agent"
    }

    fn version(&self) -> &'static str {
        self.version
    }

    fn description(&self) -> &'static str {
        "the agent as it was"
    }

    fn begin(&self, start: &Start) -> Box<dyn Machine> {
        agent().begin(&self.start(start))
    }

    fn restore(
        &self,
        start: &Start,
        state: &Value,
        past: &Answers,
    ) -> Result<Box<dyn Machine>, String> {
        agent().restore(&self.start(start), state, past)
    }
}

fn written_source(
    name: &str,
    workflows: Registry,
    run: impl AsyncFnOnce(&World) -> Finished,
) -> Finished {
    let outside = Outside::new();
    outside
        .time_passes()
        .tools(json!([
            {"name": "look", "description": "looks", "parameters": {"type": "object"}, "repeatable": true, "server": "eyes"},
            {"name": "send", "description": "sends", "parameters": {"type": "object"}, "repeatable": false, "secrets": ["token"]},
        ]))
        .answer("secret:token", json!({"vault_id": "vault_1", "version": 3}))
        .uses("llm:main:1", &[("call_a", "look", r#"{"at":"door"}"#), ("call_b", "look", r#"{"at":"window"}"#)])
        .answer("mcp:eyes:main:1", json!({"content": [{"type": "text", "text": "closed"}]}))
        .answer("mcp:eyes:main:2", json!({"content": [{"type": "text", "text": "open ".repeat(1_000)}]}))
        .dawdle("mcp:eyes:main:1", 5)
        .uses("llm:main:2", &[("call_c", "send", r#"{"to":"owner"}"#)])
        .answer("host:tool.send:main:1", json!({"sent": true}))
        .says("llm:main:3", "The window is open; the owner knows.");
    if name == "agent-3" {
        outside.tools(json!([
            {"name": "look", "description": "looks", "parameters": {"type": "object"}, "repeatable": true, "read_only": true, "server": "eyes"},
            {"name": "send", "description": "sends", "parameters": {"type": "object"}, "repeatable": true, "read_only": false, "secrets": ["token"]},
        ]));
    }
    if name == "agent-6" {
        outside.tools(json!([
            {"name": "look", "description": "looks", "parameters": {"type": "object"}, "repeatable": true, "read_only": true, "server": "eyes"},
        ]));
    }
    if name == "fixture" {
        outside.says("llm:main:1", "perhaps");
    }
    let mut hand = Hand::default();
    let spawner = hand.spawner();
    let world = hand.turn(World::spawning(outside, spawner, workflows), || {});
    let finished = hand.turn(run(&world), || {});
    assert_eq!(finished.status, domain::Status::Completed, "{name}");
    let exported = hand.turn(world.exported(&finished), || {});
    let folder = folder().join("sources").join(name);
    std::fs::remove_dir_all(&folder).ok();
    std::fs::create_dir_all(folder.join("blobs")).unwrap();
    let log: Vec<u8> = exported
        .events
        .iter()
        .flat_map(|bytes| bytes.iter().copied().chain([b'\n']))
        .collect();
    std::fs::write(folder.join("log.jsonl"), log).unwrap();
    std::fs::write(folder.join("receipt.json"), exported.receipt.bytes()).unwrap();
    for (digest, bytes) in &exported.blobs {
        std::fs::write(folder.join("blobs").join(digest.hex()), bytes).unwrap();
    }
    if exported.blobs.is_empty() {
        std::fs::remove_dir(folder.join("blobs")).unwrap();
    }
    finished
}

fn write_case(
    name: &str,
    source: &str,
    what: &str,
    request: &Value,
    conformance: bool,
    without: &[Value],
) {
    let folder = folder().join("cases").join(name);
    std::fs::remove_dir_all(&folder).ok();
    std::fs::create_dir_all(&folder).unwrap();
    let issuer = if conformance {
        json!({"id": replay::CONFORMANCE_ISSUER.0, "name": replay::CONFORMANCE_ISSUER.1})
    } else {
        json!({"id": "harness_vectors", "name": "Replay vectors"})
    };
    let case = json!({
        "what": what,
        "source": source,
        "issuer": issuer,
        "conformance": conformance,
        "without_blobs": without,
    });
    let pretty = |value: &Value| format!("{}\n", serde_json::to_string_pretty(value).unwrap());
    std::fs::write(folder.join("case.json"), pretty(&case)).unwrap();
    std::fs::write(folder.join("request.json"), pretty(request)).unwrap();
    std::fs::write(folder.join("receipt.json"), compute(name)).unwrap();
}

/// Writes every vector again: `cargo test --package engine --test it -- --ignored write_the_replay_vectors`. Published
/// vectors do not change; a new file set is a decision to say so.
#[test]
#[ignore = "writes files: only for a deliberate change of the vectors"]
fn write_the_replay_vectors() {
    let persona = || json!({"name": "watch", "tools": ["look", "send"], "system_prompt": "Report what you see."});
    let watch = async |world: &World| world.agent(persona(), "Is everything closed?").await;
    let source = written_source("agent", Registry::new(builtin()), watch);
    written_source(
        "older-version",
        Registry::new([Arc::new(Other {
            version: "0",
            adds: "",
        }) as Arc<dyn Workflow>]),
        watch,
    );
    let altered = Other {
        version: agent().version(),
        adds: " Tell me.",
    };
    written_source(
        "other-request",
        Registry::new([Arc::new(altered) as Arc<dyn Workflow>]),
        watch,
    );
    written_source(
        "fixture",
        Registry::new(builtin()),
        async |world: &World| {
            let session = world.session().await;
            let input = json!({"message": "ship it?"});
            let id = world
                .submit(&session, Some("replay-fixture"), None, input)
                .await;
            world.ended(&id).await
        },
    );
    let given = |overrides: Value| json!({"mode": "with_overrides", "override": overrides});
    write_case(
        "exact",
        "agent",
        "nothing is changed",
        &json!({}),
        false,
        &[],
    );
    let llm = json!({"llm:main:2": {"kind": "llm_provider_response", "value": saying("The window is open."), "reason": "stop before sending"}});
    write_case(
        "llm-override",
        "agent",
        "one answer of the model is replaced, and the run ends earlier",
        &given(llm),
        false,
        &[],
    );
    let tool = json!({"mcp:eyes:call_a": {"kind": "mcp_tool_return", "value": {"content": [{"type": "text", "text": "ajar"}]}}});
    write_case(
        "tool-override-by-call-id",
        "agent",
        "a tool's return is replaced under its call id; later answers are stale",
        &given(tool),
        false,
        &[],
    );
    let time = json!({"time:started_at": {"kind": "time", "value": "2026-04-25T19:20:00Z", "reason": "pin the clock"}});
    write_case(
        "time-override",
        "agent",
        "one reading of the clock is replaced",
        &given(time.clone()),
        false,
        &[],
    );
    let secret =
        json!({"secret:token": {"kind": "secret_value", "value": "correct horse battery staple"}});
    write_case(
        "secret-override",
        "agent",
        "a secret is replaced: neither it nor a digest of it is told",
        &given(secret),
        false,
        &[],
    );
    let checkpoint =
        source.of_kind("vendor.checkpoint_created")[1].payload["checkpoint_id"].clone();
    let body = json!({"mode": "from_checkpoint", "checkpoint_id": checkpoint});
    write_case(
        "from-checkpoint",
        "agent",
        "the run from its second boundary on",
        &body,
        false,
        &[],
    );
    let blob = source.record("mcp:eyes:main:2").payload["blobs"]["value"]["sha256"].clone();
    write_case(
        "missing-artifact",
        "agent",
        "the value of `mcp:eyes:main:2` is gone",
        &json!({}),
        false,
        &[blob],
    );
    write_case(
        "divergence-version",
        "older-version",
        "another version of the workflow was recorded",
        &json!({}),
        false,
        &[],
    );
    write_case(
        "divergence-request",
        "other-request",
        "the workflow asks for something else than was recorded",
        &json!({}),
        false,
        &[],
    );
    let both = json!({
        "llm:main:1": {
            "kind": "llm_provider_response", "event_id": "event_elsewhere_1", "target": "main", "value": saying("approved"),
            "sha256": format!("sha256:{}", "a".repeat(64)), "visibility": "receipt_only", "reason": "a second opinion",
        },
        "time:started_at": {
            "kind": "time", "event_id": "event_elsewhere_0", "target": "started_at", "value": "2026-04-25T19:16:14Z",
            "sha256": format!("sha256:{}", "b".repeat(64)), "visibility": "internal", "reason": "pin the clock",
        },
    });
    write_case(
        "llm-and-time-overrides-conformance",
        "fixture",
        "both in a conformance run: issuer and source text are fixed, placeholder digests and given event ids are echoed",
        &given(both),
        true,
        &[],
    );
}

/// Writes the vectors of version 3 of the agent, which came after the others were published: `cargo test --package engine
/// --test it -- --ignored write_the_vectors_of_version_3`.
#[test]
#[ignore = "writes files: only for a deliberate change of the vectors"]
fn write_the_vectors_of_version_3() {
    let persona = json!({"name": "watch", "tools": ["look", "send"], "system_prompt": "Report what you see.",
        "autonomy_tier": "suggest"});
    let watch = async |world: &World| world.agent(persona, "Is everything closed?").await;
    let older = builtin()
        .into_iter()
        .filter(|workflow| !["4", "5", "6", "7"].contains(&workflow.version()));
    written_source("agent-3", Registry::new(older), watch);
    let what = "version 3 of the agent: a tool that may be repeated and changes something is denied under `suggest`";
    write_case("exact-agent-3", "agent-3", what, &json!({}), false, &[]);
}

/// Writes the vectors of version 4 of the agent: `cargo test --package engine --test it -- --ignored
/// write_the_vectors_of_version_4`.
#[test]
#[ignore = "writes files: only for a deliberate change of the vectors"]
fn write_the_vectors_of_version_4() {
    let persona = json!({"name": "watch", "tools": ["look", "send"], "system_prompt": "Report what you see.",
        "contracts": "mail"});
    let watch = async |world: &World| {
        let look = "tool: look\nside_effect: read\n";
        let send = "tool: send\nside_effect: write\nargument_value_invariants:\n  - { path: \"$.to\", one_of: [\"guard\"] }\n";
        world.engine.set_contracts([texts(&[look, send])]);
        world.agent(persona, "Is everything closed?").await
    };
    let older = builtin()
        .into_iter()
        .filter(|workflow| !["5", "6", "7"].contains(&workflow.version()));
    written_source("agent-4", Registry::new(older), watch);
    let what = "version 4 of the agent: contracts allow two calls and refuse one, and a replay judges the same";
    write_case("exact-agent-4", "agent-4", what, &json!({}), false, &[]);
}

/// Writes the vectors of version 5 of the agent: `cargo test --package engine --test it -- --ignored
/// write_the_vectors_of_version_5`.
#[test]
#[ignore = "writes files: only for a deliberate change of the vectors"]
fn write_the_vectors_of_version_5() {
    let persona = json!({"name": "watch", "tools": ["look", "send"], "system_prompt": "Report what you see.",
        "contracts": "mail"});
    let watch = async |world: &World| {
        let look = "tool: look\nside_effect: read\ntimeouts: { total_ms: 5000 }\nresponse_format_invariants: { finish_reason: [tool_calls, stop, other] }\n\
            checkpoint:\n  reason: \"somebody is watched\"\n";
        let send = "tool: send\nside_effect: write\nargument_value_invariants:\n  - { path: \"$.to\", one_of: [\"guard\"] }\n";
        world.engine.set_contracts([texts(&[look, send])]);
        let session = world.session().await;
        let persona = world.persona(persona).await;
        let input = "Is everything closed?".into();
        let id = world.submit(&session, None, Some(&persona), input).await;
        world.reach(&id, domain::Status::AuthRequired).await;
        let mut asked = world.pending(&id).await;
        assert_eq!(asked.len(), 2);
        asked.reverse();
        for request in asked {
            let yes = domain::Request::RespondPermission {
                id: request,
                approved: Some(true),
                answer: None,
                remarks: canon::Map::new(),
            };
            world.write(yes).await.unwrap();
        }
        world.ended(&id).await
    };
    let older = builtin()
        .into_iter()
        .filter(|workflow| !["6", "7"].contains(&workflow.version()));
    written_source("agent-5", Registry::new(older), watch);
    let what = "version 5 of the agent: two calls of one answer are asked about together and answered in the other order";
    write_case("exact-agent-5", "agent-5", what, &json!({}), false, &[]);
}

/// Writes the vectors of version 6 of the agent: `cargo test --package engine --test it -- --ignored
/// write_the_vectors_of_version_6`.
#[test]
#[ignore = "writes files: only for a deliberate change of the vectors"]
fn write_the_vectors_of_version_6() {
    let persona = json!({"name": "watch", "tools": ["look"], "system_prompt": "Report what you see.",
        "autonomy_tier": "act_auto"});
    let watch = async |world: &World| world.agent(persona, "Is everything closed?").await;
    let older = builtin()
        .into_iter()
        .filter(|workflow| workflow.version() != "7");
    written_source("agent-6", Registry::new(older), watch);
    let what = "version 6 of the agent: a tool that the persona does not list is denied";
    write_case("exact-agent-6", "agent-6", what, &json!({}), false, &[]);
}

/// Writes the vectors of version 7 of the agent: `cargo test --package engine --test it -- --ignored
/// write_the_vectors_of_version_7`.
#[test]
#[ignore = "writes files: only for a deliberate change of the vectors"]
fn write_the_vectors_of_version_7() {
    let persona = json!({"name": "watch", "tools": ["look", "send"], "system_prompt": "Report what you see.",
        "contracts": "mail"});
    let watch = async |world: &World| {
        let look = "tool: look\nside_effect: read\ncommit_requirement: none\n";
        let send = "tool: send\nside_effect: write\nargument_value_invariants:\n  - { path: \"$.to\", one_of: [\"guard\"] }\n";
        world.engine.set_contracts([texts(&[look, send])]);
        world.agent(persona, "Is everything closed?").await
    };
    written_source("agent-7", Registry::new(builtin()), watch);
    let what = "version 7 of the agent: calls that count when they are released are made";
    write_case("exact-agent-7", "agent-7", what, &json!({}), false, &[]);
}

/// U2: each version that ever wrote a log is here.
#[test]
fn u2_every_version_of_the_agent_has_a_vector() {
    for workflow in builtin()
        .iter()
        .filter(|workflow| workflow.name() == "agent")
    {
        let digest = runs::workflow::digest(workflow.as_ref()).to_string();
        let has_it = names(&folder().join("sources")).iter().any(|name| {
            let log =
                std::fs::read_to_string(folder().join("sources").join(name).join("log.jsonl"));
            log.unwrap().contains(&digest)
        });
        assert!(has_it, "version {}", workflow.version());
    }
}

/// The same through the engine: a conformance run echoes what it was given, any other tells what is true.
#[test]
fn ap_rpl_21_the_engine_comes_to_the_receipt_of_the_conformance_vector() {
    let mut hand = Hand::default();
    let spawner = hand.spawner();
    let registry = Registry::new(builtin());
    let world = hand.turn(World::spawning(Outside::new(), spawner, registry), || {});
    world.outside.says("llm:main:1", "perhaps");
    let request =
        read_json(&folder().join("cases/llm-and-time-overrides-conformance/request.json"));
    let (conforming, plain) = hand.turn(
        async {
            let session = world.session().await;
            let input = json!({"message": "ship it?"});
            let id = world
                .submit(&session, Some("replay-fixture"), None, input)
                .await;
            let task = world.ended(&id).await;
            let conforming = world.conformance_replay(&task.id, request.clone()).await;
            let plain = world.replay(&task.id, request.clone()).await;
            (
                world.receipt(&conforming).await,
                world.receipt(&plain).await,
            )
        },
        || {},
    );
    let vector = Receipt::read(&compute("llm-and-time-overrides-conformance")).unwrap();
    for member in ["issuer", "metadata"] {
        let mut expected = vector.as_map()[member].clone();
        if member == "metadata" {
            expected["source_task_id"] = conforming.as_map()["metadata"]["source_task_id"].clone();
        }
        assert_eq!(conforming.as_map()[member], expected);
    }
    for (delta, expected) in crate::rig::deltas(&conforming)
        .iter()
        .zip(crate::rig::deltas(&vector))
    {
        for member in ["delta_id", "path", "event_id", "after_sha256", "reason"] {
            assert_eq!(delta[member], expected[member], "{member}");
        }
    }
    // Otherwise the issuer is the server, digests are computed and foreign ids are not repeated.
    assert_eq!(plain.as_map()["issuer"]["id"], "reprise-test");
    assert_eq!(plain.as_map()["metadata"]["source"], "replay");
    let value = &request["override"]["llm:main:1"]["value"];
    let digest = canon::sha256(&canon::jcs(value)).to_string();
    assert_eq!(crate::rig::deltas(&plain)[0]["after_sha256"], digest);
    assert_ne!(
        crate::rig::deltas(&plain)[0]["event_id"],
        "event_elsewhere_1"
    );
}
