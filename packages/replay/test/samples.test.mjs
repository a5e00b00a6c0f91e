// Programs as documentation prints them: our own quickstart, and the samples of the published API where they stand beside the
// checkout. Those are run as printed; only the name of the package is another, and where a sample leaves a request out
// (`{ ... }`) one is put in.
import assert from "node:assert/strict";
import { execFileSync, spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
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

/** The printed types, in a namespace of their own; names that are used there and not printed are those of the package. */
function printedTypes(text) {
  const types = [...text.matchAll(/^type (\w+)(<T>)? = \{\n[\s\S]*?^\};/gm)];
  const names = types.map(([, name]) => name);
  const body = types.map(([block]) => `export ${block}`).join("\n");
  const without = body.replace(/\/\/.*$/gm, "").replace(/"[^"]*"/g, "");
  const used = new Set(without.match(/\b[A-Z]\w+\b/g).filter((name) => !names.includes(name) && !["Date", "Record", "Array", "Promise"].includes(name)));
  const aliases = [...used].map((name) => `type ${name} = Own.${name};`).join("\n");
  return { names, source: `namespace Printed {\n${aliases}\n${body}\n}` };
}

test("the published types are those of the package", { skip: !process.env.REPRISE_TEST_SEEDS }, () => {
  const folder = process.env.REPRISE_TEST_SEEDS;
  const texts = readdirSync(folder).map((name) => readFileSync(join(folder, name), "utf8"));
  const { names, source } = printedTypes(texts.find((text) => /^type ReplaySession<T> = /m.test(text)));
  assert.ok(names.length >= 8, names.join());
  // Options that are printed can be given. What a session gives has the printed members; it may have more, and it is frozen.
  const program = `import type * as Own from "@reprise/replay";
    ${source}
    type Loose<T> = T extends Date | ((...values: any[]) => any) ? T : T extends readonly (infer E)[] ? Loose<E>[] : T extends object ? { -readonly [K in keyof T]: Loose<T[K]> } : T;
    // A session that is kept on a disk of its own is one more case than was printed.
    type Health = Omit<Own.ReplayHealthSnapshot, "durability"> & { durability: Exclude<Own.ReplayHealthSnapshot["durability"], "local"> };
    // Tools are removed for two more reasons than were printed.
    type Narrowed = Omit<Loose<Own.NarrowedTool>, "reason"> & { reason: Exclude<Own.NarrowedTool["reason"], "limit_reached" | "risk_gate"> };
    export const options = (given: Omit<Printed.ReplayOptions, "onNarrow">): Own.ReplayOptions => given;
    export const session = <T,>(own: Pick<Own.ReplaySession<T>, Exclude<keyof Printed.ReplaySession<T>, "getState" | "getHealth" | "getLastNarrowing">>) => own satisfies Omit<Printed.ReplaySession<T>, "getState" | "getHealth" | "getLastNarrowing">;
    export const state = (own: Loose<Own.SessionStateSnapshot>): Omit<Printed.SessionStateSnapshot, "lastStep" | "lastNarrowing"> => own;
    export const health = (own: Loose<Health>): Printed.ReplayHealthSnapshot => own;
    export const narrowed = (own: Loose<Own.NarrowResult>): Omit<Printed.NarrowResult, "removed"> => own;
    export const tool = (own: Narrowed): Printed.NarrowedTool => own;
    export const reason = (given: Printed.NarrowedTool["reason"]): Own.NarrowedTool["reason"] => given;
    export const asked = (own: Loose<Own.ApprovalRequest>): Printed.ApprovalRequest => own;
    export const answered = (given: Printed.ApprovalResponse): Own.ApprovalResponse => given;
    export const both: [keyof Printed.SessionStateSnapshot extends keyof Own.SessionStateSnapshot ? true : false, keyof Printed.ReplayHealthSnapshot extends keyof Own.ReplayHealthSnapshot ? true : false] = [true, true];
  `;
  const place = mkdtempSync(join(here, "printed-"));
  try {
    writeFileSync(join(place, "printed.mts"), program);
    const compilerOptions = { strict: true, noEmit: true, target: "es2022", lib: ["es2022", "dom"], module: "nodenext", moduleResolution: "nodenext", types: ["node"], skipLibCheck: true };
    writeFileSync(join(place, "tsconfig.json"), JSON.stringify({ compilerOptions, files: ["printed.mts"] }));
    const tsc = join(dirname(createRequire(import.meta.url).resolve("typescript/package.json")), "bin/tsc");
    const ran = spawnSync(process.execPath, [tsc, "-p", place], { encoding: "utf8" });
    assert.equal(ran.status, 0, ran.stdout + ran.stderr);
  } finally {
    rmSync(place, { recursive: true });
  }
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
