//! The latest steps, and how often each call occurs among those that loop detection looks at.

use std::collections::{BTreeMap, VecDeque};

use canon::Digest;

use super::CompletedStep;

/// The latest steps: at least 100, and never fewer than the window of loop detection.
#[derive(Debug, Clone)]
pub(crate) struct Recent {
    steps: VecDeque<Step>,
    total: u64,
    window: usize,
    counts: BTreeMap<(String, Digest), u64>,
}

#[derive(Debug, Clone)]
struct Step {
    completed: CompletedStep,
    calls: Vec<(String, Digest)>,
}

const KEPT_MIN: usize = 100;

impl Recent {
    pub(crate) fn new(window: Option<u64>) -> Self {
        let window = usize::try_from(window.unwrap_or_default()).unwrap_or(usize::MAX);
        Self {
            steps: VecDeque::new(),
            total: 0,
            window,
            counts: BTreeMap::new(),
        }
    }

    /// Returns the number of all steps, those forgotten included.
    pub(crate) fn steps(&self) -> u64 {
        self.total
    }

    pub(crate) fn last(&self) -> Option<&CompletedStep> {
        self.steps.back().map(|step| &step.completed)
    }

    /// Returns how often a call occurs in the window.
    pub(crate) fn count(&self, tool: &str, arguments: Digest) -> u64 {
        if self.counts.is_empty() {
            return 0;
        }
        let count = self.counts.get(&(tool.to_owned(), arguments));
        count.copied().unwrap_or_default()
    }

    pub(crate) fn push(&mut self, completed: CompletedStep, calls: Vec<(String, Digest)>) {
        self.total += 1;
        if self.window > 0 {
            for call in &calls {
                *self.counts.entry(call.clone()).or_default() += 1;
            }
        }
        self.steps.push_back(Step { completed, calls });
        let leaving = self.steps.len().checked_sub(self.window + 1);
        let leaving = leaving.filter(|_| self.window > 0);
        let leaving = leaving.and_then(|index| self.steps.get(index));
        for call in leaving.map(|step| step.calls.clone()).unwrap_or_default() {
            self.uncount(&call);
        }
        if self.steps.len() > self.window.max(KEPT_MIN) {
            self.steps.pop_front();
        }
    }

    /// Forgets a call that never happened.
    pub(crate) fn forget(&mut self, step: u64, tool: &str, arguments: Digest) {
        let call = (tool.to_owned(), arguments);
        let first = self.total.saturating_sub(self.steps.len() as u64) + 1;
        let Some(index) = step.checked_sub(first) else {
            return;
        };
        let index = usize::try_from(index).unwrap_or(usize::MAX);
        let in_window = self.steps.len().saturating_sub(index) <= self.window;
        let Some(entry) = self.steps.get_mut(index) else {
            return;
        };
        let Some(place) = entry.calls.iter().position(|other| *other == call) else {
            return;
        };
        entry.calls.remove(place);
        if in_window {
            self.uncount(&call);
        }
    }

    fn uncount(&mut self, call: &(String, Digest)) {
        if let Some(count) = self.counts.get_mut(call) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.counts.remove(call);
            }
        }
    }
}
