//! Events: by id, in ranges, and as streams. Bytes go out as they were stored (AP-EVT-07).

use std::borrow::Cow;

use engine::{EventRange, Filters};

use super::Routes;
use crate::call::{Call, json_bytes};
use crate::failure::{Failure, Reply};
use crate::sse;

pub(super) fn routes(routes: Routes) -> Routes {
    routes
        .get("/v1/events", list)
        .get("/v1/events/stream", stream)
        .get("/v1/events/{event_id}", read)
        .get("/v1/sessions/{session_id}/events", list_of_session)
        .get("/v1/sessions/{session_id}/events/stream", stream_of_session)
        .get("/v1/tasks/{task_id}/events", list_of_task)
        .get("/v1/tasks/{task_id}/stream", stream_of_task)
}

const FILTERS: [&str; 3] = ["workspace_id", "session_id", "task_id"];

fn of_session(call: &Call) -> Filters {
    Filters {
        session_id: Some(call.param("session_id").to_owned()),
        ..Filters::default()
    }
}

fn of_task(call: &Call) -> Filters {
    Filters {
        task_id: Some(call.param("task_id").to_owned()),
        ..Filters::default()
    }
}

fn range(filters: Filters, after_event_id: Option<String>, limit: usize) -> EventRange {
    EventRange {
        filters,
        after_event_id,
        limit,
    }
}

async fn page(call: &Call, filters: Filters) -> Reply {
    let range = range(filters, call.event_cursor()?, call.limit()?);
    let is_compact = match call.query("view")? {
        None | Some("stored") => false,
        Some("compact") => true,
        Some(_) => {
            let message = "`view` must be `stored` or `compact`";
            return Err(Failure::invalid("view", message));
        }
    };
    let engine = &call.app.engine;
    let page = match call.query("order")? {
        None | Some("asc") => engine.events(&call.caller, range).await?,
        Some("desc") => engine.newest_events(&call.caller, range).await?,
        Some(_) => return Err(Failure::invalid("order", "`order` must be `asc` or `desc`")),
    };
    let events = page.events.iter().map(|event| &*event.bytes);
    if is_compact {
        let compact: Vec<Vec<u8>> = events.map(wire::compact_event).collect();
        let compact = compact.iter().map(Vec::as_slice);
        return Ok(json_bytes(wire::event_list(compact, page.has_more)));
    }
    Ok(json_bytes(wire::event_list(events, page.has_more)))
}

/// The header is what a client that reconnects knows best: it wins over the query it first connected with.
async fn open(call: &Call, filters: Filters) -> Reply {
    let in_query = call.event_cursor()?;
    // One that is no text names no event. Taken for none, it would bring all of the history again.
    let in_header = call.headers().get("last-event-id");
    let in_header = in_header.map(|id| String::from_utf8_lossy(id.as_bytes()));
    let in_header = in_header.filter(|id| !id.is_empty());
    let cursor = in_header.map(Cow::into_owned).or(in_query);
    sse::open(call, range(filters, cursor, 1)).await
}

async fn list(call: Call) -> Reply {
    let filters = call.filters(&FILTERS)?;
    page(&call, filters).await
}

async fn stream(call: Call) -> Reply {
    let filters = call.filters(&FILTERS)?;
    open(&call, filters).await
}

async fn list_of_session(call: Call) -> Reply {
    page(&call, of_session(&call)).await
}

async fn stream_of_session(call: Call) -> Reply {
    open(&call, of_session(&call)).await
}

async fn list_of_task(call: Call) -> Reply {
    page(&call, of_task(&call)).await
}

async fn stream_of_task(call: Call) -> Reply {
    open(&call, of_task(&call)).await
}

async fn read(call: Call) -> Reply {
    let id = call.param("event_id");
    let event = call.app.engine.event(&call.caller, id).await;
    let event = event.map_err(Failure::from)?;
    Ok(json_bytes(event.bytes.to_vec()))
}
