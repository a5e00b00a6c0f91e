//! What the description says of governed sessions. Their paths and bodies are those of a published API, beside the contract:
//! no version header is asked for, and errors are problem documents.

use super::operation::{Body::*, ResponseKind::*, operations};
use super::schema::{Schema, Shape::*, Type::*, opt, req};
use crate::access::WorkspaceRule::*;
use crate::access::needs;
use crate::decode;
use crate::decode::governed::{
    CALLS_MAX, CAPTURES_MAX, DECISIONS, FILE_BYTES_MAX, FILE_NAME_BYTES_MAX, FILES_MAX, GATES,
    LEVELS, MODES, OUTCOMES, PERMISSIONS, TOOL_BYTES_MAX, TOOLS_MAX, WORD_BYTES_MAX as WORD,
};
use crate::decode::workflow::HANDOFF_SUMMARY_BYTES_MAX;
use crate::decode::{NAME_BYTES_MAX, TEXT_BYTES_MAX};

/// True for a path of the published API.
pub fn is_governed_path(path: &str) -> bool {
    path.starts_with("/api/v1/")
}

const WRITE: &[&str] = &["tasks:write"];

// Operations on governed sessions.
operations! {
    post   "/api/v1/replay/sessions" createReplaySession Governance
        Json("ReplaySessionOpened") needs(&["sessions:write", "tasks:write"], InBody)
        .accepts(Required("CreateReplaySessionRequest")).decodes(decode::create_governed).with_status(201).or_status(&[200]);
    get    "/api/v1/replay/sessions/{session_id}" getReplaySession Governance
        Json("ReplaySessionState") needs(&["tasks:read"], Governed).query(&["include", "in_workspace"]);
    post   "/api/v1/replay/sessions/{session_id}/preflight" preflightReplayRequest Governance
        Json("ReplayPrepared") needs(WRITE, Governed)
        .query(&["in_workspace"]).accepts(Required("ReplayPreflightRequest")).decodes(decode::preflight);
    post   "/api/v1/replay/sessions/{session_id}/proposals" proposeReplayResponse Governance
        Json("ReplayProposal") needs(WRITE, Governed)
        .query(&["in_workspace"]).accepts(Required("ReplayProposalRequest")).decodes(decode::propose);
    get    "/api/v1/replay/sessions/{session_id}/proposals/{proposal_id}" getReplayProposal Governance
        Json("ReplayProposal") needs(&["tasks:read"], Governed).query(&["wait", "in_workspace"]);
    post   "/api/v1/replay/sessions/{session_id}/proposals/{proposal_id}/approve" approveReplayProposal Governance
        Json("ReplayApprovalAnswer") needs(&["approvals:write"], Governed)
        .query(&["in_workspace"]).accepts(Required("ReplayApprovalRequest")).decodes(decode::approve);
    post   "/api/v1/replay/sessions/{session_id}/receipts" reportReplayExecution Governance
        Json("ReplayReceiptAnswer") needs(WRITE, Governed)
        .query(&["in_workspace"]).accepts(Required("ReplayReceiptRequest")).decodes(decode::report);
    post   "/api/v1/replay/sessions/{session_id}/labels" addReplayLabel Governance Json("ReplayLabels") needs(WRITE, Governed)
        .query(&["in_workspace"]).accepts(Required("ReplayLabelRequest")).decodes(decode::add_label);
    post   "/api/v1/replay/sessions/{session_id}/tool-filter" setReplayToolFilter Governance
        Json("ReplayControlAnswer") needs(WRITE, Governed)
        .query(&["in_workspace"]).accepts(Required("ReplayToolFilterRequest")).decodes(decode::set_filter);
    post   "/api/v1/replay/sessions/{session_id}/report-bypass" reportReplayBypass Governance
        Json("ReplayBypassAnswer") needs(WRITE, Governed)
        .query(&["in_workspace"]).accepts(Optional("ReplayBypassRequest")).decodes(decode::report_bypass);
    post   "/api/v1/replay/sessions/{session_id}/kill" killReplaySession Governance Json("ReplayKillAnswer") needs(WRITE, Governed)
        .query(&["in_workspace"]).accepts(Optional("ReplayKillRequest")).decodes(decode::kill);
    post   "/api/v1/replay/sessions/{session_id}/restore" restoreReplaySession Governance
        Json("ReplaySessionState") needs(WRITE, Governed)
        .query(&["in_workspace"]).accepts(Optional("ReplayRestoreRequest")).decodes(decode::restore);
    post   "/api/v1/replay/sessions/{session_id}/heartbeat" heartbeatReplaySession Governance
        Json("ReplayHeartbeatAnswer") needs(WRITE, Governed)
        .query(&["in_workspace"]).accepts(Optional("ReplayHeartbeatRequest")).decodes(decode::heartbeat);
    post   "/api/v1/replay/sessions/{session_id}/captures" captureReplayCalls Governance
        Json("ReplayCapturesAnswer") needs(WRITE, Governed)
        .query(&["in_workspace"]).accepts(Required("ReplayCapturesRequest")).decodes(decode::capture);
    post   "/api/v1/replay/sessions/{session_id}/handoffs" offerReplayHandoff Governance
        Json("ReplayHandoff") needs(WRITE, Governed)
        .query(&["in_workspace"]).accepts(Required("ReplayHandoffRequest")).decodes(decode::offer_handoff);
    post   "/api/v1/replay/handoffs/{handoff_id}/accept" acceptReplayHandoff Governance
        Json("ReplayHandoffAnswer") needs(WRITE, GovernedWorkflow)
        .query(&["in_workspace"]).accepts(Optional("ReplayAcceptRequest")).decodes(decode::accept_handoff);
    post   "/api/v1/replay/handoffs/{handoff_id}/decline" declineReplayHandoff Governance
        Json("ReplayHandoffAnswer") needs(WRITE, GovernedWorkflow)
        .query(&["in_workspace"]).accepts(Optional("ReplayRestoreRequest")).decodes(decode::decline_handoff);
    post   "/api/v1/replay/handoffs/{handoff_id}/cancel" cancelReplayHandoff Governance
        Json("ReplayHandoffAnswer") needs(WRITE, GovernedWorkflow)
        .query(&["in_workspace"]).accepts(Optional("ReplayRestoreRequest")).decodes(decode::cancel_handoff);
    post   "/api/v1/replay/workflows" createReplayWorkflow Governance
        Json("ReplayWorkflow") needs(&["sessions:write", "tasks:write"], InBody)
        .accepts(Required("CreateReplayWorkflowRequest")).decodes(decode::create_workflow).with_status(201).or_status(&[200]);
    get    "/api/v1/replay/workflows/{workflow_id}" getReplayWorkflow Governance
        Json("ReplayWorkflow") needs(&["tasks:read"], GovernedWorkflow).query(&["in_workspace"]);
    post   "/api/v1/captures" captureCalls Governance Json("ReplayCapturesAnswer") needs(WRITE, InBody)
        .query(&["in_workspace"]).accepts(Required("ReplayCapturesRequest"));
    get    "/api/v1/replay/plans" getReplayPlan Governance Json("ReplayPlan") needs(WRITE, Unplaced)
        .query(&["agent", "environment"]);
    get    "/api/v1/replay/approvals" listReplayApprovals Governance Json("ReplayApprovalList") needs(&["tasks:read"], Filtered)
        .query(&["status", "limit", "cursor"]);
}

/// Their schemas.
pub(super) const SCHEMAS: &[Schema] = &[
    Schema {
        name: "Problem",
        shape: Plain(&[
            req("type", Text),
            req("title", Text),
            req("status", Count),
            req("detail", Text),
            req("code", Text),
            req("request_id", Text),
        ]),
    },
    Schema {
        name: "CreateReplaySessionRequest",
        shape: Plain(&[
            opt("session_id", OrNull(&Matching("^[A-Za-z0-9._:-]{1,128}$"))),
            opt("workspace_id", OrNull(&Id)),
            opt("agent", OrNull(&TextMax(NAME_BYTES_MAX))),
            opt("compiled_digest", OrNull(&TextMax(WORD))),
            opt("contracts", OrNull(&Ref("ReplayContractFiles"))),
            opt("principal", Any),
            opt("mode", OrNull(&Words(&MODES))),
            opt("gate", OrNull(&Words(&GATES))),
            opt("unmatched_policy", OrNull(&Words(&PERMISSIONS))),
            opt("capture_level", OrNull(&Words(&LEVELS))),
            opt("labels", ListMax(TOOLS_MAX, &TextMax(WORD))),
            opt("provider_constraints", Object),
            opt("pricing", Object),
            opt("workflow", OrNull(&Ref("ReplayPlace"))),
        ]),
    },
    Schema {
        name: "ReplayPlace",
        shape: Plain(&[
            req("type", Words(&["root", "child"])),
            opt("workflow_id", OrNull(&Matching("^[A-Za-z0-9._:-]{1,100}$"))),
            opt("role", OrNull(&Text)),
            opt("handoff_id", OrNull(&Text)),
            opt("source", OrNull(&Ref("ReplayContractFile"))),
        ]),
    },
    Schema {
        name: "ReplayContractFiles",
        shape: Plain(&[
            opt("contracts", ListMax(FILES_MAX, &Ref("ReplayContractFile"))),
            opt("session", OrNull(&Ref("ReplayContractFile"))),
        ]),
    },
    Schema {
        name: "ReplayContractFile",
        shape: Plain(&[
            req("file", TextMax(FILE_NAME_BYTES_MAX)),
            req("text", TextMax(FILE_BYTES_MAX)),
        ]),
    },
    Schema {
        name: "ReplaySessionOpened",
        shape: Plain(&[
            req("session_id", Text),
            req("state_version", Count),
            req("control_revision", Count),
            req("compiled_digest", Text),
            req("mode", Words(&MODES)),
            opt("workflow_id", Text),
            opt("warnings", List(&Object)),
            req(
                "protocol",
                Inline(&[
                    req("session_id", Text),
                    req("task_id", Text),
                    req("workspace_id", Text),
                ]),
            ),
        ]),
    },
    Schema {
        name: "ReplaySessionState",
        shape: Plain(&[
            req("sessionId", Text),
            req("agent", OrNull(&Text)),
            req("startedAt", Time),
            req("stateVersion", Count),
            req("controlRevision", Count),
            req("currentPhase", OrNull(&Text)),
            req("totalStepCount", Count),
            req("totalToolCalls", Count),
            req("toolCallCounts", MapOf(&Count)),
            req("totalCost", Number),
            req("actualCost", Number),
            req("forbiddenTools", List(&Text)),
            req("satisfiedPreconditions", Object),
            req("lastStep", OrNull(&Object)),
            req("lastNarrowing", OrNull(&Object)),
            req("killed", Boolean),
            req("totalUnguardedCalls", Count),
            req("consecutiveBlockCount", Count),
            req("totalBlockCount", Count),
            req("labels", List(&Text)),
            req("attemptCount", Count),
            req("checkpointCount", Count),
            req("health", Object),
            opt("pending", List(&Object)),
            opt("workflow", Object),
            opt("protocol", Object),
        ]),
    },
    Schema {
        name: "ReplayPreflightRequest",
        shape: Plain(&[
            req("expected_state_version", Count),
            opt("offered_tools", ListMax(TOOLS_MAX, &AnyOf(&[Text, Object]))),
            opt("request_digest", OrNull(&TextMax(WORD))),
            req("model", TextMax(NAME_BYTES_MAX)),
            req("provider", TextMax(NAME_BYTES_MAX)),
            opt("forced_tool", OrNull(&TextMax(TOOL_BYTES_MAX))),
            opt("request", Any),
        ]),
    },
    Schema {
        name: "ReplayPrepared",
        shape: Plain(&[
            req("prepared_request_id", Text),
            req("state_version", Count),
            req("control_revision", Count),
            req("allowed_tools", List(&Text)),
            req("removed", List(&Object)),
            opt("warnings", List(&Object)),
        ]),
    },
    Schema {
        name: "ReplayProposalRequest",
        shape: Plain(&[
            req("prepared_request_id", TextMax(WORD)),
            opt("finish_reason", OrNull(&TextMax(WORD))),
            opt("content_digest", OrNull(&TextMax(WORD))),
            opt("content", OrNull(&Text)),
            opt("tool_calls", ListMax(CALLS_MAX, &Object)),
            opt("usage", OrNull(&Object)),
        ]),
    },
    Schema {
        name: "ReplayProposal",
        shape: Plain(&[
            req("proposal_id", Text),
            req(
                "status",
                Words(&[
                    "blocked",
                    "allowed",
                    "pending_approval",
                    "approved",
                    "denied",
                    "expired",
                    "killed",
                    "stale",
                ]),
            ),
            req("verdicts", List(&Object)),
            req("state_version", Count),
            req("control_revision", Count),
            opt("decision", OrNull(&Object)),
            opt("approval_requests", List(&Object)),
            opt("approval_response", OrNull(&Object)),
        ]),
    },
    Schema {
        name: "ReplayApprovalRequest",
        shape: Plain(&[
            req("decision", Words(&DECISIONS)),
            req("decided_by", TextMax(TEXT_BYTES_MAX)),
            opt("reason", OrNull(&TextMax(TEXT_BYTES_MAX))),
        ]),
    },
    Schema {
        name: "ReplayApprovalAnswer",
        shape: Plain(&[req("status", Text), opt("reason", Text)]),
    },
    Schema {
        name: "ReplayReceiptRequest",
        shape: Plain(&[
            req("proposal_id", TextMax(WORD)),
            req("call_id", TextMax(WORD)),
            req("arguments_digest", TextMax(WORD)),
            req("outcome", Words(&OUTCOMES)),
            opt("output_fields", OrNull(&Object)),
            opt("output_digest", OrNull(&TextMax(WORD))),
            opt("started_at", OrNull(&TextMax(WORD))),
            opt("ended_at", OrNull(&TextMax(WORD))),
            opt("error_code", OrNull(&TextMax(WORD))),
        ]),
    },
    Schema {
        name: "ReplayReceiptAnswer",
        shape: Plain(&[
            req("committed", Boolean),
            req("state_version", Count),
            req("control_revision", Count),
        ]),
    },
    Schema {
        name: "ReplayLabelRequest",
        shape: Plain(&[req("label", TextMax(TEXT_BYTES_MAX))]),
    },
    Schema {
        name: "ReplayLabels",
        shape: Plain(&[req("labels", List(&Text))]),
    },
    Schema {
        name: "ReplayToolFilterRequest",
        shape: Plain(&[req(
            "tools",
            OrNull(&ListMax(TOOLS_MAX, &TextMax(TOOL_BYTES_MAX))),
        )]),
    },
    Schema {
        name: "ReplayControlAnswer",
        shape: Plain(&[req("control_revision", Count)]),
    },
    Schema {
        name: "ReplayBypassRequest",
        shape: Plain(&[
            opt("detected_at", OrNull(&TextMax(WORD))),
            opt("detail", OrNull(&TextMax(TEXT_BYTES_MAX))),
        ]),
    },
    Schema {
        name: "ReplayBypassAnswer",
        shape: Plain(&[req("authority_state", Text)]),
    },
    Schema {
        name: "ReplayKillRequest",
        shape: Plain(&[opt("reason", OrNull(&TextMax(TEXT_BYTES_MAX)))]),
    },
    Schema {
        name: "ReplayKillAnswer",
        shape: Plain(&[req("killed", Boolean)]),
    },
    Schema {
        name: "ReplayRestoreRequest",
        shape: Plain(&[]),
    },
    Schema {
        name: "ReplayHeartbeatRequest",
        shape: Plain(&[
            opt("controlRevision", Count),
            opt("started", ListMax(CALLS_MAX, &Object)),
        ]),
    },
    Schema {
        name: "ReplayHeartbeatAnswer",
        shape: Plain(&[
            req("state_version", Count),
            req("control_revision", Count),
            req("killed", Boolean),
        ]),
    },
    Schema {
        name: "ReplayCapturesRequest",
        shape: Plain(&[req("captures", ListMax(CAPTURES_MAX, &Object))]),
    },
    Schema {
        name: "ReplayCapturesAnswer",
        shape: Plain(&[req("accepted", Count)]),
    },
    Schema {
        name: "ReplayHandoffRequest",
        shape: Plain(&[
            req("to_role", TextMax(NAME_BYTES_MAX)),
            opt("summary", OrNull(&TextMax(HANDOFF_SUMMARY_BYTES_MAX))),
            opt("carry", ListMax(TOOLS_MAX, &TextMax(WORD))),
            opt("expires_in_seconds", Count),
        ]),
    },
    Schema {
        name: "ReplayHandoff",
        shape: Plain(&[
            req("handoff_id", Text),
            req("status", Words(&["open"])),
            req("to_role", Text),
            req("expires_at", Time),
        ]),
    },
    Schema {
        name: "ReplayAcceptRequest",
        shape: Plain(&[opt(
            "session_id",
            OrNull(&Matching("^[A-Za-z0-9._:-]{1,128}$")),
        )]),
    },
    Schema {
        name: "ReplayHandoffAnswer",
        shape: Plain(&[
            req("status", Words(&["accepted", "declined", "cancelled"])),
            opt("session_id", Text),
            opt("workflow_id", Text),
            opt("role", Text),
        ]),
    },
    Schema {
        name: "CreateReplayWorkflowRequest",
        shape: Plain(&[
            opt("workflow_id", OrNull(&Matching("^[A-Za-z0-9._:-]{1,100}$"))),
            opt("workspace_id", OrNull(&Id)),
            opt("compiled_digest", OrNull(&TextMax(WORD))),
            opt("source", OrNull(&Ref("ReplayContractFile"))),
            opt("role", OrNull(&Text)),
        ]),
    },
    Schema {
        name: "ReplayWorkflow",
        shape: Plain(&[
            req("workflow_id", Text),
            req("name", Text),
            req("compiled_digest", Text),
            req("status", Words(&["created", "open", "ended", "killed"])),
            req("sessions", List(&Object)),
            req("budget_used", Object),
            req("open_offers", List(&Object)),
            req("shared_resources", List(&Object)),
            req("protocol", Object),
        ]),
    },
    Schema {
        name: "ReplayPlan",
        shape: Plain(&[
            req("governance_attachment", Words(&["attached"])),
            req("name", Text),
            req("agent", Text),
            req("compiled_digest", Text),
            req("contracts", Ref("ReplayContractFiles")),
        ]),
    },
    Schema {
        name: "ReplayApproval",
        shape: Plain(&[
            req("id", Text),
            req("session_id", Text),
            req("proposal_id", Text),
            req("workspace_id", Text),
            req("task_id", Text),
            req("status", Words(&["pending", "approved", "denied"])),
            req("expires_at", Time),
            req("approval_requests", List(&Object)),
            opt("decided_by", OrNull(&Text)),
            opt("actor", OrNull(&Text)),
            opt("key_id", OrNull(&Text)),
            opt("reason", OrNull(&Text)),
        ]),
    },
    Schema {
        name: "ReplayApprovalList",
        shape: Page("ReplayApproval"),
    },
];
