// A session of a server: the server judges, and what happened is in its log.
//
// Every request that changes something carries a key of its own, so that it can be sent again: what the server has taken
// is answered as it was. Two failures in a row or one silence mean that the server is lost. Then nothing is released by
// its authority, and the first thing that is done when it is back is to bring it what it has missed.
"use strict";

const { ReplayConfigError, makeError } = require("./errors.js");

const ANSWER_MS = 10_000;
const HEARTBEAT_MS = 15_000;
const WAIT_SECONDS = 20;
const PAUSE_MS = 500;
const CONDITIONS = new Set([
  "policy_without_principal",
  "constraints_without_wrapper",
  "compilation_failed",
  "provider_incompatible",
  "invalid_option",
  "workflow_not_found",
]);

/** How often a report is brought that the server refuses. */
const RECEIPT_TRIES = 5;
/** The longest pause between two attempts to end a session that the server does not take. */
const ENDING_PAUSE_MS = 10_000;

const isNumber = (value) => typeof value === "number";

/** What must stand in the answer to a request. Anything else comes from something between here and the server. */
const FITS = {
  "": ({ stateVersion, controlRevision }) => isNumber(stateVersion) && isNumber(controlRevision),
  "/sessions": ({ state_version, control_revision }) => isNumber(state_version) && isNumber(control_revision),
  "/labels": ({ labels }, sent) => Array.isArray(labels) && labels.includes(sent.label),
  "/tool-filter": ({ control_revision }) => isNumber(control_revision),
  "/report-bypass": ({ authority_state }) => typeof authority_state === "string",
  "/kill": ({ killed }) => typeof killed === "boolean",
  "/restore": ({ controlRevision }) => isNumber(controlRevision),
  "/heartbeat": ({ killed, state_version }) => typeof killed === "boolean" && isNumber(state_version),
  "/receipts": ({ committed }) => typeof committed === "boolean",
  "/captures": ({ accepted }) => isNumber(accepted),
  "/handoffs": ({ handoff_id }) => typeof handoff_id === "string",
};

/** The server did not answer, or failed. With `onError: allow` the session goes on without it. */
class ServerLost extends Error {}

class Server {
  #session;
  #address;
  #headers;
  #create;
  #opening = null;
  #turn = Promise.resolve();
  #controls = [];
  #sending = null;
  /** Why an action was refused: what the server holds is then not what was asked for, and nothing is released any more. */
  #refused = null;
  #reporting = null;
  #unguarded = 0;
  #telling = null;
  #gap = null;
  #heartbeat = null;
  #running = new Map();
  #revision = 0;

  constructor(session, { apiKey, runtimeUrl, place, create }) {
    this.#session = session;
    this.#address = `${runtimeUrl.replace(/\/+$/, "")}/api/v1/replay`;
    this.#headers = { authorization: `Bearer ${apiKey}`, "content-type": "application/json" };
    this.#create = create;
    this.lost = false;
    /** The place in a workflow; null outside of one. */
    this.place = place;
    /** Reports that the server has not taken, and how many it will not be brought again. */
    this.held = [];
    this.unresolved = 0;
    /** What the server shows of the session, once it is not what is kept here. */
    this.shown = null;
    this.version = 0;
    this.busy = 0;
  }

  get isOpened() {
    return this.#opening !== null;
  }

  /** Sends a request. Answers of the server are returned, also refusals; only its silence and its faults are thrown. */
  async request(method, path, body, { tries = 2, ms = ANSWER_MS, signal, key = globalThis.crypto.randomUUID(), fits = () => true } = {}) {
    const headers = method === "POST" ? { ...this.#headers, "idempotency-key": key } : this.#headers;
    for (let left = tries; ; left -= 1) {
      const limit = AbortSignal.timeout(ms);
      const stop = signal ? AbortSignal.any([signal, limit]) : limit;
      try {
        const response = await fetch(this.#address + path, { method, headers, body: body && JSON.stringify(body), signal: stop, redirect: "manual" });
        const { status } = response;
        const text = await response.text();
        if (status >= 500 || status === 429) throw new Error(`the server answered ${status}`);
        const answer = { status, body: bodyOf(response, text) };
        if (status < 400 && !((status === 200 || status === 201) && fits(answer.body, body))) throw new Error("the server answered something else");
        return answer;
      } catch (cause) {
        if (signal?.aborted) throw cause;
        if (left > 1 && !limit.aborted) {
          await pause(PAUSE_MS / 10);
          continue;
        }
        this.#lose();
        throw new ServerLost(`the server at ${new URL(this.#address).host} does not answer`, { cause });
      }
    }
  }

  #lose() {
    if (this.lost) return;
    this.lost = true;
    this.#session.diagnose("authority_lost");
  }

  /** A path of this session. */
  path(rest) {
    return `/sessions/${encodeURIComponent(this.#session.id)}${rest}`;
  }

  async post(rest, body, options) {
    const answer = await this.request("POST", this.path(rest), body, { fits: FITS[rest], ...options });
    this.#learn(answer);
    return answer;
  }

  #learn({ status, body }) {
    if (typeof body?.state_version === "number") this.version = body.state_version;
    if (typeof body?.control_revision === "number") this.#revision = body.control_revision;
    if (status !== 410) return;
    // The session is over there, so it is over here.
    if (body.code === "restored") this.#session.end("ReplayInactiveError", "the session was ended");
    else this.#session.killedByServer(body.cause ?? body.code ?? "killed");
  }

  /** Runs one call of a model after the other: the server binds each to the state before it. */
  async turn() {
    const before = this.#turn;
    let done;
    this.#turn = new Promise((resolve) => {
      done = resolve;
    });
    await before;
    return done;
  }

  /** Opens the session, and brings the server what it has missed. Nothing is asked of it before this is done. */
  async ready() {
    const tries = this.lost ? 1 : 2;
    if (this.#opening === null) {
      const opening = this.#open(tries);
      this.#opening = opening;
      opening.catch(() => {
        if (this.#opening === opening) this.#opening = null;
      });
    }
    await this.#opening;
    if (this.lost) {
      await this.#read(1);
      this.lost = false;
      this.#session.diagnose("authority_regained");
    }
    await this.sendControls();
    await this.#sendHeld();
    await this.#sendGap();
  }

  async #open(tries) {
    const answer = await this.request("POST", "/sessions", this.#create(), { tries, fits: FITS["/sessions"] });
    const { status, body } = answer;
    if (status !== 200 && status !== 201) {
      this.#learn(answer);
      const ended = this.#session.check();
      if (ended) throw ended;
      throw this.refusal(answer);
    }
    this.#learn(answer);
    this.lost = false;
    this.protocol = body.protocol;
    this.workflowId = body.workflow_id ?? this.place?.workflowId;
    // A session that was taken up again has a past, and one that took an offer has slots, that are not known here.
    if (status === 200 || this.place?.type === "child") await this.#read(2, this.place?.type === "child");
    this.#heartbeat ??= setInterval(() => this.beat().catch(() => {}), HEARTBEAT_MS);
    this.#heartbeat.unref?.();
  }

  /** What the server refused: not softened by anything. */
  refusal({ status, body }) {
    const code = String(body?.code ?? status);
    const message = `the server refused: ${body?.detail ?? body?.message ?? body?.error?.message ?? code}`;
    if (CONDITIONS.has(code)) {
      return new ReplayConfigError(message, { condition: code, findings: body.findings ?? [message], sessionId: this.#session.id });
    }
    return makeError("ReplayFaultError", message, { retrySafe: false, status, code, sessionId: this.#session.id });
  }

  /** Reads the session as the server has it. */
  async #read(tries, isOther = false) {
    const answer = await this.request("GET", this.path(""), undefined, { tries, fits: FITS[""] });
    if (answer.status !== 200) {
      this.#learn(answer);
      throw this.refusal(answer);
    }
    const { health, protocol, pending, ...snapshot } = answer.body;
    this.version = snapshot.stateVersion;
    this.#revision = snapshot.controlRevision;
    this.protocol = protocol;
    const own = this.#session.core.read("state");
    const isSame = own.stateVersion === snapshot.stateVersion && own.controlRevision === snapshot.controlRevision + this.#controls.length;
    if (isOther || !isSame || this.shown !== null) this.#drift(snapshot);
    if (health?.killed) this.#session.killedByServer("killed");
  }

  #drift(snapshot) {
    if (this.shown === null) this.#session.core.control("drifted", null);
    this.shown = snapshot;
  }

  /**
   * Says whether the server knows of something that is not known here: a label, a filter or a call of another process, or what
   * the others of a workflow did. What is judged here without it could release what the server forbids.
   */
  get knowsMore() {
    const own = this.#session.core.read("state");
    return this.place !== null || this.shown !== null || this.version > own.stateVersion || this.#revision > own.controlRevision;
  }

  /** Looks whether the server's state is what is kept here. Only between calls can both be compared. */
  async compare() {
    if (this.busy > 0 || this.lost || this.#opening === null) return;
    const own = this.#session.core.read("state");
    if (this.shown === null && own.stateVersion === this.version && own.controlRevision === this.#revision) return;
    try {
      await this.sendControls();
      await this.#read(1);
    } catch {
      // The next call will find out.
    }
  }

  /** Queues an action. It is sent in order and until it is taken; the next call waits for it. */
  control(rest, body) {
    this.#controls.push({ rest, body, key: globalThis.crypto.randomUUID() });
    // Before there is a session there is nothing to act on; `ready` sends what waits.
    if (this.#opening !== null) this.#sendAll().catch(() => {});
  }

  async sendControls() {
    await this.#sendAll();
    if (this.#refused) throw this.refusal(this.#refused);
  }

  async #sendAll() {
    while (this.#controls.length > 0) {
      this.#sending ??= this.#sendFirst().finally(() => {
        this.#sending = null;
      });
      await this.#sending;
    }
  }

  async #sendFirst() {
    const { rest, body, key } = this.#controls[0];
    const answer = await this.request("POST", this.path(rest), body, { key, fits: FITS[rest] });
    const { status } = answer;
    const isEnd = rest === "/kill" || rest === "/restore";
    // A refusal of the server itself has a code. It is final, but for an end: that is asked for until it is taken, or until there
    // is nothing that could end.
    const isOwn = typeof answer.body.code === "string";
    const isFinal = isEnd ? status === 404 && isOwn : isOwn;
    if (status >= 400 && status !== 410 && !isFinal) throw this.refusal(answer);
    this.#controls.shift();
    if (status >= 400 && status !== 410 && !isEnd) this.#refused ??= answer;
  }

  /** The program goes on without the server. */
  leave() {
    clearInterval(this.#heartbeat);
    this.#controls.length = 0;
  }

  /**
   * Ends the session on the server too; tries as long as the process lives. A server that never heard of the session need not
   * hear of its end; but one with a name may have been opened by another process, which a kill must reach.
   */
  end(rest, body) {
    clearInterval(this.#heartbeat);
    const isKnown = this.#opening !== null;
    if (!isKnown && !(rest === "/kill" && this.#session.isNamed)) return;
    if (!isKnown) this.#controls.length = 0;
    const end = { rest, body, key: globalThis.crypto.randomUUID() };
    this.#controls.push(end);
    const send = async () => {
      for (let wait = PAUSE_MS / 5; this.#controls.length > 0; wait = Math.min(wait * 2, ENDING_PAUSE_MS)) {
        try {
          await this.#opening;
        } catch (error) {
          if (!(error instanceof ServerLost)) return;
        }
        try {
          await this.#sendHeld();
          await this.#sendGap();
          await this.#sendAll();
        } catch (error) {
          // An action that is refused does not keep the end from reaching the server.
          if (!(error instanceof ServerLost) && this.#controls[0] !== end) this.#controls.shift();
          else await pause(wait, { unref: true });
        }
      }
    };
    this.ending = send();
  }

  /** Reports executions. What the server does not take now is held and brought later. */
  async report(reports) {
    for (const report of reports) if (report) this.held.push({ report, key: globalThis.crypto.randomUUID(), tries: 0 });
    try {
      await this.#sendHeld();
    } catch (error) {
      if (!(error instanceof ServerLost)) throw error;
    }
  }

  async #sendHeld() {
    // What came while others were sent is not covered by their round.
    if (this.#reporting !== null) await this.#reporting;
    if (this.held.length === 0) return;
    this.#reporting ??= this.#sendReports().finally(() => {
      this.#reporting = null;
    });
    await this.#reporting;
  }

  /** Brings each report once. One that is refused is brought again with the next round, a few times: only what fits ends it. */
  async #sendReports() {
    for (const held of [...this.held]) {
      const { status, body } = await this.post("/receipts", held.report, { key: held.key });
      held.tries += 1;
      const isOver = status === 410 || held.tries >= RECEIPT_TRIES;
      if (status < 400 || isOver) this.held.splice(this.held.indexOf(held), 1);
      if (status < 400) continue;
      if (isOver) this.unresolved += 1;
      this.#session.diagnose("receipt_refused", { call_id: held.report.call_id, code: String(body.code ?? status), tries: held.tries });
    }
  }

  countUnguarded() {
    this.#unguarded += 1;
  }

  /** Tells the server of the calls that it did not see, as a gap and not as if it had judged them. */
  async #sendGap() {
    if (this.#unguarded === 0) return;
    this.#telling ??= this.#tellGap().finally(() => {
      this.#telling = null;
    });
    await this.#telling;
  }

  async #tellGap() {
    // The same words again when the answer was lost: the server then takes it once.
    this.#gap ??= { key: globalThis.crypto.randomUUID(), at: new Date().toISOString(), unguarded_calls: this.#unguarded };
    const { key, ...gap } = this.#gap;
    const answer = await this.post("/captures", { captures: [{ session_id: this.#session.id, ...gap }] }, { key });
    this.#gap = null;
    if (answer.status < 400) this.#unguarded -= gap.unguarded_calls;
  }

  /** Hands captures over, at most 100. With the same key again the server takes them once. */
  async capture(captures, key) {
    await this.ready();
    const answer = await this.post("/captures", { captures }, { key });
    if (answer.status >= 400) throw this.refusal(answer);
  }

  /** Offers the session's work to another role. */
  async handoff(offer) {
    await this.ready();
    const answer = await this.post("/handoffs", offer ?? {});
    const ended = this.#session.check();
    if (ended) throw ended;
    if (answer.status >= 400) {
      const message = `the server refused: ${answer.body?.detail ?? answer.status}`;
      throw new ReplayConfigError(message, { condition: "invalid_option", findings: [message], sessionId: this.#session.id });
    }
    const { handoff_id, status, expires_at } = answer.body;
    return { handoff_id, status, expires_at };
  }

  /** The workflow as the server has it. */
  async workflowState() {
    await this.ready();
    const answer = await this.request("GET", `/workflows/${encodeURIComponent(this.workflowId)}`);
    if (answer.status !== 200) throw this.refusal(answer);
    const { workflow_id, sessions, budget_used, open_offers } = answer.body;
    const { cost, cost_incomplete, tool_calls } = budget_used;
    return { workflow_id, role: this.place.role, sessions, cost, cost_incomplete, tool_calls, open_offers };
  }

  /** Says that the program is there, and hears whether the session was killed. */
  async beat() {
    const started = [...this.#running.values()];
    const answer = await this.post("/heartbeat", { started });
    if (answer.body?.killed) this.#session.killedByServer("killed");
    if (answer.status >= 400 && answer.status !== 410) throw this.refusal(answer);
  }

  /** Notes a tool that runs: as long as it does, its call does not expire. */
  running(ticket, call) {
    if (call) this.#running.set(ticket, call);
    else this.#running.delete(ticket);
  }

  /** Waits for what people decide about a proposal; stops when the session ends or the caller gives up. */
  async decision(proposal, seconds, signal) {
    const until = Date.now() + seconds * 1000 + ANSWER_MS;
    for (;;) {
      if (signal.aborted) return null;
      try {
        const path = this.path(`/proposals/${proposal}?wait=${WAIT_SECONDS}`);
        const answer = await this.request("GET", path, undefined, { tries: 1, ms: (WAIT_SECONDS + 10) * 1000, signal });
        this.#learn(answer);
        if (answer.status !== 200) throw this.refusal(answer);
        if (this.lost) await this.ready();
        if (answer.body.status !== "pending_approval") return answer.body;
      } catch (error) {
        if (signal.aborted) return null;
        // The server may come back while somebody thinks; the verdict is its own.
        if (!(error instanceof ServerLost) || Date.now() > until) throw error;
        await pause(PAUSE_MS);
      }
    }
  }

  /** Nobody wants the response of a proposal any more: should people still allow it, its calls are reported as not made. */
  abandon(proposal, seconds) {
    const over = new AbortController();
    this.#session.endings.push(() => over.abort());
    const act = async () => {
      const answer = await this.decision(proposal, seconds, over.signal);
      for (const verdict of answer?.verdicts ?? []) {
        if (verdict.verdict !== "allow" || !["approved", "allowed", "denied", "expired"].includes(answer.status)) continue;
        if (answer.decision?.action === "rejected") continue;
        const { call_id, arguments_digest } = verdict;
        await this.report([{ proposal_id: proposal, call_id, arguments_digest, outcome: "error", error_code: "aborted" }]);
      }
    };
    act().catch(() => {});
  }
}

/** The object that the server answers with. A refusal is one by its status, whatever stands in it. */
function bodyOf(response, text) {
  let body = null;
  try {
    body = JSON.parse(text);
  } catch {
    // As any other answer that is not an object.
  }
  if (body !== null && typeof body === "object") return body;
  if (response.ok) throw new Error("the server answered nonsense");
  return {};
}

function pause(ms, { unref = false } = {}) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    if (unref) timer.unref?.();
  });
}

module.exports = { Server, ServerLost };
