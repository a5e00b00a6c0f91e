//! REPLAY as an operation: reads the log up to its head and leaves a light entry of its own.

use canon::Value;

use super::Work;
use crate::caller::{AUDITOR, Caller, OPERATOR};
use crate::error::Check;
use crate::event::Event;
use crate::kind::{Depth, TargetType};
use crate::replay::{Reader, Target, replay};

impl Work<'_> {
    pub(super) fn replay(&mut self) -> Check<Value> {
        let payload = self.payload();
        let target = Target {
            kind: payload.required_choice("target_type", TargetType::parse)?,
            id: payload.required_id("target_id")?,
            depth: payload.required_choice("depth", Depth::parse)?,
        };
        let (field, agent) = (self.field, self.agent());
        let sees_all = self.sees_all();
        let reader = Reader {
            text_of: &|unit| field.text_of(unit),
            sees: &|session| sees_all || field.sees_session(agent, session),
        };
        let hides = !sees_all && !field.sessions.is_empty();
        let limits = &field.config.limits;
        let (answer, kept) = replay(&field.log, &reader, &target, limits, hides)?;
        self.kept = kept;
        self.log(Event::Replayed {
            target_type: target.kind,
            target_id: target.id,
            depth: target.depth,
        });
        Ok(answer)
    }

    /// Returns whether a replay hides nothing from the sender. Whoever has any key may register as an auditor, so that alone
    /// opens no session: the key must be the operator's.
    fn sees_all(&self) -> bool {
        let is_operators = |caller: &Caller| caller.ceiling >= OPERATOR;
        let is_auditor = self.sender.is_some_and(|agent| agent.authority == AUDITOR);
        self.is_above_sessions() || is_auditor && self.call.caller.is_none_or(is_operators)
    }
}
