//! What the operator and the field itself do outside the protocol: retract, enrich, escalate, fail an agent.

use domain::Timestamp;
use serde_json::json;

use super::{Decision, Embedding, next_epoch};
use crate::caller::{self, CallSeed, Caller, OPERATOR, STANDARD};
use crate::config::{LINE_BYTES_MAX, Level};
use crate::error::{Check, Code, Fault};
use crate::event::{Content, Entry, Event, SYSTEM};
use crate::kind::{ConflictStatus, UnitStatus};
use crate::state::Field;
use crate::vector::Model;

/// An act that is not a message of the protocol.
#[derive(Debug, Clone, PartialEq)]
pub enum Administration {
    /// Takes a unit back, from level 1 on: its author with authority 4, or the operator.
    Retract {
        /// The checked credential; needed from level 2.
        caller: Option<Caller>,
        /// Who does it.
        agent_id: String,
        /// The unit.
        unit_id: String,
        /// Why.
        reason: String,
    },
    /// Gives a unit the vector that it waits for.
    Enrich {
        /// The unit.
        unit_id: String,
        /// Its vector.
        embedding: Embedding,
    },
    /// Hands a conflict whose vote takes too long to the operator.
    Escalate {
        /// The conflict.
        conflict_id: String,
        /// Why.
        reason: String,
    },
    /// Marks an agent as failed.
    Fail {
        /// The agent.
        agent_id: String,
        /// Why.
        reason: String,
    },
}

pub(super) fn decide(field: &Field, act: &Administration, fresh: &CallSeed) -> Check<Decision> {
    let epoch = next_epoch(field, 0)?;
    let mut session_id = None;
    let (agent_id, event, content) = match act {
        Administration::Retract {
            caller,
            agent_id,
            unit_id,
            reason,
        } => {
            let event = retract(field, caller.as_ref(), agent_id, unit_id, reason)?;
            // The reason is for those who see the unit.
            session_id = field.unit(unit_id).and_then(|unit| unit.session.clone());
            (agent_id.as_str(), event, None)
        }
        Administration::Enrich { unit_id, embedding } => {
            let (event, content) = enrich(field, unit_id, embedding)?;
            (SYSTEM, event, content)
        }
        Administration::Escalate {
            conflict_id,
            reason,
        } => (SYSTEM, escalate(field, conflict_id, reason)?, None),
        Administration::Fail { agent_id, reason } => {
            check_reason(reason)?;
            if field.active(agent_id).is_none() {
                let message = "there is no such active agent";
                return Err(Fault::new(Code::AgentNotRegistered, message));
            }
            let event = Event::AgentFailed {
                agent_id: agent_id.clone(),
                reason: reason.clone(),
            };
            (SYSTEM, event, None)
        }
    };
    let entry = Entry {
        seq: field.head.saturating_add(1),
        at: fresh.now,
        epoch,
        agent_id: agent_id.to_owned(),
        session_id,
        message: None,
        event,
    };
    Ok(Decision {
        steps: vec![(entry, content)],
        answer: json!({"status": "ok", "epoch": epoch}),
        kept: crate::stored_answer::StoredAnswer::Whole,
    })
}

fn check_reason(reason: &str) -> Check<()> {
    if reason.trim().is_empty() || reason.len() > LINE_BYTES_MAX {
        let message = format!("`reason` is not a text of 1 to {LINE_BYTES_MAX} bytes");
        return Err(Fault::request(message));
    }
    Ok(())
}

fn no_unit() -> Fault {
    Fault::new(Code::UnitNotFound, "there is no unit under `unit_id`")
}

fn retract(
    field: &Field,
    caller: Option<&Caller>,
    agent: &str,
    id: &str,
    reason: &str,
) -> Check<Event> {
    let level = field.config.level;
    if caller.is_none() && level >= Level::Standard {
        let message = "this field needs a credential";
        return Err(Fault::new(Code::Unauthenticated, message));
    }
    if !field.may_act(caller, agent) {
        let message = "the credential may not act for `agent_id`";
        return Err(Fault::new(Code::Forbidden, message));
    }
    if level < Level::Core {
        let message = format!("units are not retracted at level {}", level.number());
        return Err(Fault::new(Code::UnsupportedOperation, message));
    }
    let Some(sender) = field.active(agent) else {
        let message = "`agent_id` is not registered";
        return Err(Fault::new(Code::AgentNotRegistered, message));
    };
    check_reason(reason)?;
    let authority = caller::effective(level, caller, sender.authority);
    let unit = field.unit(id).ok_or_else(no_unit)?;
    let is_author = unit.author == agent;
    if !is_author && authority < OPERATOR && !field.sees(agent, unit) {
        return Err(no_unit());
    }
    let least = if is_author { STANDARD } else { OPERATOR };
    if authority < least {
        let message = match is_author {
            true => "this needs authority 4",
            false => "only the author and the operator retract a unit",
        };
        return Err(Fault::new(Code::Forbidden, message));
    }
    match unit.status {
        UnitStatus::Superseded | UnitStatus::Retracted => Err(Fault::new(
            Code::InvalidTransition,
            format!("the unit is {}", unit.status),
        )),
        UnitStatus::Active
        | UnitStatus::Draft
        | UnitStatus::Contested
        | UnitStatus::PendingEnrichment => Ok(Event::Retracted {
            unit_id: id.to_owned(),
            reason: reason.to_owned(),
        }),
    }
}

fn enrich(field: &Field, id: &str, embedding: &Embedding) -> Check<(Event, Option<Content>)> {
    let unit = field.unit(id).ok_or_else(no_unit)?;
    let waits = unit.status == UnitStatus::PendingEnrichment
        || (unit.status == UnitStatus::Contested
            && unit.uncontested == UnitStatus::PendingEnrichment);
    if !waits || unit.is_purged() {
        let message = "the unit does not wait for a vector";
        return Err(Fault::new(Code::InvalidTransition, message));
    }
    let (model, vector) = match embedding {
        Embedding::BuiltIn => (Model::hash_1024(), None),
        Embedding::Given(vector) => (vector.model.clone(), Some(vector.clone())),
        Embedding::Failed(reason) => {
            return Err(Fault::new(Code::EnrichmentFailed, reason.clone()));
        }
    };
    let content = Content { text: None, vector };
    let event = Event::Enriched {
        unit_id: id.to_owned(),
        model,
    };
    Ok((event, Some(content)))
}

fn escalate(field: &Field, id: &str, reason: &str) -> Check<Event> {
    check_reason(reason)?;
    let conflict = field.conflict(id).ok_or_else(|| {
        Fault::new(
            Code::ConflictNotFound,
            "there is no conflict under `conflict_id`",
        )
    })?;
    if conflict.status != ConflictStatus::Resolving {
        let message = format!("the conflict is {}", conflict.status);
        return Err(Fault::new(Code::InvalidTransition, message));
    }
    Ok(Event::ConflictEscalated {
        conflict_id: id.to_owned(),
        reason: reason.to_owned(),
    })
}

impl Field {
    /// Returns the conflicts that are voted on, each with the time at which the field gives up on the vote; none where it
    /// never does.
    pub fn votes(&self) -> impl Iterator<Item = (&str, Timestamp)> {
        let timeout = self.config.vote_timeout_us;
        let conflicts = timeout.map(|_| self.conflicts.iter());
        conflicts.into_iter().flatten().filter_map(move |conflict| {
            let first = match conflict.status {
                ConflictStatus::Resolving => conflict.first_vote?,
                ConflictStatus::Detected | ConflictStatus::Resolved | ConflictStatus::Escalated => {
                    return None;
                }
            };
            let end = first.as_micros().saturating_add(timeout?);
            Some((conflict.id.as_str(), Timestamp::from_micros(end)))
        })
    }

    /// Returns the units that wait for a vector, in log order.
    pub fn pending_enrichment(&self) -> impl Iterator<Item = &str> {
        self.units
            .iter()
            .filter(|unit| unit.status == UnitStatus::PendingEnrichment && !unit.is_purged())
            .map(|unit| unit.id.as_str())
    }
}
