//! Taking over a finished Task of another log: its bundle is checked from end to end before anything is written.
//!
//! What cannot be checked here is the signature: it is made with another server's key.

use std::sync::Arc;

use canon::{Digest, Map, Value, sha256};
use domain::{
    BLOB_MEMBER, Blob, Command, Event, ImportTask, ImportedReceipt, Kind, Order, ReceiptId,
    Refusal, Scratch, State, Status, Visibility, WorkspaceId, decide, payload,
};
use receipts::{Receipt, event_log_digest};

use crate::caller::Caller;
use crate::engine::Engine;
use crate::imported::resolved;
use crate::refused::Refused;
use runs::replay::Bundle;

/// The largest blob that is written in the commit of its import.
const IN_TURN_BYTES_MAX: usize = 64 * 1024;

/// How much of a bundle is handed to the store at a time.
const PIECE_BYTES: usize = 256 * 1024;

impl Engine {
    pub(super) async fn build_import(
        &self,
        caller: &Caller,
        bytes: &Arc<Vec<u8>>,
        workspace_id: Option<WorkspaceId>,
    ) -> Result<Order, Refused> {
        let read_aside = Arc::clone(bytes);
        let bundle = self.run_blocking(move || Bundle::read(&read_aside)).await?;
        let bundle = bundle.map_err(|error| {
            Refused::Domain(Refusal::Invalid {
                param: "",
                message: error.to_string(),
            })
        })?;
        let known = self.document(bundle.task_id().as_str()).await?;
        let there = known.as_ref().and_then(|document| match &document.state {
            State::Task(task) => Some((&task.workspace_id, task.imported.as_ref()?.bundle)),
            _ => None,
        });
        // Where it is already, when the request names no place.
        let into = workspace_id
            .or_else(|| there.map(|(workspace, _)| workspace.clone()))
            .unwrap_or_else(WorkspaceId::local);
        let checked = Arc::clone(bytes);
        let order = self
            .run_blocking(move || read(bundle, &checked, into))
            .await??;
        if there.map(|(_, known)| known) == Some(order.bundle)
            && self.shared.store.blob(order.bundle).await?.is_none()
        {
            return Err(Refused::Domain(Refusal::Conflict {
                reason: "task_pruned",
                message: format!(
                    "task `{}` was imported before, and its log has been pruned",
                    order.id
                ),
                status: None,
            }));
        }
        let named = [
            order.id.as_str(),
            order.session_id.as_str(),
            order.workspace_id.as_str(),
            order.receipt.id.as_str(),
        ];
        let named = named.map(Box::from).to_vec();
        let order = Order::ImportTask(Box::new(order));
        let (mut order, changes) = self.would_change(caller, order, named).await?;
        if let (true, Order::ImportTask(order)) = (changes, &mut order) {
            // What is large is stored before the turn, so that others need not wait for it.
            let small = |blob: &Blob| blob.bytes.len() <= IN_TURN_BYTES_MAX;
            let (small, large) = std::mem::take(&mut order.blobs)
                .into_iter()
                .partition(small);
            order.blobs = small;
            for blob in Vec::<Blob>::into_iter(large) {
                self.shared.store.put_blob(blob).await?;
            }
            // In pieces: another copy of it all would be as large again.
            let mut bundle = self.begin_upload();
            for piece in bytes.chunks(PIECE_BYTES) {
                bundle.push(piece).await?;
            }
            bundle.keep().await?;
        }
        Ok(order)
    }

    /// Says whether an order will change something, so that nothing is stored for one that will be refused. Refusing it
    /// is the turn's business, which knows its idempotency key.
    async fn would_change(
        &self,
        caller: &Caller,
        order: Order,
        named: Vec<Box<str>>,
    ) -> Result<(Order, bool), Refused> {
        let mut scratch = Scratch::default();
        let found = self.shared.store.documents(named).await?;
        for document in found.into_iter().flatten() {
            scratch.insert(document);
        }
        let command = Command {
            actor: caller.actor.clone(),
            idempotency_key: None,
            order,
        };
        let decided = decide(&scratch, &command);
        let changes = decided.is_ok_and(|decision| !decision.drafts.is_empty());
        Ok((command.order, changes))
    }
}

/// Checks a bundle and says what is taken over.
fn read(bundle: Bundle, bytes: &[u8], workspace_id: WorkspaceId) -> Result<ImportTask, Refusal> {
    if let Some((digest, _)) = bundle
        .blobs()
        .iter()
        .find(|(digest, bytes)| sha256(bytes) != **digest)
    {
        let message = format!("blob {digest} of the bundle does not match its digest");
        return Err(refuse("blob_mismatch", message));
    }
    let receipt = check_receipt(&bundle)?;
    check_log(&bundle, &receipt)?;
    let (submitted, message) = submitted_input(&bundle)?;
    let message = message.map(|message| hide_missing(message, &bundle));
    let started_at = own(&bundle, Kind::TaskStarted).map(|event| event.created_at);
    let failed = own(&bundle, Kind::TaskFailed);
    let failure =
        failed.and_then(|event| payload::TaskEnded::of(&event.payload).failure().cloned());
    let (first, last) = match (bundle.events().next(), bundle.events().last()) {
        (Some((_, first)), Some((_, last))) => (first.clone(), last.created_at),
        _ => return Err(refuse("log_invalid", "the log is empty".to_owned())),
    };
    let session_id = first.session_id.clone();
    let id = bundle.task_id().clone();
    let source = bundle
        .into_source()
        .map_err(|error| refuse("log_invalid", error.to_string()))?;
    let status = source.status;
    let ended = match status {
        Status::Completed => "SUCCEEDED",
        Status::Canceled => "CANCELED",
        Status::Failed
        | Status::Submitted
        | Status::Working
        | Status::InputRequired
        | Status::AuthRequired => "FAILED",
    };
    let stated = receipt.as_map().get("lifecycle");
    let stated = stated.and_then(|lifecycle| lifecycle.get("final_state")?.as_str());
    if stated != Some(ended) {
        let status = status.as_str();
        let stated = stated.unwrap_or("nothing");
        let message = format!("the log ends {status}, and the receipt says {stated}");
        return Err(refuse("receipt_mismatch", message));
    }
    // Replays tell again what the log told, and name what it named.
    let blobs = source.into_blobs().into_iter();
    let blobs = blobs.map(|(digest, bytes)| Blob { digest, bytes });
    let blobs = blobs.collect();
    let receipt_id = ReceiptId::parse(receipt.id())
        .map_err(|error| refuse("receipt_mismatch", error.to_string()))?;
    Ok(ImportTask {
        id,
        session_id: session_id
            .ok_or_else(|| refuse("log_invalid", "its events belong to no session".to_owned()))?,
        workspace_id,
        submitted,
        message,
        created_by: first.actor.unwrap_or_default(),
        status,
        failure: failure.unwrap_or_default(),
        submitted_at: first.created_at,
        started_at,
        ended_at: last,
        bundle: sha256(bytes),
        bundle_bytes: bytes.len() as u64,
        receipt: ImportedReceipt {
            id: receipt_id,
            hash: receipt.hash(),
            previous: receipt.previous_hash(),
            content: Blob::new(receipt.bytes()),
        },
        blobs,
    })
}

/// The receipt must be whole and about this Task.
fn check_receipt(bundle: &Bundle) -> Result<Receipt, Refusal> {
    let Some(receipt) = bundle.receipt() else {
        let message = "the bundle has no receipt, so that nothing proves its log";
        return Err(refuse("receipt_missing", message.to_owned()));
    };
    if receipt.stated_hash() != Some(receipt.hash()) {
        let message = format!(
            "the receipt hashes to {}, which is not what it states",
            receipt.hash()
        );
        return Err(refuse("receipt_mismatch", message));
    }
    let of = receipt.as_map().get("identifiers");
    let of = of.and_then(|identifiers| identifiers.get("task_id")?.as_str());
    for named in [Some(receipt.subject_id()), of] {
        if named != Some(bundle.task_id().as_str()) {
            let message = format!(
                "the receipt is for `{}`, the log for `{}`",
                named.unwrap_or_default(),
                bundle.task_id()
            );
            return Err(refuse("receipt_mismatch", message));
        }
    }
    Ok(receipt.clone())
}

/// The log must be the one that the receipt and the bundle speak of, whole, and of one Task and Session.
fn check_log(bundle: &Bundle, receipt: &Receipt) -> Result<(), Refusal> {
    let found = event_log_digest(bundle.events().map(|(bytes, _)| bytes));
    let materials = receipt.as_map().get("replay_input");
    let materials = materials.and_then(|input| input.get("materials")?.as_array());
    let stated = materials
        .into_iter()
        .flatten()
        .find(|material| material.get("kind").and_then(Value::as_str) == Some("event_log"))
        // The receipt of a replay names the log of its source.
        .filter(|_| !receipt.is_replay())
        .and_then(|material| Digest::parse(material.get("sha256")?.as_str()?).ok());
    if stated.is_none() && !receipt.is_replay() {
        let message = "the receipt does not say which log it proves";
        return Err(refuse("receipt_mismatch", message.to_owned()));
    }
    for stated in stated.into_iter().chain([bundle.log_sha256()]) {
        if stated != found {
            let message = format!("the log hashes to {found}, and the receipt says {stated}");
            return Err(refuse("log_mismatch", message));
        }
    }
    let mut events = bundle.events().map(|(_, event)| event);
    if events.any(Event::is_header) {
        let message = "part of the log was pruned before it was exported";
        return Err(refuse("log_pruned", message.to_owned()));
    }
    let mut sessions = bundle.events().map(|(_, event)| &event.session_id);
    let first = sessions.next();
    if sessions.any(|session| Some(session) != first) {
        let message = "it holds events of more than one session";
        return Err(refuse("log_invalid", message.to_owned()));
    }
    Ok(())
}

type Members = Map<String, Value>;

/// Returns what the Task was given: all that `task.submitted` says, and the Message when that was its input.
fn submitted_input(bundle: &Bundle) -> Result<(Members, Option<Members>), Refusal> {
    let whole = |event: &Event| -> Members {
        let mut members = Map::clone(&event.payload);
        if let Some(Value::Object(moved)) = members.remove(BLOB_MEMBER) {
            for name in moved.keys() {
                if let Some(value) = resolved(bundle, event, name) {
                    members.insert(name.clone(), value);
                }
            }
        }
        members
    };
    let Some((_, first)) = bundle.events().next() else {
        return Err(refuse("log_invalid", "the log is empty".to_owned()));
    };
    let submitted = whole(first);
    let moved = domain::blob_reference(&first.payload, "input").is_some();
    let message = match moved || submitted.contains_key("input") {
        true => None,
        false => bundle
            .events()
            .find(|(_, event)| event.kind() == Ok(Kind::UserMessage))
            .map(|(_, event)| whole(event)),
    };
    Ok((submitted, message))
}

/// Shows private parts of a Message whose content is not in the bundle without a digest: nothing is stored under it.
fn hide_missing(mut message: Members, bundle: &Bundle) -> Members {
    let parts = message.get_mut("parts").and_then(Value::as_array_mut);
    for part in parts.into_iter().flatten().filter_map(Value::as_object_mut) {
        let text = |name: &str| part.get(name).and_then(Value::as_str);
        let hidden = text("visibility").is_some_and(|word| word != Visibility::Public.as_str());
        let digest = text("sha256").and_then(|text| Digest::parse(text).ok());
        if hidden && digest.is_some_and(|digest| !bundle.blobs().contains_key(&digest)) {
            part.remove("sha256");
        }
    }
    message
}

/// Returns the event of a kind that is the Task's own, not one that a replay tells again.
fn own(bundle: &Bundle, kind: Kind) -> Option<&Event> {
    let mut events = bundle.events().map(|(_, event)| event);
    events.find(|event| event.kind() == Ok(kind) && event.replay.is_none())
}

fn refuse(reason: &'static str, message: String) -> Refusal {
    Refusal::Policy { reason, message }
}
