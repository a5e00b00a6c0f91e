//! Accepting a replay: everything that can be told before it runs is told here.

use std::collections::BTreeMap;
use std::sync::Arc;

use canon::{Map, Value};
use domain::{
    BranchId, Event, Kind, Order, Position, ReceiptId, Refusal, ReplayTask, Task, TaskId, payload,
};

use serde_json::json;

use crate::caller::Caller;
use crate::engine::Engine;
use crate::record::Include;
use crate::refused::Refused;
use crate::view;
use runs::replay::{self, NoRetry, ReadArtifact, Refresh, Source, Spec};

/// The most bytes of Artifacts that the overrides of one replay take values from: all are in memory while it runs.
const OVERRIDES_BYTES_MAX: usize = 16 * 1024 * 1024;

/// True when a replay asks models or tools again.
pub(crate) fn goes_live(spec: &Spec) -> bool {
    spec.refresh.contains(&Refresh::Model) || spec.refresh.contains(&Refresh::Tools)
}

impl Engine {
    pub(super) async fn build_replay(
        &self,
        caller: &Caller,
        request: &ReplayTask,
    ) -> Result<Order, Refused> {
        let (order, secrets) = self.check_replay(caller, request).await?;
        // Known before the Task is: its worker may begin at once.
        self.shared
            .keep_secrets(&order.salt, Some(&order.id), secrets);
        Ok(Order::SubmitReplay(order))
    }

    /// Refuses what can be refused, and returns the order with the secrets that it must not hold.
    pub(super) async fn check_replay(
        &self,
        caller: &Caller,
        request: &ReplayTask,
    ) -> Result<(domain::SubmitReplay, BTreeMap<String, Value>), Refused> {
        let (_, task) = self.visible_task(caller, &request.id).await?;
        if !task.status.is_terminal() {
            return Err(Refused::Domain(Refusal::Conflict {
                reason: "source_not_finished",
                message: format!(
                    "only a finished task can be replayed; this one is {}",
                    task.status.as_str()
                ),
                status: Some(task.status),
            }));
        }
        let (input, persona) = self.input_and_persona(&task).await?;
        if persona.get("forbids_replay") == Some(&Value::Bool(true)) {
            return Err(Refused::Domain(Refusal::Policy {
                reason: "persona_forbids_replay",
                message: "the persona of this task does not allow replays".to_owned(),
            }));
        }
        self.shared
            .work
            .may_open(&task.workspace_id, &caller.actor)?;
        let retried;
        let request = match request.body.get("retry") {
            Some(Value::Bool(true)) => {
                retried = self.as_retry(request).await?;
                &retried
            }
            _ => request,
        };
        let source = self.source_for_request(&task, request).await?;
        let (spec, secrets) = self.read_spec(caller, request, source.as_ref()).await?;
        if !secrets.is_empty() {
            caller.require("vaults:write")?;
        }
        let goes_live = goes_live(&spec);
        if goes_live {
            // Whoever chooses what a model said chooses what its tools do.
            caller.require("replays:live")?;
            self.check_live_contracts(&spec, &persona)?;
        }
        let ordinal = self.next_ordinal(&request.id).await?;
        let id = replay_id(&request.id, ordinal)?;
        check_lengths(&request.id, task.receipt_id.as_ref(), &id, ordinal)?;
        let session_id = match &request.session_id {
            Some(session) => session.clone(),
            None => task.session_id.clone(),
        };
        let mode = spec.mode.as_str().to_owned();
        let new_branch = self.branch_for(&spec, &persona);
        let order = domain::SubmitReplay {
            id,
            ordinal,
            source: request.id.clone(),
            session_id,
            new_branch,
            mode,
            goes_live,
            input,
            persona,
            request: serde_json::to_value(&spec).map_err(|error| Refused::Internal {
                detail: error.to_string(),
            })?,
            salt: self.shared.ids.salt(),
            metadata: metadata(&request.body),
        };
        Ok((order, secrets))
    }

    /// A run under contracts goes on live only under contracts that this server has now, and by what really happened: neither
    /// the results that its rules read nor the times that they judge by come from the request.
    fn check_live_contracts(&self, spec: &Spec, persona: &Value) -> Result<(), Refused> {
        let Some(recorded) = persona.get("contracts").filter(|member| !member.is_null()) else {
            return Ok(());
        };
        let refused = |message: String| {
            Err(Refused::Domain(Refusal::Policy {
                reason: "contracts_live",
                message,
            }))
        };
        let name = recorded.get("name").and_then(Value::as_str);
        let name = name.unwrap_or_default();
        let here = self.shared.contracts(name).map(|set| json!(set.sha256));
        if here.as_ref() != recorded.get("sha256") {
            return refused(format!(
                "this task ran under contracts `{name}` that this server does not have now: it is replayed from its record \
                 alone, without `refresh`"
            ));
        }
        if spec.refresh.contains(&Refresh::Time) {
            return refused(
                "contracts judge by recorded times: leave out `refresh` of `time`".to_owned(),
            );
        }
        let read_by_rules = ["host:tool.", "mcp:", "time:contracts:"];
        let replaced = spec
            .overrides
            .keys()
            .find(|key| read_by_rules.iter().any(|prefix| key.starts_with(prefix)));
        match replaced {
            Some(key) => refused(format!(
                "contracts read `{key}`: it cannot be replaced in a replay that continues live"
            )),
            None => Ok(()),
        }
    }

    /// Says where a run that failed is taken up again. What the caller asks beside that is its reason and its metadata.
    async fn as_retry(&self, request: &ReplayTask) -> Result<ReplayTask, Refused> {
        let source = self.source(&request.id, Include::Everything).await??;
        let mut body = replay::retry(&source).map_err(|error| {
            let reason = match &error {
                NoRetry::NotFailed(_) => "not_failed",
                NoRetry::NothingFailed => "nothing_failed",
                NoRetry::ResultUnknown(_) => "effect_result_unknown",
            };
            Refused::Domain(Refusal::Conflict {
                reason,
                message: error.to_string(),
                status: Some(source.status),
            })
        })?;
        if let (Value::Object(body), Value::Object(asked)) = (&mut body, &request.body) {
            let own = asked
                .iter()
                .filter(|(name, _)| ["reason", "metadata"].contains(&name.as_str()));
            body.extend(own.map(|(name, value)| (name.clone(), value.clone())));
        }
        Ok(ReplayTask {
            body,
            ..request.clone()
        })
    }

    /// Reads as much of the source as it takes to judge a request; whether the rest is there is for the run to say.
    async fn source_for_request(
        &self,
        task: &Task,
        request: &ReplayTask,
    ) -> Result<Option<Source>, Refused> {
        let keys = match replay::keys_to_check(&request.body) {
            Some(keys) => keys,
            None if task.imported.is_some() => Vec::new(),
            None => {
                // Whole Tasks are pruned: their first event tells.
                let first = self.shared.store.event_at(task.submitted).await?;
                let first = first.and_then(|first| Event::parse(&first.bytes).ok());
                return match first {
                    Some(first) if !first.is_header() => Ok(None),
                    _ => Err(Refused::RecordGone { reason: "pruned" }),
                };
            }
        };
        let source = self.source(&request.id, Include::Request).await??;
        if keys.iter().all(|key| source.has_key(key)) {
            return Ok(Some(source));
        }
        // It may be the id of a call, and that may stand in an answer that is kept beside the log.
        let source = self.source(&request.id, Include::Everything).await??;
        Ok(Some(source))
    }

    /// Makes the id of a Branch for a run that goes on live, or that its persona isolates.
    pub(crate) fn branch_for(&self, spec: &Spec, persona: &Value) -> Option<BranchId> {
        let isolated = persona.get("isolated_replay") == Some(&Value::Bool(true));
        (goes_live(spec) || isolated).then(|| BranchId::from_body(&self.shared.ids.body()))
    }

    async fn read_spec(
        &self,
        caller: &Caller,
        request: &ReplayTask,
        source: Option<&Source>,
    ) -> Result<(Spec, BTreeMap<String, Value>), Refused> {
        let mut artifacts = BTreeMap::new();
        let mut total = 0;
        for id in replay::artifacts_named(&request.body) {
            if artifacts.contains_key(&id) {
                continue;
            }
            // Whoever puts an Artifact into a run reads it: the same scopes, and no way around its visibility.
            let left = OVERRIDES_BYTES_MAX - total;
            let (visibility, bytes) = match self.readable_artifact(caller, &id, left).await {
                Ok(Some((artifact, bytes))) => (artifact.visibility, bytes),
                // Known before it is read.
                Ok(None) => {
                    return Err(Refused::Domain(Refusal::Policy {
                        reason: "overrides_too_large",
                        message: format!(
                            "the artifacts of a replay's overrides may have at most {OVERRIDES_BYTES_MAX} bytes together"
                        ),
                    }));
                }
                // The request says which one it was.
                Err(Refused::Domain(Refusal::NotFound { .. })) => continue,
                Err(refused) => return Err(refused),
            };
            total += bytes.len();
            artifacts.insert(id, ReadArtifact { visibility, bytes });
        }
        replay::read_with(&request.body, source, &artifacts, request.conformance)
            .map_err(|error| Refused::Replay(Box::new(error)))
    }

    /// Finds the number of the next replay of a Task. They are given without holes, so that looking at a few is enough.
    pub(crate) async fn next_ordinal(&self, source: &TaskId) -> Result<u64, Refused> {
        let mut free = 1;
        while self.is_taken(source, free).await? {
            free *= 2;
        }
        let mut taken = free / 2;
        while free - taken > 1 {
            let middle = taken + (free - taken) / 2;
            if self.is_taken(source, middle).await? {
                taken = middle;
            } else {
                free = middle;
            }
        }
        Ok(free)
    }

    async fn is_taken(&self, source: &TaskId, ordinal: u64) -> Result<bool, Refused> {
        let id = replay_id(source, ordinal)?;
        let found = self.shared.store.document(id.as_str()).await?;
        Ok(found.is_some())
    }

    /// Returns the structured input and the persona that a Task was given.
    pub(crate) async fn input_and_persona(&self, task: &Task) -> Result<(Value, Value), Refused> {
        // The replay itself says what is wrong with content that cannot be had.
        let submitted = view::shown_payload(&*self.shared.store, task.submitted).await?;
        let said = payload::TaskSubmitted::of(&submitted);
        let given = |value: Option<&Value>| value.cloned().unwrap_or_default();
        Ok((given(said.input()), given(said.persona())))
    }

    /// Returns the events of a replay that its receipt is computed from when it is stopped.
    async fn delivered_by(&self, key: Position) -> Result<Vec<Event>, Refused> {
        let mut delivered = Vec::new();
        for bytes in self.task_log(key).await? {
            let mut event = Event::parse(&bytes).map_err(|error| Refused::Internal {
                detail: error.to_string(),
            })?;
            let mark = event.replay.as_ref();
            let is_told = event.kind() == Ok(Kind::AgentToolUse)
                || replay::live::is_answer(&event)
                || mark.is_some_and(|mark| mark.override_key.is_some());
            if is_told {
                view::resolve_blobs(&*self.shared.store, Arc::make_mut(&mut event.payload)).await?;
                delivered.push(event);
            }
        }
        Ok(delivered)
    }

    /// Returns what a replay that is canceled leaves as its receipt.
    pub(super) async fn canceled_receipt(
        &self,
        key: Position,
        task: &Task,
    ) -> Result<Option<receipts::Receipt>, Refused> {
        let Some(of) = &task.replay else {
            return Ok(None);
        };
        let (spec, _) = self.replay_request(of).await?;
        let source = self.source(&of.source_task_id, Include::Everything);
        let Ok(source) = source.await? else {
            return Ok(None);
        };
        let log = self.delivered_by(key).await?;
        let replayed = replay::canceled(&source, &spec, log);
        self.replay_receipt(&source, &spec, &replayed, of).map(Some)
    }
}

pub(crate) fn replay_id(source: &TaskId, ordinal: u64) -> Result<TaskId, Refused> {
    let id = receipts::replay_task_id(source.as_str(), ordinal);
    TaskId::parse(&id).map_err(|_| too_long())
}

fn too_long() -> Refused {
    Refused::Domain(Refusal::Policy {
        reason: "id_too_long",
        message: "replays are nested too deeply: the id would be too long".to_owned(),
    })
}

/// Refuses a replay that could never end, because the ids of what it leaves behind would be too long.
fn check_lengths(
    source: &TaskId,
    receipt: Option<&ReceiptId>,
    id: &TaskId,
    ordinal: u64,
) -> Result<(), Refused> {
    let receipt = receipt.map(ReceiptId::as_str);
    let body = id.as_str().strip_prefix("task_").unwrap_or_default();
    let left = [
        receipts::replay_receipt_id(receipt, source.as_str(), ordinal),
        receipts::replay_artifact_id(id.as_str(), NUMBERS_MAX),
        format!("artifact_checkpoint_{body}_{NUMBERS_MAX}"),
    ];
    match left.iter().all(|id| id.len() <= domain::ID_BYTES_MAX) {
        true => Ok(()),
        false => Err(too_long()),
    }
}

/// More Artifacts and checkpoints than a run has.
const NUMBERS_MAX: u64 = 999_999;

/// Returns the caller's own members, with the reason of the request.
fn metadata(body: &Value) -> Map<String, Value> {
    let mut metadata = match body.get("metadata") {
        Some(Value::Object(metadata)) => metadata.clone(),
        _ => Map::new(),
    };
    if let Some(reason) = body.get("reason").filter(|reason| reason.is_string()) {
        metadata.insert("reason".to_owned(), reason.clone());
    }
    metadata
}
