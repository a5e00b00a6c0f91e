//! Providers that refuse, stall, break off or talk nonsense: each has its word, and the record gets to see it.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::fixture::{Fake, Reply, ask, assert_error, events, hello, outside, outside_with, vault};

fn provider(kind: &str, url: &str, more: &str) -> String {
    format!(
        "[[providers]]\nid = \"main\"\nkind = \"{kind}\"\nbase_url = \"{url}\"\nmodel = \"m\"\n\
         retry_backoff_ms = 1\ntimeout_ms = 5000\n{more}"
    )
}

fn good() -> Reply {
    let body = json!({"id": "c", "model": "m", "choices": [{"finish_reason": "stop", "message": {"content": "fine"}}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1}});
    Reply::Whole(200, vec![], body.to_string())
}

fn refusal(
    status: u16,
    headers: Vec<(&'static str, &'static str)>,
    error: serde_json::Value,
) -> Reply {
    Reply::Whole(status, headers, json!({"error": error}).to_string())
}

#[tokio::test]
async fn a_rate_limit_with_a_hint_is_waited_for_and_tried_again() {
    let fake = Fake::start([
        refusal(
            429,
            vec![("retry-after-ms", "300")],
            json!({"message": "slow down"}),
        ),
        refusal(500, vec![], json!({"message": "oops"})),
        good(),
    ])
    .await;
    let began = Instant::now();
    let (performed, _) = ask(&outside(&provider("openai", &fake.url, "")), hello()).await;
    assert!(performed.ok, "{performed:?}");
    assert!(began.elapsed() >= Duration::from_millis(300));
    let seen = fake.seen();
    assert_eq!(seen.len(), 3);
    // All that was sent is told, not only the last attempt.
    let sent = performed.observed.unwrap().network_egress[0].bytes_sent;
    assert_eq!(sent, Some(seen.iter().map(|seen| seen.bytes).sum()));
}

#[tokio::test]
async fn a_rate_limit_that_stays_is_an_error_with_its_hint() {
    let refuse = || {
        refusal(
            429,
            vec![("retry-after", "0.01")],
            json!({"message": "slow down"}),
        )
    };
    let fake = Fake::start([refuse(), refuse()]).await;
    let (performed, _) = ask(
        &outside(&provider("openai", &fake.url, "retries_max = 1")),
        hello(),
    )
    .await;
    assert_error(&performed, "provider_rate_limited");
    assert_eq!(
        performed.value,
        json!({"code": "provider_rate_limited", "status": 429, "retry_after_ms": 10, "attempts": 2,
            "message": "provider `main`: the provider answered 429: slow down"})
    );
    assert_eq!(fake.seen().len(), 2);
    // A provider that wants a longer rest than a call should wait is not asked again.
    let fake = Fake::start([refusal(429, vec![("retry-after", "3600")], json!({}))]).await;
    let (performed, _) = ask(&outside(&provider("anthropic", &fake.url, "")), hello()).await;
    assert_error(&performed, "provider_rate_limited");
    assert_eq!(performed.value["retry_after_ms"], 3_600_000);
    assert_eq!(performed.value["attempts"], 1);
}

#[tokio::test]
async fn a_server_error_that_stays_and_a_closed_port_are_provider_errors() {
    let fake = Fake::start((0..3).map(|_| refusal(503, vec![], json!({"message": "down"})))).await;
    let (performed, _) = ask(&outside(&provider("openai", &fake.url, "")), hello()).await;
    assert_error(&performed, "provider_error");
    assert_eq!(performed.value["status"], 503);
    assert_eq!(performed.value["attempts"], 3);

    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let (performed, _) = ask(&outside(&provider("openai", &url, "")), hello()).await;
    assert_error(&performed, "provider_error");
    assert_eq!(performed.value["attempts"], 3);
    // Nothing left this machine.
    assert!(performed.observed.unwrap().network_egress.is_empty());
}

#[tokio::test]
async fn a_refusal_is_not_tried_again_and_an_unknown_model_is_told_apart() {
    for (kind, status, error, code) in [
        (
            "openai",
            400,
            json!({"message": "bad", "type": "invalid_request_error"}),
            "provider_refused",
        ),
        (
            "openai",
            401,
            json!({"message": "who?"}),
            "provider_refused",
        ),
        (
            "openai",
            404,
            json!({"code": "model_not_found", "type": "invalid_request_error"}),
            "model_unknown",
        ),
        (
            "anthropic",
            404,
            json!({"type": "not_found_error", "message": "model: m"}),
            "model_unknown",
        ),
        (
            "anthropic",
            413,
            json!({"type": "request_too_large"}),
            "provider_refused",
        ),
        ("anthropic", 302, json!({}), "provider_refused"),
    ] {
        let fake = Fake::start([refusal(status, vec![("location", "/elsewhere")], error)]).await;
        let (performed, _) = ask(&outside(&provider(kind, &fake.url, "")), hello()).await;
        assert_error(&performed, code);
        assert_eq!(performed.value["status"], status);
        assert_eq!(fake.seen().len(), 1);
    }
}

#[tokio::test]
async fn a_provider_that_hangs_times_out_before_and_inside_its_answer() {
    let begun = events(&[json!({"choices": [{"delta": {"content": "Go"}}]})]);
    for reply in [Reply::Hang, Reply::Stall(vec![begun])] {
        let fake = Fake::start([reply]).await;
        let text = provider("openai", &fake.url, "").replace("5000", "300");
        let (performed, _) = ask(&outside(&text), hello()).await;
        assert_error(&performed, "provider_timeout");
        // What was sent was sent, whatever came back.
        assert_eq!(performed.observed.unwrap().network_egress.len(), 1);
    }
}

#[tokio::test]
async fn a_stream_that_breaks_off_is_no_answer() {
    let begun = events(&[json!({"id": "c", "choices": [{"delta": {"content": "Good "}}]})]);
    let begun_there = events(&[
        json!({"type": "message_start", "message": {"id": "m", "model": "m", "usage": {"input_tokens": 1}}}),
        json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "Good "}}),
    ]);
    for (kind, begun) in [("openai", begun), ("anthropic", begun_there)] {
        let cut_off = Reply::Broken(vec![begun.clone()]);
        let ended = Reply::Stream(vec![begun, "data: {\"half\":".to_owned()]);
        for reply in [cut_off, ended] {
            let fake = Fake::start([reply]).await;
            let (performed, shown) = ask(&outside(&provider(kind, &fake.url, "")), hello()).await;
            assert_error(&performed, "provider_stream_broken");
            assert_eq!(shown, ["Good "]);
            assert_eq!(fake.seen().len(), 1);
        }
    }
}

#[tokio::test]
async fn an_error_inside_a_stream_is_told() {
    let overloaded =
        json!({"type": "error", "error": {"type": "overloaded_error", "message": "busy"}});
    let limited = json!({"error": {"code": "rate_limit_exceeded", "message": "slow down"}});
    for (kind, event, code) in [
        ("anthropic", overloaded, "provider_error"),
        ("openai", limited, "provider_rate_limited"),
    ] {
        let fake = Fake::start([Reply::Stream(vec![events(&[event])])]).await;
        let (performed, _) = ask(&outside(&provider(kind, &fake.url, "")), hello()).await;
        assert_error(&performed, code);
    }
}

#[tokio::test]
async fn nonsense_is_unreadable() {
    for kind in ["openai", "anthropic"] {
        for body in [
            "",
            "not json",
            "{\"a\":1,\"a\":2}",
            "[]",
            "{}",
            "{\"choices\":[{}]}",
        ] {
            let fake = Fake::start([
                Reply::Whole(200, vec![], body.to_owned()),
                Reply::Stream(vec!["data: not json\n\n".to_owned()]),
            ])
            .await;
            let outside = outside(&provider(kind, &fake.url, ""));
            let (performed, _) = ask(&outside, hello()).await;
            assert_error(&performed, "provider_unreadable");
            let (performed, _) = ask(&outside, hello()).await;
            assert_error(&performed, "provider_unreadable");
        }
    }
}

#[tokio::test]
async fn an_answer_without_end_is_cut() {
    let line = format!("data: {{\"x\":\"{}\"}}\n\n", "y".repeat(1_000_000));
    let fake = Fake::start([Reply::Stream(vec![line; 20])]).await;
    let (performed, _) = ask(&outside(&provider("openai", &fake.url, "")), hello()).await;
    assert_error(&performed, "provider_unreadable");
}

/// AP-PRIV-02: a key reaches the provider and nothing else, even when the provider repeats it.
#[tokio::test]
async fn a_key_is_sent_and_never_comes_back() {
    const KEY: &str = "sk-planted-canary-0123456789";
    let (_folder, vault) = vault(&[("openai", KEY)]);
    let said = events(&[
        json!({"id": "c", "choices": [{"delta": {"content": format!("your key is {}", &KEY[..9])}}]}),
        json!({"id": KEY, "choices": [{"delta": {"content": format!("{}!", &KEY[9..])}, "finish_reason": "stop"}]}),
    ]);
    let fake = Fake::start([
        refusal(401, vec![], json!({"message": format!("wrong key {KEY}")})),
        Reply::Stream(vec![said]),
    ])
    .await;
    let outside = outside_with(
        &provider(
            "openai",
            &fake.url,
            "api_key = { secret = \"local/openai\" }",
        ),
        &vault,
    );
    let (refused, _) = ask(&outside, hello()).await;
    let (answered, shown) = ask(&outside, hello()).await;
    assert_eq!(
        fake.seen()[0].headers["authorization"],
        format!("Bearer {KEY}")
    );
    assert_eq!(
        refused.value["message"],
        "provider `main`: the provider answered 401: wrong key [redacted:secret:openai]"
    );
    assert_eq!(
        answered.value["choices"][0]["message"]["content"],
        "your key is [redacted:secret:openai]!"
    );
    assert_eq!(shown.concat(), "your key is [redacted:secret:openai]!");
    for text in [
        format!("{refused:?}"),
        format!("{answered:?}"),
        format!("{outside:?}"),
    ] {
        assert!(!text.contains("canary"), "{text}");
    }
}

#[tokio::test]
async fn a_missing_key_is_told_before_anything_is_sent() {
    let fake = Fake::start([]).await;
    let text = provider(
        "anthropic",
        &fake.url,
        "api_key = { env = \"REPRISE_TEST_NO_SUCH_KEY\" }",
    );
    let (performed, _) = ask(&outside(&text), hello()).await;
    assert_error(&performed, "secret_unknown");
    let text = provider("anthropic", &fake.url, "api_key = { secret = \"none\" }");
    let (performed, _) = ask(&outside(&text), hello()).await;
    assert_error(&performed, "secret_unknown");
    assert!(fake.seen().is_empty());
}

/// A redirect would carry the key to a host that nobody configured.
#[tokio::test]
async fn a_redirect_is_not_followed() {
    let elsewhere = Fake::start([good()]).await;
    let place: &'static str = format!("{}/v1", elsewhere.url).leak();
    for status in [301, 302, 307, 308] {
        let fake = Fake::start([Reply::Whole(
            status,
            vec![("location", place)],
            String::new(),
        )])
        .await;
        let (performed, _) = ask(&outside(&provider("openai", &fake.url, "")), hello()).await;
        assert!(!performed.ok, "{performed:?}");
        assert_eq!(fake.seen().len(), 1);
    }
    assert_eq!(elsewhere.seen().len(), 0);
}

#[tokio::test]
async fn an_answer_with_too_many_tool_calls_is_refused() {
    let asking_for = |count: usize| {
        let call = |number| json!({"id": format!("call_{number}"), "function": {"name": "f", "arguments": "{}"}});
        let calls: Vec<_> = (0..count).map(call).collect();
        let body = json!({"id": "c", "model": "m",
            "choices": [{"finish_reason": "tool_calls", "message": {"content": null, "tool_calls": calls}}]});
        Reply::Whole(200, vec![], body.to_string())
    };
    for (count, is_taken) in [(256, true), (257, false)] {
        let fake = Fake::start([asking_for(count)]).await;
        let (performed, _) = ask(&outside(&provider("openai", &fake.url, "")), hello()).await;
        assert_eq!(performed.ok, is_taken, "{count}");
        if !is_taken {
            assert_error(&performed, "provider_unreadable");
        }
    }
}
