//! Anthropic's messages, streamed and whole.

use serde_json::json;

use crate::fixture::{Fake, Reply, ask, conversation, cut, events, hello, outside};

fn provider(url: &str, more: &str) -> String {
    format!(
        "[[providers]]\nid = \"claude\"\nkind = \"anthropic\"\nbase_url = \"{url}\"\nmodel = \"default-model\"\n{more}"
    )
}

/// AP-TAX-04 for the thinking blocks.
#[tokio::test]
async fn a_streamed_answer_with_thinking_pings_and_tool_use_is_put_together() {
    let stream = events(&[
        json!({"type": "message_start", "message": {"id": "msg_1", "model": "served-model",
            "usage": {"input_tokens": 20, "cache_read_input_tokens": 5, "output_tokens": 1}}}),
        json!({"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}}),
        json!({"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hidden"}}),
        json!({"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "hidden"}}),
        json!({"type": "content_block_stop", "index": 0}),
        json!({"type": "ping"}),
        json!({"type": "content_block_start", "index": 1, "content_block": {"type": "redacted_thinking", "data": "hidden"}}),
        json!({"type": "content_block_stop", "index": 1}),
        json!({"type": "content_block_start", "index": 2, "content_block": {"type": "text", "text": ""}}),
        json!({"type": "content_block_delta", "index": 2, "delta": {"type": "text_delta", "text": "Let me "}}),
        json!({"type": "content_block_delta", "index": 2, "delta": {"type": "text_delta", "text": "look."}}),
        json!({"type": "content_block_stop", "index": 2}),
        json!({"type": "content_block_start", "index": 3, "content_block": {"type": "tool_use", "id": "toolu_1", "name": "clock", "input": {}}}),
        json!({"type": "content_block_delta", "index": 3, "delta": {"type": "input_json_delta", "partial_json": "{\"zo"}}),
        json!({"type": "content_block_delta", "index": 3, "delta": {"type": "input_json_delta", "partial_json": "ne\":\"UTC\"}"}}),
        json!({"type": "content_block_stop", "index": 3}),
        json!({"type": "content_block_start", "index": 4, "content_block": {"type": "tool_use", "id": "toolu_2", "name": "dice", "input": {}}}),
        json!({"type": "content_block_stop", "index": 4}),
        json!({"type": "something_new", "index": 9}),
        json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 33}}),
        json!({"type": "message_stop"}),
    ]);
    for size in [1, 13, 100_000] {
        let fake = Fake::start([Reply::Stream(cut(&stream, size))]).await;
        let (performed, shown) = ask(&outside(&provider(&fake.url, "")), hello()).await;
        assert!(performed.ok, "{performed:?}");
        assert_eq!(shown, ["Let me ", "look."]);
        assert_eq!(
            performed.value,
            json!({
                "id": "msg_1", "object": "chat.completion", "model": "served-model",
                "choices": [{"index": 0, "finish_reason": "tool_calls", "message": {
                    "role": "assistant", "content": "Let me look.",
                    "tool_calls": [
                        {"id": "toolu_1", "type": "function", "function": {"name": "clock", "arguments": "{\"zone\":\"UTC\"}"}},
                        {"id": "toolu_2", "type": "function", "function": {"name": "dice", "arguments": "{}"}},
                    ],
                }}],
                "usage": {"prompt_tokens": 25, "completion_tokens": 33, "total_tokens": 58},
            })
        );
        let used = performed.model.unwrap();
        assert_eq!((used.input_tokens, used.output_tokens), (25, 33));
    }
}

#[tokio::test]
async fn the_conversation_is_translated_and_a_whole_answer_is_read() {
    let answer = json!({"id": "msg_2", "model": "asked-model", "stop_reason": "end_turn", "content": [
        {"type": "thinking", "thinking": "hidden", "signature": "s"},
        {"type": "text", "text": "It is noon."},
        {"type": "tool_use", "id": "toolu_3", "name": "clock", "input": {"zone": "UTC"}}],
        "usage": {"input_tokens": 3, "output_tokens": 4}});
    let fake = Fake::start([Reply::Whole(
        200,
        vec![("request-id", "req_9")],
        answer.to_string(),
    )])
    .await;
    let (performed, _) = ask(
        &outside(&provider(&fake.url, "stream = false")),
        conversation(),
    )
    .await;
    assert!(performed.ok, "{performed:?}");
    assert_eq!(performed.provider_request_id.as_deref(), Some("req_9"));
    assert_eq!(performed.value["choices"][0]["finish_reason"], "stop");
    let message = &performed.value["choices"][0]["message"];
    assert_eq!(message["content"], "It is noon.");
    assert_eq!(
        message["tool_calls"][0]["function"]["arguments"],
        "{\"zone\":\"UTC\"}"
    );
    let seen = &fake.seen()[0];
    assert_eq!(seen.path, "/v1/messages");
    assert_eq!(seen.headers["anthropic-version"], "2023-06-01");
    assert_eq!(
        seen.body,
        json!({
            "model": "asked-model", "max_tokens": 77, "temperature": 0.5, "system": "be short",
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "what time is it?"}]},
                {"role": "assistant", "content": [
                    {"type": "tool_use", "id": "call_1", "name": "clock", "input": {"zone": "UTC"}},
                    {"type": "tool_use", "id": "call_2", "name": "clock", "input": {"malformed_arguments": "{not json"}},
                ]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "call_1", "content": "noon"},
                    {"type": "tool_result", "tool_use_id": "call_2", "content": "error"},
                ]},
            ],
            "tools": [{"name": "clock", "description": "tells the time",
                "input_schema": {"type": "object", "properties": {"zone": {"type": "string"}}}}],
        })
    );
}

/// U6. The counts of a stream come twice; a wrong one at the beginning is not mended by a right one at the end.
#[tokio::test]
async fn counts_that_cannot_be_counts_are_unknown() {
    for usage in [
        json!({"input_tokens": 18_446_744_073_709_551_615_u64, "cache_read_input_tokens": 5}),
        json!({"input_tokens": 9_007_199_254_740_991_u64, "cache_read_input_tokens": 1}),
        json!({"input_tokens": -1}),
    ] {
        let stream = events(&[
            json!({"type": "message_start", "message": {"id": "m", "model": "m", "usage": usage}}),
            json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "hi"}}),
            json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}}),
            json!({"type": "message_stop"}),
        ]);
        let fake = Fake::start([Reply::Stream(vec![stream])]).await;
        let (performed, _) = ask(&outside(&provider(&fake.url, "")), hello()).await;
        assert!(performed.ok, "{performed:?}");
        assert_eq!(performed.value["usage"]["reported"], usage);
        assert!(performed.model.unwrap().usage_unknown, "{usage}");
    }
}
