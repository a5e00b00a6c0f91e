// Recorded sessions in the tests of a program: the model answers and the tools return what they did when it was recorded,
// without a network. What was not recorded is an error that says so.
"use strict";

const fs = require("node:fs");
const { factsOf, isBundle } = require("./bundle.js");

/** Raised when something is asked that was not recorded. */
class RecordingMiss extends Error {
  constructor(message) {
    super(message);
    this.name = "RecordingMiss";
  }
}

/**
 * A store that keeps a session in a file of JSON lines: the option `store`. With `captureLevel: "full"` and after `flush()`
 * the file can be run again by `recording`.
 */
function recorder(file) {
  let isWhole = false;
  const lines = () => {
    mend();
    return fs.existsSync(file) ? linesOf(file) : [];
  };
  /** A process that was killed while it wrote leaves half a line. Nobody was told that it is kept: it goes. */
  const mend = () => {
    if (!isWhole && fs.existsSync(file)) {
      const bytes = fs.readFileSync(file);
      const end = bytes.lastIndexOf(10) + 1;
      if (end < bytes.length) fs.truncateSync(file, end);
    }
    isWhole = true;
  };
  let known = null;
  // One line after the other: a long one is written in pieces, and another must not come between them.
  let last = Promise.resolve();
  const append = (line) => {
    const text = `${JSON.stringify(line)}\n`;
    const written = last.then(() => {
      mend();
      return fs.promises.appendFile(file, text);
    });
    last = written.catch(() => {});
    return written;
  };
  const records = () => {
    known ??= lines().filter((line) => line.record);
    return known;
  };
  return {
    async append(bytes) {
      const line = { record: JSON.parse(Buffer.from(bytes).toString("utf8")) };
      await append(line);
      known?.push(line);
    },
    async *read(from) {
      for (const line of records().slice(from)) yield Buffer.from(JSON.stringify(line.record));
    },
    async head() {
      return records().length;
    },
    async putBlob(name, bytes) {
      await append({ blob: name, value: JSON.parse(Buffer.from(bytes).toString("utf8")) });
    },
    async getBlob(name) {
      const found = lines().findLast((line) => line.blob === name);
      return found ? Buffer.from(JSON.stringify(found.value)) : null;
    },
  };
}

/**
 * Reads a recorded session: a file of `recorder`, a bundle that a server exported, or a list of captures. Returns `fetch` for
 * the client, `tools` for the option of that name, and `done`, which fails when the program asked for something else than was
 * recorded, or for less.
 */
function recording(source) {
  const { captures, dropped } = typeof source === "string" ? ofFile(source) : { captures: [...source], dropped: 0 };
  const models = captures.filter((capture) => capture.execution === undefined);
  const answers = models.map((capture) => ({ capture, wire: wireOf(capture), asked: shapeOf(capture.request), isUsed: false }));
  const executions = captures.filter((capture) => capture.execution !== undefined).map(({ execution }) => ({ execution, isUsed: false }));
  const misses = [];
  const miss = (message) => {
    misses.push(message);
    return new RecordingMiss(message);
  };

  const answer = (wire, body) => {
    const wanted = shapeOf(body);
    const found = answers.find((one) => !one.isUsed && one.wire === wire && same(one.asked, wanted));
    if (!found) throw miss(`no recorded answer for this request: ${why(answers.find((one) => !one.isUsed), wire, wanted)}${droppedMessage(dropped)}`);
    if (typeof found.capture.response !== "string") throw miss(levelMessage("the answer of the model"));
    found.isUsed = true;
    return found.capture;
  };

  /** A `fetch` that answers from the record. A miss is a response that no library tries again. */
  const recordedFetch = async (input, init = {}) => {
    const request = new Request(input, init);
    try {
      const { pathname } = new URL(request.url);
      const wire = request.method === "POST" ? WIRES.find(([path]) => pathname.endsWith(path))?.[1] : undefined;
      if (!wire) throw miss(`only answers of models are recorded, and \`${request.method} ${pathname}\` asks for something else`);
      const { response, is_stream } = answer(wire, await request.text());
      const type = is_stream ? "text/event-stream; charset=utf-8" : "application/json";
      return new Response(response, { status: 200, headers: { "content-type": type, "x-request-id": "recorded" } });
    } catch (error) {
      if (!(error instanceof RecordingMiss)) throw error;
      const body = JSON.stringify({ error: { type: "recording_miss", code: "recording_miss", message: error.message } });
      return new Response(body, { status: 404, headers: { "content-type": "application/json", "x-should-retry": "false" } });
    }
  };

  const execute = (tool) => async (args) => {
    const own = executions.filter((one) => !one.isUsed && one.execution.tool === tool);
    const found = own.find((one) => same(parsed(one.execution.arguments), args));
    if (!found) throw miss(`no recorded call of \`${tool}\` with these arguments: ${JSON.stringify(args)}`);
    const { outcome, code, output } = found.execution;
    if (outcome === "success" && output !== null && typeof output !== "string") throw miss(levelMessage(`the result of \`${tool}\``));
    found.isUsed = true;
    if (outcome === "success") return output === null ? undefined : parsed(output);
    throw Object.assign(new Error(`\`${tool}\` failed when it was recorded`), code ? { code } : {});
  };

  const names = [...new Set(executions.map(({ execution }) => execution.tool))];
  return Object.freeze({
    fetch: recordedFetch,
    tools: Object.freeze(Object.fromEntries(names.map((name) => [name, execute(name)]))),
    /** Fails when something was asked that was not recorded, or not everything that was. */
    done() {
      const left = answers.filter((one) => !one.isUsed).length + executions.filter((one) => !one.isUsed && one.execution.outcome !== "unknown").length;
      if (left > 0) misses.push(`${left} recorded answers and results were not asked for`);
      if (dropped > 0) misses.push(droppedMessage(dropped).slice(2));
      if (misses.length > 0) throw new RecordingMiss(misses.join("; "));
    },
  });
}

function levelMessage(what) {
  return `${what} is not in the record: only \`captureLevel: "full"\` keeps it`;
}

function droppedMessage(count) {
  return count > 0 ? `; ${count} answers and results were dropped before they could be recorded: \`flush()\` more often` : "";
}

/** Where the requests of a wire format go. */
const WIRES = [
  ["/chat/completions", "openai-chat"],
  ["/responses", "openai-responses"],
  ["/messages", "anthropic-messages"],
];

/** The wire format of a recorded answer. Older records do not name it; their requests show it. */
function wireOf({ wire, provider, request }) {
  if (typeof wire === "string") return wire;
  if (provider === "anthropic") return "anthropic-messages";
  return shapeOf(request)?.messages === undefined ? "openai-responses" : "openai-chat";
}

/** What keeps the next recorded request from being this one. */
function why(next, wire, wanted) {
  if (!next) return "all recorded answers were given";
  if (next.wire !== wire) return `the next recorded request has the format \`${next.wire}\`, this one \`${wire}\``;
  return `the next recorded request differs at \`${difference(next.asked, wanted)}\``;
}

function ofFile(file) {
  const lines = fs.readFileSync(file, "utf8").split("\n").filter(Boolean);
  const values = isBundle(lines) ? factsOf(lines) : linesOf(file);
  const captures = [];
  let dropped = 0;
  for (const value of values) collect(value, captures);
  for (const line of values) dropped = Math.max(dropped, line?.value?.dropped_captures ?? 0);
  if (captures.length === 0) throw new RecordingMiss(`\`${file}\` holds no recorded answers: they are there once \`flush()\` is done`);
  return { captures, dropped };
}

/** The values of a file of JSON lines. */
function linesOf(file) {
  const values = [];
  for (const [at, line] of fs.readFileSync(file, "utf8").split("\n").entries()) {
    if (line === "") continue;
    try {
      values.push(JSON.parse(line));
    } catch {
      throw new RecordingMiss(`\`${file}\`, line ${at + 1} is not JSON: the recording is cut off or damaged there`);
    }
  }
  return values;
}

/** Finds captures wherever they stand: in a file of ours, or in the record of a server. */
function collect(value, captures) {
  if (value === null || typeof value !== "object") return;
  const isCapture = typeof value.session_id === "string" && (value.execution !== undefined || (value.attempt !== undefined && value.request !== undefined && value.provider !== undefined));
  if (isCapture) captures.push(value);
  else for (const member of Object.values(value)) collect(member, captures);
}

/** What makes two requests the same: the model and what it is told. Which tools it sees is what contracts decide. */
function shapeOf(text) {
  const body = typeof text === "string" ? parsed(text) : text;
  if (body === null || typeof body !== "object" || Array.isArray(body)) return body;
  const { model, messages, input, system, instructions, stream, previous_response_id, response_format } = body;
  const told = { messages: withoutMessage(messages), input, system: withoutBlock(system), instructions: withoutStart(instructions) };
  return JSON.parse(JSON.stringify({ model, ...told, previous_response_id, response_format, stream: stream === true }));
}

/** The sentence about removed tools that a session puts in front of what a model is told. It is not the program's. */
const NOTE = /^These tools are not available now: [^\n]*\. Do not call them\.$/;
const NOTE_IN_FRONT = /^These tools are not available now: [^\n]*?\. Do not call them\.(\n\n|$)/;

function isNote(text) {
  return typeof text === "string" && NOTE.test(text);
}

/** Chat: a message of its own, the first. */
function withoutMessage(messages) {
  if (!Array.isArray(messages) || messages[0]?.role !== "system" || !isNote(messages[0].content)) return messages;
  return messages.slice(1);
}

/** Messages: a block of its own, the first; a text becomes the block after it. */
function withoutBlock(system) {
  const blocks = typeof system === "string" ? [{ type: "text", text: system }] : system;
  if (!Array.isArray(blocks)) return blocks ?? undefined;
  const own = isNote(blocks[0]?.text) ? blocks.slice(1) : blocks;
  return own.length === 0 ? undefined : own;
}

/** Responses: the beginning of the instructions. */
function withoutStart(instructions) {
  if (typeof instructions !== "string") return instructions ?? undefined;
  return instructions.replace(NOTE_IN_FRONT, "") || undefined;
}

function parsed(text) {
  if (typeof text !== "string") return text;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

function same(a, b) {
  return difference(a, b) === null;
}

/** The path of the first place where two values differ; null when they do not. */
function difference(a, b, path = "") {
  if (Object.is(a, b)) return null;
  const areObjects = a !== null && b !== null && typeof a === "object" && typeof b === "object" && Array.isArray(a) === Array.isArray(b);
  if (!areObjects) return path || "the whole";
  for (const name of new Set([...Object.keys(a), ...Object.keys(b)])) {
    const found = difference(a[name], b[name], path === "" ? name : `${path}.${name}`);
    if (found !== null) return found;
  }
  return null;
}

module.exports = { recorder, recording, RecordingMiss };
