//! Personas: the definition of an agent, and the copy of it that a Task runs under.
//!
//! A definition is fixed by its name and version; what may change later (description, policies, the caller's own
//! members) never reaches a Task that was submitted before, because the Task holds a copy.
//!
//! Members that say nothing are not written: a member added later then changes no digest of what is stored already.

use canon::{Digest, Map, Value};
use serde::{Deserialize, Serialize};

use crate::PersonaId;

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$variant_doc])* #[serde(rename = $text)] $variant,)*
        }

        impl $name {
            /// Every word, in the order of the protocol.
            pub const WORDS: &[&str] = &[$($text,)*];

            /// Returns the word.
            pub const fn as_str(self) -> &'static str {
                match self { $($name::$variant => $text,)* }
            }

            /// Reads the word.
            pub fn parse(text: &str) -> Option<Self> {
                match text {
                    $($text => Some($name::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

words! {
    /// How far an agent may go on its own.
    AutonomyTier {
        /// It performs no side effect.
        Shadow = "shadow",
        /// It proposes.
        Suggest = "suggest",
        /// It acts once somebody approved.
        ActWithApproval = "act_with_approval",
        /// It acts.
        ActAuto = "act_auto",
    }
}

words! {
    /// Whether the end of a Task leaves a Receipt.
    ReceiptPolicy {
        /// Always.
        Required = "required",
        /// It may; here it does.
        Optional = "optional",
        /// Never.
        Disabled = "disabled",
    }
}

words! {
    /// What an agent remembers beyond its input.
    PersonaMemory {
        /// Nothing.
        None = "none",
        /// The Session's transcript.
        Session = "session",
        /// What agents share in the default field of the Workspace: read before it begins, written when it is done.
        Field = "field",
    }
}

/// All that a Persona says, the caller's own members excepted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PersonaSpec {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The registered name of the workflow that runs its Tasks.
    pub entry_workflow: String,
    /// One line for people.
    pub description: String,
    /// How far it may go on its own.
    pub autonomy_tier: AutonomyTier,
    /// Whether its Tasks leave Receipts.
    pub receipt_policy: ReceiptPolicy,
    /// The tools it may use, by name. None when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<String>,
    /// Declared capabilities.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub capabilities: Vec<String>,
    /// What starts it, as given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub triggers: Vec<Map<String, Value>>,
    /// When it starts, as given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub schedules: Vec<Map<String, Value>>,
    /// Whom it hands work to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub handoffs: Vec<String>,
    /// What it knows beforehand, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub context_packs: Vec<String>,
    /// What it is measured by, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evals: Vec<String>,
    /// Who answers for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Which models it may use, as given.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub model_policy: Map<String, Value>,
    /// How a new version is brought in, as given.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub rollout_policy: Map<String, Value>,
    /// The quota that applies, by id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota_id: Option<String>,
    /// What the model is told before anything else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
    /// Which model, and how it is called.
    #[serde(default, skip_serializing_if = "PersonaModel::is_empty")]
    pub model: PersonaModel,
    /// What a Task of it may use up.
    #[serde(default, skip_serializing_if = "PersonaLimits::is_empty")]
    pub limits: PersonaLimits,
    /// What it remembers.
    #[serde(default = "no_memory", skip_serializing_if = "is_no_memory")]
    pub memory: PersonaMemory,
    /// True when replays of its Tasks must not see the Session.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub isolated_replay: bool,
    /// True when its Tasks are not to be replayed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub forbids_replay: bool,
    /// The contracts that its tool calls are judged by: the name of a set in the server's configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contracts: Option<String>,
}

const fn no_memory() -> PersonaMemory {
    PersonaMemory::None
}

fn is_no_memory(memory: &PersonaMemory) -> bool {
    *memory == PersonaMemory::None
}

/// Which model, and how it is called. What is absent is the server's choice.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PersonaModel {
    /// Who serves it, by the configured name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// Its name there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The most tokens of one answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// How freely it answers, from 0 to 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
}

impl PersonaModel {
    /// True when it says nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What one Task may use up. What is absent is bounded by the server alone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PersonaLimits {
    /// Model calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps_max: Option<u64>,
    /// Tokens read and written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_max: Option<u64>,
    /// Money, in millionths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_micros_max: Option<u64>,
    /// Tool calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls_max: Option<u64>,
}

impl PersonaLimits {
    /// True when it says nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What may change of a Persona. Absent members stay as they are.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PersonaChange {
    /// New description.
    pub description: Option<String>,
    /// New policy.
    pub receipt_policy: Option<ReceiptPolicy>,
    /// New quota; the inner none removes it.
    pub quota_id: Option<Option<String>>,
    /// New metadata, replacing the old.
    pub metadata: Option<Map<String, Value>>,
}

/// The copy of a Persona that a Task runs under: the payload member `persona` of `task.submitted`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PersonaSnapshot {
    /// The Persona.
    pub id: PersonaId,
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// How far the Task may go on its own.
    pub autonomy_tier: AutonomyTier,
    /// Whether the Task leaves a Receipt.
    pub receipt_policy: ReceiptPolicy,
    /// The tools it may use.
    pub tools: Vec<String>,
    /// What the model is told before anything else.
    pub system_prompt: Option<String>,
    /// Which model, and how it is called.
    pub model: PersonaModel,
    /// What it may use up.
    pub limits: PersonaLimits,
    /// What it remembers.
    pub memory: PersonaMemory,
    /// True when replays must not see the Session.
    pub isolated_replay: bool,
    /// True when its Tasks are not to be replayed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub forbids_replay: bool,
    /// The contracts that its tool calls are judged by, as they were then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contracts: Option<ContractTexts>,
}

/// A set of contracts with its texts, so that a run can be judged again without the server's configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContractTexts {
    /// Its name in the server's configuration.
    pub name: String,
    /// The digest of the compiled set.
    pub sha256: Digest,
    /// The contracts.
    pub files: Vec<ContractText>,
    /// The session file, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<ContractText>,
    /// Who the agent is, for policies.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub principal: Map<String, Value>,
}

/// A file of a set of contracts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContractText {
    /// The name that findings and decisions show.
    pub file: String,
    /// Its text.
    pub text: String,
}

/// What the document of a Task holds of the Persona it runs under: the rest is in `task.submitted`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskPersona {
    /// The Persona.
    pub id: PersonaId,
    /// Its version.
    pub version: String,
    /// How far the Task may go on its own.
    pub autonomy_tier: AutonomyTier,
    /// Whether the Task leaves a Receipt.
    pub receipt_policy: ReceiptPolicy,
}

impl TaskPersona {
    /// Returns how Receipts name it.
    pub fn reference(&self) -> String {
        format!("{}@{}", self.id, self.version)
    }
}

impl PersonaSpec {
    /// Returns what a Task of this Persona runs under. The contracts are those that its name means now.
    pub fn snapshot(&self, id: PersonaId, contracts: Option<ContractTexts>) -> PersonaSnapshot {
        PersonaSnapshot {
            id,
            name: self.name.clone(),
            version: self.version.clone(),
            autonomy_tier: self.autonomy_tier,
            receipt_policy: self.receipt_policy,
            tools: self.tools.clone(),
            system_prompt: self.system_prompt.clone(),
            model: self.model.clone(),
            limits: self.limits,
            memory: self.memory,
            isolated_replay: self.isolated_replay,
            forbids_replay: self.forbids_replay,
            contracts,
        }
    }

    /// Makes a change, metadata excepted.
    pub fn change(&mut self, change: &PersonaChange) {
        if let Some(description) = &change.description {
            self.description.clone_from(description);
        }
        if let Some(policy) = change.receipt_policy {
            self.receipt_policy = policy;
        }
        if let Some(quota) = &change.quota_id {
            self.quota_id.clone_from(quota);
        }
    }
}
