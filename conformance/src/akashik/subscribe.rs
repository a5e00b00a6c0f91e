//! Subscriptions and what is pushed: AK-SUB.

use std::time::Duration;

use serde_json::{Value, json};

use super::ground::{Field, Ground, list, refused, same, same_texts, texts, units};
use super::{Row, row};
use crate::json::{at, lacking, show, text};
use crate::miss::{Checked, Miss, all_but, fail, need, unseen};
use crate::sse::Frame;
use crate::wire::{Stream, frame_data};

pub(crate) const ROWS: &[Row] = &[
    row!("AK-SUB-01", 1, "without push, agents poll with `since_epoch`", Now super::attune::polled),
    row!("AK-SUB-02", 2, "what was subscribed to is pushed", Now pushed),
    row!("AK-SUB-03", 2, "subscriptions are kept, listed and ended", Now kept),
    row!("AK-SUB-04", 2, "little relevance is suppressed, of a burst the last is kept", Now suppressed),
    row!("AK-SUB-05", 2, "who comes back catches up by polling", Now caught_up),
    row!("AK-SUB-06", 2, "the answer names the subscription and where to listen", Now shape),
    row!("AK-SUB-07", 3, "authority 2", Now super::full::subscribing),
];

/// The least gap between two notifications about one thing, where one is asked for.
const GAP: Duration = Duration::from_millis(1_500);
/// How long silence has to last to count.
const SILENCE: Duration = Duration::from_millis(400);

/// An agent that listens to what it subscribed to.
pub(crate) struct Listener<'a> {
    stream: Stream<'a>,
    within: Duration,
}

impl<'a> Listener<'a> {
    /// Subscribes and listens, as preparation.
    pub(crate) async fn open(
        field: &Field<'a>,
        agent: &str,
        subscription: Value,
    ) -> Result<Listener<'a>, Miss> {
        let payload = json!({"action": "subscribe", "subscription": subscription});
        let answer = field.made("SUBSCRIBE", agent, payload).await?;
        let Ok(url) = reqwest::Url::parse(text(&answer, "push.sse_url")) else {
            return unseen(format!(
                "the answer names no stream of events: {}",
                show(&answer)
            ));
        };
        // The address that was given for the server counts, not the one that it has for itself.
        let wire = &field.ground.wire;
        let root = wire.base.path().trim_end_matches('/');
        let path = url.path();
        let path = path.strip_prefix(root).unwrap_or(path);
        let path = url
            .query()
            .map_or_else(|| path.to_owned(), |query| format!("{path}?{query}"));
        let call = wire
            .get(path)
            .version(None)
            .header("Accept", "text/event-stream");
        let opened = async { call.stream().await?.opened() };
        let stream = opened
            .await
            .map_err(|miss| miss.while_preparing("listen"))?;
        Ok(Listener {
            stream,
            within: wire.timeout.min(Duration::from_secs(5)),
        })
    }

    /// Waits for the next notification and requires it to be of an event.
    pub(crate) async fn hears(&mut self, event: &str) -> Result<Value, Miss> {
        let frame = self.frame().await?;
        let data = frame_data(&frame);
        need(
            text(&data, "event") == event,
            format!("`{event}`"),
            show(&data),
        )?;
        Ok(data)
    }

    pub(crate) async fn frame(&mut self) -> Result<Frame, Miss> {
        let frame = self.stream.frame(self.within).await;
        frame.map_or_else(|| fail("a notification", "none in time"), Ok)
    }

    async fn silent(&mut self) -> Checked {
        let frame = self.stream.frame(SILENCE).await;
        need(frame.is_none(), "silence", format!("{frame:?}"))
    }
}

async fn pushed(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann", "bob"]).await?;
    let mut listener =
        Listener::open(&field, "bob", json!({"events": ["memory.recorded"]})).await?;
    let id = field.note("ann", "a note", json!({})).await?;
    let heard = listener.hears("memory.recorded").await?;
    let members = [
        "subscription_id",
        "event",
        "epoch",
        "relevance_score",
        "summary",
        "memory_unit_id",
        "conflict_id",
        "requires_action",
    ];
    let missing = lacking(&heard, &members);
    need(
        missing.is_empty(),
        "all members",
        format!("no {}", missing.join(", ")),
    )?;
    let holds = text(&heard, "memory_unit_id") == id
        && at(&heard, "conflict_id").is_null()
        && at(&heard, "relevance_score").is_number()
        && at(&heard, "requires_action").is_boolean();
    need(holds, "a notification about the unit", show(&heard))
}

async fn kept(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann", "bob"]).await?;
    let none = json!({"action": "subscribe", "subscription": {"events": []}});
    field
        .no("SUBSCRIBE", "ann", none, "INVALID_REQUEST")
        .await?;
    let payload = json!({"action": "subscribe", "subscription": {"events": ["memory.recorded"]}});
    let made = field.ok("SUBSCRIBE", "ann", payload.clone()).await?;
    let id = text(&made, "subscription.id").to_owned();
    field.ok("SUBSCRIBE", "bob", payload).await?;
    let mine = async || {
        let answer = field
            .ok("SUBSCRIBE", "ann", json!({"action": "list"}))
            .await?;
        Ok::<_, Miss>(texts(&list(&answer, "subscriptions"), "id"))
    };
    same_texts("one's own", &mine().await?, &[&id])?;
    let nameless = json!({"action": "unsubscribe", "subscription": {}});
    let answer = field.say("SUBSCRIBE", "ann", nameless).await?;
    refused(&answer, "INVALID_REQUEST")?;
    let ended = json!({"action": "unsubscribe", "subscription": {"id": id}});
    field.ok("SUBSCRIBE", "ann", ended).await?;
    same_texts("none after it ended", &mine().await?, &[] as &[&str])
}

async fn suppressed(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann", "bob", "carl"]).await?;
    let wanted = json!({"events": ["memory.recorded"], "min_relevance": 1.0});
    let mut listener = Listener::open(&field, "bob", wanted).await?;
    field.note("ann", "a note", json!({})).await?;
    listener.silent().await?;
    let wanted = json!({"events": ["memory.contested"], "debounce_ms": GAP.as_millis() as u64});
    let mut listener = Listener::open(&field, "carl", wanted).await?;
    let known = field.note("ann", "it is so", json!({})).await?;
    let mut last = Value::Null;
    for _ in 0..3 {
        let unsure = json!({"confidence": {"score": 0.1, "reasoning": "a guess"}});
        let (_, conflict) = field.contradict("bob", &known, unsure).await?;
        last = at(&field.view("field/status").await?, "epoch").clone();
        let merged = field
            .merge("ann", &conflict, "confidence_weighted", json!({}))
            .await?;
        merged.want(&[200])?;
    }
    // About the unit that all contest: the first at once, of the others the last, when the gap is over.
    let (frames, _) = listener.stream.rest(GAP + SILENCE).await;
    let heard = frames.iter().map(frame_data);
    let about: Vec<Value> = heard
        .filter(|heard| text(heard, "memory_unit_id") == known)
        .collect();
    let newest = about.last().map(|heard| at(heard, "epoch"));
    let holds = about.len() == 2 && newest == Some(&last);
    need(
        holds,
        "the first and the last of a burst",
        show(&json!(about)),
    )
}

async fn caught_up(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann", "bob"]).await?;
    let mut listener =
        Listener::open(&field, "bob", json!({"events": ["memory.recorded"]})).await?;
    field.note("ann", "heard", json!({})).await?;
    let heard = listener.hears("memory.recorded").await?;
    let epoch = at(&heard, "epoch").as_u64().unwrap_or_default() + 1;
    drop(listener);
    let missed = field.note("ann", "missed", json!({})).await?;
    let found = field.attune("bob", json!({"since_epoch": epoch})).await?;
    same_texts("what was missed", &units(&found), &[missed])?;
    all_but("that it is durable before it is pushed")
}

async fn shape(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann"]).await?;
    let wanted = json!({"events": ["memory.recorded"], "min_relevance": 0.5, "debounce_ms": 100});
    let payload = json!({"action": "subscribe", "subscription": wanted});
    let answer = field.ok("SUBSCRIBE", "ann", payload).await?;
    same("`status`", at(&answer, "status"), &json!("ok"))?;
    for (member, expected) in [
        ("events", json!(["memory.recorded"])),
        ("debounce_ms", json!(100)),
    ] {
        same(
            member,
            at(&answer, "subscription")
                .get(member)
                .unwrap_or(&Value::Null),
            &expected,
        )?;
    }
    let urls = [
        at(&answer, "push.sse_url"),
        at(&answer, "push.websocket_url"),
    ];
    let named = urls.iter().any(|url| url.is_string());
    need(
        named && !text(&answer, "subscription.id").is_empty(),
        "an id and an address",
        show(&answer),
    )
}
