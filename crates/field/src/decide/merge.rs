//! MERGE: how a conflict ends.

use std::collections::BTreeMap;

use canon::Value;
use serde_json::json;

use super::{Synthesis, Work};
use crate::caller::{self, OPERATOR, STANDARD};
use crate::config::Level;
use crate::error::{Check, Code, Fault};
use crate::event::{Effect, Event, Merged, Outcome, UnitText};
use crate::kind::{AgentStatus, ConflictStatus, RelationType, Strategy, UnitStatus};
use crate::render;
use crate::state::{Conflict, Resolution, Row, Unit};

/// What a MERGE says.
struct Request {
    strategy: Strategy,
    rationale: String,
    winner: Option<String>,
    synthesis: Option<String>,
}

/// A conflict with its units.
struct Dispute<'a> {
    row: usize,
    conflict: &'a Conflict,
    a: &'a Unit,
    b: &'a Unit,
}

impl<'a> Dispute<'a> {
    fn of(&self, id: &str) -> Option<(Row, &'a Unit)> {
        if self.a.id == id {
            Some((self.conflict.a, self.a))
        } else if self.b.id == id {
            Some((self.conflict.b, self.b))
        } else {
            None
        }
    }
}

fn failed(message: impl Into<String>) -> Fault {
    Fault::new(Code::MergeFailed, message)
}

impl Work<'_> {
    pub(super) fn merge(&mut self) -> Check<Value> {
        if let Some(strategy) = self.peek("strategy").and_then(Strategy::parse) {
            self.require(caller::to_merge(strategy))?;
        }
        let payload = self.payload();
        let id = payload.required_id("conflict_id")?;
        let request = self.read_resolution()?;
        let field = self.field;
        let not_found = || {
            Fault::new(
                Code::ConflictNotFound,
                "there is no conflict under `conflict_id`",
            )
        };
        let row = *field.conflict_rows.get(&id).ok_or_else(not_found)?;
        let conflict = field.conflicts.get(row).ok_or_else(not_found)?;
        let (Some(a), Some(b)) = (field.at(conflict.a), field.at(conflict.b)) else {
            return Err(not_found());
        };
        // The operator settles what nobody else can any more, such as what a session left open. The vote is the members'.
        let may_settle = self.authority >= OPERATOR && request.strategy != Strategy::Vote;
        if !field.sees_conflict(self.agent(), conflict) && !may_settle {
            return Err(not_found());
        }
        let dispute = Dispute {
            row,
            conflict,
            a,
            b,
        };
        self.check_mergeable(conflict, request.strategy)?;
        self.check_session_takes_writes()?;
        match request.strategy {
            Strategy::HumanEscalation => Ok(self.escalate(&dispute, request)),
            Strategy::Synthesis => self.synthesize(&dispute, request),
            Strategy::Vote => self.vote(&dispute, request),
            Strategy::LastWriteWins
            | Strategy::ConfidenceWeighted
            | Strategy::EvidenceCount
            | Strategy::Authority => {
                let winner = self.winner(&dispute, &request)?;
                Ok(self.resolve(&dispute, request, winner))
            }
        }
    }

    fn read_resolution(&self) -> Check<Request> {
        let payload = self.payload();
        let strategy = payload.required_choice("strategy", Strategy::parse)?;
        if !self
            .field
            .config
            .strategies()
            .any(|offered| offered == strategy)
        {
            let message = format!("strategy `{strategy}` is not offered at this level");
            return Err(Fault::new(Code::UnsupportedOperation, message));
        }
        let resolution = payload
            .object("resolution", "resolution.")?
            .ok_or_else(|| payload.missing("resolution"))?;
        let rationale = resolution.required_line("rationale")?;
        let winner = resolution.id("winner_id")?;
        if matches!(strategy, Strategy::Authority | Strategy::Vote) && winner.is_none() {
            return Err(resolution.missing("winner_id"));
        }
        let max = self.field.config.limits.content_bytes_max;
        let synthesis = resolution.text("synthesis")?;
        if strategy == Strategy::Synthesis
            && !synthesis.is_some_and(|text| (1..=max).contains(&text.len()))
        {
            let expected = format!("a text of 1 to {max} bytes");
            return Err(resolution.wrong("synthesis", &expected));
        }
        Ok(Request {
            strategy,
            rationale,
            winner,
            synthesis: synthesis.map(str::to_owned),
        })
    }

    fn check_mergeable(&self, conflict: &Conflict, strategy: Strategy) -> Check<()> {
        let wrong = |message: String| Err(Fault::new(Code::InvalidTransition, message));
        match conflict.status {
            ConflictStatus::Detected | ConflictStatus::Resolving => Ok(()),
            ConflictStatus::Resolved => wrong("the conflict is resolved".into()),
            ConflictStatus::Escalated if strategy == Strategy::HumanEscalation => {
                wrong("the conflict is escalated: the operator decides".into())
            }
            ConflictStatus::Escalated if self.authority < OPERATOR => {
                match self.field.config.level >= Level::Full {
                    true => self.require(OPERATOR),
                    false => wrong("the conflict waits for the operator".into()),
                }
            }
            // One voice of many is not a decision.
            ConflictStatus::Escalated if strategy == Strategy::Vote => {
                wrong("the conflict is escalated: the operator decides, by another strategy".into())
            }
            ConflictStatus::Escalated => Ok(()),
        }
    }

    /// Returns the unit that a strategy prefers.
    fn winner(&self, dispute: &Dispute<'_>, request: &Request) -> Check<Row> {
        let (a, b) = (dispute.a, dispute.b);
        let first_wins = match request.strategy {
            Strategy::LastWriteWins => (a.epoch, a.seq) > (b.epoch, b.seq),
            Strategy::ConfidenceWeighted => {
                let (Some(ours), Some(theirs)) = (a.score, b.score) else {
                    return Err(failed("a unit of the conflict has no confidence score"));
                };
                if ours.total_cmp(&theirs).is_eq() {
                    return Err(failed("both units have the same confidence score"));
                }
                ours > theirs
            }
            Strategy::EvidenceCount => {
                let (ours, theirs) = (self.supporters(a), self.supporters(b));
                if ours == theirs {
                    return Err(failed(
                        "both units have the same number of supporting units",
                    ));
                }
                ours > theirs
            }
            Strategy::Authority
            | Strategy::Synthesis
            | Strategy::HumanEscalation
            | Strategy::Vote => {
                let named = request.winner.as_deref().and_then(|id| dispute.of(id));
                let (row, _) = named.ok_or_else(foreign_winner)?;
                return Ok(row);
            }
        };
        let (row, unit) = if first_wins {
            (dispute.conflict.a, a)
        } else {
            (dispute.conflict.b, b)
        };
        if request
            .winner
            .as_ref()
            .is_some_and(|named| *named != unit.id)
        {
            let message = "`resolution.winner_id` is not the unit that the strategy prefers";
            return Err(failed(message));
        }
        Ok(row)
    }

    /// Returns how many units support one, those that no longer stand or were purged aside.
    fn supporters(&self, unit: &Unit) -> usize {
        let sources = unit.incoming.iter();
        let supporting = sources.filter(|(kind, _)| *kind == RelationType::Supports);
        let rows: std::collections::BTreeSet<Row> = supporting.map(|(_, row)| *row).collect();
        rows.into_iter()
            .filter_map(|row| self.field.at(row))
            .filter(|unit| unit.is_standing() && !unit.is_purged())
            .count()
    }

    fn resolve(&mut self, dispute: &Dispute<'_>, request: Request, winner: Row) -> Value {
        let (winning, losing) = if winner == dispute.conflict.a {
            (dispute.a, dispute.b)
        } else {
            (dispute.b, dispute.a)
        };
        let lost = self.superseding(&losing.id);
        let superseded: Vec<String> = lost.iter().map(|effect| effect.unit_id.clone()).collect();
        let mut effects: Vec<Effect> = lost.into_iter().collect();
        if winning.status == UnitStatus::Contested
            && !self.field.is_disputed(winning, Some(dispute.row))
        {
            effects.push(Effect {
                unit_id: winning.id.clone(),
                status: winning.uncontested,
            });
        }
        self.log(Event::Merged(Merged {
            conflict_id: dispute.conflict.id.clone(),
            strategy: request.strategy,
            outcome: Outcome::Resolved,
            winner_id: Some(winning.id.clone()),
            new_unit_id: None,
            rationale: request.rationale.clone(),
            effects,
        }));
        self.resolved_answer(dispute, &request, Some(winner), &superseded, None)
    }

    fn resolved_answer(
        &self,
        dispute: &Dispute<'_>,
        request: &Request,
        winner: Option<Row>,
        superseded: &[String],
        new_unit: Option<&str>,
    ) -> Value {
        let mut conflict = dispute.conflict.clone();
        conflict.status = ConflictStatus::Resolved;
        conflict.resolution = Some(Resolution {
            strategy: request.strategy,
            winner,
            rationale: request.rationale.clone(),
            resolved_by: self.agent().to_owned(),
            epoch: self.epoch,
        });
        self.answer(dispute, "resolved", &conflict, superseded, new_unit)
    }

    fn answer(
        &self,
        dispute: &Dispute<'_>,
        status: &str,
        conflict: &Conflict,
        superseded: &[String],
        new_unit: Option<&str>,
    ) -> Value {
        let mut notified = vec![dispute.a.author.as_str()];
        if dispute.b.author != dispute.a.author {
            notified.push(&dispute.b.author);
        }
        json!({
            "status": status,
            "conflict": render::conflict(self.field, conflict),
            "side_effects": {
                "superseded_units": superseded,
                "new_unit_id": new_unit,
                "notified_agents": notified,
            },
        })
    }

    fn escalate(&mut self, dispute: &Dispute<'_>, request: Request) -> Value {
        self.log(Event::Merged(Merged {
            conflict_id: dispute.conflict.id.clone(),
            strategy: Strategy::HumanEscalation,
            outcome: Outcome::Escalated,
            winner_id: None,
            new_unit_id: None,
            rationale: request.rationale,
            effects: Vec::new(),
        }));
        let mut conflict = dispute.conflict.clone();
        conflict.status = ConflictStatus::Escalated;
        self.answer(dispute, "escalated", &conflict, &[], None)
    }

    fn synthesize(&mut self, dispute: &Dispute<'_>, request: Request) -> Check<Value> {
        if request.winner.is_some() {
            let message = "`resolution.winner_id` has no place in a synthesis: neither unit wins";
            return Err(failed(message));
        }
        let unit_id = self.next_id("mem");
        let (a, b) = (dispute.a, dispute.b);
        let effects: Vec<Effect> = [&a.id, &b.id]
            .into_iter()
            .filter_map(|unit| self.superseding(unit))
            .collect();
        let superseded: Vec<String> = effects
            .iter()
            .map(|effect| effect.unit_id.clone())
            .collect();
        self.log(Event::Merged(Merged {
            conflict_id: dispute.conflict.id.clone(),
            strategy: Strategy::Synthesis,
            outcome: Outcome::Resolved,
            winner_id: None,
            new_unit_id: Some(unit_id.clone()),
            rationale: request.rationale.clone(),
            effects,
        }));
        let score = a.score.unwrap_or(0.0).min(b.score.unwrap_or(0.0));
        let text = UnitText {
            salt: self.next_salt(),
            content: request.synthesis.clone().unwrap_or_default(),
            purpose: request.rationale.clone(),
            question: None,
            reasoning: Some("The lower of the scores of the two units that were merged.".into()),
            evidence: None,
            assumptions: None,
            descriptions: Vec::new(),
        };
        self.record_synthesis(Synthesis {
            unit_id: unit_id.clone(),
            task_id: a.task.clone().filter(|_| a.task == b.task),
            session_id: self.session_of_synthesis(dispute),
            sources: vec![a.id.clone(), b.id.clone()],
            score,
            text,
            embedding: self.call.embedding.clone(),
        });
        Ok(self.resolved_answer(dispute, &request, None, &superseded, Some(&unit_id)))
    }

    /// What replaces units of a session that the sender is not in belongs to that session, as they did.
    fn session_of_synthesis(&self, dispute: &Dispute<'_>) -> Option<String> {
        let units = [dispute.a, dispute.b].into_iter();
        let mut hidden = units.filter(|unit| !self.field.sees(self.agent(), unit));
        match hidden.next() {
            Some(unit) => unit.session.clone(),
            None => self.call.envelope.session_id.clone(),
        }
    }

    /// Counts a vote; the conflict ends when more than half of those who may vote now agree. Whoever cannot see both units
    /// cannot vote, and must not be waited for.
    fn vote(&mut self, dispute: &Dispute<'_>, request: Request) -> Check<Value> {
        let winner = self.winner(dispute, &request)?;
        let electorate: Vec<&str> = self
            .field
            .agents
            .iter()
            .filter(|(id, agent)| {
                agent.status != AgentStatus::Offline
                    && agent.authority >= STANDARD
                    && self.field.sees_conflict(id, dispute.conflict)
            })
            .map(|(id, _)| id.as_str())
            .collect();
        let mut votes: BTreeMap<&str, Row> = dispute
            .conflict
            .votes
            .iter()
            .map(|(agent, row)| (agent.as_str(), *row))
            .collect();
        votes.insert(self.agent(), winner);
        let agreeing = electorate
            .iter()
            .filter(|agent| votes.get(**agent) == Some(&winner))
            .count();
        if agreeing * 2 > electorate.len() {
            return Ok(self.resolve(dispute, request, winner));
        }
        self.log(Event::Merged(Merged {
            conflict_id: dispute.conflict.id.clone(),
            strategy: Strategy::Vote,
            outcome: Outcome::PendingVote,
            winner_id: request.winner,
            new_unit_id: None,
            rationale: request.rationale,
            effects: Vec::new(),
        }));
        let mut conflict = dispute.conflict.clone();
        conflict.status = ConflictStatus::Resolving;
        Ok(self.answer(dispute, "pending_vote", &conflict, &[], None))
    }
}

fn foreign_winner() -> Fault {
    Fault::request("`resolution.winner_id` is not a unit of the conflict")
}
