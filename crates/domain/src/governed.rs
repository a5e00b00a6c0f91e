//! Governed sessions in plain data: what an agent's program and the people around it ask of one.
//!
//! A governed session is a Task whose inputs are these operations, each with the time it came at and who sent it. What a
//! session answers follows from its inputs alone, so they are recorded as they came and nothing else is.

use std::collections::BTreeMap;

use canon::{Digest, Map, Value};
use serde::{Deserialize, Serialize};

use crate::{ContractText, PermissionId, SessionId, TaskId, Timestamp, WorkspaceId};

/// The workflow of Tasks that are governed sessions. No request submits one.
pub const GOVERNED: &str = "governed";

/// The workflow of Tasks that coordinate governed sessions. No request submits one.
pub const GOVERNED_WORKFLOW: &str = "governed_workflow";

/// A session id as programs choose it: 1 to 128 letters, digits, `.`, `_`, `:`, `-`. `.` and `..` are none: as part of an
/// address they name something else.
pub fn is_governed_id(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
    let is_place = [".", ".."].contains(&text);
    (1..=128).contains(&text.len()) && text.bytes().all(allowed) && !is_place
}

impl SessionId {
    /// The Session of a governed session: its own id is unique in its Workspace, so that both are found without a search.
    pub fn governed(workspace: &WorkspaceId, id: &str) -> Self {
        Self::from_body(&governed_body("session", workspace, id))
    }

    /// The Session of a workflow of governed sessions.
    pub fn governed_workflow(workspace: &WorkspaceId, id: &str) -> Self {
        Self::from_body(&governed_body("workflow_session", workspace, id))
    }
}

impl TaskId {
    /// The Task of a governed session.
    pub fn governed(workspace: &WorkspaceId, id: &str) -> Self {
        Self::from_body(&governed_body("task", workspace, id))
    }

    /// The Task of a workflow of governed sessions.
    pub fn governed_workflow(workspace: &WorkspaceId, id: &str) -> Self {
        Self::from_body(&governed_body("workflow_task", workspace, id))
    }
}

fn governed_body(object: &str, workspace: &WorkspaceId, id: &str) -> String {
    let named = serde_json::json!(["governed", object, workspace, id]);
    let digest = canon::sha256(&canon::jcs(&named));
    // 128 bits are enough that nobody finds two sessions with one id.
    digest.hex().chars().take(32).collect()
}

/// Splits the id of a handoff into the workflow's and its number: whoever has one finds the workflow without a search.
pub fn handoff_parts(handoff_id: &str) -> Option<(&str, u64)> {
    let (workflow, number) = handoff_id.rsplit_once(HANDOFF)?;
    Some((workflow, number.parse().ok()?))
}

/// The id of a workflow's handoff.
pub fn handoff_id(workflow_id: &str, number: u64) -> String {
    format!("{workflow_id}{HANDOFF}{number}")
}

const HANDOFF: &str = ".handoff.";

/// A request about a governed session.
#[derive(Debug, Clone, PartialEq)]
pub enum Govern {
    /// Begins a workflow, or goes on with it.
    OpenWorkflow(Box<NewWorkflow>),
    /// Does something with a handoff.
    Handoff {
        /// Its id.
        handoff_id: String,
        /// The Workspace, when the request names it.
        workspace_id: Option<WorkspaceId>,
        /// What.
        action: HandoffAction,
    },
    /// Begins one, or goes on with it.
    Open(Box<NewGoverned>),
    /// Does something with one.
    Do {
        /// Its own id, or the id of its Session.
        session: String,
        /// The Workspace, when the request names it.
        workspace_id: Option<WorkspaceId>,
        /// What.
        operation: Box<GovernedOperation>,
    },
}

/// A governed session to be.
#[derive(Debug, Clone, PartialEq)]
pub struct NewGoverned {
    /// Its own id; made here when none is given.
    pub session_id: Option<String>,
    /// Its Workspace; the caller's only one, else the local one, when none is given.
    pub workspace_id: Option<WorkspaceId>,
    /// The digest of the contracts.
    pub compiled_digest: Option<Digest>,
    /// The contracts themselves; without them the server must know the digest.
    pub contracts: Option<GovernedFiles>,
    /// Members beside the files that nobody knows: each would be a rule that is silently missing.
    pub unknown_members: Vec<String>,
    /// Who calls, for policies. Never recorded: only what policies say about it is.
    pub principal: Option<Value>,
    /// The options that verdicts depend on, under their published names.
    pub options: Map<String, Value>,
    /// Its place in a workflow.
    pub workflow: Option<NewPlace>,
}

/// The place in a workflow that a session asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewPlace {
    /// The workflow; only that of a first session can be made here.
    pub workflow_id: Option<String>,
    /// The role.
    pub role: Option<String>,
    /// The offer that the session takes; none for the first session.
    pub handoff_id: Option<String>,
    /// The workflow file, should the workflow have to be begun.
    pub source: Option<ContractText>,
}

/// A workflow to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewWorkflow {
    /// Its id; made here when none is given.
    pub workflow_id: Option<String>,
    /// Its Workspace; the caller's only one, else the local one, when none is given.
    pub workspace_id: Option<WorkspaceId>,
    /// The digest of the workflow file.
    pub digest: Option<Digest>,
    /// The workflow file.
    pub source: Option<ContractText>,
    /// The role of its first session, when it is settled here.
    pub role: Option<String>,
}

/// What is done with a handoff.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HandoffAction {
    /// The work is taken: by the session of this id, made here when none is given.
    Accept {
        /// The child.
        session_id: Option<String>,
    },
    /// The other role says no.
    Decline,
    /// The session takes it back.
    Cancel,
}

/// What a workflow begins with, as its Task records it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkflowStart {
    /// Its own id.
    pub workflow_id: String,
    /// When it begins.
    pub at: Timestamp,
    /// The digest of the file.
    pub sha256: Digest,
    /// The file.
    pub source: ContractText,
    /// The role of its first session, when it is settled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
}

/// A session's place in a workflow, as its Task records it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GovernedPlace {
    /// The workflow.
    pub workflow_id: String,
    /// The digest of its file.
    pub sha256: Digest,
    /// Its file.
    pub source: ContractText,
    /// The labels that the session begins with besides its own: those of whoever handed over.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
    /// How the workflow stands when the session begins.
    pub view: Value,
}

/// The files that a session is judged by.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GovernedFiles {
    /// The contracts.
    pub files: Vec<ContractText>,
    /// The session file, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<ContractText>,
}

/// What a governed session begins with, as its Task records it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GovernedStart {
    /// Its own id.
    pub session_id: String,
    /// When it begins.
    pub at: Timestamp,
    /// The digest of the compiled contracts.
    pub sha256: Digest,
    /// The contracts.
    pub contracts: GovernedFiles,
    /// The options that verdicts depend on, under their published names.
    pub options: Map<String, Value>,
    /// What policies say about the principal: by tool, and under the empty name for the session.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub policies: BTreeMap<String, PolicyVerdict>,
    /// Slots that another session handed over, as JSON texts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub slots: BTreeMap<String, String>,
    /// Its place in a workflow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workflow: Option<GovernedPlace>,
    /// The rules it is judged by: a session that is on record keeps those it began with.
    #[serde(
        rename = "telling",
        default,
        skip_serializing_if = "RulesVersion::is_first"
    )]
    pub rules_version: RulesVersion,
}

/// The version of the rules that a session is judged by, and what its notes say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RulesVersion {
    /// Verdicts.
    #[default]
    Verdicts,
    /// Verdicts, and what became of each call.
    Executions,
    /// Also what of a schema is not checked; and no call is released beyond the limit of its workflow.
    Bounds,
    /// Also who decided, and that a call of a session in log-only mode was not judged; what a call returned that counted when it
    /// was released is known to rules; and models are excluded in whatever case they are written.
    Deciders,
    /// As before; and a call that was refused when people were asked about others of its response stays refused.
    Refusals,
    /// As before; and a call names the thing that one session at a time may touch.
    Things,
    /// As before; and rules see the request as it is normalised, and patterns take a bounded number of steps.
    Requests,
    /// As before; and a call of a tool that the request had removed because the provider runs it is blocked, and so that rules see
    /// every system text of a request, those among its messages are part of `system` in whatever form it is handed in.
    Removals,
}

impl RulesVersion {
    fn is_first(&self) -> bool {
        *self == RulesVersion::default()
    }
}

/// What a policy says about a principal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyVerdict {
    /// Whether calls are allowed.
    pub allowed: bool,
    /// The rule that says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
}

/// What happened to a governed session from outside, as its Task records it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GovernedInput {
    /// When.
    pub at: Timestamp,
    /// Who.
    pub actor: String,
    /// With which key.
    pub key_id: Option<String>,
    /// The permission request to make, should people be asked.
    pub request_id: PermissionId,
    /// What.
    pub operation: GovernedOperation,
    /// How the session's workflow stands, when that is news.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workflow: Option<Value>,
}

/// An operation on a governed session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "snake_case")]
pub enum GovernedOperation {
    /// Binds a request to the state, before the model is asked.
    Preflight(Preflight),
    /// Judges a response.
    Propose(Proposal),
    /// Reports an execution.
    Report(Report),
    /// Adds a label for good.
    AddLabel {
        /// The label.
        label: String,
    },
    /// Sets the manual tool filter, or clears it.
    SetFilter {
        /// The tools that stay; none: all.
        tools: Option<Vec<String>>,
    },
    /// Says that the model was asked around the session.
    ReportBypass {
        /// When it was noticed.
        detected_at: Option<String>,
        /// What was noticed.
        detail: Option<String>,
    },
    /// Settles the waiting checkpoints of a proposal.
    Decide(Decide),
    /// Stops the session for good.
    Kill {
        /// Why.
        reason: Option<String>,
    },
    /// Ends the session in order.
    Restore,
    /// Says that the program is still there.
    Heartbeat {
        /// Executions that have begun: they do not expire.
        started: Vec<StartedCall>,
    },
    /// Keeps what the program recorded of its calls.
    Capture {
        /// The records.
        captures: Vec<Value>,
    },
    /// Offers the session's work to another role of its workflow.
    Offer(NewOffer),
    /// Tells a workflow what its sessions did. The server sends it to itself.
    Hear {
        /// The events.
        events: Vec<Value>,
        /// Who did something in one of them for the first time.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        parties: Vec<Party>,
    },
    /// Takes work that a session of a workflow offered.
    Accept {
        /// The offer.
        handoff_id: String,
        /// The child.
        session_id: String,
    },
    /// Refuses an offer, or takes it back.
    CloseOffer {
        /// The offer.
        handoff_id: String,
        /// True when the other role says no.
        declined: bool,
    },
    /// Somebody else goes on with the session or the workflow: whoever works in it does not decide in it.
    Resume,
    /// Time has passed: what is overdue is settled. The server sends it to itself.
    Tick,
    /// Nobody has been heard for too long. The server sends it to itself.
    Lose,
}

/// Somebody who works or decides in a session of a workflow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Party {
    /// Who.
    pub actor: String,
    /// With which key.
    pub key_id: Option<String>,
    /// True for somebody who decided, false for somebody who works.
    pub decides: bool,
}

impl GovernedOperation {
    /// Returns the word that records use.
    pub fn name(&self) -> &'static str {
        match self {
            GovernedOperation::Preflight(_) => "preflight",
            GovernedOperation::Propose(_) => "propose",
            GovernedOperation::Report(_) => "report",
            GovernedOperation::AddLabel { .. } => "add_label",
            GovernedOperation::SetFilter { .. } => "set_filter",
            GovernedOperation::ReportBypass { .. } => "report_bypass",
            GovernedOperation::Decide(_) => "decide",
            GovernedOperation::Kill { .. } => "kill",
            GovernedOperation::Restore => "restore",
            GovernedOperation::Heartbeat { .. } => "heartbeat",
            GovernedOperation::Capture { .. } => "capture",
            GovernedOperation::Offer(_) => "offer",
            GovernedOperation::Hear { .. } => "hear",
            GovernedOperation::Accept { .. } => "accept",
            GovernedOperation::CloseOffer { .. } => "close_offer",
            GovernedOperation::Resume => "resume",
            GovernedOperation::Tick => "tick",
            GovernedOperation::Lose => "lose",
        }
    }
}

/// See [`GovernedOperation::Preflight`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preflight {
    /// The commits that the program knows of.
    pub expected_state_version: u64,
    /// The tools that the model would be offered.
    pub offered_tools: Vec<ToolOffer>,
    /// The digest of the request, as given.
    pub request_digest: Option<String>,
    /// Who serves the model.
    pub provider: String,
    /// The model.
    pub model: String,
    /// The one tool that must be called, if the request forces one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forced_tool: Option<String>,
    /// What input invariants look at, where contracts have some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Value>,
}

/// A tool that the model would be offered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolOffer {
    /// Its name.
    pub name: String,
    /// The schema of its parameters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<Value>,
    /// True when the provider runs it inside the request.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hosted: bool,
}

/// See [`GovernedOperation::Propose`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Proposal {
    /// What a preflight answered with.
    pub prepared_request_id: String,
    /// Why the model stopped.
    pub finish_reason: String,
    /// The digest of the text beside the calls; none without a text.
    pub content_digest: Option<String>,
    /// The text itself, where contracts look at it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// True where the program says that there is no text, which is more than not sending it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub without_text: bool,
    /// The proposed calls.
    pub tool_calls: Vec<ProposedTool>,
    /// What the provider says was used.
    pub usage: Option<ProposalUsage>,
}

/// A proposed call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProposedTool {
    /// The provider's id.
    pub id: String,
    /// The tool.
    pub name: String,
    /// The arguments as the model wrote them.
    pub arguments: String,
}

/// What a provider says a call used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProposalUsage {
    /// Tokens sent, without those below.
    pub input: u64,
    /// Tokens received.
    pub output: u64,
    /// Tokens read from the provider's cache.
    #[serde(default)]
    pub cache_read: u64,
    /// Tokens written to the provider's cache.
    #[serde(default)]
    pub cache_write: u64,
}

/// See [`GovernedOperation::Report`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// The proposal that allowed the call.
    pub proposal_id: String,
    /// The provider's id of the call.
    pub call_id: String,
    /// The digest of the canonical arguments that the executor was given.
    pub arguments_digest: Digest,
    /// How it ended.
    pub outcome: ReportedOutcome,
    /// The fields of the output that contracts refer to, by path.
    pub output_fields: Map<String, Value>,
    /// The digest of the whole output.
    pub output_digest: Option<String>,
    /// When the executor began.
    pub started_at: Option<String>,
    /// When it ended.
    pub ended_at: Option<String>,
    /// The word for how it failed.
    pub error_code: Option<String>,
}

/// How an execution ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReportedOutcome {
    /// It did what it should.
    Success,
    /// It failed with an error that the contract expects.
    ExpectedError,
    /// It failed.
    Error,
    /// Nobody knows. A later report settles it.
    Unknown,
}

/// See [`GovernedOperation::Decide`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Decide {
    /// The proposal.
    pub proposal_id: String,
    /// True for yes.
    pub approve: bool,
    /// Who decided, as given.
    pub decided_by: String,
    /// Why.
    pub reason: Option<String>,
}

/// See [`GovernedOperation::Offer`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewOffer {
    /// Names the offer; the server does.
    pub handoff_id: String,
    /// The role that may take it.
    pub to_role: String,
    /// What it is about.
    pub summary: String,
    /// The slots to copy.
    pub carry: Vec<String>,
    /// How long it stays open; ten minutes when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_seconds: Option<u64>,
}

/// An execution that has begun.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StartedCall {
    /// The proposal that allowed the call.
    pub proposal_id: String,
    /// The provider's id of the call.
    pub call_id: String,
}

/// Why a governed session says no. Its status is that of HTTP, because callers are told by it.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct Problem {
    /// The status: 400, 403, 404, 409, 410, 413, 422 or 429.
    pub status: u16,
    /// A stable word for programs.
    pub code: String,
    /// What to tell people.
    pub message: String,
    /// More facts.
    pub members: Map<String, Value>,
}

impl Problem {
    /// A problem without further facts.
    pub fn new(status: u16, code: &str, message: impl Into<String>) -> Self {
        Self {
            status,
            code: code.to_owned(),
            message: message.into(),
            members: Map::new(),
        }
    }

    /// Adds a fact.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Serialize) -> Self {
        let value = serde_json::to_value(value).unwrap_or_default();
        self.members.insert(name.to_owned(), value);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn u30_a_governed_session_is_found_by_its_own_id_in_its_workspace() {
        let (one, two) = (WorkspaceId::from_body("one"), WorkspaceId::from_body("two"));
        let id = SessionId::governed(&one, "desk-1");
        assert_eq!(id, SessionId::governed(&one, "desk-1"));
        assert_ne!(id, SessionId::governed(&two, "desk-1"));
        assert_ne!(id, SessionId::governed(&one, "desk-2"));
        assert_eq!(SessionId::parse(id.as_str()).as_ref(), Ok(&id));
        let body = |text: &str| text.rsplit('_').next().unwrap_or_default().to_owned();
        let task = TaskId::governed(&one, "desk-1");
        assert_ne!(body(id.as_str()), body(task.as_str()));
    }

    #[test]
    fn r4_an_own_id_has_its_form() {
        for (text, good) in [
            ("a", true),
            ("A.b_c:d-9", true),
            ("", false),
            ("a/b", false),
            (".", false),
            ("..", false),
            ("...", true),
        ] {
            assert_eq!(is_governed_id(text), good, "{text}");
        }
        assert!(!is_governed_id(&"a".repeat(129)));
    }
}
