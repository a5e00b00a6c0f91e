// A governed session: the core, the program's callbacks, and the calls that are under way.
"use strict";

const { Core } = require("./core.js");
const { ReplayConfigError, ReplayFaultError, fromCore, makeError } = require("./errors.js");
const { readFiles, readOptions, invalid } = require("./options.js");
const { Plan, environmentOf } = require("./plan.js");
const { Server } = require("./server.js");
const snapshots = require("./snapshots.js");
const workflows = require("./workflow.js");

const LOST = 1;
const JOURNAL = 8;
/** Where the word for how rules are attached begins in what the core is told about its surroundings. */
const ATTACHMENT = 4;
const ATTACHMENTS = ["not_applicable", "attached", "no_plan", "fetch_failed", "artifact_invalid", "attachment_failed"];
const NO_FILES = Object.freeze({ contracts: [], session: null });
const STORE_MS = 10_000;
/** How many captures may wait to be handed over, and how often that is tried without being asked: before the core drops any. */
const CAPTURES_MAX = 1_000;
const SETTLED_EVERY = 400;

class Session {
  /** Compiles, checks and opens; touches neither a client nor the network. */
  constructor(given) {
    const { core: options, findings, isLogOnly, server } = readOptions(given);
    const files = readFiles(given, server !== null);
    const isPlanned = files === null && server !== null && !isLogOnly;
    if (files === null && !isLogOnly && !(isPlanned && options.agent)) {
      const hint = isPlanned ? ", or `agent`: the server may have some for it" : "; only `mode: log-only` needs none";
      findings.push(`contracts are missing: give \`contracts\` or \`contractsDir\`${hint}`);
    }
    const { workflow: place = null } = options;
    if (server !== null) delete options.workflow;
    if (server !== null && place?.type === "root" && !files?.workflow) throw workflows.notFound("there is no workflow file");
    if (place && server === null) {
      const { file, events } = workflows.find(place, files?.workflow);
      place.events = events;
      if (files) files.workflow = file;
    }
    const opened = new Core(files ?? (isLogOnly ? null : NO_FILES), options);
    const refused = opened.opened.error;
    if (refused?.condition === "invalid_option") findings.push(...refused.findings);
    if (findings.length > 0) throw invalid(findings);
    if (refused) throw fromCore(refused, options.sessionId);
    this.id = options.sessionId;
    /** Where rules come from that are not the program's own; null where they are. */
    this.plan = isPlanned ? new Plan(this, environmentOf(given.environment)) : null;
    this.early = [];
    this.core = opened;
    this.#obey(options);
    this.unguarded = 0;
    this.executors = given.tools ?? {};
    this.executions = 0;
    /** Calls that were allowed and whose tools did not begin. */
    this.notBegun = [];
    this.settled = 0;
    this.captures = { waiting: [], sending: null, lost: 0, told: 0, handing: Promise.resolve() };
    this.server = server && new Server(this, { ...server, place, create: () => newSession(this, files, place) });
    this.store = given.store ?? null;
    // A store may hold the beginning of a session that has a name.
    this.isNamed = given.sessionId !== undefined;
    this.taken = null;
    this.stored = 0;
    this.storing = Promise.resolve();
    this.over = null;
    this.underWay = new Set();
    this.callbacks = {
      onBlock: given.onBlock,
      onNarrow: given.onNarrow,
      diagnostics: given.diagnostics,
      onCheckpoint: given.onCheckpoint,
    };
    this.endings = [];
    this.workflow = null;
    if (place && server === null) {
      this.workflow = workflows.join(this, place, files.workflow);
      this.workflow.publish();
    }
  }

  #obey(options) {
    this.options = options;
    this.mode = options.mode ?? "enforce";
    /** False where everything goes on as without a session, and is only told. */
    this.enforces = this.mode === "enforce" && (options.server === true || options.compatEnforcement !== "advisory");
    this.allowsFaults = options.onError === "allow";
    this.unguardedMax = options.maxUnguardedCalls ?? 3;
  }

  /** Goes on under rules that were found elsewhere. Labels and filters that came before apply to them. */
  adopt(core, options) {
    for (const [kind, value] of this.early) core.control(kind, value);
    this.core = core;
    this.#obey(options);
  }

  /** Goes on without a server. */
  leaveServer() {
    this.server?.leave();
    this.server = null;
    const options = { ...this.options, server: false };
    this.adopt(new Core(null, options), options);
  }

  /** Takes note of what another session of the workflow did. */
  hear(event) {
    try {
      this.core.control("hear", event);
      if (this.over === null && this.core.read("state").killed) this.killHere("the session that it came from was stopped");
    } catch {
      // A broken core ends its own session with the next call; it does not stop the others.
    }
  }

  /** Goes on where a stored session stopped, or begins the store. Done once, before anything else is judged. */
  takeUp() {
    if (this.store === null) return null;
    if (this.taken === null) {
      const taken = this.#takeUp();
      this.taken = taken;
      taken.catch(() => {
        if (this.taken === taken) this.taken = null;
      });
    }
    return this.taken;
  }

  async #takeUp() {
    const digest = this.core.opened.compiled_digest;
    const { store } = this;
    let begin = null;
    const events = [];
    if (this.isNamed && (await within(STORE_MS, store.head())) > 0) {
      let isOwn = false;
      for await (const bytes of store.read(0)) {
        const record = JSON.parse(Buffer.from(bytes).toString("utf8"));
        if (record.begin) {
          isOwn = record.begin.session_id === this.id;
          if (isOwn) begin ??= record.begin;
        } else if (isOwn) events.push(record.event);
      }
    }
    if (begin === null) {
      const startedAt = Date.parse(this.core.read("state").startedAt) * 1000;
      const record = { begin: { session_id: this.id, compiled_digest: digest, started_at: startedAt } };
      await within(STORE_MS, store.append(Buffer.from(JSON.stringify(record))));
      return;
    }
    if (begin.compiled_digest !== digest) throw invalid([`\`sessionId\`: the stored session began under other contracts (${begin.compiled_digest})`]);
    const resumed = this.core.control("resume", { started_at: begin.started_at, events });
    if (resumed.error) throw this.error(resumed.error);
    this.stored = events.length;
    const state = this.core.read("state");
    if (state.killed) this.killHere("the session was killed before");
  }

  /** Calls the program. Whatever it does there changes no verdict. */
  tell(name, value) {
    const callback = this.callbacks[name];
    if (!callback) return;
    const failed = (error) => {
      if (name !== "diagnostics") this.diagnose("callback_failed", { callback: name, error: String(error?.message ?? error) });
    };
    try {
      const returned = callback(value);
      if (typeof returned?.then === "function") returned.then(undefined, failed);
    } catch (error) {
      failed(error);
    }
  }

  /** Tells the program something that the core does not know. */
  diagnose(name, data = {}) {
    if (!this.callbacks.diagnostics) return;
    let version = 0;
    try {
      version = this.core.read("state").stateVersion;
    } catch {
      // A core that is broken has no version any more.
    }
    const event = { name, time: new Date().toISOString(), session_id: this.id, state_version: version, data };
    this.tell("diagnostics", snapshots.freeze(event));
  }

  /** Passes on what the core has to say, and stores what happened. Nothing may be released before this is done. */
  async settle() {
    this.workflow?.publish();
    // Nothing has happened under rules that are not known yet.
    if (this.plan !== null && this.plan.attachment === null) return;
    if (this.callbacks.diagnostics) {
      for (const event of this.core.read("diagnostics")) {
        // Told with its path by `bypassed`.
        if (event.name !== "replay_bypass_detected") this.tell("diagnostics", snapshots.freeze(event));
      }
    }
    this.settled += 1;
    if (this.settled % SETTLED_EVERY === 0 && (this.store || this.server) && !this.server?.lost) {
      this.#handOver().catch((error) => this.diagnose("captures_held", { error: String(error?.message ?? error) }));
    }
    if (!this.store) {
      // A server has a record of its own; what is kept here for nobody is dropped.
      if (!this.options.keepsNothing) this.core.read("records", -1);
      return;
    }
    const written = this.storing.then(() => this.write());
    this.storing = written.catch(() => {});
    await written;
  }

  async write() {
    await this.takeUp();
    for (const record of this.core.read("records", this.stored)) {
      await within(STORE_MS, this.store.append(Buffer.from(JSON.stringify(record))));
      this.stored = record.seq + 1;
    }
  }

  /** Says why the session takes no more calls; null while it does. */
  check(Base) {
    return this.over === null ? null : this.over(Base);
  }

  error(described, Base) {
    return fromCore(described, this.id, Base);
  }

  fault(cause, Base, retrySafe = true) {
    if (cause instanceof ReplayConfigError) return cause;
    const message = cause instanceof ReplayFaultError ? cause.message : "governance failed around this call";
    return makeError("ReplayFaultError", message, { retrySafe, cause, sessionId: this.id }, Base);
  }

  /** Counts a call that goes on without backing. The session is killed right after the last one that may. */
  countUnguarded() {
    this.unguarded += 1;
    this.diagnose("unguarded_call", { count: this.unguarded });
  }

  /** Ends the session for everybody who waits in it. */
  end(name, message, members = {}) {
    if (this.over !== null) return;
    this.over = (Base) => makeError(name, message, { ...members, sessionId: this.id }, Base);
    for (const stop of [...this.underWay]) stop();
    this.workflow?.leave();
  }

  /** Waits for work, but not longer than the session is open. The work itself goes on, and what it brings is dropped. */
  whileOpen(work, Base) {
    const ended = this.check(Base);
    if (ended) return Promise.reject(ended);
    return new Promise((resolve, reject) => {
      const stop = () => reject(this.check(Base));
      this.underWay.add(stop);
      const done = (settle) => (value) => {
        settle(value);
        this.underWay.delete(stop);
        if (this.unguarded >= this.unguardedMax) this.kill("too many calls without backing");
      };
      work().then(done(resolve), done(reject));
    });
  }

  control(kind, value) {
    const answer = this.core.control(kind, value);
    if (answer.error) throw this.error(answer.error);
    if (this.plan !== null && this.plan.attachment === null) this.early.push([kind, value]);
    this.settle().catch(() => {});
    return answer;
  }

  kill(cause = "killed by the program") {
    if (this.over !== null) return;
    this.killHere(cause);
    this.server?.end("/kill", { reason: cause });
  }

  /** The server stopped the session. Returns the error that says so. */
  killedByServer(cause, Base) {
    this.killHere(cause);
    return this.check(Base);
  }

  killHere(cause) {
    if (this.over !== null) return;
    try {
      this.control("kill", cause);
    } catch {
      // A broken core cannot take note. The end of the session does not depend on it.
    }
    this.end("ReplayKillError", "the session was killed", { cause_of_kill: cause });
  }

  restore() {
    for (const undo of this.endings.splice(0)) undo();
    if (this.over !== null) return;
    try {
      this.control("restore", null);
    } catch {
      // As in `kill`.
    }
    // A server that never heard of the session need not hear of its end.
    const isKnown = this.server === null || this.server.isOpened;
    const flushed = isKnown ? this.flush().catch(() => {}) : Promise.resolve();
    this.end("ReplayInactiveError", "the session was ended");
    if (this.server) flushed.then(() => this.server.end("/restore", {}));
  }

  addLabel(label) {
    if (this.over === null) {
      this.control("add_label", label);
      this.server?.control("/labels", { label });
    } else this.diagnose("ignored", { action: "addLabel" });
  }

  narrow(names) {
    if (this.over === null) {
      this.control("narrow", names);
      this.server?.control("/tool-filter", { tools: names });
    } else this.diagnose("ignored", { action: "narrow" });
  }

  widen() {
    if (this.over === null) {
      this.control("widen", null);
      this.server?.control("/tool-filter", { tools: null });
    } else this.diagnose("ignored", { action: "widen" });
  }

  bypassed(path) {
    if (this.over !== null) return;
    try {
      this.control("bypassed", null);
      this.server?.control("/report-bypass", { detected_at: new Date().toISOString(), detail: path });
      this.diagnose("replay_bypass_detected", { path });
    } catch {
      // The request around the session is not ours to stop.
    }
  }

  getState() {
    const own = this.core.read("state");
    // Once the server has another state, its is the one that counts; what ended here has ended.
    const shown = this.server?.shown;
    const read = shown ? { ...shown, killed: shown.killed || own.killed, totalUnguardedCalls: own.totalUnguardedCalls } : own;
    return snapshots.state({ ...read, totalUnguardedCalls: read.totalUnguardedCalls + this.unguarded });
  }

  getHealth() {
    const held = this.server?.held.length ?? 0;
    const unresolved = held + (this.server?.unresolved ?? 0);
    const attachment = ATTACHMENTS.indexOf(this.plan?.attachment ?? "not_applicable") << ATTACHMENT;
    const health = this.core.read("health", (this.store ? JOURNAL : 0) | (this.server?.lost || held > 0 ? LOST : 0) | attachment);
    return snapshots.freeze({ ...health, unresolvedReceiptCount: health.unresolvedReceiptCount + unresolved });
  }

  getLastNarrowing() {
    return snapshots.freeze(this.core.read("narrowing"));
  }

  getLastShadowDelta() {
    return snapshots.freeze(this.core.read("delta"));
  }

  async handoff(offer) {
    const ended = this.check();
    if (ended) throw ended;
    await this.plan?.attach();
    if (this.server?.place) return snapshots.freeze(await this.server.handoff(offer));
    if (this.workflow === null) return null;
    const answer = this.control("handoff", { ...offer, handoff_id: `ho_${globalThis.crypto.randomUUID()}` });
    return snapshots.freeze({ handoff_id: answer.handoff_id, status: answer.status, expires_at: answer.expires_at });
  }

  async getWorkflowState() {
    await this.plan?.attach();
    if (this.server?.place) return snapshots.freeze(await this.server.workflowState());
    return this.workflow === null ? null : snapshots.freeze(this.core.read("workflow", Date.now() * 1000));
  }

  async flush() {
    await this.plan?.attach();
    await this.storing;
    return this.#handOver();
  }

  /** Hands captures over, one after the other: what is not taken now is held for the next time. */
  #handOver() {
    const handed = this.captures.handing.then(() => this.#handOverAll());
    this.captures.handing = handed.catch(() => {});
    return handed;
  }

  async #handOverAll() {
    const { waiting } = this.captures;
    const { captures, counts } = this.core.read("captures");
    waiting.push(...captures);
    // Those that the server may have taken already are not the ones to go.
    const excess = waiting.length - CAPTURES_MAX;
    if (excess > 0) this.captures.lost += waiting.splice(this.captures.sending?.some.length ?? 0, excess).length;
    const dropped = counts.dropped + this.captures.lost;
    if (dropped > this.captures.told) {
      this.captures.told = dropped;
      this.diagnose("captures_dropped", { count: dropped });
      await this.#keepBlob("dropped", { session_id: this.id, dropped_captures: dropped });
    }
    while (waiting.length > 0) {
      this.captures.sending ??= { some: waiting.slice(0, 100), key: globalThis.crypto.randomUUID() };
      const { some, key } = this.captures.sending;
      if (this.server) await this.server.capture(some, key);
      for (const capture of some) await this.#keepBlob(`capture/${capture.execution ? `tool/${(this.executions += 1)}` : capture.attempt}`, capture);
      waiting.splice(0, some.length);
      this.captures.sending = null;
    }
    return { sent: counts.sent - this.captures.lost, dropped, pending: counts.pending };
  }

  async #keepBlob(name, value) {
    if (this.store) await within(STORE_MS, this.store.putBlob(`${this.id}/${name}`, Buffer.from(JSON.stringify(value))));
  }
}

/** What the server is told of a new session: contracts, options, and who calls. Rules that it has are named by their digest. */
function newSession({ core, options, plan }, files, place) {
  const { workflow: source, ...contracts } = files ?? { contracts: [] };
  const workflow = place && { type: place.type, workflow_id: place.workflowId, role: place.role, handoff_id: place.handoffId, source: place.type === "root" ? source : undefined };
  return {
    session_id: options.sessionId,
    agent: options.agent,
    compiled_digest: core.opened.compiled_digest,
    contracts: plan?.isAttached ? undefined : contracts,
    workflow: workflow ?? undefined,
    principal: options.principal,
    mode: options.mode,
    gate: options.gate,
    unmatched_policy: options.unmatchedPolicy,
    capture_level: options.captureLevel,
    labels: options.labels,
    provider_constraints: options.providerConstraints,
    pricing: options.pricing,
  };
}

/** Waits for a promise, but not longer than a time. */
function within(ms, promise) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`no answer within ${ms} ms`)), ms);
    timer.unref?.();
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

module.exports = { Session, within };
