//! The event log as a client reads it, page by page, across restarts: nothing twice, nothing missing, nothing changed.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::client::{Api, text};

/// Everything read so far.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct History {
    pub(crate) events: Vec<Value>,
    /// The last sequence and event of each resource.
    tips: BTreeMap<String, (u64, String)>,
}

impl History {
    /// Reads the whole log.
    pub(crate) async fn of(api: &Api) -> Self {
        let mut history = Self::default();
        history.read_on(api).await;
        history
    }

    /// Reads what has been added (AP-EVT-03: one after another for each resource, each naming the one before).
    pub(crate) async fn read_on(&mut self, api: &Api) {
        let after = self.events.last().map(|event| text(&event["id"]));
        for event in api.list_after("/v1/events", after.as_deref()).await {
            self.add(event);
        }
    }

    fn add(&mut self, event: Value) {
        let id = text(&event["id"]);
        if let Some(last) = self.events.last() {
            assert!(text(&last["id"]) < id, "{last} before {event}");
        }
        let resource = text(&event["resource"]["id"]);
        let before = self.tips.get(&resource);
        let sequence = before.map_or(1, |(sequence, _)| sequence + 1);
        assert_eq!(event["sequence"], json!(sequence), "{event}");
        let previous = before.map(|(_, id)| id.as_str());
        assert_eq!(event["previous_event_id"], json!(previous), "{event}");
        self.tips.insert(resource, (sequence, id));
        self.events.push(event);
    }

    /// Counts events of a kind.
    pub(crate) fn count(&self, kind: &str) -> usize {
        let of_kind = |event: &&Value| event["event"] == kind;
        self.events.iter().filter(of_kind).count()
    }
}
