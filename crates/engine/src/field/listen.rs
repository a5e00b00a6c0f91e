//! What subscribers of a field are notified of, as it happens. Nothing is kept for whoever is away: an agent that comes back
//! catches up by ATTUNE with `since_epoch`.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use canon::Value;
use field::{Debouncer, Notification};
use tokio::sync::broadcast;

use super::processor::PushBatch;
use super::{FieldName, FieldRefused, ceiling, credential};
use crate::caller::Caller;
use crate::engine::{Engine, Shared};
use crate::refused::Refused;
use crate::stream::OpenStream;

/// One notification on its way to an agent.
#[derive(Debug, Clone, PartialEq)]
pub struct FieldFrame {
    /// `epoch.sequence` of what happened.
    pub id: String,
    /// The topic.
    pub event: &'static str,
    /// The notification.
    pub data: Value,
}

/// The notifications of one agent. Dropping it ends them.
#[derive(Debug)]
pub struct FieldStream {
    shared: Arc<Shared>,
    agent_id: String,
    pushed: broadcast::Receiver<Arc<PushBatch>>,
    debouncer: Debouncer,
    ready: VecDeque<FieldFrame>,
    /// The sequence of the last operation heard of.
    seq: u64,
    _seat: ListenerGuard,
    _open: OpenStream,
}

/// The agents for whom somebody listens at the moment, and how often each: nobody else is told anything.
#[derive(Debug, Default)]
pub(super) struct Listeners(Mutex<BTreeMap<String, usize>>);

impl Listeners {
    fn counts(&self) -> MutexGuard<'_, BTreeMap<String, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn agents(&self) -> Vec<String> {
        self.counts().keys().cloned().collect()
    }
}

/// Somebody who listens for an agent, until this is dropped.
#[derive(Debug)]
pub(super) struct ListenerGuard {
    listeners: Arc<Listeners>,
    agent_id: String,
}

impl ListenerGuard {
    pub(super) fn take(listeners: &Arc<Listeners>, agent_id: &str) -> Self {
        *listeners.counts().entry(agent_id.to_owned()).or_default() += 1;
        Self {
            listeners: Arc::clone(listeners),
            agent_id: agent_id.to_owned(),
        }
    }
}

impl Drop for ListenerGuard {
    fn drop(&mut self) {
        let mut counts = self.listeners.counts();
        if let Some(count) = counts.get_mut(&self.agent_id) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                counts.remove(&self.agent_id);
            }
        }
    }
}

impl Engine {
    /// Opens the notifications of an agent for which the caller may act.
    ///
    /// # Errors
    /// See [`FieldRefused`].
    pub async fn field_stream(
        &self,
        caller: &Caller,
        name: Option<&str>,
        agent_id: &str,
    ) -> Result<FieldStream, FieldRefused> {
        let ceiling = ceiling(caller).ok_or(Refused::PermissionDenied {
            scope: "field:read",
        })?;
        let open = OpenStream::of(&self.shared, caller)?;
        let processor = self.shared.fields.processor(&FieldName::of(caller, name)?);
        let mut held = processor.held().await;
        let held = match &mut *held {
            Some(held) => held,
            empty => empty.insert(self.open_field(&processor).await?),
        };
        let field = &held.field;
        field.check_listener(&credential(caller, ceiling), agent_id)?;
        // While nobody can write: everything after this is heard.
        let (pushed, seat) = processor.listen(agent_id);
        Ok(FieldStream {
            shared: Arc::clone(&self.shared),
            agent_id: agent_id.to_owned(),
            pushed,
            debouncer: Debouncer::default(),
            ready: VecDeque::new(),
            seq: 0,
            _seat: seat,
            _open: open,
        })
    }
}

impl FieldStream {
    /// Returns the next notification; none when some were missed, because the reader was too slow. Whoever asks again then
    /// has to catch up first.
    ///
    /// Safe to drop and call again.
    pub async fn next(&mut self) -> Option<FieldFrame> {
        loop {
            if let Some(frame) = self.ready.pop_front() {
                return Some(frame);
            }
            let now = self.shared.clock.now();
            let wait = self.debouncer.next_due().map(|due| {
                let micros = due.saturating_sub(now.as_micros()).max(0);
                Duration::from_micros(micros.unsigned_abs())
            });
            let due = async {
                match wait {
                    Some(wait) => self.shared.clock.sleep(wait).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                pushed = self.pushed.recv() => match pushed {
                    Ok(pushed) => self.take(&pushed),
                    Err(_) => return None,
                },
                () = due => {
                    let now = self.shared.clock.now();
                    let due = self.debouncer.due(now);
                    let seq = self.seq;
                    self.ready.extend(due.iter().map(|notification| frame(notification, seq)));
                }
            }
        }
    }

    fn take(&mut self, pushed: &PushBatch) {
        self.seq = pushed.seq;
        let now = self.shared.clock.now();
        let own = pushed
            .notifications
            .iter()
            .filter(|notification| notification.agent_id == self.agent_id);
        for notification in own {
            if let Some(notification) = self.debouncer.offer(notification.clone(), now) {
                self.ready.push_back(frame(&notification, pushed.seq));
            }
        }
    }
}

fn frame(notification: &Notification, seq: u64) -> FieldFrame {
    FieldFrame {
        id: format!("{}.{seq}", notification.epoch()),
        event: notification.topic().as_str(),
        data: notification.to_json(),
    }
}
