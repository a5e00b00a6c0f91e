//! SESSION: a goal that several agents share, and who sees what belongs to it.
//!
//! The payload is not published upstream; this one is provisional.

use canon::Value;
use serde_json::json;

use super::Work;
use crate::caller;
use crate::error::{Check, Code, Fault};
use crate::event::Event;
use crate::kind::{SessionAction, SessionStatus};
use crate::render;
use crate::state::Session;

/// How the ids of sessions begin that nobody may choose.
const GIVEN: &str = "session_";

impl Work<'_> {
    pub(super) fn session(&mut self) -> Check<Value> {
        if let Some(action) = self.peek("action").and_then(SessionAction::parse) {
            self.require(caller::to_change_session(action))?;
        }
        let payload = self.payload();
        let action = payload.required_choice("action", SessionAction::parse)?;
        let members = payload
            .object("session", "session.")?
            .ok_or_else(|| payload.missing("session"))?;
        let id = members.id("id")?;
        let goal = members.line("goal")?;
        let roles = match members.object("rules", "session.rules.")? {
            Some(rules) => rules.texts("roles", self.field.config.limits.list_len_max)?,
            None => Vec::new(),
        };
        let (id, session) = if action == SessionAction::Create {
            let goal = goal.clone().ok_or_else(|| members.missing("goal"))?;
            if id.as_ref().is_some_and(|id| id.starts_with(GIVEN)) {
                // Else somebody could make the session of another's work, and shut it out.
                let message = format!("ids that begin with `{GIVEN}` are given by the server");
                return Err(Fault::request(message));
            }
            let id = id.unwrap_or_else(|| self.next_id("session"));
            self.check_new_session(&id)?;
            let creator = self.agent().to_owned();
            let session = Session {
                goal,
                status: SessionStatus::Active,
                creator: creator.clone(),
                members: std::iter::once(creator).collect(),
                roles: roles.clone(),
            };
            (id, session)
        } else {
            let id = id.ok_or_else(|| members.missing("id"))?;
            let session = self.changed_session(&id, action)?;
            (id, session)
        };
        let answer = json!({
            "status": "ok",
            "session": render::session(&id, &session),
            "epoch": self.epoch,
        });
        let event = Event::SessionChanged {
            action,
            session_id: id.clone(),
            goal,
            roles,
        };
        self.log_as(self.agent().to_owned(), Some(id), event, None);
        Ok(answer)
    }

    /// A label that others used before would hide their entries from them.
    fn check_new_session(&self, id: &str) -> Check<()> {
        let used =
            self.field.sessions.contains_key(id) || !self.field.log.of_session(id).is_empty();
        if used {
            let message = "`session.id` was used before";
            return Err(Fault::new(Code::InvalidTransition, message));
        }
        Ok(())
    }

    fn changed_session(&self, id: &str, action: SessionAction) -> Check<Session> {
        let mut session = self.field.sessions.get(id).cloned().ok_or_else(|| {
            Fault::new(Code::UnitNotFound, "there is no session under `session.id`")
        })?;
        let agent = self.agent();
        let role = self.sender.map(|agent| agent.role.as_str());
        let wrong = |message: String| Err(Fault::new(Code::InvalidTransition, message));
        let status = session.status;
        match (action, status) {
            (_, SessionStatus::Ended) => return wrong("the session is ended".into()),
            (SessionAction::Pause, SessionStatus::Paused)
            | (SessionAction::Resume, SessionStatus::Active)
            | (SessionAction::Create, _) => {
                return wrong(format!("a session that is {status} has no step `{action}`"));
            }
            (SessionAction::Join, _) => {
                let fits =
                    role.is_some_and(|role| session.roles.iter().any(|wanted| wanted == role));
                let exempt = self.authority >= caller::SESSION_CREATOR;
                if !session.roles.is_empty() && !fits && !exempt {
                    let message = "the rules of the session do not admit the sender's role";
                    return Err(Fault::new(Code::Forbidden, message));
                }
                session.members.insert(agent.to_owned());
            }
            (SessionAction::Leave, _) => {
                if !session.members.remove(agent) {
                    return wrong("the sender is not a member of the session".into());
                }
            }
            (SessionAction::Pause, SessionStatus::Active) => session.status = SessionStatus::Paused,
            (SessionAction::Resume, SessionStatus::Paused) => {
                session.status = SessionStatus::Active
            }
            (SessionAction::End, _) => session.status = SessionStatus::Ended,
        }
        Ok(session)
    }
}
