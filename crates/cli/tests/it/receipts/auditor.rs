//! An export for an auditor: what is not public is in none of its bytes, and what is left verifies.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::bundle::copy;
use super::{Ran, get};
use crate::world::World;

/// What only some may read, in every place that keeps such content.
const PRIVATE: [&str; 5] = [
    "inner-4711",
    "proof-4711",
    "artifact-4711",
    "override-4711",
    "long-inner-4711",
];

fn post(world: &World, url: &str, path: &str, body: &Value) -> Value {
    let key = fs::read_to_string(world.data().join("api-key")).unwrap();
    let output = std::process::Command::new("curl")
        .args(["-sS", "-X", "POST", &format!("{url}{path}")])
        .args(["-H", &format!("authorization: Bearer {}", key.trim())])
        .args([
            "-H",
            "harn-agents-protocol-version: agents-protocol-2026-04-25",
        ])
        .args(["-H", "content-type: application/json"])
        .args(["-d", &body.to_string()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(answer.get("error").is_none(), "{answer}");
    answer
}

fn exported() -> Ran {
    let world = World::new();
    let server = world.serve();
    let url = server.url.clone();
    let keys = get(&url, "/.well-known/jwks.json");
    fs::write(world.home.path().join("jwks.json"), keys).unwrap();
    let mut ran = Ran {
        world,
        server: Some(server),
        tasks: Vec::new(),
        receipts: Vec::new(),
    };
    let part = |text: &str, visibility: &str| json!({"type": "text", "text": text, "visibility": visibility});
    let long = format!("{} long-inner-4711", "x".repeat(6_000));
    let open = format!("{} open-4711", "y".repeat(6_000));
    let first = ran.world.json(&["task", "submit", "Do it", "--json"]);
    let task = json!({"session_id": first["session_id"], "input": {"role": "user", "parts": [
        part("inner-4711", "internal"),
        part("proof-4711", "receipt_only"),
        part(&long, "internal"),
        part(&open, "public"),
    ]}});
    let task = post(&ran.world, &url, "/v1/tasks", &task);
    let id = task["id"].as_str().unwrap().to_owned();
    ran.world.ok(&["receipt", "show", &id]);
    for (visibility, text) in [("internal", "artifact-4711"), ("public", "shown-4711")] {
        let body = json!({
            "workspace_id": "workspace_local", "session_id": task["session_id"], "kind": "file",
            "mime_type": "text/plain", "visibility": visibility,
        });
        let artifact = post(&ran.world, &url, "/v1/artifacts", &body);
        let path = format!("/v1/artifacts/{}/content", artifact["id"].as_str().unwrap());
        upload(&ran.world, &url, &path, text);
    }
    let replay = |overrides: Value| {
        let body = json!({"mode": "with_overrides", "override": overrides});
        let replay = post(&ran.world, &url, &format!("/v1/tasks/{id}/replay"), &body);
        replay["id"].as_str().unwrap().to_owned()
    };
    let hidden = replay(
        json!({"llm:main:1": {"kind": "llm_provider_response", "value": {"text": "override-4711"}, "visibility": "internal"}}),
    );
    let shown = replay(
        json!({"llm:main:1": {"kind": "llm_provider_response", "value": {"text": "public-override"}, "visibility": "public"}}),
    );
    for task in [id, hidden, shown] {
        ran.world.ok(&["receipt", "proof", &task]);
        ran.tasks.push(task);
    }
    ran.stop();
    ran
}

fn upload(world: &World, url: &str, path: &str, text: &str) {
    let key = fs::read_to_string(world.data().join("api-key")).unwrap();
    let status = std::process::Command::new("curl")
        .args(["-sS", "--fail", "-X", "PUT", &format!("{url}{path}")])
        .args(["-H", &format!("authorization: Bearer {}", key.trim())])
        .args([
            "-H",
            "harn-agents-protocol-version: agents-protocol-2026-04-25",
        ])
        .args(["-H", "content-type: text/plain", "--data-binary", text])
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
}

/// Everything in a folder, as one text.
fn all_bytes(folder: &Path) -> String {
    let mut all = String::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.push_str(&all_bytes(&path));
        } else {
            all.push_str(&String::from_utf8_lossy(&fs::read(&path).unwrap()));
        }
    }
    all
}

#[test]
fn u20_an_auditors_export_shows_nothing_private_and_verifies() {
    let ran = exported();
    ran.world.ok(&["log", "export", "whole"]);
    let whole = all_bytes(&ran.path("whole"));
    for word in PRIVATE {
        assert!(
            whole.contains(word),
            "`{word}` is not even in the whole export"
        );
    }
    let told = ran
        .world
        .json(&["log", "export", "bundle", "--auditor", "--json"]);
    assert!(told["withheld"].as_u64().unwrap() >= 5, "{told}");
    let shown = all_bytes(&ran.path("bundle"));
    for word in PRIVATE {
        assert!(!shown.contains(word), "`{word}` is in the auditor's export");
    }
    for word in ["open-4711", "shown-4711", "public-override"] {
        assert!(shown.contains(word), "`{word}` is public");
    }

    let (said, value) = ran.verify(&["--bundle", "bundle", "--keys", "jwks.json"]);
    assert_eq!(said.code, 0, "{said:?}");
    assert_eq!(
        value["withheld"].as_array().unwrap().len() as u64,
        told["withheld"]
    );
    let text = ran.world.ok(&[
        "receipt",
        "verify",
        "--bundle",
        "bundle",
        "--keys",
        "jwks.json",
    ]);
    assert!(
        text.contains("blobs are withheld because they are not public"),
        "{text}"
    );
    // The replay that was given something private cannot be run again, and that is said.
    let unbound = value["unbound"].to_string();
    assert!(unbound.contains(&ran.tasks[1]), "{unbound}");
    assert!(unbound.contains("withheld"), "{unbound}");
    let names = value["checks"].to_string();
    assert!(names.contains("replays: 1 run again"), "{names}");
    // Receipts are whole, each by itself too.
    let args = [
        "--bundle",
        "bundle",
        "--keys",
        "jwks.json",
        "--all-signatures",
    ];
    assert_eq!(ran.verify(&args).0.code, 0);
}

#[test]
fn u20_tampering_with_what_is_left_is_found() {
    let ran = exported();
    ran.world.ok(&["log", "export", "bundle", "--auditor"]);
    let forged = ran.path("forged");
    let verify = || {
        let (said, value) = ran.verify(&["--bundle", "forged", "--keys", "jwks.json"]);
        (said.code, value["checks"].to_string())
    };
    // Something public is withheld too.
    copy(&ran.path("bundle"), &forged);
    let blob = fs::read_dir(forged.join("blobs")).unwrap().next().unwrap();
    let blob = blob.unwrap().path();
    fs::remove_file(&blob).unwrap();
    let (code, checks) = verify();
    assert_eq!(code, 1);
    assert!(checks.contains("material_unavailable"), "{checks}");
    // And the manifest made to agree, which nobody signed.
    let file = forged.join("manifest.json");
    let mut manifest: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let name = blob.file_name().unwrap().to_str().unwrap();
    let digest = json!(format!("sha256:{name}"));
    manifest["withheld"].as_array_mut().unwrap().push(digest);
    let count = manifest["blobs"]["count"].as_u64().unwrap();
    manifest["blobs"]["count"] = json!(count - 1);
    fs::write(&file, canon::jcs(&manifest)).unwrap();
    let (code, checks) = verify();
    assert_eq!(code, 1);
    assert!(checks.contains("signature_invalid"), "{checks}");
    // A word of an event, a byte of a blob, a receipt.
    for (name, from, to) in [
        ("events.jsonl", "COMPLETED", "CANCELED"),
        (
            "receipts.jsonl",
            "\"final_state\":\"",
            "\"final_state\":\"X",
        ),
        ("checkpoint", "receipts\n", "receiptz\n"),
    ] {
        copy(&ran.path("bundle"), &forged);
        let text = fs::read_to_string(forged.join(name)).unwrap();
        assert!(text.contains(from), "{name}");
        fs::write(forged.join(name), text.replacen(from, to, 1)).unwrap();
        assert_eq!(verify().0, 1, "{name}");
    }
    copy(&ran.path("bundle"), &forged);
    let blob = fs::read_dir(forged.join("blobs")).unwrap().next().unwrap();
    let blob = blob.unwrap().path();
    let mut bytes = fs::read(&blob).unwrap();
    bytes[0] ^= 1;
    fs::write(&blob, bytes).unwrap();
    let (code, checks) = verify();
    assert_eq!(code, 1);
    assert!(checks.contains("blob_mismatch"), "{checks}");
}
