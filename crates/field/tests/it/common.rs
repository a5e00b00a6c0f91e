//! A field with its log, its answers and a clock that tests can turn.

use std::collections::BTreeMap;

use domain::Timestamp;
use field::{
    Call, CallSeed, Caller, Code, Config, Content, Detection, Embedding, Entry, Envelope, Event,
    Field, Level, MessageDecision, Notification, OPERATOR, Operation, Refusal, StoredAnswer,
    decide,
};
use serde_json::{Value, json};

/// A field under test. Each operation goes through JSON bytes, as from a transport.
pub(crate) struct Lab {
    pub(crate) field: Field,
    pub(crate) log: Vec<(Entry, Option<Content>)>,
    /// What is kept of each answer, by sender and message.
    pub(crate) answers: BTreeMap<(String, String), Value>,
    pub(crate) caller: Option<Caller>,
    pub(crate) embedding: Embedding,
    pub(crate) detection: Detection,
    pub(crate) session: Option<String>,
    pub(crate) now_us: i64,
    pub(crate) pushed: Vec<Notification>,
    calls: u64,
}

impl Lab {
    pub(crate) fn at(level: Level) -> Self {
        Self::with(Config::at(level))
    }

    pub(crate) fn with(config: Config) -> Self {
        Self {
            field: Field::new(config),
            log: Vec::new(),
            answers: BTreeMap::new(),
            caller: Some(key("operator", OPERATOR)),
            embedding: Embedding::BuiltIn,
            detection: Detection::Here,
            session: None,
            now_us: 1_700_000_000_000_000,
            pushed: Vec::new(),
            calls: 0,
        }
    }

    /// A field with agents of role `analyst` and, at level 3, the authority of a senior.
    pub(crate) fn with_agents(level: Level, agents: &[&str]) -> Self {
        let mut lab = Self::at(level);
        for agent in agents {
            lab.join(agent, 6);
        }
        lab
    }

    pub(crate) fn join(&mut self, agent: &str, authority: u8) -> Value {
        let payload = json!({"id": agent, "role": "analyst", "authority": authority});
        self.ok(Operation::Register, agent, payload)
    }

    pub(crate) fn fresh(&mut self) -> CallSeed {
        self.calls += 1;
        self.now_us += 1_000_000;
        let mut nonce = [7; 32];
        nonce[..8].copy_from_slice(&self.calls.to_be_bytes());
        CallSeed {
            now: Timestamp::from_micros(self.now_us),
            nonce,
        }
    }

    pub(crate) fn envelope(&self, operation: Operation, agent: &str, payload: Value) -> Value {
        json!({
            "protocol": "akashik",
            "version": "0.1.0",
            "id": format!("msg-{}", self.calls),
            "operation": operation,
            "agent_id": agent,
            "session_id": self.session,
            "epoch": 0,
            "payload": payload,
        })
    }

    /// Sends an envelope; nothing may change when it is refused.
    pub(crate) fn send_envelope(&mut self, value: &Value) -> Result<Value, Refusal> {
        let (clock, head) = (self.field.clock(), self.field.head());
        let result = self.try_envelope(value);
        if result.is_err() {
            assert_eq!((clock, head), (self.field.clock(), self.field.head()));
        }
        result
    }

    fn try_envelope(&mut self, value: &Value) -> Result<Value, Refusal> {
        let bytes = serde_json::to_vec(value).unwrap();
        let envelope = Envelope::read(&bytes, &self.field.config().limits.clone(), None)?;
        let fresh = self.fresh();
        let call = Call {
            envelope: &envelope,
            caller: self.caller.as_ref(),
            fresh: &fresh,
            embedding: self.embedding.clone(),
            detection: self.detection.clone(),
        };
        match decide(&self.field, &call)? {
            MessageDecision::Repeated(message) => {
                let kept = &self.answers[&(message.agent_id, message.id)];
                Ok(self.field.rebuild_answer(kept.clone()))
            }
            MessageDecision::New(decision) => {
                self.erase_purged(&decision.steps);
                self.field.commit(&decision).unwrap();
                self.log.extend(decision.steps.iter().cloned());
                let message = decision.steps[0].0.message.clone().unwrap();
                let kept = match &decision.kept {
                    StoredAnswer::Whole => decision.answer.clone(),
                    StoredAnswer::WithoutText(kept) => kept.clone(),
                };
                let again = self.field.rebuild_answer(kept.clone());
                assert_eq!(again, decision.answer, "of what is kept comes the answer");
                self.answers.insert((message.agent_id, message.id), kept);
                let entries: Vec<Entry> = decision
                    .steps
                    .iter()
                    .map(|(entry, _)| entry.clone())
                    .collect();
                let pushed = self.field.notifications(&entries, &self.everybody());
                self.pushed.extend(pushed);
                Ok(decision.answer)
            }
        }
    }

    /// The agents that are registered now.
    pub(crate) fn everybody(&self) -> Vec<String> {
        let view = self.field.agents_view(None);
        let agents = view["agents"].as_array().unwrap().iter();
        agents
            .map(|agent| agent["id"].as_str().unwrap().to_owned())
            .collect()
    }

    /// What a store does on a purge: texts beside the log go, entries stay.
    fn erase_purged(&mut self, steps: &[(Entry, Option<Content>)]) {
        for (entry, _) in steps {
            let Event::Compacted {
                strategy, unit_ids, ..
            } = &entry.event
            else {
                continue;
            };
            if strategy.as_str() != "purge" {
                continue;
            }
            for unit in unit_ids {
                for (entry, content) in &mut self.log {
                    if matches!(&entry.event, Event::Recorded(recorded) if recorded.unit_id == *unit)
                    {
                        *content = None;
                    }
                }
            }
        }
    }

    pub(crate) fn send(
        &mut self,
        operation: Operation,
        agent: &str,
        payload: Value,
    ) -> Result<Value, Refusal> {
        let envelope = self.envelope(operation, agent, payload);
        self.send_envelope(&envelope)
    }

    #[track_caller]
    pub(crate) fn ok(&mut self, operation: Operation, agent: &str, payload: Value) -> Value {
        match self.send(operation, agent, payload) {
            Ok(answer) => answer,
            Err(refusal) => panic!("{operation}: {refusal}"),
        }
    }

    #[track_caller]
    pub(crate) fn code(&mut self, operation: Operation, agent: &str, payload: Value) -> Code {
        match self.send(operation, agent, payload) {
            Ok(answer) => panic!("{operation} was accepted: {answer}"),
            Err(refusal) => refusal.code(),
        }
    }

    /// Records a committed finding and returns its id.
    #[track_caller]
    pub(crate) fn note(
        &mut self,
        agent: &str,
        content: &str,
        relations: &[(&str, &str)],
    ) -> String {
        self.unit(
            agent,
            "finding",
            content,
            json!({"relations": related(relations)}),
        )
    }

    /// Records a committed unit whose payload has further members.
    #[track_caller]
    pub(crate) fn unit(&mut self, agent: &str, kind: &str, content: &str, more: Value) -> String {
        let payload = unit(kind, content, more);
        let answer = self.ok(Operation::Record, agent, payload);
        answer["memory_unit_id"].as_str().unwrap().to_owned()
    }

    /// Records two contradicting units and returns them with their conflict.
    #[track_caller]
    pub(crate) fn conflict(&mut self, a: (&str, f64), b: (&str, f64)) -> (String, String, String) {
        let score = |score: f64| json!({"confidence": {"score": score, "reasoning": "r"}});
        let first = self.unit(a.0, "finding", "it holds", score(a.1));
        let mut more = score(b.1);
        more["relations"] = related(&[("contradicts", &first)]);
        let answer = self.ok(Operation::Record, b.0, unit("finding", "it fails", more));
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        (
            first,
            text(&answer["memory_unit_id"]),
            text(&answer["conflicts_detected"][0]),
        )
    }

    pub(crate) fn merge(
        &mut self,
        agent: &str,
        conflict: &str,
        strategy: &str,
        more: Value,
    ) -> Result<Value, Refusal> {
        let mut resolution = json!({"rationale": "because"});
        for (name, value) in more.as_object().unwrap() {
            resolution[name] = value.clone();
        }
        let payload =
            json!({"conflict_id": conflict, "strategy": strategy, "resolution": resolution});
        self.send(Operation::Merge, agent, payload)
    }

    /// Attunes with a plain scope and returns the ids of the units.
    #[track_caller]
    pub(crate) fn seen_by(&mut self, agent: &str) -> Vec<String> {
        let answer = self.ok(
            Operation::Attune,
            agent,
            json!({"scope": {"role": "analyst", "max_units": 1000}}),
        );
        ids(&answer)
    }

    pub(crate) fn status(&self, unit: &str) -> &'static str {
        self.field.unit_status(unit).unwrap().as_str()
    }

    /// A second field under another set-up, folded from this one's log; its messages are not the first one's.
    pub(crate) fn copied(&self, config: Config) -> Self {
        let mut lab = Self::with(config);
        for (entry, content) in &self.log {
            lab.field.apply(entry, content.as_ref()).unwrap();
        }
        lab.log = self.log.clone();
        lab.calls = self.calls;
        lab
    }

    /// Folds the log into a new field.
    pub(crate) fn refolded(&self) -> Field {
        let mut field = Field::new(self.field.config().clone());
        for (entry, content) in &self.log {
            // What is stored is read back, not what is in memory.
            let bytes = serde_json::to_vec(entry).unwrap();
            let entry: Entry = serde_json::from_slice(&bytes).unwrap();
            field.apply(&entry, content.as_ref()).unwrap();
        }
        field
    }
}

/// A key that may act for everyone.
pub(crate) fn key(name: &str, ceiling: u8) -> Caller {
    Caller {
        key: name.into(),
        ceiling,
        agents: vec!["*".into()],
    }
}

pub(crate) fn related(relations: &[(&str, &str)]) -> Value {
    relations
        .iter()
        .map(|(kind, target)| json!({"type": kind, "target_id": target}))
        .collect()
}

/// The payload of a committed RECORD.
pub(crate) fn unit(kind: &str, content: &str, more: Value) -> Value {
    let mut payload = json!({
        "mode": "committed",
        "type": kind,
        "content": content,
        "intent": {"purpose": "to know"},
        "confidence": {"score": 0.5, "reasoning": "seen"},
    });
    for (name, value) in more.as_object().unwrap() {
        payload[name] = value.clone();
    }
    payload
}

/// The ids of the units in an ATTUNE answer.
pub(crate) fn ids(answer: &Value) -> Vec<String> {
    answer["record"]
        .as_array()
        .unwrap()
        .iter()
        .map(|record| record["memory_unit"]["id"].as_str().unwrap().to_owned())
        .collect()
}
