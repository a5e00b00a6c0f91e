//! Regular expressions of the linear-time kind, and what they may cost.
//!
//! What a pattern costs is counted from the pattern itself and not from what some version of an engine makes of it, so that the
//! same files compile and the same call has the same verdict everywhere.

use std::cell::Cell;

use regex::{Regex, RegexBuilder};
use regex_syntax::hir::{Class, Hir, HirKind};

/// A regular expression of the linear-time kind.
#[derive(Debug, Clone)]
pub struct Pattern {
    text: String,
    regex: Regex,
    measure: Measure,
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Pattern {}

const CHARS_MAX: usize = 1_000;
const BYTES_MAX: usize = 1 << 20;
/// What one pattern keeps of the automaton that it builds while it looks at texts.
const CACHE_BYTES_MAX: usize = 128 << 10;
/// Steps that compiling takes for each unit of size.
const STEPS_TO_COMPILE: u64 = 64;

impl Pattern {
    /// Compiles a pattern of at most 1,000 characters and 1 MiB compiled; says why not otherwise.
    pub(crate) fn compile(text: &str) -> Result<Self, String> {
        let measure = Measure::of(text)?;
        let regex = RegexBuilder::new(text)
            .size_limit(BYTES_MAX)
            .dfa_size_limit(CACHE_BYTES_MAX)
            .build()
            .map_err(|error| unfit(&error.to_string()))?;
        Ok(Self {
            text: text.to_owned(),
            regex,
            measure,
        })
    }

    /// The same within what is left for several patterns.
    pub(crate) fn compile_within(
        text: &str,
        room: &mut PatternBudget,
    ) -> Result<Self, PatternError> {
        room.take(Measure::of(text).map_err(PatternError::Wrong)?)?;
        Self::compile(text).map_err(PatternError::Wrong)
    }

    /// The same while a call is judged; none when there are not enough steps left.
    pub(crate) fn compile_in(text: &str, steps: &Steps) -> Option<Result<Self, String>> {
        let measure = match Measure::of(text) {
            Ok(measure) => measure,
            Err(problem) => return Some(Err(problem)),
        };
        let is_left = steps.take(measure.size.saturating_mul(STEPS_TO_COMPILE));
        is_left.then(|| Self::compile(text))
    }

    /// Says whether the pattern is found somewhere in a text; none when there are not enough steps left to look.
    pub(crate) fn is_match(&self, text: &str, steps: &Steps) -> Option<bool> {
        let len = u64::try_from(text.len()).unwrap_or(u64::MAX);
        let cost = len.saturating_add(1).saturating_mul(self.measure.width);
        steps.take(cost).then(|| self.regex.is_match(text))
    }

    /// Returns the pattern as it was written.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }
}

/// Why a pattern is not compiled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PatternError {
    /// It is not one.
    Wrong(String),
    /// There is no room for it beside the others.
    TooMuch(&'static str),
}

impl std::fmt::Display for PatternError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PatternError::Wrong(message) => f.write_str(message),
            PatternError::TooMuch(message) => f.write_str(message),
        }
    }
}

fn unfit(message: &str) -> String {
    let last = message.lines().last().unwrap_or_default().trim();
    format!("the pattern does not compile: {last}")
}

/// What a pattern costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Measure {
    /// About how many places of the pattern a text can be at, and so how many steps each of its bytes takes.
    width: u64,
    /// About how much it is when compiled.
    size: u64,
}

impl Measure {
    fn of(text: &str) -> Result<Self, String> {
        if text.chars().count() > CHARS_MAX {
            return Err("a pattern has at most 1,000 characters".to_owned());
        }
        let hir = regex_syntax::parse(text).map_err(|error| unfit(&error.to_string()))?;
        Ok(Self::of_hir(&hir))
    }

    fn of_hir(hir: &Hir) -> Self {
        match hir.kind() {
            HirKind::Empty | HirKind::Look(_) => Self::ONE,
            HirKind::Literal(literal) => {
                let len = literal.0.len() as u64;
                Self {
                    width: len,
                    size: len,
                }
            }
            HirKind::Class(Class::Unicode(class)) if !class.is_ascii() => Self {
                // A character has up to four bytes.
                width: 4,
                size: 8 + class.ranges().len() as u64,
            },
            HirKind::Class(Class::Unicode(class)) => Self {
                width: 1,
                size: 1 + class.ranges().len() as u64,
            },
            HirKind::Class(Class::Bytes(class)) => Self {
                width: 1,
                size: 1 + class.ranges().len() as u64,
            },
            HirKind::Repetition(repetition) => {
                let least = u64::from(repetition.min);
                let times = match repetition.max {
                    Some(most) => u64::from(most).max(least),
                    None => least + 1,
                };
                let one = Self::of_hir(&repetition.sub).plus(Self::ONE);
                Self {
                    width: one.width.saturating_mul(times.max(1)),
                    size: one.size.saturating_mul(times.max(1)),
                }
            }
            HirKind::Capture(capture) => Self::of_hir(&capture.sub).plus(Self::ONE),
            HirKind::Concat(parts) | HirKind::Alternation(parts) => parts
                .iter()
                .fold(Self::ONE, |sum, part| sum.plus(Self::of_hir(part))),
        }
    }

    const ONE: Self = Self { width: 1, size: 1 };

    fn plus(self, other: Self) -> Self {
        Self {
            width: self.width.saturating_add(other.width),
            size: self.size.saturating_add(other.size),
        }
    }
}

/// What is left for patterns that are compiled together.
#[derive(Debug, Clone, Copy)]
pub struct PatternBudget {
    count: u64,
    size: u64,
    whole: Whole,
}

/// What patterns are compiled together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whole {
    Files,
    Schemas,
    Recorded,
}

impl PatternBudget {
    /// For the files of a session.
    pub(crate) fn of_files() -> Self {
        Self {
            count: 4_096,
            size: 512 << 10,
            whole: Whole::Files,
        }
    }

    /// For the schemas that are offered with one request.
    pub fn of_schemas() -> Self {
        Self {
            count: 512,
            size: 128 << 10,
            whole: Whole::Schemas,
        }
    }

    /// For what was recorded before there was a bound.
    pub fn recorded() -> Self {
        Self {
            count: u64::MAX,
            size: u64::MAX,
            whole: Whole::Recorded,
        }
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Returns the size of what was compiled since.
    pub(crate) fn used(self, after: Self) -> u64 {
        self.size.saturating_sub(after.size)
    }

    fn take(&mut self, measure: Measure) -> Result<(), PatternError> {
        let left = self.count.checked_sub(1);
        let left = left.zip(self.size.checked_sub(measure.size));
        if let Some((count, size)) = left {
            (self.count, self.size) = (count, size);
            return Ok(());
        }
        // Nothing fits any more: whether a later, smaller one is refused must not depend on the order.
        (self.count, self.size) = (0, 0);
        Err(PatternError::TooMuch(match self.whole {
            Whole::Files | Whole::Recorded => {
                "the patterns of the contracts are too many or too large together: at most 4,096, and \
                 524,288 units (a plain character is one, `\\w` some 800, repetitions count each time)"
            }
            Whole::Schemas => {
                "the patterns of the schemas of one request are too many or too large together: at most 512, \
                 and 131,072 units (a plain character is one, `\\w` some 800, repetitions count each time)"
            }
        }))
    }
}

/// The steps that patterns may take while one response is judged.
#[derive(Debug)]
pub struct Steps {
    /// None where there is no bound.
    left: Option<Cell<u64>>,
}

/// A fraction of a second.
const STEPS_MAX: u64 = 32 << 20;

impl Steps {
    /// As many as a judgement may take.
    pub fn bounded() -> Self {
        Self {
            left: Some(Cell::new(STEPS_MAX)),
        }
    }

    /// For what was recorded before there was a bound, and for what has no patterns.
    pub fn unbounded() -> Self {
        Self { left: None }
    }

    /// True once something could not be looked at: nothing is looked at after that.
    pub(crate) fn are_spent(&self) -> bool {
        self.left.as_ref().is_some_and(|left| left.get() == 0)
    }

    fn take(&self, cost: u64) -> bool {
        let Some(left) = &self.left else {
            return true;
        };
        // The last step is kept: none left means that something was refused.
        let after = left.get().checked_sub(cost).filter(|after| *after > 0);
        left.set(after.unwrap_or(0));
        after.is_some()
    }
}

/// The word for a check that does not hold because it would take too many steps.
pub(crate) const TOO_COSTLY: &str = "too_costly";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_costs_what_it_says_and_not_more() {
        let measure = |text: &str| Measure::of(text).unwrap();
        assert_eq!(measure("abc"), Measure { width: 3, size: 3 });
        assert!(measure("[ab]*a[ab]{480}c").width > 900);
        assert!(measure(r"\w{20}").size > 10_000);
        assert!(measure(r"\w{20}").width < 200);
        assert!(measure("(((a{9}){9}){9}){9}").width >= 9 * 9 * 9 * 9);
        assert!(Measure::of("(").is_err());
    }

    #[test]
    fn steps_run_out_and_stay_so() {
        let pattern = Pattern::compile("[ab]*a[ab]{480}c").unwrap();
        let steps = Steps::bounded();
        assert_eq!(pattern.is_match("ab", &steps), Some(false));
        assert!(!steps.are_spent());
        let long = "ab".repeat(500_000);
        assert_eq!(pattern.is_match(&long, &steps), None);
        assert!(steps.are_spent());
        assert_eq!(pattern.is_match("ab", &steps), None);
        assert_eq!(pattern.is_match("ab", &Steps::unbounded()), Some(false));
    }

    #[test]
    fn many_patterns_are_too_much_together() {
        let mut room = PatternBudget::of_schemas();
        let fits = |index: usize, room: &mut PatternBudget| {
            Pattern::compile_within(&format!(r"\w{{20}}z{index}"), room).is_ok()
        };
        assert!(fits(0, &mut room));
        assert!((1..20).any(|index| !fits(index, &mut room)));
        assert!(Pattern::compile_within("a", &mut room).is_err());
        let mut room = PatternBudget::recorded();
        assert!((0..20).all(|index| fits(index, &mut room)));
    }
}
