//! What the description says of the records of finished Tasks: bundles and differences, beyond the contract.

use super::operation::{Body::Octets, ResponseKind::*, operations};
use super::schema::{Schema, Shape::*, Type, Type::*, req};
use crate::access::WorkspaceRule::*;
use crate::access::needs;
use domain::ResourceKind::*;

// Operations beside those of the contract.
operations! {
    get    "/v1/tasks/{task_id}/bundle" getTaskBundle Tasks
        Bytes needs(&["tasks:read", "receipts:read", "internal:read"], InPath(Task)).may_refuse(&[409, 410]);
    get    "/v1/tasks/{task_id}/diff" diffTasks Tasks Json("RunDiff") needs(&["tasks:read", "events:read"], InPath(Task))
        .query(&["other"]).may_refuse(&[409, 410]);
    get    "/v1/tasks/{task_id}/transcript" getTaskTranscript Tasks
        Json("RunTranscript") needs(&["tasks:read", "events:read"], InPath(Task)).query(&["step"]).may_refuse(&[409, 410]);
    post   "/v1/tasks/import" importTask Tasks Json("Task") needs(&["tasks:import"], Every("tasks:import for all workspaces"))
        .query(&["workspace_id"]).accepts(Octets).with_status(201).or_status(&[200]);
}

const INTEGER: Type = AnyOf(&[Count, Number]);

const CHECK: Type = Words(&["matches", "differs", "unavailable", "hidden", "not_stated"]);

const MARK: Type = Inline(&[
    req("event_id", Text),
    req("sequence", Count),
    req("at", Text),
]);

pub(super) const SCHEMAS: &[Schema] = &[
    Schema {
        name: "RunTranscript",
        shape: Plain(&[
            req("object", Words(&["run_transcript"])),
            req("task_id", Text),
            req("session_id", OrNull(&Text)),
            req("workspace_id", OrNull(&Text)),
            req("workflow", Text),
            req("persona", OrNull(&Object)),
            req("replay", OrNull(&Object)),
            req("status", Ref("TaskStatus")),
            req("submitted_at", OrNull(&Text)),
            req("submitted_by", OrNull(&Text)),
            req("last_event_at", OrNull(&Text)),
            req(
                "made_from",
                Inline(&[
                    req("events", Count),
                    req("first_event_id", OrNull(&Text)),
                    req("last_event_id", OrNull(&Text)),
                    req("log_sha256", Text),
                    req("sealed", Boolean),
                    req("receipt_id", OrNull(&Text)),
                ]),
            ),
            req("input", Any),
            req("steps_total", Count),
            req("steps", List(&Ref("RunStep"))),
            req("answer", OrNull(&Text)),
            req("failure", OrNull(&Object)),
            req("usage", Object),
        ]),
    },
    Schema {
        name: "RunStep",
        shape: Plain(&[
            req("step", Count),
            req(
                "what",
                Words(&[
                    "model",
                    "tool",
                    "tool_refused",
                    "approval",
                    "question",
                    "fact",
                ]),
            ),
            req("key", OrNull(&Text)),
            req("requested", OrNull(&MARK)),
            req("recorded", OrNull(&MARK)),
            req("duration_ms", OrNull(&Count)),
            req("request", Any),
            req(
                "request_continues",
                OrNull(&Inline(&[
                    req("step", Count),
                    req("messages", Count),
                    req("same_tools", Boolean),
                ])),
            ),
            req("request_sha256", OrNull(&Text)),
            req("request_check", CHECK),
            req("outcome", OrNull(&Text)),
            req("value", Any),
            req("value_sha256", OrNull(&Text)),
            req("value_check", CHECK),
            req("text", OrNull(&Text)),
            req("used", OrNull(&Object)),
            req(
                "tool",
                OrNull(&Inline(&[
                    req("name", OrNull(&Text)),
                    req("call_id", OrNull(&Text)),
                    req("arguments", Any),
                    req("refused", OrNull(&Text)),
                ])),
            ),
            req("side_effects", OrNull(&Object)),
            req(
                "decision",
                OrNull(&Inline(&[
                    req("request_id", OrNull(&Text)),
                    req("action", Any),
                    req("input_sha256", OrNull(&Text)),
                    req("reason_asked", OrNull(&Text)),
                    req("approved", OrNull(&Boolean)),
                    req("actor", OrNull(&Text)),
                    req("reason", OrNull(&Text)),
                    req("at", OrNull(&Text)),
                ])),
            ),
            req("note", OrNull(&Text)),
        ]),
    },
    Schema {
        name: "RunDiff",
        shape: Plain(&[
            req("object", Words(&["run_diff"])),
            req("equal", Boolean),
            req(
                "relation",
                Words(&["replay", "source", "same_source", "none"]),
            ),
            req("a", Ref("ComparedRun")),
            req("b", Ref("ComparedRun")),
            req("first_divergence", OrNull(&Ref("RunParting"))),
            req("inputs", List(&Ref("RunChange"))),
            req("effects", List(&Ref("EffectDiff"))),
            req("answer", OrNull(&Ref("TextDiff"))),
            req(
                "usage",
                Inline(&[
                    req("model_calls", INTEGER),
                    req("input_tokens", INTEGER),
                    req("output_tokens", INTEGER),
                    req("cost_micros", OrNull(&INTEGER)),
                ]),
            ),
        ]),
    },
    Schema {
        name: "ComparedRun",
        shape: Plain(&[
            req("task_id", Text),
            req("workflow", Text),
            req("status", Ref("TaskStatus")),
            req("failure", OrNull(&Object)),
            req("answer", OrNull(&Text)),
            req("events", Count),
            req("log_sha256", Text),
            req("receipt_id", OrNull(&Text)),
            req("source_task_id", OrNull(&Text)),
            req("mode", OrNull(&Text)),
            req(
                "usage",
                Inline(&[
                    req("model_calls", Count),
                    req("input_tokens", Count),
                    req("output_tokens", Count),
                    req("cost_micros", Count),
                    req("price_unknown", List(&Text)),
                    req("use_unknown", List(&Text)),
                ]),
            ),
        ]),
    },
    Schema {
        name: "RunParting",
        shape: Plain(&[
            req("what", Words(&["changed", "missing", "added"])),
            req("a", OrNull(&Object)),
            req("b", OrNull(&Object)),
            req("members", List(&Text)),
            req("override_key", OrNull(&Text)),
        ]),
    },
    Schema {
        name: "EffectDiff",
        shape: Plain(&[
            req("key", Text),
            req("kind", Text),
            req("what", Words(&["changed", "missing", "added"])),
            req("request", OrNull(&Object)),
            req("request_changes", List(&Ref("RunChange"))),
            req("value", OrNull(&Object)),
            req("value_changes", List(&Ref("RunChange"))),
            req("outcome", OrNull(&List(&OrNull(&Text)))),
            req("text", OrNull(&Ref("TextDiff"))),
            req("overridden", Boolean),
            req("note", OrNull(&Text)),
        ]),
    },
    Schema {
        name: "RunChange",
        shape: Plain(&[
            req(
                "what",
                Words(&[
                    "workflow",
                    "workflow_version",
                    "input",
                    "persona",
                    "message",
                    "request",
                    "value",
                ]),
            ),
            req("member", OrNull(&Text)),
            req("role", OrNull(&Text)),
            req("before", Any),
            req("after", Any),
            req("text", OrNull(&Ref("TextDiff"))),
        ]),
    },
    Schema {
        name: "TextDiff",
        shape: Plain(&[
            req("line", Count),
            req("before", List(&Text)),
            req("after", List(&Text)),
            req("omitted", Count),
        ]),
    },
];
