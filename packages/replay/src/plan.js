// Rules from the server: a session that brings no contracts works by those that are approved there for its agent.
//
// What that means is a matter of the environment. In production the rules are enforced, and without them nothing is sent. In
// staging they are judged by and reported, and without them nothing is sent either. In development nothing is ever blocked.
"use strict";

const { Core } = require("./core.js");
const { ReplayConfigError } = require("./errors.js");
const { ServerLost } = require("./server.js");

const INVALID = new Set(["APPROVED_ARTIFACT_INVALID", "several_plans"]);
/** What development makes of a session without usable rules: everything is recorded, nothing stands in the way. */
const CAPTURED = Object.freeze({ mode: "log-only", onError: "allow", maxUnguardedCalls: Number.MAX_SAFE_INTEGER });

class Plan {
  #session;
  #environment;
  #attaching = null;
  /** How the rules are attached; null until the first call has looked. */
  attachment = null;

  constructor(session, environment) {
    this.#session = session;
    this.#environment = environment;
  }

  /** Finds the rules, once, before anything else is done. What was refused is looked up again by the next call. */
  attach() {
    if (this.#attaching === null) {
      const attaching = this.#attach();
      this.#attaching = attaching;
      attaching.catch(() => {
        if (this.#attaching === attaching) this.#attaching = null;
      });
    }
    return this.#attaching;
  }

  get isAttached() {
    return this.attachment === "attached";
  }

  async #attach() {
    const found = await this.#find();
    this.attachment = found.attachment;
    if (this.#environment !== "development") {
      if (!found.core) throw this.#refusal(found);
      this.#session.adopt(found.core, found.options);
      return;
    }
    if (found.core) this.#session.adopt(found.core, found.options);
    else this.#capture();
    if (found.attachment === "fetch_failed") return this.#session.leaveServer();
    try {
      await this.#session.server.ready();
    } catch (error) {
      if (error instanceof ServerLost || this.#session.check()) return;
      // Found, but the server does not open a session under it.
      if (found.core) this.attachment = "attachment_failed";
      this.#capture();
      this.#session.leaveServer();
    }
  }

  /** Looks the rules up and compiles them. */
  async #find() {
    const session = this.#session;
    const { options } = session;
    let answer;
    try {
      answer = await session.server.request("GET", `/plans?agent=${encodeURIComponent(options.agent)}`);
    } catch (error) {
      if (!(error instanceof ServerLost)) throw error;
      return { attachment: "fetch_failed", why: error.message, cause: error };
    }
    const { status, body } = answer;
    const why = String(body?.detail ?? body?.message ?? body?.error?.message ?? `the server answered ${status}`);
    if (status === 404 && body?.code === "no_plan") return { attachment: "no_plan", why };
    if (status === 404 && INVALID.has(body?.code)) return { attachment: "artifact_invalid", why };
    if (status !== 200) return { attachment: "fetch_failed", why };
    const { contracts, session: file = null } = body?.contracts ?? {};
    if (!Array.isArray(contracts)) return { attachment: "fetch_failed", why: "the server answered something else" };
    const given = this.#environment === "production" ? options : { ...options, mode: "shadow" };
    const core = new Core({ contracts, session: file }, given);
    const { error, compiled_digest } = core.opened;
    if (error) return { attachment: error.condition === "compilation_failed" ? "artifact_invalid" : "attachment_failed", why: error.message, error };
    if (compiled_digest !== body.compiled_digest) return { attachment: "artifact_invalid", why: "the rules are not those that were approved" };
    return { attachment: "attached", core, options: given };
  }

  #refusal({ attachment, why, error, cause }) {
    const members = { governanceAttachment: attachment, sessionId: this.#session.id, cause };
    if (error) return new ReplayConfigError(error.message, { condition: error.condition, findings: error.findings, ...members });
    const message = `there are no rules for this session (${attachment}): ${why}`;
    return new ReplayConfigError(message, { condition: "invalid_option", findings: [message], ...members });
  }

  #capture() {
    const options = { ...this.#session.options, ...CAPTURED };
    this.#session.adopt(new Core(null, options), options);
  }

  /** In staging each call that would have been blocked is reported. */
  report(decision) {
    if (this.#environment !== "staging") return;
    for (const { verdict, reason, tool_name, call_id } of decision?.calls ?? []) {
      if (verdict !== "allow") this.#session.diagnose("violation", { reason, tool: tool_name, call_id });
    }
  }
}

/** The environment of a program. One that nobody knows is the strictest. */
function environmentOf(given) {
  const named = given ?? process.env.REPRISE_ENVIRONMENT;
  return named === "development" || named === "staging" ? named : "production";
}

module.exports = { CAPTURED, Plan, environmentOf };
