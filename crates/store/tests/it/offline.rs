//! Verify, rebuild and export of a log that is as it should be.

use std::fs;

use canon::{Digest, Value, sha256};
use engine::port::suite::{Model, steps};
use proptest::prelude::*;
use store::{Exported, rebuild};

use crate::home::{filled, open, verify};

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_was_committed_verifies_and_rebuilds(steps in steps(60)) {
        let home = tempfile::tempdir().unwrap();
        let store = open(home.path());
        let mut model = Model::new(&store);
        for step in [(0, 0, 0), (1, 0, 0)].into_iter().chain(steps) {
            model.step(&store, step);
        }
        // Beside the process that writes, and after it.
        let report = verify(home.path());
        prop_assert_eq!(&report.problems, &vec![]);
        prop_assert_eq!(report.events, model.events().len() as u64);
        prop_assert_eq!(report.documents, model.documents().len() as u64);
        store.close();
        prop_assert_eq!(verify(home.path()).problems, vec![]);
        let rebuilt = rebuild(home.path(), &mut |_, _| {}).unwrap();
        prop_assert_eq!(rebuilt.problems, vec![]);
        prop_assert_eq!(rebuilt.events, model.events().len() as u64);
        prop_assert_eq!(rebuilt.documents, model.documents().len() as u64);
    }
}

#[test]
fn an_export_holds_the_bytes_as_stored() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    let model = filled(&data);
    let out = home.path().join("bundle");
    let evidence = store::Evidence {
        content: store::Content::Whole,
        keys: Some(b"{\"keys\":[]}"),
        checkpoint: Some("a checkpoint\n"),
        seal: Some(&|manifest| Ok(format!("sealed {}\n", canon::sha256(manifest)))),
    };
    let mut told = Vec::new();
    let exported = store::export(&data, &out, evidence, &mut |done, of| {
        told.push((done, of));
    })
    .unwrap();
    let count = model.events().len() as u64;
    assert_eq!(told.last(), Some(&(count, count)));

    let events = fs::read(out.join("events.jsonl")).unwrap();
    let expected: Vec<u8> = model
        .events()
        .iter()
        .flat_map(|event| [&*event.bytes, b"\n"].concat())
        .collect();
    assert_eq!(events, expected);
    let blobs: Vec<_> = fs::read_dir(out.join("blobs")).unwrap().collect();
    assert!(blobs.len() > 3, "{blobs:?}");
    let mut total = 0;
    for blob in &blobs {
        let file = blob.as_ref().unwrap().path();
        let bytes = fs::read(&file).unwrap();
        let name = file.file_name().unwrap().to_str().unwrap();
        assert_eq!(Digest::parse(name), Ok(sha256(&bytes)));
        total += bytes.len();
    }
    let receipts = receipts_of(&out);
    assert!(receipts.len() > 1);
    assert_eq!(
        exported,
        Exported {
            withheld: 0,
            events: count,
            blobs: blobs.len() as u64,
            receipts: receipts.len() as u64,
            pruned: 0,
            events_sha256: sha256(&events),
        }
    );
    let mut walk = receipts::walk::Walk::default();
    for receipt in &receipts {
        assert_eq!(walk.step(receipt).unwrap().link, Ok(()));
    }
    assert_eq!(fs::read(out.join("keys.json")).unwrap(), b"{\"keys\":[]}");
    assert_eq!(fs::read(out.join("checkpoint")).unwrap(), b"a checkpoint\n");
    let manifest = fs::read(out.join("manifest.json")).unwrap();
    let note = fs::read_to_string(out.join("manifest.note")).unwrap();
    assert_eq!(note, format!("sealed {}\n", sha256(&manifest)));
    let manifest: Value = serde_json::from_slice(&manifest).unwrap();
    assert_eq!(
        manifest,
        serde_json::json!({
            "format": "reprise-log",
            "version": 1,
            "log": store::Audit::open(&data).unwrap().name().log(),
            "events": count,
            "first_position": 1,
            "last_position": count,
            "receipts": receipts.len(),
            "pruned": 0,
            "files": {
                "events.jsonl": {"sha256": sha256(&events)},
                "receipts.jsonl": {"sha256": sha256(&fs::read(out.join("receipts.jsonl")).unwrap())},
                "keys.json": {"sha256": sha256(b"{\"keys\":[]}")},
                "checkpoint": {"sha256": sha256(b"a checkpoint\n")},
            },
            "blobs": {"count": blobs.len(), "bytes": total},
        })
    );
    // Nothing else stands beside it, and it is not written over.
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 2);
    assert!(store::export(&data, &out, evidence, &mut |_, _| {}).is_err());
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 2);
}

fn receipts_of(bundle: &std::path::Path) -> Vec<Vec<u8>> {
    let bytes = fs::read(bundle.join("receipts.jsonl")).unwrap();
    let lines = bytes.split_inclusive(|byte| *byte == b'\n');
    lines
        .map(|line| line.strip_suffix(b"\n").unwrap().to_vec())
        .collect()
}

#[test]
fn an_empty_log_verifies_rebuilds_and_exports() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    open(&data).close();
    assert_eq!(verify(&data), store::Report::default());
    let rebuilt = rebuild(&data, &mut |_, _| {}).unwrap();
    assert_eq!(rebuilt, store::Rebuilt::default());
    let out = home.path().join("bundle");
    let evidence = store::Evidence::default();
    let exported = store::export(&data, &out, evidence, &mut |_, _| {}).unwrap();
    assert_eq!(exported.events_sha256, sha256(b""));
    let manifest: Value =
        serde_json::from_slice(&fs::read(out.join("manifest.json")).unwrap()).unwrap();
    assert_eq!(manifest["first_position"], Value::Null);
    assert_eq!(manifest["last_position"], Value::Null);
}
