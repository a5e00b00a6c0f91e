// What a server recorded of a session, exported and run again in the test runner of the program, without a network.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { after, before, test } from "node:test";
import { replay } from "@reprise/replay";
import { recording, RecordingMiss } from "@reprise/replay/testing";
import { anthropic, ask, call, clientOf, contracts, openai } from "./clients.mjs";
import { weatherReport } from "./offline.mjs";
import { provider } from "./provider.mjs";
import { serve, until } from "./server.mjs";

let server;
before(async () => {
  server = await serve();
});
after(() => server.close());

const script = [{ text: "I look.", calls: [call("get_weather", { city: "Oslo" })] }, { text: "Cold." }];

/** Runs the program under the server, and exports its record. */
async function recorded(library, { stream = false, captureLevel = "full", flush = true, long = "" } = {}) {
  const model = await provider(script);
  const tools = { get_weather: async () => ({ degrees: -4, long }) };
  const options = { contracts: contracts("get_weather"), tools, captureLevel, apiKey: server.key, runtimeUrl: server.url };
  const session = replay(clientOf(library, model.url), options);
  const printed = await weatherReport(library, session, { stream });
  const { body: shown } = await server.ask("GET", `/api/v1/replay/sessions/${session.getState().sessionId}`);
  const task = shown.protocol.task_id;
  if (flush) {
    await session.flush();
    session.restore();
  } else session.kill();
  await until(async () => (await server.ask("GET", `/v1/tasks/${task}`)).body.receipt_id);
  await model.close();
  const file = `${server.home}/${task}.bundle`;
  const exported = await server.run("task", "export", task, file);
  assert.equal(exported.code, 0, exported.stderr);
  return { file, printed };
}

/** Runs the program's tests over a bundle in a process of their own. */
function tested(env) {
  return new Promise((resolve) => {
    const options = { cwd: new URL("..", import.meta.url).pathname, env: { PATH: process.env.PATH, ...env } };
    execFile(process.execPath, ["--test", "--test-reporter=tap", "test/offline.mjs"], options, (error, stdout) => resolve({ code: error?.code ?? 0, stdout }));
  });
}

for (const library of [openai[0], openai[2], anthropic[1]]) {
  for (const stream of [false, true]) {
    test(`${library.name}: an exported session runs again in the program's own tests (stream: ${stream})`, async () => {
      // Long values stand apart in a bundle, short ones in its events.
      const { file, printed } = await recorded(library, { stream, long: stream ? "x".repeat(40_000) : "" });
      const env = { REPRISE_TEST_BUNDLE: file, REPRISE_TEST_EXPECTED: printed, REPRISE_TEST_LIBRARY: library.name, REPRISE_TEST_STREAM: String(stream) };
      const ran = await tested(env);
      assert.equal(ran.code, 0, ran.stdout);
      assert.match(ran.stdout, /^# pass 3$/m);
      if (library !== openai[2]) return;
      const other = await tested({ ...env, REPRISE_TEST_EXPECTED: "something else" });
      assert.equal(other.code, 1, "a program that prints something else fails its test");
    });
  }
}

test("a session that the server recorded redacted is a miss that names the level", async () => {
  const library = openai[2];
  const { file } = await recorded(library, { captureLevel: "redacted" });
  const run = recording(file);
  const messages = [{ role: "user", content: "How is it in Oslo?" }];
  await assert.rejects(ask(library, clientOf(library, "http://127.0.0.1:9", { fetch: run.fetch }), { messages }), /captureLevel: "full"/);
  assert.throws(() => run.done(), RecordingMiss);
});

test("a bundle without answers, a damaged one and one of another format are refused by what is wrong", async () => {
  const library = openai[2];
  const { file: bare } = await recorded(library, { flush: false });
  assert.throws(() => recording(bare), /holds no recorded answers.*flush/);
  const { file } = await recorded(library, { long: "x".repeat(40_000) });
  const text = readFileSync(file, "utf8");
  const changed = (from, to) => {
    const other = `${file}.changed`;
    writeFileSync(other, text.replace(from, to));
    assert.notEqual(readFileSync(other, "utf8"), text);
    return other;
  };
  assert.throws(() => recording(changed("get_weather", "get_whether")), /damaged: its events/);
  assert.throws(() => recording(changed(/"base64":"..../, '"base64":"AAAA')), /damaged: a value is missing/);
  assert.throws(() => recording(changed("reprise-bundle-1", "reprise-bundle-9")), /reprise-bundle-9/);
  assert.throws(() => recording(changed(/^.*\n/, "not JSON\n")), /not JSON/);
});
