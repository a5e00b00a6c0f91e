// What a session costs beside the model: `node cost.mjs [CALLS] [LIBRARY]`. Prints one JSON object, and fails when a limit is
// exceeded.
//
// 100 contracts, 50 tools offered, a model on loopback in another process. Turns of fifty calls with the plain client and with
// the governed one follow each other, so that whatever else the machine does falls on both; the cost of a call is the difference
// of the medians, in processor time of this process (all its threads) and in time on the clock.
import { execFileSync, fork } from "node:child_process";
import { once } from "node:events";
import { fileURLToPath } from "node:url";

const TURN = 50;
const LIMITS = { call_us: 200, import_ms: 20 };
const median = (values) => values.sort((a, b) => a - b)[values.length >> 1];

if (process.argv[2] === "provider") await serve();
else await measure(Number(process.argv[2] ?? 5000));

/** The model: it answers each request with the same call. */
async function serve() {
  const { provider } = await import("./provider.mjs");
  const { call } = await import("./clients.mjs");
  const model = await provider((request) => {
    model.requests.length = 0;
    return { calls: [call("tool_1", { city: "Oslo" }, `call_${request.number}`)] };
  });
  // It lives as long as the process that it was started by.
  process.on("message", () => {});
  process.on("disconnect", () => process.exit(0));
  process.send(model.url);
}

async function measure(calls) {
  const { replay } = await import("@reprise/replay");
  const { all, chatTool, clientOf, contracts, isOpenAi, messagesTool } = await import("./clients.mjs");
  const model = fork(fileURLToPath(import.meta.url), ["provider"]);
  const [url] = await once(model, "message");
  const names = Array.from({ length: 100 }, (_, at) => `tool_${at}`);
  const library = all.find(({ name }) => name === (process.argv[3] ?? "openai7"));
  const tools = names.slice(0, 50).map((name) => (isOpenAi(library) ? chatTool : messagesTool)(name));
  const messages = [{ role: "user", content: "x" }];
  const ask = isOpenAi(library)
    ? (client) => client.chat.completions.create({ model: "m", messages, tools })
    : (client) => client.messages.create({ model: "m", max_tokens: 100, messages, tools });
  const clients = { plain: clientOf(library, url), governed: replay(clientOf(library, url), { contracts: contracts(...names) }).client };
  const processor = { plain: [], governed: [] };
  const clock = { plain: [], governed: [] };
  for (let done = -TURN; done < calls; done += TURN) {
    for (const [name, client] of Object.entries(clients)) {
      const began = process.cpuUsage();
      const times = [];
      for (let at = 0; at < TURN; at += 1) {
        const start = performance.now();
        await ask(client);
        times.push((performance.now() - start) * 1000);
      }
      const { user, system } = process.cpuUsage(began);
      // The first turn is for the compiler.
      if (done < 0) continue;
      processor[name].push((user + system) / TURN);
      clock[name].push(...times);
    }
  }
  model.kill();
  const cost = (figures) => {
    const [plain, governed] = [median(figures.plain), median(figures.governed)].map(Math.round);
    return { plain_us: plain, governed_us: governed, cost_us: governed - plain };
  };
  const figures = { library: library.name, calls, processor: cost(processor), clock: cost(clock), import_ms: importTime(), limits: LIMITS };
  console.log(JSON.stringify(figures, null, 2));
  const isOver = figures.processor.cost_us > LIMITS.call_us || figures.import_ms > LIMITS.import_ms;
  process.exit(isOver ? 1 : 0);
}

/** Processor time of an import in a new process, the median of nine. */
function importTime() {
  const program = 'const began = process.cpuUsage(); require("@reprise/replay"); const { user, system } = process.cpuUsage(began); console.log((user + system) / 1000);';
  const times = Array.from({ length: 9 }, () => Number(execFileSync(process.execPath, ["-e", program], { cwd: fileURLToPath(new URL(".", import.meta.url)), encoding: "utf8" })));
  return Math.round(median(times) * 10) / 10;
}
