// What a session costs beside the model: `node cost.mjs [CALLS]`. Prints one JSON object.
//
// 100 contracts, 50 tools offered, a model on loopback in the same process. The cost of a call is the processor time of the
// governed client less that of the plain one, in turns of fifty calls, so that the rest falls on both.
import { replay } from "@reprise/replay";
import { call, chatTool, clientOf, contracts, openai } from "./clients.mjs";
import { provider } from "./provider.mjs";

const calls = Number(process.argv[2] ?? 2000);
const library = openai[2];
const names = Array.from({ length: 100 }, (_, at) => `tool_${at}`);
const tools = names.slice(0, 50).map((name) => chatTool(name));
const server = await provider(() => ({ calls: [call("tool_1", { city: "Oslo" })] }));
const plain = clientOf(library, server.url);
const session = replay(clientOf(library, server.url), { contracts: contracts(...names) });
const ask = (client) => client.chat.completions.create({ model: "m", messages: [{ role: "user", content: "x" }], tools });

async function cost(client, count) {
  const began = process.cpuUsage();
  for (let at = 0; at < count; at += 1) await ask(client);
  const { user, system } = process.cpuUsage(began);
  server.requests.length = 0;
  return (user + system) / count;
}

const median = (values) => values.sort((a, b) => a - b)[values.length >> 1];
const TURN = 50;
const costs = { plain: [], governed: [] };
for (let done = 0; done < calls; done += TURN) {
  costs.plain.push(await cost(plain, TURN));
  costs.governed.push(await cost(session.client, TURN));
}
const [without, governed] = [median(costs.plain), median(costs.governed)].map(Math.round);
console.log(JSON.stringify({ calls, plain_us: without, governed_us: governed, cost_us: governed - without, limit_us: 200 }));
process.exit(0);
