//! The inputs of a governed session, told once it is known what the session made of them.

use canon::{Map, Value};
use contracts::backtest::Told;
use contracts::workflow::WorkflowView;
use domain::{
    GovernedInput, GovernedOperation, GovernedStart, Proposal, Report, ReportedOutcome, Telling,
    Timestamp,
};
use serde::Deserialize as _;

use super::super::Source;
use super::{Cost, Exchange, asked, judged, member};
use crate::workflow::governed::{recorded_request, reported_output, response_of};

/// Follows the inputs of a session.
#[derive(Debug)]
pub(super) struct Inputs {
    telling: Telling,
    /// The last input, until the session has answered it.
    last: Option<GovernedInput>,
}

impl Inputs {
    pub(super) fn of(source: &Source) -> Self {
        let (start, _) = source.start(|index| source.payload(index));
        let start = GovernedStart::deserialize(&start.input);
        Self {
            telling: start.map(|start| start.telling).unwrap_or_default(),
            last: None,
        }
    }

    /// Takes an input; none when the record does not hold it.
    pub(super) fn take(&mut self, input: Option<GovernedInput>, told: &mut Vec<Exchange>) {
        let Some(input) = input else {
            told.push(gap("an input of the session"));
            return;
        };
        if let Some(view) = &input.workflow {
            told.push(match WorkflowView::deserialize(view) {
                Ok(view) => Exchange::Told(Told::Workflow(Box::new(view))),
                Err(_) => gap("how the workflow of the session stood"),
            });
        }
        self.last = Some(input);
    }

    /// Takes what the session answered.
    pub(super) fn decided(&mut self, payload: &Map<String, Value>, told: &mut Vec<Exchange>) {
        let operation = payload.get("operation").and_then(Value::as_str);
        let answer = payload.get("answer");
        let at = self.last.as_ref().map(|input| input.at);
        let settled = |at: Timestamp, proposal: Option<&str>| {
            let decision = payload.get("decision")?;
            judged(decision, at, proposal)
        };
        // Nobody answered a question: it is settled before the input that comes with it.
        if operation == Some("time_out") {
            let proposal = answer.and_then(|answer| member(answer, "proposal_id"));
            told.extend(at.and_then(|at| settled(at, proposal)));
            return;
        }
        let Some(input) = self.last.take() else {
            return;
        };
        let problem = payload.get("problem");
        match (&input.operation, problem) {
            (GovernedOperation::Preflight(request), None) => {
                let id = answer.and_then(|answer| member(answer, "prepared_request_id"));
                told.extend(id.map(|id| Exchange::Prepared {
                    id: id.to_owned(),
                    at: input.at,
                    request: Box::new(request.clone()),
                    seen: recorded_request(self.telling, request),
                }));
            }
            (GovernedOperation::Propose(proposal), None) => {
                let name = answer.and_then(|answer| member(answer, "proposal_id"));
                told.push(answered(input.at, proposal, name.unwrap_or_default()));
                told.extend(asked(payload, name));
                told.extend(settled(input.at, name));
            }
            (GovernedOperation::Propose(proposal), Some(problem)) => {
                let members = problem.get("members");
                let again = members.and_then(|members| members.get("same_response")?.as_bool());
                if again == Some(false) {
                    told.push(Exchange::Discarded {
                        at: input.at,
                        cost: cost(proposal),
                        prepared: proposal.prepared_request_id.clone(),
                    });
                }
            }
            (GovernedOperation::Decide(decide), None) => {
                told.extend(settled(input.at, Some(&decide.proposal_id)));
            }
            (GovernedOperation::Report(report), None) => told.push(ended(report, false)),
            (GovernedOperation::Report(report), Some(problem))
                if member(problem, "code") == Some("arguments_differ") =>
            {
                told.push(ended(report, true));
            }
            (GovernedOperation::AddLabel { label }, None) => {
                let label = label.clone();
                told.push(Exchange::Told(Told::Labeled { label }));
            }
            (GovernedOperation::SetFilter { tools }, None) => {
                let tools = tools.clone();
                told.push(Exchange::Told(Told::Filtered { tools }));
            }
            (GovernedOperation::Heartbeat { started }, None) => {
                told.extend(started.iter().map(|call| {
                    Exchange::Told(Told::Started {
                        call_id: call.call_id.clone(),
                        proposal: call.proposal_id.clone(),
                    })
                }));
            }
            _ => {}
        }
    }
}

fn gap(what: &str) -> Exchange {
    Exchange::Told(Told::Gap {
        what: what.to_owned(),
    })
}

fn cost(proposal: &Proposal) -> Cost {
    proposal.usage.map_or(Cost::Unknown, Cost::Used)
}

/// A call whose executor was given other arguments than were allowed may have done anything.
fn ended(report: &Report, arguments_differ: bool) -> Exchange {
    let ok = match report.outcome {
        _ if arguments_differ => None,
        ReportedOutcome::Success => Some(true),
        ReportedOutcome::ExpectedError | ReportedOutcome::Error => Some(false),
        ReportedOutcome::Unknown => None,
    };
    Exchange::Told(Told::Ended {
        ok,
        output: reported_output(report),
        call_id: report.call_id.clone(),
        proposal: Some(report.proposal_id.clone()),
    })
}

fn answered(at: Timestamp, proposal: &Proposal, name: &str) -> Exchange {
    Exchange::Answered {
        at,
        response: Some(response_of(proposal)),
        withheld: proposal.content.is_none() && proposal.content_digest.is_some(),
        cost: cost(proposal),
        names: Some((proposal.prepared_request_id.clone(), name.to_owned())),
    }
}
