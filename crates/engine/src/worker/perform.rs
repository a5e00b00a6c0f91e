//! Performing the effects of one step: all at once, each recorded as it ends.
//!
//! Time, randomness and what the Session remembers come from the engine's own ports; the rest is the performer's.
//! Pieces of streamed text are shown while a model call runs, not more often than a reader can follow.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use canon::{Value, sha256};
use domain::{EffectResult, Kind, Move, Position, ReplayedEvent, State};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde_json::json;
use tokio::sync::mpsc;

use super::run::Run;
use crate::field::AtMemory;
use crate::port::{BoxFuture, Deltas};
use crate::refused::Refused;
use runs::workflow::{Effect, EffectAnswer, EffectKind, EffectOutcome};

/// How often pieces of streamed text are committed, per call, and how long each may be (U12: a stream is four events a
/// second, however fine the provider cuts it). What a call has streamed faster follows with its result.
const DELTA_INTERVAL: Duration = Duration::from_millis(250);
/// A little less than an event holds inline, so that a piece is no blob beside it.
const DELTA_BYTES_MAX: usize = 3_584;

/// Messages that an agent remembers of its Session, the newest.
const MEMORY_MESSAGES_MAX: usize = 200;

/// Text that a model call has streamed and nobody has seen yet.
struct Stream {
    effect_key: String,
    index: u64,
    text: String,
}

impl Run<'_> {
    pub(super) async fn perform(
        &mut self,
        effects: Vec<(usize, Effect)>,
        answers: &mut [Option<EffectAnswer>],
    ) -> Result<(), Refused> {
        let mut open: BTreeMap<usize, (String, EffectKind)> = effects
            .iter()
            .map(|(index, effect)| (*index, (effect.key.clone(), effect.kind)))
            .collect();
        let clock = std::sync::Arc::clone(&self.engine.shared.clock);
        // Runs while an interrupt could not be read: the step goes on meanwhile, so that nothing it performs is lost.
        let mut look_again: Option<BoxFuture<'static, ()>> = None;
        if self.is_interrupted() {
            match self.interrupt(&open, answers).await {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(refused) => look_again = Some(self.put_off(&refused)),
            }
        }
        let (sender, mut pieces) = mpsc::unbounded_channel::<(usize, String)>();
        let mut streams: Vec<Stream> = Vec::new();
        let mut running: FuturesUnordered<_> = FuturesUnordered::new();
        for (index, effect) in effects {
            let (key, kind) = (effect.key.clone(), effect.kind);
            let stream = streams.len();
            streams.push(Stream {
                effect_key: key.clone(),
                index: 0,
                text: String::new(),
            });
            let performed = self.one(effect, stream, &sender).await?;
            running.push(async move { (index, stream, key, kind, performed.await.made_safe()) });
        }
        drop(sender);
        // Nobody is kept busy by a Task that only waits.
        let work = &self.engine.shared.work;
        let is_held = |(_, kind): &(String, EffectKind)| *kind == EffectKind::Hold;
        let _resting = open.values().all(is_held).then(|| work.park(self.key));
        let mut pause: Option<BoxFuture<'static, ()>> = None;
        // Results that came while something was committed.
        let mut ended = VecDeque::new();
        loop {
            let waited = async {
                match &mut pause {
                    Some(pause) => pause.await,
                    None => std::future::pending().await,
                }
            };
            let may_look = look_again.is_none();
            let looked = async {
                match &mut look_again {
                    Some(look_again) => look_again.await,
                    None => std::future::pending().await,
                }
            };
            let next = async {
                match ended.pop_front() {
                    Some(next) => Some(next),
                    None => running.next().await,
                }
            };
            let mut signals = self.signals.clone();
            let known = self.interrupted;
            let interrupted = async {
                if signals
                    .wait_for(|signal| signal.interrupt > known)
                    .await
                    .is_err()
                {
                    // Nobody is left who could interrupt.
                    std::future::pending::<()>().await;
                }
            };
            let is_late = tokio::select! {
                biased;
                next = next => {
                    let Some((index, stream, key, kind, performed)) = next else { return Ok(()) };
                    open.remove(&index);
                    while let Ok((stream, text)) = pieces.try_recv() {
                        collect(&mut streams, stream, &text);
                    }
                    self.show_rest(streams.get_mut(stream));
                    self.recorded(index, key, kind, performed, answers);
                    // The last result travels with what the workflow does next.
                    !running.is_empty() || !ended.is_empty()
                }
                // Only as a whole, so that a step has either all its results or is told why not.
                () = interrupted, if may_look && self.streams_as.is_none() && open.values().all(can_be_dropped) => {
                    match self.interrupt(&open, answers).await {
                        Ok(true) => return Ok(()),
                        Ok(false) => {}
                        Err(refused) => look_again = Some(self.put_off(&refused)),
                    }
                    false
                }
                () = looked => {
                    look_again = None;
                    false
                }
                piece = pieces.recv(), if !pieces.is_closed() || !pieces.is_empty() => {
                    if let Some((stream, text)) = piece {
                        collect(&mut streams, stream, &text);
                        if pause.is_none() {
                            pause = Some(clock.sleep(DELTA_INTERVAL));
                        }
                    }
                    false
                }
                () = waited => {
                    pause = None;
                    for stream in &mut streams {
                        self.show(stream);
                    }
                    if streams.iter().any(|stream| !stream.text.is_empty()) {
                        pause = Some(clock.sleep(DELTA_INTERVAL));
                    }
                    true
                }
            };
            if is_late {
                // Whoever waits for the store must not keep providers and tools waiting.
                let mut flushed = std::pin::pin!(self.flush());
                loop {
                    tokio::select! {
                        biased;
                        flushed = &mut flushed => break flushed?,
                        Some(next) = running.next() => ended.push_back(next),
                    }
                }
            }
        }
    }

    fn is_interrupted(&self) -> bool {
        self.signals.borrow().interrupt > self.interrupted
    }

    /// Records that effects were dropped for the interrupts that wait, and what these said. False when somebody was
    /// faster, or when the effects must run to their end.
    async fn interrupt(
        &mut self,
        open: &BTreeMap<usize, (String, EffectKind)>,
        answers: &mut [Option<EffectAnswer>],
    ) -> Result<bool, Refused> {
        if self.streams_as.is_some() || !open.values().all(can_be_dropped) {
            return Ok(false);
        }
        let newest = self.signals.borrow().interrupt;
        let task = self.load().await?;
        let waiting = task.map(|task| task.interrupts).unwrap_or_default();
        let Some(through) = waiting.last().copied() else {
            self.interrupted = newest;
            return Ok(false);
        };
        let mut said = Vec::new();
        for position in waiting {
            said.extend(self.interrupt_text(position).await?);
        }
        self.interrupted = Some(through);
        let mut told = Some((said.join("\n\n"), through));
        for (index, (key, kind)) in open {
            // The first one brings the words, the others only the fact.
            let (words, through) = told.take().unzip();
            let performed = EffectOutcome {
                ok: false,
                ..EffectOutcome::ok(domain::interrupted(&words.unwrap_or_default()))
            };
            self.recorded(*index, key.clone(), *kind, performed, answers);
            if let Some(Move::RecordEffect(result)) = self.moves.last_mut() {
                result.interrupted_through = through;
            }
        }
        Ok(true)
    }

    /// Returns the time until an interrupt that could not be read is looked at again.
    fn put_off(&self, refused: &Refused) -> BoxFuture<'static, ()> {
        const LOOK_AGAIN: Duration = Duration::from_millis(250);
        tracing::warn!(task.id = %self.id, fault = %refused.for_the_log(), "an interrupt was not read yet");
        self.engine.shared.clock.sleep(LOOK_AGAIN)
    }

    /// Returns the words of the Message that came with an interrupt.
    async fn interrupt_text(&self, interrupt: Position) -> Result<Option<String>, Refused> {
        let asked = self.engine.payload(interrupt).await?;
        let Some(id) = asked.get("message_id").and_then(Value::as_str) else {
            return Ok(None);
        };
        let message = match self
            .engine
            .document(id)
            .await?
            .map(|document| document.state)
        {
            Some(State::Message(message)) => message,
            _ => return Ok(None),
        };
        let payload = self.engine.payload(message.source).await?;
        let parts = domain::payload::Message::of(&payload).parts();
        let parts = parts.and_then(Value::as_array);
        Ok(parts.map(|parts| domain::public_text(parts)))
    }

    /// Shows what a call streamed at last.
    fn show_rest(&mut self, stream: Option<&mut Stream>) {
        let Some(stream) = stream else { return };
        while !stream.text.is_empty() {
            self.show(stream);
        }
    }

    /// Shows the next piece of what a call has streamed.
    fn show(&mut self, stream: &mut Stream) {
        if stream.text.is_empty() {
            return;
        }
        let mut end = stream.text.len().min(DELTA_BYTES_MAX);
        while !stream.text.is_char_boundary(end) {
            end -= 1;
        }
        let rest = stream.text.split_off(end);
        let text = std::mem::replace(&mut stream.text, rest);
        self.moves.push(match &self.streams_as {
            None => Move::Delta {
                effect_key: stream.effect_key.clone(),
                index: stream.index,
                text,
            },
            Some(mark) => Move::Replay(Box::new(ReplayedEvent {
                kind: Kind::MessageDelta,
                actor: None,
                artifact: None,
                content: None,
                payload: [
                    ("effect_key".to_owned(), json!(stream.effect_key)),
                    ("index".to_owned(), json!(stream.index)),
                    ("text".to_owned(), json!(text)),
                ]
                .into_iter()
                .collect(),
                mark: mark.clone(),
            })),
        });
        stream.index += 1;
    }

    fn recorded(
        &mut self,
        index: usize,
        key: String,
        kind: EffectKind,
        performed: EffectOutcome,
        answers: &mut [Option<EffectAnswer>],
    ) {
        // Nobody here is at fault for what a tool or a model returns, and its event must be readable.
        let depth = canon::depth(&performed.value);
        let performed = match depth > canon::VALUE_DEPTH_MAX {
            false => performed,
            true => {
                let message = format!("the result nests {depth} levels deep, which is too deep");
                EffectOutcome {
                    provider_request_id: performed.provider_request_id,
                    model: performed.model,
                    observed: performed.observed,
                    ..EffectOutcome::error("nested_too_deeply", message)
                }
            }
        };
        let EffectOutcome {
            ok,
            value,
            provider_request_id,
            model,
            observed,
        } = performed;
        self.moves.push(Move::RecordEffect(EffectResult {
            key,
            kind: kind.record_kind().to_owned(),
            ok,
            value: value.clone(),
            provider_request_id,
            model: model.clone(),
            observed: observed.map(Box::new),
            interrupted_through: None,
        }));
        if let Some(slot) = answers.get_mut(index) {
            *slot = Some(EffectAnswer { ok, value, model });
        }
    }

    /// Starts one effect.
    async fn one(
        &self,
        effect: Effect,
        stream: usize,
        pieces: &mpsc::UnboundedSender<(usize, String)>,
    ) -> Result<BoxFuture<'static, EffectOutcome>, Refused> {
        let shared = &self.engine.shared;
        let value = match effect.kind {
            EffectKind::Time => json!(shared.clock.now()),
            EffectKind::Random => {
                // Hashed, so that nothing tells how the source makes its text.
                json!({"hex": sha256(shared.ids.salt().as_bytes()).hex()})
            }
            EffectKind::Memory if effect.request.get("scope") == Some(&json!("field")) => {
                let Some(task) = self.load().await? else {
                    let error = EffectOutcome::error("task_unknown", "the task is gone");
                    return Ok(Box::pin(std::future::ready(error)));
                };
                let at = AtMemory {
                    id: &self.id,
                    task: &task,
                    key: &effect.key,
                };
                let performed = self.engine.task_memory(at, &effect.request).await?;
                return Ok(Box::pin(std::future::ready(performed)));
            }
            EffectKind::Memory => self.memory().await?,
            EffectKind::Model => {
                let pieces = pieces.clone();
                let deltas = Deltas::to(move |text| drop(pieces.send((stream, text))));
                return Ok(shared.performer.perform(effect, deltas));
            }
            EffectKind::McpTool
            | EffectKind::LocalTool
            | EffectKind::Secret
            | EffectKind::Host
            | EffectKind::Hold
            | EffectKind::Ask(_) => return Ok(shared.performer.perform(effect, Deltas::none())),
        };
        Ok(Box::pin(std::future::ready(EffectOutcome::ok(value))))
    }

    /// Returns the newest Messages of the Session before this Task, as a model reads them.
    async fn memory(&self) -> Result<Value, Refused> {
        let Some(task) = self.load().await? else {
            return Ok(json!({"messages": []}));
        };
        let session = self.engine.shared_document(task.session_id.as_str());
        let Some(session) = session.await? else {
            return Ok(json!({"messages": []}));
        };
        let State::Session(state) = &session.state else {
            return Ok(json!({"messages": []}));
        };
        let newest = self
            .engine
            .newest_messages(session.key, state, task.submitted, MEMORY_MESSAGES_MAX)
            .await?;
        let mut messages = Vec::with_capacity(newest.len());
        for message in newest {
            let State::Message(message) = message.state else {
                continue;
            };
            let payload = self.engine.payload(message.source).await?;
            if domain::pruned_digest(&payload).is_some() {
                // Nobody remembers it; an empty Message would be a lie.
                continue;
            }
            let parts = payload
                .get("parts")
                .and_then(Value::as_array)
                .map(Vec::as_slice)
                .unwrap_or_default();
            let role = match message.role {
                domain::Role::Agent => "assistant",
                other => other.as_str(),
            };
            messages.push(json!({"role": role, "content": domain::public_text(parts)}));
        }
        Ok(json!({"messages": messages}))
    }
}

/// True for what may take long and is dropped by an interrupt: its result tells that nobody knows how far it came.
fn can_be_dropped((_, kind): &(String, EffectKind)) -> bool {
    match kind {
        EffectKind::Model | EffectKind::McpTool | EffectKind::LocalTool | EffectKind::Hold => true,
        EffectKind::Time
        | EffectKind::Random
        | EffectKind::Memory
        | EffectKind::Secret
        | EffectKind::Host
        | EffectKind::Ask(_) => false,
    }
}

fn collect(streams: &mut [Stream], stream: usize, text: &str) {
    if let Some(stream) = streams.get_mut(stream) {
        stream.text.push_str(text);
    }
}
