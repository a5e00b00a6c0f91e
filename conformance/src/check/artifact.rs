//! Artifacts: AP-ART.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::json::{at, show, text};
use crate::miss::{Checked, Miss, need, unseen};
use crate::raw::Request;
use crate::registry::{Check, Row, row};
use crate::scenario::artifact_body;
use crate::wire::{Answer, Wire};

pub(crate) const ROWS: &[Row] = &[
    row!("AP-ART-01", M, "an artifact has its required members", Now required),
    row!("AP-ART-02", M, "`sha256` is 64 hex digits without prefix", Now digest),
    row!("AP-ART-03", S, "large payloads become artifacts", = Check::Elsewhere("no built-in workflow makes a large tool output")),
    row!("AP-ART-04", M, "content comes back byte for byte with its media type", Now content),
    row!("AP-ART-05", M, "a body that is too large is refused", Now too_large),
];

async fn required(wire: &Wire) -> Checked {
    let session = wire.session().await?;
    let body = artifact_body(&session);
    let made = wire
        .post("/v1/artifacts", &body)
        .send()
        .await?
        .value_of(&[201])?;
    for member in ["kind", "mime_type", "uri", "visibility"] {
        need(
            at(&made, member) == at(&body, member),
            format!("`{member}` {}", at(&body, member)),
            show(&made),
        )?;
    }
    need(
        made.get("sha256").is_some_and(Value::is_null),
        "`sha256` null without bytes",
        show(at(&made, "sha256")),
    )?;
    for member in ["kind", "mime_type", "visibility"] {
        let mut broken = body.clone();
        if let Some(members) = broken.as_object_mut() {
            members.remove(member);
        }
        wire.post("/v1/artifacts", &broken)
            .send()
            .await?
            .refused(400, "invalid_request")?;
    }
    let mut strange = body;
    if let Some(members) = strange.as_object_mut() {
        members.insert("kind".to_owned(), json!("thing"));
    }
    wire.post("/v1/artifacts", &strange)
        .send()
        .await?
        .refused(400, "invalid_request")
        .map(drop)
}

async fn digest(wire: &Wire) -> Checked {
    let session = wire.session().await?;
    let hex = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
    for form in [hex.to_owned(), format!("sha256:{hex}")] {
        let mut body = artifact_body(&session);
        if let Some(members) = body.as_object_mut() {
            members.insert("sha256".to_owned(), json!(form));
        }
        let made = wire.post("/v1/artifacts", &body).send().await?;
        need(
            (200..300).contains(&made.status),
            format!("`sha256` `{form}`: accepted"),
            made.found(),
        )?;
        let made = made.value()?;
        let read = wire
            .get(format!("/v1/artifacts/{}", text(&made, "id")))
            .send()
            .await?
            .value_of(&[200])?;
        for artifact in [&made, &read] {
            need(
                text(artifact, "sha256") == hex,
                format!("`sha256` `{hex}`"),
                show(at(artifact, "sha256")),
            )?;
        }
    }
    Ok(())
}

async fn content(wire: &Wire) -> Checked {
    let session = wire.session().await?;
    let empty = wire.artifact(&artifact_body(&session)).await?;
    let answer = wire
        .get(format!("/v1/artifacts/{}/content", text(&empty, "id")))
        .send()
        .await?;
    let error = answer.refused(404, "resource_not_found")?;
    need(
        !text(&error, "details.reason").is_empty(),
        "`details.reason` when no bytes are stored",
        show(&error),
    )?;

    let body = json!({"kind": "file", "mime_type": "application/x-conformance", "visibility": "public", "session_id": session});
    let artifact = wire.artifact(&body).await?;
    let path = format!("/v1/artifacts/{}/content", text(&artifact, "id"));
    let bytes: Vec<u8> = (0..=255).cycle().take(3_000).collect();
    let put = wire
        .call(Method::PUT, &path)
        .bytes("application/x-conformance", bytes.clone())
        .send()
        .await?;
    if !(200..300).contains(&put.status) {
        return unseen(format!(
            "the server takes no bytes for an artifact: {}",
            put.found()
        ));
    }
    let read = wire
        .get(format!("/v1/artifacts/{}", text(&artifact, "id")))
        .send()
        .await?
        .value_of(&[200])?;
    let hex: String = Sha256::digest(&bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    // The form of the digest is AP-ART-02's matter.
    let told = text(&read, "sha256").trim_start_matches("sha256:");
    need(
        told == hex,
        format!("`sha256` `{hex}`"),
        show(at(&read, "sha256")),
    )?;
    let got = wire.get(&path).send().await?;
    got.want(&[200])?;
    need(
        got.body == bytes,
        "the bytes that were stored",
        format!("{} bytes, others", got.body.len()),
    )?;
    need(
        got.header("content-type")
            .starts_with("application/x-conformance"),
        "content type `application/x-conformance`",
        got.header("content-type"),
    )
}

async fn too_large(wire: &Wire) -> Checked {
    oversized(wire)
        .await?
        .refused(413, "payload_too_large")
        .map(drop)
}

/// Sends a body that claims to be huge until the server answers.
pub(crate) async fn oversized(wire: &Wire) -> Result<Answer, Miss> {
    const PIECE: usize = 256 * 1024;
    const PIECES: usize = 256;
    let request = Request::new("POST", "/v1/artifacts")
        .key(wire)
        .version()
        .header("Content-Type", "application/json")
        .header("Content-Length", "1099511627776");
    let mut exchange = request.open(wire).await?;
    let piece = vec![b' '; PIECE];
    let mut answered = exchange.answered(Duration::from_millis(300)).await;
    for _ in 0..PIECES {
        if answered || !exchange.push(&piece).await {
            break;
        }
        answered = exchange.answered(Duration::from_millis(1)).await;
    }
    if !answered && !exchange.answered(Duration::from_secs(2)).await {
        return unseen(format!(
            "no limit was met within {} MiB",
            (PIECE * PIECES) >> 20
        ));
    }
    exchange.head(Duration::from_secs(5)).await?;
    let body = exchange.body(Duration::from_secs(5), |_| false).await;
    Ok(exchange.answer(body))
}
