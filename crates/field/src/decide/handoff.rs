//! HANDOFF: a task goes from one agent to another with what is needed to go on.
//!
//! The payload is not published upstream; this one is provisional.

use canon::Value;
use serde_json::json;

use super::Work;
use crate::caller;
use crate::error::{Check, Code, Fault};
use crate::event::{Event, Package};
use crate::kind::{HandoffAction, HandoffStatus};
use crate::render;

impl Work<'_> {
    pub(super) fn handoff(&mut self) -> Check<Value> {
        let action = self
            .payload()
            .required_choice("action", HandoffAction::parse)?;
        match action {
            HandoffAction::Offer => self.offer(),
            HandoffAction::Accept | HandoffAction::Decline => self.answer_handoff(action),
        }
    }

    fn offer(&mut self) -> Check<Value> {
        let payload = self.payload();
        let task_id = payload.required_id("task_id")?;
        let to_agent = payload.required_id("to_agent")?;
        let reason = payload.line("reason")?;
        let mut package = Package {
            reason,
            unit_ids: Vec::new(),
            open_questions: Vec::new(),
            summary: None,
        };
        let limits = &self.field.config.limits;
        if let Some(context) = payload.object("context", "context.")? {
            package.unit_ids = context.ids("unit_ids", limits.list_len_max)?;
            package.open_questions = context.texts("open_questions", limits.list_len_max)?;
            package.summary = context.text("summary")?.map(str::to_owned);
        }
        if self.field.active(&to_agent).is_none() {
            let message = "`to_agent` is not registered";
            return Err(Fault::new(Code::AgentNotRegistered, message));
        }
        if let Some(task) = self.field.tasks.get(&task_id) {
            if !self.reaches(task) {
                let message = "there is no task under `task_id`";
                return Err(Fault::new(Code::UnitNotFound, message));
            }
            let own = task.assignee.as_deref();
            let own = own.is_none_or(|assignee| assignee == self.agent());
            self.require(caller::to_offer(own))?;
            self.check_reaches(&to_agent, task.session.as_deref(), "to_agent")?;
        }
        let session = self.call.envelope.session_id.as_deref();
        self.check_reaches(&to_agent, session, "to_agent")?;
        for unit in &package.unit_ids {
            if self.field.visible(self.agent(), unit).is_none() {
                let message = "`context.unit_ids` names a unit that does not exist";
                return Err(Fault::new(Code::UnitNotFound, message));
            }
        }
        self.check_session_takes_writes()?;
        self.check_goes_on(&task_id, "the task `task_id` is over")?;
        let field = self.field;
        package
            .unit_ids
            .retain(|unit| field.visible(&to_agent, unit).is_some());
        let handoff_id = self.next_id("handoff");
        let answer = json!({"status": "offered", "handoff_id": handoff_id, "epoch": self.epoch});
        self.log(Event::HandedOff {
            action: HandoffAction::Offer,
            handoff_id,
            task_id,
            to_agent,
            package: Some(package),
        });
        Ok(answer)
    }

    fn answer_handoff(&mut self, action: HandoffAction) -> Check<Value> {
        let handoff_id = self.payload().required_id("handoff_id")?;
        let field = self.field;
        let handoff = field.handoffs.get(&handoff_id).ok_or_else(|| {
            Fault::new(Code::UnitNotFound, "there is no handoff under `handoff_id`")
        })?;
        if handoff.to != self.agent() {
            let message = "only the receiver answers a handoff";
            return Err(Fault::new(Code::Forbidden, message));
        }
        self.check_session_takes_writes()?;
        if handoff.status != HandoffStatus::Offered {
            let message = format!("the handoff is {}", handoff.status);
            return Err(Fault::new(Code::InvalidTransition, message));
        }
        if action == HandoffAction::Accept {
            // Since the offer the receiver may have left the session.
            if let Some(task) = field.tasks.get(&handoff.task) {
                self.check_reaches(self.agent(), task.session.as_deref(), "agent_id")?;
            }
            self.check_goes_on(&handoff.task, "the task of the handoff is over")?;
            let moved = field.moves.get(&handoff.task);
            if moved.is_some_and(|moved| *moved > handoff.seq) {
                let message = "the task changed hands after it was offered";
                return Err(Fault::new(Code::InvalidTransition, message));
            }
        }
        let status = match action {
            HandoffAction::Decline => "declined",
            HandoffAction::Accept | HandoffAction::Offer => "accepted",
        };
        let mut answer = json!({"status": status, "handoff_id": handoff_id, "epoch": self.epoch});
        if let (HandoffAction::Accept, Some(members)) = (action, answer.as_object_mut()) {
            members.insert("handoff".into(), render::package(handoff));
        }
        self.log(Event::HandedOff {
            action,
            handoff_id,
            task_id: handoff.task.clone(),
            to_agent: handoff.to.clone(),
            package: None,
        });
        Ok(answer)
    }

    fn check_goes_on(&self, task: &str, message: &str) -> Check<()> {
        match self.field.tasks.get(task) {
            Some(task) if task.is_over() => Err(Fault::new(Code::InvalidTransition, message)),
            _ => Ok(()),
        }
    }
}
