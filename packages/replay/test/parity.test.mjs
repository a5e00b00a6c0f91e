// The same program with and without a session prints the same, and sends the same.
import assert from "node:assert/strict";
import { test } from "node:test";
import { replay } from "@reprise/replay";
import { anthropic, call, chatTool, clientOf, contracts, messagesTool, openai, responsesTool, weather } from "./clients.mjs";
import { provider } from "./provider.mjs";

const user = [{ role: "user", content: "What is the weather?" }];
const words = { text: "It is sunny." };
const called = { text: "Let me look.", calls: [call("get_weather", { city: "Oslo" })] };
const two = { calls: [call("get_weather", { city: "Oslo" }, "a"), call("get_weather", { city: "Rome" }, "b")] };
const rate = { status: 429, body: { error: { type: "rate_limit_error", message: "slow down" } }, headers: { "retry-after-ms": "1" } };

async function printStream(stream, print) {
  for await (const event of stream) print(event);
}

/** Gives a stream up after its first event, and prints how that ends and whether more came than was sent by then. */
async function printAborted(stream, controller, half, print) {
  let count = 0;
  try {
    for await (const _ of stream) {
      count += 1;
      controller.abort();
    }
    print({ ended: count <= half, aborted: stream.controller.signal.aborted });
  } catch (error) {
    print({ name: error.constructor.name, message: error.message, ended: count <= half });
  }
}

function weatherTool(print) {
  return {
    type: "function",
    function: {
      name: "get_weather",
      description: "weather",
      parameters: weather,
      parse: JSON.parse,
      function: (args) => {
        print({ ran: args });
        return JSON.stringify({ sky: "blue", ...args });
      },
    },
  };
}

const chatScripts = {
  "chat create": [[words, called], async (client, print) => {
    for (let at = 0; at < 2; at += 1) print(await client.chat.completions.create({ model: "m", messages: user, tools: [chatTool("get_weather")] }));
  }],
  "chat stream": [[called], async (client, print) => {
    await printStream(await client.chat.completions.create({ model: "m", messages: user, tools: [chatTool("get_weather")], stream: true }), print);
  }],
  "chat stream with usage": [[two], async (client, print) => {
    await printStream(await client.chat.completions.create({ model: "m", messages: user, stream: true, stream_options: { include_usage: true }, tools: [chatTool("get_weather")] }), print);
  }],
  "chat parse": [[{ text: '{"sky":"blue"}' }], async (client, print) => {
    const format = { type: "json_schema", json_schema: { name: "sky", schema: { type: "object" } } };
    const parse = client.chat.completions.parse ?? client.beta.chat.completions.parse;
    const owner = client.chat.completions.parse ? client.chat.completions : client.beta.chat.completions;
    print(await parse.call(owner, { model: "m", messages: user, response_format: format }));
  }],
  "chat helper stream": [[called], async (client, print) => {
    const runner = client.chat.completions.stream({ model: "m", messages: user, tools: [chatTool("get_weather")] });
    runner.on("content", (delta) => print({ delta }));
    print(await runner.finalChatCompletion());
  }],
  "chat runTools": [[called, words], async (client, print) => {
    const runner = client.chat.completions.runTools({ model: "m", messages: user, tools: [weatherTool(print)] });
    runner.on("message", (message) => print({ message }));
    print(await runner.finalContent());
  }],
  "chat runTools stream": [[called, words], async (client, print) => {
    const runner = client.chat.completions.runTools({ model: "m", messages: user, stream: true, tools: [weatherTool(print)] });
    print(await runner.finalContent());
    print(runner.messages);
  }],
  "chat post": [[called], async (client, print) => {
    print(await client.post("/chat/completions", { body: { model: "m", messages: user, tools: [chatTool("get_weather")] } }));
  }],
  "chat withResponse": [[words, words], async (client, print) => {
    const { data, response, request_id } = await client.chat.completions.create({ model: "m", messages: user }).withResponse();
    print({ data, status: response.status, type: response.headers.get("content-type"), length: response.headers.get("content-length"), request_id, id: data._request_id });
    const raw = await client.chat.completions.create({ model: "m", messages: user }).asResponse();
    print({ text: await raw.text(), url: new URL(raw.url).pathname, ok: raw.ok });
  }],
  "chat stream tee": [[called, words], async (client, print) => {
    const stream = await client.chat.completions.create({ model: "m", messages: user, tools: [chatTool("get_weather")], stream: true });
    for (const half of stream.tee()) await printStream(half, print);
    const other = await client.chat.completions.create({ model: "m", messages: user, stream: true });
    print(await new Response(other.toReadableStream()).text());
    print(other.controller instanceof AbortController);
  }],
  "responses create": [[called, words], async (client, print) => {
    for (let at = 0; at < 2; at += 1) {
      const response = await client.responses.create({ model: "m", input: "hello", tools: [responsesTool("get_weather")] });
      print({ response, text: response.output_text });
    }
  }],
  "responses stream": [[called], async (client, print) => {
    await printStream(await client.responses.create({ model: "m", input: "hello", tools: [responsesTool("get_weather")], stream: true }), print);
  }],
  "responses helper stream": [[called], async (client, print) => {
    const stream = client.responses.stream({ model: "m", input: "hello", tools: [responsesTool("get_weather")] });
    await printStream(stream, (event) => print(event.type));
    print(await stream.finalResponse());
  }],
  "responses parse": [[{ text: '{"sky":"blue"}' }], async (client, print) => {
    print(await client.responses.parse({ model: "m", input: "hello", text: { format: { type: "json_schema", name: "sky", schema: { type: "object" } } } }));
  }],
  "withOptions": [[words], async (client, print) => {
    print(await client.withOptions({ timeout: 5000 }).chat.completions.create({ model: "m", messages: user }));
  }],
  "models and embeddings": [[], async (client, print) => {
    print((await client.models.list()).data);
    for await (const model of client.models.list()) print(model);
    print(await client.embeddings.create({ model: "m", input: "x", encoding_format: "float" }));
  }],
  "library retries": [[rate, words], async (client, print) => {
    print(await client.chat.completions.create({ model: "m", messages: user }, { maxRetries: 1 }));
  }],
  "provider errors": [[rate, { status: 400, body: { error: { message: "bad", type: "invalid_request_error" } } }], async (client, print) => {
    for (let at = 0; at < 2; at += 1) {
      const error = await client.chat.completions.create({ model: "m", messages: user }).catch((error) => error);
      print({ name: error.constructor.name, status: error.status, message: error.message, id: error.requestID ?? error.request_id });
    }
  }],
  "timeout": [[{ ...words, delay: 1000 }], async (client, print) => {
    const error = await client.chat.completions.create({ model: "m", messages: user }, { timeout: 200 }).catch((error) => error);
    print({ name: error.constructor.name, message: error.message });
  }],
  "abort": [[{ ...words, delay: 1000 }], async (client, print, arrived) => {
    const controller = new AbortController();
    arrived().then(() => controller.abort());
    const error = await client.chat.completions.create({ model: "m", messages: user }, { signal: controller.signal }).catch((error) => error);
    print({ name: error.constructor.name, message: error.message });
  }],
  "abort in the middle of a stream": [[{ ...words, pause: 300 }, { ...words, pause: 300 }], async (client, print) => {
    for (const how of ["signal", "controller"]) {
      const own = new AbortController();
      const stream = await client.chat.completions.create({ model: "m", messages: user, stream: true }, { signal: own.signal });
      await printAborted(stream, how === "signal" ? own : stream.controller, 2, print);
    }
  }],
  "error event in a stream": [[{ status: 200, headers: { "content-type": "text/event-stream" }, body: 'data: {"error":{"message":"overloaded","type":"server_error"}}\n\n' }], async (client, print) => {
    try {
      await printStream(await client.chat.completions.create({ model: "m", messages: user, stream: true }), print);
    } catch (error) {
      print({ name: error.constructor.name, message: error.message });
    }
  }],
};

const messageScripts = {
  "messages create": [[words, called], async (client, print) => {
    for (let at = 0; at < 2; at += 1) print(await client.messages.create({ model: "m", max_tokens: 9, messages: user, tools: [messagesTool("get_weather")] }));
  }],
  "messages create stream": [[called], async (client, print) => {
    await printStream(await client.messages.create({ model: "m", max_tokens: 9, messages: user, tools: [messagesTool("get_weather")], stream: true }), print);
  }],
  "messages helper stream": [[called], async (client, print) => {
    const stream = client.messages.stream({ model: "m", max_tokens: 9, messages: user, tools: [messagesTool("get_weather")] });
    stream.on("text", (delta) => print({ delta }));
    print(await stream.finalMessage());
  }],
  "messages parse": [[{ text: '{"sky":"blue"}' }], async (client, print) => {
    print(await client.messages.parse({ model: "m", max_tokens: 9, messages: user, output_config: { format: { type: "json_schema", schema: { type: "object" } } } }));
  }],
  "beta messages": [[words, called], async (client, print) => {
    print(await client.beta.messages.create({ model: "m", max_tokens: 9, messages: user, betas: ["some-beta"] }));
    await printStream(await client.beta.messages.create({ model: "m", max_tokens: 9, messages: user, tools: [messagesTool("get_weather")], stream: true }), print);
  }],
  "beta helper stream": [[called], async (client, print) => {
    print(await client.beta.messages.stream({ model: "m", max_tokens: 9, messages: user, tools: [messagesTool("get_weather")] }).finalMessage());
  }],
  "toolRunner": [[called, words], async (client, print) => {
    const run = (args) => {
      print({ ran: args });
      return JSON.stringify({ sky: "blue" });
    };
    const tool = { ...messagesTool("get_weather"), run, parse: (value) => value };
    print(await client.beta.messages.toolRunner({ model: "m", max_tokens: 9, messages: user, tools: [tool], thread: false }));
  }],
  "toolRunner stream": [[called, words], async (client, print) => {
    const tool = { ...messagesTool("get_weather"), run: () => "blue", parse: (value) => value };
    for await (const stream of client.beta.messages.toolRunner({ model: "m", max_tokens: 9, messages: user, tools: [tool], stream: true, thread: false })) {
      await printStream(stream, print);
    }
  }],
  "messages post": [[called], async (client, print) => {
    print(await client.post("/v1/messages", { body: { model: "m", max_tokens: 9, messages: user, tools: [messagesTool("get_weather")] } }));
  }],
  "messages withResponse": [[words, words], async (client, print) => {
    const { data, response, request_id } = await client.messages.create({ model: "m", max_tokens: 9, messages: user }).withResponse();
    print({ data, status: response.status, length: response.headers.get("content-length"), request_id, id: data._request_id });
    const raw = await client.messages.create({ model: "m", max_tokens: 9, messages: user }).asResponse();
    print({ text: await raw.text(), url: new URL(raw.url).pathname });
  }],
  "messages withOptions": [[words], async (client, print) => {
    print(await client.withOptions({ timeout: 5000 }).messages.create({ model: "m", max_tokens: 9, messages: user }));
  }],
  "models and token counts": [[], async (client, print) => {
    print((await client.models.list()).data);
    print(await client.messages.countTokens({ model: "m", messages: user }));
  }],
  "library retries": [[rate, words], async (client, print) => {
    print(await client.messages.create({ model: "m", max_tokens: 9, messages: user }, { maxRetries: 1 }));
  }],
  "provider errors": [[rate, { status: 400, body: { type: "error", error: { message: "bad", type: "invalid_request_error" } } }], async (client, print) => {
    for (let at = 0; at < 2; at += 1) {
      const error = await client.messages.create({ model: "m", max_tokens: 9, messages: user }).catch((error) => error);
      print({ name: error.constructor.name, status: error.status, message: error.message, id: error.requestID });
    }
  }],
  "timeout": [[{ ...words, delay: 1000 }], async (client, print) => {
    const error = await client.messages.create({ model: "m", max_tokens: 9, messages: user }, { timeout: 200 }).catch((error) => error);
    print({ name: error.constructor.name, message: error.message });
  }],
  "abort": [[{ ...words, delay: 1000 }], async (client, print, arrived) => {
    const controller = new AbortController();
    arrived().then(() => controller.abort());
    const error = await client.messages.create({ model: "m", max_tokens: 9, messages: user }, { signal: controller.signal }).catch((error) => error);
    print({ name: error.constructor.name, message: error.message });
  }],
  "abort in the middle of a stream": [[{ ...words, pause: 300 }, { ...words, pause: 300 }], async (client, print) => {
    for (const how of ["signal", "controller"]) {
      const own = new AbortController();
      const stream = await client.messages.create({ model: "m", max_tokens: 9, messages: user, stream: true }, { signal: own.signal });
      await printAborted(stream, how === "signal" ? own : stream.controller, 4, print);
    }
  }],
  "error event in a stream": [[{ status: 200, headers: { "content-type": "text/event-stream" }, body: 'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}\n\n' }], async (client, print) => {
    try {
      await printStream(await client.messages.create({ model: "m", max_tokens: 9, messages: user, stream: true }), print);
    } catch (error) {
      print({ name: error.constructor.name, message: error.message });
    }
  }],
};

async function printed(library, [script, program], wrap) {
  const server = await provider([...script]);
  const client = clientOf(library, server.url);
  const session = wrap ? replay(client, { contracts: contracts("get_weather") }) : null;
  const lines = [];
  const print = (value) => lines.push(JSON.stringify(value));
  try {
    const arrived = async () => {
      while (server.requests.length === 0) await new Promise((resolve) => setTimeout(resolve, 5));
    };
    await program(session?.client ?? client, print, arrived);
  } finally {
    session?.restore();
    await server.close();
  }
  const requests = server.requests.map(({ method, path, headers, text }) => {
    const { host, ...rest } = headers;
    return { method, path, headers: rest, text };
  });
  return { lines, requests };
}

for (const [libraries, scripts] of [[openai, chatScripts], [anthropic, messageScripts]]) {
  for (const library of libraries) {
    for (const [name, script] of Object.entries(scripts)) {
      // Version 0.60 has neither.
      if (library.name === "anthropic060" && /parse|toolRunner/.test(name)) continue;
      test(`${library.name}: ${name} is the same with and without a session`, async () => {
        const plain = await printed(library, script, false);
        const governed = await printed(library, script, true);
        assert.ok(plain.lines.length > 0);
        assert.deepEqual(governed.lines, plain.lines);
        // A time that is over may be over before the request arrives.
        if (name !== "timeout") assert.deepEqual(governed.requests, plain.requests);
      });
    }
  }
}
