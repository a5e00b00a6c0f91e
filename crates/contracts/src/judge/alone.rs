//! Pass 1: checks that look at one call by itself (V1 to V13).

use std::cell::OnceCell;
use std::collections::BTreeMap;

use super::Context;
use super::calls::ReadCall;
use super::verdict::{Failure, Verdict};
use crate::compile::{Compiled, ToolRules};
use crate::contract::{Content, Contract, FinishReason, RiskGate};
use crate::invariant::{Invariant, Operator};
use crate::narrow::hosted_removal;
use crate::pattern::{Steps, TOO_COSTLY};
use crate::reason::{BlockReason, Check, NarrowReason};
use crate::request::Response;
use crate::rules::Permission;
use crate::schema;
use crate::state::State;
use crate::value::Value;

/// What output invariants look at, built only if some contract has one.
#[derive(Debug)]
pub(super) struct ResponseView<'a> {
    response: &'a Response,
    proposed: &'a [ReadCall<'a>],
    value: OnceCell<Value>,
}

impl<'a> ResponseView<'a> {
    pub(super) fn new(response: &'a Response, proposed: &'a [ReadCall<'a>]) -> Self {
        Self {
            response,
            proposed,
            value: OnceCell::new(),
        }
    }

    fn value(&self) -> &Value {
        self.value.get_or_init(|| {
            let object = |members: [(&str, Value); 3]| {
                let members = members.map(|(name, value)| (name.to_owned(), value));
                Value::Object(BTreeMap::from(members))
            };
            let calls = self.proposed.iter().map(|call| {
                let arguments = call.arguments().cloned();
                object([
                    ("id", Value::from(call.id())),
                    ("name", Value::from(call.name())),
                    ("arguments", arguments.unwrap_or(Value::Null)),
                ])
            });
            let content = self.response.content.as_deref();
            object([
                (
                    "finish_reason",
                    Value::from(self.response.finish_reason.as_str()),
                ),
                ("content", content.map_or(Value::Null, Value::from)),
                ("tool_calls", Value::Array(calls.collect())),
            ])
        })
    }
}

/// Runs every check of the pass.
pub(super) fn check(
    context: &Context<'_>,
    view: &ResponseView<'_>,
    call: &ReadCall<'_>,
    verdict: &mut Verdict,
) {
    let (rules, state) = (context.rules, context.state);
    let known = context.compiled().tools.get(call.name());
    let mut fail = |check, reason, detail: &str| {
        verdict.fail(Failure::new(Some(check), reason).with_detail(detail));
    };
    for problem in format_problems(context.response, call, known) {
        fail(Check::V1, BlockReason::ResponseFormatInvalid, &problem);
    }
    let mut offered = context.occasion.request.tools.iter();
    let offered = offered.find(|tool| tool.name == call.name());
    if offered.is_none() {
        fail(Check::V2, BlockReason::UnmatchedToolBlocked, "not_offered");
    }
    // A tool that was removed as one that the provider runs was not shown to the model, and may have run.
    let hosted = offered.filter(|tool| tool.hosted && !rules.options().hosted_calls_pass);
    let removed = hosted.and_then(|_| hosted_removal(known));
    let is_unmatched = known.is_none() && rules.options().unmatched == Permission::Block;
    if is_unmatched || removed == Some(NarrowReason::NoContract) {
        fail(Check::V2, BlockReason::UnmatchedToolBlocked, "no_contract");
    }
    let is_closed = known.is_some_and(|known| known.gate == RiskGate::Block);
    if is_closed || removed == Some(NarrowReason::RiskGate) {
        fail(Check::V3, BlockReason::RiskGateBlocked, "risk_gate");
    }
    if let Some(answer) = rules.denied_by(call.name()) {
        let rule = answer.rule.as_deref().unwrap_or("default");
        fail(Check::V4, BlockReason::PolicyDenied, rule);
    }
    if state
        .filter
        .as_ref()
        .is_some_and(|filter| !filter.contains(call.name()))
    {
        fail(Check::V5, BlockReason::ManualFilter, "manual_filter");
    }
    if state.forbidden.contains(call.name()) {
        fail(Check::V8, BlockReason::ForbiddenTool, "committed");
    }
    let Some(known) = known else {
        return;
    };
    let contract = &known.contract;
    if let Some(detail) = phase_problem(context.compiled(), state, contract) {
        fail(Check::V6, BlockReason::IllegalPhaseTransition, &detail);
    }
    preconditions(context, known, call, verdict);
    let request = &context.occasion.request.view;
    let reason = BlockReason::InputInvariantFailed;
    invariants(
        &contract.input_invariants,
        request,
        Check::V9,
        reason,
        context.steps,
        verdict,
    );
    if !contract.output_invariants.is_empty() {
        let reason = BlockReason::OutputInvariantFailed;
        invariants(
            &contract.output_invariants,
            view.value(),
            Check::V10,
            reason,
            context.steps,
            verdict,
        );
    }
    if let Some(arguments) = call.arguments() {
        let schema = offered.and_then(|tool| tool.schema.as_ref());
        if let Some(schema) = schema.filter(|_| contract.schema_derived) {
            derived(contract, schema, arguments, context.steps, verdict);
        }
        let reason = BlockReason::ArgumentValueMismatch;
        invariants(
            &contract.arguments,
            arguments,
            Check::V11,
            reason,
            context.steps,
            verdict,
        );
        references(state, &contract.arguments, arguments, verdict);
    }
}

/// V1.
fn format_problems(
    response: &Response,
    call: &ReadCall<'_>,
    known: Option<&ToolRules>,
) -> Vec<String> {
    let mut problems = call.problems().to_vec();
    match response.finish_reason {
        FinishReason::Length => problems.push("finish_reason: length".to_owned()),
        FinishReason::ContentFilter => problems.push("finish_reason: content_filter".to_owned()),
        FinishReason::ToolCalls | FinishReason::Stop | FinishReason::Other => {}
    }
    let Some(contract) = known.map(|known| &known.contract) else {
        return problems;
    };
    let listed = contract.finish_reasons.as_ref();
    if listed.is_some_and(|listed| !listed.contains(&response.finish_reason)) {
        let found = response.finish_reason.as_str();
        problems.push(format!("finish_reason: {found} is not listed"));
    }
    let has_text = response
        .content
        .as_ref()
        .is_some_and(|text| !text.is_empty());
    match contract.content {
        Content::Empty if has_text => problems.push("content: not empty".to_owned()),
        Content::Required if !has_text => problems.push("content: missing".to_owned()),
        Content::Any | Content::Empty | Content::Required => {}
    }
    problems
}

/// V6: returns what is wrong with calling a tool in the current phase.
pub(crate) fn phase_problem(
    compiled: &Compiled,
    state: &State,
    contract: &Contract,
) -> Option<String> {
    let machine = compiled.session.phases.as_ref()?;
    let phase = state.phase()?;
    if let Some(valid) = &contract.valid_in_phases
        && !valid.iter().any(|named| named.name == phase)
    {
        return Some("wrong_phase".to_owned());
    }
    let target = contract.advances_to.as_ref()?;
    let legal = target.name == phase || machine.allows(phase, &target.name);
    (!legal).then(|| format!("{phase} -> {}", target.name))
}

/// V7.
fn preconditions(
    context: &Context<'_>,
    known: &ToolRules,
    call: &ReadCall<'_>,
    verdict: &mut Verdict,
) {
    for index in &known.preconditions {
        let precondition = context.compiled().preconditions.get(*index);
        let prior = context.state.prior.get(*index);
        let (Some(precondition), Some(prior)) = (precondition, prior) else {
            continue;
        };
        let arguments = match call.arguments() {
            Some(arguments) => arguments,
            // Without shared values the arguments are not read.
            None if precondition.same_as_prior.is_empty() => &Value::Null,
            None => continue,
        };
        if !prior.is_met(precondition, arguments) {
            let failure = Failure::new(Some(Check::V7), BlockReason::PreconditionNotMet);
            verdict.fail(failure.with_detail(&precondition.prior_tool.name));
        }
    }
}

/// V9, V10, and V11 as far as it is written down.
fn invariants(
    list: &[Invariant],
    root: &Value,
    check: Check,
    reason: BlockReason,
    steps: &Steps,
    verdict: &mut Verdict,
) {
    for invariant in list {
        for (operator, found) in invariant.failures(root, steps) {
            let failure = Failure::new(Some(check), reason);
            let mut failure = failure.at(invariant.path(), found).under(operator);
            if operator.is_pattern() && steps.are_spent() {
                failure = failure.with_detail(TOO_COSTLY);
            }
            verdict.fail(failure);
        }
    }
}

/// V11 as far as the offered schema implies it.
fn derived(
    contract: &Contract,
    schema: &Value,
    arguments: &Value,
    steps: &Steps,
    verdict: &mut Verdict,
) {
    let findings = schema::check(schema, arguments, &contract.schema_derived_exclude, steps);
    for finding in findings.failures {
        let failure = Failure::new(Some(Check::V11), BlockReason::ArgumentValueMismatch);
        let costly = finding.keyword == "pattern" && steps.are_spent();
        let mut failure = failure
            .at(&finding.path, finding.found.as_ref())
            .with_detail(if costly { TOO_COSTLY } else { "schema" });
        failure.operator = Some(finding.keyword);
        failure.expected = finding.expected;
        verdict.fail(failure);
    }
}

/// V12 and V13.
fn references(state: &State, list: &[Invariant], arguments: &Value, verdict: &mut Verdict) {
    for invariant in list {
        let Some((slot, found)) = invariant.slot(arguments) else {
            continue;
        };
        let operator = Operator::Ref(slot.to_owned());
        let failure = match state.slot(slot) {
            None => Failure::new(Some(Check::V12), BlockReason::BindingNotFound),
            Some(bound) if found.is_some_and(|found| found.equals(bound)) => continue,
            Some(_) => Failure::new(Some(Check::V13), BlockReason::RefMismatch),
        };
        verdict.fail(failure.at(invariant.path(), found).under(&operator));
    }
}
