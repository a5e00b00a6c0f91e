//! Putting a replay block into a report and taking it out again.
//!
//! A report's own hash is taken without its block, so taking out is the exact inverse of putting in.
//! Knows markdown only as far as lines, fences, front matter and the first heading.

use crate::block::Sidecar;
use crate::markdown::{INFO_STRING, shell_block, yaml_block};

/// Why a report's block cannot be handled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReportError {
    /// More than one replay block.
    #[error("the report has {0} replay blocks, at most one is allowed")]
    SeveralBlocks(usize),
    /// A replay block without closing fence.
    #[error("the replay block at line {0} has no closing fence")]
    Unclosed(usize),
    /// Not text.
    #[error("the report is not UTF-8")]
    NotText,
}

/// Returns the report with the sidecar's block after its heading; an earlier block is replaced.
///
/// # Errors
/// The report is not text, or its present block is unclosed or not the only one.
pub fn render(report: &[u8], sidecar: &Sidecar) -> Result<Vec<u8>, ReportError> {
    let stripped = strip(report)?;
    let text = std::str::from_utf8(&stripped).map_err(|_| ReportError::NotText)?;
    let newline = if text.contains("\r\n") { "\r\n" } else { "\n" };
    let chunk = format!("{}\n\n{}", yaml_block(sidecar), shell_block(sidecar));
    let chunk = if newline == "\n" {
        chunk
    } else {
        chunk.replace('\n', newline)
    };
    let (before, after, chunk) = match heading_end(text) {
        Some(at) => {
            let (before, after) = text.split_at_checked(at).unwrap_or((text, ""));
            (before, after, format!("{newline}{newline}{chunk}"))
        }
        None => {
            let start = text.len() - text.trim_start_matches('\u{feff}').len();
            let (before, after) = text.split_at_checked(start).unwrap_or(("", text));
            (before, after, format!("{chunk}{newline}{newline}"))
        }
    };
    Ok([before, &chunk, after].concat().into_bytes())
}

/// What a report says of its run, compared with what its sidecar renders to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockState {
    /// It has no replay block.
    Absent,
    /// Both blocks are what the sidecar renders to.
    Same,
    /// The YAML block says something else.
    YamlDiffers,
    /// The command block is not there, or says something else.
    ShellDiffers,
}

/// Compares the blocks of a report with what a sidecar renders to. Line ends do not count: the report has its own.
///
/// # Errors
/// The report is not text, or its block is unclosed or not the only one.
pub fn compare_block(report: &[u8], sidecar: &Sidecar) -> Result<BlockState, ReportError> {
    let text = std::str::from_utf8(report).map_err(|_| ReportError::NotText)?;
    let Some(found) = find_block(text)? else {
        return Ok(BlockState::Absent);
    };
    let is = |range: std::ops::Range<usize>, rendered: String| {
        let found = text.get(range).unwrap_or_default();
        let lines = |text: &str| text.replace("\r\n", "\n");
        lines(found) == lines(&rendered)
    };
    if !is(found.yaml, yaml_block(sidecar)) {
        return Ok(BlockState::YamlDiffers);
    }
    let shell = found
        .shell
        .is_some_and(|shell| is(shell, shell_block(sidecar)));
    Ok(match shell {
        true => BlockState::Same,
        false => BlockState::ShellDiffers,
    })
}

/// Where the blocks of a report are.
struct Found {
    yaml: std::ops::Range<usize>,
    shell: Option<std::ops::Range<usize>>,
}

fn find_block(text: &str) -> Result<Option<Found>, ReportError> {
    let fences = fences(text);
    let is_block = |fence: &&Fence<'_>| fence.info == INFO_STRING;
    let count = fences.iter().filter(is_block).count();
    if count > 1 {
        return Err(ReportError::SeveralBlocks(count));
    }
    let mut rest = fences.iter().skip_while(|fence| !is_block(fence));
    let Some(block) = rest.next() else {
        return Ok(None);
    };
    let end = block.end.ok_or(ReportError::Unclosed(block.line))?;
    let shell = match rest.next() {
        Some(command)
            if command.info == "sh"
                && text
                    .get(end..command.start)
                    .is_some_and(|gap| gap.trim().is_empty()) =>
        {
            let end = command.end.ok_or(ReportError::Unclosed(command.line))?;
            Some(command.start..end)
        }
        _ => None,
    };
    let yaml = block.start..end;
    Ok(Some(Found { yaml, shell }))
}

/// Returns the report without its replay block and the command block that follows it.
///
/// # Errors
/// The report is not text, or its block is unclosed or not the only one.
pub fn strip(report: &[u8]) -> Result<Vec<u8>, ReportError> {
    let text = std::str::from_utf8(report).map_err(|_| ReportError::NotText)?;
    let Some(Found { yaml, shell }) = find_block(text)? else {
        return Ok(report.to_vec());
    };
    let end = shell.map_or(yaml.end, |shell| shell.end);
    let (mut before, mut after) = (
        text.get(..yaml.start).unwrap_or_default(),
        text.get(end..).unwrap_or_default(),
    );
    if before.trim_start_matches('\u{feff}').is_empty() {
        after = without_first_newline(without_first_newline(after));
    } else {
        before = without_last_newline(without_last_newline(before));
    }
    Ok([before, after].concat().into_bytes())
}

struct Fence<'a> {
    start: usize,
    /// End of the closing fence, without its line end.
    end: Option<usize>,
    info: &'a str,
    line: usize,
}

fn fences(text: &str) -> Vec<Fence<'_>> {
    let mut fences: Vec<Fence<'_>> = Vec::new();
    let mut open: Option<&str> = None;
    let front = front_matter(text).map_or(0, |(count, _)| count);
    for (index, (start, line)) in lines(text).enumerate().skip(front) {
        let run = fence_run(line);
        match (open, run) {
            (None, Some((fence, info))) => {
                open = Some(fence);
                fences.push(Fence {
                    start,
                    end: None,
                    info,
                    line: index + 1,
                });
            }
            (Some(opening), Some((fence, ""))) if fence.starts_with(opening) => {
                open = None;
                if let Some(last) = fences.last_mut() {
                    last.end = Some(start + line.trim_end().len());
                }
            }
            _ => {}
        }
    }
    fences
}

/// Splits a line into its run of fence characters and the info string.
fn fence_run(line: &str) -> Option<(&str, &str)> {
    let line = line.trim_start_matches('\u{feff}').trim_end();
    let first = line.chars().next().filter(|char| "`~".contains(*char))?;
    let rest = line.trim_start_matches(first);
    let run = line.get(..line.len() - rest.len())?;
    let info = rest.trim();
    (run.len() >= 3 && !(first == '`' && info.contains('`'))).then_some((run, info))
}

/// Yields each line with its offset; the line end is part of the line, a leading mark is not.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut at = 0;
    text.split_inclusive('\n').map(move |line| {
        let bare = line.trim_start_matches('\u{feff}');
        let start = if at == 0 { line.len() - bare.len() } else { at };
        let line = if at == 0 { bare } else { line };
        at = start + line.len();
        (start, line)
    })
}

/// Returns how many lines the front matter has, and where its text ends; none when there is none, or when it has no end.
fn front_matter(text: &str) -> Option<(usize, usize)> {
    let mut lines = lines(text).enumerate();
    lines.next().filter(|(_, (_, line))| is_rule(line))?;
    let (index, (start, line)) = lines.find(|(_, (_, line))| is_rule(line))?;
    Some((index + 1, start + line.trim_end_matches(['\n', '\r']).len()))
}

fn is_rule(line: &str) -> bool {
    line.trim_end() == "---"
}

/// Returns where the text of the first heading ends; of the front matter when there is no heading.
fn heading_end(text: &str) -> Option<usize> {
    let end = |start: usize, line: &str| start + line.trim_end_matches(['\n', '\r']).len();
    let front = front_matter(text);
    if front.is_none() && lines(text).next().is_some_and(|(_, line)| is_rule(line)) {
        // Front matter without end is all there is.
        return None;
    }
    let mut open: Option<&str> = None;
    for (start, line) in lines(text).skip(front.map_or(0, |(count, _)| count)) {
        let bare = line.trim_end();
        match (open, fence_run(line)) {
            (None, Some((fence, _))) => open = Some(fence),
            (Some(opening), Some((fence, ""))) if fence.starts_with(opening) => open = None,
            (None, None) => {
                let level = bare.len() - bare.trim_start_matches('#').len();
                if (1..=6).contains(&level) && bare.get(level..)?.starts_with(' ') {
                    return Some(end(start, line));
                }
            }
            _ => {}
        }
    }
    front.map(|(_, end)| end)
}

fn without_first_newline(text: &str) -> &str {
    text.strip_prefix("\r\n")
        .or_else(|| text.strip_prefix('\n'))
        .unwrap_or(text)
}

fn without_last_newline(text: &str) -> &str {
    text.strip_suffix("\r\n")
        .or_else(|| text.strip_suffix('\n'))
        .unwrap_or(text)
}
