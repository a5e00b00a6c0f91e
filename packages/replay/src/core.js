// The native core. Everything that goes wrong around it is a fault, never a verdict.
"use strict";

const { version } = require("../package.json");
const { ReplayConfigError, ReplayFaultError } = require("./errors.js");

let addon = null;

/** Loads the addon once. Importing the package never throws: a missing core is an error of `replay()`. */
function load() {
  if (addon !== null) return addon;
  const findings = [];
  for (const platform of platforms()) {
    try {
      const loaded = require(`../native/${platform}.node`);
      const built = loaded.version();
      if (built !== version) throw new Error(`the core is of version ${built}, the package of ${version}`);
      addon = loaded;
      return addon;
    } catch (error) {
      findings.push(`${platform}: ${firstLine(error)}`);
    }
  }
  throw new ReplayConfigError("the core cannot be loaded on this platform", { condition: "core_unavailable", findings });
}

function platforms() {
  const platform = `${process.platform}-${process.arch}`;
  return process.platform === "linux" ? [`${platform}-gnu`, `${platform}-musl`] : [platform];
}

function firstLine(error) {
  return String(error?.message ?? error).split("\n")[0];
}

/** Where texts are written for the core, which copies what it keeps. */
const ROOM = 1 << 18;
let room = null;

/** The bytes of a text; they hold until the next text. */
function bytesOf(text) {
  // No character of a text takes more than three bytes.
  if (text.length * 3 > ROOM) return Buffer.from(text);
  room ??= Buffer.allocUnsafeSlow(ROOM);
  return room.subarray(0, room.write(text));
}

function now() {
  return Date.now() * 1000;
}

/** Says what happens to a request: the name of a wire format, `passed` or `refused`. */
function classify(provider, method, path) {
  try {
    const kind = load().classify(provider, method, path);
    return typeof kind === "string" ? kind : "refused";
  } catch {
    return "refused";
  }
}

/**
 * A session of the core. A method returns the parsed answer, with bytes under `body`; what the core itself refuses
 * stands under `error` there. An exception or an answer that is not an object is a fault, and stays one: nobody knows
 * what state such a core is in.
 */
class Core {
  #session;
  #broken = null;

  constructor(files, options) {
    const { Session } = load();
    const made = guarded(() => new Session(files === null ? null : JSON.stringify(files), JSON.stringify(options), now()));
    this.opened = guarded(() => JSON.parse(made.opened));
    this.#session = made;
  }

  get broken() {
    return this.#broken !== null;
  }

  #call(method, values, given) {
    if (this.#broken) throw this.#broken;
    try {
      const output = this.#session[method](...values);
      const answer = JSON.parse(output.json);
      if (answer === null || typeof answer !== "object" || Array.isArray(answer)) throw new Error("the core answered nonsense");
      if (output.body != null) answer.body = output.body;
      else if (output.isUnchanged === true) answer.body = given;
      return answer;
    } catch (error) {
      this.#broken = fault(error);
      throw this.#broken;
    }
  }

  /** Plans the text of a request. A request that goes out as it is has that text under `body`, any other one bytes. */
  plan(wire, text) {
    return this.#call("plan", [wire, bytesOf(text), now()], text);
  }
  judge(attempt, bytes, isSse) {
    return this.#call("judge", [attempt, bytes, isSse, now()], bytes);
  }
  answer(checkpoint, answer) {
    return this.#call("answer", [checkpoint, written("answer", answer ?? null), now()]);
  }
  failed(attempt, kind) {
    return this.#call("failed", [attempt, kind, now()]);
  }
  /** `args` is a text: what is judged is what runs. */
  execute(tool, args, callId) {
    if (callId !== undefined && callId !== null && typeof callId !== "string") throw invalid("`callId`: a text");
    return this.#call("execute", [tool, args, callId ?? null, now()]);
  }
  settle(ticket, ended) {
    return this.#call("settle", [ticket, written("outcome", ended)]);
  }
  control(kind, value) {
    return this.#call("control", [kind, written(kind, value ?? null), now()]);
  }
  read(what, from = 0) {
    return this.#call("read", [what, from]).value;
  }
}

/** A value of the program as JSON. What cannot be written is the fault of whoever gave it: the core never sees it. */
function written(name, value) {
  let text;
  try {
    text = JSON.stringify(value);
  } catch (error) {
    throw invalid(`${name}: ${firstLine(error)}`);
  }
  if (typeof text !== "string") throw invalid(`${name}: JSON has no ${typeof value}`);
  return text;
}

function invalid(finding) {
  return new ReplayConfigError(finding, { condition: "invalid_option", findings: [finding] });
}

function guarded(act) {
  try {
    return act();
  } catch (error) {
    throw fault(error);
  }
}

function fault(error) {
  if (error instanceof ReplayConfigError) return error;
  return new ReplayFaultError(`the core failed: ${firstLine(error)}`, { retrySafe: false, cause: error });
}

/** For tests: puts something else in the place of the addon. */
function replaceAddon(other) {
  addon = other;
}

module.exports = { Core, classify, load, replaceAddon, written };
