//! Tools: calls that nothing stands in the way of are made, and the model is told what came of them.

use serde_json::json;

use super::{
    Call, EffectAnswer, EffectRequest, Fault, Loop, Note, Step, Waits, recorded_time, refused,
    with_notes,
};

impl Loop {
    /// Makes calls that people were asked about, unless they took too long.
    pub(super) fn released_still(&mut self, time: Option<&EffectAnswer>) -> Step {
        let at = recorded_time(time);
        let expired = at.and_then(|at| match &mut self.governance {
            Some(governance) => governance.expire(at),
            None => Ok(()),
        });
        match expired {
            Ok(()) => self.use_tools(),
            Err(fault) => refused(fault),
        }
    }

    pub(super) fn use_tools(&mut self) -> Step {
        if let Err(fault) = self.check_executions() {
            return refused(fault);
        }
        let notes: Vec<Note> = self.calls.iter().flat_map(Call::use_notes).collect();
        let effects: Vec<EffectRequest> =
            self.calls.iter().filter_map(Call::effect_request).collect();
        if effects.is_empty() {
            return self.after_tools(&[], notes);
        }
        self.waits = Waits::Tools;
        Step::Request {
            notes,
            checkpoint: false,
            effects,
        }
    }

    /// What is about to be made must be what the contracts released, and still be allowed.
    fn check_executions(&mut self) -> Result<(), Fault> {
        let Some(governance) = &mut self.governance else {
            return Ok(());
        };
        for call in self.calls.iter_mut().filter(|call| call.is_performed()) {
            let arguments = call.arguments.to_string();
            if let Err((why, told)) = governance.start(&call.id, &call.name, &arguments)? {
                call.deny(&why);
                self.notes.push(told);
            }
        }
        Ok(())
    }

    /// Keeps what tools gave, and makes calls again that contracts let be tried again.
    pub(super) fn tools_answered(&mut self, results: &[EffectAnswer]) -> Step {
        let mut answers = results.iter();
        for call in self.calls.iter_mut().filter(|call| call.is_running()) {
            call.result = answers.next().cloned();
        }
        let interrupted = results.iter().any(|answer| answer.interruption().is_some());
        if let Some(governance) = self.governance.as_ref().filter(|_| !interrupted) {
            let mut again = Vec::new();
            for call in &mut self.calls {
                let tries = match (call.attempt, &call.result) {
                    (Some(attempt), Some(answer)) => {
                        governance.tries_again(&call.name, attempt, answer)
                    }
                    _ => false,
                };
                if tries {
                    call.try_again(&mut self.counters);
                    again.extend(call.use_notes());
                }
            }
            if !again.is_empty() {
                self.waits = Waits::Tools;
                return Step::Request {
                    notes: again,
                    checkpoint: false,
                    effects: self.calls.iter().filter_map(Call::effect_request).collect(),
                };
            }
        }
        self.after_tools(results, Vec::new())
    }

    pub(super) fn after_tools(&mut self, results: &[EffectAnswer], mut notes: Vec<Note>) -> Step {
        if let Err(fault) = self.add_results(&mut notes) {
            return with_notes(refused(fault), notes);
        }
        self.take_interruption(results);
        self.ask_model(notes)
    }

    /// Takes what somebody said who interrupted a step as the next input.
    pub(super) fn take_interruption(&mut self, results: &[EffectAnswer]) {
        let said = results.iter().filter_map(EffectAnswer::interruption);
        for input in said.filter(|input| !input.is_empty()) {
            self.transcript
                .push(json!({"role": "user", "content": input}));
        }
    }

    /// Tells the model what its tools gave.
    pub(super) fn add_results(&mut self, notes: &mut Vec<Note>) -> Result<(), Fault> {
        for call in &self.calls {
            let result = call.result.as_ref();
            if let Some(governance) = &mut self.governance {
                match call.is_performed() {
                    true => governance.ended(&call.id, &call.name, result)?,
                    false => governance.dropped(&call.id)?,
                }
            }
            let (output, text, ok) = call.outcome(result);
            notes.extend(call.result_notes(&output, ok));
            self.transcript
                .push(json!({"role": "tool", "tool_call_id": call.id, "content": text}));
        }
        self.calls.clear();
        Ok(())
    }
}
