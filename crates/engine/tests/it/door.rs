//! Whatever comes from outside, the Task ends, and its events can be read back.

use std::time::Duration;

use canon::{Integers, Value};
use domain::{ModelUse, Status};
use engine::{Caller, Filters, ListRequest};
use receipts::Receipt;
use runs::workflow::EffectOutcome;
use serde_json::json;

use crate::rig::{Finished, Outside, World};

fn nested(levels: usize) -> Value {
    (0..levels).fold(json!(1), |inner, _| json!({ "a": inner }))
}

/// Fails instead of waiting for ever: a Task that cannot be recorded never ends.
async fn within_time(run: impl Future<Output = Finished>) -> Finished {
    tokio::time::timeout(Duration::from_secs(20), run)
        .await
        .expect("the task never ended")
}

fn look() -> Value {
    json!([{"name": "look", "server": "eyes", "tool": "look", "repeatable": true, "read_only": true}])
}

async fn receipt(world: &World, run: &Finished) -> Receipt {
    let request = ListRequest {
        kind: domain::ResourceKind::Receipt,
        filters: Filters {
            task_id: Some(run.id.to_string()),
            ..Filters::default()
        },
        after: domain::Position::START,
        limit: 10,
    };
    let caller = Caller::system();
    let page = world.engine.list(&caller, request).await.unwrap();
    let form = world
        .engine
        .receipt(&caller, &page.views[0].document.id)
        .await
        .unwrap();
    Receipt::read(&form.bytes.unwrap()).unwrap()
}

/// U6.
#[tokio::test]
async fn a_result_of_any_depth_and_any_number_is_recorded_and_read_back() {
    let world = World::new(Outside::new()).await;
    let answer = json!({"structuredContent": nested(125), "big": 18_446_744_073_709_551_615_u64, "huge": 1e300});
    world
        .outside
        .tools(look())
        .uses("llm:main:1", &[("c", "look", "{}")])
        .answer("mcp:eyes:main:1", answer)
        .says("llm:main:2", "seen");
    let run = within_time(world.agent(json!({"tools": ["look"]}), "go")).await;
    assert_eq!(run.status, Status::Completed);
    let value = &run.record("mcp:eyes:main:1").payload["value"];
    assert_eq!(value["big"], "18446744073709551615");
    assert_eq!(value["huge"], "1e+300");
    for event in &run.events {
        let bytes = canon::jcs(&Value::Object((*event.payload).clone()));
        canon::read(&bytes, Integers::Safe).unwrap();
    }
    receipt(&world, &run).await;
}

/// U6.
#[tokio::test]
async fn a_usage_that_cannot_be_one_is_unknown_and_named_in_the_receipt() {
    for tokens in [1 << 53, u64::MAX] {
        let world = World::new(Outside::new()).await;
        let message = json!({"choices": [{"message": {"role": "assistant", "content": "hello"}}]});
        world.outside.perform_as(
            "llm:main:1",
            EffectOutcome {
                model: Some(ModelUse {
                    provider: "test".to_owned(),
                    model: "m".to_owned(),
                    input_tokens: tokens,
                    output_tokens: 1,
                    cost_micros: Some(3),
                    price_table: None,
                    usage_unknown: false,
                }),
                ..EffectOutcome::ok(message)
            },
        );
        let run = within_time(world.plain("go")).await;
        assert_eq!(run.status, Status::Completed);
        assert_eq!(run.text(), "hello");
        let model = &run.record("llm:main:1").payload["model"];
        assert_eq!(model["usage_unknown"], true);
        assert_eq!(model["cost_micros"], Value::Null);
        let receipt = receipt(&world, &run).await;
        let bytes: Value = serde_json::from_slice(&receipt.bytes()).unwrap();
        let redactions = bytes["redactions"].as_array().unwrap();
        let reasons: Vec<(&str, &str)> = redactions
            .iter()
            .map(|one| {
                (
                    one["field"].as_str().unwrap(),
                    one["reason"].as_str().unwrap(),
                )
            })
            .collect();
        assert_eq!(
            reasons,
            [
                ("/autonomy_budget/consumed/input_tokens", "usage_unknown"),
                ("/autonomy_budget/consumed/output_tokens", "usage_unknown"),
                ("/cost/provider_breakdown/test/m", "price_unknown"),
            ]
        );
    }
}
