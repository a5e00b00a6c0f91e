//! Recorded runs: bundles, folders of bundles, exports and data directories.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use canon::Digest;
use domain::Event;
use runs::replay::{Bundle, Log, Source};
use serde_json::Value;

use super::files::read_text;
use crate::exit::OrHint;

/// What was found and not read.
#[derive(Debug, Default)]
pub(super) struct SkippedRuns {
    /// Replays: they repeat runs that are read themselves.
    pub(super) replays: usize,
    /// What cannot be read, and why.
    pub(super) unreadable: Vec<String>,
}

/// Reads whatever lies at a path, one run after the other.
///
/// # Errors
/// The path cannot be read at all.
pub(super) fn read(
    path: &Path,
    left_out: &mut SkippedRuns,
    each: &mut dyn FnMut(&Source),
) -> anyhow::Result<()> {
    let mut take = |source: &Source, left_out: &mut SkippedRuns| {
        if let Some(reason) = source.damage() {
            let name = format!("{} (damaged: {reason})", source.task_id);
            left_out.unreadable.push(name);
            return;
        }
        match source.replays() {
            Some(_) => left_out.replays += 1,
            None => each(source),
        }
    };
    if path.join("events.jsonl").is_file() {
        return read_export(path, left_out, &mut take);
    }
    if path.join("format").is_file() {
        let aside = crate::command::log::consistent_copy(path)?;
        let out = aside.path().join("export");
        return read_export(&out, left_out, &mut take);
    }
    if path.is_dir() {
        let hint = "name a folder that can be read";
        let shown = format!("`{}`", path.display());
        let mut files: Vec<PathBuf> = Vec::new();
        for entry in fs::read_dir(path).or_hint(&shown, hint)? {
            files.push(entry.or_hint(&shown, hint)?.path());
        }
        files.sort();
        for file in &files {
            if file.is_dir() {
                let inner = format!("{} (a folder in a folder: name it too)", file.display());
                left_out.unreadable.push(inner);
                continue;
            }
            match crate::command::replay::read_source(file) {
                Ok(source) => take(&source, left_out),
                Err(error) => left_out
                    .unreadable
                    .push(format!("{} ({error:#})", file.display())),
            }
        }
        return Ok(());
    }
    let source = crate::command::replay::read_source(path)?;
    take(&source, left_out);
    Ok(())
}

fn read_export(
    folder: &Path,
    left_out: &mut SkippedRuns,
    take: &mut dyn FnMut(&Source, &mut SkippedRuns),
) -> anyhow::Result<()> {
    let file = folder.join("events.jsonl");
    let events = read_text(&file)?;
    if !is_as_exported(folder, &events) {
        let why = "damaged, or changed: it is not what its manifest says";
        left_out
            .unreadable
            .push(format!("{} ({why})", file.display()));
        return Ok(());
    }
    let mut tasks: BTreeMap<String, Vec<Arc<[u8]>>> = BTreeMap::new();
    let mut replays = BTreeSet::new();
    let mut damaged = 0;
    for line in events.lines() {
        let event = Event::parse(line.as_bytes()).ok();
        damaged += usize::from(event.is_none());
        if let Some(mark) = event.as_ref().and_then(|event| event.replay.as_ref()) {
            replays.insert(mark.replay_task_id.to_string());
        }
        if let Some(task) = event.and_then(|event| event.task_id) {
            tasks
                .entry(task.to_string())
                .or_default()
                .push(line.as_bytes().into());
        }
    }
    left_out.replays += replays.len();
    for (task, lines) in tasks {
        if replays.contains(&task) {
            continue;
        }
        let mut log = Log::default();
        let why = match log.extend(lines) {
            Err(error) => Some(format!("damaged: {error}")),
            Ok(()) if log.is_ended() => None,
            Ok(()) if damaged == 0 => Some("not ended yet".to_owned()),
            // The end may be what is lost.
            Ok(()) => Some(format!(
                "without an end; {damaged} lines of the export are damaged"
            )),
        };
        if let Some(why) = why {
            left_out.unreadable.push(format!("{task} ({why})"));
            continue;
        }
        let blobs = log.blobs_named().into_iter();
        let blobs = blobs.filter_map(|digest| Some((digest, read_blob(folder, digest)?)));
        let source = Bundle::of(log, blobs.collect(), None).and_then(Bundle::into_source);
        match source {
            Ok(source) => take(&source, left_out),
            Err(error) => left_out.unreadable.push(format!("{task} ({error})")),
        }
    }
    Ok(())
}

fn is_as_exported(folder: &Path, events: &str) -> bool {
    let manifest = fs::read(folder.join("manifest.json")).unwrap_or_default();
    let manifest: Value = serde_json::from_slice(&manifest).unwrap_or_default();
    let stated = manifest.pointer("/files/events.jsonl/sha256");
    let stated = stated.and_then(Value::as_str);
    stated == Some(canon::sha256(events.as_bytes()).to_string().as_str())
}

fn read_blob(folder: &Path, digest: Digest) -> Option<Vec<u8>> {
    let name = digest.to_string();
    let hex = name.rsplit(':').next().unwrap_or(&name);
    let bytes = fs::read(folder.join("blobs").join(hex)).ok()?;
    // What is not what its name says is not there.
    (canon::sha256(&bytes) == digest).then_some(bytes)
}
