//! Receipts for readers: bytes, proofs and verdicts.

use std::collections::BTreeMap;
use std::sync::Arc;

use canon::{Digest, Map, Value};
use domain::{
    Document, Event, Position, Receipt, ReceiptCheck, ReceiptId, RecordVerification, Refusal,
    ResourceKind, State, View, payload,
};
use receipts::verify::{
    Batch, Check, Code, Evidence, Form, Inclusion, Keys, Predecessor, References, Report,
    references, verify,
};
use serde_json::json;

use crate::caller::Caller;
use crate::engine::Engine;
use crate::imported;
use crate::log_tree::{Proof, ProofFailure};
use crate::port::BoxFuture;
use crate::read::{ListRequest, Page, next_page};
use crate::refused::Refused;

/// A receipt as it is stored.
#[derive(Debug, Clone, PartialEq)]
pub struct ReceiptForm {
    /// Its view.
    pub view: View,
    /// Its canonical bytes; none when they were lost or redacted.
    pub bytes: Option<Vec<u8>>,
}

/// The event log of a Task, as far as it is there.
enum EventLog {
    Whole(Vec<u8>),
    Pruned,
    /// There is no such Task, or it has not ended.
    NotSealed,
}

impl Engine {
    /// Reads a receipt with its bytes.
    ///
    /// # Errors
    /// It does not exist or is hidden; the caller lacks the scope; the store failed.
    pub async fn receipt(&self, caller: &Caller, id: &str) -> Result<ReceiptForm, Refused> {
        let view = self.get(caller, ResourceKind::Receipt, id).await?;
        Ok(self.receipt_form(view).await)
    }

    /// Adds their bytes to the views of receipts.
    pub async fn receipt_forms(&self, views: Vec<View>) -> Vec<ReceiptForm> {
        let mut forms = Vec::with_capacity(views.len());
        for view in views {
            forms.push(self.receipt_form(view).await);
        }
        forms
    }

    async fn receipt_form(&self, view: View) -> ReceiptForm {
        let bytes = match &view.document.state {
            // A store that finds other bytes under this digest says so; the verdict is for `verify` to give.
            State::Receipt(receipt) => self
                .shared
                .store
                .blob(receipt.content)
                .await
                .unwrap_or_default(),
            _ => None,
        };
        ReceiptForm { view, bytes }
    }

    /// Lists the receipts of a Task; for a Task that is still running it waits a moment for the first one (C-20).
    ///
    /// # Errors
    /// As [`Engine::list`].
    pub async fn task_receipts(
        &self,
        caller: &Caller,
        request: ListRequest,
    ) -> Result<Page, Refused> {
        caller.require("receipts:read")?;
        let key = match &request.filters.task_id {
            Some(id) => self.document(id).await?.map(|document| document.key),
            None => None,
        };
        let mut watch = self.watch_task(key.unwrap_or(Position::START));
        let mut late = self.shared.clock.sleep(self.shared.limits.receipt_window);
        loop {
            let page = self.list(caller, request.clone()).await?;
            if !page.views.is_empty()
                || !self.is_running(request.filters.task_id.as_deref()).await?
            {
                return Ok(page);
            }
            tokio::select! {
                biased;
                // Time first: news may always be there.
                () = &mut late => return Ok(page),
                () = watch.changed() => {}
            }
        }
    }

    async fn is_running(&self, task: Option<&str>) -> Result<bool, Refused> {
        let Some(id) = task else { return Ok(false) };
        let document = self.shared.store.document(id).await?;
        Ok(document.is_some_and(|document| match &document.state {
            State::Task(task) => !task.status.is_terminal() && !task.status.is_waiting(),
            _ => false,
        }))
    }

    /// Proves that a receipt is in the log.
    ///
    /// # Errors
    /// It does not exist or is hidden; the caller lacks the scope; the store failed.
    pub async fn receipt_proof(&self, caller: &Caller, id: &str) -> Result<Proof, Refused> {
        caller.require("receipts:read")?;
        let document = self.visible(caller, ResourceKind::Receipt, id).await?;
        let State::Receipt(receipt) = &document.state else {
            return Err(Refused::Internal {
                detail: "the document is not a receipt".to_owned(),
            });
        };
        if receipt.imported {
            return Err(Refused::Domain(Refusal::Conflict {
                reason: "imported_receipt",
                message: "another server issued this receipt: the proof is in the log of that one"
                    .to_owned(),
                status: None,
            }));
        }
        let proof = self.prove(document.key, receipt.receipt_hash).await;
        proof.map_err(Refused::from)
    }

    /// Returns the sealed event log of a Task, as its receipt's first material names it.
    ///
    /// # Errors
    /// The Task does not exist, is hidden, or has not ended; the caller lacks the scope; the store failed.
    pub async fn event_log_content(&self, caller: &Caller, task: &str) -> Result<Vec<u8>, Refused> {
        // These are the events, whatever they are called.
        caller.require("artifacts:read")?;
        caller.require("events:read")?;
        let unknown = |refused| match refused {
            Refused::Domain(Refusal::NotFound { .. }) => Refused::Domain(Refusal::NotFound {
                object: ResourceKind::Artifact.object(),
                param: None,
            }),
            other => other,
        };
        let visible = self.visible(caller, ResourceKind::Task, task).await;
        visible.map_err(unknown)?;
        match self.event_log(task).await? {
            EventLog::Whole(log) => Ok(log),
            EventLog::Pruned => Err(Refused::ContentUnavailable { reason: "pruned" }),
            EventLog::NotSealed => Err(Refused::ContentUnavailable {
                reason: "not_sealed",
            }),
        }
    }

    /// Verifies a receipt of this log without a trace; [`domain::Request::VerifyReceipt`] records the verdict.
    ///
    /// # Errors
    /// It does not exist or is hidden; the caller lacks the scope; the store failed. An invalid receipt is a
    /// verdict, not an error.
    pub async fn judge_receipt(
        &self,
        caller: &Caller,
        id: &ReceiptId,
        check: &ReceiptCheck,
    ) -> Result<(bool, Option<String>, Value), Refused> {
        let order = self.judged(caller, id, check).await?;
        Ok((order.valid, order.reason, order.details))
    }

    /// Examines a receipt of this log and returns the verdict as it would be recorded.
    pub(crate) async fn judged(
        &self,
        caller: &Caller,
        id: &ReceiptId,
        check: &ReceiptCheck,
    ) -> Result<RecordVerification, Refused> {
        must_be_time(check)?;
        let view = self.get(caller, ResourceKind::Receipt, id.as_str()).await?;
        let State::Receipt(receipt) = view.document.state.clone() else {
            return Err(Refused::Internal {
                detail: "the document is not a receipt".to_owned(),
            });
        };
        // As stored, damaged or not: the verdict shall say what is wrong with it.
        let bytes = self.shared.store.blob_as_stored(receipt.content).await?;
        let (report, merkle) = self
            .examine(&view.document, &receipt, bytes.as_deref(), check)
            .await?;
        Ok(RecordVerification {
            id: id.clone(),
            valid: report.is_valid(),
            reason: report.reason().map(|code| code.as_str().to_owned()),
            details: match (details(&report, merkle), receipt.imported) {
                (Value::Object(mut details), true) => {
                    details.insert("imported".to_owned(), true.into());
                    Value::Object(details)
                }
                (details, _) => details,
            },
        })
    }

    fn examine<'a>(
        &'a self,
        document: &'a Document,
        receipt: &'a Receipt,
        bytes: Option<&'a [u8]>,
        check: &'a ReceiptCheck,
    ) -> BoxFuture<'a, Result<(Report, Value), Refused>> {
        // A future is compiled where it is boxed: here, and not in each crate that waits for it.
        Box::pin(self.examine_here(document, receipt, bytes, check))
    }

    async fn examine_here(
        &self,
        document: &Document,
        receipt: &Receipt,
        bytes: Option<&[u8]>,
        check: &ReceiptCheck,
    ) -> Result<(Report, Value), Refused> {
        let proof = match receipt.imported {
            true => None,
            false => match self.prove(document.key, receipt.receipt_hash).await {
                Ok(proof) => Some(Ok(proof)),
                Err(ProofFailure::Broken(problem)) => Some(Err(problem)),
                Err(ProofFailure::Refused(refused)) => return Err(refused),
            },
        };
        let known = proof.as_ref().and_then(|proof| proof.as_ref().ok());
        let inclusion = known.map(|proof| Inclusion {
            leaf_index: proof.leaf_index,
            batch: Batch {
                size: proof.size,
                root: proof.root,
            },
            path: proof.path.clone(),
        });
        let mut batches = self.named_batch(bytes.unwrap_or_default()).await?;
        batches.extend(inclusion.as_ref().map(|inclusion| inclusion.batch));
        let references = self.references(bytes.unwrap_or_default()).await?;
        let evidence = Evidence {
            form: Form::Canonical,
            predecessor: match self.predecessor(receipt).await? {
                // Its chain is another server's.
                _ if receipt.imported => Predecessor::NotAsked,
                Some(hash) => Predecessor::Hash(hash),
                None => Predecessor::Absent,
            },
            batches: &batches,
            inclusion: inclusion.as_ref(),
            keys: self.keys_for(check),
            at_time: check.at_time.as_deref(),
            trust_anchor: check.trust_anchor.as_deref(),
            references: Some(&references),
        };
        let mut report = verify(bytes.unwrap_or_default(), &evidence);
        let merkle = match known {
            Some(proof) => {
                json!({"batch_id": proof.batch.id, "root": proof.root, "leaf_index": proof.leaf_index, "size": proof.size})
            }
            None => Value::Null,
        };
        if let Some(Err(problem)) = proof {
            report.skipped.retain(|name| *name != "inclusion");
            report.checks.push(Check {
                name: "inclusion".to_owned(),
                ok: false,
                code: Some(Code::MerkleMismatch),
                expected: Some("a proof from the log's own tiles".to_owned()),
                found: Some(problem),
            });
        }
        report.checks.push(check_content(receipt, bytes));
        Ok((report, merkle))
    }

    /// Returns the sealed head whose root a receipt names, when it names one that is known.
    async fn named_batch(&self, bytes: &[u8]) -> Result<Vec<Batch>, Refused> {
        let named = receipts::Receipt::read(bytes)
            .ok()
            .and_then(|receipt| receipt.merkle_root());
        let Some(root) = named else {
            return Ok(Vec::new());
        };
        let size = self.shared.store.head_size(root).await?;
        Ok(size.map(|size| Batch { size, root }).into_iter().collect())
    }

    /// Returns the hash of the receipt before this one in its Session's chain; for the first of a fork, of the
    /// parent's last. Its id was stored at issue, when the head of the chain was locked.
    async fn predecessor(&self, receipt: &Receipt) -> Result<Option<Digest>, Refused> {
        let Some(id) = &receipt.previous_id else {
            // Receipts from before ids were stored have the hash alone.
            return Ok(receipt.previous);
        };
        let found = self.shared.store.document(id.as_str()).await?;
        Ok(found.and_then(|document| match document.state {
            State::Receipt(before) => Some(before.receipt_hash),
            _ => None,
        }))
    }

    /// Finds out what became of the things a receipt points to.
    async fn references(&self, bytes: &[u8]) -> Result<References, Refused> {
        let Ok(receipt) = receipts::Receipt::read(bytes) else {
            return Ok(References::default());
        };
        let subject = self.shared.store.document(receipt.subject_id()).await?;
        // What a Task of another log names is in its bundle.
        let elsewhere = match &subject {
            Some(subject) => self.bundle_behind(subject).await?,
            None => None,
        };
        let mut digests = BTreeMap::new();
        for reference in references(&receipt) {
            let inside = elsewhere
                .as_ref()
                .and_then(|bundle| imported::digest_in(bundle, reference.uri));
            let digest = match inside {
                Some(digest) => Some(digest),
                None => self.digest_of(reference.uri).await?,
            };
            if let Some(digest) = digest {
                digests.insert(reference.uri.to_owned(), digest);
            }
        }
        Ok(References {
            subject_exists: subject.is_some(),
            digests,
        })
    }

    /// Returns the digest of what an `artifact://` address names now.
    async fn digest_of(&self, uri: &str) -> Result<Option<Digest>, Refused> {
        let Some(name) = uri.strip_prefix("artifact://") else {
            return Ok(None);
        };
        if let Some(task) = name.strip_prefix("event_log_") {
            return self.event_log_digest(task).await;
        }
        if let Some(position) = self.shared.store.name().position(name) {
            return self.recorded_digest(position).await;
        }
        let document = self.shared.store.document(name).await?;
        let artifact = document.and_then(|document| match document.state {
            State::Artifact(artifact) => Some(artifact),
            _ => None,
        });
        // Bytes that were never stored here, or are gone, cannot be compared.
        let stored = artifact.filter(|artifact| artifact.bytes.is_some());
        let Some(content) = stored.and_then(|artifact| artifact.sha256) else {
            return Ok(None);
        };
        let bytes = self.shared.store.blob_as_stored(content).await?;
        Ok(bytes.map(|bytes| canon::sha256(&bytes)))
    }

    /// Returns the digest of the value that an event recorded; none when there is no such event or value any more.
    async fn recorded_digest(&self, position: Position) -> Result<Option<Digest>, Refused> {
        let Some(stored) = self.shared.store.event_at(position).await? else {
            return Ok(None);
        };
        let Ok(mut event) = Event::parse(&stored.bytes) else {
            // Damaged: whatever these bytes are, they are not what was recorded.
            return Ok(Some(canon::sha256(&stored.bytes)));
        };
        if event.is_header() {
            return Ok(None);
        }
        if crate::view::resolve_blobs(&*self.shared.store, Arc::make_mut(&mut event.payload))
            .await
            .is_err()
        {
            return Ok(Some(canon::sha256(&stored.bytes)));
        }
        let value = payload::EffectRecorded::of(&event.payload).value();
        Ok(value.map(|value| canon::sha256(&canon::jcs(value))))
    }

    async fn event_log_digest(&self, task: &str) -> Result<Option<Digest>, Refused> {
        Ok(match self.event_log(task).await? {
            EventLog::Whole(log) => Some(canon::sha256(&log)),
            EventLog::Pruned | EventLog::NotSealed => None,
        })
    }

    /// Renders the sealed event log of a Task: the stored bytes of each event and a line feed, up to its terminal
    /// transition.
    async fn event_log(&self, task: &str) -> Result<EventLog, Refused> {
        let Some(document) = self.shared.store.document(task).await? else {
            return Ok(EventLog::NotSealed);
        };
        let State::Task(state) = &document.state else {
            return Ok(EventLog::NotSealed);
        };
        if !state.status.is_terminal() {
            return Ok(EventLog::NotSealed);
        }
        if state.imported.is_some() {
            let bundle = self.bundle_behind(&document).await?;
            return Ok(bundle.map_or(EventLog::Pruned, |bundle| {
                EventLog::Whole(imported::lines(&bundle))
            }));
        }
        let mut log = Vec::new();
        let mut after = Position::START;
        let store = &*self.shared.store;
        while let Some(page) = next_page(store, document.key, &mut after).await? {
            // The Task's own last event is its terminal transition; what follows proves it.
            for event in page.iter().filter(|event| event.position <= document.tip) {
                if Event::parse(&event.bytes).is_ok_and(|event| event.is_header()) {
                    return Ok(EventLog::Pruned);
                }
                log.extend_from_slice(&event.bytes);
                log.push(b'\n');
            }
        }
        Ok(EventLog::Whole(log))
    }

    /// Verifies a receipt that somebody hands over, against the keys and heads of this server.
    ///
    /// # Errors
    /// The caller lacks the scope; the store failed.
    pub async fn verify_foreign(
        &self,
        caller: &Caller,
        bytes: &[u8],
        check: &ReceiptCheck,
    ) -> Result<(bool, Option<String>, Value), Refused> {
        caller.require("receipts:read")?;
        must_be_time(check)?;
        let mut batches = self.named_batch(bytes).await?;
        let inclusion = self.stored_inclusion(caller, bytes).await?;
        batches.extend(inclusion.as_ref().map(|inclusion| inclusion.batch));
        let evidence = Evidence {
            form: Form::AnyJson,
            predecessor: Predecessor::NotAsked,
            batches: &batches,
            inclusion: inclusion.as_ref(),
            keys: self.keys_for(check),
            at_time: check.at_time.as_deref(),
            trust_anchor: check.trust_anchor.as_deref(),
            references: None,
        };
        let mut report = verify(bytes, &evidence);
        self.compare_with_stored(caller, bytes, &mut report).await?;
        let reason = report.reason().map(|code| code.as_str().to_owned());
        Ok((report.is_valid(), reason, details(&report, Value::Null)))
    }

    /// Proves that a receipt is in this log, when it is and this caller may see it: of a retired key no other receipt counts.
    async fn stored_inclusion(
        &self,
        caller: &Caller,
        bytes: &[u8],
    ) -> Result<Option<Inclusion>, Refused> {
        let Ok(handed) = receipts::Receipt::read(bytes) else {
            return Ok(None);
        };
        let found = self
            .visible(caller, ResourceKind::Receipt, handed.id())
            .await;
        let document = match found {
            Ok(document) => document,
            Err(Refused::Domain(Refusal::NotFound { .. })) => return Ok(None),
            Err(refused) => return Err(refused),
        };
        let is_own = match &document.state {
            State::Receipt(stored) => !stored.imported && stored.receipt_hash == handed.hash(),
            _ => false,
        };
        // Asking must not write: a head that does not cover it yet is not sealed for this.
        let index = self.shared.store.leaf_index(document.key).await?;
        let newest = self.newest_batch().await?.map(|(_, size, _)| size);
        let is_covered = index.zip(newest).is_some_and(|(index, size)| index < size);
        if !is_own || !is_covered {
            return Ok(None);
        }
        match self.prove(document.key, handed.hash()).await {
            Ok(proof) => Ok(Some(Inclusion {
                leaf_index: proof.leaf_index,
                batch: Batch {
                    size: proof.size,
                    root: proof.root,
                },
                path: proof.path,
            })),
            // Its own verification tells what is wrong with the tree.
            Err(ProofFailure::Broken(_)) => Ok(None),
            Err(ProofFailure::Refused(refused)) => Err(refused),
        }
    }

    /// Holds a receipt against the one that this server has under the same id, when this caller may see that.
    async fn compare_with_stored(
        &self,
        caller: &Caller,
        bytes: &[u8],
        report: &mut Report,
    ) -> Result<(), Refused> {
        let Ok(handed) = receipts::Receipt::read(bytes) else {
            return Ok(());
        };
        let found = self
            .visible(caller, ResourceKind::Receipt, handed.id())
            .await;
        let stored = match found {
            Ok(document) => match document.state {
                State::Receipt(stored) => stored.receipt_hash,
                _ => return Ok(()),
            },
            Err(Refused::Domain(Refusal::NotFound { .. })) => {
                report.skipped.push("stored");
                return Ok(());
            }
            Err(refused) => return Err(refused),
        };
        let ok = handed.hash() == stored;
        report.checks.push(Check {
            name: "stored".to_owned(),
            ok,
            code: (!ok).then_some(Code::ReceiptIdConflict),
            expected: (!ok).then(|| stored.to_string()),
            found: (!ok).then(|| handed.hash().to_string()),
        });
        Ok(())
    }

    fn keys_for(&self, check: &ReceiptCheck) -> Keys<'_> {
        match check.integrity_only {
            true => Keys::NotAsked,
            false => Keys::Given(&self.shared.authority.keys),
        }
    }

    /// Who signs receipts here.
    pub fn authority(&self) -> &crate::receipt::Authority {
        &self.shared.authority
    }
}

fn must_be_time(check: &ReceiptCheck) -> Result<(), Refused> {
    match check.at_time.as_deref().map(receipts::seconds_of) {
        Some(None) => Err(Refused::Domain(Refusal::Invalid {
            param: "at_time",
            message: "`at_time` must be an RFC 3339 time".to_owned(),
        })),
        Some(Some(_)) | None => Ok(()),
    }
}

/// A stored receipt is also compared with the digest under which it was stored: what its own hash does not cover, such
/// as the list of signatures, cannot be changed either.
fn check_content(receipt: &Receipt, bytes: Option<&[u8]>) -> Check {
    let found = bytes.map(canon::sha256);
    let ok = found == Some(receipt.content);
    Check {
        name: "content".to_owned(),
        ok,
        code: (!ok).then_some(Code::ContentMismatch),
        expected: (!ok).then(|| receipt.content.to_string()),
        found: (!ok).then(|| match found {
            Some(digest) => digest.to_string(),
            None => "nothing".to_owned(),
        }),
    }
}

/// Renders a report as the protocol's `details`.
fn details(report: &Report, merkle: Value) -> Value {
    let checks: Vec<Value> = report
        .checks
        .iter()
        .map(|check| {
            let mut line = Map::new();
            line.insert("name".to_owned(), check.name.as_str().into());
            line.insert("ok".to_owned(), check.ok.into());
            let optional = [
                ("code", check.code.map(|code| code.as_str().to_owned())),
                ("expected", check.expected.clone()),
                ("found", check.found.clone()),
            ];
            for (name, value) in optional {
                if let Some(value) = value {
                    line.insert(name.to_owned(), value.into());
                }
            }
            Value::Object(line)
        })
        .collect();
    let mut materials = json!({"available": report.materials_available, "unavailable": report.materials_unavailable});
    if let (false, Value::Object(materials)) =
        (report.materials_unavailable.is_empty(), &mut materials)
    {
        materials.insert("code".to_owned(), "material_unavailable".into());
    }
    json!({
        "checks": checks,
        "skipped": report.skipped,
        "signatures": report.signatures.as_str(),
        "signed_by": report.signed_by,
        "whole": report.is_whole(),
        "merkle": merkle,
        "materials": materials,
    })
}
