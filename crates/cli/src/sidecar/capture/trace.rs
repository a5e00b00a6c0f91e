//! The recording that a run leaves of itself: hashed after the run, with what its user knows about it.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use ::sidecar::{Mode, Profile, Trace};
use anyhow::Context as _;
use canon::Number;
use clap::builder::NonEmptyStringValueParser;

use super::super::files::WorkingTree;
use super::super::hashing::{artifact, below_root};

/// The recording of a run of a general kind.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Trace (other kinds)")]
pub(in super::super) struct TraceArgs {
    /// A recording of the run, which the run itself may write.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Format of the recording, for example jsonl.
    #[arg(long, value_name = "NAME", requires = "trace", value_parser = NonEmptyStringValueParser::new())]
    trace_format: Option<String>,
    /// Session that the recording is of.
    #[arg(long, value_name = "ID", requires = "trace", value_parser = NonEmptyStringValueParser::new())]
    trace_session: Option<String>,
    /// Events in the recording: a number, or `lines` to count its lines that are not blank.
    #[arg(long, value_name = "COUNT", requires = "trace", value_parser = Events::parse)]
    trace_events: Option<Events>,
}

#[derive(Debug, Clone, Copy)]
enum Events {
    Known(u64),
    Lines,
}

impl Events {
    fn parse(text: &str) -> Result<Self, String> {
        if text == "lines" {
            return Ok(Self::Lines);
        }
        let known = text.parse().map(Self::Known);
        known.map_err(|_| "expected a number or `lines`".to_owned())
    }
}

impl TraceArgs {
    /// Says whether no recording was named; the other flags need one.
    pub(super) fn is_empty(&self) -> bool {
        self.trace.is_none()
    }

    /// Returns where the recording is or will be, below the root.
    pub(super) fn path(&self, tree: &WorkingTree) -> anyhow::Result<Option<String>> {
        let path = self.trace.as_deref();
        path.map(|path| below_root(tree, path)).transpose()
    }

    /// Hashes the recording as the run left it.
    pub(super) fn trace(&self, tree: &WorkingTree) -> anyhow::Result<Option<Trace>> {
        let Some(path) = self.path(tree)? else {
            return Ok(None);
        };
        let hashed = artifact(tree, "trace", &path, Mode::RawBytes, Profile::Jcs1)?;
        let events = match self.trace_events {
            Some(Events::Known(events)) => Some(events),
            Some(Events::Lines) => Some(count_lines(&tree.root().join(&path))?),
            None => None,
        };
        Ok(Some(Trace {
            path: Some(path),
            hash: hashed.hash,
            events: events.map(Number::from),
            session_id: self.trace_session.clone(),
            format: self.trace_format.clone(),
        }))
    }
}

/// Counts the lines that are not blank, in pieces: a recording may be larger than memory.
fn count_lines(path: &Path) -> anyhow::Result<u64> {
    let doing = || format!("cannot count the lines of `{}`", path.display());
    let mut file = File::open(path).with_context(doing)?;
    let mut chunk = vec![0; 64 << 10];
    let (mut lines, mut filled) = (0, false);
    loop {
        let len = file.read(&mut chunk).with_context(doing)?;
        let bytes = chunk.get(..len).unwrap_or_default();
        if bytes.is_empty() {
            return Ok(lines + u64::from(filled));
        }
        for byte in bytes {
            if *byte == b'\n' {
                lines += u64::from(filled);
                filled = false;
            } else if !byte.is_ascii_whitespace() {
                filled = true;
            }
        }
    }
}
