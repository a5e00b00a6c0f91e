//! The strict JSON reader and the canonical writer: what was written is read back and written the same.

#![no_main]

use canon::{Integers, Profile};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for integers in [Integers::Safe, Integers::Doubles] {
        let Ok(value) = canon::read(bytes, integers) else {
            continue;
        };
        for profile in [Profile::Jcs, Profile::AhdJs1] {
            let text = canon::canonical(&value, profile);
            let again = canon::read(&text, integers).expect("canonical text is strict JSON");
            assert_eq!(canon::canonical(&again, profile), text);
        }
    }
});
