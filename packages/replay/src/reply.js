// Responses as bytes.
"use strict";

/** What is read of a response at most: one byte more than the core accepts, so that it sees that there is more. */
const BYTES_MAX = 16 * 1024 * 1024 + 1;

/** Statuses of responses that have no body, for which no response with one can be made. */
const BODILESS = [101, 103, 204, 205, 304];

/**
 * Reads a body to its end, and throws when it breaks off. Where nothing is blocked (`isLenient`), everything is read however
 * much it is, and of a body that breaks off what came is returned, with why it broke off under `broken`.
 */
async function readBody(response, signal, isLenient = false) {
  // One that a program made itself may have readers all the same.
  const isEmpty = response.body === null && (response instanceof Response || !WHOLE.some((name) => typeof response[name] === "function"));
  if (isEmpty) return { bytes: new Uint8Array() };
  const chunks = [];
  let length = 0;
  const { next, cancel } = piecesOf(response);
  const stop = () => cancel(signal.reason);
  signal?.addEventListener("abort", stop, { once: true });
  try {
    for (;;) {
      signal?.throwIfAborted();
      const { done, value } = await next();
      signal?.throwIfAborted();
      if (done) break;
      const bytes = bytesOf(value);
      chunks.push(bytes);
      length += bytes.length;
      if (length >= BYTES_MAX && !isLenient) {
        await cancel();
        break;
      }
    }
  } catch (error) {
    if (!isLenient || signal?.aborted) throw error;
    return { bytes: Buffer.concat(chunks, length), broken: error };
  } finally {
    signal?.removeEventListener("abort", stop);
  }
  return { bytes: chunks.length === 1 ? chunks[0] : Buffer.concat(chunks, length) };
}

/** The pieces of a body: of a web stream, of a stream of Node (`node-fetch` and the like), or what a reader of the response gives. */
function piecesOf(response) {
  const { body } = response;
  if (typeof body?.getReader === "function") {
    const reader = body.getReader();
    return { next: () => reader.read(), cancel: (reason) => reader.cancel(reason).catch(() => {}) };
  }
  if (typeof body?.[Symbol.asyncIterator] === "function") {
    const pieces = body[Symbol.asyncIterator]();
    const cancel = async () => {
      body.destroy?.();
      await pieces.return?.();
    };
    return { next: () => pieces.next(), cancel: () => cancel().catch(() => {}) };
  }
  let isRead = false;
  const next = async () => {
    if (isRead) return { done: true };
    isRead = true;
    return { done: false, value: await wholeBody(response) };
  };
  return { next, cancel: async () => {} };
}

/** The readers of a response of which one gives all of its body. */
const WHOLE = ["arrayBuffer", "text", "json"];

async function wholeBody(response) {
  for (const name of ["arrayBuffer", "text"]) if (typeof response[name] === "function") return response[name]();
  if (typeof response.json === "function") return JSON.stringify(await response.json());
  throw new TypeError("the client's `fetch` gave a response whose body cannot be read: give the client a `fetch` whose responses have a `body` or `arrayBuffer()`");
}

function bytesOf(chunk) {
  if (chunk instanceof Uint8Array) return chunk;
  if (typeof chunk === "string") return Buffer.from(chunk);
  if (ArrayBuffer.isView(chunk)) return Buffer.from(chunk.buffer, chunk.byteOffset, chunk.byteLength);
  if (Object.prototype.toString.call(chunk) === "[object ArrayBuffer]") return Buffer.from(chunk);
  throw new TypeError("the client's `fetch` gave a response whose body is not made of bytes: give the client a `fetch` whose responses are");
}

/**
 * A body that comes event by event, and breaks off when its reader gives up, as one from the network does; or at its end, where
 * the one from the network did.
 */
function eventsOf(bytes, signal, broken) {
  const buffer = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  let at = 0;
  const pull = (controller) => {
    if (signal?.aborted) return controller.error(new DOMException("This operation was aborted", "AbortError"));
    if (at >= buffer.length) return broken === undefined ? controller.close() : controller.error(broken);
    const blank = buffer.indexOf("\n\n", at);
    const end = blank === -1 ? buffer.length : blank + 2;
    controller.enqueue(new Uint8Array(buffer.subarray(at, end)));
    at = end;
  };
  return new ReadableStream({ pull }, { highWaterMark: 0 });
}

/** A response like another one with another body. */
function like(response, body) {
  const { status, statusText, headers } = response;
  return new Response(BODILESS.includes(status) ? null : body, { status, statusText, headers: headers instanceof Headers ? headers : [...headers] });
}

/** The same response with these bytes. With a signal they are the events of a stream. */
function answerOf(response, bytes, signal, broken) {
  const made = like(response, signal || broken !== undefined ? eventsOf(bytes, signal, broken) : bytes);
  const length = String(bytes.length);
  if (broken === undefined && (response.headers.get("content-length") ?? length) !== length) made.headers.set("content-length", length);
  return placed(made, response);
}

/** What a response says of where it came from, and what one that is made cannot be given otherwise. */
function placed(made, { url, redirected, type }) {
  const value = (value) => ({ value, configurable: true });
  return Object.defineProperties(made, { url: value(url), redirected: value(redirected === true), type: value(type ?? "default") });
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
    read.made = placed(like(response, taken(read)), response);
    // A body is read once.
    if (read.isUsed) read.made.arrayBuffer().catch(() => {});
  }
  return read.made;
}

/**
 * The response that is handed to a program: one that was read here is made whole, because whoever takes the readers of the
 * class itself (`Response.prototype.text.call`) would find a body that is used up.
 */
function handed(response) {
  return response?.[READ] === undefined ? response : whole(response);
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
  const made = signal ? placed(like(response, eventsOf(bytes, signal)), response) : null;
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

module.exports = { answerOf, handed, readBody, readsItself, refusal, unread };
