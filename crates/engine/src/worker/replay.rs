//! Working on a replay: the whole run is computed first, then written in pieces.
//!
//! Since the computation is pure, a process that takes over computes it again and leaves out what is written already.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use canon::{Digest, Value};
use domain::{
    EffectResult, EndIds, EndReplay, Event, Kind, Move, OutcomeId, ReceiptId, ReplayOf, Status,
    Task, TaskId,
};
use serde_json::json;

use super::run::Run;
use crate::refused::Refused;
use crate::replay::{self, Failure, Issuing, Progress, Replayed, Source, Spec};
use crate::workflow::{Answers, EffectAnswer, Wanted};

/// Events of a replay that one commit takes, so that other clients need not wait for long.
const PIECE_LEN: usize = 128;

impl Run<'_> {
    pub(super) async fn replay(&mut self, task: &Task, of: &ReplayOf) -> Result<(), Refused> {
        let (source, spec, secrets) = match self.engine.replay_inputs(&self.id, of).await? {
            Ok(inputs) => inputs,
            Err(failure) => return self.cannot_begin(task, failure).await,
        };
        let mut live = self.performed_anew().await?;
        let unknown = self.without_result().await?;
        let mut written = self.written().await?;
        if task.status == Status::Submitted {
            let (_, digest) = source.workflow();
            self.moves.push(Move::Start {
                workflow_digest: digest.unwrap_or_else(|| canon::sha256(b"")),
            });
            self.moves
                .push(Move::StartReplay(replay::started(&source, &spec)));
        }
        loop {
            let progress = replay::run(
                &source,
                &self.engine.shared.workflows,
                &spec,
                &secrets,
                &live,
            );
            match progress {
                Progress::Ended(replayed) => {
                    self.write(&source, &spec, &replayed, &mut written).await?;
                    return self.end_replay(&source, &spec, &replayed, of).await;
                }
                Progress::Needs { so_far, effects } => {
                    self.write(&source, &spec, &so_far, &mut written).await?;
                    self.flush().await?;
                    for effect in effects {
                        if !effect.repeatable && unknown.contains(&effect.key) {
                            let replayed = so_far.without_result_of(&effect.key);
                            return self.end_replay(&source, &spec, &replayed, of).await;
                        }
                        let key = effect.key.clone();
                        let answer = self.perform_anew(effect).await?;
                        live.insert(key, answer);
                    }
                }
            }
        }
    }

    /// Writes what is not written yet.
    async fn write(
        &mut self,
        source: &Source,
        spec: &Spec,
        replayed: &Replayed,
        written: &mut usize,
    ) -> Result<(), Refused> {
        for emission in replayed.emissions.iter().skip(*written) {
            let event = replayed.event(source, emission, &self.id, spec.mode.as_str());
            self.moves.push(Move::Replay(Box::new(event)));
            *written += 1;
            if self.moves.len() >= PIECE_LEN {
                self.flush().await?;
            }
        }
        Ok(())
    }

    /// Performs an effect of a run that has left its record. Its result is kept in memory until the event that tells
    /// it is written; a process that takes over performs it again only if that does no harm.
    async fn perform_anew(&mut self, effect: Wanted) -> Result<EffectAnswer, Refused> {
        let mut answers = [None];
        self.perform(vec![(0, effect.into_effect())], &mut answers)
            .await?;
        // What was performed is told by the replay's own event; the worker's would be a second one.
        let recorded = self
            .moves
            .iter()
            .position(|step| matches!(step, Move::RecordEffect(_)));
        let performed = recorded.map(|index| self.moves.remove(index));
        match performed {
            Some(Move::RecordEffect(EffectResult {
                ok, value, model, ..
            })) => Ok(EffectAnswer { ok, value, model }),
            _ => Err(Refused::Internal {
                detail: "an effect was performed and left no result".to_owned(),
            }),
        }
    }

    async fn own_events(&self) -> Result<Vec<Event>, Refused> {
        let stored = self.engine.task_log(self.key).await?;
        stored
            .iter()
            .map(|bytes| {
                Event::parse(bytes).map_err(|error| Refused::Internal {
                    detail: error.to_string(),
                })
            })
            .collect()
    }

    async fn written(&self) -> Result<usize, Refused> {
        let events = self.own_events().await?;
        Ok(events.iter().filter(|event| event.replay.is_some()).count())
    }

    /// Returns the effects that an earlier attempt meant to perform and told no result of.
    async fn without_result(&self) -> Result<BTreeSet<String>, Refused> {
        let mut keys = BTreeSet::new();
        for event in self.own_events().await? {
            let Some(key) = event.payload.get("effect_key").and_then(Value::as_str) else {
                continue;
            };
            match event.kind() {
                Ok(Kind::EffectRequested) => {
                    keys.insert(key.to_owned());
                }
                Ok(Kind::EffectRecorded) => {
                    keys.remove(key);
                }
                _ => {}
            }
        }
        Ok(keys)
    }

    /// Returns what an earlier attempt performed anew.
    async fn performed_anew(&self) -> Result<Answers, Refused> {
        let mut answers = BTreeMap::new();
        for mut event in self.own_events().await? {
            let is_anew =
                event.payload.get("replay_note").and_then(Value::as_str) == Some("refreshed");
            if event.kind() != Ok(Kind::EffectRecorded) || !is_anew {
                continue;
            }
            crate::view::resolve_blobs(&*self.engine.shared.store, &mut event.payload).await?;
            let member = |name: &str| event.payload.get(name).cloned().unwrap_or_default();
            let Value::String(key) = member("effect_key") else {
                continue;
            };
            let answer = EffectAnswer {
                ok: member("outcome") == json!("ok"),
                value: member("value"),
                model: serde_json::from_value(member("model")).ok(),
            };
            answers.insert(key, answer);
        }
        Ok(answers)
    }

    async fn end_replay(
        &mut self,
        source: &Source,
        spec: &Spec,
        replayed: &Replayed,
        of: &ReplayOf,
    ) -> Result<(), Refused> {
        let receipt = self.engine.replay_receipt(source, spec, replayed, of)?;
        let messages = match &replayed.end.text {
            Some(text) => json!([{
                "role": "assistant",
                "parts": [{"type": "text", "text": text, "visibility": "public"}],
            }]),
            None => json!([]),
        };
        self.moves.push(Move::EndReplay(Box::new(EndReplay {
            ids: self.engine.replay_end_ids(&receipt)?,
            status: replayed.end.status,
            completed: replayed.end.broken.is_none(),
            payload: replayed.ended(source),
            summary: replayed.end.summary.clone(),
            messages,
            failure: replayed.end.failure.clone(),
            receipt: receipt.bytes().into(),
        })));
        self.flush().await?;
        self.engine.shared.forget_secrets(&self.id);
        Ok(())
    }

    /// Fails a replay whose source cannot even be read.
    async fn cannot_begin(&mut self, task: &Task, failure: Failure) -> Result<(), Refused> {
        if task.status == Status::Submitted {
            self.moves.push(Move::Start {
                workflow_digest: canon::sha256(b""),
            });
        }
        // Without a readable log there is nothing that a replay's own receipt could be computed from.
        let details = failure.details(None);
        self.fail(failure.code(), failure.message(), details).await
    }
}

impl crate::Engine {
    /// Makes the ids of what the end of a replay leaves.
    pub(crate) fn replay_end_ids(&self, receipt: &receipts::Receipt) -> Result<EndIds, Refused> {
        let receipt_id = ReceiptId::parse(receipt.id()).map_err(|error| Refused::Internal {
            detail: error.to_string(),
        })?;
        Ok(EndIds {
            outcome_id: OutcomeId::from_body(&self.shared.ids.body()),
            receipt_id,
        })
    }

    /// Builds the receipt of a replay.
    pub(crate) fn replay_receipt(
        &self,
        source: &Source,
        spec: &Spec,
        replayed: &Replayed,
        of: &ReplayOf,
    ) -> Result<receipts::Receipt, Refused> {
        let authority = &self.shared.authority;
        let issuing = Issuing {
            id: authority.id.clone(),
            name: authority.name.clone(),
            ordinal: of.ordinal,
        };
        replay::receipt(source, spec, replayed, &issuing).map_err(|error| Refused::Internal {
            detail: format!("receipt of a replay: {error}"),
        })
    }

    /// Reads what a replay works on: its source, its request, and the secrets it was told.
    pub(crate) async fn replay_inputs(
        &self,
        id: &TaskId,
        of: &ReplayOf,
    ) -> Result<Result<(Source, Spec, BTreeMap<String, Value>), Failure>, Refused> {
        let spec = self.replay_spec(of).await?;
        let source = match self.source(&of.source_task_id).await? {
            Ok(source) => source,
            Err(failure) => return Ok(Err(failure)),
        };
        let secrets = self.shared.secrets_of(id);
        Ok(Ok((source, spec, secrets)))
    }

    /// Reads an accepted request, with the Artifacts it takes values from.
    pub(crate) async fn replay_spec(&self, of: &ReplayOf) -> Result<Spec, Refused> {
        let broken = |detail: String| Refused::Internal { detail };
        let bytes = self.shared.store.blob(of.request).await?;
        let bytes = bytes.ok_or_else(|| broken("the request of a replay is gone".to_owned()))?;
        let mut stored: Value =
            serde_json::from_slice(&bytes).map_err(|error| broken(error.to_string()))?;
        let request = stored
            .get_mut("request")
            .map(Value::take)
            .unwrap_or_default();
        let mut spec: Spec =
            serde_json::from_value(request).map_err(|error| broken(error.to_string()))?;
        for given in spec.overrides.values_mut() {
            if let replay::Given::Artifact { sha256, value, .. } = &mut given.given {
                let bytes = self.shared.store.blob(*sha256).await?;
                *value = bytes
                    .filter(|bytes| canon::sha256(bytes) == *sha256)
                    .and_then(|bytes| serde_json::from_slice(&bytes).ok());
            }
        }
        Ok(spec)
    }

    /// Reads the sealed log of a Task with everything it keeps beside itself.
    pub(crate) async fn source(&self, id: &TaskId) -> Result<Result<Source, Failure>, Refused> {
        let store = &self.shared.store;
        let documents = store.documents(vec![id.as_str().into()]).await?;
        let document = documents.into_iter().flatten().next();
        let Some((key, task)) = document.and_then(|document| match document.state {
            domain::State::Task(task) => Some((document.key, task)),
            _ => None,
        }) else {
            return Ok(Err(gone("event", id.as_str(), "missing")));
        };
        let events = self.task_log(key).await?;
        if let Some(failure) = pruned(&events) {
            return Ok(Err(failure));
        }
        let receipt = match &task.receipt_id {
            None => None,
            Some(receipt) => self.receipt_of(receipt).await?,
        };
        let corrupt = |_| gone("event", id.as_str(), "log_corrupt");
        let named: Vec<Digest> = match replay::blobs_named(&events).map_err(corrupt) {
            Ok(named) => named,
            Err(failure) => return Ok(Err(failure)),
        };
        let mut blobs = BTreeMap::new();
        for digest in named {
            if let Some(bytes) = store.blob(digest).await? {
                blobs.insert(digest, bytes.to_vec());
            }
        }
        let inherited = match &task.replay {
            None => None,
            Some(of) => Some(self.replay_spec(of).await?),
        };
        Ok(Source::read(&events, blobs, receipt, inherited)
            .map_err(|_| gone("event", id.as_str(), "log_corrupt")))
    }

    async fn receipt_of(&self, id: &ReceiptId) -> Result<Option<receipts::Receipt>, Refused> {
        let documents = self
            .shared
            .store
            .documents(vec![id.as_str().into()])
            .await?;
        let content = documents
            .into_iter()
            .flatten()
            .find_map(|document| match document.state {
                domain::State::Receipt(receipt) => Some(receipt.content),
                _ => None,
            });
        let Some(content) = content else {
            return Ok(None);
        };
        let bytes = self.shared.store.blob(content).await?;
        Ok(bytes.and_then(|bytes| receipts::Receipt::read(&bytes).ok()))
    }

    /// Reads the stored events of a Task.
    pub(crate) async fn task_log(&self, key: domain::Position) -> Result<Vec<Arc<[u8]>>, Refused> {
        let mut events = Vec::new();
        let mut after = domain::Position::START;
        loop {
            let query = crate::port::ReadEvents {
                scope: crate::port::Scope::Task(key),
                after,
                limit: 512,
            };
            let page = self.shared.store.events(query).await?;
            let Some(last) = page.last() else {
                return Ok(events);
            };
            after = last.position;
            events.extend(page.into_iter().map(|event| event.bytes));
        }
    }
}

/// Names the first event of a log that pruning took the payload of.
fn pruned(events: &[Arc<[u8]>]) -> Option<Failure> {
    let parsed = events.iter().map(|bytes| Event::parse(bytes).ok());
    let mut headers = parsed
        .zip(1..)
        .filter_map(|(event, sequence)| Some((event.filter(Event::is_header)?, sequence)));
    let (first, sequence) = headers.next()?;
    Some(Failure::Unavailable {
        first: Box::new(replay::Unavailable {
            what: "event",
            id: None,
            key: None,
            event_id: Some(first.id.to_string()),
            sequence: Some(sequence),
            reason: "pruned",
        }),
        also: headers.count() as u64,
    })
}

fn gone(what: &'static str, id: &str, reason: &'static str) -> Failure {
    Failure::Unavailable {
        first: Box::new(replay::Unavailable {
            what,
            id: Some(id.to_owned()),
            key: None,
            event_id: None,
            sequence: None,
            reason,
        }),
        also: 0,
    }
}
