//! People: the agent waits for their answers and goes on with the last one.

use canon::Value;
use domain::Ask;
use serde_json::json;

use super::{
    Call, EffectAnswer, EffectKind, EffectRequest, Loop, Note, Rules, Step, Waits, failed,
    recorded_time, refused, with_notes,
};

impl Loop {
    /// Asks people, each question by itself.
    pub(super) fn ask(&mut self, requests: Vec<Value>) -> Step {
        let effects = requests.into_iter().map(|request| {
            self.counters.approvals += 1;
            let key = format!("host:approval:{}", self.counters.approvals);
            EffectRequest::repeatable(key, EffectKind::Ask(Ask::Approval), request)
        });
        Step::Request {
            notes: Vec::new(),
            checkpoint: false,
            effects: effects.collect(),
        }
    }

    /// Takes people's decisions, and the time of the last, and judges the answer again.
    pub(super) fn consented(
        &mut self,
        answers: &[EffectAnswer],
        time: Option<&EffectAnswer>,
    ) -> Step {
        match (recorded_time(time), &mut self.governance) {
            (Ok(at), Some(governance)) => {
                governance.consented(answers, at);
                self.judged(time)
            }
            (Err(fault), _) => refused(fault),
            (Ok(_), None) => failed("contract_fault", "an answer is judged without contracts"),
        }
    }

    /// Asks about calls from a place on that need somebody's consent, the next one or all of them; calls the tools when none
    /// does.
    pub(super) fn ask_approval(&mut self, from: usize) -> Step {
        let needing = self.calls.iter().enumerate().skip(from);
        let needing = needing.filter(|(_, call)| call.needs_approval());
        let needing = needing.take(match self.rules {
            Rules::Together | Rules::Listed | Rules::Counted => usize::MAX,
            Rules::Repeatable | Rules::ReadOnly | Rules::Contracts => 1,
        });
        let (places, requests): (Vec<usize>, Vec<Value>) = needing
            .map(|(place, call)| {
                let request = json!({
                    "reason": format!("The agent wants to use `{}`.", call.name),
                    "action": {"name": call.name, "input": call.arguments},
                });
                (place, request)
            })
            .unzip();
        if places.is_empty() {
            return self.use_tools();
        }
        self.waits = Waits::Approval(places);
        self.ask(requests)
    }

    /// Goes on with what somebody said while the calls of an answer waited: none of them is made.
    pub(super) fn interrupted(&mut self, results: &[EffectAnswer]) -> Step {
        for call in &mut self.calls {
            call.deny("interrupted before the tool was used");
        }
        let mut notes: Vec<Note> = self.calls.iter().flat_map(Call::use_notes).collect();
        if let Err(fault) = self.add_results(&mut notes) {
            return with_notes(refused(fault), notes);
        }
        self.take_interruption(results);
        self.ask_model(notes)
    }

    pub(super) fn approval_answered(&mut self, places: &[usize], results: &[EffectAnswer]) -> Step {
        if results.iter().any(|answer| answer.interruption().is_some()) {
            return self.interrupted(results);
        }
        for (number, place) in places.iter().enumerate() {
            let approved = results
                .get(number)
                .and_then(|answer| answer.value.get("approved"))
                .and_then(Value::as_bool)
                .unwrap_or(false);
            if !approved && let Some(call) = self.calls.get_mut(*place) {
                call.deny("the use of this tool was denied");
            }
        }
        let next = places.last().map_or(0, |place| place + 1);
        match (self.rules, &self.governance) {
            // What contracts released before somebody was asked is not good for ever.
            (Rules::Together | Rules::Listed | Rules::Counted, Some(_)) => {
                self.ask_time(Waits::Execution)
            }
            _ => self.ask_approval(next),
        }
    }
}
