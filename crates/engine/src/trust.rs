//! Trust records: each decision on a permission request, as a record in the chain of its Session.
//!
//! A record is completed where its event is sealed, because it names the head of the chain and the time of the
//! commit. The server signs it with its own key: it vouches that an authenticated caller decided, no more.

use std::borrow::Cow;
use std::sync::Arc;

use canon::{Map, Value};
use domain::{
    Documents, Draft, Event, ImpossibleEvent, Kind, ResourceKind, Scratch, SessionId, State,
    Timestamp, TrustChainId, payload,
};
use receipts::trust::{
    ApprovalEvidence, ExportHeader, TrustError, TrustFacts, TrustOutcome, TrustRecord, export,
};
use receipts::{Head, Tier};

use crate::caller::Caller;
use crate::engine::Engine;
use crate::receipt::Authority;
use crate::refused::Refused;

/// Adds the record to the draft of a decision; every other draft stays as it is.
pub(crate) fn complete<'a>(
    draft: &'a Draft,
    scratch: &Scratch,
    authority: &Authority,
    stamp: Timestamp,
) -> Result<Cow<'a, Draft>, ImpossibleEvent> {
    // A replay repeats the record of a decision; nobody decided again.
    if draft.kind != Kind::TrustRecorded || draft.replay.is_some() {
        return Ok(Cow::Borrowed(draft));
    }
    let record = record(draft, scratch, authority, stamp).map_err(|error| {
        ImpossibleEvent::new(&draft.resource.id, Kind::TrustRecorded, error.to_string())
    })?;
    let mut draft = draft.clone();
    let record = Value::Object(record.as_map().clone());
    Arc::make_mut(&mut draft.payload).insert("record".to_owned(), record);
    Ok(Cow::Owned(draft))
}

fn record(
    draft: &Draft,
    scratch: &Scratch,
    authority: &Authority,
    stamp: Timestamp,
) -> Result<TrustRecord, TrustError> {
    let said = payload::TrustRecorded::of(&draft.payload);
    let owned = |text: Option<&str>| text.unwrap_or_default().to_owned();
    let chain = scratch.document(&draft.resource.id);
    let head = match chain.map(|document| &document.state) {
        Some(State::TrustChain(chain)) => Head {
            hash: Some(chain.entry_hash),
            count: chain.count,
        },
        _ => Head::EMPTY,
    };
    let task = draft.task_id.as_ref().map(ToString::to_string);
    let task = task.unwrap_or_default();
    let decision = owned(said.decision());
    let outcome = match decision.as_str() {
        "approved" => TrustOutcome::Success,
        "denied" => TrustOutcome::Denied,
        // Nobody decided: the Task ended first.
        _ => TrustOutcome::Failure,
    };
    let is_decided = outcome != TrustOutcome::Failure;
    let key_id = said.key_id();
    let key_id = key_id.map(|id| ("key_id", id.to_owned()));
    let metadata = [
        ("decision", decision),
        ("request_id", owned(said.request_id())),
        ("task_id", task.clone()),
    ]
    .into_iter()
    .chain(key_id);
    let facts = TrustFacts {
        record_id: format!("trust_{}", owned(said.request_id())),
        agent: owned(said.agent()),
        action: owned(said.action()),
        approver: draft.actor.clone().filter(|_| is_decided),
        outcome,
        trace_id: task,
        // The tier of the action, which had to be asked for; a Task without a persona has none of its own (C-46).
        tier: Tier::ActWithApproval,
        timestamp: stamp.to_string(),
        cost: None,
        approval: Some(ApprovalEvidence {
            quorum: 1,
            signatures: Vec::new(),
        }),
        metadata: Map::from_iter(metadata.map(|(name, text)| (name.to_owned(), text.into()))),
    };
    if is_decided {
        TrustRecord::signed(&facts, &head, &authority.signer)
    } else {
        TrustRecord::build(&facts, &head)
    }
}

impl Engine {
    /// Exports the trust records of a Session, `opentrustgraph-chain/v0`.
    ///
    /// # Errors
    /// The Session does not exist or is hidden; the caller lacks the scope; the store failed.
    pub async fn trust_chain(&self, caller: &Caller, session: &str) -> Result<Vec<u8>, Refused> {
        caller.require("receipts:read")?;
        self.visible(caller, ResourceKind::Session, session).await?;
        let internal = |detail: String| Refused::Internal { detail };
        let session = SessionId::parse(session).map_err(|error| internal(error.to_string()))?;
        let store = &self.shared.store;
        let id = TrustChainId::of(&session);
        let chain = store.document(id.as_str()).await?;
        let mut next = chain.map(|chain| chain.tip);
        let mut records = Vec::new();
        while let Some(position) = next {
            let Some(stored) = store.event_at(position).await? else {
                return Err(internal(format!("no event at position {}", position.0)));
            };
            let event = Event::parse(&stored.bytes).map_err(|error| internal(error.to_string()))?;
            if let Some(record) = payload::TrustRecorded::of(&event.payload).record() {
                records.push(TrustRecord::stored(record.members().clone()));
            }
            let previous = event.previous_event_id;
            let previous = previous.and_then(|id| store.name().position(&id));
            // Links lead back; one that does not is damage, and must not lead in circles.
            next = previous.filter(|previous| *previous < position);
        }
        records.reverse();
        let header = ExportHeader {
            topic: session.to_string(),
            generated_at: self.shared.clock.now().to_string(),
            producer_name: "reprise".to_owned(),
            producer_version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        Ok(export(&header, &records))
    }
}
