//! RECORD: the only way to add knowledge.

use canon::Value;
use serde_json::json;

use super::detect::{NewUnit, UnitIds};
use super::{Detection, Work};
use crate::caller;
use crate::config::{LINE_BYTES_MAX, Level};
use crate::error::{Check, Code, Fault};
use crate::event::{Content, Effect, Event, Recorded, Relation, UnitText};
use crate::kind::{MemoryType, Method, Mode, RelationType, UnitStatus};
use crate::payload::Members;

/// What a RECORD says.
struct Request {
    mode: Mode,
    kind: MemoryType,
    content: String,
    purpose: String,
    task_id: Option<String>,
    question: Option<String>,
    score: Option<f64>,
    reasoning: Option<String>,
    evidence: Option<Vec<String>>,
    assumptions: Option<Vec<String>>,
    relations: Vec<(Relation, Option<String>)>,
}

impl Work<'_> {
    pub(super) fn record(&mut self) -> Check<Value> {
        if let Some(mode) = self.peek("mode").and_then(Mode::parse) {
            self.require(caller::to_record(mode))?;
        }
        let request = self.read_record()?;
        self.check_contradicted(&request)?;
        self.check_session_takes_writes()?;
        let contradicted = self.contradicted(&request);
        self.check_draft_conflicts(request.mode, contradicted.len())?;

        let mut warnings = Vec::new();
        let effects = self.supersede(&request, &mut warnings);
        let (model, vector, failure) = self.embed();
        let status = match (request.mode, &failure) {
            (Mode::Draft, _) => UnitStatus::Draft,
            (Mode::Committed, None) => UnitStatus::Active,
            (Mode::Committed, Some(_)) => UnitStatus::PendingEnrichment,
        };
        warnings.extend(failure);
        let unit_id = self.next_id("mem");
        let found = self.find_contradictions(&request);
        let relations: Vec<Relation> = request
            .relations
            .iter()
            .map(|(relation, _)| relation.clone())
            .collect();
        let text = UnitText {
            salt: self.next_salt(),
            content: request.content,
            purpose: request.purpose,
            question: request.question,
            reasoning: request.reasoning,
            evidence: request.evidence,
            assumptions: request.assumptions,
            descriptions: request
                .relations
                .into_iter()
                .map(|(_, description)| description)
                .collect(),
        };
        let event = Event::Recorded(Recorded {
            unit_id: unit_id.clone(),
            mode: request.mode,
            kind: request.kind,
            agent_role: self
                .sender
                .map(|agent| agent.role.clone())
                .unwrap_or_default(),
            task_id: request.task_id,
            score: request.score,
            relations,
            status,
            text_sha256: text.sha256(),
            model,
            effects,
        });
        let content = Content {
            text: Some(text),
            vector,
        };
        let session = self.call.envelope.session_id.clone();
        self.log_as(self.agent().to_owned(), session, event, Some(content));
        self.statuses.insert(unit_id.clone(), status);

        let kind = self.field.config.conflict_type;
        let mut conflicts: Vec<String> = contradicted
            .iter()
            .map(|target| {
                let units = (target.as_str(), unit_id.as_str());
                self.create_conflict(units, request.mode, kind, Method::Explicit)
            })
            .collect();
        let deferred = found.is_none();
        for target in found.unwrap_or_default() {
            let units = (target.as_str(), unit_id.as_str());
            conflicts.push(self.create_conflict(units, request.mode, kind, Method::Semantic));
        }
        if deferred {
            let code = Code::DetectionTimeout.as_str();
            warnings.push(format!("{code}: contradictions are looked for later"));
        }
        let mut answer = json!({
            "status": "accepted",
            "memory_unit_id": unit_id,
            "epoch": self.epoch,
            "conflicts_detected": conflicts,
            "rejection_reason": null,
        });
        if let Some(members) = answer.as_object_mut() {
            if !warnings.is_empty() {
                members.insert("warnings".into(), json!(warnings));
            }
            if deferred {
                members.insert("conflict_detection".into(), "deferred".into());
            }
        }
        Ok(answer)
    }

    fn read_record(&self) -> Check<Request> {
        let payload = self.payload();
        only(
            &payload,
            &[
                "mode",
                "type",
                "content",
                "intent",
                "confidence",
                "relations",
            ],
        )?;
        let mode = payload.required_choice("mode", Mode::parse)?;
        let kind = payload
            .value("type")
            .ok_or_else(|| payload.missing("type"))?;
        let kind = kind
            .as_str()
            .and_then(MemoryType::parse)
            .ok_or_else(|| Fault::new(Code::InvalidType, "`type` is not a type of memory"))?;
        let limits = &self.field.config.limits;
        let content = payload
            .text("content")?
            .ok_or_else(|| payload.missing("content"))?;
        if !(1..=limits.content_bytes_max).contains(&content.len()) {
            let expected = format!("a text of 1 to {} bytes", limits.content_bytes_max);
            return Err(payload.wrong("content", &expected));
        }
        let missing_intent =
            || Fault::new(Code::MissingIntent, "`intent.purpose` is missing or blank");
        let intent = payload
            .object("intent", "intent.")?
            .ok_or_else(missing_intent)?;
        only(&intent, &["purpose", "task_id", "question"])?;
        let purpose = intent.text("purpose")?.ok_or_else(missing_intent)?;
        if purpose.trim().is_empty() {
            return Err(missing_intent());
        }
        if purpose.len() > LINE_BYTES_MAX {
            return Err(intent.wrong("purpose", &format!("a text of 1 to {LINE_BYTES_MAX} bytes")));
        }
        let mut request = Request {
            mode,
            kind,
            content: content.to_owned(),
            purpose: purpose.to_owned(),
            task_id: intent.id("task_id")?,
            question: intent.text("question")?.map(str::to_owned),
            score: None,
            reasoning: None,
            evidence: None,
            assumptions: None,
            relations: Vec::new(),
        };
        self.read_confidence(&payload, &mut request)?;
        request.relations = self.read_relations(&payload)?;
        Ok(request)
    }

    fn read_confidence(&self, payload: &Members<'_>, request: &mut Request) -> Check<()> {
        if let Some(confidence) = payload.object("confidence", "confidence.")? {
            only(
                &confidence,
                &["score", "reasoning", "evidence", "assumptions"],
            )?;
            if let Some(score) = confidence.value("score") {
                let score = score.as_f64().filter(|score| (0.0..=1.0).contains(score));
                request.score = Some(score.ok_or_else(|| {
                    let message = "`confidence.score` is not a number from 0 to 1";
                    Fault::new(Code::InvalidConfidence, message)
                })?);
            }
            let len_max = self.field.config.limits.list_len_max;
            let list = |name: &str| -> Check<Option<Vec<String>>> {
                let texts = confidence.texts(name, len_max)?;
                Ok(confidence.value(name).map(|_| texts))
            };
            let reasoning = confidence
                .text("reasoning")?
                .filter(|text| !text.trim().is_empty());
            request.reasoning = reasoning.map(str::to_owned);
            request.evidence = list("evidence")?;
            request.assumptions = list("assumptions")?;
        }
        let needed = request.mode == Mode::Committed && self.field.config.level >= Level::Core;
        if needed && request.score.is_none() {
            let message = "`confidence.score` is missing";
            return Err(Fault::new(Code::MissingConfidence, message));
        }
        if needed && request.reasoning.is_none() {
            let message = "`confidence.reasoning` is missing or blank";
            return Err(Fault::new(Code::MissingConfidence, message));
        }
        Ok(())
    }

    fn read_relations(&self, payload: &Members<'_>) -> Check<Vec<(Relation, Option<String>)>> {
        let Some(value) = payload.value("relations") else {
            return Ok(Vec::new());
        };
        let max = self.field.config.limits.relations_max;
        let list = value
            .as_array()
            .filter(|list| list.len() <= max)
            .ok_or_else(|| payload.wrong("relations", &format!("a list of at most {max}")))?;
        list.iter()
            .map(|item| {
                let map = item
                    .as_object()
                    .ok_or_else(|| payload.wrong("relations", "a list of objects"))?;
                let relation = Members::of(map);
                only(&relation, &["type", "target_id", "description"])?;
                let kind = relation.required_choice("type", RelationType::parse)?;
                let target_id = relation.required_id("target_id")?;
                let description = relation.text("description")?.map(str::to_owned);
                let hidden = self.field.unit(&target_id);
                let unbound = hidden.is_some_and(|unit| !self.field.sees(self.agent(), unit));
                let relation = Relation {
                    kind,
                    target_id,
                    unbound,
                };
                Ok((relation, description))
            })
            .collect()
    }

    /// A conflict needs two units.
    fn check_contradicted(&self, request: &Request) -> Check<()> {
        let contradicts =
            |relation: &&(Relation, Option<String>)| relation.0.kind == RelationType::Contradicts;
        for (relation, _) in request.relations.iter().filter(contradicts) {
            if self
                .field
                .visible(self.agent(), &relation.target_id)
                .is_none()
            {
                let message = "a `contradicts` relation names a unit that does not exist";
                return Err(Fault::new(Code::UnitNotFound, message));
            }
        }
        Ok(())
    }

    /// Whoever may only look may draft, and every open conflict costs others something: those of the drafts of a key's agents
    /// are limited.
    fn check_draft_conflicts(&self, mode: Mode, more: usize) -> Check<()> {
        if mode != Mode::Draft || more == 0 {
            return Ok(());
        }
        let field = self.field;
        let key = self.sender.and_then(|sender| sender.first_key.as_ref());
        let is_own = |author: &str| {
            let agent = field.agents.get(author);
            author == self.agent()
                || key.is_some() && agent.is_some_and(|agent| agent.first_key.as_ref() == key)
        };
        let counts = field.draft_conflicts.iter();
        let open: usize = counts
            .filter(|(author, _)| is_own(author))
            .map(|(_, count)| *count)
            .sum();
        let max = field.config.limits.draft_conflicts_max;
        if open.saturating_add(more) > max {
            let message = format!(
                "drafts of the agents of this key have {open} open conflicts, and {max} are the most: end some first"
            );
            return Err(Fault::new(Code::InvalidTransition, message));
        }
        Ok(())
    }

    /// Returns the units that the new one contradicts, each once.
    fn contradicted(&self, request: &Request) -> Vec<String> {
        let mut targets: Vec<String> = Vec::new();
        for (relation, _) in &request.relations {
            let is_new = !targets.contains(&relation.target_id);
            if relation.kind == RelationType::Contradicts && is_new {
                targets.push(relation.target_id.clone());
            }
        }
        targets
    }

    /// Returns what the `supersedes` relations do; a draft replaces nothing but its author's drafts.
    fn supersede(&self, request: &Request, warnings: &mut Vec<String>) -> Vec<Effect> {
        let mut effects: Vec<Effect> = Vec::new();
        for (relation, _) in &request.relations {
            let Some((_, target)) = self.field.visible(self.agent(), &relation.target_id) else {
                let id = &relation.target_id;
                warnings.push(format!("the relation to `{id}` points at no known unit"));
                continue;
            };
            if relation.kind != RelationType::Supersedes {
                continue;
            }
            let own_draft = target.mode == Mode::Draft && target.author == self.agent();
            if request.mode == Mode::Draft && !own_draft {
                let id = &relation.target_id;
                warnings.push(format!("a draft does not replace `{id}`"));
                continue;
            }
            if effects.iter().all(|effect| effect.unit_id != target.id) {
                effects.extend(self.superseding(&target.id));
            }
        }
        effects
    }

    /// Returns the units that automatic detection finds; nothing if it is late.
    fn find_contradictions(&self, request: &Request) -> Option<UnitIds> {
        let config = &self.field.config;
        let wanted = config.automatic_detection
            && config.level >= Level::Standard
            && request.mode == Mode::Committed;
        if !wanted || request.task_id.is_none() {
            return Some(Vec::new());
        }
        let related: Vec<&str> = request
            .relations
            .iter()
            .map(|(relation, _)| relation.target_id.as_str())
            .collect();
        let unit = NewUnit {
            kind: request.kind,
            task: request.task_id.as_deref()?,
            author: self.agent(),
            content: &request.content,
            related: &related,
        };
        match &self.call.detection {
            Detection::Late => None,
            Detection::Here => unit.find(self.field, &self.call.embedding, 0, &[]),
            Detection::Found(findings) => unit.find(
                self.field,
                &self.call.embedding,
                findings.units_seen,
                &findings.unit_ids,
            ),
        }
    }
}

/// Refuses members that RECORD does not know, so that a misspelt one is not lost.
fn only(members: &Members<'_>, known: &[&str]) -> Check<()> {
    const GENERATED: [&str; 4] = ["id", "epoch", "source", "status"];
    for name in members.names() {
        if GENERATED.contains(&name) && !known.contains(&name) {
            return Err(Fault::request(format!("`{name}` is set by the field")));
        }
        if !known.contains(&name) {
            let shown: String = name.chars().take(40).collect();
            return Err(Fault::request(format!(
                "`{shown}` is not a member of RECORD"
            )));
        }
    }
    Ok(())
}
