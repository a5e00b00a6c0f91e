//! Privacy: AP-PRIV.

use serde_json::{Value, json};

use crate::json::{at, show, text};
use crate::miss::{Checked, Miss, all_but, need};
use crate::registry::{Check, Row, row};
use crate::wire::Wire;

pub(crate) const ROWS: &[Row] = &[
    row!("AP-PRIV-01", M, "public, internal and receipt-only parts are told apart", Now visibility),
    row!("AP-PRIV-02", N, "what must stay hidden is in no output", Now canaries),
    row!("AP-PRIV-03", M, "redaction leaves a descriptor", Now descriptor),
    row!("AP-PRIV-04", N, "secrets are not published as plain hashes", = Check::Claimed("replay")),
];

/// Appends a message with a part of each visibility; the words of the receipt-only part are returned.
async fn planted(wire: &Wire) -> Result<(String, Value, String), Miss> {
    let session = wire.session().await?;
    let canary = wire.fresh("canary");
    let part = |words: &str, visibility: &str| json!({"type": "text", "text": words, "visibility": visibility});
    let parts = [
        part("for all", "public"),
        part("for insiders", "internal"),
        part(&canary, "receipt_only"),
    ];
    let body = json!({"message": {"role": "user", "parts": parts}});
    let made = wire
        .post(format!("/v1/sessions/{session}/messages"), &body)
        .made("append hidden parts")
        .await?;
    Ok((session, made, canary))
}

async fn visibility(wire: &Wire) -> Checked {
    let (_, made, canary) = planted(wire).await?;
    let read = wire
        .get(format!("/v1/messages/{}", text(&made, "id")))
        .send()
        .await?
        .value_of(&[200])?;
    let words = ["public", "internal", "receipt_only"];
    for (index, visibility) in words.iter().enumerate() {
        let found = at(&read, &format!("parts.{index}.visibility"));
        need(
            found == *visibility,
            format!("part {index} `{visibility}`"),
            show(found),
        )?;
    }
    need(
        text(&read, "parts.0.text") == "for all",
        "the public part in full",
        show(at(&read, "parts.0")),
    )?;
    let hidden = at(&read, "parts.2");
    let holds =
        at(hidden, "redacted") == &Value::Bool(true) && !hidden.to_string().contains(&canary);
    need(holds, "the receipt-only part as a descriptor", show(hidden))?;
    all_but("a reader without the internal permission")
}

async fn canaries(wire: &Wire) -> Checked {
    let (session, made, canary) = planted(wire).await?;
    wire.completed_in(&session).await?;
    for path in [
        format!("/v1/messages/{}", text(&made, "id")),
        format!("/v1/sessions/{session}/messages"),
        format!("/v1/sessions/{session}"),
        format!("/v1/sessions/{session}/events"),
        format!("/v1/events?session_id={session}"),
        format!("/v1/sessions/{session}/tasks"),
    ] {
        let answer = wire.get(path).send().await?;
        let body = answer.body_text();
        for (what, secret) in [
            ("receipt-only text", &canary),
            ("the credential", &wire.key),
        ] {
            need(
                !body.contains(secret.as_str()),
                format!("{} without {what}", answer.label),
                answer.found(),
            )?;
        }
    }
    all_but("reasoning, private keys and OAuth credentials: no built-in workflow meets them")
}

async fn descriptor(wire: &Wire) -> Checked {
    let (_, made, _) = planted(wire).await?;
    let read = wire
        .get(format!("/v1/messages/{}", text(&made, "id")))
        .send()
        .await?
        .value_of(&[200])?;
    let part = at(&read, "parts.2");
    let holds = text(part, "type") == "text"
        && text(part, "visibility") == "receipt_only"
        && at(part, "redacted") == &Value::Bool(true)
        && at(part, "reason").is_string();
    need(
        holds,
        "`{type, visibility, redacted: true, reason}`",
        show(part),
    )?;
    all_but("redacted artifacts and events: no path of the protocol redacts")
}
