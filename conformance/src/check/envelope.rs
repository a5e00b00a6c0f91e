//! The common envelope: AP-ENV.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::json::{at, data, ids, lacking, show, text};
use crate::miss::{Checked, Miss, fail, need, unseen};
use crate::registry::{Row, row};
use crate::scenario::{artifact_body, message};
use crate::wire::Wire;

pub(crate) const ROWS: &[Row] = &[
    row!("AP-ENV-01", M, "every resource has the five common members", Now members),
    row!("AP-ENV-02", M, "`object` names the kind in lower snake case", Now object),
    row!("AP-ENV-03", N, "an id is never used again", Restart never_again),
    row!("AP-ENV-04", M, "times are RFC 3339 in UTC", Last times),
    row!("AP-ENV-05", O, "unknown members stay out, `metadata` comes back unchanged", Now extensions),
    row!("AP-ENV-06", M, "lists have `object`, `data` and `page`, and pages join", Now lists),
    row!("AP-ENV-07", M, "`limit` is 1 to 200", Now limit),
    row!("AP-ENV-08", M, "ids are URL-safe and belong to one kind", Last safe_ids),
    row!("AP-ENV-09", S, "the canceled state is spelt `CANCELED`", Last spelling),
];

/// One resource of a kind, as read back from the server.
pub(crate) struct Specimen {
    pub(crate) kind: &'static str,
    pub(crate) value: Value,
}

/// Reads one resource of each kind that the server can show. Kinds it cannot make are left out.
pub(crate) async fn specimens(wire: &Wire) -> Result<Vec<Specimen>, Miss> {
    let workspace = wire.workspace().await;
    let home = workspace
        .as_ref()
        .map_or(wire.home.as_str(), |made| text(made, "id"))
        .to_owned();
    let session = wire.session_in(&home).await?;
    let message = wire.append(&session, "a specimen").await?;
    let task = wire.completed_in(&session).await?;
    let (task_id, outcome_id) = (text(&task, "id"), text(&task, "outcome_id"));
    let mut paths = vec![
        ("session", format!("/v1/sessions/{session}")),
        ("message", format!("/v1/messages/{}", text(&message, "id"))),
        ("task", format!("/v1/tasks/{task_id}")),
    ];
    if let Ok(workspace) = &workspace {
        paths.push((
            "workspace",
            format!("/v1/workspaces/{}", text(workspace, "id")),
        ));
    }
    if let Some(event) = wire.task_events(&task).await?.first() {
        paths.push(("event", format!("/v1/events/{}", text(event, "id"))));
    }
    if !outcome_id.is_empty() {
        paths.push(("outcome", format!("/v1/outcomes/{outcome_id}")));
    }
    let vault = json!({"workspace_id": home, "provider": "conformance", "capabilities": ["read"]});
    let memory =
        json!({"scope": "session", "owner_id": session, "content": "a specimen", "provenance": {}});
    for (kind, one, make, body) in [
        (
            "artifact",
            "/v1/artifacts",
            "/v1/artifacts".to_owned(),
            artifact_body(&session),
        ),
        (
            "branch",
            "/v1/branches",
            format!("/v1/sessions/{session}/branches"),
            json!({"kind": "session", "base_ref": "main"}),
        ),
        ("vault", "/v1/vaults", "/v1/vaults".to_owned(), vault),
        ("memory", "/v1/memories", "/v1/memories".to_owned(), memory),
    ] {
        if let Ok(made) = wire.post(make, &body).made("make a specimen").await {
            paths.push((kind, format!("{one}/{}", text(&made, "id"))));
        }
    }
    for (kind, list) in [
        ("skill", "/v1/skills"),
        ("connector", "/v1/connectors"),
        ("persona", "/v1/personas"),
        ("quota", "/v1/quotas"),
    ] {
        if let Ok(found) = wire.get(list).made("list specimens").await
            && let Some(first) = data(&found).first()
        {
            paths.push((kind, format!("{list}/{}", text(first, "id"))));
        }
    }
    let mut found = Vec::new();
    for (kind, path) in paths {
        found.push(Specimen {
            kind,
            value: wire.get(path).made("read a specimen").await?,
        });
    }
    if let Ok(waiting) = wire.reach_in(&session, "approve", "AUTH_REQUIRED").await
        && let Ok(value) = wire.pending(&waiting).await
    {
        found.push(Specimen {
            kind: "permission_request",
            value,
        });
    }
    Ok(found)
}

async fn members(wire: &Wire) -> Checked {
    for Specimen { kind, value } in specimens(wire).await? {
        let missing = lacking(
            &value,
            &["id", "object", "created_at", "updated_at", "metadata"],
        );
        need(
            missing.is_empty(),
            format!("a {kind} with the five common members"),
            format!("no {}", missing.join(", ")),
        )?;
        let metadata = at(&value, "metadata");
        need(
            metadata.is_object(),
            format!("a {kind} whose `metadata` is an object"),
            show(metadata),
        )?;
    }
    Ok(())
}

async fn object(wire: &Wire) -> Checked {
    for Specimen { kind, value } in specimens(wire).await? {
        need(
            text(&value, "object") == kind,
            format!("`object` `{kind}`"),
            show(at(&value, "object")),
        )?;
    }
    let card = wire.get("/v1/agent-card").made("read the card").await?;
    let word = at(&card, "object");
    need(
        word == "harn_agent_card" || word == "agent_card",
        "`object` `harn_agent_card` of the card",
        show(word),
    )
}

async fn never_again(wire: &Wire) -> Checked {
    wire.can_restart()?;
    let before = some_ids(wire).await?;
    let memory =
        json!({"scope": "workspace", "owner_id": wire.home, "content": "first", "provenance": {}});
    let mut seen = before.clone();
    let mut memories = true;
    for _ in 0..2 {
        match wire
            .post("/v1/memories", &memory)
            .made("make a memory")
            .await
        {
            Ok(made) => {
                let id = text(&made, "id").to_owned();
                let path = format!("/v1/memories/{id}");
                wire.call(reqwest::Method::DELETE, path)
                    .send()
                    .await
                    .map_err(|miss| miss.while_preparing("delete a memory"))?;
                need(
                    seen.insert(id.clone()),
                    "a new id after a deletion",
                    format!("`{id}` again"),
                )?;
            }
            Err(_) => memories = false,
        }
    }
    wire.restart().await?;
    for id in some_ids(wire).await? {
        need(
            !seen.contains(&id),
            "new ids after a restart",
            format!("`{id}` again"),
        )?;
    }
    if memories {
        Ok(())
    } else {
        crate::miss::all_but("a deleted memory: the server makes none")
    }
}

async fn some_ids(wire: &Wire) -> Result<BTreeSet<String>, Miss> {
    let session = wire.session().await?;
    let task = wire.completed_in(&session).await?;
    let message = wire.append(&session, "one of many").await?;
    let artifact = wire.artifact(&artifact_body(&session)).await?;
    let events = wire.session_events(&session).await?;
    let mut found: BTreeSet<String> = ids(&[task, message, artifact]).into_iter().collect();
    found.extend(ids(&events));
    found.insert(session);
    Ok(found)
}

async fn times(wire: &Wire) -> Checked {
    let ledger = wire.ledger();
    if ledger.times == 0 {
        return unseen("no answer had a time in it");
    }
    match ledger.bad_times.first() {
        None => Ok(()),
        Some(bad) => fail(
            "every time in UTC with `Z`",
            format!(
                "{} of {} others: {bad}",
                ledger.bad_times.len(),
                ledger.times
            ),
        ),
    }
}

async fn extensions(wire: &Wire) -> Checked {
    let metadata = json!({"text": "ä\"\\ 𝄞", "number": 1.5, "big": 9_007_199_254_740_991_i64, "list": [true, null, {"a": {}}]});
    let session = wire.session().await?;
    let mut artifact = artifact_body(&session);
    let session_body = json!({"workspace_id": wire.home, "metadata": metadata, "x_conformance": 1});
    if let Some(members) = artifact.as_object_mut() {
        members.insert("metadata".to_owned(), metadata.clone());
        members.insert("x_conformance".to_owned(), json!(1));
    }
    for (path, body) in [("/v1/sessions", session_body), ("/v1/artifacts", artifact)] {
        let made = wire.post(path, &body).send().await?;
        need(
            (200..300).contains(&made.status),
            format!("POST {path} with an unknown member: success"),
            made.found(),
        )?;
        let made = made.value()?;
        let read = wire
            .get(format!("{path}/{}", text(&made, "id")))
            .send()
            .await?
            .value_of(&[200])?;
        need(
            read.get("x_conformance").is_none(),
            "no unknown member at top level",
            show(&read),
        )?;
        need(
            at(&read, "metadata") == &metadata,
            format!("`metadata` {metadata}"),
            show(at(&read, "metadata")),
        )?;
    }
    Ok(())
}

async fn lists(wire: &Wire) -> Checked {
    let session = wire.session().await?;
    let mut made = BTreeSet::new();
    for _ in 0..5 {
        made.insert(text(&wire.submit(&session, None).await?, "id").to_owned());
    }
    let (mut found, mut cursor) = (Vec::new(), String::new());
    for _ in 0..=made.len() {
        let path = format!("/v1/tasks?session_id={session}&limit=2{cursor}");
        let page = wire.get(path).send().await?.value_of(&[200])?;
        let next = at(&page, "page.next_cursor");
        let shape = text(&page, "object") == "list"
            && at(&page, "data").is_array()
            && at(&page, "page.has_more").is_boolean()
            && (next.is_string() || next.is_null());
        need(
            shape,
            "a list with `object`, `data`, `page{next_cursor,has_more}`",
            show(&page),
        )?;
        found.extend(ids(data(&page)));
        match next.as_str() {
            Some(next) if at(&page, "page.has_more") == &Value::Bool(true) => {
                cursor = format!("&cursor={next}")
            }
            _ => break,
        }
    }
    let set: BTreeSet<String> = found.iter().cloned().collect();
    need(
        set.len() == found.len(),
        "pages without overlap",
        format!("{found:?}"),
    )?;
    need(
        set == made,
        format!("the five tasks {made:?}"),
        format!("{set:?}"),
    )
}

async fn limit(wire: &Wire) -> Checked {
    for bad in ["0", "201", "x"] {
        let answer = wire.get(format!("/v1/tasks?limit={bad}")).send().await?;
        answer.refused_for(400, "invalid_request", "limit")?;
    }
    for good in ["1", "200"] {
        wire.get(format!("/v1/tasks?limit={good}"))
            .send()
            .await?
            .want(&[200])?;
    }
    let session = wire.session().await?;
    for number in 0..2 {
        let body = json!({"message": message(&format!("{number}"))});
        wire.post(format!("/v1/sessions/{session}/messages"), &body)
            .made("append a message")
            .await?;
    }
    let page = wire
        .get(format!("/v1/sessions/{session}/messages?limit=1"))
        .send()
        .await?
        .value_of(&[200])?;
    need(
        data(&page).len() == 1,
        "one item for `limit=1`",
        format!("{} items", data(&page).len()),
    )
}

async fn safe_ids(wire: &Wire) -> Checked {
    let ledger = wire.ledger();
    match ledger.bad_ids.first() {
        _ if ledger.ids() == 0 => unseen("no id was seen"),
        None => Ok(()),
        Some(bad) => fail(
            "ids of letters, digits, `_`, `.`, `-`, each of one kind",
            bad.clone(),
        ),
    }
}

async fn spelling(wire: &Wire) -> Checked {
    let ledger = wire.ledger();
    match ledger.misspelt.first() {
        Some(bad) => fail("no `CANCELLED` in any answer", bad.clone()),
        None if ledger.canceled == 0 => unseen("no canceled task was seen"),
        None => Ok(()),
    }
}
