//! The field as it stands: the fold of its log.
//!
//! Units, conflicts and their neighbours are numbered rows, so that relations, indexes and scores cost an integer each.
//! Only `apply` changes any of it.

use std::collections::{BTreeMap, BTreeSet};

use canon::Digest;
use domain::Timestamp;

use crate::caller::{Caller, OPERATOR};
use crate::config::Config;
use crate::error::{Code, Refusal};
use crate::event::{Message, Package, Relation, Subscription, UnitText};
use crate::kind::{
    AgentStatus, ConflictStatus, ConflictType, HandoffStatus, MemoryType, Method, Mode, Operation,
    SessionStatus, Strategy, TaskStatus, UnitStatus,
};
use crate::log::Log;
use crate::relevance::{Mark, Names};
use crate::search::Search;
use crate::text::Claims;
use crate::vector::Model;

/// The number of a unit, in the order in which units were recorded.
pub(crate) type Row = u32;

/// A shared memory.
#[derive(Debug, Clone)]
pub struct Field {
    pub(crate) config: Config,
    pub(crate) clock: u64,
    pub(crate) head: u64,
    pub(crate) agents: BTreeMap<String, Agent>,
    pub(crate) units: Vec<Unit>,
    pub(crate) unit_rows: BTreeMap<String, Row>,
    pub(crate) by_author: BTreeMap<String, Vec<Row>>,
    pub(crate) by_task: BTreeMap<String, Vec<Row>>,
    pub(crate) conflicts: Vec<Conflict>,
    pub(crate) conflict_rows: BTreeMap<String, usize>,
    /// Of each agent how many open conflicts its drafts began.
    pub(crate) draft_conflicts: BTreeMap<String, usize>,
    /// Of each agent its subscriptions, by their ids.
    pub(crate) subscriptions: BTreeMap<String, BTreeMap<String, Subscription>>,
    pub(crate) handoffs: BTreeMap<String, Handoff>,
    pub(crate) tasks: BTreeMap<String, Task>,
    /// Of each task the entry with which it last changed hands.
    pub(crate) moves: BTreeMap<String, u64>,
    pub(crate) sessions: BTreeMap<String, Session>,
    /// Of each accepted message its digest, and that of its answer.
    pub(crate) messages: BTreeMap<(String, String), (Digest, Option<Digest>)>,
    pub(crate) search: Search,
    /// Of each unit what ranking reads; always as the unit itself.
    pub(crate) marks: Vec<Mark>,
    pub(crate) names: Names,
    pub(crate) log: Log,
}

/// An agent, also after it left.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Agent {
    pub(crate) role: String,
    pub(crate) status: AgentStatus,
    pub(crate) interests: Vec<String>,
    pub(crate) current_task: Option<String>,
    pub(crate) authority: u8,
    /// The key that registered this id for the first time.
    pub(crate) first_key: Option<String>,
}

/// A unit of knowledge.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Unit {
    pub(crate) id: String,
    pub(crate) mode: Mode,
    pub(crate) kind: MemoryType,
    pub(crate) status: UnitStatus,
    /// The status to go back to when the last conflict ends.
    pub(crate) uncontested: UnitStatus,
    pub(crate) archived: bool,
    pub(crate) tombstone: Option<Tombstone>,
    pub(crate) author: String,
    pub(crate) role: String,
    pub(crate) session: Option<String>,
    pub(crate) task: Option<String>,
    pub(crate) at: Timestamp,
    pub(crate) epoch: u64,
    pub(crate) seq: u64,
    pub(crate) score: Option<f64>,
    pub(crate) relations: Vec<Relation>,
    /// Units that say something about this one.
    pub(crate) incoming: Vec<(crate::kind::RelationType, Row)>,
    pub(crate) conflicts: Vec<usize>,
    pub(crate) text: Option<UnitText>,
    /// What the text claims; nothing for a unit without a task, which is never compared.
    pub(crate) claims: Option<Claims>,
    /// What made its vector, where that cannot be computed from the text.
    pub(crate) embedded_by: Option<Model>,
}

/// What is left of a purged unit besides its entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tombstone {
    pub(crate) at: Timestamp,
    pub(crate) reason: Option<String>,
}

impl Unit {
    /// Returns whether the unit may still be replaced or contested.
    pub(crate) fn is_standing(&self) -> bool {
        !matches!(self.status, UnitStatus::Superseded | UnitStatus::Retracted)
    }

    /// Returns whether its text was erased.
    pub(crate) fn is_purged(&self) -> bool {
        self.tombstone.is_some()
    }

    /// Returns the texts that search reads.
    pub(crate) fn searched_texts(text: &UnitText) -> [&str; 3] {
        [
            &text.content,
            &text.purpose,
            text.question.as_deref().unwrap_or_default(),
        ]
    }
}

/// Two units that contradict each other.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Conflict {
    pub(crate) id: String,
    pub(crate) kind: ConflictType,
    pub(crate) status: ConflictStatus,
    pub(crate) a: Row,
    pub(crate) b: Row,
    pub(crate) detected_by: Method,
    pub(crate) votes: BTreeMap<String, Row>,
    pub(crate) first_vote: Option<Timestamp>,
    pub(crate) resolution: Option<Resolution>,
}

impl Conflict {
    pub(crate) fn is_open(&self) -> bool {
        self.status != ConflictStatus::Resolved
    }
}

/// How a conflict ended.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Resolution {
    pub(crate) strategy: Strategy,
    pub(crate) winner: Option<Row>,
    pub(crate) rationale: String,
    pub(crate) resolved_by: String,
    pub(crate) epoch: u64,
}

/// A task on its way from one agent to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Handoff {
    pub(crate) status: HandoffStatus,
    pub(crate) task: String,
    pub(crate) from: String,
    pub(crate) to: String,
    /// The entry of the offer.
    pub(crate) seq: u64,
    pub(crate) package: Package,
}

/// A task that COORDINATE manages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Task {
    pub(crate) title: String,
    pub(crate) goal: Option<String>,
    pub(crate) status: TaskStatus,
    pub(crate) creator: String,
    /// The session it was created in.
    pub(crate) session: Option<String>,
    pub(crate) assignee: Option<String>,
    pub(crate) depends_on: Vec<String>,
    /// Whether its agent left.
    pub(crate) orphaned: bool,
}

/// A session that SESSION created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Session {
    pub(crate) goal: String,
    pub(crate) status: SessionStatus,
    pub(crate) creator: String,
    pub(crate) members: BTreeSet<String>,
    /// The roles whose members see what is in it; empty for all.
    pub(crate) roles: Vec<String>,
}

impl Field {
    /// Makes an empty field.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            clock: 0,
            head: 0,
            agents: BTreeMap::new(),
            units: Vec::new(),
            unit_rows: BTreeMap::new(),
            by_author: BTreeMap::new(),
            by_task: BTreeMap::new(),
            conflicts: Vec::new(),
            conflict_rows: BTreeMap::new(),
            draft_conflicts: BTreeMap::new(),
            subscriptions: BTreeMap::new(),
            handoffs: BTreeMap::new(),
            tasks: BTreeMap::new(),
            moves: BTreeMap::new(),
            sessions: BTreeMap::new(),
            messages: BTreeMap::new(),
            search: Search::default(),
            marks: Vec::new(),
            names: Names::default(),
            log: Log::default(),
        }
    }

    /// Returns how the field is set up.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the clock: the epoch of the last accepted operation.
    pub fn clock(&self) -> u64 {
        self.clock
    }

    /// Returns the sequence of the last entry.
    pub fn head(&self) -> u64 {
        self.head
    }

    /// Returns the log as REPLAY reads it.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Returns the text of a unit; nothing for an unknown or purged one.
    pub fn text_of(&self, unit: &str) -> Option<&UnitText> {
        self.unit(unit).and_then(|unit| unit.text.as_ref())
    }

    /// Returns the status of a unit.
    pub fn unit_status(&self, unit: &str) -> Option<UnitStatus> {
        self.unit(unit).map(|unit| unit.status)
    }

    pub(crate) fn unit(&self, id: &str) -> Option<&Unit> {
        self.unit_rows.get(id).and_then(|row| self.at(*row))
    }

    pub(crate) fn at(&self, row: Row) -> Option<&Unit> {
        usize::try_from(row)
            .ok()
            .and_then(|row| self.units.get(row))
    }

    pub(crate) fn conflict(&self, id: &str) -> Option<&Conflict> {
        self.conflict_rows
            .get(id)
            .and_then(|row| self.conflicts.get(*row))
    }

    /// Returns an agent that is registered now.
    pub(crate) fn active(&self, id: &str) -> Option<&Agent> {
        self.agents
            .get(id)
            .filter(|agent| !matches!(agent.status, AgentStatus::Offline))
    }

    pub(crate) fn stored_message(&self, message: &Message) -> Option<Message> {
        let key = (message.agent_id.clone(), message.id.clone());
        let (sha256, answer_sha256) = *self.messages.get(&key)?;
        let (agent_id, id) = key;
        Some(Message {
            agent_id,
            id,
            sha256,
            answer_sha256,
            // Only a purge asks, and it asks the log.
            answer_without_text: false,
        })
    }

    /// Returns whether an agent may see what belongs to a session, its authority aside.
    ///
    /// A session that nobody created is a plain label: everyone sees it.
    pub(crate) fn sees_session(&self, agent: &str, session: Option<&str>) -> bool {
        let Some(session) = session.and_then(|id| self.sessions.get(id)) else {
            return true;
        };
        // Also at a level that makes no sessions: what was closed at a higher one stays so.
        if self.config.cross_session {
            return true;
        }
        let role_fits = session.roles.is_empty()
            || self
                .agents
                .get(agent)
                .is_some_and(|agent| session.roles.contains(&agent.role));
        session.members.contains(agent) && (role_fits || session.creator == agent)
    }

    /// Returns whether an agent may see what a task is about, by the session that it was created in. One that COORDINATE
    /// does not know belongs to nobody.
    pub(crate) fn sees_task(&self, agent: &str, task: &str) -> bool {
        let task = self.tasks.get(task);
        task.is_none_or(|task| self.sees_session(agent, task.session.as_deref()))
    }

    /// Returns the status of a unit as whoever sees only some conflicts knows it: what others dispute among themselves is
    /// not contested for those who cannot see by what.
    pub(crate) fn status_for(
        &self,
        unit: &Unit,
        sees_conflict: impl Fn(&Conflict) -> bool,
    ) -> UnitStatus {
        if unit.status != UnitStatus::Contested {
            return unit.status;
        }
        let conflicts = unit.conflicts.iter();
        let mut conflicts = conflicts.filter_map(|row| self.conflicts.get(*row));
        match conflicts.any(|conflict| conflict.is_open() && sees_conflict(conflict)) {
            true => unit.status,
            false => unit.uncontested,
        }
    }

    /// Returns whether an agent may see a unit.
    pub(crate) fn sees(&self, agent: &str, unit: &Unit) -> bool {
        self.sees_session(agent, unit.session.as_deref())
    }

    /// Returns whether an agent may see both units of a conflict.
    pub(crate) fn sees_conflict(&self, agent: &str, conflict: &Conflict) -> bool {
        [conflict.a, conflict.b]
            .iter()
            .all(|row| self.at(*row).is_some_and(|unit| self.sees(agent, unit)))
    }

    /// Returns the unit of an id that an agent may see and whose text was not purged.
    pub(crate) fn visible(&self, agent: &str, id: &str) -> Option<(Row, &Unit)> {
        let row = *self.unit_rows.get(id)?;
        let unit = self.at(row)?;
        (self.sees(agent, unit) && !unit.is_purged()).then_some((row, unit))
    }

    /// Returns whether a key may act for an agent id.
    pub(crate) fn may_act(&self, caller: Option<&Caller>, agent: &str) -> bool {
        caller.is_none_or(|caller| {
            let first = self
                .agents
                .get(agent)
                .and_then(|agent| agent.first_key.as_deref());
            caller.may_act_for(agent, first)
        })
    }

    /// Returns the agents for whom a key may look at the field; none in particular for a key that sees all.
    pub fn viewers(&self, caller: &Caller) -> Option<Vec<&str>> {
        let own = |id: &&String| self.may_act(Some(caller), id);
        let agents = || self.agents.keys().filter(own).map(String::as_str).collect();
        (caller.ceiling < OPERATOR).then(agents)
    }

    /// Returns whether one of `viewers` may see what belongs to a session.
    pub fn is_session_shown(&self, viewers: Option<&[&str]>, session: Option<&str>) -> bool {
        viewers.is_none_or(|viewers| {
            let mut viewers = viewers.iter();
            // Whoever has no agents here sees what is for everyone.
            viewers.any(|agent| self.sees_session(agent, session)) || self.sees_session("", session)
        })
    }

    /// Checks that a key may listen to what an agent is notified of.
    ///
    /// # Errors
    /// The key may not act for the agent, or there is no such agent now.
    pub fn check_listener(&self, caller: &Caller, agent: &str) -> Result<(), Refusal> {
        let refuse = |code, message: &str| {
            let operation = Some(Operation::Subscribe);
            Err(Refusal::new(code, message, operation))
        };
        if !self.may_act(Some(caller), agent) {
            return refuse(Code::Forbidden, "the credential may not act for `agent_id`");
        }
        if self.active(agent).is_none() {
            return refuse(Code::AgentNotRegistered, "`agent_id` is not registered");
        }
        Ok(())
    }

    /// Returns whether an open conflict keeps the words of a unit: one between what two agents stand for. A draft keeps
    /// nothing, because whoever may only look may draft.
    pub(crate) fn is_kept_from_purges(&self, unit: &Unit) -> bool {
        let conflicts = unit.conflicts.iter();
        let mut conflicts = conflicts.filter_map(|row| self.conflicts.get(*row));
        conflicts.any(|conflict| conflict.is_open() && !self.is_with_draft(conflict))
    }

    /// Returns whether one side of a conflict is a draft.
    pub(crate) fn is_with_draft(&self, conflict: &Conflict) -> bool {
        [conflict.a, conflict.b]
            .iter()
            .filter_map(|row| self.at(*row))
            .any(|unit| unit.mode == Mode::Draft)
    }

    /// Returns whether a unit is named by a conflict that is not resolved, other than `except`.
    pub(crate) fn is_disputed(&self, unit: &Unit, except: Option<usize>) -> bool {
        unit.conflicts
            .iter()
            .filter(|row| Some(**row) != except)
            .any(|row| self.conflicts.get(*row).is_some_and(Conflict::is_open))
    }
}
