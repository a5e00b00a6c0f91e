// Nothing reaches a model unjudged: other ways out of a client, and faults of the governance itself.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { cpSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { test } from "node:test";
import { replay, ReplayConfigError, ReplayContractError, ReplayFaultError, ReplayKillError, ReplayUnsupportedError } from "@reprise/replay";
import WebSocket from "ws";
import { all, anthropic, ask, call, clientOf, contracts, isOpenAi, openai, responsesTool } from "./clients.mjs";
import { provider } from "./provider.mjs";

const require = createRequire(import.meta.url);
const root = dirname(dirname(require.resolve("@reprise/replay")));
const good = { calls: [call("get_weather", { city: "Oslo" })] };
const bad = { calls: [call("drop_table", { city: "Oslo" })] };
const failure = (promise) => Promise.resolve(promise).then(() => assert.fail("it was released"), (error) => error);

/** What a request may be that no session judges. */
const HARMLESS = {
  openai: [
    /^POST \/v1\/(embeddings|moderations|files|uploads|vector_stores|responses\/input_tokens)$/,
    /^POST \/v1\/(images\/(generations|edits|variations)|audio\/(speech|transcriptions|translations)|uploads\/[^/]+\/(parts|complete|cancel))$/,
    /^GET \/v1\/(models|files|vector_stores|chat\/completions)$/,
    /^(GET|DELETE) \/v1\/(models|files)\/[^/]+$/,
    /^GET \/v1\/files\/[^/]+\/content$/,
    /^(GET|POST|DELETE) \/v1\/audio\/(voices|voice_consents)(\/[^/]+)?$/,
    /^(GET|POST|DELETE) \/v1\/vector_stores\/[^/]+(\/(files|file_batches|search)(\/.+)?)?$/,
    /^(GET|POST|DELETE) \/v1\/fine_tuning\/(jobs|checkpoints)(\/.+)?$/,
    /^POST \/v1\/fine_tuning\/alpha\/graders\/validate$/,
    /^DELETE \/v1\/(chat\/completions|responses)\/[^/]+$/,
  ],
  anthropic: [/^GET \/v1\/(models|files)$/, /^(GET|DELETE) \/v1\/(models|files)\/[^/]+$/, /^GET \/v1\/files\/[^/]+\/content$/, /^POST \/v1\/(files|messages\/count_tokens)$/],
};

for (const library of all) {
  test(`${library.name}: no function that can be reached sends anything unjudged`, async () => {
    const server = await provider(() => ({ text: "ok" }));
    // In a process of its own: what odd arguments start there must end with it.
    const walk = spawn(process.execPath, [new URL("walk.mjs", import.meta.url).pathname, library.name, server.url], { stdio: ["ignore", "pipe", "ignore"] });
    let printed = "";
    for await (const chunk of walk.stdout) printed += chunk;
    const { functions, attempts } = JSON.parse(printed.trim().split("\n").at(-1));
    await server.close();
    assert.ok(functions >= 40, `${functions} functions`);
    const harmless = HARMLESS[isOpenAi(library) ? "openai" : "anthropic"];
    const judged = isOpenAi(library) ? ["POST /v1/chat/completions", "POST /v1/responses"] : ["POST /v1/messages"];
    const sent = server.requests.map(({ method, path }) => `${method} ${path.split("?")[0]}`);
    const unknown = sent.filter((line) => !judged.includes(line) && !harmless.some((pattern) => pattern.test(line)));
    assert.deepEqual([...new Set(unknown)], []);
    const judgedSent = sent.filter((line) => judged.includes(line)).length;
    assert.ok(judgedSent >= 3, "the walk reaches judged endpoints");
    assert.ok(sent.length > judgedSent, "and harmless ones");
    assert.equal(attempts, judgedSent, "each of them was judged");
  });
}

test("endpoints that cannot be judged are refused before anything is sent", async () => {
  for (const library of openai) {
    const server = await provider([]);
    const { client, restore } = replay(clientOf(library, server.url), { contracts: contracts("get_weather") });
    for (const send of [
      () => client.completions.create({ model: "m", prompt: "x" }),
      () => client.responses.retrieve("resp_1"),
      () => client.chat.completions.retrieve("chatcmpl-1"),
      () => client.batches.create({ endpoint: "/v1/chat/completions", input_file_id: "f", completion_window: "24h" }),
      () => client.post("/chat/completions/../completions", { body: {} }),
      () => client.post("/brand-new", { body: {} }),
      () => client.post("https://elsewhere.example/v1/chat/completions", { body: {} }),
    ]) {
      const error = await failure(send());
      assert.ok(error instanceof ReplayUnsupportedError && error instanceof library.Client.OpenAIError, String(error));
      assert.ok(error.member.length > 0);
    }
    assert.equal((await failure(client.batches.list())).status, 403, "lists go another way, and are refused there");
    assert.deepEqual(server.requests, []);
    restore();
    await server.close();
  }
  for (const library of anthropic) {
    const server = await provider([]);
    const { client, restore } = replay(clientOf(library, server.url), { contracts: contracts("get_weather") });
    const params = { model: "m", max_tokens: 9, messages: [{ role: "user", content: "x" }] };
    const refused = [() => client.messages.batches.create({ requests: [] }), () => client.post("/v1/complete", { body: {} })];
    if (client.beta.messages.thread) refused.push(() => client.beta.messages.thread(params).send());
    for (const send of refused) assert.ok((await failure(send())) instanceof ReplayUnsupportedError);
    assert.deepEqual(server.requests, []);
    restore();
    await server.close();
  }
});

test("of training only what asks no model passes", async () => {
  for (const library of openai) {
    const server = await provider([]);
    const { client, restore } = replay(clientOf(library, server.url), { contracts: contracts("get_weather") });
    const grader = { type: "score_model", name: "g", model: "m", input: [] };
    const error = await failure(client.fineTuning.alpha.graders.run({ grader, model_sample: "x" }));
    assert.ok(error instanceof ReplayUnsupportedError, String(error));
    assert.deepEqual(server.requests, []);
    await client.fineTuning.alpha.graders.validate({ grader });
    await client.vectorStores.search("vs_1", { query: "x" });
    await client.fineTuning.jobs.retrieve("job_1");
    assert.equal(server.requests.length, 3);
    restore();
    await server.close();
  }
});

test("what a stream says in events that nobody knows, and a call with two readings, are not released", async () => {
  const sse = (events) => events.map((event) => `event: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`).join("");
  const item = (name, id) => ({ type: "function_call", id: `fc_${id}`, call_id: id, name, arguments: '{"city":"Oslo"}', status: "completed" });
  const response = (output, status = "completed") => ({ id: "resp_1", object: "response", created_at: 1, model: "m", status, output, usage: null });
  const responses = (event) => sse([{ type: "response.created", response: response([], "in_progress") }, ...(event ? [event] : []), { type: "response.completed", response: response([item("get_weather", "c1")]) }]);
  const block = (name) => ({ type: "tool_use", id: "c1", name, input: { city: "Oslo" } });
  const messages = (event) => sse([
    { type: "message_start", message: { id: "m", type: "message", role: "assistant", model: "m", content: [], stop_reason: null, stop_sequence: null, usage: { input_tokens: 1, output_tokens: 1 } } },
    { type: "content_block_start", index: 0, content_block: block("get_weather") },
    ...(event ? [event] : []),
    { type: "content_block_stop", index: 0 },
    { type: "message_delta", delta: { stop_reason: "tool_use", stop_sequence: null }, usage: { output_tokens: 2 } },
    { type: "message_stop" },
  ]);
  const chat = (call) => JSON.stringify({ id: "x", object: "chat.completion", created: 1, model: "m", choices: [{ index: 0, finish_reason: "tool_calls", message: { role: "assistant", content: null, tool_calls: [call] } }] });
  const named = { id: "c1", type: "function", function: { name: "get_weather", arguments: '{"city":"Oslo"}' } };
  const chunk = (delta, finish_reason) => `data: ${JSON.stringify({ id: "x", object: "chat.completion.chunk", created: 1, model: "m", choices: [{ index: 0, delta, finish_reason }] })}\n\n`;
  const chunks = (...pieces) => `${pieces.map((piece) => chunk({ tool_calls: [piece] }, null)).join("")}${chunk({}, "tool_calls")}data: [DONE]\n\n`;
  const told = (name, id) => ({ type: "response.output_item.done", output_index: 0, item: item(name, id) });
  const cases = [
    ["responses", responses(null), true],
    ["responses", responses(told("get_weather", "c1")), true],
    ["responses", responses(told("drop_table", "c2")).replace("event: response.completed", `${sse([told("get_weather", "c1")])}event: response.completed`), false],
    ["responses", responses({ type: "response.output_item.injected", output_index: 1, item: item("drop_table", "c2") }), false],
    ["responses", responses({ type: "response.in_progress", response: response([], "in_progress"), item: item("drop_table", "c2") }), false],
    ["chat", chat(named), true],
    ["chat", chat({ ...named, custom: { name: "drop_table", input: "x" } }), false],
    ["chat", chat({ ...named, name: "drop_table" }), false],
    ["chat", chunks({ index: 0, ...named }), true],
    ["chat", chunks({ index: 0, function: { arguments: '{"city":"Oslo"}' } }, { index: 0, id: "c1", type: "function", function: { name: "get_weather", arguments: "" } }), false],
    ["messages", messages(null), true],
    ["messages", messages({ type: "content_block_replace", index: 0, content_block: block("drop_table") }), false],
  ];
  for (const library of all) {
    for (const [wire, text, isGood] of cases) {
      if ((wire === "messages") === isOpenAi(library)) continue;
      const stream = !text.startsWith("{");
      const fetch = async () => new Response(text, { headers: { "content-type": stream ? "text/event-stream" : "application/json" } });
      const session = replay(clientOf(library, "http://127.0.0.1:9", { fetch }), { contracts: contracts("get_weather") });
      const asked =
        wire === "responses"
          ? session.client.responses.create({ model: "m", input: "x", stream: true, tools: [responsesTool("get_weather")] })
          : ask(library, session.client, { stream });
      if (isGood) await asked;
      else {
        const error = await failure(asked);
        assert.ok(error instanceof ReplayContractError, String(error));
        assert.equal(error.decision.reason, "response_format_invalid");
      }
      assert.equal(session.getState().totalToolCalls, isGood ? 1 : 0);
      session.restore();
    }
  }
});

test("a line of a stream that begins with a byte order mark hides nothing", async () => {
  for (const library of all) {
    for (const wire of isOpenAi(library) ? ["chat", "responses"] : ["messages"]) {
      const server = await provider(() => ({ calls: [call("drop_table", {})] }));
      const path = { chat: "/v1/chat/completions", responses: "/v1/responses", messages: "/v1/messages" }[wire];
      const whole = await fetch(server.url + path, { method: "POST", body: JSON.stringify({ model: "m", stream: true }) }).then((response) => response.text());
      await server.close();
      // Every line of the events that name the call, and only these: what is left says that there was none.
      const hidden = whole.split("\n\n").map((event) => (event.includes("drop_table") ? event.replace(/^/gm, "\ufeff") : event.replace('"tool_calls"}', '"stop"}').replace('"tool_use"', '"end_turn"')));
      const session = replay(clientOf(library, "http://127.0.0.1:9", { fetch: async () => new Response(hidden.join("\n\n"), { headers: { "content-type": "text/event-stream" } }) }), { contracts: contracts("get_weather") });
      const asked = wire === "responses" ? session.client.responses.create({ model: "m", input: "x", stream: true }) : ask(library, session.client, { stream: true });
      const error = await failure(asked);
      assert.equal(error.decision?.reason, "response_format_invalid", `${library.name}, ${wire}: ${error}`);
      session.restore();
    }
  }
});

test("requests that cannot be judged are refused by the member that makes them so", async () => {
  const messages = [{ role: "user", content: "x" }];
  for (const library of openai) {
    const server = await provider([]);
    const { client, restore } = replay(clientOf(library, server.url), { contracts: contracts("get_weather") });
    for (const [member, send] of [
      ["n", () => client.chat.completions.create({ model: "m", messages, n: 2 })],
      ["functions", () => client.chat.completions.create({ model: "m", messages, functions: [{ name: "x" }] })],
      ["background", () => client.responses.create({ model: "m", input: "x", background: true })],
      ["previous_response_id", () => client.responses.create({ model: "m", input: "x", previous_response_id: "resp_9" })],
      ["fetchOptions.body", () => client.chat.completions.create({ model: "m", messages }, { fetchOptions: { body: "{}" } })],
      ["body", () => client.post("/chat/completions", { body: new URLSearchParams("a=b") })],
      ["body", () => client.post("/chat/completions", { body: { toJSON: () => undefined } })],
    ]) {
      const error = await failure(send());
      assert.ok(error instanceof ReplayUnsupportedError, `${member}: ${error}`);
      assert.equal(error.member, member);
    }
    assert.deepEqual(server.requests, []);
    restore();
    await server.close();
  }
});

test("what is judged is what is sent, also when the body is replaced on the way", async () => {
  for (const library of all) {
    const server = await provider(() => bad);
    const path = isOpenAi(library) ? "/chat/completions" : "/v1/messages";
    class Changing extends library.Client {
      async prepareRequest(request) {
        if (this.changes) request.body = request.body.replace("get_weather", "drop_table");
      }
    }
    const original = new Changing({ apiKey: "k", baseURL: isOpenAi(library) ? `${server.url}/v1` : server.url, maxRetries: 2 });
    const session = replay(original, { contracts: contracts("get_weather") });
    session.client.changes = true;
    const error = await failure(ask(library, session.client));
    assert.ok(error instanceof ReplayUnsupportedError, String(error));
    assert.equal(error.member, "body");
    assert.equal(server.requests.length, 0);
    // A body in the options of a request replaces the first: it is the one that is judged.
    session.client.changes = false;
    const other = { model: "m", max_tokens: 9, messages: [], tools: [] };
    const replaced = await failure(ask(library, session.client, {}, { body: other }));
    assert.ok(replaced instanceof ReplayContractError, String(replaced));
    assert.equal(server.requests[0].path.split("?")[0].endsWith(path), true);
    session.restore();
    await server.close();
  }
});

test("an answer that is replaced behind the guard is the one that is judged", async () => {
  for (const library of all) {
    const server = await provider(() => good);
    class Changing extends library.Client {
      async fetchWithTimeout(...values) {
        const response = await super.fetchWithTimeout(...values);
        const text = await response.text();
        return new Response(text.replace("get_weather", "drop_table"), { headers: response.headers });
      }
    }
    const session = replay(new Changing({ apiKey: "k", baseURL: isOpenAi(library) ? `${server.url}/v1` : server.url, maxRetries: 0 }), { contracts: contracts("get_weather") });
    assert.ok((await failure(ask(library, session.client))) instanceof ReplayContractError);
    session.restore();
    await server.close();
  }
});

test("connections around fetch get no key", async () => {
  for (const library of openai) {
    const { OpenAIRealtimeWS } = await import(`${library.name}/realtime/ws`);
    const session = replay(clientOf(library, "http://127.0.0.1:9"), { contracts: contracts("get_weather") });
    assert.throws(() => new OpenAIRealtimeWS({ model: "m" }, session.client), ReplayUnsupportedError);
    assert.throws(() => session.client.apiKey, ReplayUnsupportedError);
    assert.throws(() => session.client.withOptions({ timeout: 1 }).apiKey, ReplayUnsupportedError);
    assert.throws(() => session.client._options.apiKey, ReplayUnsupportedError);
    assert.doesNotMatch(JSON.stringify(session.client._options), /sk-test-key/);
    assert.throws(() => library.Client.prototype.withOptions.call(session.client, {}), ReplayUnsupportedError);
    session.restore();
  }
  assert.equal(typeof WebSocket, "function");
});

test("a client without a key of its own gets its token, and nothing else passes with it", async () => {
  for (const library of openai.slice(1)) {
    const server = await provider(() => good);
    const exchanged = [];
    const own = (url, init) => {
      if (String(url).startsWith(server.url)) return fetch(url, init);
      exchanged.push(String(url));
      return Promise.resolve(Response.json({ access_token: "token-1", token_type: "Bearer", expires_in: 3600 }));
    };
    const provided = { tokenType: "jwt", getToken: async () => "subject" };
    const workloadIdentity = { identityProviderId: "idp", serviceAccountId: "sa", provider: provided };
    const client = new library.Client({ workloadIdentity, baseURL: `${server.url}/v1`, maxRetries: 0, fetch: own });
    const session = replay(client, { contracts: contracts("get_weather") });
    await ask(library, session.client);
    assert.deepEqual(exchanged, ["https://auth.openai.com/oauth/token"]);
    assert.equal(server.requests[0].headers.authorization, "Bearer token-1");
    // The address of the exchange is the client's own, and never one of a model.
    for (const url of ["https://auth.openai.com/v1/chat/completions", "https://elsewhere.example/oauth/token", "https://auth.openai.com/oauth/token?x=1"]) {
      assert.equal((await session.client.fetch(url, { method: "POST", body: "{}" })).status, 403, url);
    }
    session.client._workloadIdentityAuth.tokenExchangeUrl = `${server.url}/v1/chat/completions`;
    assert.equal((await session.client.fetch(`${server.url}/v1/chat/completions`, { method: "POST", body: "{}" })).status, 403);
    assert.equal(server.requests.length, 1);
    session.restore();
    await server.close();
  }
});

test("a client of Anthropic without a key gets its token too", async () => {
  const sent = [];
  const server = await provider(() => good);
  const own = (url, init) => {
    sent.push(new URL(url).pathname);
    if (url.endsWith("/oauth/token")) return Promise.resolve(Response.json({ access_token: "token-1", token_type: "Bearer", expires_in: 3600 }));
    return fetch(url, init);
  };
  const authentication = { type: "oidc_federation", federation_rule_id: "r", identity_token: { source: "file", path: new URL("clients.mjs", import.meta.url).pathname } };
  const config = { organization_id: "o", base_url: server.url, authentication };
  const { Client } = anthropic[1];
  for (const later of [false, true]) {
    const session = replay(new Client({ fetch: own, maxRetries: 0, ...(later ? { apiKey: "k" } : { config }) }), { contracts: contracts("get_weather") });
    await ask(anthropic[1], session.client.withOptions(later ? { config } : { timeout: 5000 }));
    assert.deepEqual(sent.splice(0), ["/v1/oauth/token", "/v1/messages"]);
    assert.equal(server.requests.at(-1).headers.authorization, "Bearer token-1");
    assert.equal((await session.client.fetch(`${server.url}/oauth/token`, { method: "POST", body: "{}" })).status, 403);
    session.restore();
  }
  await server.close();
});

test("clients that rewrite their requests for another platform are refused at the start", async () => {
  const { AnthropicVertex } = await import("@anthropic-ai/vertex-sdk");
  const authClient = { getRequestHeaders: async () => new Headers() };
  const vertex = new AnthropicVertex({ region: "us-east5", projectId: "p", authClient });
  assert.throws(() => replay(vertex, { contracts: contracts("x") }), (error) => error instanceof ReplayConfigError && /AnthropicVertex/.test(error.message));
  // Bedrock has the same hook.
  class AnthropicBedrock extends anthropic[1].Client {
    backendMiddleware() {
      return [async (request, next) => next(request)];
    }
  }
  assert.throws(() => replay(new AnthropicBedrock({ apiKey: "k" }), { contracts: contracts("x") }), (error) => error.condition === "invalid_option" && /AnthropicBedrock/.test(error.message));
});

test("a client of openai for Bedrock is judged like any other", async () => {
  const { BedrockOpenAI } = await import(openai[2].name);
  const server = await provider([good, bad]);
  const client = new BedrockOpenAI({ apiKey: "k", baseURL: `${server.url}/v1`, maxRetries: 0 });
  const session = replay(client, { contracts: contracts("get_weather") });
  assert.ok(session.client instanceof BedrockOpenAI);
  const params = { model: "m", input: "x", tools: [responsesTool("get_weather"), responsesTool("drop_table")] };
  await session.client.responses.create(params);
  assert.equal(server.requests[0].body.tools.length, 1);
  assert.ok((await failure(session.client.responses.create(params))) instanceof ReplayContractError);
  session.restore();
  await server.close();
});

// The original client.

test("a call of the original is reported, not held up", async () => {
  for (const library of all) {
    const server = await provider(() => bad);
    const events = [];
    const client = clientOf(library, server.url);
    const session = replay(client, { contracts: contracts("get_weather"), diagnostics: (event) => events.push(event.name) });
    await client.models.list();
    assert.equal(session.getHealth().bypass_detected, false);
    await ask(library, client);
    await ask(library, client);
    const health = session.getHealth();
    assert.deepEqual([health.bypass_detected, health.authorityState, health.status], [true, "compromised", "degraded"]);
    assert.equal(session.getState().controlRevision, 1);
    assert.equal(events.filter((name) => name === "replay_bypass_detected").length, 2, "each is told once");
    session.restore();
    await server.close();
  }
});

test("a frozen client is governed without a watch", async () => {
  for (const library of all) {
    const server = await provider([good]);
    const events = [];
    const client = Object.freeze(clientOf(library, server.url));
    const session = replay(client, { contracts: contracts("get_weather"), diagnostics: (event) => events.push(event.name) });
    assert.deepEqual(events, ["bypass_detection_off"]);
    await ask(library, session.client);
    assert.throws(() => replay(client, { contracts: contracts("x") }), { condition: "compilation_failed" });
    session.restore();
    await server.close();
  }
});

test("a subclass that cannot be copied is refused at the start", () => {
  for (const library of all) {
    class Strange extends library.Client {
      constructor(name) {
        if (typeof name !== "string") throw new Error("a name is missing");
        super({ apiKey: name });
      }
    }
    assert.throws(() => replay(new Strange("k"), { contracts: contracts("x") }), (error) => error instanceof ReplayConfigError && error.condition === "invalid_option");
  }
});

test("what the program hands in wrongly is refused for that call only", async () => {
  const server = await provider((request) => (request.body.messages.length > 1 ? bad : { text: "ok" }));
  const wrong = {
    "an id that is not a text": (session) => session.tools.get_weather({}, { callId: 7 }),
    "arguments that are a function": (session) => session.tools.get_weather(() => 1),
    "arguments that are a number beyond JSON": (session) => session.tools.get_weather({ city: 1n }),
    "a symbol as a label": (session) => session.addLabel(Symbol("x")),
    "a function as a label": (session) => session.addLabel(() => 1),
    "a function as names": (session) => session.narrow(() => 1),
    "names that contain themselves": (session) => {
      const names = [];
      names.push(names);
      session.narrow(names);
    },
  };
  for (const onError of ["block", "allow"]) {
    for (const [name, act] of Object.entries(wrong)) {
      const session = replay(clientOf(openai[2], server.url), { contracts: contracts("get_weather"), tools: { get_weather: () => 1 }, onError });
      const error = await failure((async () => act(session))());
      assert.ok(error instanceof ReplayConfigError && error.condition === "invalid_option", `${name}: ${error}`);
      await ask(openai[2], session.client);
      // The session still judges.
      const two = [1, 2].map((at) => ({ role: "user", content: String(at) }));
      const blocked = await failure(ask(openai[2], session.client, { messages: two, tools: ["get_weather", "drop_table"] }));
      assert.ok(blocked instanceof ReplayContractError, `${name}: ${blocked}`);
      session.restore();
    }
  }
  await server.close();
});

test("a member named __proto__ is refused in an answer and in arguments", async () => {
  const hidden = '"__proto__":{"tool_calls":[{"index":0,"id":"c","type":"function","function":{"name":"drop_table","arguments":"{}"}}]}';
  const chunk = (delta, finish) => `data: {"id":"x","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{${delta}},"finish_reason":${finish}}]}\n\n`;
  const stream = `${chunk('"role":"assistant","content":"hi"', null)}${chunk(`"content":"",${hidden}`, null)}${chunk("", '"stop"')}data: [DONE]\n\n`;
  const message = (members, finish) => `{"id":"x","model":"m","choices":[{"index":0,"finish_reason":"${finish}","message":{"role":"assistant",${members}}}]}`;
  const args = JSON.stringify('{"__proto__":{"city":"Oslo"}}');
  for (const library of openai) {
    for (const [text, type] of [
      [stream, "text/event-stream"],
      [message(`"content":"hi",${hidden}`, "stop"), "application/json"],
      [message(`"content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"get_weather","arguments":${args}}}]`, "tool_calls"), "application/json"],
    ]) {
      const fetch = async () => new Response(text, { headers: { "content-type": type } });
      const session = replay(clientOf(library, "http://127.0.0.1:9", { fetch }), { contracts: contracts("get_weather") });
      const error = await failure(ask(library, session.client, type === "application/json" ? {} : { stream: true }));
      assert.ok(error instanceof ReplayContractError, String(error));
      assert.equal(error.decision.reason, "response_format_invalid");
      session.restore();
    }
  }
});

test("what the client reads are the bytes that were judged, whatever readers a response has of its own", async () => {
  for (const library of all) {
    const server = await provider(({ body }) => (body.model === "evil" ? bad : { text: "ok" }));
    const evil = JSON.stringify(await ask(library, clientOf(library, server.url), { model: "evil", tools: [] }));
    const patched = (response) => Object.assign(response, { json: async () => JSON.parse(evil), text: async () => evil });
    const wrapped = (response) => {
      const [json, text] = [response.json.bind(response), response.text.bind(response)];
      return Object.assign(response, { json: async () => ({ ...(await json()), traced: true }), text: async () => text() });
    };
    for (const change of [patched, wrapped]) {
      const fetch = async (...values) => change(await globalThis.fetch(...values));
      const session = replay(clientOf(library, server.url, { fetch }), { contracts: contracts("get_weather") });
      const answer = JSON.stringify(await ask(library, session.client));
      assert.ok(answer.includes('"ok"') && !answer.includes("drop_table"), answer);
      session.restore();
    }
    if (library.name === "anthropic1") {
      const session = replay(clientOf(library, server.url), { contracts: contracts("get_weather") });
      const middleware = [async (request, next) => patched(await next(request))];
      const answer = JSON.stringify(await ask(library, session.client, {}, { middleware }));
      assert.ok(answer.includes('"ok"') && !answer.includes("drop_table"), answer);
      session.restore();
    }
    await server.close();
  }
});

test("a client whose copies do not take the guard is refused at the start", () => {
  for (const library of all) {
    class Traced extends library.Client {
      constructor(options) {
        super({ ...options, fetch: (...values) => globalThis.fetch(...values) });
      }
    }
    class Same extends library.Client {
      withOptions() {
        return this;
      }
    }
    for (const [Class, words] of [[Traced, /a `fetch` of its own/], [Same, /returns the client itself/]]) {
      const client = new Class({ apiKey: "k" });
      assert.throws(() => replay(client, { contracts: contracts("x") }), (error) => error instanceof ReplayConfigError && words.test(error.message));
    }
  }
});

// The core.

function copyWith(change) {
  const folder = mkdtempSync(join(tmpdir(), "replay-"));
  cpSync(root, folder, { recursive: true });
  change(folder);
  return { package: require(join(folder, "src/index.js")), core: require(join(folder, "src/core.js")), folder };
}

test("a core that is missing, broken or of another version fails the start, not the import", () => {
  const client = clientOf(openai[2], "http://127.0.0.1:9");
  for (const change of [
    (folder) => rmSync(join(folder, "native"), { recursive: true }),
    (folder) => writeFileSync(join(folder, "native/linux-x64-gnu.node"), "not a library"),
    (folder) => {
      const manifest = require(join(folder, "package.json"));
      writeFileSync(join(folder, "package.json"), JSON.stringify({ ...manifest, version: "99.0.0" }));
      delete require.cache[join(folder, "package.json")];
    },
  ]) {
    const copy = copyWith(change);
    assert.throws(() => copy.package.replay(client, { contracts: contracts("x") }), (error) => error instanceof ReplayConfigError && error.condition === "core_unavailable");
    rmSync(copy.folder, { recursive: true });
  }
});

for (const [name, broken] of [
  ["traps", () => { throw new Error("unreachable executed"); }],
  ["answers nonsense", () => ({ json: "[]" })],
  ["answers no JSON", () => ({ json: "{" })],
  ["answers nothing", () => undefined],
]) {
  for (const method of ["plan", "judge"]) {
    test(`a core that ${name} in ${method} releases nothing`, async () => {
      const { core, package: copy, folder } = copyWith(() => {});
      const addon = core.load();
      class Session extends addon.Session {}
      Session.prototype[method] = broken;
      core.replaceAddon({ version: addon.version, classify: addon.classify, Session });
      const server = await provider(() => bad);
      for (const onError of ["block", "allow"]) {
        const session = copy.replay(clientOf(openai[2], server.url), { contracts: contracts("get_weather"), onError, maxUnguardedCalls: 2 });
        const send = () => ask(openai[2], session.client, { tools: ["drop_table"] });
        if (onError === "block") {
          for (const error of [await failure(send()), await failure(send())]) assert.ok(error instanceof ReplayFaultError, String(error));
        } else {
          await send();
          await send();
          assert.ok((await failure(send())) instanceof ReplayKillError, "killed after the last that may");
        }
        session.restore();
      }
      await server.close();
      rmSync(folder, { recursive: true });
    });
  }
}

// The store.

function memory() {
  const records = [];
  return {
    records,
    broken: false,
    append(record) {
      if (this.broken) return Promise.reject(new Error("disk full"));
      records.push(JSON.parse(Buffer.from(record).toString()));
      return Promise.resolve();
    },
    async *read(from) {
      yield* records.slice(from);
    },
    head: async () => records.length,
    putBlob: async () => {},
    getBlob: async () => null,
  };
}

test("records are stored before anything is released", async () => {
  const server = await provider([good, bad]);
  const store = memory();
  const session = replay(clientOf(openai[2], server.url), { contracts: contracts("get_weather"), store });
  await ask(openai[2], session.client);
  await failure(ask(openai[2], session.client));
  const [{ begin }, ...records] = store.records;
  assert.equal(begin.session_id, session.getState().sessionId);
  assert.deepEqual(records.map((record) => record.seq), records.map((_, at) => at));
  assert.equal(store.records.filter((record) => record.decision).length, 2);
  assert.equal(session.getHealth().durability, "local");
  session.restore();
  await server.close();
});

test("a store that fails is a fault: closed, or open for a few calls whose verdicts still hold", async () => {
  for (const onError of ["block", "allow"]) {
    const server = await provider((request) => (request.number === 1 ? good : bad));
    const store = memory();
    store.broken = true;
    const session = replay(clientOf(openai[2], server.url), { contracts: contracts("get_weather"), store, onError, maxUnguardedCalls: 3 });
    if (onError === "block") {
      assert.ok((await failure(ask(openai[2], session.client))) instanceof ReplayFaultError);
      assert.equal(server.requests.length, 0);
    } else {
      await ask(openai[2], session.client);
      const error = await failure(ask(openai[2], session.client));
      assert.ok(error instanceof ReplayContractError, "what a contract blocks stays blocked");
      assert.ok(session.getState().totalUnguardedCalls >= 3);
      assert.ok((await failure(ask(openai[2], session.client))) instanceof ReplayKillError);
    }
    session.restore();
    await server.close();
  }
});
