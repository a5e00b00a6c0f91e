//! Streams whose pieces contradict each other or their end: each contradiction by itself.

use contracts::wire::{ReplyError, Wire};
use serde_json::{Value, json};

use crate::wire_streams::{datas, read, unreadable};

/// A stream of events that carry their own names.
fn events(list: &[Value]) -> String {
    let event = |data: &Value| {
        format!(
            "event: {}\ndata: {data}\n\n",
            data["type"].as_str().unwrap()
        )
    };
    list.iter().map(event).collect()
}

#[test]
fn each_piece_of_a_responses_stream_is_held_against_its_end_by_itself() {
    let call = |id: &str, name: &str, arguments: &str| json!({"type":"function_call","id":"fc","call_id":id,"name":name,"arguments":arguments});
    let whole = r#"{"n":1}"#;
    let stream = |piece: Value| {
        events(&[
            json!({"type":"response.created","response":{"id":"resp_1","output":[]}}),
            piece,
            json!({"type":"response.completed","response":{"id":"resp_1","status":"completed",
                "output":[call("c1", "find", whole)]}}),
        ])
    };
    let added = |id: &str, name: &str| json!({"type":"response.output_item.added","output_index":0,"item":call(id, name, "")});
    let done = |id: &str, name: &str, arguments: &str| json!({"type":"response.output_item.done","output_index":0,"item":call(id, name, arguments)});
    let delta = |text: &str| json!({"type":"response.function_call_arguments.delta","output_index":0,"delta":text});
    let finished = |text: &str| json!({"type":"response.function_call_arguments.done","output_index":0,"arguments":text});
    for good in [
        added("c1", "find"),
        done("c1", "find", whole),
        delta(whole),
        finished(whole),
    ] {
        let stream = stream(good);
        assert!(read(Wire::OpenAiResponses, &stream).is_ok(), "{stream}");
    }
    let other = r#"{"n":2}"#;
    for bad in [
        added("c2", "find"),
        added("c1", "pay"),
        done("c2", "find", whole),
        done("c1", "pay", whole),
        done("c1", "find", other),
        delta(other),
        finished(other),
        json!({"type":"response.output_text.delta","output_index":0,"delta":"Hello"}),
    ] {
        unreadable(Wire::OpenAiResponses, &stream(bad));
    }
}

#[test]
fn what_a_responses_stream_tells_twice_is_the_same_both_times() {
    let call = |name: &str, arguments: &str| json!({"type":"function_call","id":"fc","call_id":"c1","name":name,"arguments":arguments});
    let message = json!({"type":"message","id":"fc","role":"assistant","content":[]});
    let whole = r#"{"n":1}"#;
    let other = r#"{"n":2}"#;
    let stream = |pieces: &[Value]| {
        let mut list =
            vec![json!({"type":"response.created","response":{"id":"resp_1","output":[]}})];
        list.extend_from_slice(pieces);
        list.push(json!({"type":"response.completed","response":{"id":"resp_1","status":"completed","output":[call("find", whole)]}}));
        events(&list)
    };
    let added =
        |item: &Value| json!({"type":"response.output_item.added","output_index":0,"item":item});
    let done =
        |item: &Value| json!({"type":"response.output_item.done","output_index":0,"item":item});
    let finished = |name: &str, text: &str| json!({"type":"response.function_call_arguments.done","output_index":0,"name":name,"arguments":text});
    let begun = call("find", "");
    let ended = call("find", whole);
    for good in [
        [added(&begun), added(&begun)],
        [added(&ended), done(&ended)],
        [done(&ended), done(&ended)],
        [finished("find", whole), finished("find", whole)],
    ] {
        let stream = stream(&good);
        assert!(read(Wire::OpenAiResponses, &stream).is_ok(), "{stream}");
    }
    for bad in [
        [added(&call("drop", "")), added(&begun)],
        [added(&call("drop", "")), added(&message)],
        [added(&call("find", other)), done(&ended)],
        [done(&call("drop", whole)), done(&ended)],
        [done(&call("find", other)), done(&ended)],
        [done(&call("drop", whole)), done(&message)],
        [done(&message), done(&ended)],
        [finished("drop", whole), finished("find", whole)],
        [finished("find", other), finished("find", whole)],
    ] {
        unreadable(Wire::OpenAiResponses, &stream(&bad));
    }
}

#[test]
fn what_a_shell_is_told_twice_is_the_same_both_times() {
    let item = |command: &str| json!({"type":"shell_call","id":"sh","call_id":"c1","status":"completed","action":{"commands":[command]}});
    let piece = |kind: &str, command: &str| json!({"type":format!("response.shell_call_command.{kind}"),"output_index":0,"command_index":0,"command":command});
    let stream = |pieces: &[Value]| {
        let mut list = pieces.to_vec();
        list.push(json!({"type":"response.completed","response":{"id":"resp_1","status":"completed","output":[item("ls")]}}));
        events(&list)
    };
    let good = stream(&[piece("added", ""), piece("done", "ls"), piece("done", "ls")]);
    assert!(read(Wire::OpenAiResponses, &good).is_ok());
    unreadable(
        Wire::OpenAiResponses,
        &stream(&[piece("done", "rm"), piece("done", "ls")]),
    );
    unreadable(
        Wire::OpenAiResponses,
        &stream(&[piece("added", "rm"), piece("added", "")]),
    );
}

#[test]
fn the_id_of_a_call_stands_at_one_place_of_a_responses_stream() {
    let call = |id: &str, name: &str, arguments: &str| json!({"type":"function_call","id":id,"call_id":format!("c{id}"),"name":name,"arguments":arguments});
    let delta = |index: usize, id: &str, text: &str| json!({"type":"response.function_call_arguments.delta","output_index":index,"item_id":id,"delta":text});
    let stream = |first: &str, second: &str| {
        events(&[
            delta(0, first, r#"{"n":1}"#),
            delta(1, second, r#"{"n":2}"#),
            json!({"type":"response.completed","response":{"id":"resp_1","status":"completed",
                "output":[call("fa", "pay", r#"{"n":1}"#), call("fb", "find", r#"{"n":2}"#)]}}),
        ])
    };
    // Some servers give an item another id in each event: readers go by the place there.
    for (first, second) in [("fa", "fb"), ("x", "y")] {
        assert!(read(Wire::OpenAiResponses, &stream(first, second)).is_ok());
    }
    unreadable(Wire::OpenAiResponses, &stream("fb", "fa"));
    unreadable(Wire::OpenAiResponses, &stream("fa", "fa"));
    unreadable(Wire::OpenAiResponses, &stream("x", "x"));
}

#[test]
fn what_a_responses_stream_shows_as_text_is_its_text() {
    let message = |text: &str| json!({"type":"message","id":"m1","role":"assistant","content":[{"type":"output_text","text":text,"annotations":[]}]});
    let stream = |piece: Value| {
        events(&[
            piece,
            json!({"type":"response.completed","response":{"id":"resp_1","status":"completed","output":[message("Hello")]}}),
        ])
    };
    let text = |text: &str| json!({"type":"response.output_text.done","output_index":0,"content_index":0,"text":text});
    let part = |text: &str| json!({"type":"response.content_part.done","output_index":0,"content_index":0,"part":{"type":"output_text","text":text}});
    let done = |text: &str| json!({"type":"response.output_item.done","output_index":0,"item":message(text)});
    for good in [text("Hello"), part("Hello"), done("Hello")] {
        assert!(read(Wire::OpenAiResponses, &stream(good)).is_ok());
    }
    for bad in [text("Hullo"), part("Hullo"), done("Hullo")] {
        unreadable(Wire::OpenAiResponses, &stream(bad));
    }
}

#[test]
fn a_message_that_says_two_things_or_breaks_off_is_not_judged() {
    let start = json!({"type":"message_start","message":{"id":"msg_1","content":[],"usage":{"input_tokens":1,"output_tokens":1}}});
    let block = json!({"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"c1","name":"find","input":{}}});
    let piece = |text: &str| json!({"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":text}});
    let closed = json!({"type":"content_block_stop","index":0});
    let stop = |word: &str| json!({"type":"message_delta","delta":{"stop_reason":word},"usage":{"output_tokens":2}});
    let end = json!({"type":"message_stop"});
    let whole = [
        start.clone(),
        block.clone(),
        piece("{\"n\""),
        piece(":1}"),
        closed.clone(),
        stop("tool_use"),
        end.clone(),
    ];
    assert!(read(Wire::AnthropicMessages, &events(&whole)).is_ok());
    let with = |at: usize, event: Value| {
        let mut list = whole.to_vec();
        list.insert(at, event);
        events(&list)
    };
    // A piece for a block that has ended, and a second end of it.
    unreadable(Wire::AnthropicMessages, &with(5, piece(",\"m\":2}")));
    unreadable(Wire::AnthropicMessages, &with(5, closed));
    unreadable(Wire::AnthropicMessages, &with(6, stop("end_turn")));
    // The same once more is not another.
    assert!(read(Wire::AnthropicMessages, &with(6, stop("tool_use"))).is_ok());
    unreadable(Wire::AnthropicMessages, &with(2, start));
    // An error ends the stream, wherever it stands.
    let error = json!({"type":"error","error":{"type":"overloaded_error","message":"later"}});
    for at in 1..7 {
        match read(Wire::AnthropicMessages, &with(at, error.clone())) {
            Err(ReplyError::Provider { .. }) => {}
            other => panic!("{at}: {other:?}"),
        }
    }
    // Arguments that are judged are those of all pieces.
    let reply = read(Wire::AnthropicMessages, &events(&whole)).unwrap();
    assert_eq!(reply.response().calls[0].arguments, "{\"n\":1}");
}

#[test]
fn the_name_beside_whole_arguments_is_held_against_the_end() {
    let call =
        json!({"type":"function_call","id":"fc1","call_id":"c1","name":"a","arguments":"{}"});
    let list = |done: Value| {
        events(&[
            done,
            json!({"type":"response.completed","response":{"id":"resp_1","status":"completed","output":[call]}}),
        ])
    };
    let done = json!({"type":"response.function_call_arguments.done","item_id":"fc1","output_index":0,"name":"a","arguments":"{}"});
    assert!(read(Wire::OpenAiResponses, &list(done.clone())).is_ok());
    let mut other = done.clone();
    other["name"] = json!("drop");
    unreadable(Wire::OpenAiResponses, &list(other));
    let mut hidden = done;
    hidden["more"] = json!([call]);
    unreadable(Wire::OpenAiResponses, &list(hidden));
}

#[test]
fn r22_in_a_stream_reasoning_goes_with_its_call_and_nothing_follows_the_end() {
    let reasoning = json!({"type":"reasoning","id":"rs1","summary":[]});
    let call =
        json!({"type":"function_call","id":"fc1","call_id":"c1","name":"a","arguments":"{}"});
    let kept =
        json!({"type":"function_call","id":"fc2","call_id":"c2","name":"b","arguments":"{}"});
    let done = |index: u64, item: &Value| json!({"type":"response.output_item.done","output_index":index,"item":item});
    let list = [
        json!({"type":"response.created","response":{"id":"resp_1","output":[]}}),
        json!({"type":"response.output_item.added","output_index":0,"item":reasoning}),
        done(0, &reasoning),
        done(1, &call),
        done(2, &kept),
        json!({"type":"response.completed","response":{"id":"resp_1","status":"completed",
            "output":[reasoning, call, kept]}}),
    ];
    let reply = read(Wire::OpenAiResponses, &events(&list)).unwrap();
    let stripped = String::from_utf8(reply.stripped(&[0], false)).unwrap();
    assert!(!stripped.contains("reasoning"), "{stripped}");
    assert!(!stripped.contains("fc1"), "{stripped}");
    let expected = [
        list[0].clone(),
        done(0, &kept),
        json!({"type":"response.completed","response":{"id":"resp_1","status":"completed","output":[kept]}}),
    ];
    let values: Vec<Value> = datas(&stripped)
        .iter()
        .map(|data| serde_json::from_str(data).unwrap())
        .collect();
    assert_eq!(values, expected);
    // Another reader may stop at the end, or not.
    let mut longer = list.to_vec();
    longer.push(done(3, &call));
    unreadable(Wire::OpenAiResponses, &events(&longer));
    let second = json!({"type":"response.completed","response":{"id":"resp_1","status":"completed",
        "output":[reasoning, call, kept, {"type":"message","id":"m","role":"assistant","content":[]}]}});
    let mut twice = list.to_vec();
    twice.push(second);
    unreadable(Wire::OpenAiResponses, &events(&twice));
    // An error counts wherever it stands, also where an end follows.
    for error in [
        json!({"type":"error","message":"later"}),
        json!({"type":"response.failed","response":{"id":"resp_1","output":[]}}),
    ] {
        let mut failed = list.to_vec();
        failed.insert(5, error);
        let got = read(Wire::OpenAiResponses, &events(&failed));
        assert!(matches!(got, Err(ReplyError::Provider { .. })), "{got:?}");
    }
}

#[test]
fn a_member_that_stands_twice_is_not_judged_in_any_stream() {
    let responses = "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"id\":\"r\",\
        \"status\":\"completed\",\"output\":[{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"find\",\
        \"name\":\"pay\",\"arguments\":\"{}\"}]}}\n\n";
    unreadable(Wire::OpenAiResponses, responses);
    let start = events(&[
        json!({"type":"message_start","message":{"id":"m","content":[],"usage":{"input_tokens":1,"output_tokens":1}}}),
    ]);
    let rest = events(&[
        json!({"type":"content_block_stop","index":0}),
        json!({"type":"message_delta","delta":{"stop_reason":"tool_use"},"usage":{"output_tokens":2}}),
        json!({"type":"message_stop"}),
    ]);
    let block = |name: &str| {
        format!(
            "event: content_block_start\ndata: {{\"type\":\"content_block_start\",\"index\":0,\"content_block\":\
             {{\"type\":\"tool_use\",\"id\":\"c\",{name},\"input\":{{}}}}}}\n\n"
        )
    };
    let once = format!("{start}{}{rest}", block("\"name\":\"find\""));
    assert!(read(Wire::AnthropicMessages, &once).is_ok());
    let names = "\"name\":\"find\",\"name\":\"pay\"";
    let twice = format!("{start}{}{rest}", block(names));
    unreadable(Wire::AnthropicMessages, &twice);
}

#[test]
fn a_member_named_proto_is_not_judged_in_any_stream() {
    // Clients put deltas together by copying their members, and a copy takes what stands under this name for its own.
    let named = |stream: &str| stream.replace("\"x_proto__\"", "\"__proto__\"");
    let chunk = |delta: Value, finish: Value| {
        let choice = json!({"index":0,"delta":delta,"finish_reason":finish});
        format!("data: {}\n\n", json!({"id":"x","choices":[choice]}))
    };
    let chat = format!(
        "{}{}data: [DONE]\n\n",
        chunk(
            json!({"content":"hi","x_proto__":{"refusal":"no"}}),
            Value::Null
        ),
        chunk(json!({}), json!("stop"))
    );
    let responses = events(&[
        json!({"type":"response.completed","response":{"id":"r","status":"completed",
            "output":[{"type":"message","content":[{"type":"output_text","text":"hi","x_proto__":{}}]}]}}),
    ]);
    let block = |block: Value| {
        events(&[
            json!({"type":"message_start","message":{"id":"m","content":[],"usage":{"input_tokens":1,"output_tokens":1}}}),
            json!({"type":"content_block_start","index":0,"content_block":block}),
            json!({"type":"content_block_stop","index":0}),
            json!({"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":2}}),
            json!({"type":"message_stop"}),
        ])
    };
    let text = block(json!({"type":"text","text":"hi","x_proto__":{"name":"pay"}}));
    let input =
        block(json!({"type":"tool_use","id":"c","name":"find","input":{"a":{"x_proto__":1}}}));
    for (wire, stream) in [
        (Wire::OpenAiChat, chat),
        (Wire::OpenAiResponses, responses),
        (Wire::AnthropicMessages, text),
        (Wire::AnthropicMessages, input),
    ] {
        assert!(read(wire, &stream).is_ok(), "{stream}");
        unreadable(wire, &named(&stream));
    }
}

#[test]
fn an_event_that_nobody_knows_passes_only_if_it_says_nothing() {
    let call =
        json!({"type":"function_call","id":"fc","call_id":"c1","name":"find","arguments":"{}"});
    let drop =
        json!({"type":"function_call","id":"fd","call_id":"c2","name":"drop","arguments":"{}"});
    let responses = |event: Value| {
        events(&[
            json!({"type":"response.created","response":{"id":"r","output":[]}}),
            event,
            json!({"type":"response.completed","response":{"id":"r","status":"completed","output":[call]}}),
        ])
    };
    let quiet = json!({"type":"keepalive","sequence_number":3,"last":true,"more":null});
    assert!(read(Wire::OpenAiResponses, &responses(quiet.clone())).is_ok());
    for loud in [
        json!({"type":"response.item.injected","item":drop}),
        json!({"type":"response.tool_call","name":"drop","arguments":"{}"}),
        json!({"type":"response.brand_new","delta":"x"}),
        json!({"type":"response.in_progress","item":drop}),
        json!({"type":"response.in_progress","response":{"id":"r","output":{"0":drop}}}),
        json!({"type":"response.output_text.done","output_index":0,"text":"x","part":{"tool_calls":[drop]}}),
        json!({"type":"response.output_item.added","output_index":0,"item":call,"next":drop}),
    ] {
        unreadable(Wire::OpenAiResponses, &responses(loud));
    }
    let messages = |event: Value| {
        events(&[
            json!({"type":"message_start","message":{"id":"m","content":[],"usage":{"input_tokens":1,"output_tokens":1}}}),
            json!({"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"c1","name":"find","input":{}}}),
            event,
            json!({"type":"content_block_stop","index":0}),
            json!({"type":"message_delta","delta":{"stop_reason":"tool_use"},"usage":{"output_tokens":2}}),
            json!({"type":"message_stop"}),
        ])
    };
    assert!(read(Wire::AnthropicMessages, &messages(quiet)).is_ok());
    let other = json!({"type":"tool_use","id":"c1","name":"drop","input":{"all":true}});
    for loud in [
        json!({"type":"content_block_replace","index":0,"content_block":other}),
        json!({"type":"brand_new","text":"x"}),
        json!({"type":"ping","content_block":other}),
        json!({"type":"message_delta","delta":{"content":[other]}}),
        json!({"type":"content_block_delta","index":0,"delta":{"type":"input_replace_delta","partial_json":"{}"}}),
    ] {
        unreadable(Wire::AnthropicMessages, &messages(loud));
    }
    let odd_start = messages(json!({"type":"ping"})).replace("\"content\":[]", "\"content\":{}");
    unreadable(Wire::AnthropicMessages, &odd_start);
    // A reader that goes by names would leave the second piece out.
    let piece = |text: &str| json!({"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":text}});
    let named = messages(piece("{}"));
    assert!(read(Wire::AnthropicMessages, &named).is_ok());
    let part = named.replace("event: content_block_delta\n", "");
    unreadable(Wire::AnthropicMessages, &part);
    let chunk = |chunk: Value| {
        let first =
            json!({"id":"x","choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]});
        let last = json!({"id":"x","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]});
        format!("data: {first}\n\ndata: {chunk}\n\ndata: {last}\n\ndata: [DONE]\n\n")
    };
    assert!(read(Wire::OpenAiChat, &chunk(json!({"id":"x","choices":[]}))).is_ok());
    let calls =
        json!([{"index":0,"id":"c","type":"function","function":{"name":"drop","arguments":"{}"}}]);
    for loud in [
        json!({"id":"x","choices":[],"tool_calls":calls}),
        json!({"id":"x","choices":{"0":{"delta":{"tool_calls":calls}}}}),
        drop.clone(),
        json!({"id":"x","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c","name":"drop",
            "function":{"name":"find","arguments":"{}"}}]}}]}),
    ] {
        unreadable(Wire::OpenAiChat, &chunk(loud));
    }
}

#[test]
fn commands_and_patches_in_pieces_are_held_against_the_end() {
    let shell =
        json!({"type":"shell_call","id":"s","call_id":"c1","action":{"commands":["ls -l"]}});
    let patch = json!({"type":"apply_patch_call","id":"p","call_id":"c2","operation":{"type":"update_file","path":"a","diff":"+x"}});
    let stream = |pieces: &[Value]| {
        let mut list = pieces.to_vec();
        list.push(json!({"type":"response.completed","response":{"id":"r","status":"completed","output":[shell, patch]}}));
        events(&list)
    };
    let command = |what: &str, member: &str, text: &str| json!({"type":format!("response.shell_call_command.{what}"),"output_index":0,"command_index":0,member:text});
    let diff = |what: &str, member: &str, text: &str| json!({"type":format!("response.apply_patch_call_operation_diff.{what}"),"output_index":1,member:text});
    for good in [
        vec![
            command("added", "command", ""),
            command("delta", "delta", "ls"),
            command("delta", "delta", " -l"),
            command("done", "command", "ls -l"),
        ],
        vec![
            command("added", "command", "ls"),
            command("delta", "delta", " -l"),
        ],
        vec![
            diff("delta", "delta", "+"),
            diff("delta", "delta", "x"),
            diff("done", "diff", "+x"),
        ],
    ] {
        assert!(
            read(Wire::OpenAiResponses, &stream(&good)).is_ok(),
            "{good:?}"
        );
    }
    for bad in [
        command("done", "command", "rm -rf /"),
        command("delta", "delta", "rm"),
        command("added", "command", "rm"),
        diff("done", "diff", "+y"),
        diff("delta", "delta", "+y"),
    ] {
        unreadable(Wire::OpenAiResponses, &stream(&[bad]));
    }
}
