//! The life of a task: AP-LIFE.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;

use crate::json::{at, data, show, text};
use crate::miss::{Checked, Miss, all_but, need, unseen};
use crate::registry::{Row, row};
use crate::scenario::{TERMINAL, kinds};
use crate::wire::Wire;

const STATES: [&str; 7] = [
    "SUBMITTED",
    "WORKING",
    "INPUT_REQUIRED",
    "AUTH_REQUIRED",
    "COMPLETED",
    "FAILED",
    "CANCELED",
];

pub(crate) const ROWS: &[Row] = &[
    row!("AP-LIFE-01", M, "states are spelt in upper case", Last states),
    row!("AP-LIFE-02", M, "only the listed transitions happen", Now transitions),
    row!("AP-LIFE-03", M, "a question waits as INPUT_REQUIRED, an approval as AUTH_REQUIRED", Now waits),
    row!("AP-LIFE-04", M, "one state event for each transition", Now state_events),
    row!("AP-LIFE-05", M, "a finished task stays finished", Now stays),
    row!("AP-LIFE-06", O, "cancel of a finished task is refused", Now cancel_finished),
    row!("AP-LIFE-07", M, "nothing replaces CANCELED", Now canceled_stays),
    row!("AP-LIFE-08", M, "a second cancel changes nothing", Now cancel_twice),
    row!("AP-LIFE-09", M, "a client that polls sees only allowed steps", Now polled),
    row!("AP-LIFE-10", M, "who sees COMPLETED sees outcome and final events", Now one_commit),
];

/// Tells whether a task may go from one state to another in one step.
pub(crate) fn allowed(from: &str, to: &str) -> bool {
    match from {
        "SUBMITTED" => ["WORKING", "CANCELED", "FAILED"].contains(&to),
        "WORKING" => STATES.contains(&to) && !["SUBMITTED", "WORKING"].contains(&to),
        "INPUT_REQUIRED" | "AUTH_REQUIRED" => ["WORKING", "FAILED", "CANCELED"].contains(&to),
        _ => false,
    }
}

async fn states(wire: &Wire) -> Checked {
    let ledger = wire.ledger();
    if ledger.task_statuses.is_empty() {
        return unseen("no task was seen");
    }
    let strange = ledger
        .task_statuses
        .iter()
        .find(|(status, _)| !STATES.contains(&status.as_str()));
    need(
        strange.is_none(),
        format!("one of {}", STATES.join(", ")),
        format!("{strange:?}"),
    )
}

/// Runs a task through each way of living that the server offers and returns the ended tasks.
async fn lives(wire: &Wire) -> Result<Vec<Value>, Miss> {
    let mut tasks = vec![wire.completed().await?];
    if let Ok(task) = wire.canceled().await {
        tasks.push(task);
    }
    if let Ok(task) = wire.reach("ask", "INPUT_REQUIRED").await {
        wire.answer(&task, "blue").made("answer a question").await?;
        tasks.push(wire.wait_for(text(&task, "id"), &TERMINAL).await?);
    }
    for approved in [true, false] {
        if let Ok(task) = wire.reach("approve", "AUTH_REQUIRED").await {
            let request = wire.pending(&task).await?;
            wire.respond(&request, &json!({"approved": approved}))
                .made("answer a request")
                .await?;
            tasks.push(wire.wait_for(text(&task, "id"), &TERMINAL).await?);
        }
    }
    if let Ok(task) = wire.reach("ask", "INPUT_REQUIRED").await {
        wire.post_empty(format!("/v1/tasks/{}/cancel", text(&task, "id")))
            .made("cancel a waiting task")
            .await?;
        tasks.push(wire.wait_for(text(&task, "id"), &TERMINAL).await?);
    }
    Ok(tasks)
}

fn steps(events: &[Value]) -> Vec<(String, String)> {
    let changes = events
        .iter()
        .filter(|event| text(event, "event") == "task.status_changed");
    changes
        .map(|event| {
            (
                text(event, "payload.from").to_owned(),
                text(event, "payload.to").to_owned(),
            )
        })
        .collect()
}

async fn transitions(wire: &Wire) -> Checked {
    let mut seen = 0;
    for task in lives(wire).await? {
        for (from, to) in steps(&wire.task_events(&task).await?) {
            // A server may announce the birth of a task as a step from nothing.
            if !from.is_empty() {
                seen += 1;
                need(
                    allowed(&from, &to),
                    "a listed transition",
                    format!("{from} to {to}"),
                )?;
            }
        }
    }
    if seen == 0 {
        return unseen("no `task.status_changed` event was seen");
    }
    all_but("random schedules, see conformance/coverage.md")
}

async fn waits(wire: &Wire) -> Checked {
    for (workflow, status) in [("ask", "INPUT_REQUIRED"), ("approve", "AUTH_REQUIRED")] {
        let task = wire.reach(workflow, status).await?;
        let request = wire.pending(&task).await?;
        need(
            !at(&request, "id").is_null(),
            format!("a request behind {status}"),
            show(&request),
        )?;
    }
    Ok(())
}

async fn state_events(wire: &Wire) -> Checked {
    for task in lives(wire).await? {
        let events = wire.task_events(&task).await?;
        let mut steps = steps(&events);
        steps.retain(|(from, _)| !from.is_empty());
        let found = format!("{steps:?}");
        let begins = steps.first().is_some_and(|(from, _)| from == "SUBMITTED");
        let ends = steps
            .last()
            .is_some_and(|(_, to)| to == text(&task, "status"));
        let joined = steps
            .iter()
            .zip(steps.iter().skip(1))
            .all(|((_, to), (from, _))| to == from);
        let expected = format!(
            "a chain of state events from SUBMITTED to {}",
            text(&task, "status")
        );
        need(begins && ends && joined, expected, found)?;
        let started = steps.iter().any(|(_, to)| to == "WORKING");
        let specific = [
            ("WORKING", "task.started"),
            ("INPUT_REQUIRED", "task.input_required"),
            ("AUTH_REQUIRED", "task.auth_required"),
            ("COMPLETED", "task.completed"),
            ("FAILED", "task.failed"),
            ("CANCELED", "task.canceled"),
        ];
        for (state, kind) in specific {
            let entered = steps.iter().filter(|(_, to)| to == state).count();
            // Work is started once, however often it goes on after a wait.
            let entered = if state == "WORKING" {
                usize::from(started)
            } else {
                entered
            };
            let count = kinds(&events)
                .iter()
                .filter(|found| **found == kind)
                .count();
            need(
                count == entered,
                format!("{entered} × `{kind}`"),
                format!("{count}"),
            )?;
        }
    }
    Ok(())
}

async fn stays(wire: &Wire) -> Checked {
    let task = wire.completed().await?;
    let answer = wire.answer(&task, "too late").send().await?;
    answer.refused(400, "invalid_state_transition")?;
    let later = wire.task(text(&task, "id")).await?;
    need(
        text(&later, "status") == "COMPLETED",
        "`COMPLETED` as before",
        show(at(&later, "status")),
    )?;
    let Ok(waiting) = wire.reach("approve", "AUTH_REQUIRED").await else {
        return all_but(
            "a permission answer: it takes the example workflow `approve` (`reprise serve --examples`)",
        );
    };
    let request = wire.pending(&waiting).await?;
    let id = text(&waiting, "id");
    wire.post_empty(format!("/v1/tasks/{id}/cancel"))
        .made("cancel a waiting task")
        .await?;
    let ended = wire.wait_for(id, &TERMINAL).await?;
    wire.respond(&request, &json!({"approved": true}))
        .send()
        .await?
        .refused(400, "invalid_state_transition")?;
    let later = wire.task(id).await?;
    need(
        at(&later, "status") == at(&ended, "status"),
        format!("{} as before", at(&ended, "status")),
        show(&later),
    )
}

async fn cancel_finished(wire: &Wire) -> Checked {
    let task = wire.completed().await?;
    let path = format!("/v1/tasks/{}", text(&task, "id"));
    wire.post_empty(format!("{path}/cancel"))
        .send()
        .await?
        .refused(409, "conflict")?;
    let later = wire.get(path).send().await?.value_of(&[200])?;
    need(later == task, "the task unchanged", show(&later))
}

async fn canceled_stays(wire: &Wire) -> Checked {
    let task = wire.reach("hold", "WORKING").await?;
    let id = text(&task, "id");
    wire.post_empty(format!("/v1/tasks/{id}/cancel"))
        .made("cancel a task")
        .await?;
    wire.wait_for(id, &TERMINAL).await?;
    sleep(Duration::from_millis(500)).await;
    let later = wire.task(id).await?;
    need(
        text(&later, "status") == "CANCELED",
        "`CANCELED`",
        show(at(&later, "status")),
    )?;
    let outcomes = wire
        .get(format!("/v1/outcomes?task_id={id}"))
        .made("list outcomes")
        .await?;
    let success = data(&outcomes)
        .iter()
        .find(|outcome| text(outcome, "status") != "CANCELED");
    need(
        success.is_none(),
        "no outcome but a CANCELED one",
        format!("{success:?}"),
    )?;
    all_but("a tool that ends after the cancel")
}

async fn cancel_twice(wire: &Wire) -> Checked {
    let task = wire.canceled().await?;
    let path = format!("/v1/tasks/{}/cancel", text(&task, "id"));
    let before = wire.task_events(&task).await?.len();
    let again = wire.post_empty(path).send().await?.value_of(&[200])?;
    need(
        again == task,
        format!("the task unchanged: {task}"),
        show(&again),
    )?;
    let after = wire.task_events(&task).await?.len();
    need(
        after == before,
        format!("{before} events as before"),
        format!("{after}"),
    )
}

async fn polled(wire: &Wire) -> Checked {
    let session = wire.session().await?;
    for _ in 0..5 {
        let task = wire.submit(&session, None).await?;
        let mut before = text(&task, "status").to_owned();
        for _ in 0..200 {
            let now = wire.task(text(&task, "id")).await?;
            let now = text(&now, "status").to_owned();
            need(
                before == now || allowed(&before, &now),
                "a listed transition",
                format!("{before} and then {now}"),
            )?;
            if TERMINAL.contains(&now.as_str()) {
                break;
            }
            before = now;
        }
    }
    Ok(())
}

async fn one_commit(wire: &Wire) -> Checked {
    let session = wire.session().await?;
    for _ in 0..5 {
        let mut task = wire.submit(&session, None).await?;
        let id = text(&task, "id").to_owned();
        for _ in 0..200 {
            if text(&task, "status") == "COMPLETED" {
                break;
            }
            task = wire.task(&id).await?;
        }
        if text(&task, "status") != "COMPLETED" {
            return unseen("a plain task does not complete");
        }
        let outcomes = wire
            .get(format!("/v1/outcomes?task_id={id}"))
            .send()
            .await?
            .value_of(&[200])?;
        need(
            !data(&outcomes).is_empty(),
            "an outcome as soon as COMPLETED shows",
            show(&outcomes),
        )?;
        let events = wire.task_events(&task).await?;
        need(
            kinds(&events).contains(&"task.completed"),
            "`task.completed` as soon as COMPLETED shows",
            format!("{:?}", kinds(&events)),
        )?;
        if wire.claims.receipts {
            let list = wire
                .get(format!("/v1/tasks/{id}/receipts"))
                .send()
                .await?
                .value_of(&[200])?;
            need(
                !data(&list).is_empty(),
                "a receipt as soon as COMPLETED shows",
                show(&list),
            )?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_transition_table_is_the_published_one() {
        let mut pairs = Vec::new();
        for from in STATES {
            for to in STATES {
                if allowed(from, to) {
                    pairs.push(format!("{from}>{to}"));
                }
            }
        }
        let expected = "SUBMITTED>WORKING SUBMITTED>FAILED SUBMITTED>CANCELED \
            WORKING>INPUT_REQUIRED WORKING>AUTH_REQUIRED WORKING>COMPLETED WORKING>FAILED WORKING>CANCELED \
            INPUT_REQUIRED>WORKING INPUT_REQUIRED>FAILED INPUT_REQUIRED>CANCELED \
            AUTH_REQUIRED>WORKING AUTH_REQUIRED>FAILED AUTH_REQUIRED>CANCELED";
        assert_eq!(pairs.join(" "), expected);
    }
}
