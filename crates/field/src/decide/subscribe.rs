//! SUBSCRIBE: what an agent wants to hear about.

use std::collections::BTreeMap;

use canon::Value;
use serde_json::json;

use super::Work;
use crate::config::Level;
use crate::error::{Check, Code, Fault};
use crate::event::{Event, Subscription};
use crate::kind::{SubscribeAction, Topic};
use crate::render;

impl Work<'_> {
    pub(super) fn subscribe(&mut self) -> Check<Value> {
        let payload = self.payload();
        let action = payload.required_choice("action", SubscribeAction::parse)?;
        let subscription = match action {
            SubscribeAction::Subscribe => Some(self.new_subscription()?),
            SubscribeAction::Unsubscribe => Some(self.own_subscription()?),
            SubscribeAction::List => None,
        };
        let mut answer = json!({
            "status": "ok",
            "subscription": subscription.as_ref().map(render::subscription),
            // The addresses belong to the transport, which fills them in where it pushes.
            "push": if self.field.config.level >= Level::Standard {
                json!({"websocket_url": null, "sse_url": null})
            } else {
                Value::Null
            },
        });
        if let (SubscribeAction::List, Some(members)) = (action, answer.as_object_mut()) {
            let own = self.own_subscriptions().map(render::subscription).collect();
            members.insert("subscriptions".into(), Value::Array(own));
        }
        self.log(Event::Subscribed {
            action,
            subscription,
        });
        Ok(answer)
    }

    fn own_subscriptions(&self) -> impl Iterator<Item = &Subscription> {
        let own = self.field.subscriptions.get(self.agent());
        own.into_iter().flat_map(BTreeMap::values)
    }

    fn new_subscription(&mut self) -> Check<Subscription> {
        let payload = self.payload();
        let members = payload
            .object("subscription", "subscription.")?
            .ok_or_else(|| payload.missing("subscription"))?;
        if members.value("id").is_some() {
            return Err(Fault::request("`subscription.id` is set by the field"));
        }
        let mut events = members.choices("events", Topic::parse, Topic::ALL.len())?;
        events.sort_unstable();
        events.dedup();
        if events.is_empty() {
            return Err(members.wrong("events", "a list of at least one event"));
        }
        let min_relevance = members.share("min_relevance")?;
        let debounce_ms = members.integer("debounce_ms", 0)?;
        let max = self.field.config.limits.subscriptions_max;
        if self.own_subscriptions().count() >= max {
            let message = format!("the sender has {max} subscriptions already");
            return Err(Fault::request(message));
        }
        Ok(Subscription {
            id: self.next_id("sub"),
            events,
            min_relevance,
            debounce_ms,
        })
    }

    fn own_subscription(&self) -> Check<Subscription> {
        let payload = self.payload();
        let members = payload
            .object("subscription", "subscription.")?
            .ok_or_else(|| payload.missing("subscription"))?;
        let id = members.required_id("id")?;
        let own = self.own_subscriptions().find(|own| own.id == id);
        own.cloned().ok_or_else(|| {
            let message = "the sender has no subscription under `subscription.id`";
            Fault::new(Code::UnitNotFound, message)
        })
    }
}
