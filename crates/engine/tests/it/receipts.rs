//! Receipts: one chain per session, a tree that survives, and verdicts on every damage.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use canon::{Digest, Map, Value};
use domain::{
    BatchId, Blob, Document, ReceiptCheck, ReceiptId, Refusal, ResourceKind, SessionId, State,
    Status, TaskId, Timestamp,
};
use engine::port::{ApiKey, BlobStore, BoxFuture, Clock, MemoryStore, Store, TreeStore};
use engine::{Answer, Caller, Engine, Filters, Idempotency, ListRequest, Parts, Refused, Request};
use receipts::Receipt;
use receipts::merkle;
use runs::workflow::{EffectAnswer, Machine, Registry, Start, Step, Workflow, builtin};

use crate::support::{
    engine_on, key, new_session, parts, reach, recorded_verdict, store, submit, task_request, write,
};

async fn receipts_of(engine: &Engine, session: &SessionId) -> Vec<(String, Receipt)> {
    let request = ListRequest {
        kind: ResourceKind::Receipt,
        filters: Filters {
            session_id: Some(session.to_string()),
            ..Filters::default()
        },
        after: domain::Position::START,
        limit: 200,
    };
    let caller = Caller::system();
    let page = engine.list(&caller, request).await.unwrap();
    let mut receipts = Vec::new();
    for view in page.views {
        let form = engine.receipt(&caller, &view.document.id).await.unwrap();
        let receipt = Receipt::read(&form.bytes.unwrap()).unwrap();
        receipts.push((view.document.id.to_string(), receipt));
    }
    receipts
}

fn assert_chain(receipts: &[(String, Receipt)], mut previous: Option<Digest>) {
    for (id, receipt) in receipts {
        assert_eq!(receipt.previous_hash(), previous, "{id}");
        assert_eq!(receipt.stated_hash(), Some(receipt.hash()), "{id}");
        previous = Some(receipt.hash());
    }
}

async fn verify(engine: &Engine, id: &str) -> Answer {
    recorded_verdict(engine, &Caller::system(), id, None)
        .await
        .unwrap()
}

async fn verdict(engine: &Engine, id: &str) -> (bool, Option<String>, Value) {
    let payload = verify(engine, id).await.event.unwrap().payload.clone();
    let reason = payload["reason"].as_str().map(str::to_owned);
    (payload["valid"] == true, reason, payload["value"].clone())
}

fn bound_to(scopes: &[&str], workspaces: Option<Vec<String>>) -> Caller {
    Caller::from_key(&ApiKey {
        workspaces,
        ..key("ann", scopes)
    })
}

/// U10: the first answer comes from the log; the receipt is not examined again for it.
#[tokio::test]
async fn a_repeated_verification_gets_its_first_answer_and_only_writers_record_one() {
    let store = store();
    let engine = engine_on(store.clone()).await;
    let (session, task, _) = submit(&engine, "agent").await;
    reach(&engine, &task, Status::Completed).await;
    let (id, _) = receipts_of(&engine, &session).await.remove(0);
    let idempotency = Idempotency {
        key: "once".to_owned(),
        method: "POST".to_owned(),
        target: "/verify".to_owned(),
        body: Value::Object(Map::new()),
    };
    let keyed = async || {
        let before = store.reads();
        let given = Some(idempotency.clone());
        let answer = recorded_verdict(&engine, &Caller::system(), &id, given).await;
        let answer = answer.unwrap();
        (answer, store.reads() - before)
    };
    let (first, examined) = keyed().await;
    store.forget_blobs();
    let head = store.head();
    let (again, repeated) = keyed().await;
    assert_eq!(again.event, first.event);
    assert!(!again.changed && store.head() == head);
    assert!(repeated < examined, "{repeated} reads after {examined}");

    let reader = bound_to(&["*:read"], None);
    let refused = recorded_verdict(&engine, &reader, &id, None).await;
    let scope = "receipts:write";
    assert!(
        matches!(refused, Err(Refused::PermissionDenied { scope: asked }) if asked == scope),
        "{refused:?}"
    );
    let check = ReceiptCheck::default();
    let id = ReceiptId::parse(&id).unwrap();
    assert!(engine.judge_receipt(&reader, &id, &check).await.is_ok());
    assert_eq!(store.head(), head);
}

#[tokio::test]
async fn a_head_is_cosigned_by_callers_that_may_write_receipts_and_are_bound_to_no_workspace() {
    let store = store();
    let engine = engine_on(store.clone()).await;
    let (session, task, _) = submit(&engine, "agent").await;
    reach(&engine, &task, Status::Completed).await;
    let (id, _) = receipts_of(&engine, &session).await.remove(0);
    let proof = engine.receipt_proof(&Caller::system(), &id).await.unwrap();
    let batch = BatchId::parse(&proof.batch.id).unwrap();
    let line = "no signature";
    let reader = bound_to(&["*:read"], None);
    let refused = engine.cosign(&reader, batch.clone(), line).await;
    assert!(
        matches!(refused, Err(Refused::PermissionDenied { .. })),
        "{refused:?}"
    );
    let bound = bound_to(&["*"], Some(vec!["ws_local".to_owned()]));
    let refused = engine.cosign(&bound, batch.clone(), line).await;
    let hidden = Refused::Domain(Refusal::NotFound {
        object: ResourceKind::Batch.object(),
        param: None,
    });
    assert_eq!(refused.unwrap_err().to_string(), hidden.to_string());
    let free = bound_to(&["*"], None);
    let refused = engine.cosign(&free, batch.clone(), line).await;
    assert!(
        matches!(
            refused,
            Err(Refused::Domain(Refusal::Invalid { param: "line", .. }))
        ),
        "{refused:?}"
    );
    engine.drain().await;
    let refused = engine.cosign(&free, batch, line).await;
    assert!(matches!(refused, Err(Refused::Draining)), "{refused:?}");
    let refused = engine.put_secret(&free, "vault_local", "a", "b").await;
    assert!(matches!(refused, Err(Refused::Draining)), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tasks_of_one_session_that_finish_at_once_get_one_chain() {
    let engine = engine_on(store()).await;
    let session = new_session(&engine).await;
    let other = new_session(&engine).await;
    let mut running = Vec::new();
    for number in 0..24 {
        let session = if number % 4 == 0 { &other } else { &session };
        let (engine, request) = (engine.clone(), task_request(session, "agent", "hello"));
        running.push(tokio::spawn(async move {
            write(&engine, request).await.unwrap()
        }));
    }
    for task in running {
        let id = TaskId::parse(&task.await.unwrap().view.document.id).unwrap();
        reach(&engine, &id, Status::Completed).await;
    }
    let (first, second) = (
        receipts_of(&engine, &session).await,
        receipts_of(&engine, &other).await,
    );
    assert_eq!((first.len(), second.len()), (18, 6));
    assert_chain(&first, None);
    assert_chain(&second, None);
    for (id, _) in first.iter().chain(&second) {
        let (valid, reason, details) = verdict(&engine, id).await;
        assert!(valid, "{reason:?} {details}");
    }
}

#[tokio::test]
async fn a_forked_session_goes_on_from_the_parents_last_receipt() {
    let engine = engine_on(store()).await;
    let session = new_session(&engine).await;
    for _ in 0..2 {
        write(&engine, task_request(&session, "agent", "hello"))
            .await
            .unwrap();
    }
    let parent = receipts_of(&engine, &session).await;
    assert_chain(&parent, None);
    let fork = Request::ForkSession {
        id: session.clone(),
        at_event_id: None,
        branch_id: None,
        metadata: Map::new(),
    };
    let fork = write(&engine, fork).await.unwrap().view.document.id;
    let fork = SessionId::parse(&fork).unwrap();
    // The parent goes on by itself.
    write(&engine, task_request(&session, "agent", "hello"))
        .await
        .unwrap();
    for _ in 0..2 {
        write(&engine, task_request(&fork, "agent", "hello"))
            .await
            .unwrap();
    }
    let forked = receipts_of(&engine, &fork).await;
    assert_eq!(forked.len(), 2);
    assert_chain(&forked, Some(parent[1].1.hash()));
    assert_chain(&receipts_of(&engine, &session).await, None);
    for (id, _) in &forked {
        let (valid, reason, _) = verdict(&engine, id).await;
        assert!(valid, "{reason:?}");
    }
}

/// A clock that goes backwards by an hour with each look.
#[derive(Debug)]
struct Backwards(AtomicI64);

impl Clock for Backwards {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.fetch_sub(3_600_000_000, Ordering::Relaxed))
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
}

#[tokio::test]
async fn a_clock_that_steps_back_breaks_no_chain() {
    let parts = Parts {
        clock: Arc::new(Backwards(AtomicI64::new(1_800_000_000_000_000))),
        ..parts(store())
    };
    let engine = Engine::start(parts).await.unwrap();
    let session = new_session(&engine).await;
    for _ in 0..3 {
        let answer = write(&engine, task_request(&session, "agent", "hello"))
            .await
            .unwrap();
        let id = TaskId::parse(&answer.view.document.id).unwrap();
        reach(&engine, &id, Status::Completed).await;
    }
    let receipts = receipts_of(&engine, &session).await;
    assert!(receipts[0].1.issued_at() > receipts[2].1.issued_at());
    assert_chain(&receipts, None);
    for (id, receipt) in &receipts {
        let consumed = &receipt.as_map()["autonomy_budget"]["consumed"];
        assert_eq!(consumed["wall_time_ms"], 0, "no negative time");
        let (valid, reason, _) = verdict(&engine, id).await;
        assert!(valid, "{reason:?}");
    }
}

/// Puts other bytes where a receipt's are.
async fn replace(store: &MemoryStore, content: Digest, bytes: Vec<u8>) {
    let blob = Blob {
        digest: content,
        bytes,
    };
    store.put_blob(blob).await.unwrap();
}

fn content_of(view: &engine::View) -> Digest {
    match &view.document.state {
        State::Receipt(receipt) => receipt.content,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn every_flipped_byte_of_a_stored_receipt_is_seen() {
    let store = store();
    let engine = engine_on(Arc::clone(&store) as Arc<dyn Store>).await;
    let (session, _, _) = submit(&engine, "agent").await;
    let (id, receipt) = receipts_of(&engine, &session).await.remove(0);
    let form = engine.receipt(&Caller::system(), &id).await.unwrap();
    let content = content_of(&form.view);
    let bytes = receipt.bytes();
    let mut reasons = std::collections::BTreeSet::new();
    for at in 0..bytes.len() {
        // One bit of each byte, another one from byte to byte.
        let mut changed = bytes.clone();
        changed[at] ^= 1 << (at % 8);
        replace(&store, content, changed).await;
        let (valid, reason, details) = verdict(&engine, &id).await;
        assert!(!valid, "byte {at} {:?}: {details}", bytes[at] as char);
        reasons.insert(reason.unwrap());
    }
    for code in [
        "schema_invalid",
        "receipt_hash_mismatch",
        "signature_invalid",
        "key_unknown",
    ] {
        assert!(reasons.contains(code), "{reasons:?}");
    }
    // What the hash does not cover is compared with the digest it is stored under.
    let signatures = receipt.as_map()["signatures"].as_array().unwrap();
    for (signatures, code) in [
        (Vec::new(), "signature_missing"),
        (
            [signatures.clone(), signatures.clone()].concat(),
            "content_mismatch",
        ),
    ] {
        let mut resigned = receipt.as_map().clone();
        resigned["signatures"] = Value::Array(signatures);
        replace(&store, content, canon::jcs(&Value::Object(resigned))).await;
        let (valid, reason, _) = verdict(&engine, &id).await;
        assert_eq!((valid, reason.as_deref()), (false, Some(code)));
    }
    replace(&store, content, bytes).await;
    assert!(verdict(&engine, &id).await.0);
}

#[tokio::test]
async fn a_restart_reads_the_tree_and_hashes_nothing_again() {
    let store = store();
    let engine = engine_on(Arc::clone(&store) as Arc<dyn Store>).await;
    let session = new_session(&engine).await;
    for _ in 0..5 {
        write(&engine, task_request(&session, "agent", "hello"))
            .await
            .unwrap();
    }
    let (id, _) = receipts_of(&engine, &session).await.remove(0);
    let before = engine.receipt_proof(&Caller::system(), &id).await.unwrap();
    let tree = store.tree().await.unwrap();
    engine.drain().await;

    let store = Arc::new(store.reopened());
    let engine = engine_on(Arc::clone(&store) as Arc<dyn Store>).await;
    assert_eq!(store.tree().await.unwrap(), tree);
    write(&engine, task_request(&session, "agent", "hello"))
        .await
        .unwrap();
    let receipts = receipts_of(&engine, &session).await;
    let (last, receipt) = receipts.last().unwrap();
    let proof = engine.receipt_proof(&Caller::system(), last).await.unwrap();
    assert_eq!(proof.leaf_index, 5);
    let leaf = merkle::leaf(&receipt.hash());
    assert!(merkle::verify_inclusion(
        &leaf,
        5,
        proof.size,
        &proof.path,
        &proof.root
    ));
    let path = engine
        .prove_consistency(before.size, proof.size)
        .await
        .unwrap();
    assert!(merkle::verify_consistency(
        before.size,
        proof.size,
        &before.root,
        &proof.root,
        &path
    ));
    // Every leaf is there once: what was appended is six, what is stored is six.
    assert_eq!(store.leaves(0, 100).await.unwrap().len(), 6);
}

#[tokio::test]
async fn a_receipt_that_got_no_leaf_before_the_crash_gets_it_after() {
    let store = store();
    let engine = engine_on(Arc::clone(&store) as Arc<dyn Store>).await;
    let (session, _, _) = submit(&engine, "agent").await;
    // As a kill right after the commit leaves it, whether or not the tree has caught up by then.
    let store = Arc::new(store.reopened());
    let engine = engine_on(Arc::clone(&store) as Arc<dyn Store>).await;
    let (id, receipt) = receipts_of(&engine, &session).await.remove(0);
    let proof = engine.receipt_proof(&Caller::system(), &id).await.unwrap();
    assert_eq!(proof.leaf_index, 0);
    assert_eq!(proof.receipt_hash, receipt.hash());
    assert_eq!(store.leaves(0, 100).await.unwrap(), [receipt.hash()]);
}

fn change(document: &mut Document, what: impl FnOnce(&mut domain::Receipt)) {
    match &mut document.state {
        State::Receipt(receipt) => what(receipt),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn the_predecessor_is_looked_up_by_its_id_and_its_loss_and_change_are_told_apart() {
    let store = store();
    let engine = engine_on(Arc::clone(&store) as Arc<dyn Store>).await;
    let session = new_session(&engine).await;
    for _ in 0..3 {
        write(&engine, task_request(&session, "agent", "hello"))
            .await
            .unwrap();
    }
    let receipts = receipts_of(&engine, &session).await;
    let (before, id) = (receipts[1].0.clone(), receipts[2].0.clone());
    let document = |id: &str| store.documents(vec![id.into()]);
    let found = document(&id).await.unwrap().remove(0).unwrap();
    let State::Receipt(state) = &found.state else {
        panic!("{found:?}")
    };
    let previous = state.previous_id.as_ref().map(ToString::to_string);
    assert_eq!(previous, Some(before.clone()));
    assert!(verdict(&engine, &id).await.0);

    // Another hash than the one named.
    let mut changed = document(&before).await.unwrap().remove(0).unwrap();
    let sound = changed.clone();
    change(&mut changed, |receipt| {
        receipt.receipt_hash = canon::sha256(b"another");
    });
    store.damage(&before, Some(changed));
    let (valid, reason, _) = verdict(&engine, &id).await;
    assert_eq!((valid, reason.as_deref()), (false, Some("chain_mismatch")));
    // Gone.
    store.damage(&before, None);
    let (valid, reason, _) = verdict(&engine, &id).await;
    let expected = (false, Some("previous_receipt_missing"));
    assert_eq!((valid, reason.as_deref()), expected);
    store.damage(&before, Some(sound));
    assert!(verdict(&engine, &id).await.0);
}

/// Fails with whatever it was given.
#[derive(Debug)]
struct Leaky;

impl Workflow for Leaky {
    fn name(&self) -> &'static str {
        "leaky"
    }

    fn version(&self) -> &'static str {
        "1"
    }

    fn description(&self) -> &'static str {
        "Fails with a credential in its message."
    }

    fn begin(&self, _: &Start) -> Box<dyn Machine> {
        Box::new(Fails)
    }
}

struct Fails;

impl Machine for Fails {
    fn step(&mut self, _: &[EffectAnswer]) -> Step {
        Step::Failed {
            notes: Vec::new(),
            code: "refused".to_owned(),
            message: "the tool said: Bearer abcdefgh12345678".to_owned(),
            details: Map::new(),
        }
    }
}

#[tokio::test]
async fn ap_rcpt_09_a_planted_secret_is_not_in_the_receipt() {
    let mut workflows = builtin();
    workflows.push(Arc::new(Leaky));
    let parts = Parts {
        clock: Arc::new(Backwards(AtomicI64::new(1_800_000_000_000_000))),
        workflows: Registry::new(workflows),
        ..parts(store())
    };
    let engine = Engine::start(parts).await.unwrap();
    let session = new_session(&engine).await;
    let answer = write(&engine, task_request(&session, "leaky", "hello"))
        .await
        .unwrap();
    let task = TaskId::parse(&answer.view.document.id).unwrap();
    reach(&engine, &task, Status::Failed).await;
    let (id, receipt) = receipts_of(&engine, &session).await.remove(0);
    let text = String::from_utf8(receipt.bytes()).unwrap();
    assert!(!text.contains("abcdefgh12345678"), "{text}");
    let failure = &receipt.as_map()["lifecycle"]["failure"];
    assert_eq!(failure["message"], "redacted");
    assert_eq!(failure["code"], "refused");
    let redaction = &receipt.as_map()["redactions"][0];
    assert_eq!(redaction["field"], "/lifecycle/failure/message");
    assert!(verdict(&engine, &id).await.0);
}
