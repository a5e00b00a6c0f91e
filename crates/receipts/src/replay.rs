//! What is special about the receipt of a replay: its exact member set, its deltas and its ids.
//!
//! Everything is a function of the facts: two servers with the same source and request must come to
//! the same bytes, unless the replay performed something itself. Running the replay is not done here.

use std::collections::BTreeSet;

use canon::{Map, Value};

use crate::{
    build::{
        self, BuildError, artifact, consumed, cost, digest_or_null, identifiers, issuer, lifecycle,
        list, no_model, object, optional_text, redaction, replay_input, side_effects, some,
        some_list, subject, text, trust,
    },
    facts::{Applied, Material, MaterialContent, ReplayFacts},
    format::FORMAT,
    receipt::{REPLAY_SEGMENT, Receipt},
    shape::push_step,
};

/// Builds the receipt of a finished replay, unsigned. As with that of a task, content always fits.
///
/// # Errors
/// Who issues the receipt, about what or when cannot be said in the format.
pub fn build_replay(facts: &ReplayFacts) -> Result<Receipt, BuildError> {
    build::seal_fitting(|| replay_map(facts))
}

fn replay_map(facts: &ReplayFacts) -> Map<String, Value> {
    let live = &facts.live;
    let mut redactions = facts.redactions.clone();
    let cost = cost(&facts.currency, &live.model_calls, &mut redactions);
    let input = &facts.replay_input;
    object([
        ("schema", text(FORMAT)),
        ("receipt_id", text(&facts.receipt_id)),
        (
            "subject",
            subject(REPLAY_SEGMENT, &facts.identifiers.task_id),
        ),
        ("issuer", issuer(&facts.issuer, None)),
        ("issued_at", text(&facts.issued_at)),
        ("identifiers", identifiers(&facts.identifiers)),
        ("lifecycle", lifecycle(&facts.lifecycle)),
        ("trust", trust(&facts.trust)),
        (
            "autonomy_budget",
            some(object([("consumed", consumed(&live.consumed))])),
        ),
        (
            "replay_input",
            replay_input(input, ordered(&input.materials).into_iter()),
        ),
        ("model_route", route(facts)),
        ("cost", cost),
        ("side_effects", side_effects(&live.side_effects)),
        ("final_artifacts", list(&facts.final_artifacts, artifact)),
        (
            "chain",
            some(object([(
                "previous_receipt_hash",
                Some(digest_or_null(facts.source_receipt_hash)),
            )])),
        ),
        ("deltas", some_list(deltas(&facts.applied))),
        ("redactions", list(&redactions, redaction)),
        ("signatures", some_list(Vec::new())),
        (
            "metadata",
            some(object([
                ("source", text(&facts.source)),
                ("source_task_id", text(&facts.source_task_id)),
                ("replay_mode", text(&facts.replay_mode)),
            ])),
        ),
    ])
}

/// The model that was called where the replay went on live, else the one whose recorded answers were used.
fn route(facts: &ReplayFacts) -> Option<Value> {
    if !facts.live.model_calls.is_empty() {
        let reason = "called live from where the replay left its record";
        return build::model_route(&facts.live.model_calls, reason, &[]);
    }
    let (chosen, reason) = match &facts.chosen_model {
        Some(model) => (model.clone(), "replayed from recorded provider response"),
        None => no_model(),
    };
    some(object([
        ("chosen_model", some(build::model(&chosen))),
        ("alternatives_considered", some_list(Vec::new())),
        ("route_policy_reason", text(reason)),
    ]))
}

/// Returns the id of the n-th replay of a task, counting from 1.
pub fn replay_task_id(source_task_id: &str, ordinal: u64) -> String {
    let body = strip(source_task_id, "task_");
    format!("task_replay_{}{}", strip(body, "source_"), suffix(ordinal))
}

/// Returns the id of the receipt of the n-th replay, from the source receipt, or from the source task
/// if that has none.
pub fn replay_receipt_id(
    source_receipt_id: Option<&str>,
    source_task_id: &str,
    ordinal: u64,
) -> String {
    let body = source_receipt_id.map_or_else(
        || strip(source_task_id, "task_"),
        |receipt_id| strip(receipt_id, "receipt_"),
    );
    format!("receipt_replay_{body}{}", suffix(ordinal))
}

/// Returns the id of the n-th final artifact of a replay task, counting from 1.
pub fn replay_artifact_id(replay_task_id: &str, number: u64) -> String {
    let body = strip(strip(replay_task_id, "task_"), "replay_");
    format!("artifact_replay_{body}_{number}")
}

fn strip<'a>(id: &'a str, prefix: &str) -> &'a str {
    id.strip_prefix(prefix).unwrap_or(id)
}

fn suffix(ordinal: u64) -> String {
    if ordinal < 2 {
        String::new()
    } else {
        format!("_{ordinal}")
    }
}

/// Overridden materials by key, then recorded ones by key.
fn ordered(materials: &[Material]) -> Vec<&Material> {
    let mut materials: Vec<&Material> = materials.iter().collect();
    materials.sort_by(|a, b| {
        let recorded = |m: &Material| !matches!(m.content, MaterialContent::Overridden { .. });
        (recorded(a), a.id.as_bytes()).cmp(&(recorded(b), b.id.as_bytes()))
    });
    materials
}

fn deltas(applied: &[Applied]) -> Vec<Value> {
    let mut applied: Vec<&Applied> = applied.iter().collect();
    applied.sort_by_key(|applied| applied.key.as_bytes());
    let mut taken = BTreeSet::new();
    let in_order = applied.into_iter();
    in_order
        .map(|applied| Value::Object(delta(applied, delta_id(&applied.key, &mut taken))))
        .collect()
}

/// Returns the ids of the deltas of overrides, given their keys in order.
pub fn delta_ids<'a>(keys: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let mut taken = BTreeSet::new();
    keys.into_iter()
        .map(|key| delta_id(key, &mut taken))
        .collect()
}

fn delta(applied: &Applied, id: String) -> Map<String, Value> {
    // Not even the digest of a secret leaves: a short secret can be guessed from it.
    let is_secret = applied.key.starts_with("secret:");
    let hash = |hash| (!is_secret).then(|| digest_or_null(hash));
    object([
        ("delta_id", text(&id)),
        ("operation", text(applied.operation.as_str())),
        ("path", text(&delta_path(&applied.key))),
        ("override_key", text(&applied.key)),
        ("event_id", optional_text(&applied.event_id)),
        ("before_sha256", hash(applied.before_sha256)),
        ("after_sha256", hash(applied.after_sha256)),
        ("artifact_id", optional_text(&applied.artifact_id)),
        ("reason", text(&applied.reason)),
    ])
}

/// Different keys can give one id; later ones in key order get a number.
fn delta_id(key: &str, taken: &mut BTreeSet<String>) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    let base: String = "delta_".chars().chain(key.chars().map(plain)).collect();
    let numbered = (2..).map(|number| format!("{base}_{number}"));
    let mut candidates = std::iter::once(base.clone()).chain(numbered);
    // Invariant: the candidates never end and `taken` does.
    let id = candidates.find(|id| !taken.contains(id)).unwrap_or(base);
    taken.insert(id.clone());
    id
}

/// Says what an override changed. Values that are no material of their own, times and secrets, are
/// found in the event log.
fn delta_path(key: &str) -> String {
    let (kind, rest) = key.split_once(':').unwrap_or((key, ""));
    let mut path = String::new();
    match kind {
        "time" if ["created_at", "started_at", "completed_at"].contains(&rest) => {
            push_step(&mut path, "lifecycle");
            push_step(&mut path, rest);
        }
        "time" | "secret" => {
            path.push_str("/replay_input/materials/event_log");
            push_step(&mut path, key);
        }
        "event" => {
            push_step(&mut path, "events");
            push_step(&mut path, rest);
            push_step(&mut path, "payload");
        }
        _ => {
            path.push_str("/replay_input/materials");
            push_step(&mut path, key);
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_follow_the_source() {
        assert_eq!(replay_task_id("task_source_01J", 1), "task_replay_01J");
        assert_eq!(replay_task_id("task_01J", 3), "task_replay_01J_3");
        assert_eq!(
            replay_task_id("task_replay_01J", 1),
            "task_replay_replay_01J"
        );
        assert_eq!(
            replay_receipt_id(Some("receipt_01R"), "task_01J", 1),
            "receipt_replay_01R"
        );
        assert_eq!(
            replay_receipt_id(None, "task_01J", 2),
            "receipt_replay_01J_2"
        );
        assert_eq!(
            replay_artifact_id("task_replay_01J", 1),
            "artifact_replay_01J_1"
        );
    }

    #[test]
    fn paths_follow_the_key() {
        for (key, path) in [
            ("llm:main:1", "/replay_input/materials/llm:main:1"),
            (
                "host:fs.read:main/review.2:1",
                "/replay_input/materials/host:fs.read:main~1review.2:1",
            ),
            ("time:started_at", "/lifecycle/started_at"),
            (
                "time:started_at:2",
                "/replay_input/materials/event_log/time:started_at:2",
            ),
            (
                "secret:token",
                "/replay_input/materials/event_log/secret:token",
            ),
            ("event:event_7", "/events/event_7/payload"),
        ] {
            assert_eq!(delta_path(key), path);
        }
    }

    #[test]
    fn colliding_delta_ids_are_numbered() {
        let mut taken = BTreeSet::new();
        let mut id = |key| delta_id(key, &mut taken);
        assert_eq!(id("llm:main:1"), "delta_llm_main_1");
        assert_eq!(id("llm:main_1"), "delta_llm_main_1_2");
        assert_eq!(id("llm_main:1"), "delta_llm_main_1_3");
        assert_eq!(id("llm:main:1:2"), "delta_llm_main_1_2_2");
    }
}
