//! The blocks of a contract file, each read by itself.

use super::{
    Checkpoint, CommitRequirement, Content, ContextEntry, ContextSource, EvidenceClass,
    FinishReason, NAMES_MAX, Precondition, SameAsPrior, SideEffect, SlotBinding, Source,
    TIMEOUT_MS_MAX,
};
use crate::decode::{self, Fields, Named};
use crate::finding::{Code, Findings};
use crate::invariant::{AllowedOperators, Invariant, LIST_LEN_MAX};
use crate::yaml::Node;

const EVIDENCE: [(&str, EvidenceClass); 3] = [
    ("local_transaction", EvidenceClass::LocalTransaction),
    ("ack_only", EvidenceClass::AckOnly),
    ("unverifiable", EvidenceClass::Unverifiable),
];
const COMMIT: [(&str, CommitRequirement); 2] = [
    ("acknowledged", CommitRequirement::Acknowledged),
    ("none", CommitRequirement::None),
];
const CONTENT: [(&str, Content); 3] = [
    ("any", Content::Any),
    ("empty", Content::Empty),
    ("required", Content::Required),
];

pub(super) fn evidence(
    fields: &mut Fields<'_>,
    side_effect: Option<SideEffect>,
    findings: &mut Findings,
) -> (EvidenceClass, CommitRequirement) {
    let at = fields.at();
    let node = fields.optional("evidence_class");
    let class = node.and_then(|node| decode::word(node, &EVIDENCE, findings));
    let class = class.unwrap_or(EvidenceClass::LocalTransaction);
    let at = node.map_or(at, |node| node.at);
    let commit = fields.optional("commit_requirement");
    let commit = commit.and_then(|node| decode::word(node, &COMMIT, findings));
    let commit = commit.unwrap_or(CommitRequirement::Acknowledged);
    let high_risk = side_effect.is_some_and(SideEffect::is_high_risk);
    if high_risk && class != EvidenceClass::LocalTransaction {
        let message = "destructive, admin and financial tools need `local_transaction`: \
                       other evidence does not prove what happened";
        findings.error(at, Code::Contradiction, message);
    }
    if class == EvidenceClass::Unverifiable && commit == CommitRequirement::Acknowledged {
        let message = "what is `unverifiable` cannot be `acknowledged`: \
                       set `commit_requirement: none`";
        findings.error(at, Code::Contradiction, message);
    }
    (class, commit)
}

pub(super) fn transitions(
    node: Option<&Node>,
    findings: &mut Findings,
) -> (Option<Vec<Named>>, Option<Named>) {
    let Some(mut fields) = node.and_then(|node| Fields::of(node, findings)) else {
        return (None, None);
    };
    let phases = fields.optional("valid_in_phases");
    let phases = phases.map(|node| decode::list_of(Some(node), 256, findings, decode::named));
    let to = fields.optional("advances_to");
    let to = to.and_then(|node| decode::named(node, findings));
    fields.finish(findings);
    (phases, to)
}

pub(super) fn preconditions(node: Option<&Node>, findings: &mut Findings) -> Vec<Precondition> {
    decode::list_of(node, LIST_LEN_MAX, findings, |node, findings| {
        let mut fields = Fields::of(node, findings)?;
        let prior = fields.required("requires_prior_tool", findings);
        let prior = prior.and_then(|node| decode::named(node, findings));
        let output = fields.optional("with_output");
        let with_output = Invariant::list(output, AllowedOperators::Output, findings);
        let same = fields.optional("same_as_prior");
        let same_as_prior = decode::list_of(same, LIST_LEN_MAX, findings, same_as_prior);
        fields.finish(findings);
        Some(Precondition {
            prior_tool: prior?,
            with_output,
            same_as_prior,
        })
    })
}

fn same_as_prior(node: &Node, findings: &mut Findings) -> Option<SameAsPrior> {
    let mut fields = Fields::of(node, findings)?;
    let argument = fields.required("argument", findings);
    let argument = argument.and_then(|node| decode::path(node, findings));
    let prior = fields.required("prior", findings);
    let prior = prior.and_then(|node| decode::path(node, findings));
    let from = fields.optional("prior_from");
    let from = from.and_then(|node| decode::word(node, &Source::WORDS, findings));
    fields.finish(findings);
    Some(SameAsPrior {
        argument: argument?,
        prior: prior?,
        prior_from: from.unwrap_or(Source::Arguments),
    })
}

pub(super) fn assertions(
    node: Option<&Node>,
    findings: &mut Findings,
) -> (Vec<Invariant>, Vec<Invariant>) {
    let Some(mut fields) = node.and_then(|node| Fields::of(node, findings)) else {
        return (Vec::new(), Vec::new());
    };
    let input = fields.optional("input_invariants");
    let input = Invariant::list(input, AllowedOperators::NoRef, findings);
    let output = fields.optional("output_invariants");
    let output = Invariant::list(output, AllowedOperators::NoRef, findings);
    fields.finish(findings);
    (input, output)
}

pub(super) fn response_format(
    node: Option<&Node>,
    findings: &mut Findings,
) -> (Option<Vec<FinishReason>>, Content) {
    let Some(mut fields) = node.and_then(|node| Fields::of(node, findings)) else {
        return (None, Content::Any);
    };
    let reasons = fields.optional("finish_reason").map(|node| {
        let list = decode::list_of(Some(node), 5, findings, |node, findings| {
            decode::word(node, &FinishReason::WORDS, findings)
        });
        if list.is_empty() {
            let message = "`finish_reason` is empty: nothing satisfies it";
            findings.error(node.at, Code::Contradiction, message);
        }
        list
    });
    let content = fields.optional("content");
    let content = content.and_then(|node| decode::word(node, &CONTENT, findings));
    fields.finish(findings);
    (reasons, content.unwrap_or(Content::Any))
}

pub(super) fn execution(node: Option<&Node>, findings: &mut Findings) -> Vec<Invariant> {
    let Some(mut fields) = node.and_then(|node| Fields::of(node, findings)) else {
        return Vec::new();
    };
    let list = fields.optional("arguments");
    let list = Invariant::list(list, AllowedOperators::All, findings);
    fields.finish(findings);
    list
}

pub(super) fn binds(node: Option<&Node>, findings: &mut Findings) -> Vec<SlotBinding> {
    decode::list_of(node, LIST_LEN_MAX, findings, |node, findings| {
        let mut fields = Fields::of(node, findings)?;
        let slot = fields.required("slot", findings);
        let slot = slot.and_then(|node| decode::named(node, findings));
        let from = fields.required("from", findings);
        let from = from.and_then(|node| decode::word(node, &Source::WORDS, findings));
        let path = fields.required("path", findings);
        let path = path.and_then(|node| decode::path(node, findings));
        fields.finish(findings);
        Some(SlotBinding {
            slot: slot?,
            from: from?,
            path: path?,
        })
    })
}

pub(super) fn checkpoint(node: &Node, findings: &mut Findings) -> Option<Checkpoint> {
    let mut fields = Fields::of(node, findings)?;
    let reason = fields.required("reason", findings);
    let reason = reason.and_then(|node| {
        let text = decode::text(node, findings)?;
        if !(1..=500).contains(&text.chars().count()) {
            let message = "a reason has 1 to 500 characters";
            findings.error(node.at, Code::BadValue, message);
            return None;
        }
        Some(text.to_owned())
    });
    let when = Invariant::list(fields.optional("when"), AllowedOperators::NoRef, findings);
    let timeout = fields.optional("timeout_seconds");
    let timeout = timeout.and_then(|node| decode::integer(node, 1, 86_400, findings));
    let context = fields.optional("context");
    let context = decode::list_of(context, LIST_LEN_MAX, findings, context_entry);
    fields.finish(findings);
    Some(Checkpoint {
        reason: reason?,
        timeout_seconds: timeout.unwrap_or(300),
        when,
        context,
    })
}

fn context_entry(node: &Node, findings: &mut Findings) -> Option<ContextEntry> {
    let mut fields = Fields::of(node, findings)?;
    let label = fields.required("label", findings);
    let label = label.and_then(|node| decode::bounded_text(node, 200, findings));
    let path = fields.optional("path");
    let slot = fields.optional("slot");
    let at = fields.at();
    fields.finish(findings);
    let source = match (path, slot) {
        (Some(path), None) => ContextSource::Argument(decode::path(path, findings)?),
        (None, Some(slot)) => ContextSource::Slot(decode::named(slot, findings)?),
        (Some(_), Some(_)) | (None, None) => {
            let message = "an entry of the context has either `path` or `slot`";
            findings.error(at, Code::Contradiction, message);
            return None;
        }
    };
    Some(ContextEntry {
        label: label?.to_owned(),
        source,
    })
}

pub(super) fn timeout_ms(node: Option<&Node>, findings: &mut Findings) -> Option<u64> {
    let mut fields = node.and_then(|node| Fields::of(node, findings))?;
    let total = fields.optional("total_ms");
    let total = total.and_then(|node| decode::integer(node, 1, TIMEOUT_MS_MAX, findings));
    fields.finish(findings);
    total
}

pub(super) fn retries(
    node: Option<&Node>,
    side_effect: Option<SideEffect>,
    findings: &mut Findings,
) -> (u64, Vec<String>) {
    let Some(mut fields) = node.and_then(|node| Fields::of(node, findings)) else {
        return (1, Vec::new());
    };
    let attempts = fields.optional("max_attempts");
    let max = attempts.and_then(|node| decode::integer(node, 1, 100, findings));
    let codes = fields.optional("retry_on");
    let codes = decode::list_of(codes, LIST_LEN_MAX, findings, decode::named);
    let at = attempts.map_or(fields.at(), |node| node.at);
    fields.finish(findings);
    let max = max.unwrap_or(1);
    if max > 1 && side_effect.is_some_and(|class| class != SideEffect::Read) {
        let message = "only a tool with `side_effect: read` may be tried more than once";
        findings.error(at, Code::Contradiction, message);
    }
    (max, codes.into_iter().map(|code| code.name).collect())
}

/// Checked and kept by nobody: a rule for HTTP tools and the test runner.
pub(super) fn rate_limits(node: Option<&Node>, findings: &mut Findings) {
    let Some(mut fields) = node.and_then(|node| Fields::of(node, findings)) else {
        return;
    };
    let on_429 = fields.optional("on_429");
    fields.finish(findings);
    if let Some(mut fields) = on_429.and_then(|node| Fields::of(node, findings)) {
        if let Some(node) = fields.optional("respect_retry_after") {
            decode::boolean(node, findings);
        }
        if let Some(node) = fields.optional("max_sleep_seconds") {
            decode::integer(node, 0, 86_400, findings);
        }
        fields.finish(findings);
    }
}

pub(super) fn allowed_errors(node: Option<&Node>, findings: &mut Findings) -> Vec<String> {
    decode::list_of(node, NAMES_MAX, findings, |node, findings| {
        let mut fields = Fields::of(node, findings)?;
        let code = fields.required("code", findings);
        let code = code.and_then(|node| decode::bounded_text(node, 256, findings));
        fields.finish(findings);
        Some(code?.to_owned())
    })
}

/// Checked here; read by the offline test runner.
pub(super) fn golden_cases(node: Option<&Node>, findings: &mut Findings) {
    decode::list_of(node, NAMES_MAX, findings, |node, findings| {
        let mut fields = Fields::of(node, findings)?;
        for name in ["id", "input_ref"] {
            let text = fields.required(name, findings);
            text.and_then(|node| decode::bounded_text(node, 1_000, findings));
        }
        let expect = fields.optional("expect_ok");
        expect.and_then(|node| decode::boolean(node, findings));
        let error = fields.optional("expected_error");
        error.and_then(|node| decode::bounded_text(node, 256, findings));
        let modes = fields.optional("provider_modes");
        decode::list_of(modes, 16, findings, decode::named);
        fields.finish(findings);
        Some(())
    });
}
