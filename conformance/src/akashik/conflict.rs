//! Conflicts and how they end: AK-DET, AK-MRG.

use serde_json::{Value, json};

use super::ground::{Field, Ground, accepted, list, refused, same, same_texts, texts};
use super::record::disagree;
use super::subscribe::Listener;
use super::{Row, row};
use crate::json::{at, show, text};
use crate::miss::{Checked, Miss, need};

pub(crate) const ROWS: &[Row] = &[
    row!("AK-DET-01", 1, "conflicts are listed and filtered", Now listed),
    row!("AK-DET-02", 1, "check and scan may be absent, and say so", Now absent),
    row!("AK-DET-03", 2, "check, scan and list, with an automatic method", Now modes),
    row!("AK-DET-04", 1, "check names a unit that exists", Now named),
    row!("AK-DET-05", 2, "a finding is made once", Now once),
    row!("AK-DET-06", 1, "list scans nothing", Now zeros),
    row!("AK-DET-07", 3, "authority 4", Now super::full::detecting),
    row!("AK-MRG-01", 2, "an unknown conflict is `CONFLICT_NOT_FOUND`", Now unknown),
    row!("AK-MRG-02", 2, "a conflict that ended is not merged again", Now ended),
    row!("AK-MRG-03", 2, "a rationale is needed", Now rationale),
    row!("AK-MRG-04", 2, "a synthesis replaces both", Now synthesis),
    row!("AK-MRG-05", 2, "the loser is superseded", Now loser),
    row!("AK-MRG-06", 2, "the conflict says how it ended", Now resolved),
    row!("AK-MRG-07", 2, "the authors are notified", Now notified),
    row!("AK-MRG-08", 2, "the strategies of the level are offered, others refused", Now strategies),
    row!("AK-MRG-09", 2, "each strategy prefers its unit, ties fail", Now winners),
    row!("AK-MRG-10", 2, "a winner that the strategy does not find fails", Now contradicted),
    row!("AK-MRG-11", 2, "escalation changes no unit", Now escalated),
    row!("AK-MRG-12", 3, "votes need more than half", Now super::full::voting),
    row!("AK-MRG-13", 3, "authority 6, of an escalated conflict 10", Now super::full::merging),
];

/// Two units in conflict: the first by ann with score 0.9, the second by bob with 0.3.
struct Dispute<'a> {
    field: Field<'a>,
    first: String,
    second: String,
    conflict: String,
}

async fn dispute(ground: &Ground) -> Result<Dispute<'_>, Miss> {
    let field = ground.field_of(&["ann", "bob", "carl"]).await?;
    let sure = |score: f64| json!({"confidence": {"score": score, "reasoning": "seen"}});
    let first = field.note("ann", "it is so", sure(0.9)).await?;
    let (second, conflict) = field.contradict("bob", &first, sure(0.3)).await?;
    Ok(Dispute {
        field,
        first,
        second,
        conflict,
    })
}

impl Dispute<'_> {
    async fn ends(&self, strategy: &str, more: Value) -> Result<Value, Miss> {
        let answer = self
            .field
            .merge("carl", &self.conflict, strategy, more)
            .await?;
        accepted("MERGE", &answer)
    }

    async fn no(&self, strategy: &str, more: Value, code: &str) -> Checked {
        let before = self.field.view("field/status").await?;
        let answer = self
            .field
            .merge("carl", &self.conflict, strategy, more)
            .await?;
        refused(&answer, code)?;
        same(
            "the field as before",
            &self.field.view("field/status").await?,
            &before,
        )
    }
}

async fn listed(ground: &Ground) -> Checked {
    let Dispute {
        field, conflict, ..
    } = dispute(ground).await?;
    for (filter, expected) in [
        (json!({}), true),
        (
            json!({"status": ["detected", "resolved"], "types": ["factual"]}),
            true,
        ),
        (json!({"involving_agents": ["bob", "nobody"]}), true),
        (
            json!({"status": ["detected"], "types": ["priority"]}),
            false,
        ),
        (json!({"involving_agents": ["carl"]}), false),
        (json!({"status": ["resolved"]}), false),
    ] {
        let payload = json!({"mode": "list", "filter": filter});
        let answer = field.ok("DETECT", "carl", payload).await?;
        let found = texts(&list(&answer, "conflicts"), "id");
        let all = if expected {
            vec![conflict.clone()]
        } else {
            Vec::new()
        };
        same_texts(&format!("conflicts of {filter}"), &found, &all)?;
    }
    Ok(())
}

async fn absent(ground: &Ground) -> Checked {
    let Dispute { field, first, .. } = dispute(ground).await?;
    for mode in ["check", "scan"] {
        let payload = json!({"mode": mode, "target_id": first});
        let answer = field.say("DETECT", "carl", payload).await?;
        if ground.level >= 2 || answer.status == 200 {
            accepted("DETECT", &answer)?;
            continue;
        }
        let error = refused(&answer, "INVALID_REQUEST")?;
        need(
            text(&error, "message").contains(mode),
            format!("a message that names {mode}"),
            show(&error),
        )?;
    }
    Ok(())
}

async fn modes(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann", "bob"]).await?;
    let answer = disagree(&field).await?;
    let id = text(&answer, "memory_unit_id");
    for payload in [
        json!({"mode": "check", "target_id": id}),
        json!({"mode": "scan"}),
        json!({"mode": "list"}),
    ] {
        let answer = field.ok("DETECT", "bob", payload).await?;
        let by = texts(&list(&answer, "conflicts"), "detected_by");
        let holds = by
            .iter()
            .any(|by| ["semantic", "logical", "temporal"].contains(&by.as_str()));
        need(
            holds,
            "a conflict found by an automatic method",
            show(&answer),
        )?;
    }
    Ok(())
}

async fn named(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann"]).await?;
    field
        .no("DETECT", "ann", json!({"mode": "check"}), "INVALID_REQUEST")
        .await?;
    if ground.level < 2 {
        return Ok(());
    }
    let payload = json!({"mode": "check", "target_id": "nothing"});
    field
        .no("DETECT", "ann", payload, "UNIT_NOT_FOUND")
        .await
        .map(|_| ())
}

async fn once(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann", "bob"]).await?;
    disagree(&field).await?;
    for _ in 0..2 {
        field.ok("DETECT", "bob", json!({"mode": "scan"})).await?;
    }
    let answer = field.ok("DETECT", "bob", json!({"mode": "scan"})).await?;
    same(
        "`new_conflicts_found`",
        at(&answer, "scan_coverage.new_conflicts_found"),
        &json!(0),
    )?;
    let found = list(&field.view("conflicts").await?, "conflicts");
    need(
        found.len() == 1,
        "one conflict of the pair",
        show(&json!(found)),
    )
}

async fn zeros(ground: &Ground) -> Checked {
    let Dispute { field, .. } = dispute(ground).await?;
    let answer = field.ok("DETECT", "carl", json!({"mode": "list"})).await?;
    let expected = json!({"units_scanned": 0, "new_conflicts_found": 0});
    same("`scan_coverage`", at(&answer, "scan_coverage"), &expected)
}

async fn unknown(ground: &Ground) -> Checked {
    let field = ground.field_of(&["ann"]).await?;
    let answer = field
        .merge("ann", "nothing", "last_write_wins", json!({}))
        .await?;
    refused(&answer, "CONFLICT_NOT_FOUND").map(|_| ())
}

async fn ended(ground: &Ground) -> Checked {
    let dispute = dispute(ground).await?;
    dispute.ends("last_write_wins", json!({})).await?;
    dispute
        .no("last_write_wins", json!({}), "INVALID_TRANSITION")
        .await
}

async fn rationale(ground: &Ground) -> Checked {
    let dispute = dispute(ground).await?;
    dispute
        .no(
            "last_write_wins",
            json!({"rationale": ""}),
            "INVALID_REQUEST",
        )
        .await
}

async fn synthesis(ground: &Ground) -> Checked {
    let dispute = dispute(ground).await?;
    let answer = dispute
        .ends("synthesis", json!({"synthesis": "both are right"}))
        .await?;
    same(
        "`winner_id`",
        at(&answer, "conflict.resolution.winner_id"),
        &Value::Null,
    )?;
    let new = text(&answer, "side_effects.new_unit_id");
    let both = json!([dispute.first, dispute.second]);
    same(
        "superseded",
        at(&answer, "side_effects.superseded_units"),
        &both,
    )?;
    let found = dispute
        .field
        .attune("bob", json!({"include_own": true}))
        .await?;
    let found = found.first().cloned().unwrap_or_default();
    let unit = at(&found, "memory_unit");
    let holds = text(unit, "id") == new
        && text(unit, "type") == "synthesis"
        && text(unit, "content") == "both are right"
        && text(unit, "intent.purpose") == "the better source"
        && at(unit, "confidence.score").as_f64() == Some(0.3);
    need(
        holds,
        "a synthesis of both, and neither of them",
        show(unit),
    )?;
    let relations = list(unit, "relations");
    same_texts(
        "relations",
        &texts(&relations, "type"),
        &["elaborates", "elaborates"],
    )?;
    same_texts(
        "originals",
        &texts(&relations, "target_id"),
        &[&dispute.first, &dispute.second],
    )
}

async fn loser(ground: &Ground) -> Checked {
    let dispute = dispute(ground).await?;
    let answer = dispute.ends("confidence_weighted", json!({})).await?;
    same(
        "superseded",
        at(&answer, "side_effects.superseded_units"),
        &json!([dispute.second]),
    )?;
    let found = dispute.field.attune("carl", json!({})).await?;
    same_texts(
        "who is left",
        &super::ground::units(&found),
        &[&dispute.first],
    )?;
    same_texts("status", &texts(&found, "memory_unit.status"), &["active"])
}

async fn resolved(ground: &Ground) -> Checked {
    let dispute = dispute(ground).await?;
    let answer = dispute.ends("confidence_weighted", json!({})).await?;
    same("`status`", at(&answer, "status"), &json!("resolved"))?;
    let conflict = at(&answer, "conflict");
    for (member, expected) in [
        ("status", json!("resolved")),
        ("resolution.strategy", json!("confidence_weighted")),
        ("resolution.winner_id", json!(dispute.first)),
        ("resolution.rationale", json!("the better source")),
        ("resolution.resolved_by", json!("carl")),
    ] {
        same(member, at(conflict, member), &expected)?;
    }
    let status = dispute.field.view("field/status").await?;
    same(
        "`epoch_resolved`",
        at(conflict, "resolution.epoch_resolved"),
        at(&status, "epoch"),
    )
}

async fn notified(ground: &Ground) -> Checked {
    let dispute = dispute(ground).await?;
    let wanted = json!({"events": ["conflict.resolved"]});
    let mut listener = Listener::open(&dispute.field, "ann", wanted).await?;
    let answer = dispute.ends("last_write_wins", json!({})).await?;
    let notified = at(&answer, "side_effects.notified_agents");
    same("`notified_agents`", notified, &json!(["ann", "bob"]))?;
    let heard = listener.hears("conflict.resolved").await?;
    same(
        "`conflict_id`",
        at(&heard, "conflict_id"),
        &json!(dispute.conflict),
    )
}

async fn strategies(ground: &Ground) -> Checked {
    let field = ground.field();
    let joined = field
        .ok("REGISTER", "ann", json!({"id": "ann", "role": "analyst"}))
        .await?;
    let offered = list(&joined, "field_capabilities.conflict_strategies");
    for needed in ["last_write_wins", "confidence_weighted", "human_escalation"] {
        let listed = offered.iter().any(|offered| offered == needed);
        need(
            listed,
            format!("`{needed}` among the strategies"),
            show(&json!(offered)),
        )?;
    }
    for strategy in ["vote", "authority", "evidence_count", "synthesis"] {
        if offered.iter().any(|offered| offered == strategy) {
            continue;
        }
        let dispute = dispute(ground).await?;
        dispute
            .no(strategy, json!({}), "UNSUPPORTED_OPERATION")
            .await?;
    }
    Ok(())
}

async fn winners(ground: &Ground) -> Checked {
    let later = dispute(ground).await?;
    let answer = later.ends("last_write_wins", json!({})).await?;
    same(
        "the later",
        at(&answer, "conflict.resolution.winner_id"),
        &json!(later.second),
    )?;
    let surer = dispute(ground).await?;
    let answer = surer.ends("confidence_weighted", json!({})).await?;
    same(
        "the surer",
        at(&answer, "conflict.resolution.winner_id"),
        &json!(surer.first),
    )?;
    let field = ground.field_of(&["ann", "bob"]).await?;
    let first = field.note("ann", "it is so", json!({})).await?;
    let (_, conflict) = field.contradict("bob", &first, json!({})).await?;
    let answer = field
        .merge("ann", &conflict, "confidence_weighted", json!({}))
        .await?;
    refused(&answer, "MERGE_FAILED").map(|_| ())
}

async fn contradicted(ground: &Ground) -> Checked {
    let dispute = dispute(ground).await?;
    let more = json!({"winner_id": dispute.first});
    dispute.no("last_write_wins", more, "MERGE_FAILED").await
}

async fn escalated(ground: &Ground) -> Checked {
    let dispute = dispute(ground).await?;
    let before = dispute.field.attune("carl", json!({})).await?;
    let answer = dispute.ends("human_escalation", json!({})).await?;
    same("`status`", at(&answer, "status"), &json!("escalated"))?;
    same(
        "the conflict",
        at(&answer, "conflict.status"),
        &json!("escalated"),
    )?;
    same(
        "superseded",
        at(&answer, "side_effects.superseded_units"),
        &json!([]),
    )?;
    let after = dispute.field.attune("carl", json!({})).await?;
    let mut statuses = [&before, &after].map(|found| {
        let mut of: Vec<String> = found
            .iter()
            .map(|found| {
                format!(
                    "{} {}",
                    text(found, "memory_unit.id"),
                    text(found, "memory_unit.status")
                )
            })
            .collect();
        of.sort();
        of
    });
    let [before, after] = &mut statuses;
    same_texts("units as before", after, before)
}
