//! What a rerun has in common with the run it repeats (RB-RUN-08).

use ::sidecar::{Artifact, Environment, General, Model};
use serde::Serialize;

use super::super::facts::node_platform;

/// One compared thing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Comparison {
    pub(super) subject: String,
    pub(super) result: Relation,
}

/// How it compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) enum Relation {
    #[serde(rename = "same")]
    Same,
    #[serde(rename = "changed")]
    Changed,
    #[serde(rename = "differs (expected)")]
    Differs,
    #[serde(rename = "differs (was stable)")]
    DiffersThoughStable,
    #[serde(rename = "not reported")]
    NotReported,
    #[serde(rename = "not known")]
    NotKnown,
}

impl Relation {
    pub(super) fn phrase(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Changed => "changed",
            Self::Differs => "differs (expected)",
            Self::DiffersThoughStable => "differs (was stable)",
            Self::NotReported => "not reported",
            Self::NotKnown => "not known",
        }
    }
}

/// Where the rerun took place, as far as it can be told.
#[derive(Debug)]
pub(super) struct HostEnvironment {
    pub(super) platform: String,
    timezone: Option<String>,
    locale: Option<String>,
}

impl HostEnvironment {
    /// Looks at this machine and at the caller's environment.
    pub(super) fn look() -> Self {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        Self {
            platform: node_platform(),
            timezone: variable("TZ"),
            locale: variable("LC_ALL").or_else(|| variable("LANG")),
        }
    }

    /// Returns what is true of the rerun in an environment that was recorded: the variables, which were set, and
    /// what this machine tells.
    pub(super) fn environment(&self, recorded: Option<Environment>) -> Option<Environment> {
        let recorded = recorded?;
        let environment = Environment {
            env: recorded.env,
            timezone: recorded.timezone.and(self.timezone.clone()),
            locale: recorded.locale.and(self.locale.clone()),
            container_image: None,
            network: None,
        };
        (environment != Environment::default()).then_some(environment)
    }
}

/// What the rerun gave.
#[derive(Debug)]
pub(super) struct RerunResult<'a> {
    pub(super) here: &'a HostEnvironment,
    pub(super) inputs: &'a [Artifact],
    pub(super) outputs: &'a [Artifact],
    pub(super) exit_code: Option<i32>,
}

pub(super) fn compare(recorded: &General, again: &RerunResult<'_>) -> Vec<Comparison> {
    let RerunResult {
        here,
        inputs,
        outputs,
        exit_code,
    } = again;
    let platform = &here.platform;
    let mut lines = Vec::new();
    let mut push = |subject: String, result| lines.push(Comparison { subject, result });
    let same = |same: bool| {
        if same {
            Relation::Same
        } else {
            Relation::Changed
        }
    };
    for (index, input) in recorded.inputs.iter().enumerate() {
        let again = inputs
            .iter()
            .any(|again| again.role == input.role && again.hash == input.hash);
        push(format!("inputs/{index} `{}`", input.path), same(again));
    }
    push(
        format!("platform {platform}"),
        same(*platform == recorded.platform),
    );
    // The worktree is of the recorded commit, so the tool is the same unless its tree was dirty.
    push(
        format!("tool {} {}", recorded.tool.name, recorded.tool.version),
        same(recorded.tool.commit.is_some() && recorded.tool.dirty == Some(false)),
    );
    if let Some(runtime) = &recorded.runtime {
        let subject = format!("runtime {} {}", runtime.name, runtime.version);
        push(subject, Relation::NotKnown);
    }
    if let Some(environment) = &recorded.environment {
        for name in environment.env.iter().flat_map(|env| env.keys()) {
            push(format!("environment {name}"), Relation::Same);
        }
        let told = [
            ("time zone", &environment.timezone, here.timezone.as_ref()),
            ("locale", &environment.locale, here.locale.as_ref()),
            ("container image", &environment.container_image, None),
            ("network", &environment.network, None),
        ];
        for (name, before, now) in told {
            if let Some(before) = before {
                let relation = now.map_or(Relation::NotKnown, |now| same(now == before));
                push(format!("{name} {before}"), relation);
            }
        }
    }
    if let Some(before) = recorded.exit_code.as_ref().and_then(canon::Number::as_i64) {
        let now = exit_code.map(i64::from);
        let shown = now.map_or("a signal".to_owned(), |code| code.to_string());
        push(
            format!("exit code {before}, now {shown}"),
            same(now == Some(before)),
        );
    }
    for model in recorded.models.iter().flatten() {
        push(format!("model {}", model.id), Relation::NotReported);
    }
    for (index, output) in recorded.outputs.iter().flatten().enumerate() {
        let again = outputs.iter().find(|again| again.path == output.path);
        let result = if again.is_some_and(|again| again.hash == output.hash) {
            Relation::Same
        } else if output.stable == Some(true) {
            Relation::DiffersThoughStable
        } else {
            Relation::Differs
        };
        let missing = if again.is_none() { ", not written" } else { "" };
        push(
            format!("outputs/{index} `{}`{missing}", output.path),
            result,
        );
    }
    lines
}

/// Returns a model without what its provider said about the earlier run.
pub(super) fn unreported(model: Model) -> Model {
    Model {
        provider_request_ids: Vec::new(),
        reported_ids: None,
        calls: None,
        tokens_in: None,
        tokens_out: None,
        ..model
    }
}
