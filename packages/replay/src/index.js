// `replay(client, options)`: contracts for what a model may do, around an unmodified client.
"use strict";

const { attach } = require("./attach.js");
const { wrapTools } = require("./execute.js");
const { invalid } = require("./options.js");
const { CAPTURED } = require("./plan.js");
const { Session } = require("./session.js");
const errors = require("./errors.js");

/** Creates a governed session around a client. Synchronous; touches no network. */
function replay(client, options) {
  const session = new Session(options);
  const governed = attach(client, session);
  return Object.freeze({
    client: governed.client,
    fetch: governed.fetch,
    tools: wrapTools(session),
    flush: () => session.flush(),
    restore: () => session.restore(),
    kill: () => session.kill(),
    addLabel: (label) => session.addLabel(label),
    narrow: (names) => session.narrow(names),
    widen: () => session.widen(),
    getState: () => session.getState(),
    getHealth: () => session.getHealth(),
    getLastNarrowing: () => session.getLastNarrowing(),
    getLastShadowDelta: () => session.getLastShadowDelta(),
    getWorkflowState: () => session.getWorkflowState(),
    handoff: (offer) => session.handoff(offer),
  });
}

const OBSERVED = new Set(["agent", "sessionId", "captureLevel", "pricing", "diagnostics", "store", "apiKey", "runtimeUrl"]);

/** Records what a client does and enforces nothing. */
function observe(client, options = {}) {
  const unknown = Object.keys(options).filter((name) => !OBSERVED.has(name));
  if (unknown.length > 0) throw invalid(unknown.map((name) => `\`${name}\`: no option of this name`));
  const session = replay(client, { ...options, ...CAPTURED });
  return Object.freeze({
    client: session.client,
    fetch: session.fetch,
    flush: session.flush,
    restore: session.restore,
    getHealth: session.getHealth,
  });
}

const { makeError, fromCore, ...classes } = errors;
module.exports = { replay, observe, ...classes };
