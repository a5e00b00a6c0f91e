//! Workflows of the simulation: one that tells much, so that a crash finds its replays half written; one whose tool must
//! not be used twice; one that tells what no log can hold.

use std::sync::Arc;

use canon::Value;
use domain::Kind;
use runs::workflow::{
    EffectAnswer, EffectKind, EffectRequest, Machine, Note, Registry, Start, Step, Workflow,
    builtin,
};
use serde_json::json;

/// More events than a replay writes in one commit.
const NOTES: u64 = 140;

/// The workflows of simulated engines.
pub(crate) fn workflows() -> Registry {
    let talker: Arc<dyn Workflow> = Arc::new(Talker);
    let careful: Arc<dyn Workflow> = Arc::new(Careful { poisons: false });
    let poison: Arc<dyn Workflow> = Arc::new(Careful { poisons: true });
    Registry::new(builtin().into_iter().chain([talker, careful, poison]))
}

/// Uses a tool that must not be used twice. The other one of its kind then says what cannot be recorded.
#[derive(Debug)]
struct Careful {
    poisons: bool,
}

impl Workflow for Careful {
    fn name(&self) -> &'static str {
        if self.poisons { "poison" } else { "careful" }
    }

    fn version(&self) -> &'static str {
        "1"
    }

    fn description(&self) -> &'static str {
        "Uses a tool once."
    }

    fn begin(&self, _start: &Start) -> Box<dyn Machine> {
        Box::new(Using {
            poisons: self.poisons,
            steps: 0,
        })
    }
}

struct Using {
    poisons: bool,
    steps: u32,
}

impl Machine for Using {
    fn step(&mut self, results: &[EffectAnswer]) -> Step {
        self.steps += 1;
        let effect = match self.steps {
            // A number that no other run has tells the uses apart.
            1 => EffectRequest::repeatable("random:main:1", EffectKind::Random, json!({})),
            2 => EffectRequest {
                repeatable: false,
                ..EffectRequest::repeatable(
                    "tool:use:main:1",
                    EffectKind::LocalTool,
                    json!({"number": results.first().map(|answer| &answer.value)}),
                )
            },
            _ => {
                let bad = Note {
                    kind: Kind::TaskStatusChanged,
                    payload: canon::Map::new(),
                };
                return Step::Done {
                    notes: self.poisons.then_some(bad).into_iter().collect(),
                    summary: "used".to_owned(),
                    text: "Used it once.".to_owned(),
                    products: Vec::new(),
                };
            }
        };
        Step::Request {
            notes: Vec::new(),
            checkpoint: false,
            effects: vec![effect],
        }
    }
}

#[derive(Debug)]
struct Talker;

impl Workflow for Talker {
    fn name(&self) -> &'static str {
        "talk"
    }

    fn version(&self) -> &'static str {
        "1"
    }

    fn description(&self) -> &'static str {
        "Reads the clock and tells much."
    }

    fn begin(&self, _start: &Start) -> Box<dyn Machine> {
        Box::new(Talking)
    }
}

struct Talking;

impl Machine for Talking {
    fn step(&mut self, results: &[EffectAnswer]) -> Step {
        let Some(time) = results.first() else {
            let clock = EffectRequest::repeatable("time:main:1", EffectKind::Time, json!({}));
            return Step::Request {
                notes: Vec::new(),
                checkpoint: false,
                effects: vec![clock],
            };
        };
        let notes = (0..NOTES).map(|number| Note {
            kind: Kind::ToolFailed,
            payload: match json!({"number": number, "at": time.value}) {
                Value::Object(payload) => payload,
                _ => canon::Map::new(),
            },
        });
        Step::Done {
            notes: notes.collect(),
            summary: "told".to_owned(),
            text: "That was all.".to_owned(),
            products: Vec::new(),
        }
    }
}
