//! The verify algorithm: one ok, note or FAIL per recorded hash.
//!
//! Every check runs; the first failure hides none. Compares hashes and nothing else: no network, no
//! model call, no commit.

mod agent;

use canon::{Digest, Integers};
use serde::Serialize;

use crate::block::{Ahd, Artifact, General, HashedFile, ReadSidecar, Sidecar};
use crate::files::{Content, FileError, Files, Resolved, resolve};
use crate::hash::{Mode, Profile, canonical_hash, sidecar_hash, tree_hash};
use crate::report::{self, BlockState};
use crate::yaml::{Limits, YamlError, YamlRefusal};

pub use agent::AgentFiles;

/// The answer of one check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Outcome {
    /// The hash is the recorded one.
    #[serde(rename = "ok")]
    Ok,
    /// Neither: the hash differs where it was never promised to be the same, or nobody asked.
    #[serde(rename = "note")]
    Note,
    /// The hash is not the recorded one, or there is none.
    #[serde(rename = "FAIL")]
    Fail,
}

/// Why a check failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names are the reasons")]
pub enum Reason {
    HashMismatch,
    FileMissing,
    PathOutsideRoot,
    ParseError,
    UnsupportedConstruct,
    TooLarge,
    ChangedWhileReading,
    Unreadable,
    InvalidReceipt,
    OtherTask,
    InvalidProof,
    NotInLog,
    InvalidCheckpoint,
    NotRecorded,
    NotSigned,
    KeyUnknown,
    KeyRetired,
    SignatureInvalid,
    NotChecked,
    BlockDiffers,
}

impl Reason {
    /// Returns the name used in output.
    pub fn name(self) -> &'static str {
        match self {
            Self::HashMismatch => "hash_mismatch",
            Self::FileMissing => "file_missing",
            Self::PathOutsideRoot => "path_outside_root",
            Self::ParseError => "parse_error",
            Self::UnsupportedConstruct => "unsupported_construct",
            Self::TooLarge => "too_large",
            Self::ChangedWhileReading => "changed_while_reading",
            Self::Unreadable => "unreadable",
            Self::InvalidReceipt => "invalid_receipt",
            Self::OtherTask => "other_task",
            Self::InvalidProof => "invalid_proof",
            Self::NotInLog => "not_in_log",
            Self::InvalidCheckpoint => "invalid_checkpoint",
            Self::NotRecorded => "not_recorded",
            Self::NotSigned => "not_signed",
            Self::KeyUnknown => "key_unknown",
            Self::KeyRetired => "key_retired",
            Self::SignatureInvalid => "signature_invalid",
            Self::NotChecked => "not_checked",
            Self::BlockDiffers => "block_differs",
        }
    }
}

/// One compared hash, or one checked signature.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Which one: `token`, `brief`, `inputs/0`, `outputs/0`, `report`, `trace`, `parent`, `agent`, `agent/tools/0`,
    /// `agent/policy`; from a caller that judges them also `recording/…` and `signature`.
    pub field: String,
    /// The recorded path, or the name of what was checked.
    pub path: String,
    /// Where the file was found, when the recorded path is of another machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relocated_to: Option<String>,
    /// The answer.
    pub result: Outcome,
    /// Why it is not ok.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// More about the reason, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// By which mode the hash agrees, where the sidecar does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub matched: Option<Mode>,
    /// The recorded hash; none for a signature.
    pub expected: Option<Digest>,
    /// The hash of what is there now.
    pub actual: Option<Digest>,
}

impl Check {
    /// Returns an answer that compares no hash.
    pub fn new(
        field: impl Into<String>,
        path: impl Into<String>,
        (result, reason, detail): (Outcome, Option<Reason>, Option<String>),
    ) -> Self {
        Self {
            field: field.into(),
            path: path.into(),
            relocated_to: None,
            result,
            reason,
            detail,
            matched: None,
            expected: None,
            actual: None,
        }
    }
}

/// What to look at beyond the inputs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifyOptions {
    /// Also check outputs and the report.
    pub outputs: bool,
    /// The files are those from before the run: what it wrote cannot be among them and is not looked for.
    pub before_run: bool,
    /// What defines the agent, as far as it is to be compared.
    pub agent: AgentFiles,
}

/// The outcome of a verification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verification {
    /// One entry per compared hash.
    pub checks: Vec<Check>,
    /// What a reader should know and what is not a failure.
    pub warnings: Vec<String>,
}

impl Verification {
    /// Says whether no check failed.
    pub fn clean(&self) -> bool {
        self.checks
            .iter()
            .all(|check| check.result != Outcome::Fail)
    }
}

/// Largest report or parent sidecar that is read.
pub const DOCUMENT_BYTES_MAX: u64 = 64 << 20;

/// Verifies a sidecar against files.
pub fn verify(read: &ReadSidecar, files: &dyn Files, options: &VerifyOptions) -> Verification {
    let mut warnings: Vec<String> = read
        .unknown
        .iter()
        .map(|pointer| format!("unknown_member:{pointer}"))
        .collect();
    if read.sidecar.dirty() {
        warnings.push("dirty_tree".to_owned());
    }
    if read.sidecar.backfilled() {
        warnings.push("backfilled".to_owned());
    }
    let checks = match &read.sidecar {
        Sidecar::Ahd(ahd) => ahd_checks(ahd, files, options),
        Sidecar::General(general) => {
            let mut checks = general_checks(general, files, options);
            if let Some(recorded) = &general.report
                && options.outputs
            {
                checks.push(block_check(&recorded.path, &read.sidecar, files, options));
            }
            checks
        }
    };
    for check in checks.iter().filter(|check| check.relocated_to.is_some()) {
        warnings.push(format!("relocated:/{}/path", check.field));
    }
    Verification { checks, warnings }
}

fn ahd_checks(ahd: &Ahd, files: &dyn Files, options: &VerifyOptions) -> Vec<Check> {
    let HashedFile { path, hash } = &ahd.token;
    let token = check("token", path, *hash, files, |found| {
        structured(found, files, Profile::AhdJs1)
    });
    let brief = ahd.brief.as_ref().map(|HashedFile { path, hash }| {
        check("brief", path, *hash, files, |found| {
            either(&read_kept(found, files)?, *hash, Profile::AhdJs1)
        })
    });
    let agent = agent::checks(None, &options.agent, Profile::AhdJs1);
    std::iter::once(token).chain(brief).chain(agent).collect()
}

fn general_checks(general: &General, files: &dyn Files, options: &VerifyOptions) -> Vec<Check> {
    let profile = general.profile.unwrap_or(Profile::Jcs1);
    let mut checks = Vec::new();
    for (index, input) in general.inputs.iter().enumerate() {
        checks.push(artifact(&format!("inputs/{index}"), input, profile, files));
    }
    if let Some(trace) = &general.trace {
        checks.push(match &trace.path {
            Some(path) if options.before_run => written_later("trace", path, trace.hash),
            Some(path) => check("trace", path, trace.hash, files, |found| raw(found, files)),
            None => unchecked("trace", "trace", trace.hash, "its path is not recorded"),
        });
    }
    if let Some(parent) = &general.parent
        && let Some(path) = &parent.path
        && resolve(path, files).is_ok_and(|found| files.is_file(&found.path))
    {
        checks.push(check("parent", path, parent.hash, files, |found| {
            let content = kept(files.read(&found.path, DOCUMENT_BYTES_MAX)?)?;
            let document = canon::read(&content, Integers::Doubles)
                .map_err(|error| Failure::new(Reason::ParseError, error.to_string()))?;
            Ok((sidecar_hash(&document), None))
        }));
    }
    checks.extend(agent::checks(
        general.agent.as_ref(),
        &options.agent,
        profile,
    ));
    if options.outputs {
        for (index, output) in general.outputs.iter().flatten().enumerate() {
            let field = format!("outputs/{index}");
            if options.before_run {
                checks.push(written_later(&field, &output.path, output.hash));
                continue;
            }
            let mut check = artifact(&field, output, profile, files);
            if check.reason == Some(Reason::HashMismatch) && output.stable != Some(true) {
                check.result = Outcome::Note;
            }
            checks.push(check);
        }
        if let Some(report) = &general.report
            && options.before_run
        {
            checks.push(written_later("report", &report.path, report.hash));
        } else if let Some(report) = &general.report {
            checks.push(check("report", &report.path, report.hash, files, |found| {
                let content = kept(files.read(&found.path, DOCUMENT_BYTES_MAX)?)?;
                let stripped = report::strip(&content)
                    .map_err(|error| Failure::new(Reason::ParseError, error.to_string()))?;
                Ok((canon::sha256(&stripped), None))
            }));
        }
    }
    checks
}

/// What the report tells its readers of the run, the command they paste included, is what the sidecar says.
fn block_check(path: &str, sidecar: &Sidecar, files: &dyn Files, options: &VerifyOptions) -> Check {
    let compared = || {
        let found = resolve(path, files)?;
        let content = kept(files.read(&found.path, DOCUMENT_BYTES_MAX)?)?;
        report::compare_block(&content, sidecar)
            .map_err(|error| Failure::new(Reason::ParseError, error.to_string()))
    };
    let differs = |what: &str| {
        let detail = format!("{what} is not what the sidecar renders to");
        (Outcome::Fail, Some(Reason::BlockDiffers), Some(detail))
    };
    let unchecked = |why: &str| {
        let detail = Some(why.to_owned());
        (Outcome::Note, Some(Reason::NotChecked), detail)
    };
    let answer = if options.before_run {
        unchecked("the run wrote it later")
    } else {
        match compared() {
            Ok(BlockState::Same) => (Outcome::Ok, None, None),
            Ok(BlockState::Absent) => unchecked("the report has no replay block"),
            Ok(BlockState::YamlDiffers) => differs("the YAML block"),
            Ok(BlockState::ShellDiffers) => differs("the command block"),
            Err(Failure { reason, detail }) => (Outcome::Fail, Some(reason), detail),
        }
    };
    Check::new("block", path, answer)
}

fn artifact(field: &str, recorded: &Artifact, profile: Profile, files: &dyn Files) -> Check {
    check(
        field,
        &recorded.path,
        recorded.hash,
        files,
        |found| match recorded.mode {
            Mode::RawBytes => raw(found, files),
            Mode::CanonicalJson => structured(found, files, profile),
            Mode::Tree => Ok((tree_hash(&files.tree(&found.path)?), None)),
        },
    )
}

fn written_later(field: &str, path: &str, expected: Digest) -> Check {
    unchecked(field, path, expected, "the run wrote it later")
}

/// Returns the note on something that cannot be looked at.
fn unchecked(field: &str, path: &str, expected: Digest, detail: &str) -> Check {
    let answer = (
        Outcome::Note,
        Some(Reason::NotChecked),
        Some(detail.to_owned()),
    );
    Check {
        expected: Some(expected),
        ..Check::new(field, path, answer)
    }
}

/// The hash of what is there, and the mode it was taken by where the sidecar does not say.
type Found = Result<(Digest, Option<Mode>), Failure>;

struct Failure {
    reason: Reason,
    detail: Option<String>,
}

impl Failure {
    fn new(reason: Reason, detail: String) -> Self {
        Self {
            reason,
            detail: Some(detail),
        }
    }
}

impl From<FileError> for Failure {
    fn from(error: FileError) -> Self {
        let reason = match error {
            FileError::Missing => Reason::FileMissing,
            FileError::OutsideRoot => Reason::PathOutsideRoot,
            FileError::Changed => Reason::ChangedWhileReading,
            FileError::Unreadable(detail) => return Self::new(Reason::Unreadable, detail),
        };
        Self {
            reason,
            detail: None,
        }
    }
}

impl From<YamlError> for Failure {
    fn from(error: YamlError) -> Self {
        let reason = match error.refusal() {
            YamlRefusal::Syntax => Reason::ParseError,
            YamlRefusal::Unsupported => Reason::UnsupportedConstruct,
            YamlRefusal::TooLarge => Reason::TooLarge,
        };
        Self::new(reason, error.to_string())
    }
}

fn check(
    field: &str,
    path: &str,
    expected: Digest,
    files: &dyn Files,
    hash: impl FnOnce(&Resolved) -> Found,
) -> Check {
    match resolve(path, files) {
        Ok(found) => {
            let outcome = hash(&found);
            let relocated_to = found.relocated.then_some(found.path);
            judge(field, path, relocated_to, expected, outcome)
        }
        Err(error) => judge(field, path, None, expected, Err(error.into())),
    }
}

fn judge(
    field: &str,
    path: &str,
    relocated_to: Option<String>,
    expected: Digest,
    outcome: Found,
) -> Check {
    let (result, reason, detail, matched, actual) = match outcome {
        Ok((actual, matched)) if actual == expected => {
            (Outcome::Ok, None, None, matched, Some(actual))
        }
        Ok((actual, _)) => (
            Outcome::Fail,
            Some(Reason::HashMismatch),
            None,
            None,
            Some(actual),
        ),
        Err(Failure { reason, detail }) => (Outcome::Fail, Some(reason), detail, None, None),
    };
    Check {
        relocated_to,
        matched,
        expected: Some(expected),
        actual,
        ..Check::new(field, path, (result, reason, detail))
    }
}

fn raw(found: &Resolved, files: &dyn Files) -> Found {
    Ok((files.read(&found.path, 0)?.digest, None))
}

fn structured(found: &Resolved, files: &dyn Files, profile: Profile) -> Found {
    let bytes = kept(read_kept(found, files)?)?;
    Ok((canonical_hash(&bytes, profile)?, None))
}

fn read_kept(found: &Resolved, files: &dyn Files) -> Result<Content, FileError> {
    files.read(&found.path, Limits::STANDARD.input_bytes_max as u64)
}

fn kept(content: Content) -> Result<Vec<u8>, Failure> {
    let Content { len, bytes, .. } = content;
    bytes.ok_or_else(|| Failure::new(Reason::TooLarge, format!("{len} bytes")))
}

/// The two steps of section 4: the exact bytes, else the canonical text.
///
/// A text that has no canonical form is simply another text: a mismatch without a hash.
fn either(content: &Content, expected: Digest, profile: Profile) -> Found {
    if content.digest == expected {
        return Ok((content.digest, Some(Mode::RawBytes)));
    }
    content
        .bytes
        .as_deref()
        .and_then(|bytes| canonical_hash(bytes, profile).ok())
        .map(|digest| (digest, Some(Mode::CanonicalJson)))
        .ok_or(Failure {
            reason: Reason::HashMismatch,
            detail: None,
        })
}
