//! A bounded number of damaged inputs for every target. `cargo xtask fuzz` tries more.

use fuzzing::{TARGETS, attack, bound_memory};

/// Damaged inputs of each target.
const INPUTS: u64 = 400;

#[test]
fn no_decoder_that_others_reach_falls_over_damaged_input() {
    bound_memory();
    for target in TARGETS {
        match attack(target, 1, INPUTS, None) {
            Ok(tried) => assert!(tried > INPUTS, "{}: only {tried}", target.name),
            Err(found) => panic!(
                "{}: {}\n{}",
                found.target,
                found.problem,
                found.input.escape_ascii()
            ),
        }
    }
}

/// A target whose good input is refused at once tries nothing behind the first check.
#[test]
fn what_the_inputs_are_made_from_is_good() {
    use runs::replay::Bundle;
    for name in [
        "bundles", "events", "receipts", "archives", "key_sets", "notes", "streams", "field",
        "json_rpc",
    ] {
        let target = TARGETS.iter().find(|target| target.name == name);
        let seeds = target.map(|target| (target.seeds)()).unwrap_or_default();
        assert!(!seeds.is_empty(), "{name}");
        for seed in seeds {
            let is_read = match name {
                "bundles" => Bundle::read(&seed).is_ok(),
                "events" => domain::Event::parse(&seed).is_ok(),
                "receipts" => receipts::Receipt::read(&seed).is_ok(),
                "archives" => receipts::cbor::read(&seed).is_ok(),
                "key_sets" => receipts::KeySet::from_jwks(&seed).is_ok(),
                "streams" => fuzzing::read_stream(&seed)
                    .is_some_and(|(_, reply)| !reply.response().calls.is_empty()),
                "field" => field::Envelope::read(&seed, &field::Limits::standard(), None).is_ok(),
                "json_rpc" => wire::json_rpc::id_of(&seed).is_ok(),
                _ => {
                    let text = String::from_utf8_lossy(&seed);
                    receipts::note::Note::read(&seed).is_ok()
                        || receipts::note::Checkpoint::read(&text).is_ok()
                }
            };
            assert!(is_read, "{name}: {}", seed.escape_ascii());
        }
    }
}
