//! Workspaces: AP-WS.

use reqwest::Method;
use serde_json::{Value, json};

use super::envelope::{Specimen, specimens};
use crate::json::{at, ids, lacking, show, text};
use crate::miss::{Checked, all_but, need, unseen};
use crate::registry::{Row, row};
use crate::scenario::TERMINAL;
use crate::wire::Wire;

pub(crate) const ROWS: &[Row] = &[
    row!("AP-WS-01", M, "a workspace has `name`, `root` and `default_branch_id`", Now required),
    row!("AP-WS-02", M, "the root may be any URI", Now logical_root),
    row!("AP-WS-03", M, "stateful resources carry `workspace_id`", Now carried),
    row!("AP-WS-04", M, "a workspace hides what is in it from others", Now isolates),
    row!("AP-WS-05", O, "`name`, `capabilities`, `quota_id` and `metadata` can be changed", Now changed),
    row!("AP-WS-06", M, "file paths stay inside the root", Now paths),
];

async fn required(wire: &Wire) -> Checked {
    let (name, root) = (wire.fresh("required"), "harn://conformance/required");
    let made = wire
        .post("/v1/workspaces", &json!({"name": name, "root": root}))
        .send()
        .await?
        .value_of(&[201])?;
    let branch = at(&made, "default_branch_id");
    let holds = text(&made, "name") == name
        && text(&made, "root") == root
        && made.get("default_branch_id").is_some()
        && (branch.is_string() || branch.is_null());
    need(
        holds,
        "`name` and `root` as sent and a `default_branch_id`",
        show(&made),
    )
}

async fn logical_root(wire: &Wire) -> Checked {
    // Where no task completes (the model behind the default agent fails), the root is not to blame.
    wire.completed().await?;
    let name = wire.fresh("logical");
    let body = json!({"name": name, "root": format!("harn://conformance/{name}")});
    let made = wire
        .post("/v1/workspaces", &body)
        .send()
        .await?
        .value_of(&[201])?;
    let session = json!({"workspace_id": text(&made, "id")});
    let session = wire.post("/v1/sessions", &session).send().await?;
    need(
        (200..300).contains(&session.status),
        "a session in it",
        session.found(),
    )?;
    let session = session.value()?;
    let task = wire.submit(text(&session, "id"), None).await?;
    let task = wire.wait_for(text(&task, "id"), &TERMINAL).await?;
    need(
        text(&task, "status") == "COMPLETED",
        "a task in it that completes",
        show(&task),
    )
}

async fn carried(wire: &Wire) -> Checked {
    let specimens = specimens(wire).await?;
    let session = specimens.iter().find(|specimen| specimen.kind == "session");
    let home = session
        .map(|specimen| at(&specimen.value, "workspace_id").clone())
        .unwrap_or_default();
    need(
        home.is_string(),
        "a session with `workspace_id`",
        show(&home),
    )?;
    for Specimen { kind, value } in &specimens {
        match *kind {
            "message" => {
                let via = text(value, "session_id");
                need(!via.is_empty(), "a message with `session_id`", show(value))?;
            }
            "task" | "branch" | "artifact" | "event" => {
                let found = at(value, "workspace_id");
                need(
                    found == &home,
                    format!("a {kind} with `workspace_id` {home}"),
                    show(found),
                )?;
            }
            "vault" | "connector" => {
                let missing = lacking(value, &["workspace_id"]);
                need(
                    missing.is_empty(),
                    format!("a {kind} with `workspace_id`"),
                    show(value),
                )?;
            }
            _ => {}
        }
    }
    let unseen: Vec<&str> = ["branch", "artifact", "vault", "connector"]
        .into_iter()
        .filter(|kind| specimens.iter().all(|specimen| specimen.kind != *kind))
        .collect();
    if unseen.is_empty() {
        Ok(())
    } else {
        all_but(format!("the server shows no {}", unseen.join(", no ")))
    }
}

async fn isolates(wire: &Wire) -> Checked {
    let other = wire.other()?;
    let workspace = wire.workspace().await?;
    let workspace = text(&workspace, "id");
    let session = wire.session_in(workspace).await?;
    let member = wire
        .get(format!("/v1/workspaces/{workspace}"))
        .key(other)
        .send()
        .await?;
    if member.status == 200 {
        return unseen("the other key is not limited to another workspace");
    }
    let answer = wire
        .get("/v1/sessions?limit=200")
        .key(other)
        .send()
        .await?
        .value_of(&[200])?;
    let listed = ids(crate::json::data(&answer));
    need(
        !listed.contains(&session),
        "a list without sessions of other workspaces",
        format!("`{session}` is listed"),
    )?;
    let answer = wire
        .get(format!("/v1/sessions/{session}"))
        .key(other)
        .send()
        .await?;
    answer.refused(404, "resource_not_found").map(drop)
}

async fn changed(wire: &Wire) -> Checked {
    let made = wire.workspace().await?;
    let path = format!("/v1/workspaces/{}", text(&made, "id"));
    let body = json!({"name": "renamed", "capabilities": ["files"], "quota_id": null, "metadata": {"a": [1]}});
    wire.patch(&path, &body).send().await?.want(&[200])?;
    let read = wire.get(&path).send().await?.value_of(&[200])?;
    for (member, value) in body.as_object().into_iter().flatten() {
        need(
            at(&read, member) == value,
            format!("`{member}` {value}"),
            show(at(&read, member)),
        )?;
    }
    all_but("a `quota_id` other than null")
}

async fn paths(wire: &Wire) -> Checked {
    let listed = wire
        .get("/v1/workspaces?limit=200")
        .made("list workspaces")
        .await?;
    let mut served = None;
    for workspace in std::iter::once("workspace_local".to_owned())
        .chain(ids(crate::json::data(&listed)))
        .take(20)
    {
        let files = format!("/v1/workspaces/{workspace}/files");
        if wire.get(format!("{files}?path=.")).send().await?.status == 200 {
            served = Some(files);
            break;
        }
    }
    let Some(files) = served else {
        return unseen("the server shows no workspace files");
    };
    let body = json!({"content": "must not be written"});
    for path in ["../x", "a/../../x", "/etc/passwd", "..%2Fx", "%2e%2e/x"] {
        wire.get(format!("{files}?path={path}"))
            .send()
            .await?
            .refused(400, "invalid_request")?;
        let put = wire
            .call(Method::PUT, format!("{files}?path={path}"))
            .json(&body);
        put.send().await?.refused(400, "invalid_request")?;
    }
    all_but("a symbolic link that leads out of the root")
}

/// Returns the id of a workspace the other key may work in, if there is one.
pub(crate) async fn workspace_of(wire: &Wire, key: &str) -> Option<String> {
    let listed = wire
        .get("/v1/workspaces?limit=200")
        .key(key)
        .made("list workspaces")
        .await
        .ok()?;
    let first: Option<&Value> = crate::json::data(&listed).first();
    first.map(|workspace| text(workspace, "id").to_owned())
}
