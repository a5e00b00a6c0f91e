//! AP-EVT, AP-TAX.

use serde_json::Value;

use crate::fixture::{Server, id, refused};

#[tokio::test]
async fn ap_evt_01_03_05_07_ranges_are_byte_identical_and_events_are_readable() {
    let server = Server::start().await;
    let api = server.client();
    let session = api.session().await;
    let task = api.task(&session, "agent").await;
    let path = format!("/v1/tasks/{}/events?limit=200", id(&task));
    let first = api.text(&path).await;
    assert_eq!(first, api.text(&path).await, "AP-EVT-07");
    let list: Value = serde_json::from_str(&first).unwrap();
    let events = list["data"].as_array().unwrap();
    assert_eq!(events[0]["event"], "task.submitted", "AP-TAX-06");
    assert_eq!(list["next_cursor"], events.last().unwrap()["id"]);
    let mut last_of = std::collections::BTreeMap::new();
    for event in events {
        let bytes = api.text(&format!("/v1/events/{}", id(event))).await;
        assert!(first.contains(&bytes), "spliced as stored");
        let resource = event["resource"].to_string();
        let sequence = event["sequence"].as_u64().unwrap();
        if let Some(before) = last_of.insert(resource, sequence) {
            assert_eq!(sequence, before + 1, "AP-EVT-03");
        }
        for name in [
            "trace_id",
            "span_id",
            "session_id",
            "task_id",
            "workspace_id",
            "actor",
            "idempotency_key",
            "previous_event_id",
            "receipt_id",
        ] {
            assert!(event.get(name).is_some(), "{name}");
        }
        assert_eq!(event.get("replayed"), None, "C-18");
    }
    refused(
        &api.get("/v1/events/event_x").await,
        404,
        "resource_not_found",
        None,
    );
}

/// Events are read in both directions, by any scope, page by page, and nothing is left out or told twice.
#[tokio::test]
async fn ranges_go_backwards_too() {
    let server = Server::start().await;
    let api = server.client();
    let session = api.session().await;
    let task = api.task(&session, "agent").await;
    api.task(&session, "agent").await;
    for path in [
        "/v1/events".to_owned(),
        format!("/v1/events?task_id={}", id(&task)),
        format!("/v1/sessions/{session}/events"),
        format!("/v1/tasks/{}/events", id(&task)),
        "/v1/events?workspace_id=workspace_local".to_owned(),
    ] {
        let sign = if path.contains('?') { '&' } else { '?' };
        let (_, all) = api.get(&format!("{path}{sign}limit=200")).await;
        let mut expected = all["data"].as_array().unwrap().clone();
        assert!(expected.len() > 5, "{path}");
        expected.reverse();
        let mut found: Vec<Value> = Vec::new();
        let mut cursor = String::new();
        loop {
            let page = format!("{path}{sign}order=desc&limit=4{cursor}");
            let (status, page) = api.get(&page).await;
            assert_eq!(status, 200, "{page}");
            let data = page["data"].as_array().unwrap();
            found.extend(data.iter().cloned());
            assert_eq!(page["next_cursor"], data.last().unwrap()["id"]);
            match page["has_more"].as_bool().unwrap() {
                true => cursor = format!("&cursor={}", page["next_cursor"].as_str().unwrap()),
                false => break,
            }
        }
        assert_eq!(found, expected, "{path}");
        // A page turned round is the page before.
        let fourth = id(&expected[3]);
        let (_, newer) = api
            .get(&format!("{path}{sign}after_event_id={fourth}&limit=200"))
            .await;
        let mut newer = newer["data"].as_array().unwrap().clone();
        newer.reverse();
        assert_eq!(newer, expected[..3], "{path}");
    }
    refused(
        &api.get("/v1/events?order=sideways").await,
        400,
        "invalid_request",
        Some("order"),
    );
}

#[tokio::test]
async fn ap_evt_06_c_13_ranges_go_on_after_an_event_under_any_name() {
    let server = Server::start().await;
    let api = server.client();
    let session = api.session().await;
    let task = api.task(&session, "agent").await;
    let path = format!("/v1/tasks/{}/events", id(&task));
    let (_, all) = api.get(&format!("{path}?limit=200")).await;
    let all = all["data"].as_array().unwrap().clone();
    let (first, second) = (id(&all[0]), id(&all[1]));
    for name in ["after_event_id", "cursor", "after"] {
        let (_, rest) = api.get(&format!("{path}?limit=200&{name}={first}")).await;
        assert_eq!(rest["data"].as_array().unwrap()[..], all[1..], "{name}");
    }
    let agree = api
        .get(&format!("{path}?after={first}&cursor={first}"))
        .await;
    assert_eq!(agree.0, 200);
    let differ = api
        .get(&format!("{path}?after={first}&cursor={second}"))
        .await;
    refused(&differ, 400, "invalid_request", Some("after_event_id"));
    let unknown = api
        .get(&format!(
            "{path}?after_event_id=event_testlog1_9999999999999999"
        ))
        .await;
    refused(&unknown, 404, "resource_not_found", Some("after_event_id"));
    let mut seen = Vec::new();
    let mut next = format!("{path}?limit=2");
    loop {
        let (_, page) = api.get(&next).await;
        seen.extend(page["data"].as_array().unwrap().clone());
        if page["has_more"] == false {
            break;
        }
        next = format!(
            "{path}?limit=2&after_event_id={}",
            page["next_cursor"].as_str().unwrap()
        );
    }
    assert_eq!(seen, all);
}

#[tokio::test]
async fn lists_of_events_narrow_by_workspace_session_and_task() {
    let server = Server::start().await;
    let api = server.client();
    let session = api.session().await;
    let task = api.task(&session, "agent").await;
    api.session().await;
    let count = async |path: String| {
        let (status, list) = api.get(&path).await;
        assert_eq!(status, 200, "{list}");
        list["data"].as_array().unwrap().len()
    };
    let all = count("/v1/events?limit=200".to_owned()).await;
    let of_session = count(format!("/v1/events?limit=200&session_id={session}")).await;
    let of_task = count(format!("/v1/events?limit=200&task_id={}", id(&task))).await;
    assert!(all > of_session && of_session > of_task && of_task > 3);
    assert_eq!(
        of_session,
        count(format!("/v1/sessions/{session}/events?limit=200")).await
    );
    refused(
        &api.get("/v1/events?task_id=task_x").await,
        404,
        "resource_not_found",
        Some("task_id"),
    );
    refused(
        &api.get("/v1/tasks/task_x/events").await,
        404,
        "resource_not_found",
        Some("task_id"),
    );
}
