//! The two sidecar shapes of schema version 1, checked without a schema library.
//!
//! Accepts and refuses exactly what `replay.schema.json` and `replay-general.schema.json` do (a test
//! compares them), except that unknown members are listed instead of refused: whether they matter is
//! the caller's decision.

mod text;
mod walk;

use canon::Value;

use walk::{Member, Walk};

pub use text::is_utc_time;
pub use walk::{Problem, Shape};

/// The kinds that use the AHD shape.
pub const AHD_KINDS: [&str; 3] = ["eval-live", "critique", "eval-image"];

/// Checks a document against the AHD shape.
pub fn check_ahd(document: &Value) -> Shape {
    let mut walk = Walk::default();
    walk.object(document, "", AHD);
    ahd_rules(document, &mut walk);
    walk.finish()
}

/// Checks a document against the general shape.
pub fn check_general(document: &Value) -> Shape {
    let mut walk = Walk::default();
    walk.object(document, "", GENERAL);
    walk.finish()
}

const AHD: &[Member] = &[
    Member::required("schema_version", version),
    Member::required("kind", |walk, value, at| {
        let known = value.as_str().is_some_and(|kind| AHD_KINDS.contains(&kind));
        walk.expect(known, at, "must be eval-live, critique or eval-image");
    }),
    Member::required("ahd_version", Walk::filled),
    Member::required("ahd_commit", |walk, value, at| {
        let fits = value.is_null() || value.as_str().is_some_and(|text| text::hex(text, 40));
        walk.expect(fits, at, "must be 40 lower-case hex digits or null");
    }),
    Member::required("git_dirty", Walk::boolean_or_null),
    Member::required("node_version", Walk::filled),
    Member::required("platform", Walk::filled),
    Member::required("invoked_at", Walk::time),
    Member::required("argv", Walk::strings),
    Member::required("token", hashed_file),
    Member::required("brief", |walk, value, at| {
        if !value.is_null() {
            hashed_file(walk, value, at);
        }
    }),
    Member::required("sampling", |walk, value, at| {
        walk.object(
            value,
            at,
            &[
                Member::required("n", Walk::positive),
                Member::required("temperature", Walk::number_or_null),
                Member::required("seed", Walk::integer_or_null),
            ],
        );
    }),
    Member::required("models", |walk, value, at| {
        walk.items(value, at, |walk, value, at| {
            walk.object(value, at, AHD_MODEL)
        });
    }),
    Member::required("conditions", conditions),
    Member::optional("backfilled", Walk::boolean),
];

const AHD_MODEL: &[Member] = &[
    Member::required("id", Walk::filled),
    Member::required("provider", Walk::filled),
    Member::required("provider_request_ids", Walk::strings),
];

/// The rules that tie members of an AHD block together.
fn ahd_rules(document: &Value, walk: &mut Walk) {
    let member = |name| document.get(name);
    if let (Some(commit), Some(dirty)) = (member("ahd_commit"), member("git_dirty")) {
        walk.expect(
            commit.is_null() == dirty.is_null(),
            "/git_dirty",
            "must be null exactly when ahd_commit is null",
        );
    }
    if member("kind").and_then(Value::as_str) == Some("critique")
        && let Some(brief) = member("brief")
    {
        walk.expect(brief.is_null(), "/brief", "must be null on critique runs");
    }
    if member("backfilled") != Some(&Value::Bool(true)) {
        return;
    }
    let empty = |value: &Value| value.as_array().is_none_or(Vec::is_empty);
    if let Some(argv) = member("argv") {
        walk.expect(empty(argv), "/argv", "must be empty in a backfilled block");
    }
    for name in ["node_version", "platform"] {
        if let Some(value) = member(name) {
            let at = format!("/{name}");
            walk.expect(
                value == "unknown",
                &at,
                "must be `unknown` in a backfilled block",
            );
        }
    }
    for name in ["temperature", "seed"] {
        if let Some(value) = member("sampling").and_then(|sampling| sampling.get(name)) {
            let at = format!("/sampling/{name}");
            walk.expect(value.is_null(), &at, "must be null in a backfilled block");
        }
    }
    let models = member("models").and_then(Value::as_array);
    for (index, model) in models.into_iter().flatten().enumerate() {
        if let Some(ids) = model.get("provider_request_ids") {
            let at = format!("/models/{index}/provider_request_ids");
            walk.expect(empty(ids), &at, "must be empty in a backfilled block");
        }
    }
}

const GENERAL: &[Member] = &[
    Member::required("schema_version", version),
    Member::required("kind", |walk, value, at| {
        let fits = value.as_str().is_some_and(|kind| {
            text::words(kind, "._:-") && kind.len() <= 64 && !AHD_KINDS.contains(&kind)
        });
        walk.expect(
            fits,
            at,
            "must be a short lower-case name, not one of AHD's",
        );
    }),
    Member::optional("profile", |walk, value, at| {
        let known = value == "jcs-1" || value == "ahd-js-1";
        walk.expect(known, at, "must be jcs-1 or ahd-js-1");
    }),
    Member::optional("run_id", |walk, value, at| {
        let fits = value
            .as_str()
            .is_some_and(|text| (1..=200).contains(&text.chars().count()));
        walk.expect(fits, at, "must be 1 to 200 characters");
    }),
    Member::required("tool", tool),
    Member::optional("runtime", |walk, value, at| {
        walk.object(
            value,
            at,
            &[
                Member::required("name", Walk::filled),
                Member::required("version", Walk::filled),
            ],
        );
    }),
    Member::required("platform", Walk::filled),
    Member::required("invoked_at", Walk::time),
    Member::optional("finished_at", Walk::time),
    Member::optional("exit_code", Walk::integer_or_null),
    Member::required("argv", Walk::strings),
    Member::optional("cwd", Walk::string),
    Member::required("inputs", artifacts),
    Member::optional("outputs", artifacts),
    Member::optional("report", artifact),
    Member::optional("sampling", |walk, value, at| {
        walk.object(value, at, SAMPLING)
    }),
    Member::optional("models", |walk, value, at| {
        walk.items(value, at, |walk, value, at| walk.object(value, at, MODEL));
    }),
    Member::optional("conditions", conditions),
    Member::optional("agent", |walk, value, at| walk.object(value, at, AGENT)),
    Member::optional("trace", |walk, value, at| walk.object(value, at, TRACE)),
    Member::optional("environment", |walk, value, at| {
        walk.object(value, at, ENVIRONMENT);
    }),
    Member::optional("redactions", |walk, value, at| {
        walk.items(value, at, |walk, value, at| {
            walk.object(value, at, REDACTION);
        });
    }),
    Member::optional("parent", |walk, value, at| walk.object(value, at, PARENT)),
    Member::optional("backfilled", Walk::boolean),
    Member::optional("recording", |walk, value, at| {
        walk.object(value, at, RECORDING);
    }),
    Member::optional("signature", |walk, value, at| {
        walk.object(value, at, SIGNATURE);
    }),
];

const SAMPLING: &[Member] = &[
    Member::optional("n", Walk::positive),
    Member::optional("temperature", Walk::number_or_null),
    Member::optional("top_p", Walk::number_or_null),
    Member::optional("max_tokens", |walk, value, at| {
        if !value.is_null() {
            walk.positive(value, at);
        }
    }),
    Member::optional("seed", Walk::integer_or_null),
    Member::optional("seeds", |walk, value, at| {
        walk.items(value, at, Walk::integer)
    }),
    Member::optional("concurrency", Walk::positive),
];

const MODEL: &[Member] = &[
    Member::required("id", Walk::filled),
    Member::required("provider", Walk::filled),
    Member::required("provider_request_ids", Walk::strings),
    Member::optional("reported_ids", |walk, value, at| {
        walk.strings(value, at);
        let items = value.as_array().map(Vec::as_slice).unwrap_or_default();
        let repeated = items
            .iter()
            .enumerate()
            .any(|(index, item)| items.iter().take(index).any(|earlier| earlier == item));
        walk.expect(!repeated, at, "must not repeat an item");
    }),
    Member::optional("endpoint", Walk::string),
    Member::optional("calls", Walk::count),
    Member::optional("tokens_in", Walk::count),
    Member::optional("tokens_out", Walk::count),
];

const AGENT: &[Member] = &[
    Member::required("name", Walk::filled),
    Member::optional("version", Walk::string),
    Member::optional("config_hash", Walk::hash),
    Member::optional("tools", |walk, value, at| {
        walk.items(value, at, |walk, value, at| {
            walk.object(
                value,
                at,
                &[
                    Member::required("name", Walk::filled),
                    Member::required("schema_hash", Walk::hash),
                ],
            );
        });
    }),
    Member::optional("policy_hash", Walk::hash),
];

const TRACE: &[Member] = &[
    Member::optional("path", Walk::filled),
    Member::required("hash", Walk::hash),
    Member::optional("events", Walk::count),
    Member::optional("session_id", Walk::filled),
    Member::optional("format", Walk::filled),
];

const ENVIRONMENT: &[Member] = &[
    Member::optional("env", |walk, value, at| {
        walk.expect(value.is_object(), at, "must be an object");
        for (name, value) in value.as_object().into_iter().flatten() {
            walk.string(value, &walk::child(at, name));
        }
    }),
    Member::optional("timezone", Walk::string),
    Member::optional("locale", Walk::string),
    Member::optional("container_image", |walk, value, at| {
        let fits = value.as_str().is_some_and(text::image);
        walk.expect(fits, at, "must be NAME@sha256:HEX");
    }),
    Member::optional("network", |walk, value, at| {
        let known = ["none", "restricted", "open"]
            .iter()
            .any(|name| value == name);
        walk.expect(known, at, "must be none, restricted or open");
    }),
];

const REDACTION: &[Member] = &[
    Member::required("pointer", |walk, value, at| {
        let fits = value.as_str().is_some_and(text::pointer);
        walk.expect(fits, at, "must be a JSON pointer");
    }),
    Member::required("reason", Walk::filled),
    Member::optional("hash", Walk::hash),
];

const PARENT: &[Member] = &[
    Member::optional("path", Walk::filled),
    Member::required("hash", Walk::hash),
    Member::optional("relation", |walk, value, at| {
        let known = ["rerun", "resume", "derived"]
            .iter()
            .any(|name| value == name);
        walk.expect(known, at, "must be rerun, resume or derived");
    }),
];

/// Receipt and proof have formats of their own; here they are carried, not judged.
const RECORDING: &[Member] = &[
    Member::required("task_id", Walk::filled),
    Member::required("receipt", |walk, value, at| {
        walk.expect(value.is_object(), at, "must be an object");
    }),
    Member::required("proof", |walk, value, at| {
        walk.expect(value.is_object(), at, "must be an object");
    }),
    Member::required("checkpoint", Walk::filled),
];

const SIGNATURE: &[Member] = &[
    Member::required("alg", |walk, value, at| {
        walk.expect(value == "ed25519", at, "must be ed25519");
    }),
    Member::required("key_id", Walk::filled),
    Member::required("value", |walk, value, at| {
        let fits = value.as_str().is_some_and(text::base64url);
        walk.expect(fits, at, "must be base64url without padding");
    }),
];

fn version(walk: &mut Walk, value: &Value, at: &str) {
    walk.expect(value.as_f64() == Some(1.0), at, "must be 1");
}

fn hashed_file(walk: &mut Walk, value: &Value, at: &str) {
    walk.object(
        value,
        at,
        &[
            Member::required("path", Walk::filled),
            Member::required("hash", Walk::hash),
        ],
    );
}

fn conditions(walk: &mut Walk, value: &Value, at: &str) {
    walk.object(
        value,
        at,
        &[
            Member::required("requested", Walk::strings),
            Member::required("effective", Walk::strings),
        ],
    );
}

fn tool(walk: &mut Walk, value: &Value, at: &str) {
    walk.object(
        value,
        at,
        &[
            Member::required("name", Walk::filled),
            Member::required("version", Walk::filled),
            Member::required("commit", |walk, value, at| {
                let fits = value.is_null()
                    || value
                        .as_str()
                        .is_some_and(|commit| text::hex(commit, 40) || text::hex(commit, 64));
                walk.expect(fits, at, "must be 40 or 64 lower-case hex digits or null");
            }),
            Member::required("dirty", Walk::boolean_or_null),
            Member::optional("repository", Walk::string),
            Member::optional("binary_hash", Walk::hash),
        ],
    );
    if let (Some(commit), Some(dirty)) = (value.get("commit"), value.get("dirty")) {
        walk.expect(
            commit.is_null() == dirty.is_null(),
            &walk::child(at, "dirty"),
            "must be null exactly when commit is null",
        );
    }
}

fn artifacts(walk: &mut Walk, value: &Value, at: &str) {
    walk.items(value, at, artifact);
}

fn artifact(walk: &mut Walk, value: &Value, at: &str) {
    walk.object(
        value,
        at,
        &[
            Member::required("role", |walk, value, at| {
                let fits = value
                    .as_str()
                    .is_some_and(|role| text::words(role, "._-") && role.len() <= 64);
                walk.expect(fits, at, "must be a short lower-case name");
            }),
            Member::required("path", |walk, value, at| {
                let fits = value.as_str().is_some_and(text::relative_path);
                walk.expect(fits, at, "must be a relative path with `/`, without `..`");
            }),
            Member::required("hash", Walk::hash),
            Member::required("mode", |walk, value, at| {
                let known = value.as_str().and_then(crate::Mode::named).is_some();
                walk.expect(known, at, "must be raw-bytes, canonical-json or tree");
            }),
            Member::optional("bytes", Walk::count),
            Member::optional("media_type", Walk::string),
            Member::optional("stable", Walk::boolean),
        ],
    );
}
