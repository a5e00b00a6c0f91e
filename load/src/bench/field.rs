//! A shared memory as it grows: what recording, ranking and replaying cost at the program and in the library, what a unit
//! takes in memory, and how long a start takes until a field of 100,000 units answers.
//!
//! Ranking stands beside a plain scan of the same vectors as floating-point numbers, with how far the two agree.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use domain::Timestamp;
use fastrand::Rng;
use field::{
    Call, CallSeed, Caller, Config, Detection, Embedding, Envelope, Field, Level, MessageDecision,
    Model, OPERATOR, Vector, decide,
};
use futures_util::future::try_join_all;
use serde_json::{Value, json};

use crate::Bench;
use crate::crowd::{Act, Worker};
use crate::http::Client;
use crate::noise::Watch;
use crate::program::Program;
use crate::report::{Budget, Line, Report, Unit};
use crate::samples::Samples;
use crate::text::{printable, prose};

const SIZES: [usize; 3] = [1_000, 10_000, 100_000];
/// Dimensions of the vectors in the comparison with a plain scan, as small models have.
const DIMENSIONS: usize = 384;
const TIMES: usize = 40;
const LANES: usize = 32;
const CHAIN: usize = 10_000;

const ATTUNE_S_MAX: f64 = 0.01;
const REPLAY_S_MAX: f64 = 0.1;
const RECORD_RATIO_MAX: f64 = 2.0;

pub(crate) async fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    library(report)?;
    chain(report)?;
    program(bench, report).await
}

fn line(name: &'static str, value: f64, unit: Unit) -> Line {
    Line {
        name,
        value,
        unit,
        peer: None,
        budget: None,
        noise: None,
    }
}

/// A field without a server.
struct Lab {
    field: Field,
    caller: Caller,
    calls: u64,
}

impl Lab {
    fn new() -> Result<Self> {
        let mut lab = Self {
            field: Field::new(Config::at(Level::Standard)),
            caller: Caller {
                key: "bench".to_owned(),
                ceiling: OPERATOR,
                agents: Vec::new(),
            },
            calls: 0,
        };
        for agent in ["ann", "bob"] {
            let payload = json!({"id": agent, "role": "analyst"});
            lab.say("REGISTER", agent, payload, Embedding::BuiltIn)?;
        }
        Ok(lab)
    }

    fn say(
        &mut self,
        operation: &str,
        agent: &str,
        payload: Value,
        embedding: Embedding,
    ) -> Result<Value> {
        self.calls += 1;
        let envelope = json!({
            "protocol": "akashik", "version": "0.1.0", "id": format!("m-{}", self.calls), "operation": operation,
            "agent_id": agent, "session_id": null, "epoch": 0, "payload": payload,
        });
        let envelope = Envelope::from_json(&envelope, None)?;
        let mut nonce = [7; 32];
        for (place, byte) in nonce.iter_mut().zip(self.calls.to_be_bytes()) {
            *place = byte;
        }
        let fresh = CallSeed {
            now: Timestamp::from_micros(1_700_000_000_000_000 + self.calls as i64),
            nonce,
        };
        let call = Call {
            envelope: &envelope,
            caller: Some(&self.caller),
            fresh: &fresh,
            embedding,
            detection: Detection::Here,
        };
        let MessageDecision::New(decision) = decide(&self.field, &call)? else {
            anyhow::bail!("a message came twice");
        };
        self.field.commit(&decision)?;
        Ok(decision.answer)
    }
}

fn unit(content: &str, relations: Value) -> Value {
    json!({
        "mode": "committed", "type": "finding", "content": content, "intent": {"purpose": "to know"},
        "confidence": {"score": 0.5, "reasoning": "seen"}, "relations": relations,
    })
}

/// Returns a direction near one of a few centres, as texts about a few subjects have.
fn direction(rng: &mut Rng) -> Vec<f32> {
    let mut centre = Rng::with_seed(rng.u64(..64));
    (0..DIMENSIONS)
        .map(|_| centre.f32() - 0.5 + 0.6 * (rng.f32() - 0.5))
        .collect()
}

fn cosine(one: &[f32], other: &[f32]) -> f32 {
    let (mut dot, mut left, mut right) = (0.0, 0.0, 0.0);
    for (a, b) in one.iter().zip(other) {
        dot += a * b;
        left += a * a;
        right += b * b;
    }
    dot / (left.sqrt() * right.sqrt())
}

/// Ranking in the library beside a plain scan, and what a unit takes in memory.
fn library(report: &mut Report) -> Result<()> {
    let model = Model {
        name: "bench".to_owned(),
        sha256: canon::sha256(b"bench"),
    };
    let vector =
        |components: &[f32]| Vector::quantized(model.clone(), components).context("not a vector");
    let mut rng = Rng::with_seed(5);
    let mut lab = Lab::new()?;
    let (mut plain, mut ids) = (Vec::new(), Vec::new());
    let before = resident()?;
    let names = [
        ["field.attune.1k", "field.agreement.1k"],
        ["field.attune.10k", "field.agreement.10k"],
        ["field.attune.100k", "field.agreement.100k"],
    ];
    for (size, [attune, agreement]) in SIZES.into_iter().zip(names) {
        while ids.len() < size {
            let components = direction(&mut rng);
            // No word that a query has: the vectors alone decide.
            let payload = unit(&printable(&mut rng, 120), json!([]));
            let given = Embedding::Given(vector(&components)?);
            let answer = lab.say("RECORD", "ann", payload, given)?;
            let id = answer.get("memory_unit_id").and_then(Value::as_str);
            ids.push(id.context("a unit without an id")?.to_owned());
            plain.push(components);
        }
        let (mut ranked, mut scanned) = (Samples::default(), Samples::default());
        let mut agreed = 0;
        for _ in 0..TIMES {
            let query = direction(&mut rng);
            let start = Instant::now();
            let mut scores: Vec<(f32, usize)> = plain
                .iter()
                .enumerate()
                .map(|(row, components)| (cosine(&query, components), row))
                .collect();
            scores.sort_by(|one, other| other.0.total_cmp(&one.0));
            scanned.add(start.elapsed());
            let best: Vec<&str> = scores
                .iter()
                .take(10)
                .filter_map(|(_, row)| ids.get(*row).map(String::as_str))
                .collect();
            let payload = json!({
                "scope": {"role": "analyst", "max_units": 10, "recency_weight": 0},
                "context_hint": "\u{3b1}\u{3b2}\u{3b3}", "format": "ids_only",
            });
            let start = Instant::now();
            let answer = lab.say("ATTUNE", "bob", payload, Embedding::Given(vector(&query)?))?;
            ranked.add(start.elapsed());
            let found = answer.get("record").and_then(Value::as_array);
            for found in found.into_iter().flatten() {
                let id = found.pointer("/memory_unit/id").and_then(Value::as_str);
                agreed += usize::from(id.is_some_and(|id| best.contains(&id)));
            }
        }
        report.add(Line {
            peer: Some(("f32 scan", scanned.median())),
            budget: Some(Budget::Value(ATTUNE_S_MAX)),
            ..line(attune, ranked.median(), Unit::Seconds)
        });
        let share = agreed as f64 / (TIMES * 10) as f64;
        report.add(line(agreement, share, Unit::Count));
    }
    let plain_bytes = (plain.len() * DIMENSIONS * size_of::<f32>()) as f64;
    let per_unit = (resident()? - before - plain_bytes) / ids.len() as f64;
    report.add(line("field.memory.unit", per_unit, Unit::Bytes));
    Ok(())
}

/// The replay of a chain as long as an answer may be.
fn chain(report: &mut Report) -> Result<()> {
    let mut lab = Lab::new()?;
    let mut last = String::new();
    for number in 0..CHAIN {
        let relations = match number {
            0 => json!([]),
            _ => json!([{"type": "depends_on", "target_id": last}]),
        };
        let payload = unit(&format!("step {number}"), relations);
        let answer = lab.say("RECORD", "ann", payload, Embedding::BuiltIn)?;
        let id = answer.get("memory_unit_id").and_then(Value::as_str);
        id.context("a unit without an id")?.clone_into(&mut last);
    }
    let mut took = Samples::default();
    for _ in 0..10 {
        let payload =
            json!({"target_type": "memory_unit", "target_id": last, "depth": "full_trace"});
        let start = Instant::now();
        let told = lab.say("REPLAY", "bob", payload, Embedding::BuiltIn)?;
        took.add(start.elapsed());
        ensure!(
            told.get("total_events") == Some(&json!(CHAIN)),
            "the chain is {told}"
        );
    }
    report.add(Line {
        budget: Some(Budget::Value(REPLAY_S_MAX)),
        ..line("field.replay.10k", took.median(), Unit::Seconds)
    });
    Ok(())
}

fn resident() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/self/statm")?;
    let pages = text.split(' ').nth(1).context("no resident pages")?;
    Ok(pages.parse::<f64>()? * 4096.0)
}

/// One connection to the program's field.
struct Agent {
    client: Client,
    name: String,
    sent: usize,
    rng: Rng,
}

impl Agent {
    async fn join(program: &Program, number: usize) -> Result<Self> {
        let mut agent = Self {
            client: program.connect().await?,
            name: format!("agent-{number}"),
            sent: 0,
            rng: Rng::with_seed(number as u64 + 100),
        };
        let payload = json!({"id": agent.name, "role": "analyst"});
        agent.say("register", payload, 201).await?;
        Ok(agent)
    }

    async fn say(&mut self, operation: &str, payload: Value, status: u16) -> Result<Value> {
        self.sent += 1;
        let envelope = json!({
            "protocol": "akashik", "version": "0.1.0", "id": format!("m-{}", self.sent),
            "operation": operation.to_uppercase(), "agent_id": self.name, "session_id": null, "epoch": 0,
            "payload": payload,
        });
        let path = format!("/akashik/v1/{operation}");
        self.client.json("POST", &path, &envelope, status).await
    }

    async fn record(&mut self) -> Result<()> {
        let content = prose(&mut self.rng, 200);
        self.say("record", unit(&content, json!([])), 201).await?;
        Ok(())
    }
}

async fn program(bench: &Bench, report: &mut Report) -> Result<()> {
    let data = bench.path("field");
    let program = Program::start(bench, &data).await?;
    let agents = (0..LANES).map(|number| Agent::join(&program, number));
    let mut agents = try_join_all(agents).await?;
    let names = [
        ["field.record.1k", "field.http.attune.1k"],
        ["field.record.10k", "field.http.attune.10k"],
        ["field.record.100k", "field.http.attune.100k"],
    ];
    let mut stored = 0;
    for (size, [record, attune]) in SIZES.into_iter().zip(names) {
        let each = (size - stored).div_ceil(LANES);
        try_join_all(agents.iter_mut().map(|agent| async move {
            for _ in 0..each {
                agent.record().await?;
            }
            Ok::<(), anyhow::Error>(())
        }))
        .await?;
        stored += each * LANES;
        // Connected now: the server ends connections that are quiet for as long as the units took.
        let mut writer = Worker::new(&program, 9).await?;
        let watch = Watch::start(&program.pids())?;
        let [mut recorded, mut appended, mut attuned] =
            [Samples::default(), Samples::default(), Samples::default()];
        let agent = agents.first_mut().context("no agent")?;
        for _ in 0..TIMES * 5 {
            let start = Instant::now();
            agent.record().await?;
            recorded.add(start.elapsed());
            let start = Instant::now();
            writer.act(Act::Append).await?;
            appended.add(start.elapsed());
        }
        stored += TIMES * 5;
        for _ in 0..TIMES {
            let hint = prose(&mut agent.rng, 40);
            let payload =
                json!({"scope": {"role": "analyst", "max_units": 10}, "context_hint": hint});
            let start = Instant::now();
            agent.say("attune", payload, 200).await?;
            attuned.add(start.elapsed());
        }
        let noise = Some(watch.stop(&program.pids())?);
        report.add(Line {
            peer: Some(("message append", appended.median())),
            budget: Some(Budget::Ratio(RECORD_RATIO_MAX)),
            noise,
            ..line(record, recorded.median(), Unit::Seconds)
        });
        report.add(Line {
            noise,
            ..line(attune, attuned.median(), Unit::Seconds)
        });
    }
    report.add(line(
        "field.program.memory",
        program.resident_bytes()?,
        Unit::Bytes,
    ));
    program.stop()?;
    report.add(line(
        "field.start.100k",
        first_answer(bench, &data).await?,
        Unit::Seconds,
    ));
    Ok(())
}

/// Returns how long the first answer of a field takes after a start.
async fn first_answer(bench: &Bench, data: &Path) -> Result<f64> {
    let program = Program::start(bench, data).await?;
    let mut client = program.connect().await?;
    let start = Instant::now();
    client
        .json("GET", "/akashik/v1/field/status", &Value::Null, 200)
        .await?;
    let took = start.elapsed().as_secs_f64();
    program.stop()?;
    Ok(took)
}
