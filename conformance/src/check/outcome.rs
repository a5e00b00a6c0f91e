//! Outcomes: AP-OUT.

use crate::json::{at, data, show, text};
use crate::miss::{Checked, need};
use crate::registry::{Row, row};
use crate::wire::Wire;

pub(crate) const ROWS: &[Row] = &[
    row!("AP-OUT-01", M, "an outcome has `task_id`, `status` and `summary`", Now required),
    row!("AP-OUT-02", S, "a completed task has one outcome", Now one),
];

async fn required(wire: &Wire) -> Checked {
    let completed = wire.completed().await?;
    let canceled = wire.canceled().await;
    let failed = wire.failed().await;
    let tasks = [
        Some((&completed, "SUCCEEDED")),
        canceled.as_ref().ok().map(|task| (task, "CANCELED")),
        failed.as_ref().ok().map(|task| (task, "FAILED")),
    ];
    for (task, status) in tasks.into_iter().flatten() {
        let id = text(task, "id");
        let list = wire
            .get(format!("/v1/outcomes?task_id={id}"))
            .send()
            .await?
            .value_of(&[200])?;
        need(
            status != "SUCCEEDED" || !data(&list).is_empty(),
            "an outcome of a completed task",
            show(&list),
        )?;
        for outcome in data(&list) {
            let holds = text(outcome, "task_id") == id
                && text(outcome, "status") == status
                && at(outcome, "summary").is_string();
            need(
                holds,
                format!("an outcome of `{id}` with `status` `{status}` and a `summary`"),
                show(outcome),
            )?;
        }
    }
    Ok(())
}

async fn one(wire: &Wire) -> Checked {
    let task = wire.completed().await?;
    let id = text(&task, "id");
    let list = wire
        .get(format!("/v1/outcomes?task_id={id}"))
        .send()
        .await?
        .value_of(&[200])?;
    need(
        data(&list).len() == 1,
        "one outcome",
        format!("{}", data(&list).len()),
    )?;
    let outcome = text(&task, "outcome_id");
    need(!outcome.is_empty(), "`outcome_id` on the task", show(&task))?;
    let read = wire
        .get(format!("/v1/outcomes/{outcome}"))
        .send()
        .await?
        .value_of(&[200])?;
    need(
        text(&read, "task_id") == id,
        format!("an outcome of `{id}`"),
        show(&read),
    )
}
