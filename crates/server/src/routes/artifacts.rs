//! Artifacts and their bytes.

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::IntoResponse;
use domain::{ArtifactId, Event, ResourceKind};
use engine::{Download, Refused};
use futures_util::stream;
use serde_json::json;

use super::{Routes, write};
use crate::call::{Call, json_bytes};
use crate::failure::Reply;

pub(super) fn routes(routes: Routes) -> Routes {
    routes
        .get("/v1/artifacts", list)
        .post("/v1/artifacts", write)
        .get("/v1/artifacts/{artifact_id}", read)
        .get("/v1/artifacts/{artifact_id}/content", download)
        .put("/v1/artifacts/{artifact_id}/content", upload)
}

async fn list(call: Call) -> Reply {
    let filters = call.filters(&["workspace_id", "session_id", "task_id"])?;
    call.narrowed_page(ResourceKind::Artifact, filters, &[], &[])
        .await
}

async fn read(call: Call) -> Reply {
    let id = call.param("artifact_id");
    let engine = &call.app.engine;
    // What the log itself holds is an Artifact for whoever follows a reference to it.
    if let Some(task) = id.strip_prefix("event_log_") {
        let bytes = engine.event_log_content(&call.caller, task).await?;
        let last = bytes
            .split(|byte| *byte == b'\n')
            .rfind(|line| !line.is_empty());
        let last = Event::parse(last.unwrap_or_default()).map_err(|error| Refused::Internal {
            detail: error.to_string(),
        })?;
        let shown = wire::recorded_artifact(id, "log", "application/jsonl", &last, &bytes);
        return Ok(json_bytes(canon::jcs(&shown)));
    }
    if engine.is_event_id(id) {
        let bytes = engine.event_content(&call.caller, id, None).await?;
        let event = engine.event(&call.caller, id).await?;
        let event = Event::parse(&event.bytes).map_err(|error| Refused::Internal {
            detail: error.to_string(),
        })?;
        let shown = wire::recorded_artifact(id, "other", "application/json", &event, &bytes);
        return Ok(json_bytes(canon::jcs(&shown)));
    }
    call.read(ResourceKind::Artifact, "artifact_id").await
}

async fn download(call: Call) -> Reply {
    let id = call.param("artifact_id");
    let engine = &call.app.engine;
    // The log of a finished Task is rendered from its events; nothing of it is stored twice.
    let (mime_type, bytes, body) = match id.strip_prefix("event_log_") {
        Some(task) => {
            let bytes = engine.event_log_content(&call.caller, task).await?;
            let (length, body) = call.whole(bytes).await?;
            ("application/jsonl".to_owned(), length, body)
        }
        // What an event keeps beside itself is named by the event.
        None if engine.is_event_id(id) => {
            let member = call.query("member")?;
            let bytes = engine.event_content(&call.caller, id, member).await?;
            let (length, body) = call.whole(bytes).await?;
            ("application/json".to_owned(), length, body)
        }
        None => {
            let (mime_type, mut content) = engine.artifact_content(&call.caller, id).await?;
            let length = content.bytes();
            // What is damaged from its beginning on, or short, is an error and no answer.
            let first = content.next().await?.unwrap_or_default();
            (mime_type, length, Body::from_stream(pieces(first, content)))
        }
    };
    let mime_type = HeaderValue::from_str(&mime_type)
        .ok()
        .filter(|_| is_media_type(&mime_type))
        .unwrap_or(HeaderValue::from_static("application/octet-stream"));
    // Whoever uploaded this chose its type: a browser must save it and not run it.
    let headers = [
        (header::CONTENT_TYPE, mime_type),
        (
            header::CONTENT_DISPOSITION,
            HeaderValue::from_static("attachment"),
        ),
        (
            header::X_CONTENT_TYPE_OPTIONS,
            HeaderValue::from_static("nosniff"),
        ),
        (
            header::CONTENT_SECURITY_POLICY,
            HeaderValue::from_static("sandbox"),
        ),
    ];
    Ok((headers, [(header::CONTENT_LENGTH, bytes)], body).into_response())
}

/// Sends content as its reader takes it. An error cuts the answer short of the length it stated.
fn pieces(
    first: Vec<u8>,
    content: Download,
) -> impl futures_util::Stream<Item = Result<Vec<u8>, Refused>> {
    stream::unfold(Some((Some(first), content)), |state| async {
        let (first, mut content) = state?;
        let piece = match first {
            Some(first) => Ok(Some(first)),
            None => content.next().await,
        };
        match piece {
            Ok(None) => None,
            Ok(Some(piece)) => Some((Ok(piece), Some((None, content)))),
            Err(refused) => {
                tracing::error!(%refused, "content was not sent completely");
                Some((Err(refused), None))
            }
        }
    })
}

async fn upload(mut call: Call) -> Reply {
    let id = call.id("artifact_id", ArtifactId::OBJECT, ArtifactId::parse)?;
    let length = call.header("content-length");
    let length = length.and_then(|text| text.parse().ok()).unwrap_or(1);
    let engine = &call.app.engine;
    engine.may_attach(&call.caller, &id, length).await?;
    let content = call.upload(call.app.config.artifact_bytes_max).await?;
    // The key stands for these bytes: their digest is the body to compare.
    let (sha256, _) = content.arrived();
    let idempotency = call.idempotency(json!({"sha256": sha256}))?;
    let engine = &call.app.engine;
    let answer = engine
        .attach(&call.caller, &id, content, idempotency)
        .await?;
    Ok(call.shown(&answer))
}

/// True for `type/subtype`, with or without parameters. Other words are kept, but are no header.
fn is_media_type(text: &str) -> bool {
    let token = |part: &str| {
        !part.is_empty()
            && part
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"!#$&^_.+-".contains(&byte))
    };
    let essence = text.split(';').next().unwrap_or_default().trim_end();
    essence
        .split_once('/')
        .is_some_and(|(kind, subtype)| token(kind) && token(subtype))
}
