//! What a replay had come to when somebody stopped it, from what it wrote.

use std::collections::BTreeMap;
use std::sync::Arc;

use canon::{Digest, Value, jcs, sha256};
use domain::{Event, Status};
use receipts::Applied;

use super::overrides::operation;
use super::{LiveResults, Runner};
use crate::replay::live;
use crate::replay::outcome::{Emission, Replayed};
use crate::replay::request::Spec;
use crate::replay::source::Source;

/// Returns a replay that was stopped. `log` holds what its receipt must tell: the events that an override or the outside
/// brought about and the uses of tools, with their blobs filled in. Nothing else of it is told.
pub fn canceled(source: &Source, spec: &Spec, log: Vec<Event>) -> Replayed {
    let secrets = BTreeMap::new();
    let mut runner = Runner::new(source, spec, &secrets, LiveResults::new());
    // The state of a boundary is delivered before anything is told.
    if let Some(id) = &spec.checkpoint
        && !log.is_empty()
    {
        let place = source.checkpoint(id);
        let event = place.and_then(|place| source.event(place));
        let digest = event.and_then(|event| digest_in(event, "state_sha256"));
        runner.apply(&format!("host:checkpoint:{id}"), place, digest);
    }
    for event in log {
        runner.emit_recorded(event);
    }
    let end = super::End::plain(Status::Canceled);
    runner.into_replayed(end, false)
}

impl Runner<'_> {
    fn emit_recorded(&mut self, event: Event) {
        let mark = event.replay.as_ref();
        let answered = event.effect_key();
        let answered = answered.filter(|_| live::is_answer(&event));
        let key = mark.and_then(|mark| mark.override_key.clone());
        if let Some(key) = key.or_else(|| answered.map(str::to_owned)) {
            self.delivered(&key, &event);
        }
        let Ok(kind) = event.kind() else { return };
        self.replayed.emissions.push(Emission {
            kind,
            original: None,
            cursor: None,
            payload: Some(Arc::unwrap_or_clone(event.payload)),
            override_key: None,
            artifact: None,
            content: None,
        });
    }

    fn delivered(&mut self, key: &str, event: &Event) {
        let recorded = self.source.places(key).recorded;
        if let Some(id) = key.strip_prefix("event:") {
            let place = self.source.index_of(id);
            let before =
                place.map(|place| sha256(&jcs(&Value::Object(self.source.payload(place)))));
            self.apply(key, place, before);
        } else if self.source.lifecycle_event(key).is_some() {
            self.lifecycle_time(key, 0);
        } else if live::is_told_by(&event.payload) || live::is_answer(event) {
            self.replayed.apply(Applied {
                key: key.to_owned(),
                operation: operation(recorded),
                event_id: self.event_id(recorded),
                before_sha256: self.recorded_digest(key),
                after_sha256: digest_in(event, "value_sha256"),
                artifact_id: None,
                reason: live::reason(live::is_answer(event)).to_owned(),
            });
        } else {
            self.apply(key, recorded, self.recorded_digest(key));
        }
    }
}

fn digest_in(event: &Event, member: &str) -> Option<Digest> {
    let text = event.payload.get(member)?.as_str()?;
    Digest::parse(text).ok()
}
