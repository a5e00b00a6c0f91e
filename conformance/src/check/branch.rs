//! Branches: AP-BR.

use serde_json::{Value, json};

use crate::json::{at, lacking, show, text};
use crate::miss::{Checked, need, unseen};
use crate::registry::{Row, row};
use crate::scenario::{kinds, message};
use crate::wire::Wire;

pub(crate) const ROWS: &[Row] = &[
    row!("AP-BR-01", M, "a branch has `workspace_id`, `kind` and `base_ref`", Now required),
    row!("AP-BR-02", O, "a branch keeps its lineage members", Now optional),
    row!("AP-BR-03", M, "lineage leads to the workspace's default branch", Now lineage),
    row!("AP-BR-04", M, "a new branch is announced", Now announced),
];

fn body() -> Value {
    json!({"kind": "session", "base_ref": "main"})
}

async fn required(wire: &Wire) -> Checked {
    let session = wire.session().await?;
    let made = wire
        .post(format!("/v1/sessions/{session}/branches"), &body())
        .send()
        .await?
        .value_of(&[201])?;
    let read = wire
        .get(format!("/v1/branches/{}", text(&made, "id")))
        .send()
        .await?
        .value_of(&[200])?;
    for branch in [&made, &read] {
        let holds = at(branch, "workspace_id") == wire.home.as_str()
            && text(branch, "kind") == "session"
            && text(branch, "base_ref") == "main";
        need(
            holds,
            "`workspace_id`, `kind` and `base_ref` as asked for",
            show(branch),
        )?;
    }
    let path = format!("/v1/sessions/{session}/branches");
    for bad in [
        json!({"base_ref": "main"}),
        json!({"kind": "session"}),
        json!({"kind": "x", "base_ref": "main"}),
    ] {
        wire.post(&path, &bad)
            .send()
            .await?
            .refused(400, "invalid_request")?;
    }
    Ok(())
}

async fn optional(wire: &Wire) -> Checked {
    let session = wire.session().await?;
    let path = format!("/v1/sessions/{session}/branches");
    let parent = wire.post(&path, &body()).made("make a branch").await?;
    let task = wire.completed_in(&session).await?;
    let asked = json!({"kind": "task", "base_ref": "main", "parent_branch_id": text(&parent, "id"), "task_id": text(&task, "id")});
    let made = wire.post(&path, &asked).send().await?;
    need(
        (200..300).contains(&made.status),
        "a branch with a parent and a task",
        made.found(),
    )?;
    let read = wire
        .get(format!("/v1/branches/{}", text(&made.value()?, "id")))
        .send()
        .await?
        .value_of(&[200])?;
    for member in ["parent_branch_id", "task_id"] {
        need(
            at(&read, member) == at(&asked, member),
            format!("`{member}` {}", at(&asked, member)),
            show(&read),
        )?;
    }
    need(
        text(&read, "session_id") == session,
        format!("`session_id` `{session}`"),
        show(&read),
    )?;
    let missing = lacking(&read, &["worktree_uri", "created_by", "merged_into"]);
    need(
        missing.is_empty(),
        "the other optional members",
        format!("no {}", missing.join(", ")),
    )
}

async fn lineage(wire: &Wire) -> Checked {
    let workspace = wire.workspace().await?;
    let main = text(&workspace, "default_branch_id");
    if main.is_empty() {
        return unseen("the workspace has no default branch");
    }
    let session = wire.session_in(text(&workspace, "id")).await?;
    let made = wire
        .post(format!("/v1/sessions/{session}/branches"), &body())
        .made("make a branch")
        .await?;
    let branch = text(&made, "id");
    let asked = json!({"input": message("on a branch"), "branch_id": branch});
    let task = wire
        .post(format!("/v1/sessions/{session}/tasks"), &asked)
        .made("submit a task on a branch")
        .await?;
    need(
        text(&task, "branch_id") == branch,
        format!("a task with `branch_id` `{branch}`"),
        show(at(&task, "branch_id")),
    )?;
    let (mut here, mut steps) = (branch.to_owned(), 0);
    loop {
        let read = wire
            .get(format!("/v1/branches/{here}"))
            .send()
            .await?
            .value_of(&[200])?;
        steps += 1;
        match at(&read, "parent_branch_id").as_str() {
            Some(parent) if steps < 16 => here = parent.to_owned(),
            _ => break,
        }
    }
    need(
        here == main,
        format!("a chain of parents that ends at `{main}`"),
        format!("`{here}`"),
    )
}

async fn announced(wire: &Wire) -> Checked {
    let session = wire.session().await?;
    let made = wire
        .post(format!("/v1/sessions/{session}/branches"), &body())
        .made("make a branch")
        .await?;
    let mut events = wire.session_events(&session).await?;
    events.extend(
        wire.events(&format!("/v1/events?session_id={session}"))
            .await?,
    );
    let found = events.iter().any(|event| {
        text(event, "event") == "branch.created"
            && text(event, "resource.object") == "branch"
            && at(event, "resource.id") == at(&made, "id")
    });
    need(
        found,
        format!("event `branch.created` about {}", at(&made, "id")),
        format!("{:?}", kinds(&events)),
    )
}
