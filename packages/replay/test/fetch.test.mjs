// `session.fetch`: the same pipeline for frameworks that build a client of their own.
import assert from "node:assert/strict";
import { test } from "node:test";
import { createOpenAI } from "@ai-sdk/openai";
import { ChatOpenAI } from "@langchain/openai";
import { replay } from "@reprise/replay";
import { generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";
import { anthropic, call, chatTool, clientOf, contracts, messagesTool, openai } from "./clients.mjs";
import { provider } from "./provider.mjs";

const good = { calls: [call("get_weather", { city: "Oslo" })] };
const bad = { calls: [call("drop_table", { city: "Oslo" })] };
const user = [{ role: "user", content: "x" }];
const libraries = [openai[2], anthropic[1]];
const address = (library, url) => (library === openai[2] ? `${url}/v1/chat/completions` : `${url}/v1/messages`);
const body = (library, names, rest = {}) =>
  JSON.stringify(library === openai[2] ? { model: "m", messages: user, tools: names.map((name) => chatTool(name)), ...rest } : { model: "m", max_tokens: 9, messages: user, tools: names.map((name) => messagesTool(name)), ...rest });

async function governed(library, script, options, run) {
  const server = await provider(script);
  const session = replay(clientOf(library, server.url), { contracts: contracts("get_weather"), ...options });
  try {
    await run({ server, session, post: (text, init = {}) => session.fetch(address(library, server.url), { method: "POST", headers: { "content-type": "application/json" }, body: text, ...init }) });
  } finally {
    session.restore();
    await server.close();
  }
}

for (const library of libraries) {
  test(`${library.name}: fetch releases, strips and refuses`, async () => {
    await governed(library, [good, good, bad], {}, async ({ server, session, post }) => {
      const seen = await (await fetch(address(library, server.url), { method: "POST", body: body(library, ["get_weather"]) })).text();
      const released = await post(body(library, ["get_weather", "drop_table"]));
      assert.equal(await released.text(), seen);
      assert.equal(released.headers.get("x-request-id"), "req_7");
      assert.equal(server.requests[1].body.tools.length, 1);
      const refused = await post(body(library, ["get_weather", "drop_table"]));
      assert.equal(refused.status, 403);
      assert.equal(refused.headers.get("x-should-retry"), "false");
      const { error } = await refused.json();
      assert.deepEqual([error.type, error.code], ["replay_contract_error", "unmatched_tool_blocked"]);
      assert.equal(session.getState().totalBlockCount, 1);
    });
  });

  test(`${library.name}: fetch keeps streams as they are`, async () => {
    await governed(library, [good, good], {}, async ({ server, post }) => {
      const plain = await (await fetch(address(library, server.url), { method: "POST", body: body(library, ["get_weather"], { stream: true }) })).text();
      const through = await (await post(body(library, ["get_weather"], { stream: true }))).text();
      assert.equal(through.replace(/event: ping\ndata: [^\n]*\n\n/, ""), plain.replace(/event: ping\ndata: [^\n]*\n\n/, ""));
    });
  });

  test(`${library.name}: fetch passes provider errors on, refuses what it does not know, ends with the session`, async () => {
    await governed(library, [{ status: 429, body: { error: { message: "slow" } } }], {}, async ({ server, session, post }) => {
      assert.equal((await post(body(library, []))).status, 429);
      const unknown = await session.fetch(`${server.url}/v1/brand-new`, { method: "POST", body: "{}" });
      assert.deepEqual([unknown.status, (await unknown.json()).error.type], [403, "replay_unsupported_error"]);
      const elsewhere = await session.fetch("http://127.0.0.1:9/v1/messages", { method: "POST", body: "{}" });
      assert.equal(elsewhere.status, 403);
      assert.equal((await session.fetch(`${server.url}/v1/models`)).status, 200);
      const passing = library === openai[2] ? "embeddings" : "messages/count_tokens";
      const asked = new Request(`${server.url}/v1/${passing}`, { method: "POST", headers: { "x-own": "1" }, body: '{"a":1}' });
      assert.equal((await session.fetch(asked)).status, 200);
      assert.deepEqual([server.requests[2].text, server.requests[2].headers["x-own"]], ['{"a":1}', "1"]);
      session.kill();
      const killed = await post(body(library, []));
      assert.deepEqual([killed.status, (await killed.json()).error.code], [403, "killed"]);
      assert.equal(server.requests.length, 3);
    });
  });

  test(`${library.name}: fetch judges a request object, and ends with the session`, async () => {
    await governed(library, [good, bad, { ...good, delay: 5000 }], {}, async ({ server, session }) => {
      const asked = () => session.fetch(new Request(address(library, server.url), { method: "POST", headers: { "content-type": "application/json" }, body: body(library, ["get_weather", "drop_table"]) }));
      assert.equal((await asked()).status, 200);
      assert.equal(server.requests[0].body.tools.length, 1);
      assert.equal((await asked()).status, 403);
      const waiting = asked();
      while (server.requests.length < 3) await new Promise((resolve) => setTimeout(resolve, 5));
      session.kill();
      assert.equal((await (await waiting).json()).error.code, "killed");
      while (server.requests[2].isCut === undefined) await new Promise((resolve) => setTimeout(resolve, 5));
      assert.equal(server.requests[2].isCut, true);
    });
  });

  test(`${library.name}: fetch can be aborted`, async () => {
    await governed(library, [{ ...good, delay: 1000 }], {}, async ({ server, session, post }) => {
      const controller = new AbortController();
      const waiting = post(body(library, ["get_weather"]), { signal: controller.signal }).catch((error) => error);
      while (server.requests.length === 0) await new Promise((resolve) => setTimeout(resolve, 5));
      controller.abort();
      assert.equal((await waiting).name, "AbortError");
      assert.equal(session.getState().totalStepCount, 0);
    });
    // A stream breaks off where its reader gives up.
    await governed(library, [{ text: "It is blue." }], {}, async ({ post }) => {
      const controller = new AbortController();
      const reader = (await post(body(library, [], { stream: true }), { signal: controller.signal })).body.getReader();
      assert.equal((await reader.read()).done, false);
      controller.abort();
      await assert.rejects(reader.read(), { name: "AbortError" });
    });
  });
}

const weather = tool({
  description: "weather",
  inputSchema: jsonSchema({ type: "object", properties: { city: { type: "string" } }, required: ["city"] }),
  execute: async ({ city }) => ({ city, sky: "blue" }),
});

for (const endpoint of ["responses", "chat"]) {
  test(`the Vercel AI SDK goes through the session (${endpoint})`, async () => {
    await governed(openai[2], (request) => [good, { text: "It is blue." }, bad][request.number - 1], {}, async ({ server, session }) => {
      const made = createOpenAI({ apiKey: "k", baseURL: `${server.url}/v1`, fetch: session.fetch });
      const model = endpoint === "chat" ? made.chat("m") : made("m");
      const drop = { ...weather, execute: () => assert.fail("it ran") };
      const done = await generateText({ model, prompt: "x", tools: { get_weather: weather, drop_table: drop }, stopWhen: stepCountIs(3) });
      assert.equal(done.text, "It is blue.");
      assert.ok(server.requests.every(({ body }) => body.tools.length === 1), "removed tools do not reach the model");
      const error = await generateText({ model, prompt: "x", tools: { drop_table: drop }, maxRetries: 2 }).then(() => assert.fail("released"), (error) => error);
      assert.equal(error.statusCode, 403);
      assert.match(error.responseBody, /unmatched_tool_blocked/);
      assert.equal(server.requests.length, 3, "not tried again");
      assert.equal(session.getState().totalStepCount, 2);
      assert.equal(session.getState().totalBlockCount, 1);
    });
  });

  test(`the Vercel AI SDK streams through the session (${endpoint})`, async () => {
    await governed(openai[2], [{ text: "It is blue." }], {}, async ({ server, session }) => {
      const made = createOpenAI({ apiKey: "k", baseURL: `${server.url}/v1`, fetch: session.fetch });
      const { textStream } = streamText({ model: endpoint === "chat" ? made.chat("m") : made("m"), prompt: "x" });
      let text = "";
      for await (const part of textStream) text += part;
      assert.equal(text, "It is blue.");
      assert.equal(session.getState().totalStepCount, 1);
    });
  });
}

for (const endpoint of ["chat", "responses"]) {
  test(`LangChain goes through the session (${endpoint})`, async () => {
    await governed(openai[2], (request) => [good, { text: "It is blue." }, bad][request.number - 1] ?? bad, {}, async ({ server, session }) => {
      const model = new ChatOpenAI({ model: "m", apiKey: "k", useResponsesApi: endpoint === "responses", configuration: { baseURL: `${server.url}/v1`, fetch: session.fetch } });
      const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
      const offered = (name) => ({ type: "function", function: { name, description: name, parameters } });
      // `bindTools` makes another model object, with another client.
      const bound = model.bindTools([offered("get_weather"), offered("drop_table")]);
      const first = await bound.invoke("x");
      assert.deepEqual(first.tool_calls.map(({ name, args }) => [name, args]), [["get_weather", { city: "Oslo" }]]);
      assert.equal(server.requests[0].body.tools.length, 1, "removed tools do not reach the model");
      let text = "";
      for await (const chunk of await bound.stream("x")) text += chunk.text;
      assert.equal(text, "It is blue.");
      const error = await bound.invoke("x").then(() => assert.fail("released"), (error) => error);
      assert.equal(error.status, 403);
      assert.match(error.message, /drop_table: unmatched_tool_blocked/);
      assert.equal(server.requests.length, 3, "not tried again");
      assert.deepEqual([session.getState().totalStepCount, session.getState().totalBlockCount, session.getHealth().bypass_detected], [2, 1, false]);
      assert.ok(server.requests.every(({ path }) => path.endsWith(endpoint === "chat" ? "/chat/completions" : "/responses")));
    });
  });
}
