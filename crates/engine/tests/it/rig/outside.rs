//! The outside of these tests: it answers by effect key, however often it is asked.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use canon::Value;
use domain::ModelUse;
use engine::Offline;
use engine::port::{BoxFuture, Deltas, Performer};
use runs::workflow::{Effect, EffectOutcome};
use serde_json::json;

/// The outside. What it answers depends on the key of the effect alone.
#[derive(Debug, Default)]
pub(crate) struct Outside {
    answers: Mutex<BTreeMap<String, EffectOutcome>>,
    delays: Mutex<BTreeMap<String, u64>>,
    dawdles: Mutex<BTreeMap<String, u32>>,
    pieces: Mutex<BTreeMap<String, (Vec<String>, u64)>>,
    calls: Mutex<Vec<String>>,
    requests: Mutex<Vec<Effect>>,
    pub(super) step_us: AtomicI64,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Outside {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Lets time pass whenever somebody looks at the clock.
    pub(crate) fn time_passes(&self) -> &Self {
        self.time_leaps(1_000_000)
    }

    /// Lets that much time pass whenever somebody looks at the clock.
    pub(crate) fn time_leaps(&self, us: i64) -> &Self {
        self.step_us.store(us, Ordering::Relaxed);
        self
    }

    /// Answers an effect with a value.
    pub(crate) fn answer(&self, key: &str, value: Value) -> &Self {
        self.perform_as(key, EffectOutcome::ok(value))
    }

    pub(crate) fn perform_as(&self, key: &str, performed: EffectOutcome) -> &Self {
        locked(&self.answers).insert(key.to_owned(), performed);
        self
    }

    pub(crate) fn fails(&self, key: &str, code: &str) -> &Self {
        self.perform_as(key, EffectOutcome::error(code, format!("{key} failed")))
    }

    /// Answers a model call with words.
    pub(crate) fn says(&self, key: &str, content: &str) -> &Self {
        self.perform_as(
            key,
            completion(key, json!({"role": "assistant", "content": content})),
        )
    }

    /// Answers a model call with tool calls: id, name and arguments of each.
    pub(crate) fn uses(&self, key: &str, calls: &[(&str, &str, &str)]) -> &Self {
        let calls: Vec<Value> = calls
            .iter()
            .map(|(id, name, arguments)| {
                json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
            })
            .collect();
        let message = json!({"role": "assistant", "content": null, "tool_calls": calls});
        self.perform_as(key, completion(key, message))
    }

    pub(crate) fn tools(&self, tools: Value) -> &Self {
        self.answer("host:tools:main:1", json!({"tools": tools}))
    }

    pub(crate) fn delay(&self, key: &str, milliseconds: u64) -> &Self {
        locked(&self.delays).insert(key.to_owned(), milliseconds);
        self
    }

    /// Lets others go first that many times.
    pub(crate) fn dawdle(&self, key: &str, times: u32) -> &Self {
        locked(&self.dawdles).insert(key.to_owned(), times);
        self
    }

    /// Streams pieces slowly enough for each to be an event.
    pub(crate) fn streams(&self, key: &str, pieces: &[&str]) -> &Self {
        self.streams_every(key, pieces, 300)
    }

    pub(crate) fn streams_every(&self, key: &str, pieces: &[&str], milliseconds: u64) -> &Self {
        let pieces = pieces.iter().map(ToString::to_string).collect();
        locked(&self.pieces).insert(key.to_owned(), (pieces, milliseconds));
        self
    }

    /// Keys of what was performed so far, in order.
    pub(crate) fn calls(&self) -> Vec<String> {
        locked(&self.calls).clone()
    }

    pub(crate) fn call_count(&self) -> usize {
        locked(&self.calls).len()
    }

    /// The messages of the last model request under a key.
    pub(crate) fn messages(&self, key: &str) -> Vec<Value> {
        let request = self.request(key).unwrap_or_default();
        let messages = request.get("messages").and_then(Value::as_array);
        messages.cloned().unwrap_or_default()
    }

    /// The last request under a key.
    pub(crate) fn request(&self, key: &str) -> Option<Value> {
        let requests = locked(&self.requests);
        let found = requests.iter().rev().find(|effect| effect.key == key)?;
        Some(found.request.clone())
    }
}

pub(crate) fn completion(key: &str, message: Value) -> EffectOutcome {
    let id = format!("chatcmpl-{}", key.replace(':', "-"));
    EffectOutcome {
        provider_request_id: Some(format!("req-{}", key.replace(':', "-"))),
        model: Some(ModelUse {
            provider: "test".to_owned(),
            model: "test-1".to_owned(),
            input_tokens: 10,
            output_tokens: 5,
            cost_micros: Some(7),
            price_table: None,
            usage_unknown: false,
        }),
        ..EffectOutcome::ok(json!({"id": id, "choices": [{"index": 0, "message": message}]}))
    }
}

impl Performer for Outside {
    fn perform(&self, effect: Effect, deltas: Deltas) -> BoxFuture<'static, EffectOutcome> {
        locked(&self.calls).push(effect.key.clone());
        locked(&self.requests).push(effect.clone());
        let answer = locked(&self.answers).get(&effect.key).cloned();
        let delay = locked(&self.delays).get(&effect.key).copied();
        let pieces = locked(&self.pieces).get(&effect.key).cloned();
        let dawdles = locked(&self.dawdles).get(&effect.key).copied();
        Box::pin(async move {
            for _ in 0..dawdles.unwrap_or(0) {
                tokio::task::yield_now().await;
            }
            let (pieces, pause) = pieces.unwrap_or_default();
            for piece in pieces {
                deltas.push(piece);
                tokio::time::sleep(Duration::from_millis(pause)).await;
            }
            if let Some(delay) = delay {
                tokio::time::sleep(Duration::from_millis(delay)).await;
            }
            match answer {
                Some(answer) => answer,
                None => Offline.perform(effect, deltas).await,
            }
        })
    }
}
