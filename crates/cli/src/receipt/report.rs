//! What a verification found, for people and for programs.

use receipts::verify::{Check, Report};
use serde_json::{Map, Value, json};

use crate::exit::Exit;
use crate::output::{Output, Paint, shorten};

/// How many failures of one kind are shown to a person.
const SHOWN_MAX: usize = 20;

/// The results of all checks.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// In order.
    lines: Vec<Line>,
    /// What was not asked and so is not known, with what to give.
    not_checked: Vec<(String, &'static str)>,
    /// What else is worth saying, for people.
    notes: Vec<String>,
    /// What else is worth saying, for programs.
    extra: Map<String, Value>,
    /// The keys whose signatures hold.
    signed_by: Vec<String>,
    /// What was asked.
    question: Question,
}

/// What a verification is to answer.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Question {
    /// Whether it is whole and somebody vouches for it.
    #[default]
    Valid,
    /// Only whether it is whole.
    Whole,
}

/// Codes that say nothing against the content, only that nobody stands behind it.
const NOBODY_VOUCHES: [&str; 5] = [
    "signature_missing",
    "signature_not_checked",
    "unsigned",
    "keys_not_given",
    "export_unsigned",
];

/// One result.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Line {
    name: String,
    ok: bool,
    code: Option<String>,
    expected: Option<String>,
    found: Option<String>,
}

impl Findings {
    /// Starts with a question.
    pub(crate) fn of(question: Question) -> Self {
        Self {
            question,
            ..Self::default()
        }
    }

    /// Something holds.
    pub(crate) fn pass(&mut self, name: impl Into<String>) {
        self.lines.push(Line {
            name: name.into(),
            ok: true,
            code: None,
            expected: None,
            found: None,
        });
    }

    /// Something does not hold.
    pub(crate) fn fail(
        &mut self,
        name: impl Into<String>,
        code: &str,
        expected: Option<String>,
        found: Option<String>,
    ) {
        self.lines.push(Line {
            name: name.into(),
            ok: false,
            code: Some(code.to_owned()),
            expected,
            found,
        });
    }

    /// A comparison.
    pub(crate) fn compare(
        &mut self,
        name: impl Into<String>,
        code: &str,
        expected: impl ToString,
        found: impl ToString,
    ) {
        let (expected, found) = (expected.to_string(), found.to_string());
        if expected == found {
            self.pass(name);
        } else {
            self.fail(name, code, Some(expected), Some(found));
        }
    }

    /// Something was not asked.
    pub(crate) fn skip(&mut self, name: impl Into<String>, give: &'static str) {
        self.not_checked.push((name.into(), give));
    }

    /// A remark.
    pub(crate) fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// A member for programs.
    pub(crate) fn set(&mut self, name: &str, value: Value) {
        self.extra.insert(name.to_owned(), value);
    }

    /// Takes over a result of the library.
    pub(crate) fn check(&mut self, check: &Check) {
        self.lines.push(Line {
            name: check.name.clone(),
            ok: check.ok,
            code: check.code.map(|code| code.as_str().to_owned()),
            expected: check.expected.clone(),
            found: check.found.clone(),
        });
    }

    /// Takes over a whole report.
    pub(crate) fn report(&mut self, report: &Report) {
        report.checks.iter().for_each(|check| self.check(check));
        for key in &report.signed_by {
            self.signed_by(key);
        }
    }

    /// This key signed, and its signature holds.
    pub(crate) fn signed_by(&mut self, key: &str) {
        if !self.signed_by.iter().any(|known| known == key) {
            self.signed_by.push(key.to_owned());
        }
    }

    /// Reads the verdict of a server.
    pub(crate) fn of_verdict(verdict: &Value) -> Self {
        let mut findings = Self::default();
        let text = |value: &Value, name: &str| Some(value.get(name)?.as_str()?.to_owned());
        let checks = verdict.pointer("/details/checks").and_then(Value::as_array);
        for check in checks.into_iter().flatten() {
            findings.lines.push(Line {
                name: text(check, "name").unwrap_or_default(),
                ok: check.get("ok") == Some(&Value::Bool(true)),
                code: text(check, "code"),
                expected: text(check, "expected"),
                found: text(check, "found"),
            });
        }
        let valid = verdict.get("valid") == Some(&Value::Bool(true));
        if !valid && findings.is_valid() {
            let reason = text(verdict, "reason").unwrap_or_else(|| "invalid".to_owned());
            findings.fail("server", &reason, None, None);
        }
        let lost = verdict.pointer("/details/materials/unavailable");
        let lost = lost.and_then(Value::as_array).map_or(0, Vec::len);
        if lost > 0 {
            findings.note(format!(
                "{lost} of its materials are no longer there, such as events that retention took: the receipt stands, \
                 what it commits to cannot be compared any more (material_unavailable)"
            ));
        }
        let signers = verdict.pointer("/details/signed_by");
        let signers = signers.and_then(Value::as_array).into_iter().flatten();
        findings.signed_by = signers
            .filter_map(|key| key.as_str().map(str::to_owned))
            .collect();
        findings.extra = verdict.as_object().cloned().unwrap_or_default();
        findings
    }

    /// Tells whether nothing that was checked failed, and somebody vouches for it.
    pub(crate) fn is_valid(&self) -> bool {
        self.question == Question::Valid && self.lines.iter().all(|line| line.ok)
    }

    /// Tells whether the content is what it was, whoever vouches for it.
    fn is_whole(&self) -> bool {
        let vouches = |line: &Line| {
            let code = line.code.as_deref().unwrap_or_default();
            !NOBODY_VOUCHES.contains(&code)
        };
        self.lines
            .iter()
            .filter(|line| vouches(line))
            .all(|line| line.ok)
    }

    /// Returns the first reason why not.
    pub(crate) fn reason(&self) -> Option<&str> {
        let failed = self.lines.iter().find(|line| !line.ok);
        failed.and_then(|line| line.code.as_deref())
    }

    /// How the program ends.
    pub(crate) fn exit(&self) -> Exit {
        let holds = match self.question {
            Question::Valid => self.is_valid(),
            Question::Whole => self.is_whole(),
        };
        match holds {
            true => Exit::Ok,
            false => Exit::No,
        }
    }

    /// Prints everything.
    pub(crate) fn print(&self, out: &mut Output, as_json: bool) -> anyhow::Result<()> {
        if as_json {
            return out.json(&self.json());
        }
        for line in self.text(out) {
            out.line(line)?;
        }
        Ok(())
    }

    /// Returns the lines for people.
    pub(crate) fn text(&self, out: &Output) -> Vec<String> {
        let mut lines = Vec::new();
        let mut hidden = 0;
        let mut failures = 0;
        for line in &self.lines {
            if line.ok {
                lines.push(format!("{}    {}", out.paint(Paint::Good, "ok"), line.name));
                continue;
            }
            failures += 1;
            if failures > SHOWN_MAX {
                hidden += 1;
                continue;
            }
            let code = line.code.as_deref().unwrap_or("invalid");
            let what = shorten_line(&format!("{}  {code}", line.name));
            lines.push(format!("{}  {what}", out.paint(Paint::Bad, "FAIL")));
            for (name, value) in [("expected", &line.expected), ("found   ", &line.found)] {
                if let Some(value) = value {
                    lines.push(format!("        {name}  {}", shorten(value, 200)));
                }
            }
        }
        if hidden > 0 {
            lines.push(format!("      … and {hidden} more"));
        }
        for (name, give) in &self.not_checked {
            let text = format!("-     {name}: not checked; {give}");
            lines.push(out.paint(Paint::Quiet, &text));
        }
        lines.extend(self.notes.iter().map(|note| out.paint(Paint::Quiet, note)));
        if !self.signed_by.is_empty() {
            let signers = shorten_line(&self.signed_by.join(", "));
            lines.push(out.paint(Paint::Quiet, &format!("      signed by {signers}")));
        }
        lines.push(self.verdict(out));
        lines
    }

    /// Returns the last line. `valid` stands there only if somebody vouches for it.
    fn verdict(&self, out: &Output) -> String {
        if self.is_valid() {
            return out.paint(Paint::Good, "valid");
        }
        let reason = self.reason().unwrap_or("invalid");
        match (self.is_whole(), self.question) {
            (true, Question::Whole) => {
                let text = "whole, and nobody vouches for it: signatures were not asked for";
                out.paint(Paint::Good, text)
            }
            (true, Question::Valid) => {
                let text = format!("whole, but nobody vouches for it: {reason}");
                out.paint(Paint::Bad, &text)
            }
            (false, _) => out.paint(Paint::Bad, &format!("INVALID: {reason}")),
        }
    }

    fn json(&self) -> Value {
        let checks: Vec<Value> = self
            .lines
            .iter()
            .map(|line| {
                let mut check = json!({"name": line.name, "ok": line.ok});
                if let Value::Object(members) = &mut check {
                    let optional = [
                        ("code", &line.code),
                        ("expected", &line.expected),
                        ("found", &line.found),
                    ];
                    for (name, value) in optional {
                        if let Some(value) = value {
                            members.insert(name.to_owned(), value.as_str().into());
                        }
                    }
                }
                check
            })
            .collect();
        let skipped: Vec<&str> = self
            .not_checked
            .iter()
            .map(|(name, _)| name.as_str())
            .collect();
        let mut value = self.extra.clone();
        value.insert("valid".to_owned(), self.is_valid().into());
        value.insert("whole".to_owned(), self.is_whole().into());
        value.insert("signed_by".to_owned(), json!(self.signed_by));
        if self.question == Question::Whole {
            value.insert("integrity_only".to_owned(), true.into());
        }
        value.insert("reason".to_owned(), json!(self.reason()));
        value.insert("checks".to_owned(), checks.into());
        value.insert("not_checked".to_owned(), json!(skipped));
        Value::Object(value)
    }
}

fn shorten_line(text: &str) -> String {
    crate::output::printable(text)
}
