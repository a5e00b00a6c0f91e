//! The authorization walk: every operation that the server describes, asked by whoever must not get in.
//!
//! Owns the ids `WALK-…`, which are this runner's own. The operations come from `/openapi.json`; which scopes one needs is
//! read from its `x-scopes`. What is asked names resources that are not there, or has a body that nobody takes, so
//! that a key that may do it changes nothing.

use std::collections::BTreeSet;
use std::process::Stdio;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::json::{at, show, text};
use crate::miss::{Checked, Miss, all_but, fail, need, unseen};
use crate::registry::{Row, row};
use crate::scenario::{artifact_body, unknown_like};
use crate::wire::{Call, Wire};

pub(crate) const ROWS: &[Row] = &[
    row!("WALK-01", M, "no operation that needs a key answers without a valid one", Now without_key),
    row!("WALK-02", M, "a scope opens the operations that ask for it, and no others", Now by_scope),
    row!("WALK-03", M, "nothing of another workspace is there, whatever is asked of it", Now elsewhere),
    row!("WALK-04", M, "no operation that needs a key answers to one that has expired", Now with_expired_key),
];

/// A body that no operation takes.
const NOBODY_TAKES: &str = "[not an object]";
/// How long a new key may take to be known.
const KEY_PATIENCE: Duration = Duration::from_secs(5);

/// One operation of the description.
struct Operation {
    method: Method,
    path: String,
    has_body: bool,
    streams: bool,
    all_of: Vec<String>,
    one_of: Vec<String>,
    /// False when the description does not say which scopes it needs.
    is_scoped: bool,
}

impl Operation {
    /// Fills in the path with ids, or with one that names nothing.
    fn filled(&self, ids: &[(&str, String)]) -> String {
        let segments = self
            .path
            .split('/')
            .map(|segment| match parameter(segment) {
                None => segment,
                Some(name) => {
                    let known = ids.iter().find(|(known, _)| *known == name);
                    known.map_or("none", |(_, id)| id.as_str())
                }
            });
        segments.collect::<Vec<_>>().join("/")
    }

    fn parameters(&self) -> impl Iterator<Item = &str> {
        self.path.split('/').filter_map(parameter)
    }

    fn call<'a>(&self, wire: &'a Wire, path: String) -> Call<'a> {
        let call = wire.call(self.method.clone(), path);
        match self.has_body {
            true => call.bytes("application/json", NOBODY_TAKES),
            false => call,
        }
    }

    /// Asks and returns the status and the body; that of a stream is not read.
    async fn ask(&self, call: Call<'_>) -> Result<(u16, Value), Miss> {
        if self.streams {
            return Ok((call.stream().await?.status, Value::Null));
        }
        let answer = call.send().await?;
        let mut body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        // A problem document (RFC 9457) says at its top what the protocol's errors say inside.
        let is_problem = body.get("error").is_none() && body.get("title").is_some();
        if answer.status >= 400 && is_problem {
            body = json!({ "error": body });
        }
        Ok((answer.status, body))
    }

    /// Whether somebody who may do it would change something.
    fn acts(&self) -> bool {
        self.method != Method::GET && !self.has_body && self.parameters().next().is_none()
    }

    fn opens_to(&self, scope: &str) -> bool {
        self.all_of.iter().all(|needed| needed == scope)
            && (self.one_of.is_empty() || self.one_of.iter().any(|needed| needed == scope))
    }
}

fn parameter(segment: &str) -> Option<&str> {
    segment.strip_prefix('{')?.strip_suffix('}')
}

/// Returns the described operations that need a key.
async fn guarded(wire: &Wire) -> Result<Vec<Operation>, Miss> {
    let described = wire.get("/openapi.json").anonymous().send().await?;
    if described.status != 200 {
        return unseen("the server describes itself nowhere that this runner knows");
    }
    let document = described.value()?;
    let mut operations = Vec::new();
    let paths = at(&document, "paths").as_object();
    for (path, methods) in paths.into_iter().flatten() {
        for (method, operation) in methods.as_object().into_iter().flatten() {
            let is_public = operation
                .get("security")
                .and_then(Value::as_array)
                .is_some_and(Vec::is_empty);
            let Ok(method) = method.to_uppercase().parse::<Method>() else {
                continue;
            };
            if is_public || !operation.is_object() || !operation["responses"].is_object() {
                continue;
            }
            let list = |name: &str| -> Vec<String> {
                let list = at(operation, &format!("x-scopes.{name}")).as_array();
                let texts = list.into_iter().flatten().filter_map(Value::as_str);
                texts.map(str::to_owned).collect()
            };
            operations.push(Operation {
                method,
                path: path.clone(),
                has_body: operation.get("requestBody").is_some(),
                streams: operation["responses"]
                    .to_string()
                    .contains("text/event-stream"),
                all_of: list("all_of"),
                one_of: list("one_of"),
                is_scoped: operation.get("x-scopes").is_some(),
            });
        }
    }
    if operations.is_empty() {
        return unseen("the description names no operation that needs a key");
    }
    Ok(operations)
}

async fn without_key(wire: &Wire) -> Checked {
    let unknown = wire.fresh("unknown");
    let mut keys = vec![None, Some(unknown.as_str())];
    keys.extend(wire.dead_keys.iter().map(|key| Some(key.as_str())));
    closed_to(wire, &keys).await?;
    match wire.dead_keys.is_empty() {
        true => all_but("revoked keys: needs --dead-key"),
        false => Ok(()),
    }
}

async fn with_expired_key(wire: &Wire) -> Checked {
    if wire.expired_keys.is_empty() {
        return unseen("needs --expired-key");
    }
    let keys = wire.expired_keys.iter().map(|key| Some(key.as_str()));
    closed_to(wire, &keys.collect::<Vec<_>>()).await
}

/// Asks every operation with each of these, none of which is valid.
async fn closed_to(wire: &Wire, keys: &[Option<&str>]) -> Checked {
    for operation in &guarded(wire).await? {
        for key in keys {
            let call = operation.call(wire, operation.filled(&[]));
            let call = match key {
                None => call.anonymous(),
                Some(key) => call.key(key),
            };
            let (status, body) = operation.ask(call).await?;
            let code = text(&body, "error.code");
            need(
                status == 401 && (operation.streams || code == "unauthenticated"),
                format!(
                    "{} {}: 401 `unauthenticated`",
                    operation.method, operation.path
                ),
                format!("{status} {}", show(&body)),
            )?;
        }
    }
    Ok(())
}

async fn by_scope(wire: &Wire) -> Checked {
    if wire.make_key.is_none() {
        return unseen("needs --make-key");
    }
    let operations = guarded(wire).await?;
    if !operations.iter().all(|operation| operation.is_scoped) {
        return unseen(
            "the description does not say which scopes each operation needs (`x-scopes`)",
        );
    }
    let needed = |operation: &Operation| {
        let all = operation.all_of.iter().chain(&operation.one_of);
        all.cloned().collect::<Vec<_>>()
    };
    let scopes: BTreeSet<String> = operations.iter().flat_map(needed).collect();
    for scope in &scopes {
        let key = make_key(wire, scope).await?;
        for operation in &operations {
            let may = operation.opens_to(scope);
            if may && operation.acts() {
                continue;
            }
            let call = operation.call(wire, operation.filled(&[])).key(&key);
            let (status, body) = operation.ask(call).await?;
            let place = format!(
                "{} {} with `{scope}` alone",
                operation.method, operation.path
            );
            // What the answer shows must not depend on who is told; the key itself is in no report.
            let found = format!("{status} {}", show(&body).replace(&key, "<key>"));
            match may {
                true => need(
                    !matches!(status, 401 | 403),
                    format!("{place}: let in"),
                    found,
                )?,
                false => need(
                    status == 403
                        && (operation.streams || text(&body, "error.code") == "permission_denied"),
                    format!("{place}: 403 `permission_denied`"),
                    found,
                )?,
            }
        }
    }
    Ok(())
}

/// Has a key made that holds one scope, and waits until the server knows it.
async fn make_key(wire: &Wire, scope: &str) -> Result<String, Miss> {
    let Some(command) = &wire.make_key else {
        return unseen("needs --make-key");
    };
    let run = tokio::process::Command::new("sh")
        .arg("-c")
        .arg(command)
        .env("SCOPE", scope)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    let made = match tokio::time::timeout(Duration::from_secs(60).max(wire.timeout), run).await {
        Ok(Ok(made)) if made.status.success() => made,
        Ok(Ok(made)) => {
            return unseen(format!(
                "the command that makes keys ended with {}",
                made.status
            ));
        }
        Ok(Err(error)) => {
            return unseen(format!(
                "the command that makes keys did not start: {error}"
            ));
        }
        Err(_) => return unseen("the command that makes keys did not end in time"),
    };
    let said = String::from_utf8_lossy(&made.stdout);
    let Some(key) = said.lines().map(str::trim).rfind(|line| !line.is_empty()) else {
        return unseen("the command that makes keys printed none");
    };
    let began = tokio::time::Instant::now();
    while wire.get("/v1/tasks").key(key).send().await?.status == 401 {
        if began.elapsed() > KEY_PATIENCE {
            return unseen("the server does not know the key that was made");
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(key.to_owned())
}

/// Makes one resource of each kind that a client can make, in a workspace that the other key does not see.
async fn resources(wire: &Wire, workspace: &str) -> Result<Vec<(&'static str, String)>, Miss> {
    let session = wire.session_in(workspace).await?;
    let task = wire.completed_in(&session).await?;
    let message = wire.append(&session, "not for others").await?;
    let artifact = wire.artifact(&artifact_body(&session)).await?;
    let body = json!({"kind": "session", "base_ref": "x"});
    let branch = wire.post(format!("/v1/sessions/{session}/branches"), &body);
    let branch = branch.made("make a branch").await?;
    let events = wire.task_events(&task).await?;
    let id = |value: &Value| text(value, "id").to_owned();
    let mut ids = vec![
        ("workspace_id", workspace.to_owned()),
        ("task_id", id(&task)),
        ("message_id", id(&message)),
        ("artifact_id", id(&artifact)),
        ("branch_id", id(&branch)),
        ("event_id", events.first().map(id).unwrap_or_default()),
        ("outcome_id", text(&task, "outcome_id").to_owned()),
        ("receipt_id", text(&task, "receipt_id").to_owned()),
        ("session_id", session),
    ];
    ids.retain(|(_, id)| !id.is_empty());
    Ok(ids)
}

async fn elsewhere(wire: &Wire) -> Checked {
    let other = wire.other()?;
    let workspace = wire.workspace().await?;
    let workspace = text(&workspace, "id");
    let seen = wire.get(format!("/v1/workspaces/{workspace}")).key(other);
    if seen.send().await?.status == 200 {
        return unseen("the other key is not limited to another workspace");
    }
    let ids = resources(wire, workspace).await?;
    let unknown: Vec<(&str, String)> = ids
        .iter()
        .map(|(name, id)| (*name, unknown_like(id)))
        .collect();
    let mut asked = 0;
    for operation in guarded(wire).await? {
        // What comes after the first parameter belongs to what the first one names.
        let Some(first) = operation.parameters().next() else {
            continue;
        };
        let (Some((_, id)), Some((_, nothing))) = (
            ids.iter().find(|(name, _)| *name == first),
            unknown.iter().find(|(name, _)| *name == first),
        ) else {
            continue;
        };
        let ask = async |ids: &[(&str, String)], id: &str| {
            let call = operation.call(wire, operation.filled(ids)).key(other);
            let (status, mut body) = operation.ask(call).await?;
            if let Some(error) = body.get_mut("error").and_then(Value::as_object_mut) {
                error.remove("request_id");
            }
            // The id that was asked for is no news to the one who asked.
            let body = body.to_string().replace(id, "<id>");
            Ok::<_, Miss>((status, body))
        };
        let foreign = ask(&ids, id).await?;
        let missing = ask(&unknown, nothing).await?;
        let place = format!("{} {}", operation.method, operation.path);
        // Something else may be wrong with the question; then it is wrong for both.
        if !matches!(foreign.0, 400 | 403 | 404 | 422) {
            return fail(
                format!("{place} of another workspace: 404, or a refusal of the question"),
                format!("{} {}", foreign.0, foreign.1),
            );
        }
        need(
            foreign == missing,
            format!(
                "{place}: as for what is not there: {} {}",
                missing.0, missing.1
            ),
            format!("{} {}", foreign.0, foreign.1),
        )?;
        asked += 1;
    }
    match asked {
        0 => unseen("the description names no operation on a resource that could be made"),
        _ => all_but(
            "resources that a client of this runner cannot make, such as vaults and requests for approval",
        ),
    }
}
