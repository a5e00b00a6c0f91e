//! Chat completions, streamed and whole.

use serde_json::{Value, json};

use crate::fixture::{Fake, Reply, ask, conversation, cut, events, hello, outside};

fn provider(url: &str, more: &str) -> String {
    format!(
        "[[providers]]\nid = \"main\"\nkind = \"openai\"\nbase_url = \"{url}/v1/\"\nmodel = \"default-model\"\n{more}"
    )
}

fn chunk(delta: &Value, finish: Option<&str>) -> Value {
    json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "served-model",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})
}

fn usage() -> Value {
    json!({"id": "chatcmpl-1", "model": "served-model", "choices": [],
        "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}})
}

#[tokio::test]
async fn a_streamed_answer_is_put_together_and_shown_piece_by_piece() {
    let stream = events(&[
        chunk(&json!({"role": "assistant", "content": ""}), None),
        chunk(&json!({"content": "Good "}), None),
        chunk(&json!({"content": "morning"}), None),
        chunk(&json!({}), Some("stop")),
        usage(),
    ]) + "data: [DONE]\n\n";
    // However the network cuts it.
    for size in [1, 7, 100_000] {
        let fake = Fake::start([Reply::Stream(cut(&stream, size))]).await;
        let outside = outside(&provider(&fake.url, ""));
        let (performed, shown) = ask(&outside, hello()).await;
        assert!(performed.ok, "{performed:?}");
        assert_eq!(shown, ["Good ", "morning"]);
        assert_eq!(
            performed.value,
            json!({
                "id": "chatcmpl-1", "object": "chat.completion", "model": "served-model",
                "choices": [{"index": 0, "finish_reason": "stop",
                    "message": {"role": "assistant", "content": "Good morning"}}],
                "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
            })
        );
        assert_eq!(
            performed.provider_request_id.as_deref(),
            Some("req_from_header")
        );
        let used = performed.model.unwrap();
        assert_eq!(
            (used.provider.as_str(), used.model.as_str()),
            ("main", "served-model")
        );
        assert_eq!((used.input_tokens, used.output_tokens), (11, 7));
        // Nobody knows what this host charges.
        assert_eq!((used.cost_micros, used.price_table), (None, None));
        let seen = &fake.seen()[0];
        let egress = &performed.observed.as_ref().unwrap().network_egress;
        assert_eq!(egress.len(), 1);
        assert_eq!(egress[0].destination, "127.0.0.1");
        assert_eq!(egress[0].purpose, "model");
        assert_eq!(egress[0].bytes_sent, Some(seen.bytes));
        assert_eq!(seen.path, "/v1/chat/completions");
        assert_eq!(seen.body["model"], "default-model");
        assert_eq!(seen.body["stream"], true);
        assert!(!seen.headers.contains_key("authorization"));
    }
}

#[tokio::test]
async fn tool_calls_in_pieces_are_put_together() {
    let piece = |index: u64, name: Option<&str>, arguments: &str| {
        let mut call = json!({"index": index, "function": {"arguments": arguments}});
        if let Some(name) = name {
            call["id"] = format!("call_{name}").into();
            call["type"] = "function".into();
            call["function"]["name"] = name.into();
        }
        chunk(&json!({"tool_calls": [call]}), None)
    };
    let stream = events(&[
        piece(0, Some("clock"), ""),
        piece(0, None, "{\"zone\""),
        piece(0, None, ":\"UTC\"}"),
        piece(1, Some("dice"), "{not"),
        piece(1, None, " json"),
        chunk(&json!({}), Some("tool_calls")),
        usage(),
    ]);
    let fake = Fake::start([Reply::Stream(cut(&stream, 11))]).await;
    let (performed, shown) = ask(&outside(&provider(&fake.url, "")), hello()).await;
    assert!(performed.ok, "{performed:?}");
    assert!(shown.is_empty());
    let choice = &performed.value["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(
        choice["message"],
        json!({"role": "assistant", "content": null, "tool_calls": [
            {"id": "call_clock", "type": "function", "function": {"name": "clock", "arguments": "{\"zone\":\"UTC\"}"}},
            // What the model wrote wrongly stays as it wrote it.
            {"id": "call_dice", "type": "function", "function": {"name": "dice", "arguments": "{not json"}},
        ]})
    );
}

/// AP-TAX-04.
#[tokio::test]
async fn reasoning_is_in_no_piece_and_not_in_the_answer() {
    let stream = events(&[
        chunk(&json!({"reasoning_content": "hidden one"}), None),
        chunk(&json!({"reasoning": "hidden two"}), None),
        chunk(&json!({"content": "<think>hidden"}), None),
        chunk(&json!({"content": " three</think>\n"}), None),
        chunk(&json!({"content": "shown"}), None),
        chunk(&json!({}), Some("stop")),
        usage(),
    ]);
    let whole = json!({"id": "c", "model": "m", "choices": [{"finish_reason": "stop", "message": {
        "content": [{"type": "thinking", "thinking": "hidden"}, {"type": "text", "text": "shown"}],
        "reasoning_content": "hidden"}}]});
    let fake = Fake::start([
        Reply::Stream(vec![stream]),
        Reply::Whole(200, vec![], whole.to_string()),
    ])
    .await;
    let outside = outside(&provider(&fake.url, ""));
    for _ in 0..2 {
        let (performed, shown) = ask(&outside, hello()).await;
        assert!(!shown.concat().contains("hidden"), "{shown:?}");
        assert!(
            !performed.value.to_string().contains("hidden"),
            "{performed:?}"
        );
        assert_eq!(performed.value["choices"][0]["message"]["content"], "shown");
    }
}

/// The first of these headers that is present, in this order, names the exchange.
#[tokio::test]
async fn request_ids_come_from_the_first_header_that_is_there() {
    let answer = json!({"id": "chatcmpl-9", "model": "asked-model", "choices": [{"finish_reason": "stop",
        "message": {"role": "assistant", "content": "yes"}}]});
    let all = [
        ("x-goog-request-id", "goog"),
        ("cf-ray", "ray"),
        ("x-request-id", "openai"),
        ("request-id", "anthropic"),
    ];
    for (count, expected) in [
        (4, Some("anthropic")),
        (3, Some("openai")),
        (2, Some("ray")),
        (1, Some("goog")),
        (0, None),
    ] {
        let headers = all[..count].to_vec();
        let fake = Fake::start([Reply::Whole(200, headers, answer.to_string())]).await;
        let outside = outside(&provider(&fake.url, "stream = false"));
        let (performed, _) = ask(&outside, conversation()).await;
        assert!(performed.ok, "{performed:?}");
        assert_eq!(performed.provider_request_id.as_deref(), expected);
    }
}

#[tokio::test]
async fn the_whole_conversation_is_sent_and_a_whole_answer_is_read() {
    let answer = json!({"id": "chatcmpl-2", "model": "asked-model", "choices": [{"finish_reason": "length",
        "message": {"role": "assistant", "content": "cut"}}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 50, "prompt_tokens_details": {"cached_tokens": 40}}});
    let fake = Fake::start([Reply::Whole(200, vec![], answer.to_string())]).await;
    let outside = outside(&format!(
        "{}\n[prices]\ntable = \"ours\"\n[[prices.models]]\nprovider = \"main\"\nmodel = \"asked-model\"\n\
         input = 2_000_000\ncached_input = 500_000\noutput = 4_000_000\n",
        provider(
            &fake.url,
            "stream = false\nmax_tokens_member = \"max_completion_tokens\""
        )
    ));
    let (performed, shown) = ask(&outside, conversation()).await;
    assert!(performed.ok, "{performed:?}");
    assert!(shown.is_empty());
    assert_eq!(performed.value["choices"][0]["finish_reason"], "length");
    let used = performed.model.unwrap();
    assert_eq!(used.cost_micros, Some(60 * 2 + 40 / 2 + 50 * 4));
    assert_eq!(used.price_table.as_deref(), Some("ours"));
    // The id in the body names the answer, not the exchange.
    assert_eq!(performed.provider_request_id, None);
    let mut expected = conversation();
    expected["max_completion_tokens"] = expected["max_tokens"].take();
    expected.as_object_mut().unwrap().remove("max_tokens");
    assert_eq!(fake.seen()[0].body, expected);
}

/// U6: usage outside 0…2^53−1 is unknown. What the provider told is kept beside the estimate.
#[tokio::test]
async fn counts_that_cannot_be_counts_are_unknown() {
    let said = |usage: &str| {
        format!(
            r#"{{"id": "c", "model": "m", "choices": [{{"finish_reason": "stop", "message": {{"role": "assistant", "content": "hello"}}}}], "usage": {usage}}}"#
        )
    };
    for (usage, reported) in [
        (
            r#"{"prompt_tokens": 9007199254740993, "completion_tokens": 1}"#,
            json!({"prompt_tokens": "9007199254740993", "completion_tokens": 1}),
        ),
        (
            r#"{"prompt_tokens": 18446744073709551615, "completion_tokens": 1}"#,
            json!({"prompt_tokens": "18446744073709551615", "completion_tokens": 1}),
        ),
        (
            r#"{"prompt_tokens": 3, "completion_tokens": -1}"#,
            json!({"prompt_tokens": 3, "completion_tokens": -1}),
        ),
        (
            r#"{"prompt_tokens": 3.5, "completion_tokens": 1}"#,
            json!({"prompt_tokens": 3.5, "completion_tokens": 1}),
        ),
        (
            r#"{"prompt_tokens": 3, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": -1}}"#,
            json!({"prompt_tokens": 3, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": -1}}),
        ),
    ] {
        let fake = Fake::start([Reply::Whole(200, vec![], said(usage))]).await;
        let (performed, _) = ask(&outside(&provider(&fake.url, "")), hello()).await;
        let performed = performed.made_safe();
        assert!(performed.ok, "{performed:?}");
        let shown = &performed.value["usage"];
        assert_eq!(shown["estimated"], true, "{usage}");
        assert_eq!(shown["reported"], reported, "{usage}");
        let used = performed.model.unwrap();
        assert!(used.usage_unknown, "{usage}");
        assert_eq!(used.output_tokens, 2, "estimated from the text");
        assert_eq!(used.cost_micros, None);
    }
    // One that does not count at all says nothing wrong.
    let fake = Fake::start([Reply::Whole(200, vec![], said("null"))]).await;
    let (performed, _) = ask(&outside(&provider(&fake.url, "")), hello()).await;
    assert!(!performed.model.unwrap().usage_unknown);
    assert!(performed.value["usage"].get("reported").is_none());
}
