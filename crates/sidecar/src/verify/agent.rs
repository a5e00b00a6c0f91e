//! What defines the agent, compared with its recorded hashes.
//!
//! A sidecar holds no paths for these, so the caller names the files. What was asked for and not recorded fails:
//! silence would pass for agreement.

use canon::Digest;

use super::{Check, Content, Outcome, Profile, Reason, either, judge};
use crate::block::{Agent, AgentTool};

/// Files that are said to define the agent; none is compared that is not named.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AgentFiles {
    /// Its configuration.
    pub config: Option<Content>,
    /// Schemas of its tools, by name.
    pub tools: Vec<(String, Content)>,
    /// Its policy.
    pub policy: Option<Content>,
}

pub(super) fn checks(agent: Option<&Agent>, files: &AgentFiles, profile: Profile) -> Vec<Check> {
    let name = agent.map_or("agent", |agent| &agent.name);
    let tools = agent.and_then(|agent| agent.tools.as_deref());
    let tools = tools.unwrap_or_default();
    let config = files.config.as_ref().map(|content| {
        let recorded = agent.and_then(|agent| agent.config_hash);
        compare("agent", name, recorded, content, profile)
    });
    let schemas = files.tools.iter().map(|(name, content)| {
        let is_named = |tool: &AgentTool| tool.name == *name;
        let recorded = tools.iter().find(|tool| is_named(tool));
        let field = match tools.iter().position(is_named) {
            Some(index) => format!("agent/tools/{index}"),
            None => "agent/tools".to_owned(),
        };
        let recorded = recorded.map(|tool| tool.schema_hash);
        compare(&field, name, recorded, content, profile)
    });
    let policy = files.policy.as_ref().map(|content| {
        let recorded = agent.and_then(|agent| agent.policy_hash);
        compare("agent/policy", name, recorded, content, profile)
    });
    config.into_iter().chain(schemas).chain(policy).collect()
}

fn compare(
    field: &str,
    name: &str,
    recorded: Option<Digest>,
    content: &Content,
    profile: Profile,
) -> Check {
    let Some(recorded) = recorded else {
        return Check::new(
            field,
            name,
            (Outcome::Fail, Some(Reason::NotRecorded), None),
        );
    };
    let outcome = either(content, recorded, profile);
    judge(field, name, None, recorded, outcome)
}
