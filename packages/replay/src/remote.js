// One call of a model whose judge is a server: preflight, send, propose, wait for people, release.
"use strict";

const { fromCore, judgedHere, keep, refused, sent, tellNarrowing } = require("./pipeline.js");
const { ServerLost } = require("./server.js");
const { freeze } = require("./snapshots.js");

/** How often a call begins again because the session moved on meanwhile. */
const STALE_TRIES = 3;

/** Runs a call under the authority of the server. When the server is lost, `onError` decides. */
async function judged(session, call) {
  const { server } = session;
  const done = await server.turn();
  server.busy += 1;
  const under = { attempt: null, reply: null, proposed: false, left: false };
  const leave = () => {
    if (under.left) return;
    under.left = true;
    server.busy -= 1;
    done();
  };
  try {
    const ended = session.check(call.Base);
    if (ended) throw ended;
    return await byServer(session, call, under, leave);
  } catch (error) {
    if (!(error instanceof ServerLost)) throw error;
    return await withoutServer(session, call, under, error);
  } finally {
    leave();
    await server.compare();
  }
}

async function byServer(session, call, under, leave) {
  const { core, server } = session;
  const { Base } = call;
  await server.ready();
  const asked = fromCore(() => core.plan(call.wire, call.text));
  await keep(session, asked.attempt, Base);
  if (asked.error) throw refused(session, asked.error, Base);
  under.attempt = asked.attempt;
  await server.report(asked.reports);
  if (server.lost) throw new ServerLost("the server was lost");
  let { preflight } = asked;
  for (let stale = 0; ; ) {
    const prepared = await prepare(session, call, under.attempt, preflight);
    const reply = await sent(session, under.attempt, prepared.body, call);
    under.reply = reply;
    let verdict = fromCore(() => core.judge(under.attempt, reply.bytes, reply.isSse), reply);
    if (verdict.action === "proposed") {
      verdict = await propose(session, call, under, { prepared, preflight, proposal: verdict.proposal });
      if (verdict === null) {
        // The session moved on while the model thought: what it saw is not what holds.
        under.reply = null;
        under.proposed = false;
        stale += 1;
        if (stale >= STALE_TRIES) throw session.fault(new Error("the session did not hold still for a call"), Base);
        continue;
      }
    }
    await keep(session, under.attempt, Base);
    if (verdict.action === "waits") {
      leave();
      verdict = await people(session, call, under, verdict.ask);
      await keep(session, under.attempt, Base);
    }
    if (verdict.error?.type === "ProviderError") return { ...reply, read: reply.bytes, failed: verdict.error.detail ?? "" };
    if (verdict.error) throw refused(session, verdict.error, Base);
    if (verdict.action === "retried" || verdict.action === "stripped") session.tell("onBlock", freeze(verdict.decision));
    session.plan?.report(verdict.decision);
    if (verdict.action !== "retried") return { ...reply, read: reply.bytes, bytes: verdict.body };
    ({ preflight } = verdict);
    under.reply = null;
    under.proposed = false;
  }
}

/** Binds a request to the state on the server, and plans it as the server says. */
async function prepare(session, call, attempt, preflight) {
  const { core, server } = session;
  for (let left = 2; ; left -= 1) {
    const answer = await server.post("/preflight", { ...preflight, expected_state_version: server.version });
    if (answer.status === 200) {
      warn(session, answer.body.warnings);
      const planned = fromCore(() => core.answer(`preflight.${attempt}`, answer.body));
      await keep(session, attempt, call.Base);
      if (planned.error) throw refused(session, planned.error, call.Base);
      tellNarrowing(session, planned.narrowing, call.tools);
      return { id: answer.body.prepared_request_id, body: planned.body };
    }
    over(session, call.Base);
    if (answer.status === 409 && answer.body.code === "stale" && left > 1) continue;
    if (answer.status === 403 && (answer.body.decision || answer.body.code === "provider_incompatible")) {
      const refusal = fromCore(() => core.answer(`refused.${attempt}`, answer.body));
      await keep(session, undefined, call.Base);
      throw refused(session, refusal.error, call.Base);
    }
    core.failed(attempt, "withdrawn");
    throw answer.status === 409 ? session.fault(new Error("the preflight stays stale"), call.Base) : server.refusal(answer);
  }
}

/** Tells the program what the server warns of: such as keywords of a schema that nothing checks. */
function warn(session, warnings) {
  for (const warning of Array.isArray(warnings) ? warnings : []) {
    const { code, tool, keywords } = warning ?? {};
    const data = { tool: String(tool ?? ""), ...(Array.isArray(keywords) && { keywords: keywords.join(", ") }) };
    if (typeof code === "string") session.diagnose(code, data);
  }
}

/** Proposes a response. Null: the session moved on, and the model must be asked again. */
async function propose(session, call, under, { prepared, preflight, proposal }) {
  const { core, server } = session;
  let id = prepared.id;
  for (let left = 2; ; left -= 1) {
    under.proposed = true;
    call.isProposed = true;
    const answer = await server.post("/proposals", { ...proposal, prepared_request_id: id });
    over(session, call.Base);
    if (answer.status === 200) {
      under.proposal = answer.body.proposal_id;
      if (answer.body.status === "killed") throw session.killedByServer("killed", call.Base);
      return fromCore(() => core.answer(`proposal.${under.attempt}`, answer.body));
    }
    if (answer.status !== 409 || answer.body.code !== "stale") {
      core.failed(under.attempt, "fault");
      throw server.refusal(answer);
    }
    if (!answer.body.same_response || left <= 1) return null;
    // Only a label, a filter or the like came in between: the same response is judged under it.
    const again = await server.post("/preflight", { ...preflight, expected_state_version: server.version });
    over(session, call.Base);
    if (again.status !== 200) return null;
    id = again.body.prepared_request_id;
  }
}

/** Waits for people. Whoever gives up leaves the proposal to be withdrawn. */
async function people(session, { signal, Base, aborted }, under, questions) {
  const { core, server } = session;
  const seconds = Math.max(...questions.map((question) => question.timeout_seconds), 1);
  session.diagnose("approval_pending", { proposal_id: under.proposal, tool: String(questions[0]?.tool_name ?? "") });
  const stop = new AbortController();
  const abort = () => stop.abort();
  session.underWay.add(abort);
  if (signal?.aborted) abort();
  signal?.addEventListener("abort", abort, { once: true });
  try {
    const answer = await server.decision(under.proposal, seconds, stop.signal);
    over(session, Base);
    if (answer === null) {
      fromCore(() => core.failed(under.attempt, "aborted"));
      server.abandon(under.proposal, seconds);
      await keep(session, undefined, Base);
      throw aborted();
    }
    if (answer.status === "killed") throw session.killedByServer("killed", Base);
    server.version = answer.state_version ?? server.version;
    return fromCore(() => core.answer(`proposal.${under.attempt}`, answer));
  } finally {
    session.underWay.delete(abort);
    signal?.removeEventListener("abort", abort);
  }
}

function over(session, Base) {
  const ended = session.check(Base);
  if (ended) throw ended;
}

/** The server is lost. Without its word nothing is released, unless the program chose to go on. */
async function withoutServer(session, call, under, lost) {
  const { core, server } = session;
  over(session, call.Base);
  // What the server has forbidden and only it knows of would be released by what is known here.
  if (!session.allowsFaults || (under.proposal && under.reply) || server.knowsMore) {
    if (under.attempt !== null) core.failed(under.attempt, under.reply ? "fault" : "withdrawn");
    await keep(session, undefined, call.Base);
    // A response that was proposed may have been judged: its calls wait there until their time is over.
    throw session.fault(lost, call.Base, !under.proposed);
  }
  session.countUnguarded();
  server.countUnguarded();
  core.control("judge_locally", true);
  try {
    if (under.reply) return await judgedHere(session, call, under.attempt, null, under.reply);
    if (under.attempt !== null) core.failed(under.attempt, "withdrawn");
    const planned = fromCore(() => core.plan(call.wire, call.text));
    await keep(session, planned.attempt, call.Base);
    if (planned.error) throw refused(session, planned.error, call.Base);
    tellNarrowing(session, planned.narrowing, call.tools);
    return await judgedHere(session, call, planned.attempt, planned.body);
  } finally {
    core.control("judge_locally", false);
  }
}

module.exports = { judged };
