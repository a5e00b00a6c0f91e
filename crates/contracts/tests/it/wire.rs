//! Wire adapters on whole bodies: what is read from a request and a response, and what is written again.

use std::collections::BTreeSet;

use contracts::wire::{Incoming, Plan, Reply, ReplyError, Wire, WireRequest};
use contracts::{
    FinishReason, NarrowReason, Narrowing, RemovedTool, SUBSTITUTE, ShownOutput, ToolChoice, Usage,
};
use serde_json::{Value, json};

pub(crate) fn request(wire: Wire, body: &str) -> WireRequest {
    WireRequest::read(wire, body.as_bytes(), &BTreeSet::new())
}

pub(crate) fn simple(wire: Wire) -> WireRequest {
    let body = match wire {
        Wire::OpenAiChat | Wire::AnthropicMessages => r#"{"model":"m","messages":[]}"#,
        Wire::OpenAiResponses => r#"{"model":"m","input":"hi"}"#,
    };
    request(wire, body)
}

fn removing(names: &[&str]) -> Narrowing {
    let removed = names.iter().map(|name| RemovedTool {
        tool: (*name).to_owned(),
        reason: NarrowReason::WrongPhase,
        detail: None,
        contract_file: None,
    });
    Narrowing {
        allowed: Vec::new(),
        removed: removed.collect(),
    }
}

fn planned(request: &WireRequest, narrowing: &Narrowing, feedback: Option<&str>) -> String {
    let plan = Plan {
        narrowing: Some(narrowing),
        feedback,
        count_usage: false,
    };
    String::from_utf8(request.planned(plan)).unwrap()
}

fn names(request: &WireRequest) -> Vec<String> {
    let tools = request.request().tools.iter();
    tools.map(|tool| tool.name.clone()).collect()
}

const CHAT: &str = r#"{ "model" : "gpt", "messages":[{"role":"user","content":"hi \u00e9"}],
 "tools":[{"type":"function","function":{"name":"a","parameters":{"type":"object"}}} , {"type":"custom","custom":{"name":"b"}},
  {"type":"function","function":{"name":"c"}}],"tool_choice":"auto","parallel_tool_calls":true,"seed":9007199254740993,"x":1.50}"#;

#[test]
fn a_planned_request_differs_only_in_its_tools() {
    let chat = request(Wire::OpenAiChat, CHAT);
    assert_eq!(names(&chat), ["a", "b", "c"]);
    assert!(chat.request().unsupported.is_none());
    assert_eq!(planned(&chat, &removing(&[]), None), CHAT);
    let without_b = CHAT.replace(r#" , {"type":"custom","custom":{"name":"b"}}"#, "");
    assert_eq!(planned(&chat, &removing(&["b"]), None), without_b);
    let only_c: Value =
        serde_json::from_str(&planned(&chat, &removing(&["a", "b"]), None)).unwrap();
    assert_eq!(only_c["tools"].as_array().unwrap().len(), 1);
    assert_eq!(only_c["tool_choice"], "auto");
}

#[test]
fn r20_without_tools_the_members_about_them_go() {
    let chat = request(Wire::OpenAiChat, CHAT);
    let none = planned(&chat, &removing(&["a", "b", "c"]), None);
    assert!(
        none.contains("\"seed\":9007199254740993,\"x\":1.50}"),
        "{none}"
    );
    let body: Value = serde_json::from_str(&none).unwrap();
    let members: Vec<&String> = body.as_object().unwrap().keys().collect();
    assert_eq!(members, ["messages", "model", "seed", "x"]);

    let plain = r#"{"model":"c","messages":[{"role":"user","content":"hi"}],"tools":[{"name":"a","input_schema":{}}],"tool_choice":{"type":"any"}}"#;
    let plain = request(Wire::AnthropicMessages, plain);
    assert_eq!(
        planned(&plain, &removing(&["a"]), None),
        r#"{"model":"c","messages":[{"role":"user","content":"hi"}]}"#
    );
    // Tool blocks in the conversation: the provider refuses them without tools.
    let used = r#"{"model":"c","messages":[{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"b","input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":"{\"ok\":true}"}]}],"tools":[{"name":"a","input_schema":{}},{"name":"b","input_schema":{}}]}"#;
    let used = request(Wire::AnthropicMessages, used);
    let body: Value = serde_json::from_str(&planned(&used, &removing(&["a", "b"]), None)).unwrap();
    assert_eq!(body["tools"], json!([{"name":"b","input_schema":{}}]));
    assert_eq!(body["tool_choice"], json!({"type":"none"}));
    let output = ShownOutput {
        call_id: "t".to_owned(),
        text: r#"{"ok":true}"#.to_owned(),
    };
    assert_eq!(used.outputs(), [output]);
}

#[test]
fn r21_lists_of_allowed_tools_lose_what_was_removed() {
    let body = r#"{"model":"m","messages":[],"tools":[{"type":"function","function":{"name":"a"}},{"type":"function","function":{"name":"b"}}],"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"required","tools":[{"type":"function","function":{"name":"a"}},{"type":"function","function":{"name":"b"}}]}}}"#;
    let chat = request(Wire::OpenAiChat, body);
    let both = vec!["a".to_owned(), "b".to_owned()];
    assert_eq!(chat.request().choice, ToolChoice::AllowedOnly(both));
    let body: Value = serde_json::from_str(&planned(&chat, &removing(&["a"]), None)).unwrap();
    let listed = &body["tool_choice"]["allowed_tools"]["tools"];
    assert_eq!(
        *listed,
        json!([{"type":"function","function":{"name":"b"}}])
    );

    for (wire, choice, expected) in [
        (
            Wire::OpenAiChat,
            r#""required""#,
            Some(ToolChoice::Required),
        ),
        (Wire::OpenAiChat, r#""none""#, Some(ToolChoice::None)),
        (
            Wire::OpenAiChat,
            r#"{"type":"function","function":{"name":"a"}}"#,
            Some(ToolChoice::Named("a".to_owned())),
        ),
        (
            Wire::OpenAiResponses,
            r#"{"type":"function","name":"a"}"#,
            Some(ToolChoice::Named("a".to_owned())),
        ),
        (
            Wire::OpenAiResponses,
            r#"{"type":"allowed_tools","mode":"auto","tools":[{"type":"function","name":"a"},{"type":"mcp","server_label":"s"}]}"#,
            Some(ToolChoice::AllowedOnly(vec![
                "a".to_owned(),
                "mcp".to_owned(),
            ])),
        ),
        (
            Wire::AnthropicMessages,
            r#"{"type":"tool","name":"a"}"#,
            Some(ToolChoice::Named("a".to_owned())),
        ),
        (
            Wire::AnthropicMessages,
            r#"{"type":"any"}"#,
            Some(ToolChoice::Required),
        ),
        (Wire::OpenAiChat, r#""sometimes""#, None),
        (Wire::AnthropicMessages, r#""auto""#, None),
    ] {
        let body = format!(r#"{{"model":"m","messages":[],"input":[],"tool_choice":{choice}}}"#);
        let read = request(wire, &body);
        match expected {
            Some(expected) => assert_eq!(read.request().choice, expected, "{choice}"),
            None => assert_eq!(read.request().unsupported.as_deref(), Some("tool_choice")),
        }
    }
}

#[test]
fn r18_tools_are_governed_by_name_or_by_type() {
    let body = r#"{"model":"m","input":"x","tools":[{"type":"function","name":"f","parameters":{}},{"type":"custom","name":"g"},{"type":"local_shell"},{"type":"computer_use_preview"},{"type":"web_search"},{"type":"mcp","server_label":"s","require_approval":"never"},{"type":"namespace","name":"crm","tools":[{"type":"function","name":"find"},{"type":"function","name":"drop"}]},{"type":"brand_new"}]}"#;
    let read = request(Wire::OpenAiResponses, body);
    let expected = [
        ("f", false),
        ("g", false),
        ("local_shell", false),
        ("computer", false),
        ("web_search", true),
        ("mcp", true),
        ("crm.find", false),
        ("crm.drop", false),
        ("brand_new", true),
    ];
    let found: Vec<(&str, bool)> = read
        .request()
        .tools
        .iter()
        .map(|tool| (tool.name.as_str(), tool.hosted))
        .collect();
    assert_eq!(found, expected);
    let out = planned(
        &read,
        &removing(&["crm.drop", "brand_new", "web_search"]),
        None,
    );
    let out: Value = serde_json::from_str(&out).unwrap();
    let tools = out["tools"].as_array().unwrap();
    assert_eq!(tools.len(), 6);
    assert_eq!(tools[4]["require_approval"], "always");
    assert_eq!(
        tools[5]["tools"],
        json!([{"type":"function","name":"find"}])
    );
    // A set of which nothing is left goes as a whole.
    let out = planned(&read, &removing(&["crm.drop", "crm.find"]), None);
    assert!(!out.contains("namespace"));

    let body = r#"{"model":"m","messages":[],"tools":[{"name":"f","input_schema":{}},{"type":"bash_20250124","name":"bash"},{"type":"web_search_20250305","name":"web_search"}]}"#;
    let read = request(Wire::AnthropicMessages, body);
    let found: Vec<(&str, bool)> = read
        .request()
        .tools
        .iter()
        .map(|tool| (tool.name.as_str(), tool.hosted))
        .collect();
    let expected = [("f", false), ("bash", false), ("web_search_20250305", true)];
    assert_eq!(found, expected);
}

#[test]
fn r19_what_cannot_be_judged_is_named() {
    let chat = |rest: &str| format!(r#"{{"model":"m","messages":[]{rest}}}"#);
    let input = |rest: &str| format!(r#"{{"model":"m","input":[]{rest}}}"#);
    for (wire, body, member) in [
        (Wire::OpenAiChat, chat(r#","n":2"#), "n"),
        (Wire::OpenAiChat, chat(r#","n":1.0"#), "n"),
        (Wire::OpenAiChat, chat(r#","functions":[]"#), "functions"),
        (Wire::OpenAiChat, chat(r#","function_call":"auto""#), "function_call"),
        (Wire::OpenAiChat, chat(r#","web_search_options":{}"#), "web_search_options"),
        (Wire::OpenAiChat, r#"{"model":"m"}"#.to_owned(), "messages"),
        (Wire::OpenAiChat, r#"{"messages":[]}"#.to_owned(), "model"),
        (Wire::OpenAiChat, chat(r#","stream":"yes""#), "stream"),
        (Wire::OpenAiChat, chat(r#","tools":[{"name":"a"}]"#), "tools"),
        (Wire::OpenAiChat, chat(r#","tools":{}"#), "tools"),
        (Wire::OpenAiResponses, input(r#","background":true"#), "background"),
        (Wire::OpenAiResponses, input(r#","prompt":{"id":"p"}"#), "prompt"),
        (Wire::OpenAiResponses, input(r#","conversation":"c""#), "conversation"),
        (
            Wire::OpenAiResponses,
            input(r#","previous_response_id":"r0""#),
            "previous_response_id",
        ),
        (
            Wire::OpenAiResponses,
            r#"{"model":"m","input":[{"type":"additional_tools","tools":[]}]}"#.to_owned(),
            "input",
        ),
        (
            Wire::OpenAiResponses,
            input(r#","tools":[{"type":"function","name":"a","defer_loading":true}]"#),
            "tools.defer_loading",
        ),
        (Wire::AnthropicMessages, chat(r#","mcp_servers":[]"#), "mcp_servers"),
        (Wire::AnthropicMessages, chat(r#","thread":"t""#), "thread"),
        (
            Wire::AnthropicMessages,
            r#"{"model":"m","messages":[{"role":"user","content":[{"type":"tool_addition","tools":[]}]}]}"#
                .to_owned(),
            "messages",
        ),
        (Wire::OpenAiChat, "{\"model\":\"m\",\"messages\":[".to_owned(), "body"),
        (Wire::OpenAiChat, "[]".to_owned(), "body"),
        (
            Wire::OpenAiChat,
            r#"{"model":"m","messages":[],"tools":[],"tools":[]}"#.to_owned(),
            "body: a member stands twice",
        ),
    ] {
        let read = request(wire, &body);
        assert_eq!(read.request().unsupported.as_deref(), Some(member), "{body}");
    }
    for (wire, body) in [
        (Wire::OpenAiChat, chat(r#","n":1,"functions":null"#)),
        (
            Wire::OpenAiResponses,
            input(r#","background":false,"previous_response_id":null"#),
        ),
    ] {
        assert_eq!(request(wire, &body).request().unsupported, None, "{body}");
    }
    let created = BTreeSet::from(["r0".to_owned()]);
    let body = input(r#","previous_response_id":"r0""#);
    let read = WireRequest::read(Wire::OpenAiResponses, body.as_bytes(), &created);
    assert_eq!(read.request().unsupported, None);
}

#[test]
fn r35_sizes_of_a_request_hold() {
    let deep = format!(
        r#"{{"model":"m","messages":{}1{}}}"#,
        "[".repeat(200),
        "]".repeat(200)
    );
    assert_eq!(
        request(Wire::OpenAiChat, &deep)
            .request()
            .unsupported
            .as_deref(),
        Some("body")
    );
    let big = format!(r#"{{"model":"m","messages":["{}"]}}"#, "x".repeat(16 << 20));
    assert_eq!(
        request(Wire::OpenAiChat, &big)
            .request()
            .unsupported
            .as_deref(),
        Some("body")
    );
    let bytes = WireRequest::read(Wire::OpenAiChat, b"{\"model\":\"\xff\"}", &BTreeSet::new());
    assert_eq!(bytes.request().unsupported.as_deref(), Some("body"));
}

#[test]
fn r24_what_the_model_is_told_stands_in_front() {
    let told = "These tools are not available now: a (restricted). Do not call them.";
    let chat = request(
        Wire::OpenAiChat,
        r#"{"model":"m","messages":[{"role":"system","content":"s"}]}"#,
    );
    assert_eq!(
        planned(&chat, &removing(&[]), Some(told)),
        format!(
            r#"{{"model":"m","messages":[{{"role":"system","content":"{told}"}},{{"role":"system","content":"s"}}]}}"#
        )
    );
    let block = format!(r#"{{"type":"text","text":"{told}"}}"#);
    for (system, expected) in [
        ("", format!(r#""system":[{block}],"#)),
        (
            r#""system":"be \"kind\"","#,
            format!(r#""system":[{block},{{"type":"text","text":"be \"kind\""}}],"#),
        ),
        (
            r#""system":[{"type":"text","text":"x"}],"#,
            format!(r#""system":[{block},{{"type":"text","text":"x"}}],"#),
        ),
    ] {
        let body = format!(r#"{{{system}"model":"m","messages":[]}}"#);
        let read = request(Wire::AnthropicMessages, &body);
        let expected = format!(r#"{{{expected}"model":"m","messages":[]}}"#);
        assert_eq!(planned(&read, &removing(&[]), Some(told)), expected);
    }
    for (given, expected) in [
        (
            r#","instructions":"be kind""#,
            format!(r#"{told}\n\nbe kind"#),
        ),
        (r#","instructions":null"#, told.to_owned()),
    ] {
        let read = request(Wire::OpenAiResponses, &format!(r#"{{"model":"m"{given}}}"#));
        let out = planned(&read, &removing(&[]), Some(told));
        assert_eq!(
            out,
            format!(r#"{{"model":"m","instructions":"{expected}"}}"#)
        );
    }
}

#[test]
fn r25_usage_is_asked_for_where_a_limit_needs_it() {
    for (body, expected) in [
        (
            r#"{"model":"m","messages":[],"stream":true}"#,
            r#"{"stream_options":{"include_usage":true},"model":"m","messages":[],"stream":true}"#,
        ),
        (
            r#"{"model":"m","messages":[],"stream":true,"stream_options":{"include_usage":false}}"#,
            r#"{"model":"m","messages":[],"stream":true,"stream_options":{"include_usage":true}}"#,
        ),
        (
            r#"{"model":"m","messages":[]}"#,
            r#"{"model":"m","messages":[]}"#,
        ),
    ] {
        let plan = Plan {
            narrowing: None,
            feedback: None,
            count_usage: true,
        };
        let out = request(Wire::OpenAiChat, body).planned(plan);
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}

#[test]
fn r16_the_view_is_what_is_sent() {
    let body = r#"{"model":"m","messages":[{"role":"system","content":"a"},{"role":"developer","content":[{"type":"text","text":"b"}]},{"role":"user","content":"9007199254740993"}],"tools":[{"type":"function","function":{"name":"f"}}]}"#;
    let mut chat = request(Wire::OpenAiChat, body);
    let sent = planned(&chat, &removing(&["f"]), None);
    chat.look_at(sent.as_bytes());
    let view: Value = serde_json::from_str(&chat.request().view.to_json()).unwrap();
    assert_eq!(view["provider"], "openai");
    assert_eq!(view["system"], "a\nb");
    assert_eq!(view["messages"].as_array().unwrap().len(), 3);
    assert_eq!(view["tools"], Value::Null);
    let mut anthropic = request(
        Wire::AnthropicMessages,
        r#"{"model":"c","system":[{"type":"text","text":"x"}],"messages":[{"role":"user","content":"hi"}],"tools":[{"name":"f","input_schema":{}}]}"#,
    );
    let sent = planned(&anthropic, &removing(&[]), None);
    anthropic.look_at(sent.as_bytes());
    let view: Value = serde_json::from_str(&anthropic.request().view.to_json()).unwrap();
    assert_eq!(view["system"], "x");
    assert_eq!(view["tools"], json!(["f"]));
    let mut responses = request(
        Wire::OpenAiResponses,
        r#"{"model":"m","input":"hi","instructions":"i"}"#,
    );
    responses.look_at(br#"{"model":"m","input":"hi","instructions":"i"}"#);
    let view: Value = serde_json::from_str(&responses.request().view.to_json()).unwrap();
    assert_eq!(view["messages"], json!([{"role":"user","content":"hi"}]));
    assert_eq!(view["system"], "i");
}

#[test]
fn outputs_are_found_in_requests() {
    let body = r#"{"model":"m","messages":[{"role":"tool","tool_call_id":"c1","content":"{\"a\":1}"},{"role":"tool","tool_call_id":"c2","content":[{"type":"text","text":"x"},{"type":"text","text":"y"}]}]}"#;
    let found = request(Wire::OpenAiChat, body);
    let texts: Vec<&str> = found
        .outputs()
        .iter()
        .map(|output| output.text.as_str())
        .collect();
    assert_eq!(texts, [r#"{"a":1}"#, "xy"]);
    let body = r#"{"model":"m","input":[{"type":"function_call_output","call_id":"c1","output":"1"},{"type":"shell_call_output","call_id":"c2","output":{"code":0}},{"role":"user","content":"x"}]}"#;
    let found = request(Wire::OpenAiResponses, body);
    let texts: Vec<&str> = found
        .outputs()
        .iter()
        .map(|output| output.text.as_str())
        .collect();
    assert_eq!(texts, ["1", r#"{"code":0}"#]);
    // A failure satisfies nothing, whatever it says.
    let body = r#"{"model":"m","messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","is_error":true,"content":"{\"accepted\":true}"}]}]}"#;
    assert!(request(Wire::AnthropicMessages, body).outputs().is_empty());
}

fn chat_body(calls: &str, rest: &str) -> String {
    format!(
        r#"{{"id":"r1","choices":[{{"index":0,"message":{{"role":"assistant","content":null,"tool_calls":[{calls}]}},"finish_reason":"tool_calls"}}]{rest}}}"#
    )
}

fn call(id: &str, name: &str) -> String {
    format!(
        r#"{{"id":"{id}","type":"function","function":{{"name":"{name}","arguments":"{{\"n\":1.0}}"}}}}"#
    )
}

fn read(wire: Wire, body: &str) -> Reply {
    Reply::read(&simple(wire), body.as_bytes(), false, false).unwrap()
}

#[test]
fn a_released_response_is_the_bytes_that_came() {
    let body = chat_body(
        &format!("{} ,{}", call("c1", "a"), call("c2", "b")),
        r#", "x":9007199254740993"#,
    );
    let reply = read(Wire::OpenAiChat, &body);
    assert_eq!(reply.response().calls[0].arguments, r#"{"n":1.0}"#);
    assert_eq!(reply.response().finish_reason, FinishReason::ToolCalls);
    assert_eq!(reply.whole(), body.as_bytes());
    let kept = chat_body(&call("c2", "b"), r#", "x":9007199254740993"#);
    assert_eq!(
        String::from_utf8(reply.stripped(&[0], false)).unwrap(),
        kept
    );
    let none: Value = serde_json::from_slice(&reply.stripped(&[0, 1], true)).unwrap();
    assert_eq!(
        none["choices"][0]["message"],
        json!({"role":"assistant","content":SUBSTITUTE})
    );
    assert_eq!(none["choices"][0]["finish_reason"], "stop");
}

#[test]
fn a_text_of_its_own_is_not_replaced() {
    let body = r#"{"id":"m1","content":[{"type":"text","text":"Hi"},{"type":"tool_use","id":"t1","name":"a","input":{"n":9007199254740993}}],"stop_reason":"tool_use","usage":{"input_tokens":3,"output_tokens":5,"cache_read_input_tokens":7}}"#;
    let reply = read(Wire::AnthropicMessages, body);
    assert_eq!(reply.response().content.as_deref(), Some("Hi"));
    // R13: the digits as they came.
    assert_eq!(
        reply.response().calls[0].arguments,
        r#"{"n":9007199254740993}"#
    );
    let usage = Usage {
        input: 3,
        output: 5,
        cache_read: 7,
        cache_write: 0,
    };
    assert_eq!(reply.usage(), Some(usage));
    let none: Value = serde_json::from_slice(&reply.stripped(&[0], true)).unwrap();
    assert_eq!(none["content"], json!([{"type":"text","text":"Hi"}]));
    assert_eq!(none["stop_reason"], "end_turn");
    let only = body.replace(r#"{"type":"text","text":"Hi"},"#, "");
    let none: Value =
        serde_json::from_slice(&read(Wire::AnthropicMessages, &only).stripped(&[0], true)).unwrap();
    assert_eq!(none["content"], json!([{"type":"text","text":SUBSTITUTE}]));
}

#[test]
fn r22_reasoning_goes_with_its_call() {
    let body = r#"{"id":"resp_1","status":"completed","output":[{"type":"reasoning","id":"rs1"},{"type":"function_call","id":"fc1","call_id":"c1","name":"a","arguments":"{}"},{"type":"reasoning","id":"rs2"},{"type":"message","content":[{"type":"output_text","text":"T"}]},{"type":"function_call","id":"fc2","call_id":"c2","name":"b","arguments":"{}"}],"usage":{"input_tokens":10,"output_tokens":2,"input_tokens_details":{"cached_tokens":4}}}"#;
    let reply = read(Wire::OpenAiResponses, body);
    assert_eq!(reply.id(), Some("resp_1"));
    assert_eq!(reply.response().content.as_deref(), Some("T"));
    assert_eq!(reply.usage().unwrap().input, 6);
    let out: Value = serde_json::from_slice(&reply.stripped(&[0], false)).unwrap();
    let kinds: Vec<&str> = out["output"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["type"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["reasoning", "message", "function_call"]);
}

#[test]
fn r15_finish_reasons_have_one_word_for_all() {
    let chat = |word: &str| {
        format!(r#"{{"choices":[{{"message":{{"content":"x"}},"finish_reason":"{word}"}}]}}"#)
    };
    let anthropic = |word: &str| format!(r#"{{"content":[],"stop_reason":"{word}"}}"#);
    let responses = |status: &str, why: &str, output: &str| {
        format!(
            r#"{{"status":"{status}","incomplete_details":{{"reason":"{why}"}},"output":[{output}]}}"#
        )
    };
    let item = r#"{"type":"function_call","call_id":"c","name":"a","arguments":"{}"}"#;
    for (wire, body, expected) in [
        (Wire::OpenAiChat, chat("stop"), FinishReason::Stop),
        (Wire::OpenAiChat, chat("length"), FinishReason::Length),
        (
            Wire::OpenAiChat,
            chat("content_filter"),
            FinishReason::ContentFilter,
        ),
        (
            Wire::OpenAiChat,
            chat("function_call"),
            FinishReason::ToolCalls,
        ),
        (Wire::OpenAiChat, chat("new"), FinishReason::Other),
        (
            Wire::AnthropicMessages,
            anthropic("end_turn"),
            FinishReason::Stop,
        ),
        (
            Wire::AnthropicMessages,
            anthropic("stop_sequence"),
            FinishReason::Stop,
        ),
        (
            Wire::AnthropicMessages,
            anthropic("max_tokens"),
            FinishReason::Length,
        ),
        (
            Wire::AnthropicMessages,
            anthropic("model_context_window_exceeded"),
            FinishReason::Length,
        ),
        (
            Wire::AnthropicMessages,
            anthropic("pause_turn"),
            FinishReason::Other,
        ),
        (
            Wire::AnthropicMessages,
            anthropic("refusal"),
            FinishReason::ContentFilter,
        ),
        (
            Wire::OpenAiResponses,
            responses("completed", "", ""),
            FinishReason::Stop,
        ),
        (
            Wire::OpenAiResponses,
            responses("completed", "", item),
            FinishReason::ToolCalls,
        ),
        (
            Wire::OpenAiResponses,
            responses("incomplete", "max_output_tokens", item),
            FinishReason::Length,
        ),
        (
            Wire::OpenAiResponses,
            responses("incomplete", "content_filter", ""),
            FinishReason::ContentFilter,
        ),
        (
            Wire::OpenAiResponses,
            responses("failed", "", ""),
            FinishReason::Other,
        ),
    ] {
        assert_eq!(
            read(wire, &body).response().finish_reason,
            expected,
            "{body}"
        );
    }
    // A forced call ends as a text does; a refusal is not content.
    let forced = request(
        Wire::OpenAiChat,
        r#"{"model":"m","messages":[],"tool_choice":"required"}"#,
    );
    let body = chat_body(&call("c", "a"), "").replace(
        r#""finish_reason":"tool_calls""#,
        r#""finish_reason":"stop""#,
    );
    let finish = |request: &WireRequest| {
        let reply = Reply::read(request, body.as_bytes(), false, false).unwrap();
        reply.response().finish_reason
    };
    assert_eq!(finish(&forced), FinishReason::ToolCalls);
    assert_eq!(finish(&simple(Wire::OpenAiChat)), FinishReason::Stop);
    let refusal =
        r#"{"choices":[{"message":{"content":null,"refusal":"no"},"finish_reason":"stop"}]}"#;
    assert_eq!(read(Wire::OpenAiChat, refusal).response().content, None);
}

#[test]
fn r18_calls_of_every_kind_are_proposed_or_counted() {
    let body = r#"{"status":"completed","output":[{"type":"custom_tool_call","call_id":"c1","name":"g","input":"a \"b\""},{"type":"local_shell_call","call_id":"c2","action":{"command":["ls"]}},{"type":"computer_call","call_id":"c3","actions":[{"type":"click"}]},{"type":"mcp_approval_request","id":"c4","name":"x","arguments":"{}"},{"type":"web_search_call","id":"ws"},{"type":"brand_new_call","call_id":"c5"}]}"#;
    let tools = r#"{"model":"m","input":"x","tools":[{"type":"web_search_preview"}]}"#;
    let reply = Reply::read(
        &request(Wire::OpenAiResponses, tools),
        body.as_bytes(),
        false,
        false,
    )
    .unwrap();
    let calls: Vec<(&str, &str)> = reply
        .response()
        .calls
        .iter()
        .map(|call| (call.name.as_str(), call.arguments.as_str()))
        .collect();
    assert_eq!(
        calls,
        [
            ("g", r#"{"input":"a \"b\""}"#),
            ("local_shell", r#"{"command":["ls"]}"#),
            ("computer", r#"{"actions":[{"type":"click"}]}"#),
            ("mcp", "{}"),
            ("brand_new_call", ""),
        ]
    );
    assert_eq!(reply.hosted().len(), 1);
    assert_eq!(reply.hosted()[0].name, "web_search_preview");
    let body = r#"{"content":[{"type":"server_tool_use","id":"s","name":"web_search","input":{}},{"type":"web_search_tool_result","tool_use_id":"s","content":[]},{"type":"odd","id":"o"}],"stop_reason":"end_turn"}"#;
    let reply = read(Wire::AnthropicMessages, body);
    assert_eq!(reply.hosted()[0].name, "web_search");
    assert_eq!(reply.response().calls[0].name, "odd");
}

#[test]
fn what_readers_could_read_differently_is_not_judged() {
    let unreadable =
        |wire: Wire, body: &str| match Reply::read(&simple(wire), body.as_bytes(), false, false) {
            Err(ReplyError::Unreadable { detail }) => detail,
            other => panic!("{body}: {other:?}"),
        };
    for body in [
        r#"{"choices":[]}"#,
        r#"{"choices":[{"message":{}},{"message":{}}]}"#,
        r#"{"choices":[{"message":{"content":"a","content":"b"},"finish_reason":"stop"}]}"#,
        r#"{"choices":[{"message":{"function_call":{"name":"a"}}}]}"#,
        r#"{"choices":[{"message":{"content":"a","__proto__":{"tool_calls":[]}},"finish_reason":"stop"}]}"#,
        r#"{"choices":[{"message":{}}]"#,
        "",
    ] {
        unreadable(Wire::OpenAiChat, body);
    }
    unreadable(Wire::AnthropicMessages, r#"{"role":"assistant"}"#);
    let named = r#"{"content":[{"type":"tool_use","id":"t","name":"a","input":{"__proto__":{"n":1}}}],"stop_reason":"tool_use"}"#;
    unreadable(Wire::AnthropicMessages, named);
    let named = r#"{"id":"r","status":"completed","output":[],"metadata":{"__proto__":1}}"#;
    unreadable(Wire::OpenAiResponses, named);
    // Inside the arguments it is the fault of one call, which its verdict says.
    let twice = r#"{"content":[{"type":"tool_use","id":"t","name":"a","input":{"n":1,"n":2}}],"stop_reason":"tool_use"}"#;
    assert_eq!(
        read(Wire::AnthropicMessages, twice).response().calls[0].arguments,
        r#"{"n":1,"n":2}"#
    );
    let error = r#"{"error":{"message":"overloaded"}}"#;
    assert!(matches!(
        Reply::read(&simple(Wire::OpenAiChat), error.as_bytes(), false, false),
        Err(ReplyError::Provider { .. })
    ));
}

#[test]
fn a_call_with_two_readings_or_outside_of_its_place_is_not_judged() {
    let unreadable = |wire: Wire, body: &str| {
        let got = Reply::read(&simple(wire), body.as_bytes(), false, false);
        assert!(
            matches!(got, Err(ReplyError::Unreadable { .. })),
            "{body}: {got:?}"
        );
    };
    let function = r#""function":{"name":"look","arguments":"{}"}"#;
    let custom = r#""custom":{"name":"drop","input":"x"}"#;
    let chat = |call: &str| {
        let call = format!(r#"{{"id":"c","type":"function",{call}}}"#);
        format!(
            r#"{{"id":"r","choices":[{{"index":0,"finish_reason":"tool_calls","message":{{"role":"assistant","tool_calls":[{call}]}}}}]}}"#
        )
    };
    let good = chat(function);
    assert_eq!(read(Wire::OpenAiChat, &good).response().calls.len(), 1);
    for odd in [
        format!("{function},{custom}"),
        format!(r#"{function},"name":"drop""#),
        format!(r#"{function},"arguments":"{{\"n\":1}}""#),
        format!(r#"{function},"input":{{}}"#),
        function.replace(r#""name""#, r#""parsed_arguments":{},"name""#),
        function.replace(r#""name""#, r#""function":{"name":"drop"},"name""#),
        function.replace(r#""name""#, r#""custom":{"custom":{"name":"drop"}},"name""#),
    ] {
        unreadable(Wire::OpenAiChat, &chat(&odd));
    }
    // A null beside a call is what many servers send.
    let null = chat(&format!(r#"{function},"custom":null,"name":null"#));
    assert_eq!(read(Wire::OpenAiChat, &null).response().calls.len(), 1);
    let calls = format!(r#"[{{"id":"d","type":"function",{function}}}]"#);
    for odd in [
        good.replacen('{', &format!(r#"{{"tool_calls":{calls},"#), 1),
        good.replacen('{', &format!(r#"{{"extra":{{"a":{calls}}},"#), 1),
        good.replace(
            r#""index":0"#,
            &format!(r#""index":0,"delta":{{"tool_calls":{calls}}}"#),
        ),
        good.replacen(
            '{',
            r#"{"next":{"type":"function_call","name":"drop","arguments":"{}"},"#,
            1,
        ),
    ] {
        unreadable(Wire::OpenAiChat, &odd);
    }
    let responses = |rest: &str| {
        format!(
            r#"{{"id":"r","status":"completed","tools":[{{"type":"function","name":"look","parameters":{{"properties":{{"tool_calls":{{"type":"function_call"}}}}}}}}],"output":[{{"type":"function_call","call_id":"c","name":"look","arguments":"{{}}"{rest}}}]}}"#
        )
    };
    let good = responses("");
    assert_eq!(read(Wire::OpenAiResponses, &good).response().calls.len(), 1);
    unreadable(Wire::OpenAiResponses, &responses(r#","input":"x""#));
    unreadable(Wire::OpenAiResponses, &responses(&format!(",{function}")));
    let more = r#""more":[{"type":"custom_tool_call","name":"drop","input":"x"}],"status""#;
    unreadable(Wire::OpenAiResponses, &good.replace(r#""status""#, more));
    let messages = |rest: &str| {
        format!(
            r#"{{"id":"m","stop_reason":"tool_use","content":[{{"type":"tool_use","id":"t","name":"look","input":{{"type":"tool_use","tool_calls":[1]}}{rest}}}]}}"#
        )
    };
    let good = messages("");
    assert_eq!(
        read(Wire::AnthropicMessages, &good).response().calls.len(),
        1,
        "what stands in the arguments is not a call"
    );
    unreadable(Wire::AnthropicMessages, &messages(r#","arguments":"{}""#));
    let more = r#""more":{"type":"tool_use","id":"u","name":"drop","input":{}},"stop_reason""#;
    unreadable(
        Wire::AnthropicMessages,
        &good.replace(r#""stop_reason""#, more),
    );
}

#[test]
fn nothing_of_an_answer_is_left_out_of_the_search_for_calls() {
    let got = |wire: Wire, body: &str| Reply::read(&simple(wire), body.as_bytes(), false, false);
    let call = r#"{"id":"d","type":"function","function":{"name":"drop","arguments":"{}"}}"#;
    let item = r#"{"type":"function_call","call_id":"d","name":"drop","arguments":"{}"}"#;
    let block = r#"{"type":"tool_use","id":"d","name":"drop","input":{}}"#;
    let flat = r#"{"type":"tool_proposal","name":"drop","arguments":"{}"}"#;
    let bare = r#"{"name":"drop","input":{}}"#;
    let chat = |member: &str| {
        format!(
            r#"{{"id":"r","choices":[{{"index":0,"finish_reason":"stop","message":{{"role":"assistant","content":"hi",{member}}}}}]}}"#
        )
    };
    let called = |member: &str| {
        let call = format!(
            r#"{{"id":"c","type":"function","function":{{"name":"look","arguments":"{{}}"}},{member}}}"#
        );
        chat(&format!(r#""tool_calls":[{call}]"#))
    };
    let responses =
        |member: &str| format!(r#"{{"id":"r","status":"completed",{member},"output":[]}}"#);
    let listed = |item: &str| format!(r#"{{"id":"r","status":"completed","output":[{item}]}}"#);
    let messages = |member: &str| {
        format!(
            r#"{{"id":"m","stop_reason":"end_turn","content":[{{"type":"text","text":"hi",{member}}}]}}"#
        )
    };
    for hidden in [call, item, block, flat, bare] {
        for member in [
            "custom",
            "function",
            "metadata",
            "prompt",
            "tools",
            "schema",
            "parameters",
            "instructions",
            "tool_choice",
        ] {
            for member in [
                format!(r#""{member}":[{hidden}]"#),
                format!(r#""{member}":{{"a":{{"b":[{hidden}]}}}}"#),
            ] {
                for (wire, body) in [
                    (Wire::OpenAiChat, chat(&member)),
                    (Wire::OpenAiChat, called(&member)),
                    (Wire::OpenAiResponses, responses(&member)),
                    (Wire::AnthropicMessages, messages(&member)),
                    (
                        Wire::OpenAiResponses,
                        listed(&format!(
                            r#"{{"type":"web_search_call","id":"w",{member}}}"#
                        )),
                    ),
                    (
                        Wire::OpenAiResponses,
                        listed(&format!(
                            r#"{{"type":"function_call","call_id":"c","name":"look","arguments":"{{}}",{member}}}"#
                        )),
                    ),
                ] {
                    let got = got(wire, &body);
                    let refused = matches!(got, Err(ReplyError::Unreadable { .. }));
                    assert!(refused, "{body}: {got:?}");
                }
            }
        }
    }
    // What a response repeats of its request, and what else stands in answers, is not taken for a call.
    let schema = r#"{"type":"object","properties":{"tool_calls":{"type":"function_call","name":{},"arguments":{}}}}"#;
    let tools = format!(
        r#"[{{"type":"function","name":"look","parameters":{schema}}},{{"type":"custom","name":"say","format":{{"type":"text"}}}},{{"type":"mcp","server_label":"x","allowed_tools":["a"]}},{{"type":"namespace","name":"n","tools":[{{"type":"function","name":"a","parameters":{schema}}}]}}]"#
    );
    for good in [
        responses(&format!(
            r#""tools":{tools},"tool_choice":{{"type":"function","name":"look"}},"metadata":{{"name":"x","input":"y","arguments":"z","type":"function_call"}},"instructions":"be kind","text":{{"format":{{"type":"json_schema","name":"f","schema":{schema}}}}}"#
        )),
        listed(&format!(
            r#"{{"type":"mcp_list_tools","id":"l","server_label":"x","tools":[{{"name":"a","input_schema":{schema}}}]}}"#
        )),
        listed(
            r#"{"type":"web_search_call","id":"w","status":"completed","action":{"type":"search","query":"x"}}"#,
        ),
    ] {
        let got = got(Wire::OpenAiResponses, &good);
        assert!(got.is_ok(), "{good}: {got:?}");
    }
    let signed = called(r#""extra_content":{"google":{"thought_signature":"x"}}"#);
    assert!(got(Wire::OpenAiChat, &signed).is_ok());
}

#[test]
fn r35_a_response_beyond_its_size_is_not_judged() {
    let mut incoming = Incoming::default();
    let chunk = vec![b' '; 1 << 20];
    for _ in 0..16 {
        incoming.push(&chunk);
    }
    assert_eq!(incoming.whole().unwrap().len(), 16 << 20);
    incoming.push(b"x");
    incoming.push(b"{}");
    assert!(matches!(
        incoming.whole(),
        Err(ReplyError::Unreadable { .. })
    ));
    let deep = format!(r#"{{"choices":{}"#, "[".repeat(1_000_000));
    assert!(Reply::read(&simple(Wire::OpenAiChat), deep.as_bytes(), false, false).is_err());
}
