// A model provider on loopback that speaks three wire formats byte for byte, streams chunk by chunk.
import { createServer } from "node:http";

/**
 * Starts a provider. `script` is a list of answers, taken in turn, or a function of the request. An answer is
 * `{ text, calls: [{ id, name, arguments }] }`, with `arguments` as text, and perhaps `finish`, `delay` (ms before the
 * headers), `pause` (ms in the middle of the body), `cut` (the connection ends in the middle), or `{ status, body }`.
 */
export async function provider(script = []) {
  const requests = [];
  let next = 0;
  const server = createServer(async (incoming, outgoing) => {
    const chunks = [];
    for await (const chunk of incoming) chunks.push(chunk);
    const text = Buffer.concat(chunks).toString("utf8");
    const request = { method: incoming.method, path: incoming.url, headers: incoming.headers, text, number: requests.length + 1 };
    try {
      request.body = JSON.parse(text);
    } catch {
      request.body = null;
    }
    requests.push(request);
    outgoing.on("close", () => {
      request.isCut = !outgoing.writableFinished;
    });
    const wire = wireOf(request);
    if (!wire) return send(outgoing, 200, { object: "list", data: [], has_more: false });
    const answer = (typeof script === "function" ? script(request) : script[next++]) ?? { status: 500, body: { error: { message: "the script is over" } } };
    if (answer.delay) await wait(answer.delay);
    if (answer.status) return send(outgoing, answer.status, answer.body, answer.headers);
    if (request.body?.stream) await stream(outgoing, answer, wires[wire].events(answer, request.body ?? {}));
    else await whole(outgoing, answer, answer.raw ?? wires[wire].json(answer, request.body ?? {}));
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  // A test that failed must not keep its process alive.
  server.unref();
  const url = `http://127.0.0.1:${server.address().port}`;
  return {
    url,
    requests,
    close() {
      server.closeAllConnections();
      return new Promise((resolve) => server.close(resolve));
    },
  };
}

function wireOf({ method, path }) {
  const name = path.split("?")[0];
  if (method !== "POST") return null;
  return { "/v1/chat/completions": "chat", "/v1/responses": "responses", "/v1/messages": "messages" }[name] ?? null;
}

const wait = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const ids = { "x-request-id": "req_7", "request-id": "req_7" };

function send(outgoing, status, body, headers = {}) {
  outgoing.writeHead(status, { "content-type": "application/json", ...ids, ...headers });
  outgoing.end(typeof body === "string" ? body : JSON.stringify(body));
}

async function whole(outgoing, answer, text) {
  const bytes = Buffer.from(text);
  outgoing.writeHead(200, { "content-type": "application/json", "content-length": bytes.length, ...ids });
  const half = bytes.length >> 1;
  outgoing.write(bytes.subarray(0, half));
  if (answer.pause) await wait(answer.pause);
  if (answer.cut) return setImmediate(() => outgoing.destroy());
  outgoing.end(bytes.subarray(half));
}

async function stream(outgoing, answer, events) {
  outgoing.writeHead(200, { "content-type": "text/event-stream; charset=utf-8", ...ids });
  for (const [at, event] of events.entries()) {
    if (at === events.length >> 1) {
      if (answer.pause) await wait(answer.pause);
      if (answer.cut) return setImmediate(() => outgoing.destroy());
      if (answer.stop) return outgoing.end();
    }
    outgoing.write(event);
    await new Promise((resolve) => setImmediate(resolve));
  }
  outgoing.end();
}

const quote = (value) => JSON.stringify(value);
const halves = (text) => [text.slice(0, text.length >> 1), text.slice(text.length >> 1)];

const chat = {
  json(answer, { model }) {
    const calls = answer.calls?.map((call) => `{"id":${quote(call.id)},"type":"function","function":{"name":${quote(call.name)},"arguments":${quote(call.arguments)}}}`);
    const finish = answer.finish ?? (calls ? "tool_calls" : "stop");
    return `{"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":${quote(model)},"choices":[{"index":0,"message":{"role":"assistant","content":${quote(answer.text ?? null)},"refusal":null${calls ? `,"tool_calls":[${calls}]` : ""}},"logprobs":null,"finish_reason":${quote(finish)}}],"usage":{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15}}`;
  },
  events(answer, { model, stream_options }) {
    const chunk = (delta, finish = null) =>
      `data: ${quote({ id: "chatcmpl-1", object: "chat.completion.chunk", created: 1700000000, model, choices: [{ index: 0, delta, logprobs: null, finish_reason: finish }] })}\n\n`;
    const events = [chunk({ role: "assistant", content: answer.text ? "" : null, refusal: null })];
    if (answer.text) for (const part of halves(answer.text)) events.push(chunk({ content: part }));
    for (const [index, call] of (answer.calls ?? []).entries()) {
      events.push(chunk({ tool_calls: [{ index, id: call.id, type: "function", function: { name: call.name, arguments: "" } }] }));
      for (const part of halves(call.arguments)) events.push(chunk({ tool_calls: [{ index, function: { arguments: part } }] }));
    }
    events.push(chunk({}, answer.finish ?? (answer.calls ? "tool_calls" : "stop")));
    if (stream_options?.include_usage) {
      events.push(`data: ${quote({ id: "chatcmpl-1", object: "chat.completion.chunk", created: 1700000000, model, choices: [], usage: { prompt_tokens: 10, completion_tokens: 5, total_tokens: 15 } })}\n\n`);
    }
    return [...events, "data: [DONE]\n\n"];
  },
};

const messages = {
  json(answer, { model }) {
    const blocks = [];
    if (answer.text) blocks.push(`{"type":"text","text":${quote(answer.text)}}`);
    for (const call of answer.calls ?? []) blocks.push(`{"type":"tool_use","id":${quote(call.id)},"name":${quote(call.name)},"input":${call.arguments}}`);
    const stop = answer.finish ?? (answer.calls ? "tool_use" : "end_turn");
    return `{"id":"msg_1","type":"message","role":"assistant","model":${quote(model)},"content":[${blocks}],"stop_reason":${quote(stop)},"stop_sequence":null,"usage":{"input_tokens":10,"output_tokens":5}}`;
  },
  events(answer, { model }) {
    const event = (type, rest) => `event: ${type}\ndata: ${quote({ type, ...rest })}\n\n`;
    const message = { id: "msg_1", type: "message", role: "assistant", model, content: [], stop_reason: null, stop_sequence: null, usage: { input_tokens: 10, output_tokens: 1 } };
    const events = [event("message_start", { message })];
    let index = 0;
    if (answer.text) {
      events.push(event("content_block_start", { index, content_block: { type: "text", text: "" } }), event("ping", {}));
      for (const part of halves(answer.text)) events.push(event("content_block_delta", { index, delta: { type: "text_delta", text: part } }));
      events.push(event("content_block_stop", { index: index++ }));
    }
    for (const call of answer.calls ?? []) {
      events.push(event("content_block_start", { index, content_block: { type: "tool_use", id: call.id, name: call.name, input: {} } }));
      for (const part of halves(call.arguments)) events.push(event("content_block_delta", { index, delta: { type: "input_json_delta", partial_json: part } }));
      events.push(event("content_block_stop", { index: index++ }));
    }
    const stop = answer.finish ?? (answer.calls ? "tool_use" : "end_turn");
    events.push(event("message_delta", { delta: { stop_reason: stop, stop_sequence: null }, usage: { output_tokens: 5 } }), event("message_stop", {}));
    return events;
  },
};

const responses = {
  items(answer, done) {
    const items = [];
    const status = done ? "completed" : "in_progress";
    if (answer.text) items.push({ type: "message", id: "msg_1", status, role: "assistant", content: done ? [{ type: "output_text", text: answer.text, annotations: [], logprobs: [] }] : [] });
    for (const [at, call] of (answer.calls ?? []).entries()) items.push({ type: "function_call", id: `fc_${at}`, call_id: call.id, name: call.name, arguments: done ? call.arguments : "", status });
    return items;
  },
  response(answer, { model }, id, done) {
    return {
      id,
      object: "response",
      created_at: 1700000000,
      status: done ? "completed" : "in_progress",
      error: null,
      incomplete_details: null,
      instructions: null,
      model,
      output: done ? this.items(answer, true) : [],
      parallel_tool_calls: true,
      tool_choice: "auto",
      tools: [],
      usage: done ? { input_tokens: 10, input_tokens_details: { cached_tokens: 0 }, output_tokens: 5, output_tokens_details: { reasoning_tokens: 0 }, total_tokens: 15 } : null,
    };
  },
  json(answer, body) {
    return quote(this.response(answer, body, answer.id ?? "resp_1", true));
  },
  events(answer, body) {
    let sequence_number = 0;
    const event = (type, rest) => `event: ${type}\ndata: ${quote({ type, sequence_number: sequence_number++, ...rest })}\n\n`;
    const id = answer.id ?? "resp_1";
    const events = [event("response.created", { response: this.response(answer, body, id, false) }), event("response.in_progress", { response: this.response(answer, body, id, false) })];
    const [begun, done] = [this.items(answer, false), this.items(answer, true)];
    for (const [output_index, item] of begun.entries()) {
      const item_id = item.id;
      events.push(event("response.output_item.added", { output_index, item }));
      if (item.type === "message") {
        events.push(event("response.content_part.added", { item_id, output_index, content_index: 0, part: { type: "output_text", text: "", annotations: [], logprobs: [] } }));
        for (const delta of halves(answer.text)) events.push(event("response.output_text.delta", { item_id, output_index, content_index: 0, delta, logprobs: [] }));
        events.push(event("response.output_text.done", { item_id, output_index, content_index: 0, text: answer.text, logprobs: [] }));
        events.push(event("response.content_part.done", { item_id, output_index, content_index: 0, part: done[output_index].content[0] }));
      } else {
        for (const delta of halves(done[output_index].arguments)) events.push(event("response.function_call_arguments.delta", { item_id, output_index, delta }));
        events.push(event("response.function_call_arguments.done", { item_id, output_index, name: item.name, arguments: done[output_index].arguments }));
      }
      events.push(event("response.output_item.done", { output_index, item: done[output_index] }));
    }
    return [...events, event("response.completed", { response: this.response(answer, body, id, true) })];
  },
};

const wires = { chat, messages, responses };
