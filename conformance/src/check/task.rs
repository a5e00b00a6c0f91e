//! Tasks as resources: AP-TASK.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::json::{at, data, ids, lacking, show, text};
use crate::miss::{Checked, Miss, all_but, need};
use crate::registry::{Row, row};
use crate::scenario::{TERMINAL, kinds, message, task_body};
use crate::wire::Wire;

const OPTIONAL: [&str; 11] = [
    "persona_id",
    "branch_id",
    "parent_task_id",
    "assigned_agent_id",
    "receipt_id",
    "outcome_id",
    "quota_id",
    "started_at",
    "completed_at",
    "canceled_at",
    "failure",
];

pub(crate) const ROWS: &[Row] = &[
    row!("AP-TASK-01", M, "a submitted task has its required members", Now required),
    row!("AP-TASK-02", O, "optional members are sent as null when unknown", Now optional),
    row!("AP-TASK-03", M, "an accepted task survives a crash", Restart durable),
    row!("AP-TASK-04", M, "after a crash an accepted task has a recoverable status", Restart recovered),
    row!("AP-TASK-05", M, "a task is submitted under a session or with one in the body", Now both_paths),
    row!("AP-TASK-06", M, "`input` is required", Now input_required),
    row!("AP-TASK-07", M, "`input` is a message or an object", Now input_kinds),
    row!("AP-TASK-08", M, "tasks are read and listed with filters", Now filters),
    row!("AP-TASK-09", M, "the times of a task follow its states", Now times),
    row!("AP-TASK-11", M, "input goes to a task that asked, also after a crash", Restart input),
    row!("AP-TASK-10", M, "a failed task says why", Now failure),
];

async fn required(wire: &Wire) -> Checked {
    let session = wire.session().await?;
    let body = task_body(None);
    let task = wire
        .post(format!("/v1/sessions/{session}/tasks"), &body)
        .send()
        .await?
        .value_of(&[202])?;
    let holds = text(&task, "session_id") == session
        && !text(&task, "workspace_id").is_empty()
        && !text(&task, "status").is_empty()
        && at(&task, "input").is_object()
        && !text(&task, "created_by").is_empty();
    need(
        holds,
        "`session_id`, `workspace_id`, `status`, `input`, `created_by`",
        show(&task),
    )?;
    let again = wire.submit(&session, None).await?;
    let actor = text(&task, "created_by");
    need(
        text(&again, "created_by") == actor,
        format!("the same `created_by` `{actor}` for the same key"),
        show(&again),
    )
}

async fn optional(wire: &Wire) -> Checked {
    let session = wire.session().await?;
    let submitted = wire.submit(&session, None).await?;
    let read = wire.task(text(&submitted, "id")).await?;
    let listed = wire
        .get(format!("/v1/tasks?session_id={session}"))
        .made("list tasks")
        .await?;
    for task in [&submitted, &read].into_iter().chain(data(&listed)) {
        let missing = lacking(task, &OPTIONAL);
        need(
            missing.is_empty(),
            "every optional member",
            format!("no {}", missing.join(", ")),
        )?;
    }
    Ok(())
}

async fn durable(wire: &Wire) -> Checked {
    wire.can_restart()?;
    let session = wire.session().await?;
    let task = wire.submit(&session, None).await?;
    let held = wire.submit(&session, Some("hold")).await;
    wire.restart().await?;
    for task in std::iter::once(&task).chain(held.as_ref()) {
        wire.get(format!("/v1/tasks/{}", text(task, "id")))
            .send()
            .await?
            .want(&[200])?;
    }
    if let Ok(held) = &held {
        wire.let_go(held).await;
    }
    Ok(())
}

async fn recovered(wire: &Wire) -> Checked {
    wire.can_restart()?;
    let mut waiting = Vec::new();
    for (workflow, status) in [
        ("hold", "WORKING"),
        ("ask", "INPUT_REQUIRED"),
        ("approve", "AUTH_REQUIRED"),
    ] {
        let task = wire.reach(workflow, status).await?;
        let request = if workflow == "hold" {
            Value::Null
        } else {
            wire.pending(&task).await?
        };
        let known = wire.task_events(&task).await?.len();
        waiting.push((task, status, request, known));
    }
    let checked = after_crash(wire, &waiting).await;
    for (task, ..) in &waiting {
        wire.let_go(task).await;
    }
    checked
}

/// A task, the status it had, its pending request or null, and how many events it had.
type Interrupted = (Value, &'static str, Value, usize);

async fn after_crash(wire: &Wire, interrupted: &[Interrupted]) -> Checked {
    wire.restart().await?;
    for (task, status, request, known) in interrupted {
        let now = wire.wait_for(text(task, "id"), &[*status]).await?;
        let now = text(&now, "status").to_owned();
        let later = wire.task_events(task).await?;
        let steps: Vec<&str> = later
            .iter()
            .skip(*known)
            .filter(|event| text(event, "event") == "task.status_changed")
            .map(|event| text(event, "payload.to"))
            .collect();
        let found = format!("{now} by way of {steps:?}");
        let four = ["SUBMITTED", "WORKING", "FAILED", "CANCELED"].contains(&now.as_str());
        let waits_again = now == *status && steps == ["WORKING", *status];
        need(
            four || waits_again,
            format!("a task that was {status}: recovered, or WORKING and {status} again"),
            found.clone(),
        )?;
        need(
            now == *status || steps.last() == Some(&now.as_str()),
            "a state event for the change",
            found,
        )?;
        if waits_again {
            let again = wire.pending(task).await?;
            need(
                at(&again, "id") == at(request, "id"),
                format!("the same request {}", at(request, "id")),
                show(&again),
            )?;
        }
    }
    Ok(())
}

async fn both_paths(wire: &Wire) -> Checked {
    let (session, other) = (wire.session().await?, wire.session().await?);
    let with = |session: &str| {
        let mut body = task_body(None);
        if let Some(members) = body.as_object_mut() {
            members.insert("session_id".to_owned(), json!(session));
        }
        body
    };
    let path = format!("/v1/sessions/{session}/tasks");
    let made = wire.post("/v1/tasks", &with(&session)).send().await?;
    need(
        (200..300).contains(&made.status),
        "POST /v1/tasks with `session_id`: success",
        made.found(),
    )?;
    need(
        text(&made.value()?, "session_id") == session,
        format!("a task of `{session}`"),
        made.found(),
    )?;
    let made = wire.post(&path, &task_body(None)).send().await?;
    need(
        (200..300).contains(&made.status),
        format!("POST {path}: success"),
        made.found(),
    )?;
    wire.post(&path, &with(&other))
        .send()
        .await?
        .refused(400, "invalid_request")?;
    wire.post("/v1/tasks", &task_body(None))
        .send()
        .await?
        .refused_for(400, "invalid_request", "session_id")
}

async fn input_required(wire: &Wire) -> Checked {
    let session = wire.session().await?;
    let answer = wire
        .post(format!("/v1/sessions/{session}/tasks"), &json!({}))
        .send()
        .await?;
    answer.refused_for(400, "invalid_request", "input")
}

async fn input_kinds(wire: &Wire) -> Checked {
    let session = wire.session().await?;
    let path = format!("/v1/sessions/{session}/tasks");
    for good in [message("hello"), json!({"question": "hello", "depth": 2})] {
        let answer = wire.post(&path, &json!({"input": good})).send().await?;
        need(
            (200..300).contains(&answer.status),
            format!("`input` {good}: accepted"),
            answer.found(),
        )?;
    }
    for bad in [
        json!("hello"),
        json!(1),
        json!(true),
        json!(["hello"]),
        Value::Null,
    ] {
        wire.post(&path, &json!({"input": bad}))
            .send()
            .await?
            .refused(400, "invalid_request")?;
    }
    Ok(())
}

async fn filters(wire: &Wire) -> Checked {
    let workspace = wire.workspace().await?;
    let workspace = text(&workspace, "id");
    let mut of_workspace = BTreeSet::new();
    let mut sessions = Vec::new();
    for _ in 0..2 {
        let session = wire.session_in(workspace).await?;
        let mut tasks = BTreeSet::new();
        for _ in 0..2 {
            tasks.insert(text(&wire.submit(&session, None).await?, "id").to_owned());
        }
        of_workspace.extend(tasks.clone());
        sessions.push((session, tasks));
    }
    let set = async |path: String| {
        let page = wire.get(path).send().await?.value_of(&[200])?;
        Ok::<BTreeSet<String>, Miss>(ids(data(&page)).into_iter().collect())
    };
    for (session, tasks) in &sessions {
        for path in [
            format!("/v1/tasks?session_id={session}&limit=200"),
            format!("/v1/sessions/{session}/tasks?limit=200"),
        ] {
            let found = set(path.clone()).await?;
            need(
                &found == tasks,
                format!("{path}: {tasks:?}"),
                format!("{found:?}"),
            )?;
        }
    }
    let found = set(format!("/v1/tasks?workspace_id={workspace}&limit=200")).await?;
    need(
        found == of_workspace,
        format!("tasks of the workspace: {of_workspace:?}"),
        format!("{found:?}"),
    )?;
    let id = of_workspace.first().cloned().unwrap_or_default();
    let read = wire
        .get(format!("/v1/tasks/{id}"))
        .send()
        .await?
        .value_of(&[200])?;
    need(text(&read, "id") == id, format!("task `{id}`"), show(&read))
}

async fn times(wire: &Wire) -> Checked {
    let set = |task: &Value| -> Vec<bool> {
        ["started_at", "completed_at", "canceled_at"]
            .iter()
            .map(|name| at(task, name).is_string())
            .collect()
    };
    let task = wire.completed().await?;
    need(
        set(&task) == [true, true, false],
        "COMPLETED: `started_at` and `completed_at` set, no `canceled_at`",
        show(&task),
    )?;
    let task = wire.reach("hold", "WORKING").await?;
    need(
        set(&task) == [true, false, false],
        "WORKING: only `started_at` set",
        show(&task),
    )?;
    let id = text(&task, "id");
    wire.post_empty(format!("/v1/tasks/{id}/cancel"))
        .made("cancel a task")
        .await?;
    let task = wire.wait_for(id, &TERMINAL).await?;
    need(
        set(&task) == [true, false, true],
        "CANCELED: `canceled_at` set, no `completed_at`",
        show(&task),
    )
}

async fn answered(wire: &Wire, task: &Value) -> Checked {
    let request = wire.pending(task).await?;
    wire.answer(task, "blue").send().await?.want(&[201])?;
    let later = wire.wait_for(text(task, "id"), &TERMINAL).await?;
    need(
        text(&later, "status") != "INPUT_REQUIRED",
        "a task that goes on",
        show(&later),
    )?;
    let events = wire.task_events(task).await?;
    need(
        kinds(&events).contains(&"user.input_submitted"),
        "event `user.input_submitted`",
        format!("{:?}", kinds(&events)),
    )?;
    let back = events.iter().any(|event| {
        text(event, "payload.from") == "INPUT_REQUIRED" && text(event, "payload.to") == "WORKING"
    });
    need(
        back,
        "a state event from INPUT_REQUIRED to WORKING",
        format!("{:?}", kinds(&events)),
    )?;
    wire.answer(task, "blue").send().await?.want(&[200])?;
    wire.answer(task, "green")
        .send()
        .await?
        .refused(409, "conflict")?;
    let count = wire.task_events(task).await?.len();
    need(
        count == events.len(),
        format!("{} events after repeated answers", events.len()),
        format!("{count}"),
    )?;
    let list = wire
        .get(format!(
            "/v1/tasks/{}/permission-requests",
            text(task, "id")
        ))
        .send()
        .await?
        .value_of(&[200])?;
    let same = data(&list)
        .iter()
        .any(|one| at(one, "id") == at(&request, "id") && text(one, "status") != "pending");
    need(same, "the request answered under its id", show(&list))
}

async fn input(wire: &Wire) -> Checked {
    let task = wire.reach("ask", "INPUT_REQUIRED").await?;
    answered(wire, &task).await?;
    let task = wire.reach("ask", "INPUT_REQUIRED").await?;
    let request = wire.pending(&task).await?;
    if wire.restart.is_none() {
        return crate::miss::unseen(
            "needs --restart (an answer without a restart was seen to work)",
        );
    }
    wire.restart().await?;
    let task = wire
        .wait_for(text(&task, "id"), &["INPUT_REQUIRED"])
        .await?;
    let again = wire.pending(&task).await?;
    need(
        at(&again, "id") == at(&request, "id"),
        format!("request {} after a restart", at(&request, "id")),
        show(&again),
    )?;
    answered(wire, &task).await
}

async fn failure(wire: &Wire) -> Checked {
    let task = wire.failed().await?;
    let failure = at(&task, "failure");
    let holds = !text(failure, "code").is_empty()
        && !text(failure, "message").is_empty()
        && failure.get("details").is_some();
    need(holds, "`failure{code,message,details}`", show(failure))?;
    need(
        !failure.to_string().contains(&wire.key),
        "no credential in `failure`",
        show(failure),
    )?;
    all_but("secrets of a tool or a provider")
}
