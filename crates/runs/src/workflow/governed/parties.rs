//! Who works in a session or a workflow, and who decides in it: nobody does both.
//!
//! What was recorded before this was asked stays as it is: a session notes its parties, and whoever takes an input asks them first.

use std::collections::BTreeSet;

use domain::{GovernedInput, GovernedOperation};

/// Actors and keys, by what they did.
#[derive(Debug, Clone, Default)]
pub struct Parties {
    workers: BTreeSet<String>,
    deciders: BTreeSet<String>,
}

impl Parties {
    /// Takes note of an input that is recorded.
    pub(super) fn note(&mut self, input: &GovernedInput) {
        let party = match &input.operation {
            operation if is_work(operation) => &mut self.workers,
            // A session that joins a workflow is told by whoever opened it; everything else the server tells itself.
            GovernedOperation::Hear { .. } if input.key_id.is_some() => &mut self.workers,
            GovernedOperation::Decide(_) => &mut self.deciders,
            _ => return,
        };
        party.insert(input.actor.clone());
        party.extend(input.key_id.clone());
    }

    /// True for an actor or a key that works in it: opened it, prepared, proposed, reported or handed over.
    pub fn works(&self, actor: &str, key_id: Option<&str>) -> bool {
        has(&self.workers, actor, key_id)
    }

    /// True for an actor or a key that decided in it.
    pub fn decides(&self, actor: &str, key_id: Option<&str>) -> bool {
        has(&self.deciders, actor, key_id)
    }
}

fn has(party: &BTreeSet<String>, actor: &str, key_id: Option<&str>) -> bool {
    party.contains(actor) || key_id.is_some_and(|key| party.contains(key))
}

/// True for what only the program of a session does. Labels, filters and kills are for everybody who may write.
pub fn is_work(operation: &GovernedOperation) -> bool {
    match operation {
        GovernedOperation::Resume
        | GovernedOperation::Preflight(_)
        | GovernedOperation::Propose(_)
        | GovernedOperation::Report(_)
        | GovernedOperation::Capture { .. }
        | GovernedOperation::Heartbeat { .. }
        | GovernedOperation::Restore
        | GovernedOperation::Offer(_)
        | GovernedOperation::Accept { .. }
        | GovernedOperation::CloseOffer { .. } => true,
        GovernedOperation::AddLabel { .. }
        | GovernedOperation::SetFilter { .. }
        | GovernedOperation::ReportBypass { .. }
        | GovernedOperation::Decide(_)
        | GovernedOperation::Kill { .. }
        | GovernedOperation::Hear { .. }
        | GovernedOperation::Tick
        | GovernedOperation::Lose => false,
    }
}
