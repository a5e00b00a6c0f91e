//! The keys that sign receipts: rotation, and a file that cannot be read.

use std::fs;

use serde_json::Value;

use super::{Ran, get};
use crate::world::World;

#[test]
fn a_rotated_key_leaves_old_receipts_valid() {
    let mut ran = Ran::new(1);
    let said = ran.world.run(&["receipt", "rotate-key"]);
    assert_eq!(said.code, 2, "a server holds the directory: {said:?}");
    ran.stop();
    let rotated = ran.world.json(&["receipt", "rotate-key", "--json"]);
    assert_ne!(rotated["active"], rotated["previous"]);
    ran.server = Some(ran.world.serve());
    assert_eq!(ran.verify(&[&ran.receipts[0]]).0.code, 0);
    // A key that begins now must not be asked to vouch for this very second's past.
    let task = ran.world.submit("agent");
    let shown = ran.world.json(&["receipt", "show", &task, "--json"]);
    assert_eq!(shown["signatures"][0]["key_id"], rotated["active"]);
    assert_eq!(ran.verify(&[&task]).0.code, 0);
    let (_, value) = ran.verify(&[&task, "--at-time", "2020-01-01T00:00:00Z"]);
    assert_eq!(value["reason"], "key_not_valid_at_time");
    let keys: Value = serde_json::from_str(&get(
        &ran.server.as_ref().unwrap().url,
        "/.well-known/jwks.json",
    ))
    .unwrap();
    assert_eq!(keys["keys"].as_array().unwrap().len(), 2);
    assert!(keys["keys"][0]["exp"].is_i64(), "{keys}");
    assert!(!keys.to_string().contains("\"d\""));
    let text = fs::read_to_string(ran.world.data().join("signing-keys.json")).unwrap();
    for word in text.split('"').filter(|word| word.len() == 43) {
        assert!(!keys.to_string().contains(word), "a seed is published");
    }
}

#[test]
fn a_key_file_that_cannot_be_read_stops_the_start_with_advice() {
    let world = World::new();
    world.serve().stop();
    let file = world.data().join("signing-keys.json");
    let good = fs::read_to_string(&file).unwrap();
    for bad in ["", "{", &good.replace("seed", "sead")] {
        fs::write(&file, bad).unwrap();
        let said = world.run(&["serve", "--listen", "127.0.0.1:0"]);
        assert_eq!(said.code, 2, "{said:?}");
        assert!(said.stderr.contains("signing-keys.json"), "{said:?}");
        assert!(
            said.stderr.contains("hint: restore it from a backup"),
            "{said:?}"
        );
        assert_eq!(fs::read_to_string(&file).unwrap(), bad, "left alone");
    }
    fs::write(&file, good).unwrap();
    world.serve().stop();
}
