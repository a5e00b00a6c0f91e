//! What defines the agent of a run: its configuration, the schemas of its tools, its policy.
//!
//! Recorded as hashes alone; the files may lie anywhere.

use std::path::{Path, PathBuf};

use ::sidecar::{Agent, AgentTool, Profile, canonical_hash};
use anyhow::{Context as _, ensure};
use canon::Digest;

use super::super::files::read_named;
use super::super::hashing::{NamedFile, is_structured};

/// The agent of a general kind.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Agent (other kinds)")]
pub(in super::super) struct AgentArgs {
    /// Name of the agent.
    #[arg(long, value_name = "NAME")]
    agent_name: Option<String>,
    /// Version of the agent.
    #[arg(long, value_name = "VERSION", requires = "agent_name")]
    agent_version: Option<String>,
    /// Configuration of the agent, a structured file; its hash is recorded.
    #[arg(long, value_name = "FILE", requires = "agent_name")]
    agent_config: Option<PathBuf>,
    /// A tool that the agent could call and the structured file with its schema, whose hash is recorded; repeat for
    /// more.
    #[arg(long = "agent-tool", value_name = "NAME=FILE", value_parser = NamedFile::parse, requires = "agent_name")]
    agent_tools: Vec<NamedFile>,
    /// The policy that bound the agent; its hash is recorded: .yml, .yaml and .json by value, other files by their
    /// bytes.
    #[arg(long, value_name = "FILE", requires = "agent_name")]
    agent_policy: Option<PathBuf>,
}

impl AgentArgs {
    /// Says whether no agent was named; the other flags need its name.
    pub(super) fn is_empty(&self) -> bool {
        self.agent_name.is_none()
    }

    /// Hashes what defines the agent.
    pub(super) fn agent(&self) -> anyhow::Result<Option<Agent>> {
        let Some(name) = &self.agent_name else {
            return Ok(None);
        };
        let mut tools: Vec<AgentTool> = Vec::new();
        for NamedFile { name, path } in &self.agent_tools {
            let twice = tools.iter().any(|tool| tool.name == *name);
            ensure!(!twice, "--agent-tool names `{name}` twice");
            tools.push(AgentTool {
                name: name.clone(),
                schema_hash: by_value(path)?,
            });
        }
        let policy_hash = match &self.agent_policy {
            Some(path) if is_structured(path) => Some(by_value(path)?),
            Some(path) => Some(read_named(path)?.digest),
            None => None,
        };
        Ok(Some(Agent {
            name: name.clone(),
            version: self.agent_version.clone(),
            config_hash: self.agent_config.as_deref().map(by_value).transpose()?,
            tools: (!tools.is_empty()).then_some(tools),
            policy_hash,
        }))
    }
}

fn by_value(path: &Path) -> anyhow::Result<Digest> {
    let bytes = read_named(path)?.bytes.unwrap_or_default();
    canonical_hash(&bytes, Profile::Jcs1)
        .with_context(|| format!("cannot hash `{}`", path.display()))
}
