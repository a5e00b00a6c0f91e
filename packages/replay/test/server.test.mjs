// Sessions of a server: its verdicts are what happens, people answer there, and what happened is in its log. The server is
// the real program; it is killed before, between and after what it is asked.
import assert from "node:assert/strict";
import { copyFileSync, mkdtempSync, readdirSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { replay, ReplayConfigError, ReplayContractError, ReplayFaultError, ReplayInactiveError, ReplayKillError, ReplayUnsupportedError } from "@reprise/replay";
import { anthropic, call, chatTool, clientOf, contracts, isOpenAi, messagesTool, openai } from "./clients.mjs";
import { provider } from "./provider.mjs";
import { serve, until } from "./server.mjs";

let server;
before(async () => {
  server = await serve();
});
after(() => server.close());

const desk = new URL("../examples/refund-desk/contracts/", import.meta.url);
const deskDir = desk.pathname;
const failure = (promise) => promise.then(() => assert.fail("it was released"), (error) => error);
const tools = ["find_order", "assess_return", "pay_back", "send_note"];
const library = openai[2];

/** A program at the return desk. */
async function atDesk(script, options = {}, use = library) {
  const model = await provider(script);
  const ran = [];
  const executors = {
    find_order: (args) => ran.push(["find_order", args]) && { status: "delivered" },
    assess_return: (args) => ran.push(["assess_return", args]) && { accepted: true, days_since_delivery: 4, amount_cents: options.amount ?? 12_000 },
    pay_back: (args) => ran.push(["pay_back", args]) && { paid: true },
    send_note: (args) => ran.push(["send_note", args]) && {},
  };
  const heard = [];
  const { amount, ...rest } = options;
  const session = replay(clientOf(use, model.url), {
    contractsDir: deskDir,
    principal: { role: "desk", trainee: false },
    tools: executors,
    apiKey: server.key,
    runtimeUrl: server.url,
    pricing: { "openai/gpt-test": { input: 1, output: 2 }, "anthropic/claude-test": { input: 1, output: 2 } },
    diagnostics: (event) => heard.push(event),
    ...rest,
  });
  const offered = tools.map((tool) => (isOpenAi(use) ? chatTool : messagesTool)(tool, { type: "object" }));
  const messages = [{ role: "user", content: "I sent order A back" }];
  const turn = (extra, request) =>
    isOpenAi(use)
      ? session.client.chat.completions.create({ model: "gpt-test", messages, tools: offered, ...extra }, request)
      : session.client.messages.create({ model: "claude-test", max_tokens: 100, messages, tools: offered, ...extra }, request);
  return { session, model, ran, heard, turn, names: () => heard.map((event) => event.name) };
}

const find = { calls: [call("find_order", { order_id: "A" }, "c1")] };
const assess = { calls: [call("assess_return", { order_id: "A" }, "c2")] };
const pay = (amount) => ({ calls: [call("pay_back", { order_id: "A", amount_cents: amount, currency: "EUR" }, "c3")] });

/** Brings a session as far as an assessed return. */
async function assessed({ session, turn }) {
  await turn();
  await session.tools.find_order({ order_id: "A" }, { callId: "c1" });
  await turn();
  await session.tools.assess_return({ order_id: "A" }, { callId: "c2" });
}

const shown = async (session) => (await server.ask("GET", `/api/v1/replay/sessions/${session.getState().sessionId}?include=pending`)).body;
const waiting = async () => (await server.ask("GET", "/api/v1/replay/approvals?status=pending", undefined, server.approver)).body.data;
const decide = async (approval, decision) => {
  const path = `/api/v1/replay/sessions/${approval.session_id}/proposals/${approval.proposal_id}/approve`;
  return server.ask("POST", path, { decision, decided_by: "bea@shop.example" }, server.approver);
};
const pending = (session) => until(async () => (await waiting()).find((one) => one.session_id === session.getState().sessionId));

for (const use of [library, anthropic[1]]) {
  test(`${use.name}: a session is judged, executed and receipted on the server, and its record can be explained and tested`, async () => {
    const world = await atDesk([find, assess, pay(12_000), pay(100)], { agent: "return-desk" }, use);
    const { session, turn, ran } = world;
    assert.equal(session.getHealth().tier, "strong");
    await assessed(world);
    assert.deepEqual(session.getLastNarrowing().removed.map((one) => one.tool), ["find_order", "pay_back"]);
    assert.equal(session.getState().currentPhase, "assessed");
    await turn();
    assert.equal((await shown(session)).pending.length, 1, "allowed, and not executed");
    await session.tools.pay_back({ order_id: "A", amount_cents: 12_000, currency: "EUR" }, { callId: "c3" });
    assert.deepEqual(ran.map(([name]) => name), ["find_order", "assess_return", "pay_back"]);
    const state = await shown(session);
    assert.equal(state.currentPhase, "paid");
    assert.deepEqual([session.getState().currentPhase, session.getState().labels], ["paid", ["money_moved"]]);
    assert.deepEqual([session.getState().stateVersion, session.getState().totalToolCalls], [state.stateVersion, state.totalToolCalls]);
    const health = session.getHealth();
    assert.deepEqual([health.status, health.authorityState, health.protectionLevel, health.durability], ["healthy", "active", "govern", "server"]);
    const error = await failure(turn());
    assert.ok(error instanceof ReplayContractError, String(error));
    assert.ok(error instanceof (use.Client.OpenAIError ?? use.Client.AnthropicError));
    assert.ok(error.decision.calls[0].all_reasons.includes("forbidden_tool"), JSON.stringify(error.decision));
    assert.ok(!world.names().includes("verdict_differs"), JSON.stringify(world.heard));
    assert.deepEqual(await session.flush().then(({ pending }) => pending), 0);
    session.restore();
    const task = await until(async () => {
      const { body } = await server.ask("GET", `/v1/tasks/${state.protocol.task_id}`);
      return body.status === "COMPLETED" && body.receipt_id ? body : null;
    });
    const verified = await server.ask("POST", `/v1/receipts/${task.receipt_id}/verify`, {});
    assert.equal(verified.body.valid, true);
    const receipt = await server.ask("GET", `/v1/receipts/${task.receipt_id}`);
    assert.deepEqual([receipt.body.metadata.governance.allowed, receipt.body.metadata.governance.blocked], [3, 1]);
    await explained(state.protocol);
  });
}

/** The record of a session under the commands that read records. */
async function explained({ session_id, task_id: task }) {
  const events = await server.ask("GET", `/v1/sessions/${session_id}/events?limit=100`);
  const decided = events.body.data.filter((event) => event.event === "vendor.contract_decided" && event.payload.decision);
  assert.ok(decided.length >= 4, JSON.stringify(events.body.data.map((event) => event.event)));
  writeFileSync(`${server.home}/decision.json`, JSON.stringify(decided.at(-1)));
  const said = await server.run("contracts", "explain", "decision.json");
  assert.equal(said.code, 0, said.stderr);
  assert.match(said.stdout, /pay_back \(c3\) blocked/);
  assert.match(said.stdout, /forbidden_tool/);
  writeFileSync(`${server.home}/principal.json`, JSON.stringify({ role: "desk", trainee: false }));
  const tested = await server.run("contracts", "backtest", deskDir, "reprise-data", "--principal", "principal.json", "--json");
  assert.equal(tested.code, 0, tested.stderr + tested.stdout);
  const run = JSON.parse(tested.stdout).runs.find((run) => run.task_id === task);
  assert.ok(run, tested.stdout);
  // Three calls were made then and pass now; the refused one is refused again: these contracts change nothing.
  assert.deepEqual([run.allowed, run.first_blocked, run.as_before], [3, null, 4]);
}

test("the server's narrowing reaches the model, and the callback", async () => {
  const seen = [];
  const { session, turn, model } = await atDesk([find], { onNarrow: (narrowing) => seen.push(narrowing) });
  await turn();
  assert.deepEqual(model.requests[0].body.tools.map((tool) => tool.function.name), ["find_order", "send_note"]);
  assert.deepEqual(seen[0].removed.map((one) => one.reason), ["wrong_phase", "wrong_phase"]);
  assert.equal(seen[0].allowed[0].function.name, "find_order");
  session.restore();
});

test("a person approves on the server, and the call goes on", async () => {
  const world = await atDesk([find, assess, pay(20_000)], { amount: 20_000 });
  await assessed(world);
  const answer = world.turn();
  const approval = await pending(world.session);
  assert.equal(approval.approval_requests[0].tool_name, "pay_back");
  assert.ok(world.names().includes("approval_pending"));
  assert.equal((await decide(approval, "approve")).body.status, "approved");
  assert.equal((await answer).choices[0].message.tool_calls[0].function.name, "pay_back");
  await world.session.tools.pay_back({ order_id: "A", amount_cents: 20_000, currency: "EUR" });
  assert.equal(world.session.getState().currentPhase, "paid");
  assert.equal((await shown(world.session)).currentPhase, "paid");
  world.session.restore();
});

test("a person denies on the server, and nothing is released", async () => {
  const world = await atDesk([find, assess, pay(20_000)], { amount: 20_000 });
  await assessed(world);
  const answer = failure(world.turn());
  await decide(await pending(world.session), "deny");
  const error = await answer;
  assert.ok(error instanceof ReplayContractError);
  assert.equal(error.decision.reason, "checkpoint_denied");
  assert.equal((await shown(world.session)).pending.length, 0);
  world.session.restore();
});

test("who gives up while a person decides gets the client's abort error, and a late approval commits nothing", async () => {
  const world = await atDesk([find, assess, pay(20_000), { text: "still there" }], { amount: 20_000 });
  await assessed(world);
  const stop = new AbortController();
  const answer = failure(world.turn({}, { signal: stop.signal }));
  const approval = await pending(world.session);
  stop.abort();
  const error = await answer;
  assert.ok(error instanceof library.Client.APIUserAbortError, String(error));
  assert.equal((await decide(approval, "approve")).body.status, "approved");
  // The approved call is reported as not made: it holds no room, and nothing of it counts.
  await until(async () => (await shown(world.session)).pending.length === 0);
  const state = await shown(world.session);
  assert.equal(state.currentPhase, "assessed");
  assert.equal((await world.turn()).choices[0].message.content, "still there");
  assert.ok((await failure(world.session.tools.pay_back({ order_id: "A", amount_cents: 20_000, currency: "EUR" }))) instanceof ReplayContractError);
  world.session.restore();
});

test("a kill reaches the server, also while a call waits", async () => {
  const world = await atDesk([find, assess, pay(20_000)], { amount: 20_000 });
  await assessed(world);
  const answer = failure(world.turn());
  await pending(world.session);
  world.session.kill();
  assert.ok((await answer) instanceof ReplayKillError);
  await until(async () => (await shown(world.session)).protocol.status === "CANCELED");
  assert.equal((await waiting()).some((one) => one.session_id === world.session.getState().sessionId), false);
});

test("a kill in a process that made no call reaches the session of that name, and a name that nobody opened is left alone", async () => {
  const sessionId = `named-${process.pid}`;
  const world = await atDesk([{ text: "hello" }, { text: "again" }], { sessionId });
  await world.turn();
  const other = await atDesk([], { sessionId });
  other.session.addLabel("not-sent");
  other.session.kill();
  await until(async () => (await shown(world.session)).killed);
  assert.equal((await shown(world.session)).labels?.includes("not-sent") ?? false, false);
  assert.ok((await failure(world.turn())) instanceof ReplayKillError);
  const none = await atDesk([], { sessionId: `${sessionId}-none` });
  none.session.kill();
  await new Promise((resolve) => setTimeout(resolve, 500));
  assert.equal((await server.ask("GET", `/api/v1/replay/sessions/${sessionId}-none`)).status, 404);
});

test("a kill on the server stops the next call, the next tool, and whoever waits", async () => {
  for (const how of ["create", "execute", "wait"]) {
    const world = await atDesk([find, assess, pay(20_000), find], { amount: 20_000 });
    const id = world.session.getState().sessionId;
    if (how === "wait") await assessed(world);
    else await world.turn();
    const answer = how === "wait" ? failure(world.turn()) : null;
    if (answer) await pending(world.session);
    const asked = world.model.requests.length;
    await server.ask("POST", `/api/v1/replay/sessions/${id}/kill`, { reason: "stop" });
    const next = answer ?? failure(how === "create" ? world.turn() : world.session.tools.find_order({ order_id: "A" }));
    assert.ok((await next) instanceof ReplayKillError, how);
    assert.equal(world.model.requests.length, asked, "the model was not asked");
    if (how !== "wait") assert.deepEqual(world.ran, []);
    assert.equal(world.session.getHealth().authorityState, "killed");
    assert.equal(world.session.getState().killed, true);
  }
});

test("labels and filters apply at once here and are on the server before the next call", async () => {
  const { session, turn, model } = await atDesk([find, find]);
  session.addLabel("fraud_suspected");
  session.narrow(["find_order"]);
  assert.deepEqual(session.getState().labels, ["fraud_suspected"]);
  await turn();
  const state = await shown(session);
  assert.deepEqual(state.labels, ["fraud_suspected"]);
  assert.equal(state.controlRevision, session.getState().controlRevision);
  assert.deepEqual(model.requests[0].body.tools.map((tool) => tool.function.name), ["find_order"]);
  session.restore();
});

test("an action that the server refuses: nothing is released any more, and a kill still reaches it", async () => {
  const { session, model, turn } = await atDesk([find, find]);
  await turn();
  const asked = model.requests.length;
  // The core takes a name of any length, the server does not: what it holds is not what was asked for.
  session.narrow(["send_note", "x".repeat(300)]);
  await new Promise((resolve) => setTimeout(resolve, 200));
  for (let again = 0; again < 2; again += 1) {
    const error = await failure(turn());
    assert(error instanceof ReplayFaultError, String(error));
    assert.equal(error.retrySafe, false);
  }
  assert.equal(model.requests.length, asked);
  session.kill("over");
  await until(async () => (await shown(session)).health.killed);
});

test("a label from elsewhere while the model thinks is judged by: the same response, under the new state", async () => {
  const world = await atDesk(() => ({ ...find, delay: 400 }));
  await world.turn();
  const answer = world.turn().catch((error) => error);
  await until(() => world.model.requests.length === 2);
  const id = world.session.getState().sessionId;
  await server.ask("POST", `/api/v1/replay/sessions/${id}/labels`, { label: "from_elsewhere" });
  await answer;
  assert.equal(world.model.requests.length, 2, "the model was not asked again");
  assert.deepEqual(world.session.getState().labels, ["from_elsewhere"], "what the server knows is shown");
  world.session.restore();
});

test("blocked answers are tried again as often as allowed", async () => {
  const blocked = [];
  const { session, turn, model } = await atDesk([pay(1), find], { maxRetries: 1, onBlock: (decision) => blocked.push(decision.action) });
  const answer = await turn();
  assert.equal(answer.choices[0].message.tool_calls[0].function.name, "find_order");
  assert.deepEqual([model.requests.length, blocked], [2, ["retried"]]);
  session.restore();
});

test("strip_partial on the server releases the rest", async () => {
  const both = { calls: [...find.calls, ...pay(5).calls] };
  const { session, turn } = await atDesk([both], { gate: "strip_partial" });
  const answer = await turn();
  assert.deepEqual(answer.choices[0].message.tool_calls.map((one) => one.function.name), ["find_order"]);
  session.restore();
});

test("a limit that the server refuses with is a contract error before the model is asked", async () => {
  const { session, turn, model } = await atDesk([], { pricing: {} });
  const error = await failure(turn());
  assert.ok(error instanceof ReplayContractError, String(error));
  assert.equal(error.decision.detail, "price_unknown");
  assert.equal(model.requests.length, 0);
  assert.equal(session.getState().totalBlockCount, 1);
  session.restore();
});

test("streams are judged by the server too", async () => {
  const { session, turn } = await atDesk([find]);
  const events = [];
  for await (const event of await turn({ stream: true })) events.push(event);
  assert.ok(JSON.stringify(events).includes("find_order"));
  assert.equal((await shown(session)).totalStepCount, 1);
  session.restore();
});

test("a tool without an executor is reported by its result in the next request", async () => {
  const { session, turn } = await atDesk([find, assess], { tools: { pay_back: () => ({}) } });
  await turn();
  const messages = [
    { role: "user", content: "x" },
    { role: "assistant", content: null, tool_calls: [{ id: "c1", type: "function", function: { name: "find_order", arguments: '{"order_id":"A"}' } }] },
    { role: "tool", tool_call_id: "c1", content: '{"status":"delivered"}' },
  ];
  const answer = await turn({ messages });
  assert.equal(answer.choices[0].message.tool_calls[0].function.name, "assess_return");
  assert.equal((await shown(session)).currentPhase, "order_known");
  session.restore();
});

test("a wrong key fails closed, whatever onError says", async () => {
  const { session, turn, model } = await atDesk([find], { apiKey: "sk-nobody", onError: "allow" });
  const error = await failure(turn());
  assert.ok(error instanceof ReplayFaultError, String(error));
  assert.equal(error.retrySafe, false);
  assert.equal(model.requests.length, 0);
  session.restore();
});

test("contracts that changed do not take up a session of the same id", async () => {
  const id = `taken-${process.pid}`;
  const first = await atDesk([find], { sessionId: id });
  await first.turn();
  const { session, turn } = await atDesk([find], { sessionId: id, contractsDir: undefined, contracts: contracts("find_order") });
  const error = await failure(turn());
  assert.ok(error instanceof ReplayConfigError, String(error));
  assert.equal(error.condition, "invalid_option");
  first.session.restore();
});

test("what is not an address or a key is refused at the start", () => {
  const client = clientOf(library, "http://127.0.0.1:1");
  for (const wrong of [{ apiKey: "a b" }, { apiKey: "k", runtimeUrl: "ftp://x" }, { apiKey: 5 }]) {
    assert.throws(() => replay(client, { contracts: contracts("a"), ...wrong }), (error) => error.condition === "invalid_option");
  }
});

test("nothing is sent before the first call, and nothing about a session that made none", async () => {
  const { session } = await atDesk([]);
  const id = session.getState().sessionId;
  session.restore();
  await new Promise((resolve) => setTimeout(resolve, 200));
  assert.equal((await server.ask("GET", `/api/v1/replay/sessions/${id}`)).status, 404);
});

test("the server is gone before a call: nothing is sent, and it recovers", async () => {
  const own = await serve();
  const world = await atDesk([find, assess], { apiKey: own.key, runtimeUrl: own.url });
  await world.turn();
  await own.kill();
  const error = await failure(world.turn());
  assert.ok(error instanceof ReplayFaultError, String(error));
  assert.ok(error instanceof library.Client.OpenAIError);
  assert.equal(error.retrySafe, true);
  assert.equal(world.model.requests.length, 1, "the model was not asked");
  const lost = world.session.getHealth();
  assert.deepEqual([lost.status, lost.authorityState, lost.protectionLevel, lost.durability], ["degraded", "recovering", "protect", "degraded-local"]);
  assert.ok((await failure(world.session.tools.find_order({ order_id: "A" }))) instanceof ReplayFaultError);
  assert.deepEqual(world.ran, [], "the tool did not run");
  await own.start();
  await world.session.tools.find_order({ order_id: "A" });
  assert.equal((await world.turn()).choices[0].message.tool_calls[0].function.name, "assess_return");
  assert.deepEqual(world.names().filter((name) => name.startsWith("authority")), ["authority_lost", "authority_regained"]);
  assert.equal(world.session.getHealth().authorityState, "active");
  world.session.restore();
  await own.close();
});

test("the server is gone between the model's answer and the proposal: nothing is released", async () => {
  const own = await serve();
  const world = await atDesk(() => ({ ...find, delay: 500 }), { apiKey: own.key, runtimeUrl: own.url });
  const answer = failure(world.turn());
  await until(() => world.model.requests.length === 1);
  await own.kill();
  const error = await answer;
  assert.ok(error instanceof ReplayFaultError, String(error));
  assert.equal(error.retrySafe, false);
  assert.equal(world.session.getState().totalToolCalls, 0);
  await own.start();
  assert.equal((await world.turn()).choices[0].message.tool_calls[0].function.name, "find_order");
  world.session.restore();
  await own.close();
});

test("the server is gone between an execution and its receipt: the receipt is held and brought later", async () => {
  const own = await serve();
  const world = await atDesk([find, assess], {
    apiKey: own.key,
    runtimeUrl: own.url,
    tools: {
      find_order: async () => {
        await own.kill();
        return { status: "delivered" };
      },
      assess_return: () => ({}),
      pay_back: () => ({}),
    },
  });
  await world.turn();
  assert.deepEqual(await world.session.tools.find_order({ order_id: "A" }), { status: "delivered" }, "it has run");
  const health = world.session.getHealth();
  assert.deepEqual([health.status, health.authorityState, health.unresolvedReceiptCount], ["degraded", "recovering", 1]);
  assert.ok((await failure(world.turn())) instanceof ReplayFaultError);
  await own.start();
  assert.equal((await world.turn()).choices[0].message.tool_calls[0].function.name, "assess_return");
  assert.equal(world.session.getHealth().unresolvedReceiptCount, 0);
  const id = world.session.getState().sessionId;
  assert.equal((await own.ask("GET", `/api/v1/replay/sessions/${id}`)).body.currentPhase, "order_known");
  world.session.restore();
  await own.close();
});

test("with onError: allow calls go on under the session's own judgement, are counted, and end in a kill", async () => {
  const own = await serve();
  const script = [find, pay(5), { text: "a" }, { text: "b" }, { text: "c" }];
  const world = await atDesk(script, { apiKey: own.key, runtimeUrl: own.url, onError: "allow" });
  await own.kill();
  await world.turn();
  assert.equal(world.session.getState().totalUnguardedCalls, 1);
  // Faults are softened, contracts are not.
  const error = await failure(world.turn());
  assert.ok(error instanceof ReplayContractError, String(error));
  assert.equal((await world.turn()).choices[0].message.content, "a");
  assert.equal(world.session.getState().totalUnguardedCalls, 3);
  assert.ok((await failure(world.turn())) instanceof ReplayKillError);
  await own.close();
});

test("what went on without the server is told to it as a gap", async () => {
  const own = await serve();
  const world = await atDesk([find, { text: "alone" }, { text: "back" }], { apiKey: own.key, runtimeUrl: own.url, onError: "allow" });
  await world.turn();
  await own.kill();
  assert.equal((await world.turn()).choices[0].message.content, "alone");
  await own.start();
  assert.equal((await world.turn()).choices[0].message.content, "back");
  const id = world.session.getState().sessionId;
  const state = (await own.ask("GET", `/api/v1/replay/sessions/${id}`)).body;
  assert.equal(state.totalStepCount, 2, "what the server did not judge is not in its state");
  assert.equal(world.session.getState().totalStepCount, 2, "and the server's state counts");
  const events = await own.ask("GET", `/v1/sessions/${state.protocol.session_id}/events?limit=100`);
  assert.ok(JSON.stringify(events.body).includes('"unguarded_calls":1'), "the gap is in the log");
  world.session.restore();
  await own.close();
});

test("a server that answers nonsense releases nothing", async () => {
  const { createServer } = await import("node:http");
  for (const nonsense of [
    { proposal_id: "proposal_1", status: "allowed", verdicts: [], decision: null },
    { proposal_id: "proposal_1", status: "allowed", verdicts: [{ call_id: "other", verdict: "allow" }], decision: null },
    { proposal_id: "proposal_1", status: "fine" },
    { proposal_id: "proposal_1", status: "pending_approval", verdicts: [{ call_id: "c1", verdict: "ask" }], decision: null, approval_requests: "soon" },
    [],
  ]) {
    const odd = createServer((incoming, outgoing) => {
      incoming.resume();
      const path = incoming.url.split("/").at(-1);
      const answers = {
        sessions: { state_version: 0, control_revision: 0 },
        preflight: { prepared_request_id: "prepared_1", state_version: 0, control_revision: 0, allowed_tools: tools, removed: [] },
        proposals: nonsense,
      };
      outgoing.writeHead(path === "sessions" ? 201 : 200, { "content-type": "application/json" });
      outgoing.end(JSON.stringify(answers[path] ?? {}));
    });
    await new Promise((resolve) => odd.listen(0, "127.0.0.1", resolve));
    const world = await atDesk([find], { runtimeUrl: `http://127.0.0.1:${odd.address().port}` });
    const error = await failure(world.turn());
    assert.ok(error instanceof ReplayFaultError, `${JSON.stringify(nonsense)}: ${error}`);
    assert.equal(error.retrySafe, false, "the response was proposed, and may count there");
    world.session.restore();
    odd.closeAllConnections();
    odd.close();
  }
});

for (const text of ["null", "<html>gone</html>", ""]) test(`a server that answers ${text || "nothing"} releases nothing, and a session that is gone there is over`, async () => {
  const { createServer } = await import("node:http");
  for (const path of ["sessions", "preflight", "proposals"]) {
    for (const status of [200, 404, 409, 410]) {
      const odd = createServer((incoming, outgoing) => {
        incoming.resume();
        const answers = {
          sessions: { state_version: 0, control_revision: 0 },
          preflight: { prepared_request_id: "prepared_1", state_version: 0, control_revision: 0, allowed_tools: tools, removed: [] },
        };
        const last = incoming.url.split("/").at(-1);
        outgoing.writeHead(last === path ? status : last === "sessions" ? 201 : 200, { "content-type": "application/json" });
        outgoing.end(last === path ? text : JSON.stringify(answers[last] ?? {}));
      });
      await new Promise((resolve) => odd.listen(0, "127.0.0.1", resolve));
      const world = await atDesk([find, find], { runtimeUrl: `http://127.0.0.1:${odd.address().port}` });
      const error = await failure(world.turn());
      const expected = status === 410 ? "ReplayKillError" : "ReplayFaultError";
      assert.equal(error.name, expected, `${path} ${status}: ${error}`);
      if (status === 410) assert.equal((await failure(world.turn())).name, expected);
      world.session.restore();
      odd.closeAllConnections();
      odd.close();
    }
  }
});

/** Something between a program and the server: `hook` may answer in the server's place, or cut the connection. */
async function between(hook) {
  const { createServer } = await import("node:http");
  const proxy = createServer(async (incoming, outgoing) => {
    const chunks = [];
    for await (const chunk of incoming) chunks.push(chunk);
    const last = incoming.url.split("?")[0].split("/").at(-1);
    const answer = hook(last);
    if (answer === "cut") return outgoing.destroy();
    const { host, connection, "content-length": length, "transfer-encoding": encoding, ...headers } = incoming.headers;
    const { status, text } = answer ?? (await fetch(server.url + incoming.url, { method: incoming.method, headers, body: chunks.length ? Buffer.concat(chunks) : undefined }).then(async (response) => ({ status: response.status, text: await response.text() })));
    outgoing.writeHead(status, { "content-type": "application/json" });
    outgoing.end(text);
  });
  await new Promise((resolve) => proxy.listen(0, "127.0.0.1", resolve));
  proxy.unref();
  return { url: `http://127.0.0.1:${proxy.address().port}`, close: () => proxy.closeAllConnections() };
}

const odd = [
  { status: 200, text: "{}" },
  { status: 200, text: "[]" },
  { status: 200, text: '{"error":"maintenance"}' },
  { status: 200, text: '{"killed":"false","labels":"all","control_revision":"1"}' },
  { status: 302, text: "{}" },
  { status: 404, text: "{}" },
];

test("an answer that does not fit is none: labels, filters and heartbeats", async () => {
  const acts = {
    labels: (session) => session.addLabel("secret"),
    "tool-filter": (session) => session.narrow([]),
    heartbeat: null,
  };
  for (const [last, act] of Object.entries(acts)) {
    for (const answer of odd) {
      let isOdd = false;
      const proxy = await between((asked) => (isOdd && asked === last ? answer : null));
      const world = await atDesk([find, find, find], { runtimeUrl: proxy.url });
      await world.turn();
      isOdd = true;
      act?.(world.session);
      const error = await failure(act === null ? world.session.tools.find_order({ order_id: "A" }, { callId: "c1" }) : world.turn());
      assert.ok(error instanceof ReplayFaultError, `${last} ${JSON.stringify(answer)}: ${error}`);
      assert.equal(world.model.requests.length, 1);
      assert.deepEqual(world.ran, []);
      isOdd = false;
      if (act === null) await world.session.tools.find_order({ order_id: "A" }, { callId: "c1" });
      else await world.turn().catch((again) => assert.ok(again instanceof ReplayContractError, String(again)));
      if (last === "labels") assert.deepEqual((await shown(world.session)).labels, ["secret"], "it was sent again");
      world.session.restore();
      proxy.close();
    }
  }
});

test("a receipt stays unresolved until an answer fits, and is brought again", async () => {
  const refusals = [400, 401, 404, 408, 413, 422].map((status) => ({ status, text: "{}" }));
  for (const answer of [...odd, ...refusals]) {
    let left = answer.status < 400 ? 2 : 1;
    const proxy = await between((last) => (last === "receipts" && left-- > 0 ? answer : null));
    const world = await atDesk([find, { text: "so" }], { runtimeUrl: proxy.url });
    await world.turn();
    await world.session.tools.find_order({ order_id: "A" }, { callId: "c1" });
    assert.equal(world.session.getHealth().unresolvedReceiptCount, 1, JSON.stringify(answer));
    await world.turn();
    assert.equal(world.session.getHealth().unresolvedReceiptCount, 0, JSON.stringify(answer));
    assert.equal((await shown(world.session)).toolCallCounts.find_order, 1);
    assert.equal(world.names().includes("receipt_refused"), answer.status >= 400);
    world.session.restore();
    proxy.close();
  }
});

test("a receipt that is refused again and again is given up, counted and told, and keeps no other one back", async () => {
  let asked = 0;
  const proxy = await between((last) => (last === "receipts" && (asked += 1) ? { status: 422, text: "{}" } : null));
  const script = [find, ...Array.from({ length: 8 }, () => ({ text: "so" }))];
  const world = await atDesk(script, { runtimeUrl: proxy.url });
  await world.turn();
  await world.session.tools.find_order({ order_id: "A" }, { callId: "c1" });
  for (let again = 0; again < 8; again += 1) await world.turn();
  assert.equal(asked, 5);
  assert.equal(world.session.getHealth().unresolvedReceiptCount, 1);
  assert.equal(world.names().filter((name) => name === "receipt_refused").length, 5);
  world.session.restore();
  proxy.close();
});

test("a kill is sent until the server has taken it", async () => {
  for (const answer of odd) {
    let left = 3;
    const proxy = await between((last) => (last === "kill" && left-- > 0 ? answer : null));
    const world = await atDesk([find], { runtimeUrl: proxy.url });
    await world.turn();
    world.session.kill("over");
    await until(async () => (await shown(world.session)).health.killed);
    proxy.close();
  }
});

test("a kill on the server stops a tool before it is tried again", async () => {
  const model = await provider([{ calls: [call("get_weather", { city: "Oslo" }, "c1")] }]);
  let ran = 0;
  const tool = async () => {
    ran += 1;
    await server.ask("POST", `/api/v1/replay/sessions/${session.getState().sessionId}/kill`, { reason: "stop" });
    throw Object.assign(new Error("busy"), { code: "E" });
  };
  const session = replay(clientOf(library, model.url), {
    contracts: [{ tool: "get_weather", side_effect: "read", retries: { max_attempts: 4, retry_on: ["E"] } }],
    tools: { get_weather: tool },
    apiKey: server.key,
    runtimeUrl: server.url,
  });
  await session.client.chat.completions.create({ model: "m", messages: [{ role: "user", content: "x" }], tools: [chatTool("get_weather")] });
  assert.ok((await failure(session.tools.get_weather({ city: "Oslo" }, { callId: "c1" }))) instanceof ReplayKillError);
  assert.equal(ran, 1);
  await model.close();
});

test("with onError: allow nothing is released that only the lost server knows to be forbidden", async () => {
  const act = (world, rest, body) => server.ask("POST", `/api/v1/replay/sessions/${world.session.getState().sessionId}/${rest}`, body);
  const elsewhere = {
    label: (world) => act(world, "labels", { label: "from_elsewhere" }),
    filter: (world) => act(world, "tool-filter", { tools: [] }),
    calls: async (world) => {
      const { sessionId } = world.session.getState();
      const other = await atDesk([find], { sessionId });
      await other.turn();
    },
  };
  for (const [name, happens] of Object.entries(elsewhere)) {
    let isDown = false;
    const proxy = await between(() => (isDown ? "cut" : null));
    const other = ({ number }) => ({ calls: [call("find_order", { order_id: `A${number}` }, `c${number}`)] });
    const world = await atDesk(other, { runtimeUrl: proxy.url, onError: "allow" });
    await world.turn();
    await happens(world);
    await world.turn().catch(() => {});
    isDown = true;
    const error = await failure(world.turn());
    assert.ok(error instanceof ReplayFaultError, `${name}: ${error}`);
    world.session.restore();
    proxy.close();
  }
});

test("a session of a server enforces, whatever it was to do without one", async () => {
  const world = await atDesk([find], { compatEnforcement: "advisory" });
  const error = await failure(world.session.client.completions.create({ model: "gpt-test", prompt: "x" }));
  assert.ok(error instanceof ReplayUnsupportedError, String(error));
  assert.equal((await world.session.fetch(`${world.model.url}/v1/completions`, { method: "POST", body: "{}" })).status, 403);
  assert.throws(() => world.session.client.apiKey, ReplayUnsupportedError);
  assert.equal(world.model.requests.length, 0);
  world.session.restore();
});

test("shadow changes nothing, and the server records what it would have done", async () => {
  const { session, turn } = await atDesk([pay(5)], { mode: "shadow" });
  const answer = await turn();
  assert.equal(answer.choices[0].message.tool_calls[0].function.name, "pay_back");
  assert.equal(session.getLastShadowDelta().would_have_blocked[0].tool_name, "pay_back");
  assert.equal((await shown(session)).health.shadowEvaluations, 1);
  assert.equal(session.getHealth().protectionLevel, "monitor");
  session.restore();
});

test("a session is taken up again by its id: the state on the server goes on", async () => {
  const id = `again-${process.pid}`;
  const first = await atDesk([find], { sessionId: id });
  await first.turn();
  await first.session.tools.find_order({ order_id: "A" });
  const second = await atDesk([assess, find], { sessionId: id });
  const answer = await second.turn();
  assert.equal(answer.choices[0].message.tool_calls[0].function.name, "assess_return", "the phase is the first one's");
  await second.session.tools.assess_return({ order_id: "A" });
  assert.deepEqual([second.session.getState().currentPhase, second.session.getState().totalToolCalls], ["assessed", 2]);
  second.session.restore();
});

test("a workflow lives on the server: work is handed over, and a killed root stops what came from it", async () => {
  const folder = mkdtempSync(join(tmpdir(), "reprise-workflow-"));
  for (const name of readdirSync(deskDir)) copyFileSync(join(deskDir, name), join(folder, name));
  writeFileSync(
    join(folder, "workflow.yaml"),
    `schema_version: "1.0"
workflow: job
roles:
  - { name: desk, session_contract: session.yaml }
  - { name: inspector, session_contract: session.yaml }
handoffs:
  - { from: desk, to: inspector }
limits: { max_sessions: 3 }
`,
  );
  let isDown = false;
  const proxy = await between(() => (isDown ? "cut" : null));
  const alone = await atDesk(() => find, { contractsDir: folder, runtimeUrl: proxy.url, onError: "allow", workflow: { type: "root", workflowId: `alone-${process.pid}`, role: "desk" } });
  await alone.turn();
  isDown = true;
  assert.ok((await failure(alone.turn())) instanceof ReplayFaultError, "what the others of a workflow do is known only there");
  alone.session.restore();
  proxy.close();
  const workflowId = `w-${process.pid}`;
  const root = await atDesk([find, assess], { contractsDir: folder, workflow: { type: "root", workflowId, role: "desk" } });
  root.session.addLabel("vip");
  await assessed(root);
  await assert.rejects(root.session.handoff({ to_role: "nobody", summary: "x" }), (error) => error.condition === "invalid_option");
  const offer = await root.session.handoff({ to_role: "inspector", summary: "look at it", carry: ["assessed_order"] });
  assert.equal(offer.status, "open");
  const child = await atDesk([{ text: "seen" }, find], { contractsDir: folder, workflow: { type: "child", workflowId, role: "inspector", handoffId: offer.handoff_id } });
  assert.equal((await child.turn()).choices[0].message.content, "seen");
  assert.deepEqual(child.session.getState().labels, ["vip"]);
  const state = await child.session.getWorkflowState();
  assert.deepEqual([state.workflow_id, state.role, state.tool_calls, state.open_offers.length], [workflowId, "inspector", 2, 0]);
  assert.deepEqual(state.sessions.map((one) => [one.role, one.status]).sort(), [["desk", "open"], ["inspector", "open"]]);
  root.session.kill();
  await until(async () => (await shown(root.session)).protocol.status === "CANCELED");
  assert.ok((await failure(child.turn())) instanceof ReplayKillError);
  const late = await atDesk([find], { contractsDir: folder, workflow: { type: "child", workflowId, role: "inspector", handoffId: offer.handoff_id } });
  assert.ok((await failure(late.turn())) instanceof Error);
  assert.equal(late.model.requests.length, 0);
  await assert.rejects(atDesk([], { workflow: { type: "root", workflowId: "w", role: "desk" } }), (error) => error.condition === "workflow_not_found");
});

test("keywords of a schema that nothing checks are told by the server's preflight", async () => {
  const { session, heard, turn } = await atDesk([find]);
  const odd = { type: "object", oneOf: [{ required: ["order_id"] }] };
  await turn({ tools: [chatTool("find_order", odd)] });
  const told = heard.filter(({ name }) => name === "schema_keyword_ignored");
  assert.deepEqual(told.map(({ data }) => data), [{ tool: "find_order", keywords: "oneOf" }]);
  session.restore();
});
