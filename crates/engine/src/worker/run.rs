//! One attempt at a Task: steps its workflow over what is recorded, then performs what is not.
//!
//! Progress is buffered as moves and flushed before anything is performed, so that the result of one effect and the
//! intent of the next share a commit.

use std::collections::BTreeMap;

use canon::{Digest, Map, Value};
use domain::{
    AdvanceTask, Command, EffectIntent, EffectResult, Event, Kind, Move, NewMessage, PermissionId,
    Position, Role, State, Status, Task, TaskId,
};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde_json::json;

use crate::engine::Engine;
use crate::port::{Deltas, Fence, Performed, ReadEvents, Scope};
use crate::refused::Refused;
use crate::turn::Lease;
use crate::view;
use crate::workflow::{self, Effect, EffectAnswer, EffectKind, Step};

/// How an attempt at a Task ended.
pub(super) enum Ended {
    /// With a commit: the Task has ended or waits, as far as the attempt knows.
    Flushed,
    /// At once: the Task has ended or waits.
    NothingToDo,
}

/// One attempt at a Task.
pub(super) struct Run<'a> {
    engine: &'a Engine,
    key: Position,
    id: TaskId,
    /// The epoch of the Task's lease, once it is held.
    pub(super) epoch: Option<u64>,
    moves: Vec<Move>,
}

/// The effects a Task's log holds.
#[derive(Default)]
struct Record {
    requested: BTreeMap<String, Digest>,
    recorded: BTreeMap<String, EffectAnswer>,
    workflow: Option<Digest>,
}

impl<'a> Run<'a> {
    pub(super) fn new(engine: &'a Engine, key: Position, id: TaskId, epoch: Option<u64>) -> Self {
        Self {
            engine,
            key,
            id,
            epoch,
            moves: Vec::new(),
        }
    }

    /// Works until the Task ends or waits.
    pub(super) async fn drive(&mut self) -> Result<Ended, Refused> {
        let Some(task) = self.load().await? else {
            return Ok(Ended::NothingToDo);
        };
        if task.status.is_waiting() || task.status.is_terminal() {
            return Ok(Ended::NothingToDo);
        }
        self.advance(&task).await.map(|()| Ended::Flushed)
    }

    async fn advance(&mut self, task: &Task) -> Result<(), Refused> {
        let workflows = &self.engine.shared.workflows;
        let Some(workflow) = workflows.find(&task.workflow) else {
            let message = format!("this server has no workflow `{}`", task.workflow);
            return self.fail("workflow_unavailable", message, Map::new()).await;
        };
        let digest = workflow::digest(workflow.as_ref());
        match task.status {
            Status::Submitted => self.moves.push(Move::Start {
                workflow_digest: digest,
            }),
            Status::InputRequired | Status::AuthRequired => self.moves.push(Move::Recover),
            Status::Working => {}
            Status::Completed | Status::Failed | Status::Canceled => return Ok(()),
        }
        // A Task that has not begun has no record; everything else starts with reading it.
        let record = match task.status {
            Status::Submitted => Record::default(),
            _ => self.record().await?,
        };
        if record.workflow.is_some_and(|recorded| recorded != digest) {
            let message = format!(
                "workflow `{}` has changed since this task began",
                task.workflow
            );
            return self.fail("workflow_changed", message, Map::new()).await;
        }
        let input = self.input(task).await?;
        let mut step = workflow.begin(&input);
        loop {
            match step {
                Step::Request { state, effects } => {
                    let Some(answers) = self.effects(task, &record, effects).await? else {
                        return Ok(());
                    };
                    step = workflow.resume(&state, &answers);
                }
                Step::Done { text, summary } => return self.complete(text, summary).await,
                Step::Failed { code, message } => {
                    return self.fail(&code, message, Map::new()).await;
                }
            }
        }
    }

    async fn load(&self) -> Result<Option<Task>, Refused> {
        let documents = self
            .engine
            .shared
            .store
            .documents(vec![self.id.as_str().into()])
            .await?;
        Ok(documents
            .into_iter()
            .flatten()
            .find_map(|document| match document.state {
                State::Task(task) => Some(task),
                _ => None,
            }))
    }

    async fn record(&self) -> Result<Record, Refused> {
        let mut record = Record::default();
        let mut after = Position::START;
        loop {
            let query = ReadEvents {
                scope: Scope::Task(self.key),
                after,
                limit: 512,
            };
            let page = self.engine.shared.store.events(query).await?;
            let Some(last) = page.last() else {
                return Ok(record);
            };
            after = last.position;
            for stored in &page {
                let mut event = Event::parse(&stored.bytes).map_err(|error| Refused::Internal {
                    detail: format!("task {}: {error}", self.id),
                })?;
                self.note(&mut record, &mut event).await?;
            }
        }
    }

    async fn note(&self, record: &mut Record, event: &mut Event) -> Result<(), Refused> {
        let key = |event: &Event| {
            event
                .payload
                .get("effect_key")
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let digest = |event: &Event, member: &str| {
            event
                .payload
                .get(member)
                .and_then(Value::as_str)
                .and_then(|text| Digest::parse(text).ok())
        };
        match event.kind() {
            Ok(Kind::TaskStarted) => record.workflow = digest(event, "workflow_sha256"),
            Ok(Kind::EffectRequested) => {
                if let Some(digest) = digest(event, "request_sha256") {
                    record.requested.insert(key(event), digest);
                }
            }
            Ok(Kind::EffectRecorded) => {
                view::resolve_blobs(&*self.engine.shared.store, &mut event.payload).await?;
                let ok = event.payload.get("outcome").and_then(Value::as_str) == Some("ok");
                let value = event.payload.get("value").cloned().unwrap_or_default();
                record
                    .recorded
                    .insert(key(event), EffectAnswer { ok, value });
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns what the workflow may see of the input: the public text of a Message, or the structured value.
    async fn input(&self, task: &Task) -> Result<Value, Refused> {
        let payload = view::payload(&*self.engine.shared.store, task.input).await?;
        if task.input == task.submitted {
            return Ok(payload.get("input").cloned().unwrap_or_default());
        }
        let parts = payload
            .get("parts")
            .and_then(Value::as_array)
            .map(Vec::as_slice)
            .unwrap_or_default();
        Ok(domain::public_text(parts).into())
    }

    /// Returns the results of effects, or none when the Task now waits for somebody.
    async fn effects(
        &mut self,
        task: &Task,
        record: &Record,
        effects: Vec<Effect>,
    ) -> Result<Option<Vec<EffectAnswer>>, Refused> {
        let mut answers: Vec<Option<EffectAnswer>> = vec![None; effects.len()];
        let mut to_perform = Vec::new();
        for (index, (effect, slot)) in effects.into_iter().zip(&mut answers).enumerate() {
            let digest = effect.request_digest();
            let requested = record.requested.get(&effect.key);
            if requested.is_some_and(|recorded| *recorded != digest) {
                let message = format!(
                    "effect `{}` asks for something else than was recorded",
                    effect.key
                );
                let details = details([("effect_key", effect.key.as_str())]);
                return self
                    .fail("effect_diverged", message, details)
                    .await
                    .map(|()| None);
            }
            if let Some(answer) = record.recorded.get(&effect.key) {
                *slot = Some(answer.clone());
                continue;
            }
            if requested.is_none() {
                self.moves.push(Move::RequestEffect(EffectIntent {
                    key: effect.key.clone(),
                    kind: effect.kind.record_kind().to_owned(),
                    request_sha256: digest,
                    repeatable: effect.repeatable,
                }));
            } else if !effect.repeatable {
                let message = format!(
                    "the result of `{}` is unknown and it cannot be repeated",
                    effect.key
                );
                let details = details([("effect_key", effect.key.as_str())]);
                return self
                    .fail("effect_result_unknown", message, details)
                    .await
                    .map(|()| None);
            }
            if let EffectKind::Ask(ask) = effect.kind {
                let request = match &task.waits_for {
                    Some(request) => request.clone(),
                    None => PermissionId::from_body(&self.engine.shared.ids.body()),
                };
                let action = effect.request.get("action").cloned().unwrap_or_default();
                self.moves.push(Move::Ask {
                    request,
                    ask,
                    effect_key: effect.key,
                    request_body: effect.request,
                    action,
                });
                self.flush().await?;
                return Ok(None);
            }
            to_perform.push((index, effect));
        }
        if !to_perform.is_empty() {
            self.flush().await?;
            self.perform(to_perform, &mut answers).await?;
        }
        Ok(Some(answers.into_iter().flatten().collect()))
    }

    async fn perform(
        &mut self,
        effects: Vec<(usize, Effect)>,
        answers: &mut [Option<EffectAnswer>],
    ) -> Result<(), Refused> {
        let performer = &self.engine.shared.performer;
        let mut running: FuturesUnordered<_> = effects
            .into_iter()
            .map(|(index, effect)| {
                let (key, kind) = (effect.key.clone(), effect.kind);
                let performed = performer.perform(effect, Deltas::none());
                async move { (index, key, kind, performed.await) }
            })
            .collect();
        while let Some((index, key, kind, performed)) = running.next().await {
            let Performed {
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
                model,
                observed,
            }));
            if let Some(slot) = answers.get_mut(index) {
                *slot = Some(EffectAnswer { ok, value });
            }
            // The last result travels with what the workflow does next.
            if !running.is_empty() {
                self.flush().await?;
            }
        }
        Ok(())
    }

    async fn complete(&mut self, text: String, summary: String) -> Result<(), Refused> {
        let ids = &self.engine.shared.ids;
        let message = NewMessage {
            id: domain::MessageId::from_body(&ids.body()),
            salt: ids.salt(),
            role: Role::Assistant,
            parts: vec![json!({"type": "text", "text": text, "visibility": "public"})],
            metadata: Map::new(),
        };
        let messages = vec![message.id.clone()];
        let ids = self.engine.end_ids();
        self.moves.push(Move::Say(message));
        self.moves.push(Move::Complete {
            ids,
            summary,
            messages,
        });
        self.flush().await
    }

    async fn fail(
        &mut self,
        code: &str,
        message: String,
        details: Map<String, Value>,
    ) -> Result<(), Refused> {
        // Intents that were never flushed are dropped: nothing was performed. Results are kept: they happened.
        self.moves.retain(|step| {
            matches!(
                step,
                Move::Start { .. } | Move::Recover | Move::RecordEffect(_)
            )
        });
        let ids = self.engine.end_ids();
        self.moves.push(Move::Fail {
            ids,
            code: code.to_owned(),
            message,
            details,
        });
        self.flush().await
    }

    /// Commits what has collected. Nothing is performed before this returns.
    async fn flush(&mut self) -> Result<(), Refused> {
        if self.moves.is_empty() {
            return Ok(());
        }
        let lease = match self.epoch {
            Some(epoch) => Lease::Hold(Fence {
                lease: self.key,
                epoch,
            }),
            None => Lease::Take(self.key),
        };
        let order = AdvanceTask {
            id: self.id.clone(),
            moves: std::mem::take(&mut self.moves),
        };
        let command = Command {
            actor: "agent".to_owned(),
            idempotency_key: None,
            order: domain::Order::AdvanceTask(order),
        };
        let done = self.engine.order(command, None, lease).await?;
        if done.epoch.is_some() {
            self.epoch = done.epoch;
        }
        Ok(())
    }
}

fn details<const N: usize>(members: [(&str, &str); N]) -> Map<String, Value> {
    members
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.into()))
        .collect()
}
