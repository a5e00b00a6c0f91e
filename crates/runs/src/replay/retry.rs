//! Taking up a run that failed for a passing reason: where it goes on, and what must not be done again.

use canon::Value;
use domain::{Status, payload};

use super::source::Source;

/// A run that cannot be taken up again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoRetry {
    /// It did not fail.
    #[error("only a task that failed can be taken up again; this one is {}", .0.as_str())]
    NotFailed(Status),
    /// Nothing that it asked for failed: it would end the same way again.
    #[error("nothing that the task asked for failed: it would end the same way again")]
    NothingFailed,
    /// Nobody knows whether something happened that must not happen twice.
    #[error("nobody knows what came of `{0}`, and it must not happen twice")]
    ResultUnknown(String),
}

/// Returns the request that takes a run up again: from its last checkpoint, with everything that has a result on record
/// served from there.
///
/// # Errors
/// It did not fail, nothing in it did, or going on could repeat something.
pub fn retry(source: &Source) -> Result<Value, NoRetry> {
    if source.status != Status::Failed {
        return Err(NoRetry::NotFailed(source.status));
    }
    let last = source.checkpoints().last();
    let from = last.map_or(0, |(place, _)| place);
    let mut has_failed = false;
    for (key, places) in source.effects() {
        let place = places.requested.or(places.recorded).unwrap_or_default();
        if place < from || places.asked.is_some() {
            continue;
        }
        let is_lost = match places.recorded {
            None => true,
            Some(recorded) => source
                .answer(recorded)
                .is_some_and(|answer| !answer.ok && answer.interruption().is_none()),
        };
        if !is_lost {
            continue;
        }
        has_failed = true;
        let requested = places.requested.and_then(|place| source.event(place));
        let repeatable =
            requested.and_then(|event| payload::EffectRequested::of(&event.payload).repeatable());
        if repeatable != Some(true) {
            return Err(NoRetry::ResultUnknown(key.to_owned()));
        }
    }
    if !has_failed {
        return Err(NoRetry::NothingFailed);
    }
    let mut request = serde_json::json!({
        "mode": "with_overrides", "refresh": ["model", "tools"], "retry": true,
    });
    if let (Some((_, id)), Value::Object(request)) = (last, &mut request) {
        request.insert("mode".to_owned(), "from_checkpoint".into());
        request.insert("checkpoint_id".to_owned(), id.into());
    }
    Ok(request)
}
