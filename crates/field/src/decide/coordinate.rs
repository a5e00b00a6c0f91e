//! COORDINATE: the life of a task. The payload is not published upstream; this one is provisional.

use canon::Value;
use serde_json::json;

use super::Work;
use crate::caller;
use crate::error::{Check, Code, Fault};
use crate::event::Event;
use crate::kind::{TaskAction, TaskStatus};
use crate::render;
use crate::state::Task;

impl Work<'_> {
    pub(super) fn coordinate(&mut self) -> Check<Value> {
        if let Some(action) = self.peek("action").and_then(TaskAction::parse) {
            self.require(caller::to_coordinate(action, true))?;
        }
        let payload = self.payload();
        let action = payload.required_choice("action", TaskAction::parse)?;
        let members = payload
            .object("task", "task.")?
            .ok_or_else(|| payload.missing("task"))?;
        let id = members.id("id")?;
        let title = members.line("title")?;
        let goal = members.line("goal")?;
        let assignee = members.id("assignee")?;
        let depends_on = members.ids("depends_on", self.field.config.limits.list_len_max)?;
        let reason = payload.line("reason")?;
        let (id, task) = if action == TaskAction::Create {
            let title = title.clone().ok_or_else(|| members.missing("title"))?;
            let id = id.unwrap_or_else(|| self.next_id("task"));
            let status = if assignee.is_some() {
                TaskStatus::Assigned
            } else {
                TaskStatus::Created
            };
            self.check_new_task(&id, assignee.as_deref(), &depends_on)?;
            let task = Task {
                title,
                goal: goal.clone(),
                status,
                creator: self.agent().to_owned(),
                session: self.call.envelope.session_id.clone(),
                assignee: assignee.clone(),
                depends_on: depends_on.clone(),
                orphaned: false,
            };
            (id, task)
        } else {
            let id = id.ok_or_else(|| members.missing("id"))?;
            if action == TaskAction::Assign && assignee.is_none() {
                return Err(members.missing("assignee"));
            }
            let task = self.changed_task(&id, action, assignee.as_deref())?;
            (id, task)
        };
        self.check_session_takes_writes()?;
        let answer = json!({"status": "ok", "task": render::task(&id, &task), "epoch": self.epoch});
        self.log(Event::Coordinated {
            action,
            task_id: id,
            title,
            goal,
            assignee,
            depends_on,
            reason,
        });
        Ok(answer)
    }

    /// Work for others, or that others do, asks for more than work of one's own.
    fn require_for(&self, action: TaskAction, agent: Option<&str>) -> Check<()> {
        let own = agent.is_none_or(|agent| agent == self.agent());
        self.require(caller::to_coordinate(action, own))
    }

    fn check_assignee(&self, assignee: Option<&str>) -> Check<()> {
        match assignee {
            Some(agent) if self.field.active(agent).is_none() => Err(Fault::new(
                Code::AgentNotRegistered,
                "`task.assignee` is not registered",
            )),
            _ => Ok(()),
        }
    }

    fn check_new_task(&self, id: &str, assignee: Option<&str>, depends_on: &[String]) -> Check<()> {
        self.require_for(TaskAction::Create, assignee)?;
        self.check_assignee(assignee)?;
        if let Some(assignee) = assignee {
            let session = self.call.envelope.session_id.as_deref();
            self.check_reaches(assignee, session, "task.assignee")?;
        }
        let known = |task: &String| {
            let task = self.field.tasks.get(task);
            task.is_some_and(|task| self.reaches(task))
        };
        if !depends_on.iter().all(known) {
            let message = "`task.depends_on` names a task that does not exist";
            return Err(Fault::new(Code::UnitNotFound, message));
        }
        if self.field.tasks.contains_key(id) {
            let message = "there is a task under `task.id` already";
            return Err(Fault::new(Code::InvalidTransition, message));
        }
        Ok(())
    }

    /// Returns whether the sender may work with a task, by the session that it is of.
    pub(super) fn reaches(&self, task: &Task) -> bool {
        let session = task.session.as_deref();
        self.is_above_sessions() || self.field.sees_session(self.agent(), session)
    }

    /// Whoever gets work of a session must be able to do it there.
    pub(super) fn check_reaches(
        &self,
        agent: &str,
        session: Option<&str>,
        name: &str,
    ) -> Check<()> {
        let known = self.field.active(agent);
        let is_above = known.is_some_and(|known| known.authority >= caller::SESSION_CREATOR);
        if is_above || self.field.sees_session(agent, session) {
            return Ok(());
        }
        let message = format!("`{name}` is not a member of the session that the task is of");
        Err(Fault::new(Code::Forbidden, message))
    }

    fn changed_task(&self, id: &str, action: TaskAction, assignee: Option<&str>) -> Check<Task> {
        let known = self.field.tasks.get(id);
        // One of a session that the sender does not see is as good as none.
        let mut task = known
            .filter(|task| self.reaches(task))
            .cloned()
            .ok_or_else(|| Fault::new(Code::UnitNotFound, "there is no task under `task.id`"))?;
        self.require_for(action, task.assignee.as_deref())?;
        if action == TaskAction::Assign {
            self.require_for(action, assignee)?;
            self.check_assignee(assignee)?;
            if let Some(assignee) = assignee {
                self.check_reaches(assignee, task.session.as_deref(), "task.assignee")?;
            }
            task.assignee = assignee.map(str::to_owned);
            task.orphaned = false;
        }
        let status = task.status.after(action).ok_or_else(|| {
            let message = format!("a task that is {} has no step `{action}`", task.status);
            Fault::new(Code::InvalidTransition, message)
        })?;
        let waits = |task: &String| {
            let task = self.field.tasks.get(task);
            task.is_some_and(|task| task.status != TaskStatus::Completed)
        };
        if action == TaskAction::Start && task.depends_on.iter().any(waits) {
            let message = "the task depends on one that is not completed";
            return Err(Fault::new(Code::InvalidTransition, message));
        }
        task.status = status;
        Ok(task)
    }
}
