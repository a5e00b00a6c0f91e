//! Receipts over HTTP: both forms, verdicts, proofs, heads, and the public log.

use canon::{Digest, sha256};
use engine::port::BlobStore;
use receipts::note::{Checkpoint, KeyUse, Note, NoteKey, SignatureLine};
use receipts::{KeySet, Receipt, Signer, cbor, merkle, tiles};
use serde_json::{Value, json};

use crate::fixture::{Api, Server, id, key, refused};

/// Runs a task to its end and returns it with its receipt.
async fn finished(api: &Api, session: &str) -> (Value, Value) {
    let task = id(&api.task(session, "agent").await);
    let task = api.wait_for(&task, "COMPLETED").await;
    let path = format!("/v1/tasks/{}/receipts", id(&task));
    let (status, list) = api.get(&path).await;
    assert_eq!(status, 200, "{list}");
    (task, list["data"][0].clone())
}

async fn started() -> (Server, Api, Value, Value) {
    let server = Server::start().await;
    let api = server.client();
    let session = api.session().await;
    let (task, receipt) = finished(&api, &session).await;
    (server, api, task, receipt)
}

async fn bytes(api: &Api, path: &str, accept: Option<&str>) -> (u16, String, Vec<u8>) {
    let mut request = api.request("GET", path);
    if let Some(accept) = accept {
        request = request.header("accept", accept);
    }
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    let media_type = response.headers()["content-type"].to_str().unwrap();
    let media_type = media_type.to_owned();
    (status, media_type, response.bytes().await.unwrap().to_vec())
}

fn digest(value: &Value) -> Digest {
    Digest::parse(value.as_str().unwrap()).unwrap()
}

#[tokio::test]
async fn ap_rcpt_04_and_06_a_finished_task_refers_to_a_receipt_that_is_listed_and_read() {
    let (_server, api, task, listed) = started().await;
    let receipt = id(&listed);
    assert_eq!(task["receipt_id"], *receipt);
    let (_, outcome) = api
        .get(&format!(
            "/v1/outcomes/{}",
            task["outcome_id"].as_str().unwrap()
        ))
        .await;
    assert_eq!(outcome["receipt_id"], *receipt);
    let (status, read) = api.get(&format!("/v1/receipts/{receipt}")).await;
    assert_eq!(status, 200);
    assert_eq!(read, listed);
    assert_eq!(read["object"], "receipt");
    assert_eq!(read["format"], "receipt-2026-04-25");
    assert_eq!(read["subject"], json!({"object": "task", "id": task["id"]}));
    assert_eq!(read["verification"], Value::Null);
    let (_, events) = api
        .get(&format!("/v1/tasks/{}/events?limit=200", id(&task)))
        .await;
    let issued = events["data"].as_array().unwrap().last().unwrap();
    assert_eq!(issued["event"], "receipt.issued");
    assert_eq!(issued["receipt_id"], *receipt);
}

#[tokio::test]
async fn ap_rcpt_04_an_artifact_of_the_task_names_the_receipt_unless_it_came_after() {
    let server = Server::start().await;
    let api = server.client();
    let session = api.session().await;
    let task = id(&api.task(&session, "ask").await);
    api.wait_for(&task, "INPUT_REQUIRED").await;
    let register = |name: &str| {
        json!({"kind": "file", "mime_type": "text/plain", "visibility": "public", "task_id": task,
               "session_id": session, "workspace_id": "workspace_local", "uri": format!("file:///{name}")})
    };
    let (status, before) = api.post("/v1/artifacts", register("a")).await;
    assert_eq!(status, 201, "{before}");
    assert_eq!(before["receipt_id"], Value::Null);
    let content = format!("/v1/artifacts/{}/content", id(&before));
    let upload = api.request("PUT", &content).body("what was made");
    let (status, _) = api.send(upload).await;
    assert_eq!(status, 200);
    let (_, empty) = api.post("/v1/artifacts", register("b")).await;
    api.post(&format!("/v1/tasks/{task}/cancel"), json!({}))
        .await;
    let task = api.wait_for(&task, "CANCELED").await;
    let (_, before) = api.get(&format!("/v1/artifacts/{}", id(&before))).await;
    assert_eq!(before["receipt_id"], task["receipt_id"]);
    let path = format!("/v1/receipts/{}", task["receipt_id"].as_str().unwrap());
    let (_, receipt) = api.get(&path).await;
    let listed = receipt["final_artifacts"].as_array().unwrap();
    let listed = listed
        .iter()
        .find(|artifact| artifact["artifact_id"] == before["id"]);
    let digest = sha256(b"what was made");
    assert_eq!(
        listed.unwrap()["sha256"],
        json!(digest),
        "of what was uploaded"
    );
    // What comes after the end changes neither the sealed log nor the receipt.
    let content = format!("/v1/artifacts/{}/content", id(&empty));
    let (status, _) = api.send(api.request("PUT", &content).body("late")).await;
    assert_eq!(status, 200);
    assert_eq!(api.get(&path).await.1, receipt);
    let (_, after) = api.post("/v1/artifacts", register_of(&task)).await;
    assert_eq!(after["receipt_id"], Value::Null, "it came after the end");

    // A stored content that changed is a verdict.
    let (_, verdict) = api.post(&format!("{path}/verify"), json!({})).await;
    assert_eq!(verdict["valid"], true, "{verdict}");
    let other = domain::Blob {
        digest,
        bytes: b"what was not made".to_vec(),
    };
    server.store.put_blob(other).await.unwrap();
    let (_, verdict) = api.post(&format!("{path}/verify"), json!({})).await;
    assert_eq!(verdict["reason"], "material_mismatch", "{verdict}");
}

fn register_of(task: &Value) -> Value {
    json!({"kind": "file", "mime_type": "text/plain", "visibility": "public", "task_id": task["id"]})
}

#[tokio::test]
async fn ap_rcpt_01_03_and_11_the_bare_form_is_what_was_hashed_in_json_and_cbor() {
    let (_server, api, _, receipt) = started().await;
    let path = format!("/v1/receipts/{}", id(&receipt));
    let (status, media_type, by_view) = bytes(&api, &format!("{path}?view=wire"), None).await;
    assert_eq!(status, 200);
    let expected = "application/vnd.harn.receipt+json; schema=receipt-2026-04-25";
    assert_eq!(media_type, expected);
    let accept = "application/vnd.harn.receipt+json; schema=receipt-2026-04-25, */*";
    let (_, _, by_accept) = bytes(&api, &path, Some(accept)).await;
    assert_eq!(by_view, by_accept);
    let bare = Receipt::read(&by_view).unwrap();
    assert_eq!(bare.bytes(), by_view, "canonical");
    assert_eq!(bare.stated_hash(), Some(bare.hash()));
    assert_eq!(
        Value::Object(bare.as_map().clone()),
        receipt["wire"]["payload"]
    );
    let accept = "application/vnd.harn.receipt+cbor";
    let (_, media_type, archive) = bytes(&api, &path, Some(accept)).await;
    assert_eq!(
        media_type,
        "application/vnd.harn.receipt+cbor; schema=receipt-2026-04-25"
    );
    assert_eq!(cbor::read(&archive).unwrap(), bare);
    let got = api.get(&format!("{path}?view=thin")).await;
    refused(&got, 400, "invalid_request", Some("view"));
}

#[tokio::test]
async fn ap_rcpt_07_and_12_a_verification_answers_200_and_is_recorded() {
    let (_server, api, task, receipt) = started().await;
    let path = format!("/v1/receipts/{}", id(&receipt));
    let verify = format!("{path}/verify");
    let (status, verdict) = api.post(&verify, json!({})).await;
    assert_eq!(status, 200, "{verdict}");
    assert_eq!(verdict["object"], "receipt_verification");
    assert_eq!(verdict["valid"], true, "{verdict}");
    assert_eq!(verdict["reason"], Value::Null);
    assert_eq!(verdict["receipt_id"], receipt["id"]);
    assert_eq!(verdict["details"]["signatures"], "valid");
    assert_eq!(verdict["details"]["materials"]["unavailable"], json!([]));
    assert!(verdict["details"]["merkle"]["batch_id"].is_string());
    let (_, shown) = api.get(&path).await;
    assert_eq!(shown["verification"], verdict);

    let anchor = json!({"trust_anchor": "key_other"});
    let (status, verdict) = api.post(&verify, anchor).await;
    assert_eq!(status, 200);
    assert_eq!(verdict["valid"], false);
    assert_eq!(verdict["reason"], "untrusted_anchor");
    let (_, verdict) = api.post(&verify, json!({"trust_anchor": "key_test"})).await;
    assert_eq!(verdict["valid"], true, "{verdict}");

    let (_, events) = api
        .get(&format!(
            "/v1/sessions/{}/events?limit=200",
            task["session_id"].as_str().unwrap()
        ))
        .await;
    let recorded: Vec<&Value> = events["data"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|event| event["event"].as_str().unwrap().starts_with("receipt.v"))
        .collect();
    let kinds: Vec<&str> = recorded
        .iter()
        .map(|event| event["event"].as_str().unwrap())
        .collect();
    assert_eq!(
        kinds,
        [
            "receipt.verified",
            "receipt.verification_failed",
            "receipt.verified"
        ]
    );
    for event in recorded {
        assert_eq!(event["task_id"], Value::Null, "the log of a task is sealed");
        assert_eq!(event["resource"]["id"], receipt["id"]);
    }
    for (body, param) in [
        (json!({"at_time": "yesterday"}), "at_time"),
        (json!({"trust_anchor": 7}), "trust_anchor"),
    ] {
        refused(
            &api.post(&verify, body).await,
            400,
            "invalid_request",
            Some(param),
        );
    }
    let got = api
        .post("/v1/receipts/receipt_none/verify", json!({}))
        .await;
    refused(&got, 404, "resource_not_found", None);
}

#[tokio::test]
async fn a_repeated_verification_is_the_stored_answer() {
    let (_server, api, _, receipt) = started().await;
    let verify = format!("/v1/receipts/{}/verify", id(&receipt));
    let first = api.post_with_key(&verify, "k1", json!({})).await;
    let other = api.post_with_key(&verify, "k2", json!({})).await;
    let again = api.post_with_key(&verify, "k1", json!({})).await;
    assert_eq!(first, again);
    assert_ne!(first.1["checked_at"], other.1["checked_at"]);
    let reused = api
        .post_with_key(&verify, "k1", json!({"trust_anchor": "x"}))
        .await;
    assert_eq!(reused.1["error"]["code"], "idempotency_key_reused");
}

#[tokio::test]
async fn ap_rcpt_14_foreign_receipts_are_judged_in_every_form() {
    let (_server, api, _, receipt) = started().await;
    let path = format!("/v1/receipts/{}?view=wire", id(&receipt));
    let (_, _, bare) = bytes(&api, &path, None).await;
    let post = async |body: Vec<u8>, media_type: &str| {
        let request = api.request("POST", "/v1/receipts/verify");
        let request = request.header("content-type", media_type).body(body);
        api.send(request).await
    };
    let json_type = "application/json";
    let archive = cbor::write(&Receipt::read(&bare).unwrap());
    for (body, media_type) in [
        (bare.clone(), json_type),
        (receipt.to_string().into_bytes(), json_type),
        (archive, "application/vnd.harn.receipt+cbor"),
    ] {
        let (status, verdict) = post(body, media_type).await;
        assert_eq!(status, 200, "{verdict}");
        assert_eq!(verdict["valid"], true, "{verdict}");
        assert_eq!(verdict["receipt_id"], receipt["id"]);
    }
    let text = String::from_utf8(bare.clone()).unwrap();
    let cases = [
        ("{".to_owned(), "schema_invalid"),
        (text.replacen('{', r#"{"schema":"x","#, 1), "schema_invalid"),
        (text.replacen('{', r#"{"extra":1,"#, 1), "schema_invalid"),
        (text.replace("SUCCEEDED", "FAILED"), "receipt_hash_mismatch"),
        (text.replace("ed25519", "none"), "algorithm_unsupported"),
        (
            text.replace(r#""key_id":"key_test""#, r#""key_id":"key_who""#),
            "key_unknown",
        ),
        (text.replace("base64:", "base64: "), "signature_invalid"),
    ];
    for (body, code) in cases {
        assert_ne!(body, text, "{code}");
        let (status, verdict) = post(body.into_bytes(), json_type).await;
        assert_eq!(status, 200, "{verdict}");
        assert_eq!(verdict["valid"], false);
        assert_eq!(verdict["reason"], code, "{verdict}");
    }
    let rooted = {
        let root = sha256(b"nobody's root");
        let mut map = Receipt::read(&bare).unwrap().as_map().clone();
        map["chain"]["merkle_root"] = json!(root);
        map["signatures"] = json!([]);
        let hash = Receipt::from_map(map.clone()).unwrap().hash();
        map["chain"]["receipt_hash"] = json!(hash);
        canon::jcs(&Value::Object(map))
    };
    let (_, verdict) = post(rooted, json_type).await;
    assert_eq!(verdict["reason"], "merkle_batch_unknown", "{verdict}");

    let mut changed = receipt.clone();
    changed["lifecycle"]["final_state"] = json!("FAILED");
    let got = post(changed.to_string().into_bytes(), json_type).await;
    refused(&got, 400, "invalid_request", Some("wire.payload"));
    for body in [&b"\xff\xff"[..], b"\x9f\xff"] {
        let got = post(body.to_vec(), "application/vnd.harn.receipt+cbor").await;
        refused(&got, 400, "invalid_request", None);
    }
    let (status, verdict) = post(b"\xff\xff".to_vec(), json_type).await;
    assert_eq!(
        (status, &verdict["reason"]),
        (200, &json!("schema_invalid"))
    );
    let deep = format!("{}1{}", "[".repeat(5_000), "]".repeat(5_000));
    let (_, verdict) = post(format!(r#"{{"metadata":{deep}}}"#).into_bytes(), json_type).await;
    assert_eq!(verdict["reason"], "schema_invalid");
}

/// Content changed and hash recomputed: without a signature, and signed by this server's own key under an id that it
/// gave to another receipt.
#[tokio::test]
async fn a_forged_receipt_is_not_valid_on_the_server_that_issued_the_true_one() {
    let (_server, api, _, receipt) = started().await;
    let path = format!("/v1/receipts/{}?view=wire", id(&receipt));
    let (_, _, bare) = bytes(&api, &path, None).await;
    let judge = async |body: Vec<u8>, query: &str| {
        let request = api.request("POST", &format!("/v1/receipts/verify{query}"));
        let request = request.header("content-type", "application/json");
        let (status, verdict) = api.send(request.body(body)).await;
        assert_eq!(status, 200, "{verdict}");
        verdict
    };
    let verdict = judge(bare.clone(), "").await;
    assert_eq!(verdict["valid"], true, "{verdict}");
    assert_eq!(verdict["details"]["signed_by"], json!(["key_test"]));
    assert_eq!(verdict["details"]["whole"], true);
    let checks = verdict["details"]["checks"].as_array().unwrap();
    assert!(checks.contains(&json!({"name": "stored", "ok": true})));

    let mut map = Receipt::read(&bare).unwrap().as_map().clone();
    map["lifecycle"]["final_state"] = json!("FAILED");
    map["signatures"] = json!([]);
    let hash = Receipt::from_map(map.clone()).unwrap().hash();
    map["chain"]["receipt_hash"] = json!(hash);
    let unsigned = canon::jcs(&Value::Object(map.clone()));
    let verdict = judge(unsigned.clone(), "").await;
    assert_eq!(verdict["valid"], false, "{verdict}");
    assert_eq!(verdict["reason"], "signature_missing");
    assert_eq!(verdict["details"]["signed_by"], json!([]));
    let codes = |verdict: &Value| -> Vec<String> {
        let checks = verdict["details"]["checks"].as_array().unwrap().iter();
        checks
            .filter_map(|check| Some(check["code"].as_str()?.to_owned()))
            .collect()
    };
    assert_eq!(
        codes(&verdict),
        ["signature_missing", "receipt_id_conflict"]
    );
    // Integrity alone can be asked for, and is not called valid.
    map["receipt_id"] = json!("receipt_elsewhere");
    let hash = Receipt::from_map(map.clone()).unwrap().hash();
    map["chain"]["receipt_hash"] = json!(hash);
    let elsewhere = canon::jcs(&Value::Object(map.clone()));
    let verdict = judge(elsewhere, "?integrity_only=true").await;
    assert_eq!(verdict["valid"], false, "{verdict}");
    assert_eq!(verdict["reason"], Value::Null);
    assert_eq!(verdict["details"]["whole"], true);
    let skipped = verdict["details"]["skipped"].as_array().unwrap();
    for name in ["signatures", "stored"] {
        assert!(skipped.contains(&json!(name)), "{name}: {verdict}");
    }
    let wrong = api
        .post("/v1/receipts/verify?integrity_only=1", json!({}))
        .await;
    refused(&wrong, 400, "invalid_request", Some("integrity_only"));

    let signer = receipts::Signer::new("key_test", &[9; 32]);
    let signed = Receipt::read(&unsigned).unwrap().signed(&signer).bytes();
    let verdict = judge(signed, "").await;
    assert_eq!(verdict["valid"], false, "{verdict}");
    assert_eq!(verdict["reason"], "receipt_id_conflict");
    assert_eq!(verdict["details"]["signed_by"], json!(["key_test"]));
}

#[tokio::test]
async fn a_proof_leads_to_a_signed_head_and_heads_prove_each_other() {
    let (_server, api, task, receipt) = started().await;
    let session = task["session_id"].as_str().unwrap();
    let path = format!("/v1/receipts/{}/proof", id(&receipt));
    let (status, proof) = api.get(&path).await;
    assert_eq!(status, 200, "{proof}");
    assert_eq!(proof["leaf_index"], 0);
    assert_eq!(proof["receipt_hash"], receipt["chain"]["receipt_hash"]);
    for _ in 0..2 {
        finished(&api, session).await;
    }
    let (_, second) = finished(&api, session).await;
    let path = format!("/v1/receipts/{}/proof", id(&second));
    let (_, proof) = api.get(&path).await;
    let path: Vec<Digest> = proof["path"]
        .as_array()
        .unwrap()
        .iter()
        .map(digest)
        .collect();
    let leaf = merkle::leaf(&digest(&proof["receipt_hash"]));
    let (index, size) = (proof["leaf_index"].as_u64(), proof["tree_size"].as_u64());
    let (index, size) = (index.unwrap(), size.unwrap());
    assert!(merkle::verify_inclusion(
        &leaf,
        index,
        size,
        &path,
        &digest(&proof["root"])
    ));
    let note = Note::read(proof["checkpoint"].as_str().unwrap().as_bytes()).unwrap();
    let checkpoint = Checkpoint::read(note.text()).unwrap();
    assert_eq!(
        (checkpoint.size, checkpoint.root),
        (size, digest(&proof["root"]))
    );

    let (_, list) = api.get("/v1/receipt-batches").await;
    let batches = list["data"].as_array().unwrap();
    assert!(batches.len() >= 2, "{list}");
    let (first, last) = (&batches[0], &batches[batches.len() - 1]);
    assert_eq!(first["previous_root"], Value::Null);
    assert_eq!(batches[1]["previous_root"], first["root"]);
    assert_eq!(last["id"], proof["batch_id"]);
    let (_, one) = api.get(&format!("/v1/receipt-batches/{}", id(last))).await;
    assert_eq!(one, *last);
    for (from, to) in [
        (id(first), id(last)),
        (first["size"].to_string(), last["size"].to_string()),
    ] {
        let path = format!("/v1/receipt-batches/consistency?from={from}&to={to}");
        let (status, proof) = api.get(&path).await;
        assert_eq!(status, 200, "{proof}");
        let path: Vec<Digest> = proof["path"]
            .as_array()
            .unwrap()
            .iter()
            .map(digest)
            .collect();
        let size = |batch: &Value| batch["size"].as_u64().unwrap();
        assert!(merkle::verify_consistency(
            size(first),
            size(last),
            &digest(&first["root"]),
            &digest(&last["root"]),
            &path
        ));
    }
    for (query, param) in [
        ("", "from"),
        ("?from=1", "to"),
        ("?from=1&to=99", "from"),
        ("?from=3&to=1", "from"),
    ] {
        let got = api
            .get(&format!("/v1/receipt-batches/consistency{query}"))
            .await;
        refused(&got, 400, "invalid_request", Some(param));
    }
    let got = api
        .get("/v1/receipt-batches/consistency?from=batch_x&to=1")
        .await;
    assert_eq!(got.0, 404);
}

#[tokio::test]
async fn a_witness_signs_a_head_and_everyone_sees_it() {
    let (server, api, _, receipt) = started().await;
    let (_, proof) = api
        .get(&format!("/v1/receipts/{}/proof", id(&receipt)))
        .await;
    let path = format!(
        "/v1/receipt-batches/{}/cosignatures",
        proof["batch_id"].as_str().unwrap()
    );
    let text = proof["checkpoint"].as_str().unwrap();
    let note = Note::read(text.as_bytes()).unwrap();
    // A witness signs the text under its own name, and is known here.
    let witness = Signer::new("w", &[3; 32]);
    let mut own = Note::new(note.text()).unwrap();
    own.sign("witness.example", &witness).unwrap();
    let line = own.signatures()[0].write();
    let got = api.post(&path, json!({"line": line})).await;
    refused(&got, 400, "invalid_request", Some("line"));
    let key = NoteKey::new("witness.example", KeyUse::Note, witness.public()).unwrap();
    server.engine.set_witnesses(vec![key.clone()]);
    // Neither junk under its name, nor anything under the log's: that would make the checkpoint unverifiable for good.
    let of_other = |name: &str, signer: &Signer| {
        let mut other = Note::new("another head\n").unwrap();
        other.sign(name, signer).unwrap();
        other.signatures()[0].write()
    };
    let log = Signer::new("key_test", &[9; 32]);
    let own_key = NoteKey::new("harness_test/receipts", KeyUse::Note, log.public()).unwrap();
    for bad in [
        of_other("witness.example", &witness),
        of_other("harness_test/receipts", &log),
        of_other("stranger.example", &witness),
    ] {
        let got = api.post(&path, json!({"line": bad})).await;
        refused(&got, 400, "invalid_request", Some("line"));
    }
    let (status, batch) = api.post(&path, json!({"line": line})).await;
    assert_eq!(status, 200, "{batch}");
    assert_eq!(batch["cosignatures"], json!([line]));
    let (_, again) = api.post(&path, json!({"line": line})).await;
    assert_eq!(again["cosignatures"], json!([line]), "once");
    let served = server
        .client()
        .http
        .get(format!("{}/tlog/checkpoint", server.url));
    let served = served.send().await.unwrap().bytes().await.unwrap();
    let served = Note::read(&served).unwrap();
    assert!(
        served
            .signatures()
            .contains(&SignatureLine::parse(&line).unwrap())
    );
    served.verify(&key).unwrap();
    served.verify(&own_key).unwrap();
    for body in [json!({}), json!({"line": "no line"}), json!({"line": 1})] {
        assert_eq!(api.post(&path, body).await.0, 400);
    }
    let got = api
        .post(
            "/v1/receipt-batches/batch_x/cosignatures",
            json!({"line": line}),
        )
        .await;
    refused(&got, 404, "resource_not_found", None);
    server.add_key(key_of("reader", &["*:read"])).await;
    let got = server
        .client_with("reader")
        .post(&path, json!({"line": line}))
        .await;
    refused(&got, 403, "permission_denied", None);
}

fn key_of(name: &str, scopes: &[&str]) -> engine::port::ApiKey {
    key(name, name, scopes, None)
}

#[tokio::test]
async fn the_log_is_public_in_the_tile_layout() {
    let (server, api, task, _) = started().await;
    let session = task["session_id"].as_str().unwrap();
    let (_, last) = finished(&api, session).await;
    let (_, proof) = api.get(&format!("/v1/receipts/{}/proof", id(&last))).await;
    let open = async |path: &str| {
        let response = api
            .http
            .get(format!("{}{path}", server.url))
            .send()
            .await
            .unwrap();
        let status = response.status().as_u16();
        let cache = response.headers()["cache-control"]
            .to_str()
            .unwrap()
            .to_owned();
        (status, cache, response.bytes().await.unwrap().to_vec())
    };
    let (status, _, jwks) = open("/.well-known/jwks.json").await;
    assert_eq!(status, 200);
    let keys = KeySet::from_jwks(&jwks).unwrap();
    assert_eq!(keys.keys()[0].key_id, "key_test");
    let (_, card) = api.get("/v1/agent-card").await;
    assert_eq!(card["receipt_keys"][0]["kid"], "key_test");
    assert_eq!(card["receipt_policy"], "required");
    let (_, _, checkpoint) = open("/tlog/checkpoint").await;
    assert_eq!(checkpoint, proof["checkpoint"].as_str().unwrap().as_bytes());
    let note = Note::read(&checkpoint).unwrap();
    let head = Checkpoint::read(note.text()).unwrap();
    let note_key = NoteKey::new(&head.origin, KeyUse::Note, keys.keys()[0].bytes).unwrap();
    note.verify(&note_key).unwrap();
    let size = head.size;
    let (status, cache, tile) = open(&format!("/tlog/tile/0/000.p/{size}")).await;
    assert_eq!(status, 200);
    assert!(!cache.contains("immutable"), "{cache}");
    let frontier = tiles::frontier(|_| Some(tile.clone()), size).unwrap();
    assert_eq!(frontier.root(), head.root);
    let (status, _, entries) = open(&format!("/tlog/tile/entries/000.p/{size}")).await;
    assert_eq!(status, 200);
    let mut hashes = entries.chunks(34).map(|entry| {
        assert_eq!(&entry[..2], [0, 32]);
        Digest::from_bytes(entry[2..].try_into().unwrap())
    });
    assert_eq!(
        hashes.next_back(),
        Some(digest(&last["chain"]["receipt_hash"]))
    );
    for path in [
        "/tlog/tile/0/000",
        "/tlog/tile/1/000",
        "/tlog/tile/0/0",
        "/tlog/tile/x",
        "/tlog/tile/0/000.p/0",
        "/tlog/tile/entries/001.p/1",
    ] {
        assert_eq!(open(path).await.0, 404, "{path}");
    }
    let (status, _, schema) = open("/schemas/receipt-2026-04-25.schema.json").await;
    assert_eq!(status, 200);
    assert!(serde_json::from_slice::<Value>(&schema).unwrap()["properties"].is_object());
}

#[tokio::test]
async fn the_event_log_of_a_task_hashes_to_the_first_material() {
    let (server, api, task, receipt) = started().await;
    let material = &receipt["replay_input"]["materials"][0];
    let name = material["uri"]
        .as_str()
        .unwrap()
        .strip_prefix("artifact://")
        .unwrap();
    assert_eq!(name, format!("event_log_{}", id(&task)));
    let (status, media_type, log) =
        bytes(&api, &format!("/v1/artifacts/{name}/content"), None).await;
    assert_eq!((status, media_type.as_str()), (200, "application/jsonl"));
    assert_eq!(material["sha256"], json!(sha256(&log)));
    let last = log
        .strip_suffix(b"\n")
        .unwrap()
        .rsplit(|byte| *byte == b'\n')
        .next()
        .unwrap();
    let last: Value = serde_json::from_slice(last).unwrap();
    assert_eq!(last["event"], "task.status_changed");
    let waiting = id(&api.task(task["session_id"].as_str().unwrap(), "ask").await);
    let got = api
        .get(&format!("/v1/artifacts/event_log_{waiting}/content"))
        .await;
    assert_eq!(got.1["error"]["details"]["reason"], "not_sealed");
    let got = api.get("/v1/artifacts/event_log_task_none/content").await;
    refused(&got, 404, "resource_not_found", None);
    server
        .add_key(key("other", "bob", &["*"], Some(&["workspace_else"])))
        .await;
    let bob = server.client_with("other");
    for path in [
        format!("/v1/artifacts/{name}/content"),
        format!("/v1/receipts/{}", id(&receipt)),
        format!("/v1/receipts/{}/proof", id(&receipt)),
        format!("/v1/tasks/{}/receipts", id(&task)),
    ] {
        refused(&bob.get(&path).await, 404, "resource_not_found", None);
    }
    server
        .add_key(key("scoped", "cy", &["tasks:read"], None))
        .await;
    let cy = server.client_with("scoped");
    for path in [
        format!("/v1/receipts/{}", id(&receipt)),
        format!("/v1/tasks/{}/receipts", id(&task)),
    ] {
        assert_eq!(cy.get(&path).await.0, 403, "{path}");
    }
}

#[tokio::test]
async fn ap_rcpt_13_a_task_shows_its_receipt_as_soon_as_it_can_be_listed() {
    let server = Server::start().await;
    let api = server.client();
    let session = api.session().await;
    for _ in 0..10 {
        let request = api.request("POST", &format!("/v1/sessions/{session}/tasks"));
        let body = json!({"input": {"goal": "x"}, "metadata": {"workflow": "agent"}});
        let (_, task) = api
            .send(request.header("Prefer", "respond-async").json(&body))
            .await;
        let (_, list) = api.get(&format!("/v1/tasks/{}/receipts", id(&task))).await;
        assert_eq!(list["data"].as_array().unwrap().len(), 1, "{list}");
    }
}
