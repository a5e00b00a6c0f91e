// Responses as bytes.
"use strict";

/** What is read of a response at most: one byte more than the core accepts, so that it sees that there is more. */
const BYTES_MAX = 16 * 1024 * 1024 + 1;

/** Reads a body to its end. */
async function readBody(response, signal) {
  if (!response.body) return new Uint8Array();
  const chunks = [];
  let length = 0;
  const reader = response.body.getReader();
  const stop = () => reader.cancel(signal.reason).catch(() => {});
  signal?.addEventListener("abort", stop, { once: true });
  try {
    for (;;) {
      signal?.throwIfAborted();
      const { done, value } = await reader.read();
      signal?.throwIfAborted();
      if (done) break;
      chunks.push(value);
      length += value.length;
      if (length >= BYTES_MAX) {
        await reader.cancel().catch(() => {});
        break;
      }
    }
  } finally {
    signal?.removeEventListener("abort", stop);
  }
  return chunks.length === 1 ? chunks[0] : Buffer.concat(chunks, length);
}

/** A body that comes event by event, and breaks off when its reader gives up, as one from the network does. */
function eventsOf(bytes, signal) {
  const buffer = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  let at = 0;
  const pull = (controller) => {
    if (signal.aborted) return controller.error(new DOMException("This operation was aborted", "AbortError"));
    if (at >= buffer.length) return controller.close();
    const blank = buffer.indexOf("\n\n", at);
    const end = blank === -1 ? buffer.length : blank + 2;
    controller.enqueue(new Uint8Array(buffer.subarray(at, end)));
    at = end;
  };
  return new ReadableStream({ pull }, { highWaterMark: 0 });
}

/** The same response with these bytes. With a signal they are the events of a stream. */
function answerOf(response, bytes, signal) {
  const made = new Response(signal ? eventsOf(bytes, signal) : bytes, response);
  const length = String(bytes.length);
  if ((response.headers.get("content-length") ?? length) !== length) made.headers.set("content-length", length);
  Object.defineProperty(made, "url", { value: response.url });
  return made;
}

const READ = Symbol("read");

/**
 * What stands between a response of the network and its class once its body was read: whoever reads it gets the bytes. Made
 * with the first response, because looking at `Response` loads the network library of Node.
 */
let readPrototype = null;

function makeReadPrototype() {
  const made = Object.create(Response.prototype, {
    body: {
      configurable: true,
      get() {
        return whole(this).body;
      },
    },
    bodyUsed: {
      configurable: true,
      get() {
        return this[READ].isUsed || (this[READ].made?.bodyUsed ?? false);
      },
    },
  });
  const methods = {
    async text() {
      const read = this[READ];
      if (read.isUsed || read.made !== null) return whole(this).text();
      read.isUsed = true;
      return new TextDecoder().decode(taken(read));
    },
    async json() {
      return JSON.parse(await this.text());
    },
    clone() {
      return whole(this).clone();
    },
  };
  for (const name of ["arrayBuffer", "blob", "bytes", "formData"]) {
    if (typeof Response.prototype[name] !== "function") continue;
    methods[name] = async function () {
      return whole(this)[name]();
    };
  }
  for (const [name, value] of Object.entries(methods)) Object.defineProperty(made, name, { value, configurable: true, writable: true });
  return made;
}

/** The bytes, which are read once: a response may live until the next full collection, and they would with it. */
function taken(read) {
  const { bytes } = read;
  read.bytes = null;
  return bytes ?? new Uint8Array();
}

function whole(response) {
  const read = response[READ];
  if (read.made === null) {
    read.made = new Response(taken(read), response);
    // A body is read once.
    if (read.isUsed) read.made.arrayBuffer().catch(() => {});
  }
  return read.made;
}

const READERS = ["arrayBuffer", "blob", "body", "bodyUsed", "bytes", "clone", "formData", "json", "text"];

/** Says whether a response was given ways of its own to read it: what they bring need not be what was judged. */
function readsItself(response) {
  const prototype = Object.getPrototypeOf(response);
  return (prototype !== Response.prototype && prototype !== readPrototype) || READERS.some((name) => Object.hasOwn(response, name));
}

/**
 * A response whose body was read, as if it had not been. It stays the object that the network gave: making another one costs
 * more than everything that is judged.
 */
function unread(response, bytes, signal) {
  if (Object.getPrototypeOf(response) !== Response.prototype || readsItself(response)) return answerOf(response, bytes, signal);
  readPrototype ??= makeReadPrototype();
  const made = signal ? new Response(eventsOf(bytes, signal), response) : null;
  Object.defineProperty(response, READ, { value: { bytes: signal ? null : bytes, isUsed: false, made } });
  return Object.setPrototypeOf(response, readPrototype);
}

/** A refusal as a response that no library tries again. */
function refusal(error) {
  const type = error.name.replace(/[A-Z]/g, (letter, at) => (at ? "_" : "") + letter.toLowerCase());
  const code = error.decision?.reason ?? (type === "replay_kill_error" ? "killed" : (error.condition ?? type));
  const body = JSON.stringify({ error: { type, code, message: error.message, ...(error.member && { param: error.member }) } });
  return new Response(body, { status: 403, headers: { "content-type": "application/json", "x-should-retry": "false" } });
}

module.exports = { answerOf, readBody, readsItself, refusal, unread };
