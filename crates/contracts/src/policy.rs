//! Who may call a tool: rules on the principal, and on nothing else.
//!
//! The answer is the same at narrowing and at validation, so it is computed once per session.

use crate::decode::{self, Fields};
use crate::finding::{Code, Findings, shown};
use crate::invariant::{AllowedOperators, Invariant, Truth};
use crate::pattern::Steps;
use crate::value::Value;
use crate::yaml::Node;

/// A policy block of a contract or of the session file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    default: Effect,
    rules: Vec<Rule>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    id: String,
    effect: Effect,
    when: Vec<Invariant>,
}

/// What a rule does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    Allow,
    Deny,
}

const EFFECTS: [(&str, Effect); 2] = [("allow", Effect::Allow), ("deny", Effect::Deny)];

/// What a policy says about a principal, and the rule that said it (none: the default).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyAnswer {
    /// Whether the call is allowed.
    pub allowed: bool,
    /// The rule that decided.
    pub rule: Option<String>,
}

impl Policy {
    /// Judges a principal. A deny rule that cannot be decided denies.
    pub fn judge(&self, principal: &Value, steps: &Steps) -> PolicyAnswer {
        let truth = |rule: &Rule| {
            let entries = rule.when.iter();
            Truth::all(entries.map(|entry| entry.test(principal, steps)))
        };
        let denying = self
            .rules
            .iter()
            .find(|rule| rule.effect == Effect::Deny && truth(rule) != Truth::False);
        let allowing = || {
            self.rules
                .iter()
                .find(|rule| rule.effect == Effect::Allow && truth(rule) == Truth::True)
        };
        let (allowed, rule) = match denying {
            Some(rule) => (false, Some(rule)),
            None => match allowing() {
                Some(rule) => (true, Some(rule)),
                None => (self.default == Effect::Allow, None),
            },
        };
        PolicyAnswer {
            allowed,
            rule: rule.map(|rule| rule.id.clone()),
        }
    }

    pub(crate) fn decode(node: &Node, findings: &mut Findings) -> Option<Self> {
        let mut fields = Fields::of(node, findings)?;
        let default = fields
            .optional("default")
            .and_then(|node| decode::word(node, &EFFECTS, findings))
            .unwrap_or(Effect::Deny);
        let rules = fields.optional("rules");
        let mut ids: Vec<String> = Vec::new();
        let rules = decode::list_of(rules, 256, findings, |node, findings| {
            let mut fields = Fields::of(node, findings)?;
            let id = fields.required("id", findings);
            let id = id.and_then(|node| decode::named(node, findings));
            let effect = fields.required("effect", findings);
            let effect = effect.and_then(|node| decode::word(node, &EFFECTS, findings));
            let when = fields.required("when", findings);
            let when = Invariant::list(when, AllowedOperators::NoRef, findings);
            fields.finish(findings);
            let id = id?;
            if ids.contains(&id.name) {
                let message = format!("rule {} occurs twice", shown(&id.name));
                findings.error(id.at, Code::DuplicateName, message);
            }
            ids.push(id.name.clone());
            // What is not known about somebody must not widen their rights.
            if effect == Some(Effect::Allow) && when.iter().any(Invariant::holds_when_absent) {
                let message = "`when_present` in an allow rule would let in whoever lacks the \
                    attribute; `exists: false` says so openly";
                findings.error(id.at, Code::UnknownKey, message);
            }
            Some(Rule {
                id: id.name,
                effect: effect?,
                when,
            })
        });
        fields.finish(findings);
        Some(Self { default, rules })
    }
}
