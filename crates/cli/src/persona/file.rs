//! A persona's file: YAML, TOML or JSON in, the body of a request out.
//!
//! Strict where the protocol is lenient: a member that nobody knows is an error with its line, because in a file it is a
//! typing error.

use std::path::Path;

use domain::{AutonomyTier, PersonaMemory, ReceiptPolicy};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::command::task;
use crate::exit::{OrHint, Problem};

/// Of a YAML file; a bomb of aliases ends here.
const LIMITS: yaml::Limits = yaml::Limits {
    nodes_max: 20_000,
    depth_max: 64,
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PersonaFile {
    name: String,
    version: String,
    entry_workflow: String,
    description: String,
    autonomy_tier: AutonomyTier,
    receipt_policy: ReceiptPolicy,
    #[serde(default)]
    tools: Vec<String>,
    #[serde(default)]
    capabilities: Vec<String>,
    #[serde(default)]
    triggers: Vec<Map<String, Value>>,
    #[serde(default)]
    schedules: Vec<Map<String, Value>>,
    #[serde(default)]
    handoffs: Vec<String>,
    #[serde(default)]
    context_packs: Vec<String>,
    #[serde(default)]
    evals: Vec<String>,
    owner: Option<String>,
    #[serde(default)]
    model_policy: Map<String, Value>,
    #[serde(default)]
    rollout_policy: Map<String, Value>,
    quota_id: Option<String>,
    system_prompt: Option<String>,
    #[serde(default)]
    model: Model,
    #[serde(default)]
    limits: Limits,
    #[serde(default = "no_memory")]
    memory: PersonaMemory,
    #[serde(default)]
    isolated_replay: bool,
    #[serde(default)]
    forbids_replay: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    contracts: Option<String>,
    #[serde(default)]
    metadata: Map<String, Value>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Model {
    #[serde(skip_serializing_if = "Option::is_none")]
    provider: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f64>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Limits {
    #[serde(skip_serializing_if = "Option::is_none")]
    steps_max: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens_max: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost_micros_max: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls_max: Option<u64>,
}

const fn no_memory() -> PersonaMemory {
    PersonaMemory::None
}

/// What is wrong with a file, and where.
struct FileProblem {
    line: Option<u64>,
    message: String,
}

/// Reads a file and returns the body that defines its persona.
///
/// # Errors
/// Names the file, the line and what is wrong there.
pub(super) fn read(path: &Path) -> anyhow::Result<Value> {
    let text = task::read(path)?;
    let extension = path.extension().and_then(|extension| extension.to_str());
    let parsed = match extension.map(str::to_ascii_lowercase).as_deref() {
        Some("toml") => toml(&text),
        Some("json") => json(&text),
        Some("yaml" | "yml") | None => yaml(&text),
        Some(_) => {
            return Err(Problem::new(
                format!(
                    "`{}` is not a .yaml, .yml, .toml or .json file",
                    path.display()
                ),
                "name the file after its format",
            )
            .into());
        }
    };
    let hint = "`reprise persona apply --help` shows a file";
    let file = parsed.map_err(|wrong| {
        let place = match wrong.line {
            Some(line) => format!("{}:{line}", path.display()),
            None => path.display().to_string(),
        };
        Problem::new(format!("{place}: {}", wrong.message), hint)
    })?;
    serde_json::to_value(file).or_hint(format_args!("`{}`", path.display()), hint)
}

/// Returns a reader's message without the place, which stands before it.
fn words(message: &str) -> String {
    let message = message
        .rsplit_once(" at line ")
        .map_or(message, |(message, _)| message);
    message.to_owned()
}

fn yaml(text: &str) -> Result<PersonaFile, FileProblem> {
    yaml::from_str(text, LIMITS).map_err(|error| FileProblem {
        line: error.place().map(|place| place.line as u64),
        message: error.message().to_owned(),
    })
}

fn toml(text: &str) -> Result<PersonaFile, FileProblem> {
    toml::from_str(text).map_err(|error| FileProblem {
        line: error.span().map(|span| {
            let before = text.as_bytes().iter().take(span.start);
            before.filter(|byte| **byte == b'\n').count() as u64 + 1
        }),
        message: error.message().to_owned(),
    })
}

fn json(text: &str) -> Result<PersonaFile, FileProblem> {
    let file = serde_json::from_str(text).map_err(|error| FileProblem {
        line: Some(error.line() as u64).filter(|line| *line > 0),
        message: words(&error.to_string()),
    })?;
    // Strict about what a typed reader lets pass, such as a member that is there twice further in.
    canon::read_object(text.as_bytes(), canon::Integers::Safe).map_err(|error| FileProblem {
        line: None,
        message: error.to_string(),
    })?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    const YAML: &str = "name: reviewer\nversion: 1\nentry_workflow: agent\ndescription: Reviews\nautonomy_tier: suggest\n\
        receipt_policy: required\nlimits: {steps_max: 8}\ntools: [git.diff]\nisolated_replay: true\nmetadata: {team: a, yes: no}\n";
    const TOML: &str = "name = 'reviewer'\nversion = '1'\nentry_workflow = 'agent'\ndescription = 'Reviews'\n\
        autonomy_tier = 'suggest'\nreceipt_policy = 'required'\ntools = ['git.diff']\nisolated_replay = true\n[limits]\nsteps_max = 8\n\
        [metadata]\nteam = 'a'\nyes = 'no'\n";

    fn value(parsed: Result<PersonaFile, FileProblem>) -> Value {
        match parsed {
            Ok(file) => serde_json::to_value(file).unwrap(),
            Err(wrong) => panic!("{:?}: {}", wrong.line, wrong.message),
        }
    }

    fn line(parsed: Result<PersonaFile, FileProblem>) -> Option<u64> {
        parsed.map_err(|wrong| wrong.line).unwrap_err()
    }

    #[test]
    fn the_three_formats_say_the_same() {
        let read = value(yaml(YAML));
        assert_eq!(read["version"], "1");
        assert_eq!(read["metadata"]["yes"], "no", "a word is no truth value");
        assert_eq!(value(toml(TOML)), read);
        assert_eq!(value(json(&read.to_string())), read);
        assert_eq!(value(yaml(&read.to_string())), read);
    }

    #[test]
    fn a_mistake_is_told_with_its_line() {
        assert_eq!(
            line(yaml(&YAML.replace("tools:", "tolls:"))),
            Some(8),
            "an unknown member"
        );
        assert_eq!(
            line(yaml(&YAML.replace("suggest", "suggests"))),
            Some(5),
            "an unknown word"
        );
        assert_eq!(
            line(yaml(&format!("{YAML}name: again\n"))),
            Some(11),
            "a member twice"
        );
        assert_eq!(
            line(yaml(&YAML.replace("true", "yes"))),
            Some(9),
            "no truth value"
        );
        assert_eq!(
            line(toml(&TOML.replace("steps_max = 8", "steps = 8"))),
            Some(10)
        );
        assert_eq!(line(toml(&TOML.replace("'suggest'", "1"))), Some(5));
        assert_eq!(line(json("{\n\"name\": 1}")), Some(2));
        let twice = value(yaml(YAML))
            .to_string()
            .replace("\"team\":\"a\"", "\"team\":\"a\",\"team\":\"b\"");
        assert!(json(&twice).is_err(), "a member twice, further in");
    }
}
