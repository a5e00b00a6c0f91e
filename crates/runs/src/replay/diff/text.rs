//! A short difference of two texts: the lines between what they have in common at both ends.

use serde::Serialize;

/// The most lines of either text that are shown.
pub const TEXT_LINES_MAX: usize = 20;

/// The most characters of a line that are shown.
const LINE_CHARS_MAX: usize = 400;

/// Where two texts differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TextDiff {
    /// The number of the first line that differs, from 1.
    pub line: usize,
    /// The lines of the first text from there to where both are the same again.
    pub before: Vec<String>,
    /// The lines of the second text.
    pub after: Vec<String>,
    /// Lines that are not shown, of both.
    pub omitted: usize,
}

impl TextDiff {
    /// Compares two texts line by line; none when they are equal.
    pub fn between(before: &str, after: &str) -> Option<Self> {
        if before == after {
            return None;
        }
        let a: Vec<&str> = before.lines().collect();
        let b: Vec<&str> = after.lines().collect();
        let start = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
        let shorter = a.len().min(b.len());
        let end = a
            .iter()
            .rev()
            .zip(b.iter().rev())
            .take(shorter.saturating_sub(start))
            .take_while(|(a, b)| a == b)
            .count();
        let middle = |lines: &[&str]| -> Vec<String> {
            let count = lines.len().saturating_sub(start + end);
            let lines = lines.iter().skip(start).take(count);
            lines.map(|line| cut(line)).collect()
        };
        let (mut before, mut after) = (middle(&a), middle(&b));
        let all = before.len() + after.len();
        before.truncate(TEXT_LINES_MAX);
        after.truncate(TEXT_LINES_MAX);
        Some(Self {
            line: start + 1,
            omitted: all - before.len() - after.len(),
            before,
            after,
        })
    }
}

fn cut(line: &str) -> String {
    if line.chars().count() <= LINE_CHARS_MAX {
        return line.to_owned();
    }
    let mut cut: String = line.chars().take(LINE_CHARS_MAX).collect();
    cut.push('…');
    cut
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(before: &str, after: &str, expect: Option<(usize, &[&str], &[&str])>) {
        let found = TextDiff::between(before, after);
        let found = found
            .as_ref()
            .map(|diff| (diff.line, diff.before.as_slice(), diff.after.as_slice()));
        let expect = expect.map(|(line, before, after)| {
            let own = |lines: &[&str]| lines.iter().map(ToString::to_string).collect::<Vec<_>>();
            (line, own(before), own(after))
        });
        let expect = expect
            .as_ref()
            .map(|(line, before, after)| (*line, before.as_slice(), after.as_slice()));
        assert_eq!(found, expect);
    }

    #[test]
    fn only_the_lines_between_are_shown() {
        check("a", "a", None);
        check("a", "b", Some((1, &["a"], &["b"])));
        check("a\nb\nc", "a\nx\ny\nc", Some((2, &["b"], &["x", "y"])));
        check("a\nb", "a\nb\nc", Some((3, &[], &["c"])));
        check("a\na", "a", Some((2, &["a"], &[])));
        check("", "a", Some((1, &[], &["a"])));
        // Lines are equal, the end is not: still a difference.
        check("a\n", "a", Some((2, &[], &[])));
    }

    #[test]
    fn a_long_difference_is_cut_and_says_so() {
        let long = "x\n".repeat(100);
        let diff = TextDiff::between(&long, "y").unwrap();
        assert_eq!(diff.before.len(), TEXT_LINES_MAX);
        assert_eq!(diff.omitted, 80);
        let wide = TextDiff::between(&"w".repeat(1_000), "").unwrap();
        assert_eq!(
            wide.before.first().unwrap().chars().count(),
            LINE_CHARS_MAX + 1
        );
    }

    proptest! {
        /// What is not shown is the same in both.
        #[test]
        fn the_middle_is_all_that_differs(
            a in prop::collection::vec("[ab]{0,2}", 0..12),
            b in prop::collection::vec("[ab]{0,2}", 0..12),
        ) {
            let (before, after) = (a.join("\n"), b.join("\n"));
            let Some(diff) = TextDiff::between(&before, &after) else {
                prop_assert_eq!(before, after);
                return Ok(());
            };
            let lines: Vec<&str> = before.lines().collect();
            let start = diff.line - 1;
            let mut rebuilt: Vec<&str> = lines.iter().take(start).copied().collect();
            rebuilt.extend(diff.after.iter().map(String::as_str));
            rebuilt.extend(lines.iter().skip(start + diff.before.len()));
            prop_assert_eq!(rebuilt, after.lines().collect::<Vec<_>>());
        }
    }
}
