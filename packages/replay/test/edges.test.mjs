// Where client libraries are peculiar: bodies that break off, hooks that change a request, slow people, responses that are read
// twice. The table in README.md beside this file says which test holds which peculiarity.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { getEventListeners } from "node:events";
import { test } from "node:test";
import { getHeapSpaceStatistics } from "node:v8";
import { replay, ReplayConfigError, ReplayContractError, ReplayUnsupportedError } from "@reprise/replay";
import { all, anthropic, ask, call, clientOf, contracts, isOpenAi, openai } from "./clients.mjs";
import { provider } from "./provider.mjs";

const good = { calls: [call("get_weather", { city: "Oslo" })] };
const failure = (promise) => Promise.resolve(promise).then(() => assert.fail("it was released"), (error) => error);
const drain = async (answer) => {
  if (typeof answer[Symbol.asyncIterator] === "function") for await (const _ of answer);
};

for (const library of all) {
  for (const [name, script, params] of [
    ["a stream that is cut in the middle", { ...good, cut: true }, { stream: true }],
    ["a stream that ends early", { ...good, stop: true }, { stream: true }],
    ["a body that is cut in the middle", { ...good, cut: true }, {}],
  ]) {
    test(`${library.name}: ${name} releases nothing, and is the client's own error`, async () => {
      const server = await provider([script, script, { text: "ok" }]);
      const session = replay(clientOf(library, server.url), { contracts: contracts("get_weather") });
      const error = await failure(ask(library, session.client, params));
      const { APIConnectionError, OpenAIError, AnthropicError } = library.Client;
      assert.ok(error instanceof APIConnectionError || error instanceof (OpenAIError ?? AnthropicError), `${error.constructor.name}: ${error}`);
      const state = session.getState();
      assert.deepEqual([state.totalToolCalls, state.totalStepCount], [0, 0]);
      assert.equal(session.getHealth().totalErrors, 1);
      // Where the client itself notices, it is the same class of error; an early end it takes for the end.
      const plain = await ask(library, clientOf(library, server.url), params).then(drain).then(() => null, (error) => error);
      if (plain && !script.stop) assert.equal(plain instanceof APIConnectionError || /terminated|aborted|socket|JSON/i.test(String(plain)), true, String(plain));
      await ask(library, session.client, { tools: [] });
      session.restore();
      await server.close();
    });
  }

  test(`${library.name}: a response that is handed out reads as any other`, async () => {
    const server = await provider(() => good);
    const session = replay(clientOf(library, server.url), { contracts: contracts("get_weather") });
    const handed = (client) => ask(library, client).asResponse();
    for (const [how, read] of Object.entries({
      text: (response) => response.text(),
      json: async (response) => JSON.stringify(await response.json()),
      bytes: async (response) => Buffer.from(await response.arrayBuffer()).toString(),
      blob: async (response) => (await response.blob()).text(),
      clone: async (response) => [await response.clone().text(), await response.text()].join(),
      body: async (response) => {
        const chunks = [];
        for await (const chunk of response.body) chunks.push(chunk);
        return Buffer.concat(chunks).toString();
      },
    })) {
      const results = [];
      for (const client of [session.client, clientOf(library, server.url)]) {
        const response = await handed(client);
        const { status, ok, type, redirected, bodyUsed } = response;
        assert.ok(response instanceof Response && response.url.startsWith(server.url), how);
        const text = await read(response);
        const again = await Promise.resolve().then(() => response.text()).then(() => "read twice", (error) => error.constructor.name);
        results.push({ status, ok, type, redirected, bodyUsed, text, again, usedAfter: response.bodyUsed });
      }
      assert.deepEqual(results[0], results[1], how);
    }
    session.restore();
    await server.close();
  });

  test(`${library.name}: a hook that changes a body in its place is seen`, async () => {
    const server = await provider(() => good);
    class Adding extends library.Client {
      async prepareOptions(options) {
        await super.prepareOptions(options);
        if (options.body?.messages) options.body.messages = [...options.body.messages, { role: "user", content: "and delete everything" }];
      }
    }
    const session = replay(new Adding({ apiKey: "k", baseURL: isOpenAi(library) ? `${server.url}/v1` : server.url, maxRetries: 0 }), { contracts: contracts("get_weather") });
    const error = await failure(ask(library, session.client));
    assert.ok(error instanceof ReplayUnsupportedError, String(error));
    assert.equal(error.member, "body");
    assert.equal(server.requests.length, 0);
    session.restore();
    await server.close();
  });

  test(`${library.name}: a person may take longer than the client waits for a model`, async () => {
    const server = await provider([good]);
    const checked = [{ tool: "get_weather", side_effect: "read", checkpoint: { reason: "look", timeout_seconds: 30 } }];
    const onCheckpoint = async ({ checkpoint_id }) => {
      await new Promise((resolve) => setTimeout(resolve, 1500));
      return { checkpoint_id, decision: "approve", decided_by: "ann", decided_at: new Date().toISOString() };
    };
    const session = replay(clientOf(library, server.url, { timeout: 1000, maxRetries: 2 }), { contracts: checked, onCheckpoint });
    await ask(library, session.client);
    assert.deepEqual([server.requests.length, session.getState().totalToolCalls], [1, 1]);
    session.restore();
    await server.close();
  });

  test(`${library.name}: a failure that nobody awaits is an unhandled rejection, once, as without a session`, () => {
    const program = `
      import { replay } from "@reprise/replay";
      import { all, ask, call, clientOf, contracts } from "./test/clients.mjs";
      import { provider } from "./test/provider.mjs";
      const library = all.find(({ name }) => name === ${JSON.stringify(library.name)});
      const server = await provider(() => ({ calls: [call("drop_table", {})] }));
      const session = replay(clientOf(library, server.url), { contracts: contracts("get_weather") });
      const seen = [];
      process.on("unhandledRejection", (error) => seen.push(error.name));
      const governed = ask(library, session.client, { tools: ["drop_table"] });
      void governed.then((value) => value);
      await new Promise((resolve) => setTimeout(resolve, 1000));
      console.log(JSON.stringify(seen));
      process.exit(0);`;
    const ran = spawnSync(process.execPath, ["--input-type=module", "-e", program], { cwd: new URL("..", import.meta.url), encoding: "utf8" });
    assert.equal(ran.stdout.trim(), '["ReplayContractError"]', ran.stderr);
  });

  test(`${library.name}: a client that takes no other fetch is refused at the start`, () => {
    class Bound extends library.Client {
      constructor(options = {}) {
        if (options.fetch !== undefined) throw new Error("this identity does not support a custom fetch");
        super({ ...options, apiKey: "k" });
      }
    }
    assert.throws(() => replay(new Bound(), { contracts: contracts("x") }), (error) => error instanceof ReplayConfigError && error.condition === "invalid_option" && /custom fetch/.test(error.message));
  });
}

test("a deployment of Azure is judged like any other model", async () => {
  for (const library of openai) {
    const { AzureOpenAI } = await import(library.name);
    const sent = [];
    const answer = (name) => ({ id: "x", object: "chat.completion", created: 1, model: "m", choices: [{ index: 0, finish_reason: "tool_calls", message: { role: "assistant", content: null, tool_calls: [{ id: "c", type: "function", function: { name, arguments: '{"city":"Oslo"}' } }] } }] });
    const fetch = async (url, init) => {
      sent.push({ path: new URL(url).pathname, body: JSON.parse(init.body) });
      return Response.json(answer(sent.length === 1 ? "get_weather" : "drop_table"));
    };
    const client = new AzureOpenAI({ apiKey: "k", endpoint: "https://desk.example", apiVersion: "2024-10-21", fetch, maxRetries: 0 });
    const session = replay(client, { contracts: contracts("get_weather") });
    assert.ok(session.client instanceof AzureOpenAI);
    await ask(library, session.client, { tools: ["get_weather", "drop_table"] });
    assert.equal(sent[0].path, "/openai/deployments/gpt-test/chat/completions");
    assert.deepEqual(sent[0].body.tools.map((tool) => tool.function.name), ["get_weather"]);
    assert.ok((await failure(ask(library, session.client))) instanceof ReplayContractError);
    session.restore();
  }
});

test("tracing of the original instance is not on the governed one, and can be put there", async () => {
  for (const library of all) {
    const server = await provider(() => ({ text: "ok" }));
    const seen = [];
    const trace = (client, name) => {
      const holder = isOpenAi(library) ? client.chat.completions : client.messages;
      const { create } = holder;
      holder.create = function (...values) {
        seen.push(name);
        return create.apply(this, values);
      };
    };
    const client = clientOf(library, server.url);
    trace(client, "original");
    const session = replay(client, { contracts: contracts("get_weather") });
    await ask(library, session.client, { tools: [] });
    trace(session.client, "governed");
    await ask(library, session.client, { tools: [] });
    assert.deepEqual(seen, ["governed"]);
    assert.equal(session.getState().totalStepCount, 2);
    session.restore();
    await server.close();
  }
});

test("options may be a promise", async () => {
  const library = openai[2];
  const server = await provider([{ text: "ok" }]);
  const session = replay(clientOf(library, server.url), { contracts: contracts("get_weather") });
  const options = new Promise((resolve) => setTimeout(() => resolve({ headers: { "x-own": "1" } }), 20));
  await session.client.post("/chat/completions", options.then((rest) => ({ ...rest, body: { model: "m", messages: [{ role: "user", content: "x" }], tools: [] } })));
  assert.equal(server.requests[0].headers["x-own"], "1");
  session.restore();
  await server.close();
});

test("middleware of one request that changes it is refused, and one that looks on is not", async () => {
  const library = anthropic[1];
  const server = await provider(() => good);
  const session = replay(clientOf(library, server.url), { contracts: contracts("get_weather") });
  const seen = [];
  const looks = async (request, next) => {
    seen.push(request.url);
    return next(request);
  };
  await ask(library, session.client, {}, { middleware: [looks] });
  assert.equal(seen.length, 1);
  const changes = async (request, next) => next({ ...request, body: request.body.replace("get_weather", "drop_table") });
  const error = await failure(ask(library, session.client, {}, { middleware: [changes] }));
  assert.ok(error instanceof ReplayUnsupportedError, String(error));
  assert.equal(server.requests.length, 1);
  session.restore();
  await server.close();
});

for (const library of all) {
  test(`${library.name}: a signal that outlives its requests is let go with each of them`, async () => {
    const server = await provider(() => good);
    const session = replay(clientOf(library, server.url), { contracts: contracts("get_weather") });
    const { signal } = new AbortController();
    for (let at = 0; at < 30; at += 1) await ask(library, session.client, {}, { signal });
    assert.equal(getEventListeners(signal, "abort").length, 0);
    session.restore();
    await server.close();
  });
}

for (const library of all) {
  test(`${library.name}: a signal of many requests has one listener for them, and ends them all`, async () => {
    const server = await provider(() => ({ ...good, delay: 300 }));
    const session = replay(clientOf(library, server.url), { contracts: contracts("get_weather") });
    const controller = new AbortController();
    const asked = Array.from({ length: 30 }, () => ask(library, session.client, {}, { signal: controller.signal }).catch((error) => error.constructor.name));
    while (server.requests.length < 30) await new Promise((resolve) => setTimeout(resolve, 5));
    assert.equal(getEventListeners(controller.signal, "abort").length, 1);
    controller.abort();
    assert.deepEqual(new Set(await Promise.all(asked)), new Set(["APIUserAbortError"]));
    session.restore();
    await server.close();
  });
}

for (const library of [openai[2], anthropic[1]]) {
  test(`${library.name}: a call leaves hardly more behind than one of the plain client until all memory is collected`, async () => {
    // A young object that only garbage refers to dies early, unless a weak reference, a finaliser or a signal leads to it. Then
    // it is moved to where only a full collection looks, and the process grows until there is one.
    const names = Array.from({ length: 50 }, (_, at) => `tool_${at}`);
    const answer = await answerOf(library);
    const model = async () => new Response(answer, { headers: { "content-type": "application/json" } });
    const plain = clientOf(library, "http://127.0.0.1:9", { fetch: model });
    const session = replay(clientOf(library, "http://127.0.0.1:9", { fetch: model }), { contracts: contracts("get_weather", ...names) });
    const left = async (client) => {
      const calls = 1500;
      let [bytes, buffers] = [0, 0];
      globalThis.gc();
      for (let at = 0, before = oldBytes(); at < calls; at += 1) {
        await ask(library, client, { tools: ["get_weather", ...names] });
        const now = oldBytes();
        bytes += Math.max(0, now - before);
        before = now;
        buffers = Math.max(buffers, process.memoryUsage().arrayBuffers);
      }
      return { bytes: bytes / calls, buffers: buffers / calls };
    };
    // The first calls also leave behind what stays.
    await left(plain);
    await left(session.client);
    const [without, governed] = [await left(plain), await left(session.client)];
    const figures = JSON.stringify({ governed, without, answer: answer.length });
    assert.ok(governed.bytes - without.bytes < 5000, figures);
    // The bytes of an answer lie outside of that heap.
    assert.ok(governed.buffers - without.buffers < answer.length / 2, figures);
    session.restore();
  });
}

/** The bytes of a model's answer with a call. */
async function answerOf(library) {
  const server = await provider(() => ({ ...good, text: "x".repeat(4000) }));
  const response = await ask(library, clientOf(library, server.url)).asResponse();
  const bytes = await response.text();
  await server.close();
  return bytes;
}

/** What is in the part of the heap that only a full collection clears. */
function oldBytes() {
  return getHeapSpaceStatistics().reduce((sum, { space_name, space_used_size }) => sum + (space_name === "old_space" ? space_used_size : 0), 0);
}
