// The client libraries under test: each version under a name of its own, both module systems.
import { createRequire } from "node:module";

const require = createRequire(import.meta.url);

async function load(name) {
  const esm = await import(name);
  const cjs = require(name);
  return { name, Client: esm.default, CommonJs: cjs.default ?? cjs };
}

export const openai = await Promise.all(["openai5", "openai6", "openai7"].map(load));
export const anthropic = await Promise.all(["anthropic060", "anthropic1"].map(load));
export const all = [...openai, ...anthropic];

export const isOpenAi = (library) => library.name.startsWith("openai");

/** A client of a library that talks to a provider. */
export function clientOf(library, url, options = {}) {
  const baseURL = isOpenAi(library) ? `${url}/v1` : url;
  return new library.Client({ apiKey: "sk-test-key", baseURL, maxRetries: 0, ...options });
}

export const weather = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
export const chatTool = (name, parameters = weather) => ({ type: "function", function: { name, description: name, parameters } });
export const messagesTool = (name, input_schema = weather) => ({ name, description: name, input_schema });
export const responsesTool = (name, parameters = weather) => ({ type: "function", name, description: name, parameters, strict: false });

/** Two lines of contract for each name. */
export const contracts = (...names) => names.map((tool) => ({ tool, side_effect: "read" }));

export const call = (name, args, id = "call_1") => ({ id, name, arguments: typeof args === "string" ? args : JSON.stringify(args) });

const user = [{ role: "user", content: "What is the weather?" }];

/** One call of a model in the smallest form of a library. */
export function ask(library, client, { tools = ["get_weather"], stream, messages = user, ...rest } = {}, options) {
  if (isOpenAi(library)) {
    const offered = tools.length ? { tools: tools.map((tool) => chatTool(tool)) } : {};
    return client.chat.completions.create({ model: "gpt-test", messages, ...offered, ...(stream && { stream }), ...rest }, options);
  }
  const offered = tools.length ? { tools: tools.map((tool) => messagesTool(tool)) } : {};
  return client.messages.create({ model: "claude-test", max_tokens: 100, messages, ...offered, ...(stream && { stream }), ...rest }, options);
}
