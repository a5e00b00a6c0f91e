//! Instructions of the operations that proofs are made of, each held against a limit.
//!
//! A limit is the measured count plus a tenth. Whoever makes something dearer on purpose raises it in the same commit;
//! whoever makes it cheaper lowers it. Inputs are made outside of what is counted.

use std::hint::black_box;

use canon::{Digest, Map, Value};
use gungraun::prelude::*;
use gungraun::{Callgrind, EventKind};
use receipts::merkle::{self, Frontier};
use receipts::tiles::{self, Tile};
use receipts::verify::{Batch, Evidence, Form, Inclusion, Keys, Predecessor};
use receipts::{
    Budget, Determinism, TaskEnd, EventLog, FinalArtifact, Identifiers, Issuer, KeySet, Lifecycle,
    Material, MaterialContent, MaterialKind, Micros, ModelCall, ModelRef, PublicKey, Receipt,
    ReplayInput, SideEffects, Signer, TaskFacts, Tier, ToolCall, ToolStatus, Trust, build_task,
    stream, verify,
};

/// Leaves of the tree in which a receipt is proven: three levels of tiles.
const LEAVES: u64 = 100_000;

fn at_most(instructions: u64) -> LibraryBenchmarkConfig {
    let mut callgrind = Callgrind::default();
    callgrind.hard_limits([(EventKind::Ir, instructions)]);
    let mut config = LibraryBenchmarkConfig::default();
    config.tool(callgrind);
    config
}

fn receipt() -> Receipt {
    let receipt = build_task(&facts(1)).expect("the facts fit the format");
    receipt.signed(&Signer::new("key_1", &[1; 32]))
}

fn value() -> Value {
    Value::Object(receipt().as_map().clone())
}

fn map() -> Map<String, Value> {
    receipt().as_map().clone()
}

#[library_benchmark(config = at_most(57_300))]
#[bench::receipt(setup = value)]
fn canonicalize(value: Value) -> (Vec<u8>, Value) {
    (black_box(canon::jcs(black_box(&value))), value)
}

// The shape is checked on the way: no receipt has a hash without it.
#[library_benchmark(config = at_most(267_600))]
#[bench::receipt(setup = map)]
fn hash(map: Map<String, Value>) -> Digest {
    let receipt = Receipt::from_map(black_box(map)).expect("it is a receipt");
    black_box(receipt.hash())
}

fn only_facts() -> TaskFacts {
    facts(1)
}

#[library_benchmark(config = at_most(483_600))]
#[bench::receipt(setup = only_facts)]
fn build(facts: TaskFacts) -> (Receipt, TaskFacts) {
    let receipt = build_task(black_box(&facts)).expect("the facts fit the format");
    (black_box(receipt), facts)
}

fn unsigned() -> (Receipt, Signer) {
    let receipt = build_task(&facts(1)).expect("the facts fit the format");
    (receipt, Signer::new("key_1", &[1; 32]))
}

#[library_benchmark(config = at_most(263_000))]
#[bench::receipt(setup = unsigned)]
fn sign((receipt, signer): (Receipt, Signer)) -> Receipt {
    black_box(receipt.signed(black_box(&signer)))
}

/// A receipt with everything that proves it.
struct Whole {
    bytes: Vec<u8>,
    keys: KeySet,
    inclusion: Inclusion,
}

fn whole() -> Whole {
    let receipt = receipt();
    let log = Log::with(receipt.hash());
    let signer = Signer::new("key_1", &[1; 32]);
    let key = PublicKey {
        key_id: "key_1".to_owned(),
        bytes: signer.public(),
        not_before: None,
        expires: None,
        retired: None,
    };
    Whole {
        bytes: receipt.bytes(),
        keys: KeySet::new(vec![key]).expect("one key has one name"),
        inclusion: Inclusion {
            leaf_index: PLACE,
            batch: Batch {
                size: LEAVES,
                root: log.root,
            },
            path: log.prove(),
        },
    }
}

// Everything that can be checked of one receipt: form, hash, chain, inclusion, signature.
#[library_benchmark(config = at_most(1_045_000))]
#[bench::whole(setup = whole)]
fn verify_one(whole: Whole) -> Whole {
    let evidence = Evidence {
        form: Form::Canonical,
        predecessor: Predecessor::Hash(canon::sha256(&1_usize.to_be_bytes())),
        batches: &[whole.inclusion.batch],
        inclusion: Some(&whole.inclusion),
        keys: Keys::Given(&whole.keys),
        at_time: None,
        trust_anchor: None,
        references: None,
    };
    let report = verify(black_box(&whole.bytes), black_box(&evidence));
    assert!(black_box(report).is_valid(), "the receipt is valid");
    whole
}

// One of many under a signed checkpoint: form and hash in one pass, and its leaf.
#[library_benchmark(config = at_most(236_000))]
#[bench::whole(setup = whole)]
fn verify_in_bundle(whole: Whole) -> (Digest, Whole) {
    let checked = stream::check(black_box(&whole.bytes)).expect("the receipt is whole");
    (black_box(merkle::leaf(&checked.hash)), whole)
}

/// Where the receipt stands in the log: not at an edge.
const PLACE: u64 = 54_321;

/// A log as tiles.
struct Log {
    levels: Vec<Vec<Digest>>,
    root: Digest,
}

impl Log {
    fn with(receipt_hash: Digest) -> Self {
        let mut frontier = Frontier::EMPTY;
        let mut levels: Vec<Vec<Digest>> = vec![Vec::new(); 3];
        for index in 0..LEAVES {
            let hash = match index {
                PLACE => receipt_hash,
                _ => canon::sha256(&index.to_be_bytes()),
            };
            let (next, stored) = merkle::append(frontier, merkle::leaf(&hash));
            frontier = next;
            for hash in stored {
                if let Some(level) = levels.get_mut(usize::from(hash.level)) {
                    level.push(hash.hash);
                }
            }
        }
        Self {
            levels,
            root: frontier.root(),
        }
    }

    fn tile(&self, tile: Tile) -> Option<Vec<u8>> {
        let level = self.levels.get(usize::from(tile.level))?;
        let first = usize::try_from(tile.index * tiles::TILE_WIDTH).ok()?;
        let hashes = level.get(first..first + usize::from(tile.width))?;
        Some(tiles::tile_bytes(hashes))
    }

    fn prove(&self) -> Vec<Digest> {
        tiles::inclusion(|tile| self.tile(tile), PLACE, LEAVES).expect("the log has its tiles")
    }
}

fn log() -> Log {
    Log::with(receipt().hash())
}

// From tiles that are at hand.
#[library_benchmark(config = at_most(6_200_000))]
#[bench::in_100_000(setup = log)]
fn prove(log: Log) -> (Vec<Digest>, Log) {
    (black_box(log.prove()), log)
}

/// A receipt of about 2 KB: one model call, one tool call, one artifact.
fn facts(number: usize) -> TaskFacts {
    let digest = canon::sha256(&number.to_be_bytes());
    let time = || "2026-04-25T19:17:33.123456Z".to_owned();
    TaskFacts {
        receipt_id: format!("receipt_{number:026}"),
        issuer: Issuer {
            id: "harness_1".to_owned(),
            name: Some("Reprise".to_owned()),
            version: "agents-protocol-2026-04-25".to_owned(),
            public_key_id: Some("key_1".to_owned()),
        },
        issued_at: time(),
        identifiers: Identifiers {
            tenant_id: None,
            persona_ref: Some("persona_reviewer@v1".to_owned()),
            workspace_ref: "workspace_1".to_owned(),
            session_id: format!("session_{:026}", number % 100),
            task_id: format!("task_{number:026}"),
            branch_id: None,
            trace_id: Some(format!("trace_{number:026}")),
        },
        lifecycle: Lifecycle {
            created_at: Some(time()),
            started_at: Some(time()),
            completed_at: time(),
            end: TaskEnd::Succeeded,
        },
        approvals: Vec::new(),
        trust: Trust {
            start_tier: Tier::ActAuto,
            end_tier: Tier::ActAuto,
            policy_ref: None,
        },
        limit: None,
        consumed: Budget {
            usd: Micros(184_200 + number as u64),
            input_tokens: 1800,
            output_tokens: 420,
            tool_calls: 1,
            wall_time_ms: 79_000,
        },
        replay_input: ReplayInput {
            determinism: Determinism::ByteDeterministic,
            event_log: EventLog {
                id: format!("event_log_task_{number:026}"),
                uri: format!("artifact://artifact_{number:026}"),
                sha256: digest,
            },
            materials: vec![Material {
                kind: MaterialKind::LlmProviderResponse,
                id: "llm:main:1".to_owned(),
                content_type: None,
                content: MaterialContent::Stored {
                    uri: format!("artifact://artifact_{number:026}_1"),
                    sha256: digest,
                },
            }],
        },
        model_calls: vec![ModelCall {
            model: ModelRef {
                provider: "built-in".to_owned(),
                model: "echo".to_owned(),
                version: None,
                reason: None,
            },
            input_tokens: 1800,
            output_tokens: 420,
            cost: Some(Micros(184_200 + number as u64)),
            price_table: Some("2026-04".to_owned()),
        }],
        alternatives: Vec::new(),
        route_policy_reason: "default model".to_owned(),
        currency: "USD".to_owned(),
        side_effects: SideEffects {
            tool_calls: vec![ToolCall {
                tool: "read_file".to_owned(),
                call_id: format!("call_{number:026}"),
                status: ToolStatus::Succeeded,
                input_hash: Some(digest),
                output_hash: Some(digest),
                sandbox: None,
            }],
            ..SideEffects::default()
        },
        final_artifacts: vec![FinalArtifact {
            artifact_id: format!("artifact_{number:026}"),
            kind: "text".to_owned(),
            sha256: Some(digest),
        }],
        redactions: Vec::new(),
        previous_receipt_hash: Some(digest),
        merkle_root: None,
        metadata: canon::Map::new(),
    }
}

library_benchmark_group!(
    name = proofs,
    benchmarks = [
        canonicalize,
        hash,
        build,
        sign,
        verify_one,
        verify_in_bundle,
        prove
    ]
);

main!(library_benchmark_groups = proofs);
