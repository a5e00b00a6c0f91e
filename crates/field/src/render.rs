//! Things of the field as the JSON of answers.

use canon::{Map, Value};
use serde_json::json;

use crate::event::{Package, Relation, Subscription, UnitText};
use crate::kind::{Format, UnitStatus};
use crate::state::{Agent, Conflict, Field, Handoff, Session, Task, Unit};
use crate::text;

pub(crate) fn agent(id: &str, agent: &Agent) -> Value {
    json!({
        "id": id,
        "role": agent.role,
        "status": agent.status,
        "interests": agent.interests,
        "current_task_id": agent.current_task,
    })
}

/// Returns a unit in the given form and with the status that the reader knows it by; nothing if its text is gone.
pub(crate) fn unit(unit: &Unit, status: UnitStatus, format: Format) -> Option<Value> {
    if format == Format::IdsOnly {
        return Some(json!({
            "id": unit.id,
            "type": unit.kind,
            "status": status,
            "epoch": unit.epoch,
        }));
    }
    let words = unit.text.as_ref()?;
    let content = match format {
        Format::Summary => text::summary(&words.content),
        Format::Full | Format::IdsOnly => words.content.clone(),
    };
    let mut object = json!({
        "id": unit.id,
        "mode": unit.mode,
        "type": unit.kind,
        "content": content,
        "intent": {"purpose": words.purpose, "task_id": unit.task, "question": words.question},
        "source": {
            "agent_id": unit.author,
            "agent_role": unit.role,
            "timestamp": unit.at,
            "session_id": unit.session,
        },
        "relations": relations(&unit.relations, words),
        "status": status,
        "epoch": unit.epoch,
    });
    if let (Some(confidence), Some(members)) = (confidence(unit, words), object.as_object_mut()) {
        members.insert("confidence".into(), confidence);
    }
    Some(object)
}

/// Returns a unit whose text is not at hand: what the log alone says.
pub(crate) fn unit_without_text(unit: &Unit, status: UnitStatus) -> Value {
    json!({
        "id": unit.id,
        "type": unit.kind,
        "status": status,
        "epoch": unit.epoch,
        "content": null,
    })
}

fn confidence(unit: &Unit, words: &UnitText) -> Option<Value> {
    let mut confidence = Map::new();
    if let Some(score) = unit.score {
        confidence.insert("score".into(), json!(score));
    }
    if let Some(reasoning) = &words.reasoning {
        confidence.insert("reasoning".into(), json!(reasoning));
    }
    if let Some(evidence) = &words.evidence {
        confidence.insert("evidence".into(), json!(evidence));
    }
    if let Some(assumptions) = &words.assumptions {
        confidence.insert("assumptions".into(), json!(assumptions));
    }
    (!confidence.is_empty()).then_some(Value::Object(confidence))
}

fn relations(relations: &[Relation], words: &UnitText) -> Value {
    let descriptions = words.descriptions.iter().chain(std::iter::repeat(&None));
    relations
        .iter()
        .zip(descriptions)
        .map(|(relation, description)| {
            json!({
                "type": relation.kind,
                "target_id": relation.target_id,
                "description": description,
            })
        })
        .collect()
}

pub(crate) fn conflict(field: &Field, conflict: &Conflict) -> Value {
    let name = |row| field.at(row).map(|unit| unit.id.as_str());
    let mut object = json!({
        "id": conflict.id,
        "type": conflict.kind,
        "status": conflict.status,
        "unit_a": name(conflict.a),
        "unit_b": name(conflict.b),
        "description": format!(
            "{} contradicts {}",
            name(conflict.b).unwrap_or_default(),
            name(conflict.a).unwrap_or_default()
        ),
        "detected_by": conflict.detected_by,
    });
    if let (Some(resolution), Some(members)) = (&conflict.resolution, object.as_object_mut()) {
        let resolution = json!({
            "strategy": resolution.strategy,
            "winner_id": resolution.winner.and_then(name),
            "rationale": resolution.rationale,
            "resolved_by": resolution.resolved_by,
            "epoch_resolved": resolution.epoch,
        });
        members.insert("resolution".into(), resolution);
    }
    object
}

pub(crate) fn subscription(subscription: &Subscription) -> Value {
    json!({
        "id": subscription.id,
        "events": subscription.events,
        "min_relevance": subscription.min_relevance,
        "debounce_ms": subscription.debounce_ms,
    })
}

pub(crate) fn task(id: &str, task: &Task) -> Value {
    json!({
        "id": id,
        "title": task.title,
        "goal": task.goal,
        "status": task.status,
        "created_by": task.creator,
        "assignee": task.assignee,
        "depends_on": task.depends_on,
        "needs_agent": task.orphaned,
    })
}

pub(crate) fn session(id: &str, session: &Session) -> Value {
    json!({
        "id": id,
        "goal": session.goal,
        "status": session.status,
        "created_by": session.creator,
        "members": session.members,
        "rules": {"roles": session.roles},
    })
}

pub(crate) fn package(handoff: &Handoff) -> Value {
    let Package {
        reason,
        unit_ids,
        open_questions,
        summary,
    } = &handoff.package;
    json!({
        "task_id": handoff.task,
        "from_agent": handoff.from,
        "to_agent": handoff.to,
        "reason": reason,
        "context": {
            "unit_ids": unit_ids,
            "open_questions": open_questions,
            "summary": summary,
        },
    })
}
