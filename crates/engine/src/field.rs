//! Memory fields: messages of agents to a memory that they share.
//!
//! A field is the fold of its events. It is read from the log when it is first used and lives in memory from then on: one
//! desk per field takes its messages in order, decides them on the field as it is, and has the entries committed in a turn
//! that checks the version they were decided on. Nothing is answered before its commit, refusals included, because a refusal
//! may rest on an entry before it. Messages that come together share a commit; what is decided for a later one rests on the
//! earlier ones, and is decided again when one of those came to nothing.

mod embed;
mod listen;
mod load;
mod processor;
mod purge;
mod task;
mod vote;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use canon::Value;
use domain::{FieldId, Timestamp, WorkspaceId};
use field::{Code, Config, Depth, Envelope, Level, Operation, Reader, Refusal, Target, TargetType};
use tokio::sync::RwLock;

use crate::caller::Caller;
use crate::engine::Engine;
use crate::port::Embedder;
use crate::refused::Refused;

pub use listen::{FieldFrame, FieldStream};
pub(crate) use processor::FieldProcessor;
pub(crate) use task::AtMemory;

/// How the ids of agents begin that stand for personas.
const PERSONAS: &str = "persona_";
/// The name of the field of a request that names none.
const DEFAULT_NAME: &str = "default";
/// The longest name.
const NAME_BYTES_MAX: usize = 128;
/// Fields in memory, beyond which those are dropped that nobody uses at the moment.
const HELD_MAX: usize = 64;

/// Which field a request is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldName {
    workspace_id: WorkspaceId,
    name: String,
}

impl FieldName {
    /// Finds the field of a request: in the caller's only Workspace, else in the local one.
    ///
    /// # Errors
    /// The name is not one, or the caller has no such Workspace.
    pub fn of(caller: &Caller, name: Option<&str>) -> Result<Self, FieldRefused> {
        let name = name.unwrap_or(DEFAULT_NAME);
        let is_name = (1..=NAME_BYTES_MAX).contains(&name.len())
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
        if !is_name {
            let message = format!(
                "the name of a field has 1 to {NAME_BYTES_MAX} letters, digits, dots, hyphens or underscores"
            );
            return Err(refusal(Code::InvalidRequest, message));
        }
        let workspace_id = match caller.workspaces() {
            Some([only]) => only.clone(),
            _ => WorkspaceId::local(),
        };
        if !caller.sees(Some(&workspace_id)) {
            let message =
                "the key is bound to several workspaces, and the local one is not among them";
            return Err(refusal(Code::Forbidden, message));
        }
        Ok(Self {
            workspace_id,
            name: name.to_owned(),
        })
    }

    /// Returns the id of the field.
    pub fn id(&self) -> FieldId {
        FieldId::of(&self.workspace_id, &self.name)
    }
}

/// Why a message was not carried out.
#[derive(Debug, Clone, thiserror::Error)]
pub enum FieldRefused {
    /// The protocol says no.
    #[error(transparent)]
    Protocol(#[from] Refusal),
    /// The engine does.
    #[error(transparent)]
    Engine(#[from] Refused),
}

fn refusal(code: Code, message: impl Into<String>) -> FieldRefused {
    FieldRefused::Protocol(Refusal::new(code, message, None))
}

/// What can be looked at without an operation: nothing is logged, and the clock stands.
#[derive(Debug, Clone, PartialEq)]
pub enum FieldView {
    /// Counts.
    Status,
    /// The registered agents.
    Agents,
    /// Conflicts that are not resolved, in the order in which they were found.
    Conflicts {
        /// The most that are listed.
        limit: Option<u64>,
        /// The one after which the list begins.
        cursor: Option<String>,
    },
    /// The causal chain of a target as a Graphviz graph.
    Dot(TargetType, String),
    /// The same as a picture.
    Svg(TargetType, String),
}

/// A unit that is to be taken back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retraction {
    /// Who does it: its author, or the operator.
    pub agent_id: String,
    /// The unit.
    pub unit_id: String,
    /// Why.
    pub reason: String,
}

/// The fields in use.
#[derive(Debug, Default)]
pub(crate) struct Fields {
    config: OnceLock<Config>,
    /// The model outside that makes vectors; the built-in one without it.
    embedder: OnceLock<Arc<dyn Embedder>>,
    /// Until when it is left alone after it failed.
    rests_until: Mutex<Option<Timestamp>>,
    desks: Mutex<BTreeMap<FieldId, Arc<FieldProcessor>>>,
    /// Held shared while a segment is made and put away, and alone while a purge erases: no segment brings back its text.
    segments: Arc<RwLock<()>>,
}

impl Fields {
    fn config(&self) -> &Config {
        self.config.get_or_init(|| Config::at(Level::Full))
    }

    fn desks(&self) -> MutexGuard<'_, BTreeMap<FieldId, Arc<FieldProcessor>>> {
        self.desks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn processor(&self, name: &FieldName) -> Arc<FieldProcessor> {
        let mut desks = self.desks();
        if desks.len() >= HELD_MAX {
            // Whoever uses a desk holds it too.
            desks.retain(|_, processor| Arc::strong_count(processor) > 1 || processor.is_watched());
        }
        let processor = desks.entry(name.id()).or_insert_with(|| {
            let (workspace_id, name) = (name.workspace_id.clone(), name.name.clone());
            Arc::new(FieldProcessor::new(workspace_id, name))
        });
        Arc::clone(processor)
    }
}

/// Returns the highest authority that a caller's scopes allow; none without any.
fn ceiling(caller: &Caller) -> Option<u8> {
    [
        ("field:admin", field::OPERATOR),
        ("field:write", field::SENIOR),
        ("field:read", field::OBSERVER),
    ]
    .into_iter()
    .find_map(|(scope, ceiling)| caller.may(scope).then_some(ceiling))
}

fn credential(caller: &Caller, ceiling: u8) -> field::Caller {
    let key = caller.key_id.clone();
    field::Caller {
        key: key.unwrap_or_else(|| caller.actor.clone()),
        ceiling,
        agents: caller.agents().map(str::to_owned).collect(),
    }
}

impl Engine {
    /// Says what fields offer, once, before anything is served.
    pub fn set_fields(&self, config: Config) {
        // A second call changes nothing: what was announced stands while the server runs.
        let _ = self.shared.fields.config.set(config);
    }

    /// Has vectors made by a model outside, from now on.
    pub fn set_embedder(&self, embedder: Arc<dyn Embedder>) {
        // A second call changes nothing.
        let _ = self.shared.fields.embedder.set(embedder);
    }

    /// Returns what fields offer.
    pub fn fields(&self) -> &Config {
        self.shared.fields.config()
    }

    /// Carries out a message to a field. Not a [`domain::Request`]: a message has a protocol of its own, whose ids are its
    /// idempotency, whose authority comes of one of three scopes, and whose place follows from the key; and the field that
    /// decides it is no document. What it leads to is ordered in turns as everything is.
    ///
    /// # Errors
    /// See [`FieldRefused`]. Nothing was written then.
    pub async fn field_message(
        &self,
        caller: &Caller,
        name: Option<&str>,
        envelope: Envelope,
    ) -> Result<Value, FieldRefused> {
        if self.is_draining() {
            return Err(Refused::Draining.into());
        }
        let operation = envelope.operation();
        let ceiling = ceiling(caller).ok_or(Refused::PermissionDenied {
            scope: "field:read",
        })?;
        let said = async {
            check_agent(envelope.agent_id())?;
            let name = FieldName::of(caller, name)?;
            // Every message is an entry of the log. Which room that needs is known when it is decided; mostly it is this.
            let reads = matches!(operation, Operation::Attune | Operation::Replay);
            if ceiling >= field::STANDARD && !reads && !purge::asks_to_purge(&envelope) {
                self.may_store(Some(&name.workspace_id), 1).await?;
            }
            let processor = self.shared.fields.processor(&name);
            let sender = processor::Sender {
                actor: caller.actor.clone(),
                caller: credential(caller, ceiling),
            };
            let envelope = envelope.map_digest(|digest| self.mac([digest.as_bytes().as_slice()]));
            self.ask(&processor, sender, envelope).await
        };
        said.await.map_err(|refused| about(refused, operation))
    }

    /// Takes a unit back. The memory protocol has a status for that and no operation.
    ///
    /// # Errors
    /// See [`FieldRefused`]. Nothing was written then.
    pub async fn retract_unit(
        &self,
        caller: &Caller,
        name: Option<&str>,
        retraction: Retraction,
    ) -> Result<Value, FieldRefused> {
        if self.is_draining() {
            return Err(Refused::Draining.into());
        }
        let ceiling = ceiling(caller).ok_or(Refused::PermissionDenied {
            scope: "field:read",
        })?;
        check_agent(&retraction.agent_id)?;
        let name = FieldName::of(caller, name)?;
        self.may_store(Some(&name.workspace_id), 1).await?;
        let processor = self.shared.fields.processor(&name);
        let sender = processor::Sender {
            actor: caller.actor.clone(),
            caller: credential(caller, ceiling),
        };
        let task = processor::Job::Retract {
            agent_id: retraction.agent_id,
            unit_id: retraction.unit_id,
            reason: retraction.reason,
        };
        self.enqueue(&processor, sender, task).await
    }

    /// Shows a field. One that does not exist yet is shown as an empty one.
    ///
    /// # Errors
    /// See [`FieldRefused`].
    pub async fn field_view(
        &self,
        caller: &Caller,
        name: Option<&str>,
        view: FieldView,
    ) -> Result<Value, FieldRefused> {
        let ceiling = ceiling(caller).ok_or(Refused::PermissionDenied {
            scope: "field:read",
        })?;
        let processor = self.shared.fields.processor(&FieldName::of(caller, name)?);
        let mut held = processor.held().await;
        let held = match &mut *held {
            Some(held) => held,
            empty => empty.insert(self.open_field(&processor).await?),
        };
        let field = &held.field;
        let draws = matches!(view, FieldView::Dot(..) | FieldView::Svg(..));
        if draws && !field.config().offers(Operation::Replay) {
            let level = field.config().level.number();
            let message = format!("this draws a `REPLAY`, which is not offered at level {level}");
            let operation = Some(Operation::Replay);
            return Err(Refusal::new(Code::UnsupportedOperation, message, operation).into());
        }
        // A key sees what its agents may see, and the operator's everything.
        let viewers = field.viewers(&credential(caller, ceiling));
        let viewers = viewers.as_deref();
        let drawn = |kind: TargetType, id: String| {
            let target = Target {
                kind,
                id,
                depth: Depth::FullTrace,
            };
            let reader = Reader {
                text_of: &|unit| field.text_of(unit),
                sees: &|session| field.is_session_shown(viewers, session),
            };
            field.log().graph(&target, &reader, &field.config().limits)
        };
        match view {
            FieldView::Status => Ok(field.status_view(viewers)),
            FieldView::Agents => Ok(field.agents_view(viewers)),
            FieldView::Conflicts { limit, cursor } => field
                .conflicts_view(viewers, limit, cursor.as_deref())
                .ok_or_else(|| {
                    let message = "`cursor` is not one that an earlier answer ended with";
                    refusal(Code::InvalidRequest, message)
                }),
            FieldView::Dot(kind, id) => Ok(drawn(kind, id)?.to_dot().into()),
            FieldView::Svg(kind, id) => Ok(drawn(kind, id)?.to_svg().into()),
        }
    }
}

/// Refuses agents that nobody speaks for: else a persona's Tasks would find their memory taken by somebody else.
fn check_agent(id: &str) -> Result<(), FieldRefused> {
    if id.starts_with(PERSONAS) {
        let message = format!("agents whose ids begin with `{PERSONAS}` are the server's own");
        return Err(refusal(Code::Forbidden, message));
    }
    Ok(())
}

/// Names the operation of a refusal that was made before anybody knew it.
fn about(refused: FieldRefused, operation: Operation) -> FieldRefused {
    match refused {
        FieldRefused::Protocol(refusal) => FieldRefused::Protocol(refusal.about(operation)),
        engine => engine,
    }
}
