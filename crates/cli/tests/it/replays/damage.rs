//! Damage in the database of a running server, and what a replay says of each.

use canon::Digest;
use serde_json::{Value, json};
use store::tamper::Tamper;

use super::Ran;

/// Returns what a replay that fails calls the first thing that it cannot have.
fn unavailable(ran: &Ran) -> Value {
    let replay = ran.replayed(1, &[&ran.task]);
    assert_eq!(replay["status"], "FAILED", "{replay:#}");
    assert_eq!(
        replay["failure"]["code"], "replay_dependency_unavailable",
        "{replay:#}"
    );
    replay["failure"]["details"]["first_unavailable"].clone()
}

/// AP-RPL-18 and B10: whatever was done to a blob, the replay ends and names it by its place.
#[test]
fn ap_rpl_18_an_altered_blob_fails_the_replay_that_needs_it() {
    let ran = Ran::new(&"long ".repeat(1_000));
    let damage = Tamper::open(&ran.world.data());
    let lines: Vec<Value> = ran
        .bundle()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let blobs: Vec<Digest> = lines
        .iter()
        .filter_map(|line| Digest::parse(line.get("blob")?.get("sha256")?.as_str()?).ok())
        .collect();
    assert!(!blobs.is_empty(), "{lines:?}");
    let mut shown = String::new();
    for blob in &blobs {
        // Another value, no JSON at all, nothing: each is told by the same words.
        for other in ["\"something else\"", "{", ""] {
            let mut before = Vec::new();
            assert!(damage.blob(blob, |bytes| {
                before = std::mem::replace(bytes, other.as_bytes().to_vec());
            }));
            let first = unavailable(&ran);
            assert_eq!(first["type"], "artifact", "{other}: {first}");
            assert_eq!(first["id"], json!(blob), "{other}: {first}");
            assert_eq!(first["reason"], "hash_mismatch", "{other}: {first}");
            assert!(first["event_id"].is_string(), "{other}: {first}");
            shown += &ran.world.ok(&["task", "get", &ran.task, "--json"]);
            assert!(damage.blob(blob, |bytes| *bytes = before));
        }
        let renamed = |from: &str, to: &str| {
            damage.execute(&format!(
                "UPDATE blobs SET digest = x'{to}' WHERE digest = x'{from}'"
            ));
        };
        let (hex, none) = (blob.hex(), "00".repeat(32));
        renamed(&hex, &none);
        let first = unavailable(&ran);
        assert_eq!(first["reason"], "missing", "{first}");
        assert_eq!(first["id"], json!(blob), "{first}");
        shown += &ran.world.ok(&["task", "get", &ran.task, "--json"]);
        renamed(&none, &hex);
    }
    // Readers are told what is wrong with the content, and see the rest.
    for reason in ["damaged", "missing"] {
        assert!(shown.contains(reason), "{shown}");
    }
    ran.replayed(0, &[&ran.task]);
}
