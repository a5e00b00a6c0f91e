//! From flags to the body of a replay request.

use std::collections::BTreeMap;
use std::path::Path;

use canon::{Integers, Map, Value, jcs};
use domain::{Ask, Visibility};
use runs::replay::{ReadArtifact, kind_of, text_value};
use serde_json::json;

use super::ReplayArgs;
use crate::command::task;
use crate::exit::{OrHint, Problem};

/// A request, and the values that are too large to stand in it.
#[derive(Debug, Clone)]
pub(super) struct PreparedRequest {
    pub(super) body: Map<String, Value>,
    large: Vec<Large>,
}

/// A value that must be sent as an Artifact.
#[derive(Debug, Clone)]
pub(super) struct Large {
    pub(super) key: String,
    pub(super) bytes: Vec<u8>,
}

impl PreparedRequest {
    /// Takes the values that are too large.
    pub(super) fn take_large(&mut self) -> Vec<Large> {
        std::mem::take(&mut self.large)
    }

    /// Names the Artifact that holds a large value.
    pub(super) fn place(&mut self, key: &str, artifact_id: &str) {
        let overrides = self.body.get_mut("override");
        if let Some(Value::Object(given)) = overrides.and_then(|overrides| overrides.get_mut(key)) {
            given.insert("artifact_id".to_owned(), artifact_id.into());
        }
    }

    /// Returns the request as it is without a server, which would give ids to large values: what they hold names them. The
    /// Artifacts that it then names are added to `artifacts`.
    pub(super) fn into_local(
        mut self,
        artifacts: &mut BTreeMap<String, ReadArtifact>,
    ) -> Map<String, Value> {
        for large in self.take_large() {
            let digest = canon::sha256(&large.bytes).hex();
            let id = format!("artifact_{}", digest.get(..32).unwrap_or(&digest));
            self.place(&large.key, &id);
            artifacts.insert(id, own(large.bytes));
        }
        self.body
    }

    pub(super) fn value(self) -> Value {
        Value::Object(self.body)
    }
}

/// The content of an Artifact for whoever has it: they may read it.
pub(super) fn own(bytes: Vec<u8>) -> ReadArtifact {
    ReadArtifact {
        visibility: Visibility::Public,
        bytes,
    }
}

/// What names what is to be replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Names {
    /// Keys of a task.
    Keys,
    /// Tasks of a session and their keys: `TASK/KEY`.
    TasksAndKeys,
}

impl Names {
    /// Returns the key in a name.
    fn key(self, name: &str) -> anyhow::Result<&str> {
        match (self, name.split_once('/')) {
            (Names::Keys, _) => Ok(name),
            (Names::TasksAndKeys, Some((task, key))) if task.starts_with("task_") => Ok(key),
            (Names::TasksAndKeys, _) => Err(Problem::new(
                format!("`{name}` does not name a task"),
                "in a session write TASK/KEY=…, such as task_0123/llm:main:1=TEXT",
            )
            .into()),
        }
    }
}

/// Builds the request that the flags ask for. `asks` says what somebody was asked for under a name.
pub(super) fn prepare(
    args: &ReplayArgs,
    names: Names,
    asks: impl Fn(&str) -> Option<Ask>,
) -> anyhow::Result<PreparedRequest> {
    if let Some(file) = &args.request {
        let text = task::read(file)?;
        let mut body = canon::read_object(text.as_bytes(), Integers::Safe).or_hint(
            format_args!("`{}`", file.display()),
            "the file must hold a replay request, such as {\"mode\": \"exact\"}",
        )?;
        refresh(args, &mut body);
        return Ok(PreparedRequest {
            body,
            large: Vec::new(),
        });
    }
    let mut overrides = Map::new();
    let mut large = Vec::new();
    for (name, text) in &args.set {
        let value = text_value(names.key(name)?, text, asks(name)).map_err(|error| {
            Problem::new(
                error.to_string(),
                "say approve or deny; yes, no, true and false do too",
            )
        })?;
        add(&mut overrides, &mut large, name, names, value)?;
    }
    for (key, file) in &args.overrides {
        let text = task::read(Path::new(file))?;
        let value = canon::read(text.as_bytes(), Integers::Safe).or_hint(
            format_args!("`{file}`"),
            format!("the file must hold JSON; for plain text: --set {key}=TEXT"),
        )?;
        add(&mut overrides, &mut large, key, names, value)?;
    }
    for (key, artifact) in &args.override_artifact {
        let given = json!({"kind": kind(names.key(key)?)?, "artifact_id": artifact});
        insert(&mut overrides, key, given)?;
    }
    let mode = match &args.mode {
        Some(mode) => mode,
        None => inferred(args, &overrides),
    };
    let mut body = Map::new();
    body.insert("mode".to_owned(), mode.into());
    if !overrides.is_empty() {
        body.insert("override".to_owned(), overrides.into());
    }
    if let Some(from) = &args.from {
        let name = match from.starts_with("event_") {
            true => "checkpoint_event_id",
            false => "checkpoint_id",
        };
        body.insert(name.to_owned(), from.as_str().into());
    }
    refresh(args, &mut body);
    if let Some(reason) = &args.reason {
        body.insert("reason".to_owned(), reason.as_str().into());
    }
    if args.fail_on_stale_input {
        let policy = json!({"replay_policy": {"on_stale_input": "fail"}});
        body.insert("metadata".to_owned(), policy);
    }
    Ok(PreparedRequest { body, large })
}

/// Adds what is to be live.
fn refresh(args: &ReplayArgs, body: &mut Map<String, Value>) {
    if !args.refresh.is_empty() {
        body.insert("refresh".to_owned(), json!(args.refresh));
    }
    if let Some(key) = &args.refresh_from {
        body.insert("refresh_from".to_owned(), key.as_str().into());
    }
}

/// Returns the keys that flags give: the run must come to ask for each.
pub(super) fn given_keys(args: &ReplayArgs) -> impl Iterator<Item = &str> {
    let texts_and_files = args.set.iter().chain(&args.overrides);
    let given = texts_and_files.chain(&args.override_artifact);
    given.map(|(key, _)| key.as_str())
}

fn inferred(args: &ReplayArgs, overrides: &Map<String, Value>) -> &'static str {
    if args.from.is_some() {
        "from_checkpoint"
    } else if overrides.is_empty() && args.refresh.is_empty() {
        "exact"
    } else {
        "with_overrides"
    }
}

fn kind(key: &str) -> anyhow::Result<&'static str> {
    kind_of(key).ok_or_else(|| {
        Problem::new(
            format!("`{key}` is not an override key"),
            "a key begins with llm:, mcp:, host:, secret:, time: or event:; --list shows those of a task",
        )
        .into()
    })
}

fn add(
    overrides: &mut Map<String, Value>,
    large: &mut Vec<Large>,
    key: &str,
    names: Names,
    value: Value,
) -> anyhow::Result<()> {
    let kind = kind(names.key(key)?)?;
    let bytes = jcs(&value);
    // A secret is never kept anywhere: the server says what it thinks of a large one.
    if bytes.len() > domain::INLINE_BYTES_MAX && kind != "secret_value" {
        insert(overrides, key, json!({"kind": kind}))?;
        large.push(Large {
            key: key.to_owned(),
            bytes,
        });
        return Ok(());
    }
    insert(overrides, key, json!({"kind": kind, "value": value}))
}

fn insert(overrides: &mut Map<String, Value>, key: &str, given: Value) -> anyhow::Result<()> {
    match overrides.insert(key.to_owned(), given) {
        None => Ok(()),
        Some(_) => Err(Problem::new(
            format!("`{key}` is given twice"),
            "name each key once, with --set, --override or --override-artifact",
        )
        .into()),
    }
}
