//! Runs that wait for people, kept in memory so that an answer does not cost the reading of a whole Task.
//!
//! Never the truth: what is not here, because the process is a new one, because others needed the room or because another
//! process has gone on with the Task, is read from the log.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use canon::{Digest, Value};
use domain::{PermissionId, Position};
use runs::workflow::{EffectRequest, Machine, Transcript};

use super::run::Record;
use crate::cache::Recent;

/// What all of them may hold together, as far as it can be told.
const BYTES_MAX: usize = 64 * 1024 * 1024;
/// What a run holds beside what it was told. It bounds how many there are, too.
const RUN_BYTES: usize = 8 * 1024;

/// How far a run has come.
#[derive(Clone)]
pub(super) struct Progress {
    /// The last model request: the next one usually goes on from it.
    pub(super) last_request: Option<(String, Transcript)>,
    pub(super) checkpoints: u64,
    /// The version of the workflow that is stepped.
    pub(super) workflow: Option<Digest>,
    /// The run knows every result up to here.
    pub(super) through: Position,
    /// What it was told so far, in bytes of memory.
    pub(super) weight: usize,
}

impl Default for Progress {
    fn default() -> Self {
        Self {
            last_request: None,
            checkpoints: 0,
            workflow: None,
            through: Position::START,
            weight: 0,
        }
    }
}

/// A run that has asked people something.
pub(super) struct PausedRun {
    pub(super) machine: Box<dyn Machine>,
    /// The step that it stands at.
    pub(super) effects: Vec<EffectRequest>,
    /// What was recorded of that step before it asked.
    pub(super) known: Record,
    /// A question that is asked in the same commit which records the last of what the run was told.
    pub(super) asked: PermissionId,
    pub(super) progress: Progress,
}

/// The runs that wait, by Task.
pub(super) struct PausedRuns {
    runs: Mutex<Recent<Position, PausedRun>>,
}

impl Default for PausedRuns {
    fn default() -> Self {
        Self::within(BYTES_MAX)
    }
}

impl PausedRuns {
    fn within(bytes_max: usize) -> Self {
        Self {
            runs: Mutex::new(Recent::new(bytes_max)),
        }
    }

    /// Keeps a run, in place of those that have waited longest. One that would take most of the room is not kept.
    pub(super) fn put(&self, task: Position, run: PausedRun) {
        let weight = RUN_BYTES + run.progress.weight;
        let mut runs = self.lock();
        if weight <= runs.weight_max() {
            runs.insert(task, run, weight);
        }
    }

    /// Takes a run out, to go on with it or to let go of it.
    pub(super) fn take(&self, task: Position) -> Option<PausedRun> {
        self.lock().remove(&task)
    }

    fn lock(&self) -> MutexGuard<'_, Recent<Position, PausedRun>> {
        // Each change leaves whole entries.
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for PausedRuns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PausedRuns").finish_non_exhaustive()
    }
}

/// Returns about how many bytes of memory a value takes.
pub(super) fn weight_of(value: &Value) -> usize {
    /// A member of a map or list, its share of the container included.
    const MEMBER_BYTES: usize = 96;
    let inner = match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => text.len(),
        Value::Array(values) => values.iter().map(weight_of).sum(),
        Value::Object(members) => members
            .iter()
            .map(|(name, value)| name.len() + weight_of(value))
            .sum(),
    };
    MEMBER_BYTES + inner
}

#[cfg(test)]
mod tests {
    use runs::workflow::{EffectAnswer, Step};
    use serde_json::json;

    use super::*;

    struct Still;

    impl Machine for Still {
        fn step(&mut self, _: &[EffectAnswer]) -> Step {
            unreachable!("it only waits")
        }
    }

    fn run(weight: usize) -> PausedRun {
        PausedRun {
            machine: Box::new(Still),
            effects: Vec::new(),
            known: Record::default(),
            asked: PermissionId::from_body("1"),
            progress: Progress {
                weight,
                ..Progress::default()
            },
        }
    }

    #[test]
    fn runs_that_wait_take_no_more_than_their_room() {
        let runs = PausedRuns::within(20 * RUN_BYTES);
        for task in 0..1_000 {
            runs.put(Position(task), run(0));
        }
        runs.put(Position(1_000), run(100 * RUN_BYTES));
        assert!(runs.take(Position(1_000)).is_none(), "too heavy");
        let kept: Vec<u64> = (0..1_000)
            .filter(|task| runs.take(Position(*task)).is_some())
            .collect();
        assert!((10..=20).contains(&kept.len()), "{kept:?}");
        let newest: Vec<u64> = (1_000 - kept.len() as u64..1_000).collect();
        assert_eq!(kept, newest, "those that have waited longest go first");
    }

    #[test]
    fn a_run_is_taken_out_once_and_gives_its_room_back() {
        let runs = PausedRuns::within(4 * RUN_BYTES);
        runs.put(Position(1), run(0));
        for _ in 0..100 {
            runs.put(Position(2), run(0));
            assert!(runs.take(Position(2)).is_some());
            assert!(runs.take(Position(2)).is_none());
        }
        assert!(runs.take(Position(1)).is_some());
    }

    #[test]
    fn a_value_weighs_at_least_its_text() {
        let value =
            json!({"text": "a".repeat(10_000), "list": [1, null, {"more": "b".repeat(5_000)}]});
        assert!(weight_of(&value) >= value.to_string().len());
    }
}
