// Errors. `instanceof` goes by a registered symbol, so that it holds between copies of the package and between module
// systems, and for errors that are at the same time errors of a client library.
"use strict";

const BRAND = Symbol.for("@reprise/replay.error");

class ReplayError extends Error {
  constructor(message, members = {}) {
    const { cause, ...rest } = members;
    super(message, cause === undefined ? undefined : { cause });
    dress(this, new.target.brandName ?? "ReplayError", rest);
  }

  static [Symbol.hasInstance](value) {
    if (!Object.hasOwn(this, "brandName")) return Function.prototype[Symbol.hasInstance].call(this, value);
    const names = value?.[BRAND];
    return Array.isArray(names) && names.includes(this.brandName);
  }
}
Object.defineProperty(ReplayError, "brandName", { value: "ReplayError" });

function named(name) {
  const made = { [name]: class extends ReplayError {} }[name];
  Object.defineProperty(made, "brandName", { value: name });
  return made;
}

const classes = { ReplayError };
for (const name of [
  "ReplayContractError",
  "ReplayKillError",
  "ReplayConfigError",
  "ReplayFaultError",
  "ReplayInactiveError",
  "ReplayUnsupportedError",
  "ReplayTimeoutError",
]) {
  classes[name] = named(name);
}

function dress(error, name, members) {
  Object.defineProperty(error, "name", { value: name, enumerable: false, configurable: true, writable: true });
  Object.defineProperty(error, BRAND, { value: Object.freeze(["ReplayError", name]), enumerable: false });
  Object.assign(error, members);
}

/**
 * Makes an error of one of the classes. With the base error of a client library it is an instance of that one too, so
 * that the library's helpers pass it on as it is; its status tells frameworks not to try again.
 */
function makeError(name, message, members, Base) {
  // Client libraries and frameworks take these words in a message for a time limit of their own, and try again.
  const text = message.replace(/(timed?)\s?(out)/gi, "$1-$2");
  if (typeof Base !== "function") return new (classes[name] ?? classes.ReplayFaultError)(text, members);
  const { cause, ...rest } = members;
  const error = new Base(text);
  if (cause !== undefined) Object.defineProperty(error, "cause", { value: cause, configurable: true, writable: true });
  dress(error, name, { ...rest, status: 403 });
  return error;
}

/** Makes the error that an answer of the core describes. */
function fromCore(described, sessionId, Base) {
  const { type, message, ...members } = described;
  const isKnown = Object.hasOwn(classes, type);
  const text = type === "ReplayContractError" ? blockMessage(members) : String(message);
  return makeError(isKnown ? type : "ReplayFaultError", text, { ...members, sessionId }, Base);
}

function blockMessage({ decision, failures }) {
  const call = decision?.calls?.find((call) => call.verdict !== "allow");
  const failure = failures?.[0];
  const parts = [decision?.reason, decision?.detail].filter(Boolean).join(", ");
  const where = [decision?.contract_file, failure?.path, failure?.operator].filter(Boolean).join(" ");
  return `blocked by contract: ${call ? `${call.tool_name}: ` : ""}${parts}${where ? ` (${where})` : ""}`;
}

module.exports = { ...classes, makeError, fromCore };
