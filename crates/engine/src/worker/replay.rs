//! Working on a replay: the whole run is computed first, then written in pieces. One that goes on live is computed from
//! effect to effect.
//!
//! Since the computation is pure, a process that takes over computes it again and leaves out what is written already.

mod progress;

use std::sync::Arc;

use canon::Value;
use domain::{
    EffectResult, EndIds, EndReplay, Move, OutcomeId, ReceiptId, ReplayOf, Status, Task, TaskId,
};
use serde_json::json;

use super::run::Run;
use crate::read::next_page;
use crate::record::{Include, unreadable};
use crate::refused::Refused;
use progress::ReplayProgress;
use runs::replay::{self, Failure, Progress, ReceiptIssuer, Replayed, Source, Spec};
use runs::workflow::{EffectOutcome, EffectRequest};

/// Events of a replay that one commit takes, so that other clients need not wait for long.
const PIECE_LEN: usize = 128;

impl Run<'_> {
    pub(super) async fn replay(&mut self, task: &Task, of: &ReplayOf) -> Result<(), Refused> {
        let (spec, salt) = self.engine.replay_request(of).await?;
        let source = self.engine.source(&of.source_task_id, Include::Everything);
        let source = match source.await? {
            Ok(source) => source,
            Err(failure) => return self.cannot_begin(task, of, &spec, &failure).await,
        };
        let secrets = self.engine.shared.secrets_under(&salt);
        // A replay that has not begun has written nothing.
        let ReplayProgress {
            mut written,
            live,
            unknown,
        } = match task.status {
            Status::Submitted => ReplayProgress::default(),
            _ => self.read_progress().await?,
        };
        if task.status == Status::Submitted {
            let (_, digest) = source.workflow();
            self.moves.push(Move::Start {
                workflow_digest: digest.unwrap_or_else(|| canon::sha256(b"")),
            });
            self.moves
                .push(Move::StartReplay(replay::started(&source, &spec)));
        }
        let (source, spec, secrets) = (Arc::new(source), Arc::new(spec), Arc::new(secrets));
        // Long and pure: done where it keeps nobody waiting. What may go on live is computed here, from effect to effect,
        // because a run that has paused borrows from this one.
        if spec.refresh.is_empty() {
            let (engine, live) = (self.engine.clone(), live.clone());
            let (source_of_run, spec_of_run) = (Arc::clone(&source), Arc::clone(&spec));
            let secrets = Arc::clone(&secrets);
            let whole = self.engine.run_blocking(move || {
                let workflows = &engine.shared.workflows;
                match replay::run(&source_of_run, workflows, &spec_of_run, &secrets, live) {
                    Progress::Ended(replayed) => Some(replayed),
                    Progress::Needs(_) => None,
                }
            });
            if let Some(replayed) = whole.await? {
                self.write(&source, &spec, &replayed, &mut written).await?;
                return self.end_replay(&source, &spec, replayed, of).await;
            }
        }
        let workflows = &self.engine.shared.workflows;
        let mut progress = replay::run(&source, workflows, &spec, &secrets, live);
        loop {
            match progress {
                Progress::Ended(replayed) => {
                    self.write(&source, &spec, &replayed, &mut written).await?;
                    return self.end_replay(&source, &spec, replayed, of).await;
                }
                Progress::Needs(paused) => {
                    let so_far = paused.so_far();
                    self.write(&source, &spec, so_far, &mut written).await?;
                    let questions = paused.questions();
                    if !questions.is_empty() {
                        // Whoever takes it up when they are answered computes the run again, up to here and on.
                        return self.ask(task, questions).await;
                    }
                    self.flush().await?;
                    let effect = paused.effect().clone();
                    if !effect.repeatable && unknown.contains(&effect.key) {
                        let replayed = paused.without_result();
                        return self.end_replay(&source, &spec, replayed, of).await;
                    }
                    let mark = paused.so_far().mark(&source, &self.id, spec.mode.as_str());
                    self.streams_as = Some(mark);
                    progress = paused.resume(self.perform_live(effect).await?);
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
            if let Some(digest) = Replayed::foreign(source, &event) {
                return Err(Refused::Internal {
                    detail: format!("a replay would name {digest}, which its source does not hold"),
                });
            }
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
    async fn perform_live(&mut self, effect: EffectRequest) -> Result<EffectOutcome, Refused> {
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
                ok,
                value,
                provider_request_id,
                model,
                observed,
                ..
            })) => Ok(EffectOutcome {
                ok,
                value,
                provider_request_id,
                model,
                observed: observed.map(|observed| *observed),
            }),
            _ => Err(Refused::Internal {
                detail: "an effect was performed and left no result".to_owned(),
            }),
        }
    }

    async fn end_replay(
        &mut self,
        source: &Arc<Source>,
        spec: &Arc<Spec>,
        replayed: Replayed,
        of: &ReplayOf,
    ) -> Result<(), Refused> {
        let replayed = Arc::new(replayed);
        let receipt = {
            let (engine, of) = (self.engine.clone(), of.clone());
            let (source, spec) = (Arc::clone(source), Arc::clone(spec));
            let replayed = Arc::clone(&replayed);
            self.engine
                .run_blocking(move || engine.replay_receipt(&source, &spec, &replayed, &of))
        };
        let receipt = receipt.await??;
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
            receipt: Some(receipt.bytes().into()),
        })));
        self.flush().await
    }

    /// Fails a replay whose source cannot even be read.
    async fn cannot_begin(
        &mut self,
        task: &Task,
        of: &ReplayOf,
        spec: &Spec,
        failure: &Failure,
    ) -> Result<(), Refused> {
        if task.status == Status::Submitted {
            self.moves.push(Move::Start {
                workflow_digest: canon::sha256(b""),
            });
            self.moves.push(Move::StartReplay(replay::announced(
                &of.source_task_id,
                spec,
            )));
        }
        let payload = replay::failed_payload(&of.source_task_id, failure, None);
        let mut described = payload.clone().into_members();
        described.remove("source_task_id");
        self.moves.push(Move::EndReplay(Box::new(EndReplay {
            ids: self.engine.end_ids(),
            status: Status::Failed,
            completed: false,
            payload,
            summary: failure.message(),
            messages: json!([]),
            failure: Value::Object(described),
            // Without a readable log there is nothing that a replay's own receipt could be computed from.
            receipt: None,
        })));
        self.flush().await
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
        let issuing = ReceiptIssuer {
            id: authority.id.clone(),
            name: authority.name.clone(),
            ordinal: of.ordinal,
        };
        replay::receipt(source, spec, replayed, &issuing).map_err(|error| Refused::Internal {
            detail: format!("receipt of a replay: {error}"),
        })
    }

    /// Reads an accepted request, with the Artifacts it takes values from, and its salt.
    pub(crate) async fn replay_request(&self, of: &ReplayOf) -> Result<(Spec, String), Refused> {
        let broken = |detail: String| Refused::Internal { detail };
        let bytes = self.shared.store.blob(of.request).await?;
        let bytes = bytes.ok_or_else(|| broken("the request of a replay is gone".to_owned()))?;
        let mut stored: Value =
            serde_json::from_slice(&bytes).map_err(|error| broken(error.to_string()))?;
        let request = stored
            .get_mut("request")
            .map(Value::take)
            .unwrap_or_default();
        let salt = stored
            .get("salt")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let mut spec: Spec =
            serde_json::from_value(request).map_err(|error| broken(error.to_string()))?;
        for given in spec.overrides.values_mut() {
            if let replay::OverrideValue::Artifact { sha256, value, .. } = &mut given.given {
                let bytes = self.shared.store.blob_as_stored(*sha256).await?;
                *value = bytes
                    .filter(|bytes| canon::sha256(bytes) == *sha256)
                    .and_then(|bytes| serde_json::from_slice(&bytes).ok());
            }
        }
        Ok((spec, salt.to_owned()))
    }

    /// Reads the sealed log of a Task with what it keeps beside itself.
    pub(crate) async fn source(
        &self,
        id: &TaskId,
        include: Include,
    ) -> Result<Result<Source, Failure>, Refused> {
        let record = self.record(id, include).await?;
        let record = match record {
            Ok(record) => record,
            Err(failure) => return Ok(Err(failure)),
        };
        let source = self.run_blocking(move || record.into_source()).await?;
        Ok(source.map_err(|_| unreadable(id, "log_corrupt")))
    }

    /// Reads a Receipt; what is wrong with it otherwise.
    pub(crate) async fn receipt_of(
        &self,
        id: &ReceiptId,
    ) -> Result<Result<receipts::Receipt, &'static str>, Refused> {
        let document = self.shared.store.document(id.as_str()).await?;
        let content = document.and_then(|document| match document.state {
            domain::State::Receipt(receipt) => Some(receipt.content),
            _ => None,
        });
        let Some(content) = content else {
            return Ok(Err("missing"));
        };
        let Some(bytes) = self.shared.store.blob_as_stored(content).await? else {
            return Ok(Err("missing"));
        };
        if canon::sha256(&bytes) != content {
            return Ok(Err("hash_mismatch"));
        }
        Ok(receipts::Receipt::read(&bytes).map_err(|_| "hash_mismatch"))
    }

    /// Reads the stored events of a Task.
    pub(crate) async fn task_log(&self, key: domain::Position) -> Result<Vec<Arc<[u8]>>, Refused> {
        let mut events = Vec::new();
        let mut after = domain::Position::START;
        while let Some(page) = next_page(&*self.shared.store, key, &mut after).await? {
            events.extend(page.into_iter().map(|event| event.bytes));
        }
        Ok(events)
    }
}
