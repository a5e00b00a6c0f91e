//! Verdicts and how they are shown.
//!
//! Owns the result of a run and its two renderings, text and JSON. Judges nothing: verdicts arrive finished.

use std::fmt;

use serde_json::{Value, json};

/// How binding a requirement is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// The server must do it.
    Must,
    /// The server must not do it.
    MustNot,
    /// The server should do it.
    Should,
    /// The server may do it.
    May,
    /// The source states no level.
    Unstated,
    /// It binds servers that announce this conformance level or a higher one.
    From(u8),
}

impl Level {
    /// Returns the letter or digit used for the level in tables.
    pub const fn letter(self) -> &'static str {
        match self {
            Self::Must => "M",
            Self::MustNot => "N",
            Self::Should => "S",
            Self::May => "O",
            Self::Unstated => "-",
            Self::From(0) => "0",
            Self::From(1) => "1",
            Self::From(2) => "2",
            Self::From(_) => "3",
        }
    }
}

/// What a run says about one requirement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The server was seen to do what is required.
    Ok {
        /// A part of the stated check that could not be seen, if any.
        unseen: Option<String>,
    },
    /// The server was seen to do something else.
    Fail {
        /// What the requirement asks for.
        expected: String,
        /// What the server did.
        found: String,
    },
    /// The server does something else, because texts that bind it contradict each other and it follows another one.
    Differs {
        /// What it follows, and what changes that.
        decision: String,
    },
    /// Nothing can be said.
    NotCovered {
        /// Why not.
        reason: String,
    },
}

/// The verdict on one requirement id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The requirement id, such as `AP-VER-01`, or `SUITE-01` for a probe of the published suite.
    pub id: &'static str,
    /// How binding it is.
    pub level: Level,
    /// The requirement in one line.
    pub title: &'static str,
    /// What was seen.
    pub verdict: Verdict,
}

impl Outcome {
    /// Returns the outcome as one line of text without a line end.
    pub fn line(&self) -> String {
        let head = |word: &str| {
            format!(
                "{word:<11}  {:<11}  {}  {}",
                self.id,
                self.level.letter(),
                self.title
            )
        };
        match &self.verdict {
            Verdict::Ok { unseen: None } => head("ok"),
            Verdict::Ok { unseen: Some(part) } => format!("{} (not seen: {part})", head("ok")),
            Verdict::Fail { expected, found } => {
                format!("{}: expected {expected}; found {found}", head("FAIL"))
            }
            Verdict::Differs { decision } => format!("{}: {decision}", head("differs")),
            Verdict::NotCovered { reason } => format!("{}: {reason}", head("not covered")),
        }
    }

    fn json(&self) -> Value {
        let mut value = json!({"id": self.id, "level": self.level.letter(), "title": self.title});
        let more = match &self.verdict {
            Verdict::Ok { unseen } => json!({"verdict": "ok", "unseen": unseen}),
            Verdict::Fail { expected, found } => {
                json!({"verdict": "fail", "expected": expected, "found": found})
            }
            Verdict::Differs { decision } => {
                json!({"verdict": "differs_by_decision", "decision": decision})
            }
            Verdict::NotCovered { reason } => json!({"verdict": "not_covered", "reason": reason}),
        };
        if let (Value::Object(value), Value::Object(more)) = (&mut value, more) {
            value.extend(more);
        }
        value
    }
}

/// The verdicts of one run, in registry order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The protocol and its version.
    pub protocol_version: &'static str,
    /// The address that was asked.
    pub url: String,
    /// One outcome for each id of the registry.
    pub outcomes: Vec<Outcome>,
}

impl Report {
    /// Returns how many ids are `ok`.
    pub fn passed(&self) -> usize {
        self.passed_ids().len()
    }

    /// Returns how many ids are `FAIL`.
    pub fn failed(&self) -> usize {
        self.failed_ids().len()
    }

    /// Returns how many ids differ by decision.
    pub fn differing(&self) -> usize {
        self.ids(|verdict| matches!(verdict, Verdict::Differs { .. }))
            .len()
    }

    /// Returns how many ids are `not covered`.
    pub fn not_covered(&self) -> usize {
        self.not_covered_ids().len()
    }

    /// Returns the ids that are `FAIL`, in registry order.
    pub fn failed_ids(&self) -> Vec<&'static str> {
        self.ids(|verdict| matches!(verdict, Verdict::Fail { .. }))
    }

    /// Returns the ids that are `ok`, in registry order.
    pub fn passed_ids(&self) -> Vec<&'static str> {
        self.ids(|verdict| matches!(verdict, Verdict::Ok { .. }))
    }

    /// Returns the ids that are `not covered`, in registry order.
    pub fn not_covered_ids(&self) -> Vec<&'static str> {
        self.ids(|verdict| matches!(verdict, Verdict::NotCovered { .. }))
    }

    /// Returns the counts as one line of text without a line end.
    pub fn summary(&self) -> String {
        let differing = match self.differing() {
            0 => String::new(),
            count => format!(", {count} differing by decision"),
        };
        format!(
            "{} ok, {} FAIL{differing}, {} not covered",
            self.passed(),
            self.failed(),
            self.not_covered()
        )
    }

    /// Returns the report as JSON.
    pub fn json(&self) -> Value {
        json!({
            "protocol_version": self.protocol_version,
            "url": self.url,
            "outcomes": self.outcomes.iter().map(Outcome::json).collect::<Vec<_>>(),
            "summary": {
                "ok": self.passed(), "fail": self.failed(), "differs_by_decision": self.differing(),
                "not_covered": self.not_covered(),
            },
        })
    }

    fn ids(&self, is: impl Fn(&Verdict) -> bool) -> Vec<&'static str> {
        let found = self.outcomes.iter().filter(|outcome| is(&outcome.verdict));
        found.map(|outcome| outcome.id).collect()
    }
}

/// Writes one line for each id and the summary line.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for outcome in &self.outcomes {
            writeln!(f, "{}", outcome.line())?;
        }
        writeln!(f, "{}", self.summary())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let outcome = |id, level, verdict| Outcome {
            id,
            level,
            title: "a rule",
            verdict,
        };
        Report {
            protocol_version: crate::wire::VERSION,
            url: "http://127.0.0.1:1".to_owned(),
            outcomes: vec![
                outcome("AP-VER-01", Level::Must, Verdict::Ok { unseen: None }),
                outcome(
                    "AP-EVT-06",
                    Level::Must,
                    Verdict::Ok {
                        unseen: Some("a pruned id".to_owned()),
                    },
                ),
                outcome(
                    "AP-ENV-03",
                    Level::MustNot,
                    Verdict::Fail {
                        expected: "426".to_owned(),
                        found: "200".to_owned(),
                    },
                ),
                outcome(
                    "SUITE-26",
                    Level::Unstated,
                    Verdict::NotCovered {
                        reason: "no connector".to_owned(),
                    },
                ),
            ],
        }
    }

    #[test]
    fn text_has_one_aligned_line_per_id_and_a_summary() {
        let expected = "\
ok           AP-VER-01    M  a rule
ok           AP-EVT-06    M  a rule (not seen: a pruned id)
FAIL         AP-ENV-03    N  a rule: expected 426; found 200
not covered  SUITE-26     -  a rule: no connector
2 ok, 1 FAIL, 1 not covered
";
        assert_eq!(report().to_string(), expected);
    }

    #[test]
    fn json_names_verdict_and_counts() {
        let expected = json!({
            "protocol_version": "agents-protocol-2026-04-25",
            "url": "http://127.0.0.1:1",
            "outcomes": [
                {"id": "AP-VER-01", "level": "M", "title": "a rule", "verdict": "ok", "unseen": null},
                {"id": "AP-EVT-06", "level": "M", "title": "a rule", "verdict": "ok", "unseen": "a pruned id"},
                {"id": "AP-ENV-03", "level": "N", "title": "a rule", "verdict": "fail", "expected": "426", "found": "200"},
                {"id": "SUITE-26", "level": "-", "title": "a rule", "verdict": "not_covered", "reason": "no connector"},
            ],
            "summary": {"ok": 2, "fail": 1, "differs_by_decision": 0, "not_covered": 1},
        });
        assert_eq!(report().json(), expected);
    }

    #[test]
    fn ids_are_named_by_verdict() {
        assert_eq!(report().passed_ids(), ["AP-VER-01", "AP-EVT-06"]);
        assert_eq!(report().failed_ids(), ["AP-ENV-03"]);
        assert_eq!(report().not_covered_ids(), ["SUITE-26"]);
    }
}
