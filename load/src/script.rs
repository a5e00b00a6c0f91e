//! A scripted agent: a persona with one tool, and a performer whose model calls that tool turn after turn.
//!
//! What it answers follows from the key of the effect alone, so that every run of the same script is the same run.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use canon::{Map, Value};
use domain::{CreatePersona, ModelUse, Timestamp};
use engine::port::{BoxFuture, Clock, Deltas, Performer};
use fastrand::Rng;
use runs::workflow::{Effect, EffectKind, EffectOutcome};
use serde_json::json;
use server::world::SystemClock;

use crate::text::printable;

/// A short word from a model or a tool.
pub(crate) const SMALL: RangeInclusive<usize> = 20..=60;
/// 4 KiB on average, evenly spread.
pub(crate) const LARGE: RangeInclusive<usize> = 2_048..=6_144;

/// How long streamed pieces of an answer are apart; the engine's pauses are as much shorter, see [`Hurried`].
const PIECE_PAUSE: Duration = Duration::from_millis(2);
const HURRY: u32 = 100;

/// The model and the tool of a run.
#[derive(Debug)]
pub(crate) struct Script {
    turns: u64,
    lengths: RangeInclusive<usize>,
    /// Pieces in which the model streams its text.
    pieces: usize,
    /// Bytes of what the performer gave, each value once.
    given_bytes: AtomicU64,
}

impl Script {
    /// A run of so many model calls; all but the last use the tool.
    pub(crate) fn new(turns: u64, lengths: RangeInclusive<usize>, pieces: usize) -> Self {
        Self {
            turns,
            lengths,
            pieces,
            given_bytes: AtomicU64::new(0),
        }
    }

    pub(crate) fn given_bytes(&self) -> u64 {
        self.given_bytes.load(Ordering::Relaxed)
    }

    fn text(&self, seed: u64) -> String {
        let mut rng = Rng::with_seed(seed);
        let len = rng.usize(self.lengths.clone());
        printable(&mut rng, len)
    }

    fn answer(&self, turn: u64) -> (String, Value) {
        let text = self.text(turn);
        let message = if turn < self.turns {
            json!({
                "role": "assistant",
                "content": text,
                "tool_calls": [{
                    "id": format!("call_{turn}"),
                    "type": "function",
                    "function": {"name": "probe", "arguments": format!("{{\"turn\":{turn}}}")},
                }],
            })
        } else {
            json!({"role": "assistant", "content": text})
        };
        let value = json!({
            "id": format!("answer-{turn}"),
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
        });
        (text, value)
    }
}

impl Performer for Script {
    fn perform(&self, effect: Effect, deltas: Deltas) -> BoxFuture<'static, EffectOutcome> {
        let number = effect.key.rsplit(':').next().unwrap_or_default();
        let number: u64 = number.parse().unwrap_or_default();
        let mut streamed = String::new();
        let performed = match effect.kind {
            EffectKind::Host => EffectOutcome::ok(json!({"tools": [{
                "name": "probe",
                "description": "Looks at one thing and tells what it saw.",
                "parameters": {"type": "object", "properties": {"turn": {"type": "integer"}}},
                "repeatable": true,
                "read_only": true,
            }]})),
            EffectKind::Model => {
                let (text, value) = self.answer(number);
                streamed = text;
                EffectOutcome {
                    model: Some(ModelUse {
                        provider: "script".to_owned(),
                        model: "script-1".to_owned(),
                        input_tokens: 10,
                        output_tokens: 10,
                        cost_micros: Some(1),
                        price_table: None,
                        usage_unknown: false,
                    }),
                    ..EffectOutcome::ok(value)
                }
            }
            EffectKind::LocalTool => {
                EffectOutcome::ok(json!({"seen": self.text(1_000_000 + number)}))
            }
            _ => EffectOutcome::error("not_scripted", format!("`{}` is not scripted", effect.key)),
        };
        let bytes = canon::jcs(&performed.value).len() as u64;
        self.given_bytes.fetch_add(bytes, Ordering::Relaxed);
        if self.pieces == 0 || streamed.is_empty() {
            return Box::pin(std::future::ready(performed));
        }
        let piece_len = streamed.len().div_ceil(self.pieces);
        Box::pin(async move {
            let mut rest = streamed.as_str();
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(piece_len.min(rest.len()));
                deltas.push(piece);
                rest = after;
                tokio::time::sleep(PIECE_PAUSE).await;
            }
            performed
        })
    }
}

/// Returns the persona that the script is for, and its definition.
pub(crate) fn persona(turns: u64) -> Result<(CreatePersona, Value)> {
    let definition = json!({
        "name": "prober",
        "version": "1",
        "entry_workflow": "agent",
        "description": "Probes until it knows.",
        "autonomy_tier": "act_auto",
        "receipt_policy": "required",
        "tools": ["probe"],
        "system_prompt": "You probe things. Use the tool until you know enough, then answer.",
        "model": {"provider": "script", "model": "script-1"},
        "limits": {"steps_max": turns},
    });
    let persona = CreatePersona {
        persona: serde_json::from_value(definition.clone()).context("not a persona")?,
        metadata: Map::new(),
    };
    Ok((persona, definition))
}

/// A clock whose short pauses are a hundredth: streaming an answer for a second need not take one.
#[derive(Debug)]
pub(crate) struct Hurried;

impl Clock for Hurried {
    fn now(&self) -> Timestamp {
        SystemClock.now()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let is_short = duration < Duration::from_secs(1);
        SystemClock.sleep(if is_short { duration / HURRY } else { duration })
    }
}
