//! A workflow that tells much: its replays take more than one commit, so that a crash finds them half written.

use std::sync::Arc;

use canon::Value;
use domain::Kind;
use runs::workflow::{
    EffectAnswer, EffectKind, Machine, Note, Registry, Start, Step, Wanted, Workflow, builtin,
};
use serde_json::json;

/// More events than a replay writes in one commit.
const NOTES: u64 = 140;

/// The workflows of simulated engines.
pub(crate) fn workflows() -> Registry {
    let talker: Arc<dyn Workflow> = Arc::new(Talker);
    Registry::new(builtin().into_iter().chain([talker]))
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
            let clock = Wanted::repeatable("time:main:1", EffectKind::Time, json!({}));
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
