//! What checks of the memory protocol stand on: fields of their own, agents, units, and how a refusal is read.

use futures_util::future::try_join_all;
use serde_json::{Value, json};

use crate::json::{at, put, show, text};
use crate::miss::{Checked, Miss, fail, need};
use crate::wire::{Answer, Wire};

/// Codes with what the table says of them: whether trying again can help, and the status over HTTP.
const CODES: [(&str, bool, Option<u16>); 18] = [
    ("MISSING_INTENT", true, Some(422)),
    ("MISSING_CONFIDENCE", true, Some(422)),
    ("INVALID_CONFIDENCE", true, Some(422)),
    ("INVALID_TYPE", true, Some(422)),
    ("AGENT_NOT_REGISTERED", true, Some(403)),
    ("AGENT_ID_TAKEN", true, Some(409)),
    ("CONFLICT_NOT_FOUND", false, Some(404)),
    ("UNIT_NOT_FOUND", false, Some(404)),
    ("INVALID_TRANSITION", true, Some(409)),
    ("UNSUPPORTED_OPERATION", false, Some(501)),
    ("MERGE_FAILED", true, Some(409)),
    ("REPLAY_TOO_LARGE", true, Some(413)),
    ("STORAGE_FULL", false, Some(507)),
    // Whose fault an exhausted clock is, servers see differently.
    ("EPOCH_OVERFLOW", false, None),
    ("INVALID_ENVELOPE", true, Some(400)),
    ("INVALID_REQUEST", true, Some(400)),
    ("UNAUTHENTICATED", true, Some(401)),
    ("FORBIDDEN", false, Some(403)),
];

/// The server under test.
pub(crate) struct Ground {
    pub(crate) wire: Wire,
    /// The level that it announces.
    pub(crate) level: u8,
    prefix: &'static str,
}

impl Ground {
    pub(crate) fn new(wire: Wire, prefix: &'static str, level: u8) -> Self {
        Self {
            wire,
            level,
            prefix,
        }
    }

    /// Returns a field that nobody has used.
    pub(crate) fn field(&self) -> Field<'_> {
        let name = self.wire.fresh("check");
        Field {
            ground: self,
            base: format!("{}/fields/{name}/v1", self.prefix),
            name,
        }
    }

    /// Returns a field that nobody has used, with some agents in it.
    pub(crate) async fn field_of(&self, agents: &[&str]) -> Result<Field<'_>, Miss> {
        let field = self.field();
        for agent in agents {
            field.join(agent).await?;
        }
        Ok(field)
    }
}

/// One field.
pub(crate) struct Field<'a> {
    pub(crate) ground: &'a Ground,
    pub(crate) name: String,
    base: String,
}

impl<'a> Field<'a> {
    pub(crate) fn path(&self, below: &str) -> String {
        format!("{}/{}", self.base, below.to_ascii_lowercase())
    }

    pub(crate) fn envelope(&self, operation: &str, agent: &str, payload: Value) -> Value {
        json!({
            "protocol": "akashik", "version": "0.1.0", "id": self.ground.wire.fresh("message"),
            "operation": operation, "agent_id": agent, "session_id": null, "epoch": 0, "payload": payload,
        })
    }

    pub(crate) async fn post(&self, operation: &str, envelope: &Value) -> Result<Answer, Miss> {
        self.post_with(operation, envelope, Some(&self.ground.wire.key))
            .await
    }

    /// Sends an envelope with another key, or with none.
    pub(crate) async fn post_with(
        &self,
        operation: &str,
        envelope: &Value,
        key: Option<&str>,
    ) -> Result<Answer, Miss> {
        let call = self.ground.wire.post(self.path(operation), envelope);
        let call = match key {
            Some(key) => call.key(key),
            None => call.anonymous(),
        };
        call.version(None).send().await
    }

    pub(crate) async fn say(
        &self,
        operation: &str,
        agent: &str,
        payload: Value,
    ) -> Result<Answer, Miss> {
        self.post(operation, &self.envelope(operation, agent, payload))
            .await
    }

    /// Sends what must be accepted and returns the answer.
    pub(crate) async fn ok(
        &self,
        operation: &str,
        agent: &str,
        payload: Value,
    ) -> Result<Value, Miss> {
        accepted(operation, &self.say(operation, agent, payload).await?)
    }

    /// Does the same as [`Field::ok`] as preparation.
    pub(crate) async fn made(
        &self,
        operation: &str,
        agent: &str,
        payload: Value,
    ) -> Result<Value, Miss> {
        let made = self.ok(operation, agent, payload).await;
        made.map_err(|miss| miss.while_preparing(operation))
    }

    /// Sends what must be refused with a code and returns the error.
    pub(crate) async fn no(
        &self,
        operation: &str,
        agent: &str,
        payload: Value,
        code: &str,
    ) -> Result<Value, Miss> {
        refused(&self.say(operation, agent, payload).await?, code)
    }

    pub(crate) async fn join(&self, agent: &str) -> Checked {
        // From level 3 on settling conflicts takes more than the authority that an agent has who states none.
        self.join_as(agent, 10).await
    }

    /// Registers an agent with an authority, where agents have one.
    pub(crate) async fn join_as(&self, agent: &str, authority: u8) -> Checked {
        let mut payload = json!({"id": agent, "role": "analyst"});
        if self.ground.level >= 3 {
            put(&mut payload, "authority", authority.into());
        }
        self.made("REGISTER", agent, payload).await.map(|_| ())
    }

    /// Sends an operation in a session.
    pub(crate) async fn say_in(
        &self,
        session: &str,
        operation: &str,
        agent: &str,
        payload: Value,
    ) -> Result<Answer, Miss> {
        let mut envelope = self.envelope(operation, agent, payload);
        put(&mut envelope, "session_id", session.into());
        self.post(operation, &envelope).await
    }

    /// Records a unit as preparation and returns its id.
    pub(crate) async fn note(
        &self,
        agent: &str,
        content: &str,
        more: Value,
    ) -> Result<String, Miss> {
        let made = self.made("RECORD", agent, unit(content, more)).await?;
        Ok(text(&made, "memory_unit_id").to_owned())
    }

    /// Records a unit that contradicts another, as preparation, and returns its id and that of the conflict.
    pub(crate) async fn contradict(
        &self,
        agent: &str,
        target: &str,
        more: Value,
    ) -> Result<(String, String), Miss> {
        let mut payload = unit("it is otherwise", more);
        put(
            &mut payload,
            "relations",
            json!([{"type": "contradicts", "target_id": target}]),
        );
        let made = self.made("RECORD", agent, payload).await?;
        let conflict = text(&made, "conflicts_detected.0").to_owned();
        if conflict.is_empty() {
            let miss = Miss::Unseen("a contradiction made no conflict".to_owned());
            return Err(miss);
        }
        Ok((text(&made, "memory_unit_id").to_owned(), conflict))
    }

    /// Asks for up to 100 units of others and returns them.
    pub(crate) async fn attune(&self, agent: &str, scope: Value) -> Result<Vec<Value>, Miss> {
        let answer = self.ok("ATTUNE", agent, json!({"scope": scoped(scope)}));
        Ok(list(&answer.await?, "record"))
    }

    /// Reads one of the views.
    pub(crate) async fn view(&self, name: &str) -> Result<Value, Miss> {
        let call = self.ground.wire.get(self.path(name)).version(None);
        call.send().await?.value_of(&[200])
    }

    /// Returns the conflict of an id as DETECT lists it.
    pub(crate) async fn conflict(&self, agent: &str, id: &str) -> Result<Value, Miss> {
        let listed = self.ok("DETECT", agent, json!({"mode": "list"})).await?;
        let found = list(&listed, "conflicts");
        let found = found
            .into_iter()
            .find(|conflict| text(conflict, "id") == id);
        found.map_or_else(|| fail(format!("conflict `{id}`"), show(&listed)), Ok)
    }

    pub(crate) async fn merge(
        &self,
        agent: &str,
        conflict: &str,
        strategy: &str,
        more: Value,
    ) -> Result<Answer, Miss> {
        let mut resolution = json!({"rationale": "the better source"});
        extend(&mut resolution, more);
        let payload =
            json!({"conflict_id": conflict, "strategy": strategy, "resolution": resolution});
        self.say("MERGE", agent, payload).await
    }

    pub(crate) async fn replay(
        &self,
        agent: &str,
        kind: &str,
        id: &str,
        depth: &str,
    ) -> Result<Value, Miss> {
        let payload = json!({"target_type": kind, "target_id": id, "depth": depth});
        self.ok("REPLAY", agent, payload).await
    }

    /// Sends the same operation many times at once.
    pub(crate) async fn repeat(
        &self,
        count: usize,
        operation: &str,
        agent: &str,
        session: &str,
        payload: &Value,
    ) -> Checked {
        let mut left = count;
        while left > 0 {
            let batch = left.min(64);
            let calls = (0..batch).map(|_| async {
                let mut envelope = self.envelope(operation, agent, payload.clone());
                put(&mut envelope, "session_id", session.into());
                accepted(operation, &self.post(operation, &envelope).await?)
            });
            let said = try_join_all(calls).await;
            said.map_err(|miss| miss.while_preparing(operation))?;
            left -= batch;
        }
        Ok(())
    }
}

fn extend(value: &mut Value, more: Value) {
    if let (Value::Object(value), Value::Object(more)) = (value, more) {
        value.extend(more);
    }
}

/// Returns a payload of RECORD: a committed finding, with some members changed.
pub(crate) fn unit(content: &str, more: Value) -> Value {
    let mut payload = json!({
        "mode": "committed", "type": "finding", "content": content, "intent": {"purpose": "to know"},
        "confidence": {"score": 0.8, "reasoning": "seen"},
    });
    extend(&mut payload, more);
    payload
}

/// Returns a scope that shows everything, with some members changed.
pub(crate) fn scoped(more: Value) -> Value {
    let mut scope = json!({"role": "analyst", "max_units": 100});
    extend(&mut scope, more);
    scope
}

/// Returns the items at a path.
pub(crate) fn list(value: &Value, path: &str) -> Vec<Value> {
    at(value, path).as_array().cloned().unwrap_or_default()
}

/// Returns the texts at a path within each item.
pub(crate) fn texts(items: &[Value], path: &str) -> Vec<String> {
    items
        .iter()
        .map(|item| text(item, path).to_owned())
        .collect()
}

/// Returns the ids of the units of an ATTUNE answer.
pub(crate) fn units(found: &[Value]) -> Vec<String> {
    texts(found, "memory_unit.id")
}

/// Requires success of an operation.
pub(crate) fn accepted(operation: &str, answer: &Answer) -> Result<Value, Miss> {
    let status = match operation {
        "REGISTER" | "RECORD" => 201,
        _ => 200,
    };
    answer.value_of(&[status])
}

/// Requires a refusal of this code, with the members and the status that the table gives it.
pub(crate) fn refused(answer: &Answer, code: &str) -> Result<Value, Miss> {
    let error = answer.value()?;
    let known = CODES.iter().find(|(name, ..)| *name == code);
    let (recoverable, status) = known.map_or((false, None), |(_, known, status)| (*known, *status));
    let holds = text(&error, "code") == code
        && at(&error, "recoverable").as_bool() == Some(recoverable)
        && status.is_none_or(|status| answer.status == status);
    need(
        holds,
        format!("{}: refused with `{code}`", answer.label),
        answer.found(),
    )?;
    Ok(error)
}

/// Requires two values to be the same.
pub(crate) fn same(what: &str, found: &Value, expected: &Value) -> Checked {
    need(
        found == expected,
        format!("{what}: {}", show(expected)),
        show(found),
    )
}

/// Requires lists of texts to be the same.
pub(crate) fn same_texts<A: AsRef<str>, B: AsRef<str>>(
    what: &str,
    found: &[A],
    expected: &[B],
) -> Checked {
    let found: Vec<&str> = found.iter().map(AsRef::as_ref).collect();
    let expected: Vec<&str> = expected.iter().map(AsRef::as_ref).collect();
    need(
        found == expected,
        format!("{what}: {expected:?}"),
        format!("{found:?}"),
    )
}
