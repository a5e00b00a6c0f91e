// Wrapped executors: a tool runs only if the session allows this call, and the session learns how it ended.
"use strict";

const { written } = require("./core.js");
const { ReplayConfigError, makeError } = require("./errors.js");
const { notJson } = require("./options.js");
const { ServerLost } = require("./server.js");
const { freeze } = require("./snapshots.js");

/** The time of an executor is over. It is its own class: an executor may throw whatever it likes. */
class Late {
  constructor(error) {
    this.error = error;
  }
}

/** Wraps the executors of a session. */
function wrapTools(session) {
  const wrapped = {};
  for (const [name, executor] of Object.entries(session.executors)) {
    wrapped[name] = (args, options) => session.whileOpen(() => execute(session, name, executor, args, options?.callId));
  }
  return Object.freeze(wrapped);
}

async function execute(session, name, executor, given, callId) {
  // Written once, now: what is judged, what runs and what is recorded are the same, whatever a getter or a caller does later.
  const args = written(`arguments of \`${name}\``, given ?? {});
  await session.plan?.attach();
  if (session.isNamed) await kept(session, () => session.takeUp());
  await mayRun(session);
  const allowed = notBegun(session, name, args, callId) ?? session.core.execute(name, args, callId);
  try {
    await kept(session, () => session.settle());
  } catch (error) {
    if (!allowed.error) session.notBegun.push({ name, args, allowed });
    throw error;
  }
  if (allowed.error) {
    if (allowed.error.type === "ReplayContractError") session.tell("onBlock", freeze(allowed.error.decision));
    throw session.error(allowed.error);
  }
  const ended = session.check();
  if (ended) {
    await report(session, allowed, { outcome: "error", code: "aborted" });
    throw ended;
  }
  const { server } = session;
  const started = allowed.proposal_id ? { proposal_id: allowed.proposal_id, call_id: allowed.call_id } : null;
  server?.running(allowed.ticket, started);
  allowed.began = new Date().toISOString();
  try {
    for (let left = allowed.max_attempts; ; left -= 1) {
      let result;
      try {
        result = await once(session, executor, args, allowed);
      } catch (error) {
        if (error instanceof Late) throw error.error;
        const code = typeof error?.code === "string" ? error.code : "";
        if (left > 1 && allowed.retry_on.includes(code) && (await mayRunAgain(session)) && session.check() === null) continue;
        await report(session, allowed, { outcome: "error", code });
        throw error;
      }
      await report(session, allowed, success(result));
      return result;
    }
  } finally {
    server?.running(allowed.ticket, null);
  }
}

/**
 * A call whose tool did not begin because what allowed it could not be stored. It is allowed still, and not used up. What it
 * left to be stored is stored before it begins.
 */
function notBegun(session, name, args, callId) {
  const at = session.notBegun.findIndex((one) => one.name === name && one.args === args && (callId ?? one.allowed.call_id) === one.allowed.call_id);
  return at === -1 ? null : session.notBegun.splice(at, 1)[0].allowed;
}

/** Stores, or reads what is stored, before a tool runs. A store that fails is a fault; with `onError: allow` the tool runs all the same. */
async function kept(session, act) {
  try {
    await act();
  } catch (error) {
    if (error instanceof ReplayConfigError) throw error;
    if (!session.allowsFaults || session.core.broken) throw session.fault(error);
    session.countUnguarded();
  }
}

/** Says whether a tool may be tried again. If not, its last failure is the answer. */
async function mayRunAgain(session) {
  try {
    if (session.check()) return false;
    await mayRun(session);
    return true;
  } catch {
    return false;
  }
}

/** Asks the server before a tool runs: a session that was killed there runs nothing. */
async function mayRun(session) {
  const { server } = session;
  if (server === null) return;
  try {
    await server.ready();
    await server.beat();
  } catch (error) {
    const ended = session.check();
    if (ended) throw ended;
    if (!(error instanceof ServerLost)) throw error;
    if (!session.allowsFaults) throw session.fault(error);
    session.countUnguarded();
    server.countUnguarded();
  }
  const ended = session.check();
  if (ended) throw ended;
}

/** Runs an executor once, no longer than its contract allows. What comes later still settles the call. */
async function once(session, executor, args, allowed) {
  const { call_id, timeout_ms } = allowed;
  const controller = new AbortController();
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => {
      controller.abort();
      const message = "the tool did not end in time; whether it took effect is not known";
      reject(new Late(makeError("ReplayTimeoutError", message, { sessionId: session.id })));
    }, timeout_ms);
  });
  const context = { callId: call_id ?? "", sessionId: session.id, signal: controller.signal };
  const result = (async () => executor(JSON.parse(args), context))();
  try {
    return await Promise.race([result, late]);
  } catch (error) {
    if (error instanceof Late) {
      await report(session, allowed, { outcome: "unknown" });
      result.then(
        (value) => report(session, allowed, success(value)),
        (failed) => report(session, allowed, { outcome: "error", code: typeof failed?.code === "string" ? failed.code : "" }),
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

async function report(session, allowed, ended) {
  const settled = session.core.settle(allowed.ticket, ended);
  try {
    await session.settle();
  } catch (error) {
    // The tool has run: its caller gets what it returned. The next call stores this before anything else is released, or fails.
    if (session.core.broken) throw error;
    session.diagnose("store_failed", { call_id: allowed.call_id ?? "", error: String(error?.message ?? error) });
    if (session.allowsFaults) session.countUnguarded();
  }
  if (session.server === null || !settled.report) return;
  // What the server does not take now is held: the tool has run, whatever becomes of the report.
  await session.server.report([{ ...settled.report, started_at: allowed.began, ended_at: new Date().toISOString() }]);
  await session.server.compare();
}

module.exports = { wrapTools };
