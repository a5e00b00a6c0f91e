//! The sidecar as typed data: the AHD block, the general sidecar, and reading either.
//!
//! Fields are in the order in which a sidecar is written. Numbers stay as they were written: the
//! schemas bound them less than any integer type.

use canon::{Digest, Integers, Number, ReadError, Value};
use serde::{Deserialize, Serialize};

use crate::hash::{Mode, Profile};
use crate::shape::{self, AHD_KINDS, Problem};

/// The newest `schema_version` that this reader knows.
pub const SCHEMA_VERSION: u64 = 1;

/// A file and its hash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HashedFile {
    /// Where the file is, relative to the root; published blocks also hold absolute paths.
    pub path: String,
    /// The recorded hash.
    pub hash: Digest,
}

/// How samples were drawn in an AHD run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AhdSampling {
    /// Samples per cell.
    pub n: Number,
    /// Null when not set.
    pub temperature: Option<Number>,
    /// Null when seeds vary.
    pub seed: Option<Number>,
}

/// A model of an AHD run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AhdModel {
    /// The model's name.
    pub id: String,
    /// Who serves it.
    pub provider: String,
    /// One id per successful call.
    pub provider_request_ids: Vec<String>,
}

/// What was asked for and what ran.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conditions {
    /// Asked for.
    pub requested: Vec<String>,
    /// What really ran.
    pub effective: Vec<String>,
}

/// A schema 1 block of one of the [`AHD_KINDS`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the members are those of the published format")]
pub struct Ahd {
    pub schema_version: Number,
    pub kind: String,
    pub ahd_version: String,
    pub ahd_commit: Option<String>,
    pub git_dirty: Option<bool>,
    pub node_version: String,
    pub platform: String,
    pub invoked_at: String,
    pub argv: Vec<String>,
    pub token: HashedFile,
    pub brief: Option<HashedFile>,
    pub sampling: AhdSampling,
    pub models: Vec<AhdModel>,
    pub conditions: Conditions,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backfilled: Option<bool>,
}

/// The program that ran, and from which commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the members are those of the published format")]
pub struct Tool {
    pub name: String,
    pub version: String,
    pub commit: Option<String>,
    pub dirty: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repository: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub binary_hash: Option<Digest>,
}

/// The interpreter or virtual machine of the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the members are those of the published format")]
pub struct Runtime {
    pub name: String,
    pub version: String,
}

/// An input, an output or the report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Artifact {
    /// What the file is to the run.
    pub role: String,
    /// Where it is, relative to the root.
    pub path: String,
    /// The recorded hash.
    pub hash: Digest,
    /// How it was hashed.
    pub mode: Mode,
    /// Size of a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Number>,
    /// Media type of a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    /// Outputs: whether a rerun is expected to give the same hash.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stable: Option<bool>,
}

/// How samples were drawn, general form.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the members are those of the published format")]
pub struct Sampling {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seeds: Option<Vec<Number>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<Number>,
}

/// A model and what its provider reported.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the members are those of the published format")]
pub struct Model {
    pub id: String,
    pub provider: String,
    pub provider_request_ids: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reported_ids: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_in: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_out: Option<Number>,
}

/// The agent and what defines it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the members are those of the published format")]
pub struct Agent {
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_hash: Option<Digest>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<AgentTool>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy_hash: Option<Digest>,
}

/// A tool that the agent could call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the members are those of the published format")]
pub struct AgentTool {
    pub name: String,
    pub schema_hash: Digest,
}

/// A recording of the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the members are those of the published format")]
pub struct Trace {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    pub hash: Digest,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub events: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
}

/// Where the run took place.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the members are those of the published format")]
pub struct Environment {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub env: Option<std::collections::BTreeMap<String, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub locale: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container_image: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
}

/// A value that was left out, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the members are those of the published format")]
pub struct Redaction {
    pub pointer: String,
    pub reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hash: Option<Digest>,
}

/// The sidecar that this one follows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the members are those of the published format")]
pub struct Parent {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    pub hash: Digest,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relation: Option<String>,
}

/// The proof that a recorder saw the run: its receipt, and the receipt's place in the recorder's log.
///
/// Receipt, proof and checkpoint are carried as they are; this crate does not judge them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Recording {
    /// The task that was the run.
    pub task_id: String,
    /// Its receipt.
    pub receipt: Value,
    /// The way from the receipt's leaf to the root of the log.
    pub proof: Value,
    /// The signed checkpoint that states this root.
    pub checkpoint: String,
}

/// An Ed25519 signature over [`signed_bytes`](crate::signed_bytes).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signature {
    /// Always `ed25519`.
    pub alg: String,
    /// Which key signed, as the signer calls it.
    pub key_id: String,
    /// The signature in base64url without padding.
    pub value: String,
}

/// A sidecar of any kind outside [`AHD_KINDS`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the members are those of the published format")]
pub struct General {
    pub schema_version: Number,
    pub kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<Profile>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    pub tool: Tool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime: Option<Runtime>,
    pub platform: String,
    pub invoked_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<Number>,
    pub argv: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    pub inputs: Vec<Artifact>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outputs: Option<Vec<Artifact>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub report: Option<Artifact>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampling: Option<Sampling>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub models: Option<Vec<Model>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Conditions>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<Agent>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<Trace>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub environment: Option<Environment>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redactions: Option<Vec<Redaction>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backfilled: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recording: Option<Recording>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signature: Option<Signature>,
}

impl General {
    /// Returns the general form of an AHD block (section 10.1), under the kind `ahd.KIND`.
    ///
    /// Only the mode of the brief is not in an AHD block; the caller found it by verifying.
    pub fn import(ahd: &Ahd, brief_mode: Mode) -> Self {
        let artifact = |role: &str, file: &HashedFile, mode| Artifact {
            role: role.to_owned(),
            path: file.path.clone(),
            hash: file.hash,
            mode,
            bytes: None,
            media_type: None,
            stable: None,
        };
        let mut inputs = vec![artifact("token", &ahd.token, Mode::CanonicalJson)];
        inputs.extend(
            ahd.brief
                .iter()
                .map(|brief| artifact("brief", brief, brief_mode)),
        );
        Self {
            schema_version: ahd.schema_version.clone(),
            kind: format!("ahd.{}", ahd.kind),
            profile: Some(Profile::AhdJs1),
            run_id: None,
            tool: Tool {
                name: "ahd".to_owned(),
                version: ahd.ahd_version.clone(),
                commit: ahd.ahd_commit.clone(),
                dirty: ahd.git_dirty,
                repository: None,
                binary_hash: None,
            },
            runtime: Some(Runtime {
                name: "node".to_owned(),
                version: ahd.node_version.clone(),
            }),
            platform: ahd.platform.clone(),
            invoked_at: ahd.invoked_at.clone(),
            finished_at: None,
            exit_code: None,
            argv: ahd.argv.clone(),
            cwd: None,
            inputs,
            outputs: None,
            report: None,
            sampling: Some(Sampling {
                n: Some(ahd.sampling.n.clone()),
                temperature: ahd.sampling.temperature.clone(),
                seed: ahd.sampling.seed.clone(),
                ..Sampling::default()
            }),
            models: Some(ahd.models.iter().map(Model::import).collect()),
            conditions: Some(ahd.conditions.clone()),
            agent: None,
            trace: None,
            environment: None,
            redactions: None,
            parent: None,
            backfilled: ahd.backfilled,
            recording: None,
            signature: None,
        }
    }
}

impl Model {
    fn import(model: &AhdModel) -> Self {
        Self {
            id: model.id.clone(),
            provider: model.provider.clone(),
            provider_request_ids: model.provider_request_ids.clone(),
            reported_ids: None,
            endpoint: None,
            calls: None,
            tokens_in: None,
            tokens_out: None,
        }
    }
}

/// A sidecar of either shape; `kind` decides.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Sidecar {
    /// One of the [`AHD_KINDS`].
    Ahd(Box<Ahd>),
    /// Any other kind.
    General(Box<General>),
}

/// A sidecar that was read, with what was skipped over.
#[derive(Debug, Clone)]
pub struct ReadSidecar {
    /// The typed sidecar.
    pub sidecar: Sidecar,
    /// The document as it was written, unknown members included.
    pub document: Value,
    /// JSON pointers of members that were ignored.
    pub unknown: Vec<String>,
}

/// Why a sidecar gives no verdict.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SidecarError {
    /// Not JSON, or JSON that cannot be read without loss.
    #[error("not a JSON sidecar: {0}")]
    NotJson(ReadError),
    /// Written by a newer program, which may mean other things by the same words.
    #[error("schema_version {0} is newer than {SCHEMA_VERSION}, the newest this program knows")]
    Newer(Number),
    /// Does not fit its shape.
    #[error("the sidecar does not fit its shape: {}", list(.0))]
    Invalid(Vec<Problem>),
}

impl SidecarError {
    /// Returns the stable name of the error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotJson(_) | Self::Invalid(_) => "invalid_sidecar",
            Self::Newer(_) => "unsupported_schema_version",
        }
    }
}

fn list(problems: &[Problem]) -> String {
    let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
    lines.join("; ")
}

/// Reads a sidecar. Unknown members are listed and skipped, or refused when `strict`.
///
/// # Errors
/// The bytes are not JSON, the version is newer, or the shape does not fit; checked in this order.
pub fn read_sidecar(bytes: &[u8], strict: bool) -> Result<ReadSidecar, SidecarError> {
    let document = canon::read(bytes, Integers::Doubles).map_err(SidecarError::NotJson)?;
    if let Some(Value::Number(version)) = document.get("schema_version")
        && version
            .as_f64()
            .is_some_and(|version| version > SCHEMA_VERSION as f64)
    {
        return Err(SidecarError::Newer(version.clone()));
    }
    let is_ahd = document
        .get("kind")
        .and_then(Value::as_str)
        .is_some_and(|kind| AHD_KINDS.contains(&kind));
    let shape = if is_ahd {
        shape::check_ahd(&document)
    } else {
        shape::check_general(&document)
    };
    let mut problems = shape.problems;
    if strict {
        problems.extend(shape.unknown.iter().map(|pointer| Problem {
            pointer: pointer.clone(),
            message: "is not a known member".to_owned(),
        }));
    }
    if !problems.is_empty() {
        return Err(SidecarError::Invalid(problems));
    }
    // Invariant: what passed the shape also decodes; the shape is the narrower of the two.
    let decoded = if is_ahd {
        serde_json::from_value(document.clone()).map(|ahd| Sidecar::Ahd(Box::new(ahd)))
    } else {
        serde_json::from_value(document.clone()).map(|general| Sidecar::General(Box::new(general)))
    };
    let sidecar = decoded.map_err(|error| {
        SidecarError::Invalid(vec![Problem {
            pointer: String::new(),
            message: error.to_string(),
        }])
    })?;
    Ok(ReadSidecar {
        sidecar,
        document,
        unknown: shape.unknown,
    })
}

impl Sidecar {
    /// Returns the text of a sidecar file: two-space indentation and a final newline.
    ///
    /// # Errors
    /// The sidecar does not fit the writer's shape (RB-CAP-03).
    pub fn text(&self) -> Result<String, SidecarError> {
        let invalid = |error: serde_json::Error| {
            SidecarError::Invalid(vec![Problem {
                pointer: String::new(),
                message: error.to_string(),
            }])
        };
        let mut text = serde_json::to_string_pretty(self).map_err(invalid)?;
        text.push('\n');
        read_sidecar(text.as_bytes(), true)?;
        Ok(text)
    }

    /// Returns the kind of run.
    pub fn kind(&self) -> &str {
        match self {
            Self::Ahd(ahd) => &ahd.kind,
            Self::General(general) => &general.kind,
        }
    }

    /// Returns name and version of the tool.
    pub fn tool(&self) -> (&str, &str) {
        match self {
            Self::Ahd(ahd) => ("ahd", &ahd.ahd_version),
            Self::General(general) => (&general.tool.name, &general.tool.version),
        }
    }

    /// Returns the recorded commit.
    pub fn commit(&self) -> Option<&str> {
        match self {
            Self::Ahd(ahd) => ahd.ahd_commit.as_deref(),
            Self::General(general) => general.tool.commit.as_deref(),
        }
    }

    /// Says whether the checkout had uncommitted changes.
    pub fn dirty(&self) -> bool {
        match self {
            Self::Ahd(ahd) => ahd.git_dirty == Some(true),
            Self::General(general) => general.tool.dirty == Some(true),
        }
    }

    /// Returns when the run started.
    pub fn invoked_at(&self) -> &str {
        match self {
            Self::Ahd(ahd) => &ahd.invoked_at,
            Self::General(general) => &general.invoked_at,
        }
    }

    /// Returns the command.
    pub fn argv(&self) -> &[String] {
        match self {
            Self::Ahd(ahd) => &ahd.argv,
            Self::General(general) => &general.argv,
        }
    }

    /// Says whether the block was rebuilt after the fact.
    pub fn backfilled(&self) -> bool {
        match self {
            Self::Ahd(ahd) => ahd.backfilled == Some(true),
            Self::General(general) => general.backfilled == Some(true),
        }
    }
}
