//! What the recorder knows about a run: request ids, the receipt and its place in the log (RB-REC-01).
//!
//! Reads a server as any client would. What it brings is judged by `check`, here as on the reader's machine.

mod check;

use ::sidecar::{AhdModel, Model, Outcome, Recording};
use anyhow::ensure;
use canon::{Number, Value};

use super::output::check_lines;
use crate::args::Connection;
use crate::client::{Client, Event, Page, Target};
use crate::exit::Problem;

pub(super) use check::{checks, missing};

/// Which recorded run is meant, and where its recorder is.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Recorded runs")]
pub(super) struct RecordingArgs {
    /// The task that was the run: its request ids are taken from the log, for general kinds also its receipt.
    #[arg(long, value_name = "TASK", conflicts_with = "request_ids")]
    task: Option<String>,
    #[command(flatten)]
    connection: Connection,
}

/// What the log of a task says.
#[derive(Debug, Default)]
pub(super) struct RecordedTask {
    /// The models that answered, in the order of their first answers.
    models: Vec<Model>,
    /// The receipt and its proof, where they were asked for.
    pub(super) recording: Option<Recording>,
}

/// A task, for whoever describes it.
#[derive(Debug)]
pub(super) struct TaskTimes {
    pub(super) task: String,
    pub(super) started_at: String,
    pub(super) ended_at: Option<String>,
}

impl RecordingArgs {
    /// Reads when the task ran; none when no task is named.
    pub(super) fn described(&self) -> anyhow::Result<Option<TaskTimes>> {
        let Some(task) = &self.task else {
            return Ok(None);
        };
        let raw = crate::wait(async { Ok(self.client()?.task(task).await?.raw) })?;
        let time = |name: &str| {
            let time: jiff::Timestamp = raw.get(name)?.as_str()?.parse().ok()?;
            Some(format!("{time:.3}"))
        };
        let started_at = time("started_at").or_else(|| time("created_at"));
        let started_at = started_at.ok_or_else(|| {
            let hint = "give --invoked-at";
            Problem::new(format!("task `{task}` does not say when it ran"), hint)
        })?;
        Ok(Some(TaskTimes {
            task: task.clone(),
            started_at,
            ended_at: time("completed_at").or_else(|| time("canceled_at")),
        }))
    }

    /// Makes sure that the recorder answers and knows the task, before a run costs anything.
    pub(super) fn probe(&self) -> anyhow::Result<()> {
        let Some(task) = &self.task else {
            return Ok(());
        };
        crate::wait(async {
            self.client()?.task(task).await?;
            Ok(())
        })
    }

    /// Reads what the log says now that the run has ended.
    pub(super) fn read(&self, with_receipt: bool) -> anyhow::Result<RecordedTask> {
        let Some(task) = &self.task else {
            return Ok(RecordedTask::default());
        };
        crate::wait(async {
            let client = self.client()?;
            let status = client.task(task).await?.status;
            if !status.is_terminal() {
                return Err(Problem::new(
                    format!("task `{task}` is {status}: a run is recorded once it has ended"),
                    format!("`reprise task watch {task}` follows it to its end"),
                )
                .into());
            }
            let models = models(&events(&client, task).await?);
            let recording = match with_receipt {
                true => Some(recording(&client, task).await?),
                false => None,
            };
            Ok(RecordedTask { models, recording })
        })
    }

    fn client(&self) -> anyhow::Result<Client> {
        Client::new(Target::find(&self.connection)?)
    }
}

async fn events(client: &Client, task: &str) -> anyhow::Result<Vec<Event>> {
    let mut events = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        let mut query = vec![("limit", "200")];
        if let Some(cursor) = &cursor {
            query.push(("cursor", cursor));
        }
        let page = client.get(&["v1", "tasks", task, "events"], &query).await?;
        let page = Page::read(&page)?;
        for raw in page.data {
            events.push(Event::read(raw)?);
        }
        match page.next {
            Some(next) => cursor = Some(next),
            None => return Ok(events),
        }
    }
}

/// Returns the models that answered, with one request id for each answer that has one.
fn models(events: &[Event]) -> Vec<Model> {
    let mut models: Vec<Model> = Vec::new();
    for Event { kind, payload, .. } in events {
        let text = |pointer: &str| payload.pointer(pointer).and_then(Value::as_str);
        let answered = kind == "vendor.effect_recorded"
            && text("/kind") == Some("llm_provider_response")
            && text("/outcome") == Some("ok");
        if !answered {
            continue;
        }
        let id = text("/model/model").unwrap_or("unknown");
        let provider = text("/model/provider").unwrap_or("unknown");
        let known = |model: &Model| model.id == id && model.provider == provider;
        let place = models.iter().position(known).unwrap_or_else(|| {
            models.push(Model {
                id: id.to_owned(),
                provider: provider.to_owned(),
                provider_request_ids: Vec::new(),
                reported_ids: None,
                endpoint: None,
                calls: None,
                tokens_in: None,
                tokens_out: None,
            });
            models.len() - 1
        });
        let Some(model) = models.get_mut(place) else {
            continue;
        };
        let tokens = |name: &str| payload.pointer(name).and_then(Value::as_u64);
        add(&mut model.calls, Some(1));
        add(&mut model.tokens_in, tokens("/model/input_tokens"));
        add(&mut model.tokens_out, tokens("/model/output_tokens"));
        let request_id = text("/provider_request_id").map(str::to_owned);
        model.provider_request_ids.extend(request_id);
    }
    models
}

fn add(sum: &mut Option<Number>, more: Option<u64>) {
    if let Some(more) = more {
        let so_far = sum.as_ref().and_then(Number::as_u64).unwrap_or(0);
        *sum = Some(Number::from(so_far.saturating_add(more)));
    }
}

/// Reads the receipt of a task with its proof, and refuses what a reader of the sidecar would.
async fn recording(client: &Client, task: &str) -> anyhow::Result<Recording> {
    let list = client.get(&["v1", "tasks", task, "receipts"], &[]).await?;
    let receipts = Page::read(&list)?.data;
    let is_ours = |receipt: &&Value| receipt.pointer("/subject/id").is_some_and(|id| id == task);
    let id = receipts
        .iter()
        .find(is_ours)
        .and_then(|receipt| receipt.get("id")?.as_str());
    let Some(id) = id else {
        return Err(Problem::new(
            format!("task `{task}` has no receipt"),
            "without --task the sidecar is written without one",
        )
        .into());
    };
    let receipt = client
        .get(&["v1", "receipts", id], &[("view", "wire")])
        .await?;
    let mut proof = client.get(&["v1", "receipts", id, "proof"], &[]).await?;
    let checkpoint = proof
        .as_object_mut()
        .and_then(|proof| proof.remove("checkpoint"));
    let Some(Value::String(checkpoint)) = checkpoint else {
        return Err(Problem::new(
            format!("the proof of receipt `{id}` comes without its checkpoint"),
            "check that the address is that of a Reprise server",
        )
        .into());
    };
    let recording = Recording {
        task_id: task.to_owned(),
        receipt,
        proof,
        checkpoint,
    };
    let checks = checks(&recording, None);
    let failed = checks.iter().find(|check| check.result == Outcome::Fail);
    ensure!(
        failed.is_none(),
        "the recorder's own receipt does not verify: {}",
        failed.map(check_lines).unwrap_or_default()
    );
    Ok(recording)
}

impl RecordedTask {
    /// Returns the models that were declared and those that answered, each once; what was declared stands.
    pub(super) fn join(&self, mut declared: Vec<Model>) -> Vec<Model> {
        for recorded in &self.models {
            let same =
                |model: &&mut Model| model.id == recorded.id && model.provider == recorded.provider;
            match declared.iter_mut().find(same) {
                Some(model) => {
                    model.provider_request_ids = recorded.provider_request_ids.clone();
                    let or = |one: &mut Option<Number>, other: &Option<Number>| {
                        if one.is_none() {
                            one.clone_from(other);
                        }
                    };
                    or(&mut model.calls, &recorded.calls);
                    or(&mut model.tokens_in, &recorded.tokens_in);
                    or(&mut model.tokens_out, &recorded.tokens_out);
                }
                None => declared.push(recorded.clone()),
            }
        }
        declared
    }

    /// The same for AHD blocks, which have a member for the request ids alone.
    pub(super) fn join_ahd(&self, mut declared: Vec<AhdModel>) -> Vec<AhdModel> {
        for recorded in &self.models {
            let same = |model: &&mut AhdModel| {
                model.id == recorded.id && model.provider == recorded.provider
            };
            let ids = recorded.provider_request_ids.clone();
            match declared.iter_mut().find(same) {
                Some(model) => model.provider_request_ids = ids,
                None => declared.push(AhdModel {
                    id: recorded.id.clone(),
                    provider: recorded.provider.clone(),
                    provider_request_ids: ids,
                }),
            }
        }
        declared
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answer(provider: &str, model: &str, request_id: Value, outcome: &str) -> Event {
        let payload = json!({
            "effect_key": "llm:main:1", "kind": "llm_provider_response", "outcome": outcome,
            "provider_request_id": request_id,
            "model": {"provider": provider, "model": model, "input_tokens": 3, "output_tokens": 2},
        });
        let raw = json!({"id": "event_1", "event": "vendor.effect_recorded", "payload": payload});
        Event::read(raw).unwrap()
    }

    fn shown(models: &[Model]) -> Value {
        serde_json::to_value(models).unwrap()
    }

    /// RB-REC-01.
    #[test]
    fn request_ids_come_from_answers_in_their_order() {
        let mut other = answer("p", "m", json!("tool"), "ok");
        other.payload["kind"] = json!("mcp_tool_return");
        let mut asked = answer("p", "m", json!("asked"), "ok");
        asked.kind = "vendor.effect_requested".to_owned();
        let events = [
            answer("p", "m", json!("r1"), "ok"),
            answer("q", "m", json!("r2"), "ok"),
            answer("p", "m", json!("failed"), "error"),
            other,
            asked,
            answer("p", "m", json!(null), "ok"),
            answer("p", "m", json!("r3"), "ok"),
        ];
        let recorded = RecordedTask {
            models: models(&events),
            recording: None,
        };
        let expected = json!([
            {"id": "m", "provider": "p", "provider_request_ids": ["r1", "r3"],
             "calls": 3, "tokens_in": 9, "tokens_out": 6},
            {"id": "m", "provider": "q", "provider_request_ids": ["r2"],
             "calls": 1, "tokens_in": 3, "tokens_out": 2},
        ]);
        assert_eq!(shown(&recorded.models), expected);
        // What was declared stays first and keeps its facts.
        let mut declared = recorded.models.clone();
        declared.reverse();
        declared.truncate(1);
        declared[0].provider_request_ids.clear();
        declared[0].calls = Some(Number::from(7));
        declared[0].endpoint = Some("https://q.example".to_owned());
        let joined = shown(&recorded.join(declared));
        let expected = json!({"id": "m", "provider": "q", "provider_request_ids": ["r2"],
            "endpoint": "https://q.example", "calls": 7, "tokens_in": 3, "tokens_out": 2});
        assert_eq!(joined[0], expected);
        assert_eq!(joined[1]["provider_request_ids"], json!(["r1", "r3"]));
        assert_eq!(joined.as_array().unwrap().len(), 2);
        let ahd = recorded.join_ahd(vec![AhdModel {
            id: "m".to_owned(),
            provider: "p".to_owned(),
            provider_request_ids: Vec::new(),
        }]);
        let ids: Vec<_> = ahd
            .iter()
            .map(|model| &model.provider_request_ids)
            .collect();
        assert_eq!(
            ids,
            [
                &vec!["r1".to_owned(), "r3".to_owned()],
                &vec!["r2".to_owned()]
            ]
        );
    }
}
