//! A workflow for tests, told by its input.

use canon::{Map, Value, jcs, sha256};
use runs::workflow::{
    Answers, EffectAnswer, EffectKind, EffectRequest, Machine, Note, ProducedArtifact, Start, Step,
    Transcript, Workflow,
};
use serde_json::json;

/// A workflow that does what its input says: `steps` is a list of lists of effects, each `{key, kind, request?,
/// repeatable?, chained?, when?}`. A chained request depends on every answer before it; `when` names the value that the
/// last answer must have for the effect to be asked for. It answers with everything it was told, secrets excepted.
#[derive(Debug)]
pub(crate) struct Steps(pub(crate) &'static str);

impl Workflow for Steps {
    fn name(&self) -> &'static str {
        "steps"
    }

    fn version(&self) -> &'static str {
        self.0
    }

    fn description(&self) -> &'static str {
        "Does what its input says."
    }

    fn begin(&self, start: &Start) -> Box<dyn Machine> {
        Box::new(Stepping::new(start))
    }

    fn restore(
        &self,
        start: &Start,
        state: &Value,
        past: &Answers,
    ) -> Result<Box<dyn Machine>, String> {
        let place = state.get("place").and_then(Value::as_u64);
        let place = place.ok_or("the state has no number `place`")?;
        let mut machine = Stepping::new(start);
        let mut answers = Vec::new();
        while machine.place < place {
            let Step::Request { effects, .. } = machine.step(&answers) else {
                return Err("the run ends before the boundary".to_owned());
            };
            if machine.place >= place {
                machine.repeated = Some(effects);
                break;
            }
            answers.clear();
            for effect in effects {
                let answer = past.get(&effect.key);
                answers.push(
                    answer
                        .ok_or_else(|| format!("no `{}`", effect.key))?
                        .clone(),
                );
            }
        }
        if let Some(Value::Array(told)) = state.get("told") {
            machine.told.clone_from(told);
        }
        Ok(Box::new(machine))
    }
}

struct Stepping {
    input: Value,
    place: u64,
    asked: Vec<(String, EffectKind)>,
    told: Vec<Value>,
    repeated: Option<Vec<EffectRequest>>,
}

impl Stepping {
    fn new(start: &Start) -> Self {
        Self {
            input: start.input.clone(),
            place: 0,
            asked: Vec::new(),
            told: Vec::new(),
            repeated: None,
        }
    }

    fn wanted(&self, effect: &Value) -> Option<EffectRequest> {
        let text = |name: &str| effect.get(name).and_then(Value::as_str);
        if let Some(when) = effect.get("when")
            && self.told.last().and_then(|told| told.get(2)) != Some(when)
        {
            return None;
        }
        let kind = match text("kind").unwrap() {
            "model" => EffectKind::Model,
            "mcp" => EffectKind::McpTool,
            "tool" => EffectKind::LocalTool,
            "secret" => EffectKind::Secret,
            "time" => EffectKind::Time,
            "random" => EffectKind::Random,
            "memory" => EffectKind::Memory,
            "approve" => EffectKind::Ask(domain::Ask::Approval),
            "ask" => EffectKind::Ask(domain::Ask::Input),
            "hold" => EffectKind::Hold,
            _ => EffectKind::Host,
        };
        let mut request = effect.get("request").cloned().unwrap_or_else(|| json!({}));
        if effect.get("chained") == Some(&Value::Bool(true)) {
            request["after"] = json!(sha256(&jcs(&Value::Array(self.told.clone()))));
        }
        let messages = (kind == EffectKind::Model)
            .then(|| Transcript::from_iter([json!({"role": "user", "content": request})]));
        Some(EffectRequest {
            messages,
            repeatable: effect.get("repeatable") != Some(&Value::Bool(false)),
            ..EffectRequest::repeatable(text("key").unwrap(), kind, request)
        })
    }
}

impl Machine for Stepping {
    fn step(&mut self, results: &[EffectAnswer]) -> Step {
        if let Some(effects) = self.repeated.take() {
            return Step::Request {
                notes: Vec::new(),
                checkpoint: true,
                effects,
            };
        }
        for ((key, kind), answer) in std::mem::take(&mut self.asked).into_iter().zip(results) {
            let value = match kind {
                EffectKind::Secret => json!("kept"),
                _ => answer.value.clone(),
            };
            self.told.push(json!([key, answer.ok, value]));
        }
        while let Some(step) = self.input["steps"].get(usize::try_from(self.place).unwrap()) {
            let step = step.as_array().unwrap().clone();
            self.place += 1;
            let effects: Vec<EffectRequest> = step
                .iter()
                .filter_map(|effect| self.wanted(effect))
                .collect();
            if effects.is_empty() {
                continue;
            }
            self.asked = effects
                .iter()
                .map(|effect| (effect.key.clone(), effect.kind))
                .collect();
            return Step::Request {
                notes: Vec::new(),
                checkpoint: self.input["checkpoints"] == true && self.place > 1,
                effects,
            };
        }
        let text = Value::Array(self.told.clone()).to_string();
        if self.input["fails"] == true {
            return Step::Failed {
                notes: Vec::<Note>::new(),
                code: "told_to".to_owned(),
                message: "it was told to fail".to_owned(),
                details: Map::new(),
            };
        }
        let products = match self.input.get("product") {
            Some(product) => vec![ProducedArtifact {
                kind: domain::ArtifactKind::Dataset,
                mime_type: "application/json",
                bytes: jcs(&json!({"product": product, "told": self.told})),
            }],
            None => Vec::new(),
        };
        Step::Done {
            notes: Vec::new(),
            summary: "done".to_owned(),
            text,
            products,
        }
    }

    fn state(&self) -> Value {
        // The results of the step before are in `told`; the request that follows is repeated.
        json!({"place": self.place, "told": self.told})
    }
}
