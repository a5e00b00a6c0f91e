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

use domain::{TaskId, payload};

/// Returns the payload of `replay.started`.
pub fn started(source: &Source, spec: &Spec) -> payload::ReplayStarted {
    let started = announced(&source.task_id, spec);
    let keys = spec.overrides.keys();
    let unmatched: Vec<&String> = keys.filter(|key| !source.has_key(key)).collect();
    match unmatched.is_empty() {
        true => started,
        false => started.unmatched_keys(json!(unmatched)),
    }
}

/// Returns what can be said of a replay without its source.
pub fn announced(source: &TaskId, spec: &Spec) -> payload::ReplayStarted {
    let keys: Vec<&String> = spec.overrides.keys().collect();
    let started = payload::ReplayStarted::default().source_task_id(source.as_str());
    let mut started = started.mode(json!(spec.mode)).override_keys(json!(keys));
    if let Some(checkpoint) = &spec.checkpoint {
        started = started.checkpoint_id(json!(checkpoint));
    }
    if !spec.event_id_unmatched.is_empty() {
        started = started.event_id_unmatched(json!(spec.event_id_unmatched));
    }
    if !spec.refresh.is_empty() {
        started = started.refresh(json!(spec.refresh));
    }
    started
}
