//! The cost of checking a bundle: 100,000 receipts of about 2 KB under one checkpoint, on one core.
//!
//! Ends with an error if the budget of two seconds is missed.

#![expect(clippy::print_stdout, reason = "a benchmark reports on stdout")]

use std::{process::ExitCode, time::Instant};

use receipts::{
    Budget, Determinism, End, EventLog, FinalArtifact, Identifiers, Issuer, Lifecycle, Material,
    MaterialContent, MaterialKind, Micros, ModelCall, ModelRef, ReplayInput, SideEffects, Signer,
    TaskFacts, Tier, ToolCall, ToolStatus, Trust, build_task, merkle, stream,
};

const COUNT: usize = 100_000;
const DISTINCT: usize = 1000;
const BUDGET_S: f64 = 2.0;

fn main() -> ExitCode {
    let signer = Signer::new("key_1", &[1; 32]);
    let bundle: Vec<Vec<u8>> = (0..DISTINCT)
        .filter_map(|number| build_task(&facts(number)).ok())
        .map(|receipt| receipt.signed(&signer).bytes())
        .collect();
    let bytes: usize = bundle.iter().map(Vec::len).sum();
    let start = Instant::now();
    let mut frontier = merkle::Frontier::EMPTY;
    for receipt in bundle.iter().cycle().take(COUNT) {
        let Ok(checked) = stream::check(receipt) else {
            println!("a receipt was refused");
            return ExitCode::FAILURE;
        };
        frontier = merkle::append(frontier, merkle::leaf(&checked.hash)).0;
    }
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{COUNT} receipts of {} bytes: {seconds:.3} s, {:.2} µs each, root {}",
        bytes / bundle.len(),
        seconds * 1e6 / COUNT as f64,
        frontier.root(),
    );
    if seconds <= BUDGET_S {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

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
            end: End::Succeeded,
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
