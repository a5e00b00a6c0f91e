//! Folding an entry into the field: the only way in which it changes.
//!
//! Whatever `decide` returned is accepted in that order. An error means a damaged or foreign log; nothing was changed.

use canon::Digest;

use crate::event::{Content, Effect, Entry, Event, Merged, Outcome, Recorded, Subscription};
use crate::kind::{
    AgentStatus, CompactStrategy, ConflictStatus, HandoffAction, HandoffStatus, Mode,
    SessionAction, SessionStatus, SubscribeAction, TaskAction, TaskStatus, UnitStatus,
};
use crate::relevance::Mark;
use crate::segment::Indexed;
use crate::state::{
    Agent, Conflict, Field, Handoff, Resolution, Row, Session, Task, Tombstone, Unit,
};
use crate::text::Claims;
use crate::vector::{Model, Vector};

/// An entry that cannot follow the entries before it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("entry {seq} of the field's log cannot be applied: {reason}")]
pub struct ImpossibleEntry {
    seq: u64,
    reason: &'static str,
}

type Step = Result<(), &'static str>;

impl Field {
    /// Applies an entry and what is stored beside it.
    ///
    /// The text of a RECORD may be missing: it was purged, or is not at hand. Everything except the text is then there.
    ///
    /// # Errors
    /// The entry does not fit the field; nothing was changed.
    pub fn apply(
        &mut self,
        entry: &Entry,
        content: Option<&Content>,
    ) -> Result<(), ImpossibleEntry> {
        if let Event::Recorded(recorded) = &entry.event {
            check_text(recorded.text_sha256, content).map_err(|reason| ImpossibleEntry {
                seq: entry.seq,
                reason,
            })?;
        }
        self.take_in(entry.clone(), content.cloned(), None)
    }

    /// Applies an entry whose text was checked and taken apart before. Its words follow with those of others.
    pub(crate) fn apply_indexed(
        &mut self,
        entry: Entry,
        content: Content,
        indexed: Indexed,
    ) -> Result<(), ImpossibleEntry> {
        self.take_in(entry, Some(content), Some(indexed))
    }

    fn take_in(
        &mut self,
        entry: Entry,
        content: Option<Content>,
        indexed: Option<Indexed>,
    ) -> Result<(), ImpossibleEntry> {
        let checked = self.check(&entry).and_then(|()| self.log.check(&entry));
        checked.map_err(|reason| ImpossibleEntry {
            seq: entry.seq,
            reason,
        })?;
        self.head = entry.seq;
        self.clock = self.clock.max(entry.epoch);
        if let Some(message) = &entry.message {
            let key = (message.agent_id.clone(), message.id.clone());
            self.messages
                .insert(key, (message.sha256, message.answer_sha256));
        }
        self.fold(&entry, content, indexed);
        self.log.push(entry);
        Ok(())
    }

    /// Everything that could go wrong, before anything changes.
    fn check(&self, entry: &Entry) -> Step {
        if entry.seq <= self.head {
            return Err("its sequence was used before");
        }
        for effect in entry.event.effects() {
            self.known(&effect.unit_id, entry)?;
        }
        match &entry.event {
            Event::Recorded(recorded) => {
                if self.unit_rows.contains_key(&recorded.unit_id) {
                    return Err("the unit was recorded before");
                }
                if self.units.len() >= Row::MAX as usize {
                    return Err("there are too many units");
                }
                Ok(())
            }
            Event::ConflictCreated {
                conflict_id,
                unit_a,
                unit_b,
                ..
            } => {
                if self.conflict_rows.contains_key(conflict_id) {
                    return Err("the conflict was created before");
                }
                self.known(unit_a, entry)?;
                self.known(unit_b, entry)
            }
            Event::ConflictEscalated { conflict_id, .. } => self.known_conflict(conflict_id),
            Event::Merged(merged) => {
                self.known_conflict(&merged.conflict_id)?;
                merged
                    .winner_id
                    .as_ref()
                    .map_or(Ok(()), |winner| self.known(winner, entry))
            }
            Event::Compacted { unit_ids, .. } => {
                unit_ids.iter().try_for_each(|unit| self.known(unit, entry))
            }
            Event::Retracted { unit_id, .. } | Event::Enriched { unit_id, .. } => {
                self.known(unit_id, entry)
            }
            Event::HandedOff {
                action, handoff_id, ..
            } => (*action == HandoffAction::Offer || self.handoffs.contains_key(handoff_id))
                .then_some(())
                .ok_or("the handoff is unknown"),
            Event::Coordinated {
                action, task_id, ..
            } => (*action == TaskAction::Create || self.tasks.contains_key(task_id))
                .then_some(())
                .ok_or("the task is unknown"),
            Event::SessionChanged {
                action, session_id, ..
            } => (*action == SessionAction::Create || self.sessions.contains_key(session_id))
                .then_some(())
                .ok_or("the session is unknown"),
            Event::Registered { .. }
            | Event::Deregistered { .. }
            | Event::AgentFailed { .. }
            | Event::Attuned { .. }
            | Event::Detected { .. }
            | Event::Subscribed { .. }
            | Event::Replayed { .. } => Ok(()),
        }
    }

    fn known(&self, unit: &str, entry: &Entry) -> Step {
        let is_itself =
            matches!(&entry.event, Event::Recorded(recorded) if recorded.unit_id == unit);
        (is_itself || self.unit_rows.contains_key(unit))
            .then_some(())
            .ok_or("it names a unit that was never recorded")
    }

    fn known_conflict(&self, conflict: &str) -> Step {
        self.conflict_rows
            .contains_key(conflict)
            .then_some(())
            .ok_or("it names a conflict that was never created")
    }

    fn fold(&mut self, entry: &Entry, content: Option<Content>, indexed: Option<Indexed>) {
        match &entry.event {
            Event::Registered {
                role,
                interests,
                authority,
                key,
            } => {
                let first_key = self
                    .agents
                    .remove(&entry.agent_id)
                    .map_or_else(|| key.clone(), |before| before.first_key);
                let agent = Agent {
                    role: role.clone(),
                    status: AgentStatus::Idle,
                    interests: interests.clone(),
                    current_task: None,
                    authority: *authority,
                    first_key,
                };
                self.agents.insert(entry.agent_id.clone(), agent);
            }
            Event::Deregistered { agent_id, .. } => self.take_leave(agent_id),
            Event::AgentFailed { agent_id, .. } => {
                if let Some(agent) = self.agents.get_mut(agent_id) {
                    agent.status = AgentStatus::Failed;
                }
            }
            Event::Recorded(recorded) => self.add_unit(entry, recorded, content, indexed),
            Event::ConflictCreated {
                conflict_id,
                unit_a,
                unit_b,
                kind,
                detected_by,
                ..
            } => {
                let rows = (self.unit_rows.get(unit_a), self.unit_rows.get(unit_b));
                if let (Some(a), Some(b)) = rows {
                    let (a, b) = (*a, *b);
                    let row = self.conflicts.len();
                    self.conflict_rows.insert(conflict_id.clone(), row);
                    self.conflicts.push(Conflict {
                        id: conflict_id.clone(),
                        kind: *kind,
                        status: ConflictStatus::Detected,
                        a,
                        b,
                        detected_by: *detected_by,
                        votes: std::collections::BTreeMap::new(),
                        first_vote: None,
                        resolution: None,
                    });
                    if let Some(author) = self.drafted_by(b) {
                        *self.draft_conflicts.entry(author).or_default() += 1;
                    }
                    self.change(a, |unit| unit.conflicts.push(row));
                    if a != b {
                        self.change(b, |unit| unit.conflicts.push(row));
                    }
                }
            }
            Event::ConflictEscalated { conflict_id, .. } => {
                if let Some(conflict) = self.conflict_mut(conflict_id) {
                    conflict.status = ConflictStatus::Escalated;
                }
            }
            Event::Merged(merged) => self.merge(entry, merged),
            Event::Compacted {
                strategy,
                unit_ids,
                reason,
                ..
            } => {
                for unit in unit_ids {
                    match strategy {
                        CompactStrategy::Archive | CompactStrategy::Summarize => {
                            self.change_named(unit, |unit| unit.archived = true);
                        }
                        CompactStrategy::Purge => self.purge(
                            unit,
                            Tombstone {
                                at: entry.at,
                                reason: reason.clone(),
                            },
                        ),
                    }
                }
            }
            Event::Retracted { unit_id, .. } => {
                self.change_named(unit_id, |unit| unit.status = UnitStatus::Retracted);
            }
            Event::Enriched { unit_id, model } => {
                let vector = content.and_then(|content| content.vector);
                self.enrich(unit_id, model, vector, indexed.as_ref());
            }
            Event::Subscribed {
                action,
                subscription: Some(subscription),
            } => self.subscribe(&entry.agent_id, *action, subscription),
            Event::HandedOff { .. } => self.hand_off(entry),
            Event::Coordinated { .. } => self.coordinate(entry),
            Event::SessionChanged { .. } => self.change_session(entry),
            Event::Subscribed {
                subscription: None, ..
            }
            | Event::Attuned { .. }
            | Event::Detected { .. }
            | Event::Replayed { .. } => {}
        }
        for effect in entry.event.effects() {
            self.give_status(effect);
        }
    }

    fn change(&mut self, row: Row, change: impl FnOnce(&mut Unit)) {
        if let Some(unit) = usize::try_from(row)
            .ok()
            .and_then(|row| self.units.get_mut(row))
        {
            change(unit);
            let mark = Mark::of(unit, &mut self.names);
            if let Some(place) = usize::try_from(row)
                .ok()
                .and_then(|row| self.marks.get_mut(row))
            {
                *place = mark;
            }
        }
    }

    fn change_named(&mut self, unit: &str, change: impl FnOnce(&mut Unit)) {
        if let Some(row) = self.unit_rows.get(unit).copied() {
            self.change(row, change);
        }
    }

    fn conflict_mut(&mut self, id: &str) -> Option<&mut Conflict> {
        self.conflict_rows
            .get(id)
            .and_then(|row| self.conflicts.get_mut(*row))
    }

    fn give_status(&mut self, effect: &Effect) {
        self.change_named(&effect.unit_id, |unit| {
            if effect.status == UnitStatus::Contested && unit.status != UnitStatus::Contested {
                unit.uncontested = unit.status;
            }
            unit.status = effect.status;
        });
    }

    fn add_unit(
        &mut self,
        entry: &Entry,
        recorded: &Recorded,
        content: Option<Content>,
        indexed: Option<Indexed>,
    ) {
        let Ok(row) = Row::try_from(self.units.len()) else {
            return;
        };
        let (text, given) = content.map_or((None, None), |content| (content.text, content.vector));
        if let Some(text) = &text {
            // A session is created before anything is recorded in it, else it is a label that everybody sees.
            let session = entry.session_id.as_deref();
            let session = session.filter(|session| self.sessions.contains_key(*session));
            let circle = session.map_or(0, |session| self.names.session(session));
            match &indexed {
                Some(_) => self.search.add_row(row, circle),
                None => {
                    let texts = Unit::searched_texts(text);
                    self.search.add_text(row, circle, &texts);
                }
            }
            let model = recorded.model.as_ref();
            if let Some(model) = model.filter(|model| given.is_none() && model.is_hash_1024()) {
                self.add_built_in(row, model, &text.content, indexed.as_ref());
            }
        }
        let vector = given.filter(|vector| Some(&vector.model) == recorded.model.as_ref());
        if let Some(vector) = &vector {
            self.search
                .add_vector(row, &vector.model, &vector.components);
        }
        for relation in recorded.relations.iter().filter(|to| !to.unbound) {
            if let Some(target) = self.unit_rows.get(&relation.target_id).copied() {
                self.change(target, |unit| unit.incoming.push((relation.kind, row)));
            }
        }
        let claims = match indexed {
            Some(indexed) => indexed.claims,
            None => {
                let compared = text.as_ref().filter(|_| recorded.task_id.is_some());
                compared.map(|text| Claims::of(&text.content))
            }
        };
        let rows = self.by_author.entry(entry.agent_id.clone()).or_default();
        rows.push(row);
        if let Some(task) = &recorded.task_id {
            self.by_task.entry(task.clone()).or_default().push(row);
        }
        self.unit_rows.insert(recorded.unit_id.clone(), row);
        let unit = Unit {
            id: recorded.unit_id.clone(),
            mode: recorded.mode,
            kind: recorded.kind,
            status: recorded.status,
            uncontested: recorded.status,
            archived: false,
            tombstone: None,
            author: entry.agent_id.clone(),
            role: recorded.agent_role.clone(),
            session: entry.session_id.clone(),
            task: recorded.task_id.clone(),
            at: entry.at,
            epoch: entry.epoch,
            seq: entry.seq,
            score: recorded.score,
            relations: recorded.relations.clone(),
            incoming: Vec::new(),
            conflicts: Vec::new(),
            text,
            claims,
            embedded_by: vector.map(|vector| vector.model),
        };
        self.marks.push(Mark::of(&unit, &mut self.names));
        self.units.push(unit);
    }

    /// Adds the vector that the built-in model makes of a text, unless it was made before.
    fn add_built_in(&mut self, row: Row, model: &Model, text: &str, indexed: Option<&Indexed>) {
        match indexed.filter(|indexed| !indexed.components.is_empty()) {
            Some(indexed) => self.search.add_vector(row, model, &indexed.components),
            None => {
                let vector = Vector::hash_1024(text);
                self.search.add_vector(row, model, &vector.components);
            }
        }
    }

    fn enrich(
        &mut self,
        id: &str,
        model: &Model,
        given: Option<Vector>,
        indexed: Option<&Indexed>,
    ) {
        let Some(row) = self.unit_rows.get(id).copied() else {
            return;
        };
        let given = given.filter(|vector| vector.model == *model);
        if let Some(vector) = &given {
            self.search.add_vector(row, model, &vector.components);
        } else if model.is_hash_1024() {
            let text = self.at(row).and_then(|unit| unit.text.as_ref());
            if let Some(text) = text.map(|text| text.content.clone()) {
                self.add_built_in(row, model, &text, indexed);
            }
        }
        self.change(row, |unit| {
            unit.embedded_by = given.map(|vector| vector.model);
            if unit.status == UnitStatus::PendingEnrichment {
                unit.status = UnitStatus::Active;
            }
            if unit.uncontested == UnitStatus::PendingEnrichment {
                unit.uncontested = UnitStatus::Active;
            }
        });
    }

    fn purge(&mut self, id: &str, tombstone: Tombstone) {
        let Some(row) = self.unit_rows.get(id).copied() else {
            return;
        };
        let mut erased = None;
        self.change(row, |unit| {
            erased = unit.text.take();
            unit.claims = None;
            unit.embedded_by = None;
            unit.tombstone = Some(tombstone);
        });
        if let Some(text) = erased {
            self.search.erase(row, &Unit::searched_texts(&text));
        }
    }

    fn merge(&mut self, entry: &Entry, merged: &Merged) {
        let winner = merged
            .winner_id
            .as_ref()
            .and_then(|unit| self.unit_rows.get(unit).copied());
        let voter = entry.agent_id.clone();
        let Some(conflict) = self.conflict_mut(&merged.conflict_id) else {
            return;
        };
        let newer = conflict.b;
        let ends = merged.outcome == Outcome::Resolved && conflict.is_open();
        match merged.outcome {
            Outcome::Resolved => {
                conflict.status = ConflictStatus::Resolved;
                conflict.resolution = Some(Resolution {
                    strategy: merged.strategy,
                    winner,
                    rationale: merged.rationale.clone(),
                    resolved_by: voter,
                    epoch: entry.epoch,
                });
            }
            Outcome::Escalated => conflict.status = ConflictStatus::Escalated,
            Outcome::PendingVote => {
                conflict.status = ConflictStatus::Resolving;
                conflict.first_vote.get_or_insert(entry.at);
                if let Some(winner) = winner {
                    conflict.votes.insert(voter, winner);
                }
            }
        }
        if let Some(author) = self.drafted_by(newer).filter(|_| ends)
            && let Some(count) = self.draft_conflicts.get_mut(&author)
        {
            *count = count.saturating_sub(1);
        }
    }

    /// Returns the author of a draft.
    fn drafted_by(&self, row: Row) -> Option<String> {
        let unit = self.at(row).filter(|unit| unit.mode == Mode::Draft);
        unit.map(|unit| unit.author.clone())
    }

    fn take_leave(&mut self, agent: &str) {
        if let Some(agent) = self.agents.get_mut(agent) {
            agent.status = AgentStatus::Offline;
            agent.current_task = None;
        }
        for task in self.tasks.values_mut() {
            if task.assignee.as_deref() == Some(agent) && !task.is_over() {
                task.orphaned = true;
            }
        }
        self.subscriptions.remove(agent);
    }

    fn subscribe(&mut self, agent: &str, action: SubscribeAction, subscription: &Subscription) {
        match action {
            SubscribeAction::Subscribe => {
                let own = self.subscriptions.entry(agent.to_owned()).or_default();
                own.insert(subscription.id.clone(), subscription.clone());
            }
            SubscribeAction::Unsubscribe => {
                if let Some(own) = self.subscriptions.get_mut(agent) {
                    own.remove(&subscription.id);
                }
            }
            SubscribeAction::List => {}
        }
    }

    fn hand_off(&mut self, entry: &Entry) {
        let Event::HandedOff {
            action,
            handoff_id,
            task_id,
            to_agent,
            package,
        } = &entry.event
        else {
            return;
        };
        match (action, package) {
            (HandoffAction::Offer, Some(package)) => {
                let handoff = Handoff {
                    status: HandoffStatus::Offered,
                    task: task_id.clone(),
                    from: entry.agent_id.clone(),
                    to: to_agent.clone(),
                    seq: entry.seq,
                    package: package.clone(),
                };
                self.handoffs.insert(handoff_id.clone(), handoff);
            }
            (HandoffAction::Offer, None) => {}
            (HandoffAction::Accept, _) => {
                if let Some(handoff) = self.handoffs.get_mut(handoff_id) {
                    handoff.status = HandoffStatus::Accepted;
                    let from = handoff.from.clone();
                    self.move_task(task_id, &from, to_agent);
                    self.moves.insert(task_id.clone(), entry.seq);
                }
            }
            (HandoffAction::Decline, _) => {
                if let Some(handoff) = self.handoffs.get_mut(handoff_id) {
                    handoff.status = HandoffStatus::Declined;
                }
            }
        }
    }

    fn move_task(&mut self, task_id: &str, from: &str, to: &str) {
        let mut status = AgentStatus::Working;
        if let Some(task) = self.tasks.get_mut(task_id) {
            task.assignee = Some(to.to_owned());
            task.orphaned = false;
            status = task.agent_status();
        }
        if let Some(agent) = self.agents.get_mut(from)
            && agent.current_task.as_deref() == Some(task_id)
        {
            agent.current_task = None;
            agent.rest();
        }
        if let Some(agent) = self.agents.get_mut(to) {
            agent.current_task = Some(task_id.to_owned());
            if agent.is_present() {
                agent.status = status;
            }
        }
    }

    fn coordinate(&mut self, entry: &Entry) {
        let Event::Coordinated {
            action,
            task_id,
            title,
            goal,
            assignee,
            depends_on,
            ..
        } = &entry.event
        else {
            return;
        };
        if matches!(action, TaskAction::Create | TaskAction::Assign) {
            self.moves.insert(task_id.clone(), entry.seq);
        }
        if *action == TaskAction::Create {
            let status = if assignee.is_some() {
                TaskStatus::Assigned
            } else {
                TaskStatus::Created
            };
            let task = Task {
                title: title.clone().unwrap_or_default(),
                goal: goal.clone(),
                status,
                creator: entry.agent_id.clone(),
                session: entry.session_id.clone(),
                assignee: assignee.clone(),
                depends_on: depends_on.clone(),
                orphaned: false,
            };
            self.tasks.insert(task_id.clone(), task);
            return;
        }
        let Some(task) = self.tasks.get_mut(task_id) else {
            return;
        };
        if *action == TaskAction::Assign {
            task.assignee.clone_from(assignee);
            task.orphaned = false;
        }
        task.status = task.status.after(*action).unwrap_or(task.status);
        let (status, owner) = (task.agent_status(), task.assignee.clone());
        let holds =
            !matches!(task.status, TaskStatus::Created | TaskStatus::Assigned) && !task.is_over();
        let Some(agent) = owner.and_then(|owner| self.agents.get_mut(&owner)) else {
            return;
        };
        if holds {
            agent.current_task = Some(task_id.clone());
            if agent.is_present() {
                agent.status = status;
            }
        } else if agent.current_task.as_ref() == Some(task_id) {
            agent.current_task = None;
            agent.rest();
        }
    }

    fn change_session(&mut self, entry: &Entry) {
        let Event::SessionChanged {
            action,
            session_id,
            goal,
            roles,
        } = &entry.event
        else {
            return;
        };
        let agent = entry.agent_id.clone();
        if *action == SessionAction::Create {
            let session = Session {
                goal: goal.clone().unwrap_or_default(),
                status: SessionStatus::Active,
                creator: agent.clone(),
                members: std::iter::once(agent).collect(),
                roles: roles.clone(),
            };
            self.sessions.insert(session_id.clone(), session);
            return;
        }
        let Some(session) = self.sessions.get_mut(session_id) else {
            return;
        };
        match action {
            SessionAction::Create => {}
            SessionAction::Join => {
                session.members.insert(agent);
            }
            SessionAction::Leave => {
                session.members.remove(&agent);
            }
            SessionAction::Pause => session.status = SessionStatus::Paused,
            SessionAction::Resume => session.status = SessionStatus::Active,
            SessionAction::End => session.status = SessionStatus::Ended,
        }
    }
}

fn check_text(named: Digest, content: Option<&Content>) -> Step {
    match content.and_then(|content| content.text.as_ref()) {
        Some(text) if text.sha256() != named => Err("the text beside it is not the one it names"),
        _ => Ok(()),
    }
}

impl Agent {
    fn is_present(&self) -> bool {
        !matches!(self.status, AgentStatus::Offline | AgentStatus::Failed)
    }

    fn rest(&mut self) {
        if self.is_present() {
            self.status = AgentStatus::Idle;
        }
    }
}

impl Task {
    pub(crate) fn is_over(&self) -> bool {
        matches!(
            self.status,
            TaskStatus::Completed | TaskStatus::Failed | TaskStatus::Cancelled
        )
    }

    fn agent_status(&self) -> AgentStatus {
        match self.status {
            TaskStatus::Working => AgentStatus::Working,
            TaskStatus::Blocked => AgentStatus::Waiting,
            TaskStatus::Created
            | TaskStatus::Assigned
            | TaskStatus::Completed
            | TaskStatus::Failed
            | TaskStatus::Cancelled => AgentStatus::Idle,
        }
    }
}

impl TaskStatus {
    /// Returns the status after an action; nothing if the task has no such step.
    pub(crate) fn after(self, action: TaskAction) -> Option<Self> {
        match (self, action) {
            (Self::Created | Self::Assigned, TaskAction::Assign) => Some(Self::Assigned),
            (Self::Assigned, TaskAction::Start) | (Self::Blocked, TaskAction::Unblock) => {
                Some(Self::Working)
            }
            (Self::Working, TaskAction::Block) => Some(Self::Blocked),
            (Self::Working, TaskAction::Complete) => Some(Self::Completed),
            (Self::Working | Self::Blocked, TaskAction::Fail) => Some(Self::Failed),
            (
                Self::Created | Self::Assigned | Self::Working | Self::Blocked,
                TaskAction::Cancel,
            ) => Some(Self::Cancelled),
            _ => None,
        }
    }
}
