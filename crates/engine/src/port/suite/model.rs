//! A naive model of a log: everything in plain lists, changed by the same pure functions as the real thing.

use std::collections::BTreeSet;
use std::sync::Arc;

use canon::{Map, Value};
use domain::{
    AdvanceTask, AnswerRequest, AppendMessage, ArtifactId, ArtifactKind, Ask, AttachContent, Blob,
    BranchId, BranchKind, CancelTask, ChainId, Command, CreateBranch, CreateSession, CreateVault,
    CreateWorkspace, Decision, Document, Documents, EventName, MessageId, Move, NewMessage, Order,
    OutcomeId, PermissionId, Position, Refusal, RegisterArtifact, RequestReply, ResourceKind, Role,
    Scratch, SessionId, State, SubmitTask, TaskId, TaskInput, Timestamp, UpdateSession, VaultId,
    Visibility, WorkspaceId, decide,
};
use proptest::prelude::*;
use serde_json::json;

use super::wait;
use crate::port::{
    Commit, CommitError, Committed, ExpectedVersion, SealedTurn, Store, StoredEvent,
};
use crate::receipt::{Authority, TaskFold};
use crate::turn::SealStep;

/// What a log must hold after the commits made through it.
#[derive(Debug, Clone)]
pub struct Model {
    log: EventName,
    scratch: Scratch,
    events: Vec<StoredEvent>,
    stamp: i64,
    made: u64,
}

/// One thing to do: what, to which, and how.
pub type Step = (u8, u8, u8);

/// Generates things to do.
pub fn steps(len_max: usize) -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec((0u8..20, any::<u8>(), any::<u8>()), 1..len_max)
}

impl Model {
    /// Begins with an empty log.
    pub fn new(store: &dyn Store) -> Self {
        Self {
            log: store.name().clone(),
            scratch: Scratch::default(),
            events: Vec::new(),
            stamp: 1_800_000_000_000_000,
            made: 0,
        }
    }

    /// Begins with documents as a store holds them. Ids made by models with different numbers differ.
    pub fn with_documents(
        store: &dyn Store,
        number: u64,
        documents: impl IntoIterator<Item = Document>,
    ) -> Self {
        let mut model = Self::new(store);
        for document in documents {
            model.scratch.insert(document);
        }
        model.made = number;
        model
    }

    /// The same, with events as a store holds them: the receipt of a Task that ends tells of those it has.
    pub fn with_log(
        store: &dyn Store,
        number: u64,
        documents: impl IntoIterator<Item = Document>,
        events: Vec<StoredEvent>,
    ) -> Self {
        let mut model = Self::with_documents(store, number, documents);
        model.events = events;
        model
    }

    /// Returns the events, ascending.
    pub fn events(&self) -> &[StoredEvent] {
        &self.events
    }

    /// Returns the documents, by creation.
    pub fn documents(&self) -> Vec<Document> {
        let mut documents: Vec<Document> = self.scratch.iter().cloned().collect();
        documents.sort_by_key(|document| document.key);
        documents
    }

    /// Returns the time of the last commit.
    pub fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.stamp)
    }

    /// Makes a fresh id body.
    pub fn body(&mut self) -> String {
        self.made += 1;
        format!("{:08}", self.made)
    }

    /// Decides an order on the model's documents.
    ///
    /// # Errors
    /// The order is refused.
    pub fn decide(&self, order: Order) -> Result<Decision, Refusal> {
        let command = Command {
            actor: "tester".to_owned(),
            idempotency_key: None,
            order,
        };
        decide(&self.scratch, &command)
    }

    /// Makes the commit of a decision; its documents must be as the model has them.
    pub fn commit_of(&self, decision: &Decision) -> Commit {
        let ids = self.touched(decision);
        let expected = ids.iter().map(|id| ExpectedVersion {
            id: id.clone(),
            version: self
                .scratch
                .document(id)
                .map_or(0, |document| document.version),
        });
        let mut copy = self.clone();
        let decision_copy = decision.clone();
        let touched = ids.clone();
        Commit {
            expected: expected.collect(),
            fences: vec![],
            holder: "suite".into(),
            blobs: decision.blobs.clone(),
            event_count: self.sealing(decision).event_count(),
            now: self.now(),
            seal: Box::new(move |first| {
                let (events, receipt) = copy.seal(&decision_copy, first)?;
                let documents = touched.iter().filter_map(|id| copy.scratch.document(id));
                Ok(SealedTurn {
                    documents: documents.cloned().map(Arc::new).collect(),
                    events: events.into_iter().map(StoredEvent::from).collect(),
                    blobs: receipt.into_iter().collect(),
                    ..SealedTurn::default()
                })
            }),
        }
    }

    /// The documents that a decision changes, those of its receipt included.
    fn touched(&self, decision: &Decision) -> BTreeSet<Box<str>> {
        let mut ids: BTreeSet<Box<str>> = decision
            .drafts
            .iter()
            .map(|draft| draft.resource.id.clone())
            .collect();
        if let Some(ends) = &decision.ends {
            ids.insert(ends.receipt_id.as_str().into());
            let task = self.scratch.document(ends.task_id.as_str());
            if let Some(State::Task(task)) = task.map(|document| &document.state) {
                ids.insert(ChainId::of(&task.session_id).as_str().into());
            }
        }
        ids
    }

    /// The step of the engine that seals a decision, with its receipt.
    fn sealing(&self, decision: &Decision) -> SealStep {
        let ended = decision.ends.as_ref();
        let task = ended.and_then(|ends| self.scratch.document(ends.task_id.as_str()));
        let mut fold = TaskFold::default();
        if let Some(task) = task {
            let events = self.events.iter();
            for event in events.filter(|event| event.links.task == Some(task.key)) {
                fold.read(event).unwrap();
            }
        }
        SealStep {
            drafts: decision.drafts.clone(),
            ends: decision.ends.clone(),
            fold: Arc::new(fold),
        }
    }

    fn seal(
        &mut self,
        decision: &Decision,
        first: Position,
    ) -> Result<(Vec<domain::Sealed>, Option<Blob>), domain::ImpossibleEvent> {
        let step = self.sealing(decision);
        let authority = Authority::with_one_key("suite", "key_1", &[1; 32]).unwrap();
        let now = self.now();
        step.seal(&self.log, &authority, &mut self.scratch, &[], first, now)
    }

    /// Notes that a decision was committed.
    pub fn committed(&mut self, decision: &Decision, committed: &Committed) {
        let sealed = self.seal(decision, committed.first);
        let (events, _) = sealed.expect("the store sealed the same");
        self.events
            .extend(events.into_iter().map(StoredEvent::from));
    }

    /// Decides, commits and notes an order.
    ///
    /// # Errors
    /// The store refuses the commit.
    ///
    /// # Panics
    /// The order is refused.
    pub fn run(&mut self, store: &dyn Store, order: Order) -> Result<Committed, CommitError> {
        self.stamp += 1_000;
        let decision = self.decide(order).expect("the order is possible");
        let committed = wait(store.commit(self.commit_of(&decision)))?;
        self.committed(&decision, &committed);
        Ok(committed)
    }

    /// Takes a step if it is possible as things stand.
    pub fn step(&mut self, store: &dyn Store, step: Step) {
        let Some(order) = self.order(step) else {
            return;
        };
        if let Order::AttachContent(attach) = &order {
            let blob = Blob::new(content(attach.bytes));
            assert_eq!(blob.digest, attach.sha256);
            wait(store.put_blob(blob)).unwrap();
        }
        if self.decide(order.clone()).is_ok() {
            self.run(store, order).unwrap();
        }
    }

    fn pick(&self, kind: ResourceKind, choice: u8) -> Option<String> {
        let documents = self.documents();
        let known: Vec<&Document> = documents
            .iter()
            .filter(|document| document.state.kind() == kind)
            .collect();
        let index = usize::from(choice).checked_rem(known.len())?;
        Some(known[index].id.to_string())
    }

    /// Returns a Message as a caller would send it, with a text of the given length.
    pub fn message(&mut self, text_len: usize, visibility: Visibility) -> NewMessage {
        let body = self.body();
        let text = format!("{body} {}", "x".repeat(text_len));
        // A long message moves its parts out of the event; then a private one among them is a blob within a blob.
        let second = if text_len > domain::INLINE_BYTES_MAX {
            Visibility::Internal
        } else {
            Visibility::Public
        };
        NewMessage {
            id: MessageId::from_body(&body),
            salt: format!("salt-{body}"),
            role: Role::User,
            parts: vec![
                json!({"type": "text", "text": text, "visibility": visibility.as_str()}),
                json!({"type": "text", "text": "é \u{1f600}", "visibility": second.as_str()}),
            ],
            metadata: Map::new(),
        }
    }

    /// Returns the order that creates a Workspace.
    pub fn workspace(&mut self) -> Order {
        let body = self.body();
        Order::CreateWorkspace(CreateWorkspace {
            id: WorkspaceId::from_body(&body),
            branch_id: BranchId::from_body(&body),
            new: domain::NewWorkspace {
                name: format!("workspace {body}"),
                root: "/".to_owned(),
                metadata: Map::new(),
            },
        })
    }

    /// Returns the order that creates a Session in the first Workspace.
    pub fn session(&mut self) -> Order {
        self.session_in(0).expect("a workspace is there")
    }

    fn session_in(&mut self, choice: u8) -> Option<Order> {
        let workspace = self.pick(ResourceKind::Workspace, choice)?;
        Some(Order::CreateSession(CreateSession {
            id: SessionId::from_body(&self.body()),
            workspace_id: WorkspaceId::parse(&workspace).ok()?,
            mode_id: None,
            persona_id: None,
            model_policy: Some(json!({"temperature": 0.5})),
            initial_messages: vec![],
            metadata: Map::new(),
        }))
    }

    /// Returns the order that appends a Message to the first Session.
    pub fn append(&mut self, text_len: usize) -> Order {
        self.append_to(0, text_len, Visibility::Public)
            .expect("a session is there")
    }

    fn append_to(&mut self, choice: u8, text_len: usize, visibility: Visibility) -> Option<Order> {
        let session = self.pick(ResourceKind::Session, choice)?;
        Some(Order::AppendMessage(AppendMessage {
            session_id: SessionId::parse(&session).ok()?,
            message: self.message(text_len, visibility),
        }))
    }

    fn order(&mut self, (what, which, how): Step) -> Option<Order> {
        let kind = ResourceKind::Task;
        let task = self.pick(kind, which);
        let task = task.and_then(|id| TaskId::parse(&id).ok());
        match what {
            0 => Some(self.workspace()),
            1 => self.session_in(which),
            2 => self.append_to(which, usize::from(how), Visibility::Public),
            3 => self.append_to(which, 5_000 + usize::from(how), Visibility::Public),
            4 => self.append_to(which, 40 * usize::from(how), Visibility::Internal),
            5 => self.submit(which, how),
            6 => {
                let workflow_digest = canon::sha256(b"workflow");
                advance(task?, Move::Start { workflow_digest })
            }
            7 => {
                let request = PermissionId::from_body(&self.body());
                advance(task?, ask(request, how))
            }
            8 => {
                let request = self.pick(ResourceKind::Permission, which)?;
                Some(Order::AnswerRequest(AnswerRequest {
                    key_id: None,
                    answered_at: None,
                    id: PermissionId::parse(&request).ok()?,
                    reply: if how.is_multiple_of(2) {
                        RequestReply::Approve
                    } else {
                        RequestReply::Deny
                    },
                    remarks: Map::new(),
                }))
            }
            9 => {
                let ending = Move::Complete {
                    ids: domain::EndIds {
                        outcome_id: OutcomeId::from_body(&self.body()),
                        receipt_id: domain::ReceiptId::from_body(&self.body()),
                    },
                    summary: "done".to_owned(),
                    messages: vec![],
                };
                advance(task?, ending)
            }
            10 => self.artifact(which, how),
            11 => {
                let artifact = self.pick(ResourceKind::Artifact, which)?;
                let bytes = u64::from(how) * 1_000;
                Some(Order::AttachContent(AttachContent {
                    id: ArtifactId::parse(&artifact).ok()?,
                    sha256: canon::sha256(&content(bytes)),
                    bytes,
                }))
            }
            12 => Some(Order::CancelTask(CancelTask {
                id: task?,
                ids: domain::EndIds {
                    outcome_id: OutcomeId::from_body(&self.body()),
                    receipt_id: domain::ReceiptId::from_body(&self.body()),
                },
                receipt: None,
                reason: None,
            })),
            13 => {
                let session = self.pick(ResourceKind::Session, which)?;
                Some(Order::CreateBranch(CreateBranch {
                    id: BranchId::from_body(&self.body()),
                    new: domain::NewBranch {
                        session_id: SessionId::parse(&session).ok()?,
                        kind: BranchKind::Session,
                        base_ref: "here".to_owned(),
                        parent_branch_id: None,
                        task_id: task,
                        metadata: Map::new(),
                    },
                }))
            }
            14 => {
                let workspace = self.pick(ResourceKind::Workspace, which)?;
                Some(Order::CreateVault(CreateVault {
                    id: VaultId::from_body(&self.body()),
                    new: domain::NewVault {
                        workspace_id: if how.is_multiple_of(2) {
                            None
                        } else {
                            WorkspaceId::parse(&workspace).ok()
                        },
                        provider: "none".to_owned(),
                        capabilities: vec![],
                        metadata: Map::new(),
                    },
                }))
            }
            15 => Some(Order::SealHead(domain::SealHead {
                recovered: None,
                rotation: None,
                keys: None,
                id: domain::BatchId::from_body(&self.body()),
                // Of no receipts: heads over some are signed by the engine, and must fit them.
                size: 0,
                root: canon::sha256(&[how]),
                previous_root: None,
                checkpoint: format!("suite/receipts\n{how}\n"),
            })),
            17 => Some(Order::CreatePersona(domain::CreatePersona {
                persona: persona(which, how),
                metadata: Map::new(),
            })),
            18 => {
                let id = self.pick(ResourceKind::Persona, which)?;
                let known = self.scratch.document(&id)?;
                let State::Persona(state) = &known.state else {
                    return None;
                };
                let mut persona = persona(which, how);
                persona.name.clone_from(&state.name);
                persona.version.clone_from(&state.version);
                Some(Order::UpdatePersona(domain::UpdatePersona {
                    id: domain::PersonaId::parse(&id).ok()?,
                    document_version: known.version,
                    persona,
                    metadata: Map::new(),
                }))
            }
            19 => {
                let workspace = self.pick(ResourceKind::Workspace, which)?;
                let mut order = domain::WriteField {
                    room: domain::FieldRoom::Taken,
                    workspace_id: WorkspaceId::parse(&workspace).ok()?,
                    name: "notes".to_owned(),
                    version: 0,
                    entries: Vec::new(),
                };
                let known = self.scratch.document(order.id().as_str());
                order.version = known.map_or(0, |known| known.version);
                for number in 0..=how % 2 {
                    let members = json!({"epoch": how, "note": number});
                    order.entries.push(domain::FieldEntry {
                        members: members.as_object()?.clone(),
                        blobs: Vec::new(),
                    });
                }
                Some(Order::WriteField(Box::new(order)))
            }
            _ => {
                let session = self.pick(ResourceKind::Session, which)?;
                Some(Order::UpdateSession(UpdateSession {
                    id: SessionId::parse(&session).ok()?,
                    summary: Some(Some(format!("summary {how}"))),
                    model_policy: None,
                    metadata: None,
                }))
            }
        }
    }

    /// Returns the order that submits a Task to a Session, by its number.
    pub fn task(&mut self, session: u8) -> Order {
        self.submit(session, 2).expect("a session is there")
    }

    fn submit(&mut self, which: u8, how: u8) -> Option<Order> {
        let session = self.pick(ResourceKind::Session, which)?;
        let input = if how.is_multiple_of(2) {
            TaskInput::Message(self.message(usize::from(how), Visibility::Public))
        } else {
            TaskInput::Object(Map::from_iter([("n".to_owned(), Value::from(how))]))
        };
        Some(Order::SubmitTask(SubmitTask {
            id: TaskId::from_body(&self.body()),
            session_id: SessionId::parse(&session).ok()?,
            workspace_id: None,
            branch_id: None,
            parent_task_id: None,
            workflow: "echo".to_owned(),
            persona: how.is_multiple_of(5).then(|| {
                persona(which, how)
                    .snapshot(domain::PersonaId::of("suite", &which.to_string()), None)
            }),
            input,
            metadata: Map::new(),
        }))
    }

    fn artifact(&mut self, which: u8, how: u8) -> Option<Order> {
        let workspace = self.pick(ResourceKind::Workspace, which)?;
        let session = self.pick(ResourceKind::Session, which);
        let task = self.pick(ResourceKind::Task, which);
        Some(Order::RegisterArtifact(RegisterArtifact {
            id: ArtifactId::from_body(&self.body()),
            workspace_id: WorkspaceId::parse(&workspace).ok()?,
            new: domain::NewArtifact {
                workspace_id: None,
                kind: ArtifactKind::File,
                mime_type: "text/plain".to_owned(),
                uri: None,
                visibility: Visibility::Public,
                sha256: None,
                session_id: session
                    .filter(|_| how % 3 == 1)
                    .and_then(|id| SessionId::parse(&id).ok()),
                task_id: task
                    .filter(|_| how % 3 == 2)
                    .and_then(|id| TaskId::parse(&id).ok()),
                metadata: Map::new(),
            },
        }))
    }
}

fn advance(id: TaskId, step: Move) -> Option<Order> {
    let moves = vec![step];
    Some(Order::AdvanceTask(AdvanceTask {
        id,
        workflow: Some(canon::sha256(b"workflow")),
        moves,
    }))
}

fn ask(request: PermissionId, how: u8) -> Move {
    Move::Ask {
        request,
        ask: if how.is_multiple_of(2) {
            Ask::Input
        } else {
            Ask::Approval
        },
        effect_key: format!("host:{how}"),
        request_body: json!({"question": "?"}),
        action: json!({}),
    }
}

fn content(bytes: u64) -> Vec<u8> {
    b"content "
        .iter()
        .copied()
        .cycle()
        .take(bytes as usize)
        .collect()
}

/// A commit of nothing but what a turn says beside events.
pub(super) fn bare(now: i64, turn: SealedTurn) -> Commit {
    Commit {
        expected: vec![],
        fences: vec![],
        holder: "suite".into(),
        blobs: vec![],
        event_count: 0,
        now: Timestamp::from_micros(now),
        seal: Box::new(move |_: Position| Ok(turn)),
    }
}

/// A definition that moves into a blob as often as not, under each policy.
fn persona(which: u8, how: u8) -> domain::PersonaSpec {
    let policy = ["required", "optional", "disabled"][usize::from(how) % 3];
    serde_json::from_value(json!({
        "name": "suite",
        "version": (which % 4).to_string(),
        "entry_workflow": "echo",
        "description": format!("persona {how}"),
        "autonomy_tier": "suggest",
        "receipt_policy": policy,
        "system_prompt": "é".repeat(20 * usize::from(how)),
        "model": {"temperature": f64::from(how) / 200.0},
    }))
    .expect("a persona")
}
