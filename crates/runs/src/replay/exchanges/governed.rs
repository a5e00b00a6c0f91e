//! The inputs of a governed session, exchanges once it is known what the session made of them.

use contracts::backtest::RecordEntry;
use contracts::workflow::WorkflowView;
use domain::{
    GovernedInput, GovernedOperation, GovernedStart, Proposal, Report, ReportedOutcome,
    RulesVersion, Timestamp, payload,
};
use serde::Deserialize as _;

use super::super::Source;
use super::{Cost, Exchange, asked, judged, member};
use crate::workflow::governed::{recorded_request, reported_output, response_of};

/// Follows the inputs of a session.
#[derive(Debug)]
pub(super) struct Inputs {
    rules_version: RulesVersion,
    /// The last input, until the session has answered it.
    last: Option<GovernedInput>,
}

impl Inputs {
    pub(super) fn of(source: &Source) -> Self {
        let (start, _) = source.start(|index| source.payload(index));
        let start = GovernedStart::deserialize(&start.input);
        Self {
            rules_version: start.map(|start| start.rules_version).unwrap_or_default(),
            last: None,
        }
    }

    /// Takes an input; none when the record does not hold it.
    pub(super) fn take(&mut self, input: Option<GovernedInput>, exchanges: &mut Vec<Exchange>) {
        let Some(input) = input else {
            exchanges.push(gap("an input of the session"));
            return;
        };
        if let Some(view) = &input.workflow {
            exchanges.push(match WorkflowView::deserialize(view) {
                Ok(view) => Exchange::Entry(RecordEntry::Workflow(Box::new(view))),
                Err(_) => gap("how the workflow of the session stood"),
            });
        }
        self.last = Some(input);
    }

    /// Takes what the session answered.
    pub(super) fn decided(
        &mut self,
        said: payload::Said<'_, payload::ContractDecided>,
        exchanges: &mut Vec<Exchange>,
    ) {
        let answer = said.answer();
        let at = self.last.as_ref().map(|input| input.at);
        let settled =
            |at: Timestamp, proposal: Option<&str>| judged(said.decision()?, at, proposal);
        // Nobody answered a question: it is settled before the input that comes with it.
        if said.operation() == Some("time_out") {
            let proposal = answer.and_then(|answer| member(answer, "proposal_id"));
            exchanges.extend(at.and_then(|at| settled(at, proposal)));
            return;
        }
        let Some(input) = self.last.take() else {
            return;
        };
        match (&input.operation, said.problem()) {
            (GovernedOperation::Preflight(request), None) => {
                let id = answer.and_then(|answer| member(answer, "prepared_request_id"));
                exchanges.extend(id.map(|id| Exchange::Prepared {
                    id: id.to_owned(),
                    at: input.at,
                    request: Box::new(request.clone()),
                    seen: recorded_request(self.rules_version, request),
                }));
            }
            (GovernedOperation::Propose(proposal), None) => {
                let name = answer.and_then(|answer| member(answer, "proposal_id"));
                exchanges.push(answered(input.at, proposal, name.unwrap_or_default()));
                exchanges.extend(asked(said, name));
                exchanges.extend(settled(input.at, name));
            }
            (GovernedOperation::Propose(proposal), Some(problem)) => {
                let members = problem.get("members");
                let again = members.and_then(|members| members.get("same_response")?.as_bool());
                if again == Some(false) {
                    exchanges.push(Exchange::Discarded {
                        at: input.at,
                        cost: cost(proposal),
                        prepared: proposal.prepared_request_id.clone(),
                    });
                }
            }
            (GovernedOperation::Decide(decide), None) => {
                exchanges.extend(settled(input.at, Some(&decide.proposal_id)));
            }
            (GovernedOperation::Report(report), None) => exchanges.push(ended(report, false)),
            (GovernedOperation::Report(report), Some(problem))
                if member(problem, "code") == Some("arguments_differ") =>
            {
                exchanges.push(ended(report, true));
            }
            (GovernedOperation::AddLabel { label }, None) => {
                let label = label.clone();
                exchanges.push(Exchange::Entry(RecordEntry::Labeled { label }));
            }
            (GovernedOperation::SetFilter { tools }, None) => {
                let tools = tools.clone();
                exchanges.push(Exchange::Entry(RecordEntry::Filtered { tools }));
            }
            (GovernedOperation::Heartbeat { started }, None) => {
                exchanges.extend(started.iter().map(|call| {
                    Exchange::Entry(RecordEntry::Started {
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
    Exchange::Entry(RecordEntry::Gap {
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
    Exchange::Entry(RecordEntry::Ended {
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
