// Sessions that share a job: what one does to the workflow, the others of this process hear at once.
"use strict";

const { ReplayConfigError } = require("./errors.js");

const WORKFLOWS = Symbol.for("@reprise/replay.workflows");
/** The workflows of this process, across copies of this package: file, what happened, and the sessions that listen. */
const workflows = (globalThis[WORKFLOWS] ??= new Map());

function notFound(message) {
  return new ReplayConfigError(message, { condition: "workflow_not_found", findings: [message] });
}

/** Finds the workflow of a session. A child works by the file of the workflow it joins. */
function find(place, file) {
  const known = workflows.get(place.workflowId);
  if (place.type === "child") {
    if (!known) throw notFound(`no session of this process has begun the workflow \`${place.workflowId}\``);
    return { file: known.file, events: known.events };
  }
  if (known) throw notFound(`the workflow \`${place.workflowId}\` has begun already`);
  return { file, events: undefined };
}

/** Takes a session into its workflow. */
function join(session, { workflowId }, file) {
  const shared = workflows.get(workflowId) ?? { file, events: [], sessions: new Set() };
  workflows.set(workflowId, shared);
  shared.sessions.add(session);
  return {
    /** Tells the others what the session did. Whoever came from a session that was stopped is stopped. */
    publish() {
      for (const event of session.core.read("news")) {
        shared.events.push(event);
        for (const other of shared.sessions) if (other !== session) other.hear(event);
      }
    },
    leave() {
      shared.sessions.delete(session);
      if (shared.sessions.size === 0) workflows.delete(workflowId);
    },
  };
}

module.exports = { find, join, notFound };
