//! Event kinds: AP-TAX.

use serde_json::Value;

use crate::json::{at, show, text};
use crate::miss::{Checked, need, unseen};
use crate::registry::{Check, Row, row};
use crate::scenario::kinds;
use crate::wire::Wire;

/// The kinds of the protocol.
pub(crate) const KINDS: [&str; 58] = [
    "user.message",
    "user.input_submitted",
    "user.tool_confirmation",
    "user.cancel_requested",
    "agent.message",
    "agent.reasoning_summary",
    "agent.tool_use",
    "agent.tool_result",
    "agent.mcp_tool_use",
    "agent.handoff",
    "agent.memory_read",
    "agent.memory_write",
    "task.submitted",
    "task.started",
    "task.input_required",
    "task.auth_required",
    "task.completed",
    "task.failed",
    "task.canceled",
    "task.status_changed",
    "session.created",
    "session.closed",
    "session.message_appended",
    "session.compacted",
    "session.truncated",
    "session.thread_forked",
    "session.thread_merged",
    "session.replayed",
    "branch.created",
    "branch.updated",
    "branch.merged",
    "branch.abandoned",
    "artifact.created",
    "artifact.updated",
    "artifact.linked",
    "artifact.redacted",
    "span.started",
    "span.updated",
    "span.completed",
    "span.failed",
    "tool.requested",
    "tool.approval_required",
    "tool.approved",
    "tool.denied",
    "tool.completed",
    "tool.failed",
    "connector.delivery_received",
    "connector.delivery_deduped",
    "connector.normalized",
    "connector.task_submitted",
    "connector.failed",
    "receipt.issued",
    "receipt.verified",
    "receipt.verification_failed",
    "replay.started",
    "replay.event_replayed",
    "replay.completed",
    "replay.failed",
];

const TOOLS: Check = Check::Elsewhere("no built-in workflow calls a tool or a reasoning model");

pub(crate) const ROWS: &[Row] = &[
    row!("AP-TAX-01", M, "event kinds are listed ones or a vendor's", Last listed),
    row!("AP-TAX-02", S, "a vendor's kinds carry its prefix", Last vendor),
    row!("AP-TAX-03", S, "tool payloads pair call and result", = TOOLS),
    row!("AP-TAX-04", N, "no event shows hidden reasoning", = TOOLS),
    row!("AP-TAX-05", O, "span and tool events share their ids", = TOOLS),
    row!("AP-TAX-06", M, "a successful task leaves the minimum of events in order", Now minimum),
    row!("AP-TAX-07", M, "a cancel is requested before it happens", Now cancel),
];

/// Tells whether a kind is marked as a vendor's: `vendor.…` or a reversed domain name and a word.
fn is_vendor(kind: &str) -> bool {
    let parts: Vec<&str> = kind.split('.').collect();
    let words = parts.iter().all(|part| {
        !part.is_empty()
            && part.bytes().all(|byte| {
                byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(&byte)
            })
    });
    words && ((parts.first() == Some(&"vendor") && parts.len() > 1) || parts.len() > 2)
}

async fn listed(wire: &Wire) -> Checked {
    let ledger = wire.ledger();
    if ledger.event_kinds.is_empty() {
        return unseen("no event was seen");
    }
    let strange = ledger
        .event_kinds
        .iter()
        .find(|(kind, _)| !KINDS.contains(&kind.as_str()) && !is_vendor(kind));
    need(
        strange.is_none(),
        "listed kinds and a vendor's",
        format!("{strange:?}"),
    )
}

async fn vendor(wire: &Wire) -> Checked {
    let ledger = wire.ledger();
    let others: Vec<&String> = ledger
        .event_kinds
        .keys()
        .filter(|kind| !KINDS.contains(&kind.as_str()))
        .collect();
    if others.is_empty() {
        return unseen("no vendor kind was seen");
    }
    let strange: Vec<&&String> = others.iter().filter(|kind| !is_vendor(kind)).collect();
    need(
        strange.is_empty(),
        "`vendor.` or a reversed domain name first",
        format!("{strange:?}"),
    )
}

async fn minimum(wire: &Wire) -> Checked {
    let task = wire.completed().await?;
    let events = wire.task_events(&task).await?;
    let found = format!("{:?}", kinds(&events));
    let place = |kind: &str| events.iter().position(|event| text(event, "event") == kind);
    let order = (
        place("task.submitted"),
        place("task.started"),
        place("task.completed"),
    );
    let (Some(submitted), Some(started), Some(completed)) = order else {
        return crate::miss::fail("`task.submitted`, `task.started`, `task.completed`", found);
    };
    need(
        submitted < started && started < completed,
        "submitted, started, completed in this order",
        found.clone(),
    )?;
    for (place, to) in [(started, "WORKING"), (completed, "COMPLETED")] {
        let next = events
            .iter()
            .skip(place + 1)
            .find(|event| text(event, "event").starts_with("task."));
        let next = next.cloned().unwrap_or(Value::Null);
        let holds =
            text(&next, "event") == "task.status_changed" && text(&next, "payload.to") == to;
        need(
            holds,
            format!("`task.status_changed` to {to} after the specific event"),
            show(&next),
        )?;
    }
    if wire.claims.receipts {
        let issued = place("receipt.issued");
        need(
            issued.is_some_and(|issued| issued > completed),
            "`receipt.issued` after `task.completed`",
            found,
        )?;
    }
    Ok(())
}

async fn cancel(wire: &Wire) -> Checked {
    let task = wire.canceled().await?;
    if at(&task, "canceled_at").is_null() {
        return unseen("a task could not be canceled");
    }
    let events = wire.task_events(&task).await?;
    let place = |kind: &str| events.iter().position(|event| text(event, "event") == kind);
    let order = place("user.cancel_requested").zip(place("task.canceled"));
    let holds = order.is_some_and(|(requested, canceled)| requested < canceled);
    need(
        holds,
        "`user.cancel_requested` and then `task.canceled`",
        format!("{:?}", kinds(&events)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vendor_kinds_are_told_by_their_prefix() {
        for good in [
            "vendor.checkpoint_created",
            "com.example.thing",
            "io.example-2.a_b",
        ] {
            assert!(is_vendor(good), "{good}");
        }
        for bad in [
            "task.exploded",
            "vendor",
            "vendor.",
            "Vendor.x",
            "a..b",
            "error",
        ] {
            assert!(!is_vendor(bad), "{bad}");
        }
    }
}
