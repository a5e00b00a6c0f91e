//! Authentication and authorization: AP-AUTH, AP-AUTHZ. Tokens of an issuer (AP-OAUTH) are listed in `beyond`.

use serde_json::{Value, json};

use super::workspace::workspace_of;
use crate::json::{at, show, text};
use crate::miss::{Checked, Miss, all_but, need, unseen};
use crate::registry::{ELSEWHERE, Row, row};
use crate::scenario::{message, unknown_like};
use crate::wire::{Answer, Wire};

pub(crate) const ROWS: &[Row] = &[
    row!("AP-AUTH-01", M, "an API key is sent as a bearer token", Now bearer),
    row!("AP-AUTH-02", M, "a key is bound to an actor and a policy", Now actor),
    row!("AP-AUTH-03", N, "keys appear in no output", Now echo),
    row!("AP-AUTH-04", S, "keys are stored hashed and compared in constant time", = ELSEWHERE),
    row!("AP-AUTHZ-01", M, "actor and workspace are evaluated for every request", Now refusals),
    row!("AP-AUTHZ-02", N, "a refusal does not show what exists", Now hidden),
    row!("AP-AUTHZ-03", M, "streams decide like REST", Now streams),
];

async fn bearer(wire: &Wire) -> Checked {
    wire.get("/v1/tasks").send().await?.want(&[200])?;
    let refused = |answer: Answer| -> Checked {
        let error = answer.refused(401, "unauthenticated")?;
        need(
            text(&error, "type") == "auth_error",
            "type `auth_error`",
            show(&error),
        )
    };
    refused(wire.get("/v1/tasks").anonymous().send().await?)?;
    refused(
        wire.get("/v1/tasks")
            .anonymous()
            .header("Authorization", format!("Basic {}", wire.key))
            .send()
            .await?,
    )?;
    refused(
        wire.get("/v1/tasks")
            .anonymous()
            .header("Authorization", wire.key.clone())
            .send()
            .await?,
    )?;
    refused(
        wire.get("/v1/tasks")
            .key(&wire.fresh("unknown"))
            .send()
            .await?,
    )
}

/// What the second key turned out to be.
enum Other {
    ReadOnly,
    Writer { created_by: String },
}

async fn other_kind(wire: &Wire) -> Result<Other, Miss> {
    let other = wire.other()?;
    let Some(workspace) = workspace_of(wire, other).await else {
        return unseen("the other key sees no workspace");
    };
    let made = wire
        .post("/v1/sessions", &json!({"workspace_id": workspace}))
        .key(other)
        .send()
        .await?;
    if made.status == 403 {
        return Ok(Other::ReadOnly);
    }
    let session = made
        .value_of(&[200, 201])
        .map_err(|miss| miss.while_preparing("make a session with the other key"))?;
    let body = json!({"input": message("from the other")});
    let task = wire
        .post(
            format!("/v1/sessions/{}/tasks", text(&session, "id")),
            &body,
        )
        .key(other);
    let task = task.made("submit a task with the other key").await?;
    Ok(Other::Writer {
        created_by: text(&task, "created_by").to_owned(),
    })
}

async fn actor(wire: &Wire) -> Checked {
    match other_kind(wire).await? {
        Other::ReadOnly => all_but("another `created_by`: the other key may only read"),
        Other::Writer { created_by } => {
            let session = wire.session().await?;
            let task = wire.submit(&session, None).await?;
            let mine = text(&task, "created_by");
            need(
                !mine.is_empty() && mine != created_by,
                "different `created_by` for two keys",
                format!("`{mine}` and `{created_by}`"),
            )?;
            all_but("403 on a write: the other key may write")
        }
    }
}

async fn echo(wire: &Wire) -> Checked {
    let wrong = wire.fresh("presented");
    let absent = |answer: &Answer, secret: &str| -> Checked {
        let headers = format!("{:?}", answer.headers);
        let holds = !answer.body_text().contains(secret) && !headers.contains(secret);
        need(
            holds,
            format!("{}: no credential in the answer", answer.label),
            answer.found().replace(secret, "<presented>"),
        )
    };
    let refused = wire.get("/v1/tasks").key(&wrong).send().await?;
    absent(&refused, &wrong)?;
    let session = wire.session().await?;
    let path = format!("/v1/sessions/{session}/tasks");
    absent(
        &wire.post(&path, &json!({"input": 1})).send().await?,
        &wire.key,
    )?;
    absent(
        &wire
            .get(format!("/v1/tasks/{}", unknown_like(&session)))
            .send()
            .await?,
        &wire.key,
    )?;

    let told = wire
        .append(&session, &format!("my key is {}", wire.key))
        .await;
    told.map_err(|miss| miss.while_preparing("send a message with a key in it"))?;
    for place in [
        format!("/v1/sessions/{session}/events"),
        format!("/v1/events?session_id={session}"),
    ] {
        absent(&wire.get(place).send().await?, &wire.key)?;
    }
    all_but("logs, and receipts when there are none")
}

async fn refusals(wire: &Wire) -> Checked {
    let other = wire.other()?;
    let workspace = wire.workspace().await?;
    let workspace = text(&workspace, "id");
    let session = wire.session_in(workspace).await?;
    let limited = wire
        .get(format!("/v1/workspaces/{workspace}"))
        .key(other)
        .send()
        .await?
        .status
        != 200;
    let read_only = matches!(other_kind(wire).await?, Other::ReadOnly);
    let mut rules = Vec::new();
    if read_only && let Some(own) = workspace_of(wire, other).await {
        let answer = wire
            .post("/v1/sessions", &json!({"workspace_id": own}))
            .key(other)
            .send()
            .await?;
        rules.push(text(&answer.refused(403, "permission_denied")?, "details.rule").to_owned());
    }
    if limited {
        let body = json!({"message": message("from outside")});
        let answer = wire
            .post(format!("/v1/sessions/{session}/messages"), &body)
            .key(other)
            .send()
            .await?;
        need(
            [403, 404].contains(&answer.status),
            "403 or 404 in a foreign workspace",
            answer.found(),
        )?;
        let unchanged = wire.messages(&session).await?.is_empty();
        need(unchanged, "nothing written by a stranger", "a message")?;
    }
    need(
        !rules.iter().any(String::is_empty),
        "`details.rule` in a refusal",
        format!("{rules:?}"),
    )?;
    match (read_only, limited) {
        (false, false) => unseen("the other key may do everything that this one may"),
        (true, false) => all_but("membership, persona, tool, vault, quota and approval rules"),
        (false, true) => {
            all_but("actor permission, persona, tool, vault, quota and approval rules")
        }
        (true, true) => all_but("persona, tool, vault, quota and approval rules"),
    }
}

/// Makes things in a workspace that the other key must not see; ends the check when it may see all.
async fn foreign(wire: &Wire) -> Result<(Value, String), Miss> {
    let other = wire.other()?;
    let workspace = wire.workspace().await?;
    let id = text(&workspace, "id");
    if wire
        .get(format!("/v1/workspaces/{id}"))
        .key(other)
        .send()
        .await?
        .status
        == 200
    {
        return unseen("the other key is not limited to another workspace");
    }
    let session = wire.session_in(id).await?;
    let task = wire.completed_in(&session).await?;
    Ok((task, session))
}

async fn hidden(wire: &Wire) -> Checked {
    let (task, session) = foreign(wire).await?;
    let other = wire.other()?;
    let message = wire.append(&session, "hidden").await?;
    let event = wire
        .task_events(&task)
        .await?
        .first()
        .map(|event| text(event, "id").to_owned())
        .unwrap_or_default();
    for (list, id) in [
        ("/v1/sessions", session.as_str()),
        ("/v1/tasks", text(&task, "id")),
        ("/v1/messages", text(&message, "id")),
        ("/v1/events", event.as_str()),
    ] {
        let unknown = unknown_like(id);
        let plain = async |id: &str| {
            let answer = wire.get(format!("{list}/{id}")).key(other).send().await?;
            answer.refused(404, "resource_not_found")?;
            // The id that was asked for is no news to the one who asked.
            let body = answer.body_text().replace(id, "<id>");
            let mut body: Value = serde_json::from_str(&body).unwrap_or_default();
            if let Some(error) = body.get_mut("error").and_then(Value::as_object_mut) {
                error.remove("request_id");
            }
            Ok::<_, Miss>(body)
        };
        let (foreign, nothing) = (plain(id).await?, plain(&unknown).await?);
        need(
            foreign == nothing,
            format!("{list}: {nothing}"),
            show(&foreign),
        )?;
    }
    Ok(())
}

async fn streams(wire: &Wire) -> Checked {
    let (task, session) = foreign(wire).await?;
    let other = wire.other()?;
    let task = text(&task, "id");
    for (read, stream) in [
        (
            format!("/v1/sessions/{session}"),
            format!("/v1/sessions/{session}/events/stream"),
        ),
        (
            format!("/v1/tasks/{task}"),
            format!("/v1/tasks/{task}/stream"),
        ),
    ] {
        let rest = wire.get(read).key(other).send().await?;
        let sse = wire.get(&stream).key(other).stream().await?;
        need(
            sse.status == rest.status,
            format!("{stream}: {} as over REST", rest.status),
            sse.status.to_string(),
        )?;
    }
    let anonymous = wire
        .get(format!("/v1/tasks/{task}/stream"))
        .anonymous()
        .stream()
        .await?;
    need(
        anonymous.status == 401,
        "a stream without a credential: 401",
        anonymous.status.to_string(),
    )?;
    let events = wire
        .get(format!("/v1/events?session_id={session}"))
        .key(other)
        .send()
        .await?;
    let leaked = events.value().is_ok_and(|list| {
        at(&list, "data")
            .as_array()
            .is_some_and(|data| !data.is_empty())
    });
    need(!leaked, "no events of a foreign session", events.found())?;
    all_but("WebSocket, and a key that is revoked while its stream is open")
}
