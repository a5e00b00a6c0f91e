// Programs as documentation prints them: our own quickstart, and the samples of the published API where they stand beside the
// checkout. Those are run as printed; only the name of the package is another, and where a sample leaves a request out
// (`{ ... }`) one is put in.
import assert from "node:assert/strict";
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { execFileSync } from "node:child_process";
import { join } from "node:path";
import { test } from "node:test";
import { replay, ReplayKillError } from "@reprise/replay";
import { call, chatTool, clientOf, contracts, openai } from "./clients.mjs";
import { provider } from "./provider.mjs";

const here = new URL(".", import.meta.url).pathname;

test("the quickstart of the documentation runs as printed", () => {
  const text = readFileSync(new URL("../node.md", import.meta.url), "utf8");
  const [, program] = text.match(/```js\n\/\/ quick\.mjs\n([\s\S]*?)```/);
  assert.ok(program.trim().split("\n").length <= 10, "ten lines");
  const file = join(here, `quick-${process.pid}.mjs`);
  writeFileSync(file, program.replace('from "openai"', 'from "openai7"'));
  const said = execFileSync(process.execPath, [file], { encoding: "utf8" });
  assert.equal(said, "blocked by contract: delete_account: unmatched_tool_blocked, no_contract\n");
});

/** The samples of the published API: each begins with an import of the package and ends where prose goes on. */
function samples() {
  const folder = process.env.REPRISE_TEST_SEEDS;
  if (!folder) return [];
  const isCode = (line) => /[;{}]\s*(\/\/.*)?$/.test(line) || /^\s*\/\//.test(line);
  const found = [];
  for (const name of readdirSync(folder)) {
    const lines = readFileSync(join(folder, name), "utf8").split("\n");
    for (const [at, line] of lines.entries()) {
      if (!/^import \{.*\} from "@[\w-]+\/replay";/.test(line)) continue;
      const rest = lines.slice(at);
      const length = rest.findIndex((one) => !isCode(one));
      found.push(rest.slice(0, length).join("\n"));
    }
  }
  return found;
}

const printed = samples();
test("the published samples run as printed", { skip: !process.env.REPRISE_TEST_SEEDS }, async () => {
  assert.ok(printed.length >= 3, "samples were found");
  const AsyncFunction = (async () => {}).constructor;
  const said = { ReplayContractError: 0, ReplayKillError: 0 };
  for (const sample of printed) {
    const names = sample.match(/^import \{ (.*) \} from/)[1].split(", ");
    const body = sample.replace(/^import .*\n/, "").replace(/\{ \.\.\. \}/g, "request");
    const module = await import("@reprise/replay");
    const server = await provider(() => ({ calls: [call("drop_table", { city: "x" })] }));
    const client = clientOf(openai[2], server.url);
    const options = { contracts: contracts("get_weather") };
    const request = { model: "m", messages: [{ role: "user", content: "x" }], tools: [chatTool("drop_table")] };
    const lines = [];
    const console = { log: (...values) => lines.push(values) };
    const own = body.includes("= replay(") ? null : replay(client, options);
    if (names.includes("ReplayKillError")) own.kill();
    const given = { client, options, request, session: own, console };
    // The sample declares the session itself where it makes one.
    if (own === null) delete given.session;
    for (const name of names) given[name] = module[name];
    const made = await new AsyncFunction(...Object.keys(given), `${body}\nreturn typeof session === "undefined" ? null : session;`)(...Object.values(given));
    assert.ok(made, sample);
    if (names.includes("ReplayContractError")) {
      assert.equal(lines.length, 3, sample);
      assert.deepEqual([lines[0][0].action, lines[1][0], Array.isArray(lines[2][0])], ["rejected", null, true]);
      said.ReplayContractError += 1;
    }
    if (names.includes("ReplayKillError")) {
      assert.equal(lines.length, 1, sample);
      said.ReplayKillError += 1;
    }
    made.restore();
    await server.close();
  }
  assert.deepEqual(said, { ReplayContractError: 1, ReplayKillError: 1 });
});

test("every member of a session is there, and snapshots have the published fields and types", async () => {
  const server = await provider([{ calls: [call("get_weather", { city: "Oslo" })] }]);
  const session = replay(clientOf(openai[2], server.url), { contracts: contracts("get_weather"), agent: "desk" });
  await session.client.chat.completions.create({ model: "m", messages: [{ role: "user", content: "x" }], tools: [chatTool("get_weather")] });
  for (const name of ["flush", "restore", "kill", "addLabel", "getState", "getHealth", "getLastNarrowing", "getLastShadowDelta", "narrow", "widen", "getWorkflowState", "handoff"]) {
    assert.equal(typeof session[name], "function", name);
  }
  const state = session.getState();
  const types = {
    sessionId: "string", agent: "string", startedAt: "object", stateVersion: "number", controlRevision: "number", currentPhase: "object", totalStepCount: "number",
    totalToolCalls: "number", totalCost: "number", actualCost: "number", toolCallCounts: "object", forbiddenTools: "object", satisfiedPreconditions: "object",
    lastStep: "object", lastNarrowing: "object", killed: "boolean", totalUnguardedCalls: "number", consecutiveBlockCount: "number", totalBlockCount: "number",
  };
  for (const [name, type] of Object.entries(types)) assert.equal(typeof state[name], type, name);
  assert.equal(state.principal, null);
  assert.ok(state.startedAt instanceof Date && Array.isArray(state.forbiddenTools));
  const health = session.getHealth();
  for (const name of ["cluster_detected", "bypass_detected", "killed"]) assert.equal(typeof health[name], "boolean", name);
  for (const name of ["totalSteps", "totalBlocks", "totalErrors", "shadowEvaluations"]) assert.equal(typeof health[name], "number", name);
  for (const name of ["status", "authorityState", "protectionLevel", "durability", "tier", "compatEnforcement"]) assert.equal(typeof health[name], "string", name);
  session.kill();
  await assert.rejects(session.client.chat.completions.create({ model: "m", messages: [] }), (error) => error instanceof ReplayKillError);
  await server.close();
});
