//! Data to stdout, talk to stderr, in a form that people can read.
//!
//! Owns colour, columns, progress and what happens when the reader of a pipe goes away. Words that come from a
//! server pass through [`printable`], so that no event can drive somebody's terminal.

mod event;
mod pager;
mod progress;

use std::borrow::Cow;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use serde::Serialize;

pub(crate) use event::{KIND_WIDTH, event_line, is_told_elsewhere};
pub(crate) use pager::Pager;
pub(crate) use progress::Progress;

/// Where data goes.
#[derive(Debug)]
pub(crate) struct Output {
    colour: bool,
    closed: bool,
}

/// What a piece of text is, for those who see colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Paint {
    /// A heading.
    Heading,
    /// Something that went well.
    Good,
    /// Something that did not.
    Bad,
    /// Something that waits for somebody.
    Waiting,
    /// Something to pass over.
    Quiet,
}

impl Output {
    /// Standard output, in colour where that is wanted.
    pub(crate) fn stdout() -> Self {
        Self {
            colour: is_coloured(io::stdout().is_terminal()),
            closed: false,
        }
    }

    /// Writes one line. A reader that went away is remembered, not an error: whoever pipes into `head` has what
    /// he wanted.
    pub(crate) fn line(&mut self, text: impl fmt::Display) -> anyhow::Result<()> {
        self.write(&format!("{text}\n"))
    }

    /// Writes text as it is.
    pub(crate) fn write(&mut self, text: &str) -> anyhow::Result<()> {
        if self.closed {
            return Ok(());
        }
        let mut stdout = io::stdout().lock();
        match stdout
            .write_all(text.as_bytes())
            .and_then(|()| stdout.flush())
        {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.closed = true;
                Ok(())
            }
            Err(error) => Err(crate::exit::Problem::new(
                format!("cannot write to stdout: {error}"),
                "check where the output goes",
            )
            .into()),
        }
    }

    /// Writes a value as indented JSON.
    pub(crate) fn json(&mut self, value: &impl Serialize) -> anyhow::Result<()> {
        self.line(serde_json::to_string_pretty(value)?)
    }

    /// Writes the ids of a list alone, one per line.
    pub(crate) fn ids<'a>(&mut self, ids: impl IntoIterator<Item = &'a str>) -> anyhow::Result<()> {
        for id in ids {
            self.line(shorten(id, 120))?;
        }
        Ok(())
    }

    /// True when text may be coloured.
    pub(crate) fn is_coloured(&self) -> bool {
        self.colour
    }

    /// True when nobody reads any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Returns text in a colour, or as it is.
    pub(crate) fn paint(&self, paint: Paint, text: &str) -> String {
        if !self.colour {
            return text.to_owned();
        }
        let code = match paint {
            Paint::Heading => "1",
            Paint::Good => "32",
            Paint::Bad => "31",
            Paint::Waiting => "33",
            Paint::Quiet => "2",
        };
        format!("\u{1b}[{code}m{text}\u{1b}[0m")
    }
}

/// Returns a number of things, in words: `1 run`, `2 runs`.
pub(crate) fn plural(count: impl TryInto<u64>, thing: &str) -> String {
    let count = count.try_into().unwrap_or(u64::MAX);
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {thing}{plural}")
}

/// When text is coloured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Colour {
    // No doc comments: help would show them at length, with every command.
    #[default]
    Auto,
    Always,
    Never,
}

/// What `--color` said: a [`Colour`] as a number.
static COLOUR: AtomicU8 = AtomicU8::new(Colour::Auto as u8);

/// Colours as somebody wants it from now on.
pub(crate) fn use_colour(colour: Colour) {
    COLOUR.store(colour as u8, Ordering::Relaxed);
}

/// True when a stream is written in colour.
pub(crate) fn is_coloured(is_terminal: bool) -> bool {
    let chosen = COLOUR.load(Ordering::Relaxed);
    if chosen == Colour::Auto as u8 {
        let is_refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        return is_terminal && !is_refused;
    }
    chosen == Colour::Always as u8
}

/// True when only what was asked for is printed.
static QUIET: AtomicBool = AtomicBool::new(false);

/// Leaves out what nobody asked for from now on.
pub(crate) fn set_quiet(quiet: bool) {
    QUIET.store(quiet, Ordering::Relaxed);
}

/// True when only what was asked for is printed.
pub(crate) fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// Says something to the person at the terminal, unless they want quiet. That nobody listens is no error.
pub(crate) fn inform(text: impl fmt::Display) {
    if !is_quiet() {
        warn(text);
    }
}

/// Says what must be heard, such as what went wrong, whoever wants quiet.
pub(crate) fn warn(text: impl fmt::Display) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Returns how many characters fit into a line: none when the output is not a terminal, where nothing is cut off.
pub(crate) fn width() -> Option<usize> {
    let size = console::Term::stdout().size_checked()?;
    io::stdout().is_terminal().then_some(usize::from(size.1))
}

/// Returns text in lines that fit the terminal, or are easy to read where there is none, each after an indent.
pub(crate) fn wrapped(text: &str, indent: &str) -> String {
    let room = width().map_or(PROSE_WIDTH, |width| width.clamp(40, PROSE_WIDTH));
    let mut lines = vec![indent.to_owned()];
    for word in text.split_whitespace() {
        let line = lines.last().map_or(0, |line| line.chars().count());
        let is_new = line <= indent.chars().count();
        if !is_new && line + 1 + word.chars().count() > room {
            lines.push(indent.to_owned());
        }
        if let Some(line) = lines.last_mut() {
            if line.len() > indent.len() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines.join("\n")
}

/// The longest line of prose.
const PROSE_WIDTH: usize = 100;

/// Replaces control characters.
pub(crate) fn printable(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '\n' | '\t' => c,
            c if is_steering(c) => '\u{fffd}',
            c => c,
        })
        .collect()
}

/// Returns text on one line, with escapes in the place of what is hidden: what a stranger wrote and is compared with files.
pub(crate) fn escaped(text: &str) -> Cow<'_, str> {
    // What breaks a line in some viewers, or is not seen in any.
    const UNSEEN: [char; 5] = ['\u{2028}', '\u{2029}', '\u{200e}', '\u{200f}', '\u{feff}'];
    let is_hidden = |c: char| is_steering(c) || UNSEEN.contains(&c);
    if !text.contains(is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match is_hidden(c) {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    Cow::Owned(shown)
}

/// True for what drives a terminal: C0 and C1, and the marks that reverse the direction of text, which can make a line lie.
fn is_steering(c: char) -> bool {
    c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Returns text on one line, cut to a width with `…`.
pub(crate) fn shorten(text: &str, width: usize) -> String {
    let flat = printable(text)
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    if flat.chars().count() <= width {
        return flat;
    }
    let mut cut: String = flat.chars().take(width.saturating_sub(1)).collect();
    cut.push('…');
    cut
}

/// Rows of cells, aligned; the last column is as wide as it likes.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Vec<(String, Option<Paint>)>>,
}

impl Table {
    /// A table with a heading.
    pub(crate) fn new(heading: &[&str]) -> Self {
        let cells = heading
            .iter()
            .map(|cell| ((*cell).to_owned(), Some(Paint::Quiet)));
        Self {
            rows: vec![cells.collect()],
        }
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = (String, Option<Paint>)>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Writes the table, each line after `indent`.
    pub(crate) fn print(&self, out: &mut Output, indent: &str) -> anyhow::Result<()> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells
                .map(|(text, _)| text.chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let mut line = indent.to_owned();
            for (at, ((text, paint), width)) in row.iter().zip(&widths).enumerate() {
                match paint {
                    Some(paint) => line.push_str(&out.paint(*paint, text)),
                    None => line.push_str(text),
                }
                if at + 1 < row.len() {
                    let gap = width.saturating_sub(text.chars().count()) + 2;
                    line.extend(std::iter::repeat_n(' ', gap));
                }
            }
            out.line(line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prose_is_broken_between_words() {
        let text = "word ".repeat(40);
        let lines = wrapped(&text, "   ");
        assert_eq!(lines.matches("word").count(), 40);
        assert!(lines.lines().count() > 1, "{lines}");
        for line in lines.lines() {
            assert!(
                line.starts_with("   word") && line.len() <= PROSE_WIDTH,
                "{line:?}"
            );
        }
    }

    #[test]
    fn words_of_others_cannot_drive_the_terminal() {
        assert_eq!(
            printable("a\u{1b}[2Jb\u{9b}c\u{202e}d\n"),
            "a\u{fffd}[2Jb\u{fffd}c\u{fffd}d\n"
        );
        assert_eq!(shorten("one\ntwo  three", 8), "one two…");
        assert_eq!(shorten("short", 8), "short");
    }

    #[test]
    fn nothing_that_is_escaped_breaks_its_line() {
        assert_eq!(escaped("tokens/a b é.yml"), "tokens/a b é.yml");
        assert_eq!(
            escaped("a\n  ok    token\u{1b}[2K\u{202e}\u{2028}x"),
            "a\\n  ok    token\\u{1b}[2K\\u{202e}\\u{2028}x"
        );
    }
}
