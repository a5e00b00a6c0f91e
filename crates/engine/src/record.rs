//! Records of finished Tasks for readers: the bundle of one, the difference of two.

use std::collections::BTreeMap;

use canon::Digest;
use domain::{Document, Position, Refusal, ResourceKind, State, Status, TaskId};

use crate::caller::Caller;
use crate::engine::Engine;
use crate::read::next_page;
use crate::refused::Refused;
use runs::replay::diff::{self, Diff, Reveal};
use runs::replay::transcript::{RunTranscript, transcript};
use runs::replay::{
    self, BUNDLE_BYTES_MAX, Bundle, Failure, Log, ReadSourceError, Source, Unavailable,
};

/// What is read of a record in addition to its log and its receipt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Include {
    /// Every blob that it names.
    Everything,
    /// What a replay was asked for, without which its log cannot be understood.
    Request,
}

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
        let bundle = self.record(id, Include::Everything).await??;
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
        let a = self.source(a, Include::Everything).await??;
        let b = self.source(b, Include::Everything).await??;
        let workflows = self.shared.workflows.clone();
        self.run_blocking(move || diff::compare(&a, &b, &workflows, reveal))
            .await
    }

    /// Tells a run step by step, finished or not; of a replay also what it took from its source.
    ///
    /// # Errors
    /// It does not exist or is hidden; the caller lacks a scope; retention took the log; it cannot be read.
    pub async fn run_transcript(
        &self,
        caller: &Caller,
        id: &TaskId,
        only: Option<usize>,
    ) -> Result<RunTranscript, Refused> {
        for scope in ["tasks:read", "events:read"] {
            caller.require(scope)?;
        }
        let document = self
            .visible(caller, ResourceKind::Task, id.as_str())
            .await?;
        let State::Task(task) = &document.state else {
            return Err(Refused::Internal {
                detail: "the document is not a task".to_owned(),
            });
        };
        let reveal = match EVERYTHING.iter().all(|scope| caller.may(scope)) {
            true => Reveal::All,
            false => Reveal::Public,
        };
        let source = match task.status.is_terminal() {
            true => self.source(id, Include::Everything).await??,
            false => self.unfinished(&document, task.status).await??,
        };
        let beside = match source.replays() {
            Some(of) => self.source(&of, Include::Everything).await?.ok(),
            None => None,
        };
        let workflows = self.shared.workflows.clone();
        self.run_blocking(move || transcript(&source, beside.as_ref(), &workflows, reveal, only))
            .await
    }

    /// Reads a Task that has not ended, as far as it came.
    async fn unfinished(
        &self,
        document: &Document,
        status: Status,
    ) -> Result<Result<Source, Failure>, Refused> {
        let corrupt = || {
            let id = TaskId::parse(&document.id).map_err(|_| Refused::Internal {
                detail: "the document is not a task".to_owned(),
            })?;
            Ok(Err(unreadable(&id, "log_corrupt")))
        };
        let Ok(log) = self.sealed_log(document.key).await? else {
            return corrupt();
        };
        let mut blobs = BTreeMap::new();
        self.read_blobs(log.blobs_named(), &mut blobs).await?;
        match self
            .run_blocking(move || log.into_unfinished(blobs, status))
            .await?
        {
            Ok(source) => Ok(Ok(source)),
            Err(_) => corrupt(),
        }
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
                detail: "the document is not a task".to_owned(),
            }),
        }
    }

    /// Collects the sealed log of a Task with everything it keeps beside itself.
    pub(crate) async fn record(
        &self,
        id: &TaskId,
        include: Include,
    ) -> Result<Result<Bundle, Failure>, Refused> {
        let store = &self.shared.store;
        let document = store.document(id.as_str()).await?;
        let Some((key, task)) = document.and_then(|document| match document.state {
            State::Task(task) => Some((document.key, task)),
            _ => None,
        }) else {
            return Ok(Err(unreadable(id, "missing")));
        };
        if let Some(imported) = &task.imported {
            return self.imported_bundle(id, task.submitted, imported).await;
        }
        let Ok(log) = self.sealed_log(key).await? else {
            return Ok(Err(unreadable(id, "log_corrupt")));
        };
        if let Some(failure) = pruned(&log) {
            return Ok(Err(failure));
        }
        let receipt = match &task.receipt_id {
            None => None,
            Some(receipt) => Some(self.receipt_of(receipt).await?),
        };
        let (receipt, problem) = match receipt {
            None => (None, None),
            Some(Ok(receipt)) => (Some(receipt), None),
            Some(Err(problem)) => (None, Some(problem)),
        };
        let mut blobs = BTreeMap::new();
        if let Some(request) = log.request_named() {
            self.read_blobs(vec![request], &mut blobs).await?;
            let named = blobs.get(&request).map(|blob| replay::request_names(blob));
            self.read_blobs(named.unwrap_or_default(), &mut blobs)
                .await?;
        }
        if let Include::Everything = include {
            self.read_blobs(log.blobs_named(), &mut blobs).await?;
        }
        let Ok(bundle) = Bundle::of(log, blobs, receipt) else {
            return Ok(Err(unreadable(id, "log_corrupt")));
        };
        Ok(Ok(match (problem, &task.receipt_id) {
            (Some(problem), Some(receipt)) => {
                bundle.with_missing_receipt(receipt.to_string(), problem)
            }
            _ => bundle,
        }))
    }

    /// Reads the log of a Task up to its end. Parsed page by page: others have their turn in between.
    async fn sealed_log(&self, key: Position) -> Result<Result<Log, ReadSourceError>, Refused> {
        let mut log = Log::default();
        let mut after = Position::START;
        while let Some(page) = next_page(&*self.shared.store, key, &mut after).await? {
            if let Err(error) = log.extend(page.into_iter().map(|event| event.bytes)) {
                return Ok(Err(error));
            }
        }
        Ok(Ok(log))
    }

    /// Reads blobs, several at a time. Whoever uses them checks them, and says what is wrong by its place.
    async fn read_blobs(
        &self,
        digests: Vec<Digest>,
        blobs: &mut BTreeMap<Digest, Vec<u8>>,
    ) -> Result<(), Refused> {
        const AT_ONCE: usize = 128;
        for some in digests.chunks(AT_ONCE) {
            let found = self.shared.store.blobs_as_stored(some.to_vec()).await?;
            let found = some.iter().copied().zip(found);
            blobs.extend(found.filter_map(|(digest, blob)| Some((digest, blob?))));
        }
        Ok(())
    }
}

/// Names the first event of a log that pruning took the payload of.
fn pruned(log: &Log) -> Option<Failure> {
    let mut headers = log.events().zip(1..).filter(|(event, _)| event.is_header());
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
