//! Sessions: AP-SESS.

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::json::{at, ids, show, text};
use crate::miss::{Checked, all_but, need, unseen};
use crate::registry::{Check, Row, row};
use crate::scenario::{kinds, message, task_body, unknown_like};
use crate::wire::Wire;

const STATES: [&str; 5] = ["ACTIVE", "IDLE", "PAUSED", "CLOSED", "FAILED"];

pub(crate) const ROWS: &[Row] = &[
    row!("AP-SESS-01", M, "a session has `workspace_id`, `state` and `transcript`", Last required),
    row!("AP-SESS-02", O, "`last_event_id` is the newest event", Now last_event),
    row!("AP-SESS-03", M, "messages keep their order", Restart order),
    row!("AP-SESS-04", M, "compaction keeps references", = Check::Elsewhere("no path of the protocol compacts a session")),
    row!("AP-SESS-05", M, "truncate keeps the first turns in place", Now truncate),
    row!("AP-SESS-06", S, "a fork made before a truncate keeps everything", Now fork_first),
    row!("AP-SESS-07", M, "a fork is a new session with lineage", Now fork),
    row!("AP-SESS-08", M, "close is final", Now close),
    row!("AP-SESS-09", M, "`initial_messages` come first, in order", Now initial),
    row!("AP-SESS-10", M, "`state` follows the tasks", Now state),
    row!("AP-SESS-11", O, "a turn is one message", Now turns),
];

async fn required(wire: &Wire) -> Checked {
    let body = json!({"workspace_id": wire.home});
    let made = wire
        .post("/v1/sessions", &body)
        .send()
        .await?
        .value_of(&[201])?;
    need(
        at(&made, "workspace_id") == wire.home.as_str(),
        format!("`workspace_id` `{}`", wire.home),
        show(&made),
    )?;
    need(
        STATES.contains(&text(&made, "state")),
        "a known `state`",
        show(at(&made, "state")),
    )?;
    let transcript = at(&made, "transcript");
    need(
        transcript.is_object() || transcript.is_string(),
        "`transcript` as object or string",
        show(transcript),
    )?;
    let ledger = wire.ledger();
    let strange = ledger
        .session_states
        .iter()
        .find(|(state, _)| !STATES.contains(&state.as_str()));
    need(
        strange.is_none(),
        "only known session states",
        format!("{strange:?}"),
    )
}

async fn last_event(wire: &Wire) -> Checked {
    let session = wire.session().await?;
    wire.append(&session, "the newest").await?;
    let events = wire.session_events(&session).await?;
    let read = wire
        .get(format!("/v1/sessions/{session}"))
        .send()
        .await?
        .value_of(&[200])?;
    if at(&read, "last_event_id").is_null() {
        return unseen("the server does not show `last_event_id`");
    }
    let newest = events
        .last()
        .map(|event| text(event, "id"))
        .unwrap_or_default();
    need(
        text(&read, "last_event_id") == newest,
        format!("`last_event_id` `{newest}`"),
        show(at(&read, "last_event_id")),
    )
}

async fn order(wire: &Wire) -> Checked {
    let session = wire.session().await?;
    let path = format!("/v1/sessions/{session}/messages");
    let appended = join_all((0..50).map(|number| {
        wire.post(
            &path,
            &json!({"message": message(&format!("message {number}"))}),
        )
        .made("append a message")
    }));
    for made in appended.await {
        made?;
    }
    let listed = ids(&wire.messages(&session).await?);
    need(
        listed.len() == 50,
        "50 messages",
        format!("{}", listed.len()),
    )?;
    let events = wire.session_events(&session).await?;
    let announced: Vec<String> = events
        .iter()
        .filter(|event| text(event, "event") == "session.message_appended")
        .filter_map(|event| {
            listed
                .iter()
                .find(|id| event.to_string().contains(&format!("\"{id}\"")))
                .cloned()
        })
        .collect();
    need(
        announced == listed,
        "messages in the order of their `session.message_appended` events",
        "another order",
    )?;
    need(
        ids(&wire.messages(&session).await?) == listed,
        "the same order on a second read",
        "another order",
    )?;
    if wire.restart.is_none() {
        return all_but("the order across a restart: needs --restart");
    }
    wire.restart().await?;
    need(
        ids(&wire.messages(&session).await?) == listed,
        "the same order after a restart",
        "another order",
    )
}

async fn three_messages(wire: &Wire) -> Result<String, crate::miss::Miss> {
    let session = wire.session().await?;
    for words in ["one", "two", "three"] {
        wire.append(&session, words).await?;
    }
    Ok(session)
}

async fn truncate(wire: &Wire) -> Checked {
    let session = three_messages(wire).await?;
    let before = wire.messages(&session).await?;
    let path = format!("/v1/sessions/{session}/truncate");
    for bad in [
        json!({}),
        json!({"keep_first": -1}),
        json!({"keep_first": "1"}),
        json!({"keep_first": 1.5}),
    ] {
        wire.post(&path, &bad)
            .send()
            .await?
            .refused(400, "invalid_request")?;
    }
    let all = wire
        .post(&path, &json!({"keep_first": 10}))
        .send()
        .await?
        .value_of(&[200])?;
    need(
        at(&all, "removed_turn_count") == 0,
        "nothing removed when more is kept than there is",
        show(&all),
    )?;
    let done = wire
        .post(&path, &json!({"keep_first": 1}))
        .send()
        .await?
        .value_of(&[200])?;
    let first = before
        .first()
        .map(|message| text(message, "id"))
        .unwrap_or_default();
    let holds = text(&done, "object") == "session.truncate_result"
        && text(&done, "session_id") == session
        && at(&done, "kept_turn_count") == 1
        && at(&done, "removed_turn_count") == 2
        && text(&done, "new_tip_turn_id") == first
        && text(&done, "session.id") == session;
    need(
        holds,
        format!("a `session.truncate_result`: 1 kept, 2 removed, tip `{first}`"),
        show(&done),
    )?;
    let left = ids(&wire.messages(&session).await?);
    need(
        left == [first],
        format!("only `{first}` left"),
        format!("{left:?}"),
    )?;
    let events = wire.session_events(&session).await?;
    need(
        kinds(&events).contains(&"session.truncated"),
        "event `session.truncated`",
        format!("{:?}", kinds(&events)),
    )
}

async fn fork_first(wire: &Wire) -> Checked {
    let session = three_messages(wire).await?;
    let child = wire
        .post_empty(format!("/v1/sessions/{session}/fork"))
        .made("fork a session")
        .await?;
    let child = text(&child, "id").to_owned();
    let body = json!({"keep_first": 1});
    wire.post(format!("/v1/sessions/{session}/truncate"), &body)
        .made("truncate a session")
        .await?;
    let kept = wire.messages(&child).await?.len();
    need(kept == 3, "3 messages in the fork", format!("{kept}"))
}

async fn fork(wire: &Wire) -> Checked {
    let session = three_messages(wire).await?;
    let parent = wire
        .get(format!("/v1/sessions/{session}"))
        .made("read a session")
        .await?;
    let root = at(&parent, "root_session_id")
        .as_str()
        .unwrap_or(&session)
        .to_owned();
    let path = format!("/v1/sessions/{session}/fork");
    let child = wire.post_empty(&path).send().await?.value_of(&[201])?;
    let child_id = text(&child, "id").to_owned();
    need(
        child_id != session && !child_id.is_empty(),
        "a new session",
        show(&child),
    )?;
    need(
        text(&child, "parent_session_id") == session,
        format!("`parent_session_id` `{session}`"),
        show(&child),
    )?;
    need(
        text(&child, "root_session_id") == root,
        format!("`root_session_id` `{root}`"),
        show(&child),
    )?;
    let grandchild = wire
        .post_empty(format!("/v1/sessions/{child_id}/fork"))
        .send()
        .await?
        .value_of(&[201])?;
    need(
        text(&grandchild, "root_session_id") == root,
        "the same root for a fork of a fork",
        show(&grandchild),
    )?;
    let words = |messages: &[Value]| -> Vec<Value> {
        messages
            .iter()
            .map(|one| at(one, "parts").clone())
            .collect()
    };
    let (mine, copied) = (
        wire.messages(&session).await?,
        wire.messages(&child_id).await?,
    );
    need(
        words(&mine) == words(&copied),
        "all messages copied",
        format!("{} of {}", copied.len(), mine.len()),
    )?;

    let mut events = wire.session_events(&session).await?;
    let first = mine
        .first()
        .map(|one| format!("\"{}\"", text(one, "id")))
        .unwrap_or_default();
    let appended = events.iter().find(|event| {
        text(event, "event") == "session.message_appended" && event.to_string().contains(&first)
    });
    if let Some(appended) = appended {
        let body = json!({"at_event_id": text(appended, "id")});
        let partial = wire.post(&path, &body).send().await?.value_of(&[201])?;
        let count = wire.messages(text(&partial, "id")).await?.len();
        need(
            count == 1,
            "1 message in a fork at the first one's event",
            format!("{count}"),
        )?;
    }
    let unknown = events
        .last()
        .map(|event| unknown_like(text(event, "id")))
        .unwrap_or_default();
    wire.post(&path, &json!({"at_event_id": unknown}))
        .send()
        .await?
        .refused(404, "resource_not_found")?;

    events.extend(wire.session_events(&child_id).await?);
    let seen = kinds(&events);
    for kind in ["session.thread_forked", "session.created"] {
        need(
            seen.contains(&kind),
            format!("event `{kind}`"),
            format!("{seen:?}"),
        )?;
    }
    Ok(())
}

async fn close(wire: &Wire) -> Checked {
    let session = wire.session().await?;
    let path = format!("/v1/sessions/{session}/close");
    let closed = wire.post_empty(&path).send().await?.value_of(&[200])?;
    need(
        text(&closed, "state") == "CLOSED",
        "`state` `CLOSED`",
        show(at(&closed, "state")),
    )?;
    let again = wire.post_empty(&path).send().await?.value_of(&[200])?;
    need(
        again == closed,
        format!("the session unchanged: {closed}"),
        show(&again),
    )?;
    let events = wire.session_events(&session).await?;
    let count = kinds(&events)
        .iter()
        .filter(|kind| **kind == "session.closed")
        .count();
    need(count == 1, "one event `session.closed`", format!("{count}"))?;
    let body = json!({"message": message("too late")});
    wire.post(format!("/v1/sessions/{session}/messages"), &body)
        .send()
        .await?
        .refused(409, "conflict")?;
    wire.post(format!("/v1/sessions/{session}/tasks"), &task_body(None))
        .send()
        .await?
        .refused(409, "conflict")?;
    // Whatever else would change the conversation or add to it.
    for (path, body) in [
        (
            format!("/v1/sessions/{session}/truncate"),
            json!({"keep_first": 0}),
        ),
        (
            format!("/v1/sessions/{session}/branches"),
            json!({"kind": "session", "base_ref": session}),
        ),
        (
            "/v1/artifacts".to_owned(),
            json!({"kind": "other", "mime_type": "text/plain", "visibility": "public", "session_id": session}),
        ),
    ] {
        wire.post(path, &body)
            .send()
            .await?
            .refused(409, "conflict")?;
    }
    wire.patch(
        format!("/v1/sessions/{session}"),
        &json!({"metadata": {"late": true}}),
    )
    .send()
    .await?
    .refused(409, "conflict")?;
    // What waits in it has nobody left to wait for. How a task gets there is another requirement's matter.
    let Ok(task) = wire.reach("ask", "INPUT_REQUIRED").await else {
        return all_but("a task that is open when its session is closed");
    };
    let (task, session) = (text(&task, "id"), text(&task, "session_id"));
    let closing = wire.post_empty(format!("/v1/sessions/{session}/close"));
    closing.send().await?.value_of(&[200])?;
    let left = wire.get(format!("/v1/tasks/{task}")).send().await?;
    let left = left.value_of(&[200])?;
    let open = ["SUBMITTED", "WORKING", "INPUT_REQUIRED", "AUTH_REQUIRED"];
    need(
        !open.contains(&text(&left, "status")),
        "no task open in a closed session",
        show(at(&left, "status")),
    )?;
    let late = json!({"kind": "input", "message": message("too late")});
    wire.post(format!("/v1/tasks/{task}/messages"), &late)
        .send()
        .await?
        .refused(409, "conflict")
        .map(drop)
}

async fn initial(wire: &Wire) -> Checked {
    let body = json!({"workspace_id": wire.home, "initial_messages": [message("first"), message("second")]});
    let made = wire.post("/v1/sessions", &body).send().await?;
    need(
        (200..300).contains(&made.status),
        "a session with initial messages",
        made.found(),
    )?;
    let made = made.value()?;
    wire.append(text(&made, "id"), "third").await?;
    let listed = wire.messages(text(&made, "id")).await?;
    let words: Vec<&str> = listed.iter().map(|one| text(one, "parts.0.text")).collect();
    need(
        words == ["first", "second", "third"],
        "first, second, third",
        format!("{words:?}"),
    )
}

async fn state(wire: &Wire) -> Checked {
    let state = async |session: &str| {
        let read = wire
            .get(format!("/v1/sessions/{session}"))
            .send()
            .await?
            .value_of(&[200])?;
        Ok::<_, crate::miss::Miss>(text(&read, "state").to_owned())
    };
    let session = wire.session().await?;
    let found = state(&session).await?;
    need(found == "IDLE", "`IDLE` without a task", found)?;
    let working = wire.reach_in(&session, "hold", "WORKING").await?;
    let found = state(&session).await?;
    need(found == "ACTIVE", "`ACTIVE` while a task works", found)?;
    let cancel = format!("/v1/tasks/{}/cancel", text(&working, "id"));
    wire.post_empty(cancel).made("cancel a task").await?;
    wire.wait_for(text(&working, "id"), &["CANCELED"]).await?;
    let found = state(&session).await?;
    need(found == "IDLE", "`IDLE` after the task", found)?;
    for (workflow, status) in [("ask", "INPUT_REQUIRED"), ("approve", "AUTH_REQUIRED")] {
        let session = wire.session().await?;
        wire.reach_in(&session, workflow, status).await?;
        let found = state(&session).await?;
        need(
            found == "PAUSED",
            format!("`PAUSED` while the only task is {status}"),
            found,
        )?;
    }
    Ok(())
}

async fn turns(wire: &Wire) -> Checked {
    let session = three_messages(wire).await?;
    let count = wire.messages(&session).await?.len();
    let body = json!({"keep_first": 2});
    let done = wire
        .post(format!("/v1/sessions/{session}/truncate"), &body)
        .made("truncate a session")
        .await?;
    let sum = at(&done, "kept_turn_count")
        .as_u64()
        .zip(at(&done, "removed_turn_count").as_u64());
    need(
        sum.is_some_and(|(kept, removed)| kept + removed == count as u64),
        format!("counts that add up to {count}"),
        show(&done),
    )
}
