//! Replay: the same workflow over a recorded run, exactly or with answers changed, without touching the outside.
//!
//! Pure: a source (its sealed log, its receipt, the blobs these name) and a request give the events, the end and the
//! receipt of the replay. The server writes them; the offline command prints them; both get the same bytes.

mod bundle;
pub mod diff;
mod exchanges;
mod failure;
mod keys;
pub mod live;
mod outcome;
mod preflight;
mod proof;
mod request;
mod retry;
mod run;
mod source;
pub mod transcript;

pub use bundle::Log;
pub use bundle::{
    BUNDLE_BYTES_MAX, BUNDLE_FORMAT, Bundle, ReadBundleError, bundle_names, request_names,
};
pub use exchanges::{Cost, Exchange, RunStart, exchanges};
pub use failure::{Divergence, Failure, Unavailable};
pub use keys::{Key, NoDecision, keys, kind_of, message_words, question, readable, text_value};
pub use outcome::{Emission, End, Replayed, failed_payload};
pub use proof::{CONFORMANCE_ISSUER, ReceiptIssuer, receipt};
pub use request::{
    Mode, Override, OverrideValue, ReadArtifact, Refresh, RequestError, Spec, artifacts_named,
    keys_to_check, read, read_with,
};
pub use retry::{NoRetry, retry};
pub use run::{LiveResults, PausedReplay, Progress, canceled, run};
pub use source::{ReadSourceError, Source, blobs_named};

use serde_json::json;

use canon::{Map, Value};
use domain::TaskId;

/// Returns the payload of `replay.started`.
pub fn started(source: &Source, spec: &Spec) -> Map<String, Value> {
    let mut payload = announced(&source.task_id, spec);
    let unmatched: Vec<&String> = spec
        .overrides
        .keys()
        .filter(|key| !source.has_key(key))
        .collect();
    if !unmatched.is_empty() {
        payload.insert("unmatched_keys".to_owned(), json!(unmatched));
    }
    payload
}

/// Returns what can be said of a replay without its source.
pub fn announced(source: &TaskId, spec: &Spec) -> Map<String, Value> {
    let mut payload = json!({
        "source_task_id": source,
        "mode": spec.mode,
        "override_keys": spec.overrides.keys().collect::<Vec<_>>(),
    });
    if let Value::Object(payload) = &mut payload {
        if let Some(checkpoint) = &spec.checkpoint {
            payload.insert("checkpoint_id".to_owned(), json!(checkpoint));
        }
        if !spec.event_id_unmatched.is_empty() {
            payload.insert(
                "event_id_unmatched".to_owned(),
                json!(spec.event_id_unmatched),
            );
        }
        if !spec.refresh.is_empty() {
            payload.insert("refresh".to_owned(), json!(spec.refresh));
        }
    }
    match payload {
        Value::Object(payload) => payload,
        _ => Map::new(),
    }
}
