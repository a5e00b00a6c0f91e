//! Artifacts and their bytes.

use axum::http::{HeaderValue, header};
use axum::response::IntoResponse;
use domain::{ArtifactId, ResourceKind};
use engine::Request;
use serde_json::json;

use super::{Routes, write};
use crate::call::Call;
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
    call.read(ResourceKind::Artifact, "artifact_id").await
}

async fn download(call: Call) -> Reply {
    let id = call.param("artifact_id");
    let engine = &call.app.engine;
    // The log of a finished Task is rendered from its events; nothing of it is stored twice.
    let (mime_type, bytes) = match id.strip_prefix("event_log_") {
        Some(task) => (
            "application/jsonl".to_owned(),
            engine.event_log_content(&call.caller, task).await?,
        ),
        // What an event keeps beside itself is named by the event.
        None if engine.is_event_id(id) => {
            let member = call.query("member")?;
            let bytes = engine.event_content(&call.caller, id, member).await?;
            ("application/json".to_owned(), bytes)
        }
        None => engine.artifact_content(&call.caller, id).await?,
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
    Ok((headers, bytes).into_response())
}

async fn upload(mut call: Call) -> Reply {
    let id = call.id("artifact_id", ArtifactId::OBJECT, ArtifactId::parse)?;
    let bytes = call.bytes(call.app.config.artifact_bytes_max).await?;
    // The key stands for these bytes: their digest is the body to compare.
    let body = json!({"sha256": canon::sha256(&bytes)});
    let request = Request::UploadContent {
        id,
        bytes: bytes.to_vec(),
    };
    let answer = call.dispatch(request, body).await?;
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
