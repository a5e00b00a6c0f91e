//! What is wrong with the files, and where.

use std::fmt;

use crate::pattern::PatternBudget;

/// Whether a finding stops compilation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The session does not start.
    Error,
    /// It starts, but somebody should look.
    Warning,
}

/// Something about a file that somebody should change.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// The file as the caller named it.
    pub file: String,
    /// The line, from 1; 0 when the finding is about the file as a whole.
    pub line: usize,
    /// The column, from 1; 0 when the finding is about the file as a whole.
    pub column: usize,
    /// Whether it stops compilation.
    pub severity: Severity,
    /// The kind of finding, a stable word.
    pub code: Code,
    /// What is wrong, for people.
    pub message: String,
}

/// The kinds of findings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Code {
    /// Not a YAML document.
    Syntax,
    /// Larger than allowed.
    TooLarge,
    /// Anchors, aliases, tags and other YAML that these files do without.
    UnsupportedYaml,
    /// A key that the format does not have.
    UnknownKey,
    /// A key that occurs twice.
    DuplicateKey,
    /// A key that must be there.
    MissingKey,
    /// A value of another type.
    WrongType,
    /// A value that the field does not accept.
    BadValue,
    /// A name that is declared nowhere.
    UnknownName,
    /// A name that is declared twice.
    DuplicateName,
    /// Fields that cannot stand together.
    Contradiction,
    /// A phase that no transition leads to.
    UnreachablePhase,
    /// A phase from which no terminal phase can be reached, on a cycle.
    CircularTransitions,
    /// A phase from which no terminal phase can be reached.
    DeadEnd,
    /// A tool that can never be called.
    NeverCallable,
}

impl Code {
    /// Returns the stable word.
    pub fn as_str(self) -> &'static str {
        match self {
            Code::Syntax => "syntax",
            Code::TooLarge => "too_large",
            Code::UnsupportedYaml => "unsupported_yaml",
            Code::UnknownKey => "unknown_key",
            Code::DuplicateKey => "duplicate_key",
            Code::MissingKey => "missing_key",
            Code::WrongType => "wrong_type",
            Code::BadValue => "bad_value",
            Code::UnknownName => "unknown_name",
            Code::DuplicateName => "duplicate_name",
            Code::Contradiction => "contradiction",
            Code::UnreachablePhase => "unreachable_phase",
            Code::CircularTransitions => "circular_transitions",
            Code::DeadEnd => "dead_end",
            Code::NeverCallable => "never_callable",
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        let (file, code, message) = (&self.file, self.code.as_str(), &self.message);
        if self.line == 0 {
            return write!(f, "{file}: {word}[{code}]: {message}");
        }
        let (line, column) = (self.line, self.column);
        write!(f, "{file}:{line}:{column}: {word}[{code}]: {message}")
    }
}

/// The findings of one file while it is read.
#[derive(Debug)]
pub(crate) struct Findings {
    file: String,
    list: Vec<Finding>,
    /// What is left for the patterns of this file and of those after it.
    pub(crate) patterns: PatternBudget,
}

/// A place in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Place {
    pub(crate) line: usize,
    pub(crate) column: usize,
}

impl Findings {
    pub(crate) fn new(file: &str) -> Self {
        Self {
            file: file.to_owned(),
            list: Vec::new(),
            patterns: PatternBudget::of_files(),
        }
    }

    /// The same, after other files.
    pub(crate) fn after(file: &str, patterns: PatternBudget) -> Self {
        Self {
            patterns,
            ..Self::new(file)
        }
    }

    pub(crate) fn error(&mut self, at: Place, code: Code, message: impl Into<String>) {
        self.push(at, Severity::Error, code, message.into());
    }

    pub(crate) fn warning(&mut self, at: Place, code: Code, message: impl Into<String>) {
        self.push(at, Severity::Warning, code, message.into());
    }

    fn push(&mut self, at: Place, severity: Severity, code: Code, message: String) {
        self.list.push(Finding {
            file: self.file.clone(),
            line: at.line,
            column: at.column,
            severity,
            code,
            message,
        });
    }

    pub(crate) fn into_list(self) -> Vec<Finding> {
        self.list
    }
}

/// Words of people in a message: short, without line breaks.
pub(crate) fn shown(text: &str) -> String {
    let short: String = text.chars().take(60).collect();
    let plain: String = short
        .chars()
        .map(|char| if char.is_control() { '\u{fffd}' } else { char })
        .collect();
    if short.len() < text.len() {
        format!("`{plain}…`")
    } else {
        format!("`{plain}`")
    }
}
