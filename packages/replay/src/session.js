// A governed session: the core, the program's callbacks, and the calls that are under way.
"use strict";

const { Core } = require("./core.js");
const { ReplayConfigError, ReplayFaultError, fromCore, makeError } = require("./errors.js");
const { readFiles, readOptions, invalid } = require("./options.js");
const snapshots = require("./snapshots.js");

const JOURNAL = 8;
const STORE_MS = 10_000;

class Session {
  /** Compiles, checks and opens; touches neither a client nor the network. */
  constructor(given) {
    const { core, findings, isLogOnly } = readOptions(given);
    const files = readFiles(given);
    if (files === null && !isLogOnly) {
      findings.push("contracts are missing: give `contracts` or `contractsDir`; only `mode: log-only` needs none");
    }
    this.core = new Core(files ?? (isLogOnly ? null : { contracts: [], session: null }), core);
    const refused = this.core.opened.error;
    if (refused?.condition === "invalid_option") findings.push(...refused.findings);
    if (findings.length > 0) throw invalid(findings);
    if (refused) throw fromCore(refused, core.sessionId);
    this.id = core.sessionId;
    this.mode = core.mode ?? "enforce";
    this.removesTools = this.mode === "enforce" && core.compatEnforcement !== "advisory";
    this.allowsFaults = core.onError === "allow";
    this.unguardedMax = core.maxUnguardedCalls ?? 3;
    this.unguarded = 0;
    this.executors = given.tools ?? {};
    this.store = given.store ?? null;
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
    if (this.callbacks.diagnostics) {
      for (const event of this.core.read("diagnostics")) this.tell("diagnostics", snapshots.freeze(event));
    }
    if (!this.store) {
      // Nobody keeps records: asking for those after the last drops all.
      this.core.read("records", -1);
      return;
    }
    const written = this.storing.then(() => this.write());
    this.storing = written.catch(() => {});
    await written;
  }

  async write() {
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

  fault(cause, Base) {
    if (cause instanceof ReplayConfigError) return cause;
    const message = cause instanceof ReplayFaultError ? cause.message : "governance failed around this call";
    return makeError("ReplayFaultError", message, { retrySafe: true, cause, sessionId: this.id }, Base);
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
    this.settle().catch(() => {});
    return answer;
  }

  kill(cause = "killed by the program") {
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
    this.end("ReplayInactiveError", "the session was ended");
    this.flush().catch(() => {});
  }

  addLabel(label) {
    if (this.over === null) this.control("add_label", label);
    else this.diagnose("ignored", { action: "addLabel" });
  }

  narrow(names) {
    if (this.over === null) this.control("narrow", names);
    else this.diagnose("ignored", { action: "narrow" });
  }

  widen() {
    if (this.over === null) this.control("widen", null);
    else this.diagnose("ignored", { action: "widen" });
  }

  bypassed(path) {
    if (this.over !== null) return;
    try {
      this.control("bypassed", null);
      this.diagnose("replay_bypass_detected", { path });
    } catch {
      // The request around the session is not ours to stop.
    }
  }

  getState() {
    const read = this.core.read("state");
    return snapshots.state({ ...read, totalUnguardedCalls: read.totalUnguardedCalls + this.unguarded });
  }

  getHealth() {
    return snapshots.freeze(this.core.read("health", this.store ? JOURNAL : 0));
  }

  getLastNarrowing() {
    return snapshots.freeze(this.core.read("narrowing"));
  }

  getLastShadowDelta() {
    return snapshots.freeze(this.core.read("delta"));
  }

  async flush() {
    await this.storing;
    const { captures, counts } = this.core.read("captures");
    for (const capture of this.store ? captures : []) {
      const bytes = Buffer.from(JSON.stringify(capture));
      await within(STORE_MS, this.store.putBlob(`${this.id}/capture/${capture.attempt}`, bytes));
    }
    return counts;
  }
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
