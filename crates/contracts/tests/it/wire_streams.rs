//! Streams: whatever the pieces, the same calls are seen; what is released is what a naive reader would make of it.
//!
//! The oracle shares nothing with the crate: it reads streams as simple clients do, into one message.

use contracts::wire::{Incoming, Reply, ReplyError, Wire, WireRequest};
use contracts::{FinishReason, SUBSTITUTE};
use fastrand::Rng;
use serde_json::{Value, json};

use crate::wire::{request, simple};

/// One thing that the model said.
#[derive(Debug, Clone, PartialEq)]
enum Part {
    Text(String),
    Call {
        id: String,
        name: String,
        arguments: String,
    },
}

/// What a client makes of a stream.
#[derive(Debug, Clone, PartialEq)]
struct Message {
    parts: Vec<Part>,
    finish: String,
}

fn random_message(rng: &mut Rng, wire: Wire) -> Message {
    let texts = ["Hello", "", "a \"quoted\" é\n😀", "data: [DONE]"];
    let mut parts = Vec::new();
    for index in 0..rng.usize(0..5) {
        // A chat message has one text, in front of its calls.
        let text = rng.bool() && (wire != Wire::OpenAiChat || index == 0);
        if text {
            let text = texts[rng.usize(0..texts.len())];
            let text = if wire == Wire::OpenAiChat && text.is_empty() {
                "x"
            } else {
                text
            };
            parts.push(Part::Text(text.to_owned()));
        } else {
            let arguments = match rng.u8(0..4) {
                0 => "{}".to_owned(),
                1 => format!("{{\"n\":{},\"s\":\"é\\n\"}}", rng.u32(..)),
                2 => "{\"big\":9007199254740993}".to_owned(),
                _ => "{\"cut".to_owned(),
            };
            parts.push(Part::Call {
                id: format!("call_{index}"),
                name: ["find", "pay", "note"][rng.usize(0..3)].to_owned(),
                arguments,
            });
        }
    }
    let has_call = parts.iter().any(|part| matches!(part, Part::Call { .. }));
    let finish = match (wire, has_call) {
        (Wire::OpenAiChat, true) => "tool_calls",
        (Wire::OpenAiChat, false) => "stop",
        (Wire::AnthropicMessages, true) => "tool_use",
        (Wire::AnthropicMessages, false) => "end_turn",
        (Wire::OpenAiResponses, _) => "completed",
    };
    Message {
        parts,
        finish: finish.to_owned(),
    }
}

/// Cuts a text into pieces at character boundaries.
fn pieces(rng: &mut Rng, text: &str) -> Vec<String> {
    let mut pieces = vec![String::new()];
    for char in text.chars() {
        if rng.u8(0..3) == 0 {
            pieces.push(String::new());
        }
        pieces.last_mut().unwrap().push(char);
    }
    pieces
}

fn write_event(rng: &mut Rng, out: &mut String, name: Option<&str>, data: &Value) {
    let end = ["\n", "\r\n"][rng.usize(0..2)];
    if rng.u8(0..6) == 0 {
        out.push_str(&format!(": keep-alive{end}{end}"));
    }
    if let Some(name) = name {
        out.push_str(&format!("event: {name}{end}"));
    }
    let space = if rng.bool() { " " } else { "" };
    out.push_str(&format!("data:{space}{data}{end}{end}"));
}

fn chat(rng: &mut Rng, message: &Message) -> String {
    let mut out = String::new();
    let chunk = |delta: Value, finish: Value| json!({"id":"c1","object":"chat.completion.chunk","choices":[{"index":0,"delta":delta,"finish_reason":finish}]});
    write_event(
        rng,
        &mut out,
        None,
        &chunk(json!({"role":"assistant","content":""}), Value::Null),
    );
    let mut index = 0;
    for part in &message.parts {
        match part {
            Part::Text(text) => {
                for piece in pieces(rng, text) {
                    write_event(
                        rng,
                        &mut out,
                        None,
                        &chunk(json!({"content": piece}), Value::Null),
                    );
                }
            }
            Part::Call {
                id,
                name,
                arguments,
            } => {
                let call = json!({"tool_calls":[{"index":index,"id":id,"type":"function","function":{"name":name,"arguments":""}}]});
                write_event(rng, &mut out, None, &chunk(call, Value::Null));
                for piece in pieces(rng, arguments) {
                    let call =
                        json!({"tool_calls":[{"index":index,"function":{"arguments":piece}}]});
                    write_event(rng, &mut out, None, &chunk(call, Value::Null));
                }
                index += 1;
            }
        }
    }
    write_event(
        rng,
        &mut out,
        None,
        &chunk(json!({}), json!(message.finish)),
    );
    out.push_str("data: [DONE]\n\n");
    out
}

fn messages(rng: &mut Rng, message: &Message) -> String {
    let mut out = String::new();
    let mut event = |rng: &mut Rng, data: Value| {
        let name = data["type"].as_str().unwrap().to_owned();
        write_event(rng, &mut out, Some(&name), &data);
    };
    event(
        rng,
        json!({"type":"message_start","message":{"id":"m1","content":[],"usage":{"input_tokens":3,"output_tokens":1}}}),
    );
    for (index, part) in message.parts.iter().enumerate() {
        let (block, kind, member, text) = match part {
            Part::Text(text) => (json!({"type":"text","text":""}), "text_delta", "text", text),
            Part::Call {
                id,
                name,
                arguments,
            } => (
                json!({"type":"tool_use","id":id,"name":name,"input":{}}),
                "input_json_delta",
                "partial_json",
                arguments,
            ),
        };
        event(
            rng,
            json!({"type":"content_block_start","index":index,"content_block":block}),
        );
        for piece in pieces(rng, text) {
            event(
                rng,
                json!({"type":"content_block_delta","index":index,"delta":{"type":kind,member:piece}}),
            );
        }
        event(rng, json!({"type":"content_block_stop","index":index}));
        if rng.u8(0..5) == 0 {
            event(rng, json!({"type":"ping"}));
        }
    }
    event(
        rng,
        json!({"type":"message_delta","delta":{"stop_reason":message.finish},"usage":{"output_tokens":9}}),
    );
    event(rng, json!({"type":"message_stop"}));
    out
}

fn item(part: &Part, whole: bool) -> Value {
    match part {
        Part::Text(text) => {
            let content = if whole {
                json!([{"type":"output_text","text":text}])
            } else {
                json!([])
            };
            json!({"type":"message","id":"msg","content":content})
        }
        Part::Call {
            id,
            name,
            arguments,
        } => {
            let arguments = if whole { arguments } else { "" };
            json!({"type":"function_call","id":format!("fc_{id}"),"call_id":id,"name":name,"arguments":arguments})
        }
    }
}

fn responses(rng: &mut Rng, message: &Message) -> String {
    let mut out = String::new();
    let mut number = 0;
    let mut event = |rng: &mut Rng, mut data: Value| {
        data["sequence_number"] = json!(number);
        number += 1;
        let name = data["type"].as_str().unwrap().to_owned();
        write_event(rng, &mut out, Some(&name), &data);
    };
    event(
        rng,
        json!({"type":"response.created","response":{"id":"resp_1","output":[]}}),
    );
    for (index, part) in message.parts.iter().enumerate() {
        event(
            rng,
            json!({"type":"response.output_item.added","output_index":index,"item":item(part, false)}),
        );
        let (kind, text) = match part {
            Part::Text(text) => ("response.output_text", text),
            Part::Call { arguments, .. } => ("response.function_call_arguments", arguments),
        };
        for piece in pieces(rng, text) {
            event(
                rng,
                json!({"type":format!("{kind}.delta"),"output_index":index,"delta":piece}),
            );
        }
        let member = if matches!(part, Part::Text(_)) {
            "text"
        } else {
            "arguments"
        };
        event(
            rng,
            json!({"type":format!("{kind}.done"),"output_index":index,member:text}),
        );
        event(
            rng,
            json!({"type":"response.output_item.done","output_index":index,"item":item(part, true)}),
        );
    }
    let output: Vec<Value> = message.parts.iter().map(|part| item(part, true)).collect();
    event(
        rng,
        json!({"type":"response.completed","response":{"id":"resp_1","status":message.finish,"output":output,"usage":{"input_tokens":1,"output_tokens":2}}}),
    );
    out
}

fn write(rng: &mut Rng, wire: Wire, message: &Message) -> String {
    match wire {
        Wire::OpenAiChat => chat(rng, message),
        Wire::AnthropicMessages => messages(rng, message),
        Wire::OpenAiResponses => responses(rng, message),
    }
}

/// The data of every event, as a simple reader sees it.
pub(crate) fn datas(stream: &str) -> Vec<String> {
    let lines = stream.replace("\r\n", "\n");
    let events = lines.split("\n\n");
    let data = |event: &str| {
        let lines = event.lines().filter_map(|line| line.strip_prefix("data:"));
        lines
            .map(|line| line.strip_prefix(' ').unwrap_or(line).to_owned())
            .reduce(|a, b| a + "\n" + &b)
    };
    events.filter_map(data).collect()
}

/// Puts a stream together as clients do. Checks on the way that indexes have no holes.
fn naive(wire: Wire, stream: &str) -> Message {
    let mut parts: Vec<Part> = Vec::new();
    let mut finish = String::new();
    let push = |parts: &mut Vec<Part>, index: usize, text: &str| match &mut parts[index] {
        Part::Text(known) => known.push_str(text),
        Part::Call { arguments, .. } => arguments.push_str(text),
    };
    let datas = datas(stream);
    match wire {
        Wire::OpenAiChat => {
            assert_eq!(datas.last().map(String::as_str), Some("[DONE]"));
            let (mut text, mut calls) = (String::new(), Vec::new());
            for data in &datas[..datas.len() - 1] {
                let data: Value = serde_json::from_str(data).unwrap();
                let Some(choice) = data["choices"].get(0) else {
                    continue;
                };
                text.push_str(choice["delta"]["content"].as_str().unwrap_or_default());
                for piece in choice["delta"]["tool_calls"]
                    .as_array()
                    .into_iter()
                    .flatten()
                {
                    let index = piece["index"].as_u64().unwrap() as usize;
                    if index == calls.len() {
                        calls.push(Part::Call {
                            id: piece["id"].as_str().unwrap().to_owned(),
                            name: piece["function"]["name"].as_str().unwrap().to_owned(),
                            arguments: String::new(),
                        });
                    }
                    push(
                        &mut calls,
                        index,
                        piece["function"]["arguments"].as_str().unwrap(),
                    );
                }
                if let Some(word) = choice["finish_reason"].as_str() {
                    word.clone_into(&mut finish);
                }
            }
            if !text.is_empty() {
                parts.push(Part::Text(text));
            }
            parts.extend(calls);
        }
        Wire::AnthropicMessages => {
            for data in &datas {
                let data: Value = serde_json::from_str(data).unwrap();
                match data["type"].as_str().unwrap() {
                    "content_block_start" => {
                        assert_eq!(data["index"], json!(parts.len()));
                        let block = &data["content_block"];
                        parts.push(match block["type"].as_str().unwrap() {
                            "text" => Part::Text(String::new()),
                            _ => Part::Call {
                                id: block["id"].as_str().unwrap().to_owned(),
                                name: block["name"].as_str().unwrap().to_owned(),
                                arguments: String::new(),
                            },
                        });
                    }
                    "content_block_delta" => {
                        let delta = &data["delta"];
                        let text = delta["text"].as_str().or(delta["partial_json"].as_str());
                        push(
                            &mut parts,
                            data["index"].as_u64().unwrap() as usize,
                            text.unwrap(),
                        );
                    }
                    "message_delta" => {
                        data["delta"]["stop_reason"]
                            .as_str()
                            .unwrap()
                            .clone_into(&mut finish);
                    }
                    _ => {}
                }
            }
        }
        Wire::OpenAiResponses => {
            let mut whole = Vec::new();
            for data in &datas {
                let data: Value = serde_json::from_str(data).unwrap();
                let kind = data["type"].as_str().unwrap();
                if kind == "response.output_item.added" {
                    assert_eq!(data["output_index"], json!(parts.len()));
                    parts.push(from_item(&data["item"]));
                } else if kind.ends_with(".delta") {
                    let index = data["output_index"].as_u64().unwrap() as usize;
                    push(&mut parts, index, data["delta"].as_str().unwrap());
                } else if kind == "response.completed" {
                    let response = &data["response"];
                    response["status"].as_str().unwrap().clone_into(&mut finish);
                    whole = response["output"]
                        .as_array()
                        .unwrap()
                        .iter()
                        .map(from_item)
                        .collect();
                }
            }
            assert_eq!(parts, whole, "pieces and whole say the same");
        }
    }
    Message { parts, finish }
}

fn from_item(item: &Value) -> Part {
    match item["type"].as_str().unwrap() {
        "message" => Part::Text(
            item["content"][0]["text"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
        ),
        _ => Part::Call {
            id: item["call_id"].as_str().unwrap().to_owned(),
            name: item["name"].as_str().unwrap().to_owned(),
            arguments: item["arguments"].as_str().unwrap().to_owned(),
        },
    }
}

/// What is left of a message without some of its calls, written down as the rulings say it.
fn strip(wire: Wire, message: &Message, removed: &[usize]) -> Message {
    let mut call = 0;
    let mut parts: Vec<Part> = Vec::new();
    for part in &message.parts {
        let is_call = matches!(part, Part::Call { .. });
        if !(is_call && removed.contains(&call)) {
            parts.push(part.clone());
        }
        call += usize::from(is_call);
    }
    let mut finish = message.finish.clone();
    let none_left = call > 0 && removed.len() == call;
    if none_left {
        finish = match wire {
            Wire::OpenAiChat => "stop",
            Wire::AnthropicMessages => "end_turn",
            Wire::OpenAiResponses => "completed",
        }
        .to_owned();
        let has_text = parts
            .iter()
            .any(|part| matches!(part, Part::Text(text) if !text.is_empty()));
        if !has_text {
            parts.push(Part::Text(SUBSTITUTE.to_owned()));
        }
    }
    Message { parts, finish }
}

fn calls(message: &Message) -> Vec<(String, String, String)> {
    let calls = message.parts.iter().filter_map(|part| match part {
        Part::Call {
            id,
            name,
            arguments,
        } => Some((id.clone(), name.clone(), arguments.clone())),
        Part::Text(_) => None,
    });
    calls.collect()
}

pub(crate) fn read(wire: Wire, stream: &str) -> Result<Reply, ReplyError> {
    Reply::read(&simple(wire), stream.as_bytes(), true, false)
}

#[test]
fn any_stream_is_seen_and_stripped_as_a_naive_reader_would() {
    let mut stripped_all = 0;
    for seed in 0..6_000 {
        let mut rng = Rng::with_seed(seed);
        let wire = Wire::ALL[rng.usize(0..3)];
        let message = random_message(&mut rng, wire);
        let stream = write(&mut rng, wire, &message);
        assert_eq!(naive(wire, &stream), message, "seed {seed}: the generator");
        let reply =
            read(wire, &stream).unwrap_or_else(|error| panic!("seed {seed}: {error}\n{stream}"));
        let seen: Vec<_> = reply
            .response()
            .calls
            .iter()
            .map(|call| (call.id.clone(), call.name.clone(), call.arguments.clone()))
            .collect();
        assert_eq!(seen, calls(&message), "seed {seed}");
        assert_eq!(reply.whole(), stream.as_bytes(), "seed {seed}: untouched");
        let removed: Vec<usize> = (0..seen.len()).filter(|_| rng.bool()).collect();
        if removed.is_empty() {
            continue;
        }
        let empty = removed.len() == seen.len();
        stripped_all += u32::from(empty);
        let released = String::from_utf8(reply.stripped(&removed, empty)).unwrap();
        let expected = strip(wire, &message, &removed);
        assert_eq!(
            naive(wire, &released),
            expected,
            "seed {seed}\n{stream}\n---\n{released}"
        );
        // What was released can be read and judged like any other.
        assert!(read(wire, &released).is_ok(), "seed {seed}\n{released}");
        for gone in removed {
            let (id, ..) = &seen[gone];
            assert!(
                !released.contains(&format!("\"{id}\"")),
                "seed {seed}: {id} is left"
            );
        }
    }
    assert!(stripped_all > 500);
}

#[test]
fn any_chunking_gives_the_same_bytes() {
    for seed in 0..300 {
        let mut rng = Rng::with_seed(seed);
        let wire = Wire::ALL[rng.usize(0..3)];
        let message = random_message(&mut rng, wire);
        let stream = write(&mut rng, wire, &message);
        let count = calls(&message).len();
        let removed: Vec<usize> = (0..count).filter(|_| rng.bool()).collect();
        let empty = count > 0 && removed.len() == count;
        let expected = read(wire, &stream).unwrap().stripped(&removed, empty);
        for _ in 0..4 {
            let mut incoming = Incoming::default();
            let mut rest = stream.as_bytes();
            while !rest.is_empty() {
                // Chunks end anywhere, inside characters too.
                let (chunk, after) = rest.split_at(rng.usize(0..=rest.len().min(40)));
                incoming.push(chunk);
                rest = after;
            }
            let reply = Reply::read(&simple(wire), incoming.whole().unwrap(), true, false).unwrap();
            assert_eq!(reply.stripped(&removed, empty), expected, "seed {seed}");
        }
    }
}

#[test]
fn r22_a_stream_without_its_end_is_a_provider_error() {
    for seed in 0..200 {
        let mut rng = Rng::with_seed(seed);
        let wire = Wire::ALL[rng.usize(0..3)];
        let message = random_message(&mut rng, wire);
        let stream = write(&mut rng, wire, &message);
        // Anywhere, and after each whole event: a connection may also break between two of them.
        let anywhere = rng.usize(0..stream.len());
        let is_between = |cut: &usize| {
            let ends = ["\n\n", "\r\n\r\n", "\r\r"];
            let head = stream.get(..*cut);
            head.is_some_and(|head| ends.iter().any(|end| head.ends_with(end)))
        };
        let between = (1..stream.len()).filter(is_between);
        for cut in between.chain([anywhere]) {
            let Some(head) = stream.get(..cut) else {
                continue;
            };
            // The blank line after the last event may be cut in two.
            if head.trim_end() == stream.trim_end() {
                continue;
            }
            match read(wire, head) {
                Err(ReplyError::Provider { .. }) => {}
                // Not every server says the word that ends a chat; why the model stopped was said.
                Ok(reply) if wire == Wire::OpenAiChat => {
                    let whole = read(wire, &stream).unwrap();
                    assert_eq!(
                        reply.response(),
                        whole.response(),
                        "seed {seed} cut at {cut}"
                    );
                    assert_eq!(reply.whole(), head.as_bytes());
                }
                other => panic!("seed {seed} cut at {cut}: {other:?}"),
            }
        }
    }
}

/// A valid stream with one event of it replaced, as a hostile or broken server might.
pub(crate) fn unreadable(wire: Wire, stream: &str) {
    match read(wire, stream) {
        Err(ReplyError::Unreadable { .. }) => {}
        other => panic!("{stream}\n{other:?}"),
    }
}

#[test]
fn chat_pieces_that_readers_join_differently_are_not_judged() {
    let chunk =
        |delta: &str| format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{delta}}}]}}\n\n");
    let call =
        r#"{"tool_calls":[{"index":0,"id":"a","function":{"name":"find","arguments":"{}"}}]}"#;
    for second in [
        r#"{"tool_calls":[{"index":0,"id":"b"}]}"#,
        r#"{"tool_calls":[{"index":0,"function":{"name":"pay"}}]}"#,
        r#"{"tool_calls":[{"id":"b"}]}"#,
        r#"{"tool_calls":{}}"#,
        r#"{"tool_calls":[{"index":0,"custom":{"name":"x"}}]}"#,
        r#"{"tool_calls":[{"index":0,"custom":{"name":"find","input":""}}]}"#,
        r#"{"tool_calls":[{"index":0,"function":{"arguments":""},"custom":{"input":""}}]}"#,
        r#"{"tool_calls":[{"index":0,"function":{"arguments":7}}]}"#,
        r#"{"function_call":{"name":"pay"}}"#,
        r#"{"content":"a","content":"b"}"#,
    ] {
        unreadable(
            Wire::OpenAiChat,
            &format!("{}{}data: [DONE]\n\n", chunk(call), chunk(second)),
        );
    }
    // A list that is none: one reader finds the piece under its number, another sees no list.
    let odd =
        r#"data: {"choices":{"0":{"index":0,"delta":{"content":"x"},"finish_reason":"stop"}}}"#;
    unreadable(
        Wire::OpenAiChat,
        &format!("{}{odd}\n\ndata: [DONE]\n\n", chunk(call)),
    );
    let early = r#"{"tool_calls":[{"index":1,"function":{"arguments":"{}"}}]}"#;
    let late = r#"{"tool_calls":[{"index":1,"id":"b","function":{"name":"find","arguments":""}}]}"#;
    let end = "data: [DONE]\n\n";
    unreadable(
        Wire::OpenAiChat,
        &format!("{}{}{end}", chunk(early), chunk(late)),
    );
    assert!(
        read(
            Wire::OpenAiChat,
            &format!("{}{}{end}", chunk(late), chunk(early))
        )
        .is_ok()
    );
    // Repeating the same id and name is what some servers do.
    let again =
        r#"{"tool_calls":[{"index":0,"id":"a","function":{"name":"find","arguments":" "}}]}"#;
    let reply = read(
        Wire::OpenAiChat,
        &format!("{}{}data: [DONE]\n\n", chunk(call), chunk(again)),
    )
    .unwrap();
    assert_eq!(reply.response().calls[0].arguments, "{} ");
    for odd in [
        "data: {\"choices\":[{\"index\":1,\"delta\":{}}]}\n\ndata: [DONE]\n\n".to_owned(),
        format!("data: [DONE]\n\n{}", chunk(call)),
        "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: {\"choices\":[{\"delta\":{},\"finish_reason\":\"length\"}]}\n\ndata: [DONE]\n\n".to_owned(),
        "data: {\"choices\":[{\"message\":{\"tool_calls\":[]}}]}\n\ndata: [DONE]\n\n".to_owned(),
        "data: nonsense\n\ndata: [DONE]\n\n".to_owned(),
    ] {
        unreadable(Wire::OpenAiChat, &odd);
    }
    let error = "data: {\"error\":{\"message\":\"overloaded\"}}\n\ndata: [DONE]\n\n";
    // Some readers end an event at the end of the stream, others at its blank line only.
    let cut = format!("data: [DONE]\n\n{}", chunk(call).trim_end());
    for broken in [error, &cut] {
        assert!(
            matches!(
                read(Wire::OpenAiChat, broken),
                Err(ReplyError::Provider { .. })
            ),
            "{broken}"
        );
    }
}

#[test]
fn a_chat_is_whole_once_the_model_said_why_it_stopped() {
    let chunk = |delta: &str, finish: &str| {
        format!(
            "data: {{\"choices\":[{{\"index\":0,\"delta\":{delta},\"finish_reason\":{finish}}}]}}\n\n"
        )
    };
    let call =
        r#"{"tool_calls":[{"index":0,"id":"a","function":{"name":"find","arguments":"{}"}}]}"#;
    let whole = format!("{}{}", chunk(call, "null"), chunk("{}", "\"tool_calls\""));
    for end in [
        "",
        "data: [DONE]",
        "data: [DONE]\n",
        "data: [DONE]\n\n",
        ": bye",
        "data: {\"choices\":[],\"usage\":{}}",
        "data: {\"choices\":[],\"usage\":{}}\n",
    ] {
        let stream = format!("{whole}{end}");
        let reply = read(Wire::OpenAiChat, &stream).unwrap();
        assert_eq!(reply.response().calls.len(), 1);
        assert_eq!(reply.whole(), stream.as_bytes());
        let stripped = String::from_utf8(reply.stripped(&[0], true)).unwrap();
        assert!(!stripped.contains("find"), "{stripped}");
        let again = read(Wire::OpenAiChat, &stripped).unwrap();
        assert!(again.response().calls.is_empty());
        assert!(again.response().content.is_some());
    }
    let unended = whole.trim_end();
    let reply = read(Wire::OpenAiChat, unended).unwrap();
    assert_eq!(reply.response().calls.len(), 1);
    for cut in [
        chunk(call, "null"),
        format!("{whole}data: {{\"cho"),
        // Not every reader sees the last piece of this call.
        chunk(call, "\"tool_calls\"").trim_end().to_owned(),
    ] {
        let got = read(Wire::OpenAiChat, &cut);
        assert!(matches!(got, Err(ReplyError::Provider { .. })), "{got:?}");
    }
}

#[test]
fn a_chat_has_no_events_but_chunks() {
    let chunk = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hi\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
    for odd in [
        "event: tool_proposal\ndata: {\"type\":\"tool_proposal\",\"tool\":\"drop\"}\n\n",
        "event: thread.run\ndata: {\"id\":\"x\",\"choices\":[]}\n\n",
        "data: {\"object\":\"weird\",\"tool\":\"drop\"}\n\n",
        "data: {\"object\":\"weird\",\"run\":[\"drop\"]}\n\n",
    ] {
        unreadable(Wire::OpenAiChat, &format!("{odd}{chunk}"));
    }
    for good in [
        ": keep going\n\n",
        "event: ping\ndata: {}\n\n",
        "event: ping\ndata: {\"type\":\"ping\"}\n\n",
        "event: message\ndata: {\"id\":\"x\",\"object\":\"\",\"choices\":[],\"prompt_filter_results\":[{\"prompt_index\":0}]}\n\n",
        "data: {\"id\":\"x\",\"object\":\"chat.completion.chunk\",\"x_groq\":{\"id\":\"y\"}}\n\n",
        "data: {\"id\":\"x\",\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1}}\n\n",
    ] {
        let got = read(Wire::OpenAiChat, &format!("{good}{chunk}"));
        assert!(got.is_ok(), "{good}: {got:?}");
    }
}

#[test]
fn blocks_that_do_not_fit_together_are_not_judged() {
    let event = |data: &str| {
        let name: Value = serde_json::from_str(data).unwrap();
        format!(
            "event: {}\ndata: {data}\n\n",
            name["type"].as_str().unwrap()
        )
    };
    let start = event(r#"{"type":"message_start","message":{"content":[]}}"#);
    let stop = event(r#"{"type":"message_stop"}"#);
    let block = event(
        r#"{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"t","name":"a","input":{"n":1}}}"#,
    );
    let end = event(r#"{"type":"content_block_stop","index":0}"#);
    let piece = |text: &str| {
        event(&format!(
            r#"{{"type":"content_block_delta","index":0,"delta":{{"type":"input_json_delta","partial_json":{}}}}}"#,
            json!(text)
        ))
    };
    let whole = format!("{start}{block}{end}{stop}");
    let reply = read(Wire::AnthropicMessages, &whole).unwrap();
    assert_eq!(reply.response().calls[0].arguments, r#"{"n":1}"#);
    for odd in [
        format!("{start}{block}{stop}"),
        format!("{start}{end}{stop}"),
        format!("{start}{block}{end}{}{stop}", piece("{}")),
        format!("{start}{block}{}{end}{stop}", piece("{\"n\":2}")),
        format!("{block}{end}{stop}"),
        format!("{start}{start}{stop}"),
        format!(
            "{start}{}{end}{stop}",
            block.replace("\"index\":0", "\"index\":1")
        ),
        format!("{start}{block}{end}{stop}{stop}"),
        format!(
            "{start}{}{end}{stop}",
            block.replace("event: content_block_start", "event: ping")
        ),
        format!(
            "{}{stop}",
            start.replace("\"content\":[]", "\"content\":[{\"type\":\"tool_use\"}]")
        ),
    ] {
        unreadable(Wire::AnthropicMessages, &odd);
    }
    let error = format!("{start}{}", event(r#"{"type":"error","error":{}}"#));
    assert!(matches!(
        read(Wire::AnthropicMessages, &error),
        Err(ReplyError::Provider { .. })
    ));
    // Arguments with a member twice are the fault of that call.
    let twice = format!(
        "{start}{}{}{end}{stop}",
        block.replace(r#"{"n":1}"#, "{}"),
        piece(r#"{"n":1,"n":2}"#)
    );
    let reply = read(Wire::AnthropicMessages, &twice).unwrap();
    assert_eq!(reply.response().calls[0].arguments, r#"{"n":1,"n":2}"#);
}

#[test]
fn a_stream_whose_pieces_differ_from_its_end_is_not_judged() {
    let mut rng = Rng::with_seed(5);
    let message = Message {
        parts: vec![
            Part::Text("Hello".to_owned()),
            Part::Call {
                id: "c9".to_owned(),
                name: "find".to_owned(),
                arguments: r#"{"n":1}"#.to_owned(),
            },
        ],
        finish: "completed".to_owned(),
    };
    let stream = responses(&mut rng, &message);
    let (head, last) = stream.split_at(stream.rfind("data:").unwrap());
    assert!(read(Wire::OpenAiResponses, &stream).is_ok());
    for (from, to) in [
        ("\"name\":\"find\"", "\"name\":\"pay\""),
        ("\\\"n\\\":1", "\\\"n\\\":2"),
        ("\"call_id\":\"c9\"", "\"call_id\":\"c8\""),
        ("Hello", "Hullo"),
    ] {
        assert!(last.contains(from), "{last}");
        unreadable(
            Wire::OpenAiResponses,
            &format!("{head}{}", last.replace(from, to)),
        );
    }
    let empty = regex_free_output(last);
    unreadable(Wire::OpenAiResponses, &format!("{head}{empty}"));
    let early = head.replace("\"output\":[]", "\"output\":[{\"type\":\"function_call\"}]");
    unreadable(Wire::OpenAiResponses, &format!("{early}{last}"));
    let failed = "data: {\"type\":\"response.failed\",\"response\":{}}\n\n";
    assert!(matches!(
        read(Wire::OpenAiResponses, failed),
        Err(ReplyError::Provider { .. })
    ));
}

/// The last event with an empty output.
fn regex_free_output(last: &str) -> String {
    let data = last.trim().strip_prefix("data:").unwrap();
    let mut data: Value = serde_json::from_str(data).unwrap();
    data["response"]["output"] = json!([]);
    format!("data: {data}\n\n")
}

#[test]
fn r25_the_extra_chunk_is_kept_back() {
    let text = "data: {\"choices\":[{\"delta\":{\"content\":\"x\"},\"finish_reason\":\"stop\"}],\"usage\":null}\n\n";
    let usage =
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":2}}\n\n";
    let stream = format!("{text}{usage}data: [DONE]\n\n");
    let asked: WireRequest = request(
        Wire::OpenAiChat,
        r#"{"model":"m","messages":[],"stream":true,"stream_options":{"include_usage":true}}"#,
    );
    let silent = request(
        Wire::OpenAiChat,
        r#"{"model":"m","messages":[],"stream":true}"#,
    );
    let released = |request: &WireRequest, count_usage| {
        let reply = Reply::read(request, stream.as_bytes(), true, count_usage).unwrap();
        assert_eq!(reply.usage().unwrap().input, 5);
        assert_eq!(reply.response().finish_reason, FinishReason::Stop);
        String::from_utf8(reply.whole()).unwrap()
    };
    assert_eq!(released(&asked, true), stream);
    assert_eq!(released(&silent, false), stream);
    assert_eq!(released(&silent, true), format!("{text}data: [DONE]\n\n"));
}
