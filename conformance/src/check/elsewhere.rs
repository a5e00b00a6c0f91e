//! A source from another server: servers that take over finished tasks must come to the bytes of the vectors.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::replay::replayed;
use crate::json::text;
use crate::miss::{Checked, all_but, need};
use crate::wire::Wire;

/// The source `agent` of the vectors, as one file.
const BUNDLE: &[u8] = include_bytes!("../../vectors/replay/agent.bundle");

/// The receipt of its exact replay.
const EXPECTED: &str = include_str!("../../vectors/replay/cases/exact/receipt.json");

/// Imports the source and replays it here. The issuer is each server's own; everything else is the same everywhere.
pub(super) async fn equal(wire: &Wire) -> Checked {
    let import = || {
        wire.call(reqwest::Method::POST, "/v1/tasks/import")
            .bytes("application/jsonl", BUNDLE)
    };
    let answer = import().send().await?;
    // An extension: a server need not have it, and a key need not be an administrator's.
    if [403, 404, 405].contains(&answer.status) {
        return all_but("another server");
    }
    let task = answer.value_of(&[200, 201])?;
    let again = import().send().await?.value_of(&[200])?;
    need(again == task, task.to_string(), again.to_string())?;
    let replay = replayed(wire, &task, &json!({})).await?;
    let path = format!("/v1/receipts/{}?view=wire", text(&replay, "receipt_id"));
    let found = wire.get(path).made("read the bare receipt").await?;
    let expected: Value = serde_json::from_str(EXPECTED).unwrap_or_default();
    let (expected, found) = (plain(&expected), plain(&found));
    let names: BTreeSet<&String> = expected.keys().chain(found.keys()).collect();
    for name in names {
        let told = |members: &BTreeMap<String, String>| {
            let value = members.get(name).map_or("nothing", String::as_str);
            format!("`{name}` {value}")
        };
        let (expected, found) = (told(&expected), told(&found));
        need(expected == found, expected, found)?;
    }
    Ok(())
}

/// The members of a receipt without those that are a server's own, and with words for the ids of this replay.
fn plain(receipt: &Value) -> BTreeMap<String, String> {
    let members = receipt.as_object().into_iter().flatten();
    let members = members.filter(|(name, _)| !["signatures", "issuer"].contains(&name.as_str()));
    members
        .map(|(name, value)| {
            let value = value
                .to_string()
                .replace(text(receipt, "chain.receipt_hash"), "HASH")
                .replace(text(receipt, "receipt_id"), "RECEIPT")
                .replace(text(receipt, "subject.id"), "TASK");
            (name.clone(), value)
        })
        .collect()
}
