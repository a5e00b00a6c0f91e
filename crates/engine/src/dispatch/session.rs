//! Orders about Sessions that rest on their transcript.

use canon::{Digest, Map, Value};
use domain::{
    BranchId, ForkSession, MessageCopy, MessageId, Position, ReceiptId, Refusal, ResourceKind,
    SessionId, State, TruncateSession,
};

use crate::caller::Caller;
use crate::engine::Engine;
use crate::port::{NewestQuery, Scope};
use crate::refused::Refused;

impl Engine {
    pub(super) async fn build_fork(
        &self,
        caller: &Caller,
        id: SessionId,
        at_event_id: Option<String>,
        branch_id: Option<BranchId>,
        metadata: Map<String, Value>,
    ) -> Result<ForkSession, Refused> {
        let (document, session) = self.visible_session(caller, &id).await?;
        let branch = branch_id.as_ref().map(BranchId::as_str);
        let place = (caller, Some(&session.workspace_id));
        self.must_be_in(place, ResourceKind::Branch, branch, "branch_id")
            .await?;
        let until = match &at_event_id {
            None => Position(u64::MAX),
            Some(event_id) => {
                let event = self
                    .visible_event(caller, event_id, Some("at_event_id"))
                    .await?;
                if event.links.session != Some(document.key) {
                    return Err(Refused::Domain(Refusal::NotFound {
                        object: "event",
                        param: Some("at_event_id"),
                    }));
                }
                event.position
            }
        };
        let limit = self.shared.limits.fork_messages_max;
        let messages = self
            .transcript_documents(document.key, &session, Position::START, limit + 1)
            .await?;
        if messages.len() > limit {
            let message = format!("the session has more than {limit} messages (fork_messages_max)");
            return Err(Refused::Domain(Refusal::Policy {
                reason: "fork_messages_max",
                message,
            }));
        }
        let messages = messages
            .into_iter()
            .filter(|message| message.key <= until)
            .filter_map(|message| match message.state {
                State::Message(state) => Some(MessageCopy {
                    id: MessageId::from_body(&self.shared.ids.body()),
                    of: MessageId::parse(&message.id).ok()?,
                    role: state.role,
                    source: state.source,
                }),
                _ => None,
            })
            .collect();
        Ok(ForkSession {
            parent: id,
            parent_version: document.version,
            id: SessionId::from_body(&self.shared.ids.body()),
            at_event_id,
            branch_id,
            new_branch: None,
            chain: self.chain_at(document.key, until).await?,
            replay: None,
            messages,
            metadata,
        })
    }

    /// Returns the newest Receipt of a Session up to a position.
    async fn chain_at(
        &self,
        session: Position,
        until: Position,
    ) -> Result<Option<(ReceiptId, Digest)>, Refused> {
        let mut before = Some(until.plus(1));
        loop {
            let query = NewestQuery {
                kind: ResourceKind::Receipt,
                scope: Scope::Session(session),
                before,
                limit: 20,
            };
            let page = self.shared.store.newest(query).await?;
            for document in &page {
                if let State::Receipt(receipt) = &document.state
                    // Those of another server are in no chain here.
                    && !receipt.imported
                    && let Ok(id) = ReceiptId::parse(&document.id)
                {
                    return Ok(Some((id, receipt.receipt_hash)));
                }
            }
            let Some(last) = page.last() else {
                return Ok(None);
            };
            before = Some(last.key);
        }
    }

    pub(super) async fn build_truncation(
        &self,
        caller: &Caller,
        id: SessionId,
        keep_first: u64,
        reason: Option<String>,
    ) -> Result<TruncateSession, Refused> {
        let (document, session) = self.visible_session(caller, &id).await?;
        let mut order = TruncateSession {
            id,
            version: document.version,
            keep_first,
            after: Position::START,
            through: self.shared.store.head(),
            tip: None,
            reason,
        };
        // Walks the kept part: its last Message is where the cut is made.
        let mut left = keep_first;
        while left > 0 {
            let limit = usize::try_from(left.min(500)).unwrap_or(500);
            let page = self
                .transcript_documents(document.key, &session, order.after, limit)
                .await?;
            let Some(last) = page.last() else { break };
            order.after = last.key;
            order.tip = MessageId::parse(&last.id).ok();
            left -= (page.len() as u64).min(left);
        }
        Ok(order)
    }
}
