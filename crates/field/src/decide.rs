//! What a message does: entries for the log and an answer, or a refusal that changes nothing.
//!
//! Checks run in one order and the first that fails wins: credential, the same message again, clock, operation offered,
//! sender registered, authority, payload, existence of what is named, state. Time, ids, embeddings and the results of
//! slow searches arrive as values.

mod admin;
mod attune;
mod compact;
mod coordinate;
mod detect;
mod handoff;
mod merge;
mod record;
mod register;
mod replay;
mod session;
mod subscribe;

use std::collections::BTreeMap;

use canon::Value;

use crate::apply::ImpossibleEntry;
use crate::caller::{self, CallSeed, Caller};
use crate::config::Level;
use crate::envelope::{EPOCH_MAX, Envelope};
use crate::error::{Check, Code, Fault, Refusal};
use crate::event::{Content, Effect, Entry, Event, Message, SYSTEM, UnitText};
use crate::kind::{ConflictType, DetectMode, Method, Mode, Operation, SessionStatus, UnitStatus};
use crate::payload::Members;
use crate::state::{Agent, Field};
use crate::stored_answer::StoredAnswer;
use crate::vector::{Model, Vector};

pub use admin::Administration;
pub use detect::{Findings, find_contradictions};

/// A message with everything that is needed to decide it.
#[derive(Debug, Clone)]
pub struct Call<'a> {
    /// The message.
    pub envelope: &'a Envelope,
    /// The checked credential; needed from level 2.
    pub caller: Option<&'a Caller>,
    /// Time and randomness.
    pub fresh: &'a CallSeed,
    /// The vector of the message's text: see [`text_to_embed`].
    pub embedding: Embedding,
    /// Whether contradictions are looked for here.
    pub detection: Detection,
}

/// Where the vector of a text comes from.
#[derive(Debug, Clone, PartialEq)]
pub enum Embedding {
    /// The built-in model.
    BuiltIn,
    /// A model behind a port made this one.
    Given(Vector),
    /// A model behind a port failed; the text says why.
    Failed(String),
}

/// Who looks for contradictions when a unit is recorded.
#[derive(Debug, Clone, PartialEq)]
pub enum Detection {
    /// This call, among the units of the same task and type.
    Here,
    /// Somebody did, shortly before; only what came since is compared here.
    Found(Findings),
    /// Nobody in time: the answer says `deferred`.
    Late,
}

/// What a message leads to.
#[derive(Debug, Clone, PartialEq)]
pub enum MessageDecision {
    /// Entries to write, and then the answer to give.
    New(Decision),
    /// The same message was accepted before: give the answer that was stored then.
    Repeated(Message),
}

/// Entries, what is stored beside each, and the answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// In log order.
    pub steps: Vec<(Entry, Option<Content>)>,
    /// What the sender gets once the entries are durable.
    pub answer: Value,
    /// What is kept of the answer for the same message sent again: see [`Field::rebuild_answer`].
    pub kept: StoredAnswer,
}

impl Field {
    /// Applies all entries of a decision.
    ///
    /// # Errors
    /// The decision was made for another state of the field.
    pub fn commit(&mut self, decision: &Decision) -> Result<(), ImpossibleEntry> {
        decision
            .steps
            .iter()
            .try_for_each(|(entry, content)| self.apply(entry, content.as_ref()))
    }
}

/// Returns the text of a message whose vector a model outside must make, if any.
pub fn text_to_embed(field: &Field, envelope: &Envelope) -> Option<String> {
    let text = match envelope.operation {
        Operation::Record => envelope.payload.get("content")?.as_str()?.to_owned(),
        Operation::Attune => attune::query(field, envelope).text,
        Operation::Merge => {
            let resolution = envelope.payload.get("resolution")?;
            resolution.get("synthesis")?.as_str()?.to_owned()
        }
        _ => return None,
    };
    (!text.is_empty()).then_some(text)
}

/// Decides a message.
///
/// # Errors
/// The message is refused; nothing changes.
pub fn decide(field: &Field, call: &Call<'_>) -> Result<MessageDecision, Refusal> {
    let operation = call.envelope.operation;
    begin(field, call)
        .and_then(|begun| match begun {
            Begun::Repeated(message) => Ok(MessageDecision::Repeated(message)),
            Begun::Work(mut work) => {
                let answer = work.perform()?;
                Ok(MessageDecision::New(Decision {
                    steps: work.steps,
                    answer,
                    kept: work.kept,
                }))
            }
        })
        .map_err(|fault| fault.of(Some(operation)))
}

/// Decides an act of the operator or of the field itself; it has no envelope.
///
/// # Errors
/// The act is refused; nothing changes.
pub fn administer(
    field: &Field,
    act: &Administration,
    fresh: &CallSeed,
) -> Result<Decision, Refusal> {
    admin::decide(field, act, fresh).map_err(|fault| fault.of(None))
}

enum Begun<'a> {
    Repeated(Message),
    Work(Work<'a>),
}

/// Runs the checks that every operation has in common.
fn begin<'a>(field: &'a Field, call: &'a Call<'a>) -> Check<Begun<'a>> {
    let envelope = call.envelope;
    let config = &field.config;
    if call.caller.is_none() && config.level >= Level::Standard {
        let message = "this field needs a credential";
        return Err(Fault::new(Code::Unauthenticated, message));
    }
    if !field.may_act(call.caller, &envelope.agent_id) {
        let message = "the credential may not act for `agent_id`";
        return Err(Fault::new(Code::Forbidden, message));
    }
    let message = Message {
        agent_id: envelope.agent_id.clone(),
        id: envelope.id.clone(),
        sha256: envelope.sha256,
        answer_sha256: None,
        answer_without_text: false,
    };
    match field.stored_message(&message) {
        Some(known) if known.sha256 == message.sha256 => return Ok(Begun::Repeated(known)),
        Some(_) => {
            let message = "`id` was used before for another message";
            return Err(Fault::new(Code::InvalidEnvelope, message));
        }
        None => {}
    }
    let epoch = next_epoch(field, envelope.epoch)?;
    let operation = envelope.operation;
    if !config.offers(operation) {
        let message = format!(
            "`{operation}` is not offered at level {}",
            config.level.number()
        );
        return Err(Fault::new(Code::UnsupportedOperation, message));
    }
    let sender = field.active(&envelope.agent_id);
    if sender.is_none() && operation != Operation::Register {
        let message = "`agent_id` is not registered";
        return Err(Fault::new(Code::AgentNotRegistered, message));
    }
    let own = sender.map_or(caller::OPERATOR, |agent| agent.authority);
    let work = Work {
        field,
        call,
        sender,
        epoch,
        authority: caller::effective(config.level, call.caller, own),
        message: Some(message),
        ids: 0,
        statuses: BTreeMap::new(),
        steps: Vec::new(),
        kept: StoredAnswer::Whole,
    };
    work.require(caller::least(operation))?;
    work.check_session()?;
    Ok(Begun::Work(work))
}

/// Returns the epoch of the next operation.
fn next_epoch(field: &Field, epoch: u64) -> Check<u64> {
    let next = field.clock.max(epoch) + 1;
    if next > EPOCH_MAX {
        return Err(Fault::new(Code::EpochOverflow, "the clock is exhausted"));
    }
    let jump_max = field.config.limits.epoch_jump_max;
    if epoch.saturating_sub(field.clock) > jump_max {
        let message = format!("`epoch` is more than {jump_max} ahead of the clock");
        return Err(Fault::new(Code::InvalidEnvelope, message));
    }
    Ok(next)
}

/// An operation under way: what it looks at and what it has written so far.
struct Work<'a> {
    field: &'a Field,
    call: &'a Call<'a>,
    /// Nobody for a REGISTER.
    sender: Option<&'a Agent>,
    epoch: u64,
    authority: u8,
    /// Goes onto the first entry.
    message: Option<Message>,
    ids: usize,
    /// Statuses that entries of this operation gave.
    statuses: BTreeMap<String, UnitStatus>,
    steps: Vec<(Entry, Option<Content>)>,
    kept: StoredAnswer,
}

impl<'a> Work<'a> {
    fn perform(&mut self) -> Check<Value> {
        match self.call.envelope.operation {
            Operation::Register => self.register(),
            Operation::Deregister => self.deregister(),
            Operation::Record => self.record(),
            Operation::Attune => self.attune(),
            Operation::Detect => self.detect(),
            Operation::Merge => self.merge(),
            Operation::Subscribe => self.subscribe(),
            Operation::Replay => self.replay(),
            Operation::Compact => self.compact(),
            Operation::Coordinate => self.coordinate(),
            Operation::Handoff => self.handoff(),
            Operation::Session => self.session(),
        }
    }

    fn payload(&self) -> Members<'a> {
        Members::of(&self.call.envelope.payload)
    }

    fn agent(&self) -> &'a str {
        &self.call.envelope.agent_id
    }

    /// Returns a member before the payload is checked, because the authority depends on it.
    fn peek(&self, name: &str) -> Option<&'a str> {
        self.call.envelope.payload.get(name).and_then(Value::as_str)
    }

    fn require(&self, authority: u8) -> Check<()> {
        if self.authority >= authority {
            return Ok(());
        }
        let level = self.field.config.level;
        let scope = caller::scope_for(level, authority);
        let message = if level < Level::Full {
            format!("this needs a key with the scope `{scope}`")
        } else if self
            .call
            .caller
            .is_some_and(|caller| caller.ceiling < authority)
        {
            format!("this needs authority {authority}, which takes a key with the scope `{scope}`")
        } else {
            let own = self.authority;
            format!("this needs authority {authority}, and the sender is registered with {own}")
        };
        Err(Fault::new(Code::Forbidden, message))
    }

    /// Returns whether the sender may work in every session. Below level 3 every key that may write counts as 8, and sessions
    /// of a higher level stay closed to it.
    fn is_above_sessions(&self) -> bool {
        match self.field.config.level >= Level::Full {
            true => self.authority >= caller::SESSION_CREATOR,
            false => self.authority >= caller::OPERATOR,
        }
    }

    /// A session that was created is for its members, and takes nothing in while paused or after its end.
    fn check_session(&self) -> Check<()> {
        let operation = self.call.envelope.operation;
        let exempt = matches!(
            operation,
            Operation::Register | Operation::Replay | Operation::Session
        );
        let id = self.call.envelope.session_id.as_ref();
        let Some(session) = id
            .and_then(|id| self.field.sessions.get(id))
            .filter(|_| !exempt)
        else {
            return Ok(());
        };
        if !session.members.contains(self.agent()) && !self.is_above_sessions() {
            let message = "the sender is not a member of the session `session_id`";
            return Err(Fault::new(Code::Forbidden, message));
        }
        Ok(())
    }

    /// The part of the session's rules that is about its state, and therefore comes last.
    fn check_session_takes_writes(&self) -> Check<()> {
        let id = self.call.envelope.session_id.as_ref();
        match id.and_then(|id| self.field.sessions.get(id)) {
            Some(session) if session.status != SessionStatus::Active => Err(Fault::new(
                Code::InvalidTransition,
                format!("the session `session_id` is {}", session.status),
            )),
            _ => Ok(()),
        }
    }

    fn next_id(&mut self, prefix: &str) -> String {
        let number = self.ids;
        self.ids += 1;
        self.call.fresh.id(prefix, number)
    }

    fn next_salt(&mut self) -> String {
        let number = self.ids;
        self.ids += 1;
        self.call.fresh.salt(number)
    }

    /// Writes an entry of the sender under the session of the envelope.
    fn log(&mut self, event: Event) {
        let session = self.call.envelope.session_id.clone();
        self.log_as(self.agent().to_owned(), session, event, None);
    }

    /// Writes an entry that the field derives from the operation.
    fn log_derived(&mut self, event: Event) {
        let session = self.call.envelope.session_id.clone();
        self.log_as(SYSTEM.to_owned(), session, event, None);
    }

    fn log_as(
        &mut self,
        agent_id: String,
        session_id: Option<String>,
        event: Event,
        content: Option<Content>,
    ) {
        for effect in event.effects() {
            self.statuses.insert(effect.unit_id.clone(), effect.status);
        }
        let written = u64::try_from(self.steps.len()).unwrap_or(u64::MAX);
        let entry = Entry {
            seq: self.field.head.saturating_add(written).saturating_add(1),
            at: self.call.fresh.now,
            epoch: self.epoch,
            agent_id,
            session_id,
            message: self.message.take(),
            event,
        };
        self.steps.push((entry, content));
    }

    /// Returns the status of a unit, this operation's entries included.
    fn status_of(&self, unit: &str) -> Option<UnitStatus> {
        let now = self.statuses.get(unit).copied();
        now.or_else(|| self.field.unit(unit).map(|unit| unit.status))
    }

    /// Returns the effect that replaces a unit, unless it is final already.
    fn superseding(&self, unit: &str) -> Option<Effect> {
        let status = self.status_of(unit)?;
        let is_final = matches!(status, UnitStatus::Superseded | UnitStatus::Retracted);
        (!is_final).then(|| Effect {
            unit_id: unit.to_owned(),
            status: UnitStatus::Superseded,
        })
    }

    /// Writes the creation of a conflict and makes its units contested; returns its id. A draft contests drafts alone:
    /// whoever may only look may draft, and what others stand for keeps its status until somebody stands for the contrary.
    fn create_conflict(
        &mut self,
        (unit_a, unit_b): (&str, &str),
        by: Mode,
        kind: ConflictType,
        method: Method,
    ) -> String {
        let conflict_id = self.next_id("conflict");
        let contested = |unit: &str| {
            let can = match self.status_of(unit)? {
                UnitStatus::Draft => true,
                UnitStatus::Active | UnitStatus::PendingEnrichment => by == Mode::Committed,
                UnitStatus::Superseded | UnitStatus::Retracted | UnitStatus::Contested => false,
            };
            can.then(|| Effect {
                unit_id: unit.to_owned(),
                status: UnitStatus::Contested,
            })
        };
        let effects = [unit_a, unit_b].into_iter().filter_map(contested).collect();
        self.log_derived(Event::ConflictCreated {
            conflict_id: conflict_id.clone(),
            unit_a: unit_a.to_owned(),
            unit_b: unit_b.to_owned(),
            kind,
            detected_by: method,
            effects,
        });
        conflict_id
    }

    /// Returns the model and vector of a new unit's text, and a warning where there is none.
    fn embed(&self) -> (Option<Model>, Option<Vector>, Option<String>) {
        if self.field.config.level < Level::Standard {
            return (None, None, None);
        }
        match &self.call.embedding {
            Embedding::BuiltIn => (Some(Model::hash_1024()), None, None),
            Embedding::Given(vector) => (Some(vector.model.clone()), Some(vector.clone()), None),
            Embedding::Failed(reason) => {
                let warning = format!("{}: {reason}", Code::EnrichmentFailed.as_str());
                (None, None, Some(warning))
            }
        }
    }

    /// Returns whether a DETECT mode is offered.
    fn detects(&self, mode: DetectMode) -> bool {
        mode == DetectMode::List || self.field.config.level >= Level::Standard
    }
}

/// A synthesis that the field writes for MERGE or COMPACT.
struct Synthesis {
    unit_id: String,
    task_id: Option<String>,
    session_id: Option<String>,
    sources: Vec<String>,
    score: f64,
    text: UnitText,
    /// Its vector, when a model outside had the chance to make one.
    embedding: Embedding,
}

impl Work<'_> {
    /// Writes the RECORD of a synthesis in the name of the sender.
    fn record_synthesis(&mut self, synthesis: Synthesis) {
        use crate::event::{Recorded, Relation};
        use crate::kind::{MemoryType, Mode, RelationType};
        let (model, vector, status) = match synthesis.embedding {
            Embedding::BuiltIn => (Some(Model::hash_1024()), None, UnitStatus::Active),
            Embedding::Given(vector) => {
                (Some(vector.model.clone()), Some(vector), UnitStatus::Active)
            }
            Embedding::Failed(_) => (None, None, UnitStatus::PendingEnrichment),
        };
        let relations = synthesis.sources.into_iter().map(|target_id| Relation {
            kind: RelationType::Elaborates,
            target_id,
            unbound: false,
        });
        let event = Event::Recorded(Recorded {
            unit_id: synthesis.unit_id,
            mode: Mode::Committed,
            kind: MemoryType::Synthesis,
            agent_role: self
                .sender
                .map(|agent| agent.role.clone())
                .unwrap_or_default(),
            task_id: synthesis.task_id,
            score: Some(synthesis.score),
            relations: relations.collect(),
            status,
            text_sha256: synthesis.text.sha256(),
            model,
            effects: Vec::new(),
        });
        let content = Content {
            text: Some(synthesis.text),
            vector,
        };
        self.log_as(
            self.agent().to_owned(),
            synthesis.session_id,
            event,
            Some(content),
        );
    }
}
