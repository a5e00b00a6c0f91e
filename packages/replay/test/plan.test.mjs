// Sessions without contracts of their own: rules come from the server, and the environment says what they do.
import assert from "node:assert/strict";
import { mkdir, writeFile } from "node:fs/promises";
import { after, before, test } from "node:test";
import { observe, replay, ReplayConfigError, ReplayContractError, ReplayUnsupportedError } from "@reprise/replay";
import { call, chatTool, clientOf, openai } from "./clients.mjs";
import { provider } from "./provider.mjs";
import { serve } from "./server.mjs";

let server;
before(async () => {
  server = await serve();
  const folder = (name) => `${server.home}/${name}`;
  for (const [name, agent, rule] of [
    ["weather", "forecaster", ""],
    ["one", "twin", ""],
    ["two", "twin", ""],
    ["guarded", "clerk", "policy:\n  default: deny\n  rules:\n    - { id: clerks, effect: allow, when: [ { path: $.role, equals: clerk } ] }\n"],
  ]) {
    await mkdir(folder(name));
    await writeFile(folder(`${name}/get_weather.yaml`), "tool: get_weather\nside_effect: read\nargument_value_invariants:\n  - { path: $.city, one_of: [Oslo] }\n");
    await writeFile(folder(`${name}/session.yaml`), `schema_version: "1.0"\nagent: ${agent}\n${rule}`);
  }
  const sets = ["weather", "one", "two", "guarded"].map((name) => `[[contracts]]\nname = "${name}"\nfolder = "${name}"\nprincipal = { role = "clerk" }\n`);
  await writeFile(folder("reprise.toml"), sets.join("\n"));
  await server.kill();
  server.options = ["--config", "reprise.toml"];
  await server.start();
});
after(() => server.close());

const library = openai[2];
const failure = (promise) => promise.then(() => assert.fail("it was released"), (error) => error);
const oslo = { calls: [call("get_weather", { city: "Oslo" })] };
const rome = { calls: [call("get_weather", { city: "Rome" })] };

/** A program that brings no contracts. */
async function planned(script, options = {}) {
  const model = await provider(script);
  const heard = [];
  const session = replay(clientOf(library, model.url), {
    agent: "forecaster",
    apiKey: server.key,
    runtimeUrl: server.url,
    diagnostics: (event) => heard.push(event),
    ...options,
  });
  const turn = () => session.client.chat.completions.create({ model: "gpt-test", messages: [{ role: "user", content: "x" }], tools: [chatTool("get_weather"), chatTool("other")] });
  return { session, model, turn, heard };
}

const shown = async (session) => (await server.ask("GET", `/api/v1/replay/sessions/${session.getState().sessionId}`)).body;
const attachment = ({ session }) => session.getHealth().governanceAttachment;

test("production: the rules of the server are enforced", async () => {
  const world = await planned([oslo, rome], { labels: ["first"], environment: "production" });
  const { session, model, turn } = world;
  assert.equal(attachment(world), "not_applicable", "nothing was looked up yet");
  session.addLabel("second");
  await turn();
  assert.equal(attachment(world), "attached");
  assert.deepEqual(model.requests[0].body.tools.map((tool) => tool.function.name), ["get_weather"]);
  const error = await failure(turn());
  assert.ok(error instanceof ReplayContractError && error instanceof library.Client.OpenAIError, String(error));
  assert.equal(error.decision.reason, "argument_value_mismatch");
  assert.deepEqual([session.getHealth().authorityState, session.getHealth().status], ["active", "healthy"]);
  const state = await shown(session);
  assert.deepEqual([...state.labels].sort(), ["first", "second"]);
  assert.deepEqual([session.getState().labels, session.getState().stateVersion, session.getState().controlRevision], [state.labels, state.stateVersion, state.controlRevision]);
  session.restore();
});

test("the environment is production unless something else is said, also in a variable", async () => {
  const world = await planned([rome]);
  assert.ok((await failure(world.turn())) instanceof ReplayContractError);
  for (const [variable, released] of [["development", true], ["anything", false]]) {
    process.env.REPRISE_ENVIRONMENT = variable;
    try {
      const { turn } = await planned([rome]);
      const ended = await turn().then(() => true, () => false);
      assert.equal(ended, released, variable);
    } finally {
      delete process.env.REPRISE_ENVIRONMENT;
    }
  }
});

test("staging: the rules are judged by and reported, and nothing is blocked", async () => {
  const { session, turn, heard, model } = await planned([rome], { environment: "staging" });
  const answer = await turn();
  assert.equal(answer.choices[0].message.tool_calls.length, 1);
  assert.equal(model.requests[0].body.tools.length, 2);
  const violation = heard.find((event) => event.name === "violation");
  assert.deepEqual([violation?.data.reason, violation?.data.tool], ["argument_value_mismatch", "get_weather"], JSON.stringify(heard));
  const health = session.getHealth();
  assert.deepEqual([health.governanceAttachment, health.authorityState, health.protectionLevel], ["attached", "advisory", "monitor"]);
  session.restore();
});

test("what cannot be judged is refused as the environment says, also before anything else was asked", async () => {
  for (const [environment, isRefused] of [["production", true], ["staging", false], ["development", false]]) {
    const { session, model } = await planned([], { environment });
    const asked = session.client.post("/completions", { body: { model: "m", prompt: "x" } }).then(() => null, (error) => error);
    const fetched = await session.fetch(`${model.url}/v1/completions`, { method: "POST", body: "{}" });
    const error = await asked;
    assert.equal(error instanceof ReplayUnsupportedError, isRefused, `${environment}: ${error}`);
    assert.equal(fetched.status === 403, isRefused, `${environment}: ${fetched.status}`);
    assert.equal(model.requests.length, isRefused ? 0 : 2, environment);
    session.restore();
  }
});

test("development: the rules are judged by, and nothing is blocked", async () => {
  const { session, turn, heard } = await planned([rome], { environment: "development" });
  await turn();
  assert.equal(session.getHealth().governanceAttachment, "attached");
  assert.deepEqual(session.getLastShadowDelta().would_have_blocked.map((one) => one.reason), ["argument_value_mismatch"]);
  assert.ok(!heard.some((event) => event.name === "violation"));
  assert.equal((await shown(session)).attemptCount, 1);
});

for (const [agent, word] of [["nobody", "no_plan"], ["twin", "artifact_invalid"]]) {
  test(`${word}: staging and production send nothing, development records`, async () => {
    for (const environment of ["staging", "production"]) {
      const world = await planned([rome], { agent, environment, onError: "allow" });
      const error = await failure(world.turn());
      assert.ok(error instanceof ReplayConfigError && error instanceof library.Client.OpenAIError, String(error));
      assert.deepEqual([error.condition, error.governanceAttachment], ["invalid_option", word]);
      assert.equal(world.model.requests.length, 0);
      assert.equal(attachment(world), word);
    }
    const world = await planned([rome], { agent, environment: "development" });
    await world.turn();
    assert.equal(attachment(world), word);
    assert.equal(world.session.getHealth().authorityState, "advisory");
    assert.equal((await shown(world.session)).attemptCount, 1, "it is in the record of the server");
    world.session.restore();
  });
}

test("rules that the program cannot work by: attachment_failed", async () => {
  const refused = await planned([oslo], { agent: "clerk" });
  const error = await failure(refused.turn());
  assert.deepEqual([error.condition, error.governanceAttachment], ["policy_without_principal", "attachment_failed"]);
  assert.equal(refused.model.requests.length, 0);
  const fits = await planned([oslo], { agent: "clerk", principal: { role: "clerk" } });
  await fits.turn();
  assert.equal(attachment(fits), "attached");
  const world = await planned([rome], { agent: "clerk", environment: "development" });
  await world.turn();
  assert.deepEqual([attachment(world), world.session.getHealth().status], ["attachment_failed", "degraded"]);
});

test("a server that cannot be asked: production sends nothing and looks again, development records here", async () => {
  const gone = { runtimeUrl: "http://127.0.0.1:9" };
  const refused = await planned([oslo], { ...gone, onError: "allow" });
  const error = await failure(refused.turn());
  assert.ok(error instanceof ReplayConfigError);
  assert.equal(error.governanceAttachment, "fetch_failed");
  assert.equal(refused.model.requests.length, 0);
  assert.equal(attachment(refused), "fetch_failed");
  const world = await planned([rome, rome], { ...gone, environment: "development" });
  await world.turn();
  await world.turn();
  assert.deepEqual([attachment(world), world.session.getHealth().status, world.session.getState().attemptCount], ["fetch_failed", "degraded", 2]);
  world.session.restore();
  await server.kill();
  const late = await planned([oslo], {});
  assert.ok((await failure(late.turn())) instanceof ReplayConfigError);
  await server.start();
  await late.turn();
  assert.equal(attachment(late), "attached");
});

test("without contracts and without an agent there is nothing to look up", () => {
  assert.throws(() => replay(clientOf(library, "http://127.0.0.1:9"), { apiKey: "k", runtimeUrl: "http://127.0.0.1:9" }), /contracts are missing.*`agent`/);
  assert.throws(() => replay(clientOf(library, "http://127.0.0.1:9"), { agent: "forecaster" }), /contracts are missing/);
});

test("an observer is in the record of the server", async () => {
  const model = await provider(() => rome);
  const observed = observe(clientOf(library, model.url), { sessionId: "watched", apiKey: server.key, runtimeUrl: server.url });
  await observed.client.chat.completions.create({ model: "m", messages: [{ role: "user", content: "x" }] });
  await observed.flush();
  const { status, body } = await server.ask("GET", "/api/v1/replay/sessions/watched");
  assert.deepEqual([status, body.attemptCount, observed.getHealth().unresolvedReceiptCount], [200, 1, 0]);
  observed.restore();
  await model.close();
});

test("an observer never stands in the way, also when its server is gone", async () => {
  const model = await provider(() => rome);
  const observed = observe(clientOf(library, model.url), { apiKey: server.key, runtimeUrl: "http://127.0.0.1:9" });
  for (let at = 0; at < 5; at += 1) {
    const answer = await observed.client.chat.completions.create({ model: "m", messages: [{ role: "user", content: "x" }] });
    assert.equal(answer.choices[0].message.tool_calls.length, 1);
  }
  assert.equal(observed.getHealth().killed, false);
  observed.restore();
  await model.close();
});
