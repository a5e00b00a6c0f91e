//! Records of finished Tasks for readers: the bundle of one, the difference of two.

use std::collections::BTreeMap;
use std::sync::Arc;

use domain::{Event, Refusal, ResourceKind, State, Task, TaskId};

use crate::caller::Caller;
use crate::engine::Engine;
use crate::refused::Refused;
use crate::replay::diff::{self, Diff, Reveal};
use crate::replay::{self, BUNDLE_BYTES_MAX, Bundle, Failure, Unavailable};

/// What a caller must be allowed to read to see a whole record, also what is not public.
const EVERYTHING: [&str; 3] = ["tasks:read", "receipts:read", "internal:read"];

impl Engine {
    /// Returns the bundle of a finished Task: its sealed log, everything that keeps beside itself, and its receipt.
    ///
    /// # Errors
    /// It does not exist, is hidden or has not ended; the caller lacks a scope; retention took the log; it is too large.
    pub async fn bundle(&self, caller: &Caller, id: &TaskId) -> Result<Vec<u8>, Refused> {
        for scope in EVERYTHING {
            caller.require(scope)?;
        }
        self.finished(caller, id, None).await?;
        let bundle = self.record(id).await??;
        if bundle.len() > BUNDLE_BYTES_MAX {
            return Err(Refused::Domain(Refusal::Policy {
                reason: "bundle_too_large",
                message: format!("the bundle of this task has more than {BUNDLE_BYTES_MAX} bytes"),
            }));
        }
        Ok(bundle.to_bytes())
    }

    /// Compares two finished Tasks.
    ///
    /// # Errors
    /// One of them does not exist, is hidden or has not ended; the caller lacks a scope; retention took a log.
    pub async fn diff(&self, caller: &Caller, a: &TaskId, b: &TaskId) -> Result<Diff, Refused> {
        for scope in ["tasks:read", "events:read"] {
            caller.require(scope)?;
        }
        self.finished(caller, a, None).await?;
        self.finished(caller, b, Some("other")).await?;
        let reveal = match EVERYTHING.iter().all(|scope| caller.may(scope)) {
            true => Reveal::All,
            false => Reveal::Public,
        };
        let a = self.source(a).await??;
        let b = self.source(b).await??;
        Ok(diff::between(&a, &b, &self.shared.workflows, reveal))
    }

    async fn finished(
        &self,
        caller: &Caller,
        id: &TaskId,
        param: Option<&'static str>,
    ) -> Result<(), Refused> {
        let found = self.visible(caller, ResourceKind::Task, id.as_str()).await;
        let document = found.map_err(|refused| match refused {
            Refused::Domain(Refusal::NotFound { object, .. }) => {
                Refused::Domain(Refusal::NotFound { object, param })
            }
            other => other,
        })?;
        match &document.state {
            State::Task(task) if task.status.is_terminal() => Ok(()),
            State::Task(task) => Err(Refused::Domain(Refusal::Conflict {
                reason: "not_finished",
                message: format!(
                    "only the record of a finished task is complete; this one is {}",
                    task.status.as_str()
                ),
                status: Some(task.status),
            })),
            _ => Err(Refused::Internal {
                detail: "a task that is none".to_owned(),
            }),
        }
    }

    /// Collects the sealed log of a Task with everything it keeps beside itself.
    pub(crate) async fn record(&self, id: &TaskId) -> Result<Result<Bundle, Failure>, Refused> {
        let store = &self.shared.store;
        let documents = store.documents(vec![id.as_str().into()]).await?;
        let document = documents.into_iter().flatten().next();
        let Some((key, task)) = document.and_then(|document| match document.state {
            State::Task(task) => Some((document.key, task)),
            _ => None,
        }) else {
            return Ok(Err(unreadable(id, "missing")));
        };
        if let Some(imported) = &task.imported {
            return self.imported_bundle(id, task.submitted, imported).await;
        }
        let events = self.task_log(key).await?;
        if let Some(failure) = pruned(&events) {
            return Ok(Err(failure));
        }
        let receipt = match &task.receipt_id {
            None => None,
            Some(receipt) => self.receipt_of(receipt).await?.ok(),
        };
        let mut blobs = BTreeMap::new();
        let Ok(mut named) = replay::bundle_names(&events) else {
            return Ok(Err(unreadable(id, "log_corrupt")));
        };
        while let Some(digest) = named.pop() {
            // Whoever uses the record checks it, and says what is wrong by its place.
            let Some(blob) = store.blob_as_stored(digest).await? else {
                continue;
            };
            if is_request(&task, digest) {
                named.extend(replay::request_names(&blob));
            }
            blobs.insert(digest, blob.to_vec());
        }
        Ok(Bundle::new(&events, blobs, receipt).map_err(|_| unreadable(id, "log_corrupt")))
    }
}

fn is_request(task: &Task, digest: canon::Digest) -> bool {
    task.replay.as_ref().is_some_and(|of| of.request == digest)
}

/// Names the first event of a log that pruning took the payload of.
fn pruned(events: &[Arc<[u8]>]) -> Option<Failure> {
    let parsed = events.iter().map(|bytes| Event::parse(bytes).ok());
    let mut headers = parsed
        .zip(1..)
        .filter_map(|(event, sequence)| Some((event.filter(Event::is_header)?, sequence)));
    let (first, sequence) = headers.next()?;
    Some(Failure::Unavailable {
        first: Box::new(Unavailable {
            what: "event",
            id: None,
            key: None,
            event_id: Some(first.id.to_string()),
            sequence: Some(sequence),
            reason: "pruned",
        }),
        also: headers.count() as u64,
    })
}

/// Says that a Task cannot be replayed because its log cannot be read.
pub(crate) fn unreadable(id: &TaskId, reason: &'static str) -> Failure {
    Failure::Unavailable {
        first: Box::new(Unavailable {
            what: "event",
            id: Some(id.to_string()),
            key: None,
            event_id: None,
            sequence: None,
            reason,
        }),
        also: 0,
    }
}
