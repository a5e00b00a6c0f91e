// Wrapped tools between the moment they are allowed and the one in which they run: a session that ends there, and a store that
// fails there.
import assert from "node:assert/strict";
import { test } from "node:test";
import { replay, ReplayContractError, ReplayFaultError, ReplayInactiveError, ReplayKillError } from "@reprise/replay";
import { ask, call, clientOf, openai } from "./clients.mjs";
import { provider } from "./provider.mjs";

const library = openai[2];
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const failure = (promise) => promise.then(() => assert.fail("it went on"), (error) => error);

/** A store that can be slow, and can fail. */
function memory() {
  const records = [];
  return {
    records,
    ms: 0,
    isBroken: false,
    async append(bytes) {
      if (this.ms > 0) await pause(this.ms);
      if (this.isBroken) throw new Error("disk full");
      records.push(bytes);
    },
    async *read(from) {
      yield* records.slice(from);
    },
    head: async () => records.length,
    putBlob: async () => {},
    getBlob: async () => null,
  };
}

/** A session in which a call of `pay` waits for its tool. */
async function released(tool, options = {}) {
  const server = await provider(() => ({ calls: [call("pay", { city: "Oslo" }, "c1")] }));
  const session = replay(clientOf(library, server.url), { contracts: [{ tool: "pay", side_effect: "write", ...options.contract }], tools: { pay: tool }, ...options.session });
  await ask(library, session.client, { tools: ["pay"] });
  const pay = () => session.tools.pay({ city: "Oslo" }, { callId: "c1" });
  const close = () => {
    session.restore();
    return server.close();
  };
  return { session, pay, close };
}

test("a tool does not begin after the end of its session, however the end falls", async () => {
  for (const [end, Expected] of [["kill", ReplayKillError], ["restore", ReplayInactiveError]]) {
    const store = memory();
    let ran = 0;
    const { session, pay, close } = await released(() => (ran += 1), { session: { store } });
    store.ms = 60;
    const paid = failure(pay());
    await pause(15);
    session[end]();
    assert.ok((await paid) instanceof Expected);
    await pause(250);
    assert.equal(ran, 0, end);
    await close();
    // Without a store there are only the turns of the queue in between.
    for (let turns = 0; turns < 12; turns += 1) {
      let isOver = false;
      let late = 0;
      const world = await released(() => (late += isOver ? 1 : 0));
      const answer = world.pay().catch(() => {});
      for (let at = 0; at < turns; at += 1) await null;
      world.session[end]();
      isOver = true;
      await answer;
      await pause(1);
      assert.equal(late, 0, `${end} after ${turns}`);
      await world.close();
    }
  }
});

test("a tool is not tried again after the end of its session", async () => {
  for (const end of ["kill", "restore"]) {
    let ran = 0;
    const tool = async () => {
      ran += 1;
      await pause(30);
      throw Object.assign(new Error("busy"), { code: "E" });
    };
    const { session, pay, close } = await released(tool, { contract: { side_effect: "read", retries: { max_attempts: 3, retry_on: ["E"] } } });
    const paid = failure(pay());
    await pause(10);
    session[end]();
    await paid;
    await pause(150);
    assert.equal(ran, 1, end);
    await close();
  }
});

test("a store that fails before a tool runs is a fault, and the call is not used up", async () => {
  const store = memory();
  let ran = 0;
  const { session, pay, close } = await released(() => (ran += 1), { session: { store } });
  store.isBroken = true;
  for (let again = 0; again < 2; again += 1) assert.ok((await failure(pay())) instanceof ReplayFaultError);
  assert.equal(ran, 0);
  store.isBroken = false;
  assert.equal(await pay(), 1);
  assert.ok((await failure(pay())) instanceof ReplayContractError, "it is used up now");
  assert.equal(session.getState().totalToolCalls, 1);
  const kinds = store.records.map((bytes) => JSON.parse(Buffer.from(bytes).toString()).seq).filter((seq) => seq !== undefined);
  assert.deepEqual(kinds, kinds.map((_, at) => at), "each record is stored once, in order");
  await close();
});

test("with onError: allow a tool runs although its store fails, and it is counted", async () => {
  const store = memory();
  let ran = 0;
  const { session, pay, close } = await released(() => (ran += 1), { session: { store, onError: "allow", maxUnguardedCalls: 9 } });
  store.isBroken = true;
  assert.equal(await pay(), 1);
  assert.ok(session.getState().totalUnguardedCalls >= 1);
  assert.equal(ran, 1);
  await close();
});

test("a store that fails after a tool has run: the caller gets what it returned, and the failure is in the diagnostics", async () => {
  for (const onError of ["block", "allow"]) {
    const store = memory();
    const heard = [];
    const tool = () => {
      store.isBroken = true;
      return "paid";
    };
    const { session, pay, close } = await released(tool, { session: { store, onError, maxUnguardedCalls: 9, diagnostics: ({ name, data }) => heard.push([name, data.call_id]) } });
    assert.equal(await pay(), "paid");
    assert.ok(heard.some(([name, id]) => name === "store_failed" && id === "c1"), JSON.stringify(heard));
    if (onError === "block") assert.ok((await failure(ask(library, session.client, { tools: ["pay"] }))) instanceof ReplayFaultError, "nothing is released before it is stored");
    await close();
  }
});
