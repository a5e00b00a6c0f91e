//! An Artifact's content. It arrived before it is ordered; what is refused leaves nothing behind.

use std::sync::Arc;

use domain::{ArtifactId, Command, Order, ResourceKind, State};

use super::{Answer, Idempotency};
use crate::caller::{Caller, workspace_of};
use crate::engine::Engine;
use crate::refused::Refused;
use crate::transfer::Upload;
use crate::turn::Lease;

impl Engine {
    /// Begins to take in content, piece by piece.
    pub fn begin_upload(&self) -> Upload {
        Upload::new(self.shared.store.clone())
    }

    /// Attaches content that has arrived to an Artifact.
    ///
    /// # Errors
    /// See [`Refused`]. Nothing was written then, and the content is gone.
    pub async fn attach(
        &self,
        caller: &Caller,
        id: &ArtifactId,
        content: Upload,
        idempotency: Option<Idempotency>,
    ) -> Result<Answer, Refused> {
        if self.is_draining() {
            return Err(Refused::Draining);
        }
        caller.require("artifacts:write")?;
        let document = self
            .visible(caller, ResourceKind::Artifact, id.as_str())
            .await?;
        let workspace = workspace_of(&document);
        let claim = |given: &Idempotency| self.claim(caller, workspace.as_ref(), given);
        let known = match &idempotency {
            Some(given) => self.claimed(claim(given)).await?,
            None => None,
        };
        let done = match known {
            Some(done) => done,
            None => {
                let (sha256, bytes) = content.arrived();
                let _room = self.reserve(workspace.as_ref(), bytes).await?;
                // Other bytes than were stated are refused in the turn, and not stored before.
                let is_stated = match &document.state {
                    State::Artifact(artifact) => {
                        artifact.sha256.is_none_or(|stated| stated == sha256)
                    }
                    _ => false,
                };
                // Durable before the event that names it.
                match is_stated {
                    true => content.keep().await?,
                    false => drop(content),
                }
                let order = Order::AttachContent(domain::AttachContent {
                    id: id.clone(),
                    sha256,
                    bytes,
                });
                let command = Command {
                    actor: caller.actor.clone(),
                    idempotency_key: idempotency.as_ref().map(|given| given.key.clone()),
                    order,
                };
                let claim = idempotency.as_ref().map(claim);
                self.order(command, claim, Lease::None).await?
            }
        };
        let event = match done.written.event(done.answer) {
            Some(event) => Some(Arc::clone(event)),
            None => self.event_at(done.answer).await?.map(Arc::new),
        };
        let view = self
            .answer_view(caller, &id.resource(), &done.written)
            .await?;
        Ok(Answer {
            view,
            event,
            changed: done.changed,
        })
    }
}
