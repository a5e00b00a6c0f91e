// Calls every function that can be reached from a governed client: `node walk.mjs LIBRARY URL`. Prints how many there
// are and how many requests were judged; what was sent, the provider knows.
import { replay } from "@reprise/replay";
import { all, clientOf, contracts } from "./clients.mjs";

process.on("unhandledRejection", () => {});
process.on("uncaughtException", () => {});

/** What a client itself sends with; its other methods build the parts of a request. */
const VERBS = ["get", "post", "put", "patch", "delete", "request", "makeRequest", "getAPIList", "requestAPIList", "fetch", "fetchWithAuth", "fetchWithTimeout", "withOptions"];

/** Every function that can be reached from a client, with the object it belongs to. */
function functionsOf(client) {
  const found = [];
  const seen = new Set();
  const visit = (owner, path, depth) => {
    if (owner === null || typeof owner !== "object" || Array.isArray(owner) || seen.has(owner) || depth > 6) return;
    seen.add(owner);
    const names = new Set();
    for (let at = owner; at && at !== Object.prototype; at = Object.getPrototypeOf(at)) for (const name of Object.getOwnPropertyNames(at)) names.add(name);
    for (const name of names) {
      if (name === "constructor" || name === "logger" || name === "fetchOptions" || name.startsWith("_")) continue;
      let value;
      try {
        value = owner[name];
      } catch {
        continue;
      }
      if (owner === client && typeof value === "function" && !VERBS.includes(name)) continue;
      if (typeof value === "function") found.push({ owner, value, name: `${path}.${name}` });
      else visit(value, `${path}.${name}`, depth + 1);
    }
  };
  visit(client, "client", 0);
  return found;
}

/** Calls a function with what such functions take, and waits for whatever it starts. */
async function poke({ owner, value }) {
  const params = () => ({ model: "m", max_tokens: 9, messages: [{ role: "user", content: "x" }], input: "x", prompt: "x", tools: [], betas: [], path: "/v1/unheard-of", method: "post", body: {}, file: new File(["x"], "x.txt"), thread_id: "t", response_id: "r", run_id: "u", session_id: "s", vector_store_id: "v" });
  const quiet = (promise) => Promise.race([Promise.resolve(promise).then(drain), new Promise((resolve) => setTimeout(resolve, 150))]).catch(() => {});
  for (const values of [[params(), {}], ["id_1", params(), {}], ["/v1/unheard-of", params()]]) {
    try {
      await quiet(value.apply(owner, values));
    } catch {
      // Only what it sends is of interest.
    }
  }
}

async function drain(value) {
  if (typeof value?.done === "function" && typeof value.abort === "function") return value.done();
  if (typeof value?.[Symbol.asyncIterator] === "function") for await (const _ of value) break;
}

const [, , name, url] = process.argv;
const library = all.find((library) => library.name === name);
const governed = () => replay(clientOf(library, url, { timeout: 2000 }), { contracts: contracts("get_weather") });
const { length } = functionsOf(governed().client);

// Some functions change the client that they belong to: each is tried on a client of its own.
const sessions = [];
for (let at = 0; at < length; at += 40) {
  const some = Array.from({ length: Math.min(40, length - at) }, governed);
  sessions.push(...some);
  const poked = Promise.all(some.map((session, offset) => poke(functionsOf(session.client)[at + offset])));
  await Promise.race([poked, new Promise((resolve) => setTimeout(resolve, 10_000))]);
}
await new Promise((resolve) => setTimeout(resolve, 1500));
const attempts = sessions.reduce((sum, session) => sum + session.getState().attemptCount, 0);
console.log(`\n${JSON.stringify({ functions: length, attempts })}`);
process.exit(0);
