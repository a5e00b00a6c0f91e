// What outlives a session: stored sessions that are taken up again, recorded ones that are run again without a network, and
// processes that are killed in the middle.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { replay, ReplayConfigError, ReplayContractError, ReplayFaultError, ReplayKillError } from "@reprise/replay";
import { recorder, recording, RecordingMiss } from "@reprise/replay/testing";
import { anthropic, ask, call, chatTool, clientOf, contracts, messagesTool, openai, responsesTool } from "./clients.mjs";
import { provider } from "./provider.mjs";
import { until } from "./server.mjs";

const failure = (promise) => promise.then(() => assert.fail("it was released"), (error) => error);
const file = () => join(mkdtempSync(join(tmpdir(), "reprise-stored-")), "session.jsonl");
const once = [{ tool: "get_weather", side_effect: "read", forbids_after: ["get_weather"] }];
const good = { calls: [call("get_weather", { city: "Oslo" })] };

test("a stored session is taken up again: what was forbidden stays forbidden, and counts go on", async () => {
  const store = file();
  const server = await provider([good, good, { text: "done" }]);
  const options = { contracts: once, sessionId: "case-7", labels: ["first"] };
  const first = replay(clientOf(openai[2], server.url), { ...options, store: recorder(store) });
  await ask(openai[2], first.client);
  first.addLabel("vip");
  await first.flush();
  const before = first.getState();
  // The first process is gone without a word; the second has the same contracts and the same store.
  const second = replay(clientOf(openai[2], server.url), { ...options, store: recorder(store) });
  second.addLabel("early");
  const error = await failure(ask(openai[2], second.client));
  assert.ok(error instanceof ReplayContractError, String(error));
  assert.equal(error.decision.reason, "forbidden_tool");
  const state = second.getState();
  assert.deepEqual([state.totalToolCalls, state.totalBlockCount, state.labels], [1, 1, ["early", "first", "vip"]]);
  assert.deepEqual(state.startedAt, before.startedAt);
  assert.ok(state.stateVersion >= before.stateVersion);
  await ask(openai[2], second.client);
  const records = readFileSync(store, "utf8").split("\n").filter(Boolean).map((line) => JSON.parse(line).record).filter((record) => record?.seq !== undefined);
  assert.deepEqual(records.map((record) => record.seq), records.map((_, at) => at), "the numbers go on");
  second.restore();
  await server.close();
});

test("a stored session under other contracts is refused, and so is one that was killed", async () => {
  const server = await provider([good, good]);
  const store = file();
  const first = replay(clientOf(openai[2], server.url), { contracts: once, sessionId: "case-8", store: recorder(store) });
  await ask(openai[2], first.client);
  const other = replay(clientOf(openai[2], server.url), { contracts: contracts("get_weather"), sessionId: "case-8", store: recorder(store) });
  const error = await failure(ask(openai[2], other.client));
  assert.ok(error instanceof ReplayConfigError, String(error));
  assert.equal(error.condition, "invalid_option");
  first.kill();
  await first.flush();
  const killed = replay(clientOf(openai[2], server.url), { contracts: once, sessionId: "case-8", store: recorder(store) });
  assert.ok((await failure(ask(openai[2], killed.client))) instanceof ReplayKillError);
  assert.equal(server.requests.length, 1);
  await server.close();
});

test("a store that cannot be read keeps a session of a name from beginning", async () => {
  const server = await provider([good]);
  const store = { ...recorder(file()), head: async () => 3, async *read() { yield Buffer.from("{"); } };
  const session = replay(clientOf(openai[2], server.url), { contracts: once, sessionId: "case-9", store });
  assert.ok((await failure(ask(openai[2], session.client))) instanceof ReplayFaultError);
  assert.equal(server.requests.length, 0);
  session.restore();
  await server.close();
});

/** A program: asks, runs what was allowed, and tells the result. */
async function program(library, client, { stream, ...options }) {
  const session = replay(client, { contracts: contracts("get_weather"), ...options });
  const first = await ask(library, session.client, { stream });
  if (stream) {
    const events = [];
    for await (const event of first) events.push(event);
    await session.flush();
    session.restore();
    return JSON.stringify(events);
  }
  const result = await session.tools.get_weather({ city: "Oslo" });
  const said = await ask(library, session.client, { messages: [{ role: "user", content: `It is ${result.degrees} degrees.` }], tools: [] });
  await session.flush();
  session.restore();
  return JSON.stringify([first, result, said]);
}

for (const library of [openai[2], anthropic[1]]) {
  for (const stream of [false, true]) {
    test(`${library.name}: a recorded session runs again without a network (stream: ${stream})`, async () => {
      const store = file();
      const server = await provider([good, { text: "Cold." }]);
      const tools = { get_weather: async () => ({ degrees: -4 }) };
      const options = { tools, captureLevel: "full", stream };
      const recorded = await program(library, clientOf(library, server.url), { ...options, store: recorder(store) });
      await server.close();
      const run = recording(store);
      const client = clientOf(library, "http://127.0.0.1:9", { fetch: run.fetch });
      assert.equal(await program(library, client, { tools: run.tools.get_weather ? run.tools : tools, stream }), recorded);
      run.done();
    });
  }
}

test("what was not recorded is an error that says what differs, and what was left over too", async () => {
  const library = openai[2];
  const store = file();
  const server = await provider([good, { text: "Cold." }]);
  await program(library, clientOf(library, server.url), { tools: { get_weather: () => ({ degrees: 1 }) }, captureLevel: "full", store: recorder(store) });
  await server.close();
  const run = recording(store);
  const client = clientOf(library, "http://127.0.0.1:9", { fetch: run.fetch });
  const error = await failure(ask(library, client, { messages: [{ role: "user", content: "Something else" }] }));
  assert.match(error.message, /no recorded answer.*messages\.0\.content/);
  await assert.rejects(run.tools.get_weather({ city: "Rome" }), RecordingMiss);
  assert.throws(() => run.done(), (error) => error instanceof RecordingMiss && /no recorded call of `get_weather`/.test(error.message) && /3 recorded/.test(error.message));
});

test("new contracts are tried on a recorded session: the same answers, another verdict", async () => {
  const library = openai[2];
  const store = file();
  const server = await provider([good, { text: "Cold." }]);
  const tools = { get_weather: () => ({ degrees: 1 }) };
  await program(library, clientOf(library, server.url), { tools, captureLevel: "full", store: recorder(store) });
  await server.close();
  const run = recording(store);
  const stricter = [{ tool: "get_weather", side_effect: "read", argument_value_invariants: [{ path: "$.city", one_of: ["Rome"] }] }];
  const client = clientOf(library, "http://127.0.0.1:9", { fetch: run.fetch });
  const error = await failure(program(library, client, { contracts: stricter, tools: run.tools }));
  assert.ok(error instanceof ReplayContractError);
  assert.equal(error.decision.reason, "argument_value_mismatch");
});

test("a recording is compared without the note about removed tools, wherever a format puts it, and with what the program itself says", async () => {
  const told = [{ role: "user", content: "x" }];
  const wires = [
    [openai[2], (client, more) => client.chat.completions.create({ model: "m", messages: told, tools: ["get_weather", "drop_table"].map((name) => chatTool(name)), ...more }), [{}, { response_format: { type: "text" } }]],
    [openai[2], (client, more) => client.responses.create({ model: "m", input: "x", tools: ["get_weather", "drop_table"].map((name) => responsesTool(name)), ...more }), [{}, { instructions: "Be brief." }]],
    [anthropic[1], (client, more) => client.messages.create({ model: "m", max_tokens: 9, messages: told, tools: ["get_weather", "drop_table"].map((name) => messagesTool(name)), ...more }), [{}, { system: "Be brief." }, { system: [{ type: "text", text: "Be brief." }] }]],
  ];
  for (const [library, send, bodies] of wires) {
    for (const body of bodies) {
      const store = file();
      const server = await provider([good, good]);
      const options = { contracts: contracts("get_weather"), narrowingFeedback: "inject" };
      const session = replay(clientOf(library, server.url), { ...options, captureLevel: "full", store: recorder(store) });
      await send(session.client, body);
      assert.match(server.requests[0].text, /These tools are not available now/);
      await session.flush();
      session.restore();
      await server.close();
      const attempt = async (given, more) => {
        const run = recording(store);
        const again = replay(clientOf(library, "http://127.0.0.1:9", { fetch: run.fetch }), given);
        const error = await send(again.client, more).then(() => null, (error) => error);
        again.restore();
        return error?.message ?? null;
      };
      assert.equal(await attempt(options, body), null, JSON.stringify(body));
      assert.equal(await attempt({ contracts: contracts("get_weather", "drop_table") }, body), null, "other contracts, no note");
      const [name] = Object.keys(body);
      const other = { response_format: { type: "json_object" }, instructions: "Be long.", system: "Be long." };
      if (name) assert.match(await attempt(options, { [name]: other[name] }), new RegExp("differs at `" + name));
    }
  }
});

test("a session that was recorded redacted cannot be run again, and the error names the level", async () => {
  const library = openai[2];
  const store = file();
  const server = await provider([good, { text: "Cold." }]);
  await program(library, clientOf(library, server.url), { tools: { get_weather: () => ({ degrees: 1 }) }, store: recorder(store) });
  await server.close();
  const run = recording(store);
  const error = await failure(ask(library, clientOf(library, "http://127.0.0.1:9", { fetch: run.fetch })));
  assert.match(error.message, /captureLevel: "full"/);
  await assert.rejects(run.tools.get_weather({ city: "Oslo" }), /captureLevel: "full"/);
});

test("a recording answers only at the endpoint that it was recorded at", async () => {
  const library = openai[2];
  const store = file();
  const server = await provider([{ text: "Cold." }]);
  const session = replay(clientOf(library, server.url), { contracts: contracts("get_weather"), captureLevel: "full", store: recorder(store) });
  await session.client.chat.completions.create({ model: "m", messages: [] });
  await session.flush();
  session.restore();
  await server.close();
  // A record of an older version, which does not name the format.
  const older = file();
  writeFileSync(older, readFileSync(store, "utf8").replace(',"wire":"openai-chat"', ""));
  assert.notEqual(readFileSync(older, "utf8"), readFileSync(store, "utf8"));
  for (const path of [store, older]) {
    const run = recording(path);
    const client = clientOf(library, "http://127.0.0.1:9", { fetch: run.fetch });
    const error = await failure(client.post("/responses", { body: { model: "m", messages: [] } }));
    assert.match(error.message, /has the format `openai-chat`, this one `openai-responses`/);
    assert.match((await failure(client.models.list())).message, /`GET \/v1\/models` asks for something else/);
    assert.equal((await client.chat.completions.create({ model: "m", messages: [] })).choices[0].message.content, "Cold.");
    assert.throws(() => run.done(), RecordingMiss);
  }
});

test("a recording that is cut off says where, and a recorder goes on behind what was acknowledged", async () => {
  const library = openai[2];
  const store = file();
  const server = await provider(() => ({ text: "Cold." }));
  const session = () => replay(clientOf(library, server.url), { contracts: contracts("get_weather"), captureLevel: "full", sessionId: "cut", store: recorder(store) });
  const first = session();
  await ask(library, first.client, { tools: [] });
  await first.flush();
  first.restore();
  await until(() => readFileSync(store, "utf8").includes("capture/1"));
  const whole = readFileSync(store, "utf8");
  const { length } = whole.trimEnd().split("\n");
  writeFileSync(store, `${whole}{"record":{"seq":99,"ev`);
  assert.throws(() => recording(store), (error) => error instanceof RecordingMiss && error.message.includes(`line ${length + 1} is not JSON: the recording is cut off`));
  const second = replay(clientOf(library, server.url), { contracts: contracts("get_weather"), captureLevel: "full", sessionId: "other", store: recorder(store) });
  await ask(library, second.client, { tools: [] });
  await second.flush();
  second.restore();
  const run = recording(store);
  const client = clientOf(library, "http://127.0.0.1:9", { fetch: run.fetch });
  for (let at = 0; at < 2; at += 1) await ask(library, client, { tools: [] });
  run.done();
  await server.close();
});

test("captures are handed over before there is no room for them, and what is dropped is said", async () => {
  const library = openai[2];
  const fetch = async () => Response.json({ id: "x", object: "chat.completion", created: 1, model: "m", choices: [{ index: 0, finish_reason: "stop", message: { role: "assistant", content: "ok" } }] });
  const store = file();
  const session = replay(clientOf(library, "http://127.0.0.1:9", { fetch }), { contracts: contracts("get_weather"), captureLevel: "full", store: recorder(store) });
  for (let at = 0; at < 1100; at += 1) await ask(library, session.client, { tools: [], messages: [{ role: "user", content: String(at) }] });
  assert.deepEqual(await session.flush(), { sent: 1100, dropped: 0, pending: 0 });
  session.restore();
  const run = recording(store);
  const client = clientOf(library, "http://127.0.0.1:9", { fetch: run.fetch });
  await ask(library, client, { tools: [], messages: [{ role: "user", content: "0" }] });
  // Two captures of nine megabytes are more than is kept.
  const heard = [];
  const small = file();
  const long = "x".repeat(9 << 20);
  const other = replay(clientOf(library, "http://127.0.0.1:9", { fetch }), { contracts: contracts("get_weather"), captureLevel: "full", store: recorder(small), diagnostics: (event) => heard.push(event) });
  for (let at = 0; at < 2; at += 1) await ask(library, other.client, { tools: [], messages: [{ role: "user", content: `${at}${long}` }] });
  assert.deepEqual(await other.flush(), { sent: 1, dropped: 1, pending: 0 });
  other.restore();
  assert.deepEqual(heard.filter(({ name }) => name === "captures_dropped").map(({ data }) => data), [{ count: 1 }]);
  const again = recording(small);
  const error = await failure(ask(library, clientOf(library, "http://127.0.0.1:9", { fetch: again.fetch }), { tools: [], messages: [{ role: "user", content: `0${long}` }] }));
  assert.match(error.message, /1 answers and results were dropped before they could be recorded/);
  assert.throws(() => again.done(), /dropped before/);
});

test("the module for tests is one for both module systems", () => {
  const require = createRequire(import.meta.url);
  assert.equal(require("@reprise/replay/testing").recording, recording);
});

const child = `
import { replay } from "@reprise/replay";
import { recorder } from "@reprise/replay/testing";
import { ask, call, chatTool, clientOf, openai } from "./clients.mjs";
const [url, store, how] = process.argv.slice(2);
const contracts = [{ tool: "get_weather", side_effect: "write", forbids_after: ["get_weather"], checkpoint: { reason: "look", when: [{ path: "$.city", equals: "Rome" }] } }];
const session = replay(clientOf(openai[2], url), {
  contracts, sessionId: "killed", store: recorder(store),
  tools: { get_weather: () => { process.stdout.write("running\\n"); return new Promise(() => {}); } },
  onCheckpoint: () => { process.stdout.write("asked\\n"); return new Promise(() => {}); },
});
setInterval(() => {}, 1000);
const answer = await ask(openai[2], session.client);
process.stdout.write("released\\n");
if (how === "tool") await session.tools.get_weather({ city: "Oslo" });
`;

/** Runs the child until it says a word, and kills it there. */
async function killedAt(word, url, store, how) {
  const here = new URL(".", import.meta.url).pathname;
  const path = join(here, `killed-${process.pid}.mjs`);
  writeFileSync(path, child);
  const running = spawn(process.execPath, [path, url, store, how], { stdio: ["ignore", "pipe", "inherit"] });
  const ended = new Promise((resolve) => running.once("exit", (code, signal) => resolve(signal)));
  let said = "";
  running.stdout.on("data", (chunk) => {
    said += chunk;
  });
  await until(() => (typeof word === "function" ? word() : said.includes(word)));
  running.kill("SIGKILL");
  assert.equal(await ended, "SIGKILL");
  return said;
}

const gated = [{ tool: "get_weather", side_effect: "write", forbids_after: ["get_weather"], checkpoint: { reason: "look", when: [{ path: "$.city", equals: "Rome" }] } }];

test("a process killed while the model thinks leaves a session in which nothing happened", async () => {
  const server = await provider((request) => ({ ...good, delay: request.number === 1 ? 10_000 : 0 }));
  const store = file();
  await killedAt(() => server.requests.length === 1, server.url, store, "model");
  const session = replay(clientOf(openai[2], server.url), { contracts: gated, sessionId: "killed", store: recorder(store), onCheckpoint: () => ({}) });
  await ask(openai[2], session.client);
  assert.deepEqual([session.getState().totalToolCalls, session.getState().totalBlockCount], [1, 0]);
  session.restore();
  await server.close();
});

test("a process killed while a tool runs leaves its call unknown: it takes room and satisfies nothing", async () => {
  const server = await provider(() => good);
  const store = file();
  const said = await killedAt("running", server.url, store, "tool");
  assert.match(said, /released/);
  const session = replay(clientOf(openai[2], server.url), { contracts: gated, sessionId: "killed", store: recorder(store), tools: { get_weather: () => assert.fail("it must not run again") }, onCheckpoint: () => ({}) });
  const error = await failure(ask(openai[2], session.client));
  assert.ok(error instanceof ReplayContractError, String(error));
  assert.equal(error.decision.reason, "forbidden_tool", "it may have happened");
  assert.deepEqual([session.getState().totalToolCalls, session.getHealth().unresolvedReceiptCount, session.getHealth().status], [0, 1, "degraded"]);
  assert.ok((await failure(session.tools.get_weather({ city: "Oslo" }))) instanceof ReplayContractError);
  session.restore();
  await server.close();
});

test("a process killed while a person decides leaves nothing allowed", async () => {
  const server = await provider(() => ({ calls: [call("get_weather", { city: "Rome" })] }));
  const store = file();
  const said = await killedAt("asked", server.url, store, "person");
  assert.doesNotMatch(said, /released/);
  const session = replay(clientOf(openai[2], server.url), {
    contracts: gated, sessionId: "killed", store: recorder(store),
    onCheckpoint: ({ checkpoint_id }) => ({ checkpoint_id, decision: "approve", decided_by: "bea", decided_at: new Date().toISOString() }),
  });
  await ask(openai[2], session.client);
  assert.deepEqual([session.getState().totalToolCalls, session.getState().checkpointCount], [1, 2], "asked again, and counted");
  session.restore();
  await server.close();
});

test("lines of a recorder never mix, however long they are", async () => {
  const path = file();
  const store = recorder(path);
  const text = Buffer.from(JSON.stringify("x".repeat(2 * 1024 * 1024)));
  await Promise.all(Array.from({ length: 6 }, (_, at) => (at % 2 === 0 ? store.putBlob(`blob/${at}`, text) : store.append(text))));
  const lines = readFileSync(path, "utf8").trimEnd().split("\n");
  assert.equal(lines.map((line) => JSON.parse(line)).length, 6);
});
