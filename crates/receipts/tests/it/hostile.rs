//! Hostile input: a clear error, never a panic.

use proptest::prelude::*;
use receipts::{
    KeySet, Receipt, cbor,
    note::{Checkpoint, Note, NoteKey, SignatureLine},
    stream,
    tiles::{Tile, parse_entries_path},
    trust,
};

use crate::common::everything;

fn read_all(bytes: &[u8]) {
    assert_eq!(
        stream::check(bytes).is_ok(),
        stream::check_by_value(bytes).is_ok()
    );
    let _ = Receipt::read(bytes);
    let _ = cbor::read(bytes);
    let _ = KeySet::from_jwks(bytes);
    let _ = trust::verify_export(bytes);
    if let Ok(note) = Note::read(bytes) {
        assert_eq!(note.write().as_bytes(), bytes);
    }
    let text = String::from_utf8_lossy(bytes);
    let _ = Checkpoint::read(&text);
    let _ = NoteKey::parse(&text);
    let _ = SignatureLine::parse(&text);
    if let Some(tile) = Tile::parse(&text) {
        assert_eq!(tile.path(), text);
    }
    let _ = parse_entries_path(&text);
}

#[test]
fn deep_nesting_and_huge_numbers_are_refused() {
    for text in [
        "[".repeat(1_000_000),
        r#"{"a":"#.repeat(1_000_000),
        format!(r#"{{"metadata":{}"#, "[".repeat(1_000_000)),
        format!(r#"{{"metadata":{}}}"#, "9".repeat(1_000_000)),
        format!(r#"{{"approvals":[{{"action":"{}"#, "x".repeat(1_000_000)),
        r#"{"metadata":1e999999999}"#.to_owned(),
        "\u{0}".to_owned(),
        String::new(),
    ] {
        read_all(text.as_bytes());
        assert!(Receipt::read(text.as_bytes()).is_err());
    }
    let not_utf8 = b"{\"approvals\":[{\"action\":\"\xff\"}]}";
    let message = Receipt::read(not_utf8).unwrap_err().to_string();
    assert_eq!(message, "not UTF-8 at line 1 column 26");
    read_all(not_utf8);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        read_all(&bytes);
    }

    #[test]
    fn any_text_is_read_or_refused(text in any::<String>()) {
        read_all(text.as_bytes());
    }

    #[test]
    fn notes_of_any_lines_are_read_or_refused(
        lines in prop::collection::vec("(\u{2014} )?[a-z+ ]{0,4} ?[A-Za-z0-9+/=]{0,16}|", 0..8),
    ) {
        read_all(lines.join("\n").as_bytes());
        read_all(format!("{}\n", lines.join("\n")).as_bytes());
    }

    #[test]
    fn broken_archives_are_refused(place in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let own = Receipt::from_map(everything()).unwrap();
        let mut bytes = cbor::write(&own);
        let at = place.index(bytes.len());
        let is_same = bytes[at] == byte;
        bytes[at] = byte;
        // A change that can be read is a change of data, and data has one form.
        match cbor::read(&bytes) {
            Ok(read) => prop_assert_eq!(read == own, is_same),
            Err(_) => prop_assert!(!is_same),
        }
        prop_assert!(cbor::read(&bytes[..at]).is_err());
    }
}
