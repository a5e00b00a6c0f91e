//! The published vectors of REPLAY over HTTP. Their logs fix ids and epochs, so that no client could record them: they
//! are put into the store below the wire, by the same event types and the same sealing, and then asked for over it.

#[path = "../../../field/tests/it/vectors.rs"]
pub(crate) mod vectors;

use std::collections::BTreeMap;

use domain::{
    Command, FieldEntry, Order, Scratch, Timestamp, WorkspaceId, WriteField, decide, seal,
};
use engine::port::{Commit, MemoryStore, SealedTurn, Store, StoredEvent};
use field::Entry;
use serde_json::{Value, json};

use crate::fixture::Server;
use crate::memory::Memory;

/// Puts entries into a field that does not exist yet.
pub(crate) async fn load(store: &MemoryStore, name: &str, entries: &[Entry]) {
    let workspace = WorkspaceId::local();
    let known = store.documents(vec![workspace.as_str().into()]).await;
    let mut scratch = Scratch::default();
    scratch.insert(known.unwrap().remove(0).unwrap());
    let order = WriteField {
        room: domain::FieldRoom::Taken,
        workspace_id: workspace,
        name: name.to_owned(),
        version: 0,
        entries: entries
            .iter()
            .map(|entry| FieldEntry {
                members: entry.members(None),
                blobs: Vec::new(),
            })
            .collect(),
    };
    let id = order.id();
    let command = Command {
        actor: "vectors".to_owned(),
        idempotency_key: None,
        order: Order::WriteField(Box::new(order)),
    };
    let decision = decide(&scratch, &command).unwrap();
    let (log, now) = (store.name().clone(), Timestamp::from_micros(1));
    let commit = Commit {
        expected: Vec::new(),
        fences: Vec::new(),
        holder: "vectors".into(),
        blobs: decision.blobs,
        event_count: decision.drafts.len() as u64,
        now,
        seal: Box::new(move |first| {
            let sealed = seal(&log, &mut scratch, &decision.drafts, first, now)?;
            let events = sealed.into_iter().map(|sealed| StoredEvent {
                position: sealed.position,
                links: sealed.links,
                resource: sealed.resource,
                bytes: sealed.bytes.into(),
            });
            Ok(SealedTurn {
                events: events.collect(),
                documents: scratch
                    .iter_shared()
                    .filter(|document| *document.id == *id.as_str())
                    .cloned()
                    .collect(),
                ..SealedTurn::default()
            })
        }),
    };
    store.commit(commit).await.unwrap();
}

/// Compares an answer with what a case expects.
pub(crate) fn check(case: &Value, entries: &[Entry], code: Option<&Value>, answer: &Value) {
    let (id, expect) = (&case["id"], &case["expect"]);
    if let Some(code) = code {
        assert_eq!(*code, expect["error"], "{id}");
        return;
    }
    assert_eq!(expect.get("error"), None, "{id}: {answer}");
    assert_eq!(answer["agents_involved"], expect["agents_involved"], "{id}");
    assert_eq!(answer["total_events"], expect["total_events"], "{id}");
    let by_time: BTreeMap<String, u64> = entries
        .iter()
        .map(|entry| (entry.at.to_string(), entry.seq))
        .collect();
    let timeline = answer["timeline"].as_array().unwrap();
    let seqs: Vec<u64> = timeline
        .iter()
        .map(|event| by_time[event["timestamp"].as_str().unwrap()])
        .collect();
    assert_eq!(json!(seqs), expect["timeline_seqs"], "{id}");
}

#[tokio::test]
async fn ak_replay_02_05_06_10_11_all_vectors_pass_over_http() {
    let vectors = vectors::vectors();
    let mut asked = 0;
    // A limit is the server's: one server for each.
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
        let mut logs = BTreeMap::new();
        for case in cases {
            let name = case["log"].as_str().unwrap();
            let memory = Memory::at(&server).field(name);
            if !logs.contains_key(name) {
                let entries = vectors::entries(&vectors, name);
                load(&server.store, name, &entries).await;
                memory.join("auditor").await;
                logs.insert(name, entries);
            }
            let (status, answer) = memory
                .send("replay", "auditor", case["request"].clone())
                .await;
            let code = (status != 200).then(|| &answer["code"]);
            check(case, &logs[name], code, &answer);
            asked += 1;
        }
    }
    assert_eq!(asked, 61);
}
