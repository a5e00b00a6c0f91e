//! Receipts: reading, verifying, proving; sealed heads of the log and the signatures of witnesses; trust records.

use axum::http::{HeaderName, header};
use axum::response::{IntoResponse, Response};
use canon::{Integers, Value};
use domain::{Position, ReceiptCheck, ResourceKind, State};
use engine::port::Clock;
use engine::{Filters, ListRequest, ReceiptForm, Refused, Request};
use receipts::{Receipt, cbor};
use wire::Cursor;
use wire::receipt::{self as wired, MEDIA_TYPE, MEDIA_TYPE_CBOR};

use super::{Routes, write};
use crate::call::{Call, json_bytes, ok};
use crate::failure::{Failure, Reply};
use crate::world::SystemClock;

pub(super) fn routes(routes: Routes) -> Routes {
    routes
        .get("/v1/tasks/{task_id}/receipts", list_of_task)
        .get("/v1/receipts/{receipt_id}", read)
        .post("/v1/receipts/{receipt_id}/verify", verify)
        .post("/v1/receipts/verify", verify_foreign)
        .get("/v1/receipts/{receipt_id}/proof", proof)
        .get("/v1/receipt-batches", batches)
        .get("/v1/receipt-batches/consistency", consistency)
        .get("/v1/receipt-batches/{batch_id}", batch)
        .post("/v1/receipt-batches/{batch_id}/cosignatures", write)
        .get("/v1/sessions/{session_id}/trust-chain", trust_chain)
}

fn superset(form: &ReceiptForm) -> Value {
    wired::receipt(&form.view, form.bytes.as_deref())
}

async fn list_of_task(call: Call) -> Reply {
    let request = ListRequest {
        kind: ResourceKind::Receipt,
        filters: Filters {
            task_id: Some(call.param("task_id").to_owned()),
            ..Filters::default()
        },
        after: Position(call.cursor()?.0),
        limit: call.limit()?,
    };
    // The Task stands in the path: an unknown one is no wrong parameter.
    call.must_see(ResourceKind::Task, "task_id").await?;
    let engine = &call.app.engine;
    let page = engine.task_receipts(&call.caller, request).await?;
    let forms = engine.receipt_forms(page.views).await;
    let data = forms.iter().map(superset).collect();
    let next = page.next.map(|position| Cursor(position.0));
    Ok(ok(&wire::list(data, next)))
}

/// In which form a receipt is wanted.
enum Form {
    Superset,
    Bare,
    Cbor,
}

fn wanted(call: &Call) -> Result<Form, Failure> {
    let accept = call.header(header::ACCEPT.as_str()).unwrap_or_default();
    let accepts = |media_type: &str| {
        accept.split(',').any(|line| {
            let name = line.split(';').next().unwrap_or_default().trim();
            name.eq_ignore_ascii_case(media_type)
        })
    };
    match call.query("view")? {
        Some("wire") | None if accepts(MEDIA_TYPE_CBOR) => Ok(Form::Cbor),
        Some("wire") => Ok(Form::Bare),
        None if accepts(MEDIA_TYPE) => Ok(Form::Bare),
        None => Ok(Form::Superset),
        Some(_) => Err(Failure::invalid("view", "`view` must be `wire` or absent")),
    }
}

async fn read(call: Call) -> Reply {
    let wanted = wanted(&call)?;
    let engine = &call.app.engine;
    let form = engine
        .receipt(&call.caller, call.param("receipt_id"))
        .await?;
    let lost = Refused::ContentUnavailable { reason: "damaged" };
    let typed = |media_type: &str, bytes: Vec<u8>| -> Response {
        let media_type = format!("{media_type}; schema={}", wired::FORMAT);
        let headers: [(HeaderName, String); 2] = [
            (header::CONTENT_TYPE, media_type),
            (header::VARY, "accept".to_owned()),
        ];
        (headers, bytes).into_response()
    };
    match wanted {
        Form::Superset => Ok(([(header::VARY, "accept")], ok(&superset(&form))).into_response()),
        Form::Bare => Ok(typed(MEDIA_TYPE, form.bytes.ok_or(lost)?)),
        Form::Cbor => {
            let bytes = form.bytes.ok_or(lost.clone())?;
            let receipt = Receipt::read(&bytes).map_err(|_| lost)?;
            Ok(typed(MEDIA_TYPE_CBOR, cbor::write(&receipt)))
        }
    }
}

/// Reads `integrity_only`: a caller that wants to know whether a document is whole, and not who vouches for it.
fn integrity_only(call: &Call) -> Result<bool, Failure> {
    match call.query("integrity_only")? {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(_) => Err(Failure::invalid("integrity_only", "must be true or false")),
    }
}

/// Answers 200 for every receipt that is there, valid or not (A11).
async fn verify(mut call: Call) -> Reply {
    let body = call.json().await?;
    let request = call.decode(&body)?;
    if let Request::VerifyReceipt { id, check } = &request
        && !call.caller.may("receipts:write")
    {
        // Whoever may only read gets the verdict; nothing is written for it.
        call.idempotency(Value::Null)?;
        let engine = &call.app.engine;
        let (valid, reason, details) = engine.judge_receipt(&call.caller, id, check).await?;
        let (reason, at) = (Value::from(reason), SystemClock.now());
        let verdict = wired::verdict(Some(id.as_str()), valid, reason, details, at);
        return Ok(ok(&verdict));
    }
    let answer = call.dispatch(request, Value::Object(body)).await?;
    let event = answer.event.ok_or_else(|| {
        Failure::from(Refused::Internal {
            detail: "a verification without its event".to_owned(),
        })
    })?;
    Ok(ok(&wired::verification(
        call.param("receipt_id"),
        &event.payload,
        event.created_at,
    )))
}

/// Judges a receipt that somebody hands over. Nothing is recorded: it may be anybody's.
async fn verify_foreign(mut call: Call) -> Reply {
    let owned = |text: Option<&str>| text.map(str::to_owned);
    let check = ReceiptCheck {
        trust_anchor: owned(call.query("trust_anchor")?),
        at_time: owned(call.query("at_time")?),
        integrity_only: integrity_only(&call)?,
    };
    call.idempotency(Value::Null)?;
    let bytes = call.bytes(call.app.config.body_bytes_max).await?;
    let media_type = call
        .header(header::CONTENT_TYPE.as_str())
        .unwrap_or_default();
    let name = media_type.split(';').next().unwrap_or_default().trim();
    let bytes = if name.eq_ignore_ascii_case(MEDIA_TYPE_CBOR) {
        let receipt = cbor::read(&bytes).map_err(|error| {
            Failure::invalid("", format!("the body cannot be read as CBOR: {error}"))
        })?;
        receipt.bytes()
    } else {
        match canon::read_object(&bytes, Integers::Safe) {
            Ok(body) => canon::jcs(&Value::Object(wired::bare(body)?)),
            // What cannot be read is no receipt, and the verdict says so.
            Err(_) => bytes.to_vec(),
        }
    };
    let engine = &call.app.engine;
    let judged = engine.verify_foreign(&call.caller, &bytes, &check).await;
    let (valid, reason, details) = judged?;
    let id = Receipt::read(&bytes).ok();
    let id = id.as_ref().map(Receipt::id);
    let at = SystemClock.now();
    Ok(ok(&wired::verdict(
        id,
        valid,
        Value::from(reason),
        details,
        at,
    )))
}

async fn proof(call: Call) -> Reply {
    let id = call.param("receipt_id");
    let engine = &call.app.engine;
    let proof = engine.receipt_proof(&call.caller, id).await?;
    let checkpoint = engine.checkpoint_of(&proof.batch).await?;
    let shown = wired::Proof {
        receipt_id: id,
        receipt_hash: proof.receipt_hash,
        leaf_index: proof.leaf_index,
        batch_id: &proof.batch.id,
        tree_size: proof.size,
        root: proof.root,
        path: &proof.path,
        checkpoint: &checkpoint,
    };
    Ok(ok(&shown.render()))
}

async fn batches(call: Call) -> Reply {
    call.page(ResourceKind::Batch, Default::default()).await
}

async fn batch(call: Call) -> Reply {
    call.read(ResourceKind::Batch, "batch_id").await
}

/// Reads a head: its size, or the id of a batch.
async fn head(call: &Call, name: &str) -> Result<u64, Failure> {
    let Some(text) = call.query(name)? else {
        return Err(Failure::invalid(name, format!("`{name}` is required")));
    };
    if let Ok(size) = text.parse() {
        return Ok(size);
    }
    let engine = &call.app.engine;
    let view = engine.get(&call.caller, ResourceKind::Batch, text).await?;
    match &view.document.state {
        State::Batch(batch) => Ok(batch.size),
        _ => Err(Failure::not_found("receipt_batch")),
    }
}

async fn consistency(call: Call) -> Reply {
    let (from, to) = (head(&call, "from").await?, head(&call, "to").await?);
    let path = call.app.engine.prove_consistency(from, to).await?;
    Ok(ok(&wired::consistency(from, to, &path)))
}

async fn trust_chain(call: Call) -> Reply {
    let engine = &call.app.engine;
    let export = engine
        .trust_chain(&call.caller, call.param("session_id"))
        .await?;
    Ok(json_bytes(export))
}
