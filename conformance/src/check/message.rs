//! Messages and their parts: AP-MSG, AP-PART.

use serde_json::{Value, json};

use crate::json::{at, show, text};
use crate::miss::{Checked, Miss, need};
use crate::registry::{Row, row};
use crate::scenario::{artifact_body, message};
use crate::wire::Wire;

pub(crate) const ROWS: &[Row] = &[
    row!("AP-MSG-01", M, "a message has `role`, ordered `parts` and `created_at`", Now required),
    row!("AP-MSG-02", M, "an append carries `message`", Now body),
    row!("AP-PART-01", M, "every part has `type` and `visibility`", Now common),
    row!("AP-PART-02", M, "each part type has its members", Now types),
    row!("AP-PART-03", S, "an unknown part type is kept", Now unknown),
];

async fn required(wire: &Wire) -> Checked {
    let session = wire.session().await?;
    let path = format!("/v1/sessions/{session}/messages");
    for role in ["user", "assistant", "system", "tool", "agent"] {
        let parts = json!([{"type": "text", "text": "a", "visibility": "public"}, {"type": "text", "text": "b", "visibility": "public"}]);
        let made = wire
            .post(&path, &json!({"message": {"role": role, "parts": parts}}))
            .send()
            .await?
            .value_of(&[201])?;
        let holds = text(&made, "role") == role
            && text(&made, "parts.0.text") == "a"
            && text(&made, "parts.1.text") == "b"
            && !text(&made, "created_at").is_empty();
        need(
            holds,
            format!("role `{role}`, two parts in order, `created_at`"),
            show(&made),
        )?;
        let read = wire
            .get(format!("/v1/messages/{}", text(&made, "id")))
            .send()
            .await?
            .value_of(&[200])?;
        need(
            read == made,
            format!("the same message: {made}"),
            show(&read),
        )?;
    }
    let strange = json!({"message": {"role": "nobody", "parts": []}});
    wire.post(&path, &strange)
        .send()
        .await?
        .refused(400, "invalid_request")
        .map(drop)
}

async fn body(wire: &Wire) -> Checked {
    let session = wire.session().await?;
    let path = format!("/v1/sessions/{session}/messages");
    let wrapped = json!({"message": {"role": "user", "parts": [], "metadata": {"a": 1}}});
    let made = wire.post(&path, &wrapped).send().await?;
    need(
        (200..300).contains(&made.status),
        "the wrapped form: accepted",
        made.found(),
    )?;
    need(
        at(&made.value()?, "metadata.a") == 1,
        "`metadata` of the message",
        made.found(),
    )?;
    for bad in [
        json!({}),
        json!({"metadata": {}}),
        json!({"message": "hello"}),
    ] {
        wire.post(&path, &bad)
            .send()
            .await?
            .refused(400, "invalid_request")?;
    }
    Ok(())
}

async fn append(wire: &Wire, session: &str, part: &Value) -> Result<crate::wire::Answer, Miss> {
    let body = json!({"message": {"role": "user", "parts": [part]}});
    wire.post(format!("/v1/sessions/{session}/messages"), &body)
        .send()
        .await
}

async fn common(wire: &Wire) -> Checked {
    let session = wire.session().await?;
    for visibility in ["public", "internal", "receipt_only"] {
        let part = json!({"type": "text", "text": "hello", "visibility": visibility});
        let made = append(wire, &session, &part).await?;
        need(
            (200..300).contains(&made.status),
            format!("visibility `{visibility}`: accepted"),
            made.found(),
        )?;
        let read = wire
            .get(format!("/v1/messages/{}", text(&made.value()?, "id")))
            .send()
            .await?
            .value_of(&[200])?;
        let holds = text(&read, "parts.0.type") == "text"
            && text(&read, "parts.0.visibility") == visibility;
        need(
            holds,
            format!("a part of type `text` and visibility `{visibility}`"),
            show(at(&read, "parts")),
        )?;
    }
    let strange = json!({"type": "text", "text": "hello", "visibility": "secret"});
    append(wire, &session, &strange)
        .await?
        .refused(400, "invalid_request")?;
    let untyped = json!({"text": "hello", "visibility": "public"});
    append(wire, &session, &untyped)
        .await?
        .refused(400, "invalid_request")
        .map(drop)
}

async fn types(wire: &Wire) -> Checked {
    let session = wire.session().await?;
    let artifact = wire.artifact(&artifact_body(&session)).await?;
    let artifact = text(&artifact, "id");
    let parts = [
        json!({"type": "text", "text": "hello"}),
        json!({"type": "json", "value": {"a": 1}}),
        json!({"type": "tool_call", "tool_call_id": "call_1", "name": "look", "input": {"at": "sky"}}),
        json!({"type": "tool_result", "tool_call_id": "call_1", "output": "blue", "status": "ok"}),
        json!({"type": "artifact_ref", "artifact_id": artifact}),
        json!({"type": "file_ref", "uri": "harn://conformance/file", "mime_type": "text/plain"}),
        json!({"type": "image_ref", "artifact_id": artifact, "mime_type": "image/png"}),
    ];
    for part in parts {
        let mut part = part;
        let Some(members) = part.as_object_mut() else {
            continue;
        };
        let names: Vec<String> = members
            .keys()
            .filter(|name| *name != "type")
            .cloned()
            .collect();
        members.insert("visibility".to_owned(), json!("public"));
        let made = append(wire, &session, &part).await?;
        need(
            (200..300).contains(&made.status),
            format!("part {part}: accepted"),
            made.found(),
        )?;
        let value = made.value()?;
        need(
            at(&value, "parts.0") == &part,
            format!("part {part}"),
            show(at(&value, "parts.0")),
        )?;
        for name in names {
            let mut broken = part.clone();
            if let Some(members) = broken.as_object_mut() {
                members.remove(&name);
            }
            append(wire, &session, &broken)
                .await?
                .refused(400, "invalid_request")?;
        }
    }
    let strange = json!({"type": "tool_result", "tool_call_id": "c", "output": "", "status": "maybe", "visibility": "public"});
    append(wire, &session, &strange)
        .await?
        .refused(400, "invalid_request")
        .map(drop)
}

async fn unknown(wire: &Wire) -> Checked {
    let session = wire.session().await?;
    let part = json!({"type": "x_conformance", "visibility": "public", "depth": {"a": [1, 2]}});
    let made = append(wire, &session, &part).await?;
    need(
        (200..300).contains(&made.status),
        "an unknown part type: accepted",
        made.found(),
    )?;
    let read = wire
        .get(format!("/v1/messages/{}", text(&made.value()?, "id")))
        .send()
        .await?
        .value_of(&[200])?;
    need(
        at(&read, "parts.0") == &part,
        format!("part {part}"),
        show(at(&read, "parts.0")),
    )?;
    let plain = message("after it").clone();
    let next = wire
        .post(
            format!("/v1/sessions/{session}/messages"),
            &json!({"message": plain}),
        )
        .send()
        .await?;
    need(
        (200..300).contains(&next.status),
        "further messages: accepted",
        next.found(),
    )
}
