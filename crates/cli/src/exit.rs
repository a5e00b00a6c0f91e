//! The exit codes, and the one error type that carries a hint.
//!
//! Owns the table below and nothing else: which command answers what is the command's business.
//!
//! | Code | Meaning |
//! | --- | --- |
//! | 0 | it worked, and the answer is yes |
//! | 1 | it worked, and the answer is no: a task that failed, a log with problems, and whatever a server refused because it is not there, not allowed or not possible now |
//! | 2 | wrong usage, or something failed before there was an answer |
//! | 130 | somebody pressed Ctrl-C, as shells count it: 128 and the number of the signal |

use std::fmt;
use std::process::ExitCode;

use serde_json::json;

/// How the program ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Yes.
    Ok,
    /// No.
    No,
    /// No answer.
    Fault,
    /// Somebody did not want to wait for an answer.
    Interrupted,
}

impl Exit {
    /// Returns the number that the shell sees.
    pub(crate) const fn code(self) -> u8 {
        match self {
            Exit::Ok => 0,
            Exit::No => 1,
            Exit::Fault => 2,
            Exit::Interrupted => 130,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit.code())
    }
}

/// A failure as a person reads it: what happened, and what to do next.
#[derive(Debug)]
pub(crate) struct Problem {
    message: String,
    hint: String,
    exit: Exit,
    /// The word of the server that refused.
    code: Option<String>,
}

impl Problem {
    /// A failure without an answer.
    pub(crate) fn new(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            hint: hint.into(),
            exit: Exit::Fault,
            code: None,
        }
    }

    /// The same failure, as a server calls it.
    pub(crate) fn with_code(mut self, code: &str) -> Self {
        self.code = Some(code.to_owned());
        self
    }

    /// The same failure as an answer: no.
    pub(crate) fn answers_no(mut self) -> Self {
        self.exit = Exit::No;
        self
    }
}

/// True for what a server refused with one of these words.
pub(crate) fn is_refused(error: &anyhow::Error, codes: &[&str]) -> bool {
    let problem = error.downcast_ref::<Problem>();
    let code = problem.and_then(|problem| problem.code.as_deref());
    code.is_some_and(|code| codes.contains(&code))
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Problem {}

/// Adds a hint to any error.
pub(crate) trait OrHint<T> {
    /// Says what failed and what to do about it.
    ///
    /// # Errors
    /// The error it was called on, with the hint.
    fn or_hint(self, what: impl fmt::Display, hint: impl Into<String>) -> anyhow::Result<T>;
}

impl<T, E: fmt::Display> OrHint<T> for Result<T, E> {
    fn or_hint(self, what: impl fmt::Display, hint: impl Into<String>) -> anyhow::Result<T> {
        self.map_err(|error| Problem::new(format!("{what}: {error}"), hint).into())
    }
}

/// Returns what to print and the exit code for an error: two lines for people, or one JSON document.
pub(crate) fn report(error: &anyhow::Error, is_json: bool) -> (String, Exit) {
    let message = one_line(&format!("{error:#}"));
    let (hint, exit, code) = match error.downcast_ref::<Problem>() {
        Some(problem) => (problem.hint.as_str(), problem.exit, problem.code.as_deref()),
        None => (
            "`reprise --help` lists the commands; each has its own `--help` with examples",
            Exit::Fault,
            None,
        ),
    };
    let hint = one_line(hint);
    let text = match is_json {
        true => {
            let error =
                json!({"message": message, "hint": hint, "code": code, "exit": exit.code()});
            json!({"error": error}).to_string()
        }
        false => format!("error: {message}\nhint: {hint}"),
    };
    (text, exit)
}

/// Errors may carry words of a server or a file: no line breaks, no control characters.
fn one_line(text: &str) -> String {
    let printable = crate::output::printable(text);
    printable.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_line_and_a_hint() {
        let error = anyhow::Error::from(Problem::new("it\nbroke\u{1b}[31m", "mend it"));
        let (text, exit) = report(&error, false);
        assert_eq!(text, "error: it broke\u{fffd}[31m\nhint: mend it");
        assert_eq!(exit, Exit::Fault);
    }

    #[test]
    fn a_refusal_is_an_answer() {
        let error = anyhow::Error::from(Problem::new("no", "ask again").answers_no());
        assert_eq!(report(&error, false).1.code(), 1);
        assert_eq!(report(&anyhow::anyhow!("x"), true).1.code(), 2);
        let told: serde_json::Value = serde_json::from_str(&report(&error, true).0).unwrap();
        assert_eq!(told["error"]["message"], "no");
        assert_eq!(told["error"]["exit"], 1);
        assert_eq!(Exit::Ok.code(), 0);
    }
}
