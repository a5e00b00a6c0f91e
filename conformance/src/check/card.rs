//! The agent card: AP-CARD.

use serde_json::Value;

use crate::json::{at, lacking, show, text};
use crate::miss::{Checked, Miss, all_but, fail, need, unseen};
use crate::registry::{Check, ELSEWHERE, Row, row};
use crate::report::{Level, Outcome, Verdict};
use crate::wire::{Claims, Wire};

pub(crate) const ROWS: &[Row] = &[
    row!("AP-CARD-01", M, "the card has its required members", Now required),
    row!("AP-CARD-02", M, "`a2a_card` holds a whole A2A card", Now a2a),
    row!("AP-CARD-03", N, "A2A members stay out of the outer card", Now outer),
    row!("AP-CARD-04", O, "`harn_interfaces` lists transports, mirrored as `interfaces`", Now interfaces),
    row!("AP-CARD-05", M, "a signed card states algorithm and key", Now signature),
    row!("AP-CARD-06", N, "clients grant nothing for an unsigned card", = ELSEWHERE),
    row!("AP-CARD-07", M, "every advertised transport is implemented fully", = Check::Derived(transports)),
];

async fn card(wire: &Wire) -> Result<Value, Miss> {
    wire.get("/v1/agent-card")
        .anonymous()
        .version(None)
        .send()
        .await?
        .value_of(&[200])
}

async fn required(wire: &Wire) -> Checked {
    let card = card(wire).await?;
    for member in ["id", "name", "description", "protocol_version"] {
        need(
            !text(&card, member).is_empty(),
            format!("a string `{member}`"),
            show(at(&card, member)),
        )?;
    }
    need(
        at(&card, "a2a_card").is_object(),
        "an object `a2a_card`",
        show(at(&card, "a2a_card")),
    )?;
    need(
        at(&card, "skills").is_array(),
        "a list `skills`",
        show(at(&card, "skills")),
    )
}

async fn a2a(wire: &Wire) -> Checked {
    let card = card(wire)
        .await
        .map_err(|miss| miss.while_preparing("read the card"))?;
    let inner = at(&card, "a2a_card");
    let supported = at(inner, "supportedInterfaces");
    if supported.as_array().is_some_and(Vec::is_empty) {
        return unseen("the server lists no A2A interface");
    }
    let names = [
        "preferredTransport",
        "additionalInterfaces",
        "supportedInterfaces",
        "capabilities",
        "defaultInputModes",
        "defaultOutputModes",
        "securitySchemes",
        "security",
        "skills",
    ];
    let missing = lacking(inner, &names);
    need(
        missing.is_empty(),
        "every A2A member",
        format!("no {}", missing.join(", ")),
    )?;
    let forbidden: Vec<&str> = ["url", "interfaces", "protocolVersion"]
        .into_iter()
        .filter(|name| inner.get(name).is_some())
        .collect();
    need(
        forbidden.is_empty(),
        "no member the A2A profile forbids",
        forbidden.join(", "),
    )?;
    for interface in supported.as_array().into_iter().flatten() {
        let missing = lacking(interface, &["url", "protocolBinding", "protocolVersion"]);
        need(
            missing.is_empty(),
            "interfaces with `url`, `protocolBinding`, `protocolVersion`",
            show(interface),
        )?;
    }
    all_but("validation against the A2A profile schema")
}

async fn outer(wire: &Wire) -> Checked {
    let card = card(wire)
        .await
        .map_err(|miss| miss.while_preparing("read the card"))?;
    let names = [
        "supportedInterfaces",
        "preferredTransport",
        "additionalInterfaces",
        "defaultInputModes",
        "defaultOutputModes",
        "securitySchemes",
    ];
    let mixed: Vec<&str> = names
        .into_iter()
        .filter(|name| card.get(name).is_some())
        .collect();
    need(
        mixed.is_empty(),
        "no A2A member at top level",
        mixed.join(", "),
    )
}

async fn interfaces(wire: &Wire) -> Checked {
    let card = card(wire)
        .await
        .map_err(|miss| miss.while_preparing("read the card"))?;
    let Some(list) = at(&card, "harn_interfaces").as_array() else {
        return unseen("the card has no `harn_interfaces`");
    };
    for interface in list {
        let known = ["rest", "sse", "websocket", "a2a", "mcp", "acp"]
            .contains(&text(interface, "transport"));
        need(
            known && !text(interface, "url").is_empty(),
            "a known `transport` and a `url`",
            show(interface),
        )?;
    }
    need(
        at(&card, "interfaces") == at(&card, "harn_interfaces"),
        "`interfaces` equal to `harn_interfaces`",
        show(at(&card, "interfaces")),
    )
}

async fn signature(wire: &Wire) -> Checked {
    let card = card(wire)
        .await
        .map_err(|miss| miss.while_preparing("read the card"))?;
    let signature = at(&card, "signature");
    if signature.is_null() {
        return unseen("the card is not signed");
    }
    for member in ["algorithm", "key_id", "value"] {
        need(
            !text(signature, member).is_empty(),
            format!("`signature.{member}`"),
            show(signature),
        )?;
    }
    all_but("whether the signature verifies")
}

/// Judges the transports that discovery and card advertise by the verdicts on their sections.
pub(crate) fn transports(claims: Claims, outcomes: &[Outcome]) -> Checked {
    let mut sections = vec!["AP-REST-", "AP-SSE-"];
    if claims.websocket {
        sections.push("AP-WSK-");
    }
    claimed(&sections, outcomes)
}

/// Fails when a binding requirement of a claimed section failed.
pub(crate) fn claimed(sections: &[&str], outcomes: &[Outcome]) -> Checked {
    for section in sections {
        let of_section: Vec<&Outcome> = outcomes
            .iter()
            .filter(|outcome| {
                outcome.id.starts_with(section)
                    && matches!(outcome.level, Level::Must | Level::MustNot)
            })
            .collect();
        let failed: Vec<&str> = of_section
            .iter()
            .filter(|outcome| matches!(outcome.verdict, Verdict::Fail { .. }))
            .map(|outcome| outcome.id)
            .collect();
        if !failed.is_empty() {
            return fail(
                format!("every requirement of {} met", section.trim_end_matches('-')),
                failed.join(", "),
            );
        }
        if !of_section
            .iter()
            .any(|outcome| matches!(outcome.verdict, Verdict::Ok { .. }))
        {
            return unseen(format!(
                "nothing of {} could be checked",
                section.trim_end_matches('-')
            ));
        }
    }
    let open = outcomes.iter().filter(|outcome| {
        sections
            .iter()
            .any(|section| outcome.id.starts_with(section))
            && matches!(outcome.verdict, Verdict::NotCovered { .. })
            && !outcome.id.ends_with("REST-06")
    });
    let open: Vec<&str> = open.map(|outcome| outcome.id).collect();
    if open.is_empty() {
        Ok(())
    } else {
        all_but(open.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(id: &'static str, level: Level, verdict: Verdict) -> Outcome {
        Outcome {
            id,
            level,
            title: "",
            verdict,
        }
    }

    fn failed() -> Verdict {
        Verdict::Fail {
            expected: String::new(),
            found: String::new(),
        }
    }

    const OK: Verdict = Verdict::Ok { unseen: None };

    #[test]
    fn a_claim_stands_and_falls_with_its_binding_requirements() {
        let good = [
            outcome("AP-REST-01", Level::Must, OK),
            outcome("AP-SSE-01", Level::Must, OK),
        ];
        assert_eq!(transports(Claims::default(), &good), Ok(()));
        let should = [
            good.to_vec(),
            vec![outcome("AP-SSE-09", Level::Should, failed())],
        ]
        .concat();
        assert_eq!(transports(Claims::default(), &should), Ok(()));
        let bad = [
            good.to_vec(),
            vec![outcome("AP-SSE-02", Level::Must, failed())],
        ]
        .concat();
        assert!(
            matches!(transports(Claims::default(), &bad), Err(Miss::Fail { found, .. }) if found == "AP-SSE-02")
        );
        let socket = Claims {
            websocket: true,
            ..Claims::default()
        };
        assert!(matches!(transports(socket, &good), Err(Miss::Unseen(_))));
    }
}
