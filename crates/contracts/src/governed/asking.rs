//! Asking: the model once, people where contracts say so, and what is kept of it.

use super::{Answered, CreateError, Governed, Hooks, ModelClient, Planned, Released};
use crate::capture;
use crate::checkpoint::{Answer, Answers, question, read_answer};
use crate::cost::Usage;
use crate::decimal::Decimal;
use crate::event::{Event, Release, Responded};
use crate::gate::{AttemptCost, Decision, shadow_delta};
use crate::judge::{Judgement, Occasion, judge_again};
use crate::narrow::Narrowing;
use crate::precheck::check_open;
use crate::request::{Request, Response};

impl<C: ModelClient, H: Hooks> Governed<C, H> {
    pub(super) fn attempt(
        &mut self,
        planned: &Planned<'_, C::Body>,
        request: &Request,
    ) -> Result<Answered, CreateError<C::Error>> {
        let Some(client) = &mut self.client else {
            return Err(CreateError::Inactive);
        };
        match client.create(planned) {
            Ok(answered) => {
                self.look_at_switch();
                if let Err(refusal) = check_open(&self.state) {
                    // A response that arrives after a kill is thrown away; its cost counts.
                    let cost = self.cost(request, answered.usage);
                    let event = Event::Responded(Responded {
                        at: cost.at,
                        proposal: None,
                        cost: cost.cost,
                        usage_unknown: false,
                        release: Release::Discarded,
                    });
                    self.commit(&event, None)?;
                    return Err(CreateError::refused(refusal));
                }
                Ok(answered)
            }
            Err(error) => {
                let at = self.hooks.now();
                let event = Event::Failed {
                    at,
                    attempted: true,
                };
                self.commit(&event, None)?;
                Err(CreateError::Provider(error))
            }
        }
    }

    /// Judges a response, asking people one after another where contracts say so.
    pub(super) fn judge(
        &mut self,
        request: &Request,
        response: &Response,
    ) -> Result<(Judgement, Option<String>), CreateError<C::Error>> {
        let mut answers = Answers::new();
        let mut proposal: Option<String> = None;
        let mut asked = 0;
        let mut before = Vec::new();
        loop {
            self.hear_workflow();
            check_open(&self.state).map_err(CreateError::refused)?;
            let occasion = Occasion {
                request,
                now: self.hooks.now(),
                proposal: proposal.as_deref(),
                answers: &answers,
            };
            let seat = self.seat.as_ref();
            let (rules, state) = (&self.rules, &self.state);
            let judgement = judge_again(rules, state, response, occasion, seat, &before);
            let Some(call) = judgement
                .asked()
                .next()
                .map(|verdict| verdict.call().clone())
            else {
                return Ok((judgement, proposal));
            };
            before = judgement.verdicts().to_vec();
            asked += 1;
            let name = proposal.take().unwrap_or_else(|| self.hooks.next_id());
            let at = self.hooks.now();
            let event = Event::Asked {
                at,
                proposal: name.clone(),
                asked,
                calls: judgement.standing(),
            };
            self.commit(&event, None)?;
            proposal = Some(name);
            let id = self.hooks.next_id();
            let answer = match question(&self.rules, &self.state, &call, &id, at) {
                Some(question) => {
                    let answer = self.hooks.ask(&question);
                    let received_at = self.hooks.now();
                    match answer {
                        Some(answer) => read_answer(
                            &self.rules,
                            &self.state,
                            &question,
                            &call,
                            &answer,
                            received_at,
                        ),
                        None => Answer::TimedOut,
                    }
                }
                None => Answer::Denied { detail: None },
            };
            answers.insert(call.id, answer);
            self.look_at_switch();
            check_open(&self.state).map_err(CreateError::refused)?;
        }
    }

    pub(super) fn tell_difference(&mut self, narrowing: &Narrowing, judgement: &Judgement) {
        if self.rules.is_advisory() {
            for verdict in judgement.blocked() {
                let reason = verdict.reason().map(crate::reason::BlockReason::as_str);
                self.hooks
                    .diagnostic("violation", reason.unwrap_or_default());
            }
            return;
        }
        self.last_delta = Some(shadow_delta(&self.rules, &self.state, narrowing, judgement));
    }

    pub(super) fn cost(&mut self, request: &Request, usage: Option<Usage>) -> AttemptCost {
        let model = format!("{}/{}", request.provider, request.model);
        let price = self.rules.options().prices.get(&model);
        let cost: Option<Decimal> = price
            .zip(usage)
            .and_then(|(price, usage)| price.cost(usage));
        AttemptCost {
            at: self.hooks.now(),
            cost,
        }
    }

    /// Log-only: counters and cost, no verdicts.
    pub(super) fn log(
        &mut self,
        body: &C::Body,
        request: &Request,
    ) -> Result<Released, CreateError<C::Error>> {
        let planned = Planned {
            body,
            tools: request.tools.iter().collect(),
            choice: request.choice.clone(),
            feedback: None,
        };
        let answered = self.attempt(&planned, request)?;
        let cost = self.cost(request, answered.usage);
        let event = Event::Responded(Responded {
            at: cost.at,
            proposal: None,
            cost: cost.cost,
            usage_unknown: false,
            release: Release::Logged {
                tools: answered
                    .response
                    .calls
                    .iter()
                    .map(|call| call.name.clone())
                    .collect(),
            },
        });
        self.commit(&event, None)?;
        self.capture(request, &answered.response, None);
        Ok(Released::logged(answered.response))
    }

    /// Keeps what the capture level allows: for reading, never for deciding.
    pub(super) fn capture(
        &mut self,
        request: &Request,
        response: &Response,
        decision: Option<&Decision>,
    ) {
        let level = self.rules.options().capture_level;
        let calls = response.calls.iter().map(|call| {
            let compiled = self.rules.compiled();
            serde_json::json!({
                "id": call.id,
                "tool": call.name,
                "arguments": capture::arguments(level, compiled, &call.name, &call.arguments, &[]),
            })
        });
        let calls: Vec<serde_json::Value> = calls.collect();
        let content = response.content.as_deref();
        let capture = serde_json::json!({
            "session_id": self.rules.options().session_id,
            "attempt": self.state.attempts(),
            "provider": request.provider,
            "model": request.model,
            "request": capture::text(level, &request.view.to_json(), &[]),
            "content": content.map(|content| capture::text(level, content, &[])),
            "calls": calls,
            "decision": decision,
        });
        self.captures.push(capture);
    }
}
