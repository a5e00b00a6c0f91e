//! Signed notes, checkpoints, their keys and the paths of tiles: what is read is written back the same.

#![no_main]

use libfuzzer_sys::fuzz_target;
use receipts::note::{Checkpoint, Note, NoteKey, SignatureLine};
use receipts::tiles::{Tile, parse_entries_path};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(note) = Note::read(bytes) {
        assert_eq!(note.write().as_bytes(), bytes);
        if let Ok(checkpoint) = Checkpoint::read(note.text()) {
            assert_eq!(checkpoint.text(), note.text());
        }
    }
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Ok(line) = SignatureLine::parse(text) {
        assert_eq!(line.write(), text);
    }
    if let Ok(key) = NoteKey::parse(text) {
        assert_eq!(key.text(), text);
    }
    if let Some(tile) = Tile::parse(text) {
        assert_eq!(tile.path(), text);
    }
    let _ = parse_entries_path(text);
});
