// What a session does, in local mode: gates, narrowing, people, labels, executors, snapshots, ends.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { test } from "node:test";
import * as esm from "@reprise/replay";
import { all, anthropic, ask, call, chatTool, clientOf, contracts, isOpenAi, openai } from "./clients.mjs";
import { provider } from "./provider.mjs";

const { replay, observe, ReplayContractError, ReplayKillError, ReplayConfigError, ReplayInactiveError, ReplayTimeoutError } = esm;
const commonjs = createRequire(import.meta.url)("@reprise/replay");

const good = { calls: [call("get_weather", { city: "Oslo" })] };
const bad = { calls: [call("drop_table", { city: "Oslo" })] };
const mixed = { text: "Both.", calls: [call("get_weather", { city: "Oslo" }, "a"), call("drop_table", {}, "b")] };
const limited = [{ tool: "get_weather", side_effect: "read", argument_value_invariants: [{ path: "$.city", one_of: ["Oslo"] }] }];

/** Names of diagnostics. */
const heard = [];

/** Runs a test with a provider, a client and a session. */
function governed(name, libraries, script, options, body) {
  for (const library of libraries) {
    test(`${library.name}: ${name}`, async () => {
      const server = await provider(typeof script === "function" ? script : [...script]);
      const client = clientOf(library, server.url);
      const given = typeof options === "function" ? options() : options;
      const session = replay(client, { contracts: contracts("get_weather"), ...given });
      try {
        await body({ library, server, client, session, given, ask: (params, extra) => ask(library, session.client, params, extra) });
      } finally {
        session.restore();
        await server.close();
      }
    });
  }
}

const failure = (promise) => promise.then(() => assert.fail("it was released"), (error) => error);
const callsOf = (message) => (message.choices ? (message.choices[0].message.tool_calls ?? []).map((call) => call.function.name) : message.content.filter((block) => block.type === "tool_use").map((block) => block.name));
const collect = async (stream) => {
  const events = [];
  for await (const event of stream) events.push(event);
  return events;
};

for (const stream of [false, true]) {
  governed(`reject_all refuses the whole response (stream: ${stream})`, all, [mixed], {}, async ({ library, session, ask }) => {
    const error = await failure(ask({ tools: ["get_weather", "drop_table"], stream }));
    assert.ok(error instanceof ReplayContractError && error instanceof esm.ReplayError && error instanceof Error);
    const Base = library.Client.OpenAIError ?? library.Client.AnthropicError;
    assert.ok(error instanceof Base, "also an error of the client's library");
    assert.equal(error.status, 403);
    assert.equal(error.headers, undefined);
    assert.equal(error.decision.action, "rejected");
    assert.equal(error.decision.reason, "unmatched_tool_blocked");
    assert.deepEqual(error.decision.calls.map((call) => [call.tool_name, call.verdict]), [["get_weather", "allow"], ["drop_table", "block"]]);
    assert.ok(Array.isArray(error.failures));
    assert.equal(error.sessionId, session.getState().sessionId);
    assert.equal(session.getState().totalBlockCount, 1);
    assert.equal(session.getState().totalToolCalls, 0);
  });

  governed(`strip_partial removes what is blocked (stream: ${stream})`, all, [mixed, bad], { gate: "strip_partial" }, async ({ ask, session }) => {
    const answer = await ask({ tools: ["get_weather", "drop_table"], stream });
    if (stream) {
      const text = JSON.stringify(await collect(answer));
      assert.ok(text.includes("get_weather") && !text.includes("drop_table"), text);
    } else assert.deepEqual(callsOf(answer), ["get_weather"]);
    assert.ok((await failure(ask({ tools: ["drop_table"], stream }))) instanceof ReplayContractError);
    assert.equal(session.getState().totalToolCalls, 1);
  });

  governed(`strip_blocked leaves text (stream: ${stream})`, all, [bad], { gate: "strip_blocked" }, async ({ ask }) => {
    const answer = await ask({ tools: ["drop_table"], stream });
    const text = JSON.stringify(stream ? await collect(answer) : answer);
    assert.ok(text.includes("This action is not available right now.") && !text.includes("drop_table"), text);
  });
}

governed("tools that cannot be called do not reach the model", all, [{ text: "ok" }], {}, async ({ session, server, ask }) => {
  session.narrow(["other"]);
  await ask();
  assert.equal(server.requests[0].body.tools, undefined);
  assert.deepEqual(session.getLastNarrowing(), { allowed: [], removed: [{ tool: "get_weather", reason: "manual_filter", contract_file: "" }] });
  assert.deepEqual(session.getState().lastNarrowing, session.getLastNarrowing());
  session.widen();
});

test("onNarrow gets the caller's own tool objects, and leaves them as they are", async () => {
  const server = await provider([{ text: "ok" }]);
  const seen = [];
  const session = replay(clientOf(openai[2], server.url), { contracts: contracts("get_weather"), onNarrow: (result) => seen.push(result) });
  const tools = ["drop_table", "get_weather"].map((name) => ({ type: "function", function: { name, parameters: { type: "object" } } }));
  await session.client.chat.completions.create({ model: "m", messages: [{ role: "user", content: "x" }], tools });
  assert.equal(seen.length, 1);
  assert.equal(seen[0].allowed[0], tools[1]);
  assert.ok(!Object.isFrozen(tools[1]));
  assert.deepEqual(seen[0].removed, [{ tool: "drop_table", reason: "no_contract" }]);
  assert.deepEqual(server.requests[0].body.tools, [tools[1]]);
  session.restore();
  await server.close();
});

governed("inject tells the model which tools are gone", all, [{ text: "ok" }], { narrowingFeedback: "inject" }, async ({ library, server, ask }) => {
  await ask({ tools: ["get_weather", "drop_table"] });
  const { body } = server.requests[0];
  const told = isOpenAi(library) ? body.messages[0].content : body.system[0].text ?? body.system;
  assert.match(told, /^These tools are not available now: drop_table \(no_contract\)/);
});

governed("a blocked response is asked for again", all, [bad, good], { maxRetries: 1 }, async ({ ask, session, server }) => {
  assert.deepEqual(callsOf(await ask({ tools: ["get_weather", "drop_table"] })), ["get_weather"]);
  assert.equal(server.requests.length, 2);
  assert.equal(session.getState().attemptCount, 2);
});

test("callbacks run once per blocked response, and cannot change a verdict", async () => {
  const server = await provider([bad, bad]);
  const seen = [];
  const events = [];
  const session = replay(clientOf(openai[2], server.url), {
    contracts: contracts("get_weather"),
    maxRetries: 1,
    diagnostics: (event) => events.push(event),
    onBlock: (decision) => {
      seen.push(decision.action);
      throw new Error("callback");
    },
  });
  assert.ok((await failure(ask(openai[2], session.client))) instanceof ReplayContractError);
  assert.deepEqual(seen, ["retried", "rejected"]);
  assert.ok(events.some((event) => event.name === "callback_failed" && event.data.error === "callback"));
  assert.ok(events.some((event) => event.name === "retried"));
  for (const event of events) assert.deepEqual(Object.keys(event).sort(), ["data", "name", "session_id", "state_version", "time"]);
  session.restore();
  await server.close();
});

test("what JSON.parse would lose is blocked: members that stand twice, numbers that no double holds", async () => {
  for (const library of anthropic) {
    for (const input of ['{"city":"Oslo","city":"Rome"}', '{"city":"Oslo","n":9007199254740993}', '{"city":"Oslo","n":1e400}']) {
      const server = await provider([{ calls: [call("get_weather", input)] }]);
      const session = replay(clientOf(library, server.url), { contracts: contracts("get_weather") });
      const error = await failure(ask(library, session.client));
      assert.equal(error.decision?.reason, "response_format_invalid", input);
      session.restore();
      await server.close();
    }
  }
});

governed("kill stops what is under way and everything after", all, [{ text: "late", delay: 200 }], {}, async ({ session, server, ask }) => {
  const waiting = failure(ask());
  while (server.requests.length === 0) await new Promise((resolve) => setTimeout(resolve, 5));
  session.kill();
  for (const error of [await waiting, await failure(ask())]) {
    assert.ok(error instanceof ReplayKillError, error);
    assert.equal(error.cause_of_kill, "killed by the program");
  }
  assert.equal(server.requests.length, 1);
  assert.equal(session.getState().killed, true);
  assert.equal(session.getHealth().authorityState, "killed");
  session.kill();
  session.addLabel("late");
});

governed("restore gives the client back and ends the wrapper", all, [{ text: "a" }, { text: "b" }], { sessionId: "one" }, async ({ library, client, session, server, ask: governedAsk }) => {
  const watched = client.fetch;
  await governedAsk();
  session.restore();
  session.restore();
  assert.notEqual(client.fetch, watched);
  assert.ok((await failure(governedAsk())) instanceof ReplayInactiveError);
  await ask(library, client);
  assert.equal(server.requests.length, 2);
  const again = replay(client, { contracts: contracts("get_weather") });
  assert.equal(again.getHealth().bypass_detected, false);
  again.restore();
});

test("the original keeps its members and their values after restore", async () => {
  for (const library of all) {
    const client = clientOf(library, "http://127.0.0.1:9");
    const before = Object.getOwnPropertyDescriptors(client);
    replay(client, { contracts: contracts("get_weather") }).restore();
    const after = Object.getOwnPropertyDescriptors(client);
    assert.deepEqual(Reflect.ownKeys(after), Reflect.ownKeys(before));
    for (const name of Reflect.ownKeys(before)) assert.equal(after[name].value, before[name].value);
  }
});

governed("a client has one session or observer at a time", all, [], {}, async ({ client, session }) => {
  const copy = session.client.withOptions({});
  for (const again of [() => replay(client, { contracts: contracts("x") }), () => observe(client), () => replay(session.client, { contracts: contracts("x") }), () => observe(copy)]) {
    assert.throws(again, (error) => error instanceof ReplayConfigError && error.condition === "compilation_failed");
  }
});

governed("the governed client is an instance of the client's class, and so are its copies", all, [good, bad], {}, async ({ library, session, server }) => {
  assert.ok(session.client instanceof library.Client);
  const copy = session.client.withOptions({ timeout: 1234 });
  assert.ok(copy instanceof library.Client);
  assert.equal(copy.timeout, 1234);
  await ask(library, copy);
  assert.ok((await failure(ask(library, copy, { tools: ["drop_table"] }))) instanceof ReplayContractError);
  assert.equal(server.requests.length, 2);
});

governed("a fetch that is given later is governed too", all, [], {}, async ({ library, session }) => {
  const sent = [];
  const fetch = async (url, init) => {
    sent.push(JSON.parse(init.body));
    return new Response("{}", { status: 500, headers: { "content-type": "application/json" } });
  };
  const copy = session.client.withOptions({ fetch });
  await failure(ask(library, copy, { tools: ["get_weather", "drop_table"] }));
  assert.equal(sent.length, 1);
  assert.equal(sent[0].tools.length, 1);
});

// People.

const checked = [{ tool: "get_weather", side_effect: "read", checkpoint: { reason: "somebody looks", timeout_seconds: 1, context: [{ label: "city", path: "$.city" }] } }];
const approve = (request) => ({ checkpoint_id: request.checkpoint_id, decision: "approve", decided_by: "ann", decided_at: new Date().toISOString() });

governed("a person approves", all, [good], () => ({ contracts: checked, onCheckpoint: async (request) => {
  assert.deepEqual(Object.keys(request).sort(), ["arguments", "checkpoint_id", "context", "reason", "requested_at", "session_id", "timeout_seconds", "tool_name"]);
  assert.deepEqual(request.arguments, { city: "Oslo" });
  assert.deepEqual(request.context, [{ label: "city", value: "Oslo" }]);
  return approve(request);
} }), async ({ ask, session }) => {
  assert.deepEqual(callsOf(await ask()), ["get_weather"]);
  assert.equal(session.getState().checkpointCount, 1);
});

for (const [name, reason, onCheckpoint] of [
  ["denies", "checkpoint_denied", async (request) => ({ ...approve(request), decision: "deny" })],
  ["answers nonsense", "checkpoint_denied", async () => ({ decision: "approve" })],
  ["answers for another question", "checkpoint_denied", async (request) => ({ ...approve(request), checkpoint_id: "other" })],
  ["decided at no time", "checkpoint_denied", async (request) => ({ ...approve(request), decided_at: "yesterday" })],
  ["decided long ago", "checkpoint_denied", async (request) => ({ ...approve(request), decided_at: "2001-01-01T00:00:00Z" })],
  ["decides in the future", "checkpoint_denied", async (request) => ({ ...approve(request), decided_at: "2099-01-01T00:00:00Z" })],
  ["throws", "checkpoint_denied", async () => { throw new Error("no"); }],
  ["answers nothing", "checkpoint_denied", async () => undefined],
  ["stays silent", "checkpoint_timeout", () => new Promise(() => {})],
]) {
  governed(`a person ${name}`, name === "stays silent" ? [openai[2], anthropic[1]] : all, [good], { contracts: checked, onCheckpoint }, async ({ ask, session }) => {
    const error = await failure(ask());
    assert.ok(error instanceof ReplayContractError);
    assert.equal(error.decision.reason, reason);
    assert.ok(!/timed?\s?out/i.test(error.message), error.message);
    assert.equal(session.getState().totalToolCalls, 0);
  });
}

governed("an abort while a person decides closes the question", all, [good, { text: "ok" }], () => {
  const given = { contracts: checked };
  given.onCheckpoint = () => new Promise(() => given.onCheckpoint.asked());
  return given;
}, async ({ ask, given, session }) => {
  const controller = new AbortController();
  given.onCheckpoint.asked = () => controller.abort();
  const error = await failure(ask({}, { signal: controller.signal }));
  assert.equal(error.constructor.name, "APIUserAbortError");
  const state = session.getState();
  assert.deepEqual([state.totalToolCalls, state.totalStepCount, state.totalBlockCount], [0, 0, 0]);
  await ask({ tools: [] });
});

governed("a kill while a person decides", all, [good], () => {
  const given = { contracts: checked };
  given.onCheckpoint = () => new Promise(() => given.onCheckpoint.asked());
  return given;
}, async ({ ask, given, session }) => {
  given.onCheckpoint.asked = () => session.kill();
  assert.ok((await failure(ask())) instanceof ReplayKillError);
  assert.equal(session.getState().totalToolCalls, 0);
});

governed("a session can be used from inside a question", all, [good, { text: "advice" }], () => {
  const given = { contracts: checked };
  given.onCheckpoint = async (request) => {
    await given.onCheckpoint.inside();
    return approve(request);
  };
  return given;
}, async ({ ask, given, session }) => {
  given.onCheckpoint.inside = () => ask({ tools: [] });
  assert.deepEqual(callsOf(await ask()), ["get_weather"]);
  assert.equal(session.getState().totalStepCount, 2);
});

// Labels.

governed("labels close tools and never come off", all, [good], { labels: ["first"] }, async ({ session, ask }) => {
  session.addLabel("second");
  session.addLabel("second");
  assert.deepEqual(session.getState().labels, ["first", "second"]);
  assert.equal(session.getState().controlRevision, 1);
  for (const label of ["", "not a label", "x".repeat(129), 7]) {
    assert.throws(() => session.addLabel(label), (error) => error instanceof ReplayConfigError && error.condition === "invalid_option");
  }
  await ask();
});

// Modes.

governed("shadow changes nothing and says what it would have done", all, [bad], { mode: "shadow" }, async ({ session, ask, server }) => {
  assert.deepEqual(callsOf(await ask({ tools: ["get_weather", "drop_table"] })), ["drop_table"]);
  assert.equal(server.requests[0].body.tools.length, 2);
  const delta = session.getLastShadowDelta();
  assert.deepEqual(delta.would_have_narrowed, [{ tool: "drop_table", reason: "no_contract" }]);
  assert.equal(delta.would_have_blocked[0].tool_name, "drop_table");
  assert.equal(session.getHealth().shadowEvaluations, 1);
  assert.equal(session.getHealth().protectionLevel, "monitor");
});

governed("advisory enforcement reports and blocks nothing", all, [bad], { compatEnforcement: "advisory", diagnostics: (event) => heard.push(event.name) }, async ({ session, ask }) => {
  heard.length = 0;
  assert.deepEqual(callsOf(await ask({ tools: ["drop_table"] })), ["drop_table"]);
  assert.ok(heard.includes("violation"));
  assert.equal(session.getLastShadowDelta(), null);
});

test("observe records and enforces nothing", async () => {
  for (const library of all) {
    const server = await provider([bad]);
    const watching = observe(clientOf(library, server.url), { agent: "desk" });
    assert.deepEqual(callsOf(await ask(library, watching.client, { tools: ["drop_table"] })), ["drop_table"]);
    assert.deepEqual(await watching.flush(), { sent: 0, dropped: 0, pending: 0 }, "nobody keeps anything");
    assert.throws(() => observe(clientOf(library, server.url), { gate: "reject_all" }), ReplayConfigError);
    watching.restore();
    await server.close();
  }
});

// Executors.

test("a wrapped tool runs only as it was allowed, and its end is reported", async () => {
  const server = await provider([good, good, good]);
  const ran = [];
  const events = [];
  const session = replay(clientOf(openai[2], server.url), {
    contracts: [{ tool: "get_weather", side_effect: "read", timeouts: { total_ms: 100 }, allowed_errors: [{ code: "expected" }] }],
    onBlock: (decision) => events.push(decision.reason),
    tools: {
      get_weather: async (args, context) => {
        ran.push([args, context]);
        if (ran.length === 2) throw Object.assign(new Error("no such city"), { code: "expected" });
        if (ran.length === 3) return new Promise((resolve) => setTimeout(() => resolve({ sky: "late" }), 300));
        return { sky: "blue" };
      },
    },
  });
  const run = () => session.tools.get_weather({ city: "Oslo" }, { callId: "call_1" });
  assert.ok((await failure(run())) instanceof ReplayContractError, "nothing was proposed");
  await ask(openai[2], session.client);
  assert.equal(session.getState().totalToolCalls, 0, "pending");
  assert.ok((await failure(session.tools.get_weather({ city: "Rome" }, { callId: "call_1" }))) instanceof ReplayContractError);
  assert.deepEqual(await run(), { sky: "blue" });
  assert.equal(session.getState().totalToolCalls, 1);
  assert.deepEqual(ran[0][0], { city: "Oslo" });
  assert.equal(ran[0][1].callId, "call_1");
  assert.equal(ran[0][1].sessionId, session.getState().sessionId);
  assert.ok(ran[0][1].signal instanceof AbortSignal);
  await ask(openai[2], session.client);
  assert.equal((await failure(run())).message, "no such city");
  await ask(openai[2], session.client);
  assert.ok((await failure(run())) instanceof ReplayTimeoutError);
  assert.equal(ran[2][1].signal.aborted, true);
  assert.equal(session.getHealth().unresolvedReceiptCount, 1);
  await new Promise((resolve) => setTimeout(resolve, 400));
  assert.equal(session.getHealth().unresolvedReceiptCount, 0);
  assert.equal(session.getState().totalToolCalls, 2);
  assert.deepEqual(events, ["execution_constraint_violated", "execution_constraint_violated"]);
  session.kill();
  assert.ok((await failure(run())) instanceof ReplayKillError);
  await server.close();
});

// Snapshots.

governed("snapshots have the published members, are frozen, and new each time", all, [good], { pricing: { "openai/gpt-test": { input: 2, output: "8" }, "anthropic/claude-test": { input: 2, output: "8" } } }, async ({ session, ask }) => {
  await ask();
  const state = session.getState();
  const published = ["sessionId", "agent", "principal", "startedAt", "stateVersion", "controlRevision", "currentPhase", "totalStepCount", "totalToolCalls", "totalCost", "actualCost", "toolCallCounts", "forbiddenTools", "satisfiedPreconditions", "lastStep", "lastNarrowing", "killed", "totalUnguardedCalls", "consecutiveBlockCount", "totalBlockCount"];
  for (const name of published) assert.ok(name in state, name);
  const added = Object.keys(state).filter((name) => !published.includes(name)).sort();
  assert.deepEqual(added, ["attemptCount", "checkpointCount", "exactCosts", "labels"]);
  assert.ok(state.startedAt instanceof Date && Math.abs(Date.now() - state.startedAt) < 60_000);
  assert.deepEqual([state.principal, state.agent, state.currentPhase, state.killed], [null, null, null, false]);
  assert.deepEqual(state.toolCallCounts, { get_weather: 1 });
  assert.deepEqual(state.lastStep, { index: 1, phaseBefore: null, phaseAfter: null, tools: ["get_weather"], cost: 0.00006 });
  assert.equal(state.totalCost, 0.00006);
  assert.deepEqual(state.exactCosts, { total: "0.00006", actual: "0.00006", incomplete: false });
  assert.ok(Object.isFrozen(state) && Object.isFrozen(state.lastStep) && Object.isFrozen(state.lastNarrowing.allowed));
  assert.notEqual(state, session.getState());
  const health = session.getHealth();
  for (const name of ["status", "authorityState", "protectionLevel", "durability", "tier", "compatEnforcement", "cluster_detected", "bypass_detected", "totalSteps", "totalBlocks", "totalErrors", "killed", "shadowEvaluations"]) assert.ok(name in health, name);
  assert.deepEqual([health.status, health.authorityState, health.protectionLevel, health.tier], ["healthy", "active", "protect", "compat"]);
  assert.deepEqual(session.tools, {});
  assert.deepEqual([await session.getWorkflowState(), await session.handoff({})], [null, null]);
});

// Errors and options.

test("errors are recognised between copies of the package and module systems", async () => {
  assert.equal(commonjs.replay, esm.replay);
  const copy = createRequire(import.meta.url);
  const path = copy.resolve("@reprise/replay");
  for (const cached of Object.keys(copy.cache)) if (cached.includes("@reprise")) delete copy.cache[cached];
  const second = copy(path);
  assert.notEqual(second.ReplayConfigError, esm.ReplayConfigError);
  const error = new second.ReplayConfigError("x", { condition: "invalid_option" });
  assert.ok(error instanceof esm.ReplayConfigError && error instanceof esm.ReplayError && error instanceof Error);
  assert.ok(!(error instanceof esm.ReplayKillError) && !({} instanceof esm.ReplayError) && !(null instanceof esm.ReplayError));
  class Own extends esm.ReplayError {}
  assert.ok(!(error instanceof Own));
  const client = clientOf(openai[2], "http://127.0.0.1:9");
  const session = esm.replay(client, { contracts: contracts("x") });
  assert.throws(() => second.replay(client, { contracts: contracts("x") }), { condition: "compilation_failed" });
  session.restore();
});

test("a client of the other module system is governed as well", async () => {
  for (const library of all) {
    const server = await provider([bad]);
    const Client = library.CommonJs;
    const client = new Client({ apiKey: "k", baseURL: isOpenAi(library) ? `${server.url}/v1` : server.url, maxRetries: 0 });
    const session = replay(client, { contracts: contracts("get_weather") });
    const error = await failure(ask(library, session.client, { tools: ["drop_table"] }));
    assert.ok(error instanceof ReplayContractError && error instanceof (Client.OpenAIError ?? Client.AnthropicError));
    session.restore();
    await server.close();
  }
});

test("helpers pass a contract error on as it is", async () => {
  for (const library of all) {
    const server = await provider(() => bad);
    const session = replay(clientOf(library, server.url), { contracts: contracts("get_weather") });
    const { client } = session;
    const messages = [{ role: "user", content: "x" }];
    const tool = isOpenAi(library) ? { type: "function", function: { name: "drop_table", parameters: { type: "object" }, parse: JSON.parse, function: () => assert.fail("it ran") } } : { name: "drop_table", input_schema: { type: "object" } };
    const ways = isOpenAi(library)
      ? [
          () => client.chat.completions.stream({ model: "m", messages, tools: [tool] }).finalChatCompletion(),
          () => client.chat.completions.runTools({ model: "m", messages, tools: [tool] }).finalContent(),
          () => client.responses.stream({ model: "m", input: "x", tools: [{ type: "function", name: "drop_table", parameters: { type: "object" }, strict: false }] }).finalResponse(),
          () => client.chat.completions.create({ model: "m", messages, tools: [tool] }).withResponse(),
          () => client.chat.completions.create({ model: "m", messages, tools: [tool] }).asResponse(),
          () => client.post("/chat/completions", { body: { model: "m", messages, tools: [tool] } }),
        ]
      : [
          () => client.messages.stream({ model: "m", max_tokens: 9, messages, tools: [tool] }).finalMessage(),
          () => client.beta.messages.create({ model: "m", max_tokens: 9, messages, tools: [tool] }),
          () => client.messages.create({ model: "m", max_tokens: 9, messages, tools: [tool] }).asResponse(),
          () => client.post("/v1/messages", { body: { model: "m", max_tokens: 9, messages, tools: [tool] } }),
        ];
    for (const [at, way] of ways.entries()) {
      const error = await failure(way());
      assert.ok(error instanceof ReplayContractError, `${library.name} ${at}: ${error}`);
    }
    assert.equal(server.requests.length, ways.length, "nothing is tried again");
    session.restore();
    await server.close();
  }
});

test("everything that is wrong with options is said at once", () => {
  const cycle = {};
  cycle.self = cycle;
  const client = clientOf(openai[2], "http://127.0.0.1:9");
  const error = (() => {
    try {
      replay(client, { contracts: contracts("x"), colour: "red", maxRetries: 6, sessionId: "a b", principal: cycle, onBlock: "yes", labels: ["not ok!"], gate: "maybe", tools: { a: 1 } });
    } catch (error) {
      return error;
    }
    return assert.fail("it started");
  })();
  assert.ok(error instanceof ReplayConfigError);
  assert.equal(error.condition, "invalid_option");
  for (const name of ["colour", "sessionId", "principal", "onBlock", "gate", "tools.a"]) assert.ok(error.findings.some((finding) => finding.includes(`\`${name}\``)), name);
  for (const [options, condition] of [
    [{}, "invalid_option"],
    [{ contracts: contracts("x"), maxRetries: 6 }, "invalid_option"],
    [{ contracts: contracts("x"), principal: 1n }, "invalid_option"],
    [{ contracts: contracts("x"), principal: NaN }, "invalid_option"],
    [{ contracts: contracts("x"), principal: () => {} }, "invalid_option"],
    [{ contracts: [{ tool: "x" }] }, "compilation_failed"],
    [{ contracts: [...contracts("x"), ...contracts("x")] }, "compilation_failed"],
    [{ contractsDir: "no/such/folder" }, "compilation_failed"],
    [{ contracts: [{ tool: "x", side_effect: "read", policy: { rules: [{ id: "a", effect: "allow", when: [] }] } }] }, "policy_without_principal"],
    [{ contracts: [{ tool: "x", side_effect: "read", execution_constraints: { arguments: [{ path: "$.a", exists: true }] } }] }, "constraints_without_wrapper"],
    [{ contracts: checked }, "checkpoint_without_handler"],
  ]) {
    assert.throws(() => replay(client, options), (error) => error instanceof ReplayConfigError && error.condition === condition || assert.fail(`${JSON.stringify(Object.keys(options))}: ${error.condition} ${error.message}`));
  }
  for (const other of [null, {}, { chat: {} }, "client"]) {
    assert.throws(() => replay(other, { contracts: contracts("x") }), { condition: "invalid_option" });
  }
  replay(client, { mode: "log-only" }).restore();
});

test("contracts are read from a folder, with the session file", async () => {
  const server = await provider([{ calls: [call("find_order", { order_id: "A", city: "Oslo" })] }]);
  const client = clientOf(openai[2], server.url);
  const options = { contractsDir: new URL("../examples/refund-desk/contracts", import.meta.url).pathname, principal: { role: "desk", trainee: false }, onCheckpoint: async () => {}, pricing: { "openai/gpt-test": { input: 1, output: 1 } }, tools: { pay_back: async () => ({}) } };
  const session = replay(client, options);
  assert.equal(session.getState().agent, "return-desk");
  assert.equal(session.getState().currentPhase, "intake");
  await ask(openai[2], session.client, { tools: ["find_order", "assess_return", "pay_back", "send_note"] });
  assert.deepEqual(session.getLastNarrowing().removed.map(({ tool, reason, contract_file }) => [tool, reason, contract_file]), [["assess_return", "wrong_phase", "assess_return.yaml"], ["pay_back", "wrong_phase", "pay_back.yaml"]]);
  assert.equal(session.getState().currentPhase, "order_known");
  session.restore();
  await server.close();
});

governed("provider errors leave the session as it was", all, [{ status: 500, body: { error: {} } }, good], {}, async ({ ask, session }) => {
  assert.equal((await failure(ask())).status, 500);
  assert.equal(session.getHealth().totalErrors, 1);
  await ask();
  assert.equal(session.getState().totalStepCount, 1);
});

for (const how of ["cut", "stop"]) {
  governed(`a stream that ends before its end is an error, and nothing of it is released (${how})`, all, [{ ...good, text: "half", [how]: true }], {}, async ({ ask, session }) => {
    const error = await failure(ask({ stream: true }));
    assert.equal(error.constructor.name, "APIConnectionError", String(error));
    assert.equal(session.getState().totalStepCount, 0);
  });
}

governed("a body that is cut is an error", all, [{ ...good, cut: true }], {}, async ({ ask, session }) => {
  assert.ok(await failure(ask()));
  assert.equal(session.getState().totalStepCount, 0);
});

governed("abort during the call is the client's own error", all, [{ ...good, delay: 1000 }, { ...good, pause: 1000 }], {}, async ({ ask, session, server }) => {
  for (const stream of [false, true]) {
    const controller = new AbortController();
    const number = server.requests.length;
    const waiting = failure(ask({ stream }, { signal: controller.signal }));
    while (server.requests.length === number) await new Promise((resolve) => setTimeout(resolve, 5));
    setTimeout(() => controller.abort(), 20);
    assert.equal((await waiting).constructor.name, "APIUserAbortError");
  }
  const state = session.getState();
  assert.deepEqual([state.totalStepCount, state.totalBlockCount], [0, 0]);
});

governed("arguments are judged by the contract", all, [{ calls: [call("get_weather", { city: "Rome" })] }], { contracts: limited }, async ({ ask }) => {
  const error = await failure(ask());
  assert.equal(error.decision.reason, "argument_value_mismatch");
  assert.deepEqual(error.failures.map(({ path, operator, reason }) => [path, operator, reason]), [["$.city", "one_of", "argument_value_mismatch"]]);
  assert.match(error.message, /^blocked by contract: get_weather: argument_value_mismatch/);
  assert.equal(JSON.parse(JSON.stringify(error.decision)).calls.length, 1);
});

test("two responses at once are both judged", async () => {
  const server = await provider((request) => (request.number === 1 ? { ...good, delay: 100 } : good));
  const session = replay(clientOf(openai[2], server.url), { contracts: contracts("get_weather") });
  await Promise.all([ask(openai[2], session.client), ask(openai[2], session.client)]);
  assert.equal(session.getState().totalStepCount, 2);
  session.restore();
  await server.close();
});

test("keywords of a schema that nothing checks are told once", async () => {
  const server = await provider(() => ({ text: "ok" }));
  const heard = [];
  const session = replay(clientOf(openai[2], server.url), { contracts: contracts("get_weather"), diagnostics: (event) => heard.push(event) });
  const tools = [chatTool("get_weather", { type: "object", properties: { city: { type: "string", format: "city" } }, anyOf: [] })];
  for (let at = 0; at < 2; at += 1) await session.client.chat.completions.create({ model: "m", messages: [{ role: "user", content: "x" }], tools });
  const told = heard.filter(({ name }) => name === "schema_keyword_ignored");
  assert.deepEqual(told.map(({ data }) => data), [{ tool: "get_weather", keywords: "anyOf, format" }]);
  session.restore();
  await server.close();
});

test("what is judged of an executor's arguments is what runs", async () => {
  const server = await provider(() => ({ calls: [call("get_weather", { city: "Oslo" })] }));
  const rule = [{ tool: "get_weather", side_effect: "read", execution_constraints: { arguments: [{ path: "$.city", equals: "Oslo" }] } }];
  const ran = [];
  const get_weather = (args) => {
    ran.push(JSON.stringify(args));
    return {};
  };
  const changing = () => {
    let reads = 0;
    return { get city() { return (reads += 1) === 1 ? "Oslo" : "Rome"; } };
  };
  const late = { city: "Oslo" };
  for (const args of [changing(), { toJSON: () => ({ city: "Oslo" }), city: "Rome" }, late]) {
    const session = replay(clientOf(openai[2], server.url), { contracts: rule, tools: { get_weather } });
    await ask(openai[2], session.client);
    late.city = "Oslo";
    const running = session.tools.get_weather(args);
    late.city = "Rome";
    await running;
    session.restore();
  }
  assert.deepEqual(ran, Array(3).fill('{"city":"Oslo"}'));
  // And what would be judged otherwise does not run.
  const session = replay(clientOf(openai[2], server.url), { contracts: rule, tools: { get_weather } });
  await ask(openai[2], session.client);
  await assert.rejects(session.tools.get_weather({ toJSON: () => ({ city: "Rome" }), city: "Oslo" }), ReplayContractError);
  assert.equal(ran.length, 3);
  session.restore();
  await server.close();
});

test("a message keeps its words where libraries would take them for a time limit", async () => {
  for (const library of all) {
    const server = await provider(() => ({ calls: [call("set_timeout", { city: "Oslo" })] }));
    const session = replay(clientOf(library, server.url, { maxRetries: 2 }), { contracts: contracts("get_weather") });
    const error = await failure(ask(library, session.client, { tools: ["get_weather"] }));
    assert.match(error.message, /set_time-out: unmatched_tool_blocked/);
    assert.doesNotMatch(String(error), /timed? ?out/i);
    assert.equal(error.decision.calls[0].tool_name, "set_timeout");
    assert.equal(server.requests.length, 1);
    session.restore();
    await server.close();
  }
});

for (const library of all) {
  for (const [name, answer, params] of [
    ["before the headers", { text: "ok", delay: 5000 }, {}],
    ["in the middle of a body", { text: "ok", pause: 5000 }, {}],
    ["in the middle of a stream", { text: "ok", pause: 5000 }, { stream: true }],
  ]) {
    for (const end of ["kill", "restore"]) {
      test(`${library.name}: ${end} stops a running request ${name}`, async () => {
        const server = await provider(() => answer);
        const session = replay(clientOf(library, server.url, { maxRetries: 2 }), { contracts: contracts("get_weather") });
        const began = Date.now();
        const waiting = failure(ask(library, session.client, { ...params, tools: [] }));
        while (server.requests.length === 0) await new Promise((resolve) => setTimeout(resolve, 5));
        await new Promise((resolve) => setTimeout(resolve, 50));
        session[end]();
        assert.equal((await waiting).name, end === "kill" ? "ReplayKillError" : "ReplayInactiveError");
        while (server.requests[0].isCut === undefined && Date.now() - began < 4000) await new Promise((resolve) => setTimeout(resolve, 5));
        assert.equal(server.requests[0].isCut, true, "the connection was cut");
        assert.equal(server.requests.length, 1, "and the request not tried again");
        await server.close();
      });
    }
  }
}
