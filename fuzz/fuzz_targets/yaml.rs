//! The reader of structured inputs: no panic, no hang, and a canonical text that is read as itself or refused.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sidecar::{Profile, canonical_text};

fuzz_target!(|bytes: &[u8]| {
    for profile in [Profile::Jcs1, Profile::AhdJs1] {
        let Ok(text) = canonical_text(bytes, profile) else {
            continue;
        };
        // Beyond a limit after alias expansion, the second reading may refuse; it may not read another value.
        if let Ok(again) = canonical_text(&text, profile) {
            assert_eq!(again, text);
        }
    }
});
