//! Who works in a session or a workflow, and who decides in it: nobody does both.
//!
//! What was recorded before this was asked stays as it is: a session notes its parties, and whoever takes an input asks them first.

use std::collections::BTreeSet;

use domain::{GovernedInput, GovernedOperation, Party};

/// Actors and keys, by what they did.
#[derive(Debug, Clone, Default)]
pub struct Parties {
    workers: BTreeSet<String>,
    deciders: BTreeSet<String>,
}

impl Parties {
    /// Takes note of an input that is recorded.
    pub(super) fn note(&mut self, input: &GovernedInput) {
        let decides = match &input.operation {
            operation if is_work(operation) => false,
            GovernedOperation::Decide(_) => true,
            GovernedOperation::Hear { parties, .. } => {
                parties.iter().for_each(|party| self.add(party));
                if input.key_id.is_none() {
                    // What the server tells itself.
                    return;
                }
                // A session that joins a workflow is told by whoever opened it.
                false
            }
            _ => return,
        };
        self.add(&party(input, decides));
    }

    fn add(&mut self, party: &Party) {
        let names = match party.decides {
            true => &mut self.deciders,
            false => &mut self.workers,
        };
        names.insert(party.actor.clone());
        names.extend(party.key_id.clone());
    }

    /// Returns who sent an input of a session if they take part by it, and that is not noted here yet.
    pub fn new_party(&self, input: &GovernedInput) -> Option<Party> {
        let decides = matches!(input.operation, GovernedOperation::Decide(_));
        if !decides && !is_work(&input.operation) {
            return None;
        }
        let names = match decides {
            true => &self.deciders,
            false => &self.workers,
        };
        let key = input.key_id.as_ref();
        let known = names.contains(&input.actor) && key.is_none_or(|key| names.contains(key));
        (!known).then(|| party(input, decides))
    }

    /// True for an actor or a key that works in it: opened it, prepared, proposed, reported or handed over.
    pub fn is_worker(&self, actor: &str, key_id: Option<&str>) -> bool {
        has(&self.workers, actor, key_id)
    }

    /// True for an actor or a key that decided in it.
    pub fn is_decider(&self, actor: &str, key_id: Option<&str>) -> bool {
        has(&self.deciders, actor, key_id)
    }
}

fn party(input: &GovernedInput, decides: bool) -> Party {
    Party {
        actor: input.actor.clone(),
        key_id: input.key_id.clone(),
        decides,
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
