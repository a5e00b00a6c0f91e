// A program that asks about the weather, and its own tests over a record of it: `node --test offline.mjs` with a bundle in
// REPRISE_TEST_BUNDLE. There is neither a provider nor a server.
import assert from "node:assert/strict";
import { test } from "node:test";
import { replay } from "@reprise/replay";
import { recording, RecordingMiss } from "@reprise/replay/testing";
import { all, ask, clientOf, contracts } from "./clients.mjs";

/** The program: it asks, uses the tool, and asks again with the result. */
export async function weatherReport(library, session, { stream, city = "Oslo" } = {}) {
  const messages = [{ role: "user", content: `How is it in ${city}?` }];
  const first = await ask(library, session.client, { messages, stream });
  const events = [];
  if (stream) for await (const event of first) events.push(event);
  const result = await session.tools.get_weather({ city });
  messages.push({ role: "assistant", content: "I looked." }, { role: "user", content: `It is ${result.degrees} degrees. ${result.long}` });
  const said = await ask(library, session.client, { messages, tools: [] });
  return JSON.stringify([stream ? events : first, result, said]);
}

const { REPRISE_TEST_BUNDLE: bundle, REPRISE_TEST_EXPECTED: expected, REPRISE_TEST_LIBRARY: name } = process.env;

if (bundle) {
  const library = all.find((library) => library.name === name);
  const stream = process.env.REPRISE_TEST_STREAM === "true";
  const governed = (run) => replay(clientOf(library, "http://127.0.0.1:9", { fetch: run.fetch }), { contracts: contracts("get_weather"), tools: run.tools });

  test("the program does what it did", async () => {
    const run = recording(bundle);
    assert.equal(await weatherReport(library, governed(run), { stream }), expected);
    run.done();
  });

  test("a program that asks something else fails", async () => {
    const run = recording(bundle);
    await assert.rejects(weatherReport(library, governed(run), { stream, city: "Rome" }), /no recorded answer.*messages\.0\.content/);
    assert.throws(() => run.done(), RecordingMiss);
  });

  test("a tool that is called with something else fails", async () => {
    const { tools, done } = recording(bundle);
    await assert.rejects(tools.get_weather({ city: "Rome" }), RecordingMiss);
    assert.throws(done, RecordingMiss);
  });
}
