// One call of a model: plan, send, judge, ask people, release. The same for a client and for `fetch`.
"use strict";

const { ReplayConfigError, ReplayError } = require("./errors.js");
const { freeze } = require("./snapshots.js");

/** How far the time of a decision may be from the time here. */
const DECIDED_MS = 24 * 60 * 60 * 1000;

/**
 * Runs a call. `text` is the request. `send(body)` asks the model, with that text or with bytes, and returns `{ bytes, isSse, … }`; what is released is that answer with the
 * bytes that the core gives back, or with `failed` when the provider's answer is none. `tools` are the caller's own tool
 * objects, for its callback; `Base` is the base error of the client; `aborted()` makes the client's abort error.
 */
function run(session, call) {
  return session.whileOpen(async () => {
    try {
      return await governed(session, call);
    } catch (error) {
      // The core itself failed: there is no verdict, and there will be none in this session.
      const isFault = error instanceof Fault;
      if (!session.core.broken || !isFault) throw dressed(session, isFault ? error.error : error, call.Base);
      if (!session.allowsFaults) throw session.fault(error.error, call.Base, call.isProposed !== true);
      session.countUnguarded();
      return error.reply ?? call.send(call.text);
    }
  }, call.Base);
}

/** An error that was made where nobody knew the client's base class. */
function dressed(session, error, Base) {
  if (typeof Base !== "function" || error instanceof Base || !(error instanceof ReplayError)) return error;
  const { name, message, cause, ...members } = error;
  return session.error({ type: name, message, cause, ...members }, Base);
}

async function governed(session, call) {
  if (session.plan !== null) await session.plan.attach();
  const { core, server } = session;
  if (session.store !== null && session.isNamed) await takenUp(session, call.Base);
  if (server !== null) return require("./remote.js").judged(session, call);
  const planned = fromCore(() => core.plan(call.wire, call.text));
  await keep(session, planned.attempt, call.Base);
  if (planned.error) throw refused(session, planned.error, call.Base);
  tellNarrowing(session, planned.narrowing, call.tools);
  return judgedHere(session, call, planned.attempt, planned.body);
}

/** Sends a planned request, judges the answer here, and asks the model again where the core says so. */
async function judgedHere(session, { signal, send, Base, aborted }, attempt, body, first) {
  const { core } = session;
  for (let reply = first; ; reply = undefined) {
    reply ??= await sent(session, attempt, body, { signal, send });
    let judged = fromCore(() => core.judge(attempt, reply.bytes, reply.isSse), reply);
    await keep(session, attempt, Base);
    while (judged.action === "asked") {
      judged = await asked(session, attempt, judged.ask[0], { signal, aborted, Base, reply });
      await keep(session, attempt, Base);
    }
    if (judged.error?.type === "ProviderError") return { ...reply, read: reply.bytes, failed: judged.error.detail ?? "" };
    if (judged.error) throw refused(session, judged.error, Base);
    if (judged.action === "retried" || judged.action === "stripped") session.tell("onBlock", freeze(judged.decision));
    if (judged.action !== "retried") return { ...reply, read: reply.bytes, bytes: judged.body };
    body = judged.body;
  }
}

/** Reads what a store holds of the session. What it holds is not known if it fails, and `onError` decides. */
async function takenUp(session, Base) {
  try {
    await session.takeUp();
  } catch (error) {
    if (error instanceof ReplayConfigError) throw error;
    if (!session.allowsFaults || session.core.broken) throw session.fault(error, Base);
    session.countUnguarded();
  }
  const ended = session.check(Base);
  if (ended) throw ended;
}

/** Tells the program what was taken out of a request. */
function tellNarrowing(session, narrowing, tools) {
  if (!session.enforces || narrowing === null || !session.callbacks.onNarrow) return;
  const allowed = Object.freeze(own(tools, narrowing.allowed));
  session.tell("onNarrow", Object.freeze({ allowed, removed: freeze(narrowing.removed) }));
}

/** What the core threw. It is its own class: what a client or a callback throws is never taken for it. */
class Fault {
  constructor(error, reply) {
    this.error = error;
    this.reply = reply;
  }
}

/** Calls the core, and marks what it throws. The reply is what is released if faults are allowed. */
function fromCore(act, reply) {
  try {
    return act();
  } catch (error) {
    throw new Fault(error, reply);
  }
}

/** Stores what happened before anybody acts on it. With `onError: allow` the verdict holds although it is not stored. */
async function keep(session, attempt, Base) {
  try {
    await session.settle();
  } catch (error) {
    if (session.core.broken) throw new Fault(error);
    if (session.allowsFaults) {
      session.countUnguarded();
      return;
    }
    if (attempt !== undefined) fromCore(() => session.core.failed(attempt, "fault"));
    throw session.fault(error, Base);
  }
}

/** Sends, and takes note when nothing came back. */
async function sent(session, attempt, body, { signal, send }) {
  try {
    return await send(body);
  } catch (error) {
    try {
      session.core.failed(attempt, signal?.aborted || session.over !== null ? "aborted" : "provider");
      await session.settle();
    } catch {
      // The caller gets the error of the provider whatever becomes of the note.
    }
    throw error;
  }
}

/** Asks a person. Every way in which no valid answer comes is a denial or, after the time, silence. */
async function asked(session, attempt, question, { signal, aborted, Base, reply }) {
  let timer;
  let stop;
  const late = new Promise((resolve) => {
    timer = setTimeout(() => resolve({ given: null }), question.timeout_seconds * 1000);
  });
  const stopped = new Promise((resolve) => {
    stop = () => resolve({ stopped: true });
    session.underWay.add(stop);
    if (signal?.aborted) stop();
    else signal?.addEventListener("abort", stop, { once: true });
  });
  const answered = answer(session, question).then((given) => ({ given }));
  const first = await Promise.race([stopped, answered, late]);
  clearTimeout(timer);
  session.underWay.delete(stop);
  signal?.removeEventListener("abort", stop);
  if (!first.stopped) return fromCore(() => session.core.answer(question.checkpoint_id, first.given), reply);
  // Nobody waits for this call any more: it is closed, and nothing of it is committed.
  fromCore(() => session.core.failed(attempt, "aborted"));
  await keep(session, undefined, Base);
  throw session.check(Base) ?? aborted();
}

/** The answer of a person as JSON. What cannot be read is an answer that approves nothing. */
async function answer(session, question) {
  try {
    const given = JSON.parse(JSON.stringify((await session.callbacks.onCheckpoint?.(freeze(question))) ?? {}));
    if (given.decided_at !== undefined && !isNow(given.decided_at)) throw new Error("`decided_at` is not the time of the decision");
    return given;
  } catch (error) {
    session.diagnose("checkpoint_failed", { checkpoint_id: question.checkpoint_id, error: String(error?.message ?? error) });
    return {};
  }
}

/** Says whether a text is a time that is not far from now: clocks of people differ, but a decision is about this question. */
function isNow(text) {
  const isTime = typeof text === "string" && /^\d{4}-\d\d-\d\dT\d\d:\d\d/.test(text);
  return isTime && Math.abs(Date.parse(text) - Date.now()) <= DECIDED_MS;
}

function refused(session, described, Base) {
  if (described.type === "ReplayContractError") session.tell("onBlock", freeze(described.decision));
  if (described.type === "ReplayKillError") session.kill(described.cause_of_kill);
  return session.error(described, Base);
}

/** The caller's own objects of these names, in the order of the names. */
function own(tools, names) {
  const byName = new Map();
  for (const tool of Array.isArray(tools) ? tools : []) {
    const name = tool?.function?.name ?? tool?.custom?.name ?? tool?.name ?? tool?.type;
    if (typeof name === "string" && !byName.has(name)) byName.set(name, tool);
  }
  return names.map((name) => byName.get(name) ?? { name });
}

module.exports = { run, fromCore, judgedHere, keep, refused, sent, tellNarrowing };
