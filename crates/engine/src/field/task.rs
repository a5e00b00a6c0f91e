//! The memory of a Task whose persona shares one: what it reads and writes are messages to the default field of its Workspace,
//! by an agent that stands for the persona. They are idempotent: a Task that is run again after a crash says nothing twice.

use std::fmt;

use canon::Value;
use domain::{Task, TaskId};
use field::{Caller, Code, Envelope, OPERATOR};
use runs::workflow::EffectOutcome;
use serde_json::json;

use super::processor::Sender;
use super::{DEFAULT_NAME, FieldName, FieldRefused};
use crate::engine::Engine;
use crate::refused::Refused;

/// Units that a Task reads.
const UNITS_MAX: u64 = 10;
/// Whose agents the personas of this server are.
const KEY: &str = "personas";

/// One Task at its memory.
pub(crate) struct AtMemory<'a> {
    /// The Task.
    pub(crate) id: &'a TaskId,
    /// What it is.
    pub(crate) task: &'a Task,
    /// The key of the effect.
    pub(crate) key: &'a str,
}

impl fmt::Debug for AtMemory<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AtMemory")
            .field("id", self.id)
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// Reads from the memory that agents share, or writes to it.
    pub(crate) async fn task_memory(
        &self,
        at: AtMemory<'_>,
        request: &Value,
    ) -> Result<EffectOutcome, Refused> {
        let text = |pointer: &str| {
            let found = request.pointer(pointer).and_then(Value::as_str);
            found.unwrap_or_default().to_owned()
        };
        let content = text("/write/content");
        let answer = if content.is_empty() {
            // Whoever may only look may draft: what nobody stands for is not put before a model.
            let scope = json!({
                "role": role(at.task), "max_units": UNITS_MAX, "include_own": true, "committed_only": true,
            });
            let payload = json!({"scope": scope, "context_hint": text("/read/about")});
            self.say_for_task(&at, "ATTUNE", payload).await
        } else {
            let most = self.fields().limits.content_bytes_max;
            let purpose = text("/write/about");
            let purpose = purpose.lines().map(str::trim).find(|line| !line.is_empty());
            let purpose: String = purpose.unwrap_or("a task").chars().take(200).collect();
            let payload = json!({
                "mode": "committed", "type": "finding", "content": cut(&content, most),
                "intent": {"purpose": purpose, "task_id": at.id},
                "confidence": {"score": 0.5, "reasoning": "the answer of an agent, as it was given"},
            });
            self.say_for_task(&at, "RECORD", payload).await
        };
        match answer {
            Ok(answer) => Ok(EffectOutcome::ok(shown(&answer))),
            Err(FieldRefused::Protocol(refusal)) => Ok(EffectOutcome::error(
                refusal.code().as_str(),
                refusal.message(),
            )),
            Err(FieldRefused::Engine(refused)) => Err(refused),
        }
    }

    async fn say_for_task(
        &self,
        at: &AtMemory<'_>,
        operation: &str,
        payload: Value,
    ) -> Result<Value, FieldRefused> {
        let id = format!("{}:{}", at.id, at.key);
        let said = self
            .send_to_default_field(at, &id, operation, payload.clone())
            .await;
        match &said {
            Err(FieldRefused::Protocol(refusal)) if refusal.code() == Code::AgentNotRegistered => {
                let joins = json!({"id": agent(at.task), "role": role(at.task)});
                let joined = self
                    .send_to_default_field(at, &format!("{id}:join"), "REGISTER", joins)
                    .await;
                match joined {
                    // Another Task of the persona was faster.
                    Err(FieldRefused::Protocol(refusal))
                        if refusal.code() == Code::AgentIdTaken => {}
                    joined => drop(joined?),
                }
                self.send_to_default_field(at, &id, operation, payload)
                    .await
            }
            _ => said,
        }
    }

    async fn send_to_default_field(
        &self,
        at: &AtMemory<'_>,
        id: &str,
        operation: &str,
        payload: Value,
    ) -> Result<Value, FieldRefused> {
        let envelope = json!({
            "protocol": "akashik", "version": field::PROTOCOL_VERSION, "id": id, "operation": operation,
            "agent_id": agent(at.task), "session_id": at.task.session_id, "epoch": 0, "payload": payload,
        });
        let envelope = Envelope::from_json(&envelope, None)?;
        let envelope = envelope.map_digest(|digest| self.mac([digest.as_bytes().as_slice()]));
        let name = FieldName {
            workspace_id: at.task.workspace_id.clone(),
            name: DEFAULT_NAME.to_owned(),
        };
        self.may_store(Some(&name.workspace_id), 1).await?;
        let processor = self.shared.fields.processor(&name);
        let sender = Sender {
            actor: at.task.created_by.clone(),
            caller: Caller {
                key: KEY.to_owned(),
                ceiling: OPERATOR,
                // Whoever registered its id before that was refused to others.
                agents: vec![agent(at.task)],
            },
        };
        self.ask(&processor, sender, envelope).await
    }
}

fn agent(task: &Task) -> String {
    let persona = task.persona.as_ref();
    persona.map_or_else(|| "agent".to_owned(), |persona| persona.id.to_string())
}

fn role(task: &Task) -> String {
    let persona = task.persona.as_ref();
    persona.map_or_else(|| "agent".to_owned(), |persona| persona.id.to_string())
}

/// Cuts a text to a number of bytes, between characters.
fn cut(text: &str, most: usize) -> &str {
    let mut end = most.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

/// Returns what the workflow needs of an answer.
fn shown(answer: &Value) -> Value {
    let epoch = answer.get("epoch");
    if let Some(unit) = answer.get("memory_unit_id") {
        let conflicts = answer.get("conflicts_detected");
        return json!({"memory_unit_id": unit, "epoch": epoch, "conflicts_detected": conflicts});
    }
    let units = answer.get("record").and_then(Value::as_array);
    let units: Vec<Value> = units
        .into_iter()
        .flatten()
        .map(|found| {
            let of = |pointer: &str| found.pointer(pointer).cloned().unwrap_or_default();
            json!({
                "id": of("/memory_unit/id"), "type": of("/memory_unit/type"), "content": of("/memory_unit/content"),
                "agent_id": of("/memory_unit/source/agent_id"), "status": of("/memory_unit/status"),
                "relevance_score": of("/relevance_score"),
            })
        })
        .collect();
    json!({"units": units, "epoch": epoch})
}
