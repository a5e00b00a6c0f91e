//! Filling what a reader gets of a resource: its document and the content it points to, as far as the reader may see it.

use std::collections::BTreeMap;
use std::sync::Arc;

use canon::{Digest, Map, Value};
use domain::{
    Activity, Answer, BLOB_MEMBER, Content, Document, Event, Extra, Position, ResourceKind,
    Session, State, Status, View, Visibility, payload,
};

use serde_json::json;

use crate::caller::Caller;
use crate::engine::Engine;
use crate::port::{BoxFuture, ListQuery, Scope, Store};
use crate::refused::Refused;
use crate::turn::CommitContents;

impl Engine {
    /// Fills in what one document points to.
    pub(crate) async fn view(
        &self,
        caller: &Caller,
        document: Document,
        written: &CommitContents,
    ) -> Result<View, Refused> {
        let views = self.views(caller, vec![document], written).await?;
        views.into_iter().next().ok_or(Refused::Internal {
            detail: "no view of a document".to_owned(),
        })
    }

    /// Fills in what documents point to: from what a commit just wrote where it is there, else from the store.
    pub(crate) fn views<'a>(
        &'a self,
        caller: &'a Caller,
        documents: Vec<Document>,
        written: &'a CommitContents,
    ) -> BoxFuture<'a, Result<Vec<View>, Refused>> {
        // A future is compiled where it is boxed: here, and not in each crate that waits for it.
        Box::pin(self.fill_in(caller, documents, written))
    }

    async fn fill_in(
        &self,
        caller: &Caller,
        mut documents: Vec<Document>,
        written: &CommitContents,
    ) -> Result<Vec<View>, Refused> {
        for document in &mut documents {
            if self.shared.work.is_recovering(document)
                && let State::Task(task) = &mut document.state
            {
                // After a crash nobody sees a Task wait that has not been recovered (AP-TASK-04).
                task.status = domain::Status::Working;
            }
        }
        let mut contents = BTreeMap::new();
        let mut wanted = Vec::new();
        for position in documents.iter().flat_map(content_positions) {
            match written.event(position) {
                Some(event) => drop(contents.insert(position, Arc::clone(event))),
                None => wanted.push(position),
            }
        }
        contents.extend(self.contents(wanted).await?);
        let mut payloads = BTreeMap::new();
        // A Message is read from an event of its own Workspace: copies never leave it.
        let mut workspaces = BTreeMap::new();
        for (position, event) in contents {
            workspaces.insert(position, event.workspace_id.clone());
            // Nearly always everything stands in the event, and nothing has to be copied.
            let is_whole = !event.payload.contains_key(BLOB_MEMBER) && !hides_parts(&event.payload);
            let content = if is_whole {
                Content::Plain(event)
            } else {
                let mut payload = Map::clone(&event.payload);
                show_blobs(&*self.shared.store, &mut payload).await?;
                self.reveal_parts(caller, &mut payload).await?;
                Content::Filled(payload)
            };
            payloads.insert(position, content);
        }
        let mut views = Vec::with_capacity(documents.len());
        let is_one = documents.len() == 1;
        for document in documents {
            let payloads = match is_one {
                true => std::mem::take(&mut payloads),
                false => content_positions(&document)
                    .into_iter()
                    .filter_map(|position| Some((position, payloads.get(&position)?.clone())))
                    .collect(),
            };
            let mut view = View {
                document,
                payloads,
                extra: Extra::None,
            };
            view.extra = match &view.document.state {
                State::Message(message) => Extra::Message {
                    workspace_id: workspaces.get(&message.source).cloned().flatten(),
                },
                _ => self.extra(caller, &view).await?,
            };
            views.push(view);
        }
        Ok(views)
    }

    async fn extra(&self, caller: &Caller, view: &View) -> Result<Extra, Refused> {
        match &view.document.state {
            State::Session(session) => self.session_extra(view.document.key, session).await,
            State::Outcome(outcome) => {
                let listed = view
                    .payload(outcome.source)
                    .and_then(|payload| payload::OutcomeRecorded::of(payload).message_ids());
                let ids: Vec<Box<str>> = listed
                    .and_then(Value::as_array)
                    .map(|ids| {
                        ids.iter()
                            .filter_map(Value::as_str)
                            .map(Into::into)
                            .collect()
                    })
                    .unwrap_or_default();
                let documents = self
                    .shared
                    .store
                    .documents(ids)
                    .await?
                    .into_iter()
                    .flatten()
                    .collect();
                let messages = self
                    .views(caller, documents, &CommitContents::default())
                    .await?;
                Ok(Extra::Outcome { messages })
            }
            State::Artifact(artifact) => {
                let task = artifact.task_id.iter().map(|id| id.as_str().into());
                let documents = self.shared.store.documents(task.collect()).await?;
                let receipt_id =
                    documents
                        .into_iter()
                        .flatten()
                        .find_map(|task| match task.state {
                            // What was registered after the end is not in the receipt.
                            State::Task(state) if view.document.key <= task.tip => state.receipt_id,
                            _ => None,
                        });
                Ok(Extra::Artifact { receipt_id })
            }
            State::Workspace(_)
            | State::Task(_)
            | State::Branch(_)
            | State::Message(_)
            | State::Permission(_)
            | State::Vault(_)
            | State::Receipt(_)
            | State::Chain(_)
            | State::Batch(_)
            | State::TrustChain(_)
            | State::Persona(_)
            | State::Key(_)
            | State::Field(_) => Ok(Extra::None),
        }
    }

    /// Finds a Session's last event, and computes what it is doing from its open Tasks (AP-SESS-10).
    async fn session_extra(&self, key: Position, session: &Session) -> Result<Extra, Refused> {
        /// So many tell what a Session is doing.
        const OPEN_MAX: usize = 200;
        let shared = &self.shared;
        let known = shared.cache.session(key, shared.store.head());
        let (activity, last_event) = match known.activity.zip(known.last_event) {
            Some((activity, last_event)) => (activity, Some(last_event)),
            None => {
                let last_event = shared.store.last_event(Scope::Session(key)).await?;
                let query = ListQuery {
                    kind: ResourceKind::Task,
                    scope: Scope::Session(key),
                    open_only: true,
                    after: Position::START,
                    limit: OPEN_MAX,
                };
                let open = shared.store.list(query).await?;
                if open.len() < OPEN_MAX {
                    let ticket = known.ticket;
                    shared.cache.keep_session(ticket, key, last_event, &open);
                }
                let waiting = |document: &Document| match &document.state {
                    State::Task(task) => task.status.is_waiting(),
                    _ => false,
                };
                (Activity::of(open.iter().map(waiting)), last_event)
            }
        };
        let activity = if session.closed {
            Activity::Closed
        } else if session.replaying.is_some() {
            // Also between two of the Tasks that it replays.
            Activity::Active
        } else {
            activity
        };
        Ok(Extra::Session {
            activity,
            last_event_id: last_event.map(|position| shared.store.name().id(position)),
        })
    }

    /// Puts internal parts back for a reader who may see them. Receipt-only parts stay descriptors for everyone.
    async fn reveal_parts(
        &self,
        caller: &Caller,
        payload: &mut Map<String, Value>,
    ) -> Result<(), Refused> {
        if !caller.may("internal:read") {
            return Ok(());
        }
        let Some(Value::Array(parts)) = payload.get_mut("parts") else {
            return Ok(());
        };
        for part in parts {
            let visibility = part.get("visibility").and_then(Value::as_str);
            if visibility != Some(Visibility::Internal.as_str()) {
                continue;
            }
            let digest = part
                .get("sha256")
                .and_then(Value::as_str)
                .and_then(|text| Digest::parse(text).ok());
            let Some(digest) = digest else { continue };
            // A blob may be gone or damaged; the descriptor then says all there is to say.
            if let Ok(Value::Object(mut salted)) = blob_value(&*self.shared.store, digest).await?
                && let Some(original) = salted.remove("part")
            {
                *part = original;
            }
        }
        Ok(())
    }
}

impl Engine {
    /// Reads the payload of the event at a position, blobs filled in.
    ///
    /// # Errors
    /// There is no such event, or content of it is missing or damaged.
    pub(crate) async fn payload(&self, position: Position) -> Result<Map<String, Value>, Refused> {
        let found = self.contents(vec![position]).await?.into_iter().next();
        let Some((_, event)) = found else {
            return Err(no_event(position));
        };
        let mut payload = Map::clone(&event.payload);
        resolve_blobs(&*self.shared.store, &mut payload).await?;
        Ok(payload)
    }
}

/// The same for whoever has only the store.
pub(crate) async fn payload(
    store: &dyn Store,
    position: Position,
) -> Result<Map<String, Value>, Refused> {
    let mut payload = payload_as_stored(store, position).await?;
    resolve_blobs(store, &mut payload).await?;
    Ok(payload)
}

fn no_event(position: Position) -> Refused {
    Refused::Internal {
        detail: format!("no event at position {}", position.0),
    }
}

/// The same for readers: content that cannot be had is told, and the rest is shown.
pub(crate) async fn shown_payload(
    store: &dyn Store,
    position: Position,
) -> Result<Map<String, Value>, Refused> {
    let mut payload = payload_as_stored(store, position).await?;
    show_blobs(store, &mut payload).await?;
    Ok(payload)
}

async fn payload_as_stored(
    store: &dyn Store,
    position: Position,
) -> Result<Map<String, Value>, Refused> {
    let Some(stored) = store.event_at(position).await? else {
        return Err(no_event(position));
    };
    let event = Event::parse(&stored.bytes).map_err(|error| Refused::Internal {
        detail: error.to_string(),
    })?;
    Ok(Arc::unwrap_or_clone(event.payload))
}

/// Puts members that were moved into blobs back into a payload.
///
/// # Errors
/// One of them is missing or damaged.
pub(crate) async fn resolve_blobs(
    store: &dyn Store,
    payload: &mut Map<String, Value>,
) -> Result<(), Refused> {
    for (member, digest) in blob_members(payload) {
        let value = blob_value(store, digest)
            .await?
            .map_err(|reason| Refused::Internal {
                detail: format!("blob `{digest}` is {reason}; run `reprise log verify`"),
            })?;
        payload.insert(member, value);
    }
    payload.remove(BLOB_MEMBER);
    Ok(())
}

/// The same for readers: a member that cannot be had says so.
async fn show_blobs(store: &dyn Store, payload: &mut Map<String, Value>) -> Result<(), Refused> {
    for (member, digest) in blob_members(payload) {
        let value = match blob_value(store, digest).await? {
            Ok(value) => value,
            Err(reason) => {
                let lacking = json!({"redacted": true, "reason": reason, "sha256": digest});
                match (&*member, lacking) {
                    // Parts are always a list, and each has a type and is for somebody.
                    ("parts", Value::Object(mut lacking)) => {
                        lacking.insert("type".to_owned(), reason.into());
                        lacking.insert("visibility".to_owned(), "public".into());
                        json!([lacking])
                    }
                    (_, lacking) => lacking,
                }
            }
        };
        payload.insert(member, value);
    }
    payload.remove(BLOB_MEMBER);
    Ok(())
}

fn blob_members(payload: &Map<String, Value>) -> Vec<(String, Digest)> {
    domain::external_members(payload)
        .map(|external| (external.member.to_owned(), external.digest))
        .collect()
}

/// Reads a value that was moved into a blob; what is wrong with it otherwise.
async fn blob_value(
    store: &dyn Store,
    digest: Digest,
) -> Result<Result<Value, &'static str>, Refused> {
    let Some(bytes) = store.blob_as_stored(digest).await? else {
        return Ok(Err("missing"));
    };
    if canon::sha256(&bytes) != digest {
        return Ok(Err("damaged"));
    }
    Ok(serde_json::from_slice(&bytes).map_err(|_| "damaged"))
}

/// True when a Message has parts that not everybody may see.
fn hides_parts(payload: &Map<String, Value>) -> bool {
    let public = Visibility::Public.as_str();
    let parts = payload::Message::of(payload)
        .parts()
        .and_then(Value::as_array);
    let mut parts = parts.into_iter().flatten();
    parts.any(|part| part.get("visibility").and_then(Value::as_str) != Some(public))
}

/// Returns the positions of the events that hold a document's content.
pub(crate) fn content_positions(document: &Document) -> Vec<Position> {
    match &document.state {
        State::Workspace(workspace) => vec![workspace.metadata],
        State::Session(session) => vec![session.metadata],
        State::Task(task) => {
            let mut positions = vec![task.submitted];
            if task.input != task.submitted {
                positions.push(task.input);
            }
            if task.status == Status::Failed {
                positions.extend(task.failure);
            }
            positions
        }
        State::Branch(branch) => vec![branch.metadata],
        State::Message(message) => vec![message.source],
        State::Artifact(artifact) => vec![artifact.source],
        State::Outcome(outcome) => vec![outcome.source],
        State::Permission(request) => {
            let mut positions = vec![request.asked];
            match request.answer {
                Answer::Pending => {}
                Answer::Approved { at, .. }
                | Answer::Denied { at, .. }
                | Answer::Withdrawn { at } => positions.push(at),
            }
            positions
        }
        State::Vault(vault) => vec![vault.metadata],
        State::Persona(persona) => vec![persona.source],
        State::Receipt(receipt) => receipt.verified.into_iter().collect(),
        State::Chain(_) | State::TrustChain(_) | State::Key(_) | State::Field(_) => Vec::new(),
        State::Batch(batch) => std::iter::once(batch.source)
            .chain(batch.cosigned.iter().copied())
            .collect(),
    }
}
