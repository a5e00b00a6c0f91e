//! Bundles of finished Tasks and differences between them, from runs of the real engine.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use canon::{Map, Value, sha256};
use domain::{ModelUse, Refusal, Status, TaskId};
use engine::port::{BoxFuture, Deltas, Performer};
use engine::{Caller, Engine, InputSpec, NewTask, Parts, Refused, ReplayTask, Request, Settle};
use proptest::prelude::*;
use runs::replay::diff::{self, Diff, Difference, Relation, Reveal, TextDiff};
use runs::replay::{self, Bundle, Failure, Progress, ReceiptIssuer, Replayed, Source};
use runs::workflow::{
    Answers, Effect, EffectAnswer, EffectKind, EffectOutcome, EffectRequest, Machine, Registry,
    Start, Step, Transcript, Workflow, builtin,
};
use serde_json::json;

use crate::support::{new_session, parts, reach, store, write};

/// Asks a model twice; the second time with its first answer. A checkpoint lies between.
#[derive(Debug)]
struct Twice;

impl Workflow for Twice {
    fn name(&self) -> &'static str {
        "twice"
    }

    fn version(&self) -> &'static str {
        "1"
    }

    fn description(&self) -> &'static str {
        "asks twice"
    }

    fn begin(&self, start: &Start) -> Box<dyn Machine> {
        Box::new(Asking {
            said: vec![start.input.clone()],
        })
    }

    fn restore(&self, _: &Start, state: &Value, _: &Answers) -> Result<Box<dyn Machine>, String> {
        let said = state["said"].as_array().ok_or("no list `said`")?.clone();
        Ok(Box::new(Asking { said }))
    }
}

struct Asking {
    said: Vec<Value>,
}

impl Machine for Asking {
    fn step(&mut self, results: &[EffectAnswer]) -> Step {
        for answer in results {
            self.said.push(
                answer
                    .value
                    .pointer("/choices/0/message/content")
                    .unwrap()
                    .clone(),
            );
        }
        if self.said.len() == 3 {
            let text = self.said[2].as_str().unwrap().to_owned();
            return Step::Done {
                notes: vec![],
                summary: text.clone(),
                text,
                products: vec![],
            };
        }
        let messages: Transcript = self.said.iter().cloned().collect();
        let key = format!("llm:main:{}", self.said.len());
        Step::Request {
            notes: vec![],
            checkpoint: self.said.len() > 1,
            effects: vec![EffectRequest {
                messages: Some(messages),
                ..EffectRequest::repeatable(key, EffectKind::Model, json!({}))
            }],
        }
    }

    fn state(&self) -> Value {
        json!({"said": self.said})
    }
}

/// A model that says how long what it was told is, and a price that depends on the call.
#[derive(Debug)]
struct Model;

impl Performer for Model {
    fn perform(&self, effect: Effect, deltas: Deltas) -> BoxFuture<'static, EffectOutcome> {
        if effect.kind == EffectKind::Hold {
            return Box::pin(std::future::pending());
        }
        let told = effect.request["messages"].to_string();
        let padding = if told.contains("long") {
            "x".repeat(5_000)
        } else {
            String::new()
        };
        deltas.push("a piece");
        let text = format!("{} characters\n{padding}", told.len());
        let value = json!({"choices": [{"message": {"role": "assistant", "content": text}}]});
        let performed = EffectOutcome {
            model: Some(ModelUse {
                provider: "test".to_owned(),
                model: "m-1".to_owned(),
                input_tokens: told.len() as u64,
                output_tokens: 3,
                cost_micros: (!told.contains("unpriced")).then_some(250),
                price_table: None,
                usage_unknown: false,
            }),
            ..EffectOutcome::ok(value)
        };
        Box::pin(std::future::ready(performed))
    }
}

fn workflows() -> Registry {
    let own: Arc<dyn Workflow> = Arc::new(Twice);
    Registry::new(builtin().into_iter().chain([own]))
}

async fn engine() -> Engine {
    let parts = Parts {
        performer: Arc::new(Model),
        workflows: workflows(),
        ..parts(store())
    };
    Engine::start(parts).await.unwrap()
}

async fn run(engine: &Engine, input: &str) -> TaskId {
    let request = Request::SubmitTask(NewTask {
        session_id: new_session(engine).await,
        workspace_id: None,
        persona_id: None,
        branch_id: None,
        parent_task_id: None,
        input: InputSpec::Object(Map::from_iter([("goal".to_owned(), json!(input))])),
        metadata: Map::from_iter([("workflow".to_owned(), json!("twice"))]),
    });
    let task = write(engine, request).await.unwrap();
    let id = TaskId::parse(&task.view.document.id).unwrap();
    reach(engine, &id, Status::Completed).await;
    id
}

async fn replayed(engine: &Engine, source: &TaskId, body: Value) -> TaskId {
    let request = Request::ReplayTask(ReplayTask {
        id: source.clone(),
        body,
        conformance: false,
        session_id: None,
    });
    let answer = engine
        .dispatch(&Caller::system(), request, None, Settle::Window)
        .await
        .unwrap();
    let id = TaskId::parse(&answer.view.document.id).unwrap();
    reach(engine, &id, Status::Completed).await;
    id
}

fn says(text: &str) -> Value {
    json!({"kind": "llm_provider_response", "value": replay::text_value("llm:main:1", text, None).unwrap()})
}

async fn bundle(engine: &Engine, id: &TaskId) -> Vec<u8> {
    engine.bundle(&Caller::system(), id).await.unwrap()
}

async fn compare(engine: &Engine, a: &TaskId, b: &TaskId) -> Diff {
    let online = engine.diff(&Caller::system(), a, b).await.unwrap();
    // A server and a program without one come to the same result.
    let source = |bytes: Vec<u8>| Bundle::read(&bytes).unwrap().into_source().unwrap();
    let offline = diff::compare(
        &source(bundle(engine, a).await),
        &source(bundle(engine, b).await),
        &workflows(),
        Reveal::All,
    );
    assert_eq!(online, offline);
    online
}

fn play(source: &Source, body: &Value) -> Replayed {
    let (spec, secrets) = replay::read(body, source, &BTreeMap::new(), false).unwrap();
    match replay::run(source, &workflows(), &spec, &secrets, BTreeMap::new()) {
        Progress::Ended(replayed) => replayed,
        Progress::Needs(_) => panic!("a replay performs nothing"),
    }
}

/// A bundle with events, blobs and a receipt, made once.
fn sample() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    BYTES.get_or_init(|| {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let engine = engine().await;
            let task = run(&engine, "long").await;
            bundle(&engine, &task).await
        })
    })
}

fn lines(bytes: &[u8]) -> Vec<&str> {
    std::str::from_utf8(bytes).unwrap().lines().collect()
}

fn joined(lines: &[&str]) -> Vec<u8> {
    lines
        .iter()
        .flat_map(|line| [*line, "\n"])
        .collect::<String>()
        .into_bytes()
}

/// Puts other text into one line.
fn with_line(bytes: &[u8], at: usize, change: impl FnOnce(&str) -> String) -> Vec<u8> {
    let mut lines = lines(bytes);
    let changed = change(lines[at]);
    lines[at] = &changed;
    joined(&lines)
}

/// Returns the digest of the blob in a line.
fn blob_at(bytes: &[u8], at: usize) -> Option<Value> {
    let mut line: Value = serde_json::from_str(lines(bytes)[at]).unwrap();
    Some(line.pointer_mut("/blob/sha256")?.take())
}

/// Takes a blob away, so that the first line counts right.
fn without_line(bytes: &[u8], at: usize) -> Vec<u8> {
    let mut lines = lines(bytes);
    lines.remove(at);
    let mut header: Value = serde_json::from_str(lines[0]).unwrap();
    header["blobs"] = json!(header["blobs"].as_u64().unwrap() - 1);
    let header = String::from_utf8(canon::jcs(&header)).unwrap();
    lines[0] = &header;
    joined(&lines)
}

#[tokio::test]
async fn a_bundle_holds_the_stored_bytes_and_replays_to_the_servers_receipt() {
    let engine = engine().await;
    let task = run(&engine, "long").await;
    let bytes = bundle(&engine, &task).await;
    let read = Bundle::read(&bytes).unwrap();
    assert_eq!(read.to_bytes(), bytes);
    assert_eq!(read.task_id(), &task);

    let log = engine
        .event_log_content(&Caller::system(), task.as_str())
        .await
        .unwrap();
    let events: String = lines(&bytes)
        .iter()
        .filter_map(|line| line.strip_prefix("{\"event\":")?.strip_suffix('}'))
        .map(|event| format!("{event}\n"))
        .collect();
    assert_eq!(events.into_bytes(), log, "the sealed log, byte for byte");
    assert!(bytes.windows(8).any(|window| window == b"{\"blob\":"));

    let source = read.into_source().unwrap();
    assert_eq!(source.log_sha256, sha256(&log));
    let body = json!({"mode": "with_overrides", "override": {"llm:main:1": says("no")}});
    let online = replayed(&engine, &task, body.clone()).await;
    let (spec, _) = replay::read(&body, &source, &BTreeMap::new(), false).unwrap();
    let issuing = ReceiptIssuer {
        id: "reprise-test".to_owned(),
        name: None,
        ordinal: 1,
    };
    let offline = replay::receipt(&source, &spec, &play(&source, &body), &issuing).unwrap();
    let theirs = Bundle::read(&bundle(&engine, &online).await).unwrap();
    let theirs = theirs.receipt().unwrap();
    assert_eq!(offline.hash(), theirs.hash());
}

#[tokio::test]
async fn a_replay_in_a_bundle_brings_its_request_along() {
    let engine = engine().await;
    let task = run(&engine, "x").await;
    let body =
        json!({"mode": "with_overrides", "override": {"llm:main:2": says("something else")}});
    let changed = replayed(&engine, &task, body).await;
    let bytes = bundle(&engine, &changed).await;
    let source = Bundle::read(&bytes).unwrap().into_source().unwrap();
    let again = play(&source, &json!({}));
    assert_eq!(again.end.text.as_deref(), Some("something else"));
    assert!(again.result_equal);

    // Its events only describe the value: without the request it cannot be replayed, and says so.
    let submitted: Value = serde_json::from_str(lines(&bytes)[1]).unwrap();
    let request = submitted["event"]["payload"]["replay"]["request_sha256"].clone();
    let at = (0..lines(&bytes).len()).find(|at| blob_at(&bytes, *at) == Some(request.clone()));
    let without = without_line(&bytes, at.unwrap());
    let error = Bundle::read(&without).unwrap().into_source().unwrap_err();
    assert!(
        error
            .to_string()
            .contains("request of that replay is missing"),
        "{error}"
    );
}

#[test]
fn what_is_wrong_with_the_file_is_told_by_its_line() {
    let check = |bytes: &[u8], expect: &str| {
        let error = Bundle::read(bytes).unwrap_err().to_string();
        assert!(error.contains(expect), "{error} instead of {expect}");
    };
    let bytes = sample();
    let count = lines(bytes).len();
    let last_event = lines(bytes)
        .iter()
        .rposition(|line| line.starts_with("{\"event\":"))
        .unwrap();
    check(b"", "line 1: the file ends here");
    check(b"{}\n", "line 1: the format is not `reprise-bundle-1`");
    check(b"[]\n", "line 1: a header must come here");
    check(b"{\"a\":1,\"a\":2}\n", "line 1: duplicate");
    check(
        &with_line(bytes, 0, |line| line.replace("bundle-1", "bundle-2")),
        "line 1: the format",
    );
    check(
        &with_line(bytes, 0, |line| {
            line.replace("\"task_id\":\"task_", "\"task_id\":\"run_")
        }),
        "`task_id` is missing or wrong",
    );
    check(
        &with_line(bytes, 0, |line| {
            line.replace("{\"blobs\"", "{\"a\":1,\"blobs\"")
        }),
        "does not know",
    );
    check(
        &with_line(bytes, 0, |line| {
            line.replace(",\"events\":", ", \"events\":")
        }),
        "line 1: the line is not in its canonical form",
    );
    check(
        &with_line(bytes, 1, |line| line.replace("\"actor\":", "\"actor\": ")),
        "line 2: the event is not in its canonical form",
    );
    check(
        &with_line(bytes, 1, |_| "{\"event\":{}}".to_owned()),
        "line 2: not a stored event",
    );
    check(
        &with_line(bytes, 1, |_| "{\"blob\":{}}".to_owned()),
        "line 2: an event must come here",
    );
    check(
        &with_line(bytes, last_event + 1, |line| {
            line.replace("\"base64\":\"", "\"base64\":\"*")
        }),
        "a blob has `sha256` and `base64`",
    );
    check(
        &with_line(bytes, count - 1, |_| "{\"receipt\":{}}".to_owned()),
        &format!("line {count}: "),
    );
    check(
        &bytes[..bytes.len() - 1],
        &format!("line {count}: the file ends here"),
    );
    check(
        &[bytes, b"{}\n"].concat(),
        &format!("line {}: more lines", count + 1),
    );
    let mut lines = lines(bytes);
    lines.swap(last_event + 1, last_event + 2);
    check(&joined(&lines), "order of their digests");
}

/// B10: the first unavailable dependency is named by its place, whatever was done to the file.
#[test]
fn ap_rpl_a_damaged_dependency_is_named_by_its_place() {
    let bytes = sample();
    let (mut states, mut overridden) = (0, 0);
    let altered = with_line(bytes, 3, |line| {
        line.replace("\"created_at\":\"2", "\"created_at\":\"1")
    });
    let corrupt = first(&altered, &json!({}));
    assert_eq!((corrupt.what, corrupt.reason), ("event", "log_corrupt"));

    let blobs: Vec<usize> = (0..lines(bytes).len())
        .filter(|at| lines(bytes)[*at].starts_with("{\"blob\":"))
        .collect();
    let mut places = Vec::new();
    for at in blobs {
        let digest = blob_at(bytes, at).unwrap();
        let digest = digest.as_str().unwrap();
        let altered = with_line(bytes, at, |line| {
            line.replace("\"base64\":\"", "\"base64\":\"AAAA")
        });
        let without = without_line(bytes, at);
        for (file, reason) in [(&altered, "hash_mismatch"), (&without, "missing")] {
            let found = first(file, &json!({}));
            assert_eq!((found.what, found.reason), ("artifact", reason));
            assert_eq!(found.id.as_deref(), Some(digest));
            let event = event_at(bytes, found.sequence.unwrap());
            places.push(found.sequence.unwrap());
            if event["event"] == "vendor.checkpoint_created" {
                states += 1;
                let id = &event["payload"]["checkpoint_id"];
                let key = format!("host:checkpoint:{}", id.as_str().unwrap());
                let body = json!({"mode": "from_checkpoint", "checkpoint_id": id});
                let again = first(file, &body);
                assert_eq!((again.id, again.reason), (Some(digest.to_owned()), reason));
                // Who gives another state needs none; who gives a member of it does.
                let state = json!({"kind": "checkpoint_value", "value": {"said": ["x"]}});
                let mut whole = body.clone();
                whole["override"] = json!({&key: state});
                assert_eq!(end(file, &whole), None);
                whole["override"][&key]["target"] = json!("/said");
                assert_eq!(end(file, &whole), Some("replay_dependency_unavailable"));
            } else if event["event"] == "vendor.effect_recorded" {
                let key = event["payload"]["effect_key"].as_str().unwrap();
                let value = json!({"choices": [{"message": {"content": "x"}}]});
                let given = json!({"kind": "llm_provider_response", "value": value});
                let body = json!({"mode": "with_overrides", "override": {key: given}});
                // Both answers are long: the other one is still there.
                assert_eq!(end(file, &body), None, "{key}");
                overridden += 1;
            }
        }
    }
    assert!(places.len() >= 4, "{places:?}");
    assert!(states > 0 && overridden > 0, "{states} {overridden}");
}

/// The receipt of the source stands in the receipt of its replay: it must be what it was when it was issued.
#[test]
fn ap_rpl_an_altered_receipt_is_no_source() {
    let bytes = sample();
    let altered = with_line(bytes, lines(bytes).len() - 1, |line| {
        let altered = line.replacen("\"issued_at\":\"2", "\"issued_at\":\"1", 1);
        assert_ne!(altered, line);
        altered
    });
    let found = first(&altered, &json!({}));
    assert_eq!((found.what, found.reason), ("receipt", "hash_mismatch"));
}

fn end(file: &[u8], body: &Value) -> Option<&'static str> {
    let source = Bundle::read(file).unwrap().into_source().unwrap();
    play(&source, body).end.broken.map(|failure| failure.code())
}

fn first(file: &[u8], body: &Value) -> replay::Unavailable {
    let source = Bundle::read(file).unwrap().into_source().unwrap();
    match play(&source, body).end.broken {
        Some(Failure::Unavailable { first, .. }) => *first,
        other => panic!("{other:?}"),
    }
}

fn event_at(bytes: &[u8], sequence: u64) -> Value {
    let mut line: Value =
        serde_json::from_str(lines(bytes)[usize::try_from(sequence).unwrap()]).unwrap();
    line["event"].take()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// No input makes reading panic, and what is read and replayed ends one way or another.
    #[test]
    fn no_file_is_too_broken_to_be_refused(
        at in any::<prop::sample::Index>(),
        len in 0_usize..40,
        put in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let bytes = sample();
        let at = at.index(bytes.len());
        let end = (at + len).min(bytes.len());
        let changed = [&bytes[..at], &put, &bytes[end..]].concat();
        if let Ok(bundle) = Bundle::read(&changed) {
            prop_assert_eq!(bundle.to_bytes(), changed, "what is read is written the same");
            if let Ok(source) = bundle.into_source() {
                let _ = play(&source, &json!({}));
            }
        }
    }

    #[test]
    fn random_bytes_are_no_bundle(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(Bundle::read(&bytes).is_err());
    }
}

#[tokio::test]
async fn an_exact_replay_is_equal_to_its_source_both_ways() {
    let engine = engine().await;
    let task = run(&engine, "x").await;
    let again = replayed(&engine, &task, json!({})).await;
    let diff = compare(&engine, &task, &again).await;
    assert!(diff.equal, "{diff:?}");
    assert_eq!(diff.relation, Relation::Replay);
    assert_eq!(diff.usage.cost_micros, Some(0));
    let mirrored = compare(&engine, &again, &task).await;
    assert!(mirrored.equal);
    assert_eq!(mirrored.relation, Relation::Source);
    // A replay of a replay, and two replays of one source.
    let third = replayed(&engine, &again, json!({})).await;
    assert!(compare(&engine, &again, &third).await.equal);
    let sibling = replayed(&engine, &task, json!({})).await;
    let siblings = compare(&engine, &again, &sibling).await;
    assert_eq!(
        (siblings.equal, siblings.relation),
        (true, Relation::SameSource)
    );
}

#[tokio::test]
async fn a_changed_answer_and_what_followed_from_it_are_told() {
    let engine = engine().await;
    let task = run(&engine, "x").await;
    let body = json!({"mode": "with_overrides", "override": {"llm:main:1": says("short")}});
    let changed = replayed(&engine, &task, body).await;
    let diff = compare(&engine, &task, &changed).await;
    assert!(!diff.equal);
    let parting = diff.first_divergence.unwrap();
    assert_eq!(parting.what, Difference::Changed);
    assert_eq!(parting.members, ["value_sha256"]);
    assert_eq!(parting.override_key.as_deref(), Some("llm:main:1"));
    let place = parting.a.unwrap();
    assert_eq!(
        (place.event.as_str(), place.effect_key.as_deref()),
        ("vendor.effect_recorded", Some("llm:main:1"))
    );

    let [first, second] = &diff.effects[..] else {
        panic!("{:?}", diff.effects)
    };
    assert_eq!((first.key.as_str(), first.overridden), ("llm:main:1", true));
    assert_eq!(first.text.as_ref().unwrap().after, ["short"]);
    assert!(first.request.is_none() && first.value.is_some());
    assert_eq!(
        (second.key.as_str(), second.overridden),
        ("llm:main:2", false)
    );
    assert_eq!(second.note.as_deref(), Some("stale_input"));
    assert!(second.request.is_some() && second.value.is_none() && second.text.is_none());
    // A workflow of our own is asked for its words like any other.
    let [asked] = &second.request_changes[..] else {
        panic!("{second:?}")
    };
    assert_eq!(asked.member.as_deref(), Some("2"));
    assert_eq!(asked.text.as_ref().unwrap().after, ["short"]);
    // The last answer was the recorded one: the end is the same.
    assert!(diff.answer.is_none());
    assert_eq!(diff.b.usage.use_unknown, ["llm:main:1"]);
    assert_eq!(diff.usage.model_calls, 0);
    assert_eq!(diff.usage.cost_micros, Some(-250));
    assert!(diff.inputs.is_empty());

    let body = json!({"mode": "with_overrides", "override": {"llm:main:2": says("another end")}});
    let other = replayed(&engine, &task, body).await;
    let diff = compare(&engine, &task, &other).await;
    let answer = diff.answer.unwrap();
    assert_eq!(
        (answer.line, answer.after.as_slice()),
        (1, &["another end".to_owned()][..])
    );
    assert_eq!(diff.effects.len(), 1);
    // Two replays with different changes, laid over each other.
    let diff = compare(&engine, &changed, &other).await;
    let keys: Vec<&str> = diff
        .effects
        .iter()
        .map(|effect| effect.key.as_str())
        .collect();
    assert_eq!(keys, ["llm:main:1", "llm:main:2"]);
}

#[tokio::test]
async fn a_replay_from_a_checkpoint_is_compared_from_there_on() {
    let engine = engine().await;
    let task = run(&engine, "x").await;
    let source = Bundle::read(&bundle(&engine, &task).await)
        .unwrap()
        .into_source()
        .unwrap();
    let (_, checkpoint) = source.checkpoints().next().unwrap();
    let body = json!({"mode": "from_checkpoint", "checkpoint_id": checkpoint});
    let again = replayed(&engine, &task, body.clone()).await;
    let diff = compare(&engine, &task, &again).await;
    assert!(diff.equal, "{diff:?}");
    assert!(compare(&engine, &again, &task).await.equal);

    let mut body = body;
    body["override"] = json!({"llm:main:2": says("later")});
    let changed = replayed(&engine, &task, body).await;
    let diff = compare(&engine, &task, &changed).await;
    let keys: Vec<&str> = diff
        .effects
        .iter()
        .map(|effect| effect.key.as_str())
        .collect();
    assert_eq!(keys, ["llm:main:2"]);
    assert_eq!(
        diff.first_divergence
            .unwrap()
            .b
            .unwrap()
            .effect_key
            .as_deref(),
        Some("llm:main:2")
    );
}

#[tokio::test]
async fn unrelated_runs_are_laid_over_each_other_by_keys() {
    let engine = engine().await;
    let (one, same, other) = (
        run(&engine, "x").await,
        run(&engine, "x").await,
        run(&engine, "unpriced and much wider").await,
    );
    let diff = compare(&engine, &one, &same).await;
    assert!(diff.equal, "ids and times are no difference: {diff:?}");
    assert_eq!(diff.relation, Relation::None);

    let diff = compare(&engine, &one, &other).await;
    assert_eq!(diff.inputs.len(), 1);
    assert_eq!(diff.inputs[0].what, "input");
    assert_eq!(diff.inputs[0].member.as_deref(), Some("goal"));
    assert_eq!(diff.inputs[0].before, json!("x"));
    assert_eq!(diff.effects.len(), 2);
    let parting = diff.first_divergence.unwrap();
    assert_eq!(parting.a.unwrap().event, "task.submitted");
    assert_eq!(parting.members, ["input"]);
    // A price that nobody knows is named and not 0.
    assert_eq!(diff.b.usage.price_unknown, ["test/m-1"]);
    assert_eq!(diff.b.usage.cost_micros, 0);
    assert_eq!(diff.usage.cost_micros, None);
    assert!(diff.usage.input_tokens > 0);
}

#[tokio::test]
async fn a_run_that_stopped_early_misses_the_rest() {
    let engine = engine().await;
    let task = run(&engine, "x").await;
    let body = json!({
        "mode": "with_overrides",
        "override": {"llm:main:1": says("short")},
        "metadata": {"replay_policy": {"on_stale_input": "fail"}},
    });
    let request = Request::ReplayTask(ReplayTask {
        id: task.clone(),
        body,
        conformance: false,
        session_id: None,
    });
    let answer = write(&engine, request).await.unwrap();
    let failed = TaskId::parse(&answer.view.document.id).unwrap();
    reach(&engine, &failed, Status::Failed).await;
    let diff = compare(&engine, &task, &failed).await;
    assert_eq!(diff.b.failure["code"], "replay_divergence");
    let missing = diff
        .effects
        .iter()
        .find(|effect| effect.key == "llm:main:2")
        .unwrap();
    assert_eq!(missing.what, Difference::Missing);
    let text: &TextDiff = missing.text.as_ref().unwrap();
    assert!(text.after.is_empty() && !text.before.is_empty());
    let back = compare(&engine, &failed, &task).await;
    assert_eq!(back.effects.last().unwrap().what, Difference::Added);
}

#[tokio::test]
async fn only_what_is_finished_has_a_record() {
    let engine = engine().await;
    let session = new_session(&engine).await;
    let held = write(&engine, crate::support::task_request(&session, "hold", "x"))
        .await
        .unwrap();
    let held = TaskId::parse(&held.view.document.id).unwrap();
    let is_conflict = |refused: Refused| {
        matches!(
            refused,
            Refused::Domain(Refusal::Conflict {
                reason: "not_finished",
                ..
            })
        )
    };
    let system = Caller::system();
    assert!(is_conflict(
        engine.bundle(&system, &held).await.unwrap_err()
    ));
    let done = run(&engine, "x").await;
    assert!(is_conflict(
        engine.diff(&system, &done, &held).await.unwrap_err()
    ));
    let unknown = TaskId::parse("task_unknown").unwrap();
    let refused = engine.diff(&system, &done, &unknown).await.unwrap_err();
    assert!(matches!(
        refused,
        Refused::Domain(Refusal::NotFound {
            param: Some("other"),
            ..
        })
    ));
}

#[tokio::test]
async fn keys_name_what_can_be_changed_in_the_order_of_the_run() {
    let engine = engine().await;
    let task = run(&engine, "x").await;
    let source = Bundle::read(&bundle(&engine, &task).await)
        .unwrap()
        .into_source()
        .unwrap();
    let keys = replay::keys(&source);
    let names: Vec<(&str, &str)> = keys
        .iter()
        .map(|key| (key.key.as_str(), key.kind))
        .collect();
    let (_, checkpoint) = source.checkpoints().next().unwrap();
    let state = format!("host:checkpoint:{checkpoint}");
    assert_eq!(
        names,
        [
            ("time:created_at", "time"),
            ("time:started_at", "time"),
            ("llm:main:1", "llm_provider_response"),
            (state.as_str(), "checkpoint_value"),
            ("llm:main:2", "llm_provider_response"),
            ("time:completed_at", "time"),
        ]
    );
    assert!(keys.iter().all(|key| key.ok && key.value.is_some()));
    // Each of them is a key that a request takes.
    for key in &keys {
        assert!(source.has_key(&key.key), "{}", key.key);
        assert_eq!(replay::kind_of(&key.key), Some(key.kind));
    }
}
