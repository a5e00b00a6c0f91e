//! The archive form: only the deterministic encoding of a receipt is read, so writing it gives the same bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use receipts::cbor;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(receipt) = cbor::read(bytes) {
        assert_eq!(cbor::write(&receipt), bytes);
    }
});
