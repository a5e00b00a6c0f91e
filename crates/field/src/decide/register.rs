//! REGISTER and DEREGISTER: who takes part.

use canon::Value;
use serde_json::json;

use super::Work;
use crate::caller::{OPERATOR, SESSION_CREATOR, STANDARD};
use crate::config::Level;
use crate::envelope::PROTOCOL_VERSION;
use crate::error::{Check, Code, Fault};
use crate::event::{Event, SYSTEM};
use crate::kind::{AgentStatus, Operation};
use crate::render;
use crate::state::{Agent, Field};

impl Work<'_> {
    pub(super) fn register(&mut self) -> Check<Value> {
        let payload = self.payload();
        let id = payload.required_id("id")?;
        if id != self.agent() {
            let message = "`agent_id` of the envelope is not `id` of the payload";
            return Err(Fault::new(Code::InvalidEnvelope, message));
        }
        if [SYSTEM, "redacted"]
            .iter()
            .any(|taken| id.eq_ignore_ascii_case(taken))
        {
            return Err(Fault::request("`id` is a name that the field uses itself"));
        }
        let role = payload.required_line("role")?;
        let len_max = self.field.config.limits.list_len_max;
        let interests = payload.texts("interests", len_max)?;
        let authority = self.stated_authority()?;
        self.check_required_operations(&payload.texts("required_operations", len_max)?)?;
        if self.field.active(&id).is_some() {
            let message = "`id` belongs to an active agent";
            return Err(Fault::new(Code::AgentIdTaken, message));
        }
        let agent = Agent {
            role: role.clone(),
            status: AgentStatus::Idle,
            interests: interests.clone(),
            current_task: None,
            authority,
            first_key: None,
        };
        let answer = json!({
            "status": "registered",
            "agent": render::agent(&id, &agent),
            "field_capabilities": capabilities(self.field),
            "rejection_reason": null,
        });
        self.log(Event::Registered {
            role,
            interests,
            authority,
            key: self.call.caller.map(|caller| caller.key.clone()),
        });
        Ok(answer)
    }

    /// The authority that the agent states, never above what its credential allows.
    fn stated_authority(&self) -> Check<u8> {
        let ceiling = self.call.caller.map_or(OPERATOR, |caller| caller.ceiling);
        let payload = self.payload();
        let Some(stated) = payload.integer("authority", 0)? else {
            return Ok(STANDARD.min(ceiling));
        };
        let stated = u8::try_from(stated)
            .ok()
            .filter(|stated| *stated <= OPERATOR)
            .ok_or_else(|| payload.wrong("authority", "an integer from 0 to 10"))?;
        if self.field.config.level >= Level::Full && stated > ceiling {
            let message = "`authority` is above what the credential allows";
            return Err(Fault::new(Code::Forbidden, message));
        }
        Ok(stated.min(ceiling))
    }

    fn check_required_operations(&self, required: &[String]) -> Check<()> {
        let missing: Vec<&str> = required
            .iter()
            .map(String::as_str)
            .filter(|name| {
                !Operation::parse(name).is_some_and(|operation| self.field.config.offers(operation))
            })
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        let message = format!("this field does not offer {}", missing.join(", "));
        Err(Fault::new(Code::UnsupportedOperation, message))
    }

    pub(super) fn deregister(&mut self) -> Check<Value> {
        if self
            .peek("agent_id")
            .is_some_and(|agent| agent != self.agent())
        {
            self.require(SESSION_CREATOR)?;
        }
        let agent_id = self.payload().required_id("agent_id")?;
        self.check_owner(&agent_id)?;
        let found = self.field.active(&agent_id).is_some();
        let (mut orphaned, mut tasks) = (0, 0);
        if found {
            let rows = self.field.by_author.get(&agent_id);
            let units = rows
                .into_iter()
                .flatten()
                .filter_map(|row| self.field.at(*row));
            orphaned = units.filter(|unit| !unit.is_purged()).count();
            tasks = self
                .field
                .tasks
                .values()
                .filter(|task| task.assignee.as_ref() == Some(&agent_id) && !task.is_over())
                .count();
        }
        self.log(Event::Deregistered { agent_id, found });
        Ok(json!({
            "status": if found { "ok" } else { "not_found" },
            "cleanup": {"units_orphaned": orphaned, "tasks_reassigned": tasks},
        }))
    }
}

impl Work<'_> {
    /// A key removes agents of other keys only with the authority for it. Below level 3 every key that may write acts with
    /// that of a session's creator, among its own agents: what it may reach beyond them its ceiling says.
    fn check_owner(&self, agent_id: &str) -> Check<()> {
        let Some(caller) = self.call.caller else {
            return Ok(());
        };
        let first_key = self.field.agents.get(agent_id);
        let first_key = first_key.and_then(|agent| agent.first_key.as_deref());
        if caller.ceiling >= SESSION_CREATOR || caller.may_act_for(agent_id, first_key) {
            return Ok(());
        }
        let message = "`agent_id` belongs to another key";
        Err(Fault::new(Code::Forbidden, message))
    }
}

fn capabilities(field: &Field) -> Value {
    let config = &field.config;
    json!({
        "conformance_level": config.level.number(),
        "supported_operations": config.operations().map(Operation::as_str).collect::<Vec<_>>(),
        "protocol_version": PROTOCOL_VERSION,
        "persistence": config.persistence,
        "conflict_strategies": config.strategies().map(|strategy| strategy.as_str()).collect::<Vec<_>>(),
    })
}
