// Several sessions on one job: roles, handoffs, common limits, and a kill that reaches all that came from a session.
import assert from "node:assert/strict";
import { test } from "node:test";
import { mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { replay, ReplayConfigError, ReplayContractError, ReplayKillError } from "@reprise/replay";
import { ask, call, clientOf, openai } from "./clients.mjs";
import { provider } from "./provider.mjs";

const library = openai[2];
const failure = (promise) => promise.then(() => assert.fail("it was released"), (error) => error);
const pay = (order, id = `c-${order}`) => ({ calls: [call("pay", { city: "Oslo", order_id: order }, id)] });

const folder = mkdtempSync(join(tmpdir(), "reprise-workflow-"));
writeFileSync(join(folder, "pay.yaml"), 'tool: pay\nside_effect: write\nbinds:\n  - { slot: order, from: arguments, path: "$.order_id" }\n');
writeFileSync(
  join(folder, "session.yaml"),
  'schema_version: "1.0"\nagent: desk\n',
);
writeFileSync(
  join(folder, "workflow.yaml"),
  `schema_version: "1.0"
workflow: job
roles:
  - { name: desk, session_contract: session.yaml }
  - { name: inspector, session_contract: session.yaml }
handoffs:
  - { from: desk, to: inspector }
limits: { max_sessions: 2, max_tool_calls: 3 }
shared_resources:
  - { name: order, path: "$.order_id", tools: [pay], mode: exclusive }
`,
);

let count = 0;
/** A root and what it needs. */
async function root(script, options = {}) {
  const model = await provider(script);
  const workflowId = `w-${process.pid}-${(count += 1)}`;
  const open = (extra) =>
    replay(clientOf(library, model.url), { contractsDir: folder, tools: { pay: () => ({}) }, ...options, ...extra });
  const session = open({ workflow: { type: "root", workflowId, role: "desk" } });
  const child = (handoffId, extra) => open({ workflow: { type: "child", workflowId, role: "inspector", handoffId }, ...extra });
  return { session, child, model, workflowId, open };
}

const turn = (session) => ask(library, session.client, { tools: ["pay"] });

test("work is handed over: the child has the labels and the carried slots, and nothing else", async () => {
  const { session, child, workflowId } = await root([pay("A"), { text: "hello" }]);
  session.addLabel("vip");
  await turn(session);
  await session.tools.pay({ city: "Oslo", order_id: "A" });
  const offer = await session.handoff({ to_role: "inspector", summary: "look at it", carry: ["order"] });
  assert.deepEqual([offer.status, typeof offer.handoff_id, typeof offer.expires_at], ["open", "string", "string"]);
  const before = await session.getWorkflowState();
  assert.deepEqual([before.workflow_id, before.role, before.tool_calls, before.open_offers.length], [workflowId, "desk", 1, 1]);
  const revision = session.getState().controlRevision;
  const inspector = child(offer.handoff_id);
  assert.equal(session.getState().controlRevision, revision + 1, "an accepted handoff is a control action");
  assert.deepEqual(inspector.getState().labels, ["vip"]);
  assert.equal(inspector.getState().totalToolCalls, 0);
  await turn(inspector);
  const state = await inspector.getWorkflowState();
  assert.deepEqual(state.sessions.map((one) => [one.role, one.status]).sort(), [["desk", "open"], ["inspector", "open"]]);
  assert.equal(state.open_offers.length, 0);
  assert.throws(() => child(offer.handoff_id), (error) => error.condition === "workflow_not_found", "an offer is taken once");
  inspector.restore();
  assert.equal((await session.getWorkflowState()).sessions.find((one) => one.role === "inspector").status, "ended");
  session.restore();
});

test("limits and shared things hold over all sessions", async () => {
  const { session, child } = await root([pay("A"), pay("A", "c2"), pay("B"), pay("C"), { text: "no" }]);
  await turn(session);
  const offer = await session.handoff({ to_role: "inspector", summary: "x" });
  const inspector = child(offer.handoff_id);
  const busy = await failure(turn(inspector));
  assert.ok(busy instanceof ReplayContractError);
  assert.deepEqual([busy.decision.reason, busy.decision.detail], ["session_limit_exceeded", "resource_busy"]);
  await session.tools.pay({ city: "Oslo", order_id: "A" });
  await turn(inspector);
  await turn(inspector);
  const over = await failure(turn(session));
  assert.deepEqual([over.decision.reason, over.decision.detail], ["session_limit_exceeded", "workflow"]);
  session.restore();
  inspector.restore();
});

test("a killed root stops all that came from it, also calls under way; a killed child does not stop the root", async () => {
  for (const which of ["root", "child"]) {
    const { session, child } = await root((request) => ({ text: "x", delay: 300 }));
    const offer = await session.handoff({ to_role: "inspector", summary: "x" });
    const inspector = child(offer.handoff_id);
    const answer = turn(inspector).catch((error) => error);
    await new Promise((resolve) => setTimeout(resolve, 50));
    (which === "root" ? session : inspector).kill();
    assert.ok((await answer) instanceof ReplayKillError, which);
    assert.equal(inspector.getHealth().authorityState, "killed");
    assert.equal(session.getHealth().killed, which === "root");
    session.restore();
  }
});

test("what a workflow file does not permit is refused, and outside of a workflow there is nothing to hand over", async () => {
  const { session, open, workflowId, child } = await root([]);
  await assert.rejects(session.handoff({ to_role: "nobody", summary: "x" }), (error) => error.condition === "invalid_option");
  await assert.rejects(session.handoff({ to_role: "inspector", summary: "x", carry: ["order"] }), /slot `order` is not set/);
  await assert.rejects(session.handoff({ summary: "x" }), ReplayConfigError);
  assert.throws(() => open({ workflow: { type: "root", workflowId, role: "desk" } }), /begun already/);
  assert.throws(() => child("ho_nobody"), (error) => error.condition === "workflow_not_found");
  assert.throws(() => open({ workflow: { type: "child", workflowId: "none", role: "desk", handoffId: "x" } }), (error) => error.condition === "workflow_not_found");
  assert.throws(() => open({ workflow: { type: "root", workflowId: "w2", role: "nobody" } }), (error) => error.condition === "workflow_not_found");
  assert.throws(() => open({ workflow: { type: "half" } }), ReplayConfigError);
  session.restore();
  const without = replay(clientOf(library, "http://127.0.0.1:9"), { contracts: [{ tool: "pay", side_effect: "write" }] });
  assert.deepEqual([await without.handoff({ to_role: "a", summary: "b" }), await without.getWorkflowState()], [null, null]);
  without.restore();
  const client = clientOf(library, "http://127.0.0.1:9");
  const alone = { contracts: [{ tool: "pay", side_effect: "write" }], workflow: { type: "root", workflowId: "w3", role: "desk" } };
  assert.throws(() => replay(client, alone), (error) => error.condition === "workflow_not_found", "a root needs a workflow file");
});
