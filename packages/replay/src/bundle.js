// The exported record of a session on a server: one file, `reprise task export TASK FILE`.
"use strict";

const { createHash } = require("node:crypto");

const FORMAT = "reprise-bundle-1";
const EVENT = '{"event":';

/** Says whether lines are those of a bundle. */
function isBundle([first]) {
  return first !== undefined && first.startsWith("{") && typeof read(first).format === "string";
}

/** Returns the facts that a bundle records, in their order: what the program sent to the server. */
function factsOf(lines) {
  const { format, log_sha256: digest, events: count } = read(lines[0]);
  if (format !== FORMAT) throw new Error(`a bundle of the format \`${format}\` cannot be read here`);
  const events = lines.filter((line) => line.startsWith(EVENT));
  const log = createHash("sha256");
  for (const event of events) log.update(`${event.slice(EVENT.length, -1)}\n`);
  if (events.length !== count || `sha256:${log.digest("hex")}` !== digest) throw new Error("the bundle is damaged: its events are not the ones it was written with");
  const blobs = blobsOf(lines);
  const recorded = events.map((line) => read(line).event).filter((event) => event.event === "vendor.effect_recorded");
  return recorded.map(({ payload }) => {
    const kept = payload.blobs?.value;
    if (!kept) return payload.value;
    const bytes = blobs.get(kept.sha256);
    if (!bytes) throw new Error(`the bundle is damaged: a value is missing (${kept.sha256})`);
    return JSON.parse(bytes.toString("utf8"));
  });
}

/** Large values stand apart, under their digests. */
function blobsOf(lines) {
  const blobs = new Map();
  for (const line of lines) {
    if (!line.startsWith('{"blob":')) continue;
    const { base64, sha256 } = read(line).blob;
    const bytes = Buffer.from(base64, "base64");
    if (`sha256:${createHash("sha256").update(bytes).digest("hex")}` === sha256) blobs.set(sha256, bytes);
  }
  return blobs;
}

function read(line) {
  try {
    return JSON.parse(line);
  } catch {
    throw new Error("the file is neither a bundle nor a recording: a line is not JSON");
  }
}

module.exports = { factsOf, isBundle };
