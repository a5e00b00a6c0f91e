//! Versioning: AP-VER.

use serde_json::Value;

use crate::json::{at, lacking, show, text};
use crate::miss::{Checked, need, unseen};
use crate::raw::Request;
use crate::registry::{ELSEWHERE, Row, row};
use crate::wire::{VERSION, VERSION_HEADER, Wire};

const UNSUPPORTED: &str = "unsupported_protocol_version";
const OLD: &str = "agents-protocol-1900-01-01";
/// The paths that need neither version nor credential.
pub(crate) const PUBLIC: [&str; 5] = [
    "/health",
    "/version",
    "/openapi.json",
    "/v1",
    "/v1/agent-card",
];

pub(crate) const ROWS: &[Row] = &[
    row!("AP-VER-01", M, "a request without a version is refused", Now absent),
    row!("AP-VER-02", M, "an unsupported version is refused", Now unsupported),
    row!("AP-VER-03", S, "the refusal lists the supported versions", Now lists_supported),
    row!("AP-VER-04", M, "public discovery needs neither version nor credential", Now public),
    row!("AP-VER-05", M, "the discovery document has its members", Now discovery),
    row!("AP-VER-06", M, "a breaking change needs a new version value", = ELSEWHERE),
    row!("AP-VER-07", M, "clients ignore unknown members", = ELSEWHERE),
    row!("AP-VER-08", N, "clients do not take an unknown enum value for success", = ELSEWHERE),
    row!("AP-VER-09", M, "several version values are refused", Now several),
    row!("AP-VER-10", O, "the version is checked before the credential", Now before_credential),
];

async fn absent(wire: &Wire) -> Checked {
    wire.get("/v1/tasks")
        .version(None)
        .send()
        .await?
        .refused(426, UNSUPPORTED)
        .map(drop)
}

async fn unsupported(wire: &Wire) -> Checked {
    wire.get("/v1/tasks")
        .version(Some(OLD))
        .send()
        .await?
        .refused(426, UNSUPPORTED)
        .map(drop)
}

async fn lists_supported(wire: &Wire) -> Checked {
    let answer = wire.get("/v1/tasks").version(Some(OLD)).send().await?;
    if answer.status != 426 {
        return unseen(format!(
            "an unsupported version is answered with {}, not with 426",
            answer.status
        ));
    }
    let body = answer.value()?;
    let listed = at(&body, "error.details.supported_versions");
    let holds = listed
        .as_array()
        .is_some_and(|values| values.iter().any(|value| value == VERSION));
    need(
        holds,
        format!("`error.details.supported_versions` with `{VERSION}`"),
        show(&body),
    )
}

async fn public(wire: &Wire) -> Checked {
    for path in PUBLIC {
        wire.get(path)
            .anonymous()
            .version(None)
            .send()
            .await?
            .want(&[200])?;
        wire.get(path)
            .anonymous()
            .version(Some(OLD))
            .send()
            .await?
            .want(&[200])?;
    }
    Ok(())
}

async fn discovery(wire: &Wire) -> Checked {
    let body = wire
        .get("/v1")
        .anonymous()
        .version(None)
        .send()
        .await?
        .value_of(&[200])?;
    discovery_members(&body)
}

/// Requires the members of the discovery document.
pub(crate) fn discovery_members(body: &Value) -> Checked {
    for (member, value) in [
        ("object", "protocol_discovery"),
        ("protocol_family", "harn_agents_protocol"),
        ("current_version", VERSION),
    ] {
        need(
            text(body, member) == value,
            format!("`{member}` `{value}`"),
            show(at(body, member)),
        )?;
    }
    let versions = at(body, "supported_versions").as_array();
    let holds = versions.is_some_and(|list| list.iter().any(|value| value == VERSION));
    need(
        holds,
        format!("`supported_versions` with `{VERSION}`"),
        show(at(body, "supported_versions")),
    )?;
    let capabilities = at(body, "capabilities");
    let names = ["rest", "sse", "websocket", "receipts", "replay"];
    let holds = names.iter().all(|name| at(capabilities, name).is_boolean());
    need(
        holds,
        "five booleans in `capabilities`",
        format!(
            "{}, lacking {:?}",
            show(capabilities),
            lacking(capabilities, &names)
        ),
    )
}

async fn several(wire: &Wire) -> Checked {
    for second in [VERSION, OLD] {
        let request = Request::new("GET", "/v1/tasks")
            .key(wire)
            .version()
            .header(VERSION_HEADER, second);
        request
            .header("Connection", "close")
            .send(wire)
            .await?
            .refused(426, UNSUPPORTED)?;
    }
    Ok(())
}

async fn before_credential(wire: &Wire) -> Checked {
    let call = wire.get("/v1/tasks").anonymous().version(Some(OLD));
    call.send().await?.refused(426, UNSUPPORTED).map(drop)
}
