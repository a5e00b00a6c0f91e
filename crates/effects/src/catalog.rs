//! The tools that models may call: declared commands and what MCP servers offer.

use std::collections::BTreeMap;

use canon::{Value, sha256};
use serde::Serialize;

use crate::config::{ConfigError, SecretRef, is_tool_name};
use crate::mcp::{SEPARATOR, Server, Servers};
use crate::secrets::Secrets;
use crate::tool::{Tool, Tools};

/// The longest name that every provider takes.
const NAME_BYTES_MAX: usize = 64;
/// How many names a complaint lists.
const LISTED_MAX: usize = 20;
/// How much of a digest tells names apart that had to be changed.
const NAME_DIGEST_CHARS: usize = 8;

/// A tool as models and workflows see it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CatalogTool {
    /// Its name for models.
    pub name: String,
    /// What it does.
    pub description: String,
    /// What it takes, as a JSON Schema.
    pub parameters: Value,
    /// Who runs it.
    pub via: ToolOrigin,
    /// The MCP server that offers it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// Its name there, or of the declared command.
    pub tool: String,
    /// True when it may be called again after a crash that left its result unknown.
    pub repeatable: bool,
    /// True when the operator says that it changes nothing, and its server does not say otherwise.
    pub read_only: bool,
    /// The names of the secrets that it is given.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<String>,
}

/// Who runs a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolOrigin {
    /// An MCP server.
    Mcp,
    /// A declared command.
    Local,
}

/// Why the tools cannot be listed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CatalogError {
    /// A stable word for programs.
    pub code: &'static str,
    /// Why, for people.
    pub message: String,
}

/// Refuses names that could mean two things.
pub(crate) fn check(tools: &Tools, servers: &Servers) -> Result<(), ConfigError> {
    for tool in tools.iter() {
        let name = &tool.config.name;
        let taken = servers.iter().find(|server| {
            let id = server.id();
            name == id || name.starts_with(&format!("{id}{SEPARATOR}"))
        });
        if let Some(server) = taken {
            return Err(ConfigError::new(
                format!("tool `{name}`"),
                format!("could be taken for a tool of MCP server `{}`", server.id()),
            ));
        }
    }
    Ok(())
}

/// Lists the named tools, or all: `name` is a command, `server` all tools of a server, `server.tool` one of them.
pub(crate) async fn list(
    tools: &Tools,
    servers: &Servers,
    names: Option<&[&str]>,
    secrets: &Secrets,
) -> Result<Vec<CatalogTool>, CatalogError> {
    let mut listed = BTreeMap::new();
    let mut add = |tool: CatalogTool| listed.insert(tool.name.clone(), tool);
    let mut wanted: BTreeMap<&str, Vec<Option<&str>>> = BTreeMap::new();
    match names {
        None => {
            for tool in tools.iter() {
                add(local(tool));
            }
            for server in servers.iter() {
                wanted.entry(server.id()).or_default().push(None);
            }
        }
        Some(names) => {
            for name in names {
                if let Some(tool) = tools.find(name) {
                    add(local(tool));
                    continue;
                }
                let (id, tool) = match name.split_once('.') {
                    Some((id, tool)) => (id, Some(tool)),
                    None => (*name, None),
                };
                if servers.find(id).is_none() {
                    return Err(unknown(name, &there_are(tools, servers, name)));
                }
                wanted.entry(id).or_default().push(tool);
            }
        }
    }
    for (id, wanted) in wanted {
        let Some(server) = servers.find(id) else {
            continue;
        };
        let offered = offered(server, secrets).await?;
        for want in wanted {
            let mut found = false;
            for tool in offered
                .iter()
                .filter(|tool| want.is_none_or(|name| tool.tool == name))
            {
                found = true;
                add(tool.clone());
            }
            if let (Some(tool), false) = (want, found) {
                let names = offered.iter().map(|tool| tool.tool.as_str());
                let there_are = format!("`{id}` has {}", listed_names(names));
                return Err(unknown(&format!("{id}.{tool}"), &there_are));
            }
        }
    }
    Ok(listed.into_values().collect())
}

fn unknown(name: &str, there_are: &str) -> CatalogError {
    CatalogError {
        code: "tool_unknown",
        message: format!(
            "there is no tool `{name}`: a persona names a command, an MCP `server`, or one `server.tool`; {there_are}"
        ),
    }
}

/// What a persona can name, as far as the configuration says it.
fn there_are(tools: &Tools, servers: &Servers, name: &str) -> String {
    let called = name
        .split_once(SEPARATOR)
        .filter(|(id, _)| servers.find(id).is_some());
    if let Some((id, tool)) = called {
        return format!("models call it `{name}`, personas `{id}.{tool}`");
    }
    let commands = listed_names(tools.iter().map(|tool| tool.config.name.as_str()));
    let ids = listed_names(servers.iter().map(|server| server.id()));
    match (commands.is_empty(), ids.is_empty()) {
        (true, true) => "the configuration has none".to_owned(),
        (false, true) => format!("there are {commands}"),
        (true, false) => format!("there are the servers {ids}"),
        (false, false) => format!("there are {commands} and the servers {ids}"),
    }
}

fn listed_names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut names: Vec<&str> = names.take(LISTED_MAX + 1).collect();
    if names.len() > LISTED_MAX {
        names.truncate(LISTED_MAX);
        names.push("…");
    }
    names.join(", ")
}

fn local(tool: &Tool) -> CatalogTool {
    let config = &tool.config;
    CatalogTool {
        name: config.name.clone(),
        description: config.description.clone(),
        parameters: config.parameters.clone(),
        via: ToolOrigin::Local,
        server: None,
        tool: config.name.clone(),
        repeatable: config.repeatable || config.read_only,
        read_only: config.read_only,
        secrets: names(config.secrets.values()),
    }
}

/// The names of secrets, each once. One of another vault keeps that vault's name before it.
fn names<'a>(secrets: impl Iterator<Item = &'a SecretRef>) -> Vec<String> {
    let mut names: Vec<String> = secrets.map(|secret| secret.0.clone()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

async fn offered(server: &Server, secrets: &Secrets) -> Result<Vec<CatalogTool>, CatalogError> {
    let id = server.id();
    let tools = server.tools(secrets).await;
    let scrubber = secrets.scrubber();
    let tools = tools.map_err(|error| {
        let (code, message) = error.code_and_reason(id, &scrubber);
        CatalogError { code, message }
    })?;
    Ok(tools
        .into_iter()
        .map(|tool| {
            // What a server says of its own tools is no promise: it can only take back what the operator says.
            let hints = tool.annotations.unwrap_or_default();
            let changes =
                hints.read_only_hint == Some(false) || hints.destructive_hint == Some(true);
            let read_only = server.is_read_only(&tool.name) && !changes;
            let again = server.is_repeatable(&tool.name) && hints.idempotent_hint != Some(false);
            CatalogTool {
                name: model_name(id, &tool.name),
                description: scrubber.text(tool.description.as_deref().unwrap_or_default()),
                parameters: scrubber.texts(Value::Object((*tool.input_schema).clone())),
                via: ToolOrigin::Mcp,
                server: Some(id.to_owned()),
                repeatable: read_only || again,
                read_only,
                tool: tool.name.into_owned(),
                secrets: names(server.secrets()),
            }
        })
        .collect())
}

/// `server__tool`; a name that providers would refuse is made to fit, with a digest that keeps it apart.
fn model_name(server: &str, tool: &str) -> String {
    let whole = format!("{server}{SEPARATOR}{tool}");
    if is_tool_name(&whole) {
        return whole;
    }
    let digest = sha256(whole.as_bytes()).hex();
    let digest: String = digest.chars().take(NAME_DIGEST_CHARS).collect();
    let fits = |character: char| character.is_ascii_alphanumeric() || character == '-';
    let short: String = whole
        .chars()
        .map(|character| if fits(character) { character } else { '_' })
        .take(NAME_BYTES_MAX - NAME_DIGEST_CHARS - 1)
        .collect();
    format!("{short}_{digest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_for_models_fit_every_provider_and_stay_apart() {
        assert_eq!(model_name("files", "read_file"), "files__read_file");
        let odd = model_name("files", "read.file");
        assert!(odd.starts_with("files__read_file_"), "{odd}");
        assert_ne!(odd, model_name("files", "read/file"));
        let long = model_name("files", &"x".repeat(100));
        assert!(is_tool_name(&long), "{long}");
        assert_ne!(long, model_name("files", &"x".repeat(101)));
    }
}
