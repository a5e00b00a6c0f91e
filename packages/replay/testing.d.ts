// Types of `@reprise/replay/testing`.
import type { Store, ToolExecutor } from "./index.js";

/** Raised when something is asked that was not recorded. */
export class RecordingMiss extends Error {}

/** A store that keeps a session in a file of JSON lines. Record with `captureLevel: "full"`, and `flush()` at the end. */
export function recorder(file: string): Store;

export type Recording = {
  /** For the client: answers from the record, without a network. */
  readonly fetch: typeof globalThis.fetch;
  /** For the option `tools`: results from the record. */
  readonly tools: Readonly<Record<string, ToolExecutor>>;
  /** Fails when something was asked that was not recorded, or less than was. */
  done(): void;
};

/** Reads a recorded session: a file of `recorder`, a bundle of a server (`reprise task export`), or a list of captures. */
export function recording(source: string | readonly object[]): Recording;
