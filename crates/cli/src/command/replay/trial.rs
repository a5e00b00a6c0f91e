//! A trial of a changed replay, before anybody is asked for it: does the run come to ask for everything that is replaced?
//!
//! Keys of the record are not enough to tell: a change may lead the run onto another path, on which it asks for what no
//! record names, or no longer asks for what it does. The trial writes nothing and performs nothing.

use std::collections::BTreeMap;

use canon::{Map, Value};
use runs::replay::{self, Failure, Progress, ReadArtifact, Replayed, Source};
use runs::workflow::{Registry, builtin};

use crate::exit::Problem;

/// Refuses what the run never asks for. What the request does not allow is left to whoever reads it next.
pub(super) fn check(
    source: &Source,
    body: &Map<String, Value>,
    artifacts: &BTreeMap<String, ReadArtifact>,
    is_conformance: bool,
) -> anyhow::Result<()> {
    let body = Value::Object(body.clone());
    let Ok((spec, secrets)) = replay::read(&body, source, artifacts, is_conformance) else {
        return Ok(());
    };
    let workflows = Registry::new(builtin());
    match replay::run(source, &workflows, &spec, &secrets, BTreeMap::new()) {
        Progress::Ended(replayed) => judge(&replayed),
        // What comes after something live nobody knows yet.
        Progress::Needs(_) => Ok(()),
    }
}

fn judge(replayed: &Replayed) -> anyhow::Result<()> {
    let Some(unused) = replayed.unused.first() else {
        return Ok(());
    };
    let missing = match &replayed.end.broken {
        None => None,
        Some(Failure::Unavailable { first, .. }) if first.reason == "not_recorded" => {
            first.key.as_ref()
        }
        // Something else stands in the way, which the replay itself tells with its place.
        Some(_) => return Ok(()),
    };
    let problem = match missing {
        Some(missing) => Problem::new(
            format!(
                "the changed run stops at `{missing}`, which has no recorded answer, and never asks for `{unused}`"
            ),
            match missing.starts_with("host:approval:") {
                true => format!(
                    "nothing was replayed; decide that too with --set {missing}=approve, or deny"
                ),
                false => format!(
                    "nothing was replayed; answer that too with --set {missing}=TEXT, or ask for it live with --refresh"
                ),
            },
        ),
        None => Problem::new(
            format!("the run never asks for `{unused}`"),
            "nothing was replayed; --list shows what the recorded run asked for",
        ),
    };
    Err(problem.answers_no().into())
}

/// Refuses keys that the record does not name, where only its events can be read and no trial is possible.
pub(super) fn check_names<'a>(
    source: &Source,
    keys: impl Iterator<Item = &'a str>,
) -> anyhow::Result<()> {
    // What is no key at all is told when the request is put together.
    let mut keys = keys.filter(|key| replay::kind_of(key).is_some());
    match keys.find(|key| !source.names(key)) {
        None => Ok(()),
        Some(key) => Err(Problem::new(
            format!("the recorded run never asks for `{key}`"),
            "nothing was replayed; a key with `internal:read` and `receipts:read` can also change what only the changed run asks for",
        )
        .answers_no()
        .into()),
    }
}
