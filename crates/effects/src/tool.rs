//! Local commands: what the configuration declares, called with what a model wrote.
//!
//! There is no shell anywhere: an argument becomes an element of the command line or text on its input. A command
//! that ran has a result, whatever its exit code; an error means that it did not run to its end.

mod folder;
mod process;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use canon::{Map, Value, jcs};
use domain::Observed;
use jsonschema::Validator;
use runs::workflow::{Effect, EffectOutcome, Handles};
use secrecy::ExposeSecret;
use serde_json::json;
use tokio::sync::Mutex;

use crate::config::{ConfigError, SecretRef, Stdin, ToolConfig, check_ids};
use crate::confine::{Confinement, Sandbox, SandboxAccess};
use crate::scrub::Scrubber;
use crate::secrets::{Secrets, environment};
pub(crate) use process::Group;
use process::{Captured, ProcessEnd, ProcessOutcome, ProcessSpec};

/// How much of a complaint about arguments is repeated.
const COMPLAINT_CHARS_MAX: usize = 300;

/// The declared commands, by name.
#[derive(Debug)]
pub(crate) struct Tools(BTreeMap<String, Arc<Tool>>);

/// A declared command.
#[derive(Debug)]
pub(crate) struct Tool {
    pub(crate) config: ToolConfig,
    validator: Validator,
    sandbox: Sandbox,
    /// Held while it runs in a folder: what changes there can only be told of one command at a time.
    turn: Option<Arc<Mutex<()>>>,
}

impl Tools {
    pub(crate) fn new(
        configs: Vec<ToolConfig>,
        confinement: &Arc<Confinement>,
    ) -> Result<Self, ConfigError> {
        check_ids("tool", configs.iter().map(|config| config.name.as_str()))?;
        let mut tools = BTreeMap::new();
        let mut turns = turns(&configs);
        for mut config in configs {
            let place = format!("tool `{}`", config.name);
            let validator =
                check(&config).map_err(|problem| ConfigError::new(place.clone(), problem))?;
            if let Some(folder) = &mut config.folder {
                *folder = std::path::absolute(&*folder).map_err(|error| {
                    ConfigError::new(place.clone(), format!("`folder`: {error}"))
                })?;
            }
            let reach = SandboxAccess {
                folder: config.folder.clone(),
                read: config.read.clone(),
                write: config.write.clone(),
                network: config.network,
                mode: config.sandbox,
            };
            let sandbox = Sandbox::new(confinement, reach)
                .map_err(|problem| ConfigError::new(place, problem))?;
            let tool = Tool {
                turn: turns.remove(&config.name),
                validator,
                sandbox,
                config,
            };
            tools.insert(tool.config.name.clone(), Arc::new(tool));
        }
        Ok(Self(tools))
    }

    pub(crate) fn find(&self, name: &str) -> Option<&Arc<Tool>> {
        self.0.get(name)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Tool>> {
        self.0.values()
    }

    /// Runs a command and tells what it did.
    pub(crate) async fn perform(&self, effect: &Effect, secrets: &Secrets) -> EffectOutcome {
        let request = &effect.request;
        let name = request
            .get("tool")
            .and_then(Value::as_str)
            .unwrap_or_default();
        match self.find(name) {
            Some(tool) => tool.perform(request, &effect.secrets, secrets).await,
            None => EffectOutcome::error("tool_unknown", format!("no tool `{name}` is declared")),
        }
    }
}

/// Returns how long a call may take: what the configuration says, or less where the run's contracts do.
pub(crate) fn timeout_ms(configured_ms: u64, request: &Value) -> u64 {
    let asked = request.get("timeout_ms").and_then(Value::as_u64);
    asked.map_or(configured_ms, |asked| asked.min(configured_ms))
}

/// Commands whose folders overlap share one turn: that of the outermost declared folder.
fn turns(configs: &[ToolConfig]) -> BTreeMap<String, Arc<Mutex<()>>> {
    let folder_of = |config: &ToolConfig| -> Option<PathBuf> {
        let folder = config.folder.as_ref()?;
        std::fs::canonicalize(folder)
            .or_else(|_| std::path::absolute(folder))
            .ok()
    };
    let folders: Vec<PathBuf> = configs.iter().filter_map(folder_of).collect();
    let mut roots: BTreeMap<PathBuf, Arc<Mutex<()>>> = BTreeMap::new();
    configs
        .iter()
        .filter_map(|config| {
            let folder = folder_of(config)?;
            let root = folders
                .iter()
                .filter(|other| folder.starts_with(other))
                .min_by_key(|other| other.components().count())?;
            let turn = roots.entry(root.clone()).or_default();
            Some((config.name.clone(), Arc::clone(turn)))
        })
        .collect()
}

fn check(config: &ToolConfig) -> Result<Validator, String> {
    let Some(program) = config.argv.first() else {
        return Err("`argv` is empty".to_owned());
    };
    if placeholder(program).is_some() {
        return Err("the program cannot be an argument of the call".to_owned());
    }
    for element in &config.argv {
        if let Some(name) = placeholder(element)
            && config
                .parameters
                .pointer(&format!("/properties/{name}"))
                .is_none()
        {
            return Err(format!(
                "`argv` uses `{{{name}}}`, which `parameters` does not declare"
            ));
        }
    }
    if config.parameters.get("type").and_then(Value::as_str) != Some("object") {
        return Err("`parameters` must be a schema of type object".to_owned());
    }
    jsonschema::validator_for(&config.parameters)
        .map_err(|error| format!("`parameters` is not a valid JSON Schema: {error}"))
}

/// Returns the name in `{name}`.
fn placeholder(element: &str) -> Option<&str> {
    let name = element.strip_prefix('{')?.strip_suffix('}')?;
    let is_name = !name.is_empty()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-');
    is_name.then_some(name)
}

fn argv(template: &[String], arguments: &Map<String, Value>) -> Vec<String> {
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => String::from_utf8(jcs(other)).unwrap_or_default(),
    };
    template
        .iter()
        .flat_map(|element| match placeholder(element) {
            None => vec![element.clone()],
            Some(name) => match arguments.get(name) {
                None | Some(Value::Null) => Vec::new(),
                Some(Value::Array(items)) => items.iter().map(text).collect(),
                Some(value) => vec![text(value)],
            },
        })
        .collect()
}

impl Tool {
    /// Its name for people, the places that it uses and the secrets that it is given.
    pub(crate) fn needs(&self) -> (String, Vec<&PathBuf>, Vec<&SecretRef>) {
        let place = format!("tool `{}`", self.config.name);
        let secrets = self.config.secrets.values().collect();
        (place, self.sandbox.places(), secrets)
    }

    /// Returns whether it is confined, but could change modes of files outside its folders.
    pub(crate) fn leaves_modes(&self) -> bool {
        self.sandbox.leaves_modes()
    }

    async fn perform(
        &self,
        request: &Value,
        handles: &Handles,
        secrets: &Secrets,
    ) -> EffectOutcome {
        let config = &self.config;
        let name = &config.name;
        let arguments = request.get("arguments");
        let timeout_ms = timeout_ms(config.timeout_ms, request);
        let scrubber = secrets.scrubber();
        let empty = Value::Object(Map::new());
        let arguments = arguments.filter(|value| !value.is_null()).unwrap_or(&empty);
        let complaint = self.validator.iter_errors(arguments).next();
        let (Value::Object(members), None) = (arguments, &complaint) else {
            let said =
                complaint.map_or_else(|| "not an object".to_owned(), |error| error.to_string());
            let said = scrubber.capped(&said, COMPLAINT_CHARS_MAX);
            let message = format!("arguments of `{name}`: {said}");
            return EffectOutcome::error("tool_arguments_invalid", message);
        };
        let _turn = match &self.turn {
            Some(turn) => Some(turn.lock().await),
            None => None,
        };
        // Only now: whoever waited for a turn may have outlived a version.
        let hidden = match environment(secrets, &config.secrets, handles) {
            Ok(hidden) => hidden,
            Err(error) => return error.performed(),
        };
        let plain = config
            .env
            .iter()
            .filter_map(|variable| Some((variable.clone(), std::env::var(variable).ok()?)));
        let hidden = hidden
            .into_iter()
            .map(|(variable, value)| (variable, value.expose_secret().to_owned()));
        let environment = plain.chain(hidden).collect();
        let ready = match self
            .sandbox
            .command(&argv(&config.argv, members), environment)
        {
            Ok(ready) => ready,
            Err(problem) => return self.not_started(&problem, &scrubber),
        };
        let order = ProcessSpec {
            ready,
            stdin: (config.stdin == Stdin::Json).then(|| jcs(arguments)),
            timeout_ms,
            output_bytes_max: config.output_bytes_max,
        };
        let before = self.look(&secrets.scrubber()).await;
        let ended = process::run(order).await;
        // What a secret was changed to while this ran is hidden too.
        let scrubber = secrets.scrubber();
        let observed = self.observed(before, &scrubber).await;
        self.outcome_of(ended, timeout_ms, observed, &scrubber)
    }

    async fn observed(
        &self,
        before: Option<folder::Snapshot>,
        scrubber: &Arc<Scrubber>,
    ) -> Observed {
        let mut observed = Observed {
            // Nobody watches the sockets of a command.
            not_observed: vec!["network_egress".to_owned()],
            sandbox: Some(self.sandbox.limits_record()),
            ..Observed::default()
        };
        let changes = match (before, self.look(scrubber).await) {
            (Some(before), Some(after)) => Some(folder::changes(&before, &after, scrubber)),
            _ => None,
        };
        match changes {
            Some(changes) => observed.fs_writes = changes,
            None => observed.not_observed.insert(0, "fs_writes".to_owned()),
        }
        observed
    }

    async fn look(&self, scrubber: &Arc<Scrubber>) -> Option<folder::Snapshot> {
        let folder = self.config.folder.clone()?;
        let scrubber = Arc::clone(scrubber);
        let limits = folder::Limits {
            files_max: self.config.observed_files_max,
            bytes_max: self.config.observed_bytes_max,
        };
        let look =
            tokio::task::spawn_blocking(move || folder::snapshot(&folder, limits, &scrubber));
        look.await.ok()?.ok()
    }

    fn not_started(&self, problem: &str, scrubber: &Scrubber) -> EffectOutcome {
        let name = &self.config.name;
        let message = scrubber.text(&format!("`{name}` could not be started: {problem}"));
        EffectOutcome::error("tool_not_started", message)
    }

    fn outcome_of(
        &self,
        ended: ProcessOutcome,
        timeout_ms: u64,
        observed: Observed,
        scrubber: &Scrubber,
    ) -> EffectOutcome {
        let name = &self.config.name;
        let (end, stdout, stderr) = match ended {
            ProcessOutcome::Ran {
                end,
                stdout,
                stderr,
            } => (end, stdout, stderr),
            ProcessOutcome::NotStarted(problem) => return self.not_started(&problem, scrubber),
        };
        let (mut performed, more) = match end {
            ProcessEnd::Exited { code } => {
                (EffectOutcome::ok(json!({})), ("exit_code", json!(code)))
            }
            ProcessEnd::Killed { signal } => {
                let message = format!("`{name}` was killed by signal {signal}");
                let performed = EffectOutcome::error("tool_killed", message);
                (performed, ("signal", json!(signal)))
            }
            ProcessEnd::TimedOut => {
                let message = format!("`{name}` did not end within {timeout_ms} ms and was killed");
                let performed = EffectOutcome::error("tool_timeout", message);
                (performed, ("timeout_ms", json!(timeout_ms)))
            }
        };
        let is_whole = performed.ok;
        if let Some(members) = performed.value.as_object_mut() {
            for (member, value) in [
                more,
                ("stdout_truncated", json!(stdout.truncated)),
                ("stderr_truncated", json!(stderr.truncated)),
                ("stdout", shown(stdout, is_whole, scrubber).into()),
                ("stderr", shown(stderr, is_whole, scrubber).into()),
            ] {
                members.insert(member.to_owned(), value);
            }
        }
        performed.observed = Some(observed);
        performed
    }
}

/// An output as text. Where it was cut, the beginning of a secret may be left at its end: that goes too.
fn shown(captured: Captured, is_whole: bool, scrubber: &Scrubber) -> String {
    let mut bytes = scrubber.bytes(&captured.bytes);
    if captured.truncated || !is_whole {
        bytes.truncate(bytes.len() - scrubber.open_end(&bytes));
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_argv(template: &[&str], arguments: Value, expected: &[&str]) {
        let template: Vec<String> = template.iter().map(|part| (*part).to_owned()).collect();
        let arguments = arguments.as_object().unwrap();
        assert_eq!(argv(&template, arguments), expected);
    }

    #[test]
    fn arguments_become_whole_elements() {
        let template = ["grep", "{flags}", "--", "{pattern}", "x{pattern}", "{}"];
        check_argv(
            &template,
            json!({"pattern": "a b; rm -rf $HOME {flags}", "flags": ["-i", "-n"]}),
            &[
                "grep",
                "-i",
                "-n",
                "--",
                "a b; rm -rf $HOME {flags}",
                "x{pattern}",
                "{}",
            ],
        );
        check_argv(
            &template,
            json!({"pattern": 1.5, "flags": null}),
            &["grep", "--", "1.5", "x{pattern}", "{}"],
        );
        check_argv(
            &["x", "{o}"],
            json!({"o": {"b": 1, "a": true}}),
            &["x", "{\"a\":true,\"b\":1}"],
        );
    }

    #[test]
    fn folders_inside_each_other_share_one_turn() {
        let root = tempfile::tempdir().unwrap();
        let tool = |name: &str, folder: Option<&str>| -> ToolConfig {
            serde_json::from_value(json!({
                "name": name, "argv": ["true"], "folder": folder.map(|folder| root.path().join(folder)),
            }))
            .unwrap()
        };
        let turns = turns(&[
            tool("b", Some("a/b")),
            tool("c", Some("a/c")),
            tool("a", Some("a")),
            tool("ab", Some("ab")),
            tool("none", None),
        ]);
        assert!(Arc::ptr_eq(&turns["a"], &turns["b"]));
        assert!(Arc::ptr_eq(&turns["a"], &turns["c"]));
        assert!(!Arc::ptr_eq(&turns["a"], &turns["ab"]));
        assert!(!turns.contains_key("none"));
    }
}
