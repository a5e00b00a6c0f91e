//! Clients of a memory that they share: they say things under message ids, repeat themselves, contradict each other; and what
//! must hold of it at every moment: the field is the fold of its log, epochs strictly increase, what was answered is there.

use std::collections::BTreeMap;

use canon::Value;
use domain::{Event, Position};
use engine::port::{BlobStore, MemoryStore, ReadEvents, Scope, Store};
use engine::{Caller, Engine, FieldView};
use field::{Config, Content, Entry, Envelope, Field, Level};
use serde_json::json;

use crate::clients::{Client, Ledger};

/// What clients were told by the field, over all lives of the engine.
#[derive(Debug, Default)]
pub(crate) struct FieldReplies {
    /// Message id to its answer.
    answers: BTreeMap<String, Value>,
    /// Answers that contradict an earlier one to the same message.
    contradictions: Vec<String>,
    /// What the last life showed of the field at its end.
    shown: Option<Value>,
}

impl Client {
    /// Says what is left to say to the field in one life of the engine.
    pub(crate) async fn share(&self, engine: &Engine) {
        let agent = format!("agent{}", self.number);
        let joins = json!({"id": agent, "role": "analyst", "authority": 10});
        self.say(engine, &agent, 0, "REGISTER", joins).await;
        for action in 1..=self.actions {
            let (operation, payload) = self.message(action);
            self.say(engine, &agent, action, operation, payload).await;
        }
    }

    /// What is said depends on the number of the action and on answers that will never change.
    fn message(&self, action: u32) -> (&'static str, Value) {
        let unit = |relations: Value| {
            json!({
                "mode": "committed", "type": "finding", "intent": {"purpose": "to know", "task_id": "market"},
                "content": format!("It grows by {} percent a year", self.number * 10 + action),
                "confidence": {"score": 0.5, "reasoning": "seen"}, "relations": relations,
            })
        };
        let ledger = self.ledger.lock();
        let told = |client: u32, action: u32, pointer: &str| {
            let answer = ledger.told.answers.get(&id(client, action))?;
            answer
                .pointer(pointer)
                .cloned()
                .filter(|value| !value.is_null())
        };
        match action % 5 {
            1 => ("RECORD", unit(json!([]))),
            2 => match told(0, 1, "/memory_unit_id").filter(|_| self.number > 0) {
                Some(target) => {
                    let relation = json!({"type": "contradicts", "target_id": target});
                    ("RECORD", unit(json!([relation])))
                }
                None => ("DETECT", json!({"mode": "scan"})),
            },
            3 => match told(self.number, 2, "/conflicts_detected/0") {
                Some(conflict) => {
                    let resolution = json!({"rationale": "the newer"});
                    let payload = json!({
                        "conflict_id": conflict, "strategy": "last_write_wins", "resolution": resolution,
                    });
                    ("MERGE", payload)
                }
                None => ("DETECT", json!({"mode": "list"})),
            },
            4 => {
                let scope = json!({"role": "analyst", "max_units": 5});
                ("ATTUNE", json!({"scope": scope}))
            }
            _ => {
                let own = format!("of-{}-{action}", self.number);
                match action / 5 % 4 {
                    1 => {
                        let task = json!({"id": own, "title": "t"});
                        ("COORDINATE", json!({"action": "create", "task": task}))
                    }
                    2 => {
                        let session = json!({"id": own, "goal": "g"});
                        ("SESSION", json!({"action": "create", "session": session}))
                    }
                    number => {
                        let strategy = if number == 3 { "purge" } else { "archive" };
                        let filter = json!({"types": ["question"]});
                        ("COMPACT", json!({"strategy": strategy, "filter": filter}))
                    }
                }
            }
        }
    }

    async fn say(
        &self,
        engine: &Engine,
        agent: &str,
        action: u32,
        operation: &str,
        payload: Value,
    ) {
        let id = id(self.number, action);
        let known = self.ledger.lock().told.answers.get(&id).cloned();
        if known.is_some() && !self.dice.one_in(3) {
            return;
        }
        let envelope = json!({
            "protocol": "akashik", "version": "0.1.0", "id": id, "operation": operation, "agent_id": agent,
            "session_id": null, "epoch": 0, "payload": payload,
        });
        let Ok(envelope) = Envelope::from_json(&envelope, None) else {
            return;
        };
        // Refused, or not answered: it is said again in the next life.
        let Ok(answer) = engine
            .field_message(&Caller::system(), None, envelope)
            .await
        else {
            return;
        };
        let mut ledger = self.ledger.lock();
        match known {
            Some(known) if known != answer => {
                let text = format!("message {id} was answered with {known} and with {answer}");
                ledger.told.contradictions.push(text);
            }
            _ => drop(ledger.told.answers.insert(id, answer)),
        }
    }
}

fn id(client: u32, action: u32) -> String {
    format!("client{client}/field{action}")
}

/// Notes what the engine shows of the field when all is done.
pub(crate) async fn look(engine: &Engine, client: &Client) {
    let caller = Caller::system();
    let view = engine.field_view(&caller, None, FieldView::Status).await;
    if let Ok(view) = view {
        client.ledger.lock().told.shown = Some(view);
    }
}

/// Checks the field of a store against what clients were told.
pub(crate) async fn check(store: &MemoryStore, ledger: &Ledger) -> Result<(), String> {
    let told = &ledger.told;
    if let Some(text) = told.contradictions.first() {
        return Err(text.clone());
    }
    let query = ReadEvents {
        scope: Scope::All,
        after: Position::START,
        limit: usize::MAX,
    };
    let events = store.events(query).await;
    let events = events.map_err(|error| error.to_string())?;
    let mut field = Field::new(Config::at(Level::Full));
    let mut last = 0;
    let mut said: BTreeMap<String, u64> = BTreeMap::new();
    for stored in &events {
        let event = Event::parse(&stored.bytes).map_err(|error| error.to_string())?;
        if &*event.kind != "vendor.field_entry" {
            continue;
        }
        let entry = Entry::read(event.sequence, &event.payload);
        let entry = entry.map_err(|error| error.to_string())?;
        if let Some(message) = &entry.message {
            if entry.epoch <= last {
                return Err(format!(
                    "epoch {} of `{}` follows {last}",
                    entry.epoch, message.id
                ));
            }
            last = entry.epoch;
            if said.insert(message.id.clone(), entry.epoch).is_some() {
                return Err(format!("message `{}` was carried out twice", message.id));
            }
        }
        let (text, vector) = entry.content_digests(&event.payload);
        let mut beside = [None, None];
        for (place, digest) in beside.iter_mut().zip([text, vector]) {
            if let Some(digest) = digest {
                let bytes = store
                    .blob(digest)
                    .await
                    .map_err(|error| error.to_string())?;
                *place = Some(bytes.ok_or_else(|| format!("{digest} is not beside the log"))?);
            }
        }
        let [text, vector] = beside;
        let content = Content::read(text.as_deref(), vector.as_deref());
        field
            .apply(&entry, Some(&content))
            .map_err(|error| error.to_string())?;
    }
    for (id, answer) in &told.answers {
        let Some(epoch) = said.get(id) else {
            return Err(format!("message `{id}` was answered and is not in the log"));
        };
        let answered = answer.get("epoch").and_then(Value::as_u64);
        if answered.is_some_and(|answered| answered != *epoch) {
            return Err(format!(
                "message `{id}` of epoch {epoch} was answered {answer}"
            ));
        }
        let unit = answer.get("memory_unit_id").and_then(Value::as_str);
        if unit.is_some_and(|unit| field.text_of(unit).is_none()) {
            return Err(format!(
                "message `{id}` was answered {answer}, and there is no such unit"
            ));
        }
    }
    match &told.shown {
        Some(shown) if *shown != field.status_view(None) => Err(format!(
            "the field was shown as {shown} and its log folds to {}",
            field.status_view(None)
        )),
        _ => Ok(()),
    }
}
