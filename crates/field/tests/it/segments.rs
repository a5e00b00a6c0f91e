//! A field that was read from segments is the field that its log folds to.

use field::{Administration, Embedding, Field, Level, Model, Vector, administer};
use serde_json::json;

use crate::common::{Lab, related, unit};

const RECORD: field::Operation = field::Operation::Record;

/// Everything that a segment can hold: both kinds of vectors, one that came late, a conflict and its end, a purge.
fn lab() -> Lab {
    let mut lab = Lab::with_agents(Level::Full, &["a", "b"]);
    lab.join("boss", 10);
    let first = lab.unit("a", "finding", "Tides silt the harbour up", json!({}));
    let relations = json!({"relations": related(&[("contradicts", &first)])});
    let answer = lab.ok(RECORD, "b", unit("finding", "Tides do not", relations));
    let conflict = answer["conflicts_detected"][0].as_str().unwrap().to_owned();
    lab.merge("boss", &conflict, "last_write_wins", json!({}))
        .unwrap();
    let model = Model {
        name: "m".into(),
        sha256: canon::sha256(b"m"),
    };
    let vector = Vector::quantized(model, &[0.1, 0.9, -0.4]).unwrap();
    lab.embedding = Embedding::Given(vector.clone());
    lab.unit("a", "decision", "We dredge", json!({}));
    lab.embedding = Embedding::Failed("late".into());
    let late = lab.unit("a", "observation", "Rivers slow down", json!({}));
    let act = Administration::Enrich {
        unit_id: late,
        embedding: Embedding::Given(vector),
    };
    let fresh = lab.fresh();
    let decision = administer(&lab.field, &act, &fresh).unwrap();
    lab.field.commit(&decision).unwrap();
    lab.log.extend(decision.steps);
    lab.embedding = Embedding::BuiltIn;
    lab.unit("b", "question", "When?", json!({}));
    let purge =
        json!({"strategy": "purge", "filter": {"types": ["question"]}, "reason": "asked to"});
    lab.ok(field::Operation::Compact, "boss", purge);
    lab.seen_by("a");
    lab
}

fn shown(field: &Field) -> String {
    format!("{field:?}")
}

/// Everything in it, search included.
#[test]
fn a_field_read_from_segments_is_the_fold_of_its_log() {
    let lab = lab();
    let folded = lab.refolded();
    let empty = || Field::new(lab.field.config().clone());
    for cut in 0..=folded.head() {
        let mut before = empty();
        for (entry, content) in lab.log.iter().filter(|(entry, _)| entry.seq <= cut) {
            before.apply(entry, content.as_ref()).unwrap();
        }
        let mut read = empty();
        read.read_segment(&before.segment(0)).unwrap();
        assert!(shown(&read) == shown(&before), "up to {cut}");
        read.read_segment(&folded.segment(cut)).unwrap();
        assert!(shown(&read) == shown(&folded), "from {cut} on");
    }
    // What an agent is shown is the same too.
    let mut read = empty();
    read.read_segment(&lab.field.segment(0)).unwrap();
    assert_eq!(read.status_view(None), lab.field.status_view(None));
}

#[test]
fn what_is_no_segment_is_refused() {
    let lab = lab();
    let bytes = lab.field.segment(0);
    let empty = || Field::new(lab.field.config().clone());
    assert!(empty().read_segment(&[]).is_err());
    assert!(empty().read_segment(&[99]).is_err());
    for cut in [2, 40, bytes.len() / 2, bytes.len() - 1] {
        assert!(empty().read_segment(&bytes[..cut]).is_err(), "{cut}");
    }
    let mut twice = empty();
    twice.read_segment(&bytes).unwrap();
    assert!(
        twice.read_segment(&bytes).is_err(),
        "it does not follow itself"
    );
}
