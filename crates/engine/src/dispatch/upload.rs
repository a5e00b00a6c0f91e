//! An Artifact's content. It arrived before it is ordered; what is refused leaves nothing behind.

use domain::{ArtifactId, Request, ResourceKind, State};

use super::{Answer, Idempotency};
use crate::caller::Caller;
use crate::engine::Engine;
use crate::refused::Refused;
use crate::transfer::Upload;

impl Engine {
    /// Begins to take in content, piece by piece.
    pub fn begin_upload(&self) -> Upload {
        Upload::new(self.shared.store.clone())
    }

    /// Attaches content that has arrived to an Artifact: [`Request::AttachContent`], whose content no request holds.
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
        let (sha256, bytes) = content.arrived();
        let request = Request::AttachContent {
            id: id.clone(),
            sha256,
            bytes,
        };
        self.admit(caller, &request)?;
        let content = Some(Box::new(content));
        let done = self
            .carry_out(caller, request, idempotency, content)
            .await?;
        Ok(Answer {
            event: self.answering_event(&done).await?,
            view: self
                .answer_view(caller, &id.resource(), &done.written)
                .await?,
            changed: done.changed,
        })
    }

    /// Makes content durable before the event that names it. Other bytes than were stated are refused in the turn, and not
    /// stored before.
    pub(super) async fn keep_content(
        &self,
        caller: &Caller,
        id: &ArtifactId,
        content: Box<Upload>,
    ) -> Result<(), Refused> {
        let (sha256, _) = content.arrived();
        let document = self.visible(caller, ResourceKind::Artifact, id.as_str());
        let is_stated = match document.await?.state {
            State::Artifact(artifact) => artifact.sha256.is_none_or(|stated| stated == sha256),
            _ => false,
        };
        match is_stated {
            true => content.keep().await,
            false => Ok(()),
        }
    }
}
