//! Messages and their parts.

use super::super::schema::{Schema, Shape::*, Type::*, opt, req};
use crate::decode::PARTS_MAX;

pub(in crate::openapi) const SCHEMAS: &[Schema] = &[
    Schema {
        name: "MessageInput",
        shape: Plain(&[
            req(
                "role",
                Words(&["user", "assistant", "system", "tool", "agent"]),
            ),
            req("parts", ListMax(PARTS_MAX, &Ref("PartInput"))),
            opt("metadata", Metadata),
        ]),
    },
    Schema {
        name: "Part",
        shape: Just(AnyOf(&[
            Ref("TextPart"),
            Ref("JsonPart"),
            Ref("ToolCallPart"),
            Ref("ToolResultPart"),
            Ref("ArtifactRefPart"),
            Ref("FileRefPart"),
            Ref("ImageRefPart"),
            Ref("RedactedPart"),
            Ref("OtherPart"),
        ])),
    },
    Schema {
        name: "PartInput",
        shape: Just(AnyOf(&[
            Ref("TextPart"),
            Ref("JsonPart"),
            Ref("ToolCallPart"),
            Ref("ToolResultPart"),
            Ref("ArtifactRefPart"),
            Ref("FileRefPart"),
            Ref("ImageRefPart"),
        ])),
    },
    Schema {
        name: "PartVisibility",
        shape: Just(Words(&["public", "internal", "receipt_only"])),
    },
    Schema {
        name: "TextPart",
        shape: Plain(&[
            req("type", Words(&["text"])),
            req("text", Text),
            req("visibility", Ref("PartVisibility")),
        ]),
    },
    Schema {
        name: "JsonPart",
        shape: Plain(&[
            req("type", Words(&["json"])),
            req("value", Any),
            req("visibility", Ref("PartVisibility")),
        ]),
    },
    Schema {
        name: "ToolCallPart",
        shape: Plain(&[
            req("type", Words(&["tool_call"])),
            req("tool_call_id", Text),
            req("name", Text),
            req("input", Object),
            req("visibility", Ref("PartVisibility")),
        ]),
    },
    Schema {
        name: "ToolResultPart",
        shape: Plain(&[
            req("type", Words(&["tool_result"])),
            req("tool_call_id", Text),
            req("output", Any),
            req("status", Words(&["ok", "error"])),
            req("visibility", Ref("PartVisibility")),
        ]),
    },
    Schema {
        name: "ArtifactRefPart",
        shape: Plain(&[
            req("type", Words(&["artifact_ref"])),
            req("artifact_id", Text),
            req("visibility", Ref("PartVisibility")),
        ]),
    },
    Schema {
        name: "FileRefPart",
        shape: Plain(&[
            req("type", Words(&["file_ref"])),
            req("uri", Text),
            req("mime_type", Text),
            req("visibility", Ref("PartVisibility")),
        ]),
    },
    Schema {
        name: "ImageRefPart",
        shape: Plain(&[
            req("type", Words(&["image_ref"])),
            req("artifact_id", Text),
            req("mime_type", Text),
            req("visibility", Ref("PartVisibility")),
        ]),
    },
    Schema {
        name: "RedactedPart",
        shape: Plain(&[
            req("type", Text),
            req("visibility", Ref("PartVisibility")),
            req("redacted", Boolean),
            req("reason", Text),
            opt("sha256", Text),
        ]),
    },
    Schema {
        name: "OtherPart",
        shape: Plain(&[req("type", Text), req("visibility", Ref("PartVisibility"))]),
    },
];
