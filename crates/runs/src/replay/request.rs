//! What a replay is asked for: read, checked against its source, and made plain.

use std::collections::{BTreeMap, BTreeSet};

use canon::{Digest, Map, Value, jcs, sha256};
use domain::{BLOB_MEMBER, INLINE_BYTES_MAX, Visibility, pruned_digest};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::keys;
use super::source::{LIFECYCLE_KEYS, Source};

/// How a replay treats its record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Nothing but what was recorded.
    Exact,
    /// What was recorded, with named answers replaced.
    WithOverrides,
    /// From a recorded boundary on.
    FromCheckpoint,
}

impl Mode {
    /// Returns the contract's word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Mode::Exact => "exact",
            Mode::WithOverrides => "with_overrides",
            Mode::FromCheckpoint => "from_checkpoint",
        }
    }
}

/// What may be read or performed live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refresh {
    /// What the Session remembers.
    Memory,
    /// Handles of secrets.
    Secrets,
    /// Facts about the host, randomness included.
    Host,
    /// The clock.
    Time,
    /// Model calls, once the run has left its record.
    Model,
    /// Tools, once the run has left its record.
    Tools,
}

impl Refresh {
    fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "memory" => Refresh::Memory,
            "secrets" => Refresh::Secrets,
            "host" => Refresh::Host,
            "time" => Refresh::Time,
            "model" => Refresh::Model,
            "tools" => Refresh::Tools,
            _ => return None,
        })
    }
}

/// The value of an override.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OverrideValue {
    /// In the request.
    Inline(Value),
    /// In an Artifact.
    Artifact {
        /// Its id.
        artifact_id: String,
        /// The digest of its bytes.
        sha256: Digest,
        /// What it holds, once it is read.
        #[serde(skip)]
        value: Option<Value>,
    },
    /// A secret: kept in memory while the replay runs, and nowhere else.
    Secret,
}

/// An Artifact that a request takes a value from, as its caller may read it.
#[derive(Debug, Clone, PartialEq)]
pub struct ReadArtifact {
    /// Who may see it.
    pub visibility: Visibility,
    /// What it holds.
    pub bytes: Vec<u8>,
}

/// One answer to be replaced.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Override {
    /// The contract's word for what is replaced.
    pub kind: String,
    /// What to put there.
    pub given: OverrideValue,
    /// Who may see it in events.
    pub visibility: Visibility,
    /// The event it stands for, when that is one of the source's (always, in a conformance run).
    pub event_id: Option<String>,
    /// For a checkpoint: the member to replace, as a JSON Pointer.
    pub target: Option<String>,
    /// Why.
    pub reason: Option<String>,
    /// A digest that only holds a place (C-23): written as it is in a conformance run.
    pub placeholder: Option<Digest>,
}

impl Override {
    /// Returns the value, unless it is a secret or an Artifact that was not read.
    pub fn inline(&self) -> Option<&Value> {
        match &self.given {
            OverrideValue::Inline(value) => Some(value),
            OverrideValue::Artifact { value, .. } => value.as_ref(),
            OverrideValue::Secret => None,
        }
    }

    /// Returns the digest of the value; none for a secret.
    pub fn digest(&self) -> Option<Digest> {
        match &self.given {
            OverrideValue::Inline(value) => Some(sha256(&jcs(value))),
            OverrideValue::Artifact { sha256, .. } => Some(*sha256),
            OverrideValue::Secret => None,
        }
    }
}

/// A checked request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    /// How the record is treated.
    pub mode: Mode,
    /// Answers to replace, by effect key.
    pub overrides: BTreeMap<String, Override>,
    /// The checkpoint to start from.
    pub checkpoint: Option<String>,
    /// What may be read live.
    pub refresh: BTreeSet<Refresh>,
    /// Why, for overrides that do not say it themselves.
    pub reason: Option<String>,
    /// True when an effect whose request has changed must not be answered from the record.
    pub stale_input_fails: bool,
    /// Overrides whose `event_id` names no event of the source.
    pub event_id_unmatched: Vec<String>,
    /// True for a conformance run.
    pub conformance: bool,
    /// The effect from which on everything that `refresh` names is live, whatever is on record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refresh_from: Option<String>,
    /// True when recorded errors are no records: what failed is asked again, and nothing else is.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub retry: bool,
}

impl Spec {
    /// An exact replay.
    pub fn exact() -> Self {
        Self {
            mode: Mode::Exact,
            overrides: BTreeMap::new(),
            checkpoint: None,
            refresh: BTreeSet::new(),
            reason: None,
            stale_input_fails: false,
            event_id_unmatched: Vec::new(),
            conformance: false,
            refresh_from: None,
            retry: false,
        }
    }
}

/// A request that cannot be accepted.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RequestError {
    /// A member is wrong.
    #[error("{message}")]
    Invalid {
        /// Which.
        param: String,
        /// Why.
        message: String,
        /// More facts.
        details: Map<String, Value>,
    },
    /// Something it names does not exist.
    #[error("no such {object}")]
    NotFound {
        /// What.
        object: &'static str,
        /// The member that names it.
        param: String,
    },
    /// A stated digest is not that of the value.
    #[error("the digest of `{key}` is not that of its value")]
    DigestMismatch {
        /// The override.
        key: String,
        /// The digest of the value; none for a secret.
        expected: Option<Digest>,
    },
    /// It asks for more than a replay may do.
    #[error("{message}")]
    Forbidden {
        /// The member that asks for it.
        param: String,
        /// Why not.
        message: String,
    },
    /// A value is too large to be sent inline.
    #[error("`{param}` is larger than {INLINE_BYTES_MAX} bytes: send it as an artifact")]
    TooLarge {
        /// Which.
        param: String,
    },
}

fn invalid(param: impl Into<String>, message: impl Into<String>) -> RequestError {
    RequestError::Invalid {
        param: param.into(),
        message: message.into(),
        details: Map::new(),
    }
}

/// Returns the Artifacts that a request takes values from.
pub fn artifacts_named(body: &Value) -> Vec<String> {
    let overrides = body.get("override").and_then(Value::as_object);
    overrides
        .into_iter()
        .flat_map(Map::values)
        .filter_map(|given| given.get("artifact_id")?.as_str())
        .map(str::to_owned)
        .collect()
}

/// Reads a request and checks it against its source. Returns the secrets apart: they must not be kept.
///
/// # Errors
/// The first thing that is wrong.
pub fn read(
    body: &Value,
    source: &Source,
    artifacts: &BTreeMap<String, ReadArtifact>,
    conformance: bool,
) -> Result<(Spec, BTreeMap<String, Value>), RequestError> {
    read_with(body, Some(source), artifacts, conformance)
}

/// Returns the override keys of a request that must be checked against its source; none when nothing must.
pub fn keys_to_check(body: &Value) -> Option<Vec<&str>> {
    let member = |name: &str| body.get(name).filter(|value| !value.is_null());
    let is_asking = [
        "override",
        "refresh",
        "refresh_from",
        "retry",
        "checkpoint_id",
        "checkpoint_event_id",
    ]
    .into_iter()
    .any(|name| member(name).is_some());
    let keys = member("override").and_then(Value::as_object);
    let keys = keys.into_iter().flat_map(|given| given.keys());
    is_asking.then(|| keys.map(String::as_str).collect())
}

/// Reads a request, without its source if it asks nothing of it (see [`keys_to_check`]).
pub fn read_with(
    body: &Value,
    source: Option<&Source>,
    artifacts: &BTreeMap<String, ReadArtifact>,
    conformance: bool,
) -> Result<(Spec, BTreeMap<String, Value>), RequestError> {
    let Value::Object(body) = body else {
        return Err(invalid("", "the body must be an object"));
    };
    if let Some(member) = ["module", "module_ref"]
        .into_iter()
        .find(|name| body.contains_key(*name))
    {
        return Err(invalid(
            member,
            "a replay runs the workflow of its source; modules are not executed here",
        ));
    }
    let mode = match body.get("mode") {
        None | Some(Value::Null) => Mode::Exact,
        Some(mode) => serde_json::from_value(mode.clone()).map_err(|_| {
            invalid(
                "mode",
                "must be one of exact, with_overrides, from_checkpoint",
            )
        })?,
    };
    let mut spec = Spec {
        mode,
        reason: text(body, "reason", "reason")?,
        conformance,
        ..Spec::exact()
    };
    let mut secrets = BTreeMap::new();
    let given = match body.get("override") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(given)) => given.clone(),
        Some(_) => return Err(invalid("override", "must be an object")),
    };
    if mode == Mode::Exact && !given.is_empty() {
        return Err(invalid(
            "override",
            "an exact replay takes no overrides: use the mode with_overrides",
        ));
    }
    spec.checkpoint = checkpoint(body, source, mode)?;
    spec.refresh = refresh(body, mode)?;
    spec.refresh_from = refresh_from(body, source, &spec.refresh)?;
    spec.retry = match body.get("retry") {
        None | Some(Value::Null | Value::Bool(false)) => false,
        Some(Value::Bool(true)) if spec.refresh.contains(&Refresh::Model) => true,
        Some(_) => return Err(invalid("retry", "must be true, and `refresh` name model")),
    };
    if body
        .get("metadata")
        .is_some_and(|metadata| !metadata.is_object() && !metadata.is_null())
    {
        return Err(invalid("metadata", "must be an object"));
    }
    spec.stale_input_fails = match body
        .get("metadata")
        .and_then(|metadata| metadata.get("replay_policy"))
        .and_then(|policy| policy.get("on_stale_input"))
    {
        None => false,
        Some(Value::String(word)) if word == "fail" => true,
        Some(Value::String(word)) if word == "use" => false,
        Some(_) => {
            return Err(invalid(
                "metadata.replay_policy.on_stale_input",
                "must be fail or use",
            ));
        }
    };
    for (key, given) in &given {
        let source =
            source.ok_or_else(|| invalid("override", "nothing is known of what it replaces"))?;
        let (key, read, secret) = read_override(key, given, source, artifacts, conformance)?;
        if read.event_id.is_none() && given.get("event_id").is_some_and(Value::is_string) {
            spec.event_id_unmatched.push(key.clone());
        }
        if let Some(secret) = secret {
            secrets.insert(key.clone(), secret);
        }
        if spec.overrides.insert(key.clone(), read).is_some() {
            return Err(invalid(
                format!("override.{key}"),
                "another override names the same dependency by its call id",
            ));
        }
    }
    check_authority(&spec, source)?;
    Ok((spec, secrets))
}

/// A run that goes on live does what its persona and the people who approved let it do, and nothing that a request
/// lets it do. Whoever may replay may not therefore lift a limit, grant a tool or approve in another's name.
fn check_authority(spec: &Spec, source: Option<&Source>) -> Result<(), RequestError> {
    let lets_tools_run = spec.refresh.contains(&Refresh::Tools);
    if !lets_tools_run && !spec.refresh.contains(&Refresh::Model) {
        return Ok(());
    }
    if source.is_some_and(Source::is_replay) {
        return Err(RequestError::Forbidden {
            param: "refresh".to_owned(),
            message:
                "only a recorded run can continue live, and this one is a replay: replay its source"
                    .to_owned(),
        });
    }
    for (key, given) in &spec.overrides {
        let what = match &*given.kind {
            "event_payload" => "an event",
            // What is said to the model is no authority; tier, budgets and all else in the state is.
            "checkpoint_value" if given.target.as_deref() != Some("/system_prompt") => {
                "the restored state"
            }
            _ if !lets_tools_run => continue,
            "secret_value" => "a secret",
            _ if key.starts_with("host:tools:") => "the list of tools",
            _ if key.starts_with("host:approval:") => "an approval",
            _ => continue,
        };
        return Err(RequestError::Forbidden {
            param: format!("override.{key}"),
            message: format!("{what} cannot be replaced in a replay that continues live"),
        });
    }
    Ok(())
}

fn text(map: &Map<String, Value>, name: &str, param: &str) -> Result<Option<String>, RequestError> {
    match map.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(invalid(param, "must be a string")),
    }
}

fn checkpoint(
    body: &Map<String, Value>,
    source: Option<&Source>,
    mode: Mode,
) -> Result<Option<String>, RequestError> {
    let id = text(body, "checkpoint_id", "checkpoint_id")?;
    let event = text(body, "checkpoint_event_id", "checkpoint_event_id")?;
    if mode != Mode::FromCheckpoint {
        let param = if id.is_some() {
            "checkpoint_id"
        } else {
            "checkpoint_event_id"
        };
        return match (&id, &event) {
            (None, None) => Ok(None),
            _ => Err(invalid(
                param,
                "only the mode from_checkpoint takes a checkpoint",
            )),
        };
    }
    let by_event = match &event {
        None => None,
        Some(event) => Some(checkpoint_at(source, event)?),
    };
    match (id, by_event) {
        (None, None) => Err(invalid(
            "checkpoint_id",
            "from_checkpoint needs `checkpoint_id` or `checkpoint_event_id`",
        )),
        (Some(id), by_event) => {
            if source.and_then(|source| source.checkpoint(&id)).is_none() {
                return Err(RequestError::NotFound {
                    object: "checkpoint",
                    param: "checkpoint_id".to_owned(),
                });
            }
            match by_event {
                Some(other) if other != id => Err(invalid(
                    "checkpoint_event_id",
                    format!("names `{other}`, and `checkpoint_id` names `{id}`"),
                )),
                _ => Ok(Some(id)),
            }
        }
        (None, Some(by_event)) => Ok(Some(by_event)),
    }
}

/// Finds the checkpoint that an event names: its own, or the one that follows it at once.
fn checkpoint_at(source: Option<&Source>, event_id: &str) -> Result<String, RequestError> {
    let found = source.and_then(|source| Some((source, source.index_of(event_id)?)));
    let Some((source, index)) = found else {
        return Err(RequestError::NotFound {
            object: "event",
            param: "checkpoint_event_id".to_owned(),
        });
    };
    let named = source
        .checkpoints()
        .find(|(place, _)| *place == index || *place == index + 1);
    if let Some((_, id)) = named {
        return Ok(id.to_owned());
    }
    let nearest = source
        .checkpoints()
        .take_while(|(place, _)| *place < index)
        .last();
    let mut details = Map::new();
    details.insert(
        "nearest_checkpoint_id".to_owned(),
        json!(nearest.map(|(_, id)| id)),
    );
    Err(RequestError::Invalid {
        param: "checkpoint_event_id".to_owned(),
        message: format!("`{event_id}` is neither a checkpoint nor the event before one"),
        details,
    })
}

fn refresh(body: &Map<String, Value>, mode: Mode) -> Result<BTreeSet<Refresh>, RequestError> {
    let words = match body.get("refresh") {
        None | Some(Value::Null) => return Ok(BTreeSet::new()),
        Some(Value::Array(words)) => words,
        Some(_) => return Err(invalid("refresh", "must be a list")),
    };
    let refresh = words
        .iter()
        .map(|word| {
            word.as_str().and_then(Refresh::parse).ok_or_else(|| {
                invalid(
                    "refresh",
                    "takes memory, secrets, host, time, model and tools",
                )
            })
        })
        .collect::<Result<BTreeSet<_>, _>>()?;
    if mode == Mode::Exact && !refresh.is_empty() {
        return Err(invalid("refresh", "an exact replay refreshes nothing"));
    }
    Ok(refresh)
}

fn refresh_from(
    body: &Map<String, Value>,
    source: Option<&Source>,
    refresh: &BTreeSet<Refresh>,
) -> Result<Option<String>, RequestError> {
    let Some(key) = text(body, "refresh_from", "refresh_from")? else {
        return Ok(None);
    };
    if refresh.is_empty() {
        return Err(invalid(
            "refresh_from",
            "needs `refresh`, which says what is live",
        ));
    }
    match source.is_some_and(|source| source.has_key(&key)) {
        true => Ok(Some(key)),
        false => Err(invalid(
            "refresh_from",
            format!("the run has no effect `{key}`"),
        )),
    }
}

/// The kinds of override that fit a key.
fn fitting_kinds(key: &str) -> Option<Vec<&'static str>> {
    Some(match keys::kind_of(key)? {
        // What the host says may be stated as any of its kinds.
        "host_fact" | "tool_result" => vec!["host_fact", "tool_result", "checkpoint_value"],
        kind => vec![kind],
    })
}

fn read_override(
    key: &str,
    given: &Value,
    source: &Source,
    artifacts: &BTreeMap<String, ReadArtifact>,
    conformance: bool,
) -> Result<(String, Override, Option<Value>), RequestError> {
    let param = |member: &str| format!("override.{key}.{member}");
    let Value::Object(given) = given else {
        return Err(invalid(format!("override.{key}"), "must be an object"));
    };
    let Some(kinds) = fitting_kinds(key) else {
        return Err(invalid(
            format!("override.{key}"),
            "a key begins with llm:, mcp:, host:, secret:, time: or event:",
        ));
    };
    let Some(kind) = text(given, "kind", &param("kind"))? else {
        return Err(invalid(param("kind"), "is missing"));
    };
    if !kinds.contains(&kind.as_str()) {
        return Err(invalid(
            param("kind"),
            format!(
                "`{kind}` does not fit this key: it takes {}",
                kinds.join(" or ")
            ),
        ));
    }
    let is_secret = kind == "secret_value";
    let visibility = match text(given, "visibility", &param("visibility"))? {
        None => Visibility::ReceiptOnly,
        Some(word) => Visibility::parse(&word).ok_or_else(|| {
            invalid(
                param("visibility"),
                "must be public, internal or receipt_only",
            )
        })?,
    };
    if is_secret && visibility != Visibility::ReceiptOnly {
        return Err(invalid(
            param("visibility"),
            "a secret is receipt_only and nothing else",
        ));
    }
    let target = text(given, "target", &param("target"))?;
    if let Some(target) = &target {
        let fits = if kind == "checkpoint_value" {
            target.is_empty() || target.starts_with('/')
        } else {
            key.split(':').skip(1).any(|segment| segment == target)
        };
        if !fits {
            return Err(invalid(
                param("target"),
                format!("`{target}` is not what the key names"),
            ));
        }
    }
    let stated = stated_digest(given, &param("sha256"))?;
    let placeholder = stated.filter(|digest| is_placeholder(*digest));
    let (given_value, secret) = read_value(key, given, artifacts, visibility, is_secret)?;
    let canonical = canonical_key(key, source)?;
    let mut read = Override {
        kind,
        given: given_value,
        visibility,
        event_id: text(given, "event_id", &param("event_id"))?,
        target,
        reason: text(given, "reason", &param("reason"))?,
        placeholder: placeholder.filter(|_| conformance),
    };
    check_time(&canonical, &read, &param("value"))?;
    if read.kind == "event_payload" {
        check_payload(&read, &param("value"))?;
    }
    if let (Some(stated), None) = (stated, placeholder) {
        let found = match &secret {
            Some(secret) => Some(sha256(&jcs(secret))),
            None => read.digest(),
        };
        if found.is_some_and(|found| found != stated) {
            return Err(RequestError::DigestMismatch {
                key: key.to_owned(),
                // The digest of a secret is told to nobody.
                expected: read.digest(),
            });
        }
    }
    if let Some(event_id) = &read.event_id {
        match source.index_of(event_id) {
            None if conformance => {}
            // The key decides; whoever wrote the request took the id from another run.
            None => read.event_id = None,
            Some(index) => {
                let belongs = source.key_of(index).or_else(|| source.lifecycle_key(index));
                let is_other = belongs.is_some_and(|other| other != canonical)
                    || canonical
                        .strip_prefix("event:")
                        .is_some_and(|own| own != event_id);
                if is_other {
                    return Err(invalid(
                        param("event_id"),
                        format!("`{event_id}` belongs to another dependency"),
                    ));
                }
            }
        }
    }
    Ok((canonical, read, secret))
}

/// Returns the key that a key or the recorded id of a call names; itself when it names nothing.
fn canonical_key(key: &str, source: &Source) -> Result<String, RequestError> {
    if source.has_key(key) {
        return Ok(key.to_owned());
    }
    let mut named = source.aliased(key);
    match (named.pop(), named.as_slice()) {
        (None, _) => Ok(key.to_owned()),
        (Some(one), []) => Ok(one),
        (Some(last), others) => Err(invalid(
            format!("override.{key}"),
            format!(
                "several calls had this id: name {} or {last}",
                others.join(", ")
            ),
        )),
    }
}

fn read_value(
    key: &str,
    given: &Map<String, Value>,
    artifacts: &BTreeMap<String, ReadArtifact>,
    visibility: Visibility,
    is_secret: bool,
) -> Result<(OverrideValue, Option<Value>), RequestError> {
    let param = |member: &str| format!("override.{key}.{member}");
    let artifact_id = text(given, "artifact_id", &param("artifact_id"))?;
    match (given.get("value"), artifact_id) {
        (Some(_), Some(_)) | (None, None) => Err(invalid(
            param("value"),
            "give either `value` or `artifact_id`",
        )),
        (Some(value), None) => {
            if jcs(value).len() > INLINE_BYTES_MAX {
                return Err(RequestError::TooLarge {
                    param: param("value"),
                });
            }
            if is_secret {
                return Ok((OverrideValue::Secret, Some(value.clone())));
            }
            Ok((OverrideValue::Inline(value.clone()), None))
        }
        (None, Some(_)) if is_secret => Err(invalid(
            param("artifact_id"),
            "a secret is sent inline: an artifact would keep it",
        )),
        (None, Some(artifact_id)) => {
            let Some(ReadArtifact {
                visibility: own,
                bytes,
            }) = artifacts.get(&artifact_id)
            else {
                return Err(RequestError::NotFound {
                    object: "artifact",
                    param: param("artifact_id"),
                });
            };
            if visibility < *own {
                return Err(invalid(
                    param("visibility"),
                    format!(
                        "the artifact is {}, and what it holds is not shown to more readers than that",
                        own.as_str()
                    ),
                ));
            }
            let value = canon::read(bytes, canon::Integers::Safe).map_err(|error| {
                invalid(param("artifact_id"), format!("is not valid JSON: {error}"))
            })?;
            if canon::depth(&value) > canon::VALUE_DEPTH_MAX {
                return Err(invalid(param("artifact_id"), "nests too deeply"));
            }
            let given = OverrideValue::Artifact {
                artifact_id,
                sha256: sha256(bytes),
                value: Some(value),
            };
            Ok((given, None))
        }
    }
}

fn stated_digest(given: &Map<String, Value>, param: &str) -> Result<Option<Digest>, RequestError> {
    match text(given, "sha256", param)? {
        None => Ok(None),
        Some(text) => Digest::parse(&text)
            .ok()
            // Bare digits are a digest elsewhere; the contract wants the prefix.
            .filter(|digest| digest.to_string() == text)
            .map(Some)
            .ok_or_else(|| invalid(param, "must be `sha256:` and 64 lower-case hex digits")),
    }
}

/// True for a digest of one repeated nibble: nobody computed it.
fn is_placeholder(digest: Digest) -> bool {
    let hex = digest.hex();
    let mut digits = hex.trim_start_matches("sha256:").bytes();
    let first = digits.next();
    digits.all(|digit| Some(digit) == first)
}

/// The payload of an event is an object. It points at nothing that is kept beside the log, and does not pass for what
/// pruning leaves of an event: whoever may replay may not therefore read what a digest names, or make a log look damaged.
fn check_payload(read: &Override, param: &str) -> Result<(), RequestError> {
    // The effect that an event belongs to is filled in by the run, whatever a request says.
    let passes_for_header = |payload: &Map<String, Value>| {
        let mut payload = payload.clone();
        payload.remove("effect_key");
        pruned_digest(&payload).is_some()
    };
    match read.inline() {
        Some(Value::Object(payload)) if passes_for_header(payload) => Err(invalid(
            param,
            "a payload of `pruned` and `sha256` alone is what pruning leaves, and not for callers",
        )),
        Some(Value::Object(payload)) if !payload.contains_key(BLOB_MEMBER) => Ok(()),
        Some(Value::Object(_)) => Err(invalid(
            param,
            format!("the member `{BLOB_MEMBER}` of a payload is not for callers"),
        )),
        _ => Err(invalid(param, "the payload of an event is an object")),
    }
}

/// A time that becomes a member of the receipt must be one.
fn check_time(key: &str, read: &Override, param: &str) -> Result<(), RequestError> {
    if !LIFECYCLE_KEYS.contains(&key) {
        return Ok(());
    }
    match read.inline() {
        Some(Value::String(time)) if receipts::seconds_of(time).is_some() => Ok(()),
        _ => Err(invalid(param, "must be an RFC 3339 time")),
    }
}
