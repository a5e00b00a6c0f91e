//! Permission requests: AP-PRM.

use serde_json::json;

use crate::json::{at, lacking, show, text};
use crate::miss::{Checked, fail, need};
use crate::registry::{Row, row};
use crate::scenario::{TERMINAL, kinds};
use crate::wire::Wire;

pub(crate) const ROWS: &[Row] = &[
    row!("AP-PRM-01", M, "a waiting task has a pending permission request", Now pending),
    row!("AP-PRM-02", M, "a request is approved or denied through `respond`", Now respond),
    row!("AP-PRM-03", M, "a second, different decision is refused", Now twice),
    row!("AP-PRM-04", M, "an answer without a decision is refused", Now undecided),
];

async fn pending(wire: &Wire) -> Checked {
    for (workflow, status) in [("approve", "AUTH_REQUIRED"), ("ask", "INPUT_REQUIRED")] {
        let task = wire.reach(workflow, status).await?;
        let path = format!("/v1/tasks/{}/permission-requests", text(&task, "id"));
        let list = wire.get(&path).send().await?.value_of(&[200])?;
        let found = crate::json::data(&list)
            .iter()
            .find(|request| text(request, "status") == "pending");
        let Some(request) = found else {
            return fail(
                format!("a pending request of a task in {status}"),
                show(&list),
            );
        };
        let missing = lacking(
            request,
            &["status", "source", "request", "action", "response"],
        );
        need(
            missing.is_empty(),
            "`status`, `source`, `request`, `action`, `response`",
            format!("no {}", missing.join(", ")),
        )?;
        need(
            ["acp", "hitl"].contains(&text(request, "source")),
            "`source` `acp` or `hitl`",
            show(request),
        )?;
    }
    Ok(())
}

async fn respond(wire: &Wire) -> Checked {
    let answers = [
        (
            json!({"approved": true, "reviewer": "conformance", "reason": "a check"}),
            "approved",
        ),
        (json!({"approved": false}), "denied"),
        (json!({"outcome": "approved"}), "approved"),
        (json!({"outcome": "approve"}), "approved"),
        (json!({"outcome": "selected"}), "approved"),
        (json!({"outcome": "denied"}), "denied"),
        (json!({"outcome": "deny"}), "denied"),
        (json!({"outcome": "rejected"}), "denied"),
    ];
    for (body, decision) in answers {
        let task = wire.reach("approve", "AUTH_REQUIRED").await?;
        let request = wire.pending(&task).await?;
        let answered = wire
            .respond(&request, &body)
            .send()
            .await?
            .value_of(&[200])?;
        need(
            text(&answered, "status") == decision,
            format!("{body}: `{decision}`"),
            show(&answered),
        )?;
        if decision == "denied" {
            continue;
        }
        let later = wire.wait_for(text(&task, "id"), &TERMINAL).await?;
        need(
            text(&later, "status") != "AUTH_REQUIRED",
            "a task that goes on",
            show(&later),
        )?;
        let events = wire.task_events(&task).await?;
        for kind in [
            "user.tool_confirmation",
            "tool.approved",
            "task.status_changed",
        ] {
            need(
                kinds(&events).contains(&kind),
                format!("event `{kind}`"),
                format!("{:?}", kinds(&events)),
            )?;
        }
        let back = events.iter().any(|event| {
            text(event, "payload.from") == "AUTH_REQUIRED" && text(event, "payload.to") == "WORKING"
        });
        need(
            back,
            "a state event from AUTH_REQUIRED to WORKING",
            format!("{:?}", kinds(&events)),
        )?;
    }
    Ok(())
}

async fn twice(wire: &Wire) -> Checked {
    let task = wire.reach("approve", "AUTH_REQUIRED").await?;
    let request = wire.pending(&task).await?;
    let approve = json!({"approved": true});
    let first = wire
        .respond(&request, &approve)
        .made("approve a request")
        .await?;
    let same = wire
        .respond(&request, &approve)
        .send()
        .await?
        .value_of(&[200])?;
    need(
        same == first,
        format!("the request unchanged: {first}"),
        show(&same),
    )?;
    wire.respond(&request, &json!({"approved": false}))
        .send()
        .await?
        .refused(409, "conflict")
        .map(drop)
}

async fn undecided(wire: &Wire) -> Checked {
    let task = wire.reach("approve", "AUTH_REQUIRED").await?;
    let request = wire.pending(&task).await?;
    for body in [
        json!({}),
        json!({"reason": "none"}),
        json!({"outcome": "perhaps"}),
        json!({"approved": "yes"}),
    ] {
        wire.respond(&request, &body)
            .send()
            .await?
            .refused(400, "invalid_request")?;
    }
    let again = wire.pending(&task).await?;
    need(
        at(&again, "id") == at(&request, "id"),
        "the request still pending",
        show(&again),
    )
}
