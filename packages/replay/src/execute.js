// Wrapped executors: a tool runs only if the session allows this call, and the session learns how it ended.
"use strict";

const { makeError } = require("./errors.js");
const { notJson } = require("./options.js");
const { freeze } = require("./snapshots.js");

/** Wraps the executors of a session. */
function wrapTools(session) {
  const wrapped = {};
  for (const [name, executor] of Object.entries(session.executors)) {
    wrapped[name] = (args, { callId } = {}) => session.whileOpen(() => execute(session, name, executor, args, callId));
  }
  return Object.freeze(wrapped);
}

async function execute(session, name, executor, args, callId) {
  const allowed = session.core.execute(name, JSON.stringify(args ?? {}), callId);
  await session.settle();
  if (allowed.error) {
    if (allowed.error.type === "ReplayContractError") session.tell("onBlock", freeze(allowed.error.decision));
    throw session.error(allowed.error);
  }
  for (let left = allowed.max_attempts; ; left -= 1) {
    try {
      const result = await once(session, executor, args, allowed);
      await report(session, allowed.ticket, success(result));
      return result;
    } catch (error) {
      if (error?.late) throw error.late;
      const code = typeof error?.code === "string" ? error.code : "";
      if (left > 1 && allowed.retry_on.includes(code)) continue;
      await report(session, allowed.ticket, { outcome: "error", code });
      throw error;
    }
  }
}

/** Runs an executor once, no longer than its contract allows. What comes later still settles the call. */
async function once(session, executor, args, { call_id, timeout_ms, ticket }) {
  const controller = new AbortController();
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => {
      controller.abort();
      const message = "the tool did not end in time; whether it took effect is not known";
      reject({ late: makeError("ReplayTimeoutError", message, { sessionId: session.id }) });
    }, timeout_ms);
  });
  const context = { callId: call_id ?? "", sessionId: session.id, signal: controller.signal };
  const result = (async () => executor(args, context))();
  try {
    return await Promise.race([result, late]);
  } catch (error) {
    if (error?.late) {
      await report(session, ticket, { outcome: "unknown" });
      result.then(
        (value) => report(session, ticket, success(value)),
        (failed) => report(session, ticket, { outcome: "error", code: typeof failed?.code === "string" ? failed.code : "" }),
      ).catch(() => {});
    }
    throw error;
  } finally {
    clearTimeout(timer);
  }
}

function success(result) {
  const isJson = result !== undefined && notJson(result) === null;
  return isJson ? { outcome: "success", output: JSON.stringify(result) } : { outcome: "success" };
}

async function report(session, ticket, ended) {
  session.core.settle(ticket, ended);
  await session.settle();
}

module.exports = { wrapTools };
