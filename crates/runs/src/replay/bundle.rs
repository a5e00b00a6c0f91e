//! The bundle of a finished Task: one file with everything that a replay or a comparison needs, and no server.
//!
//! Lines of canonical JSON, each ended by a line feed: a header that counts the rest, the events of the sealed log in
//! their stored bytes, the blobs that they name, the receipt. Reading is strict about the container. What it contains
//! is judged by the replay: a blob that is not what its digest says is then an unavailable dependency with its place,
//! the same answer that a server gives.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use canon::{Digest, Integers, Map, Value, append_string, jcs, sha256};
use domain::{Event, Status, TaskId};
use receipts::{Receipt, event_log_digest};
use serde_json::json;

use super::preflight::stated_log_digest;
use super::request::{OverrideValue, Spec};
use super::source::{ReadSourceError, Source, check_sealed, end_told_by, named_by, replay_in};

/// The first word of a bundle.
pub const BUNDLE_FORMAT: &str = "reprise-bundle-1";

/// The most bytes of a bundle.
pub const BUNDLE_BYTES_MAX: usize = 256 * 1024 * 1024;

const EVENT_OPENS: &[u8] = b"{\"event\":";

/// A finished Task as a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Bundle {
    task_id: TaskId,
    log_sha256: Digest,
    events: Vec<(Arc<[u8]>, Event)>,
    blobs: BTreeMap<Digest, Vec<u8>>,
    receipt: Option<Receipt>,
    /// The Receipt that there should be, and what is wrong with it. No file says so.
    lacking: Option<(String, &'static str)>,
    /// What the events hash to, when they were hashed already.
    found_sha256: Option<Digest>,
}

/// Bytes that are not a bundle.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a bundle: line {line}: {problem}")]
pub struct ReadBundleError {
    line: usize,
    problem: String,
}

/// Returns the digests of everything a log keeps beside itself, and of the request when it is a replay's.
///
/// # Errors
/// The bytes are no events.
pub fn bundle_names(events: &[Arc<[u8]>]) -> Result<Vec<Digest>, ReadSourceError> {
    let log = Log::of(events)?;
    let mut named = log.blobs_named();
    named.extend(log.request_named());
    Ok(named)
}

/// The stored events of a Task up to its end, with what they say: each is parsed once.
#[derive(Debug, Default)]
pub struct Log(Vec<(Arc<[u8]>, Event)>);

impl Log {
    fn of(events: &[Arc<[u8]>]) -> Result<Self, ReadSourceError> {
        let mut log = Self::default();
        log.extend(events.iter().cloned())?;
        Ok(log)
    }

    /// Adds the next events. What follows the end of the Task, such as the issue of its receipt, is left out.
    pub fn extend(
        &mut self,
        events: impl IntoIterator<Item = Arc<[u8]>>,
    ) -> Result<(), ReadSourceError> {
        for bytes in events {
            if self.is_ended() {
                break;
            }
            let event = Event::parse(&bytes).map_err(ReadSourceError::new)?;
            self.0.push((bytes, event));
        }
        Ok(())
    }

    /// True once the event is there that says how the Task ended.
    pub fn is_ended(&self) -> bool {
        let last = self.0.last();
        last.is_some_and(|(_, event)| end_told_by(event).is_some())
    }

    /// Returns the Task as it stands, for reading: it has not ended.
    ///
    /// # Errors
    /// These are not the events of one Task, from its beginning.
    pub fn into_unfinished(
        self,
        blobs: BTreeMap<Digest, Vec<u8>>,
        status: Status,
    ) -> Result<Source, ReadSourceError> {
        let log_sha256 = event_log_digest(self.0.iter().map(|(bytes, _)| &**bytes));
        let events = self.0.into_iter().map(|(_, event)| event).collect();
        Source::unfinished(events, log_sha256, blobs, status)
    }

    /// Returns its events in order.
    pub fn events(&self) -> impl Iterator<Item = &Event> {
        self.0.iter().map(|(_, event)| event)
    }

    /// Returns the digests of everything that the log keeps beside itself, each once.
    pub fn blobs_named(&self) -> Vec<Digest> {
        let mut named: Vec<Digest> = self
            .events()
            .flat_map(|event| named_by(event, event.kind().ok()))
            .map(|(_, digest)| digest)
            .collect();
        named.sort_unstable();
        named.dedup();
        named
    }

    /// Returns the digest of the request, when the log is a replay's.
    pub fn request_named(&self) -> Option<Digest> {
        self.events().next().and_then(request_named)
    }
}

/// Returns the digests of the Artifacts that a replay's request takes values from.
pub fn request_names(request: &[u8]) -> Vec<Digest> {
    let Some(spec) = read_request(request) else {
        return Vec::new();
    };
    let overrides = spec.overrides.into_values();
    overrides
        .filter_map(|given| match given.given {
            OverrideValue::Artifact { sha256, .. } => Some(sha256),
            OverrideValue::Inline(_) | OverrideValue::Secret => None,
        })
        .collect()
}

fn request_named(submitted: &Event) -> Option<Digest> {
    replay_in(submitted)?.request_sha256()
}

fn read_request(bytes: &[u8]) -> Option<Spec> {
    let mut stored: Value = serde_json::from_slice(bytes).ok()?;
    serde_json::from_value(stored.get_mut("request")?.take()).ok()
}

impl Bundle {
    /// Takes the stored events of a Task, what they name, and its receipt. What follows the end of the Task, such as the
    /// issue of its receipt, is left out.
    ///
    /// # Errors
    /// The log is not that of one finished Task, from its beginning.
    pub fn new(
        events: &[Arc<[u8]>],
        blobs: BTreeMap<Digest, Vec<u8>>,
        receipt: Option<Receipt>,
    ) -> Result<Self, ReadSourceError> {
        Self::of(Log::of(events)?, blobs, receipt)
    }

    /// Takes the log of a Task, what it keeps beside itself, and its receipt.
    ///
    /// # Errors
    /// The log is not that of one finished Task, from its beginning.
    pub fn of(
        Log(events): Log,
        blobs: BTreeMap<Digest, Vec<u8>>,
        receipt: Option<Receipt>,
    ) -> Result<Self, ReadSourceError> {
        let (task_id, _) = check_sealed(events.iter().map(|(_, event)| event))?;
        let log_sha256 = event_log_digest(events.iter().map(|(bytes, _)| &**bytes));
        Ok(Self {
            task_id,
            log_sha256,
            events,
            blobs,
            receipt,
            lacking: None,
            found_sha256: Some(log_sha256),
        })
    }

    /// Says that the Task has a Receipt which cannot be read, and why.
    #[must_use]
    pub fn with_missing_receipt(mut self, id: String, reason: &'static str) -> Self {
        self.lacking = Some((id, reason));
        self
    }

    /// Returns the Task.
    pub fn task_id(&self) -> &TaskId {
        &self.task_id
    }

    /// Returns its receipt.
    pub fn receipt(&self) -> Option<&Receipt> {
        self.receipt.as_ref()
    }

    /// Returns the events of its log: the stored bytes, and what they say.
    pub fn events(&self) -> impl ExactSizeIterator<Item = (&[u8], &Event)> {
        self.events.iter().map(|(bytes, event)| (&**bytes, event))
    }

    /// Returns what the log keeps beside itself, under the digests that it is said to have.
    pub fn blobs(&self) -> &BTreeMap<Digest, Vec<u8>> {
        &self.blobs
    }

    /// Returns the digest that its log is said to have.
    pub fn log_sha256(&self) -> Digest {
        self.log_sha256
    }

    /// Returns about how many bytes its file has.
    pub fn len(&self) -> usize {
        let events = self.events.iter().map(|(bytes, _)| bytes.len() + 16);
        let blobs = self.blobs.values().map(|bytes| bytes.len() / 3 * 4 + 128);
        let receipt = self.receipt.iter().map(|receipt| receipt.bytes().len());
        events.chain(blobs).chain(receipt).sum()
    }

    /// True for a bundle without events, which does not exist.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Returns the file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.len() + 512);
        let header = json!({
            "format": BUNDLE_FORMAT,
            "task_id": self.task_id,
            "log_sha256": self.log_sha256,
            "events": self.events.len(),
            "blobs": self.blobs.len(),
            "receipt": self.receipt.is_some(),
        });
        out.extend_from_slice(&jcs(&header));
        out.push(b'\n');
        for (bytes, _) in &self.events {
            out.extend_from_slice(EVENT_OPENS);
            out.extend_from_slice(bytes);
            out.extend_from_slice(b"}\n");
        }
        for (digest, bytes) in &self.blobs {
            out.extend_from_slice(b"{\"blob\":{\"base64\":");
            append_string(&mut out, &STANDARD.encode(bytes));
            out.extend_from_slice(b",\"sha256\":");
            append_string(&mut out, &digest.to_string());
            out.extend_from_slice(b"}}\n");
        }
        if let Some(receipt) = &self.receipt {
            out.extend_from_slice(b"{\"receipt\":");
            out.extend_from_slice(&receipt.bytes());
            out.extend_from_slice(b"}\n");
        }
        out
    }

    /// Reads a file.
    ///
    /// # Errors
    /// It is not one, by its first line that is wrong.
    pub fn read(bytes: &[u8]) -> Result<Self, ReadBundleError> {
        let mut lines = Lines { rest: bytes, at: 0 };
        if bytes.len() > BUNDLE_BYTES_MAX {
            return Err(lines.wrong(format!("more than {BUNDLE_BYTES_MAX} bytes")));
        }
        let header = Header::read(&mut lines)?;
        let mut events = Vec::new();
        for _ in 0..header.events {
            events.push(read_event(&mut lines)?);
        }
        let found_sha256 =
            event_log_digest(events.iter().map(|(bytes, _): &(Arc<[u8]>, _)| &**bytes));
        let mut blobs: BTreeMap<Digest, Vec<u8>> = BTreeMap::new();
        for _ in 0..header.blobs {
            let (digest, bytes) = read_blob(&mut lines)?;
            if blobs
                .last_key_value()
                .is_some_and(|(last, _)| *last >= digest)
            {
                return Err(lines.wrong("blobs come in the order of their digests, each once"));
            }
            blobs.insert(digest, bytes);
        }
        let receipt = match header.receipt {
            true => Some(read_receipt(&mut lines)?),
            false => None,
        };
        if !lines.rest.is_empty() {
            lines.at += 1;
            return Err(lines.wrong("more lines than the first one counts"));
        }
        // What a receipt commits to is what was sealed, and that is canonical. Everything else is looked at.
        if receipt.as_ref().and_then(stated_log_digest) != Some(found_sha256) {
            check_canonical(&events)?;
        }
        Ok(Self {
            task_id: header.task_id,
            log_sha256: header.log_sha256,
            events,
            blobs,
            receipt,
            lacking: None,
            found_sha256: Some(found_sha256),
        })
    }

    /// Returns the Task as a source of replays and comparisons.
    ///
    /// # Errors
    /// The log is not that of one finished Task, or the request of a replay is not there.
    pub fn into_source(self) -> Result<Source, ReadSourceError> {
        let found = self.found_sha256;
        let log_sha256 = found
            .unwrap_or_else(|| event_log_digest(self.events.iter().map(|(bytes, _)| &**bytes)));
        let inherited = self.request()?;
        let events = self.events.into_iter().map(|(_, event)| event).collect();
        let source = Source::of(events, log_sha256, self.blobs, self.receipt, inherited)?;
        if source.task_id != self.task_id {
            return Err(ReadSourceError::new(
                "it is the log of another task than the first line names",
            ));
        }
        let source = source.claiming(self.log_sha256);
        Ok(match self.lacking {
            Some((id, reason)) => source.with_missing_receipt(id, reason),
            None => source,
        })
    }

    /// Returns the request of a replay, with what it takes from Artifacts.
    fn request(&self) -> Result<Option<Spec>, ReadSourceError> {
        let digest = self
            .events
            .first()
            .and_then(|(_, event)| request_named(event));
        let Some(digest) = digest else {
            return Ok(None);
        };
        let blob = |digest: &Digest| {
            let bytes = self.blobs.get(digest);
            bytes.filter(|bytes| sha256(bytes) == *digest)
        };
        let spec = blob(&digest).and_then(|bytes| read_request(bytes));
        let mut spec = spec.ok_or_else(|| {
            ReadSourceError::new("it is a replay's, and the request of that replay is missing")
        })?;
        for given in spec.overrides.values_mut() {
            if let OverrideValue::Artifact { sha256, value, .. } = &mut given.given {
                *value = blob(sha256).and_then(|bytes| serde_json::from_slice(bytes).ok());
            }
        }
        Ok(Some(spec))
    }
}

struct Header {
    task_id: TaskId,
    log_sha256: Digest,
    events: u64,
    blobs: u64,
    receipt: bool,
}

impl Header {
    fn read(lines: &mut Lines<'_>) -> Result<Self, ReadBundleError> {
        let header = lines.object(None)?;
        let text = |name: &str| header.get(name).and_then(Value::as_str);
        if text("format") != Some(BUNDLE_FORMAT) {
            return Err(lines.wrong(format!("the format is not `{BUNDLE_FORMAT}`")));
        }
        let missing = |name: &str| lines.wrong(format!("`{name}` is missing or wrong"));
        let count = |name: &str| header.get(name).and_then(Value::as_u64);
        let read = Self {
            task_id: text("task_id")
                .and_then(|id| TaskId::parse(id).ok())
                .ok_or_else(|| missing("task_id"))?,
            log_sha256: text("log_sha256")
                .and_then(|digest| Digest::parse(digest).ok())
                .ok_or_else(|| missing("log_sha256"))?,
            events: count("events").ok_or_else(|| missing("events"))?,
            blobs: count("blobs").ok_or_else(|| missing("blobs"))?,
            receipt: header
                .get("receipt")
                .and_then(Value::as_bool)
                .ok_or_else(|| missing("receipt"))?,
        };
        match header.len() {
            6 => Ok(read),
            _ => Err(lines.wrong("the first line has a member that this format does not know")),
        }
    }
}

fn read_event(lines: &mut Lines<'_>) -> Result<(Arc<[u8]>, Event), ReadBundleError> {
    let line = lines.next()?;
    let stored = line
        .strip_prefix(EVENT_OPENS)
        .and_then(|rest| rest.strip_suffix(b"}"))
        .ok_or_else(|| lines.wrong("an event must come here"))?;
    let event = Event::parse(stored).map_err(|error| lines.wrong(error.to_string()))?;
    Ok((stored.into(), event))
}

fn check_canonical(events: &[(Arc<[u8]>, Event)]) -> Result<(), ReadBundleError> {
    for ((stored, event), line) in events.iter().zip(2..) {
        // What this program writes is canonical when it writes the same again; another one's is read the slow way.
        if event.to_bytes() == **stored {
            continue;
        }
        let wrong = |problem: String| ReadBundleError { line, problem };
        let value = canon::read(stored, Integers::Safe);
        let value = value.map_err(|error| wrong(error.to_string()))?;
        if jcs(&value) != **stored {
            return Err(wrong("the event is not in its canonical form".to_owned()));
        }
    }
    Ok(())
}

/// Reads the line of a blob as this program writes it, without the detour over a JSON value.
fn plain_blob(line: &[u8]) -> Option<(Digest, Vec<u8>)> {
    const DIGEST_LEN: usize = "sha256:".len() + 64;
    let rest = line.strip_prefix(b"{\"blob\":{\"base64\":\"")?;
    let rest = rest.strip_suffix(b"\"}}")?;
    let (rest, digest) = rest.split_at_checked(rest.len().checked_sub(DIGEST_LEN)?)?;
    let base64 = rest.strip_suffix(b"\",\"sha256\":\"")?;
    let digest = Digest::parse(str::from_utf8(digest).ok()?).ok()?;
    Some((digest, STANDARD.decode(base64).ok()?))
}

fn read_blob(lines: &mut Lines<'_>) -> Result<(Digest, Vec<u8>), ReadBundleError> {
    let before = (lines.rest, lines.at);
    if let Some(blob) = plain_blob(lines.next()?) {
        return Ok(blob);
    }
    (lines.rest, lines.at) = before;
    let blob = lines.object(Some("blob"))?;
    let text = |name: &str| blob.get(name).and_then(Value::as_str);
    let digest = text("sha256").and_then(|digest| Digest::parse(digest).ok());
    let bytes = text("base64").and_then(|bytes| STANDARD.decode(bytes).ok());
    match (digest, bytes, blob.len()) {
        (Some(digest), Some(bytes), 2) => Ok((digest, bytes)),
        _ => Err(lines.wrong("a blob has `sha256` and `base64` and nothing else")),
    }
}

fn read_receipt(lines: &mut Lines<'_>) -> Result<Receipt, ReadBundleError> {
    let receipt = lines.object(Some("receipt"))?;
    Receipt::from_map(receipt).map_err(|error| lines.wrong(error.to_string()))
}

/// The lines of a file, and which one is read.
struct Lines<'a> {
    rest: &'a [u8],
    at: usize,
}

impl<'a> Lines<'a> {
    fn wrong(&self, problem: impl Into<String>) -> ReadBundleError {
        ReadBundleError {
            line: self.at.max(1),
            problem: problem.into(),
        }
    }

    fn next(&mut self) -> Result<&'a [u8], ReadBundleError> {
        self.at += 1;
        let end = memchr::memchr(b'\n', self.rest);
        let split = end.and_then(|end| Some((self.rest.get(..end)?, self.rest.get(end + 1..)?)));
        let Some((line, rest)) = split else {
            return Err(self.wrong("the file ends here, too early"));
        };
        self.rest = rest;
        Ok(line)
    }

    /// Reads a line that holds one object in its canonical form, or one object under a name.
    fn object(&mut self, name: Option<&str>) -> Result<Map<String, Value>, ReadBundleError> {
        let line = self.next()?;
        let value =
            canon::read(line, Integers::Safe).map_err(|error| self.wrong(error.to_string()))?;
        if jcs(&value) != line {
            return Err(self.wrong("the line is not in its canonical form"));
        }
        match (value, name) {
            (Value::Object(object), None) => Ok(object),
            (Value::Object(mut outer), Some(name)) if outer.len() == 1 => {
                match outer.remove(name) {
                    Some(Value::Object(object)) => Ok(object),
                    _ => Err(self.wrong(format!("a {name} must come here"))),
                }
            }
            (_, name) => Err(self.wrong(format!("a {} must come here", name.unwrap_or("header")))),
        }
    }
}

#[cfg(test)]
mod tests;
