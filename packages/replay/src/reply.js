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

/** The same response with these bytes. */
function answerOf(response, bytes) {
  const made = new Response(bytes, response);
  const length = String(bytes.length);
  if ((response.headers.get("content-length") ?? length) !== length) made.headers.set("content-length", length);
  Object.defineProperty(made, "url", { value: response.url });
  return made;
}

/** A refusal as a response that no library tries again. */
function refusal(error) {
  const type = error.name.replace(/[A-Z]/g, (letter, at) => (at ? "_" : "") + letter.toLowerCase());
  const code = error.decision?.reason ?? (type === "replay_kill_error" ? "killed" : (error.condition ?? type));
  const body = JSON.stringify({ error: { type, code, message: error.message, ...(error.member && { param: error.member }) } });
  return new Response(body, { status: 403, headers: { "content-type": "application/json", "x-should-retry": "false" } });
}

module.exports = { answerOf, readBody, refusal };
