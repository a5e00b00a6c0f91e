//! The reader of structured inputs: no panic, no hang, and a text that is canonical: written the same from its value,
//! and read as itself or refused.

#![no_main]

use canon::Integers;
use libfuzzer_sys::fuzz_target;
use sidecar::{Profile, canonical_text};

fuzz_target!(|bytes: &[u8]| {
    for (profile, order) in [
        (Profile::Jcs1, canon::Profile::Jcs),
        (Profile::AhdJs1, canon::Profile::AhdJs1),
    ] {
        let Ok(text) = canonical_text(bytes, profile) else {
            continue;
        };
        // The JSON reader nests less deep.
        if let Ok(value) = canon::read(&text, Integers::Doubles) {
            assert_eq!(canon::canonical(&value, order), text);
        }
        // Beyond a limit after alias expansion, the second reading may refuse; it may not read another value.
        if let Ok(again) = canonical_text(&text, profile) {
            assert_eq!(again, text);
        }
    }
});
