// What a session keeps: `node --expose-gc memory.mjs [CALLS]`. Prints one JSON object, with the memory of the process after the
// first thousand calls and after all of them.
//
// The model answers inside the process, so that a hundred thousand calls take a minute and no socket is measured.
import { replay } from "@reprise/replay";
import { chatTool, clientOf, contracts, openai } from "./clients.mjs";

const calls = Number(process.argv[2] ?? 100_000);
const names = Array.from({ length: 100 }, (_, at) => `tool_${at}`);
const tools = names.slice(0, 50).map((name) => chatTool(name));
const message = { role: "assistant", content: null, tool_calls: [{ id: "c1", type: "function", function: { name: "tool_1", arguments: '{"city":"Oslo"}' } }] };
const answer = (id) => JSON.stringify({ id: `chatcmpl-${id}-of-a-length-that-such-ids-have`, object: "chat.completion", created: 1, model: "m", choices: [{ index: 0, finish_reason: "tool_calls", message }], usage: { prompt_tokens: 10, completion_tokens: 5, total_tokens: 15 } });
let answered = 0;
const model = async () => new Response(answer((answered += 1)), { headers: { "content-type": "application/json" } });
const session = replay(clientOf(openai[2], "http://127.0.0.1:9", { fetch: model }), { contracts: contracts(...names) });
const megabytes = async () => {
  for (let turn = 0; turn < 5; turn += 1) {
    globalThis.gc?.();
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  return Math.round(process.memoryUsage().rss / 1e5) / 10;
};

let early = null;
for (let done = 1; done <= calls; done += 1) {
  await session.client.chat.completions.create({ model: "m", messages: [{ role: "user", content: "x" }], tools });
  if (done === 1000) early = await megabytes();
}
const late = await megabytes();
const { totalToolCalls } = session.getState();
if (totalToolCalls !== calls) throw new Error(`${totalToolCalls} of ${calls} calls were released`);
const LIMIT_MB = 10;
const growth = Math.round((late - (early ?? late)) * 10) / 10;
console.log(JSON.stringify({ calls, rss_mb_after_1000: early, rss_mb_after_all: late, growth_mb: growth, limit_mb: LIMIT_MB }));
process.exit(growth > LIMIT_MB ? 1 : 0);
