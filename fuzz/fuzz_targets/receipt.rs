//! The receipt reader and the verifier: both readers agree, and no document makes them panic.

#![no_main]

use libfuzzer_sys::fuzz_target;
use receipts::verify::{Evidence, Form, Keys, Predecessor};
use receipts::{KeySet, Receipt, stream};

fuzz_target!(|bytes: &[u8]| {
    let read = Receipt::read(bytes);
    if let Ok(receipt) = &read {
        let again = Receipt::read(&receipt.bytes()).expect("its own bytes are a receipt");
        assert_eq!(again.hash(), receipt.hash());
        assert_eq!(again.bytes(), receipt.bytes());
    }
    // The fast check takes nothing that the slow one refuses.
    if stream::check(bytes).is_ok() {
        stream::check_by_value(bytes).expect("both checks agree");
    }
    let report = receipts::verify(
        bytes,
        &Evidence {
            form: Form::AnyJson,
            predecessor: Predecessor::NotAsked,
            batches: &[],
            inclusion: None,
            keys: Keys::Given(&KeySet::default()),
            at_time: None,
            trust_anchor: None,
            references: None,
        },
    );
    assert_eq!(read.is_ok(), report.receipt_id.is_some());
});
