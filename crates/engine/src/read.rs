//! Reads: one resource, lists of them, ranges of events, bytes of Artifacts.
//!
//! A resource of a Workspace that the caller may not see is answered like one that does not exist.

use canon::Digest;
use domain::{Document, Event, Position, Refusal, ResourceKind, Session, State, View, Visibility};

use crate::caller::Caller;
use crate::engine::Engine;
use crate::port::{
    LastEvents, ListQuery, NewestQuery, ReadEvents, Scope, Store, StoreFault, StoredEvent,
};
use crate::refused::Refused;
use crate::transfer::Download;
use crate::turn::CommitContents;

/// Reads the next page of a Task's events after a position, which moves on with it; none when there are no more. Page by
/// page, so that others have their turn in between.
pub(crate) async fn next_page(
    store: &dyn Store,
    task: Position,
    after: &mut Position,
) -> Result<Option<Vec<StoredEvent>>, StoreFault> {
    let query = ReadEvents {
        scope: Scope::Task(task),
        after: *after,
        limit: 512,
    };
    let page = store.events(query).await?;
    let Some(last) = page.last() else {
        return Ok(None);
    };
    *after = last.position;
    Ok(Some(page))
}

/// What a list or a range of events is narrowed to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filters {
    /// Only those of this Workspace.
    pub workspace_id: Option<String>,
    /// Only those of this Session.
    pub session_id: Option<String>,
    /// Only those of this Task.
    pub task_id: Option<String>,
}

/// A list to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListRequest {
    /// Of this kind.
    pub kind: ResourceKind,
    /// Only what these leave.
    pub filters: Filters,
    /// After this key.
    pub after: Position,
    /// The maximum number to return.
    pub limit: usize,
}

/// Documents that one page of a narrowed list looks at, and how many at a time.
const LOOKED_AT_MAX: usize = 1_000;
const LOOK_LEN: usize = 200;
/// How many open documents a list sees newest first.
const OPEN_MAX: usize = 10_000;

/// The order of a list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ListOrder {
    /// As they were created.
    #[default]
    OldestFirst,
    /// The other way round.
    NewestFirst,
}

/// What a test says of a document of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Selection {
    /// It belongs to the list.
    Keep,
    /// It does not.
    Skip,
    /// Neither does anything that follows.
    Stop,
}

/// A page of a list.
#[derive(Debug, Clone, PartialEq)]
pub struct Page {
    /// The resources.
    pub views: Vec<View>,
    /// Where the next page starts, when there is more.
    pub next: Option<Position>,
}

/// A range of events to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventRange {
    /// Only what these leave.
    pub filters: Filters,
    /// After this event, exclusive.
    pub after_event_id: Option<String>,
    /// The maximum number to return.
    pub limit: usize,
}

/// A page of events.
#[derive(Debug, Clone, PartialEq)]
pub struct EventPage {
    /// The events, ascending.
    pub events: Vec<StoredEvent>,
    /// True when there are more.
    pub has_more: bool,
}

/// Returns the scope a kind of resource is read under.
pub(crate) fn read_scope(kind: ResourceKind) -> &'static str {
    match kind {
        ResourceKind::Workspace => "workspaces:read",
        ResourceKind::Session | ResourceKind::Branch | ResourceKind::Message => "sessions:read",
        ResourceKind::Task | ResourceKind::Outcome | ResourceKind::Permission => "tasks:read",
        ResourceKind::Artifact => "artifacts:read",
        ResourceKind::Vault => "vaults:read",
        ResourceKind::Receipt
        | ResourceKind::Chain
        | ResourceKind::Batch
        | ResourceKind::TrustChain => "receipts:read",
        ResourceKind::Persona => "personas:read",
        // No operation shows one; its events are read like others.
        ResourceKind::Key => "internal:read",
        ResourceKind::Field => "field:read",
    }
}

impl Engine {
    /// Reads one resource.
    ///
    /// # Errors
    /// It does not exist or is hidden; the caller lacks the scope; the store failed.
    pub async fn get(
        &self,
        caller: &Caller,
        kind: ResourceKind,
        id: &str,
    ) -> Result<View, Refused> {
        caller.require(read_scope(kind))?;
        let document = self.visible(caller, kind, id).await?;
        self.view(caller, document, &CommitContents::default())
            .await
    }

    /// Lists resources, ordered by creation.
    ///
    /// # Errors
    /// The caller lacks the scope; a named filter does not exist; the store failed.
    pub async fn list(&self, caller: &Caller, request: ListRequest) -> Result<Page, Refused> {
        caller.require(read_scope(request.kind))?;
        let scopes = if request.kind == ResourceKind::Persona {
            vec![Scope::All]
        } else {
            self.scopes(caller, &request.filters).await?
        };
        // As with events: what is created while scopes are read one after the other is for the next page.
        let head = match scopes.len() {
            0 | 1 => None,
            _ => Some(self.shared.store.head()),
        };
        let mut documents = Vec::new();
        for scope in scopes {
            let query = ListQuery {
                kind: request.kind,
                scope,
                open_only: false,
                after: request.after,
                limit: request.limit + 1,
            };
            documents.extend(self.shared.store.list(query).await?);
        }
        documents.retain(|document| head.is_none_or(|head| document.key <= head));
        documents.sort_by_key(|document| document.key);
        self.page(caller, documents, request.limit).await
    }

    /// Lists resources that two tests keep, newest or oldest first. The first test sees a document, the second what a
    /// reader sees of those that passed. One call looks at a bounded number of documents: a page may be short, or empty,
    /// and still name where to go on.
    ///
    /// # Errors
    /// As [`Engine::list`].
    pub async fn list_where(
        &self,
        caller: &Caller,
        request: ListRequest,
        order: ListOrder,
        open_only: bool,
        first: impl Fn(&Document) -> Selection,
        second: impl Fn(&View) -> bool,
    ) -> Result<Page, Refused> {
        caller.require(read_scope(request.kind))?;
        let scopes = match request.kind {
            ResourceKind::Persona => vec![Scope::All],
            _ => self.scopes(caller, &request.filters).await?,
        };
        let mut at = match (order, request.after) {
            (ListOrder::OldestFirst, after) => after,
            (ListOrder::NewestFirst, Position::START) => self.shared.store.head().plus(1),
            (ListOrder::NewestFirst, before) => before,
        };
        let mut views: Vec<View> = Vec::new();
        let mut looked_at = 0;
        loop {
            let chunk = (LOOKED_AT_MAX - looked_at).min(LOOK_LEN);
            let documents = self
                .chunk(&scopes, request.kind, order, open_only, at, chunk)
                .await?;
            let is_last = documents.len() < chunk;
            let mut kept = Vec::new();
            let mut is_over = false;
            for document in documents {
                at = document.key;
                looked_at += 1;
                match first(&document) {
                    Selection::Keep => kept.push(document),
                    Selection::Skip => {}
                    Selection::Stop => {
                        is_over = true;
                        break;
                    }
                }
            }
            for view in self.views(caller, kept, &CommitContents::default()).await? {
                if !second(&view) {
                    continue;
                }
                // There is one more than fits: the page ends before it.
                if views.len() == request.limit {
                    let next = views.last().map(|last| last.document.key);
                    return Ok(Page { views, next });
                }
                views.push(view);
            }
            if is_over || is_last {
                return Ok(Page { views, next: None });
            }
            if looked_at >= LOOKED_AT_MAX {
                return Ok(Page {
                    views,
                    next: Some(at),
                });
            }
        }
    }

    /// Reads the next documents of several scopes in one order.
    async fn chunk(
        &self,
        scopes: &[Scope],
        kind: ResourceKind,
        order: ListOrder,
        open_only: bool,
        at: Position,
        limit: usize,
    ) -> Result<Vec<Document>, Refused> {
        let store = &self.shared.store;
        let head = store.head();
        let mut documents = Vec::new();
        for scope in scopes {
            documents.extend(match order {
                // What is open is few: the index of it is read from its beginning.
                ListOrder::NewestFirst if open_only => {
                    let query = ListQuery {
                        kind,
                        scope: *scope,
                        open_only,
                        after: Position::START,
                        limit: OPEN_MAX,
                    };
                    let open = store.list(query).await?;
                    open.into_iter()
                        .filter(|document| document.key < at)
                        .collect()
                }
                ListOrder::NewestFirst => {
                    let query = NewestQuery {
                        kind,
                        scope: *scope,
                        before: Some(at),
                        limit,
                    };
                    store.newest(query).await?
                }
                ListOrder::OldestFirst => {
                    let query = ListQuery {
                        kind,
                        scope: *scope,
                        open_only,
                        after: at,
                        limit,
                    };
                    store.list(query).await?
                }
            });
        }
        if scopes.len() > 1 {
            documents.retain(|document| document.key <= head);
        }
        documents.sort_by_key(|document| document.key);
        if order == ListOrder::NewestFirst {
            documents.reverse();
        }
        documents.truncate(limit);
        Ok(documents)
    }

    async fn page(
        &self,
        caller: &Caller,
        mut documents: Vec<Document>,
        limit: usize,
    ) -> Result<Page, Refused> {
        let has_more = documents.len() > limit;
        documents.truncate(limit);
        let next = documents
            .last()
            .filter(|_| has_more)
            .map(|document| document.key);
        Ok(Page {
            views: self
                .views(caller, documents, &CommitContents::default())
                .await?,
            next,
        })
    }

    /// Lists the Messages of a Session's transcript, in order.
    ///
    /// # Errors
    /// As [`Engine::list`].
    pub async fn transcript(
        &self,
        caller: &Caller,
        session_id: &str,
        after: Position,
        limit: usize,
    ) -> Result<Page, Refused> {
        caller.require("sessions:read")?;
        let document = self
            .visible(caller, ResourceKind::Session, session_id)
            .await?;
        let State::Session(session) = &document.state else {
            return Err(Refused::Internal {
                detail: "the document is not a session".to_owned(),
            });
        };
        let documents = self
            .transcript_documents(document.key, session, after, limit + 1)
            .await?;
        self.page(caller, documents, limit).await
    }

    /// Reads up to `limit` Messages of a transcript after a key, skipping what truncation dropped.
    pub(crate) async fn transcript_documents(
        &self,
        key: Position,
        session: &Session,
        mut after: Position,
        limit: usize,
    ) -> Result<Vec<Document>, Refused> {
        let mut found = Vec::new();
        while found.len() < limit {
            // Jump over a dropped range instead of reading it.
            if let Some(range) = session
                .dropped
                .iter()
                .find(|range| range.after <= after && after < range.through)
            {
                after = range.through;
            }
            let query = ListQuery {
                kind: ResourceKind::Message,
                scope: Scope::Session(key),
                open_only: false,
                after,
                limit: limit - found.len(),
            };
            let page = self.shared.store.list(query).await?;
            let Some(last) = page.last() else { break };
            after = last.key;
            found.extend(
                page.into_iter()
                    .filter(|message| !session.drops(message.key)),
            );
        }
        Ok(found)
    }

    /// Reads the newest Messages of a transcript before a key, oldest first. What lies further back costs nothing.
    pub(crate) async fn newest_messages(
        &self,
        key: Position,
        session: &Session,
        mut before: Position,
        limit: usize,
    ) -> Result<Vec<Document>, Refused> {
        let mut found = Vec::new();
        while found.len() < limit {
            // Jump over a dropped range instead of reading it.
            if let Some(range) = session
                .dropped
                .iter()
                .find(|range| range.after.plus(1) < before && before <= range.through.plus(1))
            {
                before = range.after.plus(1);
            }
            let query = NewestQuery {
                kind: ResourceKind::Message,
                scope: Scope::Session(key),
                before: Some(before),
                limit: limit - found.len(),
            };
            let page = self.shared.store.newest(query).await?;
            let Some(oldest) = page.last() else { break };
            before = oldest.key;
            found.extend(
                page.into_iter()
                    .filter(|message| !session.drops(message.key)),
            );
        }
        found.reverse();
        Ok(found)
    }

    /// Returns the scopes that filters and the caller's bounds leave. None at all means: nothing is visible.
    pub(crate) async fn scopes(
        &self,
        caller: &Caller,
        filters: &Filters,
    ) -> Result<Vec<Scope>, Refused> {
        let unknown = |object, param| {
            Refused::Domain(Refusal::NotFound {
                object,
                param: Some(param),
            })
        };
        // The narrowest filter decides; wider ones must agree with it.
        let mut narrowest = None;
        if let Some(id) = &filters.task_id {
            let task = self
                .visible(caller, ResourceKind::Task, id)
                .await
                .map_err(|refused| match refused {
                    Refused::Domain(Refusal::NotFound { .. }) => unknown("task", "task_id"),
                    other => other,
                })?;
            narrowest = Some((Scope::Task(task.key), task.links));
        }
        if let Some(id) = &filters.session_id {
            let session = self
                .visible(caller, ResourceKind::Session, id)
                .await
                .map_err(|refused| match refused {
                    Refused::Domain(Refusal::NotFound { .. }) => unknown("session", "session_id"),
                    other => other,
                })?;
            match narrowest {
                Some((_, links)) if links.session != Some(session.key) => return Ok(Vec::new()),
                Some(_) => {}
                None => narrowest = Some((Scope::Session(session.key), session.links)),
            }
        }
        if let Some(id) = &filters.workspace_id {
            let workspace = self
                .visible(caller, ResourceKind::Workspace, id)
                .await
                .map_err(|refused| match refused {
                    Refused::Domain(Refusal::NotFound { .. }) => {
                        unknown("workspace", "workspace_id")
                    }
                    other => other,
                })?;
            match narrowest {
                Some((_, links)) if links.workspace != Some(workspace.key) => return Ok(Vec::new()),
                Some(_) => {}
                None => narrowest = Some((Scope::Workspace(workspace.key), workspace.links)),
            }
        }
        if let Some((scope, _)) = narrowest {
            return Ok(vec![scope]);
        }
        let Some(bounds) = caller.workspaces() else {
            return Ok(vec![Scope::All]);
        };
        let ids = bounds.iter().map(|id| id.as_str().into()).collect();
        let documents = self.shared.store.documents(ids).await?;
        Ok(documents
            .into_iter()
            .flatten()
            .map(|document| Scope::Workspace(document.key))
            .collect())
    }

    /// Reads a range of events.
    ///
    /// # Errors
    /// The cursor or a filter does not exist; the caller lacks the scope; the store failed.
    pub async fn events(&self, caller: &Caller, range: EventRange) -> Result<EventPage, Refused> {
        caller.require("events:read")?;
        let scopes = self.scopes(caller, &range.filters).await?;
        if let Some(page) = self.events_of_imported(&scopes, &range).await? {
            return Ok(page);
        }
        let after = match &range.after_event_id {
            Some(id) => {
                self.visible_event(caller, id, Some("after_event_id"))
                    .await?
                    .position
            }
            None => Position::START,
        };
        let mut events = self.read_scopes(&scopes, after, range.limit + 1).await?;
        let has_more = events.len() > range.limit;
        events.truncate(range.limit);
        Ok(EventPage { events, has_more })
    }

    /// Reads a range of events backwards, the newest first; a cursor names the event that the page before it ended with.
    ///
    /// # Errors
    /// The cursor or a filter does not exist; the caller lacks the scope; the store failed.
    pub async fn newest_events(
        &self,
        caller: &Caller,
        range: EventRange,
    ) -> Result<EventPage, Refused> {
        caller.require("events:read")?;
        let scopes = self.scopes(caller, &range.filters).await?;
        if let Some(page) = self
            .newest_events_of_imported(caller, &scopes, &range)
            .await?
        {
            return Ok(page);
        }
        let before = match &range.after_event_id {
            Some(id) => {
                let event = self.visible_event(caller, id, Some("after_event_id"));
                Some(event.await?.position)
            }
            None => None,
        };
        let mut events = self
            .read_scopes_back(&scopes, before, range.limit + 1)
            .await?;
        let has_more = events.len() > range.limit;
        events.truncate(range.limit);
        Ok(EventPage { events, has_more })
    }

    /// Reads the newest events of several scopes in one order. All are read below one bound, so that no page misses an
    /// event that was committed between two of the reads.
    pub(crate) async fn read_scopes_back(
        &self,
        scopes: &[Scope],
        before: Option<Position>,
        limit: usize,
    ) -> Result<Vec<StoredEvent>, Refused> {
        let before = before.unwrap_or_else(|| self.shared.store.head().plus(1));
        let mut events = Vec::new();
        for scope in scopes {
            let query = LastEvents {
                scope: *scope,
                before: Some(before),
                limit,
            };
            events.extend(self.shared.store.last_events(query).await?);
        }
        if scopes.len() > 1 {
            events.sort_by_key(|event| std::cmp::Reverse(event.position));
            events.truncate(limit);
        }
        Ok(events)
    }

    /// Reads events of several scopes in one order. Scopes are read one after the other, and the log goes on in between:
    /// what came after the head at the beginning is left for the next read, so that a page never has an event whose
    /// predecessor in another scope was missed.
    pub(crate) async fn read_scopes(
        &self,
        scopes: &[Scope],
        after: Position,
        limit: usize,
    ) -> Result<Vec<StoredEvent>, Refused> {
        let head = self.shared.store.head();
        let mut events = Vec::new();
        for scope in scopes {
            events.extend(
                self.shared
                    .store
                    .events(ReadEvents {
                        scope: *scope,
                        after,
                        limit,
                    })
                    .await?,
            );
        }
        if scopes.len() > 1 {
            events.retain(|event| event.position <= head);
            events.sort_by_key(|event| event.position);
            events.truncate(limit);
        }
        Ok(events)
    }

    /// Reads one event by id.
    ///
    /// # Errors
    /// It does not exist or is hidden; the caller lacks the scope; the store failed.
    pub async fn event(&self, caller: &Caller, id: &str) -> Result<StoredEvent, Refused> {
        caller.require("events:read")?;
        self.visible_event(caller, id, None).await
    }

    pub(crate) async fn visible_event(
        &self,
        caller: &Caller,
        id: &str,
        param: Option<&'static str>,
    ) -> Result<StoredEvent, Refused> {
        let unknown = || {
            Refused::Domain(Refusal::NotFound {
                object: "event",
                param,
            })
        };
        let position = self.shared.store.name().position(id).ok_or_else(unknown)?;
        let stored = self.shared.store.event_at(position).await?;
        let stored = stored.ok_or_else(unknown)?;
        if caller.workspaces().is_some() {
            let event = Event::parse(&stored.bytes).map_err(|error| Refused::Internal {
                detail: error.to_string(),
            })?;
            if !caller.sees(event.workspace_id.as_ref()) {
                return Err(unknown());
            }
        }
        Ok(stored)
    }

    /// Reads the bytes of an Artifact.
    ///
    /// # Errors
    /// It does not exist, is hidden, or has no bytes here; the caller may not see it; the store failed.
    pub async fn artifact_content(
        &self,
        caller: &Caller,
        id: &str,
    ) -> Result<(String, Download), Refused> {
        let (artifact, digest) = self.content_of(caller, id).await?;
        let bytes = artifact.bytes.unwrap_or_default();
        let content = Download::new(self.shared.store.clone(), digest, bytes);
        Ok((artifact.mime_type, content))
    }

    /// Reads an Artifact and its bytes, if the caller may see these; none when there are more than may be read.
    pub(crate) async fn readable_artifact(
        &self,
        caller: &Caller,
        id: &str,
        bytes_max: usize,
    ) -> Result<Option<(domain::Artifact, Vec<u8>)>, Refused> {
        let (artifact, digest) = self.content_of(caller, id).await?;
        if artifact.bytes.is_none_or(|bytes| bytes > bytes_max as u64) {
            return Ok(None);
        }
        match self.shared.store.blob(digest).await? {
            Some(bytes) => Ok(Some((artifact, bytes))),
            None => Err(Refused::ContentUnavailable { reason: "redacted" }),
        }
    }

    /// Finds an Artifact that has content which the caller may see.
    async fn content_of(
        &self,
        caller: &Caller,
        id: &str,
    ) -> Result<(domain::Artifact, Digest), Refused> {
        caller.require("artifacts:read")?;
        let document = self.visible(caller, ResourceKind::Artifact, id).await?;
        let State::Artifact(artifact) = document.state else {
            return Err(Refused::Internal {
                detail: "the document is not an artifact".to_owned(),
            });
        };
        match artifact.visibility {
            Visibility::Public => {}
            Visibility::Internal => caller.require("internal:read")?,
            Visibility::ReceiptOnly => {
                return Err(Refused::ContentUnavailable {
                    reason: "receipt_only",
                });
            }
        }
        let digest = artifact.sha256.filter(|_| artifact.bytes.is_some());
        match digest {
            Some(digest) => Ok((artifact, digest)),
            None => Err(Refused::ContentUnavailable {
                reason: "no_stored_bytes",
            }),
        }
    }
}
