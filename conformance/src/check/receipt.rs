//! Receipts: AP-RCPT.
//!
//! Hashes are computed here from what the server hands out, never taken from its word.

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::json::{at, data, ids, is_utc_time, lacking, show, text};
use crate::miss::{Checked, Miss, all_but, fail, need, unseen};
use crate::registry::{ELSEWHERE, Row, row};
use crate::scenario::{artifact_body, kinds, unknown_like};
use crate::wire::{Answer, Wire};

pub(crate) const ROWS: &[Row] = &[
    row!("AP-RCPT-01", M, "a receipt has its members", Now members),
    row!("AP-RCPT-02", M, "receipts are canonicalized before hashing", Now canonical),
    row!("AP-RCPT-03", M, "the receipt hash covers the canonical receipt", Now hash),
    row!("AP-RCPT-04", M, "task, outcome, event and artifact name their receipt", Now references),
    row!("AP-RCPT-05", N, "clients do not take a receipt's id for its validity", = ELSEWHERE),
    row!("AP-RCPT-06", M, "receipts are listed and read", Now listed),
    row!("AP-RCPT-07", M, "verify answers `valid` and `checked_at`", Now verified),
    row!("AP-RCPT-08", M, "verification covers schema, hash, chain and signatures", Now tampered),
    row!("AP-RCPT-09", M, "receipts redact secrets and reasoning", Now redacted),
    row!("AP-RCPT-10", S, "large replay inputs are referenced by hash", Now materials),
    row!("AP-RCPT-11", O, "a CBOR form has the same hash", Now archive),
    row!("AP-RCPT-12", M, "issue and verification are events", Now events),
    row!("AP-RCPT-13", M, "a receipt shows as soon as it can be listed", Now at_once),
    row!("AP-RCPT-14", N, "unknown top-level members make a receipt invalid", Now unknown_members),
];

const REQUIRED: [&str; 15] = [
    "schema",
    "receipt_id",
    "subject",
    "issuer",
    "issued_at",
    "identifiers",
    "lifecycle",
    "trust",
    "autonomy_budget",
    "replay_input",
    "model_route",
    "cost",
    "side_effects",
    "final_artifacts",
    "chain",
];
const OPTIONAL: [&str; 5] = [
    "approvals",
    "deltas",
    "redactions",
    "signatures",
    "metadata",
];
const MEDIA_TYPE: &str = "application/vnd.harn.receipt+json";
const CBOR: &str = "application/vnd.harn.receipt+cbor";
/// Content that a receipt may carry itself.
const INLINE_BYTES_MAX: usize = 4_096;

/// A receipt of a task that completed: the resource, the bare form, and the task.
struct Proof {
    task: Value,
    resource: Value,
    bare: Map<String, Value>,
}

fn claimed(wire: &Wire) -> Checked {
    if wire.claims.receipts {
        Ok(())
    } else {
        unseen("the server does not advertise receipts")
    }
}

impl Wire {
    async fn receipt_of(&self, task: Value) -> Result<Proof, Miss> {
        let path = format!("/v1/tasks/{}/receipts", text(&task, "id"));
        let list = self.get(path).made("list receipts").await?;
        let Some(first) = data(&list).first() else {
            return unseen("a finished task lists no receipt");
        };
        let path = format!("/v1/receipts/{}", text(first, "id"));
        let resource = self.get(path).made("read a receipt").await?;
        let Some(bare) = at(&resource, "wire.payload").as_object() else {
            return unseen("a receipt has no `wire.payload`");
        };
        Ok(Proof {
            bare: bare.clone(),
            task,
            resource,
        })
    }

    async fn proof(&self) -> Result<Proof, Miss> {
        claimed(self)?;
        let task = self.completed().await?;
        self.receipt_of(task).await
    }

    /// Has the server judge a receipt that is handed to it. The contract does not name this path.
    async fn judge(&self, receipt: &Value) -> Result<Value, Miss> {
        let answer = self.post("/v1/receipts/verify", receipt).send().await?;
        if answer.status == 404 || answer.status == 405 {
            return unseen("the server judges no receipts that are handed to it");
        }
        answer.value_of(&[200])
    }
}

async fn members(wire: &Wire) -> Checked {
    let proof = wire.proof().await?;
    let bare = Value::Object(proof.bare.clone());
    let missing = lacking(&bare, &REQUIRED);
    need(
        missing.is_empty(),
        "every required member in the bare receipt",
        format!("no {}", missing.join(", ")),
    )?;
    let known =
        |name: &&String| REQUIRED.contains(&name.as_str()) || OPTIONAL.contains(&name.as_str());
    let extra: Vec<&String> = proof.bare.keys().filter(|name| !known(name)).collect();
    need(
        extra.is_empty(),
        "no other top-level member",
        format!("{extra:?}"),
    )?;
    need(
        text(&bare, "schema") == "receipt-2026-04-25",
        "`schema` `receipt-2026-04-25`",
        show(at(&bare, "schema")),
    )?;
    let (object, id) = (text(&bare, "subject.object"), text(&bare, "subject.id"));
    need(
        object == "task" && id == text(&proof.task, "id"),
        format!("`subject` task {}", text(&proof.task, "id")),
        show(at(&bare, "subject")),
    )?;
    need(
        text(&bare, "lifecycle.final_state") == "SUCCEEDED",
        "`lifecycle.final_state` SUCCEEDED",
        show(at(&bare, "lifecycle")),
    )?;
    let nested: [(&str, &[&str]); 6] = [
        ("identifiers", &["workspace_ref", "session_id", "task_id"]),
        ("lifecycle", &["started_at", "completed_at", "final_state"]),
        ("trust", &["start_tier", "end_tier"]),
        ("replay_input", &["determinism", "materials"]),
        ("cost", &["currency", "total", "provider_breakdown"]),
        ("chain", &["previous_receipt_hash", "receipt_hash"]),
    ];
    for (name, members) in nested {
        let missing = lacking(at(&bare, name), members);
        need(
            missing.is_empty(),
            format!("`{name}` with {}", members.join(", ")),
            show(at(&bare, name)),
        )?;
    }
    Ok(())
}

fn written(value: &Value) -> Result<Vec<u8>, Miss> {
    match serde_json_canonicalizer::to_vec(value) {
        Ok(bytes) => Ok(bytes),
        Err(error) => unseen(format!("the receipt has no canonical form here: {error}")),
    }
}

/// Returns the hash of a receipt, computed from its members.
pub(crate) fn computed(bare: &Map<String, Value>) -> Result<String, Miss> {
    let mut bare = bare.clone();
    bare.remove("signatures");
    if let Some(Value::Object(chain)) = bare.get_mut("chain") {
        chain.remove("receipt_hash");
    }
    let digest = Sha256::digest(written(&Value::Object(bare))?);
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("sha256:{hex}"))
}

async fn bare_bytes(wire: &Wire, proof: &Proof, accept: &str) -> Result<Option<Answer>, Miss> {
    let path = format!("/v1/receipts/{}", text(&proof.resource, "id"));
    let answer = wire.get(path).header("accept", accept).send().await?;
    let is_it = answer.header("content-type").starts_with(accept);
    Ok(Some(answer).filter(|answer| answer.status == 200 && is_it))
}

async fn canonical(wire: &Wire) -> Checked {
    let proof = wire.proof().await?;
    let Some(answer) = bare_bytes(wire, &proof, MEDIA_TYPE).await? else {
        return unseen("the server hands out no bare receipts");
    };
    let value = answer.value()?;
    need(
        written(&value)? == answer.body,
        "the bare receipt in RFC 8785 form",
        answer.found(),
    )?;
    need(
        value == Value::Object(proof.bare),
        "the bare receipt equal to `wire.payload`",
        show(&value),
    )
}

async fn hash(wire: &Wire) -> Checked {
    let session = match claimed(wire) {
        Ok(()) => wire.session().await?,
        Err(miss) => return Err(miss),
    };
    let mut previous = Value::Null;
    for _ in 0..2 {
        let task = wire.completed_in(&session).await?;
        let proof = wire.receipt_of(task).await?;
        let bare = Value::Object(proof.bare.clone());
        let expected = computed(&proof.bare)?;
        need(
            text(&bare, "chain.receipt_hash") == expected,
            format!("`chain.receipt_hash` {expected}"),
            show(at(&bare, "chain")),
        )?;
        need(
            *at(&bare, "chain.previous_receipt_hash") == previous,
            format!("`chain.previous_receipt_hash` {previous}"),
            show(at(&bare, "chain")),
        )?;
        previous = json!(expected);
    }
    Ok(())
}

async fn references(wire: &Wire) -> Checked {
    let proof = wire.proof().await?;
    let id = text(&proof.resource, "id");
    let named = |name: &str, value: &Value| {
        need(
            text(value, "receipt_id") == id,
            format!("`receipt_id` {id} in the {name}"),
            show(value),
        )
    };
    named("task", &proof.task)?;
    let path = format!("/v1/outcomes/{}", text(&proof.task, "outcome_id"));
    named("outcome", &wire.get(path).made("read an outcome").await?)?;
    let events = wire.task_events(&proof.task).await?;
    let issued = events
        .iter()
        .find(|event| text(event, "event") == "receipt.issued");
    match issued {
        Some(event) => named("event `receipt.issued`", event)?,
        None => return fail("an event `receipt.issued`", kinds(&events).join(", ")),
    }
    let Ok(waiting) = wire.reach("hold", "WORKING").await else {
        return all_but("an artifact of a finished task names its receipt");
    };
    let mut body = artifact_body(text(&waiting, "session_id"));
    if let Some(members) = body.as_object_mut() {
        members.insert("task_id".to_owned(), at(&waiting, "id").clone());
    }
    let artifact = wire.artifact(&body).await;
    wire.let_go(&waiting).await;
    let task = wire.wait_for(text(&waiting, "id"), &["CANCELED"]).await?;
    let artifact = artifact?;
    let path = format!("/v1/artifacts/{}", text(&artifact, "id"));
    let artifact = wire.get(path).made("read an artifact").await?;
    need(
        text(&artifact, "receipt_id") == text(&task, "receipt_id")
            && !text(&task, "receipt_id").is_empty(),
        format!("`receipt_id` {} in the artifact", text(&task, "receipt_id")),
        show(&artifact),
    )
}

async fn listed(wire: &Wire) -> Checked {
    let proof = wire.proof().await?;
    let path = format!("/v1/tasks/{}/receipts", text(&proof.task, "id"));
    let list = wire.get(path).send().await?.value_of(&[200])?;
    for receipt in data(&list).iter().chain([&proof.resource]) {
        need(
            text(receipt, "object") == "receipt"
                && !text(receipt, "id").is_empty()
                && !text(receipt, "format").is_empty(),
            "`object` receipt, `id` and `format`",
            show(receipt),
        )?;
    }
    let unknown = format!("/v1/receipts/{}", unknown_like(text(&proof.resource, "id")));
    wire.get(unknown)
        .send()
        .await?
        .refused(404, "resource_not_found")
        .map(drop)
}

async fn verified(wire: &Wire) -> Checked {
    let proof = wire.proof().await?;
    let id = text(&proof.resource, "id");
    for body in [json!({}), json!({"trust_anchor": null, "at_time": null})] {
        let verdict = wire
            .post(format!("/v1/receipts/{id}/verify"), &body)
            .send()
            .await?
            .value_of(&[200])?;
        need(
            at(&verdict, "valid") == &json!(true) && is_utc_time(text(&verdict, "checked_at")),
            "`valid` true and the time `checked_at`",
            show(&verdict),
        )?;
    }
    let body = json!({"trust_anchor": "a key that nobody has"});
    let verdict = wire
        .post(format!("/v1/receipts/{id}/verify"), &body)
        .send()
        .await?
        .value_of(&[200])?;
    need(
        at(&verdict, "valid") == &json!(false) && !text(&verdict, "reason").is_empty(),
        "`valid` false with a `reason` when another key must have signed",
        show(&verdict),
    )?;
    let unknown = format!("/v1/receipts/{}/verify", unknown_like(id));
    wire.post(unknown, &json!({}))
        .send()
        .await?
        .refused(404, "resource_not_found")
        .map(drop)
}

/// One change per step, and the reason that must be given first.
async fn tampered(wire: &Wire) -> Checked {
    let proof = wire.proof().await?;
    let bare = Value::Object(proof.bare.clone());
    let honest = wire.judge(&bare).await?;
    need(
        at(&honest, "valid") == &json!(true),
        "an untouched receipt valid",
        show(&honest),
    )?;
    let changed = |pointer: &str, value: Value| {
        let mut copy = bare.clone();
        if let Some(place) = copy.pointer_mut(pointer) {
            *place = value;
        }
        copy
    };
    let rooted = {
        let mut copy = proof.bare.clone();
        if let Some(Value::Object(chain)) = copy.get_mut("chain") {
            chain.insert(
                "merkle_root".to_owned(),
                json!(format!("sha256:{}", "0".repeat(64))),
            );
        }
        copy.insert("signatures".to_owned(), json!([]));
        let hash = computed(&copy)?;
        if let Some(Value::Object(chain)) = copy.get_mut("chain") {
            chain.insert("receipt_hash".to_owned(), json!(hash));
        }
        Value::Object(copy)
    };
    let signed = at(&bare, "signatures.0").is_object();
    let mut cases = vec![
        (
            "schema_invalid",
            changed("/lifecycle/final_state", json!("DONE")),
        ),
        (
            "receipt_hash_mismatch",
            changed("/lifecycle/final_state", json!("FAILED")),
        ),
        (
            "receipt_hash_mismatch",
            changed(
                "/chain/previous_receipt_hash",
                json!(format!("sha256:{}", "1".repeat(64))),
            ),
        ),
        ("merkle_batch_unknown", rooted),
    ];
    if signed {
        cases.extend([
            (
                "key_unknown",
                changed("/signatures/0/key_id", json!("nobody")),
            ),
            (
                "algorithm_unsupported",
                changed("/signatures/0/algorithm", json!("none")),
            ),
            (
                "signature_invalid",
                changed("/signatures/0/signature", json!("base64:AAAA")),
            ),
        ]);
    }
    for (reason, receipt) in cases {
        let verdict = wire.judge(&receipt).await?;
        need(
            at(&verdict, "valid") == &json!(false) && text(&verdict, "reason") == reason,
            format!("`valid` false, `reason` {reason}"),
            show(&verdict),
        )?;
    }
    // A changed fact under a hash of its own, and nobody who vouches for it.
    let mut forged = proof.bare.clone();
    if let Some(Value::Object(lifecycle)) = forged.get_mut("lifecycle") {
        lifecycle.insert("final_state".to_owned(), json!("FAILED"));
    }
    forged.insert("signatures".to_owned(), json!([]));
    let hash = computed(&forged)?;
    if let Some(Value::Object(chain)) = forged.get_mut("chain") {
        chain.insert("receipt_hash".to_owned(), json!(hash));
    }
    let verdict = wire.judge(&Value::Object(forged)).await?;
    need(
        !signed || at(&verdict, "valid") == &json!(false),
        "an unsigned forgery of a signed receipt not valid",
        show(&verdict),
    )?;
    included(wire, &proof).await?;
    if signed {
        Ok(())
    } else {
        all_but("signatures: the receipt has none")
    }
}

/// Follows the proof that a receipt is in the server's log, where the server gives one. The contract does not name it.
async fn included(wire: &Wire, proof: &Proof) -> Checked {
    let path = format!("/v1/receipts/{}/proof", text(&proof.resource, "id"));
    let answer = wire.get(path).send().await?;
    if answer.status == 404 || answer.status == 405 {
        return Ok(());
    }
    let found = answer.value_of(&[200])?;
    let stated = text(&found, "root");
    let root = root_of(
        text(&Value::Object(proof.bare.clone()), "chain.receipt_hash"),
        &found,
    );
    need(
        root.as_deref() == Some(stated),
        format!("a path that leads from the receipt to the root {stated}"),
        show(&found),
    )
}

/// Returns the root that an inclusion path (RFC 9162, 2.1.3.2) leads to.
fn root_of(receipt_hash: &str, proof: &Value) -> Option<String> {
    let mut index = at(proof, "leaf_index").as_u64()?;
    let mut last = at(proof, "tree_size").as_u64()?.checked_sub(1)?;
    let node = |left: &[u8], right: &[u8]| {
        let hash = Sha256::new().chain_update([1]).chain_update(left);
        hash.chain_update(right).finalize().to_vec()
    };
    let leaf = Sha256::new().chain_update([0]);
    let mut hash = leaf
        .chain_update(bytes_of(receipt_hash)?)
        .finalize()
        .to_vec();
    for sibling in at(proof, "path").as_array()? {
        let sibling = bytes_of(sibling.as_str()?)?;
        if last == 0 {
            return None;
        }
        if index % 2 == 1 || index == last {
            hash = node(&sibling, &hash);
            while index % 2 == 0 && index != 0 {
                (index, last) = (index / 2, last / 2);
            }
        } else {
            hash = node(&hash, &sibling);
        }
        (index, last) = (index / 2, last / 2);
    }
    let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    (last == 0).then(|| format!("sha256:{hex}"))
}

fn bytes_of(digest: &str) -> Option<Vec<u8>> {
    let hex = digest
        .strip_prefix("sha256:")
        .filter(|hex| hex.len() == 64)?;
    let digits = (0..32).map(|at| u8::from_str_radix(hex.get(2 * at..2 * at + 2)?, 16).ok());
    digits.collect()
}

async fn redacted(wire: &Wire) -> Checked {
    claimed(wire)?;
    let secret = wire.fresh("canary");
    let session = wire.session().await?;
    let parts = json!([
        {"type": "text", "text": "say hello", "visibility": "public"},
        {"type": "text", "text": secret, "visibility": "internal"},
        {"type": "text", "text": secret, "visibility": "receipt_only"},
    ]);
    let body = json!({"input": {"role": "user", "parts": parts}});
    let task = wire
        .post(format!("/v1/sessions/{session}/tasks"), &body)
        .made("submit a task with private parts")
        .await?;
    let task = wire
        .wait_for(text(&task, "id"), &crate::scenario::TERMINAL)
        .await?;
    let proof = wire.receipt_of(task).await?;
    let shown = proof.resource.to_string();
    need(
        !shown.contains(&secret),
        "no private content in a receipt",
        "the text of a private part",
    )?;
    let list = at(&proof.resource, "redactions").as_array();
    for redaction in list.into_iter().flatten() {
        need(
            !text(redaction, "field").is_empty() && !text(redaction, "reason").is_empty(),
            "`field` and `reason` in a redaction",
            show(redaction),
        )?;
    }
    Ok(())
}

async fn materials(wire: &Wire) -> Checked {
    let proof = wire.proof().await?;
    let materials = at(&proof.resource, "replay_input.materials").as_array();
    for material in materials.into_iter().flatten() {
        let inline = text(material, "bytes_base64");
        let referenced = !text(material, "uri").is_empty() && !text(material, "sha256").is_empty();
        let described = at(material, "metadata").is_object();
        need(
            referenced
                || described
                || (!inline.is_empty() && inline.len() <= INLINE_BYTES_MAX * 4 / 3 + 4),
            "`uri` and `sha256`, or few bytes, in a material",
            show(material),
        )?;
    }
    let Some(log) = materials.and_then(|list| list.first()) else {
        return all_but("a receipt with replay material");
    };
    let Some(artifact) = text(log, "uri").strip_prefix("artifact://") else {
        return all_but("the bytes behind a reference");
    };
    let answer = wire
        .get(format!("/v1/artifacts/{artifact}/content"))
        .send()
        .await?;
    if answer.status != 200 {
        return all_but("the bytes behind a reference");
    }
    let hex: String = Sha256::digest(&answer.body)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    need(
        text(log, "sha256") == format!("sha256:{hex}"),
        format!("`sha256` sha256:{hex} of the event log"),
        show(log),
    )
}

async fn archive(wire: &Wire) -> Checked {
    let proof = wire.proof().await?;
    let Some(answer) = bare_bytes(wire, &proof, CBOR).await? else {
        return unseen("the server has no CBOR form");
    };
    need(
        answer
            .header("content-type")
            .contains("schema=receipt-2026-04-25"),
        "the media type with its `schema`",
        answer.header("content-type"),
    )?;
    let verdict = wire
        .call(reqwest::Method::POST, "/v1/receipts/verify")
        .bytes(CBOR, answer.body.clone())
        .send()
        .await?;
    if verdict.status == 404 || verdict.status == 405 {
        return all_but(
            "the hash of the CBOR form: the server judges no receipts that are handed to it",
        );
    }
    let verdict = verdict.value_of(&[200])?;
    need(
        at(&verdict, "valid") == &json!(true),
        "the CBOR form valid with the same hash",
        show(&verdict),
    )
}

async fn events(wire: &Wire) -> Checked {
    let proof = wire.proof().await?;
    let id = text(&proof.resource, "id");
    let before = wire.task_events(&proof.task).await?;
    need(
        kinds(&before).contains(&"receipt.issued"),
        "an event `receipt.issued` of the task",
        kinds(&before).join(", "),
    )?;
    for (body, kind) in [
        (json!({}), "receipt.verified"),
        (
            json!({"trust_anchor": "nobody"}),
            "receipt.verification_failed",
        ),
    ] {
        wire.post(format!("/v1/receipts/{id}/verify"), &body)
            .made("verify a receipt")
            .await?;
        let events = wire.session_events(text(&proof.task, "session_id")).await?;
        let found = events.iter().any(|event| {
            text(event, "event") == kind
                && text(event, "resource.id") == id
                && at(event, "task_id").is_null()
        });
        need(
            found,
            format!("an event `{kind}` about the receipt, of no task"),
            kinds(&events).join(", "),
        )?;
    }
    let after = wire.task_events(&proof.task).await?;
    need(
        ids(&before) == ids(&after),
        "the log of a finished task unchanged by verification",
        format!("{} events, then {}", before.len(), after.len()),
    )
}

async fn at_once(wire: &Wire) -> Checked {
    claimed(wire)?;
    let session = wire.session().await?;
    for _ in 0..3 {
        let task = wire.submit(&session, None).await?;
        let path = format!("/v1/tasks/{}/receipts", text(&task, "id"));
        let list = wire.get(path).send().await?.value_of(&[200])?;
        need(
            !data(&list).is_empty(),
            "a receipt right after the submit",
            show(&list),
        )?;
    }
    Ok(())
}

async fn unknown_members(wire: &Wire) -> Checked {
    let proof = wire.proof().await?;
    let mut copy = proof.bare.clone();
    copy.insert("conformance".to_owned(), json!(true));
    let hash = computed(&copy)?;
    if let Some(Value::Object(chain)) = copy.get_mut("chain") {
        chain.insert("receipt_hash".to_owned(), json!(hash));
    }
    let verdict = wire.judge(&Value::Object(copy)).await?;
    need(
        at(&verdict, "valid") == &json!(false) && text(&verdict, "reason") == "schema_invalid",
        "`valid` false, `reason` schema_invalid",
        show(&verdict),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three leaves, all paths by hand: the third stands alone on its level.
    #[test]
    fn a_path_leads_to_the_root_of_its_own_leaf_only() {
        let hex = |bytes: &[u8]| {
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("sha256:{hex}")
        };
        let node = |left: &[u8], right: &[u8]| Sha256::digest([&[1][..], left, right].concat());
        let receipts: Vec<String> = (0..3).map(|n| hex(&Sha256::digest([n]))).collect();
        let leaf = |n: u8| Sha256::digest([&[0][..], &Sha256::digest([n])].concat());
        let (a, b, c) = (leaf(0), leaf(1), leaf(2));
        let ab = node(&a, &b);
        let root = hex(&node(&ab, &c));
        let paths = [
            vec![hex(&b), hex(&c)],
            vec![hex(&a), hex(&c)],
            vec![hex(&ab)],
        ];
        for (index, path) in paths.iter().enumerate() {
            let proof = json!({"leaf_index": index, "tree_size": 3, "path": path});
            for (other, receipt) in receipts.iter().enumerate() {
                let leads = root_of(receipt, &proof).as_ref() == Some(&root);
                assert_eq!(leads, other == index, "{index} {other}");
            }
            let short = json!({"leaf_index": index, "tree_size": 3, "path": []});
            assert_eq!(root_of(&receipts[index], &short), None);
            let long = json!({"leaf_index": 0, "tree_size": 1, "path": path});
            assert_eq!(root_of(&receipts[0], &long), None);
        }
    }
}
