// What providers send that is not quite an answer. Where nothing is blocked, the client gets what it would get without a session,
// byte for byte; where something is, nothing is released that was not judged.
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { test } from "node:test";
import { PassThrough, Readable } from "node:stream";
import { ReplayContractError, ReplayKillError, observe, replay } from "@reprise/replay";
import { all, ask, call, clientOf, contracts, isOpenAi, openai } from "./clients.mjs";
import { provider } from "./provider.mjs";

const json = { "content-type": "application/json" };
const sse = { "content-type": "text/event-stream" };
const chunk = (delta, finish = null, more = {}) =>
  `data: ${JSON.stringify({ id: "c", object: "chat.completion.chunk", created: 1, model: "m", choices: [{ index: 0, delta, finish_reason: finish }], ...more })}\n\n`;
const good = (library) =>
  isOpenAi(library)
    ? JSON.stringify({ id: "x", object: "chat.completion", created: 1, model: "m", choices: [{ index: 0, finish_reason: "stop", message: { role: "assistant", content: "hi" } }] })
    : JSON.stringify({ id: "msg_1", type: "message", role: "assistant", model: "m", content: [{ type: "text", text: "hi" }], stop_reason: "end_turn", stop_sequence: null, usage: { input_tokens: 1, output_tokens: 1 } });

/** A server that answers everything the same way. */
async function serving(answer) {
  const server = createServer(async (incoming, outgoing) => {
    for await (const _ of incoming);
    answer(outgoing, incoming);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  server.unref();
  return { url: `http://127.0.0.1:${server.address().port}`, close: () => server.closeAllConnections() };
}

const send = (status, headers, body) => (outgoing) => {
  outgoing.writeHead(status, headers);
  outgoing.end(body);
};

/** What a program sees of a call: what came, event by event, and how it ended. */
async function seen(library, client, { isStream, how }) {
  const out = [];
  try {
    const asked = ask(library, client, { tools: [], stream: isStream });
    if (how === "asResponse") {
      const response = await asked.asResponse();
      out.push(response.status, await response.text());
    } else if (how === "withResponse") {
      const { data, response } = await asked.withResponse();
      out.push(data, response.status);
    } else if (isStream) for await (const event of await asked) out.push(event);
    else out.push(await asked);
  } catch (error) {
    out.push(`${error.constructor.name}: ${error.message}`);
  }
  return JSON.stringify(out);
}

const quiet = { shadow: (client) => replay(client, { contracts: contracts("get_weather"), mode: "shadow" }), observe: (client) => observe(client) };

const odd = {
  "no content": send(204, {}),
  "an empty body": send(200, json),
  "no JSON": send(200, json, "{oops"),
  "a page": send(200, { "content-type": "text/html" }, "<b>hi</b>"),
  "a list": send(200, json, "[1]"),
  "an error with status 200": send(200, json, '{"error":{"message":"bad"}}'),
  "no UTF-8": send(200, json, Buffer.concat([Buffer.from('{"a":"'), Buffer.from([0xff, 0xfe]), Buffer.from('"}')])),
  "a large one": send(200, json, JSON.stringify({ id: "x", text: "x".repeat(17 << 20) })),
  "one that is cut": (outgoing) => {
    outgoing.writeHead(200, { ...json, "content-length": 5000 });
    outgoing.write('{"id":');
    setTimeout(() => outgoing.destroy(), 20);
  },
};

for (const library of all) {
  test(`${library.name}: what is not an answer reaches the client where nothing is blocked`, async () => {
    for (const [name, answer] of Object.entries({ ...odd, "a labelled one": send(200, sse, good(library)) })) {
      const server = await serving(answer);
      for (const way of [{}, { how: "asResponse" }, { how: "withResponse" }, { isStream: true }]) {
        const plain = await seen(library, clientOf(library, server.url), way);
        for (const [mode, attach] of Object.entries(quiet)) {
          const session = attach(clientOf(library, server.url));
          const got = await seen(library, session.client, way);
          session.restore();
          assert.equal(got, plain, `${name} ${mode} ${JSON.stringify(way)}`);
        }
        const session = replay(clientOf(library, server.url), { contracts: contracts("get_weather") });
        const strict = await seen(library, session.client, way);
        assert.ok(!strict.includes("TypeError"), `${name}: ${strict}`);
        session.restore();
      }
      server.close();
    }
  });
}

const streams = {
  "no end word": [chunk({ content: "hi" }) + chunk({}, "stop"), true],
  "no blank line at the end": [chunk({ content: "hi" }) + chunk({}, "stop").trimEnd(), true],
  "an end word without a blank line": [`${chunk({ content: "hi" })}${chunk({}, "stop")}data: [DONE]`, true],
  "no reason to stop": [chunk({ content: "hi" }), false],
  "cut in an event": [`${chunk({ content: "hi" })}data: {"cho`, false],
  "something after the end": [`${chunk({ content: "hi" }, "stop")}data: [DONE]\n\n${chunk({ content: "x" })}`, false],
  "two choices": [`${chunk({ content: "hi" }, "stop")}data: {"choices":[{"index":1,"delta":{"content":"z"}}]}\n\ndata: [DONE]\n\n`, false],
  "an event with a name": [`event: weird\ndata: {"tool":"drop_table"}\n\n${chunk({ content: "hi" }, "stop")}data: [DONE]\n\n`, false],
  "an object of its own": [`data: {"object":"weird","tool":"drop_table"}\n\n${chunk({ content: "hi" }, "stop")}data: [DONE]\n\n`, false],
  "an error in the middle": [`${chunk({ content: "hi" })}data: {"error":{"message":"boom"}}\n\n`, false],
  "keep-alives": [`: waiting\n\nevent: ping\ndata: {}\n\n${chunk({ content: "hi" }, "stop")}data: [DONE]\n\n`, true],
};

for (const library of openai) {
  test(`${library.name}: streams that are not quite as they should be`, async () => {
    for (const [name, [text, isWhole]] of Object.entries(streams)) {
      const server = await serving(send(200, sse, text));
      const way = { isStream: true };
      const plain = await seen(library, clientOf(library, server.url), way);
      for (const [mode, attach] of Object.entries(quiet)) {
        const session = attach(clientOf(library, server.url));
        assert.equal(await seen(library, session.client, way), plain, `${name} ${mode}`);
        session.restore();
      }
      const session = replay(clientOf(library, server.url), { contracts: contracts("get_weather") });
      const strict = await seen(library, session.client, way);
      if (isWhole) assert.equal(strict, plain, name);
      else assert.ok(!strict.includes('"hi"') && !strict.includes("drop_table"), `${name}: ${strict}`);
      session.restore();
      server.close();
    }
  });

  test(`${library.name}: a stream that lacks its end word is judged as any other`, async () => {
    const text = chunk({ tool_calls: [{ index: 0, id: "c1", type: "function", function: { name: "drop_table", arguments: "{}" } }] }) + chunk({}, "tool_calls");
    const server = await serving(send(200, sse, text));
    const session = replay(clientOf(library, server.url), { contracts: contracts("get_weather") });
    await assert.rejects(ask(library, session.client, { stream: true }), (error) => error instanceof ReplayContractError && error.decision.reason === "unmatched_tool_blocked");
    session.restore();
    server.close();
  });

  test(`${library.name}: a stream that breaks off brings what came, where nothing is blocked`, async () => {
    const server = await serving((outgoing) => {
      outgoing.writeHead(200, sse);
      outgoing.write(chunk({ content: "hi" }));
      setTimeout(() => outgoing.destroy(), 50);
    });
    const way = { isStream: true };
    const plain = await seen(library, clientOf(library, server.url), way);
    assert.ok(plain.includes("hi") && plain.includes("Error"), plain);
    for (const [mode, attach] of Object.entries(quiet)) {
      const session = attach(clientOf(library, server.url));
      assert.equal(await seen(library, session.client, way), plain, mode);
      session.restore();
    }
    server.close();
  });
}

test("what could not be read is told", async () => {
  const [, , library] = openai;
  const told = [];
  const server = await serving(send(200, json, '{"error":{"message":"bad"}}'));
  const session = replay(clientOf(library, server.url), { contracts: contracts("get_weather"), mode: "shadow", diagnostics: (event) => told.push(event) });
  await ask(library, session.client);
  assert.ok(told.some(({ name, data }) => name === "response_unread" && data.detail.includes("error")), JSON.stringify(told));
  assert.deepEqual(session.getLastShadowDelta().would_have_blocked, []);
  session.restore();
  server.close();
  const other = await serving(send(200, json, "[1]"));
  const second = replay(clientOf(library, other.url), { contracts: contracts("get_weather"), mode: "shadow" });
  await ask(library, second.client);
  const [{ reason }] = second.getLastShadowDelta().would_have_blocked;
  assert.equal(reason, "response_format_invalid");
  second.restore();
  other.close();
});

test("what a session could not judge passes where nothing is blocked, and is told", async () => {
  for (const library of openai) {
    const server = await serving((outgoing, { url }) => send(200, json, JSON.stringify({ path: url }))(outgoing));
    for (const [mode, attach] of Object.entries(quiet)) {
      const told = [];
      const session = mode === "shadow" ? replay(clientOf(library, server.url), { contracts: contracts("get_weather"), mode, diagnostics: (event) => told.push(event) }) : attach(clientOf(library, server.url));
      const { client } = session;
      assert.deepEqual(await client.completions.create({ model: "m", prompt: "x" }).then(({ path }) => path), "/v1/completions");
      assert.deepEqual(await client.responses.retrieve("resp_1").then(({ path }) => path), "/v1/responses/resp_1");
      assert.deepEqual(await client.post("/batches", { body: {} }).then(({ path }) => path), "/v1/batches");
      await client.chat.completions.create({ model: "m", messages: [] }, { fetchOptions: { body: '{"model":"n"}' } });
      await client.chat.completions.create({ model: "m", n: 2, messages: [] });
      assert.equal(client.apiKey, "sk-test-key", mode);
      assert.equal({ ...client }.apiKey, "sk-test-key", mode);
      if (mode === "shadow") assert.ok(told.some(({ name, data }) => name === "violation" && data.member === "POST /completions"), JSON.stringify(told));
      session.restore();
    }
    server.close();
  }
});

test("a request that cannot be read goes out as it is where nothing is blocked, and is told; elsewhere it is refused", async () => {
  const nested = (depth) => (depth === 0 ? {} : { a: nested(depth - 1) });
  const base = { model: "m", max_tokens: 5, messages: [{ role: "user", content: "x" }] };
  const bodies = {
    large: { ...base, messages: [{ role: "user", content: "x".repeat(17 << 20) }] },
    nested: { ...base, metadata: nested(150) },
    list: [1],
    "no JSON": "not json",
    "a byte order mark": `\ufeff${JSON.stringify(base)}`,
  };
  const modes = { shadow: { mode: "shadow" }, "log-only": { mode: "log-only" }, advisory: { compatEnforcement: "advisory" }, enforce: {} };
  for (const library of [openai[0], openai[2], all[4]]) {
    const path = isOpenAi(library) ? "/chat/completions" : "/v1/messages";
    const server = await provider(() => ({ text: "hi" }));
    const sent = async (client, body) => {
      server.requests.length = 0;
      const error = await client.post(path, { body, headers: { "content-type": "application/json" } }).then(() => null, (error) => error);
      return { error, texts: server.requests.map(({ text }) => text) };
    };
    // The same through `fetch`, also for what is no text.
    const odd = { large: Buffer.from(JSON.stringify(bodies.large)), "a byte order mark": Buffer.from(bodies["a byte order mark"]), "no UTF-8": Buffer.from([0x7b, 0xff, 0xfe, 0x7d]) };
    // One that is large takes time, and is the same for everybody.
    const isSmall = ([name]) => name !== "large" || library === openai[2];
    for (const [name, bytes] of Object.entries(odd).filter(isSmall)) {
      for (const [mode, options] of Object.entries(modes)) {
        const came = [];
        const inner = async (_, { body }) => came.push(Buffer.from(body)) && new Response(good(library), { headers: json });
        const session = replay(clientOf(library, server.url, { fetch: inner }), { contracts: contracts("get_weather"), ...options });
        const { status } = await session.fetch(`${server.url}/v1${path.replace("/v1", "")}`, { method: "POST", body: bytes, headers: json });
        assert.deepEqual([status, came.length], mode === "enforce" ? [403, 0] : [200, 1], `${mode}, ${name}`);
        if (mode !== "enforce") assert.ok(came[0].equals(bytes), `${mode}, ${name}`);
        session.restore();
      }
    }
    for (const [name, body] of Object.entries(bodies).filter(isSmall)) {
      const plain = await sent(clientOf(library, server.url, { logLevel: "off" }), body);
      assert.equal(plain.texts.length, 1);
      for (const [mode, options] of Object.entries(modes)) {
        const told = [];
        const session = replay(clientOf(library, server.url, { logLevel: "off" }), { contracts: contracts("get_weather"), diagnostics: (event) => told.push(event.name), ...options });
        const { error, texts } = await sent(session.client, body);
        if (mode === "enforce") {
          assert.equal(error?.name, "ReplayUnsupportedError", name);
          assert.deepEqual(texts, []);
        } else {
          assert.ok(texts.length === 1 && texts[0] === plain.texts[0], `${library.name}, ${mode}, ${name}: ${texts[0]?.length}`);
          assert.ok(told.includes("request_unread"), `${mode}, ${name}: ${told}`);
        }
        session.restore();
      }
    }
    await server.close();
  }
});

test("clients whose fetch is of another kind are judged, and read what was judged", async () => {
  for (const library of all) {
    const server = await provider(({ body }) => (body.model === "evil" ? { calls: [call("drop_table", {})] } : { text: "hi" }));
    const kinds = {
      // As `node-fetch` does: the body is a stream of Node.
      node: (response) => ({ ok: response.ok, status: response.status, statusText: response.statusText, url: response.url, headers: response.headers, body: Readable.fromWeb(response.body).pipe(new PassThrough()), json: () => response.json(), text: () => response.text() }),
      text: (response) => ({ ok: response.ok, status: response.status, headers: response.headers, text: () => response.text(), json: () => response.json() }),
      json: (response) => ({ ok: response.ok, status: response.status, headers: response.headers, json: () => response.json() }),
    };
    for (const [kind, change] of Object.entries(kinds)) {
      const fetch = async (...values) => change(await globalThis.fetch(...values));
      for (const isStream of kind === "node" ? [false, true] : [false]) {
        const session = replay(clientOf(library, server.url, { fetch, maxRetries: 2 }), { contracts: contracts("get_weather") });
        const before = server.requests.length;
        const got = await seen(library, session.client, { isStream });
        assert.ok(got.includes("h") && !got.includes("Error"), `${library.name} ${kind}: ${got}`);
        await assert.rejects(ask(library, session.client, { model: "evil", stream: isStream }), ReplayContractError, `${library.name} ${kind}`);
        assert.equal(server.requests.length - before, 2, "the model is asked once for each call");
        session.restore();
      }
    }
    const none = async () => ({ ok: true, status: 200, headers: new Headers(json) });
    const session = replay(clientOf(library, server.url, { fetch: none }), { contracts: contracts("get_weather") });
    await assert.rejects(ask(library, session.client), (error) => /whose body cannot be read: give the client/.test(`${error.message} ${error.cause?.message}`));
    session.restore();
    await server.close();
  }
});

test("a response without a body that has readers of its own is read by them", async () => {
  const answer = JSON.parse(good(openai[2]));
  const [choice] = answer.choices;
  const named = (name) => ({ ...answer, choices: [{ ...choice, finish_reason: "tool_calls", message: { role: "assistant", content: null, tool_calls: [{ id: "c1", type: "function", function: { name, arguments: JSON.stringify({ city: "Oslo" }) } }] } }] });
  const made = (body) => async () => ({ ok: true, status: 200, headers: new Headers(json), body: null, json: async () => body });
  const open = (name, options) => replay(clientOf(openai[2], "http://127.0.0.1:9", { fetch: made(named(name)) }), { contracts: contracts("get_weather"), ...options });
  const called = async (session) => (await ask(openai[2], session.client)).choices[0].message.tool_calls[0].function.name;
  assert.equal(await called(open("get_weather")), "get_weather");
  assert.equal(await called(open("drop_table", { mode: "shadow" })), "drop_table");
  await assert.rejects(called(open("drop_table")), ReplayContractError);
});

test("whoever takes the readers of the class reads what was judged", async () => {
  for (const library of all) {
    const server = await provider(() => ({ text: "hi", calls: [call("get_weather", { city: "x" }), call("drop_table", {}, "call_2")] }));
    for (const stream of [false, true]) {
      const plain = await ask(library, clientOf(library, server.url), { stream }).asResponse();
      const session = replay(clientOf(library, server.url), { contracts: contracts("get_weather"), gate: "strip_blocked" });
      const response = await ask(library, session.client, { stream }).asResponse();
      const text = await Response.prototype.text.call(response);
      assert.ok(text.includes("get_weather") && !text.includes("drop_table"), text);
      assert.deepEqual([response.url, response.type, response.redirected], [plain.url, plain.type, plain.redirected]);
      session.restore();
    }
    await server.close();
  }
});

test("a kill breaks off what is not judged too", async () => {
  for (const library of openai) {
    let closed;
    const wasClosed = new Promise((resolve) => (closed = resolve));
    const server = await serving((outgoing) => outgoing.on("close", closed));
    const session = replay(clientOf(library, server.url), { contracts: contracts("get_weather") });
    const asked = session.client.embeddings.create({ model: "m", input: "x" });
    const fetched = session.fetch(`${server.url}/v1/embeddings`, { method: "POST", body: "{}" });
    setTimeout(() => session.kill(), 100);
    await assert.rejects(asked, ReplayKillError);
    assert.equal((await fetched).status, 403);
    await wasClosed;
    server.close();
  }
});

test("an executor may throw whatever it likes", async () => {
  const server = await provider(() => ({ calls: [call("get_weather", { city: "x" })] }));
  const [, , library] = openai;
  for (const members of [{ late: true }, { isFault: true }, { passOn: new Response("x") }, { sessionId: "s" }]) {
    const thrown = Object.assign(new Error("no"), members);
    const tools = {
      get_weather: async () => {
        throw thrown;
      },
    };
    const session = replay(clientOf(library, server.url), { contracts: contracts("get_weather"), tools });
    await ask(library, session.client);
    await assert.rejects(session.tools.get_weather({ city: "x" }, { callId: "call_1" }), (error) => error === thrown);
    assert.equal(session.getHealth().unresolvedReceiptCount, 0);
    session.restore();
    // So may a `fetch`.
    const fetch = async () => {
      throw thrown;
    };
    const other = replay(clientOf(library, server.url, { fetch }), { contracts: contracts("get_weather") });
    await assert.rejects(other.fetch(`${server.url}/v1/chat/completions`, { method: "POST", body: JSON.stringify({ model: "m", messages: [] }) }), (error) => error === thrown);
    other.restore();
  }
  await server.close();
});
